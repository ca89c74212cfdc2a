/* Training in 8 bits: casts with a transposed copy and what is seen on the way, casts with a scale
 * for each row, transposed bytes, the scales of the next update, and bytes as 16-bit numbers for
 * GPUs without products of bytes. */
#include "core/device/cuda/product/fp8_internal.h"
#include "core/device/cuda/elementwise/activation.cuh"
#include "core/device/cuda/elementwise/fp8.cuh"

namespace
{

/* ---- casting --------------------------------------------------------------------------------- */

/* A block casts a tile. A thread casts pieces of 4 rows and a chunk of columns (mc_width): all loads
 * of a piece are issued before the first is used, since it is the bytes in flight that limit the
 * rate. With 16 bits in whole chunks (T is their type) a piece is 4 loads of 16 bytes, and the block
 * has one a thread; T is mc_mixed for everything else. */
enum { THREADS = 256, TILE_ROWS = 128, TILE_COLUMNS = 64, ROWS = 4 };
enum { GROUPS = TILE_ROWS / ROWS, UNIT = 16 /* bytes of a column that are stored at once */ };

/* What is cast: x, activation(x), x * activation'(pre), activation(x) * factor or, with two halves of
 * columns, x * factor * activation'(pre) and x * activation(pre). */
enum source { PLAIN, ACTIVATED, SLOPED, GATED, GATE_SLOPED };

template <source S> constexpr bool is_gradient = S == SLOPED || S == GATE_SLOPED;

struct cast_work {
    mc_view x, pre, factor;
    int64_t half; /* columns of a half */
    mc_activation activation;
    float *partial; /* (tiles of rows, columns), sums of the columns of a tile; NULL: none */
    int64_t rows, columns, padded;
    const float *scale;
    mc_fp8_seen *seen;
    uint8_t *data, *transposed;
    bool whole;         /* bytes of a chunk may be stored at once */
    bool whole_columns; /* and a unit of a column */
};

struct lost {
    uint32_t largest, saturated, vanished;
};

/* The larger of two pairs of 16-bit numbers, each for itself. */
__device__ __forceinline__ uint32_t larger_pair(uint32_t a, uint32_t b)
{
#ifdef __CUDA_ARCH__
    return __vmaxu2(a, b);
#else
    return max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16;
#endif
}

/* The largest magnitude of a chunk, as the bits of an f32. */
template <class T>
__device__ __forceinline__ uint32_t largest_of(mc_bits b, const float (&v)[mc_width<T>])
{
    uint32_t largest = 0;
    if constexpr (mc_is_half<T>) { /* the order of its bits is that of the numbers */
#pragma unroll
        for (int i = 0; i < 4; i++) largest = larger_pair(largest, b.word[i] & 0x7fff7fff);
        largest = max(largest & 0xffff, largest >> 16);
        constexpr bool f16 = std::is_same_v<T, __half>;
        largest = f16 ? __float_as_uint(mc_unpack_f16(largest).x) : largest << 16;
    } else {
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    }
    return largest;
}

/* What was loaded for a chunk. */
struct loaded {
    mc_bits x, pre, factor;
};

/* a *= b, element by element. */
template <int WIDTH>
__device__ __forceinline__ void multiply(float (&a)[WIDTH], const float (&b)[WIDTH])
{
#pragma unroll
    for (int i = 0; i < WIDTH; i++) a[i] *= b[i];
}

/* v becomes what is cast, for a result of type R; `second`: in the second half of columns. */
template <source SOURCE, class R, int WIDTH>
__device__ __forceinline__ void transform(mc_activation activation, bool second, float (&v)[WIDTH],
                                          float (&pre)[WIDTH], const float (&factor)[WIDTH])
{
    if (SOURCE == ACTIVATED || SOURCE == GATED) mc_activate<R>(activation, v);
    if (SOURCE == GATED) multiply(v, factor);
    if (SOURCE == SLOPED) mc_activate_backward<R>(activation, pre, v);
    if (SOURCE != GATE_SLOPED) return;
    if (second) {
        mc_activate<R>(activation, pre);
        multiply(v, pre);
    } else {
        multiply(v, factor);
        mc_activate_backward<R>(activation, pre, v);
    }
}

/* What is cast at a column, in x's dtype. */
template <source SOURCE, class T>
__device__ __forceinline__ mc_bits transformed(const cast_work &w, int64_t column, const loaded &l)
{
    if (SOURCE == PLAIN) return l.x;
    const bool second = column >= w.half;
    float v[mc_width<T>], pre[mc_width<T>], factor[mc_width<T>];
    mc_unpack<T>(w.x, l.x, v);
    mc_unpack<T>(w.pre, l.pre, pre);
    mc_unpack<T>(w.factor, l.factor, factor);
    if (mc_is_f32<T>(w.x))
        transform<SOURCE, float>(w.activation, second, v, pre, factor);
    else
        transform<SOURCE, __nv_bfloat16>(w.activation, second, v, pre, factor);
    return mc_pack<T>(w.x, v);
}

/* How many of `count` elements from `first` on are left, `most` at most. */
__device__ __forceinline__ int left_of(int64_t count, int64_t first, int most)
{
    int64_t left = count - first;
    return left < 0 ? 0 : left < most ? (int)left : most;
}

/* A chunk of each of some rows; zeros where there is no row or column. */
template <int COUNT> struct piece {
    loaded row[COUNT];
};

/* A chunk of a row; zeros where n is 0. */
template <class T>
__device__ __forceinline__ mc_bits load_chunk(const mc_view &x, int64_t row, int64_t column, int n)
{
    return mc_load_bits<T, mc_whole<T>>(x, row * x.stride + column, n);
}

template <source SOURCE, class T, int COUNT>
__device__ __forceinline__ piece<COUNT> load_piece(const cast_work &w, int64_t row, int64_t column)
{
    const bool second = SOURCE == GATE_SLOPED && column >= w.half;
    const int n = left_of(w.columns, column, mc_width<T>);
    const int64_t at = second ? column - w.half : column;
    piece<COUNT> p;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int here = row + i < w.rows ? n : 0;
        p.row[i] = {load_chunk<T>(w.x, row + i, at, here), {{0, 0, 0, 0}}, {{0, 0, 0, 0}}};
        if (is_gradient<SOURCE>) p.row[i].pre = load_chunk<T>(w.pre, row + i, at, here);
        if (SOURCE == GATED || SOURCE == GATE_SLOPED)
            p.row[i].factor = load_chunk<T>(w.factor, row + i, at, second ? 0 : here);
    }
    return p;
}

/* A word of bytes has lost what is beyond the largest number, and what became zero. Most have lost
 * neither. */
template <mc_fp8_format FORMAT>
__device__ __forceinline__ void count_lost(const float *v, float scale, float largest,
                                           uint32_t word, lost &lost)
{
    const float most = FORMAT == MC_FP8_E4M3 ? 448.0f : 57344.0f;
    /* the upper bit of each byte that is zero but for its sign */
    uint32_t zeros = ~((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) & 0x80808080u;
    if (zeros) {
        lost.vanished += __popc(zeros);
#pragma unroll
        for (int i = 0; i < 4; i++) lost.vanished -= v[i] == 0.0f;
    }
    if (largest * scale <= most) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float size = fabsf(v[i] * scale);
        lost.saturated += size > most && size < INFINITY;
    }
}

/* Four numbers as bytes; `finite`: all of them are. */
template <mc_fp8_format FORMAT>
__device__ __forceinline__ uint32_t word_of(const float *scaled, bool finite)
{
    return finite ? mc_finite_codes_of<FORMAT>(scaled) : mc_codes_of<FORMAT>(scaled);
}

/* A chunk as bytes, four a word. */
template <mc_fp8_format FORMAT, class T>
__device__ __forceinline__ void cast_chunk(mc_bits b, const float (&v)[mc_width<T>], float scale,
                                           uint32_t (&word)[mc_width<T> / 4], lost &lost)
{
    constexpr int WORDS = mc_width<T> / 4;
    const uint32_t largest = largest_of<T>(b, v);
    lost.largest = max(lost.largest, largest);
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        float scaled[4];
#pragma unroll
        for (int i = 0; i < 4; i++) scaled[i] = v[4 * k + i] * scale;
        word[k] = word_of<FORMAT>(scaled, largest < 0x7f800000);
        count_lost<FORMAT>(v + 4 * k, scale, __uint_as_float(largest), word[k], lost);
    }
}

/* The first n bytes of some words; `whole`: `to` is aligned to all of them. */
template <int WORDS>
__device__ __forceinline__ void store_bytes(uint8_t *to, const uint32_t (&word)[WORDS], int n,
                                            bool whole)
{
    if (whole && n == 4 * WORDS) {
        if constexpr (WORDS == 1) *(uint32_t *)to = word[0];
        if constexpr (WORDS == 2) *(uint2 *)to = make_uint2(word[0], word[1]);
        if constexpr (WORDS == 4) mc_store_16_bytes(to, {{word[0], word[1], word[2], word[3]}});
        return;
    }
#pragma unroll
    for (int i = 0; i < 4 * WORDS; i++)
        if (i < n) to[i] = (uint8_t)(word[i / 4] >> i % 4 * 8);
}

/* The first n of 8 bytes, zeros after them; `whole`: `from` is aligned to 8. */
__device__ __forceinline__ void load_bytes(const uint8_t *from, int n, bool whole,
                                           uint32_t (&word)[2])
{
    if (whole && n == 8) {
        uint2 v = *(const uint2 *)from;
        word[0] = v.x, word[1] = v.y;
        return;
    }
    word[0] = word[1] = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n) word[i / 4] |= (uint32_t)from[i] << i % 4 * 8;
}

/* ---- the transposed copy --------------------------------------------------------------------- */

/* Where a tile has the word of 4 rows of a column: units of a column are mixed by the column's
 * chunk, so that neither the writes of a warp (one row group, all columns j of a chunk) nor its
 * reads (8 units of a column) meet in a bank of shared memory. */
__device__ __forceinline__ int place_of(int column, int group)
{
    return column * GROUPS + ((group / 4) ^ (column / 8)) * 4 + group % 4;
}

/* Bytes of a word or another, as __byte_perm numbers them. */
__device__ __forceinline__ uint32_t choose_bytes(uint32_t low, uint32_t high, uint32_t selector)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, selector);
#else
    uint64_t both = low | (uint64_t)high << 32, word = 0;
    for (int i = 0; i < 4; i++) word |= (both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return (uint32_t)word;
#endif
}

/* Four columns of four rows, of rows as words. */
__device__ __forceinline__ void turn(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                     uint32_t (&column)[4])
{
    uint32_t low = choose_bytes(a, b, 0x5140), high = choose_bytes(c, d, 0x5140);
    column[0] = choose_bytes(low, high, 0x5410);
    column[1] = choose_bytes(low, high, 0x7632);
    low = choose_bytes(a, b, 0x7362);
    high = choose_bytes(c, d, 0x7362);
    column[2] = choose_bytes(low, high, 0x5410);
    column[3] = choose_bytes(low, high, 0x7632);
}

/* The tile's columns, a unit a thread at a time. */
__device__ __forceinline__ void store_columns(const cast_work &w, const uint32_t *tile,
                                              int64_t row0, int64_t column0)
{
    enum { UNITS = TILE_ROWS / UNIT };
#pragma unroll
    for (int i = (int)threadIdx.x; i < TILE_COLUMNS * UNITS; i += THREADS) {
        const int j = i / UNITS, unit = i % UNITS;
        const int64_t column = column0 + j, row = row0 + unit * UNIT;
        const int n = column < w.columns ? left_of(w.padded, row, UNIT) : 0;
        if (!n) continue;
        uint4 v = *(const uint4 *)&tile[place_of(j, unit * 4)];
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
        store_bytes(w.transposed + column * w.padded + row, word, n, w.whole_columns);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

__device__ __forceinline__ void note(mc_fp8_seen *seen, lost own)
{
    static_assert(TILE_ROWS * TILE_COLUMNS < 1 << 16, "both counts of a block in one word");
    __shared__ uint32_t shared[2][THREADS / 32];
    own.largest = mc_block_largest(own.largest, shared[0]);
    uint32_t both = mc_block_sum(own.saturated | own.vanished << 16, shared[1]);
    if (threadIdx.x) return;
    atomicMax(&seen->largest, own.largest);
    if (both & 0xffff) atomicAdd((unsigned long long *)&seen->saturated, both & 0xffff);
    if (both >> 16) atomicAdd((unsigned long long *)&seen->vanished, both >> 16);
}

/* The sums of a tile's columns, of those of its threads, each of a chunk. */
template <int WIDTH>
__device__ __forceinline__ void add_columns(const cast_work &w, float (&sum)[WIDTH],
                                            int64_t column0)
{
    enum { ACROSS = TILE_COLUMNS / WIDTH, WARPS = THREADS / 32 };
    __shared__ float sums[WARPS][TILE_COLUMNS];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
#pragma unroll
        for (int lane = 16; lane >= ACROSS; lane /= 2)
            sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], lane);
        if (threadIdx.x % 32 < ACROSS)
            sums[threadIdx.x / 32][threadIdx.x % 32 * WIDTH + j] = sum[j];
    }
    __syncthreads();
    int64_t column = column0 + threadIdx.x;
    if (threadIdx.x >= TILE_COLUMNS || column >= w.columns) return;
    float total = 0;
    for (int i = 0; i < WARPS; i++) total += sums[i][threadIdx.x];
    w.partial[blockIdx.y * w.columns + column] = total;
}

/* A piece: its rows' bytes go to memory, its columns' to the tile. */
template <mc_fp8_format FORMAT, source SOURCE, class T>
__device__ __forceinline__ void cast_piece(const cast_work &w, int64_t row, int64_t column,
                                           float scale, uint32_t *tile, int group, int across,
                                           float (&sum)[mc_width<T>], lost &own)
{
    constexpr int WIDTH = mc_width<T>, WORDS = WIDTH / 4;
    uint32_t word[ROWS][WORDS];
    const piece<ROWS> p = load_piece<SOURCE, T, ROWS>(w, row, column);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float v[WIDTH];
        mc_bits b = transformed<SOURCE, T>(w, column, p.row[i]);
        mc_unpack<T>(w.x, b, v);
#pragma unroll
        for (int j = 0; j < WIDTH && is_gradient<SOURCE>; j++) sum[j] += v[j];
        cast_chunk<FORMAT, T>(b, v, scale, word[i], own);
        int n = row + i < w.rows ? left_of(w.columns, column, WIDTH) : 0;
        if (w.data && n) store_bytes(w.data + (row + i) * w.columns + column, word[i], n, w.whole);
    }
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        uint32_t turned[4];
        turn(word[0][k], word[1][k], word[2][k], word[3][k], turned);
#pragma unroll
        for (int j = 0; j < 4; j++) tile[place_of(across * WIDTH + 4 * k + j, group)] = turned[j];
    }
}

template <mc_fp8_format FORMAT, source SOURCE, class T>
__global__ void __launch_bounds__(THREADS) cast(const __grid_constant__ cast_work w)
{
    constexpr int WIDTH = mc_width<T>, ACROSS = TILE_COLUMNS / WIDTH, DOWN = THREADS / ACROSS;
    __shared__ uint4 tile[TILE_COLUMNS * TILE_ROWS / UNIT];
    const int64_t row0 = (int64_t)blockIdx.y * TILE_ROWS,
                  column0 = (int64_t)blockIdx.x * TILE_COLUMNS;
    const int across = (int)threadIdx.x % ACROSS;
    lost own = {0, 0, 0};
    float sum[WIDTH] = {};
#pragma unroll
    for (int pass = 0; pass < GROUPS / DOWN; pass++) {
        int group = pass * DOWN + (int)threadIdx.x / ACROSS;
        cast_piece<FORMAT, SOURCE, T>(w, row0 + group * ROWS, column0 + across * WIDTH, *w.scale,
                                      (uint32_t *)tile, group, across, sum, own);
    }
    if (w.transposed) {
        __syncthreads();
        store_columns(w, (const uint32_t *)tile, row0, column0);
    }
    if (is_gradient<SOURCE> && w.partial) add_columns(w, sum, column0);
    if (!w.seen) return;
    note(w.seen, own);
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        atomicAdd((unsigned long long *)&w.seen->elements,
                  (unsigned long long)(w.rows * w.columns));
}

/* The largest magnitude alone: a thread looks at chunks one grid apart. */
template <source SOURCE, class T>
__global__ void __launch_bounds__(THREADS) look(const __grid_constant__ cast_work w)
{
    __shared__ uint32_t shared[THREADS / 32];
    uint32_t largest = 0;
    int64_t across = (w.columns + mc_width<T> - 1) / mc_width<T>, chunks = w.rows * across;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < chunks;
         i += (int64_t)gridDim.x * THREADS) {
        float v[mc_width<T>];
        int64_t row = i / across, column = (i - row * across) * mc_width<T>;
        piece<1> p = load_piece<SOURCE, T, 1>(w, row, column);
        mc_bits b = transformed<SOURCE, T>(w, column, p.row[0]);
        mc_unpack<T>(w.x, b, v);
        largest = max(largest, largest_of<T>(b, v));
    }
    largest = mc_block_largest(largest, shared);
    if (threadIdx.x == 0) atomicMax(&w.seen->largest, largest);
}

template <source SOURCE, class T>
void launch(mc_device *d, const cast_work &w, mc_fp8_format format, dim3 grid)
{
    cudaStream_t stream = mc_cuda_of(d)->stream;
    int64_t chunks = w.rows * mc_ceil_div(w.columns, mc_width<T>);
    if (w.scale && format == MC_FP8_E4M3) {
        cast<MC_FP8_E4M3, SOURCE, T><<<grid, THREADS, 0, stream>>>(w);
    } else if (w.scale) {
        cast<MC_FP8_E5M2, SOURCE, T><<<grid, THREADS, 0, stream>>>(w);
    } else if (chunks) {
        int64_t resident = mc_resident_blocks(d, look<SOURCE, T>, THREADS, 0);
        unsigned blocks = (unsigned)mc_least(mc_ceil_div(chunks, THREADS), resident);
        look<SOURCE, T><<<blocks, THREADS, 0, stream>>>(w);
    }
}

/* What a gate multiplies with: the second half of its input. */
mc_matrix factor_of(const mc_fp8_cast_call *c)
{
    if (!c->gated) return {};
    return c->pre.data ? mc_second_half(c->pre, c->columns / 2) : mc_second_half(c->x, c->columns);
}

/* The dtype of all that is read, if that is in whole chunks. */
mc_dtype whole_dtype_of(const mc_fp8_cast_call *c)
{
    int64_t columns = c->gated && c->pre.data ? c->columns / 2 : c->columns;
    return mc_whole_dtype(columns, c->x, c->pre, factor_of(c));
}

template <class T>
void launch_source(mc_device *d, cast_work w, const mc_fp8_cast_call *c, dim3 grid)
{
    constexpr int WIDTH = mc_width<T>;
    w.x = mc_view_of(c->x, c->rows, WIDTH);
    w.pre = mc_view_of(c->pre, c->rows, WIDTH);
    w.factor = mc_view_of(factor_of(c), c->rows, WIDTH);
    w.half = c->columns / 2;
    w.whole = c->columns % WIDTH == 0 && mc_is(c->data, WIDTH);
    if (c->gated && c->pre.data)
        launch<GATE_SLOPED, T>(d, w, c->format, grid);
    else if (c->gated)
        launch<GATED, T>(d, w, c->format, grid);
    else if (c->activation == MC_ACTIVATION_NONE)
        launch<PLAIN, T>(d, w, c->format, grid);
    else if (!c->pre.data)
        launch<ACTIVATED, T>(d, w, c->format, grid);
    else
        launch<SLOPED, T>(d, w, c->format, grid);
}

/* ---- rows with a scale each ------------------------------------------------------------------ */

struct rows_work {
    mc_view x;
    const float *factor; /* NULL: none */
    int64_t columns;
    int margin;
    uint8_t *data;
    float *inverse;
    bool whole; /* bytes of a chunk may be stored at once */
};

/* The chunk of a row at a column, as loaded. */
template <class T>
__device__ __forceinline__ mc_bits load_of_row(const rows_work &w, int64_t column)
{
    return mc_load_bits<T, mc_whole<T>>(w.x, blockIdx.x * w.x.stride + column,
                                        left_of(w.columns, column, mc_width<T>));
}

/* Its numbers, with their factors. */
template <class T>
__device__ __forceinline__ void numbers_of(const rows_work &w, mc_bits b, int64_t column,
                                           float (&v)[mc_width<T>])
{
    mc_unpack<T>(w.x, b, v);
    if (!w.factor) return;
    if constexpr (mc_whole<T>) {
#pragma unroll
        for (int i = 0; i < mc_width<T>; i += 4) {
            float4 f = *(const float4 *)(w.factor + column + i);
            v[i] *= f.x, v[i + 1] *= f.y, v[i + 2] *= f.z, v[i + 3] *= f.w;
        }
    } else {
        for (int i = 0; i < mc_width<T>; i++)
            if (column + i < w.columns) v[i] *= w.factor[column + i];
    }
}

template <class T>
__device__ __forceinline__ uint32_t largest_at(const rows_work &w, mc_bits b, int64_t column)
{
    float v[mc_width<T>];
    uint32_t largest = 0;
    if (column >= w.columns) return 0;
    numbers_of<T>(w, b, column, v);
    if (!w.factor) return largest_of<T>(b, v);
#pragma unroll
    for (int i = 0; i < mc_width<T>; i++)
        largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    return largest;
}

template <class T>
__device__ __forceinline__ void cast_at(const rows_work &w, mc_bits b, int64_t column, float scale,
                                        bool finite)
{
    float v[mc_width<T>];
    uint32_t word[mc_width<T> / 4];
    if (column >= w.columns) return;
    numbers_of<T>(w, b, column, v);
#pragma unroll
    for (int i = 0; i < mc_width<T>; i++) v[i] *= scale;
#pragma unroll
    for (int k = 0; k < mc_width<T> / 4; k++) word[k] = word_of<MC_FP8_E4M3>(v + 4 * k, finite);
    store_bytes(w.data + blockIdx.x * w.columns + column, word,
                left_of(w.columns, column, mc_width<T>), w.whole);
}

/* A block casts a row. A thread keeps KEPT chunks of it, so that 16,384 columns of 16 bits are read
 * once; chunks after these are read twice. */
template <class T>
__global__ void __launch_bounds__(THREADS) cast_rows(const __grid_constant__ rows_work w)
{
    enum { KEPT = 8 };
    __shared__ uint32_t shared[THREADS / 32];
    const int64_t first = (int64_t)threadIdx.x * mc_width<T>, step = THREADS * mc_width<T>;
    mc_bits kept[KEPT];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++) kept[i] = load_of_row<T>(w, first + i * step);
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        largest = max(largest, largest_at<T>(w, kept[i], first + i * step));
    for (int64_t at = first + KEPT * step; at < w.columns; at += step)
        largest = max(largest, largest_at<T>(w, load_of_row<T>(w, at), at));
    largest = mc_block_largest(largest, shared);
    mc_fp8_scale scale;
    mc_fp8_set_scale(&scale, MC_FP8_E4M3, __uint_as_float(largest), w.margin);
    if (threadIdx.x == 0) w.inverse[blockIdx.x] = scale.inverse;
    const bool finite = largest < 0x7f800000;
#pragma unroll
    for (int i = 0; i < KEPT; i++) cast_at<T>(w, kept[i], first + i * step, scale.scale, finite);
    for (int64_t at = first + KEPT * step; at < w.columns; at += step)
        cast_at<T>(w, load_of_row<T>(w, at), at, scale.scale, finite);
}

template <class T> void launch_rows(mc_device *d, const mc_fp8_rows_call *c)
{
    constexpr int WIDTH = mc_width<T>;
    bool whole = c->columns % WIDTH == 0 && mc_is(c->data, WIDTH);
    rows_work w = {mc_view_of(c->x, c->rows, WIDTH),
                   c->factor,
                   c->columns,
                   c->margin,
                   c->data,
                   c->inverse,
                   whole};
    cast_rows<T><<<(unsigned)c->rows, THREADS, 0, mc_cuda_of(d)->stream>>>(w);
}

/* A tile of bytes, transposed. Of the work: x (bytes), rows, columns, transposed, padded. */
__global__ void __launch_bounds__(THREADS)
    transpose(const __grid_constant__ cast_work w, float *ones)
{
    enum { WIDTH = 8, WORDS = WIDTH / 4, ACROSS = TILE_COLUMNS / WIDTH };
    static_assert(THREADS / ACROSS == GROUPS, "a piece a thread");
    __shared__ uint4 tile[TILE_COLUMNS * TILE_ROWS / UNIT];
    const int64_t row0 = (int64_t)blockIdx.y * TILE_ROWS,
                  column0 = (int64_t)blockIdx.x * TILE_COLUMNS;
    const int across = (int)threadIdx.x % ACROSS, group = (int)threadIdx.x / ACROSS;
    const int64_t row = row0 + group * ROWS, column = column0 + across * WIDTH;
    uint32_t word[ROWS][WORDS], turned[4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint8_t *from = (const uint8_t *)w.x.data + (row + i) * w.columns + column;
        int n = row + i < w.rows ? left_of(w.columns, column, WIDTH) : 0;
        load_bytes(from, n, w.whole, word[i]);
    }
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        turn(word[0][k], word[1][k], word[2][k], word[3][k], turned);
#pragma unroll
        for (int j = 0; j < 4; j++)
            ((uint32_t *)tile)[place_of(across * WIDTH + 4 * k + j, group)] = turned[j];
    }
    __syncthreads();
    store_columns(w, (const uint32_t *)tile, row0, column0);
    const int64_t own = column0 + threadIdx.x;
    if (ones && blockIdx.y == 0 && threadIdx.x < TILE_COLUMNS && own < w.columns) ones[own] = 1;
}

/* ---- scales ---------------------------------------------------------------------------------- */

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
    bool by_rows;

    template <class T> __device__ void run(int64_t row, int64_t column, int n) const
    {
        float v[mc_width<T>], inverse = x.inverse ? x.inverse[by_rows ? row : 0] : 1.0f;
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
    cast_work w = {};
    w.activation = c->activation;
    w.rows = c->rows;
    w.columns = c->columns;
    w.padded = c->padded;
    w.scale = c->scale;
    w.seen = c->seen;
    w.data = c->data;
    w.transposed = c->transposed;
    w.whole_columns = c->padded % UNIT == 0 && mc_is(c->transposed, UNIT);
    int64_t rows = c->transposed ? mc_most(c->rows, c->padded) : c->rows;
    if (!c->columns || !rows) return MC_OK;
    dim3 grid((unsigned)mc_ceil_div(c->columns, TILE_COLUMNS),
              (unsigned)mc_ceil_div(rows, TILE_ROWS));
    size_t bytes = c->sums && c->scale ? grid.y * (size_t)c->columns * sizeof(float) : 0;
    if (bytes && !(w.partial = (float *)d->alloc(d, bytes))) return MC_ERR_NOMEM;
    mc_dtype whole = whole_dtype_of(c);
    if (whole == MC_BF16)
        launch_source<__nv_bfloat16>(d, w, c, grid);
    else if (whole == MC_F16)
        launch_source<__half>(d, w, c, grid);
    else
        launch_source<mc_mixed>(d, w, c, grid);
    if (bytes) mc_add_partials(d, w.partial, grid.y, c->columns, {1, {c->sums}});
    if (bytes) d->free(d, w.partial, bytes);
    return mc_cuda_launched(d, "fp8_cast");
}

extern "C" mc_status mc_cuda_fp8_cast_rows(mc_device *d, const mc_fp8_rows_call *c)
{
    if (!c->rows || !c->columns) return MC_OK;
    mc_dtype whole = mc_whole_dtype(c->columns, c->x);
    if (c->factor && !mc_is(c->factor, sizeof(float4))) whole = MC_DTYPE_DEFAULT;
    MC_WITH_TYPE(whole, { launch_rows<T>(d, c); });
    return mc_cuda_launched(d, "fp8_cast_rows");
}

extern "C" mc_status mc_cuda_fp8_transpose(mc_device *d, int64_t rows, int64_t columns,
                                           const uint8_t *x, uint8_t *y, float *ones)
{
    cast_work w = {};
    if (!rows || !columns) return MC_OK;
    w.x.data = (char *)(uintptr_t)x;
    w.rows = rows;
    w.columns = columns;
    w.padded = rows;
    w.transposed = y;
    w.whole = columns % 8 == 0 && mc_is(x, 8);
    w.whole_columns = rows % UNIT == 0 && mc_is(y, UNIT);
    dim3 grid((unsigned)mc_ceil_div(columns, TILE_COLUMNS), (unsigned)mc_ceil_div(rows, TILE_ROWS));
    transpose<<<grid, THREADS, 0, mc_cuda_of(d)->stream>>>(w, ones);
    return mc_cuda_launched(d, "fp8_transpose");
}

extern "C" mc_status mc_cuda_fp8_update(mc_device *d, const mc_fp8_update_call *c)
{
    unsigned blocks = (unsigned)mc_ceil_div(c->count, 64);
    if (blocks) update<<<blocks, 64, 0, mc_cuda_of(d)->stream>>>(*c);
    return mc_cuda_launched(d, "fp8_update");
}

extern "C" void mc_cuda_fp8_decode(mc_device *d, const mc_fp8_matrix *x, bool by_rows, int64_t rows,
                                   int64_t columns, mc_matrix y)
{
    MC_WITH_TYPE(y.dtype, {
        decode f = {*x, mc_view_of(y, rows, mc_width<T>), by_rows};
        mc_launch_chunks<T>(d, rows, columns, f);
    });
}
