/* Replacing a model's files: see model_folder.h. */
#ifndef MC_CHECKPOINT_MODEL_FOLDER_INTERNAL_H
#define MC_CHECKPOINT_MODEL_FOLDER_INTERNAL_H

#include "core/base/file_internal.h"
#include "core/checkpoint/model_folder.h"

/* model.safetensors, its parts and their index, and the like of other forms. */
/* Whether `name` is a file that belongs beside config and weights. */
bool mc_model_folder_is_beside(const char *name);
bool mc_model_folder_is_weights(const char *name);

/* Removes the model of `folder`, its config first, unless all its files except weights are
 * identical to those in `from`: then weights can be replaced one by one. A file that `from` lacks
 * is a difference only with `all_of_it`: a program may keep model files beside its checkpoints. */
mc_status mc_model_folder_make_way(mc_error *err, const char *from, const char *folder,
                                   bool all_of_it);
/* Removes the config, so that the folder holds no model until a new config is written. */
mc_status mc_model_folder_unname(mc_error *err, const char *folder);
/* Removes a folder with its files; a missing folder is no error. */
mc_status mc_model_folder_remove(mc_error *err, const char *folder);

#endif
