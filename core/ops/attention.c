/* Scaled dot-product attention over packed sequences. Only the log-sum-exp of each query is kept;
 * backward recomputes the probabilities (Dao et al. 2022). */
#include "core/ops/ops_internal.h"
#include "core/ops/attention.h"

#include <math.h>

typedef struct sdpa_state {
    mc_attention_shape shape;
    mc_tensor *log_sum_exp; /* (heads, total) f32 */
} sdpa_state;

/* Inputs. If K or V is not given, it is in the columns of the input before it. */
enum { Q, K, V, BIAS, POSITION_BIAS, INPUTS };

/* The operands, or their gradients: columns of one to three matrices. */
typedef struct operands {
    mc_matrix q, k, v;
} operands;

static mc_matrix columns_from(mc_matrix m, int64_t column)
{
    if (m.data) m.data = (char *)m.data + (size_t)column * mc_dtype_size(m.dtype);
    return m;
}

/* `given`: the inputs; `x`: their matrices, or the matrices of their gradients. */
static operands operands_of(const mc_attention_shape *s, mc_tensor *const *given,
                            const mc_matrix *x)
{
    operands o = {.q = x[Q], .k = x[K], .v = x[V]};
    if (!given[K]) o.k = columns_from(o.q, (int64_t)s->heads * s->head_dim);
    if (!given[V]) o.v = columns_from(o.k, (int64_t)mc_key_heads(s) * s->head_dim);
    return o;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The gradient of an input, which the kernel overwrites: the target itself, or scratch memory if
 * the target has contents already or no gradient is required. */
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
    mc_tensor *const *in = node->inputs, *bias = in[BIAS], *y = node->output;
    mc_tensor *position_bias = in[POSITION_BIAS];
    gradient d[BIAS];
    for (int i = 0; i < BIAS; i++) d[i] = gradient_begin(t, in[i]);
    mc_attention_shape shape = state->shape;
    shape.dbias = mc_vector_gradient_begin(t, bias);
    shape.dposition_bias = mc_vector_gradient_begin(t, position_bias);
    if (bias) shape.bias.data = mc_saved_data(t, bias);
    if (position_bias) shape.position_bias = mc_saved_data(t, position_bias);
    if (!mc_failed(mc_tape_context(t))) {
        mc_matrix saved[BIAS] = {{0}}, written[BIAS];
        for (int i = 0; i < BIAS; i++) {
            if (in[i]) saved[i] = mc_saved_matrix(t, in[i]);
            written[i] = mc_matrix_of(d[i].written);
        }
        operands x = operands_of(&shape, in, saved), dx = operands_of(&shape, in, written);
        MC_KERNEL(t, "attention", attention_backward, &shape, x.q, x.k, x.v, mc_saved_matrix(t, y),
                  mc_tensor_data(state->log_sum_exp), mc_matrix_of(y->gradient), dx.q, dx.k, dx.v);
    }
    for (int i = 0; i < BIAS; i++) gradient_end(t, d[i]);
    mc_vector_gradient_end(t, bias, shape.dbias);
    mc_vector_gradient_end(t, position_bias, shape.dposition_bias);
}

static const mc_op sdpa_op = {.name = "attention", .backward = sdpa_backward};

/* ---- checks ---------------------------------------------------------------------------------- */

/* One call. k and v are NULL if they are in the input before them. */
typedef struct sdpa_call {
    mc_tensor *in[BIAS];
    const mc_sdpa_options *o;
    int64_t key_heads, head_dim, value_dim;
    const mc_lengths *queries, *keys;
} sdpa_call;

static bool is_cross(const sdpa_call *c) { return c->in[K]; }

static bool check_lengths(mc_tape *t, const char *what, const mc_tensor *x)
{
    if (x->lengths && x->lengths->capacity == mc_tensor_rows(x)) return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                    "attention: %s %s carries no lengths of a packed batch", what,
                    MC_SHAPE_TEXT(x->shape));
}

static bool check_options(mc_tape *t, const char *what, const sdpa_call *c)
{
    mc_context *ctx = mc_tape_context(t);
    const mc_sdpa_options *o = c->o;
    if (!o)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: its options are NULL, heads are required");
    if (o->heads < 1)
        return !mc_fail(ctx, MC_ERR_SHAPE, "attention: %s %s with %d heads, expected 1 or more",
                        what, MC_SHAPE_TEXT(c->in[Q]->shape), o->heads);
    if (o->key_heads < 0 || (o->key_heads && o->heads % o->key_heads))
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: %d key heads, expected a divisor of %d heads", o->key_heads,
                        o->heads);
    if (o->value_dim < 0 || o->window_left < 0 || o->window_right < 0)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: value_dim %d and a window of %d and %d, expected 0 or more",
                        o->value_dim, o->window_left, o->window_right);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "attention: dropout %g, expected 0 <= p < 1",
                        (double)o->dropout);
    return true;
}

/* Finds the head sizes: x holds q, then the keys and values that are not given separately. */
static bool find_head_dim(mc_tape *t, const char *what, sdpa_call *c)
{
    const mc_tensor *x = c->in[Q];
    int64_t columns = mc_tensor_columns(x), heads = c->o->heads, fixed = 0;
    if (!is_cross(c)) {
        heads += c->key_heads * (c->o->value_dim ? 1 : 2);
        fixed = c->key_heads * c->o->value_dim;
    }
    if (columns <= fixed || (columns - fixed) % heads)
        return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                        "attention: %s %s, expected %lld * head_dim columns for %d heads", what,
                        MC_SHAPE_TEXT(x->shape), (long long)heads, c->o->heads);
    c->head_dim = (columns - fixed) / heads;
    c->value_dim = c->o->value_dim ? c->o->value_dim : c->head_dim;
    return true;
}

/* Checks k, v, or both in one tensor, against q. */
static bool check_other(mc_tape *t, const char *what, const mc_tensor *x, int64_t columns,
                        const sdpa_call *c)
{
    mc_context *ctx = mc_tape_context(t);
    const mc_tensor *q = c->in[Q];
    if (!mc_op_same_dtype(t, "attention", what, x, q->dtype)) return false;
    if (mc_tensor_columns(x) != columns)
        return !mc_fail(ctx, MC_ERR_SHAPE, "attention: %s %s for q %s, expected %lld columns", what,
                        MC_SHAPE_TEXT(x->shape), MC_SHAPE_TEXT(q->shape), (long long)columns);
    if (mc_tensor_rows(x) != mc_tensor_rows(c->in[K]))
        return !mc_fail(ctx, MC_ERR_SHAPE, "attention: %s %s for k %s, expected as many rows", what,
                        MC_SHAPE_TEXT(x->shape), MC_SHAPE_TEXT(c->in[K]->shape));
    return true;
}

/* Checks keys and values in separate inputs. */
static bool check_keys(mc_tape *t, sdpa_call *c)
{
    const char *what = c->in[V] ? "k" : "kv";
    int64_t k = c->key_heads * c->head_dim, v = c->key_heads * c->value_dim;
    if (!check_lengths(t, what, c->in[K]) ||
        !check_other(t, what, c->in[K], c->in[V] ? k : k + v, c) ||
        (c->in[V] && !check_other(t, "v", c->in[V], v, c)))
        return false;
    c->keys = c->in[K]->lengths;
    if (c->keys->count == c->queries->count) return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                    "attention: %s has %d sequences, expected as many as q's %d", what,
                    c->keys->count, c->queries->count);
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
    if (bias->dtype != MC_F32 && bias->dtype != c->in[Q]->dtype)
        return !mc_fail(ctx, MC_ERR_DTYPE, "attention: bias has dtype %s, expected %s or f32",
                        mc_dtype_name(bias->dtype), mc_dtype_name(c->in[Q]->dtype));
    int32_t queries = c->queries->longest, keys = c->keys->longest;
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
    int32_t queries = c->queries->longest, keys = c->keys->longest;
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
    if (is_cross(c) || c->o->causal)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: marks %s %s, expected self-attention that is not causal",
                        MC_SHAPE_TEXT(marks->shape),
                        is_cross(c) ? "in cross attention" : "of causal attention");
    if (mc_tensor_count(marks) >= c->keys->total) return true;
    return !mc_fail(ctx, MC_ERR_SHAPE, "attention: marks %s, expected one for each of %lld tokens",
                    MC_SHAPE_TEXT(marks->shape), (long long)c->keys->total);
}

static bool check_globals(mc_tape *t, const sdpa_call *c)
{
    mc_tensor *globals = c->o->globals;
    if (!globals) return true;
    if (!mc_op_ready(t, "attention", globals) ||
        !mc_op_same_dtype(t, "attention", "globals", globals, MC_I32))
        return false;
    if (!is_cross(c) && mc_tensor_count(globals) >= c->keys->total) return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                    "attention: globals %s, expected one for each of %lld tokens of self-attention",
                    MC_SHAPE_TEXT(globals->shape), (long long)c->keys->total);
}

static bool check(mc_tape *t, sdpa_call *c)
{
    const char *what = is_cross(c) ? "q" : "qkv";
    if (!mc_op_float(t, "attention", what, c->in[Q]) || !check_options(t, what, c)) return false;
    c->key_heads = c->o->key_heads ? c->o->key_heads : c->o->heads;
    if (!find_head_dim(t, what, c) || !check_lengths(t, what, c->in[Q])) return false;
    c->queries = c->keys = c->in[Q]->lengths;
    if (is_cross(c) && !check_keys(t, c)) return false;
    return check_mask(t, c->o->key_mask, c->keys->total) && check_bias(t, c) &&
           check_position_bias(t, c) && check_marks(t, c) && check_globals(t, c);
}

/* ---- forward --------------------------------------------------------------------------------- */

static int64_t position_limit(const mc_tensor *position_bias)
{
    return position_bias ? (position_bias->shape.dim[1] + 1) / 2 : 0;
}

/* The shape without dropout. */
static mc_attention_shape shape_of(mc_tape *t, const sdpa_call *c)
{
    const mc_sdpa_options *o = c->o;
    mc_attention_shape shape = {.lengths = c->queries,
                                .device_lengths = mc_tape_device_lengths(t, c->queries),
                                .heads = o->heads,
                                .head_dim = (int)c->head_dim,
                                .key_heads = (int)c->key_heads,
                                .value_dim = (int)c->value_dim,
                                .scale =
                                    o->scale != 0 ? o->scale : 1.0f / sqrtf((float)c->head_dim),
                                .causal = o->causal,
                                .bottom_right = o->bottom_right && c->keys != c->queries,
                                .window_left = o->window_left,
                                .window_right = o->window_right,
                                .key_mask = mc_tensor_data(o->key_mask),
                                .bias = mc_matrix_of(o->bias),
                                .bias_rows = o->bias ? o->bias->shape.dim[1] : 0,
                                .position_bias = mc_tensor_data(o->position_bias),
                                .position_limit = position_limit(o->position_bias),
                                .marks = mc_tensor_data(o->marks),
                                .globals = mc_tensor_data(o->globals),
                                .global_queries = o->global_queries};
    if (c->keys != c->queries) {
        shape.key_lengths = c->keys;
        shape.device_key_lengths = mc_tape_device_lengths(t, c->keys);
    }
    return shape;
}

static void record(mc_tape *t, const sdpa_call *c, mc_tensor *y, sdpa_state state)
{
    mc_tensor *inputs[INPUTS] = {c->in[Q], c->in[K], c->in[V], c->o->bias, c->o->position_bias};
    mc_node *node = mc_tape_record(t, &sdpa_op, y, sizeof state, INPUTS, inputs);
    if (!node) return;
    *(sdpa_state *)node->state = state;
    for (int i = 0; i < BIAS; i++) mc_node_save(node, c->in[i]);
    mc_node_save(node, y);
    mc_node_save(node, state.log_sum_exp);
    mc_node_save(node, c->o->key_mask);
    mc_node_save(node, c->o->bias);
    mc_node_save(node, c->o->position_bias);
    mc_node_save(node, c->o->marks);
    mc_node_save(node, c->o->globals);
}

static bool requires_gradient(const mc_tensor *x) { return x && x->requires_grad; }

static operands call_operands(const sdpa_call *c, const mc_attention_shape *shape)
{
    mc_matrix x[BIAS];
    for (int i = 0; i < BIAS; i++) x[i] = mc_matrix_of(c->in[i]);
    return operands_of(shape, c->in, x);
}

static mc_tensor *sdpa(mc_tape *t, sdpa_call *c)
{
    if (!check(t, c)) return NULL;
    sdpa_state state = {.shape = shape_of(t, c)};
    state.shape.dropout = mc_tape_dropout(t, c->o->dropout);
    bool keep = requires_gradient(c->o->bias) || requires_gradient(c->o->position_bias);
    for (int i = 0; i < BIAS; i++) keep = keep || requires_gradient(c->in[i]);
    keep = keep && mc_tape_recording(t);
    mc_shape out = MC_SHAPE(mc_tensor_rows(c->in[Q]), c->o->heads * c->value_dim);
    mc_tensor *y = mc_tape_tensor(t, c->in[Q]->dtype, out, c->in[Q]);
    if (keep)
        state.log_sum_exp =
            mc_tape_tensor(t, MC_F32, MC_SHAPE(c->o->heads, c->queries->total), NULL);
    if (!y || (keep && !state.log_sum_exp)) return NULL;
    operands x = call_operands(c, &state.shape);
    MC_KERNEL(t, "attention", attention, &state.shape, x.q, x.k, x.v, mc_matrix_of(y),
              mc_tensor_data(state.log_sum_exp));
    record(t, c, y, state);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_sdpa(mc_tape *t, mc_tensor *qkv, const mc_sdpa_options *o)
{
    if (!mc_op_ready(t, "attention", qkv)) return NULL;
    return sdpa(t, &(sdpa_call){.in = {qkv}, .o = o});
}

mc_tensor *mc_sdpa_cross(mc_tape *t, mc_tensor *q, mc_tensor *kv, const mc_sdpa_options *o)
{
    if (!mc_op_ready(t, "attention", q) || !mc_op_ready(t, "attention", kv)) return NULL;
    return sdpa(t, &(sdpa_call){.in = {q, kv}, .o = o});
}

mc_tensor *mc_sdpa_separate(mc_tape *t, mc_tensor *q, mc_tensor *k, mc_tensor *v,
                            const mc_sdpa_options *o)
{
    if (!mc_op_ready(t, "attention", q) || !mc_op_ready(t, "attention", k) ||
        !mc_op_ready(t, "attention", v))
        return NULL;
    return sdpa(t, &(sdpa_call){.in = {q, k, v}, .o = o});
}

/* ---- probabilities --------------------------------------------------------------------------- */

/* Attention to values that are unit vectors returns the probabilities. Each call computes those of
 * KEYS keys of every sequence, so that values and result stay small. */
enum { KEYS = 128 };

typedef struct probabilities {
    mc_tensor *y;        /* (sequences, heads, longest, longest of the keys) */
    mc_tensor *one;      /* (1) */
    mc_tensor *v, *rows; /* packed: of the keys, of the queries; value_dim columns for each head */
} probabilities;

/* How many of the keys from `first` on one call computes, of a sequence. */
static int64_t keys_from(const mc_attention_shape *s, int sequence, int64_t first)
{
    int64_t left = mc_key_lengths(s)->length[sequence] - first;
    return left < 0 ? 0 : left < s->value_dim ? left : s->value_dim;
}

/* Column i of each head of v is 1 for key first + i of its sequence, else 0. */
static void write_unit_vectors(mc_tape *t, const probabilities *p, const mc_attention_shape *s,
                               int64_t first)
{
    const mc_lengths *keys = mc_key_lengths(s);
    int64_t columns = mc_tensor_columns(p->v);
    MC_KERNEL(t, "attention", zero, mc_tensor_data(p->v), p->v->storage->bytes);
    for (int i = 0; i < keys->count; i++) {
        mc_strided_shape ones = {.ndim = 2,
                                 .size = {keys_from(s, i, first), s->key_heads},
                                 .y = {columns + 1, s->value_dim}};
        mc_op_copy(t, "attention", ones, p->one, 0, 1, p->v, (keys->offset[i] + first) * columns,
                   false);
    }
}

/* The columns of packed rows into y. */
static void put_columns(mc_tape *t, const probabilities *p, const mc_attention_shape *s,
                        int64_t first)
{
    const mc_lengths *queries = s->lengths;
    int64_t columns = mc_tensor_columns(p->rows), keys = mc_tensor_columns(p->y);
    int64_t square = queries->longest * keys;
    for (int i = 0; i < queries->count; i++) {
        mc_strided_shape part = {.ndim = 3,
                                 .size = {s->heads, queries->length[i], keys_from(s, i, first)},
                                 .x = {s->value_dim, columns, 1},
                                 .y = {square, keys, 1}};
        mc_op_copy(t, "attention", part, p->rows, queries->offset[i] * columns, 1, p->y,
                   i * s->heads * square + first, false);
    }
}

/* v and the result are f32, whatever the dtype of q and k. */
static mc_tensor *find_probabilities(mc_tape *t, const sdpa_call *c)
{
    mc_attention_shape s = shape_of(t, c);
    const mc_lengths *q = c->queries, *k = c->keys;
    const operands x = call_operands(c, &s);
    s.value_dim = k->longest < KEYS ? k->longest : KEYS;
    probabilities p = {
        .y = mc_tape_tensor(t, MC_F32, MC_SHAPE(q->count, s.heads, q->longest, k->longest), NULL),
        .one = mc_tape_input(t, MC_F32, MC_SHAPE(1), &(float){1}, false),
        .v = mc_scratch_new(t, MC_F32, MC_SHAPE(k->capacity, s.key_heads * s.value_dim)),
        .rows = mc_scratch_new(t, MC_F32, MC_SHAPE(q->capacity, s.heads * s.value_dim))};
    if (!mc_failed(mc_tape_context(t)))
        MC_KERNEL(t, "attention", zero, mc_tensor_data(p.y), p.y->storage->bytes);
    for (int64_t first = 0; first < k->longest && !mc_failed(mc_tape_context(t)); first += KEYS) {
        write_unit_vectors(t, &p, &s, first);
        MC_KERNEL(t, "attention", attention, &s, x.q, x.k, mc_matrix_of(p.v), mc_matrix_of(p.rows),
                  NULL);
        put_columns(t, &p, &s, first);
    }
    mc_scratch_free(p.v);
    mc_scratch_free(p.rows);
    return mc_failed(mc_tape_context(t)) ? NULL : p.y;
}

mc_tensor *mc_sdpa_probabilities(mc_tape *t, mc_tensor *q, mc_tensor *kv, const mc_sdpa_options *o)
{
    if (!mc_op_ready(t, "attention", q) || (kv && !mc_op_ready(t, "attention", kv))) return NULL;
    sdpa_call c = {.in = {q, kv}, .o = o};
    if (!check(t, &c) || !mc_op_host_lengths(t, "attention probabilities", c.queries) ||
        !mc_op_host_lengths(t, "attention probabilities", c.keys))
        return NULL;
    return find_probabilities(t, &c);
}
