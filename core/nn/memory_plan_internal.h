/* Plans for meshes that jobs cannot have yet. */
#ifndef MC_NN_MEMORY_PLAN_INTERNAL_H
#define MC_NN_MEMORY_PLAN_INTERNAL_H

#include "core/dist/mesh_internal.h"
#include "core/nn/memory_plan.h"

/* As mc_plan_context_new_ranks, with the number of ranks along each axis. Parameters are sharded
 * over data x context, as in such a job; work is not divided over the other axes. */
mc_context *mc_plan_context_new_mesh(mc_context *ctx, const mc_mesh_sizes *sizes,
                                     mc_zero_level level);

#endif
