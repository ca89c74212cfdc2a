/* LoRA (Hu et al. 2021): a model is frozen, and small factors beside some of its matrices are
 * trained in their place, as the Python package PEFT has it: y = x W^T + b + alpha / rank *
 * (dropout(x) A^T) B^T.
 *
 *     mc_model *gptj = mc_model_from_pretrained(ctx, "EleutherAI/gpt-j-6b", &load);
 *     mc_lora_add(gptj, &(mc_lora_options){.rank = 8, .alpha = 16});
 *     ... train ...
 *     mc_model_save(gptj, "my-adapter");             adapter_config.json, adapter_model.safetensors
 *
 *     mc_model *again = mc_model_from_pretrained(ctx, "my-adapter", NULL);
 *
 * What is frozen takes no memory for gradients or optimizer state, no products compute its
 * gradients, and activations that only those need are not kept. The factors have the model's dtype;
 * optimizers keep f32 master copies of them, as of all parameters. (PEFT keeps the factors of a
 * 16-bit model in f32.)
 *
 * A folder of PEFT's is a model: mc_model_from_pretrained loads the base that it names and then the
 * factors, and PEFT loads what mc_model_save writes. Modules are named as in `transformers`; those
 * of families that it does not have (CPM), as here. */
#ifndef MC_MODELS_LORA_H
#define MC_MODELS_LORA_H

#include "models/model.h"

/* A true zero of alpha makes no sense; zero fields are defaults. */
typedef struct mc_lora_options {
    int rank;      /* 0: 8 */
    float alpha;   /* the factors' product is multiplied by alpha / rank; 0: 16 */
    float dropout; /* of what A is applied to, in [0, 1). Matrices that are stored together (query,
                      key and value) drop the same elements */
    bool rslora;   /* alpha / sqrt(rank) in place of alpha / rank (Kalajdzievski 2023) */
    /* Which linear layers: the last parts of their names in `transformers`, as {"q_proj", "v_proj",
     * NULL}. NULL: PEFT's for the family, `c_attn` (GPT-2), `query`, `value` (BERT, RoBERTa),
     * `q_proj`, `v_proj` (GPT-J), `q`, `v` (T5); of CPM `project_q`, `project_v`. */
    const char *const *targets;
    /* In place of targets, as PEFT takes a single string: "all-linear", or a regular expression
     * (POSIX extended) that the whole of a layer's name matches. */
    const char *target_pattern;
    /* Modules that are trained and saved whole, named in the same way; NULL: the classification
     * head, where the model has one. An empty list: none.
     * Words and a head that are one table no longer are if either is saved, as in PEFT; then the
     * options have to be those of loading (mc_load_options.lora). Errors: T5's words, and those of
     * a masked language model, which PEFT would read as another model. */
    const char *const *modules_to_save;
    /* What adapter_config.json says the base model is; NULL: what it was loaded from. */
    const char *base;
} mc_lora_options;

/* Freezes a model but for its modules to save, and adds factors, of which A has random values and B
 * is zero, so that the model computes what it did. `options` may be NULL. Before or after weights
 * are loaded (mc_load_options.lora does it before, which spares moving them); before an optimizer
 * is added. All ranks do it together. Errors: a target that is no linear layer of the model (its
 * layers are listed), a module that it does not have, a model that has factors already, numbers out
 * of range; T5 in ModelCenter's divided form, MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_lora_add(mc_model *model, const mc_lora_options *options);
/* Adds the factors' products to the weights and removes the factors: an ordinary model, all of it
 * trainable. Nothing may have been declared in it after the factors. NULL or a model without them
 * is MC_ERR_ARGUMENT. All ranks do it together. */
MC_API mc_status mc_lora_merge(mc_model *model);
/* The options that a model's factors were made with, defaults filled in; they live as long as the
 * model. NULL without factors. */
MC_API const mc_lora_options *mc_model_lora(const mc_model *model);
/* Parameters that are trained, in elements. */
MC_API int64_t mc_model_trainable_count(mc_model *model);

#endif
