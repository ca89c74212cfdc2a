/* Newton-Schulz of batches, whole and in strips, against its definition in double, on the CPU or
 * the device that MC_TEST_DEVICE names. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/optim/newton_schulz_internal.h"
#include "tests/device/kernel_test.h"
#include "tests/device_choice.h"
#include "tests/optim/orthogonalize_test.h"

/* The norm of the difference, relative to that of `expected`. */
static double relative_error(const double *got, const double *expected, int count)
{
    double error = 0, size = 0;
    for (int i = 0; i < count; i++) {
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    return sqrt(error / fmax(size, 1e-30));
}

/* Runs a batch whose second matrix is zero; `tolerance` is of the norm of each result. */
static void check(mc_device *d, const mc_newton_schulz *n, mc_dtype dtype, double tolerance)
{
    int each = (int)(n->rows * n->columns), all = (int)n->count * each;
    size_t bytes = (size_t)all * mc_dtype_size(dtype), used = d->memory.in_use;
    double *x = doubles(all), *expected = doubles(each), *got = doubles(each);
    char *host = malloc(bytes);
    assert_non_null(host);
    for (int i = 0; i < all; i++) {
        int row = i % each / (int)n->columns, column = i % each % (int)n->columns;
        x[i] = i / each == 1 ? 0 : nearest(dtype, uniform(-1, 1) + 3 * (row == column));
        set_element(dtype, host, i, x[i]);
    }
    mc_matrix m = {d->alloc(d, bytes), dtype, n->columns};
    assert_non_null(m.data);
    d->copy_in(d, m.data, host, bytes);
    assert_int_equal(mc_newton_schulz_run(d, n, &m), MC_OK);
    assert_true(d->copy_out(d, host, m.data, bytes));
    d->free(d, m.data, bytes);
    assert_int_equal(d->memory.in_use, used);
    for (int k = 0; k < n->count; k++) {
        orthogonalize((int)n->rows, (int)n->columns, &x[k * each], expected);
        for (int i = 0; i < each; i++)
            got[i] = mc_newton_schulz_factor() * element(dtype, host, k * each + i);
        double error = relative_error(got, expected, each);
        if (!(error <= tolerance))
            fail_msg("matrix %d of (%d, %d), %s, strips of %d: error %.2e, expected at most %.2e",
                     k, (int)n->rows, (int)n->columns, mc_dtype_name(dtype), (int)n->strip, error,
                     tolerance);
    }
    free(host);
    free(got);
    free(expected);
    free(x);
}

/* Strips of one size, and a last one that is larger; matrices of one row or column. In bf16 five
 * iterations differ by some percent (docs/optimizers.md). */
static void test_batches(void **state)
{
    (void)state;
    mc_context *ctx = test_context(1);
    static const int shapes[][3] = {{48, 80, 16},  {80, 48, 16},  {40, 40, 16},
                                    {100, 56, 16}, {56, 100, 32}, {64, 64, 32},
                                    {33, 24, 24},  {1, 9, 1},     {9, 1, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        mc_newton_schulz n = {3, shapes[s][0], shapes[s][1], shapes[s][2]};
        check(ctx->device, &n, MC_F32, 1e-5);
        check(ctx->device, &n, MC_BF16, 0.08);
        n.strip = n.rows < n.columns ? n.rows : n.columns;
        n.count = 2;
        check(ctx->device, &n, MC_F32, 1e-5);
    }
    assert_false(mc_failed(ctx));
    mc_context_free(ctx);
}

static void *(*real_alloc)(mc_device *d, size_t bytes);
static int allocations_left;

static void *failing_alloc(mc_device *d, size_t bytes)
{
    return allocations_left-- > 0 ? real_alloc(d, bytes) : NULL;
}

/* Without memory it fails, and gives back what it took. */
static void test_no_memory(void **state)
{
    (void)state;
    mc_context *ctx = test_context(1);
    mc_device *d = ctx->device;
    mc_newton_schulz n = {2, 8, 8, 8};
    size_t bytes = 2 * 64 * sizeof(float);
    mc_matrix x = {d->alloc(d, bytes), MC_F32, 8};
    size_t used = d->memory.in_use;
    real_alloc = d->alloc;
    d->alloc = failing_alloc;
    for (int left = 0; left < 3; left++) {
        void *data = x.data;
        allocations_left = left;
        assert_int_equal(mc_newton_schulz_run(d, &n, &x), MC_ERR_NOMEM);
        assert_ptr_equal(x.data, data);
        assert_int_equal(d->memory.in_use, used);
    }
    d->alloc = real_alloc;
    d->free(d, x.data, bytes);
    mc_context_free(ctx);
}

/* Where strips pay, and how much is multiplied. */
static void test_strips(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, columns, strip;
        double part; /* of the elements of the symmetric matrices */
    } all[] = {{1600, 1600, 512, (512.0 * 512 * 3 + 576.0 * 1600) / (1600.0 * 1600)},
               {6400, 1600, 512, (512.0 * 512 * 3 + 576.0 * 1600) / (1600.0 * 1600)},
               {768, 3072, 256, 2.0 / 3},
               {4096, 4096, 1024, 10.0 / 16},
               {767, 767, 767, 1},
               {776, 4096, 776, 1}, /* rows that begin at multiples of 16 bytes, not of 32 */
               {40, 7, 7, 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        mc_newton_schulz n = mc_newton_schulz_of(3, all[i].rows, all[i].columns);
        double size = (double)(n.rows < n.columns ? n.rows : n.columns),
               elements = (double)n.rows * (double)n.columns,
               symmetric = all[i].part * (size * elements + size * size * size);
        assert_int_equal(n.strip, all[i].strip);
        double expected = 3 * 5 * 2 * (symmetric + size * elements);
        assert_true(fabs(mc_newton_schulz_flops(&n) / expected - 1) < 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_strips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
