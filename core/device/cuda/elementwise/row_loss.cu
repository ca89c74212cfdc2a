/* Cross-entropy row by row. Bytes per element, for 16-bit types: 2 if a row stays in the cache
 * between its passes, backward 4. */
#include "core/device/cuda/runtime/kernels.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

struct row_view {
    mc_view x, dx;
    int64_t classes;
    const int32_t *labels;
    int32_t ignore_index;
    float smoothing;
    const float *class_weights;
    float *loss, *weight;
    const float *drows;
    bool accumulate;

    __device__ __forceinline__ float weight_of(int64_t c) const
    {
        return class_weights ? class_weights[c] : 1.0f;
    }
};

/* The sums for a row's loss: see core/device/cpu/isa/row_loss.c. */
struct row_sums {
    float largest, exps, weights, below;
};

template <class T> __device__ __forceinline__ row_sums sums_of(const row_view &c, int64_t row)
{
    __shared__ float shared[4][WARPS];
    row_sums s = {-INFINITY, 0, 0, 0};
    mc_each_chunk<T>(c.classes, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.x, row * c.x.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i < n) s.largest = fmaxf(s.largest, v[i]);
    });
    s.largest = mc_block_largest(s.largest, shared[0]);
    mc_each_chunk<T>(c.classes, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.x, row * c.x.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) {
            if (i >= n) break;
            s.exps += expf(v[i] - s.largest);
            if (c.smoothing == 0.0f) continue;
            s.weights += c.weight_of(column + i);
            s.below += c.weight_of(column + i) * (s.largest - v[i]);
        }
    });
    s.exps = mc_block_sum(s.exps, shared[1]);
    if (c.smoothing == 0.0f) return s;
    s.weights = mc_block_sum(s.weights, shared[2]);
    s.below = mc_block_sum(s.below, shared[3]);
    return s;
}

template <class T>
static __global__ void __launch_bounds__(THREADS) row_losses(const __grid_constant__ row_view c)
{
    const int64_t row = blockIdx.x;
    const int32_t label = c.labels[row];
    if (label == c.ignore_index) {
        if (threadIdx.x == 0) c.loss[row] = c.weight[row] = 0.0f;
        return;
    }
    row_sums s = sums_of<T>(c, row);
    if (threadIdx.x != 0) return;
    float w = c.weight_of(label);
    double log_sum = log((double)s.exps), e = c.smoothing;
    double own = (double)s.largest - (double)mc_load_one(c.x, row * c.x.stride + label);
    c.weight[row] = w;
    c.loss[row] = (float)((1.0 - e) * w * (log_sum + own) +
                          e / (double)c.classes * (s.weights * log_sum + s.below));
}

template <class T>
static __global__ void __launch_bounds__(THREADS) row_slopes(const __grid_constant__ row_view c)
{
    const int64_t row = blockIdx.x;
    const int32_t label = c.labels[row];
    const bool ignored = label == c.ignore_index;
    if (ignored && c.accumulate) return;
    const float drow = c.drows[row], each = c.smoothing / (float)c.classes;
    float own = 0, scale = 0;
    row_sums s = {0, 1, 0, 0};
    if (!ignored) {
        s = sums_of<T>(c, row);
        own = (1.0f - c.smoothing) * c.weight_of(label);
        scale = drow * (own + each * s.weights) / s.exps;
    }
    mc_each_chunk<T>(c.classes, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.x, row * c.x.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) {
            v[i] = ignored || i >= n ? 0.0f : expf(v[i] - s.largest) * scale;
            if (ignored || i >= n) continue;
            if (each != 0.0f) v[i] -= drow * each * c.weight_of(column + i);
            if (column + i == label) v[i] -= drow * own;
        }
        mc_store_or_add<T>(c.dx, row * c.dx.stride + column, n, v, c.accumulate);
    });
}

template <class T> static row_view view_of(const mc_row_loss_call *call)
{
    row_view c = {};
    c.x = mc_view_of(call->x, call->rows, mc_width<T>);
    c.classes = call->classes;
    c.labels = call->labels;
    c.ignore_index = call->ignore_index;
    c.smoothing = call->smoothing;
    c.class_weights = call->class_weights;
    return c;
}

extern "C" mc_status mc_cuda_cross_entropy_rows(mc_device *d, const mc_row_loss_call *call,
                                                float *loss, float *weight)
{
    if (call->rows == 0) return MC_OK;
    MC_WITH_TYPE(call->x.dtype, {
        row_view c = view_of<T>(call);
        c.loss = loss;
        c.weight = weight;
        row_losses<T><<<(unsigned)call->rows, THREADS, 0, mc_cuda_of(d)->stream>>>(c);
    });
    return mc_cuda_launched(d, "cross_entropy_rows");
}

extern "C" mc_status mc_cuda_cross_entropy_rows_backward(mc_device *d, const mc_row_loss_call *call,
                                                         const float *drows, mc_matrix dx,
                                                         bool accumulate)
{
    if (call->rows == 0 || call->classes == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(call->x, dx), {
        row_view c = view_of<T>(call);
        c.dx = mc_view_of(dx, call->rows, mc_width<T>);
        c.drows = drows;
        c.accumulate = accumulate;
        row_slopes<T><<<(unsigned)call->rows, THREADS, 0, mc_cuda_of(d)->stream>>>(c);
    });
    return mc_cuda_launched(d, "cross_entropy_rows_backward");
}
