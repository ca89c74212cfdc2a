/* Prompts of `modelcenter generate` as ids. */
#ifndef MC_TOOLS_PROMPT_IDS_H
#define MC_TOOLS_PROMPT_IDS_H

#include "core/modelcenter.h"

/* The ids of a prompt for a model of a family, in an array for free() with room for one at least;
 * NULL where *status says why. They are the tokenizer's, and besides: CPM-1 gets <s> before the
 * text. CPM-2 fills in blanks: <s_0>, <s_1> ... written in the text are these tokens, which they
 * are not to the tokenizer itself, and a text without any gets <s_0> after it. */
int32_t *prompt_ids(const mc_tokenizer *tok, const char *family, const char *text, int *count,
                    mc_status *status);

#endif
