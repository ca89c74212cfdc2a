/* Tensors of a tape: allocating and releasing their memory. */
#include "core/autograd/tape_state_internal.h"

#include <string.h>
#include "core/device/plan_internal.h"

/* ---- tensors --------------------------------------------------------------------------------- */

/* A tensor on the tape without storage. */
static mc_tensor *new_tensor(mc_tape *tape, mc_dtype dtype, mc_shape shape)
{
    mc_tensor *x = mc_tape_alloc(tape, sizeof *x);
    if (!x) return NULL;
    x->ctx = tape->ctx;
    x->tape = tape;
    x->dtype = dtype;
    x->shape = shape;
    x->serial = ++tape->serial;
    x->previous = tape->newest;
    tape->newest = x;
    return x;
}

static mc_storage *new_storage(mc_tape *tape, void *data, size_t bytes, bool borrowed)
{
    mc_storage *storage = mc_tape_alloc(tape, sizeof *storage);
    if (storage)
        *storage = (mc_storage){.device = tape->ctx->device,
                                .data = data,
                                .bytes = bytes,
                                .references = 1,
                                .borrowed = borrowed,
                                .in_arena = true};
    return storage;
}

bool mc_tape_fill_storage(mc_tape *tape, mc_storage *storage, const mc_tensor *x)
{
    mc_device *device = tape->ctx->device;
    storage->data = device->alloc(device, storage->bytes);
    if (!storage->data)
        mc_fail_memory(tape->ctx, device, storage->bytes, MC_HELP_BATCH, "a tensor of %s %s",
                       mc_dtype_name(x->dtype), MC_SHAPE_TEXT(x->shape));
    return storage->data;
}

mc_tensor *mc_tape_tensor(mc_tape *tape, mc_dtype dtype, mc_shape shape, const mc_tensor *like)
{
    size_t bytes;
    if (mc_failed(tape->ctx) || !mc_tensor_bytes(tape->ctx, dtype, shape, &bytes)) return NULL;
    mc_tensor *x = new_tensor(tape, dtype, shape);
    mc_storage *storage = x ? new_storage(tape, NULL, bytes, false) : NULL;
    if (!storage || !mc_tape_fill_storage(tape, storage, x)) return NULL;
    storage->source = x;
    x->storage = storage;
    x->lengths = like ? like->lengths : NULL;
    return x;
}

mc_tensor *mc_tape_view(mc_tape *tape, mc_tensor *x, mc_shape shape, size_t offset)
{
    mc_tensor *view = new_tensor(tape, x->dtype, shape);
    if (!view) return NULL;
    view->storage = x->storage;
    /* The other tape's storage needs no reference, because that tape must outlive this one's
     * backward pass. */
    view->foreign = x->foreign || (x->tape && x->tape != tape);
    if (view->foreign) mc_tape_note_outside(tape, x);
    if (!view->foreign) view->storage->references++;
    view->offset = x->offset + offset;
    view->host = x->host ? (char *)x->host + offset : NULL;
    view->nominal_rows = x->nominal_rows;
    return view;
}

mc_tensor *mc_tape_deferred(mc_tape *tape, mc_tensor *x, mc_tensor *f, float dropout)
{
    mc_tensor *sum = new_tensor(tape, x->dtype, x->shape);
    mc_deferred *deferred = sum ? mc_tape_alloc(tape, sizeof *deferred) : NULL;
    if (!deferred) return NULL;
    *deferred = (mc_deferred){.x = x, .f = f, .dropout = dropout};
    sum->deferred = deferred;
    sum->lengths = x->lengths;
    sum->requires_grad = x->requires_grad || f->requires_grad;
    return sum;
}

mc_tensor *mc_tape_deferred_activation(mc_tape *tape, mc_tensor *pre, int activation, bool gated)
{
    mc_shape shape = pre->shape;
    if (gated) shape.dim[shape.ndim - 1] /= 2;
    mc_tensor *y = new_tensor(tape, pre->dtype, shape);
    if (!y) return NULL;
    y->pre = pre;
    y->activation = activation;
    y->gated = gated;
    y->lengths = pre->lengths;
    return y;
}

mc_tensor *mc_tape_in_bytes(mc_tape *tape, mc_dtype dtype, mc_tensor *bytes, const float *scale)
{
    mc_tensor *y = bytes ? new_tensor(tape, dtype, bytes->shape) : NULL;
    if (!y) return NULL;
    y->bytes = bytes;
    y->bytes_scale = scale;
    y->lengths = bytes->lengths;
    return y;
}

mc_tensor *mc_tape_leaf(mc_tape *tape, mc_dtype dtype, mc_shape shape, void *data, float *gradient)
{
    size_t bytes;
    if (mc_failed(tape->ctx) || !mc_shape_bytes(shape, dtype, &bytes)) return NULL;
    mc_tensor *leaf = new_tensor(tape, dtype, shape);
    if (!leaf || !(leaf->storage = new_storage(tape, data, bytes, true))) return NULL;
    if (!gradient || !tape->training) return leaf;
    leaf->gradient = new_tensor(tape, MC_F32, shape);
    if (!leaf->gradient) return NULL;
    bytes = (size_t)mc_shape_count(shape) * sizeof(float);
    if (!(leaf->gradient->storage = new_storage(tape, gradient, bytes, true))) return NULL;
    leaf->is_leaf = leaf->requires_grad = true;
    return leaf;
}

/* A tensor of the memory that starts at *base. */
static mc_tensor *based(mc_tape *tape, mc_dtype dtype, mc_shape shape, void *const *base,
                        int64_t offset)
{
    size_t bytes;
    mc_tensor *x = mc_shape_bytes(shape, dtype, &bytes) ? new_tensor(tape, dtype, shape) : NULL;
    if (!x || !(x->storage = new_storage(tape, NULL, bytes, true))) return NULL;
    x->storage->base = base;
    x->storage->base_offset = (size_t)offset * mc_dtype_size(dtype);
    return x;
}

mc_tensor *mc_tape_parameter(mc_tape *tape, mc_dtype dtype, mc_shape shape, void *const *data,
                             const mc_leaf_gradient *gradient, int64_t offset)
{
    if (mc_failed(tape->ctx)) return NULL;
    mc_tensor *leaf = based(tape, dtype, shape, data, offset);
    if (!leaf || !gradient || !tape->training) return leaf;
    leaf->gradient = based(tape, gradient->dtype, shape, gradient->base, gradient->offset);
    leaf->is_leaf = leaf->requires_grad = true;
    leaf->blank = gradient->blank;
    return leaf->gradient ? leaf : NULL;
}

mc_tensor *mc_tape_input(mc_tape *tape, mc_dtype dtype, mc_shape shape, const void *data,
                         bool requires_grad)
{
    if (!tape || mc_failed(tape->ctx)) return NULL;
    if (requires_grad && mc_dtype_size(dtype) && !mc_dtype_is_float(dtype)) {
        mc_fail(tape->ctx, MC_ERR_DTYPE, "tape input of dtype %s cannot require a gradient",
                mc_dtype_name(dtype));
        return NULL;
    }
    mc_tensor *x = mc_tape_tensor(tape, dtype, shape, NULL);
    if (!x) return NULL;
    mc_device *device = tape->ctx->device;
    size_t bytes = x->storage->bytes;
    if (!device->is_host && !mc_dtype_is_float(dtype)) {
        if (!(x->host = mc_tape_alloc(tape, bytes + 1))) return NULL;
        if (data) memcpy(x->host, data, bytes);
    }
    if (data && bytes) device->copy_in(device, x->storage->data, data, bytes);
    if (!data) device->kernels->zero(device, x->storage->data, bytes);
    x->requires_grad = requires_grad && tape->training;
    return x;
}

const mc_lengths *mc_tape_lengths(mc_tape *tape, const int32_t *lengths, int count,
                                  int64_t round_to)
{
    if (!tape || mc_failed(tape->ctx)) return NULL;
    if (count < 0 || (count && !lengths)) {
        mc_fail(tape->ctx, MC_ERR_ARGUMENT, "lengths of %d sequences%s", count,
                lengths ? "" : ": NULL");
        return NULL;
    }
    if (round_to < 0) {
        mc_fail(tape->ctx, MC_ERR_ARGUMENT,
                "lengths of %d sequences: round_to is %lld, expected 1 or more, or 0 for 1", count,
                (long long)round_to);
        return NULL;
    }
    mc_lengths *out = mc_tape_alloc(tape, sizeof *out);
    int32_t *length = mc_tape_alloc(tape, ((size_t)count + 1) * sizeof *length);
    int32_t *offset = mc_tape_alloc(tape, ((size_t)count + 1) * sizeof *offset);
    if (!out || !length || !offset) return NULL;
    *out = (mc_lengths){.count = count, .length = length, .offset = offset};
    for (int i = 0; i < count; i++) {
        if (lengths[i] < 0 || out->total + lengths[i] > INT32_MAX) {
            mc_fail(tape->ctx, MC_ERR_ARGUMENT, "length %d of sequence %d: %s", lengths[i], i,
                    lengths[i] < 0 ? "negative" : "the batch is too long");
            return NULL;
        }
        length[i] = lengths[i];
        out->total += lengths[i];
        offset[i + 1] = (int32_t)out->total;
        if (lengths[i] > out->longest) out->longest = lengths[i];
    }
    if (!round_to) round_to = 1;
    if (round_to <= INT32_MAX) out->capacity = (out->total + round_to - 1) / round_to * round_to;
    if (round_to <= INT32_MAX && out->capacity <= INT32_MAX) return out;
    mc_fail(tape->ctx, MC_ERR_ARGUMENT,
            "lengths of %lld tokens, rounded up to %lld: expected up to %d", (long long)out->total,
            (long long)round_to, INT32_MAX);
    return NULL;
}

const int32_t *mc_tape_device_lengths(mc_tape *tape, const mc_lengths *lengths)
{
    if (mc_device_is_host(tape->ctx->device)) return NULL;
    if (lengths->fixed) return mc_tensor_data(lengths->fixed);
    for (mc_device_lengths *d = tape->device_lengths; d; d = d->next)
        if (d->lengths == lengths) return mc_tensor_data(d->tensor);
    mc_device_lengths *d = mc_tape_alloc(tape, sizeof *d);
    int64_t n = 2 * (int64_t)lengths->count + 1;
    int32_t *both = mc_tape_alloc(tape, (size_t)n * sizeof *both);
    if (!d || !both) return NULL;
    memcpy(both, lengths->length, (size_t)lengths->count * sizeof *both);
    memcpy(both + lengths->count, lengths->offset, ((size_t)lengths->count + 1) * sizeof *both);
    *d = (mc_device_lengths){.next = tape->device_lengths,
                             .lengths = lengths,
                             .tensor = mc_tape_input(tape, MC_I32, MC_SHAPE(n), both, false)};
    if (!d->tensor) return NULL;
    d->tensor->storage->saves++; /* so that no scope releases it */
    tape->device_lengths = d;
    return mc_tensor_data(d->tensor);
}

/* Whether this tape allocated the memory. Other memory (of another tape, the context or a module)
 * may have views on this tape, but the tape must not release it. */
static bool is_of_tape(const mc_tape *tape, const mc_storage *storage)
{
    return storage && !storage->borrowed && storage->source && storage->source->tape == tape;
}

void mc_tape_unref(mc_tensor *x)
{
    if (!x) return;
    if (!x->foreign) mc_storage_unref(x->storage);
    x->storage = NULL;
}

mc_tensor *mc_scratch_new(mc_tape *tape, mc_dtype dtype, mc_shape shape)
{
    return mc_tape_tensor(tape, dtype, shape, NULL);
}

void mc_scratch_free(mc_tensor *x) { mc_tape_unref(x); }

void mc_tape_release(mc_tape *tape, mc_tensor *x)
{
    if (x && x->deferred) {
        mc_tape_release(tape, x->deferred->x);
        mc_tape_release(tape, x->deferred->f);
        return;
    }
    if (x && x->pre) x = x->pre;
    if (x && x->bytes) mc_tape_release(tape, x->bytes);
    if (!tape || !x || !x->storage || !is_of_tape(tape, x->storage)) return;
    x->storage->dropped = true;
    if (!x->storage->saves) mc_storage_free_data(x->storage);
}

/* Whether x allocated its memory on this tape, and shares it with no view. */
static bool is_alone(const mc_tape *tape, const mc_tensor *x)
{
    const mc_storage *s = x->storage;
    return is_of_tape(tape, s) && s->source == x && s->data && s->references == 1 && s->saves == 0;
}

mc_tensor *mc_tape_take(mc_tape *tape, mc_tensor *x)
{
    mc_tensor *y = is_alone(tape, x) ? new_tensor(tape, x->dtype, x->shape) : NULL;
    if (!y) return NULL;
    y->storage = x->storage;
    y->storage->source = y;
    y->lengths = x->lengths;
    x->storage = NULL;
    return y;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

mc_scope mc_scope_begin(mc_tape *tape, bool selective)
{
    mc_scope scope = {.serial = tape->serial, .selective = selective, .within = tape->selective};
    tape->selective |= selective;
    return scope;
}

/* Whether x uses the storage, itself, in 8 bits, or as a term of a deferred sum. */
static bool shows(const mc_tensor *x, const mc_storage *storage)
{
    if (x && x->deferred)
        return x->deferred->x->storage == storage || x->deferred->f->storage == storage;
    if (x && x->bytes && x->bytes->storage == storage) return true;
    return x && x->storage == storage;
}

static bool is_cheap(const mc_tensor *x) { return x && x->node && x->node->op->recompute; }

bool mc_scope_drops(const mc_tape *tape, const mc_tensor *x)
{
    return tape->selective && is_cheap(x);
}

bool mc_tape_keeps_cheap(const mc_tape *tape)
{
    return mc_tape_recording(tape) && !tape->selective;
}

void mc_scope_end(mc_tape *tape, mc_scope scope, mc_tensor *keep)
{
    tape->selective = scope.within;
    tape->border = true;
    for (mc_tensor *x = tape->newest; x && x->serial > scope.serial; x = x->previous) {
        mc_storage *storage = x->storage;
        if (!is_of_tape(tape, storage) || shows(keep, storage)) continue;
        if (storage->source->serial <= scope.serial) continue; /* a view of an older tensor */
        storage->dropped = true;
        bool cheap = scope.selective && is_cheap(storage->source);
        if (!storage->saves || cheap) mc_storage_free_data(storage);
    }
}

/* Counts as a node that saves the contents, although no backward pass will come. */
void mc_scope_keep(mc_tensor *x)
{
    if (x) x->storage->saves++;
}

void mc_scope_release(mc_tape *tape, mc_scope scope, mc_tensor *x, const mc_tensor *keep)
{
    if (x->deferred) {
        mc_scope_release(tape, scope, x->deferred->x, keep);
        mc_scope_release(tape, scope, x->deferred->f, keep);
        return;
    }
    bool inside = is_of_tape(tape, x->storage) && x->storage->source->serial > scope.serial;
    if (inside && !shows(keep, x->storage)) mc_tape_release(tape, x);
}
