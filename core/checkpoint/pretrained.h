/* What all from_pretrained functions share. */
#ifndef MC_CHECKPOINT_PRETRAINED_H
#define MC_CHECKPOINT_PRETRAINED_H

#include "core/nn/block_list.h"
#include "core/tensor/dtype.h"

typedef struct mc_load_options {
    mc_dtype dtype;      /* of the parameters in memory; default f32, whatever the file has */
    bool saved_dtype;    /* with dtype left at its default: the one that config.json says the model
                               was saved in ("dtype" or "torch_dtype"; f32 where it says none) */
    const char *variant; /* of the weight file: model.<variant>.safetensors; NULL: see
                               mc_safetensors_open */
    int num_labels;      /* > 0: the model gets a classification head of that many labels; if the
                               file has none it is initialised, and said so through the log */
    mc_recompute recompute; /* of the model's blocks */
    /* Where an identifier's files come from: see core/hub/hub.h. Of a folder they say nothing. */
    const char *revision;  /* a branch, a tag or a commit; NULL: "main" */
    const char *cache_dir; /* in place of HF_HUB_CACHE; NULL: none */
    bool local_files_only; /* nothing is downloaded */
} mc_load_options;

#endif
