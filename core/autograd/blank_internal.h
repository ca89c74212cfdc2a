/* Gradients that stand for zeros. A gradient is added to, from zeros on; who is the first to add
 * something may write it instead, and then the zeros are neither written nor read: for large
 * weights that is more than half of what their gradients move.
 *
 * What is blank has to be filled before it is read. All blanks of a context are known to it, so
 * that a function which is about to read gradients fills all there are (mc_blank_fill_all); so does
 * mc_step_run before and after a step, since a recorded step knows nothing of what happens around
 * it. */
#ifndef MC_AUTOGRAD_BLANK_INTERNAL_H
#define MC_AUTOGRAD_BLANK_INTERNAL_H

#include "core/base/context_internal.h"

/* Device memory, `bytes` from *base + offset on, that is blank while `link` is not NULL. Embedded
 * in what has the memory, and zeroed at first. */
typedef struct mc_blank {
    struct mc_blank *next, **link;
    void *const *base;
    size_t offset, bytes;
} mc_blank;

/* From now on the memory is blank. */
void mc_blank_set(mc_context *ctx, mc_blank *blank, void *const *base, size_t offset, size_t bytes);
/* Whether it was blank; it no longer is: the caller writes all of it, or gives it up. NULL: no. */
bool mc_blank_take(mc_blank *blank);
/* Writes the zeros, if it is blank. NULL is allowed. */
mc_status mc_blank_fill(mc_context *ctx, mc_blank *blank);
mc_status mc_blank_fill_all(mc_context *ctx);

#endif
