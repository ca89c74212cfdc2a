/* Training byte-level BPE: the vocabulary and merges of Hugging Face's BpeTrainer (tokenizers 0.22)
 * on the same text, and what is refused. tests/check_byte_bpe.py compares larger ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"
#include "tokenizers/train.h"
#include "tokenizers/details.h"

static const char text[] =
    "the cat  sat\n\non the mat\nthe hat's on, the cat 12 12\n\t\u00e9 \u00e9\n";

/* The path of a file of the folder, written with these bytes. */
static const char *write_corpus(const char *bytes)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/corpus.txt", folder.path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(bytes, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return path;
}

static mc_status train_on(const char *corpus, const mc_train_tokenizer_options *options)
{
    static char target[1024];
    snprintf(target, sizeof target, "%s/own", folder.path);
    return mc_tokenizer_train(ctx, &corpus, 1, target, options);
}

static mc_tokenizer *train(mc_train_tokenizer_options options)
{
    char target[1024];
    options.type = MC_TOKENIZER_TYPE_BYTE_BPE;
    assert_int_equal(train_on(write_corpus(text), &options), MC_OK);
    snprintf(target, sizeof target, "%s/own", folder.path);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, target);
    if (!tok) fail_msg("%s", mc_error_message(ctx));
    return tok;
}

static void expect_merges(const mc_tokenizer *tok, int count, const char *const (*merges)[2])
{
    assert_int_equal(tok->bpe.merge_count, count);
    for (int i = 0; i < count; i++) {
        const mc_bpe_merge *m = &tok->bpe.merges[i];
        assert_string_equal(mc_tokenizer_id_to_token(tok, m->left), merges[i][0]);
        assert_string_equal(mc_tokenizer_id_to_token(tok, m->right), merges[i][1]);
    }
}

static const char *const merges[][2] = {
    {"a", "t"}, {"h", "e"},           {"t", "he"},       {"1", "2"},       {"c", "at"},
    {"o", "n"}, {"\u00c3", "\u00a9"}, {"\u0120", "the"}, {"\u0120", "12"}, {"\u0120", "cat"}};

static void test_merges(void **state)
{
    (void)state;
    mc_tokenizer *tok = train((mc_train_tokenizer_options){.vocab_size = 400});
    assert_int_equal(mc_tokenizer_vocab_size(tok), 267); /* there are no more pairs */
    expect_merges(tok, 10, merges);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "<|endoftext|>"), 0);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), 0);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "!"), 1);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "\u0120cat"), 266);
    expect_ids(tok, " the<|endoftext|>", 264, 0, -1);

    tok = train((mc_train_tokenizer_options){.vocab_size = 262});
    assert_int_equal(mc_tokenizer_vocab_size(tok), 262);
    expect_merges(tok, 5, merges);

    tok = train((mc_train_tokenizer_options){.vocab_size = 400, .min_frequency = 4});
    expect_merges(tok, 3, merges);
}

static void test_white_space(void **state)
{
    (void)state;
    static const char spaced[] = "  the\r\n\n\tcat   \xe3\x80\x80sat \n";
    mc_tokenizer *tok = train((mc_train_tokenizer_options){.vocab_size = 400});
    assert_int_equal(mc_tokenizer_append(tok, spaced, sizeof spaced - 1, &encoding), MC_OK);
    char *back = mc_tokenizer_decode(tok, encoding.ids, encoding.count, false);
    assert_string_equal(back, spaced);
    mc_string_free(back);
}

/* RoBERTa's; a merge that makes the text of a special token is that token. */
static void test_special_tokens(void **state)
{
    (void)state;
    static const char *const specials[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>", "at", NULL};
    mc_tokenizer *tok =
        train((mc_train_tokenizer_options){.vocab_size = 400, .special_tokens = specials});
    assert_int_equal(mc_tokenizer_vocab_size(tok), 256 + 6 + 9);
    expect_merges(tok, 10, merges);
    assert_int_equal(tok->bpe.merges[0].result, 5);
    assert_int_equal(mc_tokenizer_pad_id(tok), 1);
    assert_string_equal(tok->eos_token, "</s>");
    assert_string_equal(tok->mask_token, "<mask>");
}

static void expect_refusal(const char *bytes, mc_train_tokenizer_options options, mc_status status,
                           const char *part)
{
    char target[1024];
    options.type = MC_TOKENIZER_TYPE_BYTE_BPE;
    assert_int_equal(train_on(write_corpus(bytes), &options), status);
    if (!strstr(mc_error_message(ctx), part))
        fail_msg("\"%s\" not in: %s", part, mc_error_message(ctx));
    mc_clear_error(ctx);
    snprintf(target, sizeof target, "%s/own", folder.path);
    assert_int_equal(access(target, F_OK), -1);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const twice[] = {"<s>", "<s>", NULL}, *const empty[] = {"", NULL};
    typedef mc_train_tokenizer_options options;
    expect_refusal("good\nb\xc3(d\n", (options){0}, MC_ERR_FORMAT, "corpus.txt:2: byte 0xc3");
    expect_refusal(text, (options){.vocab_size = 256}, MC_ERR_ARGUMENT, "at least 257");
    expect_refusal(text, (options){.special_tokens = twice}, MC_ERR_ARGUMENT,
                   "\"<s>\" is given twice");
    expect_refusal(text, (options){.special_tokens = empty}, MC_ERR_ARGUMENT, "is empty");
    expect_refusal(text, (options){.lowercase = true}, MC_ERR_ARGUMENT,
                   "lowercase is an option of");
    expect_refusal(text, (options){.sentinels = 3}, MC_ERR_ARGUMENT, "sentinels is an option of");
    expect_refusal(text, (options){.min_frequency = -1}, MC_ERR_ARGUMENT, "min_frequency is out");
    options other = {.type = MC_TOKENIZER_TYPE_UNIGRAM, .min_frequency = 2};
    assert_int_equal(train_on(write_corpus(text), &other), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), "min_frequency is an option of byte-level"));
    mc_clear_error(ctx);
}

#ifdef MC_FAULT_INJECTION
/* Each allocation fails in turn: a clean error, and nothing is written until all is there. */
static void test_allocation_failures(void **state)
{
    (void)state;
    const char *corpus = write_corpus(text);
    mc_train_tokenizer_options options = {.type = MC_TOKENIZER_TYPE_BYTE_BPE, .vocab_size = 300};
    mc_status status = MC_ERR_NOMEM;
    long n = 0;
    for (; status; n++) {
        mc_fault_fail_at(n + 1, n % 2 == 0);
        status = train_on(corpus, &options);
        mc_fault_fail_at(0, false);
        if (status) assert_int_equal(status, MC_ERR_NOMEM);
        mc_clear_error(ctx);
    }
    assert_true(n > 20);
}
#endif

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_merges),
        TEST(test_white_space),
        TEST(test_special_tokens),
        TEST(test_refusals),
#ifdef MC_FAULT_INJECTION
        TEST(test_allocation_failures),
#endif

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
