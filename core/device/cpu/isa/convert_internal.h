/* Elements of any float type as f32: rows are read in place or through a buffer. */
#ifndef MC_DEVICE_CPU_CONVERT_INTERNAL_H
#define MC_DEVICE_CPU_CONVERT_INTERNAL_H

#include "core/device/cpu/isa/isa_internal.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

static inline uint32_t mc_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float mc_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float mc_from_bf16(uint16_t h) { return mc_bits_float((uint32_t)h << 16); }

/* Nearest even; NaN stays NaN (made quiet), overflow gives inf. */
static inline uint16_t mc_to_bf16(float x)
{
    uint32_t bits = mc_float_bits(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

static inline float mc_from_f16(uint16_t h)
{
    uint32_t magnitude = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16;
    float x = mc_bits_float(magnitude << 13) * 0x1p112f; /* exact, subnormals included */
    uint32_t special = magnitude >= 0x7c00 ? 0x7f800000 | magnitude << 13 : mc_float_bits(x);
    return mc_bits_float(special | sign);
}

/* Nearest even; NaN stays NaN (made quiet), overflow gives inf. */
static inline uint16_t mc_to_f16(float x)
{
    uint32_t bits = mc_float_bits(x), a = bits & 0x7fffffff;
    uint32_t normal = (a + 0xfff + ((a >> 13) & 1) - (112u << 23)) >> 13;
    /* Adding a number whose last place is 2^-24 rounds to the subnormal grid. */
    uint32_t subnormal = mc_float_bits(mc_bits_float(a) + 0.5f) - mc_float_bits(0.5f);
    uint32_t h = a < 0x38800000 ? subnormal : normal;
    h = a >= 0x477ff000 ? 0x7c00 : h;
    h = a > 0x7f800000 ? 0x7e00 | (a >> 13 & 0x3ff) : h;
    return (uint16_t)(h | (bits >> 16 & 0x8000));
}

static inline void mc_load_bf16(const uint16_t *x, int64_t n, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = mc_from_bf16(x[i]);
}

static inline void mc_store_bf16(const float *x, int64_t n, uint16_t *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = mc_to_bf16(x[i]);
}

static inline void mc_load_f16(const uint16_t *x, int64_t n, float *y)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#endif
#pragma omp simd
    for (int64_t j = i; j < n; j++) y[j] = mc_from_f16(x[j]);
}

static inline void mc_store_f16(const float *x, int64_t n, uint16_t *y)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
#pragma omp simd
    for (int64_t j = i; j < n; j++) y[j] = mc_to_f16(x[j]);
}

static inline void mc_convert_in(const void *data, mc_dtype dtype, int64_t first, int64_t n,
                                 float *y)
{
    if (dtype == MC_BF16)
        mc_load_bf16((const uint16_t *)data + first, n, y);
    else if (dtype == MC_F16)
        mc_load_f16((const uint16_t *)data + first, n, y);
    else
        memcpy(y, (const float *)data + first, (size_t)n * sizeof *y);
}

static inline void mc_convert_out(const float *x, int64_t n, void *data, mc_dtype dtype,
                                  int64_t first)
{
    if (dtype == MC_BF16)
        mc_store_bf16(x, n, (uint16_t *)data + first);
    else if (dtype == MC_F16)
        mc_store_f16(x, n, (uint16_t *)data + first);
    else
        memcpy((float *)data + first, x, (size_t)n * sizeof *x);
}

/* Elements first .. first + n of x as f32: in place, or converted into `buffer`. */
static inline const float *mc_read(mc_matrix x, int64_t first, int64_t n, float *buffer)
{
    if (x.dtype == MC_F32) return (const float *)x.data + first;
    mc_convert_in(x.data, x.dtype, first, n, buffer);
    return buffer;
}

/* Where to write f32 results for elements of y from `first` on: y itself, or `buffer`, which
 * mc_write_end then converts. */
static inline float *mc_write_begin(mc_matrix y, int64_t first, float *buffer)
{
    return y.dtype == MC_F32 ? (float *)y.data + first : buffer;
}

static inline void mc_write_end(mc_matrix y, int64_t first, int64_t n, const float *written)
{
    if (y.dtype != MC_F32) mc_convert_out(written, n, y.data, y.dtype, first);
}

/* y = values or y += values, n <= MC_CHUNK. */
static inline void mc_write(mc_matrix y, int64_t first, int n, const float *values, bool accumulate)
{
    if (!accumulate) {
        mc_convert_out(values, n, y.data, y.dtype, first);
        return;
    }
    float buffer[MC_CHUNK];
    const float *old = mc_read(y, first, n, buffer);
    float *sum = mc_write_begin(y, first, buffer);
#pragma omp simd
    for (int i = 0; i < n; i++) sum[i] = old[i] + values[i];
    mc_write_end(y, first, n, sum);
}

#endif
