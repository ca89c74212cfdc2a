/* Adapters: what is trained beside a frozen model and kept in PEFT's files: LoRA's factors, or soft
 * prompts. */
#ifndef MC_MODELS_ADAPTER_H
#define MC_MODELS_ADAPTER_H

#include "models/model.h"

/* ---- LoRA ------------------------------------------------------------------------------------ */

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

/* A true zero of alpha makes no sense; zero fields are defaults. */
typedef struct mc_lora_options {
    int rank;      /* 0: 8 */
    float alpha;   /* the factors' product is multiplied by alpha / rank; 0: 16 */
    float dropout; /* of what A is applied to, in [0, 1). Matrices that are stored together (query,
                      key and value) drop the same elements */
    bool rslora;   /* alpha / sqrt(rank) in place of alpha / rank (Kalajdzievski 2023) */
    /* Which linear layers: the last parts of their names in `transformers`, as {"q_proj", "v_proj",
     * NULL}. NULL: PEFT's for the family, `c_attn` (GPT-2), `query`, `value` (BERT, RoBERTa,
     * ELECTRA), `q_proj`, `v_proj` (GPT-J), `q`, `v` (T5); of families that PEFT has none for those
     * of queries and values too. */
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

/* ---- soft prompts ---------------------------------------------------------------------------- */

/* Soft prompts (Lester et al. 2021): a model is frozen, and vectors that stand before the words of
 * every text are trained in its place, as the Python package PEFT has it (PROMPT_TUNING).
 *
 *     mc_model *gpt2 = mc_model_from_pretrained(ctx, "gpt2", NULL);
 *     mc_soft_prompt_add(gpt2, &(mc_soft_prompt_options){.tokens = 20});
 *     ... train, generate ...
 *     mc_model_save(gpt2, "my-prompt");          adapter_config.json, adapter_model.safetensors
 *
 * The vectors take the place of the embeddings of words: of BERT and GPT-2 the embeddings of
 * positions 0 .. tokens - 1 (and of type 0) are added to them, and a text's first word has position
 * `tokens`. So a text may have that many tokens less, as mc_model_get_shape says. Callers see
 * nothing of them: ids, lengths, labels and mc_model_output.last_hidden are of the text's own
 * tokens alone. Of a decoder the loss is of the same labels as without (PEFT also counts the first
 * token of a text, which the last vector predicts). Classifiers look where PEFT's do: BERT's and
 * RoBERTa's at the first vector, GPT-2's and GPT-J's at the last token. An encoder-decoder's come
 * before the encoder's texts.
 *
 * Batches whose lengths a recorded step refills (mc_lengths_new) are MC_ERR_UNSUPPORTED. */

typedef struct mc_soft_prompt_options {
    int tokens; /* required: vectors before each text, from 1 up to what the positions allow */
    /* PEFT's num_transformer_submodules, 1 or 2; 0: 1. PEFT stores vectors for the decoder of an
     * encoder-decoder, too (2), which it then has no use for. Only encoder-decoders have 2. */
    int stacks;
    /* As in mc_lora_options. */
    const char *const *modules_to_save;
    const char *base;
} mc_soft_prompt_options;

/* Freezes a model but for its modules to save, and gives it virtual tokens, with values from the
 * standard normal distribution (PEFT's RANDOM). Before or after weights are loaded
 * (mc_load_options.soft_prompt does it before); before an optimizer is added. All ranks do it
 * together. Errors: a number of tokens that is out of range, a model that has an adapter already;
 * MC_ERR_UNSUPPORTED: CPM, T5 with a classifier (`transformers` has no way for it either) and T5 in
 * ModelCenter's divided form. */
MC_API mc_status mc_soft_prompt_add(mc_model *model, const mc_soft_prompt_options *options);
/* Begins with words (PEFT's TEXT): vector i becomes the embedding of ids[i % count]. All ranks do
 * it together, once weights are loaded. Errors: no ids, an id out of range, a model without virtual
 * tokens. */
MC_API mc_status mc_soft_prompt_set_words(mc_model *model, const int32_t *ids, int count);
/* What a model's virtual tokens were made with, defaults filled in; they live as long as the model.
 * NULL without. */
MC_API const mc_soft_prompt_options *mc_model_soft_prompt(const mc_model *model);

#endif
