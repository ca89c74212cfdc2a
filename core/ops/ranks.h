/* What the ranks of a job do together beside training: wait for one another, and see the results of
 * all.
 *
 *     double mine = mc_mean_loss(ctx, loss);              this rank's rows alone
 *     double all = mc_global_mean_loss(ctx, loss);       the rows of all ranks
 *     mc_tensor *answers = mc_gather_result(ctx, mc_argmax(t, logits));
 *     int64_t rows = mc_tensor_size(answers, 0);
 *     mc_print_rank(ctx, 0, "loss %.4f of %lld rows\n", all, (long long)rows);
 *     mc_tensor_free(answers);
 *
 * Every rank calls each of these, in the same order as all else that ranks do together; with one
 * rank they are that rank's own. They wait for the device, and for the other ranks no longer than
 * the context's comm_timeout. On a failed context they do nothing. mc_print_rank (context.h) prints
 * on one rank, mc_accuracy_gather (datasets/metrics.h) counts answers over all. */
#ifndef MC_OPS_RANKS_H
#define MC_OPS_RANKS_H

#include "core/base/context.h"
#include "core/tensor/tensor.h"

/* Returns when every rank has called it, and what this rank's device was to do before is done. */
MC_API mc_status mc_synchronize(mc_context *ctx);

/* Numbers of every rank: all (ranks, count) = mine (count) of each, on the host. On all ranks
 * `count` is the same, above 0. Errors: MC_ERR_ARGUMENT. */
MC_API mc_status mc_gather_numbers(mc_context *ctx, const double *mine, int count, double *all);
/* numbers[i] = its sum over the ranks that divide the rows (mc_data_size), in their order, for
 * results of rows. On all ranks `count` is the same, above 0. Errors: MC_ERR_ARGUMENT. */
MC_API mc_status mc_sum_numbers(mc_context *ctx, double *numbers, int count);
/* Rank 0's `bytes` bytes, the same number on all ranks, overwrite those of all others. */
MC_API mc_status mc_share_bytes(mc_context *ctx, void *data, size_t bytes);

/* The mean of a loss over all that counts on any rank: the sum of the ranks' sums over the sum of
 * their counts; 0 where nothing counts at all. The same number on every rank; NaN after an error.
 * Of a training step mc_optim_manager_mean_loss says the same without a collective of its own. */
MC_API double mc_global_mean_loss(mc_context *ctx, const mc_tensor *loss);

/* The mean of the ranks' mean losses (BMTrain's sum_loss), each rank counting alike however many
 * rows count on it. It differs from mc_global_mean_loss where ranks
 * have unequal counts; a rank on which nothing counts adds 0. NaN after an error. */
MC_API double mc_mean_rank_loss(mc_context *ctx, const mc_tensor *loss);

/* The rows of all ranks in one tensor, in the order of the ranks: x (n_r, ...) of rank r gives
 * (n_0 + n_1 + ..., ...). Ranks may have different numbers of rows, none too; the other sizes, and
 * the dtype, are the same on all. A tensor () counts as a row (1). On the device; owned by the
 * context (mc_tensor_free frees it earlier). NULL after an error: a tensor that does not fit those
 * of other ranks (named with its rank, on every rank), one that is NULL or released, memory. */
MC_API mc_tensor *mc_gather_result(mc_context *ctx, const mc_tensor *x);

#endif
