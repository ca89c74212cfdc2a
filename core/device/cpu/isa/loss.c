/* Cross-entropy over classes, and argmax. */
#include "core/device/cpu/isa/math_internal.h"

typedef struct loss_call {
    int64_t classes;
    mc_matrix x, dx;
    float smoothing, seed;
} loss_call;

/* The sum of e^(x - largest), and that of largest - x, over a row. */
static float sum_exp(const loss_call *c, int64_t row, float largest, float *sum_below)
{
    float buffer[MC_CHUNK], sum = 0, below = 0;
    for (int64_t at = 0; at < c->classes; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->classes - at);
        const float *x = mc_read(c->x, row * c->x.stride + at, n, buffer);
        float part = 0, part_below = 0;
#pragma omp simd reduction(+ : part, part_below)
        for (int i = 0; i < n; i++) {
            part += mc_exp_nonpositive(x[i] - largest);
            part_below += largest - x[i];
        }
        sum += part;
        below += part_below;
    }
    *sum_below = below;
    return sum;
}

/* dx = seed * (softmax - (1 - e) [label] - e / classes), chunk by chunk since dx may be x. */
static void row_gradient(const loss_call *c, int64_t row, int32_t label, float largest, float sum)
{
    float buffer[MC_CHUNK], out[MC_CHUNK];
    float factor = c->seed / sum, each = c->seed * c->smoothing / (float)c->classes;
    for (int64_t at = 0; at < c->classes; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, c->classes - at);
        int64_t dx_at = row * c->dx.stride + at;
        const float *x = mc_read(c->x, row * c->x.stride + at, n, buffer);
        float *dx = mc_write_begin(c->dx, dx_at, out);
#pragma omp simd
        for (int i = 0; i < n; i++) dx[i] = mc_exp_nonpositive(x[i] - largest) * factor - each;
        if (label >= at && label < at + n) dx[label - at] -= c->seed * (1.0f - c->smoothing);
        mc_write_end(c->dx, dx_at, n, dx);
    }
}

static double row_loss(const loss_call *c, int64_t row, int32_t label)
{
    float x_label, below, largest = mc_row_largest(c->x, row, c->classes),
                          sum = sum_exp(c, row, largest, &below);
    mc_convert_in(c->x.data, c->x.dtype, row * c->x.stride + label, 1, &x_label);
    if (c->dx.data) row_gradient(c, row, label, largest, sum);
    double log_sum = log((double)sum), loss = log_sum + ((double)largest - (double)x_label);
    double e = c->smoothing;
    if (e == 0.0) return loss;
    return (1.0 - e) * loss + e * (log_sum + (double)below / (double)c->classes);
}

static void zero_row(mc_matrix y, int64_t row, int64_t columns)
{
    size_t size = mc_dtype_size(y.dtype);
    memset((char *)y.data + (size_t)(row * y.stride) * size, 0, (size_t)columns * size);
}

mc_status MC_K(cross_entropy)(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                              const int32_t *labels, int32_t ignore_index, float smoothing,
                              const float *seed, float *loss, mc_matrix dx)
{
    loss_call c = {.classes = classes, .x = x, .dx = dx, .smoothing = smoothing};
    if (dx.data) c.seed = *seed;
    double *row_losses = d->alloc(d, (size_t)rows * sizeof *row_losses);
    if (!row_losses) return MC_ERR_NOMEM;
#pragma omp parallel for schedule(static) if (rows * classes > MC_SERIAL / 4)
    for (int64_t row = 0; row < rows; row++) {
        if (labels[row] != ignore_index)
            row_losses[row] = row_loss(&c, row, labels[row]);
        else if (dx.data)
            zero_row(dx, row, classes);
    }
    double sum = 0;
    int64_t counted = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (labels[row] == ignore_index) continue;
        sum += row_losses[row];
        counted++;
    }
    loss[0] = (float)(loss[0] + sum);
    loss[1] += (float)counted;
    d->free(d, row_losses, (size_t)rows * sizeof *row_losses);
    return MC_OK;
}

mc_status MC_K(loss_add)(mc_device *d, const float *a, const float *b, float factor, float *y,
                         float *k_out)
{
    (void)d;
    float count = a[1] > 0 || !(b[1] > 0) ? a[1] : 1; /* if nothing counts there is no row */
    float k = b[1] > 0 ? factor * count / b[1] : 0;
    y[0] = a[0] + k * b[0];
    y[1] = count;
    k_out[0] = k;
    k_out[1] = 0;
    return MC_OK;
}

/* ---- argmax ---------------------------------------------------------------------------------- */

/* The column of a row's first NaN, as in PyTorch, else of the first largest element. */
static int32_t row_argmax(mc_matrix x, int64_t row, int64_t columns)
{
    float buffer[MC_CHUNK], largest = -INFINITY;
    int64_t best = 0;
    for (int64_t at = 0; at < columns; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, columns - at), nans = 0;
        const float *xs = mc_read(x, row * x.stride + at, n, buffer);
        float part = mc_largest(xs, n);
#pragma omp simd reduction(+ : nans)
        for (int i = 0; i < n; i++) nans += xs[i] != xs[i];
        if (!nans && !(part > largest)) continue;
        for (int i = 0; i < n; i++) {
            if (nans ? xs[i] == xs[i] : xs[i] != part) continue;
            best = at + i;
            break;
        }
        if (nans) break;
        largest = part;
    }
    return (int32_t)best;
}

mc_status MC_K(argmax)(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, int32_t *out)
{
    (void)d;
#pragma omp parallel for schedule(static) if (rows * columns > MC_SERIAL)
    for (int64_t row = 0; row < rows; row++) out[row] = row_argmax(x, row, columns);
    return MC_OK;
}
