/* Rotary positions (Su et al. 2021), in place: a rotation reads only its own columns, and its
 * gradient is the inverse rotation. */
#include "core/ops/ops_internal.h"
#include "core/ops/attention.h"

#include <math.h>

static const char op[] = "rotary positions";

typedef struct rotary_state {
    mc_rotation rotation;
    mc_tensor *positions;
} rotary_state;

static void rotate(mc_tape *t, const rotary_state *state, bool inverse, mc_tensor *x)
{
    mc_rotation rotation = state->rotation;
    rotation.inverse = inverse;
    MC_KERNEL(t, op, rotary, mc_tensor_rows(x), rotation, mc_tensor_data(state->positions),
              mc_matrix_of(x));
}

/* The output's gradient is rotated in place, because it is not needed afterwards, unless another
 * tensor shares it. */
static void rotary_backward(mc_tape *t, mc_node *node)
{
    mc_tensor *dy = node->output->gradient, *dx = dy;
    if (!node->inputs[0]->requires_grad) return;
    bool alone = dy->storage->references == 1 && !dy->storage->borrowed;
    if (!alone && !(dx = mc_op_copy_of(t, op, dy))) return;
    rotate(t, node->state, true, dx);
    mc_gradient_share(t, node->inputs[0], dx);
    if (!alone) mc_scratch_free(dx);
}

static const mc_op rotary_op = {.name = "rotary positions", .backward = rotary_backward};

/* ---- checks ---------------------------------------------------------------------------------- */

static bool check_columns(mc_tape *t, const mc_tensor *x, const mc_rotary_options *o)
{
    mc_context *ctx = mc_tape_context(t);
    if (o->heads < 1 || o->head_dim < 1 || (int64_t)o->heads * o->head_dim > mc_tensor_columns(x))
        return !mc_fail(
            ctx, MC_ERR_SHAPE,
            "%s: input %s, expected at least %d heads * %d columns, one or more of each", op,
            MC_SHAPE_TEXT(x->shape), o->heads, o->head_dim);
    int dim = o->rotary_dim ? o->rotary_dim : o->head_dim;
    if (dim < 2 || dim % 2 || dim > o->head_dim)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "%s: rotary_dim %d, expected an even number up to head_dim %d", op, dim,
                        o->head_dim);
    if (o->base == 0 || (o->base > 0 && isfinite(o->base))) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT, "%s: base %g, expected a positive number", op,
                    (double)o->base);
}

static bool check_scaling(mc_tape *t, const mc_rotary_scaling *s)
{
    bool is_type = s->type >= MC_ROTARY_DEFAULT && s->type <= MC_ROTARY_YARN;
    bool ranged = s->type == MC_ROTARY_LLAMA3 || s->type == MC_ROTARY_YARN;
    bool good = s->type == MC_ROTARY_DEFAULT || (s->factor > 0 && isfinite(s->factor));
    if (ranged) good = good && s->low > 0 && s->low < s->high && s->original > 0;
    if (is_type && good && s->attention_factor >= 0 && isfinite(s->attention_factor)) return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                    "%s: scaling of type %d, factor %g, low %g, high %g, %g original positions, "
                    "attention factor %g: expected a type of mc_rotary_type, a factor above 0, of "
                    "LLAMA3 and YARN 0 < low < high and positions above 0",
                    op, (int)s->type, (double)s->factor, (double)s->low, (double)s->high,
                    (double)s->original, (double)s->attention_factor);
}

static bool check_positions(mc_tape *t, const mc_tensor *x, const mc_tensor *positions)
{
    if (!mc_op_ready(t, op, positions) || !mc_op_same_dtype(t, op, "positions", positions, MC_I32))
        return false;
    if (mc_tensor_count(positions) == mc_tensor_rows(x)) return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                    "%s: positions %s for input %s, expected one for each of its rows", op,
                    MC_SHAPE_TEXT(positions->shape), MC_SHAPE_TEXT(x->shape));
}

static bool check(mc_tape *t, mc_tensor *x, const mc_rotary_options *o)
{
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x)) return false;
    if (!o)
        return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                        "%s: its options are NULL, heads and positions are required", op);
    return check_columns(t, x, o) && check_scaling(t, &o->scaling) &&
           check_positions(t, x, o->positions);
}

/* ---- scaling --------------------------------------------------------------------------------- */

static const double full_turn = 6.283185307179586477; /* 2 pi */

/* The number, with a fraction, of the pair that turns `times` times within `positions`. */
static double pair_that_turns(const mc_rotation *r, double times, double positions)
{
    return r->rotary_dim * log(positions / (times * full_turn)) / (2 * log((double)r->base));
}

/* YaRN keeps the angles of pairs before the first number and divides those after the last. */
static void keep_by_number(mc_rotation *r, const mc_rotary_scaling *s)
{
    double first = pair_that_turns(r, (double)s->high, (double)s->original);
    double last = pair_that_turns(r, (double)s->low, (double)s->original);
    if (!s->exact_range) first = floor(first), last = ceil(last);
    first = fmax(first, 0);
    last = fmin(last, r->rotary_dim - 1);
    if (first == last) last += 0.001;
    r->keep[0] = last / (last - first);
    r->keep[1] = -1 / (last - first);
}

static void scale(mc_rotation *r, const mc_rotary_scaling *s)
{
    double width = (double)s->high - (double)s->low;
    r->magnitude = s->attention_factor;
    if (s->type == MC_ROTARY_DEFAULT) return;
    r->factor = s->factor;
    if (s->type == MC_ROTARY_LLAMA3) {
        r->keep[0] = -(double)s->low / width;
        r->keep[2] = (double)s->original / (full_turn * width);
    } else if (s->type == MC_ROTARY_YARN) {
        keep_by_number(r, s);
        if (r->magnitude == 0)
            r->magnitude = s->factor > 1 ? (float)(0.1 * log((double)s->factor) + 1) : 1.0f;
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

mc_tensor *mc_rotary(mc_tape *t, mc_tensor *x, const mc_rotary_options *o)
{
    if (!check(t, x, o)) return NULL;
    rotary_state state = {.rotation = {.heads = o->heads,
                                       .head_dim = o->head_dim,
                                       .rotary_dim = o->rotary_dim ? o->rotary_dim : o->head_dim,
                                       .halves = o->halves,
                                       .base = o->base != 0 ? o->base : 10000.0f},
                          .positions = o->positions};
    scale(&state.rotation, &o->scaling);
    mc_tensor *y = mc_op_take(t, op, x);
    if (!y) return NULL;
    rotate(t, &state, false, y);
    mc_node *node = mc_tape_record(t, &rotary_op, y, sizeof state, 1, &x);
    if (node) {
        *(rotary_state *)node->state = state;
        mc_node_save(node, o->positions);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
