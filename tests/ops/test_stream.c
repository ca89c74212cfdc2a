/* The residual stream: sums that are made by the norm after them, against sums made at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/autograd/tape_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/optim/optim_test.h"

enum { ROWS = 5, COLUMNS = 12, COUNT = ROWS * COLUMNS };

typedef enum variant { DEFERRED, SUMMED, ADDED, HOWS } variant;

/* Everything that may differ. */
typedef struct values {
    float y[COUNT], gradient[5][COUNT];
} values;

static mc_tensor *make(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout, variant how)
{
    if (how == ADDED) return mc_add(t, x, mc_dropout(t, f, dropout));
    mc_tensor *sum = mc_residual_defer(t, x, f, dropout);
    return how == SUMMED ? mc_residual_sum(t, sum) : sum;
}

/* Two sums with a norm each, the first sum used after its norm too, as in a pre-LN block. */
static values run(mc_dtype dtype, float dropout, variant how)
{
    values v;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *in[5], *s, *last;
    for (int i = 0; i < 5; i++) {
        float data[COUNT];
        for (int k = 0; k < COUNT; k++) data[k] = sinf((float)(i * 100 + k * 7)) + (i == 3 ? 1 : 0);
        mc_shape shape = i < 3 ? MC_SHAPE(ROWS, COLUMNS) : MC_SHAPE(COLUMNS);
        mc_tensor *x = mc_tape_input(t, MC_F32, shape, data, true);
        in[i] = x;
    }
    mc_tensor *x[5];
    for (int i = 0; i < 5; i++) x[i] = mc_cast(t, in[i], dtype);
    mc_tensor *a = make(t, x[0], x[1], dropout, how);
    mc_tensor *h = mc_stream_norm(t, a, x[3], x[4], 1e-5f, &s);
    mc_tensor *b = make(t, s, mc_mul(t, h, x[2]), dropout, how);
    mc_tensor *y = mc_stream_norm(t, b, x[3], x[4], 1e-5f, &last);
    mc_tensor *out = mc_cast(t, mc_add(t, y, mc_mul(t, last, x[2])), MC_F32);
    assert_good(ctx);
    mc_tensor_read_f32(ctx, out, v.y, COUNT);
    float dy[COUNT];
    for (int k = 0; k < COUNT; k++) dy[k] = cosf((float)k);
    mc_tape_backward(t, out, mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, COLUMNS), dy, false));
    assert_good(ctx);
    memset(v.gradient, 0, sizeof v.gradient);
    for (int i = 0; i < 5; i++)
        mc_tensor_read_f32(ctx, mc_tensor_gradient(in[i]), v.gradient[i], i < 3 ? COUNT : COLUMNS);
    mc_context_free(ctx);
    return v;
}

static void assert_close(const float *a, const float *b, double tolerance)
{
    for (int i = 0; i < COUNT; i++)
        assert_near(a[i], b[i], tolerance * fmax(1, fabs((double)b[i])));
}

static void test_sums_are_the_same(void **state)
{
    (void)state;
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++)
        for (int p = 0; p < 2; p++) {
            float dropout = p ? 0.4f : 0;
            double unit = dtype == MC_F32 ? 2e-6 : dtype == MC_F16 ? 4e-3 : 4e-2;
            values v[HOWS];
            for (variant how = DEFERRED; how < HOWS; how++) v[how] = run(dtype, dropout, how);
            assert_memory_equal(v[SUMMED].y, v[DEFERRED].y, sizeof v->y);
            assert_memory_equal(v[SUMMED].gradient, v[DEFERRED].gradient, sizeof v->gradient);
            assert_close(v[ADDED].y, v[DEFERRED].y, unit);
            for (int i = 0; i < 5; i++)
                assert_close(v[ADDED].gradient[i], v[DEFERRED].gradient[i], 4 * unit);
        }
}

/* Either of the two results alone has a gradient. */
static void test_one_result_used(void **state)
{
    mc_context *ctx = *state;
    float ones[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    for (int of_sum = 0; of_sum < 2; of_sum++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x[4], *s;
        for (int i = 0; i < 4; i++)
            x[i] = mc_tape_input(t, MC_F32, i < 2 ? MC_SHAPE(ROWS, COLUMNS) : MC_SHAPE(COLUMNS),
                                 ones, true);
        mc_tensor *y =
            mc_stream_norm(t, mc_residual_defer(t, x[0], x[1], 0.5f), x[2], x[3], 1e-5f, &s);
        mc_tensor *used = mc_scale(t, of_sum ? s : y, 3);
        mc_tensor *dy = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, COLUMNS), ones, false);
        assert_int_equal(mc_tape_backward(t, used, dy), MC_OK);
        float got[COUNT], f[COUNT], weight[COLUMNS];
        mc_tensor_read_f32(ctx, mc_tensor_gradient(x[0]), got, COUNT);
        mc_tensor_read_f32(ctx, mc_tensor_gradient(x[1]), f, COUNT);
        assert_good(ctx);
        int kept = 0;
        for (int i = 0; i < COUNT; i++) {
            assert_near(got[i], of_sum ? 3 : 0, 1e-5); /* a norm has no use for a constant */
            if (of_sum) assert_true(f[i] == 0 || f[i] == 6);
            kept += f[i] != 0;
        }
        if (of_sum) assert_true(kept > 5 && kept < COUNT - 5);
        if (of_sum)
            assert_true(!mc_tensor_gradient(x[3])); /* the norm was of no use */
        else
            mc_tensor_read_f32(ctx, mc_tensor_gradient(x[3]), weight, COLUMNS);
        if (!of_sum) assert_near(weight[0], 3 * ROWS, 1e-5);
        mc_tape_end(t);
    }
}

static void test_what_takes_no_sum(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, COLUMNS), NULL, true);
    mc_tensor *w = mc_tape_input(t, MC_F32, MC_SHAPE(COLUMNS), NULL, true);
    mc_tensor *sum = mc_residual_defer(t, x, x, 0), *s;
    assert_true(mc_shape_equal(mc_tensor_shape(sum), MC_SHAPE(ROWS, COLUMNS)));
    assert_null(mc_add(t, sum, x));
    assert_error(ctx, MC_ERR_STATE, "add", "not made yet", "mc_residual_sum");
    assert_null(mc_residual_norm(t, sum, NULL, 0, w, w, 1e-5f));
    assert_error(ctx, MC_ERR_STATE, "residual norm", "not made yet");
    assert_null(mc_residual_defer(t, sum, x, 0));
    assert_error(ctx, MC_ERR_STATE, "not made yet");
    assert_int_not_equal(mc_tape_backward(t, sum, x), MC_OK);
    assert_error(ctx, MC_ERR_STATE, "backward", "not made yet");
    assert_null(mc_residual_defer(t, x, w, 0));
    assert_error(ctx, MC_ERR_SHAPE, "second input", "(12)", "(5, 12)");
    assert_null(mc_residual_defer(t, x, x, 1));
    assert_error(ctx, MC_ERR_ARGUMENT, "dropout 1");
    assert_null(mc_stream_norm(t, NULL, w, w, 1e-5f, &s));
    assert_null(s);
    assert_error(ctx, MC_ERR_ARGUMENT, "NULL");
    assert_ptr_equal(mc_residual_sum(t, x), x);
    mc_tape_release(t, sum); /* releases what it is made of */
    assert_null(mc_residual_sum(t, sum));
    assert_error(ctx, MC_ERR_STATE, "released");
    mc_tape_end(t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_sums_are_the_same),
        TEST(test_one_result_used),
        TEST(test_what_takes_no_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
