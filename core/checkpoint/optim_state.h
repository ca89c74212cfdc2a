/* Saving and restoring the state of an OptimManager, for an exact resume.
 *
 *     mc_optim_manager_save(optim, "run/step-1000/optimizer.safetensors");
 *     ...
 *     mc_optim_manager_load(optim, "run/step-1000/optimizer.safetensors");    in a new process
 *
 * The file is plain safetensors. It holds, for the i-th optimizer added (from 0) and each of its
 * parameters:
 *     optimizer.<i>.<slot>.<parameter>     F32, the parameter's shape; slots are "exp_avg",
 *                                          "exp_avg_sq", "momentum_buffer", and "master" for f16
 *                                          and bf16 parameters
 *     optimizer.<i>.step.<parameter>       I64, steps of that parameter
 *     optimizer.<i>.step, .lr              I64, F64
 *     scheduler.<i>.num_iter               I64
 *     scaler.loss_scale, .growth_counter   F64, I64, where loss scaling is on
 *     manager.steps, .skipped_steps        I64
 * Names and shapes are those of the logical parameters, so the layout in memory, the number of
 * ranks and the level of sharding may change between saving and loading. Ranks save and load
 * together, in one file that all of them can access: each writes and reads the bytes of its own
 * shard. The file does not contain gradients: save between a step and the next zero_grad.
 *
 * Parameters themselves are saved and loaded with the model's weights. Load the weights first: they
 * set the master copies of f16 and bf16 parameters to rounded values, and this file then sets the
 * exact ones.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_CHECKPOINT_OPTIM_STATE_H
#define MC_CHECKPOINT_OPTIM_STATE_H

#include "core/optim/optim_manager.h"

/* Writes the state to a temporary file, which is synced and then renamed to `path`; an older file
 * stays until then. Errors: MC_ERR_ARGUMENT for NULL, MC_ERR_IO, MC_ERR_NOT_FOUND (no such folder),
 * MC_ERR_NOMEM. Does nothing on a failed context. */
MC_API mc_status mc_optim_manager_save(mc_optim_manager *optim, const char *path);

/* Restores the state into a manager that has the same optimizers with the same parameters, added in
 * the same order. Options are not restored. Frozen parameters get their state too, in case they are
 * thawed. The whole file is checked before anything is changed: MC_ERR_NOT_FOUND lists what the
 * file lacks; MC_ERR_SHAPE, MC_ERR_DTYPE and MC_ERR_FORMAT (a number out of range) name the tensor.
 * Unused tensors are logged as a warning: scales of fp8, too, if the model has no recipe yet
 * (core/nn/recipe.h). */
MC_API mc_status mc_optim_manager_load(mc_optim_manager *optim, const char *path);

#endif
