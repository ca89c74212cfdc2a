/* Losses of elements and of rows, and losses made from tensors. */
#include "core/ops/losses.h"
#include "core/ops/general.h"
#include "core/ops/loss_internal.h"

/* Fails if x, which a loss treats as a constant, requires a gradient. */
static bool is_constant(mc_tape *t, const char *op, const char *what, const mc_tensor *x)
{
    if (!x->requires_grad) return true;
    mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
            "%s: %s %s require a gradient, which this loss does not give them", op, what,
            MC_SHAPE_TEXT(x->shape));
    return false;
}

/* ---- from a tensor --------------------------------------------------------------------------- */

static void rows_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *rows = node->inputs[0];
    int64_t count = mc_tensor_count(rows);
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, rows, &accumulate);
    mc_strided_shape all = {.ndim = 1, .size = {count}, .x = {0}, .y = {1}};
    if (dx) mc_op_copy(t, "loss from rows", all, node->output->gradient, 0, 1, dx, 0, accumulate);
}

static const mc_op rows_op = {.name = "loss from rows", .backward = rows_backward};

static void add_up(mc_tape *t, const mc_tensor *x, float *sum)
{
    MC_KERNEL(t, "loss from rows", sum_leading, mc_tensor_count(x), mc_matrix_flat(x), 1,
              ((mc_matrix){sum, MC_F32, 1}), false);
}

static bool check_counts(mc_tape *t, const mc_tensor *rows, mc_tensor *counts)
{
    static const char op[] = "loss from rows";
    return !counts ||
           (mc_op_ready(t, op, counts) && mc_op_same_dtype(t, op, "counts", counts, MC_F32) &&
            mc_op_shape(t, op, "counts", counts, rows->shape) &&
            is_constant(t, op, "counts", counts));
}

mc_tensor *mc_loss_from_rows(mc_tape *t, mc_tensor *rows, mc_tensor *counts)
{
    static const char op[] = "loss from rows";
    if (!mc_op_ready(t, op, rows) || !mc_op_float(t, op, "rows", rows) ||
        !check_counts(t, rows, counts))
        return NULL;
    int64_t n = mc_tensor_count(rows);
    mc_tensor *loss = mc_tape_input(t, MC_F32, MC_SHAPE(2), (const float[]){0, (float)n}, false);
    if (!loss) return NULL;
    float *value = mc_tensor_data(loss);
    add_up(t, rows, value);
    if (counts) add_up(t, counts, value + 1);
    mc_tape_record(t, &rows_op, loss, 0, 1, &rows);
    mc_loss_seed(t, loss, rows, n, counts ? -1 : (double)n);
    return mc_failed(mc_tape_context(t)) ? NULL : loss;
}

/* ---- pairs of elements ----------------------------------------------------------------------- */

/* Checks that `what` and the targets have equal shapes. */
static bool check_pair(mc_tape *t, const char *op, const char *what, mc_tensor *x,
                       mc_tensor *target)
{
    return mc_op_ready(t, op, x) && mc_op_float(t, op, what, x) && mc_op_ready(t, op, target) &&
           mc_op_float(t, op, "targets", target) && mc_op_shape(t, op, "targets", target, x->shape);
}

/* The loss of elements computed with targets, whose nominal rows it takes over. */
static mc_tensor *loss_of(mc_tape *t, mc_tensor *elements, const mc_tensor *targets)
{
    if (elements) elements->nominal_rows = targets->nominal_rows;
    return mc_loss_from_rows(t, elements, NULL);
}

mc_tensor *mc_mse_loss(mc_tape *t, mc_tensor *x, mc_tensor *target)
{
    if (!check_pair(t, "mse loss", "input", x, target)) return NULL;
    mc_tensor *d = mc_sub(t, mc_cast(t, x, MC_F32), mc_cast(t, target, MC_F32));
    return loss_of(t, mc_mul(t, d, d), target);
}

/* (1 - y) softplus(x) + p y softplus(-x): without cancellation if y is 0 or 1. */
mc_tensor *mc_bce_loss(mc_tape *t, mc_tensor *logits, mc_tensor *targets, mc_tensor *pos_weight)
{
    static const char op[] = "bce loss", what[] = "the weights of the positive classes";
    if (!check_pair(t, op, "logits", logits, targets) || !is_constant(t, op, "targets", targets))
        return NULL;
    if (pos_weight &&
        (!mc_op_ready(t, op, pos_weight) || !mc_op_same_dtype(t, op, what, pos_weight, MC_F32) ||
         !mc_op_shape(t, op, what, pos_weight, MC_SHAPE(mc_tensor_columns(logits))) ||
         !is_constant(t, op, what, pos_weight)))
        return NULL;
    mc_tensor *x = mc_cast(t, logits, MC_F32), *y = mc_cast(t, targets, MC_F32);
    mc_tensor *py = pos_weight ? mc_mul(t, y, pos_weight) : y;
    mc_tensor *negative = mc_softplus(t, x), *positive = mc_softplus(t, mc_scale(t, x, -1));
    negative = mc_sub(t, negative, mc_mul(t, negative, y));
    return loss_of(t, mc_add(t, negative, mc_mul(t, positive, py)), targets);
}

/* ---- cross-entropy of rows ------------------------------------------------------------------- */

typedef struct cross_state {
    mc_loss_options options;
    mc_tensor *labels, *class_weights;
} cross_state;

static mc_row_loss_call cross_call(mc_tape *t, const cross_state *s, mc_tensor *x)
{
    return (mc_row_loss_call){.rows = mc_tensor_rows(x),
                              .classes = mc_tensor_columns(x),
                              .x = mc_saved_matrix(t, x),
                              .labels = mc_saved_data(t, s->labels),
                              .ignore_index = s->options.ignore_index,
                              .smoothing = s->options.smoothing,
                              .class_weights =
                                  s->class_weights ? mc_saved_data(t, s->class_weights) : NULL};
}

static void cross_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *x = node->inputs[0];
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (!dx) return;
    mc_row_loss_call call = cross_call(t, node->state, x);
    MC_KERNEL(t, "cross entropy", cross_entropy_rows_backward, &call,
              mc_tensor_data(node->output->gradient), mc_matrix_of(dx), accumulate);
}

static const mc_op cross_op = {.name = "cross entropy of rows", .backward = cross_backward};

static bool check_cross(mc_tape *t, mc_tensor *x, mc_tensor *labels,
                        const mc_cross_entropy_options *given, cross_state *s)
{
    static const char op[] = "cross entropy", what[] = "class weights";
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "logits", x) || !mc_op_ready(t, op, labels) ||
        !mc_loss_read_options(t, op, given, &s->options))
        return false;
    int64_t classes = mc_tensor_columns(x);
    s->class_weights = given ? given->class_weights : NULL;
    if (s->class_weights && (!mc_op_ready(t, op, s->class_weights) ||
                             !mc_op_same_dtype(t, op, what, s->class_weights, MC_F32) ||
                             !mc_op_shape(t, op, what, s->class_weights, MC_SHAPE(classes)) ||
                             !is_constant(t, op, what, s->class_weights)))
        return false;
    s->labels =
        mc_op_indices(t, op, "label", labels, mc_tensor_rows(x), classes, s->options.ignore_index);
    return s->labels;
}

/* The losses of the rows; *weight becomes the weight of each row. */
static mc_tensor *cross_rows(mc_tape *t, mc_tensor *x, const cross_state *s, mc_tensor **weight)
{
    mc_shape rows = MC_SHAPE(mc_tensor_rows(x));
    mc_tensor *y = mc_tape_tensor(t, MC_F32, rows, NULL);
    *weight = mc_tape_tensor(t, MC_F32, rows, NULL);
    if (!y || !*weight) return NULL;
    y->nominal_rows = s->labels->nominal_rows;
    mc_row_loss_call call = cross_call(t, s, x);
    MC_KERNEL(t, "cross entropy", cross_entropy_rows, &call, mc_tensor_data(y),
              mc_tensor_data(*weight));
    mc_node *node = mc_tape_record(t, &cross_op, y, sizeof *s, 1, &x);
    if (node) {
        *(cross_state *)node->state = *s;
        mc_node_save(node, x);
        mc_node_save(node, s->labels);
        mc_node_save(node, s->class_weights);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_cross_entropy_rows(mc_tape *t, mc_tensor *logits, mc_tensor *labels,
                                 const mc_cross_entropy_options *options)
{
    cross_state s;
    mc_tensor *weight;
    if (!check_cross(t, logits, labels, options, &s)) return NULL;
    return cross_rows(t, logits, &s, &weight);
}

mc_tensor *mc_weighted_cross_entropy(mc_tape *t, mc_tensor *x, mc_tensor *labels,
                                     const mc_cross_entropy_options *given)
{
    cross_state s;
    mc_tensor *weight, *rows;
    if (!check_cross(t, x, labels, given, &s) || !(rows = cross_rows(t, x, &s, &weight)))
        return NULL;
    return mc_loss_from_rows(t, rows, weight);
}
