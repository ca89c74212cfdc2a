/* Operations defined by a program. */
#include "core/ops/custom.h"

#include <string.h>
#include "core/device/plan_internal.h"
#include "core/ops/ops_internal.h"

_Static_assert(MC_CUSTOM_INPUTS <= MC_NODE_INPUTS && MC_CUSTOM_INPUTS + 1 <= MC_NODE_SAVED,
               "a node has room for all inputs, and keeps them and the output");

typedef struct custom_state {
    mc_custom_op_spec spec;
    void *user;
} custom_state;

/* Calls one of the functions, and turns its status into an error. */
static bool run(mc_tape *t, const custom_state *s, mc_custom_fn fn, const char *what,
                const mc_custom_call *call)
{
    mc_context *ctx = mc_tape_context(t);
    if (mc_failed(ctx)) return false;
    mc_device *device = mc_tape_device(t);
    if (mc_device_is_plan(device)) return true; /* there is no data */
    bool entered = mc_device_enter(device);
    mc_status status = fn(s->user, call);
    mc_device_leave(device, entered);
    if (status)
        mc_fail(ctx, status, "custom operation \"%s\": its %s function returned: %s", s->spec.name,
                what, mc_status_text(status));
    return !mc_failed(ctx);
}

static void run_forward(mc_tape *t, const custom_state *s, int count, mc_tensor *const *inputs,
                        mc_tensor *y)
{
    mc_custom_call call = {
        .ctx = mc_tape_context(t), .count = count, .inputs = inputs, .output = y};
    run(t, s, s->spec.forward, "forward", &call);
}

static void custom_again(mc_tape *t, mc_node *node)
{
    run_forward(t, node->state, node->input_count, node->inputs, node->output);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The output's gradient as f32; *made is the tensor allocated for it, if any. */
static mc_tensor *as_f32(mc_tape *t, mc_tensor *dy, mc_tensor **made)
{
    *made = NULL;
    if (dy->dtype == MC_F32) return dy;
    *made = mc_scratch_new(t, MC_F32, dy->shape);
    if (*made)
        MC_KERNEL(t, "custom operation", scale, mc_tensor_count(dy), mc_matrix_flat(dy), 1,
                  mc_matrix_flat(*made), false);
    return *made;
}

static mc_tensor *zeros_like(mc_tape *t, const mc_tensor *x)
{
    mc_tensor *g = mc_scratch_new(t, MC_F32, x->shape);
    if (g) MC_KERNEL(t, "custom operation", zero, mc_tensor_data(g), g->storage->bytes);
    return g;
}

/* An input that is passed twice gets two gradients here, which are then added. */
static void custom_backward(mc_tape *t, mc_node *node)
{
    const custom_state *s = node->state;
    mc_tensor *made, *gradient[MC_CUSTOM_INPUTS] = {0};
    mc_custom_call call = {.ctx = mc_tape_context(t),
                           .count = node->input_count,
                           .inputs = node->inputs,
                           .output = node->output,
                           .output_gradient = as_f32(t, node->output->gradient, &made),
                           .input_gradients = gradient};
    bool good = call.output_gradient;
    for (int i = 0; good && i < call.count; i++)
        if (node->inputs[i]->requires_grad)
            good = (gradient[i] = zeros_like(t, node->inputs[i])) != NULL;
    if (good && run(t, s, s->spec.backward, "backward", &call))
        for (int i = 0; i < call.count; i++) mc_gradient_share(t, node->inputs[i], gradient[i]);
    for (int i = 0; i < call.count; i++) mc_scratch_free(gradient[i]);
    mc_scratch_free(made);
}

/* ---- recording ------------------------------------------------------------------------------- */

static bool check_spec(mc_context *ctx, const mc_custom_op_spec *spec, int count,
                       mc_tensor *const *inputs)
{
    if (!spec || !spec->name || !spec->forward)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "custom operation: its %s is NULL",
                        !spec         ? "spec"
                        : !spec->name ? "name"
                                      : "forward function");
    if (spec->recompute && !spec->unread_output)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "custom operation \"%s\": `recompute` needs `unread_output`", spec->name);
    if (count >= 1 && count <= MC_CUSTOM_INPUTS && inputs) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT, "custom operation \"%s\": %d inputs%s, expected 1 to %d",
                    spec->name, count, inputs ? "" : ": NULL", MC_CUSTOM_INPUTS);
}

static bool check_call(mc_tape *t, const mc_custom_op_spec *spec, int count,
                       mc_tensor *const *inputs, mc_dtype dtype)
{
    mc_context *ctx = mc_tape_context(t);
    if (!check_spec(ctx, spec, count, inputs)) return false;
    for (int i = 0; i < count; i++)
        if (!mc_op_ready(t, spec->name, inputs[i])) return false;
    if (!spec->backward || mc_dtype_is_float(dtype)) return true;
    return !mc_fail(ctx, MC_ERR_DTYPE,
                    "custom operation \"%s\": a result of dtype %s has no gradient, but there is a "
                    "backward function",
                    spec->name, mc_dtype_name(dtype));
}

/* The tape's description of the operation, with a copy of its name. */
static const mc_op *op_of(mc_tape *t, const mc_custom_op_spec *spec)
{
    size_t size = strlen(spec->name) + 1;
    mc_op *op = mc_tape_alloc(t, sizeof *op);
    char *name = mc_tape_alloc(t, size);
    if (!op || !name) return NULL;
    memcpy(name, spec->name, size);
    *op = (mc_op){.name = name,
                  .backward = custom_backward,
                  .recompute = spec->recompute ? custom_again : NULL};
    return op;
}

static void record(mc_tape *t, const custom_state *s, int count, mc_tensor *const *inputs,
                   mc_tensor *y)
{
    const mc_op *op = op_of(t, &s->spec);
    mc_node *node = op ? mc_tape_record(t, op, y, sizeof *s, count, inputs) : NULL;
    if (!node) return;
    custom_state *kept = node->state;
    *kept = *s;
    kept->spec.name = op->name;
    /* forward's inputs are needed if it may be called again */
    for (int i = 0; i < count; i++)
        if (s->spec.recompute || !(s->spec.unread_inputs >> i & 1)) mc_node_save(node, inputs[i]);
    if (!s->spec.unread_output) mc_node_save(node, y);
}

mc_tensor *mc_custom_op(mc_tape *t, const mc_custom_op_spec *spec, void *user, int count,
                        mc_tensor *const *inputs, mc_dtype dtype, mc_shape shape)
{
    if (dtype == MC_DTYPE_DEFAULT) dtype = MC_F32;
    if (!check_call(t, spec, count, inputs, dtype)) return NULL;
    mc_tensor *y = mc_tape_tensor(t, dtype, shape, NULL);
    if (!y) return NULL;
    const mc_tensor *first = inputs[0];
    if (shape.ndim && first->shape.ndim && shape.dim[0] == first->shape.dim[0])
        y->lengths = first->lengths;
    custom_state s = {.spec = *spec, .user = user};
    run_forward(t, &s, count, inputs, y);
    if (spec->backward) record(t, &s, count, inputs, y);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

void *mc_context_stream(mc_context *ctx)
{
    mc_device *device = ctx ? ctx->device : NULL;
    return device && device->stream ? device->stream(device) : NULL;
}
