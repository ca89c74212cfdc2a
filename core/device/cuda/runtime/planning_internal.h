/* Planning kernels of the CUDA device: see planning.c. */
#ifndef MC_DEVICE_CUDA_RUNTIME_PLANNING_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_PLANNING_INTERNAL_H

#include "core/device/kernels_internal.h"

extern const mc_kernels mc_cuda_planning_kernels;

#endif
