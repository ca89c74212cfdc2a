/* What the files of the model layer share. */
#ifndef MC_MODELS_MODEL_INTERNAL_H
#define MC_MODELS_MODEL_INTERNAL_H

#include "models/family_internal.h"
#include "models/packing_internal.h"

/* The heads that a new model is trained with unless others are given. */
mc_model_heads mc_default_heads(const mc_family *family, const mc_load_options *options);
/* The parameter that a file with a masked language model of the family has. */
static inline const char *mc_family_lm_has(const mc_family *family)
{
    return family->lm_has ? family->lm_has : "lm_head.dense.weight";
}
/* Before a file's weights are loaded: marks the parameters of heads that get initial values, since
 * the file lacks them or the options ask for a new classifier (mc_parameter.is_new). */
void mc_heads_mark_new(mc_model *m, const mc_model_file *f, const mc_load_options *options);
/* Whether the base model's names have their prefix in files: where heads stand beside it. */
bool mc_model_is_prefixed(const mc_model *m);
/* Whether the function `op` may begin: a tape and a model are given, and nothing has failed. */
bool mc_model_ready(mc_tape *t, const mc_model *m, const char *op);
/* Reads <folder>/generation_config.json into m->generation, if there is one and the model decodes.
 * False after an error. */
bool mc_generation_config_read(mc_model *m, const char *folder);
/* preprocessor_config.json of a model of images, models/files/image_form.c: a new model's form;
 * that of a folder (false after an error); and the file's text, for mc_free (NULL: there is none,
 * or an error). */
void mc_image_form_begin(mc_model *m);
bool mc_image_form_read(mc_model *m, const char *folder);
char *mc_image_form_text(const mc_model *m);
/* What an encoder-decoder's answers begin with; -1: not known. */
int64_t mc_start_token(const mc_model *m);
/* The folder that holds an identifier's files, ModelCenter's names included; they are downloaded if
 * need be. `options` may be NULL. All ranks do it together. */
mc_status mc_model_find_folder(mc_context *ctx, const char *identifier,
                               const mc_load_options *options, char folder[MC_PATH_MAX]);
/* The family of a config.json's "model_type"; NULL: none. */
const mc_family *mc_family_of_type(const char *type);
/* Rows of the classifier's matrix in a file, by our name for it (may be NULL); 0: it holds none. */
int mc_classes_in_file(const mc_weight_map *map, const mc_tensor_file *file, const char *ours);
/* The problem type of this name; NULL: none. */
const char *mc_problem_type_of(const char *name);

/* ---- labels.c ---- */

/* Names the labels of a new model LABEL_0, LABEL_1, ... */
bool mc_labels_name(mc_model *m);
/* The names of `count` labels in a config (NULL: none), which keep pointing into it; false: it does
 * not name that many. */
bool mc_labels_in_config(const cJSON *config, int count, const char **names);

#endif
