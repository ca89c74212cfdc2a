/* The keys and values of tokens that a decoder has seen, so that a step of generation costs one
 * token a sequence. Device memory for a fixed number of sequences and tokens each.
 *
 * A step: mc_kv_cache_begin with the tokens to come, the model's forward pass (whose attention
 * layers call mc_kv_attention), mc_kv_cache_end. The first step of a cache takes whole prompts,
 * later ones one token a sequence. Lengths are known on the host then. Steps that follow each
 * other without the host begin with mc_kv_cache_begin_rows instead: where tokens go and what they
 * see stands in device memory. Evaluation tapes only. */
#ifndef MC_NN_KV_CACHE_INTERNAL_H
#define MC_NN_KV_CACHE_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "core/nn/kv_pages_internal.h"
#include "core/nn/layers.h"

/* One field of the rows of choose_internal.h, of the first `count` rows. */
mc_tensor *mc_row_field(mc_tape *t, mc_tensor *state, int field, int count);

typedef struct mc_kv_shape {
    mc_dtype dtype;
    int layers;
    int64_t width;    /* heads * head_dim */
    int sequences;    /* room for so many */
    int64_t capacity; /* tokens of each */
} mc_kv_shape;

typedef struct mc_kv_cache {
    mc_context *ctx;
    mc_kv_shape shape;
    int used;        /* sequences in use: rows 0 .. used */
    int32_t *length; /* (sequences) tokens of each, on the host */
    void **k, **v;   /* (layers): (sequences * capacity, width) each */
    /* The position bias of the model's layers, of all distances in the cache; NULL until the first
     * step has made it, and for models without. */
    mc_tensor *position_bias;
    /* of the step that is being run, on its tape */
    const mc_lengths *tokens; /* that come in */
    mc_tensor *rows;          /* i32 (total): the row of the cache of each token of prompts */
    mc_tensor *lengths;       /* i32 (used): with those tokens */
    mc_tensor *firsts;        /* i32 (used): the first row of each sequence; NULL: i * capacity */
    /* i32: where a sequence's tokens lie that another one has begun: the row of its token i is
     * table[first + i]. NULL: they lie one behind the other. Of steps by rows. */
    const mc_tensor *table;
    int spread; /* of prompts: number i becomes sequence i * spread */
    /* Where sequences join and leave: their pages, whose rows shape.sequences * shape.capacity
     * are. Not the cache's. NULL: number i has the rows from i * capacity on. */
    mc_kv_pages *pages;
    int64_t longest;
    bool first; /* nothing was there before */
} mc_kv_cache;

/* Tokens at most of a sequence. */
static inline int64_t mc_kv_cache_longest(const mc_kv_cache *c)
{
    return c->pages ? c->pages->longest : c->shape.capacity;
}

/* NULL after an error. Freed by mc_kv_cache_free (NULL allowed). */
mc_kv_cache *mc_kv_cache_new(mc_context *ctx, mc_kv_shape shape);
void mc_kv_cache_free(mc_kv_cache *cache);

/* tokens->count sequences (those in use, or if none is yet, so many new ones) get
 * tokens->length[i] tokens each. False after an error: no room, more than one token behind
 * others. */
bool mc_kv_cache_begin(mc_kv_cache *cache, mc_tape *t, const mc_lengths *tokens);
/* The same for one token each of tokens->count sequences, after the first step: `state` holds the
 * rows of choose_internal.h, i32 (MC_ROW_FIELDS, rows or more). No length on the host follows. */
bool mc_kv_cache_begin_rows(mc_kv_cache *cache, mc_tape *t, const mc_lengths *tokens,
                            mc_tensor *state);
/* Whole prompts of sequences that join: number i, of tokens->length[i] tokens, becomes sequence[i]
 * of the cache's pages, and has them. */
bool mc_kv_cache_begin_joining(mc_kv_cache *cache, mc_tape *t, const mc_lengths *tokens,
                               const int *sequence);
void mc_kv_cache_end(mc_kv_cache *cache);
/* Keeps the layers' position bias, which is of (heads, 2 * L - 1), L >= capacity. */
void mc_kv_cache_keep_bias(mc_kv_cache *cache, const mc_tensor *bias);
/* Keeps k and v of the step's tokens and attends to all that are there: qkv (total, 3 * width) as
 * in mc_sdpa, causal. Gives (total, width). Of the options are read: heads, scale, position_bias
 * (of distances up to the longest sequence, the new token included), and marks, which prompts are
 * run with instead of causal. Later tokens see all that is there: they go on with a prompt of one
 * span. */
mc_tensor *mc_kv_attention(mc_tape *t, mc_kv_cache *cache, int layer, mc_tensor *qkv,
                           const mc_sdpa_options *options);

/* ---- the memory of an encoder ---------------------------------------------------------------- */

/* The keys and values of what an encoder has made of its inputs, one layer of the decoder after
 * the other; they are computed once. Several sequences of the decoder may share those of one
 * input: their rows say which (mc_kv_memory_begin_rows).
 *
 *     m = mc_kv_memory_new(ctx, shape, lengths);
 *     mc_kv_memory_keep(t, m, layer, kv);                  for each layer, kv as in mc_sdpa_cross
 *     each step: mc_kv_memory_begin(m, t, tokens);         beside mc_kv_cache_begin
 *                y = mc_kv_memory_attention(t, m, layer, q, options);      in each layer
 */
typedef struct mc_kv_memory {
    mc_context *ctx;
    mc_kv_shape shape; /* capacity: rows of all inputs together */
    int inputs;
    int32_t *length, *offset; /* (inputs) of each input, on the host */
    void **kv;                /* (layers): (capacity, 2 * width), packed */
    /* of the step that is being run: for each of its tokens the first row and the rows of its
     * input
     */
    mc_tensor *first, *lengths;
    int64_t longest;
    /* Where inputs come and go: their pages, and i32 of the step that brings inputs: the row of
     * each of their tokens. */
    mc_kv_pages *pages;
    mc_tensor *rows;
} mc_kv_memory;

/* Room for the keys and values of the inputs with these lengths (shape.capacity is not read: they
 * are packed), and for up to shape.sequences sequences of the decoder. NULL after an error. Freed
 * by mc_kv_memory_free (NULL allowed). */
mc_kv_memory *mc_kv_memory_new(mc_context *ctx, mc_kv_shape shape, const mc_lengths *lengths);
/* The same where inputs come and go: shape.capacity rows in these pages, which stay the
 * caller's. */
mc_kv_memory *mc_kv_memory_new_paged(mc_context *ctx, mc_kv_shape shape, mc_kv_pages *pages);
void mc_kv_memory_free(mc_kv_memory *memory);
/* A step that brings inputs: number i, of inputs->length[i] rows, becomes that of sequence[i],
 * which has the pages for it and gets one token in the step. */
bool mc_kv_memory_begin_joining(mc_kv_memory *memory, mc_tape *t, const mc_lengths *inputs,
                                const int *sequence);
/* kv: (rows, 2 * width), each row k and v, of the packed inputs in their order; rows behind the
 * last token are left out. Copied. */
bool mc_kv_memory_keep(mc_tape *t, mc_kv_memory *memory, int layer, mc_tensor *kv);
/* A step with tokens->length[i] new tokens of a sequence for each input. */
bool mc_kv_memory_begin(mc_kv_memory *memory, mc_tape *t, const mc_lengths *tokens);
/* The same where tokens->count sequences get a token each by the rows of choose_internal.h. */
bool mc_kv_memory_begin_rows(mc_kv_memory *memory, mc_tape *t, const mc_lengths *tokens,
                             mc_tensor *state);
/* Each of the step's tokens, q (total, width), attends to all of its input: (total, width). Of the
 * options heads and scale are read. */
mc_tensor *mc_kv_memory_attention(mc_tape *t, mc_kv_memory *memory, int layer, mc_tensor *q,
                                  const mc_sdpa_options *options);
#endif
