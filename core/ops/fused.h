/* Operations that models are built of: several steps in one pass over memory, embeddings, losses
 * of a head. What ops.h says of operations holds here.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_OPS_FUSED_H
#define MC_OPS_FUSED_H

#include "core/ops/ops.h"

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

/* y (rows..., n) = activation(a) * b, where a and b are the first and the last n columns of x
 * (rows..., 2 n): what stands between the two products of a gated feed-forward (Shazeer 2020). With
 * MC_ACTIVATION_NONE y = a * b. */
MC_API mc_tensor *mc_gated(mc_tape *t, mc_tensor *x, mc_activation activation);

#endif
