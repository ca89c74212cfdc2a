#include "core/autograd/tape_state_internal.h"

#include <string.h>
#include "core/autograd/step_internal.h"

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
    autograd->ctx->autograd = NULL; /* models may outlive this */
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

static bool uses_memory_of(const mc_tape *tape, const void *owner)
{
    for (const mc_tape_owner *o = tape->owners; o; o = o->next)
        if (o->owner == owner) return true;
    return false;
}

bool mc_tape_note_owner(mc_tape *tape, const void *owner)
{
    if (uses_memory_of(tape, owner)) return true;
    mc_tape_owner *o = mc_tape_alloc(tape, sizeof *o);
    if (!o) return false;
    *o = (mc_tape_owner){.next = tape->owners, .owner = owner};
    tape->owners = o;
    return true;
}

void mc_tape_note_outside(mc_tape *tape, const mc_tensor *x)
{
    if (!x || !tape->training) return;
    if (x->tape != tape) mc_tape_note_owner(tape, x->tape ? (const void *)x->tape : x);
    if (x->lengths && x->lengths->fixed) mc_tape_note_owner(tape, x->lengths);
}

bool mc_is_on_open_tape(const mc_context *ctx, const void *owner, const mc_tape *but)
{
    for (mc_tape *tape = ctx->autograd ? ctx->autograd->open : NULL; tape; tape = tape->next)
        if (tape != but && uses_memory_of(tape, owner)) return true;
    return false;
}

/* Frees everything created on the tape; its arena keeps its chunks. */
static void clear(mc_tape *tape)
{
    for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
        if (h->watch) h->watch->at_end(h->data);
    tape->hooks = NULL;
    for (mc_node *node = tape->newest_node; node; node = node->previous)
        if (node->op->release) node->op->release(node);
    for (mc_tensor *x = tape->newest; x; x = x->previous) mc_tape_unref(x);
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
    tape->orphaned = NULL;
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

/* Whether a caller uses a tape after its end: seen until another tape takes over its memory. */
static bool ended(const mc_tape *tape)
{
    if (!tape->id) mc_fail(tape->ctx, MC_ERR_STATE, "a tape is used after its end");
    return !tape->id;
}

void mc_tape_end(mc_tape *tape)
{
    if (!tape || ended(tape)) return;
    mc_autograd *autograd = tape->ctx->autograd;
    close(tape);
    mc_tape_unhook(tape->ctx, tape, "another tape, whose tensors the tape used, has ended");
    tape->id = 0;
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
    if (ended(tape)) return NULL;
    void *memory = mc_arena_alloc(&tape->arena, bytes);
    if (!memory) mc_fail_nomem(tape->ctx, "the tape's bookkeeping");
    return memory;
}

/* ---- recording ------------------------------------------------------------------------------- */

bool mc_tape_given(const mc_tape *tape, const char *op, mc_context *ctx)
{
    if (!tape) mc_fail(ctx, MC_ERR_ARGUMENT, "%s: its tape is NULL", op);
    return tape;
}

bool mc_op_ready(mc_tape *tape, const char *op, const mc_tensor *x)
{
    if (!mc_tape_given(tape, op, x ? x->ctx : NULL) || mc_failed(tape->ctx)) return false;
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

bool mc_tape_wants_gradient(mc_tape *tape, const char *op, int input_count,
                            mc_tensor *const *inputs)
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
    bool wanted = mc_tape_wants_gradient(tape, op->name, input_count, inputs);
    output->requires_grad = wanted;
    if (mc_failed(tape->ctx)) return NULL;
    if (!wanted) return NULL;
    for (int i = 0; i < input_count; i++) mc_tape_note_outside(tape, inputs[i]);
    if (tape->unrecorded) return NULL;
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

void mc_tape_unhook(const mc_context *ctx, const void *owner, const char *what)
{
    for (mc_tape *tape = ctx->autograd ? ctx->autograd->open : NULL; tape; tape = tape->next) {
        if (!tape->orphaned && uses_memory_of(tape, owner)) tape->orphaned = what;
        for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
            if (h->owner == owner) h->watch = NULL;
    }
}

mc_dropout_mask mc_tape_dropout(mc_tape *tape, float p)
{
    if (!tape->training || p <= 0) return (mc_dropout_mask){0};
    uint64_t *offset = tape->replaying ? &tape->replay_offset : &tape->ctx->rng_offset;
    /* ranks have different rows and drop different elements: each has its own stream */
    uint64_t seed = tape->ctx->seed ^ (uint64_t)tape->ctx->mesh.data.rank * 0x9E3779B97F4A7C15u;
    mc_dropout_mask mask = {.p = p, .seed = seed, .offset = (*offset)++};
    if (mc_step_is_recording(tape->ctx)) mask.base = mc_step_dropout(tape->ctx, &mask.offset);
    return mask;
}
