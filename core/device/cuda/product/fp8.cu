/* Training in 8 bits: casts with a transposed copy and what is seen on the way, the scales of the
 * next update, and bytes as 16-bit numbers for GPUs without products of bytes. */
#include "core/device/cuda/product/fp8_internal.h"
#include "core/device/cuda/elementwise/activation.cuh"

namespace
{

/* ---- casting --------------------------------------------------------------------------------- */

/* A block casts a tile; a thread two pieces of 4 rows and 4 columns of it. */
enum { THREADS = 256, TILE_ROWS = 128, TILE_COLUMNS = 64, PIECE = 4 };
enum { GROUPS = TILE_ROWS / PIECE, PITCH = GROUPS + 1 /* words */ };
enum { ACROSS = TILE_COLUMNS / PIECE, DOWN = THREADS / ACROSS /* threads */ };

/* What is cast: x, activation(x), or x * activation'(pre). */
enum source { PLAIN, ACTIVATED, SLOPED };

struct cast_work {
    mc_view x, pre;
    mc_activation activation;
    float *partial; /* (tiles of rows, columns), sums of the columns of a tile; NULL: none */
    int64_t rows, columns, padded;
    const mc_fp8_scale *scale;
    mc_fp8_seen *seen;
    uint8_t *data, *transposed;
    bool whole; /* bytes may be stored four at a time */
};

struct lost {
    uint32_t largest, saturated, vanished;
};

/* Four numbers as bytes, the first lowest. All are finite. */
template <mc_fp8_format FORMAT>
__device__ __forceinline__ uint32_t codes_of(const float (&v)[PIECE])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t low, high;
    if (FORMAT == MC_FP8_E4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    }
    return low | (uint32_t)high << 16;
#else
    uint32_t word = 0;
    for (int i = 0; i < PIECE; i++) word |= (uint32_t)mc_fp8_code(FORMAT, v[i]) << 8 * i;
    return word;
#endif
}

/* n elements of a row from `column` on, zeros after them. T: float, or a type of 16 bits where x is
 * of one. */
template <source SOURCE, class T>
__device__ __forceinline__ void load_piece(const cast_work &w, int64_t row, int64_t column, int n,
                                           float (&v)[PIECE])
{
    mc_load<mc_mixed>(w.x, row * w.x.stride + column, n, v);
    if (SOURCE == ACTIVATED) mc_activate<T>(w.activation, v);
    if (SOURCE == SLOPED) {
        float pre[PIECE];
        mc_load<mc_mixed>(w.pre, row * w.pre.stride + column, n, pre);
        mc_activate_backward<T>(w.activation, pre, v);
    }
    if (SOURCE != PLAIN) mc_unpack<mc_mixed>(w.x, mc_pack<mc_mixed>(w.x, v), v);
}

/* Most pieces have lost nothing: none of their elements is beyond the largest number, and no byte
 * is 0. Counting is for the others, since it takes as many instructions as the cast. */
template <mc_fp8_format FORMAT>
__device__ __forceinline__ void count_lost(const float (&v)[PIECE], float largest, uint32_t word,
                                           lost &lost)
{
    const float most = FORMAT == MC_FP8_E4M3 ? 448.0f : 57344.0f;
    bool a_zero = ((word & 0x7f7f7f7fu) - 0x01010101u) & 0x80808080u;
    if (largest <= most && !a_zero) return;
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        lost.saturated += fabsf(v[i]) > most && fabsf(v[i]) < INFINITY;
        lost.vanished += v[i] != 0.0f && (word >> 8 * i & 0x7f) == 0;
    }
}

/* As a word of bytes. */
template <mc_fp8_format FORMAT>
__device__ __forceinline__ uint32_t cast_piece(float (&v)[PIECE], float scale, lost &lost)
{
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
        v[i] *= scale;
    }
    lost.largest = max(lost.largest, largest);
    uint32_t word = 0;
    if (largest < 0x7f800000)
        word = codes_of<FORMAT>(v);
    else
        for (int i = 0; i < PIECE; i++) word |= (uint32_t)mc_fp8_code(FORMAT, v[i]) << 8 * i;
    count_lost<FORMAT>(v, __uint_as_float(largest) * scale, word, lost);
    return word;
}

__device__ __forceinline__ void store_word(uint8_t *to, uint32_t word, int n, bool whole)
{
    if (whole && n == PIECE) {
        *(uint32_t *)to = word;
        return;
    }
    for (int i = 0; i < PIECE; i++)
        if (i < n) to[i] = (uint8_t)(word >> 8 * i);
}

/* How many of `count` elements from `first` on are left, PIECE at most. */
__device__ __forceinline__ int left_of(int64_t count, int64_t first)
{
    int64_t left = count - first;
    return left < 0 ? 0 : left < PIECE ? (int)left : (int)PIECE;
}

__device__ __forceinline__ void note(mc_fp8_seen *seen, lost own)
{
    __shared__ uint32_t shared[3][THREADS / 32];
    own.largest = mc_block_largest(own.largest, shared[0]);
    own.saturated = mc_block_sum(own.saturated, shared[1]);
    own.vanished = mc_block_sum(own.vanished, shared[2]);
    if (threadIdx.x) return;
    atomicMax(&seen->largest, own.largest);
    if (own.saturated) atomicAdd((unsigned long long *)&seen->saturated, own.saturated);
    if (own.vanished) atomicAdd((unsigned long long *)&seen->vanished, own.vanished);
}

/* The sums of a tile's columns, of those of its threads. */
__device__ __forceinline__ void add_columns(const cast_work &w, const float (&sum)[PIECE],
                                            int64_t column0)
{
    __shared__ float sums[DOWN][TILE_COLUMNS];
#pragma unroll
    for (int j = 0; j < PIECE; j++)
        sums[threadIdx.x / ACROSS][threadIdx.x % ACROSS * PIECE + j] = sum[j];
    __syncthreads();
    int64_t column = column0 + threadIdx.x;
    if (threadIdx.x >= TILE_COLUMNS || column >= w.columns) return;
    float total = 0;
    for (int i = 0; i < DOWN; i++) total += sums[i][threadIdx.x];
    w.partial[blockIdx.y * w.columns + column] = total;
}

template <mc_fp8_format FORMAT, source SOURCE, class T>
__global__ void __launch_bounds__(THREADS) cast(const __grid_constant__ cast_work w)
{
    __shared__ uint32_t tile[TILE_COLUMNS * PITCH];
    const int64_t row0 = (int64_t)blockIdx.y * TILE_ROWS,
                  column0 = (int64_t)blockIdx.x * TILE_COLUMNS;
    const int across = (int)threadIdx.x % ACROSS;
    const int64_t column = column0 + across * PIECE;
    const float scale = w.scale->scale;
    lost own = {0, 0, 0};
    float sum[PIECE] = {};
    for (int down = (int)threadIdx.x / ACROSS; down < GROUPS; down += DOWN) {
        uint32_t word[PIECE];
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            int64_t row = row0 + down * PIECE + i;
            int n = row < w.rows ? left_of(w.columns, column) : 0;
            word[i] = 0;
            if (!n) continue;
            float v[PIECE];
            load_piece<SOURCE, T>(w, row, column, n, v);
#pragma unroll
            for (int j = 0; j < PIECE && SOURCE == SLOPED; j++) sum[j] += v[j];
            word[i] = cast_piece<FORMAT>(v, scale, own);
            if (w.data) store_word(w.data + row * w.columns + column, word[i], n, w.whole);
        }
#pragma unroll
        for (int j = 0; j < PIECE; j++) { /* the bytes of a column, of row after row */
            uint32_t turned = 0;
#pragma unroll
            for (int i = 0; i < PIECE; i++) turned |= (word[i] >> 8 * j & 0xff) << 8 * i;
            tile[(across * PIECE + j) * PITCH + down] = turned;
        }
    }
    if (w.transposed) {
        __syncthreads();
        int64_t row = row0 + (int64_t)(threadIdx.x % 32) * PIECE;
        for (int j = (int)threadIdx.x / 32; j < TILE_COLUMNS; j += THREADS / 32) {
            int n = column0 + j < w.columns ? left_of(w.padded, row) : 0;
            if (n)
                store_word(w.transposed + (column0 + j) * w.padded + row,
                           tile[j * PITCH + (int)threadIdx.x % 32], n, w.whole);
        }
    }
    if (SOURCE == SLOPED && w.partial) add_columns(w, sum, column0);
    if (!w.seen) return;
    __syncthreads();
    note(w.seen, own);
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        atomicAdd((unsigned long long *)&w.seen->elements,
                  (unsigned long long)(w.rows * w.columns));
}

/* The largest magnitude alone: a thread looks at pieces one grid apart. */
template <source SOURCE, class T>
__global__ void __launch_bounds__(THREADS) look(const __grid_constant__ cast_work w)
{
    __shared__ uint32_t shared[THREADS / 32];
    uint32_t largest = 0;
    int64_t across = (w.columns + PIECE - 1) / PIECE, pieces = w.rows * across;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < pieces;
         i += (int64_t)gridDim.x * THREADS) {
        float v[PIECE];
        int64_t row = i / across, column = (i - row * across) * PIECE;
        load_piece<SOURCE, T>(w, row, column, left_of(w.columns, column), v);
#pragma unroll
        for (int k = 0; k < PIECE; k++) largest = max(largest, __float_as_uint(v[k]) & 0x7fffffffu);
    }
    largest = mc_block_largest(largest, shared);
    if (threadIdx.x == 0) atomicMax(&w.seen->largest, largest);
}

template <source SOURCE, class T>
void launch(mc_device *d, const cast_work &w, mc_fp8_format format, dim3 grid)
{
    cudaStream_t stream = mc_cuda_of(d)->stream;
    int64_t pieces = w.rows * mc_ceil_div(w.columns, PIECE);
    if (w.scale && format == MC_FP8_E4M3) {
        cast<MC_FP8_E4M3, SOURCE, T><<<grid, THREADS, 0, stream>>>(w);
    } else if (w.scale) {
        cast<MC_FP8_E5M2, SOURCE, T><<<grid, THREADS, 0, stream>>>(w);
    } else if (pieces) {
        int64_t resident = mc_resident_blocks(d, look<SOURCE, T>, THREADS, 0);
        unsigned blocks = (unsigned)mc_least(mc_ceil_div(pieces, THREADS), resident);
        look<SOURCE, T><<<blocks, THREADS, 0, stream>>>(w);
    }
}

__global__ void update(const __grid_constant__ mc_fp8_update_call c)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= c.count) return;
    mc_fp8_format format = mc_fp8_format_of(((int)c.first_role + i) % MC_FP8_ROLES);
    mc_fp8_seen all = {0, 0, 0, 0, 0};
    for (int rank = 0; rank < c.ranks; rank++)
        mc_fp8_add_seen(&all, &c.seen[(int64_t)rank * c.count + i]);
    if (c.current)
        mc_fp8_set_scale(&c.scales[i], format, __uint_as_float(all.largest), c.margin);
    else
        mc_fp8_advance(&c.scales[i], format, all.largest, c.margin);
    if (c.clear) c.clear[i] = {0, 0, 0, 0, 0};
    if (!c.total) return;
    atomicAdd((unsigned long long *)&c.total->elements, (unsigned long long)all.elements);
    atomicAdd((unsigned long long *)&c.total->saturated, (unsigned long long)all.saturated);
    atomicAdd((unsigned long long *)&c.total->vanished, (unsigned long long)all.vanished);
}

/* ---- bytes as numbers of 16 bits ------------------------------------------------------------- */

struct decode {
    mc_fp8_matrix x;
    mc_view y;

    template <class T> __device__ void run(int64_t row, int64_t column, int n) const
    {
        float v[mc_width<T>], inverse = *x.inverse;
        const uint8_t *from = x.data + row * x.stride + column;
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            v[i] = i < n ? inverse * mc_fp8_value(x.format, from[i]) : 0.0f;
        mc_store<T>(y, row * y.stride + column, n, v);
    }
};

} // namespace

extern "C" mc_status mc_cuda_fp8_cast(mc_device *d, const mc_fp8_cast_call *c)
{
    bool whole = c->columns % PIECE == 0 && c->padded % PIECE == 0 && mc_is(c->data, PIECE) &&
                 mc_is(c->transposed, PIECE);
    cast_work w = {mc_view_of(c->x, c->rows, PIECE),
                   mc_view_of(c->pre, c->rows, PIECE),
                   c->activation,
                   NULL,
                   c->rows,
                   c->columns,
                   c->padded,
                   c->scale,
                   c->seen,
                   c->data,
                   c->transposed,
                   whole};
    int64_t rows = c->transposed ? mc_most(c->rows, c->padded) : c->rows;
    if (!c->columns || !rows) return MC_OK;
    dim3 grid((unsigned)mc_ceil_div(c->columns, TILE_COLUMNS),
              (unsigned)mc_ceil_div(rows, TILE_ROWS));
    size_t bytes = c->sums && c->scale ? grid.y * (size_t)c->columns * sizeof(float) : 0;
    if (bytes && !(w.partial = (float *)d->alloc(d, bytes))) return MC_ERR_NOMEM;
    bool half = c->x.dtype != MC_F32;
    if (c->activation == MC_ACTIVATION_NONE)
        launch<PLAIN, float>(d, w, c->format, grid);
    else if (!c->pre.data && half)
        launch<ACTIVATED, __nv_bfloat16>(d, w, c->format, grid);
    else if (!c->pre.data)
        launch<ACTIVATED, float>(d, w, c->format, grid);
    else if (half)
        launch<SLOPED, __nv_bfloat16>(d, w, c->format, grid);
    else
        launch<SLOPED, float>(d, w, c->format, grid);
    if (bytes) mc_add_partials(d, w.partial, grid.y, c->columns, {1, {c->sums}});
    if (bytes) d->free(d, w.partial, bytes);
    return mc_cuda_launched(d, "fp8_cast");
}

extern "C" mc_status mc_cuda_fp8_update(mc_device *d, const mc_fp8_update_call *c)
{
    unsigned blocks = (unsigned)mc_ceil_div(c->count, 64);
    if (blocks) update<<<blocks, 64, 0, mc_cuda_of(d)->stream>>>(*c);
    return mc_cuda_launched(d, "fp8_update");
}

extern "C" void mc_cuda_fp8_decode(mc_device *d, const mc_fp8_matrix *x, int64_t rows,
                                   int64_t columns, mc_matrix y)
{
    MC_WITH_TYPE(y.dtype, {
        decode f = {*x, mc_view_of(y, rows, mc_width<T>)};
        mc_launch_chunks<T>(d, rows, columns, f);
    });
}
