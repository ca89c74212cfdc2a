/* Between fp8.cu and fp8_gemm.c. */
#ifndef MC_DEVICE_CUDA_PRODUCT_FP8_INTERNAL_H
#define MC_DEVICE_CUDA_PRODUCT_FP8_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Launches y (rows, columns) = x, whose rows have an inverse each with `by_rows`. */
void mc_cuda_fp8_decode(mc_device *d, const mc_fp8_matrix *x, bool by_rows, int64_t rows,
                        int64_t columns, mc_matrix y);

/* cuBLASLt's epilogue for a call's bias and activation; 0: none is suitable. */
int32_t mc_cuda_fp8_epilogue(const mc_fp8_gemm_call *c);

#ifdef __cplusplus
}
#endif
#endif
