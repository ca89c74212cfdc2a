/* What runs in several threads at once, for ThreadSanitizer (the preset "tsan"): a generator with
 * eight threads of callers, and two contexts in two threads. Without it the results alone count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include "models/generate/generator.h"
#include "tests/models/family_test.h"

enum { CALLERS = 8, PROMPTS = 6, TOKENS = 5, CONTEXTS = 2 };

static char shape_path[4096]; /* of a tiny GPT-2 */

/* ---- eight threads that add and cancel ------------------------------------------------------- */

typedef struct caller {
    pthread_t thread;
    mc_generator *g;
    int number;
    atomic_int ended, cancelled; /* the generator's thread counts them */
} caller;

static void got(void *user, const mc_answer_event *e)
{
    caller *c = user;
    if (e->state == MC_ANSWER_ENDED) c->ended++;
    if (e->state == MC_ANSWER_CANCELLED) c->cancelled++;
}

static void *call(void *user)
{
    caller *c = user;
    const mc_generate_options o = {.max_new_tokens = TOKENS, .ignore_eos = true};
    for (int i = 0; i < PROMPTS; i++) {
        int32_t ids[] = {2 + c->number, 3 + i, 5};
        int64_t id = mc_generator_add(c->g, ids, 3, &o, got, c);
        if (i % 3 == 2) mc_generator_cancel(c->g, id);
    }
    return NULL;
}

static void *close_after(void *user)
{
    caller *callers = user;
    for (int i = 0; i < CALLERS; i++) pthread_join(callers[i].thread, NULL);
    mc_generator_close(callers[0].g);
    return NULL;
}

static void test_generator(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3, .threads = 2});
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_generator *g =
        mc_model_generator_open(model, &(mc_generator_options){.sequences = 4, .page = 4});
    assert_good(ctx);
    static caller callers[CALLERS];
    pthread_t closes;
    for (int i = 0; i < CALLERS; i++) {
        callers[i].g = g;
        callers[i].number = i;
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
    }
    assert_int_equal(pthread_create(&closes, NULL, close_after, callers), 0);
    while (mc_generator_wait(g)) mc_generator_step(g);
    pthread_join(closes, NULL);
    assert_good(ctx);
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(callers[i].ended + callers[i].cancelled, PROMPTS);
        assert_true(callers[i].ended >= PROMPTS - PROMPTS / 3);
    }
    mc_generator_free(g);
    mc_context_free(ctx);
}

/* ---- two contexts ---------------------------------------------------------------------------- */

typedef struct job {
    pthread_t thread;
    float *gradients; /* (count) after the loss */
    int64_t count;
    int32_t ids[TOKENS];
    bool good;
} job;

/* The gradients of a model, and tokens of it: all in a context of its own. */
static void *work(void *user)
{
    static const int32_t prompt[] = {35, 8, 9, 7};
    job *j = user;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 11, .threads = 2});
    mc_model *model = mc_model_new(ctx, "gpt2", shape_path, NULL, NULL);
    const int32_t *given = prompt;
    const mc_generate_options o = {.max_new_tokens = TOKENS, .ignore_eos = true};
    mc_generation *g = mc_model_generate(model, &given, (int[]){4}, 1, &o);
    for (int i = 0; g && i < TOKENS; i++) j->ids[i] = g->ids[0][i];
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *loss = family_loss(t, model, (part){PACKED_WIDE, -1});
    j->gradients = loss_and_gradients(t, mc_model_module(model), loss, &j->count);
    j->good = !mc_failed(ctx);
    mc_context_free(ctx);
    return NULL;
}

static void test_two_contexts(void **state)
{
    (void)state;
    job jobs[CONTEXTS] = {{.count = 0}}, alone = {.count = 0};
    for (int i = 0; i < CONTEXTS; i++)
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, work, &jobs[i]), 0);
    for (int i = 0; i < CONTEXTS; i++) pthread_join(jobs[i].thread, NULL);
    work(&alone);
    assert_true(alone.good && alone.count > 0);
    for (int i = 0; i < CONTEXTS; i++) {
        assert_true(jobs[i].good && jobs[i].count == alone.count);
        assert_memory_equal(jobs[i].ids, alone.ids, sizeof alone.ids);
        assert_memory_equal(jobs[i].gradients, alone.gradients,
                            (size_t)alone.count * sizeof *alone.gradients);
        free(jobs[i].gradients);
    }
    free(alone.gradients);
}

static temp_folder folder;

static int make_shape(void **state)
{
    (void)state;
    folder = temp_folder_new();
    snprintf(shape_path, sizeof shape_path, "%s", temp_path(&folder, "config.json"));
    write_text(shape_path, tiny("gpt2")->config);
    return 0;
}

static int remove_shape(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_generator),
                                       cmocka_unit_test(test_two_contexts)};
    return cmocka_run_group_tests_name("races", tests, make_shape, remove_shape);
}
