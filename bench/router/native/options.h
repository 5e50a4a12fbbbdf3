/* What the client is to send: its command line. Times are seconds, a prompt's size characters of each user message. */
#ifndef WEFT_BENCH_OPTIONS_H
#define WEFT_BENCH_OPTIONS_H

#include "wire.h"

static struct {
    int port, prefill_port, connections, rounds, tokens;
    size_t prompt;
    double warm, seconds, rate;
    bool stream, hold, session;
    const char *key;
} want = {.connections = 32, .rounds = 4, .tokens = 16, .prompt = 400, .warm = 0.5, .seconds = 3};

static void options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(name, "--stream")) want.stream = true;
        else if (!strcmp(name, "--hold")) want.hold = true;
        else if (!strcmp(name, "--session")) want.session = true;
        else {
            i++;
            if (!strcmp(name, "--port")) want.port = atoi(value);
            else if (!strcmp(name, "--prefill-port")) want.prefill_port = atoi(value);
            else if (!strcmp(name, "--connections")) want.connections = atoi(value);
            else if (!strcmp(name, "--rounds")) want.rounds = atoi(value);
            else if (!strcmp(name, "--tokens")) want.tokens = atoi(value);
            else if (!strcmp(name, "--prompt")) want.prompt = strtoull(value, NULL, 10);
            else if (!strcmp(name, "--warm")) want.warm = atof(value);
            else if (!strcmp(name, "--seconds")) want.seconds = atof(value);
            else if (!strcmp(name, "--rate")) want.rate = atof(value);
            else if (!strcmp(name, "--key")) want.key = value;
            else fprintf(stderr, "client: unknown option %s\n", name), exit(2);
        }
    }
}

#endif
