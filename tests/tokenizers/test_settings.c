/* What the files of a folder say about its tokenizer together. The ids are transformers' 5.24. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"
#include "tokenizers/details.h"

static const char vocab[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"       /*  0 */
                            "the\nking\n##s\nThe\n'\ncafe\n<\n>\nx\n"    /*  5 */
                            "caf\u00e9\n<cls>\n<sep>\n<pad>\n<unk>\n[\n" /* 14 */
                            "]\na\nb\nc\n";                              /* 20 */
enum { UNK = 1, CLS, SEP, MASK, THE, KING, P_S, BIG_THE, QUOTE, CAFE, A = 21, B, C, ENTRIES };

#define TOKEN(text, more) "{\"content\": \"" text "\"" more "}"

static void write_file(const char *name, const char *text)
{
    write_text(temp_path(&folder, name), text);
}

/* The tokenizer of vocab.txt with a tokenizer_config.json, and what else lies there. */
static mc_tokenizer *open_with(const char *config)
{
    write_file("vocab.txt", vocab);
    write_file("tokenizer_config.json", config);
    return open_folder();
}

#define JSON(lowercase, added)                                                                  \
    "{\"added_tokens\": [" added "], \"normalizer\": {\"type\": \"BertNormalizer\", "           \
    "\"lowercase\": " lowercase "}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, "      \
    "\"decoder\": {\"type\": \"WordPiece\"}, \"post_processor\": {\"type\": \"BertProcessing\"" \
    ", \"sep\": [\"[SEP]\", 3], \"cls\": [\"[CLS]\", 2]}, \"model\": {\"type\": "               \
    "\"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": {\"[PAD]\": 0, \"[UNK]\": 1, "         \
    "\"[CLS]\": 2, \"[SEP]\": 3, \"[MASK]\": 4, \"the\": 5, \"king\": 6, \"##s\": 7, "          \
    "\"The\": 8}}}"

static void test_case(void **state)
{
    (void)state;
    write_file("tokenizer.json", JSON("true", ""));
    expect_ids(open_with("{\"tokenizer_class\": \"BertTokenizer\", \"do_lower_case\": false}"),
               "The kings the", CLS, BIG_THE, KING, P_S, THE, SEP, -1);
    write_file("tokenizer.json", JSON("false", ""));
    expect_ids(open_with("{\"tokenizer_class\": \"BertTokenizerFast\"}"), "The", CLS, THE, SEP, -1);
    expect_ids(open_with("{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"do_lower_case\":"
                         " true}"),
               "The", CLS, BIG_THE, SEP, -1); /* this class does what the file says */
    expect_ids(open_with("{}"), "The", CLS, BIG_THE, SEP, -1);
    expect_ids(open_with("{\"do_lower_case\": true}"), "The", CLS, THE, SEP, -1);
    write_file("config.json", "{\"model_type\": \"bert\"}");
    expect_ids(open_with("{}"), "The", CLS, THE, SEP, -1);
}

static void test_added_tokens(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_with(
        "{\"do_lower_case\": true, \"added_tokens_decoder\": {\"30\": {\"content\": \"<x>\", "
        "\"special\": true, \"rstrip\": true}, \"5\": {\"content\": \"king\", \"single_word\": "
        "true},"
        " \"25\": {\"content\": \"Caf\u00e9s\"}}}");
    /* of those that are no entries the one with the smaller id comes first, after the last entry */
    expect_ids(tok, "the <x>  cafes king a", CLS, THE, ENTRIES + 1, ENTRIES, KING, A, SEP, -1);
    write_file("tokenizer.json", JSON("true", TOKEN("[E]", ", \"special\": true, \"id\": 9")));
    tok = open_with("{\"tokenizer_class\": \"BertTokenizer\"}");
    expect_ids(tok, "the[E]", CLS, THE, 9, SEP, -1);
    tok = open_with(
        "{\"tokenizer_class\": \"BertTokenizer\", \"added_tokens_decoder\": {\"9\": " TOKEN(
            "[F]", ", \"special\": true") "}}");
    expect_ids(tok, "the[F]", CLS, THE, 9, SEP, -1);
    tok = open_with("{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"added_tokens_decoder\": "
                    "{\"9\": " TOKEN("[F]", ", \"special\": true") "}}");
    expect_ids(tok, "the[F][E]", CLS, THE, 10, 9, SEP, -1);
}

static void test_special_tokens(void **state)
{
    (void)state;
    mc_tokenizer *tok =
        open_with("{\"extra_special_tokens\": [\"<x>\", {\"__type\": \"AddedToken\", "
                  "\"content\": \"<y>\", \"lstrip\": true}], \"image_token\": \"<i>\", "
                  "\"mask_token\": {\"__type\": \"AddedToken\", \"content\": \"<m>\"}}");
    expect_ids(tok, "a<x>b <y><i><m>", CLS, A, ENTRIES + 2, B, ENTRIES + 3, ENTRIES + 1, ENTRIES,
               SEP, -1);
    assert_int_equal(mc_tokenizer_mask_id(tok), ENTRIES);
    tok = open_with("{\"extra_special_tokens\": {\"one\": \"<x>\", \"two\": \"<y>\"}}");
    expect_ids(tok, "<y><x>", CLS, ENTRIES + 1, ENTRIES, SEP, -1);
    /* the list by its new name counts */
    tok = open_with(
        "{\"extra_special_tokens\": [\"<y>\"], \"additional_special_tokens\": [\"<z>\"]}");
    assert_int_equal(mc_tokenizer_vocab_size(tok), ENTRIES + 1);
    tok = open_with("{\"additional_special_tokens\": [\"<z>\"]}");
    expect_ids(tok, "<z>", CLS, ENTRIES, SEP, -1);
}

static void test_older_files(void **state)
{
    (void)state;
    write_file(
        "special_tokens_map.json",
        "{\"cls_token\": \"<cls>\", \"sep_token\": \"<sep>\", \"pad_token\": \"<pad>\","
        " \"unk_token\": {\"content\": \"<unk>\"}, \"additional_special_tokens\": [\"<z>\"]}");
    write_file("added_tokens.json", "{\"Covid\": 25, \"[E]\": 24}");
    mc_tokenizer *tok = open_with("{\"tokenizer_class\": \"BertTokenizer\"}");
    expect_ids(tok, "a[E]COVID<z>q", 15, A, ENTRIES, ENTRIES + 1, ENTRIES + 2, 18, 16, -1);
    assert_int_equal(mc_tokenizer_pad_id(tok), 17);
    /* a list of added tokens makes them of no account */
    tok = open_with("{\"added_tokens_decoder\": {\"24\": " TOKEN("<w>", "") "}}");
    expect_ids(tok, "a<w>q", CLS, A, ENTRIES, UNK, SEP, -1);
}

static void test_classes(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        {"{\"tokenizer_class\": \"BertJapaneseTokenizer\"}", "\"BertJapaneseTokenizer\""},
        {"{\"tokenizer_class\": \"FooTokenizer\"}",
         "\"FooTokenizer\" is not supported for a vocab"},
        {"{\"tokenizer_class\": \"GPT2Tokenizer\"}", "\"GPT2Tokenizer\""},
        {"{\"do_basic_tokenize\": false}", "key \"do_basic_tokenize\": false is not supported"},
        {"{\"never_split\": [\"the\"]}", "key \"never_split\": \"the\""},
    };
    write_file("vocab.txt", vocab);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        write_file("tokenizer_config.json", refused[i][0]);
        expect_failure(MC_ERR_UNSUPPORTED, refused[i][1]);
    }
    open_with("{\"never_split\": [\"[CLS]\"], \"tokenizer_class\": \"ElectraTokenizerFast\"}");
    write_file("config.json", "{\"tokenizer_class\": \"BertJapaneseTokenizer\"}");
    write_file("tokenizer_config.json", "{}");
    expect_failure(MC_ERR_UNSUPPORTED, "config.json: key \"tokenizer_class\"");
    write_file("config.json", "{}");
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"FooTokenizer\"}");
    write_file("tokenizer.json", JSON("false", "")); /* which says all */
    expect_ids(open_folder(), "The", CLS, BIG_THE, SEP, -1);
}

static void test_lines(void **state)
{
    (void)state;
    write_file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n\nb\na\n\n\nc\n");
    mc_tokenizer *tok = open_folder();
    assert_int_equal(mc_tokenizer_vocab_size(tok), 11);
    expect_ids(tok, "a b c", 2, 7, 6, 10, 3, -1);
    assert_null(mc_tokenizer_id_to_token(tok, 4));
    assert_string_equal(mc_tokenizer_id_to_token(tok, 9), "");
}

static void expect_cut(const mc_tokenizer *tok, const char *pair, size_t most, ...)
{
    va_list args;
    va_start(args, most);
    const char *text = "the king a b c";
    assert_int_equal(mc_tokenizer_encode(tok, text, strlen(text), pair, pair ? strlen(pair) : 0,
                                         most, &encoding),
                     MC_OK);
    for (size_t i = 0; i < encoding.count; i++)
        assert_int_equal(encoding.ids[i], va_arg(args, int));
    assert_int_equal(va_arg(args, int), -1);
    va_end(args);
}

static void test_lengths(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_with("{\"truncation_side\": \"left\", \"model_max_length\": 32}");
    assert_int_equal(mc_tokenizer_max_length(tok), 32);
    assert_true(mc_tokenizer_cuts_start(tok));
    expect_cut(tok, NULL, 5, CLS, A, B, C, SEP, -1);
    expect_cut(tok, NULL, 7, CLS, THE, KING, A, B, C, SEP, -1);
    expect_cut(tok, "c b a", 8, CLS, A, B, C, SEP, B, A, SEP, -1);
    tok = open_with("{\"model_max_length\": 1000000000000000019884624838656}");
    assert_int_equal(mc_tokenizer_max_length(tok), 0);
    assert_false(mc_tokenizer_cuts_start(tok));
    expect_cut(tok, NULL, 5, CLS, THE, KING, A, SEP, -1);
    assert_int_equal(mc_tokenizer_max_length(NULL), 0);
    write_file("tokenizer_config.json", "{\"truncation_side\": \"up\"}");
    expect_failure(MC_ERR_FORMAT, "expected left or right, found \"up\"");
}

static void test_types_and_clean_up(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_with("{\"model_input_names\": [\"input_ids\", \"attention_mask\"]}");
    assert_int_equal(mc_tokenizer_encode(tok, "a", 1, "b", 1, 0, &encoding), MC_OK);
    for (size_t i = 0; i < encoding.count; i++) assert_int_equal(encoding.type_ids[i], 0);
    write_file("tokenizer.json",
               "{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"model\": "
               "{\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": 0, \"[CLS]\": 1, "
               "\"[SEP]\": 2, \"[PAD]\": 3, \"do\": 4, \"n't\": 5}}}");
    tok = open_with("{\"clean_up_tokenization_spaces\": true}");
    char *text = mc_tokenizer_decode(tok, (int32_t[]){4, 5}, 2, false);
    assert_string_equal(text, "don't");
    mc_string_free(text);
}

/* What was read is kept, also keys that are not known here. */
static void test_save(void **state)
{
    (void)state;
    size_t size;
    char target[1024], path[1100];
    write_file("special_tokens_map.json", "{\"mask_token\": \"<m>\"}");
    mc_tokenizer *tok = open_with("{\"tokenizer_class\": \"ElectraTokenizer\", \"chat_template\": "
                                  "\"x\", \"new_key\": [1], \"truncation_side\": \"left\", "
                                  "\"model_max_length\": 32, \"name_or_path\": \"elsewhere\"}");
    snprintf(target, sizeof target, "%s/saved", folder.path);
    snprintf(path, sizeof path, "%s/saved/tokenizer_config.json", folder.path);
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    char *text = mc_file_read(&ctx->error, path, 1 << 20, &size);
    assert_non_null(text);
    static const char *const kept[] = {"ElectraTokenizer", "chat_template", "new_key", "\"<m>\""};
    for (size_t i = 0; i < 4; i++)
        if (!strstr(text, kept[i])) fail_msg("%s: no %s", text, kept[i]);
    assert_null(strstr(text, "elsewhere"));
    mc_free(text);
    tok = mc_tokenizer_from_pretrained(ctx, target);
    assert_non_null(tok);
    assert_int_equal(mc_tokenizer_max_length(tok), 32);
    assert_int_equal(mc_tokenizer_mask_id(tok), ENTRIES);
    expect_cut(tok, NULL, 5, CLS, A, B, C, SEP, -1);
}

/* A chat template in a file of its own goes with the tokenizer; one of another is in the way. */
static void test_save_template(void **state)
{
    (void)state;
    char target[1024], path[1100];
    const char *from;
    snprintf(target, sizeof target, "%s/saved", folder.path);
    snprintf(path, sizeof path, "%s/saved/chat_template.jinja", folder.path);
    write_file("chat_template.jinja", "<|im_start|> {# \u00e9 #}\n");
    assert_int_equal(mc_tokenizer_save(open_with("{\"chat_template\": \"[INST]\"}"), target),
                     MC_OK);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, target);
    assert_non_null(tok);
    assert_string_equal(mc_tokenizer_chat_template(tok, &from), "<|im_start|> {# \u00e9 #}\n");
    assert_string_equal(from, path);
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    remove(temp_path(&folder, "chat_template.jinja"));
    assert_int_equal(mc_tokenizer_save(open_with("{}"), target), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), "chat_template.jinja lies there already"));
    mc_clear_error(ctx);
}

#define WORDS(normalizer, pre)                                                                  \
    "{\"normalizer\": " normalizer ", \"pre_tokenizer\": " pre ", \"model\": {\"type\": "       \
    "\"WordPiece\", \"vocab\": {\"[UNK]\": 0, \"[CLS]\": 1, \"[SEP]\": 2, \"[PAD]\": 3, \"fi\"" \
    ": 4, \"\u00e9\": 5, \"e\u0301\": 6, \"\uac01\": 7, \"\ufb01\": 8}}}"
#define BERT_WORDS "{\"type\": \"BertPreTokenizer\"}"

static void test_forms(void **state)
{
    (void)state;
    static const char text[] = "\ufb01 e\u0301 \u00e9 \u1100\u1161\u11a8 \uac00\u11a8";
    static const struct {
        const char *json;
        int ids[5];
    } cases[] = {
        {WORDS("{\"type\": \"NFC\"}", BERT_WORDS), {8, 5, 5, 7, 7}},
        {WORDS("{\"type\": \"NFKC\"}", BERT_WORDS), {4, 5, 5, 7, 7}},
        {WORDS("{\"type\": \"NFD\"}", BERT_WORDS), {8, 6, 6, 0, 0}},
        {WORDS("{\"type\": \"NFKD\"}", BERT_WORDS), {4, 6, 6, 0, 0}},
        {WORDS("{\"type\": \"Sequence\", \"normalizers\": []}", BERT_WORDS), {8, 6, 5, 0, 0}},
        {WORDS("{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKD\"}, {\"type\": "
               "\"NFC\"}]}",
               "{\"type\": \"Sequence\", \"pretokenizers\": [" BERT_WORDS "]}"),
         {4, 5, 5, 7, 7}},
    };
    char target[1024];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int *ids = cases[i].ids;
        write_file("tokenizer.json", cases[i].json);
        mc_tokenizer *tok = open_folder();
        expect_ids(tok, text, ids[0], ids[1], ids[2], ids[3], ids[4], -1);
        assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
        tok = mc_tokenizer_from_pretrained(ctx, target);
        expect_ids(tok, text, ids[0], ids[1], ids[2], ids[3], ids[4], -1);
    }
}

/* Marks come into the order of their classes; those of one class and starters keep others out. */
static void test_form_of_marks(void **state)
{
    (void)state;
    static const struct {
        mc_unicode_form form;
        const char *text, *expected;
    } cases[] = {
        {MC_NFC, "q\u0307\u0323", "q\u0323\u0307"},
        {MC_NFC, "s\u0307\u0323", "\u1e69"},
        {MC_NFD, "\u1e69", "s\u0323\u0307"},
        {MC_NFC, "a\u0300\u0300", "\u00e0\u0300"},
        {MC_NFC, "a\u0345b\u0301", "a\u0345b\u0301"},
        {MC_NFC, "\u0301e", "\u0301e"},
        {MC_NFC, "\u0958", "\u0915\u093c"},
        {MC_NFC, "\u09c7\u09be", "\u09cb"},
        {MC_NFKC, "\ufdfa",
         "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647 "
         "\u0639\u0644\u064a\u0647 \u0648\u0633\u0644\u0645"},
        {MC_NFKC, "\u2460\uff21\u00a0", "1A "},
        {MC_NFC, "e\xff\u0301", "e\xff\u0301"},
        {MC_NFC, "", ""},
    };
    mc_bytes out = {0}, spare = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        out.count = 0;
        assert_true(mc_unicode_apply_form(cases[i].form, (const uint8_t *)cases[i].text,
                                          strlen(cases[i].text), &out, &spare));
        assert_int_equal(out.count, strlen(cases[i].expected));
        if (out.count) assert_memory_equal(out.data, cases[i].expected, out.count);
    }
    mc_bytes_release(&out);
    mc_bytes_release(&spare);
}

static void apply(mc_unicode_form form, const mc_bytes *text, mc_bytes *out)
{
    mc_bytes spare = {0};
    out->count = 0;
    assert_true(mc_unicode_apply_form(form, text->data, text->count, out, &spare));
    mc_bytes_release(&spare);
}

/* A composed form is that of the decomposed one. Composed characters are mostly copied and
 * decomposed ones put together, so each way checks the other. */
static void test_forms_agree(void **state)
{
    (void)state;
    static const char before[] = "\uac00e", after[] = "\u0301\u11a8\u0345";
    mc_bytes text = {0}, composed = {0}, parts = {0}, again = {0};
    for (uint32_t c = 1; c < 0x30000; c++) {
        uint8_t utf8[4];
        text.count = 0;
        if (c >= 0xD800 && c < 0xE000) continue;
        assert_true(mc_bytes_append(&text, before, sizeof before - 1) &&
                    mc_bytes_append(&text, utf8, mc_utf8_encode(c, utf8)) &&
                    mc_bytes_append(&text, after, sizeof after - 1));
        for (int compat = 0; compat < 2; compat++) {
            apply(compat ? MC_NFKC : MC_NFC, &text, &composed);
            apply(compat ? MC_NFKD : MC_NFD, &text, &parts);
            apply(MC_NFC, &parts, &again);
            if (composed.count != again.count ||
                memcmp(composed.data, again.data, again.count) != 0)
                fail_msg("U+%04X: NF%sC is not that of NF%sD", c, compat ? "K" : "",
                         compat ? "K" : "");
        }
    }
    mc_bytes *all[] = {&text, &composed, &parts, &again};
    for (int i = 0; i < 4; i++) mc_bytes_release(all[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_case),           TEST(test_added_tokens),
        TEST(test_special_tokens), TEST(test_older_files),
        TEST(test_classes),        TEST(test_lines),
        TEST(test_lengths),        TEST(test_types_and_clean_up),
        TEST(test_save),           TEST(test_forms),
        TEST(test_form_of_marks),  TEST(test_forms_agree),
        TEST(test_save_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
