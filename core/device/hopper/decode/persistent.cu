/* A generation step in one kernel: see persistent_internal.h. Most of its time is spent reading
 * weights, so they come in one stream that never stops: in each block one warp has the copy engine
 * load the next tiles into a ring in shared memory, as far ahead as the ring has room, whatever the
 * other warps wait for. A block's share of a weight is known from the beginning: some whole rows,
 * each a column of the result. Another warp prefetches other data that is read once into the L2
 * cache.
 *
 * The other warps compute. Each multiplies some terms of every tile of weights
 * (persistent_linear.cuh) and keeps its sum for each row. After all of the block's rows, or 64 of
 * them, four threads a row add the sums up, round and publish the result (exchange,
 * persistent.cuh); the next step polls for the numbers it needs. So no block waits until all others
 * have finished a step, and a sum reaches its readers soon. Norms, residual sums and gates are not
 * divided among blocks: each has the whole rows in its shared memory and computes them for itself.
 *
 * Words of the exchange are reused after MC_PERSISTENT_SLOTS results. The plan makes sure that no
 * block still waits for the old ones (persistent_plan.c). */
#include "core/device/hopper/decode/persistent_attention.cuh"
#ifndef MC_SIM_H
#include "core/device/hopper/decode/persistent_ring.cuh"
#else

namespace persistent
{

/* Without a copy engine all threads load each tile themselves. */
enum { HELPERS = 0 };
__device__ void open_ring(const place &) {}
__device__ bool help(const place &) { return false; }
constexpr float FP8_UNIT = mc_quantized_unit<__half, MC_WEIGHTS_FP8>;
__device__ void widen_fp8(uint32_t word, uint32_t &low, uint32_t &high)
{
    low = mc_widen<__half, MC_WEIGHTS_FP8>(word, 0);
    high = mc_widen<__half, MC_WEIGHTS_FP8>(word, 1);
}
__device__ const char *wait_for_tile(const place &, const position &, const share &h, int row,
                                     int k)
{
    const tile t(h, row, k);
    sync();
    for (int i = threadIdx.x * 16; i < t.copies * t.bytes; i += THREADS * 16)
        *(uint4 *)(shared_memory() + i) =
            *(const uint4 *)(t.from + i / t.bytes * t.pitch + i % t.bytes);
    sync();
    return shared_memory();
}
__device__ bool has_come(const place &, const position &) { return false; }
__device__ void release(const place &, const position &) {}

} // namespace persistent
#endif
#include "core/device/hopper/decode/persistent_linear.cuh"

namespace persistent
{

/* ---- sums over a block ----------------------------------------------------------------------- */

/* Two sums over the block, for all threads. `shared` may be reused after the next barrier. */
__device__ __forceinline__ float2 block_sums(float x, float y, float2 *shared)
{
    x = mc_warp_sum(x), y = mc_warp_sum(y);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = make_float2(x, y);
    sync();
    float2 total = shared[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) total.x += shared[i].x, total.y += shared[i].y;
    return total;
}

/* ---- norms, residual sums, gates ------------------------------------------------------------- */

/* The N quads of a norm's parameters that a thread needs, loaded before the row has arrived. */
template <int N>
__device__ __forceinline__ void load_parameters(const void *p, int quads, uint2 (&v)[N])
{
#pragma unroll
    for (int e = 0; e < N; e++) {
        int i = (int)threadIdx.x + e * THREADS;
        v[e] = p && i < quads ? __ldg((const uint2 *)p + i) : make_uint2(0, 0);
    }
}

/* Stores this thread's quads of a row in shared memory (residual sums, or rows for linears) and, if
 * `also` is not NULL, in memory. */
template <class T, int N>
__device__ __forceinline__ void keep_quads(uint16_t *to, void *also, int quads,
                                           const float (&v)[N][4])
{
#pragma unroll
    for (int e = 0; e < N; e++) {
        int i = (int)threadIdx.x + e * THREADS;
        if (i >= quads) continue;
        const uint2 bits = pack<T>(v[e]);
        ((uint2 *)to)[i] = bits;
        if (also) ((uint2 *)also)[i] = bits;
    }
}

__device__ __forceinline__ input row_of(input in, int q)
{
    if (in.data)
        in.data += q * in.stride;
    else
        in.words += q * in.stride;
    return in;
}

/* The variance comes from the sum and the sum of squares, in one pass. In a row far from zero this
 * loses less than its 16-bit numbers have lost already. */
template <class T, int N>
__device__ __forceinline__ void norm_row(place &b, const mc_persistent_norm &n, int q, bool writes,
                                         const input &x, const input &f, const uint2 (&weight)[N],
                                         const uint2 (&bias)[N])
{
    const int quads = n.columns / 4, first = (int)threadIdx.x;
    const float per_column = __fdividef(1.0f, (float)n.columns);
    uint2 xs[N][1], fs[N][1];
    float v[N][4] = {}, sum = 0.0f, squares = 0.0f;
    fetch(row_of(x, q), first, quads, 1, xs);
    if (n.f) fetch(row_of(f, q), first, quads, 1, fs);
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (first + e * THREADS >= quads) continue;
        float add[4];
        unpack<T>(xs[e][0], v[e]);
        if (n.f) {
            unpack<T>(fs[e][0], add);
#pragma unroll
            for (int k = 0; k < 4; k++) v[e][k] = wide<T>(narrow<T>(v[e][k] + add[k]));
        }
#pragma unroll
        for (int k = 0; k < 4; k++) sum += v[e][k], squares = fmaf(v[e][k], v[e][k], squares);
    }
    void *s = writes && n.s ? (char *)n.s + (int64_t)q * n.columns * 2 : NULL;
    keep_quads<T>(b.s(q), s, quads, v);
    if (!n.weight) return; /* a residual sum without a norm */
    const float2 sums = block_sums(sum, squares, (float2 *)b.scratch() + q % 2 * 16);
    const float mean = n.bias ? sums.x * per_column : 0.0f,
                rstd = rsqrtf(fmaxf(sums.y * per_column - mean * mean, 0.0f) + n.eps);
#pragma unroll
    for (int e = 0; e < N; e++) {
        float w[4], o[4];
        unpack<T>(weight[e], w);
        unpack<T>(bias[e], o);
#pragma unroll
        for (int k = 0; k < 4; k++) v[e][k] = (v[e][k] - mean) * rstd * w[k] + o[k];
    }
    void *y = writes && n.y ? (char *)n.y + (int64_t)q * n.columns * 2 : NULL;
    keep_quads<T>(b.x(q), y, quads, v);
}

template <class T, int ROWS, int N> __device__ void run_norm(place &b, const mc_persistent_step &s)
{
    const mc_persistent_norm &n = s.norm;
    const bool sum_alone = !n.weight;
    uint2 weight[N], bias[N];
    load_parameters(n.weight, n.columns / 4, weight);
    load_parameters(n.bias, n.columns / 4, bias);
    const input x = s.from[0] == MC_PERSISTENT_RESIDENT ? resident(b.s(0), b.c.s_pitch)
                                                        : input_of(b, s, 0, n.x, n.columns);
    const input f = input_of(b, s, 1, n.f, n.columns);
#pragma unroll 1
    for (int q = 0; q < s.rows; q++) norm_row<T>(b, n, q, b.writes(), x, f, weight, bias);
    if (sum_alone) return; /* each thread reads only those of s that it wrote */
    for (int q = s.rows; q < ROWS; q++) {
        const float zeros[N][4] = {};
        keep_quads<T>(b.x(q), NULL, n.columns / 4, zeros);
    }
    sync();
}

template <class T, int ROWS> __device__ void run_gated(place &b, const mc_persistent_step &s)
{
    constexpr int N = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;
    const mc_persistent_gated &g = s.gated;
    const int quads = g.n / 4;
    const input left = input_of(b, s, 0, g.x, g.x_stride);
    input right = left;
    if (left.data)
        right.data += g.n * 2;
    else
        right.words += g.n;
    sync();
#pragma unroll 1
    for (int first = threadIdx.x; first < quads; first += N * THREADS) {
        uint2 x[N][ROWS], y[N][ROWS];
        fetch(left, first, quads, s.rows, x);
        fetch(right, first, quads, s.rows, y);
#pragma unroll
        for (int e = 0; e < N; e++)
#pragma unroll
            for (int q = 0; q < ROWS; q++) {
                const int i = first + e * THREADS;
                float v[4], w[4];
                if (i >= quads) continue;
                unpack<T>(x[e][q], v);
                unpack<T>(y[e][q], w);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    v[k] = mc_few_activated((mc_activation)s.activation, v[k]) * w[k];
                const uint2 bits = pack<T>(v);
                ((uint2 *)b.x(q))[i] = bits;
                if (q < s.rows && b.writes())
                    *(uint2 *)((uint16_t *)g.y + (int64_t)q * g.y_stride + 4 * i) = bits;
            }
    }
    sync();
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Waits until all blocks have finished all preceding steps. */
__device__ void wait_for_grid(const place &b, int barriers)
{
    sync();
    if (threadIdx.x == 0) {
        unsigned *arrivals = b.c.memory + ARRIVALS;
        __threadfence();
        atomicAdd(arrivals, 1u);
        while (*(volatile unsigned *)arrivals < (unsigned)barriers * gridDim.x) {
        }
        __threadfence();
    }
    sync();
}

/* The last block to finish prepares the exchange for the next launch, which needs new tags. */
__device__ void leave(const place &b)
{
    __shared__ bool last;
    sync();
    uint32_t *memory = b.c.memory, next = b.epoch + b.c.list.count;
    const bool wraps = next + 2 * MC_PERSISTENT_MOST > 0xffff;
    if (threadIdx.x == 0) {
        last = atomicAdd(memory + EXITS, 1u) == gridDim.x - 1;
        if (last) {
            memory[EXITS] = memory[ARRIVALS] = 0;
            memory[EPOCH] = wraps ? 0 : next;
        }
    }
    if (!wraps) return;
    sync();
    for (int i = threadIdx.x; last && i < (MC_PERSISTENT_SLOTS + 1) * MC_PERSISTENT_SLOT_WORDS;
         i += THREADS)
        memory[WORDS + i] = 0;
}

template <class T, int ROWS> __device__ __forceinline__ void run_steps(place &b)
{
    const call &c = b.c;
    int barriers = 0;
    reader ahead(b, c.first);
    for (int i = c.first; i < c.end; i++) {
        b.forget();
        if (threadIdx.x == 0) *b.now() = i;
        const mc_persistent_step &s = *b.step(i);
        ahead.load(b, i + 1);
        if (s.barrier && i > c.first) wait_for_grid(b, ++barriers);
        const int kind = s.skip ? -1 : s.kind;
        switch (kind) {
        case MC_PERSISTENT_LINEAR: run_linear<T, ROWS>(b, s, i); break;
        case MC_PERSISTENT_NORM:
            if (s.norm.columns <= 2 * 4 * THREADS)
                run_norm<T, ROWS, 2>(b, s);
            else
                run_norm<T, ROWS, 5>(b, s);
            break;
        case MC_PERSISTENT_GATED: run_gated<T, ROWS>(b, s); break;
        case MC_PERSISTENT_ROTARY: run_rotary<T>(s); break;
        case MC_PERSISTENT_ATTENTION: run_attention<T>(b, s, i); break;
        }
        ahead.store(b, i + 1);
        b.writer = b.writer + 1 < (int)gridDim.x ? b.writer + 1 : 0;
    }
    if (c.end == c.list.count) leave(b);
}

template <class T, int ROWS>
__global__ void __launch_bounds__(THREADS + HELPERS, 1)
    persistent_kernel(const __grid_constant__ call c)
{
#if defined(MC_SIM_H) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
    place b = {c, (int)threadIdx.x / 32, (int)threadIdx.x % 32, 0, 0, 0, 0, {0, 0, 0}};
    for (int i = threadIdx.x; i < (int)(sizeof c.list.shape / 4); i += blockDim.x)
        ((uint32_t *)b.shape(0))[i] = ((const uint32_t *)c.list.shape)[i];
    for (int i = threadIdx.x; i < 2 * c.sums_size; i += blockDim.x) b.sums()[i] = 0.0f;
    if (threadIdx.x == 0) *b.now() = c.first;
    open_ring(b);
    __syncthreads();
    if (help(b)) return;
    b.epoch = __ldcg(c.memory + EPOCH);
    run_steps<T, ROWS>(b);
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

/* What a list needs of a block's shared memory besides the ring. */
struct needs {
    int rows = 1, x = 8, s = 8, head_dim = 8, shortest = 1 << 20; /* shortest: terms of a row */
};

needs needs_of(const mc_persistent_list &list)
{
    needs n;
    for (int i = 0; i < list.count; i++) {
        const mc_persistent_step &s = list.step[i];
        if (s.rows > n.rows) n.rows = s.rows > 2 ? 4 : 2;
        if (s.kind == MC_PERSISTENT_LINEAR) {
            n.x = (int)mc_most(n.x, s.linear.in);
            n.shortest = (int)mc_least(n.shortest, s.linear.in);
        } else if (s.kind == MC_PERSISTENT_NORM) {
            n.x = (int)mc_most(n.x, s.norm.columns);
            n.s = (int)mc_most(n.s, s.norm.columns);
        } else if (s.kind == MC_PERSISTENT_GATED) {
            n.x = (int)mc_most(n.x, s.gated.n);
        } else if (s.kind == MC_PERSISTENT_ATTENTION) {
            n.head_dim = (int)mc_most(n.head_dim, list.shape[s.attention.shape].head_dim);
        }
    }
    return n;
}

/* Places everything else after the ring, as offsets from its end. Returns the bytes. */
int lay_out(call *c, const needs &n)
{
    c->x_pitch = (int)mc_ceil_div(n.x, 8) * 8;
    c->s_pitch = (int)mc_ceil_div(n.s, 8) * 8;
    c->sums_size = c->segments * PITCH * n.rows;
    c->shapes = 0;
    c->steps = c->shapes + (int)sizeof c->list.shape;
    c->now = c->steps + 2 * MOST_WARPS * (int)sizeof(mc_persistent_step);
    c->x = c->now + 16;
    c->s = c->x + 2 * n.rows * c->x_pitch;
    c->sums = (int)mc_ceil_div(c->s + 2 * n.rows * c->s_pitch, 16) * 16;
    c->scratch = c->sums + 2 * c->sums_size * (int)sizeof(float);
    return c->scratch + (int)sizeof(float) * (96 + WARPS * n.head_dim) + 3 * 2 * n.head_dim;
}

enum { LEAST_TERMS = 512, FEWEST_TERMS = 128, LEAST_SLOTS = 3, MOST_SLOTS = 64 };
enum { UNDER_WAY = 58 << 10, FEWER_UNDER_WAY = 46 << 10, ROOM = 128 << 10 }; /* bytes */

/* Bytes of a block's average share of a weight. */
double mean_share(const mc_persistent_list &list, int blocks)
{
    double bytes = 0, weights = 0;
    for (int i = 0; i < list.count; i++) {
        const mc_persistent_step &s = list.step[i];
        if (s.kind != MC_PERSISTENT_LINEAR) continue;
        bytes += (double)s.linear.in * s.linear.out * (s.linear.scale ? 1 : 2);
        weights++;
    }
    return weights ? bytes / weights / blocks : 0;
}

/* How much is loaded ahead. A ring that holds a layer is always filled in time. If it holds less
 * than one weight, memory is the limit. Between the two it is full while blocks wait for each
 * other, and empty soon after: then more is prefetched into the L2 cache, and fewer bytes are
 * loaded at the same time so that the blocks' exchange is not delayed. */
void choose_rate(call *c, int blocks)
{
    const double share = mean_share(c->list, blocks), ring = (double)c->slots * c->slot_bytes;
    int tiles = (int)mc_most(2, (UNDER_WAY + c->slot_bytes / 2) / c->slot_bytes);
    if (share > ring / 4 && share < ring) {
        tiles = (int)mc_most(1, FEWER_UNDER_WAY / c->slot_bytes);
        c->early = (int)mc_most(0, FEWER_UNDER_WAY - tiles * c->slot_bytes) / 128 * 128;
        c->room = ROOM;
    }
    c->under_way = (int)mc_least(tiles, c->slots);
}

/* The ring gets the memory that is left. A slot holds a tile of the weight with the shortest rows,
 * whole ones; others are divided into tiles of about this size, so that little of the ring is
 * unused. Returns all bytes of shared memory, or 0 if there is too little. */
size_t divide_memory(mc_device *d, call *c, int *rows)
{
    const needs n = needs_of(c->list);
    int terms = (int)mc_least(mc_most(n.shortest, LEAST_TERMS), MC_PERSISTENT_SEGMENT) / 16 * 16;
    int rest = 0;
    *rows = n.rows;
    c->segments = SEGMENTS;
    while (terms >= FEWEST_TERMS) {
        rest = lay_out(c, n);
        const int tile = mc_persistent_divide(&c->list, mc_cuda_of(d)->multiprocessors, terms);
        c->slot_bytes = (int)mc_ceil_div(mc_most(tile, 1), 128) * 128;
        c->slots = (int)mc_least((mc_shared_limit(d) - rest) / (c->slot_bytes + 16), MOST_SLOTS);
        if (c->slots >= LEAST_SLOTS) break;
        c->segments = (int)mc_most(16, c->segments / 2);
        terms = terms / 32 * 16;
    }
    if (c->slots < LEAST_SLOTS) return 0;
    c->barriers = c->slots * c->slot_bytes;
    choose_rate(c, mc_cuda_of(d)->multiprocessors);
    const int behind = c->barriers + 16 * c->slots;
    for (int *at : {&c->shapes, &c->steps, &c->now, &c->x, &c->s, &c->sums, &c->scratch})
        *at += behind;
    return (size_t)(behind + rest);
}

template <class T, int ROWS> void launch(mc_device *d, const call &c, size_t bytes)
{
    auto kernel = persistent_kernel<T, ROWS>;
    const unsigned blocks = (unsigned)mc_cuda_of(d)->multiprocessors;
    mc_allow_shared(kernel, bytes);
#ifdef MC_SIM_H
    kernel<<<blocks, THREADS, bytes, mc_cuda_of(d)->stream>>>(c);
#else
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = THREADS + HELPERS;
    config.dynamicSmemBytes = bytes;
    config.stream = mc_cuda_of(d)->stream;
    config.attrs = &together;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, c);
#endif
}

template <class T> void launch_rows(mc_device *d, const call &c, size_t bytes, int rows)
{
    if (rows == 1)
        launch<T, 1>(d, c, bytes);
    else if (rows == 2)
        launch<T, 2>(d, c, bytes);
    else
        launch<T, 4>(d, c, bytes);
}

} // namespace persistent

extern "C" mc_status mc_persistent_launch(mc_device *d, const mc_persistent_list *list,
                                          bool together)
{
    persistent::call c = {};
    int rows;
    c.list = *list;
    size_t bytes = persistent::divide_memory(d, &c, &rows);
    if (!bytes)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "rows too long for a step in one kernel");
    c.memory = (uint32_t *)mc_cuda_of(d)->persistent;
    for (c.first = 0; c.first < list->count; c.first = c.end) {
        c.end = mc_persistent_range(list, c.first, together);
        if (list->step[0].dtype == MC_BF16)
            persistent::launch_rows<__nv_bfloat16>(d, c, bytes, rows);
        else
            persistent::launch_rows<__half>(d, c, bytes, rows);
    }
    return mc_cuda_launched(d, "a step of generation in one kernel");
}
