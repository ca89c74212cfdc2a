/* The CPU kernels, for every instruction set this processor has, against plain loops in double. */
#include "core/device/dynamic_map_internal.h"
#include "tests/device/kernel_test.h"

static const int64_t shapes[][2] = {{0, 5},   {1, 1},    {3, 7},    {5, 64},
                                    {17, 33}, {64, 100}, {2, 2500}, {70, 768}};
#define FOR_SHAPES(i) for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++)

/* ---- conversions ----------------------------------------------------------------------------- */

/* Every 16-bit pattern to f32 and back; scale by 1 converts. */
static void test_16_bit_patterns(void **state)
{
    (void)state;
    static uint16_t in[65536], out[65536];
    static float values[65536];
    for (int i = 0; i < 65536; i++) in[i] = (uint16_t)i;
    FOR_TABLES(t) for (int type = 1; type < 3; type++)
    {
        mc_dtype dtype = float_types[type];
        mc_matrix x = {in, dtype, 0}, f = {values, MC_F32, 0}, y = {out, dtype, 0};
        assert_int_equal(t->k->scale(device, 65536, x, 1.0f, f, false), MC_OK);
        assert_int_equal(t->k->scale(device, 65536, f, 1.0f, y, false), MC_OK);
        for (int i = 0; i < 65536; i++) {
            double expected = element(dtype, in, i);
            if (isnan(expected)) {
                assert_true(isnan(values[i]));
                assert_true(isnan(element(dtype, out, i)));
                continue;
            }
            if (values[i] != expected || out[i] != in[i])
                fail_msg("%s %s %04x: %g, back %04x", t->name, mc_dtype_name(dtype), i, values[i],
                         out[i]);
        }
    }
}

/* f32 to 16 bits: patterns around every rounding decision. */
static void test_rounding(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static float in[N + 3];
    static uint16_t out[N + 3];
    const uint32_t lows[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};
    FOR_TABLES(t) for (int type = 1; type < 3; type++) for (int low = 0; low < 9; low++)
    {
        mc_dtype dtype = float_types[type];
        for (uint32_t i = 0; i < N + 3; i++) {
            uint32_t bits = (i << 16) | lows[low];
            memcpy(in + i, &bits, sizeof bits);
        }
        mc_matrix x = {in, MC_F32, 0}, y = {out, dtype, 0};
        assert_int_equal(t->k->scale(device, N + 3, x, 1.0f, y, false), MC_OK);
        for (int i = 0; i < N + 3; i++) {
            double expected = nearest(dtype, in[i]), got = element(dtype, out, i);
            if (isnan(expected) ? !isnan(got) : got != expected)
                fail_msg("%s %s of %a: %a, expected %a", t->name, mc_dtype_name(dtype), in[i], got,
                         expected);
        }
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

static double reference_activation(mc_activation a, double x)
{
    switch (a) {
    case MC_ACTIVATION_RELU: return x < 0 ? 0 : x;
    case MC_ACTIVATION_GELU: return x * 0.5 * erfc(-x / sqrt(2));
    case MC_ACTIVATION_GELU_NEW:
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MC_ACTIVATION_TANH: return tanh(x);
    case MC_ACTIVATION_SILU: return x / (1 + exp(-x));
    case MC_ACTIVATION_NONE: break;
    }
    return x;
}

static double reference_slope(mc_activation a, double x)
{
    double z, s;
    switch (a) {
    case MC_ACTIVATION_RELU: return x > 0;
    case MC_ACTIVATION_GELU: return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case MC_ACTIVATION_GELU_NEW:
        z = 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-z));
        return s + x * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    case MC_ACTIVATION_TANH: return 1 - tanh(x) * tanh(x);
    case MC_ACTIVATION_SILU: s = 1 / (1 + exp(-x)); return s + x * s * (1 - s);
    case MC_ACTIVATION_NONE: break;
    }
    return 1;
}

/* Accuracy over the whole range: relative for values, absolute for slopes. */
static void test_activation_accuracy(void **state)
{
    (void)state;
    enum { N = 200001 };
    float *x = malloc(N * 4), *y = malloc(N * 4), *dx = malloc(N * 4), *one = malloc(N * 4);
    assert_true(x && y && dx && one);
    for (int i = 0; i < N; i++) {
        x[i] = (float)((i - N / 2) * 1.2e-4);
        if (i % 3 == 0) x[i] *= 1e-3f;
        one[i] = 1;
    }
    FOR_TABLES(t) for (mc_activation a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_SILU; a++)
    {
        mc_matrix xm = {x, MC_F32, N}, ym = {y, MC_F32, N}, dm = {dx, MC_F32, N},
                  om = {one, MC_F32, N};
        assert_int_equal(t->k->activation(device, 1, N, a, xm, ym), MC_OK);
        assert_int_equal(t->k->activation_backward(device, 1, N, a, xm, 1, om, dm, false), MC_OK);
        double worst = 0, worst_slope = 0;
        for (int i = 0; i < N; i++) {
            double expected = reference_activation(a, x[i]), slope = reference_slope(a, x[i]);
            /* The tails are exponentials of x^2, which carry the rounding of their argument. */
            double scale = a == MC_ACTIVATION_TANH ? 4 : 2 + x[i] * x[i];
            double error = fabs(y[i] - expected) / (scale * fabs(expected) + 1e-26);
            if (error > worst) worst = error;
            if (fabs(dx[i] - slope) > worst_slope) worst_slope = fabs(dx[i] - slope);
        }
        if (getenv("MC_VERBOSE"))
            printf("%-7s activation %d: %.2f eps relative, slope %.2e absolute\n", t->name, (int)a,
                   worst / 0x1p-24, worst_slope);
        if (worst > 4 * 0x1p-24 || worst_slope > 1e-6)
            fail_msg("%s activation %d: error %g, slope %g", t->name, (int)a, worst, worst_slope);
    }
    free(x);
    free(y);
    free(dx);
    free(one);
}

static void test_activation_special(void **state)
{
    (void)state;
    FOR_TABLES(t) for (mc_activation a = MC_ACTIVATION_RELU; a <= MC_ACTIVATION_SILU; a++)
    {
        float x[] = {NAN, INFINITY, 1e30f, -1e30f, 0, 100, -100}, y[7];
        mc_matrix xm = {x, MC_F32, 7}, ym = {y, MC_F32, 7};
        assert_int_equal(t->k->activation(device, 1, 7, a, xm, ym), MC_OK);
        assert_true(isnan(y[0]));
        assert_true(a == MC_ACTIVATION_TANH ? y[1] == 1 && y[2] == 1
                                            : isinf(y[1]) && y[2] == 1e30f);
        assert_true(y[3] == (a == MC_ACTIVATION_TANH ? -1 : 0));
        assert_true(y[4] == 0);
        assert_true(y[5] == (a == MC_ACTIVATION_TANH ? 1 : 100));
        assert_true(y[6] == (a == MC_ACTIVATION_TANH ? -1 : 0));
    }
}

static void bias_case(const isa_table *t, mc_dtype dtype, int64_t rows, int64_t columns,
                      mc_activation a, bool with_bias)
{
    matrix x = matrix_new(dtype, rows, columns, 3, -3, 3),
           b = matrix_new(dtype, 1, columns, 0, -1, 1);
    matrix y = matrix_new(dtype, rows, columns, 1, 0, 1);
    double *sum = doubles(rows * columns), *out = doubles(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        sum[i] = nearest(dtype, (float)(x.v[i] + (with_bias ? b.v[i % columns] : 0)));
        out[i] = reference_activation(a, sum[i]);
    }
    bool alone = a == MC_ACTIVATION_NONE;
    mc_matrix bias = with_bias ? b.m : (mc_matrix){0}, to = alone ? (mc_matrix){0} : y.m;
    assert_int_equal(t->k->bias_activation(device, rows, columns, x.m, bias, a, to), MC_OK);
    assert_matrix(&x, sum, 0, t->name, "bias");
    if (!alone) assert_matrix(&y, out, 1e-6, t->name, "bias_activation");
    matrix_free(&x);
    matrix_free(&b);
    matrix_free(&y);
    free(sum);
    free(out);
}

/* a and b are the two halves of x's rows. */
static void gated_kernel_case(const isa_table *t, mc_dtype dtype, int64_t rows, int64_t n,
                              mc_activation a, bool accumulate)
{
    matrix x = matrix_new(dtype, rows, 2 * n, 3, -3, 3), y = matrix_new(dtype, rows, n, 1, 0, 1);
    matrix dy = matrix_new(dtype, rows, n, 2, -1, 1), dx = matrix_new(dtype, rows, 2 * n, 5, -1, 1);
    double *out = doubles(rows * n), *gradient = doubles(2 * rows * n);
    for (int64_t i = 0; i < rows * n; i++) {
        int64_t at = i / n * 2 * n + i % n;
        double g = reference_activation(a, x.v[at]);
        out[i] = g * x.v[at + n];
        gradient[at] = dy.v[i] * x.v[at + n] * reference_slope(a, x.v[at]);
        gradient[at + n] = dy.v[i] * g;
    }
    for (int64_t i = 0; i < 2 * rows * n && accumulate; i++) gradient[i] += dx.v[i];
    assert_int_equal(t->k->gated(device, rows, n, a, x.m, y.m), MC_OK);
    assert_matrix(&y, out, 1e-6, t->name, "gated");
    assert_int_equal(t->k->gated_backward(device, rows, n, a, x.m, dy.m, dx.m, accumulate), MC_OK);
    assert_matrix(&dx, gradient, 4e-6, t->name, "gated_backward");
    matrix_free(&x);
    matrix_free(&y);
    matrix_free(&dy);
    matrix_free(&dx);
    free(out);
    free(gradient);
}

static void test_gated(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i) FOR_SHAPES(s) for (mc_activation a = 0; a <= MC_ACTIVATION_SILU; a++)
    {
        gated_kernel_case(t, float_types[i], shapes[s][0], shapes[s][1], a, false);
        gated_kernel_case(t, float_types[i], shapes[s][0], shapes[s][1], a, true);
    }
}

static void test_bias_activation(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i) FOR_SHAPES(s) for (mc_activation a = 0; a <= MC_ACTIVATION_SILU; a++)
    {
        bias_case(t, float_types[i], shapes[s][0], shapes[s][1], a, true);
        bias_case(t, float_types[i], shapes[s][0], shapes[s][1], a, false);
    }
}

static void activation_backward_case(const isa_table *t, mc_dtype dtype, int64_t rows,
                                     int64_t columns, mc_activation a, int mode)
{
    matrix x = matrix_new(dtype, rows, columns, 3, -3, 3),
           dy = matrix_new(dtype, rows, columns, 2, -1, 1);
    matrix dx = matrix_new(dtype, rows, columns, 5, -1, 1);
    double *expected = doubles(rows * columns);
    const float factor = mode == 1 ? 1.25f : 1;
    for (int64_t i = 0; i < rows * columns; i++)
        expected[i] = factor * dy.v[i] * reference_slope(a, x.v[i]) + (mode == 1 ? dx.v[i] : 0);
    matrix *to = mode == 2 ? &dy : &dx; /* in place */
    assert_int_equal(
        t->k->activation_backward(device, rows, columns, a, x.m, factor, dy.m, to->m, mode == 1),
        MC_OK);
    assert_matrix(to, expected, 1e-6, t->name, "activation_backward");
    matrix_free(&x);
    matrix_free(&dy);
    matrix_free(&dx);
    free(expected);
}

static void test_activation_backward(void **state)
{
    (void)state;
    FOR_TABLES(t)
    FOR_TYPES(i)
    FOR_SHAPES(s)
    for (mc_activation a = 0; a <= MC_ACTIVATION_SILU; a++)
        for (int mode = 0; mode < 3; mode++)
            activation_backward_case(t, float_types[i], shapes[s][0], shapes[s][1], a, mode);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void column_sums_case(const isa_table *t, mc_dtype dtype, int64_t rows, int64_t columns)
{
    matrix x = matrix_new(dtype, rows, columns, 4, -1, 1);
    matrix y = matrix_new(dtype, 1, columns, 0, -1, 1);
    float *out = calloc((size_t)columns + 1, sizeof *out);
    double *expected = doubles(columns), *sum = doubles(columns);
    for (int64_t c = 0; c < columns; c++) {
        out[c] = (float)c;
        for (int64_t r = 0; r < rows; r++) sum[c] += x.v[r * columns + c];
        expected[c] = c + sum[c];
    }
    assert_int_equal(t->k->column_sums(device, rows, columns, x.m, out), MC_OK);
    assert_floats(out, expected, columns, 1e-6 * (1 + (double)rows / 500), t->name, "column_sums");
    matrix_free(&x);
    x = matrix_new(dtype, rows, columns, 0, -1, 1);
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        for (int64_t c = 0; c < columns; c++) {
            expected[c] = accumulate ? y.v[c] : 0;
            for (int64_t r = 0; r < rows; r++) expected[c] += x.v[r * columns + c];
        }
        assert_int_equal(t->k->sum_leading(device, rows * columns, x.m, columns, y.m, accumulate),
                         MC_OK);
        assert_matrix(&y, expected, 1e-6 * (1 + (double)rows / 500), t->name, "sum_leading");
    }
    matrix_free(&x);
    matrix_free(&y);
    free(out);
    free(expected);
    free(sum);
}

static void test_sums(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i)
    {
        FOR_SHAPES(s) column_sums_case(t, float_types[i], shapes[s][0], shapes[s][1]);
        column_sums_case(t, float_types[i], 20011, 1);
        column_sums_case(t, float_types[i], 3001, 13);
    }
}

/* ---- norm ------------------------------------------------------------------------------------ */

typedef struct norm_case {
    matrix x, f, w, b, s, y, dy, ds, df;
    mc_dropout_mask mask;
    float *mean, *rstd, *dw, *db, *dbranch;
    double *sum, *out, *m, *r, *e_ds, *e_df, *e_dw, *e_db, *e_dbranch;
    int64_t rows, columns;
    bool branch, accumulate, rms;
} norm_case;

static void norm_case_init(norm_case *c, mc_dtype dtype, int64_t rows, int64_t columns)
{
    c->rows = rows;
    c->columns = columns;
    matrix *all[] = {&c->x, &c->f, &c->s, &c->y, &c->dy, &c->ds, &c->df};
    for (int i = 0; i < 7; i++) *all[i] = matrix_new(dtype, rows, columns, i, -2, 2);
    c->w = matrix_new(dtype, 1, columns, 0, 0.5, 1.5);
    c->b = matrix_new(dtype, 1, columns, 0, -1, 1);
    c->mean = calloc((size_t)rows + 1, 4);
    c->rstd = calloc((size_t)rows + 1, 4);
    c->dw = calloc((size_t)columns + 1, 4);
    c->db = calloc((size_t)columns + 1, 4);
    c->dbranch = calloc((size_t)columns + 1, 4);
    double **wide[] = {&c->sum, &c->out, &c->e_ds, &c->e_df};
    for (int i = 0; i < 4; i++) *wide[i] = doubles(rows * columns);
    c->m = doubles(rows);
    c->r = doubles(rows);
    c->e_dw = doubles(columns);
    c->e_db = doubles(columns);
    c->e_dbranch = doubles(columns);
}

static void norm_case_free(norm_case *c)
{
    matrix *all[] = {&c->x, &c->f, &c->s, &c->y, &c->dy, &c->ds, &c->df, &c->w, &c->b};
    for (int i = 0; i < 9; i++) matrix_free(all[i]);
    void *rest[] = {c->mean, c->rstd, c->dw,   c->db,   c->dbranch, c->sum,  c->out,
                    c->m,    c->r,    c->e_ds, c->e_df, c->e_dw,    c->e_db, c->e_dbranch};
    for (int i = 0; i < 14; i++) free(rest[i]);
}

static void reference_sum(norm_case *c)
{
    for (int64_t i = 0; i < c->rows * c->columns; i++)
        c->sum[i] =
            c->x.v[i] + (c->branch ? c->f.v[i] * reference_dropout(c->mask, (uint64_t)i) : 0);
}

/* The norm of what is in s. */
static void reference_norm(norm_case *c, const matrix *s, double eps)
{
    for (int64_t r = 0; r < c->rows; r++) {
        const double *row = c->s.v + r * c->columns;
        double mean = 0, var = 0;
        for (int64_t i = 0; i < c->columns; i++) {
            c->s.v[r * c->columns + i] = element(s->m.dtype, s->m.data, r * s->m.stride + i);
            if (!c->rms) mean += row[i] / (double)c->columns;
        }
        for (int64_t i = 0; i < c->columns; i++) var += pow(row[i] - mean, 2) / (double)c->columns;
        c->m[r] = mean;
        c->r[r] = 1 / sqrt(var + eps);
        for (int64_t i = 0; i < c->columns; i++)
            c->out[r * c->columns + i] =
                (row[i] - mean) * c->r[r] * c->w.v[i] + (c->rms ? 0 : c->b.v[i]);
    }
}

/* From the s, mean and rstd given. */
static void reference_norm_backward(norm_case *c)
{
    for (int64_t r = 0; r < c->rows; r++) {
        double g1 = 0, g2 = 0;
        for (int64_t i = 0; i < c->columns; i++) {
            int64_t at = r * c->columns + i;
            double normal = (c->s.v[at] - c->m[r]) * c->r[r], g = c->dy.v[at] * c->w.v[i];
            if (!c->rms) g1 += g / (double)c->columns;
            g2 += g * normal / (double)c->columns;
            c->e_dw[i] += c->dy.v[at] * normal;
            c->e_db[i] += c->dy.v[at];
        }
        for (int64_t i = 0; i < c->columns; i++) {
            int64_t at = r * c->columns + i;
            double normal = (c->s.v[at] - c->m[r]) * c->r[r];
            double ds = c->r[r] * (c->dy.v[at] * c->w.v[i] - g1 - normal * g2);
            c->e_ds[at] = ds + (c->accumulate ? c->ds.v[at] : 0);
        }
    }
}

/* From ds as it is stored. */
static void reference_branch_gradient(norm_case *c)
{
    for (int64_t i = 0; i < c->rows * c->columns; i++) {
        int64_t at = i / c->columns * c->ds.m.stride + i % c->columns;
        double ds = element(c->ds.m.dtype, c->ds.m.data, at);
        c->e_df[i] = ds * reference_dropout(c->mask, (uint64_t)i);
    }
}

/* dbranch, begun at 1, has been added the sums of what is stored in x. */
static void assert_branch_sums(norm_case *c, const matrix *x, const char *isa, const char *what)
{
    for (int64_t i = 0; i < c->columns; i++) {
        c->e_dbranch[i] = 1;
        for (int64_t r = 0; r < c->rows; r++)
            c->e_dbranch[i] += element(x->m.dtype, x->m.data, r * x->m.stride + i);
    }
    assert_floats(c->dbranch, c->e_dbranch, c->columns, 1e-6 * (1 + (double)c->rows / 500), isa,
                  what);
}

/* The backward pass with all that it reads; what it is to write is still to be said. */
static mc_residual_norm_backward_call gradients_of(const norm_case *c)
{
    return (mc_residual_norm_backward_call){.rows = c->rows,
                                            .columns = c->columns,
                                            .s = c->s.m,
                                            .weight = c->w.m,
                                            .mean = c->rms ? NULL : c->mean,
                                            .rstd = c->rstd,
                                            .dy = c->dy.m,
                                            .dropout = c->mask,
                                            .accumulate = c->accumulate};
}

static void run_norm_case(const isa_table *t, mc_dtype dtype, int64_t rows, int64_t columns,
                          int mode)
{
    norm_case c = {.mask = {.p = mode & 1 ? 0.3f : 0, .seed = 77, .offset = 5},
                   .branch = mode & 2,
                   .accumulate = mode & 4,
                   .rms = mode & 8};
    norm_case_init(&c, dtype, rows, columns);
    reference_sum(&c);
    mc_matrix none = {0};
    mc_residual_norm_call forward = {.rows = rows,
                                     .columns = columns,
                                     .x = c.x.m,
                                     .f = c.branch ? c.f.m : none,
                                     .dropout = c.mask,
                                     .weight = c.w.m,
                                     .bias = c.rms ? none : c.b.m,
                                     .eps = 1e-5f,
                                     .s = c.s.m,
                                     .y = c.y.m,
                                     .mean = c.mean,
                                     .rstd = c.rstd};
    assert_int_equal(t->k->residual_norm(device, &forward), MC_OK);
    assert_matrix(&c.s, c.sum, 3e-7, t->name, "residual sum");
    reference_norm(&c, &c.s, 1e-5);
    assert_matrix(&c.y, c.out, 3e-6, t->name, "residual_norm");
    assert_floats(c.mean, c.m, rows, 1e-6, t->name, "mean"); /* of RMSNorm left alone: zeros */
    assert_floats(c.rstd, c.r, rows, 4e-6, t->name, "rstd");
    reference_norm_backward(&c);
    for (int64_t i = 0; i < columns; i++) c.dbranch[i] = 1;
    mc_residual_norm_backward_call backward = gradients_of(&c);
    backward.ds = c.ds.m;
    backward.df = c.df.m;
    backward.dweight = c.dw;
    backward.dbias = c.rms ? NULL : c.db;
    backward.dbranch = c.dbranch;
    assert_int_equal(t->k->residual_norm_backward(device, &backward), MC_OK);
    assert_branch_sums(&c, &c.df, t->name, "sums of df");
    const double tolerance = 4e-6;
    assert_matrix(&c.ds, c.e_ds, tolerance, t->name, "norm ds");
    reference_branch_gradient(&c);
    assert_matrix(&c.df, c.e_df, 2e-7, t->name, "norm df");
    assert_floats(c.dw, c.e_dw, columns, 1e-5, t->name, "norm dweight");
    if (!c.rms) assert_floats(c.db, c.e_db, columns, 1e-5, t->name, "norm dbias");
    norm_case_free(&c);
}

static void test_norm(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i) FOR_SHAPES(s) for (int mode = 0; mode < 16; mode++)
    {
        if (shapes[s][1] > 1) run_norm_case(t, float_types[i], shapes[s][0], shapes[s][1], mode);
    }
}

/* Without df the sums are those of ds, added to or not; without ds, of df; of neither there are
 * none. Nothing else is wanted, or all of it. The matrices are the same with and without sums. */
static void test_norm_branch_sums(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 2}, {5, 40}, {77, 33}, {1000, 8}, {3, 20000}};
    FOR_TABLES(t) FOR_TYPES(i) for (int s = 0; s < 5; s++) for (int mode = 0; mode < 16; mode++)
    {
        bool with_ds = mode & 1, with_df = mode & 2, with_weights = mode & 8;
        norm_case c = {.mask = {.p = 0.3f, .seed = 7, .offset = 2}, .accumulate = mode & 4};
        norm_case_init(&c, float_types[i], sizes[s][0], sizes[s][1]);
        reference_norm(&c, &c.s, 1e-5);
        for (int64_t r = 0; r < c.rows; r++) {
            c.mean[r] = (float)c.m[r];
            c.rstd[r] = (float)c.r[r];
        }
        for (int64_t k = 0; k < c.columns; k++) c.dbranch[k] = 1;
        mc_residual_norm_backward_call call = gradients_of(&c);
        if (with_ds) call.ds = c.ds.m;
        if (with_df) call.df = c.df.m;
        call.accumulate = with_ds && c.accumulate;
        call.dweight = with_weights ? c.dw : NULL;
        call.dbias = with_weights ? c.db : NULL;
        call.dbranch = c.dbranch;
        assert_int_equal(t->k->residual_norm_backward(device, &call), MC_OK);
        if (with_ds || with_df)
            assert_branch_sums(&c, with_df ? &c.df : &c.ds, t->name, "sums of the branch");
        else
            for (int64_t k = 0; k < c.columns; k++) assert_true(c.dbranch[k] == 1);
        reference_norm_backward(&c);
        if (with_weights) assert_floats(c.db, c.e_db, c.columns, 1e-5, t->name, "norm dbias");
        if (with_weights) assert_floats(c.dw, c.e_dw, c.columns, 1e-4, t->name, "norm dweight");
        norm_case_free(&c);
    }
}

/* Without a branch: s may be x, or not stored; gradients may be left out. */
static void test_norm_optional(void **state)
{
    (void)state;
    FOR_TABLES(t)
    {
        norm_case c = {0};
        norm_case_init(&c, MC_F32, 5, 40);
        reference_norm(&c, &c.x, 1e-12);
        mc_residual_norm_call forward = {.rows = 5,
                                         .columns = 40,
                                         .x = c.x.m,
                                         .weight = c.w.m,
                                         .bias = c.b.m,
                                         .eps = 1e-12f,
                                         .y = c.y.m};
        assert_int_equal(t->k->residual_norm(device, &forward), MC_OK);
        assert_matrix(&c.y, c.out, 3e-6, t->name, "norm");
        forward.s = c.x.m;
        forward.mean = c.mean;
        forward.rstd = c.rstd;
        assert_int_equal(t->k->residual_norm(device, &forward), MC_OK);
        assert_matrix(&c.y, c.out, 3e-6, t->name, "norm");
        assert_matrix(&c.x, c.x.v, 0, t->name, "norm input");
        mc_residual_norm_backward_call backward = gradients_of(&c);
        backward.s = c.x.m;
        backward.dbias = c.db;
        assert_int_equal(t->k->residual_norm_backward(device, &backward), MC_OK);
        for (int i = 0; i < 200; i++) c.e_db[i % 40] += c.dy.v[i];
        assert_floats(c.db, c.e_db, 40, 1e-6, t->name, "dbias alone");
        reference_norm_backward(&c);
        backward.dbias = NULL;
        backward.df = c.df.m;
        assert_int_equal(t->k->residual_norm_backward(device, &backward), MC_OK);
        assert_matrix(&c.df, c.e_ds, 4e-6, t->name, "df alone");
        norm_case_free(&c);
    }
}

/* ---- dropout --------------------------------------------------------------------------------- */

static void test_dropout(void **state)
{
    (void)state;
    mc_dropout_mask mask = {.p = 0.1f, .seed = 0x123456789abcdef0u, .offset = 0xfedcba9876543210u};
    FOR_TABLES(t) FOR_TYPES(i) FOR_SHAPES(s) for (int mode = 0; mode < 4; mode++)
    {
        bool accumulate = mode & 1, relu = mode & 2;
        int64_t rows = shapes[s][0], columns = shapes[s][1];
        matrix x = matrix_new(float_types[i], rows, columns, s, -2, 2);
        matrix y = matrix_new(float_types[i], rows, columns, 0, -2, 2);
        double *expected = doubles(rows * columns);
        for (int64_t j = 0; j < rows * columns; j++)
            expected[j] = (relu && x.v[j] < 0 ? 0 : x.v[j]) * reference_dropout(mask, (uint64_t)j) +
                          (accumulate ? y.v[j] : 0);
        assert_int_equal(t->k->dropout(device, rows, columns, x.m, relu, mask, y.m, accumulate),
                         MC_OK);
        assert_matrix(&y, expected, 3e-7, t->name, "dropout");
        matrix_free(&x);
        matrix_free(&y);
        free(expected);
    }
}

/* ---- rows by index --------------------------------------------------------------------------- */

static void embedding_case(const isa_table *t, mc_dtype dtype, int64_t rows, int64_t columns)
{
    matrix a = matrix_new(dtype, 11, columns, 2, -1, 1),
           b = matrix_new(dtype, 2, columns, 0, -1, 1);
    matrix y = matrix_new(dtype, rows, columns, 1, -1, 1),
           g = matrix_new(MC_F32, 11, columns, 3, -1, 1);
    int32_t *ia = malloc((size_t)rows * 4 + 4), *ib = malloc((size_t)rows * 4 + 4);
    double *sum = doubles(rows * columns), *gathered = doubles(rows * columns),
           *grad = doubles(11 * columns);
    memcpy(grad, g.v, (size_t)(11 * columns) * sizeof *grad);
    for (int64_t r = 0; r < rows; r++) {
        ia[r] = (int32_t)(random_bits() % 12) - 1;
        ib[r] = (int32_t)(random_bits() % 2);
        for (int64_t c = 0; c < columns; c++) {
            int32_t from = ia[r] < 0 ? 0 : ia[r];
            sum[r * columns + c] = 0.75 * (a.v[from * columns + c] + b.v[ib[r] * columns + c]);
            gathered[r * columns + c] = ia[r] < 0 ? 0 : a.v[ia[r] * columns + c];
            if (ia[r] >= 0) grad[ia[r] * columns + c] += -0.375 * y.v[r * columns + c];
        }
    }
    assert_int_equal(t->k->embedding_backward(device, rows, columns, y.m, ia, -0.375f, g.m), MC_OK);
    assert_matrix(&g, grad, 1e-6, t->name, "embedding_backward");
    assert_int_equal(t->k->gather_rows(device, rows, columns, a.m, ia, y.m), MC_OK);
    assert_matrix(&y, gathered, 0, t->name, "gather_rows");
    for (int64_t r = 0; r < rows; r++) ia[r] = ia[r] < 0 ? 0 : ia[r];
    mc_matrix both[] = {a.m, b.m};
    const int32_t *index[] = {ia, ib};
    assert_int_equal(t->k->embedding(device, rows, columns, 2, both, index, 0.75f, y.m), MC_OK);
    assert_matrix(&y, sum, 3e-7, t->name, "embedding");
    matrix_free(&a);
    matrix_free(&b);
    matrix_free(&y);
    matrix_free(&g);
    void *rest[] = {ia, ib, sum, gathered, grad};
    for (int i = 0; i < 5; i++) free(rest[i]);
}

static void test_embedding(void **state)
{
    (void)state;
    FOR_TABLES(t)
    FOR_TYPES(i) FOR_SHAPES(s) embedding_case(t, float_types[i], shapes[s][0], shapes[s][1]);
}

/* ---- loss ------------------------------------------------------------------------------------ */

static void loss_case(const isa_table *t, mc_dtype dtype, int64_t rows, int64_t classes, double e,
                      bool in_place)
{
    matrix x = matrix_new(dtype, rows, classes, 2, -8, 8),
           dx = matrix_new(dtype, rows, classes, 1, 0, 1);
    int32_t *labels = malloc((size_t)rows * 4 + 4);
    double *grad = doubles(rows * classes), sum = 1.5, count = 2;
    float loss[2] = {1.5f, 2}, seed = 0.25f;
    for (int64_t r = 0; r < rows; r++) {
        labels[r] = r % 5 == 3 ? -100 : (int32_t)(random_bits() % (uint32_t)classes);
        if (labels[r] == -100) continue;
        const double *row = x.v + r * classes;
        double total = 0, mean = 0, lse;
        for (int64_t c = 0; c < classes; c++)
            total += exp(row[c]), mean += row[c] / (double)classes;
        lse = log(total);
        sum += (1 - e) * (lse - row[labels[r]]) + e * (lse - mean);
        count++;
        for (int64_t c = 0; c < classes; c++)
            grad[r * classes + c] =
                seed * (exp(row[c] - lse) - (1 - e) * (c == labels[r]) - e / (double)classes);
    }
    matrix *to = in_place ? &x : &dx;
    assert_int_equal(t->k->cross_entropy(device, rows, classes, x.m, labels, -100, (float)e, NULL,
                                         loss, (mc_matrix){0}),
                     MC_OK);
    assert_true(fabs(loss[0] - sum) <= 1e-6 * sum && loss[1] == count);
    assert_int_equal(
        t->k->cross_entropy(device, rows, classes, x.m, labels, -100, (float)e, &seed, loss, to->m),
        MC_OK);
    assert_true(fabs(loss[0] - (2 * sum - 1.5)) <= 2e-6 * sum && loss[1] == 2 * count - 2);
    assert_matrix(to, grad, 1e-6, t->name, "cross_entropy");
    matrix_free(&x);
    matrix_free(&dx);
    free(labels);
    free(grad);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i) FOR_SHAPES(s)
    {
        loss_case(t, float_types[i], shapes[s][0], shapes[s][1], 0, false);
        loss_case(t, float_types[i], shapes[s][0], shapes[s][1], 0.1, true);
    }
}

static void test_cross_entropy_extremes(void **state)
{
    (void)state;
    FOR_TABLES(t)
    {
        float x[] = {30000, 29999, -30000, 1e30f, -1e30f, 0, -INFINITY, 0, 1, NAN, 0, 0}, dx[12],
              loss[2] = {0, 0};
        const float one = 1;
        int32_t labels[] = {1, 0, 1, 0};
        mc_matrix xm = {x, MC_F32, 3}, dm = {dx, MC_F32, 3};
        assert_int_equal(t->k->cross_entropy(device, 1, 3, xm, labels, -1, 0, &one, loss, dm),
                         MC_OK);
        assert_true(fabs(loss[0] - (1 + log1p(exp(-1)))) < 1e-6);
        assert_true(fabs(dx[0] - 1 / (1 + exp(-1))) < 1e-6 && dx[2] == 0);
        assert_int_equal(t->k->cross_entropy(device, 2, 3, xm, labels, 1, 0, &one, loss, dm),
                         MC_OK);
        assert_true(loss[1] == 2 && fabs(loss[0] - (1 + log1p(exp(-1)))) < 1e-6); /* adds 0 */
        assert_true(dx[0] == 0 && dx[1] == 0 && dx[3] == 0 && dx[4] == 0);
        loss[0] = 0;
        assert_int_equal(t->k->cross_entropy(device, 3, 3, xm, labels, -1, 0, &one, loss, dm),
                         MC_OK);
        assert_true(isfinite(loss[0]) && dx[6] == 0);
        assert_int_equal(t->k->cross_entropy(device, 4, 3, xm, labels, -1, 0, &one, loss, dm),
                         MC_OK);
        assert_true(isnan(loss[0]) && isnan(dx[9]) && isnan(dx[10]));
    }
}

static void test_argmax(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i)
    {
        matrix x = matrix_new(float_types[i], 6, 2100, 1, -1, 0.5);
        int32_t out[6], expected[] = {0, 2099, 1500, 7, 1023, 1024};
        for (int r = 0; r < 6; r++) x.v[r * 2100 + expected[r]] = 1;
        x.v[3 * 2100 + 1300] = 1; /* an equal later on */
        matrix_reset(&x);
        assert_int_equal(t->k->argmax(device, 6, 2100, x.m, out), MC_OK);
        assert_memory_equal(out, expected, sizeof out);
        float y[] = {1, NAN, 3, NAN, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        assert_int_equal(t->k->argmax(device, 2, 4, (mc_matrix){y, MC_F32, 4}, out), MC_OK);
        assert_true(out[0] == 1 && out[1] == 0);
        matrix_free(&x);
    }
}

/* ---- elementwise ----------------------------------------------------------------------------- */

static void flat_case(const isa_table *t, mc_dtype dtype, int64_t count, int64_t b_count)
{
    matrix a = matrix_new(dtype, 1, count, 0, -2, 2), b = matrix_new(dtype, 1, b_count, 0, -2, 2);
    matrix y = matrix_new(dtype, 1, count, 0, -2, 2), f = matrix_new(MC_F32, 1, count, 0, -1, 1);
    double *expected = doubles(count);
    for (int64_t i = 0; i < count; i++) expected[i] = a.v[i] * b.v[i % b_count] + y.v[i];
    assert_int_equal(t->k->multiply(device, count, a.m, b.m, b_count, y.m, true), MC_OK);
    assert_matrix(&y, expected, 3e-7, t->name, "multiply, accumulated");
    for (int64_t i = 0; i < count; i++) expected[i] = a.v[i] * b.v[i % b_count];
    assert_int_equal(t->k->multiply(device, count, a.m, b.m, b_count, y.m, false), MC_OK);
    assert_matrix(&y, expected, 3e-7, t->name, "multiply");
    for (int64_t i = 0; i < count; i++) expected[i] = f.v[i] + a.v[i] * 0.375;
    assert_int_equal(t->k->scale(device, count, a.m, 0.375f, f.m, true), MC_OK);
    assert_matrix(&f, expected, 3e-7, t->name, "scale, accumulated");
    for (int64_t i = 0; i < count; i++) expected[i] = a.v[i] + b.v[i % b_count];
    assert_int_equal(t->k->add(device, count, a.m, b.m, b_count, a.m), MC_OK);
    assert_matrix(&a, expected, 3e-7, t->name, "add in place");
    matrix_free(&a);
    matrix_free(&b);
    matrix_free(&y);
    matrix_free(&f);
    free(expected);
}

static void test_flat(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i)
    {
        const int64_t sizes[][2] = {{0, 1},     {1, 1},       {5000, 1},    {4999, 3},
                                    {5002, 61}, {3000, 1000}, {9000, 3000}, {40001, 40001}};
        for (int s = 0; s < 8; s++) flat_case(t, float_types[i], sizes[s][0], sizes[s][1]);
    }
}

static void test_zero(void **state)
{
    (void)state;
    size_t bytes = (5u << 20) + 3;
    char *data = malloc(bytes + 1);
    assert_non_null(data);
    FOR_TABLES(t)
    {
        memset(data, 1, bytes + 1);
        assert_int_equal(t->k->zero(device, data, bytes), MC_OK);
        for (size_t i = 0; i < bytes; i++) assert_true(data[i] == 0);
        assert_true(data[bytes] == 1);
        assert_int_equal(t->k->zero(device, data, 0), MC_OK);
    }
    free(data);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct product {
    bool ta, tb;
    int64_t m, n, k;
    mc_dtype a, b, c;
    float beta;
} product;

/* Of products: other than 1 for every second one. */
static float alpha_of(product p) { return p.n % 2 ? 1 : 0.75f; }

static void product_case(const isa_table *t, product p)
{
    matrix a = matrix_new(p.a, p.ta ? p.k : p.m, p.ta ? p.m : p.k, 3, -1, 1);
    matrix b = matrix_new(p.b, p.tb ? p.n : p.k, p.tb ? p.k : p.n, 5, -1, 1);
    matrix c = matrix_new(p.c, p.m, p.n, 2, -1, 1);
    double *expected = doubles(p.m * p.n);
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.n; j++) {
            double sum = 0;
            for (int64_t q = 0; q < p.k; q++)
                sum +=
                    a.v[p.ta ? q * p.m + i : i * p.k + q] * b.v[p.tb ? j * p.k + q : q * p.n + j];
            expected[i * p.n + j] =
                (double)alpha_of(p) * sum + (p.beta != 0 ? c.v[i * p.n + j] : 0);
        }
    if (p.beta == 0) /* is not read */
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++)
                if (p.c == MC_F32) ((float *)c.m.data)[i * c.m.stride + j] = NAN;
    if (p.m == 1)
        a.m.stride = p.ta ? a.m.stride : 1, c.m.stride = 1; /* of no meaning for one row */
    assert_int_equal(
        t->k->gemm(device, p.ta, p.tb, p.m, p.n, p.k, alpha_of(p), a.m, b.m, p.beta, c.m), MC_OK);
    if (p.m == 1) c.m.stride = p.n;
    assert_matrix(&c, expected, 2e-6, t->name, "gemm");
    matrix_free(&a);
    matrix_free(&b);
    matrix_free(&c);
    free(expected);
}

static void test_gemm(void **state)
{
    (void)state;
    const int64_t sizes[][3] = {{0, 3, 4},   {3, 0, 4},   {3, 4, 0},    {1, 1, 1},
                                {1, 37, 20}, {33, 1, 20}, {17, 19, 23}, {70, 90, 130}};
    FOR_TABLES(t)
    for (int s = 0; s < 8; s++)
        for (int types = 0; types < 27; types++)
            for (int mode = 0; mode < 8; mode++)
                product_case(t, (product){mode & 1, mode & 2, sizes[s][0], sizes[s][1], sizes[s][2],
                                          float_types[types % 3], float_types[types / 3 % 3],
                                          float_types[types / 9], mode & 4 ? 1 : 0});
}

/* Products of few rows have blocks of a few rows of each operand, and vectors along k: all of their
 * remainders. */
static void test_gemv(void **state)
{
    (void)state;
    const int64_t depths[] = {1, 3, 4, 8, 15, 16, 17, 35};
    FOR_TABLES(t)
    for (int64_t m = 1; m <= 9; m++)
        for (int64_t n = 1; n <= 9; n++)
            for (int d = 0; d < 8; d++)
                for (int types = 0; types < 9; types++)
                    product_case(t, (product){false, true, m, n, depths[d], float_types[types % 3],
                                              float_types[types / 3], MC_F32, (int)(m & 1)});
    FOR_TABLES(t)
    product_case(t, (product){false, true, 48, 301, 500, MC_F32, MC_BF16, MC_BF16, 1});
}

/* Products of some rows go through panels: of several, the last one part, and sums along k in two
 * parts, which are vectors in place or rows that are converted. */
static void test_skinny_gemm(void **state)
{
    (void)state;
    const int64_t depths[] = {1600, 1543};
    FOR_TABLES(t)
    for (int64_t m = 4; m <= 29; m += 5)
        for (int d = 0; d < 2; d++)
            for (int b = 0; b < 3; b++)
                product_case(t, (product){false, true, m, 64 + (m % 2) * 13, depths[d], MC_F32,
                                          float_types[b], MC_F32, (int)(m & 1)});
}

/* Larger than the blocks in which 16-bit operands are converted. */
static void test_gemm_blocks(void **state)
{
    (void)state;
    FOR_TABLES(t)
    {
        int64_t n = 2100, k = 2050;
        mc_dtype type = float_types[1 + (t - tables) % 2];
        matrix b = matrix_new(type, n, k, 0, -1, 1), a = matrix_new(type, 2, k, 0, -1, 1);
        matrix c = matrix_new(type, 2, n, 0, -1, 1), d = matrix_new(MC_F32, n, 2, 0, -1, 1);
        double *expected = doubles(2 * n), *turned = doubles(2 * n);
        for (int64_t i = 0; i < 2 * n; i++) {
            for (int64_t q = 0; q < k; q++) expected[i] += a.v[i / n * k + q] * b.v[i % n * k + q];
            turned[i % n * 2 + i / n] = expected[i];
        }
        assert_int_equal(t->k->gemm(device, false, true, 2, n, k, 1, a.m, b.m, 0, c.m), MC_OK);
        assert_matrix(&c, expected, 2e-6, t->name, "gemm in blocks of n");
        assert_int_equal(t->k->gemm(device, false, true, n, 2, k, 1, b.m, a.m, 0, d.m), MC_OK);
        assert_matrix(&d, turned, 2e-6, t->name, "gemm in blocks of m");
        matrix_free(&a);
        matrix_free(&b);
        matrix_free(&c);
        matrix_free(&d);
        free(expected);
        free(turned);
    }
}

/* The gradient of a linear's input, and what the linear before makes of it: the activation's
 * gradient, and the sums of its columns, which are added to what is there, as those of dy's. To
 * the bit as by kernels of their own. */
typedef struct input_gradient {
    int64_t rows, in, out;
    mc_dtype dtype;
    mc_activation activation;
    float beta;
    bool with_sums, with_bias;
} input_gradient;

static void input_gradient_case(const isa_table *t, input_gradient c)
{
    matrix dy = matrix_new(c.dtype, c.rows, c.out, 3, -1, 1);
    matrix weight = matrix_new(c.dtype, c.out, c.in, 5, -1, 1);
    matrix pre = matrix_new(c.dtype, c.rows, c.in, 1, -3, 3);
    matrix dx = matrix_new(c.dtype, c.rows, c.in, 2, -1, 1);
    matrix apart = matrix_new(c.dtype, c.rows, c.in, 4, -1, 1);
    memcpy(apart.v, dx.v, (size_t)(c.rows * c.in) * sizeof *dx.v);
    matrix_reset(&apart);
    float sums[2][256], dbias[2][256];
    assert_true(c.in <= 256 && c.out <= 256);
    for (int i = 0; i < 256; i++) sums[0][i] = sums[1][i] = 0.37f * (float)(i % 11) - 1;
    memcpy(dbias, sums, sizeof dbias);
    bool active = c.activation != MC_ACTIVATION_NONE;
    mc_linear_backward_call call = {.rows = c.rows,
                                    .in = c.in,
                                    .out = c.out,
                                    .alpha = 0.75f,
                                    .beta = c.beta,
                                    .dy = dy.m,
                                    .weight = weight.m,
                                    .activation = c.activation,
                                    .pre = active ? pre.m : (mc_matrix){0},
                                    .dx = dx.m,
                                    .sums = c.with_sums ? sums[0] : NULL,
                                    .dbias = c.with_bias ? dbias[0] : NULL};
    assert_int_equal(t->k->linear_backward_input(device, &call), MC_OK);
    t->k->gemm(device, false, false, c.rows, c.in, c.out, 0.75f, dy.m, weight.m, c.beta, apart.m);
    if (active)
        t->k->activation_backward(device, c.rows, c.in, c.activation, pre.m, 1, apart.m, apart.m,
                                  false);
    if (c.with_sums) t->k->column_sums(device, c.rows, c.in, apart.m, sums[1]);
    if (c.with_bias) t->k->column_sums(device, c.rows, c.out, dy.m, dbias[1]);
    for (int64_t i = 0; i < c.rows * c.in; i++) {
        int64_t row = i / c.in, column = i % c.in;
        assert_true(element(c.dtype, dx.m.data, row * dx.m.stride + column) ==
                    element(c.dtype, apart.m.data, row * apart.m.stride + column));
    }
    assert_gaps(&dx, "linear_backward_input");
    assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
    assert_memory_equal(dbias[0], dbias[1], sizeof dbias[0]);
    matrix_free(&dy);
    matrix_free(&weight);
    matrix_free(&pre);
    matrix_free(&dx);
    matrix_free(&apart);
}

/* The sums themselves, by plain loops over what was written and what was given. */
static void input_sums_case(const isa_table *t, mc_dtype dtype, mc_activation activation)
{
    enum { N = 70, IN = 33, OUT = 19 };
    matrix dy = matrix_new(dtype, N, OUT, 0, -1, 1), weight = matrix_new(dtype, OUT, IN, 0, -1, 1);
    matrix pre = matrix_new(dtype, N, IN, 0, -3, 3), dx = matrix_new(dtype, N, IN, 2, -1, 1);
    double expected[IN], expected_bias[OUT];
    float sums[IN], dbias[OUT];
    for (int i = 0; i < IN; i++) expected[i] = sums[i] = (float)i - 7.5f;
    for (int i = 0; i < OUT; i++) expected_bias[i] = dbias[i] = 2.5f - (float)i;
    mc_linear_backward_call call = {.rows = N,
                                    .in = IN,
                                    .out = OUT,
                                    .alpha = 1,
                                    .dy = dy.m,
                                    .weight = weight.m,
                                    .activation = activation,
                                    .pre = pre.m,
                                    .dx = dx.m,
                                    .sums = sums,
                                    .dbias = dbias};
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(t->k->linear_backward_input(device, &call), MC_OK);
        for (int i = 0; i < N * IN; i++)
            expected[i % IN] += element(dtype, dx.m.data, i / IN * dx.m.stride + i % IN);
        for (int i = 0; i < N * OUT; i++) expected_bias[i % OUT] += dy.v[i];
    }
    assert_floats(sums, expected, IN, 1e-6, t->name, "linear_backward_input, sums");
    assert_floats(dbias, expected_bias, OUT, 1e-6, t->name, "linear_backward_input, dbias");
    matrix_free(&dy);
    matrix_free(&weight);
    matrix_free(&pre);
    matrix_free(&dx);
}

static void test_linear_backward_input(void **state)
{
    (void)state;
    const int64_t sizes[][3] = {{0, 5, 4},   {5, 0, 4},    {5, 4, 0},     {1, 1, 1},
                                {1, 37, 20}, {33, 40, 20}, {130, 90, 70}, {700, 13, 5}};
    FOR_TABLES(t) FOR_TYPES(i) for (mc_activation a = 0; a <= MC_ACTIVATION_SILU; a++)
    {
        input_sums_case(t, float_types[i], a);
        for (int s = 0; s < 8; s++)
            for (int mode = 0; mode < 8; mode++) {
                float beta = mode & 2 ? 1 : 0; /* with an activation it is 0 */
                if (beta != 0 && a != MC_ACTIVATION_NONE) continue;
                input_gradient_case(t,
                                    (input_gradient){sizes[s][0], sizes[s][1], sizes[s][2],
                                                     float_types[i], a, beta, mode & 1, mode & 4});
            }
    }
}

/* ---- optimizers ------------------------------------------------------------------------------ */

enum { PARAMETERS = 12345 };

typedef struct flat {
    float g[PARAMETERS], m[PARAMETERS], v[PARAMETERS], p[PARAMETERS];
    double dm[PARAMETERS], dv[PARAMETERS], dp[PARAMETERS];
    uint16_t stored[PARAMETERS];
    float given[PARAMETERS]; /* gradients of any type */
} flat;

static flat *flat_new(void)
{
    flat *f = malloc(sizeof *f);
    assert_non_null(f);
    for (int i = 0; i < PARAMETERS; i++) {
        f->dm[i] = f->m[i] = (float)uniform(-1e-2, 1e-2);
        f->dv[i] = f->v[i] = (float)uniform(0, 1e-3);
        f->dp[i] = f->p[i] = (float)uniform(-1, 1);
        f->g[i] = (float)uniform(-100, 100);
    }
    return f;
}

static void assert_close(const float *got, const double *expected, double tolerance,
                         const char *isa, const char *what)
{
    for (int i = 0; i < PARAMETERS; i++)
        if (!(fabs(got[i] - expected[i]) <= tolerance * fabs(expected[i]) + 1e-7))
            fail_msg("%s, %s: [%d] %.9g, expected %.9g", what, isa, i, got[i], expected[i]);
}

/* The gradients in the type that they are given in. */
static mc_matrix round_gradients(flat *f, mc_dtype dtype)
{
    for (int i = 0; i < PARAMETERS; i++) {
        f->g[i] = (float)nearest(dtype, f->g[i]);
        set_element(dtype, f->given, i, f->g[i]);
    }
    return (mc_matrix){f->given, dtype, 0};
}

static void adam_case(const isa_table *t, bool l2, mc_dtype gradient_dtype, mc_dtype dtype)
{
    flat *f = flat_new();
    mc_matrix gradient = round_gradients(f, gradient_dtype);
    for (int step = 1; step <= 5; step++) {
        double c1 = 1 - pow(0.9f, step), c2 = sqrt(1 - pow(0.999f, step)), lr = 1e-3, wd = 0.1;
        mc_update update = {.lr = lr, .step = step + 3, .gradient_scale = 1 / 1024.0f};
        mc_adam_step s = {.update = &update,
                          .beta1 = 0.9f,
                          .beta2 = 0.999f,
                          .eps = 1e-8f,
                          .lr_factor = 1,
                          .weight_decay = (float)wd,
                          .l2 = l2,
                          .step_offset = -3};
        for (int i = 0; i < PARAMETERS; i++) {
            double g = f->g[i] / 1024.0 + (l2 ? (double)s.weight_decay * f->dp[i] : 0);
            f->dm[i] = (double)s.beta1 * f->dm[i] + (1 - (double)s.beta1) * g;
            f->dv[i] = (double)s.beta2 * f->dv[i] + (1 - (double)s.beta2) * g * g;
            f->dp[i] -= lr / c1 * f->dm[i] / (sqrt(f->dv[i]) / c2 + 1e-8) +
                        (l2 ? 0 : lr * (double)s.weight_decay * f->dp[i]);
        }
        bool own = dtype == MC_F32;
        assert_int_equal(t->k->adam(device, PARAMETERS, s, gradient, f->m, f->v, own ? NULL : f->p,
                                    own ? (void *)f->p : f->stored, dtype),
                         MC_OK);
    }
    assert_close(f->m, f->dm, 1e-5, t->name, "adam m");
    assert_close(f->v, f->dv, 1e-5, t->name, "adam v");
    for (int i = 0; i < PARAMETERS; i++) {
        if (!(fabs(f->p[i] - f->dp[i]) <= 1e-6 * fabs(f->dp[i]) + 1e-7))
            fail_msg("adam p, %s: [%d] %.9g, expected %.9g", t->name, i, f->p[i], f->dp[i]);
        if (dtype != MC_F32) assert_true(element(dtype, f->stored, i) == nearest(dtype, f->p[i]));
    }
    free(f);
}

static void test_adam(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i) for (int l2 = 0; l2 < 2; l2++)
    {
        adam_case(t, l2, MC_F32, float_types[i]);
        adam_case(t, l2, float_types[i], MC_BF16);
    }
}

/* The number of the map that is nearest, by looking at all. */
static int nearest_code(const float *map, float part)
{
    int best = 0;
    for (int i = 1; i < MC_MAP_SIZE; i++)
        if (fabsf(map[i] - part) < fabsf(map[best] - part)) best = i;
    return best;
}

/* Codes of state that a loop has stepped. Where a number lies between two of the map, rounding of
 * the last place may decide. */
static void check_codes(const isa_table *t, const float *map, const float *x, mc_state8 state)
{
    enum { B = MC_STATE_BLOCK };
    int other = 0;
    for (int b = 0; b * B < PARAMETERS; b++) {
        int n = PARAMETERS - b * B < B ? PARAMETERS - b * B : B;
        float largest = 0;
        for (int i = b * B; i < b * B + n; i++) largest = fmaxf(largest, fabsf(x[i]));
        if (!(fabsf(state.scale[b] - largest) <= 1e-6f * largest))
            fail_msg("adam8, %s: scale %d is %.9g, expected %.9g", t->name, b, state.scale[b],
                     largest);
        for (int i = b * B; i < b * B + n; i++) {
            int code = largest > 0 ? nearest_code(map, x[i] / largest) : 0;
            if (map[0] == 0 && code == 0 && x[i] > 0) code = 1; /* no zero under the root */
            other += code != state.code[i];
            if (abs(code - state.code[i]) > 1)
                fail_msg("adam8, %s: code %d is %d, expected %d", t->name, i, state.code[i], code);
        }
    }
    if (other > PARAMETERS / 1000) fail_msg("adam8, %s: %d codes differ", t->name, other);
}

/* Adam by a loop on what the codes stand for; a block of zeros, and the last one short. */
static void adam8_case(const isa_table *t, bool l2, mc_dtype gradient_dtype, mc_dtype dtype)
{
    enum { BLOCKS = (PARAMETERS + MC_STATE_BLOCK - 1) / MC_STATE_BLOCK };
    static uint8_t codes[2][PARAMETERS];
    static float scales[2][BLOCKS], maps[2][MC_MAP_SIZE];
    mc_state8 m = {codes[0], scales[0]}, v = {codes[1], scales[1]};
    flat *f = flat_new();
    mc_matrix gradient = round_gradients(f, gradient_dtype);
    bool own = dtype == MC_F32;
    mc_dynamic_map(true, maps[0]);
    mc_dynamic_map(false, maps[1]);
    memset(codes, 0, sizeof codes);
    memset(scales, 0, sizeof scales);
    for (int i = 0; !l2 && i < MC_STATE_BLOCK; i++) set_element(gradient_dtype, f->given, i, 0);
    for (int step = 1; step <= 4; step++) {
        mc_update update = {
            .lr = 1e-3, .step = step, .gradient_scale = 1 / 1024.0f, .skip = step == 3};
        mc_adam_step s = {&update, 0.9f, 0.999f, 1e-8f, 1, 0.1f, l2, 0};
        double c1 = 1 - pow(0.9f, step), c2 = sqrt(1 - pow(0.999f, step));
        for (int i = 0; i < PARAMETERS && !update.skip; i++) {
            float g =
                (float)element(gradient_dtype, f->given, i) / 1024 + (l2 ? 0.1f * f->p[i] : 0);
            f->m[i] =
                0.9f * (maps[0][codes[0][i]] * scales[0][i / MC_STATE_BLOCK]) + (1 - 0.9f) * g;
            f->v[i] = 0.999f * (maps[1][codes[1][i]] * scales[1][i / MC_STATE_BLOCK]) +
                      (1 - 0.999f) * (g * g);
            f->dp[i] = f->p[i] - 1e-3 / c1 * (double)f->m[i] / (sqrt(f->v[i]) / c2 + 1e-8) -
                       (l2 ? 0 : 1e-3 * (double)0.1f * f->p[i]);
        }
        assert_int_equal(t->k->adam8(device, PARAMETERS, s, gradient, m, v, own ? NULL : f->p,
                                     own ? (void *)f->p : f->stored, dtype),
                         MC_OK);
        check_codes(t, maps[0], f->m, m);
        check_codes(t, maps[1], f->v, v);
        assert_close(f->p, f->dp, 2e-6, t->name, "adam8 p");
        for (int i = 0; i < PARAMETERS && !own; i++)
            assert_true(element(dtype, f->stored, i) == nearest(dtype, f->p[i]));
    }
    free(f);
}

static void test_adam8(void **state)
{
    (void)state;
    FOR_TABLES(t) FOR_TYPES(i) for (int l2 = 0; l2 < 2; l2++)
    {
        adam8_case(t, l2, MC_F32, float_types[i]);
        adam8_case(t, l2, float_types[i], MC_BF16);
    }
}

/* Both maps are sorted, and have 0, 1 and the middles of the outer steps. */
static void test_dynamic_map(void **state)
{
    (void)state;
    float map[MC_MAP_SIZE];
    mc_dynamic_map(true, map);
    for (int i = 1; i < MC_MAP_SIZE; i++) assert_true(map[i] > map[i - 1]);
    assert_true(map[127] == 0 && map[255] == 1 && map[0] == -map[254]);
    assert_true(map[254] == (float)(1 - 0.9 / 128) && map[128] == (float)0.55e-6);
    mc_dynamic_map(false, map);
    for (int i = 1; i < MC_MAP_SIZE; i++) assert_true(map[i] > map[i - 1]);
    assert_true(map[0] == 0 && map[255] == 1 && map[254] == (float)(1 - 0.9 / 256));
    assert_true(map[1] == (float)0.325e-6);
}

static void sgd_case(const isa_table *t, float momentum, bool nesterov, bool l2,
                     mc_dtype gradient_dtype, mc_dtype dtype)
{
    flat *f = flat_new();
    mc_matrix gradient = round_gradients(f, gradient_dtype);
    for (int i = 0; i < PARAMETERS; i++) f->m[i] = NAN; /* what a first step must not read */
    float lr = 0.01f, wd = 0.1f, decay = l2 ? 0 : lr * wd, coupled = l2 ? wd : 0;
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < PARAMETERS; i++) {
            double g = f->g[i] / 1024.0 + (double)coupled * f->dp[i];
            f->dm[i] = step == 0 ? g : (double)momentum * f->dm[i] + g;
            double update = momentum == 0 ? g
                            : nesterov    ? g + (double)momentum * f->dm[i]
                                          : f->dm[i];
            f->dp[i] -= (double)lr * update + (double)decay * f->dp[i];
        }
        bool own = dtype == MC_F32;
        mc_update update = {.lr = lr, .step = step + 1, .gradient_scale = 1 / 1024.0f};
        mc_sgd_step given = {.update = &update,
                             .momentum = momentum,
                             .nesterov = nesterov,
                             .lr_factor = 1,
                             .weight_decay = wd,
                             .l2 = l2};
        assert_int_equal(t->k->sgd(device, PARAMETERS, given, gradient, momentum == 0 ? NULL : f->m,
                                   own ? NULL : f->p, own ? (void *)f->p : f->stored, dtype),
                         MC_OK);
    }
    if (momentum != 0) assert_close(f->m, f->dm, 1e-5, t->name, "sgd buffer");
    for (int i = 0; i < PARAMETERS; i++) {
        if (!(fabs(f->p[i] - f->dp[i]) <= 1e-6 * fabs(f->dp[i]) + 1e-7))
            fail_msg("sgd, %s: [%d] %.9g, expected %.9g", t->name, i, f->p[i], f->dp[i]);
        if (dtype != MC_F32) assert_true(element(dtype, f->stored, i) == nearest(dtype, f->p[i]));
    }
    free(f);
}

static void test_sgd(void **state)
{
    (void)state;
    FOR_TABLES(t)
    FOR_TYPES(i)
    for (int mode = 0; mode < 8; mode++) {
        sgd_case(t, mode & 1 ? 0.9f : 0, mode & 2, mode & 4, MC_F32, float_types[i]);
        sgd_case(t, mode & 1 ? 0.9f : 0, mode & 2, mode & 4, float_types[i], MC_BF16);
    }
}

/* With x in both types that it may have, and a gradient of each. */
static void muon_case(const isa_table *t, bool nesterov, mc_dtype dtype, mc_dtype x_dtype)
{
    flat *f = flat_new();
    mc_matrix gradient = round_gradients(f, dtype), x = {malloc(sizeof f->p), x_dtype, 0};
    mc_gradient_stats stats = {.sum_squares = 16};
    mc_update update = {.lr = 1e-2, .step = 1, .gradient_scale = 1 / 1024.0f};
    mc_muon_step step = {&update, 0.95f, nesterov, 0.5f, 0.1f, 3};
    bool own = dtype == MC_F32;
    assert_non_null(x.data);
    assert_int_equal(t->k->muon_momentum(device, PARAMETERS, step, gradient, f->m, x), MC_OK);
    assert_int_equal(t->k->muon_normalize(device, PARAMETERS, &stats, 1e-7f, x), MC_OK);
    assert_int_equal(t->k->muon_update(device, PARAMETERS, step, x, own ? NULL : f->p,
                                       own ? (void *)f->p : f->stored, dtype),
                     MC_OK);
    for (int i = 0; i < PARAMETERS; i++) {
        double g = f->g[i] / 1024.0, momentum = 0.95f;
        f->dm[i] += (1 - momentum) * (g - f->dm[i]);
        double u = nesterov ? g + momentum * (f->dm[i] - g) : f->dm[i];
        double got = element(x_dtype, x.data, i), error = x_dtype == MC_F32 ? 1e-6 : 1.0 / 128;
        if (!(fabs(got - u / 4) <= error * fabs(u / 4) + 1e-8))
            fail_msg("muon x, %s: [%d] %.9g, expected %.9g", t->name, i, got, u / 4);
        f->dp[i] = (1 - 5e-3 * (double)0.1f) * f->dp[i] - 5e-3 * 3 * got;
        if (!own) assert_true(element(dtype, f->stored, i) == nearest(dtype, f->p[i]));
    }
    assert_close(f->m, f->dm, 1e-5, t->name, "muon buffer");
    assert_close(f->p, f->dp, 1e-6, t->name, "muon p");
    memset(&stats, 0, sizeof stats); /* the least norm */
    set_element(x_dtype, x.data, 0, 1e-7);
    t->k->muon_normalize(device, 1, &stats, 1e-7f, x);
    assert_true(fabs(element(x_dtype, x.data, 0) - 1) < 1e-2);
    update.skip = 1;
    memcpy(f->v, f->m, sizeof f->v);
    t->k->muon_momentum(device, PARAMETERS, step, gradient, f->m, x);
    assert_memory_equal(f->v, f->m, sizeof f->v);
    for (int i = 0; i < PARAMETERS; i++) assert_true(element(x_dtype, x.data, i) == 0);
    free(x.data);
    free(f);
}

static void test_muon(void **state)
{
    (void)state;
    FOR_TABLES(t)
    FOR_TYPES(i)
    for (int mode = 0; mode < 4; mode++)
        muon_case(t, mode & 1, float_types[i], mode & 2 ? MC_BF16 : MC_F32);
}

/* Two matrices with rows and a distance that leave gaps: exactly what the rule says, and nothing
 * else. */
static void mirror_case(const isa_table *t, int n, int strip, mc_dtype dtype)
{
    enum { BATCH = 2, GAP = 3 };
    matrix x = matrix_new(dtype, (int64_t)BATCH * (n + 1), n, GAP, -1, 1);
    int64_t step = (n + 1) * x.m.stride;
    double *wanted = doubles(x.rows * n);
    memcpy(wanted, x.v, (size_t)(x.rows * n) * sizeof *wanted);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                int strips = n / strip, last = strips - 1;
                int of_i = i / strip < last ? i / strip : last,
                    of_j = j / strip < last ? j / strip : last;
                if (of_j > of_i) wanted[(b * (n + 1) + i) * n + j] = x.v[(b * (n + 1) + j) * n + i];
            }
    assert_int_equal(t->k->muon_mirror(device, BATCH, n, strip, x.m, step), MC_OK);
    assert_matrix(&x, wanted, 0, t->name, "muon_mirror");
    free(wanted);
    matrix_free(&x);
}

static void test_muon_mirror(void **state)
{
    (void)state;
    static const int cases[][2] = {{1, 1}, {40, 16}, {48, 16}, {200, 64}, {150, 48}, {64, 64}};
    FOR_TABLES(t)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mirror_case(t, cases[i][0], cases[i][1], MC_F32);
        mirror_case(t, cases[i][0], cases[i][1], MC_BF16);
    }
}

enum { STATS = 100003 };

static void test_gradient_stats(void **state)
{
    (void)state;
    enum { N = STATS };
    float *g = malloc(N * sizeof *g);
    assert_non_null(g);
    mc_matrix all = {g, MC_F32, N};
    FOR_TABLES(t)
    {
        double squares = 1, cubes = 2, sum = 2;
        for (int i = 0; i < N; i++) {
            g[i] = (float)uniform(-3, 2);
            squares += (double)g[i] * g[i];
            cubes += pow(fabs(g[i]), 3);
            sum += fabs(g[i]);
        }
        g[777] = -3.5f;
        squares += 3.5 * 3.5 - 1e-9, cubes += 0, sum += 0;
        mc_gradient_stats s = {.sum_squares = 1, .sum_powers = 2, .largest = 0.5f};
        assert_int_equal(t->k->gradient_stats(device, N, all, 2, 5, &s), MC_OK);
        assert_true(fabs(s.sum_squares / squares - 1) < 1e-4 && s.sum_powers == 2 &&
                    s.largest == 3.5f && !s.nonfinite);
        assert_int_equal(t->k->gradient_stats(device, 0, all, 2, 5, &s), MC_OK);
        s = (mc_gradient_stats){.sum_powers = 2};
        assert_int_equal(t->k->gradient_stats(device, N, all, 3, 5, &s), MC_OK);
        assert_true(fabs(s.sum_powers / cubes - 1) < 1e-3);
        s = (mc_gradient_stats){.sum_powers = 2};
        assert_int_equal(t->k->gradient_stats(device, N, all, 1, 5, &s), MC_OK);
        assert_true(fabs(s.sum_powers / sum - 1) < 1e-4);
        g[N - 1] = -INFINITY;
        assert_int_equal(t->k->gradient_stats(device, N, all, 2, 5, &s), MC_OK);
        assert_true(isinf(s.largest) && s.nonfinite == ((uint64_t)1 << 63) - (N - 1 + 5) &&
                    isinf(s.sum_squares));
        g[12] = NAN;
        s = (mc_gradient_stats){0};
        assert_int_equal(t->k->gradient_stats(device, N, all, 2, 5, &s), MC_OK);
        assert_true(isnan(s.largest) && s.nonfinite == ((uint64_t)1 << 63) - (12 + 5) &&
                    isnan(s.sum_squares));
        g[12] = 0;
        assert_int_equal(t->k->gradient_stats(device, N, all, 2, 5, &s), MC_OK);
        assert_true(isnan(s.largest)); /* once NaN, always */
    }
    free(g);
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* Elements of 16 bits stand for those of f32, infinities and NaN with them. */
static void check_16_bit_stats(const isa_table *t, mc_dtype dtype, const uint16_t *bits)
{
    float *wide = malloc(STATS * sizeof *wide);
    assert_non_null(wide);
    mc_matrix x = {(void *)(uintptr_t)bits, dtype, STATS}, y = {wide, MC_F32, STATS};
    assert_int_equal(t->k->scale(device, STATS, x, 1, y, false), MC_OK);
    for (int p = 1; p < 4; p++) {
        mc_gradient_stats got = {.largest = 0.5f}, expected = got;
        assert_int_equal(t->k->gradient_stats(device, STATS, x, p, 5, &got), MC_OK);
        assert_int_equal(t->k->gradient_stats(device, STATS, y, p, 5, &expected), MC_OK);
        assert_true(same(got.sum_squares, expected.sum_squares) &&
                    same(got.sum_powers, expected.sum_powers) &&
                    same((double)got.largest, (double)expected.largest) &&
                    got.nonfinite == expected.nonfinite);
        assert_true(isnan(got.largest) ? got.nonfinite > 0 : got.sum_squares > 0);
    }
    free(wide);
}

static void test_gradient_stats_16(void **state)
{
    (void)state;
    uint16_t *bits = malloc(STATS * sizeof *bits);
    assert_non_null(bits);
    FOR_TABLES(t) for (int i = 0; i < 2; i++)
    {
        mc_dtype dtype = i ? MC_F16 : MC_BF16;
        for (int j = 0; j < STATS; j++) set_element(dtype, bits, j, uniform(-3, 2));
        check_16_bit_stats(t, dtype, bits);
        for (int j = 0; j < STATS; j++) bits[j] = (uint16_t)(j * 40503u >> 3);
        check_16_bit_stats(t, dtype, bits);
    }
    free(bits);
}

/* Where nothing counts there is no row; where only b counts, a counts as one of sum 0. */
static void test_loss_add_counts(void **state)
{
    (void)state;
    static const float cases[][7] = {/* a, b, expected y, k */
                                     {3, 0, 5, 0, 3, 0, 0},
                                     {0, 0, 4, 2, 1, 1, 0.25f},
                                     {3, 6, 5, 0, 3, 6, 0},
                                     {3, 6, 4, 2, 9, 6, 1.5f}};
    FOR_TABLES(t) for (int i = 0; i < 4; i++)
    {
        const float *c = cases[i];
        float y[2], k[2];
        assert_int_equal(t->k->loss_add(device, c, c + 2, 0.5f, y, k), MC_OK);
        assert_true(y[0] == c[4] && y[1] == c[5] && k[0] == c[6] && k[1] == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_16_bit_patterns),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_activation_accuracy),
        cmocka_unit_test(test_activation_special),
        cmocka_unit_test(test_bias_activation),
        cmocka_unit_test(test_activation_backward),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_norm_optional),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_extremes),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_gemv),
        cmocka_unit_test(test_skinny_gemm),
        cmocka_unit_test(test_gemm_blocks),
        cmocka_unit_test(test_linear_backward_input),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_adam8),
        cmocka_unit_test(test_dynamic_map),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_muon_mirror),
        cmocka_unit_test(test_gradient_stats),
        cmocka_unit_test(test_gradient_stats_16),
        cmocka_unit_test(test_loss_add_counts),
        cmocka_unit_test(test_norm_branch_sums),
        cmocka_unit_test(test_gated),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
