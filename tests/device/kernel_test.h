/* What the tests of kernels share: the tables this processor can run, matrices with gaps between
 * their rows that nobody may touch, and comparison with references in double. */
#ifndef MC_TESTS_KERNEL_TEST_H
#define MC_TESTS_KERNEL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/cpu/cpu_internal.h"
#include "tests/test_part.h"

typedef struct isa_table {
    const char *name;
    const mc_kernels *k;
} isa_table;

static isa_table tables[3];
static int table_count;
static mc_context *context;
static mc_device *device;

static inline int open_tables(void **state)
{
    (void)state;
    context = mc_init_distributed(NULL);
    device = mc_cpu_open(context);
    if (!device) return -1;
    tables[table_count++] = (isa_table){"scalar", &mc_cpu_kernels_scalar};
#ifdef MC_HAVE_X86_ISA
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        tables[table_count++] = (isa_table){"avx2", &mc_cpu_kernels_avx2};
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        tables[table_count++] = (isa_table){"avx512", &mc_cpu_kernels_avx512};
#endif
    if (table_count < 3) printf("SKIPPED: kernels this processor cannot run\n");
    return 0;
}

static inline int close_tables(void **state)
{
    (void)state;
    size_t leaked = device->memory.in_use;
    mc_device_close(device);
    mc_context_free(context);
    if (leaked) fprintf(stderr, "%zu bytes of scratch memory were not given back\n", leaked);
    return leaked != 0;
}

#define FOR_TABLES(t) for (const isa_table *t = tables; t < tables + table_count; t++)

static const mc_dtype float_types[] = {MC_F32, MC_F16, MC_BF16};
#define FOR_TYPES(i) for (int i = 0; i < 3; i++)

/* A small generator of the tests' own. */
static uint64_t random_state = 88172645463325252u;
static inline uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}
static inline double uniform(double low, double high)
{
    return low + (high - low) * (random_bits() / 4294967296.0);
}

/* ---- element types, by definition rather than by bits ---------------------------------------- */

/* 2 to the power of e, from -1022 to 1023; and the power of 2 at or below |x|, which is in that
 * range. (The C library's are calls, and these run for each number of every test.) */
static inline double power_of_2(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}
static inline int exponent_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 0x7ff) - 1023;
}

static inline double decode(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int e = (int)(bits >> mantissa_bits) & top;
    uint32_t m = bits & ((1u << mantissa_bits) - 1);
    double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
    if (e == top) return m ? (double)NAN : sign * (double)INFINITY;
    double value = (e ? 1.0 : 0.0) + m * power_of_2(-mantissa_bits);
    return sign * value * power_of_2((e ? e : 1) - bias);
}

/* The nearest value of the type, ties to even. */
static inline double nearest(mc_dtype dtype, double x)
{
    if (dtype == MC_F32) return (float)x;
    int mantissa_bits = dtype == MC_F16 ? 10 : 7, least = dtype == MC_F16 ? -14 : -126;
    double largest = dtype == MC_F16 ? 65504.0 : 3.3895313892515355e38;
    if (isnan(x) || isinf(x) || x == 0) return x;
    int e = exponent_of(x);
    if (e < least) e = least;
    double step = power_of_2(e - mantissa_bits), rounded = nearbyint(x / step) * step;
    return fabs(rounded) > largest ? copysign((double)INFINITY, x) : rounded;
}

static inline double element(mc_dtype dtype, const void *data, int64_t i)
{
    if (dtype == MC_F32) return ((const float *)data)[i];
    uint32_t bits = ((const uint16_t *)data)[i];
    return dtype == MC_F16 ? decode(bits, 5, 10) : decode(bits, 8, 7);
}

/* Stores a value that the type represents. */
static inline void set_element(mc_dtype dtype, void *data, int64_t i, double value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == MC_F32)
        ((float *)data)[i] = f;
    else if (dtype == MC_BF16)
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    else /* below 2^-14 the bits count units of 2^-24 */
        ((uint16_t *)data)[i] =
            (uint16_t)((bits >> 16 & 0x8000) |
                       (fabs(value) < 0x1p-14 ? (uint32_t)(fabs(value) * 0x1p24)
                                              : ((bits & 0x7fffffff) - (112u << 23)) >> 13));
}

/* ---- matrices -------------------------------------------------------------------------------- */

typedef struct matrix {
    mc_matrix m;
    int64_t rows, columns;
    double *v; /* (rows, columns), what the test expects or put there */
} matrix;

enum { GAP_BYTE = 0xa5 };

/* Random values; `gap` elements between rows. */
static inline matrix matrix_new(mc_dtype dtype, int64_t rows, int64_t columns, int64_t gap,
                                double low, double high)
{
    matrix x = {.m = {.dtype = dtype, .stride = columns + gap}, .rows = rows, .columns = columns};
    size_t bytes = (size_t)((rows + 1) * x.m.stride) * mc_dtype_size(dtype) + 64;
    x.m.data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    x.v = malloc((size_t)(rows * columns + 1) * sizeof *x.v);
    assert_non_null(x.m.data);
    assert_non_null(x.v);
    memset(x.m.data, GAP_BYTE, bytes);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            double value = nearest(dtype, uniform(low, high));
            if (dtype == MC_F16 && fabs(value) < 6.2e-5) value = 0;
            x.v[r * columns + c] = value;
            set_element(dtype, x.m.data, r * x.m.stride + c, value);
        }
    return x;
}

static inline void matrix_free(matrix *x)
{
    free(x->m.data);
    free(x->v);
}

/* Puts v into the data again. */
static inline void matrix_reset(matrix *x)
{
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; c < x->columns; c++)
            set_element(x->m.dtype, x->m.data, r * x->m.stride + c, x->v[r * x->columns + c]);
}

static inline double *doubles(int64_t count)
{
    double *v = calloc((size_t)count + 1, sizeof *v);
    assert_non_null(v);
    return v;
}

static inline void assert_gaps(const matrix *x, const char *what)
{
    size_t size = mc_dtype_size(x->m.dtype), gap = (size_t)(x->m.stride - x->columns) * size;
    for (int64_t r = 0; r < x->rows; r++) {
        const uint8_t *at =
            (const uint8_t *)x->m.data + (size_t)(r * x->m.stride + x->columns) * size;
        for (size_t i = 0; i < gap; i++)
            if (at[i] != GAP_BYTE) fail_msg("%s wrote after row %lld", what, (long long)r);
    }
}

/* The data against `expected` (rows, columns): within `tolerance` of the largest expected value and
 * the rounding of the type. */
static inline void assert_matrix(const matrix *x, const double *expected, double tolerance,
                                 const char *isa, const char *what)
{
    double unit = x->m.dtype == MC_F32   ? 0
                  : x->m.dtype == MC_F16 ? 0x1p-11
                                         : 0x1p-8,
           largest = 0.25;
    for (int64_t i = 0; i < x->rows * x->columns; i++)
        if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
    for (int64_t i = 0; i < x->rows * x->columns; i++) {
        double got = element(x->m.dtype, x->m.data, i / x->columns * x->m.stride + i % x->columns);
        double bound =
            tolerance * largest + 1.01 * unit * (fabs(expected[i]) + tolerance * largest);
        if (isnan(expected[i]) ? isnan(got) : fabs(got - expected[i]) <= bound) continue;
        fail_msg("%s, %s, %s (%lld, %lld) at %lld: got %.9g, expected %.9g", what, isa,
                 mc_dtype_name(x->m.dtype), (long long)x->rows, (long long)x->columns, (long long)i,
                 got, expected[i]);
    }
    assert_gaps(x, what);
}

static inline void assert_floats(const float *got, const double *expected, int64_t n,
                                 double tolerance, const char *isa, const char *what)
{
    double largest = 0.25;
    for (int64_t i = 0; i < n; i++)
        if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - expected[i]) <= tolerance * largest))
            fail_msg("%s, %s at %lld: got %.9g, expected %.9g", what, isa, (long long)i, got[i],
                     expected[i]);
}

/* ---- Philox-4x32-10 as the paper has it ----------------------------------------------------- */

static inline void reference_philox(uint64_t key, uint64_t block, uint64_t offset, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)offset,
                     (uint32_t)(offset >> 32)};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof next);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    memcpy(out, c, sizeof c);
}

static inline double reference_dropout(mc_dropout_mask mask, uint64_t i)
{
    uint32_t words[4];
    if (mask.p == 0) return 1;
    reference_philox(mask.seed, i / 4, mask.offset, words);
    return words[i % 4] >= (uint32_t)((double)mask.p * 4294967296.0) ? 1 / (1 - (double)mask.p) : 0;
}

#endif
