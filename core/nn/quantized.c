#include "core/nn/quantized_internal.h"
#include "core/nn/fp8_internal.h"

#include <math.h>

static mc_device *device_of(const mc_stored *s) { return s->owner->ctx->device; }

void mc_stored_free_quantized(mc_stored *s)
{
    mc_device *device = device_of(s);
    device->free(device, s->quantized.data, (size_t)s->count);
    device->free(device, s->quantized.scale, (size_t)s->quantized.rows * sizeof(float));
    s->quantized = (mc_matrix8){.format = MC_WEIGHTS_FLOAT};
}

mc_weight_format mc_module_weight_format(const mc_module_root *root)
{
    for (size_t i = 0; i < root->stored_count; i++)
        if (mc_stored_has_quantized(root->stored[i])) return root->stored[i]->quantized.format;
    return MC_WEIGHTS_FLOAT;
}

uint64_t mc_quantized_bytes(const mc_module_root *root)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < root->stored_count; i++) {
        const mc_stored *s = root->stored[i];
        if (!mc_stored_has_quantized(s)) continue;
        bytes += (uint64_t)s->count + (uint64_t)s->quantized.rows * sizeof(float);
    }
    return bytes;
}

/* ---- quantizing ------------------------------------------------------------------------------ */

/* The parameter that a row of the stored tensor belongs to. */
static const mc_parameter *parameter_of(const mc_stored *s, int64_t row)
{
    int k = 0;
    while (k + 1 < s->part_count && s->parts[k + 1]->first <= row * s->quantized.columns) k++;
    return s->parts[k];
}

static mc_status check_scales(const mc_stored *s)
{
    mc_context *ctx = s->owner->ctx;
    mc_device *device = device_of(s);
    const mc_matrix8 *q = &s->quantized;
    size_t bytes = (size_t)q->rows * sizeof(float);
    float *scale = mc_malloc(bytes);
    if (!scale) return mc_fail_nomem(ctx, "weights in 8 bits");
    if (!device->copy_out(device, scale, q->scale, bytes))
        mc_fail(ctx, MC_ERR_DEVICE, "weights in 8 bits: %s", device->failure);
    for (int64_t i = 0; i < q->rows && !mc_failed(ctx); i++) {
        if (isfinite(scale[i])) continue;
        const mc_parameter *p = parameter_of(s, i);
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "weights in 8 bits: \"%s\" has a value in row %lld that is not finite", p->name,
                (long long)(i - p->first / q->columns));
    }
    mc_free(scale);
    return mc_error_status(ctx);
}

/* The stored tensor's values must be in memory as a whole. */
static mc_status quantize(mc_stored *s, mc_weight_format format)
{
    mc_context *ctx = s->owner->ctx;
    mc_device *device = device_of(s);
    mc_matrix8 q = {.format = format, .rows = s->shape.dim[0], .columns = s->shape.dim[1]};
    size_t bytes = (size_t)s->count, scales = (size_t)q.rows * sizeof(float);
    q.data = device->alloc(device, bytes);
    q.scale = q.data ? device->alloc(device, scales) : NULL;
    if (!q.scale) {
        device->free(device, q.data, bytes);
        return mc_fail_memory(ctx, device, bytes + scales, MC_HELP_MODEL, "\"%s\" in 8 bits",
                              s->parts[0]->name);
    }
    s->quantized = q;
    mc_matrix values = {mc_stored_data(s), s->bucket->dtype, q.columns};
    mc_status status = device->kernels->quantize(device, values, q);
    if (status)
        mc_fail(ctx, status, "weights in 8 bits: %s", device->failure);
    else
        status = check_scales(s);
    if (status) mc_stored_free_quantized(s);
    return status;
}

static bool has_place(const mc_span *span) { return !mc_stored_of(span)->leaves; }

/* Moves a bucket to a layout without the tensors that leave it. */
static mc_status shrink(mc_module_root *root, mc_bucket *b)
{
    mc_zero *z = &root->zero;
    mc_bucket to;
    mc_status status = mc_bucket_describe(z, b, &to, has_place);
    if (status) {
        mc_bucket_end(z, &to);
        return status;
    }
    status = mc_module_move_bucket(root, b, &to, false);
    if (status) return status;
    for (size_t i = 0; i < root->stored_count; i++)
        if (root->stored[i]->leaves && root->stored[i]->bucket == b)
            root->stored[i]->bucket = NULL, root->stored[i]->leaf = NULL;
    return MC_OK;
}

static mc_status quantize_bucket(mc_module_root *root, mc_bucket *b, const mc_quantized_plan *plan)
{
    mc_zero *z = &root->zero;
    bool leaves = false;
    mc_status status = mc_bucket_gather(z, b, &b->values);
    if (status) return status;
    for (int i = 0; i < b->span_count && !status; i++) {
        mc_stored *s = mc_stored_of(&b->spans[i]);
        mc_quantized_choice choice = plan->choose(s, plan->user);
        if (choice == MC_QUANTIZED_NOT) continue;
        if (!mc_stored_has_quantized(s)) status = quantize(s, plan->format);
        s->leaves = !status && choice == MC_QUANTIZED_ALONE;
        leaves |= s->leaves;
    }
    mc_bucket_release(z, b, &b->values);
    return status || !leaves ? status : shrink(root, b);
}

/* Checks whether anything is left to do, for example after an earlier call without memory. */
static mc_status check_left(mc_module_root *root, const mc_quantized_plan *plan)
{
    bool left = false, other = false;
    for (size_t i = 0; i < root->stored_count; i++) {
        const mc_stored *s = root->stored[i];
        left |= s->bucket && (s->leaves || (!s->quantized.data && plan->choose(s, plan->user)));
        other |= s->quantized.data && s->quantized.format != plan->format;
    }
    if (left && !other) return MC_OK;
    return mc_fail(root->ctx, MC_ERR_STATE, "weights in 8 bits: the model has %s",
                   mc_module_weight_format(root) ? "them already" : "no linear layer in a block");
}

static mc_status check_model(mc_module_root *root, const mc_quantized_plan *plan)
{
    mc_context *ctx = root->ctx;
    bool trains = false;
    if (mc_is_on_open_tape(ctx, root, NULL))
        return mc_fail(ctx, MC_ERR_STATE,
                       "weights in 8 bits: a tape is open that uses %s: end it first",
                       MC_NAMED("model", root->module->name));
    for (int i = 0; i < root->zero.bucket_count; i++) {
        const mc_bucket *b = &root->zero.buckets[i];
        trains |= b->host || b->gradient.needed;
        for (int k = 0; k < MC_STATE_SLOTS; k++) trains |= b->state[k] != NULL;
    }
    if (trains)
        return mc_fail(ctx, MC_ERR_STATE,
                       "weights in 8 bits: the model has gradients or an optimizer's state; save "
                       "it, and load it without");
    return check_left(root, plan);
}

mc_status mc_module_quantize(mc_module_root *root, const mc_quantized_plan *plan)
{
    mc_status status = mc_module_layout(root);
    if (!status) status = check_model(root, plan);
    if (!status && !plan->trains) status = mc_module_set_trainable(root->module, NULL, false);
    if (!status) status = mc_module_layout(root);
    for (int i = 0; i < root->zero.bucket_count && !status; i++)
        status = quantize_bucket(root, &root->zero.buckets[i], plan);
    return status;
}

/* ---- using ----------------------------------------------------------------------------------- */

mc_tensor *mc_stored_product(mc_tape *t, mc_tensor *x, mc_stored *s, int64_t rows, mc_tensor *bias,
                             mc_activation activation, float scale)
{
    mc_module_root *root = s->owner->root;
    if (!mc_op_ready(t, "linear in 8 bits", x) || !mc_tape_note_owner(t, root)) return NULL;
    mc_matrix8 w = s->quantized;
    w.rows = rows;
    if (s->fp8 == MC_FP8_BY_ROWS && mc_fp8_takes(t, s))
        return mc_linear_quantized_fp8(t, x, &w, bias, activation, scale,
                                       root->fp8->recipe.fp8_margin);
    return mc_linear_quantized(t, x, &w, bias, activation, scale);
}

mc_tensor *mc_stored_dequantized(mc_tape *t, mc_stored *s)
{
    if (mc_tape_is_training(t)) {
        mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                "\"%s\" is in 8 bits: it is not trained, nor read by this operation of a tape that "
                "trains",
                s->parts[0]->name);
        return NULL;
    }
    mc_tensor *y = mc_tape_tensor(t, s->owner->root->dtype, s->shape, NULL);
    if (y) MC_KERNEL(t, "weights in 8 bits", dequantize, s->quantized, mc_matrix_of(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_status mc_stored_read_quantized(const mc_parameter *p, float *values)
{
    const mc_stored *s = p->stored;
    mc_context *ctx = s->owner->ctx;
    mc_device *device = ctx->device;
    int64_t columns = s->quantized.columns, count = mc_shape_count(p->shape);
    size_t bytes = (size_t)count * sizeof *values;
    float *whole = device->alloc(device, bytes);
    if (!whole) return mc_fail_nomem(ctx, "reading a parameter");
    mc_matrix8 part = s->quantized;
    part.rows = count / columns;
    part.data += p->first;
    part.scale += p->first / columns;
    mc_status status =
        device->kernels->dequantize(device, part, (mc_matrix){whole, MC_F32, columns});
    if (!status && !device->copy_out(device, values, whole, bytes)) status = MC_ERR_DEVICE;
    device->free(device, whole, bytes);
    if (status) mc_fail(ctx, status, "reading \"%s\": %s", p->name, device->failure);
    return mc_error_status(ctx);
}
