/* 8-bit weights, in plain C that the CPU and the CUDA device both compile. */
#ifndef MC_DEVICE_QUANTIZED_INTERNAL_H
#define MC_DEVICE_QUANTIZED_INTERNAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "core/device/weights.h"

#ifdef __CUDACC__
#define MC_ON_ANY __host__ __device__ static inline
#else
#define MC_ON_ANY static inline
#endif

/* The scale of a row with the largest magnitude `largest`, which maps it to the format's largest
 * number. Not finite if a value of the row is not. */
MC_ON_ANY float mc_quantized_scale(mc_weight_format format, float largest)
{
    return largest / (format == MC_WEIGHTS_INT8 ? 127.0f : 448.0f);
}

/* The nearest E4M3, ties to even; numbers beyond 448 become 448. Never NaN. */
MC_ON_ANY uint8_t mc_to_fp8(float x)
{
    float magnitude = fabsf(x);
    uint32_t bits, code;
    memcpy(&bits, &magnitude, sizeof bits);
    if (magnitude < 0x1p-6f) /* in units of 2^-9; 8 units are the least normal number */
        code = (uint32_t)rintf(magnitude * 0x1p9f);
    else /* keeps 3 of the 23 bits; the exponent's bias becomes 7 */
        code = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3);
    if (!(magnitude < 448.0f)) code = 0x7e;
    return (uint8_t)(code | (x < 0 ? 0x80 : 0));
}

MC_ON_ANY float mc_from_fp8(uint8_t code)
{
    uint32_t magnitude = code & 0x7f, bits = (magnitude << 20) + (120u << 23);
    float x;
    memcpy(&x, &bits, sizeof x);
    if (magnitude < 8) x = (float)magnitude * 0x1p-9f;
    return code & 0x80 ? -x : x;
}

MC_ON_ANY uint8_t mc_to_int8(float x)
{
    float limited = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
    return (uint8_t)(int8_t)rintf(limited);
}

/* x as a byte of a row with that scale; 0 if the scale is 0. */
MC_ON_ANY uint8_t mc_to_quantized(mc_weight_format format, float x, float scale)
{
    float units = scale > 0 ? x / scale : 0.0f;
    return format == MC_WEIGHTS_INT8 ? mc_to_int8(units) : mc_to_fp8(units);
}

/* The value of a byte without its row's scale: exact in f32, f16 and bf16. */
MC_ON_ANY float mc_from_quantized(mc_weight_format format, uint8_t code)
{
    return format == MC_WEIGHTS_INT8 ? (float)(int8_t)code : mc_from_fp8(code);
}

#endif
