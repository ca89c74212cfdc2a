/* Random numbers: known answers, equal bits in every build, and the distributions themselves. */
#include "tests/device/kernel_test.h"

typedef void (*philox_fn)(uint64_t key, uint64_t first_block, uint64_t offset, int64_t blocks,
                          uint32_t *words);
void mc_cpu_philox_scalar(uint64_t key, uint64_t first_block, uint64_t offset, int64_t blocks,
                          uint32_t *words);
void mc_cpu_philox_avx2(uint64_t key, uint64_t first_block, uint64_t offset, int64_t blocks,
                        uint32_t *words);
void mc_cpu_philox_avx512(uint64_t key, uint64_t first_block, uint64_t offset, int64_t blocks,
                          uint32_t *words);

static philox_fn philox_of(const isa_table *t)
{
#ifdef MC_HAVE_X86_ISA
    if (strcmp(t->name, "avx512") == 0) return mc_cpu_philox_avx512;
    if (strcmp(t->name, "avx2") == 0) return mc_cpu_philox_avx2;
#endif
    assert_string_equal(t->name, "scalar");
    return mc_cpu_philox_scalar;
}

/* The vectors published with Random123. */
static void test_known_answers(void **state)
{
    (void)state;
    const struct {
        uint64_t key, block, offset;
        uint32_t words[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    FOR_TABLES(t) for (int i = 0; i < 3; i++)
    {
        uint32_t words[4];
        philox_of(t)(known[i].key, known[i].block, known[i].offset, 1, words);
        assert_memory_equal(words, known[i].words, sizeof words);
        reference_philox(known[i].key, known[i].block, known[i].offset, words);
        assert_memory_equal(words, known[i].words, sizeof words);
    }
}

/* Many blocks at once, over the carry from the low to the high word of the counter. */
static void test_counters(void **state)
{
    (void)state;
    enum { BLOCKS = 1003 };
    static uint32_t words[4 * BLOCKS];
    FOR_TABLES(t)
    {
        uint64_t first = 0xfffffff0u;
        philox_of(t)(42, first, 7, BLOCKS, words);
        for (uint64_t i = 0; i < BLOCKS; i++) {
            uint32_t expected[4];
            reference_philox(42, first + i, 7, expected);
            assert_memory_equal(words + 4 * i, expected, sizeof expected);
        }
    }
}

enum { N = 1 << 21 };

static float *fill_new(const isa_table *t, mc_fill fill, int64_t first, int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    assert_int_equal(t->k->fill(device, fill, first, count, (mc_matrix){x, MC_F32, count}), MC_OK);
    return x;
}

/* Every build gives the same bits, whole or in pieces; 16-bit types are those values rounded. */
static void test_equal_bits(void **state)
{
    (void)state;
    const mc_fill fills[] = {{MC_FILL_NORMAL, 0, 1, 99},
                             {MC_FILL_NORMAL, 0.5f, 0.02f, 5},
                             {MC_FILL_UNIFORM, -0.3f, 0.7f, 1},
                             {MC_FILL_CONSTANT, 1.25f, 0, 1}};
    for (int f = 0; f < 4; f++) {
        float *whole = fill_new(&tables[0], fills[f], 0, N);
        FOR_TABLES(t)
        {
            float *x = fill_new(t, fills[f], 0, N);
            assert_memory_equal(x, whole, N * sizeof *x);
            free(x);
            for (int64_t first = 1; first < N; first = first * 5 + 2) {
                int64_t count = first % 4099 + 1;
                if (first + count > N) break;
                x = fill_new(t, fills[f], first, count);
                assert_memory_equal(x, whole + first, (size_t)count * sizeof *x);
                free(x);
            }
            uint16_t half[1001];
            assert_int_equal(t->k->fill(device, fills[f], 3, 1001, (mc_matrix){half, MC_BF16, 0}),
                             MC_OK);
            for (int i = 0; i < 1001; i++)
                assert_true(element(MC_BF16, half, i) == nearest(MC_BF16, whole[i + 3]));
        }
        free(whole);
    }
    FOR_TABLES(t)
    assert_int_equal(t->k->fill(device, fills[0], 0, 0, (mc_matrix){NULL, MC_F32, 0}), MC_OK);
}

/* Fixed values: what this release gives, later ones must give too, on any device. */
static void test_pinned_values(void **state)
{
    (void)state;
    float *x = fill_new(&tables[0], (mc_fill){MC_FILL_NORMAL, 0, 1, 42}, 0, 1 << 20);
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < 1 << 20; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        hash = (hash ^ bits) * 1099511628211u;
    }
    if (hash != 0x3e2f765cf1bb3d83)
        fail_msg("hash of a million normals: %llx", (unsigned long long)hash);
    free(x);
}

/* The transform against the same uniforms in double. */
static void test_normal_accuracy(void **state)
{
    (void)state;
    float *x = fill_new(&tables[table_count - 1], (mc_fill){MC_FILL_NORMAL, 0, 1, 31}, 0, N);
    double worst = 0;
    for (int64_t i = 0; i < N; i += 2) {
        uint32_t words[4];
        reference_philox(31, (uint64_t)i / 4, 0, words);
        double u = ((words[i % 4] >> 8) + 1) * 0x1p-24,
               turn = 2 * M_PI * (words[i % 4 + 1] >> 8) * 0x1p-24;
        double r = sqrt(-2 * log(u));
        worst = fmax(worst, fmax(fabs(x[i] - r * cos(turn)), fabs(x[i + 1] - r * sin(turn))));
    }
    if (getenv("MC_VERBOSE")) printf("largest error of a normal: %.3g\n", worst);
    assert_true(worst < 1e-6);
    free(x);
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void test_normal_distribution(void **state)
{
    (void)state;
    float *x = fill_new(&tables[table_count - 1], (mc_fill){MC_FILL_NORMAL, 0, 1, 2024}, 0, N);
    double m[5] = {0}, neighbours = 0, ks = 0;
    int beyond3 = 0, beyond4 = 0;
    for (int64_t i = 0; i < N; i++) {
        double power = 1;
        for (int p = 1; p < 5; p++) m[p] += (power *= x[i]) / N;
        beyond3 += fabsf(x[i]) > 3;
        beyond4 += fabsf(x[i]) > 4;
        if (i) neighbours += (double)x[i] * x[i - 1] / N;
    }
    qsort(x, N, sizeof *x, compare_floats);
    for (int64_t i = 0; i < N; i++)
        ks = fmax(ks, fmax(fabs(0.5 * erfc(-x[i] / sqrt(2)) - (double)i / N),
                           fabs(0.5 * erfc(-x[i] / sqrt(2)) - (i + 1.0) / N)));
    if (getenv("MC_VERBOSE"))
        printf("mean %.5f variance %.5f skew %.5f kurtosis %.5f KS %.5f, beyond 3: %d, 4: %d, "
               "range %.3f %.3f, neighbours %.5f\n",
               m[1], m[2], m[3], m[4], ks, beyond3, beyond4, x[0], x[N - 1], neighbours);
    double unit = 1 / sqrt(N); /* standard errors: 1, sqrt 2, sqrt 15, sqrt 96 of it */
    assert_true(fabs(m[1]) < 4 * unit && fabs(m[2] - 1) < 4 * 1.42 * unit);
    assert_true(fabs(m[3]) < 4 * 3.9 * unit && fabs(m[4] - 3) < 4 * 9.8 * unit);
    assert_true(fabs(neighbours) < 4 * unit && ks < 1.95 * unit);
    assert_true(abs(beyond3 - (int)(N * 2.6998e-3)) < 320 &&
                abs(beyond4 - (int)(N * 6.334e-5)) < 50);
    assert_true(x[0] < -4.5f && x[N - 1] > 4.5f && x[N - 1] < 5.78f);
    free(x);
}

static void test_uniform_distribution(void **state)
{
    (void)state;
    float *x = fill_new(&tables[table_count - 1], (mc_fill){MC_FILL_UNIFORM, -1, 3, 8}, 0, N);
    double mean = 0, square = 0, ks = 0;
    for (int64_t i = 0; i < N; i++) {
        assert_true(x[i] >= -1 && x[i] < 3);
        mean += x[i] / (double)N;
        square += (x[i] - 1.0) * (x[i] - 1.0) / N;
    }
    qsort(x, N, sizeof *x, compare_floats);
    for (int64_t i = 0; i < N; i++) ks = fmax(ks, fabs((x[i] + 1) / 4 - (i + 0.5) / N));
    assert_true(fabs(mean - 1) < 4 * 1.16 / sqrt(N) && fabs(square - 4 / 3.0) < 4 * 1.2 / sqrt(N) &&
                ks < 1.95 / sqrt(N));
    free(x);
    /* So narrow that most sums round: the upper end must still be left out. */
    x = fill_new(&tables[table_count - 1], (mc_fill){MC_FILL_UNIFORM, 1, 1 + 0x1p-22f, 8}, 0, 4096);
    for (int i = 0; i < 4096; i++) assert_true(x[i] >= 1 && x[i] < 1 + 0x1p-22f);
    free(x);
}

static void test_dropout_rate(void **state)
{
    (void)state;
    float *x = fill_new(&tables[0], (mc_fill){MC_FILL_CONSTANT, 1, 0, 0}, 0, N),
          *y = malloc(N * sizeof *y), *z = malloc(N * sizeof *z);
    assert_true(y && z);
    mc_dropout_mask mask = {0.1f, 12, 34};
    mc_matrix xm = {x, MC_F32, N}, ym = {y, MC_F32, N}, zm = {z, MC_F32, N};
    assert_int_equal(tables[0].k->dropout(device, 1, N, xm, false, mask, ym, false), MC_OK);
    int dropped = 0;
    for (int i = 0; i < N; i++) {
        dropped += y[i] == 0;
        assert_true(y[i] == 0 || y[i] == 1 / (1 - 0.1f));
    }
    assert_true(fabs(dropped - 0.1 * N) < 4 * sqrt(0.09 * N));
    FOR_TABLES(t)
    {
        assert_int_equal(t->k->dropout(device, 1, N, xm, false, mask, zm, false), MC_OK);
        assert_memory_equal(y, z, N * sizeof *y);
        /* No dropout keeps every bit. */
        assert_int_equal(
            t->k->dropout(device, 1, N, ym, false, (mc_dropout_mask){0, 12, 34}, zm, false), MC_OK);
        assert_memory_equal(y, z, N * sizeof *y);
    }
    free(x);
    free(y);
    free(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_equal_bits),           cmocka_unit_test(test_pinned_values),
        cmocka_unit_test(test_normal_accuracy),      cmocka_unit_test(test_normal_distribution),
        cmocka_unit_test(test_uniform_distribution), cmocka_unit_test(test_dropout_rate),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
