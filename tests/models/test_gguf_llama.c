/* The LLaMA family as GGUF files: each model type there and back, the order of rotated rows,
 * llama3's scaling as a vector, windows, and what has no form there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/formats/gguf_internal.h"
#include "models/files/convert.h"
#include "models/gguf/gguf_internal.h"
#include "models/llama/llama.h"
#include "tests/models/model_test.h"
#include "tests/temp_folder.h"

enum { POSITIONS = 64, LOGITS = BATCH * WIDTH * VOCABULARY };

static mc_llama_config small_config(const char *type)
{
    mc_llama_config c = mc_llama_config_default();
    c.model_type = type;
    c.vocab_size = VOCABULARY;
    c.dim = DIM;
    c.dim_ff = 40;
    c.layers = 3;
    c.heads = 4;
    c.key_heads = 2;
    c.head_dim = 8;
    c.positions = POSITIONS;
    c.window = -1;
    c.init_std = c.embedding_std = c.ffn_std = 0.3f;
    c.embedding_scale = 3;
    c.depth_scale = 1.4f;
    c.base_dim = 4;
    return c;
}

static mc_model *new_llama(mc_context *ctx, const mc_llama_config *c)
{
    mc_model *m = mc_llama_new(ctx, c, NULL, NULL);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; m && (p = mc_module_next_parameter(&m->module, &it));) {
        if (mc_parameter_shape(p).ndim > 1) continue; /* biases and norms start all alike */
        float values[64];
        const int64_t count = mc_shape_count(mc_parameter_shape(p));
        for (int64_t i = 0; i < count; i++) values[i] = 0.5f + 0.03f * (float)i;
        mc_parameter_write(p, values);
    }
    assert_good(ctx);
    return m;
}

static void logits(mc_context *ctx, mc_model *m, float out[LOGITS])
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    model_batch b = batch_for(t, MASK);
    mc_model_input in = {.ids = b.ids, .mask = b.mask, .lengths = b.lengths};
    mc_tensor_read_f32(ctx, mc_model_logits(t, m, mc_model_forward(t, m, &in).last_hidden), out,
                       LOGITS);
    assert_good(ctx);
    mc_tape_end(t);
}

/* The model that is read from a file of this one has the same logits to the bit. */
static mc_llama_config there_and_back(mc_context *ctx, const mc_llama_config *c, const char *path)
{
    static float first[LOGITS], second[LOGITS];
    mc_model *m = new_llama(ctx, c);
    logits(ctx, m, first);
    mc_gguf_write_model(m, NULL, path, "F32", 0);
    assert_good(ctx);
    mc_model *again = mc_model_from_pretrained(ctx, path, NULL);
    assert_good(ctx);
    logits(ctx, again, second);
    assert_memory_equal(first, second, sizeof first);
    mc_llama_config read = mc_llama_get_config(again);
    mc_model_free(again);
    mc_model_free(m);
    return read;
}

static void test_types(void **state)
{
    (void)state;
    static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3", "minicpm"};
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 5, .log = NULL});
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        mc_llama_config c = small_config(types[i]);
        if (strcmp(types[i], "qwen2") == 0) c.head_dim = DIM / c.heads;
        c.tied = i % 2;
        const bool minicpm = strcmp(types[i], "minicpm") == 0;
        const mc_llama_config read = there_and_back(ctx, &c, temp_path(&folder, types[i]));
        assert_string_equal(read.model_type, i == 1 ? "llama" : types[i]);
        assert_true(read.tied == c.tied && read.head_dim == c.head_dim);
        assert_true(read.key_heads == 2 && read.positions == POSITIONS && read.eps == c.eps);
        if (minicpm) assert_true(read.depth_scale == 1.4f && read.embedding_scale == 3);
        if (minicpm) assert_int_equal(read.base_dim, 4);
    }
    mc_llama_config c = small_config("llama");
    c.attention_bias = c.ffn_bias = true;
    assert_true(there_and_back(ctx, &c, temp_path(&folder, "biased")).ffn_bias);
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* Rows of two heads of four, by which head and place they have. */
static void test_pairs(void **state)
{
    (void)state;
    static const float rows[] = {0, 1, 2, 3, 10, 11, 12, 13};
    static const float pairs[] = {0, 2, 1, 3, 10, 12, 11, 13};
    float out[8], back[8];
    mc_gguf_pair_rows(rows, out, 8, 1, 2, false);
    assert_memory_equal(out, pairs, sizeof pairs);
    mc_gguf_pair_rows(out, back, 8, 1, 2, true);
    assert_memory_equal(back, rows, sizeof rows);
    mc_gguf_pair_rows(rows, out, 4, 2, 1, false); /* of one head, rows of two numbers */
    assert_true(out[2] == 10 && out[3] == 11 && out[4] == 2 && out[5] == 3);
}

/* Whether the row that follows a head's first one in a file is the one half a head later. */
static bool is_paired(mc_context *ctx, const char *type, const char *path)
{
    mc_file_map map;
    mc_gguf g;
    mc_llama_config c = small_config(type);
    if (strcmp(type, "qwen2") == 0) c.head_dim = DIM / c.heads;
    float second[DIM];
    mc_model *m = new_llama(ctx, &c);
    const char *name = "encoder.layers.1.self_att.self_attention.project_k.weight";
    float *values = malloc((size_t)(c.key_heads * c.head_dim * DIM) * sizeof *values);
    mc_gguf_write_model(m, NULL, path, "F32", 0);
    mc_parameter_read(mc_module_find_parameter(&m->module, name), values);
    assert_good(ctx);
    assert_int_equal(mc_file_map_init(&ctx->error, &map, path), MC_OK);
    assert_int_equal(mc_gguf_parse(&ctx->error, &g, map.data, map.size, path), MC_OK);
    mc_gguf_read(mc_gguf_find_tensor(&g, "blk.1.attn_k.weight"), 1, 1, second);
    bool paired = memcmp(second, values + c.head_dim / 2 * DIM, sizeof second) == 0;
    assert_true(paired || memcmp(second, values + DIM, sizeof second) == 0);
    free(values);
    mc_gguf_release(&g);
    mc_file_map_release(&map);
    mc_model_free(m);
    return paired;
}

static void test_order(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 5, .log = NULL});
    assert_true(is_paired(ctx, "llama", temp_path(&folder, "a")));
    assert_true(is_paired(ctx, "minicpm", temp_path(&folder, "b")));
    assert_false(is_paired(ctx, "qwen2", temp_path(&folder, "c")));
    assert_false(is_paired(ctx, "qwen3", temp_path(&folder, "d")));
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* ---- rotary positions ------------------------------------------------------------------------ */

static void test_scaling(void **state)
{
    (void)state;
    static const mc_rotary_scaling cases[] = {
        {MC_ROTARY_DEFAULT},
        {MC_ROTARY_LINEAR, .factor = 4},
        {MC_ROTARY_YARN, .factor = 4, .low = 1, .high = 32, .original = 16},
        {MC_ROTARY_YARN, .factor = 2, .low = 1, .high = 32, .original = 16,
         .attention_factor = 1.5f},
        {MC_ROTARY_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 16},
    };
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 5, .log = NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mc_llama_config c = small_config("llama");
        c.rope = (mc_rope){500000, cases[i]};
        mc_rope read = there_and_back(ctx, &c, temp_path(&folder, "scaled")).rope;
        assert_true(read.theta == 500000 && read.scaling.type == cases[i].type);
        assert_true(read.scaling.factor == cases[i].factor && read.scaling.high == cases[i].high);
        assert_true(read.scaling.original == cases[i].original);
        assert_true(read.scaling.low == cases[i].low);
    }
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* llama3's numbers follow from the vector, of Llama's own configs and of those where few or no
 * pairs lie between the fast and the slow ones. */
static void test_vector(void **state)
{
    (void)state;
    static const struct {
        int64_t head_dim;
        mc_rope rope;
    } cases[] = {{128, {500000, {MC_ROTARY_LLAMA3, 8, 1, 4, 8192}}},
                 {64, {500000, {MC_ROTARY_LLAMA3, 32, 1, 4, 8192}}},
                 {16, {500000, {MC_ROTARY_LLAMA3, 8, 1, 4, 8192}}},
                 {8, {500000, {MC_ROTARY_LLAMA3, 8, 1, 2, 400}}},
                 {64, {10000, {MC_ROTARY_LLAMA3, 2.5f, 2, 7, 300}}},
                 {64, {10000, {MC_ROTARY_LLAMA3, 2.5f, 1, 4, 1}}},     /* all are slow */
                 {16, {10000, {MC_ROTARY_LLAMA3, 8, 1, 4, 1 << 30}}}}; /* all are fast */
    static float divisors[64], again[64];
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mc_rope *r = &cases[i].rope;
        const char *path = temp_path(&folder, "vector.gguf");
        const int64_t pairs = cases[i].head_dim / 2;
        mc_gguf_writer w = {.value_count = 0};
        mc_file_writer file;
        mc_file_map map;
        mc_gguf g;
        mc_gguf_rope_divisors(r, cases[i].head_dim, divisors);
        mc_gguf_put_f32(&w, "llama.rope.freq_base", r->theta);
        mc_gguf_add_tensor(&w, mc_gguf_rope_tensor, mc_gguf_dtype_find("F32"), 1, &pairs);
        float room[64];
        mc_gguf_begin(&ctx->error, &w, &file, path);
        mc_gguf_write(&file, mc_gguf_dtype_find("F32"), divisors, 1, pairs, room);
        mc_gguf_end_tensor(&file, (uint64_t)pairs * 4);
        assert_int_equal(mc_file_commit(&file), MC_OK);
        mc_file_writer_release(&file);
        mc_gguf_writer_release(&w);
        assert_int_equal(mc_file_map_init(&ctx->error, &map, path), MC_OK);
        assert_int_equal(mc_gguf_parse(&ctx->error, &g, map.data, map.size, path), MC_OK);
        cJSON *config = cJSON_CreateObject();
        assert_true(mc_gguf_read_rope(ctx, &g, "llama", cases[i].head_dim, config));
        config = mc_gguf_reread(config);
        mc_rope read = {.theta = r->theta};
        const cJSON *item = cJSON_GetObjectItem(config, "rope_scaling");
        mc_config_reader reader = {.ctx = ctx, .json = config, .path = path, .form = MC_FORM_HF};
        if (cJSON_IsObject(item))
            assert_true(mc_config_read_rope(&reader, "rope_scaling", item, &read));
        else
            read.scaling.factor = 1;
        mc_gguf_rope_divisors(&read, cases[i].head_dim, again);
        for (int64_t k = 0; k < pairs; k++)
            if (fabsf(again[k] / divisors[k] - 1) > 1e-5f)
                fail_msg("case %zu, pair %d: %g, expected %g", i, (int)k, (double)again[k],
                         (double)divisors[k]);
        if (i < 2) assert_true(read.scaling.high == 4 && read.scaling.original == 8192);
        cJSON_Delete(config);
        mc_gguf_release(&g);
        mc_file_map_release(&map);
    }
    assert_good(ctx);
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* ---- what has no form ------------------------------------------------------------------------ */

static int warnings;

static void count_warnings(void *user, mc_log_level level, const char *message)
{
    (void)user;
    warnings += level == MC_LOG_WARNING && strstr(message, "no window") != NULL;
}

/* A file has no window: its context is as long as the window, which needs none. */
static void test_window(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 5, .log = count_warnings});
    mc_llama_config c = small_config("mistral");
    c.window = WIDTH;
    mc_llama_config read = there_and_back(ctx, &c, temp_path(&folder, "a"));
    assert_string_equal(read.model_type, "mistral");
    assert_true(read.window == WIDTH && read.positions == WIDTH);
    assert_int_equal(warnings, 1);
    c.window = POSITIONS; /* as long as the context */
    assert_int_equal(there_and_back(ctx, &c, temp_path(&folder, "a")).positions, POSITIONS);
    c = small_config("qwen3");
    c.window = WIDTH;
    c.use_window = true;
    c.window_from = 3; /* no layer */
    assert_int_equal(there_and_back(ctx, &c, temp_path(&folder, "a")).positions, POSITIONS);
    assert_int_equal(warnings, 1);
    c.window_from = 2;
    assert_int_equal(there_and_back(ctx, &c, temp_path(&folder, "a")).positions, WIDTH);
    assert_int_equal(warnings, 2);
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

static void refuse(mc_context *ctx, const mc_llama_config *c, const char *path, const char *words)
{
    mc_model *m = new_llama(ctx, c);
    mc_gguf_write_model(m, NULL, path, "F16", 0);
    assert_error(ctx, MC_ERR_UNSUPPORTED, words);
    assert_false(mc_path_is_file(path));
    mc_model_free(m);
}

static void test_no_form(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "x.gguf");
    mc_context *ctx = mc_context_new(&(mc_init_options){.log = NULL});
    mc_llama_config c = small_config("qwen2");
    refuse(ctx, &c, path, "\"head_dim\" has no GGUF form");
    c.head_dim = -1;
    c.rope.scaling = (mc_rotary_scaling){MC_ROTARY_LLAMA3, 8, 1, 4, 16};
    refuse(ctx, &c, path, "expected default, linear or yarn");
    c = small_config("qwen3");
    c.attention_bias = true;
    refuse(ctx, &c, path, "\"attention_bias\"");
    c = small_config("llama");
    c.activation = MC_ACTIVATION_GELU;
    refuse(ctx, &c, path, "expected silu");
    c = small_config("llama");
    c.rope.scaling = (mc_rotary_scaling){MC_ROTARY_YARN, 8, 1, 24, 16};
    refuse(ctx, &c, path, "\"beta_fast\"");
    c.rope.scaling = (mc_rotary_scaling){MC_ROTARY_YARN, 8, 1, 32, 16, .exact_range = true};
    refuse(ctx, &c, path, "\"truncate\"");
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* Files whose vector or keys are not those of a scaling. */
static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *find;
        float value;
        const char *expected;
    } cases[] = {{"llama.rope.freq_base", -1, "llama.rope.freq_base\": expected more than 0"},
                 {"", 3.25f, "\"rope_freqs.weight\": expected what llama3"},
                 {"", NAN, "\"rope_freqs.weight\": expected what llama3"},
                 {"", 0, "\"rope_freqs.weight\": expected what llama3"}};
    static uint8_t whole[1 << 20];
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_context_new(&(mc_init_options){.seed = 5, .log = NULL});
    mc_llama_config c = small_config("llama");
    c.rope = (mc_rope){500000, {MC_ROTARY_LLAMA3, 8, 1, 4, 16}};
    mc_gguf_write_model(new_llama(ctx, &c), NULL, temp_path(&folder, "x.gguf"), "F32", 0);
    assert_good(ctx);
    FILE *file = fopen(temp_path(&folder, "x.gguf"), "r");
    size_t size = fread(whole, 1, sizeof whole, file);
    fclose(file);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t length = strlen(cases[i].find);
        uint8_t *at = length ? memmem(whole, size, cases[i].find, length)
                             : whole + size - 20; /* the last pair */
        assert_non_null(at);
        if (length) at += length + 4;
        float before;
        memcpy(&before, at, sizeof before);
        memcpy(at, &cases[i].value, sizeof before);
        write_bytes(temp_path(&folder, "bad.gguf"), whole, size);
        memcpy(at, &before, sizeof before);
        assert_null(mc_model_from_pretrained(ctx, temp_path(&folder, "bad.gguf"), NULL));
        if (!strstr(mc_error_message(ctx), cases[i].expected))
            fail_msg("expected \"%s\", found \"%s\"", cases[i].expected, mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),   cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_scaling),
        cmocka_unit_test(test_vector),  cmocka_unit_test(test_window),
        cmocka_unit_test(test_no_form), cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
