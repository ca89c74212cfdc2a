/* Collectives as operations of a tape, with gradients: those of the sum of all ranks' losses. */
#include "core/ops/collectives.h"

#include "core/device/plan_internal.h"
#include "core/dist/comm_internal.h"
#include "core/ops/ops_internal.h"

typedef struct collective_state {
    mc_comm *comm;
    mc_reduce_op op;
    int root;
} collective_state;

/* On a planning device nothing is sent. */
static bool is_planned(mc_tape *t) { return mc_device_is_plan(mc_tape_device(t)); }

static bool is_ready(mc_tape *t, const char *op, const mc_comm *comm, const mc_tensor *x)
{
    if (!mc_op_ready(t, op, x)) return false;
    mc_context *ctx = mc_tape_context(t);
    if (!comm)
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: its communicator is NULL", op);
    else if (comm->ctx != ctx && !is_planned(t))
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: its communicator is another context's", op);
    else if (x->requires_grad && !mc_dtype_is_float(x->dtype))
        mc_op_float(t, op, "input", x);
    return !mc_failed(ctx);
}

/* Records the call, unless an error is set. */
static mc_tensor *record(mc_tape *t, const mc_op *kind, mc_tensor *y, mc_tensor *x,
                         collective_state state, bool saves)
{
    mc_node *node = mc_tape_record(t, kind, y, sizeof state, 1, &x);
    if (node) *(collective_state *)node->state = state;
    if (node && saves) mc_node_save(node, x);
    if (node && saves) mc_node_save(node, y);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* ---- collectives of tensors; each sets an error or does its work ----------------------------- */

static void all_reduce(mc_tape *t, mc_comm *c, mc_tensor *x, mc_tensor *y, mc_reduce_op op)
{
    if (x && y && !is_planned(t))
        mc_comm_all_reduce(c, mc_tensor_data(x), mc_tensor_data(y), mc_tensor_count(x), x->dtype,
                           op);
}

static void all_gather(mc_tape *t, mc_comm *c, const void *x, mc_tensor *y, int64_t count)
{
    if (x && y && !is_planned(t)) mc_comm_all_gather(c, x, mc_tensor_data(y), count, y->dtype);
}

static void reduce_scatter(mc_tape *t, mc_comm *c, mc_tensor *x, mc_tensor *y, mc_reduce_op op)
{
    if (x && y && !is_planned(t))
        mc_comm_reduce_scatter(c, mc_tensor_data(x), mc_tensor_data(y), mc_tensor_count(y),
                               x->dtype, op);
}

/* y [+]= factor * x, all elements. */
static void scale(mc_tape *t, mc_tensor *x, float factor, mc_tensor *y, bool accumulate)
{
    if (x && y && !mc_failed(mc_tape_context(t)))
        MC_KERNEL(t, "collective", scale, mc_tensor_count(y), mc_matrix_flat(x), factor,
                  mc_matrix_flat(y), accumulate);
}

/* Adds g, scratch of x's shape, to the gradient of x, and frees it. */
static void give(mc_tape *t, mc_tensor *x, mc_tensor *g)
{
    if (!mc_failed(mc_tape_context(t))) mc_gradient_share(t, x, g);
    mc_scratch_free(g);
}

/* The same, multiplied by a factor. */
static void give_scaled(mc_tape *t, mc_tensor *x, mc_tensor *g, float factor)
{
    bool accumulate = false;
    mc_tensor *dx = g ? mc_gradient_target(t, x, &accumulate) : NULL;
    scale(t, g, factor, dx, accumulate);
    mc_scratch_free(g);
}

/* ---- all-gather ------------------------------------------------------------------------------ */

static void all_gather_backward(mc_tape *t, mc_node *node)
{
    const collective_state *s = node->state;
    mc_tensor *x = node->inputs[0], *g = mc_scratch_new(t, x->dtype, x->shape);
    reduce_scatter(t, s->comm, node->output->gradient, g, MC_REDUCE_SUM);
    give(t, x, g);
}

static const mc_op all_gather_op = {.name = "all-gather", .backward = all_gather_backward};

mc_tensor *mc_all_gather(mc_tape *t, mc_comm *comm, mc_tensor *x)
{
    if (!is_ready(t, "all-gather", comm, x)) return NULL;
    mc_shape shape = {.ndim = x->shape.ndim + 1, .dim = {comm->size}};
    if (shape.ndim > MC_MAX_DIMS) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "all-gather: input %s: the result would have more than %d dimensions",
                MC_SHAPE_TEXT(x->shape), MC_MAX_DIMS);
        return NULL;
    }
    for (int i = 0; i < x->shape.ndim; i++) shape.dim[i + 1] = x->shape.dim[i];
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, NULL);
    if (!y) return NULL;
    all_gather(t, comm, mc_tensor_data(x), y, mc_tensor_count(x));
    return record(t, &all_gather_op, y, x, (collective_state){comm}, false);
}

/* ---- reduce-scatter -------------------------------------------------------------------------- */

static void reduce_scatter_backward(mc_tape *t, mc_node *node)
{
    const collective_state *s = node->state;
    mc_tensor *x = node->inputs[0], *dy = node->output->gradient;
    mc_tensor *g = mc_scratch_new(t, x->dtype, x->shape);
    all_gather(t, s->comm, mc_tensor_data(dy), g, mc_tensor_count(dy));
    give_scaled(t, x, g, s->op == MC_REDUCE_AVG ? 1.0f / (float)s->comm->size : 1);
}

static const mc_op reduce_scatter_op = {.name = "reduce-scatter",
                                        .backward = reduce_scatter_backward};

mc_tensor *mc_reduce_scatter(mc_tape *t, mc_comm *comm, mc_tensor *x, mc_reduce_op op)
{
    if (!is_ready(t, "reduce-scatter", comm, x)) return NULL;
    mc_shape shape = x->shape;
    if (!shape.ndim || shape.dim[0] % comm->size) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "reduce-scatter: input %s, expected a first dimension that divides by %d ranks",
                MC_SHAPE_TEXT(x->shape), comm->size);
        return NULL;
    }
    if (x->requires_grad && op != MC_REDUCE_SUM && op != MC_REDUCE_AVG) {
        mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                "reduce-scatter: there is no gradient but of sum and avg");
        return NULL;
    }
    shape.dim[0] /= comm->size;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, NULL);
    if (!y) return NULL;
    reduce_scatter(t, comm, x, y, op);
    return record(t, &reduce_scatter_op, y, x, (collective_state){comm, op}, false);
}

/* ---- broadcast ------------------------------------------------------------------------------- */

static void broadcast_backward(mc_tape *t, mc_node *node)
{
    const collective_state *s = node->state;
    mc_tensor *x = node->inputs[0], *dy = node->output->gradient;
    mc_tensor *g = mc_scratch_new(t, x->dtype, x->shape);
    if (!g) return;
    if (!is_planned(t))
        mc_comm_reduce(s->comm, mc_tensor_data(dy), mc_tensor_data(g), mc_tensor_count(x), x->dtype,
                       MC_REDUCE_SUM, s->root);
    if (s->comm->rank != s->root && !mc_failed(mc_tape_context(t)))
        MC_KERNEL(t, "broadcast", zero, mc_tensor_data(g),
                  (size_t)mc_tensor_count(g) * mc_dtype_size(g->dtype));
    give(t, x, g);
}

static const mc_op broadcast_op = {.name = "broadcast", .backward = broadcast_backward};

mc_tensor *mc_broadcast(mc_tape *t, mc_comm *comm, mc_tensor *x, int root)
{
    if (!is_ready(t, "broadcast", comm, x)) return NULL;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    if (!is_planned(t))
        mc_comm_broadcast(comm, mc_tensor_data(x), mc_tensor_data(y), mc_tensor_count(x), x->dtype,
                          root);
    return record(t, &broadcast_op, y, x, (collective_state){comm, .root = root}, false);
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* out = dy where x > 0, else 0; f32. */
static void pass_positive(mc_tape *t, mc_tensor *x, mc_tensor *dy, mc_tensor *out)
{
    if (x && dy && out && !mc_failed(mc_tape_context(t)))
        MC_KERNEL(t, "all-reduce", activation_backward, 1, mc_tensor_count(x), MC_ACTIVATION_RELU,
                  mc_matrix_flat(x), 1, mc_matrix_flat(dy), mc_matrix_flat(out), false);
}

/* y = v where a == b, else 0, in f32, for a >= b everywhere. The difference of two floats is 0 only
 * if they are equal. */
static void pass_equal(mc_tape *t, mc_tensor *a, mc_tensor *b, mc_tensor *v, mc_tensor *scratch,
                       mc_tensor *y)
{
    scale(t, a, 1, y, false);
    scale(t, b, -1, y, true);
    pass_positive(t, y, v, scratch);
    scale(t, v, 1, y, false);
    scale(t, scratch, -1, y, true);
}

/* The gradient goes to the rank whose x was chosen; among equal ones to the lowest. Each rank with
 * the chosen value bids, lower ranks bid more, and the highest bid wins. Adds g there. */
static void give_chosen(mc_tape *t, const collective_state *s, mc_tensor *x, mc_tensor *y,
                        mc_tensor *g)
{
    bool is_max = s->op == MC_REDUCE_MAX;
    mc_tensor *bid = mc_scratch_new(t, MC_F32, x->shape);
    mc_tensor *best = mc_scratch_new(t, MC_F32, x->shape);
    mc_tensor *scratch = mc_scratch_new(t, MC_F32, x->shape);
    mc_tensor *mine = mc_scratch_new(t, MC_F32, x->shape);
    if (bid && best && scratch && mine) {
        mc_fill price = {.kind = MC_FILL_CONSTANT, .a = (float)(s->comm->size - s->comm->rank)};
        MC_KERNEL(t, "all-reduce", fill, price, 0, mc_tensor_count(x), mc_matrix_flat(best));
        pass_equal(t, is_max ? y : x, is_max ? x : y, best, scratch, bid);
        all_reduce(t, s->comm, bid, best, MC_REDUCE_MAX);
        pass_equal(t, best, bid, g, scratch, mine);
        give(t, x, mine);
        mine = NULL;
    }
    mc_scratch_free(bid);
    mc_scratch_free(best);
    mc_scratch_free(scratch);
    mc_scratch_free(mine);
}

/* Multiplies g by the x of all other ranks, which is exact even if an x is 0. */
static void give_product(mc_tape *t, const collective_state *s, mc_tensor *x, mc_tensor *g)
{
    int64_t n = mc_tensor_count(x);
    size_t bytes = (size_t)n * mc_dtype_size(x->dtype);
    mc_tensor *all = mc_scratch_new(t, x->dtype, MC_SHAPE(s->comm->size, n));
    mc_tensor *product = mc_scratch_new(t, MC_F32, x->shape);
    mc_tensor *next = mc_scratch_new(t, MC_F32, x->shape);
    if (all && product && next) {
        scale(t, g, 1, product, false);
        all_gather(t, s->comm, mc_tensor_data(x), all, n);
        for (int i = 0; i < s->comm->size && !mc_failed(mc_tape_context(t)); i++) {
            if (i == s->comm->rank) continue;
            mc_matrix other = {(char *)mc_tensor_data(all) + (size_t)i * bytes, x->dtype, n};
            MC_KERNEL(t, "all-reduce", multiply, n, mc_matrix_flat(product), other, n,
                      mc_matrix_flat(next), false);
            mc_tensor *factor = product;
            product = next;
            next = factor;
        }
        give(t, x, product);
        product = NULL;
    }
    mc_scratch_free(all);
    mc_scratch_free(product);
    mc_scratch_free(next);
}

static void all_reduce_backward(mc_tape *t, mc_node *node)
{
    const collective_state *s = node->state;
    mc_tensor *x = node->inputs[0];
    mc_tensor *g = mc_scratch_new(t, x->dtype, x->shape);
    all_reduce(t, s->comm, node->output->gradient, g,
               s->op == MC_REDUCE_AVG ? MC_REDUCE_AVG : MC_REDUCE_SUM);
    if (!g || mc_failed(mc_tape_context(t))) return;
    if (s->op == MC_REDUCE_SUM || s->op == MC_REDUCE_AVG) {
        give(t, x, g);
        return;
    }
    if (s->op == MC_REDUCE_PROD)
        give_product(t, s, x, g);
    else
        give_chosen(t, s, x, node->output, g);
    mc_scratch_free(g);
}

static const mc_op all_reduce_op = {.name = "all-reduce", .backward = all_reduce_backward};

mc_tensor *mc_all_reduce(mc_tape *t, mc_comm *comm, mc_tensor *x, mc_reduce_op op)
{
    if (!is_ready(t, "all-reduce", comm, x)) return NULL;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    all_reduce(t, comm, x, y, op);
    bool saves = op != MC_REDUCE_SUM && op != MC_REDUCE_AVG;
    return record(t, &all_reduce_op, y, x, (collective_state){comm, op}, saves);
}
