/* What all functions share that load and save models. */
#ifndef MC_CHECKPOINT_PRETRAINED_H
#define MC_CHECKPOINT_PRETRAINED_H

#include <stdint.h>
#include "core/nn/block_list.h"
#include "core/tensor/dtype.h"

typedef struct mc_load_options {
    mc_dtype dtype;      /* of the parameters in memory; default f32, whatever the file has */
    bool saved_dtype;    /* with dtype left at its default: the one that config.json says the model
                               was saved in ("dtype" or "torch_dtype"; f32 where it says none) */
    const char *variant; /* of the weight file: model.<variant>.safetensors; NULL: see
                               mc_tensor_file_open */
    bool saved_heads;    /* only heads that the file has: BERT gets no pooler where it has none */
    int num_labels;      /* > 0: the model gets a classification head of that many labels; if the
                               file has none it is initialised, and said so through the log */
    bool new_head; /* with num_labels: a classification head that the file has is not read; the
                      rows of the new one, a label each, have initial values. Else a head of another
                      number of labels is an error */
    /* Heads of pretraining that the model gets beside the file's: a language model's (a classifier
     * is left out then), a next sentence's, a pooler (see mc_objective_heads). What the file has of
     * them is read, and a head that it lacks altogether is initialised, with a warning; one that is
     * there in part is an error. NULL: none */
    const struct mc_model_heads *heads;
    mc_recompute recompute; /* of the model's blocks */
    const struct mc_lora_options
        *lora; /* adds factors: see mc_lora_add (models/adapters/adapter.h); NULL: none */
    const struct mc_soft_prompt_options
        *soft_prompt; /* adds virtual tokens: see models/adapters/adapter.h; NULL: none */
    /* Of an adapter, of either kind: the folder or identifier of its base, in place of the one
     * that it names. Errors: a model that is no adapter. */
    const char *base;
    /* Where an identifier's files come from: see core/hub/hub.h. Of a folder they say nothing. */
    const char *revision;  /* a branch, a tag or a commit; NULL: "main" */
    const char *cache_dir; /* in place of HF_HUB_CACHE; NULL: none */
    bool local_files_only; /* nothing is downloaded */
} mc_load_options;

/* How a model's folder is written. */
typedef enum mc_save_form {
    MC_SAVE_DEFAULT = 0,  /* Hugging Face's, but for families that have no such form (CPM) */
    MC_SAVE_HUGGING_FACE, /* as `transformers` loads it */
    MC_SAVE_MODELCENTER,  /* ModelCenter's keys and names of tensors, in safetensors files */
} mc_save_form;

typedef struct mc_save_options {
    mc_save_form form; /* of models; other modules have none */
    /* Bytes of tensors that a file holds at most (one tensor may be larger): weights that are more
     * go to model-00001-of-0000N.safetensors and so on, and an index of them to
     * model.safetensors.index.json, in the same pieces as `transformers` writes. 0: one file of any
     * size. */
    int64_t max_shard_size;
} mc_save_options;

#endif
