/* Sums over rows: column_sums (bias gradients), sum_leading, and the second stage of other sums.
 * Rows are assigned to blocks and threads by the shape alone, and parts are added in a fixed order.
 * Bytes per element: its own size, once. */
#include "core/device/cuda/runtime/kernels.cuh"

enum { THREADS = 256, UNROLL = 4 };

/* Block (x, y) sums `share` rows for blockDim.x chunks of columns: thread (i, j) takes every
 * blockDim.y-th of them. Writes `partial` (gridDim.y, columns), or out += if there is one share. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    sum_rows(mc_view x, int64_t rows, int64_t share, int64_t columns, float *partial, float *out)
{
    constexpr int width = mc_width<T>;
    __shared__ float shared[THREADS * width];
    int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * width;
    int64_t left = columns - column;
    int n = left < width ? (int)left : width; /* may be negative */
    int64_t first = share * blockIdx.y, last = first + share < rows ? first + share : rows;
    float sum[width] = {};
    int64_t row = first + threadIdx.y, step = blockDim.y;
    for (; row + (UNROLL - 1) * step < last && n > 0; row += UNROLL * step) {
        mc_bits bits[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            bits[k] = mc_load_bits<T>(x, (row + k * step) * x.stride + column, n);
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            float v[width];
            mc_unpack<T>(x, bits[k], v);
#pragma unroll
            for (int i = 0; i < width; i++) sum[i] += v[i];
        }
    }
    for (; row < last && n > 0; row += step) {
        float v[width];
        mc_load<T>(x, row * x.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < width; i++) sum[i] += v[i];
    }
    int each = blockDim.x * width, thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int i = 0; i < width; i++) shared[threadIdx.y * each + threadIdx.x * width + i] = sum[i];
    __syncthreads();
    for (int i = thread; i < each; i += THREADS) {
        int64_t at = (int64_t)blockIdx.x * each + i;
        if (at >= columns) break;
        float total = 0;
        for (unsigned j = 0; j < blockDim.y; j++) total += shared[j * each + i];
        if (partial)
            partial[blockIdx.y * columns + at] = total;
        else
            out[at] += total;
    }
}

/* The division of a matrix for sum_rows: `share` rows for each of gridDim.y parts. */
struct cut {
    dim3 grid, block;
    int64_t share;
};

/* As many blocks as run at once, so that all end together; a thread's rows are a multiple of what
 * it loads at once. */
template <class T>
static cut cut_of(mc_device *d, int64_t rows, int64_t columns, int64_t most_parts)
{
    int64_t chunks = mc_ceil_div(columns, mc_width<T>), wide = 1;
    while (wide < 32 && wide < chunks) wide *= 2;
    int64_t slabs = mc_ceil_div(chunks, wide), high = THREADS / wide, batch = high * UNROLL;
    int64_t wanted = mc_resident_blocks(d, sum_rows<T>, THREADS, 0) / slabs;
    int64_t parts = mc_most(1, mc_least(mc_least(wanted, most_parts), rows / (2 * batch)));
    int64_t share = mc_ceil_div(mc_ceil_div(rows, parts), batch) * batch;
    return {dim3((unsigned)slabs, (unsigned)mc_ceil_div(rows, share)),
            dim3((unsigned)wide, (unsigned)high), share};
}

/* Sums parts per thread and then per block: thread (i, j) of block b adds parts j, j + blockDim.y,
 * ... of element b * blockDim.x + i. Thread (i, 0) gets the sum. */
template <class Load> __device__ __forceinline__ double sum_parts(int64_t parts, const Load &load)
{
    __shared__ double shared[1024];
    double sum[UNROLL] = {};
    int64_t part = threadIdx.y, step = blockDim.y;
    for (; part + (UNROLL - 1) * step < parts; part += UNROLL * step) {
        float v[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) v[k] = load(part + k * step);
#pragma unroll
        for (int k = 0; k < UNROLL; k++) sum[k] += v[k];
    }
    for (; part < parts; part += step) sum[0] += load(part);
    shared[threadIdx.y * blockDim.x + threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    __syncthreads();
    double total = 0;
    if (threadIdx.y == 0)
        for (unsigned j = 0; j < blockDim.y; j++) total += shared[j * blockDim.x + threadIdx.x];
    return total;
}

static __global__ void __launch_bounds__(1024, 1)
    add_partials(const float *partial, int64_t parts, int64_t n, const mc_sums sums)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, all = sums.count * n;
    double sum =
        sum_parts(parts, [=](int64_t part) { return i < all ? partial[part * all + i] : 0.0f; });
    if (threadIdx.y != 0 || i >= all) return;
    float *out = i < n ? sums.out[0] : i < 2 * n ? sums.out[1] : sums.out[2];
    if (out) out[i < n ? i : i < 2 * n ? i - n : i - 2 * n] += (float)sum;
}

/* Blocks of up to 32 columns, with as many rows of threads as there are parts. */
static dim3 block_for(int64_t columns, int64_t parts)
{
    unsigned wide = 1, high = 1;
    while (wide < 32 && wide < columns) wide *= 2;
    while (wide * high < 1024 && high < parts) high *= 2;
    return dim3(wide, high);
}

void mc_add_partials(mc_device *d, const float *partial, int64_t parts, int64_t n, mc_sums sums)
{
    dim3 block = block_for(sums.count * n, parts);
    unsigned grid = (unsigned)mc_ceil_div(sums.count * n, block.x);
    add_partials<<<grid, block, 0, mc_cuda_of(d)->stream>>>(partial, parts, n, sums);
}

extern "C" mc_status mc_cuda_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                         float *out)
{
    if (rows == 0 || columns == 0) return MC_OK;
    float *partial = NULL;
    size_t bytes = 0;
    MC_WITH_TYPE(x.dtype, {
        const int width = mc_width<T>;
        cut c = cut_of<T>(d, rows, columns, 1 << 14);
        if (c.grid.y > 1) {
            bytes = (size_t)c.grid.y * (size_t)columns * sizeof(float);
            partial = (float *)d->alloc(d, bytes);
            if (!partial) return MC_ERR_NOMEM;
        }
        sum_rows<T><<<c.grid, c.block, 0, mc_cuda_of(d)->stream>>>(mc_view_of(x, rows, width), rows,
                                                                   c.share, columns, partial, out);
        if (partial) mc_add_partials(d, partial, c.grid.y, columns, {1, {out}});
    });
    d->free(d, partial, bytes);
    return mc_cuda_launched(d, "column_sums");
}

/* y(i) [+]= the sum of partial(i), partial(i + y_count), ... below `count`, and of x from `first`
 * to `end` in the same way, which is less than a row. */
static __global__ void __launch_bounds__(1024, 1)
    finish_sum(const float *partial, int64_t count, mc_view x, int64_t first, int64_t end,
               int64_t y_count, mc_view y, bool accumulate)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t parts = (count + y_count - 1) / y_count, rest = (end - first + y_count - 1) / y_count;
    double sum = sum_parts(parts + rest, [=](int64_t part) {
        int64_t at = part * y_count + i, behind = first + (part - parts) * y_count + i;
        if (i >= y_count) return 0.0f;
        if (part < parts) return partial[at];
        return behind < end ? mc_load_one(x, behind) : 0.0f;
    });
    if (threadIdx.y != 0 || i >= y_count) return;
    if (accumulate) sum += mc_load_one(y, i);
    mc_store_one(y, i, (float)sum);
}

extern "C" mc_status mc_cuda_sum_leading(mc_device *d, int64_t count, mc_matrix x, int64_t y_count,
                                         mc_matrix y, bool accumulate)
{
    if (y_count == 0) return MC_OK;
    /* Several periods of a short y make one row, so that rows are long enough for vectors. */
    int64_t periods = y_count >= 2048 ? 1 : 2048 / y_count, columns = periods * y_count;
    int64_t rows = count / columns, parts = 0;
    x.stride = columns;
    float *partial = NULL;
    if (rows > 0)
        MC_WITH_TYPE(x.dtype, {
            const int width = mc_width<T>;
            cut c = cut_of<T>(d, rows, columns, 64);
            parts = c.grid.y;
            partial = (float *)d->alloc(d, (size_t)(parts * columns) * sizeof(float));
            if (!partial) return MC_ERR_NOMEM;
            sum_rows<T><<<c.grid, c.block, 0, mc_cuda_of(d)->stream>>>(
                mc_view_of(x, rows, width), rows, c.share, columns, partial, NULL);
        });
    dim3 block = block_for(y_count, parts * periods);
    unsigned grid = (unsigned)mc_ceil_div(y_count, block.x);
    finish_sum<<<grid, block, 0, mc_cuda_of(d)->stream>>>(
        partial, parts * columns, mc_view_of(x, 2, 1), rows * columns, count, y_count,
        mc_view_of(y, 1, 1), accumulate);
    d->free(d, partial, (size_t)(parts * columns) * sizeof(float));
    return mc_cuda_launched(d, "sum_leading");
}
