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

/* transformers' clean-up of a whole text, where tokenizer_config.json asks for it
 * ("clean_up_tokenization_spaces"). */
static void clean_up_text(mc_bytes *text)
{
    static const struct {
        const char *from, *to;
    } rules[] = {{" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
                 {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        replace_all(text, 0, rules[i].from, rules[i].to);
}

static bool append_token(const mc_tokenizer *tok, mc_bytes *text, const char *token, bool first)
{
    size_t start = text->count, prefix = strlen(tok->decoder_prefix);
    bool continues = tok->decoder == MC_DECODER_WORDPIECE && !first &&
                     strncmp(token, tok->decoder_prefix, prefix) == 0;
    if (continues) token += prefix;
    bool spaced = !first && !continues && tok->decoder != MC_DECODER_JOINED;
    if (spaced && !mc_bytes_append(text, " ", 1)) return false;
    if (!mc_bytes_append(text, token, strlen(token))) return false;
    if (tok->decoder == MC_DECODER_WORDPIECE && tok->decoder_cleanup) clean_up(text, start);
    return true;
}

/* The tokens one after the other; ids without one are skipped. */
static bool join_tokens(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                        bool skip_special, mc_bytes *text)
{
    bool first = true, ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        const char *token = mc_tokenizer_id_to_token(tok, ids[i]);
        if (!token) continue;
        int32_t added = tok->id_to_added[ids[i]];
        if (added >= 0 && skip_special && tok->added[added].skipped) continue;
        if (tok->kind == MC_TOKENIZER_BYTE_BPE) {
            mc_entry bytes = tok->bpe.bytes[ids[i]];
            ok = mc_bytes_append(text, mc_tokenizer_text(tok, bytes), bytes.length);
            continue;
        }
        if (added >= 0) token = mc_tokenizer_text(tok, tok->added[added].shown);
        ok = append_token(tok, text, token, first);
        first = false;
    }
    return ok;
}

/* Puts U+FFFD where the bytes are no UTF-8. */
static bool make_utf8(mc_bytes *text)
{
    const uint8_t *p = text->data, *end = p + text->count;
    const uint8_t *bad = text->count ? mc_utf8_find_invalid(p, end) : NULL;
    mc_bytes valid = {0};
    if (!bad) return true;
    bool ok = mc_bytes_append(&valid, p, (size_t)(bad - p));
    for (p = bad; p < end && ok;) {
        uint32_t c;
        uint8_t bytes[4];
        p += mc_utf8_decode(p, end, &c);
        ok = mc_bytes_append(&valid, bytes, mc_utf8_encode(c, bytes));
    }
    mc_bytes_release(text);
    *text = valid;
    return ok;
}

/* The text with a NUL after it, NULL when memory is out. */
static char *decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                    const mc_decode_options *options, size_t *size)
{
    mc_bytes text = {0};
    bool utf8 = tok->kind != MC_TOKENIZER_BYTE_BPE || options->raw_bytes;
    bool ok = tok->kind == MC_TOKENIZER_UNIGRAM ? mc_unigram_decode(tok, ids, count, options, &text)
              : tok->kind == MC_TOKENIZER_CPM
                  ? mc_cpm_decode(tok, ids, count, options->skip_special, &text)
                  : join_tokens(tok, ids, count, options->skip_special, &text);
    if (ok && !utf8) ok = make_utf8(&text);
    if (ok && tok->cleans_up && !options->raw_bytes) clean_up_text(&text);
    if (ok && size) *size = text.count;
    if (ok) ok = mc_bytes_append(&text, "", 1);
    if (ok) return (char *)text.data;
    mc_bytes_release(&text);
    return NULL;
}

char *mc_tokenizer_decode(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                          bool skip_special)
{
    mc_decode_options options = {.skip_special = skip_special};
    if (!tok || (count && !mc_given(tok->ctx, ids))) return NULL;
    return decode(tok, ids, count, &options, NULL);
}

char *mc_tokenizer_decode_sized(const mc_tokenizer *tok, const int32_t *ids, size_t count,
                                const mc_decode_options *options, size_t *size)
{
    static const mc_decode_options defaults = {0};
    if (!options) options = &defaults;
    if (!tok || mc_failed(tok->ctx) || (count && !mc_given(tok->ctx, ids))) return NULL;
    mc_error *err = &tok->ctx->error;
    for (size_t i = 0; i < count && !options->skip_unknown; i++) {
        if (mc_tokenizer_id_to_token(tok, ids[i])) continue;
        mc_error_set(err, MC_ERR_ARGUMENT,
                     "decoding: id %d at place %zu of %zu is no token, expected 0 to %d", ids[i], i,
                     count, mc_tokenizer_vocab_size(tok) - 1);
        return NULL;
    }
    char *text = decode(tok, ids, count, options, size);
    if (!text) mc_fail_nomem(tok->ctx, "a decoded text");
    return text;
}

void mc_string_free(char *string) { mc_free(string); }
