/* A model's folder as a whole: which files are a model's, and how another model takes their place.
 *
 * What other programs or people keep in such a folder is left alone. At every instant the folder
 * holds one model whole, or no model: config.json (adapter_config.json) goes before the first file
 * of another model comes, and comes after the last.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_CHECKPOINT_MODEL_FOLDER_H
#define MC_CHECKPOINT_MODEL_FOLDER_H

#include <stddef.h>
#include "core/base/context.h"

/* Whether `name` is that of a file of a model: config.json, weights, a tokenizer's files, what says
 * how the model is used (task.json, modules.json, ...). */
MC_API bool mc_model_folder_has_name(const char *name);

/* Copies to `name` the name of a file of a model that lies in the folder, "" where none does, and
 * where there is no such folder. config.json goes before others. */
MC_API void mc_model_folder_find(const char *folder, char name[256]);

/* Saves a model of several files as a whole:
 *
 *     char aside[4096];
 *     mc_model_folder_begin(ctx, "my-model", aside, sizeof aside);
 *     mc_tokenizer_save(tokenizer, aside);
 *     mc_model_save(model, aside);
 *     mc_model_folder_commit(ctx, "my-model");
 *
 * mc_model_folder_begin makes the empty folder "my-model/model.tmp", and the folders above it,
 * and copies its path to `aside`; what a process left there that died goes.
 * mc_model_folder_commit moves the files to "my-model", in place of the model there; after an
 * error of the context it removes them. One process at a time does this in a folder. Ranks call
 * both together; a program that writes files of its own there leaves that to rank 0. Errors, set
 * in the context: MC_ERR_IO, MC_ERR_ARGUMENT. */
MC_API mc_status mc_model_folder_begin(mc_context *ctx, const char *folder, char *aside,
                                       size_t room);
MC_API mc_status mc_model_folder_commit(mc_context *ctx, const char *folder);

#endif
