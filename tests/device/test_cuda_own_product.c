/* Our own products with GELU at their end (gemm_hopper.cu) against sums in double: every element of
 * small ones, some of larger ones, and that nothing is written beside a result's rows. Skipped
 * without a GPU of compute capability 9.0. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/context_internal.h"
#include "core/device/cuda/gemm_internal.h"
#include "core/modelcenter.h"
#include "tests/device_choice.h"
#include "tests/test_part.h"

/* Tiles are 128 x 192 and their terms come by 64: less, more, and tails of each; more tiles than
 * two rounds of the GPU, an odd number of them in each direction, one for each multiprocessor. */
static const int64_t shapes[][3] = {{1, 8, 8},          {128, 192, 64},    {129, 200, 72},
                                    {257, 384, 256},    {300, 1000, 40},   {2048, 8, 512},
                                    {16896, 192, 1000}, {5000, 1544, 392}, {33001, 1536, 384},
                                    {8192, 3072, 768},  {4096, 6400, 1600}};

enum { GAP = 24, SAMPLES = 3000 };

static mc_context *open_gpu(void)
{
    setenv("MC_CUDA_GELU", "own", 1);
    mc_context *ctx = context_on("cuda", 1);
    unsetenv("MC_CUDA_GELU");
    if (!ctx) skip();
    if (mc_cuda_of(ctx->device)->gemm->encode_map) return ctx;
    printf("SKIPPED: no CUDA device of compute capability 9.0, or no code for it\n");
    mc_context_free(ctx);
    skip();
    return NULL;
}

/* A matrix of the GPU with a gap behind each row, and what it holds as f32, the gaps too. */
typedef struct matrix {
    mc_matrix m;
    int64_t rows, columns;
    float *host;
} matrix;

static int64_t count_of(const matrix *x) { return x->rows * x->m.stride; }

static void read_back(mc_device *d, matrix *x)
{
    int64_t count = count_of(x);
    mc_matrix flat = {x->m.data, x->m.dtype, count};
    mc_matrix wide = {d->alloc(d, (size_t)count * 4), MC_F32, count};
    assert_non_null(wide.data);
    assert_int_equal(d->kernels->scale(d, count, flat, 1, wide, false), MC_OK);
    assert_true(d->copy_out(d, x->host, wide.data, (size_t)count * 4));
    d->free(d, wide.data, (size_t)count * 4);
}

static matrix make(mc_device *d, mc_dtype dtype, int64_t rows, int64_t columns, float spread,
                   uint64_t key)
{
    matrix x = {{NULL, dtype, columns + GAP}, rows, columns, NULL};
    int64_t count = count_of(&x);
    x.m.data = d->alloc(d, (size_t)count * 2);
    x.host = malloc((size_t)count * sizeof(float));
    assert_true(x.m.data && x.host);
    mc_fill fill = {.kind = MC_FILL_NORMAL, .b = spread, .key = key};
    assert_int_equal(d->kernels->fill(d, fill, 0, count, (mc_matrix){x.m.data, dtype, count}),
                     MC_OK);
    read_back(d, &x);
    return x;
}

static void drop(mc_device *d, matrix *x)
{
    d->free(d, x->m.data, (size_t)count_of(x) * 2);
    free(x->host);
}

static double at(const matrix *x, int64_t row, int64_t column)
{
    return x->host[row * x->m.stride + column];
}

/* The result is read; its gaps must be as they were. */
static void check_gaps(mc_device *d, matrix *x)
{
    float *before = malloc((size_t)count_of(x) * sizeof(float));
    assert_non_null(before);
    memcpy(before, x->host, (size_t)count_of(x) * sizeof(float));
    read_back(d, x);
    for (int64_t row = 0; row < x->rows; row++)
        assert_memory_equal(before + row * x->m.stride + x->columns,
                            x->host + row * x->m.stride + x->columns, GAP * sizeof(float));
    free(before);
}

static double cdf(double x) { return 0.5 * erfc(-x / sqrt(2)); }
static double tanh_of(double x) { return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }

static double gelu(mc_activation a, double x)
{
    return a == MC_ACTIVATION_GELU ? x * cdf(x) : 0.5 * x * (1 + tanh_of(x));
}

static double slope(mc_activation a, double x)
{
    if (a == MC_ACTIVATION_GELU) return cdf(x) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
    double t = tanh_of(x), inner = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
}

/* Half a unit in the last place, and what sums in f32 lose. */
static void check(double found, double expected, double size, mc_dtype dtype)
{
    int power;
    frexp(expected, &power); /* |expected| is from 2^(power - 1) on */
    if (dtype == MC_F16 && power < -13) power = -13;
    double most = ldexp(0.51, power - (dtype == MC_F16 ? 11 : 8)) + 1e-6 * size;
    if (!(fabs(found - expected) <= most))
        fail_msg("%.9g, expected %.9g, off by at most %.3g", found, expected, most);
}

/* x w, w (columns, terms) or, backward, (terms, columns), and the sum of the sizes of its terms. */
static double dot(const matrix *x, const matrix *w, int64_t row, int64_t column, bool backward,
                  double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t k = 0; k < x->columns; k++) {
        double term = at(x, row, k) * (backward ? at(w, k, column) : at(w, column, k));
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* Calls `look` for every element, or for some, of the corners too. */
typedef struct run {
    bool backward;
    mc_activation activation;
    mc_dtype dtype;
    matrix x, w, bias, pre, y;
    double *sums; /* of the columns that were looked at, if all were */
} run;

static void look(run *r, int64_t row, int64_t column)
{
    double size, product = dot(&r->x, &r->w, row, column, r->backward, &size);
    if (r->backward) {
        double s = slope(r->activation, at(&r->pre, row, column));
        check(at(&r->y, row, column), product * s, size * fabs(s) + fabs(product), r->dtype);
        if (r->sums) r->sums[column] += product * s;
        return;
    }
    double pre = at(&r->pre, row, column);
    check(pre, product + at(&r->bias, 0, column), size, r->dtype);
    check(at(&r->y, row, column), gelu(r->activation, pre), 10 * fabs(pre), r->dtype);
}

static void look_around(run *r)
{
    int64_t rows = r->y.rows, columns = r->y.columns;
    if (r->sums || rows * columns * r->x.columns < 30000000) {
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = 0; column < columns; column++) look(r, row, column);
        return;
    }
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t row = i * 7919 % rows, column = i * 104729 % columns;
        look(r, i % 5 ? row : rows - 1 - i % 3 % rows, i % 7 ? column : columns - 1 - i % 8);
    }
}

static void forward(mc_device *d, run *r, const int64_t shape[3])
{
    mc_gelu_product p = {.rows = shape[0], .columns = shape[1], .terms = shape[2]};
    r->bias = make(d, r->dtype, 1, shape[1], 0.5f, 5);
    p.x = r->x.m, p.weight = r->w.m, p.bias = r->bias.m, p.pre = r->pre.m, p.y = r->y.m;
    p.activation = r->activation;
    assert_true(mc_gelu_product_takes(d, &p));
    assert_int_equal(d->kernels->linear(d, shape[0], shape[2], shape[1], r->x.m, r->w.m, r->bias.m,
                                        r->activation, r->pre.m, r->y.m),
                     MC_OK);
    check_gaps(d, &r->pre);
    check_gaps(d, &r->y);
    look_around(r);
    drop(d, &r->bias);
}

/* Every other shape without sums, which then are not touched. */
static void backward(mc_device *d, run *r, const int64_t shape[3], bool with_sums)
{
    int64_t columns = shape[1];
    bool all = shape[0] * columns * shape[2] < 30000000;
    float *sums = d->alloc(d, (size_t)columns * 4), *host = malloc((size_t)columns * sizeof(float));
    r->sums = with_sums && all ? calloc((size_t)columns, sizeof *r->sums) : NULL;
    mc_gelu_product p = mc_gelu_product_backward(shape[0], columns, shape[2], r->x.m, r->w.m,
                                                 r->activation, r->pre.m, r->y.m, sums);
    assert_true(mc_gelu_product_takes(d, &p));
    for (int64_t i = 0; i < columns; i++) host[i] = (float)(i % 17);
    d->copy_in(d, sums, host, (size_t)columns * 4);
    assert_int_equal(d->kernels->linear_backward_input(d, shape[0], columns, shape[2], r->x.m,
                                                       r->w.m, 0, r->activation, r->pre.m, r->y.m,
                                                       with_sums ? sums : NULL),
                     MC_OK);
    check_gaps(d, &r->y);
    look_around(r);
    assert_true(d->copy_out(d, host, sums, (size_t)columns * 4));
    for (int64_t i = 0; i < columns; i++) {
        double added = host[i] - (double)(i % 17), total = 0, size = 1;
        for (int64_t row = 0; row < shape[0]; row++) {
            total += at(&r->y, row, i); /* of what was rounded */
            size += fabs(at(&r->y, row, i));
        }
        if (!with_sums) total = 0;
        assert_true(fabs(added - total) <= (r->dtype == MC_F16 ? 0x1p-12 : 0x1p-9) * size);
        if (r->sums) assert_true(fabs(added - r->sums[i]) <= 2e-6 * size + 2e-6 * host[i]);
    }
    free(r->sums);
    free(host);
    d->free(d, sums, (size_t)columns * 4);
}

static void run_shape(mc_device *d, const int64_t shape[3], mc_dtype dtype, mc_activation a)
{
    for (int i = 0; i < 3; i++) {
        run r = {.backward = i > 0, .activation = a, .dtype = dtype};
        r.x = make(d, dtype, shape[0], shape[2], 1, 1);
        r.w = make(d, dtype, r.backward ? shape[2] : shape[1], r.backward ? shape[1] : shape[2],
                   1 / sqrtf((float)shape[2]), 2);
        r.pre = make(d, dtype, shape[0], shape[1], 1.5f, 3);
        r.y = make(d, dtype, shape[0], shape[1], 1, 4);
        if (r.backward)
            backward(d, &r, shape, i == 1);
        else
            forward(d, &r, shape);
        drop(d, &r.x);
        drop(d, &r.w);
        drop(d, &r.pre);
        drop(d, &r.y);
    }
}

static void test_shapes(void **state)
{
    static const mc_dtype dtypes[] = {MC_BF16, MC_F16};
    static const mc_activation activations[] = {MC_ACTIVATION_GELU_NEW, MC_ACTIVATION_GELU};
    (void)state;
    mc_context *ctx = open_gpu();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int j = 0; j < 4; j++)
            if (is_mine()) run_shape(ctx->device, shapes[i], dtypes[j / 2], activations[j % 2]);
    assert_int_equal(mc_error_status(ctx), MC_OK);
    mc_context_free(ctx);
}

/* Equal from run to run to the bit, sums too: nothing depends on which consumer is first. */
static void test_repeats(void **state)
{
    enum { ROWS = 20000, COLUMNS = 1536, TERMS = 384 };
    (void)state;
    if (!is_mine()) skip();
    mc_context *ctx = open_gpu();
    mc_device *d = ctx->device;
    matrix dy = make(d, MC_BF16, ROWS, TERMS, 1, 1), w = make(d, MC_BF16, TERMS, COLUMNS, 0.05f, 2);
    matrix pre = make(d, MC_BF16, ROWS, COLUMNS, 1, 3), dx = make(d, MC_BF16, ROWS, COLUMNS, 1, 4);
    float *sums = d->alloc(d, COLUMNS * 4), first[COLUMNS], again[COLUMNS];
    size_t bytes = (size_t)count_of(&dx) * sizeof(float);
    float *before = malloc(bytes);
    assert_non_null(before);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(d->kernels->zero(d, sums, COLUMNS * 4), MC_OK);
        assert_int_equal(d->kernels->linear_backward_input(d, ROWS, COLUMNS, TERMS, dy.m, w.m, 0,
                                                           MC_ACTIVATION_GELU_NEW, pre.m, dx.m,
                                                           sums),
                         MC_OK);
        read_back(d, &dx);
        assert_true(d->copy_out(d, again, sums, sizeof again));
        if (i) assert_memory_equal(first, again, sizeof again);
        if (i) assert_memory_equal(before, dx.host, bytes);
        memcpy(first, again, sizeof again);
        memcpy(before, dx.host, bytes);
    }
    free(before);
    d->free(d, sums, COLUMNS * 4);
    drop(d, &dy);
    drop(d, &w);
    drop(d, &pre);
    drop(d, &dx);
    mc_context_free(ctx);
}

/* What our kernels do not take. */
static void test_choice(void **state)
{
    (void)state;
    mc_context *ctx = open_gpu();
    mc_device *d = ctx->device;
    matrix x = make(d, MC_BF16, 64, 64, 1, 1), w = make(d, MC_BF16, 64, 64, 1, 2);
    matrix y = make(d, MC_BF16, 64, 64, 1, 3), pre = make(d, MC_BF16, 64, 64, 1, 4);
    mc_gelu_product p =
        mc_gelu_product_backward(64, 64, 64, x.m, w.m, MC_ACTIVATION_GELU, pre.m, y.m, NULL);
    assert_true(mc_gelu_product_takes(d, &p));
    mc_gelu_product odd = p;
    odd.columns = 60;
    assert_false(mc_gelu_product_takes(d, &odd));
    odd = p, odd.activation = MC_ACTIVATION_RELU;
    assert_false(mc_gelu_product_takes(d, &odd));
    odd = p, odd.x.data = (char *)odd.x.data + 2;
    assert_false(mc_gelu_product_takes(d, &odd));
    odd = p, odd.pre.stride++;
    assert_false(mc_gelu_product_takes(d, &odd));
    odd = p, odd.backward = false; /* without a bias */
    assert_false(mc_gelu_product_takes(d, &odd));
    drop(d, &x);
    drop(d, &w);
    drop(d, &y);
    drop(d, &pre);
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
