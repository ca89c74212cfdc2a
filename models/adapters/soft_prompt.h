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
#ifndef MC_MODELS_SOFT_PROMPT_H
#define MC_MODELS_SOFT_PROMPT_H

#include "models/model.h"

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
