/* Activations, gates, dropout, scale, and add and mul with the smaller operand repeated. */
#include "core/ops/ops_internal.h"
#include "core/ops/fused.h"

/* ---- activations ----------------------------------------------------------------------------- */

typedef struct activation_state {
    mc_activation kind;
} activation_state;

static void activation_backward(mc_tape *t, mc_node *node)
{
    const activation_state *state = node->state;
    mc_tensor *x = node->inputs[0];
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (dx)
        MC_KERNEL(t, "activation", activation_backward, mc_tensor_rows(x), mc_tensor_columns(x),
                  state->kind, mc_saved_matrix(t, x), 1, mc_matrix_of(node->output->gradient),
                  mc_matrix_of(dx), accumulate);
}

static void activation_forward(mc_tape *t, mc_activation kind, mc_matrix x, mc_tensor *y)
{
    MC_KERNEL(t, "activation", activation, mc_tensor_rows(y), mc_tensor_columns(y), kind, x,
              mc_matrix_of(y));
}

static void activation_again(mc_tape *t, mc_node *node)
{
    const activation_state *state = node->state;
    activation_forward(t, state->kind, mc_saved_matrix(t, node->inputs[0]), node->output);
}

static const mc_op activation_op = {
    .name = "activation", .backward = activation_backward, .recompute = activation_again};

mc_tensor *mc_activate(mc_tape *t, mc_tensor *x, mc_activation kind)
{
    if (kind == MC_ACTIVATION_NONE) return x;
    if (!mc_op_ready(t, "activation", x) || !mc_op_float(t, "activation", "input", x)) return NULL;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    activation_forward(t, kind, mc_matrix_of(x), y);
    mc_node *node = mc_tape_record(t, &activation_op, y, sizeof(activation_state), 1, &x);
    if (node) {
        ((activation_state *)node->state)->kind = kind;
        mc_node_save(node, x);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_gelu(mc_tape *t, mc_tensor *x) { return mc_activate(t, x, MC_ACTIVATION_GELU); }
mc_tensor *mc_gelu_new(mc_tape *t, mc_tensor *x)
{
    return mc_activate(t, x, MC_ACTIVATION_GELU_NEW);
}
mc_tensor *mc_relu(mc_tape *t, mc_tensor *x) { return mc_activate(t, x, MC_ACTIVATION_RELU); }
mc_tensor *mc_tanh(mc_tape *t, mc_tensor *x) { return mc_activate(t, x, MC_ACTIVATION_TANH); }
mc_tensor *mc_silu(mc_tape *t, mc_tensor *x) { return mc_activate(t, x, MC_ACTIVATION_SILU); }

/* ---- gates ----------------------------------------------------------------------------------- */

static void gated_backward(mc_tape *t, mc_node *node)
{
    const activation_state *state = node->state;
    mc_tensor *x = node->inputs[0], *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (dx)
        MC_KERNEL(t, "gated activation", gated_backward, mc_tensor_rows(dy), mc_tensor_columns(dy),
                  state->kind, mc_saved_matrix(t, x), mc_matrix_of(dy), mc_matrix_of(dx),
                  accumulate);
}

static void gated_forward(mc_tape *t, mc_activation kind, mc_matrix x, mc_tensor *y)
{
    MC_KERNEL(t, "gated activation", gated, mc_tensor_rows(y), mc_tensor_columns(y), kind, x,
              mc_matrix_of(y));
}

static void gated_again(mc_tape *t, mc_node *node)
{
    const activation_state *state = node->state;
    gated_forward(t, state->kind, mc_saved_matrix(t, node->inputs[0]), node->output);
}

static const mc_op gated_op = {
    .name = "gated activation", .backward = gated_backward, .recompute = gated_again};

mc_tensor *mc_gated(mc_tape *t, mc_tensor *x, mc_activation activation)
{
    static const char op[] = "gated activation";
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x) ||
        !mc_op_activation(t, op, activation))
        return NULL;
    mc_shape shape = x->shape;
    if (shape.ndim < 1 || mc_tensor_columns(x) % 2) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "%s: input %s, expected (..., 2 n): two halves of equal width", op,
                MC_SHAPE_TEXT(x->shape));
        return NULL;
    }
    shape.dim[shape.ndim - 1] /= 2;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, x);
    if (!y) return NULL;
    gated_forward(t, activation, mc_matrix_of(x), y);
    mc_node *node = mc_tape_record(t, &gated_op, y, sizeof(activation_state), 1, &x);
    if (node) {
        ((activation_state *)node->state)->kind = activation;
        mc_node_save(node, x);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* ---- dropout and scale ----------------------------------------------------------------------- */

static void dropout_backward(mc_tape *t, mc_node *node)
{
    const mc_dropout_mask *mask = node->state;
    mc_tensor *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, node->inputs[0], &accumulate);
    if (dx)
        MC_KERNEL(t, "dropout", dropout, mc_tensor_rows(dy), mc_tensor_columns(dy),
                  mc_matrix_of(dy), false, *mask, mc_matrix_of(dx), accumulate);
}

static void dropout_again(mc_tape *t, mc_node *node)
{
    mc_tensor *y = node->output;
    MC_KERNEL(t, "dropout", dropout, mc_tensor_rows(y), mc_tensor_columns(y),
              mc_saved_matrix(t, node->inputs[0]), false, *(mc_dropout_mask *)node->state,
              mc_matrix_of(y), false);
}

/* Backward needs no contents. The result of dropout after a cheap op is cheap to recompute too;
 * this requires saving its input, which costs nothing if that is dropped. */
static const mc_op dropout_op = {.name = "dropout", .backward = dropout_backward};
static const mc_op cheap_dropout_op = {
    .name = "dropout", .backward = dropout_backward, .recompute = dropout_again};

static bool drop_rate(mc_tape *t, const char *op, float p)
{
    return (p >= 0 && p < 1) || !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                                         "%s: p = %g, expected 0 <= p < 1", op, (double)p);
}

mc_tensor *mc_dropout(mc_tape *t, mc_tensor *x, float p)
{
    if (!mc_op_ready(t, "dropout", x) || !mc_op_float(t, "dropout", "input", x) ||
        !drop_rate(t, "dropout", p))
        return NULL;
    mc_dropout_mask mask = mc_tape_dropout(t, p);
    if (mask.p == 0) return x;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    MC_KERNEL(t, "dropout", dropout, mc_tensor_rows(x), mc_tensor_columns(x), mc_matrix_of(x),
              false, mask, mc_matrix_of(y), false);
    bool cheap = mc_scope_drops(t, x);
    mc_node *node =
        mc_tape_record(t, cheap ? &cheap_dropout_op : &dropout_op, y, sizeof mask, 1, &x);
    if (node) *(mc_dropout_mask *)node->state = mask;
    if (cheap) mc_node_save(node, x);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* Only the result is kept: it is positive where x was positive and not dropped. */
static void relu_dropout_backward(mc_tape *t, mc_node *node)
{
    const mc_dropout_mask *mask = node->state;
    mc_tensor *y = node->output, *dy = y->gradient;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, node->inputs[0], &accumulate);
    if (dx)
        MC_KERNEL(t, "relu dropout", activation_backward, mc_tensor_rows(y), mc_tensor_columns(y),
                  MC_ACTIVATION_RELU, mc_saved_matrix(t, y), 1.0f / (1.0f - mask->p),
                  mc_matrix_of(dy), mc_matrix_of(dx), accumulate);
}

static const mc_op relu_dropout_op = {.name = "relu dropout", .backward = relu_dropout_backward};

mc_tensor *mc_relu_dropout(mc_tape *t, mc_tensor *x, float p)
{
    static const char op[] = "relu dropout";
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x) || !drop_rate(t, op, p))
        return NULL;
    mc_dropout_mask mask = mc_tape_dropout(t, p);
    if (mask.p == 0) return mc_relu(t, x);
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    MC_KERNEL(t, op, dropout, mc_tensor_rows(x), mc_tensor_columns(x), mc_matrix_of(x), true, mask,
              mc_matrix_of(y), false);
    mc_node *node = mc_tape_record(t, &relu_dropout_op, y, sizeof mask, 1, &x);
    if (node) {
        *(mc_dropout_mask *)node->state = mask;
        mc_node_save(node, y);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

static void scale_backward(mc_tape *t, mc_node *node)
{
    const float *factor = node->state;
    mc_tensor *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, node->inputs[0], &accumulate);
    if (dx)
        MC_KERNEL(t, "scale", scale, mc_tensor_count(dy), mc_matrix_flat(dy), *factor,
                  mc_matrix_flat(dx), accumulate);
}

static const mc_op scale_op = {.name = "scale", .backward = scale_backward};

mc_tensor *mc_scale(mc_tape *t, mc_tensor *x, float factor)
{
    if (!mc_op_ready(t, "scale", x) || !mc_op_float(t, "scale", "input", x)) return NULL;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    MC_KERNEL(t, "scale", scale, mc_tensor_count(x), mc_matrix_flat(x), factor, mc_matrix_flat(y),
              false);
    mc_node *node = mc_tape_record(t, &scale_op, y, sizeof factor, 1, &x);
    if (node) *(float *)node->state = factor;
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

static void cast_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, node->inputs[0], &accumulate);
    if (dx)
        MC_KERNEL(t, "cast", scale, mc_tensor_count(dy), mc_matrix_flat(dy), 1.0f,
                  mc_matrix_flat(dx), accumulate);
}

static const mc_op cast_op = {.name = "cast", .backward = cast_backward};

mc_tensor *mc_cast(mc_tape *t, mc_tensor *x, mc_dtype dtype)
{
    if (!mc_op_ready(t, "cast", x) || !mc_op_float(t, "cast", "input", x)) return NULL;
    if (!mc_dtype_is_float(dtype)) {
        mc_fail(mc_tape_context(t), MC_ERR_DTYPE, "cast: to dtype %s, expected f32, f16 or bf16",
                mc_dtype_name(dtype));
        return NULL;
    }
    if (x->dtype == dtype) return x;
    mc_tensor *y = mc_tape_tensor(t, dtype, x->shape, x);
    if (!y) return NULL;
    MC_KERNEL(t, "cast", scale, mc_tensor_count(x), mc_matrix_flat(x), 1.0f, mc_matrix_flat(y),
              false);
    mc_tape_record(t, &cast_op, y, 0, 1, &x);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* ---- add and mul ----------------------------------------------------------------------------- */

/* Checks the operands, swaps them if the second is larger, and creates the output. */
static mc_tensor *binary_begin(mc_tape *t, const char *op, mc_tensor **a, mc_tensor **b)
{
    if (!mc_op_ready(t, op, *a) || !mc_op_ready(t, op, *b)) return NULL;
    if (!mc_op_float(t, op, "input", *a) ||
        !mc_op_same_dtype(t, op, "second input", *b, (*a)->dtype))
        return NULL;
    if (!mc_shape_is_end((*a)->shape, (*b)->shape)) {
        mc_tensor *swapped = *a;
        *a = *b;
        *b = swapped;
    }
    if (!mc_shape_is_end((*a)->shape, (*b)->shape)) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "%s: shapes %s and %s, expected equal ones or one that is the end of the other", op,
                MC_SHAPE_TEXT((*b)->shape), MC_SHAPE_TEXT((*a)->shape));
        return NULL;
    }
    bool packed_b = !(*a)->lengths && mc_shape_equal((*a)->shape, (*b)->shape);
    return mc_tape_tensor(t, (*a)->dtype, (*a)->shape, packed_b ? *b : *a);
}

static void add_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *a = node->inputs[0], *b = node->inputs[1], *dy = node->output->gradient;
    if (mc_shape_equal(a->shape, b->shape))
        mc_gradient_share(t, b, dy);
    else
        mc_gradient_sum_leading(t, "add", b, dy);
    mc_gradient_share(t, a, dy);
}

static const mc_op add_op = {.name = "add", .backward = add_backward};

mc_tensor *mc_add(mc_tape *t, mc_tensor *a, mc_tensor *b)
{
    mc_tensor *y = binary_begin(t, "add", &a, &b);
    if (!y) return NULL;
    MC_KERNEL(t, "add", add, mc_tensor_count(a), mc_matrix_flat(a), mc_matrix_flat(b),
              mc_tensor_count(b), mc_matrix_flat(y));
    mc_tape_record(t, &add_op, y, 0, 2, (mc_tensor *[]){a, b});
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* Adds dy * other to the gradient of the operand x, summed if x is repeated. */
static void give_product(mc_tape *t, mc_tensor *x, mc_tensor *other, mc_tensor *dy)
{
    if (!x->requires_grad || !mc_saved_data(t, other)) return;
    int64_t count = mc_tensor_count(dy), other_count = mc_tensor_count(other);
    bool accumulate = false, repeated = !mc_shape_equal(x->shape, dy->shape);
    mc_tensor *to =
        repeated ? mc_scratch_new(t, MC_F32, dy->shape) : mc_gradient_target(t, x, &accumulate);
    if (!to) return;
    MC_KERNEL(t, "mul", multiply, count, mc_matrix_flat(dy), mc_matrix_flat(other), other_count,
              mc_matrix_flat(to), accumulate);
    if (!repeated) return;
    mc_gradient_sum_leading(t, "mul", x, to);
    mc_scratch_free(to);
}

static void mul_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *a = node->inputs[0], *b = node->inputs[1];
    give_product(t, a, b, node->output->gradient);
    give_product(t, b, a, node->output->gradient);
}

static const mc_op mul_op = {.name = "mul", .backward = mul_backward};

mc_tensor *mc_mul(mc_tape *t, mc_tensor *a, mc_tensor *b)
{
    mc_tensor *y = binary_begin(t, "mul", &a, &b);
    if (!y) return NULL;
    MC_KERNEL(t, "mul", multiply, mc_tensor_count(a), mc_matrix_flat(a), mc_matrix_flat(b),
              mc_tensor_count(b), mc_matrix_flat(y), false);
    mc_node *node = mc_tape_record(t, &mul_op, y, 0, 2, (mc_tensor *[]){a, b});
    mc_node_save(node, a);
    mc_node_save(node, b);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
