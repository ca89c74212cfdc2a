/* Weights in 8 bits on the GPU: against their definition, in double. */
#include "tests/device/quantized_test.h"
#include "tests/device/gpu_test.h"

/* The same bytes and scales on the GPU, at an address that is whole or not. */
static mc_matrix8 upload_quantized(const mc_matrix8 *q)
{
    mc_matrix8 there = *q;
    there.data = upload(q->data, (size_t)(q->rows * q->columns));
    there.scale = upload(q->scale, (size_t)q->rows * sizeof *q->scale);
    return there;
}

static void take_quantized(mc_matrix8 there, mc_matrix8 *q)
{
    size_t bytes = (size_t)(q->rows * q->columns), scales = (size_t)q->rows * sizeof *q->scale;
    assert_true(gpu->copy_out(gpu, q->data, there.data, bytes));
    assert_true(gpu->copy_out(gpu, q->scale, there.scale, scales));
    gpu->free(gpu, there.data, bytes);
    gpu->free(gpu, there.scale, scales);
}

static void test_quantize(void **state)
{
    (void)state;
    FOR_TYPES(d)
    FOR_FORMATS(f)
    {
        matrix x = quantized_matrix(float_types[d], 9, 1031);
        quantized e = quantized_new(quantized_formats[f], x.rows, x.columns);
        mc_matrix on_gpu = upload_matrix(&x);
        mc_matrix8 there = upload_quantized(&e.q);
        assert_ok(gpu->kernels->quantize(gpu, on_gpu, there));
        take_quantized(there, &e.q);
        take_matrix(on_gpu, &x);
        quantized_check(&x, &e.q, "cuda");
        quantized_free(&e);
        matrix_free(&x);
    }
}

static void test_dequantize(void **state)
{
    (void)state;
    FOR_TYPES(d)
    FOR_FORMATS(f)
    {
        quantized e = quantized_random(quantized_formats[f], 5, 291);
        matrix y = matrix_new(float_types[d], 5, 291, 2, 0, 1);
        mc_matrix on_gpu = upload_matrix(&y);
        mc_matrix8 there = upload_quantized(&e.q);
        assert_ok(gpu->kernels->dequantize(gpu, there, on_gpu));
        take_quantized(there, &e.q);
        take_matrix(on_gpu, &y);
        /* half a unit of f16's least, of 0.25 */
        assert_matrix(&y, e.v, 0x1p-23, "cuda", "dequantize");
        quantized_free(&e);
        matrix_free(&y);
    }
}

/* `tolerance` beside the rounding of the result: of f32 sums, and where the weight is rounded to
 * x's dtype first, of that. */
static void run_product(const int64_t *shape, mc_dtype dtype, mc_weight_format format,
                        mc_activation activation, double tolerance)
{
    quantized_case c = quantized_case_new(shape, dtype, format, activation);
    mc_matrix none = {0}, x = upload_matrix(&c.x), y = upload_matrix(&c.y),
              bias = upload_matrix(&c.bias);
    mc_matrix8 w = upload_quantized(&c.w.q);
    bool biased = activation != MC_ACTIVATION_NONE;
    assert_ok(gpu->kernels->linear_quantized(gpu, c.rows, c.alpha, x, w, biased ? bias : none,
                                             activation, y));
    take_quantized(w, &c.w.q);
    take_matrix(x, &c.x);
    take_matrix(bias, &c.bias);
    take_matrix(y, &c.y);
    assert_matrix(&c.y, c.expected, tolerance, "cuda", "linear in 8 bits");
    quantized_case_free(&c);
}

static void run_shapes(const int64_t (*shapes)[3], int count, mc_dtype dtype, double tolerance)
{
    for (int i = 0; i < count; i++) FOR_FORMATS(f)
    run_product(shapes[i], dtype, quantized_formats[f],
                (i + f) % 2 ? MC_ACTIVATION_RELU : MC_ACTIVATION_NONE, tolerance);
}

/* rows, terms, columns: each number of rows that has a kernel of its own, terms that fill no whole
 * step or unit, odd columns, and more columns than the GPU has multiprocessors. The last ones are
 * for GPUs with many of these. */
static const int64_t few_shapes[][3] = {
    {1, 16, 1},      {1, 528, 7},      {1, 1600, 50},   {2, 64, 33},      {3, 1040, 20},
    {4, 512, 9},     {5, 80, 7},       {8, 1600, 40},   {9, 64, 100},     {17, 208, 40},
    {33, 96, 65},    {64, 320, 33},    {6, 64, 300},    {12, 64, 300},    {20, 64, 300},
    {1, 1600, 5000}, {4, 6400, 1600},  {1, 4096, 257},  {8, 64, 20000},   {32, 4096, 5000},
    {5, 1600, 3201}, {8, 3072, 2305},  {16, 784, 6401}, {32, 1600, 4800}, {33, 784, 2301},
    {64, 1600, 901}, {64, 4096, 4111}, {12, 208, 40001}};
enum { FEW_SHAPES = sizeof few_shapes / sizeof *few_shapes, FEW_LARGE = 13 };

static void test_skinny_gemm(void **state)
{
    (void)state;
    int count = FEW_SHAPES;
    if (getenv("MC_CUDA_SIMULATED")) {
        printf("SKIPPED: large shapes, which would take minutes\n");
        count -= FEW_LARGE;
    }
    run_shapes(few_shapes, count, MC_F16, 2e-5);
    run_shapes(few_shapes, count, MC_BF16, 2e-5);
    /* each kernel with every call that it takes: by default another one has some of them */
    force("product:skinny");
    run_shapes(few_shapes, count, MC_BF16, 2e-5);
    if (!mc_routes_read(gpu, "product:skinny_hopper?"))
        run_shapes(few_shapes, count, MC_BF16, 2e-5);
    gpu->failure[0] = '\0';
    force("");
}

/* Many rows, terms that are not whole pieces, f32: the weight is rounded to x's dtype. */
static void test_many_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{65, 64, 48}, {2, 40, 24}, {3, 8, 8}};
    run_shapes(shapes, 3, MC_F32, 2e-5);
    run_shapes(shapes, 3, MC_F16, 0x1p-11);
    run_shapes(shapes, 3, MC_BF16, 0x1p-8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_dequantize),
        cmocka_unit_test(test_skinny_gemm),
        cmocka_unit_test(test_many_rows),
    };
    return RUN_ON_GPU(tests);
}
