/* What the steps of a list (persistent.cu) share: the exchange of results between blocks, the ring
 * for weights, and rows in shared memory. */
#ifndef MC_DEVICE_HOPPER_PERSISTENT_CUH
#define MC_DEVICE_HOPPER_PERSISTENT_CUH

#include "core/device/hopper/decode/persistent_plan_internal.h"
#include "core/device/cuda/product/skinny_gemm.cuh"

namespace persistent
{

enum { THREADS = MC_PERSISTENT_THREADS, WARPS = THREADS / 32 }; /* compute */
enum { STREAMER = WARPS, PREFETCHER, MOST_WARPS };              /* two warps that load */
enum {
    EACH = 8,          /* a lane's terms of a product, and columns of a head */
    PARTS = 32,        /* of a segment's product: two a warp, the rest are zeros */
    PITCH = PARTS + 4, /* of PARTS in shared memory, in other banks for each segment */
    ENDING = 4,        /* threads that add up a segment's parts */
    SEGMENTS = 64      /* most segments added up together */
};
static_assert(2 * WARPS <= PARTS && SEGMENTS * ENDING <= THREADS, "a place for all");

enum {
    EPOCH = 0,
    EXITS = 32,
    ARRIVALS = 64,
    WORDS = 1024
}; /* places in mc_cuda_device.persistent */

struct call {
    int first, end;                  /* steps of the list that this launch runs */
    int slots, slot_bytes;           /* of the ring */
    int under_way, early;            /* tiles loaded at the same time; bytes of one more */
    int room;                        /* bytes prefetched into the L2 cache when the ring is full */
    int segments;                    /* added up together */
    int x_pitch, s_pitch, sums_size; /* elements of a row, and of sums in shared memory */
    /* offsets in a block's shared memory, after the ring: barriers of slots, shapes, steps, the
     * number of the step that runs, rows that linears read, residual sums, two buffers of parts of
     * products (rows, segments, PITCH), scratch (two times 16 pairs of sums of norms; two times 16
     * of attention, and (WARPS, head_dim)) */
    int barriers, shapes, steps, now, x, s, sums, scratch;
    uint32_t *memory;
    mc_persistent_list list;
};

/* ---- the exchange ---------------------------------------------------------------------------- */

/* Blocks exchange words: 16 bits of a number (high) and a tag (low). The tag says which step wrote
 * the word, so a reader polls for the number itself: one trip through the L2 cache instead of four,
 * for data, fence, counter and data. */
__device__ __forceinline__ uint4 load_words(const uint32_t *p)
{
    uint4 w;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(p)
                 : "memory");
    return w;
}
__device__ __forceinline__ void store_word(uint32_t *p, uint32_t bits, uint32_t tag)
{
    uint32_t word = bits << 16 | tag;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
}
__device__ __forceinline__ bool is_there(const uint4 &w, uint32_t tag)
{
    return (((w.x ^ tag) | (w.y ^ tag) | (w.z ^ tag) | (w.w ^ tag)) & 0xffff) == 0;
}
/* The high halves of two words. */
__device__ __forceinline__ uint32_t high_halves(uint32_t low, uint32_t high)
{
    return low >> 16 | (high & 0xffff0000u);
}
__device__ __forceinline__ uint2 quad_of(const uint4 &w)
{
    return make_uint2(high_halves(w.x, w.y), high_halves(w.z, w.w));
}
/* A 32-bit number takes two words. */
__device__ __forceinline__ float whole_of(uint32_t high, uint32_t low)
{
    return __uint_as_float((high & 0xffff0000u) | low >> 16);
}
__device__ __forceinline__ void store_whole(uint32_t *p, float x, uint32_t tag)
{
    store_word(p, __float_as_uint(x) >> 16, tag);
    store_word(p + 1, __float_as_uint(x) & 0xffff, tag);
}

/* ---- 16-bit numbers -------------------------------------------------------------------------- */

template <class T> __device__ __forceinline__ float wide(uint32_t bits)
{
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return __uint_as_float(bits << 16);
    return mc_unpack_f16(bits).x;
}
template <class T> __device__ __forceinline__ uint32_t pack(float low, float high)
{
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return mc_pack_bf16(low, high);
    return mc_pack_f16(low, high);
}
template <class T> __device__ __forceinline__ uint32_t narrow(float x)
{
    return pack<T>(x, 0.0f) & 0xffff;
}
template <class T> __device__ __forceinline__ void unpack(uint2 quad, float (&v)[4])
{
    v[0] = wide<T>(quad.x & 0xffff), v[1] = wide<T>(quad.x >> 16);
    v[2] = wide<T>(quad.y & 0xffff), v[3] = wide<T>(quad.y >> 16);
}
template <class T> __device__ __forceinline__ uint2 pack(const float (&v)[4])
{
    return make_uint2(pack<T>(v[0], v[1]), pack<T>(v[2], v[3]));
}

/* ---- a block --------------------------------------------------------------------------------- */

/* A block's share of a linear's rows, in tiles: see mc_persistent_divide. */
struct share {
    const char *weight; /* the first row */
    int first, rows, in, size, chunk, chunks, split;

    __device__ __forceinline__ explicit share(const mc_persistent_step &s)
    {
        const mc_persistent_linear &l = s.linear;
        const int shift = (int)(s.turn * gridDim.x / 8), from = (int)blockIdx.x - shift,
                  block = from < 0 ? from + (int)gridDim.x : from;
        first = block * l.each + min(block, (int)l.more);
        rows = l.each + (block < l.more);
        in = l.in;
        size = l.scale ? 1 : 2;
        chunk = l.chunk;
        chunks = s.chunks;
        split = s.split;
        weight = (const char *)l.weight + (int64_t)first * in * size;
    }
    __device__ __forceinline__ int tile_rows() const { return 16 / size >> split; }
    /* Terms of chunk k of a row. */
    __device__ __forceinline__ int terms(int k) const { return min(chunk, in - k * chunk); }
};

/* Chunk k of the rows from `row` on, at most a tile's: `copies` pieces of memory, `pitch` bytes
 * apart, which are contiguous in the ring. */
struct tile {
    const char *from;
    int copies, bytes, pitch;

    __device__ __forceinline__ tile(const share &h, int row, int k)
    {
        const int there = min(h.tile_rows(), h.rows - row);
        pitch = h.in * h.size;
        from = h.weight + (int64_t)row * pitch + k * h.chunk * h.size;
        bytes = h.terms(k) * h.size;
        copies = there;
        if (h.chunks > 1) return;
        bytes *= there;
        copies = 1;
    }
};

/* Offsets of a slot of the ring and of its barrier, and the parity of the passes through the
 * ring. */
struct position {
    int slot, barrier;
    uint32_t parity;

    __device__ __forceinline__ position next(const call &c) const
    {
        const bool last = barrier + 8 == c.slots * 8;
        return {last ? 0 : slot + c.slot_bytes, last ? 0 : barrier + 8, parity ^ (uint32_t)last};
    }
};

/* A barrier for the threads that compute. */
__device__ __forceinline__ void sync()
{
    asm volatile("bar.sync %0, %1;" ::"r"(1), "r"((int)THREADS) : "memory");
}

__device__ __forceinline__ char *shared_memory()
{
    extern __shared__ uint4 memory[];
    return (char *)memory;
}

/* A thread's position, and where it finds the block's memory. */
struct place {
    const call &c;
    int warp, lane, base; /* base: 0, see forget */
    uint32_t epoch;
    int half;    /* which buffer of parts of products is written next */
    int writer;  /* the block that writes results that all blocks have */
    position at; /* of the next tile */

    /* After a step the compiler must compute values derived from these anew: it would keep them for
     * the next step, for which there are too few registers. */
    __device__ __forceinline__ void forget()
    {
#ifdef __CUDA_ARCH__
        asm volatile("" : "+r"(warp), "+r"(lane), "+r"(base));
#endif
    }
    __device__ __forceinline__ char *memory() const { return shared_memory() + base; }
    __device__ __forceinline__ char *slot(const position &p) const { return memory() + p.slot; }
    __device__ __forceinline__ uint64_t *full(const position &p) const
    {
        return (uint64_t *)(memory() + c.barriers + p.barrier);
    }
    __device__ __forceinline__ uint64_t *empty(const position &p) const
    {
        return full(p) + c.slots;
    }
    __device__ __forceinline__ mc_persistent_shape *shape(int i) const
    {
        return (mc_persistent_shape *)(memory() + c.shapes) + i;
    }
    /* This warp's copy of step i, either the one that runs or the next. */
    __device__ __forceinline__ mc_persistent_step *step(int i) const
    {
        return (mc_persistent_step *)(memory() + c.steps) + 2 * warp + (i & 1);
    }
    __device__ __forceinline__ volatile int *now() const { return (int *)(memory() + c.now); }
    __device__ __forceinline__ uint16_t *x(int row) const
    {
        return (uint16_t *)(memory() + c.x) + row * c.x_pitch;
    }
    __device__ __forceinline__ uint16_t *s(int row) const
    {
        return (uint16_t *)(memory() + c.s) + row * c.s_pitch;
    }
    __device__ __forceinline__ float *sums() const
    {
        return (float *)(memory() + c.sums) + half * c.sums_size;
    }
    __device__ __forceinline__ float *scratch() const { return (float *)(memory() + c.scratch); }
    __device__ __forceinline__ uint32_t tag(int step) const { return epoch + 1 + step; }
    __device__ __forceinline__ uint32_t *words(int slot) const
    {
        return c.memory + WORDS + slot * MC_PERSISTENT_SLOT_WORDS;
    }
    /* Whether this block writes the results that all blocks have. */
    __device__ __forceinline__ bool writes() const { return writer == (int)blockIdx.x; }
};

/* Reads steps ahead, since the list is in memory: each warp keeps this step and the next in shared
 * memory of its own, so that it need not wait for other warps. */
struct reader {
    const uint32_t *list;
    uint32_t word; /* this lane's, of the next step */

    enum { STEP_WORDS = sizeof(mc_persistent_step) / 4 };

    __device__ __forceinline__ reader(const place &b, int first)
    {
        list = (const uint32_t *)b.c.list.step;
#ifdef __CUDA_ARCH__
        asm volatile("" : "+l"(list)); /* by address: the constant cache is slower */
#endif
        load(b, first);
        store(b, first);
    }
    __device__ __forceinline__ void load(const place &b, int step)
    {
        if (b.lane < STEP_WORDS && step < b.c.end) word = list[step * STEP_WORDS + b.lane];
    }
    __device__ __forceinline__ void store(const place &b, int step)
    {
        if (b.lane < STEP_WORDS) ((uint32_t *)b.step(step))[b.lane] = word;
        __syncwarp();
    }
};

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Rows that a step reads, in quads of four numbers. */
struct input {
    const char *data; /* global or shared memory; NULL: the exchange */
    int stride;       /* bytes in memory, words in the exchange */
    const uint32_t *words;
    uint32_t tag;
    bool shared;
};

__device__ __forceinline__ input resident(const uint16_t *rows, int pitch)
{
    return {(const char *)rows, pitch * 2, NULL, 0, true};
}

/* Results of few rows are published in several copies, each for some of the blocks: all read the
 * same lines at the same time, and the L2 cache answers one block after the other. */
enum { MOST_COPIES = 4 };
__device__ __forceinline__ unsigned copies_of(int rows)
{
    return rows == 1 ? MOST_COPIES : rows == 2 ? 2 : 1;
}

/* Input i of a step. */
__device__ __forceinline__ input input_of(const place &b, const mc_persistent_step &s, int i,
                                          const void *data, int stride)
{
    if (s.from[i] < 0) return {(const char *)data, stride * 2, NULL, 0, false};
    constexpr int SLOT = MC_PERSISTENT_WIDEST / 4;
    const uint32_t *words = b.words(s.at[i] / SLOT) + s.at[i] % SLOT * 4;
    words += (blockIdx.x & (copies_of(s.rows) - 1)) * s.rows * MC_PERSISTENT_WIDEST;
    return {NULL, MC_PERSISTENT_WIDEST, words, b.tag(s.from[i]), false};
}

/* Loads quads first, first + THREADS, ... below `quads` of the rows, all at the same time; zeros
 * for others. */
template <int N, int ROWS>
__device__ __forceinline__ void fetch(const input &in, int first, int quads, int rows,
                                      uint2 (&v)[N][ROWS])
{
    auto wanted = [=](int e, int q) { return first + e * THREADS < quads && q < rows; };
    if (in.data) {
        const uint2 *p = (const uint2 *)in.data + first;
#pragma unroll
        for (int e = 0; e < N; e++)
#pragma unroll
            for (int q = 0; q < ROWS; q++) {
                const uint2 *at = p + e * THREADS + q * (in.stride / 8);
                v[e][q] = make_uint2(0, 0);
                if (wanted(e, q)) v[e][q] = in.shared ? *at : __ldcg(at);
            }
        return;
    }
    const uint32_t *p = in.words + 4 * first;
    uint4 w[N][ROWS];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int e = 0; e < N; e++)
#pragma unroll
            for (int q = 0; q < ROWS; q++) {
                w[e][q] = make_uint4(in.tag, in.tag, in.tag, in.tag);
                if (wanted(e, q)) w[e][q] = load_words(p + e * 4 * THREADS + q * in.stride);
            }
#pragma unroll
        for (int e = 0; e < N; e++)
#pragma unroll
            for (int q = 0; q < ROWS; q++) there &= is_there(w[e][q], in.tag);
    } while (!there);
#pragma unroll
    for (int e = 0; e < N; e++)
#pragma unroll
        for (int q = 0; q < ROWS; q++) v[e][q] = quad_of(w[e][q]);
}

} // namespace persistent

#endif
