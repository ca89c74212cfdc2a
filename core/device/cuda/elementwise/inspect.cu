/* Statistics of tensors. Elements are assigned to blocks and threads by their number, and parts are
 * added in a fixed order. Bytes per element: its own size, once. */
#include <math.h>
#include "core/device/cuda/runtime/kernels.cuh"

enum { THREADS = 256 };

/* Of some of the elements. */
struct part {
    double sum, squares;
    float largest, smallest;
    int nans;

    __device__ __forceinline__ void add(float x, double shift)
    {
        double value = (double)x - shift;
        sum += value;
        squares += value * value;
        largest = x > largest ? x : largest;
        smallest = x < smallest ? x : smallest;
        nans += x != x;
    }
    __device__ __forceinline__ void merge(const part &o)
    {
        sum += o.sum;
        squares += o.squares;
        largest = o.largest > largest ? o.largest : largest;
        smallest = o.smallest < smallest ? o.smallest : smallest;
        nans |= o.nans;
    }
};

__device__ __forceinline__ part no_part() { return {0, 0, -INFINITY, INFINITY, 0}; }

__device__ __forceinline__ double shift_of(mc_view x, int64_t count)
{
    float first = count ? mc_load_one(x, 0) : 0.0f;
    return isfinite(first) ? (double)first : 0.0;
}

template <class T>
static __global__ void __launch_bounds__(THREADS) block_parts(mc_view x, int64_t count, part *out)
{
    constexpr int width = mc_width<T>;
    double shift = shift_of(x, count);
    part p = no_part();
    int64_t stride = (int64_t)gridDim.x * THREADS * width;
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * width; at < count;
         at += stride) {
        int n = count - at < width ? (int)(count - at) : width;
        float v[width];
        mc_load<T>(x, at, n, v);
#pragma unroll
        for (int i = 0; i < width; i++)
            if (i < n) p.add(v[i], shift);
    }
    p = mc_block_merge<THREADS>(p);
    if (threadIdx.x == 0) out[blockIdx.x] = p;
}

static __global__ void __launch_bounds__(THREADS)
    finish_parts(const part *parts, int blocks, mc_view x, int64_t count, mc_tensor_stats *out)
{
    part p = no_part();
    for (int i = threadIdx.x; i < blocks; i += THREADS) p.merge(parts[i]);
    p = mc_block_merge<THREADS>(p);
    if (threadIdx.x != 0) return;
    out->count = count;
    out->shift = shift_of(x, count);
    out->sum = p.sum;
    out->squares = p.squares;
    out->largest = p.nans ? NAN : p.largest;
    out->smallest = p.nans ? NAN : p.smallest;
}

extern "C" mc_status mc_cuda_tensor_stats(mc_device *d, int64_t count, mc_matrix x,
                                          mc_tensor_stats *out)
{
    cudaStream_t stream = mc_cuda_of(d)->stream;
    unsigned grid = 0;
    part *parts = NULL;
    if (count > 0)
        MC_WITH_TYPE(x.dtype, {
            const int width = mc_width<T>;
            grid = (unsigned)mc_least(mc_ceil_div(count, width * THREADS),
                                      mc_resident_blocks(d, block_parts<T>, THREADS, 0));
            parts = (part *)d->alloc(d, grid * sizeof *parts);
            if (!parts) return MC_ERR_NOMEM;
            block_parts<T><<<grid, THREADS, 0, stream>>>(mc_view_of(x, 1, width), count, parts);
        });
    finish_parts<<<1, THREADS, 0, stream>>>(parts, (int)grid, mc_view_of(x, 1, 4), count, out);
    d->free(d, parts, grid * sizeof *parts);
    return mc_cuda_launched(d, "tensor_stats");
}
