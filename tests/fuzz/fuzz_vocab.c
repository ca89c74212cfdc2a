/* Any bytes as a tokenizer's file or as a text. The first byte says which: a vocab.txt, a
 * tokenizer.json, a tokenizer_config.json, or a text for a small vocabulary. What opens has to
 * encode and decode, and what it says of itself has to agree. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "tokenizers/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char small_vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nab\n##a\n##b\n##ab\n"
                                  "\xc3\xa9\n##e\n\xe4\xb8\xad\nthe\n##s\n.\n'\n";

static void check_encoding(const mc_tokenizer *tok, const mc_encoding *e, size_t max_length)
{
    assert(!max_length || e->count <= max_length);
    for (size_t i = 0; i < e->count; i++)
        assert(e->ids[i] >= 0 && mc_tokenizer_id_to_token(tok, e->ids[i]));
}

/* Encodes the bytes alone, cut short, and as both halves of a pair. */
static void use(const mc_tokenizer *tok, const uint8_t *data, size_t size)
{
    mc_encoding e = {0};
    const char *text = (const char *)data;
    size_t half = size / 2;
    if (size > 4096) size = 4096;
    assert(mc_tokenizer_encode(tok, text, size, NULL, 0, 0, &e) == MC_OK);
    check_encoding(tok, &e, 0);
    for (int skip = 0; skip < 2; skip++) {
        char *decoded = mc_tokenizer_decode(tok, e.ids, e.count, skip);
        assert(decoded &&
               !mc_utf8_find_invalid((uint8_t *)decoded, (uint8_t *)decoded + strlen(decoded)));
        mc_string_free(decoded);
    }
    mc_status status = mc_tokenizer_encode(tok, text, half, text + half, size - half, 40, &e);
    assert(status == MC_OK || (status == MC_ERR_ARGUMENT && e.count == 0));
    check_encoding(tok, &e, 40);
    mc_encoding_release(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tokenizer *tok = ctx ? mc_tokenizer_new(ctx) : NULL;
    if (!tok) {
        mc_context_free(ctx);
        return 0;
    }
    int kind = *data++ % 4;
    const char *text = (const char *)data;
    size--;
    mc_error *err = &ctx->error;
    mc_lowercase lowercase = MC_LOWERCASE_DEFAULT;
    mc_status status = MC_OK;
    if (kind == 2)
        status = mc_tokenizer_read_config(tok, err, "fuzz", text, size, true, &lowercase);
    if (kind == 0)
        status = mc_tokenizer_load_vocab(tok, err, "fuzz", text, size, lowercase);
    else if (kind == 1)
        status = mc_tokenizer_load_json(tok, err, "fuzz", text, size, lowercase);
    else if (!status)
        status = mc_tokenizer_load_vocab(tok, err, "fuzz", small_vocab, sizeof small_vocab - 1,
                                         lowercase);
    assert(status == err->status);
    if (status) /* CPM's vocabulary without a dictionary of Chinese words: that is named */
        assert(strstr(mc_error_message(ctx), "fuzz") || status == MC_ERR_UNSUPPORTED);
    else
        use(tok, data, size);
    mc_context_free(ctx);
    return 0;
}
