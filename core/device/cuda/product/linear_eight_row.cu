/* Linear layers of 1 to 4 rows in f16 or bf16 with weights in 8 bits. What takes time is reading
 * the weight: every multiprocessor reads the same share of it, in one stream.
 *
 * A block has some whole rows of the weight. Its work is divided into units: two rows by 512 terms,
 * 16 bytes of each row a lane. Units, one after the other, are divided evenly among the warps;
 * where a warp begins or ends within two rows, sums of parts are added in the end, in the order of
 * the warps. A lane copies its bytes of the next units to shared memory and is the only one to read
 * them, so that no thread waits for another. The first of them are under way before the block waits
 * for the kernels in front (mc_wait_for_earlier), which don't write weights.
 *
 * Tensor cores add up the products. They multiply 16 rows by 8 columns; here row i and i + 8 are
 * eighth i of the 512 terms of the two rows, and column i is that eighth of x. So what counts is on
 * the diagonal, and the lanes of eighth i hold in both operands the terms that they have loaded. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/product/eight_bit.cuh"

namespace
{

enum { EACH = 16, TERMS = 32 * EACH, MOST_ROWS = 4 };
constexpr int MOST_X = 64 << 10; /* bytes of x in shared memory */

/* A block's rows of the weight, and how its units are divided. */
template <int WARPS> struct share {
    int first, rows, per_pair, units;

    __device__ __forceinline__ explicit share(const mc_eight_call &c)
    {
        first = (int)((int64_t)blockIdx.x * c.out / gridDim.x);
        rows = (int)((int64_t)(blockIdx.x + 1) * c.out / gridDim.x) - first;
        per_pair = (c.in + TERMS - 1) / TERMS;
        units = (rows + 1) / 2 * per_pair;
    }
    __device__ __forceinline__ int begin(int warp) const { return warp * units / WARPS; }
    __device__ __forceinline__ int owner(int unit) const
    {
        return ((unit + 1) * WARPS - 1) / units;
    }
};

/* Where a warp is: two rows of its block, and the first term of a unit. */
struct cursor {
    int pair, term, left; /* units */

    __device__ __forceinline__ void next(int in)
    {
        left--;
        term += TERMS;
        if (term >= in) {
            term = 0;
            pair++;
        }
    }
};

/* Rows of x with zeros after their ends, up to a whole unit: the first pieces of all lanes, then
 * the second ones. */
template <int ROWS>
__device__ __forceinline__ void load_x(const mc_eight_call &c, uint4 *x, int per_pair)
{
    int pieces = per_pair * 64;
#pragma unroll
    for (int q = 0; q < ROWS; q++)
        for (int i = threadIdx.x; i < pieces; i += blockDim.x) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (q < c.rows && i * 8 < c.in) v = ((const uint4 *)(c.x + q * c.x_stride))[i];
            x[q * pieces + i / 64 * 64 + i % 2 * 32 + i % 64 / 2] = v;
        }
}

/* The sums of both rows, in all lanes. */
__device__ __forceinline__ float2 diagonal(const float (&c)[4], int lane)
{
    int place = lane / 4;
    bool here = place / 2 == lane % 4;
    float low = place % 2 ? c[1] : c[0], high = place % 2 ? c[3] : c[2];
    return make_float2(mc_warp_sum(here ? low : 0.0f), mc_warp_sum(here ? high : 0.0f));
}

template <class T, int FORMAT, int ROWS, int WARPS, int DEEP>
__global__ void __launch_bounds__(WARPS * 32) row_eight(const __grid_constant__ mc_eight_call c)
{
    extern __shared__ uint4 memory[]; /* rings, x, sums (warps, slots, 2, ROWS) */
    const share<WARPS> s(c);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              slots = (s.rows + 1) / 2 / WARPS + 2;
    uint4 *ring = memory + warp * DEEP * 64 + lane, *x = memory + WARPS * DEEP * 64;
    float *sums = (float *)(x + ROWS * s.per_pair * 64);
    const char *weight = c.weight + (int64_t)s.first * c.in;
    const int begin = s.begin(warp), count = s.begin(warp + 1) - begin;
    cursor at = {begin / s.per_pair, begin % s.per_pair * TERMS, count}, from = at;
    const int first_pair = at.pair;
    auto copy = [&](int slot) {
        if (from.left > 0) {
            int there = from.term + lane * EACH < c.in ? 16 : 0,
                second = 2 * from.pair + 1 < s.rows ? there : 0;
            const char *p = weight + (int64_t)2 * from.pair * c.in + from.term + lane * EACH;
            __pipeline_memcpy_async(ring + slot * 64, there ? p : weight, 16, 16 - there);
            __pipeline_memcpy_async(ring + slot * 64 + 32, second ? p + c.in : weight, 16,
                                    16 - second);
            from.next(c.in);
        }
        __pipeline_commit();
    };
    constexpr int AHEAD = DEEP - 1;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) copy(i);
    const int result = (int)threadIdx.x, results = s.rows * ROWS;
    mc_eight_column own = mc_eight_column_of(c, result < results ? s.first + result / ROWS : c.out);
    mc_let_next_begin();
    mc_wait_for_earlier();
    load_x<ROWS>(c, x, s.per_pair);
    __syncthreads();
    float sum[ROWS][4] = {};
    int slot = 0, free_slot = AHEAD;
    while (at.left > 0) {
        copy(free_slot);
        __pipeline_wait_prior(AHEAD);
        mc_eight_terms terms;
        terms.widen<T, FORMAT>(ring[slot * 64], ring[slot * 64 + 32]);
        const uint4 *own_x = x + at.term / TERMS * 64 + lane;
#pragma unroll
        for (int q = 0; q < ROWS; q++)
            terms.multiply<T>(sum[q], own_x[q * s.per_pair * 64], own_x[q * s.per_pair * 64 + 32]);
        const int pair = at.pair;
        at.next(c.in);
        if (at.pair != pair || at.left == 0) {
#pragma unroll
            for (int q = 0; q < ROWS; q++) {
                float2 both = diagonal(sum[q], lane);
                float *to = sums + (warp * slots + pair - first_pair) * 2 * ROWS + q;
                if (lane == 0) to[0] = both.x;
                if (lane == 1) to[ROWS] = both.y;
                sum[q][0] = sum[q][1] = sum[q][2] = sum[q][3] = 0.0f;
            }
        }
        free_slot = slot;
        slot = slot + 1 == DEEP ? 0 : slot + 1;
    }
    __syncthreads();
    for (int i = result; i < results; i += WARPS * 32) {
        int row = i / ROWS, q = i % ROWS, pair = row / 2,
            last = s.owner((pair + 1) * s.per_pair - 1);
        if (i != result) own = mc_eight_column_of(c, s.first + row);
        float total = 0.0f;
        for (int w = s.owner(pair * s.per_pair); w <= last; w++) {
            if (s.begin(w) == s.begin(w + 1)) continue; /* fewer units than warps */
            total += sums[((w * slots + pair - s.begin(w) / s.per_pair) * 2 + row % 2) * ROWS + q];
        }
        if (q < c.rows) mc_eight_store<T, FORMAT>(c, q, s.first + row, total, own);
    }
}

template <class T, int FORMAT, int ROWS, int WARPS, int DEEP>
mc_status launch(mc_device *d, const mc_eight_call &c)
{
    int64_t grid = mc_least(c.out, mc_cuda_of(d)->multiprocessors);
    int64_t rows = mc_ceil_div(c.out, grid), per_pair = mc_ceil_div(c.in, TERMS);
    int64_t slots = (rows + 1) / 2 / WARPS + 2;
    int64_t bytes = WARPS * DEEP * 1024 + ROWS * per_pair * 1024 + WARPS * slots * 2 * ROWS * 4;
    auto kernel = row_eight<T, FORMAT, ROWS, WARPS, DEEP>;
    mc_allow_shared(kernel, (size_t)bytes);
    MC_LAUNCH_EARLY(d, kernel, (unsigned)grid, WARPS * 32, (size_t)bytes, c);
    return mc_cuda_launched(d, "linear of one row in 8 bits");
}

template <class T, int FORMAT> mc_status launch_rows(mc_device *d, const mc_eight_call &c)
{
    if (c.rows == 1) return launch<T, FORMAT, 1, 16, 6>(d, c);
    if (c.rows == 2) return launch<T, FORMAT, 2, 16, 6>(d, c);
    return launch<T, FORMAT, 4, 16, 6>(d, c);
}

} // namespace

bool mc_eight_row_takes(const mc_eight_call &c)
{
    int64_t x = (c.rows == 3 ? 4 : c.rows) * mc_ceil_div(c.in, TERMS) * TERMS * 2;
    return c.rows <= MOST_ROWS && x <= MOST_X;
}

mc_status mc_eight_row(mc_device *d, const mc_eight_call &c, mc_weight_format format)
{
    MC_WITH_EIGHT(c.y.dtype, format, return launch_rows<T, FORMAT>(d, c));
}
