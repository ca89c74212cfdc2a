/* Operations of a program's own: values and gradients, inputs that are given twice, dtypes, what is
 * kept for backward, recompute in blocks, lengths, and failing functions. The functions use public
 * headers alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/ops/ops_internal.h"
#include "tests/optim/optim_test.h"

enum { N = 5 };
static const float x_values[N] = {1, -2, 0.5f, 3, -1}, dy_values[N] = {2, 1, -1, 0.5f, 4};

/* ---- y = a^2 b, in f32 ----------------------------------------------------------------------- */

typedef struct calls {
    int forward, backward;
    bool kept[3]; /* in backward: the inputs' contents, and the output's */
} calls;

static mc_status cube_forward(void *user, const mc_custom_call *call)
{
    const float *a = mc_tensor_data(call->inputs[0]), *b = mc_tensor_data(call->inputs[1]);
    float *y = mc_tensor_data(call->output);
    assert_int_equal(call->count, 2);
    assert_null(call->output_gradient);
    for (int64_t i = 0; i < mc_tensor_count(call->output); i++) y[i] = a[i] * a[i] * b[i];
    ((calls *)user)->forward++;
    return MC_OK;
}

static mc_status cube_backward(void *user, const mc_custom_call *call)
{
    calls *c = user;
    const float *a = mc_tensor_data(call->inputs[0]), *b = mc_tensor_data(call->inputs[1]);
    const float *dy = mc_tensor_data(call->output_gradient);
    float *da = mc_tensor_data(call->input_gradients[0]);
    float *db = mc_tensor_data(call->input_gradients[1]);
    c->backward++;
    c->kept[0] = a;
    c->kept[1] = b;
    c->kept[2] = mc_tensor_data(call->output);
    assert_int_equal(mc_tensor_dtype(call->output_gradient), MC_F32);
    for (int64_t i = 0; i < mc_tensor_count(call->output); i++) {
        if (da) da[i] += 2 * a[i] * b[i] * dy[i];
        if (db) db[i] = a[i] * a[i] * dy[i];
    }
    return MC_OK;
}

static const mc_custom_op_spec cube = {"cube", cube_forward, cube_backward};

static mc_tensor *input(mc_tape *t, bool gradient)
{
    return mc_tape_input(t, MC_F32, MC_SHAPE(N), x_values, gradient);
}

static mc_tensor *apply_cube(mc_tape *t, const mc_custom_op_spec *spec, calls *c, mc_tensor *a,
                             mc_tensor *b)
{
    return mc_custom_op(t, spec, c, 2, (mc_tensor *[]){a, b}, MC_F32, mc_tensor_shape(a));
}

/* The gradient of x is factor * x^power * dy. */
static void assert_gradient(mc_context *ctx, const mc_tensor *x, double factor, int power)
{
    float g[N];
    assert_good(ctx);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), g, N);
    for (int i = 0; i < N; i++)
        assert_near(g[i], factor * pow(x_values[i], power) * dy_values[i], 1e-5);
}

static void run_backward(mc_tape *t, mc_tensor *y)
{
    mc_tape_backward(t, y, mc_tape_input(t, MC_F32, MC_SHAPE(N), dy_values, false));
}

/* One tensor as both inputs, and used by another operation too: x^3 + x. */
static void test_twice(void **state)
{
    mc_context *ctx = *state;
    calls c = {0};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, true), *y = mc_add(t, apply_cube(t, &cube, &c, x, x), x);
    float values[N], g[N];
    mc_tensor_read_f32(ctx, y, values, N);
    run_backward(t, y);
    assert_good(ctx);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), g, N);
    for (int i = 0; i < N; i++) {
        double v = x_values[i];
        assert_near(values[i], v * v * v + v, 1e-5);
        assert_near(g[i], (3 * v * v + 1) * dy_values[i], 1e-5);
    }
    assert_int_equal(c.forward, 1);
    assert_int_equal(c.backward, 1);
    assert_true(c.kept[0] && c.kept[1] && c.kept[2]);
    mc_tape_end(t);
    assert_int_equal(ctx->device->memory.in_use, 0);
}

/* Only what is wanted: no gradient of b, and none of what nobody uses. */
static void test_constants(void **state)
{
    mc_context *ctx = *state;
    calls c = {0};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, true);
    run_backward(t, apply_cube(t, &cube, &c, x, input(t, false)));
    assert_gradient(ctx, x, 2, 2);
    mc_tensor *still = apply_cube(t, &cube, &c, input(t, false), input(t, false));
    run_backward(t, still); /* nothing is after it */
    assert_good(ctx);
    assert_int_equal(c.backward, 1);
    mc_tape_end(t);
    t = mc_tape_begin_eval(ctx);
    assert_non_null(apply_cube(t, &cube, &c, input(t, true), input(t, true)));
    mc_tape_end(t);
    assert_int_equal(c.forward, 3);
}

/* Without a backward function the result is a constant. */
static void test_no_gradient(void **state)
{
    mc_context *ctx = *state;
    calls c = {0};
    mc_custom_op_spec flat = {"flat", cube_forward, NULL};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, true), *y = apply_cube(t, &flat, &c, x, x);
    run_backward(t, mc_add(t, y, x));
    assert_gradient(ctx, x, 1, 0);
    mc_tape_end(t);
}

/* ---- parameters, blocks and recompute -------------------------------------------------------- */

typedef struct model {
    mc_module module;
    mc_block_list *blocks;
} model;

typedef struct block {
    mc_module module;
    mc_parameter *factor;
} block;

static calls block_calls;
static const mc_custom_op_spec *block_spec;

static void *block_new(mc_module *list, const char *name, int index, void *config)
{
    (void)index, (void)config;
    block *b = mc_module_add(list, name, sizeof *b);
    if (b) b->factor = mc_parameter_new(&b->module, "factor", MC_SHAPE(N), mc_init_constant(0.5f));
    return b;
}

/* tanh(x^2 factor): x used by the operation, the parameter a custom operation's input. */
static mc_tensor *block_forward(mc_tape *t, void *user, mc_tensor *x, const mc_call *call)
{
    block *b = user;
    (void)call;
    mc_tensor *squared =
        apply_cube(t, block_spec, &block_calls, x, mc_parameter_tensor(t, b->factor));
    return mc_tanh(t, squared);
}

static void train_blocks(mc_context *ctx, mc_recompute recompute, float *dx, float *dfactor)
{
    model *m = mc_module_new(ctx, "", sizeof *m, NULL);
    m->blocks = mc_block_list_new(&m->module, "blocks", 3, block_new, block_forward,
                                  &(mc_block_options){.recompute = recompute});
    assert_good(ctx);
    block_calls = (calls){0};
    mc_module_zero_grad(&m->module);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, true);
    run_backward(t, mc_block_list_forward(t, m->blocks, x, NULL));
    assert_good(ctx);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), dx, N);
    mc_tape_end(t);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(&m->module, &it)); dfactor += N)
        assert_int_equal(mc_parameter_read_gradient(p, dfactor), MC_OK);
    mc_module_free(&m->module);
}

/* The gradients of three blocks in double. */
static void expect_blocks(double *dx, double dfactor[3][N])
{
    for (int i = 0; i < N; i++) {
        double x[4] = {x_values[i]}, g = dy_values[i];
        for (int k = 0; k < 3; k++) x[k + 1] = tanh(x[k] * x[k] * 0.5);
        for (int k = 2; k >= 0; k--) {
            double pre = g * (1 - x[k + 1] * x[k + 1]);
            dfactor[k][i] = pre * x[k] * x[k];
            g = pre * x[k]; /* 2 x factor */
        }
        dx[i] = g;
    }
}

static void check_blocks(mc_context *ctx, const mc_custom_op_spec *spec, mc_recompute recompute,
                         int forwards)
{
    float dx[N], dfactor[3][N];
    double wanted[N], wanted_factor[3][N];
    block_spec = spec;
    train_blocks(ctx, recompute, dx, dfactor[0]);
    expect_blocks(wanted, wanted_factor);
    for (int i = 0; i < N; i++) {
        assert_near(dx[i], wanted[i], 1e-5);
        for (int k = 0; k < 3; k++) assert_near(dfactor[k][i], wanted_factor[k][i], 1e-5);
    }
    assert_int_equal(block_calls.forward, forwards);
    assert_int_equal(block_calls.backward, 3);
}

static void test_blocks(void **state)
{
    static const mc_custom_op_spec again = {"cube again", cube_forward, cube_backward,
                                            .unread_output = true, .recompute = true};
    check_blocks(*state, &cube, MC_RECOMPUTE_NONE, 3);
    check_blocks(*state, &cube, MC_RECOMPUTE_SELECTIVE, 3);
    check_blocks(*state, &cube, MC_RECOMPUTE_FULL, 6);
    check_blocks(*state, &again, MC_RECOMPUTE_NONE, 3);
    check_blocks(*state, &again, MC_RECOMPUTE_SELECTIVE, 6);
    check_blocks(*state, &again, MC_RECOMPUTE_FULL, 6);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static mc_status scale_forward(void *user, const mc_custom_call *call)
{
    const float *x = mc_tensor_data(call->inputs[0]);
    float *y = mc_tensor_data(call->output);
    for (int64_t i = 0; i < mc_tensor_count(call->output); i++) y[i] = 3 * x[i];
    ((calls *)user)->forward++;
    return MC_OK;
}

static mc_status scale_backward(void *user, const mc_custom_call *call)
{
    calls *c = user;
    const float *dy = mc_tensor_data(call->output_gradient);
    float *dx = mc_tensor_data(call->input_gradients[0]);
    c->kept[0] = mc_tensor_data(call->inputs[0]);
    c->kept[2] = mc_tensor_data(call->output);
    for (int64_t i = 0; i < mc_tensor_count(call->output); i++) dx[i] = 3 * dy[i];
    return MC_OK;
}

static void test_unread(void **state)
{
    mc_context *ctx = *state;
    for (int kept = 0; kept < 2; kept++) {
        calls c = {0};
        mc_custom_op_spec spec = {"scale", scale_forward, scale_backward,
                                  .unread_inputs = kept ? 0 : 1, .unread_output = !kept};
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x = input(t, true), *between = mc_scale(t, x, 1);
        mc_tensor *y = mc_custom_op(t, &spec, &c, 1, &between, MC_F32, MC_SHAPE(N));
        spec.name = NULL; /* the spec was copied */
        mc_tensor *out = mc_scale(t, y, 1);
        mc_tape_release(t, between);
        mc_tape_release(t, y);
        run_backward(t, out);
        assert_gradient(ctx, x, 3, 0);
        assert_int_equal(c.kept[0], kept);
        assert_int_equal(c.kept[2], kept);
        mc_tape_end(t);
    }
}

/* ---- dtypes, integers, lengths --------------------------------------------------------------- */

/* y (n) bf16 = the bf16 x, of rows picked by an index. */
static mc_status pick_forward(void *user, const mc_custom_call *call)
{
    (void)user;
    const uint16_t *x = mc_tensor_data(call->inputs[0]);
    const int32_t *index = mc_tensor_data(call->inputs[1]);
    uint16_t *y = mc_tensor_data(call->output);
    assert_int_equal(mc_tensor_dtype(call->inputs[1]), MC_I32);
    for (int64_t i = 0; i < mc_tensor_count(call->output); i++) y[i] = x[index[i]];
    return MC_OK;
}

static mc_status pick_backward(void *user, const mc_custom_call *call)
{
    (void)user;
    const int32_t *index = mc_tensor_data(call->inputs[1]);
    const float *dy = mc_tensor_data(call->output_gradient);
    float *dx = mc_tensor_data(call->input_gradients[0]);
    assert_null(call->input_gradients[1]);
    assert_int_equal(mc_tensor_dtype(call->input_gradients[0]), MC_F32);
    for (int64_t i = 0; i < mc_tensor_count(call->output_gradient); i++) dx[index[i]] += dy[i];
    return MC_OK;
}

static void test_dtypes(void **state)
{
    mc_context *ctx = *state;
    static const mc_custom_op_spec pick = {"pick", pick_forward, pick_backward};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, true), *half = mc_cast(t, x, MC_BF16);
    mc_tensor *index = mc_tape_input(t, MC_I32, MC_SHAPE(3), (int32_t[]){4, 1, 4}, false);
    mc_tensor *y =
        mc_custom_op(t, &pick, NULL, 2, (mc_tensor *[]){half, index}, MC_BF16, MC_SHAPE(3));
    mc_tensor *wide = mc_cast(t, y, MC_F32);
    float values[3], g[N];
    mc_tensor_read_f32(ctx, wide, values, 3);
    assert_true(values[0] == x_values[4] && values[1] == x_values[1] && values[2] == x_values[4]);
    mc_tape_backward(t, wide, mc_tape_input(t, MC_F32, MC_SHAPE(3), (float[]){1, 2, 4}, false));
    assert_good(ctx);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(x), g, N);
    const float wanted[N] = {0, 2, 0, 0, 5};
    assert_memory_equal(g, wanted, sizeof wanted);
    mc_tape_end(t);
}

static void test_lengths(void **state)
{
    mc_context *ctx = *state;
    calls c = {0};
    mc_custom_op_spec spec = {"scale", scale_forward, scale_backward};
    mc_tape *t = mc_tape_begin(ctx);
    const mc_lengths *lengths = mc_tape_lengths(t, (int32_t[]){2, 3}, 2, 1);
    mc_tensor *x = mc_with_lengths(t, input(t, false), lengths);
    mc_tensor *same = mc_custom_op(t, &spec, &c, 1, &x, MC_F32, MC_SHAPE(N));
    mc_tensor *other = mc_custom_op(t, &spec, &c, 1, &x, MC_F32, MC_SHAPE(N - 1));
    assert_good(ctx);
    assert_ptr_equal(mc_tensor_lengths(same), lengths);
    assert_null(mc_tensor_lengths(other));
    assert_null(mc_context_stream(ctx)); /* of the CPU */
    assert_null(mc_context_stream(NULL));
    mc_tape_end(t);
}

/* ---- failures -------------------------------------------------------------------------------- */

static mc_status fail_backward(void *user, const mc_custom_call *call)
{
    (void)user, (void)call;
    return MC_ERR_IO;
}

static void test_failing(void **state)
{
    mc_context *ctx = *state;
    calls c = {0};
    mc_custom_op_spec spec = {"breaks", scale_forward, fail_backward};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, true);
    run_backward(t, mc_custom_op(t, &spec, &c, 1, &x, MC_F32, MC_SHAPE(N)));
    assert_error(ctx, MC_ERR_IO, "\"breaks\"", "backward");
    mc_tape_end(t);
    assert_int_equal(ctx->device->memory.in_use, 0);
}

/* A loss by a custom operation, as OptimManager takes one. */
static mc_status sum_forward(void *user, const mc_custom_call *call)
{
    (void)user;
    const float *x = mc_tensor_data(call->inputs[0]);
    float *loss = mc_tensor_data(call->output);
    loss[0] = 0;
    loss[1] = N;
    for (int i = 0; i < N; i++) loss[0] += x[i] * x[i];
    return MC_OK;
}

static mc_status sum_backward(void *user, const mc_custom_call *call)
{
    (void)user;
    const float *x = mc_tensor_data(call->inputs[0]);
    const float *seed = mc_tensor_data(call->output_gradient);
    float *dx = mc_tensor_data(call->input_gradients[0]);
    for (int i = 0; i < N; i++) dx[i] = seed[0] * 2 * x[i];
    return MC_OK;
}

static void test_loss(void **state)
{
    mc_context *ctx = *state;
    mc_custom_op_spec spec = {"squares", sum_forward, sum_backward};
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *p = mc_parameter_new(root, "p", MC_SHAPE(N), mc_init_constant(2));
    mc_optimizer *sgd = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.5f});
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(sgd, root);
    mc_optim_manager_add(optim, sgd, NULL);
    mc_optim_manager_zero_grad(optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_parameter_tensor(t, p);
    mc_tensor *loss = mc_custom_op(t, &spec, NULL, 1, &x, MC_F32, MC_SHAPE(2));
    mc_optim_manager_backward(optim, t, loss);
    mc_optim_manager_step(optim);
    mc_tape_end(t);
    assert_good(ctx);
    assert_near(mc_optim_manager_mean_loss(optim), 4, 1e-6);
    /* the mean's gradient is 2 x / N */
    for (int i = 0; i < N; i++) assert_near(value_at(p, i), 2 - 0.5 * 4.0 / N, 1e-6);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {
        TEST(test_twice),   TEST(test_constants), TEST(test_no_gradient),
        TEST(test_blocks),  TEST(test_unread),    TEST(test_dtypes),
        TEST(test_lengths), TEST(test_failing),   TEST(test_loss)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
