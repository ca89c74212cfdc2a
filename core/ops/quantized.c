/* Products with frozen 8-bit weights: inputs and biases have gradients. */
#include "core/ops/ops_internal.h"

static const char op[] = "linear in 8 bits";

static bool check(mc_tape *t, const mc_tensor *x, const mc_matrix8 *w, const mc_tensor *bias)
{
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x)) return false;
    if (x->shape.ndim < 1 || mc_tensor_columns(x) != w->columns)
        return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                        "%s: input %s and weight (%lld, %lld), expected (..., in) and (out, in)",
                        op, MC_SHAPE_TEXT(x->shape), (long long)w->rows, (long long)w->columns);
    if (!bias) return true;
    return mc_op_ready(t, op, bias) && mc_op_same_dtype(t, op, "bias", bias, x->dtype) &&
           mc_op_shape(t, op, "bias", bias, MC_SHAPE(w->rows));
}

typedef struct quantized_state {
    mc_matrix8 w;
    float scale;
} quantized_state;

enum { X, BIAS };

/* dx = scale dy W, and the column sums of dy; dequantizes W to dy's dtype in scratch memory. */
static void quantized_backward(mc_tape *t, mc_node *node)
{
    const quantized_state *state = node->state;
    const mc_matrix8 *w = &state->w;
    mc_tensor *dy = node->output->gradient, *bias = node->inputs[BIAS];
    bool accumulate = false;
    float *dbias = mc_vector_gradient_begin(t, bias);
    mc_tensor *dx = mc_gradient_target(t, node->inputs[X], &accumulate);
    mc_tensor *whole = dx ? mc_scratch_new(t, dy->dtype, MC_SHAPE(w->rows, w->columns)) : NULL;
    mc_linear_backward_call call = {.rows = mc_tensor_rows(dy),
                                    .in = w->columns,
                                    .out = w->rows,
                                    .alpha = state->scale,
                                    .beta = accumulate ? 1.0f : 0.0f,
                                    .dy = mc_matrix_of(dy),
                                    .weight = mc_matrix_of(whole),
                                    .dx = mc_matrix_of(dx),
                                    .dbias = dbias};
    if (whole && MC_KERNEL(t, op, dequantize, *w, call.weight))
        MC_KERNEL(t, op, linear_backward_input, &call);
    else if (!dx && dbias)
        MC_KERNEL(t, op, column_sums, call.rows, call.out, call.dy, dbias);
    mc_scratch_free(whole);
    mc_vector_gradient_end(t, bias, dbias);
}

static const mc_op quantized_op = {.name = op, .backward = quantized_backward};

static mc_tensor *product(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                          mc_activation activation, float scale)
{
    mc_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = w->rows;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, x);
    mc_matrix none = {0};
    if (y)
        MC_KERNEL(t, op, linear_quantized, mc_tensor_rows(x), scale, mc_matrix_of(x), *w,
                  bias ? mc_matrix_flat(bias) : none, activation, mc_matrix_of(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* On a training tape the activation is a separate operation, which keeps what it needs; so a block
 * that runs again computes the same values. */
mc_tensor *mc_linear_quantized(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                               mc_activation activation, float scale)
{
    if (!check(t, x, w, bias)) return NULL;
    bool trains = mc_tape_is_training(t);
    mc_tensor *y = product(t, x, w, bias, trains ? MC_ACTIVATION_NONE : activation, scale);
    if (!y || !trains) return y;
    mc_node *node =
        mc_tape_record(t, &quantized_op, y, sizeof(quantized_state), 2, (mc_tensor *[]){x, bias});
    if (node) *(quantized_state *)node->state = (quantized_state){*w, scale};
    mc_tensor *active = mc_activate(t, y, activation);
    if (active != y) mc_tape_release(t, y);
    return mc_failed(mc_tape_context(t)) ? NULL : active;
}
