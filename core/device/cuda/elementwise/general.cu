/* The kernels of general operations: copies between strides, functions of one and two elements,
 * sums over a middle dimension. Bytes per element, for 16-bit types: strided_copy 4, unary 4,
 * unary_backward and binary 6 (2 more if they accumulate), sum_middle 2. */
#include "core/device/cuda/runtime/kernels.cuh"

/* ---- strided copies -------------------------------------------------------------------------- */

/* One thread per chunk of the last dimension. Chunks are copied whole if both arrays are contiguous
 * in that dimension; a transposed array is read element by element. */
struct strided_call {
    mc_view x, y;
    int outer; /* number of dimensions without the last */
    mc_divider size[MC_STRIDED_DIMS];
    int64_t x_step[MC_STRIDED_DIMS], y_step[MC_STRIDED_DIMS];
    float factor;
    bool accumulate;

    template <class T> __device__ __forceinline__ void load(int64_t at, int n, float *v) const
    {
        const int64_t step = x_step[outer];
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] = i < n ? mc_load_one(x, at + i * step) : 0.0f;
    }

    template <class T> __device__ __forceinline__ void store(int64_t at, int n, float *v) const
    {
        const int64_t step = y_step[outer];
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) {
            if (i >= n) break;
            int64_t to = at + i * step;
            mc_store_one(y, to, accumulate ? mc_load_one(y, to) + v[i] : v[i]);
        }
    }

    template <class T>
    __device__ __forceinline__ void run(int64_t line, int64_t column, int n) const
    {
        int64_t x_at = column * x_step[outer], y_at = column * y_step[outer];
#pragma unroll
        for (int k = MC_STRIDED_DIMS - 2; k >= 0; k--) {
            if (k >= outer) continue;
            int64_t above = mc_divide(line, size[k]);
            int64_t at = line - above * (int64_t)size[k].divisor;
            x_at += at * x_step[k];
            y_at += at * y_step[k];
            line = above;
        }
        float v[mc_width<T>];
        if (x_step[outer] == 1)
            mc_load<T>(x, x_at, n, v);
        else
            load<T>(x_at, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] *= factor;
        if (y_step[outer] == 1)
            mc_store_or_add<T>(y, y_at, n, v, accumulate);
        else
            store<T>(y_at, n, v);
    }
};

/* As mc_view_of, for lines that start at multiples of all strides except the last. */
static mc_view lines_of(mc_matrix m, const int64_t *step, int outer, int width)
{
    mc_view view = mc_view_of(m, 1, width);
    for (int i = 0; i < outer; i++) view.whole = view.whole && step[i] % width == 0;
    return view;
}

extern "C" mc_status mc_cuda_strided_copy(mc_device *d, const mc_strided_shape *shape, mc_matrix x,
                                          float factor, mc_matrix y, bool accumulate)
{
    int outer = shape->ndim - 1;
    int64_t lines = 1;
    for (int i = 0; i < outer; i++) lines *= shape->size[i];
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        strided_call call = {};
        call.x = lines_of(x, shape->x, outer, width);
        call.y = lines_of(y, shape->y, outer, width);
        call.outer = outer;
        for (int i = 0; i <= outer; i++) {
            call.size[i] = mc_divider_of(mc_most(1, shape->size[i]));
            call.x_step[i] = shape->x[i];
            call.y_step[i] = shape->y[i];
        }
        call.factor = factor;
        call.accumulate = accumulate;
        mc_launch_chunks<T>(d, lines, shape->size[outer], call);
    });
    return mc_cuda_launched(d, "strided_copy");
}

/* ---- functions of one element ---------------------------------------------------------------- */

__device__ __forceinline__ float apply(mc_unary kind, float x)
{
    switch (kind) {
    case MC_UNARY_EXP: return expf(x);
    case MC_UNARY_LOG: return logf(x);
    case MC_UNARY_SQRT: return sqrtf(x);
    case MC_UNARY_SOFTPLUS: return log1pf(expf(-fabsf(x))) + fmaxf(x, 0.0f);
    case MC_UNARY_SIGMOID: break;
    }
    return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ float slope(mc_unary kind, float x)
{
    switch (kind) {
    case MC_UNARY_EXP: return expf(x);
    case MC_UNARY_LOG: return 1.0f / x;
    case MC_UNARY_SQRT: return 0.5f / sqrtf(x);
    case MC_UNARY_SOFTPLUS: return apply(MC_UNARY_SIGMOID, x);
    case MC_UNARY_SIGMOID: break;
    }
    float e = expf(-fabsf(x)), high = 1.0f / (1.0f + e);
    return e * high * high;
}

struct unary_call {
    mc_view x, y;
    mc_unary kind;

    template <class T> __device__ __forceinline__ void run(int64_t, int64_t at, int n) const
    {
        float v[mc_width<T>];
        mc_load<T>(x, at, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] = apply(kind, v[i]);
        mc_store<T>(y, at, n, v);
    }
};

extern "C" mc_status mc_cuda_unary(mc_device *d, int64_t count, mc_unary kind, mc_matrix x,
                                   mc_matrix y)
{
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        unary_call call = {mc_view_of(x, 1, width), mc_view_of(y, 1, width), kind};
        mc_launch_chunks<T>(d, 1, count, call);
    });
    return mc_cuda_launched(d, "unary");
}

struct unary_backward_call {
    mc_view x, dy, dx;
    mc_unary kind;
    bool accumulate;

    template <class T> __device__ __forceinline__ void run(int64_t, int64_t at, int n) const
    {
        float v[mc_width<T>], g[mc_width<T>];
        mc_load<T>(x, at, n, v);
        mc_load<T>(dy, at, n, g);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) g[i] *= slope(kind, v[i]);
        mc_store_or_add<T>(dx, at, n, g, accumulate);
    }
};

extern "C" mc_status mc_cuda_unary_backward(mc_device *d, int64_t count, mc_unary kind, mc_matrix x,
                                            mc_matrix dy, mc_matrix dx, bool accumulate)
{
    MC_WITH_TYPE(mc_common_dtype(x, dy, dx), {
        const int width = mc_width<T>;
        unary_backward_call call = {mc_view_of(x, 1, width), mc_view_of(dy, 1, width),
                                    mc_view_of(dx, 1, width), kind, accumulate};
        mc_launch_chunks<T>(d, 1, count, call);
    });
    return mc_cuda_launched(d, "unary_backward");
}

/* ---- functions of two elements --------------------------------------------------------------- */

/* x[i % count] for elements of a flat array. */
struct cycled {
    mc_view x;
    mc_divider count;

    template <class T> __device__ __forceinline__ void load(int64_t first, int n, float *v) const
    {
        int64_t period = (int64_t)count.divisor, at = first - mc_divide(first, count) * period;
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) {
            v[i] = i < n ? mc_load_one(x, at) : 0.0f;
            if (++at == period) at = 0;
        }
    }
};

struct two_operands_call {
    cycled a, b;
    bool whole_a, whole_b; /* not repeated */
    mc_view y;
    mc_binary kind;
    float factor;
    bool accumulate;

    template <class T> __device__ __forceinline__ void run(int64_t, int64_t at, int n) const
    {
        float v[mc_width<T>], w[mc_width<T>];
        if (whole_a)
            mc_load<T>(a.x, at, n, v);
        else
            a.load<T>(at, n, v);
        if (whole_b)
            mc_load<T>(b.x, at, n, w);
        else
            b.load<T>(at, n, w);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            v[i] = factor * (kind == MC_BINARY_SUBTRACT ? v[i] - w[i] : v[i] / w[i]);
        mc_store_or_add<T>(y, at, n, v, accumulate);
    }
};

extern "C" mc_status mc_cuda_binary(mc_device *d, int64_t count, mc_binary kind, mc_matrix a,
                                    int64_t a_count, mc_matrix b, int64_t b_count, float factor,
                                    mc_matrix y, bool accumulate)
{
    if (count == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(a, b, y), {
        const int width = mc_width<T>;
        two_operands_call call = {{mc_view_of(a, 1, width), mc_divider_of(a_count)},
                                  {mc_view_of(b, 1, width), mc_divider_of(b_count)},
                                  a_count == count,
                                  b_count == count,
                                  mc_view_of(y, 1, width),
                                  kind,
                                  factor,
                                  accumulate};
        mc_launch_chunks<T>(d, 1, count, call);
    });
    return mc_cuda_launched(d, "binary");
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct sum_middle_call {
    mc_view x, y;
    int64_t size, inner;
    float factor;
    bool accumulate;

    __device__ __forceinline__ void give(int64_t at, float sum) const
    {
        float value = factor * sum;
        mc_store_one(y, at, accumulate ? mc_load_one(y, at) + value : value);
    }

    /* One thread per chunk of columns of an outer index, which sums all rows. */
    template <class T>
    __device__ __forceinline__ void run(int64_t outer, int64_t column, int n) const
    {
        float sum[mc_width<T>] = {};
        for (int64_t row = 0; row < size; row++) {
            float v[mc_width<T>];
            mc_load<T>(x, (outer * size + row) * inner + column, n, v);
#pragma unroll
            for (int i = 0; i < mc_width<T>; i++) sum[i] += v[i];
        }
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i < n) give(outer * inner + column + i, sum[i]);
    }
};

/* One block per row. */
template <class T>
static __global__ void __launch_bounds__(256)
    sum_each_row(const __grid_constant__ sum_middle_call c)
{
    __shared__ float shared[256 / 32];
    const int64_t row = blockIdx.x;
    float sum = 0;
    mc_each_chunk<T>(c.size, [&](int64_t column, int n) {
        float v[mc_width<T>], part = 0;
        mc_load<T>(c.x, row * c.size + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) part += v[i];
        sum += part;
    });
    sum = mc_block_sum(sum, shared);
    if (threadIdx.x == 0) c.give(row, sum);
}

extern "C" mc_status mc_cuda_sum_middle(mc_device *d, int64_t outer, int64_t size, int64_t inner,
                                        mc_matrix x, float factor, mc_matrix y, bool accumulate)
{
    if (outer == 0 || inner == 0) return MC_OK;
    MC_WITH_TYPE(x.dtype, {
        const int width = mc_width<T>;
        x.stride = inner == 1 ? size : inner;
        sum_middle_call call = {
            mc_view_of(x, 2, width), mc_view_of(y, 1, 1), size, inner, factor, accumulate};
        int64_t chunks = mc_ceil_div(size, width);
        int threads = (int)mc_most(32, mc_least(256, mc_ceil_div(chunks, 32) * 32));
        if (inner == 1)
            sum_each_row<T><<<(unsigned)outer, threads, 0, mc_cuda_of(d)->stream>>>(call);
        else
            mc_launch_chunks<T>(d, outer, inner, call);
    });
    return mc_cuda_launched(d, "sum_middle");
}
