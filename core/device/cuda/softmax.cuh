/* A softmax that groups of lanes make of different keys, and that is joined in the end: attention of
 * single tokens. */
#ifndef MC_DEVICE_CUDA_SOFTMAX_CUH
#define MC_DEVICE_CUDA_SOFTMAX_CUH

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
