/* Where the text of an answer ends: at stop texts in the decoded text, which may span several
 * tokens, and at a token that belongs to each prompt.
 *
 *     mc_stop stop = {.tokenizer = tok, .texts = (const char *[]){"\n\n"}, .text_count = 1};
 *     mc_generate_options o = {.stop = mc_stop_reached, .stop_user = &stop};
 *     mc_generation *out = mc_model_generate(model, prompts, lengths, count, &o);
 *     char *text = mc_stop_text(&stop, 0, out->ids[0], out->lengths[0], &size);
 *
 * The answer's tokens are whole: the last may begin or hold the text that ended it. */
#ifndef MC_MODELS_GENERATE_STOP_H
#define MC_MODELS_GENERATE_STOP_H

#include "models/generate/generate.h"
#include "tokenizers/tokenizer.h"

/* What ends answers beside their end tokens. The caller's, as are its arrays. */
typedef struct mc_stop {
    const mc_tokenizer *tokenizer;
    const char *const *texts; /* (text_count), none of them empty; UTF-8 */
    int text_count;
    /* A token of each prompt that ends its answers and is no part of their text
     * (mc_text_prompt.end); -1: none. NULL: none for all. */
    const int32_t *tokens;
} mc_stop;

/* For mc_generate_options.stop; `stop` is an mc_stop. Where decoding fails (memory) the answer ends
 * and the tokenizer's context has the error. */
MC_API bool mc_stop_reached(void *stop, int prompt, const int32_t *ids, int count);
/* The text of an answer up to the first of the texts, without special tokens: a heap string for
 * mc_string_free of *size bytes, which may hold NULs. NULL after an error. */
MC_API char *mc_stop_text(const mc_stop *stop, int prompt, const int32_t *ids, int count,
                          size_t *size);

/* ---- as it comes ----------------------------------------------------------------------------- */

/* The text of one answer while its tokens come: pieces that together are that of mc_stop_text. */
typedef struct mc_text_stream mc_text_stream;

/* Of an answer to a prompt. `stop` must outlive it. NULL when memory is out (the tokenizer's
 * context has the error). */
MC_API mc_text_stream *mc_text_stream_new(const mc_stop *stop, int prompt);
/* Takes the next token. Gives the text that is certain by it, *size bytes, valid until the next
 * call: whole characters, without what may turn out to begin one of the texts. NULL after an
 * error. */
MC_API const char *mc_text_stream_add(mc_text_stream *stream, int32_t token, size_t *size);
/* Gives the rest, after the last token. */
MC_API const char *mc_text_stream_end(mc_text_stream *stream, size_t *size);
MC_API void mc_text_stream_free(mc_text_stream *stream); /* NULL is allowed */

#endif
