/* Adapters: what loading and saving of models need to know of them. */
#ifndef MC_MODELS_LORA_INTERNAL_H
#define MC_MODELS_LORA_INTERNAL_H

#include "models/lora.h"
#include "models/model_internal.h"

enum { MC_LORA_NAMES = 64 }; /* targets, and modules to save, at most */

/* A model's factors. */
typedef struct mc_lora {
    mc_lora_options options; /* with defaults filled in, all copied */
} mc_lora;

/* The name of a parameter in `transformers` without ".weight" or ".bias": its module's. */
bool mc_lora_module_name(const mc_model *m, const mc_parameter *p, char out[MC_NAME_MAX]);
/* Whether a module's name is `name` or ends with it, whole parts compared. */
bool mc_lora_name_ends(const char *module, const char *name);
/* Before all names in files of adapters. */
extern const char mc_lora_prefix[];
/* Before the base's weights are loaded: has what is not in its file, and so gets initial values,
 * trained and saved with the factors, since nothing else would keep it. */
bool mc_lora_save_new(mc_model *m, const mc_model_file *f);
/* The model's weight map for the files of its adapter. */
mc_weight_map mc_lora_map(const mc_model *m);

/* ---- folders (lora_file.c) ------------------------------------------------------------------- */

/* An adapter's folder, opened. */
typedef struct mc_lora_file {
    mc_context *ctx;
    cJSON *json;
    char path[MC_PATH_MAX]; /* of adapter_config.json */
    const char *targets[MC_LORA_NAMES + 1], *modules[MC_LORA_NAMES + 1];
    mc_lora_options options; /* points into these */
    const char *revision;    /* of the base; NULL: main */
    mc_tensor_file *weights;
} mc_lora_file;

/* Reads adapter_config.json, and opens the weights. All but what it says is to be released in any
 * case. */
bool mc_lora_file_open(mc_context *ctx, const char *folder, mc_lora_file *out);
void mc_lora_file_release(mc_lora_file *file);
/* Classes of the classification head that is saved with the factors; 0: none is. */
int mc_lora_file_classes(const mc_lora_file *file, const mc_family *family);
/* Fills in the factors of a model that was made with the file's options, and what is saved with
 * them. */
bool mc_lora_file_load(const mc_lora_file *file, mc_model *m, const char *folder);
/* The text of adapter_config.json (cJSON_free it); NULL after an error. */
char *mc_lora_config_text(mc_model *m);

#endif
