/* Training in 8 bits on the GPU: against its definition, in double. Where the GPU multiplies bytes
 * (compute capability 9.0) products go to cuBLASLt, elsewhere by way of bf16. */
#include "core/device/fp8_measure_internal.h"
#include "tests/device/fp8_test.h"
#include "tests/device/gpu_test.h"

static void take(void *host, void *there, size_t bytes)
{
    assert_true(gpu->copy_out(gpu, host, there, bytes));
    gpu->free(gpu, there, bytes);
}

static void run_cast(mc_dtype dtype, mc_fp8_format format, int64_t rows, int64_t columns,
                     int64_t gap, bool bad)
{
    fp8_cast_case c = fp8_cast_new(dtype, format, rows, columns, gap, bad);
    size_t bytes = (size_t)(rows * columns), turned = (size_t)(c.padded * columns);
    uint8_t *data = malloc(bytes), *transposed = malloc(turned);
    assert_non_null(data);
    assert_non_null(transposed);
    memset(transposed, 0xff, turned);
    mc_fp8_seen seen = {0}, looked = {0}, most = {.largest = c.seen.largest};
    mc_matrix x = upload_matrix(&c.x);
    mc_fp8_scale *scale = upload(&c.scale, sizeof c.scale);
    void *seen_there = upload(&seen, sizeof seen), *looked_there = upload(&looked, sizeof looked),
         *data_there = upload(transposed, bytes), *transposed_there = upload(transposed, turned);
    mc_fp8_cast_call call = {.rows = rows,
                             .columns = columns,
                             .padded = c.padded,
                             .x = x,
                             .format = format,
                             .scale = &scale->scale,
                             .seen = seen_there,
                             .data = data_there,
                             .transposed = transposed_there};
    assert_ok(gpu->kernels->fp8_cast(gpu, &call));
    call.scale = NULL;
    call.seen = looked_there;
    assert_ok(gpu->kernels->fp8_cast(gpu, &call));
    take(data, data_there, bytes);
    take(transposed, transposed_there, turned);
    take(&seen, seen_there, sizeof seen);
    take(&looked, looked_there, sizeof looked);
    gpu->free(gpu, scale, sizeof c.scale);
    take_matrix(x, &c.x);
    assert_bytes(data, c.data, (int64_t)bytes, "cuda", "cast");
    assert_bytes(transposed, c.transposed, (int64_t)turned, "cuda", "transposed");
    /* any NaN */
    if (bad && seen.largest > 0x7f800000) seen.largest = c.seen.largest;
    if (bad && looked.largest > 0x7f800000) looked.largest = c.seen.largest;
    assert_seen(&seen, &c.seen);
    assert_seen(&looked, &most);
    free(data);
    free(transposed);
    fp8_cast_free(&c);
}

/* Whole tiles, parts of them, and columns that fill no word, with rows that begin at odd addresses;
 * and in 16 bits rows of whole chunks of 16 bytes, which are loaded so. */
static void test_cast(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 48, 3},    {128, 64, 3},  {300, 144, 3},
                                        {48, 1030, 3}, {130, 17, 3},  {1, 8, 0},
                                        {128, 64, 0},  {301, 136, 8}, {122, 1032, 0}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int f = MC_FP8_E4M3; f <= MC_FP8_E5M2; f++)
        run_cast(float_types[d], (mc_fp8_format)f, shapes[s][0], shapes[s][1], shapes[s][2],
                 s == 2 || s == 7);
}

/* Bytes go where they may lie at any address, as many as are asked for, and no others. */
static void test_odd_addresses(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 72, PADDED = 42, DATA = ROWS * COLUMNS, TURNED = COLUMNS * PADDED };
    uint8_t data[DATA + 2], turned[TURNED + 2];
    fp8_cast_case c = fp8_cast_new(MC_BF16, MC_FP8_E4M3, ROWS, COLUMNS, 0, false);
    memset(data, 0xff, sizeof data);
    memset(turned, 0xff, sizeof turned);
    mc_matrix x = upload_matrix(&c.x);
    uint8_t *data_there = upload(data, sizeof data), *turned_there = upload(turned, sizeof turned);
    mc_fp8_scale *scale = upload(&c.scale, sizeof c.scale);
    assert_ok(gpu->kernels->fp8_cast(gpu, &(mc_fp8_cast_call){.rows = ROWS,
                                                              .columns = COLUMNS,
                                                              .padded = PADDED,
                                                              .x = x,
                                                              .scale = &scale->scale,
                                                              .data = data_there + 1,
                                                              .transposed = turned_there + 1}));
    take(data, data_there, sizeof data);
    take(turned, turned_there, sizeof turned);
    gpu->free(gpu, scale, sizeof c.scale);
    take_matrix(x, &c.x);
    assert_bytes(data + 1, c.data, DATA, "cuda", "cast");
    for (int j = 0; j < COLUMNS; j++)
        for (int i = 0; i < PADDED; i++)
            assert_int_equal(turned[1 + j * PADDED + i], i < ROWS ? c.data[i * COLUMNS + j] : 0);
    assert_int_equal(data[0] & data[DATA + 1] & turned[0] & turned[TURNED + 1], 0xff);
    fp8_cast_free(&c);
}

/* An activation or its slope within the cast: to the bit what two kernels give. */
static void test_fused_cast(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        {1, 48, 4}, {128, 64, 4}, {300, 144, 4}, {130, 17, 4}, {301, 136, 8}};
    const mc_fp8_scale scale = {.scale = 128, .inverse = 1 / 128.0f};
    mc_fp8_scale *scale_there = upload(&scale, sizeof scale);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int a = MC_ACTIVATION_RELU; a <= MC_ACTIVATION_SILU; a++) {
        int64_t rows = shapes[s][0], columns = shapes[s][1];
        matrix x = matrix_new(float_types[d], rows, columns, shapes[s][2], -4, 4),
               pre = matrix_new(float_types[d], rows, columns, 0, -4, 4);
        mc_fp8_cast_call call = {.rows = rows,
                                 .columns = columns,
                                 .padded = (rows + 15) / 16 * 16,
                                 .x = upload_matrix(&x),
                                 .activation = (mc_activation)a,
                                 .scale = &scale_there->scale};
        fp8_check_fused(gpu, gpu->kernels, "cuda", call);
        call.format = MC_FP8_E5M2;
        call.pre = upload_matrix(&pre);
        fp8_check_fused(gpu, gpu->kernels, "cuda", call);
        take_matrix(call.pre, &pre);
        take_matrix(call.x, &x);
        matrix_free(&pre);
        matrix_free(&x);
    }
    gpu->free(gpu, scale_there, sizeof scale);
}

/* A gate, or its gradient, within the cast: to the bit what two kernels give. Halves of whole
 * chunks and of half ones, tiles within a half and across both. */
static void test_gated_cast(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 48, 4}, {128, 64, 8}, {300, 72, 8}, {301, 160, 4}};
    const mc_fp8_scale scale = {.scale = 128, .inverse = 1 / 128.0f};
    mc_fp8_scale *scale_there = upload(&scale, sizeof scale);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_SILU; a++) {
        int64_t rows = shapes[s][0], n = shapes[s][1];
        matrix x = matrix_new(float_types[d], rows, 2 * n, shapes[s][2], -4, 4),
               dy = matrix_new(float_types[d], rows, n, 0, -4, 4);
        mc_fp8_cast_call call = {.rows = rows,
                                 .columns = n,
                                 .padded = (rows + 15) / 16 * 16,
                                 .x = upload_matrix(&x),
                                 .activation = (mc_activation)a,
                                 .gated = true,
                                 .scale = &scale_there->scale};
        fp8_check_fused(gpu, gpu->kernels, "cuda", call);
        call.columns = 2 * n;
        call.format = MC_FP8_E5M2;
        call.pre = call.x;
        call.x = upload_matrix(&dy);
        fp8_check_fused(gpu, gpu->kernels, "cuda", call);
        take_matrix(call.x, &dy);
        take_matrix(call.pre, &x);
        matrix_free(&dy);
        matrix_free(&x);
    }
    gpu->free(gpu, scale_there, sizeof scale);
}

/* In the norm's kernel (whole chunks of bf16, of one warp and of several, with few rows and many),
 * and by a cast after it. */
static void test_norm_to_bytes(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 48}, {130, 64}, {70, 1024}, {66, 2056}, {130, 17}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
        {
            int64_t rows = shapes[s][0], columns = shapes[s][1];
            matrix x = matrix_new(float_types[d], rows, columns, 8, -4, 4),
                   f = matrix_new(float_types[d], rows, columns, 0, -4, 4),
                   weight = matrix_new(float_types[d], 1, columns, 0, -3, 3),
                   bias = matrix_new(float_types[d], 1, columns, 0, -3, 3);
            mc_matrix x_there = upload_matrix(&x), f_there = upload_matrix(&f),
                      weight_there = upload_matrix(&weight), bias_there = upload_matrix(&bias);
            fp8_check_norm(gpu, gpu->kernels, "cuda", rows, columns, x_there, f_there, weight_there,
                           bias_there);
            fp8_check_norm(gpu, gpu->kernels, "cuda", rows, columns, x_there, (mc_matrix){0},
                           weight_there, (mc_matrix){0});
            take_matrix(bias_there, &bias);
            take_matrix(weight_there, &weight);
            take_matrix(f_there, &f);
            take_matrix(x_there, &x);
            matrix_free(&bias);
            matrix_free(&weight);
            matrix_free(&f);
            matrix_free(&x);
        }
}

static void test_update(void **state)
{
    (void)state;
    enum { COUNT = 3, RANKS = 2 };
    mc_fp8_scale scales[COUNT] = {0};
    mc_fp8_seen seen[RANKS * COUNT], own[COUNT];
    mc_fp8_total total = {0};
    for (int i = 0; i < RANKS * COUNT; i++) seen[i] = (mc_fp8_seen){0x3f800000, 0, 10, 2, 1};
    seen[COUNT].largest = 0x40800000; /* 4.0 */
    memset(own, 0xff, sizeof own);
    void *seen_there = upload(seen, sizeof seen), *scales_there = upload(scales, sizeof scales),
         *own_there = upload(own, sizeof own), *total_there = upload(&total, sizeof total);
    mc_fp8_update_call call = {.count = COUNT,
                               .ranks = RANKS,
                               .seen = seen_there,
                               .scales = scales_there,
                               .clear = own_there,
                               .total = total_there};
    assert_ok(gpu->kernels->fp8_update(gpu, &call));
    take(seen, seen_there, sizeof seen);
    take(scales, scales_there, sizeof scales);
    take(own, own_there, sizeof own);
    take(&total, total_there, sizeof total);
    assert_true(scales[0].scale == 64 && scales[0].history[0] == 4);
    assert_true(scales[1].scale == 256 && scales[2].scale == 32768);
    for (int i = 0; i < COUNT; i++) assert_int_equal(own[i].elements + own[i].largest, 0);
    assert_int_equal(total.elements, 10 * RANKS * COUNT);
    assert_int_equal(total.saturated, 2 * RANKS * COUNT);
    assert_int_equal(total.vanished, RANKS * COUNT);
}

/* The largest error of sums of k products, as a part of the largest sum. Hopper's matrix units add
 * 32 products and the sum so far at a time, each cut to 13 bits below the largest of them
 * (DeepSeek-V3's report, 2024). `fast` sums stay there to the end; of others at most four such
 * steps come before one in f32 (CUTLASS's default for this architecture). So n numbers lose up to
 * 2^-13 of the largest of their step each, of either sign: sqrt(n / 3) of it is the standard
 * deviation. Where that largest is a third of the largest sum, the bound is five of them. */
static double sum_tolerance(int64_t k, bool fast)
{
    int64_t steps = (k + 31) / 32;
    if (!fast && steps > 4) steps = 4, k = 128;
    return sqrt((double)(k + steps)) * 0x1p-13;
}

/* A product of bytes. Hopper's matrix units add 32 products with some 14 bits below the largest;
 * `fast` sums stay so, others are added up in f32. */
static void run_product(const int64_t shape[3], bool ta, bool tb, mc_dtype dtype, bool biased,
                        bool accumulate, bool fast)
{
    mc_fp8_format format = ta ? MC_FP8_E5M2 : MC_FP8_E4M3;
    fp8_product_case p = fp8_product_new(shape, ta, tb, format, dtype, biased, accumulate);
    mc_fp8_gemm_call call = p.call;
    /* each where the scale of a tensor has it */
    mc_fp8_scale scales[2] = {{.inverse = p.inverse[0]}, {.inverse = p.inverse[1]}};
    void *a = upload(p.a, (size_t)p.a_bytes), *b = upload(p.b, (size_t)p.b_bytes);
    mc_fp8_scale *there = upload(scales, sizeof scales);
    mc_matrix c = upload_matrix(&p.c), bias = upload_matrix(&p.bias);
    call.fast = fast;
    call.a.data = a;
    call.b.data = b;
    call.a.inverse = &there[0].inverse;
    call.b.inverse = &there[1].inverse;
    call.c = c;
    if (biased) call.bias = bias;
    assert_ok(gpu->kernels->fp8_gemm(gpu, &call));
    gpu->free(gpu, a, (size_t)p.a_bytes);
    gpu->free(gpu, b, (size_t)p.b_bytes);
    gpu->free(gpu, there, sizeof scales);
    take_matrix(bias, &p.bias);
    take_matrix(c, &p.c);
    double tolerance = fast ? 0x1p-10 : sum_tolerance(shape[2], false);
    /* where the product is rounded before what is added: by us a bias, by cuBLASLt C (16 x 16) */
    if ((biased || accumulate) && dtype != MC_F32) tolerance += 0x1p-8;
    assert_matrix(&p.c, p.expected, tolerance, "cuda", "product of bytes");
    fp8_product_free(&p);
}

/* Ways of a product to bytes; ODD_SCALE: at no multiple of 16 bytes, which cuBLASLt proposes
 * algorithms for, but does not run. */
enum { NO_BIAS, BIAS, BIAS_F32, BY_16_BITS, ODD_SCALE, WAYS };

/* A product of bytes to bytes. Returns whether it took no scratch memory: cuBLASLt wrote the bytes;
 * else the result is rounded to the bias's dtype, and its activation cast. */
static bool run_product_to_bytes(const int64_t shape[3], int way, mc_activation activation,
                                 int64_t *saturated)
{
    mc_dtype dtype = way == BIAS_F32 ? MC_F32 : MC_BF16;
    bool biased = way != NO_BIAS;
    fp8_product_case p = fp8_product_new(shape, false, true, MC_FP8_E4M3, dtype, biased, false);
    const mc_fp8_scale scales[2] = {{.inverse = p.inverse[0]}, {.inverse = p.inverse[1]}};
    const float scale = 256, twice[] = {scale, scale};
    const int64_t count = shape[0] * shape[1];
    uint8_t *bytes = malloc((size_t)count);
    assert_non_null(bytes);
    memset(bytes, 0xff, (size_t)count);
    void *a = upload(p.a, (size_t)p.a_bytes), *b = upload(p.b, (size_t)p.b_bytes),
         *c = upload(bytes, (size_t)count);
    float *scale_there = upload(twice, sizeof twice);
    mc_fp8_scale *there = upload(scales, sizeof scales);
    mc_matrix bias = upload_matrix(&p.bias);
    mc_fp8_gemm_call call = p.call;
    call.fast = true;
    call.a.data = a;
    call.b.data = b;
    call.a.inverse = &there[0].inverse;
    call.b.inverse = &there[1].inverse;
    if (biased) call.bias = bias;
    call.activation = p.call.activation = activation;
    call.scale = scale_there + (way == ODD_SCALE);
    call.c = (mc_matrix){c, MC_U8, shape[1]};
    gpu->memory.peak = gpu->memory.in_use;
    assert_ok(gpu->kernels->fp8_gemm(gpu, &call));
    bool direct = gpu->memory.peak == gpu->memory.in_use;
    gpu->free(gpu, a, (size_t)p.a_bytes);
    gpu->free(gpu, b, (size_t)p.b_bytes);
    gpu->free(gpu, there, sizeof scales);
    gpu->free(gpu, scale_there, sizeof twice);
    take(bytes, c, (size_t)count);
    take_matrix(bias, &p.bias);
    /* fast sums, and a result of 16 bits before the activation */
    double tolerance = sum_tolerance(shape[2], true) + 0x1p-8;
    assert_product_bytes(&p, bytes, scale, tolerance, "cuda", saturated);
    free(bytes);
    fp8_product_free(&p);
    return direct;
}

/* The first product of a feed-forward with fixed scales. cuBLASLt has no epilogue for GELU with
 * erf, nor for a bias in f32; where it refuses another one, the bytes are the same. */
static void test_product_to_bytes(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{48, 96, 64}, {33, 144, 272}, {128, 64, 1024}};
    bool rows_by_rows = gpu->fp8_tn;
    int64_t saturated = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_GELU_NEW; a++)
            for (int way = 0; way < WAYS; way++) {
                gpu->fp8_tn = rows_by_rows && way != BY_16_BITS;
                bool direct = run_product_to_bytes(shapes[s], way, (mc_activation)a, &saturated);
                bool has = rows_by_rows && way <= BIAS && a != MC_ACTIVATION_GELU;
                if (has && !direct)
                    printf("cuBLASLt refuses bytes: activation %d, way %d\n", a, way);
                assert_true(has || !direct || way == ODD_SCALE);
                if (getenv("MC_CUDA_SIMULATED")) assert_true(direct || !has);
            }
    gpu->fp8_tn = rows_by_rows;
    assert_true(saturated > 100);
}

/* Rows by rows, as every product of a training step is on Hopper: forward with a bias, the input's
 * gradient, the weight's added to f32. */
static void test_rows_by_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        {16, 16, 16}, {48, 96, 64}, {33, 144, 272}, {128, 64, 1024}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        run_product(shapes[s], false, true, MC_BF16, false, false, true);
        run_product(shapes[s], false, true, MC_BF16, true, false, true);
        run_product(shapes[s], false, true, MC_BF16, false, true, false);
        run_product(shapes[s], false, true, MC_F32, false, true, false);
        run_product(shapes[s], false, true, MC_F32, false, false, false);
    }
}

/* As other GPUs have all of them: by way of bf16, in any order. */
static void test_other_orders(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{16, 16, 16}, {20, 48, 80}, {64, 33, 17}};
    bool rows_by_rows = gpu->fp8_tn;
    gpu->fp8_tn = false;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int way = 0; way < 4; way++) {
            run_product(shapes[s], way & 1, way & 2, MC_BF16, way == 2, way == 1, false);
            run_product(shapes[s], way & 1, way & 2, MC_F32, way == 2, way == 1, false);
        }
    gpu->fp8_tn = rows_by_rows;
}

/* A product of rows that have an inverse each. On a GPU that multiplies bytes it takes no scratch
 * memory: nothing is decoded. Elsewhere the second operand's factors are rounded to bf16. */
static void run_rows_product(const int64_t shape[3], bool tb, mc_dtype dtype, bool biased,
                             bool accumulate, bool fast)
{
    enum { MOST = 160 };
    static float inverse_a[MOST], inverse_b[MOST];
    int64_t m = shape[0], n = shape[1];
    bool one = !tb; /* the second operand has none */
    assert_true(m <= MOST && n <= MOST);
    fp8_product_case p = fp8_rows_product_new(shape, tb, dtype, biased, accumulate, inverse_a,
                                              one ? NULL : inverse_b);
    mc_fp8_gemm_call call = p.call;
    void *a = upload(p.a, (size_t)p.a_bytes), *b = upload(p.b, (size_t)p.b_bytes),
         *a_inverse = upload(inverse_a, sizeof inverse_a),
         *b_inverse = upload(inverse_b, sizeof inverse_b);
    mc_matrix c = upload_matrix(&p.c), bias = upload_matrix(&p.bias);
    call.fast = fast;
    call.a.data = a;
    call.b.data = b;
    call.a.inverse = a_inverse;
    call.b.inverse = one ? NULL : b_inverse;
    call.c = c;
    if (biased) call.bias = bias;
    size_t used = gpu->memory.peak = gpu->memory.in_use;
    assert_ok(gpu->kernels->fp8_gemm(gpu, &call));
    if (gpu->fp8_tn) assert_int_equal(gpu->memory.peak, used);
    gpu->free(gpu, a, (size_t)p.a_bytes);
    gpu->free(gpu, b, (size_t)p.b_bytes);
    gpu->free(gpu, a_inverse, sizeof inverse_a);
    gpu->free(gpu, b_inverse, sizeof inverse_b);
    take_matrix(bias, &p.bias);
    take_matrix(c, &p.c);
    double tolerance = sum_tolerance(shape[2], fast);
    /* each term is off by up to 2^-9, and terms partly cancel */
    if (!gpu->fp8_tn && !one) tolerance += 0x1p-8;
    if ((biased || accumulate) && dtype != MC_F32) tolerance += 0x1p-8;
    assert_matrix(&p.c, p.expected, tolerance, "cuda", "product of rows of bytes");
    fp8_product_free(&p);
}

static void test_rows(void **state)
{
    (void)state;
    fp8_check_all_rows(gpu, gpu->kernels, "cuda");
    fp8_check_transpose(gpu, gpu->kernels, "cuda");
}

static const int64_t row_shapes[][3] = {
    {16, 16, 16}, {48, 96, 64}, {33, 144, 272}, {128, 64, 1024}};
enum { ROW_SHAPES = sizeof row_shapes / sizeof *row_shapes };

/* Products as in forward: fast, with or without a bias. */
static void test_rows_forward(void **state)
{
    (void)state;
    bool rows_by_rows = gpu->fp8_tn;
    for (int i = 0; i < 2; i++, gpu->fp8_tn = false)
        for (int s = 0; s < ROW_SHAPES; s++) {
            run_rows_product(row_shapes[s], true, MC_BF16, false, false, true);
            run_rows_product(row_shapes[s], true, MC_BF16, true, false, true);
            run_rows_product(row_shapes[s], true, MC_F32, false, false, true);
            run_rows_product(row_shapes[s], true, MC_F32, true, false, true);
        }
    gpu->fp8_tn = rows_by_rows;
}

/* Products as in backward: sums in f32, written or added. */
static void test_rows_backward(void **state)
{
    (void)state;
    bool rows_by_rows = gpu->fp8_tn;
    for (int i = 0; i < 2; i++, gpu->fp8_tn = false)
        for (int s = 0; s < ROW_SHAPES; s++) {
            run_rows_product(row_shapes[s], true, MC_F32, false, false, false);
            run_rows_product(row_shapes[s], true, MC_F32, false, true, false);
            run_rows_product(row_shapes[s], true, MC_BF16, false, true, false);
            if (!gpu->fp8_tn) run_rows_product(row_shapes[s], false, MC_BF16, false, true, false);
        }
    gpu->fp8_tn = rows_by_rows;
}

/* What --fp8 auto chooses by, with rows that fill no word. */
static void test_measure(void **state)
{
    (void)state;
    mc_fp8_times t;
    size_t used = gpu->memory.in_use;
    assert_ok(mc_fp8_measure(gpu, MC_BF16, 37, 48, 32, 1, 1, &t));
    for (int i = 0; i < MC_FP8_PRODUCTS; i++) {
        assert_true(t.wide[i] > 0 && t.wide[i] < 60);
        assert_true(t.eight[i] > 0 && t.eight[i] < 60);
    }
    assert_true(t.cast_x > 0 && t.cast_x_again > 0 && t.cast_dy > 0 && t.cast_weight > 0);
    double casts = t.cast_x + t.cast_x_again + t.cast_dy;
    assert_true(mc_fp8_casts_of(&t, 4) == casts + t.cast_weight / 4);
    assert_int_equal(gpu->memory.in_use, used);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cast),          cmocka_unit_test(test_odd_addresses),
        cmocka_unit_test(test_fused_cast),    cmocka_unit_test(test_gated_cast),
        cmocka_unit_test(test_update),        cmocka_unit_test(test_rows_by_rows),
        cmocka_unit_test(test_other_orders),  cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_forward),  cmocka_unit_test(test_rows_backward),
        cmocka_unit_test(test_measure),       cmocka_unit_test(test_product_to_bytes),
        cmocka_unit_test(test_norm_to_bytes),
    };
    return RUN_ON_GPU(tests);
}
