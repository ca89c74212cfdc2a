/* What all from_pretrained functions share. */
#ifndef MC_CHECKPOINT_PRETRAINED_H
#define MC_CHECKPOINT_PRETRAINED_H

#include "core/nn/block_list.h"
#include "core/tensor/dtype.h"

typedef struct mc_load_options {
    mc_dtype dtype;         /* of the parameters in memory; default f32, whatever the file has */
    const char *variant;    /* of the weight file: model.<variant>.safetensors; NULL: see
                               mc_safetensors_open */
    int num_labels;         /* > 0: the model gets a classification head of that many labels; if the
                               file has none it is initialised, and said so through the log */
    mc_recompute recompute; /* of the model's blocks */
} mc_load_options;

#endif
