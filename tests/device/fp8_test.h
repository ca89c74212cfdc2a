/* Training in 8 bits against its definition, in double: for the CPU's tables and the GPU. */
#ifndef MC_TESTS_FP8_TEST_H
#define MC_TESTS_FP8_TEST_H

#include "tests/device/kernel_test.h"

/* What a byte stands for: a sign, an exponent and a mantissa; exponent 0: units of the least normal
 * number's last digit. E4M3's all ones is NaN; E5M2's largest exponent is infinity and NaN. */
static inline double fp8_value(mc_fp8_format format, int code)
{
    int digits = format == MC_FP8_E4M3 ? 3 : 2, bias = format == MC_FP8_E4M3 ? 7 : 15;
    int exponent = (code & 127) >> digits, mantissa = code & ((1 << digits) - 1);
    double value = exponent ? ldexp(1 + ldexp(mantissa, -digits), exponent - bias)
                            : ldexp(mantissa, 1 - bias - digits);
    if (format == MC_FP8_E4M3 ? (code & 127) == 127 : (code & 127) > 0x7c) return (double)NAN;
    if (format == MC_FP8_E5M2 && (code & 127) == 0x7c) value = (double)INFINITY;
    return code & 128 ? -value : value;
}

/* The code of the number nearest to x: of two that are as near the even one, the largest where x is
 * beyond it. */
static inline int fp8_nearest(mc_fp8_format format, double x)
{
    int sign = signbit(x) ? 128 : 0, best = 0;
    double distance = (double)INFINITY;
    if (isnan(x) || (isinf(x) && format == MC_FP8_E4M3)) return sign | 127;
    if (isinf(x)) return sign | 0x7c;
    double most = format == MC_FP8_E4M3 ? 448 : 57344, size = fabs(x) < most ? fabs(x) : most;
    for (int code = 0; code < 128; code++) {
        double value = fp8_value(format, code), d = fabs(value - size);
        if (!isfinite(value) || d > distance || (d == distance && code % 2)) continue;
        best = code;
        distance = d;
    }
    return sign | best;
}

/* A cast as it should come out. */
typedef struct fp8_cast_case {
    matrix x;
    mc_fp8_format format;
    mc_fp8_scale scale;
    int64_t padded;
    uint8_t *data, *transposed; /* what the kernel is to write */
    mc_fp8_seen seen;           /* what it is to see */
} fp8_cast_case;

/* Numbers of many sizes: some saturate, some vanish; with `bad` some are not finite. Rows lie `gap`
 * elements apart. */
static inline fp8_cast_case fp8_cast_new(mc_dtype dtype, mc_fp8_format format, int64_t rows,
                                         int64_t columns, int64_t gap, bool bad)
{
    fp8_cast_case c = {.x = matrix_new(dtype, rows, columns, gap, -1, 1), .format = format};
    static const double special[] = {NAN, INFINITY, -INFINITY};
    for (int64_t i = 0; i < rows * columns; i++) {
        double value = c.x.v[i] * ldexp(1, (int)(random_bits() % 18) - 13);
        if (i % 7 == 3) value = ldexp(value, 3); /* beyond what the scale is for */
        c.x.v[i] = fabs(value) < 6.2e-5 ? 0 : nearest(dtype, value);
    }
    matrix_reset(&c.x);
    /* E5M2 has room for all of these sizes, at any scale: some do one, some the other */
    c.scale.scale = format == MC_FP8_E4M3 ? 16 : rows % 2 ? 0x1p-6f : 0x1p14f;
    c.scale.inverse = 1 / c.scale.scale;
    c.padded = (rows + 15) / 16 * 16;
    c.data = calloc((size_t)(rows * columns) + 1, 1);
    c.transposed = calloc((size_t)(c.padded * columns) + 1, 1);
    assert_non_null(c.data);
    assert_non_null(c.transposed);
    for (int i = 0; bad && i < 3; i++) {
        uint16_t half[] = {0x7e00, 0x7c00, 0xfc00}, brain[] = {0x7fc0, 0x7f80, 0xff80};
        int64_t at = 5 + 11 * i, place = at / columns * c.x.m.stride + at % columns;
        c.x.v[at] = special[i];
        if (dtype == MC_F32)
            ((float *)c.x.m.data)[place] = (float)special[i];
        else
            ((uint16_t *)c.x.m.data)[place] = dtype == MC_F16 ? half[i] : brain[i];
    }
    float largest = 0;
    bool nan = false;
    for (int64_t i = 0; i < rows * columns; i++) {
        double scaled = c.x.v[i] * (double)c.scale.scale;
        int code = fp8_nearest(format, scaled);
        c.data[i] = (uint8_t)code;
        c.transposed[i % columns * c.padded + i / columns] = (uint8_t)code;
        largest = fmaxf(largest, fabsf((float)c.x.v[i]));
        nan |= isnan(c.x.v[i]);
        c.seen.saturated +=
            isfinite(scaled) && fabs(scaled) > (format == MC_FP8_E4M3 ? 448 : 57344);
        c.seen.vanished += scaled != 0 && !(code & 127);
    }
    memcpy(&c.seen.largest, &largest, sizeof largest);
    if (nan) c.seen.largest = 0x7fc00000;
    c.seen.elements = (uint64_t)(rows * columns);
    return c;
}

static inline void fp8_cast_free(fp8_cast_case *c)
{
    free(c->data);
    free(c->transposed);
    matrix_free(&c->x);
}

static inline void assert_bytes(const uint8_t *got, const uint8_t *expected, int64_t n,
                                const char *isa, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (got[i] != expected[i])
            fail_msg("%s, %s at %lld: got 0x%02x, expected 0x%02x", what, isa, (long long)i, got[i],
                     expected[i]);
}

static inline void assert_seen(const mc_fp8_seen *got, const mc_fp8_seen *expected)
{
    assert_int_equal(got->largest, expected->largest);
    assert_int_equal(got->elements, expected->elements);
    assert_int_equal(got->saturated, expected->saturated);
    assert_int_equal(got->vanished, expected->vanished);
}

/* ---- casts with an activation ---------------------------------------------------------------- */

/* What a cast leaves behind. */
typedef struct fp8_cast_result {
    uint8_t *data, *transposed;
    float *sums;
    mc_fp8_seen seen, looked;
} fp8_cast_result;

static inline void fp8_cast_result_free(fp8_cast_result *r)
{
    free(r->data);
    free(r->transposed);
    free(r->sums);
}

/* y = what a cast with an activation or a gate casts, by their own kernels; adds column sums. */
static inline void fp8_activate(mc_device *d, const mc_kernels *k, const mc_fp8_cast_call *c,
                                mc_matrix y, float *sums)
{
    int64_t rows = c->rows, columns = c->columns;
    mc_activation kind = c->activation;
    mc_status status;
    if (c->gated && c->pre.data)
        status = k->gated_backward(d, rows, columns / 2, kind, c->pre, c->x, y, false);
    else if (c->gated)
        status = k->gated(d, rows, columns, kind, c->x, y);
    else if (c->pre.data)
        status = k->activation_backward(d, rows, columns, kind, c->pre, 1, c->x, y, false);
    else
        status = k->activation(d, rows, columns, kind, c->x, y);
    assert_int_equal(status, MC_OK);
    if (c->pre.data) assert_int_equal(k->column_sums(d, rows, columns, y, sums), MC_OK);
}

/* A cast by the kernels of a device, whose memory the matrices and the scale lie in; `apart`: by
 * the activation's own kernel, and a cast of what it wrote. */
static inline fp8_cast_result fp8_run_cast(mc_device *d, const mc_kernels *k, mc_fp8_cast_call call,
                                           bool apart)
{
    size_t bytes = (size_t)(call.rows * call.columns),
           turned = (size_t)(call.padded * call.columns),
           sums = (size_t)call.columns * sizeof(float), wide = bytes * mc_dtype_size(call.x.dtype);
    fp8_cast_result r = {malloc(bytes), malloc(turned), calloc(1, sums), {0}, {0}};
    assert_true(r.data && r.transposed && r.sums);
    mc_matrix y = {d->alloc(d, wide), call.x.dtype, call.columns};
    mc_fp8_seen *seen = d->alloc(d, 2 * sizeof *seen), none[2] = {{0}, {0}};
    call.data = d->alloc(d, bytes);
    call.transposed = d->alloc(d, turned);
    float *there = d->alloc(d, sums);
    assert_true(y.data && seen && call.data && call.transposed && there);
    d->copy_in(d, seen, none, sizeof none);
    d->copy_in(d, there, r.sums, sums);
    call.seen = seen;
    if (call.pre.data) call.sums = there;
    if (apart) {
        fp8_activate(d, k, &call, y, there);
        call.x = y;
        call.activation = MC_ACTIVATION_NONE;
        call.gated = false;
        call.pre = (mc_matrix){0};
        call.sums = NULL;
    }
    assert_int_equal(k->fp8_cast(d, &call), MC_OK);
    uint8_t *data = call.data, *transposed = call.transposed;
    call.scale = NULL;
    call.seen = seen + 1;
    call.sums = NULL;
    assert_int_equal(k->fp8_cast(d, &call), MC_OK);
    assert_true(d->copy_out(d, r.data, data, bytes) &&
                d->copy_out(d, r.transposed, transposed, turned) &&
                d->copy_out(d, r.sums, there, sums) && d->copy_out(d, none, seen, sizeof none));
    r.seen = none[0];
    r.looked = none[1];
    d->free(d, there, sums);
    d->free(d, transposed, turned);
    d->free(d, data, bytes);
    d->free(d, seen, 2 * sizeof *seen);
    d->free(d, y.data, wide);
    return r;
}

/* Both ways give the same bytes and see the same; sums are of the same numbers in another order. */
static inline void fp8_check_fused(mc_device *d, const mc_kernels *k, const char *isa,
                                   mc_fp8_cast_call call)
{
    fp8_cast_result fused = fp8_run_cast(d, k, call, false), apart = fp8_run_cast(d, k, call, true);
    assert_bytes(fused.data, apart.data, call.rows * call.columns, isa, "fused cast");
    assert_bytes(fused.transposed, apart.transposed, call.padded * call.columns, isa,
                 "fused cast, transposed");
    assert_seen(&fused.seen, &apart.seen);
    assert_seen(&fused.looked, &apart.looked);
    for (int64_t i = 0; i < call.columns; i++)
        if (!(fabsf(fused.sums[i] - apart.sums[i]) <= 2e-6f * (float)call.rows))
            fail_msg("sums, %s at %lld: got %.9g, expected %.9g", isa, (long long)i,
                     (double)fused.sums[i], (double)apart.sums[i]);
    fp8_cast_result_free(&fused);
    fp8_cast_result_free(&apart);
}

/* ---- rows with a scale each ------------------------------------------------------------------ */

/* Rows of many sizes, the second one zero, and their casts. With `bad` the third row has a NaN and
 * the fourth an infinity, which keep a scale of 1. */
typedef struct fp8_rows_case {
    matrix x;
    float *factor, *inverse; /* (columns); (rows), as it should come out */
    uint8_t *data;           /* the same, (rows, columns) */
} fp8_rows_case;

static inline void fp8_expect_row(fp8_rows_case *c, int64_t row, bool factors, int margin)
{
    int64_t columns = c->x.columns;
    double largest = 0;
    bool finite = true;
    for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
        double f = factors ? (double)c->factor[i % columns] : 1;
        double v = (double)(float)(c->x.v[i] * f);
        finite &= isfinite(v);
        largest = fmax(largest, fabs(v));
    }
    double scale = finite && largest > 0 ? exp2(floor(log2(448 / largest))) : 1;
    scale = ldexp(scale, -margin);
    c->inverse[row] = (float)(1 / scale);
    for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
        double f = factors ? (double)c->factor[i % columns] : 1;
        c->data[i] = (uint8_t)fp8_nearest(MC_FP8_E4M3, (double)(float)(c->x.v[i] * f) * scale);
    }
}

static inline fp8_rows_case fp8_rows_new(mc_dtype dtype, const int64_t shape[3], bool factors,
                                         int margin, bool bad)
{
    int64_t rows = shape[0], columns = shape[1];
    fp8_rows_case c = {.x = matrix_new(dtype, rows, columns, shape[2], -1, 1)};
    c.factor = malloc((size_t)columns * sizeof *c.factor);
    c.inverse = malloc((size_t)rows * sizeof *c.inverse);
    c.data = malloc((size_t)(rows * columns));
    assert_true(c.factor && c.inverse && c.data);
    for (int64_t i = 0; i < columns; i++) c.factor[i] = (float)uniform(1e-4, 3e-2);
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t row = i / columns;
        double value = ldexp(c.x.v[i], (int)(row * 5 % 18) - 12 - (int)(random_bits() % 8));
        c.x.v[i] = row == 1 || fabs(value) < 6.2e-5 ? 0 : nearest(dtype, value);
    }
    matrix_reset(&c.x);
    for (int i = 2; bad && i < 4 && i < rows; i++) {
        uint16_t half[] = {0x7e00, 0xfc00}, brain[] = {0x7fc0, 0xff80};
        int64_t place = i * c.x.m.stride + columns / 2;
        c.x.v[i * columns + columns / 2] = i == 2 ? (double)NAN : -(double)INFINITY;
        if (dtype == MC_F32)
            ((float *)c.x.m.data)[place] = i == 2 ? NAN : -INFINITY;
        else
            ((uint16_t *)c.x.m.data)[place] = dtype == MC_F16 ? half[i - 2] : brain[i - 2];
    }
    for (int64_t row = 0; row < rows; row++) fp8_expect_row(&c, row, factors, margin);
    return c;
}

/* A cast by the kernels of a device. Bytes begin `odd` bytes after an aligned address. */
static inline void fp8_check_rows(mc_device *d, const mc_kernels *k, const char *name,
                                  mc_dtype dtype, const int64_t shape[3], bool factors, int margin,
                                  bool bad, int odd)
{
    fp8_rows_case c = fp8_rows_new(dtype, shape, factors, margin, bad);
    int64_t rows = shape[0], columns = shape[1];
    size_t bytes = (size_t)(rows * columns), wide = sizeof(float) * (size_t)columns,
           inverses = sizeof(float) * (size_t)rows,
           x_bytes = (size_t)(rows * c.x.m.stride) * mc_dtype_size(dtype);
    uint8_t *got = malloc(bytes);
    float *inverse = malloc(inverses);
    mc_fp8_rows_call call = {.rows = rows,
                             .columns = columns,
                             .x = {d->alloc(d, x_bytes), dtype, c.x.m.stride},
                             .factor = factors ? d->alloc(d, wide) : NULL,
                             .margin = margin,
                             .inverse = d->alloc(d, inverses)};
    uint8_t *there = d->alloc(d, bytes + (size_t)odd);
    assert_true(got && inverse && call.x.data && call.inverse && there);
    call.data = there + odd;
    d->copy_in(d, call.x.data, c.x.m.data, x_bytes);
    if (factors) d->copy_in(d, (float *)(uintptr_t)call.factor, c.factor, wide);
    assert_int_equal(k->fp8_cast_rows(d, &call), MC_OK);
    assert_true(d->copy_out(d, got, call.data, bytes) &&
                d->copy_out(d, inverse, call.inverse, inverses));
    assert_bytes(got, c.data, (int64_t)bytes, name, "cast of rows");
    for (int64_t i = 0; i < rows; i++) assert_true(inverse[i] == c.inverse[i]);
    for (int64_t i = 0; i < rows * columns && !bad; i++) /* nothing saturates */
        assert_true(fabs(c.x.v[i] * (factors ? (double)c.factor[i % columns] : 1)) <=
                    448.0 * (double)inverse[i / columns]);
    d->free(d, there, bytes + (size_t)odd);
    d->free(d, call.inverse, inverses);
    if (factors) d->free(d, (float *)(uintptr_t)call.factor, wide);
    d->free(d, call.x.data, x_bytes);
    free(inverse);
    free(got);
    free(c.data);
    free(c.inverse);
    free(c.factor);
    matrix_free(&c.x);
}

/* Rows shorter than a block's threads, and longer than what they keep (16,384 elements of 16
 * bits). */
static inline void fp8_check_all_rows(mc_device *d, const mc_kernels *k, const char *name)
{
    static const int64_t shapes[][3] = {{1, 16, 0},   {5, 48, 3},    {37, 144, 0}, {8, 17, 1},
                                        {4, 4104, 8}, {2, 16392, 0}, {1, 16391, 0}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(t)
        {
            fp8_check_rows(d, k, name, float_types[t], shapes[s], false, 0, s == 2, s == 1);
            fp8_check_rows(d, k, name, float_types[t], shapes[s], true, s == 3, s == 4, 0);
        }
}

static inline void fp8_check_transpose(mc_device *d, const mc_kernels *k, const char *name)
{
    static const int64_t shapes[][2] = {{1, 1},    {16, 16},  {128, 64}, {300, 144},
                                        {33, 515}, {129, 72}, {64, 8}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t rows = shapes[s][0], columns = shapes[s][1], count = rows * columns;
        size_t bytes = (size_t)count, wide = sizeof(float) * (size_t)columns;
        uint8_t *x = malloc(bytes), *y = malloc(bytes), *x_there = d->alloc(d, bytes),
                *y_there = d->alloc(d, bytes);
        float *ones = malloc(wide), *ones_there = d->alloc(d, wide);
        assert_true(x && y && ones && x_there && y_there && ones_there);
        for (int64_t i = 0; i < count; i++) x[i] = (uint8_t)random_bits();
        d->copy_in(d, x_there, x, bytes);
        assert_int_equal(k->fp8_transpose(d, rows, columns, x_there, y_there, ones_there), MC_OK);
        assert_true(d->copy_out(d, y, y_there, bytes) && d->copy_out(d, ones, ones_there, wide));
        for (int64_t i = 0; i < count; i++)
            if (y[i % columns * rows + i / columns] != x[i])
                fail_msg("%s: byte %lld of (%lld, %lld) transposed", name, (long long)i,
                         (long long)rows, (long long)columns);
        for (int64_t i = 0; i < columns; i++) assert_true(ones[i] == 1);
        assert_int_equal(k->fp8_transpose(d, rows, columns, x_there, y_there, NULL), MC_OK);
        assert_true(d->copy_out(d, x, y_there, bytes));
        assert_memory_equal(x, y, bytes);
        d->free(d, ones_there, wide);
        d->free(d, y_there, bytes);
        d->free(d, x_there, bytes);
        free(ones);
        free(y);
        free(x);
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* A norm that also writes its result in 8 bits: y is what it is without, and the bytes are those of
 * a cast of it. x, f (NULL data: none), weight and bias (NULL data: RMSNorm) are in d's memory. */
static inline void fp8_check_norm(mc_device *d, const mc_kernels *k, const char *isa, int64_t rows,
                                  int64_t columns, mc_matrix x, mc_matrix f, mc_matrix weight,
                                  mc_matrix bias)
{
    size_t count = (size_t)(rows * columns), wide = count * mc_dtype_size(x.dtype);
    const float scale = 64;
    uint8_t *y[2], *bytes[2], *y_there = d->alloc(d, wide), *bytes_there = d->alloc(d, count);
    float *scale_there = d->alloc(d, sizeof scale);
    assert_true(y_there && bytes_there && scale_there);
    d->copy_in(d, scale_there, &scale, sizeof scale);
    for (int i = 0; i < 2; i++) {
        y[i] = malloc(wide);
        bytes[i] = malloc(count);
        assert_true(y[i] && bytes[i]);
        memset(bytes[i], 0xff, count);
        d->copy_in(d, bytes_there, bytes[i], count);
        mc_residual_norm_call call = {.rows = rows,
                                      .columns = columns,
                                      .x = x,
                                      .f = f,
                                      .weight = weight,
                                      .bias = bias,
                                      .eps = 1e-5f,
                                      .y = {y_there, x.dtype, columns},
                                      .bytes = i ? bytes_there : NULL,
                                      .scale = scale_there};
        mc_fp8_cast_call cast = {.rows = rows,
                                 .columns = columns,
                                 .x = call.y,
                                 .format = MC_FP8_E4M3,
                                 .scale = scale_there,
                                 .data = bytes_there};
        assert_int_equal(k->residual_norm(d, &call), MC_OK);
        if (!i) assert_int_equal(k->fp8_cast(d, &cast), MC_OK);
        assert_true(d->copy_out(d, y[i], y_there, wide) &&
                    d->copy_out(d, bytes[i], bytes_there, count));
    }
    assert_bytes(y[1], y[0], (int64_t)wide, isa, "norm with bytes, y");
    assert_bytes(bytes[1], bytes[0], (int64_t)count, isa, "norm with bytes");
    d->free(d, y_there, wide);
    d->free(d, bytes_there, count);
    d->free(d, scale_there, sizeof scale);
    for (int i = 0; i < 2; i++) {
        free(y[i]);
        free(bytes[i]);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* A product of random bytes, and what it is in double. The caller points the call at `inverse`. */
typedef struct fp8_product_case {
    mc_fp8_gemm_call call;
    float inverse[2];
    uint8_t *a, *b;
    int64_t a_bytes, b_bytes;
    matrix c, bias;
    double *expected; /* (m, n) */
} fp8_product_case;

static inline uint8_t *fp8_random(mc_fp8_format format, int64_t count)
{
    uint8_t *codes = malloc((size_t)count + 1);
    assert_non_null(codes);
    for (int64_t i = 0; i < count; i++) {
        int code = (int)(random_bits() & 255);
        /* of the sizes that a cast gives most numbers, so that sums are not of a few alone */
        bool usual = fabs(fp8_value(format, code)) <= 4 && fabs(fp8_value(format, code)) > 0.01;
        codes[i] = (uint8_t)(usual ? code : 0x38);
    }
    return codes;
}

static inline fp8_product_case fp8_product_new(const int64_t shape[3], bool ta, bool tb,
                                               mc_fp8_format format_a, mc_dtype dtype, bool biased,
                                               bool accumulate)
{
    int64_t m = shape[0], n = shape[1], k = shape[2];
    fp8_product_case p = {.inverse = {0.25f, 0.5f}, .a_bytes = m * k, .b_bytes = n * k};
    p.a = fp8_random(format_a, p.a_bytes);
    p.b = fp8_random(MC_FP8_E4M3, p.b_bytes);
    p.c = matrix_new(dtype, m, n, 0, -1, 1);
    p.bias = matrix_new(dtype, 1, n, 0, -1, 1);
    p.expected = doubles(m * n);
    p.call = (mc_fp8_gemm_call){.transpose_a = ta,
                                .transpose_b = tb,
                                .m = m,
                                .n = n,
                                .k = k,
                                .alpha = 0.5f,
                                .beta = accumulate ? 1 : 0,
                                .a = {p.a, ta ? m : k, format_a, NULL},
                                .b = {p.b, tb ? k : n, MC_FP8_E4M3, NULL},
                                .c = p.c.m};
    if (biased) p.call.bias = p.bias.m;
    for (int64_t i = 0; i < m * n; i++) {
        int64_t row = i / n, column = i % n;
        double sum = 0;
        for (int64_t l = 0; l < k; l++)
            sum += fp8_value(format_a, p.a[ta ? l * m + row : row * k + l]) *
                   fp8_value(MC_FP8_E4M3, p.b[tb ? column * k + l : l * n + column]);
        p.expected[i] =
            0.5 * 0.25 * 0.5 * sum + (biased ? p.bias.v[column] : 0) + (accumulate ? p.c.v[i] : 0);
    }
    return p;
}

static inline double fp8_activated(mc_activation a, double x)
{
    switch (a) {
    case MC_ACTIVATION_RELU: return x > 0 ? x : 0;
    case MC_ACTIVATION_GELU: return x / 2 * (1 + erf(x / sqrt(2)));
    case MC_ACTIVATION_GELU_NEW:
        return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default: return x;
    }
}

/* The bytes of an activated product: each is the nearest to a number that differs from the exact
 * one by at most `tolerance` of the largest pre-activation. Counts those that saturate. */
static inline void assert_product_bytes(const fp8_product_case *p, const uint8_t *got, float scale,
                                        double tolerance, const char *isa, int64_t *saturated)
{
    double largest = 0, factor = (double)scale;
    int64_t count = p->call.m * p->call.n;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(p->expected[i]));
    for (int64_t i = 0; i < count; i++) {
        double v = fp8_activated(p->call.activation, p->expected[i]), slack = tolerance * largest;
        double least = fp8_value(MC_FP8_E4M3, fp8_nearest(MC_FP8_E4M3, factor * (v - slack)));
        double most = fp8_value(MC_FP8_E4M3, fp8_nearest(MC_FP8_E4M3, factor * (v + slack)));
        double value = fp8_value(MC_FP8_E4M3, got[i]);
        *saturated += factor * v > 448;
        if (!(value >= least && value <= most))
            fail_msg("product to bytes, %s, activation %d (%lld, %lld) at %lld: got %g, expected "
                     "%g to %g",
                     isa, (int)p->call.activation, (long long)p->call.m, (long long)p->call.n,
                     (long long)i, value, least, most);
    }
}

static inline void fp8_product_free(fp8_product_case *p)
{
    free(p->a);
    free(p->b);
    free(p->expected);
    matrix_free(&p->c);
    matrix_free(&p->bias);
}

/* The same with inverses of rows: a (m) and b (n), or none of b. */
static inline fp8_product_case fp8_rows_product_new(const int64_t shape[3], bool tb, mc_dtype dtype,
                                                    bool biased, bool accumulate, float *inverse_a,
                                                    float *inverse_b)
{
    int64_t m = shape[0], n = shape[1];
    fp8_product_case p = fp8_product_new(shape, false, tb, MC_FP8_E4M3, dtype, biased, accumulate);
    p.call.by_rows = true;
    for (int64_t i = 0; i < m; i++) inverse_a[i] = ldexpf(1, (int)(random_bits() % 6) - 3);
    for (int64_t i = 0; inverse_b && i < n; i++) inverse_b[i] = (float)uniform(0.1, 3);
    for (int64_t i = 0; i < m * n; i++) {
        double rest = (biased ? p.bias.v[i % n] : 0) + (accumulate ? p.c.v[i] : 0);
        double factors = (double)inverse_a[i / n] * (inverse_b ? (double)inverse_b[i % n] : 1);
        p.expected[i] = (p.expected[i] - rest) / (0.25 * 0.5) * factors + rest;
    }
    return p;
}

#endif
