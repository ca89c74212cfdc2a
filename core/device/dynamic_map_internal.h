/* The values of 8-bit codes in optimizer state: dynamic tree quantization (Dettmers et al. 2022).
 * Seven decades below 1, each divided evenly, larger ones into more steps, so that small numbers
 * keep their relative precision. Plain C that the CPU and the CUDA device compile. */
#ifndef MC_DEVICE_DYNAMIC_MAP_INTERNAL_H
#define MC_DEVICE_DYNAMIC_MAP_INTERNAL_H

#include <stdbool.h>

enum { MC_MAP_SIZE = 256, MC_MAP_DECADES = 7 };

/* Sorted. With a sign: -0.993 to 1, and decade d (0: the smallest) has 2^d steps on either side of
 * 0. Without: 0 to 1 with twice as many steps. */
static inline void mc_dynamic_map(bool sign, float map[MC_MAP_SIZE])
{
    int zero = sign ? MC_MAP_SIZE / 2 - 1 : 0, at = zero + 1;
    double decade = 1e-6;
    map[zero] = 0;
    for (int d = 0; d < MC_MAP_DECADES; d++, decade *= 10) {
        int steps = (sign ? 1 : 2) << d;
        for (int i = 0; i < steps; i++, at++) {
            double middle = 0.1 + 0.9 * (i + 0.5) / steps;
            map[at] = (float)(decade * middle);
            if (sign) map[2 * zero - at] = -map[at];
        }
    }
    map[MC_MAP_SIZE - 1] = 1;
}

#endif
