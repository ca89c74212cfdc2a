/* LLaMA and its relatives: what config.json may and may not say, in both spellings; MiniCPM's
 * scales; what each model type saves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "tests/models/family_test.h"

/* The first of two equal keys counts: what a test adds comes before these. */
#define SIZES                                                              \
    "\"vocab_size\": 50, \"hidden_size\": 16, \"intermediate_size\": 24, " \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "               \
    "\"num_key_value_heads\": 2, \"max_position_embeddings\": 64"
#define TYPE(type) "\"model_type\": \"" type "\", "

static mc_llama_config config_of(mc_context *ctx, const char *text)
{
    mc_llama_config c = {0};
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "config.json");
    write_text(path, text);
    mc_llama_config_read(ctx, path, &c);
    temp_folder_free(&folder);
    return c;
}

/* ---- bad input ------------------------------------------------------------------------------- */

static const struct {
    const char *text;
    mc_status status;
    const char *words[3]; /* beside the file's name */
} bad[] = {
    {"\"num_key_value_heads\": 3", MC_ERR_FORMAT, {"num_key_value_heads", "divisor of the 4"}},
    {"\"num_key_value_heads\": 0", MC_ERR_FORMAT, {"num_key_value_heads", "found 0"}},
    {"\"num_key_value_heads\": 8", MC_ERR_FORMAT, {"num_key_value_heads", "8", "divisor"}},
    {"\"num_attention_heads\": 3", MC_ERR_FORMAT, {"num_attention_heads", "dim 16", "head_dim"}},
    {"\"head_dim\": 5", MC_ERR_FORMAT, {"head_dim", "5", "even"}},
    {"\"head_dim\": 0", MC_ERR_FORMAT, {"head_dim", "found 0", "or null"}},
    {TYPE("mistral") "\"sliding_window\": 0", MC_ERR_FORMAT, {"sliding_window", "from 1"}},
    {TYPE("qwen2") "\"sliding_window\": -4", MC_ERR_FORMAT, {"sliding_window", "from 1"}},
    {"\"hidden_act\": \"mish\"", MC_ERR_UNSUPPORTED, {"hidden_act", "mish", "silu"}},
    {"\"rope_theta\": 0", MC_ERR_FORMAT, {"rope_theta", "found 0"}},
    {"\"rope_scaling\": 3", MC_ERR_FORMAT, {"rope_scaling", "an object"}},
    {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
     MC_ERR_UNSUPPORTED,
     {"rope_scaling.type", "dynamic", "default, linear, llama3 or yarn"}},
    {"\"rope_parameters\": {\"rope_type\": \"longrope\"}",
     MC_ERR_UNSUPPORTED,
     {"rope_parameters.rope_type", "longrope", "yarn"}},
    {"\"rope_parameters\": {\"rope_type\": \"proportional\"}",
     MC_ERR_UNSUPPORTED,
     {"rope_parameters.rope_type", "proportional"}},
    {"\"rope_parameters\": {\"rope_type\": 3}", MC_ERR_FORMAT, {"rope_parameters.rope_type", "3"}},
    {"\"rope_parameters\": {\"rope_type\": \"linear\"}",
     MC_ERR_FORMAT,
     {"rope_parameters.factor", "above 0", "nothing"}},
    {"\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": -2}",
     MC_ERR_FORMAT,
     {"rope_parameters.factor", "-2"}},
    {"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4}",
     MC_ERR_FORMAT,
     {"rope_scaling.high_freq_factor", "more than"}},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"beta_fast\": \"much\"}",
     MC_ERR_FORMAT,
     {"rope_scaling.beta_fast", "much"}},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"truncate\": 1}",
     MC_ERR_FORMAT,
     {"rope_scaling.truncate", "true or false"}},
    {"\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
     MC_ERR_FORMAT,
     {"rope_parameters.partial_rotary_factor", "0.5"}},
    {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
     MC_ERR_UNSUPPORTED,
     {"layer_types", "sliding_attention", "expected full_attention"}},
    {TYPE("qwen2") "\"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", "
                   "\"full_attention\"]",
     MC_ERR_UNSUPPORTED,
     {"layer_types", "full layers first"}},
    {TYPE("qwen2") "\"layer_types\": [\"full_attention\"]",
     MC_ERR_UNSUPPORTED,
     {"layer_types", "each layer"}},
    {TYPE("qwen3") "\"layer_types\": [\"full_attention\", \"chunked\"]",
     MC_ERR_UNSUPPORTED,
     {"layer_types", "chunked"}},
    {TYPE("qwen3_moe") "\"hidden_size\": 16", MC_ERR_UNSUPPORTED, {"qwen3_moe"}},
    {"\"num_hidden_layers\": 4097",
     MC_ERR_FORMAT,
     {"key \"num_hidden_layers\": expected a whole number from 0 to 4096, found 4097"}},
};

static void test_bad_configs(void **state)
{
    mc_context *ctx = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[640];
        snprintf(text, sizeof text, "{%s, " SIZES "}", bad[i].text);
        config_of(ctx, text);
        if (mc_error_status(ctx) != bad[i].status || !strstr(mc_error_message(ctx), "config.json"))
            fail_msg("%s: %s", bad[i].text, mc_error_message(ctx));
        for (int w = 0; w < 3 && bad[i].words[w]; w++)
            if (!strstr(mc_error_message(ctx), bad[i].words[w]))
                fail_msg("no \"%s\" in \"%s\"", bad[i].words[w], mc_error_message(ctx));
        mc_clear_error(ctx);
    }
}

/* ---- good input ------------------------------------------------------------------------------ */

static void assert_same_rope(const mc_rope *a, const mc_rope *b)
{
    assert_near((double)a->theta, (double)b->theta, 0);
    assert_int_equal(a->scaling.type, b->scaling.type);
    assert_near((double)a->scaling.factor, (double)b->scaling.factor, 0);
    assert_near((double)a->scaling.low, (double)b->scaling.low, 0);
    assert_near((double)a->scaling.high, (double)b->scaling.high, 0);
    assert_near((double)a->scaling.original, (double)b->scaling.original, 0);
    assert_int_equal(a->scaling.exact_range, b->scaling.exact_range);
    assert_near((double)a->scaling.attention_factor, (double)b->scaling.attention_factor, 1e-6);
}

static const struct {
    const char *text;
    mc_rope rope;
} ropes[] = {
    {"\"vocab_size\": 50", {.theta = 10000}},
    {"\"rope_theta\": 500, \"rope_scaling\": null", {.theta = 500}},
    {"\"rope_theta\": 500, \"rope_parameters\": {\"rope_theta\": 700}", {.theta = 700}},
    {"\"rope_theta\": 500, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 3}",
     {500, {.type = MC_ROTARY_LINEAR, .factor = 3}}},
    {"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
     "\"high_freq_factor\": 4}",
     {10000, {.type = MC_ROTARY_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 64}}},
    {"\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, "
     "\"original_max_position_embeddings\": 16, \"rope_theta\": 900}",
     {900,
      {.type = MC_ROTARY_YARN,
       .factor = 4,
       .low = 1,
       .high = 32,
       .original = 16,
       .attention_factor = 1.1386294f}}},
    {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, \"beta_fast\": 16, "
     "\"beta_slow\": 2, \"original_max_position_embeddings\": 16, \"truncate\": false, "
     "\"mscale\": 0.5, \"mscale_all_dim\": 1.5}",
     {10000,
      {.type = MC_ROTARY_YARN,
       .factor = 4,
       .low = 2,
       .high = 16,
       .original = 16,
       .exact_range = true,
       .attention_factor = 0.8852352f}}},
    {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"attention_factor\": 0.75}, "
     "\"original_max_position_embeddings\": 32",
     {10000,
      {.type = MC_ROTARY_YARN,
       .factor = 2,
       .low = 1,
       .high = 32,
       .original = 32,
       .attention_factor = 0.75f}}},
};

/* Angles as both spellings give them, which are saved and read again. */
static void test_rope(void **state)
{
    mc_context *ctx = *state;
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++) {
        char text[640];
        temp_folder folder = temp_folder_new();
        snprintf(text, sizeof text, "{%s, " SIZES "}", ropes[i].text);
        mc_llama_config c = config_of(ctx, text);
        assert_good(ctx);
        assert_same_rope(&c.rope, &ropes[i].rope);
        mc_model *model = mc_llama_new(ctx, &c, NULL, NULL);
        assert_int_equal(mc_model_save(model, folder.path), MC_OK);
        assert_int_equal(mc_llama_config_read(ctx, temp_path(&folder, "config.json"), &c), MC_OK);
        assert_same_rope(&c.rope, &ropes[i].rope);
        mc_model_free(model);
        temp_folder_free(&folder);
    }
}

static char warned[512];

static void keep_warning(void *user, mc_log_level level, const char *message)
{
    (void)user;
    if (level == MC_LOG_WARNING) snprintf(warned, sizeof warned, "%s", message);
}

/* A scaling that is added to a file of transformers 5 keeps the file's base, and says that
 * transformers does not. */
static void test_added_scaling(void **state)
{
    mc_context *ctx = *state;
    const mc_rope expected = {900, {.type = MC_ROTARY_LINEAR, .factor = 3}};
    const char *const scalings[] = {"\"factor\": 3", "\"factor\": 3, \"rope_theta\": 900"};
    ctx->log = keep_warning;
    for (int i = 0; i < 2; i++) {
        char text[640];
        warned[0] = 0;
        snprintf(text, sizeof text,
                 "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 900}, "
                 "\"rope_scaling\": {\"type\": \"linear\", %s}, " SIZES "}",
                 scalings[i]);
        mc_llama_config c = config_of(ctx, text);
        assert_good(ctx);
        assert_same_rope(&c.rope, &expected);
        assert_int_equal(strstr(warned, "config.json: \"rope_scaling\"") != NULL, i == 0);
        assert_int_equal(strstr(warned, "the base stays 900") != NULL, i == 0);
    }
}

/* The keys of a saved config.json that only some model types have. */
static bool saves(mc_context *ctx, const char *type, const char *key)
{
    char text[640];
    temp_folder folder = temp_folder_new();
    snprintf(text, sizeof text, "{\"model_type\": \"%s\", " SIZES "}", type);
    mc_model *model = model_of(ctx, "llama", text, NULL, NULL);
    assert_int_equal(mc_model_save(model, folder.path), MC_OK);
    cJSON *json = mc_json_read_object(&ctx->error, temp_path(&folder, "config.json"), 1 << 20);
    assert_good(ctx);
    assert_string_equal(cJSON_GetObjectItem(json, "model_type")->valuestring, type);
    bool has = cJSON_HasObjectItem(json, key);
    cJSON_Delete(json);
    mc_model_save_as(model, folder.path, &(mc_save_options){.form = MC_SAVE_MODELCENTER});
    if (strcmp(type, "llama") == 0)
        assert_good(ctx);
    else
        assert_error(ctx, MC_ERR_UNSUPPORTED, type, "ModelCenter form", "llama");
    mc_model_free(model);
    temp_folder_free(&folder);
    return has;
}

static void test_types(void **state)
{
    mc_context *ctx = *state;
    assert_false(saves(ctx, "llama", "sliding_window"));
    assert_false(saves(ctx, "llama", "scale_emb"));
    assert_true(saves(ctx, "llama", "attention_bias"));
    assert_true(saves(ctx, "mistral", "sliding_window"));
    assert_false(saves(ctx, "mistral", "max_window_layers"));
    assert_true(saves(ctx, "qwen2", "use_sliding_window"));
    assert_false(saves(ctx, "qwen2", "attention_bias"));
    assert_true(saves(ctx, "qwen3", "max_window_layers"));
    assert_true(saves(ctx, "minicpm", "dim_model_base"));
    mc_llama_config c =
        config_of(ctx, "{" TYPE("qwen3") "\"num_key_value_heads\": null, "
                                         "\"use_sliding_window\": true, \"layer_types\": "
                                         "[\"full_attention\", \"sliding_attention\"], " SIZES "}");
    assert_good(ctx);
    assert_int_equal(c.head_dim, 128); /* Qwen3Config's */
    assert_int_equal(c.window, 4096);
    assert_int_equal(c.window_from, 1);
    assert_int_equal(c.key_heads, 4);
}

static void test_names(void **state)
{
    mc_context *ctx = *state;
    mc_llama_config c;
    assert_int_equal(mc_llama_config_named(ctx, "meta-llama/Llama-3.2-1B", &c), MC_OK);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.key_heads, 8);
    assert_int_equal(c.rope.scaling.type, MC_ROTARY_LLAMA3);
    assert_near((double)c.rope.scaling.factor, 32, 0);
    assert_true(c.tied);
    assert_int_equal(mc_llama_config_named(ctx, "mistral-7b", &c), MC_OK);
    assert_string_equal(c.model_type, "mistral");
    assert_int_equal(c.window, 4096);
    assert_int_equal(mc_llama_config_named(ctx, "mistral-7b-v0.3", &c), MC_OK);
    assert_int_equal(c.window, -1);
    assert_int_equal(mc_llama_config_named(ctx, "qwen3-0.6b", &c), MC_OK);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(mc_llama_config_named(ctx, "minicpm-2b", &c), MC_OK);
    assert_near((double)c.embedding_scale, 12, 0);
    assert_true(c.tied);
}

/* ---- MiniCPM --------------------------------------------------------------------------------- */

/* Writes `factor` times the parameters of `from` whose name contains `word` (NULL: none) into
 * those of the same name in `to`. */
static void copy_scaled(mc_model *from, mc_model *to, const char *word, float factor)
{
    static float values[VOCABULARY * DIM * 4];
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(from), &it));) {
        mc_parameter *q = mc_module_find_parameter(mc_model_module(to), mc_parameter_name(p));
        bool scaled = word && strstr(mc_parameter_name(p), word);
        if (!q || (word && !scaled)) continue;
        mc_parameter_read(p, values);
        for (int64_t i = 0; scaled && i < mc_shape_count(mc_parameter_shape(p)); i++)
            values[i] *= factor;
        mc_parameter_write(q, values);
    }
}

/* Its scales are those of a LLaMA whose matrices are scaled. */
static void test_minicpm(void **state)
{
    mc_context *ctx = *state;
    static float ours[MOST_LOGITS], scaled[MOST_LOGITS];
    const char *rest = SIZES ", \"initializer_range\": 0.2, \"tie_word_embeddings\": false}";
    char text[640];
    snprintf(
        text, sizeof text,
        "{" TYPE("minicpm") "\"scale_emb\": 3, \"scale_depth\": 1.4, \"dim_model_base\": 8, %s",
        rest);
    mc_model *minicpm = model_of(ctx, "llama", text, NULL, NULL);
    snprintf(text, sizeof text, "{" TYPE("llama") "%s", rest);
    mc_model *llama = model_of(ctx, "llama", text, NULL, NULL);
    assert_good(ctx);
    copy_scaled(minicpm, llama, NULL, 1);
    copy_scaled(minicpm, llama, "input_embedding", 3);
    copy_scaled(minicpm, llama, "attention_out", 1.4f / sqrtf(2));
    copy_scaled(minicpm, llama, "w_out", 1.4f / sqrtf(2));
    copy_scaled(minicpm, llama, "output_projection", 0.5f);
    int64_t count = family_logits(minicpm, (part){PACKED, -1}, ours);
    assert_int_equal(family_logits(llama, (part){PACKED, -1}, scaled), count);
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)scaled[i]));
        assert_near((double)ours[i], (double)scaled[i], 1e-5);
    }
    assert_true(largest > 0.1);
    mc_model_free(minicpm);
    mc_model_free(llama);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_bad_configs), TEST(test_rope),  TEST(test_added_scaling),
        TEST(test_types),       TEST(test_names), TEST(test_minicpm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
