/* Linear layers of up to 64 rows in f16 or bf16 with weights in 8 bits, as linear_few.cu has those
 * of 16: a block computes 16 or 32 columns of the result, its warps share the terms, and a thread
 * copies what it multiplies itself. 16 bytes are 16 terms here, so that a thread takes two pieces
 * of 16 bytes of x with each of the weight. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/product/eight_bit.cuh"

namespace
{

enum { TILE = 16, GROUP = 8, STEP = 64 }; /* STEP: terms of a warp at once */

/* What a thread copies in a step: pieces of 16 bytes. */
template <int TILES, int GROUPS, int WARPS> struct ring {
    static constexpr int THREADS = WARPS * 32, PIECES = TILES * 2 + GROUPS * 2;
    static constexpr int STEP_BYTES = PIECES * THREADS * 16;
    static constexpr int STAGES = 4 * STEP_BYTES <= 96 << 10 ? 4 : 3;
    static constexpr int SUM_BYTES = WARPS * GROUPS * GROUP * TILES * TILE * (int)sizeof(float);
    static constexpr int BYTES = STAGES * STEP_BYTES > SUM_BYTES ? STAGES *STEP_BYTES : SUM_BYTES;
};

/* Sums over the warps, (warps, rows, TILES * TILE) in shared memory, end here. A thread's columns
 * are all the same one. */
template <class T, int FORMAT, int TILES, int GROUPS, int WARPS>
__device__ void finish(const mc_eight_call &c, const float *sums, int first, mc_eight_column own)
{
    constexpr int ROWS = GROUPS * GROUP, COLUMNS = TILES * TILE;
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += WARPS * 32) {
        int row = i / COLUMNS, column = first + i % COLUMNS;
        if (row >= c.rows || column >= c.out) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w * ROWS * COLUMNS + i];
        mc_eight_store<T, FORMAT>(c, row, column, sum, own);
    }
}

template <class T, int FORMAT, int TILES, int GROUPS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) few_eight(const __grid_constant__ mc_eight_call c)
{
    using R = ring<TILES, GROUPS, WARPS>;
    extern __shared__ uint4 memory[];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, place = lane / 4,
        term = lane % 4 * 16, first = (int)blockIdx.x * TILES * TILE;
    auto piece = [&](int stage, int i) {
        return memory + (stage * R::PIECES + i) * R::THREADS + threadIdx.x;
    };
    auto copy_weight = [&](int stage, int at) {
        int there = at + term < c.in ? 16 : 0; /* zeros after the end */
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) { /* a row too many is not stored */
            const char *row = c.weight + (int64_t)min(first + i * GROUP + place, c.out - 1) * c.in;
            __pipeline_memcpy_async(piece(stage, i), there ? row + at + term : row, 16, 16 - there);
        }
    };
    auto copy_x = [&](int stage, int at) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            int there = at + term < c.in && g * GROUP + place < c.rows ? 16 : 0;
            const char *row = c.x + (there ? (g * GROUP + place) * c.x_stride : 0);
            const char *from = there ? row + (at + term) * 2 : row;
            __pipeline_memcpy_async(piece(stage, TILES * 2 + 2 * g), from, 16, 16 - there);
            __pipeline_memcpy_async(piece(stage, TILES * 2 + 2 * g + 1), from + there, 16,
                                    16 - there);
        }
    };
    constexpr int NEXT = WARPS * STEP, AHEAD = R::STAGES - 1;
    float result[TILES][GROUPS][4] = {};
    int begin = warp * STEP;
#pragma unroll
    for (int s = 0; s < AHEAD; s++) copy_weight(s, begin + s * NEXT);
    mc_eight_column own = mc_eight_column_of(c, first + (int)threadIdx.x % (TILES * TILE));
    mc_let_next_begin();
    mc_wait_for_earlier();
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        copy_x(s, begin + s * NEXT);
        __pipeline_commit();
    }
    int stage = 0, free_stage = AHEAD;
    for (int at = begin; at < c.in; at += NEXT) {
        copy_weight(free_stage, at + AHEAD * NEXT);
        copy_x(free_stage, at + AHEAD * NEXT);
        __pipeline_commit();
        __pipeline_wait_prior(AHEAD);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            mc_eight_terms terms;
            terms.widen<T, FORMAT>(*piece(stage, 2 * i), *piece(stage, 2 * i + 1));
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                terms.multiply<T>(result[i][g], *piece(stage, TILES * 2 + 2 * g),
                                  *piece(stage, TILES * 2 + 2 * g + 1));
        }
        free_stage = stage;
        stage = stage + 1 == R::STAGES ? 0 : stage + 1;
    }
    __pipeline_wait_prior(0);
    __syncthreads(); /* sums take the place of what was copied */
    float *sums = (float *)memory;
    mc_few_spread(result, sums + warp * GROUPS * GROUP * TILES * TILE);
    __syncthreads();
    finish<T, FORMAT, TILES, GROUPS, WARPS>(c, sums, first, own);
}

template <class T, int FORMAT, int TILES, int GROUPS, int WARPS>
mc_status launch(mc_device *d, const mc_eight_call &c)
{
    constexpr int BYTES = ring<TILES, GROUPS, WARPS>::BYTES;
    auto kernel = few_eight<T, FORMAT, TILES, GROUPS, WARPS>;
    mc_allow_shared(kernel, BYTES);
    MC_LAUNCH_EARLY(d, kernel, (unsigned)mc_ceil_div(c.out, TILES * TILE), WARPS * 32, BYTES, c);
    return mc_cuda_launched(d, "linear of few rows in 8 bits");
}

/* Two tiles a block where there are columns enough to fill the GPU: x is read less often. */
template <class T, int FORMAT> mc_status launch_rows(mc_device *d, const mc_eight_call &c)
{
    int64_t blocks = mc_ceil_div(c.out, TILE), processors = mc_cuda_of(d)->multiprocessors;
    bool wide = blocks > 4 * processors;
    if (c.rows > 32) return launch<T, FORMAT, 2, 8, 4>(d, c);
    if (c.rows > 16)
        return wide ? launch<T, FORMAT, 2, 4, 4>(d, c) : launch<T, FORMAT, 1, 4, 8>(d, c);
    if (c.rows > 8)
        return wide ? launch<T, FORMAT, 2, 2, 8>(d, c) : launch<T, FORMAT, 1, 2, 8>(d, c);
    return wide ? launch<T, FORMAT, 2, 1, 8>(d, c) : launch<T, FORMAT, 1, 1, 8>(d, c);
}

} // namespace

mc_status mc_eight_few_rows(mc_device *d, const mc_eight_call &c, mc_weight_format format)
{
    MC_WITH_EIGHT(c.y.dtype, format, return launch_rows<T, FORMAT>(d, c));
}
