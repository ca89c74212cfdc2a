/* Further losses, and how to write your own loss.
 *
 * A loss is a tensor of two f32, (sum, count), as in core/ops/ops.h. OptimManager,
 * mc_tape_backward, mc_mean_loss and mc_loss_add take it. mc_loss_from_rows makes a loss from any
 * tensor of per-row or per-element losses:
 *
 *     mc_tensor *distance = mc_sqrt(t, mc_sum(t, mc_mul(t, d, d), -1));      (rows)
 *     mc_tensor *loss = mc_loss_from_rows(t, distance, NULL);
 *     mc_optim_manager_backward(optim, t, loss);
 *
 * Bad arguments are errors as in core/ops/ops.h. Arithmetic is f32, sums are accumulated in a fixed
 * order.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPS_LOSSES_H
#define MC_OPS_LOSSES_H

#include "core/ops/ops.h"

/* Returns a loss. Its sum is the sum of all elements of `rows` (f32, f16 or bf16, any shape), which
 * are already weighted. Its count is the sum of `counts` (f32, the shape of `rows`), the weight of
 * each element in the mean. counts NULL: each element counts 1. To exclude an element, give it the
 * value 0 and the count 0. Errors: counts of another shape or dtype, or that require a gradient. */
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

/* Returns the cross-entropy of each row of logits (rows, classes): f32 (rows), 0 if the label is
 * ignored. Arguments and formula are those of mc_cross_entropy, class weights included: row r is
 * weighted by w[label], so the weighted mean is the sum of the rows divided by the sum of their
 * weights. */
MC_API mc_tensor *mc_cross_entropy_rows(mc_tape *t, mc_tensor *logits, mc_tensor *labels,
                                        const mc_cross_entropy_options *options);

#endif
