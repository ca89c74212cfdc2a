/* Which tokens continue a word. */
#include <string.h>
#include "tokenizers/tokenizer_internal.h"
#include "tokenizers/details.h"

static bool begins_with(const char *text, const char *start)
{
    return start && *start && strncmp(text, start, strlen(start)) == 0;
}

int mc_tokenizer_continues(const mc_tokenizer *tok, int32_t id)
{
    static const char byte_space[] = "\xC4\xA0", piece_space[] = "\xE2\x96\x81"; /* U+0120, 2581 */
    if (!tok || tok->kind == MC_TOKENIZER_CPM) return -1;
    if (id < 0 || (size_t)id >= tok->id_end || tok->id_to_added[id] >= 0) return 0;
    const char *text = mc_tokenizer_id_to_token(tok, id);
    if (!text) return 0;
    switch (tok->kind) {
    case MC_TOKENIZER_WORDPIECE: return begins_with(text, tok->prefix);
    case MC_TOKENIZER_BYTE_BPE: return !begins_with(text, byte_space);
    default: return !begins_with(text, piece_space);
    }
}
