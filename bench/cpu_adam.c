/* How near AdamOffload's update comes to the memory of the host: bytes a second of the CPU's Adam
 * kernel, beside those of a triad like STREAM's (a = b + s c) by the same threads in the same run.
 *
 *     cpu_adam [elements in millions, 32] [rounds, 15]
 *
 * Threads by OMP_NUM_THREADS (OMP_PROC_BIND=close binds them), kernels by MC_CPU_ISA. The update is
 * the engine's (core/nn/offload.c): f32 gradient, m, v and master, bf16 parameters into two buffers
 * in turn, chunk by chunk of 4 million elements; and, as the triad, all at once. (A chunk ends with
 * a barrier of the threads, which is dear where other work takes their cores away.) Counted are the
 * bytes that are read and written by name, 16 + 14 an element of Adam. The triad is that of
 * bench/triad.h. They are run in turn; what is printed is the median of the rounds and of their
 * ratios. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/triad.h"
#include "core/device/cpu/cpu_internal.h"

enum { CHUNK = 4 << 20, MOST_ROUNDS = 101 };

typedef struct arrays {
    int64_t count;
    float *gradient, *m, *v, *master;
    uint16_t *slot[2];
    mc_device *cpu;
} arrays;

static void adam(arrays *a, int64_t chunk)
{
    mc_update update = {.lr = 1e-3, .step = 10, .gradient_scale = 1};
    mc_adam_step step = {.update = &update,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .lr_factor = 1,
                         .weight_decay = 0.1f};
    for (int64_t at = 0; at < a->count; at += chunk) {
        int64_t n = a->count - at < chunk ? a->count - at : chunk;
        mc_matrix gradient = {a->gradient + at, MC_F32, 0};
        a->cpu->kernels->adam(a->cpu, n, step, gradient, a->m + at, a->v + at, a->master + at,
                              a->slot[at / chunk % 2], MC_BF16);
    }
}

static void adam_chunks(arrays *a) { adam(a, CHUNK); }
static void adam_whole(arrays *a) { adam(a, a->count); }

static void plain(arrays *a)
{
    triad_plain(a->count / 2, (double *)a->v, (double *)a->gradient, (double *)a->m);
}

static void past(arrays *a)
{
    triad_past(a->count / 2, (double *)a->v, (double *)a->gradient, (double *)a->m);
}

static double rate_of(void (*run)(arrays *), arrays *a, double bytes)
{
    double start = omp_get_wtime();
    run(a);
    return bytes * (double)a->count / (omp_get_wtime() - start);
}

static void fill(arrays *a)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->count; i++) {
        a->gradient[i] = 1e-3f * (float)(i % 17 - 8);
        a->m[i] = a->v[i] = 0;
        a->master[i] = 0.02f * (float)(i % 29 - 14);
    }
    for (int i = 0; i < 2; i++) memset(a->slot[i], 0, (size_t)a->count * sizeof(uint16_t));
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

enum { CHUNKS, WHOLE, PLAIN, PAST, KINDS };

/* Memory for all, aligned in different ways, as the arrays of a model are. */
static bool make_arrays(arrays *a)
{
    float **array[] = {&a->gradient, &a->m, &a->v, &a->master};
    size_t spare = 1 << 20;
    for (size_t i = 0; i < 4; i++) {
        *array[i] = a->cpu->alloc(a->cpu, (size_t)a->count * sizeof(float) + spare);
        if (!*array[i]) return false;
        *array[i] += i * 17520;
    }
    for (int i = 0; i < 2; i++)
        if (!(a->slot[i] = a->cpu->alloc(a->cpu, (size_t)a->count * sizeof(uint16_t))))
            return false;
    fill(a);
    return true;
}

int main(int argc, char **argv)
{
    void (*const run[KINDS])(arrays *) = {adam_chunks, adam_whole, plain, past};
    const double bytes[KINDS] = {30, 30, 12, 12};
    static double rate[KINDS][MOST_ROUNDS], share[2][MOST_ROUNDS];
    arrays a = {.count = (argc > 1 ? strtoll(argv[1], NULL, 10) : 32) << 20};
    int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 15;
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = 15;
    mc_context *ctx = mc_context_new(NULL);
    if (mc_print_error(ctx, stderr)) return 1;
    a.cpu = ctx->device;
    if (!make_arrays(&a)) return 1;
    for (int r = -2; r < rounds; r++) {
        int to = r < 0 ? 0 : r; /* the first two warm up */
        for (int k = 0; k < KINDS; k++) rate[k][to] = rate_of(run[k], &a, bytes[k]);
        double triad = rate[PLAIN][to] > rate[PAST][to] ? rate[PLAIN][to] : rate[PAST][to];
        for (int k = 0; k < 2; k++) share[k][to] = rate[k][to] / triad;
        fill(&a);
    }
    printf("%s, %d threads: triad %.1f GB/s, with stores past the caches %.1f; ",
           ((mc_cpu_device *)a.cpu)->isa, omp_get_max_threads(), median(rate[PLAIN], rounds) * 1e-9,
           median(rate[PAST], rounds) * 1e-9);
    printf("Adam %.1f, %.0f %%; by chunks %.1f, %.0f %%\n", median(rate[WHOLE], rounds) * 1e-9,
           100 * median(share[WHOLE], rounds), median(rate[CHUNKS], rounds) * 1e-9,
           100 * median(share[CHUNKS], rounds));
    mc_context_free(ctx);
    return 0;
}
