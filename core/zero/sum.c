/* Sums of gradients over ranks, of which each rank has its share. */
#include "core/zero/zero_internal.h"

#include <string.h>
#include "core/dist/comm_internal.h"

size_t mc_sum_bytes(const mc_bucket *b)
{
    return (size_t)b->share * mc_dtype_size(b->host ? MC_F32 : b->sum.dtype);
}

void mc_sum_clear(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    mc_sum_go(z, b, MC_SUM_EMPTY);
    if (b->host) return; /* a home keeps its memory */
    device->free(device, b->sum.data, mc_sum_bytes(b));
    b->sum.data = NULL;
}

/* Recorded steps would keep the address of a NARROW sum, but steps of several ranks are not
 * recorded. */
mc_status mc_sum_make(mc_zero *z, mc_bucket *b, int passes)
{
    bool narrow = passes == 1 && z->group->comm && !b->host;
    b->sum.dtype = narrow ? mc_bucket_travel_dtype(z, b) : MC_F32;
    /* not zeroed: a home's memory is written before it is read, so its pages need not exist yet */
    b->sum.data = mc_zero_alloc(z, mc_bucket_home(z, b), mc_sum_bytes(b), "gradients");
    return mc_error_status(z->ctx);
}

mc_status mc_sum_need(mc_zero *z, mc_bucket *b, int passes)
{
    mc_device *device = z->ctx->device;
    if (!mc_bucket_shares_gradient(b) || b->sum.data) return mc_error_status(z->ctx);
    mc_status status = mc_sum_make(z, b, passes);
    if (status || b->host) return status;
    status = device->kernels->zero(device, b->sum.data, mc_sum_bytes(b));
    return mc_zero_fail(z, status, "gradients");
}

mc_status mc_sum_widen(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    size_t bytes = (size_t)b->share * sizeof(float);
    mc_matrix narrow = {b->sum.data, b->sum.dtype, b->share}, wide = {NULL, MC_F32, b->share};
    if (b->host) return b->sum.state == MC_SUM_EMPTY ? MC_OK : z->home->settle(z, b);
    if (b->sum.state == MC_SUM_EMPTY || b->sum.dtype == MC_F32) return mc_error_status(z->ctx);
    if (!(wide.data = device->alloc(device, bytes)))
        return mc_fail_memory(z->ctx, device, bytes, MC_HELP_MODEL, "the gradients of %s as f32",
                              MC_NAMED("module", b->name));
    mc_status status = device->kernels->scale(device, b->share, narrow, 1, wide, false);
    if (status) {
        device->free(device, wide.data, bytes);
        return mc_zero_fail(z, status, "gradients");
    }
    device->free(device, b->sum.data, mc_sum_bytes(b));
    b->sum.data = wide.data;
    b->sum.dtype = MC_F32;
    return mc_sum_go(z, b, MC_SUM_WIDE);
}

mc_status mc_sum_add(mc_zero *z, mc_bucket *b, mc_matrix share)
{
    mc_device *device = z->ctx->device;
    mc_status status = MC_OK;
    if (!b->gradient.arrives) {
        bool add = b->sum.state != MC_SUM_EMPTY;
        if (add) status = mc_sum_widen(z, b); /* a second pass */
        mc_matrix to = {b->sum.data, b->sum.dtype, b->share};
        if (!status) status = device->kernels->scale(device, b->share, share, 1, to, add);
    }
    status = mc_zero_fail(z, status, "gradients");
    return status ? status : mc_sum_go(z, b, b->sum.dtype == MC_F32 ? MC_SUM_WIDE : MC_SUM_NARROW);
}

/* Whether nothing was added since zero_grad; there may be no memory. Equal on all ranks. */
static bool is_zero(const mc_bucket *b)
{
    return mc_bucket_shares_gradient(b) ? b->sum.state == MC_SUM_EMPTY : !b->gradient.data;
}

/* Copies the share of the sum to device memory. */
static mc_status copy_sum(mc_zero *z, mc_bucket *b, float *to)
{
    mc_device *device = z->ctx->device;
    if (!b->host)
        return device->kernels->scale(device, b->share, mc_bucket_gradient(b, b->first), 1,
                                      (mc_matrix){to, MC_F32, b->share}, false);
    mc_status status = z->home->settle(z, b);
    return status ? status : mc_home_copy(z, to, false, b->sum.data, true, b->share);
}

mc_status mc_bucket_read_gradient(mc_zero *z, mc_bucket *b, int64_t first, int64_t count,
                                  float *values)
{
    mc_device *device = z->ctx->device;
    size_t bytes = (size_t)b->count * sizeof(float);
    if (is_zero(b)) {
        memset(values, 0, (size_t)count * sizeof *values);
        return mc_error_status(z->ctx);
    }
    float *whole = device->alloc(device, bytes);
    if (!whole) return mc_fail_nomem(z->ctx, "reading a gradient");
    bool summed = b->level->state == MC_WHOLE; /* or with one rank */
    int64_t from = summed ? 0 : b->first, n = summed ? b->count : b->share;
    mc_status status = mc_error_status(z->ctx);
    if (!status && mc_bucket_shares_gradient(b))
        status = copy_sum(z, b, whole + from);
    else if (!status)
        status = device->kernels->scale(device, n, mc_bucket_gradient(b, from), 1,
                                        (mc_matrix){whole + from, MC_F32, n}, false);
    if (!status && z->group->comm && !summed)
        status = mc_comm_all_gather(z->group->comm, whole + from, whole, b->share, MC_F32);
    if (!status && !device->copy_out(device, values, whole + first, (size_t)count * sizeof *values))
        status = MC_ERR_DEVICE;
    device->free(device, whole, bytes);
    return mc_zero_fail(z, status, "reading a gradient");
}

mc_status mc_sum_stats(mc_zero *z, mc_bucket *b, int64_t first, int64_t count,
                       mc_tensor_stats *stats)
{
    mc_device *device = z->ctx->device, *home = mc_bucket_home(z, b);
    mc_tensor_stats sum = {.count = count};
    mc_matrix gradient = mc_bucket_gradient(b, first);
    bool zeros = is_zero(b);
    if (!b->host && !zeros) return device->kernels->tensor_stats(device, count, gradient, stats);
    mc_status status = zeros ? MC_OK : z->home->settle(z, b);
    if (!status && !zeros)
        status = home->kernels->tensor_stats(home, count, mc_bucket_gradient(b, first), &sum);
    if (!status) device->copy_in(device, stats, &sum, sizeof sum);
    return status;
}
