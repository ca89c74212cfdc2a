/* Linear layers of 1 to 4 rows in f16 or bf16. What takes time is reading the weight: every
 * multiprocessor reads the same share of it, in one stream.
 *
 * A block has some whole rows of the weight, a column of the result each. Pieces of a row are
 * 512 bytes, 16 for each lane. The pieces of a block's rows, one after the other, are divided
 * evenly among its warps: where a warp begins or ends within a row, sums of parts of the row are
 * added in the end, in the order of the warps. A lane copies its 16 bytes of the next pieces to
 * shared memory, and is the only one to read them, so no thread waits for another. The first of them
 * are under way before the block waits for the kernels in front (mc_wait_for_earlier), which don't
 * write weights.
 *
 * Tensor cores add up the products, for instructions are what is short otherwise: see multiply. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/product/linear_few.cuh"

namespace
{

enum { PIECE = 256, EACH = 8, PIECE_BYTES = 2 * PIECE }; /* terms of a piece, and of a lane */
enum { STAGES = 8, TOGETHER = 2 };                       /* of a warp's ring; pieces of a stage */
enum { LARGE = 32 << 20 };                               /* bytes of a weight: see launch_one */
enum { MOST_ROWS = 4, MOST_TERMS = 1 << 16, MOST_BYTES = 160 << 10 }; /* of shared memory */

/* A block's rows of the weight, and how its pieces are divided. */
template <int WARPS> struct share {
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

/* Rows of x with zeros after their ends, up to a whole piece. */
template <int ROWS>
__device__ __forceinline__ void load_x(const mc_few_call &c, uint4 *x, int per_row)
{
    int chunks = per_row * 32;
#pragma unroll
    for (int q = 0; q < ROWS; q++)
        for (int i = threadIdx.x; i < chunks; i += blockDim.x) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (q < c.rows && i * EACH < c.in) v = ((const uint4 *)(c.x + q * c.x_stride))[i];
            x[q * chunks + i] = v;
        }
}

/* Sums that a warp has of rows or parts of rows, at most. */
constexpr int slots_of(int rows, int warps) { return rows / warps + 2; }

/* The bias of the result that a thread stores first, which comes early. */
template <int ROWS, int WARPS>
__device__ __forceinline__ float first_bias(const mc_few_call &c, const share<WARPS> &s)
{
    int i = (int)threadIdx.x;
    return i < s.rows * ROWS ? mc_few_bias(c, s.first + i / ROWS) : 0.0f;
}

/* Adds up the parts of each row and stores the results. bias: see first_bias. */
template <class T, int ROWS, int WARPS>
__device__ __forceinline__ void finish(const mc_few_call &c, const share<WARPS> &s,
                                       const float *sums, float bias)
{
    for (int i = threadIdx.x; i < s.rows * ROWS; i += WARPS * 32) {
        int row = i / ROWS, q = i % ROWS, last = s.owner((row + 1) * s.per_row - 1);
        if (i >= WARPS * 32) bias = mc_few_bias(c, s.first + row);
        float total = 0.0f;
        for (int w = s.owner(row * s.per_row); w <= last; w++) {
            if (s.begin(w) == s.begin(w + 1)) continue; /* fewer pieces than warps */
            total += sums[(w * slots_of(s.rows, WARPS) + row - s.begin(w) / s.per_row) * ROWS + q];
        }
        if (q < c.rows) mc_few_store<T>(c, q, s.first + row, total, bias);
    }
}

/* Adds up what a warp has of a row, which is on the diagonals of `sum`, and begins the next one. */
template <int ROWS> __device__ __forceinline__ void keep(float *to, float (&sum)[ROWS][4])
{
    int lane = (int)threadIdx.x % 32, place = lane / 4;
#pragma unroll
    for (int q = 0; q < ROWS; q++) {
        float mine = place % 2 ? sum[q][1] : sum[q][0];
        mine = mc_warp_sum(lane % 4 == place / 2 ? mine : 0.0f);
        if (lane == q) to[q] = mine;
        sum[q][0] = sum[q][1] = 0.0f;
    }
}

/* A lane's products of a piece. The rows of one operand are eighths of the row of the weight, the
 * columns of the other those of x: what counts is the diagonal. */
template <class T, int ROWS>
__device__ __forceinline__ void multiply(float (&sum)[ROWS][4], uint4 w, const uint4 *x, int stride)
{
#pragma unroll
    for (int q = 0; q < ROWS; q++) {
        const uint4 v = x[q * stride];
        mc_few_multiply<T>(sum[q], w.x, 0, w.y, 0, v.x, v.y);
        mc_few_multiply<T>(sum[q], w.z, 0, w.w, 0, v.z, v.w);
    }
}

template <class T, int ROWS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) linear_row(const __grid_constant__ mc_few_call c)
{
    extern __shared__ uint4 memory[]; /* rings, x, sums */
    constexpr int RING = STAGES * TOGETHER * 32;
    const share<WARPS> s(c);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint4 *ring = memory + warp * RING + lane, *x = memory + WARPS * RING;
    float *sums = (float *)(x + ROWS * s.per_row * 32);
    float *to = sums + warp * slots_of(s.rows, WARPS) * ROWS;
    const char *weight = c.weight + (int64_t)s.first * c.weight_stride + lane * 16;
    const int begin = s.begin(warp), count = s.begin(warp + 1) - begin;
    cursor from = {begin / s.per_row, begin % s.per_row * PIECE, count}, at = from;
    auto copy = [&](int stage) {
#pragma unroll
        for (int t = 0; t < TOGETHER; t++)
            if (from.left > 0) {
                int there = from.term + lane * EACH < c.in ? 16 : 0;
                const char *p = weight + (int64_t)from.row * c.weight_stride;
                __pipeline_memcpy_async(ring + (stage * TOGETHER + t) * 32,
                                        there ? p + from.term * 2 : p, 16, 16 - there);
                from.next(c.in);
            }
        __pipeline_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) copy(i);
    const float bias = first_bias<ROWS>(c, s);
    mc_let_next_begin();
    mc_wait_for_earlier();
    load_x<ROWS>(c, x, s.per_row);
    __syncthreads();
    float sum[ROWS][4] = {};
    int stage = 0, free_stage = STAGES - 1;
    while (at.left > 0) {
        copy(free_stage);
        __pipeline_wait_prior(STAGES - 1);
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            if (at.left == 0) break;
            multiply<T, ROWS>(sum, ring[(stage * TOGETHER + t) * 32], x + at.term / EACH + lane,
                              s.per_row * 32);
            const int row = at.row;
            at.next(c.in);
            if (at.row == row && at.left > 0) continue;
            keep<ROWS>(to, sum);
            to += ROWS;
        }
        free_stage = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    __syncthreads();
    finish<T, ROWS>(c, s, sums, bias);
}

/* Two blocks of 8 warps for each multiprocessor, or one of 16. */
template <int WARPS> int64_t blocks_of(mc_device *d, const mc_few_call &c)
{
    return mc_least(c.out, (int64_t)mc_cuda_of(d)->multiprocessors * 16 / WARPS);
}

/* Shared memory of a block: rings, x, sums. */
template <int WARPS> int64_t bytes_of(mc_device *d, const mc_few_call &c, int64_t rows)
{
    int64_t x = rows * mc_ceil_div(c.in, PIECE) * PIECE_BYTES;
    int64_t slots = slots_of((int)mc_ceil_div(c.out, blocks_of<WARPS>(d, c)), WARPS);
    return WARPS * STAGES * TOGETHER * PIECE_BYTES + x +
           WARPS * slots * rows * (int64_t)sizeof(float);
}

template <class T, int ROWS, int WARPS> mc_status launch(mc_device *d, const mc_few_call &c)
{
    size_t bytes = (size_t)bytes_of<WARPS>(d, c, ROWS);
    unsigned blocks = (unsigned)blocks_of<WARPS>(d, c);
    auto kernel = linear_row<T, ROWS, WARPS>;
    mc_allow_shared(kernel, bytes);
    MC_LAUNCH_EARLY(d, kernel, blocks, WARPS * 32, bytes, c);
    return mc_cuda_launched(d, "linear of one row");
}

/* Of large weights one block a multiprocessor is a little faster (on an H200, GPT-J: 282 tokens a
 * second instead of 259); of others two are, for the next kernel's block may begin beside the last
 * one (GPT-2 XL: 612 instead of 577; bench/notebook/2026-11-23-few-rows.md). */
template <class T> mc_status launch_one(mc_device *d, const mc_few_call &c)
{
    bool large = c.out * c.weight_stride >= LARGE && bytes_of<16>(d, c, 1) <= mc_shared_limit(d);
    return large ? launch<T, 1, 16>(d, c) : launch<T, 1, 8>(d, c);
}

} // namespace

template <class T> bool mc_row_linear(mc_device *d, const mc_few_call &c, mc_status *status)
{
    int64_t rows = c.rows == 3 ? 4 : c.rows;
    if (c.rows > MOST_ROWS || c.in > MOST_TERMS || bytes_of<8>(d, c, rows) > MOST_BYTES)
        return false;
    *status = rows == 1   ? launch_one<T>(d, c)
              : rows == 2 ? launch<T, 2, 8>(d, c)
                          : launch<T, 4, 8>(d, c);
    return true;
}

template bool mc_row_linear<__nv_bfloat16>(mc_device *, const mc_few_call &, mc_status *);
template bool mc_row_linear<__half>(mc_device *, const mc_few_call &, mc_status *);
