/* The ring of a list's weights, filled by Hopper's copy engine: one thread of a block requests
 * tiles as far ahead as slots are free, whatever the other warps wait for. A tile takes this thread
 * 270 cycles or more, so tiles are large. What does not fit the ring may be prefetched into the L2
 * cache. */
#ifndef MC_DEVICE_HOPPER_PERSISTENT_RING_CUH
#define MC_DEVICE_HOPPER_PERSISTENT_RING_CUH

#include "core/device/hopper/decode/persistent_attention.cuh"
#include "core/device/hopper/instructions.cuh"

namespace persistent
{

enum { HELPERS = 32 * (MOST_WARPS - WARPS) }; /* threads */

__device__ __forceinline__ void open_ring(const place &b)
{
    for (int i = threadIdx.x; i < b.c.slots; i += blockDim.x) {
        hopper::barrier_init(hopper::shared_address(b.full({0, 8 * i, 0})), 1);
        hopper::barrier_init(hopper::shared_address(b.empty({0, 8 * i, 0})), WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Whether a tile has arrived; below, the wait for it by all warps. */
__device__ __forceinline__ bool has_come(const place &b, const position &at)
{
    return hopper::barrier_is_over(hopper::shared_address(b.full(at)), at.parity);
}

__device__ __forceinline__ const char *wait_for_tile(const place &b, const position &at,
                                                     const share &, int, int)
{
    hopper::barrier_wait(hopper::shared_address(b.full(at)), at.parity);
    return b.slot(at);
}
__device__ __forceinline__ void release(const place &b, const position &at)
{
    __syncwarp();
    if (b.lane == 0) hopper::barrier_arrive(hopper::shared_address(b.empty(at)));
}

/* Weights are read once: the policy leaves the L2 cache to data that is read again. */
__device__ __forceinline__ void copy_piece(uint32_t to, const char *from, int bytes,
                                           uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* Prefetches tiles into the L2 cache while the ring is full, from where they come sooner. A piece
 * is requested every few nanoseconds, so that requests don't queue. */
struct waiting_room {
    enum { PIECE = 6400 /* bytes */, EVERY = 160 };
    const char *now, *then;    /* the weight whose tiles are loaded, and the next one */
    int now_bytes, then_bytes; /* 0: no weight, or one that is not prefetched */
    int now_there, then_there; /* bytes in the L2 cache */
    int asked;                 /* bytes in the ring, or requested for it */

    /* Rows in chunks are loaded in another order, and not prefetched. */
    __device__ __forceinline__ static int bytes_of(const share &h)
    {
        return h.chunks > 1 ? 0 : h.rows * h.in * h.size;
    }
    __device__ __forceinline__ void begin(const share &h, const mc_persistent_step *next)
    {
        now = h.weight, now_bytes = bytes_of(h), now_there = then_there;
        then_bytes = then_there = asked = 0;
        if (!next) return;
        const share behind(*next);
        then = behind.weight, then_bytes = bytes_of(behind);
    }
    __device__ __forceinline__ void fetch_piece(const char *weight, int bytes, int &there)
    {
        const int count = min((int)PIECE, bytes - there);
        if (count <= 0) return;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(weight + there), "r"(count)
                     : "memory");
        there += count;
    }
    /* Prefetches until a slot is free. */
    __device__ __forceinline__ void wait(const place &b, uint32_t barrier, uint32_t parity)
    {
        while (!hopper::barrier_wait_for(barrier, parity, EVERY)) {
            now_there = max(now_there, asked);
            if (now_there + then_there - asked >= b.c.room) continue;
            if (now_there < now_bytes)
                fetch_piece(now, now_bytes, now_there);
            else
                fetch_piece(then, then_bytes, then_there);
        }
    }
};

/* One thread's place in the ring, and the oldest tile that may still be loading. It loads only as
 * many bytes at the same time as keep the memory busy: further requests would queue, and delay the
 * blocks' exchange. (With 175 KB a multiprocessor a word takes 2,600 cycles through the L2 cache,
 * with 50 KB 600, with none 460; both sizes load 17 bytes a cycle.)
 *
 * ROOM: whether to prefetch into the L2 cache while the ring is full. Where that is no use, the
 * time it takes this thread would make GPT-2 124M 2 % slower. */
template <bool ROOM> struct streamer {
    position at = {0, 0, 1} /* free at first */, oldest = {0, 0, 0};
    int under_way = 0;
    const uint64_t policy = hopper::read_once();
    waiting_room later = {};

    __device__ __forceinline__ void wait_for_few(const place &b, int most)
    {
        for (; under_way > most; under_way--) {
            hopper::barrier_wait(hopper::shared_address(b.full(oldest)), oldest.parity);
            oldest = oldest.next(b.c);
        }
    }
    /* Requests the whole tile as soon as few others are loading. */
    __device__ __forceinline__ void ask(const place &b, const tile &t, uint32_t full, uint32_t to)
    {
        wait_for_few(b, b.c.under_way - 1);
        hopper::barrier_expect(full, t.copies * t.bytes);
        for (int i = 0; i < t.copies; i++)
            copy_piece(to + i * t.bytes, t.from + i * t.pitch, t.bytes, full, policy);
    }
    /* Requests `early` bytes of a one-piece tile while one tile too many is loading. */
    __device__ __forceinline__ void ask_early(const place &b, const tile &t, int early,
                                              uint32_t full, uint32_t to)
    {
        wait_for_few(b, b.c.under_way);
        hopper::barrier_expect(full, t.bytes);
        copy_piece(to, t.from, early, full, policy);
        wait_for_few(b, b.c.under_way - 1);
        if (early < t.bytes) copy_piece(to + early, t.from + early, t.bytes - early, full, policy);
    }
    __device__ __forceinline__ void fetch(const place &b, const tile &t)
    {
        const uint32_t full = hopper::shared_address(b.full(at)),
                       empty = hopper::shared_address(b.empty(at)),
                       to = hopper::shared_address(b.slot(at));
        if constexpr (ROOM) {
            later.wait(b, empty, at.parity);
            later.asked += t.copies * t.bytes;
            const int early = t.copies == 1 ? min(b.c.early, t.bytes) : 0;
            if (early)
                ask_early(b, t, early, full, to);
            else
                ask(b, t, full, to);
        } else {
            wait_for_few(b, b.c.under_way - 1);
            hopper::barrier_wait(empty, at.parity);
            ask(b, t, full, to);
        }
        at = at.next(b.c);
        under_way++;
    }
    /* Loads the block's tiles of a weight in the order in which they are needed; next: the next
     * weight, or NULL. */
    __device__ __forceinline__ void run(const place &b, const mc_persistent_step &s,
                                        const mc_persistent_step *next)
    {
        const share h(s);
        const int most = b.c.segments >> h.split;
        if (ROOM) later.begin(h, next);
        for (int first = 0; first < h.rows; first += most)
            for (int k = 0; k < h.chunks; k++)
                for (int row = first; row < min(first + most, h.rows); row += h.tile_rows())
                    fetch(b, tile(h, row, k));
    }
};

__device__ __forceinline__ void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Converts four E4M3 numbers to pairs of f16, exactly, divided by FP8_UNIT. */
constexpr float FP8_UNIT = 1.0f;
__device__ __forceinline__ void widen_fp8(uint32_t word, uint32_t &low, uint32_t &high)
{
    asm("{\n"
        ".reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(word));
}

constexpr int LINE = 128; /* bytes of a prefetch */

/* Prefetches the keys and values that this block reads first. */
__device__ __forceinline__ void prefetch_cache(const place &b, const mc_persistent_step &s)
{
    const mc_persistent_attention &a = s.attention;
    const mc_persistent_shape &h = *b.shape(a.shape);
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

/* Prefetches small parameters into the L2 cache long before they are needed: a linear's by the
 * block that needs them; a norm's, which all blocks need, are divided among them. */
__device__ __forceinline__ void prefetch_parameters(const place &b, const mc_persistent_step &s)
{
    if (s.kind == MC_PERSISTENT_ATTENTION) prefetch_cache(b, s);
    if (s.kind == MC_PERSISTENT_LINEAR) {
        const share h(s);
        for (int i = b.lane * LINE; i < h.rows * 4 + LINE; i += 32 * LINE) {
            const int in_scale = min(i, h.rows * 4 - 4), in_bias = min(i, h.rows * 2 - 2);
            if (s.linear.scale) prefetch((const char *)(s.linear.scale + h.first) + in_scale);
            if (s.linear.bias) prefetch((const uint16_t *)s.linear.bias + h.first + in_bias / 2);
        }
    } else if (s.kind == MC_PERSISTENT_NORM && s.norm.weight && b.lane < 2) {
        const char *p = (const char *)(b.lane ? s.norm.bias : s.norm.weight);
        const int lines = (s.norm.columns * 2 + LINE - 1) / LINE;
        for (int i = blockIdx.x; p && i < lines; i += gridDim.x) prefetch(p + i * LINE);
    }
}

/* One warp loads the list's linears in order. With ROOM it reads the next one's step, too. */
template <bool ROOM> __device__ __forceinline__ void stream_weights(const place &b)
{
    streamer<ROOM> own;
    reader ahead(b, b.c.first);
    int i = b.c.first, place = i;
    if (b.step(place)->kind != MC_PERSISTENT_LINEAR) {
        i = b.step(place)->next;
        __syncwarp();
        ahead.load(b, i);
        ahead.store(b, place);
    }
    if (ROOM) ahead.load(b, b.step(place)->next);
    for (; i < b.c.end; place++) {
        const int next = b.step(place)->next;
        const mc_persistent_step *behind = NULL;
        if (ROOM) {
            ahead.store(b, place + 1);
            if (next < b.c.end) behind = b.step(place + 1);
            if (behind) ahead.load(b, behind->next);
        } else {
            ahead.load(b, next);
        }
        if (b.lane == 0) own.run(b, *b.step(place), behind);
        __syncwarp();
        if (!ROOM) ahead.store(b, place + 1);
        i = next;
    }
}

/* Another warp prefetches other data that is read once, about a layer ahead. */
__device__ __forceinline__ void prefetch_others(const place &b)
{
    enum { AHEAD = 8 };
    reader ahead(b, b.c.first);
    for (int i = b.c.first; i < b.c.end; i++) {
        while (*b.now() + AHEAD < i) __nanosleep(200);
        ahead.load(b, i + 1);
        prefetch_parameters(b, *b.step(i));
        ahead.store(b, i + 1);
    }
}

/* The work of the warps that do not compute. */
__device__ __forceinline__ bool help(const place &b)
{
    if (b.warp == STREAMER && b.c.room) stream_weights<true>(b);
    if (b.warp == STREAMER && !b.c.room) stream_weights<false>(b);
    if (b.warp == PREFETCHER) prefetch_others(b);
    return b.warp >= WARPS;
}

} // namespace persistent

#endif
