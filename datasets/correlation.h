/* Correlations, as GLUE scores numbers that a model predicts (STS-B).
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_CORRELATION_H
#define MC_DATASETS_CORRELATION_H

#include <stdint.h>
#include "core/base/context.h"

/* Pearson's r of x[0], x[x_step], ... and y likewise, n of each, computed in f64 as
 * scipy.stats.pearsonr does. NaN with fewer than two, and where all of x or of y are the same. */
MC_API double mc_pearson(const float *x, int64_t x_step, const float *y, int64_t y_step, int64_t n);

/* Spearman's rank correlation: Pearson's r of the ranks, of which equal numbers share the mean
 * (scipy.stats.spearmanr). NaN as above; NaN with the context's error when memory is out. */
MC_API double mc_spearman(mc_context *ctx, const float *x, int64_t x_step, const float *y,
                          int64_t y_step, int64_t n);

#endif
