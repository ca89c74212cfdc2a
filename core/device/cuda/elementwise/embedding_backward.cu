/* The gradient of an embedding lookup: adds rows of dy to rows of a table, without atomics and in a
 * fixed order. The row numbers are sorted by index, which keeps rows of one index in order; then
 * each block sums a tile of the sorted rows. If the rows of one index are in several tiles, these
 * store their sums in scratch memory and a second kernel adds them, so that many rows for few
 * entries (positions, segment types) use the whole GPU too. Bytes per element, for 16-bit types: 2,
 * and 8 for each changed element of the table; sorting moves some 100 bytes per row. */
#include <cub/device/device_radix_sort.cuh>
#include "core/device/cuda/runtime/kernels.cuh"

enum {
    THREADS = 128,
    AHEAD = 4,         /* rows loaded before the first is added */
    LEAST_TILE = 32,   /* rows of a tile */
    MOST_TILES = 4096, /* limits the parts of a sum */
    LANES = 8,         /* parts added in parallel */
    SLAB = 128         /* columns of a block that adds parts */
};

/* Rows in the order of their indices. */
struct sorted_rows {
    const uint32_t *key, *row; /* (rows); key: the index, negative ones last */
    int64_t rows, tile;        /* tile: rows of one */

    /* Whether the rows before `at` and at `at` have the same index. */
    __device__ __forceinline__ bool joined(int64_t at) const
    {
        return at > 0 && at < rows && key[at - 1] == key[at];
    }
};

struct backward_call {
    sorted_rows sorted;
    int64_t columns;
    mc_view dy, dtable; /* dtable in chunks of 4 */
    float scale;        /* of the sums */
    float *parts;       /* (tiles, 2, columns): of a tile's first and last index */
};

static __global__ void __launch_bounds__(256)
    number_rows(const int32_t *index, int64_t rows, uint32_t *key, uint32_t *row)
{
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= rows) return;
    key[i] = (uint32_t)index[i];
    row[i] = (uint32_t)i;
}

/* Finishes the sum over rows first .. last, which have one index in this tile: adds it to the
 * table, or stores it in the tile's parts if other tiles have rows of that index too. */
template <int width>
__device__ __forceinline__ void end_sum(const backward_call &c, int64_t first, int64_t last,
                                        int64_t column, int n, const float (&sum)[width])
{
    uint32_t key = c.sorted.key[first];
    if ((int32_t)key < 0) return;
    bool before = c.sorted.joined(first), after = c.sorted.joined(last);
    if (before || after) {
        float *to = c.parts + ((int64_t)blockIdx.x * 2 + !before) * c.columns + column;
#pragma unroll
        for (int i = 0; i < width; i++)
            if (i < n) to[i] = sum[i]; /* scaled when the parts are added */
        return;
    }
    int64_t at = (int64_t)key * c.dtable.stride + column;
#pragma unroll
    for (int i = 0; i < width; i += 4) {
        float v[4] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] *= c.scale;
        mc_store_or_add<mc_mixed>(c.dtable, at + i, n - i < 4 ? n - i : 4, v, true);
    }
}

/* One block a tile: each thread adds up its columns, row by row. */
template <class T>
static __global__ void __launch_bounds__(THREADS) sum_tiles(const __grid_constant__ backward_call c)
{
    constexpr int width = mc_width<T>;
    const sorted_rows &o = c.sorted;
    const int64_t begin = blockIdx.x * o.tile,
                  end = begin + o.tile < o.rows ? begin + o.tile : o.rows;
    for (int64_t column = (int64_t)threadIdx.x * width; column < c.columns;
         column += (int64_t)blockDim.x * width) {
        int n = c.columns - column < width ? (int)(c.columns - column) : width;
        int64_t first = begin;
        uint32_t key = o.key[begin];
        float sum[width] = {};
        for (int64_t at = begin; at < end && (int32_t)key >= 0; at += AHEAD) {
            mc_bits bits[AHEAD];
            uint32_t keys[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                keys[i] = at + i < end ? o.key[at + i] : ~0u; /* as a negative index */
                if ((int32_t)keys[i] >= 0)
                    bits[i] = mc_load_bits<T>(c.dy, o.row[at + i] * c.dy.stride + column, n);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (keys[i] != key && (int32_t)key >= 0) {
                    end_sum(c, first, at + i, column, n, sum);
#pragma unroll
                    for (int j = 0; j < width; j++) sum[j] = 0;
                    first = at + i;
                    key = keys[i];
                }
                if ((int32_t)keys[i] < 0) continue;
                float v[width];
                mc_unpack<T>(c.dy, bits[i], v);
#pragma unroll
                for (int j = 0; j < width; j++) sum[j] += v[j];
            }
        }
        if ((int32_t)key >= 0) end_sum(c, first, end, column, n, sum);
    }
}

/* Block (tile, slab) adds the parts of the index whose rows begin in this tile and continue in the
 * next, if any: the tile's last part and the first parts of the following tiles. */
static __global__ void __launch_bounds__(32 * LANES)
    add_parts(const __grid_constant__ backward_call c)
{
    __shared__ float shared[LANES][SLAB];
    const sorted_rows &o = c.sorted;
    const int64_t tile = blockIdx.x, begin = tile * o.tile, end = begin + o.tile;
    if (!o.joined(end)) return;
    const uint32_t key = o.key[end];
    if ((int32_t)key < 0 || (o.key[begin] == key && o.joined(begin))) return;
    int64_t parts = 1;
    const int thread = threadIdx.y * 32 + threadIdx.x;
    for (int found = 32 * LANES; found == 32 * LANES; parts += found) {
        int64_t at = (tile + parts + thread) * o.tile;
        found = __syncthreads_count(at < o.rows && o.key[at] == key);
    }
    float sum[SLAB / 32] = {};
    const int64_t column = (int64_t)blockIdx.y * SLAB + threadIdx.x;
    for (int64_t part = threadIdx.y; part < parts; part += LANES) {
        const float *from = c.parts + ((tile + part) * 2 + (part == 0)) * c.columns;
#pragma unroll
        for (int i = 0; i < SLAB / 32; i++)
            if (column + 32 * i < c.columns) sum[i] += from[column + 32 * i];
    }
#pragma unroll
    for (int i = 0; i < SLAB / 32; i++) shared[threadIdx.y][32 * i + threadIdx.x] = sum[i];
    __syncthreads();
    const int64_t own = (int64_t)blockIdx.y * SLAB + thread;
    if (thread >= SLAB || own >= c.columns) return;
    float total = 0;
    for (int i = 0; i < LANES; i++) total += shared[i][thread];
    int64_t at = (int64_t)key * c.dtable.stride + own;
    mc_store_one(c.dtable, at, mc_load_one(c.dtable, at) + total * c.scale);
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* Scratch memory: keys and row numbers, twice each, then what the sort needs. */
struct sorting {
    uint32_t *memory;
    size_t bytes, own_bytes;
};

static cudaError_t sort_rows(mc_device *d, int64_t rows, const int32_t *index, sorting *s,
                             sorted_rows *out)
{
    cudaStream_t stream = mc_cuda_of(d)->stream;
    uint32_t *m = s->memory;
    cub::DoubleBuffer<uint32_t> keys(m, m + rows), numbers(m + 2 * rows, m + 3 * rows);
    if (!m) /* only queries the size */
        return cub::DeviceRadixSort::SortPairs(NULL, s->own_bytes, keys, numbers, (uint32_t)rows, 0,
                                               32, stream);
    number_rows<<<(unsigned)mc_ceil_div(rows, 256), 256, 0, stream>>>(index, rows, keys.Current(),
                                                                      numbers.Current());
    char *own = (char *)m + s->bytes - s->own_bytes;
    cudaError_t error = cudaSuccess;
    if (!mc_cuda_is_planning(d))
        error = cub::DeviceRadixSort::SortPairs(own, s->own_bytes, keys, numbers, (uint32_t)rows, 0,
                                                32, stream);
    int64_t tile = mc_most(LEAST_TILE, mc_ceil_div(rows, MOST_TILES));
    *out = {keys.Current(), numbers.Current(), rows, tile};
    return error;
}

static mc_status sorting_new(mc_device *d, int64_t rows, sorting *s)
{
    *s = {NULL, 0, 0};
    cudaError_t error = sort_rows(d, rows, NULL, s, NULL);
    if (error != cudaSuccess) return mc_cuda_check(d, error, "embedding_backward");
    size_t lists = (size_t)mc_ceil_div(rows * 4 * (int64_t)sizeof(uint32_t), 256) * 256;
    s->bytes = lists + s->own_bytes;
    s->memory = (uint32_t *)d->alloc(d, s->bytes);
    return s->memory ? MC_OK : MC_ERR_NOMEM;
}

static mc_status add_rows(mc_device *d, backward_call *c)
{
    cudaStream_t stream = mc_cuda_of(d)->stream;
    int64_t tiles = mc_ceil_div(c->sorted.rows, c->sorted.tile);
    size_t bytes = (size_t)(tiles * 2 * c->columns) * sizeof(float);
    c->parts = (float *)d->alloc(d, bytes);
    if (!c->parts) return MC_ERR_NOMEM;
    MC_WITH_TYPE((mc_dtype)c->dy.dtype, {
        int64_t chunks = mc_ceil_div(c->columns, mc_width<T>);
        unsigned threads = (unsigned)mc_least(mc_ceil_div(chunks, 32) * 32, THREADS);
        sum_tiles<T><<<(unsigned)tiles, threads, 0, stream>>>(*c);
    });
    dim3 grid((unsigned)tiles, (unsigned)mc_ceil_div(c->columns, SLAB));
    add_parts<<<grid, dim3(32, LANES), 0, stream>>>(*c);
    d->free(d, c->parts, bytes);
    return MC_OK;
}

extern "C" mc_status mc_cuda_embedding_backward(mc_device *d, int64_t rows, int64_t columns,
                                                mc_matrix dy, const int32_t *index, float scale,
                                                mc_matrix dtable)
{
    if (rows == 0 || columns == 0) return MC_OK;
    sorting sort;
    mc_status status = sorting_new(d, rows, &sort);
    if (status != MC_OK) return status;
    backward_call c = {};
    c.columns = columns;
    c.scale = scale;
    c.dy = mc_view_of(dy, rows, dy.dtype == MC_F32 ? 4 : 8);
    c.dtable = mc_view_of(dtable, 2, 4);
    cudaError_t error = sort_rows(d, rows, index, &sort, &c.sorted);
    status = error == cudaSuccess ? add_rows(d, &c) : mc_cuda_check(d, error, "embedding_backward");
    d->free(d, sort.memory, sort.bytes);
    return status == MC_OK ? mc_cuda_launched(d, "embedding_backward") : status;
}
