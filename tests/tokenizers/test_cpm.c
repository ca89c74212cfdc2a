/* CPM-1's and CPM-2's tokenizers: against the recorded results of ModelCenter's with the whole
 * dictionary, and case by case with small vocabularies and a small dictionary. compare_cpm.py
 * compares many more texts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/base/memory_internal.h"
#include "tests/tokenizers/jieba_test.h"
#include "tests/tokenizers/tokenizer_test.h"
#include "tokenizers/details.h"

static const char cpm1_text[] = "<pad>\n<s>\n</s>\n<sep>\n<eod>\n<unk>\n<mask>\n</n>\n</_>\n"
                                "我\n来到\n北京\n清华\n大学\n清华大\n的\n"
                                "a\nab\n<\n/\n_\n>\n,\n";
static const char cpm2_text[] = "<unk>\n<s>\n</s>\n▃\n<sep>\n<pad>\n<mask>\n<eod>\n▁\n,\n▂\n"
                                "我\n北京\n<s_0>\n<s_1>\n<s_2>\n<s_4>\n";
enum { PAD, S, END_S, SEP, EOD, UNK, MASK, LINE, SPACE, WO, LAIDAO, BEIJING, QINGHUA, DAXUE };
enum { QINGHUADA = DAXUE + 1, DE, A, AB, LESS, SLASH, UNDERLINE, GREATER, COMMA, ENTRIES };
enum { UNK2, S2, LINE2 = 3, PAD2 = 5, EOD2 = 7, SPACE2 = 10, WO2, BEIJING2, BLANK };

static mc_tokenizer *open_vocab(const char *text)
{
    write_jieba(&folder, "jieba");
    write_text(temp_path(&folder, "vocab.txt"), text);
    return open_folder();
}

static void expect_text(const mc_tokenizer *tok, bool skip_special, const char *text, ...)
{
    int32_t ids[32];
    size_t count = 0;
    va_list args;
    va_start(args, text);
    while ((ids[count] = va_arg(args, int)) >= 0) count++;
    va_end(args);
    char *got = mc_tokenizer_decode(tok, ids, count, skip_special);
    assert_non_null(got);
    assert_string_equal(got, text);
    mc_string_free(got);
}

/* ---- The recorded results -------------------------------------------------------------------- */

static void test_goldens(void **state)
{
    (void)state;
    mc_error err = {0};
    mc_jieba jieba;
    const char *shared = shared_folder();
    if (!shared) skip();
    unsetenv("MC_JIEBA_DIR");
    bool missing = mc_jieba_open(&err, &jieba) == MC_ERR_UNSUPPORTED;
    if (missing) printf("SKIPPED: %s\n", err.message);
    mc_error_clear(&err);
    mc_jieba_release(&jieba);
    if (missing) skip();
    check_recorded(shared, "cpm1", "cpm1-a");
    check_recorded(shared, "cpm2", "cpm2-a");
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static void test_words(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(cpm1_text);
    expect_ids(tok, "", -1);
    expect_ids(tok, "我来到北京清华大学", WO, LAIDAO, BEIJING, QINGHUADA, UNK, -1);
    expect_ids(tok, "清华大学的", QINGHUADA, UNK, DE, -1);
    expect_ids(tok, "来", UNK, -1);
    expect_ids(tok, "aab,ba", A, AB, COMMA, UNK, A, -1);
    expect_ids(tok, "a\t\xff\xe5\x8c", A, UNK, UNK, UNK, -1);
    mc_tokenizer_free(tok);
    tok = open_vocab(cpm2_text);
    expect_ids(tok, "我,北京我", WO2, 9, BEIJING2, WO2, -1);
    expect_ids(tok, "北", UNK2, -1);
}

/* Spaces and line breaks are tokens, however they are written; other special tokens are text. */
static void test_special_tokens(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(cpm1_text);
    expect_ids(tok, " a \r\n", SPACE, A, SPACE, UNK, LINE, -1);
    expect_ids(tok, "</_></n>a\ufff2\ufff3", SPACE, LINE, A, SPACE, LINE, -1);
    expect_ids(tok, "北 京", UNK, SPACE, UNK, -1);
    expect_ids(tok, "</_", LESS, SLASH, UNDERLINE, -1);
    expect_ids(tok, "<unk>", LESS, UNK, UNK, UNK, GREATER, -1);
    expect_ids(tok, "▂▃", UNK, UNK, -1);
    mc_tokenizer_free(tok);
    tok = open_vocab(cpm2_text);
    expect_ids(tok, "我 \n▂▃\ufff2我", WO2, SPACE2, LINE2, SPACE2, LINE2, SPACE2, WO2, -1);
    expect_ids(tok, "</_>", UNK2, UNK2, UNK2, UNK2, -1);
    expect_ids(tok, "<s_0>", UNK2, UNK2, UNK2, UNK2, UNK2, -1);
}

/* A word of 200 characters is cut into pieces, one of 201 is unknown. */
static void test_long_words(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(cpm1_text);
    char text[300];
    memset(text, 'a', sizeof text);
    assert_int_equal(mc_tokenizer_encode(tok, text, 200, NULL, 0, 0, &encoding), MC_OK);
    assert_int_equal(encoding.count, 200);
    assert_int_equal(encoding.ids[199], A);
    assert_int_equal(mc_tokenizer_encode(tok, text, 201, NULL, 0, 0, &encoding), MC_OK);
    assert_int_equal(encoding.count, 1);
    assert_int_equal(encoding.ids[0], UNK);
}

/* Time and memory are linear in a text without an end of a word. */
static void test_long_blocks(void **state)
{
    (void)state;
    enum { COUNT = 1 << 19 };
    mc_tokenizer *tok = open_vocab(cpm1_text);
    char *text = mc_malloc(3 * (size_t)COUNT);
    assert_non_null(text);
    for (int i = 0; i < COUNT; i++) memcpy(text + 3 * i, i % 2 ? "京" : "北", 3);
    assert_int_equal(mc_tokenizer_append(tok, text, 3 * (size_t)COUNT, &encoding), MC_OK);
    assert_int_equal(encoding.count, COUNT / 2);
    encoding.count = 0;
    for (int i = 0; i < COUNT; i++) memcpy(text + 3 * i, "网", 3); /* for the model, all of it */
    assert_int_equal(mc_tokenizer_append(tok, text, 3 * (size_t)COUNT, &encoding), MC_OK);
    assert_true(encoding.count > 0);
    mc_free(text);
}

static void test_pairs_and_truncation(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(cpm1_text);
    assert_int_equal(mc_tokenizer_encode(tok, "我的", 6, "a ", 2, 0, &encoding), MC_OK);
    const int32_t ids[] = {WO, DE, A, SPACE};
    const uint8_t types[] = {0, 0, 1, 1};
    assert_int_equal(encoding.count, 4);
    assert_memory_equal(encoding.ids, ids, sizeof ids);
    assert_memory_equal(encoding.type_ids, types, sizeof types);
    assert_int_equal(mc_tokenizer_encode(tok, "我的a 我的", 14, NULL, 0, 3, &encoding), MC_OK);
    assert_int_equal(encoding.count, 3);
    assert_memory_equal(encoding.ids, ids, 3 * sizeof *ids);
    assert_int_equal(mc_tokenizer_append(tok, " ", 1, &encoding), MC_OK);
    assert_int_equal(encoding.count, 4);
    assert_int_equal(encoding.ids[3], SPACE);
}

static void test_cuts(void **state)
{
    (void)state;
    static const char text[] = "我来到 北京</n>\n清华大学 的a</_> ab\xe5\n北京";
    mc_tokenizer *tok = open_vocab(cpm1_text);
    mc_encoding parts = {0};
    size_t pieces = 0, length = strlen(text);
    assert_int_equal(mc_tokenizer_append(tok, text, length, &encoding), MC_OK);
    for (size_t at = 0, next; at < length; at = next, pieces++) {
        next = at + mc_tokenizer_cut(tok, text + at, length - at, 1);
        assert_int_equal(mc_tokenizer_append(tok, text + at, next - at, &parts), MC_OK);
    }
    assert_int_equal(pieces, 6);
    assert_int_equal(parts.count, encoding.count);
    assert_memory_equal(parts.ids, encoding.ids, parts.count * sizeof *parts.ids);
    mc_encoding_release(&parts);
}

/* Rows of tokens, words and pieces of them: whole as in parts, and back again. */
static void test_random_texts(void **state)
{
    (void)state;
    static const char *const parts[] = {"我",   "来到", "北京", "清华大", "的", "a",  "ab",
                                        "</_>", "</n>", " ",    "\n",     "<",  "</", "_>",
                                        ",",    ">",    "\xe5", "\x8c",   "网"};
    enum { PARTS = sizeof parts / sizeof *parts, WHOLE = 14 }; /* the first ones are entries */
    mc_tokenizer *tok = open_vocab(cpm1_text);
    mc_encoding whole = {0}, pieces = {0};
    uint32_t random = 1;
    for (int round = 0; round < 3000; round++) {
        char text[256] = "", expected[256];
        for (int i = 0; i < 12; i++) {
            random = random * 1664525u + 1013904223u;
            strcat(text, parts[(random >> 16) % (round % 2 ? PARTS : WHOLE)]);
        }
        size_t length = strlen(text), out = 0;
        whole.count = pieces.count = 0;
        assert_int_equal(mc_tokenizer_append(tok, text, length, &whole), MC_OK);
        for (size_t at = 0, next; at < length; at = next) {
            next = at + mc_tokenizer_cut(tok, text + at, length - at, 1);
            assert_int_equal(mc_tokenizer_append(tok, text + at, next - at, &pieces), MC_OK);
        }
        assert_int_equal(whole.count, pieces.count);
        assert_memory_equal(whole.ids, pieces.ids, whole.count * sizeof *whole.ids);
        char *decoded = mc_tokenizer_decode(tok, whole.ids, whole.count, false);
        assert_non_null(decoded);
        for (size_t at = 0; at < length; at++) { /* the two tokens are what they stand for */
            bool space = strncmp(text + at, "</_>", 4) == 0;
            bool line = strncmp(text + at, "</n>", 4) == 0;
            expected[out++] = space ? ' ' : line ? '\n' : text[at];
            at += space || line ? 3 : 0;
        }
        expected[out] = '\0';
        if (!strstr(decoded, "<unk>")) assert_string_equal(decoded, expected);
        mc_string_free(decoded);
    }
    mc_encoding_release(&whole);
    mc_encoding_release(&pieces);
}

static void test_threads(void **state)
{
    (void)state;
    const int32_t ids[] = {WO, LAIDAO, BEIJING, SPACE, QINGHUADA, UNK};
    check_threads(open_vocab(cpm1_text), "我来到北京 清华大学", ids, 6);
}

/* ---- Decoding and looking up ----------------------------------------------------------------- */

static void test_decode(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(cpm1_text);
    expect_text(tok, false, "", -1);
    expect_text(tok, false, "我 \n<unk><eod>", WO, SPACE, LINE, UNK, EOD, -1);
    expect_text(tok, true, "我 \n<unk>", S, WO, SPACE, LINE, UNK, PAD, EOD, MASK, SEP, END_S, -1);
    /* what several tokens make up, too */
    expect_text(tok, true, " a", LESS, SLASH, UNDERLINE, GREATER, A, -1);
    expect_text(tok, true, "aa", A, ENTRIES, 30000, A, -1);
    mc_tokenizer_free(tok);
    tok = open_vocab(cpm2_text);
    expect_text(tok, false, "<s_0>我 北京\n", BLANK, WO2, SPACE2, BEIJING2, LINE2, -1);
    expect_text(tok, true, "我<unk><s_4>", S2, BLANK, BLANK + 1, BLANK + 2, WO2, UNK2, BLANK + 3,
                EOD2, PAD2, -1);
    size_t size;
    assert_null(mc_tokenizer_decode_sized(tok, (int32_t[]){WO2, -1}, 2, NULL, &size));
    assert_int_equal(mc_error_status(ctx), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
}

static void test_lookup(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(cpm1_text);
    assert_int_equal(mc_tokenizer_vocab_size(tok), ENTRIES);
    assert_int_equal(mc_tokenizer_pad_id(tok), PAD);
    assert_int_equal(mc_tokenizer_cls_id(tok), S);
    assert_int_equal(mc_tokenizer_sep_id(tok), END_S);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), EOD);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "北京"), BEIJING);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "北"), -1);
    assert_string_equal(mc_tokenizer_id_to_token(tok, SPACE), "</_>");
    mc_tokenizer_free(tok);
    tok = open_vocab(cpm2_text);
    assert_int_equal(mc_tokenizer_pad_id(tok), PAD2);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), EOD2);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "<s_1>"), BLANK + 1);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void test_save(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(cpm1_text);
    const char *copy = temp_path(&folder, "copy");
    assert_int_equal(mc_tokenizer_save(tok, copy), MC_OK);
    assert_int_equal(count_files(copy), 1);
    tok = mc_tokenizer_from_pretrained(ctx, copy);
    assert_non_null(tok);
    expect_ids(tok, "我来到 北京", WO, LAIDAO, SPACE, BEIJING, -1);
    write_text(temp_path(&folder, "copy/tokenizer.json"), "{}");
    assert_int_equal(mc_tokenizer_save(tok, temp_path(&folder, "copy")), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), "tokenizer.json: would be read instead"));
    mc_clear_error(ctx);
}

/* White space around an entry is none of it, a tokenizer_config.json changes nothing. */
static void test_entries(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "tokenizer_config.json"),
               "{\"unk_token\": \"我\", \"added_tokens_decoder\": {\"9\": {\"content\": \"我\","
               " \"special\": true}}}");
    char text[sizeof cpm1_text + 16];
    snprintf(text, sizeof text, "%s\u3000 ba\t\r\n", cpm1_text);
    mc_tokenizer *tok = open_vocab(text);
    expect_ids(tok, "我ba", WO, ENTRIES, -1);
    expect_ids(tok, "大", UNK, -1);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"</_>\n<pad>\n<eod>\n</n>\n", "vocab.txt: CPM's vocabulary has no entry \"<unk>\""},
        {"</_>\n<unk>\n<eod>\n</n>\n", "no entry \"<pad>\""},
        {"</_>\n<unk>\n<pad>\n</n>\n", "no entry \"<eod>\""},
        {"</_>\n<unk>\n<pad>\n<eod>\n", "no entry \"</n>\""},
        {"<s_0>\n<unk>\n<pad>\n<eod>\n▂\n", "no entry \"▃\""},
        {"<s_0>\n<unk>\n<pad>\n<eod>\n▃\n", "no entry \"▂\""},
        {"</_>\n<unk>\n<pad>\n<eod>\n</n>\n\ufff3\n", "U+FFF2 or U+FFF3 is an entry"},
        {"</_>\n<unk>\n<pad>\n<eod>\n</n>\na\n a\n", "\"a\" stands on line 6 already"},
        {"</_>\n<unk>\n<pad>\n<eod>\n</n>\n \n", "vocab.txt:6: "},
    };
    write_jieba(&folder, "jieba");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(temp_path(&folder, "vocab.txt"), bad[i][0]);
        expect_failure(MC_ERR_FORMAT, bad[i][1]);
    }
    write_text(temp_path(&folder, "vocab.txt"), cpm2_text);
    mc_tokenizer_options lower = {.lowercase = MC_LOWERCASE_YES};
    assert_null(mc_tokenizer_open(ctx, folder.path, &lower));
    assert_int_equal(mc_error_status(ctx), MC_ERR_UNSUPPORTED);
    mc_clear_error(ctx);
    setenv("MC_JIEBA_DIR", "/nowhere", 1);
    assert_null(mc_tokenizer_from_pretrained(ctx, folder.path));
    assert_non_null(strstr(ctx->error.trace, "vocab.txt, CPM-2's vocabulary"));
    mc_clear_error(ctx);
    expect_failure(MC_ERR_NOT_FOUND, "/nowhere: cannot open");
    unsetenv("MC_JIEBA_DIR");
}

#ifdef MC_FAULT_INJECTION
static void test_allocation_failures(void **state)
{
    (void)state;
    mc_tokenizer_free(open_vocab(cpm2_text));
    for (long nth = 1;; nth++) {
        mc_fault_fail_at(nth, false);
        mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, folder.path);
        mc_status status = mc_error_status(ctx);
        if (tok) status = mc_tokenizer_append(tok, "北京 网研", 13, &encoding);
        char *text = tok && !status ? mc_tokenizer_decode(tok, encoding.ids, 1, true) : NULL;
        if (tok && !status && !text) status = MC_ERR_NOMEM;
        mc_fault_fail_at(0, false);
        mc_string_free(text);
        mc_tokenizer_free(tok);
        mc_encoding_release(&encoding);
        mc_clear_error(ctx);
        if (!status) {
            assert_true(nth > 20);
            return;
        }
        assert_int_equal(status, MC_ERR_NOMEM);
    }
}

static void test_steady_state(void **state)
{
    (void)state;
    static const char text[] = "我来到北京 清华大学网研";
    mc_tokenizer *tok = open_vocab(cpm1_text);
    for (int i = 0; i < 100; i++) {
        if (i == 1) mc_fault_fail_at(0, false);
        encoding.count = 0;
        assert_int_equal(mc_tokenizer_append(tok, text, strlen(text), &encoding), MC_OK);
    }
    assert_int_equal(mc_fault_count(), 0);
}
#endif

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_goldens),
        TEST(test_words),
        TEST(test_special_tokens),
        TEST(test_long_words),
        TEST(test_long_blocks),
        TEST(test_pairs_and_truncation),
        TEST(test_cuts),
        TEST(test_random_texts),
        TEST(test_threads),
        TEST(test_decode),
        TEST(test_lookup),
        TEST(test_save),
        TEST(test_entries),
        TEST(test_bad_files),
#ifdef MC_FAULT_INJECTION
        TEST(test_allocation_failures),
        TEST(test_steady_state),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
