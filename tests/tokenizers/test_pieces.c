/* BPE over characters (SentencePiece's, Llama's): against the recorded results, and case by case on
 * a small tokenizer.json. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"

enum { UNK, BOS, EOS, BYTES, SPACE = BYTES + 256, A_, B_, S_A, A_B, S_A_B, S_S };
#define SYMBOL MC_SPACE_SYMBOL

/* To SentencePiece itself special tokens in a text are text; here they are those tokens. */
static void write_records_without_special(const char *shared)
{
    char path[2048];
    size_t size;
    snprintf(path, sizeof path, "%s/goldens/tokenizers/mistral-a.jsonl", shared);
    char *text = mc_file_read(&ctx->error, path, 1 << 24, &size), *to = text;
    assert_non_null(text);
    for (char *p = text, *end = text + size, *stop; p < end; p = stop + 1) {
        stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) break;
        if (memmem(p, (size_t)(stop - p), "</s>", 4)) continue;
        memmove(to, p, (size_t)(stop + 1 - p));
        to += stop + 1 - p;
    }
    write_bytes(temp_path(&folder, "records.jsonl"), text, (size_t)(to - text));
    mc_free(text);
}

static void test_goldens(void **state)
{
    (void)state;
    char vocab[2048], records[1100];
    const char *shared = shared_folder();
    if (!shared) skip();
    check_recorded(shared, "mistral-json", "mistral-json-a");
    write_records_without_special(shared);
    snprintf(vocab, sizeof vocab, "%s/data/vocab/mistral", shared);
    snprintf(records, sizeof records, "%s/records.jsonl", folder.path);
    int result = check(vocab, records);
    expect_output("1374 of 1374 exact\n");
    assert_int_equal(result, 0);
}

/* ---- small files ---- */

#define PREPEND                                                                                \
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "      \
    "\"prepend\": \"" SYMBOL "\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, " \
    "\"content\": \"" SYMBOL "\"}]}"
#define META(more) \
    "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"" SYMBOL "\"" more "}"
#define FUSING(more)                                                                             \
    "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": " \
    "{\"String\": \"" SYMBOL "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, "          \
    "{\"type\": \"Fuse\"}" more "]}"
#define STRIP ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}"

static void append(mc_bytes *b, const char *format, ...) MC_PRINTF(2, 3);
static void append(mc_bytes *b, const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    assert_true(length >= 0 && (size_t)length < sizeof line);
    assert_true(mc_bytes_append(b, line, (size_t)length));
}

static void write_json(const char *parts, const char *model)
{
    mc_bytes b = {0};
    append(
        &b,
        "{%s, \"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true}, "
        "{\"id\": 1, \"content\": \"<s>\", \"special\": true}, {\"id\": 2, \"content\": "
        "\"</s>\", \"special\": true}], \"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\"%s"
        ", \"vocab\": {\"<unk>\": 0, \"<s>\": 1, \"</s>\": 2, ",
        parts, model);
    for (int byte = 0; byte < 256; byte++) append(&b, "\"<0x%02X>\": %d, ", byte, BYTES + byte);
    append(
        &b,
        "\"%s\": %d, \"a\": %d, \"b\": %d, \"%sa\": %d, \"ab\": %d, \"%sab\": %d, \"%s%s\": %d}, "
        "\"merges\": [[\"%s\", \"a\"], \"a b\", \"%sa b\", \"%s %s\"]}}",
        SYMBOL, SPACE, A_, B_, SYMBOL, S_A, A_B, SYMBOL, S_A_B, SYMBOL, SYMBOL, S_S, SYMBOL, SYMBOL,
        SYMBOL, SYMBOL);
    write_bytes(temp_path(&folder, "tokenizer.json"), (char *)b.data, b.count);
    mc_bytes_release(&b);
}

static mc_tokenizer *open_json(const char *parts)
{
    write_json(parts, ", \"fuse_unk\": true, \"byte_fallback\": true");
    return open_folder();
}

static void test_spaces(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_json(PREPEND ", " FUSING(STRIP));
    expect_ids(tok, "", -1);
    expect_ids(tok, "ab</s>ab", S_A_B, EOS, S_A_B, -1);
    expect_ids(tok, "  ab ab", S_S, S_A_B, S_A_B, -1);
    tok = open_json(META(", \"prepend_scheme\": \"first\", \"split\": false") ", " FUSING(STRIP));
    expect_ids(tok, "ab</s>ab a", S_A_B, EOS, A_B, S_A, -1);
    expect_ids(tok, " ab", S_A_B, -1);
    expect_ids(tok, "</s>ab", EOS, A_B, -1);
    tok = open_json(META(", \"add_prefix_space\": true") ", " FUSING(STRIP));
    expect_ids(tok, "a  ab</s>ab", S_A, SPACE, S_A_B, EOS, S_A_B, -1); /* each symbol splits */
    tok = open_json(META(", \"prepend_scheme\": \"never\", \"split\": false") ", " FUSING(""));
    expect_ids(tok, "ab</s> a", A_B, EOS, S_A, -1);
}

/* Llama's class has a pre-tokenizer of its own. */
static void test_llama(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"tokenizer_class\": \"LlamaTokenizerFast\"}",
        "{\"tokenizer_class\": \"LlamaTokenizer\", \"legacy\": true}",
        "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_prefix_space\": false}"};
    for (int i = 0; i < 3; i++) {
        write_text(temp_path(&folder, "tokenizer_config.json"), configs[i]);
        mc_tokenizer *tok = open_json(PREPEND ", " FUSING(STRIP));
        expect_ids(tok, "ab</s>ab", i < 2 ? S_A_B : A_B, EOS, i == 1 ? S_A_B : A_B, -1);
    }
}

static void test_unknown(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_json(PREPEND ", " FUSING(STRIP));
    expect_ids(tok, "\u00e9a", SPACE, BYTES + 0xC3, BYTES + 0xA9, A_, -1);
    write_json(PREPEND ", " FUSING(STRIP), ", \"fuse_unk\": true");
    expect_ids(open_folder(), "xya x y", SPACE, UNK, A_, SPACE, UNK, SPACE, UNK, -1);
    write_json(PREPEND ", " FUSING(STRIP), "");
    expect_ids(open_folder(), "xya", SPACE, UNK, UNK, A_, -1);
}

static void expect_text(const mc_tokenizer *tok, const char *expected, bool raw, ...)
{
    int32_t ids[16];
    size_t count = 0, size;
    va_list args;
    va_start(args, raw);
    while ((ids[count] = va_arg(args, int)) >= 0) count++;
    va_end(args);
    mc_decode_options options = {.skip_special = true, .raw_bytes = raw};
    char *text = mc_tokenizer_decode_sized(tok, ids, count, &options, &size);
    assert_non_null(text);
    assert_string_equal(text, expected);
    assert_int_equal(size, strlen(expected));
    mc_string_free(text);
}

static void test_decode(void **state)
{
    (void)state;
    mc_tokenizer *tok = open_json(PREPEND ", " FUSING(STRIP));
    enum { HIGH = BYTES + 0xC3, LOW = BYTES + 0xA9 };
    expect_text(tok, "ab ab", false, BOS, S_A_B, S_A_B, EOS, -1);
    expect_text(tok, "  ab", false, S_S, S_A_B, -1);
    expect_text(tok, "\u00e9a", false, SPACE, HIGH, BOS, LOW, A_, -1);
    expect_text(tok, "\uFFFD\uFFFD\uFFFDa", false, HIGH, LOW, HIGH, A_, -1);
    expect_text(tok, "\xC3", true, HIGH, -1); /* what a stream of tokens puts together */
    expect_text(open_json(PREPEND ", " FUSING("")), " ab ab", false, S_A_B, S_A_B, -1);
    expect_text(open_json(META("") ", \"decoder\": {\"type\": \"Metaspace\"}"), "ab ab", false,
                S_A_B, S_A_B, -1);
}

/* add_bos_token and add_eos_token count instead of the post-processor. */
static void test_ends(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "tokenizer_config.json"),
               "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_bos_token\": true, "
               "\"add_eos_token\": true}");
    mc_tokenizer *tok = open_json(PREPEND ", " FUSING(STRIP));
    expect_ids(tok, "ab", BOS, S_A_B, EOS, -1);
    assert_int_equal(mc_tokenizer_encode(tok, "a", 1, "b", 1, 0, &encoding), MC_OK);
    static const int32_t pair[] = {BOS, S_A, EOS, BOS, SPACE, B_, EOS};
    assert_int_equal(encoding.count, 7);
    assert_memory_equal(encoding.ids, pair, sizeof pair);
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"add_bos_token\": true}");
    expect_ids(open_json(PREPEND ", " FUSING(STRIP)), "ab", S_A_B, -1); /* which it does not name */
}

static void test_save(void **state)
{
    (void)state;
    char target[1100];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    write_text(temp_path(&folder, "tokenizer_config.json"),
               "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": true}");
    assert_int_equal(mc_tokenizer_save(open_json(PREPEND ", " FUSING(STRIP)), target), MC_OK);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, target);
    if (!tok) fail_msg("%s", mc_error_message(ctx));
    expect_ids(tok, "ab</s>ab", BOS, S_A_B, EOS, A_B, -1);
}

static void test_bad(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {META("") ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Strip\"}]}",
         "decoder of type \"Strip\""},
        {META("") ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}]}",
         "no Replace of U+2581"},
        {META("") ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, "
                  "\"content\": \"b\"}",
         "only a \"pattern\" of type String"},
        {META("") ", \"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"0123456789abcdef\"}",
         "less than 16 bytes"},
        {"\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\"}", "\"replacement\""},
        {META("") ", " FUSING(", {\"type\": \"Strip\", \"content\": \" \", \"stop\": 1}"), "Strip"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_json(cases[i][0], "");
        assert_null(mc_tokenizer_from_pretrained(ctx, folder.path));
        if (!strstr(mc_error_message(ctx), cases[i][1]) ||
            !strstr(mc_error_message(ctx), "tokenizer.json"))
            fail_msg("\"%s\" not in: %s", cases[i][1], mc_error_message(ctx));
        mc_clear_error(ctx);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_goldens), TEST(test_spaces), TEST(test_llama), TEST(test_unknown),
        TEST(test_decode),  TEST(test_ends),   TEST(test_save),  TEST(test_bad),
    };
    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
