/* Generation by every family that decodes: the cache and an encoder's memory against running
 * everything again, batches of prompts against prompts alone, beams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/generate/generate_internal.h"
#include "tests/models/family_test.h"

enum { PROMPTS = 4, MOST = 8, ANSWER = 12 };

static const int32_t prompt_ids[PROMPTS][MOST] = {
    {3, 14, 15, 9, 26}, {5}, {35, 8, 9, 7, 9, 3, 23, 8}, {2, 7}};
static const int prompt_lengths[PROMPTS] = {5, 1, 8, 2};
static const int32_t *const prompts[PROMPTS] = {prompt_ids[0], prompt_ids[1], prompt_ids[2],
                                                prompt_ids[3]};

static mc_tensor *row_of(mc_tape *t, const int32_t *ids, int n)
{
    return mc_tape_input(t, MC_I32, MC_SHAPE(1, n), ids, false);
}

/* Logits of the token after a prompt and `given` tokens of its answer, from nothing. */
static void run_whole(mc_model *model, int prompt, const int32_t *answer, int given,
                      float logits[VOCABULARY])
{
    mc_context *ctx = mc_model_module(model)->ctx;
    int32_t ids[MOST + ANSWER + 1], context[MOST + ANSWER + 1] = {0};
    int n = prompt_lengths[prompt];
    bool two = is_kind(model, MC_MODEL_ENCODER_DECODER);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {0};
    memcpy(ids, prompts[prompt], (size_t)n * sizeof *ids);
    if (two) {
        in.ids = row_of(t, ids, n);
        ids[0] = (int32_t)mc_model_get_shape(model).start_token;
        n = 1;
    }
    for (int i = 0; i < n; i++) context[i] = 1;
    memcpy(ids + n, answer, (size_t)given * sizeof *ids);
    *(two ? &in.decoder_ids : &in.ids) = row_of(t, ids, n + given);
    if (model->family->has.marks) in.context = row_of(t, context, n + given);
    mc_tensor *hidden = mc_model_forward(t, model, &in).last_hidden;
    mc_tensor *last = mc_gather_rows(t, hidden, (int32_t[]){n + given - 1}, 1);
    mc_tensor_read_f32(ctx, mc_model_logits(t, model, last), logits, VOCABULARY);
    assert_good(ctx);
    mc_tape_end(t);
}

/* The answer's log-probability, token by token; with `greedy` each is the most probable one. */
static double score_of(mc_model *model, int prompt, const int32_t *answer, int count, bool greedy)
{
    double score = 0;
    for (int k = 0; k < count; k++) {
        float logits[VOCABULARY];
        run_whole(model, prompt, answer, k, logits);
        if (greedy) assert_int_equal(answer[k], mc_most_probable(logits, VOCABULARY));
        score += (double)logits[answer[k]] - mc_log_sum_exp(logits, VOCABULARY);
    }
    return score;
}

static mc_generation *generate(mc_model *model, int first, int count, const mc_generate_options *o)
{
    mc_generation *out =
        mc_model_generate(model, prompts + first, prompt_lengths + first, count, o);
    assert_good(mc_model_module(model)->ctx);
    assert_int_equal(out->count, count);
    return out;
}

/* Whether the family decodes; its model. */
static mc_model *decoder(mc_context *ctx, int f)
{
    mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
    if (!is_kind(model, MC_MODEL_ENCODER)) return model;
    mc_model_free(model);
    return NULL;
}

static void test_greedy(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = decoder(ctx, f);
        if (!model) continue;
        mc_generation *got =
            generate(model, 0, PROMPTS,
                     &(mc_generate_options){.max_new_tokens = ANSWER, .ignore_eos = true});
        bool differ = false;
        for (int i = 0; i < PROMPTS; i++) {
            assert_int_equal(got->lengths[i], ANSWER);
            assert_near(got->scores[i], score_of(model, i, got->ids[i], ANSWER, true), 1e-3);
            differ |= memcmp(got->ids[i], got->ids[0], ANSWER * sizeof(int32_t)) != 0;
        }
        if (!differ) fail_msg("%s: prompts without effect", tiny_families[f].name);
        mc_model_free(model);
    }
}

/* Sequences change places and go on with another's tokens, each with its own prompt's memory. */
static void test_beams(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = decoder(ctx, f);
        if (!model) continue;
        mc_generate_options o = {.max_new_tokens = ANSWER, .num_beams = 3, .length_penalty = 0.5f};
        mc_generation *together = generate(model, 0, PROMPTS, &o);
        for (int i = 0; i < PROMPTS; i++) {
            int count = together->lengths[i];
            mc_generation *alone = generate(model, i, 1, &o);
            assert_int_equal(alone->lengths[0], count);
            assert_memory_equal(alone->ids[0], together->ids[i], (size_t)count * sizeof(int32_t));
            double score = score_of(model, i, together->ids[i], count, false);
            assert_near(together->scores[i], score / sqrt(count), 1e-3);
            mc_generation_free(alone);
        }
        mc_model_free(model);
    }
}

/* Answers that end leave the others as they are. */
static void test_endings(void **state)
{
    mc_context *ctx = *state;
    int32_t eos[VOCABULARY / 5];
    for (int i = 0; i < VOCABULARY / 5; i++) eos[i] = 5 * i;
    int early = 0;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = decoder(ctx, f);
        if (!model) continue;
        mc_generate_options o = {.max_new_tokens = ANSWER, .eos = eos, .eos_count = VOCABULARY / 5};
        mc_generation *got = generate(model, 0, PROMPTS, &o);
        for (int i = 0; i < PROMPTS; i++) {
            int count = got->lengths[i];
            score_of(model, i, got->ids[i], count, true);
            assert_true(count == ANSWER || got->ids[i][count - 1] % 5 == 0);
            for (int k = 0; k + 1 < count; k++) assert_true(got->ids[i][k] % 5 != 0);
            early += count < ANSWER;
        }
        mc_model_free(model);
    }
    assert_true(early > 3);
}

static void test_refusals(void **state)
{
    mc_context *ctx = *state;
    mc_model *bert = tiny_model(ctx, tiny("bert"), NULL);
    assert_null(mc_model_generate(bert, prompts, prompt_lengths, PROMPTS, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "BERT", "encoder", "generate");
    assert_null(mc_model_generator_new(bert, prompts, prompt_lengths, PROMPTS, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "BERT", "encoder");
    static const char *const names[] = {"gpt2", "t5"};
    for (int i = 0; i < 2; i++) {
        const tiny_family *f = tiny(names[i]);
        mc_model *model = tiny_model(ctx, f, &(mc_load_options){.num_labels = 2});
        assert_null(mc_model_generate(model, prompts, prompt_lengths, PROMPTS, NULL));
        assert_error(ctx, MC_ERR_STATE, "no language model head");
        model = tiny_model(ctx, f, NULL);
        int32_t wrong[] = {3, VOCABULARY};
        assert_null(mc_model_generate(model, (const int32_t *const[]){wrong}, (int[]){2}, 1, NULL));
        assert_error(ctx, MC_ERR_ARGUMENT, "50");
        assert_null(mc_model_generate(model, prompts, (int[]){2, 0}, 2, NULL));
        assert_error(ctx, MC_ERR_ARGUMENT, "prompt 1");
        assert_null(
            mc_model_generator_new(model, prompts, prompt_lengths, PROMPTS,
                                   &(mc_generate_options){.num_beams = 2, .max_new_tokens = 4}));
        assert_error(ctx, MC_ERR_ARGUMENT, "beam");
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_greedy),
        TEST(test_beams),
        TEST(test_endings),
        TEST(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
