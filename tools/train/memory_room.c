#include "tools/train/memory_room.h"

#include <inttypes.h>

static const double MARGIN = 0.03;
enum { MARGIN_BYTES = 4 << 20 }; /* beside that share */

uint64_t memory_room(mc_context *ctx)
{
    mc_memory_use use = mc_memory(ctx);
    uint64_t all = use.available + use.touched;
    return use.available && all > use.buffers ? all - use.buffers : use.available;
}

uint64_t memory_with_margin(uint64_t bytes)
{
    uint64_t most = (uint64_t)((1 - MARGIN) * (double)bytes);
    return most > MARGIN_BYTES ? most - MARGIN_BYTES : 0;
}

bool memory_fits(mc_context *ctx, const mc_memory_plan *plan)
{
    mc_memory_use use = mc_memory(ctx);
    uint64_t all = memory_room(ctx);
    if (all && plan->touched > memory_with_margin(all)) return false;
    return !use.space || plan->space <= memory_with_margin(use.space + use.reserved);
}

void memory_warn(mc_context *ctx, run_log *log, int64_t batch_size, const mc_memory_plan *plan,
                 const char *advice)
{
    const double MIB = 1024.0 * 1024;
    if (memory_fits(ctx, plan)) return;
    run_log_line(log,
                 "warning: a batch of %" PRId64 " takes %.1f MiB, and %.1f MiB are free here: the "
                 "system may end the run; %s",
                 batch_size, (double)plan->touched / MIB, (double)memory_room(ctx) / MIB, advice);
}
