/* AdamOffload: optimizer state in host memory (adam_offload.c explains the layout). */
#ifndef MC_OPTIM_ADAM_OFFLOAD_INTERNAL_H
#define MC_OPTIM_ADAM_OFFLOAD_INTERNAL_H

#include "core/nn/module_internal.h"
#include "core/optim/offload_internal.h"

/* Moves state to the place that the parameters' optimizers require: to the host for AdamOffload,
 * except the first buckets, up to its gpu_share of the elements, and buckets shared with another
 * optimizer. First checks that the host has enough memory. The buckets must be laid out, and no
 * tape that uses the model may be open. Collective. */
mc_status mc_adam_offload_place(mc_module_root *root);

/* For buckets on the host. Zeros the sum of elements of this rank's share. */
mc_status mc_host_zero(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count);
/* Measures the sum for the p-norm, unless that was done when it arrived. */
mc_status mc_host_measure_sum(mc_zero *zero, mc_bucket *bucket, double power);
/* After that (mc_zero_rest): adds the statistics of parameters in first .. first + count; `number`
 * is the number of the first of these elements. */
void mc_host_add_stats(const mc_bucket *bucket, int64_t first, int64_t count, int64_t number,
                       mc_gradient_stats *stats);
/* An Adam update of elements of this rank's share, as step->update decides
 * (mc_offload_copy_update). */
mc_status mc_host_update(mc_zero *zero, mc_bucket *bucket, int64_t first, int64_t count,
                         const mc_adam_step *step);

#endif
