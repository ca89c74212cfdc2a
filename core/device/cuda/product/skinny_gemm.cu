/* Linear layers of few rows (1 to 64) in f16 or bf16, with weights of that type or in 8 bits:
 * reading the weight, once, takes most of the time.
 *
 * A block computes 16 or 32 columns of the result for all rows; its warps divide the terms. Tensor
 * cores multiply 16 rows of the weight by 8 rows of x. The order of the terms is free: a thread
 * takes 16 bytes of a row of the weight, which are 8 or 16 consecutive terms, and as many terms of
 * x for its places in two or four instructions. So each thread copies its own terms to shared
 * memory, several steps ahead, and no thread waits for another. Weights don't depend on preceding
 * kernels: their copies start before a block waits for those (mc_wait_for_earlier). */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/product/skinny_gemm.cuh"

namespace
{

enum { MOST_ROWS = 64, TILE = 16, GROUP = 8, LEAST_TERMS = 32 };

using call = mc_few_call;

/* Writes a warp's products (16 columns by 8 rows each) as (GROUPS * 8 rows, TILES * 16 columns). */
template <int TILES, int GROUPS>
__device__ __forceinline__ void spread(const float (&result)[TILES][GROUPS][4], float *to)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = g * 8 + lane % 4 * 2 + j % 2, column = i * 16 + lane / 4 + j / 2 * 8;
                to[row * TILES * 16 + column] = result[i][g][j];
            }
}

/* Finishes sums over the warps, (warps, columns of x's rows, TILES * TILE) in shared memory. All
 * columns of a thread are the same one. */
template <class T, int FORMAT, int TILES, int GROUPS, int WARPS>
__device__ void finish(const call &c, const float *sums, int first, mc_few_column own)
{
    constexpr int ROWS = GROUPS * GROUP, COLUMNS = TILES * TILE;
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += WARPS * 32) {
        int row = i / COLUMNS, column = first + i % COLUMNS;
        if (row >= c.rows || column >= c.out) continue; /* padding of x or of the weight */
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w * ROWS * COLUMNS + i];
        mc_few_store<T, FORMAT>(c, row, column, sum, own);
    }
}

/* A thread's copies of a step: pieces of 16 bytes, X of x for each group. */
template <int FORMAT, int TILES, int GROUPS, int WARPS> struct ring {
    static constexpr int EACH = mc_few_each<FORMAT>, X = EACH / 8;
    static constexpr int THREADS = WARPS * 32, PIECES = TILES * 2 + GROUPS * X;
    static constexpr int STEP_BYTES = PIECES * THREADS * 16;
    static constexpr int STAGES = 4 * STEP_BYTES <= 96 << 10 || WARPS == 16 ? 4 : 3;
    static constexpr int SUM_BYTES = WARPS * GROUPS * GROUP * TILES * TILE * (int)sizeof(float);
    static constexpr int BYTES = STAGES * STEP_BYTES > SUM_BYTES ? STAGES *STEP_BYTES : SUM_BYTES;
};

template <class T, int FORMAT, int TILES, int GROUPS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) skinny(const __grid_constant__ call c)
{
    using R = ring<FORMAT, TILES, GROUPS, WARPS>;
    constexpr int STEP = 4 * R::EACH, SIZE = 16 / R::EACH; /* terms of a warp at once; bytes */
    extern __shared__ uint4 memory[];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, place = lane / 4,
        term = lane % 4 * R::EACH, first = (int)blockIdx.x * TILES * TILE;
    auto piece = [&](int stage, int i) {
        return memory + (stage * R::PIECES + i) * R::THREADS + threadIdx.x;
    };
    auto copy = [&](int stage, int i, int pieces, const char *row, int at, int offset) {
        int there = at + term < c.in ? 16 : 0; /* zeros after the end */
        const char *from = there ? row + offset : row;
        for (int k = 0; k < pieces; k++)
            __pipeline_memcpy_async(piece(stage, i + k), from + k * 16, 16, 16 - there);
    };
    auto copy_weight = [&](int stage, int at) {
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) { /* a row too many is not stored */
            int row = min(first + i * GROUP + place, c.out - 1);
            copy(stage, i, 1, c.weight + row * c.weight_stride, at, (at + term) * SIZE);
        }
    };
    auto copy_x = [&](int stage, int at) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            int row = min(g * GROUP + place, c.rows - 1);
            copy(stage, TILES * 2 + g * R::X, R::X, c.x + row * c.x_stride, at, (at + term) * 2);
        }
    };
    constexpr int NEXT = WARPS * STEP, AHEAD = R::STAGES - 1;
    float result[TILES][GROUPS][4] = {};
    int begin = warp * STEP;
#pragma unroll
    for (int s = 0; s < AHEAD; s++) copy_weight(s, begin + s * NEXT);
    mc_few_column own = mc_few_column_of<FORMAT>(c, first + (int)threadIdx.x % (TILES * TILE));
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
        mc_few_terms<T, FORMAT> terms[TILES];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            terms[i].load(*piece(stage, 2 * i), *piece(stage, 2 * i + 1));
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int i = 0; i < TILES; i++)
                terms[i].multiply(result[i][g], piece(stage, TILES * 2 + g * R::X), R::THREADS);
        free_stage = stage;
        stage = stage + 1 == R::STAGES ? 0 : stage + 1;
    }
    __pipeline_wait_prior(0);
    __syncthreads(); /* sums overwrite the copies */
    float *sums = (float *)memory;
    spread(result, sums + warp * GROUPS * GROUP * TILES * TILE);
    __syncthreads();
    finish<T, FORMAT, TILES, GROUPS, WARPS>(c, sums, first, own);
}

template <class T, int FORMAT, int TILES, int GROUPS, int WARPS>
mc_status launch(mc_device *d, const call &c)
{
    constexpr int BYTES = ring<FORMAT, TILES, GROUPS, WARPS>::BYTES;
    auto kernel = skinny<T, FORMAT, TILES, GROUPS, WARPS>;
    mc_allow_shared(kernel, BYTES);
    MC_LAUNCH_EARLY(d, kernel, (unsigned)mc_ceil_div(c.out, TILES * TILE), WARPS * 32, BYTES, c);
    return mc_cuda_launched(d, "linear of few rows");
}

/* Two tiles per block if the columns then still fill the GPU: x is read less often. More warps for
 * few columns and many 16-bit terms. */
template <class T, int FORMAT, int GROUPS> mc_status launch_groups(mc_device *d, const call &c)
{
    constexpr bool QUANTIZED = FORMAT != MC_WEIGHTS_FLOAT;
    constexpr int WIDE = QUANTIZED ? 4 : GROUPS == 4 ? 2 : 16; /* tiles a multiprocessor */
    int64_t blocks = mc_ceil_div(c.out, TILE), processors = mc_cuda_of(d)->multiprocessors;
    if constexpr (GROUPS == 8) {
        return launch<T, FORMAT, 2, 8, 4>(d, c);
    } else {
        if (blocks > WIDE * processors)
            return launch < T, FORMAT, 2, GROUPS, QUANTIZED && GROUPS == 4 ? 4 : 8 > (d, c);
        if constexpr (!QUANTIZED) {
            bool room = ring<FORMAT, 1, GROUPS, 16>::BYTES <= mc_shared_limit(d);
            if (room && blocks < processors && c.in >= 2048)
                return launch<T, FORMAT, 1, GROUPS, 16>(d, c);
        }
        return launch<T, FORMAT, 1, GROUPS, 8>(d, c);
    }
}

template <class T, int FORMAT> mc_status launch_rows(mc_device *d, const call &c)
{
    if (c.rows <= 8) return launch_groups<T, FORMAT, 1>(d, c);
    if (c.rows <= 16) return launch_groups<T, FORMAT, 2>(d, c);
    if (c.rows <= 32) return launch_groups<T, FORMAT, 4>(d, c);
    return launch_groups<T, FORMAT, 8>(d, c);
}

/* Rows that can be loaded 16 bytes at a time. */
bool is_whole(mc_matrix m, int64_t rows)
{
    return mc_is(m.data, 16) && (rows <= 1 || m.stride % 8 == 0);
}

} // namespace

bool mc_is_few(const mc_product *p)
{
    const mc_dtype dtype = p->y.dtype;
    if (p->kind != MC_PRODUCT_FORWARD || p->rows < 1 || p->rows > MOST_ROWS || dtype == MC_F32 ||
        p->terms > 1 << 28 || p->columns > 1 << 30 || !is_whole(p->x, p->rows) ||
        mc_common_dtype(p->x, p->bias, p->pre, p->y) != dtype)
        return false;
    if (p->quantized.data) return p->terms % 16 == 0 && mc_is(p->quantized.data, 16);
    return p->weight.dtype == dtype && p->terms % 8 == 0 && p->terms >= LEAST_TERMS &&
           is_whole(p->weight, p->columns);
}

extern "C" mc_status mc_skinny_takes(mc_device *, const void *call, bool)
{
    return mc_is_few((const mc_product *)call) ? MC_OK : MC_ERR_UNSUPPORTED;
}

extern "C" mc_status mc_skinny(mc_device *d, const void *asked)
{
    const call c = mc_few_call_of((const mc_product *)asked);
    return mc_with_format(c, [&](auto type, auto format) {
        return launch_rows<decltype(type), decltype(format)::value>(d, c);
    });
}
