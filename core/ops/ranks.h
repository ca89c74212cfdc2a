/* Operations over all ranks of a job besides training: waiting for one another, and combining
 * results.
 *
 *     double mine = mc_mean_loss(ctx, loss);              this rank's rows alone
 *     double all = mc_global_mean_loss(ctx, loss);       the rows of all ranks
 *     mc_tensor *answers = mc_gather_result(ctx, mc_argmax(t, logits));
 *     int64_t rows = mc_tensor_size(answers, 0);
 *     mc_print_rank(ctx, 0, "loss %.4f of %lld rows\n", all, (long long)rows);
 *     mc_tensor_free(answers);
 *
 * Every rank calls each of these, in the same order relative to other collective calls. With one
 * rank they return that rank's own values. They wait for the device, and for the other ranks at
 * most the context's comm_timeout. On a failed context they do nothing. mc_print_rank (context.h)
 * prints on one rank, mc_accuracy_gather (datasets/metrics.h) counts answers over all.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPS_RANKS_H
#define MC_OPS_RANKS_H

#include "core/base/context.h"
#include "core/tensor/tensor.h"

/* Returns when every rank has called it and this rank's device has finished all earlier work. */
MC_API mc_status mc_synchronize(mc_context *ctx);

/* Gathers numbers of every rank: all (ranks, count) = mine (count) of each, on the host. `count` is
 * above 0 and the same on all ranks. Errors: MC_ERR_ARGUMENT. */
MC_API mc_status mc_gather_numbers(mc_context *ctx, const double *mine, int count, double *all);
/* Replaces each numbers[i] by its sum over the ranks that divide the rows (mc_data_size), in their
 * order. `count` is above 0 and the same on all ranks. Errors: MC_ERR_ARGUMENT. */
MC_API mc_status mc_sum_numbers(mc_context *ctx, double *numbers, int count);
/* Rank 0's `bytes` bytes, the same number on all ranks, overwrite those of all others. */
MC_API mc_status mc_share_bytes(mc_context *ctx, void *data, size_t bytes);

/* Returns the mean of a loss over the rows of all ranks: the sum of the ranks' sums divided by the
 * sum of their counts; 0 if no row counts. The same number on every rank; NaN after an error. For a
 * training step, mc_optim_manager_mean_loss returns the same without an extra collective. */
MC_API double mc_global_mean_loss(mc_context *ctx, const mc_tensor *loss);

/* Returns the mean of the ranks' mean losses (BMTrain's sum_loss): every rank has the same weight,
 * whatever its count. It differs from mc_global_mean_loss if ranks have unequal counts. A rank with
 * count 0 adds 0. NaN after an error. */
MC_API double mc_mean_rank_loss(mc_context *ctx, const mc_tensor *loss);

/* The rows of all ranks in one tensor, in the order of the ranks: x (n_r, ...) of rank r gives (n_0
 * + n_1 + ..., ...). Ranks may have different numbers of rows, also zero; the other sizes and the
 * dtype are the same on all. A scalar tensor () counts as one row (1). The result is on the device
 * and owned by the context (mc_tensor_free frees it earlier). Returns NULL after an error: a tensor
 * that does not fit those of other ranks (every rank names it and its rank), a NULL or released
 * tensor, memory. */
MC_API mc_tensor *mc_gather_result(mc_context *ctx, const mc_tensor *x);

#endif
