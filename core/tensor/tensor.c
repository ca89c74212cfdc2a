#include "core/tensor/tensor_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/autograd/tape_internal.h"
#include "core/device/device_internal.h"

int64_t mc_shape_count(mc_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.ndim && i < MC_MAX_DIMS; i++) count *= shape.dim[i];
    return count;
}

bool mc_shape_equal(mc_shape a, mc_shape b)
{
    if (a.ndim != b.ndim) return false;
    for (int i = 0; i < a.ndim && i < MC_MAX_DIMS; i++)
        if (a.dim[i] != b.dim[i]) return false;
    return true;
}

mc_shape_text mc_shape_print(mc_shape shape)
{
    mc_shape_text out = {"("};
    size_t used = 1;
    if (shape.ndim < 0 || shape.ndim > MC_MAX_DIMS)
        used += (size_t)snprintf(out.text + used, sizeof out.text - used, "%d sizes: ", shape.ndim);
    for (int i = 0; i < shape.ndim && i < MC_MAX_DIMS; i++)
        used += (size_t)snprintf(out.text + used, sizeof out.text - used, "%s%lld", i ? ", " : "",
                                 (long long)shape.dim[i]);
    snprintf(out.text + used, sizeof out.text - used, ")");
    return out;
}

bool mc_shape_bytes(mc_shape shape, mc_dtype dtype, size_t *bytes)
{
    int64_t total = (int64_t)mc_dtype_size(dtype);
    if (shape.ndim < 0 || shape.ndim > MC_MAX_DIMS || !total) return false;
    for (int i = 0; i < shape.ndim; i++)
        if (shape.dim[i] < 0 || __builtin_mul_overflow(total, shape.dim[i], &total)) return false;
    *bytes = (size_t)total;
    return true;
}

bool mc_tensor_bytes(mc_context *ctx, mc_dtype dtype, mc_shape shape, size_t *bytes)
{
    if (!mc_dtype_size(dtype))
        return !mc_fail(ctx, MC_ERR_DTYPE, "tensor %s: %d is no dtype", MC_SHAPE_TEXT(shape),
                        (int)dtype);
    if (mc_shape_bytes(shape, dtype, bytes)) return true;
    return !mc_fail(ctx, MC_ERR_SHAPE, "tensor of dtype %s: bad shape %s", mc_dtype_name(dtype),
                    MC_SHAPE_TEXT(shape));
}

void mc_storage_free_data(mc_storage *storage)
{
    if (!storage->data || storage->borrowed) return;
    storage->device->free(storage->device, storage->data, storage->bytes);
    storage->data = NULL;
}

void mc_storage_unref(mc_storage *storage)
{
    if (!storage || --storage->references > 0) return;
    mc_storage_free_data(storage);
    if (!storage->in_arena) mc_free(storage);
}

static void free_context_tensor(void *object)
{
    mc_tensor *tensor = object;
    mc_storage_unref(tensor->storage);
    mc_free(tensor->host);
    mc_free(tensor);
}

/* A context tensor with uninitialised contents. */
static mc_tensor *new_context_tensor(mc_context *ctx, mc_dtype dtype, mc_shape shape, size_t *bytes)
{
    if (mc_failed(ctx) || !mc_tensor_bytes(ctx, dtype, shape, bytes)) return NULL;
    mc_tensor *tensor = mc_new_owned(ctx, sizeof *tensor, "a tensor", free_context_tensor);
    if (!tensor) return NULL;
    tensor->ctx = ctx;
    tensor->dtype = dtype;
    tensor->shape = shape;
    tensor->storage = mc_calloc(1, sizeof *tensor->storage);
    bool mirrored = !ctx->device->is_host && !mc_dtype_is_float(dtype);
    if (mirrored) tensor->host = mc_calloc(1, *bytes + 1);
    if (tensor->storage && (!mirrored || tensor->host)) {
        *tensor->storage = (mc_storage){.device = ctx->device, .bytes = *bytes, .references = 1};
        tensor->storage->data = ctx->device->alloc(ctx->device, *bytes);
        if (tensor->storage->data) return tensor;
    }
    mc_fail_memory(ctx, ctx->device, *bytes, MC_HELP_BATCH, "a tensor of %s %s",
                   mc_dtype_name(dtype), MC_SHAPE_TEXT(shape));
    mc_tensor_free(tensor);
    return NULL;
}

mc_tensor *mc_tensor_new(mc_context *ctx, mc_dtype dtype, mc_shape shape)
{
    size_t bytes;
    mc_tensor *tensor = new_context_tensor(ctx, dtype, shape, &bytes);
    if (tensor) ctx->device->kernels->zero(ctx->device, tensor->storage->data, bytes);
    return tensor;
}

mc_tensor *mc_tensor_new_computed(mc_context *ctx, mc_shape shape)
{
    mc_tensor *tensor = mc_tensor_new(ctx, MC_I32, shape);
    if (!tensor) return NULL;
    mc_disown(&tensor->owned);
    mc_free(tensor->host);
    tensor->host = NULL;
    tensor->storage->computed = true;
    return tensor;
}

mc_tensor *mc_tensor_from(mc_context *ctx, mc_dtype dtype, mc_shape shape, const void *data)
{
    size_t bytes;
    if (!mc_failed(ctx) && !data && mc_shape_bytes(shape, dtype, &bytes) && bytes)
        mc_fail(ctx, MC_ERR_ARGUMENT, "tensor %s: its data is NULL", MC_SHAPE_TEXT(shape));
    mc_tensor *tensor = new_context_tensor(ctx, dtype, shape, &bytes);
    if (tensor) mc_tensor_write(tensor, data, bytes);
    return tensor;
}

void mc_tensor_free(mc_tensor *tensor)
{
    if (!tensor) return;
    if (tensor->tape) {
        mc_fail(tensor->ctx, MC_ERR_ARGUMENT,
                "mc_tensor_free: a tensor %s of a tape, which mc_tape_end frees: expected one of "
                "mc_tensor_new or mc_tensor_from",
                MC_SHAPE_TEXT(tensor->shape));
        return;
    }
    mc_tape_unhook(tensor->ctx, tensor, "a tensor that the tape used has been freed");
    mc_disown(&tensor->owned);
    free_context_tensor(tensor);
}

mc_dtype mc_tensor_dtype(const mc_tensor *tensor)
{
    return tensor ? tensor->dtype : MC_DTYPE_DEFAULT;
}

mc_shape mc_tensor_shape(const mc_tensor *tensor)
{
    return tensor ? tensor->shape : (mc_shape){.ndim = 0};
}

int64_t mc_tensor_size(const mc_tensor *tensor, int dim)
{
    if (!tensor) return 0;
    if (dim < 0) dim += tensor->shape.ndim;
    return dim >= 0 && dim < tensor->shape.ndim ? tensor->shape.dim[dim] : 0;
}

int64_t mc_tensor_count(const mc_tensor *tensor)
{
    return tensor ? mc_shape_count(tensor->shape) : 0;
}

void *mc_tensor_data(const mc_tensor *tensor)
{
    void *data = tensor && tensor->storage ? mc_storage_data(tensor->storage) : NULL;
    return data ? (char *)data + tensor->offset : NULL;
}

const void *mc_tensor_host(const mc_tensor *x)
{
    return x->ctx->device->is_host ? mc_tensor_data(x) : x->host;
}

mc_status mc_tensor_write(mc_tensor *x, const void *data, size_t bytes)
{
    if (!x) return MC_ERR_ARGUMENT;
    if (!bytes || mc_failed(x->ctx)) return mc_error_status(x->ctx);
    mc_device *device = x->ctx->device;
    if (x->tape || !data)
        mc_fail(x->ctx, MC_ERR_ARGUMENT, "writing to a tensor %s: %s", MC_SHAPE_TEXT(x->shape),
                data ? "it belongs to a tape, expected one of mc_tensor_new or mc_tensor_from"
                     : "the data is NULL");
    else if (bytes > x->storage->bytes)
        mc_fail(x->ctx, MC_ERR_SHAPE, "writing %zu bytes to a tensor of %zu", bytes,
                x->storage->bytes);
    if (mc_failed(x->ctx)) return mc_error_status(x->ctx);
    if (x->host) memcpy(x->host, data, bytes);
    device->copy_in(device, mc_tensor_data(x), data, bytes);
    return MC_OK;
}

/* Sets the error if a copy is not possible. */
static bool check_copy(const mc_tensor *to, const mc_tensor *from)
{
    if (to->ctx != from->ctx)
        return !mc_fail(to->ctx, MC_ERR_ARGUMENT, "copying a tensor %s of another context",
                        MC_SHAPE_TEXT(from->shape));
    if (!mc_dtype_is_float(to->dtype) || !mc_dtype_is_float(from->dtype))
        return !mc_fail(to->ctx, MC_ERR_DTYPE, "copying a tensor of %s to one of %s",
                        mc_dtype_name(from->dtype), mc_dtype_name(to->dtype));
    if (mc_tensor_count(from) > mc_tensor_count(to))
        return !mc_fail(to->ctx, MC_ERR_SHAPE, "copying a tensor %s to one of %s",
                        MC_SHAPE_TEXT(from->shape), MC_SHAPE_TEXT(to->shape));
    if (mc_tensor_count(from) && (!mc_tensor_data(from) || !mc_tensor_data(to)))
        return !mc_fail(to->ctx, MC_ERR_STATE, "copying a tensor %s whose contents were released",
                        MC_SHAPE_TEXT(from->shape));
    return true;
}

mc_status mc_tensor_copy(mc_tensor *to, const mc_tensor *from)
{
    if (!to) return MC_ERR_ARGUMENT;
    if (mc_failed(to->ctx) || !mc_given(to->ctx, from) || !check_copy(to, from))
        return mc_error_status(to->ctx);
    mc_device *device = to->ctx->device;
    int64_t count = mc_tensor_count(from);
    mc_matrix source = {mc_tensor_data(from), from->dtype, count};
    mc_status status = device->kernels->scale(
        device, count, source, 1.0f, (mc_matrix){mc_tensor_data(to), to->dtype, count}, false);
    return status ? mc_fail(to->ctx, status, "copying a tensor: %s", device->failure) : MC_OK;
}

const mc_lengths *mc_tensor_lengths(const mc_tensor *tensor)
{
    return tensor ? tensor->lengths : NULL;
}

int64_t mc_tensor_columns(const mc_tensor *x)
{
    return x->shape.ndim ? x->shape.dim[x->shape.ndim - 1] : 1;
}

int64_t mc_tensor_rows(const mc_tensor *x)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < x->shape.ndim; i++) rows *= x->shape.dim[i];
    return rows;
}

/* Element i of host data of an integer dtype. */
static float integer_at(mc_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case MC_I64: return (float)((const int64_t *)data)[i];
    case MC_I32: return (float)((const int32_t *)data)[i];
    default: return (float)((const uint8_t *)data)[i];
    }
}

static bool read_integers(const mc_tensor *x, size_t bytes, float *out, int64_t count)
{
    mc_device *device = x->ctx->device;
    void *copy = mc_malloc(bytes ? bytes : 1);
    if (!copy) return !mc_fail_nomem(x->ctx, "reading a tensor");
    bool good = !bytes || device->copy_out(device, copy, mc_tensor_data(x), bytes);
    for (int64_t i = 0; good && i < count; i++) out[i] = integer_at(x->dtype, copy, i);
    mc_free(copy);
    return good;
}

static bool read_f32(mc_context *ctx, const mc_tensor *tensor, float *out, int64_t count)
{
    mc_device *device = ctx->device;
    void *data = mc_tensor_data(tensor);
    if (count && !data) {
        mc_fail(ctx, MC_ERR_STATE, "reading a tensor %s whose contents were released",
                MC_SHAPE_TEXT(tensor->shape));
        return false;
    }
    size_t bytes =
        (size_t)count *
        (mc_dtype_is_float(tensor->dtype) ? sizeof(float) : mc_dtype_size(tensor->dtype));
    void *staging = data;
    if (tensor->dtype != MC_F32 && mc_dtype_is_float(tensor->dtype)) {
        staging = device->alloc(device, bytes);
        if (!staging) return !mc_fail_nomem(ctx, "reading a tensor");
        device->kernels->scale(device, count, (mc_matrix){data, tensor->dtype, count}, 1.0f,
                               (mc_matrix){staging, MC_F32, count}, false);
    }
    bool good = true;
    if (mc_dtype_is_float(tensor->dtype))
        good = !bytes || device->copy_out(device, out, staging, bytes);
    else
        good = read_integers(tensor, bytes, out, count);
    if (staging != data) device->free(device, staging, bytes);
    if (!good && !mc_failed(ctx))
        mc_fail(ctx, MC_ERR_DEVICE, "reading a tensor: %s", device->failure);
    return good;
}

mc_status mc_tensor_read_f32(mc_context *ctx, const mc_tensor *tensor, float *out, int64_t count)
{
    if (ctx) mc_given(ctx, tensor);
    if (!mc_failed(ctx) && (tensor->ctx != ctx || !out))
        mc_fail(ctx, MC_ERR_ARGUMENT, "reading a tensor %s%s", MC_SHAPE_TEXT(tensor->shape),
                out ? " of another context" : ": there is no memory to read it to (NULL)");
    if (!mc_failed(ctx) && mc_tensor_count(tensor) != count)
        mc_fail(ctx, MC_ERR_SHAPE, "reading %lld elements of a tensor %s", (long long)count,
                MC_SHAPE_TEXT(tensor->shape));
    if (!mc_failed(ctx) && read_f32(ctx, tensor, out, count)) return MC_OK;
    for (int64_t i = 0; out && i < count; i++) out[i] = NAN;
    return mc_error_status(ctx);
}
