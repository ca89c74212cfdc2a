/* The floor of a GPT-2 training step: its matrix products and its attention alone, as the step
 * launches them, back to back, for as long as the card needs to settle at the clocks it can hold.
 *
 *     bench/gpt2_floor [CONFIG [BATCH [LENGTH [SECONDS [DEVICE]]]]]
 *     bench/gpt2_floor gpt2-base 64 1024 30 cuda
 *
 * Prints what each kind of product takes on its own, one after another for a third of the time, and
 * then what whole steps of them take over SECONDS: what no arrangement of the other kernels can go
 * below. bf16 in and out with biases and GELU where the step has them, weight gradients added to in
 * f32. What is read is random and stays as it is, for numbers that are zeros or overflow run faster
 * than real ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "bench/bench.h"
#include "core/autograd/tape_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>

typedef struct floor_run {
    mc_device *d;
    int64_t tokens, dim, ff, vocabulary, chunk, layers;
    mc_attention_shape attention;
    void *x, *dy, *pre;     /* read: (tokens, ff) */
    void *y, *dx;           /* written: the same */
    void *weight, *bias;    /* read: (vocabulary, dim), (ff) */
    void *dlogits, *logits; /* read and written: (chunk, vocabulary) */
    float *gradient, *log_sum_exp;
} floor_run;

static void *filled(floor_run *r, int64_t count, mc_dtype dtype)
{
    static uint64_t key;
    void *data = r->d->alloc(r->d, (size_t)count * mc_dtype_size(dtype));
    mc_fill fill = {.kind = MC_FILL_NORMAL, .b = 0.05f, .key = ++key};
    if (data) r->d->kernels->fill(r->d, fill, 0, count, (mc_matrix){data, dtype, count});
    return data;
}

static mc_matrix half(void *data, int64_t stride) { return (mc_matrix){data, MC_BF16, stride}; }

/* Forward, input gradient and weight gradient of a linear (in -> out) with a bias; GELU after it
 * (`gelu`), or before it, whose gradient the input gradient then takes. */
static mc_status linear(floor_run *r, int64_t in, int64_t out, bool gelu, bool behind_gelu)
{
    mc_device *d = r->d;
    const mc_activation activation = MC_ACTIVATION_GELU_NEW;
    mc_linear_call forward = {.rows = r->tokens,
                              .in = in,
                              .out = out,
                              .alpha = 1,
                              .x = half(r->x, in),
                              .weight = half(r->weight, in),
                              .bias = half(r->bias, out),
                              .y = half(r->y, out)};
    if (gelu) forward.activation = activation, forward.pre = half(r->dx, out);
    mc_linear_backward_call backward = {.rows = r->tokens,
                                        .in = in,
                                        .out = out,
                                        .alpha = 1,
                                        .dy = half(r->dy, out),
                                        .weight = forward.weight,
                                        .dx = half(r->dx, in)};
    if (behind_gelu) backward.activation = activation, backward.pre = half(r->pre, in);
    mc_status s = d->kernels->linear(d, &forward);
    if (!s) s = d->kernels->linear_backward_input(d, &backward);
    if (!s)
        s = d->kernels->gemm(d, true, false, out, in, r->tokens, 1, backward.dy, forward.x, 1,
                             (mc_matrix){r->gradient, MC_F32, in});
    return s;
}

static mc_status qkv(floor_run *r) { return linear(r, r->dim, 3 * r->dim, false, false); }
static mc_status project(floor_run *r) { return linear(r, r->dim, r->dim, false, false); }
static mc_status up(floor_run *r) { return linear(r, r->dim, r->ff, true, false); }
static mc_status down(floor_run *r) { return linear(r, r->ff, r->dim, false, true); }

static mc_status attention(floor_run *r)
{
    mc_device *d = r->d;
    int64_t stride = 3 * r->dim;
    char *q = r->x, *dq = r->dx;
    size_t third = (size_t)r->dim * 2;
    mc_matrix out = half(r->y, r->dim), dout = half(r->dy, r->dim);
    mc_status s = d->kernels->attention(d, &r->attention, half(q, stride), half(q + third, stride),
                                        half(q + 2 * third, stride), out, r->log_sum_exp);
    if (s) return s;
    return d->kernels->attention_backward(d, &r->attention, half(q, stride),
                                          half(q + third, stride), half(q + 2 * third, stride), out,
                                          r->log_sum_exp, dout, half(dq, stride),
                                          half(dq + third, stride), half(dq + 2 * third, stride));
}

static mc_status head(floor_run *r)
{
    mc_device *d = r->d;
    mc_matrix w = half(r->weight, r->dim), dl = half(r->dlogits, r->vocabulary);
    mc_status s = MC_OK;
    for (int64_t first = 0; !s && first < r->tokens; first += r->chunk) {
        int64_t n = r->tokens - first < r->chunk ? r->tokens - first : r->chunk;
        size_t at = (size_t)(first * r->dim) * 2;
        mc_matrix x = half((char *)r->x + at, r->dim), dx = half((char *)r->dx + at, r->dim);
        s = d->kernels->linear(d, &(mc_linear_call){.rows = n,
                                                    .in = r->dim,
                                                    .out = r->vocabulary,
                                                    .alpha = 1,
                                                    .x = x,
                                                    .weight = w,
                                                    .y = half(r->logits, r->vocabulary)});
        if (!s)
            s = d->kernels->gemm(d, true, false, r->vocabulary, r->dim, n, 1, dl, x, 1,
                                 (mc_matrix){r->gradient, MC_F32, r->dim});
        if (!s) s = d->kernels->gemm(d, false, false, n, r->dim, r->vocabulary, 1, dl, w, 0, dx);
    }
    return s;
}

typedef mc_status (*part_fn)(floor_run *r);

typedef struct part {
    const char *name;
    part_fn run;
    bool per_layer;
} part;

static const part parts[] = {{"qkv", qkv, true},      {"attention", attention, true},
                             {"proj", project, true}, {"up", up, true},
                             {"down", down, true},    {"head", head, false}};
enum { PARTS = sizeof parts / sizeof *parts };

/* All of a step. */
static mc_status whole(floor_run *r)
{
    mc_status s = MC_OK;
    for (int i = 0; i < PARTS; i++)
        for (int64_t n = parts[i].per_layer ? r->layers : 1; n > 0 && !s; n--) s = parts[i].run(r);
    return s;
}

static bool settle(floor_run *r)
{
    float host;
    return r->d->copy_out(r->d, &host, r->gradient, sizeof host);
}

/* Seconds of one run, over at least `seconds` and after a few that warm up and tune; NAN after a
 * failure. */
static double time_runs(floor_run *r, const char *name, part_fn run, double seconds)
{
    double start = 0, end = 0;
    int64_t runs = -3;
    bool good = true;
    for (; good && (runs < 3 || now() < end); runs++) {
        if (runs == 0) {
            good = settle(r);
            start = now();
            end = start + seconds;
        }
        good = good && run(r) == MC_OK && (runs % 8 || settle(r));
    }
    if (good && settle(r)) return (now() - start) / (double)runs;
    fprintf(stderr, "error: %s: %s\n", name, r->d->failure);
    return NAN;
}

/* False where there is no memory. */
static bool make_buffers(floor_run *r, int64_t heads)
{
    int64_t activations = r->tokens * r->ff;
    r->x = filled(r, activations, MC_BF16);
    r->dy = filled(r, activations, MC_BF16);
    r->pre = filled(r, activations, MC_BF16);
    r->y = filled(r, activations, MC_BF16);
    r->dx = filled(r, activations, MC_BF16);
    r->weight = filled(r, r->vocabulary * r->dim, MC_BF16);
    r->bias = filled(r, r->ff, MC_BF16);
    r->logits = filled(r, r->chunk * r->vocabulary, MC_BF16);
    r->dlogits = filled(r, r->chunk * r->vocabulary, MC_BF16);
    r->gradient = filled(r, r->vocabulary * r->dim, MC_F32);
    r->log_sum_exp = filled(r, r->tokens * heads, MC_F32);
    return r->x && r->dy && r->pre && r->y && r->dx && r->weight && r->bias && r->logits &&
           r->dlogits && r->gradient && r->log_sum_exp;
}

static bool measure(floor_run *r, const char *name, double seconds)
{
    double sum = 0;
    for (int i = 0; i < PARTS; i++) {
        double each = time_runs(r, parts[i].name, parts[i].run, seconds / 3 / PARTS);
        int64_t times = parts[i].per_layer ? r->layers : 1;
        sum += each * (double)times;
        printf("%-10s %9.3f ms x %lld\n", parts[i].name, 1e3 * each, (long long)times);
    }
    double total = time_runs(r, "a step", whole, seconds);
    printf("result config=%s tokens=%lld parts_ms=%.3f floor_ms=%.3f tokens_per_s=%.0f\n", name,
           (long long)r->tokens, 1e3 * sum, 1e3 * total, (double)r->tokens / total);
    return isfinite(sum + total);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "gpt2-base";
    int batch = argc > 2 ? atoi(argv[2]) : 1, length = argc > 3 ? atoi(argv[3]) : 64;
    double seconds = argc > 4 ? atof(argv[4]) : 1;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.device = argc > 5 ? argv[5] : "cpu"});
    mc_gpt2_config config;
    if (mc_gpt2_config_named(ctx, name, &config)) return mc_print_error(ctx, stderr);
    int32_t *lengths = malloc((size_t)batch * sizeof *lengths);
    for (int i = 0; i < batch; i++) lengths[i] = length;
    mc_tape *t = mc_tape_begin_eval(ctx);
    floor_run r = {.d = ctx->device,
                   .tokens = (int64_t)batch * length,
                   .dim = config.dim,
                   .ff = config.dim_ff,
                   .layers = config.layers,
                   .vocabulary = (config.vocab_size + 127) / 128 * 128};
    const mc_lengths *packed = mc_tape_lengths(t, lengths, batch, 1);
    r.attention = (mc_attention_shape){.lengths = packed,
                                       .device_lengths = mc_tape_device_lengths(t, packed),
                                       .heads = (int)config.heads,
                                       .head_dim = (int)(config.dim / config.heads),
                                       .scale = 1 / sqrtf((float)config.dim / (float)config.heads),
                                       .causal = true};
    r.chunk = r.d->logits_chunk / r.vocabulary;
    if (r.chunk > r.tokens) r.chunk = r.tokens;
    bool good = make_buffers(&r, config.heads);
    if (good)
        good = measure(&r, name, seconds);
    else
        fprintf(stderr, "error: %s\n", *r.d->failure ? r.d->failure : "out of memory");
    mc_tape_end(t);
    free(lengths);
    mc_context_free(ctx);
    return !good;
}
