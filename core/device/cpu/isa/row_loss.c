/* Cross-entropy row by row. */
#include "core/device/cpu/isa/math_internal.h"

/* The sums for a row's loss: the largest logit, the sum of e^(x - largest), and for class weights w
 * the sums of w and of w (largest - x). */
typedef struct row_sums {
    float largest;
    double exps, weights, below;
} row_sums;

static row_sums sums_of(const mc_row_loss_call *c, int64_t row)
{
    float buffer[MC_CHUNK];
    row_sums s = {.largest = mc_row_largest(c->x, row, c->classes)};
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
