/* What generation takes is what a planning context says that it will. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/generate/generator.h"
#include "models/quantize.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"

enum { PROMPTS = 3 };

typedef struct work {
    mc_model *model;
    mc_generate_options how;
    bool running; /* in a running batch; else a list */
} work;

static void no_token(void *user, const mc_answer_event *e)
{
    (void)e;
    (*(int *)user)++;
}

static void answer(mc_context *ctx, void *user)
{
    static const int32_t ids[] = {3, 5, 7, 2, 4, 6, 8, 9, 3}, *const prompts[] = {ids, ids, ids};
    static const int lengths[] = {9, 4, 7};
    const work *w = user;
    int calls = 0;
    if (!w->running) {
        mc_generation_free(mc_model_generate(w->model, prompts, lengths, PROMPTS, &w->how));
        return;
    }
    const mc_generator_options o = {.sequences = 6, .longest = 22, .page = 4};
    mc_generator *g = mc_model_generator_open(w->model, &o);
    for (int i = 0; i < PROMPTS; i++)
        assert_true(mc_generator_add(g, ids, lengths[i], &w->how, no_token, &calls) > 0);
    while (mc_generator_step(g)) continue;
    assert_good(ctx);
    assert_true(calls >= PROMPTS * w->how.max_new_tokens);
    mc_generator_free(g);
}

static mc_model *new_model(mc_context *ctx, const tiny_family *f, mc_dtype dtype, int format)
{
    mc_model *model = tiny_model(ctx, f, &(mc_load_options){.dtype = dtype});
    if (format) assert_int_equal(mc_model_quantize(model, (mc_weight_format)format), MC_OK);
    return model;
}

/* The most that is in use while a real model answers, and while one that computes nothing does. */
static void compare(const tiny_family *f, mc_dtype dtype, int format, work w)
{
    mc_context *ctx = test_context(3), *dry = mc_plan_context_new(ctx);
    mc_memory_plan plan;
    work planned = w;
    planned.model = new_model(dry, f, dtype, format);
    mc_plan_run(dry, mc_model_module(planned.model), answer, &planned, &plan);
    assert_good(dry);
    mc_context_free(dry);
    w.model = new_model(ctx, f, dtype, format);
    answer(ctx, &w);
    uint64_t peak = mc_memory(ctx).peak;
    if (plan.peak != peak)
        fail_msg("%s, %s, format %d, %d beams, %s: planned %llu bytes, taken %llu", f->name,
                 mc_dtype_name(dtype), format, w.how.num_beams, w.running ? "running" : "a list",
                 (unsigned long long)plan.peak, (unsigned long long)peak);
    mc_context_free(ctx);
}

static void test_planned_is_taken(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++)
        for (int kind = 0; kind < 8 && mc_family_kind(tiny_families[f].name) != MC_MODEL_ENCODER;
             kind++) {
            work w = {.how = {.max_new_tokens = 10, .ignore_eos = true}, .running = kind % 2};
            if (kind / 2 == 1) w.how.num_beams = 2;
            w.how.sample = kind / 2 == 2;
            if (w.how.sample) w.how.num_return_sequences = 2;
            compare(&tiny_families[f], kind < 4 ? MC_F32 : MC_BF16, kind / 2 == 3, w);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planned_is_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
