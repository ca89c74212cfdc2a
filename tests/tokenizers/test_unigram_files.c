/* The files of Unigram tokenizers: what a tokenizer.json and a configuration say, what is refused
 * and how, and what saving writes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "tokenizers/files/parts_internal.h"
#include "tests/tokenizers/tokenizer_test.h"
#include "tests/tokenizers/unigram_test.h"
#include "tokenizers/details.h"

static const char vocab[] = "[[\"<pad>\", 0], [\"</s>\", 0], [\"<unk>\", 0], [\"" SP "\", -2],"
                            " [\"a\", -3], [\"b\", -3.5], [\"" SP "a\", -4], [\"ab\", -5]]";

static const char meta[] =
    "{\"type\": \"Metaspace\", \"replacement\": \"" SP "\", \"add_prefix_space\": true}";

#define WHITE                                                                                   \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"WhitespaceSplit\"}, {\"type\": " \
    "\"Metaspace\", \"prepend_scheme\": \"always\"}]}"
#define SPECIALS "[{\"content\": \"</s>\", \"special\": true}, {\"content\": \"a x\"}]"

/* A tokenizer.json; NULL leaves a part out. */
static void write_json(const char *normalizer, const char *words, const char *decoder,
                       const char *model)
{
    char text[4096];
    snprintf(text, sizeof text,
             "{\"added_tokens\": " SPECIALS ", \"normalizer\": %s, \"pre_tokenizer\": %s, "
             "\"decoder\": %s, \"model\": {\"type\": \"Unigram\", %s \"vocab\": %s}}",
             normalizer ? normalizer : "null", words ? words : "null", decoder ? decoder : "null",
             model, vocab);
    write_text(temp_path(&folder, "tokenizer.json"), text);
}

static void test_json(void **state)
{
    (void)state;
    write_json(NULL, WHITE, meta, "\"unk_id\": 2,");
    mc_tokenizer *tok = open_folder();
    expect_ids(tok, "a  b\t\u3000ab", 6, 3, 5, 3, 7, -1);
    expect_ids(tok, "xa</s>b", 3, 2, 4, 1, 3, 5, -1);
    expect_ids(tok, "ba xb", 3, 5, 8, 3, 5, -1); /* an added token after the vocabulary */
    expect_ids(tok, "a" SP "b", 6, 3, 5, -1);
    expect_ids(tok, "", -1);
    const int32_t ids[] = {3, 6, 1, 5};
    char *text = mc_tokenizer_decode(tok, ids, 4, true);
    assert_string_equal(text, " ab");
    mc_string_free(text);
    assert_int_equal(mc_tokenizer_pad_id(tok), 0);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), 1);
    assert_string_equal(mc_tokenizer_id_to_token(tok, 8), "a x");
    write_json("{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Strip\", \"strip_left\": "
               "false, \"strip_right\": true}, {\"type\": \"Replace\", \"pattern\": {\"Regex\": "
               "\" {2,}\"}, \"content\": \"" SP "\"}]}",
               "{\"type\": \"Metaspace\", \"prepend_scheme\": \"first\"}", NULL, "\"unk_id\": 2,");
    tok = open_folder();
    expect_ids(tok, "a   b ", 6, 3, 5, -1);
    expect_ids(tok, " a</s>a", 6, 1, 4, -1);
    text = mc_tokenizer_decode(tok, ids, 4, false);
    assert_string_equal(text, SP " " SP "a </s> b"); /* pieces as they are */
    mc_string_free(text);
}

/* A Sequence of no steps does nothing, as in Hugging Face's library; a decoder's does not put
 * spaces between tokens either, as none would. */
static void test_empty_sequences(void **state)
{
    (void)state;
    static const char *const words[] = {"{\"type\": \"Sequence\", \"pretokenizers\": []}", NULL};
    static const char joined[] = "{\"type\": \"Sequence\", \"decoders\": []}";
    const int32_t ids[] = {6, 5, 3};
    for (int i = 0; i < 2; i++) {
        write_json(NULL, words[i], i ? NULL : joined, "\"unk_id\": 2,");
        mc_tokenizer *tok = open_folder();
        expect_ids(tok, "ab" SP "a", 7, 6, -1);
        expect_ids(tok, "a b", 4, 2, 5, -1);
        expect_ids(tok, "a xb</s>a", 8, 5, 1, 4, -1);
        expect_ids(tok, "", -1);
        char *text = mc_tokenizer_decode(tok, ids, 3, true);
        assert_string_equal(text, i ? SP "a b " SP : SP "ab" SP);
        mc_string_free(text);
    }
}

static void test_bad_json(void **state)
{
    (void)state;
    static const struct {
        mc_status status;
        const char *normalizer, *words, *decoder, *model, *part;
    } cases[] = {
        {MC_ERR_UNSUPPORTED, NULL, "{\"type\": \"ByteLevel\"}", NULL, "\"unk_id\": 2,",
         "a model of pieces with a pre-tokenizer of type \"ByteLevel\""},
        {MC_ERR_UNSUPPORTED, NULL, "{\"type\": \"Sequence\"}", NULL, "\"unk_id\": 2,",
         "of type \"Sequence\""},
        {MC_ERR_UNSUPPORTED, "{\"type\": \"Lowercase\"}", WHITE, NULL, "\"unk_id\": 2,",
         "a normalizer of type \"Lowercase\""},
        {MC_ERR_UNSUPPORTED, NULL, WHITE, "{\"type\": \"ByteFallback\"}", "\"unk_id\": 2,",
         "a decoder of type \"ByteFallback\""},
        {MC_ERR_UNSUPPORTED, NULL, WHITE, NULL, "", "without \"unk_id\""},
        {MC_ERR_FORMAT, NULL, WHITE, NULL, "\"unk_id\": 8,", "unk_id"},
        {MC_ERR_UNSUPPORTED, NULL, WHITE, NULL, "\"unk_id\": 2, \"byte_fallback\": true,",
         "byte_fallback"},
        {MC_ERR_FORMAT, "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"?\"}", WHITE, NULL,
         "\"unk_id\": 2,", "base64"},
        {MC_ERR_FORMAT, "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}", WHITE,
         NULL, "\"unk_id\": 2,", "precompiled_charsmap"},
        {MC_ERR_FORMAT, NULL, WHITE, NULL, "\"unk_id\": 2, \"vocab\": 3,", "\"vocab\""},
        {MC_ERR_FORMAT, NULL, WHITE, NULL, "\"unk_id\": 2, \"vocab\": [[\"a\", \"b\"]],",
         "vocab[0]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_json(cases[i].normalizer, cases[i].words, cases[i].decoder, cases[i].model);
        expect_failure(cases[i].status, cases[i].part);
    }
}

static void test_bad_models(void **state)
{
    (void)state;
    static const struct {
        piece odd;
        const char *part;
    } cases[] = {
        {{"", 0, MC_PIECE_NORMAL}, "piece 3 is empty"},
        {{"a", NAN, MC_PIECE_NORMAL}, "piece 3 has a score"},
        {{"a", 0, 7}, "piece 3 is of an unknown type"},
        {{"\xFF", 0, MC_PIECE_NORMAL}, "piece 3 is no UTF-8"},
        {{"a", 0, MC_PIECE_UNKNOWN}, "pieces 2 and 3"},
        {{"</s>", 0, MC_PIECE_NORMAL}, "has two ids, 1 and 3"},
    };
    piece pieces[4];
    memcpy(pieces, small_pieces, sizeof pieces);
    write_text(temp_path(&folder, "tokenizer_config.json"), "{}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pieces[3] = cases[i].odd;
        write_model(pieces, 4, &plain_settings);
        expect_failure(MC_ERR_FORMAT, cases[i].part);
        expect_failure(MC_ERR_FORMAT, "spiece.model");
    }
    write_model(small_pieces, 2, &plain_settings);
    expect_failure(MC_ERR_FORMAT, "no piece is of type unknown");
    model_settings settings = plain_settings;
    settings.byte_fallback = 1;
    write_model(small_pieces, PIECES, &settings);
    expect_failure(MC_ERR_FORMAT, "\"<0x00>\"");
}

/* Cut off at each byte, and with each byte changed, a file is read or refused by its name. */
static void test_damaged_models(void **state)
{
    (void)state;
    mc_bytes model = build_model(small_pieces, PIECES, &plain_settings);
    for (size_t i = 0; i < 2 * model.count; i++) {
        size_t size = i < model.count ? i : model.count, at = i - model.count;
        if (i >= model.count) model.data[at] ^= (uint8_t)(1 << i % 8);
        mc_tokenizer *tok = mc_tokenizer_new(ctx);
        assert_non_null(tok);
        mc_status status = mc_unigram_load_model(tok, &ctx->error, "damaged.model",
                                                 (char *)model.data, size, true, -1);
        if (status)
            assert_non_null(strstr(mc_error_message(ctx), "damaged.model"));
        else
            assert_int_equal(mc_tokenizer_append(tok, "a \xE2\x96 b", 6, &encoding), MC_OK);
        mc_tokenizer_free(tok);
        mc_clear_error(ctx);
        if (i >= model.count) model.data[at] ^= (uint8_t)(1 << i % 8);
    }
    mc_bytes_release(&model);
}

static void test_configuration(void **state)
{
    (void)state;
    const char *config = temp_path(&folder, "tokenizer_config.json");
    write_model(small_pieces, PIECES, &plain_settings);
    mc_tokenizer *tok = open_folder(); /* as T5's without one */
    assert_int_equal(mc_tokenizer_vocab_size(tok), PIECES + 100);
    expect_ids(tok, "a<extra_id_0><extra_id_99>", S_A, PIECES + 99, PIECES, EOS, -1);
    write_text(config,
               "{\"tokenizer_class\": \"T5Tokenizer\", \"extra_ids\": 2, "
               "\"additional_special_tokens\": [\"<extra_id_0>\", \"<extra_id_1>\", \"<q>\"]}");
    tok = open_folder();
    expect_ids(tok, "<extra_id_1><extra_id_0><q>", PIECES, PIECES + 1, PIECES + 2, EOS, -1);
    write_text(config, "{\"tokenizer_class\": \"XLNetTokenizer\"}");
    expect_failure(MC_ERR_UNSUPPORTED, "\"XLNetTokenizer\"");
    write_json(NULL, WHITE, NULL, "\"unk_id\": 2,"); /* now it can be read */
    expect_ids(open_folder(), "b", 3, 5, -1);
    unlink(config);
    expect_ids(open_folder(), "b", SPACE, B, EOS, -1); /* the model counts */
    assert_int_equal(
        rename(temp_path(&folder, "spiece.model"), temp_path(&folder, "tokenizer.model")), 0);
    tok = open_folder();
    assert_int_equal(mc_tokenizer_vocab_size(tok), PIECES);
    expect_ids(tok, "b", SPACE, B, -1);
}

/* ModelCenter's GLM: vocab.model, whose special tokens come after the pieces. */
static void test_glm(void **state)
{
    (void)state;
    write_model(small_pieces, PIECES, &plain_settings);
    assert_int_equal(rename(temp_path(&folder, "spiece.model"), temp_path(&folder, "vocab.model")),
                     0);
    mc_tokenizer *tok = open_folder();
    assert_int_equal(mc_tokenizer_vocab_size(tok), PIECES + 9);
    expect_ids(tok, "b", SPACE, B, -1);
    expect_ids(tok, "[CLS][MASK][S][E]", PIECES + 2, PIECES + 8, PIECES + 6, PIECES + 7, -1);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "<|endoftext|>"), PIECES);
    temp_folder copy = temp_folder_new();
    mc_tokenizer_save(tok, copy.path);
    tok = mc_tokenizer_open(ctx, copy.path, NULL);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "[MASK]"), PIECES + 8);
    expect_ids(tok, "b[MASK]", SPACE, B, PIECES + 8, -1);
    temp_folder_free(&copy);
}

/* THUDM's files of the same model: cog-pretrain.model, and added tokens with ids of their own, in
 * any order and with gaps. */
static void test_glm_class(void **state)
{
    (void)state;
    static const char config[] =
        "{\"tokenizer_class\": \"GLMChineseTokenizer\", \"cls_token\": \"[CLS]\", \"eos_token\": "
        "\"<|endoftext|>\", \"pad_token\": \"<|endoftext|>\", \"mask_token\": \"[MASK]\", "
        "\"sep_token\": \"[SEP]\", \"additional_special_tokens\": [\"<|startofpiece|>\", "
        "\"<|endofpiece|>\", \"[gMASK]\", \"[sMASK]\"]}";
    static const char *const names[] = {"<|endoftext|>",    "[SEP]",          "[CLS]",   "[MASK]",
                                        "<|startofpiece|>", "<|endofpiece|>", "[gMASK]", "[sMASK]"};
    static const int after[] = {0, 1, 2, 3, 6, 7, 8, 9};
    char added[512] = "{", *end = added + 1;
    write_model(small_pieces, PIECES, &plain_settings);
    assert_int_equal(
        rename(temp_path(&folder, "spiece.model"), temp_path(&folder, "cog-pretrain.model")), 0);
    write_text(temp_path(&folder, "tokenizer_config.json"), config);
    for (int i = 7; i >= 0; i--)
        end += sprintf(end, "\"%s\": %d%s", names[i], PIECES + after[i], i ? ", " : "}");
    write_text(temp_path(&folder, "added_tokens.json"), added);
    mc_tokenizer *tok = open_folder();
    temp_folder copy = temp_folder_new();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++)
            assert_int_equal(mc_tokenizer_token_to_id(tok, names[i]), PIECES + after[i]);
        expect_ids(tok, "b", PIECES + 2, SPACE, B, PIECES, -1);
        expect_ids(tok, "[gMASK][sMASK]<|startofpiece|>[MASK]", PIECES + 2, PIECES + 8, PIECES + 9,
                   PIECES + 6, PIECES + 3, PIECES, -1);
        mc_tokenizer_save(tok, copy.path);
        if (!round) tok = mc_tokenizer_open(ctx, copy.path, NULL);
        assert_non_null(tok);
    }
    temp_folder_free(&copy);
    write_text(temp_path(&folder, "added_tokens.json"), "{\"[CLS]\": 99999}");
    expect_failure(MC_ERR_FORMAT, "added_tokens.json: \"[CLS]\": id 99999, expected one of the");
    write_text(temp_path(&folder, "added_tokens.json"), "{}");
    write_text(temp_path(&folder, "tokenizer_config.json"),
               "{\"tokenizer_class\": \"GLMChineseTokenizer\", \"cls_token\": \"[CLS]\"}");
    expect_failure(MC_ERR_FORMAT, "there is no piece \"[CLS]\" to put around texts");
}

static void test_own_sentinels(void **state)
{
    (void)state;
    piece pieces[PIECES + 1];
    memcpy(pieces, small_pieces, sizeof small_pieces);
    pieces[PIECES] = (piece){SP "<extra_id_0>", 0, MC_PIECE_USER_DEFINED};
    write_model(pieces, PIECES + 1, &plain_settings);
    mc_tokenizer *tok = open_folder(); /* as mT5's */
    assert_int_equal(mc_tokenizer_vocab_size(tok), PIECES + 1);
    expect_ids(tok, "a <extra_id_0> b", S_A, PIECES, SPACE, B, EOS, -1);
    /* where a configuration asks for sentinels of the same text beside them, the later count */
    pieces[PIECES].text = "<extra_id_0>";
    write_model(pieces, PIECES + 1, &plain_settings);
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"extra_ids\": 1}");
    tok = open_folder();
    assert_int_equal(mc_tokenizer_vocab_size(tok), PIECES + 2);
    expect_ids(tok, "a <extra_id_0> b", S_A, PIECES + 1, SPACE, B, EOS, -1);
}

/* The ids that transformers 5.24 gives: sentinels come before other added tokens. */
static void test_added_tokens(void **state)
{
    (void)state;
    enum { FIRST = PIECES, NEW = PIECES + 3 };
    const char *config = temp_path(&folder, "tokenizer_config.json");
    char target[1024];
    write_model(small_pieces, PIECES, &plain_settings);
    write_text(temp_path(&folder, "added_tokens.json"), "{\"<y>\": 101, \"<x>\": 100}");
    mc_tokenizer *tok = open_folder();
    assert_int_equal(mc_tokenizer_vocab_size(tok), PIECES + 102);
    expect_ids(tok, "<x><extra_id_0><extra_id_99><y>", PIECES + 100, PIECES + 99, PIECES,
               PIECES + 101, EOS, -1);
    write_text(config, "{\"extra_ids\": 3, \"image_token\": \"<i>\"}");
    tok = open_folder();
    expect_ids(tok, "<x><extra_id_0><i><extra_id_2><y>", NEW, FIRST + 2, NEW + 2, FIRST, NEW + 1,
               EOS, -1);
    snprintf(target, sizeof target, "%s/saved", folder.path);
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    tok = mc_tokenizer_from_pretrained(ctx, target);
    expect_ids(tok, "<x><extra_id_0><i><extra_id_2><y>", NEW, FIRST + 2, NEW + 2, FIRST, NEW + 1,
               EOS, -1);
    write_text(config, "{\"extra_ids\": 3, \"added_tokens_decoder\": {\"7\": {\"content\": "
                       "\"<extra_id_1>\", \"lstrip\": true}, \"5\": {\"content\": \"<x>\"}}}");
    tok = open_folder();
    expect_ids(tok, "<x><extra_id_0>  <extra_id_1>", NEW, FIRST + 2, FIRST + 1, EOS, -1);
    /* a list of extra special tokens counts alone: other sentinels are pieces of texts */
    write_text(config, "{\"extra_ids\": 3, \"extra_special_tokens\": [\"<x>\", \"<extra_id_0>\"]}");
    unlink(temp_path(&folder, "added_tokens.json"));
    tok = open_folder();
    expect_ids(tok, "<x><extra_id_0><extra_id_1>", NEW, FIRST + 2, SPACE, FIRST + 1, EOS, -1);
    /* the map's list by its old name does not count beside a model */
    write_text(config, "{\"extra_ids\": 3}");
    write_text(temp_path(&folder, "special_tokens_map.json"),
               "{\"additional_special_tokens\": [\"<x>\"]}");
    tok = open_folder();
    assert_int_equal(mc_tokenizer_vocab_size(tok), NEW);
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    assert_int_equal(mc_tokenizer_vocab_size(mc_tokenizer_from_pretrained(ctx, target)), NEW);
}

static void test_save(void **state)
{
    (void)state;
    char target[1024], other[2048];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"extra_ids\": 3}");
    write_model(small_pieces, PIECES, &plain_settings);
    mc_tokenizer *tok = open_folder();
    assert_int_equal(mc_tokenizer_save(tok, target), MC_OK);
    mc_tokenizer *again = mc_tokenizer_from_pretrained(ctx, target);
    assert_non_null(again);
    assert_int_equal(mc_tokenizer_vocab_size(again), PIECES + 3);
    expect_ids(again, "a<extra_id_0>x", S_A, PIECES + 2, SPACE, UNK, EOS, -1);
    unlink(temp_path(&folder, "spiece.model"));
    write_json(NULL, WHITE, NULL, "\"unk_id\": 2,");
    tok = open_folder();
    assert_int_equal(mc_tokenizer_save(tok, target), MC_ERR_ARGUMENT);
    assert_non_null(strstr(mc_error_message(ctx), "spiece.model lies there"));
    mc_clear_error(ctx);
    snprintf(other, sizeof other, "%s/json", folder.path);
    assert_int_equal(mc_tokenizer_save(tok, other), MC_OK);
    again = mc_tokenizer_from_pretrained(ctx, other);
    assert_non_null(again);
    expect_ids(again, "a a x", 6, 8, -1);
}

static void test_roberta(void **state)
{
    (void)state;
    write_text(temp_path(&folder, "vocab.json"),
               "{\"<s>\": 0, \"<pad>\": 1, \"</s>\": 2, \"<unk>\": 3, \"a\": 4, \"b\": 5, "
               "\"\\u0120\": 6, \"ab\": 7, \"<mask>\": 8}");
    write_text(temp_path(&folder, "merges.txt"), "a b\n");
    mc_tokenizer *tok = open_folder();
    expect_ids(tok, "ab <mask> b", 0, 7, 8, 6, 5, 2, -1);
    assert_int_equal(mc_tokenizer_encode(tok, "a", 1, "b", 1, 0, &encoding), MC_OK);
    static const int32_t pair[] = {0, 4, 2, 2, 5, 2};
    assert_int_equal(encoding.count, 6);
    assert_memory_equal(encoding.ids, pair, sizeof pair);
    assert_int_equal(mc_tokenizer_pad_id(tok), 1);
    write_text(temp_path(&folder, "tokenizer_config.json"),
               "{\"tokenizer_class\": \"GPT2Tokenizer\"}");
    expect_ids(open_folder(), "a", 4, -1);
}

#ifdef MC_FAULT_INJECTION
static bool do_everything(const char *target)
{
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, folder.path);
    mc_encoding own = {0};
    mc_status status =
        tok ? mc_tokenizer_encode(tok, "a xb </s> ab", 12, NULL, 0, 0, &own) : mc_error_status(ctx);
    char *text = status ? NULL : mc_tokenizer_decode(tok, own.ids, own.count, false);
    if (text) status = mc_tokenizer_save(tok, target);
    bool good = text && !status;
    mc_string_free(text);
    mc_encoding_release(&own);
    mc_tokenizer_free(tok);
    return good;
}

static void expect_clean_failures(void)
{
    char target[1024];
    snprintf(target, sizeof target, "%s/saved", folder.path);
    long n = 0;
    for (bool good = false; !good; n++) {
        mc_fault_fail_at(n + 1, n % 2 == 0);
        good = do_everything(target);
        mc_fault_fail_at(0, false);
        assert_int_equal(mc_error_status(ctx), mc_failed(ctx) ? MC_ERR_NOMEM : MC_OK);
        mc_clear_error(ctx);
        assert_true(n < 100000);
    }
    assert_true(n > 30);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    write_json("{\"type\": \"Strip\"}", WHITE, meta, "\"unk_id\": 2,");
    expect_clean_failures();
    unlink(temp_path(&folder, "tokenizer.json"));
    unlink(temp_path(&folder, "saved/tokenizer.json"));
    write_text(temp_path(&folder, "tokenizer_config.json"), "{\"extra_ids\": 3}");
    write_model(small_pieces, PIECES, &plain_settings);
    expect_clean_failures();
}
#endif

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_json),
        TEST(test_empty_sequences),
        TEST(test_bad_json),
        TEST(test_bad_models),
        TEST(test_damaged_models),
        TEST(test_configuration),
        TEST(test_own_sentinels),
        TEST(test_glm),
        TEST(test_glm_class),
        TEST(test_added_tokens),
        TEST(test_save),
        TEST(test_roberta),
#ifdef MC_FAULT_INJECTION
        TEST(test_allocation_failures),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
