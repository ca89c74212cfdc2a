/* The memory's rate, by a triad like STREAM's: to = b + 3 c, in double, by OpenMP's threads; and by
 * reading alone, which is what weights take.
 *
 * Counted are the bytes that are read and written by name, 24 an element of a triad. Its plain
 * stores, a compiler's, read what they overwrite, too; stores past the caches do not, but on some
 * hosts wait for the memory. */
#ifndef MC_BENCH_TRIAD_H
#define MC_BENCH_TRIAD_H

#include <stdint.h>
#include "bench/bench.h"
#ifdef __SSE2__
#include <immintrin.h>
#endif

static inline void triad_plain(int64_t count, double *to, const double *b, const double *c)
{
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) to[i] = b[i] + 3.0 * c[i];
}

/* Whole lines of 64 bytes; arrays aligned to 16. */
static inline void triad_past(int64_t count, double *to, const double *b, const double *c)
{
#ifdef __SSE2__
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count / 8; i++)
        for (int64_t k = i * 8; k < i * 8 + 8; k += 2)
            _mm_stream_pd(to + k, _mm_add_pd(_mm_load_pd(b + k),
                                             _mm_mul_pd(_mm_set1_pd(3.0), _mm_load_pd(c + k))));
    _mm_sfence();
#else
    triad_plain(count, to, b, c);
#endif
}

/* 8 bytes an element of to, whose bits are added up: sums of numbers would wait for each other. */
static inline void read_alone(int64_t count, double *to, const double *b, const double *c)
{
    uint64_t sum = 0;
    (void)b, (void)c;
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, to + i, sizeof bits);
        sum += bits;
    }
    memcpy(to, &sum, sizeof sum);
}

/* Bytes a second of one pass by `pass`, which moves `bytes` an element. */
static inline double triad_rate(void (*pass)(int64_t, double *, const double *, const double *),
                                int64_t count, double *to, const double *b, const double *c,
                                double bytes)
{
    double start = now();
    pass(count, to, b, c);
    return bytes * (double)count / (now() - start);
}

#endif
