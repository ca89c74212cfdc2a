/* Communication of small host data between ranks, for saving, loading and sums of results. Every
 * rank of the group (of the world if no group is given) makes the same calls in the same order. An
 * error of any rank, raised before the call, is an error on all. */
#ifndef MC_DIST_RANKS_INTERNAL_H
#define MC_DIST_RANKS_INTERNAL_H

#include <stddef.h>
#include "core/base/context_internal.h"
#include "core/dist/comm.h"

/* Returns when all ranks have come. */
mc_status mc_ranks_meet(mc_context *ctx);
/* Copies `bytes` bytes of rank 0's `data` to all ranks. */
mc_status mc_ranks_share(mc_context *ctx, void *data, size_t bytes);
/* all (size of the group, bytes) = `bytes` bytes of each rank. */
mc_status mc_ranks_gather(mc_context *ctx, const mc_rank_group *group, const void *mine,
                          size_t bytes, void *all);
/* data[i] = op over the group's ranks of data[i]. */
mc_status mc_ranks_reduce(mc_context *ctx, const mc_rank_group *group, void *data, int64_t count,
                          mc_dtype dtype, mc_reduce_op op);
/* Sets each flag to 1 if any rank has set it, else to 0. */
mc_status mc_ranks_any(mc_context *ctx, uint8_t *flags, size_t count);

/* For work of rank 0 alone that may take longer than the ranks' timeout: rank 0 calls `tick` now
 * and then, and `end` when it is done; meanwhile the others are in `wait`. */
typedef struct mc_ranks_work {
    mc_context *ctx;
    double last_sign; /* when the others last got a sign of life */
} mc_ranks_work;
void mc_ranks_work_begin(mc_ranks_work *work, mc_context *ctx);
mc_status mc_ranks_work_tick(void *work);
mc_status mc_ranks_work_end(mc_ranks_work *work);
mc_status mc_ranks_work_wait(mc_context *ctx);

#endif
