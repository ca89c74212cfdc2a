/* A softmax that groups of lanes make of different keys, and that is joined in the end: attention of
 * single tokens. */
#ifndef MC_DEVICE_CUDA_DECODE_SOFTMAX_CUH
#define MC_DEVICE_CUDA_DECODE_SOFTMAX_CUH

#include "core/device/cuda/product/skinny_gemm.cuh"

/* Products of a query with KEYS keys a group of eight lanes, of each of which a lane has eight terms,
 * for all lanes of the group. Matrix instructions multiply 16 halves of keys: as they were loaded they
 * are an operand, if the terms are taken in this order. The other is the query, its first half in
 * even columns and its second in odd ones, which count in even and in odd rows. */
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

/* In the making: weights are relative to the largest score. */
template <int N> struct mc_softmax {
    float largest, sum, value[N];
};

/* Over a warp's groups of `lanes` lanes; the first group gets it. share(largest, most): how much a
 * softmax counts beside one with the largest score `most`. */
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
