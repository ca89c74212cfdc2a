/* The Unigram tokenizer: against the recorded results, against a plain search over whole texts, and
 * case by case on a small vocabulary. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"
#include "tests/tokenizers/unigram_test.h"
#include "tokenizers/details.h"

/* ---- real files ------------------------------------------------------------------------------ */

static void copy_file(const char *from, const char *to)
{
    size_t size;
    char *data = mc_file_read(&ctx->error, from, 1 << 30, &size);
    assert_non_null(data);
    write_bytes(to, data, size);
    mc_free(data);
}

static void test_goldens(void **state)
{
    (void)state;
    char json[2048], records[2048];
    const char *shared = shared_folder();
    if (!shared) skip();
    check_recorded(shared, "t5", "t5-a");
    check_recorded(shared, "t5", "t5-special-a");
    snprintf(json, sizeof json, "%s/data/vocab/t5/tokenizer.json", shared);
    snprintf(records, sizeof records, "%s/goldens/tokenizers/t5-json-a.jsonl", shared);
    copy_file(json, temp_path(&folder, "tokenizer.json"));
    int result = check(folder.path, records);
    expect_output(" exact\n");
    assert_int_equal(result, 0);
    /* the two sets of rules do differ */
    snprintf(json, sizeof json, "%s/data/vocab/t5", shared);
    assert_int_equal(check(json, records), 1);
}

static void test_t5(void **state)
{
    (void)state;
    char path[2048];
    const char *shared = shared_folder();
    if (!shared) skip();
    snprintf(path, sizeof path, "%s/data/vocab/t5", shared);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, path);
    assert_non_null(tok);
    assert_int_equal(mc_tokenizer_vocab_size(tok), 32100);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "<extra_id_0>"), 32099);
    assert_string_equal(mc_tokenizer_id_to_token(tok, 32000), "<extra_id_99>");
    assert_int_equal(mc_tokenizer_pad_id(tok), 0);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), 1);
    assert_int_equal(mc_tokenizer_sep_id(tok), 1);
    const int32_t ids[] = {37, 32099, 10681, 1};
    char *text = mc_tokenizer_decode(tok, ids, 4, false);
    assert_string_equal(text, "The<extra_id_0> walks</s>");
    mc_string_free(text);
    text = mc_tokenizer_decode(tok, ids, 4, true);
    assert_string_equal(text, "The walks");
    mc_string_free(text);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void test_small(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    expect_ids(tok, "", EOS, -1);
    expect_ids(tok, "  ", EOS, -1);
    expect_ids(tok, "a", S_A, EOS, -1);
    expect_ids(tok, "  ab  a ", S_AB, S_A, EOS, -1);
    expect_ids(tok, "b", SPACE, B, EOS, -1);
    expect_ids(tok, "xy", SPACE, UNK, EOS, -1); /* unknown characters in a row are one piece */
    expect_ids(tok, "xay", SPACE, UNK, A, UNK, EOS, -1);
    expect_ids(tok, "\xFF\xC3(", SPACE, UNK, EOS, -1);
    expect_ids(tok, "a" SP " b", S_A, SPACE, SPACE, B, EOS, -1);
    expect_ids(tok, "a" SP, S_A, EOS, -1);
    expect_ids(tok, "a</s>b<pad>", S_A, EOS, SPACE, B, PAD, EOS, -1);
    expect_ids(tok, "<unk> a", UNK, S_A, EOS, -1);
    assert_int_equal(mc_tokenizer_encode(tok, "a", 1, "b", 1, 0, &encoding), MC_OK);
    assert_int_equal(encoding.count, 5);
    assert_int_equal(encoding.ids[1], EOS);
    assert_int_equal(encoding.ids[4], EOS);
    assert_int_equal(mc_tokenizer_encode(tok, "a b ab", 6, NULL, 0, 3, &encoding), MC_OK);
    assert_int_equal(encoding.count, 3);
    assert_int_equal(encoding.ids[2], EOS);
}

static void expect_text(const mc_tokenizer *tok, const char *expected, ...)
{
    int32_t ids[16];
    size_t count = 0;
    va_list args;
    va_start(args, expected);
    while ((ids[count] = va_arg(args, int)) >= 0) count++;
    va_end(args);
    char *text = mc_tokenizer_decode(tok, ids, count, true);
    assert_string_equal(text, expected);
    mc_string_free(text);
}

static void test_decode(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    expect_text(tok, "a ab b", S_A, S_AB, SPACE, B, EOS, -1);
    expect_text(tok, "aa", PAD, SPACE, SPACE, A, A, -1); /* all of the first white space goes */
    expect_text(tok, " \u2047 a", UNK, A, -1);
    expect_text(tok, "a", S_A, 999, -7 & 0x7FFFFFFF, -1);
    model_settings settings = plain_settings;
    settings.squeeze = 0;
    tok = open_model(small_pieces, PIECES, &settings);
    expect_text(tok, " a", SPACE, SPACE, A, -1);
    settings.dummy_prefix = 0;
    tok = open_model(small_pieces, PIECES, &settings);
    expect_text(tok, "  a", SPACE, SPACE, A, -1);
}

static void test_settings(void **state)
{
    (void)state;
    model_settings settings = plain_settings;
    settings.dummy_prefix = 0;
    mc_tokenizer *tok = open_model(small_pieces, PIECES, &settings);
    expect_ids(tok, " ab  a ", AB, S_A, EOS, -1);
    settings.squeeze = 0;
    tok = open_model(small_pieces, PIECES, &settings);
    expect_ids(tok, "a  a ", A, SPACE, S_A, SPACE, EOS, -1);
    settings = plain_settings;
    settings.suffix = 1;
    tok = open_model(small_pieces, PIECES, &settings);
    expect_ids(tok, "a b", A, SPACE, B, SPACE, EOS, -1);
    settings = plain_settings;
    settings.escape = 0;
    tok = open_model(small_pieces, PIECES, &settings);
    expect_ids(tok, "a", UNK, A, EOS, -1);
}

static void test_bytes_and_symbols(void **state)
{
    (void)state;
    enum { BYTES = 256 };
    static char names[BYTES][8];
    piece pieces[PIECES + BYTES + 1];
    model_settings settings = plain_settings;
    memcpy(pieces, small_pieces, sizeof small_pieces);
    for (int i = 0; i < BYTES; i++) {
        snprintf(names[i], sizeof names[i], "<0x%02X>", (unsigned)i);
        pieces[PIECES + i] = (piece){names[i], 0, MC_PIECE_BYTE};
    }
    pieces[PIECES + BYTES] = (piece){"a a", 0, MC_PIECE_USER_DEFINED};
    settings.byte_fallback = 1;
    mc_tokenizer *tok = open_model(pieces, PIECES + BYTES, &settings);
    expect_ids(tok, "a\u00e9", S_A, PIECES + 0xC3, PIECES + 0xA9, EOS, -1);
    expect_text(tok, "a\u00e9\uFFFDa", S_A, PIECES + 0xC3, PIECES + 0xA9, PIECES + 0xC3, A, -1);
    expect_ids(tok, "<0x41>", SPACE, PIECES + '<', PIECES + '0', PIECES + 'x', PIECES + '4',
               PIECES + '1', PIECES + '>', EOS, -1);
    piece symbols[PIECES + 1];
    memcpy(symbols, small_pieces, sizeof small_pieces);
    symbols[PIECES] = (piece){"bab", 0, MC_PIECE_USER_DEFINED};
    tok = open_model(symbols, PIECES + 1, &plain_settings);
    expect_ids(tok, "abab", S_A, PIECES, EOS, -1); /* whatever it scores */
    symbols[PIECES].type = MC_PIECE_UNUSED;
    tok = open_model(symbols, PIECES + 1, &plain_settings);
    expect_ids(tok, "bab", SPACE, B, AB, EOS, -1);
}

/* A table with one rule, "A" to "ab", and one that drops "\x01". */
static size_t small_table(uint8_t table[2048])
{
    uint32_t units[512] = {0};
    static const char forms[] = "ab\0"; /* "ab" at 0, "" at 2 */
    units[0] = 256u << 10;
    units[256 ^ 'A'] = (256u ^ 'A' ^ 2u) << 10 | 1u << 8 | 'A';
    units[256 ^ 1] = (256u ^ 1u ^ 3u) << 10 | 1u << 8 | 1;
    units[2] = 1u << 31;
    units[3] = 1u << 31 | 2;
    uint32_t size = sizeof units;
    memcpy(table, &size, 4); /* tests run on little-endian machines */
    memcpy(table + 4, units, sizeof units);
    memcpy(table + 4 + sizeof units, forms, sizeof forms);
    return 4 + sizeof units + sizeof forms;
}

static void test_table(void **state)
{
    (void)state;
    uint8_t table[4096];
    model_settings settings = plain_settings;
    settings.table = table;
    settings.table_size = small_table(table);
    mc_tokenizer *tok = open_model(small_pieces, PIECES, &settings);
    expect_ids(tok, "A", S_AB, EOS, -1);
    expect_ids(tok, "a \x01 a\x01", S_A, S_A, EOS, -1);
    expect_ids(tok, "\x01", EOS, -1);
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"extra_ids\": 0}");
    for (size_t at = 0; at < settings.table_size - 3; at += at < 8 ? 1 : 61) { /* damaged */
        for (int bit = 0; bit < 8; bit++) {
            table[at] ^= (uint8_t)(1 << bit);
            write_model(small_pieces, PIECES, &settings);
            tok = mc_tokenizer_from_pretrained(ctx, folder.path);
            if (tok)
                assert_int_equal(mc_tokenizer_encode(tok, "aA\x01 b", 6, NULL, 0, 0, &encoding), 0);
            else
                assert_non_null(strstr(mc_error_message(ctx), "precompiled_charsmap"));
            mc_clear_error(ctx);
            table[at] ^= (uint8_t)(1 << bit);
        }
    }
}

/* ---- against a plain search ------------------------------------------------------------------ */

/* The best pieces of a whole text in normal form: every sum in f32, a piece at a time. */
static size_t search(const mc_tokenizer *tok, const uint8_t *text, size_t size, int32_t *ids)
{
    float best[4096], unknown = (float)tok->unigram.unknown;
    size_t starts[4096], count = 0;
    int32_t last[4096];
    for (size_t i = 0; i <= size; i++) last[i] = -1;
    best[0] = 0;
    for (size_t from = 0; from < size; from++) {
        bool known = false;
        for (size_t to = from + 1; to <= size + 1; to++) {
            bool rest = to == size + 1; /* as an unknown character */
            int32_t id = rest ? UNK : mc_trie_find(&tok->trie, text + from, to - from);
            if ((rest && known) || id < 0 || (!rest && tok->unigram.types[id] != MC_PIECE_NORMAL))
                continue;
            size_t end = rest ? from + 1 : to;
            float sum = (rest ? unknown : (float)tok->unigram.scores[id]) + best[from];
            known = known || end == from + 1;
            if (last[end] >= 0 && sum <= best[end]) continue;
            best[end] = sum;
            starts[end] = from;
            last[end] = id;
        }
    }
    for (size_t at = size; at > 0; at = starts[at]) ids[count++] = last[at];
    for (size_t i = 0; i < count / 2; i++) {
        int32_t id = ids[i];
        ids[i] = ids[count - 1 - i];
        ids[count - 1 - i] = id;
    }
    return count;
}

/* ASCII stands for the space's symbol too ('_'), so that every byte is a character. */
static const piece flat_pieces[] = {
    {"<pad>", 0, MC_PIECE_CONTROL}, {"</s>", 0, MC_PIECE_CONTROL},  {"<unk>", 0, MC_PIECE_UNKNOWN},
    {"_", -2, MC_PIECE_NORMAL},     {"a", -3.3F, MC_PIECE_NORMAL},  {"b", -3.5F, MC_PIECE_NORMAL},
    {"_a", -4.1F, MC_PIECE_NORMAL}, {"aa", -6.6F, MC_PIECE_NORMAL}, {"aaa", -9.9F, MC_PIECE_NORMAL},
    {"ab", -6.8F, MC_PIECE_NORMAL}, {"ba", -6.8F, MC_PIECE_NORMAL}, {"_ab", -8, MC_PIECE_NORMAL},
};
enum { FLAT = sizeof flat_pieces / sizeof *flat_pieces };

static void test_against_a_plain_search(void **state)
{
    (void)state;
    piece pieces[FLAT];
    char names[FLAT][16];
    uint32_t random = 1;
    mc_tokenizer *flat = open_model(flat_pieces, FLAT, &plain_settings);
    for (int i = 0; i < FLAT; i++) { /* the same with the symbol of a space */
        bool spaced = flat_pieces[i].text[0] == '_';
        snprintf(names[i], sizeof names[i], "%s%s", spaced ? SP : "", flat_pieces[i].text + spaced);
        pieces[i] = flat_pieces[i];
        pieces[i].text = names[i];
    }
    mc_tokenizer *tok = open_model(pieces, FLAT, &plain_settings);
    for (int round = 0; round < 300; round++) {
        char text[2048], flattened[2049] = "_";
        int32_t expected[4096];
        size_t size = 1 + (size_t)(round * 13 % 2000), used = 0;
        for (size_t i = 0; i < size; i++) {
            random = random * 1664525 + 1013904223;
            char c = "aaab "[(random >> 16) % 5];
            if (c == ' ' && (!used || text[used - 1] == ' ')) c = 'a';
            text[used++] = c;
        }
        if (text[used - 1] == ' ') text[used - 1] = 'b';
        for (size_t i = 0; i < used; i++) flattened[i + 1] = text[i] == ' ' ? '_' : text[i];
        size_t count = search(flat, (uint8_t *)flattened, used + 1, expected);
        assert_int_equal(mc_tokenizer_encode(tok, text, used, NULL, 0, 0, &encoding), MC_OK);
        assert_int_equal(encoding.count, count + 1);
        assert_memory_equal(encoding.ids, expected, count * sizeof *expected);
    }
}

/* A cache that has met words by other sums gives what an empty one does. */
static void test_cache(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    mc_encoding fresh = {0};
    char text[60000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "--- ---- ab a b -c- "[i % 20];
    for (size_t size = 1; size < sizeof text; size = size * 3 + 1) {
        assert_int_equal(mc_tokenizer_encode(tok, text, size, NULL, 0, 0, &encoding), MC_OK);
        assert_int_equal(mc_tokenizer_encode(tok, text, size, NULL, 0, 0, &fresh), MC_OK);
        assert_int_equal(encoding.count, fresh.count);
        assert_memory_equal(encoding.ids, fresh.ids, fresh.count * sizeof *fresh.ids);
        mc_encoding_release(&fresh);
    }
}

/* ---- streams, batches, threads --------------------------------------------------------------- */

static void test_cuts(void **state)
{
    (void)state;
    static const char text[] = "a ab\nb  \u00e9 \u3000 ab " SP " a\tb ab";
    mc_tokenizer *tok = open_small();
    mc_encoding whole = {0};
    size_t size = strlen(text);
    assert_int_equal(mc_tokenizer_append(tok, text, size, &whole), MC_OK);
    for (size_t from = 1; from < size; from++) {
        encoding.count = 0;
        for (size_t at = 0, next; at < size; at = next) {
            next = at + mc_tokenizer_cut(tok, text + at, size - at, from);
            assert_int_equal(mc_tokenizer_append(tok, text + at, next - at, &encoding), MC_OK);
        }
        assert_int_equal(encoding.count, whole.count);
        assert_memory_equal(encoding.ids, whole.ids, whole.count * sizeof *whole.ids);
    }
    assert_int_equal(mc_tokenizer_cut(tok, "ab ab", 5, 0), 2);
    assert_int_equal(mc_tokenizer_cut(tok, "abab" SP " b", 9, 0), 9); /* the symbol would go */
    mc_encoding_release(&whole);
}

static void test_threads(void **state)
{
    (void)state;
    static const int32_t ids[] = {S_A, S_AB, SPACE, UNK, EOS};
    check_threads(open_small(), "a ab x", ids, 5);
}

static void test_batch(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_small();
    mc_batch_encoding batch = {0};
    const mc_text_span texts[] = {{"a", 1}, {NULL, 0}, {"ab b", 4}}, bad[] = {{NULL, 3}};
    for (int round = 0; round < 3; round++) {
        assert_int_equal(mc_tokenizer_encode_batch(tok, texts, NULL, 3, 0, &batch), MC_OK);
        static const int32_t ids[] = {S_A, EOS, EOS, S_AB, SPACE, B, EOS}, lengths[] = {2, 1, 4};
        assert_int_equal(batch.count, 7);
        assert_int_equal(batch.rows, 3);
        assert_int_equal(batch.longest, 4);
        assert_memory_equal(batch.ids, ids, sizeof ids);
        assert_memory_equal(batch.lengths, lengths, sizeof lengths);
    }
    assert_int_equal(mc_tokenizer_encode_batch(tok, texts, texts, 3, 2, &batch), MC_OK);
    assert_int_equal(batch.count, 6); /* of each pair its two </s> */
    assert_int_equal(mc_tokenizer_encode_batch(tok, texts, NULL, 0, 0, &batch), MC_OK);
    assert_int_equal(batch.rows, 0);
    assert_int_equal(mc_tokenizer_encode_batch(tok, texts, texts, 3, 1, &batch), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), "text 0 of 3"));
    mc_clear_error(ctx);
    assert_int_equal(mc_tokenizer_encode_batch(tok, bad, NULL, 1, 0, &batch), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    mc_batch_encoding_release(&batch);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_goldens),  TEST(test_t5),
        TEST(test_small),    TEST(test_decode),
        TEST(test_settings), TEST(test_bytes_and_symbols),
        TEST(test_table),    TEST(test_against_a_plain_search),
        TEST(test_cache),    TEST(test_cuts),
        TEST(test_threads),  TEST(test_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
