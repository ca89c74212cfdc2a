/* Vectors of texts: against forward passes one text at a time and pooling by hand; what
 * sentence-transformers folders say; bad input; memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/base/memory_internal.h"
#include "models/texts/embed_internal.h"
#include "models/texts/text_rows_internal.h"
#include "tests/device_choice.h"
#include "tests/faults.h"
#include "tests/temp_folder.h"

enum { VOCAB = 310, WIDE = 16, LONGEST = 64, TEXTS = 700 };

static const char quickstart[] = MC_SOURCE_DIR "/datasets/quickstart";

/* A small BERT, and texts of one to a hundred words. */
typedef struct fixture {
    mc_context *ctx;
    mc_model *model;
    mc_tokenizer *tok;
    char *words[TEXTS];
    mc_text_span texts[TEXTS];
} fixture;

static void open_fixture(fixture *f)
{
    mc_bert_config config = mc_bert_config_default();
    config.vocab_size = VOCAB;
    config.dim = WIDE;
    config.dim_ff = 32;
    config.heads = 2;
    config.layers = 1;
    config.positions = LONGEST;
    *f = (fixture){.ctx = test_context(7)};
    f->model = mc_bert_new(f->ctx, &config, &(mc_model_heads){.pooler = true}, NULL);
    f->tok = mc_tokenizer_from_pretrained(f->ctx, quickstart);
    if (mc_failed(f->ctx)) fail_msg("%s", mc_error_message(f->ctx));
    uint32_t state = 1;
    for (int i = 0; i < TEXTS; i++) {
        int words = 1 + i * 37 % 100;
        char *at = f->words[i] = malloc(24 * (size_t)words + 1);
        assert_non_null(at);
        for (int k = 0; k < words;) {
            state = state * 1664525 + 1013904223;
            const char *word = mc_tokenizer_id_to_token(f->tok, (int32_t)((state >> 8) % VOCAB));
            if (word && *word >= 'a' && *word <= 'z')
                at += sprintf(at, "%s%s", k++ ? " " : "", word);
        }
        f->texts[i] = (mc_text_span){f->words[i], strlen(f->words[i])};
    }
}

static void close_fixture(fixture *f)
{
    for (int i = 0; i < TEXTS; i++) free(f->words[i]);
    mc_context_free(f->ctx);
}

/* The vector of one text, its tokens pooled in f64. */
static void expect(fixture *f, const char *text, const mc_embed_options *o, double out[WIDE])
{
    static float hidden[LONGEST * WIDE], pooled[WIDE];
    mc_encoding e = {0};
    assert_int_equal(mc_tokenizer_encode(f->tok, text, strlen(text), NULL, 0, LONGEST, &e), MC_OK);
    int n = (int)e.count;
    mc_tape *t = mc_tape_begin_eval(f->ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, n), e.ids, false);
    mc_model_output y = mc_model_forward(t, f->model, &(mc_model_input){.ids = ids});
    mc_tensor_read_f32(f->ctx, y.last_hidden, hidden, n * WIDE);
    mc_tensor_read_f32(f->ctx, y.pooled, pooled, WIDE);
    mc_tape_end(t);
    double length = 0;
    for (int c = 0; c < WIDE; c++) {
        out[c] = o->pooling == MC_POOLING_POOLER ? (double)pooled[c] : (double)hidden[c];
        for (int r = 1; r < n && o->pooling == MC_POOLING_MEAN; r++)
            out[c] += (double)hidden[r * WIDE + c];
        for (int r = 1; r < n && o->pooling == MC_POOLING_MAX; r++)
            out[c] = fmax(out[c], (double)hidden[r * WIDE + c]);
        if (o->pooling == MC_POOLING_MEAN) out[c] /= n;
        length += out[c] * out[c];
    }
    for (int c = 0; c < WIDE && o->normalize == MC_NORMALIZE_YES; c++) out[c] /= sqrt(length);
    mc_encoding_release(&e);
}

/* f32 sums in another order, of numbers about 1. */
static const double TOLERANCE = 2e-5;

/* What is expected of the first texts. */
static double expected[TEXTS][WIDE];

static void expect_all(fixture *f, const mc_embed_options *o, const char *prompt, int count)
{
    char text[4096];
    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s%s", prompt, f->words[i]);
        expect(f, text, o, expected[i]);
    }
}

static void check_rows(const float *rows, int count)
{
    for (int i = 0; i < count; i++)
        for (int c = 0; c < WIDE; c++)
            if (!(fabs((double)rows[i * WIDE + c] - expected[i][c]) <= TOLERANCE))
                fail_msg("text %d, column %d: %g, expected %g", i, c, (double)rows[i * WIDE + c],
                         expected[i][c]);
}

static void test_poolings(void **state)
{
    (void)state;
    static float rows[TEXTS * WIDE];
    static const mc_embed_options options[] = {
        {.pooling = MC_POOLING_MEAN, .normalize = MC_NORMALIZE_NO},
        {.pooling = MC_POOLING_MEAN, .normalize = MC_NORMALIZE_YES},
        {.pooling = MC_POOLING_CLS, .normalize = MC_NORMALIZE_YES, .batch_tokens = 1},
        {.pooling = MC_POOLING_MAX, .normalize = MC_NORMALIZE_NO},
        {.pooling = MC_POOLING_POOLER, .normalize = MC_NORMALIZE_NO, .threads = 3}};
    fixture f;
    open_fixture(&f);
    for (int i = 0; i < 5; i++) {
        mc_embedder *e = mc_embedder_new(f.model, f.tok, &options[i]);
        assert_int_equal(mc_embedder_dim(e), WIDE);
        assert_int_equal(mc_embed_texts(e, f.texts, 120, rows), MC_OK);
        expect_all(&f, &options[i], "", 120);
        check_rows(rows, 120);
        assert_int_equal(mc_embed_texts(e, f.texts, 0, NULL), MC_OK);
        mc_embedder_free(e);
    }
    mc_embed_options prompted = {
        .pooling = MC_POOLING_MEAN, .normalize = MC_NORMALIZE_NO, .prompt = "the "};
    mc_embedder *e = mc_embedder_new(f.model, f.tok, &prompted);
    assert_string_equal(mc_embedder_options(e).prompt, "the ");
    assert_int_equal(mc_embed_texts(e, f.texts, 20, rows), MC_OK);
    expect_all(&f, &prompted, "the ", 20);
    check_rows(rows, 20);
    close_fixture(&f);
}

static mc_tensor *mean_of(mc_tape *t, mc_model *model, const mc_model_output *out, void *user)
{
    (void)model, (void)user;
    return mc_mean_pool(t, out->last_hidden);
}

/* All of them, over several windows and threads, in batches of the shapes that a GPU records and in
 * those of a CPU. */
static void test_shapes(void **state)
{
    (void)state;
    static float rows[TEXTS * WIDE];
    static const int64_t tokens[] = {0, 300};
    mc_embed_options mean = {.pooling = MC_POOLING_MEAN, .normalize = MC_NORMALIZE_NO};
    fixture f;
    open_fixture(&f);
    expect_all(&f, &mean, "", TEXTS);
    for (int i = 0; i < 4; i++) {
        mc_text_rows *r =
            mc_text_rows_new(f.ctx, &(mc_text_rows_options){.model = f.model,
                                                            .tok = f.tok,
                                                            .width = WIDE,
                                                            .head = mean_of,
                                                            .threads = i % 3,
                                                            .batch_tokens = tokens[i / 2],
                                                            .fixed_shapes = i % 2});
        assert_int_equal(mc_text_rows_max_length(r), LONGEST);
        memset(rows, 0, sizeof rows);
        if (mc_text_rows_run(r, f.texts, NULL, TEXTS, rows))
            fail_msg("%s", mc_error_message(f.ctx));
        check_rows(rows, TEXTS);
        mc_text_rows_free(r);
    }
    close_fixture(&f);
}

static void must_fail(mc_context *ctx, mc_status status, const char *message)
{
    if (mc_error_status(ctx) != status || !strstr(mc_error_message(ctx), message))
        fail_msg("\"%s\", expected \"%s\"", mc_error_message(ctx), message);
    mc_clear_error(ctx);
}

/* ---- folders --------------------------------------------------------------------------------- */

static temp_folder folder;

static void put(const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path(&folder, name));
    char *slash = strrchr(path, '/');
    *slash = '\0';
    mkdir(path, 0777);
    write_text(temp_path(&folder, name), text);
}

static const char modules[] = "[{\"idx\": 0, \"name\": \"0\", \"path\": \"\", \"type\": "
                              "\"sentence_transformers.models.Transformer\"},"
                              " {\"idx\": 1, \"name\": \"1\", \"path\": \"1_Pooling\", \"type\": "
                              "\"sentence_transformers.models.Pooling\"},"
                              " {\"idx\": 2, \"name\": \"2\", \"path\": \"2_Normalize\", \"type\": "
                              "\"sentence_transformers.models.Normalize\"}]";

static void test_sentence_folder(void **state)
{
    (void)state;
    static float rows[40 * WIDE];
    fixture f;
    open_fixture(&f);
    folder = temp_folder_new();
    assert_int_equal(mc_model_save(f.model, folder.path), MC_OK);
    assert_int_equal(mc_tokenizer_save(f.tok, folder.path), MC_OK);
    put("modules.json", modules);
    put("1_Pooling/config.json", "{\"word_embedding_dimension\": 16, "
                                 "\"pooling_mode_cls_token\": true, "
                                 "\"pooling_mode_mean_tokens\": false}");
    put("sentence_bert_config.json", "{\"max_seq_length\": 24, \"do_lower_case\": false}");
    put("config_sentence_transformers.json",
        "{\"prompts\": {\"query\": \"the \", \"none\": \"\"}, \"default_prompt_name\": \"query\"}");
    mc_embedder *e = mc_embedder_open(f.ctx, folder.path, NULL);
    mc_embed_options o = mc_embedder_options(e);
    assert_int_equal(o.pooling, MC_POOLING_CLS);
    assert_int_equal(o.normalize, MC_NORMALIZE_YES);
    assert_int_equal(o.max_length, 24);
    assert_string_equal(o.prompt, "the ");
    mc_embedder_free(e);
    mc_embed_options whole = {.max_length = LONGEST};
    e = mc_embedder_open(f.ctx, folder.path, &whole);
    assert_int_equal(mc_embed_texts(e, f.texts, 40, rows), MC_OK);
    expect_all(&f, &o, "the ", 40);
    check_rows(rows, 40);
    mc_embedder_free(e);
    e = mc_embedder_open(f.ctx, folder.path,
                         &(mc_embed_options){.prompt_name = "none", .pooling = MC_POOLING_MEAN});
    assert_null(mc_embedder_options(e).prompt);
    assert_int_equal(mc_embedder_options(e).pooling, MC_POOLING_MEAN);
    mc_embedder_free(e);
    put("1_Pooling/config.json", "{\"embedding_dimension\": 16, \"pooling_mode\": \"mean\"}");
    e = mc_embedder_open(f.ctx, folder.path, &(mc_embed_options){.prompt = ""});
    assert_null(mc_embedder_options(e).prompt);
    assert_int_equal(mc_embedder_options(e).pooling, MC_POOLING_MEAN);
    mc_embedder_free(e);
    unlink(temp_path(&folder, "modules.json"));
    unlink(temp_path(&folder, "sentence_bert_config.json"));
    e = mc_embedder_open(f.ctx, folder.path, NULL);
    assert_int_equal(mc_embedder_options(e).pooling, MC_POOLING_MEAN);
    assert_int_equal(mc_embedder_options(e).normalize, MC_NORMALIZE_NO);
    assert_int_equal(mc_embedder_options(e).max_length, LONGEST);
    if (mc_failed(f.ctx)) fail_msg("%s", mc_error_message(f.ctx));
    temp_folder_free(&folder);
    close_fixture(&f);
}

static double length_of(const float *row, int64_t dim)
{
    double sum = 0;
    for (int64_t i = 0; i < dim; i++) sum += (double)row[i] * (double)row[i];
    return sqrt(sum);
}

/* A folder's Normalize comes before its cut; the options' comes after it. */
static void test_truncated(void **state)
{
    (void)state;
    static float whole[40 * WIDE], cut[40 * WIDE];
    enum { KEPT = 5 };
    fixture f;
    open_fixture(&f);
    folder = temp_folder_new();
    assert_int_equal(mc_model_save(f.model, folder.path), MC_OK);
    assert_int_equal(mc_tokenizer_save(f.tok, folder.path), MC_OK);
    put("modules.json", modules);
    put("1_Pooling/config.json", "{\"pooling_mode\": \"mean\"}");
    put("sentence_roberta_config.json", "{\"max_seq_length\": 24}");
    mc_embedder *e = mc_embedder_open(f.ctx, folder.path, NULL);
    assert_int_equal(mc_embedder_options(e).max_length, 24);
    assert_int_equal(mc_embed_texts(e, f.texts, 40, whole), MC_OK);
    put("config_sentence_transformers.json", "{\"truncate_dim\": 5}");
    e = mc_embedder_open(f.ctx, folder.path, NULL);
    assert_int_equal(mc_embedder_dim(e), KEPT);
    assert_int_equal(mc_embed_texts(e, f.texts, 40, cut), MC_OK);
    for (int i = 0; i < 40; i++)
        for (int k = 0; k < KEPT; k++)
            assert_float_equal(cut[i * KEPT + k], whole[i * WIDE + k], 1e-5);
    e = mc_embedder_open(f.ctx, folder.path, &(mc_embed_options){.normalize = MC_NORMALIZE_YES});
    assert_int_equal(mc_embed_texts(e, f.texts, 40, cut), MC_OK);
    for (int i = 0; i < 40; i++) {
        double length = length_of(whole + i * WIDE, KEPT);
        for (int k = 0; k < KEPT; k++)
            assert_float_equal(cut[i * KEPT + k], (double)whole[i * WIDE + k] / length, 1e-5);
    }
    e = mc_embedder_open(f.ctx, folder.path, &(mc_embed_options){.truncate_dim = WIDE});
    assert_int_equal(mc_embedder_dim(e), WIDE);
    char message[96];
    snprintf(message, sizeof message, "truncate_dim %d, the model's vectors have %d numbers",
             WIDE + 1, WIDE);
    assert_null(
        mc_embedder_open(f.ctx, folder.path, &(mc_embed_options){.truncate_dim = WIDE + 1}));
    must_fail(f.ctx, MC_ERR_ARGUMENT, message);
    assert_null(mc_embedder_new(f.model, f.tok, &(mc_embed_options){.truncate_dim = WIDE + 1}));
    must_fail(f.ctx, MC_ERR_ARGUMENT, message);
    assert_null(mc_embedder_open(f.ctx, folder.path, &(mc_embed_options){.truncate_dim = -1}));
    must_fail(f.ctx, MC_ERR_ARGUMENT, "truncate_dim -1");
    put("config_sentence_transformers.json", "{\"truncate_dim\": 1000}");
    e = mc_embedder_open(f.ctx, folder.path, NULL); /* as in sentence-transformers */
    assert_int_equal(mc_embedder_dim(e), WIDE);
    temp_folder_free(&folder);
    close_fixture(&f);
}

/* A file of the folder with that text, and what the error says. */
static void check_refused(const char *name, const char *text, const char *prompt_name,
                          mc_status status, const char *message)
{
    mc_context *ctx = mc_init_distributed(NULL);
    mc_sentence_config c;
    folder = temp_folder_new();
    put("modules.json", modules);
    put("1_Pooling/config.json", "{\"pooling_mode\": [\"mean\"]}");
    put(name, text);
    mc_sentence_config_read(ctx, folder.path, prompt_name, &c);
    const char *found = mc_error_message(ctx);
    if (mc_error_status(ctx) != status || !strstr(found, message))
        fail_msg("%s: \"%s\"", name, found);
    assert_non_null(strstr(found, name));
    mc_sentence_config_release(&c);
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

static void test_refused_folders(void **state)
{
    (void)state;
    check_refused("modules.json", "{}", NULL, MC_ERR_FORMAT, "expected a list of modules");
    check_refused("modules.json", "[3]", NULL, MC_ERR_FORMAT, "module 0: expected an object");
    check_refused("modules.json",
                  "[{\"path\": \"\", \"type\": \"a.Transformer\"}, {\"path\": \"1_Pooling\", "
                  "\"type\": \"a.Pooling\"}, {\"path\": \"2_Dense\", \"type\": \"a.Dense\"}]",
                  NULL, MC_ERR_UNSUPPORTED, "module 2, \"a.Dense\", is not supported");
    check_refused("modules.json", "[{\"path\": \"\", \"type\": \"a.Transformer\"}]", NULL,
                  MC_ERR_UNSUPPORTED, "no Pooling");
    /* a folder that is not there is no identifier of the hub's, "FOLDER/0_Transformer" */
    check_refused("modules.json", "[{\"path\": \"0_Transformer\", \"type\": \"a.Transformer\"}]",
                  NULL, MC_ERR_NOT_FOUND, "module 0: no folder \"0_Transformer\" beside it");
    check_refused("modules.json", "[{\"path\": \"../other\", \"type\": \"a.Transformer\"}]", NULL,
                  MC_ERR_FORMAT, "module 0: path \"../other\", expected a folder in this one");
    check_refused("modules.json",
                  "[{\"path\": \"\", \"type\": \"a.Transformer\"}, "
                  "{\"path\": \"/tmp\", \"type\": \"a.Pooling\"}]",
                  NULL, MC_ERR_FORMAT, "module 1: path \"/tmp\", expected a folder in this one");
    check_refused("1_Pooling/config.json", "{\"pooling_mode\": \"lasttoken\"}", NULL,
                  MC_ERR_UNSUPPORTED, "key \"pooling_mode\": lasttoken is not supported");
    check_refused("1_Pooling/config.json", "{\"pooling_mode\": \"median\"}", NULL,
                  MC_ERR_UNSUPPORTED, "key \"pooling_mode\": median is not supported");
    check_refused("1_Pooling/config.json",
                  "{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": true}", NULL,
                  MC_ERR_UNSUPPORTED, "key \"pooling_mode_mean_tokens\": a second pooling");
    check_refused("1_Pooling/config.json", "{\"pooling_mode_cls_token\": 3}", NULL, MC_ERR_FORMAT,
                  "key \"pooling_mode_cls_token\": expected");
    check_refused("sentence_bert_config.json", "{\"max_seq_length\": \"long\"}", NULL,
                  MC_ERR_FORMAT, "key \"max_seq_length\": expected");
    check_refused("sentence_bert_config.json", "{\"do_lower_case\": true}", NULL,
                  MC_ERR_UNSUPPORTED, "key \"do_lower_case\": true is not supported");
    check_refused("sentence_xlnet_config.json", "{\"tokenizer_args\": {\"a\": 1}}", NULL,
                  MC_ERR_UNSUPPORTED, "key \"tokenizer_args\": {\"a\":1} is not supported");
    check_refused("config_sentence_transformers.json", "{\"truncate_dim\": 0}", NULL, MC_ERR_FORMAT,
                  "key \"truncate_dim\": expected");
    check_refused("config_sentence_transformers.json", "{\"model_type\": \"CrossEncoder\"}", NULL,
                  MC_ERR_UNSUPPORTED, "key \"model_type\": \"CrossEncoder\" is not supported");
    check_refused("config_sentence_transformers.json",
                  "{\"prompts\": {\"query\": \"q: \", \"passage\": \"p: \"}}", "doc",
                  MC_ERR_NOT_FOUND, "no prompt is called \"doc\": expected one of query, passage");
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_bad_input(void **state)
{
    (void)state;
    static float rows[200 * WIDE];
    fixture f;
    open_fixture(&f);
    assert_null(mc_embedder_new(f.model, f.tok, &(mc_embed_options){.max_length = LONGEST + 1}));
    must_fail(f.ctx, MC_ERR_ARGUMENT, "the model bert has 64 positions");
    assert_null(
        mc_embedder_new(f.model, f.tok, &(mc_embed_options){.prompt = "a", .prompt_name = "b"}));
    must_fail(f.ctx, MC_ERR_ARGUMENT, "a prompt or its name, not both");
    assert_null(mc_embedder_new(f.model, f.tok, &(mc_embed_options){.pooling = 17}));
    must_fail(f.ctx, MC_ERR_ARGUMENT, "pooling 17");
    mc_embedder *e = mc_embedder_new(f.model, f.tok, NULL);
    assert_int_equal(mc_embed_texts(e, f.texts, 3, NULL), MC_ERR_ARGUMENT);
    must_fail(f.ctx, MC_ERR_ARGUMENT, "3 texts");
    f.texts[150].data = NULL;
    assert_int_equal(mc_embed_texts(e, f.texts, 200, rows), MC_ERR_ARGUMENT);
    must_fail(f.ctx, MC_ERR_ARGUMENT, "text 150 of 200: it is NULL");
    assert_int_equal(mc_embed_texts(e, f.texts, 100, rows), MC_OK); /* still usable */
    assert_int_equal(mc_embed_texts(NULL, f.texts, 100, rows), MC_ERR_ARGUMENT);
    assert_null(mc_embedder_open(f.ctx, MC_SOURCE_DIR, NULL));
    assert_true(mc_failed(f.ctx));
    close_fixture(&f);
}

/* Each allocation fails in turn, of a call that tokenizes by itself and of one with threads. */
static void test_faults(void **state)
{
    (void)state;
    static float rows[80 * WIDE];
    fixture f;
    open_fixture(&f);
    if (!f.ctx->device->is_host) { /* thousands of passes: the CPU's show it as well */
        close_fixture(&f);
        skip();
    }
    hook_device(f.ctx);
    for (int s = 0; s < SOURCES; s++) {
        if (!is_available((source)s)) continue;
        bool failed = true;
        for (long nth = 1; failed; nth += nth < 30 ? 1 : 7) {
            fail_at((source)s, nth, false);
            mc_embedder *e = mc_embedder_new(f.model, f.tok, &(mc_embed_options){.prompt = "a"});
            mc_embed_texts(e, f.texts, 80, rows);
            stop_failing((source)s);
            failed = was_clean(f.ctx, "vectors of texts", nth);
            mc_embedder_free(e);
        }
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poolings),        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_sentence_folder), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_refused_folders), cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
