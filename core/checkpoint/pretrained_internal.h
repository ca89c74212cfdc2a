/* Writing the folder of a model: what all families share. */
#ifndef MC_CHECKPOINT_PRETRAINED_INTERNAL_H
#define MC_CHECKPOINT_PRETRAINED_INTERNAL_H

#include "core/checkpoint/weight_map_internal.h"

/* What is written. */
typedef struct mc_pretrained_folder {
    mc_module *model;
    const mc_weight_map *map;
    int layers;
    bool prefixed;      /* heads stand beside the base model, see mc_weight_name */
    bool unscale;       /* values are multiplied by their rules' factors */
    const char *config; /* the text of config.json; NULL: memory was out */
} mc_pretrained_folder;

/* Writes config.json and model.safetensors into a folder, made if need be. Both are written aside
 * and synced to disk before either takes its name. All ranks do it together: each writes its share
 * of the weights, and rank 0 the rest. */
mc_status mc_pretrained_write(const mc_pretrained_folder *what, const char *folder);

#endif
