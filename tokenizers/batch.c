#include <string.h>
#include "tokenizers/tokenizer_internal.h"

static mc_status fail(const mc_tokenizer *tok, mc_status status, size_t number, size_t count,
                      const char *what)
{
    return mc_fail(tok->ctx, status, "encoding text %zu of %zu: %s", number, count, what);
}

/* Appends one encoding to the batch. */
static bool append(mc_batch_encoding *batch, const mc_encoding *one)
{
    size_t wanted = batch->count + one->count;
    if (wanted > batch->capacity) {
        size_t capacity = batch->capacity ? batch->capacity : 512;
        while (capacity < wanted) capacity *= 2;
        int32_t *ids = mc_realloc(batch->ids, capacity * sizeof *ids);
        if (ids) batch->ids = ids;
        uint8_t *type_ids = ids ? mc_realloc(batch->type_ids, capacity) : NULL;
        if (type_ids) batch->type_ids = type_ids;
        if (!type_ids) return false;
        batch->capacity = capacity;
    }
    if (one->count) {
        memcpy(batch->ids + batch->count, one->ids, one->count * sizeof *one->ids);
        memcpy(batch->type_ids + batch->count, one->type_ids, one->count);
    }
    batch->count = wanted;
    return true;
}

static mc_status encode_texts(const mc_tokenizer *tok, const mc_text_span *texts,
                              const mc_text_span *pairs, size_t count, size_t max_length,
                              mc_batch_encoding *batch)
{
    for (size_t i = 0; i < count; i++) {
        const mc_text_span *pair = pairs ? &pairs[i] : NULL;
        const char *second = pair ? (pair->data ? pair->data : "") : NULL;
        if ((!texts[i].data && texts[i].size) || (pair && !pair->data && pair->size))
            return fail(tok, MC_ERR_ARGUMENT, i, count, "it is NULL");
        mc_status status = mc_tokenizer_encode(tok, texts[i].data, texts[i].size, second,
                                               pair ? pair->size : 0, max_length, &batch->one);
        if (status == MC_ERR_ARGUMENT)
            return fail(tok, status, i, count, "max_length has no room for the special tokens");
        if (status) return fail(tok, status, i, count, mc_status_text(status));
        if (batch->one.count > INT32_MAX)
            return fail(tok, MC_ERR_UNSUPPORTED, i, count, "it has 2^31 ids or more");
        if (!append(batch, &batch->one)) return fail(tok, MC_ERR_NOMEM, i, count, "out of memory");
        batch->lengths[i] = (int32_t)batch->one.count;
        if (batch->one.count > batch->longest) batch->longest = batch->one.count;
    }
    return MC_OK;
}

mc_status mc_tokenizer_encode_batch(const mc_tokenizer *tok, const mc_text_span *texts,
                                    const mc_text_span *pairs, size_t count, size_t max_length,
                                    mc_batch_encoding *batch)
{
    if (!tok) return MC_ERR_ARGUMENT;
    if (mc_failed(tok->ctx)) return mc_error_status(tok->ctx);
    if (!batch || (!texts && count))
        return mc_fail(tok->ctx, MC_ERR_ARGUMENT, "encoding %zu texts: %s is NULL", count,
                       batch ? "texts" : "batch");
    batch->count = batch->rows = batch->longest = 0;
    if (count > batch->row_capacity) {
        int32_t *lengths = mc_realloc(batch->lengths, count * sizeof *lengths);
        if (!lengths) return mc_fail_nomem(tok->ctx, "the lengths of a batch");
        batch->lengths = lengths;
        batch->row_capacity = count;
    }
    mc_status status = encode_texts(tok, texts, pairs, count, max_length, batch);
    batch->rows = status ? 0 : count;
    if (status) batch->count = batch->longest = 0;
    return status;
}

void mc_batch_encoding_release(mc_batch_encoding *batch)
{
    if (!batch) return;
    mc_encoding_release(&batch->one);
    mc_free(batch->ids);
    mc_free(batch->type_ids);
    mc_free(batch->lengths);
    *batch = (mc_batch_encoding){0};
}
