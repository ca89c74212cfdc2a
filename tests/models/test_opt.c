/* OPT: positions that are a running sum of the mask, and what config.json may not say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/opt/opt.h"
#include "tests/models/family_test.h"

enum { TOKENS = 5, WIDE = 8 };

/* Logits of a row of ids under a mask (NULL: none). */
static void logits_of(mc_model *model, const int64_t *ids, const int64_t *mask, int64_t count,
                      float *out)
{
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I64, MC_SHAPE(1, count), ids, false)};
    if (mask) in.mask = mc_tape_input(t, MC_I64, MC_SHAPE(1, count), mask, false);
    mc_tensor *hidden = mc_model_forward(t, model, &in).last_hidden;
    mc_tensor_read_f32(ctx, mc_model_logits(t, model, hidden), out, count * VOCABULARY);
    assert_good(ctx);
    mc_tape_end(t);
}

/* Tokens that a mask hides, before the others and among them, change nothing: as in Hugging Face's
 * OPT, positions pass over them. */
static void test_masked_positions(void **state)
{
    static const int64_t whole[TOKENS] = {3, 14, 15, 9, 26};
    static const int64_t ids[WIDE] = {7, 3, 14, 5, 5, 15, 9, 26};
    static const int64_t mask[WIDE] = {0, 1, 1, 0, 0, 1, 1, 1};
    static float expected[TOKENS * VOCABULARY], found[WIDE * VOCABULARY];
    static const tiny_family no_last_norm = {
        "opt", "{\"vocab_size\": 50, \"hidden_size\": 16, \"ffn_dim\": 40, "
               "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"enable_bias\": false, "
               "\"_remove_final_layer_norm\": true, \"init_std\": 0.2}"};
    for (int f = 0; f <= TINY_FAMILIES; f++) {
        const tiny_family *family = f < TINY_FAMILIES ? &tiny_families[f] : &no_last_norm;
        if (strcmp(family->name, "opt") != 0) continue;
        mc_model *model = tiny_model(*state, family, NULL);
        logits_of(model, whole, NULL, TOKENS, expected);
        logits_of(model, ids, mask, WIDE, found);
        for (int i = 0, k = 0; i < WIDE; i++) {
            for (int c = 0; mask[i] && c < VOCABULARY; c++)
                assert_near((double)found[i * VOCABULARY + c], (double)expected[k * VOCABULARY + c],
                            1e-5);
            k += (int)mask[i];
        }
        mc_model_free(model);
    }
}

static const struct {
    const char *text;
    mc_status status;
    const char *words[2];
} bad[] = {
    {"{\"num_attention_heads\": 5}", MC_ERR_FORMAT, {"5 heads", "make up dim"}},
    {"{\"word_embed_proj_dim\": 0}", MC_ERR_FORMAT, {"word_embed_proj_dim", "or null"}},
    {"{\"max_position_embeddings\": 0}", MC_ERR_FORMAT, {"max_position_embeddings", "from 1"}},
    {"{\"layerdrop\": 0.1}", MC_ERR_UNSUPPORTED, {"layerdrop", "expected 0"}},
    {"{\"layer_norm_elementwise_affine\": false}",
     MC_ERR_UNSUPPORTED,
     {"layer_norm_elementwise_affine", "expected true"}},
    {"{\"activation_function\": \"mish\"}", MC_ERR_UNSUPPORTED, {"activation_function", "relu"}},
    {"{\"dim_head\": 64, \"post_layer_norm\": true}", MC_ERR_UNSUPPORTED, {"post_layer_norm"}},
};

static void test_configs(void **state)
{
    mc_context *ctx = *state;
    mc_opt_config c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(model_of(ctx, "opt", bad[i].text, NULL, NULL));
        for (int w = 0; w < 2 && bad[i].words[w]; w++)
            if (mc_error_status(ctx) != bad[i].status ||
                !strstr(mc_error_message(ctx), bad[i].words[w]))
                fail_msg("%s: no \"%s\" in \"%s\"", bad[i].text, bad[i].words[w],
                         mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    assert_int_equal(mc_opt_config_named(ctx, "facebook/opt-350m", &c), MC_OK);
    assert_int_equal(c.word_dim, 512);
    assert_false(c.norm_before);
    assert_int_equal(mc_opt_config_named(ctx, "opt-66b", &c), MC_OK);
    assert_int_equal(c.word_dim, 9216);
    assert_true(c.norm_before);
}

/* opt-350m's shape has no ModelCenter form. */
static void test_own_form(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    const tiny_family *narrow = tiny("opt") + 1;
    mc_model *model = tiny_model(ctx, narrow, NULL);
    mc_model_save_as(model, folder.path, &(mc_save_options){.form = MC_SAVE_MODELCENTER});
    assert_error(ctx, MC_ERR_UNSUPPORTED, "OPT", "no ModelCenter form");
    mc_model_free(model);
    temp_folder_free(&folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_masked_positions),
        TEST(test_configs),
        TEST(test_own_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
