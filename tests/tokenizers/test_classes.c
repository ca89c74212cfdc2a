/* Classes that decide how a folder's files are read: Qwen2's words, fairseq's numbers of pieces,
 * and a tokenizer.json of ModernBERT's form, which says all by itself. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/tokenizers/tokenizer_test.h"
#include "tests/tokenizers/unigram_test.h"

static void write_file(const char *name, const char *text)
{
    write_text(temp_path(&folder, name), text);
}

static void remove_file(const char *name) { remove(temp_path(&folder, name)); }

/* What was saved encodes as before. */
static mc_tokenizer *save_and_open(const mc_tokenizer *tok)
{
    char target[1100];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    if (mc_tokenizer_save(tok, target)) fail_msg("%s", mc_error_message(ctx));
    tok = mc_tokenizer_from_pretrained(ctx, target);
    if (!tok) fail_msg("%s", mc_error_message(ctx));
    return (mc_tokenizer *)tok;
}

/* ---- byte-level BPE ---- */

/* Entries of the letters that the texts have, and of what merges make of them. */
#define LETTERS                                                                             \
    "\"a\": 0, \"b\": 1, \"1\": 2, \"2\": 3, \"\u0120\": 4, \"\u00c3\": 5, \"\u00a9\": 6, " \
    "\"12\": 7, \"\u0120a\": 8, \"ab\": 9, \"\u010a\": 10, \"b\u010a\": 11, \"\u0120b\": 12"
#define MERGES "1 2\n\u0120 a\na b\nb \u010a\n\u0120 b\n"
enum { LA, LB, ONE, TWO, BLANK, HIGH, LOW, TWELVE, B_A, A_B, LINE, B_LINE, B_B, LETTERS_END };

static void test_qwen2(void **state)
{
    (void)state;
    static const char text[] = "12 ab\n  a e\u0301<|im_end|>";
    write_file("vocab.json", "{" LETTERS "}");
    write_file("merges.txt", "#version: 0.2\n" MERGES);
    write_file("tokenizer_config.json",
               "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"eos_token\": \"<|im_end|>\", "
               "\"bos_token\": null}");
    /* each digit is a word and NFC joins e and its accent; GPT-2's class knows neither */
    for (int round = 0; round < 3; round++) {
        mc_tokenizer *tok = open_folder();
        if (round == 2) tok = save_and_open(tok);
        expect_ids(tok, text, ONE, TWO, B_A, LB, LINE, BLANK, B_A, BLANK, HIGH, LOW, LETTERS_END,
                   -1);
        assert_int_equal(tok->bpe.cuts[0].kind, MC_CUT_QWEN); /* not through PCRE2 */
        assert_int_equal(mc_tokenizer_end_of_text_id(tok), LETTERS_END);
        assert_int_equal(mc_tokenizer_token_to_id(tok, "<|endoftext|>"), LETTERS_END + 1);
        if (round) continue;
        write_file("tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}");
        write_file("config.json", "{\"model_type\": \"qwen3\"}"); /* which names the class too */
    }
    remove_file("config.json");
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\"}");
    expect_ids(open_folder(), "12 ab", TWELVE, B_A, LB, -1);
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"BloomTokenizer\"}");
    expect_failure(MC_ERR_UNSUPPORTED, "GPT2Tokenizer or RobertaTokenizer or Qwen2Tokenizer");
}

/* NFC, special tokens around texts, and added tokens: runs of spaces, one that takes in the space
 * before it, and one that stands alone. */
static void test_modernbert(void **state)
{
    (void)state;
    enum { CLS = LETTERS_END, SEP, MASK, RUN, WORD };
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}");
    write_file(
        "tokenizer.json",
        "{\"added_tokens\": [{\"id\": 13, \"content\": \"[CLS]\", \"special\": true}, "
        "{\"id\": 14, \"content\": \"[SEP]\", \"special\": true}, "
        "{\"id\": 15, \"content\": \"[MASK]\", \"special\": true, \"lstrip\": true}, "
        "{\"id\": 16, \"content\": \"  \", \"normalized\": true}, "
        "{\"id\": 17, \"content\": \"\u00e9\", \"normalized\": true, \"single_word\": true}],"
        " \"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
        "{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": "
        "\"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}], "
        "\"pair\": [{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": "
        "{\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", "
        "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 0}}, "
        "{\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}], \"special_tokens\": "
        "{\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [13], \"tokens\": [\"[CLS]\"]}, \"[SEP]\": "
        "{\"id\": \"[SEP]\", \"ids\": [14], \"tokens\": [\"[SEP]\"]}}}, "
        "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": "
        "{" LETTERS ", \"[CLS]\": 13, \"[SEP]\": 14, \"[MASK]\": 15}, \"merges\": [[\"1\", "
        "\"2\"], [\"\u0120\", \"a\"], [\"a\", \"b\"]]}}");
    mc_tokenizer *tok = open_folder();
    for (int round = 0; round < 2; round++) {
        expect_ids(tok, "12  ab [MASK] b e\u0301", CLS, TWELVE, RUN, A_B, MASK, BLANK, LB, BLANK,
                   WORD, SEP, -1);
        expect_ids(tok, "ae\u0301", CLS, LA, HIGH, LOW, SEP, -1);
        expect_ids(tok, "a [SEP]", CLS, LA, BLANK, SEP, SEP, -1);
        if (!round) tok = save_and_open(tok);
    }
}

/* Longformer's is RoBERTa's, whose special tokens config.json's type alone brings. */
static void test_longformer(void **state)
{
    (void)state;
    enum { BOS = LETTERS_END, EOS_, MASK };
    write_file("vocab.json", "{" LETTERS ", \"<s>\": 13, \"</s>\": 14, \"<mask>\": 15, \"<pad>\": "
                             "16, \"<unk>\": 17}");
    write_file("merges.txt", MERGES);
    write_file("config.json", "{\"model_type\": \"longformer\"}");
    expect_ids(open_folder(), "ab <mask> b", BOS, A_B, MASK, B_B, EOS_, -1);
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"LongformerTokenizer\"}");
    expect_ids(save_and_open(open_folder()), "ab <mask> b", BOS, A_B, MASK, B_B, EOS_, -1);
}

/* Lawformer is a Longformer with the words of a Chinese BERT. */
static void test_lawformer(void **state)
{
    (void)state;
    enum { L_PAD, L_UNK, L_CLS, L_SEP, L_MASK, FA, LU, L_A, L_B };
    write_file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\u6cd5\n\u5f8b\na\n##b\n");
    write_file("config.json", "{\"model_type\": \"longformer\", \"vocab_size\": 9}");
    for (int named = 0; named < 2; named++) {
        if (named) write_file("tokenizer_config.json", "{\"tokenizer_class\": \"BertTokenizer\"}");
        mc_tokenizer *tok = open_folder();
        expect_ids(tok, "\u6cd5\u5f8bAB[MASK]\u4e2d", L_CLS, FA, LU, L_A, L_B, L_MASK, L_UNK, L_SEP,
                   -1);
        expect_ids(save_and_open(tok), "\u5f8b", L_CLS, LU, L_SEP, -1);
    }
}

/* ---- fairseq's numbers ---- */

enum { P_UNK, P_BOS, P_EOS, P_SPACE, P_A, P_B, P_S_AB, P_END };
static const piece fairseq_pieces[P_END] = {
    {"<unk>", 0, MC_PIECE_UNKNOWN}, {"<s>", 0, MC_PIECE_CONTROL}, {"</s>", 0, MC_PIECE_CONTROL},
    {SP, -2, MC_PIECE_NORMAL},      {"a", -3, MC_PIECE_NORMAL},   {"b", -3.5F, MC_PIECE_NORMAL},
    {SP "ab", -4, MC_PIECE_NORMAL},
};

static void write_fairseq(const piece *pieces, size_t count, int type)
{
    char from[1100], to[1100];
    model_settings settings = plain_settings;
    settings.type = type;
    write_model(pieces, count, &settings);
    snprintf(from, sizeof from, "%s/spiece.model", folder.path);
    snprintf(to, sizeof to, "%s/sentencepiece.bpe.model", folder.path);
    assert_int_equal(rename(from, to), 0);
}

static void check_fairseq(int offset, int bos, int eos)
{
    enum { UNK_ = 3 };
    int mask = P_END + offset;
    mc_tokenizer *tok = open_folder();
    for (int round = 0; round < 2; round++) {
        expect_ids(tok, "ab ba <mask> x</s>", bos, P_S_AB + offset, P_SPACE + offset, P_B + offset,
                   P_A + offset, mask, P_SPACE + offset, UNK_, eos, eos, -1);
        assert_int_equal(mc_tokenizer_vocab_size(tok), mask + 1);
        assert_int_equal(mc_tokenizer_pad_id(tok), 1);
        assert_int_equal(mc_tokenizer_encode(tok, "ab", 2, "b", 1, 0, &encoding), MC_OK);
        const int32_t pair[] = {bos, P_S_AB + offset, eos, eos, P_SPACE + offset, P_B + offset,
                                eos};
        assert_int_equal(encoding.count, 7);
        assert_memory_equal(encoding.ids, pair, sizeof pair);
        if (!round) tok = save_and_open(tok);
    }
}

static void test_fairseq(void **state)
{
    (void)state;
    write_fairseq(fairseq_pieces, P_END, 1);
    write_file("config.json", "{\"model_type\": \"xlm-roberta\"}");
    check_fairseq(1, 0, 2);
    remove_file("config.json");
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"CamembertTokenizer\"}");
    remove_file("saved/tokenizer_config.json");
    check_fairseq(4, 5, 6);
}

static void test_bad_fairseq(void **state)
{
    (void)state;
    write_fairseq(fairseq_pieces, P_END, 1);
    expect_failure(MC_ERR_UNSUPPORTED, "XLMRobertaTokenizer or CamembertTokenizer");
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"MBartTokenizer\"}");
    expect_failure(MC_ERR_UNSUPPORTED, "\"MBartTokenizer\" is not supported for a SentencePiece");
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"XLMRobertaTokenizerFast\"}");
    write_fairseq(fairseq_pieces + 2, P_END - 2, 1);
    expect_failure(MC_ERR_FORMAT, "no piece is of type unknown");
    piece other[P_END];
    memcpy(other, fairseq_pieces, sizeof other);
    other[P_EOS].type = MC_PIECE_NORMAL;
    write_fairseq(other, P_END, 1);
    expect_failure(MC_ERR_FORMAT, "sentencepiece.bpe.model: expected <unk>, <s> and </s>");
    write_fairseq(fairseq_pieces, P_END, 2);
    expect_failure(MC_ERR_UNSUPPORTED, "another type than Unigram");
}

/* Each allocation of opening and saving fails in turn: a clean error that leaks nothing. */
static void open_with_faults(void)
{
#ifdef MC_FAULT_INJECTION
    char target[1100];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    long nth = 0, count;
    bool failed = true;
    while (failed) {
        mc_fault_fail_at(++nth, false);
        mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, folder.path);
        if (tok) mc_tokenizer_save(tok, target);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        mc_tokenizer_free(tok);
        failed = mc_failed(ctx);
        if (failed ? mc_error_status(ctx) != MC_ERR_NOMEM : nth <= count)
            fail_msg("allocation %ld of %ld: \"%s\"", nth, count, mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    assert_true(nth > 20);
#else
    printf("SKIPPED: failing allocations (needs MC_FAULT_INJECTION)\n");
#endif
}

static void test_faults(void **state)
{
    (void)state;
    write_fairseq(fairseq_pieces, P_END, 1);
    write_file("config.json", "{\"model_type\": \"camembert\"}");
    write_file("chat_template.jinja", "<|user|>");
    open_with_faults();
    remove_file("sentencepiece.bpe.model");
    write_file("vocab.json", "{" LETTERS "}");
    write_file("merges.txt", MERGES);
    write_file("config.json", "{\"model_type\": \"qwen2\"}");
    open_with_faults();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_qwen2),   TEST(test_modernbert),  TEST(test_longformer), TEST(test_lawformer),
        TEST(test_fairseq), TEST(test_bad_fairseq), TEST(test_faults),
    };
    return cmocka_run_group_tests_name("classes", tests, NULL, NULL);
}
