/* CPM-1's and CPM-2's tokenizers, as ModelCenter's CPM1Tokenizer and CPM2Tokenizer define them:
 * words of jieba, and in each word the longest entries from the left. A space and a line break are
 * tokens; characters that no entry begins with are one <unk> each, words of more than 200
 * characters one as a whole. */
#ifndef MC_TOKENIZERS_CPM_INTERNAL_H
#define MC_TOKENIZERS_CPM_INTERNAL_H

#include "tokenizers/cpm/jieba_internal.h"

typedef struct mc_cpm {
    const char *space, *line; /* the entries for a space and a line break; NULL: no CPM */
    int32_t space_id, line_id;
    size_t sentinels;       /* <s_0> ..., one after the other */
    int32_t first_sentinel; /* the id of <s_0> */
    bool stops[256];        /* bytes that a space, a line break or a token for one begins with */
    mc_jieba jieba;
} mc_cpm;

#endif
