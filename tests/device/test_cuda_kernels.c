/* Our CUDA kernels against the CPU's on the same random inputs: all element types, alone and mixed,
 * odd, tiny, long and empty shapes, rows with gaps between them, views that are not aligned.
 * Outputs hold NaN before, and what lies around them must be untouched. */
#include "tests/device/kernel_test.h"

static mc_device *sides[2]; /* the CPU, the GPU */
static size_t in_use[2];    /* bytes, when the tests began */
enum { CPU, GPU };
#define FOR_SIDES(s) for (int s = CPU; s <= GPU; s++)
#define CALL(s, kernel, ...) \
    assert_int_equal(sides[s]->kernels->kernel(sides[s], __VA_ARGS__), MC_OK)

static int open_devices(void **state)
{
    (void)state;
    context = mc_init_distributed(NULL);
    sides[CPU] = mc_device_open(context, "cpu");
    sides[GPU] = mc_device_open(context, "cuda");
    if (!sides[CPU]) return -1;
    if (!sides[GPU]) printf("SKIPPED: no CUDA device\n");
    FOR_SIDES(s) if (sides[s]) in_use[s] = sides[s]->memory.in_use;
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    size_t leaked = 0;
    FOR_SIDES(s) if (sides[s])
    {
        leaked += sides[s]->memory.in_use - in_use[s];
        mc_device_close(sides[s]);
    }
    mc_context_free(context);
    if (leaked) fprintf(stderr, "%zu bytes of scratch memory were not given back\n", leaked);
    return leaked != 0;
}

/* ---- memory on both sides -------------------------------------------------------------------- */

/* A matrix in the host's memory and its twin on the GPU. */
typedef struct both {
    void *memory[2];
    size_t bytes;
    int64_t rows, columns, offset; /* offset: elements before the first row */
    mc_matrix m[2];
} both;

typedef struct layout {
    int64_t gap, offset; /* in elements */
} layout;

static const layout layouts[] = {{0, 0}, {3, 1}, {8, 8}, {5, 0}, {0, 1}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void upload(both *b)
{
    sides[GPU]->copy_in(sides[GPU], b->memory[GPU], b->memory[CPU], b->bytes);
}

static both both_new(mc_dtype dtype, int64_t rows, int64_t columns, layout l)
{
    size_t size = mc_dtype_size(dtype);
    both b = {.rows = rows, .columns = columns, .offset = l.offset};
    int64_t stride = columns + l.gap;
    b.bytes = (size_t)(l.offset + rows * stride + 16) * size;
    FOR_SIDES(s)
    {
        b.memory[s] = sides[s]->alloc(sides[s], b.bytes);
        assert_non_null(b.memory[s]);
        b.m[s] = (mc_matrix){(char *)b.memory[s] + (size_t)l.offset * size, dtype, stride};
    }
    memset(b.memory[CPU], GAP_BYTE, b.bytes);
    return b;
}

/* Random values; with high <= low NaN, for outputs. */
static both both_values(mc_dtype dtype, int64_t rows, int64_t columns, layout l, double low,
                        double high)
{
    both b = both_new(dtype, rows, columns, l);
    size_t size = mc_dtype_size(dtype);
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = r * b.m[CPU].stride;
        if (!(low < high))
            memset((char *)b.m[CPU].data + (size_t)row * size, 0xff, (size_t)columns * size);
        for (int64_t c = 0; c < columns && low < high; c++) {
            double value = nearest(dtype, uniform(low, high));
            if (dtype == MC_F16 && fabs(value) < 6.2e-5) value = 0;
            set_element(dtype, b.m[CPU].data, row + c, value);
        }
    }
    upload(&b);
    return b;
}

static both both_output(mc_dtype dtype, int64_t rows, int64_t columns, layout l)
{
    return both_values(dtype, rows, columns, l, 0, 0);
}

static both both_vector(mc_dtype dtype, int64_t n, double low, double high)
{
    return both_values(dtype, 1, n, layouts[0], low, high);
}

/* Bytes of any kind. */
static both both_bytes(const void *data, size_t bytes)
{
    both b = both_new(MC_U8, 1, (int64_t)bytes, layouts[0]);
    if (bytes) memcpy(b.memory[CPU], data, bytes);
    upload(&b);
    return b;
}

/* Whole numbers in [low, high). */
static both both_index(int64_t n, int32_t low, int32_t high)
{
    int32_t *index = malloc((size_t)n * 4 + 4);
    assert_non_null(index);
    for (int64_t i = 0; i < n; i++)
        index[i] = low + (int32_t)(random_bits() % (uint32_t)(high - low));
    both b = both_bytes(index, (size_t)n * 4);
    free(index);
    return b;
}

static void both_free(both *b) { FOR_SIDES(s) sides[s]->free(sides[s], b->memory[s], b->bytes); }
static void free_all(both *const *all, size_t count)
{
    for (size_t i = 0; i < count; i++) both_free(all[i]);
}
#define FREE(...) \
    free_all((both *[]){__VA_ARGS__}, sizeof((both *[]){__VA_ARGS__}) / sizeof(both *))

/* What is in the twin now. */
static void *download(const both *b)
{
    void *got = malloc(b->bytes + 1);
    assert_non_null(got);
    if (!sides[GPU]->copy_out(sides[GPU], got, b->memory[GPU], b->bytes))
        fail_msg("GPU: %s", sides[GPU]->failure);
    return got;
}

static bool is_inside(const both *b, int64_t i)
{
    int64_t at = i - b->offset, stride = b->m[CPU].stride;
    return at >= 0 && at < b->rows * stride && at % stride < b->columns;
}

static const double EXACT = -1;

/* Elements within `tolerance` of the largest and twice the rounding of their type, or EXACT; what
 * is between and around the rows to the bit. Gives back the twin's content to whom asks for it. */
static void compare(const both *b, double tolerance, const char *what)
{
    mc_dtype dtype = b->m[CPU].dtype;
    size_t size = mc_dtype_size(dtype);
    char *got = download(b), *expected = b->memory[CPU];
    double unit = dtype == MC_F32 ? 0 : dtype == MC_F16 ? 0x1p-11 : 0x1p-8, largest = 0.25;
    bool floats = dtype == MC_F32 || dtype == MC_F16 || dtype == MC_BF16;
    int64_t n = (int64_t)(b->bytes / size);
    for (int64_t i = 0; i < n && floats; i++) {
        double e = fabs(element(dtype, expected, i));
        if (is_inside(b, i) && isfinite(e) && e > largest) largest = e;
    }
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(got + (size_t)i * size, expected + (size_t)i * size, size) == 0) continue;
        if (!is_inside(b, i))
            fail_msg("%s: wrote outside of the matrix, at %lld", what, (long long)i);
        if (!floats) fail_msg("%s: differs at %lld", what, (long long)i);
        double g = element(dtype, got, i), e = element(dtype, expected, i);
        if (isnan(g) && isnan(e)) continue;
        if (tolerance >= 0 && fabs(g - e) <= tolerance * largest + 2.02 * unit * fabs(e)) continue;
        int64_t at = i - b->offset;
        fail_msg("%s, %s (%lld, %lld) stride %lld offset %lld at (%lld, %lld): %.9g, CPU %.9g",
                 what, mc_dtype_name(dtype), (long long)b->rows, (long long)b->columns,
                 (long long)b->m[CPU].stride, (long long)b->offset,
                 (long long)(at / b->m[CPU].stride), (long long)(at % b->m[CPU].stride), g, e);
    }
    free(got);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const int64_t shapes[][2] = {{0, 5},    {5, 0},    {1, 1},    {3, 7},     {5, 8},
                                    {7, 64},   {33, 129}, {4, 768},  {3, 1000},  {2, 1025},
                                    {9, 3072}, {300, 24}, {2, 6145}, {1, 20000}, {70, 256}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Types of up to four matrices: the first three alike, the last two mixed. */
static const mc_dtype kinds[][4] = {{MC_F32, MC_F32, MC_F32, MC_F32},
                                    {MC_F16, MC_F16, MC_F16, MC_F16},
                                    {MC_BF16, MC_BF16, MC_BF16, MC_BF16},
                                    {MC_BF16, MC_F32, MC_BF16, MC_F16},
                                    {MC_F32, MC_BF16, MC_F16, MC_F32}};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct test_case {
    int64_t rows, columns;
    layout l, other; /* of the first matrix, and of the next ones */
    const mc_dtype *kind;
} test_case;

typedef void (*case_fn)(const test_case *c);

static void for_cases_if(case_fn run, bool (*is_wanted)(int kind, int shape, int way))
{
    if (!sides[GPU]) skip();
    for (int k = 0; k < KINDS; k++)
        for (int s = 0; s < SHAPES; s++)
            for (int l = 0; l < LAYOUTS; l++) {
                test_case c = {shapes[s][0], shapes[s][1], layouts[l],
                               layouts[l == 2 ? 2 : l * 2 % LAYOUTS], kinds[k]};
                if ((!is_wanted || is_wanted(k, s, l)) && is_mine()) run(&c);
            }
}

static void for_cases(case_fn run) { for_cases_if(run, NULL); }

static bool is_in_time(int kind, int shape, int way)
{
    bool is_large = shapes[shape][0] * shapes[shape][1] > 2000;
    return !is_large || !is_left_out(way, kind + shape, LAYOUTS);
}

/* Where a case takes long, a simulated GPU has time for one layout of each large shape and kind:
 * all kinds together have each layout. */
static void for_cases_in_time(case_fn run) { for_cases_if(run, is_in_time); }

/* A simulated GPU (MC_CUDA_SIMULATED) has six blocks at a time, and time for a part of the rows. */
static test_case in_time(test_case c)
{
    int64_t most = 24000 / (c.columns + 1) + 7;
    if (!is_watched() || c.rows <= most) return c;
    static bool said;
    if (!said) printf("LEFT OUT: rows after the first 24,000 elements: the GPU is simulated\n");
    said = true;
    c.rows = most;
    return c;
}

/* Several roundings to the type of s on the way. */
static double loose(const mc_dtype *kind, double f32)
{
    double worst = f32;
    for (int i = 0; i < 4; i++) {
        double unit = kind[i] == MC_F32 ? 0 : kind[i] == MC_F16 ? 0x1p-11 : 0x1p-8;
        if (4 * unit > worst) worst = 4 * unit;
    }
    return worst;
}

/* Of a sum of n values around 0, against a largest value that may be small itself. */
static double sum_tolerance(int64_t n) { return 1e-5 * (1 + (double)n / 1000); }

/* ---- elementwise ----------------------------------------------------------------------------- */

static void activation_case(const test_case *c)
{
    for (mc_activation a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_SILU; a++) {
        both x = both_values(c->kind[0], c->rows, c->columns, c->l, -6, 6);
        both y = both_output(c->kind[2], c->rows, c->columns, c->other);
        both bias = both_vector(c->kind[1], c->columns, -1, 1), none = {0};
        FOR_SIDES(s) CALL(s, activation, c->rows, c->columns, a, x.m[s], y.m[s]);
        compare(&y, 1e-6, "activation");
        bool alone = a == MC_ACTIVATION_NONE;
        FOR_SIDES(s)
        CALL(s, bias_activation, c->rows, c->columns, x.m[s], bias.m[s], a,
             alone ? none.m[s] : y.m[s]);
        compare(&x, EXACT, "bias");
        compare(&y, 1e-6, "bias_activation");
        FOR_SIDES(s)
        CALL(s, bias_activation, c->rows, c->columns, x.m[s], none.m[s], a,
             alone ? x.m[s] : y.m[s]);
        compare(&x, EXACT, "without bias");
        compare(&y, 1e-6, "bias_activation without bias");
        FREE(&x, &y, &bias);
    }
}

static void test_activation(void **state)
{
    (void)state;
    for_cases(activation_case);
}

static void activation_backward_case(const test_case *c)
{
    for (mc_activation a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_SILU; a++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            both x = both_values(c->kind[0], c->rows, c->columns, c->l, -6, 6);
            both dy = both_values(c->kind[1], c->rows, c->columns, c->other, -1, 1);
            both dx = both_values(c->kind[2], c->rows, c->columns, c->l, -1, accumulate ? 1 : -1);
            FOR_SIDES(s)
            CALL(s, activation_backward, c->rows, c->columns, a, x.m[s], 1, dy.m[s], dx.m[s],
                 accumulate);
            compare(&dx, 1e-6, "activation_backward");
            FOR_SIDES(s)
            CALL(s, activation_backward, c->rows, c->columns, a, x.m[s], 1, dy.m[s], dy.m[s],
                 false);
            compare(&dy, 1e-6, "activation_backward in place");
            FREE(&x, &dy, &dx);
        }
}

static void test_activation_backward(void **state)
{
    (void)state;
    for_cases(activation_backward_case);
}

/* The two halves lie side by side, the second at an odd place where there are odd columns. */
static void gated_case(const test_case *c)
{
    int64_t r = c->rows, n = c->columns;
    for (mc_activation a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_SILU; a++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            both x = both_values(c->kind[0], r, 2 * n, c->l, -4, 4);
            both y = both_output(c->kind[1], r, n, c->other);
            both dy = both_values(c->kind[1], r, n, c->l, -1, 1);
            both dx = both_values(c->kind[2], r, 2 * n, c->other, -1, 1);
            FOR_SIDES(s) CALL(s, gated, r, n, a, x.m[s], y.m[s]);
            compare(&y, 4e-6, "gated");
            FOR_SIDES(s)
            CALL(s, gated_backward, r, n, a, x.m[s], dy.m[s], dx.m[s], accumulate);
            compare(&dx, 4e-6, "gated_backward");
            FREE(&x, &y, &dy, &dx);
        }
}

static void test_gated(void **state)
{
    (void)state;
    for_cases(gated_case);
}

/* Whatever the product takes along, the output is the activation of the pre-activation as stored,
 * to the bit, or it could not be computed again; and is the same if that is not kept. */
static void linear_case(mc_dtype dtype, mc_activation a, layout l, float alpha)
{
    enum { N = 33, IN = 40, OUT = 72 };
    const mc_dtype kind[4] = {dtype, dtype, dtype, dtype};
    both x = both_values(dtype, N, IN, l, -1, 1), w = both_values(dtype, OUT, IN, l, -1, 1);
    both bias = both_vector(dtype, OUT, -1, 1), pre = both_output(dtype, N, OUT, l);
    both y = both_output(dtype, N, OUT, l), again = both_output(dtype, N, OUT, l);
    mc_linear_call call = {.rows = N, .in = IN, .out = OUT, .alpha = alpha, .activation = a};
    FOR_SIDES(s)
    {
        call.x = x.m[s], call.weight = w.m[s], call.bias = bias.m[s];
        call.pre = pre.m[s], call.y = y.m[s];
        CALL(s, linear, &call);
    }
    compare(&pre, loose(kind, 1e-5), "pre-activation");
    compare(&y, loose(kind, 1e-5), "linear");
    CALL(GPU, activation, N, OUT, a, pre.m[GPU], again.m[GPU]);
    void *got = download(&y), *kept = download(&again);
    assert_memory_equal(got, kept, y.bytes);
    call.pre = (mc_matrix){0};
    call.y = again.m[GPU];
    CALL(GPU, linear, &call);
    void *alone = download(&again);
    assert_memory_equal(got, alone, y.bytes);
    free(got);
    free(kept);
    free(alone);
    FREE(&x, &w, &bias, &pre, &y, &again);
}

static void test_linear_activation(void **state)
{
    (void)state;
    const mc_activation activations[] = {MC_ACTIVATION_RELU, MC_ACTIVATION_GELU, MC_ACTIVATION_TANH,
                                         MC_ACTIVATION_SILU};
    if (!sides[GPU]) skip();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            for (int l = 0; l < LAYOUTS; l++) {
                linear_case(kinds[k][0], activations[i], layouts[l], 1);
                linear_case(kinds[k][0], activations[i], layouts[l], 0.625f);
            }
}

/* The distance of `got` from `exact` in units of the last bit that `dtype` has there. The GPU takes
 * powers of 2 below 2^-126 for 0, and multiplies them by up to 13. */
static double ulps(mc_dtype dtype, double got, double exact)
{
    int exponent, bits = dtype == MC_F16 ? 11 : 8, least = dtype == MC_F16 ? -24 : -133;
    if (got == 0 && fabs(exact) < 0x1p-122) return 0;
    frexp(exact, &exponent);
    int last = exponent - bits;
    return fabs(got - exact) / ldexp(1, last > least ? last : least);
}

/* GELU has its own polynomials for types of 16 bits: each of their values against the exact result
 * in f64. */
static void test_gelu_of_all_halves(void **state)
{
    (void)state;
    enum { ALL = 1 << 16 };
    if (!sides[GPU]) skip();
    for (mc_dtype dtype = MC_F16; dtype <= MC_BF16; dtype++) {
        both x = both_new(dtype, 1, ALL, layouts[0]), y = both_output(dtype, 1, ALL, layouts[0]);
        both one = both_values(dtype, 1, ALL, layouts[0], 1, 1 + 1e-9);
        for (int i = 0; i < ALL; i++) ((uint16_t *)x.memory[CPU])[i] = (uint16_t)i;
        upload(&x);
        CALL(GPU, activation, 1, ALL, MC_ACTIVATION_GELU, x.m[GPU], y.m[GPU]);
        CALL(GPU, activation_backward, 1, ALL, MC_ACTIVATION_GELU, x.m[GPU], 1, one.m[GPU],
             one.m[GPU], false);
        void *value = download(&y), *slope = download(&one);
        double worst = 0, worst_slope = 0;
        for (int i = 0; i < ALL; i++) {
            double at = element(dtype, x.memory[CPU], i), got = element(dtype, value, i);
            double cdf = 0.5 * erfc(-at / sqrt(2)), density = exp(-at * at / 2) / sqrt(2 * M_PI);
            if (isnan(at)) assert_true(isnan(got) && isnan(element(dtype, slope, i)));
            if (at == INFINITY) assert_true(got == INFINITY);
            if (!isfinite(at)) continue;
            worst = fmax(worst, ulps(dtype, got, at * cdf));
            double error = ulps(dtype, element(dtype, slope, i), cdf + at * density);
            worst_slope = fmax(worst_slope, error);
        }
        if (getenv("MC_VERBOSE"))
            printf("GELU, %s: %.4f ulp, slope %.4f\n", mc_dtype_name(dtype), worst, worst_slope);
        if (!(worst <= 0.52 && worst_slope <= 0.52))
            fail_msg("GELU, %s: %g ulp, slope %g", mc_dtype_name(dtype), worst, worst_slope);
        free(value);
        free(slope);
        FREE(&x, &y, &one);
    }
}

static void dropout_case(const test_case *c)
{
    uint64_t start = 0x123456789abcull;
    both base = both_bytes(&start, sizeof start);
    for (int mode = 0; mode < 4; mode++) {
        both x = both_values(c->kind[0], c->rows, c->columns, c->l, -2, 2);
        both y = both_values(c->kind[2], c->rows, c->columns, c->other, -2, mode & 1 ? 2 : -2);
        FOR_SIDES(s)
        {
            mc_dropout_mask mask = {.p = mode == 3 ? 0 : 0.3f,
                                    .seed = 0xfedcba9876543210u,
                                    .offset = ~0ull - 5,
                                    .base = mode & 2 ? base.memory[s] : NULL};
            CALL(s, dropout, c->rows, c->columns, x.m[s], false, mask, y.m[s], mode & 1);
        }
        compare(&y, mode & 1 ? 3e-7 : EXACT, "dropout");
        FREE(&x, &y);
    }
    FREE(&base);
}

static void test_dropout(void **state)
{
    (void)state;
    for_cases(dropout_case);
}

static void relu_dropout_case(const test_case *c)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        mc_dropout_mask mask = {.p = 0.3f, .seed = 0xfedcba9876543210u, .offset = 7};
        both x = both_values(c->kind[0], c->rows, c->columns, c->l, -2, 2);
        both y = both_output(c->kind[1], c->rows, c->columns, c->other);
        both dx = both_values(c->kind[2], c->rows, c->columns, c->l, -1, accumulate ? 1 : -1);
        FOR_SIDES(s)
        CALL(s, dropout, c->rows, c->columns, x.m[s], true, mask, y.m[s], false);
        compare(&y, EXACT, "relu_dropout");
        FOR_SIDES(s)
        CALL(s, activation_backward, c->rows, c->columns, MC_ACTIVATION_RELU, y.m[s], 1.25f, x.m[s],
             dx.m[s], accumulate);
        compare(&dx, accumulate ? 3e-7 : EXACT, "backward of relu_dropout");
        FOR_SIDES(s)
        CALL(s, activation_backward, c->rows, c->columns, MC_ACTIVATION_RELU, y.m[s], 1.25f, x.m[s],
             x.m[s], false);
        compare(&x, EXACT, "backward of relu_dropout in place");
        FREE(&x, &y, &dx);
    }
}

static void test_relu_dropout(void **state)
{
    (void)state;
    for_cases(relu_dropout_case);
}

static void flat_case(const mc_dtype *kind, int64_t count, int64_t b_count, layout l)
{
    both a = both_values(kind[0], 1, count, l, -2, 2),
         b = both_values(kind[1], 1, b_count, l, -2, 2);
    both y = both_output(kind[2], 1, count, l);
    FOR_SIDES(s) CALL(s, add, count, a.m[s], b.m[s], b_count, y.m[s]);
    compare(&y, EXACT, "add");
    FOR_SIDES(s) CALL(s, multiply, count, a.m[s], b.m[s], b_count, y.m[s], true);
    compare(&y, 3e-7, "multiply, accumulated");
    FOR_SIDES(s) CALL(s, multiply, count, a.m[s], b.m[s], b_count, a.m[s], false);
    compare(&a, EXACT, "multiply in place");
    FOR_SIDES(s) CALL(s, scale, count, a.m[s], 0.3f, y.m[s], false);
    compare(&y, EXACT, "scale");
    FOR_SIDES(s) CALL(s, scale, count, a.m[s], 0.3f, y.m[s], true);
    compare(&y, 3e-7, "scale, accumulated");
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        FOR_SIDES(s) CALL(s, sum_leading, count, a.m[s], b_count, b.m[s], accumulate);
        compare(&b, sum_tolerance(count / b_count), "sum_leading");
    }
    FREE(&a, &b, &y);
}

static void test_flat(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const int64_t sizes[][2] = {{0, 1},        {1, 1},          {5000, 1},      {4999, 3},
                                {5002, 61},    {3000, 1000},    {9000, 3000},   {40001, 40001},
                                {300000, 1},   {2048 * 70, 16}, {3 << 17, 768}, {99999, 7},
                                {100000, 2050}};
    for (int k = 0; k < KINDS; k++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int s = 0; s < 13; s++)
                if (is_mine()) flat_case(kinds[k], sizes[s][0], sizes[s][1], layouts[l]);
    both empty = both_output(MC_BF16, 1, 100, layouts[1]);
    FOR_SIDES(s) CALL(s, sum_leading, 0, (mc_matrix){NULL, MC_BF16, 0}, 100, empty.m[s], false);
    compare(&empty, EXACT, "sum_leading of nothing");
    both bytes = both_output(MC_U8, 1, 100003, layouts[1]);
    FOR_SIDES(s) CALL(s, zero, bytes.m[s].data, 0);
    FOR_SIDES(s) CALL(s, zero, bytes.m[s].data, 100003);
    compare(&bytes, EXACT, "zero");
    FREE(&empty, &bytes);
}

/* Every bit pattern of the 16-bit types, and the same low bits around them in f32. */
static void test_conversions(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    enum { N = 1 << 16 };
    const uint32_t lows[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};
    both x = both_new(MC_F32, 1, N, layouts[0]);
    for (int type = 0; type < 3; type++)
        for (int low = 0; low < 9; low++) {
            for (uint32_t i = 0; i < N; i++) ((uint32_t *)x.memory[CPU])[i] = i << 16 | lows[low];
            upload(&x);
            both y = both_output(float_types[type], 1, N, layouts[0]);
            both z = both_output(MC_F32, 1, N, layouts[0]);
            FOR_SIDES(s) CALL(s, scale, N, x.m[s], 1, y.m[s], false);
            compare(&y, EXACT, "from f32");
            upload(&y);
            FOR_SIDES(s) CALL(s, scale, N, y.m[s], 1, z.m[s], false);
            compare(&z, EXACT, "to f32");
            FREE(&y, &z);
        }
    FREE(&x);
}

/* ---- sums and norm --------------------------------------------------------------------------- */

static void column_sums_case(const test_case *c)
{
    both x = both_values(c->kind[0], c->rows, c->columns, c->l, -1, 1);
    both out = both_values(MC_F32, 1, c->columns, c->other, -1, 1);
    FOR_SIDES(s) CALL(s, column_sums, c->rows, c->columns, x.m[s], out.m[s].data);
    compare(&out, sum_tolerance(c->rows), "column_sums");
    FREE(&x, &out);
}

static void test_column_sums(void **state)
{
    (void)state;
    for_cases(column_sums_case);
    const int64_t more[][2] = {{20011, 1}, {3001, 13}, {4097, 768}, {100000, 3}, {65, 40000}};
    for (int k = 0; k < 3; k++)
        for (int s = 0; s < 5; s++) {
            test_case c = {more[s][0], more[s][1], layouts[s], layouts[0], kinds[k]};
            column_sums_case(&c);
        }
}

typedef struct norm_memory {
    both x, f, s, y, dy, ds, df, w, b, mean, rstd, dw, db, dbranch, base;
} norm_memory;

static norm_memory norm_memory_new(const test_case *c)
{
    int64_t r = c->rows, n = c->columns;
    const mc_dtype *k = c->kind;
    uint64_t start = 0x123456789abcull;
    return (norm_memory){.base = both_bytes(&start, sizeof start),
                         .x = both_values(k[0], r, n, c->l, -2, 2),
                         .f = both_values(k[2], r, n, c->other, -2, 2),
                         .s = both_output(k[0], r, n, c->other),
                         .y = both_output(k[2], r, n, c->l),
                         .dy = both_values(k[2], r, n, c->l, -1, 1),
                         .ds = both_values(k[0], r, n, c->other, -1, 1),
                         .df = both_output(k[2], r, n, c->l),
                         .w = both_vector(k[1], n, 0.5, 1.5),
                         .b = both_vector(k[1], n, -1, 1),
                         .mean = both_output(MC_F32, 1, r, layouts[0]),
                         .rstd = both_output(MC_F32, 1, r, layouts[0]),
                         .dw = both_vector(MC_F32, n, -1, 1),
                         .db = both_vector(MC_F32, n, -1, 1),
                         .dbranch = both_vector(MC_F32, n, -1, 1)};
}

static void norm_memory_free(norm_memory *m)
{
    FREE(&m->x, &m->f, &m->s, &m->y, &m->dy, &m->ds, &m->df, &m->w, &m->b, &m->mean, &m->rstd,
         &m->dw, &m->db, &m->dbranch, &m->base);
}

enum {
    DROPOUT = 1,
    BRANCH = 2,
    ACCUMULATE = 4,
    SUMS = 8,
    NO_DF = 16,
    NO_DS = 32,
    NO_DW = 64,
    RMS = 128
};

static mc_dropout_mask norm_mask(const norm_memory *m, int s, int mode)
{
    return (mc_dropout_mask){.p = mode & DROPOUT ? 0.3f : 0,
                             .seed = 0xfedcba9876543210u,
                             .offset = ~0ull - 5,
                             .base = mode & SUMS ? m->base.memory[s] : NULL};
}

/* The norm of x alone, of which nothing is kept but y. */
static mc_residual_norm_call norm_on(const norm_memory *m, const test_case *c, int s)
{
    return (mc_residual_norm_call){.rows = c->rows,
                                   .columns = c->columns,
                                   .x = m->x.m[s],
                                   .weight = m->w.m[s],
                                   .bias = m->b.m[s],
                                   .eps = 1e-5f,
                                   .y = m->y.m[s]};
}

/* Its gradients, none of which is wanted yet. */
static mc_residual_norm_backward_call gradients_on(const norm_memory *m, const test_case *c, int s)
{
    return (mc_residual_norm_backward_call){.rows = c->rows,
                                            .columns = c->columns,
                                            .mean = m->mean.m[s].data,
                                            .rstd = m->rstd.m[s].data,
                                            .dy = m->dy.m[s]};
}

/* Gives the GPU what the CPU computed, so that the next kernel starts from equal inputs. */
static void agree(both *b) { upload(b); }

/* dbranch has been added the sums of what the GPU stored. */
static void compare_branch_sums(const both *dbranch, const float *was, const both *stored)
{
    float *got = download(dbranch);
    char *x = download(stored);
    for (int64_t i = 0; i < stored->columns; i++) {
        double sum = (double)was[i], size = fabs(sum);
        for (int64_t r = 0; r < stored->rows; r++) {
            int64_t at = stored->offset + r * stored->m[CPU].stride + i;
            sum += element(stored->m[CPU].dtype, x, at);
            size += fabs(element(stored->m[CPU].dtype, x, at));
        }
        if (!(fabs((double)got[i] - sum) <= 1e-6 * (0.1 + size)))
            fail_msg("residual_norm_backward, %s (%lld, %lld): dbranch %lld is %.9g, expected %.9g",
                     mc_dtype_name(stored->m[CPU].dtype), (long long)stored->rows,
                     (long long)stored->columns, (long long)i, (double)got[i], sum);
    }
    free(got);
    free(x);
}

static void norm_backward_mode(const test_case *c, norm_memory *m, int mode)
{
    size_t bytes = (size_t)c->columns * sizeof(float);
    float *was = malloc(bytes + 1);
    assert_non_null(was);
    if (bytes) memcpy(was, m->dbranch.m[CPU].data, bytes);
    FOR_SIDES(s)
    {
        mc_residual_norm_backward_call call = gradients_on(m, c, s);
        call.s = m->s.m[s];
        call.weight = m->w.m[s];
        call.dropout = norm_mask(m, s, mode);
        call.accumulate = mode & ACCUMULATE;
        if (!(mode & NO_DS)) call.ds = m->ds.m[s];
        if (!(mode & NO_DF)) call.df = m->df.m[s];
        if (!(mode & NO_DW)) call.dweight = m->dw.m[s].data;
        if (mode & SUMS) call.dbranch = m->dbranch.m[s].data;
        if (mode & RMS)
            call.mean = NULL;
        else
            call.dbias = m->db.m[s].data;
        CALL(s, residual_norm_backward, &call);
    }
    compare(&m->ds, 1e-5, "residual_norm_backward: ds");
    compare(&m->df, loose(c->kind, 1e-5), "residual_norm_backward: df"); /* of ds as rounded */
    compare(&m->dw, 2e-5, "residual_norm_backward: dweight");
    compare(&m->db, 2e-5, "residual_norm_backward: dbias");
    if (mode & SUMS) compare_branch_sums(&m->dbranch, was, mode & NO_DF ? &m->ds : &m->df);
    free(was);
}

static void norm_mode(const test_case *c, int mode)
{
    norm_memory m = norm_memory_new(c);
    FOR_SIDES(s)
    {
        mc_residual_norm_call call = norm_on(&m, c, s);
        if (mode & BRANCH) call.f = m.f.m[s];
        if (mode & RMS) call.bias.data = NULL;
        call.dropout = norm_mask(&m, s, mode);
        call.s = m.s.m[s];
        call.mean = m.mean.m[s].data;
        call.rstd = m.rstd.m[s].data;
        CALL(s, residual_norm, &call);
    }
    compare(&m.s, 3e-7, "residual_norm: s");
    compare(&m.y, loose(c->kind, 1e-5), "residual_norm: y");
    compare(&m.mean, loose(c->kind, 1e-6), "residual_norm: mean");
    compare(&m.rstd, loose(c->kind, 1e-5), "residual_norm: rstd");
    agree(&m.s), agree(&m.mean), agree(&m.rstd);
    norm_backward_mode(c, &m, mode);
    norm_memory_free(&m);
}

static void norm_case(const test_case *c)
{
    if (c->columns == 1) return; /* normalises rounding errors */
    for (int mode = 0; mode < 8; mode++) norm_mode(c, mode);
    norm_mode(c, SUMS | DROPOUT | BRANCH);
    norm_mode(c, SUMS | DROPOUT | BRANCH | ACCUMULATE);
    norm_mode(c, SUMS | BRANCH | NO_DF);
    norm_mode(c, SUMS | BRANCH | NO_DF | ACCUMULATE);
    norm_mode(c, SUMS | DROPOUT | BRANCH | NO_DS);
    for (int mode = 0; mode < 8; mode++) norm_mode(c, RMS | mode);
    norm_mode(c, RMS | SUMS | DROPOUT | BRANCH | ACCUMULATE);
    norm_mode(c, RMS | BRANCH | NO_DW | NO_DF | ACCUMULATE);
}

static void norm_optional_backward(norm_memory *m, const test_case *c)
{
    FOR_SIDES(s)
    {
        mc_residual_norm_backward_call call = gradients_on(m, c, s);
        call.s = m->x.m[s];
        call.weight = m->w.m[s];
        call.dbias = m->db.m[s].data;
        CALL(s, residual_norm_backward, &call);
    }
    compare(&m->db, 2e-5, "dbias alone");
    FOR_SIDES(s)
    {
        mc_residual_norm_backward_call call = gradients_on(m, c, s);
        call.s = m->x.m[s];
        call.ds = m->ds.m[s];
        call.accumulate = true;
        CALL(s, residual_norm_backward, &call);
    }
    compare(&m->ds, 1e-5, "ds alone");
    FOR_SIDES(s)
    {
        mc_residual_norm_backward_call call = gradients_on(m, c, s);
        call.s = m->x.m[s];
        call.dbranch = m->dbranch.m[s].data;
        CALL(s, residual_norm_backward, &call);
    }
    compare(&m->dbranch, EXACT, "dbranch of no branch");
}

/* Nothing but what is wanted. */
static void norm_optional_case(const test_case *c)
{
    if (c->columns < 2) return;
    norm_memory m = norm_memory_new(c);
    FOR_SIDES(s)
    {
        mc_residual_norm_call call = norm_on(&m, c, s);
        call.weight.data = call.bias.data = NULL;
        call.s = m.x.m[s];
        call.eps = 1e-12f;
        CALL(s, residual_norm, &call);
    }
    compare(&m.y, 1e-5, "RMS norm without weights");
    FOR_SIDES(s)
    {
        mc_residual_norm_call call = norm_on(&m, c, s);
        call.weight.data = NULL;
        call.s = m.x.m[s];
        call.mean = m.mean.m[s].data;
        call.rstd = m.rstd.m[s].data;
        call.eps = 1e-12f;
        CALL(s, residual_norm, &call);
    }
    compare(&m.x, EXACT, "norm: x");
    compare(&m.y, 1e-5, "norm without weights");
    FOR_SIDES(s)
    {
        mc_residual_norm_call call = norm_on(&m, c, s);
        call.f = m.f.m[s];
        call.eps = 1e-12f;
        CALL(s, residual_norm, &call);
    }
    compare(&m.y, 1e-5, "norm without s");
    agree(&m.mean), agree(&m.rstd);
    norm_optional_backward(&m, c);
    mc_dropout_mask mask = {.p = 0.1f, .seed = 3, .offset = 9};
    FOR_SIDES(s)
    CALL(s, residual_sum, c->rows, c->columns, m.x.m[s], m.f.m[s], mask, m.s.m[s]);
    compare(&m.s, 3e-7, "residual_sum");
    norm_memory_free(&m);
}

static void test_norm(void **state)
{
    (void)state;
    for_cases_in_time(norm_case);
    for_cases_in_time(norm_optional_case);
    const int64_t more[][2] = {{5000, 768}, {700, 1536}, {3000, 40}, {300, 4096},
                               {40, 12288}, {40, 12296}, {65, 20000}};
    for (int k = 0; k < 4; k++)
        for (int s = 0; s < 7; s++) {
            test_case c =
                in_time((test_case){more[s][0], more[s][1], layouts[0], layouts[2], kinds[k]});
            if (!is_mine() || is_left_out(k, s, 2)) continue;
            norm_mode(&c, DROPOUT | BRANCH | ACCUMULATE);
            norm_mode(&c, BRANCH);
            norm_mode(&c, SUMS | DROPOUT | BRANCH);
            norm_mode(&c, SUMS | BRANCH | NO_DF | ACCUMULATE);
            norm_mode(&c, RMS | DROPOUT | BRANCH | ACCUMULATE);
            norm_mode(&c, RMS | BRANCH);
        }
}

/* As the first norm of a model has it: no branch, no s. */
static void norm_alone_case(const test_case *c)
{
    norm_memory m = norm_memory_new(c);
    FOR_SIDES(s)
    {
        mc_residual_norm_call call = norm_on(&m, c, s);
        call.mean = m.mean.m[s].data;
        call.rstd = m.rstd.m[s].data;
        CALL(s, residual_norm, &call);
    }
    compare(&m.x, EXACT, "norm alone: x");
    compare(&m.y, loose(c->kind, 1e-5), "norm alone: y");
    compare(&m.mean, loose(c->kind, 1e-6), "norm alone: mean");
    compare(&m.rstd, loose(c->kind, 1e-5), "norm alone: rstd");
    norm_memory_free(&m);
}

/* Rows of 16-bit types have kernels of their own, of several warps a row and rows a thread: fewer
 * rows than a block takes, and some that are no multiple of that. */
static void test_norm_of_halves(void **state)
{
    (void)state;
    const int64_t sizes[][2] = {{1, 520},   {67, 768},  {5, 1000},  {53, 1024}, {33, 1280},
                                {23, 1288}, {29, 1600}, {31, 2048}, {3, 2048},  {7, 2056}};
    for (int k = 1; k < 3; k++)
        for (int s = 0; s < 10; s++) {
            layout l = layouts[s % 2 * 2], other = layouts[2 - s % 2 * 2];
            test_case c = {sizes[s][0], sizes[s][1], l, other, kinds[k]};
            if (!is_mine() || is_left_out(k, s, 2)) continue;
            norm_case(&c);
            norm_mode(&c, SUMS | DROPOUT | BRANCH | ACCUMULATE | NO_DW);
            norm_mode(&c, SUMS | BRANCH | NO_DF | NO_DW);
            norm_optional_case(&c);
            norm_alone_case(&c);
        }
}

/* The branch's sum has the same bits with and without a norm after it. */
static void test_sum_bits(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    FOR_TYPES(i)
    {
        test_case c = {100, 768, layouts[0], layouts[0], kinds[i]};
        norm_memory m = norm_memory_new(&c);
        mc_dropout_mask mask = {.p = 0.2f, .seed = 3, .offset = 9};
        mc_residual_norm_call call = norm_on(&m, &c, GPU);
        call.f = m.f.m[GPU];
        call.dropout = mask;
        call.s = m.s.m[GPU];
        CALL(GPU, residual_norm, &call);
        CALL(GPU, residual_sum, 100, 768, m.x.m[GPU], m.f.m[GPU], mask, m.ds.m[GPU]);
        char *a = download(&m.s), *b = download(&m.ds);
        assert_memory_equal(a, b, 100 * 768 * mc_dtype_size(kinds[i][0]));
        free(a);
        free(b);
        norm_memory_free(&m);
    }
}

/* ---- rows by index --------------------------------------------------------------------------- */

static void rows_case(const test_case *c)
{
    enum { ENTRIES = 37 };
    int64_t r = c->rows, n = c->columns;
    both a = both_values(c->kind[0], ENTRIES, n, c->l, -1, 1);
    both b = both_values(c->kind[1], ENTRIES, n, c->other, -1, 1);
    both y = both_output(c->kind[2], r, n, c->l), ia = both_index(r, 0, ENTRIES);
    both ib = both_index(r, -3, ENTRIES), to = both_output(c->kind[2], r + 3, n, c->other);
    FOR_SIDES(s)
    {
        mc_matrix table[] = {a.m[s], b.m[s], a.m[s]};
        const int32_t *index[] = {ia.memory[s], ia.memory[s], ia.memory[s]};
        CALL(s, embedding, r, n, 3, table, index, 0.75f, y.m[s]);
    }
    compare(&y, EXACT, "embedding");
    FOR_SIDES(s) CALL(s, gather_rows, r, n, a.m[s], ib.memory[s], y.m[s]);
    compare(&y, EXACT, "gather_rows");
    int32_t *order = malloc((size_t)r * 4 + 4);
    for (int64_t i = 0; i < r; i++) order[i] = (int32_t)(r + 2 - i);
    both io = both_bytes(order, (size_t)r * 4);
    FOR_SIDES(s) CALL(s, scatter_rows, r, n, y.m[s], io.memory[s], to.m[s]);
    compare(&to, EXACT, "scatter_rows");
    free(order);
    FREE(&a, &b, &y, &ia, &ib, &io, &to);
}

static void embedding_backward_size(const test_case *c, int32_t entries)
{
    both dy = both_values(c->kind[0], c->rows, c->columns, c->l, -1, 1);
    mc_dtype types[] = {MC_F32, MC_BF16};
    both index = both_index(c->rows, -2, entries);
    for (int t = 0; t < 2; t++) {
        both table = both_values(types[t], entries, c->columns, c->other, -1, 1);
        FOR_SIDES(s)
        CALL(s, embedding_backward, c->rows, c->columns, dy.m[s], index.memory[s], 0.75f,
             table.m[s]);
        /* The CPU rounds a 16-bit table with every row that it adds. */
        double rounds = t == 0 ? 0 : 0x1p-8 * (1 + (double)c->rows / entries);
        compare(&table, 1e-5 + rounds, "embedding_backward");
        FREE(&table);
    }
    FREE(&dy, &index);
}

static void embedding_backward_case(const test_case *c)
{
    embedding_backward_size(c, 37);
    embedding_backward_size(c, 2);
    embedding_backward_size(c, 50000 / (1 + (int32_t)c->columns));
}

static void test_rows(void **state)
{
    (void)state;
    for_cases(rows_case);
    for_cases(embedding_backward_case);
    for (int k = 0; k < 4; k++) {
        test_case c = {20000, 200, layouts[0], layouts[0], kinds[k]};
        if (!is_mine() || is_left_out(k, 0, 3)) continue; /* f32, and mixed */
        embedding_backward_size(&c, 1);
        embedding_backward_size(&c, 9);
        embedding_backward_size(&c, 5000);
        c.rows = 300000, c.columns = 4; /* tiles are longer than the shortest */
        embedding_backward_size(&c, 3);
    }
}

/* ---- losses ---------------------------------------------------------------------------------- */

static void loss_mode(const test_case *c, float smoothing, int dx_mode)
{
    int64_t r = c->rows, n = c->columns;
    both x = both_values(c->kind[0], r, n, c->l, -8, 8),
         dx = both_output(c->kind[2], r, n, c->other);
    both labels = both_index(r, -1, (int32_t)n), none = {0};
    float start[2] = {1.5f, 2}, scale = 0.25f;
    both loss = both_bytes(start, sizeof start), seed = both_bytes(&scale, sizeof scale);
    both *to = dx_mode == 0 ? &none : dx_mode == 1 ? &dx : &x;
    FOR_SIDES(s)
    CALL(s, cross_entropy, r, n, x.m[s], labels.memory[s], -1, smoothing,
         dx_mode ? seed.memory[s] : NULL, loss.memory[s], to->m[s]);
    compare(&x, 2e-6, "cross_entropy: x");
    if (dx_mode == 1) compare(&dx, 2e-6, "cross_entropy: dx");
    float *got = download(&loss), *expected = loss.memory[CPU];
    if (!(fabs(got[0] - expected[0]) <= 2e-6 * fabs(expected[0])) || got[1] != expected[1])
        fail_msg("cross_entropy (%lld, %lld): %.9g of %g, CPU %.9g of %g", (long long)r,
                 (long long)n, got[0], got[1], expected[0], expected[1]);
    free(got);
    FREE(&x, &dx, &labels, &loss, &seed);
}

static void loss_case(const test_case *c)
{
    if (c->columns == 0) return;
    for (int mode = 0; mode < 6; mode++) loss_mode(c, mode & 1 ? 0.1f : 0, mode / 2);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    for_cases_in_time(loss_case);
    test_case large = in_time((test_case){600, 50257, {47, 0}, {47, 0}, kinds[2]});
    if (is_mine()) loss_mode(&large, 0, 2);
    /* The GPU's blocks take several rows; rows that do and do not fit into shared memory. */
    const int64_t more[][2] = {{3000, 1000}, {5000, 3}, {60, 30522}, {12, 50257}, {5, 200001}};
    for (int k = 0; k < KINDS; k++)
        for (int s = 0; s < 5; s++)
            for (int l = 0; l < 3; l++) {
                test_case c =
                    in_time((test_case){more[s][0], more[s][1], layouts[l], layouts[l], kinds[k]});
                c.l.gap = l == 2 ? (7 & -c.columns) + 40 : c.l.gap; /* whole chunks, a gap after */
                c.other = c.l;
                if (!is_mine() || is_left_out(l, k + s, 3)) continue;
                loss_mode(&c, 0, 1);
                loss_mode(&c, 0.1f, 2);
                loss_mode(&c, 0, 0);
            }
}

static void test_cross_entropy_extremes(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    float values[] = {30000, 29999, -30000, 1e30f, -1e30f, 0, -INFINITY, 0, 1, NAN, 0, 0};
    int32_t label[] = {1, 0, 1, 0};
    for (int rows = 1; rows <= 4; rows++)
        for (int ignore = -1; ignore < 2; ignore++) {
            float nothing[2] = {0, 0}, one = 1;
            both x = both_new(MC_F32, 4, 3, layouts[0]), dx = both_output(MC_F32, 4, 3, layouts[0]);
            memcpy(x.memory[CPU], values, sizeof values);
            upload(&x);
            both labels = both_bytes(label, sizeof label), loss = both_bytes(nothing, 8);
            both seed = both_bytes(&one, 4);
            FOR_SIDES(s)
            CALL(s, cross_entropy, rows, 3, x.m[s], labels.memory[s], ignore, 0, seed.memory[s],
                 loss.memory[s], dx.m[s]);
            compare(&dx, 1e-6, "cross_entropy of extremes");
            float *got = download(&loss), *expected = loss.memory[CPU];
            assert_true(got[1] == expected[1]);
            assert_true(isnan(expected[0])
                            ? isnan(got[0])
                            : fabs(got[0] - expected[0]) <= 1e-6 * fabs(expected[0]));
            free(got);
            FREE(&x, &dx, &labels, &loss, &seed);
        }
}

static void test_loss_add(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const float cases[][4] = {{3, 4, 5, 6}, {3, 0, 5, 6}, {3, 4, 5, 0}, {0, 0, 0, 0}};
    for (int i = 0; i < 4; i++) {
        both a = both_bytes(cases[i], 8), b = both_bytes(cases[i] + 2, 8);
        both y = both_output(MC_F32, 1, 2, layouts[0]), k = both_output(MC_F32, 1, 2, layouts[0]);
        FOR_SIDES(s)
        CALL(s, loss_add, a.memory[s], b.memory[s], 0.7f, y.memory[s], k.memory[s]);
        compare(&y, 1e-7, "loss_add: y");
        compare(&k, 1e-7, "loss_add: k");
        FREE(&a, &b, &y, &k);
    }
}

static void argmax_case(const test_case *c)
{
    both x = both_values(c->kind[0], c->rows, c->columns, c->l, -1, 1);
    for (int64_t r = 0; r < c->rows; r++) /* equals, NaN, -inf alone */
        for (int64_t i = 0; i < c->columns; i++) {
            int64_t at = r * x.m[CPU].stride + i;
            if (i % 5 == r % 5) set_element(c->kind[0], x.m[CPU].data, at, 1);
            if (r == 2 && i % 7 == 3)
                memset((char *)x.m[CPU].data + (size_t)at * mc_dtype_size(c->kind[0]), 0xff,
                       mc_dtype_size(c->kind[0]));
            if (r == 1) set_element(c->kind[0], x.m[CPU].data, at, i == 0 ? -0.0 : 0);
        }
    upload(&x);
    both out = both_index(c->rows, 0, 9);
    FOR_SIDES(s) CALL(s, argmax, c->rows, c->columns, x.m[s], out.memory[s]);
    compare(&out, EXACT, "argmax");
    FREE(&x, &out);
}

static void test_argmax(void **state)
{
    (void)state;
    for_cases(argmax_case);
    float values[] = {1, NAN, 3, NAN, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    both x = both_new(MC_F32, 2, 4, layouts[0]), out = both_index(2, 5, 6);
    memcpy(x.memory[CPU], values, sizeof values);
    upload(&x);
    FOR_SIDES(s) CALL(s, argmax, 2, 4, x.m[s], out.memory[s]);
    compare(&out, EXACT, "argmax of NaN and -inf");
    FREE(&x, &out);
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* Whole or in pieces, aligned or not: the bits of the CPU. */
static void test_fill(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const mc_fill fills[] = {{MC_FILL_NORMAL, 0, 1, 99},        {MC_FILL_NORMAL, 0.5f, 0.02f, 5},
                             {MC_FILL_UNIFORM, -0.3f, 0.7f, 1}, {MC_FILL_UNIFORM, 1, 1.0000005f, 2},
                             {MC_FILL_UNIFORM, 2, 2, 3},        {MC_FILL_CONSTANT, 1.25f, 0, 1}};
    const int64_t pieces[][2] = {{0, 1 << 20}, {1, 3},  {2, 1},           {5, 100003},
                                 {7, 0},       {4, 99}, {1ll << 34, 5000}};
    for (int f = 0; f < 6; f++) FOR_TYPES(i) for (int p = 0; p < 7; p++) for (int l = 0; l < 2; l++)
        {
            int64_t n = pieces[p][1];
            both x = both_output(float_types[i], 1, n, layouts[l]);
            FOR_SIDES(s) CALL(s, fill, fills[f], pieces[p][0], n, x.m[s]);
            compare(&x, EXACT, "fill");
            FREE(&x);
        }
}

/* ---- optimizers ------------------------------------------------------------------------------ */

typedef struct flat_memory {
    both g, m, v, p, stored, update;
} flat_memory;

static flat_memory flat_memory_new(int64_t n, mc_dtype gradient, mc_dtype dtype, layout l,
                                   mc_update update)
{
    return (flat_memory){.g = both_values(gradient, 1, n, l, -100, 100),
                         .m = both_values(MC_F32, 1, n, l, -1e-2, 1e-2),
                         .v = both_values(MC_F32, 1, n, l, 0, 1e-3),
                         .p = both_values(MC_F32, 1, n, l, -1, 1),
                         .stored = both_output(dtype, 1, n, l),
                         .update = both_bytes(&update, sizeof update)};
}

static void flat_memory_check(flat_memory *f, const char *what)
{
    compare(&f->m, 1e-6, what);
    compare(&f->v, 1e-6, what);
    compare(&f->p, 1e-6, what);
    compare(&f->stored, 1e-6, what);
    FREE(&f->g, &f->m, &f->v, &f->p, &f->stored, &f->update);
}

static void optimizer_case(int64_t n, mc_dtype dtype, layout l, int mode)
{
    mc_update update = {
        .lr = 1e-3, .step = 3 - 2 * (mode & 1), .gradient_scale = 1 / 1024.0f, .skip = mode == 7};
    bool own = dtype == MC_F32;
    flat_memory f = flat_memory_new(n, mode & 1 ? dtype : MC_F32, dtype, l, update);
    FOR_SIDES(s)
    {
        mc_adam_step step = {f.update.memory[s], 0.9f, 0.999f, 1e-8f, 0.7f, 0.1f, mode & 2, 0};
        CALL(s, adam, n, step, f.g.m[s], f.m.m[s].data, f.v.m[s].data, own ? NULL : f.p.m[s].data,
             own ? f.p.m[s].data : f.stored.m[s].data, dtype);
    }
    flat_memory_check(&f, "adam");
    f = flat_memory_new(n, mode & 2 ? dtype : MC_F32, dtype, l, update);
    if (update.step == 1) /* what a first step must not read */
        for (int64_t i = 0; i < n; i++) ((float *)f.m.m[CPU].data)[i] = NAN;
    upload(&f.m);
    float momentum = mode & 4 || update.step == 1 ? 0.9f : 0;
    FOR_SIDES(s)
    {
        mc_sgd_step step = {f.update.memory[s], momentum, mode & 2, 0.7f, 0.1f, mode & 4, 0};
        CALL(s, sgd, n, step, f.g.m[s], momentum > 0 ? f.m.m[s].data : NULL,
             own ? NULL : f.p.m[s].data, own ? f.p.m[s].data : f.stored.m[s].data, dtype);
    }
    flat_memory_check(&f, "sgd");
}

static void test_optimizers(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const int64_t sizes[] = {0, 1, 3, 4, 1023, 100001, 1200000};
    for (int n = 0; n < 7; n++)
        FOR_TYPES(i) for (int l = 0; l < 3; l++) for (int mode = 0; mode < 8; mode++)
        {
            if (sizes[n] > 1000000 && (l > 0 || mode > 3)) continue;
            optimizer_case(sizes[n], float_types[i], layouts[l], mode);
        }
}

/* Codes where both sides start from some; one may be its neighbour where rounding decides. */
static void compare_codes(both *codes, int64_t n)
{
    uint8_t *got = download(codes), *expected = codes->memory[CPU];
    int64_t other = 0;
    for (int64_t i = 0; i < n; i++) {
        other += got[i] != expected[i];
        if (abs(got[i] - expected[i]) > 1)
            fail_msg("adam8: code %lld is %d, expected %d", (long long)i, got[i], expected[i]);
    }
    if (other > n / 500 + 1)
        fail_msg("adam8: %lld of %lld codes differ", (long long)other, (long long)n);
    free(got);
}

static void adam8_case(int64_t n, mc_dtype dtype, layout l, int mode)
{
    mc_update update = {.lr = 1e-3, .step = 3, .gradient_scale = 1 / 1024.0f, .skip = mode == 3};
    bool own = dtype == MC_F32;
    int64_t blocks = (n + MC_STATE_BLOCK - 1) / MC_STATE_BLOCK;
    flat_memory f = flat_memory_new(n, mode & 1 ? dtype : MC_F32, dtype, l, update);
    uint8_t *start = malloc((size_t)n + 1);
    assert_non_null(start);
    for (int64_t i = 0; i < n; i++) start[i] = (uint8_t)(random_bits() & 255);
    both codes[2], scales[2];
    for (int k = 0; k < 2; k++) {
        /* of v not the least: an update divided by nearly nothing shows how m was rounded */
        for (int64_t i = 0; k && i < n; i++) start[i] |= 128;
        codes[k] = both_bytes(start, (size_t)n + 1);
        scales[k] = both_values(MC_F32, 1, blocks, layouts[0], 0, k ? 1e-3 : 1e-2);
    }
    FOR_SIDES(s)
    {
        mc_adam_step step = {f.update.memory[s], 0.9f, 0.999f, 1e-8f, 0.7f, 0.1f, mode & 2, 0};
        mc_state8 m = {codes[0].memory[s], scales[0].m[s].data};
        mc_state8 v = {codes[1].memory[s], scales[1].m[s].data};
        CALL(s, adam8, n, step, f.g.m[s], m, v, own ? NULL : f.p.m[s].data,
             own ? f.p.m[s].data : f.stored.m[s].data, dtype);
    }
    for (int k = 0; k < 2; k++) {
        compare_codes(&codes[k], n);
        compare(&scales[k], 1e-6, "adam8 scales");
        FREE(&codes[k], &scales[k]);
    }
    free(start);
    flat_memory_check(&f, "adam8");
}

static void test_adam8(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const int64_t sizes[] = {0, 1, 255, 256, 1023, 100001};
    for (int n = 0; n < 6; n++) FOR_TYPES(i)
    for (int l = 0; l < 3; l++)
        for (int mode = 0; mode < 4; mode++) adam8_case(sizes[n], float_types[i], layouts[l], mode);
}

static void muon_case(int64_t n, mc_dtype dtype, layout l, int mode)
{
    mc_update update = {.lr = 1e-2, .step = 1, .gradient_scale = 1 / 1024.0f, .skip = mode == 3};
    mc_gradient_stats start = {.sum_squares = mode == 2 ? 0 : 9};
    mc_dtype x_dtype = mode & 1 ? MC_BF16 : MC_F32;
    bool own = dtype == MC_F32;
    flat_memory f = flat_memory_new(n, mode & 1 ? dtype : MC_F32, dtype, l, update);
    both x = both_output(x_dtype, 1, n, l), stats = both_bytes(&start, sizeof start);
    FOR_SIDES(s)
    {
        mc_muon_step step = {f.update.memory[s], 0.95f, mode < 2, 0.7f, 0.1f, 3};
        CALL(s, muon_momentum, n, step, f.g.m[s], f.m.m[s].data, x.m[s]);
        CALL(s, muon_normalize, n, stats.memory[s], 0.5f, x.m[s]);
        CALL(s, muon_update, n, step, x.m[s], own ? NULL : f.p.m[s].data,
             own ? f.p.m[s].data : f.stored.m[s].data, dtype);
    }
    /* a contraction may move x of bf16 by its last place, and what is made of it */
    compare(&x, x_dtype == MC_F32 ? 1e-6 : 1.0 / 128, "muon x");
    compare(&f.p, x_dtype == MC_F32 ? 1e-6 : 1e-3, "muon p");
    compare(&f.stored, x_dtype == MC_F32 ? 1e-6 : 1.0 / 64, "muon stored");
    FREE(&x, &stats, &f.p, &f.stored);
    compare(&f.m, 1e-6, "muon buffer");
    FREE(&f.g, &f.m, &f.v, &f.update);
}

static void test_muon(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const int64_t sizes[] = {0, 1, 3, 4, 1023, 100001};
    for (int n = 0; n < 6; n++) FOR_TYPES(i)
    for (int l = 0; l < 3; l++)
        for (int mode = 0; mode < 4; mode++) muon_case(sizes[n], float_types[i], layouts[l], mode);
}

static void mirror_case(int64_t batch, int64_t n, int64_t strip, mc_dtype dtype, layout l)
{
    both x = both_values(dtype, batch * n, n, l, -1, 1);
    FOR_SIDES(s) CALL(s, muon_mirror, batch, n, strip, x.m[s], n * x.m[s].stride);
    compare(&x, EXACT, "muon_mirror");
    FREE(&x);
}

/* Strips of whole tiles, and others; a last one that is larger. */
static void test_muon_mirror(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    static const int cases[][2] = {{1, 1}, {40, 16}, {48, 16}, {208, 64}, {200, 64}, {150, 48}};
    for (int l = 0; l < 3; l++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            mirror_case(3, cases[i][0], cases[i][1], MC_F32, layouts[l]);
            mirror_case(3, cases[i][0], cases[i][1], MC_BF16, layouts[l]);
        }
}

/* Products that are added to another matrix than they are written to, in one call of cuBLASLt and,
 * where it has none for the operands, one by one. */
static void add_apart_case(mc_dtype dtype, layout l)
{
    enum { BATCH = 3, M = 24, N = 40, K = 16 };
    both a = both_values(dtype, BATCH * M, K, l, -1, 1), b = both_values(dtype, N, K, l, -1, 1),
         add = both_values(dtype, BATCH * M, N, l, -1, 1), c = both_output(dtype, BATCH * M, N, l);
    FOR_SIDES(s)
    {
        mc_batched_gemm_call call = {.batch = BATCH,
                                     .transpose_b = true,
                                     .m = M,
                                     .n = N,
                                     .k = K,
                                     .alpha = 0.25f,
                                     .a = a.m[s],
                                     .b = b.m[s],
                                     .add = add.m[s].data,
                                     .c = c.m[s],
                                     .a_step = M * a.m[s].stride,
                                     .c_step = M * c.m[s].stride};
        CALL(s, batched_gemm, &call);
    }
    compare(&c, 1e-6, "batched_gemm, added apart");
    compare(&add, EXACT, "what was added");
    FREE(&a, &b, &add, &c);
}

static void test_add_apart(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    for (int l = 0; l < 3; l++) FOR_TYPES(i)
    add_apart_case(float_types[i], layouts[l]);
}

/* Infinity or NaN. */
static void set_special(mc_matrix m, int64_t i, float value)
{
    unsigned infinite = m.dtype == MC_F16 ? 0x7c00 : 0x7f80, sign = value < 0 ? 0x8000 : 0;
    if (m.dtype == MC_F32)
        ((float *)m.data)[i] = value;
    else
        ((uint16_t *)m.data)[i] = (uint16_t)(sign | infinite | (isnan(value) ? 0x40 : 0));
}

static void stats_case(int64_t n, mc_dtype dtype, layout l, double power, int64_t bad)
{
    both g = both_values(dtype, 1, n, l, -3, 2);
    if (bad > 0 && n > 0) {
        set_special(g.m[CPU], n - 1, -INFINITY);
        if (bad > 1) set_special(g.m[CPU], n / 3, NAN);
        if (bad > 2) set_special(g.m[CPU], n / 2, INFINITY);
    }
    upload(&g);
    mc_gradient_stats start = {.sum_squares = 1, .sum_powers = 2, .largest = 0.5f};
    both stats = both_bytes(&start, sizeof start);
    FOR_SIDES(s)
    for (int twice = 0; twice < 2; twice++)
        CALL(s, gradient_stats, n, g.m[s], power, 1ll << 40, stats.memory[s]);
    mc_gradient_stats *got = download(&stats), *expected = stats.memory[CPU];
#define SAME(a, b) (isnan(a) ? isnan(b) : (a) == (b) || fabs((a) - (b)) <= 1e-10 * fabs(a))
    assert_true(SAME(expected->sum_squares, got->sum_squares));
    assert_true(SAME(expected->sum_powers, got->sum_powers));
    assert_true(isnan(expected->largest) ? isnan(got->largest) : expected->largest == got->largest);
    assert_true(expected->nonfinite == got->nonfinite);
    free(got);
    FREE(&g, &stats);
}

static void test_gradient_stats(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const int64_t sizes[] = {0, 1, 5, 1000, 100003, 5000000};
    const double powers[] = {2, 1, 3, 0.5, INFINITY};
    FOR_TYPES(i) for (int n = 0; n < 6; n++) for (int l = 0; l < 2; l++) for (int p = 0; p < 5; p++)
    {
        bool large = sizes[n] > 1000000;
        if (large && (p > 1 || is_left_out(i, l, 2))) continue;
        for (int bad = 0; bad < 4; bad++)
            if (!large || !is_left_out(bad, 2 * l, 4))
                stats_case(sizes[n], float_types[i], layouts[l], powers[p], bad);
    }
}

static void tensor_stats_case(mc_dtype dtype, int64_t n, layout l, int bad)
{
    both x = both_values(dtype, 1, n, l, -3, 2);
    static const float specials[] = {-INFINITY, NAN, INFINITY};
    for (int i = 0; dtype == MC_F32 && n > 2 && i < bad; i++)
        ((float *)x.m[CPU].data)[i == 2 ? 0 : n / (i + 2)] = specials[i];
    upload(&x);
    mc_tensor_stats start = {0};
    both stats = both_bytes(&start, sizeof start);
    FOR_SIDES(s) CALL(s, tensor_stats, n, x.m[s], stats.memory[s]);
    mc_tensor_stats *got = download(&stats), *expected = stats.memory[CPU];
    assert_true(got->count == expected->count && got->shift == expected->shift);
    assert_true(SAME(expected->sum, got->sum) ||
                fabs(expected->sum - got->sum) < 1e-12 * (double)n);
    assert_true(SAME(expected->squares, got->squares));
    assert_true(SAME((double)expected->largest, (double)got->largest));
    assert_true(SAME((double)expected->smallest, (double)got->smallest));
    free(got);
    FREE(&x, &stats);
}

static void test_tensor_stats(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const int64_t sizes[] = {0, 1, 5, 1000, 100003, 2000000};
    for (int n = 0; n < 6; n++) FOR_TYPES(i)
    for (int l = 0; l < 2; l++)
        for (int bad = 0; bad < 4; bad++)
            if (sizes[n] < 1000000 || bad == 0)
                tensor_stats_case(float_types[i], sizes[n], layouts[l], bad);
}

/* ---- the end of a step ----------------------------------------------------------------------- */

static void step_case(mc_step_rules rules, mc_gradient_stats stats, int failure)
{
    mc_step_state start;
    memset(&start, 0, sizeof start);
    start.own.stats = stats;
    start.loss_scale = 65536;
    start.growth_counter = 1;
    start.skipped = 2;
    start.failure = failure;
    float counted[2] = {12.5f, 5};
    mc_update_guess late = {{0.5, 0.25, 0.125, 0.0625}, 10, 1};
    both state = both_bytes(&start, sizeof start), loss = both_bytes(counted, sizeof counted);
    both guess = both_bytes(&late, sizeof late);
    mc_update zero;
    memset(&zero, 0, sizeof zero);
    both update = both_bytes(&zero, sizeof zero);
    FOR_SIDES(s)
    {
        CALL(s, step_seed, 8, state.memory[s]);
        CALL(s, step_count, loss.memory[s], state.memory[s]);
        CALL(s, step_count, loss.memory[s], state.memory[s]);
        CALL(s, step_measure, rules, 1, NULL, state.memory[s]);
        CALL(s, step_decide, rules, state.memory[s]);
        CALL(s, step_update, state.memory[s], guess.memory[s], update.memory[s]);
    }
    mc_step_state *got = download(&state), *expected = state.memory[CPU];
    assert_true(isnan(expected->norm) ? isnan(got->norm)
                                      : got->norm == expected->norm ||
                                            fabs(got->norm - expected->norm) <= 1e-12 * got->norm);
    assert_true(isnan(expected->gradient_scale)
                    ? isnan(got->gradient_scale)
                    : fabsf(got->gradient_scale - expected->gradient_scale) <=
                          1e-7f * expected->gradient_scale);
    got->norm = expected->norm;
    got->gradient_scale = expected->gradient_scale;
    assert_memory_equal(got, expected, sizeof *got);
    mc_update *told = download(&update), *meant = update.memory[CPU];
    assert_true(told->lr == meant->lr && told->step == meant->step && told->skip == meant->skip);
    free(told);
    free(got);
    FREE(&state, &loss, &guess, &update);
}

static void test_step(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const mc_gradient_stats stats[] = {{3, 5, 1.5f, 0, 0},
                                       {INFINITY, 5, INFINITY, 0, 1ull << 62},
                                       {NAN, NAN, NAN, 0, 1ull << 61},
                                       {3, 0, 1.5f, 0, 0}};
    const double powers[] = {2, 3, INFINITY};
    for (int i = 0; i < 4; i++)
        for (int p = 0; p < 3; p++)
            for (int mode = 0; mode < 16; mode++)
                step_case((mc_step_rules){.power = powers[p],
                                          .max_norm = mode & 1 ? 0.01 : INFINITY,
                                          .counted = mode & 2,
                                          .scaling = mode & 4,
                                          .may_skip = mode & 8,
                                          .factor = 2,
                                          .min_scale = 1,
                                          .max_scale = 1 << 20,
                                          .growth_steps = 2},
                          stats[i], mode == 9 ? MC_STEP_SEED_ZERO : 0);
}

/* ---- more than 2^32 elements ----------------------------------------------------------------- */

enum { TAIL = 5000 };

/* The last elements of a long array of bf16 against what the CPU makes of `expected`. */
static void assert_tail(const uint16_t *data, int64_t count, const uint16_t *expected)
{
    uint16_t got[TAIL];
    assert_true(sides[GPU]->copy_out(sides[GPU], got, data + count - TAIL, sizeof got));
    assert_memory_equal(got, expected, sizeof got);
}

static void test_long(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    const int64_t columns = 768, rows = (1ll << 32) / columns + 1001, count = rows * columns;
    size_t bytes = (size_t)count * 2;
    if (sides[GPU]->free_memory(sides[GPU]) < 3 * bytes) {
        printf("SKIPPED: arrays of 2^32 elements, for want of GPU memory\n");
        skip();
    }
    uint16_t *x = sides[GPU]->alloc(sides[GPU], bytes), *y = sides[GPU]->alloc(sides[GPU], bytes);
    assert_true(x && y);
    uint16_t tail[TAIL], out[TAIL];
    mc_matrix xm = {x, MC_BF16, columns}, ym = {y, MC_BF16, columns};
    mc_matrix small = {tail, MC_BF16, TAIL}, result = {out, MC_BF16, TAIL};
    mc_fill fill = {MC_FILL_NORMAL, 0, 1, 7};
    CALL(GPU, fill, fill, 0, count, xm);
    CALL(CPU, fill, fill, count - TAIL, TAIL, small);
    assert_tail(x, count, tail);
    CALL(GPU, scale, count, xm, 0.3f, ym, false);
    CALL(CPU, scale, TAIL, small, 0.3f, result, false);
    assert_tail(y, count, out);
    CALL(GPU, add, count, ym, xm, count, ym);
    CALL(CPU, add, TAIL, result, small, TAIL, result);
    assert_tail(y, count, out);
    mc_dropout_mask mask = {.p = 0.5f, .seed = 1, .offset = 2};
    CALL(GPU, dropout, rows, columns, xm, false, mask, ym, false);
    for (int i = 0; i < TAIL; i++)
        if (reference_dropout(mask, (uint64_t)(count - TAIL + i)) == 0) tail[i] = 0;
    CALL(CPU, scale, TAIL, small, 2, result, false);
    uint16_t got[TAIL];
    assert_true(sides[GPU]->copy_out(sides[GPU], got, y + count - TAIL, sizeof got));
    for (int i = 0; i < TAIL; i++)
        assert_true(element(MC_BF16, got, i) == element(MC_BF16, out, i)); /* -0 is 0 */
    float norms[2];
    float *rstd = sides[GPU]->alloc(sides[GPU], (size_t)rows * 4);
    mc_residual_norm_call norm = {
        .rows = rows, .columns = columns, .x = xm, .eps = 1e-5f, .y = ym, .rstd = rstd};
    CALL(GPU, residual_norm, &norm);
    CALL(CPU, fill, fill, count - 2 * columns, 2 * columns, small);
    norm.rows = 2;
    norm.x.data = tail;
    norm.y.data = out;
    norm.rstd = norms;
    CALL(CPU, residual_norm, &norm);
    float got_norms[2];
    assert_true(sides[GPU]->copy_out(sides[GPU], got_norms, rstd + rows - 2, 8));
    for (int i = 0; i < 2; i++) assert_true(fabsf(got_norms[i] - norms[i]) < 1e-6f);
    assert_true(
        sides[GPU]->copy_out(sides[GPU], got, y + count - 2 * columns, 4 * (size_t)columns));
    for (int i = 0; i < 2 * columns; i++)
        assert_true(fabs(element(MC_BF16, got, i) - element(MC_BF16, out, i)) < 0.04);
    sides[GPU]->free(sides[GPU], rstd, (size_t)rows * 4);
    sides[GPU]->free(sides[GPU], x, bytes);
    sides[GPU]->free(sides[GPU], y, bytes);
}

/* Sums have the same bits whenever they are taken. */
static void test_repeatable(void **state)
{
    (void)state;
    if (!sides[GPU]) skip();
    enum { COLUMNS = 520, ENTRIES = 50 };
    const int64_t rows = is_watched() ? 4000 : 20000;
    both x = both_values(MC_BF16, rows, COLUMNS, layouts[0], -1, 1);
    both index = both_index(rows, 0, ENTRIES), labels = both_index(rows, 0, COLUMNS);
    void *first[3] = {0};
    size_t bytes[3] = {0};
    for (int run = 0; run < (is_watched() ? 2 : 5); run++) {
        both sums = both_bytes(NULL, 0), table = both_vector(MC_F32, ENTRIES * COLUMNS, 0, 1);
        FREE(&sums);
        sums = both_new(MC_F32, 1, COLUMNS, layouts[0]);
        both loss = both_new(MC_F32, 1, 2, layouts[0]);
        both *all[] = {&sums, &table, &loss};
        for (int i = 0; i < 3; i++) CALL(GPU, zero, all[i]->memory[GPU], all[i]->bytes);
        CALL(GPU, column_sums, rows, COLUMNS, x.m[GPU], sums.memory[GPU]);
        CALL(GPU, embedding_backward, rows, COLUMNS, x.m[GPU], index.memory[GPU], 1,
             (mc_matrix){table.memory[GPU], MC_F32, COLUMNS});
        CALL(GPU, cross_entropy, rows, COLUMNS, x.m[GPU], labels.memory[GPU], -1, 0, NULL,
             loss.memory[GPU], (mc_matrix){0});
        for (int i = 0; i < 3; i++) {
            void *now = download(all[i]);
            bytes[i] = all[i]->bytes;
            if (run == 0) {
                first[i] = now;
                continue;
            }
            assert_memory_equal(now, first[i], bytes[i]);
            free(now);
        }
        FREE(&sums, &table, &loss);
    }
    for (int i = 0; i < 3; i++) free(first[i]);
    FREE(&x, &index, &labels);
}

/* An argument chooses tests by their names: "test_n*". */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_activation_backward),
        cmocka_unit_test(test_gated),
        cmocka_unit_test(test_linear_activation),
        cmocka_unit_test(test_gelu_of_all_halves),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_relu_dropout),
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_column_sums),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_norm_of_halves),
        cmocka_unit_test(test_sum_bits),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_extremes),
        cmocka_unit_test(test_loss_add),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_adam8),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_muon_mirror),
        cmocka_unit_test(test_add_apart),
        cmocka_unit_test(test_gradient_stats),
        cmocka_unit_test(test_tensor_stats),
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
