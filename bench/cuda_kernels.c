/* Times our CUDA kernels at GPT-2 124M's sizes (65,536 tokens), in bf16 where there is a choice,
 * through the kernel table. Each line: the time of one call, the memory traffic that the kernel
 * cannot avoid divided by it, and what share that is of the fastest rate that the memory of an H200
 * gives to plain copies, 4.2 TB/s.
 *
 *     bench_cuda_kernels [name]      kernels whose name contains `name`; all without
 *
 * Calls go over several sets of buffers in turn, so that none finds its data in the L2 cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/cuda/runtime/cuda_internal.h"

enum {
    ROWS = 65536,
    DIM = 768,
    WIDE = 3072,
    SETS = 3,
    LOSS_ROWS = 16384,
    WIDE_ROWS = 16384,
    CLASSES = 50257
};
enum { UP_ROWS = 20480, UP_IN = 1024, UP_OUT = 4096 };
enum { LOSS_STRIDE = 50304, VOCABULARY = 50304, POSITIONS = 1024, PARAMETERS = 124 << 20 };

static const double FLOOR_RATE = 4.2e12;

typedef struct bench {
    mc_device *d;
    const mc_kernels *k;
    char *arena; /* SETS times `bytes` */
    size_t bytes;
    int32_t *tokens, *positions, *labels;
    float *small; /* vectors of up to 64K floats, one after another */
    mc_update *update;
    mc_gradient_stats *stats;
    const char *only;
    cudaEvent_t start, stop;
} bench;

/* One set of buffers: `at` is where its next matrix begins. */
typedef struct set {
    const bench *b;
    char *at;
} set;

typedef mc_status (*case_fn)(const bench *b, set s, double argument);

static void *take(set *s, size_t bytes)
{
    void *taken = s->at;
    s->at += (bytes + 255) / 256 * 256;
    if (s->at > s->b->arena + SETS * s->b->bytes) abort();
    return taken;
}

static mc_matrix take_bf16(set *s, int64_t rows, int64_t stride)
{
    return (mc_matrix){take(s, (size_t)(rows * stride) * 2), MC_BF16, stride};
}

static float *vector(const bench *b, int i) { return b->small + (size_t)i * 65536; }
static mc_matrix weight(const bench *b, int i) { return (mc_matrix){vector(b, i), MC_BF16, 0}; }

static float milliseconds(bench *b, case_fn run, double argument, int calls)
{
    float time = 0;
    cudaEventRecord(b->start, mc_cuda_of(b->d)->stream);
    for (int i = 0; i < calls; i++) {
        set s = {b, b->arena + (size_t)(i % SETS) * b->bytes};
        if (run(b, s, argument) != MC_OK) {
            fprintf(stderr, "failed: %s\n", b->d->failure);
            exit(1);
        }
    }
    cudaEventRecord(b->stop, mc_cuda_of(b->d)->stream);
    cudaEventSynchronize(b->stop);
    cudaEventElapsedTime(&time, b->start, b->stop);
    return time / (float)calls;
}

/* One line; `bytes` that a call moves at least. The best of several runs of several calls. */
static void measure(bench *b, const char *name, double bytes, case_fn run, double argument)
{
    enum { RUNS = 5, CALLS = 12 };
    if (b->only && !strstr(name, b->only)) return;
    float best = milliseconds(b, run, argument, SETS);
    for (int i = 0; i < RUNS; i++) {
        float time = milliseconds(b, run, argument, CALLS);
        best = time < best ? time : best;
    }
    double rate = bytes / (best * 1e-3);
    printf("%-40s %9.4f ms %8.1f GB/s %6.1f %%\n", name, best, rate * 1e-9,
           100 * rate / FLOOR_RATE);
    fflush(stdout);
}

/* ---- elementwise ----------------------------------------------------------------------------- */

static mc_status run_bias_activation(const bench *b, set s, double activation)
{
    mc_matrix x = take_bf16(&s, ROWS, WIDE), y = take_bf16(&s, ROWS, WIDE);
    return b->k->bias_activation(b->d, ROWS, WIDE, x, weight(b, 0), (mc_activation)activation, y);
}

static mc_status run_activation(const bench *b, set s, double activation)
{
    mc_matrix x = take_bf16(&s, ROWS, WIDE), y = take_bf16(&s, ROWS, WIDE);
    return b->k->activation(b->d, ROWS, WIDE, (mc_activation)activation, x, y);
}

static mc_status run_activation_backward(const bench *b, set s, double activation)
{
    mc_matrix x = take_bf16(&s, ROWS, WIDE), dy = take_bf16(&s, ROWS, WIDE);
    return b->k->activation_backward(b->d, ROWS, WIDE, (mc_activation)activation, x, 1, dy, dy,
                                     false);
}

/* The product before GELU of BERT-large, with its pre-activation kept if there is an activation.
 * What an activation costs is the difference to the line without. */
static mc_status run_linear(const bench *b, set s, double activation)
{
    mc_matrix x = take_bf16(&s, UP_ROWS, UP_IN), w = take_bf16(&s, UP_OUT, UP_IN);
    mc_matrix y = take_bf16(&s, UP_ROWS, UP_OUT), pre = take_bf16(&s, UP_ROWS, UP_OUT);
    return b->k->linear(b->d, &(mc_linear_call){.rows = UP_ROWS,
                                                .in = UP_IN,
                                                .out = UP_OUT,
                                                .alpha = 1,
                                                .x = x,
                                                .weight = w,
                                                .bias = weight(b, 0),
                                                .activation = (mc_activation)activation,
                                                .pre = pre,
                                                .y = y});
}

/* The input gradient of qkv, with its bias's gradient or without. */
static mc_status run_backward_input(const bench *b, set s, double with_bias)
{
    mc_matrix dy = take_bf16(&s, ROWS, 3 * DIM), w = take_bf16(&s, 3 * DIM, DIM);
    mc_matrix dx = take_bf16(&s, ROWS, DIM);
    return b->k->linear_backward_input(
        b->d, &(mc_linear_backward_call){.rows = ROWS,
                                         .in = DIM,
                                         .out = 3 * DIM,
                                         .alpha = 1,
                                         .dy = dy,
                                         .weight = w,
                                         .dx = dx,
                                         .dbias = with_bias != 0 ? vector(b, 9) : NULL});
}

static mc_status run_dropout(const bench *b, set s, double p)
{
    mc_matrix x = take_bf16(&s, ROWS, DIM), y = take_bf16(&s, ROWS, DIM);
    return b->k->dropout(b->d, ROWS, DIM, x, false, (mc_dropout_mask){.p = (float)p, .seed = 1}, y,
                         false);
}

static mc_status run_add(const bench *b, set s, double argument)
{
    (void)argument;
    mc_matrix x = take_bf16(&s, ROWS, DIM), y = take_bf16(&s, ROWS, DIM);
    return b->k->add(b->d, (int64_t)ROWS * DIM, x, y, (int64_t)ROWS * DIM, x);
}

static mc_status run_multiply(const bench *b, set s, double argument)
{
    (void)argument;
    mc_matrix x = take_bf16(&s, ROWS, DIM), y = take_bf16(&s, ROWS, DIM);
    return b->k->multiply(b->d, (int64_t)ROWS * DIM, x, weight(b, 0), DIM, y, false);
}

static mc_status run_scale(const bench *b, set s, double argument)
{
    (void)argument;
    mc_matrix y = take_bf16(&s, PARAMETERS, 1), x = {take(&s, (size_t)PARAMETERS * 4), MC_F32, 1};
    return b->k->scale(b->d, PARAMETERS, x, 1, y, false);
}

static mc_status run_zero(const bench *b, set s, double argument)
{
    (void)argument;
    return b->k->zero(b->d, take(&s, (size_t)PARAMETERS * 4), (size_t)PARAMETERS * 4);
}

/* ---- sums and norms -------------------------------------------------------------------------- */

static mc_status run_column_sums(const bench *b, set s, double columns)
{
    return b->k->column_sums(b->d, ROWS, (int64_t)columns, take_bf16(&s, ROWS, (int64_t)columns),
                             vector(b, 9));
}

static mc_status run_sum_leading(const bench *b, set s, double count)
{
    mc_matrix y = {vector(b, 9), MC_F32, 0};
    return b->k->sum_leading(b->d, (int64_t)ROWS * DIM, take_bf16(&s, ROWS, DIM), (int64_t)count, y,
                             true);
}

/* The norm of a sum that is stored, or of x alone. */
static mc_status norm(const bench *b, set s, int64_t rows, int64_t columns, bool alone, double p)
{
    mc_residual_norm_call call = {.rows = rows,
                                  .columns = columns,
                                  .x = take_bf16(&s, rows, columns),
                                  .y = take_bf16(&s, rows, columns),
                                  .dropout = {.p = (float)p, .seed = 1},
                                  .weight = weight(b, 0),
                                  .bias = weight(b, 1),
                                  .eps = 1e-5f,
                                  .mean = vector(b, 2),
                                  .rstd = vector(b, 3)};
    if (!alone) {
        call.f = take_bf16(&s, rows, columns);
        call.s = take_bf16(&s, rows, columns);
    }
    return b->k->residual_norm(b->d, &call);
}

static mc_status run_norm(const bench *b, set s, double p)
{
    return norm(b, s, ROWS, DIM, false, p);
}

static mc_status run_norm_alone(const bench *b, set s, double argument)
{
    (void)argument;
    return norm(b, s, ROWS, DIM, true, 0);
}

/* The backward pass of a norm. p < 0: ds is added to, no df. */
static mc_status norm_backward(const bench *b, set s, int64_t rows, int64_t columns, double p,
                               float *dbranch)
{
    mc_residual_norm_backward_call call = {.rows = rows,
                                           .columns = columns,
                                           .s = take_bf16(&s, rows, columns),
                                           .weight = weight(b, 0),
                                           .mean = vector(b, 2),
                                           .rstd = vector(b, 3),
                                           .dropout = {.p = p > 0 ? (float)p : 0, .seed = 1},
                                           .accumulate = p < 0,
                                           .dweight = vector(b, 4),
                                           .dbias = vector(b, 5),
                                           .dbranch = dbranch};
    call.dy = take_bf16(&s, rows, columns);
    call.ds = take_bf16(&s, rows, columns);
    if (p >= 0) call.df = take_bf16(&s, rows, columns);
    return b->k->residual_norm_backward(b->d, &call);
}

static mc_status run_norm_backward(const bench *b, set s, double p)
{
    return norm_backward(b, s, ROWS, DIM, p, NULL);
}

static mc_status run_norm_backward_branch(const bench *b, set s, double p)
{
    return norm_backward(b, s, ROWS, DIM, p, vector(b, 6));
}

/* BERT-large's rows. */
static mc_status run_large_norm_backward(const bench *b, set s, double branch)
{
    return norm_backward(b, s, UP_ROWS, UP_IN, 0.1, branch != 0 ? vector(b, 6) : NULL);
}

/* GPT-2 XL's rows, which several warps share. */
static mc_status run_wide_norm(const bench *b, set s, double columns)
{
    return norm(b, s, WIDE_ROWS, (int64_t)columns, false, 0);
}

static mc_status run_wide_norm_backward(const bench *b, set s, double columns)
{
    return norm_backward(b, s, WIDE_ROWS, (int64_t)columns, -1, NULL);
}

static mc_status run_wide_norm_backward_branch(const bench *b, set s, double columns)
{
    return norm_backward(b, s, WIDE_ROWS, (int64_t)columns, -1, vector(b, 6));
}

/* ---- rows by index --------------------------------------------------------------------------- */

static mc_status run_embedding(const bench *b, set s, double argument)
{
    (void)argument;
    mc_matrix table[] = {take_bf16(&s, VOCABULARY, DIM), take_bf16(&s, POSITIONS, DIM)};
    const int32_t *index[] = {b->tokens, b->positions};
    return b->k->embedding(b->d, ROWS, DIM, 2, table, index, 1, take_bf16(&s, ROWS, DIM));
}

static mc_status run_embedding_backward(const bench *b, set s, double entries)
{
    mc_matrix dy = take_bf16(&s, ROWS, DIM);
    mc_matrix table = {take(&s, (size_t)VOCABULARY * DIM * 4), MC_F32, DIM};
    return b->k->embedding_backward(b->d, ROWS, DIM, dy,
                                    entries == POSITIONS ? b->positions : b->tokens, 1, table);
}

static mc_status run_gather(const bench *b, set s, double argument)
{
    (void)argument;
    mc_matrix x = take_bf16(&s, ROWS, DIM), y = take_bf16(&s, ROWS, DIM);
    return b->k->gather_rows(b->d, ROWS, DIM, x, b->tokens, y);
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* argument: 0 the loss alone, 1 the gradient in place, 2 with smoothing. */
static mc_status run_cross_entropy(const bench *b, set s, double argument)
{
    mc_matrix x = take_bf16(&s, LOSS_ROWS, LOSS_STRIDE), none = {0};
    return b->k->cross_entropy(b->d, LOSS_ROWS, CLASSES, x, b->labels, -100,
                               argument == 2 ? 0.1f : 0, vector(b, 6), vector(b, 7),
                               argument == 0 ? none : x);
}

static mc_status run_argmax(const bench *b, set s, double argument)
{
    (void)argument;
    return b->k->argmax(b->d, LOSS_ROWS, CLASSES, take_bf16(&s, LOSS_ROWS, LOSS_STRIDE),
                        (int32_t *)(void *)vector(b, 8));
}

/* ---- flat ------------------------------------------------------------------------------------ */

static mc_status run_fill(const bench *b, set s, double argument)
{
    (void)argument;
    mc_matrix out = {take(&s, (size_t)PARAMETERS * 4), MC_F32, 0};
    return b->k->fill(b->d, (mc_fill){MC_FILL_NORMAL, 0, 0.02f, 1}, 0, PARAMETERS, out);
}

/* argument: bytes of an element of the parameter. */
static mc_status run_adam(const bench *b, set s, double size)
{
    size_t bytes = (size_t)PARAMETERS * 4;
    float *g = take(&s, bytes), *m = take(&s, bytes), *v = take(&s, bytes), *p = take(&s, bytes);
    void *stored = take(&s, bytes / 2);
    mc_adam_step step = {b->update, 0.9f, 0.95f, 1e-8f, 1, 0.1f, false, 0};
    return b->k->adam(b->d, PARAMETERS, step, (mc_matrix){g, MC_F32, 0}, m, v, size == 2 ? p : NULL,
                      size == 2 ? stored : p, size == 2 ? MC_BF16 : MC_F32);
}

static mc_status run_sgd(const bench *b, set s, double momentum)
{
    size_t bytes = (size_t)PARAMETERS * 4;
    float *g = take(&s, bytes), *buffer = take(&s, bytes), *p = take(&s, bytes);
    mc_sgd_step step = {b->update, (float)momentum, false, 1, 0, false, 0};
    return b->k->sgd(b->d, PARAMETERS, step, (mc_matrix){g, MC_F32, 0},
                     momentum > 0 ? buffer : NULL, NULL, p, MC_F32);
}

static mc_status run_stats(const bench *b, set s, double power)
{
    mc_matrix gradient = {take(&s, (size_t)PARAMETERS * 4), MC_F32, 0};
    return b->k->gradient_stats(b->d, PARAMETERS, gradient, power, 0, b->stats);
}

/* ---- the program ----------------------------------------------------------------------------- */

static void measure_rows(bench *b)
{
    const double row = (double)ROWS * DIM, wide = (double)ROWS * WIDE;
    const double up = (double)UP_ROWS * UP_OUT,
                 operands = (double)UP_ROWS * UP_IN + (double)UP_OUT * UP_IN;
    measure(b, "linear bias", 2 * (operands + up), run_linear, MC_ACTIVATION_NONE);
    measure(b, "linear bias gelu", 2 * (operands + 3 * up), run_linear, MC_ACTIVATION_GELU);
    measure(b, "linear bias gelu_new", 2 * (operands + 2 * up), run_linear, MC_ACTIVATION_GELU_NEW);
    measure(b, "bias_activation gelu_new", 6 * wide, run_bias_activation, MC_ACTIVATION_GELU_NEW);
    measure(b, "bias_activation gelu", 6 * wide, run_bias_activation, MC_ACTIVATION_GELU);
    measure(b, "activation gelu_new", 4 * wide, run_activation, MC_ACTIVATION_GELU_NEW);
    measure(b, "activation gelu", 4 * wide, run_activation, MC_ACTIVATION_GELU);
    measure(b, "activation tanh", 4 * wide, run_activation, MC_ACTIVATION_TANH);
    measure(b, "activation_backward gelu_new", 6 * wide, run_activation_backward,
            MC_ACTIVATION_GELU_NEW);
    measure(b, "activation_backward gelu", 6 * wide, run_activation_backward, MC_ACTIVATION_GELU);
    measure(b, "linear_backward_input", 2 * 4 * row, run_backward_input, 0);
    measure(b, "linear_backward_input dbias", 2 * 4 * row, run_backward_input, 1);
    measure(b, "column_sums 768", 2 * row, run_column_sums, DIM);
    measure(b, "column_sums 2304", 2 * 3 * row, run_column_sums, 3 * DIM);
    measure(b, "column_sums 3072", 2 * wide, run_column_sums, WIDE);
    measure(b, "sum_leading to 768", 2 * row, run_sum_leading, DIM);
    measure(b, "sum_leading to 1", 2 * row, run_sum_leading, 1);
    measure(b, "residual_norm", 8 * row, run_norm, 0);
    measure(b, "residual_norm dropout", 8 * row, run_norm, 0.1);
    measure(b, "residual_norm without a branch", 4 * row, run_norm_alone, 0);
    measure(b, "residual_norm_backward", 8 * row, run_norm_backward, 0);
    measure(b, "residual_norm_backward dropout", 8 * row, run_norm_backward, 0.1);
    measure(b, "residual_norm_backward accumulate", 8 * row, run_norm_backward, -1);
    measure(b, "residual_norm_backward dropout branch", 8 * row, run_norm_backward_branch, 0.1);
    measure(b, "residual_norm_backward accumulate branch", 8 * row, run_norm_backward_branch, -1);
    measure(b, "residual_norm_backward dropout 1024", 8.0 * UP_ROWS * UP_IN,
            run_large_norm_backward, 0);
    measure(b, "residual_norm_backward dropout branch 1024", 8.0 * UP_ROWS * UP_IN,
            run_large_norm_backward, 1);
    measure(b, "residual_norm 1600", 8.0 * WIDE_ROWS * 1600, run_wide_norm, 1600);
    measure(b, "residual_norm_backward accumulate 1600", 8.0 * WIDE_ROWS * 1600,
            run_wide_norm_backward, 1600);
    measure(b, "residual_norm_backward accumulate branch 1600", 8.0 * WIDE_ROWS * 1600,
            run_wide_norm_backward_branch, 1600);
    measure(b, "dropout", 4 * row, run_dropout, 0.1);
    measure(b, "embedding 2 tables", 4 * row, run_embedding, 0);
    measure(b, "embedding_backward tokens", 10 * row, run_embedding_backward, VOCABULARY);
    measure(b, "embedding_backward positions", 2 * row, run_embedding_backward, POSITIONS);
    measure(b, "gather_rows", 4 * row, run_gather, 0);
    measure(b, "add", 6 * row, run_add, 0);
    measure(b, "multiply broadcast", 4 * row, run_multiply, 0);
}

static void measure_rest(bench *b)
{
    const double logits = (double)LOSS_ROWS * CLASSES, flat = PARAMETERS;
    measure(b, "cross_entropy", 4 * logits, run_cross_entropy, 1);
    measure(b, "cross_entropy smoothing", 4 * logits, run_cross_entropy, 2);
    measure(b, "cross_entropy loss alone", 2 * logits, run_cross_entropy, 0);
    measure(b, "argmax", 2 * logits, run_argmax, 0);
    measure(b, "scale f32 to bf16", 6 * flat, run_scale, 0);
    measure(b, "fill normal", 4 * flat, run_fill, 0);
    measure(b, "zero", 4 * flat, run_zero, 0);
    measure(b, "adam f32", 28 * flat, run_adam, 4);
    measure(b, "adam bf16 with master", 30 * flat, run_adam, 2);
    measure(b, "sgd", 12 * flat, run_sgd, 0);
    measure(b, "sgd momentum", 20 * flat, run_sgd, 0.9);
    measure(b, "gradient_stats", 4 * flat, run_stats, 2);
    measure(b, "gradient_stats p = 1", 4 * flat, run_stats, 1);
}

static void *upload(bench *b, const void *data, size_t bytes)
{
    void *to = b->d->alloc(b->d, bytes);
    if (!to) abort();
    b->d->copy_in(b->d, to, data, bytes);
    return to;
}

/* Tokens as text has them, some far more frequent than others; positions; labels. */
static void make_indices(bench *b)
{
    static int32_t index[ROWS];
    uint32_t state = 1;
    for (int i = 0; i < ROWS; i++) {
        state = state * 1664525u + 1013904223u;
        double u = state / 4294967296.0;
        index[i] = (int32_t)(u * u * u * CLASSES);
    }
    b->tokens = upload(b, index, sizeof index);
    b->labels = upload(b, index, sizeof index);
    for (int i = 0; i < ROWS; i++) index[i] = i % POSITIONS;
    b->positions = upload(b, index, sizeof index);
}

static bool bench_init(bench *b)
{
    mc_matrix all = {.dtype = MC_BF16};
    b->bytes = (size_t)PARAMETERS * 18 + (16 << 20);
    b->arena = b->d->alloc(b->d, SETS * b->bytes);
    b->small = b->d->alloc(b->d, 16 * 65536 * sizeof(float));
    if (!b->arena || !b->small) return false;
    all.data = b->arena;
    mc_fill normal = {MC_FILL_NORMAL, 0, 1, 1};
    if (b->k->fill(b->d, normal, 0, (int64_t)(SETS * b->bytes / 2), all) != MC_OK) return false;
    /* the first two vectors are weights in bf16 */
    mc_matrix weights = {vector(b, 0), MC_BF16, 0}, rest = {vector(b, 2), MC_F32, 0};
    if (b->k->fill(b->d, normal, 0, 4 * 65536, weights) != MC_OK) return false;
    if (b->k->fill(b->d, normal, 0, 14 * 65536, rest) != MC_OK) return false;
    make_indices(b);
    mc_update update = {.lr = 1e-4, .step = 5, .gradient_scale = 1};
    mc_gradient_stats stats = {0};
    b->update = upload(b, &update, sizeof update);
    b->stats = upload(b, &stats, sizeof stats);
    return cudaEventCreate(&b->start) == cudaSuccess && cudaEventCreate(&b->stop) == cudaSuccess;
}

int main(int argc, char **argv)
{
    mc_context *context = mc_init_distributed(NULL);
    bench b = {.d = mc_device_open(context, "cuda"), .only = argc > 1 ? argv[1] : NULL};
    if (!b.d) {
        fprintf(stderr, "no CUDA device: %s\n", mc_error_message(context));
        return 1;
    }
    b.k = b.d->kernels;
    if (!bench_init(&b)) {
        fprintf(stderr, "no memory for the buffers\n");
        return 1;
    }
    measure_rows(&b);
    measure_rest(&b);
    cudaEventDestroy(b.start);
    cudaEventDestroy(b.stop);
    mc_device_close(b.d);
    mc_context_free(context);
    return 0;
}
