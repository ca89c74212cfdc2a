/* Slices, concatenation, transposition: copies between strides. */
#include <string.h>
#include "core/ops/general.h"
#include "core/ops/ops_internal.h"

/* x's lengths, unless the dimension is that of the packed rows. */
static const mc_lengths *lengths_beside(const mc_tensor *x, int dim)
{
    return dim > 0 ? x->lengths : NULL;
}

/* ---- parts of a dimension -------------------------------------------------------------------- */

/* A range of one dimension: for each outer index, `elements` out of `whole_step`. */
typedef struct part_shape {
    int64_t outer, elements, whole_step;
} part_shape;

static void copy_part(mc_tape *t, const char *op, part_shape p, const mc_tensor *from,
                      int64_t from_step, int64_t from_first, mc_tensor *to, int64_t to_step,
                      int64_t to_first, bool accumulate)
{
    mc_strided_shape s = {
        .ndim = 2, .size = {p.outer, p.elements}, .x = {from_step, 1}, .y = {to_step, 1}};
    mc_op_copy(t, op, s, from, from_first, 1, to, to_first, accumulate);
}

typedef struct slice_state {
    mc_around around;
    int64_t first, count;
} slice_state;

static part_shape slice_part(const slice_state *s)
{
    return (part_shape){s->around.outer, s->count * s->around.inner,
                        s->around.size * s->around.inner};
}

static void slice_backward(mc_tape *t, mc_node *node)
{
    const slice_state *s = node->state;
    part_shape p = slice_part(s);
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, node->inputs[0], &accumulate);
    if (!dx) return;
    if (!accumulate) MC_KERNEL(t, "slice", zero, mc_tensor_data(dx), dx->storage->bytes);
    copy_part(t, "slice", p, node->output->gradient, p.elements, 0, dx, p.whole_step,
              s->first * s->around.inner, true);
}

static const mc_op slice_op = {.name = "slice", .backward = slice_backward};

mc_tensor *mc_slice(mc_tape *t, mc_tensor *x, int dim, int64_t first, int64_t count)
{
    slice_state s = {.first = first, .count = count};
    if (!mc_op_ready(t, "slice", x) || !mc_op_float(t, "slice", "input", x) ||
        !mc_op_around(t, "slice", x, dim, &s.around))
        return NULL;
    if (first < 0 || count < 0 || first > s.around.size - count) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                "slice: %lld elements from %lld on of dimension %d of input %s, which has %lld",
                (long long)count, (long long)first, s.around.dim, MC_SHAPE_TEXT(x->shape),
                (long long)s.around.size);
        return NULL;
    }
    mc_shape shape = x->shape;
    shape.dim[s.around.dim] = count;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, NULL);
    if (!y) return NULL;
    y->lengths = lengths_beside(x, s.around.dim);
    part_shape p = slice_part(&s);
    copy_part(t, "slice", p, x, p.whole_step, first * s.around.inner, y, p.elements, 0, false);
    mc_node *node = mc_tape_record(t, &slice_op, y, sizeof s, 1, &x);
    if (node) *(slice_state *)node->state = s;
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* ---- concatenation --------------------------------------------------------------------------- */

/* The place of one tensor in the result: at element `first` of each outer index. */
typedef struct concat_part {
    part_shape part;
    int64_t first;
} concat_part;

static void concat_backward(mc_tape *t, mc_node *node)
{
    const concat_part *s = node->state;
    for (int i = 0; i < node->input_count; i++, s++) {
        bool accumulate;
        mc_tensor *dx = mc_gradient_target(t, node->inputs[i], &accumulate);
        if (dx)
            copy_part(t, "concat", s->part, node->output->gradient, s->part.whole_step, s->first,
                      dx, s->part.elements, 0, accumulate);
    }
}

static const mc_op concat_op = {.name = "concat", .backward = concat_backward};

/* Checks one of the tensors against the first one. */
static bool check_concat(mc_tape *t, mc_tensor *x, const mc_tensor *like, int dim)
{
    if (!mc_op_ready(t, "concat", x) || !mc_op_float(t, "concat", "input", x) ||
        !mc_op_same_dtype(t, "concat", "input", x, like->dtype))
        return false;
    mc_shape expected = like->shape;
    if (x->shape.ndim == expected.ndim) expected.dim[dim] = x->shape.dim[dim];
    return mc_op_shape(t, "concat", "input", x, expected);
}

/* Concatenates at most MC_NODE_INPUTS checked tensors. */
static mc_tensor *concat_few(mc_tape *t, int n, mc_tensor *const *xs, int dim)
{
    mc_around around;
    mc_shape shape = xs[0]->shape;
    if (!mc_op_around(t, "concat", xs[0], dim, &around)) return NULL;
    for (int i = 1; i < n; i++) shape.dim[dim] += xs[i]->shape.dim[dim];
    mc_tensor *y = mc_tape_tensor(t, xs[0]->dtype, shape, NULL);
    if (!y) return NULL;
    y->lengths = lengths_beside(xs[0], dim);
    concat_part parts[MC_NODE_INPUTS];
    int64_t first = 0;
    for (int i = 0; i < n; i++) {
        int64_t elements = xs[i]->shape.dim[dim] * around.inner;
        part_shape p = {around.outer, elements, shape.dim[dim] * around.inner};
        parts[i] = (concat_part){p, first};
        copy_part(t, "concat", p, xs[i], elements, 0, y, p.whole_step, first, false);
        first += elements;
    }
    mc_node *node = mc_tape_record(t, &concat_op, y, sizeof parts, n, xs);
    if (node) memcpy(node->state, parts, sizeof parts);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* Concatenates groups first if there are more tensors than a node has inputs. */
static mc_tensor *concat_all(mc_tape *t, int n, mc_tensor *const *xs, int dim)
{
    if (n <= MC_NODE_INPUTS) return concat_few(t, n, xs, dim);
    int groups = (n + MC_NODE_INPUTS - 1) / MC_NODE_INPUTS;
    mc_tensor **group = mc_tape_alloc(t, (size_t)groups * sizeof *group);
    if (!group) return NULL;
    for (int i = 0; i < groups; i++) {
        int begin = i * MC_NODE_INPUTS, left = n - begin;
        group[i] = concat_few(t, left < MC_NODE_INPUTS ? left : MC_NODE_INPUTS, xs + begin, dim);
        if (!group[i]) return NULL;
    }
    return concat_all(t, groups, group, dim);
}

mc_tensor *mc_concat(mc_tape *t, int n, mc_tensor *const *xs, int dim)
{
    mc_around around;
    if (n < 1 || !xs) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "concat: %d tensors%s, expected 1 or more", n,
                xs ? "" : ": NULL");
        return NULL;
    }
    if (!mc_op_ready(t, "concat", xs[0]) || !mc_op_around(t, "concat", xs[0], dim, &around))
        return NULL;
    for (int i = 0; i < n; i++)
        if (!check_concat(t, xs[i], xs[0], around.dim)) return NULL;
    return concat_all(t, n, xs, around.dim);
}

/* ---- transposition --------------------------------------------------------------------------- */

typedef struct transpose_state {
    mc_shape x; /* (outer, a, between, b, inner) */
} transpose_state;

/* Transposes to (outer, b, between, a, inner), or back. */
static void exchange(mc_tape *t, mc_shape x, const mc_tensor *from, mc_tensor *to, bool back,
                     bool accumulate)
{
    enum { OUTER, A, BETWEEN, B, INNER };
    const int64_t *n = x.dim;
    int64_t inner = n[INNER], middle = n[BETWEEN];
    /* strides of x, and of its transpose in the order of x's dimensions */
    const int64_t given[] = {n[A] * middle * n[B] * inner, middle * n[B] * inner, n[B] * inner,
                             inner, 1},
                  turned[] = {given[OUTER], inner, n[A] * inner, middle * n[A] * inner, 1};
    /* so that writes are contiguous */
    const int order[2][5] = {{OUTER, B, BETWEEN, A, INNER}, {OUTER, A, BETWEEN, B, INNER}};
    mc_strided_shape s = {.ndim = 5};
    for (int i = 0; i < 5; i++) {
        int k = order[back][i];
        s.size[i] = n[k];
        s.x[i] = back ? turned[k] : given[k];
        s.y[i] = back ? given[k] : turned[k];
    }
    mc_op_copy(t, "transpose", s, from, 0, 1, to, 0, accumulate);
}

static void transpose_backward(mc_tape *t, mc_node *node)
{
    const transpose_state *s = node->state;
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, node->inputs[0], &accumulate);
    if (dx) exchange(t, s->x, node->output->gradient, dx, true, accumulate);
}

static const mc_op transpose_op = {.name = "transpose", .backward = transpose_backward};

/* The five sizes of x around two dimensions a < b. */
static mc_shape around_two(const mc_tensor *x, mc_around a, mc_around b)
{
    int64_t between = 1;
    for (int i = a.dim + 1; i < b.dim; i++) between *= x->shape.dim[i];
    return MC_SHAPE(a.outer, a.size, between, b.size, b.inner);
}

mc_tensor *mc_transpose(mc_tape *t, mc_tensor *x, int dim_a, int dim_b)
{
    mc_around a, b;
    if (!mc_op_ready(t, "transpose", x) || !mc_op_float(t, "transpose", "input", x) ||
        !mc_op_around(t, "transpose", x, dim_a, &a) || !mc_op_around(t, "transpose", x, dim_b, &b))
        return NULL;
    transpose_state s = {a.dim < b.dim   ? around_two(x, a, b)
                         : a.dim > b.dim ? around_two(x, b, a)
                                         : MC_SHAPE(1, 1, 1, 1, mc_tensor_count(x))};
    mc_shape shape = x->shape;
    shape.dim[a.dim] = b.size;
    shape.dim[b.dim] = a.size;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, NULL);
    if (!y) return NULL;
    if (a.dim && b.dim) y->lengths = x->lengths;
    exchange(t, s.x, x, y, false, false);
    mc_node *node = mc_tape_record(t, &transpose_op, y, sizeof s, 1, &x);
    if (node) *(transpose_state *)node->state = s;
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
