/* What the mock engine says: vLLM's JSON for whole answers, streams' events and prefill calls, with the prompt's mark. */
#ifndef WEFT_BENCH_ANSWERS_H
#define WEFT_BENCH_ANSWERS_H

#include "wire.h"

#define EVENT 512
#define BY_MODEL "\"created\":1700000000,\"model\":\"" MODEL "\""

/* Write an event of one choice; `why` is the rest of the choice behind "finish_reason". Return its length. */
static inline size_t write_event(char *to, const char *mark, const char *delta, const char *why) {
    return (size_t)snprintf(to, EVENT,
        "data: {\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion.chunk\"," BY_MODEL ",\"choices\":[{\"index\":0,\"delta\":%s,"
        "\"logprobs\":null,\"finish_reason\":%s}]}\n\n", mark, delta, why);
}

static inline size_t write_usage(char *to, const char *mark) {
    return (size_t)snprintf(to, EVENT,
        "data: {\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion.chunk\"," BY_MODEL ",\"choices\":[],"
        "\"usage\":{\"prompt_tokens\":100,\"total_tokens\":200,\"completion_tokens\":100}}\n\n", mark);
}

/* Write a whole answer of so many tokens to a prompt of so many bytes. */
static inline void write_whole(struct buffer *to, const char *mark, int tokens, size_t prompt) {
    char text[512];
    append(to, text, (size_t)snprintf(text, sizeof text,
        "{\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion\"," BY_MODEL ",\"choices\":[{\"index\":0,\"message\":"
        "{\"role\":\"assistant\",\"content\":\"%s", mark, mark));
    for (int i = 0; i < tokens; i++) append(to, TOKEN, sizeof TOKEN - 1);
    append(to, text, (size_t)snprintf(text, sizeof text,
        "\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}],"
        "\"service_tier\":null,\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":%d,"
        "\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"kv_transfer_params\":null}",
        prompt / 4 + 1, prompt / 4 + 1 + (size_t)tokens, tokens));
}

/* Write a prefill call's answer: where the KV of the prompt waits, under the mark as its request's id. */
static inline size_t write_prefill(char *to, size_t room, const char *mark, size_t prompt) {
    size_t tokens = prompt / 4 + 1;
    return (size_t)snprintf(to, room,
        "{\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion\"," BY_MODEL ",\"choices\":[{\"index\":0,\"message\":"
        "{\"role\":\"assistant\",\"content\":\"" TOKEN "\"},\"logprobs\":null,\"finish_reason\":\"length\","
        "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu,\"completion_tokens\":1,"
        "\"prompt_tokens_details\":null},\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
        "\"remote_block_ids\":[[1,2,3,4,5,6,7,8]],\"remote_engine_id\":\"bench-engine\",\"remote_request_id\":\"p-%s\","
        "\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,\"tp_size\":1,\"dcp_size\":1,\"pp_size\":1,"
        "\"remote_num_tokens\":%zu,\"remote_blocks_expiry_time\":null,\"transfer_mode\":\"pull\","
        "\"remote_prefill_cached_tokens\":0}}", mark, tokens, tokens + 1, mark, tokens);
}

#endif
