/* LayerNorm and RMSNorm of rows of 16-bit types, of 513 to 2048 columns backward and of 769 to 2048
 * forward, where nothing is absent that training has. A row is dealt to as many warps as give each
 * thread one chunk; a block takes rows until none is left, and each thread copies its chunks of the
 * next rows to shared memory while it works on these, so that memory has work all the time. Bytes:
 * see norm.cu.
 *
 * The number of warps, the rows of a thread and what there is to read are known when this is
 * compiled, for each instruction of the loops shows in the time: with numbers of warps known only
 * when run, such loops took up to 1.7 times as long. */
#include <cuda_pipeline_primitives.h>
#include "core/device/cuda/elementwise/norm_internal.cuh"

/* Of rows: those that a thread has between two barriers, and beside each other in a block. */
template <int WARPS> struct backward_shape { /* 128 registers a thread */
    enum { ROWS = 2, BESIDE = 16 / WARPS, THREADS = WARPS * BESIDE * 32 };
};
/* Two rows a thread make up for waiting at barriers where a row has few warps; where it has more,
 * several blocks do, and better. */
template <int WARPS> struct forward_shape {
    enum { FEW = WARPS <= 4, ROWS = FEW ? 2 : 1, BESIDE = FEW ? 2 : 1 };
    enum { THREADS = WARPS * BESIDE * 32, BLOCKS = FEW ? 2 : 28 / WARPS };
};
enum { MOST_WARPS = 8, WIDTH = 8 };

struct ahead_call {
    mc_norm_call c;
    uint32_t keys[20]; /* Philox' of all rounds, so that instructions take them from constants */
};

static ahead_call ahead_call_of(const mc_norm_call &c)
{
    ahead_call q = {c, {}};
    uint32_t low = (uint32_t)c.mask.seed, high = (uint32_t)(c.mask.seed >> 32);
    for (int round = 0; round < 10; round++, low += 0x9e3779b9u, high += 0xbb67ae85u) {
        q.keys[2 * round] = low;
        q.keys[2 * round + 1] = high;
    }
    return q;
}

/* mc_philox with the keys of a call. */
__device__ __forceinline__ void philox(const ahead_call &q, uint64_t block, uint64_t offset,
                                       uint32_t *words)
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)offset, c3 = (uint32_t)(offset >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xd2511f53u, p1 = (uint64_t)c2 * 0xcd9e8d57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ q.keys[2 * round];
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ q.keys[2 * round + 1];
        c3 = (uint32_t)p0;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* mc_drop_factors where there is dropout and `first` is a multiple of 4. */
__device__ __forceinline__ void drop_factors(const ahead_call &q, uint64_t offset, int64_t first,
                                             float (&factor)[WIDTH])
{
    uint32_t words[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i += 4) philox(q, ((uint64_t)first >> 2) + i / 4, offset, words + i);
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        factor[i] = words[i] >= q.c.mask.threshold ? q.c.mask.keep : 0.0f;
}

__device__ __forceinline__ uint64_t drop_offset(const mc_dropping &d)
{
    return d.offset + (d.base ? *d.base : 0);
}

/* The thread's, in its block of (threads of a row, rows beside each other). */
template <int WARPS> __device__ __forceinline__ int my_number()
{
    return threadIdx.y * WARPS * 32 + threadIdx.x;
}

/* ---- rows on their way ----------------------------------------------------------------------- */

/* Shared memory for chunks of two sets of rows: in one slot those at work, in the other those being
 * copied. A thread reads what it copied itself, so no barrier is needed. */
template <class T, int ROWS, int READS, int THREADS> struct two_slots {
    uint4 *mine; /* of this thread, of (slot, row, matrix, THREADS) */

    __device__ __forceinline__ uint4 *at(int slot, int r, int matrix) const
    {
        return mine + ((slot * ROWS + r) * READS + matrix) * THREADS;
    }
    __device__ __forceinline__ void copy(int slot, int r, int matrix, const mc_view &from,
                                         int64_t row, int64_t column) const
    {
        __pipeline_memcpy_async(at(slot, r, matrix),
                                (const T *)from.data + (row + r) * from.stride + column, 16);
    }
    __device__ __forceinline__ mc_bits bits(int slot, int r, int matrix, bool there) const
    {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (there) v = *at(slot, r, matrix);
        return mc_bits_of(v);
    }
};

/* Has copy(r) copy what a thread reads of row + r, of all rows that are there. */
template <int ROWS, class Copy>
__device__ __forceinline__ void copy_rows(const mc_norm_call &c, int64_t row, bool within,
                                          const Copy &copy)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (row + r < c.rows && within) copy(r);
    __pipeline_commit();
}

/* ---- forward --------------------------------------------------------------------------------- */

/* x[r] = its sum over the threads of a row. */
template <int WARPS, int ROWS>
__device__ __forceinline__ void row_sums(float (&x)[ROWS], float (*shared)[16])
{
    const int first = threadIdx.y * WARPS;
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[r] = mc_warp_sum(x[r]);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (threadIdx.x % 32 == 0) shared[r][first + threadIdx.x / 32] = x[r];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        x[r] = shared[r][first];
#pragma unroll
        for (int i = 1; i < WARPS; i++) x[r] += shared[r][first + i];
    }
}

/* v = what the norm is taken of; stores s, if x is not all there is. */
template <class T, mc_summands OF>
__device__ __forceinline__ void make_sum(const ahead_call &q, uint64_t offset, int64_t row,
                                         int64_t column, bool there, mc_bits x, mc_bits f,
                                         float (&v)[WIDTH])
{
    const mc_norm_call &c = q.c;
    mc_unpack<T>(c.x, x, v);
    if (OF == MC_ALONE) return;
    float branch[WIDTH], factor[WIDTH];
    mc_unpack<T>(c.f, f, branch);
    if (OF == MC_DROPPED) drop_factors(q, offset, row * c.columns + column, factor);
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        v[i] = __fmaf_rn(branch[i], OF == MC_DROPPED ? factor[i] : 1.0f, v[i]);
    mc_bits stored = mc_pack<T>(c.s, v);
    if (there) mc_store_bits<T, true>(c.s, row * c.s.stride + column, WIDTH, stored);
    mc_unpack<T>(c.s, stored, v);
}

template <class T, bool RMS>
__device__ __forceinline__ void store_normalised(const mc_norm_call &c, int64_t row, int64_t column,
                                                 float mean, float rstd, mc_bits weight,
                                                 mc_bits bias, float (&v)[WIDTH])
{
    float w[WIDTH], b[WIDTH];
    mc_unpack<T>(c.weight, weight, w);
    if (!RMS) mc_unpack<T>(c.bias, bias, b);
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
        v[i] = RMS ? v[i] * rstd * w[i] : (v[i] - mean) * rstd * w[i] + b[i];
    mc_store_bits<T, true>(c.y, row * c.y.stride + column, WIDTH, mc_pack<T>(c.y, v));
}

/* Block (threads of a row, rows beside each other). */
template <class T, int WARPS, mc_summands OF, bool RMS>
static __global__ void __launch_bounds__(forward_shape<WARPS>::THREADS,
                                         forward_shape<WARPS>::BLOCKS)
    norm_ahead(const __grid_constant__ ahead_call q)
{
    using shape = forward_shape<WARPS>;
    constexpr int READS = OF == MC_ALONE ? 1 : 2, ROWS = shape::ROWS;
    extern __shared__ uint4 dynamic[];
    __shared__ float shared[2][ROWS][16];
    const mc_norm_call &c = q.c;
    const two_slots<T, ROWS, READS, shape::THREADS> slots = {dynamic + my_number<WARPS>()};
    const int64_t column = (int64_t)threadIdx.x * WIDTH;
    const bool within = column < c.columns;
    auto copy = [&](int slot, int64_t row) {
        copy_rows<ROWS>(c, row, within, [&](int r) {
            slots.copy(slot, r, 0, c.x, row, column);
            if (OF != MC_ALONE) slots.copy(slot, r, READS - 1, c.f, row, column);
        });
    };
    mc_bits weight = mc_load_bits<T, true>(c.weight, column, within ? WIDTH : 0);
    mc_bits bias = {};
    if (!RMS) bias = mc_load_bits<T, true>(c.bias, column, within ? WIDTH : 0);
    const uint64_t offset = drop_offset(c.mask);
    const float count = (float)c.columns;
    const int64_t step = (int64_t)gridDim.x * shape::BESIDE * ROWS;
    int64_t base = (int64_t)blockIdx.x * shape::BESIDE * ROWS, row = base + threadIdx.y * ROWS;
    copy(0, row);
#pragma unroll 1
    for (int slot = 0; base < c.rows; base += step, row += step, slot ^= 1) {
        float v[ROWS][WIDTH], sum[ROWS], mean[ROWS];
        __pipeline_wait_prior(0);
        copy(slot ^ 1, row + step);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            bool there = row + r < c.rows && within;
            mc_bits x = slots.bits(slot, r, 0, there), f = {};
            if (OF != MC_ALONE) f = slots.bits(slot, r, READS - 1, there);
            make_sum<T, OF>(q, offset, row + r, column, there, x, f, v[r]);
            if (!RMS) sum[r] = mc_sum_of(v[r]);
        }
        if (!RMS) row_sums<WARPS>(sum, shared[0]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mean[r] = RMS ? 0.0f : sum[r] / count;
            sum[r] = mc_squares_of<true>(v[r], within, mean[r]);
        }
        /* with one sum a round, the next round must not write where this one is still read */
        row_sums<WARPS>(sum, shared[RMS ? slot : 1]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float rstd = 1.0f / sqrtf(sum[r] / count + c.eps);
            if (row + r >= c.rows) continue;
            if (!RMS && threadIdx.x == 0) c.mean_out[row + r] = mean[r];
            if (threadIdx.x == 0) c.rstd_out[row + r] = rstd;
            if (within)
                store_normalised<T, RMS>(c, row + r, column, mean[r], rstd, weight, bias, v[r]);
        }
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* x[r] = its sums over the threads of a row. Halves and then quarters of a warp take one sum each.
 * Rows beside each other wait for their own warps alone. */
template <int WARPS>
__device__ __forceinline__ void row_sums(mc_norm_sums (&x)[2], float2 (*shared)[16])
{
    const int lane = threadIdx.x % 32, first = threadIdx.y * WARPS;
    const bool high = lane & 16, odd = lane & 8;
    float v[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float keep = high ? x[r].product : x[r].gradient;
        float send = high ? x[r].gradient : x[r].product;
        v[r] = keep + __shfl_xor_sync(~0u, send, 16);
    }
    float keep = odd ? v[1] : v[0], send = odd ? v[0] : v[1];
    float sum = keep + __shfl_xor_sync(~0u, send, 8);
#pragma unroll
    for (int other = 4; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    float2 *to = &shared[(lane >> 3) & 1][first + threadIdx.x / 32];
    if (lane % 8 == 0) ((float *)to)[lane >> 4] = sum;
    const int barrier = threadIdx.y + 1; /* 0 is __syncthreads' */
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(WARPS * 32) : "memory");
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 total = shared[r][first];
#pragma unroll
        for (int i = 1; i < WARPS; i++) {
            float2 more = shared[r][first + i];
            total.x += more.x;
            total.y += more.y;
        }
        x[r] = {total.x, total.y};
    }
}

template <int ROWS, bool RMS> struct row_stats {
    float mean[ROWS], rstd[ROWS];

    __device__ __forceinline__ void load(const mc_norm_call &c, int64_t row)
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mean[r] = !RMS && row + r < c.rows ? c.mean[row + r] : 0.0f;
            rstd[r] = row + r < c.rows ? c.rstd[row + r] : 0.0f;
        }
    }
};

struct column_totals {
    float weight[WIDTH], bias[WIDTH], branch[WIDTH];
};

/* s: normalised, g: dy, then dy * weight. Adds to the sums of the columns, and of the row, but to
 * those that RMSNorm does not have. */
template <class T, bool RMS>
__device__ __forceinline__ void add_chunk(const mc_norm_call &c, mc_bits weight,
                                          const float (&s)[WIDTH], float (&g)[WIDTH],
                                          column_totals *totals, mc_norm_sums *sums)
{
    float w[WIDTH];
    mc_unpack<T>(c.weight, weight, w);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        totals->weight[i] = __fmaf_rn(g[i], s[i], totals->weight[i]);
        if (!RMS) totals->bias[i] += g[i];
        g[i] *= w[i];
        if (!RMS) sums->gradient += g[i];
        sums->product = __fmaf_rn(g[i], s[i], sums->product);
    }
}

/* v += what is there. */
template <class T>
__device__ __forceinline__ void add_to(const mc_view &m, mc_bits bits, float (&v)[WIDTH])
{
    float there[WIDTH];
    mc_unpack<T>(m, bits, there);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) v[i] += there[i];
}

/* Stores v as ds and, with DF, dropped as df; adds what was stored last to the branch's sums. */
template <class T, bool DF>
__device__ __forceinline__ void store_gradients(const ahead_call &q, uint64_t offset, int64_t row,
                                                int64_t column, float (&v)[WIDTH],
                                                column_totals *totals)
{
    const mc_norm_call &c = q.c;
    mc_bits stored = mc_pack<T>(c.ds, v);
    mc_store_bits<T, true>(c.ds, row * c.ds.stride + column, WIDTH, stored);
    mc_unpack<T>(c.ds, stored, v);
    if (DF) {
        float factor[WIDTH];
        drop_factors(q, offset, row * c.columns + column, factor);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) v[i] *= factor[i];
        stored = mc_pack<T>(c.df, v);
        mc_store_bits<T, true>(c.df, row * c.df.stride + column, WIDTH, stored);
        mc_unpack<T>(c.df, stored, v);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) totals->branch[i] += v[i];
}

/* Adds up what the rows beside each other have, in order, into partial[block] (3, columns). */
template <int WARPS>
__device__ __forceinline__ void store_totals(const column_totals &totals, int64_t columns,
                                             float *shared, float *partial)
{
    using shape = backward_shape<WARPS>;
    enum { COLUMNS = WARPS * 32 * WIDTH };
    partial += (int64_t)blockIdx.x * MC_WEIGHTS_AND_BRANCH * columns;
#pragma unroll
    for (int j = 0; j < MC_WEIGHTS_AND_BRANCH; j++) {
        const float(&x)[WIDTH] = j == 0 ? totals.weight : j == 1 ? totals.bias : totals.branch;
        float4 *to = (float4 *)(shared + threadIdx.y * COLUMNS + threadIdx.x * WIDTH);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WIDTH; i += 4)
            to[i / 4] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        __syncthreads();
        for (int i = my_number<WARPS>(); i < columns; i += shape::THREADS) {
            float total = 0;
#pragma unroll
            for (int y = 0; y < shape::BESIDE; y++) total += shared[y * COLUMNS + i];
            partial[j * columns + i] = total;
        }
    }
}

/* Blocks as in norm_ahead. With ADDS ds is added to. partial: (gridDim.x, 3, columns). */
template <class T, int WARPS, bool DF, bool ADDS, bool RMS>
static __global__ void __launch_bounds__(backward_shape<WARPS>::THREADS, 1)
    norm_ahead_backward(const __grid_constant__ ahead_call q, float *partial)
{
    using shape = backward_shape<WARPS>;
    constexpr int READS = ADDS ? 3 : 2, ROWS = shape::ROWS;
    extern __shared__ uint4 dynamic[];
    __shared__ float2 shared[2][ROWS][16];
    const mc_norm_call &c = q.c;
    const two_slots<T, ROWS, READS, shape::THREADS> slots = {dynamic + my_number<WARPS>()};
    const int64_t column = (int64_t)threadIdx.x * WIDTH;
    const bool within = column < c.columns;
    row_stats<ROWS, RMS> stats;
    auto copy = [&](int slot, int64_t row) {
        copy_rows<ROWS>(c, row, within, [&](int r) {
            slots.copy(slot, r, 0, c.s, row, column);
            slots.copy(slot, r, 1, c.dy, row, column);
            if (ADDS) slots.copy(slot, r, READS - 1, c.ds, row, column);
        });
    };
    column_totals totals = {};
    mc_bits weight = mc_load_bits<T, true>(c.weight, column, within ? WIDTH : 0);
    const uint64_t offset = drop_offset(c.mask);
    const float share = 1.0f / (float)c.columns;
    const int64_t step = (int64_t)gridDim.x * shape::BESIDE * ROWS;
    int64_t base = (int64_t)blockIdx.x * shape::BESIDE * ROWS, row = base + threadIdx.y * ROWS;
    stats.load(c, row);
    copy(0, row);
#pragma unroll 1
    for (int slot = 0; base < c.rows; base += step, row += step, slot ^= 1) {
        mc_bits in[ROWS][READS];
        __pipeline_wait_prior(0);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int m = 0; m < READS; m++)
                in[r][m] = slots.bits(slot, r, m, row + r < c.rows && within);
        copy(slot ^ 1, row + step);
        mc_norm_sums sums[ROWS];
        float s[ROWS][WIDTH], g[ROWS][WIDTH], scale[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sums[r] = {0, 0};
            scale[r] = stats.rstd[r];
            mc_unpack<T>(c.s, in[r][0], s[r]);
            mc_unpack<T>(c.dy, in[r][1], g[r]);
            mc_normalise(stats.mean[r], stats.rstd[r], s[r]);
            add_chunk<T, RMS>(c, weight, s[r], g[r], &totals, &sums[r]);
        }
        stats.load(c, row + step);
        row_sums<WARPS>(sums, shared[slot]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mc_row_facts facts = {scale[r], {sums[r].gradient * share, sums[r].product * share}};
            float v[WIDTH];
            mc_norm_gradient(facts, s[r], g[r], v);
            if (row + r >= c.rows || !within) continue;
            if (ADDS) add_to<T>(c.ds, in[r][READS - 1], v);
            store_gradients<T, DF>(q, offset, row + r, column, v, &totals);
        }
    }
    __pipeline_wait_prior(0);
    store_totals<WARPS>(totals, c.columns, (float *)dynamic, partial);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* How many warps give each thread of a row one chunk. */
static int warps_for(int64_t columns)
{
    return columns > MOST_WARPS * 32 * WIDTH ? MOST_WARPS + 1
                                             : (int)mc_ceil_div(columns, 32 * WIDTH);
}

template <class T, int WARPS, bool RMS> static void launch(mc_device *d, const mc_norm_call &c)
{
    using shape = forward_shape<WARPS>;
    auto kernel = !c.f.data          ? norm_ahead<T, WARPS, MC_ALONE, RMS>
                  : c.mask.keep == 0 ? norm_ahead<T, WARPS, MC_PLAIN, RMS>
                                     : norm_ahead<T, WARPS, MC_DROPPED, RMS>;
    size_t shared = sizeof(uint4) * 2 * shape::ROWS * (c.f.data ? 2 : 1) * shape::THREADS;
    int64_t most = mc_resident_blocks(d, kernel, shape::THREADS, shared);
    int64_t grid = mc_least(most, mc_ceil_div(c.rows, shape::BESIDE * shape::ROWS));
    dim3 block(WARPS * 32, shape::BESIDE);
    kernel<<<(unsigned)grid, block, shared, mc_cuda_of(d)->stream>>>(ahead_call_of(c));
}

template <class T, int WARPS, bool RMS>
static mc_status launch_backward_of(mc_device *d, const mc_norm_call &c, mc_norm_partials *p,
                                    bool *launched)
{
    using shape = backward_shape<WARPS>;
    bool adds = c.accumulate;
    auto kernel = norm_ahead_backward<T, WARPS, false, false, RMS>;
    if (c.df.data && adds) kernel = norm_ahead_backward<T, WARPS, true, true, RMS>;
    if (c.df.data && !adds) kernel = norm_ahead_backward<T, WARPS, true, false, RMS>;
    if (!c.df.data && adds) kernel = norm_ahead_backward<T, WARPS, false, true, RMS>;
    size_t shared = sizeof(uint4) * 2 * shape::ROWS * (adds ? 3 : 2) * shape::THREADS;
    if ((int64_t)shared > mc_shared_limit(d)) return MC_OK;
    mc_allow_shared(kernel, shared);
    int64_t most = mc_resident_blocks(d, kernel, shape::THREADS, shared);
    int64_t grid = mc_least(most, mc_ceil_div(c.rows, shape::BESIDE * shape::ROWS));
    p->sums = MC_WEIGHTS_AND_BRANCH; /* the third costs little where it is not wanted */
    if (mc_norm_partials_new(d, grid, c.columns, p) != MC_OK) return MC_ERR_NOMEM;
    dim3 block(WARPS * 32, shape::BESIDE);
    kernel<<<(unsigned)grid, block, shared, mc_cuda_of(d)->stream>>>(ahead_call_of(c), p->data);
    *launched = true;
    return MC_OK;
}

template <class T, int WARPS>
static mc_status launch_backward(mc_device *d, const mc_norm_call &c, mc_norm_partials *p,
                                 bool *launched)
{
    return c.rms ? launch_backward_of<T, WARPS, true>(d, c, p, launched)
                 : launch_backward_of<T, WARPS, false>(d, c, p, launched);
}

template <class T, int WARPS> static void launch_either(mc_device *d, const mc_norm_call &c)
{
    c.rms ? launch<T, WARPS, true>(d, c) : launch<T, WARPS, false>(d, c);
}

template <class T> bool mc_norm_ahead(mc_device *d, const mc_norm_call &c)
{
    if (!c.weight.data || !c.rstd_out || (!c.rms && !c.mean_out)) return false;
    if (!c.f.data != !c.s.data) return false;
    switch (warps_for(c.columns)) {
    case 4: launch_either<T, 4>(d, c); return true;
    case 5: launch_either<T, 5>(d, c); return true;
    case 6: launch_either<T, 6>(d, c); return true;
    case 7: launch_either<T, 7>(d, c); return true;
    case 8: launch_either<T, 8>(d, c); return true;
    default: return false;
    }
}

template <class T>
mc_status mc_norm_ahead_backward(mc_device *d, const mc_norm_call &c, mc_norm_partials *p,
                                 bool *launched)
{
    *launched = false;
    if (!c.weight.data || !c.rstd || !c.ds.data || !p->sums) return MC_OK;
    if (c.df.data && c.mask.keep == 0) return MC_OK;
    switch (warps_for(c.columns)) {
    case 3: return launch_backward<T, 3>(d, c, p, launched);
    case 4: return launch_backward<T, 4>(d, c, p, launched);
    case 5: return launch_backward<T, 5>(d, c, p, launched);
    case 6: return launch_backward<T, 6>(d, c, p, launched);
    case 7: return launch_backward<T, 7>(d, c, p, launched);
    case 8: return launch_backward<T, 8>(d, c, p, launched);
    default: return MC_OK;
    }
}

template bool mc_norm_ahead<__nv_bfloat16>(mc_device *, const mc_norm_call &);
template bool mc_norm_ahead<__half>(mc_device *, const mc_norm_call &);
template mc_status mc_norm_ahead_backward<__nv_bfloat16>(mc_device *, const mc_norm_call &,
                                                         mc_norm_partials *, bool *);
template mc_status mc_norm_ahead_backward<__half>(mc_device *, const mc_norm_call &,
                                                  mc_norm_partials *, bool *);
