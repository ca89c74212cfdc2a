/* Conversations as the text that a model was trained on: messages between markers.
 *
 *     mc_chat_format format;
 *     mc_chat_message messages[] = {{"user", "Hello"}};
 *     mc_chat_text chat = { 0 };
 *     mc_chat_format_choose(ctx, tok, NULL, &format);              the format of the model's files
 *     mc_chat_render(ctx, tok, format, messages, 1, true, &chat);
 *     ... chat.text: "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
 *     mc_chat_text_release(&chat);
 *
 * The text contains all special tokens. mc_tokenizer_append returns its ids; mc_tokenizer_encode
 * would add special tokens at both ends. The text is what the public templates of these models
 * produce. Mistral's ids are those of Mistral's own tokenizers. A template's program (Jinja) is
 * never run.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_CONVERSATION_H
#define MC_DATASETS_CONVERSATION_H

#include "datasets/chat_format.h"
#include "datasets/table.h"
#include "tokenizers/tokenizer.h"

/* Bytes from `start` up to `end`. */
typedef struct mc_chat_span {
    size_t start, end;
} mc_chat_span;

/* Starts as { 0 }. */
typedef struct mc_chat_text {
    char *text; /* (size), a NUL after it */
    size_t size;
    mc_chat_span *spans; /* (span_count): the assistant's messages with the ends after them */
    size_t span_count;
} mc_chat_text;

/* "chatml", "llama2", "llama3", "mistral-v1", "mistral-v3", "zephyr"; NULL for another value. */
MC_API const char *mc_chat_format_name(mc_chat_format format);
/* The text that ends an answer: "<|im_end|>", "<|eot_id|>", or the tokenizer's
 * eos_token. NULL for another value, or a NULL tokenizer. Belongs to the tokenizer. */
MC_API const char *mc_chat_format_end(mc_chat_format format, const mc_tokenizer *tok);

/* Sets *format to the format named `name`. NULL: the format whose markers are in the chat template
 * of the tokenizer's files ("chat_template" of tokenizer_config.json, or chat_template.jinja, which
 * counts first); a log line names it. Templates with [INST] are Llama 2's if they also have
 * <<SYS>>, Mistral's v3 if the vocabulary has a token [INST], else Mistral's v1. Errors: an unknown
 * name (MC_ERR_ARGUMENT), files without a template (MC_ERR_NOT_FOUND), a template without a known
 * marker (MC_ERR_UNSUPPORTED). Each message lists the formats. */
MC_API mc_status mc_chat_format_choose(mc_context *ctx, const mc_tokenizer *tok, const char *name,
                                       mc_chat_format *format);

/* Writes messages in a format, replacing the contents of *out. `prompt`: the text ends where the
 * assistant's next message begins. Errors (*out is empty): no messages; a role other than the
 * three; "system" anywhere but first; for llama2 and Mistral, messages of users and assistants that
 * do not alternate, starting with a user's. */
MC_API mc_status mc_chat_render(mc_context *ctx, const mc_tokenizer *tok, mc_chat_format format,
                                const mc_chat_message *messages, size_t count, bool prompt,
                                mc_chat_text *out);
MC_API void mc_chat_text_release(mc_chat_text *chat);

/* mc_table_chat (datasets/table.h) in a format: the conversation in a column of the current row as
 * a prompt, without the last message if it is the assistant's. The text ends with a NUL and is
 * valid until the next call. *length (`length` may be NULL) is set to its size in bytes. NULL after
 * an error, which names file, line and column. */
MC_API const char *mc_table_chat_in(mc_table *table, int column, const mc_tokenizer *tok,
                                    mc_chat_format format, size_t *length);

#endif
