#include "core/zero/zero_internal.h"

#include "core/dist/comm_internal.h"

static size_t whole_bytes(const mc_bucket *b) { return (size_t)b->count * mc_dtype_size(b->dtype); }

static void drop_values(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    device->free(device, b->values.data, whole_bytes(b));
    b->values.data = NULL;
    z->gathered -= b->count;
    mc_values_go(z, b, MC_VALUES_RESTING);
}

/* After a failed gather: back to RESTING, or to STALE if the memory has other users. */
static mc_status give_up(mc_zero *z, mc_bucket *b)
{
    if (b->values.users)
        mc_values_go(z, b, MC_VALUES_STALE);
    else
        drop_values(z, b);
    return mc_error_status(z->ctx);
}

static mc_status start_gathering(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_values_go(z, b, MC_VALUES_GATHERING);
    if (status) return status;
    b->values.request = mc_comm_start_all_gather(z->group->comm, b->values.share, b->values.data,
                                                 b->share, b->dtype);
    return b->values.request ? MC_OK : give_up(z, b);
}

static mc_status end_gathering(mc_zero *z, mc_bucket *b)
{
    mc_comm_request *request = b->values.request;
    b->values.request = NULL;
    return mc_comm_wait(request) ? give_up(z, b) : MC_OK;
}

mc_status mc_bucket_prefetch(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    if (mc_failed(z->ctx)) return mc_error_status(z->ctx);
    if (b->values.state != MC_VALUES_RESTING || b->values.updating) return MC_OK;
    b->values.data = device->alloc(device, whole_bytes(b));
    if (!b->values.data)
        return mc_fail_memory(z->ctx, device, whole_bytes(b), MC_HELP_MODEL,
                              "the gathered parameters of %s", MC_NAMED("module", b->name));
    z->gathered += b->count;
    if (z->gathered > z->most_gathered) z->most_gathered = z->gathered;
    return start_gathering(z, b);
}

mc_status mc_bucket_gather(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_bucket_await(z, b);
    if (!status) status = mc_bucket_prefetch(z, b);
    if (!status && b->values.state == MC_VALUES_STALE) status = start_gathering(z, b);
    if (!status && b->values.state == MC_VALUES_GATHERING) status = end_gathering(z, b);
    if (!status) status = mc_values_go(z, b, MC_VALUES_READY);
    if (!status && mc_bucket_shares_values(b)) b->values.users++;
    return status;
}

void mc_bucket_release(mc_zero *z, mc_bucket *b)
{
    if (b->values.users && --b->values.users == 0) drop_values(z, b);
}

mc_status mc_bucket_forget(mc_zero *z, mc_bucket *b)
{
    if (b->values.state != MC_VALUES_GATHERING) return MC_OK;
    mc_status status = end_gathering(z, b);
    if (!status) drop_values(z, b);
    return status;
}

mc_status mc_bucket_outdate(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_bucket_forget(z, b);
    return status || !b->values.users ? status : mc_values_go(z, b, MC_VALUES_STALE);
}

mc_status mc_bucket_publish(mc_zero *z, mc_bucket *b)
{
    if (!z->group->comm || mc_bucket_shares_values(b) || b->level->state == MC_WHOLE)
        return mc_error_status(z->ctx);
    return mc_comm_all_gather(z->group->comm, mc_bucket_value_at(b, b->first), b->values.data,
                              b->share, b->dtype);
}

mc_status mc_bucket_await(mc_zero *z, mc_bucket *b)
{
    if (!b->values.updating) return mc_error_status(z->ctx);
    b->values.updating = false;
    mc_status status = z->home->wait(z, b);
    return status ? status : mc_bucket_publish(z, b);
}

mc_status mc_zero_await(mc_zero *z)
{
    mc_status status = mc_error_status(z->ctx);
    for (int i = 0; i < z->bucket_count && !status && z->home; i++)
        status = mc_bucket_await(z, &z->buckets[i]);
    return status;
}

mc_status mc_zero_rest(mc_zero *z)
{
    mc_status status = z->home ? z->home->rest(z) : MC_OK;
    return status ? status : mc_error_status(z->ctx);
}
