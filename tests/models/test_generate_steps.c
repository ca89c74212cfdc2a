/* Steps of generation, of a list of prompts and of a running batch, take no memory once the first
 * ones have been made: not from the device, not from the host, by every family that decodes. The
 * program is linked so that the library's allocations come by here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include "models/generate/generate_internal.h"
#include "models/generate/generator.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"

enum { PROMPTS = 3, LENGTH = 4, ANSWER = 19, FIRST = 3 };

static const int32_t ids[PROMPTS][LENGTH] = {{3, 14, 15, 9}, {5, 8, 9, 7}, {31, 41, 5, 9}};

/* ---- what is counted ------------------------------------------------------------------------- */

static atomic_long allocations;

void *__real_mc_malloc(size_t size);
void *__real_mc_calloc(size_t count, size_t size);
void *__real_mc_realloc(void *pointer, size_t size);
void *__real_mc_aligned_alloc(size_t alignment, size_t size);
void *__wrap_mc_malloc(size_t size);
void *__wrap_mc_calloc(size_t count, size_t size);
void *__wrap_mc_realloc(void *pointer, size_t size);
void *__wrap_mc_aligned_alloc(size_t alignment, size_t size);

void *__wrap_mc_malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mc_malloc(size);
}

void *__wrap_mc_calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mc_calloc(count, size);
}

void *__wrap_mc_realloc(void *pointer, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mc_realloc(pointer, size);
}

void *__wrap_mc_aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mc_aligned_alloc(alignment, size);
}

typedef struct taken {
    long host;
    uint64_t system, waits;
    size_t in_use;
} taken;

static taken so_far(const mc_context *ctx)
{
    const mc_device *d = ctx->device;
    return (taken){atomic_load(&allocations), d->memory.system_calls, d->waits, d->memory.in_use};
}

static void expect_nothing(const char *name, const mc_context *ctx, taken before)
{
    taken now = so_far(ctx);
    if (now.host != before.host || now.system != before.system || now.waits != before.waits ||
        now.in_use != before.in_use)
        fail_msg("%s: %ld allocations of the host, %d of the device's system, %d waits, %zu bytes",
                 name, now.host - before.host, (int)(now.system - before.system),
                 (int)(now.waits - before.waits), now.in_use - before.in_use);
}

/* ---- a list ---------------------------------------------------------------------------------- */

static const mc_generate_options drawn = {
    .max_new_tokens = ANSWER, .ignore_eos = true, .sample = true, .top_k = 9, .seed = 4};

static void run_list(const char *name, mc_model *model)
{
    static const int32_t *const prompts[] = {ids[0], ids[1], ids[2]};
    static const int lengths[] = {LENGTH, LENGTH, LENGTH};
    mc_context *ctx = mc_model_module(model)->ctx;
    int32_t tokens[PROMPTS];
    mc_generator *g = mc_model_generator_new(model, prompts, lengths, PROMPTS, &drawn);
    for (int i = 0; i < FIRST; i++) assert_true(mc_generator_next(g, tokens));
    taken before = so_far(ctx);
    assert_true(before.host > 0);
    for (int i = FIRST; i < ANSWER; i++) assert_true(mc_generator_next(g, tokens));
    expect_nothing(name, ctx, before);
    assert_false(mc_generator_next(g, tokens));
    assert_good(ctx);
    mc_generator_free(g);
}

/* ---- a running batch ------------------------------------------------------------------------- */

static void count_token(void *user, const mc_answer_event *e)
{
    int *count = user;
    *count += e->token >= 0;
}

static void run_batch(const char *name, mc_model *model)
{
    mc_context *ctx = mc_model_module(model)->ctx;
    int got[PROMPTS] = {0};
    mc_generator *g =
        mc_model_generator_open(model, &(mc_generator_options){.sequences = PROMPTS, .page = 4});
    for (int i = 0; i < PROMPTS; i++)
        assert_true(mc_generator_add(g, ids[i], LENGTH, &drawn, count_token, &got[i]) > 0);
    while (got[PROMPTS - 1] < FIRST) assert_true(mc_generator_step(g));
    taken before = so_far(ctx);
    while (mc_generator_step(g)) continue;
    expect_nothing(name, ctx, before);
    assert_good(ctx);
    for (int i = 0; i < PROMPTS; i++) assert_int_equal(got[i], ANSWER);
    mc_generator_free(g);
}

static void test_nothing_is_taken(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_context *ctx = test_context(3);
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        if (!is_kind(model, MC_MODEL_ENCODER)) {
            run_list(tiny_families[f].name, model);
            run_batch(tiny_families[f].name, model);
        }
        mc_context_free(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
