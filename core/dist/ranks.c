#include "core/dist/ranks_internal.h"

#include <time.h>
#include "core/device/device_internal.h"
#include "core/dist/comm.h"

mc_status mc_ranks_meet(mc_context *ctx)
{
    if (!ctx->mesh.world.comm || mc_failed(ctx)) return mc_error_status(ctx);
    return mc_comm_barrier(ctx->mesh.world.comm);
}

/* Communicators take the device's memory: runs one of the calls below on a copy there. */
typedef mc_status (*exchange_fn)(struct mc_comm *comm, void *data, int64_t count);

static mc_status exchange(mc_context *ctx, void *data, size_t bytes, int64_t count, exchange_fn fn)
{
    if (!ctx->mesh.world.comm || mc_failed(ctx)) return mc_error_status(ctx);
    mc_device *device = ctx->device;
    void *there = device->alloc(device, bytes);
    if (!there) return mc_fail_nomem(ctx, "what ranks tell one another");
    device->copy_in(device, there, data, bytes);
    mc_status status = fn(ctx->mesh.world.comm, there, count);
    if (!status && !device->copy_out(device, data, there, bytes))
        status = mc_fail(ctx, MC_ERR_DEVICE, "what ranks tell one another: %s", device->failure);
    device->free(device, there, bytes);
    return status;
}

static mc_status share(struct mc_comm *comm, void *data, int64_t count)
{
    return mc_comm_broadcast(comm, data, data, count, MC_U8, 0);
}

static mc_status sum(struct mc_comm *comm, void *data, int64_t count)
{
    return mc_comm_all_reduce(comm, data, data, count, MC_I64, MC_REDUCE_SUM);
}

static mc_status any(struct mc_comm *comm, void *data, int64_t count)
{
    return mc_comm_all_reduce(comm, data, data, count, MC_U8, MC_REDUCE_MAX);
}

mc_status mc_ranks_share(mc_context *ctx, void *data, size_t bytes)
{
    return exchange(ctx, data, bytes, (int64_t)bytes, share);
}

mc_status mc_ranks_sum(mc_context *ctx, int64_t *value)
{
    return exchange(ctx, value, sizeof *value, 1, sum);
}

mc_status mc_ranks_any(mc_context *ctx, uint8_t *flags, size_t count)
{
    return exchange(ctx, flags, count, (int64_t)count, any);
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
    if (!work->ctx->mesh.world.comm || now() - work->told < SECONDS)
        return mc_error_status(work->ctx);
    uint8_t goes_on = 1;
    work->told = now();
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
