/* y = activation(scale * x weight^T + bias). The pre-activation is kept for the activation's
 * gradient, and y can be computed again from it, so that selective recompute keeps only one of the
 * two. */
#include "core/ops/ops_internal.h"
#include "core/ops/fused.h"

#include <math.h>

typedef struct linear_state {
    mc_activation activation;
    float scale;
    mc_tensor *pre; /* pre-activation; NULL without an activation */
    /* What the node after it has done of its backward: its output's gradient is that of the
     * pre-activation; the bias has its gradient. */
    bool activation_done, bias_done;
} linear_state;

enum { X, WEIGHT, BIAS };

/* The gradient of the pre-activation: dy itself without an activation, else a scratch tensor. */
static mc_tensor *pre_gradient(mc_tape *t, mc_node *node, const linear_state *state)
{
    mc_tensor *dy = node->output->gradient;
    if (state->activation == MC_ACTIVATION_NONE || state->activation_done) return dy;
    mc_tensor *du = mc_scratch_new(t, dy->dtype, dy->shape);
    if (!du) return NULL;
    MC_KERNEL(t, "linear", activation_backward, mc_tensor_rows(dy), mc_tensor_columns(dy),
              state->activation, mc_saved_matrix(t, state->pre), 1, mc_matrix_of(dy),
              mc_matrix_of(du), false);
    return du;
}

static const mc_op linear_activation_op;

/* A linear's product takes the gradient of the activation before it along, and that of its bias. */
static bool fuses(const mc_node *node, const mc_node *before)
{
    return before->op == &linear_activation_op && node->inputs[X] == before->output;
}

/* Gradients of the input, where it is wanted, and of biases: of the linear's own, unless the
 * operation after it did so, and of the one that it is fused with. */
static void input_backward(mc_tape *t, mc_node *node, const mc_tensor *du)
{
    const linear_state *state = node->state;
    mc_tensor *x = node->inputs[X], *weight = node->inputs[WEIGHT];
    mc_tensor *bias = state->bias_done ? NULL : node->inputs[BIAS];
    int64_t rows = mc_tensor_rows(du), in = mc_tensor_columns(x), out = mc_tensor_columns(du);
    bool accumulate;
    float *dbias = mc_vector_gradient_begin(t, bias);
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    linear_state *before = dx && !accumulate && node->fused ? node->fused->state : NULL;
    mc_tensor *earlier = before ? node->fused->inputs[BIAS] : NULL;
    float *sums = mc_vector_gradient_begin(t, earlier);
    mc_linear_backward_call call = {.rows = rows,
                                    .in = in,
                                    .out = out,
                                    .alpha = state->scale,
                                    .beta = accumulate ? 1.0f : 0.0f,
                                    .dy = mc_matrix_of(du),
                                    .dx = mc_matrix_of(dx),
                                    .sums = sums,
                                    .dbias = dbias};
    if (dx) call.weight = mc_saved_matrix(t, weight);
    if (before) {
        call.activation = before->activation;
        call.pre = mc_saved_matrix(t, before->pre);
    }
    if (dx)
        MC_KERNEL(t, "linear", linear_backward_input, &call);
    else if (dbias)
        MC_KERNEL(t, "linear", column_sums, rows, out, call.dy, dbias);
    mc_vector_gradient_end(t, bias, dbias);
    mc_vector_gradient_end(t, earlier, sums);
    if (!before) return;
    before->activation_done = true;
    before->bias_done = sums;
}

static void linear_backward(mc_tape *t, mc_node *node)
{
    const linear_state *state = node->state;
    mc_tensor *x = node->inputs[X], *weight = node->inputs[WEIGHT];
    int64_t rows = mc_tensor_rows(x), in = mc_tensor_columns(x),
            out = mc_tensor_columns(node->output);
    mc_tensor *du = pre_gradient(t, node, state);
    if (!du) return;
    bool accumulate;
    mc_tensor *dweight = mc_gradient_target(t, weight, &accumulate);
    if (dweight)
        MC_KERNEL(t, "linear", gemm, true, false, out, in, rows, state->scale, mc_matrix_of(du),
                  mc_saved_matrix(t, x), accumulate ? 1.0f : 0.0f, mc_matrix_of(dweight));
    input_backward(t, node, du);
    if (du != node->output->gradient) mc_scratch_free(du);
}

static void activation_again(mc_tape *t, mc_node *node)
{
    const linear_state *state = node->state;
    mc_tensor *y = node->output;
    MC_KERNEL(t, "linear", activation, mc_tensor_rows(y), mc_tensor_columns(y), state->activation,
              mc_saved_matrix(t, state->pre), mc_matrix_of(y));
}

static const mc_op linear_op = {.name = "linear", .backward = linear_backward, .fuses = fuses};
static const mc_op linear_activation_op = {
    .name = "linear", .backward = linear_backward, .recompute = activation_again, .fuses = fuses};

bool mc_node_is_linear(const mc_node *node) { return node->op == &linear_op; }
mc_tensor *mc_linear_bias(const mc_node *linear) { return linear->inputs[BIAS]; }
void mc_linear_bias_done(const mc_node *linear)
{
    ((linear_state *)linear->state)->bias_done = true;
}

bool mc_linear_check(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                     mc_activation activation, float scale)
{
    if (!mc_op_ready(t, "linear", x) || !mc_op_ready(t, "linear", weight)) return false;
    if (!mc_op_float(t, "linear", "input", x)) return false;
    if (!mc_op_same_dtype(t, "linear", "weight", weight, x->dtype)) return false;
    if (weight->shape.ndim != 2 || x->shape.ndim < 1 ||
        weight->shape.dim[1] != mc_tensor_columns(x)) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "linear: input %s and weight %s, expected (..., in) and (out, in)",
                MC_SHAPE_TEXT(x->shape), MC_SHAPE_TEXT(weight->shape));
        return false;
    }
    if (!mc_op_activation(t, "linear", activation)) return false;
    if (!isfinite(scale))
        return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                        "linear: scale %g, expected a finite number", (double)scale);
    if (!bias) return true;
    return mc_op_ready(t, "linear", bias) &&
           mc_op_same_dtype(t, "linear", "bias", bias, x->dtype) &&
           mc_op_shape(t, "linear", "bias", bias, MC_SHAPE(weight->shape.dim[0]));
}

mc_tensor *mc_scaled_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                            mc_activation activation, float scale)
{
    if (!mc_linear_check(t, x, weight, bias, activation, scale)) return NULL;
    int64_t rows = mc_tensor_rows(x), in = mc_tensor_columns(x), out = weight->shape.dim[0];
    mc_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = out;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, x), *pre = NULL;
    if (!y) return NULL;
    bool active = activation != MC_ACTIVATION_NONE;
    bool keeps_pre = active && mc_tape_recording(t) &&
                     (x->requires_grad || weight->requires_grad || (bias && bias->requires_grad));
    if (keeps_pre && !(pre = mc_tape_tensor(t, x->dtype, shape, x))) return NULL;
    mc_linear_call call = {.rows = rows,
                           .in = in,
                           .out = out,
                           .alpha = scale,
                           .x = mc_matrix_of(x),
                           .weight = mc_matrix_of(weight),
                           .activation = activation,
                           .pre = mc_matrix_of(pre),
                           .y = mc_matrix_of(y)};
    if (bias) call.bias = mc_matrix_flat(bias);
    MC_KERNEL(t, "linear", linear, &call);
    mc_node *node = mc_tape_record(t, active ? &linear_activation_op : &linear_op, y,
                                   sizeof(linear_state), 3, (mc_tensor *[]){x, weight, bias});
    if (node) {
        *(linear_state *)node->state =
            (linear_state){.activation = activation, .scale = scale, .pre = pre};
        mc_node_save(node, weight->requires_grad ? x : NULL);
        mc_node_save(node, x->requires_grad ? weight : NULL);
        mc_node_save(node, pre);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_fused_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                           mc_activation activation)
{
    return mc_scaled_linear(t, x, weight, bias, activation, 1);
}
