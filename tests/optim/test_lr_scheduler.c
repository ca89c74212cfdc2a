/* Schedules: BMTrain's values, the formulas at their edges, and the state. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/base/json_internal.h"
#include "tests/optim/optim_test.h"

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

/* The first `count` values of a schedule, taken one step at a time, against the file's. */
static void check_values(const cJSON *lists, const char *name, mc_lr_scheduler *s, int count)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(lists, name);
    assert_non_null(s);
    assert_true(cJSON_GetArraySize(list) >= count);
    for (int n = 0; n < count; n++) {
        double wanted = cJSON_GetArrayItem(list, n)->valuedouble;
        double found = mc_lr_scheduler_lr(s);
        if (fabs(found - wanted) > 1e-12 * fabs(wanted))
            fail_msg("%s at %d: %.17g, expected %.17g", name, n, found, wanted);
        assert_true(mc_lr_scheduler_at(s, n) == found);
        assert_int_equal(mc_lr_scheduler_set_count(s, mc_lr_scheduler_count(s) + 1), MC_OK);
    }
}

static void test_golden(void **state)
{
    mc_context *ctx = *state;
    const char *shared = shared_folder();
    if (!shared) skip();
    char path[1024];
    snprintf(path, sizeof path, "%s/goldens/bmtrain-schedulers.json", shared);
    cJSON *golden = mc_json_read_object(&ctx->error, path, 1 << 20);
    assert_good(ctx);
    const cJSON *lists = cJSON_GetObjectItemCaseSensitive(golden, "lr");
    double lr = number(golden, "start_lr"), gamma = number(golden, "gamma");
    int64_t warmup = (int64_t)number(golden, "warmup_iter"),
            end = (int64_t)number(golden, "end_iter");
    check_values(lists, "NoDecay", mc_no_decay_new(ctx, lr, warmup), 60);
    check_values(lists, "Noam", mc_noam_new(ctx, lr, warmup), 60);
    check_values(lists, "Linear", mc_linear_decay_new(ctx, lr, warmup, end), 60);
    check_values(lists, "Exponential", mc_exponential_new(ctx, lr, warmup, gamma), 60);
    /* the reference's cosine rises again after the end; ours stays at 0 (see test_ends) */
    check_values(lists, "Cosine", mc_cosine_new(ctx, lr, warmup, end), (int)end);
    cJSON_Delete(golden);
}

static void test_ends(void **state)
{
    mc_context *ctx = *state;
    mc_lr_scheduler *cosine = mc_cosine_new(ctx, 1e-3, 10, 50);
    mc_lr_scheduler *linear = mc_linear_decay_new(ctx, 1e-3, 10, 50);
    for (int64_t n = 50; n < 200; n++) {
        assert_true(mc_lr_scheduler_at(cosine, n) == 0);
        assert_true(mc_lr_scheduler_at(linear, n) == 0);
    }
    assert_true(mc_lr_scheduler_at(cosine, 49) > 0);
    assert_near(mc_lr_scheduler_at(cosine, 30), 0.5e-3, 1e-18);
    assert_near(mc_lr_scheduler_at(linear, 49), 1e-3 / 40, 1e-18);
    assert_good(ctx);
}

/* Without a warm-up the first step has the full rate, in noam too. */
static void test_no_warmup(void **state)
{
    mc_context *ctx = *state;
    mc_lr_scheduler *all[] = {mc_no_decay_new(ctx, 0.5, 0), mc_noam_new(ctx, 0.5, 0),
                              mc_linear_decay_new(ctx, 0.5, 0, 8), mc_cosine_new(ctx, 0.5, 0, 8),
                              mc_exponential_new(ctx, 0.5, 0, 0.5)};
    for (size_t i = 0; i < 5; i++) assert_true(mc_lr_scheduler_lr(all[i]) == 0.5);
    assert_near(mc_lr_scheduler_at(all[1], 4), 0.25, 1e-16);
    assert_near(mc_lr_scheduler_at(all[2], 2), 0.375, 1e-16);
    assert_near(mc_lr_scheduler_at(all[4], 3), 0.0625, 1e-16);
    assert_good(ctx);
}

/* A run that ends within, or with, its warm-up: it rises, and is over. */
static void test_short_run(void **state)
{
    mc_context *ctx = *state;
    mc_lr_scheduler *linear = mc_linear_decay_new(ctx, 1, 10, 5);
    assert_near(mc_lr_scheduler_at(linear, 9), 0.9, 1e-16);
    assert_true(mc_lr_scheduler_at(linear, 10) == 0);
    assert_true(mc_lr_scheduler_at(mc_linear_decay_new(ctx, 1, 10, 10), 10) == 0);
    mc_lr_scheduler *cosine = mc_cosine_new(ctx, 1, 10, 5);
    for (int64_t n = 11; n < 30; n++) assert_true(mc_lr_scheduler_at(cosine, n) == 0);
    assert_good(ctx);
}

static double steps_of_ten(void *user, int64_t n) { return *(double *)user / (double)(1 + n / 10); }

static void test_custom(void **state)
{
    mc_context *ctx = *state;
    double base = 4;
    mc_lr_scheduler *s = mc_lr_scheduler_new(ctx, steps_of_ten, &base);
    assert_true(mc_lr_scheduler_at(s, 9) == 4 && mc_lr_scheduler_at(s, 30) == 1);
    assert_null(mc_lr_scheduler_new(ctx, NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "function is NULL");
}

static void test_count(void **state)
{
    mc_context *ctx = *state;
    mc_lr_scheduler *s = mc_noam_new(ctx, 1, 4);
    assert_int_equal(mc_lr_scheduler_count(s), 0);
    assert_int_equal(mc_lr_scheduler_set_count(s, 16), MC_OK);
    assert_true(mc_lr_scheduler_lr(s) == 0.25);
    assert_int_equal(mc_lr_scheduler_set_count(s, -1), MC_ERR_ARGUMENT);
    assert_int_equal(mc_lr_scheduler_count(s), 16);
    assert_error(ctx, MC_ERR_ARGUMENT, "noam", "-1");
    assert_true(isnan(mc_lr_scheduler_at(s, -1)));
    mc_lr_scheduler_free(s);
    mc_lr_scheduler_free(NULL);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    assert_null(mc_noam_new(ctx, -1, 4));
    assert_error(ctx, MC_ERR_ARGUMENT, "noam", "-1");
    assert_null(mc_cosine_new(ctx, NAN, 4, 8));
    assert_error(ctx, MC_ERR_ARGUMENT, "cosine", "nan");
    assert_null(mc_no_decay_new(ctx, INFINITY, 4));
    assert_error(ctx, MC_ERR_ARGUMENT, "no decay", "inf");
    assert_null(mc_linear_decay_new(ctx, 1, -2, 8));
    assert_error(ctx, MC_ERR_ARGUMENT, "linear", "-2");
    assert_null(mc_exponential_new(ctx, 1, 0, 1.5));
    assert_error(ctx, MC_ERR_ARGUMENT, "exponential", "1.5");
}

/* On a failed context nothing is made, nothing moves, and numbers are NaN. */
static void test_sticky(void **state)
{
    mc_context *ctx = *state;
    mc_lr_scheduler *s = mc_no_decay_new(ctx, 1, 0);
    mc_fail(ctx, MC_ERR_IO, "a disk went away");
    assert_null(mc_noam_new(ctx, 1, 4));
    assert_null(mc_exponential_new(ctx, 1, 4, 7));
    assert_true(isnan(mc_lr_scheduler_lr(s)));
    assert_true(isnan(mc_lr_scheduler_lr(NULL)));
    assert_int_equal(mc_lr_scheduler_set_count(s, 5), MC_ERR_IO);
    assert_int_equal(mc_lr_scheduler_count(s), 0);
    assert_error(ctx, MC_ERR_IO, "a disk went away");
    assert_true(mc_lr_scheduler_lr(s) == 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {
        TEST(test_golden), TEST(test_ends),  TEST(test_no_warmup), TEST(test_short_run),
        TEST(test_custom), TEST(test_count), TEST(test_errors),    TEST(test_sticky),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
