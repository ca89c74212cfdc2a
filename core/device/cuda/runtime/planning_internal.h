/* Planning kernels of the CUDA device: see planning.c. */
#ifndef MC_DEVICE_CUDA_RUNTIME_PLANNING_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_PLANNING_INTERNAL_H

#include "core/device/kernels_internal.h"

extern const mc_kernels mc_cuda_planning_kernels;

/* Bytes that linear_eight takes of scratch memory (eight_bit.cu). */
#ifdef __cplusplus
extern "C"
#endif
    size_t
    mc_cuda_linear_eight_scratch(int64_t rows, mc_matrix x, mc_matrix8 q, mc_matrix bias,
                                 mc_matrix y);

#endif
