/* Attention over packed batches, position biases and rotary positions. The rules of ops.h apply.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_OPS_ATTENTION_H
#define MC_OPS_ATTENTION_H

#include "core/ops/ops.h"
#include "core/ops/rope.h"

typedef struct mc_sdpa_options {
    int heads; /* required */
    /* Heads of keys and values (grouped heads, Ainslie et al. 2023), a divisor of heads. Query head
     * h reads key head h / (heads / key_heads). 0: heads. */
    int key_heads;
    int value_dim; /* head size of values and of the result; 0: that of queries and keys */
    float scale;   /* 0: 1 / sqrt(head_dim) */
    /* A query attends to the keys up to its own position: query i of a sequence is at key i. With
     * bottom_right the last query is at the last key, so that queries may be the end of a longer
     * sequence. */
    bool causal, bottom_right;
    /* A sliding window: the most keys a query attends to on each side, its own position included
     * (window_left 1: no key before it). 0: no limit. */
    int window_left, window_right;
    float dropout; /* on the probabilities */
    /* u8 or bool (total of keys): 0 = no query attends to this key. NULL: no mask. */
    mc_tensor *key_mask;
    /* Added to the scaled scores (for example relative positions, Raffel et al. 2020): (heads, n,
     * m), f32 or the dtype of the queries. n and m are at least the longest sequences of queries
     * and keys. Element [h][i][j] is for query i and key j of every sequence. NULL: none. May
     * require a gradient, which is summed over the sequences in f32. */
    mc_tensor *bias;
    /* Added to the scaled scores instead of `bias`, for a bias that depends only on the distance of
     * key and query (mc_position_bias): f32 (heads, 2 * L - 1). Element [h][L - 1 + j - i] is for
     * the query at position i and key j of every sequence. L is at least the longest sequences of
     * queries and keys. NULL: none. It is never expanded to all pairs. May require a gradient,
     * which is summed over queries and sequences in f32, in a fixed order. */
    mc_tensor *position_bias;
    /* The mask of self-attention, instead of `causal`, for CPM-1's batches of context and answer
     * (Zhang et al. 2020): i32, 2 * span + context for each packed row (at least up to the lengths'
     * total), context 0 or 1. A token attends only to its own span: a context token to all context
     * tokens; any other token also to itself and to all tokens before it. A query without a key
     * gives zeros. NULL: none. */
    mc_tensor *marks;
    /* Global tokens of self-attention, as Longformer has them (Beltagy et al. 2020): i32 (at least
     * the lengths' total), 0 = global, negative: a query without keys. No window hides a global
     * key. Without global_queries the queries that are not global attend, with it only the global
     * ones; the others give zeros, so that the sum of both is the attention of all. NULL: none. */
    mc_tensor *globals;
    bool global_queries;
} mc_sdpa_options;

/* Scaled dot-product self-attention over a packed batch. qkv: (rows, 3 * heads * head_dim), each
 * row q, k, v of all heads, or (rows, (heads + key_heads) * head_dim + key_heads * value_dim); it
 * must carry lengths (mc_with_lengths), and tokens attend within their sequence. Returns (rows,
 * heads * value_dim). Rows past the lengths' total are zero, and so is a query without a key. */
MC_API mc_tensor *mc_sdpa(mc_tape *t, mc_tensor *qkv, const mc_sdpa_options *options);

/* Cross-attention: queries of one packed batch attend to keys and values of another one with the
 * same number of sequences; sequence i attends to sequence i. q: (rows, heads * head_dim). kv:
 * (rows of the other batch, key_heads * (head_dim + value_dim)), each row k, v of all heads. q and
 * kv each carry their own lengths. A sequence without keys gives zeros. */
MC_API mc_tensor *mc_sdpa_cross(mc_tape *t, mc_tensor *q, mc_tensor *kv,
                                const mc_sdpa_options *options);

/* Attention with k (rows, key_heads * head_dim) and v (the same rows, key_heads * value_dim) in
 * separate tensors. q and k carry lengths, which may be the same; v needs none. */
MC_API mc_tensor *mc_sdpa_separate(mc_tape *t, mc_tensor *q, mc_tensor *k, mc_tensor *v,
                                   const mc_sdpa_options *options);

/* Returns the attention probabilities of a call of mc_sdpa (kv NULL) or mc_sdpa_cross with these
 * options, for inspection: f32 (sequences, heads, longest sequence of queries, longest of keys),
 * with zeros after the end of a sequence. Dropout is not applied, and the result has no gradient.
 * Takes more memory and time than attention itself: the time grows with the cube of the longest
 * sequence. Lengths of mc_lengths_new are MC_ERR_STATE while a step is recorded. */
MC_API mc_tensor *mc_sdpa_probabilities(mc_tape *t, mc_tensor *q, mc_tensor *kv,
                                        const mc_sdpa_options *options);

/* How distances map to buckets: distances below a quarter of the number of buckets (half, if not
 * bidirectional) have a bucket each; larger ones share buckets that grow by a constant factor up to
 * max_distance. */
typedef struct mc_position_bias_options {
    int64_t length;     /* required: L, at least the longest sequence of queries or keys */
    int max_distance;   /* 0: 128. Distances from here on share the last bucket */
    bool bidirectional; /* keys after the query use the second half of the buckets; else they share
                           the bucket of distance 0 */
} mc_position_bias_options;

/* T5's relative position bias (Raffel et al. 2020) as mc_sdpa_options.position_bias takes it: f32
 * (heads, 2 * L - 1), element [h][L - 1 + key - query], from a table (buckets, heads) of f32, f16
 * or bf16. The table's gradient is summed in a fixed order. Errors: fewer than 2 buckets
 * (bidirectional: fewer than 4, or an odd number), a max_distance that no shared bucket reaches. */
MC_API mc_tensor *mc_position_bias(mc_tape *t, mc_tensor *table,
                                   const mc_position_bias_options *options);

/* Which columns are rotated, and how. */
typedef struct mc_rotary_options {
    int heads;      /* required: heads from the first column on; for q and k in a row of mc_sdpa
                       twice the model's heads */
    int head_dim;   /* required */
    int rotary_dim; /* columns rotated at the start of each head, an even number; 0: head_dim */
    bool halves;    /* pairs are columns i and i + rotary_dim / 2, as LLaMA's; else 2 i and 2 i + 1,
                       as GPT-J's */
    float base;     /* 0: 10000 */
    mc_rotary_scaling scaling;
    mc_tensor *positions; /* required: i32 (rows) */
} mc_rotary_options;

/* Rotary positions (Su et al. 2021): pair i of each head is rotated by the angle position *
 * base^(-2 i / rotary_dim), which options->scaling may change; all other columns of x (rows,
 * columns) stay unchanged. x is consumed: using it afterwards is an error. If nothing else needs
 * its contents, the result takes over its memory, so that only the rotated columns are read and
 * written. */
MC_API mc_tensor *mc_rotary(mc_tape *t, mc_tensor *x, const mc_rotary_options *options);

#endif
