/* Attention over packed batches, position biases and rotary positions. What ops.h says of
 * operations holds here.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_OPS_ATTENTION_H
#define MC_OPS_ATTENTION_H

#include "core/ops/ops.h"
#include "core/ops/rope.h"

typedef struct mc_sdpa_options {
    int heads; /* required */
    /* Grouped heads (Ainslie et al. 2023): keys and values have so many, a divisor of heads, and
     * head h of the queries reads theirs number h / (heads / key_heads). 0: heads. */
    int key_heads;
    int value_dim; /* head size of values and of the result; 0: that of queries and keys */
    float scale;   /* 0: 1 / sqrt(head_dim) */
    /* A query sees the keys up to where it stands: query i of a sequence stands at key i; with
     * bottom_right its last query stands at its last key, so that queries may be the end of a
     * longer sequence. */
    bool causal, bottom_right;
    /* A sliding window: a query sees so many keys to either side at most, that where it stands
     * counted in (window_left 1: none before it). 0: no limit. */
    int window_left, window_right;
    float dropout; /* on the probabilities */
    mc_tensor
        *key_mask; /* u8 or bool (total of keys): 0 = nobody attends to this key; NULL: none */
    /* Added to the scaled scores (Raffel et al. 2020's relative positions, say): (heads, n, m), n
     * and m not less than the longest sequences of queries and of keys, element [h][i][j] for query
     * i and key j of every sequence; f32 or the dtype of the queries; NULL: none. May require a
     * gradient, which is summed over the sequences in f32. */
    mc_tensor *bias;
    /* Added to the scaled scores instead of `bias`, where it depends on the distance of key and
     * query alone (mc_position_bias): f32 (heads, 2 * L - 1), element [h][L - 1 + j - i] for the
     * query that stands at key i and key j of every sequence, L not less than the longest sequences
     * of queries and of keys; NULL: none. Never written out for pairs. May require a gradient,
     * which is summed over queries and sequences in f32, in a fixed order. */
    mc_tensor *position_bias;
    /* Who sees whom in self-attention, instead of `causal` (CPM-1's batches of context and answer,
     * Zhang et al. 2020): i32, 2 * span + context for each token (of the packed rows, at least
     * those of the lengths' total; context 0 or 1). A token sees those of its own span: all that
     * are context, and if it is none itself, those before it and itself too. A query that sees no
     * key gives zeros. NULL: none. */
    mc_tensor *marks;
} mc_sdpa_options;

/* Scaled dot-product self-attention over a packed batch. qkv: (rows, 3 * heads * head_dim), each
 * row q, k, v of all heads, or (rows, (heads + key_heads) * head_dim + key_heads * value_dim); it
 * must carry lengths (mc_with_lengths), and tokens attend within their sequence. Returns (rows,
 * heads * value_dim). Rows past the lengths' total come out zero. A query that sees no key gives
 * zeros. */
MC_API mc_tensor *mc_sdpa(mc_tape *t, mc_tensor *qkv, const mc_sdpa_options *options);

/* The same of queries against the keys and values of another packed batch of as many sequences:
 * those of sequence i attend to sequence i there. q: (rows, heads * head_dim); kv: (rows of the
 * other, key_heads * (head_dim + value_dim)), each row k, v of all heads; each carries its own
 * lengths. A sequence without keys gives zeros. */
MC_API mc_tensor *mc_sdpa_cross(mc_tape *t, mc_tensor *q, mc_tensor *kv,
                                const mc_sdpa_options *options);

/* The same where k (rows, key_heads * head_dim) and v (as many rows, key_heads * value_dim) are
 * tensors of their own. q and k carry lengths, each its own or both the same; v needs none. */
MC_API mc_tensor *mc_sdpa_separate(mc_tape *t, mc_tensor *q, mc_tensor *k, mc_tensor *v,
                                   const mc_sdpa_options *options);

/* The attention probabilities of a call of mc_sdpa (kv NULL) or mc_sdpa_cross with these options,
 * for looking at them: f32 (sequences, heads, longest sequence of queries, longest of keys), zeros
 * where there is no query or no key. Dropout is not applied, and there is no gradient. Takes memory
 * and time that attention itself does not need. */
MC_API mc_tensor *mc_sdpa_probabilities(mc_tape *t, mc_tensor *q, mc_tensor *kv,
                                        const mc_sdpa_options *options);

/* How distances become buckets: those under a quarter of the buckets (a half, if not bidirectional)
 * have one each, farther ones share buckets that grow by a constant factor up to max_distance. */
typedef struct mc_position_bias_options {
    int64_t length;     /* required: L, of the longest sequence of queries or of keys */
    int max_distance;   /* 0: 128. From here on all have the last bucket */
    bool bidirectional; /* keys after the query have buckets of their own, the second half; else
                           they share that of distance 0 */
} mc_position_bias_options;

/* T5's relative position bias (Raffel et al. 2020) as mc_sdpa_options.position_bias takes it: f32
 * (heads, 2 * L - 1), element [h][L - 1 + key - query], of a table (buckets, heads) of f32, f16 or
 * bf16. Adds to the gradient of each row of the table, in a fixed order. Errors: fewer than 2
 * buckets (bidirectional: 4, and an odd number), a max_distance that no shared bucket reaches. */
MC_API mc_tensor *mc_position_bias(mc_tape *t, mc_tensor *table,
                                   const mc_position_bias_options *options);

/* Which columns are rotated, and how. */
typedef struct mc_rotary_options {
    int heads;      /* required: how many heads there are from the first column on: for q and k of a
                       row of mc_sdpa twice those of the model */
    int head_dim;   /* required */
    int rotary_dim; /* 0: head_dim; else the first so many columns of each head, an even number */
    bool halves;    /* pairs are columns i and i + rotary_dim / 2, as LLaMA's; else 2 i and 2 i + 1,
                       as GPT-J's */
    float base;     /* 0: 10000 */
    mc_rotary_scaling scaling;
    mc_tensor *positions; /* required: i32 (rows) */
} mc_rotary_options;

/* Rotary positions (Su et al. 2021): pair i of each head is turned by the angle position *
 * base^(-2 i / rotary_dim), which options->scaling may change; all other columns of x (rows,
 * columns) stay as they are. x is consumed: its memory becomes the result's where nothing else
 * needs its contents, and it must not be used
 * afterwards (that is an error then). So only the rotated columns are read and written. */
MC_API mc_tensor *mc_rotary(mc_tape *t, mc_tensor *x, const mc_rotary_options *options);

#endif
