/* Weights in 8 bits against their definition, in double: for the CPU's tables and the GPU. */
#ifndef MC_TESTS_QUANTIZED_TEST_H
#define MC_TESTS_QUANTIZED_TEST_H

#include "core/device/weights.h"
#include "tests/device/kernel_test.h"

/* What a byte stands for, without its scale. E4M3: a sign, 4 bits of exponent that count from 2^-7,
 * 3 of mantissa; exponent 0: units of 2^-9; all ones: NaN. */
static inline double quantized_value(mc_weight_format format, int code)
{
    if (format == MC_WEIGHTS_INT8) return code < 128 ? code : code - 256;
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    if ((code & 127) == 127) return (double)NAN;
    return code & 128 ? -value : value;
}

/* The byte nearest to x, of two that are as near the even one; the sign of zero is left open. */
static inline int quantized_nearest(mc_weight_format format, double x)
{
    int best = 0;
    double distance = (double)INFINITY;
    for (int code = 0; code < 256; code++) {
        double value = quantized_value(format, code), d = fabs(value - x);
        if (isnan(value) || (format == MC_WEIGHTS_INT8 && code == 128)) continue;
        if (d > distance || (d == distance && code % 2)) continue;
        best = code;
        distance = d;
    }
    return best;
}

/* Bytes and scales of a matrix on the host. */
typedef struct quantized {
    mc_matrix8 q;
    double *v; /* (rows, columns): what they stand for */
} quantized;

static inline quantized quantized_new(mc_weight_format format, int64_t rows, int64_t columns)
{
    quantized e = {.q = {.format = format, .rows = rows, .columns = columns}};
    e.q.data = calloc((size_t)(rows * columns) + 1, 1);
    e.q.scale = calloc((size_t)rows + 1, sizeof *e.q.scale);
    e.v = doubles(rows * columns);
    assert_non_null(e.q.data);
    assert_non_null(e.q.scale);
    return e;
}

/* Any bytes that are numbers; scales of many sizes, and one of 0. */
static inline quantized quantized_random(mc_weight_format format, int64_t rows, int64_t columns)
{
    quantized e = quantized_new(format, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        int code = (int)(random_bits() & 255);
        if (isnan(quantized_value(format, code)) || (format == MC_WEIGHTS_INT8 && code == 128))
            code = 5;
        e.q.data[i] = (uint8_t)code;
    }
    double unit = format == MC_WEIGHTS_INT8 ? 1 / 127.0 : 1 / 448.0;
    for (int64_t i = 0; i < rows; i++)
        e.q.scale[i] = i == 2 ? 0 : (float)(unit * uniform(0.01, 0.3));
    for (int64_t i = 0; i < rows * columns; i++)
        e.v[i] = (double)e.q.scale[i / columns] * quantized_value(format, e.q.data[i]);
    return e;
}

static inline void quantized_free(quantized *e)
{
    free(e->q.data);
    free(e->q.scale);
    free(e->v);
}

/* Rows of many sizes, of which one is zero and one ends in a huge value, as scales and bytes of the
 * definition have them. */
static inline matrix quantized_matrix(mc_dtype dtype, int64_t rows, int64_t columns)
{
    matrix x = matrix_new(dtype, rows, columns, 3, -1, 1);
    for (int64_t i = 0; i < rows * columns; i++) {
        double size = ldexp(1, -(int)(i / columns % 7));
        x.v[i] = nearest(dtype, x.v[i] * size);
        if (dtype == MC_F16 && fabs(x.v[i]) < 6.2e-5) x.v[i] = 0;
        if (i / columns == 1) x.v[i] = 0;
    }
    x.v[rows * columns - 1] = nearest(dtype, 900);
    matrix_reset(&x);
    return x;
}

static inline void quantized_check(const matrix *x, const mc_matrix8 *q, const char *isa)
{
    float largest_code = q->format == MC_WEIGHTS_INT8 ? 127.0f : 448.0f;
    for (int64_t r = 0; r < q->rows; r++) {
        float largest = 0;
        for (int64_t k = 0; k < q->columns; k++)
            largest = fmaxf(largest, fabsf((float)x->v[r * q->columns + k]));
        float scale = largest / largest_code;
        if (q->scale[r] != scale)
            fail_msg("%s: scale %lld: got %.9g, expected %.9g", isa, (long long)r,
                     (double)q->scale[r], (double)scale);
        for (int64_t k = 0; k < q->columns; k++) {
            float units = scale > 0 ? (float)x->v[r * q->columns + k] / scale : 0;
            int got = q->data[r * q->columns + k], expected = quantized_nearest(q->format, units);
            if (quantized_value(q->format, got) == quantized_value(q->format, expected)) continue;
            fail_msg("%s, %s: (%lld, %lld): %.9g is byte %d, expected %d", isa,
                     mc_dtype_name(x->m.dtype), (long long)r, (long long)k, (double)units, got,
                     expected);
        }
    }
}

static const mc_weight_format quantized_formats[] = {MC_WEIGHTS_INT8, MC_WEIGHTS_FP8};
#define FOR_FORMATS(i) for (int i = 0; i < 2; i++)

/* One product and what it has to be; activation RELU comes with a bias, NONE without. */
typedef struct quantized_case {
    int64_t rows, in, out;
    mc_activation activation;
    float alpha;
    matrix x, bias, y;
    quantized w;
    double *expected;
} quantized_case;

static inline quantized_case quantized_case_new(const int64_t *shape, mc_dtype dtype,
                                                mc_weight_format format, mc_activation activation)
{
    quantized_case c = {shape[0], shape[1], shape[2], activation, .alpha = 0.5f};
    c.x = matrix_new(dtype, c.rows, c.in, 8, -1, 1);
    c.bias = matrix_new(dtype, 1, c.out, 0, -1, 1);
    c.y = matrix_new(dtype, c.rows, c.out, 3, -1, 1);
    c.w = quantized_random(format, c.out, c.in);
    c.expected = doubles(c.rows * c.out);
    for (int64_t i = 0; i < c.rows * c.out; i++) {
        for (int64_t k = 0; k < c.in; k++)
            c.expected[i] += c.x.v[i / c.out * c.in + k] * c.w.v[i % c.out * c.in + k];
        c.expected[i] *= (double)c.alpha;
        if (activation != MC_ACTIVATION_RELU) continue;
        c.expected[i] += c.bias.v[i % c.out];
        if (c.expected[i] < 0) c.expected[i] = 0;
    }
    return c;
}

static inline void quantized_case_free(quantized_case *c)
{
    matrix_free(&c->x);
    matrix_free(&c->bias);
    matrix_free(&c->y);
    quantized_free(&c->w);
    free(c->expected);
}

#endif
