/* The keys and values of tokens that a decoder has seen, so that a step of generation costs one
 * token a sequence. They lie in pages of device memory, which sequences take and give back.
 *
 * A step: one of the functions named begin, with the tokens to come; the model's forward pass,
 * whose attention layers call decode.attend; mc_kv_cache_end. Prompts come in whole or in pieces,
 * with lengths that the host knows; then one token a sequence, where what each sees, and where it
 * goes, stands in device memory, so that steps follow each other without the host. Evaluation tapes
 * only. */
#ifndef MC_MODELS_GENERATE_KV_CACHE_INTERNAL_H
#define MC_MODELS_GENERATE_KV_CACHE_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "models/generate/kv_pages_internal.h"
#include "core/nn/decode_internal.h"
#include "core/nn/transformer.h"

/* One field of the rows of choose_internal.h, of the first `count` rows. */
mc_tensor *mc_row_field(mc_tape *t, mc_tensor *state, int field, int count);

typedef struct mc_kv_shape {
    mc_dtype dtype;
    int layers;
    int64_t width; /* of the keys, and of the values: key_heads * head_dim */
} mc_kv_shape;

/* Bytes of the keys and values of so many tokens. */
size_t mc_kv_bytes(const mc_kv_shape *shape, int64_t tokens);

typedef struct mc_kv_cache {
    mc_context *ctx;
    mc_kv_shape shape;
    mc_decode decode; /* for mc_call.decode */
    mc_kv_pages *pages;
    void **k, **v; /* (layers): (rows of all pages, width) each */
    /* The position bias of the model's layers, of all distances in the cache; NULL until the first
     * step has made it, and for models without. */
    mc_tensor *position_bias;
    /* of the step that is being run, on its tape */
    const mc_lengths *tokens;  /* that come in */
    mc_tensor *rows;           /* i32 (total): of prompts the row of the cache of each token */
    mc_tensor *lengths;        /* i32 (sequences): of steps by rows, with those tokens */
    mc_tensor *firsts;         /* i32 (sequences): mc_cached_attention's `first` of each */
    struct mc_kv_piece *piece; /* of a step that goes on with prompts; NULL else */
    int64_t longest;
} mc_kv_cache;

/* Takes the pages over, also on failure (NULL, after an error). */
mc_kv_cache *mc_kv_cache_new(mc_context *ctx, mc_kv_shape shape, mc_kv_pages *pages);
void mc_kv_cache_free(mc_kv_cache *cache); /* NULL allowed */

/* Prompts: tokens->length[i] tokens of the pages' sequence[i], which has the pages for them, after
 * before[i] tokens that are there (NULL: none). */
bool mc_kv_cache_begin_prompts(mc_kv_cache *cache, mc_tape *t, const mc_lengths *tokens,
                               const int *sequence, const int32_t *before);
/* One token each of tokens->count sequences: `state` holds the rows of choose_internal.h, i32
 * (MC_ROW_FIELDS, rows or more). */
bool mc_kv_cache_begin_rows(mc_kv_cache *cache, mc_tape *t, const mc_lengths *tokens,
                            mc_tensor *state);
void mc_kv_cache_end(mc_kv_cache *cache);
/* Keeps the layers' position bias, which is of (heads, 2 * L - 1), L >= pages->longest. */
void mc_kv_cache_keep_bias(mc_kv_cache *cache, const mc_tensor *bias);
/* decode.attend keeps k and v of the step's tokens and attends to all that are there: qkv as in
 * mc_sdpa, causal. Gives (total, heads * head_dim). Of the options are read: heads, key_heads,
 * scale, window_left, position_bias (of distances up to the longest sequence, the new token
 * included), and marks, which whole prompts are run with instead of causal. Later tokens see all
 * that is there: they go on with a prompt of one span. */

/* ---- the memory of an encoder ---------------------------------------------------------------- */

/* The keys and values of what an encoder has made of its inputs, one layer of the decoder after
 * the other; they are computed once. Inputs take and give back pages. Several sequences of the
 * decoder may share those of one input: their rows say which (mc_kv_memory_begin_rows).
 *
 *     m = mc_kv_memory_new(ctx, shape, pages);
 *     mc_kv_memory_begin_prompts(m, t, inputs, sequence);
 *     m->decode.keep(t, m, layer, kv);                     for each layer, kv as in mc_sdpa_cross
 *     y = m->decode.attend(t, m, layer, q, options);       and a query each
 *     each step: mc_kv_memory_begin_rows(m, t, tokens, state);
 *                y = m->decode.attend(t, m, layer, q, options);      in each layer
 */
typedef struct mc_kv_memory {
    mc_context *ctx;
    mc_kv_shape shape;
    mc_decode decode; /* for mc_call.decode_memory */
    mc_kv_pages *pages;
    void **kv; /* (layers): (rows of all pages, 2 * width) */
    /* of the step that is being run, i32: the row of each token of inputs that come; for each
     * query mc_cached_attention's `first`, and the rows of its input */
    mc_tensor *rows, *first, *lengths;
    int64_t longest;
} mc_kv_memory;

/* Takes the pages over, also on failure (NULL, after an error). */
mc_kv_memory *mc_kv_memory_new(mc_context *ctx, mc_kv_shape shape, mc_kv_pages *pages);
void mc_kv_memory_free(mc_kv_memory *memory); /* NULL allowed */
/* A step that brings inputs: number i, of inputs->length[i] rows, becomes that of the pages'
 * sequence[i], which has the pages for it and gets one token in the step. */
bool mc_kv_memory_begin_prompts(mc_kv_memory *memory, mc_tape *t, const mc_lengths *inputs,
                                const int *sequence);
/* A token each of tokens->count sequences, by the rows of choose_internal.h. */
bool mc_kv_memory_begin_rows(mc_kv_memory *memory, mc_tape *t, const mc_lengths *tokens,
                             mc_tensor *state);
/* decode.keep copies kv: (rows, 2 * width), each row k and v, of the packed inputs in their order;
 * rows after the last token are left out. decode.attend: each of the step's tokens, q (total,
 * heads * head_dim), attends to all of its input. Of the options are read: heads, key_heads, scale.
 */

/* ---- both ------------------------------------------------------------------------------------ */

/* The head size of a cache's keys with these options; 0 after an error, which names `op` and x, the
 * tensor of the call. */
int mc_kv_head_dim(mc_tape *t, const char *op, const mc_kv_shape *shape, const mc_tensor *x,
                   const mc_sdpa_options *o);
/* What each call of the kernel has: heads, scale, pages. Sequences and lengths are added. */
mc_cached_attention mc_kv_attention(const mc_sdpa_options *o, const mc_kv_pages *pages,
                                    int head_dim);

#endif
