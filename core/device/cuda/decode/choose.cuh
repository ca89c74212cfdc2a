/* Shared by the kernels that choose tokens (choose.cu, best_tokens.cu). */
#ifndef MC_DEVICE_CUDA_DECODE_CHOOSE_CUH
#define MC_DEVICE_CUDA_DECODE_CHOOSE_CUH

#include "core/device/cuda/runtime/kernels.cuh"

/* The repetition penalty of token i, if it was seen. seen: a bit per token; NULL: no penalty. */
__device__ __forceinline__ float mc_penalized(const uint32_t *seen, float penalty, int i, float x)
{
    bool was = seen && seen[i / 32] >> (i % 32) & 1;
    return !was ? x : x < 0 ? x * penalty : x / penalty;
}

/* An integer with the order of the floats. */
__device__ __forceinline__ uint32_t mc_ordered(float x)
{
    uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

#endif
