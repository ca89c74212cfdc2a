/* Kernels of general operations against plain loops, in every instruction set: any strides, numbers
 * at the ends of their range, batches of products with gaps. Shapes and dtypes at large are tested
 * with the operations (tests/ops). */
#include "tests/device/kernel_test.h"

#include <float.h>

static mc_matrix flat(mc_dtype dtype, void *data) { return (mc_matrix){data, dtype, 0}; }

/* ---- strided copies -------------------------------------------------------------------------- */

/* Where element `i` in row-major order of the shape lies. */
static int64_t place(const mc_strided_shape *s, const int64_t *stride, int64_t i)
{
    int64_t at = 0;
    for (int k = s->ndim - 1; k >= 0; k--) {
        at += i % s->size[k] * stride[k];
        i /= s->size[k];
    }
    return at;
}

static void check_copy(const isa_table *t, const mc_strided_shape *s, mc_dtype from, mc_dtype to,
                       bool accumulate)
{
    enum { ROOM = 20000 };
    int64_t count = 1;
    for (int k = 0; k < s->ndim; k++) count *= s->size[k];
    matrix x = matrix_new(from, 1, ROOM, 0, -2, 2), y = matrix_new(to, 1, ROOM, 0, -2, 2);
    for (int64_t i = 0; i < count; i++) {
        double value = -1.5 * x.v[place(s, s->x, i)];
        int64_t at = place(s, s->y, i);
        assert_true(at < ROOM);
        y.v[at] = accumulate ? y.v[at] + value : value;
    }
    assert_int_equal(t->k->strided_copy(device, s, x.m, -1.5f, y.m, accumulate), MC_OK);
    assert_matrix(&y, y.v, 1e-6, t->name, "strided_copy"); /* the rest is what it was */
    matrix_free(&x);
    matrix_free(&y);
}

static void test_strided_copy(void **state)
{
    (void)state;
    static const mc_strided_shape shapes[] = {
        {1, {7}, {1}, {1}},
        {1, {2500}, {3}, {1}},
        {1, {2500}, {1}, {2}},
        {1, {1500}, {0}, {1}},
        {2, {13, 21}, {1, 13}, {21, 1}},
        {2, {3, 1100}, {2000, 1}, {1200, 1}},
        {3, {4, 5, 6}, {0, 7, 1}, {40, 8, 1}},
        {5, {2, 3, 4, 5, 6}, {360, 1, 18, 72, 3}, {1, 2, 6, 24, 120}}};
    FOR_TABLES(t)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) FOR_TYPES(from)
    FOR_TYPES(to)
    for (int accumulate = 0; accumulate < 2; accumulate++)
        check_copy(t, &shapes[i], float_types[from], float_types[to], accumulate);
}

/* ---- functions at the ends of their range ---------------------------------------------------- */

static double function(mc_unary kind, double x)
{
    return kind == MC_UNARY_EXP       ? exp(x)
           : kind == MC_UNARY_LOG     ? log(x)
           : kind == MC_UNARY_SQRT    ? sqrt(x)
           : kind == MC_UNARY_SIGMOID ? 1 / (1 + exp(-x))
                                      : log1p(exp(-fabs(x))) + fmax(x, 0);
}

static void check_values(const isa_table *t, mc_unary kind, const float *x, int n)
{
    float y[64];
    assert_int_equal(
        t->k->unary(device, n, kind, flat(MC_F32, (void *)(uintptr_t)x), flat(MC_F32, y)), MC_OK);
    for (int i = 0; i < n; i++) {
        float wanted = (float)function(kind, x[i]);
        /* 3 units in the last place, subnormal ones of their own size; of the sigmoid and of
         * softplus what is below 2e-35 is 0, see mc_exp_nonpositive */
        double least = kind >= MC_UNARY_SIGMOID ? 2e-35 : 0x1p-148;
        double error = fabs((double)y[i] - (double)wanted), bound = 3.6e-7 * fabs((double)wanted);
        bool same = isnan(wanted) ? isnan(y[i]) : y[i] == wanted || error <= fmax(bound, least);
        if (!same)
            fail_msg("%s: function %d of %.9g is %.9g, expected %.9g", t->name, (int)kind,
                     (double)x[i], (double)y[i], (double)wanted);
    }
}

static void test_extremes(void **state)
{
    (void)state;
    static const float exps[] = {0,     -0.0f,  1e-10f, 1,     -1,        80,       -80,
                                 88.5f, 88.72f, 88.73f, 89,    1000,      INFINITY, -87.5f,
                                 -95,   -103,   -104,   -1000, -INFINITY, NAN,      -0.3f};
    static const float logs[] = {1,       0.5f,     2, 1e-30f, 1e30f, FLT_MIN,  1e-40f,
                                 FLT_MAX, INFINITY, 0, -1,     NAN,   0.99999f, 1e-45f};
    FOR_TABLES(t)
    {
        check_values(t, MC_UNARY_EXP, exps, sizeof exps / sizeof *exps);
        check_values(t, MC_UNARY_SIGMOID, exps, sizeof exps / sizeof *exps);
        check_values(t, MC_UNARY_SOFTPLUS, exps, sizeof exps / sizeof *exps);
        check_values(t, MC_UNARY_LOG, logs, sizeof logs / sizeof *logs);
        check_values(t, MC_UNARY_SQRT, logs, sizeof logs / sizeof *logs);
    }
}

/* Neither large logits nor hidden ones (-inf) become NaN. */
static void test_softmax_extremes(void **state)
{
    (void)state;
    float x[2][3] = {{1e30f, 1e30f, -1e30f}, {-INFINITY, 0, 5000}}, y[2][3];
    static const double wanted[] = {0.5, 0.5, 0, 0, 0, 1};
    mc_matrix mx = {x, MC_F32, 3}, my = {y, MC_F32, 3};
    FOR_TABLES(t)
    {
        t->k->row_map(device, 2, 3, MC_ROW_SOFTMAX, 0, mx, my);
        assert_floats(y[0], wanted, 6, 1e-6, t->name, "softmax");
        t->k->row_map(device, 2, 3, MC_ROW_LOG_SOFTMAX, 0, mx, my);
        assert_true(fabs((double)y[0][0] + log(2)) < 1e-6 && y[1][2] == 0);
        assert_true(y[1][0] == -INFINITY && y[1][1] == -5000);
        float zeros[3] = {0}, out[3];
        mc_matrix mz = {zeros, MC_F32, 3}, mo = {out, MC_F32, 3};
        t->k->row_map(device, 1, 3, MC_ROW_NORMALIZE, 1e-12f, mz, mo);
        assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0);
    }
}

/* Losses of logits far from zero. */
static void test_loss_extremes(void **state)
{
    (void)state;
    FOR_TABLES(t)
    {
        float logits[2][2] = {{1e4f, -1e4f}, {-1e4f, 1e4f}}, rows[2], weights[2];
        mc_row_loss_call cross = {.rows = 2,
                                  .classes = 2,
                                  .x = {logits, MC_F32, 2},
                                  .labels = (int32_t[]){0, 0},
                                  .ignore_index = -100};
        t->k->cross_entropy_rows(device, &cross, rows, weights);
        assert_true(rows[0] == 0 && rows[1] == 2e4f && weights[0] == 1 && weights[1] == 1);
    }
}

/* ---- batches of products --------------------------------------------------------------------- */

static void test_batched_gemm(void **state)
{
    (void)state;
    enum { BATCH = 40, M = 12, N = 9, K = 17, ROWS = 20 };
    FOR_TABLES(t)
    FOR_TYPES(type)
    for (int way = 0; way < 16; way++) {
        bool ta = way & 1, tb = way & 2, add = way & 4, apart = way & 8;
        mc_dtype dtype = float_types[type];
        matrix a = matrix_new(dtype, BATCH * ROWS, 18, 2, -1, 1);
        matrix b = matrix_new(dtype, ROWS, 18, 3, -1, 1); /* shared */
        matrix c = matrix_new(dtype, BATCH * ROWS, N, 5, -1, 1);
        matrix other = matrix_new(dtype, BATCH * ROWS, N, 5, -1, 1);
        float alpha = way & 1 ? 0.5f : 1;
        double *wanted = doubles(c.rows * N);
        memcpy(wanted, c.v, (size_t)(c.rows * N) * sizeof *wanted);
        for (int i = 0; i < BATCH; i++)
            for (int row = 0; row < M; row++)
                for (int column = 0; column < N; column++) {
                    double sum = 0;
                    for (int k = 0; k < K; k++)
                        sum += a.v[(i * ROWS + (ta ? k : row)) * 18 + (ta ? row : k)] *
                               b.v[(tb ? column : k) * 18 + (tb ? k : column)];
                    double *to = &wanted[(i * ROWS + row) * N + column];
                    double before = apart ? other.v[to - wanted] : *to;
                    *to = (double)alpha * sum + (add ? before : 0);
                }
        mc_batched_gemm_call call = {.batch = BATCH,
                                     .transpose_a = ta,
                                     .transpose_b = tb,
                                     .m = M,
                                     .n = N,
                                     .k = K,
                                     .alpha = alpha,
                                     .a = a.m,
                                     .b = b.m,
                                     .add = !add    ? NULL
                                            : apart ? other.m.data
                                                    : c.m.data,
                                     .c = c.m,
                                     .a_step = ROWS * a.m.stride,
                                     .c_step = ROWS * c.m.stride};
        assert_int_equal(t->k->batched_gemm(device, &call), MC_OK);
        assert_matrix(&c, wanted, 2e-6, t->name, "batched_gemm");
        matrix_free(&a);
        matrix_free(&b);
        matrix_free(&c);
        matrix_free(&other);
        free(wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strided_copy), cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_softmax_extremes), cmocka_unit_test(test_loss_extremes),
        cmocka_unit_test(test_batched_gemm)};
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
