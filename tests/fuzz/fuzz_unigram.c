/* Any bytes as a Unigram tokenizer's file or as a text. The first byte says which: a SentencePiece
 * .model, a tokenizer.json, or a text for a small model of either kind. What opens has to encode,
 * whole and in parts, with a new cache and with a used one, and to decode. */
#include "tests/fuzz/fuzz_tokenizer.h"
#include "tokenizers/details.h"

#define SP "\xE2\x96\x81"

/* Messages of fields 1 (a piece: text, score of -3, type). */
#define PIECE(length, text_length, text, type) \
    "\x0A" length "\x0A" text_length text "\x15\x00\x00\x40\xC0\x18" type
static const char small_model[] = PIECE("\x0E", "\x05", "<pad>", "\x03")
    PIECE("\x0D", "\x04", "</s>", "\x03") PIECE("\x0E", "\x05", "<unk>", "\x02")
        PIECE("\x0C", "\x03", SP, "\x01") PIECE("\x0A", "\x01", "a", "\x01")
            PIECE("\x0B", "\x02", "aa", "\x01") PIECE("\x0D", "\x04", SP "a", "\x01");
static const char small_json[] =
    "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
    "\"WhitespaceSplit\"}, {\"type\": \"Metaspace\", \"replacement\": \"" SP
    "\", \"add_prefix_space\": true}]}, \"decoder\": {\"type\": \"Metaspace\"}, "
    "\"added_tokens\": [{\"content\": \"b a\"}], \"model\": {\"type\": \"Unigram\", \"unk_id\": "
    "0, \"vocab\": [[\"<unk>\", 0], [\"" SP "\", -2], [\"a\", -3], [\"aa\", -6], [\"" SP
    "a\", -4]]}}";

static void check_encoding(const mc_tokenizer *tok, const mc_encoding *e)
{
    for (size_t i = 0; i < e->count; i++)
        assert(e->ids[i] >= 0 && mc_tokenizer_id_to_token(tok, e->ids[i]));
}

static void use(const mc_tokenizer *tok, const uint8_t *data, size_t size)
{
    mc_encoding whole = {0}, parts = {0};
    const char *text = (const char *)data;
    size_t decoded_size = 0;
    if (size > 4096) size = 4096;
    for (int round = 0; round < 2; round++) { /* with an empty cache, and with what is in it then */
        size_t count = whole.count;
        whole.count = 0;
        assert(mc_tokenizer_append(tok, text, size, &whole) == MC_OK);
        assert(!round || count == whole.count);
        check_encoding(tok, &whole);
    }
    for (size_t at = 0, next; at < size; at = next) {
        next = at + mc_tokenizer_cut(tok, text + at, size - at, 16);
        assert(next > at && mc_tokenizer_append(tok, text + at, next - at, &parts) == MC_OK);
    }
    check_encoding(tok, &parts);
    if (!tok->unigram.single) { /* else sums go on over the cuts, and decide between equals */
        assert(parts.count == whole.count);
        assert(!parts.count || !memcmp(parts.ids, whole.ids, parts.count * sizeof *parts.ids));
    }
    char *decoded = mc_tokenizer_decode_sized(tok, whole.ids, whole.count, NULL, &decoded_size);
    assert(decoded && strlen(decoded) <= decoded_size);
    mc_string_free(decoded);
    mc_encoding_release(&whole);
    mc_encoding_release(&parts);
}

static mc_status load(mc_tokenizer *tok, mc_error *err, int kind, const char *text, size_t size)
{
    mc_status status;
    if (kind % 2 == 0)
        status = mc_unigram_load_model(tok, err, "fuzz", kind ? small_model : text,
                                       kind ? sizeof small_model - 1 : size, true, kind ? 2 : -1);
    else
        status =
            mc_tokenizer_load_json(tok, err, "fuzz", kind == 3 ? small_json : text,
                                   kind == 3 ? sizeof small_json - 1 : size, MC_LOWERCASE_DEFAULT);
    assert(kind < 2 || !status);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_tokenizer(data, size, 4, MC_OK);
}
