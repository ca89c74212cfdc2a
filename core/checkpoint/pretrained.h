/* Options shared by all functions that load and save models.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_CHECKPOINT_PRETRAINED_H
#define MC_CHECKPOINT_PRETRAINED_H

#include <stdint.h>
#include "core/nn/block_list.h"
#include "core/nn/recipe.h"
#include "core/tensor/dtype.h"

typedef struct mc_load_options {
    mc_dtype dtype;      /* of the parameters in memory; default f32, whatever the file's dtype */
    bool saved_dtype;    /* if dtype is the default: use the dtype that config.json names ("dtype"
                            or "torch_dtype"; f32 if it names none) */
    const char *variant; /* of the weight file: model.<variant>.safetensors; NULL: see
                               mc_tensor_file_open */
    bool saved_heads;    /* only heads that the file has: BERT gets no pooler if the file has
                            none */
    int num_labels;      /* > 0: the model gets a classification head with this number of labels; if
                            the file has none, it is initialised, and the log reports that */
    bool new_head; /* with num_labels: ignore the file's classification head and initialise a new
                      one. Otherwise a head with another number of labels is an error */
    /* Pretraining heads that the model gets in addition to the file's: a language model's (the
     * model then gets no classifier), a next sentence's, a pooler (see mc_objective_heads). Heads
     * in the file are read. A head that it lacks is initialised, with a warning; an incomplete head
     * is an error. NULL: none */
    const struct mc_model_heads *heads;
    mc_recompute recompute; /* of the model's blocks */
    mc_recipe recipe;       /* training in 8 bits; zeros: none */
    const struct mc_lora_options
        *lora; /* adds factors: see mc_lora_add (models/adapters/adapter.h); NULL: none */
    const struct mc_soft_prompt_options
        *soft_prompt; /* adds virtual tokens: see models/adapters/adapter.h; NULL: none */
    /* For an adapter of either kind: the folder or identifier of its base, instead of the one that
     * it names. Errors: the model is not an adapter. */
    const char *base;
    /* The source of an identifier's files: see core/hub/hub.h. Ignored for a folder. */
    const char *revision;  /* a branch, a tag or a commit; NULL: "main" */
    const char *cache_dir; /* in place of HF_HUB_CACHE; NULL: none */
    bool local_files_only; /* nothing is downloaded */
} mc_load_options;

/* How a model's folder is written. */
typedef enum mc_save_form {
    MC_SAVE_DEFAULT = 0,  /* Hugging Face's, except for families without such a form (CPM) */
    MC_SAVE_HUGGING_FACE, /* as `transformers` loads it */
    MC_SAVE_MODELCENTER,  /* ModelCenter's keys and names of tensors, in safetensors files */
} mc_save_form;

typedef struct mc_save_options {
    mc_save_form form; /* for models; ignored for other modules */
    /* The most bytes of tensors in a file (one tensor may be larger): larger weights are split into
     * model-00001-of-0000N.safetensors and so on, with an index in model.safetensors.index.json, in
     * the same shards as `transformers` writes. 0: one file of any size. */
    int64_t max_shard_size;
} mc_save_options;

#endif
