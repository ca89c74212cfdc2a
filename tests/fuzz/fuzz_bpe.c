/* Any bytes as a byte-level tokenizer's file or as a text. The first byte says which: a merges.txt
 * for a small vocabulary, a tokenizer.json, or a text for small merges. What opens has to encode,
 * whole and in parts, and to give every byte back that it has a token for. */
#include "tests/fuzz/fuzz_tokenizer.h"
#include "tokenizers/details.h"

static const char small_merges[] = "a a\na b\naa aa\n\u0120 a\n\u0120a b\n\u00c4 \u0142\n";
static const char *const small_vocab[] = {
    "a", "b", "aa", "ab", "aaaa",   "\u0120", "\u0120a", "\u0120ab",
    "'", "s", "1",  "<",  "\u010a", "\u00c4", "\u0142",  "\u00c4\u0142"};

static mc_status load_small(mc_tokenizer *tok, mc_error *err, const char *merges, size_t size)
{
    tok->kind = MC_TOKENIZER_BYTE_BPE;
    tok->has_normalizer = false;
    tok->has_templates = true;
    for (size_t i = 0; i < sizeof small_vocab / sizeof *small_vocab; i++) {
        if (!mc_grow(&tok->entries, &tok->entry_capacity, i, sizeof *tok->entries) ||
            !mc_tokenizer_store(tok, small_vocab[i], strlen(small_vocab[i]), &tok->entries[i]))
            return mc_error_set(err, MC_ERR_NOMEM, "fuzz");
        tok->entry_count++;
    }
    mc_status status = mc_tokenizer_index(tok, err, "fuzz", false);
    if (!status) status = mc_bpe_read_merges(tok, err, "fuzz", merges, size);
    return status ? status : mc_tokenizer_finish(tok, err, "fuzz", false);
}

static void check_encoding(const mc_tokenizer *tok, const mc_encoding *e)
{
    for (size_t i = 0; i < e->count; i++)
        assert(e->ids[i] >= 0 && mc_tokenizer_id_to_token(tok, e->ids[i]));
}

static void use(const mc_tokenizer *tok, const uint8_t *data, size_t size)
{
    mc_encoding whole = {0}, parts = {0};
    mc_decode_options raw = {.raw_bytes = true};
    const char *text = (const char *)data;
    size_t decoded_size = 0;
    if (size > 4096) size = 4096;
    assert(mc_tokenizer_append(tok, text, size, &whole) == MC_OK);
    check_encoding(tok, &whole);
    for (size_t at = 0, next; at < size; at = next) {
        next = at + mc_tokenizer_cut(tok, text + at, size - at, 16);
        assert(next > at && mc_tokenizer_append(tok, text + at, next - at, &parts) == MC_OK);
    }
    assert(parts.count == whole.count);
    assert(!parts.count || !memcmp(parts.ids, whole.ids, parts.count * sizeof *parts.ids));
    char *decoded = mc_tokenizer_decode_sized(tok, whole.ids, whole.count, &raw, &decoded_size);
    assert(decoded);
    if (tok->kind == MC_TOKENIZER_BYTE_BPE && tok->bpe.all_bytes && !tok->added_count)
        assert(decoded_size >= size && !memcmp(decoded + (decoded_size - size), data, size));
    mc_string_free(decoded);
    mc_encoding_release(&whole);
    mc_encoding_release(&parts);
}

static mc_status load(mc_tokenizer *tok, mc_error *err, int kind, const char *text, size_t size)
{
    if (kind == 0) return load_small(tok, err, text, size);
    if (kind == 1)
        return mc_tokenizer_load_json(tok, err, "fuzz", text, size, MC_LOWERCASE_DEFAULT);
    return load_small(tok, err, small_merges, sizeof small_merges - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_tokenizer(data, size, 3, MC_OK);
}
