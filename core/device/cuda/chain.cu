/* A step of generation in one kernel: see chain_internal.h. What takes time is reading weights, in
 * one stream that never stops: of each block one warp tells the copy engine what to load next, into
 * a ring in shared memory, as far ahead as the ring reaches, whatever the others wait for. What a
 * block has of a weight is known from the beginning: some whole rows, a column of the result each.
 *
 * The other warps compute. A row of a weight is multiplied by one warp; when the block's rows are
 * done, or 120 of them, a thread each adds up, rounds and publishes the numbers (exchange,
 * chain.cuh); the next step polls for what it needs. So no block waits for all others to have
 * ended a step, and the way from a sum to those who need it is short. Norms, residual sums and
 * gates take no step of their own: each block has the whole rows in its shared memory, and
 * computes them for itself.
 *
 * Words of the exchange are used again after MC_CHAIN_SLOTS results. That nobody waits for the old
 * ones any more is the plan's to see to (chain_plan.c). */
#include "core/device/cuda/chain_attention.cuh"
#ifndef MC_SIM_H
#include "core/device/cuda/chain_hopper.cuh"
#else

namespace chain
{

/* Without a copy engine weights are read where they are. */
enum { STREAMERS = 0 };
__device__ void open_ring(const place &) {}
__device__ bool is_streamer(const place &) { return false; }
__device__ void stream_weights(const place &) {}
__device__ const char *wait_for_chunk(const place &, const position &, const char *from)
{
    return from;
}
__device__ void release(const place &, const position &) {}

} // namespace chain
#endif

namespace chain
{

/* ---- sums over a block ------------------------------------------------------------------------ */

/* All threads get it. `shared` may be used again after the barrier behind this one. */
__device__ __forceinline__ float block_sum(float x, float *shared)
{
    x = mc_warp_sum(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    sync();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) total += shared[i];
    return total;
}

/* ---- linears ----------------------------------------------------------------------------------- */

/* Tensor cores add up the products. They multiply 16 rows by 8 columns of 16 terms: here row i and
 * row i + 8 are eighth i of 256 terms of a weight's row, pairs 0 and 2, 1 and 3 of each lane's eight,
 * and column i is that eighth of x. What counts is on diagonals: of the rows up to 7 where x has pairs
 * 0 and 2, sum[0]; of the others where it has pairs 1 and 3, sum[1]. So words are operands in the order
 * in which they are loaded. */
template <class T, int ROWS>
__device__ __forceinline__ void multiply(float (&sum)[2][ROWS][4], const uint32_t (&w)[4],
                                         const uint4 (&x)[ROWS])
{
#pragma unroll
    for (int q = 0; q < ROWS; q++) {
        mc_few_multiply<T>(sum[0][q], w[0], w[1], w[2], w[3], x[q].x, x[q].y);
        mc_few_multiply<T>(sum[1][q], w[0], w[1], w[2], w[3], x[q].z, x[q].w);
    }
}

/* Eight terms a lane. */
template <class T, int FORMAT>
__device__ __forceinline__ void load_weight(const char *at, uint32_t (&w)[4])
{
    if constexpr (FORMAT == MC_WEIGHTS_FLOAT) {
        const uint4 v = *(const uint4 *)at;
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
        const uint2 v = *(const uint2 *)at;
        w[0] = mc_widen<T, FORMAT>(v.x, 0), w[1] = mc_widen<T, FORMAT>(v.x, 1);
        w[2] = mc_widen<T, FORMAT>(v.y, 0), w[3] = mc_widen<T, FORMAT>(v.y, 1);
    }
}

/* chunk, x: this lane's first terms; `terms` of the chunk. */
template <class T, int ROWS, int FORMAT>
__device__ __forceinline__ void multiply_chunk(float (&sum)[2][ROWS][4], const char *chunk,
                                               const char *x, int x_pitch, int terms, int lane)
{
    constexpr int SIZE = FORMAT == MC_WEIGHTS_FLOAT ? 2 : 1;
    uint32_t w[4] = {};
    uint4 v[ROWS] = {};
    auto piece = [&](int p) {
        load_weight<T, FORMAT>(chunk + p * PIECE * SIZE, w);
#pragma unroll
        for (int q = 0; q < ROWS; q++) v[q] = *(const uint4 *)(x + 2 * (p * PIECE + q * x_pitch));
    };
#pragma unroll 1
    for (; terms >= 2 * PIECE; terms -= 2 * PIECE) {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            piece(p);
            multiply<T, ROWS>(sum, w, v);
        }
        chunk += 2 * PIECE * SIZE;
        x += 2 * 2 * PIECE;
    }
#pragma unroll 1
    for (; terms > 0; terms -= PIECE) { /* the last may be a part of one */
        w[0] = w[1] = w[2] = w[3] = 0;
        if (lane * EACH < terms) piece(0);
        multiply<T, ROWS>(sum, w, v);
        chunk += PIECE * SIZE;
        x += 2 * PIECE;
    }
}

/* What a thread's column gets besides the sum. */
struct extras {
    uint16_t bias;
    float scale;

    __device__ __forceinline__ void load(const mc_chain_linear &l, const share &h, int column)
    {
        const bool there = column < h.rows;
        bias = l.bias && there ? __ldg((const uint16_t *)l.bias + h.first + column) : 0;
        scale = l.scale && there ? __ldg(l.scale + h.first + column) : 1.0f;
    }
};

/* What a column's sum becomes for row q, rounded as the kernels of linears by themselves do. */
template <class T, int FORMAT>
__device__ __forceinline__ void store_result(const place &b, const mc_chain_step &s, int step,
                                             int q, int column, float total, const extras &own)
{
    const mc_chain_linear &l = s.linear;
    if constexpr (FORMAT == MC_WEIGHTS_FLOAT)
        total = wide<T>(narrow<T>(fmaf(total, l.alpha, wide<T>(own.bias))));
    else
        total = fmaf(total * mc_eight_unit<T, FORMAT> * l.alpha, own.scale, wide<T>(own.bias));
    const mc_activation activation = (mc_activation)s.activation;
    if (activation != MC_ACTIVATION_NONE) total = mc_few_activated(activation, total);
    const uint32_t bits = narrow<T>(total);
    if (s.publish >= 0) {
        uint32_t *words = b.words(s.publish) + column;
        for (int row = q; row < s.rows * (int)copies_of(s.rows); row += s.rows)
            store_word(words + row * MC_CHAIN_WIDEST, bits, b.tag(step));
    }
    ((uint16_t *)l.y)[(int64_t)q * l.y_stride + column] = (uint16_t)bits;
}

/* Ends the columns whose eighths are there, of which `first` is the first, by a thread each. Done for
 * each row by the warp that multiplied it, this took a third of a row's time. */
template <class T, int ROWS, int FORMAT>
__device__ __forceinline__ void end_columns(const place &b, const mc_chain_step &s, int step,
                                            const share &h, int first, const extras &own)
{
    const int i = (int)threadIdx.x % COLUMNS, q = (int)threadIdx.x / COLUMNS;
    if (q >= s.rows || first + i >= h.rows) return;
    const float4 *eighths = (const float4 *)(b.sums() + (i * ROWS + q) * 8);
    const float4 v = eighths[0], w = eighths[1];
    const float total = ((v.x + v.y) + (v.z + v.w)) + ((w.x + w.y) + (w.z + w.w));
    store_result<T, FORMAT>(b, s, step, q, h.first + first + i, total, own);
}

/* The block's rows of a weight, each by one warp. `own` is of the first columns. */
template <class T, int ROWS, int FORMAT>
__device__ void multiply_rows(place &b, const mc_chain_step &s, int step, const share &h,
                              extras own)
{
    constexpr int SIZE = FORMAT == MC_WEIGHTS_FLOAT ? 2 : 1;
    const mc_chain_linear &l = s.linear;
    const int64_t row_bytes = (int64_t)l.weight_stride * SIZE;
    const char *row = (const char *)l.weight + (h.first + b.warp) * row_bytes,
               *x = (const char *)(b.x(0) + b.lane * EACH);
    const int eighth = b.lane / 4;
    const bool diagonal = b.lane % 4 == eighth / 2; /* pair i of lanes has eighths 2 i, 2 i + 1 */
    position at = b.at;
    at.advance(b.warp, b.c.slots);
#pragma unroll 1
    for (int ended = 0; ended < h.rows; ended += COLUMNS) {
        const int end = min(ended + (int)COLUMNS, h.rows);
        float *to = b.sums() + b.warp * ROWS * 8 + eighth;
#pragma unroll 1
        for (int r = ended + b.warp; r < end; r += WARPS) {
            const int together = min((int)WARPS, h.rows - (r - b.warp));
            float sum[2][ROWS][4] = {};
#pragma unroll 1
            for (int k = 0; k < h.chunks; k++) {
                const char *chunk = wait_for_chunk(b, at, row + k * h.chunk);
                multiply_chunk<T, ROWS, FORMAT>(sum, chunk + b.lane * EACH * SIZE,
                                                x + k * h.chunk * (2 / SIZE), b.c.x_pitch,
                                                h.size(k) / SIZE, b.lane);
                release(b, at);
                at.advance(together, b.c.slots);
            }
            if (diagonal)
#pragma unroll
                for (int q = 0; q < ROWS; q++)
                    to[q * 8] =
                        eighth % 2 ? sum[0][q][1] + sum[1][q][3] : sum[0][q][0] + sum[1][q][2];
            to += WARPS * ROWS * 8;
            row += WARPS * row_bytes;
        }
        sync();
        end_columns<T, ROWS, FORMAT>(b, s, step, h, ended, own);
        b.half ^= 1; /* who reads these sums does so until the next barrier */
        own.load(l, h, end + (int)threadIdx.x % COLUMNS);
    }
    b.at.skip(h.rows * h.chunks, b.c.slots);
}

/* x to shared memory; rows that are not there become zeros. */
template <class T, int ROWS> __device__ void gather(place &b, const mc_chain_step &s)
{
    constexpr int N = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;
    const mc_chain_linear &l = s.linear;
    const int quads = l.in / 4;
    const input in = input_of(b, s, 0, l.x, l.x_stride);
    sync(); /* nobody reads the old rows any more */
#pragma unroll 1
    for (int first = threadIdx.x; first < quads; first += N * THREADS) {
        uint2 v[N][ROWS];
        fetch(in, first, quads, s.rows, v);
#pragma unroll
        for (int e = 0; e < N; e++)
#pragma unroll
            for (int q = 0; q < ROWS; q++)
                if (first + e * THREADS < quads) store_quad(b.x(q), first + e * THREADS, v[e][q]);
    }
    sync();
}

template <class T, int ROWS> __device__ void run_linear(place &b, const mc_chain_step &s, int step)
{
    const share h(s);
    extras own;
    own.load(s.linear, h, (int)threadIdx.x % COLUMNS);
    if (s.from[0] != MC_CHAIN_RESIDENT) gather<T, ROWS>(b, s);
    switch (s.format) {
    case MC_WEIGHTS_INT8: return multiply_rows<T, ROWS, MC_WEIGHTS_INT8>(b, s, step, h, own);
    case MC_WEIGHTS_FP8: return multiply_rows<T, ROWS, MC_WEIGHTS_FP8>(b, s, step, h, own);
    default: return multiply_rows<T, ROWS, MC_WEIGHTS_FLOAT>(b, s, step, h, own);
    }
}

/* ---- norms, residual sums, gates --------------------------------------------------------------- */

/* N: quads of a row that a thread has. */
template <class T, int N>
__device__ __forceinline__ void load_parameters(const void *p, int quads, float none,
                                                float (&v)[N][4])
{
#pragma unroll
    for (int e = 0; e < N; e++) {
        int i = (int)threadIdx.x + e * THREADS;
        v[e][0] = v[e][1] = v[e][2] = v[e][3] = none;
        if (p && i < quads) unpack<T>(__ldg((const uint2 *)p + i), v[e]);
    }
}

/* A row's quads that this thread has, to shared memory, the residual sum's rows or those that linears
 * read, and, where it is wanted, memory. */
template <class T, bool FOR_LINEARS, int N>
__device__ __forceinline__ void keep_quads(uint16_t *to, void *also, int quads,
                                           const float (&v)[N][4])
{
#pragma unroll
    for (int e = 0; e < N; e++) {
        int i = (int)threadIdx.x + e * THREADS;
        if (i >= quads) continue;
        const uint2 bits = pack<T>(v[e]);
        if (FOR_LINEARS)
            store_quad(to, i, bits);
        else
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

template <class T, int N>
__device__ __forceinline__ void norm_row(place &b, const mc_chain_norm &n, int q, bool writes,
                                         const input &x, const input &f,
                                         const float (&weight)[N][4], const float (&bias)[N][4])
{
    const int quads = n.columns / 4, first = (int)threadIdx.x;
    const bool rms = !n.bias;
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
        sum += v[e][0] + v[e][1] + v[e][2] + v[e][3];
    }
    void *s = writes && n.s ? (char *)n.s + (int64_t)q * n.columns * 2 : NULL;
    keep_quads<T, false>(b.s(q), s, quads, v);
    if (!n.weight) return; /* a sum alone */
    const float mean = rms ? 0.0f : block_sum(sum, b.scratch()) * per_column;
#pragma unroll
    for (int e = 0; e < N; e++)
        if (first + e * THREADS < quads)
#pragma unroll
            for (int k = 0; k < 4; k++) squares += (v[e][k] - mean) * (v[e][k] - mean);
    const float rstd =
        rsqrtf(block_sum(squares, b.scratch() + (rms && q % 2 ? 0 : 16)) * per_column + n.eps);
#pragma unroll
    for (int e = 0; e < N; e++)
#pragma unroll
        for (int k = 0; k < 4; k++) v[e][k] = (v[e][k] - mean) * rstd * weight[e][k] + bias[e][k];
    void *y = writes && n.y ? (char *)n.y + (int64_t)q * n.columns * 2 : NULL;
    keep_quads<T, true>(b.x(q), y, quads, v);
}

template <class T, int ROWS, int N>
__device__ void run_norm(place &b, const mc_chain_step &s, int step)
{
    const mc_chain_norm &n = s.norm;
    const bool sum_alone = !n.weight;
    float weight[N][4], bias[N][4];
    load_parameters<T>(n.weight, n.columns / 4, 1.0f, weight);
    load_parameters<T>(n.bias, n.columns / 4, 0.0f, bias);
    const input x = s.from[0] == MC_CHAIN_RESIDENT ? resident(b.s(0), b.c.s_pitch)
                                                   : input_of(b, s, 0, n.x, n.columns);
    const input f = input_of(b, s, 1, n.f, n.columns);
#pragma unroll 1
    for (int q = 0; q < s.rows; q++) norm_row<T>(b, n, q, b.writes(step), x, f, weight, bias);
    if (sum_alone) return; /* of s each thread reads what it wrote */
    for (int q = s.rows; q < ROWS; q++) {
        const float zeros[N][4] = {};
        keep_quads<T, true>(b.x(q), NULL, n.columns / 4, zeros);
    }
    sync();
}

template <class T, int ROWS> __device__ void run_gated(place &b, const mc_chain_step &s, int step)
{
    const mc_chain_gated &g = s.gated;
    const int quads = g.n / 4;
    const input left = input_of(b, s, 0, g.x, g.x_stride);
    input right = left;
    if (left.data)
        right.data += g.n * 2;
    else
        right.words += g.n;
    sync();
#pragma unroll 1
    for (int i = threadIdx.x; i < quads; i += THREADS)
#pragma unroll 1
        for (int q = 0; q < ROWS; q++) {
            uint2 x[1][1], y[1][1];
            float v[4], w[4];
            fetch(row_of(left, q), i, quads, q < s.rows, x);
            fetch(row_of(right, q), i, quads, q < s.rows, y);
            unpack<T>(x[0][0], v);
            unpack<T>(y[0][0], w);
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[k] = mc_few_activated((mc_activation)s.activation, v[k]) * w[k];
            store_quad(b.x(q), i, pack<T>(v));
            if (q < s.rows && b.writes(step))
                *(uint2 *)((uint16_t *)g.y + (int64_t)q * g.y_stride + 4 * i) = pack<T>(v);
        }
    sync();
}

/* ---- the kernel -------------------------------------------------------------------------------- */

/* All steps in front have ended, in all blocks. */
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

/* The block that ends last leaves the exchange as the next launch wants it: tags are new ones. */
__device__ void leave(const place &b)
{
    __shared__ bool last;
    sync();
    uint32_t *memory = b.c.memory, next = b.epoch + b.c.list.count;
    const bool wraps = next + 2 * MC_CHAIN_MOST > 0xffff;
    if (threadIdx.x == 0) {
        last = atomicAdd(memory + EXITS, 1u) == gridDim.x - 1;
        if (last) {
            memory[EXITS] = memory[ARRIVALS] = 0;
            memory[EPOCH] = wraps ? 0 : next;
        }
    }
    if (!wraps) return;
    sync();
    for (int i = threadIdx.x; last && i < (MC_CHAIN_SLOTS + 1) * MC_CHAIN_SLOT_WORDS; i += THREADS)
        memory[WORDS + i] = 0;
}

template <class T, int ROWS> __device__ void run_steps(place &b)
{
    const call &c = b.c;
    int barriers = 0;
    reader ahead(b, c.first);
    for (int i = c.first; i < c.end; i++) {
        const mc_chain_step &s = *b.step(i);
        ahead.load(b, i + 1);
        if (s.barrier && i > c.first) wait_for_grid(b, ++barriers);
        const int kind = s.skip ? -1 : s.kind;
        switch (kind) {
        case MC_CHAIN_LINEAR: run_linear<T, ROWS>(b, s, i); break;
        case MC_CHAIN_NORM:
            if (s.norm.columns <= 4 * THREADS)
                run_norm<T, ROWS, 1>(b, s, i);
            else
                run_norm<T, ROWS, 3>(b, s, i);
            break;
        case MC_CHAIN_GATED: run_gated<T, ROWS>(b, s, i); break;
        case MC_CHAIN_ROTARY: run_rotary<T>(s); break;
        case MC_CHAIN_ATTENTION: run_attention<T>(b, s, i); break;
        }
        ahead.store(b, i + 1);
    }
    if (c.end == c.list.count) leave(b);
}

template <class T, int ROWS>
__global__ void __launch_bounds__(THREADS + STREAMERS, 1)
    chain_kernel(const __grid_constant__ call c)
{
#if defined(MC_SIM_H) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
    place b = {c, (int)threadIdx.x / 32, (int)threadIdx.x % 32, 0, 0, {0, 0}};
    for (int i = threadIdx.x; i < (int)(sizeof c.list.shape / 4); i += blockDim.x)
        ((uint32_t *)b.shape(0))[i] = ((const uint32_t *)c.list.shape)[i];
    open_ring(b);
    __syncthreads();
    if (is_streamer(b)) {
        stream_weights(b);
    } else {
        b.epoch = __ldcg(c.memory + EPOCH);
        run_steps<T, ROWS>(b);
    }
#endif
}

/* ---- launching --------------------------------------------------------------------------------- */

/* What a list needs of a block's shared memory besides the ring. */
struct needs {
    int rows = 1, x = 8, s = 8, head_dim = 8, shortest = 1 << 20; /* shortest: bytes of a row */
};

needs needs_of(const mc_chain_list &list)
{
    needs n;
    for (int i = 0; i < list.count; i++) {
        const mc_chain_step &s = list.step[i];
        if (s.rows > n.rows) n.rows = s.rows > 2 ? 4 : 2;
        if (s.kind == MC_CHAIN_LINEAR) {
            int bytes = s.linear.in * (s.linear.scale ? 1 : 2);
            n.x = (int)mc_most(n.x, s.linear.in);
            n.shortest = (int)mc_least(n.shortest, bytes);
        } else if (s.kind == MC_CHAIN_NORM) {
            n.x = (int)mc_most(n.x, s.norm.columns);
            n.s = (int)mc_most(n.s, s.norm.columns);
        } else if (s.kind == MC_CHAIN_GATED) {
            n.x = (int)mc_most(n.x, s.gated.n);
        } else if (s.kind == MC_CHAIN_ATTENTION) {
            n.head_dim = (int)mc_most(n.head_dim, list.shape[s.attention.shape].head_dim);
        }
    }
    return n;
}

enum { MOST_SLOT = 4096, MOST_SLOTS = 256 };

/* The ring gets what is left. A slot is a row, or an equal part of it, of the shortest one: then
 * little of the ring stays empty. Returns the bytes of shared memory in all. */
size_t divide_memory(mc_device *d, const mc_chain_list &list, call *c, int *rows)
{
    const needs n = needs_of(list);
    *rows = n.rows;
    c->x_pitch = (int)mc_ceil_div(n.x, 8) * 8;
    c->s_pitch = (int)mc_ceil_div(n.s, 8) * 8;
    int64_t parts = mc_ceil_div(n.shortest, MOST_SLOT);
    c->shapes = 0;
    c->steps = c->shapes + (int)sizeof list.shape;
    c->x = c->steps + 2 * MOST_WARPS * (int)sizeof(mc_chain_step);
    c->s = c->x + 2 * n.rows * c->x_pitch;
    c->sums_size = COLUMNS * 8 * n.rows;
    c->sums = (int)mc_ceil_div(c->s + 2 * n.rows * c->s_pitch, 16) * 16;
    c->scratch = c->sums + 2 * c->sums_size * (int)sizeof(float);
    int rest = c->scratch + (int)sizeof(float) * (64 + WARPS * n.head_dim) + 3 * 2 * n.head_dim;
    do {
        c->slot_bytes = (int)mc_ceil_div(n.shortest, 16 * parts++) * 16;
        c->slots = (int)mc_least((mc_shared_limit(d) - rest) / (c->slot_bytes + 16), MOST_SLOTS);
    } while (c->slots < 2 * WARPS);
    c->barriers = c->slots * c->slot_bytes;
    const int behind = c->barriers + 16 * c->slots;
    for (int *at : {&c->shapes, &c->steps, &c->x, &c->s, &c->sums, &c->scratch}) *at += behind;
    return (size_t)(behind + rest);
}

template <class T, int ROWS> void launch(mc_device *d, const call &c, size_t bytes)
{
    auto kernel = chain_kernel<T, ROWS>;
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
    config.blockDim = THREADS + STREAMERS;
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

} // namespace chain

extern "C" mc_status mc_chain_launch(mc_device *d, const mc_chain_list *list, bool together)
{
    chain::call c = {};
    int rows;
    size_t bytes = chain::divide_memory(d, *list, &c, &rows);
    c.memory = (uint32_t *)mc_cuda_of(d)->chain;
    c.list = *list;
    mc_chain_divide(&c.list, c.slot_bytes);
    for (c.first = 0; c.first < list->count; c.first = c.end) {
        c.end = mc_chain_range(list, c.first, together);
        if (list->step[0].dtype == MC_BF16)
            chain::launch_rows<__nv_bfloat16>(d, c, bytes, rows);
        else
            chain::launch_rows<__half>(d, c, bytes, rows);
    }
    return mc_cuda_launched(d, "a step of generation in one kernel");
}
