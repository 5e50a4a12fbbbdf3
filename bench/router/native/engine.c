/* A mock engine that costs next to nothing: prefill and decode ports of vLLM's and SGLang's P/D protocols on one epoll.
 *
 * engine PREFILLS DECODES     prints "prefill PORT..." and "decode PORT..." and serves until it is ended.
 *
 * A prompt holds #MARK# as its last mark. A prefill call gets vLLM's transfer parameters with the mark as request id, a
 * decode call has to bring exactly those back (or a bootstrap room, or neither: a local prefill), and the answer repeats
 * the mark. Whatever is not as the protocol wants it gets status 400 and is counted as wrong.
 * GET /bench/pace/GAP_US sets the time between a stream's events (0: as fast as it is read, also for those under way),
 * /bench/ledger tells what was seen, /bench/reset forgets it.
 */
#define _GNU_SOURCE
#include "answers.h"

#define BURST 8 /* events a stream without a pace writes at once: a write for each would make this engine the bottleneck */

enum role { PREFILL, DECODE };

struct connection {
    int fd;
    enum role role;
    bool listening, writable, waits_to_write;
    struct buffer in, out;
    /* A stream on its way: what is left of it, its next event's time, and its place among the streams. */
    bool streaming;
    int left;
    bool usage;
    char mark[MARK + 1];
    char event[EVENT + 16];
    size_t event_length;
    uint64_t due;
    struct connection *before, *after;
};

struct streams {
    struct connection *first, *last;
};

static struct {
    uint64_t prefills, remote, bootstrapped, local, wrong, aborted, events, open, peak;
} ledger;

static int poller, timer;
static uint64_t gap_ns;
static struct streams paced, eager;

static void put_last(struct streams *all, struct connection *c) {
    c->before = all->last;
    c->after = NULL;
    if (all->last) all->last->after = c;
    else all->first = c;
    all->last = c;
}

static void take_out(struct streams *all, struct connection *c) {
    if (c->before) c->before->after = c->after;
    else all->first = c->after;
    if (c->after) c->after->before = c->before;
    else all->last = c->before;
}

static struct streams *home(struct connection *c) { return c->due ? &paced : &eager; }

static void watch(struct connection *c) {
    struct epoll_event e = {.events = EPOLLIN | (c->waits_to_write ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void finish(struct connection *c) {
    if (!c->streaming) return;
    take_out(home(c), c);
    c->streaming = false;
    ledger.open--;
}

static void hang_up(struct connection *c) {
    if (c->streaming) ledger.aborted++;
    finish(c);
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    c->fd = -1;
    free(c);
}

/* Write what is waiting; return false when the connection is gone. */
static bool flush(struct connection *c) {
    while (c->out.length) {
        ssize_t n = send(c->fd, c->out.data, c->out.length, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN) return hang_up(c), false;
            if (!c->waits_to_write) c->waits_to_write = true, watch(c);
            return true;
        }
        drop(&c->out, (size_t)n);
    }
    if (c->waits_to_write) c->waits_to_write = false, watch(c);
    return true;
}

static void answer(struct connection *c, const char *status, const char *type, const char *body, size_t length) {
    char head[256];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nserver: bench\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n",
                     status, type, length);
    append(&c->out, head, (size_t)n);
    append(&c->out, body, length);
}

static void answer_json(struct connection *c, const char *status, const char *body) {
    answer(c, status, "application/json", body, strlen(body));
}

static void chunk(struct connection *c, const char *data, size_t length) {
    char size[16];
    append(&c->out, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", length));
    append(&c->out, data, length);
    append(&c->out, "\r\n", 2);
}

static void refuse(struct connection *c, const char *why) {
    char body[256];
    ledger.wrong++;
    snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}", why);
    answer_json(c, "400 Bad Request", body);
}

static void begin_stream(struct connection *c, int tokens, bool usage) {
    char event[EVENT];
    append_text(&c->out, "HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                         "transfer-encoding: chunked\r\n\r\n");
    chunk(c, event, write_event(event, c->mark, "{\"role\":\"assistant\",\"content\":\"\"}", "null"));
    size_t length = write_event(event, c->mark, "{\"content\":\"" TOKEN "\"}", "null");
    c->event_length = (size_t)snprintf(c->event, sizeof c->event, "%zx\r\n%s\r\n", length, event);
    c->streaming = true;
    c->left = tokens;
    c->usage = usage;
    c->due = gap_ns ? now_ns() + gap_ns : 0;
    put_last(home(c), c);
    if (++ledger.open > ledger.peak) ledger.peak = ledger.open;
}

static void end_stream(struct connection *c) {
    char event[EVENT];
    chunk(c, event, write_event(event, c->mark, "{\"content\":\"" TOKEN "\"}", "\"length\",\"stop_reason\":null"));
    if (c->usage) chunk(c, event, write_usage(event, c->mark));
    chunk(c, "data: [DONE]\n\n", 14);
    append(&c->out, "0\r\n\r\n", 5);
    finish(c);
}

/* Send a stream's next events; return false when the connection is gone. */
static bool step(struct connection *c, int count) {
    while (count-- > 0 && c->streaming) {
        ledger.events++;
        if (--c->left <= 0) end_stream(c);
        else append(&c->out, c->event, c->event_length);
    }
    return flush(c);
}

static void answer_whole(struct connection *c, int tokens, size_t prompt) {
    static struct buffer body;
    body.length = 0;
    write_whole(&body, c->mark, tokens, prompt);
    answer(c, "200 OK", "application/json", body.data, body.length);
}

static void answer_prefill(struct connection *c, size_t prompt) {
    char body[1024];
    answer(c, "200 OK", "application/json", body, write_prefill(body, sizeof body, c->mark, prompt));
}

static void infer(struct connection *c, const char *body, size_t length) {
    enum { MESSAGES, PROMPT, STREAM, OPTIONS, TOKENS, TOKENS_TOO, PARAMS, ROOM, COUNT };
    static const char *const names[COUNT] = {"messages", "prompt", "stream", "stream_options", "max_tokens",
                                             "max_completion_tokens", "kv_transfer_params", "bootstrap_room"};
    struct slice found[COUNT], inner[3];
    if (!members(body, body + length, names, found, COUNT)) return refuse(c, "the body is no object");
    struct slice prompt = found[MESSAGES].data ? found[MESSAGES] : found[PROMPT];
    const char *hash = prompt.data ? memrchr(prompt.data, '#', prompt.length) : NULL;
    if (!hash || hash - prompt.data < MARK + 1 || hash[-MARK - 1] != '#') return refuse(c, "the prompt holds no mark");
    memcpy(c->mark, hash - MARK, MARK);
    struct slice limit = found[TOKENS].data && !is(found[TOKENS], "null") ? found[TOKENS] : found[TOKENS_TOO];
    int tokens = limit.data ? atoi(limit.data) : 16;
    bool stream = is(found[STREAM], "true"), room = found[ROOM].data && !is(found[ROOM], "null");
    static const char *const transfer[] = {"do_remote_decode", "do_remote_prefill", "remote_request_id"};
    bool has = found[PARAMS].data && *found[PARAMS].data == '{';
    if (has && !members(found[PARAMS].data, found[PARAMS].data + found[PARAMS].length, transfer, inner, 3))
        return refuse(c, "the transfer parameters are no object");
    bool keep = has && is(inner[0], "true"), fetch = has && is(inner[1], "true");
    if (c->role == PREFILL) {
        ledger.prefills++;
        if (keep && stream) return refuse(c, "a prefill call must not stream");
        if (keep) return answer_prefill(c, prompt.length);
        if (!room) return refuse(c, "a prefill call must ask for the KV to stay, or name a bootstrap room");
        tokens = 1;
    } else if (fetch) {
        char wanted[MARK + 8];
        snprintf(wanted, sizeof wanted, "\"p-%s\"", c->mark);
        if (!is(inner[2], wanted)) return refuse(c, "these are the transfer parameters of another prompt");
        ledger.remote++;
    } else if (room) ledger.bootstrapped++;
    else ledger.local++;
    if (stream) {
        const char *usage = found[OPTIONS].data ? memmem(found[OPTIONS].data, found[OPTIONS].length, "\"include_usage\"", 15) : NULL;
        begin_stream(c, tokens, usage && memmem(usage, (size_t)(found[OPTIONS].data + found[OPTIONS].length - usage), "true", 4));
    } else answer_whole(c, tokens, prompt.length);
}

static void tell(struct connection *c, const char *path, size_t length) {
    static const char metrics[] =
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"" MODEL "\"} 0.01\n"
        "vllm:num_requests_running{engine=\"0\",model_name=\"" MODEL "\"} 0.0\n"
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"" MODEL "\"} 0.0\n"
        "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100000000\"} 1.0\n";
    char body[512];
    struct slice asked = {path, length};
    if (is(asked, "/health") || is(asked, "/ping")) return answer(c, "200 OK", "text/plain", "", 0);
    if (is(asked, "/metrics")) return answer(c, "200 OK", "text/plain; version=0.0.4", metrics, sizeof metrics - 1);
    if (is(asked, "/version")) return answer_json(c, "200 OK", "{\"version\":\"0.32.0\"}");
    if (is(asked, "/load")) return answer_json(c, "200 OK", "{\"server_load\":0}");
    if (is(asked, "/v1/models"))
        return answer_json(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\",\"created\":1700000000,"
                                        "\"owned_by\":\"bench\",\"root\":\"" MODEL "\",\"max_model_len\":1048576}]}");
    if (is(asked, "/get_model_info") || is(asked, "/model_info"))
        return answer_json(c, "200 OK", "{\"model_path\":\"" MODEL "\",\"is_generation\":true}");
    if (is(asked, "/get_server_info") || is(asked, "/server_info"))
        return answer_json(c, "200 OK", "{\"model_path\":\"" MODEL "\",\"served_model_name\":\"" MODEL "\",\"version\":\"0.5.0\"}");
    if (is(asked, "/bench/pace/")) {
        gap_ns = strtoull(path + 12, NULL, 10) * 1000;
        for (struct connection *paced_one = gap_ns ? NULL : paced.first; paced_one; paced_one = paced_one->after)
            paced_one->due = 1; /* what was paced ends at once */
    } else if (is(asked, "/bench/reset")) {
        uint64_t open = ledger.open;
        memset(&ledger, 0, sizeof ledger);
        ledger.open = ledger.peak = open;
    } else if (!is(asked, "/bench/ledger")) return answer_json(c, "404 Not Found", "{\"detail\":\"Not Found\"}");
    snprintf(body, sizeof body,
             "{\"prefills\":%lu,\"remote\":%lu,\"bootstrapped\":%lu,\"local\":%lu,\"wrong\":%lu,\"aborted\":%lu,\"events\":%lu,"
             "\"open\":%lu,\"peak\":%lu}",
             ledger.prefills, ledger.remote, ledger.bootstrapped, ledger.local, ledger.wrong, ledger.aborted, ledger.events,
             ledger.open, ledger.peak);
    answer_json(c, "200 OK", body);
}

/* Serve whole requests from what was read; return false when the connection is gone. */
static bool serve(struct connection *c) {
    while (!c->streaming && c->in.length) {
        char *end = memmem(c->in.data, c->in.length, "\r\n\r\n", 4);
        if (!end) return true;
        end += 4;
        const char *length = header(c->in.data, end, "content-length");
        size_t body = length ? strtoull(length, NULL, 10) : 0, head = (size_t)(end - c->in.data);
        if (header(c->in.data, end, "transfer-encoding")) {
            refuse(c, "chunked requests are not read here");
            flush(c);
            return hang_up(c), false;
        }
        if (c->in.length < head + body) {
            reserve(&c->in, head + body - c->in.length);
            return true;
        }
        const char *path = memchr(c->in.data, ' ', head);
        if (!path) return hang_up(c), false;
        path++;
        struct slice asked = {path, head - (size_t)(path - c->in.data)};
        if (is(asked, "/v1/chat/completions ") || is(asked, "/v1/completions ")) infer(c, end, body);
        else tell(c, path, head - (size_t)(path - c->in.data));
        drop(&c->in, head + body);
        shrink(&c->in);
        if (!flush(c)) return false;
    }
    return true;
}

static void receive(struct connection *c) {
    for (;;) {
        reserve(&c->in, 16384);
        size_t room = c->in.room - c->in.length;
        ssize_t n = recv(c->fd, c->in.data + c->in.length, room, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return hang_up(c);
        if (n < 0) return;
        c->in.length += (size_t)n;
        if (!serve(c)) return;
        if ((size_t)n < room) return;
    }
}

static void welcome(struct connection *at) {
    for (;;) {
        int fd = accept(at->fd, NULL, NULL);
        if (fd < 0) return;
        prepare_socket(fd);
        struct connection *c = calloc(1, sizeof *c);
        if (!c) fail("memory");
        c->fd = fd;
        c->role = at->role;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static void listen_at(enum role role) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    struct connection *c = calloc(1, sizeof *c);
    if (!c) fail("memory");
    c->role = role;
    c->listening = true;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(c->fd, (struct sockaddr *)&at, size) || listen(c->fd, 4096) || getsockname(c->fd, (struct sockaddr *)&at, &size))
        fail("listen");
    printf(" %d", ntohs(at.sin_port));
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
}

/* Send the events that are due, one a stream; wake up again when the next one is. */
static void keep_pace(void) {
    uint64_t now = now_ns();
    while (paced.first && paced.first->due <= now) {
        struct connection *c = paced.first;
        take_out(&paced, c);
        c->due += gap_ns ? gap_ns : 1;
        put_last(&paced, c);
        step(c, 1);
    }
    struct itimerspec when = {0};
    if (paced.first) {
        uint64_t due = paced.first->due;
        when.it_value = (struct timespec){(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Give every stream without a pace some events, if its reader keeps up; return whether any could. */
static bool hurry(void) {
    bool any = false;
    for (struct connection *c = eager.first, *next; c; c = next) {
        next = c->after;
        if (c->waits_to_write) continue;
        any = true;
        step(c, BURST);
    }
    return any;
}

int main(int argc, char **argv) {
    if (argc != 3) return fputs("usage: engine PREFILLS DECODES\n", stderr), 2;
    allow_files();
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event tick = {.events = EPOLLIN, .data.ptr = NULL}, ready[512];
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &tick);
    for (int role = PREFILL; role <= DECODE; role++) {
        printf("%s", role == PREFILL ? "prefill" : "decode");
        for (int i = atoi(argv[1 + role]); i > 0; i--) listen_at((enum role)role);
        printf("\n");
    }
    fflush(stdout);
    bool hurried = false;
    for (;;) {
        int n = epoll_wait(poller, ready, 512, hurried ? 0 : -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            uint64_t ticks;
            if (!c) {
                if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) fail("timer");
            } else if (c->listening) welcome(c);
            else if (ready[i].events & (EPOLLHUP | EPOLLERR)) hang_up(c);
            else if (!(ready[i].events & EPOLLOUT) || (flush(c) && ready[i].events & EPOLLIN)) receive(c);
        }
        keep_pace();
        hurried = hurry();
    }
}
