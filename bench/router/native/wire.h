/* What the bench's engine and its client share: clocks, growing buffers, HTTP/1.1 heads, chunked bodies, JSON members. */
#ifndef WEFT_BENCH_WIRE_H
#define WEFT_BENCH_WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MARK 16 /* hex digits that name a request: the client puts them into the prompt, the engine into the answer */
#define TOKEN " word"
#define MODEL "bench/model"

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* Open as many files as the machine allows: thousands of connections need them. */
static inline void allow_files(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

struct buffer {
    char *data;
    size_t length, room;
};

static inline void reserve(struct buffer *b, size_t more) {
    if (b->length + more <= b->room) return;
    b->room = (b->length + more) * 2;
    b->data = realloc(b->data, b->room);
    if (!b->data) fail("memory");
}

static inline void append(struct buffer *b, const char *data, size_t length) {
    reserve(b, length);
    memcpy(b->data + b->length, data, length);
    b->length += length;
}

static inline void append_text(struct buffer *b, const char *text) { append(b, text, strlen(text)); }

static inline void drop(struct buffer *b, size_t length) {
    b->length -= length;
    if (b->length) memmove(b->data, b->data + length, b->length);
}

/* Let a buffer that held one large thing give its memory back, so that thousands of connections stay small. */
static inline void shrink(struct buffer *b) {
    if (b->length || b->room <= 1 << 17) return;
    free(b->data);
    memset(b, 0, sizeof *b);
}

/* Return the value of a header in a head that ends with an empty line; NULL when it is not there. */
static inline const char *header(const char *head, const char *end, const char *name) {
    size_t length = strlen(name);
    const char *line = memchr(head, '\n', (size_t)(end - head));
    while (line && line + 1 + length < end) {
        line++;
        if (strncasecmp(line, name, length) == 0 && line[length] == ':') {
            line += length + 1;
            while (*line == ' ') line++;
            return line;
        }
        line = memchr(line, '\n', (size_t)(end - line));
    }
    return NULL;
}

/* A chunked body being read: bytes of payload left in this chunk, or where in its framing the parser stands. */
struct chunks {
    enum { SIZE, DATA, DATA_END, TRAILER, OVER, BROKEN } at;
    size_t left, line;
};

/* Take bytes of a chunked body and hand its payload on; return how many bytes were used (all, or up to its end). */
static inline size_t dechunk(struct chunks *c, const char *data, size_t length, void (*payload)(void *, const char *, size_t),
                             void *whose) {
    size_t i = 0;
    while (i < length && c->at != OVER && c->at != BROKEN) {
        if (c->at == DATA) {
            size_t part = length - i < c->left ? length - i : c->left;
            payload(whose, data + i, part);
            i += part;
            c->left -= part;
            if (!c->left) c->at = DATA_END;
            continue;
        }
        char byte = data[i++];
        if (c->at == SIZE) {
            if (byte == '\n') {
                c->at = c->left ? DATA : TRAILER;
                c->line = 0;
            } else if (byte >= '0' && byte <= '9') c->left = c->left * 16 + (size_t)(byte - '0');
            else if ((byte | 32) >= 'a' && (byte | 32) <= 'f') c->left = c->left * 16 + (size_t)((byte | 32) - 'a' + 10);
            else if (byte != '\r') c->at = BROKEN;
        } else if (c->at == DATA_END) {
            if (byte == '\n') c->at = SIZE;
            else if (byte != '\r') c->at = BROKEN;
        } else if (byte == '\n') {
            if (!c->line) c->at = OVER;
            c->line = 0;
        } else if (byte != '\r') c->line++;
    }
    return i;
}

/* Return the end of the JSON value at p; strings are skipped by memchr, so that long prompts cost little. */
static inline const char *skip_value(const char *p, const char *end) {
    int depth = 0;
    while (p < end) {
        char byte = *p++;
        if (byte == '"') {
            for (;;) {
                const char *quote = memchr(p, '"', (size_t)(end - p));
                if (!quote) return end;
                size_t slashes = 0;
                while (quote[-1 - (long)slashes] == '\\') slashes++;
                p = quote + 1;
                if (slashes % 2 == 0) break;
            }
            if (!depth) return p;
        } else if (byte == '{' || byte == '[') depth++;
        else if (byte == '}' || byte == ']') {
            if (--depth <= 0) return depth < 0 ? p - 1 : p;
        } else if (byte == ',' && !depth) return p - 1;
    }
    return end;
}

struct slice {
    const char *data;
    size_t length;
};

/* Find members of a JSON object by name; those that are missing stay NULL. Return false when it is no object. */
static inline bool members(const char *p, const char *end, const char *const *names, struct slice *found, int count) {
    memset(found, 0, sizeof *found * (size_t)count);
    while (p < end && *p != '{') p++;
    if (p++ >= end) return false;
    while (p < end) {
        while (p < end && *p != '"' && *p != '}') p++;
        if (p >= end || *p == '}') return p < end;
        const char *name = p + 1;
        p = skip_value(p, end);
        size_t length = (size_t)(p - name) - 1;
        while (p < end && (*p == ':' || *p == ' ')) p++;
        const char *value = p;
        p = skip_value(p, end);
        for (int i = 0; i < count; i++)
            if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
                found[i] = (struct slice){value, (size_t)(p - value)};
    }
    return false;
}

static inline bool is(struct slice s, const char *text) {
    return s.data && s.length >= strlen(text) && memcmp(s.data, text, strlen(text)) == 0;
}

static inline void prepare_socket(int fd) {
    int one = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

#endif
