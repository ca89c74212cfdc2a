/* Correlations, GLUE's scores for predicted numbers (STS-B).
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_CORRELATION_H
#define MC_DATASETS_CORRELATION_H

#include <stdint.h>
#include "core/base/context.h"

/* Pearson's r of x[0], x[x_step], ... and y likewise, n of each, computed in f64 as
 * scipy.stats.pearsonr does. NaN for n < 2, and if all of x or all of y are equal. */
MC_API double mc_pearson(const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t n);

/* Spearman's rank correlation: Pearson's r of the ranks; equal numbers share their mean rank
 * (scipy.stats.spearmanr). NaN as above; NaN with the context's error if memory runs out. */
MC_API double mc_spearman(mc_context *ctx, const float *x, int64_t x_step, const float *y,
                          int64_t y_step, int64_t n);

#endif
