/* A training step as one unit, which a GPU records once and then runs again as a whole.
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
 * CUDA graph) and runs that; later ones run the recording, without calling fn. On a device that
 * cannot record (the CPU) fn is called each time, and so it is while an AdamOffload keeps state on
 * the host, and with several ranks, whose collectives run faster beside what is launched call by
 * call. MC_CUDA_GRAPHS in the environment: 0 never records, 1 does with several ranks too. */
#ifndef MC_AUTOGRAD_STEP_H
#define MC_AUTOGRAD_STEP_H

#include "core/base/context.h"

typedef void (*mc_step_fn)(mc_context *ctx, void *user);

/* Runs a step. `key` stands for all that decides what fn does, apart from the contents of
 * tensors of the context (mc_tensor_new; indices and labels as i32) that fn reads and the
 * caller refills with mc_tensor_write: shapes, lengths, options, the model. Packed batches whose
 * lengths change come in lengths of the context (mc_lengths_new), of which the key stands for
 * the capacity and the limit of the longest only; an mc_dataloader with `sizes` makes such
 * batches, and the key. What fn copies from the host by itself (mc_tape_input) is recorded as it
 * was. fn may not wait for results (clip_grad_norm, mc_mean_loss: MC_ERR_STATE while recording);
 * gradients must be those of an OptimManager; what it leaves behind in memory must be there
 * after the first call. Indices are checked before each run as they are without recording. With
 * several ranks all call this together, each with its own data but the same key: a step is run,
 * recorded and run again on all ranks alike. Results are left in tensors of the context
 * (mc_tensor_copy). Returns the context's status. */
MC_API mc_status mc_step_run(mc_context *ctx, uint64_t key, mc_step_fn fn, void *user);

/* Drops all recordings of the context: the next calls of each key are as its first were. For use
 * after anything that `key` does not stand for has changed, such as frozen parameters. */
MC_API void mc_step_forget(mc_context *ctx);
/* Drops all that the context keeps of steps with this `user`, before what it points to is gone. */
MC_API void mc_step_forget_user(mc_context *ctx, const void *user);

#endif
