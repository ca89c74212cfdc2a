/* Prompts of CPM-1 and CPM-2 as ids. */
#ifndef MC_TOOLS_CPM_PROMPT_H
#define MC_TOOLS_CPM_PROMPT_H

#include "core/modelcenter.h"

/* The ids of a prompt, in an array for free(); NULL where *status says why. CPM-1 gets <s> before
 * the text. CPM-2 fills in blanks: <s_0>, <s_1> ... written in the text are these tokens, which
 * they are not to the tokenizer itself, and a text without any gets <s_0> after it. */
int32_t *cpm_prompt_ids(const mc_tokenizer *tok, const char *text, int *count, mc_status *status);

#endif
