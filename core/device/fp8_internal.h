/* 8-bit numbers for the products of training (Micikevicius et al. 2022), and their scales: plain C
 * that the CPU and the CUDA device both compile.
 *
 * The value of a byte is `inverse` times the number that it encodes in its format, where inverse =
 * 1 / scale and scale is a power of two. So values are exact in f32 and bf16, and casting only
 * rounds. E4M3 has 3 bits of mantissa and numbers up to 448, E5M2 has 2 and numbers up to
 * 57,344. */
#ifndef MC_DEVICE_FP8_INTERNAL_H
#define MC_DEVICE_FP8_INTERNAL_H

#include "core/device/quantized_internal.h"

typedef enum mc_fp8_format { MC_FP8_E4M3, MC_FP8_E5M2 } mc_fp8_format;

/* The tensors of a linear layer that are cast, as indices of their scales. */
typedef enum mc_fp8_role { MC_FP8_X, MC_FP8_WEIGHT, MC_FP8_DY, MC_FP8_ROLES } mc_fp8_role;

/* On devices with fp8_tn a matrix's stride, and so the length of a sum, is a multiple of
 * MC_FP8_UNIT. */
enum { MC_FP8_UNIT = 16, MC_FP8_HISTORY = 16, MC_FP8_SCALE_LIMIT = 63 };

/* The length of a row of a transposed copy, which products sum over. */
MC_ON_ANY int64_t mc_fp8_padded(int64_t rows)
{
    return (rows + MC_FP8_UNIT - 1) / MC_FP8_UNIT * MC_FP8_UNIT;
}

/* The scale of a tensor, and its largest magnitude in each of the last updates that had one, newest
 * first; 0 before the first. In device memory; saved in checkpoints as f32. cuBLASLt requires the
 * address of `inverse` to be a multiple of 16. */
typedef struct mc_fp8_scale {
    float inverse, scale;
    float unused[2];
    float history[MC_FP8_HISTORY];
} mc_fp8_scale;

/* What casts have observed of a tensor since the last update. Saturated elements are finite, but
 * their scaled magnitude exceeds the format's largest number; vanished ones are not zero, but
 * became zero. */
typedef struct mc_fp8_seen {
    uint32_t largest; /* the bits of the largest magnitude: NaN is above infinity */
    uint32_t unused;
    uint64_t elements, saturated, vanished;
} mc_fp8_seen;

/* The same, summed over tensors and ranks. */
typedef struct mc_fp8_total {
    uint64_t elements, saturated, vanished;
} mc_fp8_total;

/* ---- formats --------------------------------------------------------------------------------- */

MC_ON_ANY mc_fp8_format mc_fp8_format_of(int role)
{
    return role == MC_FP8_DY ? MC_FP8_E5M2 : MC_FP8_E4M3;
}

MC_ON_ANY float mc_fp8_largest(mc_fp8_format format)
{
    return format == MC_FP8_E4M3 ? 448.0f : 57344.0f;
}

/* The nearest number, ties to even. Finite numbers beyond the largest become the largest; infinity
 * and NaN stay so, but infinity becomes NaN in E4M3, which has none. */
MC_ON_ANY uint8_t mc_to_e4m3(float x)
{
    uint32_t bits, magnitude, code;
    memcpy(&bits, &x, sizeof bits);
    magnitude = bits & 0x7fffffff;
    /* keeps 3 of the 23 bits; the exponent's bias becomes 7 */
    code = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
    if (magnitude < 0x3c800000) /* below 2^-6: units of 2^-9 */
        code = (uint32_t)rintf(fabsf(x) * 0x1p9f);
    if (magnitude >= 0x43e00000) code = 0x7e;
    if (magnitude >= 0x7f800000) code = 0x7f;
    return (uint8_t)(code | (bits >> 24 & 0x80));
}

MC_ON_ANY uint8_t mc_to_e5m2(float x)
{
    uint32_t bits, magnitude, code;
    memcpy(&bits, &x, sizeof bits);
    magnitude = bits & 0x7fffffff;
    code = ((magnitude + 0xfffff + (magnitude >> 21 & 1)) >> 21) - (112u << 2);
    if (magnitude < 0x38800000) /* below 2^-14: units of 2^-16 */
        code = (uint32_t)rintf(fabsf(x) * 0x1p16f);
    if (magnitude >= 0x47600000) code = 0x7b;
    if (magnitude >= 0x7f800000) code = magnitude == 0x7f800000 ? 0x7c : 0x7f;
    return (uint8_t)(code | (bits >> 24 & 0x80));
}

MC_ON_ANY uint8_t mc_fp8_code(mc_fp8_format format, float x)
{
    return format == MC_FP8_E4M3 ? mc_to_e4m3(x) : mc_to_e5m2(x);
}

MC_ON_ANY float mc_from_e4m3(uint8_t code)
{
    float x = mc_from_fp8(code), nan;
    uint32_t quiet = 0x7fc00000;
    memcpy(&nan, &quiet, sizeof nan);
    return (code & 0x7f) == 0x7f ? nan : x;
}

/* The upper byte of an f16. */
MC_ON_ANY float mc_from_e5m2(uint8_t code)
{
    uint32_t magnitude = code & 0x7f, bits = (magnitude << 21) + (112u << 23);
    float x;
    if (magnitude >= 0x7c) bits = 0x7f800000 | magnitude << 21;
    memcpy(&x, &bits, sizeof x);
    if (magnitude < 4) x = (float)magnitude * 0x1p-16f;
    return code & 0x80 ? -x : x;
}

MC_ON_ANY float mc_fp8_value(mc_fp8_format format, uint8_t code)
{
    return format == MC_FP8_E4M3 ? mc_from_e4m3(code) : mc_from_e5m2(code);
}

/* ---- scales ---------------------------------------------------------------------------------- */

MC_ON_ANY float mc_fp8_power(int exponent)
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Sets the largest power of two that keeps `largest` in the format's range, between 2^-63 and 2^63
 * (1 for 0 and for numbers that are not finite), divided by 2^margin. */
MC_ON_ANY void mc_fp8_set_scale(mc_fp8_scale *s, mc_fp8_format format, float largest, int margin)
{
    uint32_t bits;
    memcpy(&bits, &largest, sizeof bits);
    int power = 0;
    if (bits && bits < 0x7f800000) {
        /* both largest numbers are 1.75 times a power of two: 2^8 and 2^15 */
        bool above = (bits & 0x7fffff) > 0x600000;
        power = (format == MC_FP8_E4M3 ? 8 : 15) - ((int)(bits >> 23) - 127) - above;
    }
    power -= margin;
    if (power > MC_FP8_SCALE_LIMIT) power = MC_FP8_SCALE_LIMIT;
    if (power < -MC_FP8_SCALE_LIMIT) power = -MC_FP8_SCALE_LIMIT;
    s->scale = mc_fp8_power(power);
    s->inverse = mc_fp8_power(-power);
}

/* The next scale, from the largest magnitude of the last updates. A magnitude that is not finite
 * does not enter the history, because its step is skipped; nor does 0, so that a layer that no pass
 * has used for a while keeps its scale. */
MC_ON_ANY void mc_fp8_advance(mc_fp8_scale *s, mc_fp8_format format, uint32_t largest, int margin)
{
    float most = 0;
    if (largest && largest < 0x7f800000) {
        for (int i = MC_FP8_HISTORY - 1; i > 0; i--) s->history[i] = s->history[i - 1];
        memcpy(&s->history[0], &largest, sizeof largest);
    }
    for (int i = 0; i < MC_FP8_HISTORY; i++)
        if (s->history[i] > most) most = s->history[i];
    mc_fp8_set_scale(s, format, most, margin);
}

MC_ON_ANY void mc_fp8_add_seen(mc_fp8_seen *sum, const mc_fp8_seen *part)
{
    if (part->largest > sum->largest) sum->largest = part->largest;
    sum->elements += part->elements;
    sum->saturated += part->saturated;
    sum->vanished += part->vanished;
}

#endif
