/* What the kernels of linear layers of few rows share: linear_row.cu has one for 1 to 4 rows,
 * linear_few.cu one for up to 64; those of weights in 8 bits (eight_bit.cuh) take a part of it. */
#ifndef MC_DEVICE_CUDA_PRODUCT_LINEAR_FEW_CUH
#define MC_DEVICE_CUDA_PRODUCT_LINEAR_FEW_CUH

#include "core/device/cuda/elementwise/activation.cuh"
#include "core/device/cuda/product/gemm_internal.h"

struct mc_few_call {
    int rows, in, out;
    float alpha;
    const char *x, *weight;
    int64_t x_stride, weight_stride; /* bytes */
    mc_view bias, pre, y;
    mc_activation activation;
};

static inline mc_few_call mc_few_call_of(const mc_own_product *p)
{
    return {(int)p->rows,
            (int)p->terms,
            (int)p->columns,
            p->alpha,
            (const char *)p->x.data,
            (const char *)p->weight.data,
            p->rows > 1 ? p->x.stride * 2 : 0,
            p->weight.stride * 2,
            mc_view_of(p->bias, 1, 1),
            mc_view_of(p->pre, 2, 1),
            mc_view_of(p->y, 2, 1),
            p->activation};
}

/* c (16, 8) += a (16, 16) b (16, 8), as PTX spreads them over the lanes. */
template <class T>
__device__ __forceinline__ void mc_few_multiply(float (&c)[4], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Writes a warp's products (16 columns by 8 rows each) as (GROUPS * 8 rows, TILES * 16 columns). */
template <int TILES, int GROUPS>
__device__ __forceinline__ void mc_few_spread(const float (&result)[TILES][GROUPS][4], float *to)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = g * 8 + lane % 4 * 2 + j % 2, column = i * 16 + lane / 4 + j / 2 * 8;
                to[row * TILES * 16 + column] = result[i][g][j];
            }
}

/* Of N numbers: there is one choice for all, so that they are computed side by side. */
template <int N>
__device__ __forceinline__ void mc_few_activate(mc_activation activation, float (&v)[N])
{
    auto all = [&](auto f) {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = f(v[i]);
    };
    switch (activation) {
    case MC_ACTIVATION_GELU: return all([](float x) { return mc_gelu<true>(x); });
    case MC_ACTIVATION_GELU_NEW: return all([](float x) { return mc_gelu_new<true>(x); });
    case MC_ACTIVATION_RELU: return all([](float x) { return x < 0.0f ? 0.0f : x; });
    case MC_ACTIVATION_TANH: return all([](float x) { return tanhf(x); });
    case MC_ACTIVATION_SILU: return all([](float x) { return mc_silu<true>(x); });
    default: return;
    }
}
__device__ __forceinline__ float mc_few_activated(mc_activation activation, float x)
{
    float v[1] = {x};
    mc_few_activate(activation, v);
    return v[0];
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
