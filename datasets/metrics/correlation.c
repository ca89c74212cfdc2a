#include "datasets/correlation.h"

#include <math.h>
#include <stdlib.h>
#include "core/base/context_internal.h"

double mc_pearson(const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t n)
{
    double mean_x = 0, mean_y = 0, xx = 0, yy = 0, xy = 0;
    if (n < 2 || !x || !y) return NAN;
    for (int64_t i = 0; i < n; i++) {
        mean_x += x[i * x_step];
        mean_y += y[i * y_step];
    }
    mean_x /= (double)n;
    mean_y /= (double)n;
    for (int64_t i = 0; i < n; i++) {
        double a = x[i * x_step] - mean_x, b = y[i * y_step] - mean_y;
        xx += a * a;
        yy += b * b;
        xy += a * b;
    }
    double r = xx > 0 && yy > 0 ? xy / (sqrt(xx) * sqrt(yy)) : (double)NAN;
    return r > 1 ? 1 : r < -1 ? -1 : r;
}

typedef struct placed {
    float value;
    int64_t at;
} placed;

static int compare(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The ranks, from 1, of which equal numbers share the mean. */
static void rank_all(const float *x, int64_t step, int64_t n, placed *sorted, float *rank)
{
    for (int64_t i = 0; i < n; i++) sorted[i] = (placed){x[i * step], i};
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end].value == sorted[i].value;) end++;
        for (int64_t k = i; k < end; k++)
            rank[sorted[k].at] = 0.5f * (float)(i + 1) + 0.5f * (float)end;
    }
}

double mc_spearman(mc_context *ctx, const float *x, int64_t x_step, const float *y, int64_t y_step,
                   int64_t n)
{
    if (n < 2 || !mc_given(ctx, x) || !mc_given(ctx, y)) return NAN;
    placed *sorted = mc_calloc((size_t)n, sizeof *sorted);
    float *rank = mc_calloc(2 * (size_t)n, sizeof *rank);
    double r = NAN;
    if (sorted && rank) {
        rank_all(x, x_step, n, sorted, rank);
        rank_all(y, y_step, n, sorted, rank + n);
        r = mc_pearson(rank, 1, rank + n, 1, n);
    } else {
        mc_fail_nomem(ctx, "a rank correlation");
    }
    mc_free(sorted);
    mc_free(rank);
    return r;
}
