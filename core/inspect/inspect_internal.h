/* Combining the ranks' statistics into tables. */
#ifndef MC_INSPECT_INTERNAL_H
#define MC_INSPECT_INTERNAL_H

#include "core/inspect/inspect.h"
#include "core/nn/module_internal.h"

/* Moments of some elements, in a form that combines without loss (Chan et al. 1983). */
typedef struct mc_moments {
    int64_t count;
    double mean, squares; /* squares: sum of (x - mean)^2 */
    double largest, smallest;
} mc_moments;

mc_moments mc_moments_of(const mc_tensor_stats *stats);
void mc_moments_add(mc_moments *all, const mc_moments *part);

/* This rank's part of a row, before the ranks' parts are combined. */
typedef struct mc_row_parts {
    mc_moments value, gradient;
    int64_t first_size;   /* of the shape on this rank, to be added up */
    int64_t has_gradient; /* 0 or 1 */
} mc_row_parts;

/* A table of `count` rows with copied names. Combines the parts of all ranks, which all call this.
 * With `add_sizes` the first size of each shape becomes the sum of first_size. NULL after an
 * error. */
mc_inspection *mc_inspection_new(mc_context *ctx, int count, const char *const *names,
                                 const mc_shape *shapes, mc_row_parts *parts, bool add_sizes);

#endif
