/* Accuracy, F1 and recall, against values worked out by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include "core/base/context_internal.h"
#include "datasets/metrics.h"

static int set_up(void **state)
{
    *state = mc_init_distributed(NULL);
    return *state && !mc_failed(*state) ? 0 : -1;
}

static int tear_down(void **state)
{
    mc_context_free(*state);
    return 0;
}

static void add(mc_context *ctx, mc_accuracy *acc, int n, const int32_t *predicted,
                const int32_t *label)
{
    mc_tensor *p = mc_tensor_from(ctx, MC_I32, MC_SHAPE(n), predicted);
    mc_tensor *l = mc_tensor_from(ctx, MC_I32, MC_SHAPE(n), label);
    mc_accuracy_add(acc, p, l);
    mc_tensor_free(p);
    mc_tensor_free(l);
}

#define ADD(ctx, acc, n, ...) add((ctx), (acc), (n), __VA_ARGS__)
#define I32(...) \
    (const int32_t[]) { __VA_ARGS__ }

static void near(double found, double expected)
{
    if (fabs(found - expected) > 1e-12) print_error("%.15g, expected %.15g\n", found, expected);
    assert_true(fabs(found - expected) <= 1e-12);
}

static void test_binary(void **state)
{
    mc_context *ctx = *state;
    mc_accuracy acc = {0};
    ADD(ctx, &acc, 5, I32(1, 0, 1, 1, 0), I32(1, 0, 0, 1, 1));
    ADD(ctx, &acc, 3, I32(0, 0, 1), I32(0, 0, -100)); /* the last has no label */
    assert_int_equal(acc.count, 7);
    near(mc_accuracy_gather(ctx, &acc), 5.0 / 7);
    near(mc_accuracy_share(&acc), 5.0 / 7);
    near(mc_accuracy_f1(&acc), 2 * 2.0 / (3 + 3)); /* 2 right of 3 labelled and 3 predicted */
    near(mc_accuracy_recall(&acc, 0), 3.0 / 4);
    near(mc_accuracy_recall(&acc, 1), 2.0 / 3);
    assert_true(isnan(mc_accuracy_recall(&acc, 2)));
    assert_int_equal(mc_accuracy_class_count(&acc), 2);
}

static void test_all_one_class(void **state)
{
    mc_context *ctx = *state;
    mc_accuracy acc = {0};
    ADD(ctx, &acc, 2, I32(0, 0), I32(0, 0));
    near(mc_accuracy_share(&acc), 1);
    near(mc_accuracy_f1(&acc), 0);
    assert_true(isnan(mc_accuracy_recall(&acc, 1)));
    ADD(ctx, &acc, 1, I32(1), I32(0));
    near(mc_accuracy_f1(&acc), 0);
}

static void test_macro(void **state)
{
    mc_context *ctx = *state;
    mc_accuracy acc = {0};
    ADD(ctx, &acc, 6, I32(0, 1, 2, 2, 0, 1), I32(0, 1, 2, 1, 2, 1));
    near(mc_accuracy_share(&acc), 4.0 / 6);
    near(mc_accuracy_f1(&acc), (2.0 / 3 + 4.0 / 5 + 2.0 / 4) / 3);
    assert_int_equal(mc_accuracy_class_count(&acc), 3);
    /* three classes, of which the third neither occurs nor is predicted: still macro */
    mc_accuracy three = {.classes = 3};
    ADD(ctx, &three, 3, I32(0, 1, 1), I32(0, 1, 0));
    near(mc_accuracy_f1(&three), (2.0 / 3 + 2.0 / 3) / 2);
}

static void test_many_classes(void **state)
{
    mc_context *ctx = *state;
    mc_accuracy acc = {0};
    ADD(ctx, &acc, 4, I32(15, 40, 7, -3), I32(15, 40, 41, 0));
    near(mc_accuracy_share(&acc), 0.5);
    near(mc_accuracy_recall(&acc, 15), 1);
    near(mc_accuracy_recall(&acc, 0), 0);
    assert_int_equal(mc_accuracy_class_count(&acc), 17);
    assert_true(isnan(mc_accuracy_f1(&acc)));
    assert_true(isnan(mc_accuracy_recall(&acc, 16)));
    assert_true(isnan(mc_accuracy_recall(&acc, -1)));
}

/* More rows than are read at once, and i64 against i32. */
static void test_long_batches(void **state)
{
    mc_context *ctx = *state;
    enum { N = 1000 };
    int64_t predicted[N];
    int32_t label[N];
    for (int i = 0; i < N; i++) {
        label[i] = i % 3;
        predicted[i] = i % 5 == 0 ? (i + 1) % 3 : i % 3;
    }
    mc_tensor *p = mc_tensor_from(ctx, MC_I64, MC_SHAPE(N), predicted);
    mc_tensor *l = mc_tensor_from(ctx, MC_I32, MC_SHAPE(N), label);
    mc_accuracy acc = {0};
    mc_accuracy_add(&acc, p, l);
    assert_int_equal(acc.count, N);
    near(mc_accuracy_share(&acc), 0.8);
    mc_tensor *none = mc_tensor_new(ctx, MC_I32, MC_SHAPE(0));
    mc_accuracy_add(&acc, none, none);
    assert_int_equal(acc.count, N);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    mc_accuracy acc = {0};
    assert_true(isnan(mc_accuracy_gather(ctx, &acc)));
    assert_true(isnan(mc_accuracy_share(NULL)));
    assert_true(isnan(mc_accuracy_f1(&acc)));
    mc_tensor *two = mc_tensor_new(ctx, MC_I32, MC_SHAPE(2));
    mc_tensor *three = mc_tensor_new(ctx, MC_I32, MC_SHAPE(3));
    mc_tensor *real = mc_tensor_new(ctx, MC_F32, MC_SHAPE(2));
    assert_int_equal(mc_accuracy_add(&acc, two, NULL), MC_ERR_ARGUMENT);
    assert_string_equal(mc_error_message(ctx), "mc_accuracy_add: labels is NULL");
    mc_clear_error(ctx);
    assert_int_equal(mc_accuracy_add(&acc, NULL, two), MC_ERR_ARGUMENT);
    assert_string_equal(mc_error_message(ctx), "mc_accuracy_add: predictions is NULL");
    mc_clear_error(ctx);
    assert_false(mc_failed(ctx));
    mc_accuracy_add(&acc, three, two);
    assert_int_equal(mc_error_status(ctx), MC_ERR_SHAPE);
    assert_string_equal(mc_error_message(ctx), "accuracy: predictions (3) for labels (2)");
    mc_accuracy_add(&acc, two, two);
    assert_int_equal(acc.count, 0);
    assert_true(isnan(mc_accuracy_gather(ctx, &acc)));
    mc_clear_error(ctx);
    mc_accuracy_add(&acc, real, two);
    assert_int_equal(mc_error_status(ctx), MC_ERR_DTYPE);
    mc_clear_error(ctx);
    mc_accuracy_add(&acc, two, two);
    near(mc_accuracy_gather(ctx, &acc), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_binary, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_all_one_class, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_macro, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many_classes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_long_batches, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_errors, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
