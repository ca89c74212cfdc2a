/* Attention as graphs of cuDNN's operations. Its engines match graphs by their form, and some forms
 * that they accept they compute wrongly: these are the forms known to be right, and no step of them
 * can be left out (the factor of delta that is 1, the two halves of the padding mask, and so on).
 *
 * Shapes are (batch, heads, tokens, head_dim) with strides that pick q, k and v out of rows of one
 * packed matrix. k and, in backward, v are given transposed, by strides alone. */
#include <string.h>
#include "core/device/cuda/runtime/cudnn_internal.h"

enum {
    F32 = MC_CUDNN_DATA_FLOAT,
    I32 = MC_CUDNN_DATA_INT32,
    I64 = MC_CUDNN_DATA_INT64,
    BOOL = MC_CUDNN_DATA_BOOLEAN
};

/* A graph being put together: its key, and what both directions have. */
typedef struct builder {
    mc_cudnn_graph *g;
    const mc_sdpa_key *key;
    int64_t b, h, t, n, d, kh; /* n: keys; kh: their heads */
    mc_cudnn_ref q, k, v, out, stats, scale;
    mc_cudnn_ref query_lengths, key_lengths; /* NULL unless ragged, like those below */
    mc_cudnn_ref q_starts, kv_starts, out_starts, stats_starts;
    mc_cudnn_ref query_count, key_count; /* i32, of each sequence or of all; NULL: not needed */
    mc_cudnn_ref random, keep_factor;    /* dropout: once it is drawn */
} builder;

/* ---- tensors --------------------------------------------------------------------------------- */

static mc_cudnn_ref small_integers(builder *s, int64_t id, int dtype, int64_t count)
{
    return mc_cudnn_memory(s->g, id, dtype, MC_CUDNN_4(count, 1, 1, 1), MC_CUDNN_4(1, 1, 1, 1),
                           NULL);
}

static mc_cudnn_ref q_like(builder *s, int64_t id)
{
    int64_t row = s->key->q_stride;
    return mc_cudnn_memory(s->g, id, s->key->dtype, MC_CUDNN_4(s->b, s->h, s->t, s->d),
                           MC_CUDNN_4(s->t * row, s->d, row, 1), s->q_starts);
}

/* (b,h,n,d) or, transposed, (b,h,d,n). */
static mc_cudnn_ref kv_like(builder *s, int64_t id, bool transposed)
{
    int64_t row = s->key->kv_stride;
    if (transposed)
        return mc_cudnn_memory(s->g, id, s->key->dtype, MC_CUDNN_4(s->b, s->kh, s->d, s->n),
                               MC_CUDNN_4(s->n * row, s->d, 1, row), s->kv_starts);
    return mc_cudnn_memory(s->g, id, s->key->dtype, MC_CUDNN_4(s->b, s->kh, s->n, s->d),
                           MC_CUDNN_4(s->n * row, s->d, row, 1), s->kv_starts);
}

static mc_cudnn_ref bias_like(builder *s, int64_t id)
{
    int64_t head = s->t * s->n;
    return mc_cudnn_memory(s->g, id, s->key->dtype, MC_CUDNN_4(1, s->h, s->t, s->n),
                           MC_CUDNN_4(s->h * head, head, s->n, 1), NULL);
}

static mc_cudnn_ref out_like(builder *s, int64_t id)
{
    int64_t row = s->key->out_stride;
    return mc_cudnn_memory(s->g, id, s->key->dtype, MC_CUDNN_4(s->b, s->h, s->t, s->d),
                           MC_CUDNN_4(s->t * row, s->d, row, 1), s->out_starts);
}

/* One f32 for each query, in memory. */
static mc_cudnn_ref stats_like(builder *s, int64_t id)
{
    const int64_t *dim = MC_CUDNN_4(s->b, s->h, s->t, 1);
    const int64_t *dense = MC_CUDNN_4(s->h * s->t, s->t, 1, 1);
    const int64_t *ragged = MC_CUDNN_4(s->t * s->h, 1, s->h, 1);
    return mc_cudnn_memory(s->g, id, F32, dim, s->key->ragged ? ragged : dense, s->stats_starts);
}

static mc_cudnn_ref scores(builder *s, int dtype) /* (b,h,t,n) */
{
    int64_t head = s->t * s->n;
    return mc_cudnn_virtual(s->g, dtype, MC_CUDNN_4(s->b, s->h, s->t, s->n),
                            MC_CUDNN_4(s->h * head, head, s->n, 1), NULL);
}

static mc_cudnn_ref row_values(builder *s) /* (b,h,t,1) */
{
    return mc_cudnn_virtual(s->g, F32, MC_CUDNN_4(s->b, s->h, s->t, 1),
                            MC_CUDNN_4(s->h * s->t, s->t, 1, 1), NULL);
}

static void begin(builder *s, mc_cudnn_graph *g, const mc_sdpa_key *key)
{
    *s = (builder){g,
                   key,
                   key->batch,
                   key->heads,
                   key->length,
                   key->key_length,
                   key->head_dim,
                   key->key_heads};
    if (key->ragged) {
        s->query_lengths = small_integers(s, MC_SDPA_QUERY_LENGTHS, I32, s->b);
        s->key_lengths = small_integers(s, MC_SDPA_KEY_LENGTHS, I32, s->b);
        s->q_starts = s->kv_starts = small_integers(s, MC_SDPA_Q_STARTS, I64, s->b + 1);
        if (key->apart) s->kv_starts = small_integers(s, MC_SDPA_KV_STARTS, I64, s->b + 1);
        s->out_starts = small_integers(s, MC_SDPA_OUT_STARTS, I64, s->b + 1);
        s->stats_starts = small_integers(s, MC_SDPA_STATS_STARTS, I64, s->b + 1);
    }
    s->query_count = s->query_lengths, s->key_count = s->key_lengths;
    if (key->bottom_right && !key->ragged) {
        s->query_count = mc_cudnn_scalar(g, MC_SDPA_QUERIES, I32);
        s->key_count = mc_cudnn_scalar(g, MC_SDPA_KEYS, I32);
    }
    s->q = q_like(s, MC_SDPA_Q);
    s->k = kv_like(s, MC_SDPA_K, true);
    s->v = kv_like(s, MC_SDPA_V, key->backward);
    s->out = out_like(s, MC_SDPA_OUT);
    s->stats = stats_like(s, MC_SDPA_STATS);
    s->scale = mc_cudnn_scalar(g, MC_SDPA_SCALE, F32);
}

static void draw_dropout(builder *s)
{
    mc_cudnn_ref seed = small_integers(s, MC_SDPA_SEED, I64, 1);
    mc_cudnn_ref offset = small_integers(s, MC_SDPA_OFFSET, I64, 1);
    s->keep_factor = mc_cudnn_scalar(s->g, MC_SDPA_KEEP_FACTOR, F32);
    s->random = scores(s, F32);
    mc_cudnn_bernoulli(s->g, seed, offset, 1.0 - (double)s->key->dropout, s->random);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* A new tensor y = mode(x, b) like x, in f32. */
static mc_cudnn_ref apply(builder *s, int mode, mc_cudnn_ref x, mc_cudnn_ref b)
{
    mc_cudnn_ref y = mc_cudnn_like(s->g, F32, x);
    mc_cudnn_pointwise(s->g, mode, F32, x, b, NULL, y);
    return y;
}
static mc_cudnn_ref times(builder *s, mc_cudnn_ref x, mc_cudnn_ref b)
{
    return apply(s, MC_CUDNN_POINTWISE_MUL, x, b);
}
static mc_cudnn_ref minus(builder *s, mc_cudnn_ref x, mc_cudnn_ref b)
{
    return apply(s, MC_CUDNN_POINTWISE_SUB, x, b);
}

static mc_cudnn_ref integer(builder *s, int mode, mc_cudnn_ref x, mc_cudnn_ref b)
{
    mc_cudnn_ref y = mc_cudnn_like(s->g, I32, x);
    mc_cudnn_pointwise(s->g, mode, I32, x, b, NULL, y);
    return y;
}

static mc_cudnn_ref compare(builder *s, int mode, mc_cudnn_ref x, mc_cudnn_ref b)
{
    mc_cudnn_ref y = mc_cudnn_like(s->g, BOOL, x);
    mc_cudnn_pointwise(s->g, mode, BOOL, x, b, NULL, y);
    return y;
}

static mc_cudnn_ref index_of(builder *s, mc_cudnn_ref x, int precision, int axis)
{
    mc_cudnn_ref y = mc_cudnn_like(s->g, I32, x);
    mc_cudnn_index(s->g, precision, axis, x, y);
    return y;
}

static mc_cudnn_ref keep_where(builder *s, mc_cudnn_ref x, mc_cudnn_ref condition, int64_t other)
{
    mc_cudnn_ref y = mc_cudnn_like(s->g, F32, x);
    mc_cudnn_pointwise(s->g, MC_CUDNN_POINTWISE_BINARY_SELECT, F32, x,
                       mc_cudnn_scalar(s->g, other, F32), condition, y);
    return y;
}

/* Scores of tokens past the ends of their sequences, of either side, become -infinity. */
static mc_cudnn_ref mask_padding(builder *s, mc_cudnn_ref x)
{
    if (!s->key->ragged) return x;
    mc_cudnn_ref row = index_of(s, x, I32, 2), column = index_of(s, x, I32, 3);
    mc_cudnn_ref a = compare(s, MC_CUDNN_POINTWISE_CMP_LT, row, s->query_lengths);
    mc_cudnn_ref b = compare(s, MC_CUDNN_POINTWISE_CMP_LT, column, s->key_lengths);
    mc_cudnn_ref both = compare(s, MC_CUDNN_POINTWISE_LOGICAL_AND, a, b);
    return keep_where(s, x, both, MC_SDPA_PADDING);
}

static mc_cudnn_ref mask_future(builder *s, mc_cudnn_ref x)
{
    const mc_sdpa_key *key = s->key;
    if (!key->causal && !key->right) return x;
    mc_cudnn_ref row = index_of(s, x, F32, 2), column = index_of(s, x, F32, 3);
    if (key->bottom_right) row = integer(s, MC_CUDNN_POINTWISE_ADD, row, s->key_count);
    if (key->bottom_right) row = integer(s, MC_CUDNN_POINTWISE_SUB, row, s->query_count);
    if (key->right)
        row = integer(s, MC_CUDNN_POINTWISE_ADD, row, mc_cudnn_scalar(s->g, MC_SDPA_RIGHT, I32));
    mc_cudnn_ref seen = compare(s, MC_CUDNN_POINTWISE_CMP_GE, row, column);
    return keep_where(s, x, seen, MC_SDPA_FUTURE);
}

/* In a grid, MC_SDPA_LEFT includes the place of the first query. */
static mc_cudnn_ref mask_past(builder *s, mc_cudnn_ref x)
{
    const mc_sdpa_key *key = s->key;
    if (!key->left) return x;
    mc_cudnn_ref row = index_of(s, x, F32, 2), column = index_of(s, x, F32, 3);
    if (key->bottom_right && key->ragged) {
        mc_cudnn_ref left = mc_cudnn_scalar(s->g, MC_SDPA_LEFT, I32);
        column = integer(s, MC_CUDNN_POINTWISE_ADD, column, left);
        column = integer(s, MC_CUDNN_POINTWISE_SUB, column, s->key_count);
        column = integer(s, MC_CUDNN_POINTWISE_ADD, column, s->query_count);
    } else {
        column = apply(s, MC_CUDNN_POINTWISE_ADD, column, mc_cudnn_scalar(s->g, MC_SDPA_LEFT, F32));
    }
    mc_cudnn_ref seen = compare(s, MC_CUDNN_POINTWISE_CMP_GT, column, row);
    return keep_where(s, x, seen, MC_SDPA_PAST);
}

/* Scores of keys that the causal mask or a window hides become -infinity. A score is kept where row
 * + place + right >= column and column + left - place > row; place: the first query's. */
static mc_cudnn_ref mask_unseen(builder *s, mc_cudnn_ref x)
{
    return mask_past(s, mask_future(s, x));
}

/* scale * q k^T + bias with the padding masked. */
static mc_cudnn_ref scaled_scores(builder *s)
{
    mc_cudnn_ref x = scores(s, F32);
    mc_cudnn_matmul(s->g, s->q, s->k, x, s->query_lengths, s->key_lengths, NULL);
    x = times(s, x, s->scale);
    if (s->key->bias) x = apply(s, MC_CUDNN_POINTWISE_ADD, x, bias_like(s, MC_SDPA_BIAS));
    return mask_padding(s, x);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Dropout of p, in the type of the inputs, as the second product takes it. */
static mc_cudnn_ref drop(builder *s, mc_cudnn_ref p)
{
    draw_dropout(s);
    mc_cudnn_ref y = scores(s, s->key->dtype);
    mc_cudnn_pointwise(s->g, MC_CUDNN_POINTWISE_MUL, F32, times(s, p, s->random), s->keep_factor,
                       NULL, y);
    return y;
}

static void forward(builder *s)
{
    mc_cudnn_ref x = mask_unseen(s, scaled_scores(s));
    mc_cudnn_ref largest = row_values(s), sum = row_values(s);
    mc_cudnn_reduce(s->g, MC_CUDNN_REDUCE_TENSOR_MAX, x, largest);
    mc_cudnn_ref e = apply(s, MC_CUDNN_POINTWISE_EXP, minus(s, x, largest), NULL);
    mc_cudnn_reduce(s->g, MC_CUDNN_REDUCE_TENSOR_ADD, e, sum);
    mc_cudnn_ref log = apply(s, MC_CUDNN_POINTWISE_LOG, sum, NULL);
    mc_cudnn_pointwise(s->g, MC_CUDNN_POINTWISE_ADD, F32, largest, log, NULL, s->stats);
    bool dropout = s->key->dropout > 0;
    mc_cudnn_ref p = scores(s, dropout ? F32 : s->key->dtype);
    mc_cudnn_pointwise(s->g, MC_CUDNN_POINTWISE_DIV, F32, e, sum, NULL, p);
    if (dropout) p = drop(s, p);
    mc_cudnn_matmul(s->g, p, s->v, s->out, s->query_lengths, NULL, s->key_lengths);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* delta = sum of out * dout over head_dim (times 1 - p with dropout). */
static mc_cudnn_ref delta_of(builder *s, mc_cudnn_ref dout)
{
    int64_t width = s->h * s->d;
    mc_cudnn_ref product = mc_cudnn_virtual(s->g, F32, MC_CUDNN_4(s->b, s->h, s->t, s->d),
                                            MC_CUDNN_4(width * s->t, s->t * s->d, width, 1), NULL);
    mc_cudnn_ref sum = row_values(s), delta = stats_like(s, MC_SDPA_DELTA);
    mc_cudnn_pointwise(s->g, MC_CUDNN_POINTWISE_MUL, F32, dout, s->out, NULL, product);
    mc_cudnn_reduce(s->g, MC_CUDNN_REDUCE_TENSOR_ADD, product, sum);
    mc_cudnn_pointwise(s->g, MC_CUDNN_POINTWISE_MUL, F32, sum,
                       mc_cudnn_scalar(s->g, MC_SDPA_DELTA_FACTOR, F32), NULL, delta);
    return delta;
}

/* gradient = x^T other for scores x. */
static void transposed_product(builder *s, mc_cudnn_ref x, mc_cudnn_ref other,
                               mc_cudnn_ref gradient)
{
    int64_t head = s->t * s->n;
    mc_cudnn_ref transposed =
        mc_cudnn_virtual(s->g, s->key->dtype, MC_CUDNN_4(s->b, s->h, s->n, s->t),
                         MC_CUDNN_4(s->h * head, head, 1, s->n), NULL);
    mc_cudnn_reshape(s->g, x, transposed);
    mc_cudnn_matmul(s->g, transposed, other, gradient, s->key_lengths, NULL, s->query_lengths);
}

/* The gradient `id` of keys or values. Of grouped heads the product has one for each query head, in
 * memory of its own, of which those of a group are added up. */
static void key_gradient(builder *s, mc_cudnn_ref x, mc_cudnn_ref other, int64_t id,
                         int64_t heads_id)
{
    mc_cudnn_ref gradient = kv_like(s, id, false), heads = gradient;
    int64_t head = s->n * s->d;
    if (s->kh != s->h)
        heads = mc_cudnn_memory(s->g, heads_id, s->key->dtype, MC_CUDNN_4(s->b, s->h, s->n, s->d),
                                MC_CUDNN_4(s->h * head, head, s->d, 1), NULL);
    transposed_product(s, x, other, heads);
    if (heads != gradient) mc_cudnn_reduce(s->g, MC_CUDNN_REDUCE_TENSOR_ADD, heads, gradient);
}

/* dq = ds k: straight, or summed in f32 by atomic additions first, which is faster. */
static void query_gradient(builder *s, mc_cudnn_ref ds)
{
    int64_t b = s->b, h = s->h, t = s->t, d = s->d, row = s->key->q_stride, kv = s->key->kv_stride;
    const int64_t *dim = MC_CUDNN_4(b, h, t, d);
    mc_cudnn_ref dq = q_like(s, MC_SDPA_DQ);
    mc_cudnn_ref k = mc_cudnn_virtual(s->g, s->key->dtype, MC_CUDNN_4(b, s->kh, s->n, d),
                                      MC_CUDNN_4(s->n * kv, d, kv, 1), s->kv_starts);
    mc_cudnn_reshape(s->g, s->k, k);
    mc_cudnn_ref sum = dq;
    if (!s->key->deterministic && s->key->packed_sum)
        sum = mc_cudnn_memory(s->g, MC_SDPA_DQ_SUM, F32, dim, MC_CUDNN_4(t * row, d, row, 1),
                              s->q_starts);
    else if (!s->key->deterministic)
        sum = mc_cudnn_memory(s->g, MC_SDPA_DQ_SUM, F32, dim, MC_CUDNN_4(h * t * d, t * d, d, 1),
                              NULL);
    mc_cudnn_matmul(s->g, ds, k, sum, s->query_lengths, NULL, s->key_lengths);
    if (sum != dq) mc_cudnn_pointwise(s->g, MC_CUDNN_POINTWISE_IDENTITY, F32, sum, NULL, NULL, dq);
}

static void backward(builder *s)
{
    if (s->key->dropout > 0) draw_dropout(s);
    mc_cudnn_ref dout = out_like(s, MC_SDPA_DOUT), delta = delta_of(s, dout);
    mc_cudnn_ref x = mask_unseen(s, minus(s, scaled_scores(s), s->stats));
    mc_cudnn_ref p = apply(s, MC_CUDNN_POINTWISE_EXP, x, NULL), dropped = p;
    if (s->random) dropped = times(s, times(s, p, s->random), s->keep_factor);
    key_gradient(s, dropped, dout, MC_SDPA_DV, MC_SDPA_DV_HEADS);
    mc_cudnn_ref dp = scores(s, F32);
    mc_cudnn_matmul(s->g, dout, s->v, dp, s->query_lengths, s->key_lengths, NULL);
    if (s->random) dp = times(s, dp, s->random);
    mc_cudnn_ref ds = times(s, minus(s, dp, delta), p);
    if (s->random) ds = times(s, ds, s->keep_factor);
    if (s->key->bias)
        mc_cudnn_reduce(s->g, MC_CUDNN_REDUCE_TENSOR_ADD, ds, bias_like(s, MC_SDPA_DBIAS));
    ds = times(s, ds, s->scale);
    key_gradient(s, ds, s->q, MC_SDPA_DK, MC_SDPA_DK_HEADS);
    query_gradient(s, ds);
}

void mc_sdpa_graph(mc_cudnn_graph *graph, const mc_sdpa_key *key)
{
    builder s;
    begin(&s, graph, key);
    if (key->backward)
        backward(&s);
    else
        forward(&s);
}

int mc_sdpa_ids(const mc_sdpa_key *key, int64_t ids[MC_SDPA_IDS])
{
    int n = 0;
    for (int id = MC_SDPA_Q; id <= MC_SDPA_STATS; id++) ids[n++] = id;
    ids[n++] = MC_SDPA_SCALE;
    if (key->causal || key->right) ids[n++] = MC_SDPA_FUTURE;
    if (key->right) ids[n++] = MC_SDPA_RIGHT;
    if (key->left) {
        ids[n++] = MC_SDPA_PAST;
        ids[n++] = MC_SDPA_LEFT;
    }
    if (key->bottom_right && !key->ragged) {
        ids[n++] = MC_SDPA_QUERIES;
        ids[n++] = MC_SDPA_KEYS;
    }
    if (key->ragged) {
        const int ragged[] = {MC_SDPA_QUERY_LENGTHS, MC_SDPA_KEY_LENGTHS,  MC_SDPA_Q_STARTS,
                              MC_SDPA_OUT_STARTS,    MC_SDPA_STATS_STARTS, MC_SDPA_PADDING};
        for (int i = 0; i < 6; i++) ids[n++] = ragged[i];
        if (key->apart) ids[n++] = MC_SDPA_KV_STARTS;
    }
    if (key->bias) ids[n++] = MC_SDPA_BIAS;
    if (key->dropout > 0) {
        ids[n++] = MC_SDPA_SEED;
        ids[n++] = MC_SDPA_OFFSET;
        ids[n++] = MC_SDPA_KEEP_FACTOR;
    }
    if (!key->backward) return n;
    for (int id = MC_SDPA_DOUT; id <= MC_SDPA_DELTA; id++) ids[n++] = id;
    ids[n++] = MC_SDPA_DELTA_FACTOR;
    if (key->bias) ids[n++] = MC_SDPA_DBIAS;
    if (!key->deterministic) ids[n++] = MC_SDPA_DQ_SUM;
    if (key->key_heads != key->heads) {
        ids[n++] = MC_SDPA_DK_HEADS;
        ids[n++] = MC_SDPA_DV_HEADS;
    }
    return n;
}
