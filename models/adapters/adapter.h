/* Adapters: parameters that are trained next to a frozen model and saved in PEFT's files: LoRA
 * factors, or soft prompts.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_ADAPTER_H
#define MC_MODELS_ADAPTER_H

#include "models/model.h"

/* ---- LoRA ------------------------------------------------------------------------------------ */

/* LoRA (Hu et al. 2021): the model is frozen, and small factors of some of its matrices are trained
 * instead, as in the Python package PEFT: y = x W^T + b + alpha / rank * (dropout(x) A^T) B^T.
 *
 *     mc_model *gptj = mc_model_from_pretrained(ctx, "EleutherAI/gpt-j-6b", &load);
 *     mc_lora_add(gptj, &(mc_lora_options){.rank = 8, .alpha = 16});
 *     ... train ...
 *     mc_model_save(gptj, "my-adapter");             adapter_config.json, adapter_model.safetensors
 *
 *     mc_model *again = mc_model_from_pretrained(ctx, "my-adapter", NULL);
 *
 * Frozen parameters take no memory for gradients or optimizer state. Their gradients are not
 * computed, and activations that only these would need are not kept. The factors have the model's
 * dtype; optimizers keep f32 master copies of them, as of all parameters. (PEFT keeps the factors
 * of a 16-bit model in f32.)
 *
 * A PEFT folder can be loaded as a model: mc_model_from_pretrained loads the base that it names and
 * then the factors, and PEFT loads what mc_model_save writes. Modules have their names in
 * `transformers`; families that it lacks (CPM) use this library's names. */

/* Zero fields are defaults (an alpha of 0 would make no sense). */
typedef struct mc_lora_options {
    int rank;      /* 0: 8 */
    float alpha;   /* the factors' product is multiplied by alpha / rank; 0: 16 */
    float dropout; /* on the input of A, in [0, 1). Matrices that are stored together (query, key
                      and value) drop the same elements */
    bool rslora;   /* alpha / sqrt(rank) in place of alpha / rank (Kalajdzievski 2023) */
    /* Which linear layers: the last parts of their names in `transformers`, for example {"q_proj",
     * "v_proj", NULL}. NULL: PEFT's choice for the family: `c_attn` (GPT-2), `query`, `value`
     * (BERT, RoBERTa, ELECTRA), `q_proj`, `v_proj` (GPT-J), `q`, `v` (T5); for families without
     * one, queries and values too. */
    const char *const *targets;
    /* Instead of targets, like a single string in PEFT: "all-linear", or a regular expression
     * (POSIX extended) that must match a layer's whole name. */
    const char *target_pattern;
    /* Modules that are trained and saved as a whole, named in the same way. NULL: the
     * classification head, if the model has one. An empty list: none. If the word embedding or a
     * head tied to it is saved, they are untied, as in PEFT; the options must then be passed when
     * loading (mc_load_options.lora). Errors: the word embedding of T5 or of a masked language
     * model, which PEFT would read as another model. */
    const char *const *modules_to_save;
    /* The base model's name for adapter_config.json; NULL: where it was loaded from. */
    const char *base;
} mc_lora_options;

/* Freezes a model except for its modules_to_save, and adds factors: A is random and B is zero, so
 * the model's results do not change. `options` may be NULL. Call it before or after loading weights
 * (mc_load_options.lora does it before, which avoids moving them), and before adding an optimizer.
 * All ranks call it together. Errors: a target that is not a linear layer of the model (the message
 * lists its layers), a module that it does not have, a model that already has factors, numbers out
 * of range; T5 in ModelCenter's divided form, MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_lora_add(mc_model *model, const mc_lora_options *options);
/* Adds the factors' products to the weights and removes the factors. The result is an ordinary
 * model whose parameters are all trainable. Fails if parameters were declared in it after the
 * factors. NULL or a model without factors is MC_ERR_ARGUMENT. All ranks call it together. */
MC_API mc_status mc_lora_merge(mc_model *model);
/* The options of a model's factors, with defaults filled in. They live as long as the model. NULL
 * without factors. */
MC_API const mc_lora_options *mc_model_lora(const mc_model *model);
/* The number of trainable elements. */
MC_API int64_t mc_model_trainable_count(mc_model *model);

/* ---- soft prompts ---------------------------------------------------------------------------- */

/* Soft prompts (Lester et al. 2021): the model is frozen, and vectors before the words of every
 * text are trained instead, as in the Python package PEFT (PROMPT_TUNING).
 *
 *     mc_model *gpt2 = mc_model_from_pretrained(ctx, "gpt2", NULL);
 *     mc_soft_prompt_add(gpt2, &(mc_soft_prompt_options){.tokens = 20});
 *     ... train, generate ...
 *     mc_model_save(gpt2, "my-prompt");          adapter_config.json, adapter_model.safetensors
 *
 * The vectors replace word embeddings: BERT and GPT-2 add the embeddings of positions 0 .. tokens -
 * 1 (and of type 0) to them, and a text's first word has position `tokens`. So the longest text is
 * shorter by `tokens`, which mc_model_get_shape takes into account. Callers do not see the vectors:
 * ids, lengths, labels and mc_model_output.last_hidden cover only the text's own tokens. A
 * decoder's loss covers the same labels as without them (PEFT also counts the first token of a
 * text, which the last vector predicts). Classifiers look where PEFT's do: BERT's and RoBERTa's at
 * the first vector, GPT-2's and GPT-J's at the last token. In an encoder-decoder the vectors come
 * before the encoder's texts.
 *
 * Batches whose lengths a recorded step refills (mc_lengths_new) are MC_ERR_UNSUPPORTED. */

typedef struct mc_soft_prompt_options {
    int tokens; /* required: vectors before each text, from 1 up to what the positions allow */
    /* PEFT's num_transformer_submodules, 1 or 2; 0: 1. With 2, only for encoder-decoders, PEFT also
     * stores vectors for the decoder, which it does not use. */
    int stacks;
    /* As in mc_lora_options. */
    const char *const *modules_to_save;
    const char *base;
} mc_soft_prompt_options;

/* Freezes a model except for its modules_to_save, and adds virtual tokens with values from the
 * standard normal distribution (PEFT's RANDOM). Call it before or after loading weights
 * (mc_load_options.soft_prompt does it before), and before adding an optimizer. All ranks call it
 * together. Errors: a number of tokens out of range, a model that already has an adapter;
 * MC_ERR_UNSUPPORTED: CPM, T5 with a classifier (as in `transformers`) and T5 in ModelCenter's
 * divided form. */
MC_API mc_status mc_soft_prompt_add(mc_model *model, const mc_soft_prompt_options *options);
/* Initialises the vectors with words (PEFT's TEXT): vector i becomes the embedding of ids[i %
 * count]. All ranks call it together, after loading weights. Errors: no ids, an id out of range, a
 * model without virtual tokens. */
MC_API mc_status mc_soft_prompt_set_words(mc_model *model, const int32_t *ids, int count);
/* The options of a model's virtual tokens, with defaults filled in. They live as long as the model.
 * NULL without virtual tokens. */
MC_API const mc_soft_prompt_options *mc_model_soft_prompt(const mc_model *model);

#endif
