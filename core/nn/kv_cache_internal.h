/* The keys and values of tokens that a decoder has seen, so that a step of generation costs one
 * token a sequence. Device memory for a fixed number of sequences and tokens each; a sequence's
 * length is known on the host.
 *
 * A step: mc_kv_cache_begin with the tokens to come, the model's forward pass (whose attention
 * layers call mc_kv_attention), mc_kv_cache_end. The first step of a cache takes whole prompts,
 * later ones one token a sequence. Evaluation tapes only. */
#ifndef MC_NN_KV_CACHE_INTERNAL_H
#define MC_NN_KV_CACHE_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "core/nn/layers.h"

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
    void *spare;     /* one more of these, for mc_kv_cache_select */
    /* of the step that is being run, on its tape */
    const mc_lengths *tokens; /* that come in */
    mc_tensor *rows;          /* i32 (total): which row of the cache each token gets */
    mc_tensor *lengths;       /* i32 (used): with those tokens */
    int64_t longest;
    bool first; /* nothing was there before */
} mc_kv_cache;

/* NULL after an error. Freed by mc_kv_cache_free (NULL allowed). */
mc_kv_cache *mc_kv_cache_new(mc_context *ctx, mc_kv_shape shape);
void mc_kv_cache_free(mc_kv_cache *cache);

/* tokens->count sequences (those in use, or if none is yet, so many new ones) get tokens->length[i]
 * tokens each. False after an error: no room, more than one token behind others. */
bool mc_kv_cache_begin(mc_kv_cache *cache, mc_tape *t, const mc_lengths *tokens);
void mc_kv_cache_end(mc_kv_cache *cache);
/* Keeps k and v of the step's tokens and attends to all that are there: qkv (total, 3 * width) as
 * in mc_sdpa, causal. Gives (total, width). */
mc_tensor *mc_kv_attention(mc_tape *t, mc_kv_cache *cache, int layer, mc_tensor *qkv, int heads,
                           float scale);
/* Sequence i becomes what from[i] was, for i < count; the others go. */
bool mc_kv_cache_select(mc_kv_cache *cache, const int32_t *from, int count);

/* mc_attention_forward over a cache; causal. */
mc_tensor *mc_attention_forward_cached(mc_tape *t, mc_attention *attention, mc_tensor *x,
                                       mc_kv_cache *cache, int layer);

#endif
