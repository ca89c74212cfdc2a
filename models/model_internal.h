/* What the files of the model layer share. */
#ifndef MC_MODELS_MODEL_INTERNAL_H
#define MC_MODELS_MODEL_INTERNAL_H

#include "models/family_internal.h"
#include "models/packing_internal.h"

/* The heads that a new model is trained with unless others are given. */
mc_model_heads mc_default_heads(const mc_family *family, const mc_load_options *options);
/* Whether the base model's names have their prefix in files: where heads stand beside it. */
bool mc_model_is_prefixed(const mc_model *m);
/* Reads <folder>/generation_config.json into m->generation, if there is one and the model decodes.
 * False after an error. */
bool mc_generation_config_read(mc_model *m, const char *folder);
/* What an encoder-decoder's answers begin with; -1: not known. */
int64_t mc_start_token(const mc_model *m);
/* The folder that holds an identifier's files, ModelCenter's names included; they are downloaded if
 * need be. `options` may be NULL. All ranks do it together. */
mc_status mc_model_find_folder(mc_context *ctx, const char *identifier,
                               const mc_load_options *options, char folder[MC_PATH_MAX]);

#endif
