/* Lazily zeroed gradients. A gradient starts as zeros, to which backward adds. The first
 * contribution may overwrite it instead, and then the zeros are neither written nor read: for large
 * weights this saves more than half of the memory traffic of their gradients.
 *
 * A buffer whose zeros are not written yet is "blank", and must be filled before it is read. The
 * context has a list of all of its blank buffers. So a function that is about to read gradients can
 * fill them all (mc_blank_fill_all); mc_step_run does this before and after a step, because a
 * recorded step cannot see what happens outside of it. */
#ifndef MC_AUTOGRAD_BLANK_INTERNAL_H
#define MC_AUTOGRAD_BLANK_INTERNAL_H

#include "core/base/context_internal.h"

/* Device memory, `bytes` bytes from *base + offset on, which is blank while `link` is not NULL.
 * Embedded in the memory's owner, zero-initialised. */
typedef struct mc_blank {
    struct mc_blank *next, **link;
    void *const *base;
    size_t offset, bytes;
} mc_blank;

/* Marks the memory as blank. */
void mc_blank_set(mc_context *ctx, mc_blank *blank, void *const *base, size_t offset, size_t bytes);
/* Returns whether it was blank, and ends that: the caller overwrites or drops all of it. NULL:
 * no. */
bool mc_blank_take(mc_blank *blank);
/* Writes the zeros if it is blank. NULL is allowed. */
mc_status mc_blank_fill(mc_context *ctx, mc_blank *blank);
mc_status mc_blank_fill_all(mc_context *ctx);

#endif
