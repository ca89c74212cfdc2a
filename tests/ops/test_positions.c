/* Positions: the buckets of a relative bias, whose memory rotary positions take and whose they
 * leave alone, and what either says about arguments that don't fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/ops/ops_internal.h"
#include "tests/optim/optim_test.h"

/* ---- buckets --------------------------------------------------------------------------------- */

enum { MOST_BOUNDARIES = 20, FAR = 5000 };

/* Where the buckets of one direction begin after those of one distance each, until the first 0. */
typedef struct bucket_case {
    int64_t buckets;
    int max_distance;
    bool bidirectional;
    int64_t begins[MOST_BOUNDARIES];
} bucket_case;

/* As Hugging Face's T5 has them. */
static const bucket_case cases[] = {
    {32, 128, true, {8, 12, 16, 23, 32, 46, 64, 91}},
    {32, 128, false, {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113}},
    {64, 256, true, {16, 20, 23, 27, 32, 39, 46, 54, 64, 77, 91, 108, 128, 153, 182, 216}},
};

static int64_t expected_bucket(const bucket_case *c, int64_t ahead)
{
    int64_t each = c->bidirectional ? c->buckets / 2 : c->buckets, n = ahead > 0 ? ahead : -ahead;
    if (ahead > 0 && !c->bidirectional) return 0;
    int64_t bucket = n;
    if (n >= each / 2)
        for (bucket = each / 2; c->begins[bucket - each / 2 + 1] > 0; bucket++)
            if (n < c->begins[bucket - each / 2 + 1]) break;
    return bucket + (ahead > 0 ? each : 0);
}

/* A table whose values are the numbers of its rows shows the bucket of every distance. */
static void test_buckets(void **state)
{
    mc_context *ctx = *state;
    static float got[2 * FAR - 1];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const bucket_case *c = &cases[k];
        float rows[64];
        for (int i = 0; i < 64; i++) rows[i] = (float)i;
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *table = mc_tape_input(t, MC_F32, MC_SHAPE(c->buckets, 1), rows, false);
        mc_position_bias_options o = {
            .length = FAR, .max_distance = c->max_distance, .bidirectional = c->bidirectional};
        mc_tensor *y = mc_position_bias(t, table, &o);
        mc_tensor_read_f32(ctx, y, got, 2 * FAR - 1);
        assert_good(ctx);
        for (int64_t i = 0; i < 2 * FAR - 1; i++)
            if ((int64_t)got[i] != expected_bucket(c, i - (FAR - 1)))
                fail_msg("%lld buckets: distance %lld has bucket %g, expected %lld",
                         (long long)c->buckets, (long long)(i - (FAR - 1)), (double)got[i],
                         (long long)expected_bucket(c, i - (FAR - 1)));
        if (c->max_distance == 128) { /* which is what 0 means */
            o.max_distance = 0;
            static float again[2 * FAR - 1];
            mc_tensor_read_f32(ctx, mc_position_bias(t, table, &o), again, 2 * FAR - 1);
            assert_memory_equal(got, again, sizeof got);
        }
        mc_tape_end(t);
    }
}

/* ---- scaled angles --------------------------------------------------------------------------- */

enum { PAIRS = 8, PLACE = 37 };

typedef struct scaling_case {
    mc_rotary_scaling scaling;
    float cosine[PAIRS], sine[PAIRS]; /* at PLACE, of heads of 2 * PAIRS columns, base 10000 */
} scaling_case;

/* As Hugging Face's LLaMA has them. */
static const scaling_case scalings[] = {
    {{0},
     {0.7654141f, 0.6479219f, -0.8481000f, 0.3901123f, 0.9323273f, 0.9931628f, 0.9993156f,
      0.9999316f},
     {-0.6435381f, -0.7617068f, -0.5298361f, 0.9207673f, 0.3616154f, 0.1167375f, 0.0369916f,
      0.0117002f}},
    {{.type = MC_ROTARY_LINEAR, .factor = 4},
     {-0.9847652f, -0.9766583f, 0.6018346f, 0.9575229f, 0.9957249f, 0.9995722f, 0.9999572f,
      0.9999957f},
     {0.1738895f, 0.2147988f, 0.7986208f, 0.2883572f, 0.0923681f, 0.0292469f, 0.0092499f,
      0.0029251f}},
    {{.type = MC_ROTARY_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 64},
     {0.7654141f, -0.9277164f, 0.8858082f, 0.9893237f, 0.9989307f, 0.9998930f, 0.9999893f,
      0.9999989f},
     {-0.6435381f, 0.3732857f, 0.4640515f, 0.1457345f, 0.0462335f, 0.0146250f, 0.0046250f,
      0.0014626f}},
    {{.type = MC_ROTARY_YARN, .factor = 4, .low = 1, .high = 32, .original = 64},
     {0.8715230f, -0.9068179f, -0.3137950f, 1.0902638f, 1.1337617f, 1.1381424f, 1.1385807f,
      1.1386246f},
     {-0.7327515f, 0.6885915f, 1.0945363f, 0.3283320f, 0.1051731f, 0.0333014f, 0.0105322f,
      0.0033306f}},
    {{.type = MC_ROTARY_YARN,
      .factor = 4,
      .low = 2,
      .high = 24,
      .original = 256,
      .exact_range = true,
      .attention_factor = 0.9f},
     {0.6888726f, -0.8971983f, -0.1334635f, 0.8617706f, 0.8961524f, 0.8996150f, 0.8999615f,
      0.8999961f},
     {-0.5791843f, -0.0709595f, 0.8900492f, 0.2595215f, 0.0831313f, 0.0263222f, 0.0083249f,
      0.0026326f}},
};

/* A head of ones and then zeros becomes cosines and sines; a gradient of the same is rotated
 * back. */
static void test_scaling(void **state)
{
    mc_context *ctx = *state;
    float ones[2 * PAIRS] = {1, 1, 1, 1, 1, 1, 1, 1}, y[2 * PAIRS], dx[2 * PAIRS];
    const int32_t place[] = {PLACE};
    for (size_t n = 0; n < sizeof scalings / sizeof *scalings; n++) {
        const scaling_case *c = &scalings[n];
        mc_tape *t = mc_tape_begin(ctx);
        mc_rotary_options o = {.heads = 1, .head_dim = 2 * PAIRS, .halves = true};
        o.scaling = c->scaling;
        o.positions = mc_tape_input(t, MC_I32, MC_SHAPE(1), place, false);
        mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(1, 2 * PAIRS), ones, true);
        mc_tensor *out = mc_rotary(t, mc_scale(t, x, 1), &o);
        mc_tape_backward(t, out, mc_tape_input(t, MC_F32, MC_SHAPE(1, 2 * PAIRS), ones, false));
        assert_good(ctx);
        mc_tensor_read_f32(ctx, out, y, 2 * PAIRS);
        mc_tensor_read_f32(ctx, x->gradient, dx, 2 * PAIRS);
        mc_tape_end(t);
        for (int i = 0; i < PAIRS; i++) {
            assert_near((double)y[i], (double)c->cosine[i], 4e-6);
            assert_near((double)y[PAIRS + i], (double)c->sine[i], 4e-6);
            assert_near((double)dx[i], (double)c->cosine[i], 4e-6);
            assert_near((double)dx[PAIRS + i], -(double)c->sine[i], 4e-6);
        }
    }
}

/* ---- whose memory it is ---------------------------------------------------------------------- */

enum { ROWS = 6, HEADS = 2, DIM = 8, WIDTH = HEADS * DIM, COLUMNS = 3 * WIDTH };

static mc_tensor *input(mc_tape *t, mc_shape shape, float start, bool requires_grad)
{
    float v[COLUMNS * COLUMNS];
    for (int i = 0; i < COLUMNS * COLUMNS; i++) v[i] = sinf(start + (float)i * 1.7f);
    return mc_tape_input(t, MC_F32, shape, v, requires_grad);
}

static mc_tensor *positions_of(mc_tape *t)
{
    static const int32_t positions[ROWS] = {0, 1, 2, 3, 0, 1};
    return mc_tape_input(t, MC_I32, MC_SHAPE(ROWS), positions, false);
}

static mc_tensor *rotate(mc_tape *t, mc_tensor *x)
{
    mc_rotary_options o = {.heads = 2 * HEADS, .head_dim = DIM, .positions = positions_of(t)};
    return mc_rotary(t, x, &o);
}

/* What a linear has made is turned where it lies, and is gone for anybody else. */
static void test_taken(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x =
        mc_fused_linear(t, input(t, MC_SHAPE(ROWS, WIDTH), 1, true),
                        input(t, MC_SHAPE(COLUMNS, WIDTH), 2, true), NULL, MC_ACTIVATION_NONE);
    void *data = mc_tensor_data(x);
    mc_tensor *y = rotate(t, x);
    assert_good(ctx);
    assert_ptr_equal(mc_tensor_data(y), data);
    assert_null(mc_tensor_data(x));
    mc_tape_release(t, x); /* has nothing to release */
    assert_ptr_equal(mc_tensor_data(y), data);
    assert_null(mc_scale(t, x, 2));
    assert_error(ctx, MC_ERR_STATE, "scale", "(6, 48)", "released");
    mc_tape_end(t);
}

/* Contents that somebody else needs stay: a view's, what a node saved, the context's. */
static void test_left_alone(void **state)
{
    mc_context *ctx = *state;
    float before[ROWS * COLUMNS], after[ROWS * COLUMNS];
    mc_tensor *kept = mc_tensor_new(ctx, MC_F32, MC_SHAPE(ROWS, COLUMNS));
    for (int which = 0; which < 3; which++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x = which == 2 ? kept : input(t, MC_SHAPE(ROWS, COLUMNS), 3, true), *other = x;
        if (which == 0) other = mc_reshape(t, x, MC_SHAPE(COLUMNS, ROWS));
        if (which == 1) mc_mul(t, x, x);
        mc_tensor_read_f32(ctx, other, before, ROWS * COLUMNS);
        mc_tensor *y = rotate(t, x);
        mc_tensor_read_f32(ctx, other, after, ROWS * COLUMNS);
        assert_good(ctx);
        assert_true(mc_tensor_data(y) != mc_tensor_data(x) && mc_tensor_data(x));
        assert_memory_equal(before, after, sizeof before);
        mc_tape_end(t);
    }
}

/* ---- recompute ------------------------------------------------------------------------------- */

typedef enum way { PLAIN, SELECTIVE, FULL, WAYS } way;

/* A block whose rotary takes what it is given, and attends. `on`: that is the block's input itself,
 * a linear's output, one with an activation, which could be made again, or an activation's. */
static mc_tensor *block(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    const int *on = user;
    mc_tensor *qkv = x;
    if (*on == 1) qkv = mc_fused_linear(t, x, extra[0], NULL, MC_ACTIVATION_NONE);
    if (*on == 2) qkv = mc_fused_linear(t, x, extra[0], NULL, MC_ACTIVATION_GELU);
    if (*on == 3) qkv = mc_tanh(t, x);
    qkv = qkv ? rotate(t, qkv) : NULL;
    mc_tensor *y = qkv ? mc_sdpa(t, qkv, &(mc_sdpa_options){.heads = HEADS}) : NULL;
    mc_tape_release(t, qkv);
    return y ? mc_tanh(t, y) : NULL;
}

static mc_tensor *run_block(mc_tape *t, way how, int *on, mc_tensor *x, mc_tensor *weight)
{
    mc_scope scope = mc_scope_begin(t, how == SELECTIVE);
    mc_tensor *extra[] = {weight};
    mc_tensor *y =
        how == FULL ? mc_tape_checkpoint(t, block, on, x, extra, 1) : block(t, on, x, extra);
    mc_scope_end(t, scope, y);
    return y;
}

/* The gradients of the block's input and of its weight. */
static void run_way(mc_context *ctx, way how, int on, float *dx, float *dw)
{
    static const int32_t lengths[] = {4, 2};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *given = input(t, MC_SHAPE(ROWS, COLUMNS), 4, true);
    mc_tensor *weight = input(t, MC_SHAPE(COLUMNS, COLUMNS), 5, true);
    mc_tensor *x = mc_scale(t, given, 0.5f); /* which nobody saves */
    x->lengths = mc_tape_lengths(t, lengths, 2, 1);
    mc_tensor *y = run_block(t, how, &on, x, weight);
    mc_tape_backward(t, y, input(t, MC_SHAPE(ROWS, WIDTH), 6, false));
    assert_good(ctx);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(given), dx, ROWS * COLUMNS);
    if (on == 1 || on == 2)
        mc_tensor_read_f32(ctx, mc_tensor_gradient(weight), dw, COLUMNS * COLUMNS);
    assert_good(ctx);
    mc_tape_end(t);
}

/* Whatever is run again, the gradients are the same to the bit. */
static void test_recompute(void **state)
{
    mc_context *ctx = *state;
    static float dx[WAYS][ROWS * COLUMNS], dw[WAYS][COLUMNS * COLUMNS];
    for (int on = 0; on < 4; on++)
        for (way how = PLAIN; how < WAYS; how++) {
            run_way(ctx, how, on, dx[how], dw[how]);
            assert_memory_equal(dx[how], dx[PLAIN], sizeof *dx);
            assert_memory_equal(dw[how], dw[PLAIN], sizeof *dw);
        }
    double size = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++) size += fabs((double)dx[FULL][i]);
    assert_true(size > 0.1);
}

/* A gradient that two tensors share is not turned under the other's hands. */
static void test_shared_gradient(void **state)
{
    mc_context *ctx = *state;
    float a[ROWS * COLUMNS], b[ROWS * COLUMNS], given[ROWS * COLUMNS];
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, MC_SHAPE(ROWS, COLUMNS), 1, true);
    mc_tensor *other = input(t, MC_SHAPE(ROWS, COLUMNS), 2, true);
    mc_tensor *dy = input(t, MC_SHAPE(ROWS, COLUMNS), 3, false);
    mc_tape_backward(t, mc_add(t, rotate(t, x), other), dy);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), a, ROWS * COLUMNS);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(other), b, ROWS * COLUMNS);
    mc_tensor_read_f32(ctx, dy, given, ROWS * COLUMNS);
    assert_good(ctx);
    assert_memory_equal(b, given, sizeof b);
    assert_true(memcmp(a, given, sizeof a) != 0);
    mc_tape_end(t);
}

/* ---- errors ---------------------------------------------------------------------------------- */

#define F(...) mc_tape_input(t, MC_F32, MC_SHAPE(__VA_ARGS__), NULL, true)
#define I(...) mc_tape_input(t, MC_I32, MC_SHAPE(__VA_ARGS__), NULL, false)
#define BIAS(table, ...) mc_position_bias(t, table, &(mc_position_bias_options){__VA_ARGS__})
#define ROTARY(x, ...) mc_rotary(t, x, &(mc_rotary_options){__VA_ARGS__})

static void test_bias_errors(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    assert_null(BIAS(NULL, .length = 3));
    assert_error(ctx, MC_ERR_ARGUMENT, "position bias", "NULL");
    assert_null(mc_position_bias(t, F(8, 2), NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "position bias", "NULL", "length");
    assert_null(BIAS(F(8, 2), .length = 0));
    assert_error(ctx, MC_ERR_ARGUMENT, "position bias", "length 0");
    assert_null(BIAS(I(8, 2), .length = 3));
    assert_error(ctx, MC_ERR_DTYPE, "position bias", "table", "i32");
    assert_null(BIAS(F(8), .length = 3));
    assert_error(ctx, MC_ERR_SHAPE, "position bias", "(8)", "(buckets, heads)");
    assert_null(BIAS(F(1, 2), .length = 3));
    assert_error(ctx, MC_ERR_SHAPE, "position bias", "(1, 2)", "2 buckets");
    assert_null(BIAS(F(2, 2), .length = 3, .bidirectional = true));
    assert_error(ctx, MC_ERR_SHAPE, "position bias", "(2, 2)", "4 buckets");
    assert_null(BIAS(F(7, 2), .length = 3, .bidirectional = true));
    assert_error(ctx, MC_ERR_SHAPE, "position bias", "(7, 2)", "even");
    assert_null(BIAS(F(8, 2), .length = 3, .max_distance = 4));
    assert_error(ctx, MC_ERR_ARGUMENT, "position bias", "max_distance 4", "more than 4");
    mc_tape_end(t);
}

static void test_rotary_errors(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    assert_null(ROTARY(NULL, .heads = 1, .head_dim = 2, .positions = I(3)));
    assert_error(ctx, MC_ERR_ARGUMENT, "rotary", "NULL");
    assert_null(mc_rotary(t, F(3, 4), NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "rotary", "options are NULL");
    assert_null(ROTARY(I(3, 4), .heads = 1, .head_dim = 2, .positions = I(3)));
    assert_error(ctx, MC_ERR_DTYPE, "rotary", "i32");
    assert_null(ROTARY(F(3, 4), .heads = 0, .head_dim = 2, .positions = I(3)));
    assert_error(ctx, MC_ERR_SHAPE, "rotary", "(3, 4)", "0 heads");
    assert_null(ROTARY(F(3, 4), .heads = 3, .head_dim = 2, .positions = I(3)));
    assert_error(ctx, MC_ERR_SHAPE, "rotary", "(3, 4)", "3 heads * 2");
    assert_null(ROTARY(F(3, 4), .heads = 1, .head_dim = 4, .rotary_dim = 3, .positions = I(3)));
    assert_error(ctx, MC_ERR_ARGUMENT, "rotary_dim 3", "even", "4");
    assert_null(ROTARY(F(3, 4), .heads = 2, .head_dim = 2, .rotary_dim = 4, .positions = I(3)));
    assert_error(ctx, MC_ERR_ARGUMENT, "rotary_dim 4", "head_dim 2");
    assert_null(ROTARY(F(3, 4), .heads = 1, .head_dim = 4, .base = -1, .positions = I(3)));
    assert_error(ctx, MC_ERR_ARGUMENT, "base -1", "positive");
    assert_null(ROTARY(F(3, 4), .heads = 1, .head_dim = 4, .positions = I(3),
                       .scaling = {.type = MC_ROTARY_LINEAR}));
    assert_error(ctx, MC_ERR_ARGUMENT, "rotary", "factor 0", "above 0");
    assert_null(ROTARY(
        F(3, 4), .heads = 1, .head_dim = 4, .positions = I(3),
        .scaling = {.type = MC_ROTARY_LLAMA3, .factor = 2, .low = 4, .high = 4, .original = 8}));
    assert_error(ctx, MC_ERR_ARGUMENT, "low 4, high 4", "low < high");
    assert_null(ROTARY(F(3, 4), .heads = 1, .head_dim = 4, .positions = I(3),
                       .scaling = {.type = (mc_rotary_type)9}));
    assert_error(ctx, MC_ERR_ARGUMENT, "type 9");
    assert_null(ROTARY(F(3, 4), .heads = 1, .head_dim = 4));
    assert_error(ctx, MC_ERR_ARGUMENT, "rotary", "NULL");
    assert_null(ROTARY(F(3, 4), .heads = 1, .head_dim = 4, .positions = F(3)));
    assert_error(ctx, MC_ERR_DTYPE, "positions", "f32", "i32");
    assert_null(ROTARY(F(3, 4), .heads = 1, .head_dim = 4, .positions = I(4)));
    assert_error(ctx, MC_ERR_SHAPE, "positions (4)", "(3, 4)", "each of its rows");
    mc_tape_end(t);
}

static void test_attention_errors(void **state)
{
    mc_context *ctx = *state;
    static const int32_t lengths[] = {3, 1};
    mc_tape *t = mc_tape_begin(ctx);
    const mc_lengths *l = mc_tape_lengths(t, lengths, 2, 1);
    mc_tensor *qkv = mc_with_lengths(t, F(4, 12), l), *q = mc_with_lengths(t, F(4, 4), l);
    mc_tensor *kv = mc_with_lengths(t, F(4, 8), l);
#define SDPA(...) mc_sdpa(t, qkv, &(mc_sdpa_options){.heads = 2, __VA_ARGS__})
    assert_null(SDPA(.position_bias = F(2, 3)));
    assert_error(ctx, MC_ERR_SHAPE, "attention", "position bias (2, 3)", "(2, 2 * L - 1)", "3");
    assert_null(SDPA(.position_bias = F(2, 6)));
    assert_error(ctx, MC_ERR_SHAPE, "attention", "position bias (2, 6)", "2 * L - 1");
    assert_null(SDPA(.position_bias = F(3, 5)));
    assert_error(ctx, MC_ERR_SHAPE, "attention", "position bias (3, 5)");
    assert_null(SDPA(.position_bias = F(2, 5, 1)));
    assert_error(ctx, MC_ERR_SHAPE, "attention", "position bias (2, 5, 1)");
    assert_null(SDPA(.position_bias = I(2, 5)));
    assert_error(ctx, MC_ERR_DTYPE, "attention", "position bias", "i32", "f32");
    assert_null(SDPA(.position_bias = F(2, 5), .bias = F(2, 3, 3)));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "(2, 3, 3)", "(2, 5)", "one of them");
    assert_null(SDPA(.marks = I(4), .causal = true));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "marks (4)", "causal");
    assert_null(SDPA(.marks = F(4)));
    assert_error(ctx, MC_ERR_DTYPE, "attention", "marks", "f32", "i32");
    assert_null(SDPA(.marks = I(3)));
    assert_error(ctx, MC_ERR_SHAPE, "attention", "marks (3)", "4 tokens");
    assert_null(mc_sdpa_cross(t, q, kv, &(mc_sdpa_options){.heads = 2, .marks = I(4)}));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "marks (4)", "cross");
    assert_null(mc_sdpa_probabilities(t, qkv, NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "NULL", "heads");
    assert_null(mc_sdpa_probabilities(t, F(4, 12), NULL, &(mc_sdpa_options){.heads = 2}));
    assert_error(ctx, MC_ERR_ARGUMENT, "attention", "(4, 12)", "lengths");
    mc_tape_end(t);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct {
    long count, fail_at;
    void *(*alloc)(mc_device *d, size_t bytes);
} faults;

static void *failing_alloc(mc_device *d, size_t bytes)
{
    return ++faults.count == faults.fail_at ? NULL : faults.alloc(d, bytes);
}

/* Everything here once, forward and backward. */
static void run_all(mc_context *ctx)
{
    static const int32_t lengths[] = {4, 2};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *table = input(t, MC_SHAPE(8, HEADS), 1, true);
    mc_tensor *x = mc_scale(t, input(t, MC_SHAPE(ROWS, COLUMNS), 2, true), 1);
    mc_tensor *qkv = mc_with_lengths(t, x ? rotate(t, x) : x, mc_tape_lengths(t, lengths, 2, 1));
    mc_sdpa_options o = {.heads = HEADS, .marks = positions_of(t)};
    o.position_bias = BIAS(table, .length = 4, .max_distance = 9);
    mc_tensor *y = mc_sdpa(t, qkv, &o);
    mc_sdpa_probabilities(t, qkv, NULL, &o);
    mc_tape_backward(t, y, input(t, MC_SHAPE(ROWS, WIDTH), 4, false));
    mc_tape_end(t);
}

/* The planning device goes the same way: it counts the same peak, down to the kernels' scratch. */
static void test_planned(void **state)
{
    mc_context *ctx = *state, *dry = mc_plan_context_new(ctx);
    run_all(dry);
    assert_good(dry);
    uint64_t planned = mc_memory(dry).peak;
    mc_context_free(dry);
    run_all(ctx);
    assert_good(ctx);
    assert_int_equal(planned, mc_memory(ctx).peak);
}

static void test_memory_that_runs_out(void **state)
{
    mc_context *ctx = *state;
    run_all(ctx);
    assert_good(ctx);
    size_t in_use = ctx->device->memory.in_use;
    faults.alloc = ctx->device->alloc;
    ctx->device->alloc = failing_alloc;
    long nth = 0;
    do {
        faults.count = 0;
        faults.fail_at = ++nth;
        run_all(ctx);
        if (nth <= faults.count) assert_int_equal(mc_error_status(ctx), MC_ERR_NOMEM);
        mc_clear_error(ctx);
        assert_int_equal(ctx->device->memory.in_use, in_use);
    } while (nth <= faults.count);
    assert_true(nth > 10);
    ctx->device->alloc = faults.alloc;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_buckets),
        TEST(test_scaling),
        TEST(test_taken),
        TEST(test_left_alone),
        TEST(test_recompute),
        TEST(test_shared_gradient),
        TEST(test_bias_errors),
        TEST(test_rotary_errors),
        TEST(test_attention_errors),
        TEST(test_memory_that_runs_out),
        TEST(test_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
