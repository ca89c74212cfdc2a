/* Cross attention over what an encoder has made: see kv_cache_internal.h. Keys and values lie
 * packed as the encoder's rows do. A step's tokens are so many queries of their own: each has the
 * first row and the rows of its input, whichever sequence it belongs to. */
#include "models/generate/kv_cache_internal.h"

#include "core/base/memory_internal.h"
#include "core/ops/ops_internal.h"

static const char op[] = "attention over a memory";

static bool keep(mc_tape *t, void *memory, int layer, mc_tensor *kv)
{
    mc_kv_memory *m = memory;
    if (!mc_op_ready(t, op, kv) || !mc_op_same_dtype(t, op, "kv", kv, m->shape.dtype)) return false;
    int64_t columns = 2 * m->shape.width, rows = mc_tensor_count(m->rows);
    if (mc_tensor_columns(kv) != columns || mc_tensor_rows(kv) < rows)
        return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE, "%s: kv %s, expected (%lld, %lld)", op,
                        MC_SHAPE_TEXT(kv->shape), (long long)rows, (long long)columns);
    return MC_KERNEL(t, op, scatter_rows, rows, columns, mc_matrix_of(kv), mc_tensor_data(m->rows),
                     (mc_matrix){m->kv[layer], kv->dtype, columns});
}

bool mc_kv_memory_begin_prompts(mc_kv_memory *m, mc_tape *t, const mc_lengths *inputs,
                                const int *sequence)
{
    if (!t || mc_failed(mc_tape_context(t)) || !inputs) return false;
    int32_t *rows = mc_tape_alloc(t, ((size_t)inputs->total + 1) * sizeof *rows);
    int32_t *first = mc_tape_alloc(t, ((size_t)inputs->count + 1) * sizeof *first);
    if (!rows || !first) return false;
    for (int i = 0; i < inputs->count; i++) {
        first[i] = mc_kv_pages_first(m->pages, sequence[i]);
        for (int32_t k = 0; k < inputs->length[i]; k++)
            rows[inputs->offset[i] + k] = mc_kv_pages_row(m->pages, sequence[i], k);
    }
    m->longest = inputs->longest;
    m->rows = mc_tape_input(t, MC_I32, MC_SHAPE(inputs->total), rows, false);
    m->first = mc_tape_input(t, MC_I32, MC_SHAPE(inputs->count), first, false);
    m->lengths = mc_tape_input(t, MC_I32, MC_SHAPE(inputs->count), inputs->length, false);
    return m->rows && m->first && m->lengths;
}

bool mc_kv_memory_begin_rows(mc_kv_memory *m, mc_tape *t, const mc_lengths *tokens,
                             mc_tensor *state)
{
    if (!t || mc_failed(mc_tape_context(t)) || !tokens) return false;
    m->longest = m->pages->longest;
    m->first = mc_row_field(t, state, MC_ROW_MEMORY, tokens->count);
    m->lengths = mc_row_field(t, state, MC_ROW_MEMORY_LENGTH, tokens->count);
    return m->first && m->lengths;
}

static mc_tensor *attend(mc_tape *t, void *memory, int layer, mc_tensor *q,
                         const mc_sdpa_options *o)
{
    mc_kv_memory *m = memory;
    int64_t width = m->shape.width, rows = mc_tensor_count(m->first);
    if (!mc_op_ready(t, op, q) || !mc_op_same_dtype(t, op, "q", q, m->shape.dtype)) return NULL;
    int head_dim = mc_kv_head_dim(t, op, &m->shape, q, o);
    if (!head_dim || !mc_op_shape(t, op, "q", q, MC_SHAPE(rows, o->heads * head_dim))) return NULL;
    mc_tensor *y = mc_tape_tensor(t, q->dtype, q->shape, q);
    if (!y) return NULL;
    mc_cached_attention shape = mc_kv_attention(o, m->pages, head_dim);
    shape.sequences = rows;
    shape.lengths = mc_tensor_data(m->lengths);
    shape.first = mc_tensor_data(m->first);
    shape.longest = m->longest;
    mc_matrix k = {m->kv[layer], q->dtype, 2 * width}, v = k;
    v.data = (char *)k.data + (size_t)width * mc_dtype_size(q->dtype);
    MC_KERNEL(t, op, attention_cached, &shape, mc_matrix_of(q), k, v, mc_matrix_of(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t layer_bytes(const mc_kv_memory *m)
{
    return 2 * (size_t)(mc_kv_pages_rows(m->pages) * m->shape.width) *
           mc_dtype_size(m->shape.dtype);
}

static bool fill(mc_kv_memory *m)
{
    mc_device *device = m->ctx->device;
    m->kv = mc_calloc((size_t)m->shape.layers + 1, sizeof *m->kv);
    for (int i = 0; m->kv && i < m->shape.layers; i++)
        if (!(m->kv[i] = device->alloc(device, layer_bytes(m)))) return false;
    return m->kv;
}

mc_kv_memory *mc_kv_memory_new(mc_context *ctx, mc_kv_shape shape, mc_kv_pages *pages)
{
    mc_kv_memory *m = mc_failed(ctx) || !pages ? NULL : mc_calloc(1, sizeof *m);
    if (m) {
        *m = (mc_kv_memory){.ctx = ctx, .shape = shape, .pages = pages};
        m->decode = (mc_decode){m, attend, keep};
        if (fill(m)) return m;
    }
    if (pages)
        mc_fail(ctx, MC_ERR_NOMEM,
                "out of memory for the keys and values of %lld rows of an encoder",
                (long long)mc_kv_pages_rows(pages));
    if (m)
        mc_kv_memory_free(m);
    else
        mc_kv_pages_free(pages);
    return NULL;
}

void mc_kv_memory_free(mc_kv_memory *m)
{
    if (!m) return;
    mc_device *device = m->ctx->device;
    for (int i = 0; m->kv && i < m->shape.layers; i++)
        if (m->kv[i]) device->free(device, m->kv[i], layer_bytes(m));
    mc_kv_pages_free(m->pages);
    mc_free(m->kv);
    mc_free(m);
}
