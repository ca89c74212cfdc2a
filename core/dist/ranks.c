#include "core/dist/ranks_internal.h"

#include <string.h>
#include <time.h>
#include "core/dist/comm_internal.h"

mc_status mc_ranks_meet(mc_context *ctx)
{
    if (!ctx->mesh.world.comm || mc_failed(ctx)) return mc_error_status(ctx);
    return mc_comm_barrier(ctx->mesh.world.comm);
}

/* Communicators need device memory: copies `count` elements of `from` there, makes the call and
 * copies its result to `to`. With one rank the result is the rank's own part. */
static mc_status exchange(mc_context *ctx, const mc_rank_group *group, const mc_comm_call *call,
                          const void *from, void *to)
{
    size_t mine = mc_comm_bytes(call), all = mine;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!group->comm) {
        memmove(to, from, mine);
        return MC_OK;
    }
    bool gathers = call->kind == MC_COMM_ALL_GATHER;
    if (gathers) all *= (size_t)group->size;
    mc_device *device = ctx->device;
    char *there = device->alloc(device, all), *own = there;
    if (!there) return mc_fail_nomem(ctx, "what ranks exchange");
    if (gathers) own += mine * (size_t)group->rank;
    device->copy_in(device, own, from, mine);
    if (gathers)
        mc_comm_all_gather(group->comm, own, there, call->count, call->dtype);
    else if (call->kind == MC_COMM_BROADCAST)
        mc_comm_broadcast(group->comm, own, there, call->count, call->dtype, 0);
    else
        mc_comm_all_reduce(group->comm, own, there, call->count, call->dtype, call->op);
    if (!mc_failed(ctx) && !device->copy_out(device, to, there, all))
        mc_fail(ctx, MC_ERR_DEVICE, "what ranks exchange: %s", device->failure);
    device->free(device, there, all);
    return mc_error_status(ctx);
}

mc_status mc_ranks_gather(mc_context *ctx, const mc_rank_group *group, const void *mine,
                          size_t bytes, void *all)
{
    mc_comm_call call = {MC_COMM_ALL_GATHER, .count = (int64_t)bytes, .dtype = MC_U8};
    return exchange(ctx, group, &call, mine, all);
}

mc_status mc_ranks_reduce(mc_context *ctx, const mc_rank_group *group, void *data, int64_t count,
                          mc_dtype dtype, mc_reduce_op op)
{
    mc_comm_call call = {MC_COMM_ALL_REDUCE, .count = count, .dtype = dtype, .op = op};
    return exchange(ctx, group, &call, data, data);
}

mc_status mc_ranks_share(mc_context *ctx, void *data, size_t bytes)
{
    mc_comm_call call = {MC_COMM_BROADCAST, .count = (int64_t)bytes, .dtype = MC_U8};
    return exchange(ctx, &ctx->mesh.world, &call, data, data);
}

mc_status mc_ranks_any(mc_context *ctx, uint8_t *flags, size_t count)
{
    return mc_ranks_reduce(ctx, &ctx->mesh.world, flags, (int64_t)count, MC_U8, MC_REDUCE_MAX);
}

/* ---- work of rank 0 alone -------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void mc_ranks_work_begin(mc_ranks_work *work, mc_context *ctx)
{
    *work = (mc_ranks_work){ctx, now()};
}

mc_status mc_ranks_work_tick(void *user)
{
    enum { SECONDS = 1 }; /* less than any timeout that makes sense */
    mc_ranks_work *work = user;
    if (!work->ctx->mesh.world.comm || now() - work->last_sign < SECONDS)
        return mc_error_status(work->ctx);
    uint8_t goes_on = 1;
    work->last_sign = now();
    return mc_ranks_share(work->ctx, &goes_on, sizeof goes_on);
}

mc_status mc_ranks_work_end(mc_ranks_work *work)
{
    uint8_t goes_on = 0;
    return mc_ranks_share(work->ctx, &goes_on, sizeof goes_on);
}

mc_status mc_ranks_work_wait(mc_context *ctx)
{
    uint8_t goes_on = 1;
    mc_status status = MC_OK;
    while (goes_on && !status) status = mc_ranks_share(ctx, &goes_on, sizeof goes_on);
    return status;
}
