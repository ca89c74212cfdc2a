/* Memory-bound kernels that read each element once: activations, dropout, arithmetic with
 * broadcasting, conversion. One chunk of 16 bytes per thread. Bytes per element, for 16-bit types:
 * activation, scale, dropout 4; activation_backward, add, multiply 6 (2 more if they accumulate);
 * bias_activation 6 (read x, write x and y; 4 without a bias or an activation); gated 6,
 * gated_backward 10, per element of the output (4 more if it accumulates). Instructions per
 * element, for bf16 in whole chunks: activation gelu 18.5, activation_backward gelu 26; in the time
 * of 6 bytes an H200 issues 48 at 1.98 GHz, 36 at 1.5 GHz. */
#include "core/device/cuda/elementwise/activation.cuh"
#include "core/device/cuda/runtime/kernels.cuh"

/* ---- activations ----------------------------------------------------------------------------- */

/* For matrices that are one row of whole chunks, as most are after mc_flatten. For others, locating
 * a chunk takes as many instructions as an activation. */
template <class T, class F>
static __global__ void __launch_bounds__(256)
    whole_chunks(const __grid_constant__ F f, int64_t chunks)
{
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i < chunks) f.template run<T, true>(0, i * mc_width<T>, mc_width<T>);
}

/* `whole`: rows of the flattened matrices are whole chunks (mc_whole_dtype). */
template <class T, class F>
static void launch_flat(mc_device *d, int64_t rows, int64_t columns, bool whole, const F &f)
{
    if constexpr (mc_whole<T>)
        if (whole && rows == 1) {
            int64_t chunks = columns / mc_width<T>;
            unsigned blocks = (unsigned)mc_ceil_div(chunks, 256);
            whole_chunks<T, F><<<blocks, 256, 0, mc_cuda_of(d)->stream>>>(f, chunks);
            return;
        }
    mc_launch_chunks<T>(d, rows, columns, f);
}

struct bias_activation_call {
    mc_view x, bias, y;
    mc_activation activation;

    /* The activation uses the sum as stored, because backward reads that. */
    template <class T> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        float v[mc_width<T>], b[mc_width<T>];
        int64_t at = row * x.stride + column;
        mc_load<T>(x, at, n, v);
        if (bias.data) {
            mc_load<T>(bias, column, n, b);
#pragma unroll
            for (int i = 0; i < mc_width<T>; i++) v[i] += b[i];
            mc_bits stored = mc_pack<T>(x, v);
            mc_store_bits<T>(x, at, n, stored);
            mc_unpack<T>(x, stored, v);
        }
        if (!y.data) return;
        mc_activate<T>(activation, v);
        mc_store<T>(y, row * y.stride + column, n, v);
    }
};

extern "C" mc_status mc_cuda_bias_activation(mc_device *d, int64_t rows, int64_t columns,
                                             mc_matrix x, mc_matrix bias, mc_activation activation,
                                             mc_matrix y)
{
    if (y.data == x.data && activation == MC_ACTIVATION_NONE) y.data = NULL;
    if (rows == 0 || columns == 0 || (!bias.data && !y.data)) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, bias, y), {
        const int width = mc_width<T>;
        bias_activation_call call = {mc_view_of(x, rows, width), mc_view_of(bias, 1, width),
                                     mc_view_of(y, rows, width), activation};
        mc_launch_chunks<T>(d, rows, columns, call);
    });
    return mc_cuda_launched(d, "bias_activation");
}

struct activation_call {
    mc_view x, y;
    mc_activation activation;

    template <class T, bool WHOLE = false>
    __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        float v[mc_width<T>];
        mc_load<T, WHOLE>(x, row * x.stride + column, n, v);
        mc_activate<T>(activation, v);
        mc_store<T, WHOLE>(y, row * y.stride + column, n, v);
    }
};

extern "C" mc_status mc_cuda_activation(mc_device *d, int64_t rows, int64_t columns,
                                        mc_activation activation, mc_matrix x, mc_matrix y)
{
    if (rows == 0 || columns == 0) return MC_OK;
    mc_flatten(&rows, &columns, x, y);
    bool whole = mc_whole_dtype(columns, x, y) != MC_DTYPE_DEFAULT;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        activation_call call = {mc_view_of(x, rows, width), mc_view_of(y, rows, width), activation};
        launch_flat<T>(d, rows, columns, whole, call);
    });
    return mc_cuda_launched(d, "activation");
}

struct activation_backward_call {
    mc_view x, dy, dx;
    mc_activation activation;
    float factor;
    bool accumulate;

    template <class T, bool WHOLE = false>
    __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        mc_bits xs = mc_load_bits<T, WHOLE>(x, row * x.stride + column, n);
        mc_bits gs = mc_load_bits<T, WHOLE>(dy, row * dy.stride + column, n);
        float v[mc_width<T>], g[mc_width<T>];
        mc_unpack<T>(x, xs, v);
        mc_unpack<T>(dy, gs, g);
        mc_activate_backward<T>(activation, v, g);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) g[i] *= factor;
        mc_store_or_add<T, WHOLE>(dx, row * dx.stride + column, n, g, accumulate);
    }
};

extern "C" mc_status mc_cuda_activation_backward(mc_device *d, int64_t rows, int64_t columns,
                                                 mc_activation activation, mc_matrix x,
                                                 float factor, mc_matrix dy, mc_matrix dx,
                                                 bool accumulate)
{
    if (rows == 0 || columns == 0) return MC_OK;
    mc_flatten(&rows, &columns, x, dy, dx);
    bool whole = mc_whole_dtype(columns, x, dy, dx) != MC_DTYPE_DEFAULT;
    MC_WITH_TYPE(mc_common_dtype(x, dy, dx), {
        const int width = mc_width<T>;
        activation_backward_call call = {mc_view_of(x, rows, width),
                                         mc_view_of(dy, rows, width),
                                         mc_view_of(dx, rows, width),
                                         activation,
                                         factor,
                                         accumulate};
        launch_flat<T>(d, rows, columns, whole, call);
    });
    return mc_cuda_launched(d, "activation_backward");
}

/* ---- gates ----------------------------------------------------------------------------------- */

/* The second half of x's rows starts n elements after the first, possibly unaligned: then it has a
 * view of its own, which is not `whole`. */
struct gated_call {
    mc_view a, b, y;
    mc_activation activation;

    template <class T> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        mc_bits as = mc_load_bits<T>(a, row * a.stride + column, n);
        mc_bits bs = mc_load_bits<T>(b, row * b.stride + column, n);
        float v[mc_width<T>], w[mc_width<T>];
        mc_unpack<T>(a, as, v);
        mc_unpack<T>(b, bs, w);
        mc_activate<T>(activation, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] *= w[i];
        mc_store<T>(y, row * y.stride + column, n, v);
    }
};

extern "C" mc_status mc_cuda_gated(mc_device *d, int64_t rows, int64_t n, mc_activation activation,
                                   mc_matrix x, mc_matrix y)
{
    if (rows == 0 || n == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        gated_call call = {mc_view_of(x, rows, width),
                           mc_view_of(mc_second_half(x, n), rows, width),
                           mc_view_of(y, rows, width), activation};
        mc_launch_chunks<T>(d, rows, n, call);
    });
    return mc_cuda_launched(d, "gated");
}

struct gated_backward_call {
    mc_view a, b, dy, da, db;
    mc_activation activation;
    bool accumulate;

    template <class T> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        mc_bits as = mc_load_bits<T>(a, row * a.stride + column, n);
        mc_bits bs = mc_load_bits<T>(b, row * b.stride + column, n);
        mc_bits gs = mc_load_bits<T>(dy, row * dy.stride + column, n);
        float x[mc_width<T>], v[mc_width<T>], g[mc_width<T>];
        mc_unpack<T>(dy, gs, g);
        mc_unpack<T>(b, bs, v);
        mc_unpack<T>(a, as, x);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] *= g[i];
        mc_activate_backward<T>(activation, x, v);
        mc_store_or_add<T>(da, row * da.stride + column, n, v, accumulate);
        mc_activate<T>(activation, x);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) x[i] *= g[i];
        mc_store_or_add<T>(db, row * db.stride + column, n, x, accumulate);
    }
};

extern "C" mc_status mc_cuda_gated_backward(mc_device *d, int64_t rows, int64_t n,
                                            mc_activation activation, mc_matrix x, mc_matrix dy,
                                            mc_matrix dx, bool accumulate)
{
    if (rows == 0 || n == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, dy, dx), {
        const int width = mc_width<T>;
        gated_backward_call call = {mc_view_of(x, rows, width),
                                    mc_view_of(mc_second_half(x, n), rows, width),
                                    mc_view_of(dy, rows, width),
                                    mc_view_of(dx, rows, width),
                                    mc_view_of(mc_second_half(dx, n), rows, width),
                                    activation,
                                    accumulate};
        mc_launch_chunks<T>(d, rows, n, call);
    });
    return mc_cuda_launched(d, "gated_backward");
}

/* ---- dropout --------------------------------------------------------------------------------- */

template <bool RELU> struct dropout_call {
    mc_view x, y;
    mc_dropping mask;
    int64_t columns;
    bool accumulate;

    template <class T, bool WHOLE = false>
    __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        mc_bits xs = mc_load_bits<T, WHOLE>(x, row * x.stride + column, n);
        float v[mc_width<T>], factor[mc_width<T>];
        mc_drop_factors(mask, row * columns + column, factor);
        mc_unpack<T>(x, xs, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            v[i] = (RELU && v[i] < 0.0f ? 0.0f : v[i]) * factor[i];
        mc_store_or_add<T, WHOLE>(y, row * y.stride + column, n, v, accumulate);
    }
};

template <bool RELU>
static mc_status drop(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                      mc_dropout_mask dropout, mc_matrix y, bool accumulate)
{
    mc_flatten(&rows, &columns, x, y);
    bool whole = mc_whole_dtype(columns, x, y) != MC_DTYPE_DEFAULT;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        dropout_call<RELU> call = {mc_view_of(x, rows, width), mc_view_of(y, rows, width),
                                   mc_dropping_of(dropout), columns, accumulate};
        launch_flat<T>(d, rows, columns, whole, call);
    });
    return mc_cuda_launched(d, "dropout");
}

extern "C" mc_status mc_cuda_dropout(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                     bool relu, mc_dropout_mask dropout, mc_matrix y,
                                     bool accumulate)
{
    if (rows == 0 || columns == 0) return MC_OK;
    return relu ? drop<true>(d, rows, columns, x, dropout, y, accumulate)
                : drop<false>(d, rows, columns, x, dropout, y, accumulate);
}

/* ---- flat arrays ----------------------------------------------------------------------------- */

/* b[i % count] for elements of a flat array. */
struct repeated {
    mc_view b;
    mc_divider count;

    template <class T, int width>
    __device__ __forceinline__ void load(int64_t first, int n, float (&v)[width]) const
    {
        int64_t period = (int64_t)count.divisor;
        int64_t at = first - mc_divide(first, count) * period;
        if (at + n <= period) {
            mc_view run = b;
            run.whole = b.whole && at % width == 0;
            mc_load<T>(run, at, n, v);
            return;
        }
#pragma unroll
        for (int i = 0; i < width; i++) {
            v[i] = i < n ? mc_load_one(b, at) : 0.0f;
            if (++at == period) at = 0;
        }
    }
};

struct binary_call {
    mc_view a, y;
    repeated b;
    bool product, accumulate;

    template <class T> __device__ __forceinline__ void run(int64_t, int64_t at, int n) const
    {
        float v[mc_width<T>], w[mc_width<T>];
        mc_bits as = mc_load_bits<T>(a, at, n);
        b.load<T>(at, n, w);
        mc_unpack<T>(a, as, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] = product ? v[i] * w[i] : v[i] + w[i];
        mc_store_or_add<T>(y, at, n, v, accumulate);
    }
};

static void launch_binary(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                          mc_matrix y, bool product, bool accumulate)
{
    MC_WITH_TYPE(mc_common_dtype(a, b, y), {
        const int width = mc_width<T>;
        binary_call call = {mc_view_of(a, 1, width),
                            mc_view_of(y, 1, width),
                            {mc_view_of(b, 1, width), mc_divider_of(b_count)},
                            product,
                            accumulate};
        mc_launch_chunks<T>(d, 1, count, call);
    });
}

extern "C" mc_status mc_cuda_add(mc_device *d, int64_t count, mc_matrix a, mc_matrix b,
                                 int64_t b_count, mc_matrix y)
{
    if (count == 0) return MC_OK;
    launch_binary(d, count, a, b, b_count, y, false, false);
    return mc_cuda_launched(d, "add");
}

extern "C" mc_status mc_cuda_multiply(mc_device *d, int64_t count, mc_matrix a, mc_matrix b,
                                      int64_t b_count, mc_matrix y, bool accumulate)
{
    if (count == 0) return MC_OK;
    launch_binary(d, count, a, b, b_count, y, true, accumulate);
    return mc_cuda_launched(d, "multiply");
}

struct scale_call {
    mc_view x, y;
    float factor;
    bool accumulate;

    template <class T> __device__ __forceinline__ void run(int64_t, int64_t at, int n) const
    {
        float v[mc_width<T>];
        mc_load<T>(x, at, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) v[i] = __fmul_rn(v[i], factor);
        mc_store_or_add<T>(y, at, n, v, accumulate);
    }
};

extern "C" mc_status mc_cuda_scale(mc_device *d, int64_t count, mc_matrix x, float factor,
                                   mc_matrix y, bool accumulate)
{
    if (count == 0) return MC_OK;
    MC_WITH_TYPE(mc_common_dtype(x, y), {
        const int width = mc_width<T>;
        scale_call call = {mc_view_of(x, 1, width), mc_view_of(y, 1, width), factor, accumulate};
        mc_launch_chunks<T>(d, 1, count, call);
    });
    return mc_cuda_launched(d, "scale");
}

extern "C" mc_status mc_cuda_zero(mc_device *d, void *data, size_t bytes)
{
    if (bytes == 0) return MC_OK;
    return mc_cuda_check(d, cudaMemsetAsync(data, 0, bytes, mc_cuda_of(d)->stream), "zero");
}
