/* How texts are presented to a model of a family, as far as data sets need to know.
 *
 * mc_model_prompt (models/details.h) returns it for a model; a program with its own model fills in
 * this plain struct.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_PROMPT_H
#define MC_DATASETS_PROMPT_H

#include <stdint.h>

typedef enum mc_prompt_style {
    MC_PROMPT_ENCODER = 0, /* texts and pairs between special tokens; generates nothing: BERT */
    MC_PROMPT_DECODER,     /* the generated text follows the prompt: GPT-2, GPT-J */
    MC_PROMPT_T5,          /* the encoder reads the text, with </s> after it; in a text <extra_id_0>
                              is a blank, which the decoder fills in */
    MC_PROMPT_CPM1,        /* <s> and the text as context, which all of it sees; then the answer */
    MC_PROMPT_CPM2,        /* the encoder reads the text and <s_0>; the decoder begins with <s_0> */
    /* [CLS], the text and [S]; then the answer to the text's [MASK], which is put at the end if it
     * is missing */
    MC_PROMPT_GLM,
} mc_prompt_style;

enum { MC_PROMPT_STYLES = MC_PROMPT_GLM + 1 };

typedef struct mc_prompt {
    mc_prompt_style style;
    int32_t start_token; /* an encoder-decoder's first token for the decoder; T5: 0 */
} mc_prompt;

#endif
