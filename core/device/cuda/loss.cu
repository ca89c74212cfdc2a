/* Cross-entropy over classes, and argmax.
 *
 * cross_entropy reads each logit once: a block keeps its row in shared memory, every thread its own
 * chunks of it, so that no barrier is needed for them, and as soon as a thread has written the
 * gradient of a chunk it starts the copy of the same chunk of the block's next row. Bytes an
 * element, for 16-bit types: 4 (2 without the gradient); one more read where a row does not fit. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/kernels.cuh"

enum { MOST_THREADS = 1024 };

struct loss_call {
    int64_t rows, classes;
    mc_view x, dx;
    const int32_t *labels;
    int32_t ignore_index;
    float smoothing;
    const float *seed;
    double *row_loss; /* (rows) */
};

/* ---- a row ----------------------------------------------------------------------------------- */

/* Chunk i of a row: in the thread's place in shared memory (KEPT), or where it is. */
template <class T, bool KEPT> struct row_reader {
    const loss_call &c;
    uint4 *kept;

    __device__ __forceinline__ int within(int64_t chunk) const
    {
        int64_t left = c.classes - chunk * mc_width<T>;
        return left < mc_width<T> ? (int)left : mc_width<T>;
    }

    /* Starts the copy of a chunk to shared memory. */
    __device__ __forceinline__ void start(int64_t row, int64_t chunk) const
    {
        if (!KEPT) return;
        int n = within(chunk);
        int64_t at = row * c.x.stride + chunk * mc_width<T>;
        if (c.x.whole && n == mc_width<T>) {
            if (mc_is_f32<T>(c.x))
                __pipeline_memcpy_async(kept + chunk, (const float *)c.x.data + at, 16);
            else
                __pipeline_memcpy_async(kept + chunk, (const uint16_t *)c.x.data + at,
                                        2 * mc_width<T>);
            return;
        }
        mc_bits b = mc_load_bits<T>(c.x, at, n);
        kept[chunk] = make_uint4(b.word[0], b.word[1], b.word[2], b.word[3]);
    }

    __device__ __forceinline__ void start_all(int64_t row) const
    {
        if constexpr (KEPT) {
            for (int64_t i = threadIdx.x; i * mc_width<T> < c.classes; i += blockDim.x)
                start(row, i);
            __pipeline_commit();
        }
    }

    /* A chunk whose copy is done; -inf behind the end of the row. */
    __device__ __forceinline__ void read(int64_t row, int64_t chunk, int n,
                                         float (&v)[mc_width<T>]) const
    {
        if (KEPT)
            mc_unpack<T>(c.x, mc_bits_of(kept[chunk]), v);
        else
            mc_load<T>(c.x, row * c.x.stride + chunk * mc_width<T>, n, v);
        if (n == mc_width<T>) return;
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++)
            if (i >= n) v[i] = -INFINITY;
    }
};

/* The largest value so far, the sum of e^(x - largest), and where wanted the sum of x. Starts with
 * the least finite number rather than -inf, from which -inf can be subtracted. */
struct exp_sum {
    float largest, sum;
    double values;

    __device__ __forceinline__ void merge(float other_largest, float other_sum, double other_values)
    {
        float top = fmaxf(largest, other_largest);
        sum = sum * mc_exp(largest - top) + other_sum * mc_exp(other_largest - top);
        largest = top;
        values += other_values;
    }
};

constexpr float LEAST = -3.402823466e38f;

template <class T, bool KEPT>
__device__ __forceinline__ exp_sum sum_row(const row_reader<T, KEPT> &reader, int64_t row,
                                           int64_t next)
{
    const loss_call &c = reader.c;
    exp_sum s = {LEAST, 0.0f, 0.0};
    for (int64_t i = threadIdx.x; i * mc_width<T> < c.classes; i += blockDim.x) {
        int n = reader.within(i);
        float v[mc_width<T>];
        reader.read(row, i, n, v);
        float top = v[0];
#pragma unroll
        for (int j = 1; j < mc_width<T>; j++) top = fmaxf(top, v[j]);
        if (top > s.largest) {
            s.sum *= mc_exp(s.largest - top);
            s.largest = top;
        }
#pragma unroll
        for (int j = 0; j < mc_width<T>; j++) s.sum += mc_exp(v[j] - s.largest);
        if (c.smoothing != 0.0f) {
#pragma unroll
            for (int j = 0; j < mc_width<T>; j++)
                if (j < n) s.values += v[j];
        }
        asm volatile("" : : "f"(s.sum) : "memory"); /* what was kept has been used */
        if (next >= 0) reader.start(next, i);
    }
    if (next >= 0) __pipeline_commit();
    return s;
}

/* Of the block; all threads get it. `shared` may be used again after the next barrier. */
__device__ __forceinline__ exp_sum merge_block(exp_sum s, exp_sum *shared)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        s.merge(__shfl_xor_sync(0xffffffffu, s.largest, lane),
                __shfl_xor_sync(0xffffffffu, s.sum, lane),
                __shfl_xor_sync(0xffffffffu, s.values, lane));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    s = lane < warps ? shared[lane] : exp_sum{LEAST, 0.0f, 0.0};
#pragma unroll
    for (int other = 16; other > 0; other /= 2)
        s.merge(__shfl_xor_sync(0xffffffffu, s.largest, other),
                __shfl_xor_sync(0xffffffffu, s.sum, other),
                __shfl_xor_sync(0xffffffffu, s.values, other));
    return s;
}

/* dx = seed * (softmax - (1 - e) [label] - e / classes). */
template <class T, bool KEPT>
__device__ __forceinline__ void write_gradient(const row_reader<T, KEPT> &reader, int64_t row,
                                               int64_t next, int32_t label, const exp_sum &s)
{
    const loss_call &c = reader.c;
    const float seed = *c.seed, factor = seed / s.sum;
    const float each = seed * c.smoothing / (float)c.classes, own = seed * (1.0f - c.smoothing);
    for (int64_t i = threadIdx.x; i * mc_width<T> < c.classes; i += blockDim.x) {
        int n = reader.within(i);
        float v[mc_width<T>];
        reader.read(row, i, n, v);
        int64_t label_at = label - i * mc_width<T>;
#pragma unroll
        for (int j = 0; j < mc_width<T>; j++) v[j] = mc_exp(v[j] - s.largest) * factor - each;
        if (label_at >= 0 && label_at < mc_width<T>) {
#pragma unroll
            for (int j = 0; j < mc_width<T>; j++)
                if (j == label_at) v[j] -= own;
        }
        mc_store<T>(c.dx, row * c.dx.stride + i * mc_width<T>, n, v);
        if (next >= 0) reader.start(next, i);
    }
    if (next >= 0) __pipeline_commit();
}

template <class T> __device__ __forceinline__ void zero_row(const loss_call &c, int64_t row)
{
    const mc_bits zero = {{0, 0, 0, 0}};
    for (int64_t at = (int64_t)threadIdx.x * mc_width<T>; at < c.classes;
         at += (int64_t)blockDim.x * mc_width<T>) {
        int64_t left = c.classes - at;
        mc_store_bits<T>(c.dx, row * c.dx.stride + at, left < mc_width<T> ? (int)left : mc_width<T>,
                         zero);
    }
}

__device__ static double row_loss(const loss_call &c, const exp_sum &s, float x_label)
{
    double log_sum = log((double)s.sum), e = c.smoothing;
    double loss = log_sum + ((double)s.largest - (double)x_label);
    if (e == 0.0) return loss;
    double mean_below = (double)s.largest - s.values / (double)c.classes;
    return (1.0 - e) * loss + e * (log_sum + mean_below);
}

/* Each block takes every gridDim.x-th row. Shared memory: a row in chunks of 16 bytes, if KEPT. */
template <class T, bool KEPT>
static __global__ void __launch_bounds__(MOST_THREADS, 1)
    cross_entropy_rows(const __grid_constant__ loss_call c)
{
    extern __shared__ uint4 kept[];
    __shared__ exp_sum shared[2][MOST_THREADS / 32];
    const row_reader<T, KEPT> reader = {c, kept};
    int64_t row = blockIdx.x;
    int32_t label = c.labels[row];
    if (label != c.ignore_index) reader.start_all(row);
    for (int parity = 0; row < c.rows; row += gridDim.x) {
        int64_t next = row + gridDim.x;
        int32_t next_label = next < c.rows ? c.labels[next] : c.ignore_index;
        if (next_label == c.ignore_index) next = -1; /* nothing to read of it */
        if (label == c.ignore_index) {
            if (next >= 0) reader.start_all(next);
            if (c.dx.data) zero_row<T>(c, row);
            if (threadIdx.x == 0) c.row_loss[row] = 0.0;
        } else {
            /* Read before the barrier: dx may be x. */
            float x_label = threadIdx.x == 0 ? mc_load_one(c.x, row * c.x.stride + label) : 0.0f;
            if (KEPT) __pipeline_wait_prior(0);
            exp_sum s = sum_row<T, KEPT>(reader, row, KEPT && !c.dx.data ? next : -1);
            s = merge_block(s, shared[parity]);
            parity ^= 1;
            if (c.dx.data) write_gradient<T, KEPT>(reader, row, KEPT ? next : -1, label, s);
            if (threadIdx.x == 0) c.row_loss[row] = row_loss(c, s, x_label);
        }
        label = next_label;
    }
}

/* loss[0] += the sum of the rows' losses, loss[1] += how many count. One block. */
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

/* What a block may have of shared memory, beside what kernels take themselves. */
static int64_t shared_limit(mc_device *d)
{
    int bytes = 48 << 10;
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, mc_cuda_of(d)->ordinal);
    return bytes - 2048;
}

template <class T, bool KEPT>
static void launch_rows(mc_device *d, const loss_call &c, int threads, size_t shared)
{
    auto kernel = cross_entropy_rows<T, KEPT>;
    mc_allow_shared(kernel, shared);
    int64_t grid = mc_least(c.rows, mc_resident_blocks(d, kernel, threads, shared));
    kernel<<<(unsigned)grid, threads, shared, mc_cuda_of(d)->stream>>>(c);
}

template <class T> static void launch_loss(mc_device *d, const loss_call &c)
{
    int64_t chunks = mc_ceil_div(c.classes, mc_width<T>), bytes = chunks * 16;
    int64_t limit = shared_limit(d), most = 2 * bytes + 2048 <= limit ? 512 : MOST_THREADS;
    int threads = (int)mc_least(mc_ceil_div(chunks, 32) * 32, most);
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
    MC_WITH_TYPE(mc_common_dtype(x, dx), {
        const int width = mc_width<T>;
        loss_call c = {rows,
                       classes,
                       mc_view_of(x, rows, width),
                       mc_view_of(dx, rows, width),
                       labels,
                       ignore_index,
                       smoothing,
                       seed,
                       row_loss};
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
    float count = a[1] > 0 ? a[1] : 1;
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

/* Of a value and its column: argmax prefers the largest. NaN is above all, -0 is 0. */
__device__ __forceinline__ uint64_t rank_of(float x, int64_t column)
{
    uint32_t bits = __float_as_uint(x + 0.0f);
    uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;
    if (x != x) order = ~0u;
    return (uint64_t)order << 32 | (uint32_t) ~(uint32_t)column;
}

/* One block a row; bytes an element: its size. */
template <class T>
static __global__ void __launch_bounds__(256) argmax_rows(mc_view x, int64_t columns, int32_t *out)
{
    __shared__ uint64_t shared[256 / 32];
    const int64_t row = blockIdx.x;
    uint64_t best = (uint32_t)~0u; /* column 0, below all values */
    for (int64_t column = (int64_t)threadIdx.x * mc_width<T>; column < columns;
         column += 256 * mc_width<T>) {
        int n = columns - column < mc_width<T> ? (int)(columns - column) : mc_width<T>;
        float v[mc_width<T>];
        mc_load<T>(x, row * x.stride + column, n, v);
#pragma unroll
        for (int i = 0; i < mc_width<T>; i++) {
            uint64_t rank = i < n ? rank_of(v[i], column + i) : 0;
            best = rank > best ? rank : best;
        }
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        uint64_t other = __shfl_xor_sync(0xffffffffu, best, lane);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 256 / 32; i++) best = shared[i] > best ? shared[i] : best;
    out[row] = (int32_t) ~(uint32_t)best;
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
