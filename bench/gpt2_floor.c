/* The floor of a GPT-2 training step: its matrix products and its attention alone, back to back,
 * for as long as the card needs to settle at the clocks it can hold.
 *
 *     bench/gpt2_floor [CONFIG [BATCH [LENGTH [SECONDS [DEVICE]]]]]
 *     bench/gpt2_floor gpt2-base 64 1024 30 cuda
 *
 * Prints what each kind of product takes and the sum over a step: what no arrangement of the other
 * kernels can go below. bf16 in and out, weight gradients in f32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "core/autograd/tape_internal.h"
#include "core/modelcenter.h"

typedef struct floor_run {
    mc_device *d;
    int64_t tokens, dim, ff, vocabulary, chunk;
    mc_attention_shape attention;
    void *x, *wide, *wide2, *weight, *logits;
    float *gradient, *log_sum_exp;
} floor_run;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *filled(floor_run *r, int64_t count, mc_dtype dtype)
{
    void *data = r->d->alloc(r->d, (size_t)count * mc_dtype_size(dtype));
    mc_fill fill = {.kind = MC_FILL_NORMAL, .b = 0.05f, .key = (uint64_t)count};
    if (data) r->d->kernels->fill(r->d, fill, 0, count, (mc_matrix){data, dtype, count});
    return data;
}

static mc_matrix half(void *data, int64_t stride) { return (mc_matrix){data, MC_BF16, stride}; }

/* Forward, input gradient and weight gradient of a linear (in -> out). */
static mc_status linear(floor_run *r, int64_t in, int64_t out, mc_activation activation)
{
    mc_device *d = r->d;
    mc_matrix x = half(r->wide, in), y = half(r->wide2, out), w = half(r->weight, in), none = {0};
    mc_matrix pre = activation ? half(r->logits, out) : none;
    mc_status s =
        d->kernels->linear(d, r->tokens, in, out, x, w, half(r->x, out), activation, pre, y);
    if (!s)
        s = d->kernels->linear_backward_input(d, r->tokens, in, out, y, w, 0, MC_ACTIVATION_NONE,
                                              none, x);
    if (!s)
        s = d->kernels->gemm(d, true, false, out, in, r->tokens, y, x, 1,
                             (mc_matrix){r->gradient, MC_F32, in});
    return s;
}

static mc_status qkv(floor_run *r) { return linear(r, r->dim, 3 * r->dim, MC_ACTIVATION_NONE); }
static mc_status project(floor_run *r) { return linear(r, r->dim, r->dim, MC_ACTIVATION_NONE); }
static mc_status up(floor_run *r) { return linear(r, r->dim, r->ff, MC_ACTIVATION_GELU_NEW); }
static mc_status down(floor_run *r) { return linear(r, r->ff, r->dim, MC_ACTIVATION_NONE); }

static mc_status attention(floor_run *r)
{
    mc_device *d = r->d;
    int64_t stride = 3 * r->dim;
    char *q = r->wide, *dq = r->wide2;
    size_t third = (size_t)r->dim * 2;
    mc_matrix out = half(r->x, r->dim);
    mc_status s = d->kernels->attention(d, &r->attention, half(q, stride), half(q + third, stride),
                                        half(q + 2 * third, stride), out, r->log_sum_exp);
    if (s) return s;
    return d->kernels->attention_backward(d, &r->attention, half(q, stride),
                                          half(q + third, stride), half(q + 2 * third, stride), out,
                                          r->log_sum_exp, out, half(dq, stride),
                                          half(dq + third, stride), half(dq + 2 * third, stride));
}

static mc_status head(floor_run *r)
{
    mc_device *d = r->d;
    mc_matrix none = {0}, w = half(r->weight, r->dim), l = half(r->logits, r->vocabulary);
    mc_status s = MC_OK;
    for (int64_t first = 0; !s && first < r->tokens; first += r->chunk) {
        int64_t n = r->tokens - first < r->chunk ? r->tokens - first : r->chunk;
        mc_matrix x = half((char *)r->x + (size_t)(first * r->dim) * 2, r->dim);
        s = d->kernels->linear(d, n, r->dim, r->vocabulary, x, w, none, MC_ACTIVATION_NONE, none,
                               l);
        if (!s)
            s = d->kernels->gemm(d, true, false, r->vocabulary, r->dim, n, l, x, 1,
                                 (mc_matrix){r->gradient, MC_F32, r->dim});
        if (!s) s = d->kernels->gemm(d, false, false, n, r->dim, r->vocabulary, l, w, 0, x);
    }
    return s;
}

typedef struct part {
    const char *name;
    mc_status (*run)(floor_run *r);
    bool per_layer;
} part;

static const part parts[] = {{"qkv", qkv, true},      {"attention", attention, true},
                             {"proj", project, true}, {"up", up, true},
                             {"down", down, true},    {"head", head, false}};
enum { PARTS = sizeof parts / sizeof *parts };

static double time_part(floor_run *r, mc_context *ctx, const part *p, double seconds)
{
    float host;
    double start = 0;
    int64_t runs = -3;
    for (double end = 0; runs < 3 || now() < end; runs++) {
        if (runs == 0) { /* warmed up and tuned */
            r->d->copy_out(r->d, &host, r->gradient, sizeof host);
            start = now();
            end = start + seconds;
        }
        if (p->run(r)) {
            fprintf(stderr, "error: %s: %s\n", p->name, r->d->failure);
            return NAN;
        }
        if (runs % 8 == 0) r->d->copy_out(r->d, &host, r->gradient, sizeof host);
    }
    r->d->copy_out(r->d, &host, r->gradient, sizeof host);
    (void)ctx;
    return (now() - start) / (double)runs;
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
    int64_t logits = r.chunk * r.vocabulary;
    if (logits < r.tokens * r.ff) logits = r.tokens * r.ff;
    r.x = filled(&r, r.tokens * r.ff, MC_BF16);
    r.wide = filled(&r, r.tokens * r.ff, MC_BF16);
    r.wide2 = filled(&r, r.tokens * r.ff, MC_BF16);
    r.weight = filled(&r, r.vocabulary * r.dim, MC_BF16);
    r.logits = filled(&r, logits, MC_BF16);
    r.gradient = filled(&r, r.vocabulary * r.dim, MC_F32);
    r.log_sum_exp = filled(&r, r.tokens * config.heads, MC_F32);
    double total = 0;
    for (int i = 0; i < PARTS; i++) {
        double each = time_part(&r, ctx, &parts[i], seconds / PARTS);
        int64_t times = parts[i].per_layer ? config.layers : 1;
        total += each * (double)times;
        printf("%-10s %9.3f ms x %lld\n", parts[i].name, 1e3 * each, (long long)times);
    }
    printf("result config=%s tokens=%lld floor_ms=%.3f tokens_per_s=%.0f\n", name,
           (long long)r.tokens, 1e3 * total, (double)r.tokens / total);
    mc_tape_end(t);
    free(lengths);
    mc_context_free(ctx);
    return 0;
}
