/* Functions of whole rows: softmax, log-softmax, scaling to length 1; and means over the rows of
 * sequences. One block per row or sequence. Bytes per element, for 16-bit types, if a row stays in
 * the cache between its passes: row_map 4, row_map_backward 6, mean_pool 2, its backward 2. */
#include "core/device/cuda/runtime/kernels.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

struct row_call {
    mc_view kept, dy, out; /* dy: only in backward; out: y or dx */
    int64_t columns;
    mc_row_map kind;
    float eps;
    bool accumulate;
};

template <class T> __device__ __forceinline__ float largest_of(const row_call &c, int64_t row)
{
    float largest = -INFINITY;
    mc_each_chunk<T>(c.columns, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.kept, row * c.kept.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i < n) largest = fmaxf(largest, v[i]);
    });
    return largest;
}

template <class T>
__device__ __forceinline__ float exps_of(const row_call &c, int64_t row, float largest)
{
    float sum = 0;
    mc_each_chunk<T>(c.columns, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.kept, row * c.kept.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i < n) sum += expf(v[i] - largest);
    });
    return sum;
}

/* The sum of the products of two rows. */
template <class T>
__device__ __forceinline__ float dot_of(const row_call &c, mc_view a, mc_view b, int64_t row)
{
    float sum = 0;
    mc_each_chunk<T>(c.columns, [&](int64_t column, int n) {
        float v[mc_width<T>], w[mc_width<T>];
        mc_load<T>(a, row * a.stride + column, n, v);
        mc_load<T>(b, row * b.stride + column, n, w);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) sum += v[i] * w[i];
    });
    return sum;
}

template <class T> __device__ __forceinline__ float sum_of(const row_call &c, int64_t row)
{
    float sum = 0;
    mc_each_chunk<T>(c.columns, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.dy, row * c.dy.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) sum += v[i];
    });
    return sum;
}

template <class T>
static __global__ void __launch_bounds__(THREADS) map_rows(const __grid_constant__ row_call c)
{
    __shared__ float shared[2][WARPS];
    const int64_t row = blockIdx.x;
    float largest = 0, factor, log_sum = 0;
    if (c.kind == MC_ROW_NORMALIZE) {
        float length = sqrtf(mc_block_sum(dot_of<T>(c, c.kept, c.kept, row), shared[0]));
        factor = 1.0f / fmaxf(length, c.eps);
    } else {
        largest = mc_block_largest(largest_of<T>(c, row), shared[0]);
        float sum = mc_block_sum(exps_of<T>(c, row, largest), shared[1]);
        factor = 1.0f / sum;
        log_sum = logf(sum);
    }
    mc_each_chunk<T>(c.columns, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.kept, row * c.kept.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            v[i] = c.kind == MC_ROW_SOFTMAX       ? expf(v[i] - largest) * factor
                   : c.kind == MC_ROW_LOG_SOFTMAX ? (v[i] - largest) - log_sum
                                                  : v[i] * factor;
        mc_store<T>(c.out, row * c.out.stride + column, n, v);
    });
}

/* See core/device/cpu/isa/row_map.c. */
template <class T>
static __global__ void __launch_bounds__(THREADS) slope_rows(const __grid_constant__ row_call c)
{
    __shared__ float shared[2][WARPS];
    const int64_t row = blockIdx.x;
    float part = c.kind == MC_ROW_LOG_SOFTMAX ? sum_of<T>(c, row) : dot_of<T>(c, c.kept, c.dy, row);
    float sum = mc_block_sum(part, shared[0]), scale = 1;
    if (c.kind == MC_ROW_NORMALIZE) {
        float length = sqrtf(mc_block_sum(dot_of<T>(c, c.kept, c.kept, row), shared[1]));
        scale = 1.0f / fmaxf(length, c.eps);
        sum = length < c.eps ? 0.0f : sum * scale * scale * scale;
    }
    mc_each_chunk<T>(c.columns, [&](int64_t column, int n) {
        float k[mc_width<T>], g[mc_width<T>];
        mc_load<T>(c.kept, row * c.kept.stride + column, n, k);
        mc_load<T>(c.dy, row * c.dy.stride + column, n, g);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            g[i] = c.kind == MC_ROW_SOFTMAX       ? k[i] * (g[i] - sum)
                   : c.kind == MC_ROW_LOG_SOFTMAX ? g[i] - expf(k[i]) * sum
                                                  : g[i] * scale - k[i] * sum;
        mc_store_or_add<T>(c.out, row * c.out.stride + column, n, g, c.accumulate);
    });
}

/* As many threads as a row has chunks. */
static int threads_for(int64_t columns, int width)
{
    int64_t chunks = mc_ceil_div(columns, width);
    return (int)mc_most(32, mc_least(THREADS, mc_ceil_div(chunks, 32) * 32));
}

extern "C" mc_status mc_cuda_row_map(mc_device *d, int64_t rows, int64_t columns, mc_row_map kind,
                                     float eps, mc_matrix x, mc_matrix y)
{
    if (rows == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        row_call call = {};
        call.kept = mc_view_of(x, rows, width);
        call.out = mc_view_of(y, rows, width);
        call.columns = columns;
        call.kind = kind;
        call.eps = eps;
        int threads = threads_for(columns, width);
        map_rows<T><<<(unsigned)rows, threads, 0, mc_cuda_of(d)->stream>>>(call);
    });
    return mc_cuda_launched(d, "row_map");
}

extern "C" mc_status mc_cuda_row_map_backward(mc_device *d, int64_t rows, int64_t columns,
                                              mc_row_map kind, float eps, mc_matrix kept,
                                              mc_matrix dy, mc_matrix dx, bool accumulate)
{
    if (rows == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(kept, dy, dx), {
        const int width = mc_width<T>;
        row_call call = {mc_view_of(kept, rows, width),
                         mc_view_of(dy, rows, width),
                         mc_view_of(dx, rows, width),
                         columns,
                         kind,
                         eps,
                         accumulate};
        int threads = threads_for(columns, width);
        slope_rows<T><<<(unsigned)rows, threads, 0, mc_cuda_of(d)->stream>>>(call);
    });
    return mc_cuda_launched(d, "row_map_backward");
}

/* ---- means over sequences -------------------------------------------------------------------- */

struct pool_call {
    const int32_t *lengths; /* length (count), then offset (count + 1) */
    int64_t count, columns, capacity;
    mc_view x, y; /* rows, sequences */
    bool accumulate;

    /* One thread per chunk of a sequence's mean. */
    template <class T>
    __device__ __forceinline__ void run(int64_t sequence, int64_t column, int n) const
    {
        const int64_t length = lengths[sequence], first = lengths[count + sequence];
        const float factor = length ? 1.0f / (float)length : 0.0f;
        float sum[mc_width<T>] = {};
        for (int64_t row = first; row < first + length; row++) {
            float v[mc_width<T>];
            mc_load<T>(x, row * x.stride + column, n, v);
#pragma unroll
            for (int i = 0; i < mc_width<T>; i++) sum[i] += v[i];
        }
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) sum[i] *= factor;
        mc_store<T>(y, sequence * y.stride + column, n, sum);
    }
};

extern "C" mc_status mc_cuda_mean_pool(mc_device *d, const mc_lengths *lengths,
                                       const int32_t *device_lengths, int64_t columns, mc_matrix x,
                                       mc_matrix y)
{
    if (lengths->count == 0 || columns == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        pool_call call = {device_lengths,
                          lengths->count,
                          columns,
                          lengths->capacity,
                          mc_view_of(x, 2, width),
                          mc_view_of(y, lengths->count, width),
                          false};
        mc_launch_chunks<T>(d, lengths->count, columns, call);
    });
    return mc_cuda_launched(d, "mean_pool");
}

/* One block per sequence: 32 threads for its columns, 8 for its rows. One more block zeroes the
 * gradient of the rows after the last sequence. */
template <class T>
static __global__ void __launch_bounds__(THREADS) spread_rows(const __grid_constant__ pool_call c)
{
    const int64_t sequence = blockIdx.x;
    const bool tail = sequence == c.count;
    if (tail && c.accumulate) return;
    const int64_t first = c.lengths[c.count + sequence];
    const int64_t length = tail ? c.capacity - first : c.lengths[sequence];
    const float factor = 1.0f / (float)length;
    for (int64_t column = (int64_t)threadIdx.x * mc_width<T>; column < c.columns;
         column += 32 * mc_width<T>) {
        int n = c.columns - column < mc_width<T> ? (int)(c.columns - column) : mc_width<T>;
        float g[mc_width<T>] = {};
        if (!tail) mc_load<T>(c.y, sequence * c.y.stride + column, n, g);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) g[i] *= factor;
        for (int64_t row = threadIdx.y; row < length; row += blockDim.y) {
            float v[mc_width<T>];
#pragma unroll
            for (int i = 0; i < mc_width<T>; i++) v[i] = g[i];
            mc_store_or_add<T>(c.x, (first + row) * c.x.stride + column, n, v, c.accumulate);
        }
    }
}

extern "C" mc_status mc_cuda_mean_pool_backward(mc_device *d, const mc_lengths *lengths,
                                                const int32_t *device_lengths, int64_t columns,
                                                mc_matrix dy, mc_matrix dx, bool accumulate)
{
    if (lengths->capacity == 0 || columns == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(dy, dx), {
        const int width = mc_width<T>;
        pool_call call = {
            device_lengths,    lengths->count,           columns,
            lengths->capacity, mc_view_of(dx, 2, width), mc_view_of(dy, lengths->count, width),
            accumulate};
        spread_rows<T>
            <<<(unsigned)lengths->count + 1, dim3(32, 8), 0, mc_cuda_of(d)->stream>>>(call);
    });
    return mc_cuda_launched(d, "mean_pool_backward");
}

/* ---- maxima over sequences ------------------------------------------------------------------- */

struct max_pool_call {
    const int32_t *lengths; /* length (count), then offset (count + 1) */
    int64_t count, columns;
    mc_view x, y; /* rows, sequences */

    /* One thread per chunk of a sequence's maximum. */
    template <class T>
    __device__ __forceinline__ void run(int64_t sequence, int64_t column, int n) const
    {
        const int64_t length = lengths[sequence], first = lengths[count + sequence];
        float largest[mc_width<T>] = {};
        for (int64_t row = first; row < first + length; row++) {
            float v[mc_width<T>];
            mc_load<T>(x, row * x.stride + column, n, v);
#pragma unroll
            for (int i = 0; i < mc_width<T>; i++)
                if (row == first || v[i] > largest[i] || v[i] != v[i]) largest[i] = v[i];
        }
        mc_store<T>(y, sequence * y.stride + column, n, largest);
    }
};

extern "C" mc_status mc_cuda_max_pool(mc_device *d, const mc_lengths *lengths,
                                      const int32_t *device_lengths, int64_t columns, mc_matrix x,
                                      mc_matrix y)
{
    if (lengths->count == 0 || columns == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        max_pool_call call = {device_lengths, lengths->count, columns, mc_view_of(x, 2, width),
                              mc_view_of(y, lengths->count, width)};
        mc_launch_chunks<T>(d, lengths->count, columns, call);
    });
    return mc_cuda_launched(d, "max_pool");
}

struct max_slope_call {
    const int32_t *lengths;
    int64_t count, columns, capacity;
    mc_view x, y, dy, dx; /* rows, sequences, sequences, rows */
    bool accumulate;

    /* One thread per chunk of a sequence, and of the rows after the last one. */
    template <class T>
    __device__ __forceinline__ void run(int64_t sequence, int64_t column, int n) const
    {
        const bool tail = sequence == count;
        if (tail && accumulate) return;
        const int64_t first = lengths[count + sequence];
        const int64_t length = tail ? capacity - first : lengths[sequence];
        float largest[mc_width<T>] = {}, g[mc_width<T>] = {};
        bool found[mc_width<T>];
        if (!tail) {
            mc_load<T>(y, sequence * y.stride + column, n, largest);
            mc_load<T>(dy, sequence * dy.stride + column, n, g);
        }
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) found[i] = tail;
        for (int64_t row = first; row < first + length; row++) {
            float v[mc_width<T>];
            mc_load<T>(x, row * x.stride + column, n, v);
#pragma unroll
            for (int i = 0; i < mc_width<T>; i++) {
                const bool here = !found[i] && v[i] == largest[i];
                v[i] = here ? g[i] : 0.0f;
                found[i] = found[i] || here;
            }
            mc_store_or_add<T>(dx, row * dx.stride + column, n, v, accumulate);
        }
    }
};

extern "C" mc_status mc_cuda_max_pool_backward(mc_device *d, const mc_lengths *lengths,
                                               const int32_t *device_lengths, int64_t columns,
                                               mc_matrix x, mc_matrix y, mc_matrix dy, mc_matrix dx,
                                               bool accumulate)
{
    if (lengths->capacity == 0 || columns == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, y, dy, dx), {
        const int width = mc_width<T>;
        max_slope_call call = {device_lengths,
                               lengths->count,
                               columns,
                               lengths->capacity,
                               mc_view_of(x, 2, width),
                               mc_view_of(y, lengths->count, width),
                               mc_view_of(dy, lengths->count, width),
                               mc_view_of(dx, 2, width),
                               accumulate};
        mc_launch_chunks<T>(d, lengths->count + 1, columns, call);
    });
    return mc_cuda_launched(d, "max_pool_backward");
}
