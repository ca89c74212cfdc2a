/* The storage formats of linear layers' weights: see models/quantize.h.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DEVICE_WEIGHTS_H
#define MC_DEVICE_WEIGHTS_H

typedef enum mc_weight_format {
    MC_WEIGHTS_FLOAT = 0, /* as parameters: f32, f16 or bf16 */
    MC_WEIGHTS_INT8,      /* a signed integer from -127 to 127, times a scale per row */
    MC_WEIGHTS_FP8        /* E4M3 (Micikevicius et al. 2022), up to 448, times a scale per row */
} mc_weight_format;

#endif
