/* GGUF files of encoders, and what such a file has beside weights: its tokenizer, a pooling, a chat
 * template; memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "models/files/convert.h"
#include "models/gguf/gguf_internal.h"
#include "models/modernbert/modernbert.h"
#include "models/texts/embed.h"
#include "tests/faults.h"
#include "tests/models/gpt2_test.h"
#include "tests/temp_folder.h"

enum { WORDS = 12, DIMENSION = 8 };

static const char *const texts[] = {"a b", "ab [MASK]c", " [MASK] b  a", "", "e\xcc\x81"};
enum { TEXTS = sizeof texts / sizeof *texts };

/* ---- folders --------------------------------------------------------------------------------- */

static void write_into(const temp_folder *f, const char *folder, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_text(temp_path(f, path), text);
}

static mc_model *new_modernbert(mc_context *ctx, bool labels)
{
    mc_modernbert_config c = mc_modernbert_config_default();
    c.vocab_size = 16;
    c.dim = DIMENSION;
    c.dim_ff = 10;
    c.layers = 4;
    c.heads = 2;
    c.positions = 32;
    c.window = 4;
    c.pad_token_id = 0;
    c.init_std = 0.5f;
    c.local_theta = 300;
    mc_model_heads heads = {.lm = !labels, .labels = labels ? 2 : 0};
    return mc_modernbert_new(ctx, &c, &heads, NULL);
}

/* As ModernBERT's: the mask takes in the space before it. */
static const char modern_json[] =
    "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
    "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, \"decoder\": "
    "{\"type\": \"ByteLevel\"}, \"added_tokens\": ["
    "{\"id\": 0, \"content\": \"[PAD]\", \"special\": true},"
    "{\"id\": 1, \"content\": \"[UNK]\", \"special\": true},"
    "{\"id\": 2, \"content\": \"[CLS]\", \"special\": true},"
    "{\"id\": 3, \"content\": \"[SEP]\", \"special\": true},"
    "{\"id\": 4, \"content\": \"[MASK]\", \"special\": true, \"lstrip\": true}],"
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
    "{\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
    "{\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}], \"pair\": [{\"SpecialToken\": "
    "{\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
    "{\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", "
    "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}], "
    "\"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [2], \"tokens\": [\"[CLS]\"]}, "
    "\"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [3], \"tokens\": [\"[SEP]\"]}}},"
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"[PAD]\": 0, \"[UNK]\": 1, \"[CLS]\": 2, "
    "\"[SEP]\": 3, \"[MASK]\": 4, \"a\": 5, \"b\": 6, \"c\": 7, \"\\u0120\": 8, \"ab\": 9, "
    "\"\\u0120b\": 10, \"\\u00c3\": 11, \"\\u00a9\": 12, \"\\u00c3\\u00a9\": 13}, \"merges\": "
    "[\"a b\", \"\\u0120 b\", \"\\u00c3 \\u00a9\"]}}";
static const char modern_config[] =
    "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"cls_token\": \"[CLS]\", \"sep_token\": "
    "\"[SEP]\", \"mask_token\": \"[MASK]\", \"pad_token\": \"[PAD]\", \"unk_token\": \"[UNK]\"}";
static const char modules[] =
    "[{\"idx\": 0, \"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"}, "
    "{\"idx\": 1, \"path\": \"1_Pooling\", \"type\": \"sentence_transformers.models.Pooling\"}]";

static void set_pooling(const temp_folder *f, const char *folder, const char *name)
{
    char text[128];
    snprintf(text, sizeof text, "{\"pooling_mode\": \"%s\"}", name);
    write_into(f, folder, "1_Pooling/config.json", text);
}

/* The folder "from" of a ModernBERT, with a pooling of [CLS]. */
static void save_modernbert(mc_context *ctx, const temp_folder *f)
{
    char below[MC_PATH_MAX];
    mc_model *m = new_modernbert(ctx, false);
    mc_model_save(m, temp_path(f, "from"));
    mc_model_free(m);
    write_into(f, "from", "tokenizer.json", modern_json);
    write_into(f, "from", "tokenizer_config.json", modern_config);
    write_into(f, "from", "modules.json", modules);
    snprintf(below, sizeof below, "%s/1_Pooling", temp_path(f, "from"));
    assert_int_equal(mc_make_folders(&ctx->error, below), MC_OK);
    set_pooling(f, "from", "cls");
    assert_good(ctx);
}

static void to_gguf(mc_context *ctx, const temp_folder *f, const char *from, const char *to)
{
    char folder[MC_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", temp_path(f, from));
    mc_model_convert(ctx, folder, temp_path(f, to), &(mc_convert_options){.gguf = "f32"});
}

static mc_tokenizer *open_tokenizer(mc_context *ctx, const temp_folder *f, const char *name)
{
    return mc_tokenizer_open(ctx, temp_path(f, name), NULL);
}

static void assert_same_tokens(mc_context *ctx, const temp_folder *f, const char *one,
                               const char *other)
{
    mc_tokenizer *toks[] = {open_tokenizer(ctx, f, one), open_tokenizer(ctx, f, other)};
    assert_good(ctx);
    for (int i = 0; i < TEXTS; i++)
        for (int pair = 0; pair < 2; pair++) {
            mc_encoding e[2] = {{0}};
            for (int k = 0; k < 2; k++)
                mc_tokenizer_encode(toks[k], texts[i], strlen(texts[i]), pair ? "b" : NULL, pair, 0,
                                    &e[k]);
            assert_good(ctx);
            if (e[0].count != e[1].count || memcmp(e[0].ids, e[1].ids, e[0].count * 4) != 0)
                fail_msg("\"%s\", %s: other tokens", texts[i], other);
            for (int k = 0; k < 2; k++) mc_encoding_release(&e[k]);
        }
    mc_tokenizer_free(toks[0]);
    mc_tokenizer_free(toks[1]);
}

/* Vectors of the texts. */
static mc_pooling embed(mc_context *ctx, const temp_folder *f, const char *name,
                        float out[TEXTS * DIMENSION])
{
    mc_text_span spans[TEXTS];
    for (int i = 0; i < TEXTS; i++) spans[i] = (mc_text_span){texts[i], strlen(texts[i])};
    mc_embedder *e = mc_embedder_open(ctx, temp_path(f, name), NULL);
    mc_embed_texts(e, spans, TEXTS, out);
    assert_good(ctx);
    mc_pooling pooling = mc_embedder_options(e).pooling;
    mc_embedder_free(e);
    return pooling;
}

/* ---- encoders -------------------------------------------------------------------------------- */

static void test_modernbert(void **state)
{
    (void)state;
    float first[TEXTS * DIMENSION], second[TEXTS * DIMENSION];
    temp_folder f = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 3, .log = ignore_line});
    save_modernbert(ctx, &f);
    to_gguf(ctx, &f, "from", "x.gguf");
    assert_good(ctx);
    assert_int_equal(embed(ctx, &f, "from", first), MC_POOLING_CLS);
    assert_int_equal(embed(ctx, &f, "x.gguf", second), MC_POOLING_CLS);
    assert_memory_equal(first, second, sizeof first);
    assert_same_tokens(ctx, &f, "from", "x.gguf");
    mc_model_convert(ctx, temp_path(&f, "x.gguf"), temp_path(&f, "again"), NULL);
    assert_int_equal(embed(ctx, &f, "again", second), MC_POOLING_CLS);
    assert_memory_equal(first, second, sizeof first);
    assert_same_tokens(ctx, &f, "from", "again");
    mc_model_free(new_modernbert(ctx, false));
    mc_gguf_write_model(new_modernbert(ctx, true), NULL, temp_path(&f, "y.gguf"), "F32", 0);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "a head that classifies");
    mc_context_free(ctx);
    temp_folder_free(&f);
}

static void test_poolings(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        mc_pooling pooling; /* 0: it has no form */
    } cases[] = {{"mean", MC_POOLING_MEAN}, {"cls", MC_POOLING_CLS}, {"max", 0}};
    mc_pooling found;
    temp_folder f = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = ignore_line});
    save_modernbert(ctx, &f);
    for (int i = 0; i < 3; i++) {
        const char *file = cases[i].name;
        set_pooling(&f, "from", file);
        to_gguf(ctx, &f, "from", file);
        if (!cases[i].pooling) {
            assert_error(ctx, MC_ERR_UNSUPPORTED, "has no GGUF form, expected mean or cls");
            continue;
        }
        mc_gguf_pooling_of(&ctx->error, temp_path(&f, file), &found);
        assert_good(ctx);
        assert_int_equal(found, cases[i].pooling);
    }
    mc_context_free(ctx);
    temp_folder_free(&f);
}

/* Values of the file that are others than those that are written. */
typedef struct change {
    const char *key, *expected;
    uint32_t from, to;
    bool text; /* the first four letters are */
} change;

static void change_value(const uint8_t *file, size_t size, const change *c, const char *path)
{
    uint8_t *whole = malloc(size);
    assert_non_null(whole);
    memcpy(whole, file, size);
    uint8_t *at = memmem(whole, size, c->key, strlen(c->key));
    assert_non_null(at);
    at += strlen(c->key) + 4;
    if (c->text) at += 8; /* its length */
    assert_memory_equal(at, &c->from, 4);
    memcpy(at, &c->to, 4);
    write_bytes(path, whole, size);
    free(whole);
}

static void test_bad_values(void **state)
{
    (void)state;
    static const change changes[] = {
        {"modern-bert.pooling_type", "\"modern-bert.pooling_type\": 3 is not supported", 2, 3},
        {"modern-bert.hidden_activation", "\"gelx\" is not supported, expected gelu or silu",
         0x756c6567, 0x786c6567, .text = true},
        {"modern-bert.attention.sliding_window_pattern", "global_attn_every_n_layers", 3, 0},
        {"modern-bert.attention.head_count", "num_attention_heads", 2, 3},
        {"modern-bert.attention.sliding_window", NULL, 4, 0}};
    temp_folder f = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = ignore_line});
    size_t size = 0;
    save_modernbert(ctx, &f);
    to_gguf(ctx, &f, "from", "x.gguf");
    char *whole = mc_file_read(&ctx->error, temp_path(&f, "x.gguf"), 1 << 24, &size);
    assert_good(ctx);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        change_value((const uint8_t *)whole, size, &changes[i], temp_path(&f, "bad.gguf"));
        if (!changes[i].expected) { /* all layers see the whole text then */
            mc_model *m = mc_model_from_pretrained(ctx, temp_path(&f, "bad.gguf"), NULL);
            assert_good(ctx);
            assert_int_equal(mc_modernbert_get_config(m).global_every, 1);
            continue;
        }
        assert_null(mc_embedder_open(ctx, temp_path(&f, "bad.gguf"), NULL));
        if (!strstr(mc_error_message(ctx), changes[i].expected) ||
            !strstr(mc_error_message(ctx), "bad.gguf"))
            fail_msg("expected \"%s\", found \"%s\"", changes[i].expected, mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    mc_free(whole);
    mc_context_free(ctx);
    temp_folder_free(&f);
}

/* ---- tokenizers ------------------------------------------------------------------------------ */

static const char chat[] = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}";

static void save_gpt2(mc_context *ctx, const temp_folder *f)
{
    char config[256];
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, MC_RECOMPUTE_NONE);
    mc_model_save(gpt2, temp_path(f, "gpt2"));
    mc_model_free(gpt2);
    write_into(f, "gpt2", "vocab.json",
               "{\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"\\u0120\": 4, \"<|endoftext|>\": 5}");
    write_into(f, "gpt2", "merges.txt", "#version: 0.2\na b\n");
    snprintf(config, sizeof config,
             "{\"tokenizer_class\": \"GPT2Tokenizer\", \"chat_template\": \"%s\"}", chat);
    write_into(f, "gpt2", "tokenizer_config.json", config);
    assert_good(ctx);
}

static void assert_template(mc_context *ctx, const temp_folder *f, const char *name)
{
    const char *path;
    mc_tokenizer *tok = open_tokenizer(ctx, f, name);
    assert_good(ctx);
    assert_string_equal(mc_tokenizer_chat_template(tok, &path), chat);
    mc_tokenizer_free(tok);
}

static void test_inside(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = ignore_line});
    save_gpt2(ctx, &f);
    to_gguf(ctx, &f, "gpt2", "x.gguf");
    assert_template(ctx, &f, "x.gguf");
    assert_same_tokens(ctx, &f, "gpt2", "x.gguf");
    mc_model_convert(ctx, temp_path(&f, "x.gguf"), temp_path(&f, "again"), NULL);
    assert_template(ctx, &f, "again");
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, MC_RECOMPUTE_NONE);
    mc_gguf_write_model(gpt2, NULL, temp_path(&f, "none.gguf"), "F32", 0);
    assert_good(ctx);
    assert_null(open_tokenizer(ctx, &f, "none.gguf"));
    assert_non_null(strstr(mc_error_message(ctx), "none.gguf: no key \"tokenizer.ggml.model\""));
    assert_error(ctx, MC_ERR_NOT_FOUND, "the file has no tokenizer");
    assert_null(mc_tokenizer_open(ctx, temp_path(&f, "x.gguf"),
                                  &(mc_tokenizer_options){.lowercase = MC_LOWERCASE_YES}));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "does not lowercase");
    mc_context_free(ctx);
    temp_folder_free(&f);
}

/* Every allocation fails in turn, of a tokenizer.json's form and of two files'. */
static void test_memory(void **state)
{
    (void)state;
    temp_folder f = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = ignore_line});
    save_gpt2(ctx, &f);
    save_modernbert(ctx, &f);
    to_gguf(ctx, &f, "gpt2", "gpt2.gguf");
    to_gguf(ctx, &f, "from", "from.gguf");
    assert_good(ctx);
    for (int i = 0; i < 2 && is_available(HOST); i++) {
        const char *path = temp_path(&f, i ? "from.gguf" : "gpt2.gguf");
        for (long nth = 1;; nth++) {
            fail_at(HOST, nth, false);
            mc_tokenizer *tok = mc_tokenizer_open(ctx, path, NULL);
            stop_failing(HOST);
            mc_tokenizer_free(tok);
            if (!was_clean(ctx, path, nth)) break;
            assert_null(tok);
        }
    }
    mc_context_free(ctx);
    temp_folder_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modernbert), cmocka_unit_test(test_poolings),
        cmocka_unit_test(test_bad_values), cmocka_unit_test(test_inside),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
