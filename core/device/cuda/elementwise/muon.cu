/* Muon's elementwise parts over flat arrays. Bytes an element, with 16-bit gradients and x:
 * muon_momentum 12, muon_normalize 4, muon_update 12 on a master with a 16-bit parameter; and
 * muon_mirror, 4 of what it writes. The products between them are batched_gemm's. */
#include <math.h>
#include "core/device/cuda/runtime/kernels.cuh"

enum { THREADS = 256, WIDTH = 4, MIRROR_TILE = 64 };

static mc_view flat_view(const void *data, mc_dtype dtype)
{
    return mc_view_of({(void *)(uintptr_t)data, dtype, 0}, 1, WIDTH);
}

template <class K> static unsigned flat_grid(mc_device *d, K kernel, int64_t count)
{
    int64_t blocks = mc_ceil_div(count, WIDTH * THREADS);
    return (unsigned)mc_least(blocks, mc_resident_blocks(d, kernel, THREADS, 0));
}

__device__ __forceinline__ int64_t first_chunk()
{
    return ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
}

__device__ __forceinline__ int chunk_size(int64_t count, int64_t at)
{
    return count - at < WIDTH ? (int)(count - at) : WIDTH;
}

static __global__ void __launch_bounds__(THREADS)
    momentum(int64_t count, const __grid_constant__ mc_muon_step step, mc_view gradient,
             mc_view buffer, mc_view x)
{
    const mc_update u = *step.update;
    const float fresh = 1.0f - step.momentum, back = step.nesterov ? fresh : 0.0f;
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    for (int64_t at = first_chunk(); at < count; at += stride) {
        int n = chunk_size(count, at);
        float g[WIDTH] = {0, 0, 0, 0}, b[WIDTH] = {0, 0, 0, 0}, out[WIDTH] = {0, 0, 0, 0};
        if (!u.skip) {
            mc_load<mc_mixed>(gradient, at, n, g);
            mc_load<float>(buffer, at, n, b);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                float scaled = g[i] * u.gradient_scale;
                b[i] = b[i] + fresh * (scaled - b[i]);
                out[i] = b[i] - back * (b[i] - scaled);
            }
            mc_store<float>(buffer, at, n, b);
        }
        mc_store<mc_mixed>(x, at, n, out);
    }
}

extern "C" mc_status mc_cuda_muon_momentum(mc_device *d, int64_t count, mc_muon_step step,
                                           mc_matrix gradient, float *buffer, mc_matrix x)
{
    if (count == 0) return MC_OK;
    momentum<<<flat_grid(d, momentum, count), THREADS, 0, mc_cuda_of(d)->stream>>>(
        count, step, flat_view(gradient.data, gradient.dtype), flat_view(buffer, MC_F32),
        flat_view(x.data, x.dtype));
    return mc_cuda_launched(d, "muon_momentum");
}

static __global__ void __launch_bounds__(THREADS)
    normalize(int64_t count, const mc_gradient_stats *stats, float least, mc_view x)
{
    const float norm = (float)sqrt(stats->sum_squares), divisor = norm > least ? norm : least;
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    for (int64_t at = first_chunk(); at < count; at += stride) {
        int n = chunk_size(count, at);
        float v[WIDTH];
        mc_load<mc_mixed>(x, at, n, v);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) v[i] = v[i] / divisor;
        mc_store<mc_mixed>(x, at, n, v);
    }
}

extern "C" mc_status mc_cuda_muon_normalize(mc_device *d, int64_t count,
                                            const mc_gradient_stats *stats, float least,
                                            mc_matrix x)
{
    if (count == 0) return MC_OK;
    normalize<<<flat_grid(d, normalize, count), THREADS, 0, mc_cuda_of(d)->stream>>>(
        count, stats, least, flat_view(x.data, x.dtype));
    return mc_cuda_launched(d, "muon_normalize");
}

/* Chunk `chunk` of column r of a tile in shared memory. Its rows are a word longer than what they
 * have, so that the threads of a warp write to different banks, and read two at a time from one. */
template <class T> __device__ __forceinline__ mc_bits turned(const uint32_t *tile, int r, int chunk)
{
    constexpr int width = mc_width<T>, pitch = MIRROR_TILE * 4 / width + 1;
    mc_bits b = {{0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < width; k++) {
        const uint32_t *row = &tile[(chunk * width + k) * pitch];
        if (width == 4)
            b.word[k % 4] = row[r];
        else
            b.word[k / 2] |= (row[r / 2] >> r % 2 * 16 & 0xffff) << k % 2 * 16;
    }
    return b;
}

/* A block fills a tile of a matrix from the one across the diagonal. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    mirror(int64_t batch, int64_t n, int64_t strip, mc_view x, int64_t step)
{
    constexpr int width = mc_width<T>, across = MIRROR_TILE / width, down = THREADS / across,
                  pitch = MIRROR_TILE * 4 / width + 1;
    __shared__ uint32_t tile[MIRROR_TILE * pitch];
    const int64_t row0 = (int64_t)blockIdx.y * MIRROR_TILE,
                  column0 = (int64_t)blockIdx.x * MIRROR_TILE;
    const int chunk = (int)threadIdx.x % across, first = (int)threadIdx.x / across;
    if (column0 + MIRROR_TILE <= mc_strip_end(n, strip, row0)) return;
    for (int64_t i = blockIdx.z; i < batch; i += gridDim.z) {
        for (int r = first; r < MIRROR_TILE; r += down) {
            int64_t row = column0 + r, column = row0 + chunk * width;
            int size = row < n && column < n ? (int)(n - column < width ? n - column : width) : 0;
            mc_bits b = mc_load_bits<T>(x, i * step + row * x.stride + column, size);
#pragma unroll
            for (int k = 0; k < 4; k++) tile[r * pitch + chunk * 4 + k] = b.word[k];
        }
        __syncthreads();
        for (int r = first; r < MIRROR_TILE; r += down) {
            int64_t row = row0 + r, column = column0 + chunk * width;
            if (row >= n || column >= n || column < mc_strip_end(n, strip, row)) continue;
            int size = (int)(n - column < width ? n - column : width);
            mc_store_bits<T>(x, i * step + row * x.stride + column, size,
                             turned<T>(tile, r, chunk));
        }
        __syncthreads();
    }
}

extern "C" mc_status mc_cuda_muon_mirror(mc_device *d, int64_t batch, int64_t n, int64_t strip,
                                         mc_matrix x, int64_t step)
{
    if (batch == 0 || mc_strip_end(n, strip, 0) == n) return MC_OK;
    const int width = x.dtype == MC_F32 ? 4 : 8;
    mc_view view = mc_view_of(x, n, width);
    view.whole = view.whole && step % width == 0;
    unsigned tiles = (unsigned)mc_ceil_div(n, MIRROR_TILE);
    dim3 grid(tiles, tiles, (unsigned)mc_least(batch, 65535));
    if (x.dtype == MC_F32)
        mirror<float><<<grid, THREADS, 0, mc_cuda_of(d)->stream>>>(batch, n, strip, view, step);
    else
        mirror<__nv_bfloat16>
            <<<grid, THREADS, 0, mc_cuda_of(d)->stream>>>(batch, n, strip, view, step);
    return mc_cuda_launched(d, "muon_mirror");
}

/* stored: the parameter beside a master; data NULL: there is none. */
static __global__ void __launch_bounds__(THREADS)
    update(int64_t count, const __grid_constant__ mc_muon_step step, mc_view x, mc_view values,
           mc_view stored)
{
    const mc_update u = *step.update;
    if (u.skip) return;
    const double lr = u.lr * (double)step.lr_factor;
    const float keep = (float)(1 - lr * (double)step.weight_decay);
    const float size = (float)(lr * (double)step.scale);
    int64_t stride = (int64_t)gridDim.x * THREADS * WIDTH;
    for (int64_t at = first_chunk(); at < count; at += stride) {
        int n = chunk_size(count, at);
        float o[WIDTH], p[WIDTH];
        mc_load<mc_mixed>(x, at, n, o);
        mc_load<float>(values, at, n, p);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) p[i] = keep * p[i] - size * o[i];
        mc_store<float>(values, at, n, p);
        if (stored.data) mc_store<mc_mixed>(stored, at, n, p);
    }
}

extern "C" mc_status mc_cuda_muon_update(mc_device *d, int64_t count, mc_muon_step step,
                                         mc_matrix x, float *master, void *parameter,
                                         mc_dtype parameter_dtype)
{
    if (count == 0) return MC_OK;
    update<<<flat_grid(d, update, count), THREADS, 0, mc_cuda_of(d)->stream>>>(
        count, step, flat_view(x.data, x.dtype), flat_view(master ? master : parameter, MC_F32),
        flat_view(master ? parameter : NULL, parameter_dtype));
    return mc_cuda_launched(d, "muon_update");
}
