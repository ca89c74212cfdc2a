/* tensor_stats in every instruction set, against sums in long double. */
#include "tests/device/kernel_test.h"

/* n values of a dtype around `mean`, written to x and, as they were rounded, to `value`. */
static void make_values(void *x, mc_dtype dtype, double *value, int n, double mean, double spread)
{
    for (int i = 0; i < n; i++) {
        float f = (float)uniform(mean - spread, mean + spread);
        if (fabsf(f) < 1e-3f) f = 1e-3f; /* a normal number in f16 too */
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (dtype == MC_F32) {
            ((float *)x)[i] = f;
            value[i] = f;
        } else if (dtype == MC_BF16) {
            ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
            value[i] = decode(bits >> 16, 8, 7);
        } else {
            uint32_t half =
                ((bits >> 31) << 15) | ((((bits >> 23) & 255) - 112) << 10) | ((bits >> 13) & 1023);
            ((uint16_t *)x)[i] = (uint16_t)half;
            value[i] = decode(half, 5, 10);
        }
    }
}

typedef struct expected {
    double mean, squares, largest, smallest;
} expected;

static expected expected_of(const double *value, int n)
{
    long double sum = 0, squares = 0;
    expected e = {.largest = -INFINITY, .smallest = INFINITY};
    for (int i = 0; i < n; i++) {
        sum += value[i];
        if (value[i] > e.largest) e.largest = value[i];
        if (value[i] < e.smallest) e.smallest = value[i];
    }
    for (int i = 0; i < n; i++) squares += (value[i] - sum / n) * (value[i] - sum / n);
    e.mean = (double)(sum / n);
    e.squares = (double)squares;
    return e;
}

static void check(const mc_tensor_stats *s, const double *value, int n, double mean, double spread)
{
    expected e = expected_of(value, n);
    double got_mean = s->shift + s->sum / n, got = s->squares - s->sum * s->sum / n;
    assert_int_equal(s->count, n);
    assert_true(fabs(got_mean - e.mean) <= 1e-12 * (fabs(mean) + spread));
    /* the spread is found to nearly all digits of double, however large the mean */
    assert_true(fabs(got - e.squares) <= 1e-10 * n * spread * spread);
    assert_true((double)s->largest == e.largest && (double)s->smallest == e.smallest);
}

static void test_values(void **state)
{
    (void)state;
    enum { MOST = 100003 };
    static const int counts[] = {1, 2, 3, 15, 17, 1023, 1025, 16384, 16385, MOST};
    static const double means[] = {0, 1000, -3};
    float *x = malloc(MOST * sizeof *x);
    double *value = malloc(MOST * sizeof *value);
    assert_true(x && value);
    FOR_TABLES(t)
    FOR_TYPES(k) for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    {
        for (size_t m = 0; m < 3; m++) {
            double mean = means[m], spread = mean == 0 ? 2.5 : 0.3;
            make_values(x, float_types[k], value, counts[c], mean, spread);
            mc_tensor_stats s, again;
            mc_matrix all = {x, float_types[k], 0};
            assert_int_equal(t->k->tensor_stats(device, counts[c], all, &s), MC_OK);
            check(&s, value, counts[c], mean, spread);
            assert_int_equal(t->k->tensor_stats(device, counts[c], all, &again), MC_OK);
            assert_memory_equal(&s, &again, sizeof s);
        }
    }
    free(x);
    free(value);
}

static void test_special(void **state)
{
    (void)state;
    enum { N = 20000 };
    static float x[N];
    FOR_TABLES(t)
    {
        mc_tensor_stats s;
        mc_matrix all = {x, MC_F32, N};
        assert_int_equal(t->k->tensor_stats(device, 0, all, &s), MC_OK);
        assert_true(s.count == 0 && s.sum == 0 && s.squares == 0 && s.largest == -INFINITY &&
                    s.smallest == INFINITY);
        for (int i = 0; i < N; i++) x[i] = 0.1f; /* no spread at all */
        assert_int_equal(t->k->tensor_stats(device, N, all, &s), MC_OK);
        assert_true(s.shift + s.sum / N == (double)0.1f && s.squares == 0);
        x[0] = INFINITY; /* the mean is infinite, not NaN */
        assert_int_equal(t->k->tensor_stats(device, N, all, &s), MC_OK);
        assert_true(s.shift + s.sum / N == INFINITY && s.largest == INFINITY && s.smallest == 0.1f);
        x[N - 1] = -INFINITY;
        assert_int_equal(t->k->tensor_stats(device, N, all, &s), MC_OK);
        assert_true(isnan(s.sum) && s.largest == INFINITY && s.smallest == -INFINITY);
        x[N / 2] = NAN;
        assert_int_equal(t->k->tensor_stats(device, N, all, &s), MC_OK);
        assert_true(isnan(s.sum) && isnan(s.largest) && isnan(s.smallest));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_special),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
