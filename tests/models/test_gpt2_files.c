/* GPT-2's files: what is written and read again, in both programs' names, and every complaint about
 * files that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/file_internal.h"
#include "tests/models/gpt2_test.h"

static char log_text[8192];

static void keep_log(void *user, mc_log_level level, const char *line)
{
    (void)user, (void)level;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
}

static mc_context *logging_context(uint64_t seed)
{
    log_text[0] = '\0';
    return mc_init_distributed(&(mc_init_options){.seed = seed, .log = keep_log});
}

/* ---- saving and loading ---------------------------------------------------------------------- */

static void logits(mc_context *ctx, mc_model *gpt2, float out[BATCH * WIDTH * VOCABULARY])
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = make_batch(t, MASK);
    mc_tensor *x = mc_model_logits(t, gpt2, mc_model_forward(t, gpt2, &in).last_hidden);
    mc_tensor_read_f32(ctx, x, out, BATCH * WIDTH * VOCABULARY);
    assert_good(ctx);
    mc_tape_end(t);
}

static void assert_same_logits(mc_context *a, mc_model *of_a, mc_context *b, mc_model *of_b)
{
    static float first[BATCH * WIDTH * VOCABULARY], second[BATCH * WIDTH * VOCABULARY];
    logits(a, of_a, first);
    logits(b, of_b, second);
    assert_memory_equal(first, second, sizeof first);
}

static bool same_config(const mc_gpt2_config *a, const mc_gpt2_config *b)
{
    return a->vocab_size == b->vocab_size && a->dim == b->dim && a->dim_ff == b->dim_ff &&
           a->layers == b->layers && a->heads == b->heads && a->positions == b->positions &&
           a->activation == b->activation && a->eps == b->eps && a->dropout == b->dropout &&
           a->embedding_dropout == b->embedding_dropout &&
           a->attention_dropout == b->attention_dropout && a->init_std == b->init_std &&
           a->embedding_std == b->embedding_std && a->ffn_std == b->ffn_std &&
           a->head_dim == b->head_dim && a->tied == b->tied &&
           a->scale_attention == b->scale_attention && a->scale_by_layer == b->scale_by_layer &&
           a->bos_token_id == b->bos_token_id && a->eos_token_id == b->eos_token_id;
}

static void test_save_and_load(void **state)
{
    (void)state;
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++)
        for (int variant = 0; variant < 2; variant++) {
            temp_folder folder = temp_folder_new();
            mc_context *a = mc_init_distributed(&(mc_init_options){.seed = 1}),
                       *b = logging_context(99);
            mc_gpt2_config config = small_config();
            config.tied = !variant;
            config.scale_by_layer = variant;
            config.dim_ff = variant ? 40 : 64;
            config.activation = variant ? MC_ACTIVATION_RELU : MC_ACTIVATION_GELU_NEW;
            config.eps = 3e-7f;
            config.embedding_dropout = 0;
            config.bos_token_id = -1;
            mc_load_options options = {.dtype = dtype}, again = {.saved_dtype = true};
            mc_model *saved = mc_gpt2_new(a, &config, NULL, &options);
            assert_int_equal(mc_model_save(saved, temp_path(&folder, "new/model")), MC_OK);
            assert_int_equal(mc_model_save(saved, temp_path(&folder, "new/model")), MC_OK);
            mc_model *loaded = mc_gpt2_from_pretrained(b, temp_path(&folder, "new/model"), &again);
            assert_good(b);
            assert_string_equal(log_text, "");
            assert_int_equal(mc_model_module(loaded)->root->dtype, dtype);
            assert_same_logits(a, saved, b, loaded);
            mc_gpt2_config read = mc_gpt2_get_config(loaded);
            assert_true(same_config(&read, &config));
            mc_context_free(a);
            mc_context_free(b);
            temp_folder_free(&folder);
        }
}

/* Tensors of the file have Hugging Face's names and shapes, and no padding. */
static void test_file_contents(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    assert_int_equal(mc_model_save(gpt2, folder.path), MC_OK);
    mc_tensor_file *file = mc_tensor_file_open(ctx, folder.path, NULL);
    assert_int_equal(mc_tensor_file_count(file), 2 + 3 * 12 + 2);
    const mc_tensor_entry *e = mc_tensor_file_find(file, "transformer.wte.weight");
    assert_true(e && e->ndim == 2 && e->shape[0] == VOCABULARY && e->shape[1] == DIM);
    e = mc_tensor_file_find(file, "transformer.h.1.attn.c_attn.weight");
    assert_true(e && e->ndim == 2 && e->shape[0] == DIM && e->shape[1] == 3 * DIM);
    float values[DIM * 3 * DIM], k[DIM * DIM];
    mc_tensor_file_read_f32(file, e, 0, e->count, values);
    mc_parameter_read(
        mc_module_find_parameter(mc_model_module(gpt2),
                                 "encoder.layers.1.self_att.self_attention.project_k.weight"),
        k);
    for (int o = 0; o < DIM; o++)
        for (int i = 0; i < DIM; i++) assert_true(values[i * 3 * DIM + DIM + o] == k[o * DIM + i]);
    e = mc_tensor_file_find(file, "transformer.h.2.attn.c_attn.bias");
    assert_true(e && e->ndim == 1 && e->shape[0] == 3 * DIM);
    e = mc_tensor_file_find(file, "transformer.h.0.mlp.c_proj.weight");
    assert_true(e && e->shape[0] == 40 && e->shape[1] == DIM);
    assert_good(ctx);
    temp_folder_free(&folder);
}

/* ---- other files ----------------------------------------------------------------------------- */

/* What a changed copy of a weight file has different. */
typedef struct edit {
    const char *drop;         /* tensors whose name holds this are left out */
    const char *strip;        /* taken from the beginning of names */
    const char *flat;         /* this tensor becomes one-dimensional */
    const char *not_a_number; /* this tensor gets a NaN */
    const char *spare;        /* a tensor of two numbers is added */
    float head;               /* lm_head.weight is added: so many times the word embedding */
} edit;

static void edit_weights(const char *from, const char *to, const edit *e)
{
    enum { MOST = 64 };
    static mc_safetensors_spec specs[MOST + 1];
    const mc_tensor_entry *entries[MOST];
    const char *added = e->head != 0 ? "lm_head.weight" : e->spare;
    size_t count = 0;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tensor_file *in = mc_tensor_file_open(ctx, from, NULL);
    for (size_t i = 0; i < mc_tensor_file_count(in); i++) {
        const mc_tensor_entry *x = mc_tensor_file_at(in, i);
        if (e->drop && strstr(x->name, e->drop)) continue;
        bool flat = e->flat && strcmp(e->flat, x->name) == 0;
        bool cut = e->strip && strncmp(x->name, e->strip, strlen(e->strip)) == 0;
        specs[count] = (mc_safetensors_spec){.name = x->name + (cut ? strlen(e->strip) : 0),
                                             .dtype = x->dtype,
                                             .ndim = flat ? 1 : x->ndim,
                                             .shape = flat ? &x->count : x->shape};
        entries[count++] = x;
    }
    static const int64_t two[] = {2}, matrix[] = {VOCABULARY, DIM};
    specs[count] = (mc_safetensors_spec){.name = added,
                                         .dtype = MC_F32,
                                         .ndim = e->head != 0 ? 2 : 1,
                                         .shape = e->head != 0 ? matrix : two};
    mc_safetensors_writer *out =
        mc_safetensors_writer_new(ctx, to, specs, count + (added != NULL), NULL, 0);
    for (size_t i = 0; i < count; i++) {
        float values[4096];
        memcpy(values, entries[i]->data, entries[i]->size);
        if (e->not_a_number && strcmp(e->not_a_number, entries[i]->name) == 0) values[1] = NAN;
        mc_safetensors_write(out, values, entries[i]->size);
    }
    if (e->spare) mc_safetensors_write(out, (float[]){1, 2}, 8);
    if (e->head != 0) {
        float values[VOCABULARY * DIM];
        const mc_tensor_entry *words = mc_tensor_file_find(in, "transformer.wte.weight");
        mc_tensor_file_read_f32(in, words, 0, VOCABULARY * DIM, values);
        for (int i = 0; i < VOCABULARY * DIM; i++) values[i] *= e->head;
        mc_safetensors_write(out, values, sizeof values);
    }
    mc_safetensors_writer_commit(out);
    assert_good(ctx);
    mc_context_free(ctx);
}

static void copy_file(const char *from, const char *to)
{
    size_t size;
    mc_error err = {0};
    char *text = mc_file_read(&err, from, 1 << 20, &size);
    assert_non_null(text);
    write_bytes(to, text, size);
    mc_free(text);
}

typedef struct files {
    temp_folder saved, edited;
} files;

static files new_files(void)
{
    files f = {temp_folder_new(), temp_folder_new()};
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 21});
    mc_model_save(new_gpt2(ctx, MC_F32, 0), f.saved.path);
    assert_good(ctx);
    mc_context_free(ctx);
    copy_file(temp_path(&f.saved, "config.json"), temp_path(&f.edited, "config.json"));
    return f;
}

static void edit_files(files *f, const edit *e)
{
    edit_weights(temp_path(&f->saved, "model.safetensors"),
                 temp_path(&f->edited, "model.safetensors"), e);
}

static void free_files(files *f)
{
    temp_folder_free(&f->saved);
    temp_folder_free(&f->edited);
}

/* The base model's file has no prefix; masks of old versions and the tied head are passed over. */
static void test_other_names(void **state)
{
    (void)state;
    static const edit edits[] = {{.strip = "transformer."},
                                 {.spare = "transformer.h.0.attn.bias"},
                                 {.strip = "transformer.", .spare = "h.2.attn.masked_bias"},
                                 {.head = 1}};
    files f = new_files();
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        edit_files(&f, &edits[i]);
        mc_context *ctx = logging_context(3);
        mc_model *as_it_was = mc_gpt2_from_pretrained(ctx, f.saved.path, NULL);
        mc_model *edited = mc_gpt2_from_pretrained(ctx, f.edited.path, NULL);
        assert_good(ctx);
        assert_string_equal(log_text, "");
        assert_same_logits(ctx, as_it_was, ctx, edited);
        mc_context_free(ctx);
    }
    free_files(&f);
}

/* A head that differs from the word embedding is one of its own, whatever the config says, and is
 * saved as such. */
static void test_other_head(void **state)
{
    (void)state;
    files f = new_files();
    temp_folder again = temp_folder_new();
    edit_files(&f, &(edit){.head = -2});
    mc_context *ctx = logging_context(3);
    mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, f.edited.path, NULL);
    assert_good(ctx);
    assert_non_null(strstr(log_text, "lm_head.weight is not the word embedding again"));
    assert_false(mc_gpt2_get_config(gpt2).tied);
    mc_module *m = mc_model_module(gpt2);
    float words[VOCABULARY * DIM], head[VOCABULARY * DIM];
    mc_parameter_read(mc_module_find_parameter(m, "input_embedding.weight"), words);
    mc_parameter_read(mc_module_find_parameter(m, "output_projection.weight"), head);
    for (int i = 0; i < VOCABULARY * DIM; i++) assert_true(head[i] == -2 * words[i]);
    mc_model_save(gpt2, again.path);
    log_text[0] = '\0';
    mc_model *loaded = mc_gpt2_from_pretrained(ctx, again.path, NULL);
    assert_good(ctx);
    assert_string_equal(log_text, "");
    assert_same_logits(ctx, gpt2, ctx, loaded);
    mc_context_free(ctx);
    edit_files(&f, &(edit){.spare = "lm_head.weight"});
    ctx = logging_context(3);
    assert_null(mc_gpt2_from_pretrained(ctx, f.edited.path, NULL));
    assert_error(ctx, MC_ERR_SHAPE, "lm_head.weight", "(2)", "expected");
    mc_context_free(ctx);
    temp_folder_free(&again);
    free_files(&f);
}

static void test_files_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        edit e;
        mc_status status;
        const char *words[3];
    } bad[] = {
        {{.drop = "h.1.attn.c_attn"},
         MC_ERR_NOT_FOUND,
         {"2 tensors are missing", "\"h.1.attn.c_attn.weight\"", "\"h.1.attn.c_attn.bias\""}},
        {{.drop = "wpe"}, MC_ERR_NOT_FOUND, {"1 tensor is missing", "wpe.weight"}},
        {{.flat = "transformer.h.0.mlp.c_fc.weight"},
         MC_ERR_SHAPE,
         {"transformer.h.0.mlp.c_fc.weight", "(640)", "(16, 40)"}},
        {{.flat = "transformer.h.0.attn.c_attn.weight"}, MC_ERR_SHAPE, {"(768)", "(16, 48)"}},
    };
    files f = new_files();
    mc_context *ctx = logging_context(1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        edit_files(&f, &bad[i].e);
        assert_null(mc_gpt2_from_pretrained(ctx, f.edited.path, NULL));
        const char *const *w = bad[i].words;
        assert_error(ctx, bad[i].status, w[0], w[1], w[2] ? w[2] : "");
    }
    edit_files(&f, &(edit){.not_a_number = "transformer.h.2.mlp.c_proj.weight",
                           .spare = "transformer.h.3.ln_1.weight"});
    assert_non_null(mc_gpt2_from_pretrained(ctx, f.edited.path, NULL));
    assert_non_null(
        strstr(log_text, "NaN or infinite values: \"transformer.h.2.mlp.c_proj.weight\""));
    assert_non_null(strstr(log_text, "not used: \"transformer.h.3.ln_1.weight\""));
    mc_context_free(ctx);
    free_files(&f);
}

/* Nine shards come out as one file with the same bits. */
static void test_shards(void **state)
{
    mc_context *ctx = *state;
    const char *folder = shared_folder();
    if (!folder) skip();
    char path[1024];
    snprintf(path, sizeof path, "%s/goldens/loader-formats/sharded-gpt2", folder);
    mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, path, NULL);
    assert_good(ctx);
    temp_folder saved = temp_folder_new();
    assert_int_equal(mc_model_save(gpt2, saved.path), MC_OK);
    snprintf(path, sizeof path, "%s/goldens/loader-formats/sharded-gpt2-expected.safetensors",
             folder);
    mc_tensor_file *expected = mc_tensor_file_open(ctx, path, NULL);
    mc_tensor_file *found = mc_tensor_file_open(ctx, saved.path, NULL);
    assert_good(ctx);
    assert_int_equal(mc_tensor_file_count(found) + 1, mc_tensor_file_count(expected));
    for (size_t i = 0; i < mc_tensor_file_count(found); i++) {
        const mc_tensor_entry *got = mc_tensor_file_at(found, i);
        const mc_tensor_entry *e = mc_tensor_file_find(expected, got->name);
        assert_true(e && e->size == got->size && e->ndim == got->ndim);
        assert_int_equal(e->shape[0], got->shape[0]);
        assert_memory_equal(got->data, e->data, e->size);
    }
    temp_folder_free(&saved);
}

/* ---- configs --------------------------------------------------------------------------------- */

static const struct bad_config {
    const char *text;
    mc_status status;
    const char *words[3];
} bad_configs[] = {
    {"{\"n_embd\": 30, \"n_head\": 4}", MC_ERR_FORMAT, {"dim 30", "4 heads"}},
    {"{\"dim_model\": 32, \"num_heads\": 4, \"dim_head\": 16}", MC_ERR_FORMAT, {"heads of 16"}},
    {"{\"n_embd\": \"many\"}", MC_ERR_FORMAT, {"n_embd", "many"}},
    {"{\"n_layer\": -1}", MC_ERR_FORMAT, {"n_layer", "-1"}},
    {"{\"vocab_size\": 0}", MC_ERR_FORMAT, {"vocab_size"}},
    {"{\"n_positions\": 0.5}", MC_ERR_FORMAT, {"n_positions"}},
    {"{\"resid_pdrop\": 1}", MC_ERR_FORMAT, {"resid_pdrop"}},
    {"{\"layer_norm_epsilon\": 0}", MC_ERR_FORMAT, {"layer_norm_epsilon"}},
    {"{\"tie_word_embeddings\": 1}", MC_ERR_FORMAT, {"tie_word_embeddings"}},
    {"{\"eos_token_id\": [1, -2]}", MC_ERR_FORMAT, {"eos_token_id"}},
    {"{\"eos_token_id\": \"end\"}", MC_ERR_FORMAT, {"eos_token_id"}},
    {"{\"model_type\": \"bert\"}", MC_ERR_UNSUPPORTED, {"BERT", "expected a GPT-2"}},
    {"{\"activation_function\": \"mish\"}", MC_ERR_UNSUPPORTED, {"activation_function", "mish"}},
    {"{\"add_cross_attention\": true}", MC_ERR_UNSUPPORTED, {"add_cross_attention"}},
    {"{\"model_type\": \"gpt2\", \"dim_head\": 64, \"pos_bias_type\": \"rotary\"}",
     MC_ERR_UNSUPPORTED,
     {"pos_bias_type", "rotary"}},
    {"{\"dim_head\": 64, \"length_scale\": true}", MC_ERR_UNSUPPORTED, {"length_scale"}},
    {"{\"dim_head\": 64, \"post_layer_norm\": true}", MC_ERR_UNSUPPORTED, {"post_layer_norm"}},
    {"{\"dim_head\": 64, \"type_size\": 2}", MC_ERR_UNSUPPORTED, {"type_size", "another family"}},
    {"{\"n_embd\": 16", MC_ERR_FORMAT, {"config.json"}},
    {"", MC_ERR_FORMAT, {"config.json"}},
};

static void test_bad_configs(void **state)
{
    (void)state;
    files f = new_files();
    mc_context *ctx = logging_context(1);
    for (size_t i = 0; i < sizeof bad_configs / sizeof *bad_configs; i++) {
        const struct bad_config *bad = &bad_configs[i];
        write_text(temp_path(&f.saved, "config.json"), bad->text);
        if (mc_gpt2_from_pretrained(ctx, f.saved.path, NULL) || mc_error_status(ctx) != bad->status)
            fail_msg("%s: \"%s\"", bad->text, mc_error_message(ctx));
        for (int w = 0; w < 3 && bad->words[w]; w++)
            if (!strstr(mc_error_message(ctx), bad->words[w]))
                fail_msg("%s: no \"%s\" in \"%s\"", bad->text, bad->words[w],
                         mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    assert_null(mc_gpt2_from_pretrained(ctx, temp_path(&f.saved, "nothing"), NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "nothing");
    mc_context_free(ctx);
    free_files(&f);
}

/* ModelCenter's form of a config, and Hugging Face's lists of end tokens. */
static void test_other_configs(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "config.json");
    write_text(path, "{\"dim_model\": 24, \"num_heads\": 3, \"dim_head\": 8, \"dim_ff\": 48, "
                     "\"num_layers\": 2, \"vocab_size\": 60, \"position_size\": 33, "
                     "\"norm_eps\": 1e-6, \"dropout_p\": 0.2, \"ffn_activate_fn\": \"relu\", "
                     "\"att_init_std\": 0.05, \"tied\": false, \"attn_scale\": true, "
                     "\"pos_bias_type\": \"none\", \"att_bias\": true, \"length_scale\": false}");
    mc_gpt2_config c, expected = mc_gpt2_config_default();
    assert_int_equal(mc_gpt2_config_read(ctx, path, &c), MC_OK);
    expected.vocab_size = 60;
    expected.dim = 24;
    expected.dim_ff = 48;
    expected.layers = 2;
    expected.heads = 3;
    expected.positions = 33;
    expected.activation = MC_ACTIVATION_RELU;
    expected.eps = 1e-6f;
    expected.dropout = expected.embedding_dropout = expected.attention_dropout = 0.2f;
    expected.init_std = 0.05f; /* and the others have their defaults */
    expected.head_dim = 8;
    expected.bos_token_id = expected.eos_token_id = -1; /* that form has no such keys */
    expected.tied = false;
    assert_true(same_config(&c, &expected));
    temp_folder_free(&folder);

    files f = new_files();
    write_text(
        temp_path(&f.saved, "config.json"),
        "{\"vocab_size\": 50, \"n_embd\": 16, \"n_head\": 4, \"n_layer\": 3, \"n_inner\": 40, "
        "\"n_positions\": 24, \"bos_token_id\": null, \"eos_token_id\": [7, 9]}");
    mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, f.saved.path, NULL);
    assert_int_equal(mc_model_save(gpt2, f.edited.path), MC_OK);
    gpt2 = mc_gpt2_from_pretrained(ctx, f.edited.path, NULL);
    assert_good(ctx);
    assert_int_equal(gpt2->eos_count, 2);
    assert_int_equal(gpt2->eos[1], 9);
    assert_int_equal(mc_gpt2_get_config(gpt2).eos_token_id, 7);
    assert_int_equal(mc_gpt2_get_config(gpt2).bos_token_id, -1);
    free_files(&f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_save_and_load), TEST(test_file_contents),         TEST(test_other_names),
        TEST(test_other_head),    TEST(test_files_that_do_not_fit), TEST(test_shards),
        TEST(test_bad_configs),   TEST(test_other_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
