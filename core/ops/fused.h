/* Operations that models are built of: several steps fused into one pass over memory, embeddings,
 * losses of a head. The rules of ops.h apply.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_OPS_FUSED_H
#define MC_OPS_FUSED_H

#include "core/ops/ops.h"

/* y (rows..., out) = activation(x (rows..., in) weight^T + bias): weight (out, in), bias (out) or
 * NULL, in one product with bias and activation fused. `bias` and `weight` of x's dtype. */
MC_API mc_tensor *mc_fused_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                  mc_activation activation);

/* mc_fused_linear with the product multiplied by a finite number, for example 1 / sqrt(in):
 * activation(scale * x weight^T + bias). The scale is fused into the product and costs nothing. */
MC_API mc_tensor *mc_scaled_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                   mc_activation activation, float scale);

/* y = LayerNorm(x + dropout(f)) * weight + bias over the last dimension. f NULL: y = LayerNorm(x).
 * x, f: (..., n) of equal shape; weight, bias: (n). eps > 0. Statistics in f32, biased variance (Ba
 * et al. 2016).
 * bias NULL: RMSNorm (Zhang & Sennrich 2019), which subtracts no mean: with s = x + dropout(f),
 * y = s / sqrt(mean(s^2) + eps) * weight. */
MC_API mc_tensor *mc_residual_norm(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout,
                                   mc_tensor *weight, mc_tensor *bias, float eps);

/* The residual stream of a pre-LN model. Each sum is normalised next, so the norm computes the sum
 * in its own pass:
 *
 *     y = mc_stream_norm(t, x, w1, b1, eps, &s);           s = x, y = LayerNorm(s)
 *     x = mc_residual_defer(t, s, attention(y), 0.1f);     not computed
 *     y = mc_stream_norm(t, x, w2, b2, eps, &s);           s = x and y = LayerNorm(s) in one pass
 *     return mc_residual_defer(t, s, feed_forward(y), 0.1f);     for the next block's norm to make
 *
 * mc_residual_defer returns a tensor that represents x + dropout(f), for x and f of equal shape and
 * dtype: it has shape, dtype and lengths, but no contents. Pass it to mc_stream_norm (once),
 * mc_residual_sum, block lists or mc_tape_release (which releases x and f); any other operation
 * fails with an error that says so. Gradients are the same as if the sum were computed at once. */
MC_API mc_tensor *mc_residual_defer(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout);
/* LayerNorm (bias NULL: RMSNorm) of x, deferred or not, as in mc_residual_norm; *sum (not NULL)
 * becomes the normalised tensor: the sum computed in this pass, or x itself. */
MC_API mc_tensor *mc_stream_norm(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                 float eps, mc_tensor **sum);
/* Computes a deferred sum, with the same bits as mc_stream_norm; returns x itself if it is not
 * deferred. */
MC_API mc_tensor *mc_residual_sum(mc_tape *t, mc_tensor *x);
/* mc_dropout(mc_relu(x)), bit for bit. Forward and backward each take one pass over memory;
 * backward reads the result, so x is not kept. */
MC_API mc_tensor *mc_relu_dropout(mc_tape *t, mc_tensor *x, float p);

/* y (rows, n) = sum over tables of table[i][index[i][row]]: up to four tables (vocabulary_i, n)
 * with an index of i32 or i64 (rows) each. Errors: an index outside its table (named with its
 * row). */
MC_API mc_tensor *mc_embed(mc_tape *t, int tables, mc_tensor *const *table,
                           mc_tensor *const *index);
/* The same sum times a finite number, rounded once. */
MC_API mc_tensor *mc_embed_scaled(mc_tape *t, int tables, mc_tensor *const *table,
                                  mc_tensor *const *index, float scale);
/* RoBERTa's positions of packed ids (capacity of the lengths), i32 or i64, each in [0, limit).
 * Positions count from `first` >= 1 in each sequence and skip `pad` (-1: no padding). The result is
 * i32, with first - 1 for padding and for rows after the last token. Errors: an id out of range,
 * MC_ERR_ARGUMENT. */
MC_API mc_tensor *mc_token_positions(mc_tape *t, mc_tensor *ids, const mc_lengths *lengths,
                                     int64_t limit, int64_t pad, int64_t first);

/* GLM's inputs that follow from packed ids, whose masks are filled in after the text: see
 * mc_find_blanks. i32 (capacity of the lengths) each. */
typedef struct mc_blanks {
    mc_tensor *marks;     /* for attention: 1 in the text, to which all rows attend; 0 after it */
    mc_tensor *positions; /* in the sequence; after the text, the position of the block's mask */
    mc_tensor *blocks;    /* 0 in the text; 1, 2, ... in each block */
} mc_blanks;
/* Computes them for packed ids (capacity of the lengths), i32 or i64, each in [0, limit). The text
 * of a sequence ends before its first `start` token, or at its end. Each `start` begins a block,
 * which fills in a `mask`: the i-th block the i-th mask, the last block the last one. With fewer
 * masks than blocks, the remaining blocks fill in the last one; without any, rows keep their own
 * position. All NULL after an error: an id out of range, MC_ERR_ARGUMENT. */
MC_API mc_blanks mc_find_blanks(mc_tape *t, mc_tensor *ids, const mc_lengths *lengths,
                                int64_t limit, int64_t start, int64_t mask);

/* mc_cross_entropy of logits = logit_scale * x weight^T + bias, which are computed in chunks of
 * rows and never exist as a whole. On a training tape this call itself adds the gradients of weight
 * and bias, in the forward pass (zero them before), and keeps x's gradient for backward. `classes`
 * <= weight rows: the other rows are padding of the vocabulary and are ignored (0: all rows count).
 * Backward must then be started from this loss or an mc_loss_add with it as first term, with dy
 * NULL or through an OptimManager. */
MC_API mc_tensor *mc_linear_cross_entropy(mc_tape *t, mc_tensor *x, mc_tensor *weight,
                                          mc_tensor *bias, int64_t classes, mc_tensor *labels,
                                          const mc_cross_entropy_options *options);

/* Returns the loss whose mean is mean(a) + factor * mean(b): sum = a.sum + factor * b.sum *
 * (a.count / b.count), count = a.count. If a.count is 0 and b.count is not, a is taken as 1 row of
 * sum 0. Over several micro-steps or ranks the second term is weighted by a's counts. */
MC_API mc_tensor *mc_loss_add(mc_tape *t, mc_tensor *a, mc_tensor *b, float factor);

/* mc_loss_add for a step whose total counts, over all micro-steps and ranks, are known: `ratio` is
 * f32 (2), {r, 0}, with r = factor * (all counts of a) / (all counts of b). sum = a.sum + r *
 * b.sum, count = a.count. The step's mean is then mean(a) + factor * mean(b), however its rows are
 * divided among micro-steps and ranks. `ratio` may be a tensor of the context that is refilled for
 * each step (core/autograd/step.h). */
MC_API mc_tensor *mc_loss_add_ratio(mc_tape *t, mc_tensor *a, mc_tensor *b, mc_tensor *ratio);

/* y (rows..., n) = activation(a) * b, where a and b are the first and the last n columns of x
 * (rows..., 2 n): the operation between the two products of a gated feed-forward (Shazeer 2020).
 * With MC_ACTIVATION_NONE y = a * b. */
MC_API mc_tensor *mc_gated(mc_tape *t, mc_tensor *x, mc_activation activation);

#endif
