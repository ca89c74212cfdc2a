/* What the kernels of linear layers of few rows share: linear_row.cu has one for 1 to 4 rows,
 * linear_few.cu one for up to 64. */
#ifndef MC_DEVICE_CUDA_LINEAR_FEW_CUH
#define MC_DEVICE_CUDA_LINEAR_FEW_CUH

#include "core/device/cuda/activation.cuh"
#include "core/device/cuda/gemm_internal.h"

struct mc_few_call {
    int rows, in, out;
    float alpha;
    const char *x, *weight;
    int64_t x_stride, weight_stride; /* bytes */
    mc_view bias, pre, y;
    mc_activation activation;
};

__device__ __forceinline__ float mc_few_activated(mc_activation activation, float x)
{
    switch (activation) {
    case MC_ACTIVATION_GELU: return mc_gelu<true>(x);
    case MC_ACTIVATION_GELU_NEW: return mc_gelu_new<true>(x);
    case MC_ACTIVATION_RELU: return x < 0.0f ? 0.0f : x;
    case MC_ACTIVATION_TANH: return tanhf(x);
    case MC_ACTIVATION_SILU: return mc_silu<true>(x);
    default: return x;
    }
}

__device__ __forceinline__ float mc_few_bias(const mc_few_call &c, int column)
{
    return c.bias.data ? mc_load_one(c.bias, column) : 0.0f;
}

/* Stores what a sum becomes. The activation is taken of the sum as it is stored, kept or not: so it
 * can be computed again. */
template <class T>
__device__ __forceinline__ void mc_few_store(const mc_few_call &c, int row, int column, float sum,
                                             float bias)
{
    sum = (float)(T)fmaf(sum, c.alpha, bias);
    if (c.pre.data) mc_store_one(c.pre, row * c.pre.stride + column, sum);
    mc_store_one(c.y, row * c.y.stride + column, mc_few_activated(c.activation, sum));
}

/* linear_row.cu: false where it does not take the call, which is nothing's fault then. */
template <class T> bool mc_row_linear(mc_device *d, const mc_few_call &c, mc_status *status);

#endif
