/* Further losses, and how to make a loss of one's own.
 *
 * A loss is what core/ops/ops.h says: a tensor of two f32 (sum, count), which OptimManager,
 * mc_tape_backward, mc_mean_loss and mc_loss_add take. Any tensor of per-row or per-element losses,
 * however it was computed, becomes one with mc_loss_from_rows:
 *
 *     mc_tensor *distance = mc_sqrt(t, mc_sum(t, mc_mul(t, d, d), -1));      (rows)
 *     mc_tensor *loss = mc_loss_from_rows(t, distance, NULL);
 *     mc_optim_manager_backward(optim, t, loss);
 *
 * Bad arguments are errors as in core/ops/ops.h. Arithmetic is f32, sums are accumulated in a fixed
 * order. */
#ifndef MC_OPS_LOSSES_H
#define MC_OPS_LOSSES_H

#include "core/ops/ops.h"

/* The loss whose sum is that of all elements of `rows` (f32, f16 or bf16, of any shape), each of
 * which has been weighted already, and whose count is the sum of `counts` (f32, of the shape of
 * `rows`): how much each of them counts in the mean. counts NULL: each counts 1. To leave elements
 * out, give them the value 0 and the count 0. Errors: counts of another shape or dtype, or that
 * require a gradient. */
MC_API mc_tensor *mc_loss_from_rows(mc_tape *t, mc_tensor *rows, mc_tensor *counts);

/* The mean over all elements of (x - target)^2 (torch.nn.MSELoss). x and target: of equal shape,
 * each f32, f16 or bf16; both get a gradient. The count is the number of elements. */
MC_API mc_tensor *mc_mse_loss(mc_tape *t, mc_tensor *x, mc_tensor *target);

/* The mean over all elements of the binary cross-entropy of logits x with targets y in [0, 1]
 *     (1 - y) x + (1 + (p - 1) y) log(1 + e^-x)
 * computed without overflow (torch.nn.BCEWithLogitsLoss). logits and targets: of equal shape, each
 * f32, f16 or bf16. pos_weight p: f32, of the size of the last dimension; NULL: 1. Errors: targets
 * or pos_weight that require a gradient. Values of the targets are not checked. */
MC_API mc_tensor *mc_bce_loss(mc_tape *t, mc_tensor *logits, mc_tensor *targets,
                              mc_tensor *pos_weight);

/* The cross-entropy of each row of logits (rows, classes) by itself: f32 (rows), 0 where the label
 * is ignored. Arguments and formula are mc_cross_entropy's, class weights included: row r is
 * weighted by w[label], and the weighted mean is the sum of the rows over that of the weights. */
MC_API mc_tensor *mc_cross_entropy_rows(mc_tape *t, mc_tensor *logits, mc_tensor *labels,
                                        const mc_cross_entropy_options *options);

#endif
