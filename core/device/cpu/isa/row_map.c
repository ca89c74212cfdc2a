/* Functions of whole rows: softmax, log-softmax, scaling to length 1; and means and maxima over the
 * rows of sequences. */
#include "core/device/cpu/isa/math_internal.h"

typedef struct row_call {
    int64_t columns;
    mc_row_map kind;
    float eps;
} row_call;

/* The chunks of a row: n elements from `at` on. */
#define EACH_CHUNK(columns, at, n) \
    for (int64_t at = 0, n; n = mc_min_i64(MC_CHUNK, (columns)-at), at < (columns); at += MC_CHUNK)

static float row_largest(const row_call *c, mc_matrix x, int64_t row)
{
    float buffer[MC_CHUNK], largest = -INFINITY;
    EACH_CHUNK(c->columns, at, n)
    {
        float part = mc_largest(mc_read(x, row * x.stride + at, n, buffer), n);
        largest = part > largest ? part : largest;
    }
    return largest;
}

static double sum_exp(const row_call *c, mc_matrix x, int64_t row, float largest)
{
    float buffer[MC_CHUNK];
    double sum = 0;
    EACH_CHUNK(c->columns, at, n)
    {
        const float *xs = mc_read(x, row * x.stride + at, n, buffer);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < n; i++) part += mc_exp_nonpositive(xs[i] - largest);
        sum += (double)part;
    }
    return sum;
}

static double dot_row(const row_call *c, mc_matrix a, mc_matrix b, int64_t row)
{
    float ab[MC_CHUNK], bb[MC_CHUNK];
    double sum = 0;
    EACH_CHUNK(c->columns, at, n)
    {
        const float *as = mc_read(a, row * a.stride + at, n, ab);
        const float *bs = mc_read(b, row * b.stride + at, n, bb);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += (double)as[i] * (double)bs[i];
    }
    return sum;
}

static double sum_row(const row_call *c, mc_matrix x, int64_t row)
{
    float buffer[MC_CHUNK];
    double sum = 0;
    EACH_CHUNK(c->columns, at, n)
    {
        const float *xs = mc_read(x, row * x.stride + at, n, buffer);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += (double)xs[i];
    }
    return sum;
}

/* 1 / max(length of the row, eps). */
static float shrink_of(const row_call *c, mc_matrix x, int64_t row, bool *clamped)
{
    double length = sqrt(dot_row(c, x, x, row));
    *clamped = length < (double)c->eps;
    return (float)(1.0 / (*clamped ? (double)c->eps : length));
}

static void map_row(const row_call *c, mc_matrix x, mc_matrix y, int64_t row)
{
    float xb[MC_CHUNK], yb[MC_CHUNK], largest = 0, factor = 0, log_sum = 0;
    bool clamped;
    if (c->kind == MC_ROW_NORMALIZE) {
        factor = shrink_of(c, x, row, &clamped);
    } else {
        largest = row_largest(c, x, row);
        double sum = sum_exp(c, x, row, largest);
        factor = (float)(1.0 / sum);
        log_sum = (float)log(sum);
    }
    EACH_CHUNK(c->columns, at, n)
    {
        const float *xs = mc_read(x, row * x.stride + at, n, xb);
        float *ys = mc_write_begin(y, row * y.stride + at, yb);
        if (c->kind == MC_ROW_SOFTMAX) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) ys[i] = mc_exp_nonpositive(xs[i] - largest) * factor;
        } else if (c->kind == MC_ROW_LOG_SOFTMAX) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) ys[i] = (xs[i] - largest) - log_sum;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) ys[i] = xs[i] * factor;
        }
        mc_write_end(y, row * y.stride + at, n, ys);
    }
}

mc_status MC_K(row_map)(mc_device *d, int64_t rows, int64_t columns, mc_row_map kind, float eps,
                        mc_matrix x, mc_matrix y)
{
    (void)d;
    row_call c = {columns, kind, eps};
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL / 4)
    for (int64_t row = 0; row < rows; row++) map_row(&c, x, y, row);
    return MC_OK;
}

/* softmax:      dx = y (dy - sum(y dy))
 * its logarithm: dx = dy - e^y sum(dy)
 * x / |x|:       dx = dy / |x| - x sum(x dy) / |x|^3, without the second term where eps stands for
 *                the length */
static void slope_row(const row_call *c, mc_matrix kept, mc_matrix dy, mc_matrix dx, int64_t row,
                      bool accumulate)
{
    float kb[MC_CHUNK], gb[MC_CHUNK], out[MC_CHUNK], scale = 1, sum;
    bool clamped = false;
    if (c->kind == MC_ROW_LOG_SOFTMAX) {
        sum = (float)sum_row(c, dy, row);
    } else {
        double dot = dot_row(c, kept, dy, row);
        if (c->kind == MC_ROW_NORMALIZE) scale = shrink_of(c, kept, row, &clamped);
        double cube = (double)scale * (double)scale * (double)scale;
        sum = c->kind == MC_ROW_SOFTMAX ? (float)dot : clamped ? 0 : (float)(dot * cube);
    }
    EACH_CHUNK(c->columns, at, n)
    {
        const float *k = mc_read(kept, row * kept.stride + at, n, kb);
        const float *g = mc_read(dy, row * dy.stride + at, n, gb);
        if (c->kind == MC_ROW_SOFTMAX) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = k[i] * (g[i] - sum);
        } else if (c->kind == MC_ROW_LOG_SOFTMAX) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = g[i] - mc_exp_nonpositive(k[i]) * sum;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = g[i] * scale - k[i] * sum;
        }
        mc_write(dx, row * dx.stride + at, (int)n, out, accumulate);
    }
}

mc_status MC_K(row_map_backward)(mc_device *d, int64_t rows, int64_t columns, mc_row_map kind,
                                 float eps, mc_matrix kept, mc_matrix dy, mc_matrix dx,
                                 bool accumulate)
{
    (void)d;
    row_call c = {columns, kind, eps};
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL / 4)
    for (int64_t row = 0; row < rows; row++) slope_row(&c, kept, dy, dx, row, accumulate);
    return MC_OK;
}

/* ---- means over sequences -------------------------------------------------------------------- */

/* The mean of rows first .. first + length, for some columns. */
static void pool(mc_matrix x, int64_t first, int64_t length, int64_t column, int n, float *mean)
{
    enum { SHORT_SUM = 64 };
    float part[MC_CHUNK], buffer[MC_CHUNK], factor = length ? 1.0f / (float)length : 0.0f;
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int64_t row = 0; row < length;) {
        int64_t end = mc_min_i64(row + SHORT_SUM, length);
        memset(part, 0, (size_t)n * sizeof *part);
        for (; row < end; row++) {
            const float *xs = mc_read(x, (first + row) * x.stride + column, n, buffer);
#pragma omp simd
            for (int i = 0; i < n; i++) part[i] += xs[i];
        }
#pragma omp simd
        for (int i = 0; i < n; i++) mean[i] += part[i];
    }
    for (int i = 0; i < n; i++) mean[i] *= factor;
}

mc_status MC_K(mean_pool)(mc_device *d, const mc_lengths *lengths, const int32_t *device_lengths,
                          int64_t columns, mc_matrix x, mc_matrix y)
{
    (void)d, (void)device_lengths;
    mc_chunks c = mc_chunks_of(lengths->count, columns);
#pragma omp parallel for schedule(dynamic) if (lengths->total * columns > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float mean[MC_CHUNK];
        pool(x, lengths->offset[k.row], lengths->length[k.row], k.column, k.n, mean);
        mc_write(y, k.row * y.stride + k.column, k.n, mean, false);
    }
    return MC_OK;
}

/* Rows after the last sequence have no gradient. */
static void zero_tail(const mc_lengths *lengths, int64_t columns, mc_matrix dx)
{
    size_t size = mc_dtype_size(dx.dtype);
    for (int64_t row = lengths->offset[lengths->count]; row < lengths->capacity; row++)
        memset((char *)dx.data + (size_t)(row * dx.stride) * size, 0, (size_t)columns * size);
}

/* dx of the rows of one sequence. */
static void spread(const float *g, int64_t first, int64_t length, mc_chunk k, mc_matrix dx,
                   bool accumulate)
{
    float out[MC_CHUNK], factor = length ? 1.0f / (float)length : 0.0f;
    for (int i = 0; i < k.n; i++) out[i] = g[i] * factor;
    for (int64_t row = first; row < first + length; row++)
        mc_write(dx, row * dx.stride + k.column, k.n, out, accumulate);
}

mc_status MC_K(mean_pool_backward)(mc_device *d, const mc_lengths *lengths,
                                   const int32_t *device_lengths, int64_t columns, mc_matrix dy,
                                   mc_matrix dx, bool accumulate)
{
    (void)d, (void)device_lengths;
    mc_chunks c = mc_chunks_of(lengths->count, columns);
#pragma omp parallel for schedule(dynamic) if (lengths->total * columns > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float buffer[MC_CHUNK];
        const float *g = mc_read(dy, k.row * dy.stride + k.column, k.n, buffer);
        spread(g, lengths->offset[k.row], lengths->length[k.row], k, dx, accumulate);
    }
    if (!accumulate) zero_tail(lengths, columns, dx);
    return MC_OK;
}

/* ---- maxima over sequences ------------------------------------------------------------------- */

/* The largest of rows first .. first + length, for some columns; NaN is the largest value. */
static void pool_largest(mc_matrix x, int64_t first, int64_t length, mc_chunk k, float *largest)
{
    float buffer[MC_CHUNK];
    memset(largest, 0, (size_t)k.n * sizeof *largest);
    for (int64_t row = first; row < first + length; row++) {
        const float *xs = mc_read(x, row * x.stride + k.column, k.n, buffer);
        for (int i = 0; i < k.n; i++)
            if (row == first || xs[i] > largest[i] || xs[i] != xs[i]) largest[i] = xs[i];
    }
}

mc_status MC_K(max_pool)(mc_device *d, const mc_lengths *lengths, const int32_t *device_lengths,
                         int64_t columns, mc_matrix x, mc_matrix y)
{
    (void)d, (void)device_lengths;
    mc_chunks c = mc_chunks_of(lengths->count, columns);
#pragma omp parallel for schedule(dynamic) if (lengths->total * columns > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float largest[MC_CHUNK];
        pool_largest(x, lengths->offset[k.row], lengths->length[k.row], k, largest);
        mc_write(y, k.row * y.stride + k.column, k.n, largest, false);
    }
    return MC_OK;
}

/* dx of the rows of one sequence: g goes to the first row in which x is y. */
static void spread_largest(mc_matrix x, const float *y, const float *g, int64_t first,
                           int64_t length, mc_chunk k, mc_matrix dx, bool accumulate)
{
    float buffer[MC_CHUNK], out[MC_CHUNK];
    bool found[MC_CHUNK] = {false};
    for (int64_t row = first; row < first + length; row++) {
        const float *xs = mc_read(x, row * x.stride + k.column, k.n, buffer);
        for (int i = 0; i < k.n; i++) {
            bool here = !found[i] && xs[i] == y[i];
            out[i] = here ? g[i] : 0.0f;
            found[i] = found[i] || here;
        }
        mc_write(dx, row * dx.stride + k.column, k.n, out, accumulate);
    }
}

mc_status MC_K(max_pool_backward)(mc_device *d, const mc_lengths *lengths,
                                  const int32_t *device_lengths, int64_t columns, mc_matrix x,
                                  mc_matrix y, mc_matrix dy, mc_matrix dx, bool accumulate)
{
    (void)d, (void)device_lengths;
    mc_chunks c = mc_chunks_of(lengths->count, columns);
#pragma omp parallel for schedule(dynamic) if (lengths->total * columns > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) {
        mc_chunk k = mc_chunk_at(c, i);
        float largest[MC_CHUNK], buffer[MC_CHUNK];
        const float *ys = mc_read(y, k.row * y.stride + k.column, k.n, largest);
        const float *g = mc_read(dy, k.row * dy.stride + k.column, k.n, buffer);
        spread_largest(x, ys, g, lengths->offset[k.row], lengths->length[k.row], k, dx, accumulate);
    }
    if (!accumulate) zero_tail(lengths, columns, dx);
    return MC_OK;
}
