/* Scores of questions with several rows, against values worked out by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include "datasets/question_metrics.h"

static void near(double found, double expected)
{
    if (fabs(found - expected) > 1e-12) print_error("%.15g, expected %.15g\n", found, expected);
    assert_true(fabs(found - expected) <= 1e-12);
}

static void test_multirc(void **state)
{
    (void)state;
    /* question 0 is right, 1 has one mistake, 2 is right, 3 has no labels */
    const int64_t question[] = {0, 0, 1, 1, 1, 2, 3, 3};
    const int32_t label[] = {1, 0, 1, 1, 0, 0, -100, -100};
    const float predicted[] = {1, 0, 1, 0, 0, 0, 1, 1};
    mc_question_score s = mc_score_questions(question, label, predicted, 8);
    near(s.em, 2.0 / 3);
    near(s.f1a, 2 * 2.0 / (3 + 2)); /* 2 right of 3 labelled and 2 predicted */
    assert_int_equal(s.rows, 6);
    assert_int_equal(s.questions, 3);
    s = mc_score_questions(question + 5, label + 5, predicted + 5, 1);
    near(s.em, 1);
    near(s.f1a, 0); /* nothing is 1 */
    s = mc_score_questions(question + 6, label + 6, predicted + 6, 2);
    assert_true(isnan(s.em) && isnan(s.f1a));
}

static void test_best(void **state)
{
    (void)state;
    const int64_t question[] = {7, 7, 7, 2, 2, 9, 1, 1};
    const float score[] = {-3, -1, -2, -5, -5, NAN, NAN, -9};
    int64_t best[8];
    assert_int_equal(mc_best_rows(question, score, 8, best), 4);
    assert_int_equal(best[0], 1);
    assert_int_equal(best[1], 3); /* of equal ones the first */
    assert_int_equal(best[2], 5);
    assert_int_equal(best[3], 7);
    assert_int_equal(mc_best_rows(question, score, 0, best), 0);
}

/* One rank: its numbers are all numbers. */
static void test_gather(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL);
    float values[] = {1.5F, 0, -2};
    assert_int_equal(mc_merge_results(ctx, values, 3), MC_OK);
    assert_true(values[0] == 1.5F && values[1] == 0 && values[2] == -2);
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_multirc),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
