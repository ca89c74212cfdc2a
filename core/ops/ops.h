/* Operations on tensors of a tape.
 *
 * All take the tape first, return a tensor that belongs to it, and return NULL after an error (bad
 * shapes or dtypes, NULL and tensors of another context are errors that name the operation, the
 * shapes found and what was expected).
 * "Rows" of a tensor are all its dimensions but the last taken together, "columns" the last one.
 * Zero rows are fine everywhere. Storage f32, f16 or bf16; all arithmetic accumulates in f32.
 * Formulas follow PyTorch's functions of the same meaning unless another source is named. */
#ifndef MC_OPS_OPS_H
#define MC_OPS_OPS_H

#include "core/autograd/tape.h"
#include "core/device/activation.h"

/* y (rows..., out) = activation(x (rows..., in) weight^T + bias): weight (out, in), bias (out) or
 * NULL, in one product with bias and activation fused. `bias` and `weight` of x's dtype. */
MC_API mc_tensor *mc_fused_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                  mc_activation activation);

/* The same of the product times a finite number, say 1 / sqrt(in): activation(scale * x weight^T +
 * bias). It costs nothing: the product takes it along. */
MC_API mc_tensor *mc_scaled_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                   mc_activation activation, float scale);

/* y = LayerNorm(x + dropout(f)) * weight + bias over the last dimension. f NULL: y = LayerNorm(x).
 * x, f: (..., n) of equal shape; weight, bias: (n). eps > 0. Statistics in f32, biased variance (Ba
 * et al. 2016).
 * bias NULL: RMSNorm (Zhang & Sennrich 2019), which subtracts no mean: with s = x + dropout(f),
 * y = s / sqrt(mean(s^2) + eps) * weight. */
MC_API mc_tensor *mc_residual_norm(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout,
                                   mc_tensor *weight, mc_tensor *bias, float eps);

/* The residual stream of a pre-LN model, in which every sum is normalised next, without a pass of
 * its own for any sum:
 *
 *     y = mc_stream_norm(t, x, w1, b1, eps, &s);           s = x, y = LayerNorm(s)
 *     x = mc_residual_defer(t, s, attention(y), 0.1f);     not computed
 *     y = mc_stream_norm(t, x, w2, b2, eps, &s);           s = x and y = LayerNorm(s) in one pass
 *     return mc_residual_defer(t, s, feed_forward(y), 0.1f);     for the next block's norm to make
 *
 * mc_residual_defer gives a tensor that stands for x + dropout(f), x and f of equal shape and
 * dtype: it has shape, dtype and lengths, but no contents. It may be given to mc_stream_norm, once,
 * to mc_residual_sum, to block lists and to mc_tape_release (which releases x and f); any other
 * operation says so. Gradients come out as if the sum had been made right there. */
MC_API mc_tensor *mc_residual_defer(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout);
/* LayerNorm (bias NULL: RMSNorm) of x, deferred or not, as in mc_residual_norm; *sum (not NULL) is
 * what was normalised: the sum as it was made in this pass, or x itself. */
MC_API mc_tensor *mc_stream_norm(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                 float eps, mc_tensor **sum);
/* Makes a deferred sum; x itself if it is none. The same bits as mc_stream_norm makes. */
MC_API mc_tensor *mc_residual_sum(mc_tape *t, mc_tensor *x);

/* Dropout with probability p in [0, 1) and scale 1 / (1 - p); x itself on an eval tape or for p 0.
 * Counter-based (Philox-4x32-10): the same seed and the same sequence of calls drop the same. */
MC_API mc_tensor *mc_dropout(mc_tape *t, mc_tensor *x, float p);
/* mc_dropout(mc_relu(x)), to the bit, and its gradient, in one pass over memory each; backward
 * reads the result, so that x is not kept. */
MC_API mc_tensor *mc_relu_dropout(mc_tape *t, mc_tensor *x, float p);

/* y (rows, n) = sum over tables of table[i][index[i][row]]: up to four tables (vocabulary_i, n)
 * with an index of i32 or i64 (rows) each. Errors: an index outside its table (named with its
 * row). */
MC_API mc_tensor *mc_embed(mc_tape *t, int tables, mc_tensor *const *table,
                           mc_tensor *const *index);
/* The same sum times a finite number, rounded once. */
MC_API mc_tensor *mc_embed_scaled(mc_tape *t, int tables, mc_tensor *const *table,
                                  mc_tensor *const *index, float scale);
/* RoBERTa's positions of packed ids (capacity of the lengths), i32 or i64, each in [0, limit): they
 * count from `first` >= 1 in each sequence and pass over `pad` (-1: no padding). The result is i32,
 * first - 1 where padding or no token is. Errors: an id out of range, MC_ERR_ARGUMENT. */
MC_API mc_tensor *mc_token_positions(mc_tape *t, mc_tensor *ids, const mc_lengths *lengths,
                                     int64_t limit, int64_t pad, int64_t first);

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

/* How angles are changed for sequences longer than a model was first trained on. */
typedef enum mc_rotary_type {
    MC_ROTARY_DEFAULT, /* they are not */
    MC_ROTARY_LINEAR,  /* all are divided by `factor` (Chen et al. 2023) */
    MC_ROTARY_LLAMA3,  /* those of slow pairs are, as in Llama 3.1 */
    MC_ROTARY_YARN,    /* those of slow pairs are, as in YaRN (Peng et al. 2023) */
} mc_rotary_type;

typedef struct mc_rotary_scaling {
    mc_rotary_type type;
    float factor; /* required unless type is MC_ROTARY_DEFAULT; above 0 */
    /* Of LLAMA3 and YARN, required: a pair that turns at most `low` times within `original`
     * positions is slow, one that turns `high` times or more is left alone. Those between are
     * interpolated, LLAMA3's by their angle, YARN's by their number. 0 < low < high. */
    float low, high, original;
    bool exact_range; /* of YARN: the numbers of the first and last such pair are not rounded */
    /* Cosine and sine are multiplied by it; 0: 1, of YARN 0.1 ln(factor) + 1 (1 for a factor up to
     * 1). */
    float attention_factor;
} mc_rotary_scaling;

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
 * columns) stay as they are. x is consumed:
 * its memory becomes the result's where nothing else needs its contents, and it must not be used
 * afterwards (that is an error then). So only the rotated columns are read and written. */
MC_API mc_tensor *mc_rotary(mc_tape *t, mc_tensor *x, const mc_rotary_options *options);

/* A loss is a tensor of two f32: the sum over what counts, and how much counts. Its value is
 * sum / count (mc_mean_loss). Backward through an OptimManager is seeded with a constant and
 * divided by the count of the whole global step when the optimizer steps, so that the mean is over
 * all that counts at any accumulation and number of ranks. */
typedef struct mc_cross_entropy_options {
    int32_t ignore_index;  /* labels that do not count; 0: -100, MC_INT_ZERO: 0 */
    float label_smoothing; /* e: (1 - e) * nll + e * mean over classes of -log p */
    float logit_scale;     /* of mc_linear_cross_entropy alone, see there; 0: 1 */
    /* How much each class counts, w, f32 (classes), without a gradient; NULL: 1. The loss is then
     * PyTorch's weighted mean: the sum of (1 - e) w[label] nll + e / classes * sum over classes c
     * of -w[c] log p[c], divided by the sum of w[label]. Not for mc_linear_cross_entropy, which
     * returns an error that names it. */
    mc_tensor *class_weights;
} mc_cross_entropy_options;

/* Softmax cross-entropy of logits (rows, classes) against labels (rows) of i32 or i64. Errors: a
 * label outside [0, classes) that is not ignored (named with its row). options may be NULL. */
MC_API mc_tensor *mc_cross_entropy(mc_tape *t, mc_tensor *logits, mc_tensor *labels,
                                   const mc_cross_entropy_options *options);

/* The same for logits = logit_scale * x weight^T + bias, which never exist whole: computed in
 * chunks of rows. On a training tape the gradients of weight and bias are added right here, in the
 * forward pass (zero them before), and that of x is kept for backward. `classes` <= weight rows:
 * further rows are padding of the vocabulary and take no part (0: all). Backward must then be
 * started from this loss or an mc_loss_add with it as first term, with dy NULL or through an
 * OptimManager. */
MC_API mc_tensor *mc_linear_cross_entropy(mc_tape *t, mc_tensor *x, mc_tensor *weight,
                                          mc_tensor *bias, int64_t classes, mc_tensor *labels,
                                          const mc_cross_entropy_options *options);

/* The loss whose mean is mean(a) + factor * mean(b): sum = a.sum + factor * b.sum * (a.count /
 * b.count), count = a.count (where only b counts, a counts as 1 row of sum 0). Over several
 * micro-steps or ranks the second term is weighted by a's counts. */
MC_API mc_tensor *mc_loss_add(mc_tape *t, mc_tensor *a, mc_tensor *b, float factor);

/* The same where the counts of a whole step, over all its micro-steps and ranks, are known: `ratio`
 * is f32 (2), {r, 0}, with r = factor * (all counts of a) / (all counts of b). sum = a.sum + r *
 * b.sum, count = a.count: the step's mean is mean(a) + factor * mean(b), however its rows lie. A
 * tensor of the context can be refilled for each step (core/autograd/step.h). */
MC_API mc_tensor *mc_loss_add_ratio(mc_tape *t, mc_tensor *a, mc_tensor *b, mc_tensor *ratio);

/* sum / count of a loss, of this rank's rows alone (mc_global_mean_loss in core/ops/ranks.h is
 * that of all ranks); waits for the device. 0 for a count of 0, NaN on a failed context. */
MC_API double mc_mean_loss(mc_context *ctx, const mc_tensor *loss);

/* Elementwise. In add and mul the shape of b must equal a's or the end of it (b is then repeated),
 * or the other way round. */
MC_API mc_tensor *mc_add(mc_tape *t, mc_tensor *a, mc_tensor *b);
MC_API mc_tensor *mc_mul(mc_tape *t, mc_tensor *a, mc_tensor *b);
MC_API mc_tensor *mc_scale(mc_tape *t, mc_tensor *x, float factor);
MC_API mc_tensor *mc_gelu(mc_tape *t, mc_tensor *x);     /* with erf */
MC_API mc_tensor *mc_gelu_new(mc_tape *t, mc_tensor *x); /* with tanh, as GPT-2's */
MC_API mc_tensor *mc_relu(mc_tape *t, mc_tensor *x);
MC_API mc_tensor *mc_tanh(mc_tape *t, mc_tensor *x);
MC_API mc_tensor *mc_silu(mc_tape *t, mc_tensor *x); /* x sigmoid(x) */

/* y (rows..., n) = activation(a) * b, where a and b are the first and the last n columns of x
 * (rows..., 2 n): what stands between the two products of a gated feed-forward (Shazeer 2020). With
 * MC_ACTIVATION_NONE y = a * b. */
MC_API mc_tensor *mc_gated(mc_tape *t, mc_tensor *x, mc_activation activation);

/* The same values in another floating dtype, rounded to nearest even; x itself if it has it. */
MC_API mc_tensor *mc_cast(mc_tape *t, mc_tensor *x, mc_dtype dtype);

/* The same elements in another shape (a view). */
MC_API mc_tensor *mc_reshape(mc_tape *t, mc_tensor *x, mc_shape shape);

/* y (n, columns) = rows index[0 .. n) of x; index i32 (n) on the host, copied. A row may be taken
 * more than once. Errors: an index outside [0, rows). */
MC_API mc_tensor *mc_gather_rows(mc_tape *t, mc_tensor *x, const int32_t *index, int64_t n);

/* x with lengths, which attention, mc_first_tokens and mc_unpack ask for: says that its rows (the
 * first dimension) are those of a packed batch. The same values, whose gradient is x's. The lengths
 * (mc_tape_lengths, mc_lengths_new, a loader's) have to live as long as the tape. Errors: `lengths`
 * NULL, MC_ERR_ARGUMENT; other than lengths->capacity rows, MC_ERR_SHAPE. */
MC_API mc_tensor *mc_with_lengths(mc_tape *t, mc_tensor *x, const mc_lengths *lengths);

/* The first token of every sequence of a packed x: (count, columns). An empty sequence: an error,
 * but in lengths of mc_lengths_new, which any sequence of a batch may leave empty: a row of
 * zeros. */
MC_API mc_tensor *mc_first_tokens(mc_tape *t, mc_tensor *x);

/* Packed (rows, columns) to padded (count, longest, columns), zeros after each sequence. */
MC_API mc_tensor *mc_unpack(mc_tape *t, mc_tensor *x);

/* Index of the largest value of each row, the first one of equals: i32 (rows). No gradient. */
MC_API mc_tensor *mc_argmax(mc_tape *t, mc_tensor *x);

#endif
