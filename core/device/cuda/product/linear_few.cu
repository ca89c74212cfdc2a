/* Linear layers of few rows (1 to 64) in f16 or bf16: what takes time is reading the weight, once.
 *
 * A block computes 16 or 32 columns of the result for all rows; its warps share the terms. Tensor
 * cores multiply 16 rows of the weight by 8 rows of x. The order of the terms is free: a thread
 * takes 8 neighbours (16 bytes) of the weight and of x for its places in two instructions, which
 * cover the same 32 terms of both. So each thread copies what it needs itself to shared memory,
 * several steps ahead, and no thread waits for another. Weights don't depend on the kernels before:
 * they are under way before a block waits for those (mc_wait_for_earlier). */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/product/linear_few.cuh"

namespace
{

enum { MOST_ROWS = 64, TILE = 16, GROUP = 8, STEP = 32 }; /* STEP: terms of a warp at once */

using call = mc_few_call;

/* Sums over the warps, (warps, columns of x's rows, TILES * TILE) in shared memory, end here. */
template <class T, int TILES, int GROUPS, int WARPS>
__device__ void finish(const call &c, const float *sums, int first)
{
    constexpr int ROWS = GROUPS * GROUP, COLUMNS = TILES * TILE;
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += WARPS * 32) {
        int row = i / COLUMNS, column = first + i % COLUMNS;
        if (row >= c.rows || column >= c.out) continue; /* those were copies */
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w * ROWS * COLUMNS + i];
        mc_few_store<T>(c, row, column, sum, mc_few_bias(c, column));
    }
}

/* What a thread copies in a step: pieces of 16 bytes. */
template <int TILES, int GROUPS, int WARPS> struct ring {
    static constexpr int THREADS = WARPS * 32, PIECES = TILES * 2 + GROUPS;
    static constexpr int STEP_BYTES = PIECES * THREADS * 16;
    static constexpr int STAGES = 4 * STEP_BYTES <= 96 << 10 || WARPS == 16 ? 4 : 3;
    static constexpr int SUM_BYTES = WARPS * GROUPS * GROUP * TILES * TILE * (int)sizeof(float);
    static constexpr int BYTES = STAGES * STEP_BYTES > SUM_BYTES ? STAGES *STEP_BYTES : SUM_BYTES;
};

template <class T, int TILES, int GROUPS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) few_rows(const __grid_constant__ call c)
{
    using R = ring<TILES, GROUPS, WARPS>;
    extern __shared__ uint4 memory[];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, place = lane / 4,
        term = lane % 4 * 8, first = (int)blockIdx.x * TILES * TILE;
    auto piece = [&](int stage, int i) {
        return memory + (stage * R::PIECES + i) * R::THREADS + threadIdx.x;
    };
    auto copy = [&](int stage, int i, const char *row, int at) {
        int there = at + term < c.in ? 16 : 0; /* zeros after the end */
        const char *from = there ? row + (at + term) * (int)sizeof(T) : row;
        __pipeline_memcpy_async(piece(stage, i), from, 16, 16 - there);
    };
    auto copy_weight = [&](int stage, int at) {
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) { /* a row too many is not stored */
            int row = min(first + i * GROUP + place, c.out - 1);
            copy(stage, i, c.weight + row * c.weight_stride, at);
        }
    };
    auto copy_x = [&](int stage, int at) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            int row = min(g * GROUP + place, c.rows - 1);
            copy(stage, TILES * 2 + g, c.x + row * c.x_stride, at);
        }
    };
    constexpr int NEXT = WARPS * STEP, AHEAD = R::STAGES - 1;
    float result[TILES][GROUPS][4] = {};
    int begin = warp * STEP;
#pragma unroll
    for (int s = 0; s < AHEAD; s++) copy_weight(s, begin + s * NEXT);
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
        uint4 a[TILES][2];
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) a[i / 2][i % 2] = *piece(stage, i);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const uint4 b = *piece(stage, TILES * 2 + g);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const uint4 &low = a[i][0], &high = a[i][1];
                mc_few_multiply<T>(result[i][g], low.x, high.x, low.y, high.y, b.x, b.y);
                mc_few_multiply<T>(result[i][g], low.z, high.z, low.w, high.w, b.z, b.w);
            }
        }
        free_stage = stage;
        stage = stage + 1 == R::STAGES ? 0 : stage + 1;
    }
    __pipeline_wait_prior(0);
    __syncthreads(); /* sums take the place of what was copied */
    float *sums = (float *)memory;
    mc_few_spread(result, sums + warp * GROUPS * GROUP * TILES * TILE);
    __syncthreads();
    finish<T, TILES, GROUPS, WARPS>(c, sums, first);
}

template <class T, int TILES, int GROUPS, int WARPS> mc_status launch(mc_device *d, const call &c)
{
    constexpr int BYTES = ring<TILES, GROUPS, WARPS>::BYTES;
    auto kernel = few_rows<T, TILES, GROUPS, WARPS>;
    mc_allow_shared(kernel, BYTES);
    MC_LAUNCH_EARLY(d, kernel, (unsigned)mc_ceil_div(c.out, TILES * TILE), WARPS * 32, BYTES, c);
    return mc_cuda_launched(d, "linear of few rows");
}

/* Two tiles a block where there are columns enough to fill the GPU: x is read less often. More
 * warps where there are few columns and many terms. */
template <class T, int GROUPS> mc_status launch_groups(mc_device *d, const call &c)
{
    int64_t blocks = mc_ceil_div(c.out, TILE), processors = mc_cuda_of(d)->multiprocessors;
    if constexpr (GROUPS == 8) {
        return launch<T, 2, 8, 4>(d, c);
    } else {
        if (blocks > (GROUPS == 4 ? 1 : 8) * 2 * processors) return launch<T, 2, GROUPS, 8>(d, c);
        bool room = ring<1, GROUPS, 16>::BYTES <= mc_shared_limit(d);
        if (room && blocks < processors && c.in >= 2048) return launch<T, 1, GROUPS, 16>(d, c);
        return launch<T, 1, GROUPS, 8>(d, c);
    }
}

template <class T> mc_status launch_rows(mc_device *d, const call &c)
{
    mc_status status;
    if (mc_row_linear<T>(d, c, &status)) return status;
    if (c.rows <= 8) return launch_groups<T, 1>(d, c);
    if (c.rows <= 16) return launch_groups<T, 2>(d, c);
    if (c.rows <= 32) return launch_groups<T, 4>(d, c);
    return launch_groups<T, 8>(d, c);
}

/* Rows that can be loaded 16 bytes at a time. */
bool is_whole(mc_matrix m, int64_t rows)
{
    return mc_is(m.data, 16) && (rows <= 1 || m.stride % 8 == 0);
}

} // namespace

extern "C" bool mc_few_rows_takes(const mc_own_product *p)
{
    mc_dtype dtype = p->y.dtype;
    return p->kind == MC_OWN_FORWARD && p->rows >= 1 && p->rows <= MOST_ROWS && dtype != MC_F32 &&
           mc_common_dtype(p->x, p->weight, p->bias, p->pre, p->y) == dtype && p->terms % 8 == 0 &&
           p->terms >= STEP && p->terms <= 1 << 28 && p->columns <= 1 << 30 &&
           is_whole(p->x, p->rows) && is_whole(p->weight, p->columns);
}

extern "C" mc_status mc_few_rows_run(mc_device *d, const mc_own_product *p)
{
    mc_status status;
    if (mc_some_rows_run(d, p, &status)) return status;
    const call c = mc_few_call_of(p);
    if (p->y.dtype == MC_BF16) return launch_rows<__nv_bfloat16>(d, c);
    return launch_rows<__half>(d, c);
}
