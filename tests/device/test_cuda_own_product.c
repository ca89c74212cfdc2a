/* Our own products (hopper/product/gemm.cu) against sums in double: every element of
 * small ones, some of larger ones, all sums of columns, and that nothing is written beside a
 * result's rows. Skipped without a GPU of compute capability 9.0. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/base/context_internal.h"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/cuda/runtime/routes_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/device_choice.h"
#include "tests/test_part.h"

/* Tiles are 128 x 192 and their terms come by 64: less, more, and tails of each; more tiles than
 * two rounds of the GPU, an odd number of them in each direction, one for each multiprocessor; more
 * and fewer tiles beside each other than 64 terms go into all. */
static const int64_t shapes[][3] = {
    {1, 8, 8},         {128, 192, 64},     {129, 200, 72},    {127, 8, 200},     {130, 776, 37},
    {64, 192, 321},    {257, 384, 256},    {300, 1000, 40},   {2048, 8, 512},    {16896, 192, 1000},
    {5000, 1544, 392}, {33001, 1536, 384}, {8192, 3072, 768}, {4096, 6400, 1600}};

enum { GAP = 24, SAMPLES = 3000 };

static mc_context *open_gpu(void)
{
#ifndef MC_HAVE_HOPPER /* built with MC_HOPPER=OFF, or for other GPUs: there is no such route */
    printf("SKIPPED: a build without code for compute capability 9.0\n");
    skip();
#endif
    setenv("MC_ROUTE", "product:hopper?", 1);
    mc_context *ctx = context_on("cuda", 1);
    unsetenv("MC_ROUTE");
    if (!ctx) skip();
    if (mc_cuda_of(ctx->device)->gemm->encode_map) return ctx;
    printf("SKIPPED: no CUDA device of compute capability 9.0, or no code for it\n");
    mc_context_free(ctx);
    skip();
    return NULL;
}

static bool is_ours(mc_device *d, const mc_product *p)
{
    const mc_route *route;
    return !mc_route_choose(d, MC_ROUTE_PRODUCT, p, &route) && !strcmp(route->name, "hopper");
}

/* A matrix of the GPU with a gap after each row, and what it holds as f32, the gaps too. */
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
    matrix x = {{NULL, dtype, (columns + 7) / 8 * 8 + GAP}, rows, columns, NULL};
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

/* x w, w (columns, terms) or, but for forward, (terms, columns), and the sum of the sizes of its
 * terms. */
static double dot(const matrix *x, const matrix *w, int64_t row, int64_t column, bool forward,
                  double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t k = 0; k < x->columns; k++) {
        double term = at(x, row, k) * (forward ? at(w, column, k) : at(w, k, column));
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* Calls `look` for every element, or for some, of the corners too. */
typedef struct run {
    mc_product_kind kind;
    mc_activation activation;
    mc_dtype dtype;
    matrix x, w, bias, pre, y;
    double *sums; /* of the columns that were looked at, if all were */
} run;

static void look(run *r, int64_t row, int64_t column)
{
    double size, product = dot(&r->x, &r->w, row, column, r->kind == MC_PRODUCT_FORWARD, &size);
    if (r->kind == MC_PRODUCT_PLAIN) {
        check(at(&r->y, row, column), product, size, r->dtype);
        return;
    }
    if (r->kind == MC_PRODUCT_BACKWARD) {
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
    mc_product p = {.rows = shape[0], .columns = shape[1], .terms = shape[2], .alpha = 1};
    r->bias = make(d, r->dtype, 1, shape[1], 0.5f, 5);
    p.x = r->x.m, p.weight = r->w.m, p.bias = r->bias.m, p.pre = r->pre.m, p.y = r->y.m;
    p.activation = r->activation;
    assert_true(is_ours(d, &p));
    mc_linear_call call = {.rows = shape[0],
                           .in = shape[2],
                           .out = shape[1],
                           .alpha = 1,
                           .x = r->x.m,
                           .weight = r->w.m,
                           .bias = r->bias.m,
                           .activation = r->activation,
                           .pre = r->pre.m,
                           .y = r->y.m};
    assert_int_equal(d->kernels->linear(d, &call), MC_OK);
    check_gaps(d, &r->pre);
    check_gaps(d, &r->y);
    look_around(r);
    /* the same to the bit where nobody keeps pre */
    matrix again = make(d, r->dtype, shape[0], shape[1], 1, 4); /* with the gaps of y */
    call.pre = (mc_matrix){0};
    call.y = again.m;
    assert_int_equal(d->kernels->linear(d, &call), MC_OK);
    check_gaps(d, &again);
    assert_memory_equal(again.host, r->y.host, (size_t)count_of(&again) * sizeof(float));
    drop(d, &again);
    drop(d, &r->bias);
}

/* A vector of the GPU that something is added to, and a gap after it. */
typedef struct vector {
    float *data, *host;
    int64_t count;
} vector;

static float start_of(int64_t i) { return (float)(i % 17); }
static size_t bytes_of(const vector *v) { return (size_t)(v->count + GAP) * sizeof(float); }

static vector make_vector(mc_device *d, int64_t count)
{
    vector v = {NULL, NULL, count};
    v.data = d->alloc(d, bytes_of(&v));
    v.host = malloc(bytes_of(&v));
    assert_true(v.data && v.host);
    for (int64_t i = 0; i < count + GAP; i++) v.host[i] = start_of(i);
    d->copy_in(d, v.data, v.host, bytes_of(&v));
    return v;
}

static void read_vector(mc_device *d, vector *v)
{
    assert_true(d->copy_out(d, v->host, v->data, bytes_of(v)));
    for (int64_t i = v->count; i < v->count + GAP; i++) assert_true(v->host[i] == start_of(i));
}

static void drop_vector(mc_device *d, vector *v)
{
    d->free(d, v->data, bytes_of(v));
    free(v->host);
}

/* What was added to v are the sums of x's columns, to `unit` of the terms' sizes, or nothing. */
static void check_sums(const vector *v, const matrix *x, double unit, bool wanted)
{
    for (int64_t i = 0; i < v->count; i++) {
        double total = 0, size = 1 + start_of(i);
        for (int64_t row = 0; row < x->rows && wanted; row++) {
            total += at(x, row, i);
            size += fabs(at(x, row, i));
        }
        double added = (double)v->host[i] - (double)start_of(i);
        if (!(fabs(added - total) <= unit * size))
            fail_msg("column %d: %.9g, expected %.9g", (int)i, added, total);
    }
}

/* linear_backward_input: of a linear after GELU, with the sums of dx's columns or without, or of
 * any, always with its own bias's gradient. */
static void backward(mc_device *d, run *r, const int64_t shape[3], bool with_sums)
{
    int64_t rows = shape[0], columns = shape[1], terms = shape[2];
    bool all = rows * columns * terms < 30000000;
    vector sums = make_vector(d, columns), dbias = make_vector(d, terms);
    r->sums = with_sums && all ? calloc((size_t)columns, sizeof *r->sums) : NULL;
    mc_linear_backward_call call = {.rows = rows,
                                    .in = columns,
                                    .out = terms,
                                    .alpha = 1,
                                    .dy = r->x.m,
                                    .weight = r->w.m,
                                    .activation = r->activation,
                                    .pre = r->pre.m,
                                    .dx = r->y.m,
                                    .sums = with_sums ? sums.data : NULL,
                                    .dbias = dbias.data};
    mc_product p = mc_product_backward(&call);
    assert_int_equal(p.kind, r->kind);
    assert_true(is_ours(d, &p));
    assert_int_equal(d->kernels->linear_backward_input(d, &call), MC_OK);
    check_gaps(d, &r->y);
    look_around(r);
    read_vector(d, &sums);
    read_vector(d, &dbias);
    check_sums(&dbias, &r->x, 2e-6, true);
    check_sums(&sums, &r->y, r->dtype == MC_F16 ? 0x1p-12 : 0x1p-9, with_sums); /* y is rounded */
    for (int64_t i = 0; i < columns && r->sums; i++) {
        double size = 1 + start_of(i);
        for (int64_t row = 0; row < rows; row++) size += fabs(at(&r->y, row, i));
        assert_true(fabs(sums.host[i] - start_of(i) - r->sums[i]) <= 2e-6 * size);
    }
    free(r->sums);
    drop_vector(d, &sums);
    drop_vector(d, &dbias);
}

/* Backward of GELU with sums and without, where sums are not touched. */
static void run_kind(mc_device *d, const int64_t shape[3], mc_dtype dtype, mc_activation a,
                     mc_product_kind kind, bool with_sums)
{
    run r = {.kind = kind, .activation = a, .dtype = dtype};
    bool forth = kind == MC_PRODUCT_FORWARD;
    r.x = make(d, dtype, shape[0], shape[2], 1, 1);
    r.w = make(d, dtype, forth ? shape[1] : shape[2], forth ? shape[2] : shape[1],
               1 / sqrtf((float)shape[2]), 2);
    r.pre = make(d, dtype, shape[0], shape[1], 1.5f, 3);
    r.y = make(d, dtype, shape[0], shape[1], 1, 4);
    if (forth)
        forward(d, &r, shape);
    else
        backward(d, &r, shape, with_sums);
    drop(d, &r.x);
    drop(d, &r.w);
    drop(d, &r.pre);
    drop(d, &r.y);
}

static void run_shape(mc_device *d, const int64_t shape[3], mc_dtype dtype, mc_activation a)
{
    if (a == MC_ACTIVATION_NONE) {
        run_kind(d, shape, dtype, a, MC_PRODUCT_PLAIN, false);
        return;
    }
    run_kind(d, shape, dtype, a, MC_PRODUCT_FORWARD, false);
    run_kind(d, shape, dtype, a, MC_PRODUCT_BACKWARD, true);
    run_kind(d, shape, dtype, a, MC_PRODUCT_BACKWARD, false);
}

static void test_shapes(void **state)
{
    static const mc_dtype dtypes[] = {MC_BF16, MC_F16};
    static const mc_activation activations[] = {MC_ACTIVATION_GELU_NEW, MC_ACTIVATION_GELU,
                                                MC_ACTIVATION_NONE};
    (void)state;
    mc_context *ctx = open_gpu();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int j = 0; j < 6; j++)
            if (is_mine()) run_shape(ctx->device, shapes[i], dtypes[j / 3], activations[j % 3]);
    assert_int_equal(mc_error_status(ctx), MC_OK);
    mc_context_free(ctx);
}

/* Equal from run to run to the bit, sums too: nothing depends on which consumer is first. */
static void repeat(mc_device *d, mc_activation activation)
{
    enum { ROWS = 20000, COLUMNS = 1536, TERMS = 384 };
    matrix dy = make(d, MC_BF16, ROWS, TERMS, 1, 1), w = make(d, MC_BF16, TERMS, COLUMNS, 0.05f, 2);
    matrix pre = make(d, MC_BF16, ROWS, COLUMNS, 1, 3), dx = make(d, MC_BF16, ROWS, COLUMNS, 1, 4);
    const bool active = activation != MC_ACTIVATION_NONE;
    const size_t bytes = (size_t)count_of(&dx) * sizeof(float);
    float first[COLUMNS + TERMS], *before = malloc(bytes);
    assert_non_null(before);
    for (int i = 0; i < 20; i++) {
        vector sums = make_vector(d, COLUMNS), dbias = make_vector(d, TERMS);
        mc_linear_backward_call call = {.rows = ROWS,
                                        .in = COLUMNS,
                                        .out = TERMS,
                                        .alpha = 1,
                                        .dy = dy.m,
                                        .weight = w.m,
                                        .activation = activation,
                                        .pre = pre.m,
                                        .dx = dx.m,
                                        .sums = active ? sums.data : NULL,
                                        .dbias = dbias.data};
        assert_int_equal(d->kernels->linear_backward_input(d, &call), MC_OK);
        read_back(d, &dx);
        read_vector(d, &sums);
        read_vector(d, &dbias);
        if (i) assert_memory_equal(first, sums.host, COLUMNS * sizeof(float));
        if (i) assert_memory_equal(first + COLUMNS, dbias.host, TERMS * sizeof(float));
        if (i) assert_memory_equal(before, dx.host, bytes);
        memcpy(first, sums.host, COLUMNS * sizeof(float));
        memcpy(first + COLUMNS, dbias.host, TERMS * sizeof(float));
        memcpy(before, dx.host, bytes);
        drop_vector(d, &sums);
        drop_vector(d, &dbias);
    }
    free(before);
    drop(d, &dy);
    drop(d, &w);
    drop(d, &pre);
    drop(d, &dx);
}

static void test_repeats(void **state)
{
    (void)state;
    mc_context *ctx = open_gpu();
    if (is_mine()) repeat(ctx->device, MC_ACTIVATION_GELU_NEW);
    if (is_mine()) repeat(ctx->device, MC_ACTIVATION_NONE);
    mc_context_free(ctx);
}

/* Sums of a plain product are the same as by column_sums where ours does not make it: where dx is
 * added to, and there also dx. */
static void test_adding(void **state)
{
    enum { ROWS = 1000, COLUMNS = 384, TERMS = 200 };
    (void)state;
    mc_context *ctx = open_gpu();
    mc_device *d = ctx->device;
    matrix dy = make(d, MC_BF16, ROWS, TERMS, 1, 1), w = make(d, MC_BF16, TERMS, COLUMNS, 0.05f, 2);
    matrix own = make(d, MC_BF16, ROWS, COLUMNS, 1, 3),
           other = make(d, MC_BF16, ROWS, COLUMNS, 1, 4);
    for (int i = 0; i < 2; i++) {
        vector dbias = make_vector(d, TERMS);
        const matrix *dx = i ? &other : &own;
        if (i) assert_int_equal(d->kernels->zero(d, dx->m.data, (size_t)count_of(dx) * 2), MC_OK);
        mc_linear_backward_call call = {.rows = ROWS,
                                        .in = COLUMNS,
                                        .out = TERMS,
                                        .alpha = 1,
                                        .beta = (float)i,
                                        .dy = dy.m,
                                        .weight = w.m,
                                        .dx = dx->m,
                                        .dbias = dbias.data};
        assert_int_equal(d->kernels->linear_backward_input(d, &call), MC_OK);
        read_vector(d, &dbias);
        check_sums(&dbias, &dy, 2e-6, true);
        drop_vector(d, &dbias);
    }
    read_back(d, &own);
    read_back(d, &other);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        double a = at(&own, i / COLUMNS, i % COLUMNS), b = at(&other, i / COLUMNS, i % COLUMNS);
        assert_true(fabs(a - b) <= 0x1p-7 * fabs(b) + 1e-5);
    }
    drop(d, &dy);
    drop(d, &w);
    drop(d, &own);
    drop(d, &other);
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
    mc_linear_backward_call call = {.rows = 64,
                                    .in = 64,
                                    .out = 64,
                                    .alpha = 1,
                                    .dy = x.m,
                                    .weight = w.m,
                                    .activation = MC_ACTIVATION_GELU,
                                    .pre = pre.m,
                                    .dx = y.m};
    mc_product p = mc_product_backward(&call);
    assert_true(is_ours(d, &p));
    mc_product odd = p;
    odd.columns = 60;
    assert_false(is_ours(d, &odd));
    odd = p, odd.activation = MC_ACTIVATION_RELU;
    assert_false(is_ours(d, &odd));
    odd = p, odd.alpha = 0.5f;
    assert_false(is_ours(d, &odd));
    odd = p, odd.x.data = (char *)odd.x.data + 2;
    assert_false(is_ours(d, &odd));
    odd = p, odd.pre.stride++;
    assert_false(is_ours(d, &odd));
    odd = p, odd.kind = MC_PRODUCT_FORWARD; /* without a bias */
    assert_false(is_ours(d, &odd));
    drop(d, &x);
    drop(d, &w);
    drop(d, &y);
    drop(d, &pre);
    mc_context_free(ctx);
}

/* The input gradient of a linear (in -> out) of 65536 rows, without memory: it is not looked at. */
static bool takes_plain(mc_device *d, int64_t in, int64_t out, float beta, float *sums,
                        float *dbias)
{
    char *memory = (char *)((uintptr_t)1 << 40);
    mc_linear_backward_call call = {.rows = 65536,
                                    .in = in,
                                    .out = out,
                                    .alpha = 1,
                                    .beta = beta,
                                    .dy = {memory, MC_BF16, out},
                                    .weight = {memory, MC_BF16, in},
                                    .dx = {memory, MC_BF16, in},
                                    .sums = sums,
                                    .dbias = dbias};
    mc_product p = mc_product_backward(&call);
    return is_ours(d, &p);
}

static void test_choice_of_plain(void **state)
{
    (void)state;
    mc_context *ctx = open_gpu();
    mc_device *d = ctx->device;
    float some;
    assert_true(takes_plain(d, 768, 2304, 0, NULL, &some));
    assert_true(takes_plain(d, 1600, 4800, 0, NULL, &some));    /* for ours are asked for */
    assert_false(takes_plain(d, 768, 2304, 0, NULL, NULL));     /* cuBLASLt's does as well */
    assert_false(takes_plain(d, 768, 2304, 1, NULL, &some));    /* dx is added to */
    assert_false(takes_plain(d, 768, 2304, 0, &some, &some));   /* there is no such kernel */
    assert_false(takes_plain(d, 768, 1 << 20, 0, NULL, &some)); /* more scratch than there is */
    assert_int_equal(mc_routes_read(d, ""), MC_OK);
    assert_true(takes_plain(d, 768, 2304, 0, NULL, &some));
    assert_true(takes_plain(d, 5120, 1024, 0, NULL, &some));
    assert_false(takes_plain(d, 1600, 4800, 0, NULL, &some)); /* tiles of 192 columns waste 8 % */
    assert_false(takes_plain(d, 1024, 3072, 0, NULL, &some));
    assert_false(takes_plain(d, 1280, 3840, 0, NULL, &some));
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),          cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_adding),          cmocka_unit_test(test_choice),
        cmocka_unit_test(test_choice_of_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
