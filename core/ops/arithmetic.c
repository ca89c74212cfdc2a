/* Functions of one element; differences and quotients, whose smaller operand is repeated. */
#include "core/ops/general.h"
#include "core/ops/loss_internal.h"

/* ---- one input ------------------------------------------------------------------------------- */

static const char *const unary_names[] = {[MC_UNARY_EXP] = "exp",
                                          [MC_UNARY_LOG] = "ln",
                                          [MC_UNARY_SQRT] = "sqrt",
                                          [MC_UNARY_SIGMOID] = "sigmoid",
                                          [MC_UNARY_SOFTPLUS] = "softplus"};

typedef struct unary_state {
    mc_unary kind;
} unary_state;

static mc_matrix flat_saved(mc_tape *t, mc_tensor *x)
{
    mc_matrix m = mc_saved_matrix(t, x);
    m.stride = mc_tensor_count(x);
    return m;
}

static void unary_backward(mc_tape *t, mc_node *node)
{
    const unary_state *s = node->state;
    mc_tensor *x = node->inputs[0];
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (dx)
        MC_KERNEL(t, unary_names[s->kind], unary_backward, mc_tensor_count(x), s->kind,
                  flat_saved(t, x), mc_matrix_flat(node->output->gradient), mc_matrix_flat(dx),
                  accumulate);
}

static void unary_again(mc_tape *t, mc_node *node)
{
    const unary_state *s = node->state;
    MC_KERNEL(t, unary_names[s->kind], unary, mc_tensor_count(node->output), s->kind,
              flat_saved(t, node->inputs[0]), mc_matrix_flat(node->output));
}

static const mc_op unary_op = {
    .name = "unary function", .backward = unary_backward, .recompute = unary_again};

static mc_tensor *apply(mc_tape *t, mc_tensor *x, mc_unary kind)
{
    const char *op = unary_names[kind];
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x)) return NULL;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    MC_KERNEL(t, op, unary, mc_tensor_count(x), kind, mc_matrix_flat(x), mc_matrix_flat(y));
    mc_node *node = mc_tape_record(t, &unary_op, y, sizeof(unary_state), 1, &x);
    if (node) {
        ((unary_state *)node->state)->kind = kind;
        mc_node_save(node, x);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_exp(mc_tape *t, mc_tensor *x) { return apply(t, x, MC_UNARY_EXP); }
mc_tensor *mc_ln(mc_tape *t, mc_tensor *x) { return apply(t, x, MC_UNARY_LOG); }
mc_tensor *mc_sqrt(mc_tape *t, mc_tensor *x) { return apply(t, x, MC_UNARY_SQRT); }
mc_tensor *mc_sigmoid(mc_tape *t, mc_tensor *x) { return apply(t, x, MC_UNARY_SIGMOID); }
mc_tensor *mc_softplus(mc_tape *t, mc_tensor *x) { return apply(t, x, MC_UNARY_SOFTPLUS); }

/* ---- two inputs ------------------------------------------------------------------------------ */

/* The larger of the operands; NULL after an error. */
static const mc_tensor *larger_of(mc_tape *t, const char *op, mc_tensor *a, mc_tensor *b)
{
    if (!mc_op_ready(t, op, a) || !mc_op_ready(t, op, b)) return NULL;
    if (!mc_op_float(t, op, "first input", a) ||
        !mc_op_same_dtype(t, op, "second input", b, a->dtype))
        return NULL;
    bool a_larger = mc_shape_is_end(a->shape, b->shape);
    if (a_larger || mc_shape_is_end(b->shape, a->shape))
        return a_larger && (a->lengths || a->shape.ndim > b->shape.ndim) ? a : b;
    mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
            "%s: shapes %s and %s, expected equal ones or one that is the end of the other", op,
            MC_SHAPE_TEXT(a->shape), MC_SHAPE_TEXT(b->shape));
    return NULL;
}

static mc_tensor *combine(mc_tape *t, const mc_op *op, mc_binary kind, mc_tensor *a, mc_tensor *b,
                          bool saves)
{
    const mc_tensor *larger = larger_of(t, op->name, a, b);
    mc_tensor *y = larger ? mc_tape_tensor(t, a->dtype, larger->shape, larger) : NULL;
    if (!y) return NULL;
    MC_KERNEL(t, op->name, binary, mc_tensor_count(y), kind, mc_matrix_flat(a), mc_tensor_count(a),
              mc_matrix_flat(b), mc_tensor_count(b), 1, mc_matrix_flat(y), false);
    mc_node *node = mc_tape_record(t, op, y, 0, 2, (mc_tensor *[]){a, b});
    if (node && saves) {
        mc_node_save(node, a);
        mc_node_save(node, b);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* A tensor for the gradient of an operand, in the shape of the result: the operand's own, or if the
 * operand is repeated scratch memory, which `end` sums. NULL: no gradient is required. */
static mc_tensor *elements_begin(mc_tape *t, mc_tensor *x, const mc_tensor *dy, bool *accumulate)
{
    *accumulate = false;
    if (!x->requires_grad) return NULL;
    if (mc_shape_equal(x->shape, dy->shape)) return mc_gradient_target(t, x, accumulate);
    return mc_scratch_new(t, MC_F32, dy->shape);
}

static void elements_end(mc_tape *t, const char *op, mc_tensor *x, const mc_tensor *dy,
                         mc_tensor *elements)
{
    if (mc_shape_equal(x->shape, dy->shape)) return;
    mc_gradient_sum_leading(t, op, x, elements);
    mc_scratch_free(elements);
}

static void subtract_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *a = node->inputs[0], *b = node->inputs[1], *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *db = elements_begin(t, b, dy, &accumulate);
    if (db) {
        MC_KERNEL(t, "sub", scale, mc_tensor_count(dy), mc_matrix_flat(dy), -1, mc_matrix_flat(db),
                  accumulate);
        elements_end(t, "sub", b, dy, db);
    }
    if (mc_shape_equal(a->shape, dy->shape))
        mc_gradient_share(t, a, dy);
    else
        mc_gradient_sum_leading(t, "sub", a, dy);
}

static const mc_op subtract_op = {.name = "sub", .backward = subtract_backward};

mc_tensor *mc_sub(mc_tape *t, mc_tensor *a, mc_tensor *b)
{
    return combine(t, &subtract_op, MC_BINARY_SUBTRACT, a, b, false);
}

/* out [+]= factor * x / b, b repeated. */
static void divide(mc_tape *t, const mc_tensor *x, mc_tensor *b, float factor, mc_tensor *out,
                   bool accumulate)
{
    int64_t count = mc_tensor_count(x);
    MC_KERNEL(t, "div", binary, count, MC_BINARY_DIVIDE, mc_matrix_flat(x), count, flat_saved(t, b),
              mc_tensor_count(b), factor, mc_matrix_flat(out), accumulate);
}

/* db = -((dy / b) a) / b, in f32 until the last rounding. */
static void give_divisor(mc_tape *t, mc_tensor *a, mc_tensor *b, mc_tensor *dy)
{
    bool accumulate;
    mc_tensor *quotient = mc_scratch_new(t, MC_F32, dy->shape),
              *product = mc_scratch_new(t, MC_F32, dy->shape);
    mc_tensor *db = quotient && product ? elements_begin(t, b, dy, &accumulate) : NULL;
    if (db) {
        divide(t, dy, b, 1, quotient, false);
        MC_KERNEL(t, "div", multiply, mc_tensor_count(dy), mc_matrix_flat(quotient),
                  flat_saved(t, a), mc_tensor_count(a), mc_matrix_flat(product), false);
        divide(t, product, b, -1, db, accumulate);
        elements_end(t, "div", b, dy, db);
    }
    mc_scratch_free(quotient);
    mc_scratch_free(product);
}

static void divide_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *a = node->inputs[0], *b = node->inputs[1], *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *da = elements_begin(t, a, dy, &accumulate);
    if (da) {
        divide(t, dy, b, 1, da, accumulate);
        elements_end(t, "div", a, dy, da);
    }
    if (b->requires_grad) give_divisor(t, a, b, dy);
}

static const mc_op divide_op = {.name = "div", .backward = divide_backward};

mc_tensor *mc_div(mc_tape *t, mc_tensor *a, mc_tensor *b)
{
    return combine(t, &divide_op, MC_BINARY_DIVIDE, a, b, true);
}
