/* Where the text of an answer ends: at stop texts in the decoded text, which may span several
 * tokens, and at a token that belongs to each prompt.
 *
 *     mc_stop stop = {.tokenizer = tok, .texts = (const char *[]){"\n\n"}, .text_count = 1};
 *     mc_generate_options o = {.stop = mc_stop_reached, .stop_user = &stop};
 *     mc_generation *out = mc_model_generate(model, prompts, lengths, count, &o);
 *     char *text = mc_stop_text(&stop, 0, out->ids[0], out->lengths[0], &size);
 *
 * An answer's tokens are not cut at the stop text: the last ones may contain it.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_GENERATE_STOP_H
#define MC_MODELS_GENERATE_STOP_H

#include "models/generate/generate.h"
#include "tokenizers/tokenizer.h"

/* What ends answers, besides end tokens. The struct and its arrays belong to the caller. */
typedef struct mc_stop {
    const mc_tokenizer *tokenizer;
    const char *const *texts; /* (text_count), none of them empty; UTF-8 */
    int text_count;
    /* For each prompt, a token that ends its answers and does not belong to their text
     * (mc_text_prompt.end); -1: none. NULL: none for any prompt. */
    const int32_t *tokens;
} mc_stop;

/* For mc_generate_options.stop; `stop` is an mc_stop. If decoding fails (memory), the answer ends
 * and the tokenizer's context has the error. */
MC_API bool mc_stop_reached(void *stop, int prompt, const int32_t *ids, int count);
/* The text of an answer up to the first stop text, without special tokens: a heap string of *size
 * bytes, which may contain NULs. Free it with mc_string_free. NULL after an error. */
MC_API char *mc_stop_text(const mc_stop *stop, int prompt, const int32_t *ids, int count,
                          size_t *size);

/* ---- streaming ------------------------------------------------------------------------------- */

/* The text of one answer, in pieces while its tokens arrive; together they are mc_stop_text's. */
typedef struct mc_text_stream mc_text_stream;

/* Creates a stream for one answer to a prompt. `stop` must outlive it. NULL when memory is out (the
 * tokenizer's context has the error). */
MC_API mc_text_stream *mc_text_stream_new(const mc_stop *stop, int prompt);
/* Adds the next token. Returns the text that no later token can change, *size bytes, valid until
 * the next call: it ends before an incomplete character and before a possible beginning of a stop
 * text. NULL after an error. */
MC_API const char *mc_text_stream_add(mc_text_stream *stream, int32_t token, size_t *size);
/* Returns the rest of the text, after the last token. */
MC_API const char *mc_text_stream_end(mc_text_stream *stream, size_t *size);
MC_API void mc_text_stream_free(mc_text_stream *stream); /* NULL is allowed */

#endif
