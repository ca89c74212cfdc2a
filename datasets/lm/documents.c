/* Windows divided at documents. */
#include "datasets/lm/loader_internal.h"

/* A window while it is divided. */
typedef struct division {
    int length, begin; /* of the window; of the piece that has not ended yet */
    int32_t *labels, *lengths;
    int *count;
} division;

/* A document begins at token `at` of the window, or at `length`: right after it. */
static void divide_at(division *d, int at)
{
    d->labels[at - 1] = MC_LM_IGNORE;
    if (at == d->length) return;
    d->lengths[(*d->count)++] = at - d->begin;
    d->begin = at;
}

/* The first document that begins after a token, or the number of documents. */
static mc_status find_document(mc_error *err, const mc_token_shard *shard, int64_t token,
                               int64_t *document)
{
    int64_t low = 0, high = shard->documents, begin; /* in [low, high] */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        mc_status status = mc_token_shard_document(err, shard, middle, &begin);
        if (status) return status;
        if (begin > token)
            high = middle;
        else
            low = middle + 1;
    }
    *document = low;
    return MC_OK;
}

static mc_status divide_by_index(mc_error *err, const mc_token_shard *shard, int64_t first,
                                 division *d)
{
    int64_t i, begin, before = first;
    mc_status status = find_document(err, shard, first, &i);
    for (; !status && i < shard->documents; i++) {
        status = mc_token_shard_document(err, shard, i, &begin);
        if (status || begin > first + d->length) break;
        if (begin > before) divide_at(d, (int)(begin - first)); /* others are empty */
        before = begin;
    }
    return status;
}

mc_status mc_lm_divide(mc_error *err, const mc_token_shard *shard, mc_lm_border border,
                       int64_t first, int length, const int32_t *ids, int32_t *labels,
                       int32_t *lengths, int *count)
{
    division d = {.length = length, .labels = labels, .lengths = lengths, .count = count};
    mc_status status = MC_OK;
    if (shard->documents >= 0) status = divide_by_index(err, shard, first, &d);
    for (int at = 1; shard->documents < 0 && at <= length; at++)
        if ((border.ends ? ids : labels)[at - 1] == border.token) divide_at(&d, at);
    lengths[(*count)++] = length - d.begin;
    return status;
}
