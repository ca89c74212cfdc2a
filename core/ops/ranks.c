#include "core/ops/ranks.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include "core/device/device_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/ops/ops.h"
#include "core/tensor/tensor_internal.h"

mc_status mc_synchronize(mc_context *ctx)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (ctx->mesh.world.comm) return mc_comm_barrier(ctx->mesh.world.comm);
    mc_device *device = ctx->device;
    char byte, *there = device->alloc(device, sizeof byte);
    if (!there) return mc_fail_nomem(ctx, "a barrier");
    if (device->kernels->zero(device, there, sizeof byte) ||
        !device->copy_out(device, &byte, there, sizeof byte))
        mc_fail(ctx, MC_ERR_DEVICE, "waiting for the device: %s", device->failure);
    device->free(device, there, sizeof byte);
    return mc_error_status(ctx);
}

/* ---- numbers of all ranks -------------------------------------------------------------------- */

static bool check_numbers(mc_context *ctx, const double *numbers, int count)
{
    bool good = numbers && count > 0 && count <= INT_MAX / (int)sizeof *numbers;
    if (!good) mc_fail(ctx, MC_ERR_ARGUMENT, "numbers of all ranks: expected one or more");
    return good;
}

mc_status mc_gather_numbers(mc_context *ctx, const double *mine, int count, double *all)
{
    if (mc_failed(ctx) || !check_numbers(ctx, all ? mine : NULL, count))
        return mc_error_status(ctx);
    return mc_ranks_gather(ctx, &ctx->mesh.world, mine, (size_t)count * sizeof *mine, all);
}

mc_status mc_sum_numbers(mc_context *ctx, double *numbers, int count)
{
    if (mc_failed(ctx) || !check_numbers(ctx, numbers, count)) return mc_error_status(ctx);
    const mc_rank_group *data = &ctx->mesh.data;
    double *all = mc_calloc((size_t)data->size * (size_t)count, sizeof *all);
    if (!all) return mc_fail_nomem(ctx, "numbers of all ranks");
    mc_status status = mc_ranks_gather(ctx, data, numbers, (size_t)count * sizeof *all, all);
    for (int i = 0; !status && i < count; i++) {
        numbers[i] = all[i];
        for (int r = 1; r < data->size; r++) numbers[i] += all[r * count + i];
    }
    mc_free(all);
    return status;
}

mc_status mc_share_bytes(mc_context *ctx, void *data, size_t bytes)
{
    if (mc_failed(ctx) || !mc_given(ctx, data) || !bytes) return mc_error_status(ctx);
    return mc_ranks_share(ctx, data, bytes);
}

/* ---- losses ---------------------------------------------------------------------------------- */

typedef struct sum_count {
    float sum, count;
} sum_count;

static double mean_of(double sum, double count) { return count != 0 ? sum / count : 0; }

/* The losses of all ranks with rows, (ranks); NULL after an error. */
static sum_count *gather_losses(mc_context *ctx, const mc_tensor *loss)
{
    sum_count mine;
    if (mc_failed(ctx)) return NULL;
    if (!loss || loss->dtype != MC_F32 || mc_tensor_count(loss) != 2 || !mc_tensor_data(loss)) {
        mc_fail(ctx, MC_ERR_SHAPE, "the loss of all ranks: expected a loss, two f32");
        return NULL;
    }
    sum_count *all = mc_calloc((size_t)ctx->mesh.data.size, sizeof *all);
    if (!all)
        mc_fail_nomem(ctx, "the loss of all ranks");
    else if (!ctx->device->copy_out(ctx->device, &mine, mc_tensor_data(loss), sizeof mine))
        mc_fail(ctx, MC_ERR_DEVICE, "the loss of all ranks: %s", ctx->device->failure);
    else
        mc_ranks_gather(ctx, &ctx->mesh.data, &mine, sizeof mine, all);
    if (!mc_failed(ctx)) return all;
    mc_free(all);
    return NULL;
}

double mc_global_mean_loss(mc_context *ctx, const mc_tensor *loss)
{
    if (ctx && !ctx->mesh.data.comm) return (double)mc_mean_loss(ctx, loss);
    sum_count *all = gather_losses(ctx, loss);
    double sum = 0, count = 0;
    if (!all) return NAN;
    for (int r = 0; r < ctx->mesh.data.size; r++) {
        sum += (double)all[r].sum;
        count += (double)all[r].count;
    }
    mc_free(all);
    return mean_of(sum, count);
}

double mc_mean_rank_loss(mc_context *ctx, const mc_tensor *loss)
{
    if (ctx && !ctx->mesh.data.comm) return (double)mc_mean_loss(ctx, loss);
    sum_count *all = gather_losses(ctx, loss);
    double sum = 0;
    if (!all) return NAN;
    for (int r = 0; r < ctx->mesh.data.size; r++)
        sum += mean_of((double)all[r].sum, (double)all[r].count);
    mc_free(all);
    return sum / ctx->mesh.data.size;
}

/* ---- results --------------------------------------------------------------------------------- */

/* A rank's tensor as numbers: dtype, number of dimensions, sizes. */
enum { HAS_DTYPE, HAS_DIMS, HAS_SIZES, HAS = HAS_SIZES + MC_MAX_DIMS };

static mc_shape rows_of(const mc_tensor *x) { return x->shape.ndim ? x->shape : MC_SHAPE(1); }

static void describe(const mc_tensor *x, int64_t has[HAS])
{
    memset(has, 0, HAS * sizeof *has);
    has[HAS_DTYPE] = (int64_t)x->dtype;
    mc_shape shape = rows_of(x);
    has[HAS_DIMS] = shape.ndim;
    for (int i = 0; i < shape.ndim; i++) has[HAS_SIZES + i] = shape.dim[i];
}

static mc_shape shape_of(const int64_t has[HAS])
{
    mc_shape shape = {.ndim = (int)has[HAS_DIMS]};
    memcpy(shape.dim, has + HAS_SIZES, sizeof shape.dim);
    return shape;
}

/* Compares all ranks with rank 0, so that all ranks get the same result. */
static bool fit(mc_context *ctx, const int64_t *all)
{
    for (int r = 1; r < ctx->mesh.data.size; r++) {
        const int64_t *has = all + r * HAS;
        bool same = has[HAS_DTYPE] == all[HAS_DTYPE] && has[HAS_DIMS] == all[HAS_DIMS];
        for (int i = HAS_SIZES + 1; i < HAS; i++) same = same && has[i] == all[i];
        if (same) continue;
        mc_fail(ctx, MC_ERR_SHAPE,
                "gather_result: rank %d has %s %s, rank 0 has %s %s: expected the same dtype, and "
                "the same sizes but for the first",
                r, mc_dtype_name((mc_dtype)has[HAS_DTYPE]), MC_SHAPE_TEXT(shape_of(has)),
                mc_dtype_name((mc_dtype)all[HAS_DTYPE]), MC_SHAPE_TEXT(shape_of(all)));
        return false;
    }
    return true;
}

/* Copies each rank's rows to their place in y and in y's host values. */
static void gather_rows(mc_context *ctx, const mc_tensor *x, const int64_t *all, mc_tensor *y)
{
    char *to = mc_tensor_data(y);
    mc_comm_group_start(ctx->mesh.data.comm);
    for (int r = 0; r < ctx->mesh.data.size; r++) {
        int64_t count = mc_shape_count(shape_of(all + r * HAS));
        if (count)
            mc_comm_broadcast(ctx->mesh.data.comm,
                              r == ctx->mesh.data.rank ? mc_tensor_data(x) : NULL, to, count,
                              x->dtype, r);
        to += (size_t)count * mc_dtype_size(x->dtype);
    }
    if (mc_comm_group_end(ctx->mesh.data.comm) || !y->host) return;
    mc_device *device = ctx->device;
    size_t bytes = (size_t)mc_tensor_count(y) * mc_dtype_size(y->dtype);
    if (bytes && !device->copy_out(device, y->host, mc_tensor_data(y), bytes))
        mc_fail(ctx, MC_ERR_DEVICE, "gather_result: %s", device->failure);
}

/* With one rank the result is a copy, so that the caller always owns it. */
static mc_tensor *copy_of(mc_context *ctx, const mc_tensor *x)
{
    mc_device *device = ctx->device;
    size_t bytes = (size_t)mc_tensor_count(x) * mc_dtype_size(x->dtype);
    void *host = mc_malloc(bytes ? bytes : 1);
    if (!host) return mc_fail_nomem(ctx, "a result"), NULL;
    mc_tensor *y = NULL;
    if (bytes && !device->copy_out(device, host, mc_tensor_data(x), bytes))
        mc_fail(ctx, MC_ERR_DEVICE, "gather_result: %s", device->failure);
    else
        y = mc_tensor_from(ctx, x->dtype, rows_of(x), host);
    mc_free(host);
    return y;
}

mc_tensor *mc_gather_result(mc_context *ctx, const mc_tensor *x)
{
    if (mc_failed(ctx)) return NULL;
    if (!x || (mc_tensor_count(x) && !mc_tensor_data(x))) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "gather_result: %s", x ? "the tensor was released" : "NULL");
        return NULL;
    }
    if (!ctx->mesh.data.comm) return copy_of(ctx, x);
    int64_t mine[HAS], *all = mc_calloc((size_t)ctx->mesh.data.size, sizeof mine);
    if (!all) return mc_fail_nomem(ctx, "a result of all ranks"), NULL;
    mc_tensor *y = NULL;
    describe(x, mine);
    if (!mc_ranks_gather(ctx, &ctx->mesh.data, mine, sizeof mine, all) && fit(ctx, all)) {
        mc_shape shape = shape_of(all);
        for (int r = 1; r < ctx->mesh.data.size; r++) shape.dim[0] += all[r * HAS + HAS_SIZES];
        if ((y = mc_tensor_new(ctx, x->dtype, shape))) gather_rows(ctx, x, all, y);
    }
    mc_free(all);
    if (!mc_failed(ctx)) return y;
    mc_tensor_free(y);
    return NULL;
}
