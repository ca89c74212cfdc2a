/* LayerNorm or RMSNorm of a residual sum, with dropout of the branch, in one pass over the rows. */
#include "core/device/cpu/isa/math_internal.h"

/* The arguments of forward and backward, with the weights as f32. */
typedef struct norm_call {
    int64_t columns;
    mc_matrix x, f, s, y, dy, ds, df;
    mc_dropout_mask dropout;
    const float *weight, *bias;
    float eps;
    bool accumulate;
    bool rms; /* RMSNorm: the mean counts as 0 */
} norm_call;

/* Weight and bias as f32, in `to` (2 * columns): ones and zeros if there are none. */
static void norm_weights(norm_call *c, mc_matrix weight, mc_matrix bias, float *to)
{
    int64_t n = c->columns;
    for (int64_t i = 0; i < n; i++) {
        to[i] = 1.0f;
        to[n + i] = 0.0f;
    }
    if (weight.data) mc_convert_in(weight.data, weight.dtype, 0, n, to);
    if (bias.data) mc_convert_in(bias.data, bias.dtype, 0, n, to + n);
    c->weight = to;
    c->bias = to + n;
}

/* row += dropout(f). */
static void add_branch(const norm_call *c, int64_t row, float *sum)
{
    float buffer[MC_CHUNK], factors[MC_CHUNK];
    for (int64_t at = 0; at < c->columns; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->columns - at);
        const float *f = mc_read(c->f, row * c->f.stride + at, n, buffer);
        float *to = sum + at;
        if (c->dropout.p > 0.0f) {
            MC_K(dropout_factors)(c->dropout, row * c->columns + at, n, factors);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] += f[i] * factors[i];
        } else {
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] += f[i];
        }
    }
}

/* Rounds n values to a dtype. */
static void round_row(float *values, int64_t n, mc_dtype dtype)
{
    uint16_t stored[MC_CHUNK];
    for (int64_t at = 0; dtype != MC_F32 && at < n; at += MC_CHUNK) {
        int64_t count = mc_min_i64(MC_CHUNK, n - at);
        mc_convert_out(values + at, count, stored, dtype, 0);
        mc_convert_in(stored, dtype, 0, count, values + at);
    }
}

/* The row to normalise, as f32; stores it as s if required. `buffer` (columns). */
static const float *residual_row(const norm_call *c, int64_t row, float *buffer)
{
    int64_t n = c->columns, s_at = row * c->s.stride;
    if (!c->f.data) {
        const float *x = mc_read(c->x, row * c->x.stride, n, buffer);
        if (c->s.data && c->s.data != c->x.data) mc_convert_out(x, n, c->s.data, c->s.dtype, s_at);
        return x;
    }
    mc_convert_in(c->x.data, c->x.dtype, row * c->x.stride, n, buffer);
    add_branch(c, row, buffer);
    if (!c->s.data) {
        round_row(buffer, n, c->x.dtype);
        return buffer;
    }
    mc_convert_out(buffer, n, c->s.data, c->s.dtype, s_at);
    return mc_read(c->s, s_at, n, buffer); /* as stored, because backward reads that */
}

/* The sum of (s - centre)^power, power 1 or 2; as a sum of partial sums it is more precise. */
static inline float power_sum(const float *s, int64_t n, float centre, int power)
{
    enum { RUN = 512 };
    float sum = 0;
    for (int64_t at = 0; at < n; at += RUN) {
        int64_t end = mc_min_i64(at + RUN, n);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = at; i < end; i++)
            part += power == 1 ? s[i] : (s[i] - centre) * (s[i] - centre);
        sum += part;
    }
    return sum;
}

static void row_statistics(const norm_call *c, const float *s, float *mean, float *rstd)
{
    int64_t n = c->columns;
    *mean = c->rms ? 0.0f : power_sum(s, n, 0.0f, 1) / (float)n;
    *rstd = 1.0f / sqrtf(power_sum(s, n, *mean, 2) / (float)n + c->eps);
}

static void norm_row(const norm_call *c, int64_t row, const float *s, float mean, float rstd)
{
    float buffer[MC_CHUNK];
    for (int64_t at = 0; at < c->columns; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->columns - at);
        int64_t y_at = row * c->y.stride + at;
        const float *from = s + at, *w = c->weight + at, *b = c->bias + at;
        float *y = mc_write_begin(c->y, y_at, buffer);
#pragma omp simd
        for (int i = 0; i < n; i++) y[i] = (from[i] - mean) * rstd * w[i] + b[i];
        mc_write_end(c->y, y_at, n, y);
    }
}

typedef struct rows_call {
    const norm_call *c;
    int64_t wide; /* floats of a thread's buffer */
    float *buffers, *mean, *rstd;
} rows_call;

static void norm_item(void *call, int64_t row, int thread)
{
    const rows_call *k = call;
    float m, r;
    const float *sum = residual_row(k->c, row, k->buffers + k->wide * thread);
    row_statistics(k->c, sum, &m, &r);
    if (k->mean && !k->c->rms) k->mean[row] = m;
    if (k->rstd) k->rstd[row] = r;
    norm_row(k->c, row, sum, m, r);
}

static void sum_item(void *call, int64_t row, int thread)
{
    const rows_call *k = call;
    residual_row(k->c, row, k->buffers + k->wide * thread);
}

mc_status MC_K(residual_norm)(mc_device *d, const mc_residual_norm_call *call)
{
    int64_t rows = call->rows, columns = call->columns;
    if (rows == 0 || columns == 0) return MC_OK;
    norm_call c = {.columns = columns,
                   .x = call->x,
                   .f = call->f,
                   .s = call->s,
                   .y = call->y,
                   .dropout = call->dropout,
                   .eps = call->eps,
                   .rms = !call->bias.data};
    int threads = mc_threads_for(rows * columns);
    int64_t wide = mc_round_up(columns, 16), size = 2 * columns + 16 + wide * threads;
    float *scratch = mc_scratch_new(d, size);
    if (!scratch) return MC_ERR_NOMEM;
    norm_weights(&c, call->weight, call->bias, scratch);
    rows_call all = {&c, wide, scratch + mc_round_up(2 * columns, 16), call->mean, call->rstd};
    mc_run(d, rows, threads, rows, norm_item, &all);
    mc_scratch_free(d, scratch, size);
    if (!call->bytes) return MC_OK;
    mc_fp8_cast_call cast = {.rows = rows,
                             .columns = columns,
                             .x = call->y,
                             .format = MC_FP8_E4M3,
                             .scale = call->scale,
                             .data = call->bytes};
    return MC_K(fp8_cast)(d, &cast);
}

mc_status MC_K(residual_sum)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, mc_matrix f,
                             mc_dropout_mask dropout, mc_matrix s)
{
    if (rows == 0 || columns == 0) return MC_OK;
    norm_call c = {.columns = columns, .x = x, .f = f, .s = s, .dropout = dropout};
    int threads = mc_threads_for(rows * columns);
    int64_t wide = mc_round_up(columns, 16), size = wide * threads;
    float *scratch = mc_scratch_new(d, size);
    if (!scratch) return MC_ERR_NOMEM;
    rows_call call = {&c, wide, scratch, NULL, NULL};
    mc_run(d, rows, threads, rows, sum_item, &call);
    mc_scratch_free(d, scratch, size);
    return MC_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct norm_sums {
    float gradient, product; /* means over the row of g = dy * weight, and of g * normalised s */
} norm_sums;

static norm_sums row_sums(const norm_call *c, const float *s, const float *dy, float mean,
                          float rstd)
{
    int64_t n = c->columns;
    float gradient = 0, product = 0;
#pragma omp simd reduction(+ : gradient, product)
    for (int64_t i = 0; i < n; i++) {
        float g = dy[i] * c->weight[i];
        gradient += g;
        product += g * ((s[i] - mean) * rstd);
    }
    /* RMSNorm subtracts no mean, and no mean gradient */
    return (norm_sums){c->rms ? 0.0f : gradient / (float)n, product / (float)n};
}

static void add_weight_gradients(const float *s, const float *dy, int64_t n, float mean, float rstd,
                                 float *dweight, float *dbias)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dweight[i] += dy[i] * ((s[i] - mean) * rstd);
        dbias[i] += dy[i];
    }
}

/* sum (n) += the stored elements of x from `at` on. */
static void add_stored(mc_matrix x, int64_t at, int n, float *sum)
{
    float buffer[MC_CHUNK];
    const float *v = mc_read(x, at, n, buffer);
#pragma omp simd
    for (int i = 0; i < n; i++) sum[i] += v[i];
}

/* ds and df of one row; adds it to `branch` (columns) unless that is NULL. */
static void norm_row_backward(const norm_call *c, int64_t row, const float *s, const float *dy,
                              float mean, float rstd, norm_sums sums, float *branch)
{
    float out[MC_CHUNK], factors[MC_CHUNK];
    for (int64_t at = 0; at < c->columns; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->columns - at);
        const float *ss = s + at, *gs = dy + at, *w = c->weight + at;
#pragma omp simd
        for (int i = 0; i < n; i++) {
            float normalised = (ss[i] - mean) * rstd;
            out[i] = rstd * (gs[i] * w[i] - sums.gradient - normalised * sums.product);
        }
        if (c->ds.data) mc_write(c->ds, row * c->ds.stride + at, n, out, c->accumulate);
        if (branch && !c->df.data) add_stored(c->ds, row * c->ds.stride + at, n, branch + at);
        if (!c->df.data) continue;
        const float *all = c->ds.data ? mc_read(c->ds, row * c->ds.stride + at, n, out) : out;
        if (c->dropout.p > 0.0f) {
            MC_K(dropout_factors)(c->dropout, row * c->columns + at, n, factors);
#pragma omp simd
            for (int i = 0; i < n; i++) out[i] = all[i] * factors[i];
            all = out;
        }
        mc_write(c->df, row * c->df.stride + at, n, all, false);
        if (branch) add_stored(c->df, row * c->df.stride + at, n, branch + at);
    }
}

/* Rows first .. last. `partial` (columns each): sums for dweight, dbias and, with `branch`, for
 * dbranch; buffers (2 * columns). */
static void norm_rows_backward(const norm_call *c, int64_t first, int64_t last, const float *mean,
                               const float *rstd, float *partial, bool branch, float *buffers)
{
    int64_t n = c->columns;
    if (partial) memset(partial, 0, (branch ? 3 : 2) * (size_t)n * sizeof *partial);
    for (int64_t row = first; row < last; row++) {
        const float *s = mc_read(c->s, row * c->s.stride, n, buffers);
        const float *dy = mc_read(c->dy, row * c->dy.stride, n, buffers + n);
        float m = c->rms ? 0.0f : mean[row];
        if (partial) add_weight_gradients(s, dy, n, m, rstd[row], partial, partial + n);
        if (!c->ds.data && !c->df.data) continue;
        norm_sums sums = row_sums(c, s, dy, m, rstd[row]);
        norm_row_backward(c, row, s, dy, m, rstd[row], sums, branch ? partial + 2 * n : NULL);
    }
}

static void add_partials(const float *partials, int64_t parts, int64_t stride, int64_t n,
                         float *out)
{
    if (!out) return;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int64_t part = 0; part < parts; part++) sum += partials[part * stride + i];
        out[i] += sum;
    }
}

mc_status MC_K(residual_norm_backward)(mc_device *d, const mc_residual_norm_backward_call *call)
{
    int64_t rows = call->rows, columns = call->columns;
    if (rows == 0 || columns == 0) return MC_OK;
    norm_call c = {.columns = columns,
                   .s = call->s,
                   .dy = call->dy,
                   .ds = call->ds,
                   .df = call->df,
                   .dropout = call->dropout,
                   .accumulate = call->accumulate,
                   .rms = !call->mean};
    /* The rows are divided by their number alone, so that sums do not depend on the threads. */
    int64_t parts = rows < 32 ? 1 : mc_min_i64(rows / 16, 64), wide = mc_round_up(2 * columns, 16);
    int64_t sums = mc_round_up((call->dbranch ? 3 : 2) * columns, 16);
    if (!call->dweight && !call->dbias && !call->dbranch) sums = 0;
    int64_t size = wide * (1 + omp_get_max_threads()) + sums * parts;
    float *scratch = mc_scratch_new(d, size);
    if (!scratch) return MC_ERR_NOMEM;
    norm_weights(&c, call->weight, (mc_matrix){0}, scratch);
    float *partials = sums ? scratch + wide : NULL;
    float *buffers = scratch + wide + sums * parts;
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL)
    for (int64_t part = 0; part < parts; part++)
        norm_rows_backward(&c, part * rows / parts, (part + 1) * rows / parts, call->mean,
                           call->rstd, partials ? partials + part * sums : NULL, call->dbranch,
                           buffers + wide * omp_get_thread_num());
    if (sums) {
        add_partials(partials, parts, sums, columns, call->dweight);
        add_partials(partials + columns, parts, sums, columns, call->dbias);
        add_partials(partials + 2 * columns, parts, sums, columns, call->dbranch);
    }
    mc_scratch_free(d, scratch, size);
    return MC_OK;
}
