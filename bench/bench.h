/* What the programs that measure share. */
#ifndef MC_BENCH_BENCH_H
#define MC_BENCH_BENCH_H

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

#endif
