#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include "datasets/lm.h"
#include "datasets/lm/loader_internal.h"
#include "datasets/lm/token_file_internal.h"
#include "datasets/order_internal.h"

enum { FEISTEL_ROUNDS = 6, SAMPLES = 16, SAMPLE_BYTES = 256 };

struct mc_lm_loader {
    mc_owned owned;
    mc_context *ctx;
    mc_token_file *file;
    int batch_size, seq_length, world, rank;
    bool shuffle, repeat, keep_last;
    uint64_t seed, fingerprint;
    int64_t limit;         /* tokens are below it */
    int64_t *first_window; /* (shards): windows of the shards before */
    int64_t windows;       /* of an epoch */
    int64_t batch_windows; /* of a batch over all ranks */
    int64_t epoch, window; /* position: windows of the epoch that were delivered, on all ranks */
    mc_lm_batch batch;
    int32_t *ids, *labels; /* (batch_size * seq_length) */
};

/* ---- order ---- */

int64_t mc_lm_permute(uint64_t key, int64_t n, int64_t i)
{
    int half = 1;
    while (half < 31 && (int64_t)1 << 2 * half < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, at = (uint64_t)i;
    do {
        uint64_t left = at >> half, right = at & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t mixed = left ^ (mc_order_mix(key + (round << 32 | right)) & mask);
            left = right;
            right = mixed;
        }
        at = left << half | right;
    } while (at >= (uint64_t)n);
    return (int64_t)at;
}

uint64_t mc_token_file_fingerprint(const mc_token_file *file)
{
    uint64_t hash = mc_order_mix((uint64_t)file->shard_count);
    for (size_t s = 0; s < file->shard_count; s++) {
        const mc_token_shard *shard = &file->shards[s];
        size_t width = mc_token_width(shard->type), bytes = (size_t)shard->count * width;
        size_t size = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
        hash = mc_order_mix(hash + (uint64_t)shard->count);
        hash = mc_order_mix(hash + width);
        for (size_t k = 0; k < SAMPLES; k++) { /* evenly from the first byte to the last */
            const uint8_t *sample = shard->data + (bytes - size) / (SAMPLES - 1) * k;
            if (k == SAMPLES - 1) sample = shard->data + (bytes - size);
            for (size_t i = 0; i < size; i++) hash = (hash ^ sample[i]) * 0x100000001B3u;
            hash = mc_order_mix(hash);
        }
    }
    return hash;
}

/* ---- making and freeing ---- */

static void free_loader(void *object)
{
    mc_lm_loader *l = object;
    mc_free(l->first_window);
    mc_free(l->ids);
    mc_free(l->labels);
    mc_token_file_unref(l->file);
    mc_free(l);
}

void mc_lm_loader_free(mc_lm_loader *l)
{
    if (!l) return;
    mc_disown(&l->owned);
    free_loader(l);
}

static bool in_range(mc_context *ctx, const char *option, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) return true;
    mc_fail(ctx, MC_ERR_ARGUMENT,
            "loader of tokens: %s is %" PRId64 ", expected %" PRId64 " to %" PRId64, option, value,
            low, high);
    return false;
}

static bool check_options(mc_context *ctx, const mc_lm_loader_options *o)
{
    if (o->batch_size == 0 || o->seq_length == 0) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "loader of tokens: option %s is required",
                o->batch_size == 0 ? "batch_size" : "seq_length");
        return false;
    }
    return in_range(ctx, "batch_size", o->batch_size, 1, INT_MAX) &&
           in_range(ctx, "seq_length", o->seq_length, 1, INT_MAX) &&
           in_range(ctx, "batch_size * seq_length", (int64_t)o->batch_size * o->seq_length, 1,
                    INT_MAX) &&
           in_range(ctx, "vocabulary", o->vocabulary, 0, (int64_t)INT32_MAX + 1) &&
           in_range(ctx, "epoch_start", o->epoch_start, 0, INT64_MAX / 2) &&
           in_range(ctx, "world", o->world, 0, 1 << 24) &&
           in_range(ctx, "rank", o->rank, 0, o->world ? o->world - 1 : 0);
}

static void take_options(mc_lm_loader *l, const mc_lm_loader_options *o)
{
    l->batch_size = o->batch_size;
    l->seq_length = o->seq_length;
    l->world = o->world ? o->world : mc_world_size(l->ctx);
    l->rank = o->world ? o->rank : mc_rank(l->ctx);
    l->shuffle = o->shuffle;
    l->repeat = o->repeat;
    l->keep_last = o->keep_last;
    l->seed = o->seed == 0 ? mc_seed(l->ctx) : o->seed == MC_LM_SEED_0 ? 0 : o->seed;
    l->limit = o->vocabulary ? o->vocabulary : (int64_t)INT32_MAX + 1;
    l->epoch = o->epoch_start;
    l->batch_windows = (int64_t)l->batch_size * l->world;
}

static bool make_buffers(mc_lm_loader *l)
{
    size_t tokens = (size_t)l->batch_size * (size_t)l->seq_length;
    l->first_window = mc_malloc(l->file->shard_count * sizeof *l->first_window);
    l->ids = mc_malloc(tokens * sizeof *l->ids);
    l->labels = mc_malloc(tokens * sizeof *l->labels);
    if (l->first_window && l->ids && l->labels) return true;
    mc_fail_nomem(l->ctx, "a loader of tokens");
    return false;
}

static bool count_windows(mc_lm_loader *l)
{
    const mc_token_file *file = l->file;
    for (size_t s = 0; s < file->shard_count; s++) {
        l->first_window[s] = l->windows;
        l->windows += (file->shards[s].count - 1) / l->seq_length;
    }
    if (l->windows >= (l->keep_last ? 1 : l->batch_windows)) return true;
    const char *where = file->shard_count > 1 ? " in all shards" : "";
    if (l->keep_last)
        mc_fail(l->ctx, MC_ERR_ARGUMENT,
                "%s: %" PRId64 " tokens%s are too few for a sequence of %d and a label",
                file->shards[0].path, file->count, where, l->seq_length);
    else
        mc_fail(l->ctx, MC_ERR_ARGUMENT,
                "%s: %" PRId64 " tokens%s are too few for one batch: they make %" PRId64
                " sequences of %d and a label, a batch has %d on each of %d ranks",
                file->shards[0].path, file->count, where, l->windows, l->seq_length, l->batch_size,
                l->world);
    return false;
}

mc_lm_loader *mc_lm_loader_new(mc_token_file *file, const mc_lm_loader_options *options)
{
    if (!file || mc_failed(file->ctx)) return NULL;
    mc_lm_loader_options none = {0};
    if (!options) options = &none;
    mc_context *ctx = file->ctx;
    if (!check_options(ctx, options)) return NULL;
    mc_lm_loader *l = mc_new_owned(ctx, sizeof *l, "a loader of tokens", free_loader);
    if (!l) return NULL;
    l->ctx = ctx;
    l->file = file;
    mc_token_file_ref(file);
    take_options(l, options);
    if (make_buffers(l) && count_windows(l)) {
        l->fingerprint = mc_token_file_fingerprint(file);
        return l;
    }
    mc_lm_loader_free(l);
    return NULL;
}

/* ---- batches ---- */

/* The shard of a window: the last one that begins at or before it and has any. */
static size_t find_shard(const mc_lm_loader *l, int64_t window)
{
    size_t low = 0, high = l->file->shard_count; /* in [low, high) */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (l->first_window[middle] <= window)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Reads window number `i` of the epoch's order into a row of the batch. */
static bool read_window(mc_lm_loader *l, int64_t i, int64_t row)
{
    int64_t window = i, length = l->seq_length;
    if (l->shuffle) window = mc_lm_permute(mc_order_key(l->seed, l->epoch, 0), l->windows, i);
    size_t s = find_shard(l, window);
    const mc_token_shard *shard = &l->file->shards[s];
    int64_t first = (window - l->first_window[s]) * length;
    mc_error *err = &l->ctx->error;
    return mc_token_shard_read(err, shard, first, length, l->limit, l->ids + row * length) ==
               MC_OK &&
           mc_token_shard_read(err, shard, first + 1, length, l->limit, l->labels + row * length) ==
               MC_OK;
}

/* Windows of the next batch over all ranks; 0 at the end of an epoch. */
static int64_t next_windows(const mc_lm_loader *l)
{
    int64_t left = l->windows - l->window;
    if (left >= l->batch_windows) return l->batch_windows;
    return l->keep_last ? left : 0;
}

const mc_lm_batch *mc_lm_loader_next(mc_lm_loader *l)
{
    if (!l || mc_failed(l->ctx)) return NULL;
    if (!next_windows(l)) {
        l->window = 0;
        l->epoch++;
        if (!l->repeat) return NULL;
    }
    int64_t all = next_windows(l);
    int64_t first = all * l->rank / l->world, end = all * (l->rank + 1) / l->world;
    for (int64_t row = 0; row < end - first; row++)
        if (!read_window(l, l->window + first + row, row)) return NULL;
    l->batch = (mc_lm_batch){
        .ids = l->ids,
        .labels = l->labels,
        .batch_size = (int)(end - first),
        .seq_length = l->seq_length,
        .tokens = (end - first) * l->seq_length,
        .all_tokens = all * l->seq_length,
        .epoch = l->epoch,
        .step = l->window / l->batch_windows,
        .first = l->window + first,
    };
    l->window += all;
    return &l->batch;
}

int64_t mc_lm_loader_batches(const mc_lm_loader *l)
{
    if (!l) return 0;
    return l->windows / l->batch_windows + (l->keep_last && l->windows % l->batch_windows != 0);
}

int64_t mc_lm_loader_epoch(const mc_lm_loader *l)
{
    return l ? l->epoch + (l->repeat && !next_windows(l)) : 0;
}

mc_token_file *mc_lm_loader_file(const mc_lm_loader *l) { return l ? l->file : NULL; }

mc_context *mc_lm_loader_context(const mc_lm_loader *l) { return l->ctx; }
int mc_lm_loader_batch_size(const mc_lm_loader *l) { return l->batch_size; }

/* ---- position ---- */

mc_lm_position mc_lm_loader_position(const mc_lm_loader *l)
{
    if (!l) return (mc_lm_position){0};
    return (mc_lm_position){
        .seed = l->seed,
        .epoch = l->epoch,
        .window = l->window,
        .tokens = l->file->count,
        .windows = l->windows,
        .seq_length = l->seq_length,
        .shuffle = l->shuffle,
        .fingerprint = l->fingerprint,
    };
}

static mc_status refuse(mc_lm_loader *l, const char *what, int64_t theirs, int64_t ours)
{
    return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                   "%s: the position to resume from is of other data or options: its %s is %" PRId64
                   ", here it is %" PRId64,
                   l->file->shards[0].path, what, theirs, ours);
}

mc_status mc_lm_loader_seek(mc_lm_loader *l, const mc_lm_position *p)
{
    if (!l) return MC_ERR_ARGUMENT;
    if (mc_failed(l->ctx)) return mc_error_status(l->ctx);
    if (!p) return mc_fail(l->ctx, MC_ERR_ARGUMENT, "loader of tokens: no position to seek");
    if (p->tokens != l->file->count) return refuse(l, "count of tokens", p->tokens, l->file->count);
    if (p->fingerprint != l->fingerprint)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "%s: the position to resume from is of other data: as many tokens, but not "
                       "the same",
                       l->file->shards[0].path);
    if (p->seq_length != l->seq_length)
        return refuse(l, "seq_length", p->seq_length, l->seq_length);
    if (p->windows != l->windows) return refuse(l, "count of sequences", p->windows, l->windows);
    if (p->shuffle != l->shuffle) return refuse(l, "shuffle", p->shuffle, l->shuffle);
    if (p->epoch < 0 || p->epoch > INT64_MAX / 2 || p->window < 0 || p->window > p->windows)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "loader of tokens: window %" PRId64 " of epoch %" PRId64
                       " is no position: an epoch has %" PRId64 " windows",
                       p->window, p->epoch, p->windows);
    l->seed = p->seed;
    l->epoch = p->epoch;
    l->window = p->window;
    return MC_OK;
}
