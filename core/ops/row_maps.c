/* Functions of rows: softmax, log-softmax, scaling to length 1. */
#include "core/ops/general.h"
#include "core/ops/ops_internal.h"

typedef struct row_map_state {
    mc_row_map kind;
    float eps;
    mc_tensor *kept; /* what backward reads: x or y */
} row_map_state;

static const char *name_of(mc_row_map kind)
{
    return kind == MC_ROW_SOFTMAX       ? "softmax"
           : kind == MC_ROW_LOG_SOFTMAX ? "log softmax"
                                        : "normalize";
}

static void row_map_backward(mc_tape *t, mc_node *node)
{
    const row_map_state *s = node->state;
    mc_tensor *x = node->inputs[0];
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (dx)
        MC_KERNEL(t, name_of(s->kind), row_map_backward, mc_tensor_rows(x), mc_tensor_columns(x),
                  s->kind, s->eps, mc_saved_matrix(t, s->kept),
                  mc_matrix_of(node->output->gradient), mc_matrix_of(dx), accumulate);
}

static void run(mc_tape *t, const row_map_state *s, mc_matrix x, mc_tensor *y)
{
    MC_KERNEL(t, name_of(s->kind), row_map, mc_tensor_rows(y), mc_tensor_columns(y), s->kind,
              s->eps, x, mc_matrix_of(y));
}

static void normalize_again(mc_tape *t, mc_node *node)
{
    run(t, node->state, mc_saved_matrix(t, node->inputs[0]), node->output);
}

/* The softmaxes keep their output and cannot recompute it, because their input is not kept. */
static const mc_op softmax_op = {.name = "softmax", .backward = row_map_backward};
static const mc_op normalize_op = {
    .name = "normalize", .backward = row_map_backward, .recompute = normalize_again};

static mc_tensor *map_rows(mc_tape *t, mc_tensor *x, mc_row_map kind, float eps)
{
    const char *op = name_of(kind);
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x)) return NULL;
    if (mc_tensor_columns(x) < 1) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE, "%s: input %s has no columns", op,
                MC_SHAPE_TEXT(x->shape));
        return NULL;
    }
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    bool normalize = kind == MC_ROW_NORMALIZE;
    row_map_state state = {kind, eps, normalize ? x : y};
    run(t, &state, mc_matrix_of(x), y);
    mc_node *node =
        mc_tape_record(t, normalize ? &normalize_op : &softmax_op, y, sizeof state, 1, &x);
    if (node) {
        *(row_map_state *)node->state = state;
        mc_node_save(node, state.kept);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_softmax(mc_tape *t, mc_tensor *x) { return map_rows(t, x, MC_ROW_SOFTMAX, 0); }

mc_tensor *mc_log_softmax(mc_tape *t, mc_tensor *x)
{
    return map_rows(t, x, MC_ROW_LOG_SOFTMAX, 0);
}

mc_tensor *mc_normalize_rows(mc_tape *t, mc_tensor *x, float eps)
{
    if (!mc_op_ready(t, "normalize", x)) return NULL;
    if (eps >= 0) return map_rows(t, x, MC_ROW_NORMALIZE, eps == 0 ? 1e-12f : eps);
    mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "normalize: eps %g, expected 0 or more",
            (double)eps);
    return NULL;
}
