#include "core/autograd/tape_internal.h"

#include <string.h>
#include "core/autograd/step_internal.h"
#include "core/base/arena_internal.h"
#include "core/device/plan_internal.h"
#include "core/dist/comm.h"

/* Whose memory leaves of a tape show: a model's. */
typedef struct mc_leaf_owner {
    struct mc_leaf_owner *next;
    const void *owner;
} mc_leaf_owner;

/* Lengths that were copied to the device. */
typedef struct mc_device_lengths {
    struct mc_device_lengths *next;
    const mc_lengths *lengths;
    mc_tensor *tensor;
} mc_device_lengths;

typedef struct mc_tape_hooks {
    struct mc_tape_hooks *next;
    const mc_tape_watch *watch; /* NULL: taken off */
    const void *owner;
    void *data;
} mc_tape_hooks;

struct mc_tape {
    mc_owned owned;
    mc_context *ctx;
    mc_tape *next;         /* in the context's list of open tapes, or of ended ones */
    mc_leaf_owner *owners; /* of its leaves */
    mc_device_lengths *device_lengths;
    mc_tape_hooks *hooks;
    mc_arena arena;
    mc_tensor *newest;    /* all tensors, newest first */
    mc_node *newest_node; /* recorded nodes, newest first */
    uint64_t id;
    bool training;
    bool border;    /* a block has ended since the newest node */
    bool selective; /* within a selective scope */
    int unrecorded; /* > 0 in the first run of checkpointed segments */
    bool replaying; /* dropout offsets come from replay_offset */
    uint64_t replay_offset;
    uint64_t serial;        /* tensors made so far */
    uint64_t segment_start; /* while replaying: the first serial of the segment */
};

/* What a context keeps for its tapes. */
typedef struct mc_autograd {
    mc_owned owned;
    mc_context *ctx;
    mc_loss_seed seed;
    mc_tape *ended; /* ended tapes, whose arenas the next ones use again */
    mc_tape *open;
    uint64_t last_id;
} mc_autograd;

/* ---- life of a tape -------------------------------------------------------------------------- */

static void free_autograd(void *object)
{
    mc_autograd *autograd = object;
    while (autograd->ended) {
        mc_tape *tape = autograd->ended;
        autograd->ended = tape->next;
        mc_arena_release(&tape->arena);
        mc_free(tape);
    }
    autograd->ctx->autograd = NULL; /* models may be older */
    mc_free(autograd);
}

static mc_autograd *need_autograd(mc_context *ctx)
{
    if (!ctx->autograd) {
        ctx->autograd = mc_new_owned(ctx, sizeof *ctx->autograd, "the tape", free_autograd);
        if (ctx->autograd) ctx->autograd->ctx = ctx;
    }
    return ctx->autograd;
}

mc_loss_seed *mc_context_loss_seed(mc_context *ctx)
{
    mc_autograd *autograd = mc_failed(ctx) ? NULL : need_autograd(ctx);
    return autograd ? &autograd->seed : NULL;
}

static bool has_leaves_of(const mc_tape *tape, const void *owner)
{
    for (const mc_leaf_owner *o = tape->owners; o; o = o->next)
        if (o->owner == owner) return true;
    return false;
}

bool mc_tape_note_owner(mc_tape *tape, const void *owner)
{
    if (has_leaves_of(tape, owner)) return true;
    mc_leaf_owner *o = mc_tape_alloc(tape, sizeof *o);
    if (!o) return false;
    *o = (mc_leaf_owner){.next = tape->owners, .owner = owner};
    tape->owners = o;
    return true;
}

bool mc_is_on_open_tape(const mc_context *ctx, const void *owner, const mc_tape *but)
{
    for (mc_tape *tape = ctx->autograd ? ctx->autograd->open : NULL; tape; tape = tape->next)
        if (tape != but && has_leaves_of(tape, owner)) return true;
    return false;
}

/* Gives up a tensor's hold on its storage. */
static void unref(mc_tensor *x)
{
    if (!x->foreign) mc_storage_unref(x->storage);
    x->storage = NULL;
}

/* Releases all that was made on the tape; its arena keeps its chunks. */
static void clear(mc_tape *tape)
{
    for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
        if (h->watch) h->watch->at_end(h->data);
    tape->hooks = NULL;
    for (mc_node *node = tape->newest_node; node; node = node->previous)
        if (node->op->release) node->op->release(node);
    for (mc_tensor *x = tape->newest; x; x = x->previous) unref(x);
    tape->newest = NULL;
    tape->newest_node = NULL;
    mc_arena_reset(&tape->arena);
}

static void close(mc_tape *tape)
{
    clear(tape);
    mc_tape **link = &tape->ctx->autograd->open;
    while (*link != tape) link = &(*link)->next;
    *link = tape->next;
}

static void free_open_tape(void *object)
{
    mc_tape *tape = object;
    close(tape);
    mc_arena_release(&tape->arena);
    mc_free(tape);
}

static mc_tape *begin(mc_context *ctx, bool training)
{
    mc_autograd *autograd = mc_failed(ctx) ? NULL : need_autograd(ctx);
    if (!autograd) return NULL;
    mc_tape *tape = autograd->ended;
    if (tape) {
        autograd->ended = tape->next;
        mc_own(ctx, &tape->owned, tape, free_open_tape);
    } else if (!(tape = mc_new_owned(ctx, sizeof *tape, "a tape", free_open_tape))) {
        return NULL;
    }
    tape->ctx = ctx;
    tape->training = training;
    tape->id = ++autograd->last_id;
    tape->unrecorded = 0;
    tape->replaying = tape->selective = false;
    tape->border = false;
    tape->owners = NULL;
    tape->device_lengths = NULL;
    tape->hooks = NULL;
    tape->next = autograd->open;
    autograd->open = tape;
    return tape;
}

mc_tape *mc_tape_begin(mc_context *ctx) { return begin(ctx, true); }
mc_tape *mc_tape_begin_eval(mc_context *ctx) { return begin(ctx, false); }

void mc_tape_end(mc_tape *tape)
{
    if (!tape) return;
    mc_autograd *autograd = tape->ctx->autograd;
    close(tape);
    mc_disown(&tape->owned);
    tape->next = autograd->ended;
    autograd->ended = tape;
}

mc_context *mc_tape_context(const mc_tape *tape) { return tape ? tape->ctx : NULL; }
bool mc_tape_is_training(const mc_tape *tape) { return tape && tape->training; }
bool mc_tape_replaying(const mc_tape *tape) { return tape->replaying; }
bool mc_tape_recording(const mc_tape *tape) { return tape->training && !tape->unrecorded; }
uint64_t mc_tape_id(const mc_tape *tape) { return tape->id; }

void *mc_tape_alloc(mc_tape *tape, size_t bytes)
{
    void *memory = mc_arena_alloc(&tape->arena, bytes);
    if (!memory) mc_fail_nomem(tape->ctx, "the tape's bookkeeping");
    return memory;
}

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

/* Gives storage its memory; sets the error when there is none. */
static bool fill_storage(mc_tape *tape, mc_storage *storage, const mc_tensor *x)
{
    mc_device *device = tape->ctx->device;
    storage->data = device->alloc(device, storage->bytes);
    if (!storage->data)
        mc_fail_memory(tape->ctx, device, storage->bytes, MC_HELP_BATCH, "a %s tensor %s",
                       mc_dtype_name(x->dtype), MC_SHAPE_TEXT(x->shape));
    return storage->data;
}

mc_tensor *mc_tape_tensor(mc_tape *tape, mc_dtype dtype, mc_shape shape, const mc_tensor *like)
{
    size_t bytes;
    if (mc_failed(tape->ctx)) return NULL;
    if (!mc_shape_bytes(shape, dtype, &bytes)) {
        mc_fail(tape->ctx, MC_ERR_SHAPE, "tensor of dtype %s: bad shape %s", mc_dtype_name(dtype),
                MC_SHAPE_TEXT(shape));
        return NULL;
    }
    mc_tensor *x = new_tensor(tape, dtype, shape);
    mc_storage *storage = x ? new_storage(tape, NULL, bytes, false) : NULL;
    if (!storage || !fill_storage(tape, storage, x)) return NULL;
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
    /* Another tape may end before this one, and its storages go with it: it lives as long as this
     * one runs backward, so that no reference is needed. */
    view->foreign = x->foreign || (x->tape && x->tape != tape);
    if (!view->foreign) view->storage->references++;
    view->offset = x->offset + offset;
    view->host = x->host ? (char *)x->host + offset : NULL;
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

/* A tensor of memory after *base. */
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
    if (requires_grad && !mc_dtype_is_float(dtype)) {
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
    if (round_to < 1) round_to = 1;
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
    d->tensor->storage->saves++; /* no scope releases it */
    tape->device_lengths = d;
    return mc_tensor_data(d->tensor);
}

/* Whether the memory was made on this tape, rather than on another one, by the context or a module:
 * those views of it may be, but it is not the tape's to release. */
static bool is_of_tape(const mc_tape *tape, const mc_storage *storage)
{
    return storage && !storage->borrowed && storage->source && storage->source->tape == tape;
}

void mc_tape_release(mc_tape *tape, mc_tensor *x)
{
    if (x && x->deferred) {
        mc_tape_release(tape, x->deferred->x);
        mc_tape_release(tape, x->deferred->f);
        return;
    }
    if (!tape || !x || !is_of_tape(tape, x->storage)) return;
    x->storage->dropped = true;
    if (!x->storage->saves) mc_storage_free_data(x->storage);
}

/* Whether x made the memory, on this tape, and nobody else looks at it. */
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

/* ---- recording ------------------------------------------------------------------------------- */

bool mc_op_ready(mc_tape *tape, const char *op, const mc_tensor *x)
{
    if (!tape || mc_failed(tape->ctx)) return false;
    if (!x)
        mc_fail(tape->ctx, MC_ERR_ARGUMENT, "%s: its input is NULL", op);
    else if (x->ctx != tape->ctx)
        mc_fail(tape->ctx, MC_ERR_ARGUMENT, "%s: its input %s belongs to another context", op,
                MC_SHAPE_TEXT(x->shape));
    else if (x->deferred)
        mc_fail(tape->ctx, MC_ERR_STATE,
                "%s: its input %s is a residual sum that is not made yet: make it with "
                "mc_residual_sum",
                op, MC_SHAPE_TEXT(x->shape));
    else if (!x->storage || !mc_storage_data(x->storage))
        mc_fail(tape->ctx, MC_ERR_STATE, "%s: its input %s was released", op,
                MC_SHAPE_TEXT(x->shape));
    return !mc_failed(tape->ctx);
}

bool mc_op_ok(mc_tape *tape, const char *op, mc_status status)
{
    if (status)
        mc_fail(tape->ctx, status, "%s: %s%s%s%s", op, mc_status_text(status),
                status == MC_ERR_NOMEM ? " for its scratch memory" : "",
                *tape->ctx->device->failure ? ": " : "", tape->ctx->device->failure);
    return !mc_failed(tape->ctx);
}

mc_matrix mc_matrix_of(const mc_tensor *x)
{
    if (!x) return (mc_matrix){0};
    return (mc_matrix){mc_tensor_data(x), x->dtype, mc_tensor_columns(x)};
}

/* Whether one of the inputs requires a gradient; an error if that one is of another tape. */
static bool wants_gradient(mc_tape *tape, const char *op, int input_count, mc_tensor *const *inputs)
{
    bool wanted = false;
    for (int i = 0; i < input_count; i++) {
        if (!inputs[i] || !inputs[i]->requires_grad) continue;
        wanted = true;
        if (inputs[i]->tape != tape)
            mc_fail(
                tape->ctx, MC_ERR_ARGUMENT,
                "%s: an input %s of another tape requires a gradient: copy it with mc_tape_input",
                op, MC_SHAPE_TEXT(inputs[i]->shape));
    }
    return wanted;
}

static void append(mc_tape *tape, mc_node *node)
{
    node->previous = tape->newest_node;
    node->border = tape->border;
    tape->newest_node = node;
    tape->border = false;
}

mc_node *mc_tape_record(mc_tape *tape, const mc_op *op, mc_tensor *output, size_t state_bytes,
                        int input_count, mc_tensor *const *inputs)
{
    if (!output || mc_failed(tape->ctx) || !tape->training) return NULL;
    bool wanted = wants_gradient(tape, op->name, input_count, inputs);
    output->requires_grad = wanted;
    if (mc_failed(tape->ctx)) return NULL;
    if (!wanted || tape->unrecorded) return NULL;
    mc_node *node = mc_tape_alloc(tape, sizeof *node);
    if (!node || !(node->state = mc_tape_alloc(tape, state_bytes ? state_bytes : 1))) return NULL;
    node->op = op;
    node->input_count = input_count;
    memcpy(node->inputs, inputs, (size_t)input_count * sizeof *inputs);
    node->output = output;
    output->node = node;
    append(tape, node);
    return node;
}

void mc_node_second(mc_node *node, mc_tensor *x)
{
    if (node) node->second = x;
    x->requires_grad = true;
}

mc_node *mc_tape_mark(mc_tape *tape, const mc_op *op, size_t state_bytes)
{
    mc_node *node = mc_failed(tape->ctx) ? NULL : mc_tape_alloc(tape, sizeof *node);
    if (!node || !(node->state = mc_tape_alloc(tape, state_bytes))) return NULL;
    node->op = op;
    append(tape, node);
    return node;
}

mc_status mc_tape_hook(mc_tape *tape, const mc_tape_watch *watch, const void *owner, void *data)
{
    mc_tape_hooks *h = mc_tape_alloc(tape, sizeof *h);
    if (!h) return mc_error_status(tape->ctx);
    *h = (mc_tape_hooks){tape->hooks, watch, owner, data};
    tape->hooks = h;
    return MC_OK;
}

void mc_tape_unhook(const mc_context *ctx, const void *owner)
{
    for (mc_tape *tape = ctx->autograd ? ctx->autograd->open : NULL; tape; tape = tape->next)
        for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
            if (h->owner == owner) h->watch = NULL;
}

void mc_node_save(mc_node *node, mc_tensor *x)
{
    if (!node || !x) return;
    node->saved[node->saved_count++] = x;
    x->storage->saves++;
}

mc_dropout_mask mc_tape_dropout(mc_tape *tape, float p)
{
    if (!tape->training || p <= 0) return (mc_dropout_mask){0};
    uint64_t *offset = tape->replaying ? &tape->replay_offset : &tape->ctx->rng_offset;
    /* ranks have other rows, and drop other elements: each has a stream of its own */
    uint64_t seed = tape->ctx->seed ^ (uint64_t)tape->ctx->rank * 0x9E3779B97F4A7C15u;
    mc_dropout_mask mask = {.p = p, .seed = seed, .offset = (*offset)++};
    if (mc_step_is_recording(tape->ctx)) mask.base = mc_step_dropout(tape->ctx, &mask.offset);
    return mask;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

mc_scope mc_scope_begin(mc_tape *tape, bool selective)
{
    mc_scope scope = {.serial = tape->serial, .selective = selective, .within = tape->selective};
    tape->selective |= selective;
    return scope;
}

/* Whether x needs the storage, itself or as a part of a sum that is not made yet. */
static bool shows(const mc_tensor *x, const mc_storage *storage)
{
    if (x && x->deferred)
        return x->deferred->x->storage == storage || x->deferred->f->storage == storage;
    return x && x->storage == storage;
}

static bool is_cheap(const mc_tensor *x) { return x && x->node && x->node->op->recompute; }

bool mc_scope_drops(const mc_tape *tape, const mc_tensor *x)
{
    return tape->selective && is_cheap(x);
}

void mc_scope_end(mc_tape *tape, mc_scope scope, mc_tensor *keep)
{
    tape->selective = scope.within;
    tape->border = true;
    for (mc_tensor *x = tape->newest; x && x->serial > scope.serial; x = x->previous) {
        mc_storage *storage = x->storage;
        if (!is_of_tape(tape, storage) || shows(keep, storage)) continue;
        if (storage->source->serial <= scope.serial) continue; /* a view of what is older */
        storage->dropped = true;
        bool cheap = scope.selective && is_cheap(storage->source);
        if (!storage->saves || cheap) mc_storage_free_data(storage);
    }
}

/* As if backward, which does not come, needed it. */
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

/* ---- gradients ------------------------------------------------------------------------------- */

mc_tensor *mc_scratch_new(mc_tape *tape, mc_dtype dtype, mc_shape shape)
{
    return mc_tape_tensor(tape, dtype, shape, NULL);
}

void mc_scratch_free(mc_tensor *x)
{
    if (!x) return;
    mc_storage_unref(x->storage);
    x->storage = NULL;
}

static mc_matrix flat(const mc_tensor *x)
{
    return (mc_matrix){mc_tensor_data(x), x->dtype, mc_tensor_count(x)};
}

/* Whether x may be given a gradient: it wants one, and if a checkpointed segment runs its backward,
 * x is of the segment (what comes from outside has to be handed in). */
static bool takes_gradient(mc_tape *tape, const mc_tensor *x)
{
    if (!x || !x->requires_grad || mc_failed(tape->ctx)) return false;
    if (x->is_leaf || !tape->replaying || x->serial > tape->segment_start) return true;
    mc_fail(tape->ctx, MC_ERR_ARGUMENT,
            "a checkpointed block uses a tensor %s from outside: pass it as an extra input",
            MC_SHAPE_TEXT(x->shape));
    return false;
}

/* Gives x a gradient of its own again when it shares the memory with another tensor's. */
static bool make_exclusive(mc_tape *tape, mc_tensor *x)
{
    mc_tensor *shared = x->gradient;
    if (shared->storage->references == 1) return true;
    mc_tensor *own = mc_tape_tensor(tape, x->dtype, x->shape, x);
    if (!own) return false;
    mc_device *device = tape->ctx->device;
    device->kernels->scale(device, mc_tensor_count(x), flat(shared), 1.0f, flat(own), false);
    mc_storage_unref(shared->storage);
    shared->storage = NULL;
    x->gradient = own;
    return true;
}

bool mc_gradient_is_there(mc_tape *tape, const mc_tensor *x)
{
    if (!x || !x->gradient || mc_storage_data(x->gradient->storage)) return true;
    mc_fail(tape->ctx, MC_ERR_STATE,
            "a parameter %s has no memory for its gradient now: outside of backward it is there "
            "where the parameter is used outside of its block, from mc_parameter_tensor to the end "
            "of the next backward pass",
            MC_SHAPE_TEXT(x->shape));
    return false;
}

mc_tensor *mc_gradient_target(mc_tape *tape, mc_tensor *x, bool *accumulate)
{
    *accumulate = false;
    if (!takes_gradient(tape, x)) return NULL;
    if (!x->gradient) return x->gradient = mc_tape_tensor(tape, x->dtype, x->shape, x);
    *accumulate = true;
    if (!x->is_leaf) return make_exclusive(tape, x) ? x->gradient : NULL;
    if (!mc_gradient_is_there(tape, x)) return NULL;
    bool whole = x->blank && x->blank->bytes == x->gradient->storage->bytes;
    if (whole && mc_blank_take(x->blank)) *accumulate = false;
    return mc_blank_fill(tape->ctx, x->blank) ? NULL : x->gradient;
}

void mc_gradient_share(mc_tape *tape, mc_tensor *x, mc_tensor *g)
{
    if (!g || !takes_gradient(tape, x)) return;
    if (!x->gradient && g->dtype == x->dtype) {
        x->gradient = mc_tape_view(tape, g, x->shape, 0);
        return;
    }
    bool accumulate;
    mc_tensor *target = mc_gradient_target(tape, x, &accumulate);
    if (!target) return;
    mc_device *device = tape->ctx->device;
    device->kernels->scale(device, mc_tensor_count(x), flat(g), 1.0f, flat(target), accumulate);
}

/* Sees to it that all that the node saved is there. */
static bool restore_saved(mc_tape *tape, mc_node *node)
{
    for (int i = 0; i < node->saved_count; i++)
        if (!mc_saved_data(tape, node->saved[i])) return false;
    return true;
}

void *mc_saved_data(mc_tape *tape, mc_tensor *x)
{
    if (mc_failed(tape->ctx)) return NULL;
    mc_storage *storage = x->storage;
    if (mc_storage_data(storage)) return mc_tensor_data(x);
    mc_node *maker = storage->source ? storage->source->node : NULL;
    if (!maker || !maker->op->recompute) {
        mc_fail(tape->ctx, MC_ERR_STATE, "backward needs a tensor %s that was released",
                MC_SHAPE_TEXT(x->shape));
        return NULL;
    }
    if (!restore_saved(tape, maker) || !fill_storage(tape, storage, x)) return NULL;
    maker->op->recompute(tape, maker);
    return mc_failed(tape->ctx) ? NULL : mc_tensor_data(x);
}

/* Forgets what the node kept for its backward. */
static void drop_saved(mc_node *node)
{
    for (int i = 0; i < node->saved_count; i++) {
        mc_storage *storage = node->saved[i]->storage;
        if (!storage) continue; /* passed on as a gradient */
        if (--storage->saves == 0 && storage->dropped) mc_storage_free_data(storage);
    }
    node->saved_count = 0;
}

static void drop_gradient(mc_tensor *y)
{
    if (!y || !y->gradient) return;
    mc_storage_unref(y->gradient->storage);
    y->gradient->storage = NULL;
    y->gradient = NULL;
}

/* The pass that finds fused pairs: two nodes in a row, of which the later one reads the other's
 * output, and no other node does. Never across the end of a block: one that is run again for its
 * gradients is to give the same bits, and a sharded one's gradients have no place yet. */
static void find_pairs(mc_tape *tape, const mc_node *stop)
{
    for (mc_node *node = tape->newest_node; node != stop; node = node->previous) node->readers = 0;
    for (mc_node *node = tape->newest_node; node != stop; node = node->previous) {
        for (int i = 0; i < node->input_count; i++)
            if (node->inputs[i] && node->inputs[i]->node) node->inputs[i]->node->readers++;
        mc_node *before = node->previous; /* all that may read its output have been counted */
        bool may = node->op->fuses && before != stop && before->readers == 1 && !node->border;
        node->fused = may && node->op->fuses(node, before) ? before : NULL;
    }
}

/* Runs backward over the nodes from the newest down to, not including, `stop`. */
static void run_backward(mc_tape *tape, mc_node *stop)
{
    find_pairs(tape, stop);
    for (mc_node *node = tape->newest_node; node != stop; node = node->previous) {
        if (node->op->always) {
            if (!mc_failed(tape->ctx)) node->op->backward(tape, node);
            continue;
        }
        mc_tensor *y = node->output, *z = node->second;
        bool reached = y->gradient || (z && z->gradient);
        if (!reached || mc_failed(tape->ctx)) continue;
        if (node->done) {
            mc_fail(tape->ctx, MC_ERR_STATE, "backward through \"%s\" a second time",
                    node->op->name);
            return;
        }
        mc_range_begin(tape->ctx->device, node->op->name);
        if (restore_saved(tape, node)) node->op->backward(tape, node);
        mc_range_end(tape->ctx->device);
        mc_error_while(&tape->ctx->error, "running backward of %s, output %s", node->op->name,
                       MC_SHAPE_TEXT(y->shape));
        node->done = true;
        drop_saved(node);
        drop_gradient(y);
        drop_gradient(z);
    }
}

static void run_whole_backward(mc_tape *tape)
{
    for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
        if (h->watch) h->watch->before_backward(h->data);
    run_backward(tape, NULL);
    for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
        if (h->watch) h->watch->after_backward(h->data);
}

static mc_status check_backward(mc_tape *tape, const mc_tensor *y)
{
    mc_context *ctx = tape ? tape->ctx : NULL;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!y || y->tape != tape)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "backward: the tensor was not made on this tape");
    if (!tape->training) return mc_fail(ctx, MC_ERR_STATE, "backward on an evaluation tape");
    if (y->deferred)
        return mc_fail(ctx, MC_ERR_STATE,
                       "backward: the tensor %s is a residual sum that is not made yet",
                       MC_SHAPE_TEXT(y->shape));
    if (y->node && y->node->done)
        return mc_fail(ctx, MC_ERR_STATE, "backward from the same tensor twice");
    return MC_OK;
}

mc_status mc_tape_backward_seeded(mc_tape *tape, mc_tensor *loss, const float *seed)
{
    mc_status status = check_backward(tape, loss);
    if (status) return status;
    if (loss->dtype != MC_F32 || !mc_shape_equal(loss->shape, MC_SHAPE(2)))
        return mc_fail(tape->ctx, MC_ERR_SHAPE,
                       "backward without a gradient starts from a loss, found a %s tensor %s",
                       mc_dtype_name(loss->dtype), MC_SHAPE_TEXT(loss->shape));
    if (!loss->requires_grad) return MC_OK; /* nothing trainable is behind it */
    loss->gradient = mc_tape_leaf(tape, MC_F32, MC_SHAPE(2), (void *)(uintptr_t)seed, NULL);
    if (loss->gradient) run_whole_backward(tape);
    return mc_error_status(tape->ctx);
}

/* {seed, 0} in device memory that lives as long as the tape. */
static const float *seed_on_tape(mc_tape *tape, double count)
{
    float seed[2] = {(float)(1.0 / (count > 0 ? count : 1)), 0};
    if (mc_step_is_recording(tape->ctx)) {
        mc_fail(tape->ctx, MC_ERR_STATE,
                "a step that is recorded needs an OptimManager to seed its losses");
        return NULL;
    }
    return mc_tensor_data(mc_tape_input(tape, MC_F32, MC_SHAPE(2), seed, false));
}

/* For a tensor (sum, count) that no loss operation made. */
static const float *seed_by_reading(mc_tape *tape, const mc_tensor *y)
{
    float sum_count[2] = {0, 0};
    if (mc_tensor_count(y) == 2) mc_tensor_read_f32(tape->ctx, y, sum_count, 2);
    return seed_on_tape(tape, (double)sum_count[1]);
}

mc_status mc_tape_backward(mc_tape *tape, mc_tensor *y, const mc_tensor *dy)
{
    mc_status status = check_backward(tape, y);
    if (status) return status;
    if (!dy && !mc_tensor_data(y))
        return mc_fail(tape->ctx, MC_ERR_STATE, "backward from a loss that was released");
    if (!dy) {
        const float *seed = y->seed ? y->seed : seed_by_reading(tape, y);
        return seed ? mc_tape_backward_seeded(tape, y, seed) : mc_error_status(tape->ctx);
    }
    if (dy->ctx != y->ctx)
        return mc_fail(tape->ctx, MC_ERR_ARGUMENT,
                       "backward: the gradient %s belongs to another context",
                       MC_SHAPE_TEXT(dy->shape));
    if (dy->dtype != y->dtype || !mc_shape_equal(dy->shape, y->shape))
        return mc_fail(tape->ctx, MC_ERR_SHAPE, "backward: gradient %s %s, expected %s %s",
                       mc_dtype_name(dy->dtype), MC_SHAPE_TEXT(dy->shape), mc_dtype_name(y->dtype),
                       MC_SHAPE_TEXT(y->shape));
    if (!mc_tensor_data(dy))
        return mc_fail(tape->ctx, MC_ERR_STATE, "backward: the gradient %s was released",
                       MC_SHAPE_TEXT(dy->shape));
    if (!y->requires_grad) return MC_OK;
    bool accumulate;
    mc_tensor *target = mc_gradient_target(tape, y, &accumulate);
    if (!target) return mc_error_status(tape->ctx);
    mc_device *device = tape->ctx->device;
    device->kernels->scale(device, mc_tensor_count(y), flat(dy), 1.0f, flat(target), accumulate);
    run_whole_backward(tape);
    return mc_error_status(tape->ctx);
}

mc_tensor *mc_tensor_gradient(const mc_tensor *x) { return x ? x->gradient : NULL; }

/* Ranks may have unequal numbers of rows, and have to divide by the same number: the first losses
 * that they meet settle it for good. 0 after an error. */
static int64_t agree_on_rows(mc_context *ctx, int64_t rows)
{
    mc_device *device = ctx->device;
    if (ctx->agreed_rows) return ctx->agreed_rows;
    int64_t most = rows < 1 ? 1 : rows, *shared = device->alloc(device, sizeof *shared);
    if (!shared) return mc_fail_nomem(ctx, "the seed of a loss"), 0;
    device->copy_in(device, shared, &most, sizeof most);
    mc_comm_all_reduce(ctx->comm, shared, shared, 1, MC_I64, MC_REDUCE_MAX);
    if (!mc_failed(ctx) && !device->copy_out(device, &most, shared, sizeof most))
        mc_fail(ctx, MC_ERR_DEVICE, "the seed of a loss: %s", device->failure);
    device->free(device, shared, sizeof *shared);
    if (most < rows) most = rows; /* a device that only plans knows no numbers */
    return ctx->agreed_rows = mc_failed(ctx) ? 0 : most;
}

const float *mc_loss_seed_of(mc_tape *tape, int64_t rows, double count)
{
    mc_context *ctx = tape->ctx;
    mc_loss_seed *seed = mc_context_loss_seed(ctx);
    if (!seed) return NULL;
    if (!seed->manager) return seed_on_tape(tape, count);
    if (seed->nominal <= 0) {
        if (ctx->comm && !(rows = agree_on_rows(ctx, rows))) return NULL;
        double global = (double)rows * seed->micro_steps * ctx->world_size;
        seed->nominal = global > 0 ? global : 1;
        mc_device *device = ctx->device;
        mc_op_ok(tape, "the seed of a loss",
                 device->kernels->step_seed(device, seed->nominal, seed->state));
    }
    return seed->state->seed;
}

/* ---- checkpointed segments ------------------------------------------------------------------- */

typedef struct segment_state {
    mc_segment_fn fn;
    void *user;
    uint64_t rng_offset;
} segment_state;

/* A fresh input for the second run: the same contents, no history. */
static mc_tensor *detached(mc_tape *tape, mc_tensor *x)
{
    if (!x) return NULL;
    mc_tensor *copy = mc_tape_view(tape, x, x->shape, 0);
    if (!copy) return NULL;
    copy->requires_grad = x->requires_grad;
    copy->lengths = x->lengths;
    return copy;
}

/* Runs the segment again, recorded, with the dropout of the first run; `fresh` are its inputs. */
static mc_tensor *replay(mc_tape *tape, const segment_state *state, mc_tensor **fresh)
{
    uint64_t was_offset = tape->replay_offset;
    bool was_replaying = tape->replaying;
    tape->replaying = true;
    tape->replay_offset = state->rng_offset;
    mc_tensor *y = state->fn(tape, state->user, fresh[0], fresh + 1);
    tape->replaying = was_replaying;
    tape->replay_offset = was_offset;
    return y;
}

/* Backward over the nodes of the second run, from y's gradient; they are forgotten afterwards. */
static void replay_backward(mc_tape *tape, uint64_t start, mc_node *before, mc_tensor *y,
                            mc_tensor *dy)
{
    uint64_t was_start = tape->segment_start;
    bool was_replaying = tape->replaying;
    tape->replaying = true;
    tape->segment_start = start;
    if (y && y->requires_grad) {
        mc_gradient_share(tape, y, dy);
        run_backward(tape, before);
    }
    tape->replaying = was_replaying;
    tape->segment_start = was_start;
    for (mc_node *node = tape->newest_node; node != before; node = node->previous) {
        drop_saved(node);
        if (node->op->release) node->op->release(node);
    }
    tape->newest_node = before;
}

static void segment_backward(mc_tape *tape, mc_node *node)
{
    mc_tensor *fresh[MC_NODE_INPUTS] = {0};
    mc_node *before = tape->newest_node;
    uint64_t start = tape->serial;
    for (int i = 0; i < node->input_count; i++) fresh[i] = detached(tape, node->inputs[i]);
    mc_tensor *y = replay(tape, node->state, fresh);
    replay_backward(tape, start, before, y, node->output->gradient);
    mc_tensor *last = tape->newest;
    for (int i = 0; i < node->input_count; i++)
        if (fresh[i]) mc_gradient_share(tape, node->inputs[i], fresh[i]->gradient);
    /* all of the second run goes now; what was handed out above holds its own references */
    for (mc_tensor *x = last; x && x->serial > start; x = x->previous)
        if (x->storage && !x->storage->borrowed) unref(x);
}

static const mc_op segment_op = {.name = "checkpoint", .backward = segment_backward};

/* The first run, which is not recorded. Its inputs are needed again: they are held, so that nothing
 * inside takes their memory. */
static mc_tensor *first_run(mc_tape *tape, mc_segment_fn fn, void *user, mc_tensor **inputs,
                            int count)
{
    mc_storage *held[MC_NODE_INPUTS];
    for (int i = 0; i < count; i++) {
        held[i] = inputs[i] ? inputs[i]->storage : NULL;
        if (held[i]) held[i]->saves++;
    }
    tape->unrecorded++;
    mc_tensor *y = fn(tape, user, inputs[0], inputs + 1);
    tape->unrecorded--;
    for (int i = 0; i < count; i++)
        if (held[i] && --held[i]->saves == 0 && held[i]->dropped) mc_storage_free_data(held[i]);
    return y;
}

mc_tensor *mc_tape_checkpoint(mc_tape *tape, mc_segment_fn fn, void *user, mc_tensor *x,
                              mc_tensor *const *extra, int extra_count)
{
    if (!mc_op_ready(tape, "checkpoint", x)) return NULL;
    if (extra_count < 0 || extra_count > MC_NODE_INPUTS - 1) {
        mc_fail(tape->ctx, MC_ERR_ARGUMENT, "checkpoint: %d extra inputs, at most %d", extra_count,
                MC_NODE_INPUTS - 1);
        return NULL;
    }
    if (extra_count && !extra) {
        mc_fail(tape->ctx, MC_ERR_ARGUMENT, "checkpoint: its %d extra inputs are NULL",
                extra_count);
        return NULL;
    }
    if (!mc_tape_recording(tape)) return fn(tape, user, x, extra);
    mc_tensor *inputs[MC_NODE_INPUTS] = {x};
    for (int i = 0; i < extra_count; i++) inputs[i + 1] = extra[i];
    wants_gradient(tape, "checkpoint", extra_count + 1, inputs);
    if (mc_failed(tape->ctx)) return NULL;
    uint64_t rng_offset = tape->replaying ? tape->replay_offset : tape->ctx->rng_offset;
    mc_tensor *inner = first_run(tape, fn, user, inputs, extra_count + 1);
    if (!inner) return NULL;
    mc_tensor *y = mc_tape_view(tape, inner, inner->shape, 0);
    if (!y) return NULL;
    y->lengths = inner->lengths;
    y->requires_grad = inner->requires_grad;
    if (!y->requires_grad) return y;
    mc_node *node = mc_tape_alloc(tape, sizeof *node);
    segment_state *state = node ? mc_tape_alloc(tape, sizeof *state) : NULL;
    if (!state) return NULL;
    *state = (segment_state){.fn = fn, .user = user, .rng_offset = rng_offset};
    *node =
        (mc_node){.op = &segment_op, .output = y, .state = state, .input_count = extra_count + 1};
    memcpy(node->inputs, inputs, sizeof inputs);
    y->node = node;
    append(tape, node);
    for (int i = 0; i <= extra_count; i++) mc_node_save(node, inputs[i]);
    return y;
}
