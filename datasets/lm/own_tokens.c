/* Tokens of a program's own, as a token file of one shard. */
#include <inttypes.h>
#include <string.h>
#include "datasets/lm/token_file_internal.h"

/* The sums of `counts` before each, and all; -1 where one is negative or they are too many. */
static int64_t add_up(const int64_t *counts, int64_t count, int64_t *sums)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (sums) sums[i] = sum;
        if (counts[i] < 0 || counts[i] > INT64_MAX / 16 - sum) return -1;
        sum += counts[i];
    }
    if (sums) sums[count] = sum;
    return sum;
}

static bool refuse(mc_context *ctx, const char *name, const char *what)
{
    mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %s", name, what);
    return false;
}

static bool check(mc_context *ctx, const char *name, const mc_token_source *s)
{
    if (!s->read) return refuse(ctx, name, "no function that gives the tokens");
    if (s->count < 1) return refuse(ctx, name, "no tokens");
    if (!s->documents && !s->document_count) return true;
    if (!s->documents || s->document_count < 0)
        return refuse(ctx, name, "a number of documents, but not their tokens");
    int64_t sum = add_up(s->documents, s->document_count, NULL);
    if (sum == s->count) return true;
    if (sum < 0) return refuse(ctx, name, "a document has less than no tokens, or too many");
    mc_fail(ctx, MC_ERR_ARGUMENT,
            "%s: the documents have %" PRId64 " tokens, expected the source's %" PRId64, name, sum,
            s->count);
    return false;
}

/* Adds the one shard, whose memory is allocated here and filled by the caller: `own` tokens and
 * `documents` + 1 beginnings where these are not negative. */
static mc_token_file *make_file(mc_context *ctx, const char *name, int64_t own, int64_t documents,
                                mc_token_shard **shard)
{
    mc_token_file *file = mc_token_file_new(ctx);
    if (!file) return NULL;
    mc_token_shard s = {.format = MC_TOKENS_PROGRAM, .type = MC_TOKEN_I32, .documents = documents};
    bool room = mc_token_file_reserve(file);
    s.path = mc_strdup(name);
    if (own >= 0) s.own = mc_malloc((size_t)own * sizeof *s.own);
    if (documents >= 0) s.begins = mc_malloc(((size_t)documents + 1) * sizeof *s.begins);
    if (room && s.path && (s.own || own < 0) && (s.begins || documents < 0)) {
        mc_token_file_add(file, &s);
        *shard = &file->shards[0];
        return file;
    }
    mc_fail_nomem(ctx, "tokens of a program");
    mc_token_shard_release(&s);
    mc_token_file_free(file);
    return NULL;
}

mc_token_file *mc_token_file_from_source(mc_context *ctx, const mc_token_source *source)
{
    static const mc_token_source none = {0};
    if (mc_failed(ctx)) return NULL;
    if (!source) source = &none;
    const char *name = source->name ? source->name : "tokens";
    if (!check(ctx, name, source)) return NULL;
    mc_token_shard *shard;
    int64_t documents = source->documents ? source->document_count : -1;
    mc_token_file *file = make_file(ctx, name, -1, documents, &shard);
    if (!file) return NULL;
    shard->read = source->read;
    shard->user = source->user;
    shard->count = file->count = source->count;
    if (source->documents) add_up(source->documents, documents, shard->begins);
    return file;
}

mc_token_file *mc_token_file_from_arrays(mc_context *ctx, const int32_t *const *documents,
                                         const int64_t *counts, int64_t count)
{
    if (mc_failed(ctx)) return NULL;
    int64_t sum = documents && counts && count > 0 ? add_up(counts, count, NULL) : 0;
    if (sum <= 0) {
        refuse(ctx, "tokens",
               sum ? "a document has less than no tokens, or too many" : "no tokens");
        return NULL;
    }
    mc_token_shard *shard;
    mc_token_file *file = make_file(ctx, "tokens", sum, count, &shard);
    if (!file) return NULL;
    add_up(counts, count, shard->begins);
    for (int64_t i = 0; i < count; i++)
        if (counts[i])
            memcpy(shard->own + shard->begins[i], documents[i],
                   (size_t)counts[i] * sizeof *shard->own);
    shard->data = (const uint8_t *)shard->own;
    shard->count = file->count = sum;
    return file;
}
