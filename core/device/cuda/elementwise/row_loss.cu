/* Losses of pairs of elements, and cross-entropy row by row. Bytes an element, for 16-bit types:
 * pair_loss 4, with the gradient 6; cross_entropy_rows 2 where a row stays in the cache between its
 * passes, backward 4. */
#include "core/device/cuda/runtime/kernels.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MOST_PARTS = 1024 };

/* ---- pairs ----------------------------------------------------------------------------------- */

struct pair_view {
    mc_view x, target, dx;
    const float *positive;
    mc_divider period;
    mc_pair_loss kind;
    const float *seed;
    bool accumulate;

    __device__ __forceinline__ float weight(int64_t at) const
    {
        if (!positive) return 1.0f;
        return positive[at - mc_divide(at, period) * (int64_t)period.divisor];
    }

    /* See core/device/cpu/isa/row_loss.c for the forms that do not cancel. */
    __device__ __forceinline__ double loss(float a, float t, int64_t at) const
    {
        if (kind == MC_PAIR_SQUARE) return ((double)a - t) * ((double)a - t);
        float p = weight(at), tail = log1pf(expf(-fabsf(a)));
        return (a < 0.0f ? -p * t : 1.0f - t) * a + (1.0f + (p - 1.0f) * t) * tail;
    }

    __device__ __forceinline__ float slope(float a, float t, int64_t at) const
    {
        if (kind == MC_PAIR_SQUARE) return 2.0f * (a - t);
        float e = expf(-fabsf(a)), small = e / (1.0f + e);
        float p = weight(at), w = 1.0f + (p - 1.0f) * t;
        return a < 0.0f ? w * small - p * t : (1.0f - t) - w * small;
    }

    template <class T> __device__ __forceinline__ void run(int64_t, int64_t at, int n) const
    {
        float v[mc_width<T>], t[mc_width<T>];
        const float factor = *seed;
        mc_load<T>(x, at, n, v);
        mc_load<T>(target, at, n, t);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] = factor * slope(v[i], t[i], at + i);
        mc_store_or_add<T>(dx, at, n, v, accumulate);
    }
};

/* part[block] = the sum over every gridDim.x-th tile of elements. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    sum_pairs(const __grid_constant__ pair_view c, int64_t count, double *part)
{
    __shared__ double shared[WARPS];
    double sum = 0;
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * mc_width<T>; at < count;
         at += (int64_t)gridDim.x * THREADS * mc_width<T>) {
        int n = count - at < mc_width<T> ? (int)(count - at) : mc_width<T>;
        float v[mc_width<T>], t[mc_width<T>];
        mc_load<T>(c.x, at, n, v);
        mc_load<T>(c.target, at, n, t);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i < n) sum += c.loss(v[i], t[i], at + i);
    }
    sum = mc_block_sum(sum, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    add_parts(const double *part, int64_t parts, float count, float *loss)
{
    __shared__ double shared[WARPS];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS) sum += part[i];
    sum = mc_block_sum(sum, shared);
    if (threadIdx.x != 0) return;
    loss[0] = (float)(loss[0] + sum);
    loss[1] += count;
}

template <class T>
static mc_status launch_sum(mc_device *d, const pair_view &c, int64_t count, float *loss)
{
    int64_t tiles = mc_ceil_div(count, THREADS * mc_width<T>), parts = mc_least(tiles, MOST_PARTS);
    size_t bytes = (size_t)parts * sizeof(double);
    double *part = (double *)d->alloc(d, bytes);
    if (!part) return MC_ERR_NOMEM;
    sum_pairs<T><<<(unsigned)parts, THREADS, 0, mc_cuda_of(d)->stream>>>(c, count, part);
    add_parts<<<1, THREADS, 0, mc_cuda_of(d)->stream>>>(part, parts, (float)count, loss);
    d->free(d, part, bytes);
    return MC_OK;
}

extern "C" mc_status mc_cuda_pair_loss(mc_device *d, const mc_pair_loss_call *call,
                                       const float *seed, float *loss, mc_matrix dx,
                                       bool accumulate)
{
    mc_status status = MC_OK;
    if (call->count == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(call->x, call->target, dx), {
        const int width = mc_width<T>;
        pair_view c = {mc_view_of(call->x, 1, width),
                       mc_view_of(call->target, 1, width),
                       mc_view_of(dx, 1, width),
                       call->positive,
                       mc_divider_of(mc_most(1, call->period)),
                       call->kind,
                       seed,
                       accumulate};
        if (dx.data)
            mc_launch_chunks<T>(d, 1, call->count, c);
        else
            status = launch_sum<T>(d, c, call->count, loss);
    });
    return status ? status : mc_cuda_launched(d, "pair_loss");
}

/* ---- cross-entropy of rows ------------------------------------------------------------------- */

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

/* What a row's loss is made of: see core/device/cpu/isa/row_loss.c. */
struct row_sums {
    float largest, exps, weights, below;
};

/* f(column, n) for the thread's chunks of a row. */
template <class T, class F>
__device__ __forceinline__ void each_chunk(const row_view &c, const F &f)
{
    for (int64_t column = (int64_t)threadIdx.x * mc_width<T>; column < c.classes;
         column += (int64_t)THREADS * mc_width<T>)
        f(column, c.classes - column < mc_width<T> ? (int)(c.classes - column) : mc_width<T>);
}

template <class T> __device__ __forceinline__ row_sums sums_of(const row_view &c, int64_t row)
{
    __shared__ float shared[4][WARPS];
    row_sums s = {-INFINITY, 0, 0, 0};
    each_chunk<T>(c, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(c.x, row * c.x.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i < n) s.largest = fmaxf(s.largest, v[i]);
    });
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        s.largest = fmaxf(s.largest, __shfl_xor_sync(0xffffffffu, s.largest, lane));
    if (threadIdx.x % 32 == 0) shared[0][threadIdx.x / 32] = s.largest;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) s.largest = fmaxf(s.largest, shared[0][i]);
    each_chunk<T>(c, [&](int64_t column, int n) {
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
    each_chunk<T>(c, [&](int64_t column, int n) {
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
