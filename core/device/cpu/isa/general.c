/* The kernels of general operations: copies between strides, functions of one and two elements,
 * sums over a middle dimension. */
#include <float.h>
#include "core/device/cpu/isa/math_internal.h"

/* ---- strided copies -------------------------------------------------------------------------- */

/* n elements of x, `step` apart, as f32. */
static const float *read_line(mc_matrix x, int64_t at, int64_t step, int n, float *buffer)
{
    if (step == 1) return mc_read(x, at, n, buffer);
    if (step == 0) {
        float value;
        mc_convert_in(x.data, x.dtype, at, 1, &value);
        for (int i = 0; i < n; i++) buffer[i] = value;
    } else if (x.dtype == MC_F32) {
        const float *from = (const float *)x.data + at;
        for (int i = 0; i < n; i++) buffer[i] = from[i * step];
    } else {
        const uint16_t *from = (const uint16_t *)x.data + at;
        for (int i = 0; i < n; i++)
            buffer[i] =
                x.dtype == MC_BF16 ? mc_from_bf16(from[i * step]) : mc_from_f16(from[i * step]);
    }
    return buffer;
}

static void write_line(mc_matrix y, int64_t at, int64_t step, int n, const float *values,
                       bool accumulate)
{
    if (step == 1) {
        mc_write(y, at, n, values, accumulate);
        return;
    }
    for (int i = 0; i < n; i++) mc_write(y, at + i * step, 1, values + i, accumulate);
}

/* The start of line number `line` of a shape; a line is a row along the last dimension. */
static int64_t line_at(const mc_strided_shape *s, const int64_t *stride, int64_t line)
{
    int64_t at = 0;
    for (int i = s->ndim - 2; i >= 0; i--) {
        at += line % s->size[i] * stride[i];
        line /= s->size[i];
    }
    return at;
}

mc_status MC_K(strided_copy)(mc_device *d, const mc_strided_shape *shape, mc_matrix x, float factor,
                             mc_matrix y, bool accumulate)
{
    (void)d;
    const mc_strided_shape s = *shape;
    int last = s.ndim - 1;
    int64_t lines = 1;
    for (int i = 0; i < last; i++) lines *= s.size[i];
    mc_chunks c = mc_chunks_of(lines, s.size[last]);
#pragma omp parallel for schedule(static) if (lines * s.size[last] > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float xb[MC_CHUNK], out[MC_CHUNK];
        int64_t x_at = line_at(&s, s.x, k.row) + k.column * s.x[last];
        int64_t y_at = line_at(&s, s.y, k.row) + k.column * s.y[last];
        const float *values = read_line(x, x_at, s.x[last], k.n, xb);
        if (factor != 1.0f) {
#pragma omp simd
            for (int j = 0; j < k.n; j++) out[j] = values[j] * factor;
            values = out;
        }
        write_line(y, y_at, s.y[last], k.n, values, accumulate);
    }
    return MC_OK;
}

/* ---- functions of one element ---------------------------------------------------------------- */

/* e^x for any x: multiplies by the power of two in two steps, so that large results become infinite
 * and small ones subnormal. 2 ulp. */
static inline float exp_any(float x)
{
    const float round = 0x1.8p23f;
    x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    float shifted = x * 0x1.715476p0f + round, n = shifted - round;
    float r = x - n * 0x1.62ep-1f;
    float p = 1.0f + mc_expm1_reduced(r - n * 0x1.0bfbe8p-15f);
    int32_t whole = (int32_t)(mc_float_bits(shifted) - mc_float_bits(round)), half = whole >> 1;
    float low = mc_bits_float((uint32_t)(half + 127) << 23);
    return p * low * mc_bits_float((uint32_t)(whole - half + 127) << 23);
}

/* ln x for any x. */
static inline float log_any(float x)
{
    bool tiny = x < FLT_MIN;
    float y = mc_log_f32(tiny ? x * 0x1p23f : x) - (tiny ? 15.9423851529f : 0.0f); /* 23 ln 2 */
    y = x < INFINITY ? y : INFINITY;
    return x > 0.0f ? y : x == 0.0f ? -INFINITY : NAN;
}

static inline float sigmoid(float x)
{
    float mirror;
    return mc_sigmoid(x, &mirror);
}

static inline float sigmoid_slope(float x)
{
    float mirror, s = mc_sigmoid(x, &mirror);
    return s * mirror;
}

/* log(1 + e) for 0 <= e <= 1, with full relative accuracy where e is small. */
static inline float log_one_plus(float e)
{
    float u = 1.0f + e;
    return mc_log_f32(u) - ((u - 1.0f) - e) / u;
}

static inline float softplus(float x)
{
    return log_one_plus(mc_exp_nonpositive(-fabsf(x))) + (x > 0.0f ? x : 0.0f);
}

#define MC_LOOP(to, expression)                                         \
    _Pragma("omp simd") for (int i = 0; i < n; i++) to[i] = expression; \
    break

static void apply(mc_unary kind, const float *x, float *y, int n)
{
    switch (kind) {
    case MC_UNARY_EXP: MC_LOOP(y, exp_any(x[i]));
    case MC_UNARY_LOG: MC_LOOP(y, log_any(x[i]));
    case MC_UNARY_SQRT: MC_LOOP(y, sqrtf(x[i]));
    case MC_UNARY_SIGMOID: MC_LOOP(y, sigmoid(x[i]));
    case MC_UNARY_SOFTPLUS: MC_LOOP(y, softplus(x[i]));
    }
}

static void apply_slope(mc_unary kind, const float *x, const float *dy, float *dx, int n)
{
    switch (kind) {
    case MC_UNARY_EXP: MC_LOOP(dx, dy[i] * exp_any(x[i]));
    case MC_UNARY_LOG: MC_LOOP(dx, dy[i] / x[i]);
    case MC_UNARY_SQRT: MC_LOOP(dx, dy[i] * 0.5f / sqrtf(x[i]));
    case MC_UNARY_SIGMOID: MC_LOOP(dx, dy[i] * sigmoid_slope(x[i]));
    case MC_UNARY_SOFTPLUS: MC_LOOP(dx, dy[i] * sigmoid(x[i]));
    }
}
#undef MC_LOOP

mc_status MC_K(unary)(mc_device *d, int64_t count, mc_unary kind, mc_matrix x, mc_matrix y)
{
    (void)d;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float xb[MC_CHUNK], yb[MC_CHUNK], *ys = mc_write_begin(y, k.column, yb);
        apply(kind, mc_read(x, k.column, k.n, xb), ys, k.n);
        mc_write_end(y, k.column, k.n, ys);
    }
    return MC_OK;
}

mc_status MC_K(unary_backward)(mc_device *d, int64_t count, mc_unary kind, mc_matrix x,
                               mc_matrix dy, mc_matrix dx, bool accumulate)
{
    (void)d;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float xb[MC_CHUNK], gb[MC_CHUNK], out[MC_CHUNK];
        const float *xs = mc_read(x, k.column, k.n, xb), *gs = mc_read(dy, k.column, k.n, gb);
        apply_slope(kind, xs, gs, out, k.n);
        mc_write(dx, k.column, k.n, out, accumulate);
    }
    return MC_OK;
}

/* ---- functions of two elements --------------------------------------------------------------- */

/* b[(first + i) % count] for i < n. */
static const float *read_repeated(mc_matrix b, int64_t count, int64_t first, int n, float *buffer)
{
    int64_t at = first % count;
    if (at + n <= count) return mc_read(b, at, n, buffer);
    for (int done = 0; done < n;) {
        int some = (int)mc_min_i64(count - at, n - done);
        mc_convert_in(b.data, b.dtype, at, some, buffer + done);
        done += some;
        at = 0;
    }
    return buffer;
}

mc_status MC_K(binary)(mc_device *d, int64_t count, mc_binary kind, mc_matrix a, int64_t a_count,
                       mc_matrix b, int64_t b_count, float factor, mc_matrix y, bool accumulate)
{
    (void)d;
    mc_chunks c = mc_chunks_of(1, count);
#pragma omp parallel for schedule(static) if (count > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float ab[MC_CHUNK], bb[MC_CHUNK], out[MC_CHUNK];
        const float *as = read_repeated(a, a_count, k.column, k.n, ab);
        const float *bs = read_repeated(b, b_count, k.column, k.n, bb);
        if (kind == MC_BINARY_SUBTRACT) {
#pragma omp simd
            for (int j = 0; j < k.n; j++) out[j] = factor * (as[j] - bs[j]);
        } else {
#pragma omp simd
            for (int j = 0; j < k.n; j++) out[j] = factor * (as[j] / bs[j]);
        }
        mc_write(y, k.column, k.n, out, accumulate);
    }
    return MC_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

enum { SLAB = 256, SHORT_SUM = 64 /* terms added up in f32: sums of sums lose less */ };

static float sum_row(mc_matrix x, int64_t at, int64_t size)
{
    double sum = 0;
    float buffer[MC_CHUNK];
    for (int64_t i = 0; i < size; i += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, size - i);
        const float *xs = mc_read(x, at + i, n, buffer);
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < n; j++) sum += (double)xs[j];
    }
    return (float)sum;
}

/* sum (n) = the sums over `size` rows, `inner` elements apart. */
static void sum_columns(mc_matrix x, int64_t at, int64_t size, int64_t inner, int n, float *sum)
{
    float part[SLAB], buffer[SLAB];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t row = 0; row < size;) {
        int64_t end = mc_min_i64(row + SHORT_SUM, size);
        memset(part, 0, (size_t)n * sizeof *part);
        for (; row < end; row++) {
            const float *xs = mc_read(x, at + row * inner, n, buffer);
#pragma omp simd
            for (int i = 0; i < n; i++) part[i] += xs[i];
        }
#pragma omp simd
        for (int i = 0; i < n; i++) sum[i] += part[i];
    }
}

mc_status MC_K(sum_middle)(mc_device *d, int64_t outer, int64_t size, int64_t inner, mc_matrix x,
                           float factor, mc_matrix y, bool accumulate)
{
    (void)d;
    int64_t slabs = (inner + SLAB - 1) / SLAB;
#pragma omp parallel for schedule(static) if (outer * size * inner > MC_SERIAL)
    for (int64_t i = 0; i < outer * slabs; i++) {
        float sum[SLAB];
        int64_t o = i / slabs, column = i % slabs * SLAB;
        int n = (int)mc_min_i64(SLAB, inner - column);
        if (inner == 1)
            sum[0] = sum_row(x, o * size, size);
        else
            sum_columns(x, o * size * inner + column, size, inner, n, sum);
        for (int j = 0; j < n; j++) sum[j] *= factor;
        mc_write(y, o * inner + column, n, sum, accumulate);
    }
    return MC_OK;
}
