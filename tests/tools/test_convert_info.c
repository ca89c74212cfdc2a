/* `modelcenter convert` and `modelcenter info` as a user runs them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/tools/command_test.h"
#include "tests/zip_sums.h"
#include "tools/files/text.h"

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 8});
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = 40;
    c.dim = 16;
    c.dim_ff = 32;
    c.layers = 2;
    c.heads = 2;
    c.positions = 24;
    mc_model_save(mc_gpt2_new(ctx, &c, NULL, NULL), temp_path(&folder, "gpt2"));
    mc_cpm1_config m = mc_cpm1_config_default();
    m.vocab_size = 40;
    m.dim = 16;
    m.dim_ff = 32;
    m.layers = 1;
    m.heads = 2;
    m.head_dim = 8;
    mc_model_save(mc_cpm1_new(ctx, &m, NULL, NULL), temp_path(&folder, "cpm1"));
    int bad = mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return bad;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void sizes_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes; /* 0: not a size */
    } cases[] = {{"5GB", 5000000000}, {"1.5mb", 1500000}, {"10kb", 10000}, {"2TB", 2000000000000},
                 {"123", 123},        {"0", 0},           {"", 0},         {"GB", 0},
                 {"-1GB", 0},         {"5XB", 0},         {"5 GB", 0},     {"1e30TB", 0},
                 {"0.0001KB", 0},     {"5GBB", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t bytes = 0;
        assert_true(text_parse_bytes(cases[i].text, &bytes) == (cases[i].bytes > 0));
        assert_int_equal(bytes, cases[i].bytes);
    }
}

/* ---- info ------------------------------------------------------------------------------------ */

static double number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(json, key);
    if (!cJSON_IsNumber(item)) fail_msg("no number \"%s\" in: %s", key, out);
    return item->valuedouble;
}

static void info_tells_what_is_there(void **state)
{
    (void)state;
    assert_int_equal(run("$MC info gpt2 --json --tensors"), 0);
    cJSON *json = cJSON_Parse(out);
    assert_non_null(json);
    assert_string_equal(cJSON_GetObjectItem(json, "format")->valuestring, "safetensors");
    assert_true(number(json, "files") == 1 && number(json, "tensors") == 28);
    assert_true(number(json, "bytes") == 4 * number(json, "parameters"));
    const cJSON *f32 = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "dtypes"), "F32");
    assert_true(number(f32, "tensors") == 28);
    assert_string_equal(
        cJSON_GetObjectItem(cJSON_GetObjectItem(json, "metadata"), "format")->valuestring, "pt");
    double bytes = 0;
    const cJSON *item, *list = cJSON_GetObjectItem(json, "tensor_list");
    assert_int_equal(cJSON_GetArraySize(list), 28);
    cJSON_ArrayForEach(item, list)
    {
        bytes += number(item, "bytes");
        assert_int_equal(strlen(cJSON_GetObjectItem(item, "crc32")->valuestring), 8);
    }
    assert_true(bytes == number(json, "bytes"));
    assert_string_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 27), "name")->valuestring,
                        "transformer.wte.weight");
    cJSON_Delete(json);
    assert_int_equal(run("$MC info gpt2/model.safetensors --tensors --no-checksum"), 0);
    must_hold(out, "transformer.wte.weight  F32 (40, 16)  2560 bytes\n");
    must_hold(out, "gpt2/model.safetensors: safetensors, 1 file\nmetadata format: pt\nF32: 28 ");
    assert_null(strstr(out, "crc32"));
}

/* The same tensors have the same checksum however they are cut. */
static void checksums_do_not_depend_on_files(void **state)
{
    (void)state;
    assert_int_equal(run("$MC convert gpt2 cut --to hf --max-shard-size 4KB && "
                         "test $(ls cut | grep -c of-) -gt 3 && "
                         "$MC info gpt2 | grep crc32 > a && $MC info cut | grep crc32 > b && "
                         "cmp a b && $MC info cut/model.safetensors.index.json"),
                     0);
    must_hold(out, " files\nmetadata format: pt\nF32: ");
}

static void gguf_files(void **state)
{
    (void)state;
    must(
        "$MC convert gpt2 whole.gguf --to gguf --dtype f32 && $MC convert whole.gguf of-whole "
        "--to hf && $MC info gpt2 | grep crc32 >a && $MC info of-whole | grep crc32 >b && cmp a b");
    must("$MC generate --model whole.gguf --ids --prompt '1 2' --max-new-tokens 2");
    must_refuse(1, "no key \"tokenizer.ggml.model\": the file has no tokenizer: give one with",
                "$MC generate --model whole.gguf --prompt one");
    must_refuse(1, "whole.gguf exists", "$MC convert gpt2 whole.gguf --to gguf");
    must("$MC convert gpt2 whole.gguf --to gguf --overwrite && head -c 99 whole.gguf >cut.gguf");
    must_refuse(1, "cut.gguf: ", "$MC convert cut.gguf of-cut --to hf");
    must_refuse(1, "a GGUF file", "$MC info whole.gguf");
    must_refuse(1, "expected one of gpt2, bert, modern-bert, t5",
                "$MC convert cpm1 cpm1.gguf --to gguf");
    must_refuse(2, "expected --to gguf", "$MC convert gpt2 eight --to hf --dtype q8_0");
    must("test ! -e of-cut && test ! -e cpm1.gguf && test ! -e eight");
}

/* A PyTorch zip's own checksums: there, absent (a field of 0), and none in other formats. */
static void own_checksums_are_verified(void **state)
{
    (void)state;
    enum { ROOM = 1 << 20 };
    static uint8_t bytes[ROOM];
    const char *path = temp_path(&folder, "torch/pytorch_model.pt");
    assert_int_equal(run("$MC convert gpt2 torch --to modelcenter && "
                         "$MC info torch/pytorch_model.pt --verify"),
                     0);
    must_hold(out, "agree with its bytes");
    assert_null(strstr(out, "no checksums"));
    assert_null(strstr(out, "not verifiable"));
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    size_t size = fread(bytes, 1, ROOM, file);
    assert_in_range(size, 1, ROOM - 1);
    drop_zip_sums(bytes, size);
    rewind(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(run("$MC info torch/pytorch_model.pt --no-checksum"), 0);
    must_hold(out, "no checksums");
    assert_null(strstr(out, "not verifiable"));
    assert_int_equal(run("$MC info torch/pytorch_model.pt --verify"), 0);
    must_hold(out, "no checksums");
    must_hold(out, "not verifiable");
    assert_int_equal(run("$MC info gpt2 --verify"), 0);
    must_hold(out, "not verifiable");
}

static void info_says_what_is_wrong(void **state)
{
    (void)state;
    assert_int_equal(run("$MC info nothing"), 1);
    must_hold(err, "nothing: ");
    write_text(temp_path(&folder, "bad.safetensors"), "not a header at all");
    assert_int_equal(run("$MC info bad.safetensors --json"), 1);
    must_hold(err, "bad.safetensors: ");
    assert_string_equal(out, "");
    assert_int_equal(run("$MC info"), 2);
}

/* ---- convert --------------------------------------------------------------------------------- */

static void convert_writes_both_forms(void **state)
{
    (void)state;
    assert_int_equal(run("$MC convert gpt2 mc --to modelcenter --dtype f16 && "
                         "grep -q '\"dim_model\":.16' mc/config.json && "
                         "$MC info mc --tensors && $MC convert mc back --to hf && "
                         "grep -q GPT2LMHeadModel back/config.json"),
                     0);
    must_hold(out, "input_embedding.weight  F16 (40, 16)");
    must_hold(out, "encoder.layers.1.self_att.self_attention.project_k.weight  F16 (16, 16)");
}

static void convert_says_what_is_wrong(void **state)
{
    (void)state;
    assert_int_equal(run("$MC convert cpm1 x --to hf"), 1);
    must_hold(err, "CPM-1 has no Hugging Face form");
    assert_int_equal(run("$MC convert cpm1 cpm1 --to modelcenter"), 1);
    must_hold(err, "an input is never replaced");
    assert_int_equal(run("$MC convert gpt2 x"), 2);
    must_hold(err, "--to");
    assert_int_equal(run("$MC convert gpt2 x --to hf --max-shard-size 5XB"), 2);
    must_hold(err, "--max-shard-size \"5XB\": expected a size such as 500MB or 5GB");
    assert_int_equal(access(temp_path(&folder, "x"), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(info_tells_what_is_there),
        cmocka_unit_test(checksums_do_not_depend_on_files),
        cmocka_unit_test(gguf_files),
        cmocka_unit_test(own_checksums_are_verified),
        cmocka_unit_test(info_says_what_is_wrong),
        cmocka_unit_test(convert_writes_both_forms),
        cmocka_unit_test(convert_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}
