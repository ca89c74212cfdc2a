/* Writing the folder of a model: what all families share. */
#ifndef MC_CHECKPOINT_PRETRAINED_INTERNAL_H
#define MC_CHECKPOINT_PRETRAINED_INTERNAL_H

#include "core/checkpoint/pretrained.h"
#include "core/checkpoint/weight_map_internal.h"

/* False, with an error, for options that cannot be followed. NULL is good. */
bool mc_save_options_check(mc_context *ctx, const mc_save_options *options);

/* What is written. */
typedef struct mc_pretrained_folder {
    mc_module *model;
    mc_weight_form form;
    const char *config;       /* the text of config.json; NULL: memory was out */
    const char *generation;   /* the text of generation_config.json; NULL: none */
    const char *preprocessor; /* the text of preprocessor_config.json; NULL: none */
    /* The text of adapter_config.json, where an adapter is written; else NULL. */
    const char *adapter;
} mc_pretrained_folder;

/* Writes config.json and model.safetensors (of an adapter adapter_config.json and
 * adapter_model.safetensors too), or shards of it, into a folder, made if need be. All
 * are written aside and synced to disk before any takes its name. All ranks do it together: each
 * writes its share of the weights, and rank 0 the rest. */
mc_status mc_pretrained_write(const mc_pretrained_folder *what, const char *folder);

#endif
