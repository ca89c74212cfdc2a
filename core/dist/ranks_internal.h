/* What ranks exchange while they save and load: small things, on the host. Every rank of
 * the job calls these in the same order; with one rank they do nothing. An error of any rank,
 * raised before it comes here, is an error on all. */
#ifndef MC_DIST_RANKS_INTERNAL_H
#define MC_DIST_RANKS_INTERNAL_H

#include <stddef.h>
#include "core/base/context_internal.h"

/* Returns when all ranks have come. */
mc_status mc_ranks_meet(mc_context *ctx);
/* `bytes` bytes of rank 0's `data` go to everybody's. */
mc_status mc_ranks_share(mc_context *ctx, void *data, size_t bytes);
/* *value = the sum of all ranks'. */
mc_status mc_ranks_sum(mc_context *ctx, int64_t *value);
/* Sets each of the flags that any rank has set (to 1; others are 0). */
mc_status mc_ranks_any(mc_context *ctx, uint8_t *flags, size_t count);

/* For work that rank 0 alone does and that may take longer than ranks wait for each other: it calls
 * `tick` now and then, and `end` when it is done; meanwhile the others are in `wait`. */
typedef struct mc_ranks_work {
    mc_context *ctx;
    double told; /* when the others last heard that it goes on */
} mc_ranks_work;
void mc_ranks_work_begin(mc_ranks_work *work, mc_context *ctx);
mc_status mc_ranks_work_tick(void *work);
mc_status mc_ranks_work_end(mc_ranks_work *work);
mc_status mc_ranks_work_wait(mc_context *ctx);

#endif
