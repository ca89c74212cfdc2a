/* Byte-level BPE with pre-tokenizers of other models than GPT-2: against the recorded results, the
 * patterns in C against PCRE2, and case by case on small files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"
#include "tokenizers/details.h"

#ifdef MC_HAVE_PCRE2
enum { HAS_PCRE2 = true };
#else
enum { HAS_PCRE2 = false };
#endif

static void test_goldens(void **state)
{
    (void)state;
    const char *shared = shared_folder();
    if (!shared) skip();
    check_recorded(shared, "qwen2", "qwen2-a");
    check_recorded(shared, "llama3-regex", "llama3-regex-a");
}

/* ---- patterns in C ---- */

static const struct {
    mc_cut_kind kind;
    const char *pattern;
} patterns[] = {
    {MC_CUT_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {MC_CUT_CL100K, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {MC_CUT_QWEN, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {MC_CUT_O200K,
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {MC_CUT_TEKKEN,
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
     "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

static size_t random_text(char *text, size_t room)
{
    static const char *const parts[] = {"a",
                                        "B",
                                        "xyz",
                                        "ABC",
                                        "Ab",
                                        "'",
                                        "s",
                                        "S",
                                        "T",
                                        "ll",
                                        "'Re",
                                        "'\u017f",
                                        "'",
                                        " ",
                                        " ",
                                        "  ",
                                        "\t",
                                        "\n",
                                        "\r",
                                        "\r\n",
                                        "\u00a0",
                                        "\u3000",
                                        "1",
                                        "23",
                                        "4567",
                                        "\u0663",
                                        "\u00bd",
                                        "!",
                                        "...",
                                        "/",
                                        "-",
                                        "\u20ac",
                                        "\u4e2d\u6587",
                                        "\u00e9",
                                        "\u00c9",
                                        "e\u0301",
                                        "\u0301",
                                        "\u01c5",
                                        "\u02b0",
                                        "\u05d0",
                                        "\u0939\u093f",
                                        "\U0001F600",
                                        "_",
                                        "\u200b"};
    size_t size = 0, count = random_below(12);
    for (size_t i = 0; i < count; i++) {
        const char *part = parts[random_below(sizeof parts / sizeof *parts)];
        size_t length = strlen(part);
        assert_true(size + length < room);
        memcpy(text + size, part, length);
        size += length;
    }
    return size;
}

static void test_patterns_in_c(void **state)
{
    (void)state;
    char text[256];
    void *data = NULL;
    if (!HAS_PCRE2) skip();
    for (int k = 0; k < PATTERNS; k++) {
        mc_regex *regex = mc_regex_new(&ctx->error, "test", patterns[k].pattern);
        if (!regex) fail_msg("%s", mc_error_message(ctx));
        for (int i = 0; i < 20000; i++) {
            size_t size = random_text(text, sizeof text), match[2];
            const uint8_t *start = (const uint8_t *)text, *end = start + size;
            for (const uint8_t *p = start, *stop; p < end; p = stop) {
                stop = mc_bpe_word_end(patterns[k].kind, p, end);
                assert_int_equal(
                    mc_regex_find(regex, &data, start, size, (size_t)(p - start), match), MC_OK);
                if (match[0] != (size_t)(p - start) || match[1] != (size_t)(stop - start))
                    fail_msg("pattern %d: \"%.*s\": %zu to %zu, expected %zu to %zu", k, (int)size,
                             text, (size_t)(p - start), (size_t)(stop - start), match[0], match[1]);
            }
        }
        mc_regex_free(regex);
    }
    mc_regex_release_data(data);
}

/* ---- small files: each byte's letter is its token, and some letters and spaces merge -------- */

enum { A_A = 256, S_A, ONE_ONE, A_ONE, S_S, ENTRIES };

/* JSON of a pre-tokenizer and model settings. */
static void write_json(const char *pre_tokenizer, const char *model)
{
    static const char *const merges[] = {"a a", "\u0120 a", "1 1", "a 1", "\u0120 \u0120"};
    mc_bytes b = {0};
    char line[1024];
    snprintf(
        line, sizeof line,
        "{\"pre_tokenizer\": %s, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": "
        "\"BPE\"%s, \"vocab\": {",
        pre_tokenizer, model);
    assert_true(mc_bytes_append(&b, line, strlen(line)));
    for (int byte = 0; byte < 256; byte++) {
        uint8_t letter[5] = {0};
        mc_utf8_encode(mc_bpe_letter_of((uint8_t)byte), letter);
        bool quoted = byte == '"' || byte == '\\';
        snprintf(line, sizeof line, "\"%s%s\": %d, ", quoted ? "\\" : "", (char *)letter, byte);
        assert_true(mc_bytes_append(&b, line, strlen(line)));
    }
    snprintf(line, sizeof line,
             "\"aa\": 256, \"\u0120a\": 257, \"11\": 258, \"a1\": 259, \"\u0120\u0120\": 260, "
             "\"whole\": 261}, \"merges\": [\"%s\", \"%s\", \"%s\", \"%s\", \"%s\"]}}",
             merges[0], merges[1], merges[2], merges[3], merges[4]);
    assert_true(mc_bytes_append(&b, line, strlen(line)));
    write_bytes(temp_path(&folder, "tokenizer.json"), (char *)b.data, b.count);
    mc_bytes_release(&b);
}

#define BYTES "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define STEPS(list) "{\"type\": \"Sequence\", \"pretokenizers\": [" list ", " BYTES "]}"
#define SPLIT(pattern, behavior, invert)                                          \
    "{\"type\": \"Split\", \"pattern\": {" pattern "}, \"behavior\": \"" behavior \
    "\", \"invert\": " invert "}"

static void test_steps(void **state)
{
    (void)state;
    write_json(STEPS("{\"type\": \"Digits\", \"individual_digits\": true}"), "");
    expect_ids(open_folder(), "aa1 1a11", A_A, '1', ' ', '1', 'a', '1', '1', -1);
    write_json(BYTES, ""); /* texts are words */
    expect_ids(open_folder(), "a1  aa a", A_ONE, S_S, A_A, S_A, -1);
    if (!HAS_PCRE2) skip();
    write_json(STEPS(SPLIT("\"Regex\": \"(?:1)\"", "Isolated", "false")), "");
    expect_ids(open_folder(), "a11aa", 'a', '1', '1', A_A, -1);
    write_json(STEPS(SPLIT("\"Regex\": \"(?:1)+\"", "Removed", "false")), "");
    expect_ids(open_folder(), "a11a 1", 'a', 'a', ' ', -1);
    write_json(STEPS(SPLIT("\"Regex\": \"[a1]+\"", "Removed", "true")), "");
    expect_ids(open_folder(), "a1 !11", A_ONE, ONE_ONE, -1);
    write_json(STEPS(SPLIT("\"String\": \"(a)\"", "Isolated", "false")), "");
    expect_ids(open_folder(), "aa(a)a", A_A, '(', 'a', ')', 'a', -1);
    /* bytes that are no UTF-8 stand between matches */
    static const char bad[] = "a\xff"
                              "11\xe4\xb8"
                              "aa";
    write_json(STEPS(SPLIT("\"Regex\": \"(?:a)\"", "Isolated", "false")), "");
    mc_tokenizer *tok = open_folder();
    assert_int_equal(mc_tokenizer_encode(tok, bad, 8, NULL, 0, 0, &encoding), MC_OK);
    static const int32_t ids[] = {'a', 0xFF, ONE_ONE, 0xE4, 0xB8, 'a', 'a'};
    assert_int_equal(encoding.count, 7);
    assert_memory_equal(encoding.ids, ids, sizeof ids);
    write_json(STEPS("{\"type\": \"Digits\", \"individual_digits\": false}, " SPLIT(
                   "\"Regex\": \"a\"", "Isolated", "false")),
               "");
    expect_ids(open_folder(), "aa11a", 'a', 'a', ONE_ONE, 'a', -1);
}

static void test_whole_words(void **state)
{
    (void)state;
    write_json(BYTES, ", \"ignore_merges\": true");
    mc_tokenizer *tok = open_folder();
    expect_ids(tok, "whole", 261, -1);
    expect_ids(tok, "wholea", 'w', 'h', 'o', 'l', 'e', 'a', -1);
    write_json(BYTES, "");
    expect_ids(open_folder(), "whole", 'w', 'h', 'o', 'l', 'e', -1);
}

/* What is saved opens again and cuts the same words. */
static void test_save(void **state)
{
    (void)state;
    char target[1100];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    write_json(STEPS("{\"type\": \"Digits\", \"individual_digits\": true}"),
               ", \"ignore_merges\": true");
    assert_int_equal(mc_tokenizer_save(open_folder(), target), MC_OK);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, target);
    if (!tok) fail_msg("%s", mc_error_message(ctx));
    expect_ids(tok, "aa11whole", A_A, '1', '1', 261, -1);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *pre_tokenizer, *part;
    } cases[] = {
        {STEPS("{\"type\": \"Metaspace\"}"), "\"Metaspace\""},
        {"{\"type\": \"Sequence\", \"pretokenizers\": []}", "\"Sequence\""},
        {STEPS(SPLIT("\"Regex\": \"a\"", "MergedWithNext", "false")), "\"MergedWithNext\""},
        {STEPS("{\"type\": \"Split\"}"), "Split: expected a \"pattern\""},
        {STEPS(SPLIT("\"Regex\": \"[a-z&&[^b]]\"", "Isolated", "false")),
         HAS_PCRE2 ? "\"&&\" means something else" : "takes PCRE2"},
        {STEPS(SPLIT("\"Regex\": \"(\"", "Isolated", "false")),
         HAS_PCRE2 ? "the pattern \"(\": PCRE2 at place 1" : "takes PCRE2"},
        {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
         "\"individual_digits\": true}, {\"type\": \"ByteLevel\", \"add_prefix_space\": true}]}",
         "\"add_prefix_space\" after other"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_json(cases[i].pre_tokenizer, "");
        assert_null(mc_tokenizer_from_pretrained(ctx, folder.path));
        if (!strstr(mc_error_message(ctx), cases[i].part) ||
            !strstr(mc_error_message(ctx), "tokenizer.json"))
            fail_msg("\"%s\" not in: %s", cases[i].part, mc_error_message(ctx));
        mc_clear_error(ctx);
    }
}

/* Texts may be cut before a space, before a line break only where no word has one at its end. */
static void test_cuts_of_texts(void **state)
{
    (void)state;
    static const char text[] = "aa!\n!a a";
    write_json(
        STEPS(SPLIT("\"Regex\": \"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
                    "\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"
                    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"",
                    "Isolated", "false")),
        "");
    assert_int_equal(mc_tokenizer_cut(open_folder(), text, 8, 1), 6);
    write_json("{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "");
    assert_int_equal(mc_tokenizer_cut(open_folder(), text, 8, 1), 3);
    write_json(BYTES, "");
    assert_int_equal(mc_tokenizer_cut(open_folder(), text, 8, 1), 8);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_goldens),       TEST(test_patterns_in_c), TEST(test_steps),
        TEST(test_whole_words),   TEST(test_save),          TEST(test_bad),
        TEST(test_cuts_of_texts),
    };
    return cmocka_run_group_tests_name("cuts", tests, NULL, NULL);
}
