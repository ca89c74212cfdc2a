/* A training step as one unit, which a GPU records once and then replays.
 *
 *     static void step(mc_context *ctx, void *user)
 *     {
 *         my_run *run = user;
 *         mc_optim_manager_zero_grad(run->optim);
 *         mc_tape *t = mc_tape_begin(ctx);
 *         ... forward from run->ids, a tensor of the context ...
 *         mc_optim_manager_backward(run->optim, t, loss);
 *         mc_tape_end(t);
 *         mc_optim_manager_step(run->optim);
 *     }
 *     ...
 *         mc_tensor_write(run->ids, batch, bytes);
 *         mc_step_run(ctx, run->batch_size, step, run);
 *
 * The first call of a key runs fn and tunes its kernels; the second records what fn launches (a
 * CUDA graph) and runs that; later ones run the recording, without calling fn. fn is called each
 * time on a device that cannot record (the CPU), while an AdamOffload keeps state on the host, and
 * with several ranks, because collectives overlap better with kernels that are launched one by one.
 * The environment variable MC_CUDA_GRAPHS overrides this: 0 never records, 1 also records with
 * several ranks.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_AUTOGRAD_STEP_H
#define MC_AUTOGRAD_STEP_H

#include "core/base/context.h"

typedef void (*mc_step_fn)(mc_context *ctx, void *user);

/* Runs a step. `key` must identify everything that decides what fn does: shapes, lengths, options,
 * the model. Only the contents of tensors of the context (mc_tensor_new; indices and labels as i32)
 * may differ under one key: fn reads them, and the caller refills them with mc_tensor_write. For
 * packed batches whose lengths change, use mc_lengths_new; the key then covers only their capacity
 * and longest. An mc_dataloader with `sizes` creates such batches and the key. Data that fn copies
 * from the host itself (mc_tape_input) is recorded and replayed unchanged. fn must not wait for
 * results (clip_grad_norm, mc_mean_loss: MC_ERR_STATE while recording). Gradients must belong to an
 * OptimManager. Any memory that fn leaves allocated must be allocated by the end of the first call.
 * Indices are checked before each run, as without recording. All ranks call this together, each
 * with its own data and the same key. Results go to tensors of the context (mc_tensor_copy).
 * Returns the context's status. */
MC_API mc_status mc_step_run(mc_context *ctx, uint64_t key, mc_step_fn fn, void *user);

/* Drops all recordings of the context, so that each key starts over. Call it after a change that
 * `key` does not cover, such as freezing parameters. */
MC_API void mc_step_forget(mc_context *ctx);
/* Drops everything that the context keeps about steps with this `user`. Call it before you free
 * what `user` points to. */
MC_API void mc_step_forget_user(mc_context *ctx, const void *user);

#endif
