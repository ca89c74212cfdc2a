#include "tokenizers/tokenizer_internal.h"

#include <string.h>

/* Replaces every `from` in the text's bytes from `start` on; `to` is no longer than `from`. */
static void replace_all(mc_bytes *text, size_t start, const char *from, const char *to)
{
    size_t from_length = strlen(from), to_length = strlen(to), out = start, in = start;
    while (in < text->count) {
        if (text->count - in >= from_length && memcmp(text->data + in, from, from_length) == 0) {
            memcpy(text->data + out, to, to_length);
            out += to_length;
            in += from_length;
        } else {
            text->data[out++] = text->data[in++];
        }
    }
    text->count = out;
}

/* Hugging Face's clean-up of English spacing, which it applies to each token by itself, after its
 * space has been put before it. The order matters. */
static void clean_up(mc_bytes *text, size_t start)
{
    static const struct {
        const char *from, *to;
    } rules[] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                 {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                 {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        replace_all(text, start, rules[i].from, rules[i].to);
}

static bool append_token(const mc_tokenizer *tok, mc_bytes *text, const char *token, bool first)
{
    size_t start = text->count, prefix = strlen(tok->decoder_prefix);
    bool continues = tok->decoder == MC_DECODER_WORDPIECE && !first &&
                     strncmp(token, tok->decoder_prefix, prefix) == 0;
    if (continues) token += prefix;
    if (!first && !continues && !mc_bytes_append(text, " ", 1)) return false;
    if (!mc_bytes_append(text, token, strlen(token))) return false;
    if (tok->decoder == MC_DECODER_WORDPIECE && tok->decoder_cleanup) clean_up(text, start);
    return true;
}

char *mc_tokenizer_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                          bool skip_special)
{
    mc_bytes text = {0};
    bool first = true, ok = tok != NULL;
    for (size_t i = 0; i < count && ok; i++) {
        const char *token = mc_tokenizer_id_to_token(tok, ids[i]);
        if (!token) continue;
        int32_t added = tok->id_to_added[ids[i]];
        if (added >= 0) token = mc_tokenizer_text(tok, tok->added[added].shown);
        if (added >= 0 && skip_special && tok->added[added].skipped) continue;
        ok = append_token(tok, &text, token, first);
        first = false;
    }
    if (ok) ok = mc_bytes_append(&text, "", 1);
    if (ok) return (char *)text.data;
    mc_bytes_release(&text);
    return NULL;
}

void mc_string_free(char *string) { mc_free(string); }
