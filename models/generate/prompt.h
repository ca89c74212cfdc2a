/* A text as a prompt, in the form that a model of its family was trained with.
 *
 *     mc_text_prompt p;
 *     if (mc_text_prompt_init(&p, model, tokenizer, text, size) == MC_OK)
 *         out = mc_model_generate(model, (const int32_t *[]){p.ids}, &p.count, 1, NULL);
 *     mc_text_prompt_release(&p);
 *
 * For GPT-2, GPT-J and T5, the prompt is the result of mc_tokenizer_encode. For CPM-1, <s> comes
 * before the text, and all of it is context; <eod> ends the answer. CPM-2 fills in blanks: <s_0>,
 * <s_1> ... in the text become these tokens (mc_tokenizer_encode reads them as text), and a text
 * without any gets <s_0> at its end. Its answer ends with <eod>, or with the sentinel after that of
 * the last blank. The prompt of an empty text is the token that begins a text.
 *
 * Part of the promised interface (docs/api.md). */
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

/* Errors, set in the context: an id for which the model has no row (mc_tokenizer_check_ids), an
 * empty text for a model without a token that begins one, memory. *prompt is empty then. */
MC_API mc_status mc_text_prompt_init(mc_text_prompt *prompt, mc_model *model,
                                     const mc_tokenizer *tokenizer, const char *text, size_t size);
/* The same for a conversation, written in `format` up to where the assistant's next message begins.
 * If the format's end of an answer is one token, prompt->end is that token. Errors also: a family
 * that is not a decoder; what mc_chat_render refuses (datasets/conversation.h). */
MC_API mc_status mc_chat_prompt_init(mc_text_prompt *prompt, mc_model *model,
                                     const mc_tokenizer *tokenizer, mc_chat_format format,
                                     const mc_chat_message *messages, size_t count);
/* The same for a conversation that has been rendered as a prompt: mc_chat_text.text of
 * mc_chat_render, or mc_table_chat_in. */
MC_API mc_status mc_rendered_prompt_init(mc_text_prompt *prompt, mc_model *model,
                                         const mc_tokenizer *tokenizer, mc_chat_format format,
                                         const char *text, size_t size);
MC_API void mc_text_prompt_release(mc_text_prompt *prompt);

#endif
