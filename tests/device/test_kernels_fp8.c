/* Training in 8 bits on the CPU, in every instruction set. */
#include "core/base/hash_internal.h"
#include "tests/device/fp8_test.h"

/* ---- formats --------------------------------------------------------------------------------- */

/* All numbers of 16 bits but infinities as bytes: the hashes are those of PyTorch 2.15's bytes,
 * which is what
 *     x = torch.arange(65536).to(torch.int16).view(torch.bfloat16)
 *     x = x[~x.isinf()]
 *     torch.where(x.isnan(), x, x.clamp(-448, 448)).to(torch.float8_e4m3fn).view(torch.uint8)
 * gives, and the same with 57344 and float8_e5m2. */
static void test_as_torch(void **state)
{
    (void)state;
    uint64_t e4m3 = MC_HASH_START, e5m2 = MC_HASH_START;
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits = i << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (isinf(x)) continue;
        uint8_t codes[] = {mc_to_e4m3(x), mc_to_e5m2(x)};
        e4m3 = mc_hash(e4m3, &codes[0], 1);
        e5m2 = mc_hash(e5m2, &codes[1], 1);
    }
    assert_int_equal(e4m3, UINT64_C(0x50e5f098d6ca7ef9));
    assert_int_equal(e5m2, UINT64_C(0xe07c3ceee963f5f7));
}

static void check_number(mc_fp8_format format, float x)
{
    int expected = fp8_nearest(format, (double)x), got = mc_fp8_code(format, x);
    if (got != expected)
        fail_msg("format %d, %.9g: got 0x%02x, expected 0x%02x", (int)format, (double)x, got,
                 expected);
}

/* Every number half way between two neighbours, and the f32 on each side of it; numbers beyond the
 * largest; and every byte back. */
static void test_boundaries(void **state)
{
    (void)state;
    for (int f = MC_FP8_E4M3; f <= MC_FP8_E5M2; f++) {
        mc_fp8_format format = (mc_fp8_format)f;
        for (int code = 0; code < 256; code++) {
            double low = fp8_value(format, code), high = fp8_value(format, (code + 1) & 255);
            float back = mc_fp8_value(format, (uint8_t)code);
            assert_true(isnan(low) ? isnan(back) : (double)back == low);
            if (!isfinite(low) || !isfinite(high) || code == 127 || code == 255) continue;
            float middle = (float)((low + high) / 2);
            check_number(format, middle);
            check_number(format, nextafterf(middle, INFINITY));
            check_number(format, nextafterf(middle, -INFINITY));
        }
        static const float others[] = {0.0f,  -0.0f,    448,       464,     465,      480,
                                       57344, 61440,    65536,     3.4e38f, -3.4e38f, NAN,
                                       -NAN,  INFINITY, -INFINITY, 1e-45f,  1.4e-5f,  -1.17e-38f};
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) check_number(format, others[i]);
    }
}

static void check_scale(mc_fp8_format format, float largest, int margin, double expected)
{
    mc_fp8_scale s;
    mc_fp8_set_scale(&s, format, largest, margin);
    assert_true((double)s.scale == expected);
    assert_true((double)s.inverse == 1 / expected);
}

/* The largest power of two that is at most max / largest. */
static void test_scales(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        float largest = (float)ldexp(uniform(1, 2), (int)(random_bits() % 80) - 40);
        if (i % 3 == 0) largest = nextafterf((float)ldexp(1.75, i % 60 - 30), i % 2 ? 0 : INFINITY);
        if (i % 3 == 1) largest = (float)ldexp(1.75, i % 60 - 30);
        check_scale(MC_FP8_E4M3, largest, 0, exp2(floor(log2(448.0 / (double)largest))));
        check_scale(MC_FP8_E5M2, largest, 2, exp2(floor(log2(57344.0 / (double)largest)) - 2));
    }
    check_scale(MC_FP8_E4M3, 0, 0, 1);
    check_scale(MC_FP8_E4M3, INFINITY, 0, 1);
    check_scale(MC_FP8_E5M2, NAN, 0, 1);
    check_scale(MC_FP8_E4M3, 1e-40f, 0, 0x1p63);
    check_scale(MC_FP8_E4M3, 3e38f, 0, 0x1p-63); /* 2^-120 would fit */
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void test_cast(void **state)
{
    (void)state;
    mc_fp8_total lost = {0};
    static const int64_t shapes[][2] = {{1, 40}, {33, 64}, {48, 1030}, {130, 17}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int f = MC_FP8_E4M3; f <= MC_FP8_E5M2; f++) {
        fp8_cast_case c =
            fp8_cast_new(float_types[d], (mc_fp8_format)f, shapes[s][0], shapes[s][1], 3, s == 2);
        int64_t count = c.x.rows * c.x.columns;
        uint8_t *data = malloc((size_t)count), *turned = malloc((size_t)(c.padded * c.x.columns));
        assert_non_null(data);
        assert_non_null(turned);
        lost.saturated += c.seen.saturated;
        lost.vanished += c.seen.vanished;
        FOR_TABLES(t)
        {
            mc_fp8_seen seen = {0}, looked = {0}, most = {.largest = c.seen.largest};
            mc_fp8_cast_call call = {.rows = c.x.rows,
                                     .columns = c.x.columns,
                                     .padded = c.padded,
                                     .x = c.x.m,
                                     .format = c.format,
                                     .scale = &c.scale.scale,
                                     .seen = &seen,
                                     .data = data,
                                     .transposed = turned};
            memset(turned, 0xff, (size_t)(c.padded * c.x.columns));
            assert_int_equal(t->k->fp8_cast(device, &call), MC_OK);
            assert_bytes(data, c.data, count, t->name, "cast");
            assert_bytes(turned, c.transposed, c.padded * c.x.columns, t->name, "transposed");
            assert_seen(&seen, &c.seen);
            call.scale = NULL;
            call.seen = &looked;
            assert_int_equal(t->k->fp8_cast(device, &call), MC_OK);
            assert_seen(&looked, &most);
        }
        free(data);
        free(turned);
        fp8_cast_free(&c);
    }
    assert_true(lost.saturated > 100 && lost.vanished > 100);
}

/* An activation or its slope within the cast: to the bit what two kernels give. */
static void test_fused_cast(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 48}, {33, 64}, {130, 17}};
    const mc_fp8_scale scale = {.scale = 128, .inverse = 1 / 128.0f};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int a = MC_ACTIVATION_RELU; a <= MC_ACTIVATION_SILU; a++) {
        int64_t rows = shapes[s][0], columns = shapes[s][1];
        matrix x = matrix_new(float_types[d], rows, columns, 4, -4, 4),
               pre = matrix_new(float_types[d], rows, columns, 0, -4, 4);
        mc_fp8_cast_call call = {.rows = rows,
                                 .columns = columns,
                                 .padded = (rows + 15) / 16 * 16,
                                 .x = x.m,
                                 .activation = (mc_activation)a,
                                 .scale = &scale.scale};
        FOR_TABLES(t)
        {
            call.format = MC_FP8_E4M3;
            call.pre = (mc_matrix){0};
            fp8_check_fused(device, t->k, t->name, call);
            call.format = MC_FP8_E5M2;
            call.pre = pre.m;
            fp8_check_fused(device, t->k, t->name, call);
        }
        matrix_free(&pre);
        matrix_free(&x);
    }
}

/* A gate, or its gradient, within the cast: to the bit what two kernels give. */
static void test_gated_cast(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 48}, {33, 64}, {130, 24}};
    const mc_fp8_scale scale = {.scale = 128, .inverse = 1 / 128.0f};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_SILU; a++) {
        int64_t rows = shapes[s][0], n = shapes[s][1];
        matrix x = matrix_new(float_types[d], rows, 2 * n, 4, -4, 4),
               dy = matrix_new(float_types[d], rows, n, 0, -4, 4);
        mc_fp8_cast_call forward = {.rows = rows,
                                    .columns = n,
                                    .padded = (rows + 15) / 16 * 16,
                                    .x = x.m,
                                    .activation = (mc_activation)a,
                                    .gated = true,
                                    .scale = &scale.scale},
                         backward = forward;
        backward.columns = 2 * n;
        backward.x = dy.m;
        backward.pre = x.m;
        backward.format = MC_FP8_E5M2;
        FOR_TABLES(t)
        {
            fp8_check_fused(device, t->k, t->name, forward);
            fp8_check_fused(device, t->k, t->name, backward);
        }
        matrix_free(&dy);
        matrix_free(&x);
    }
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Three ranks and the tensors of two linears: the largest of all ranks counts, the scale follows
 * the largest of 16 updates, and what is not finite stays out. */
static void test_update(void **state)
{
    (void)state;
    enum { COUNT = 6, RANKS = 3 };
    FOR_TABLES(t)
    {
        mc_fp8_scale scales[COUNT] = {0};
        mc_fp8_seen seen[RANKS * COUNT], own[COUNT];
        mc_fp8_total total = {0};
        mc_fp8_update_call call = {.count = COUNT,
                                   .ranks = RANKS,
                                   .seen = seen,
                                   .scales = scales,
                                   .clear = own,
                                   .total = &total};
        for (int update = 0; update < 20; update++) {
            for (int i = 0; i < RANKS * COUNT; i++) {
                float largest = i == COUNT ? 2.0f : update == 1 ? 4.0f : 1.0f;
                seen[i] = (mc_fp8_seen){bits_of(largest), 0, 10, 2, 1};
            }
            if (update == 2) seen[COUNT + 5].largest = bits_of(INFINITY);
            memset(own, 0xff, sizeof own);
            assert_int_equal(t->k->fp8_update(device, &call), MC_OK);
            for (int i = 0; i < COUNT; i++) assert_int_equal(own[i].elements + own[i].largest, 0);
            float most = update >= 1 && update <= 16 ? 4.0f : 1.0f, rank1 = most < 2 ? 2.0f : most;
            assert_true(scales[0].scale == exp2f(floorf(log2f(448 / rank1))));
            assert_true(scales[1].scale == exp2f(floorf(log2f(448 / most))));
            assert_true(scales[2].scale == exp2f(floorf(log2f(57344 / most))));
            /* a history that left one update out remembers one longer */
            float later = update >= 1 && update <= 17 ? 4.0f : 1.0f;
            assert_true(scales[5].scale == exp2f(floorf(log2f(57344 / later))));
        }
        assert_int_equal(total.elements, 20 * 10 * RANKS * COUNT);
        assert_int_equal(total.saturated, 20 * 2 * RANKS * COUNT);
        assert_int_equal(total.vanished, 20 * RANKS * COUNT);
        mc_fp8_scale now = scales[2];
        mc_fp8_update_call current = {.count = 1,
                                      .ranks = 2,
                                      .first_role = MC_FP8_DY,
                                      .current = true,
                                      .seen = seen,
                                      .scales = &now};
        seen[0].largest = bits_of(100);
        assert_int_equal(t->k->fp8_update(device, &current), MC_OK);
        assert_true(now.scale == 512);
        assert_memory_equal(now.history, scales[2].history, sizeof now.history);
    }
}

/* Tolerance: of sums of f32, as in the tests of gemm. */
static void test_product(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 16, 32}, {20, 48, 80}, {64, 33, 17}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int way = 0; way < 4; way++) {
        bool ta = way & 1, tb = way & 2;
        mc_fp8_format format = ta ? MC_FP8_E5M2 : MC_FP8_E4M3;
        FOR_TABLES(t)
        {
            fp8_product_case p =
                fp8_product_new(shapes[s], ta, tb, format, float_types[d], way == 2, way == 1);
            p.call.a.inverse = &p.inverse[0];
            p.call.b.inverse = &p.inverse[1];
            assert_int_equal(t->k->fp8_gemm(device, &p.call), MC_OK);
            /* with a bias the sum is rounded before it, as linear's is */
            double rounded = float_types[d] == MC_F32 || way != 2 ? 0
                             : float_types[d] == MC_F16           ? 0x1p-11
                                                                  : 0x1p-8;
            assert_matrix(&p.c, p.expected, 1e-6 + rounded, t->name, "product of bytes");
            fp8_product_free(&p);
        }
    }
}

/* Rows with an inverse each: forward, and dx with a second operand that has none. */
static void test_rows(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 16, 32}, {20, 48, 80}, {64, 33, 17}};
    static float inverse_a[64], inverse_b[48];
    FOR_TABLES(t)
    {
        fp8_check_all_rows(device, t->k, t->name);
        fp8_check_transpose(device, t->k, t->name);
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int way = 0; way < 3; way++) FOR_TABLES(t)
        {
            fp8_product_case p = fp8_rows_product_new(shapes[s], way > 0, float_types[d], way == 1,
                                                      way == 0, inverse_a, way ? inverse_b : NULL);
            p.call.a.inverse = inverse_a;
            p.call.b.inverse = way ? inverse_b : NULL;
            assert_int_equal(t->k->fp8_gemm(device, &p.call), MC_OK);
            double rounded = float_types[d] == MC_F32 || way != 1 ? 0
                             : float_types[d] == MC_F16           ? 0x1p-11
                                                                  : 0x1p-8;
            assert_matrix(&p.c, p.expected, 1e-6 + rounded, t->name, "product of rows of bytes");
            fp8_product_free(&p);
        }
}

/* With bias, activation and cast: rounded once, from f32. */
static void test_product_to_bytes(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{20, 48, 80}, {64, 33, 17}, {96, 64, 256}};
    const float scale = 256;
    int64_t saturated = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
    for (int a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_GELU_NEW; a++) {
        fp8_product_case p =
            fp8_product_new(shapes[s], false, true, MC_FP8_E4M3, float_types[d], a != 1, false);
        uint8_t *bytes = malloc((size_t)(p.call.m * p.call.n));
        assert_non_null(bytes);
        p.call.a.inverse = &p.inverse[0];
        p.call.b.inverse = &p.inverse[1];
        p.call.activation = (mc_activation)a;
        p.call.scale = &scale;
        p.call.c = (mc_matrix){bytes, MC_U8, p.call.n};
        FOR_TABLES(t)
        {
            assert_int_equal(t->k->fp8_gemm(device, &p.call), MC_OK);
            assert_product_bytes(&p, bytes, scale, 1e-6, t->name, &saturated);
        }
        free(bytes);
        fp8_product_free(&p);
    }
    assert_true(saturated > 100);
}

static void test_norm_to_bytes(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 48}, {33, 64}, {130, 17}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_TYPES(d)
        {
            int64_t rows = shapes[s][0], columns = shapes[s][1];
            matrix x = matrix_new(float_types[d], rows, columns, 4, -4, 4),
                   f = matrix_new(float_types[d], rows, columns, 0, -4, 4),
                   affine = matrix_new(float_types[d], 2, columns, 0, -3, 3);
            mc_matrix bias = affine.m;
            bias.data = (char *)bias.data + (size_t)bias.stride * mc_dtype_size(bias.dtype);
            FOR_TABLES(t)
            {
                fp8_check_norm(device, t->k, t->name, rows, columns, x.m, f.m, affine.m, bias);
                fp8_check_norm(device, t->k, t->name, rows, columns, x.m, (mc_matrix){0}, affine.m,
                               (mc_matrix){0});
            }
            matrix_free(&affine);
            matrix_free(&f);
            matrix_free(&x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_torch),      cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_scales),        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_fused_cast),    cmocka_unit_test(test_gated_cast),
        cmocka_unit_test(test_update),        cmocka_unit_test(test_product),
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_product_to_bytes),
        cmocka_unit_test(test_norm_to_bytes),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
