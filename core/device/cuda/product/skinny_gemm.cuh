/* Shared by the kernels for linear layers of few rows: gemv.cu has one for 1 to 4 rows,
 * skinny_gemm.cu one for up to 64, hopper/product/skinny_gemm.cu one for 5 to 64 on Hopper. x and y
 * are f16 or bf16. The weight has the same type, or 8 bits per element and a scale per row; each
 * kernel is a template over this format (mc_weight_format). */
#ifndef MC_DEVICE_CUDA_PRODUCT_SKINNY_GEMM_CUH
#define MC_DEVICE_CUDA_PRODUCT_SKINNY_GEMM_CUH

#include "core/device/cuda/elementwise/activation.cuh"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/quantized_internal.h"

/* The strides of x and of the weight, and `in`, are multiples of 16 bytes. */
struct mc_few_call {
    int rows, in, out;
    float alpha;
    const char *x, *weight;
    int64_t x_stride, weight_stride; /* pre: only 16-bit types; no data: not required */
    mc_view bias, pre, y;            /* pre: of 16 bits only; no data: it is not kept */
    mc_activation activation;
    mc_weight_format format;
    const float *scale; /* of 8 bits: (out) */
};

/* skinny_gemm.cu: whether these kernels can run a call, and the converted call. */
bool mc_is_few(const mc_product *p);
static inline mc_few_call mc_few_call_of(const mc_product *p)
{
    const mc_matrix8 &q = p->quantized;
    return {(int)p->rows,
            (int)p->terms,
            (int)p->columns,
            p->alpha,
            (const char *)p->x.data,
            (const char *)(q.data ? q.data : p->weight.data),
            p->rows > 1 ? p->x.stride * 2 : 0,
            q.data ? q.columns : p->weight.stride * 2,
            mc_view_of(p->bias, 1, 1),
            mc_view_of(p->pre, 2, 1),
            mc_view_of(p->y, 2, 1),
            p->activation,
            q.data ? q.format : MC_WEIGHTS_FLOAT,
            q.scale};
}

/* run(T(), mc_format<FORMAT>()) with the call's T and FORMAT. */
template <int FORMAT> using mc_format = std::integral_constant<int, FORMAT>;
template <class Run> static inline mc_status mc_with_format(const mc_few_call &c, const Run &run)
{
    auto with = [&](auto type) {
        return c.format == MC_WEIGHTS_INT8  ? run(type, mc_format<MC_WEIGHTS_INT8>())
               : c.format == MC_WEIGHTS_FP8 ? run(type, mc_format<MC_WEIGHTS_FP8>())
                                            : run(type, mc_format<MC_WEIGHTS_FLOAT>());
    };
    return c.y.dtype == MC_BF16 ? with(__nv_bfloat16()) : with(__half());
}

/* ---- products -------------------------------------------------------------------------------- */

/* c (16, 8) += a (16, 16) b (16, 8), distributed over the lanes as PTX specifies. */
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

/* ---- bytes as pairs of 16-bit numbers -------------------------------------------------------- */

/* Bytes 2 i and 2 i + 1 of a word as the low bytes of two 16-bit halves, with `high`'s as high
 * bytes; and as the high bytes. */
__device__ __forceinline__ uint32_t mc_low_bytes(uint32_t word, int i, uint32_t high = 0)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(word, high, i ? 0x4342 : 0x4140);
#else
    word >>= 16 * i;
    return (word & 0xff) | (word & 0xff00) << 8 | (high & 0xff00ff00u);
#endif
}
__device__ __forceinline__ uint32_t mc_high_bytes(uint32_t word, int i)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(word, 0, i ? 0x3424 : 0x1404);
#else
    return mc_low_bytes(word, i) << 8;
#endif
}

template <class Pair> __device__ __forceinline__ Pair mc_pair_of(uint32_t word)
{
    Pair pair;
    memcpy((void *)&pair, &word, sizeof pair);
    return pair;
}

/* Two bytes of a word as two numbers of type T, divided by mc_quantized_unit, exactly. Integers:
 * builds 128 + the low seven bits (bf16) or 1024 + the byte without its sign (f16), and subtracts
 * the excess. E4M3's bits are shifted into a 16-bit number, whose exponent has another bias. */
template <class T, int FORMAT> __device__ __forceinline__ uint32_t mc_widen(uint32_t word, int i)
{
    if constexpr (FORMAT == MC_WEIGHTS_INT8 && std::is_same_v<T, __half>) {
        uint32_t high = mc_low_bytes(word ^ 0x80808080u, i, 0x64646464u);
        return mc_word_of(__hsub2(mc_pair_of<__half2>(high), mc_pair_of<__half2>(0x64806480u)));
    } else if constexpr (FORMAT == MC_WEIGHTS_INT8) {
        uint32_t bytes = mc_low_bytes(word, i, 0x43434343u), low = bytes & 0xff7fff7fu,
                 sign = bytes & 0xff80ff80u; /* 128, or 256 where it is negative */
        return mc_word_of(
            __hsub2(mc_pair_of<__nv_bfloat162>(low), mc_pair_of<__nv_bfloat162>(sign)));
    } else if constexpr (std::is_same_v<T, __half>) {
        uint32_t bytes = mc_high_bytes(word, i);
        return (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u);
    } else {
        uint32_t bytes = mc_high_bytes(word, i),
                 small = (bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u);
        return mc_word_of(__hmul2(mc_pair_of<__nv_bfloat162>(small),
                                  mc_pair_of<__nv_bfloat162>(0x7b807b80u))); /* 2^120 */
    }
}

template <class T, int FORMAT>
constexpr float mc_quantized_unit =
    FORMAT == MC_WEIGHTS_FP8 &&std::is_same_v<T, __half> ? 256.0f : 1.0f;

/* Terms in 16 bytes of a row of the weight. */
template <int FORMAT> constexpr int mc_few_each = FORMAT == MC_WEIGHTS_FLOAT ? 8 : 16;

/* A lane's part of two rows of the weight: 16 bytes of each, as operands of tensor cores. The order
 * of the terms is free: instruction j takes four of each row, matching the order in x's pieces. */
template <class T, int FORMAT> struct mc_few_terms {
    static constexpr int TIMES = mc_few_each<FORMAT> / 4;
    uint32_t a[TIMES][4];

    __device__ __forceinline__ void load(const uint4 &low, const uint4 &high)
    {
        const uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < TIMES; j++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if constexpr (FORMAT == MC_WEIGHTS_FLOAT) {
                    a[j][2 * i] = l[2 * j + i];
                    a[j][2 * i + 1] = h[2 * j + i];
                } else {
                    a[j][2 * i] = mc_widen<T, FORMAT>(l[j], i);
                    a[j][2 * i + 1] = mc_widen<T, FORMAT>(h[j], i);
                }
    }
    /* c += products with as many terms of x, in pieces of 16 bytes, `apart` from each other. */
    __device__ __forceinline__ void multiply(float (&c)[4], const uint4 *x, int apart) const
    {
#pragma unroll
        for (int k = 0; k < TIMES / 2; k++) {
            const uint4 v = x[k * apart];
            mc_few_multiply<T>(c, a[2 * k][0], a[2 * k][1], a[2 * k][2], a[2 * k][3], v.x, v.y);
            mc_few_multiply<T>(c, a[2 * k + 1][0], a[2 * k + 1][1], a[2 * k + 1][2],
                               a[2 * k + 1][3], v.z, v.w);
        }
    }
};

/* ---- the end --------------------------------------------------------------------------------- */

/* Applies an activation to N numbers in parallel, with one choice for all. */
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

/* A column's scale (8 bits) and bias, loaded before its sums are complete. */
struct mc_few_column {
    float factor, bias;
};

template <int FORMAT>
__device__ __forceinline__ mc_few_column mc_few_column_of(const mc_few_call &c, int column)
{
    if (column >= c.out) return {0.0f, 0.0f};
    return {FORMAT == MC_WEIGHTS_FLOAT ? 1.0f : c.scale[column], mc_few_bias(c, column)};
}

/* Stores the result of a sum. The activation uses the sum as rounded to 16 bits, stored or not, so
 * that it can be recomputed. */
template <class T, int FORMAT>
__device__ __forceinline__ void mc_few_store(const mc_few_call &c, int row, int column, float sum,
                                             mc_few_column own)
{
    if (FORMAT == MC_WEIGHTS_FLOAT) {
        sum = (float)(T)fmaf(sum, c.alpha, own.bias);
        if (c.pre.data) mc_store_one(c.pre, row * c.pre.stride + column, sum);
    } else {
        sum = fmaf(sum * mc_quantized_unit<T, FORMAT> * c.alpha, own.factor, own.bias);
    }
    mc_store_one(c.y, row * c.y.stride + column, mc_few_activated(c.activation, sum));
}

#endif
