/* How a text is put to GLM: its blank, and what stands around it. */
#ifndef MC_DATASETS_BLANK_PROMPT_INTERNAL_H
#define MC_DATASETS_BLANK_PROMPT_INTERNAL_H

#include "core/base/error_internal.h"
#include "tokenizers/tokenizer.h"

/* Appends to `out` the ids of [CLS], the text, [MASK] if the text has none, and [S]. With more than
 * `most` ids (0: no limit) the beginning of the text is left out. Errors: a tokenizer without these
 * tokens, more than one [MASK], a [gMASK], which no GLM here fills in, a [MASK] that would be left
 * out, memory. */
mc_status mc_blank_prompt(mc_error *err, const mc_tokenizer *tok, const char *text, size_t size,
                          size_t most, mc_encoding *out);

#endif
