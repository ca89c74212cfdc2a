/* Whether the memory of a training step fits into what is free. */
#ifndef TRAIN_MEMORY_ROOM_H
#define TRAIN_MEMORY_ROOM_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/log/run_log.h"

/* Bytes that tensors may take in all, those that exist included; 0: unknown. */
uint64_t memory_room(mc_context *ctx);
/* `bytes` less the margin: for files that are read and written, for what the system keeps for the
 * process, and for whatever else grows. */
uint64_t memory_with_margin(uint64_t bytes);
/* Whether the planned step fits into the room less the margin; true if the room is unknown. */
bool memory_fits(mc_context *ctx, const mc_memory_plan *plan);
/* A system that runs out of memory ends the process without a message: logs a warning if the step
 * does not fit. `advice`: what to do instead. */
void memory_warn(mc_context *ctx, run_log *log, int64_t batch_size, const mc_memory_plan *plan,
                 const char *advice);

#endif
