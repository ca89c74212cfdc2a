/* Scaled dot-product attention over packed sequences. Only the log-sum-exp of each query is kept;
 * backward computes the probabilities again (Dao et al. 2022). */
#include "core/ops/ops_internal.h"

#include <math.h>

typedef struct sdpa_state {
    mc_attention_shape shape;
    mc_tensor *log_sum_exp; /* (heads, total) f32 */
} sdpa_state;

enum { Q, KV, BIAS, POSITION_BIAS, INPUTS }; /* inputs; without KV the first one holds q, k and v */

/* The operands, or their gradients: columns of one matrix, or of two. */
typedef struct operands {
    mc_matrix q, k, v;
} operands;

static mc_matrix columns_from(mc_matrix m, int64_t column)
{
    if (m.data) m.data = (char *)m.data + (size_t)column * mc_dtype_size(m.dtype);
    return m;
}

static operands operands_of(mc_matrix q, mc_matrix kv, bool cross)
{
    if (cross) return (operands){q, kv, columns_from(kv, kv.stride / 2)};
    int64_t width = q.stride / 3;
    return (operands){q, columns_from(q, width), columns_from(q, 2 * width)};
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The gradient of an input, which the kernel overwrites: the target itself, or scratch memory where
 * something is there already or where none is wanted. */
typedef struct gradient {
    mc_tensor *target, *written;
} gradient;

static gradient gradient_begin(mc_tape *t, mc_tensor *x)
{
    gradient g = {0};
    if (!x || mc_failed(mc_tape_context(t))) return g;
    bool accumulate;
    g.target = mc_gradient_target(t, x, &accumulate);
    g.written = g.target && !accumulate ? g.target : mc_scratch_new(t, x->dtype, x->shape);
    return g;
}

static void gradient_end(mc_tape *t, gradient g)
{
    if (!g.written || g.written == g.target) return;
    if (g.target && !mc_failed(mc_tape_context(t)))
        MC_KERNEL(t, "attention", scale, mc_tensor_count(g.written), mc_matrix_flat(g.written),
                  1.0f, mc_matrix_flat(g.target), true);
    mc_scratch_free(g.written);
}

static void sdpa_backward(mc_tape *t, mc_node *node)
{
    const sdpa_state *state = node->state;
    mc_tensor *q = node->inputs[Q], *kv = node->inputs[KV], *bias = node->inputs[BIAS];
    mc_tensor *position_bias = node->inputs[POSITION_BIAS], *y = node->output;
    gradient dq = gradient_begin(t, q), dkv = gradient_begin(t, kv);
    mc_attention_shape shape = state->shape;
    shape.dbias = mc_vector_gradient_begin(t, bias);
    shape.dposition_bias = mc_vector_gradient_begin(t, position_bias);
    if (bias) shape.bias.data = mc_saved_data(t, bias);
    if (position_bias) shape.position_bias = mc_saved_data(t, position_bias);
    if (!mc_failed(mc_tape_context(t))) {
        mc_matrix none = {0};
        operands x =
            operands_of(mc_saved_matrix(t, q), kv ? mc_saved_matrix(t, kv) : none, kv != NULL);
        operands dx = operands_of(mc_matrix_of(dq.written), mc_matrix_of(dkv.written), kv != NULL);
        MC_KERNEL(t, "attention", attention_backward, &shape, x.q, x.k, x.v, mc_saved_matrix(t, y),
                  mc_tensor_data(state->log_sum_exp), mc_matrix_of(y->gradient), dx.q, dx.k, dx.v);
    }
    gradient_end(t, dq);
    gradient_end(t, dkv);
    mc_vector_gradient_end(t, bias, shape.dbias);
    mc_vector_gradient_end(t, position_bias, shape.dposition_bias);
}

static const mc_op sdpa_op = {.name = "attention", .backward = sdpa_backward};

/* ---- checks ---------------------------------------------------------------------------------- */

/* One call: kv is NULL in self-attention. */
typedef struct sdpa_call {
    mc_tensor *q, *kv;
    const mc_sdpa_options *o;
    int64_t head_dim;
    const mc_lengths *keys;
} sdpa_call;

/* x has `parts` * heads * head_dim columns, and carries lengths. */
static bool check_input(mc_tape *t, const char *what, mc_tensor *x, int64_t parts,
                        const mc_sdpa_options *o)
{
    mc_context *ctx = mc_tape_context(t);
    int64_t columns = mc_tensor_columns(x);
    if (o->heads < 1 || columns % (parts * o->heads) || columns == 0)
        return !mc_fail(ctx, MC_ERR_SHAPE,
                        "attention: %s %s, expected %lld * %d heads * head_dim columns", what,
                        MC_SHAPE_TEXT(x->shape), (long long)parts, o->heads);
    if (!x->lengths || x->lengths->capacity != mc_tensor_rows(x))
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: %s %s carries no lengths of a packed batch", what,
                        MC_SHAPE_TEXT(x->shape));
    return true;
}

/* kv against q. */
static bool check_pair(mc_tape *t, const mc_tensor *q, const mc_tensor *kv)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_op_same_dtype(t, "attention", "kv", kv, q->dtype)) return false;
    if (mc_tensor_columns(kv) != 2 * mc_tensor_columns(q))
        return !mc_fail(ctx, MC_ERR_SHAPE, "attention: kv %s for q %s, expected %lld columns",
                        MC_SHAPE_TEXT(kv->shape), MC_SHAPE_TEXT(q->shape),
                        (long long)(2 * mc_tensor_columns(q)));
    if (kv->lengths->count != q->lengths->count)
        return !mc_fail(ctx, MC_ERR_SHAPE,
                        "attention: kv has %d sequences, expected as many as q's %d",
                        kv->lengths->count, q->lengths->count);
    return true;
}

static bool check_mask(mc_tape *t, mc_tensor *mask, int64_t keys)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mask) return true;
    if (!mc_op_ready(t, "attention", mask)) return false;
    if (mask->dtype != MC_U8 && mask->dtype != MC_BOOL)
        return !mc_fail(ctx, MC_ERR_DTYPE, "attention: key mask of dtype %s, expected u8 or bool",
                        mc_dtype_name(mask->dtype));
    if (mc_tensor_count(mask) != keys)
        return !mc_fail(ctx, MC_ERR_SHAPE, "attention: key mask %s, expected (%lld)",
                        MC_SHAPE_TEXT(mask->shape), (long long)keys);
    return true;
}

static bool check_bias(mc_tape *t, const sdpa_call *c)
{
    mc_context *ctx = mc_tape_context(t);
    mc_tensor *bias = c->o->bias;
    if (!bias) return true;
    if (!mc_op_ready(t, "attention", bias)) return false;
    if (bias->dtype != MC_F32 && bias->dtype != c->q->dtype)
        return !mc_fail(ctx, MC_ERR_DTYPE, "attention: bias has dtype %s, expected %s or f32",
                        mc_dtype_name(bias->dtype), mc_dtype_name(c->q->dtype));
    int32_t queries = c->q->lengths->longest, keys = c->keys->longest;
    if (bias->shape.ndim != 3 || bias->shape.dim[0] != c->o->heads ||
        bias->shape.dim[1] < queries || bias->shape.dim[2] < keys)
        return !mc_fail(ctx, MC_ERR_SHAPE, "attention: bias %s, expected (%d, %d, %d) or longer",
                        MC_SHAPE_TEXT(bias->shape), c->o->heads, queries, keys);
    return true;
}

static bool check_position_bias(mc_tape *t, const sdpa_call *c)
{
    mc_context *ctx = mc_tape_context(t);
    mc_tensor *bias = c->o->position_bias;
    if (!bias) return true;
    if (!mc_op_ready(t, "attention", bias) ||
        !mc_op_same_dtype(t, "attention", "position bias", bias, MC_F32))
        return false;
    if (c->o->bias)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: bias %s and position bias %s, expected one of them",
                        MC_SHAPE_TEXT(c->o->bias->shape), MC_SHAPE_TEXT(bias->shape));
    int32_t queries = c->q->lengths->longest, keys = c->keys->longest;
    int64_t least = 2 * (int64_t)(queries > keys ? queries : keys) - 1;
    bool good = bias->shape.ndim == 2 && bias->shape.dim[0] == c->o->heads &&
                bias->shape.dim[1] >= least && bias->shape.dim[1] % 2 == 1;
    if (good) return true;
    return !mc_fail(ctx, MC_ERR_SHAPE,
                    "attention: position bias %s, expected (%d, 2 * L - 1) with L of %d or more",
                    MC_SHAPE_TEXT(bias->shape), c->o->heads, queries > keys ? queries : keys);
}

static bool check_marks(mc_tape *t, const sdpa_call *c)
{
    mc_context *ctx = mc_tape_context(t);
    mc_tensor *marks = c->o->marks;
    if (!marks) return true;
    if (!mc_op_ready(t, "attention", marks) ||
        !mc_op_same_dtype(t, "attention", "marks", marks, MC_I32))
        return false;
    if (c->kv || c->o->causal)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: marks %s %s, expected self-attention that is not causal",
                        MC_SHAPE_TEXT(marks->shape),
                        c->kv ? "in cross attention" : "of causal attention");
    if (mc_tensor_count(marks) >= c->keys->total) return true;
    return !mc_fail(ctx, MC_ERR_SHAPE, "attention: marks %s, expected one for each of %lld tokens",
                    MC_SHAPE_TEXT(marks->shape), (long long)c->keys->total);
}

static bool check(mc_tape *t, sdpa_call *c)
{
    mc_context *ctx = mc_tape_context(t);
    const char *what = c->kv ? "q" : "qkv";
    if (!mc_op_float(t, "attention", what, c->q)) return false;
    if (!c->o)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: its options are NULL, heads are required");
    if (!check_input(t, what, c->q, c->kv ? 1 : 3, c->o)) return false;
    if (c->kv && (!check_input(t, "kv", c->kv, 2, c->o) || !check_pair(t, c->q, c->kv)))
        return false;
    if (!(c->o->dropout >= 0 && c->o->dropout < 1))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "attention: dropout %g, expected 0 <= p < 1",
                        (double)c->o->dropout);
    c->keys = c->kv ? c->kv->lengths : c->q->lengths;
    c->head_dim = mc_tensor_columns(c->q) / (c->kv ? 1 : 3) / c->o->heads;
    return check_mask(t, c->o->key_mask, c->keys->total) && check_bias(t, c) &&
           check_position_bias(t, c) && check_marks(t, c);
}

/* ---- forward --------------------------------------------------------------------------------- */

static int64_t position_limit(const mc_tensor *position_bias)
{
    return position_bias ? (position_bias->shape.dim[1] + 1) / 2 : 0;
}

/* Without dropout. */
static mc_attention_shape shape_of(mc_tape *t, const sdpa_call *c)
{
    const mc_sdpa_options *o = c->o;
    mc_attention_shape shape = {.lengths = c->q->lengths,
                                .device_lengths = mc_tape_device_lengths(t, c->q->lengths),
                                .heads = o->heads,
                                .head_dim = (int)c->head_dim,
                                .scale =
                                    o->scale != 0 ? o->scale : 1.0f / sqrtf((float)c->head_dim),
                                .causal = o->causal,
                                .key_mask = mc_tensor_data(o->key_mask),
                                .bias = mc_matrix_of(o->bias),
                                .bias_rows = o->bias ? o->bias->shape.dim[1] : 0,
                                .position_bias = mc_tensor_data(o->position_bias),
                                .position_limit = position_limit(o->position_bias),
                                .marks = mc_tensor_data(o->marks)};
    if (c->kv) {
        shape.key_lengths = c->keys;
        shape.device_key_lengths = mc_tape_device_lengths(t, c->keys);
    }
    return shape;
}

static void record(mc_tape *t, const sdpa_call *c, mc_tensor *y, sdpa_state state)
{
    mc_tensor *inputs[INPUTS] = {c->q, c->kv, c->o->bias, c->o->position_bias};
    mc_node *node = mc_tape_record(t, &sdpa_op, y, sizeof state, INPUTS, inputs);
    if (!node) return;
    *(sdpa_state *)node->state = state;
    mc_node_save(node, c->q);
    mc_node_save(node, c->kv);
    mc_node_save(node, y);
    mc_node_save(node, state.log_sum_exp);
    mc_node_save(node, c->o->key_mask);
    mc_node_save(node, c->o->bias);
    mc_node_save(node, c->o->position_bias);
    mc_node_save(node, c->o->marks);
}

static bool requires_gradient(const mc_tensor *x) { return x && x->requires_grad; }

static mc_tensor *sdpa(mc_tape *t, sdpa_call *c)
{
    if (!check(t, c)) return NULL;
    sdpa_state state = {.shape = shape_of(t, c)};
    state.shape.dropout = mc_tape_dropout(t, c->o->dropout);
    bool keep = mc_tape_recording(t) &&
                (requires_gradient(c->q) || requires_gradient(c->kv) ||
                 requires_gradient(c->o->bias) || requires_gradient(c->o->position_bias));
    mc_tensor *y = mc_tape_tensor(t, c->q->dtype,
                                  MC_SHAPE(mc_tensor_rows(c->q), c->o->heads * c->head_dim), c->q);
    if (keep)
        state.log_sum_exp =
            mc_tape_tensor(t, MC_F32, MC_SHAPE(c->o->heads, c->q->lengths->total), NULL);
    if (!y || (keep && !state.log_sum_exp)) return NULL;
    operands x = operands_of(mc_matrix_of(c->q), mc_matrix_of(c->kv), c->kv != NULL);
    MC_KERNEL(t, "attention", attention, &state.shape, x.q, x.k, x.v, mc_matrix_of(y),
              mc_tensor_data(state.log_sum_exp));
    record(t, c, y, state);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_sdpa(mc_tape *t, mc_tensor *qkv, const mc_sdpa_options *o)
{
    if (!mc_op_ready(t, "attention", qkv)) return NULL;
    return sdpa(t, &(sdpa_call){.q = qkv, .o = o});
}

mc_tensor *mc_sdpa_cross(mc_tape *t, mc_tensor *q, mc_tensor *kv, const mc_sdpa_options *o)
{
    if (!mc_op_ready(t, "attention", q) || !mc_op_ready(t, "attention", kv)) return NULL;
    return sdpa(t, &(sdpa_call){.q = q, .kv = kv, .o = o});
}

mc_tensor *mc_sdpa_probabilities(mc_tape *t, mc_tensor *q, mc_tensor *kv, const mc_sdpa_options *o)
{
    if (!mc_op_ready(t, "attention", q) || (kv && !mc_op_ready(t, "attention", kv))) return NULL;
    sdpa_call c = {.q = q, .kv = kv, .o = o};
    if (!check(t, &c)) return NULL;
    mc_attention_shape shape = shape_of(t, &c);
    mc_shape all = MC_SHAPE(q->lengths->count, o->heads, q->lengths->longest, c.keys->longest);
    mc_tensor *y = mc_tape_tensor(t, MC_F32, all, NULL);
    if (!y) return NULL;
    operands x = operands_of(mc_matrix_of(q), mc_matrix_of(kv), kv != NULL);
    MC_KERNEL(t, "attention", attention_probabilities, &shape, x.q, x.k, mc_tensor_data(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
