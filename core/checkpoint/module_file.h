/* Any module, including your own, in one safetensors file.
 *
 * The file holds each parameter below the module under its full name (mc_parameter_name) and in its
 * dtype (f32, f16 or bf16), in the order of declaration. Other safetensors readers can open it, and
 * it does not depend on the number of ranks. It does not contain gradients and optimizer state: see
 * optim_state.h and training_state.h.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_CHECKPOINT_MODULE_FILE_H
#define MC_CHECKPOINT_MODULE_FILE_H

#include "core/checkpoint/pretrained.h"
#include "core/nn/module.h"

/* Writes all parameters below `module` (a root, or a part of a model) to the file `path`: first to
 * a temporary file, which is synced and then renamed, so an older file stays if anything fails. All
 * ranks call it together with the same path, in a folder that they share; each writes its own part.
 * When it returns on any rank, the file is complete. Errors: a folder that does not exist or cannot
 * be written, MC_ERR_NOT_FOUND or MC_ERR_IO; a NULL module or path, MC_ERR_ARGUMENT. */
MC_API mc_status mc_module_save(mc_module *module, const char *path);
/* mc_module_save with options (NULL: none). Weights larger than max_shard_size go to several files
 * named after `path`, which must then end in ".safetensors": "mine.safetensors" becomes
 * mine-00001-of-0000N.safetensors and mine.safetensors.index.json, which mc_module_load accepts.
 * Files of older saves under these names that the new index does not name are removed. Errors: a
 * negative size, another ending, MC_ERR_ARGUMENT. */
MC_API mc_status mc_module_save_as(mc_module *module, const char *path,
                                   const mc_save_options *options);

/* mc_module_save to a PyTorch file: a state dict with a tensor for each parameter. The library's
 * models use ModelCenter's names, so BMTrain's load(model, path) reads the file; ModelCenter calls
 * it pytorch_model.pt. The ranks first write a safetensors file beside it ("<path>.safetensors",
 * removed at the end), which rank 0 converts, so the disk needs room for both. MC_ERR_ARGUMENT if a
 * file of that name already exists. */
MC_API mc_status mc_module_save_torch(mc_module *module, const char *path);

/* Fills all parameters below `module` from the file `path` by name, converted to their dtype; each
 * rank reads its own shard. `path` may be anything that mc_tensor_file_open accepts: a folder, a
 * sharded file, PyTorch's files. All headers are checked before any data is read, so a module that
 * does not match the file stays unchanged. Errors: no such file, MC_ERR_NOT_FOUND; a damaged one,
 * MC_ERR_FORMAT; parameters missing in the file, MC_ERR_NOT_FOUND with all their names; another
 * shape (found and expected), MC_ERR_SHAPE; integers, MC_ERR_DTYPE; NULL, MC_ERR_ARGUMENT. Unused
 * tensors, and values that are NaN or infinite, are logged as warnings. */
MC_API mc_status mc_module_load(mc_module *module, const char *path);

#endif
