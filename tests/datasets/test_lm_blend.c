/* Blends of token files: Megatron's greedy order, found from any position; the loader's batches of
 * them at any number of ranks; and tokens of a program's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <time.h>
#include "datasets/lm/blend_internal.h"
#include "datasets/lm/loader_internal.h"
#include "tests/datasets/lm_test.h"
#include "datasets/token_files.h"

/* ---- the order ---- */

/* Megatron's loop, as it stands in its helpers: weights that sum up to 1, in doubles. */
static int greedy(const double *weights, const int64_t *taken, int count, int64_t n)
{
    double at = n > 1 ? (double)n : 1, most = -INFINITY;
    int best = 0;
    for (int i = 0; i < count; i++) {
        double lag = weights[i] * at - (double)taken[i];
        if (lag > most) {
            most = lag;
            best = i;
        }
    }
    return best;
}

/* Weights that are binary fractions, so that doubles have no say in ties. */
static void test_greedy_order(void **state)
{
    (void)state;
    static const double cases[][5] = {{1},
                                      {0.5, 0.5},
                                      {0.25, 0.75},
                                      {0.75, 0.25},
                                      {0.5, 0.25, 0.25},
                                      {0.015625, 0.25, 0.734375},
                                      {0.125, 0.125, 0.5, 0.1875, 0.0625}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int count = 0;
        while (count < 5 && cases[c][count] > 0) count++;
        int64_t taken[5] = {0}, sample;
        mc_lm_blend blend;
        assert_true(mc_lm_blend_init(&blend, cases[c], count));
        for (int64_t n = 0; n < 1000; n++) {
            int expected = greedy(cases[c], taken, count, n);
            assert_int_equal(mc_lm_blend_next(&blend, &sample), expected);
            assert_int_equal(sample, taken[expected]++);
        }
        mc_lm_blend_release(&blend);
    }
}

/* 7:3 by hand. Ten times the lags: 7 and 3 (n = 0 counts as 1), -3 and 3, 4 and -4, 1 and -1, -2
 * and 2, 5 and -5, 2 and -2, -1 and 1, 6 and -6, 3 and -3, 0 and 0. */
static void test_seven_to_three(void **state)
{
    (void)state;
    static const int expected[] = {0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0};
    mc_lm_blend blend;
    assert_true(mc_lm_blend_init(&blend, (double[]){0.7, 0.3}, 2));
    assert_int_equal(blend.period, 10);
    int64_t sample;
    for (size_t n = 0; n < sizeof expected / sizeof *expected; n++)
        assert_int_equal(mc_lm_blend_next(&blend, &sample), expected[n]);
    mc_lm_blend_release(&blend);
}

/* Any position is the one that is reached by going there, far ones have the shares of the weights,
 * and none is further away than a promise allows. */
static void test_seek(void **state)
{
    (void)state;
    enum { STEPS = 5000 };
    static int source[STEPS];
    static int64_t sample[STEPS];
    static const double weights[][3] = {{0.7, 0.2, 0.1}, {1, 1, 1}, {0.123457, 3, 12.5}};
    for (size_t c = 0; c < 3; c++) {
        mc_lm_blend blend;
        assert_true(mc_lm_blend_init(&blend, weights[c], 3));
        for (int n = 0; n < STEPS; n++) source[n] = mc_lm_blend_next(&blend, &sample[n]);
        for (int64_t n = 0, i = 0; i < 300; n = (n * 31 + 17) % STEPS, i++) {
            int64_t at;
            mc_lm_blend_seek(&blend, n);
            assert_int_equal(mc_lm_blend_next(&blend, &at), source[n]);
            assert_int_equal(at, sample[n]);
        }
        mc_lm_blend_release(&blend);
    }
    mc_lm_blend blend; /* far away: counts are the weights' share of it */
    assert_true(mc_lm_blend_init(&blend, (double[]){0.7, 0.3}, 2));
    int64_t far = 10000000000007, at;
    mc_lm_blend_seek(&blend, far);
    assert_int_equal(mc_lm_blend_next(&blend, &at), 1);
    assert_int_equal(at, 3000000000002); /* of the seven since, two were its */
    mc_lm_blend_release(&blend);
}

/* Weights without a short period are rounded, to a period within which a seek is quick. */
static void test_odd_weights(void **state)
{
    (void)state;
    enum { SOURCES = 50 };
    double weights[SOURCES], sum = 0;
    for (int i = 0; i < SOURCES; i++) sum += weights[i] = sqrt(i + 1.0);
    mc_lm_blend blend;
    assert_true(mc_lm_blend_init(&blend, weights, SOURCES));
    assert_true(blend.period > 300000 && blend.period <= 1 << 20);
    for (int i = 0; i < SOURCES; i++)
        assert_true(fabs((double)blend.part[i] / (double)blend.period - weights[i] / sum) < 4e-6);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    mc_lm_blend_seek(&blend, 1LL << 40 | 12345);
    clock_gettime(CLOCK_MONOTONIC, &after);
    double seconds =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    const double PROMISE = 0.1, BUSY = 20; /* sanitizers, and a machine that is busy */
    assert_true(seconds < PROMISE * BUSY);
    mc_lm_blend_release(&blend);
    /* tiny ones come too, huge ones do not overflow */
    assert_true(mc_lm_blend_init(&blend, (double[]){1e-300, 1e308, 1e308}, 3));
    assert_int_equal(blend.part[0], 1);
    assert_int_equal(blend.part[1], blend.part[2]);
    mc_lm_blend_release(&blend);
}

/* ---- the loader ---- */

/* Three files: tokens of the i-th begin at 10000 * i, and say where they are from. */
static void make_files(fixture *f, mc_lm_source sources[3])
{
    static const int counts[3] = {401, 101, 51};
    static const double weights[3] = {0.5, 0.3, 0.2};
    for (int i = 0; i < 3; i++) {
        int32_t ids[401];
        for (int k = 0; k < counts[i]; k++) ids[k] = 10000 * i + k;
        sources[i] = (mc_lm_source){
            mc_token_file_from_arrays(f->ctx, (const int32_t *[]){ids}, (int64_t[]){counts[i]}, 1),
            weights[i]};
        expect_ok(f->ctx);
    }
}

static mc_lm_loader *make_blend(fixture *f, const mc_lm_source *sources,
                                mc_lm_loader_options options)
{
    mc_lm_loader *l = mc_lm_loader_new_blend(sources, 3, &options);
    expect_ok(f->ctx);
    assert_non_null(l);
    return l;
}

/* In the files' order, each source goes round on its own: 80, 20 and 10 windows of 5. */
static void test_blended_batches(void **state)
{
    fixture *f = *state;
    mc_lm_source sources[3];
    make_files(f, sources);
    mc_lm_loader *l = make_blend(
        f, sources, (mc_lm_loader_options){.batch_size = 10, .seq_length = 5, .repeat = true});
    assert_int_equal(mc_lm_loader_windows(l), 110);
    assert_int_equal(mc_lm_loader_tokens(l), 553);
    assert_int_equal(mc_lm_loader_batches(l), 11);
    mc_lm_blend order;
    assert_true(mc_lm_blend_init(&order, (double[]){0.5, 0.3, 0.2}, 3));
    int64_t taken[3] = {0}, windows[3] = {80, 20, 10};
    const mc_lm_batch *b = NULL;
    for (int64_t n = 0; n < 500; n++) {
        if (n % 10 == 0) { /* ten windows have exactly the shares of the weights */
            b = mc_lm_loader_next(l);
            assert_int_equal(b->epoch, n / 110);
            assert_true(taken[0] * 2 == n && taken[1] * 10 == n * 3 && taken[2] * 5 == n);
        }
        int64_t sample;
        const int32_t *ids = b->ids + n % 10 * 5;
        int source = ids[0] / 10000;
        assert_int_equal(mc_lm_blend_next(&order, &sample), source);
        assert_int_equal(sample, taken[source]++);
        assert_int_equal(ids[0] % 10000, sample % windows[source] * 5);
        assert_int_equal(b->labels[n % 10 * 5 + 4], ids[0] + 5);
    }
    mc_lm_blend_release(&order);
    for (int i = 0; i < 3; i++) mc_token_file_free(sources[i].file); /* the loader keeps them */
    assert_non_null(mc_lm_loader_next(l));
}

/* Shuffled, every window of a source comes once before any comes again. */
static void test_own_epochs(void **state)
{
    fixture *f = *state;
    mc_lm_source sources[3];
    make_files(f, sources);
    mc_lm_loader *l = make_blend(
        f, sources,
        (mc_lm_loader_options){.batch_size = 10, .seq_length = 5, .shuffle = true, .repeat = true});
    int seen[3][80] = {{0}}, rounds[3] = {0}, done[3] = {0}, windows[3] = {80, 20, 10};
    for (int batch = 0; batch < 40; batch++) {
        const mc_lm_batch *b = mc_lm_loader_next(l);
        for (int row = 0; row < 10; row++) {
            int source = b->ids[5 * row] / 10000, window = b->ids[5 * row] % 10000 / 5;
            assert_int_equal(seen[source][window]++, rounds[source]);
            if (++done[source] % windows[source] == 0) rounds[source]++;
        }
    }
    assert_int_equal(done[0], 200);
    assert_int_equal(done[1], 120);
    assert_int_equal(done[2], 80);
    expect_ok(f->ctx);
}

/* The batches of all ranks side by side are those of one; documents apart too. */
static void test_blend_worlds(void **state)
{
    fixture *f = *state;
    mc_lm_source sources[3];
    make_files(f, sources);
    for (int world = 2; world <= 6; world++) {
        if (12 % world) continue;
        int each = 12 / world;
        for (int rank = 0; rank < world; rank++) {
            mc_lm_loader_options options = {
                .batch_size = 12, .seq_length = 5, .shuffle = true, .repeat = true, .world = 1};
            mc_lm_loader *one = make_blend(f, sources, options);
            options.batch_size = each;
            options.world = world;
            options.rank = rank;
            mc_lm_loader *l = make_blend(f, sources, options);
            for (int k = 0; k < 40; k++) {
                const mc_lm_batch *whole = mc_lm_loader_next(one), *b = mc_lm_loader_next(l);
                size_t size = (size_t)each * 5 * sizeof *b->ids, at = (size_t)(rank * each * 5);
                assert_memory_equal(b->ids, whole->ids + at, size);
                assert_memory_equal(b->labels, whole->labels + at, size);
            }
            mc_lm_loader_free(one);
            mc_lm_loader_free(l);
        }
    }
}

static void test_blend_resume(void **state)
{
    fixture *f = *state;
    mc_lm_source sources[3];
    make_files(f, sources);
    mc_lm_loader_options options = {
        .batch_size = 4, .seq_length = 5, .shuffle = true, .repeat = true};
    for (int stop = 0; stop < 90; stop += 7) {
        mc_lm_loader *l = make_blend(f, sources, options);
        for (int i = 0; i < stop; i++) mc_lm_loader_next(l);
        mc_lm_position position = mc_lm_loader_position(l);
        options.batch_size = 2;
        options.seed = 1234; /* the position brings its own */
        mc_lm_loader *half = make_blend(f, sources, options);
        options.batch_size = 4;
        options.seed = 0;
        assert_int_equal(mc_lm_loader_seek(half, &position), MC_OK);
        for (int i = 0; i < 20; i++) {
            const mc_lm_batch *b = mc_lm_loader_next(l);
            if (b->epoch > position.epoch) break; /* what fills no batch is left out there */
            assert_memory_equal(b->ids, mc_lm_loader_next(half)->ids, 10 * sizeof *b->ids);
            assert_memory_equal(b->ids + 10, mc_lm_loader_next(half)->ids, 10 * sizeof *b->ids);
        }
        mc_lm_loader_free(l);
        mc_lm_loader_free(half);
    }
    /* other weights are other data */
    mc_lm_loader *l = make_blend(f, sources, options);
    mc_lm_position position = mc_lm_loader_position(l);
    sources[2].weight = 0.3;
    mc_lm_loader *other = make_blend(f, sources, options);
    assert_int_equal(mc_lm_loader_seek(other, &position), MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "the position to resume from is of other data");
    sources[2].weight = 0.2;
    position.epoch = INT64_MAX / 4;
    assert_int_equal(mc_lm_loader_seek(l, &position), MC_ERR_ARGUMENT);
    expect_error(f->ctx, MC_ERR_ARGUMENT, "is no position");
}

static void test_bad_blends(void **state)
{
    fixture *f = *state;
    mc_lm_source sources[3];
    make_files(f, sources);
    const mc_lm_loader_options options = {.batch_size = 4, .seq_length = 5};
    static const double bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        sources[1].weight = bad[i];
        assert_null(mc_lm_loader_new_blend(sources, 3, &options));
        expect_error(f->ctx, MC_ERR_ARGUMENT, "expected a positive number");
    }
    sources[1].weight = 1;
    assert_null(mc_lm_loader_new_blend(sources, 0, &options));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "number of sources is 0");
    assert_null(mc_lm_loader_new_blend(sources, 3,
                                       &(mc_lm_loader_options){.batch_size = 1, .seq_length = 60}));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "51 tokens are too few for a sequence of 60");
    assert_null(mc_lm_loader_new_blend(
        sources, 3, &(mc_lm_loader_options){.batch_size = 111, .seq_length = 5}));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "553 tokens in all sources are too few for one batch");
    assert_null(mc_lm_loader_new_blend(NULL, 3, &options));
    sources[2].file = NULL;
    assert_null(mc_lm_loader_new_blend(sources, 3, &options));
    expect_ok(f->ctx);
}

/* ---- a program's own tokens ---- */

typedef struct counting {
    int64_t fail_at;
    int64_t calls;
} counting;

/* Token i is i % 1000. */
static bool count_tokens(void *user, int64_t first, int64_t count, int32_t *out)
{
    counting *c = user;
    c->calls++;
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)((first + i) % 1000);
    return !(c->fail_at >= first && c->fail_at < first + count);
}

static void test_function(void **state)
{
    fixture *f = *state;
    counting c = {.fail_at = -1};
    const mc_token_source source = {
        .name = "numbers", .count = 10000000000, .read = count_tokens, .user = &c};
    mc_token_file *file = mc_token_file_from_source(f->ctx, &source);
    expect_ok(f->ctx);
    assert_int_equal(mc_token_file_count(file), source.count);
    assert_int_equal(mc_token_file_documents(file), -1);
    assert_int_equal(mc_token_file_format(file, 0), MC_TOKENS_PROGRAM);
    assert_string_equal(mc_token_file_path(file, 0), "numbers");
    int32_t ids[3];
    assert_int_equal(mc_token_file_read(file, 9999999997, 3, ids), MC_OK);
    assert_memory_equal(ids, ((int32_t[]){997, 998, 999}), sizeof ids);
    mc_lm_loader *l = mc_lm_loader_new(
        file, &(mc_lm_loader_options){
                  .batch_size = 4, .seq_length = 100, .shuffle = true, .vocabulary = 1000});
    expect_ok(f->ctx);
    for (int i = 0; i < 3; i++) {
        const mc_lm_batch *b = mc_lm_loader_next(l);
        for (int k = 0; k < 400; k++) assert_int_equal((b->ids[k] + 1) % 1000, b->labels[k]);
    }
    l = mc_lm_loader_new(
        file, &(mc_lm_loader_options){.batch_size = 1, .seq_length = 100, .vocabulary = 150});
    assert_non_null(mc_lm_loader_next(l));
    assert_null(mc_lm_loader_next(l));
    expect_error(f->ctx, MC_ERR_FORMAT,
                 "numbers: token 150 at position 150 is past the vocabulary: expected 0 to 149");
    c.fail_at = 50;
    assert_null(mc_lm_loader_new(file, &(mc_lm_loader_options){.batch_size = 1, .seq_length = 5}));
    expect_error(f->ctx, MC_ERR_IO,
                 "numbers: the program's function could not give 64 tokens from position 0 on");
}

static void test_arrays(void **state)
{
    fixture *f = *state;
    const int32_t *documents[] = {(int32_t[]){1, 2, 3}, NULL, (int32_t[]){4, 5}};
    mc_token_file *file = mc_token_file_from_arrays(f->ctx, documents, (int64_t[]){3, 0, 2}, 3);
    expect_ok(f->ctx);
    int64_t first, count;
    assert_int_equal(mc_token_file_documents(file), 3);
    assert_true(mc_token_file_document(file, 1, &first, &count) && first == 3 && count == 0);
    assert_true(mc_token_file_document(file, 2, &first, &count) && first == 3 && count == 2);
    assert_false(mc_token_file_document(file, 3, &first, &count));
    assert_int_equal(mc_token_file_largest(file), 5);
    assert_null(mc_token_file_from_arrays(f->ctx, documents, (int64_t[]){0, 0, 0}, 3));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no tokens");
    assert_null(mc_token_file_from_arrays(f->ctx, documents, (int64_t[]){2, -1, 0}, 3));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "less than no tokens");
    assert_null(mc_token_file_from_arrays(f->ctx, NULL, NULL, 3));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no tokens");
    counting c = {.fail_at = -1};
    mc_token_source source = {.count = 10, .read = count_tokens, .user = &c};
    source.documents = (int64_t[]){4, 5};
    source.document_count = 2;
    assert_null(mc_token_file_from_source(f->ctx, &source));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "the documents have 9 tokens, expected the source's 10");
    source.count = 9;
    file = mc_token_file_from_source(f->ctx, &source);
    assert_true(mc_token_file_document(file, 1, &first, &count) && first == 4 && count == 5);
    source.documents = NULL;
    assert_null(mc_token_file_from_source(f->ctx, &source));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "a number of documents, but not their tokens");
    source.read = NULL;
    assert_null(mc_token_file_from_source(f->ctx, &source));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no function");
    assert_null(mc_token_file_from_source(f->ctx, NULL));
    expect_error(f->ctx, MC_ERR_ARGUMENT, "no function");
}

#ifdef MC_FAULT_INJECTION
/* Whatever allocation of a blend fails: a clean error, no leak. */
static void test_faults(void **state)
{
    fixture *f = *state;
    const int32_t ids[50] = {0}, *documents[] = {ids};
    for (long nth = 1, count = 1; nth <= count; nth++) {
        mc_fault_fail_at(nth, false);
        mc_lm_source sources[2];
        for (int i = 0; i < 2; i++)
            sources[i] = (mc_lm_source){
                mc_token_file_from_arrays(f->ctx, documents, (int64_t[]){50}, 1), 1 + i};
        mc_lm_loader *l = mc_lm_loader_new_blend(
            sources, 2,
            &(mc_lm_loader_options){
                .batch_size = 1, .seq_length = 5, .world = 2, .separate_documents = true});
        mc_lm_lengths *lengths = mc_lm_lengths_new(f->ctx, 2, 1, 5);
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        bool good = l && lengths;
        assert_int_equal(good, nth > count);
        mc_lm_lengths_free(lengths);
        mc_lm_loader_free(l);
        for (int i = 0; i < 2; i++) mc_token_file_free(sources[i].file);
        if (good)
            expect_ok(f->ctx);
        else
            expect_error(f->ctx, MC_ERR_NOMEM, "");
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_order),
        cmocka_unit_test(test_seven_to_three),
        cmocka_unit_test(test_seek),
        cmocka_unit_test(test_odd_weights),
        cmocka_unit_test_setup_teardown(test_blended_batches, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_epochs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_blend_worlds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_blend_resume, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_blends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_function, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_arrays, set_up, tear_down),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
