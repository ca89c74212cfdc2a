/* Generation on a GPU, whose steps are recorded and whose tokens it chooses itself: the tokens of
 * the CPU, for every family that decodes; and without the host's waiting or taking memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/generate/generate_internal.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"
#include "tests/models/prompts_test.h"

static mc_generation *generate(mc_model *model, const mc_generate_options *o)
{
    mc_generation *out = mc_model_generate(model, prompts, prompt_lengths, PROMPTS, o);
    assert_good(mc_model_module(model)->ctx);
    return out;
}

/* Options of every kind; answers that end at different times among them. */
static mc_generate_options options_of(int kind, const int32_t *eos, int eos_count)
{
    mc_generate_options o = {.max_new_tokens = 12, .ignore_eos = kind == 0, .seed = 7};
    if (kind > 0) {
        o.eos = eos;
        o.eos_count = eos_count;
    }
    if (kind == 2) o.repetition_penalty = 1.4f;
    if (kind == 3) o.sample = true;
    if (kind == 4) {
        o.sample = true;
        o.temperature = 1.2f;
        o.top_k = 20;
        o.top_p = 0.9f;
    }
    if (kind == 5) o.num_beams = 3;
    return o;
}

static void compare(const char *name, int kind, const mc_generation *cpu, const mc_generation *gpu)
{
    for (int i = 0; i < PROMPTS; i++) {
        bool same = cpu->lengths[i] == gpu->lengths[i];
        for (int k = 0; same && k < cpu->lengths[i]; k++) same = cpu->ids[i][k] == gpu->ids[i][k];
        if (!same) fail_msg("%s, options %d: other tokens after prompt %d", name, kind, i);
        assert_near(gpu->scores[i], cpu->scores[i], 1e-3);
    }
}

static void test_tokens_of_the_cpu(void **state)
{
    (void)state;
    int32_t eos[VOCABULARY / 7];
    int early = 0;
    for (int i = 0; i < VOCABULARY / 7; i++) eos[i] = 7 * i;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_context *both[] = {context_on("cpu", 3), context_on("cuda", 3)};
        if (!both[1]) {
            mc_context_free(both[0]);
            skip();
        }
        mc_model *cpu = tiny_model(both[0], &tiny_families[f], NULL),
                 *gpu = tiny_model(both[1], &tiny_families[f], NULL);
        for (int kind = 0; kind < 6 && !is_kind(cpu, MC_MODEL_ENCODER); kind++) {
            mc_generate_options o = options_of(kind, eos, VOCABULARY / 7);
            mc_generation *expected = generate(cpu, &o);
            compare(tiny_families[f].name, kind, expected, generate(gpu, &o));
            for (int i = 0; i < PROMPTS; i++) early += expected->lengths[i] < o.max_new_tokens;
        }
        mc_context_free(both[0]);
        mc_context_free(both[1]);
    }
    assert_true(early > 20);
}

/* The same with weights in 8 bits: bytes and scales are the same on both. */
static void test_eight_bits(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_context *both[] = {context_on("cpu", 3), context_on("cuda", 3)};
        if (!both[1]) {
            mc_context_free(both[0]);
            skip();
        }
        mc_model *cpu = tiny_model(both[0], &tiny_families[f], NULL),
                 *gpu = tiny_model(both[1], &tiny_families[f], NULL);
        mc_weight_format format = f % 2 ? MC_WEIGHTS_INT8 : MC_WEIGHTS_FP8;
        assert_int_equal(mc_model_quantize(cpu, format), MC_OK);
        assert_int_equal(mc_model_quantize(gpu, format), MC_OK);
        mc_generate_options o = options_of(0, NULL, 0);
        if (!is_kind(cpu, MC_MODEL_ENCODER))
            compare(tiny_families[f].name, 0, generate(cpu, &o), generate(gpu, &o));
        mc_context_free(both[0]);
        mc_context_free(both[1]);
    }
}

/* Once two steps have been made, further ones wait for nothing but their tokens, and take nothing
 * from the system. */
static void test_steps_are_free(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cuda", 3);
    if (!ctx) skip();
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_generate_options o = {.max_new_tokens = 14, .ignore_eos = true};
    mc_generator *g = mc_model_generator_new(model, prompts, prompt_lengths, PROMPTS, &o);
    int32_t tokens[PROMPTS];
    for (int i = 0; i < 2; i++) assert_true(mc_generator_next(g, tokens));
    uint64_t waits = ctx->device->waits, calls = ctx->device->memory.system_calls;
    int steps = 2;
    while (mc_generator_next(g, tokens)) steps++;
    assert_good(ctx);
    assert_int_equal(steps, 14);
    assert_int_equal(ctx->device->waits, waits);
    assert_int_equal(ctx->device->memory.system_calls, calls);
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_of_the_cpu),
        cmocka_unit_test(test_eight_bits),
        cmocka_unit_test(test_steps_are_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
