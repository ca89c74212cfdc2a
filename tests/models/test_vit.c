/* ViT: files of images' forms, what its config may say, recomputed passes, 8-bit weights, LoRA, and
 * inputs that it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/quantize.h"
#include "tests/device_choice.h"
#include "models/vit/vit.h"
#include "tests/models/family_test.h"

enum { IMAGES = 3, SIDE = 6, PIXELS = IMAGES * 3 * SIDE * SIDE, TOKENS = 10, LABELS = 4 };

/* A config with this many heads, and further keys. */
#define CONFIG(heads, more)                                                     \
    "{\"model_type\": \"vit\", \"hidden_size\": 16, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": " #heads ", \"image_size\": 6, \"initializer_range\": 0.2" more "}"

static mc_model *tiny_vit(mc_context *ctx, const mc_load_options *options)
{
    return model_of(ctx, "vit", tiny("vit")->config, NULL, options);
}

static mc_tensor *pixels_of(mc_tape *t, int images)
{
    float values[PIXELS];
    for (int i = 0; i < PIXELS; i++) values[i] = (float)((i * 37 + i / 7 * 11) % 101) / 50 - 1;
    return mc_tape_input(t, MC_F32, MC_SHAPE(images, 3, SIDE, SIDE), values, false);
}

static mc_tensor *loss_of(mc_tape *t, mc_model *m)
{
    mc_model_output out = mc_model_forward(t, m, &(mc_model_input){.pixels = pixels_of(t, IMAGES)});
    mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(IMAGES), (int32_t[]){2, 0, 3}, false);
    return mc_cross_entropy(t, mc_model_classify(t, m, &out), labels, NULL);
}

static float *step_of(mc_recompute recompute, int64_t *count)
{
    mc_context *ctx = test_context(5);
    mc_load_options o = {.num_labels = LABELS, .recompute = recompute};
    mc_model *m = tiny_vit(ctx, &o);
    mc_module_zero_grad(mc_model_module(m));
    mc_model_set_dropout(m, 0.1f);
    mc_tape *t = mc_tape_begin(ctx);
    float *values = loss_and_gradients(t, mc_model_module(m), loss_of(t, m), count);
    mc_tape_end(t);
    mc_context_free(ctx);
    return values;
}

/* Every gradient is there, and the same however much is computed again. */
static void test_recompute(void **state)
{
    (void)state;
    int64_t count, n;
    float *kept = step_of(MC_RECOMPUTE_NONE, &count);
    for (mc_recompute r = MC_RECOMPUTE_SELECTIVE; r <= MC_RECOMPUTE_FULL; r++) {
        float *again = step_of(r, &n);
        assert_int_equal(n, count);
        for (int64_t i = 0; i < n; i++) assert_near((double)again[i], (double)kept[i], 1e-6);
        free(again);
    }
    free(kept);
}

static void read_logits(mc_model *m, int images, float *out)
{
    mc_context *ctx = mc_model_module(m)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_output o = mc_model_forward(t, m, &(mc_model_input){.pixels = pixels_of(t, images)});
    mc_tensor_read_f32(ctx, mc_model_classify(t, m, &o), out, images * LABELS);
    assert_good(ctx);
    mc_tape_end(t);
}

/* An image's logits don't depend on those beside it; hidden states have all tokens. */
static void test_alone(void **state)
{
    mc_context *ctx = *state;
    mc_model *m = tiny_vit(ctx, &(mc_load_options){.num_labels = LABELS});
    float all[IMAGES * LABELS], one[LABELS];
    read_logits(m, IMAGES, all);
    read_logits(m, 1, one);
    for (int i = 0; i < LABELS; i++) assert_near((double)one[i], (double)all[i], 1e-5);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_output o = mc_model_forward(
        t, m, &(mc_model_input){.pixels = pixels_of(t, IMAGES), .hidden_states = true});
    assert_true(mc_shape_equal(mc_tensor_shape(o.last_hidden), MC_SHAPE(IMAGES * TOKENS, 16)));
    assert_true(o.hidden_states[0] && o.hidden_states[2] == o.last_hidden);
    mc_tape_end(t);
    mc_model_set_dropout(m, 0);
    assert_int_equal(mc_model_quantize(m, MC_WEIGHTS_INT8), MC_OK);
    float coarse[IMAGES * LABELS], most = 0;
    read_logits(m, IMAGES, coarse);
    for (int i = 0; i < IMAGES * LABELS; i++) {
        assert_near((double)coarse[i], (double)all[i], 0.1);
        most = fmaxf(most, fabsf(coarse[i] - all[i]));
    }
    assert_true(most > 0);
}

/* LoRA's usual targets are queries and values; training lowers the loss. */
static void test_lora(void **state)
{
    mc_context *ctx = *state;
    mc_lora_options lora = {.rank = 2, .alpha = 4};
    mc_model *m = tiny_vit(ctx, &(mc_load_options){.num_labels = LABELS, .lora = &lora});
    assert_good(ctx);
    int64_t trained = mc_model_trainable_count(m);
    assert_int_equal(trained, 2 * 2 * 2 * (16 + 16) + LABELS * 17);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.03f});
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(m));
    mc_optim_manager_add(optim, adam, NULL);
    float first = 0, last = 0;
    for (int i = 0; i < 12; i++) {
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *loss = loss_of(t, m);
        mc_optim_manager_backward(optim, t, loss);
        last = mc_mean_loss(ctx, loss);
        if (!i) first = last;
        mc_tape_end(t);
        mc_optim_manager_step(optim);
    }
    assert_good(ctx);
    assert_true(last < 0.3f * first);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_files(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    float saved[IMAGES * LABELS], loaded[IMAGES * LABELS];
    mc_model *m = tiny_vit(ctx, &(mc_load_options){.num_labels = LABELS});
    mc_image_form form = mc_model_image_form(m);
    assert_true(form.size == SIDE && form.resize && form.filter == MC_IMAGE_BILINEAR &&
                form.tokens == TOKENS && form.mean[1] == 0.5 && form.std[2] == 0.5);
    read_logits(m, IMAGES, saved);
    assert_int_equal(mc_model_save(m, folder.path), MC_OK);
    mc_model *again = mc_vit_from_pretrained(ctx, folder.path, NULL);
    assert_good(ctx);
    read_logits(again, IMAGES, loaded);
    assert_memory_equal(saved, loaded, sizeof saved);
    /* the folder's own form, which is saved again */
    write_text(temp_path(&folder, "preprocessor_config.json"),
               "{\"image_processor_type\": \"ViTImageProcessor\", \"size\": {\"height\": 6, "
               "\"width\": 6}, \"resample\": 3, \"do_normalize\": true, \"image_mean\": [0.1, "
               "0.2, 0.3], \"image_std\": 0.25, \"do_rescale\": false, \"my_own\": null}");
    again = mc_vit_from_pretrained(ctx, folder.path, NULL);
    temp_folder copy = temp_folder_new();
    mc_model_save(again, copy.path);
    again = mc_vit_from_pretrained(ctx, copy.path, NULL);
    assert_good(ctx);
    form = mc_model_image_form(again);
    assert_true(form.filter == MC_IMAGE_BICUBIC && form.factor == 1 && form.mean[2] == 0.3 &&
                form.std[0] == 0.25);
    temp_folder_free(&copy);
    static const char *const bad[][2] = {
        {"{\"size\": 224}", "\"height\" and \"width\" of 6"},
        {"{\"size\": {\"shortest_edge\": 6}}", "\"height\" and \"width\" of 6"},
        {"{\"resample\": 6}", "resample"},
        {"{\"image_mean\": [1, 2]}", "a number, or three"},
        {"{\"image_std\": [1, 0, 1]}", "numbers other than 0"},
        {"{\"do_center_crop\": true}", "do_center_crop"},
        {"{\"image_processor_type\": \"CLIPImageProcessor\"}", "CLIPImageProcessor"},
        {"{\"do_resize\": 3}", "do_resize"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(temp_path(&folder, "preprocessor_config.json"), bad[i][0]);
        assert_null(mc_vit_from_pretrained(ctx, folder.path, NULL));
        if (!strstr(mc_error_message(ctx), bad[i][1]) ||
            !strstr(mc_error_message(ctx), "preprocessor_config.json"))
            fail_msg("%s: %s", bad[i][0], mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    temp_folder_free(&folder);
}

static void test_configs(void **state)
{
    mc_context *ctx = *state;
    static const struct {
        const char *config, *words[2];
    } bad[] = {{CONFIG(4, ", \"patch_size\": 4"), {"\"patch_size\" 4", "a divisor"}},
               {CONFIG(4, ", \"patch_size\": 2, \"num_channels\": 1"), {"\"num_channels\" 1", "3"}},
               {CONFIG(3, ", \"patch_size\": 2"), {"3 heads", "make up dim"}},
               {CONFIG(4, ", \"pooler_act\": \"relu\""), {"pooler_act", "tanh"}},
               {CONFIG(4, ", \"patch_size\": 2, \"pooler_output_size\": 8"),
                {"pooler_output_size", "16"}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(model_of(ctx, "vit", bad[i].config, NULL, NULL));
        for (int k = 0; k < 2; k++)
            if (!strstr(mc_error_message(ctx), bad[i].words[k]))
                fail_msg("%s: %s", bad[i].config, mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    mc_vit_config named;
    assert_int_equal(mc_vit_config_named(ctx, "google/vit-large-patch32-384", &named), MC_OK);
    assert_true(named.dim == 1024 && named.patch_size == 32 && named.image_size == 384);
}

static void test_inputs(void **state)
{
    mc_context *ctx = *state;
    mc_model *m = tiny_vit(ctx, NULL), *bert = tiny_model(ctx, tiny("bert"), NULL);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, 3), NULL, false);
    mc_tensor *pixels = pixels_of(t, 1), *flat = mc_reshape(t, pixels, MC_SHAPE(3, SIDE * SIDE));
    const struct {
        mc_model *model;
        mc_model_input in;
        mc_status status;
        const char *word;
    } bad[] = {{m, {.ids = ids}, MC_ERR_ARGUMENT, "\"ids\""},
               {m, {.pixels = NULL}, MC_ERR_ARGUMENT, "\"pixels\" is NULL"},
               {m, {.pixels = pixels, .mask = ids}, MC_ERR_ARGUMENT, "\"mask\""},
               {m, {.pixels = flat}, MC_ERR_SHAPE, "(batch, 3, 6, 6)"},
               {m, {.pixels = ids}, MC_ERR_SHAPE, "expected floats"},
               {bert, {.ids = ids, .pixels = pixels}, MC_ERR_ARGUMENT, "\"pixels\""}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(mc_model_forward(t, bad[i].model, &bad[i].in).last_hidden);
        assert_error(ctx, bad[i].status, bad[i].word);
        mc_clear_error(ctx);
    }
    mc_tape_end(t);
    const mc_model_heads lm = {.lm = true};
    assert_null(model_of(ctx, "vit", tiny("vit")->config, &lm, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "ViT", "language model");
    mc_clear_error(ctx);
    const mc_soft_prompt_options prompt = {.tokens = 3};
    mc_load_options o = {.num_labels = 2, .soft_prompt = &prompt};
    assert_null(tiny_vit(ctx, &o));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "ViT");
    mc_clear_error(ctx);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute),
        TEST(test_alone),
        TEST(test_lora),
        TEST(test_files),
        TEST(test_configs),
        TEST(test_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
