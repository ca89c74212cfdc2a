#include "core/nn/kv_cache_internal.h"

#include <math.h>
#include "core/base/memory_internal.h"
#include "core/ops/ops_internal.h"

static size_t bytes_of(const mc_kv_shape *s)
{
    return (size_t)(s->sequences * s->capacity * s->width) * mc_dtype_size(s->dtype);
}

mc_kv_cache *mc_kv_cache_new(mc_context *ctx, mc_kv_shape shape)
{
    if (mc_failed(ctx)) return NULL;
    mc_device *device = ctx->device;
    mc_kv_cache *c = mc_calloc(1, sizeof *c);
    if (c) {
        c->ctx = ctx;
        c->shape = shape;
        c->spread = 1;
        c->length = mc_calloc((size_t)shape.sequences + 1, sizeof *c->length);
        c->k = mc_calloc((size_t)shape.layers + 1, sizeof *c->k);
        c->v = mc_calloc((size_t)shape.layers + 1, sizeof *c->v);
    }
    bool good = c && c->length && c->k && c->v;
    for (int i = 0; good && i < shape.layers; i++)
        good = (c->k[i] = device->alloc(device, bytes_of(&shape))) &&
               (c->v[i] = device->alloc(device, bytes_of(&shape)));
    if (good) return c;
    mc_fail(ctx, MC_ERR_NOMEM,
            "out of memory for the keys and values of %d sequences of %lld tokens (%zu bytes)",
            shape.sequences, (long long)shape.capacity,
            bytes_of(&shape) * 2 * (size_t)shape.layers);
    mc_kv_cache_free(c);
    return NULL;
}

void mc_kv_cache_free(mc_kv_cache *c)
{
    if (!c) return;
    mc_device *device = c->ctx->device;
    for (int i = 0; c->k && c->v && i < c->shape.layers; i++) {
        device->free(device, c->k[i], bytes_of(&c->shape));
        device->free(device, c->v[i], bytes_of(&c->shape));
    }
    mc_tensor_free(c->position_bias);
    mc_free(c->length);
    mc_free(c->k);
    mc_free(c->v);
    mc_free(c);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static bool check_step(const mc_kv_cache *c, mc_tape *t, const mc_lengths *tokens)
{
    mc_context *ctx = mc_tape_context(t);
    bool fits = tokens->count <= c->shape.sequences && (!c->used || tokens->count == c->used) &&
                tokens->total == tokens->capacity;
    if (!fits || mc_tape_is_training(t))
        return !mc_fail(ctx, MC_ERR_STATE, "key-value cache: %d sequences, it holds %d of %d%s",
                        tokens->count, c->used, c->shape.sequences,
                        mc_tape_is_training(t) ? ", on a training tape" : "");
    for (int i = 0; i < tokens->count; i++) {
        int32_t before = c->used ? c->length[i] : 0, n = tokens->length[i];
        if (before + n > c->shape.capacity || (c->used && n != 1))
            return !mc_fail(ctx, MC_ERR_STATE,
                            "key-value cache: %d tokens for sequence %d, which has %d of %lld", n,
                            i, before, (long long)c->shape.capacity);
    }
    return true;
}

bool mc_kv_cache_begin(mc_kv_cache *c, mc_tape *t, const mc_lengths *tokens)
{
    if (!t || mc_failed(mc_tape_context(t)) || !tokens || !check_step(c, t, tokens)) return false;
    int32_t *rows = mc_tape_alloc(t, ((size_t)tokens->total + 1) * sizeof *rows);
    int32_t *lengths = mc_tape_alloc(t, ((size_t)tokens->count + 1) * sizeof *lengths);
    if (!rows || !lengths) return false;
    c->first = c->used == 0;
    c->longest = 0;
    for (int i = 0; i < tokens->count; i++) {
        int32_t before = c->first ? 0 : c->length[i];
        for (int32_t k = 0; k < tokens->length[i]; k++)
            rows[tokens->offset[i] + k] = (int32_t)(i * c->spread * c->shape.capacity + before + k);
        lengths[i] = before + tokens->length[i];
        if (lengths[i] > c->longest) c->longest = lengths[i];
    }
    c->tokens = tokens;
    c->firsts = NULL;
    c->rows = mc_tape_input(t, MC_I32, MC_SHAPE(tokens->total), rows, false);
    c->lengths = mc_tape_input(t, MC_I32, MC_SHAPE(tokens->count), lengths, false);
    return c->rows && c->lengths;
}

bool mc_kv_cache_begin_joining(mc_kv_cache *c, mc_tape *t, const mc_lengths *tokens,
                               const int *sequence)
{
    if (!t || mc_failed(mc_tape_context(t)) || !tokens) return false;
    int32_t *rows = mc_tape_alloc(t, ((size_t)tokens->total + 1) * sizeof *rows);
    if (!rows) return false;
    for (int i = 0; i < tokens->count; i++)
        for (int32_t k = 0; k < tokens->length[i]; k++)
            rows[tokens->offset[i] + k] = mc_kv_pages_row(c->pages, sequence[i], k);
    c->first = true;
    c->longest = tokens->longest;
    c->tokens = tokens;
    c->firsts = c->lengths = NULL;
    c->rows = mc_tape_input(t, MC_I32, MC_SHAPE(tokens->total), rows, false);
    return c->rows;
}

mc_tensor *mc_row_field(mc_tape *t, mc_tensor *state, int field, int count)
{
    size_t stride = (size_t)state->shape.dim[1] * sizeof(int32_t);
    return mc_tape_view(t, state, MC_SHAPE(count), (size_t)field * stride);
}

bool mc_kv_cache_begin_rows(mc_kv_cache *c, mc_tape *t, const mc_lengths *tokens, mc_tensor *state)
{
    if (!t || mc_failed(mc_tape_context(t)) || !tokens) return false;
    int count = tokens->count;
    bool fits = c->used && (c->pages || count <= c->shape.sequences) && tokens->longest <= 1 &&
                tokens->total == count && state->shape.dim[1] >= count;
    if (!fits || mc_tape_is_training(t))
        return !mc_fail(mc_tape_context(t), MC_ERR_STATE,
                        "key-value cache: %lld tokens of %d sequences, expected one each of up to "
                        "%d that have begun",
                        (long long)tokens->total, count, c->shape.sequences);
    c->first = false;
    c->tokens = tokens;
    c->longest = mc_kv_cache_longest(c);
    c->rows = NULL;
    c->lengths = mc_row_field(t, state, MC_ROW_LENGTH, count);
    c->firsts = mc_row_field(t, state, MC_ROW_FIRST, count);
    return c->lengths && c->firsts;
}

void mc_kv_cache_end(mc_kv_cache *c)
{
    for (int i = 0; i < c->tokens->count && !c->firsts && !c->pages; i++)
        c->length[i] = (c->first ? 0 : c->length[i]) + c->tokens->length[i];
    c->used = c->tokens->count;
    c->tokens = NULL;
    c->rows = c->lengths = c->firsts = NULL;
}

void mc_kv_cache_keep_bias(mc_kv_cache *c, const mc_tensor *bias)
{
    c->position_bias = bias ? mc_tensor_new(c->ctx, MC_F32, bias->shape) : NULL;
    if (c->position_bias) mc_disown(&c->position_bias->owned); /* it goes with the cache */
    mc_tensor_copy(c->position_bias, bias);
}

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

static bool check_call(const mc_kv_cache *c, mc_tape *t, const mc_tensor *qkv,
                       const mc_sdpa_options *o)
{
    int64_t width = c->shape.width;
    if (!mc_op_ready(t, op, qkv) || !mc_op_same_dtype(t, op, "qkv", qkv, c->shape.dtype) ||
        !mc_op_shape(t, op, "qkv", qkv, MC_SHAPE(c->tokens->total, 3 * width)))
        return false;
    if (o->heads < 1 || width % o->heads)
        return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                        "%s: qkv %s, expected 3 * %d heads * head_dim columns", op,
                        MC_SHAPE_TEXT(qkv->shape), o->heads);
    return check_position_bias(c, t, o);
}

mc_tensor *mc_kv_attention(mc_tape *t, mc_kv_cache *c, int layer, mc_tensor *qkv,
                           const mc_sdpa_options *o)
{
    if (!check_call(c, t, qkv, o)) return NULL;
    int64_t width = c->shape.width, rows = c->tokens->total;
    size_t third = (size_t)width * mc_dtype_size(qkv->dtype);
    mc_matrix q = mc_matrix_of(qkv), k = q, v = q;
    mc_matrix keys = {c->k[layer], qkv->dtype, width}, values = {c->v[layer], qkv->dtype, width};
    k.data = (char *)q.data + third;
    v.data = (char *)q.data + 2 * third;
    if (c->first) {
        MC_KERNEL(t, op, scatter_rows, rows, width, k, mc_tensor_data(c->rows), keys);
        MC_KERNEL(t, op, scatter_rows, rows, width, v, mc_tensor_data(c->rows), values);
        return mc_sdpa(t, qkv,
                       &(mc_sdpa_options){.heads = o->heads,
                                          .scale = o->scale,
                                          .causal = !o->marks,
                                          .position_bias = o->position_bias,
                                          .marks = o->marks});
    }
    mc_tensor *y = mc_tape_tensor(t, qkv->dtype, MC_SHAPE(rows, width), qkv);
    if (!y) return NULL;
    int head_dim = (int)(width / o->heads);
    mc_cached_attention shape = {.sequences = c->tokens->count,
                                 .heads = o->heads,
                                 .head_dim = head_dim,
                                 .scale = o->scale != 0 ? o->scale : 1.0f / sqrtf((float)head_dim),
                                 .lengths = mc_tensor_data(c->lengths),
                                 .first = mc_tensor_data(c->firsts),
                                 .capacity = c->shape.capacity,
                                 .pages = mc_tensor_data(c->pages ? c->pages->table : c->table),
                                 .page_shift = c->pages ? c->pages->shift : 0,
                                 .longest = c->longest,
                                 .new_k = k,
                                 .new_v = v,
                                 .position_bias = mc_tensor_data(o->position_bias)};
    if (o->position_bias) shape.position_limit = (o->position_bias->shape.dim[1] + 1) / 2;
    MC_KERNEL(t, op, attention_cached, &shape, q, keys, values, mc_matrix_of(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
