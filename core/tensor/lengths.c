/* Lengths that are rewritten for each batch. */
#include <string.h>
#include "core/autograd/tape_internal.h"
#include "core/tensor/tensor_internal.h"

typedef struct fixed_lengths {
    mc_owned owned;
    mc_context *ctx;
    mc_lengths lengths;
    int64_t room;  /* for tokens */
    int32_t *host; /* host copy of lengths.fixed */
} fixed_lengths;

static fixed_lengths *fixed_of(mc_lengths *lengths)
{
    return (fixed_lengths *)(void *)((char *)lengths - offsetof(fixed_lengths, lengths));
}

static void free_fixed(void *object)
{
    fixed_lengths *f = object;
    mc_tensor_free(f->lengths.fixed);
    mc_free(f->host);
    mc_free(f);
}

void mc_lengths_free(mc_lengths *lengths)
{
    if (!lengths) return;
    mc_tape_unhook(fixed_of(lengths)->ctx, lengths, "lengths that the tape used have been freed");
    mc_disown(&fixed_of(lengths)->owned);
    free_fixed(fixed_of(lengths));
}

void mc_lengths_disown(mc_lengths *lengths) { mc_disown(&fixed_of(lengths)->owned); }

/* Allocates them on the device and on the host. */
static bool make_room(fixed_lengths *f)
{
    int64_t n = 3 * (int64_t)f->lengths.count + 1 + f->room;
    f->host = mc_calloc((size_t)n, sizeof *f->host);
    if (!f->host) return !mc_fail_nomem(f->ctx, "the lengths of batches");
    f->lengths.length = f->host;
    f->lengths.offset = f->host + f->lengths.count;
    f->lengths.fixed = mc_tensor_new(f->ctx, MC_I32, MC_SHAPE(n));
    if (f->lengths.fixed) mc_disown(&f->lengths.fixed->owned); /* freed with the lengths */
    return f->lengths.fixed;
}

mc_lengths *mc_lengths_new(mc_context *ctx, int count, int64_t capacity)
{
    if (mc_failed(ctx)) return NULL;
    if (count < 0 || capacity < 0 || capacity > INT32_MAX) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "lengths of %d sequences and %lld tokens, expected 0 to %d",
                count, (long long)capacity, INT32_MAX);
        return NULL;
    }
    fixed_lengths *f = mc_new_owned(ctx, sizeof *f, "the lengths of batches", free_fixed);
    if (!f) return NULL;
    f->ctx = ctx;
    f->room = capacity;
    f->lengths.count = count;
    if (make_room(f)) {
        mc_lengths_write(&f->lengths, NULL, 0, capacity, 0);
        return &f->lengths;
    }
    mc_lengths_free(&f->lengths);
    return NULL;
}

static bool check(const fixed_lengths *f, const int32_t *length, int count, int64_t capacity,
                  int32_t longest)
{
    int64_t total = 0;
    if (count < 0 || count > f->lengths.count || capacity < 0 || capacity > f->room)
        return !mc_fail(f->ctx, MC_ERR_ARGUMENT,
                        "lengths of %d sequences and %lld tokens, there is room for %d and %lld",
                        count, (long long)capacity, f->lengths.count, (long long)f->room);
    if (longest < 0 || (count && !length))
        return !mc_fail(f->ctx, MC_ERR_ARGUMENT, "lengths of %d sequences, %d at most: %s", count,
                        longest, longest < 0 ? "negative" : "NULL");
    for (int i = 0; i < count; i++) {
        if (length[i] < 0 || length[i] > longest)
            return !mc_fail(f->ctx, MC_ERR_ARGUMENT, "length %d of sequence %d, expected 0 to %d",
                            length[i], i, longest);
        total += length[i];
    }
    if (total <= capacity) return true;
    return !mc_fail(f->ctx, MC_ERR_ARGUMENT, "lengths of %lld tokens in all, the capacity is %lld",
                    (long long)total, (long long)capacity);
}

mc_status mc_lengths_write(mc_lengths *lengths, const int32_t *length, int count, int64_t capacity,
                           int32_t longest)
{
    fixed_lengths *f = lengths ? fixed_of(lengths) : NULL;
    if (!f) return MC_ERR_ARGUMENT;
    if (mc_failed(f->ctx) || !check(f, length, count, capacity, longest))
        return mc_error_status(f->ctx);
    int all = lengths->count;
    int32_t *offset = f->host + all, *first = offset + all + 1, *position = first + all, at = 0;
    for (int i = 0; i < all; i++) {
        int32_t n = i < count ? length[i] : 0;
        f->host[i] = n;
        offset[i] = at;
        first[i] = n ? at : -1;
        for (int32_t k = 0; k < n; k++) position[at++] = k;
    }
    offset[all] = at;
    memset(position + at, 0, (size_t)(capacity - at) * sizeof *position);
    lengths->total = lengths->capacity = capacity;
    lengths->longest = longest;
    size_t used = mc_lengths_position_at(lengths) + (size_t)capacity * sizeof *position;
    return mc_tensor_write(lengths->fixed, f->host, used);
}
