/* Casts to 8 bits within kernels. */
#ifndef MC_DEVICE_CUDA_ELEMENTWISE_FP8_CUH
#define MC_DEVICE_CUDA_ELEMENTWISE_FP8_CUH

#include "core/device/cuda/runtime/kernels.cuh"

/* Four numbers as bytes, the first lowest. */
template <mc_fp8_format FORMAT> __device__ __forceinline__ uint32_t mc_codes_of(const float *v)
{
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) word |= (uint32_t)mc_fp8_code(FORMAT, v[i]) << 8 * i;
    return word;
}

/* The same of finite numbers, by the GPU's own conversion. */
template <mc_fp8_format FORMAT>
__device__ __forceinline__ uint32_t mc_finite_codes_of(const float *v)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t low, high;
    if (FORMAT == MC_FP8_E4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    }
    return low | (uint32_t)high << 16;
#else
    return mc_codes_of<FORMAT>(v);
#endif
}

/* Four numbers times scale in E4M3, the first lowest. */
__device__ __forceinline__ uint32_t mc_e4m3_codes_of(const float *v, float scale)
{
    float scaled[4];
#pragma unroll
    for (int i = 0; i < 4; i++) scaled[i] = v[i] * scale;
    uint32_t word = mc_finite_codes_of<MC_FP8_E4M3>(scaled);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (!(fabsf(scaled[i]) < INFINITY)) word |= 0x7fu << 8 * i; /* NaN */
    return word;
}

#endif
