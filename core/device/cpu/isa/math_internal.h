/* Elementary functions in f32, free of branches so that loops over them are vectorised. Polynomials
 * are minimax fits; errors are given in units in the last place (ulp), with and without FMA. */
#ifndef MC_DEVICE_CPU_MATH_INTERNAL_H
#define MC_DEVICE_CPU_MATH_INTERNAL_H

#include <math.h>
#include "core/device/cpu/isa/convert_internal.h"

/* x = n ln 2 + r with |r| <= ln 2 / 2: returns r, and 2^n for -87.4 < x < 88. */
static inline float mc_exp_reduce(float x, float *power)
{
    const float round = 0x1.8p23f; /* adding it rounds to an integer, left in the low bits */
    float shifted = x * 0x1.715476p0f + round;
    float n = shifted - round;
    *power = mc_bits_float((mc_float_bits(shifted) << 23) + 0x3f800000u);
    float r = x - n * 0x1.62ep-1f; /* 11 bits: the product is exact */
    return r - n * 0x1.0bfbe8p-15f;
}

/* e^r - 1 for |r| <= ln 2 / 2. */
static inline float mc_expm1_reduced(float r)
{
    float p = 0.00139517182664f;
    p = p * r + 0.0083695981926f;
    p = p * r + 0.0416661872707f;
    p = p * r + 0.166665128908f;
    p = p * r + 0.500000010098f;
    return (p * r) * r + r;
}

/* e^x for x <= 0 (in fact up to about 80); NaN for NaN. 1.5 ulp. Below 2e-35 the result is 0, far
 * enough above the smallest normal number that no intermediate product is subnormal: those are a
 * hundred times as slow. */
static inline float mc_exp_nonpositive(float x)
{
    const float least = -80.0f;
    float power, r = mc_exp_reduce(x < least ? least : x, &power);
    float p = 0.00139517182664f;
    p = p * r + 0.0083695981926f;
    p = p * r + 0.0416661872707f;
    p = p * r + 0.166665128908f;
    p = p * r + 0.500000010098f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return x < least ? 0.0f : p * power;
}

/* tanh x, 3 ulp. From e^(-2|x|) - 1, which keeps its accuracy near 0. */
static inline float mc_tanh_f32(float x)
{
    float z = -2.0f * fabsf(x), power;
    float r = mc_exp_reduce(z < -40.0f ? -40.0f : z, &power);
    float e = mc_expm1_reduced(r) * power + (power - 1.0f);
    float t = -e / (2.0f + e);
    return x < 0.0f ? -t : t;
}

/* Normal distribution: density and distribution function at x. The tail is the density times a
 * polynomial in 1 / (1 + 0.35 |x|), so that small values keep their relative accuracy. */
static inline float mc_normal_cdf(float x, float *density)
{
    float t = fabsf(x), u = 1.0f / (1.0f + 0.35f * t);
    float e = mc_exp_nonpositive(-0.5f * x * x);
    float p = -0.0291459497883f;
    p = p * u + 0.14397180373f;
    p = p * u + -0.255714488921f;
    p = p * u + 0.159174437801f;
    p = p * u + -0.0231100268887f;
    p = p * u + 0.105508083267f;
    p = p * u + 0.119832848568f;
    p = p * u + 0.139861872117f;
    p = p * u + 0.139621404171f;
    float tail = p * u * e;
    *density = e * 0.398942280401f;
    return x < 0.0f ? tail : 1.0f - tail;
}

/* 1 / (1 + e^-x), and its mirror image 1 / (1 + e^x), both with full relative accuracy. */
static inline float mc_sigmoid(float x, float *mirror)
{
    float e = mc_exp_nonpositive(-fabsf(x)), high = 1.0f / (1.0f + e), low = e * high;
    *mirror = x < 0.0f ? high : low;
    return x < 0.0f ? low : high;
}

/* ln x for positive normal x. 1.5 ulp. */
static inline float mc_log_f32(float x)
{
    uint32_t offset = mc_float_bits(x) - 0x3f3504f3u; /* sqrt(1/2) */
    float e = (float)((int32_t)offset >> 23);
    float f = mc_bits_float((offset & 0x7fffff) + 0x3f3504f3u) - 1.0f;
    float p = -0.0763449633671f;
    p = p * f + 0.127615761973f;
    p = p * f + -0.131601819573f;
    p = p * f + 0.142017580865f;
    p = p * f + -0.166233574057f;
    p = p * f + 0.200012268748f;
    p = p * f + -0.250008210328f;
    p = p * f + 0.333333317077f;
    float square = f * f;
    float low = p * f * square - 0.5f * square + e * -2.12194440e-4f;
    return e * 0.693359375f + (low + f);
}

static inline float mc_largest(const float *x, int64_t n)
{
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

static inline float mc_row_largest(mc_matrix x, int64_t row, int64_t columns)
{
    float buffer[MC_CHUNK], largest = -INFINITY;
    for (int64_t at = 0; at < columns; at += MC_CHUNK) {
        int n = (int)mc_min_i64(MC_CHUNK, columns - at);
        float part = mc_largest(mc_read(x, row * x.stride + at, n, buffer), n);
        largest = part > largest ? part : largest;
    }
    return largest;
}

#endif
