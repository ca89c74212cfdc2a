/* `modelcenter inspect` as a user runs it, on small models of random weights: the table, JSON Lines
 * that are the library's numbers, a text, and what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/shared_data.h"
#include "tests/tools/command_test.h"

enum { LAYERS = 2, DIM = 16 };

static int inspect(const char *arguments)
{
    char line[3000];
    snprintf(line, sizeof line, "$MC inspect %s", arguments);
    return run_in(&folder, "", line);
}

static void save_gpt2(mc_context *ctx)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.dim = DIM;
    c.dim_ff = 32;
    c.layers = LAYERS;
    c.heads = 2;
    c.positions = 40;
    c.init_std = 0.3f;
    mc_model_save(mc_gpt2_new(ctx, &c, NULL, NULL), temp_path(&folder, "model"));
}

static void save_bert(mc_context *ctx)
{
    mc_bert_config c = mc_bert_config_default();
    c.vocab_size = 30;
    c.dim = DIM;
    c.dim_ff = 24;
    c.layers = 1;
    c.heads = 2;
    mc_model_save(mc_bert_new(ctx, &c, &(mc_model_heads){.pooler = true}, NULL),
                  temp_path(&folder, "encoder"));
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 8});
    save_gpt2(ctx);
    save_bert(ctx);
    int bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return bad;
}

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(inspect("model --pattern '*.layernorm_before_ffn.weight'"), 0);
    assert_int_equal(count_lines(out), 1 + LAYERS);
    assert_memory_equal(out, " name  ", 7);
    assert_non_null(strstr(out, "\n encoder.layers.1.ffn.layernorm_before_ffn.weight    (16,)"));
    assert_non_null(strstr(out, " 1.0000    1.0000    0.0000    1.0000    -         -        \n"));
    assert_string_equal(err, "");
    assert_int_equal(inspect("encoder"), 0);
    assert_non_null(strstr(out, "\n pooler.dense.weight "));
    assert_int_equal(inspect("./encoder --family bert --zero-level 0 --pattern 'pooler*'"), 0);
    assert_int_equal(count_lines(out), 3);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static double number(const cJSON *row, const char *key)
{
    const cJSON *value = cJSON_GetObjectItem(row, key);
    assert_true(cJSON_IsNumber(value));
    return value->valuedouble;
}

static void assert_json(const cJSON *json, const mc_inspect_row *row)
{
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "kind")), "parameter");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "name")), row->name);
    const cJSON *shape = cJSON_GetObjectItem(json, "shape");
    assert_int_equal(cJSON_GetArraySize(shape), row->shape.ndim);
    for (int i = 0; i < row->shape.ndim; i++)
        assert_int_equal(cJSON_GetArrayItem(shape, i)->valueint, row->shape.dim[i]);
    assert_true(number(json, "count") == (double)row->count);
    assert_true((float)number(json, "max") == (float)row->max); /* floats are written as such */
    assert_true((float)number(json, "min") == (float)row->min);
    assert_true((float)number(json, "std") == (float)row->std);
    assert_true((float)number(json, "mean") == (float)row->mean);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "grad_std")));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "grad_mean")));
}

/* Every line is what the library says. */
static void test_json(void **state)
{
    (void)state;
    assert_int_equal(inspect("model --json"), 0);
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *gpt2 = mc_gpt2_from_pretrained(ctx, temp_path(&folder, "model"), NULL);
    mc_inspection *table = mc_inspect(mc_model_module(gpt2), NULL);
    assert_false(mc_failed(ctx));
    assert_int_equal(count_lines(out), mc_inspection_count(table));
    char *at = out;
    for (int i = 0; i < mc_inspection_count(table); i++) {
        char *end = strchr(at, '\n');
        *end = '\0';
        cJSON *json = cJSON_Parse(at);
        assert_non_null(json);
        assert_json(json, mc_inspection_row(table, i));
        cJSON_Delete(json);
        at = end + 1;
    }
    mc_context_free(ctx);
}

/* ---- on a text ------------------------------------------------------------------------------- */

static void test_text(void **state)
{
    (void)state;
    const char *vocabulary = shared_path("data/vocab/gpt2");
    if (!vocabulary) skip();
    char command[5000];
    snprintf(command, sizeof command, "cp '%s'/* '%s'", vocabulary, temp_path(&folder, "model"));
    assert_int_equal(system(command), 0);
    assert_int_equal(inspect("model --text 'Hello, world' --pattern 'encoder.out*'"), 0);
    assert_non_null(strstr(out, "\n encoder.output_layernorm.weight "));
    const char *second = strstr(out, "\n\n name ");
    assert_non_null(second);
    assert_int_equal(count_lines(second), 2 + 1 + LAYERS + 1); /* blocks, last_hidden */
    /* three tokens of which each but the first is predicted */
    assert_non_null(strstr(second, "\n encoder.layers.1    (2, 16) "));
    assert_int_equal(inspect("model --text 'Hello, world' --pattern 'encoder.out*' --json"), 0);
    assert_int_equal(count_lines(out), 2 + LAYERS + 1);
    for (char *line = out, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        cJSON *json = cJSON_Parse(line);
        assert_true(number(json, "grad_std") > 0);
        cJSON_Delete(json);
    }
    assert_int_equal(inspect("model --text ''"), 1);
    assert_non_null(strstr(err, "--text: 0 tokens, expected 2 or more"));
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static void test_wrong(void **state)
{
    (void)state;
    assert_int_equal(inspect(""), 2);
    assert_non_null(strstr(err, "model"));
    assert_int_equal(inspect("model --pattern 'nothing.*'"), 1);
    assert_non_null(strstr(err, "\"nothing.*\" matches no parameter"));
    assert_string_equal(out, "");
    assert_int_equal(inspect("nowhere"), 1);
    assert_non_null(strstr(err, "nowhere"));
    assert_int_equal(inspect("gpt2-nowhere"), 1);
    assert_non_null(strstr(err, "gpt2-nowhere"));
    assert_int_equal(inspect("model --family bert"), 1);
    assert_non_null(strstr(err, "config.json: the model is a GPT-2, expected a BERT"));
    assert_int_equal(inspect("encoder --text word"), 1); /* it has no tokenizer */
    assert_non_null(strstr(err, "encoder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
