/* A text as a prompt, in the form that a model of its family was trained with.
 *
 *     mc_text_prompt p;
 *     if (mc_text_prompt_init(&p, model, tokenizer, text, size) == MC_OK)
 *         out = mc_model_generate(model, (const int32_t *[]){p.ids}, &p.count, 1, NULL);
 *     mc_text_prompt_release(&p);
 *
 * GPT-2, GPT-J and T5 get the ids of mc_tokenizer_encode. CPM-1 gets <s> before the text, all of it
 * context; <eod> ends the answer. CPM-2 fills in blanks: <s_0>, <s_1> ... written in the text are
 * these tokens, which they are not to the tokenizer itself, and a text without any gets <s_0> after
 * it. Its answer ends with <eod>, or with the sentinel that follows the last blank's. An empty text
 * is the token that begins a text, where the model has one. */
#ifndef MC_MODELS_GENERATE_PROMPT_H
#define MC_MODELS_GENERATE_PROMPT_H

#include "datasets/chat_format.h"
#include "models/model.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_text_prompt {
    int32_t *ids; /* (count) */
    int count;
    int32_t end; /* ends its answer as the model's end tokens do: mc_stop.tokens; -1: none */
} mc_text_prompt;

/* Errors, set in the context: an id that the model has no row for (mc_tokenizer_check_ids), an
 * empty text for a model without a token that begins one, memory. *prompt is empty then. */
MC_API mc_status mc_text_prompt_init(mc_text_prompt *prompt, mc_model *model,
                                     const mc_tokenizer *tokenizer, const char *text, size_t size);
/* The same for a conversation, written in `format` up to where the assistant's next message begins.
 * If the format's end of an answer is one token, prompt->end is that token. Errors also: a family
 * that is not a decoder; what mc_chat_render refuses (datasets/conversation.h). */
MC_API mc_status mc_chat_prompt_init(mc_text_prompt *prompt, mc_model *model,
                                     const mc_tokenizer *tokenizer, mc_chat_format format,
                                     const mc_chat_message *messages, size_t count);
MC_API void mc_text_prompt_release(mc_text_prompt *prompt);

#endif
