/* Any bytes as a tokenizer's file or as a text. The first byte says which: a vocab.txt, a
 * tokenizer.json, a tokenizer_config.json, or a text for a small vocabulary. What opens has to
 * encode and decode, and what it says of itself has to agree. */
#include "tests/fuzz/fuzz_tokenizer.h"
#include "tokenizers/files/settings_internal.h"

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

static mc_status load(mc_tokenizer *tok, mc_error *err, int kind, const char *text, size_t size)
{
    mc_lowercase lowercase = MC_LOWERCASE_DEFAULT;
    if (kind == 0) return mc_tokenizer_load_vocab(tok, err, "fuzz", text, size, lowercase);
    if (kind == 1) return mc_tokenizer_load_json(tok, err, "fuzz", text, size, lowercase);
    mc_status status = MC_OK;
    if (kind == 2) status = mc_settings_parse(tok, err, "fuzz", text, size);
    if (status) return status;
    return mc_tokenizer_load_vocab(tok, err, "fuzz", small_vocab, sizeof small_vocab - 1,
                                   lowercase);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* CPM's vocabulary without a dictionary of Chinese words: that is named instead */
    return fuzz_tokenizer(data, size, 4, MC_ERR_UNSUPPORTED);
}
