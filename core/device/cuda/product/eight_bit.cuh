/* Weights in 8 bits on the GPU: a product of few rows as kernels see it, and bytes as operands of
 * tensor cores. */
#ifndef MC_DEVICE_CUDA_PRODUCT_EIGHT_BIT_CUH
#define MC_DEVICE_CUDA_PRODUCT_EIGHT_BIT_CUH

#include "core/device/cuda/product/linear_few.cuh"
#include "core/device/eight_bit_internal.h"

/* The weight is dense, and there is no `pre`. */
struct mc_eight_call : mc_few_call {
    const float *scale; /* (out) */
};

/* linear_eight.cu: up to 64 rows; linear_eight_row.cu: up to 4, false where it does not take the
 * call. x is f16 or bf16, as y is, its rows and `in` whole pieces of 16 bytes. */
mc_status mc_eight_few_rows(mc_device *d, const mc_eight_call &c, mc_weight_format format);
bool mc_eight_row_takes(const mc_eight_call &c);
mc_status mc_eight_row(mc_device *d, const mc_eight_call &c, mc_weight_format format);
/* hopper/linear_few.cu: 5 to 64 rows; false where it does not take the call, or is not expected to be
 * faster than linear_eight.cu. */
#ifdef MC_HAVE_HOPPER
bool mc_some_rows_eight(mc_device *d, const mc_eight_call &c, mc_weight_format format,
                        mc_status *status);
#else
static inline bool mc_some_rows_eight(mc_device *, const mc_eight_call &, mc_weight_format,
                                      mc_status *)
{
    return false;
}
#endif

/* ---- bytes as pairs of 16-bit numbers -------------------------------------------------------- */

/* Bytes 2 i and 2 i + 1 of a word as the low bytes of two halves, beside `high`'s, and as the high
 * ones. */
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

/* Two bytes of a word as two numbers of type T, divided by mc_eight_unit. Integers: bits of 128 +
 * the low seven (bf16) or 1024 + the byte without its sign (f16), less what that is too much. E4M3
 * has its bits in place for a number of 16 bits whose exponent counts from elsewhere. All exact. */
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
constexpr float mc_eight_unit =
    FORMAT == MC_WEIGHTS_FP8 &&std::is_same_v<T, __half> ? 256.0f : 1.0f;

/* 16 bytes a lane of two rows of the weight. */
struct mc_eight_terms {
    uint32_t a[4][4];

    template <class T, int FORMAT>
    __device__ __forceinline__ void widen(const uint4 &low, const uint4 &high)
    {
        const uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                a[j][2 * i] = mc_widen<T, FORMAT>(l[j], i);
                a[j][2 * i + 1] = mc_widen<T, FORMAT>(h[j], i);
            }
    }
    /* c += their products with as many terms of x, in two pieces of 16 bytes. */
    template <class T>
    __device__ __forceinline__ void multiply(float (&c)[4], const uint4 &x0, const uint4 &x1) const
    {
        const uint32_t x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            mc_few_multiply<T>(c, a[j][0], a[j][1], a[j][2], a[j][3], x[2 * j], x[2 * j + 1]);
    }
};

/* ---- the end --------------------------------------------------------------------------------- */

/* What a column's sums are multiplied by, and get more: read before the sums are there. */
struct mc_eight_column {
    float factor, bias;
};

__device__ __forceinline__ mc_eight_column mc_eight_column_of(const mc_eight_call &c, int column)
{
    bool there = column < c.out;
    return {there ? c.scale[column] : 0.0f,
            there && c.bias.data ? mc_load_one(c.bias, column) : 0.0f};
}

template <class T, int FORMAT>
__device__ __forceinline__ void mc_eight_store(const mc_eight_call &c, int row, int column,
                                               float sum, mc_eight_column own)
{
    sum = fmaf(sum * mc_eight_unit<T, FORMAT> * c.alpha, own.factor, own.bias);
    mc_store_one(c.y, row * c.y.stride + column, mc_few_activated(c.activation, sum));
}

/* Runs the statements with T and FORMAT as compile-time constants. */
#define MC_WITH_EIGHT(dtype, format, ...)               \
    do {                                                \
        if ((dtype) == MC_BF16) {                       \
            using T = __nv_bfloat16;                    \
            if ((format) == MC_WEIGHTS_INT8) {          \
                constexpr int FORMAT = MC_WEIGHTS_INT8; \
                __VA_ARGS__;                            \
            } else {                                    \
                constexpr int FORMAT = MC_WEIGHTS_FP8;  \
                __VA_ARGS__;                            \
            }                                           \
        } else {                                        \
            using T = __half;                           \
            if ((format) == MC_WEIGHTS_INT8) {          \
                constexpr int FORMAT = MC_WEIGHTS_INT8; \
                __VA_ARGS__;                            \
            } else {                                    \
                constexpr int FORMAT = MC_WEIGHTS_FP8;  \
                __VA_ARGS__;                            \
            }                                           \
        }                                               \
    } while (0)

#endif
