/* The WordPiece tokenizer: against the recorded results, and case by case on small vocabularies. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"
#include "tokenizers/details.h"

/* 0..4 special, then words and pieces; ids are line numbers from 0 */
static const char vocab_text[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" /*  0 */
                                 "hello\nworld\nun\n##aff\n##able\n"    /*  5 */
                                 "##a\n##b\na\nb\ne\n"                  /* 10 */
                                 "!\n,\n'\nt\nnaive\n"                  /* 15 */
                                 "中\n文\n.\ndon\n##s\n";               /* 20 */
enum {
    PAD,
    UNK,
    CLS,
    SEP,
    MASK,
    HELLO,
    WORLD,
    UN,
    AFF,
    ABLE,
    P_A,
    P_B,
    A,
    B,
    E_,
    BANG,
    COMMA,
    QUOTE,
    T_,
    NAIVE,
    ZHONG,
    WEN,
    DOT,
    DON,
    P_S,
    ENTRIES
};

static mc_tokenizer *open_vocab(const char *text)
{
    write_text(temp_path(&folder, "vocab.txt"), text);
    return open_folder();
}

static void expect_ids_of_bytes(const mc_tokenizer *tok, const char *text, size_t length, ...)
{
    va_list args;
    va_start(args, length);
    expect_ids_of(tok, text, length, args);
    va_end(args);
}

/* ---- The recorded results -------------------------------------------------------------------- */

static void test_goldens(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"bert-base-cased", "bert-base-cased-a"},
        {"bert-base-uncased", "bert-base-uncased-a"},
        {"bert-base-chinese", "bert-base-chinese-a"},
        {"bert-base-multilingual-cased", "bert-base-multilingual-cased-a"},
        {"bert-base-uncased", "bert-base-uncased-pairs24-a"}};
    const char *shared = shared_folder();
    if (!shared) skip();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_recorded(shared, names[i][0], names[i][1]);
}

static void test_check_program(void **state)
{
    (void)state;
    char records[1024];
    snprintf(records, sizeof records, "%s/records.jsonl", folder.path);
    open_vocab(vocab_text);
    write_text(records,
               "{\"text\": \"he\\u0000llo \\ufdd0\", \"ids\": [2, 5, 1, 3]}\n"
               "{\"text\": \"a\", \"pair\": \"b\", \"max_length\": 4, \"ids\": [2, 3, 13, 3],"
               " \"type_ids\": [0, 0, 1, 1]}\n"
               "{\"text\": \"hello!\", \"ids\": [2, 5, 15, 3], \"decoded\": \"hello!\"}\n"
               "{\"text\": \"hello!\", \"ids\": [2, 5, 15, 3],"
               " \"decoded\": \"[CLS] hello! [SEP]\"}\n");
    assert_int_equal(check(folder.path, records), 0);
    expect_output("4 of 4 exact\n");
    write_text(records, "{\"text\": \"hello\", \"ids\": [2, 5, 3]}\n"
                        "{\"text\": \"hello\", \"ids\": [2, 5, 3], \"decoded\": \"hullo\"}\n"
                        "{\"text\": \"hello\", \"ids\": [2, 5, 3], \"type_ids\": [0, 1, 0]}\n"
                        "{\"text\": \"hello\", \"ids\": [2, 6, 3]}");
    assert_int_equal(check(folder.path, records), 1);
    expect_output("records.jsonl:4: ids differ");
    expect_output("1 of 4 exact\n");
    static const char *const bad[][2] = {
        {"", "no lines"},
        {"{\"text\": \"hello\", \"ids\": [2, 5, 3]}\n{\"text\": ", "records.jsonl:2: malformed"},
        {"{\"text\": \"hello\"}\n", "records.jsonl:1: expected"},
        {"{\"text\": 3, \"ids\": []}\n", "\"text\""},
        {"{\"text\": \"\", \"ids\": [1.5]}\n", "\"ids\""},
        {"{\"text\": \"\", \"ids\": [2], \"max_length\": 1}\n", "max_length 1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(records, bad[i][0]);
        assert_int_equal(check(folder.path, records), 2);
        expect_output(bad[i][1]);
    }
    assert_int_equal(check(folder.path, "/nowhere/file"), 2);
    assert_int_equal(check("/nowhere", records), 2);
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static void test_words(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    expect_ids(tok, "", CLS, SEP, -1);
    expect_ids(tok, " \t\r\n", CLS, SEP, -1);
    expect_ids(tok, "Hello, WORLD!", CLS, HELLO, COMMA, WORLD, BANG, SEP, -1);
    expect_ids(tok, "unaffable", CLS, UN, AFF, ABLE, SEP, -1);
    expect_ids(tok, "unaffablex hello", CLS, UNK, HELLO, SEP, -1);
    expect_ids(tok, "don't", CLS, DON, QUOTE, T_, SEP, -1);
    expect_ids(tok, "Na\u00efve na\u0131\u0308ve", CLS, NAIVE, UNK, SEP, -1);
    expect_ids(tok, "hello\u4e2d\u6587world", CLS, HELLO, ZHONG, WEN, WORLD, SEP, -1);
    expect_ids(tok, "he\u200bl\x7flo\u2028world", CLS, HELLO, WORLD, SEP, -1);
    expect_ids(tok, "a\u037eb", CLS, A, UNK, B, SEP, -1); /* the Greek question mark is ';' */
    expect_ids(tok, "##a", CLS, UNK, UNK, A, SEP, -1);
    expect_ids(tok, "\u00c9\u0301\u0327", CLS, E_, SEP, -1);
}

static void test_bytes(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    expect_ids_of_bytes(tok, "he\0llo", 6, CLS, HELLO, SEP, -1);
    expect_ids_of_bytes(tok,
                        "\xff"
                        "a\xe4\xb8"
                        "b",
                        5, CLS, A, P_B, SEP, -1);
    expect_ids_of_bytes(tok,
                        "a\xc0\x80"
                        "b\xed\xa0\x80",
                        7, CLS, A, P_B, SEP, -1);
    expect_ids_of_bytes(tok, "\xe4\xb8\xad\xe6\x96", 5, CLS, ZHONG, SEP, -1);
    expect_ids_of_bytes(tok, "a\xf4\x90\x80\x80[SEP]\xe4", 11, CLS, A, SEP, SEP, -1);
    /* a text needs no NUL after it */
    char *exact = mc_malloc(3);
    memcpy(exact, "a b", 3);
    expect_ids_of_bytes(tok, exact, 3, CLS, A, B, SEP, -1);
    mc_free(exact);
}

static void test_special_tokens_in_text(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    expect_ids(tok, "a[MASK]b", CLS, A, MASK, B, SEP, -1);
    expect_ids(tok, "[[MASK]] [PAD][UNK]", CLS, UNK, MASK, UNK, PAD, UNK, SEP, -1);
    expect_ids(tok, "[mask] [CLS", CLS, UNK, UNK, UNK, UNK, UNK, SEP, -1);
    expect_ids(tok, "[SEP]", CLS, SEP, SEP, -1);
}

static void test_long_words(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    char text[512];
    memset(text, 'a', sizeof text);
    assert_int_equal(mc_tokenizer_encode(tok, text, 100, NULL, 0, 0, &encoding), MC_OK);
    assert_int_equal(encoding.count, 102);
    assert_int_equal(encoding.ids[1], A);
    assert_int_equal(encoding.ids[100], P_A);
    expect_ids_of_bytes(tok, text, 101, CLS, UNK, SEP, -1);
    expect_ids_of_bytes(tok, text, 512, CLS, UNK, SEP, -1);
    /* the limit counts code points in normal form: the accent of each goes */
    for (size_t i = 0; i < 100; i++) memcpy(text + 2 * i, "\u00e1", 2);
    assert_int_equal(mc_tokenizer_encode(tok, text, 200, NULL, 0, 0, &encoding), MC_OK);
    assert_int_equal(encoding.count, 102);
}

static void expect_pair(const mc_tokenizer *tok, size_t a, size_t b, size_t max_length,
                        size_t a_kept, size_t b_kept)
{
    char first[64] = "", second[64] = "";
    for (size_t i = 0; i < a; i++) strcat(first, "a ");
    for (size_t i = 0; i < b; i++) strcat(second, "b ");
    assert_int_equal(mc_tokenizer_encode(tok, first, strlen(first), second, strlen(second),
                                         max_length, &encoding),
                     MC_OK);
    assert_int_equal(encoding.count, a_kept + b_kept + 3);
    for (size_t i = 0; i < encoding.count; i++) {
        bool special = i == 0 || i == a_kept + 1 || i + 1 == encoding.count;
        int32_t id = i == 0 ? CLS : special ? SEP : i <= a_kept ? A : B;
        assert_int_equal(encoding.ids[i], id);
        assert_int_equal(encoding.type_ids[i], i > a_kept + 1);
    }
}

static void test_pairs(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    expect_pair(tok, 0, 0, 0, 0, 0);
    expect_pair(tok, 3, 4, 0, 3, 4);
    expect_pair(tok, 3, 4, 10, 3, 4);
    expect_pair(tok, 3, 4, 9, 3, 3);
    expect_pair(tok, 4, 3, 9, 3, 3);
    expect_pair(tok, 2, 9, 9, 2, 4);
    expect_pair(tok, 9, 2, 9, 4, 2);
    expect_pair(tok, 5, 3, 8, 3, 2); /* the odd id goes to the longer one */
    expect_pair(tok, 3, 5, 8, 2, 3);
    expect_pair(tok, 9, 9, 8, 2, 3);
    expect_pair(tok, 0, 9, 5, 0, 2);
    expect_pair(tok, 9, 9, 4, 0, 1);
    expect_pair(tok, 9, 9, 3, 0, 0);
    assert_int_equal(mc_tokenizer_encode(tok, "a", 1, "b", 1, 2, &encoding), MC_ERR_ARGUMENT);
    assert_int_equal(encoding.count, 0);
}

static void test_truncation_of_one(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    const char *text = "a b a b unaffable";
    static const size_t expected[] = {0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 9};
    for (size_t max = 2; max <= 10; max++) {
        assert_int_equal(mc_tokenizer_encode(tok, text, strlen(text), NULL, 0, max, &encoding),
                         MC_OK);
        assert_int_equal(encoding.count, expected[max]);
        assert_int_equal(encoding.ids[0], CLS);
        assert_int_equal(encoding.ids[encoding.count - 1], SEP);
    }
    assert_int_equal(mc_tokenizer_encode(tok, text, strlen(text), NULL, 0, 1, &encoding),
                     MC_ERR_ARGUMENT);
    /* a word that turns out unknown after the cut is unknown before it too */
    assert_int_equal(mc_tokenizer_encode(tok, "unaffx", 6, NULL, 0, 3, &encoding), MC_OK);
    assert_int_equal(encoding.ids[1], UNK);
}

/* Of two texts that both reach max_length the one whose counted part is longer gets the odd place.
 * Added tokens count, but only after a word does the counting stop, and white space is none. */
static void test_truncation_of_long_pairs(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int counted;
    } cases[] = {{"a a a a a a a", 4},          {"a a a a [SEP]", 4},
                 {"[SEP] a a a a a", 4},        {"a a a [SEP] \u2000\u200b a a", 5},
                 {"[SEP][SEP][SEP][SEP] a", 5}, {"[SEP][SEP][SEP][SEP][SEP] a a", 6},
                 {"a a unaffable a", 5},        {"a a a, unaffable", 4}};
    enum { CASES = sizeof cases / sizeof *cases };
    mc_tokenizer *tok = open_vocab(vocab_text);
    for (int i = 0; i < CASES * CASES; i++) {
        const char *a = cases[i / CASES].text, *b = cases[i % CASES].text;
        bool first = cases[i / CASES].counted > cases[i % CASES].counted;
        size_t type_1 = 0;
        assert_int_equal(mc_tokenizer_encode(tok, a, strlen(a), b, strlen(b), 4, &encoding), MC_OK);
        assert_int_equal(encoding.count, 4);
        for (size_t k = 0; k < 4; k++) type_1 += encoding.type_ids[k];
        if (type_1 != (first ? 1 : 2)) fail_msg("\"%s\" and \"%s\"", a, b);
    }
}

/* Text that a quadratic tokenizer would take hours for, and ctest's limit ends it. */
static void test_large_texts(void **state)
{
    (void)state;
    static const char *const patterns[] = {"a",      "hello world, ", "\u0301",          "[MASK",
                                           "[MASK]", "\u4e2d",        "e\u0301 ",        "[",
                                           "\xff",   "unaffx ",       "\u1b44\U0001D165"};
    enum { SIZE = 10000000 };
    mc_tokenizer *tok = open_vocab(vocab_text);
    char *text = mc_malloc(SIZE);
    assert_non_null(text);
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        size_t length = strlen(patterns[p]), size = SIZE / length * length;
        for (size_t i = 0; i < size; i += length) memcpy(text + i, patterns[p], length);
        assert_int_equal(mc_tokenizer_encode(tok, text, size, NULL, 0, 0, &encoding), MC_OK);
        if (p == 0) assert_int_equal(encoding.count, 3);
        if (p == 1) assert_int_equal(encoding.count, 2 + size / length * 3);
        if (p == 4) assert_int_equal(encoding.count, 2 + size / length);
        assert_int_equal(mc_tokenizer_encode(tok, text, size, text, size, 512, &encoding), MC_OK);
        assert_true(encoding.count <= 512);
    }
    mc_free(text);
}

static void test_threads(void **state)
{
    (void)state;
    static const int32_t ids[] = {CLS, HELLO, NAIVE, ZHONG, WEN,  COMMA,
                                  UN,  AFF,   ABLE,  MASK,  BANG, SEP};
    check_threads(open_vocab(vocab_text), "Hello na\u00efve \u4e2d\u6587, unaffable [MASK]!", ids,
                  sizeof ids / sizeof *ids);
}

/* ---- The vocabulary -------------------------------------------------------------------------- */

static void test_lookup(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    assert_int_equal(mc_tokenizer_vocab_size(tok), ENTRIES);
    assert_int_equal(mc_tokenizer_pad_id(tok), PAD);
    assert_int_equal(mc_tokenizer_cls_id(tok), CLS);
    assert_int_equal(mc_tokenizer_sep_id(tok), SEP);
    for (int32_t id = 0; id < ENTRIES; id++)
        assert_int_equal(mc_tokenizer_token_to_id(tok, mc_tokenizer_id_to_token(tok, id)), id);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "hell"), -1);
    assert_int_equal(mc_tokenizer_token_to_id(tok, ""), -1);
    assert_null(mc_tokenizer_id_to_token(tok, -1));
    assert_null(mc_tokenizer_id_to_token(tok, ENTRIES));
    mc_tokenizer_free(tok);
    mc_tokenizer_free(NULL);
    assert_int_equal(mc_tokenizer_vocab_size(NULL), 0);
    assert_int_equal(mc_tokenizer_encode(NULL, "", 0, NULL, 0, 0, &encoding), MC_ERR_ARGUMENT);
}

static void test_case(void **state)
{
    (void)state;
    char text[1024];
    expect_ids(open_vocab(vocab_text), "Hello", CLS, HELLO, SEP, -1);
    snprintf(text, sizeof text, "%s<S>\n[Q]\n\u211d\n", vocab_text); /* no cased letters */
    expect_ids(open_vocab(text), "Hello", CLS, HELLO, SEP, -1);
    snprintf(text, sizeof text, "%s##\u0416\n", vocab_text);
    expect_ids(open_vocab(text), "Hello hello", CLS, UNK, HELLO, SEP, -1);
    mc_tokenizer_options lower = {MC_LOWERCASE_YES}, cased = {MC_LOWERCASE_NO};
    expect_ids(mc_tokenizer_open(ctx, folder.path, &lower), "Hello", CLS, HELLO, SEP, -1);
    open_vocab(vocab_text);
    expect_ids(mc_tokenizer_open(ctx, folder.path, &cased), "Hello", CLS, UNK, SEP, -1);
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"do_lower_case\": false}");
    expect_ids(open_folder(), "Hello", CLS, UNK, SEP, -1);
    expect_ids(mc_tokenizer_open(ctx, folder.path, &lower), "Hello", CLS, HELLO, SEP, -1);
    assert_null(mc_tokenizer_open(ctx, folder.path, &(mc_tokenizer_options){(mc_lowercase)3}));
    assert_int_equal(mc_error_status(ctx), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), "lowercase is 3"));
    mc_clear_error(ctx);
}

static void test_config(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "tokenizer_config.json"),
               "{\"strip_accents\": false, \"tokenize_chinese_chars\": false, \"mask_token\": null,"
               " \"pad_token\": {\"content\": \"world\"}, \"added_tokens_decoder\":"
               " {\"26\": {\"content\": \"<y>\", \"special\": true},"
               "  \"25\": {\"content\": \"<x>\", \"special\": false, \"lstrip\": true}}}");
    mc_tokenizer *tok = open_vocab(vocab_text);
    assert_int_equal(mc_tokenizer_pad_id(tok), WORLD);
    assert_int_equal(mc_tokenizer_vocab_size(tok), ENTRIES + 2);
    expect_ids(tok, "na\u00efve \u4e2d\u6587 a <x><Y><y>", CLS, UNK, UNK, A, ENTRIES, UNK, UNK, UNK,
               ENTRIES + 1, SEP, -1);
}

static void test_crlf_and_last_line(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab("[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\nlast");
    assert_int_equal(mc_tokenizer_vocab_size(tok), 5);
    expect_ids(tok, "last", 2, 4, 3, -1);
}

/* White space at the end of a line is no part of the entry, nor alone one of any characters. */
static void test_space_at_line_ends(void **state)
{
    (void)state;
    char target[1024];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    mc_tokenizer *tok =
        open_vocab("[PAD]\n[UNK]\n[CLS]\n[SEP]\na \n b\n\xE2\x80\xA8\nc\xE3\x80\x80\t");
    for (int saved = 0; saved < 2; saved++) {
        assert_int_equal(mc_tokenizer_vocab_size(tok), 8);
        assert_string_equal(mc_tokenizer_id_to_token(tok, 5), " b");
        assert_string_equal(mc_tokenizer_id_to_token(tok, 6), "");
        expect_ids(tok, "a b c", 2, 4, 1, 7, 3, -1);
        assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
        tok = mc_tokenizer_from_pretrained(ctx, target);
    }
    assert_non_null(tok);
}

static void test_check_ids(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    const int32_t ids[] = {CLS, HELLO, SEP};
    const int32_t wrong[] = {CLS, -1};
    char expected[128];
    snprintf(expected, sizeof expected,
             "/vocab.txt: token \"hello\" has id %d, but the model has %d", HELLO, HELLO);
    assert_int_equal(mc_tokenizer_check_ids(NULL, ids, 3, 100), MC_ERR_ARGUMENT);
    assert_int_equal(mc_tokenizer_check_ids(tok, NULL, 0, 0), MC_OK);
    assert_int_equal(mc_tokenizer_check_ids(tok, ids, 3, HELLO + 1), MC_OK);
    assert_int_equal(mc_tokenizer_check_ids(tok, ids, 3, HELLO), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), expected));
    mc_clear_error(ctx);
    assert_int_equal(mc_tokenizer_check_ids(tok, wrong, 2, 100), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    assert_int_equal(mc_tokenizer_check_ids(tok, NULL, 1, 100), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
}

static void test_bad_vocabularies(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {{"", "vocab.txt: empty file"},
                 {"[PAD]\n[UNK]\n[CLS]\n[SEP]\n\xff\n", "vocab.txt:5: byte 0xff"},
                 {"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\rb\n", "vocab.txt:5: entry holds"},
                 {"[UNK]\n[CLS]\n[SEP]\n", "no entry \"[PAD]\""},
                 {"[PAD]\n[CLS]\n[SEP]\n", "no entry \"[UNK]\""},
                 {"[PAD]\n[UNK]\n[SEP]\n", "no entry \"[CLS]\""},
                 {"[PAD]\n[UNK]\n[CLS]\n", "no entry \"[SEP]\""}};
    expect_failure(MC_ERR_NOT_FOUND, "neither tokenizer.json nor vocab.txt");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(temp_path(&folder, "vocab.txt"), cases[i].text);
        expect_failure(MC_ERR_FORMAT, cases[i].part);
    }
    write_bytes(temp_path(&folder, "vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\0b\n", 28);
    expect_failure(MC_ERR_FORMAT, "vocab.txt:5: entry holds");
    write_text(temp_path(&folder, "vocab.txt"), vocab_text);
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"do_lower_case\": 3}");
    expect_failure(MC_ERR_FORMAT, "\"do_lower_case\"");
    assert_null(mc_tokenizer_from_pretrained(ctx, "/nowhere/at/all"));
    assert_true(mc_failed(ctx));
    assert_null(mc_tokenizer_from_pretrained(ctx, folder.path)); /* the error sticks */
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

#define JSON_VOCAB                                                                              \
    "{\"[PAD]\": 0, \"[UNK]\": 1, \"[CLS]\": 2, \"[SEP]\": 3, \"Ab\": 4, \"ab\": 5, \"@c\": 6," \
    " \"\\u00e9\": 7, \"e\": 8, \"\\u4e2d\\u6587\": 9, \"\\u0001\": 10}"
#define JSON_SETTINGS "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}"
#define JSON_MODEL(vocab)                                             \
    "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", " \
    "\"continuing_subword_prefix\":"                                  \
    " \"@\", \"max_input_chars_per_word\": 4, \"vocab\": " vocab "}"

static mc_tokenizer *open_json(const char *text)
{
    write_text(temp_path(&folder, "tokenizer.json"), text);
    return open_folder();
}

/* Sequences of no steps: a text is one word, nothing is put around it, and nothing between tokens
 * that are decoded. */
static void test_json_empty_sequences(void **state)
{
    (void)state;
    char target[1024];
    mc_tokenizer *tok = open_json(
        "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": []}, \"decoder\": "
        "{\"type\": "
        "\"Sequence\", \"decoders\": []}, \"post_processor\": {\"type\": \"Sequence\", "
        "\"processors\": []}, \"added_tokens\": [{\"id\": 0, \"content\": \"[PAD]\", \"special\": "
        "true}], " JSON_MODEL("{\"[PAD]\": 0, \"[UNK]\": 1, \"[CLS]\": 2, \"[SEP]\": 3, \"ab\": 4, "
                              "\"@ a\": 5, \"@c\": 6}") "}");
    snprintf(target, sizeof target, "%s/saved", folder.path);
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    mc_tokenizer *saved = mc_tokenizer_from_pretrained(ctx, target);
    for (int i = 0; i < 2; i++, tok = saved) {
        expect_ids(tok, "ab a", 4, 5, -1);
        expect_ids(tok, "abc[PAD]ab a ab", 4, 6, 0, 1, -1); /* the last one has 7 characters */
        expect_ids(tok, " ab", 1, -1);
        expect_ids(tok, "", -1);
        char *text = mc_tokenizer_decode(tok, (int32_t[]){4, 5, 6, 4}, 4, false);
        assert_string_equal(text, "ab@ a@cab");
        mc_string_free(text);
    }
}

static void test_json_settings(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_json(
        "{" JSON_SETTINGS ", \"truncation\": {\"max_length\": 3}, \"padding\": {\"pad_id\": 9},"
        "\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": false,"
        " \"handle_chinese_chars\": false, \"strip_accents\": null, \"lowercase\": false},"
        "\"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"[SEP]\", 3], \"cls\":"
        " [\"[CLS]\", 2]}, " JSON_MODEL(JSON_VOCAB) "}");
    expect_ids(tok, "Ab AB abc \u00e9 \u4e2d\u6587 \x01", 2, 4, 1, 5, 6, 7, 9, 10, 3, -1);
    expect_ids(tok, "abccc abcc", 2, 1, 5, 6, 6, 3, -1);
    mc_tokenizer_options lower = {MC_LOWERCASE_YES};
    tok = mc_tokenizer_open(ctx, folder.path, &lower);
    expect_ids(tok, "Ab \u00e9", 2, 5, 8, 3, -1);
    /* MPNet's: two separators between the texts of a pair */
    tok = open_json("{" JSON_SETTINGS
                    ", \"post_processor\": {\"type\": \"RobertaProcessing\", \"sep\": "
                    "[\"[SEP]\", 3], \"cls\": [\"[CLS]\", 2]}, " JSON_MODEL(JSON_VOCAB) "}");
    mc_encoding pair = {0};
    assert_int_equal(mc_tokenizer_encode(tok, "Ab", 2, "Ab", 2, 0, &pair), MC_OK);
    assert_int_equal(pair.count, 6);
    assert_memory_equal(pair.ids, ((int32_t[]){2, 4, 3, 3, 4, 3}), 6 * sizeof(int32_t));
    mc_encoding_release(&pair);
    /* no normalizer, no post-processor, no decoder */
    tok = open_json("{" JSON_SETTINGS ", \"normalizer\": null, " JSON_MODEL(JSON_VOCAB) "}");
    expect_ids(tok, "Ab abc", 4, 5, 6, -1);
    char *text = mc_tokenizer_decode(tok, (int32_t[]){4, 5, 6}, 3, false);
    assert_string_equal(text, "Ab ab @c");
    mc_string_free(text);
}

static void test_json_added_tokens(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_json(
        "{" JSON_SETTINGS ", \"normalizer\": {\"type\": \"BertNormalizer\", \"lowercase\": true},"
        "\"added_tokens\": ["
        "{\"id\": 11, \"content\": \"<X>\", \"special\": true, \"rstrip\": true},"
        "{\"id\": 12, \"content\": \"Word\", \"single_word\": true, \"normalized\": true},"
        "{\"id\": 13, \"content\": \"<X>y\", \"normalized\": false, \"lstrip\": true},"
        "{\"id\": 5, \"content\": \"ab\", \"special\": true}], " JSON_MODEL(JSON_VOCAB) "}");
    assert_int_equal(mc_tokenizer_vocab_size(tok), 14);
    expect_ids(tok, "e<X> e <x>", 8, 11, 8, 1, 1, 1, -1);
    expect_ids(tok, "e  <X>y", 8, 13, -1); /* the longest at a place */
    expect_ids(tok, "WORD word. sword word\u0661", 12, 12, 1, 1, 1, -1);
    expect_ids(tok, "eabe", 8, 5, 8, -1);
    char *text = mc_tokenizer_decode(tok, (int32_t[]){8, 11, 12, 13, 5, 99}, 6, true);
    assert_string_equal(text, "e word <X>y");
    mc_string_free(text);
}

static void test_json_template(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_json(
        "{" JSON_SETTINGS ", \"normalizer\": null, \"post_processor\": {\"type\":"
        " \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}},"
        " {\"SpecialToken\": {\"id\": \"end\", \"type_id\": 4}}], \"pair\": [{\"Sequence\": "
        "{\"id\":"
        " \"A\", \"type_id\": 1}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 2}}, "
        "{\"SpecialToken\":"
        " {\"id\": \"end\", \"type_id\": 3}}], \"special_tokens\": {\"end\": {\"id\": \"end\","
        " \"ids\": [3, 0], \"tokens\": [\"[SEP]\", \"[PAD]\"]}}}, " JSON_MODEL(JSON_VOCAB) "}");
    static const int32_t ids[] = {5, 8, 8, 3, 0};
    static const uint8_t types[] = {1, 2, 2, 3, 3};
    assert_int_equal(mc_tokenizer_encode(tok, "ab", 2, "e e", 3, 0, &encoding), MC_OK);
    assert_int_equal(encoding.count, 5);
    assert_memory_equal(encoding.ids, ids, sizeof ids);
    assert_memory_equal(encoding.type_ids, types, sizeof types);
}

static void test_bad_json(void **state)
{
    (void)state;
    static const struct {
        mc_status status;
        const char *text, *part;
    } cases[] = {
        {MC_ERR_FORMAT, "{\n\"model\": \n}", "tokenizer.json:"},
        {MC_ERR_FORMAT, "[]", "expected a JSON object"},
        {MC_ERR_FORMAT, "{}", "\"model\""},
        {MC_ERR_UNSUPPORTED, "{\"model\": {\"type\": \"WordLevel\"}}", "\"WordLevel\""},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": []}}", "\"vocab\""},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": {}}}", "0 entries"},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": {\"a\": -1}}}", "\"a\": expected an id"},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": {\"a\": 9999999}}}", "\"a\": expected an id"},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}}}", "both have id 0"},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": {\"\": 0, \"\": 1}}}",
         "second empty entry of id 1"},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": {\"\": 0, \"a\": 0}}}", "both have id 0"},
        {MC_ERR_FORMAT, "{\"model\": {\"vocab\": {\"a\": 0, \"\": 0}}}", "both have id 0"},
        {MC_ERR_FORMAT, "{" JSON_SETTINGS ", " JSON_MODEL("{\"a\": 0, \"a\": 1}") "}", "two ids"},
        {MC_ERR_FORMAT, "{" JSON_SETTINGS ", " JSON_MODEL("{\"[PAD]\": 0}") "}", "\"[UNK]\""},
        {MC_ERR_UNSUPPORTED,
         "{\"pre_tokenizer\": {\"type\": \"Whitespace\"}, " JSON_MODEL(JSON_VOCAB) "}",
         "\"Whitespace\""},
        {MC_ERR_UNSUPPORTED,
         "{\"pre_tokenizer\": {\"type\": \"Sequence\"}, " JSON_MODEL(JSON_VOCAB) "}",
         "\"Sequence\""},
        {MC_ERR_UNSUPPORTED,
         "{\"normalizer\": {\"type\": \"StripAccents\"}, " JSON_MODEL(JSON_VOCAB) "}",
         "\"StripAccents\""},
        {MC_ERR_FORMAT,
         "{\"normalizer\": {\"type\": \"BertNormalizer\", \"lowercase\": 1}, " JSON_MODEL(
             JSON_VOCAB) "}",
         "\"lowercase\""},
        {MC_ERR_FORMAT, "{" JSON_SETTINGS ", \"added_tokens\": [{}], " JSON_MODEL(JSON_VOCAB) "}",
         "added_tokens[0]: expected a string \"content\""},
        {MC_ERR_FORMAT,
         "{" JSON_SETTINGS ", \"added_tokens\": [{\"content\": \"q\"}, {\"content\": \"q\","
         " \"special\": true}], " JSON_MODEL(JSON_VOCAB) "}",
         "\"q\" comes twice"},
        {MC_ERR_UNSUPPORTED,
         "{" JSON_SETTINGS
         ", \"post_processor\": {\"type\": \"ByteLevel\"}, " JSON_MODEL(JSON_VOCAB) "}",
         "\"ByteLevel\""},
        {MC_ERR_UNSUPPORTED,
         "{" JSON_SETTINGS
         ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []},"
         " " JSON_MODEL(JSON_VOCAB) "}",
         "lacks a sequence"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(temp_path(&folder, "tokenizer.json"), cases[i].text);
        expect_failure(cases[i].status, cases[i].part);
    }
}

/* ---- Decoding and saving --------------------------------------------------------------------- */

static void expect_decoded(const mc_tokenizer *tok, bool skip_special, const char *expected, ...)
{
    int32_t ids[32];
    size_t count = 0;
    va_list args;
    va_start(args, expected);
    while (count < 32 && (ids[count] = va_arg(args, int)) >= 0) count++;
    va_end(args);
    char *text = mc_tokenizer_decode(tok, ids, count, skip_special);
    assert_string_equal(text, expected);
    mc_string_free(text);
}

static void test_decode(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    expect_decoded(tok, true, "", -1);
    expect_decoded(tok, true, "hello, unaffable!", CLS, HELLO, COMMA, UN, AFF, ABLE, BANG, SEP, -1);
    expect_decoded(tok, false, "[CLS] hello [UNK] [SEP]", CLS, HELLO, UNK, SEP, -1);
    expect_decoded(tok, true, "##aff a", AFF, A, -1);
    expect_decoded(tok, true, "don ' t.", DON, QUOTE, T_, DOT, ENTRIES, -1);
    assert_int_equal(mc_tokenizer_decode(NULL, NULL, 0, true) == NULL, true);
}

static void expect_same_ids(const mc_tokenizer *a, const mc_tokenizer *b, const char *text)
{
    mc_encoding other = {0};
    assert_int_equal(mc_tokenizer_encode(a, text, strlen(text), "a b", 3, 9, &encoding), MC_OK);
    assert_int_equal(mc_tokenizer_encode(b, text, strlen(text), "a b", 3, 9, &other), MC_OK);
    assert_int_equal(encoding.count, other.count);
    assert_memory_equal(encoding.ids, other.ids, other.count * sizeof *other.ids);
    mc_encoding_release(&other);
}

/* `transformers` makes one of a line of white space in vocab.txt (bert-base-chinese has U+2028). No
 * text holds it, but it has an id, and added tokens are numbered after it. */
static void test_empty_entry(void **state)
{
    (void)state;
    char target[1024];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    mc_tokenizer *tok = open_json(
        "{" JSON_SETTINGS ", \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"@\", \"cleanup\":"
        " true}, \"added_tokens\": [{\"id\": 7, \"content\": \"new\"}], \"post_processor\":"
        " {\"type\": \"BertProcessing\", \"sep\": [\"[SEP]\", 3], \"cls\": [\"[CLS]\", "
        "2]}, " JSON_MODEL("{\"[PAD]\": 0, \"[UNK]\": 1, \"[CLS]\": 2, \"[SEP]\": 3, \"\": 4, "
                           "\"a\": 5, \"@b\": 6}") "}");
    for (int saved = 0; saved < 2; saved++) {
        assert_false(mc_failed(ctx));
        assert_int_equal(mc_tokenizer_vocab_size(tok), 8);
        assert_int_equal(mc_tokenizer_token_to_id(tok, ""), 4);
        assert_string_equal(mc_tokenizer_id_to_token(tok, 4), "");
        expect_ids(tok, "ab new \u2028 ba", 2, 5, 6, 7, 1, 3, -1);
        expect_decoded(tok, false, "a  ab new", 5, 4, 5, 6, 7, -1);
        assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
        tok = mc_tokenizer_from_pretrained(ctx, target);
    }
}

static void test_save(void **state)
{
    (void)state;
    char target[1024];
    snprintf(target, sizeof target, "%s/deep/er", folder.path);
    mc_tokenizer_options cased = {MC_LOWERCASE_NO};
    open_vocab(vocab_text);
    mc_tokenizer *tok = mc_tokenizer_open(ctx, folder.path, &cased);
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    assert_int_equal(count_files(target), 2);
    mc_tokenizer *again = mc_tokenizer_from_pretrained(ctx, target);
    expect_same_ids(tok, again, "Hello hello na\u00efve [MASK] \u4e2d\u6587");
    expect_ids(again, "Hello hello", CLS, UNK, HELLO, SEP, -1);

    /* more than vocab.txt can say */
    tok = open_json(
        "{" JSON_SETTINGS ", \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": false},"
        "\"added_tokens\": [{\"id\": 11, \"content\": \"<\\\"X\\\\>\", \"rstrip\": true, "
        "\"special\":"
        " true}], \"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"[SEP]\", 3], "
        "\"cls\":"
        " [\"[CLS]\", 2]}, \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"@\", \"cleanup\":"
        " false}, " JSON_MODEL(JSON_VOCAB) "}");
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    assert_int_equal(count_files(target), 3);
    again = mc_tokenizer_from_pretrained(ctx, target);
    assert_non_null(again);
    assert_int_equal(mc_tokenizer_vocab_size(again), 12);
    expect_same_ids(tok, again, "ab <\"X\\> \x01 abc E\u0301");
    expect_decoded(again, false, "ab <\"X\\> abc", 5, 11, 5, 6, -1);

    /* a plain one again: the other's tokenizer.json does not outlive it */
    assert_int_equal(unlink(temp_path(&folder, "tokenizer.json")), 0);
    tok = open_folder();
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    expect_same_ids(tok, mc_tokenizer_from_pretrained(ctx, target), "Hello unaffable, don't");
    assert_false(mc_failed(ctx));
}

static void test_save_failures(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_vocab(vocab_text);
    const char *blocked = temp_path(&folder, "file");
    write_text(blocked, "x");
    assert_int_not_equal(mc_tokenizer_save(tok, blocked), MC_OK);
    assert_non_null(strstr(mc_error_message(ctx), "file"));
    mc_clear_error(ctx);
    assert_int_equal(mc_tokenizer_save(NULL, blocked), MC_ERR_ARGUMENT);
    assert_int_equal(mc_tokenizer_save(tok, NULL), MC_ERR_ARGUMENT);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

#ifdef MC_FAULT_INJECTION
/* Opens, encodes, decodes and saves; whether all went well. */
static bool do_everything(const char *from, const char *to)
{
    static const char text[] = "Hello na\u00efve \u1b44\u302e unaffable [MASK] \u4e2d";
    mc_encoding own = {0};
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, from);
    assert_int_equal(tok == NULL, mc_failed(ctx));
    if (!tok) return false;
    mc_status status = mc_tokenizer_encode(tok, text, strlen(text), text, strlen(text), 0, &own);
    assert_true(!status || (status == MC_ERR_NOMEM && own.count == 0));
    char *decoded = mc_tokenizer_decode(tok, own.ids, own.count, false);
    mc_status saved = mc_tokenizer_save(tok, to);
    assert_int_equal(saved != MC_OK, mc_failed(ctx));
    bool good = !status && decoded && !saved;
    mc_string_free(decoded);
    mc_encoding_release(&own);
    mc_tokenizer_free(tok);
    return good;
}

static void expect_clean_failures(const char *to)
{
    long n = 0;
    for (bool good = false; !good; n++) {
        mc_fault_fail_at(n + 1, n % 2 == 0);
        good = do_everything(folder.path, to);
        mc_fault_fail_at(0, false);
        assert_int_equal(mc_error_status(ctx), mc_failed(ctx) ? MC_ERR_NOMEM : MC_OK);
        mc_clear_error(ctx);
        assert_true(n < 10000);
    }
    assert_true(n > 20);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    char target[1024];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    open_vocab(vocab_text);
    expect_clean_failures(target);
    open_json("{" JSON_SETTINGS
              ", \"normalizer\": {\"type\": \"BertNormalizer\"}, \"added_tokens\":"
              " [{\"id\": 11, \"content\": \"na\\u00efve\", \"normalized\": true}], " JSON_MODEL(
                  JSON_VOCAB) "}");
    expect_clean_failures(target);
}

static void test_steady_state(void **state)
{
    (void)state;
    static const char text[] = "Hello na\u00efve \u1b44\u302e unaffable [MASK] \u4e2d\u6587";
    mc_tokenizer *tok = open_vocab(vocab_text);
    for (int i = 0; i < 100; i++) {
        if (i == 1) mc_fault_fail_at(0, false);
        assert_int_equal(mc_tokenizer_encode(tok, text, strlen(text), NULL, 0, 0, &encoding),
                         MC_OK);
    }
    assert_int_equal(mc_fault_count(), 0);
}
#endif

/* ---- The trie and the tables ----------------------------------------------------------------- */

static void test_trie(void **state)
{
    (void)state;
    enum { KEYS = 5000, LONGEST = 12 };
    static uint8_t texts[KEYS][LONGEST];
    static mc_trie_key keys[KEYS], copy[KEYS];
    uint64_t random = 1;
    mc_trie trie;
    for (int i = 0; i < KEYS; i++) {
        for (int k = 0; k < LONGEST; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            texts[i][k] = (uint8_t)(i % 2 ? (random >> 33) % 3 : (random >> 33));
        }
        keys[i] = (mc_trie_key){texts[i], 1 + (size_t)(random >> 50) % LONGEST, i};
    }
    mc_trie_sort_keys(keys, KEYS);
    memcpy(copy, keys, sizeof keys);
    assert_true(mc_trie_init(&trie, keys, KEYS));
    for (int i = 0; i < KEYS; i++) {
        size_t matched = 0;
        bool first = i == 0 || keys[i].length != keys[i - 1].length ||
                     memcmp(keys[i].text, keys[i - 1].text, keys[i].length) != 0;
        int32_t found = mc_trie_find(&trie, copy[i].text, copy[i].length);
        if (first) assert_int_equal(found, keys[i].value);
        mc_trie_longest(&trie, MC_TRIE_ROOT, keys[i].text, keys[i].length, &matched);
        assert_int_equal(matched, keys[i].length);
    }
    assert_int_equal(mc_trie_find(&trie, keys[0].text, 0), -1);
    mc_trie_release(&trie);
    assert_true(mc_trie_init(&trie, NULL, 0));
    assert_int_equal(mc_trie_find(&trie, (const uint8_t *)"a", 1), -1);
    assert_int_equal(mc_trie_find(&trie, (const uint8_t *)"\0", 1), -1);
    mc_trie_release(&trie);
}

static void test_unicode(void **state)
{
    (void)state;
    uint32_t out[4];
    for (uint32_t c = 0; c <= MC_UNICODE_LAST; c++) {
        uint8_t bytes[4];
        uint32_t back;
        if (c >= 0xD800 && c < 0xE000) continue;
        size_t length = mc_utf8_encode(c, bytes);
        assert_int_equal(mc_utf8_decode(bytes, bytes + length, &back), length);
        assert_int_equal(back, c);
        assert_int_equal(mc_utf8_decode_last(bytes, bytes + length), c);
        assert_null(mc_utf8_find_invalid(bytes, bytes + length));
        uint16_t flags = mc_unicode_get(c).flags;
        bool decomposes = mc_unicode_decompose(c, out) != 1 || out[0] != c;
        assert_int_equal(decomposes, (flags & MC_UNICODE_DECOMPOSES) != 0);
        bool lowers = mc_unicode_to_lower(c, out) != 1 || out[0] != c;
        assert_int_equal(lowers, (flags & MC_UNICODE_LOWERS) != 0);
    }
    assert_int_equal(mc_unicode_decompose(0xAC01, out), 3);
    assert_int_equal(out[2], 0x11A8);
    assert_int_equal(mc_unicode_to_lower(0x130, out), 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_goldens),
        TEST(test_check_program),
        TEST(test_words),
        TEST(test_bytes),
        TEST(test_special_tokens_in_text),
        TEST(test_long_words),
        TEST(test_pairs),
        TEST(test_truncation_of_one),
        TEST(test_truncation_of_long_pairs),
        TEST(test_large_texts),
        TEST(test_threads),
        TEST(test_lookup),
        TEST(test_case),
        TEST(test_config),
        TEST(test_crlf_and_last_line),
        TEST(test_space_at_line_ends),
        TEST(test_check_ids),
        TEST(test_bad_vocabularies),
        TEST(test_json_settings),
        TEST(test_json_empty_sequences),
        TEST(test_json_added_tokens),
        TEST(test_json_template),
        TEST(test_bad_json),
        TEST(test_decode),
        TEST(test_empty_entry),
        TEST(test_save),
        TEST(test_save_failures),
#ifdef MC_FAULT_INJECTION
        TEST(test_allocation_failures),
        TEST(test_steady_state),
#endif
        TEST(test_trie),
        TEST(test_unicode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
