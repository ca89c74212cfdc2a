#include <string.h>
#include "datasets/lm/loader_internal.h"
#include "datasets/order_internal.h"

enum { FEISTEL_ROUNDS = 6, SAMPLES = 16, SAMPLE_BYTES = 256 };

bool mc_lm_windows_init(mc_lm_windows *w, mc_token_file *file, int length)
{
    *w = (mc_lm_windows){.file = file, .length = length};
    mc_token_file_ref(file);
    w->first = mc_malloc(file->shard_count * sizeof *w->first);
    if (!w->first) {
        mc_fail_nomem(file->ctx, "a loader of tokens");
        return false;
    }
    for (size_t s = 0; s < file->shard_count; s++) {
        w->first[s] = w->count;
        w->count += (file->shards[s].count - 1) / length;
    }
    return true;
}

void mc_lm_windows_release(mc_lm_windows *w)
{
    mc_free(w->first);
    mc_token_file_unref(w->file);
    *w = (mc_lm_windows){0};
}

/* The shard is the last one that begins at or before the window and has any. */
const mc_token_shard *mc_lm_windows_find(const mc_lm_windows *w, int64_t window, int64_t *first)
{
    size_t low = 0, high = w->file->shard_count; /* in [low, high) */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (w->first[middle] <= window)
            low = middle;
        else
            high = middle;
    }
    *first = (window - w->first[low]) * w->length;
    return &w->file->shards[low];
}

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

/* ---- the fingerprint ---- */

/* Bytes [at, at + size) of a shard, which are whole tokens where a function gives them. */
static const uint8_t *sample_at(const mc_token_file *file, const mc_token_shard *shard, size_t at,
                                size_t size, int32_t room[SAMPLE_BYTES / 4])
{
    if (shard->data) return shard->data + at;
    memset(room, 0, SAMPLE_BYTES);
    mc_token_shard_read(&file->ctx->error, shard, (int64_t)at / 4, (int64_t)size / 4,
                        (int64_t)INT32_MAX + 1, room);
    return (const uint8_t *)room;
}

/* The first byte of sample k: evenly from the first byte to the last. */
static size_t sample_place(size_t bytes, size_t size, size_t k)
{
    return k == SAMPLES - 1 ? bytes - size : (bytes - size) / (SAMPLES - 1) * k;
}

static size_t bytes_of(const mc_token_shard *shard)
{
    return (size_t)shard->count * mc_token_width(shard->type);
}

static size_t sample_size(const mc_token_shard *shard)
{
    return bytes_of(shard) < SAMPLE_BYTES ? bytes_of(shard) : SAMPLE_BYTES;
}

/* Has the samples of all shards read at the same time, not one after the other. */
static void need_samples(const mc_token_file *file)
{
    for (size_t s = 0; s < file->shard_count; s++) {
        const mc_token_shard *shard = &file->shards[s];
        size_t size = sample_size(shard);
        mc_token_shard_advise(shard, true);
        for (size_t k = 0; k < SAMPLES && shard->data; k++)
            mc_token_need(shard->data + sample_place(bytes_of(shard), size, k), size);
    }
}

uint64_t mc_token_file_fingerprint(const mc_token_file *file)
{
    uint64_t hash = mc_order_mix((uint64_t)file->shard_count);
    int32_t room[SAMPLE_BYTES / 4];
    need_samples(file);
    for (size_t s = 0; s < file->shard_count && !mc_failed(file->ctx); s++) {
        const mc_token_shard *shard = &file->shards[s];
        size_t bytes = bytes_of(shard), size = sample_size(shard);
        hash = mc_order_mix(hash + (uint64_t)shard->count);
        hash = mc_order_mix(hash + mc_token_width(shard->type));
        for (size_t k = 0; k < SAMPLES; k++) {
            size_t at = sample_place(bytes, size, k);
            const uint8_t *sample = sample_at(file, shard, at, size, room);
            for (size_t i = 0; i < size; i++) hash = (hash ^ sample[i]) * 0x100000001B3u;
            hash = mc_order_mix(hash);
        }
        mc_token_shard_advise(shard, false);
    }
    return hash;
}
