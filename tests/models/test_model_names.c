/* Models whose files give the same weights under other names: a shared table under one of its
 * names, the prefixes of wrapping modules; and T5's keys that say one thing in several ways. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/formats/torch_writer.h"
#include "tests/models/family_test.h"

enum { NAME_ROOM = 256, MOST_TENSORS = 128 };

/* ---- files with other names ------------------------------------------------------------------ */

/* What a folder's file of weights becomes. */
typedef struct change {
    const char *from, *to; /* tensors whose name ends in `from` are called `to`; NULL: none are */
    const char *copy;      /* the tensor that ends in it comes again, as `copy_as` */
    const char *copy_as;
    float factor;       /* of the copy */
    const char *prefix; /* of all names; NULL: none */
    const char *spare;  /* a tensor of one zero more; NULL: none */
    bool torch;         /* as pytorch_model.bin */
    bool sharded;       /* the first half of the tensors in one file, the rest in another */
} change;

static bool ends_in(const char *name, const char *end)
{
    size_t length = strlen(name), tail = end ? strlen(end) : 0;
    return end && length >= tail && strcmp(name + length - tail, end) == 0;
}

typedef struct new_file {
    char names[MOST_TENSORS][NAME_ROOM];
    mc_safetensors_spec specs[MOST_TENSORS];
    float *values[MOST_TENSORS];
    size_t count;
} new_file;

static void add(new_file *f, mc_tensor_file *in, const mc_tensor_entry *e, const char *prefix,
                const char *name, float factor)
{
    assert_true(f->count < MOST_TENSORS);
    size_t i = f->count++;
    snprintf(f->names[i], NAME_ROOM, "%s%s", prefix ? prefix : "", name);
    f->specs[i] = (mc_safetensors_spec){
        .name = f->names[i], .dtype = e->dtype, .ndim = e->ndim, .shape = e->shape};
    f->values[i] = malloc(e->size + sizeof(float));
    assert_non_null(f->values[i]);
    mc_tensor_file_read_f32(in, e, 0, e->count, f->values[i]);
    for (int64_t k = 0; k < e->count; k++) f->values[i][k] *= factor;
}

static size_t bytes_of(const mc_safetensors_spec *s)
{
    size_t bytes = sizeof(float);
    for (int i = 0; i < s->ndim; i++) bytes *= (size_t)s->shape[i];
    return bytes;
}

static void write_part(mc_context *ctx, const new_file *f, size_t first, size_t end,
                       const char *path, bool torch)
{
    size_t n = end - first;
    mc_torch_writer *zip = torch ? mc_torch_writer_new(ctx, path, f->specs + first, n) : NULL;
    mc_safetensors_writer *out =
        torch ? NULL : mc_safetensors_writer_new(ctx, path, f->specs + first, n, NULL, 0);
    for (size_t i = first; i < end; i++) {
        if (torch) mc_torch_write(zip, f->values[i], bytes_of(&f->specs[i]));
        if (!torch) mc_safetensors_write(out, f->values[i], bytes_of(&f->specs[i]));
    }
    if (torch) mc_torch_writer_commit(zip);
    if (!torch) mc_safetensors_writer_commit(out);
    assert_good(ctx);
}

static void write_shards(mc_context *ctx, const new_file *f, const temp_folder *folder, bool torch)
{
    const char *ending = torch ? "bin" : "safetensors", *stem = torch ? "pytorch_model" : "model";
    char name[2][64], index[64], text[MOST_TENSORS * (NAME_ROOM + 64)] = "{\"weight_map\": {";
    for (int i = 0; i < 2; i++) {
        snprintf(name[i], sizeof *name, "%s-0000%d-of-00002.%s", stem, i + 1, ending);
        write_part(ctx, f, i ? f->count / 2 : 0, i ? f->count : f->count / 2,
                   temp_path(folder, name[i]), torch);
    }
    for (size_t i = 0; i < f->count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\"%s\": \"%s\"", i ? ", " : "",
                 f->names[i], name[i >= f->count / 2]);
    strcat(text, "}}");
    snprintf(index, sizeof index, "%s.%s.index.json", stem, ending);
    write_text(temp_path(folder, index), text);
}

static void rewrite(const temp_folder *folder, change c)
{
    static new_file f;
    static const int64_t one[] = {1};
    static float zero[1];
    mc_context *ctx = mc_init_distributed(NULL);
    const char *path = temp_path(folder, "model.safetensors");
    mc_tensor_file *in = mc_tensor_file_open(ctx, path, NULL);
    assert_good(ctx);
    f.count = 0;
    for (size_t i = 0; i < mc_tensor_file_count(in); i++) {
        const mc_tensor_entry *e = mc_tensor_file_at(in, i);
        add(&f, in, e, c.prefix, ends_in(e->name, c.from) ? c.to : e->name, 1);
        if (ends_in(e->name, c.copy)) add(&f, in, e, c.prefix, c.copy_as, c.factor);
    }
    size_t own = f.count;
    if (c.spare)
        f.specs[f.count] = (mc_safetensors_spec){.name = strcpy(f.names[f.count], c.spare),
                                                 .dtype = MC_F32,
                                                 .ndim = 1,
                                                 .shape = one},
        f.values[f.count++] = zero;
    if (c.torch || c.sharded) assert_int_equal(unlink(path), 0);
    if (c.sharded)
        write_shards(ctx, &f, folder, c.torch);
    else
        write_part(ctx, &f, 0, f.count, c.torch ? temp_path(folder, "pytorch_model.bin") : path,
                   c.torch);
    for (size_t i = 0; i < own; i++) free(f.values[i]);
    mc_context_free(ctx);
}

/* ---- a model and its changed folder ---------------------------------------------------------- */

/* Saves a model of the config, changes its file, and checks that what is loaded gives `factor`
 * times the logits. */
static void assert_loads_the_same(mc_context *ctx, const char *family, const char *config, change c,
                                  float factor)
{
    static float first[MOST_LOGITS], second[MOST_LOGITS];
    temp_folder folder = temp_folder_new();
    mc_model *saved = model_of(ctx, family, config, NULL, NULL);
    assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
    rewrite(&folder, c);
    mc_model *loaded = mc_model_from_pretrained_of(ctx, family, folder.path, NULL);
    assert_good(ctx);
    int64_t count = family_logits(saved, (part){PACKED, -1}, first);
    assert_int_equal(family_logits(loaded, (part){PACKED, -1}, second), count);
    for (int64_t i = 0; i < count; i++) assert_true(second[i] == factor * first[i]);
    mc_model_free(saved);
    mc_model_free(loaded);
    temp_folder_free(&folder);
}

/* As above for what cannot be loaded. */
static void refuse(mc_context *ctx, const char *family, const char *config, change c,
                   mc_status status, const char *word, const char *other, const char *third)
{
    temp_folder folder = temp_folder_new();
    mc_model *saved = model_of(ctx, family, config, NULL, NULL);
    assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
    rewrite(&folder, c);
    assert_null(mc_model_from_pretrained_of(ctx, family, folder.path, NULL));
    assert_error(ctx, status, folder.path, word, other, third);
    mc_model_free(saved);
    temp_folder_free(&folder);
}

static const char tied_gptj[] =
    "{\"model_type\": \"gptj\", \"vocab_size\": 50, \"n_embd\": 16, \"n_layer\": 1, \"n_head\": 2, "
    "\"n_positions\": 24, \"rotary_dim\": 4, \"tie_word_embeddings\": true}";
static const char untied_gpt2[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"n_embd\": 16, \"n_layer\": 1, \"n_head\": 4, "
    "\"n_positions\": 24, \"tie_word_embeddings\": false}";

/* ---- a table under one of its names ---------------------------------------------------------- */

static void test_one_name_of_a_table(void **state)
{
    mc_context *ctx = *state;
    const struct {
        const char *family, *config, *from, *to;
    } rows[] = {
        {"bert", tiny("bert")->config, "word_embeddings.weight", "cls.predictions.decoder.weight"},
        {"roberta", tiny("roberta")->config, "word_embeddings.weight", "lm_head.decoder.weight"},
        {"gpt2", tiny("gpt2")->config, "wte.weight", "lm_head.weight"},
        {"gptj", tied_gptj, "wte.weight", "lm_head.weight"},
        {"t5", tiny("t5")->config, "shared.weight", "lm_head.weight"},
        {"t5", tiny("t5")->config, "shared.weight", "encoder.embed_tokens.weight"},
        {"t5", tiny("t5")->config, "shared.weight", "decoder.embed_tokens.weight"},
        {"t5", tiny("t5")[1].config, "shared.weight", "encoder.embed_tokens.weight"},
        {"t5", tiny("t5")[1].config, "shared.weight", "decoder.embed_tokens.weight"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int torch = 0; torch < 2; torch++)
            assert_loads_the_same(ctx, rows[i].family, rows[i].config,
                                  (change){.from = rows[i].from, .to = rows[i].to, .torch = torch},
                                  1);
}

/* Another model's own head is no table of words, and tables that differ are not one. */
static void test_tables_that_are_not_one(void **state)
{
    mc_context *ctx = *state;
    refuse(ctx, "gpt2", untied_gpt2, (change){.from = "wte.weight", .to = "elsewhere"},
           MC_ERR_NOT_FOUND, "1 tensor is missing: \"wte.weight\"", "the file holds \"elsewhere\"",
           "and 13 more");
    refuse(ctx, "t5", tiny("t5")->config,
           (change){.copy = "shared.weight", .copy_as = "encoder.embed_tokens.weight", .factor = 2},
           MC_ERR_UNSUPPORTED, "\"shared.weight\"", "\"encoder.embed_tokens.weight\"", "differ");
    assert_loads_the_same(
        ctx, "t5", tiny("t5")->config,
        (change){.copy = "shared.weight", .copy_as = "decoder.embed_tokens.weight", .factor = 1},
        1);
}

/* GPT-J's file may have a head of its own although its config ties it. */
static void test_own_head_of_gptj(void **state)
{
    mc_context *ctx = *state;
    assert_loads_the_same(ctx, "gptj", tied_gptj,
                          (change){.copy = "wte.weight", .copy_as = "lm_head.weight", .factor = -2},
                          -2);
}

/* ---- wrappers -------------------------------------------------------------------------------- */

static void test_wrappers(void **state)
{
    mc_context *ctx = *state;
    static const char *const wrappers[] = {"_orig_mod.", "module.", "model.", "module._orig_mod.",
                                           "_orig_mod.module.model."};
    for (int f = 0; f < TINY_FAMILIES; f++)
        for (int w = f % 2; w < 5; w += 2)
            assert_loads_the_same(ctx, tiny_families[f].name, tiny_families[f].config,
                                  (change){.prefix = wrappers[w],
                                           .torch = (w + f) % 4 < 2,
                                           .sharded = (w + f) % 3 == 0},
                                  1);
}

/* Where not all names have it, or it is no wrapper's, names stay and are shown. */
static void test_other_prefixes(void **state)
{
    mc_context *ctx = *state;
    const char *config = tiny("gpt2")->config;
    refuse(ctx, "gpt2", config, (change){.prefix = "module.", .spare = "n_averaged"},
           MC_ERR_NOT_FOUND, "28 tensors are missing", "the file holds \"module.transformer.h.0",
           "\"n_averaged\" and 25 more");
    refuse(ctx, "gpt2", config, (change){.prefix = "net."}, MC_ERR_NOT_FOUND, "missing",
           "the file holds \"net.transformer.h.0", "more");
    refuse(ctx, "gpt2", config, (change){.prefix = "module.net."}, MC_ERR_NOT_FOUND, "missing",
           "the file holds \"module.net.transformer.h.0", "more");
    refuse(ctx, "cpm1", tiny("cpm1")->config, (change){.prefix = "net."}, MC_ERR_NOT_FOUND,
           "missing", "the file holds \"net.encoder", "more");
}

/* A module of a user's own, too. */
static void test_wrapped_module(void **state)
{
    mc_context *ctx = *state;
    static const int64_t shape[] = {2, 3};
    static const float values[] = {1, 2, 3, 4, 5, 6};
    float read[6] = {0};
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "net.safetensors");
    mc_safetensors_spec spec = {
        .name = "module.weight", .dtype = MC_F32, .ndim = 2, .shape = shape};
    mc_safetensors_writer *out = mc_safetensors_writer_new(ctx, path, &spec, 1, NULL, 0);
    mc_safetensors_write(out, values, sizeof values);
    mc_safetensors_writer_commit(out);
    mc_linear *linear = mc_linear_new(ctx, 3, 2, &(mc_linear_options){.no_bias = true});
    assert_int_equal(mc_module_load(mc_linear_module(linear), path), MC_OK);
    mc_parameter_read(mc_module_find_parameter(mc_linear_module(linear), "weight"), read);
    assert_memory_equal(read, values, sizeof values);
    temp_folder_free(&folder);
}

/* ---- T5's keys ------------------------------------------------------------------------------- */

/* What transformers 5.24 computes with for these keys: T5Config's dense_act_fn and is_gated_act. */
static void test_t5_activations(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        const char *keys;
        mc_activation activation;
        bool gated;
    } rows[] = {
        {"", MC_ACTIVATION_RELU, false},
        {"\"feed_forward_proj\": \"gated-gelu\"", MC_ACTIVATION_GELU_NEW, true},
        {"\"feed_forward_proj\": \"gated-gelu_new\"", MC_ACTIVATION_GELU_NEW, true},
        {"\"feed_forward_proj\": \"gated-gelu_pytorch_tanh\"", MC_ACTIVATION_GELU_NEW, true},
        {"\"feed_forward_proj\": \"gated-swish\"", MC_ACTIVATION_SILU, true},
        {"\"feed_forward_proj\": \"gelu\"", MC_ACTIVATION_GELU, false},
        {"\"dense_act_fn\": \"silu\"", MC_ACTIVATION_SILU, false},
        {"\"is_gated_act\": true", MC_ACTIVATION_RELU, true},
        {"\"dense_act_fn\": \"gelu\", \"feed_forward_proj\": \"gated-gelu\"", MC_ACTIVATION_GELU,
         true},
        {"\"dense_act_fn\": \"silu\", \"feed_forward_proj\": \"gated-gelu\"", MC_ACTIVATION_SILU,
         true},
        {"\"feed_forward_proj\": \"gated-gelu\", \"is_gated_act\": false", MC_ACTIVATION_GELU_NEW,
         false},
        {"\"feed_forward_proj\": \"relu\", \"dense_act_fn\": \"gelu_new\", \"is_gated_act\": true",
         MC_ACTIVATION_GELU_NEW, true},
        {"\"model_type\": \"mt5\"", MC_ACTIVATION_GELU_NEW, true},
        {"\"model_type\": \"mt5\", \"feed_forward_proj\": \"relu\"", MC_ACTIVATION_RELU, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        temp_folder folder = temp_folder_new();
        const char *path = temp_path(&folder, "config.json");
        mc_t5_config c, again;
        snprintf(text, sizeof text,
                 "{\"vocab_size\": 50, \"d_model\": 16, \"d_ff\": 24, \"d_kv\": 4, "
                 "\"num_heads\": 2, \"num_layers\": 1%s%s}",
                 *rows[i].keys ? ", " : "", rows[i].keys);
        write_text(path, text);
        assert_int_equal(mc_t5_config_read(ctx, path, &c), MC_OK);
        assert_int_equal(c.activation, rows[i].activation);
        assert_int_equal(c.gated, rows[i].gated);
        mc_model *model = mc_t5_new(ctx, &c, NULL, NULL); /* and what is written says the same */
        assert_int_equal(mc_model_save(model, folder.path), MC_OK);
        assert_int_equal(mc_t5_config_read(ctx, path, &again), MC_OK);
        assert_int_equal(again.activation, c.activation);
        assert_int_equal(again.gated, c.gated);
        mc_model_free(model);
        temp_folder_free(&folder);
    }
}

/* The class defaults of mT5 are not T5's. */
static void test_mt5_defaults(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "config.json");
    mc_t5_config c;
    write_text(path, "{\"model_type\": \"mt5\", \"num_layers\": null}");
    assert_int_equal(mc_t5_config_read(ctx, path, &c), MC_OK);
    assert_int_equal(c.vocab_size, 250112);
    assert_int_equal(c.dim, 512);
    assert_int_equal(c.dim_ff, 1024);
    assert_int_equal(c.layers, 8);
    assert_int_equal(c.decoder_layers, 8);
    assert_int_equal(c.heads, 6);
    assert_int_equal(c.head_dim, 64);
    assert_true(c.gated && c.activation == MC_ACTIVATION_GELU_NEW && !c.scale_head);
    write_text(path, "{\"model_type\": \"t5\"}");
    assert_int_equal(mc_t5_config_read(ctx, path, &c), MC_OK);
    assert_true(c.vocab_size == 32128 && c.layers == 6 && !c.gated && c.scale_head);
    temp_folder_free(&folder);
}

/* transformers' classes have other names for some keys, which overrule the usual ones. */
static void test_other_names_of_keys(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "config.json");
    mc_gpt2_config gpt2;
    mc_t5_config t5;
    write_text(path, "{\"hidden_size\": 32, \"n_embd\": 64, \"num_attention_heads\": 4, "
                     "\"num_hidden_layers\": 3, \"max_position_embeddings\": 99}");
    assert_int_equal(mc_gpt2_config_read(ctx, path, &gpt2), MC_OK);
    assert_true(gpt2.dim == 32 && gpt2.heads == 4 && gpt2.layers == 3 && gpt2.positions == 99);
    assert_int_equal(gpt2.dim_ff, 128);
    write_text(path, "{\"hidden_size\": 32, \"head_dim\": 5, \"num_attention_heads\": 3}");
    assert_int_equal(mc_t5_config_read(ctx, path, &t5), MC_OK);
    assert_true(t5.dim == 32 && t5.head_dim == 5 && t5.heads == 3 && t5.layers == 6);
    temp_folder_free(&folder);
}

/* Replaces config.json's text of `folder`. */
static void write_t5_config(const temp_folder *folder, const char *keys)
{
    char text[512];
    snprintf(text, sizeof text,
             "{\"vocab_size\": 50, \"d_model\": 16, \"d_ff\": 40, \"d_kv\": 6, \"num_heads\": 4, "
             "\"num_layers\": 2, \"num_decoder_layers\": 3, "
             "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 20, %s}",
             keys);
    write_text(temp_path(folder, "config.json"), text);
}

/* Whether a T5's logits are scaled by dim^-1/2, a quarter here: as in transformers 5.24, by
 * "scale_decoder_outputs", else by "tie_word_embeddings"; an mT5's never are. The head is the words
 * whatever that says, where the file has no other. */
static void test_t5_scales(void **state)
{
    mc_context *ctx = *state;
    static float scaled[MOST_LOGITS], found[MOST_LOGITS];
    static const struct {
        const char *keys;
        float factor;
    } rows[] = {
        {"\"model_type\": \"t5\"", 1},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": null", 1},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": false", 4},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": false, \"scale_decoder_outputs\": true",
         1},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": true, \"scale_decoder_outputs\": false",
         4},
        {"\"model_type\": \"mt5\", \"feed_forward_proj\": \"relu\"", 4},
        {"\"model_type\": \"mt5\", \"feed_forward_proj\": \"relu\", "
         "\"scale_decoder_outputs\": true",
         4},
    };
    temp_folder folder = temp_folder_new(), again = temp_folder_new();
    mc_model *t5 = tiny_model(ctx, tiny("t5"), NULL);
    int64_t count = family_logits(t5, (part){PACKED, -1}, scaled);
    assert_int_equal(mc_model_save(t5, folder.path), MC_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_t5_config(&folder, rows[i].keys);
        mc_model *loaded = mc_t5_from_pretrained(ctx, folder.path, NULL);
        assert_good(ctx);
        assert_true(mc_t5_get_config(loaded).tied);
        family_logits(loaded, (part){PACKED, -1}, found);
        for (int64_t k = 0; k < count; k++) assert_true(found[k] == rows[i].factor * scaled[k]);
        assert_int_equal(mc_model_save(loaded, again.path), MC_OK);
        mc_model *saved = mc_t5_from_pretrained(ctx, again.path, NULL);
        assert_good(ctx);
        family_logits(saved, (part){PACKED, -1}, found);
        for (int64_t k = 0; k < count; k++) assert_true(found[k] == rows[i].factor * scaled[k]);
        mc_model_free(loaded);
        mc_model_free(saved);
    }
    temp_folder_free(&folder);
    temp_folder_free(&again);
}

/* ---- heads of pretraining -------------------------------------------------------------------- */

/* A model of every family without its head, or with a classifier in its place, gets the head that
 * is asked for; one that the file has in part is an error. */
static void test_heads_that_are_asked_for(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        const char *family, *head;
        bool is_new;
    } rows[] = {{"bert", "lm_head.dense.weight", true},
                {"roberta", "lm_head.dense.weight", true},
                {"gptj", "output_projection.weight", true},
                {"gpt2", "input_embedding.weight", false},
                {"t5", "input_embedding.weight", false}};
    mc_model_heads asked = {.lm = true, .nsp = true, .pooler = true};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        temp_folder folder = temp_folder_new();
        bool bert = strcmp(rows[i].family, "bert") == 0;
        mc_model_heads classes = {.labels = 3, .pooler = bert};
        mc_model *saved =
            model_of(ctx, rows[i].family, tiny(rows[i].family)->config, &classes, NULL);
        assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
        mc_model *as_it_is = mc_model_from_pretrained(ctx, folder.path, NULL);
        assert_true(!mc_model_get_heads(as_it_is).lm && mc_model_get_heads(as_it_is).labels == 3);
        mc_model *loaded =
            mc_model_from_pretrained(ctx, folder.path, &(mc_load_options){.heads = &asked});
        assert_good(ctx);
        mc_model_heads heads = mc_model_get_heads(loaded);
        assert_true(heads.lm && !heads.labels && heads.nsp == bert);
        assert_non_null(mc_module_find_parameter(mc_model_module(loaded), rows[i].head));
        mc_parameter *before =
            mc_module_find_parameter(mc_model_module(saved), "input_embedding.weight");
        mc_parameter *after =
            mc_module_find_parameter(mc_model_module(loaded), "input_embedding.weight");
        float a[VOCABULARY * DIM], b[VOCABULARY * DIM];
        mc_parameter_read(before, a);
        mc_parameter_read(after, b);
        assert_memory_equal(a, b, sizeof a);
        mc_model_free(saved);
        mc_model_free(as_it_is);
        mc_model_free(loaded);
        temp_folder_free(&folder);
    }
}

static void test_heads_in_part(void **state)
{
    mc_context *ctx = *state;
    mc_model_heads asked = {.lm = true};
    mc_load_options options = {.heads = &asked};
    temp_folder folder = temp_folder_new();
    mc_model *saved = tiny_model(ctx, tiny("bert"), NULL);
    assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
    rewrite(&folder, (change){.from = "cls.predictions.transform.dense.weight", .to = "elsewhere"});
    assert_null(mc_model_from_pretrained(ctx, folder.path, &options));
    assert_error(ctx, MC_ERR_NOT_FOUND, "1 tensor is missing",
                 "cls.predictions.transform.dense.weight", "the file holds");
    temp_folder_free(&folder);
}

/* ---- model types that compute the same ------------------------------------------------------- */

/* A saved model has the model type and the class of what it was made of or read from. */
static void test_types_of_a_family(void **state)
{
    mc_context *ctx = *state;
    static const char *const rows[][2] = {{"roberta", "RobertaForMaskedLM"},
                                          {"xlm-roberta", "XLMRobertaForMaskedLM"},
                                          {"camembert", "CamembertForMaskedLM"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char config[512];
        snprintf(config, sizeof config,
                 "{\"model_type\": \"%s\", \"vocab_size\": 50, \"hidden_size\": 16, "
                 "\"intermediate_size\": 24, \"num_hidden_layers\": 1, "
                 "\"num_attention_heads\": 2}",
                 rows[i][0]);
        temp_folder folder = temp_folder_new(), again = temp_folder_new();
        mc_model *made = model_of(ctx, "roberta", config, NULL, NULL);
        assert_int_equal(mc_model_save(made, folder.path), MC_OK);
        mc_model *loaded = mc_model_from_pretrained(ctx, folder.path, NULL);
        assert_string_equal(mc_model_family(loaded), "roberta");
        assert_int_equal(mc_model_save(loaded, again.path), MC_OK);
        cJSON *json = mc_json_read_object(&ctx->error, temp_path(&again, "config.json"), 1 << 16);
        assert_string_equal(cJSON_GetObjectItem(json, "model_type")->valuestring, rows[i][0]);
        assert_string_equal(cJSON_GetObjectItem(json, "architectures")->child->valuestring,
                            rows[i][1]);
        cJSON_Delete(json);
        mc_model_free(made);
        mc_model_free(loaded);
        temp_folder_free(&folder);
        temp_folder_free(&again);
    }
}

/* ---- ModelCenter's form ---------------------------------------------------------------------- */

#define MC_PAIR(keys)                                                            \
    "{\"vocab_size\": 50, \"dim_model\": 16, \"dim_ff\": 40, \"num_heads\": 4, " \
    "\"dim_head\": 6, \"num_encoder_layers\": 2, \"num_decoder_layers\": 3, "    \
    "\"position_bias_num_buckets\": 8, \"position_bias_max_distance\": 20, "     \
    "\"half\": false" keys "}"

/* A config without "model_type" is of the family that is asked for, with that class's defaults:
 * T5's and CPM-2's files have tensors of the same names. */
static void test_family_asked_for(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    mc_model *model =
        model_of(ctx, "t5", MC_PAIR(", \"ffn_activate_fn\": \"gated_gelu\""), NULL, NULL);
    assert_int_equal(
        mc_model_save_as(model, folder.path, &(mc_save_options){.form = MC_SAVE_MODELCENTER}),
        MC_OK);
    const char *path = temp_path(&folder, "config.json");
    write_text(path, MC_PAIR(", \"ffn_activate_fn\": \"gated_gelu\""));
    mc_model *t5 = mc_t5_from_pretrained(ctx, folder.path, NULL);
    assert_good(ctx);
    mc_t5_config c = mc_t5_get_config(t5);
    assert_true(c.gated && c.activation == MC_ACTIVATION_GELU && c.tied && !c.scale_head);
    assert_true(c.divided && c.dropout == 0);
    write_text(path, MC_PAIR(", \"tied\": true")); /* CPM-2's default is gated_gelu, T5's relu */
    mc_model *cpm2 = mc_cpm2_from_pretrained(ctx, folder.path, NULL);
    assert_good(ctx);
    assert_true(mc_cpm2_get_config(cpm2).gated && !mc_cpm2_get_config(cpm2).length_scale);
    assert_null(mc_t5_from_pretrained(ctx, folder.path, NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "DenseReluDense.wi.weight", "the file holds");
    write_text(path, MC_PAIR(", \"ffn_activate_fn\": \"gated_gelu\", \"length_scale\": true"));
    assert_null(mc_t5_from_pretrained(ctx, folder.path, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "length_scale", "expected false");
    assert_null(mc_bert_from_pretrained(ctx, folder.path, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "is a CPM-2", "expected a BERT");
    temp_folder_free(&folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_one_name_of_a_table), TEST(test_tables_that_are_not_one),
        TEST(test_own_head_of_gptj),    TEST(test_wrappers),
        TEST(test_other_prefixes),      TEST(test_wrapped_module),
        TEST(test_t5_activations),      TEST(test_mt5_defaults),
        TEST(test_other_names_of_keys), TEST(test_t5_scales),
        TEST(test_family_asked_for),    TEST(test_heads_that_are_asked_for),
        TEST(test_heads_in_part),       TEST(test_types_of_a_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
