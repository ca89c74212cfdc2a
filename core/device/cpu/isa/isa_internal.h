/* Shared by the kernel files. Each file is compiled once for every instruction set, with MC_ISA
 * defined as scalar, avx2 or avx512; MC_K(name) is the name of a function in that build. Everything
 * in these headers is static, so that no code of one build is linked into another. */
#ifndef MC_DEVICE_CPU_ISA_INTERNAL_H
#define MC_DEVICE_CPU_ISA_INTERNAL_H

#include <omp.h>
#include <string.h>
#include "core/device/cpu/cpu_internal.h"

#define MC_K_PASTE(a, b, c) a##b##_##c
#define MC_K_EXPAND(a, b, c) MC_K_PASTE(a, b, c)
#define MC_K(name) MC_K_EXPAND(mc_cpu_, name, MC_ISA)

#define KERNEL(name) __typeof__(*((mc_kernels *)0)->name) MC_K(name);
#include "core/device/kernels.def"
#undef KERNEL

extern const mc_kernels MC_K(kernels);

/* Philox-4x32-10: `blocks` blocks of four words, with counters (first_block, offset), (first_block
 * + 1, offset), ... */
void MC_K(philox)(uint64_t key, uint64_t first_block, uint64_t offset, int64_t blocks,
                  uint32_t *words);

/* Factors of dropout for elements first .. first + n: 0 or 1 / (1 - p). */
void MC_K(dropout_factors)(mc_dropout_mask mask, int64_t first, int64_t n, float *factors);

/* Below this many element operations a loop runs on one thread: starting a team takes as long as
 * some ten thousand of them. */
enum { MC_SERIAL = 32768 };

static inline int64_t mc_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* The number of threads for this many element operations, as in the caller's OpenMP loops. */
static inline int mc_threads_for(int64_t operations)
{
    return operations > MC_SERIAL && !omp_in_parallel() ? omp_get_max_threads() : 1;
}

/* Processes items 0 .. count on up to `threads` threads. Calls of up to MC_SKINNY_ROWS rows run on
 * the device's threads, like the products between them. Larger calls run on OpenMP's, which the
 * sgemm library uses: mixing both kinds would make them compete for processors, because OpenMP's
 * threads spin. */
static inline void mc_run(mc_device *d, int64_t rows, int threads, int64_t count, mc_item_work work,
                          void *call)
{
    if (rows <= MC_SKINNY_ROWS) {
        mc_threads_run(((mc_cpu_device *)d)->threads, threads, count, work, call);
        return;
    }
    int chunk = (int)mc_min_i64(count / (16 * (int64_t)threads) + 1, 1 << 20);
#pragma omp parallel for schedule(dynamic, chunk) num_threads(threads)
    for (int64_t i = 0; i < count; i++) work(call, i, omp_get_thread_num());
}

/* For mc_run: a flat array counts as rows of 4096 elements. */
static inline int64_t mc_rows_like(int64_t elements) { return elements / 4096; }

/* Loops process chunks of this many elements of a row, small enough for buffers on the stack. */
enum { MC_CHUNK = 1024 };

typedef struct mc_chunks {
    int64_t columns, per_row, count;
} mc_chunks;

typedef struct mc_chunk {
    int64_t row, column;
    int n;
} mc_chunk;

static inline mc_chunks mc_chunks_of(int64_t rows, int64_t columns)
{
    int64_t per_row = (columns + MC_CHUNK - 1) / MC_CHUNK;
    return (mc_chunks){.columns = columns, .per_row = per_row, .count = rows * per_row};
}

static inline mc_chunk mc_chunk_at(mc_chunks c, int64_t i)
{
    int64_t row = i / c.per_row, column = (i - row * c.per_row) * MC_CHUNK;
    int64_t left = c.columns - column;
    return (mc_chunk){.row = row, .column = column, .n = (int)(left < MC_CHUNK ? left : MC_CHUNK)};
}

static inline int64_t mc_round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* Scratch memory of the device: `count` floats, aligned to 64 bytes. */
static inline float *mc_scratch_new(mc_device *d, int64_t count)
{
    return d->alloc(d, (size_t)count * sizeof(float));
}
static inline void mc_scratch_free(mc_device *d, float *scratch, int64_t count)
{
    d->free(d, scratch, (size_t)count * sizeof(float));
}

#endif
