/* Writing a model's folder, for all families. */
#ifndef MC_CHECKPOINT_PRETRAINED_INTERNAL_H
#define MC_CHECKPOINT_PRETRAINED_INTERNAL_H

#include "core/checkpoint/pretrained.h"
#include "core/checkpoint/weight_map_internal.h"

/* False, with an error, for unsupported options. NULL is valid. */
bool mc_save_options_check(mc_context *ctx, const mc_save_options *options);

/* The contents of a model's folder. */
typedef struct mc_pretrained_folder {
    mc_module *model;
    mc_weight_form form;
    const char *config;       /* the text of config.json; NULL: memory ran out */
    const char *generation;   /* the text of generation_config.json; NULL: none */
    const char *preprocessor; /* the text of preprocessor_config.json; NULL: none */
    /* The text of adapter_config.json for an adapter; else NULL. */
    const char *adapter;
} mc_pretrained_folder;

/* Writes config.json and model.safetensors, or shards of it (for an adapter also
 * adapter_config.json and adapter_model.safetensors) into a folder, which is created if needed. All
 * files are written under temporary names and synced before any is renamed. Collective: each rank
 * writes its share of the weights, and rank 0 the rest. */
mc_status mc_pretrained_write(const mc_pretrained_folder *what, const char *folder);

/* Writes the tensors of a file, or of a folder's weights, as a PyTorch file. Collective: rank 0
 * does it, while the others wait. */
mc_status mc_torch_file_from(mc_context *ctx, const char *from, const char *path);

#endif
