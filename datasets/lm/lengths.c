/* The lengths of pieces, on the device: for each batch of a step, and each of few numbers of pieces
 * that a step has room for, lengths of the context. */
#include <string.h>
#include "core/base/context_internal.h"
#include "core/tensor/tensor_internal.h"
#include "datasets/lm.h"
#include "datasets/token_files.h"

enum { SHAPES = 32 };

typedef struct batch_lengths {
    int32_t *length; /* (batch_size * seq_length), as set last */
    int count;
    int most;                   /* pieces of the rank that has most */
    mc_lengths *shapes[SHAPES]; /* made when they are first needed */
} batch_lengths;

struct mc_lm_lengths {
    mc_owned owned;
    mc_context *ctx;
    int batch_count, batch_size, seq_length;
    int shape; /* written last */
    batch_lengths *batches;
};

static void free_lengths(void *object)
{
    mc_lm_lengths *l = object;
    for (int i = 0; l->batches && i < l->batch_count; i++) {
        for (int k = 0; k < SHAPES; k++) mc_lengths_free(l->batches[i].shapes[k]);
        mc_free(l->batches[i].length);
    }
    mc_free(l->batches);
    mc_free(l);
}

void mc_lm_lengths_free(mc_lm_lengths *l)
{
    if (!l) return;
    mc_disown(&l->owned);
    free_lengths(l);
}

/* Pieces that a shape has room for: twice as many as the one before, at most one a token. */
static int room_of(const mc_lm_lengths *l, int shape)
{
    int64_t room = (int64_t)l->batch_size << shape, most = (int64_t)l->batch_size * l->seq_length;
    return (int)(room < most ? room : most);
}

static void set_whole(const mc_lm_lengths *l, batch_lengths *b, int windows)
{
    b->count = b->most = windows;
    for (int i = 0; i < windows; i++) b->length[i] = l->seq_length;
}

static bool make_batches(mc_lm_lengths *l)
{
    size_t tokens = (size_t)l->batch_size * (size_t)l->seq_length;
    l->batches = mc_calloc((size_t)l->batch_count, sizeof *l->batches);
    for (int i = 0; l->batches && i < l->batch_count; i++) {
        batch_lengths *b = &l->batches[i];
        b->length = mc_malloc(tokens * sizeof *b->length);
        if (!b->length) return false;
        set_whole(l, b, l->batch_size);
    }
    return l->batches;
}

mc_lm_lengths *mc_lm_lengths_new(mc_context *ctx, int batches, int batch_size, int seq_length)
{
    if (mc_failed(ctx)) return NULL;
    if (batches < 1 || batch_size < 1 || seq_length < 1 || seq_length > INT32_MAX / batch_size) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "lengths of %d batches of %d windows of %d tokens: expected 1 or more of each, and "
                "at most %d tokens a batch",
                batches, batch_size, seq_length, INT32_MAX);
        return NULL;
    }
    mc_lm_lengths *l = mc_new_owned(ctx, sizeof *l, "the lengths of pieces", free_lengths);
    if (!l) return NULL;
    l->ctx = ctx;
    l->batch_count = batches;
    l->batch_size = batch_size;
    l->seq_length = seq_length;
    if (make_batches(l)) {
        mc_lm_lengths_write(l);
        if (!mc_failed(ctx)) return l;
    } else {
        mc_fail_nomem(ctx, "the lengths of pieces");
    }
    mc_lm_lengths_free(l);
    return NULL;
}

mc_status mc_lm_lengths_set(mc_lm_lengths *l, int i, const mc_lm_batch *batch)
{
    if (!l) return MC_ERR_ARGUMENT;
    if (mc_failed(l->ctx) || !mc_given(l->ctx, batch)) return mc_error_status(l->ctx);
    if (i < 0 || i >= l->batch_count || batch->batch_size > l->batch_size ||
        batch->seq_length != l->seq_length)
        return mc_fail(l->ctx, MC_ERR_ARGUMENT,
                       "lengths of pieces: batch %d of %d windows of %d tokens, there is room for "
                       "%d of %d windows of %d",
                       i, batch->batch_size, batch->seq_length, l->batch_count, l->batch_size,
                       l->seq_length);
    batch_lengths *b = &l->batches[i];
    set_whole(l, b, batch->batch_size);
    if (!batch->lengths) return MC_OK;
    memcpy(b->length, batch->lengths, (size_t)batch->pieces * sizeof *b->length);
    b->count = batch->pieces;
    b->most = batch->most_pieces;
    return MC_OK;
}

int mc_lm_lengths_write(mc_lm_lengths *l)
{
    if (!l || mc_failed(l->ctx)) return 0;
    int most = 0, shape = 0;
    for (int i = 0; i < l->batch_count; i++)
        if (l->batches[i].most > most) most = l->batches[i].most;
    while (room_of(l, shape) < most) shape++;
    int64_t tokens = (int64_t)l->batch_size * l->seq_length;
    for (int i = 0; i < l->batch_count; i++) {
        batch_lengths *b = &l->batches[i];
        mc_lengths **to = &b->shapes[shape];
        if (!*to) {
            *to = mc_lengths_new(l->ctx, room_of(l, shape), tokens);
            if (*to) mc_lengths_disown(*to); /* it goes with this */
        }
        if (*to) mc_lengths_write(*to, b->length, b->count, tokens, l->seq_length);
    }
    if (!mc_failed(l->ctx)) l->shape = shape;
    return l->shape;
}

const mc_lengths *mc_lm_lengths_get(const mc_lm_lengths *l, int i)
{
    return l && i >= 0 && i < l->batch_count ? l->batches[i].shapes[l->shape] : NULL;
}
