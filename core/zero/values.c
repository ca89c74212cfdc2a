#include "core/zero/zero_internal.h"

#include "core/dist/comm_internal.h"

static size_t whole_bytes(const mc_bucket *b, const struct mc_values *v)
{
    return (size_t)b->count * (v == &b->bytes ? 1 : mc_dtype_size(b->dtype));
}

static void drop_values(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    mc_device *device = z->ctx->device;
    device->free(device, v->data, whole_bytes(b, v));
    v->data = NULL;
    z->gathered -= b->count;
    mc_values_go(z, b, v, MC_VALUES_RESTING);
}

/* After a failed gather: back to RESTING, or to STALE if the memory has other users. */
static mc_status give_up(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    if (v->users)
        mc_values_go(z, b, v, MC_VALUES_STALE);
    else
        drop_values(z, b, v);
    return mc_error_status(z->ctx);
}

static mc_status start_gathering(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    mc_status status = mc_values_go(z, b, v, MC_VALUES_GATHERING);
    if (status) return status;
    const void *share = b->values_share;
    mc_dtype dtype = b->dtype;
    if (v == &b->bytes) {
        share = (char *)v->data + b->first;
        dtype = MC_U8;
        if (z->cast(z, b)) return give_up(z, b, v);
    }
    v->request = mc_comm_start_all_gather(z->group->comm, share, v->data, b->share, dtype);
    return v->request ? MC_OK : give_up(z, b, v);
}

static mc_status end_gathering(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    mc_comm_request *request = v->request;
    v->request = NULL;
    return mc_comm_wait(request) ? give_up(z, b, v) : MC_OK;
}

mc_status mc_bucket_prefetch(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    mc_device *device = z->ctx->device;
    size_t bytes = whole_bytes(b, v);
    if (mc_failed(z->ctx)) return mc_error_status(z->ctx);
    if (v->state != MC_VALUES_RESTING || b->updating) return MC_OK;
    v->data = device->alloc(device, bytes);
    if (!v->data)
        return mc_fail_memory(z->ctx, device, bytes, MC_HELP_MODEL, "the gathered parameters of %s",
                              MC_NAMED("module", b->name));
    z->gathered += b->count;
    if (z->gathered > z->most_gathered) z->most_gathered = z->gathered;
    return start_gathering(z, b, v);
}

mc_status mc_bucket_gather(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    mc_status status = mc_bucket_await(z, b);
    if (!status) status = mc_bucket_prefetch(z, b, v);
    if (!status && v->state == MC_VALUES_STALE) status = start_gathering(z, b, v);
    if (!status && v->state == MC_VALUES_GATHERING) status = end_gathering(z, b, v);
    if (!status) status = mc_values_go(z, b, v, MC_VALUES_READY);
    if (!status && mc_bucket_shares_values(b)) v->users++;
    return status;
}

void mc_bucket_release(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    if (v->users && --v->users == 0) drop_values(z, b, v);
}

mc_status mc_bucket_refresh(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    if (v->state != MC_VALUES_STALE) return MC_OK;
    mc_status status = mc_bucket_gather(z, b, v);
    if (!status) mc_bucket_release(z, b, v);
    return status;
}

static mc_status forget(mc_zero *z, mc_bucket *b, struct mc_values *v)
{
    if (v->state != MC_VALUES_GATHERING) return MC_OK;
    mc_status status = end_gathering(z, b, v);
    if (!status) drop_values(z, b, v);
    return status;
}

mc_status mc_bucket_forget(mc_zero *z, mc_bucket *b)
{
    mc_status status = forget(z, b, &b->values);
    return status ? status : forget(z, b, &b->bytes);
}

mc_status mc_bucket_outdate(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_bucket_forget(z, b);
    if (!status && b->values.users) status = mc_values_go(z, b, &b->values, MC_VALUES_STALE);
    if (!status && b->bytes.users) status = mc_values_go(z, b, &b->bytes, MC_VALUES_STALE);
    return status;
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
    if (!b->updating) return mc_error_status(z->ctx);
    b->updating = false;
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
