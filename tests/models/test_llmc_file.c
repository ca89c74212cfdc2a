/* llm.c's checkpoints of GPT-2: a model loaded from one computes what the model computes that was
 * written into it; headers that are wrong are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/models/gpt2_test.h"

enum { PADDED = (VOCABULARY + 15) / 16 * 16, HEADER = 256 };

/* Writes the tensor of each layer, or the one outside of them: transposed where llm.c's is
 * (out, in) and Hugging Face's (in, out). */
static void write_tensor(FILE *out, mc_tensor_file *file, const char *end, int layers, bool bfloat)
{
    for (int layer = 0; layer < layers; layer++) {
        char name[128];
        if (layers > 1)
            snprintf(name, sizeof name, "transformer.h.%d.%s", layer, end);
        else
            snprintf(name, sizeof name, "transformer.%s", end);
        const mc_tensor_entry *e = mc_tensor_file_find(file, name);
        assert_non_null(e);
        float *values = malloc((size_t)e->count * sizeof *values);
        assert_int_equal(mc_tensor_file_read_f32(file, e, 0, e->count, values), MC_OK);
        bool turn = layers > 1 && e->ndim == 2;
        int64_t rows = e->shape[0], columns = turn ? e->shape[1] : 1;
        for (int64_t i = 0; i < e->count; i++) {
            float value = values[turn ? i % rows * columns + i / rows : i];
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            bits >>= bfloat ? 16 : 0;
            fwrite(&bits, bfloat ? 2 : 4, 1, out);
        }
        free(values);
    }
}

/* The model in `folder` as llm.c writes it. */
static void write_llmc(mc_context *ctx, const char *folder, const char *path, bool bfloat)
{
    static const char *const layered[] = {
        "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
        "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
        "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
    mc_gpt2_config c = small_config();
    mc_tensor_file *file = mc_tensor_file_open(ctx, folder, NULL);
    assert_non_null(file);
    int layers = (int)c.layers;
    int32_t header[HEADER] = {20240326,   bfloat ? 5 : 3,  (int32_t)c.positions,
                              VOCABULARY, (int32_t)layers, (int32_t)c.heads,
                              DIM,        PADDED};
    static const char zeros[PADDED * DIM * 4];
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(header, sizeof header, 1, out);
    write_tensor(out, file, "wte.weight", 1, bfloat);
    fwrite(zeros, (PADDED - VOCABULARY) * DIM * (bfloat ? 2 : 4), 1, out);
    write_tensor(out, file, "wpe.weight", 1, bfloat);
    for (size_t i = 0; i < sizeof layered / sizeof *layered; i++)
        write_tensor(out, file, layered[i], layers, bfloat);
    write_tensor(out, file, "ln_f.weight", 1, bfloat);
    write_tensor(out, file, "ln_f.bias", 1, bfloat);
    assert_int_equal(fclose(out), 0);
    mc_tensor_file_free(file);
}

static void read_logits(mc_context *ctx, mc_model *gpt2, float out[BATCH * WIDTH * VOCABULARY])
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = make_batch(t, MASK);
    mc_tensor *x = mc_model_logits(t, gpt2, mc_model_forward(t, gpt2, &in).last_hidden);
    mc_tensor_read_f32(ctx, x, out, BATCH * WIDTH * VOCABULARY);
    assert_good(ctx);
    mc_tape_end(t);
}

static void a_file_is_a_model(void **state)
{
    mc_context *ctx = *state;
    static float first[BATCH * WIDTH * VOCABULARY], second[BATCH * WIDTH * VOCABULARY];
    for (int bfloat = 0; bfloat < 2; bfloat++) {
        temp_folder folder = temp_folder_new();
        mc_gpt2_config config = small_config();
        config.dim_ff = 4 * DIM;
        mc_load_options options = {.dtype = bfloat ? MC_BF16 : MC_F32}, as_saved = {0};
        as_saved.saved_dtype = true;
        mc_model *gpt2 = mc_gpt2_new(ctx, &config, NULL, &options);
        assert_int_equal(mc_model_save(gpt2, folder.path), MC_OK);
        const char *path = temp_path(&folder, "gpt2.bin");
        write_llmc(ctx, folder.path, path, bfloat);
        mc_model *loaded = mc_model_from_pretrained_of(ctx, "gpt2", path, &as_saved);
        assert_good(ctx);
        assert_int_equal(mc_model_module(loaded)->root->dtype, options.dtype);
        read_logits(ctx, gpt2, first);
        read_logits(ctx, loaded, second);
        assert_memory_equal(first, second, sizeof first);
        assert_null(mc_model_from_pretrained_of(ctx, "t5", path, NULL));
        assert_int_equal(mc_error_status(ctx), MC_ERR_UNSUPPORTED);
        mc_clear_error(ctx);
        temp_folder_free(&folder);
    }
}

static void expect_refused(mc_context *ctx, const char *path, const char *message)
{
    assert_null(mc_model_from_pretrained(ctx, path, NULL));
    if (!strstr(mc_error_message(ctx), message))
        fail_msg("\"%s\" not in: %s", message, mc_error_message(ctx));
    mc_clear_error(ctx);
}

static void bad_headers_are_refused(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "gpt2.bin");
    int32_t header[HEADER] = {20240326, 4, 8, 10, 1, 2, 4, 16};
    write_bytes(path, header, 100);
    expect_refused(ctx, path, "100 bytes, less than llm.c's header of 1024");
    write_bytes(path, header, sizeof header);
    expect_refused(ctx, path, "checkpoint version 4: expected 3 or 5");
    header[1] = 3;
    write_bytes(path, header, sizeof header);
    expect_refused(ctx, path, "1024 bytes, but its header's 348 parameters of F32 make 2416");
    header[7] = 9;
    write_bytes(path, header, sizeof header);
    expect_refused(ctx, path, "a vocabulary of 10 padded to 9");
    header[4] = -1;
    write_bytes(path, header, sizeof header);
    expect_refused(ctx, path, "header number 4 is -1: expected 1 to");
    temp_folder_free(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_is_a_model, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(bad_headers_are_refused, set_up_context, tear_down_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
