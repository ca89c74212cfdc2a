/* What the programs that measure share. */
#ifndef MC_BENCH_BENCH_H
#define MC_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Seconds. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The value of NAME=VALUE among the arguments, or the default. */
static inline const char *option(int argc, char **argv, const char *name, const char *fallback)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=')
            return argv[i] + length + 1;
    return fallback;
}

/* Sequences of random lengths that fill a number of tokens. */
typedef struct packing {
    int least, longest;        /* tokens of a sequence */
    int64_t room;              /* tokens of a batch */
    int most, count;           /* sequences that a batch may have; that it has */
    int32_t *length;           /* (most), for free() */
    int64_t sequences, tokens; /* of all batches so far */
    uint32_t state;
} packing;

/* With least 0 all members are 0: sequences have one length. */
static inline packing packing_new(int least, int longest, int64_t room)
{
    packing p = {0};
    if (least < 1 || longest < least || room < longest) return p;
    p = (packing){.least = least, .longest = longest, .room = room, .state = 1};
    p.length = calloc((size_t)(room / least), sizeof *p.length);
    if (p.length) p.most = (int)(room / least);
    return p;
}

/* The next batch's lengths, uniform in least .. longest, up to the first that does not fit. Less
 * than `least` tokens are left, since one of those that fit takes its place. */
static inline void packing_draw(packing *p)
{
    int64_t left = p->room;
    for (p->count = 0; left >= p->least; p->sequences++) {
        p->state = p->state * 1664525u + 1013904223u;
        int32_t length =
            p->least + (int32_t)((p->state >> 8) % (uint32_t)(p->longest - p->least + 1));
        if (length > left) length = (int32_t)left;
        p->length[p->count++] = length;
        p->tokens += length;
        left -= length;
    }
}

#endif
