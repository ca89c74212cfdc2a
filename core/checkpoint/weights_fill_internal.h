/* Filling parameters from a file: the part of loading that takes time. */
#ifndef MC_CHECKPOINT_WEIGHTS_FILL_INTERNAL_H
#define MC_CHECKPOINT_WEIGHTS_FILL_INTERNAL_H

#include "core/checkpoint/weight_map_internal.h"

/* Where a parameter comes from. */
typedef struct mc_weight_source {
    mc_parameter *to;
    const mc_tensor_entry *entry; /* of the right shape and a float; NULL: it is not in the file */
    mc_weight_place place;
} mc_weight_source;

/* Reads what this rank holds of parameters, whose buckets are laid out, on as many threads as the
 * CPU's kernels have: each converts pieces of a MiB or so, straight into the parameter's memory
 * where that is the host's, else into two pinned buffers of its own, which the copy engine
 * empties in turn. Returns when all is there. not_finite (count): set to 1 where a source holds
 * NaN or infinite values. Where the file has checksums, all of its tensors' are checked, of what
 * is read on the way. On failure the context's error is set. */
mc_status mc_weights_fill(mc_context *ctx, mc_tensor_file *file, const mc_weight_source *sources,
                          size_t count, uint8_t *not_finite);

#endif
