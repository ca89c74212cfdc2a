/* LayerNorm or RMSNorm of a residual sum, with dropout of the branch, in one pass over the rows.
 * Bytes per element, for 16-bit types: residual_norm 8 (read x and f, write s and y; 4 without a
 * branch; 1 more for y in 8 bits), residual_norm_backward 8 (read s and dy, write ds and df; 2 more
 * if it accumulates to ds; df's column sums are free), residual_sum 6.
 *
 * One to sixteen warps hold a row in registers; rows too long for that are read again for each
 * pass. */
#include "core/device/cuda/elementwise/fp8.cuh"

enum {
    ROW_THREADS = 512, /* per row, at most; a thread then has 128 registers */
    ROWS = 4,          /* per block, if each row has one warp */
    FEW = 64,          /* rows for which each has as many threads as it can use */
    MOST_EIGHTS = 3,   /* a thread holds at most three times eight elements of a row */
};

/* One call of residual_norm (x, f, s, y, weight, bias, and eps) or of its backward pass (s, dy, ds,
 * df, weight). */
struct mc_norm_call {
    int64_t rows, columns;
    mc_view x, f, s, y, weight, bias, dy, ds, df;
    mc_dropping mask;
    float eps;
    const float *mean, *rstd;
    float *mean_out, *rstd_out;
    uint8_t *bytes; /* y in E4M3, times *scale; NULL: none */
    const float *scale;
    /* round: the norm of s as if stored; rms: RMSNorm, without bias, mean and mean_out */
    bool round, accumulate, rms;
};

/* The terms of the sum: x alone, x + f, or x + dropout(f). */
enum mc_summands { MC_ALONE, MC_PLAIN, MC_DROPPED };

/* The column sums over the rows: for dweight and dbias, or for dbranch too. */
enum { MC_WEIGHTS = 2, MC_WEIGHTS_AND_BRANCH = 3 };

/* Column sums of blocks or rows, in device memory: (parts, sums, columns). */
struct mc_norm_partials {
    float *data;
    int64_t parts, sums; /* sums 0: none */
};

static size_t mc_norm_partials_bytes(const mc_norm_partials *p, int64_t columns)
{
    return (size_t)(p->parts * p->sums * columns) * sizeof(float);
}

static mc_status mc_norm_partials_new(mc_device *d, int64_t parts, int64_t columns,
                                      mc_norm_partials *p)
{
    p->parts = parts;
    p->data = (float *)d->alloc(d, mc_norm_partials_bytes(p, columns));
    return p->data ? MC_OK : MC_ERR_NOMEM;
}

template <int width> __device__ __forceinline__ float mc_sum_of(const float (&v)[width])
{
    float sum = v[0];
#pragma unroll
    for (int i = 1; i < width; i++) sum += v[i];
    return sum;
}

/* The sum of squared deviations of the first n elements; in whole chunks n is all or none. */
template <bool ALL, int width>
__device__ __forceinline__ float mc_squares_of(const float (&v)[width], int n, float mean)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < width; i++)
        if (ALL ? n > 0 : i < n) sum += (v[i] - mean) * (v[i] - mean);
    return sum;
}

template <int width>
__device__ __forceinline__ void mc_normalise(float mean, float rstd, float (&s)[width])
{
#pragma unroll
    for (int i = 0; i < width; i++) s[i] = (s[i] - mean) * rstd;
}

struct mc_norm_sums {
    float gradient, product; /* over the row, of g = dy * weight and of g * normalised s */
    __device__ __forceinline__ mc_norm_sums &operator+=(const mc_norm_sums &o)
    {
        gradient += o.gradient;
        product += o.product;
        return *this;
    }
};

struct mc_row_facts {
    float rstd;
    mc_norm_sums means;
};

/* v = the gradient at the sum; s is normalised: rstd (g - mean(g) - s mean(g s)). */
template <int width>
__device__ __forceinline__ void mc_norm_gradient(const mc_row_facts &r, const float (&s)[width],
                                                 const float (&g)[width], float (&v)[width])
{
    const float constant = -r.rstd * r.means.gradient, slope = -r.rstd * r.means.product;
#pragma unroll
    for (int i = 0; i < width; i++)
        v[i] = __fmaf_rn(g[i], r.rstd, __fmaf_rn(s[i], slope, constant));
}

/* v = 1 without a weight. */
template <class T, int width>
__device__ __forceinline__ void load_weight(mc_view w, int64_t column, int n, float none,
                                            float (&v)[width])
{
    if (w.data) {
        mc_load<T, mc_whole<T>>(w, column, n, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < width; i++) v[i] = none;
}

/* The elements of a chunk at `column` that are within the row; may be negative. */
template <class T> __device__ __forceinline__ int within(int64_t columns, int64_t column)
{
    int64_t left = columns - column;
    return left < mc_width<T> ? (int)(left < 0 ? 0 : left) : mc_width<T>;
}

/* x = x + dropout(f). */
template <class T, mc_summands OF, int width>
__device__ __forceinline__ void add_branch(const mc_norm_call &c, int64_t row, int64_t column,
                                           mc_bits f, float (&x)[width])
{
    float v[width], factor[width];
    mc_unpack<T>(c.f, f, v);
    if (OF == MC_DROPPED) mc_drop_factors(c.mask, row * c.columns + column, factor);
#pragma unroll
    for (int i = 0; i < width; i++)
        x[i] = __fmaf_rn(v[i], OF == MC_DROPPED ? factor[i] : 1.0f, x[i]);
}

/* Stores s if required; v becomes the argument of the norm. */
template <class T, int width>
__device__ __forceinline__ void store_sum(const mc_norm_call &c, int64_t row, int64_t column, int n,
                                          float (&v)[width])
{
    if (!c.s.data && !c.round) return;
    mc_bits stored = mc_pack<T>(c.s, v);
    if (c.s.data) mc_store_bits<T, mc_whole<T>>(c.s, row * c.s.stride + column, n, stored);
    if (c.round) mc_unpack<T>(c.s, stored, v);
}

/* Weight and bias of a chunk. */
template <class T> struct affine {
    float w[mc_width<T>], b[mc_width<T>];

    template <bool RMS>
    __device__ __forceinline__ void load(const mc_norm_call &c, int64_t column, int n)
    {
        load_weight<T>(c.weight, column, n, 1.0f, w);
        if (!RMS) load_weight<T>(c.bias, column, n, 0.0f, b);
    }
};

/* A chunk of y in E4M3. */
template <int width>
__device__ __forceinline__ void store_in_bytes(const mc_norm_call &c, int64_t row, int64_t column,
                                               const float (&y)[width])
{
    static_assert(width == 8, "two words");
    const float scale = *c.scale;
    *(uint2 *)(c.bytes + row * c.columns + column) =
        make_uint2(mc_e4m3_codes_of(y, scale), mc_e4m3_codes_of(y + 4, scale));
}

/* y = (v - mean) * rstd * weight + bias; with BYTES in 8 bits too, of y as it is stored. */
template <class T, bool RMS, bool BYTES, int width>
__device__ __forceinline__ void store_normalised(const mc_norm_call &c, const affine<T> &a,
                                                 int64_t row, int64_t column, int n, float mean,
                                                 float rstd, float (&v)[width])
{
#pragma unroll
    for (int i = 0; i < width; i++)
        v[i] = RMS ? v[i] * rstd * a.w[i] : (v[i] - mean) * rstd * a.w[i] + a.b[i];
    if constexpr (BYTES) {
        const mc_bits y = mc_pack<T>(c.y, v);
        mc_store_bits<T, mc_whole<T>>(c.y, row * c.y.stride + column, n, y);
        mc_unpack<T>(c.y, y, v);
        store_in_bytes(c, row, column, v);
    } else {
        mc_store<T, mc_whole<T>>(c.y, row * c.y.stride + column, n, v);
    }
}

/* The sum over the threads of a row: a warp, or the block if a row has several warps. */
template <class S> __device__ __forceinline__ S row_sum(S x, S *shared)
{
    return blockDim.x == 32 ? mc_warp_sum(x) : mc_block_sum(x, shared);
}

/* Block (threads of a row, rows); each thread has CHUNKS chunks of its row. */
template <class T, int CHUNKS, mc_summands OF, bool RMS, bool BYTES = false>
static __global__ void __launch_bounds__(ROW_THREADS)
    norm_rows(const __grid_constant__ mc_norm_call c)
{
    constexpr int width = mc_width<T>;
    __shared__ float shared[2][ROW_THREADS / 32];
    constexpr bool EARLY = CHUNKS * width == 8; /* loads weights before the sums */
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    affine<T> a[CHUNKS];
    auto load_affine = [&](int k) {
        int64_t column = (int64_t)(k * blockDim.x + threadIdx.x) * width;
        a[k].template load<RMS>(c, column, within<T>(c.columns, column));
    };
#pragma unroll
    for (int k = 0; k < CHUNKS && EARLY; k++) load_affine(k);
    mc_let_next_begin();
    mc_wait_for_earlier();
    if (row >= c.rows) return; /* a whole warp, or the whole block */
    mc_bits xs[CHUNKS], fs[CHUNKS];
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int64_t column = (int64_t)(k * blockDim.x + threadIdx.x) * width;
        int n = within<T>(c.columns, column);
        xs[k] = mc_load_bits<T, mc_whole<T>>(c.x, row * c.x.stride + column, n);
        if (OF != MC_ALONE) fs[k] = mc_load_bits<T, mc_whole<T>>(c.f, row * c.f.stride + column, n);
    }
    float v[CHUNKS][width], sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int64_t column = (int64_t)(k * blockDim.x + threadIdx.x) * width;
        mc_unpack<T>(c.x, xs[k], v[k]);
        if (OF != MC_ALONE) add_branch<T, OF>(c, row, column, fs[k], v[k]);
        store_sum<T>(c, row, column, within<T>(c.columns, column), v[k]);
        if (!RMS) sum += mc_sum_of(v[k]);
    }
    float mean = RMS ? 0.0f : row_sum(sum, shared[0]) / (float)c.columns;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int64_t column = (int64_t)(k * blockDim.x + threadIdx.x) * width;
        squares += mc_squares_of<mc_whole<T>>(v[k], within<T>(c.columns, column), mean);
    }
    float rstd = 1.0f / sqrtf(row_sum(squares, shared[1]) / (float)c.columns + c.eps);
    if (threadIdx.x == 0) {
        if (!RMS && c.mean_out) c.mean_out[row] = mean;
        if (c.rstd_out) c.rstd_out[row] = rstd;
    }
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int64_t column = (int64_t)(k * blockDim.x + threadIdx.x) * width;
        int n = within<T>(c.columns, column);
        if (!EARLY) load_affine(k);
        if (n > 0) store_normalised<T, RMS, BYTES>(c, a[k], row, column, n, mean, rstd, v[k]);
    }
}

/* One chunk of the norm's argument, computed from x and f. */
template <class T, int width>
__device__ __forceinline__ void load_sum(const mc_norm_call &c, int64_t row, int64_t column, int n,
                                         float (&v)[width])
{
    mc_load<T, mc_whole<T>>(c.x, row * c.x.stride + column, n, v);
    if (!c.f.data) return;
    add_branch<T, MC_DROPPED>(c, row, column,
                              mc_load_bits<T, mc_whole<T>>(c.f, row * c.f.stride + column, n), v);
    if (c.round) mc_unpack<T>(c.s, mc_pack<T>(c.s, v), v);
}

/* Rows of any length: one per block, read again for each pass. */
template <class T, bool RMS>
static __global__ void __launch_bounds__(ROW_THREADS)
    norm_long_rows(const __grid_constant__ mc_norm_call c)
{
    constexpr int width = mc_width<T>;
    __shared__ float shared[2][ROW_THREADS / 32];
    const int64_t row = blockIdx.x, first = threadIdx.x * width, step = ROW_THREADS * width;
    float v[width], sum = 0, squares = 0;
    for (int64_t column = first; !RMS && column < c.columns; column += step) {
        load_sum<T>(c, row, column, within<T>(c.columns, column), v);
        sum += mc_sum_of(v);
    }
    float mean = RMS ? 0.0f : mc_block_sum(sum, shared[0]) / (float)c.columns;
    for (int64_t column = first; column < c.columns; column += step) {
        int n = within<T>(c.columns, column);
        load_sum<T>(c, row, column, n, v);
        squares += mc_squares_of<mc_whole<T>>(v, n, mean);
    }
    float rstd = 1.0f / sqrtf(mc_block_sum(squares, shared[1]) / (float)c.columns + c.eps);
    if (threadIdx.x == 0) {
        if (!RMS && c.mean_out) c.mean_out[row] = mean;
        if (c.rstd_out) c.rstd_out[row] = rstd;
    }
    for (int64_t column = first; column < c.columns; column += step) {
        int n = within<T>(c.columns, column);
        load_sum<T>(c, row, column, n, v);
        store_sum<T>(c, row, column, n, v);
        affine<T> a;
        a.template load<RMS>(c, column, n);
        store_normalised<T, RMS, false>(c, a, row, column, n, mean, rstd, v);
    }
}

/* ---- shapes of launches ---------------------------------------------------------------------- */

/* Threads per row, and groups of eight elements per thread; eights 0: too long for registers. */
struct row_shape {
    int eights, threads;
};

/* The shape with the fewest idle places, and among these with the fewest threads. */
static row_shape row_shape_of(int64_t columns)
{
    row_shape best = {0, ROW_THREADS};
    int64_t least = INT64_MAX;
    for (int warps = 1; warps <= ROW_THREADS / 32; warps++)
        for (int eights = 1; eights <= MOST_EIGHTS; eights++) {
            int64_t places = (int64_t)warps * 32 * 8 * eights;
            if (places < columns || places >= least) continue;
            least = places;
            best = {eights, warps * 32};
        }
    return best;
}

/* Runs the statements with CHUNKS as the number of chunks per thread. */
#define MC_WITH_CHUNKS(eights, ...)                     \
    do {                                                \
        if ((eights) == 1) {                            \
            constexpr int CHUNKS = 8 / mc_width<T>;     \
            __VA_ARGS__;                                \
        } else if ((eights) == 2) {                     \
            constexpr int CHUNKS = 2 * 8 / mc_width<T>; \
            __VA_ARGS__;                                \
        } else {                                        \
            constexpr int CHUNKS = 3 * 8 / mc_width<T>; \
            __VA_ARGS__;                                \
        }                                               \
    } while (0)

/* Whether norm_rows also writes y in 8 bits: in whole chunks of bf16, without dropout. */
template <class T> static bool writes_bytes(const mc_norm_call &c, const uint8_t *bytes)
{
    return std::is_same_v<T, __nv_bfloat16> && c.mask.keep == 0 && (uintptr_t)bytes % 8 == 0 &&
           row_shape_of(c.columns).eights > 0;
}

template <class T, int CHUNKS, bool RMS>
static auto kernel_for(const mc_norm_call &c) -> void (*)(const mc_norm_call)
{
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        if (c.bytes)
            return c.f.data ? norm_rows<T, CHUNKS, MC_PLAIN, RMS, true>
                            : norm_rows<T, CHUNKS, MC_ALONE, RMS, true>;
    return !c.f.data          ? norm_rows<T, CHUNKS, MC_ALONE, RMS>
           : c.mask.keep == 0 ? norm_rows<T, CHUNKS, MC_PLAIN, RMS>
                              : norm_rows<T, CHUNKS, MC_DROPPED, RMS>;
}

template <class T, bool RMS> static void launch_norm(mc_device *d, const mc_norm_call &c)
{
    cudaStream_t stream = mc_cuda_of(d)->stream;
    row_shape shape = row_shape_of(c.columns);
    if (c.rows <= FEW && c.columns <= 8 * ROW_THREADS) { /* only latency matters */
        constexpr int CHUNKS = 8 / mc_width<T>;
        unsigned threads = (unsigned)mc_ceil_div(c.columns, 256) * 32;
        auto kernel = kernel_for<T, CHUNKS, RMS>(c);
        MC_LAUNCH_EARLY(d, kernel, (unsigned)c.rows, threads, 0, c);
        return;
    }
    if (shape.eights == 0) {
        norm_long_rows<T, RMS><<<(unsigned)c.rows, ROW_THREADS, 0, stream>>>(c);
        return;
    }
    dim3 block(shape.threads, shape.threads == 32 ? ROWS : 1);
    unsigned grid = (unsigned)mc_ceil_div(c.rows, block.y);
    MC_WITH_CHUNKS(shape.eights, {
        auto kernel = kernel_for<T, CHUNKS, RMS>(c);
        kernel<<<grid, block, 0, stream>>>(c);
    });
}

/* y in 8 bits by a kernel of its own. */
static mc_status cast_result(mc_device *d, const mc_residual_norm_call *call)
{
    mc_fp8_cast_call c = {};
    c.rows = call->rows;
    c.columns = call->columns;
    c.x = call->y;
    c.format = MC_FP8_E4M3;
    c.scale = call->scale;
    c.data = call->bytes;
    return mc_cuda_fp8_cast(d, &c);
}

extern "C" mc_status mc_cuda_residual_norm(mc_device *d, const mc_residual_norm_call *call)
{
    const int64_t rows = call->rows, columns = call->columns;
    const mc_matrix x = call->x, f = call->f, y = call->y;
    mc_matrix s = call->s, weight = call->weight, bias = call->bias;
    bool cast = call->bytes;
    if (rows == 0 || columns == 0) return MC_OK;
    if (!f.data && s.data == x.data) s.data = NULL;
    weight.stride = bias.stride = 0;
    MC_WITH_TYPE(mc_whole_dtype(columns, x, f, weight, bias, s, y), {
        const int width = mc_width<T>;
        mc_norm_call c = {};
        c.rows = rows;
        c.columns = columns;
        c.x = mc_view_of(x, rows, width);
        c.f = mc_view_of(f, rows, width);
        c.s = mc_view_of(s, rows, width);
        c.y = mc_view_of(y, rows, width);
        c.weight = mc_view_of(weight, 1, width);
        c.bias = mc_view_of(bias, 1, width);
        c.mask = mc_dropping_of(call->dropout);
        c.eps = call->eps;
        c.mean_out = call->mean;
        c.rstd_out = call->rstd;
        if (!s.data) c.s.dtype = c.x.dtype; /* the norm's argument is rounded all the same */
        c.round = f.data;
        c.rms = !bias.data;
        if (call->bytes && writes_bytes<T>(c, call->bytes)) {
            c.bytes = call->bytes;
            c.scale = call->scale;
            cast = false;
        }
        c.rms ? launch_norm<T, true>(d, c) : launch_norm<T, false>(d, c);
    });
    mc_status status = mc_cuda_launched(d, "residual_norm");
    return status || !cast ? status : cast_result(d, call);
}

/* ---- the sum alone --------------------------------------------------------------------------- */

struct sum_call {
    mc_norm_call c;

    template <class T> __device__ __forceinline__ void run(int64_t row, int64_t column, int n) const
    {
        mc_bits xs = mc_load_bits<T, mc_whole<T>>(c.x, row * c.x.stride + column, n);
        mc_bits fs = mc_load_bits<T, mc_whole<T>>(c.f, row * c.f.stride + column, c.f.data ? n : 0);
        float v[mc_width<T>];
        mc_unpack<T>(c.x, xs, v);
        if (c.f.data) add_branch<T, MC_DROPPED>(c, row, column, fs, v);
        mc_store<T, mc_whole<T>>(c.s, row * c.s.stride + column, n, v);
    }
};

extern "C" mc_status mc_cuda_residual_sum(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                          mc_matrix f, mc_dropout_mask dropout, mc_matrix s)
{
    if (rows == 0 || columns == 0 || !s.data || (!f.data && s.data == x.data)) return MC_OK;
    mc_flatten(&rows, &columns, x, f, s);
    MC_WITH_TYPE(mc_whole_dtype(columns, x, f, s), {
        const int width = mc_width<T>;
        sum_call call = {};
        call.c.columns = columns;
        call.c.x = mc_view_of(x, rows, width);
        call.c.f = mc_view_of(f, rows, width);
        call.c.s = mc_view_of(s, rows, width);
        call.c.mask = mc_dropping_of(dropout);
        mc_launch_chunks<T>(d, rows, columns, call);
    });
    return mc_cuda_launched(d, "residual_sum");
}

/* ---- backward -------------------------------------------------------------------------------- */

/* mc_warp_sum for both. */
__device__ __forceinline__ mc_norm_sums __shfl_xor_sync(unsigned mask, mc_norm_sums x, int lane)
{
    return {__shfl_xor_sync(mask, x.gradient, lane), __shfl_xor_sync(mask, x.product, lane)};
}

template <int width>
__device__ __forceinline__ void multiply(const float (&w)[width], float (&g)[width])
{
#pragma unroll
    for (int i = 0; i < width; i++) g[i] *= w[i];
}

/* s: normalised. RMSNorm subtracts no mean, and no mean gradient. */
template <bool RMS, int width>
__device__ __forceinline__ void add_means(mc_row_facts *r, const float (&s)[width],
                                          const float (&g)[width])
{
#pragma unroll
    for (int i = 0; i < width; i++) {
        if (!RMS) r->means.gradient += g[i];
        r->means.product = __fmaf_rn(g[i], s[i], r->means.product);
    }
}

/* Stores ds and, with DF, df of one chunk; `old`: what ds is added to, or zeros. With STORED v
 * becomes the values of the last one as stored. */
template <class T, bool DF, bool STORED, int width>
__device__ __forceinline__ void store_gradients(const mc_norm_call &c, int64_t row, int64_t column,
                                                int n, mc_bits old, float (&v)[width])
{
    if (c.ds.data) {
        float there[width];
        mc_unpack<T>(c.ds, old, there);
#pragma unroll
        for (int i = 0; i < width; i++) v[i] += there[i];
        mc_bits stored = mc_pack<T>(c.ds, v);
        mc_store_bits<T, mc_whole<T>>(c.ds, row * c.ds.stride + column, n, stored);
        if (DF || STORED) mc_unpack<T>(c.ds, stored, v);
    }
    if (!DF) return;
    float factor[width];
    int64_t first = row * c.columns + column;
    if (STORED && mc_whole<T>) first &= ~(int64_t)3; /* a hint for the compiler: a multiple of 4 */
    mc_drop_factors(c.mask, first, factor);
#pragma unroll
    for (int i = 0; i < width; i++) v[i] *= factor[i];
    mc_bits stored = mc_pack<T>(c.df, v);
    mc_store_bits<T, mc_whole<T>>(c.df, row * c.df.stride + column, n, stored);
    if (STORED) mc_unpack<T>(c.df, stored, v);
}

/* A thread's SUMS sums, in shared memory, 4 columns of a chunk at a time: in registers they would
 * leave too few warps. */
template <class T, int CHUNKS, int SUMS> struct column_totals {
    enum { FOURS = mc_width<T> / 4, ALL = CHUNKS * FOURS };
    enum { PITCH = SUMS * ALL | 1 }; /* odd, so that threads use different banks */
    float4 *sum;                     /* (threads of the block, PITCH) */

    __device__ __forceinline__ float4 *of(int row) const
    {
        return sum + (int)(row * blockDim.x + threadIdx.x) * PITCH;
    }

    __device__ __forceinline__ void clear() const
    {
#pragma unroll
        for (int i = 0; i < SUMS * ALL; i++) of(threadIdx.y)[i] = make_float4(0, 0, 0, 0);
    }

    /* dweight += g n, dbias += g; RMSNorm has no bias: there it stays 0. */
    template <bool RMS, int width>
    __device__ __forceinline__ void add(int chunk, const float (&g)[width],
                                        const float (&n)[width]) const
    {
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            float4 *to = of(threadIdx.y) + chunk * FOURS + i, w = to[0];
            const float *gs = g + 4 * i, *ns = n + 4 * i;
            to[0] = make_float4(__fmaf_rn(gs[0], ns[0], w.x), __fmaf_rn(gs[1], ns[1], w.y),
                                __fmaf_rn(gs[2], ns[2], w.z), __fmaf_rn(gs[3], ns[3], w.w));
            if (RMS) continue;
            float4 b = to[ALL];
            to[ALL] = make_float4(b.x + gs[0], b.y + gs[1], b.z + gs[2], b.w + gs[3]);
        }
    }

    /* dbranch += v. */
    template <int width>
    __device__ __forceinline__ void add_branch(int chunk, const float (&v)[width]) const
    {
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            float4 *to = of(threadIdx.y) + 2 * ALL + chunk * FOURS + i, b = *to;
            *to = make_float4(b.x + v[4 * i], b.y + v[4 * i + 1], b.z + v[4 * i + 2],
                              b.w + v[4 * i + 3]);
        }
    }

    /* Adds the sums of the block's rows, in order, into partial[block] (SUMS, columns). */
    __device__ void store(int64_t columns, float *partial) const
    {
        __syncthreads();
        if (threadIdx.y != 0) return;
        partial += (int64_t)blockIdx.x * SUMS * columns;
        for (int i = 0; i < SUMS * ALL; i++) {
            int four = i % ALL, chunk = four / FOURS;
            float total[4] = {};
            for (unsigned row = 0; row < blockDim.y; row++) {
                float4 v = of(row)[i];
                total[0] += v.x, total[1] += v.y, total[2] += v.z, total[3] += v.w;
            }
            int64_t column =
                ((int64_t)chunk * blockDim.x + threadIdx.x) * mc_width<T> + four % FOURS * 4;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (column + j < columns) partial[i / ALL * columns + column + j] = total[j];
        }
    }
};

/* A thread's chunks of a row of m; zeros if not `wanted`. */
template <class T, int CHUNKS>
__device__ __forceinline__ void load_row(const mc_norm_call &c, mc_view m, int64_t row,
                                         mc_bits (&bits)[CHUNKS], bool wanted = true)
{
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        int64_t column = (int64_t)(k * blockDim.x + threadIdx.x) * mc_width<T>;
        int n = wanted ? within<T>(c.columns, column) : 0;
        bits[k] = mc_load_bits<T, mc_whole<T>>(m, row * m.stride + column, n);
    }
}

/* A thread's loads of a row. */
template <class T, int CHUNKS, bool RMS> struct row_bits {
    mc_bits s[CHUNKS], dy[CHUNKS];
    float mean, rstd;

    __device__ __forceinline__ void load(const mc_norm_call &c, int64_t row)
    {
        load_row<T>(c, c.s, row, s);
        load_row<T>(c, c.dy, row, dy);
        mean = RMS ? 0.0f : c.mean[row];
        rstd = c.rstd ? c.rstd[row] : 0.0f;
    }
};

/* Whether a thread's part of a row is so small that registers suffice for the next row too. */
template <class T, int CHUNKS> constexpr bool has_few = CHUNKS == 1 && mc_width<T> == 8;

/* Blocks as in norm_rows, but only as many as run at once; each takes every gridDim.x-th set of
 * rows. With enough registers, ds is read EARLY and the next row AHEAD. partial: (gridDim.x, SUMS,
 * columns); NULL, only for SUMS = 2: not required. */
template <class T, int CHUNKS, bool DF, int SUMS, bool RMS>
static __global__ void __launch_bounds__(ROW_THREADS, has_few<T, CHUNKS> ? 2 : 1)
    norm_rows_backward(const __grid_constant__ mc_norm_call c, float *partial)
{
    constexpr int width = mc_width<T>;
    constexpr bool AHEAD = !DF && has_few<T, CHUNKS>, EARLY = !DF && CHUNKS <= 3;
    __shared__ mc_norm_sums shared[2][ROW_THREADS / 32];
    extern __shared__ float4 dynamic[];
    constexpr bool BRANCH = SUMS == MC_WEIGHTS_AND_BRANCH;
    const column_totals<T, CHUNKS, SUMS> sums = {dynamic};
    if (BRANCH || partial) sums.clear();
    mc_bits weight[CHUNKS];
    if (c.weight.data) load_row<T>(c, c.weight, 0, weight);
    const float share = 1.0f / (float)c.columns;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    row_bits<T, CHUNKS, RMS> bits, next;
    if (AHEAD && row < c.rows) next.load(c, row);
#pragma unroll 1
    for (int parity = 0; row < c.rows; row += step, parity ^= 1) {
        mc_bits old[CHUNKS];
        if (EARLY) load_row<T>(c, c.ds, row, old, c.accumulate);
        if (AHEAD) {
            bits = next;
            if (row + step < c.rows) next.load(c, row + step);
        } else {
            bits.load(c, row);
        }
        mc_row_facts r = {bits.rstd, {0, 0}};
        float s[CHUNKS][width], g[CHUNKS][width], w[width], v[width];
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            mc_unpack<T>(c.s, bits.s[k], s[k]);
            mc_unpack<T>(c.dy, bits.dy[k], g[k]);
            mc_normalise(bits.mean, bits.rstd, s[k]);
            if (BRANCH || partial) sums.template add<RMS>(k, g[k], s[k]);
            if (c.weight.data) {
                mc_unpack<T>(c.weight, weight[k], w);
                multiply(w, g[k]);
            }
            add_means<RMS>(&r, s[k], g[k]);
        }
        if (!BRANCH && !c.ds.data && !DF) continue;
        r.means = row_sum(r.means, shared[parity]);
        r.means.gradient *= share;
        r.means.product *= share;
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            int64_t column = (int64_t)(k * blockDim.x + threadIdx.x) * width;
            int n = within<T>(c.columns, column);
            mc_norm_gradient(r, s[k], g[k], v);
            if (n <= 0) continue;
            if (!EARLY)
                old[k] = mc_load_bits<T, mc_whole<T>>(c.ds, row * c.ds.stride + column,
                                                      c.accumulate ? n : 0);
            store_gradients<T, DF, BRANCH>(c, row, column, n, old[k], v);
            if (BRANCH) sums.add_branch(k, v);
        }
    }
    if (BRANCH || partial) sums.store(c.columns, partial);
}

/* s normalised, and g = dy * weight, of one chunk. */
template <class T, bool RMS, int width>
__device__ __forceinline__ void load_gradients(const mc_norm_call &c, int64_t row, int64_t column,
                                               int n, float (&s)[width], float (&g)[width])
{
    float w[width];
    mc_load<T, mc_whole<T>>(c.s, row * c.s.stride + column, n, s);
    mc_load<T, mc_whole<T>>(c.dy, row * c.dy.stride + column, n, g);
    load_weight<T>(c.weight, column, n, 1.0f, w);
    mc_normalise(RMS ? 0.0f : c.mean[row], c.rstd[row], s);
    multiply(w, g);
}

template <class T, bool DF, bool RMS>
static __global__ void __launch_bounds__(ROW_THREADS)
    norm_long_rows_backward(const __grid_constant__ mc_norm_call c)
{
    constexpr int width = mc_width<T>;
    __shared__ mc_norm_sums shared[ROW_THREADS / 32];
    const int64_t row = blockIdx.x, first = threadIdx.x * width, step = ROW_THREADS * width;
    mc_row_facts r = {c.rstd[row], {0, 0}};
    float s[width], g[width], v[width];
    for (int64_t column = first; column < c.columns; column += step) {
        load_gradients<T, RMS>(c, row, column, within<T>(c.columns, column), s, g);
        add_means<RMS>(&r, s, g);
    }
    r.means = mc_block_sum(r.means, shared);
    r.means.gradient /= (float)c.columns;
    r.means.product /= (float)c.columns;
    for (int64_t column = first; column < c.columns; column += step) {
        int n = within<T>(c.columns, column);
        mc_bits old =
            mc_load_bits<T, mc_whole<T>>(c.ds, row * c.ds.stride + column, c.accumulate ? n : 0);
        load_gradients<T, RMS>(c, row, column, n, s, g);
        mc_norm_gradient(r, s, g, v);
        store_gradients<T, DF, false>(c, row, column, n, old, v);
    }
}

/* partial (gridDim.y, SUMS, columns): one thread per column. ds and df are complete already. */
template <int SUMS>
static __global__ void __launch_bounds__(ROW_THREADS)
    norm_long_partials(const __grid_constant__ mc_norm_call c, float *partial)
{
    int64_t column = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (column >= c.columns) return;
    int64_t share = (c.rows + gridDim.y - 1) / gridDim.y, first = share * blockIdx.y;
    int64_t last = first + share < c.rows ? first + share : c.rows;
    const mc_view branch = c.df.data ? c.df : c.ds;
    float dw = 0, db = 0, df = 0;
    for (int64_t row = first; row < last; row++) {
        float g = mc_load_one(c.dy, row * c.dy.stride + column);
        float mean = c.mean ? c.mean[row] : 0.0f, rstd = c.rstd ? c.rstd[row] : 0.0f;
        dw += g * ((mc_load_one(c.s, row * c.s.stride + column) - mean) * rstd);
        db += g;
        if (SUMS == MC_WEIGHTS_AND_BRANCH) df += mc_load_one(branch, row * branch.stride + column);
    }
    partial += (int64_t)blockIdx.y * SUMS * c.columns + column;
    partial[0] = dw;
    partial[c.columns] = db;
    if (SUMS == MC_WEIGHTS_AND_BRANCH) partial[2 * c.columns] = df;
}

template <class T, bool RMS>
static mc_status launch_long_backward(mc_device *d, const mc_norm_call &c, mc_norm_partials *p)
{
    cudaStream_t stream = mc_cuda_of(d)->stream;
    auto kernel =
        c.df.data ? norm_long_rows_backward<T, true, RMS> : norm_long_rows_backward<T, false, RMS>;
    if (c.ds.data || c.df.data) kernel<<<(unsigned)c.rows, ROW_THREADS, 0, stream>>>(c);
    if (!p->sums) return MC_OK;
    int64_t slabs = mc_ceil_div(c.columns, ROW_THREADS);
    int64_t wanted = mc_ceil_div((int64_t)mc_cuda_of(d)->multiprocessors * 8, slabs);
    int64_t parts = mc_most(mc_least(wanted, c.rows / 8), 1);
    if (mc_norm_partials_new(d, parts, c.columns, p) != MC_OK) return MC_ERR_NOMEM;
    auto add_up = p->sums == MC_WEIGHTS ? norm_long_partials<MC_WEIGHTS>
                                        : norm_long_partials<MC_WEIGHTS_AND_BRANCH>;
    add_up<<<dim3((unsigned)slabs, (unsigned)parts), ROW_THREADS, 0, stream>>>(c, p->data);
    return MC_OK;
}

template <class T, int CHUNKS, int SUMS, bool RMS>
static mc_status launch_rows_backward(mc_device *d, const mc_norm_call &c, dim3 block,
                                      mc_norm_partials *p)
{
    auto kernel = c.df.data ? norm_rows_backward<T, CHUNKS, true, SUMS, RMS>
                            : norm_rows_backward<T, CHUNKS, false, SUMS, RMS>;
    int threads = (int)(block.x * block.y);
    size_t shared = (size_t)threads * column_totals<T, CHUNKS, SUMS>::PITCH * sizeof(float4);
    if (!p->sums) shared = 0;
    /* consumer GPUs have too little shared memory for rows of some thousands of elements */
    if ((int64_t)shared > mc_shared_limit(d)) return launch_long_backward<T, RMS>(d, c, p);
    mc_allow_shared(kernel, shared);
    int64_t most = mc_resident_blocks(d, kernel, threads, shared);
    int64_t grid = mc_least(most, mc_ceil_div(c.rows, block.y));
    if (p->sums && mc_norm_partials_new(d, grid, c.columns, p) != MC_OK) return MC_ERR_NOMEM;
    kernel<<<(unsigned)grid, block, shared, mc_cuda_of(d)->stream>>>(c, p->data);
    return MC_OK;
}

template <class T, bool RMS>
static mc_status launch_backward(mc_device *d, const mc_norm_call &c, mc_norm_partials *p)
{
    row_shape shape = row_shape_of(c.columns);
    if (shape.eights == 0) return launch_long_backward<T, RMS>(d, c, p);
    dim3 block(shape.threads, shape.threads == 32 ? ROWS : 1);
    mc_status status = MC_OK;
    MC_WITH_CHUNKS(shape.eights, {
        status = p->sums == MC_WEIGHTS_AND_BRANCH
                     ? launch_rows_backward<T, CHUNKS, MC_WEIGHTS_AND_BRANCH, RMS>(d, c, block, p)
                     : launch_rows_backward<T, CHUNKS, MC_WEIGHTS, RMS>(d, c, block, p);
    });
    return status;
}

extern "C" mc_status mc_cuda_residual_norm_backward(mc_device *d,
                                                    const mc_residual_norm_backward_call *call)
{
    const int64_t rows = call->rows, columns = call->columns;
    const mc_matrix s = call->s, dy = call->dy, ds = call->ds, df = call->df;
    mc_matrix weight = call->weight;
    float *dbranch = ds.data || df.data ? call->dbranch : NULL;
    mc_norm_partials p = {NULL, 0,
                          dbranch                        ? MC_WEIGHTS_AND_BRANCH
                          : call->dweight || call->dbias ? MC_WEIGHTS
                                                         : 0};
    if (rows == 0 || columns == 0 || (!p.sums && !ds.data && !df.data)) return MC_OK;
    mc_status status = MC_OK;
    weight.stride = 0;
    MC_WITH_TYPE(mc_whole_dtype(columns, s, weight, dy, ds, df), {
        const int width = mc_width<T>;
        mc_norm_call c = {};
        c.rows = rows;
        c.columns = columns;
        c.s = mc_view_of(s, rows, width);
        c.dy = mc_view_of(dy, rows, width);
        c.ds = mc_view_of(ds, rows, width);
        c.df = mc_view_of(df, rows, width);
        c.weight = mc_view_of(weight, 1, width);
        c.mask = mc_dropping_of(call->dropout);
        c.mean = call->mean;
        c.rstd = call->rstd;
        c.accumulate = ds.data && call->accumulate;
        c.rms = !call->mean;
        status = c.rms ? launch_backward<T, true>(d, c, &p) : launch_backward<T, false>(d, c, &p);
    });
    if (status != MC_OK) return status;
    if (p.sums)
        mc_add_partials(d, p.data, p.parts, columns,
                        {(int)p.sums, {call->dweight, call->dbias, dbranch}});
    d->free(d, p.data, mc_norm_partials_bytes(&p, columns));
    return mc_cuda_launched(d, "residual_norm_backward");
}
