/* A model's folder as a whole: which files belong to a model, and how another model replaces them.
 *
 * Other files in such a folder are left alone. At any moment the folder has one complete model or
 * none: config.json (adapter_config.json) is removed before the first file of another model is
 * written, and written after the last.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_CHECKPOINT_MODEL_FOLDER_H
#define MC_CHECKPOINT_MODEL_FOLDER_H

#include <stddef.h>
#include "core/base/context.h"

/* Whether `name` is the name of a model file: config.json, weights, a tokenizer's files, files
 * about the model's use (task.json, modules.json, ...). */
MC_API bool mc_model_folder_has_name(const char *name);

/* Copies the name of a model file in the folder to `name`; "" if the folder has none or does not
 * exist. Prefers config.json. */
MC_API void mc_model_folder_find(const char *folder, char name[256]);

/* Saves a model of several files as a whole:
 *
 *     char aside[4096];
 *     mc_model_folder_begin(ctx, "my-model", aside, sizeof aside);
 *     mc_tokenizer_save(tokenizer, aside);
 *     mc_model_save(model, aside);
 *     mc_model_folder_commit(ctx, "my-model");
 *
 * mc_model_folder_begin creates the empty folder "my-model/model.tmp", and the folders above it,
 * and copies its path to `aside`. It removes what a process that died left there.
 * mc_model_folder_commit moves the files to "my-model", replacing the model there; on a failed
 * context it removes them, and the folders that were created if they are empty. Only one process at
 * a time may do this in a folder, and a context in one folder at a time. Ranks call both
 * together; a program's own files are written by rank 0 only. Errors, set in the context:
 * MC_ERR_IO, MC_ERR_ARGUMENT. */
MC_API mc_status mc_model_folder_begin(mc_context *ctx, const char *folder, char *aside,
                                       size_t room);
MC_API mc_status mc_model_folder_commit(mc_context *ctx, const char *folder);

#endif
