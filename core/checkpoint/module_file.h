/* Any module, a program's own too, in one safetensors file.
 *
 * The file holds each parameter below the module under its full name (mc_parameter_name) and in its
 * dtype, in the order of declaration: f32, f16 and bf16. It is what other safetensors readers
 * expect, and does not depend on the number of ranks. Gradients and optimizer state are not in it:
 * see optim_state.h and training_state.h. */
#ifndef MC_CHECKPOINT_MODULE_FILE_H
#define MC_CHECKPOINT_MODULE_FILE_H

#include "core/checkpoint/pretrained.h"
#include "core/nn/module.h"

/* Writes all parameters below `module` (a root, or a part of a model) to the file `path`, aside at
 * first and renamed when it is whole and synced; an older file stays if anything fails. Over
 * several ranks all of them call it with the same path, of a folder that they share; each writes
 * its own part, and when it returns on any of them the file is whole. Errors: a folder that is not
 * there or cannot be written, MC_ERR_NOT_FOUND or MC_ERR_IO; a NULL module or path,
 * MC_ERR_ARGUMENT. */
MC_API mc_status mc_module_save(mc_module *module, const char *path);
/* The same with options (NULL: none). More than max_shard_size go to files that are named after
 * `path`, which ends in ".safetensors" then: "mine.safetensors" becomes
 * mine-00001-of-0000N.safetensors and mine.safetensors.index.json, which mc_module_load takes.
 * What older saves have left under these names, and no index names any more, is removed. Errors: a
 * negative size, another ending, MC_ERR_ARGUMENT. */
MC_API mc_status mc_module_save_as(mc_module *module, const char *path,
                                   const mc_save_options *options);

/* The same as a PyTorch file: a state dict with a tensor for each parameter. The names of the
 * library's models are ModelCenter's, so this is what BMTrain's load(model, path) reads and
 * ModelCenter calls pytorch_model.pt. The ranks write a safetensors file beside it first
 * ("<path>.safetensors", removed in the end), from which rank 0 makes it: both need room on the
 * disk. MC_ERR_ARGUMENT where a file of that name is there already. */
MC_API mc_status mc_module_save_torch(mc_module *module, const char *path);

/* Fills all parameters below `module` from the file `path` by name, converted to their dtype; each
 * rank reads what it holds of them. Anything that mc_tensor_file_open takes is a path: a
 * folder, a sharded file, PyTorch's files. All headers are checked before anything is read, so that
 * a module which the file does not fit stays as it was. Errors: no such file, MC_ERR_NOT_FOUND; a
 * damaged one, MC_ERR_FORMAT; parameters that it lacks, MC_ERR_NOT_FOUND with all their names;
 * another shape (found and expected), MC_ERR_SHAPE; integers, MC_ERR_DTYPE; NULL, MC_ERR_ARGUMENT.
 * Spare tensors, and numbers that are NaN or infinite, are warnings through the log. */
MC_API mc_status mc_module_load(mc_module *module, const char *path);

#endif
