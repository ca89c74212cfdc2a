/* Generation: the cache against no cache, batches against single prompts, beams, filters, endings,
 * options that make no sense, and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/generate/generate_internal.h"
#include "models/generate/generator.h"
#include "tests/models/gpt2_test.h"
#include "tests/models/prompts_test.h"

static mc_generation *answer(mc_model *gpt2, const mc_generate_options *o)
{
    mc_generation *out = mc_model_generate(gpt2, prompts, prompt_lengths, PROMPTS, o);
    assert_good(gpt2->module.ctx);
    assert_int_equal(out->count, PROMPTS);
    return out;
}

/* Logits of the last token of a sequence, by running all of it. */
static void run_whole(mc_model *gpt2, const int32_t *ids, int n, float *logits)
{
    mc_context *ctx = gpt2->module.ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, n), ids, false)};
    mc_tensor *hidden = mc_model_forward(t, gpt2, &in).last_hidden;
    mc_tensor *last = mc_gather_rows(t, hidden, (int32_t[]){n - 1}, 1);
    mc_tensor_read_f32(ctx, mc_model_logits(t, gpt2, last), logits, VOCABULARY);
    assert_good(ctx);
    mc_tape_end(t);
}

/* ---- greedy ---------------------------------------------------------------------------------- */

/* With a cache as without one, in a batch as alone. */
static void test_cache_changes_nothing(void **state)
{
    (void)state;
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
        mc_model *gpt2 = new_gpt2(ctx, dtype, MC_RECOMPUTE_FULL); /* as for training: no matter */
        mc_generate_options o = {.max_new_tokens = 16, .ignore_eos = true};
        mc_generation *got = answer(gpt2, &o);
        for (int i = 0; i < PROMPTS; i++) {
            int32_t ids[POSITIONS + 1];
            int n = prompt_lengths[i];
            memcpy(ids, prompts[i], (size_t)n * sizeof *ids);
            assert_int_equal(got->lengths[i], 16);
            double score = 0;
            for (int k = 0; k < 16; k++) {
                float logits[VOCABULARY];
                run_whole(gpt2, ids, n, logits);
                int32_t best = mc_most_probable(logits, VOCABULARY), chosen = got->ids[i][k];
                /* 16-bit keys may be rounded where whole sequences keep f32 inside */
                if (dtype == MC_F32) assert_int_equal(chosen, best);
                assert_near(logits[chosen], logits[best], dtype == MC_BF16 ? 0.1 : 0.02);
                score += (double)logits[chosen] - mc_log_sum_exp(logits, VOCABULARY);
                ids[n++] = chosen;
            }
            assert_near(got->scores[i], score, dtype == MC_F32 ? 1e-4 : 0.5);
        }
        mc_context_free(ctx);
    }
}

static void test_steps_are_the_whole(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_generate_options o = {.max_new_tokens = 14, .sample = true, .seed = 12};
    int32_t eos[VOCABULARY / 4];
    for (int i = 0; i < VOCABULARY / 4; i++) eos[i] = 4 * i; /* answers end at different times */
    o.eos = eos;
    o.eos_count = VOCABULARY / 4;
    mc_generation *whole = answer(gpt2, &o);
    mc_generator *g = mc_model_generator_new(gpt2, prompts, prompt_lengths, PROMPTS, &o);
    int given[PROMPTS] = {0};
    int32_t tokens[PROMPTS];
    bool early = false;
    while (mc_generator_next(g, tokens))
        for (int i = 0; i < PROMPTS; i++) {
            if (tokens[i] >= 0) assert_int_equal(tokens[i], whole->ids[i][given[i]++]);
        }
    assert_good(ctx);
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(given[i], whole->lengths[i]);
        bool ended = whole->ids[i][given[i] - 1] % 4 == 0 && whole->ids[i][given[i] - 1] < 48;
        assert_true(ended || given[i] == 14);
        early |= given[i] < 14;
        for (int k = 0; k + 1 < given[i]; k++)
            assert_true(whole->ids[i][k] % 4 != 0 || whole->ids[i][k] >= 48);
    }
    assert_true(early);
    assert_false(mc_generator_next(g, tokens));
    mc_generator_free(g);
    mc_generation_free(whole);
    assert_int_equal(mc_model_generate(gpt2, NULL, NULL, 0, NULL)->count, 0);
    assert_good(ctx);
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* What is drawn depends on the seed and the prompt's place, not on its neighbours. */
static void test_sampling_is_reproducible(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_generate_options o = {
        .max_new_tokens = 10, .sample = true, .temperature = 1.5f, .seed = 3, .ignore_eos = true};
    mc_generation *a = answer(gpt2, &o), *b = answer(gpt2, &o);
    o.seed = 4;
    mc_generation *c = answer(gpt2, &o);
    int different = 0;
    for (int i = 0; i < PROMPTS; i++) {
        assert_memory_equal(a->ids[i], b->ids[i], 10 * sizeof(int32_t));
        different += memcmp(a->ids[i], c->ids[i], 10 * sizeof(int32_t)) != 0;
    }
    assert_int_equal(different, PROMPTS);
    o.seed = 3;
    for (int i = 0; i < PROMPTS; i++) {
        o.first_prompt = i;
        mc_generation *one = mc_model_generate(gpt2, prompts + i, prompt_lengths + i, 1, &o);
        assert_good(ctx);
        assert_memory_equal(one->ids[0], a->ids[i], 10 * sizeof(int32_t));
    }
    o.top_k = 1; /* only the most probable is left */
    mc_generation *greedy =
        answer(gpt2, &(mc_generate_options){.max_new_tokens = 10, .ignore_eos = true});
    mc_generation *top = answer(gpt2, &o);
    for (int i = 0; i < PROMPTS; i++)
        assert_memory_equal(top->ids[i], greedy->ids[i], 10 * sizeof(int32_t));
}

static void test_draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { N = 200000 };
    const float logits[4] = {logf(0.5f), -INFINITY, logf(0.2f), logf(0.3f)};
    int count[4] = {0};
    double log_sum = mc_log_sum_exp(logits, 4);
    assert_near(log_sum, 0, 1e-6);
    for (uint64_t i = 0; i < N; i++)
        count[mc_draw(logits, 4, log_sum, mc_uniform(9, i / 100, i))]++;
    assert_int_equal(count[1], 0);
    assert_near(count[0], 0.5 * N, 4 * sqrt(0.25 * N));
    assert_near(count[2], 0.2 * N, 4 * sqrt(0.16 * N));
    assert_int_equal(mc_draw(logits, 4, log_sum, 0), 0);
    assert_int_equal(mc_draw(logits, 4, log_sum, 0.9999999999), 3);
}

static void check_filter(const mc_sampling *how, const float *given, const float *expected)
{
    float logits[6];
    int32_t order[6];
    memcpy(logits, given, sizeof logits);
    mc_filter(logits, 6, how, order);
    for (int i = 0; i < 6; i++)
        if (logits[i] != expected[i])
            fail_msg("temperature %g, top_k %d, top_p %g: [%d] = %g, expected %g",
                     (double)how->temperature, how->top_k, (double)how->top_p, i, (double)logits[i],
                     (double)expected[i]);
}

/* By hand: the probabilities are 0.4, 0.1, 0.05, 0.3, 0.1, 0.05. */
static void test_filters(void **state)
{
    (void)state;
    const float none = -INFINITY, a = logf(0.4f), b = logf(0.1f), c = logf(0.05f), d = logf(0.3f);
    const float x[6] = {a, b, c, d, b, c};
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 1}, x, x);
    check_filter(&(mc_sampling){.temperature = 2, .top_p = 1}, x,
                 (float[]){a / 2, b / 2, c / 2, d / 2, b / 2, c / 2});
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 1, .top_k = 2}, x,
                 (float[]){a, none, none, d, none, none});
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 1, .top_k = 3}, x,
                 (float[]){a, b, none, d, b, none}); /* equals stay together */
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 1, .top_k = 100}, x, x);
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 0.35f}, x,
                 (float[]){a, none, none, none, none, none});
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 0.65f}, x,
                 (float[]){a, none, none, d, none, none});
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 1e-6f}, x,
                 (float[]){a, none, none, none, none, none});
    /* top-p looks at what top-k has left: 4/7 and 3/7 */
    check_filter(&(mc_sampling){.temperature = 1, .top_p = 0.55f, .top_k = 2}, x,
                 (float[]){a, none, none, none, none, none});
    float logits[6] = {2, -2, 0.5f, 4, -1, 3};
    uint32_t seen[1] = {0};
    const int32_t tokens[] = {3, 1, 3, 1, 2}; /* each token once, however often it was seen */
    for (int i = 0; i < 5; i++) mc_see(seen, tokens[i]);
    mc_penalise(logits, 6, seen, 2);
    assert_memory_equal(logits, ((float[6]){2, -4, 0.25f, 2, -1, 3}), sizeof logits);
    mc_penalise(logits, 6, &(uint32_t){1}, 0.5f);
    assert_true(logits[0] == 4 && logits[3] == 2);
    assert_int_equal(mc_most_probable((float[]){1, 3, 2, 3}, 4), 1);
    assert_true(isnan(mc_log_sum_exp((float[]){1, NAN}, 2)));
    assert_true(isnan(mc_log_sum_exp((float[]){1, INFINITY}, 2)));
}

/* ---- beams ----------------------------------------------------------------------------------- */

/* The log-probability of an answer. */
static double score_of(mc_model *gpt2, int prompt, const int32_t *answered, int n)
{
    int32_t ids[POSITIONS + 1];
    int length = prompt_lengths[prompt];
    double score = 0;
    memcpy(ids, prompts[prompt], (size_t)length * sizeof *ids);
    for (int i = 0; i < n; i++) {
        float logits[VOCABULARY];
        run_whole(gpt2, ids, length, logits);
        score += (double)logits[answered[i]] - mc_log_sum_exp(logits, VOCABULARY);
        ids[length++] = answered[i];
    }
    return score;
}

/* The best two tokens are found by looking at all pairs, if there are beams enough. */
static void test_beams_find_the_best(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_generate_options o = {.max_new_tokens = 2, .num_beams = VOCABULARY, .ignore_eos = true};
    mc_generation *got = answer(gpt2, &o);
    double best = -INFINITY;
    for (int32_t i = 0; i < VOCABULARY; i++)
        for (int32_t k = 0; k < VOCABULARY; k++)
            best = fmax(best, score_of(gpt2, 1, (int32_t[]){i, k}, 2));
    assert_int_equal(got->lengths[1], 2);
    assert_near(got->scores[1] * 2, best, 1e-4);
    assert_near(score_of(gpt2, 1, got->ids[1], 2), best, 1e-4);
}

/* Scores are what they say; a batch is as good as single prompts; penalties do what they should. */
static void test_beam_scores(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    int32_t eos[5] = {3, 11, 23, 37, 49};
    static const float penalties[] = {1, MC_TRUE_ZERO, 2, -1};
    for (int p = 0; p < 4; p++) {
        mc_generate_options o = {.max_new_tokens = 12,
                                 .num_beams = 4,
                                 .eos = eos,
                                 .eos_count = 5,
                                 .length_penalty = penalties[p],
                                 .early_stopping = p == 3};
        double power = p == 1 ? 0 : (double)penalties[p];
        mc_generation *got = answer(gpt2, &o);
        for (int i = 0; i < PROMPTS; i++) {
            int n = got->lengths[i];
            assert_true(n >= 1 && n <= 12);
            double score = score_of(gpt2, i, got->ids[i], n) / pow(n, power);
            assert_near(got->scores[i], score, 1e-4 * fmax(1, fabs(score)));
            mc_generation *one = mc_model_generate(gpt2, prompts + i, prompt_lengths + i, 1, &o);
            assert_int_equal(one->lengths[0], n);
            assert_memory_equal(one->ids[0], got->ids[i], (size_t)n * sizeof(int32_t));
        }
    }
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static void test_wrong_options(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    static const struct {
        mc_generate_options o;
        mc_status status;
        const char *words[2];
    } bad[] = {{{.max_new_tokens = -1}, MC_ERR_ARGUMENT, {"max_new_tokens", "-1"}},
               {{.max_new_tokens = 18}, MC_ERR_ARGUMENT, {"18 new ones", "24 positions"}},
               {{.temperature = -1}, MC_ERR_ARGUMENT, {"temperature", "-1"}},
               {{.temperature = NAN}, MC_ERR_ARGUMENT, {"temperature", "nan"}},
               {{.top_k = -2}, MC_ERR_ARGUMENT, {"top_k", "-2"}},
               {{.top_p = 1.5f}, MC_ERR_ARGUMENT, {"top_p", "1.5"}},
               {{.repetition_penalty = -1}, MC_ERR_ARGUMENT, {"repetition_penalty", "-1"}},
               {{.num_beams = -1}, MC_ERR_ARGUMENT, {"num_beams", "-1"}},
               {{.length_penalty = INFINITY}, MC_ERR_ARGUMENT, {"length_penalty", "inf"}},
               {{.num_beams = 2, .sample = true}, MC_ERR_UNSUPPORTED, {"beam search", "sample"}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mc_generate_options o = bad[i].o;
        if (!o.max_new_tokens) o.max_new_tokens = 2;
        assert_null(mc_model_generate(gpt2, prompts, prompt_lengths, PROMPTS, &o));
        assert_error(ctx, bad[i].status, bad[i].words[0], bad[i].words[1]);
    }
    mc_generate_options beams = {.num_beams = 3, .max_new_tokens = 2};
    assert_null(mc_model_generator_new(gpt2, prompts, prompt_lengths, PROMPTS, &beams));
    assert_error(ctx, MC_ERR_ARGUMENT, "3 beams");
    const int32_t *strange = (int32_t[]){1, VOCABULARY};
    mc_generate_options two = {.max_new_tokens = 2};
    assert_null(mc_model_generate(gpt2, &strange, (int[]){2}, 1, &two));
    assert_error(ctx, MC_ERR_ARGUMENT, "token 1 of prompt 0 is 50", "0 to 49");
    assert_null(mc_model_generate(gpt2, prompts, (int[]){1, 0}, 2, &two));
    assert_error(ctx, MC_ERR_ARGUMENT, "prompt 1 is empty");
    assert_null(mc_model_generate(gpt2, prompts, prompt_lengths, -1, &two));
    assert_error(ctx, MC_ERR_ARGUMENT, "-1 prompts");
    assert_null(mc_model_generate(NULL, prompts, prompt_lengths, 1, &two));
    assert_false(mc_generator_next(NULL, NULL));
    mc_generator_free(NULL);
    mc_generation_free(NULL);
}

static void test_weights_that_are_no_numbers(void **state)
{
    mc_context *ctx = *state;
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    float values[DIM];
    for (int i = 0; i < DIM; i++) values[i] = NAN;
    mc_parameter_write(
        mc_module_find_parameter(mc_model_module(gpt2), "encoder.output_layernorm.weight"), values);
    for (int beams = 1; beams <= 3; beams += 2) {
        mc_generate_options o = {.max_new_tokens = 2, .num_beams = beams};
        assert_null(mc_model_generate(gpt2, prompts, prompt_lengths, PROMPTS, &o));
        assert_error(ctx, MC_ERR_STATE, "not finite", "prompt 0");
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct {
    long count, fail_at;
    void *(*alloc)(mc_device *d, size_t bytes);
} device_faults;

static void *failing_alloc(mc_device *d, size_t bytes)
{
    if (++device_faults.count == device_faults.fail_at) return NULL;
    return device_faults.alloc(d, bytes);
}

enum { GREEDY, BEAMS, RUNNING, KINDS };

static void no_token(void *user, const mc_answer_event *e) { (void)user, (void)e; }

/* A list, or a running batch of a greedy answer, a search and draws. */
static mc_generation *generate(mc_model *gpt2, int kind)
{
    mc_generate_options o = {.max_new_tokens = 3, .num_beams = kind == BEAMS ? 2 : 1};
    if (kind != RUNNING) return mc_model_generate(gpt2, prompts, prompt_lengths, PROMPTS, &o);
    mc_generator *g = mc_model_generator_open(gpt2, &(mc_generator_options){.sequences = 3});
    mc_generator_add(g, prompts[0], prompt_lengths[0], &o, no_token, NULL);
    o.num_beams = 2;
    mc_generator_add(g, prompts[1], prompt_lengths[1], &o, no_token, NULL);
    o = (mc_generate_options){.max_new_tokens = 3, .sample = true, .num_return_sequences = 2};
    mc_generator_add(g, prompts[1], prompt_lengths[1], &o, no_token, NULL);
    while (mc_generator_step(g)) continue;
    mc_generator_free(g);
    return NULL;
}

static long generate_with_fault(bool host, long nth, int kind)
{
    mc_context *ctx = mc_init_distributed(NULL);
    mc_model *gpt2 = new_gpt2(ctx, MC_F32, 0);
    mc_generate_options o = {.max_new_tokens = 3, .num_beams = 2};
    mc_model_generate(gpt2, prompts, prompt_lengths, 1, &o); /* the weights are there */
    assert_good(ctx);
    size_t in_use = ctx->device->memory.in_use;
    device_faults.alloc = ctx->device->alloc;
    ctx->device->alloc = failing_alloc;
    device_faults.count = 0;
    device_faults.fail_at = host ? 0 : nth;
#ifdef MC_FAULT_INJECTION
    mc_fault_fail_at(host ? nth : 0, false);
#endif
    mc_generation *got = generate(gpt2, kind);
    long count = device_faults.count;
#ifdef MC_FAULT_INJECTION
    if (host) count = mc_fault_count();
    mc_fault_fail_at(0, false);
#endif
    device_faults.fail_at = 0;
    if (mc_failed(ctx)) {
        assert_null(got);
        assert_error(ctx, MC_ERR_NOMEM, "memory");
    }
    mc_generation_free(got);
    assert_int_equal(ctx->device->memory.in_use, in_use);
    answer(gpt2, &o); /* as if nothing had been */
    mc_context_free(ctx);
    return count;
}

static void test_memory_runs_out(void **state)
{
    (void)state;
#ifdef MC_FAULT_INJECTION
    int sources = 2;
#else
    int sources = 1;
    printf("SKIPPED: failing allocations of the host (needs MC_FAULT_INJECTION)\n");
#endif
    for (int host = 0; host < sources; host++)
        for (int kind = 0; kind < KINDS; kind++) {
            long nth = 0, count;
            do count = generate_with_fault(host, ++nth, kind);
            while (nth <= count);
            assert_true(nth > 10);
        }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_cache_changes_nothing),
        TEST(test_steps_are_the_whole),
        TEST(test_sampling_is_reproducible),
        TEST(test_draws_follow_the_distribution),
        TEST(test_filters),
        TEST(test_beams_find_the_best),
        TEST(test_beam_scores),
        TEST(test_wrong_options),
        TEST(test_weights_that_are_no_numbers),
        TEST(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
