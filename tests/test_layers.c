/* Layers against the operations they stand for: RMSNorm, scaled linears, feed-forwards of every
 * kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/autograd/tape_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/optim/optim_test.h"

enum { ROWS = 6, DIM = 8, DIM_FF = 12, MOST = 2 * DIM_FF * DIM };

static mc_tensor *input_of(mc_tape *t, int columns)
{
    float data[ROWS * DIM_FF];
    uint64_t state = 5;
    for (int i = 0; i < ROWS * columns; i++) data[i] = noise(&state);
    return mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, columns), data, true);
}

static void read_values(mc_context *ctx, const mc_tensor *x, float *to, int64_t count)
{
    assert_good(ctx);
    assert_int_equal(mc_tensor_count(x), count);
    mc_tensor_read_f32(ctx, x, to, count);
    assert_good(ctx);
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* y against x / sqrt(mean(x^2) + eps), with weights of 1. */
static void assert_rms(const float *x, const float *y, double eps)
{
    for (int r = 0; r < ROWS; r++) {
        double squares = 0;
        for (int i = 0; i < DIM; i++) squares += pow((double)x[r * DIM + i], 2) / DIM;
        for (int i = 0; i < DIM; i++)
            assert_near((double)y[r * DIM + i], (double)x[r * DIM + i] / sqrt(squares + eps), 2e-6);
    }
}

static void test_rmsnorm(void **state)
{
    mc_context *ctx = *state;
    mc_layernorm *small = mc_rmsnorm_new(ctx, DIM, 0), *large = mc_rmsnorm_new(ctx, DIM, 0.5f);
    assert_good(ctx);
    assert_int_equal(mc_module_parameter_count(mc_layernorm_module(small)), DIM);
    assert_non_null(mc_module_find_parameter(mc_layernorm_module(small), "weight"));
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input_of(t, DIM), *twice = mc_scale(t, x, 2), *sum;
    float in[ROWS * DIM], y[ROWS * DIM], stream[ROWS * DIM];
    read_values(ctx, x, in, ROWS * DIM);
    read_values(ctx, mc_layernorm_forward(t, small, x), y, ROWS * DIM);
    assert_rms(in, y, 1e-6);
    read_values(ctx, mc_layernorm_forward(t, large, x), y, ROWS * DIM);
    assert_rms(in, y, 0.5);
    /* of x + 2 x, by either way */
    read_values(ctx, mc_layernorm_forward_residual(t, large, x, twice, 0), y, ROWS * DIM);
    mc_tensor *deferred = mc_residual_defer(t, x, twice, 0);
    read_values(ctx, mc_layernorm_forward_stream(t, large, deferred, &sum), stream, ROWS * DIM);
    assert_memory_equal(y, stream, sizeof y);
    read_values(ctx, sum, in, ROWS * DIM);
    assert_rms(in, y, 0.5);
    mc_tape_end(t);
    assert_null(mc_rmsnorm_new(ctx, -1, 0));
    assert_error(ctx, MC_ERR_SHAPE, "(-1)");
}

/* ---- linear ---------------------------------------------------------------------------------- */

static void test_linear_scale(void **state)
{
    mc_context *ctx = *state;
    mc_linear *linear = mc_linear_new(ctx, DIM, DIM_FF, &(mc_linear_options){.scale = 0.3f});
    mc_parameter *weight = mc_module_find_parameter(mc_linear_module(linear), "weight");
    mc_parameter *bias = mc_module_find_parameter(mc_linear_module(linear), "bias");
    float ones[DIM_FF], y[ROWS * DIM_FF], expected[ROWS * DIM_FF];
    for (int i = 0; i < DIM_FF; i++) ones[i] = 1;
    assert_int_equal(mc_parameter_write(bias, ones), MC_OK);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input_of(t, DIM);
    read_values(ctx, mc_linear_forward(t, linear, x), y, ROWS * DIM_FF);
    mc_tensor *product =
        mc_fused_linear(t, x, mc_parameter_tensor(t, weight), NULL, MC_ACTIVATION_NONE);
    read_values(ctx, product, expected, ROWS * DIM_FF);
    for (int i = 0; i < ROWS * DIM_FF; i++)
        assert_near((double)y[i], 0.3 * (double)expected[i] + 1, 1e-6);
    mc_tape_end(t);
}

/* ---- feed-forward ---------------------------------------------------------------------------- */

typedef struct setting {
    const char *name;
    mc_feed_forward_options o;
} setting;

static const setting settings[] = {
    {"plain", {.activation = MC_ACTIVATION_GELU}},
    {"T5's", {.activation = MC_ACTIVATION_RELU, .no_bias = true, .dropout = 0.25f}},
    {"gated", {.activation = MC_ACTIVATION_GELU_NEW, .gated = true}},
    {"gated, no bias, dropout",
     {.activation = MC_ACTIVATION_SILU, .gated = true, .no_bias = true, .dropout = 0.25f}},
    {"gated, scaled",
     {.activation = MC_ACTIVATION_TANH, .gated = true, .in_scale = 0.3f, .out_scale = -0.7f}},
    {"scaled", {.in_scale = 0.3f, .out_scale = -0.7f, .out_std = 0.2f}},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static float scale_or_1(float scale) { return scale != 0 ? scale : 1; }

/* scale * x weight^T + bias of parameters by their names. */
static mc_tensor *product_of(mc_tape *t, mc_module *m, const char *name, mc_tensor *x, float scale)
{
    char text[64];
    snprintf(text, sizeof text, "%s.weight", name);
    mc_tensor *weight = mc_parameter_tensor(t, mc_module_find_parameter(m, text));
    mc_tensor *y = mc_fused_linear(t, x, weight, NULL, MC_ACTIVATION_NONE);
    y = mc_scale(t, y, scale_or_1(scale));
    snprintf(text, sizeof text, "%s.bias", name);
    mc_parameter *bias = mc_module_find_parameter(m, text);
    return bias ? mc_add(t, y, mc_parameter_tensor(t, bias)) : y;
}

static mc_tensor *activate(mc_tape *t, mc_activation a, mc_tensor *x)
{
    switch (a) {
    case MC_ACTIVATION_RELU: return mc_relu(t, x);
    case MC_ACTIVATION_GELU: return mc_gelu(t, x);
    case MC_ACTIVATION_GELU_NEW: return mc_gelu_new(t, x);
    case MC_ACTIVATION_TANH: return mc_tanh(t, x);
    case MC_ACTIVATION_SILU: return mc_silu(t, x);
    case MC_ACTIVATION_NONE: break;
    }
    return x;
}

/* The layer, one operation at a time. */
static mc_tensor *by_hand(mc_tape *t, mc_module *m, const mc_feed_forward_options *o, mc_tensor *x)
{
    mc_tensor *h;
    if (o->gated) {
        mc_tensor *gate = product_of(t, m, "ffn.w_in.w_0", x, o->in_scale);
        mc_tensor *value = product_of(t, m, "ffn.w_in.w_1", x, o->in_scale);
        h = mc_mul(t, activate(t, o->activation, gate), value);
    } else {
        h = activate(t, o->activation, product_of(t, m, "ffn.w_in.w", x, o->in_scale));
    }
    return product_of(t, m, "ffn.w_out", mc_dropout(t, h, o->dropout), o->out_scale);
}

typedef enum way { BY_HAND, LAYER, LAST, RECOMPUTED, WAYS } way;

/* What a forward and a backward pass give. */
typedef struct values {
    float y[ROWS * DIM], dx[ROWS * DIM], gradient[6][MOST];
    int64_t count[6];
    size_t kept; /* bytes in use between forward and backward */
} values;

static mc_tensor *forward(mc_tape *t, mc_module *m, mc_feed_forward *ffn, const setting *s, way how,
                          mc_tensor *x)
{
    if (how == BY_HAND) return by_hand(t, m, &s->o, x);
    /* x is the input of the whole graph: what may be released is a copy of it */
    mc_scope scope = mc_scope_begin(t, how == RECOMPUTED);
    mc_tensor *y = how == LAST ? mc_feed_forward_forward_last(t, ffn, mc_scale(t, x, 1))
                               : mc_feed_forward_forward(t, ffn, x);
    mc_scope_end(t, scope, y);
    return y;
}

static void run(const setting *s, mc_dtype dtype, way how, values *v)
{
    memset(v, 0, sizeof *v);
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
    mc_module *m = new_root(ctx, dtype);
    mc_feed_forward_options o = s->o;
    o.init_std = 0.4f; /* so that nothing is near the end of f16 */
    mc_feed_forward *ffn = mc_feed_forward_add(m, "ffn", DIM, DIM_FF, &o);
    mc_module_zero_grad(m);
    mc_tape *t = mc_tape_begin(ctx);
    float dy[ROWS * DIM];
    for (int i = 0; i < ROWS * DIM; i++) dy[i] = cosf((float)i);
    mc_tensor *x = input_of(t, DIM);
    mc_tensor *y = forward(t, m, ffn, s, how, mc_cast(t, x, dtype));
    assert_good(ctx);
    v->kept = ctx->device->memory.in_use;
    mc_tensor *g = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, DIM), dy, false);
    mc_tape_backward(t, y, mc_cast(t, g, dtype));
    read_values(ctx, y, v->y, ROWS * DIM);
    read_values(ctx, mc_tensor_gradient(x), v->dx, ROWS * DIM);
    mc_tape_end(t);
    int n = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it)); n++) {
        v->count[n] = mc_shape_count(p->shape);
        assert_int_equal(mc_parameter_read_gradient(p, v->gradient[n]), MC_OK);
    }
    assert_int_equal(n, (s->o.gated ? 3 : 2) * (s->o.no_bias ? 1 : 2));
    assert_good(ctx);
    mc_context_free(ctx);
}

/* Within `tolerance` of the largest. */
static void assert_close(const char *name, const char *what, const float *a, const float *b,
                         int64_t count, double tolerance)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)b[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tolerance * largest))
            fail_msg("%s: %s[%d] is %g, expected %g", name, what, (int)i, (double)a[i],
                     (double)b[i]);
}

/* By hand there are roundings more, of every operation in between: some five of 16 bits. */
static void test_feed_forward(void **state)
{
    (void)state;
    for (int i = 0; i < SETTINGS; i++)
        for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
            static values v[WAYS];
            const char *name = settings[i].name;
            double unit = dtype == MC_F32 ? 2e-6 : dtype == MC_F16 ? 5 * 0x1p-11 : 5 * 0x1p-8;
            for (way how = BY_HAND; how < WAYS; how++) run(&settings[i], dtype, how, &v[how]);
            assert_close(name, "y", v[LAYER].y, v[BY_HAND].y, ROWS * DIM, unit);
            assert_close(name, "dx", v[LAYER].dx, v[BY_HAND].dx, ROWS * DIM, unit);
            for (int p = 0; p < 6; p++)
                assert_close(name, "gradient", v[LAYER].gradient[p], v[BY_HAND].gradient[p],
                             v->count[p], unit);
            for (way how = LAST; how < WAYS; how++) { /* to the bit */
                assert_memory_equal(v[how].y, v[LAYER].y, sizeof v->y);
                assert_memory_equal(v[how].dx, v[LAYER].dx, sizeof v->dx);
                assert_memory_equal(v[how].gradient, v[LAYER].gradient, sizeof v->gradient);
            }
        }
}

/* Selective recompute does not keep what a gate gives, nor what dropout leaves of it. */
static void test_gate_is_dropped(void **state)
{
    (void)state;
    static values kept, dropped;
    setting gated = {"gated", {.activation = MC_ACTIVATION_SILU, .gated = true}};
    for (int i = 0; i < 2; i++, gated.o.dropout = 0.25f) {
        run(&gated, MC_F32, LAYER, &kept);
        run(&gated, MC_F32, RECOMPUTED, &dropped);
        if (!(dropped.kept + ROWS * DIM_FF * sizeof(float) <= kept.kept))
            fail_msg("%zu bytes kept, %zu with selective recompute", kept.kept, dropped.kept);
    }
}

static void test_feed_forward_dropout(void **state)
{
    mc_context *ctx = *state;
    mc_module *m = new_root(ctx, MC_F32);
    mc_feed_forward_options o = {.activation = MC_ACTIVATION_RELU, .dropout = 0.5f};
    mc_feed_forward *ffn = mc_feed_forward_add(m, "ffn", DIM, DIM_FF, &o);
    float y[3][ROWS * DIM];
    for (int i = 0; i < 3; i++) { /* evaluation, training, training without dropout */
        mc_tape *t = i ? mc_tape_begin(ctx) : mc_tape_begin_eval(ctx);
        if (i == 2) mc_feed_forward_set_dropout(ffn, 0);
        mc_tensor *out = mc_feed_forward_forward(t, ffn, input_of(t, DIM));
        read_values(ctx, out, y[i], ROWS * DIM);
        mc_tape_end(t);
    }
    assert_memory_equal(y[0], y[2], sizeof *y);
    assert_memory_not_equal(y[0], y[1], sizeof *y);
}

static void test_feed_forward_errors(void **state)
{
    mc_context *ctx = *state;
    mc_module *m = new_root(ctx, MC_F32);
    mc_feed_forward_options gated = {.gated = true};
    assert_null(mc_feed_forward_add(m, "bad", DIM, 0, &gated));
    assert_true(mc_failed(ctx));
    mc_clear_error(ctx);
    mc_feed_forward *ffn = mc_feed_forward_add(m, "ffn", DIM, DIM_FF, &gated);
    assert_good(ctx);
    mc_tape *t = mc_tape_begin(ctx);
    assert_null(mc_feed_forward_forward(t, ffn, input_of(t, DIM_FF)));
    assert_error(ctx, MC_ERR_SHAPE, "linear", "(6, 12)", "(24, 8)");
    assert_null(mc_feed_forward_forward(t, ffn, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "feed-forward", "NULL");
    mc_tape_end(t);
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { HEADS = 4, KEY_HEADS = 2, HEAD = 6, PARAMETERS = 10 };

typedef enum attention_kind { SELF, CROSS, LLAMA, ATTENTION_KINDS } attention_kind;

typedef struct attention_values {
    float y[ROWS * DIM], gradient[PARAMETERS][HEADS * HEAD * DIM];
} attention_values;

static mc_tensor *packed(mc_tape *t, mc_tensor *x)
{
    return mc_with_lengths(t, x, mc_tape_lengths(t, (const int32_t[]){4, 2}, 2, 1));
}

/* Heads of `columns`, each through an RMSNorm, in plain tensors' operations. */
static mc_tensor *norm_by_hand(mc_tape *t, mc_module *m, const char *name, mc_tensor *x, float eps)
{
    mc_parameter *weight = mc_module_find_parameter(m, name);
    mc_shape shape = x->shape;
    x = mc_reshape(t, x, MC_SHAPE(mc_tensor_count(x) / HEAD, HEAD));
    x = mc_residual_norm(t, x, NULL, 0, mc_parameter_tensor(t, weight), NULL, eps);
    return mc_reshape(t, x, shape);
}

/* Of self-attention with rotary positions, or of cross attention to x itself. */
static mc_tensor *attention_by_hand(mc_tape *t, mc_module *m, const mc_attention_options *o,
                                    const mc_call *call, mc_tensor *x)
{
    mc_tensor *q = product_of(t, m, "a.project_q", x, 1),
              *k = product_of(t, m, "a.project_k", x, 1);
    mc_tensor *v = product_of(t, m, "a.project_v", x, 1);
    if (o->qk_norm_eps > 0) {
        q = norm_by_hand(t, m, "a.q_norm.weight", q, o->qk_norm_eps);
        k = norm_by_hand(t, m, "a.k_norm.weight", k, o->qk_norm_eps);
    }
    mc_rotary_options rotary = {.head_dim = HEAD,
                                .rotary_dim = o->rotary_dim,
                                .halves = o->rotary_halves,
                                .base = o->rotary_base,
                                .scaling = o->rotary_scaling};
    rotary.positions = call->positions;
    rotary.heads = HEADS;
    if (o->rotary_dim) q = mc_rotary(t, q, &rotary);
    rotary.heads = KEY_HEADS;
    if (o->rotary_dim) k = mc_rotary(t, k, &rotary);
    mc_sdpa_options sdpa = {
        .heads = HEADS, .key_heads = KEY_HEADS, .causal = o->causal, .window_left = o->window};
    mc_tensor *y = mc_sdpa_separate(t, packed(t, q), packed(t, k), v, &sdpa);
    return product_of(t, m, "a.attention_out", y, 1);
}

static void run_attention(mc_context *ctx, attention_kind kind, bool by_hand, attention_values *v)
{
    bool cross = kind == CROSS;
    memset(v, 0, sizeof *v);
    mc_attention_options o = {.head_dim = HEAD, .key_heads = KEY_HEADS, .init_std = 0.4f};
    o.cross = cross;
    o.causal = !cross;
    o.rotary_dim = cross ? 0 : 4;
    if (kind == LLAMA) {
        o.window = 2;
        o.qk_norm_eps = 0.1f;
        o.no_out_bias = true;
        o.rotary_halves = true;
        o.rotary_base = 50;
        o.rotary_scaling = (mc_rotary_scaling){.type = MC_ROTARY_LINEAR, .factor = 3};
    }
    mc_module *m = new_root(ctx, MC_F32);
    mc_attention *a = mc_attention_add(m, "a", DIM, HEADS, &o);
    mc_module_zero_grad(m);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = packed(t, input_of(t, DIM));
    static const int32_t positions[ROWS] = {0, 1, 2, 3, 0, 1};
    mc_call call = {.positions = mc_tape_input(t, MC_I32, MC_SHAPE(ROWS), positions, false)};
    if (cross) call.memory = x;
    mc_tensor *y =
        by_hand ? attention_by_hand(t, m, &o, &call, x) : mc_attention_forward(t, a, x, &call);
    assert_good(ctx);
    float dy[ROWS * DIM];
    for (int i = 0; i < ROWS * DIM; i++) dy[i] = cosf((float)i);
    mc_tape_backward(t, y, mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, DIM), dy, false));
    read_values(ctx, y, v->y, ROWS * DIM);
    mc_tape_end(t);
    mc_parameter_iterator it = {0};
    int n = 0;
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it)); n++)
        assert_int_equal(mc_parameter_read_gradient(p, v->gradient[n]), MC_OK);
    assert_int_equal(n, kind == LLAMA ? PARAMETERS - 1 : PARAMETERS - 2);
    mc_module_free(m);
}

/* Fewer heads of the keys than of the queries: a layer's, and by its parameters' names; one with
 * all that LLaMA's descendants have. */
static void test_grouped_attention(void **state)
{
    mc_context *ctx = *state;
    static attention_values layer, hand;
    for (int kind = 0; kind < ATTENTION_KINDS; kind++) {
        run_attention(ctx, kind, false, &layer);
        run_attention(ctx, kind, true, &hand);
        for (int i = 0; i < ROWS * DIM; i++)
            assert_near((double)layer.y[i], (double)hand.y[i], 1e-6);
        for (int n = 0; n < PARAMETERS; n++)
            for (int i = 0; i < HEADS * HEAD * DIM; i++)
                assert_near((double)layer.gradient[n][i], (double)hand.gradient[n][i], 1e-5);
    }
    mc_module *m = new_root(ctx, MC_F32);
    assert_null(mc_attention_add(m, "bad", DIM, 4, &(mc_attention_options){.key_heads = 3}));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "3 key heads", "4 heads");
    mc_attention_options wide = {.window = -1, .causal = true};
    assert_null(mc_attention_add(m, "no window", DIM, 4, &wide));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "window of -1", "1 or more");
    mc_attention_options of_memory = {.window = 3, .cross = true};
    assert_null(mc_attention_add(m, "of memory", DIM, 4, &of_memory));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "window of 3", "self-attention");
    mc_attention_options both = {.globals = true, .causal = true};
    assert_null(mc_attention_add(m, "causal", DIM, 4, &both));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "global tokens", "neither causal");
    mc_module_free(m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_rmsnorm),
        TEST(test_linear_scale),
        cmocka_unit_test(test_feed_forward),
        cmocka_unit_test(test_gate_is_dropped),
        TEST(test_feed_forward_dropout),
        TEST(test_feed_forward_errors),
        TEST(test_grouped_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
