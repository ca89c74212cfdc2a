/* Linear layers of 1 to 4 rows in f16 or bf16. What takes time is reading the weight: every
 * multiprocessor reads the same share of it, in one stream.
 *
 * A block has some whole rows of the weight, a column of the result each. Pieces of a row are
 * 512 bytes, 16 for each lane. The pieces of a block's rows, one behind the other, are divided
 * evenly among its warps: where a warp begins or ends within a row, sums of parts of the row are
 * added in the end, in the order of the warps. A lane copies its 16 bytes of the next pieces to
 * shared memory, and is the only one to read them, so no thread waits for another. The first of them
 * are under way before the block waits for the kernels in front (mc_wait_for_earlier), which don't
 * write weights. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/linear_few.cuh"

namespace
{

enum { PIECE = 256, EACH = 8, PIECE_BYTES = 2 * PIECE }; /* terms of a piece, and of a lane */
enum { WARPS = 16, THREADS = WARPS * 32, DEEP = 12 };    /* DEEP: pieces in a warp's ring */
enum { MOST_ROWS = 4, MOST_TERMS = 1 << 16, MOST_BYTES = 160 << 10 }; /* of shared memory */

/* A block's rows of the weight, and how its pieces are divided. */
struct share {
    int first, rows, per_row, pieces;

    __device__ __forceinline__ explicit share(const mc_few_call &c)
    {
        first = (int)((int64_t)blockIdx.x * c.out / gridDim.x);
        rows = (int)((int64_t)(blockIdx.x + 1) * c.out / gridDim.x) - first;
        per_row = (c.in + PIECE - 1) / PIECE;
        pieces = rows * per_row;
    }
    __device__ __forceinline__ int begin(int warp) const { return warp * pieces / WARPS; }
    __device__ __forceinline__ int owner(int piece) const
    {
        return ((piece + 1) * WARPS - 1) / pieces;
    }
};

/* Where a warp is in the weight: a row of its block, and the first term of a piece. */
struct cursor {
    int row, term, left; /* pieces */

    __device__ __forceinline__ void next(int in)
    {
        left--;
        term += PIECE;
        if (term >= in) {
            term = 0;
            row++;
        }
    }
};

template <class T> __device__ __forceinline__ void unpack(uint4 v, float (&x)[EACH])
{
    mc_unpack<T>(mc_view(), mc_bits_of(v), x);
}

/* Rows of x with zeros behind their ends, up to a whole piece. */
template <class T, int ROWS>
__device__ __forceinline__ void load_x(const mc_few_call &c, uint4 *x, int per_row)
{
    int chunks = per_row * 32;
#pragma unroll
    for (int q = 0; q < ROWS; q++)
        for (int i = threadIdx.x; i < chunks; i += THREADS) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (q < c.rows && i * EACH < c.in) v = ((const uint4 *)(c.x + q * c.x_stride))[i];
            x[q * chunks + i] = v;
        }
}

/* Sums of a warp's rows or parts of rows: one behind the other, from its first row on. */
__device__ __forceinline__ int slots_of(const share &s) { return s.rows / WARPS + 2; }

/* The bias of the result that a thread stores first, which comes early. */
template <int ROWS>
__device__ __forceinline__ float first_bias(const mc_few_call &c, const share &s)
{
    int i = (int)threadIdx.x;
    return i < s.rows * ROWS ? mc_few_bias(c, s.first + i / ROWS) : 0.0f;
}

/* Adds up the parts of each row and stores the results. bias: see first_bias. */
template <class T, int ROWS>
__device__ __forceinline__ void finish(const mc_few_call &c, const share &s, const float *sums,
                                       float bias)
{
    for (int i = threadIdx.x; i < s.rows * ROWS; i += THREADS) {
        int row = i / ROWS, q = i % ROWS, last = s.owner((row + 1) * s.per_row - 1);
        if (i >= THREADS) bias = mc_few_bias(c, s.first + row);
        float total = 0.0f;
        for (int w = s.owner(row * s.per_row); w <= last; w++)
            total += sums[(w * slots_of(s) + row - s.begin(w) / s.per_row) * ROWS + q];
        if (q < c.rows) mc_few_store<T>(c, q, s.first + row, total, bias);
    }
}

/* Adds up over the lanes what a warp has of a row, and begins the next one. */
template <int ROWS> __device__ __forceinline__ void keep(float *to, float (&sum)[ROWS])
{
#pragma unroll
    for (int q = 0; q < ROWS; q++) {
        sum[q] = mc_warp_sum(sum[q]);
        if ((int)threadIdx.x % 32 == q) to[q] = sum[q];
        sum[q] = 0.0f;
    }
}

template <class T, int ROWS>
__global__ void __launch_bounds__(THREADS) linear_row(const __grid_constant__ mc_few_call c)
{
    extern __shared__ uint4 memory[]; /* rings, x, sums */
    const share s(c);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint4 *ring = memory + warp * DEEP * 32 + lane, *x = memory + WARPS * DEEP * 32;
    float *sums = (float *)(x + ROWS * s.per_row * 32);
    const char *weight = c.weight + (int64_t)s.first * c.weight_stride + lane * 16;
    const int begin = s.begin(warp), count = s.begin(warp + 1) - begin;
    cursor from = {begin / s.per_row, begin % s.per_row * PIECE, count}, at = from;
    const int first_row = at.row;
    auto copy = [&](int slot) {
        if (from.left > 0) {
            int there = from.term + lane * EACH < c.in ? 16 : 0;
            const char *p = weight + (int64_t)from.row * c.weight_stride;
            __pipeline_memcpy_async(ring + slot * 32, there ? p + from.term * 2 : p, 16,
                                    16 - there);
            from.next(c.in);
        }
        __pipeline_commit();
    };
    constexpr int AHEAD = DEEP - 1;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) copy(i);
    const float bias = first_bias<ROWS>(c, s);
    mc_let_next_begin();
    mc_wait_for_earlier();
    load_x<T, ROWS>(c, x, s.per_row);
    __syncthreads();
    float sum[ROWS] = {};
    int slot = 0, free_slot = AHEAD;
    while (at.left > 0) {
        copy(free_slot);
        __pipeline_wait_prior(AHEAD);
        float w[EACH], v[EACH];
        unpack<T>(ring[slot * 32], w);
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            unpack<T>(x[(q * s.per_row) * 32 + at.term / EACH + lane], v);
#pragma unroll
            for (int i = 0; i < EACH; i++) sum[q] = fmaf(w[i], v[i], sum[q]);
        }
        const int row = at.row;
        at.next(c.in);
        if (at.row != row || at.left == 0)
            keep<ROWS>(sums + (warp * slots_of(s) + row - first_row) * ROWS, sum);
        free_slot = slot;
        slot = slot + 1 == DEEP ? 0 : slot + 1;
    }
    __syncthreads();
    finish<T, ROWS>(c, s, sums, bias);
}

/* A block for each multiprocessor. */
int64_t blocks_of(mc_device *d, const mc_few_call &c)
{
    return mc_least(c.out, mc_cuda_of(d)->multiprocessors);
}

/* Shared memory of a block: rings, x, sums. */
int64_t bytes_of(mc_device *d, const mc_few_call &c, int64_t rows)
{
    int64_t x = rows * mc_ceil_div(c.in, PIECE) * PIECE_BYTES;
    int64_t slots = mc_ceil_div(c.out, blocks_of(d, c)) / WARPS + 2;
    return WARPS * DEEP * PIECE_BYTES + x + WARPS * slots * rows * (int64_t)sizeof(float);
}

template <class T, int ROWS> mc_status launch(mc_device *d, const mc_few_call &c)
{
    size_t bytes = (size_t)bytes_of(d, c, ROWS);
    auto kernel = linear_row<T, ROWS>;
    mc_allow_shared(kernel, bytes);
    MC_LAUNCH_EARLY(d, kernel, (unsigned)blocks_of(d, c), THREADS, bytes, c);
    return mc_cuda_launched(d, "linear of one row");
}

} // namespace

template <class T> bool mc_row_linear(mc_device *d, const mc_few_call &c, mc_status *status)
{
    int64_t rows = c.rows == 3 ? 4 : c.rows;
    if (c.rows > MOST_ROWS || c.in > MOST_TERMS || bytes_of(d, c, rows) > MOST_BYTES) return false;
    *status = rows == 1 ? launch<T, 1>(d, c) : rows == 2 ? launch<T, 2>(d, c) : launch<T, 4>(d, c);
    return true;
}

template bool mc_row_linear<__nv_bfloat16>(mc_device *, const mc_few_call &, mc_status *);
template bool mc_row_linear<__half>(mc_device *, const mc_few_call &, mc_status *);
