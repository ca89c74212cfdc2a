/* Attention by our own kernels: every dtype, head size and mask, in f32 arithmetic, no atomics, so
 * that results are bit-equal from run to run. Forward goes over the keys of a tile of queries with
 * a running softmax (Dao et al. 2022) and keeps the log-sum-exp; backward computes the
 * probabilities again, once for a tile of keys (dk, dv) and once for a tile of queries (dq).
 *
 * A block of 16 x 16 threads works on tiles of 64 x 64; a thread has 4 x 4 of each. Columns of the
 * results are taken in groups of at most 128, so that they fit into registers whatever head_dim is:
 * larger heads compute their scores once for each group. */
#include <cfloat>
#include <cmath>
#include "core/device/cuda/attention_internal.h"
#include "core/device/cuda/kernels.cuh"

namespace
{

constexpr int TILE = 64;  /* queries, keys, and columns of a step */
constexpr int DEPTH = 32; /* columns of a step of a dot product */
constexpr int PITCH =
    TILE + 4; /* floats from row to row in shared memory; keeps 16 bytes aligned */
constexpr int THREADS = 256;
constexpr int CHUNK = mc_width<mc_mixed>; /* elements that a thread loads at once */
static_assert(2 * DEPTH == TILE, "two operands of a dot product take the place of one tile");

struct call {
    const int32_t *length, *offset;
    int heads, head_dim, tiles, groups; /* tiles of the longest sequence, groups of columns */
    int64_t items, total, row_words;    /* items: (sequence, head, tile, group) */
    float scale;
    bool causal;
    const uint8_t *mask;
    mc_dropping dropping;
    mc_view q, k, v, out, dout, dq, dk, dv;
    float *log_sum_exp, *delta; /* (heads, total) */
};

/* What a block works on. */
struct place {
    int64_t row;       /* of the sequence's first token */
    int64_t head_row;  /* the same in (heads, total) */
    int length, first; /* of the sequence; first token of the tile */
    int column;        /* of the head's first */
    int group_column;  /* of the group's first, within the head */
};

/* False where the tile lies behind the sequence's end. The same for all threads of the block. */
__device__ bool find_place(const call &c, int64_t item, place *p)
{
    int group = (int)(item % c.groups);
    item /= c.groups;
    int tile = (int)(item % c.tiles);
    item /= c.tiles;
    int head = (int)(item % c.heads), sequence = (int)(item / c.heads);
    p->length = c.length[sequence];
    p->row = c.offset[sequence];
    p->head_row = head * c.total + p->row;
    p->first = tile * TILE;
    p->column = head * c.head_dim;
    p->group_column = group * 2 * TILE;
    return p->first < p->length;
}

__device__ __forceinline__ int tx() { return threadIdx.x % 16; }
__device__ __forceinline__ int ty() { return threadIdx.x / 16; }

/* Element of token `token` of the sequence in the head's first column of m. */
__device__ __forceinline__ int64_t element(const place &p, const mc_view &m, int token)
{
    return (p.row + token) * m.stride + p.column;
}

/* to[column][row] = m for TILE rows and DEPTH columns, of which `rows` and `columns` are there; the
 * rest becomes 0. */
__device__ void load_transposed(const mc_view &m, int64_t at, int rows, int columns, float *to)
{
    for (int i = threadIdx.x; i < TILE * DEPTH / CHUNK; i += THREADS) {
        int row = i / (DEPTH / CHUNK), column = i % (DEPTH / CHUNK) * CHUNK;
        int n = row < rows ? min(columns - column, CHUNK) : 0;
        float x[CHUNK];
        mc_load<mc_mixed>(m, at + row * m.stride + column, n, x);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) to[(column + j) * PITCH + row] = x[j];
    }
}

/* to[row][column] = m for TILE rows and TILE columns. */
__device__ void load_tile(const mc_view &m, int64_t at, int rows, int columns, float *to)
{
    for (int i = threadIdx.x; i < TILE * TILE / CHUNK; i += THREADS) {
        int row = i / (TILE / CHUNK), column = i % (TILE / CHUNK) * CHUNK;
        int n = row < rows ? min(columns - column, CHUNK) : 0;
        float x[CHUNK];
        mc_load<mc_mixed>(m, at + row * m.stride + column, n, x);
        *(float4 *)(to + row * PITCH + column) = make_float4(x[0], x[1], x[2], x[3]);
    }
}

/* x[i][j] += the sum over k of a[k][4 ty + i] b[k][4 tx + j]. */
template <int COUNT>
__device__ __forceinline__ void add_products(const float *a, const float *b, float (&x)[4][4])
{
#pragma unroll 8
    for (int k = 0; k < COUNT; k++) {
        float4 p = *(const float4 *)(a + k * PITCH + 4 * ty());
        float4 q = *(const float4 *)(b + k * PITCH + 4 * tx());
        const float ps[4] = {p.x, p.y, p.z, p.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) x[i][j] = fmaf(ps[i], qs[j], x[i][j]);
    }
}

/* x = a b^T for a tile of rows of each over the head's columns. Begins with a barrier; `work` (a
 * tile) is still being read when a thread comes back. */
__device__ void dot_products(const mc_view &a, int64_t a_at, int a_rows, const mc_view &b,
                             int64_t b_at, int b_rows, int head_dim, float *work, float (&x)[4][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) x[i][j] = 0.0f;
    for (int column = 0; column < head_dim; column += DEPTH) {
        __syncthreads();
        load_transposed(a, a_at + column, a_rows, head_dim - column, work);
        load_transposed(b, b_at + column, b_rows, head_dim - column, work + DEPTH * PITCH);
        __syncthreads();
        add_products<DEPTH>(work, work + DEPTH * PITCH, x);
    }
}

/* result += weights^T m for the tile of rows of m from `token` on and the group's columns;
 * `weights` [row of m][row of result]. Barriers stand before and after the loads. */
template <int COLUMNS>
__device__ void add_weighted(const call &c, const place &p, const mc_view &m, int token,
                             const float *weights, float *work, float (&result)[COLUMNS][4][4])
{
    int64_t at = element(p, m, token) + p.group_column;
#pragma unroll
    for (int b = 0; b < COLUMNS; b++) {
        __syncthreads();
        load_tile(m, at + b * TILE, p.length - token, c.head_dim - p.group_column - b * TILE, work);
        __syncthreads();
        add_products<TILE>(weights, work, result[b]);
    }
}

/* to[column][row] = x: as the left operand of the next product. */
__device__ __forceinline__ void put_transposed(const float (&x)[4][4], float *to)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        *(float4 *)(to + (4 * tx() + j) * PITCH + 4 * ty()) =
            make_float4(x[0][j], x[1][j], x[2][j], x[3][j]);
}

/* Rows of the tile, times a factor for each, into the group's columns of m. */
template <int COLUMNS>
__device__ void put_result(const call &c, const place &p, const mc_view &m,
                           float (&result)[COLUMNS][4][4], const float (&factor)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int token = p.first + 4 * ty() + i;
        if (token >= p.length) continue;
#pragma unroll
        for (int b = 0; b < COLUMNS; b++) {
            int column = p.group_column + b * TILE + 4 * tx();
            if (column >= c.head_dim) continue;
            float x[CHUNK];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = result[b][i][j] * factor[i];
            mc_store<mc_mixed>(m, element(p, m, token) + column, min(c.head_dim - column, CHUNK),
                               x);
        }
    }
}

__device__ __forceinline__ bool is_seen(const call &c, const place &p, int query, int key)
{
    return query < p.length && key < p.length && (!c.causal || key <= query) &&
           (!c.mask || c.mask[p.row + key]);
}

/* x *= dropout's factors of four keys of one query, `key` a multiple of 4. */
__device__ __forceinline__ void drop(const call &c, const place &p, int query, int key,
                                     float (&x)[4])
{
    const mc_dropping &d = c.dropping;
    if (d.keep == 0.0f) return;
    uint32_t words[4];
    uint64_t first = (uint64_t)((p.head_row + query) * c.row_words + key);
    mc_philox(d.seed, first / 4, d.offset + (d.base ? *d.base : 0), words);
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] *= words[j] >= d.threshold ? d.keep : 0.0f;
}

/* Over the 16 threads that share rows. */
__device__ __forceinline__ float row_max(float x)
{
#pragma unroll
    for (int lane = 8; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}
__device__ __forceinline__ float row_sum(float x)
{
#pragma unroll
    for (int lane = 8; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* One more tile of scores in one row: they become e^(score - largest) and join the sum. Gives what
 * the results so far are to be multiplied by. */
__device__ float join_row(float (&x)[4], float *largest, float *sum)
{
    float before = *largest;
    *largest = fmaxf(before, row_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]))));
    float base = *largest == -INFINITY ? 0.0f : *largest, part = 0.0f; /* no key yet: all are 0 */
#pragma unroll
    for (int j = 0; j < 4; j++) part += x[j] = expf(x[j] - base);
    float factor = expf(before - base);
    *sum = *sum * factor + row_sum(part);
    return factor;
}

template <int COLUMNS>
__device__ void forward_tile(const call &c, const place &p, float *work, float *weights)
{
    float result[COLUMNS][4][4] = {}, largest[4], sum[4] = {}, x[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) largest[i] = -INFINITY;
    int end = c.causal ? min(p.length, p.first + TILE) : p.length;
    for (int key = 0; key < end; key += TILE) {
        dot_products(c.q, element(p, c.q, p.first), p.length - p.first, c.k, element(p, c.k, key),
                     p.length - key, c.head_dim, work, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int query = p.first + 4 * ty() + i, at = key + 4 * tx();
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[i][j] = is_seen(c, p, query, at + j) ? x[i][j] * c.scale : -INFINITY;
            float factor = join_row(x[i], &largest[i], &sum[i]);
#pragma unroll
            for (int b = 0; b < COLUMNS; b++)
#pragma unroll
                for (int j = 0; j < 4; j++) result[b][i][j] *= factor;
            drop(c, p, query, at, x[i]);
        }
        put_transposed(x, weights);
        add_weighted<COLUMNS>(c, p, c.v, key, weights, work, result);
    }
    float inverse[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int query = p.first + 4 * ty() + i;
        inverse[i] = sum[i] == 0.0f ? 0.0f : 1.0f / sum[i];
        if (c.log_sum_exp && tx() == 0 && p.group_column == 0 && query < p.length)
            c.log_sum_exp[p.head_row + query] = /* so that e^(score - it) is 0 without keys */
                sum[i] == 0.0f ? INFINITY : largest[i] + logf(sum[i]);
    }
    put_result<COLUMNS>(c, p, c.out, result, inverse);
}

template <int COLUMNS>
__global__ void __launch_bounds__(THREADS) forward(const __grid_constant__ call c)
{
    __shared__ __align__(16) float work[TILE * PITCH], weights[TILE * PITCH];
    place p;
    for (int64_t item = blockIdx.x; item < c.items; item += gridDim.x)
        if (find_place(c, item, &p)) forward_tile<COLUMNS>(c, p, work, weights);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* delta = the sum over head_dim of out * dout. One warp for each (row, head). */
__global__ void __launch_bounds__(THREADS) find_delta(const __grid_constant__ call c)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (i >= c.total * c.heads) return;
    int64_t row = i / c.heads;
    int head = (int)(i % c.heads);
    int64_t out_at = row * c.out.stride + (int64_t)head * c.head_dim;
    int64_t dout_at = row * c.dout.stride + (int64_t)head * c.head_dim;
    float sum = 0.0f;
    for (int column = threadIdx.x % 32 * CHUNK; column < c.head_dim; column += 32 * CHUNK) {
        float x[CHUNK], dx[CHUNK];
        mc_load<mc_mixed>(c.out, out_at + column, min(c.head_dim - column, CHUNK), x);
        mc_load<mc_mixed>(c.dout, dout_at + column, min(c.head_dim - column, CHUNK), dx);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sum = fmaf(x[j], dx[j], sum);
    }
    sum = mc_warp_sum(sum);
    if (threadIdx.x % 32 == 0) c.delta[head * c.total + row] = sum;
}

/* A score's probability. */
__device__ __forceinline__ float probability(const call &c, const place &p, int query, int key,
                                             float score, float log_sum)
{
    return is_seen(c, p, query, key) ? expf(score * c.scale - log_sum) : 0.0f;
}

__device__ __forceinline__ float of_query(const float *values, const place &p, int query)
{
    return query < p.length ? values[p.head_row + query] : 0.0f;
}

/* dk and dv of the tile's keys over one tile of queries. x[i][j] is key i, query j. */
template <int COLUMNS>
__device__ void add_key_gradients(const call &c, const place &p, int first_query, float *work,
                                  float *weights, float (&dk)[COLUMNS][4][4],
                                  float (&dv)[COLUMNS][4][4])
{
    float x[4][4], factor[4][4], dx[4][4];
    int key = p.first + 4 * ty(), query = first_query + 4 * tx();
    int keys = p.length - p.first, queries = p.length - first_query;
    dot_products(c.k, element(p, c.k, p.first), keys, c.q, element(p, c.q, first_query), queries,
                 c.head_dim, work, x);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float log_sum = of_query(c.log_sum_exp, p, query + j), f[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        drop(c, p, query + j, key, f);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i][j] = probability(c, p, query + j, key + i, x[i][j], log_sum);
            factor[i][j] = f[i];
            dx[i][j] = x[i][j] * f[i];
        }
    }
    put_transposed(dx, weights);
    add_weighted<COLUMNS>(c, p, c.dout, first_query, weights, work, dv);
    dot_products(c.v, element(p, c.v, p.first), keys, c.dout, element(p, c.dout, first_query),
                 queries, c.head_dim, work, dx);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float delta = of_query(c.delta, p, query + j);
#pragma unroll
        for (int i = 0; i < 4; i++) dx[i][j] = x[i][j] * (dx[i][j] * factor[i][j] - delta);
    }
    put_transposed(dx, weights);
    add_weighted<COLUMNS>(c, p, c.q, first_query, weights, work, dk);
}

template <int COLUMNS>
__global__ void __launch_bounds__(THREADS) backward_keys(const __grid_constant__ call c)
{
    __shared__ __align__(16) float work[TILE * PITCH], weights[TILE * PITCH];
    const float scale[4] = {c.scale, c.scale, c.scale, c.scale}, one[4] = {1, 1, 1, 1};
    place p;
    for (int64_t item = blockIdx.x; item < c.items; item += gridDim.x) {
        if (!find_place(c, item, &p)) continue;
        float dk[COLUMNS][4][4] = {}, dv[COLUMNS][4][4] = {};
        for (int query = c.causal ? p.first : 0; query < p.length; query += TILE)
            add_key_gradients<COLUMNS>(c, p, query, work, weights, dk, dv);
        put_result<COLUMNS>(c, p, c.dk, dk, scale);
        put_result<COLUMNS>(c, p, c.dv, dv, one);
    }
}

/* dq of the tile's queries over one tile of keys. x[i][j] is query i, key j. */
template <int COLUMNS>
__device__ void add_query_gradients(const call &c, const place &p, int first_key, float *work,
                                    float *weights, float (&dq)[COLUMNS][4][4])
{
    float x[4][4], dx[4][4];
    int query = p.first + 4 * ty(), key = first_key + 4 * tx();
    int queries = p.length - p.first, keys = p.length - first_key;
    dot_products(c.q, element(p, c.q, p.first), queries, c.k, element(p, c.k, first_key), keys,
                 c.head_dim, work, x);
    dot_products(c.dout, element(p, c.dout, p.first), queries, c.v, element(p, c.v, first_key),
                 keys, c.head_dim, work, dx);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float log_sum = of_query(c.log_sum_exp, p, query + i);
        float delta = of_query(c.delta, p, query + i);
        drop(c, p, query + i, key, dx[i]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[i][j] = probability(c, p, query + i, key + j, x[i][j], log_sum) * (dx[i][j] - delta);
    }
    put_transposed(x, weights);
    add_weighted<COLUMNS>(c, p, c.k, first_key, weights, work, dq);
}

template <int COLUMNS>
__global__ void __launch_bounds__(THREADS) backward_queries(const __grid_constant__ call c)
{
    __shared__ __align__(16) float work[TILE * PITCH], weights[TILE * PITCH];
    const float scale[4] = {c.scale, c.scale, c.scale, c.scale};
    place p;
    for (int64_t item = blockIdx.x; item < c.items; item += gridDim.x) {
        if (!find_place(c, item, &p)) continue;
        float dq[COLUMNS][4][4] = {};
        int end = c.causal ? min(p.length, p.first + TILE) : p.length;
        for (int key = 0; key < end; key += TILE)
            add_query_gradients<COLUMNS>(c, p, key, work, weights, dq);
        put_result<COLUMNS>(c, p, c.dq, dq, scale);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

call call_of(const mc_attention_shape *s)
{
    const mc_lengths *l = s->lengths;
    call c = {};
    c.length = s->device_lengths;
    c.offset = s->device_lengths + l->count;
    c.heads = s->heads;
    c.head_dim = s->head_dim;
    c.tiles = (int)mc_ceil_div(l->longest, TILE);
    c.groups = (int)mc_ceil_div(s->head_dim, 2 * TILE);
    c.items = (int64_t)l->count * s->heads * c.tiles * c.groups;
    c.total = l->total;
    c.row_words = mc_ceil_div(l->longest, 4) * 4;
    c.scale = s->scale;
    c.causal = s->causal;
    c.mask = s->key_mask;
    c.dropping = mc_dropping_of(s->dropout);
    return c;
}

/* Heads whose size is no multiple of a chunk begin at columns that are not aligned. */
mc_view view_of(mc_matrix m, const mc_attention_shape *s)
{
    mc_view v = mc_view_of(m, s->lengths->total, CHUNK);
    v.whole = v.whole && s->head_dim % CHUNK == 0;
    return v;
}

/* Runs one of two versions of a kernel, for groups of one tile of columns or of two. */
void launch(mc_device *d, const call &c, void (*narrow)(call), void (*wide)(call))
{
    unsigned blocks = (unsigned)mc_least(c.items, INT32_MAX);
    cudaStream_t stream = mc_cuda_of(d)->stream;
    if (c.head_dim <= TILE)
        narrow<<<blocks, THREADS, 0, stream>>>(c);
    else
        wide<<<blocks, THREADS, 0, stream>>>(c);
}

} // namespace

extern "C" mc_status mc_own_attention(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                      mc_matrix k, mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    call c = call_of(shape);
    if (c.items == 0) return MC_OK;
    c.q = view_of(q, shape);
    c.k = view_of(k, shape);
    c.v = view_of(v, shape);
    c.out = view_of(out, shape);
    c.log_sum_exp = log_sum_exp;
    launch(d, c, forward<1>, forward<2>);
    return mc_cuda_launched(d, "attention");
}

extern "C" mc_status mc_own_attention_backward(mc_device *d, const mc_attention_shape *shape,
                                               mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out,
                                               const float *log_sum_exp, mc_matrix dout,
                                               mc_matrix dq, mc_matrix dk, mc_matrix dv)
{
    call c = call_of(shape);
    if (c.items == 0) return MC_OK;
    size_t bytes = (size_t)(c.heads * c.total) * sizeof(float);
    c.delta = (float *)d->alloc(d, bytes);
    if (!c.delta) return MC_ERR_NOMEM;
    c.q = view_of(q, shape);
    c.k = view_of(k, shape);
    c.v = view_of(v, shape);
    c.out = view_of(out, shape);
    c.dout = view_of(dout, shape);
    c.dq = view_of(dq, shape);
    c.dk = view_of(dk, shape);
    c.dv = view_of(dv, shape);
    c.log_sum_exp = (float *)log_sum_exp;
    unsigned blocks = (unsigned)mc_ceil_div(c.total * c.heads, THREADS / 32);
    find_delta<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(c);
    launch(d, c, backward_keys<1>, backward_keys<2>);
    launch(d, c, backward_queries<1>, backward_queries<2>);
    d->free(d, c.delta, bytes); /* what comes later on the stream may have it */
    return mc_cuda_launched(d, "attention_backward");
}

/* ---- what cuDNN's graphs read ---------------------------------------------------------------- */

namespace
{

__global__ void write_inputs(const __grid_constant__ mc_sdpa_inputs in)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i == 0 && in.random) {
        in.random[0] = in.seed;
        in.random[1] = in.offset + (in.base ? *in.base : 0);
    }
    if (!in.lengths || i > in.batch) return;
    if (i < in.batch) in.lengths[i] = i < in.count ? in.device_lengths[i] : 0;
    int64_t row = in.device_lengths[in.count + min(i, in.count)];
    in.qkv_starts[i] = row * in.qkv_stride;
    in.out_starts[i] = row * in.out_stride;
    in.stats_starts[i] = row * in.heads;
}

struct copy_chunks {
    mc_view from, to;
    template <class T> __device__ void run(int64_t row, int64_t column, int n) const
    {
        float x[mc_width<T>];
        mc_load<T>(from, row * from.stride + column, n, x);
        mc_store<T>(to, row * to.stride + column, n, x);
    }
};

} // namespace

extern "C" mc_status mc_sdpa_write_inputs(mc_device *d, const mc_sdpa_inputs *inputs)
{
    unsigned blocks = inputs->lengths ? (unsigned)mc_ceil_div(inputs->batch + 1, 128) : 1;
    write_inputs<<<blocks, 128, 0, mc_cuda_of(d)->stream>>>(*inputs);
    return mc_cuda_launched(d, "attention's lengths");
}

extern "C" mc_status mc_sdpa_copy_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix from,
                                       mc_matrix to)
{
    copy_chunks f = {mc_view_of(from, rows, CHUNK), mc_view_of(to, rows, CHUNK)};
    mc_launch_chunks<mc_mixed>(d, rows, columns, f);
    return mc_cuda_launched(d, "attention's copies");
}
