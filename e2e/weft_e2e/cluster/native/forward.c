/*
 * forward FD ADDRESS PORT: pass every connection accepted on the listening socket FD on to
 * ADDRESS:PORT, with two blocking threads per connection and nothing else in between.
 *
 * A socket belongs to the network namespace in which it was made. So the caller listens on the
 * machine's loopback, hands the socket over, and starts this program inside the cluster's network:
 * it is a bridge between the two that needs no rule or interface on the machine.
 *
 * With "-" as a fourth argument it ends when its standard input does, that is with its owner.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 64 * 1024, STACK = 128 * 1024 };

struct connection {
    int client, server;
    atomic_int users;
};

struct direction {
    struct connection *connection;
    int from, to;
};

static struct sockaddr_storage target;
static socklen_t target_size;

static void release(struct connection *c) {
    if (atomic_fetch_sub(&c->users, 1) == 1) {
        close(c->client);
        close(c->server);
        free(c);
    }
}

static void *copy(void *argument) {
    struct direction d = *(struct direction *)argument;
    free(argument);
    char buffer[BUFFER];
    for (;;) {
        ssize_t got = recv(d.from, buffer, sizeof buffer, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            /* An error, unlike an end of data, ends both directions: nobody waits for a lost peer. */
            shutdown(d.to, got < 0 ? SHUT_RDWR : SHUT_WR);
            break;
        }
        for (ssize_t sent = 0; sent < got;) {
            ssize_t n = send(d.to, buffer + sent, (size_t)(got - sent), MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
                shutdown(d.from, SHUT_RDWR);
                shutdown(d.to, SHUT_RDWR);
                release(d.connection);
                return NULL;
            }
            sent += n;
        }
    }
    release(d.connection);
    return NULL;
}

static int start(struct connection *c, int from, int to, const pthread_attr_t *attributes) {
    struct direction *d = malloc(sizeof *d);
    if (!d) return -1;
    *d = (struct direction){c, from, to};
    pthread_t thread;
    if (pthread_create(&thread, attributes, copy, d) != 0) {
        free(d);
        return -1;
    }
    return 0;
}

static void *serve(void *argument) {
    struct connection *c = argument;
    int one = 1;
    setsockopt(c->client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (connect(c->server, (struct sockaddr *)&target, target_size) != 0) {
        /* A reset, not a polite end: the client sees that the service refused it. */
        struct linger reset = {1, 0};
        setsockopt(c->client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        atomic_store(&c->users, 1);
        release(c);
        return NULL;
    }
    setsockopt(c->server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    atomic_store(&c->users, 3);
    if (start(c, c->client, c->server, &attributes) != 0) {
        release(c);
        shutdown(c->client, SHUT_RDWR);
    }
    if (start(c, c->server, c->client, &attributes) != 0) {
        release(c);
        shutdown(c->client, SHUT_RDWR);
        shutdown(c->server, SHUT_RDWR);
    }
    release(c);
    return NULL;
}

static void *await_owner(void *unused) {
    (void)unused;
    char byte;
    while (read(0, &byte, 1) > 0 || errno == EINTR) errno = 0;
    _exit(0);
}

/* Set the target; false where the text is no address. */
static int aim(const char *address, uint16_t port) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)&target;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&target;
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        target_size = sizeof *v4;
        return 1;
    }
    if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        target_size = sizeof *v6;
        return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: forward FD ADDRESS PORT [-]\n");
        return 2;
    }
    int listener = atoi(argv[1]);
    if (!aim(argv[2], (uint16_t)atoi(argv[3]))) {
        fprintf(stderr, "forward: ADDRESS must be an IPv4 or IPv6 address, got %s\n", argv[2]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    if (argc > 4 && pthread_create(&thread, &attributes, await_owner, NULL) != 0) return 1;
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                usleep(10000); /* the queue of waiting connections holds them meanwhile */
                continue;
            }
            perror("forward: accept");
            return 1;
        }
        struct connection *c = calloc(1, sizeof *c);
        int server = c ? socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
        if (server < 0) {
            free(c);
            close(client);
            continue;
        }
        c->client = client;
        c->server = server;
        if (pthread_create(&thread, &attributes, serve, c) != 0) {
            close(client);
            close(server);
            free(c);
        }
    }
}
