#include "models/generate/kv_cache_internal.h"

#include <math.h>
#include "core/base/memory_internal.h"
#include "core/ops/ops_internal.h"

/* Prompts whose beginnings are in the cache. Attention is that of whole sequences, so that it is
 * computed in the same way as for a whole prompt; the queries that came before are zeros. */
typedef struct mc_kv_piece {
    const mc_lengths *all;     /* of the sequences with the tokens that come in */
    mc_tensor *rows, *queries; /* i32 (all): the row of the cache, that of qkv or -1 */
    const int32_t *of_new;     /* (total): where the tokens that come in stand among all */
} mc_kv_piece;

size_t mc_kv_bytes(const mc_kv_shape *s, int64_t tokens)
{
    return 2 * (size_t)(tokens * s->layers * s->width) * mc_dtype_size(s->dtype);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static bool evaluates(mc_tape *t, const mc_lengths *tokens)
{
    if (!t || mc_failed(mc_tape_context(t)) || !tokens) return false;
    return !mc_tape_is_training(t) ||
           !mc_fail(mc_tape_context(t), MC_ERR_STATE, "key-value cache: on a training tape");
}

static mc_tensor *indices(mc_tape *t, const int32_t *index, int64_t count)
{
    return mc_tape_input(t, MC_I32, MC_SHAPE(count), index, false);
}

/* Where a sequence's tokens lie, all of them up to `count`. */
static void fill_piece(const mc_kv_cache *c, const mc_lengths *tokens, const mc_lengths *all,
                       const int *sequence, int32_t *rows, int32_t *queries, int32_t *of_new)
{
    for (int i = 0; i < all->count; i++) {
        int32_t before = all->length[i] - tokens->length[i];
        for (int32_t k = 0, at = all->offset[i]; k < all->length[i]; k++, at++) {
            rows[at] = mc_kv_pages_row(c->pages, sequence[i], k);
            queries[at] = k < before ? -1 : tokens->offset[i] + k - before;
            if (k >= before) of_new[queries[at]] = at;
        }
    }
}

static mc_kv_piece *make_piece(mc_kv_cache *c, mc_tape *t, const mc_lengths *tokens,
                               const int *sequence, const int32_t *before)
{
    mc_kv_piece *p = mc_tape_alloc(t, sizeof *p);
    int32_t *lengths = mc_tape_alloc(t, ((size_t)tokens->count + 1) * sizeof *lengths);
    for (int i = 0; lengths && i < tokens->count; i++) lengths[i] = before[i] + tokens->length[i];
    const mc_lengths *all = lengths ? mc_tape_lengths(t, lengths, tokens->count, 1) : NULL;
    if (!p || !all) return NULL;
    int32_t *rows = mc_tape_alloc(t, ((size_t)all->total + 1) * sizeof *rows);
    int32_t *queries = mc_tape_alloc(t, ((size_t)all->total + 1) * sizeof *queries);
    int32_t *of_new = mc_tape_alloc(t, ((size_t)tokens->total + 1) * sizeof *of_new);
    if (!rows || !queries || !of_new) return NULL;
    fill_piece(c, tokens, all, sequence, rows, queries, of_new);
    *p = (mc_kv_piece){.all = all,
                       .rows = indices(t, rows, all->total),
                       .queries = indices(t, queries, all->total)};
    p->of_new = of_new;
    return p->rows && p->queries ? p : NULL;
}

bool mc_kv_cache_begin_prompts(mc_kv_cache *c, mc_tape *t, const mc_lengths *tokens,
                               const int *sequence, const int32_t *before)
{
    if (!evaluates(t, tokens)) return false;
    int32_t *rows = mc_tape_alloc(t, ((size_t)tokens->total + 1) * sizeof *rows);
    if (!rows) return false;
    for (int i = 0; i < tokens->count; i++)
        for (int32_t k = 0; k < tokens->length[i]; k++)
            rows[tokens->offset[i] + k] =
                mc_kv_pages_row(c->pages, sequence[i], (before ? before[i] : 0) + k);
    c->longest = tokens->longest;
    c->tokens = tokens;
    c->firsts = c->lengths = NULL;
    c->rows = indices(t, rows, tokens->total);
    c->piece = before ? make_piece(c, t, tokens, sequence, before) : NULL;
    if (c->piece) c->longest = c->piece->all->longest;
    return c->rows && (c->piece || !before);
}

mc_tensor *mc_row_field(mc_tape *t, mc_tensor *state, int field, int count)
{
    size_t stride = (size_t)state->shape.dim[1] * sizeof(int32_t);
    return mc_tape_view(t, state, MC_SHAPE(count), (size_t)field * stride);
}

bool mc_kv_cache_begin_rows(mc_kv_cache *c, mc_tape *t, const mc_lengths *tokens, mc_tensor *state)
{
    if (!evaluates(t, tokens)) return false;
    int count = tokens->count;
    if (tokens->longest > 1 || tokens->total != count || state->shape.dim[1] < count)
        return !mc_fail(mc_tape_context(t), MC_ERR_STATE,
                        "key-value cache: %lld tokens of %d sequences, expected one each of up to "
                        "%lld",
                        (long long)tokens->total, count, (long long)state->shape.dim[1]);
    c->tokens = tokens;
    c->longest = c->pages->longest;
    c->rows = NULL;
    c->piece = NULL;
    c->lengths = mc_row_field(t, state, MC_ROW_LENGTH, count);
    c->firsts = mc_row_field(t, state, MC_ROW_FIRST, count);
    return c->lengths && c->firsts;
}

void mc_kv_cache_end(mc_kv_cache *c)
{
    c->tokens = NULL;
    c->piece = NULL;
    c->rows = c->lengths = c->firsts = NULL;
}

void mc_kv_cache_keep_bias(mc_kv_cache *c, const mc_tensor *bias)
{
    c->position_bias = bias ? mc_tensor_new(c->ctx, MC_F32, bias->shape) : NULL;
    if (c->position_bias) mc_disown(&c->position_bias->owned); /* it goes with the cache */
    mc_tensor_copy(c->position_bias, bias);
}

/* ---- attention ------------------------------------------------------------------------------- */

static const char op[] = "attention over a cache";

/* Of distances up to the longest sequence; mc_sdpa has checked heads and the rest of it. */
static bool check_position_bias(const mc_kv_cache *c, mc_tape *t, const mc_sdpa_options *o)
{
    const mc_tensor *bias = o->position_bias;
    if (!bias) return true;
    if (!mc_op_ready(t, op, bias) || !mc_op_same_dtype(t, op, "position bias", bias, MC_F32))
        return false;
    if (bias->shape.ndim == 2 && bias->shape.dim[0] == o->heads && bias->shape.dim[1] % 2 == 1 &&
        bias->shape.dim[1] >= 2 * c->longest - 1)
        return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                    "%s: position bias %s, expected (%d, 2 * L - 1) with L of %lld or more", op,
                    MC_SHAPE_TEXT(bias->shape), o->heads, (long long)c->longest);
}

int mc_kv_head_dim(mc_tape *t, const char *name, const mc_kv_shape *shape, const mc_tensor *x,
                   const mc_sdpa_options *o)
{
    int heads = o->key_heads ? o->key_heads : o->heads;
    if (heads > 0 && o->heads % heads == 0 && shape->width % heads == 0)
        return (int)(shape->width / heads);
    mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
            "%s: %s with %d heads and %d of the keys, whose %lld columns they don't divide", name,
            MC_SHAPE_TEXT(x->shape), o->heads, heads, (long long)shape->width);
    return 0;
}

mc_cached_attention mc_kv_attention(const mc_sdpa_options *o, const mc_kv_pages *pages,
                                    int head_dim)
{
    return (mc_cached_attention){.heads = o->heads,
                                 .key_heads = o->key_heads,
                                 .head_dim = head_dim,
                                 .scale = o->scale != 0 ? o->scale : 1.0f / sqrtf((float)head_dim),
                                 .pages = mc_kv_pages_table(pages),
                                 .page_shift = mc_kv_pages_shift(pages)};
}

/* One call: qkv, and what comes of its options. */
typedef struct kv_call {
    mc_tensor *qkv;
    const mc_sdpa_options *o;
    int head_dim;
    int64_t queries, width; /* columns of the queries, and of the keys and the values each */
    mc_matrix keys, values; /* the layer's in the cache */
} kv_call;

static bool check_call(const mc_kv_cache *c, mc_tape *t, kv_call *call)
{
    const mc_tensor *qkv = call->qkv;
    if (!mc_op_ready(t, op, qkv) || !mc_op_same_dtype(t, op, "qkv", qkv, c->shape.dtype))
        return false;
    call->head_dim = mc_kv_head_dim(t, op, &c->shape, qkv, call->o);
    call->queries = (int64_t)call->o->heads * call->head_dim;
    call->width = c->shape.width;
    mc_shape expected = MC_SHAPE(c->tokens->total, call->queries + 2 * call->width);
    return call->head_dim && mc_op_shape(t, op, "qkv", qkv, expected) &&
           check_position_bias(c, t, call->o);
}

/* The columns of q, k or v in a matrix like qkv. */
static mc_matrix part_of(const kv_call *call, const mc_tensor *qkv, int number)
{
    mc_matrix x = mc_matrix_of(qkv);
    int64_t at = number ? call->queries + (number - 1) * call->width : 0;
    x.data = (char *)x.data + (size_t)at * mc_dtype_size(qkv->dtype);
    return x;
}

static mc_tensor *attend_piece(mc_tape *t, mc_kv_cache *c, const kv_call *call,
                               const mc_sdpa_options *o)
{
    const mc_kv_piece *p = c->piece;
    int64_t width = call->width, rows = p->all->total;
    mc_shape shape = MC_SHAPE(rows, call->queries + 2 * width);
    mc_tensor *all = mc_tape_tensor(t, call->qkv->dtype, shape, NULL);
    if (!all || !(all = mc_with_lengths(t, all, p->all))) return NULL;
    const int32_t *from = mc_tensor_data(p->rows);
    MC_KERNEL(t, op, gather_rows, rows, call->queries, mc_matrix_of(call->qkv),
              mc_tensor_data(p->queries), part_of(call, all, 0));
    MC_KERNEL(t, op, gather_rows, rows, width, call->keys, from, part_of(call, all, 1));
    MC_KERNEL(t, op, gather_rows, rows, width, call->values, from, part_of(call, all, 2));
    mc_tensor *y = mc_sdpa(t, all, o);
    y = y ? mc_gather_rows(t, y, p->of_new, c->tokens->total) : NULL;
    return y ? mc_with_lengths(t, y, c->tokens) : NULL;
}

/* Prompts, which are seen from their first token on. */
static mc_tensor *attend_prompts(mc_tape *t, mc_kv_cache *c, const kv_call *call)
{
    int64_t rows = c->tokens->total;
    const int32_t *to = mc_tensor_data(c->rows);
    MC_KERNEL(t, op, scatter_rows, rows, call->width, part_of(call, call->qkv, 1), to, call->keys);
    MC_KERNEL(t, op, scatter_rows, rows, call->width, part_of(call, call->qkv, 2), to,
              call->values);
    const mc_sdpa_options o = {.heads = call->o->heads,
                               .key_heads = call->o->key_heads,
                               .scale = call->o->scale,
                               .causal = !call->o->marks,
                               .window_left = call->o->window_left,
                               .position_bias = call->o->position_bias,
                               .marks = call->o->marks};
    return c->piece ? attend_piece(t, c, call, &o) : mc_sdpa(t, call->qkv, &o);
}

static mc_tensor *attend_rows(mc_tape *t, mc_kv_cache *c, const kv_call *call)
{
    const mc_tensor *qkv = call->qkv, *bias = call->o->position_bias;
    mc_shape out = MC_SHAPE(c->tokens->total, call->queries);
    mc_tensor *y = mc_tape_tensor(t, qkv->dtype, out, qkv);
    if (!y) return NULL;
    mc_cached_attention shape = mc_kv_attention(call->o, c->pages, call->head_dim);
    shape.sequences = c->tokens->count;
    shape.lengths = mc_tensor_data(c->lengths);
    shape.first = mc_tensor_data(c->firsts);
    shape.longest = c->longest;
    shape.window_left = call->o->window_left;
    shape.new_k = part_of(call, qkv, 1);
    shape.new_v = part_of(call, qkv, 2);
    shape.position_bias = mc_tensor_data(bias);
    if (bias) shape.position_limit = (bias->shape.dim[1] + 1) / 2;
    MC_KERNEL(t, op, attention_cached, &shape, part_of(call, qkv, 0), call->keys, call->values,
              mc_matrix_of(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

static mc_tensor *attend(mc_tape *t, void *cache, int layer, mc_tensor *qkv,
                         const mc_sdpa_options *o)
{
    mc_kv_cache *c = cache;
    kv_call call = {.qkv = qkv, .o = o};
    if (!check_call(c, t, &call)) return NULL;
    call.keys = (mc_matrix){c->k[layer], qkv->dtype, c->shape.width};
    call.values = (mc_matrix){c->v[layer], qkv->dtype, c->shape.width};
    return c->rows ? attend_prompts(t, c, &call) : attend_rows(t, c, &call);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Of the keys, or the values, of one layer. */
static size_t bytes_of(const mc_kv_cache *c)
{
    return (size_t)(mc_kv_pages_rows(c->pages) * c->shape.width) * mc_dtype_size(c->shape.dtype);
}

static bool fill(mc_kv_cache *c)
{
    mc_device *device = c->ctx->device;
    c->k = mc_calloc((size_t)c->shape.layers + 1, sizeof *c->k);
    c->v = mc_calloc((size_t)c->shape.layers + 1, sizeof *c->v);
    bool good = c->k && c->v;
    for (int i = 0; good && i < c->shape.layers; i++)
        good = (c->k[i] = device->alloc(device, bytes_of(c))) &&
               (c->v[i] = device->alloc(device, bytes_of(c)));
    return good;
}

mc_kv_cache *mc_kv_cache_new(mc_context *ctx, mc_kv_shape shape, mc_kv_pages *pages)
{
    mc_kv_cache *c = mc_failed(ctx) || !pages ? NULL : mc_calloc(1, sizeof *c);
    if (!c) {
        if (pages) mc_fail_nomem(ctx, "a cache");
        mc_kv_pages_free(pages);
        return NULL;
    }
    *c = (mc_kv_cache){.ctx = ctx, .shape = shape, .pages = pages};
    c->decode = (mc_decode){c, attend, NULL};
    if (fill(c)) return c;
    mc_fail(ctx, MC_ERR_NOMEM, "out of memory for the keys and values of %lld tokens (%zu bytes)",
            (long long)mc_kv_pages_rows(pages), mc_kv_bytes(&shape, mc_kv_pages_rows(pages)));
    mc_kv_cache_free(c);
    return NULL;
}

void mc_kv_cache_free(mc_kv_cache *c)
{
    if (!c) return;
    mc_device *device = c->ctx->device;
    for (int i = 0; c->k && c->v && i < c->shape.layers; i++) {
        device->free(device, c->k[i], bytes_of(c));
        device->free(device, c->v[i], bytes_of(c));
    }
    mc_tensor_free(c->position_bias);
    mc_kv_pages_free(c->pages);
    mc_free(c->k);
    mc_free(c->v);
    mc_free(c);
}
