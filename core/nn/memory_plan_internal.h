/* Plans of meshes that no job has yet. */
#ifndef MC_NN_MEMORY_PLAN_INTERNAL_H
#define MC_NN_MEMORY_PLAN_INTERNAL_H

#include "core/dist/mesh_internal.h"
#include "core/nn/memory_plan.h"

/* As mc_plan_context_new_ranks, with the ranks along each axis. Parameters are shared over data x
 * context, as on a rank of such a job; work is not divided over the other axes. */
mc_context *mc_plan_context_new_mesh(mc_context *ctx, const mc_mesh_sizes *sizes,
                                     mc_zero_level level);

#endif
