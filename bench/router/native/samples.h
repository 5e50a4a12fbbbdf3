/* Durations in microseconds, and their percentiles. */
#ifndef WEFT_BENCH_SAMPLES_H
#define WEFT_BENCH_SAMPLES_H

#include "wire.h"

#include <math.h>

#define MOST_SAMPLES (1u << 22)

struct samples {
    uint32_t *values;
    size_t count;
};

static inline void note(struct samples *s, uint64_t since_ns, uint64_t now_ns) {
    if (!s->values && !(s->values = malloc(MOST_SAMPLES * sizeof *s->values))) fail("memory");
    if (s->count < MOST_SAMPLES) s->values[s->count++] = (uint32_t)((now_ns - since_ns) / 1000);
}

static inline int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Print the P50, P90, P99 and P99.9 (nearest rank) as a member of a JSON object; 0 without a sample. */
static inline void spread(const char *name, struct samples *s) {
    static const double shares[] = {0.5, 0.9, 0.99, 0.999};
    if (s->count) qsort(s->values, s->count, sizeof *s->values, by_size);
    printf("\"%s\":[", name);
    for (int i = 0; i < 4; i++)
        printf("%s%u", i ? "," : "", s->count ? s->values[(size_t)ceil(shares[i] * (double)s->count) - 1] : 0);
    printf("]");
}

#endif
