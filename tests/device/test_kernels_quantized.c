/* Weights in 8 bits on the CPU, in every instruction set. */
#include "tests/device/quantized_test.h"

/* ---- to bytes and back ----------------------------------------------------------------------- */

static void test_quantize(void **state)
{
    (void)state;
    FOR_TYPES(d)
    FOR_FORMATS(f)
    {
        matrix x = quantized_matrix(float_types[d], 9, 1031);
        FOR_TABLES(t)
        {
            quantized e = quantized_new(quantized_formats[f], x.rows, x.columns);
            assert_int_equal(t->k->quantize(device, x.m, e.q), MC_OK);
            quantized_check(&x, &e.q, t->name);
            quantized_free(&e);
        }
        matrix_free(&x);
    }
}

/* Every number half way between two that bytes stand for, and its neighbours. The row's largest is
 * the format's, so that the scale is 1. */
static void test_ties(void **state)
{
    (void)state;
    enum { COUNT = 3 * 127 + 1 };
    FOR_FORMATS(f)
    {
        matrix x = matrix_new(MC_F32, 1, COUNT, 0, 0, 1);
        for (int code = 0; code < 127; code++) {
            double low = quantized_value(quantized_formats[f], code),
                   high = quantized_value(quantized_formats[f], code + 1);
            if (isnan(high)) high = low;
            float middle = (float)((low + high) / 2), sign = code % 3 ? 1.0f : -1.0f;
            x.v[3 * code] = (double)(sign * nextafterf(middle, 0));
            x.v[3 * code + 1] = (double)(sign * middle);
            x.v[3 * code + 2] = (double)(sign * fminf(nextafterf(middle, INFINITY), (float)high));
        }
        x.v[COUNT - 1] = quantized_formats[f] == MC_WEIGHTS_INT8 ? 127 : 448;
        matrix_reset(&x);
        FOR_TABLES(t)
        {
            quantized e = quantized_new(quantized_formats[f], 1, COUNT);
            assert_int_equal(t->k->quantize(device, x.m, e.q), MC_OK);
            assert_true(e.q.scale[0] == 1.0f);
            quantized_check(&x, &e.q, t->name);
            quantized_free(&e);
        }
        matrix_free(&x);
    }
}

/* What is not finite shows in the scale. */
static void test_not_finite(void **state)
{
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN};
    FOR_TABLES(t)
    for (int i = 0; i < 3; i++) {
        matrix x = matrix_new(MC_F32, 2, 40, 0, -1, 1);
        ((float *)x.m.data)[40 + 7] = bad[i];
        quantized e = quantized_new(MC_WEIGHTS_FP8, 2, 40);
        assert_int_equal(t->k->quantize(device, x.m, e.q), MC_OK);
        assert_true(isfinite(e.q.scale[0]));
        assert_false(isfinite(e.q.scale[1]));
        quantized_free(&e);
        matrix_free(&x);
    }
}

static void test_dequantize(void **state)
{
    (void)state;
    FOR_FORMATS(f)
    {
        quantized e = quantized_random(quantized_formats[f], 5, 1290);
        FOR_TABLES(t)
        FOR_TYPES(d)
        {
            matrix y = matrix_new(float_types[d], 5, 1290, 2, 0, 1);
            assert_int_equal(t->k->dequantize(device, e.q, y.m), MC_OK);
            /* half a unit of f16's least, of 0.25 */
            assert_matrix(&y, e.v, 0x1p-23, t->name, "dequantize");
            matrix_free(&y);
        }
        quantized_free(&e);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static void run_product(const isa_table *t, quantized_case *c)
{
    mc_matrix none = {0};
    bool biased = c->activation != MC_ACTIVATION_NONE;
    assert_int_equal(t->k->linear_quantized(device, c->rows, c->alpha, c->x.m, c->w.q,
                                            biased ? c->bias.m : none, c->activation, c->y.m),
                     MC_OK);
    assert_matrix(&c->y, c->expected, 1e-6, t->name, "linear in 8 bits");
}

/* Few rows and many; rows, terms and columns that fill no whole block, and terms that fill none. */
static void test_product(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 768, 130}, {1, 5, 3},   {2, 67, 9},  {3, 130, 31},
                                        {4, 64, 16},   {2, 260, 8}, {7, 48, 50}, {257, 66, 21}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    FOR_FORMATS(f)
    {
        mc_activation activation = (s + (size_t)f) % 2 ? MC_ACTIVATION_RELU : MC_ACTIVATION_NONE;
        quantized_case c =
            quantized_case_new(shapes[s], float_types[d], quantized_formats[f], activation);
        FOR_TABLES(t) run_product(t, &c);
        quantized_case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize),   cmocka_unit_test(test_ties),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_dequantize),
        cmocka_unit_test(test_product),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
