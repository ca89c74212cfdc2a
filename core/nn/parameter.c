/* Parameters as tensors of tapes, and their values on the host. */
#include <string.h>
#include "core/autograd/step_internal.h"
#include "core/nn/quantized_internal.h"
#include "core/nn/stored.h"

/* ---- leaves ---------------------------------------------------------------------------------- */

/* A tape's use of a bucket outside of a running block. */
typedef struct held_bucket {
    mc_zero *zero;
    int bucket;
    bool trained, gathered;
} held_bucket;

static void before_backward(void *data)
{
    const held_bucket *use = data;
    mc_bucket *b = &use->zero->buckets[use->bucket];
    mc_bucket_await(use->zero, b); /* a step may have been taken since forward */
    mc_bucket_refresh(use->zero, b, &b->values);
    if (!use->trained) return;
    b->gradient.uses++;
    mc_bucket_begin_gradient(use->zero, b);
}

static void after_backward(void *data)
{
    const held_bucket *use = data;
    mc_bucket *b = &use->zero->buckets[use->bucket];
    if (use->trained && b->gradient.uses) b->gradient.uses--;
    if (!mc_bucket_shares_gradient(b)) return; /* the step sums the others */
    mc_bucket_reduce(use->zero, b);
    mc_zero_end_reducing(use->zero);
}

static void at_end(void *data)
{
    const held_bucket *use = data;
    mc_bucket *b = &use->zero->buckets[use->bucket];
    if (use->gathered) mc_bucket_release(use->zero, b, &b->values);
}

static const mc_tape_watch hold = {before_backward, after_backward, at_end};

/* Keeps a bucket gathered until the tape ends, and provides memory for its gradients until backward
 * has run, if no running block does so. */
static mc_status hold_bucket(mc_tape *tape, mc_module_root *root, mc_bucket *b, bool trained)
{
    mc_zero *z = &root->zero;
    if (!z->group->comm && !mc_bucket_shares_gradient(b)) return MC_OK;
    if (b->holder == mc_tape_id(tape))
        return mc_bucket_refresh(z, b, &b->values) || !trained ? mc_error_status(z->ctx)
                                                               : mc_bucket_begin_gradient(z, b);
    held_bucket *use = mc_tape_alloc(tape, sizeof *use);
    if (!use) return mc_error_status(z->ctx);
    *use = (held_bucket){z, (int)(b - z->buckets), trained, false};
    mc_status status = mc_tape_hook(tape, &hold, root, use);
    if (!status) status = mc_bucket_gather(z, b, &b->values);
    if (status) return status;
    use->gathered = true;
    if (trained && mc_bucket_begin_gradient(z, b)) return mc_error_status(z->ctx);
    b->holder = mc_tape_id(tape);
    if (mc_tape_replaying(tape)) before_backward(use); /* the pass has begun already */
    return mc_error_status(z->ctx);
}

/* Rows of a stored tensor that belong to no parameter. */
static int64_t padding_rows(const mc_stored *stored)
{
    int64_t rows = stored->shape.ndim ? stored->shape.dim[0] : 0;
    for (int i = 0; i < stored->part_count; i++)
        if (stored->shape.ndim) rows -= stored->parts[i]->shape.dim[0];
    return rows;
}

/* Called before a tape's first leaf of a bucket with gradients. If another tape has contributed to
 * the bucket since zero_grad, this pass accumulates: the gradient becomes f32, unless another open
 * tape or a recording still points at the 16-bit one. */
static mc_status begin_pass(mc_tape *tape, mc_module_root *root, mc_bucket *b)
{
    bool alone = !mc_is_on_open_tape(root->ctx, root, tape) && !mc_step_is_recording(root->ctx);
    return mc_bucket_begin_pass(&root->zero, b, mc_tape_id(tape), alone);
}

/* `bytes`: a product in 8 bits reads it, for which gathered bytes do. */
static mc_tensor *leaf_of(mc_tape *tape, mc_stored *stored, bool bytes)
{
    mc_module_root *root = stored->owner->root;
    bool known = stored->leaf && stored->leaf_tape == mc_tape_id(tape) && root->layout_valid;
    bool wants = mc_tape_is_training(tape) && stored->trainable;
    int passes = root->ctx->step ? root->ctx->step->passes : 0;
    if (!known && (wants ? mc_module_need_gradients(root, passes) : mc_module_layout(root)))
        return NULL;
    mc_zero *z = &root->zero;
    mc_bucket *bucket = stored->bucket;
    if (mc_bucket_await(z, bucket) || !mc_tape_note_owner(tape, root)) return NULL;
    if (wants && !known && begin_pass(tape, root, bucket)) return NULL;
    bool whole = !mc_bucket_shares_gradient(bucket); /* sharded ones get memory when needed */
    if (wants && whole && mc_bucket_begin_gradient(z, bucket)) return NULL;
    bool running = bucket->values.running || (bytes && bucket->bytes.running);
    if (!running && hold_bucket(tape, root, bucket, wants)) return NULL;
    if (known) return stored->leaf;
    mc_leaf_gradient gradient = mc_bucket_leaf(bucket, stored->span, 0);
    stored->leaf = mc_tape_parameter(tape, root->dtype, stored->shape, &bucket->values.data,
                                     wants ? &gradient : NULL, stored->span->offset);
    stored->leaf_tape = mc_tape_id(tape);
    if (stored->leaf) stored->leaf->zero_rows = padding_rows(stored);
    return stored->leaf;
}

mc_tensor *mc_stored_tensor(mc_tape *tape, mc_stored *stored)
{
    if (stored->leaves) return mc_stored_dequantized(tape, stored);
    return leaf_of(tape, stored, false);
}

mc_tensor *mc_stored_tensor_fp8(mc_tape *tape, mc_stored *stored)
{
    return leaf_of(tape, stored, true);
}

static bool tape_ready(mc_tape *tape, mc_parameter *p)
{
    mc_context *ctx = mc_tape_context(tape);
    if (!mc_tape_given(tape, "parameter", p ? p->module->ctx : NULL) || mc_failed(ctx))
        return false;
    if (!p)
        mc_fail(ctx, MC_ERR_ARGUMENT, "parameter is NULL");
    else if (p->module->ctx != ctx)
        mc_fail(ctx, MC_ERR_ARGUMENT, "parameter \"%s\" belongs to another context", p->name);
    return !mc_failed(ctx);
}

mc_tensor *mc_parameter_whole(mc_tape *tape, mc_parameter *p)
{
    return tape_ready(tape, p) ? mc_stored_tensor(tape, p->stored) : NULL;
}

mc_tensor *mc_parameter_tensor(mc_tape *tape, mc_parameter *p)
{
    mc_tensor *whole = mc_parameter_whole(tape, p);
    if (!whole || mc_shape_equal(p->shape, p->stored->shape)) return whole;
    if (p->stored->leaves)
        return mc_tape_view(tape, whole, p->shape, (size_t)p->first * mc_dtype_size(whole->dtype));
    mc_bucket *bucket = p->stored->bucket;
    mc_leaf_gradient gradient = mc_bucket_leaf(bucket, p->stored->span, p->first);
    return mc_tape_parameter(tape, whole->dtype, p->shape, &bucket->values.data,
                             whole->gradient ? &gradient : NULL,
                             p->stored->span->offset + p->first);
}

/* Copies between host f32 and `count` device elements of any floating dtype. */
static mc_status transfer(mc_module_root *root, mc_matrix device_side, int64_t count, float *host,
                          bool in)
{
    mc_device *device = root->ctx->device;
    size_t bytes = (size_t)count * sizeof(float);
    bool direct = device_side.dtype == MC_F32;
    float *staging = direct ? device_side.data : device->alloc(device, bytes);
    if (!staging) return mc_fail_nomem(root->ctx, "copying a parameter");
    mc_matrix staged = {staging, MC_F32, count};
    if (in) device->copy_in(device, staging, host, bytes);
    if (!direct && in) device->kernels->scale(device, count, staged, 1, device_side, false);
    if (!direct && !in) device->kernels->scale(device, count, device_side, 1, staged, false);
    bool good = in || device->copy_out(device, host, staging, bytes);
    if (!direct) device->free(device, staging, bytes);
    if (good) return MC_OK;
    return mc_fail(root->ctx, MC_ERR_DEVICE, "copying a parameter: %s", device->failure);
}

/* All of a parameter's values, if they are in memory as a whole. */
static mc_matrix values_of(const mc_parameter *p)
{
    mc_dtype dtype = p->module->root->dtype;
    return (mc_matrix){(char *)mc_stored_data(p->stored) + (size_t)p->first * mc_dtype_size(dtype),
                       dtype, mc_shape_count(p->shape)};
}

mc_status mc_parameter_places(mc_parameter *p, mc_parameter_place places[MC_PARAMETER_PLACES],
                              int *count)
{
    mc_bucket *b = p->stored->bucket;
    mc_module_root *root = p->module->root;
    bool is_host = root->ctx->device->is_host;
    if (p->stored->leaves)
        return mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                       "parameter \"%s\" is in 8 bits, and is not written to", p->name);
    int64_t element, held;
    root->values_epoch++;
    mc_parameter_held(p, &element, &held);
    int n = 0;
    mc_status status = mc_zero_rest(&root->zero);
    if (!status) status = mc_bucket_forget(&root->zero, b);
    if (!status && mc_bucket_shares_values(b) && held)
        places[n++] = (mc_parameter_place){.data = mc_bucket_value_at(b, element),
                                           .dtype = b->dtype,
                                           .on_host = is_host,
                                           .first = element - p->stored->span->offset - p->first,
                                           .count = held};
    if (!status && b->values.data)
        places[n++] = (mc_parameter_place){.data = values_of(p).data,
                                           .dtype = root->dtype,
                                           .on_host = is_host,
                                           .count = mc_shape_count(p->shape)};
    if (!status && b->state[MC_STATE_MASTER] && held)
        places[n++] = (mc_parameter_place){.data = mc_bucket_state_at(b, MC_STATE_MASTER, element),
                                           .dtype = MC_F32,
                                           .on_host = is_host || b->host,
                                           .first = element - p->stored->span->offset - p->first,
                                           .count = held};
    *count = n;
    return status;
}

static mc_status write_place(mc_parameter *p, const mc_parameter_place *to, const float *values)
{
    mc_module_root *root = p->module->root;
    const float *from = values + to->first;
    if (to->on_host && to->dtype == MC_F32)
        return mc_home_copy(&root->zero, to->data, true, from, true, to->count);
    return transfer(root, (mc_matrix){to->data, to->dtype, 0}, to->count, (float *)(uintptr_t)from,
                    true);
}

/* Sets the error for NULL values; returns the context's status. */
static mc_status fail_null(const mc_parameter *p)
{
    mc_context *ctx = p->module->ctx;
    mc_fail(ctx, MC_ERR_ARGUMENT, "parameter \"%s\": its values on the host are NULL", p->name);
    return mc_error_status(ctx);
}

mc_status mc_parameter_write(mc_parameter *p, const float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    if (!values) return fail_null(p);
    mc_module_root *root = p->module->root;
    bool was_initialized = p->initialized;
    p->initialized = true;
    mc_status status = mc_module_layout(root);
    if (status) p->initialized = was_initialized;
    mc_parameter_place places[MC_PARAMETER_PLACES];
    int count = 0;
    if (!status) status = mc_parameter_places(p, places, &count);
    for (int i = 0; i < count && !status; i++) status = write_place(p, &places[i], values);
    return status;
}

mc_status mc_parameter_read(mc_parameter *p, float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    if (!values) return fail_null(p);
    mc_module_root *root = p->module->root;
    mc_status status = mc_module_layout(root);
    if (status) return status;
    if (p->stored->leaves) return mc_stored_read_quantized(p, values);
    mc_bucket *bucket = p->stored->bucket;
    status = mc_bucket_gather(&root->zero, bucket, &bucket->values);
    if (!status) status = transfer(root, values_of(p), mc_shape_count(p->shape), values, false);
    mc_bucket_release(&root->zero, bucket, &bucket->values);
    return status;
}

mc_status mc_parameter_read_gradient(mc_parameter *p, float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    if (!values) return fail_null(p);
    mc_module_root *root = p->module->root;
    mc_bucket *bucket = p->stored->bucket;
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    int64_t count = mc_shape_count(p->shape);
    if (bucket && mc_zero_sum(&root->zero)) return mc_error_status(root->ctx);
    if (bucket)
        return mc_bucket_read_gradient(&root->zero, bucket, p->stored->span->offset + p->first,
                                       count, values);
    memset(values, 0, (size_t)count * sizeof *values);
    return MC_OK;
}

mc_status mc_module_zero_grad(mc_module *module)
{
    if (!module) return MC_ERR_ARGUMENT;
    mc_zero *z = &module->root->zero;
    mc_status status = mc_error_status(module->ctx);
    if (!status) status = mc_zero_end_reducing(z);
    for (int i = 0; !status && i < z->bucket_count; i++)
        status = mc_bucket_zero_gradient(z, &z->buckets[i]);
    return status;
}

mc_status mc_module_wait(mc_module *module)
{
    return module ? mc_zero_rest(&module->root->zero) : MC_ERR_ARGUMENT;
}
