/* AdamOffload: state in the host's memory (adam_offload.c says where what lies). */
#ifndef MC_OPTIM_ADAM_OFFLOAD_INTERNAL_H
#define MC_OPTIM_ADAM_OFFLOAD_INTERNAL_H

#include "core/nn/module_internal.h"
#include "core/optim/offload_internal.h"

/* Moves state to where the optimizers of the parameters want it: to the host for AdamOffload, but
 * for the first buckets up to its gpu_share of the elements, and those that another optimizer has a
 * part of. Checks first that the host has memory enough. The buckets are laid out, and no tape is
 * open that uses the model; all ranks do it together. */
mc_status mc_adam_offload_place(mc_module_root *root);

/* Of buckets on the host. Zeros the sum of elements that this rank holds. */
mc_status mc_host_zero(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count);
/* Has the sum measured for the p-norm, unless that was done as it arrived. */
mc_status mc_host_measure_sum(mc_zero *zero, mc_bucket *bucket, double power);
/* When that is done (mc_zero_rest): adds the statistics of parameters within first .. first +
 * count, whose first element has that number. */
void mc_host_add_stats(const mc_bucket *bucket, int64_t first, int64_t count, int64_t number,
                       mc_gradient_stats *stats);
/* An Adam update of elements of this rank's share, that obeys step->update (mc_offload_tell). */
mc_status mc_host_update(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count,
                         const mc_adam_step *step);

#endif
