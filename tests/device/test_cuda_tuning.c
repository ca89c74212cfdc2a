/* Plans of products: how they are found, kept on disk, found with more care, and that what is found
 * computes the right thing. Skipped where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/context_internal.h"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/device_choice.h"
#include "tests/temp_folder.h"

static temp_folder folder; /* where plans are kept */

/* A product that takes a GPU a tenth of a millisecond, and a simulated one not long; of more rows
 * than the kernels for few rows take, which need no plan. */
typedef struct sizes {
    int64_t rows, in, out;
} sizes;

static sizes sizes_here(void)
{
    return getenv("MC_CUDA_SIMULATED") ? (sizes){72, 16, 24} : (sizes){4096, 2048, 4096};
}

static mc_context *open_gpu(const char *tuning)
{
    setenv("MC_TUNING", tuning, 1);
    mc_context *ctx = context_on("cuda", 1);
    if (!ctx) skip();
    return ctx;
}

static mc_matrix random_matrix(mc_device *d, int64_t rows, int64_t columns, uint64_t key)
{
    mc_matrix m = {d->alloc(d, (size_t)(rows * columns) * 2), MC_BF16, columns};
    mc_fill fill = {.kind = MC_FILL_NORMAL, .b = 1, .key = key};
    assert_non_null(m.data);
    assert_int_equal(d->kernels->fill(d, fill, 0, rows * columns, m), MC_OK);
    return m;
}

static float value_of(mc_device *d, mc_matrix m, int64_t row, int64_t column)
{
    uint16_t half;
    const char *at = (const char *)m.data + (row * m.stride + column) * 2;
    assert_true(d->copy_out(d, &half, at, sizeof half));
    uint32_t bits = (uint32_t)half << 16; /* bf16 is the upper half of f32 */
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* y = x w^T + bias, some elements of which are computed again. */
static void multiply(mc_device *d)
{
    sizes n = sizes_here();
    mc_matrix x = random_matrix(d, n.rows, n.in, 1), w = random_matrix(d, n.out, n.in, 2),
              bias = random_matrix(d, 1, n.out, 3), y = random_matrix(d, n.rows, n.out, 4);
    mc_linear_call call = {.rows = n.rows,
                           .in = n.in,
                           .out = n.out,
                           .alpha = 1,
                           .x = x,
                           .weight = w,
                           .bias = bias,
                           .y = y};
    assert_int_equal(d->kernels->linear(d, &call), MC_OK);
    for (int i = 0; i < 8; i++) {
        int64_t row = (i * 7919 + 5) % n.rows, column = (i * 104729 + 3) % n.out;
        double sum = value_of(d, bias, 0, column), size = 1;
        for (int64_t k = 0; k < n.in; k++) {
            double product = (double)value_of(d, x, row, k) * value_of(d, w, column, k);
            sum += product;
            size += product * product;
        }
        double off = value_of(d, y, row, column) - sum;
        assert_true(off * off < 2e-4 * size); /* 2^-8 of values of about sqrt(size) */
    }
    d->free(d, x.data, (size_t)(n.rows * n.in) * 2);
    d->free(d, w.data, (size_t)(n.out * n.in) * 2);
    d->free(d, bias.data, (size_t)n.out * 2);
    d->free(d, y.data, (size_t)(n.rows * n.out) * 2);
}

/* Makes the product, once with and once without a plan; tells what care its only plan then has, and
 * whether that was found now. */
static mc_gemm_care care_after(const char *tuning, bool *found_now)
{
    mc_context *ctx = open_gpu(tuning);
    mc_device *d = ctx->device;
    assert_non_null(d);
    multiply(d);
    multiply(d);
    const struct mc_cuda_gemm *g = mc_cuda_of(d)->gemm;
    assert_int_equal(g->count, 1);
    assert_int_equal(g->plans[0].usable, 1);
    mc_gemm_care care = (mc_gemm_care)g->plans[0].care;
    *found_now = g->changed;
    mc_context_free(ctx);
    return care;
}

static void test_care(void **state)
{
    (void)state;
    bool now;
    assert_int_equal(care_after("quick", &now), MC_GEMM_QUICK);
    assert_true(now);
    assert_int_equal(care_after("quick", &now), MC_GEMM_QUICK);
    assert_false(now);
    assert_int_equal(care_after("sustained", &now), MC_GEMM_SUSTAINED); /* found anew */
    assert_true(now);
    assert_int_equal(care_after("sustained", &now), MC_GEMM_SUSTAINED);
    assert_false(now);
    assert_int_equal(care_after("", &now), MC_GEMM_SUSTAINED); /* quick takes what is better */
    assert_false(now);
}

static void test_deterministic(void **state)
{
    (void)state;
    bool now;
    setenv("MC_DETERMINISTIC", "1", 1);
    assert_int_equal(care_after("sustained", &now), MC_GEMM_FIRST);
    assert_false(now);
    unsetenv("MC_DETERMINISTIC");
}

static void test_damaged_file(void **state)
{
    (void)state;
    bool now;
    care_after("quick", &now);
    assert_int_equal(truncate(temp_path(&folder, "gemm.plans"), 300), 0);
    assert_int_equal(care_after("quick", &now), MC_GEMM_QUICK);
    assert_true(now);
    /* a byte of the plan, in the place of the algorithm: nothing of the kind may be run */
    for (long from_end = 16; from_end <= 48; from_end += 16) {
        FILE *file = fopen(temp_path(&folder, "gemm.plans"), "r+");
        assert_non_null(file);
        assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
        int byte = fgetc(file);
        assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
        fputc(byte ^ 0x55, file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(care_after("quick", &now), MC_GEMM_QUICK);
        assert_true(now);
    }
}

/* What cannot be kept is found again the next time; no more than that. */
static void test_unwritable_folder(void **state)
{
    (void)state;
    bool now;
    setenv("MC_CACHE_DIR", "/proc", 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(care_after("quick", &now), MC_GEMM_QUICK);
        assert_true(now);
    }
    setenv("MC_CACHE_DIR", folder.path, 1);
}

/* A sum of nothing, into a single row, whose stride no one uses. */
static void test_empty_product(void **state)
{
    (void)state;
    mc_context *ctx = open_gpu("quick");
    mc_device *d = ctx->device;
    mc_matrix c = random_matrix(d, 1, 40, 1);
    c.stride = 0;
    assert_int_equal(d->kernels->gemm(d, false, false, 1, 40, 0, 1, c, c, 0, c), MC_OK);
    for (int i = 0; i < 40; i++) assert_true(value_of(d, c, 0, i) == 0);
    d->free(d, c.data, 80);
    mc_context_free(ctx);
}

static void no_step(mc_context *ctx, void *user) { (void)ctx, (void)user; }

static void test_unknown(void **state)
{
    (void)state;
    mc_context_free(open_gpu("quick")); /* skips where there is no GPU */
    static const struct {
        const char *name, *value, *message;
    } cases[] = {
        {"MC_TUNING", "fast", "MC_TUNING=fast, expected quick or sustained"},
        {"MC_DETERMINISTIC", "yes", "MC_DETERMINISTIC=yes, expected 1 or 0"},
        {"MC_CUDA_MEMORY", "pool", "MC_CUDA_MEMORY=pool, expected direct or nothing"},
        {"MC_ROUTE", "product:mine", "MC_ROUTE=product:mine, expected some of "},
        {"MC_CUDA_GRAPHS", "on", "MC_CUDA_GRAPHS=on, expected 0 or 1"}, /* by the first step */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].name, cases[i].value, 1);
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.device = "cuda"});
        if (!mc_failed(ctx)) mc_step_run(ctx, 1, no_step, NULL);
        assert_true(mc_failed(ctx));
        assert_non_null(strstr(mc_error_message(ctx), cases[i].message));
        mc_context_free(ctx);
        unsetenv(cases[i].name);
    }
}

static int set_up(void **state)
{
    (void)state;
    folder = temp_folder_new();
    return setenv("MC_CACHE_DIR", folder.path, 1);
}

static int tear_down(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deterministic),     cmocka_unit_test(test_care),
        cmocka_unit_test(test_damaged_file),      cmocka_unit_test(test_empty_product),
        cmocka_unit_test(test_unwritable_folder), cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
