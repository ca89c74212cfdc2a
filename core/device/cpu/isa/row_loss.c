/* Losses of pairs of elements, and cross-entropy row by row. */
#include "core/device/cpu/isa/math_internal.h"

/* ---- pairs ----------------------------------------------------------------------------------- */

/* log(1 + e) for 0 <= e <= 1, with full relative accuracy where e is small. */
static inline float log_one_plus(float e)
{
    float u = 1.0f + e;
    return mc_log_f32(u) - ((u - 1.0f) - e) / u;
}

/* With w = 1 + (p - 1) t, what does not cancel: for x < 0, (1 - t) x - w x is -p t x. */
static inline float bce(float x, float t, float p)
{
    float tail = log_one_plus(mc_exp_nonpositive(-fabsf(x)));
    return (x < 0.0f ? -p * t : 1.0f - t) * x + (1.0f + (p - 1.0f) * t) * tail;
}

/* (1 - t) - w sigmoid(-x), which for x < 0 is w sigmoid(x) - p t. */
static inline float bce_slope(float x, float t, float p)
{
    float e = mc_exp_nonpositive(-fabsf(x)), small = e / (1.0f + e);
    float w = 1.0f + (p - 1.0f) * t;
    return x < 0.0f ? w * small - p * t : (1.0f - t) - w * small;
}

/* positive[(first + i) % period] for i < n. */
static void read_weights(const mc_pair_loss_call *c, int64_t first, int n, float *out)
{
    for (int i = 0; i < n; i++) out[i] = c->positive ? c->positive[(first + i) % c->period] : 1.0f;
}

typedef struct pair_chunk {
    float x_buffer[MC_CHUNK], t_buffer[MC_CHUNK], weight[MC_CHUNK];
    const float *x, *t;
} pair_chunk;

static void read_pairs(const mc_pair_loss_call *c, mc_chunk k, pair_chunk *p)
{
    p->x = mc_read(c->x, k.column, k.n, p->x_buffer);
    p->t = mc_read(c->target, k.column, k.n, p->t_buffer);
    if (c->kind == MC_PAIR_BCE) read_weights(c, k.column, k.n, p->weight);
}

static double chunk_loss(const mc_pair_loss_call *c, mc_chunk k)
{
    pair_chunk p;
    double sum = 0;
    read_pairs(c, k, &p);
    if (c->kind == MC_PAIR_SQUARE) {
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < k.n; i++) {
            double difference = (double)p.x[i] - (double)p.t[i];
            sum += difference * difference;
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < k.n; i++) sum += (double)bce(p.x[i], p.t[i], p.weight[i]);
    }
    return sum;
}

static void chunk_slope(const mc_pair_loss_call *c, mc_chunk k, float seed, mc_matrix dx,
                        bool accumulate)
{
    pair_chunk p;
    float out[MC_CHUNK];
    read_pairs(c, k, &p);
    if (c->kind == MC_PAIR_SQUARE) {
#pragma omp simd
        for (int i = 0; i < k.n; i++) out[i] = seed * 2.0f * (p.x[i] - p.t[i]);
    } else {
#pragma omp simd
        for (int i = 0; i < k.n; i++) out[i] = seed * bce_slope(p.x[i], p.t[i], p.weight[i]);
    }
    mc_write(dx, k.column, k.n, out, accumulate);
}

mc_status MC_K(pair_loss)(mc_device *d, const mc_pair_loss_call *call, const float *seed,
                          float *loss, mc_matrix dx, bool accumulate)
{
    mc_chunks c = mc_chunks_of(1, call->count);
    if (dx.data) {
#pragma omp parallel for schedule(static) if (call->count > MC_SERIAL)
        for (int64_t i = 0; i < c.count; i++)
            chunk_slope(call, mc_chunk_at(c, i), *seed, dx, accumulate);
        return MC_OK;
    }
    double *part = d->alloc(d, (size_t)c.count * sizeof *part), sum = 0;
    if (!part) return MC_ERR_NOMEM;
#pragma omp parallel for schedule(static) if (call->count > MC_SERIAL)
    for (int64_t i = 0; i < c.count; i++) part[i] = chunk_loss(call, mc_chunk_at(c, i));
    for (int64_t i = 0; i < c.count; i++) sum += part[i];
    loss[0] = (float)(loss[0] + sum);
    loss[1] += (float)call->count;
    d->free(d, part, (size_t)c.count * sizeof *part);
    return MC_OK;
}

/* ---- cross-entropy of rows ------------------------------------------------------------------- */

/* What a row's loss is made of: the largest logit, the sum of e^(x - largest), and of the class
 * weights w the sums of w and of w (largest - x). */
typedef struct row_sums {
    float largest;
    double exps, weights, below;
} row_sums;

static float largest_of(const mc_row_loss_call *c, int64_t row)
{
    float buffer[MC_CHUNK], largest = -INFINITY;
    for (int64_t at = 0; at < c->classes; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->classes - at);
        float part = mc_largest(mc_read(c->x, row * c->x.stride + at, n, buffer), n);
        largest = part > largest ? part : largest;
    }
    return largest;
}

static row_sums sums_of(const mc_row_loss_call *c, int64_t row)
{
    float buffer[MC_CHUNK];
    row_sums s = {.largest = largest_of(c, row)};
    for (int64_t at = 0; at < c->classes; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->classes - at);
        const float *x = mc_read(c->x, row * c->x.stride + at, n, buffer);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int i = 0; i < n; i++) part += mc_exp_nonpositive(x[i] - s.largest);
        s.exps += (double)part;
        for (int i = 0; i < n && c->smoothing > 0; i++) {
            double w = c->class_weights ? (double)c->class_weights[at + i] : 1.0;
            s.weights += w;
            s.below += w * (double)(s.largest - x[i]);
        }
    }
    return s;
}

static float weight_of(const mc_row_loss_call *c, int64_t row)
{
    int32_t label = c->labels[row];
    if (label == c->ignore_index) return 0;
    return c->class_weights ? c->class_weights[label] : 1.0f;
}

static float loss_of(const mc_row_loss_call *c, int64_t row)
{
    float x_label;
    if (c->labels[row] == c->ignore_index) return 0;
    row_sums s = sums_of(c, row);
    mc_convert_in(c->x.data, c->x.dtype, row * c->x.stride + c->labels[row], 1, &x_label);
    double log_sum = log(s.exps), e = (double)c->smoothing;
    double own = (double)weight_of(c, row) * (log_sum + ((double)s.largest - (double)x_label));
    return (float)((1.0 - e) * own + e / (double)c->classes * (s.weights * log_sum + s.below));
}

mc_status MC_K(cross_entropy_rows)(mc_device *d, const mc_row_loss_call *call, float *loss,
                                   float *weight)
{
    (void)d;
#pragma omp parallel for schedule(static) if (call->rows * call->classes > MC_SERIAL / 4)
    for (int64_t row = 0; row < call->rows; row++) {
        weight[row] = weight_of(call, row);
        loss[row] = loss_of(call, row);
    }
    return MC_OK;
}

/* With W = (1 - e) w[label] + e / classes * sum of w, dx = W softmax(x) - (1 - e) w[label] [label]
 * - e / classes * w. */
static void slope_of(const mc_row_loss_call *c, int64_t row, float drow, mc_matrix dx,
                     bool accumulate)
{
    float buffer[MC_CHUNK], out[MC_CHUNK];
    int32_t label = c->labels[row];
    bool ignored = label == c->ignore_index;
    row_sums s = ignored ? (row_sums){.exps = 1} : sums_of(c, row);
    double own = (1.0 - (double)c->smoothing) * (double)weight_of(c, row);
    double each = (double)c->smoothing / (double)c->classes;
    float scale = (float)((double)drow * (own + each * s.weights) / s.exps);
    float every = (float)((double)drow * each);
    for (int64_t at = 0; at < c->classes; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->classes - at);
        const float *x = mc_read(c->x, row * c->x.stride + at, n, buffer);
        if (ignored) {
            memset(out, 0, (size_t)n * sizeof *out);
        } else {
#pragma omp simd
            for (int i = 0; i < n; i++) out[i] = mc_exp_nonpositive(x[i] - s.largest) * scale;
            for (int i = 0; i < n && every != 0.0f; i++)
                out[i] -= c->class_weights ? every * c->class_weights[at + i] : every;
            if (label >= at && label < at + n) out[label - at] -= (float)((double)drow * own);
        }
        if (!ignored || !accumulate) mc_write(dx, row * dx.stride + at, n, out, accumulate);
    }
}

mc_status MC_K(cross_entropy_rows_backward)(mc_device *d, const mc_row_loss_call *call,
                                            const float *drows, mc_matrix dx, bool accumulate)
{
    (void)d;
#pragma omp parallel for schedule(static) if (call->rows * call->classes > MC_SERIAL / 4)
    for (int64_t row = 0; row < call->rows; row++) slope_of(call, row, drows[row], dx, accumulate);
    return MC_OK;
}
