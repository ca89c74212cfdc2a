/* Linear layers of 1 to 4 rows in f16 or bf16, with weights of that type or in 8 bits. Reading the
 * weight takes most of the time: every multiprocessor reads an equal share of it, in one stream.
 *
 * A block has some whole rows of the weight, each for a column of the result. Its work is divided
 * into units: 512 bytes of a row, 16 for each lane, and in 8 bits as many of the next row. The
 * sequence of units is divided evenly among the warps. If a warp begins or ends within a row, the
 * sums of parts of the row are added at the end, in the order of the warps. A lane copies its 16
 * bytes of the next units to shared memory, and is the only one to read them, so no thread waits
 * for another. The first copies start before the block waits for the preceding kernels
 * (mc_wait_for_earlier), which don't write weights.
 *
 * Tensor cores sum the products, because other instructions would be the bottleneck. They multiply
 * 16 rows by 8 columns; here row i is eighth i of a unit's row, row i + 8 that of the next row or
 * zeros, and column i is that eighth of x. So the results are on the diagonal, and the lanes of
 * eighth i hold in both operands the terms that they have loaded. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/product/skinny_gemm.cuh"

namespace
{

enum { LARGE = 32 << 20 }; /* bytes of a weight: see launch_rows */
enum { MOST_ROWS = 4, MOST_TERMS = 1 << 16 };
enum { MOST_BYTES = 160 << 10, MOST_X = 64 << 10 }; /* of shared memory; of x there, in 8 bits */

/* A unit: TERMS terms of PAIR rows. A warp's ring has STAGES stages of TOGETHER units. */
template <int FORMAT> struct unit {
    static constexpr bool QUANTIZED = FORMAT != MC_WEIGHTS_FLOAT;
    static constexpr int EACH = mc_few_each<FORMAT>, TERMS = 32 * EACH, PAIR = QUANTIZED ? 2 : 1;
    static constexpr int STAGES = QUANTIZED ? 6 : 8, TOGETHER = QUANTIZED ? 1 : 2;
    static constexpr int RING = STAGES * TOGETHER * PAIR * 32; /* pieces of 16 bytes */
};

/* A block's rows of the weight, and the division of its units. */
template <int FORMAT, int WARPS> struct share {
    int first, rows, per_row, units;

    __device__ __forceinline__ explicit share(const mc_few_call &c)
    {
        constexpr int PAIR = unit<FORMAT>::PAIR;
        first = (int)((int64_t)blockIdx.x * c.out / gridDim.x);
        rows = (int)((int64_t)(blockIdx.x + 1) * c.out / gridDim.x) - first;
        per_row = (c.in + unit<FORMAT>::TERMS - 1) / unit<FORMAT>::TERMS;
        units = (rows + PAIR - 1) / PAIR * per_row;
    }
    __device__ __forceinline__ int begin(int warp) const { return warp * units / WARPS; }
    __device__ __forceinline__ int owner(int i) const { return ((i + 1) * WARPS - 1) / units; }
};

/* A warp's place in the weight: a row of its block, or a pair of rows, and a unit's first term. */
template <int TERMS> struct cursor {
    int row, term, left; /* units */

    __device__ __forceinline__ void next(int in)
    {
        left--;
        term += TERMS;
        if (term >= in) {
            term = 0;
            row++;
        }
    }
};

/* Rows of x, padded with zeros to whole units: for each unit the first pieces of all lanes, then
 * their second pieces if a lane has two. */
template <int FORMAT, int ROWS>
__device__ __forceinline__ void load_x(const mc_few_call &c, uint4 *x, int per_row)
{
    constexpr int X = unit<FORMAT>::EACH / 8, UNIT = 32 * X;
    int pieces = per_row * UNIT;
#pragma unroll
    for (int q = 0; q < ROWS; q++)
        for (int i = threadIdx.x; i < pieces; i += blockDim.x) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (q < c.rows && i * 8 < c.in) v = ((const uint4 *)(c.x + q * c.x_stride))[i];
            x[q * pieces + i / UNIT * UNIT + i % X * 32 + i % UNIT / X] = v;
        }
}

/* The most sums that a warp has, for rows, pairs, or parts of them. */
template <int FORMAT> constexpr int64_t slots_of(int64_t rows, int warps)
{
    return (rows + unit<FORMAT>::PAIR - 1) / unit<FORMAT>::PAIR / warps + 2;
}

/* Adds the parts of each row and stores the results. own: of a thread's first column. */
template <class T, int FORMAT, int ROWS, int WARPS>
__device__ __forceinline__ void finish(const mc_few_call &c, const share<FORMAT, WARPS> &s,
                                       const float *sums, mc_few_column own)
{
    constexpr int PAIR = unit<FORMAT>::PAIR;
    const int slots = (int)slots_of<FORMAT>(s.rows, WARPS);
    for (int i = threadIdx.x; i < s.rows * ROWS; i += WARPS * 32) {
        int row = i / ROWS, q = i % ROWS, pair = row / PAIR,
            last = s.owner((pair + 1) * s.per_row - 1);
        if (i >= WARPS * 32) own = mc_few_column_of<FORMAT>(c, s.first + row);
        float total = 0.0f;
        for (int w = s.owner(pair * s.per_row); w <= last; w++) {
            if (s.begin(w) == s.begin(w + 1)) continue; /* fewer units than warps */
            int slot = w * slots + pair - s.begin(w) / s.per_row;
            total += sums[(slot * PAIR + row % PAIR) * ROWS + q];
        }
        if (q < c.rows) mc_few_store<T, FORMAT>(c, q, s.first + row, total, own);
    }
}

/* Adds a warp's results for a row or a pair, which are on the diagonals of `sum`, and begins the
 * next one. */
template <int PAIR, int ROWS> __device__ __forceinline__ void keep(float *to, float (&sum)[ROWS][4])
{
    int lane = (int)threadIdx.x % 32, place = lane / 4;
#pragma unroll
    for (int q = 0; q < ROWS; q++)
#pragma unroll
        for (int p = 0; p < PAIR; p++) {
            float mine = place % 2 ? sum[q][2 * p + 1] : sum[q][2 * p];
            mine = mc_warp_sum(lane % 4 == place / 2 ? mine : 0.0f);
            if (lane == p * ROWS + q) to[p * ROWS + q] = mine;
            sum[q][2 * p] = sum[q][2 * p + 1] = 0.0f;
        }
}

template <class T, int FORMAT, int ROWS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) gemv(const __grid_constant__ mc_few_call c)
{
    extern __shared__ uint4 memory[]; /* rings, x, sums (warps, slots, PAIR, ROWS) */
    using U = unit<FORMAT>;
    constexpr int PAIR = U::PAIR, X = U::EACH / 8;
    const share<FORMAT, WARPS> s(c);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint4 *ring = memory + warp * U::RING + lane, *x = memory + WARPS * U::RING;
    float *sums = (float *)(x + ROWS * s.per_row * 32 * X);
    float *to = sums + warp * (int)slots_of<FORMAT>(s.rows, WARPS) * PAIR * ROWS;
    const auto stride = [&] { /* 8-bit rows are contiguous, which avoids a 64-bit product */
                              if constexpr (U::QUANTIZED)
                                  return c.in;
                              else
                                  return c.weight_stride;
    }();
    const char *weight = c.weight + (int64_t)s.first * stride + lane * 16;
    const int begin = s.begin(warp), count = s.begin(warp + 1) - begin;
    cursor<U::TERMS> from = {begin / s.per_row, begin % s.per_row * U::TERMS, count}, at = from;
    auto copy = [&](int stage) {
#pragma unroll
        for (int t = 0; t < U::TOGETHER; t++)
            if (from.left > 0) {
                int there = from.term + lane * U::EACH < c.in ? 16 : 0;
                const char *row = weight + (int64_t)(from.row * PAIR) * stride;
#pragma unroll
                for (int h = 0; h < PAIR; h++) {
                    if (h > 0 && from.row * PAIR + h >= s.rows) there = 0;
                    const char *p = row + h * stride + from.term * (16 / U::EACH);
                    __pipeline_memcpy_async(ring + ((stage * U::TOGETHER + t) * PAIR + h) * 32,
                                            there ? p : row, 16, 16 - there);
                }
                from.next(c.in);
            }
        __pipeline_commit();
    };
#pragma unroll
    for (int i = 0; i < U::STAGES - 1; i++) copy(i);
    const int result = (int)threadIdx.x;
    const mc_few_column own =
        mc_few_column_of<FORMAT>(c, result < s.rows * ROWS ? s.first + result / ROWS : c.out);
    mc_let_next_begin();
    mc_wait_for_earlier();
    load_x<FORMAT, ROWS>(c, x, s.per_row);
    __syncthreads();
    float sum[ROWS][4] = {};
    int stage = 0, free_stage = U::STAGES - 1;
    while (at.left > 0) {
        copy(free_stage);
        __pipeline_wait_prior(U::STAGES - 1);
#pragma unroll
        for (int t = 0; t < U::TOGETHER; t++) {
            if (t > 0 && at.left == 0) break;
            const uint4 *mine = ring + (stage * U::TOGETHER + t) * PAIR * 32;
            const uint4 *own_x = x + at.term / 8 + lane;
            mc_few_terms<T, FORMAT> terms;
            terms.load(mine[0], PAIR > 1 ? mine[32] : make_uint4(0, 0, 0, 0));
#pragma unroll
            for (int q = 0; q < ROWS; q++)
                terms.multiply(sum[q], own_x + q * s.per_row * 32 * X, 32);
            const int row = at.row;
            at.next(c.in);
            if (at.row == row && at.left > 0) continue;
            keep<PAIR>(to, sum);
            to += PAIR * ROWS;
        }
        free_stage = stage;
        stage = stage + 1 == U::STAGES ? 0 : stage + 1;
    }
    __syncthreads();
    finish<T, FORMAT, ROWS>(c, s, sums, own);
}

/* Two blocks of 8 warps per multiprocessor, or one of 16. */
template <int WARPS> int64_t blocks_of(mc_device *d, const mc_few_call &c)
{
    return mc_least(c.out, (int64_t)mc_cuda_of(d)->multiprocessors * 16 / WARPS);
}

template <int FORMAT> int64_t bytes_of_x(const mc_few_call &c, int64_t rows)
{
    return rows * mc_ceil_div(c.in, unit<FORMAT>::TERMS) * unit<FORMAT>::TERMS * 2;
}

/* Shared memory of a block: rings, x, sums. */
template <int FORMAT, int WARPS> int64_t bytes_of(mc_device *d, const mc_few_call &c, int64_t rows)
{
    int64_t slots = slots_of<FORMAT>(mc_ceil_div(c.out, blocks_of<WARPS>(d, c)), WARPS);
    return WARPS * unit<FORMAT>::RING * 16 + bytes_of_x<FORMAT>(c, rows) +
           WARPS * slots * unit<FORMAT>::PAIR * rows * (int64_t)sizeof(float);
}

template <class T, int FORMAT, int ROWS, int WARPS>
mc_status launch(mc_device *d, const mc_few_call &c)
{
    size_t bytes = (size_t)bytes_of<FORMAT, WARPS>(d, c, ROWS);
    unsigned blocks = (unsigned)blocks_of<WARPS>(d, c);
    auto kernel = gemv<T, FORMAT, ROWS, WARPS>;
    mc_allow_shared(kernel, bytes);
    MC_LAUNCH_EARLY(d, kernel, blocks, WARPS * 32, bytes, c);
    return mc_cuda_launched(d, "linear of one row");
}

/* For large weights one block per multiprocessor is a little faster (on an H200, GPT-J: 282 tokens
 * per second instead of 259); for others two are: the next kernel's block can begin during the last
 * one (GPT-2 XL: 612 instead of 577; bench/notebook/2026-11-23-few-rows.md). In 8 bits it is
 * one. */
template <class T, int FORMAT> mc_status launch_rows(mc_device *d, const mc_few_call &c)
{
    constexpr int WARPS = unit<FORMAT>::QUANTIZED ? 16 : 8;
    if (c.rows == 1 && c.out * c.weight_stride >= LARGE &&
        bytes_of<FORMAT, 16>(d, c, 1) <= mc_shared_limit(d))
        return launch<T, FORMAT, 1, 16>(d, c);
    if (c.rows == 1) return launch<T, FORMAT, 1, WARPS>(d, c);
    if (c.rows == 2) return launch<T, FORMAT, 2, WARPS>(d, c);
    return launch<T, FORMAT, 4, WARPS>(d, c);
}

} // namespace

extern "C" mc_status mc_gemv_takes(mc_device *d, const void *call, bool)
{
    const mc_product *p = (const mc_product *)call;
    if (p->rows > MOST_ROWS || !mc_is_few(p)) return MC_ERR_UNSUPPORTED;
    const mc_few_call c = mc_few_call_of(p);
    const int64_t rows = c.rows == 3 ? 4 : c.rows;
    const bool fits =
        c.format != MC_WEIGHTS_FLOAT
            ? bytes_of_x<MC_WEIGHTS_INT8>(c, rows) <= MOST_X
            : c.in <= MOST_TERMS && bytes_of<MC_WEIGHTS_FLOAT, 8>(d, c, rows) <= MOST_BYTES;
    return fits ? MC_OK : MC_ERR_UNSUPPORTED;
}

extern "C" mc_status mc_gemv(mc_device *d, const void *call)
{
    const mc_few_call c = mc_few_call_of((const mc_product *)call);
    return mc_with_format(c, [&](auto type, auto format) {
        return launch_rows<decltype(type), decltype(format)::value>(d, c);
    });
}
