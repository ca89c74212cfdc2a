/* Answers that join and leave a running batch: the tokens of prompts alone, whoever is beside
 * them; adding and cancelling from other threads; prompts that can't be answered; a cache that is
 * small. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include "models/generate/generate_internal.h"
#include "models/generate/generator.h"
#include "models/adapters/adapter.h"
#include "tests/device_choice.h"
#include "tests/models/family_test.h"

enum { PROMPTS = 11, MOST = 8, ANSWER = 9, EACH = 3 };

/* One answer to a prompt. */
typedef struct answer {
    int32_t ids[64];
    int count, ends;
    double total;
    float score;
    mc_answer_state state;
    char error[256];
} answer;

static void got(void *user, const mc_answer_event *e)
{
    answer *a = (answer *)user + e->answer;
    if (e->token >= 0) a->ids[a->count++] = e->token;
    if (e->token >= 0) a->total += (double)e->log_probability;
    a->score = e->score;
    a->state = e->state;
    if (e->state != MC_ANSWER_GOES_ON) a->ends++;
    if (e->state == MC_ANSWER_FAILED) snprintf(a->error, sizeof a->error, "%s", e->error);
}

typedef struct prompt {
    int32_t ids[MOST];
    int count;
    mc_generate_options options;
    mc_generation *alone;
} prompt;

static int32_t some_ends[6] = {6, 13, 20, 27, 34, 48};

/* Prompts of different lengths, to be answered in different ways, and their answers alone. */
static void make_prompts(mc_model *model, prompt *p)
{
    for (int i = 0; i < PROMPTS; i++) {
        p[i].count = 1 + i * 5 % MOST;
        for (int k = 0; k < p[i].count; k++) p[i].ids[k] = 2 + (i * 17 + k * 7 + k * k * i) % 48;
        p[i].options = (mc_generate_options){.max_new_tokens = ANSWER - i % 3,
                                             .first_prompt = i,
                                             .seed = 5,
                                             .eos = some_ends,
                                             .eos_count = 6,
                                             .sample = i % 3 == 1,
                                             .temperature = 1.3f,
                                             .ignore_eos = i % 4 == 0};
        if (i % 3 == 2) p[i].options.repetition_penalty = 1.5f;
        if (i % 6 == 1) p[i].options.top_k = 10;
        if (i == 4 || i == 7) p[i].options.num_return_sequences = i == 4 ? 3 : 2;
        if (i == 3 || i == 6 || i == 8) p[i].options.num_beams = i == 8 ? 2 : 3;
        if (i == 3) p[i].options.num_return_sequences = 2;
        if (i == 6) p[i].options.length_penalty = MC_TRUE_ZERO;
        const int32_t *ids = p[i].ids;
        p[i].alone = mc_model_generate(model, &ids, &p[i].count, 1, &p[i].options);
        assert_good(mc_model_module(model)->ctx);
    }
}

static void compare(const char *name, int number, const answer *answers, const mc_generation *alone)
{
    for (int k = 0; k < alone->count; k++) {
        const answer *a = &answers[k];
        bool same = a->state == MC_ANSWER_ENDED && a->ends == 1 && a->count == alone->lengths[k];
        double total = 0;
        for (int i = 0; same && i < a->count; i++) same = a->ids[i] == alone->ids[k][i];
        for (int i = 0; same && i < a->count; i++) total += (double)alone->log_probs[k][i];
        if (!same)
            fail_msg("%s: prompt %d, answer %d: state %d, %d tokens, alone %d", name, number, k,
                     (int)a->state, a->count, alone->lengths[k]);
        assert_near(a->score, alone->scores[k], 1e-3);
        assert_near(a->total, total, 1e-3);
    }
}

/* Whether all answers have ended, once each, those after them never. */
static void check_ends(const answer *a, const mc_generate_options *o)
{
    int count = o->num_return_sequences ? o->num_return_sequences : 1;
    for (int k = 0; k < EACH; k++) assert_int_equal(a[k].ends, k < count);
}

/* Prompts come one by one while others run, in a few rows: greedy, drawn, several draws, beams;
 * some are cancelled under way. */
static void join_and_leave(const char *name, mc_model *model, const prompt p[PROMPTS],
                           const mc_generator_options *o)
{
    static answer a[PROMPTS][EACH], other[PROMPTS][EACH];
    int64_t id[PROMPTS];
    int cancelled = 0;
    memset(a, 0, sizeof a);
    memset(other, 0, sizeof other);
    mc_generator *g = mc_model_generator_open(model, o);
    assert_good(mc_model_module(model)->ctx);
    for (int i = 0; i < PROMPTS; i++) {
        id[i] =
            mc_generator_add(g, p[i].ids, p[i].count, &p[PROMPTS - 1 - i].options, got, other[i]);
        assert_true(id[i] > 0);
        assert_true(mc_generator_add(g, p[i].ids, p[i].count, &p[i].options, got, a[i]) > 0);
        for (int k = 0; k < i % 3; k++) mc_generator_step(g);
        if (i % 2) mc_generator_cancel(g, id[i / 2]);
    }
    while (mc_generator_step(g)) continue;
    assert_good(mc_model_module(model)->ctx);
    for (int i = 0; i < PROMPTS; i++) {
        compare(name, i, a[i], p[i].alone);
        check_ends(other[i], &p[PROMPTS - 1 - i].options);
        cancelled += other[i]->state == MC_ANSWER_CANCELLED;
    }
    assert_true(cancelled > 0);
    assert_false(mc_generator_step(g));
    mc_generator_free(g);
}

static void test_joining(void **state)
{
    (void)state;
    mc_context *ctx = test_context(3);
    static const mc_generator_options options[] = {
        {.sequences = 3, .longest = 20, .page = 4},
        {.sequences = 5, .longest = 20, .cache_tokens = 40, .page = 2}, /* rows wait for pages */
        {.sequences = 6, .longest = 24, .page = 32, .prompt_tokens = 7},
        {.sequences = 4, .longest = 24, .page = 4, .prompt_piece = 3},
    };
    for (int f = 0; f < TINY_FAMILIES; f++) {
        static prompt p[PROMPTS];
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        bool host = ctx->device->is_host; /* a simulated GPU takes long for all */
        if (!is_kind(model, MC_MODEL_ENCODER)) {
            make_prompts(model, p);
            for (int i = host ? 0 : f % 2; i < 4; i += 2 - host)
                join_and_leave(tiny_families[f].name, model, p, &options[i]);
            for (int i = 0; i < PROMPTS; i++) mc_generation_free(p[i].alone);
        }
        mc_model_free(model);
    }
    mc_context_free(ctx);
}

/* ---- several answers ------------------------------------------------------------------------- */

typedef struct order {
    int calls, at;
    mc_generator *g;
    int64_t cancel;
} order;

/* The answers of a search come one after the other, each whole. */
static void in_order(void *user, const mc_answer_event *e)
{
    order *o = user;
    o->calls++;
    assert_int_equal(e->answer, o->at);
    assert_true(e->state == MC_ANSWER_GOES_ON || e->state == MC_ANSWER_ENDED);
    if (e->state == MC_ANSWER_ENDED) o->at++;
    mc_generator_cancel(o->g, e->id); /* too late: it has ended */
}

static void test_search_in_order(void **state)
{
    (void)state;
    static const int32_t ids[] = {35, 8, 9, 7};
    mc_context *ctx = test_context(3);
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    const mc_generate_options o = {
        .max_new_tokens = 6, .ignore_eos = true, .num_beams = 4, .num_return_sequences = 3};
    order found = {
        .g = mc_model_generator_open(model, &(mc_generator_options){.sequences = 4, .page = 4})};
    assert_true(mc_generator_add(found.g, ids, 4, &o, in_order, &found) > 0);
    for (int i = 0; i < 4; i++) {
        assert_true(mc_generator_step(found.g));
        assert_int_equal(found.calls, 0);
    }
    while (mc_generator_step(found.g)) continue;
    assert_good(ctx);
    assert_int_equal(found.at, 3);
    assert_int_equal(found.calls, 3 * 6);
    mc_context_free(ctx);
}

/* All rows of a search, and all answers that are drawn or wait, go at once. */
static void test_cancel_several(void **state)
{
    (void)state;
    static const int32_t ids[] = {35, 8, 9, 7};
    mc_context *ctx = test_context(3);
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_generate_options o = {.max_new_tokens = 12, .ignore_eos = true};
    const int32_t *given = ids;
    mc_generation *alone = mc_model_generate(model, &given, (int[]){4}, 1, &o);
    mc_generator *g = mc_model_generator_open(model, &(mc_generator_options){.sequences = 4});
    answer drawn[EACH] = {{.count = 0}}, beams[EACH] = {{.count = 0}}, last = {.count = 0};
    mc_generate_options draws = o, search = o;
    draws.sample = true;
    draws.num_return_sequences = search.num_return_sequences = EACH;
    search.num_beams = EACH;
    int64_t first = mc_generator_add(g, ids, 4, &search, got, beams),
            second = mc_generator_add(g, ids, 4, &draws, got, drawn);
    for (int i = 0; i < 3; i++) assert_true(mc_generator_step(g));
    assert_true(drawn[0].count > 0 && drawn[1].count == 0); /* no row is left for the second */
    mc_generator_cancel(g, first);
    mc_generator_cancel(g, second);
    assert_true(mc_generator_add(g, ids, 4, &o, got, &last) > 0);
    while (mc_generator_step(g)) continue;
    assert_good(ctx);
    for (int i = 0; i < EACH; i++) {
        assert_int_equal(beams[i].state, MC_ANSWER_CANCELLED);
        assert_int_equal(drawn[i].state, MC_ANSWER_CANCELLED);
        assert_true(beams[i].ends == 1 && drawn[i].ends == 1 && beams[i].count == 0);
    }
    compare("after what was cancelled", 0, &last, alone);
    mc_context_free(ctx);
}

/* ---- prompts in pieces ----------------------------------------------------------------------- */

static void step_until(mc_generator *g, const int *count)
{
    while (!*count && mc_generator_step(g)) continue;
    assert_good(g->ctx);
    assert_true(*count > 0);
}

/* Tokens that one answer gets while another's prompt of 8 tokens is run. */
static int tokens_beside_a_prompt(mc_model *model, int64_t piece, answer *late)
{
    static const int32_t ids[MOST] = {35, 8, 9, 7, 9, 3, 23, 8};
    const mc_generate_options o = {.max_new_tokens = 12, .ignore_eos = true};
    answer early = {.count = 0};
    *late = (answer){.count = 0};
    mc_generator *g = mc_model_generator_open(
        model, &(mc_generator_options){.sequences = 2, .prompt_piece = piece});
    assert_true(mc_generator_add(g, ids, 3, &o, got, &early) > 0);
    step_until(g, &early.count);
    int before = early.count;
    assert_true(mc_generator_add(g, ids, MOST, &o, got, late) > 0);
    step_until(g, &late->count);
    int beside = early.count - before;
    while (mc_generator_step(g)) continue;
    assert_good(mc_model_module(model)->ctx);
    mc_generator_free(g);
    return beside;
}

/* A prompt that joins is run in pieces, where tokens see none after them: the others' tokens come
 * between them, and its answer is that of the whole prompt. With a soft prompt, too. */
static void test_pieces(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_context *ctx = test_context(3);
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        bool pieces = is_kind(model, MC_MODEL_DECODER) && !model->family->has.marks;
        for (int soft = 0; soft < 1 + pieces && !is_kind(model, MC_MODEL_ENCODER); soft++) {
            answer whole, parts;
            if (soft) mc_soft_prompt_add(model, &(mc_soft_prompt_options){.tokens = 3});
            int together = tokens_beside_a_prompt(model, MOST, &whole),
                between = tokens_beside_a_prompt(model, 2, &parts);
            if (ctx->device->is_host) { /* a GPU takes eight steps at once */
                assert_int_equal(together, 1);
                assert_int_equal(between, pieces ? 3 : 1);
            }
            assert_int_equal(whole.count, 12);
            assert_int_equal(parts.count, 12);
            assert_memory_equal(whole.ids, parts.ids, 12 * sizeof *whole.ids);
            assert_near(whole.total, parts.total, 1e-4);
        }
        mc_context_free(ctx);
    }
}

/* A prompt is cancelled while it is run, and another takes its row. */
static void test_piece_cancelled(void **state)
{
    (void)state;
    static const int32_t ids[MOST] = {35, 8, 9, 7, 9, 3, 23, 8};
    const mc_generate_options o = {.max_new_tokens = 4, .ignore_eos = true};
    mc_context *ctx = test_context(3);
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    const int32_t *other = ids + 1;
    mc_generation *alone = mc_model_generate(model, &other, (int[]){6}, 1, &o);
    answer a = {.count = 0}, b = {.count = 0};
    mc_generator *g =
        mc_model_generator_open(model, &(mc_generator_options){.sequences = 1, .prompt_tokens = 3});
    int64_t id = mc_generator_add(g, ids, MOST, &o, got, &a);
    assert_true(mc_generator_step(g));
    mc_generator_cancel(g, id);
    assert_true(mc_generator_add(g, other, 6, &o, got, &b) > 0);
    while (mc_generator_step(g)) continue;
    assert_good(ctx);
    assert_int_equal(a.state, MC_ANSWER_CANCELLED);
    assert_int_equal(a.count, 0);
    compare("after a cancelled piece", 0, &b, alone);
    mc_context_free(ctx);
}

/* ---- threads
 * --------------------------------------------------------------------------------- */

enum { THREADS = 3, ROUNDS = 2 };

typedef struct client {
    mc_generator *g;
    const prompt *p;
    answer answers[ROUNDS][PROMPTS][EACH];
} client;

static void *run_client(void *argument)
{
    client *c = argument;
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < PROMPTS; i++) {
            int64_t id = mc_generator_add(c->g, c->p[i].ids, c->p[i].count, &c->p[i].options, got,
                                          c->answers[r][i]);
            if (r % 2) sched_yield();
            if (r % 2 && i % 3 == 0) mc_generator_cancel(c->g, id);
        }
    return NULL;
}

static void *run_clients(void *argument)
{
    client *c = argument;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, run_client, &c[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    mc_generator_close(c->g);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    static prompt p[PROMPTS];
    static client clients[THREADS];
    mc_context *ctx = test_context(3);
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    memset(clients, 0, sizeof clients);
    make_prompts(model, p);
    mc_generator *g = mc_model_generator_open(model, &(mc_generator_options){.sequences = 4});
    for (int i = 0; i < THREADS; i++) clients[i] = (client){.g = g, .p = p};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_clients, clients), 0);
    while (mc_generator_wait(g)) mc_generator_step(g);
    pthread_join(thread, NULL);
    assert_good(ctx);
    for (int i = 0; i < THREADS * ROUNDS * PROMPTS; i++) {
        const answer *a =
            clients[i / (ROUNDS * PROMPTS)].answers[i / PROMPTS % ROUNDS][i % PROMPTS];
        check_ends(a, &p[i % PROMPTS].options);
        bool may_end = i / PROMPTS % ROUNDS % 2 && i % PROMPTS % 3 == 0, ended = false;
        for (int k = 0; k < EACH; k++) ended = ended || a[k].state == MC_ANSWER_CANCELLED;
        if (ended) assert_true(may_end);
        if (!ended) compare("threads", i, a, p[i % PROMPTS].alone);
    }
    mc_context_free(ctx);
}

/* ---- what is wrong
 * --------------------------------------------------------------------------- */

static bool stop_at_three(void *user, int number, const int32_t *ids, int count)
{
    (void)user, (void)number, (void)ids;
    return count == 3;
}

/* Each error is that of its answer: the one beside it ends as it would alone. */
static void test_refusals(void **state)
{
    (void)state;
    enum { BAD = 8 };
    mc_context *ctx = test_context(3);
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    static const int32_t ids[30] = {3, 5, 7}, strange[] = {3, 50};
    const struct {
        const int32_t *ids;
        int count;
        mc_generate_options o;
        const char *words[2];
    } bad[BAD] = {
        {ids, 30, {.max_new_tokens = 2}, {"30 tokens and 2 new ones", "24 positions"}},
        {ids, 12, {.max_new_tokens = 8}, {"12 tokens and 8 new ones", "room for 16 of a sequence"}},
        {ids, 0, {.max_new_tokens = 2}, {"empty", "prompt"}},
        {strange, 2, {.max_new_tokens = 2}, {"token 1", "0 to 49"}},
        {ids, 2, {.max_new_tokens = 2, .num_beams = 3}, {"num_beams 3", "at most 2"}},
        {ids, 9, {.max_new_tokens = 8, .num_beams = 2}, {"num_beams 2", "and 20 in all"}},
        {ids, 2, {.max_new_tokens = 2, .top_k = -1}, {"top_k -1", "at least 1"}},
        {ids, 2, {.eos = ids, .eos_count = 17}, {"eos_count 17", "at most 16"}},
    };
    mc_generator *g = mc_model_generator_open(
        model,
        &(mc_generator_options){.sequences = 2, .longest = 16, .cache_tokens = 20, .page = 4});
    answer a[BAD] = {{.count = 0}}, good = {.count = 0}, stopped = {.count = 0};
    mc_generate_options o = {.max_new_tokens = 6, .ignore_eos = true};
    for (int i = 0; i < BAD; i++)
        assert_true(mc_generator_add(g, bad[i].ids, bad[i].count, &bad[i].o, got, &a[i]) > 0);
    assert_true(mc_generator_add(g, ids, 3, &o, got, &good) > 0);
    o.stop = stop_at_three;
    assert_true(mc_generator_add(g, ids, 3, &o, got, &stopped) > 0);
    while (mc_generator_step(g)) continue;
    assert_good(ctx);
    for (int i = 0; i < BAD; i++) {
        assert_int_equal(a[i].state, MC_ANSWER_FAILED);
        assert_int_equal(a[i].count, 0);
        for (int w = 0; w < 2; w++)
            if (!strstr(a[i].error, bad[i].words[w])) fail_msg("%d: %s", i, a[i].error);
    }
    assert_int_equal(good.count, 6);
    assert_int_equal(stopped.count, 3);
    assert_memory_equal(good.ids, stopped.ids, 3 * sizeof *good.ids);
    assert_null(mc_model_generator_open(model, &(mc_generator_options){.page = 12}));
    assert_error(ctx, MC_ERR_ARGUMENT, "page 12", "power of two");
    assert_null(mc_model_generator_open(model, &(mc_generator_options){.sequences = -1}));
    assert_error(ctx, MC_ERR_ARGUMENT, "sequences -1", "1 to 4096");
    assert_null(mc_model_generator_open(model, &(mc_generator_options){.prompt_piece = -2}));
    assert_error(ctx, MC_ERR_ARGUMENT, "prompt_piece -2", "1 or more");
    assert_null(mc_model_generator_open(tiny_model(ctx, tiny("bert"), NULL), NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "encoder", "generate");
    assert_true(mc_generator_cache_bytes(g) > 0);
    mc_generator_cancel(g, 1);
    mc_generator_cancel(g, 99);
    mc_context_free(ctx); /* with what still waits, and the generator */
}

/* Logits that are no numbers end one answer after the other, and none waits for ever. */
static void test_weights_that_are_no_numbers(void **state)
{
    (void)state;
    mc_context *ctx = test_context(3);
    mc_model *model = tiny_model(ctx, tiny("gpt2"), NULL);
    float values[16];
    for (int i = 0; i < 16; i++) values[i] = NAN;
    mc_parameter_write(
        mc_module_find_parameter(mc_model_module(model), "encoder.output_layernorm.weight"),
        values);
    answer a[5] = {{.count = 0}};
    const int32_t ids[] = {4, 5};
    const mc_generate_options beams = {.num_beams = 2, .num_return_sequences = 2};
    mc_generator *g = mc_model_generator_open(model, &(mc_generator_options){.sequences = 2});
    for (int i = 0; i < 3; i++) assert_true(mc_generator_add(g, ids, 2, NULL, got, &a[i]) > 0);
    assert_true(mc_generator_add(g, ids, 2, &beams, got, &a[3]) > 0);
    while (mc_generator_step(g)) continue;
    assert_good(ctx);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(a[i].state, MC_ANSWER_FAILED);
        assert_non_null(strstr(a[i].error, "not finite"));
    }
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joining),         cmocka_unit_test(test_search_in_order),
        cmocka_unit_test(test_cancel_several),  cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_piece_cancelled), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_weights_that_are_no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
