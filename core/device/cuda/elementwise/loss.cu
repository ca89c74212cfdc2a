/* Cross-entropy over classes, and argmax.
 *
 * cross_entropy reads each logit once. A block keeps its row in shared memory; every thread uses
 * only its own chunks, so they need no barrier. As soon as a thread has written the gradient of a
 * chunk, it starts the copy of the same chunk of the block's next row. Bytes per element, for
 * 16-bit types: 4 (2 without the gradient); one more read if a row does not fit. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/runtime/kernels.cuh"

enum { MOST_THREADS = 1024 };

struct loss_call {
    int64_t rows, classes;
    int full, left, last; /* chunks of a row, elements after them, the thread for these */
    mc_view x, dx;
    const int32_t *labels;
    int32_t ignore_index;
    float smoothing;
    const float *seed;
    double *row_loss; /* (rows) */
};

/* ---- a row ----------------------------------------------------------------------------------- */

template <class T> __device__ __forceinline__ mc_view row_of(mc_view m, int64_t row)
{
    m.data += row * m.stride * (mc_is_f32<T>(m) ? 4 : 2);
    return m;
}

/* Calls f(full, i, n) for the thread's chunks of a row: n elements in chunk i; `full`: a whole
 * chunk. A chunk belongs to the same thread in every row. */
template <class T, class F>
__device__ __forceinline__ void each_chunk(const loss_call &c, const F &f)
{
    for (int i = threadIdx.x; i < c.full; i += blockDim.x) f(std::true_type(), i, mc_width<T>);
    if (c.left && (int)threadIdx.x == c.last) f(std::false_type(), c.full, c.left);
}

/* Starts the copy of a chunk to the thread's place in shared memory. */
template <class T, bool FULL>
__device__ __forceinline__ void start_chunk(mc_view row, uint4 *kept, int i, int n)
{
    int64_t at = (int64_t)i * mc_width<T>;
    if (FULL && (mc_whole<T> || row.whole)) {
        constexpr int bytes = std::is_same_v<T, float> ? 16 : 2 * mc_width<T>;
        if (mc_is_f32<T>(row))
            __pipeline_memcpy_async(kept + i, (const float *)row.data + at, 16);
        else
            __pipeline_memcpy_async(kept + i, (const uint16_t *)row.data + at, bytes);
        return;
    }
    mc_bits b = mc_load_bits<T>(row, at, n);
    kept[i] = make_uint4(b.word[0], b.word[1], b.word[2], b.word[3]);
}

template <class T>
__device__ __forceinline__ void start_row(const loss_call &c, mc_view row, uint4 *kept)
{
    each_chunk<T>(c, [&](auto full, int i, int n) { start_chunk<T, full>(row, kept, i, n); });
    __pipeline_commit();
}

/* A chunk whose copy is done (KEPT), or from global memory; -inf after the end of the row. */
template <class T, bool KEPT, bool FULL>
__device__ __forceinline__ void read_chunk(mc_view row, const uint4 *kept, int i, int n,
                                           float (&v)[mc_width<T>])
{
    if (KEPT)
        mc_unpack<T>(row, mc_bits_of(kept[i]), v);
    else
        mc_load<T, FULL && mc_whole<T>>(row, (int64_t)i * mc_width<T>, n, v);
#pragma unroll
    for (int j = 0; j < mc_width<T>; j++)
        if (!FULL && j >= n) v[j] = -INFINITY;
}

/* The largest value so far, the sum of e^(x - largest), and if required the sum of x. Starts with
 * the least finite number instead of -inf, because -inf - -inf would be NaN. */
struct exp_sum {
    float largest, sum;
    double values;
};

constexpr float LEAST = -3.402823466e38f;

template <int width> __device__ __forceinline__ void add_chunk(exp_sum *s, const float (&v)[width])
{
    float top = v[0], e[width];
#pragma unroll
    for (int j = 1; j < width; j++) top = fmaxf(top, v[j]);
    if (top > s->largest) {
        s->sum *= mc_exp(s->largest - top);
        s->largest = top;
    }
#pragma unroll
    for (int j = 0; j < width; j++) e[j] = mc_exp(v[j] - s->largest);
#pragma unroll
    for (int step = 1; step < width; step *= 2)
#pragma unroll
        for (int j = 0; j < width; j += 2 * step) e[j] += e[j + step];
    s->sum += e[0];
}

/* `ahead`: the row whose chunks are copied when those of this row have been used; no data: none. */
template <class T, bool KEPT>
__device__ __forceinline__ exp_sum sum_row(const loss_call &c, mc_view row, mc_view ahead,
                                           uint4 *kept)
{
    exp_sum s = {LEAST, 0.0f, 0.0};
    each_chunk<T>(c, [&](auto full, int i, int n) {
        float v[mc_width<T>];
        read_chunk<T, KEPT, full>(row, kept, i, n, v);
        add_chunk(&s, v);
        if (c.smoothing != 0.0f) {
#pragma unroll
            for (int j = 0; j < mc_width<T>; j++)
                if (full || j < n) s.values += v[j];
        }
        if (!KEPT || !ahead.data) return;
        asm volatile("" : : "f"(s.sum) : "memory"); /* the kept chunk has been used */
        start_chunk<T, full>(ahead, kept, i, n);
    });
    if (KEPT && ahead.data) __pipeline_commit();
    return s;
}

__device__ __forceinline__ exp_sum merge_warp(exp_sum s, bool values)
{
    float top = mc_warp_largest(s.largest);
    s.sum = mc_warp_sum(s.sum * mc_exp(s.largest - top));
    s.largest = top;
    if (values) s.values = mc_warp_sum(s.values);
    return s;
}

/* The block's sum, returned to all threads. `shared` may be reused after the next barrier. */
__device__ __forceinline__ exp_sum merge_block(exp_sum s, bool values, exp_sum *shared)
{
    s = merge_warp(s, values);
    int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    return merge_warp(lane < warps ? shared[lane] : exp_sum{LEAST, 0.0f, 0.0}, values);
}

/* dx = seed * (softmax - (1 - e) [label] - e / classes). */
template <class T, bool KEPT>
__device__ __forceinline__ void write_gradient(const loss_call &c, mc_view row, mc_view dx,
                                               mc_view ahead, uint4 *kept, int32_t label,
                                               const exp_sum &s)
{
    const float seed = *c.seed, factor = seed / s.sum;
    const float each = seed * c.smoothing / (float)c.classes, own = seed * (1.0f - c.smoothing);
    const int label_chunk = label / mc_width<T>, label_at = label % mc_width<T>;
    each_chunk<T>(c, [&](auto full, int i, int n) {
        float v[mc_width<T>];
        read_chunk<T, KEPT, full>(row, kept, i, n, v);
#pragma unroll
        for (int j = 0; j < mc_width<T>; j++)
            v[j] = __fmaf_rn(mc_exp(v[j] - s.largest), factor, -each);
        if (i == label_chunk) {
#pragma unroll
            for (int j = 0; j < mc_width<T>; j++)
                if (j == label_at) v[j] -= own;
        }
        mc_store<T, full && mc_whole<T>>(dx, (int64_t)i * mc_width<T>, n, v);
        if (KEPT && ahead.data) start_chunk<T, full>(ahead, kept, i, n);
    });
    if (KEPT && ahead.data) __pipeline_commit();
}

template <class T> __device__ __forceinline__ void zero_row(const loss_call &c, mc_view dx)
{
    const mc_bits zero = {{0, 0, 0, 0}};
    each_chunk<T>(c, [&](auto full, int i, int n) {
        mc_store_bits<T, full && mc_whole<T>>(dx, (int64_t)i * mc_width<T>, n, zero);
    });
}

__device__ static double row_loss(const loss_call &c, const exp_sum &s, float x_label)
{
    double log_sum = log((double)s.sum), e = c.smoothing;
    double loss = log_sum + ((double)s.largest - (double)x_label);
    if (e == 0.0) return loss;
    double mean_below = (double)s.largest - s.values / (double)c.classes;
    return (1.0 - e) * loss + e * (log_sum + mean_below);
}

/* The label's logit, in the thread that has its chunk. */
template <class T, bool KEPT>
__device__ __forceinline__ float read_label(mc_view row, uint4 *kept, int32_t label)
{
    if (!KEPT) return mc_load_one(row, label);
    row.data = (char *)(kept + label / mc_width<T>);
    return mc_load_one(row, label % mc_width<T>);
}

__device__ __forceinline__ int32_t label_of(const loss_call &c, int64_t row)
{
    return row < c.rows ? c.labels[row] : c.ignore_index;
}

/* Each block takes every gridDim.x-th row. Shared memory: a row in chunks of 16 bytes, if KEPT. */
template <class T, bool KEPT>
static __global__ void __launch_bounds__(MOST_THREADS, 1)
    cross_entropy_rows(const __grid_constant__ loss_call c)
{
    extern __shared__ uint4 kept[];
    __shared__ exp_sum shared[2][MOST_THREADS / 32];
    const mc_view none = {};
    int64_t row = blockIdx.x;
    int32_t label = label_of(c, row), next_label = label_of(c, row + gridDim.x);
    if (KEPT && label != c.ignore_index) start_row<T>(c, row_of<T>(c.x, row), kept);
    for (int parity = 0; row < c.rows; row += gridDim.x) {
        const int32_t after = label_of(c, row + 2 * (int64_t)gridDim.x);
        const mc_view x = row_of<T>(c.x, row), dx = row_of<T>(c.dx, row);
        const mc_view ahead = /* an ignored row is not read */
            next_label == c.ignore_index ? none : row_of<T>(c.x, row + gridDim.x);
        if (label == c.ignore_index) {
            if (KEPT && ahead.data) start_row<T>(c, ahead, kept);
            if (c.dx.data) zero_row<T>(c, dx);
            if (threadIdx.x == 0) c.row_loss[row] = 0.0;
        } else {
            if (KEPT) __pipeline_wait_prior(0);
            /* Read before the barrier: dx may be x. */
            bool own = label / mc_width<T> % blockDim.x == threadIdx.x;
            float x_label = own ? read_label<T, KEPT>(x, kept, label) : 0.0f;
            exp_sum s = sum_row<T, KEPT>(c, x, c.dx.data ? none : ahead, kept);
            s = merge_block(s, c.smoothing != 0.0f, shared[parity]);
            parity ^= 1;
            if (c.dx.data) write_gradient<T, KEPT>(c, x, dx, ahead, kept, label, s);
            if (own) c.row_loss[row] = row_loss(c, s, x_label);
        }
        label = next_label;
        next_label = after;
    }
}

/* loss[0] += the sum of the rows' losses, loss[1] += the number that count. One block. */
static __global__ void __launch_bounds__(MOST_THREADS, 1)
    add_losses(const double *row_loss, const int32_t *labels, int64_t rows, int32_t ignore_index,
               float *loss)
{
    __shared__ double sums[MOST_THREADS / 32];
    __shared__ unsigned long long counts[MOST_THREADS / 32];
    double sum = 0;
    unsigned long long count = 0;
    for (int64_t row = threadIdx.x; row < rows; row += MOST_THREADS) {
        sum += row_loss[row];
        count += labels[row] != ignore_index;
    }
    sum = mc_block_sum(sum, sums);
    count = mc_block_sum(count, counts);
    if (threadIdx.x != 0) return;
    loss[0] = (float)(loss[0] + sum);
    loss[1] += (float)count;
}

/* ---- launching ------------------------------------------------------------------------------- */

template <class T, bool KEPT>
static void launch_rows(mc_device *d, loss_call c, int threads, size_t shared)
{
    auto kernel = cross_entropy_rows<T, KEPT>;
    mc_allow_shared(kernel, shared);
    int64_t grid = mc_least(c.rows, mc_resident_blocks(d, kernel, threads, shared));
    c.last = c.full % threads;
    kernel<<<(unsigned)grid, threads, shared, mc_cuda_of(d)->stream>>>(c);
}

template <class T> static void launch_loss(mc_device *d, loss_call c)
{
    int64_t chunks = mc_ceil_div(c.classes, mc_width<T>), bytes = chunks * 16;
    int64_t limit = mc_shared_limit(d), most = 2 * bytes + 2048 <= limit ? 512 : MOST_THREADS;
    int threads = (int)mc_least(mc_ceil_div(chunks, 32) * 32, most);
    c.full = (int)(c.classes / mc_width<T>);
    c.left = (int)(c.classes % mc_width<T>);
    if (bytes <= limit)
        launch_rows<T, true>(d, c, threads, (size_t)bytes);
    else
        launch_rows<T, false>(d, c, threads, 0);
}

extern "C" mc_status mc_cuda_cross_entropy(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                                           const int32_t *labels, int32_t ignore_index,
                                           float smoothing, const float *seed, float *loss,
                                           mc_matrix dx)
{
    if (rows == 0 || classes == 0) return MC_OK;
    size_t bytes = (size_t)rows * sizeof(double);
    double *row_loss = (double *)d->alloc(d, bytes);
    if (!row_loss) return MC_ERR_NOMEM;
    if (rows == 1) x.stride = dx.stride = 0;
    MC_WITH_TYPE(mc_whole_dtype(0, x, dx), {
        const int width = mc_width<T>;
        loss_call c = {};
        c.rows = rows;
        c.x = mc_view_of(x, rows, width);
        c.dx = mc_view_of(dx, rows, width);
        c.labels = labels;
        c.ignore_index = ignore_index;
        c.smoothing = smoothing;
        c.classes = classes;
        c.seed = seed;
        c.row_loss = row_loss;
        launch_loss<T>(d, c);
    });
    add_losses<<<1, MOST_THREADS, 0, mc_cuda_of(d)->stream>>>(row_loss, labels, rows, ignore_index,
                                                              loss);
    d->free(d, row_loss, bytes);
    return mc_cuda_launched(d, "cross_entropy");
}

/* ---- sums of losses -------------------------------------------------------------------------- */

static __global__ void add_two_losses(const float *a, const float *b, float factor, float *y,
                                      float *k_out)
{
    float count = a[1] > 0 || !(b[1] > 0) ? a[1] : 1; /* if nothing counts there is no row */
    float k = b[1] > 0 ? factor * count / b[1] : 0;
    y[0] = a[0] + k * b[0];
    y[1] = count;
    k_out[0] = k;
    k_out[1] = 0;
}

extern "C" mc_status mc_cuda_loss_add(mc_device *d, const float *a, const float *b, float factor,
                                      float *y, float *k_out)
{
    add_two_losses<<<1, 1, 0, mc_cuda_of(d)->stream>>>(a, b, factor, y, k_out);
    return mc_cuda_launched(d, "loss_add");
}

/* ---- argmax ---------------------------------------------------------------------------------- */

/* The rank of a value and its column: argmax takes the largest. NaN is above all, -0 equals 0. */
__device__ __forceinline__ uint64_t rank_of(float x, int64_t column)
{
    uint32_t bits = __float_as_uint(x + 0.0f);
    uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;
    if (x != x) order = ~0u;
    return (uint64_t)order << 32 | (uint32_t) ~(uint32_t)column;
}

/* One block per row; bytes per element: its size. */
template <class T>
static __global__ void __launch_bounds__(256) argmax_rows(mc_view x, int64_t columns, int32_t *out)
{
    __shared__ uint64_t shared[256 / 32];
    const int64_t row = blockIdx.x;
    uint64_t best = (uint32_t)~0u; /* column 0, below all values */
    mc_each_chunk<T>(columns, [&](int64_t column, int n) {
        float v[mc_width<T>];
        mc_load<T>(x, row * x.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i < n) best = mc_larger(best, rank_of(v[i], column + i));
    });
    best = mc_block_largest(best, shared);
    if (threadIdx.x == 0) out[row] = (int32_t) ~(uint32_t)best;
}

extern "C" mc_status mc_cuda_argmax(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                    int32_t *out)
{
    if (rows == 0) return MC_OK;
    MC_WITH_TYPE(x.dtype, {
        argmax_rows<T><<<(unsigned)rows, 256, 0, mc_cuda_of(d)->stream>>>(
            mc_view_of(x, rows, mc_width<T>), columns, out);
    });
    return mc_cuda_launched(d, "argmax");
}
