/* Contents that backward reads: kept, recomputed singly, or recomputed with their segment. */
#include "core/autograd/tape_state_internal.h"

#include <string.h>

/* ---- saved contents -------------------------------------------------------------------------- */

void mc_node_save(mc_node *node, mc_tensor *x)
{
    if (!node || !x) return;
    if (node->output) mc_tape_note_outside(node->output->tape, x);
    node->saved[node->saved_count++] = x;
    x->storage->saves++;
}

bool mc_node_restore(mc_tape *tape, mc_node *node)
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
    if (!mc_node_restore(tape, maker) || !mc_tape_fill_storage(tape, storage, x)) return NULL;
    maker->op->recompute(tape, maker);
    return mc_failed(tape->ctx) ? NULL : mc_tensor_data(x);
}

/* Frees what no other node saves, if it was released. */
static void forget(const mc_tensor *x)
{
    mc_storage *storage = x->storage;
    if (!storage) return; /* its memory became a gradient */
    if (--storage->saves == 0 && storage->dropped) mc_storage_free_data(storage);
}

void mc_node_unsave(mc_node *node, const mc_tensor *x)
{
    for (int i = 0; i < node->saved_count; i++) {
        if (node->saved[i] != x) continue;
        forget(x);
        node->saved[i] = node->saved[--node->saved_count];
        return;
    }
}

void mc_node_forget(mc_node *node)
{
    for (int i = 0; i < node->saved_count; i++) forget(node->saved[i]);
    node->saved_count = 0;
}

/* ---- checkpointed segments ------------------------------------------------------------------- */

typedef struct segment_state {
    mc_segment_fn fn;
    void *user;
    uint64_t rng_offset;
} segment_state;

/* A new input for the second run, with the same contents but without history. */
static mc_tensor *detached(mc_tape *tape, mc_tensor *x)
{
    if (!x) return NULL;
    mc_tensor *copy = mc_tape_view(tape, x, x->shape, 0);
    if (!copy) return NULL;
    copy->requires_grad = x->requires_grad;
    copy->lengths = x->lengths;
    return copy;
}

/* Runs the segment again, recorded, with the first run's dropout; `fresh` are its inputs. */
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

/* Runs backward over the nodes of the second run, from y's gradient, and then removes the nodes. */
static void replay_backward(mc_tape *tape, uint64_t start, mc_node *before, mc_tensor *y,
                            mc_tensor *dy)
{
    uint64_t was_start = tape->segment_start;
    bool was_replaying = tape->replaying;
    tape->replaying = true;
    tape->segment_start = start;
    if (y && y->requires_grad) {
        mc_gradient_share(tape, y, dy);
        mc_tape_run_backward(tape, before);
    }
    tape->replaying = was_replaying;
    tape->segment_start = was_start;
    for (mc_node *node = tape->newest_node; node != before; node = node->previous) {
        mc_node_forget(node);
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
    /* frees the second run's tensors; gradients that were passed out have their own references */
    for (mc_tensor *x = last; x && x->serial > start; x = x->previous)
        if (x->storage && !x->storage->borrowed) mc_tape_unref(x);
}

static const mc_op segment_op = {.name = "checkpoint", .backward = segment_backward};

/* The first run, not recorded. The second run needs its inputs, so they are saved: nothing inside
 * may take over their memory. */
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
    mc_tape_wants_gradient(tape, "checkpoint", extra_count + 1, inputs);
    if (mc_failed(tape->ctx)) return NULL;
    uint64_t rng_offset = tape->replaying ? tape->replay_offset : tape->ctx->rng_offset;
    mc_tensor *inner = first_run(tape, fn, user, inputs, extra_count + 1);
    if (!inner) return NULL;
    mc_tensor *y = mc_tape_view(tape, inner, inner->shape, 0);
    if (!y) return NULL;
    y->lengths = inner->lengths;
    y->requires_grad = inner->requires_grad;
    if (!y->requires_grad) return y;
    mc_node *node = mc_tape_mark(tape, &segment_op, sizeof(segment_state));
    if (!node) return NULL;
    *(segment_state *)node->state =
        (segment_state){.fn = fn, .user = user, .rng_offset = rng_offset};
    node->output = y;
    node->input_count = extra_count + 1;
    memcpy(node->inputs, inputs, sizeof inputs);
    y->node = node;
    for (int i = 0; i <= extra_count; i++) mc_node_save(node, inputs[i]);
    return y;
}
