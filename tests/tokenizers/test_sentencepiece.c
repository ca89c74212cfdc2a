/* The SentencePiece library beside our own encoder, and training with it. In a build without it
 * what takes it is refused by name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "core/base/json_internal.h"
#include "tests/tokenizers/tokenizer_test.h"
#include "tests/tokenizers/unigram_test.h"
#include "tokenizers/unigram/sentencepiece_internal.h"
#include "tokenizers/train.h"
#include "tokenizers/details.h"

static const char *const inputs[] = {"corpus.txt"};

/* Lines of words that come from a few syllables. */
static const char *write_corpus(void)
{
    static char text[60000], path[1024];
    static const char *const parts[] = {"ka", "lo",   "mi",      "net", "ruva",   "s",
                                        "to", "ving", "\u00e9l", "42",  "\u4e2d", "-"};
    uint32_t random = 7;
    size_t used = 0;
    while (used + 64 < sizeof text) {
        for (int i = 0; i < 3; i++) {
            random = random * 1664525 + 1013904223;
            used += (size_t)snprintf(text + used, sizeof text - used, "%s",
                                     parts[(random >> 20) % 12 % (1 + (random >> 28))]);
        }
        text[used++] = random >> 29 ? ' ' : '\n';
    }
    snprintf(path, sizeof path, "%s/%s", folder.path, inputs[0]);
    write_bytes(path, text, used);
    return path;
}

#ifdef MC_HAVE_SENTENCEPIECE

static mc_tokenizer *train(mc_train_tokenizer_options options)
{
    const char *corpus = write_corpus();
    static char target[1024];
    snprintf(target, sizeof target, "%s/own", folder.path);
    mc_tokenizer_train(ctx, &corpus, 1, target, &options);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, target);
    if (!tok) fail_msg("%s", mc_error_message(ctx));
    return tok;
}

/* The sum of the scores of ids; an unknown character counts as one. */
static double score_of(const mc_tokenizer *tok, const int32_t *ids, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ids[i] == tok->unk_id ? tok->unigram.unknown : tok->unigram.weights[ids[i]];
    return sum;
}

/* Of Unigram, releases before 0.2.2 round otherwise, so pieces of equal sums may be others. */
static void expect_same(const mc_tokenizer *tok, mc_sentencepiece *library, const char *text,
                        size_t size)
{
    int32_t *ids;
    size_t count, decoded_size;
    char *decoded;
    assert_int_equal(mc_sentencepiece_encode(library, text, size, &ids, &count), MC_OK);
    encoding.count = 0;
    assert_int_equal(mc_tokenizer_append(tok, text, size, &encoding), MC_OK);
    bool same =
        count == encoding.count && (!count || !memcmp(ids, encoding.ids, count * sizeof *ids));
    if (!same &&
        (tok->unigram.by_library || tok->unigram.bpe ||
         fabs(score_of(tok, ids, count) - score_of(tok, encoding.ids, encoding.count)) > 0.01))
        fail_msg("other ids: %.*s", (int)size, text);
    assert_int_equal(mc_sentencepiece_decode(library, ids, count, &decoded, &decoded_size), MC_OK);
    char *own = mc_tokenizer_decode(tok, ids, count, true);
    assert_int_equal(strlen(own), decoded_size);
    assert_memory_equal(own, decoded, decoded_size);
    mc_string_free(own);
    mc_free(decoded);
    mc_free(ids);
}

static void compare(const mc_tokenizer *tok)
{
    static const char letters[] =
        "kalominetruvast42-  \n\t.\u00e9\u4e2d\u3000\u00bd\ufb01" SP "\xFF\xC3";
    char text[200];
    uint32_t random = 3;
    mc_sentencepiece *library =
        mc_sentencepiece_new(&ctx->error, "model", tok->unigram.source, tok->unigram.source_size);
    assert_non_null(library);
    for (int round = 0; round < 2000; round++) {
        size_t size = (size_t)(round % (int)sizeof text);
        for (size_t i = 0; i < size; i++) {
            random = random * 1664525 + 1013904223;
            text[i] = letters[(random >> 12) % (sizeof letters - 1)];
        }
        expect_same(tok, library, text, size);
    }
    mc_sentencepiece_free(library);
}

/* What is cut where it can be gives the ids of the whole. */
static void compare_parts(const mc_tokenizer *tok)
{
    static const char text[] = "kalo  mi\nnetruva \u4e2d42 sto ka " SP " mi \u00e9l\u3000 lo";
    mc_encoding whole = {0};
    size_t size = sizeof text - 1, cuts = 0;
    assert_int_equal(mc_tokenizer_append(tok, text, size, &whole), MC_OK);
    encoding.count = 0;
    for (size_t at = 0, next; at < size; at = next, cuts++) {
        next = at + mc_tokenizer_cut(tok, text + at, size - at, 1);
        assert_int_equal(mc_tokenizer_append(tok, text + at, next - at, &encoding), MC_OK);
    }
    assert_int_equal(cuts, 5); /* not beside what is past ASCII */
    assert_int_equal(encoding.count, whole.count);
    assert_memory_equal(encoding.ids, whole.ids, whole.count * sizeof *whole.ids);
    mc_encoding_release(&whole);
}

static void test_unigram(void **state)
{
    (void)state;
    mc_tokenizer *tok = train((mc_train_tokenizer_options){.vocab_size = 120, .sentinels = 7});
    assert_int_equal(mc_tokenizer_vocab_size(tok), 120);
    assert_int_equal(mc_tokenizer_token_to_id(tok, "<extra_id_0>"), 119);
    assert_int_equal(mc_tokenizer_pad_id(tok), 0);
    assert_int_equal(mc_tokenizer_end_of_text_id(tok), 1);
    assert_false(tok->unigram.by_library);
    assert_true(tok->unigram.fast);
    compare(tok);
    compare_parts(tok);
}

static void test_bytes(void **state)
{
    (void)state;
    mc_tokenizer *tok = train((mc_train_tokenizer_options){
        .vocab_size = 400, .byte_fallback = true, .character_coverage = 0.98, .lowercase = true});
    assert_int_equal(mc_tokenizer_vocab_size(tok), 400);
    expect_ids(tok, "Ka", mc_tokenizer_token_to_id(tok, SP "ka"), 1, -1);
    compare(tok);
}

/* ---- the tokenizer.json of a BPE model ---- */

/* Encodes one word by the file's pairs in their order, and compares with `library`. */
static void expect_word(const cJSON *vocab, const cJSON *pairs, const mc_sentencepiece *library,
                        const char *word)
{
    char parts[64][16] = {{0}};
    int count = 0;
    int32_t *ids;
    size_t id_count;
    const cJSON *pair;
    snprintf(parts[count++], sizeof parts[0], "%s", SP);
    for (const char *p = word; *p; p++) parts[count++][0] = *p;
    cJSON_ArrayForEach(pair, pairs)
    {
        const char *left = cJSON_GetArrayItem(pair, 0)->valuestring;
        const char *right = cJSON_GetArrayItem(pair, 1)->valuestring;
        for (int i = 0; i + 1 < count; i++) {
            if (strcmp(parts[i], left) != 0 || strcmp(parts[i + 1], right) != 0) continue;
            snprintf(parts[i], sizeof parts[i], "%s%s", left, right);
            memmove(parts[i + 1], parts[i + 2], (size_t)(--count - i - 1) * sizeof parts[0]);
        }
    }
    assert_int_equal(mc_sentencepiece_encode(library, word, strlen(word), &ids, &id_count), MC_OK);
    assert_int_equal(id_count, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(cJSON_GetObjectItemCaseSensitive(vocab, parts[i])->valueint, ids[i]);
    mc_free(ids);
}

static void check_json(const mc_tokenizer *tok)
{
    static const char *const words[] = {"kalo", "minetka", "ruvas", "vingtolo", "kakaka", "s"};
    char path[2048];
    snprintf(path, sizeof path, "%s/own/tokenizer.json", folder.path);
    cJSON *root = mc_json_read_object(&ctx->error, path, 1 << 24);
    assert_non_null(root);
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(model, "type")->valuestring, "BPE");
    mc_sentencepiece *library =
        mc_sentencepiece_new(&ctx->error, "model", tok->unigram.source, tok->unigram.source_size);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        expect_word(cJSON_GetObjectItemCaseSensitive(model, "vocab"),
                    cJSON_GetObjectItemCaseSensitive(model, "merges"), library, words[i]);
    mc_sentencepiece_free(library);
    cJSON_Delete(root);
    snprintf(path, sizeof path, "%s/own/tokenizer_config.json", folder.path);
    char *config = mc_file_read(&ctx->error, path, 1 << 20, NULL);
    assert_non_null(strstr(config, "\"PreTrainedTokenizerFast\""));
    mc_free(config);
}

static void test_bpe(void **state)
{
    (void)state;
    static const int32_t ids[] = {1};
    mc_tokenizer *tok =
        train((mc_train_tokenizer_options){.type = MC_TOKENIZER_TYPE_BPE, .vocab_size = 100});
    assert_false(tok->unigram.by_library);
    compare(tok);
    expect_ids(tok, "</s>", 1, 1, -1);
    check_threads(tok, "", ids, 1);
    compare_parts(tok);
    check_json(tok);
}

/* Pieces of one score: of their merges the leftmost is first, in words of any length, and a merge
 * may be followed by another of the same rank at its place. */
static void test_equal_scores(void **state)
{
    (void)state;
    enum { HYPHEN = 3, FOUR = 6, KAL, O = 17 };
    static const piece pieces[] = {
        {"<pad>", 0, MC_PIECE_CONTROL},     {"</s>", 0, MC_PIECE_CONTROL},
        {"<unk>", 0, MC_PIECE_UNKNOWN},     {"-", -1e9F, MC_PIECE_NORMAL},
        {"--", -1e9F, MC_PIECE_NORMAL},     {"---", -1e9F, MC_PIECE_NORMAL},
        {"----", -1e9F, MC_PIECE_NORMAL},   {"kal", -3, MC_PIECE_NORMAL},
        {"al", -2, MC_PIECE_NORMAL},        {"lo", -2, MC_PIECE_NORMAL},
        {SP SP, -1e9F, MC_PIECE_NORMAL},    {SP SP SP, -1e9F, MC_PIECE_NORMAL},
        {SP SP SP SP, -4, MC_PIECE_NORMAL}, {SP, -5, MC_PIECE_NORMAL},
        {"k", -5, MC_PIECE_NORMAL},         {"a", -6, MC_PIECE_NORMAL},
        {"l", -7, MC_PIECE_NORMAL},         {"o", -8, MC_PIECE_NORMAL}};
    model_settings settings = plain_settings;
    settings.type = 2;
    settings.squeeze = settings.dummy_prefix = 0;
    mc_tokenizer *tok = open_model(pieces, sizeof pieces / sizeof *pieces, &settings);
    assert_false(tok->unigram.by_library);
    expect_ids(tok, "-----kalo", FOUR, HYPHEN, KAL, O, 1, -1);
    compare(tok);
    char text[400];
    memset(text, '-', sizeof text);
    mc_sentencepiece *library =
        mc_sentencepiece_new(&ctx->error, "model", tok->unigram.source, tok->unigram.source_size);
    for (size_t size = 90; size < sizeof text; size++) expect_same(tok, library, text, size);
    memset(text, ' ', sizeof text / 2);
    expect_same(tok, library, text, sizeof text);
    mc_sentencepiece_free(library);
}

/* T5's own model, with texts that goldens hold. */
static void test_real_model(void **state)
{
    (void)state;
    char path[2048];
    size_t size;
    const char *shared = shared_folder();
    if (!shared) skip();
    snprintf(path, sizeof path, "%s/data/vocab/t5", shared);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, path);
    assert_non_null(tok);
    snprintf(path, sizeof path, "%s/goldens/tokenizers/t5-a.jsonl", shared);
    char *text = mc_file_read(&ctx->error, path, 1 << 24, &size);
    assert_non_null(text);
    mc_sentencepiece *library =
        mc_sentencepiece_new(&ctx->error, "model", tok->unigram.source, tok->unigram.source_size);
    assert_non_null(library);
    for (char *p = text, *stop; (stop = strchr(p, '\n')); p = stop + 1)
        expect_same(tok, library, p, (size_t)(stop - p));
    mc_sentencepiece_free(library);
    mc_free(text);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *corpus = write_corpus(), *missing = "no/such/file";
    char target[1024];
    snprintf(target, sizeof target, "%s/own", folder.path);
    mc_train_tokenizer_options options = {.vocab_size = 50000};
    assert_int_equal(mc_tokenizer_train(ctx, &corpus, 1, target, &options), MC_ERR_FORMAT);
    assert_non_null(strstr(mc_error_message(ctx), "Vocabulary size too high"));
    mc_clear_error(ctx);
    assert_int_equal(mc_tokenizer_train(ctx, &missing, 1, target, NULL), MC_ERR_NOT_FOUND);
    assert_non_null(strstr(mc_error_message(ctx), missing));
    mc_clear_error(ctx);
    options = (mc_train_tokenizer_options){.vocab_size = 100, .sentinels = 99};
    assert_int_equal(mc_tokenizer_train(ctx, &corpus, 1, target, &options), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    options = (mc_train_tokenizer_options){.character_coverage = 2};
    assert_int_equal(mc_tokenizer_train(ctx, &corpus, 1, target, &options), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    assert_int_equal(access(target, F_OK), -1);
}

/* The files have no text: the error names the first. */
static void test_no_text(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n\n"};
    char path[1024], target[1024];
    const char *files[] = {path, path};
    snprintf(path, sizeof path, "%s/blank.txt", folder.path);
    snprintf(target, sizeof target, "%s/own", folder.path);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int bpe = 0; bpe < 2; bpe++) {
            mc_train_tokenizer_options options = {
                .vocab_size = 100, .type = bpe ? MC_TOKENIZER_TYPE_BPE : MC_TOKENIZER_TYPE_UNIGRAM};
            write_text(path, texts[i]);
            assert_int_equal(mc_tokenizer_train(ctx, files, 1 + bpe, target, &options),
                             MC_ERR_FORMAT);
            assert_non_null(strstr(mc_error_message(ctx), "no text in "));
            assert_non_null(strstr(mc_error_message(ctx), "blank.txt"));
            mc_clear_error(ctx);
        }
    assert_int_equal(access(target, F_OK), -1);
}

/* A compressed file, for example, is not trained on. */
static void test_no_utf8(void **state)
{
    (void)state;
    char path[1024], target[1024];
    const char *files[] = {write_corpus(), path};
    snprintf(path, sizeof path, "%s/latin1.txt", folder.path);
    snprintf(target, sizeof target, "%s/own", folder.path);
    write_text(path, "a line\n\na na\xEFve one\n");
    for (int bpe = 0; bpe < 2; bpe++) {
        mc_train_tokenizer_options options = {
            .vocab_size = 60, .type = bpe ? MC_TOKENIZER_TYPE_BPE : MC_TOKENIZER_TYPE_UNIGRAM};
        assert_int_equal(mc_tokenizer_train(ctx, files, 2, target, &options), MC_ERR_FORMAT);
        assert_non_null(
            strstr(mc_error_message(ctx), "latin1.txt:3: byte 0xef is not valid UTF-8"));
        mc_clear_error(ctx);
    }
    assert_int_equal(access(target, F_OK), -1);
}

/* The bytes of a model that is trained on a text. */
static char *train_on(const char *text, size_t *size)
{
    char path[1024], target[1024], model[1100];
    const char *file = path;
    snprintf(path, sizeof path, "%s/text.txt", folder.path);
    snprintf(target, sizeof target, "%s/trained", folder.path);
    snprintf(model, sizeof model, "%s/spiece.model", target);
    write_text(path, text);
    mc_train_tokenizer_options options = {.vocab_size = 100};
    if (mc_tokenizer_train(ctx, &file, 1, target, &options)) fail_msg("%s", mc_error_message(ctx));
    char *bytes = mc_file_read(&ctx->error, model, 1 << 24, size);
    assert_non_null(bytes);
    return bytes;
}

/* Lines without text change no model. */
static void test_blank_lines(void **state)
{
    (void)state;
    size_t size, other, used = 0;
    char *text = mc_file_read(&ctx->error, write_corpus(), 1 << 24, &size);
    assert_non_null(text);
    char *more = malloc(6 * size);
    for (const char *p = text; *p; p++)
        used += (size_t)sprintf(more + used, *p == '\n' ? "\n \t\n\n" : "%c", *p);
    more[used] = '\0';
    char *plain = train_on(text, &size), *blank = train_on(more, &other);
    assert_int_equal(size, other);
    assert_memory_equal(plain, blank, size);
    mc_free(plain);
    mc_free(blank);
    mc_free(text);
    free(more);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_unigram),      TEST(test_bytes),       TEST(test_bpe),
        TEST(test_equal_scores), TEST(test_real_model),  TEST(test_refusals),
        TEST(test_no_text),      TEST(test_blank_lines), TEST(test_no_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void test_without(void **state)
{
    (void)state;
    const char *corpus = write_corpus();
    model_settings settings = plain_settings;
    settings.type = 2;
    write_model(small_pieces, PIECES, &settings);
    expect_failure(MC_ERR_UNSUPPORTED, "MC_ENABLE_SENTENCEPIECE");
    assert_int_equal(mc_tokenizer_train(ctx, &corpus, 1, folder.path, NULL), MC_ERR_UNSUPPORTED);
    assert_non_null(strstr(mc_error_message(ctx), "MC_ENABLE_SENTENCEPIECE"));
    mc_clear_error(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
