/* A load client that checks every answer: closed loop or a fixed rate, growing sessions, streams, keep-alive connections.
 *
 * client --port PORT [options]     prints "begin" and "end" around what it measures, then one line of JSON.
 *
 * Every connection works off sessions of --rounds rounds, each round with all that was said before. A wrong status,
 * mark, text, number of events or end of a stream is an error. With --rate requests are due at random times and their
 * latency counts from there; without it, each connection sends the next request when it has its answer. With
 * --prefill-port the client does both legs itself: that is a direct call of the engines. With --hold the measurement
 * begins when every connection has its first event.
 */
#define _GNU_SOURCE
#include "options.h"
#include "samples.h"

#include <stdarg.h>

struct slot;

struct link {
    int fd;
    bool busy, waits_to_write, head, chunked;
    struct slot *slot;
    struct buffer in, out, body;
    size_t sent, left;
    struct chunks chunks;
    int status;
    /* Of a stream: its first bytes, its last ones, and how many empty lines it had. */
    bool sse, newline;
    int events;
    char tail[32];
};

struct slot {
    struct link decode, prefill;
    bool active, begun;
    int round;
    uint64_t session, due, first;
    char mark[MARK + 1];
    struct buffer said, request;
    struct slot *next_idle;
};

static int poller;
static struct slot *slots, *idle;
static struct sockaddr_in address;
static uint64_t dice = 88172645463325252u, begins, ends, next_due;
static enum { WARMING, MEASURING, DRAINING } phase = WARMING;
static uint64_t requests, errors, late_errors, events, reconnects, waiting_since[65536];
static unsigned waiting_from, waiting_to;
static int active, begun, streaming, peak;
static struct samples latencies, firsts;
static char first_error[512];
static char *filler;

static uint64_t roll(void) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    return dice ^= dice << 17;
}

static void watch(struct link *l, int how) {
    struct epoll_event e = {.events = EPOLLIN | (l->waits_to_write ? EPOLLOUT : 0u), .data.ptr = l};
    epoll_ctl(poller, how, l->fd, &e);
}

static void reopen(struct link *l, int port) {
    if (l->fd >= 0) close(l->fd);
    address.sin_port = htons((uint16_t)port);
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || connect(l->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    prepare_socket(l->fd);
    l->in.length = l->out.length = l->sent = 0;
    l->waits_to_write = l->busy = false;
    watch(l, EPOLL_CTL_ADD);
}

static void begin_session(struct slot *s) {
    s->session = roll();
    s->round = 0;
    s->said.length = 0;
}

/* Write the next round's body: all rounds before it, and a question that ends with this request's mark. */
static void write_body(struct slot *s) {
    char text[256];
    snprintf(s->mark, sizeof s->mark, "%016lx", s->session ^ (uint64_t)(s->round + 1) * 0x9e3779b97f4a7c15u);
    if (!s->round) append_text(&s->said, "{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"}");
    append_text(&s->said, ",{\"role\":\"user\",\"content\":\"");
    append(&s->said, filler, want.prompt);
    append(&s->said, text, (size_t)snprintf(text, sizeof text, " #%s#\"}", s->mark));
    struct buffer *b = &s->request;
    b->length = 0;
    append_text(b, "{\"model\":\"" MODEL "\",\"messages\":[");
    append(b, s->said.data, s->said.length);
    append(b, text, (size_t)snprintf(text, sizeof text, "],\"max_tokens\":%d,\"temperature\":0%s}", want.tokens,
                                     want.stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : ""));
}

static bool flush(struct link *l);

static void post(struct slot *s, struct link *l, const char *body, size_t length) {
    char head[512];
    int n = snprintf(head, sizeof head,
                     "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                     "content-length: %zu\r\nuser-agent: bench\r\naccept: */*\r\n", length);
    if (want.session) n += snprintf(head + n, sizeof head - (size_t)n, "x-session-id: s-%016lx\r\n", s->session);
    if (want.key) n += snprintf(head + n, sizeof head - (size_t)n, "authorization: Bearer %s\r\n", want.key);
    append(&l->out, head, (size_t)n);
    append_text(&l->out, "\r\n");
    append(&l->out, body, length);
    l->busy = true;
    l->head = l->sse = l->newline = false;
    l->events = 0;
    l->body.length = 0;
    l->chunks = (struct chunks){0};
    flush(l);
}

static void go(struct slot *s, uint64_t due) {
    s->active = true;
    s->first = 0;
    s->due = due;
    active++;
    write_body(s);
    if (want.prefill_port) {
        struct buffer *b = &s->prefill.body;
        b->length = 0;
        append(b, s->request.data, s->request.length - 1);
        append_text(b, ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
                       "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}}");
        struct buffer copy = *b;
        memset(b, 0, sizeof *b);
        post(s, &s->prefill, copy.data, copy.length);
        free(copy.data);
    } else post(s, &s->decode, s->request.data, s->request.length);
}

static void rest(struct slot *s, uint64_t now) {
    s->active = false;
    active--;
    if (phase == DRAINING) return;
    if (want.rate <= 0) return go(s, now);
    if (waiting_from != waiting_to) return go(s, waiting_since[waiting_from++ % 65536]);
    s->next_idle = idle;
    idle = s;
}

static void wrong(struct slot *s, struct link *l, const char *how, ...) {
    char text[200];
    va_list more;
    va_start(more, how);
    vsnprintf(text, sizeof text, how, more);
    va_end(more);
    if (!errors++)
        snprintf(first_error, sizeof first_error, "%s; status %d, %.200s", text, l->status, l->body.length ? l->body.data : "");
    if (s->first) streaming--;
    reopen(&s->decode, want.port);
    if (want.prefill_port) reopen(&s->prefill, want.prefill_port);
    begin_session(s);
    if (errors > 1000) {
        fprintf(stderr, "too many errors, the first: %s\n", first_error);
        exit(1);
    }
    rest(s, now_ns());
}

/* Check an answer's text and go on with the session's next round. */
static void done(struct slot *s, struct link *l, uint64_t now) {
    char *text = l->body.data;
    size_t length = l->body.length;
    if (want.stream) {
        int due = want.tokens + 3;
        if (l->events != due) return wrong(s, l, "%d events in place of %d", l->events, due);
        if (memcmp(l->tail + 32 - 14, "data: [DONE]\n\n", 14)) return wrong(s, l, "the stream did not end with [DONE]");
        if (!memmem(text, length, s->mark, MARK)) return wrong(s, l, "the stream is another request's");
        streaming--;
    } else {
        const char *content = memmem(text, length, "\"content\":\"", 11);
        if (!content || memcmp(content + 11, s->mark, MARK)) return wrong(s, l, "the answer is another request's");
        content += 11 + MARK;
        for (int i = 0; i < want.tokens; i++, content += sizeof TOKEN - 1)
            if (memcmp(content, TOKEN, sizeof TOKEN - 1)) return wrong(s, l, "the answer's text is cut");
        if (*content != '"' || !memmem(text, length, "\"completion_tokens\"", 19)) return wrong(s, l, "no usage");
    }
    if (phase == MEASURING) requests++, note(&latencies, s->due, now);
    if (++s->round >= want.rounds) begin_session(s);
    else {
        append_text(&s->said, ",{\"role\":\"assistant\",\"content\":\"");
        if (!want.stream) append(&s->said, s->mark, MARK);
        for (int i = 0; i < want.tokens; i++) append(&s->said, TOKEN, sizeof TOKEN - 1);
        append_text(&s->said, "\"}");
    }
    rest(s, now);
}

static void second_leg(struct slot *s, struct link *l) {
    const char *end = l->body.data + l->body.length;
    const char *params = memmem(l->body.data, l->body.length, "\"kv_transfer_params\":{", 22);
    if (!params) return wrong(s, l, "the prefill engine gave no transfer parameters");
    const char *over = skip_value(params + 21, end);
    s->request.length--;
    append_text(&s->request, ",");
    append(&s->request, params, (size_t)(over - params));
    append_text(&s->request, "}");
    post(s, &s->decode, s->request.data, s->request.length);
}

static void answered(struct link *l) {
    struct slot *s = l->slot;
    l->busy = false;
    if (l->status != 200) return wrong(s, l, "a refusal");
    if (l == &s->prefill) return second_leg(s, l);
    done(s, l, now_ns());
}

static void payload(void *whose, const char *data, size_t length) {
    struct link *l = whose;
    if (!l->sse) return append(&l->body, data, length);
    if (l->body.length < 600) append(&l->body, data, length < 600 ? length : 600);
    int before = l->events;
    for (const char *p = data, *end = data + length; p < end; p++) {
        const char *line = memchr(p, '\n', (size_t)(end - p));
        if (!line) {
            l->newline = false;
            break;
        }
        bool empty = line == p && (p > data ? p[-1] == '\n' : l->newline);
        l->events += empty;
        l->newline = !empty;
        p = line;
        if (empty) l->newline = false;
    }
    if (length >= 32) memcpy(l->tail, data + length - 32, 32);
    else {
        memmove(l->tail, l->tail + length, 32 - length);
        memcpy(l->tail + 32 - length, data, length);
    }
    if (phase == MEASURING) events += (uint64_t)(l->events - before);
    if (!l->slot->first && l->events) {
        l->slot->first = now_ns();
        if (phase == MEASURING) note(&firsts, l->slot->due, l->slot->first);
        if (++streaming > peak) peak = streaming;
        if (!l->slot->begun) l->slot->begun = true, begun++;
    }
}

/* Read the head when it is whole; return whether there is a body to read. */
static bool read_head(struct link *l) {
    char *end = memmem(l->in.data, l->in.length, "\r\n\r\n", 4);
    if (!end) return false;
    end += 4;
    l->status = atoi(l->in.data + 9);
    const char *coding = header(l->in.data, end, "transfer-encoding"), *size = header(l->in.data, end, "content-length");
    const char *type = header(l->in.data, end, "content-type");
    l->chunked = coding && strncasecmp(coding, "chunked", 7) == 0;
    l->left = size ? strtoull(size, NULL, 10) : 0;
    l->sse = type && strncasecmp(type, "text/event-stream", 17) == 0;
    l->head = true;
    drop(&l->in, (size_t)(end - l->in.data));
    return true;
}

static void receive(struct link *l) {
    for (;;) {
        reserve(&l->in, 16384);
        size_t room = l->in.room - l->in.length;
        ssize_t n = recv(l->fd, l->in.data + l->in.length, room, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            if (l->slot->active && l->busy) return wrong(l->slot, l, "the connection was closed");
            reconnects++;
            return reopen(l, l == &l->slot->decode ? want.port : want.prefill_port);
        }
        l->in.length += (size_t)n;
        if (!l->busy) return wrong(l->slot, l, "an answer that nobody asked for");
        if (!l->head && !read_head(l)) continue;
        size_t used = 0;
        bool over;
        if (l->chunked) {
            used = dechunk(&l->chunks, l->in.data, l->in.length, payload, l);
            if (l->chunks.at == BROKEN) return wrong(l->slot, l, "broken chunks");
            over = l->chunks.at == OVER;
        } else {
            used = l->in.length < l->left ? l->in.length : l->left;
            payload(l, l->in.data, used);
            l->left -= used;
            over = !l->left;
        }
        drop(&l->in, used);
        if (over) return answered(l);
        if ((size_t)n < room) return;
    }
}

static bool flush(struct link *l) {
    while (l->sent < l->out.length) {
        ssize_t n = send(l->fd, l->out.data + l->sent, l->out.length - l->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            if (!l->waits_to_write) l->waits_to_write = true, watch(l, EPOLL_CTL_MOD);
            return false;
        }
        if (n < 0) return true; /* the reading side tells of it */
        l->sent += (size_t)n;
    }
    l->out.length = l->sent = 0;
    if (l->waits_to_write) l->waits_to_write = false, watch(l, EPOLL_CTL_MOD);
    return true;
}

static void report(uint64_t now) {
    printf("{\"requests\":%lu,\"errors\":%lu,\"unfinished\":%lu,\"events\":%lu,\"seconds\":%.6f,\"peak\":%d,\"reconnects\":%lu,", requests,
           errors, late_errors, events, (double)(now - begins) / 1e9, peak, reconnects);
    spread("latency_us", &latencies);
    printf(",");
    spread("first_us", &firsts);
    printf(",\"first_error\":\"");
    for (const char *p = first_error; *p; p++) putchar(*p == '"' || *p == '\\' || (unsigned char)*p < 32 ? '\'' : *p);
    printf("\"}\n");
    fflush(stdout);
}

/* Move on from warming to measuring to draining as time passes; return false when all is over. */
static bool on_time(uint64_t now, uint64_t started) {
    static uint64_t drained;
    if (phase == WARMING) {
        bool held = !want.hold || begun == want.connections;
        if (!held && now - started > 60000000000u) fprintf(stderr, "only %d streams began\n", begun), exit(1);
        if (held && now >= started + (uint64_t)(want.warm * 1e9)) {
            phase = MEASURING;
            begins = now;
            ends = now + (uint64_t)(want.seconds * 1e9);
            puts("begin");
            fflush(stdout);
        }
    } else if (phase == MEASURING && now >= ends) {
        phase = DRAINING;
        drained = now;
        puts("end");
        fflush(stdout);
    } else if (phase == DRAINING && (!active || now > drained + 60000000000u)) {
        late_errors = (uint64_t)active;
        begins += now - drained; /* so that the seconds reported are those measured */
        report(now);
        return false;
    }
    return true;
}

int main(int argc, char **argv) {
    options(argc, argv);
    allow_files();
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    poller = epoll_create1(EPOLL_CLOEXEC);
    slots = calloc((size_t)want.connections, sizeof *slots);
    filler = malloc(want.prompt + 1);
    if (!slots || !filler) fail("memory");
    for (size_t i = 0; i < want.prompt; i++) filler[i] = "lorem ipsum dolor sit amet consectetur "[i % 39];
    dice ^= now_ns() * 0x2545f4914f6cdd1du;
    uint64_t started = now_ns();
    next_due = started;
    for (int i = 0; i < want.connections; i++) {
        struct slot *s = &slots[i];
        s->decode.fd = s->prefill.fd = -1;
        s->decode.slot = s->prefill.slot = s;
        reopen(&s->decode, want.port);
        if (want.prefill_port) reopen(&s->prefill, want.prefill_port);
        begin_session(s);
        if (want.rate <= 0) go(s, now_ns());
        else s->next_idle = idle, idle = s;
    }
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event tick = {.events = EPOLLIN, .data.ptr = NULL}, ready[512];
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &tick);
    for (;;) {
        uint64_t now = now_ns();
        if (!on_time(now, started)) return errors || late_errors ? 1 : 0;
        uint64_t wake = now + 10000000;
        if (want.rate > 0 && phase != DRAINING) {
            while (next_due <= now) {
                uint64_t due = next_due;
                next_due += (uint64_t)(-log(1.0 - (double)(roll() >> 11) / 9007199254740992.0) / want.rate * 1e9);
                struct slot *s = idle;
                if (s) idle = s->next_idle, go(s, due);
                else if (waiting_to - waiting_from < 65536) waiting_since[waiting_to++ % 65536] = due;
                else fputs("the queue of due requests is full: the rate is too high\n", stderr), exit(1);
            }
            if (next_due < wake) wake = next_due;
        }
        if (want.rate > 0) {
            struct itimerspec when = {.it_value = {(time_t)(wake / 1000000000u), (long)(wake % 1000000000u)}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        }
        int n = epoll_wait(poller, ready, 512, 10);
        for (int i = 0; i < n; i++) {
            struct link *l = ready[i].data.ptr;
            uint64_t ticks;
            if (!l) {
                if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) fail("timer");
                continue;
            }
            if (ready[i].events & EPOLLOUT) flush(l);
            if (ready[i].events & ~(uint32_t)EPOLLOUT) receive(l);
        }
    }
}
