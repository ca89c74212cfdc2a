/* A decoder's step of one token a sequence, of random weights, as a recording of single kernels and
 * as one kernel (core/device/hopper/decode/persistent.cu): whether both give the same, and the time
 * of each.
 *
 *     MC_ROUTE=decode:persistent bench_persistent_decode SHAPE [weights=int8|fp8] [length=320]
 *                                                        [rows=1] [layers=N]
 *
 * SHAPE is gpt2, gpt2-xl, gpt-j or tiny; `length` the tokens that each sequence has, `rows` the
 * sequences. Without MC_ROUTE steps of several rows may be kernels by themselves in both lines. The
 * rate is that of weights and cache, read once. Embedding and choice of tokens are left out. */
#include "bench/bench.h"
#include "core/device/hopper/decode/persistent_internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPLAYS = 20, ROUNDS = 5, MOST_LENGTH = 1024 };

typedef struct shape {
    const char *name;
    int layers, dim, dim_ff, heads, vocab;
    bool parallel; /* GPT-J's layer: attention beside the feed-forward part, rotary positions */
} shape;

static const shape SHAPES[] = {{"gpt2", 12, 768, 3072, 12, 50257, false},
                               {"gpt2-xl", 48, 1600, 6400, 25, 50257, false},
                               {"gpt-j", 28, 4096, 16384, 16, 50400, true},
                               {"tiny", 2, 64, 256, 4, 512, true}};

typedef struct linear {
    mc_matrix weight, bias;
    mc_matrix8 quantized; /* data NULL: the weight is not in 8 bits */
} linear;

typedef struct layer {
    mc_matrix norms[2][2], k, v;
    linear qkv, out, up, down;
} layer;

typedef struct work {
    mc_device *d;
    shape s;
    int64_t rows;
    mc_weight_format format;
    layer *layers;
    mc_matrix last[2];
    linear head;
    int32_t *lengths, *positions;
    mc_matrix input, logits;
    double bytes;
    uint16_t *random; /* of the largest matrix */
    mc_status status;
} work;

static void *take(work *w, size_t bytes, const void *from)
{
    void *data = w->d->alloc(w->d, bytes);
    if (!data) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    if (from) w->d->copy_in(w->d, data, from, bytes);
    return data;
}

/* Numbers between -1 and 1 times 2^shift, in bf16. */
static mc_matrix filled(work *w, int64_t rows, int64_t columns, int shift)
{
    for (int64_t i = 0; i < rows * columns; i++) {
        float x = ldexpf((float)(rand() % 255 - 127) / 128, shift);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        w->random[i] = (uint16_t)(bits >> 16);
    }
    return (mc_matrix){take(w, (size_t)(rows * columns) * 2, w->random), MC_BF16, columns};
}

/* Weights about 1 / sqrt(in). */
static linear linear_new(work *w, int64_t in, int64_t out, bool quantized)
{
    linear l = {.weight = filled(w, out, in, -(int)lround(log2((double)in) / 2)),
                .bias = filled(w, 1, out, -3)};
    bool small = quantized && w->format;
    w->bytes += (double)(in * out) * (small ? 1 : 2);
    if (!small) return l;
    l.quantized = (mc_matrix8){w->format, out, in, take(w, (size_t)(in * out), NULL),
                               take(w, (size_t)out * sizeof(float), NULL)};
    w->status = w->status ? w->status : w->d->kernels->quantize(w->d, l.weight, l.quantized);
    w->d->free(w->d, l.weight.data, (size_t)(in * out) * 2);
    return l;
}

static void norm_new(work *w, mc_matrix norm[2])
{
    norm[0] = filled(w, 1, w->s.dim, 0);
    norm[1] = filled(w, 1, w->s.dim, -3);
}

static layer layer_new(work *w, int length)
{
    const shape *s = &w->s;
    layer l = {.k = filled(w, w->rows * MOST_LENGTH, s->dim, 0),
               .v = filled(w, w->rows * MOST_LENGTH, s->dim, 0),
               .qkv = linear_new(w, s->dim, 3 * s->dim, true),
               .out = linear_new(w, s->dim, s->dim, true),
               .up = linear_new(w, s->dim, s->dim_ff, true),
               .down = linear_new(w, s->dim_ff, s->dim, true)};
    norm_new(w, l.norms[0]);
    norm_new(w, l.norms[1]);
    w->bytes += 4.0 * (double)w->rows * length * s->dim;
    return l;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static void work_new(work *w, int length, int layers)
{
    int32_t lengths[MC_PERSISTENT_ROWS], positions[MC_PERSISTENT_ROWS];
    if (layers) w->s.layers = layers;
    int64_t dim = w->s.dim, widest = most(w->s.vocab, w->s.dim_ff),
            largest = most(dim * widest, w->rows * MOST_LENGTH * dim);
    w->random = malloc((size_t)largest * 2);
    w->layers = calloc((size_t)w->s.layers, sizeof *w->layers);
    if (!w->random || !w->layers) exit(1);
    for (int i = 0; i < w->s.layers; i++) w->layers[i] = layer_new(w, length);
    for (int i = 0; i < MC_PERSISTENT_ROWS; i++) {
        lengths[i] = (int32_t)most(1, length - 3 * i);
        positions[i] = lengths[i] - 1;
    }
    w->lengths = take(w, sizeof lengths, lengths);
    w->positions = take(w, sizeof positions, positions);
    norm_new(w, w->last);
    w->head = linear_new(w, dim, w->s.vocab, false);
    w->input = filled(w, w->rows, dim, 0);
    w->logits = filled(w, w->rows, w->s.vocab, 0);
}

static void keep(work *w, mc_status status) { w->status = w->status ? w->status : status; }

/* Memory for a result; a step frees it at its end. */
static mc_matrix result(work *w, int64_t columns)
{
    return (mc_matrix){take(w, (size_t)(w->rows * columns) * 2, NULL), MC_BF16, columns};
}

static void drop(work *w, mc_matrix m)
{
    w->d->free(w->d, m.data, (size_t)(w->rows * m.stride) * 2);
}

static void run_linear(work *w, const linear *l, mc_matrix x, mc_matrix y, mc_activation activation)
{
    mc_linear_call call = {.rows = w->rows,
                           .in = x.stride,
                           .out = y.stride,
                           .alpha = 1,
                           .x = x,
                           .weight = l->weight,
                           .bias = l->bias,
                           .activation = activation,
                           .y = y};
    const mc_kernels *k = w->d->kernels;
    keep(w, l->quantized.data
                ? k->linear_quantized(w->d, w->rows, 1, x, l->quantized, l->bias, activation, y)
                : k->linear(w->d, &call));
}

/* *x = x + f, y = its norm; f.data NULL: nothing is added. */
static mc_matrix run_norm(work *w, const mc_matrix norm[2], mc_matrix *x, mc_matrix f)
{
    mc_matrix s = f.data ? result(w, w->s.dim) : (mc_matrix){0}, y = result(w, w->s.dim);
    keep(w, w->d->kernels->residual_norm(w->d, &(mc_residual_norm_call){.rows = w->rows,
                                                                        .columns = w->s.dim,
                                                                        .x = *x,
                                                                        .f = f,
                                                                        .weight = norm[0],
                                                                        .bias = norm[1],
                                                                        .eps = 1e-5f,
                                                                        .s = s,
                                                                        .y = y}));
    if (!f.data) return y;
    if (x->data != w->input.data) drop(w, *x);
    drop(w, f);
    *x = s;
    return y;
}

static mc_matrix columns_of(mc_matrix m, int64_t first)
{
    m.data = (uint16_t *)m.data + first;
    return m;
}

static mc_matrix run_attention(work *w, const layer *l, mc_matrix qkv)
{
    const shape *s = &w->s;
    int head_dim = s->dim / s->heads;
    mc_matrix out = result(w, s->dim);
    if (s->parallel)
        keep(w, w->d->kernels->rotary(w->d, w->rows,
                                      (mc_rotation){.heads = 2 * s->heads,
                                                    .head_dim = head_dim,
                                                    .rotary_dim = head_dim / 4,
                                                    .base = 10000},
                                      w->positions, qkv));
    mc_cached_attention call = {.sequences = w->rows,
                                .heads = s->heads,
                                .head_dim = head_dim,
                                .scale = 1 / sqrtf((float)head_dim),
                                .lengths = w->lengths,
                                .capacity = MOST_LENGTH,
                                .longest = MOST_LENGTH,
                                .new_k = columns_of(qkv, s->dim),
                                .new_v = columns_of(qkv, 2 * s->dim)};
    keep(w, w->d->kernels->attention_cached(w->d, &call, qkv, l->k, l->v, out));
    return out;
}

/* The layer's part of the residual stream that is not added yet. */
static mc_matrix run_layer(work *w, const layer *l, mc_matrix *x, mc_matrix f)
{
    const int64_t dim = w->s.dim;
    mc_matrix y = run_norm(w, l->norms[0], x, f), qkv = result(w, 3 * dim), mixed = result(w, dim),
              wide = result(w, w->s.dim_ff), down = result(w, dim);
    run_linear(w, &l->qkv, y, qkv, MC_ACTIVATION_NONE);
    mc_matrix heads = run_attention(w, l, qkv);
    run_linear(w, &l->out, heads, mixed, MC_ACTIVATION_NONE);
    if (!w->s.parallel) {
        drop(w, y);
        y = run_norm(w, l->norms[1], x, mixed);
    }
    run_linear(w, &l->up, y, wide, MC_ACTIVATION_GELU_NEW);
    run_linear(w, &l->down, wide, down, MC_ACTIVATION_NONE);
    if (w->s.parallel) {
        mc_matrix sum = result(w, dim);
        keep(w,
             w->d->kernels->residual_sum(w->d, w->rows, dim, *x, mixed, (mc_dropout_mask){0}, sum));
        if (x->data != w->input.data) drop(w, *x);
        drop(w, mixed);
        *x = sum;
    }
    drop(w, y), drop(w, qkv), drop(w, heads), drop(w, wide);
    return down;
}

static void run_step(work *w)
{
    mc_matrix x = w->input, f = {0};
    for (int i = 0; i < w->s.layers; i++) f = run_layer(w, &w->layers[i], &x, f);
    mc_matrix y = run_norm(w, w->last, &x, f);
    run_linear(w, &w->head, y, w->logits, MC_ACTIVATION_NONE);
    drop(w, x), drop(w, y);
}

static void *record(work *w, bool listed)
{
    w->d->step_begin(w->d);
    run_step(w); /* memory is taken */
    w->d->record_begin(w->d);
    if (listed) mc_list_open(w->d);
    run_step(w);
    if (listed) keep(w, mc_list_close(w->d));
    void *recording = w->d->record_end(w->d);
    w->d->step_end(w->d);
    return recording;
}

static void download(work *w, uint16_t *to)
{
    if (!w->d->copy_out(w->d, to, w->logits.data, (size_t)(w->rows * w->s.vocab) * 2) ||
        w->status) {
        fprintf(stderr, "failed: %s\n", w->d->failure);
        exit(1);
    }
}

static double milliseconds(work *w, void *recording, uint16_t *logits)
{
    double best = INFINITY;
    for (int round = 0; round <= ROUNDS; round++) { /* the first one does not count */
        double start = now();
        for (int i = 0; i < REPLAYS; i++) keep(w, w->d->replay(w->d, recording));
        download(w, logits);
        if (round) best = fmin(best, 1e3 * (now() - start) / REPLAYS);
    }
    return best;
}

static double value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

/* Relative, of the squares' sums. */
static double difference(const uint16_t *a, const uint16_t *b, int64_t count)
{
    double error = 0, all = 0;
    for (int64_t i = 0; i < count; i++) {
        error += (value(a[i]) - value(b[i])) * (value(a[i]) - value(b[i]));
        all += value(a[i]) * value(a[i]);
    }
    return sqrt(error / all);
}

static void measure(work *w)
{
    int64_t count = w->rows * w->s.vocab;
    uint16_t *logits[2] = {malloc((size_t)count * 2), malloc((size_t)count * 2)};
    if (!logits[0] || !logits[1]) exit(1);
    for (int listed = 0; listed < 2; listed++) {
        void *recording = record(w, listed);
        if (!recording) download(w, logits[listed]);
        double ms = milliseconds(w, recording, logits[listed]);
        printf("%s, %s: %.4f ms a step, %.1f steps/s, %.2f TB/s\n", w->s.name,
               listed ? "deferred" : "one by one", ms, 1e3 / ms, 1e-9 * w->bytes / ms);
        w->d->recording_free(w->d, recording);
    }
    printf("relative difference of the logits: %.2e\n", difference(logits[0], logits[1], count));
    free(logits[0]), free(logits[1]);
}

int main(int argc, char **argv)
{
    const char *format = option(argc, argv, "weights", "");
    int length = atoi(option(argc, argv, "length", "320"));
    work w = {.rows = atoi(option(argc, argv, "rows", "1")),
              .format = strcmp(format, "int8") == 0  ? MC_WEIGHTS_INT8
                        : strcmp(format, "fp8") == 0 ? MC_WEIGHTS_FP8
                                                     : MC_WEIGHTS_FLOAT};
    for (size_t i = 0; argc > 1 && i < sizeof SHAPES / sizeof *SHAPES; i++)
        if (strcmp(argv[1], SHAPES[i].name) == 0) w.s = SHAPES[i];
    if (!w.s.name || w.rows < 1 || w.rows > MC_PERSISTENT_ROWS || length < 1 ||
        length > MOST_LENGTH) {
        fprintf(stderr,
                "usage: %s gpt2|gpt2-xl|gpt-j|tiny [weights=int8|fp8] [length=1..%d] "
                "[rows=1..%d] [layers=N]\n",
                argv[0], MOST_LENGTH, MC_PERSISTENT_ROWS);
        return 2;
    }
    mc_context *context = mc_init_distributed(NULL);
    w.d = mc_device_open(context, "cuda");
    if (!w.d) {
        fprintf(stderr, "no CUDA device: %s\n", mc_error_message(context));
        return 1;
    }
    work_new(&w, length, atoi(option(argc, argv, "layers", "0")));
    measure(&w);
    mc_device_close(w.d);
    mc_context_free(context);
    free(w.random), free(w.layers);
    return 0;
}
