/* Gradients, the backward pass over the recorded nodes, and the seeds that it starts from. */
#include "core/autograd/tape_state_internal.h"

#include "core/autograd/step_internal.h"

/* ---- gradients ------------------------------------------------------------------------------- */

static mc_matrix flat(const mc_tensor *x)
{
    return (mc_matrix){mc_tensor_data(x), x->dtype, mc_tensor_count(x)};
}

/* Whether x may receive a gradient: it requires one, and while a checkpointed segment runs
 * backward, it belongs to the segment (otherwise an error: x must be an extra input). */
static bool takes_gradient(mc_tape *tape, const mc_tensor *x)
{
    if (!x || !x->requires_grad || mc_failed(tape->ctx)) return false;
    if (x->is_leaf || !tape->replaying || x->serial > tape->segment_start) return true;
    mc_fail(tape->ctx, MC_ERR_ARGUMENT,
            "a checkpointed block uses a tensor %s from outside: pass it as an extra input",
            MC_SHAPE_TEXT(x->shape));
    return false;
}

/* Gives x its own copy of a gradient that it shares with another tensor. */
static bool make_exclusive(mc_tape *tape, mc_tensor *x)
{
    mc_tensor *shared = x->gradient;
    if (shared->storage->references == 1) return true;
    mc_tensor *own = mc_tape_tensor(tape, x->dtype, x->shape, x);
    if (!own) return false;
    mc_device *device = tape->ctx->device;
    device->kernels->scale(device, mc_tensor_count(x), flat(shared), 1.0f, flat(own), false);
    mc_tape_unref(shared);
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

static void drop_gradient(mc_tensor *y)
{
    if (!y) return;
    mc_tape_unref(y->gradient);
    y->gradient = NULL;
}

/* ---- the pass over the nodes ----------------------------------------------------------------- */

/* Finds pairs of nodes whose backward passes are fused: the second was recorded right after the
 * first, and is the only node that reads its output. Never across the end of a block: a block that
 * runs again must give the same bits, and the gradients of a sharded block have no memory yet. */
static void find_pairs(mc_tape *tape, const mc_node *stop)
{
    for (mc_node *node = tape->newest_node; node != stop; node = node->previous) node->readers = 0;
    for (mc_node *node = tape->newest_node; node != stop; node = node->previous) {
        for (int i = 0; i < node->input_count; i++)
            if (node->inputs[i] && node->inputs[i]->node) node->inputs[i]->node->readers++;
        mc_node *before = node->previous; /* all nodes that may read its output have been counted */
        bool may = node->op->fuses && before != stop && before->readers == 1 && !node->border;
        node->fused = may && node->op->fuses(node, before) ? before : NULL;
    }
}

void mc_tape_run_backward(mc_tape *tape, mc_node *stop)
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
        if (mc_node_restore(tape, node)) node->op->backward(tape, node);
        mc_range_end(tape->ctx->device);
        mc_error_while(&tape->ctx->error, "running backward of %s, output %s", node->op->name,
                       MC_SHAPE_TEXT(y->shape));
        node->done = true;
        mc_node_forget(node);
        drop_gradient(y);
        drop_gradient(z);
    }
}

static void run_whole_backward(mc_tape *tape)
{
    for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
        if (h->watch) h->watch->before_backward(h->data);
    mc_tape_run_backward(tape, NULL);
    for (mc_tape_hooks *h = tape->hooks; h; h = h->next)
        if (h->watch) h->watch->after_backward(h->data);
}

static mc_status check_backward(mc_tape *tape, const mc_tensor *y)
{
    if (!mc_tape_given(tape, "backward", y ? y->ctx : NULL)) return MC_ERR_ARGUMENT;
    mc_context *ctx = tape->ctx;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!y || y->tape != tape)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "backward: the tensor was not made on this tape");
    if (!tape->training) return mc_fail(ctx, MC_ERR_STATE, "backward on an evaluation tape");
    if (tape->orphaned) return mc_fail(ctx, MC_ERR_STATE, "backward: %s", tape->orphaned);
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
                       "backward without a gradient starts from a loss, found a tensor of %s %s",
                       mc_dtype_name(loss->dtype), MC_SHAPE_TEXT(loss->shape));
    if (!loss->requires_grad) return MC_OK; /* no trainable tensor contributes to it */
    loss->gradient = mc_tape_leaf(tape, MC_F32, MC_SHAPE(2), (void *)(uintptr_t)seed, NULL);
    if (loss->gradient) run_whole_backward(tape);
    return mc_error_status(tape->ctx);
}

/* ---- seeds ----------------------------------------------------------------------------------- */

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

/* For a tensor (sum, count) that is not the result of a loss operation. */
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

const float *mc_loss_seed_of(mc_tape *tape, int64_t rows, double count)
{
    mc_context *ctx = tape->ctx;
    mc_open_step *step = ctx->step;
    if (mc_failed(ctx)) return NULL;
    if (!step) return seed_on_tape(tape, count);
    if (step->nominal <= 0) {
        if (ctx->mesh.data.comm) {
            if (!step->rows && step->planned <= 0) step->rows = rows < 1 ? 1 : rows;
            rows = step->rows;
        }
        double own = (double)rows * step->passes * ctx->mesh.data.size;
        step->nominal = step->planned > 0 ? step->planned : own > 0 ? own : 1;
        mc_op_ok(tape, "the seed of a loss",
                 ctx->device->kernels->step_seed(ctx->device, step->nominal, step->state));
    }
    return step->state->seed;
}
