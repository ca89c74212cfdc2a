/* Training in 8 bits: a linear against a reference in double, which layers take part, updates of
 * scales, recompute, resuming, and what is noticed. */
#include "core/nn/adapter_internal.h"
#include "core/nn/fp8_internal.h"
#include "core/ops/general.h"
#include "core/checkpoint/optim_state.h"
#include "core/nn/stored.h"
#include "tests/device/fp8_test.h"
#include "tests/models/gpt2_test.h"
#include "tests/models/one_linear.h"

enum { ROWS = 24, IN = 32, OUT = 48, COUNT_W = OUT * IN };

/* ---- a linear in a block --------------------------------------------------------------------- */

/* A root with one linear of scale 0.5, and numbers that are exact in bf16. */
typedef struct linear_test {
    mc_module *root;
    mc_block_list *list;
    mc_parameter *weight, *bias;
    float x[ROWS * IN], w[COUNT_W], b[OUT], dy[ROWS * OUT];
} linear_test;

static float short_noise(uint64_t *state, float size)
{
    return (float)nearest(MC_BF16, (double)(size * noise(state)));
}

static linear_test *linear_test_new(mc_context *ctx, mc_dtype dtype, const mc_recipe *recipe)
{
    static linear_test l;
    uint64_t state = 5;
    l.root = new_root(ctx, dtype);
    l.list = one_linear_new(l.root, IN, OUT);
    assert_good(ctx);
    assert_int_equal(mc_module_set_recipe(l.root, recipe), MC_OK);
    l.weight = mc_module_find_parameter(l.root, "blocks.0.w.weight");
    l.bias = mc_module_find_parameter(l.root, "blocks.0.w.bias");
    assert_non_null(l.weight);
    assert_non_null(l.bias);
    for (int i = 0; i < ROWS * IN; i++) l.x[i] = short_noise(&state, i % 11 ? 1 : 9);
    for (int i = 0; i < COUNT_W; i++) l.w[i] = short_noise(&state, 0.3f);
    for (int i = 0; i < OUT; i++) l.b[i] = short_noise(&state, 1);
    for (int i = 0; i < ROWS * OUT; i++) l.dy[i] = short_noise(&state, i % 7 ? 1e-5f : 3e-7f);
    mc_parameter_write(l.weight, l.w);
    mc_parameter_write(l.bias, l.b);
    assert_good(ctx);
    return &l;
}

/* What a pass computes, as it should be and as it was. */
typedef struct pass_result {
    double y[ROWS * OUT], dx[ROWS * IN], dw[COUNT_W], db[OUT];
} pass_result;

/* The scale of the largest magnitude. */
static double scale_of(mc_fp8_format format, double largest)
{
    return exp2(floor(log2((format == MC_FP8_E4M3 ? 448 : 57344) / largest)));
}

static double largest_of(const float *x, int count)
{
    double largest = 0;
    for (int i = 0; i < count; i++) largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* x as its bytes have it. */
static void cast_as(mc_fp8_format format, double scale, const float *x, int count, double *out)
{
    for (int i = 0; i < count; i++)
        out[i] = fp8_value(format, fp8_nearest(format, (double)x[i] * scale)) / scale;
}

static void expect(const linear_test *l, const double scale[MC_FP8_ROLES], pass_result *p)
{
    static double x[ROWS * IN], w[COUNT_W], dy[ROWS * OUT];
    cast_as(MC_FP8_E4M3, scale[MC_FP8_X], l->x, ROWS * IN, x);
    cast_as(MC_FP8_E4M3, scale[MC_FP8_WEIGHT], l->w, COUNT_W, w);
    cast_as(MC_FP8_E5M2, scale[MC_FP8_DY], l->dy, ROWS * OUT, dy);
    memset(p, 0, sizeof *p);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double sum = 0, g = dy[r * OUT + o];
            for (int i = 0; i < IN; i++) {
                sum += x[r * IN + i] * w[o * IN + i];
                p->dx[r * IN + i] += 0.5 * g * w[o * IN + i];
                p->dw[o * IN + i] += 0.5 * g * x[r * IN + i];
            }
            p->y[r * OUT + o] = 0.5 * sum + (double)l->b[o];
            p->db[o] += (double)l->dy[r * OUT + o]; /* not of bytes */
        }
}

/* Host numbers as a tensor of the tape. */
static mc_tensor *given(mc_tape *t, mc_dtype dtype, mc_shape shape, const float *values, bool leaf)
{
    static uint8_t bytes[ROWS * OUT * 4];
    for (int64_t i = 0; i < mc_shape_count(shape); i++)
        set_element(dtype, bytes, i, (double)values[i]);
    return mc_tape_input(t, dtype, shape, bytes, leaf);
}

static void run_pass(mc_context *ctx, linear_test *l, mc_dtype dtype, pass_result *p)
{
    static float out[COUNT_W + ROWS * OUT];
    mc_tape *t = mc_tape_begin(ctx);
    mc_module_zero_grad(l->root);
    mc_tensor *x = given(t, dtype, MC_SHAPE(ROWS, IN), l->x, true);
    mc_tensor *y = mc_block_list_forward(t, l->list, x, NULL);
    mc_tensor *dy = given(t, dtype, MC_SHAPE(ROWS, OUT), l->dy, false);
    mc_tensor_read_f32(ctx, y, out, ROWS * OUT);
    for (int i = 0; i < ROWS * OUT; i++) p->y[i] = (double)out[i];
    mc_tape_backward(t, y, dy);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), out, ROWS * IN);
    for (int i = 0; i < ROWS * IN; i++) p->dx[i] = (double)out[i];
    mc_parameter_read_gradient(l->weight, out);
    for (int i = 0; i < COUNT_W; i++) p->dw[i] = (double)out[i];
    mc_parameter_read_gradient(l->bias, out);
    for (int i = 0; i < OUT; i++) p->db[i] = (double)out[i];
    mc_tape_end(t);
    assert_good(ctx);
}

/* f32: sums of at most 48 products differ in their order; bf16: results are rounded, y twice,
 * before its bias and after it. */
static void compare(const double *got, const double *expected, int count, double tolerance,
                    const char *what)
{
    double largest = 0;
    for (int i = 0; i < count; i++) largest = fmax(largest, fabs(expected[i]));
    for (int i = 0; i < count; i++)
        if (!(fabs(got[i] - expected[i]) <= tolerance * largest))
            fail_msg("%s[%d]: got %.9g, expected %.9g", what, i, got[i], expected[i]);
}

static void check_pass(mc_context *ctx, linear_test *l, mc_dtype dtype,
                       const double scale[MC_FP8_ROLES])
{
    static pass_result expected, got;
    double tolerance = dtype == MC_F32 ? 1e-6 : 0x1p-8, sums = 1e-6;
    expect(l, scale, &expected);
    run_pass(ctx, l, dtype, &got);
    compare(got.y, expected.y, ROWS * OUT, 2 * tolerance, "y");
    compare(got.dx, expected.dx, ROWS * IN, tolerance, "dx");
    compare(got.dw, expected.dw, COUNT_W, sums, "dw");
    compare(got.db, expected.db, OUT, sums, "db");
}

static void own_scales(const linear_test *l, double scale[MC_FP8_ROLES])
{
    scale[MC_FP8_X] = scale_of(MC_FP8_E4M3, largest_of(l->x, ROWS * IN));
    scale[MC_FP8_WEIGHT] = scale_of(MC_FP8_E4M3, largest_of(l->w, COUNT_W));
    scale[MC_FP8_DY] = scale_of(MC_FP8_E5M2, largest_of(l->dy, ROWS * OUT));
}

/* The first update's scales are those of the tensors. After it delayed ones stay what they were,
 * also for tensors that have grown, whose large elements saturate; current ones follow. */
static void test_linear(void **state)
{
    mc_context *ctx = *state;
    for (int i = 0; i < 4; i++) {
        mc_dtype dtype = i & 1 ? MC_BF16 : MC_F32;
        mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = i & 2 ? MC_FP8_CURRENT : MC_FP8_DELAYED};
        linear_test *l = linear_test_new(ctx, dtype, &recipe);
        double scale[MC_FP8_ROLES];
        assert_int_equal(mc_module_fp8_linears(l->root), 1);
        own_scales(l, scale);
        check_pass(ctx, l, dtype, scale);
        assert_int_equal(mc_fp8_advance_scales(l->root->root, NULL), MC_OK);
        check_pass(ctx, l, dtype, scale);
        for (int k = 0; k < ROWS * IN; k++) l->x[k] *= 4;
        for (int k = 0; k < COUNT_W; k++) l->w[k] *= 2;
        for (int k = 0; k < ROWS * OUT; k++) l->dy[k] *= 8;
        mc_parameter_write(l->weight, l->w);
        if (recipe.scaling == MC_FP8_CURRENT) own_scales(l, scale);
        check_pass(ctx, l, dtype, scale);
        assert_int_equal(mc_fp8_advance_scales(l->root->root, NULL), MC_OK);
        own_scales(l, scale);
        mc_parameter_write(l->weight, l->w); /* as an update would: the weight is cast anew */
        check_pass(ctx, l, dtype, scale);
        mc_module_free(l->root);
    }
}

/* ---- two linears with an activation between them --------------------------------------------- */

typedef struct two_linears {
    mc_module block;
    mc_parameter *weight[2], *bias[2];
} two_linears;

static bool linears_apart, linears_gated;

static void *new_pair(mc_module *parent, const char *name, int index, void *config)
{
    static const char *const names[] = {"in.weight", "in.bias", "out.weight", "out.bias"};
    const int64_t shapes[][2] = {{linears_gated ? 2 * OUT : OUT, IN}, {IN, OUT}};
    two_linears *b = mc_module_add(parent, name, sizeof *b);
    (void)index;
    (void)config;
    for (int i = 0; b && i < 2; i++) {
        b->weight[i] = mc_parameter_new(
            &b->block, names[2 * i], MC_SHAPE(shapes[i][0], shapes[i][1]), mc_init_normal(0, 0.3f));
        b->bias[i] = mc_parameter_new(&b->block, names[2 * i + 1], MC_SHAPE(shapes[i][0]),
                                      mc_init_normal(0, 0.3f));
        mc_weight_declare(b->weight[i], 1);
    }
    return b;
}

/* `linears_apart`: the activation or gate is computed, and read by more than the second linear. */
static mc_tensor *run_pair(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    two_linears *b = block;
    const mc_activation kind = MC_ACTIVATION_GELU_NEW;
    mc_tensor *h;
    (void)call;
    if (!linears_apart)
        h = mc_weight_product_for(t, x, b->weight[0], b->bias[0], kind, linears_gated,
                                  b->weight[1]);
    else if (linears_gated)
        h = mc_gated(t, mc_weight_product(t, x, b->weight[0], b->bias[0], MC_ACTIVATION_NONE),
                     kind);
    else
        h = mc_weight_product(t, x, b->weight[0], b->bias[0], kind);
    assert_int_equal(!linears_apart, h && h->pre);
    mc_tensor *y = mc_weight_product(t, h, b->weight[1], b->bias[1], MC_ACTIVATION_NONE);
    return linears_apart ? mc_add(t, y, mc_slice(t, mc_scale(t, h, 0), 1, 0, IN)) : y;
}

typedef struct pair_result {
    float y[ROWS * IN], dx[ROWS * IN], dweight[2][2 * COUNT_W], dbias[2][2 * OUT];
    mc_fp8_seen seen[2 * MC_FP8_ROLES];
} pair_result;

static void run_pair_pass(mc_context *ctx, mc_dtype dtype, mc_recompute recompute, bool apart,
                          mc_fp8_scaling scaling, pair_result *p)
{
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = scaling};
    float x[ROWS * IN], dy[ROWS * IN];
    uint64_t state = 11;
    linears_apart = apart;
    mc_module *root = new_root(ctx, dtype);
    mc_block_list *list = mc_block_list_new(root, "blocks", 1, new_pair, run_pair,
                                            &(mc_block_options){.recompute = recompute});
    assert_int_equal(mc_module_set_recipe(root, &recipe), MC_OK);
    for (int i = 0; i < ROWS * IN; i++) x[i] = short_noise(&state, 1);
    for (int i = 0; i < ROWS * IN; i++) dy[i] = short_noise(&state, 1e-4f);
    for (int pass = 0; pass < 2; pass++) { /* with scales of tensors, and of an update */
        mc_module_zero_grad(root);
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *in = given(t, dtype, MC_SHAPE(ROWS, IN), x, true);
        mc_tensor *y = mc_block_list_forward(t, list, in, NULL);
        mc_tensor_read_f32(ctx, y, p->y, ROWS * IN);
        mc_tape_backward(t, y, given(t, dtype, MC_SHAPE(ROWS, IN), dy, false));
        mc_tensor_read_f32(ctx, mc_tensor_gradient(in), p->dx, ROWS * IN);
        mc_tape_end(t);
        assert_good(ctx);
        memcpy(p->seen, root->root->fp8->seen, sizeof p->seen);
        mc_fp8_advance_scales(root->root, NULL);
    }
    memset(p->dweight, 0, sizeof p->dweight);
    memset(p->dbias, 0, sizeof p->dbias);
    const char *const names[] = {"in.weight", "out.weight", "in.bias", "out.bias"};
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "blocks.0.%s", names[i]);
        mc_parameter_read_gradient(mc_module_find_parameter(root, name),
                                   i < 2 ? p->dweight[i] : p->dbias[i - 2]);
    }
    assert_good(ctx);
    mc_module_free(root);
}

/* The casts that compute an activation or a gate, or its slope, see and give what casts of its
 * results do: to the bit, but for the order of the sums of a bias. */
static void check_fused_pair(mc_context *ctx, bool gated)
{
    static pair_result fused, apart;
    linears_gated = gated;
    for (int i = 0; i < 12; i++) {
        mc_dtype dtype = i & 1 ? MC_BF16 : MC_F32;
        mc_recompute recompute = (mc_recompute)((int)MC_RECOMPUTE_NONE + i / 2 % 3);
        mc_fp8_scaling scaling = i < 6 ? MC_FP8_DELAYED : MC_FP8_CURRENT;
        run_pair_pass(ctx, dtype, recompute, false, scaling, &fused);
        run_pair_pass(ctx, dtype, recompute, true, scaling, &apart);
        assert_memory_equal(fused.y, apart.y, sizeof fused.y);
        assert_memory_equal(fused.dx, apart.dx, sizeof fused.dx);
        assert_memory_equal(fused.dweight, apart.dweight, sizeof fused.dweight);
        assert_memory_equal(fused.seen, apart.seen, sizeof fused.seen);
        for (int k = 0; k < 4 * OUT; k++)
            assert_near((double)fused.dbias[k / (2 * OUT)][k % (2 * OUT)],
                        (double)apart.dbias[k / (2 * OUT)][k % (2 * OUT)], 1e-7);
    }
    linears_gated = false;
}

static void test_fused_pair(void **state) { check_fused_pair(*state, false); }
static void test_gated_pair(void **state) { check_fused_pair(*state, true); }

/* ---- two linears with fixed scales ----------------------------------------------------------- */

static bool writes_bytes; /* the first product writes bytes for the second one */

static mc_tensor *run_fixed_pair(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    two_linears *b = block;
    (void)call;
    mc_tensor *h = mc_weight_product_for(t, x, b->weight[0], b->bias[0], MC_ACTIVATION_GELU, false,
                                         b->weight[1]);
    assert_int_equal(writes_bytes, h && h->bytes);
    mc_tensor *y = mc_weight_product(t, h, b->weight[1], b->bias[1], MC_ACTIVATION_NONE);
    mc_tape_release(t, h);
    return y;
}

/* y = x W^T + b of bytes, in double: x (ROWS, in), w (out, in). */
static void multiply_bytes(const double *x, const float *w, const float *b, int out, int in,
                           double *y)
{
    static double w8[COUNT_W];
    cast_as(MC_FP8_E4M3, scale_of(MC_FP8_E4M3, largest_of(w, COUNT_W)), w, COUNT_W, w8);
    for (int i = 0; i < ROWS * out; i++) {
        y[i] = (double)b[i % out];
        for (int k = 0; k < in; k++) y[i] += x[i / out * in + k] * w8[i % out * in + k];
    }
}

/* What two linears with GELU should give: exact before scales are fixed, then tanh's form. */
static void expect_pair(mc_module *root, const float *x, bool fixed, double *y)
{
    static float w[2][COUNT_W], b[2][OUT], h[ROWS * OUT];
    static double x8[ROWS * OUT], u[ROWS * OUT];
    const char *const names[] = {"in.weight", "in.bias", "out.weight", "out.bias"};
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "blocks.0.%s", names[i]);
        mc_parameter_read(mc_module_find_parameter(root, name), i % 2 ? b[i / 2] : w[i / 2]);
    }
    cast_as(MC_FP8_E4M3, scale_of(MC_FP8_E4M3, largest_of(x, ROWS * IN)), x, ROWS * IN, x8);
    multiply_bytes(x8, w[0], b[0], OUT, IN, u);
    for (int i = 0; i < ROWS * OUT; i++)
        h[i] = (float)fp8_activated(fixed ? MC_ACTIVATION_GELU_NEW : MC_ACTIVATION_GELU, u[i]);
    cast_as(MC_FP8_E4M3, scale_of(MC_FP8_E4M3, largest_of(h, ROWS * OUT)), h, ROWS * OUT, x8);
    multiply_bytes(x8, w[1], b[1], IN, OUT, y);
}

/* Once scales are fixed the first product applies GELU, in tanh's form, and writes the bytes that
 * the second reads. */
static void test_fixed_pair(void **state)
{
    mc_context *ctx = *state;
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    static double y[2][ROWS * IN], expected[2][ROWS * IN];
    float x[ROWS * IN], out[ROWS * IN];
    uint64_t seed = 11;
    mc_module *root = new_root(ctx, MC_F32);
    mc_block_list *list =
        mc_block_list_new(root, "blocks", 1, new_pair, run_fixed_pair, &(mc_block_options){0});
    assert_int_equal(mc_module_set_recipe(root, &recipe), MC_OK);
    for (int i = 0; i < ROWS * IN; i++) x[i] = short_noise(&seed, 1);
    for (int fixed = 0; fixed < 2; fixed++) {
        writes_bytes = fixed;
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *in = given(t, MC_F32, MC_SHAPE(ROWS, IN), x, false);
        mc_tensor_read_f32(ctx, mc_block_list_forward(t, list, in, NULL), out, ROWS * IN);
        mc_tape_end(t);
        assert_good(ctx);
        for (int i = 0; i < ROWS * IN; i++) y[fixed][i] = (double)out[i];
        expect_pair(root, x, fixed, expected[fixed]);
        compare(y[fixed], expected[fixed], ROWS * IN, 2e-6, "y");
        if (!fixed) assert_int_equal(mc_module_calibrate_fp8(root), MC_OK);
    }
    assert_memory_not_equal(y[0], y[1], sizeof y[0]); /* two forms of GELU */
    mc_module_free(root);
}

/* ---- a feed-forward layer with fixed scales -------------------------------------------------- */

typedef struct feeding_block {
    mc_module block;
    mc_feed_forward *ffn;
} feeding_block;

static mc_feed_forward *feeding; /* of the only block */
static bool feeding_gated;

static void *new_feeding(mc_module *parent, const char *name, int index, void *config)
{
    feeding_block *b = mc_module_add(parent, name, sizeof *b);
    const mc_feed_forward_options options = {
        .activation = MC_ACTIVATION_GELU, .gated = feeding_gated, .init_std = 0.3f};
    (void)index;
    (void)config;
    if (b) feeding = b->ffn = mc_feed_forward_add(&b->block, "ffn", IN, OUT, &options);
    return b;
}

static mc_tensor *run_feeding(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    (void)call;
    return mc_feed_forward_forward(t, ((feeding_block *)block)->ffn, x);
}

static void evaluate(mc_context *ctx, mc_block_list *list, mc_dtype dtype, const float *x, float *y)
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *in = given(t, dtype, MC_SHAPE(ROWS, IN), x, false);
    mc_tensor_read_f32(ctx, mc_block_list_forward(t, list, in, NULL), y, ROWS * IN);
    mc_tape_end(t);
}

/* Evaluation drops nothing: with dropout too, the first product of a feed-forward layer writes
 * bytes, from tanh's form of GELU. */
static void test_fixed_dropout(void **state)
{
    mc_context *ctx = *state;
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    float x[ROWS * IN], y[3][ROWS * IN]; /* y[0] calibrates */
    uint64_t seed = 11;
    mc_module *root = new_root(ctx, MC_F32);
    mc_block_list *list =
        mc_block_list_new(root, "blocks", 1, new_feeding, run_feeding, &(mc_block_options){0});
    assert_int_equal(mc_module_set_recipe(root, &recipe), MC_OK);
    for (int i = 0; i < ROWS * IN; i++) x[i] = short_noise(&seed, 1);
    for (int i = 0; i < 3; i++) {
        mc_feed_forward_set_dropout(feeding, i < 2 ? 0 : 0.5f);
        evaluate(ctx, list, MC_F32, x, y[i]);
        if (!i) assert_int_equal(mc_module_calibrate_fp8(root), MC_OK);
    }
    assert_good(ctx);
    assert_memory_not_equal(y[0], y[1], sizeof y[0]); /* two forms of GELU */
    assert_memory_equal(y[1], y[2], sizeof y[1]);
    mc_module_free(root);
}

/* A gate with fixed scales is computed apart, before within the cast: to the bit the same with the
 * same scales. */
static void test_fixed_gate(void **state)
{
    mc_context *ctx = *state;
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    float x[ROWS * IN], y[2][ROWS * IN]; /* y[0] calibrates */
    uint64_t seed = 11;
    feeding_gated = true;
    mc_module *root = new_root(ctx, MC_BF16);
    mc_block_list *list =
        mc_block_list_new(root, "blocks", 1, new_feeding, run_feeding, &(mc_block_options){0});
    feeding_gated = false;
    assert_int_equal(mc_module_set_recipe(root, &recipe), MC_OK);
    for (int i = 0; i < ROWS * IN; i++) x[i] = short_noise(&seed, 1);
    for (int i = 0; i < 2; i++) {
        evaluate(ctx, list, MC_BF16, x, y[i]);
        if (!i) assert_int_equal(mc_module_calibrate_fp8(root), MC_OK);
    }
    assert_good(ctx);
    assert_true(y[0][0] != 0);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    mc_module_free(root);
}

/* A weight is cast once, however many passes there are, until its values change. */
static void test_weight_once(void **state)
{
    mc_context *ctx = *state;
    linear_test *l = linear_test_new(ctx, MC_F32, &(mc_recipe){.fp8 = MC_FP8_ALL});
    static pass_result p;
    mc_fp8_seen *seen = l->root->root->fp8->seen;
    for (int i = 0; i < 3; i++) run_pass(ctx, l, MC_F32, &p);
    assert_int_equal(seen[MC_FP8_WEIGHT].elements, COUNT_W);
    assert_int_equal(seen[MC_FP8_X].elements, 3 * ROWS * IN);
    assert_int_equal(seen[MC_FP8_DY].elements, 3 * ROWS * OUT);
    mc_parameter_write(l->weight, l->w);
    run_pass(ctx, l, MC_F32, &p);
    assert_int_equal(seen[MC_FP8_WEIGHT].elements, 2 * COUNT_W);
    mc_module_free(l->root);
}

/* ---- inference ------------------------------------------------------------------------------- */

static void check_eval(mc_context *ctx, const linear_test *l, mc_dtype dtype,
                       const double scale[MC_FP8_ROLES])
{
    static pass_result expected;
    static float out[ROWS * OUT];
    static double y[ROWS * OUT];
    expect(l, scale, &expected);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = given(t, dtype, MC_SHAPE(ROWS, IN), l->x, false);
    mc_tensor_read_f32(ctx, mc_block_list_forward(t, l->list, x, NULL), out, ROWS * OUT);
    mc_tape_end(t);
    assert_good(ctx);
    for (int i = 0; i < ROWS * OUT; i++) y[i] = (double)out[i];
    compare(y, expected.y, ROWS * OUT, dtype == MC_F32 ? 2e-6 : 0x1p-7, "y");
}

/* Evaluation tapes multiply in 8 bits: first each tensor has the scale of its own, then the one
 * that was fixed, also for input that has grown and for a weight that was larger. Tapes that train
 * do not take part. */
static void test_static(void **state)
{
    mc_context *ctx = *state;
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    for (int i = 0; i < 2; i++) {
        mc_dtype dtype = i ? MC_BF16 : MC_F32;
        static pass_result p;
        double scale[MC_FP8_ROLES];
        linear_test *l = linear_test_new(ctx, dtype, &recipe);
        const mc_fp8_seen *seen = l->root->root->fp8->seen;
        own_scales(l, scale);
        check_eval(ctx, l, dtype, scale);
        for (int k = 0; k < ROWS * IN; k++) l->x[k] /= 4;
        for (int k = 0; k < COUNT_W; k++) l->w[k] /= 8;
        mc_parameter_write(l->weight, l->w);
        scale[MC_FP8_X] *= 4;
        scale[MC_FP8_WEIGHT] *= 8;
        check_eval(ctx, l, dtype, scale);
        run_pass(ctx, l, dtype, &p);
        assert_int_equal(seen[MC_FP8_X].elements, 2 * ROWS * IN);
        assert_int_equal(seen[MC_FP8_DY].elements, 0);
        assert_int_equal(mc_module_calibrate_fp8(l->root), MC_OK);
        scale[MC_FP8_X] /= 4; /* of the largest input and weight */
        scale[MC_FP8_WEIGHT] /= 8;
        check_eval(ctx, l, dtype, scale);
        for (int k = 0; k < ROWS * IN; k++) l->x[k] *= 16;
        check_eval(ctx, l, dtype, scale);
        assert_int_equal(seen[MC_FP8_X].elements, 0); /* nobody asks any more */
        mc_module_free(l->root);
    }
}

/* ---- recorded passes ------------------------------------------------------------------------- */

/* A CPU that records: it runs what it records, and replays nothing. */
static void no_step(mc_device *d) { (void)d; }

static bool begin_recording(mc_device *d) { return d->recording = true; }

static void *end_recording(mc_device *d)
{
    d->recording = false;
    return d;
}

static mc_status replay_nothing(mc_device *d, void *recording)
{
    (void)d, (void)recording;
    return MC_OK;
}

static void free_nothing(mc_device *d, void *recording) { (void)d, (void)recording; }

typedef struct counted_pass {
    linear_test *l;
    int calls;
} counted_pass;

static void run_counted(mc_context *ctx, void *user)
{
    counted_pass *p = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = given(t, MC_F32, MC_SHAPE(ROWS, IN), p->l->x, false);
    mc_block_list_forward(t, p->l->list, x, NULL);
    mc_tape_end(t);
    p->calls++;
}

static void run_three_times(mc_context *ctx, counted_pass *p)
{
    p->calls = 0;
    for (int i = 0; i < 3; i++) assert_int_equal(mc_step_run(ctx, 1, run_counted, p), MC_OK);
}

/* A recording has the addresses of scales and bytes, so it ends with the recipe. */
static void test_recordings_end(void **state)
{
    mc_context *ctx = *state;
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    mc_device *d = ctx->device, real = *d;
    d->step_begin = d->step_end = no_step;
    d->record_begin = begin_recording;
    d->record_end = end_recording;
    d->replay = replay_nothing;
    d->recording_free = free_nothing;
    counted_pass p = {linear_test_new(ctx, MC_F32, &recipe)};
    run_three_times(ctx, &p);
    assert_int_equal(p.calls, 2); /* one runs, one records */
    run_three_times(ctx, &p);
    assert_int_equal(p.calls, 0);
    const mc_recipe *const next[] = {&recipe, NULL, &recipe};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mc_module_set_recipe(p.l->root, next[i]), MC_OK);
        run_three_times(ctx, &p);
        assert_int_equal(p.calls, 2);
    }
    assert_int_equal(mc_module_calibrate_fp8(p.l->root), MC_OK);
    run_three_times(ctx, &p);
    assert_int_equal(p.calls, 2);
    mc_step_forget_user(ctx, &p);
    mc_module_free(p.l->root);
    d->step_begin = real.step_begin;
    d->step_end = real.step_end;
    d->record_begin = real.record_begin;
    d->record_end = real.record_end;
    d->replay = real.replay;
    d->recording_free = real.recording_free;
}

static void test_static_errors(void **state)
{
    mc_context *ctx = *state;
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    linear_test *l = linear_test_new(ctx, MC_F32, &(mc_recipe){.fp8 = MC_FP8_ALL});
    double scale[MC_FP8_ROLES];
    mc_module_calibrate_fp8(l->root);
    assert_error(ctx, MC_ERR_STATE, "has no recipe with MC_FP8_STATIC");
    assert_int_equal(mc_module_set_recipe(l->root, &recipe), MC_OK);
    mc_module_calibrate_fp8(l->root);
    assert_error(ctx, MC_ERR_STATE, "no pass on an evaluation tape has used \"blocks.0.w.weight\"");
    own_scales(l, scale);
    check_eval(ctx, l, MC_F32, scale);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_block_list_forward(t, l->list, given(t, MC_F32, MC_SHAPE(ROWS, IN), l->x, false), NULL);
    mc_module_calibrate_fp8(l->root);
    assert_error(ctx, MC_ERR_STATE, "a tape is open that uses the model");
    mc_tape_end(t);
    assert_int_equal(mc_module_calibrate_fp8(l->root), MC_OK);
    mc_module_calibrate_fp8(l->root);
    assert_error(ctx, MC_ERR_STATE, "is calibrated already");
    mc_parameter_write(l->weight, l->w);
    t = mc_tape_begin_eval(ctx);
    mc_block_list_forward(t, l->list, given(t, MC_F32, MC_SHAPE(ROWS, IN), l->x, false), NULL);
    assert_error(ctx, MC_ERR_STATE, "have changed since its scales were fixed");
    mc_tape_end(t);
    assert_int_equal(mc_module_set_recipe(l->root, &recipe), MC_OK);
    check_eval(ctx, l, MC_F32, scale);
    assert_int_equal(mc_module_calibrate_fp8(NULL), MC_ERR_ARGUMENT);
    mc_module_free(l->root);
}

/* A layer with fixed scales whose input was observed once. */
static linear_test *observed_new(mc_context *ctx, double scale[MC_FP8_ROLES])
{
    const mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC};
    linear_test *l = linear_test_new(ctx, MC_F32, &recipe);
    own_scales(l, scale);
    check_eval(ctx, l, MC_F32, scale);
    return l;
}

static void *failing_alloc(mc_device *d, size_t bytes)
{
    (void)d, (void)bytes;
    return NULL;
}

/* Without memory nothing changes: passes scale each tensor by itself as before, and what they have
 * observed counts when it is tried again. */
static void test_static_without_memory(void **state)
{
    mc_context *ctx = *state;
    double scale[MC_FP8_ROLES];
    linear_test *l = observed_new(ctx, scale);
    void *(*device_alloc)(mc_device * d, size_t bytes) = ctx->device->alloc;
    ctx->device->alloc = failing_alloc;
    mc_module_calibrate_fp8(l->root);
    ctx->device->alloc = device_alloc;
    assert_error(ctx, MC_ERR_NOMEM, "fp8");
    assert_int_equal(mc_module_calibrate_fp8(l->root), MC_OK);
    check_eval(ctx, l, MC_F32, scale);
    for (int k = 0; k < ROWS * IN; k++) l->x[k] *= 16;
    check_eval(ctx, l, MC_F32, scale);
    mc_module_free(l->root);
}

static mc_status failing_update(mc_device *d, const mc_fp8_update_call *call)
{
    (void)d, (void)call;
    return MC_ERR_DEVICE;
}

/* A kernel that fails is an error, and fixes nothing. */
static void test_static_device_fails(void **state)
{
    mc_context *ctx = *state;
    double scale[MC_FP8_ROLES];
    linear_test *l = observed_new(ctx, scale);
    const mc_kernels *kernels = ctx->device->kernels;
    mc_kernels failing = *kernels;
    failing.fp8_update = failing_update;
    ctx->device->kernels = &failing;
    assert_int_equal(mc_module_calibrate_fp8(l->root), MC_ERR_DEVICE);
    ctx->device->kernels = kernels;
    assert_error(ctx, MC_ERR_DEVICE, "computing the scales of fp8 of the model");
    for (int k = 0; k < ROWS * IN; k++) l->x[k] *= 16;
    own_scales(l, scale);
    check_eval(ctx, l, MC_F32, scale); /* still those of the tensors */
    mc_module_free(l->root);
}

/* ---- BERT with fixed scales ------------------------------------------------------------------ */

enum { BERT_TOKENS = 24, BERT_DIM = 64 };

static mc_model *new_bert(mc_context *ctx, mc_recipe recipe)
{
    mc_bert_config c = mc_bert_config_default();
    c.vocab_size = 40;
    c.dim = BERT_DIM;
    c.dim_ff = 4 * BERT_DIM;
    c.layers = 4;
    c.heads = 4;
    c.positions = BERT_TOKENS;
    c.init_std = c.ffn_std = 0.125f; /* pre-activations of GELU with a standard deviation of 1 */
    return mc_bert_new(ctx, &c, NULL, &(mc_load_options){.recipe = recipe});
}

static void run_bert(mc_context *ctx, mc_model *bert, float *hidden)
{
    int32_t ids[4 * BERT_TOKENS];
    uint64_t seed = 3;
    for (int i = 0; i < 4 * BERT_TOKENS; i++) ids[i] = (int32_t)(20 + 19.9f * noise(&seed));
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(4, BERT_TOKENS), ids, false)};
    mc_tensor_read_f32(ctx, mc_model_forward(t, bert, &in).last_hidden, hidden,
                       (int64_t)4 * BERT_TOKENS * BERT_DIM);
    mc_tape_end(t);
    assert_good(ctx);
}

static void copy_parameters(mc_model *from, mc_model *to);

/* All norms but the last write what the next product reads; the values are those of a cast. */
static void check_norms(mc_context *ctx, mc_model *bert, const float *expected)
{
    static float hidden[4 * BERT_TOKENS * BERT_DIM];
    const mc_module_root *root = mc_model_module(bert)->root;
    int writers = 0;
    for (size_t i = 0; i < root->stored_count; i++) {
        writers += root->stored[i]->fp8_reader > 0;
        root->stored[i]->fp8_reader = 0;
    }
    assert_int_equal(writers, 2 * 4); /* the embedding's too */
    run_bert(ctx, bert, hidden);
    assert_memory_equal(hidden, expected, sizeof hidden);
}

/* Outputs are as near to those of f32 with tanh's GELU (fixed scales) as with erf's (scales of the
 * tensors themselves, which are the same ones here). */
static void test_static_bert(void **state)
{
    enum { COUNT = 4 * BERT_TOKENS * BERT_DIM };
    mc_context *ctx = *state;
    static float plain[COUNT], eight[2][COUNT];
    double error[2] = {0}, size = 0;
    mc_model *reference = new_bert(ctx, (mc_recipe){0});
    mc_model *bert = new_bert(ctx, (mc_recipe){.fp8 = MC_FP8_ALL, .scaling = MC_FP8_STATIC});
    assert_good(ctx);
    copy_parameters(reference, bert);
    run_bert(ctx, reference, plain);
    run_bert(ctx, bert, eight[0]);
    assert_int_equal(mc_module_calibrate_fp8(mc_model_module(bert)), MC_OK);
    run_bert(ctx, bert, eight[1]);
    for (int i = 0; i < COUNT; i++) {
        size += (double)plain[i] * (double)plain[i];
        for (int k = 0; k < 2; k++) error[k] += pow((double)(eight[k][i] - plain[i]), 2);
    }
    printf("8 bits beside f32: %.5f with GELU, %.5f with tanh's form and fixed scales\n",
           sqrt(error[0] / size), sqrt(error[1] / size));
    assert_memory_not_equal(eight[0], eight[1], sizeof eight[0]);
    check_norms(ctx, bert, eight[1]);
    assert_true(error[0] > 0 && sqrt(error[0] / size) < 0.12);
    assert_true(sqrt(error[1]) < 1.02 * sqrt(error[0]));
    mc_model_free(bert);
    mc_model_free(reference);
}

/* ---- models ---------------------------------------------------------------------------------- */

enum { STEPS = 6, MOST_STEPS = 40 };

typedef struct fp8_run {
    mc_model *model;
    mc_optim_manager *optim;
    double loss[MOST_STEPS], norm[MOST_STEPS], saturated, vanished;
    int steps;
    int64_t nominal; /* rows that backward divides by (mc_step_plan); 0: those of the batch */
} fp8_run;

static fp8_run run_new(mc_context *ctx, mc_dtype dtype, mc_recompute recompute, mc_recipe recipe)
{
    mc_gpt2_config config = small_config();
    config.dim_ff = 48;
    config.dropout = config.embedding_dropout = config.attention_dropout = 0;
    fp8_run r = {.model = mc_gpt2_new(
                     ctx, &config, NULL,
                     &(mc_load_options){.dtype = dtype, .recompute = recompute, .recipe = recipe})};
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 3e-3f});
    mc_optimizer_add(adam, mc_model_module(r.model));
    r.optim = mc_optim_manager_new(ctx, NULL);
    mc_optim_manager_add(r.optim, adam, NULL);
    assert_good(ctx);
    return r;
}

static void run_steps(mc_context *ctx, fp8_run *r, int steps)
{
    for (int i = 0; i < steps; i++, r->steps++) {
        mc_step_report report;
        mc_optim_manager_zero_grad_plan(r->optim, &(mc_step_plan){.nominal_rows = r->nominal});
        mc_tape *t = mc_tape_begin(ctx);
        mc_optim_manager_backward(r->optim, t, batch_loss(t, r->model, PACKED));
        mc_tape_end(t);
        mc_optim_manager_step(r->optim);
        assert_good(ctx);
        r->loss[r->steps] = mc_optim_manager_mean_loss(r->optim);
        r->norm[r->steps] = mc_optim_manager_grad_norm(r->optim);
        assert_true(mc_optim_manager_report(r->optim, 0, &report));
        if (!(report.fp8_saturated <= r->saturated)) r->saturated = report.fp8_saturated;
        if (!(report.fp8_vanished <= r->vanished)) r->vanished = report.fp8_vanished;
    }
}

static void run_free(fp8_run *r)
{
    mc_optim_manager_free(r->optim);
    mc_model_free(r->model);
}

static const mc_recipe all = {.fp8 = MC_FP8_ALL};

/* Linear layers of blocks alone, whose sizes are multiples of 16: not the head, not positions. */
static void test_who_takes_part(void **state)
{
    mc_context *ctx = *state;
    fp8_run r = run_new(ctx, MC_F32, MC_RECOMPUTE_NONE, all);
    assert_int_equal(mc_module_fp8_linears(mc_model_module(r.model)), 4 * 3);
    run_free(&r);
    mc_gpt2_config config = small_config(); /* dim_ff is 40 */
    mc_model *part = mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.recipe = all});
    assert_int_equal(mc_module_fp8_linears(mc_model_module(part)), 2 * 3);
    mc_model_free(part);
    assert_int_equal(mc_module_fp8_linears(NULL), 0);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    mc_gpt2_config config = small_config();
    assert_null(
        mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.dtype = MC_F16, .recipe = all}));
    assert_error(ctx, MC_ERR_DTYPE, "fp8", "f16", "bf16");
    mc_recipe bad = {.fp8 = MC_FP8_ALL, .fp8_margin = 33};
    assert_null(mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.recipe = bad}));
    assert_error(ctx, MC_ERR_ARGUMENT, "fp8_margin", "33");
    mc_model *used = mc_gpt2_new(ctx, &config, NULL, NULL);
    mc_tape *t = mc_tape_begin(ctx);
    assert_non_null(batch_loss(t, used, PACKED));
    assert_int_equal(mc_module_set_recipe(mc_model_module(used), &all), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "fp8", "a tape is open");
    mc_tape_end(t);
    assert_int_equal(mc_module_set_recipe(mc_model_module(used), &all), MC_OK);
    mc_model_free(used);
    config.dim = 24;
    config.dim_ff = 40;
    assert_null(mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.recipe = all}));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "fp8: the model has no linear layer",
                 "multiples of 16: the first, \"", "\" and what is stored with it, is (72, 24)");
    mc_module *bare = mc_module_new(ctx, "bare", sizeof *bare, NULL);
    assert_int_equal(mc_module_set_recipe(bare, &all), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "fp8: model \"bare\" has no linear layer in a block");
    mc_module_free(bare);
}

/* What becomes faster is nothing, where no sizes are suitable: then there is no recipe. But kinds
 * that were chosen must exist. */
static void test_none_to_choose(void **state)
{
    mc_context *ctx = *state;
    mc_recipe recipe = {.fp8 = MC_FP8_AUTO};
    mc_gpt2_config config = small_config();
    config.dim_ff = 48;
    mc_model *model = mc_gpt2_new(ctx, &config, NULL, NULL);
    recipe.fp8_kinds = (uint64_t)1 << 60;
    assert_int_equal(mc_module_set_recipe(mc_model_module(model), &recipe), MC_ERR_UNSUPPORTED);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "fp8_kinds is 0x1000000000000000",
                 "none of the 3 kinds of layers of the model", "lowest 3 bits");
    assert_int_equal(mc_module_fp8_linears(mc_model_module(model)), 0);
    mc_model_free(model);
    config.dim = 24;
    config.dim_ff = 40;
    for (int i = 0; i < 2; i++) {
        recipe.fp8_kinds = i ? UINT64_MAX : 0;
        model = mc_gpt2_new(ctx, &config, NULL, &(mc_load_options){.recipe = recipe});
        assert_good(ctx);
        assert_int_equal(mc_module_fp8_linears(mc_model_module(model)), 0);
        mc_model_free(model);
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Kinds are shapes, in the order of their first layers; bits take them in. */
static void test_kinds(void **state)
{
    mc_context *ctx = *state;
    const mc_recipe recipe = {.fp8 = MC_FP8_AUTO};
    fp8_run r = run_new(ctx, MC_F32, MC_RECOMPUTE_NONE, recipe);
    mc_module *module = mc_model_module(r.model);
    mc_fp8_kind kinds[MC_FP8_KINDS];
    int count = mc_fp8_list_kinds(module->root, kinds), layers = 0;
    assert_int_equal(count, 3); /* q, k and v together have the shape of w_in */
    for (int i = 0; i < count; i++) layers += kinds[i].layers;
    assert_int_equal(layers, mc_module_fp8_linears(module));
    assert_string_equal(kinds[2].name, "ffn.ffn.w_out.weight");
    assert_int_equal(kinds[2].in, 48);
    mc_recipe two = {.fp8 = MC_FP8_AUTO, .fp8_kinds = 5};
    assert_int_equal(mc_module_set_recipe(module, &two), MC_OK);
    assert_int_equal(mc_module_fp8_linears(module), kinds[0].layers + kinds[2].layers);
    for (size_t i = 0; i < module->root->stored_count; i++) {
        int kind = mc_fp8_kind_of(kinds, count, module->root->stored[i]);
        assert_int_equal(module->root->stored[i]->fp8 > 0, kind == 0 || kind == 2);
    }
    run_steps(ctx, &r, 3);
    assert_true(r.loss[2] < r.loss[0]);
    run_free(&r);
}

/* On a device that multiplies bytes each kind is measured; those that are faster stay in. (The CPU
 * computes what such a device does, too.) */
static void test_choice(void **state)
{
    mc_context *ctx = *state;
    fp8_run r = run_new(ctx, MC_BF16, MC_RECOMPUTE_NONE, (mc_recipe){.fp8 = MC_FP8_AUTO});
    mc_module *module = mc_model_module(r.model);
    mc_fp8_kind kinds[MC_FP8_KINDS];
    int all_layers = mc_module_fp8_linears(module), chosen = 0;
    assert_int_equal(mc_module_choose_fp8(module, 40, 2, kinds), 0); /* it multiplies no bytes */
    assert_int_equal(mc_module_fp8_linears(module), all_layers);
    assert_int_equal(mc_module_choose_fp8(module, 0, 1, kinds), 0);
    assert_error(ctx, MC_ERR_ARGUMENT, "0 rows", "expected 1 or more");
    ctx->device->fp8_tn = true;
    assert_int_equal(mc_module_choose_fp8(module, 40, 2, kinds), 3);
    ctx->device->fp8_tn = false;
    assert_good(ctx);
    for (int i = 0; i < 3; i++) {
        assert_true(kinds[i].plain > 0 && kinds[i].fp8 > 0 && kinds[i].casts > 0);
        assert_int_equal(kinds[i].chosen, kinds[i].fp8 + kinds[i].casts < kinds[i].plain);
        if (kinds[i].chosen) chosen += kinds[i].layers;
    }
    assert_int_equal(mc_module_fp8_linears(module), chosen);
    run_free(&r);
}

/* A block that is run again casts with the scales of the first run, and is not counted twice. */
static void test_recompute(void **state)
{
    mc_context *ctx = *state;
    for (int scaling = 0; scaling < 2; scaling++) {
        fp8_run first = {0};
        mc_recipe recipe = {.fp8 = MC_FP8_ALL, .scaling = (mc_fp8_scaling)scaling};
        for (mc_recompute how = MC_RECOMPUTE_NONE; how <= MC_RECOMPUTE_FULL; how++) {
            fp8_run r = run_new(ctx, MC_BF16, how, recipe);
            run_steps(ctx, &r, STEPS);
            if (how == MC_RECOMPUTE_NONE) first = r;
            assert_memory_equal(r.loss, first.loss, sizeof r.loss);
            for (int i = 0; i < STEPS; i++) /* pairs of operations are fused otherwise */
                assert_near(r.norm[i], first.norm[i], 1e-5 * first.norm[i]);
            assert_true(r.saturated == first.saturated && r.vanished == first.vanished);
            run_free(&r);
        }
    }
}

/* An evaluation computes as the saved model does, and leaves the scales alone. */
static void test_evaluation(void **state)
{
    mc_context *ctx = *state;
    fp8_run r = run_new(ctx, MC_F32, MC_RECOMPUTE_NONE, all),
            plain = run_new(ctx, MC_F32, MC_RECOMPUTE_NONE, (mc_recipe){0});
    double loss[2];
    for (int i = 0; i < 2; i++) {
        mc_tape *t = mc_tape_begin_eval(ctx);
        loss[i] = mc_mean_loss(ctx, batch_loss(t, i ? plain.model : r.model, PACKED));
        mc_tape_end(t);
    }
    assert_true(loss[0] == loss[1]);
    const mc_fp8_state *f = mc_model_module(r.model)->root->fp8;
    for (int i = 0; i < f->count * MC_FP8_ROLES; i++) assert_int_equal(f->seen[i].elements, 0);
    run_free(&plain);
    run_free(&r);
}

static void copy_parameters(mc_model *from, mc_model *to)
{
    mc_module_root *a = mc_model_module(from)->root, *b = mc_model_module(to)->root;
    for (size_t i = 0; i < a->parameter_count; i++) {
        float *values = malloc((size_t)mc_shape_count(a->parameters[i]->shape) * sizeof *values);
        assert_non_null(values);
        assert_int_equal(mc_parameter_read(a->parameters[i], values), MC_OK);
        assert_int_equal(mc_parameter_write(b->parameters[i], values), MC_OK);
        free(values);
    }
}

static char warned[512];
static void keep_warning(void *user, mc_log_level level, const char *message)
{
    (void)user;
    if (level == MC_LOG_WARNING) snprintf(warned, sizeof warned, "%s", message);
}

/* State is loaded before the recipe is set: a warning, and current scales at first. */
static void check_late_recipe(mc_context *ctx, const char *path)
{
    fp8_run late = run_new(ctx, MC_BF16, MC_RECOMPUTE_NONE, (mc_recipe){.fp8 = MC_FP8_NONE});
    ctx->log = keep_warning;
    assert_int_equal(mc_optim_manager_load(late.optim, path), MC_OK);
    ctx->log = NULL;
    if (!strstr(warned, "scales of fp8 of 12 layers were not read") ||
        !strstr(warned, "set it before loading (mc_module_set_recipe)"))
        fail_msg("%s", warned);
    assert_int_equal(mc_module_set_recipe(mc_model_module(late.model), &all), MC_OK);
    assert_false(mc_model_module(late.model)->root->fp8->advanced);
    run_free(&late);
}

/* A run that goes on from saved state goes on to the bit: histories are a part of it. */
static void test_resume(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "state.safetensors");
    fp8_run r = run_new(ctx, MC_BF16, MC_RECOMPUTE_NONE, all);
    fp8_run again = run_new(ctx, MC_BF16, MC_RECOMPUTE_NONE, all);
    run_steps(ctx, &r, 3);
    assert_int_equal(mc_optim_manager_save(r.optim, path), MC_OK);
    copy_parameters(r.model, again.model);
    check_late_recipe(ctx, path);
    *warned = '\0';
    ctx->log = keep_warning;
    assert_int_equal(mc_optim_manager_load(again.optim, path), MC_OK);
    ctx->log = NULL;
    assert_string_equal(warned, "");
    run_steps(ctx, &r, 3);
    run_steps(ctx, &again, 3);
    assert_memory_equal(again.loss, r.loss + 3, 3 * sizeof *r.loss);
    assert_memory_equal(again.norm, r.norm + 3, 3 * sizeof *r.norm);
    run_free(&again);
    run_free(&r);
    temp_folder_free(&folder);
}

/* The largest part of a step's casts that may vanish. */
static const double FEW = 0.02;

static void save_and_load(fp8_run *from, fp8_run *to)
{
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "state.safetensors");
    assert_int_equal(mc_optim_manager_save(from->optim, path), MC_OK);
    copy_parameters(from->model, to->model);
    assert_int_equal(mc_optim_manager_load(to->optim, path), MC_OK);
    temp_folder_free(&folder);
}

/* Two runs in the same state take the same steps, to the bit. */
static void assert_same_steps(mc_context *ctx, fp8_run *a, fp8_run *b)
{
    int first[2] = {a->steps, b->steps};
    run_steps(ctx, a, 3);
    run_steps(ctx, b, 3);
    assert_memory_equal(a->loss + first[0], b->loss + first[1], 3 * sizeof *a->loss);
    assert_memory_equal(a->norm + first[0], b->norm + first[1], 3 * sizeof *a->norm);
}

/* State that is saved between the recipe and the first update with it has no scales yet. */
static void test_resume_before_update(void **state)
{
    mc_context *ctx = *state;
    fp8_run r = run_new(ctx, MC_BF16, MC_RECOMPUTE_NONE, (mc_recipe){.fp8 = MC_FP8_NONE});
    fp8_run again = run_new(ctx, MC_BF16, MC_RECOMPUTE_NONE, all);
    run_steps(ctx, &r, 2);
    assert_int_equal(mc_module_set_recipe(mc_model_module(r.model), &all), MC_OK);
    save_and_load(&r, &again);
    assert_same_steps(ctx, &r, &again);
    run_free(&again);
    run_free(&r);
}

/* Nothing is known of the gradients of a layer that was frozen: the first update after it is thawed
 * has current scales, also after a checkpoint in between. Gradients are small, as those of a step
 * of a million tokens are: with scales of 1 they would all vanish. */
static void test_thawed(void **state)
{
    mc_context *ctx = *state;
    fp8_run runs[2];
    for (int i = 0; i < 2; i++) {
        runs[i] = run_new(ctx, MC_F32, MC_RECOMPUTE_NONE, all);
        runs[i].nominal = 1 << 20;
        mc_module *module = mc_model_module(runs[i].model);
        mc_module_set_trainable(module, NULL, false);
        mc_module_set_trainable(module, "*layers.2*", true);
    }
    run_steps(ctx, &runs[0], 3);
    for (int i = 0; i < 2; i++) mc_module_set_trainable(mc_model_module(runs[i].model), NULL, true);
    save_and_load(&runs[0], &runs[1]);
    runs[0].vanished = 0;
    run_steps(ctx, &runs[0], 1);
    run_steps(ctx, &runs[1], 1);
    assert_true(runs[0].vanished < FEW);
    assert_true(runs[1].loss[0] == runs[0].loss[3] && runs[1].norm[0] == runs[0].norm[3]);
    assert_same_steps(ctx, &runs[0], &runs[1]);
    for (int i = 0; i < 2; i++) run_free(&runs[i]);
}

/* A layer that no pass has used for longer than the history keeps its scale. */
static void test_unused(void **state)
{
    (void)state;
    mc_fp8_scale s = {0};
    uint32_t tiny;
    memcpy(&tiny, &(float){0x1p-20f}, sizeof tiny);
    mc_fp8_advance(&s, MC_FP8_E5M2, tiny, 0);
    assert_true(s.scale == 0x1p35f);
    for (int i = 0; i <= MC_FP8_HISTORY; i++) mc_fp8_advance(&s, MC_FP8_E5M2, 0, 0);
    assert_true(s.scale == 0x1p35f && s.inverse == 0x1p-35f);
}

/* ---- what is noticed ------------------------------------------------------------------------- */

static int warnings;
static void count_warnings(void *user, mc_log_level level, const char *message)
{
    (void)user;
    if (level == MC_LOG_WARNING && strstr(message, "fp8")) warnings++;
}

/* How far two runs' mean losses of the last steps are apart, as a part of the second. */
static double apart(const fp8_run *a, const fp8_run *b)
{
    double sums[2] = {0};
    for (int i = MOST_STEPS / 2; i < MOST_STEPS; i++) {
        sums[0] += a->loss[i];
        sums[1] += b->loss[i];
    }
    return isfinite(sums[0]) ? fabs(sums[0] - sums[1]) / sums[1] : (double)INFINITY;
}

/* Training in 8 bits follows training in bf16. Scales that are far too large make it part from it,
 * and are reported. */
static void test_bad_scales(void **state)
{
    mc_context *ctx = *state;
    ctx->log = count_warnings;
    const int margins[] = {0, 0, -9, 24};
    fp8_run runs[4];
    for (int i = 0; i < 4; i++) {
        mc_recipe recipe = {.fp8 = i ? MC_FP8_ALL : MC_FP8_NONE, .fp8_margin = margins[i]};
        warnings = 0;
        runs[i] = run_new(ctx, MC_BF16, MC_RECOMPUTE_NONE, recipe);
        run_steps(ctx, &runs[i], MOST_STEPS);
        run_free(&runs[i]);
        printf("margin %d: loss %.4f, saturated %.3g, vanished %.3g, warnings %d\n", margins[i],
               runs[i].loss[MOST_STEPS - 1], runs[i].saturated, runs[i].vanished, warnings);
        assert_int_equal(warnings > 0, i >= 2);
    }
    assert_true(runs[0].loss[MOST_STEPS - 1] < 0.7 * runs[0].loss[0]);
    assert_true(isnan(runs[0].saturated) || runs[0].saturated == 0);
    assert_true(apart(&runs[1], &runs[0]) < 0.03);
    assert_true(runs[1].saturated < 0.01 && runs[1].vanished < 0.05);
    assert_true(apart(&runs[2], &runs[0]) > 0.1 && runs[2].saturated > 0.1);
    assert_true(apart(&runs[3], &runs[0]) > 0.1 && runs[3].vanished > 0.1);
    ctx->log = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_weight_once),
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_static_errors),
        cmocka_unit_test(test_who_takes_part),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_bad_scales),
        cmocka_unit_test(test_fused_pair),
        cmocka_unit_test(test_gated_pair),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_fixed_pair),
        cmocka_unit_test(test_fixed_dropout),
        cmocka_unit_test(test_fixed_gate),
        cmocka_unit_test(test_static_bert),
        cmocka_unit_test(test_none_to_choose),
        cmocka_unit_test(test_static_without_memory),
        cmocka_unit_test(test_static_device_fails),
        cmocka_unit_test(test_recordings_end),
        cmocka_unit_test(test_resume_before_update),
        cmocka_unit_test(test_thawed),
        cmocka_unit_test(test_unused),
    };
    return cmocka_run_group_tests(tests, set_up_context, tear_down_context);
}
