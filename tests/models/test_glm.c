/* GLM: passes over whole sequences, packed, padded and recomputed; answers from the cache against
 * whole passes; prompts that have no blank; factors, 8-bit weights, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/generate/generate_internal.h"
#include "models/glm/glm.h"
#include "models/quantize.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"

enum { SOP = 47, EOP = 48, MASK_ID = 49, PROMPTS = 4, MOST = 9, ANSWER = 10 };

/* ---- whole sequences ------------------------------------------------------------------------- */

/* Sequences with blanks at all places, and without. */
static int64_t blank_at(int row, int column)
{
    if (column == row % 3) return MASK_ID;
    if (row != 2 && column == 3 + row % 2) return SOP;
    return id_at(row, column) % 46;
}

static mc_tensor *hidden_of(mc_tape *t, mc_model *m, part p)
{
    const mc_lengths *l = part_lengths(t, batch_lengths, p);
    mc_model_input in = {.ids = tokens_for(t, p, l, WIDTH, blank_at), .lengths = l};
    return mc_model_forward(t, m, &in).last_hidden;
}

static void read_hidden(mc_model *m, part p, float out[BATCH * WIDTH * DIM])
{
    mc_context *ctx = mc_model_module(m)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = hidden_of(t, m, p);
    mc_tensor_read_f32(ctx, x, out, mc_tensor_count(x));
    assert_good(ctx);
    mc_tape_end(t);
}

static void test_ways(void **state)
{
    static float all[2 * BATCH * WIDTH * DIM], other[2 * BATCH * WIDTH * DIM];
    mc_model *m = tiny_model(*state, tiny("glm"), NULL);
    read_hidden(m, (part){LENGTHS, -1}, all);
    int rows = 0;
    for (int r = 0; r < BATCH; r++) {
        read_hidden(m, (part){PACKED, r}, other);
        for (int i = 0; i < batch_lengths[r] * DIM; i++)
            assert_near((double)other[i], (double)all[rows * DIM + i], 1e-5);
        rows += batch_lengths[r];
    }
    read_hidden(m, (part){PACKED_WIDE, -1}, other);
    for (int i = 0; i < rows * DIM; i++) assert_near((double)other[i], (double)all[i], 1e-5);
}

/* The rows after [S] see the text to its end, and the text nothing of them. */
static void test_what_is_seen(void **state)
{
    mc_context *ctx = *state;
    mc_model *m = tiny_model(ctx, tiny("glm"), NULL);
    static const int32_t ids[] = {5, MASK_ID, 6, 7, SOP, 8, 9};
    enum { COUNT = sizeof ids / sizeof *ids };
    float base[COUNT * DIM], changed[COUNT * DIM];
    for (int at = -1; at < COUNT; at++) {
        int32_t copy[COUNT];
        memcpy(copy, ids, sizeof ids);
        if (at == 1 || at == 4) continue;
        if (at >= 0) copy[at] = 30;
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, COUNT), copy, false)};
        mc_tensor_read_f32(ctx, mc_model_forward(t, m, &in).last_hidden, at < 0 ? base : changed,
                           COUNT * DIM);
        assert_good(ctx);
        mc_tape_end(t);
        for (int row = 0; row < COUNT && at >= 0; row++) {
            bool same = memcmp(base + row * DIM, changed + row * DIM, DIM * sizeof *base) == 0;
            if (same != (at > 4 && row < at)) fail_msg("token %d and row %d", at, row);
        }
    }
}

static float *step_of(mc_recompute recompute, int64_t *count)
{
    mc_context *ctx = test_context(5);
    mc_model *m = tiny_model(ctx, tiny("glm"), &(mc_load_options){.recompute = recompute});
    mc_model_set_dropout(m, 0.1f);
    mc_module_zero_grad(mc_model_module(m));
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *hidden = hidden_of(t, m, (part){PACKED, -1});
    mc_tensor *labels =
        numbers_for(t, (part){PACKED, -1}, mc_tensor_lengths(hidden), WIDTH, id_at, -100);
    float *values =
        loss_and_gradients(t, mc_model_module(m), mc_model_loss(t, m, hidden, labels), count);
    mc_tape_end(t);
    mc_context_free(ctx);
    return values;
}

static void test_recompute(void **state)
{
    (void)state;
    int64_t count, n;
    float *kept = step_of(MC_RECOMPUTE_NONE, &count);
    for (mc_recompute r = MC_RECOMPUTE_SELECTIVE; r <= MC_RECOMPUTE_FULL; r++) {
        float *again = step_of(r, &n);
        assert_int_equal(n, count);
        for (int64_t i = 0; i < n; i++) assert_near((double)again[i], (double)kept[i], 1e-5);
        free(again);
    }
    free(kept);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Blanks in the middle and at the end, and a piece that was begun. */
static const int32_t prompt_ids[PROMPTS][MOST] = {{3, 14, MASK_ID, 9, 26, SOP},
                                                  {MASK_ID, SOP},
                                                  {35, 8, 9, 7, MASK_ID, SOP, 23, 8, 1},
                                                  {2, 7, 5, MASK_ID, SOP}};
static const int prompt_lengths[PROMPTS] = {6, 2, 9, 5};
static const int32_t *const prompts[PROMPTS] = {prompt_ids[0], prompt_ids[1], prompt_ids[2],
                                                prompt_ids[3]};

/* The log-probability of an answer, each token from a whole pass; with `greedy` each is the most
 * probable one. */
static double score_of(mc_model *m, int prompt, const int32_t *answer, int count, bool greedy)
{
    mc_context *ctx = mc_model_module(m)->ctx;
    int32_t ids[MOST + ANSWER];
    int n = prompt_lengths[prompt];
    double score = 0;
    memcpy(ids, prompts[prompt], (size_t)n * sizeof *ids);
    memcpy(ids + n, answer, (size_t)count * sizeof *ids);
    for (int k = 0; k < count; k++) {
        float logits[VOCABULARY];
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, n + k), ids, false)};
        mc_tensor *hidden = mc_model_forward(t, m, &in).last_hidden;
        mc_tensor *last = mc_gather_rows(t, hidden, (int32_t[]){n + k - 1}, 1);
        mc_tensor_read_f32(ctx, mc_model_logits(t, m, last), logits, VOCABULARY);
        assert_good(ctx);
        mc_tape_end(t);
        if (greedy) assert_int_equal(answer[k], mc_most_probable(logits, VOCABULARY));
        score += (double)logits[answer[k]] - mc_log_sum_exp(logits, VOCABULARY);
    }
    return score;
}

static void test_answers(void **state)
{
    mc_context *ctx = *state;
    mc_model *m = tiny_model(ctx, tiny("glm"), NULL);
    mc_generate_options how[] = {
        {.max_new_tokens = ANSWER, .ignore_eos = true},
        {.max_new_tokens = ANSWER, .num_beams = 3, .length_penalty = MC_TRUE_ZERO},
        {.max_new_tokens = ANSWER}};
    for (int k = 0; k < 3; k++) {
        mc_generation *got = mc_model_generate(m, prompts, prompt_lengths, PROMPTS, &how[k]);
        assert_good(ctx);
        for (int i = 0; i < PROMPTS; i++) {
            double score = score_of(m, i, got->ids[i], got->lengths[i], k != 1);
            assert_near(got->scores[i], score, 1e-3);
            for (int n = 0; n + 1 < got->lengths[i] && k; n++)
                assert_int_not_equal(got->ids[i][n], EOP);
        }
        mc_generation_free(got);
    }
}

static void answered(void *user, const mc_answer_event *e)
{
    int32_t **at = user;
    if (e->token >= 0) *(*at)++ = e->token;
}

/* A running batch, whose answers join one after the other, gives what a list gives. */
static void test_running_batch(void **state)
{
    mc_context *ctx = *state;
    mc_model *m = tiny_model(ctx, tiny("glm"), NULL);
    const mc_generate_options how = {.max_new_tokens = ANSWER, .ignore_eos = true};
    mc_generation *all = mc_model_generate(m, prompts, prompt_lengths, PROMPTS, &how);
    mc_generator *g = mc_model_generator_open(
        m, &(mc_generator_options){.sequences = 2, .longest = 24, .page = 4, .prompt_piece = 2});
    int32_t got[PROMPTS][ANSWER], *at[PROMPTS];
    for (int i = 0; i < PROMPTS; i++) {
        at[i] = got[i];
        assert_true(mc_generator_add(g, prompts[i], prompt_lengths[i], &how, answered, &at[i]));
    }
    while (mc_generator_step(g)) continue;
    assert_good(ctx);
    for (int i = 0; i < PROMPTS; i++) assert_memory_equal(got[i], all->ids[i], sizeof got[i]);
}

static void test_bad_prompts(void **state)
{
    mc_context *ctx = *state;
    mc_model *m = tiny_model(ctx, tiny("glm"), NULL);
    static const int32_t bad[][3] = {{1, 2, 3}, {1, MASK_ID, 3}, {1, 2, SOP}, {SOP, MASK_ID, 3}};
    for (int i = 0; i < 4; i++) {
        const int32_t *one = bad[i];
        assert_null(mc_model_generate(m, &one, (int[]){3}, 1, NULL));
        assert_error(ctx, MC_ERR_ARGUMENT, "GLM", "the mask (49)", "(47)");
        mc_clear_error(ctx);
    }
    const int32_t *one = prompt_ids[0];
    assert_null(
        mc_model_generate(m, &one, (int[]){6}, 1, &(mc_generate_options){.max_new_tokens = 28}));
    assert_error(ctx, MC_ERR_ARGUMENT, "32 positions");
    mc_clear_error(ctx);
}

/* ---- the rest -------------------------------------------------------------------------------- */

#define TOKENS_ARE "\"sop_tok_id\": 1, \"eop_tok_id\": 2, \"mask_tok_id\": 3"

static void test_files(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    mc_model *m = tiny_model(ctx, tiny("glm"), NULL);
    assert_int_equal(mc_model_save(m, folder.path), MC_OK);
    mc_model *again = mc_model_from_pretrained(ctx, folder.path, NULL);
    assert_good(ctx);
    assert_string_equal(mc_model_family(again), "glm");
    float a[BATCH * WIDTH * DIM] = {0}, b[BATCH * WIDTH * DIM] = {0};
    read_hidden(m, (part){LENGTHS, -1}, a);
    read_hidden(again, (part){LENGTHS, -1}, b);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(mc_model_quantize(again, MC_WEIGHTS_INT8), MC_OK);
    read_hidden(again, (part){LENGTHS, -1}, b);
    for (int i = 0; i < 20 * DIM; i++) assert_near((double)a[i], (double)b[i], 0.2);
    temp_folder_free(&folder);
    static const struct {
        const char *key, *word;
    } bad[] = {{"\"sop_tok_id\": 50, \"eop_tok_id\": 2, \"mask_tok_id\": 3", "sop_tok_id"},
               {TOKENS_ARE ", \"position_size\": 1", "position_size"},
               {TOKENS_ARE ", \"dim_ff\": 0", "dim_ff"},
               {TOKENS_ARE ", \"length_scale\": true", "length_scale"},
               {TOKENS_ARE ", \"pos_bias_type\": \"rotary\"", "pos_bias_type"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char config[512];
        snprintf(config, sizeof config,
                 "{\"vocab_size\": 50, \"dim_model\": 16, \"num_heads\": 4, \"dim_head\": 4, "
                 "%s}",
                 bad[i].key);
        assert_null(model_of(ctx, "glm", config, NULL, NULL));
        assert_error(ctx, mc_error_status(ctx), bad[i].word);
        mc_clear_error(ctx);
    }
}

/* LoRA's usual targets are our names of queries and values. */
static void test_lora(void **state)
{
    mc_context *ctx = *state;
    mc_lora_options lora = {.rank = 2, .alpha = 4};
    mc_model *m = tiny_model(ctx, tiny("glm"), &(mc_load_options){.lora = &lora});
    assert_int_equal(mc_model_trainable_count(m), 2 * 2 * 2 * (16 + 16));
    const mc_soft_prompt_options prompt = {.tokens = 3};
    assert_null(model_of(ctx, "glm", tiny("glm")->config, NULL,
                         &(mc_load_options){.soft_prompt = &prompt}));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "GLM");
    mc_clear_error(ctx);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ways),          TEST(test_what_is_seen),          TEST(test_answers),
        TEST(test_running_batch), TEST(test_bad_prompts),           TEST(test_files),
        TEST(test_lora),          cmocka_unit_test(test_recompute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
