/* The ring that a chain's weights come through, by Hopper's copy engine: one thread of a block asks
 * for chunks as far ahead as there are free slots, whatever the others wait for. */
#ifndef MC_DEVICE_CUDA_CHAIN_HOPPER_CUH
#define MC_DEVICE_CUDA_CHAIN_HOPPER_CUH

#include "core/device/cuda/chain_attention.cuh"
#include "core/device/cuda/hopper.cuh"

namespace chain
{

enum { STREAMERS = 32 }; /* threads */

__device__ __forceinline__ void open_ring(const place &b)
{
    for (int i = threadIdx.x; i < b.c.slots; i += blockDim.x) {
        hopper::barrier_init(hopper::shared_address(b.full(i)), 1);
        hopper::barrier_init(hopper::shared_address(b.empty(i)), 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ bool is_streamer(const place &b) { return b.warp == WARPS; }

/* A barrier says whether its phase is an odd or an even one. A warp takes a slot only in some rounds,
 * so it has to know first that the round before is over. */
__device__ __forceinline__ const char *wait_for_chunk(const place &b, const position &at,
                                                      const char *)
{
    hopper::barrier_wait(hopper::shared_address(b.empty(at.slot)), at.parity ^ 1);
    hopper::barrier_wait(hopper::shared_address(b.full(at.slot)), at.parity);
    return b.slot(at.slot);
}
__device__ __forceinline__ void release(const place &b, const position &at)
{
    __syncwarp();
    if (b.lane == 0) hopper::barrier_arrive(hopper::shared_address(b.empty(at.slot)));
}

/* Weights are read once: what is read again shall stay in the L2 cache. */
__device__ __forceinline__ void copy_chunk(uint32_t to, const char *from, int bytes,
                                           uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* The block's chunks of a weight, in the order in which they are needed: by one thread. */
__device__ __forceinline__ void stream_weight(const place &b, const mc_chain_step &s, position &at,
                                              uint64_t policy)
{
    const mc_chain_linear &l = s.linear;
    const share h(s);
    const int64_t row_bytes = (int64_t)l.weight_stride * (l.scale ? 1 : 2);
    const char *weight = (const char *)l.weight + h.first * row_bytes;
    for (int row = 0; row < h.rows; row += WARPS)
        for (int k = 0; k < h.chunks; k++) {
            const char *from = weight + row * row_bytes + k * h.chunk;
            for (int r = min((int)WARPS, h.rows - row); r > 0; r--) {
                uint32_t full = hopper::shared_address(b.full(at.slot));
                hopper::barrier_wait(hopper::shared_address(b.empty(at.slot)), at.parity);
                hopper::barrier_expect(full, h.size(k));
                copy_chunk(hopper::shared_address(b.slot(at.slot)), from, h.size(k), full, policy);
                from += row_bytes;
                at.advance(1, b.c.slots);
            }
        }
}

__device__ __forceinline__ void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

constexpr int LINE = 128; /* bytes that are fetched together */

/* The keys and values that this block reads first. */
__device__ __forceinline__ void prefetch_cache(const place &b, const mc_chain_step &s)
{
    const mc_chain_attention &a = s.attention;
    const mc_chain_shape &h = *b.shape(a.shape);
    if ((int)blockIdx.x >= s.rows * h.heads * a.parts) return;
    const part p(h, a, (int)blockIdx.x);
#pragma unroll 1
    for (int key = b.lane; key < p.keys; key += 32) {
        const int64_t row = p.row_of(h, key);
#pragma unroll 1
        for (int i = 0; i < h.head_dim; i += LINE / 2) {
            prefetch((const uint16_t *)a.k + row * h.k_stride + p.column + i);
            prefetch((const uint16_t *)a.v + row * h.v_stride + p.column + i);
        }
    }
}

/* Small parameters are on their way to the L2 cache long before they are needed: a linear's by the
 * block that needs them, a norm's, which all blocks need, by turns. */
__device__ __forceinline__ void prefetch_parameters(const place &b, const mc_chain_step &s)
{
    if (s.kind == MC_CHAIN_ATTENTION) prefetch_cache(b, s);
    if (s.kind == MC_CHAIN_LINEAR) {
        const share h(s);
        for (int i = b.lane * LINE; i < h.rows * 4 + LINE; i += 32 * LINE) {
            const int in_scale = min(i, h.rows * 4 - 4), in_bias = min(i, h.rows * 2 - 2);
            if (s.linear.scale) prefetch((const char *)(s.linear.scale + h.first) + in_scale);
            if (s.linear.bias) prefetch((const uint16_t *)s.linear.bias + h.first + in_bias / 2);
        }
    } else if (s.kind == MC_CHAIN_NORM && s.norm.weight && b.lane < 2) {
        const char *p = (const char *)(b.lane ? s.norm.bias : s.norm.weight);
        const int lines = (s.norm.columns * 2 + LINE - 1) / LINE;
        for (int i = blockIdx.x; p && i < lines; i += gridDim.x) prefetch(p + i * LINE);
    }
}

/* One warp: weights, and what else is read once, in the order of the steps. */
__device__ __forceinline__ void stream_weights(const place &b)
{
    position at = {0, 1}; /* free at first */
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    reader ahead(b, b.c.first);
    for (int i = b.c.first; i < b.c.end; i++) {
        const mc_chain_step &s = *b.step(i);
        ahead.load(b, i + 1);
        prefetch_parameters(b, s);
        if (s.kind == MC_CHAIN_LINEAR && b.lane == 0) stream_weight(b, s, at, policy);
        __syncwarp();
        ahead.store(b, i + 1);
    }
}

} // namespace chain

#endif
