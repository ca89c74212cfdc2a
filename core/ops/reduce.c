/* Sums and means over a dimension; means and maxima over the rows of sequences. */
#include "core/ops/general.h"
#include "core/ops/ops_internal.h"

/* ---- over a dimension ------------------------------------------------------------------------ */

typedef struct sum_state {
    mc_around around;
    float factor;
} sum_state;

static void sum_backward(mc_tape *t, mc_node *node)
{
    const sum_state *s = node->state;
    const mc_around *a = &s->around;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, node->inputs[0], &accumulate);
    mc_strided_shape shape = {.ndim = 3,
                              .size = {a->outer, a->size, a->inner},
                              .x = {a->inner, 0, 1},
                              .y = {a->size * a->inner, a->inner, 1}};
    if (dx) mc_op_copy(t, "sum", shape, node->output->gradient, 0, s->factor, dx, 0, accumulate);
}

static const mc_op sum_op = {.name = "sum", .backward = sum_backward};

/* Sums over rows have a kernel that runs in parallel over the rows. */
static void sum_columns(mc_tape *t, const sum_state *s, const mc_tensor *x, mc_tensor *y)
{
    bool scaled = s->factor != 1;
    mc_tensor *sum = scaled ? mc_scratch_new(t, MC_F32, y->shape) : y;
    if (!sum) return;
    MC_KERNEL(t, "sum", sum_leading, mc_tensor_count(x), mc_matrix_flat(x), s->around.inner,
              mc_matrix_flat(sum), false);
    if (!scaled) return;
    MC_KERNEL(t, "sum", scale, mc_tensor_count(y), mc_matrix_flat(sum), s->factor,
              mc_matrix_flat(y), false);
    mc_scratch_free(sum);
}

static mc_tensor *reduce(mc_tape *t, const char *op, mc_tensor *x, int dim, bool mean)
{
    sum_state s = {.factor = 1};
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x) ||
        !mc_op_around(t, op, x, dim, &s.around))
        return NULL;
    if (mean) s.factor = 1.0f / (float)s.around.size;
    mc_shape shape = {.ndim = x->shape.ndim - 1};
    for (int i = 0; i < shape.ndim; i++) shape.dim[i] = x->shape.dim[i < s.around.dim ? i : i + 1];
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, NULL);
    if (!y) return NULL;
    if (s.around.outer == 1)
        sum_columns(t, &s, x, y);
    else
        MC_KERNEL(t, op, sum_middle, s.around.outer, s.around.size, s.around.inner,
                  mc_matrix_flat(x), s.factor, mc_matrix_flat(y), false);
    mc_node *node = mc_tape_record(t, &sum_op, y, sizeof s, 1, &x);
    if (node) *(sum_state *)node->state = s;
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_sum(mc_tape *t, mc_tensor *x, int dim) { return reduce(t, "sum", x, dim, false); }
mc_tensor *mc_mean(mc_tape *t, mc_tensor *x, int dim) { return reduce(t, "mean", x, dim, true); }

/* ---- over the rows of sequences -------------------------------------------------------------- */

static void pool_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *x = node->inputs[0];
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (dx)
        MC_KERNEL(t, "mean pool", mean_pool_backward, x->lengths,
                  mc_tape_device_lengths(t, x->lengths), mc_tensor_columns(x),
                  mc_matrix_of(node->output->gradient), mc_matrix_of(dx), accumulate);
}

static const mc_op pool_op = {.name = "mean pool", .backward = pool_backward};

/* The lengths of a packed x, also copied to the device; NULL after an error. */
static const mc_lengths *pool_lengths(mc_tape *t, const char *op, mc_tensor *x)
{
    const mc_lengths *lengths = mc_op_lengths(t, op, x);
    if (lengths) mc_tape_device_lengths(t, lengths);
    return mc_failed(mc_tape_context(t)) ? NULL : lengths;
}

mc_tensor *mc_mean_pool(mc_tape *t, mc_tensor *x)
{
    const mc_lengths *lengths = pool_lengths(t, "mean pool", x);
    if (!lengths) return NULL;
    int64_t columns = mc_tensor_columns(x);
    mc_tensor *y = mc_tape_tensor(t, x->dtype, MC_SHAPE(lengths->count, columns), NULL);
    if (!y) return NULL;
    MC_KERNEL(t, "mean pool", mean_pool, lengths, mc_tape_device_lengths(t, lengths), columns,
              mc_matrix_of(x), mc_matrix_of(y));
    mc_tape_record(t, &pool_op, y, 0, 1, &x);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

typedef struct max_pool_state {
    mc_tensor *y;
} max_pool_state;

static void max_pool_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *x = node->inputs[0];
    const max_pool_state *s = node->state;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (dx)
        MC_KERNEL(t, "max pool", max_pool_backward, x->lengths,
                  mc_tape_device_lengths(t, x->lengths), mc_tensor_columns(x),
                  mc_saved_matrix(t, x), mc_saved_matrix(t, s->y),
                  mc_matrix_of(node->output->gradient), mc_matrix_of(dx), accumulate);
}

static const mc_op max_pool_op = {.name = "max pool", .backward = max_pool_backward};

mc_tensor *mc_max_pool(mc_tape *t, mc_tensor *x)
{
    const mc_lengths *lengths = pool_lengths(t, "max pool", x);
    if (!lengths) return NULL;
    int64_t columns = mc_tensor_columns(x);
    mc_tensor *y = mc_tape_tensor(t, x->dtype, MC_SHAPE(lengths->count, columns), NULL);
    if (!y) return NULL;
    MC_KERNEL(t, "max pool", max_pool, lengths, mc_tape_device_lengths(t, lengths), columns,
              mc_matrix_of(x), mc_matrix_of(y));
    mc_node *node = mc_tape_record(t, &max_pool_op, y, sizeof(max_pool_state), 1, &x);
    if (node) {
        ((max_pool_state *)node->state)->y = y;
        mc_node_save(node, x);
        mc_node_save(node, y);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
