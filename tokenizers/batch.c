#include <string.h>
#include "tokenizers/tokenizer_internal.h"

/* Texts that are encoded, of all that there are, for errors. */
typedef struct place {
    size_t first, all;
} place;

static mc_status fail(mc_error *err, mc_status status, const mc_text_span *text, size_t number,
                      place p, const char *what)
{
    if (text->file)
        return mc_error_set(err, status, "%s:%lld: encoding its text: %s", text->file,
                            (long long)text->line, what);
    return mc_error_set(err, status, "encoding text %zu of %zu: %s", p.first + number, p.all, what);
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

static mc_status encode_texts(mc_error *err, const mc_tokenizer *tok, const mc_text_span *texts,
                              const mc_text_span *pairs, size_t count, size_t max_length, place p,
                              mc_batch_encoding *batch)
{
    for (size_t i = 0; i < count; i++) {
        const mc_text_span *pair = pairs ? &pairs[i] : NULL;
        const char *second = pair ? (pair->data ? pair->data : "") : NULL;
        if ((!texts[i].data && texts[i].size) || (pair && !pair->data && pair->size))
            return fail(err, MC_ERR_ARGUMENT, &texts[i], i, p, "it is NULL");
        mc_status status = mc_tokenizer_encode(tok, texts[i].data, texts[i].size, second,
                                               pair ? pair->size : 0, max_length, &batch->one);
        if (status == MC_ERR_ARGUMENT)
            return fail(err, status, &texts[i], i, p,
                        "max_length has no room for the special tokens");
        if (status) return fail(err, status, &texts[i], i, p, mc_status_text(status));
        if (batch->one.count > INT32_MAX)
            return fail(err, MC_ERR_UNSUPPORTED, &texts[i], i, p, "it has 2^31 ids or more");
        if (!append(batch, &batch->one))
            return fail(err, MC_ERR_NOMEM, &texts[i], i, p, "out of memory");
        batch->lengths[i] = (int32_t)batch->one.count;
        if (batch->one.count > batch->longest) batch->longest = batch->one.count;
    }
    return MC_OK;
}

mc_status mc_encode_texts(mc_error *err, const mc_tokenizer *tok, const mc_text_span *texts,
                          const mc_text_span *pairs, size_t count, size_t max_length, size_t first,
                          size_t all, mc_batch_encoding *batch)
{
    batch->count = batch->rows = batch->longest = 0;
    if (count > batch->row_capacity) {
        int32_t *lengths = mc_realloc(batch->lengths, count * sizeof *lengths);
        if (!lengths) return mc_error_set(err, MC_ERR_NOMEM, "out of memory for a batch's lengths");
        batch->lengths = lengths;
        batch->row_capacity = count;
    }
    mc_status status =
        encode_texts(err, tok, texts, pairs, count, max_length, (place){first, all}, batch);
    batch->rows = status ? 0 : count;
    if (status) batch->count = batch->longest = 0;
    return status;
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
    return mc_encode_texts(&tok->ctx->error, tok, texts, pairs, count, max_length, 0, count, batch);
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
