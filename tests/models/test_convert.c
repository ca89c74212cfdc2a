/* Folders in the other form: every family in ModelCenter's and back, what comes along, and what a
 * form cannot say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/json_internal.h"
#include "tests/comma_locale.h"
#include "tests/faults.h"
#include "tests/models/family_test.h"

static int set_up(void **state)
{
    *state = mc_init_distributed(&(mc_init_options){.seed = 3});
    return mc_failed(*state);
}

static int tear_down(void **state)
{
    mc_context_free(*state);
    return 0;
}

static mc_status convert(mc_context *ctx, const temp_folder *f, const char *from, const char *to,
                         mc_save_form form)
{
    mc_convert_options o = {.save = {.form = form, .max_shard_size = 4000}};
    return mc_model_convert(ctx, temp_path(f, from), temp_path(f, to), &o);
}

/* Saves a new model under "saved", and gives its logits. */
static mc_model *save_tiny(mc_context *ctx, const temp_folder *f, const tiny_family *family,
                           const mc_model_heads *heads, mc_dtype dtype)
{
    mc_load_options o = {.dtype = dtype};
    mc_model *m = model_of(ctx, family->name, family->config, heads, &o);
    mc_model_save(m, temp_path(f, "saved"));
    assert_good(ctx);
    return m;
}

static cJSON *config_in(const temp_folder *f, const char *folder)
{
    char name[64];
    mc_error err = {0};
    snprintf(name, sizeof name, "%s/config.json", folder);
    cJSON *json = mc_json_read_object(&err, temp_path(f, name), 1 << 16);
    assert_non_null(json);
    return json;
}

/* Logits of the packed batch, without token types where there is one; how many. */
static int64_t logits_of(mc_context *ctx, mc_model *m, float out[MOST_LOGITS])
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = input_for(t, m, (part){PACKED, -1});
    if (m->shape.types < 2) in.type_ids = NULL;
    mc_tensor *x = mc_model_logits(t, m, mc_model_forward(t, m, &in).last_hidden);
    assert_good(ctx);
    int64_t count = mc_tensor_count(x);
    mc_tensor_read_f32(ctx, x, out, count);
    mc_tape_end(t);
    return count;
}

/* How far logits of a folder's model are from those given, over the largest. */
static double distance(mc_context *ctx, const char *folder, const char *family, const float *wanted,
                       int64_t count)
{
    static float logits[MOST_LOGITS];
    double worst = 0, largest = 0;
    mc_model *m = mc_model_from_pretrained(ctx, folder, NULL); /* finds out the family */
    assert_good(ctx);
    assert_string_equal(mc_model_family(m), family);
    assert_int_equal(logits_of(ctx, m, logits), count);
    mc_model_free(m);
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)logits[i] - wanted[i]));
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    return worst / largest;
}

/* ---- every family ---------------------------------------------------------------------------- */

/* ModelCenter's has one token type, by which its folders are told from BERT's. */
static const tiny_family roberta = {
    "roberta", "{\"model_type\": \"roberta\", \"vocab_size\": 50, \"hidden_size\": 16, "
               "\"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
               "\"max_position_embeddings\": 26, \"type_vocab_size\": 1}"};

/* And one model type of LLaMA's. */
static const tiny_family llama = {
    "llama", "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 16, "
             "\"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
             "\"num_key_value_heads\": 2, \"head_dim\": 6, \"max_position_embeddings\": 24}"};

/* ModelCenter's OPT is pre-norm, its words as wide as the blocks. */
static const tiny_family *example(int i)
{
    if (strcmp(tiny_families[i].name, "opt") == 0) return tiny("opt");
    if (strcmp(tiny_families[i].name, "llama") == 0) return &llama;
    return strcmp(tiny_families[i].name, "roberta") == 0 ? &roberta : &tiny_families[i];
}

static void families_go_there_and_back(void **state)
{
    mc_context *ctx = *state;
    static float wanted[MOST_LOGITS];
    for (int i = 0; i < TINY_FAMILIES; i++) {
        const tiny_family *family = example(i);
        temp_folder f = temp_folder_new();
        mc_model *m = save_tiny(ctx, &f, family, NULL, MC_F32);
        bool own_form = m->family->own_form;
        double limit = strcmp(family->name, "t5") == 0 ? 1e-5 : 0; /* whose values are divided */
        int64_t count = logits_of(ctx, m, wanted);
        convert(ctx, &f, "saved", "mc", MC_SAVE_MODELCENTER);
        if (m->family->hf_only) {
            assert_error(ctx, MC_ERR_UNSUPPORTED, m->family->title, "no ModelCenter form");
            assert_int_equal(access(temp_path(&f, "mc"), F_OK), -1);
            temp_folder_free(&f);
            continue;
        }
        assert_good(ctx);
        cJSON *json = config_in(&f, "mc");
        assert_true(cJSON_HasObjectItem(json, "model_type") == own_form); /* else unknown to it */
        assert_int_equal(cJSON_GetObjectItem(json, "dim_head")->valueint, m->shape.head_dim);
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "half")));
        assert_int_equal(mc_config_form_of(json), MC_FORM_MC);
        cJSON_Delete(json);
        assert_true(distance(ctx, temp_path(&f, "mc"), family->name, wanted, count) <= limit);
        convert(ctx, &f, "mc", "hf", MC_SAVE_HUGGING_FACE);
        if (own_form) {
            assert_error(ctx, MC_ERR_UNSUPPORTED, m->family->title, "no Hugging Face form");
            assert_int_equal(access(temp_path(&f, "hf"), F_OK), -1);
        } else {
            assert_good(ctx);
            assert_true(distance(ctx, temp_path(&f, "hf"), family->name, wanted, count) <= limit);
        }
        temp_folder_free(&f);
    }
}

/* ModelCenter's GPT-J reads two norms a block; T5's words are divided. */
static void modelcenter_finds_what_it_reads(void **state)
{
    mc_context *ctx = *state;
    for (int i = 0; i < 2; i++) {
        temp_folder f = temp_folder_new();
        mc_model *m = save_tiny(ctx, &f, tiny(i ? "t5" : "gptj"), NULL, MC_F32);
        convert(ctx, &f, "saved", "mc", MC_SAVE_MODELCENTER);
        mc_tensor_file *file = mc_tensor_file_open(ctx, temp_path(&f, "mc"), NULL);
        assert_good(ctx);
        const mc_tensor_entry *e = mc_tensor_file_find(
            file, i ? "input_embedding.weight" : "encoder.layers.1.ffn.layernorm_before_ffn.bias");
        mc_parameter *p = mc_module_find_parameter(
            &m->module, i ? "input_embedding.weight"
                          : "encoder.layers.1.self_att.layernorm_before_attention.bias");
        assert_non_null(e);
        float found[VOCABULARY * DIM], wanted[VOCABULARY * DIM];
        mc_tensor_file_read_f32(file, e, 0, e->count, found);
        mc_parameter_read(p, wanted);
        for (int64_t k = 0; k < e->count; k++)
            assert_near(found[k], wanted[k] / (i ? 100 : 1), 1e-6);
        temp_folder_free(&f);
    }
}

/* The weights keep their dtype unless another is asked for; f16 is what "half" means. */
static void dtypes_are_kept(void **state)
{
    mc_context *ctx = *state;
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
        temp_folder f = temp_folder_new();
        save_tiny(ctx, &f, tiny("gpt2"), NULL, dtype);
        convert(ctx, &f, "saved", "mc", MC_SAVE_MODELCENTER);
        mc_convert_options o = {.dtype = MC_F16};
        mc_model_convert(ctx, temp_path(&f, "mc"), temp_path(&f, "f16"), &o);
        mc_tensor_file *kept = mc_tensor_file_open(ctx, temp_path(&f, "mc"), NULL);
        mc_tensor_file *half = mc_tensor_file_open(ctx, temp_path(&f, "f16"), NULL);
        assert_good(ctx);
        for (size_t i = 0; i < mc_tensor_file_count(kept); i++)
            assert_int_equal(mc_tensor_file_at(kept, i)->dtype, dtype);
        for (size_t i = 0; i < mc_tensor_file_count(half); i++)
            assert_int_equal(mc_tensor_file_at(half, i)->dtype, MC_F16);
        cJSON *json = config_in(&f, "mc");
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(json, "half")) == (dtype == MC_F16));
        cJSON_Delete(json);
        temp_folder_free(&f);
    }
}

/* ---- what comes along ------------------------------------------------------------------------ */

static void files_come_along(void **state)
{
    mc_context *ctx = *state;
    temp_folder f = temp_folder_new();
    save_tiny(ctx, &f, tiny("bert"), &(mc_model_heads){.lm = true}, MC_F32);
    write_text(temp_path(&f, "saved/vocab.txt"), "[PAD]\n");
    write_text(temp_path(&f, "saved/tokenizer_config.json"), "{}");
    write_text(temp_path(&f, "saved/notes.txt"), "not of a model");
    assert_int_equal(convert(ctx, &f, "saved", "new/mc", MC_SAVE_MODELCENTER), MC_OK);
    assert_int_equal(access(temp_path(&f, "new/mc/vocab.txt"), R_OK), 0);
    assert_int_equal(access(temp_path(&f, "new/mc/tokenizer_config.json"), R_OK), 0);
    assert_int_equal(access(temp_path(&f, "new/mc/notes.txt"), R_OK), -1);
    mc_tensor_file *file = mc_tensor_file_open(ctx, temp_path(&f, "new/mc"), NULL);
    assert_non_null(mc_tensor_file_find(file, "lm_head.decoder.bias"));
    assert_non_null(mc_tensor_file_find(file, "lm_head.decoder.weight")); /* bmt.load is strict */
    assert_null(mc_tensor_file_find(file, "pooler.dense.weight"));        /* the model has none */
    assert_good(ctx);
    temp_folder_free(&f);
}

/* What sentence-transformers needs comes along too, and weights are there once. */
static void folders_come_along(void **state)
{
    mc_context *ctx = *state;
    temp_folder f = temp_folder_new();
    save_tiny(ctx, &f, tiny("bert"), NULL, MC_F32);
    write_text(temp_path(&f, "saved/modules.json"),
               "[{\"path\": \"\"}, {\"path\": \"1_Pooling\"}, {\"path\": \"../away\"}]");
    mkdir(temp_path(&f, "saved/1_Pooling"), 0777);
    write_text(temp_path(&f, "saved/1_Pooling/config.json"), "{\"pooling_mode\": \"cls\"}");
    write_text(temp_path(&f, "saved/sentence_xlnet_config.json"), "{\"max_seq_length\": 9}");
    write_text(temp_path(&f, "saved/task.json"), "{}");
    write_text(temp_path(&f, "saved/finetune.json"), "{}");
    mkdir(temp_path(&f, "away"), 0777);
    assert_int_equal(convert(ctx, &f, "saved", "hf", MC_SAVE_HUGGING_FACE), MC_OK);
    static const char *const there[] = {"modules.json", "1_Pooling/config.json",
                                        "sentence_xlnet_config.json", "task.json"};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        char name[64];
        snprintf(name, sizeof name, "hf/%s", there[i]);
        assert_int_equal(access(temp_path(&f, name), R_OK), 0);
    }
    assert_int_equal(access(temp_path(&f, "hf/finetune.json"), R_OK), -1);
    assert_int_equal(convert(ctx, &f, "saved", "hf", MC_SAVE_HUGGING_FACE), MC_OK); /* again */
    assert_int_equal(access(temp_path(&f, "hf/1_Pooling/config.json"), R_OK), 0);
    assert_int_equal(access(temp_path(&f, "hf/model.tmp"), F_OK), -1);
    assert_int_equal(convert(ctx, &f, "saved", "mc", MC_SAVE_MODELCENTER), MC_OK);
    assert_int_equal(access(temp_path(&f, "mc/pytorch_model.pt"), R_OK), 0);
    assert_int_equal(access(temp_path(&f, "mc/model.safetensors"), R_OK), -1);
    assert_int_equal(access(temp_path(&f, "mc/model.safetensors.index.json"), R_OK), -1);
    assert_good(ctx);
    temp_folder_free(&f);
}

static void rewrite_config(const temp_folder *f, const char *folder, const char *more)
{
    char name[64];
    cJSON *json = config_in(f, folder), *added = cJSON_Parse(more), *item;
    cJSON_ArrayForEach(item, added)
    {
        cJSON_DeleteItemFromObjectCaseSensitive(json, item->string);
        cJSON_AddItemToObject(json, item->string, cJSON_Duplicate(item, true));
    }
    char *text = cJSON_Print(json);
    snprintf(name, sizeof name, "%s/config.json", folder);
    write_text(temp_path(f, name), text);
    cJSON_free(text);
    cJSON_Delete(json);
    cJSON_Delete(added);
}

/* Keys that no table has stay as they were, through loading and saving too; those of ours are
 * ours. */
static void unknown_keys_are_kept(void **state)
{
    mc_context *ctx = *state;
    temp_folder f = temp_folder_new();
    save_tiny(ctx, &f, tiny("bert"), NULL, MC_F32);
    rewrite_config(&f, "saved",
                   "{\"strange\": {\"deep\": [1, null]}, \"task_specific_params\": {\"a\": 2}, "
                   "\"dtype\": \"float32\", \"transformers_version\": \"5.0\"}");
    assert_int_equal(convert(ctx, &f, "saved", "hf", MC_SAVE_HUGGING_FACE), MC_OK);
    mc_model *m = mc_model_from_pretrained(ctx, temp_path(&f, "hf"),
                                           &(mc_load_options){.num_labels = 3, .new_head = true});
    mc_model_save(m, temp_path(&f, "again"));
    assert_good(ctx);
    cJSON *json = config_in(&f, "again");
    char *strange = cJSON_PrintUnformatted(cJSON_GetObjectItem(json, "strange"));
    assert_string_equal(strange, "{\"deep\":[1,null]}");
    assert_true(cJSON_HasObjectItem(json, "task_specific_params"));
    assert_false(cJSON_HasObjectItem(json, "dtype")); /* "torch_dtype" says it */
    assert_false(cJSON_HasObjectItem(json, "transformers_version"));
    cJSON_free(strange);
    cJSON_Delete(json);
    temp_folder_free(&f);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void what_a_form_cannot_say_is_refused(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        const char *family, *config, *error;
        int labels;
    } cases[] = {
        {"gpt2",
         "{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"n_embd\": 16, \"n_layer\": 1, "
         "\"n_head\": 4, \"scale_attn_by_inverse_layer_idx\": true}",
         "\"scale_attn_by_inverse_layer_idx\" has no ModelCenter form"},
        {"llama",
         "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 16, "
         "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
         "\"eos_token_id\": 2, \"rope_theta\": 500000}",
         "the value of \"rope_theta\" has no ModelCenter form"},
        {"llama",
         "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 16, "
         "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
         "\"eos_token_id\": 2, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "the value of \"rope_scaling\" (or \"rope_parameters\") has no ModelCenter form"},
        {"llama",
         "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 16, "
         "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
         "\"eos_token_id\": 2, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}}",
         "(or \"rope_parameters\") has no"},
        {"llama",
         "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 16, "
         "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
         "\"eos_token_id\": 2, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": "
         "500000}}",
         "\"rope_theta\" has no"},
        {"roberta",
         "{\"model_type\": \"roberta\", \"vocab_size\": 50, \"hidden_size\": 16, "
         "\"num_hidden_layers\": 1, \"num_attention_heads\": 4}",
         "would be taken for another family's"}, /* two token types */
        {"t5",
         "{\"model_type\": \"t5\", \"vocab_size\": 50, \"d_model\": 16, \"num_layers\": 1, "
         "\"tie_word_embeddings\": false, \"scale_decoder_outputs\": true}",
         "a scaled head that is not the words"},
        {"gpt2",
         "{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"n_embd\": 16, \"n_layer\": 1, "
         "\"n_head\": 4}",
         "a head that classifies sequences", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temp_folder f = temp_folder_new();
        mc_model_heads heads = {.lm = !cases[i].labels, .labels = cases[i].labels};
        save_tiny(ctx, &f, &(tiny_family){cases[i].family, cases[i].config}, &heads, MC_F32);
        convert(ctx, &f, "saved", "mc", MC_SAVE_MODELCENTER);
        assert_error(ctx, MC_ERR_UNSUPPORTED, cases[i].error);
        assert_int_equal(access(temp_path(&f, "mc"), F_OK), -1); /* nothing half made */
        temp_folder_free(&f);
    }
}

static void wrong_folders_are_errors(void **state)
{
    mc_context *ctx = *state;
    temp_folder f = temp_folder_new();
    save_tiny(ctx, &f, tiny("gpt2"), NULL, MC_F32);
    convert(ctx, &f, "saved", "saved/../saved", MC_SAVE_MODELCENTER);
    assert_error(ctx, MC_ERR_ARGUMENT, "expected another folder than the model's own");
    assert_int_equal(mc_model_convert(ctx, temp_path(&f, "saved"), NULL, NULL), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "NULL");
    convert(ctx, &f, "nothing/here", "mc", MC_SAVE_MODELCENTER);
    assert_error(ctx, MC_ERR_NOT_FOUND, "nothing/here");
    write_text(temp_path(&f, "file"), "");
    convert(ctx, &f, "saved", "file", MC_SAVE_MODELCENTER);
    assert_error(ctx, MC_ERR_IO, "not a folder");
    temp_folder_free(&f);
}

/* Each allocation in turn fails while a folder is replaced; it is the old one or the new one. */
static void failing_allocations_leave_a_whole_folder(void **state)
{
    mc_context *ctx = *state;
    static float wanted[MOST_LOGITS];
    temp_folder f = temp_folder_new();
    mc_model *m = save_tiny(ctx, &f, tiny("gpt2"), NULL, MC_F32);
    int64_t count = logits_of(ctx, m, wanted);
    assert_int_equal(convert(ctx, &f, "saved", "mc", MC_SAVE_MODELCENTER), MC_OK);
    for (long nth = 1, most = is_available(HOST) ? nth : 0; nth <= most; nth++) {
        fail_at(HOST, nth, false);
        mc_status status = convert(ctx, &f, "saved", "mc", MC_SAVE_MODELCENTER);
        most = stop_failing(HOST);
        assert_true(was_clean(ctx, "converting", nth) == (status != MC_OK));
        if (nth % 16 == 0) /* which takes longer than all else */
            assert_true(distance(ctx, temp_path(&f, "mc"), "gpt2", wanted, count) == 0);
    }
    assert_true(distance(ctx, temp_path(&f, "mc"), "gpt2", wanted, count) == 0);
    temp_folder_free(&f);
}

static void same_text(const temp_folder *f, const char *one, const char *other)
{
    mc_error err = {0};
    size_t sizes[2];
    char *text = mc_file_read(&err, temp_path(f, one), 1 << 16, &sizes[0]);
    char *again = mc_file_read(&err, temp_path(f, other), 1 << 16, &sizes[1]);
    assert_non_null(text);
    assert_non_null(again);
    assert_string_equal(again, text);
    mc_free(text);
    mc_free(again);
}

/* Saves what a folder has again, and compares a file. */
static void check_again(mc_context *ctx, const temp_folder *f, const char *name, const char *file)
{
    char one[64], other[64];
    snprintf(one, sizeof one, "%s/%s", name, file);
    snprintf(other, sizeof other, "again/%s", file);
    mc_model *m = mc_model_from_pretrained(ctx, temp_path(f, name), NULL);
    mc_model_save(m, temp_path(f, "again"));
    assert_good(ctx);
    same_text(f, one, other);
    mc_model_free(m);
}

/* In a program whose numbers have a comma. */
static void a_locale_changes_no_file(void **state)
{
    mc_context *ctx = *state;
    temp_folder f = temp_folder_new();
    const mc_lora_options lora = {.rank = 2, .alpha = 2.5f, .dropout = 0.1f};
    for (int i = 0; i < TINY_FAMILIES; i++) {
        mc_model *m = tiny_model(ctx, &tiny_families[i], NULL);
        mc_model_save(m, temp_path(&f, tiny_families[i].name));
        mc_model_free(m);
    }
    mc_model *adapter =
        mc_model_from_pretrained(ctx, temp_path(&f, "bert"), &(mc_load_options){.lora = &lora});
    mc_model_save(adapter, temp_path(&f, "adapter"));
    assert_good(ctx);
    begin_comma_locale();
    check_again(ctx, &f, "adapter", "adapter_config.json");
    temp_folder again = {{0}};
    snprintf(again.path, sizeof again.path, "%.500s/again", f.path);
    temp_folder_free(&again);
    for (int i = 0; i < TINY_FAMILIES; i++)
        check_again(ctx, &f, tiny_families[i].name, "config.json");
    end_comma_locale();
    temp_folder_free(&f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(families_go_there_and_back),
                                       TEST(modelcenter_finds_what_it_reads),
                                       TEST(dtypes_are_kept),
                                       TEST(files_come_along),
                                       TEST(folders_come_along),
                                       TEST(unknown_keys_are_kept),
                                       TEST(what_a_form_cannot_say_is_refused),
                                       TEST(wrong_folders_are_errors),
                                       TEST(a_locale_changes_no_file),
                                       TEST(failing_allocations_leave_a_whole_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
