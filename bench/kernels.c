/* Times the CPU kernels at BERT-base's sizes (8 sequences of 128 tokens) and at MiniLM's (ragged
 * sequences), each beside the floor measured in the same run: copying memory for what is bound by
 * memory, the library's sgemm for products and attention, the triad of bench/triad.h for products
 * of few rows, of which the bytes of the weights count.
 *
 *     bench_kernels [name]      kernels whose name contains `name`; all without
 *
 * Threads by OMP_NUM_THREADS, kernels by MC_CPU_ISA, sgemm by MC_GEMM. Times are the best of
 * several runs, which is what a kernel can do when nothing else runs. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/triad.h"
#include "core/device/cpu/cpu_internal.h"

enum { ROWS = 1024, DIM = 768, WIDE = 3072, CLASSES = 30522, HEADS = 12, PARAMETERS = 20 << 20 };

typedef enum floor_kind { COPY, SGEMM, TRIAD } floor_kind;
static const char *const floor_names[] = {"copy", "sgemm", "triad"};

/* Memory all cases share, larger than the caches where a case wants that. */
typedef struct bench {
    mc_device *d;
    const mc_kernels *k;
    float *a, *b, *c, *e; /* PARAMETERS of each */
    float *small, *row_a, *row_b;
    int32_t *index;
    const char *only;
    double floor[3]; /* bytes or operations a second */
} bench;

typedef void (*case_fn)(bench *b, const void *argument);

static double best_seconds(bench *b, case_fn run, const void *argument)
{
    enum { RUNS = 11 };
    double best = 1e9, start = omp_get_wtime();
    int repeat = 0;
    do {
        run(b, argument);
        repeat++;
    } while (omp_get_wtime() - start < 0.005);
    for (int i = 0; i < RUNS; i++) {
        start = omp_get_wtime();
        for (int r = 0; r < repeat; r++) run(b, argument);
        double seconds = (omp_get_wtime() - start) / repeat;
        best = seconds < best ? seconds : best;
    }
    return best;
}

/* One line: `work` is bytes moved, or operations beside sgemm. */
static void measure(bench *b, const char *name, floor_kind floor, double work, case_fn run,
                    const void *argument)
{
    if (b->only && !strstr(name, b->only)) return;
    double seconds = best_seconds(b, run, argument), rate = work / seconds;
    printf("%-34s %10.1f us %8.1f %-7s %5.0f %% of %s\n", name, seconds * 1e6, rate * 1e-9,
           floor == SGEMM ? "GFLOP/s" : "GB/s", 100 * rate / b->floor[floor], floor_names[floor]);
    fflush(stdout);
}

static mc_matrix m32(float *data, int64_t stride) { return (mc_matrix){data, MC_F32, stride}; }

/* ---- floors ---------------------------------------------------------------------------------- */

static void run_copy(bench *b, const void *argument)
{
    (void)argument;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < 64; i++)
        memcpy(b->a + i * (PARAMETERS / 64), b->b + i * (PARAMETERS / 64),
               PARAMETERS / 64 * sizeof(float));
}

static void run_triad(bench *b, const void *argument)
{
    (void)argument;
    triad_plain(PARAMETERS / 2, (double *)b->e, (const double *)b->b, (const double *)b->c);
}

static void run_gemm(bench *b, const void *argument)
{
    const mc_dtype *type = argument;
    b->k->gemm(b->d, false, true, ROWS, WIDE, DIM, 1, (mc_matrix){b->a, *type, DIM},
               (mc_matrix){b->b, *type, DIM}, 0, (mc_matrix){b->c, *type, WIDE});
}

/* ---- products of few rows -------------------------------------------------------------------- */

typedef struct few_setup {
    const char *name;
    int64_t size; /* bytes of a weight */
    mc_dtype dtype;
    mc_weight_format format;
} few_setup;

static const few_setup few_setups[] = {{"f32", 4, MC_F32, MC_WEIGHTS_FLOAT},
                                       {"bf16", 2, MC_BF16, MC_WEIGHTS_FLOAT},
                                       {"f16", 2, MC_F16, MC_WEIGHTS_FLOAT},
                                       {"int8", 1, MC_F32, MC_WEIGHTS_INT8},
                                       {"fp8", 1, MC_F32, MC_WEIGHTS_FP8}};

typedef struct few_case {
    const few_setup *setup;
    int64_t rows;
} few_case;

/* Weights of 80 MiB, which no cache keeps. */
static void run_few(bench *b, const void *argument)
{
    const few_case *c = argument;
    int64_t n = PARAMETERS * 4 / DIM / c->setup->size;
    mc_matrix x = {b->a, c->setup->dtype, DIM}, y = {b->c, c->setup->dtype, n};
    mc_matrix8 q = {.format = c->setup->format,
                    .rows = n,
                    .columns = DIM,
                    .data = (uint8_t *)b->b,
                    .scale = b->e};
    if (c->setup->format)
        b->k->linear_quantized(b->d, c->rows, 1, x, q, (mc_matrix){0}, MC_ACTIVATION_NONE, y);
    else
        b->k->gemm(b->d, false, true, c->rows, n, DIM, 1, x,
                   (mc_matrix){b->b, c->setup->dtype, DIM}, 0, y);
}

static void measure_few(bench *b)
{
    for (int64_t rows = 1; rows <= 4; rows *= 2)
        for (size_t i = 0; i < sizeof few_setups / sizeof *few_setups; i++) {
            char text[64];
            few_case c = {&few_setups[i], rows};
            snprintf(text, sizeof text, "rows %d by weights in %s", (int)rows, c.setup->name);
            int64_t n = PARAMETERS * 4 / DIM / c.setup->size;
            measure(b, text, TRIAD, (double)(n * DIM * c.setup->size), run_few, &c);
        }
}

/* ---- elementwise and norms ------------------------------------------------------------------- */

static void run_bias(bench *b, const void *argument)
{
    const mc_activation *activation = argument;
    b->k->bias_activation(b->d, ROWS, WIDE, m32(b->a, WIDE), m32(b->small, WIDE), *activation,
                          m32(b->c, WIDE));
}

static void run_activation_backward(bench *b, const void *argument)
{
    const mc_activation *activation = argument;
    b->k->activation_backward(b->d, ROWS, WIDE, *activation, m32(b->a, WIDE), 1, m32(b->b, WIDE),
                              m32(b->b, WIDE), false);
}

static void run_column_sums(bench *b, const void *argument)
{
    (void)argument;
    b->k->column_sums(b->d, ROWS, WIDE, m32(b->a, WIDE), b->small);
}

static void run_dropout(bench *b, const void *argument)
{
    (void)argument;
    b->k->dropout(b->d, ROWS, DIM, m32(b->a, DIM), false, (mc_dropout_mask){0.1f, 1, 2},
                  m32(b->c, DIM), false);
}

static void run_norm(bench *b, const void *argument)
{
    const float *p = argument;
    b->k->residual_norm(b->d, &(mc_residual_norm_call){.rows = ROWS,
                                                       .columns = DIM,
                                                       .x = m32(b->a, DIM),
                                                       .f = m32(b->b, DIM),
                                                       .dropout = {*p, 1, 2},
                                                       .weight = m32(b->small, 0),
                                                       .bias = m32(b->small, 0),
                                                       .eps = 1e-12f,
                                                       .s = m32(b->c, DIM),
                                                       .y = m32(b->e, DIM),
                                                       .mean = b->row_a,
                                                       .rstd = b->row_b});
}

static void run_norm_backward(bench *b, const void *argument)
{
    const float *p = argument;
    b->k->residual_norm_backward(b->d, &(mc_residual_norm_backward_call){.rows = ROWS,
                                                                         .columns = DIM,
                                                                         .s = m32(b->a, DIM),
                                                                         .weight = m32(b->small, 0),
                                                                         .mean = b->row_a,
                                                                         .rstd = b->row_b,
                                                                         .dy = m32(b->b, DIM),
                                                                         .dropout = {*p, 1, 2},
                                                                         .ds = m32(b->c, DIM),
                                                                         .df = m32(b->e, DIM),
                                                                         .dweight = b->small,
                                                                         .dbias = b->small + DIM});
}

static void run_embedding(bench *b, const void *argument)
{
    (void)argument;
    mc_matrix tables[] = {m32(b->a, DIM), m32(b->b, DIM), m32(b->e, DIM)};
    const int32_t *index[] = {b->index, b->index, b->index};
    b->k->embedding(b->d, ROWS, DIM, 3, tables, index, 1, m32(b->c, DIM));
}

static void run_embedding_backward(bench *b, const void *argument)
{
    (void)argument;
    b->k->embedding_backward(b->d, ROWS, DIM, m32(b->a, DIM), b->index, 1, m32(b->c, DIM));
}

static void run_cross_entropy(bench *b, const void *argument)
{
    const float one = 1;
    float loss[2] = {0};
    b->k->cross_entropy(b->d, 128, CLASSES, m32(b->a, CLASSES), b->index, -100, 0, &one, loss,
                        argument ? m32(b->c, CLASSES) : (mc_matrix){0});
}

/* ---- flat ------------------------------------------------------------------------------------ */

static void run_fill(bench *b, const void *argument)
{
    (void)argument;
    b->k->fill(b->d, (mc_fill){MC_FILL_NORMAL, 0, 0.02f, 1}, 0, PARAMETERS / 8, m32(b->c, 0));
}

static void run_adam(bench *b, const void *argument)
{
    (void)argument;
    mc_update update = {.lr = 1e-9, .step = 1, .gradient_scale = 1};
    mc_adam_step step = {
        .update = &update, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .lr_factor = 1};
    b->k->adam(b->d, PARAMETERS, step, m32(b->a, 0), b->b, b->c, NULL, b->e, MC_F32);
}

static void run_stats(bench *b, const void *argument)
{
    (void)argument;
    mc_gradient_stats stats = {0};
    b->k->gradient_stats(b->d, PARAMETERS, m32(b->a, 0), 2, 0, &stats);
}

static void run_convert(bench *b, const void *argument)
{
    const mc_dtype *type = argument;
    b->k->scale(b->d, PARAMETERS, m32(b->a, 0), 1, (mc_matrix){b->c, *type, 0}, false);
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention_setup {
    mc_lengths lengths;
    int dim;
    float dropout;
    bool backward;
} attention_setup;

static void run_attention(bench *b, const void *argument)
{
    const attention_setup *s = argument;
    int64_t width = HEADS * s->dim;
    mc_attention_shape shape = {.lengths = &s->lengths,
                                .heads = HEADS,
                                .head_dim = s->dim,
                                .scale = 0.1f,
                                .dropout = {s->dropout, 1, 2}};
    mc_matrix q = m32(b->a, 3 * width), k = m32(b->a + width, 3 * width),
              v = m32(b->a + 2 * width, 3 * width);
    mc_matrix dq = m32(b->c, 3 * width), dk = m32(b->c + width, 3 * width),
              dv = m32(b->c + 2 * width, 3 * width);
    if (s->backward)
        b->k->attention_backward(b->d, &shape, q, k, v, m32(b->b, width), b->e, m32(b->b, width),
                                 dq, dk, dv);
    else
        b->k->attention(b->d, &shape, q, k, v, m32(b->b, width), b->e);
}

static void measure_attention(bench *b, const char *name, const int32_t *length, int count, int dim)
{
    int32_t offset[65] = {0}, longest = 0;
    double squares = 0;
    for (int i = 0; i < count; i++) {
        offset[i + 1] = offset[i] + length[i];
        longest = length[i] > longest ? length[i] : longest;
        squares += (double)length[i] * length[i];
    }
    attention_setup s = {.lengths = {count, length, offset, offset[count], offset[count], longest},
                         .dim = dim};
    for (int mode = 0; mode < 4; mode++) {
        char text[64];
        s.backward = mode & 1;
        s.dropout = mode & 2 ? 0.1f : 0;
        snprintf(text, sizeof text, "attention%s %s%s", s.backward ? " backward" : "", name,
                 mode & 2 ? ", dropout" : "");
        measure(b, text, SGEMM, (s.backward ? 10 : 4) * squares * dim * HEADS, run_attention, &s);
    }
}

/* ---------------------------------------------------------------------------------------------- */

static void measure_all(bench *b)
{
    const mc_activation gelu = MC_ACTIVATION_GELU, gelu_new = MC_ACTIVATION_GELU_NEW,
                        relu = MC_ACTIVATION_RELU;
    const float none = 0, tenth = 0.1f;
    const mc_dtype bf16 = MC_BF16, f16 = MC_F16, f32 = MC_F32;
    double wide = (double)ROWS * WIDE * 4, narrow = (double)ROWS * DIM * 4, flat = PARAMETERS * 4.0;
    double flops = 2.0 * ROWS * WIDE * DIM, logits = 128.0 * CLASSES * 4;
    measure(b, "gemm f32", SGEMM, flops, run_gemm, &f32);
    measure(b, "gemm bf16", SGEMM, flops, run_gemm, &bf16);
    measure(b, "gemm f16", SGEMM, flops, run_gemm, &f16);
    measure_few(b);
    int32_t even[8], ragged[16];
    for (int i = 0; i < 8; i++) even[i] = 128;
    for (int i = 0; i < 16; i++) ragged[i] = 60 + (i * 53) % 180;
    ragged[7] = 512;
    for (int64_t i = 0; i < PARAMETERS; i++) b->a[i] = (float)((i * 7919) % 1000) * 1e-3f - 0.5f;
    measure_attention(b, "8x128, d 64", even, 8, 64);
    measure_attention(b, "ragged, d 32", ragged, 16, 32);
    measure(b, "bias + relu", COPY, 3 * wide, run_bias, &relu);
    measure(b, "bias + gelu", COPY, 3 * wide, run_bias, &gelu);
    measure(b, "bias + gelu_new", COPY, 3 * wide, run_bias, &gelu_new);
    measure(b, "gelu backward", COPY, 3 * wide, run_activation_backward, &gelu);
    measure(b, "column_sums", COPY, wide, run_column_sums, NULL);
    measure(b, "dropout", COPY, 2 * narrow, run_dropout, NULL);
    measure(b, "residual_norm", COPY, 4 * narrow, run_norm, &none);
    measure(b, "residual_norm, dropout", COPY, 4 * narrow, run_norm, &tenth);
    measure(b, "residual_norm backward", COPY, 4 * narrow, run_norm_backward, &none);
    measure(b, "residual_norm backward, dropout", COPY, 4 * narrow, run_norm_backward, &tenth);
    measure(b, "embedding", COPY, 4 * narrow, run_embedding, NULL);
    measure(b, "embedding backward", COPY, 3 * narrow, run_embedding_backward, NULL);
    measure(b, "cross_entropy", COPY, logits, run_cross_entropy, NULL);
    measure(b, "cross_entropy with gradient", COPY, 2 * logits, run_cross_entropy, b);
    measure(b, "fill normal", COPY, flat / 8, run_fill, NULL);
    measure(b, "gradient_stats", COPY, flat, run_stats, NULL);
    measure(b, "f32 to bf16", COPY, 1.5 * flat, run_convert, &bf16);
    measure(b, "f32 to f16", COPY, 1.5 * flat, run_convert, &f16);
    measure(b, "adam", COPY, 7 * flat, run_adam, NULL);
}

int main(int argc, char **argv)
{
    mc_context *ctx = mc_init_distributed(NULL);
    bench b = {.d = mc_cpu_open(ctx), .only = argc > 1 ? argv[1] : NULL};
    if (!b.d) return mc_print_error(ctx, stderr);
    b.k = b.d->kernels;
    float **arrays[] = {&b.a, &b.b, &b.c, &b.e};
    size_t small = (WIDE + 2 * ROWS) * sizeof(float) + ROWS * sizeof(int32_t);
    for (int i = 0; i < 4; i++) *arrays[i] = b.d->alloc(b.d, PARAMETERS * sizeof(float));
    b.small = b.d->alloc(b.d, small);
    if (!b.a || !b.b || !b.c || !b.e || !b.small) return fprintf(stderr, "out of memory\n"), 1;
    for (int i = 0; i < 4; i++) b.k->zero(b.d, *arrays[i], PARAMETERS * sizeof(float));
    b.row_a = b.small + WIDE;
    b.row_b = b.row_a + ROWS;
    b.index = (int32_t *)(b.row_b + ROWS);
    for (int i = 0; i < ROWS; i++) b.index[i] = i * 31 % 1000;
    for (int i = 0; i < WIDE + 2 * ROWS; i++) b.small[i] = 1;
    const mc_dtype f32 = MC_F32;
    b.floor[COPY] = 2.0 * PARAMETERS * sizeof(float) / best_seconds(&b, run_copy, NULL);
    b.floor[SGEMM] = 2.0 * ROWS * WIDE * DIM / best_seconds(&b, run_gemm, &f32);
    b.floor[TRIAD] = 12.0 * PARAMETERS / best_seconds(&b, run_triad, NULL);
    mc_cpu_device *cpu = (mc_cpu_device *)b.d;
    printf("%s kernels, sgemm by %s, %d threads; copy %.1f GB/s, sgemm %.1f GFLOP/s, triad %.1f "
           "GB/s\n",
           cpu->isa, cpu->gemm, omp_get_max_threads(), b.floor[COPY] * 1e-9, b.floor[SGEMM] * 1e-9,
           b.floor[TRIAD] * 1e-9);
    measure_all(&b);
    mc_device_close(b.d);
    mc_context_free(ctx);
    return 0;
}
