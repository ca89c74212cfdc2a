/* A softmax that groups of lanes compute over different keys and then combine: for attention of
 * single tokens. */
#ifndef MC_DEVICE_CUDA_DECODE_SOFTMAX_CUH
#define MC_DEVICE_CUDA_DECODE_SOFTMAX_CUH

#include "core/device/cuda/product/skinny_gemm.cuh"

/* Products of a query with KEYS keys per group of eight lanes, for all lanes of the group; a lane
 * has eight terms of each. Matrix instructions multiply 16 halves of keys. In this order of terms,
 * loaded keys already have the layout of an operand. The other operand is the query, its first half
 * in even columns and its second in odd ones, which count in even and in odd rows. */
template <class T, int KEYS>
__device__ __forceinline__ void mc_multiply_keys(const mc_bits &q, const mc_bits (&k)[KEYS],
                                                 float (&product)[KEYS])
{
    const bool odd = threadIdx.x / 4 % 2;
#pragma unroll
    for (int t = 0; t < KEYS; t += 2) {
        const mc_bits &a = k[t], &b = k[t + 1 < KEYS ? t + 1 : t];
        float sum[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            mc_few_multiply<T>(sum, a.word[i], b.word[i], a.word[i + 1], b.word[i + 1], q.word[i],
                               q.word[i + 1]);
#pragma unroll
        for (int i = 0; i < 2 && t + i < KEYS; i++) {
            const float half = odd ? sum[2 * i + 1] : sum[2 * i];
            product[t + i] = half + __shfl_xor_sync(0xffffffffu, half, 4);
        }
    }
}

/* A partial softmax: weights are relative to the largest score so far. */
template <int N> struct mc_softmax {
    float largest, sum, value[N];
};

/* Combines a warp's groups of `lanes` lanes; the first group gets the result. share(largest, most):
 * the factor of a softmax when the largest score of all is `most`. */
template <int N, class Share>
__device__ __forceinline__ void mc_join_groups(mc_softmax<N> &s, int lanes, Share share)
{
    for (int lane = lanes; lane < 32; lane *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, s.largest, lane), most = fmaxf(s.largest, other),
              own = share(s.largest, most), others = share(other, most);
        s.largest = most;
        s.sum = s.sum * own + __shfl_xor_sync(0xffffffffu, s.sum, lane) * others;
#pragma unroll
        for (int e = 0; e < N; e++)
            s.value[e] = s.value[e] * own + __shfl_xor_sync(0xffffffffu, s.value[e], lane) * others;
    }
}

#endif
