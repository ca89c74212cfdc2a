/* Attention by our own kernels: every dtype, head size and mask, in f32 arithmetic, no atomics, so
 * that results are bit-equal from run to run. Forward goes over the keys of a tile of queries with
 * a running softmax (Dao et al. 2022) and keeps the log-sum-exp; backward computes the
 * probabilities again, once for a tile of keys (dk, dv), once for a tile of queries (dq), and once
 * for a tile of a bias that has a gradient, which all sequences add to in order.
 *
 * A block of 16 x 16 threads works on tiles of 64 x 64; a thread has 4 x 4 of each. Columns of the
 * results are taken in groups of at most 128, so that they fit into registers whatever head_dim is:
 * larger heads compute their scores once for each group. */
#include <cfloat>
#include <climits>
#include <cmath>
#include "core/device/cuda/attention/attention_internal.h"
#include "core/device/cuda/runtime/kernels.cuh"

namespace
{

constexpr int TILE = 64;  /* queries, keys, and columns of a step */
constexpr int DEPTH = 32; /* columns of a step of a dot product */
constexpr int PITCH =
    TILE + 4; /* floats from row to row in shared memory; keeps 16 bytes aligned */
constexpr int THREADS = 256;
constexpr int CHUNK = mc_width<mc_mixed>; /* elements that a thread loads at once */
static_assert(2 * DEPTH == TILE, "two operands of a dot product take the place of one tile");

/* What a kernel takes. Registers are few, so that what others need is a constant to it. */
enum kind {
    PLAIN,
    BIASED, /* a bias or marks */
    ANY,    /* and what mc_attention_needs names */
};

/* Lengths and first rows of the sequences. */
struct packing {
    const int32_t *length, *offset;
};

struct call {
    packing queries, keys;
    int count, heads, head_dim, tiles, groups; /* tiles of the longest sequence, of columns */
    int value_dim, sharing;                    /* sharing: heads that read one head of the keys */
    int together;                              /* heads of an item: 1, or those that share */
    int64_t items, total, row_words;           /* items: (sequence, head, tile, group) */
    float scale;
    bool causal, bottom_right;
    int left, right; /* a query sees keys less than so far before and after where it stands */
    const uint8_t *mask;
    const int32_t *marks;
    const int32_t *globals; /* NULL unless ANY */
    bool global_queries;
    mc_dropping dropping;
    mc_view q, k, v, out, dout, dq, dk, dv;
    mc_view bias; /* see mc_score_bias */
    int64_t bias_first, bias_head, bias_query;
    float *log_sum_exp, *delta; /* (heads, total) */
};

/* What a block works on. */
struct place {
    int64_t row, key_row; /* of the sequence's first query and first key */
    int64_t head_row;     /* of its first query in (heads, total) */
    int64_t bias_at;      /* the bias of the head's first query and key */
    int length, keys;     /* of the sequence */
    int shift;            /* where its first query stands */
    int first;            /* query or key of the tile */
    int column;           /* of the head's first */
    int key_column, value_column, out_column;
    int group_column; /* of the group's first, within the head */
};

__device__ void find_sequence(const call &c, int sequence, int head, place *p)
{
    p->length = c.queries.length[sequence];
    p->keys = c.keys.length[sequence];
    p->row = c.queries.offset[sequence];
    p->key_row = c.keys.offset[sequence];
    p->head_row = head * c.total + p->row;
    p->bias_at = c.bias_first + head * c.bias_head;
    p->column = head * c.head_dim;
    p->key_column = head / c.sharing * c.head_dim;
    p->value_column = head / c.sharing * c.value_dim;
    p->out_column = head * c.value_dim;
    p->shift = c.bottom_right ? p->keys - p->length : 0;
    if (c.bias_query < 0) p->bias_at -= p->shift; /* by distance */
}

/* To the next head that reads the same keys. */
__device__ __forceinline__ void next_head(const call &c, place *p)
{
    p->head_row += c.total;
    p->bias_at += c.bias_head;
    p->column += c.head_dim;
    p->out_column += c.value_dim;
}

/* The same for all threads of the block. The tile may lie after the sequence's end. */
__device__ void find_place(const call &c, int64_t item, place *p)
{
    int group = (int)(item % c.groups);
    item /= c.groups;
    int tile = (int)(item % c.tiles);
    item /= c.tiles;
    int heads = c.heads / c.together;
    find_sequence(c, (int)(item / heads), (int)(item % heads) * c.together, p);
    p->first = tile * TILE;
    p->group_column = group * 2 * TILE;
}

__device__ __forceinline__ int tx() { return threadIdx.x % 16; }
__device__ __forceinline__ int ty() { return threadIdx.x / 16; }

/* Element of a query or a key of the sequence in the head's first column of m: of q or dq, of out or
 * dout, of k or dk, of v or dv. */
__device__ __forceinline__ int64_t query_at(const place &p, const mc_view &m, int query)
{
    return (p.row + query) * m.stride + p.column;
}
template <kind KIND>
__device__ __forceinline__ int64_t out_at(const place &p, const mc_view &m, int query)
{
    return (p.row + query) * m.stride + (KIND == ANY ? p.out_column : p.column);
}
template <kind KIND>
__device__ __forceinline__ int64_t key_at(const place &p, const mc_view &m, int key)
{
    return (p.key_row + key) * m.stride + (KIND == ANY ? p.key_column : p.column);
}
template <kind KIND>
__device__ __forceinline__ int64_t value_at(const place &p, const mc_view &m, int key)
{
    return (p.key_row + key) * m.stride + (KIND == ANY ? p.value_column : p.column);
}
template <kind KIND> __device__ __forceinline__ int value_dim(const call &c)
{
    return KIND == ANY ? c.value_dim : c.head_dim;
}

/* to[column][row] = m for TILE rows and DEPTH columns, of which rows skip .. rows - 1 and `columns`
 * are there; the rest becomes 0. */
__device__ void load_transposed(const mc_view &m, int64_t at, int skip, int rows, int columns,
                                float *to)
{
    for (int i = threadIdx.x; i < TILE * DEPTH / CHUNK; i += THREADS) {
        int row = i / (DEPTH / CHUNK), column = i % (DEPTH / CHUNK) * CHUNK;
        int n = row >= skip && row < rows ? min(columns - column, CHUNK) : 0;
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

/* x[i][j] += the sum over k of a[k][4 ty + i] b[k][4 tx + j]. Summed in an array of its own: a C++
 * compiler (tests/cuda_sim) stores x at each step, as a or b might be part of it. */
template <int COUNT>
__device__ __forceinline__ void add_products(const float *a, const float *b, float (&x)[4][4])
{
    float sum[4][4];
    memcpy(sum, x, sizeof sum);
#pragma unroll 8
    for (int k = 0; k < COUNT; k++) {
        float4 p = *(const float4 *)(a + k * PITCH + 4 * ty());
        float4 q = *(const float4 *)(b + k * PITCH + 4 * tx());
        const float ps[4] = {p.x, p.y, p.z, p.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] = fmaf(ps[i], qs[j], sum[i][j]);
    }
    memcpy(x, sum, sizeof sum);
}

/* x = a b^T for a tile of rows of each over the head's columns; a's first a_skip rows are zeros.
 * Begins with a barrier; `work` (a tile) is still being read when a thread comes back. */
__device__ void dot_products(const mc_view &a, int64_t a_at, int a_skip, int a_rows,
                             const mc_view &b, int64_t b_at, int b_rows, int head_dim, float *work,
                             float (&x)[4][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) x[i][j] = 0.0f;
    for (int column = 0; column < head_dim; column += DEPTH) {
        __syncthreads();
        load_transposed(a, a_at + column, a_skip, a_rows, head_dim - column, work);
        load_transposed(b, b_at + column, 0, b_rows, head_dim - column, work + DEPTH * PITCH);
        __syncthreads();
        add_products<DEPTH>(work, work + DEPTH * PITCH, x);
    }
}

/* result += weights^T m for a tile of `rows` rows of m, from the element `at` of a head of `dim` on,
 * and the group's columns; `weights` [row of m][row of result]. Barriers stand before and after the
 * loads. */
template <int COLUMNS>
__device__ void add_weighted(int dim, const place &p, const mc_view &m, int64_t at, int rows,
                             const float *weights, float *work, float (&result)[COLUMNS][4][4])
{
    at += p.group_column;
#pragma unroll
    for (int b = 0; b < COLUMNS; b++) {
        __syncthreads();
        load_tile(m, at + b * TILE, rows, dim - p.group_column - b * TILE, work);
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

/* Rows of the tile, of which `rows` are there, times a factor for each, into the group's columns of
 * m, from the element `at` of a head of `dim` on. */
template <int COLUMNS>
__device__ void put_result(int dim, const place &p, const mc_view &m, int64_t at, int rows,
                           float (&result)[COLUMNS][4][4], const float (&factor)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = 4 * ty() + i;
        if (row >= rows) continue;
#pragma unroll
        for (int b = 0; b < COLUMNS; b++) {
            int column = p.group_column + b * TILE + 4 * tx();
            if (column >= dim) continue;
            float x[CHUNK];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = result[b][i][j] * factor[i];
            mc_store<mc_mixed>(m, at + row * m.stride + column, min(dim - column, CHUNK), x);
        }
    }
}

template <kind KIND>
__device__ __forceinline__ bool is_seen(const call &c, const place &p, int query, int key)
{
    bool seen = query < p.length && key < p.keys && (KIND == ANY || !c.causal || key <= query) &&
                (!c.mask || c.mask[p.key_row + key]);
    if (KIND == ANY) {
        int ahead = key - query - p.shift;
        bool near = ahead < c.right && -ahead < c.left;
        seen = seen && query >= 0 && (near || c.globals);
        if (seen && c.globals) { /* mc_globals_see */
            int32_t g = c.globals[p.row + query];
            seen =
                g >= 0 && (g == 0) == c.global_queries && (near || c.globals[p.key_row + key] == 0);
        }
    }
    if (KIND == PLAIN || !c.marks || !seen) return seen;
    int32_t q = c.marks[p.row + query], k = c.marks[p.key_row + key];
    return ((q ^ k) & ~1) == 0 && ((k & 1) || (!(q & 1) && key <= query)); /* mc_marks_see */
}

/* How many keys some query before `end` may see, masked ones included. */
template <kind KIND>
__device__ __forceinline__ int keys_before(const call &c, const place &p, int end)
{
    if (KIND != ANY) return c.causal ? min(p.keys, end) : p.keys;
    return c.right == INT_MAX || c.globals ? p.keys
                                           : max(0, min(p.keys, end - 1 + p.shift + c.right));
}
/* The first tile of keys that a query from `first` on may see. */
template <kind KIND>
__device__ __forceinline__ int keys_from(const call &c, const place &p, int first)
{
    if (KIND != ANY || c.left == INT_MAX || c.globals) return 0;
    return max(0, first + p.shift + 1 - c.left) / TILE * TILE;
}
/* The first tile of queries that may see a key from p.first on, and the end of those that may see
 * one of its tile. */
template <kind KIND> __device__ __forceinline__ int queries_from(const call &c, const place &p)
{
    if (KIND != ANY) return c.causal ? p.first : 0;
    return c.right == INT_MAX || c.globals ? 0
                                           : max(0, p.first + 1 - c.right - p.shift) / TILE * TILE;
}
template <kind KIND> __device__ __forceinline__ int queries_before(const call &c, const place &p)
{
    if (KIND != ANY || c.left == INT_MAX || c.globals) return p.length;
    return min(p.length, p.first + TILE - 1 + c.left - p.shift);
}

/* Whether the tile of tokens from `first` on has a global one (not `global`: one that is not). */
__device__ __forceinline__ bool tile_has(const call &c, const place &p, int first, bool global)
{
    int token = first + (int)threadIdx.x;
    bool here = threadIdx.x < TILE && token >= 0 && token < p.length;
    return __syncthreads_or(here && (c.globals[p.row + token] == 0) == global);
}

/* Whether global tokens leave nothing of a tile of queries and keys. The same for all threads,
 * which pass a barrier. */
template <kind KIND>
__device__ __forceinline__ bool is_empty(const call &c, const place &p, int query, int key)
{
    if (KIND != ANY || !c.globals) return false;
    if (!tile_has(c, p, query, c.global_queries)) return true;
    int nearest = key - query; /* the tiles are as many tokens apart, less TILE - 1 */
    bool near = nearest - (TILE - 1) < c.right && -nearest - (TILE - 1) < c.left;
    return !near && !tile_has(c, p, key, true);
}

/* What is added to the scores of four keys of one query, `key` a multiple of 4. */
template <kind KIND>
__device__ __forceinline__ void load_bias(const call &c, const place &p, int query, int key,
                                          float (&b)[4])
{
    bool there = KIND != PLAIN && c.bias.data && (KIND != ANY || query >= 0) && query < p.length;
    int n = there ? min(p.keys - key, 4) : 0;
    mc_load<mc_mixed>(c.bias, p.bias_at + query * c.bias_query + key, n, b);
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

template <int COLUMNS, kind KIND>
__device__ void forward_tile(const call &c, const place &p, float *work, float *weights)
{
    float result[COLUMNS][4][4] = {}, largest[4], sum[4] = {}, x[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) largest[i] = -INFINITY;
    int end = keys_before<KIND>(c, p, p.first + TILE), queries = p.length - p.first;
    for (int key = keys_from<KIND>(c, p, p.first); key < end; key += TILE) {
        if (is_empty<KIND>(c, p, p.first, key)) continue;
        dot_products(c.q, query_at(p, c.q, p.first), 0, queries, c.k, key_at<KIND>(p, c.k, key),
                     p.keys - key, c.head_dim, work, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int query = p.first + 4 * ty() + i, at = key + 4 * tx();
            float bias[4];
            load_bias<KIND>(c, p, query, at, bias);
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[i][j] =
                    is_seen<KIND>(c, p, query, at + j) ? x[i][j] * c.scale + bias[j] : -INFINITY;
            float factor = join_row(x[i], &largest[i], &sum[i]);
#pragma unroll
            for (int b = 0; b < COLUMNS; b++)
#pragma unroll
                for (int j = 0; j < 4; j++) result[b][i][j] *= factor;
            drop(c, p, query, at, x[i]);
        }
        put_transposed(x, weights);
        add_weighted<COLUMNS>(value_dim<KIND>(c), p, c.v, value_at<KIND>(p, c.v, key), p.keys - key,
                              weights, work, result);
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
    put_result<COLUMNS>(value_dim<KIND>(c), p, c.out, out_at<KIND>(p, c.out, p.first), queries,
                        result, inverse);
}

template <int COLUMNS, kind KIND>
__global__ void __launch_bounds__(THREADS, COLUMNS == 1 && KIND == PLAIN ? 3 : 2)
    forward(const __grid_constant__ call c)
{
    __shared__ __align__(16) float work[TILE * PITCH], weights[TILE * PITCH];
    place p;
    for (int64_t item = blockIdx.x; item < c.items; item += gridDim.x) {
        find_place(c, item, &p);
        if (p.first < p.length) forward_tile<COLUMNS, KIND>(c, p, work, weights);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* delta = the sum over value_dim of out * dout. One warp for each (row, head). */
__global__ void __launch_bounds__(THREADS) find_delta(const __grid_constant__ call c)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (i >= c.total * c.heads) return;
    int64_t row = i / c.heads;
    int head = (int)(i % c.heads);
    int64_t out_at = row * c.out.stride + (int64_t)head * c.value_dim;
    int64_t dout_at = row * c.dout.stride + (int64_t)head * c.value_dim;
    float sum = 0.0f;
    for (int column = threadIdx.x % 32 * CHUNK; column < c.value_dim; column += 32 * CHUNK) {
        float x[CHUNK], dx[CHUNK];
        mc_load<mc_mixed>(c.out, out_at + column, min(c.value_dim - column, CHUNK), x);
        mc_load<mc_mixed>(c.dout, dout_at + column, min(c.value_dim - column, CHUNK), dx);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sum = fmaf(x[j], dx[j], sum);
    }
    sum = mc_warp_sum(sum);
    if (threadIdx.x % 32 == 0) c.delta[head * c.total + row] = sum;
}

/* The probability of a score, which is a product yet. */
template <kind KIND>
__device__ __forceinline__ float probability(const call &c, const place &p, int query, int key,
                                             float product, float bias, float log_sum)
{
    return is_seen<KIND>(c, p, query, key) ? expf(product * c.scale + bias - log_sum) : 0.0f;
}

__device__ __forceinline__ float of_query(const float *values, const place &p, int query)
{
    return (unsigned)query < (unsigned)p.length ? values[p.head_row + query] : 0.0f;
}

/* dk and dv of the tile's keys over one tile of queries. x[i][j] is key i, query j. */
template <int COLUMNS, kind KIND>
__device__ void add_key_gradients(const call &c, const place &p, int first_query, float *work,
                                  float *weights, float (&dk)[COLUMNS][4][4],
                                  float (&dv)[COLUMNS][4][4])
{
    float x[4][4], factor[4][4], dx[4][4];
    int key = p.first + 4 * ty(), query = first_query + 4 * tx();
    int keys = p.keys - p.first, queries = p.length - first_query;
    int64_t dout_at = out_at<KIND>(p, c.dout, first_query);
    int64_t q_at = query_at(p, c.q, first_query);
    dot_products(c.k, key_at<KIND>(p, c.k, p.first), 0, keys, c.q, q_at, queries, c.head_dim, work,
                 x);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float log_sum = of_query(c.log_sum_exp, p, query + j), f[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        float bias[4];
        drop(c, p, query + j, key, f);
        load_bias<KIND>(c, p, query + j, key, bias);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i][j] = probability<KIND>(c, p, query + j, key + i, x[i][j], bias[i], log_sum);
            factor[i][j] = f[i];
            dx[i][j] = x[i][j] * f[i];
        }
    }
    put_transposed(dx, weights);
    add_weighted<COLUMNS>(value_dim<KIND>(c), p, c.dout, dout_at, queries, weights, work, dv);
    dot_products(c.v, value_at<KIND>(p, c.v, p.first), 0, keys, c.dout, dout_at, queries,
                 value_dim<KIND>(c), work, dx);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float delta = of_query(c.delta, p, query + j);
#pragma unroll
        for (int i = 0; i < 4; i++) dx[i][j] = x[i][j] * (dx[i][j] * factor[i][j] - delta);
    }
    put_transposed(dx, weights);
    add_weighted<COLUMNS>(c.head_dim, p, c.q, q_at, queries, weights, work, dk);
}

template <int COLUMNS, kind KIND>
__global__ void __launch_bounds__(THREADS) backward_keys(const __grid_constant__ call c)
{
    __shared__ __align__(16) float work[TILE * PITCH], weights[TILE * PITCH];
    const float scale[4] = {c.scale, c.scale, c.scale, c.scale}, one[4] = {1, 1, 1, 1};
    place p;
    for (int64_t item = blockIdx.x; item < c.items; item += gridDim.x) {
        find_place(c, item, &p);
        int keys = p.keys - p.first;
        if (keys <= 0) continue;
        float dk[COLUMNS][4][4] = {}, dv[COLUMNS][4][4] = {};
        for (int i = 0; i < (KIND == ANY ? c.together : 1); i++) {
            if (i) next_head(c, &p);
            int end = queries_before<KIND>(c, p);
            for (int query = queries_from<KIND>(c, p); query < end; query += TILE)
                if (!is_empty<KIND>(c, p, query, p.first))
                    add_key_gradients<COLUMNS, KIND>(c, p, query, work, weights, dk, dv);
        }
        put_result<COLUMNS>(c.head_dim, p, c.dk, key_at<KIND>(p, c.dk, p.first), keys, dk, scale);
        put_result<COLUMNS>(value_dim<KIND>(c), p, c.dv, value_at<KIND>(p, c.dv, p.first), keys, dv,
                            one);
    }
}

/* x = the gradients of the scores of a tile. x[i][j] is query i, key j. */
template <kind KIND>
__device__ void score_gradients(const call &c, const place &p, int first_query, int first_key,
                                float *work, float (&x)[4][4])
{
    float dx[4][4];
    int query = first_query + 4 * ty(), key = first_key + 4 * tx();
    int queries = p.length - first_query, keys = p.keys - first_key;
    int skip = KIND == ANY ? -first_query : 0; /* a tile may begin before the first query */
    dot_products(c.q, query_at(p, c.q, first_query), skip, queries, c.k,
                 key_at<KIND>(p, c.k, first_key), keys, c.head_dim, work, x);
    dot_products(c.dout, out_at<KIND>(p, c.dout, first_query), skip, queries, c.v,
                 value_at<KIND>(p, c.v, first_key), keys, value_dim<KIND>(c), work, dx);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float log_sum = of_query(c.log_sum_exp, p, query + i), bias[4];
        float delta = of_query(c.delta, p, query + i);
        drop(c, p, query + i, key, dx[i]);
        load_bias<KIND>(c, p, query + i, key, bias);
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[i][j] = probability<KIND>(c, p, query + i, key + j, x[i][j], bias[j], log_sum) *
                      (dx[i][j] - delta);
    }
}

/* dq of the tile's queries over one tile of keys. */
template <int COLUMNS, kind KIND>
__device__ void add_query_gradients(const call &c, const place &p, int first_key, float *work,
                                    float *weights, float (&dq)[COLUMNS][4][4])
{
    float x[4][4];
    score_gradients<KIND>(c, p, p.first, first_key, work, x);
    put_transposed(x, weights);
    add_weighted<COLUMNS>(c.head_dim, p, c.k, key_at<KIND>(p, c.k, first_key), p.keys - first_key,
                          weights, work, dq);
}

template <int COLUMNS, kind KIND>
__global__ void __launch_bounds__(THREADS, 2) backward_queries(const __grid_constant__ call c)
{
    __shared__ __align__(16) float work[TILE * PITCH], weights[TILE * PITCH];
    const float scale[4] = {c.scale, c.scale, c.scale, c.scale};
    place p;
    for (int64_t item = blockIdx.x; item < c.items; item += gridDim.x) {
        find_place(c, item, &p);
        int queries = p.length - p.first, end = keys_before<KIND>(c, p, p.first + TILE);
        if (queries <= 0) continue;
        float dq[COLUMNS][4][4] = {};
        for (int key = keys_from<KIND>(c, p, p.first); key < end; key += TILE)
            if (!is_empty<KIND>(c, p, p.first, key))
                add_query_gradients<COLUMNS, KIND>(c, p, key, work, weights, dq);
        put_result<COLUMNS>(c.head_dim, p, c.dq, query_at(p, c.dq, p.first), queries, dq, scale);
    }
}

/* The gradient of a bias (heads * rows, columns), or parts of it, one after the other, that are
 * sums over equal shares of the sequences. */
struct bias_gradient {
    float *data;
    int64_t rows, columns, items; /* items: (part, head, tile of rows, tile of columns) */
    int parts, row_tiles, column_tiles;
};

/* Adds a tile's gradients up over one share of the sequences, in order. */
__device__ void add_bias_gradients(const call &c, const bias_gradient &b, int part, int head,
                                   int first_query, int first_key, float *work, float (&sum)[4][4])
{
    int share = (c.count + b.parts - 1) / b.parts, end = min(c.count, (part + 1) * share);
    for (int sequence = part * share; sequence < end; sequence++) {
        place p;
        float x[4][4];
        find_sequence(c, sequence, head, &p);
        if (first_query >= p.length || first_key < keys_from<ANY>(c, p, first_query) ||
            first_key >= keys_before<ANY>(c, p, first_query + TILE))
            continue;
        score_gradients<ANY>(c, p, first_query, first_key, work, x);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] += x[i][j];
    }
}

/* One part is added to what is there; of several each is written. */
__global__ void __launch_bounds__(THREADS)
    backward_bias(const __grid_constant__ call c, const __grid_constant__ bias_gradient b)
{
    __shared__ __align__(16) float work[TILE * PITCH];
    for (int64_t item = blockIdx.x; item < b.items; item += gridDim.x) {
        int first_key = (int)(item % b.column_tiles) * TILE;
        int64_t rest = item / b.column_tiles;
        int first_query = (int)(rest % b.row_tiles) * TILE;
        rest /= b.row_tiles;
        int head = (int)(rest % c.heads), part = (int)(rest / c.heads);
        float sum[4][4] = {};
        add_bias_gradients(c, b, part, head, first_query, first_key, work, sum);
        float *to = b.data + (rest * b.rows + first_query + 4 * ty()) * b.columns;
        for (int i = 0; i < 4 && first_query + 4 * ty() + i < b.rows; i++, to += b.columns)
            for (int j = 0; j < 4; j++) {
                int64_t key = first_key + 4 * tx() + j;
                if (key < b.columns) to[key] = b.parts > 1 ? sum[i][j] : to[key] + sum[i][j];
            }
    }
}

/* The gradient of a bias by distance: (heads, 2 * limit - 1), `copies` of them one after the other:
 * of each part of the sequences one for tiles an even number of tiles off the diagonal and one for
 * the others, so that the distances of two blocks do not meet. The outermost diagonals have no
 * tiles: with them each copy is written whole. */
struct distance_gradient {
    float *data;
    int64_t limit, items; /* items: (part, head, diagonal of tiles) */
    int parts, diagonals; /* as many on either side of the middle one */
};

/* x[i][j], of query 4 ty + i and key 4 tx + j of a tile, to the sums along its diagonals: `work` (a
 * tile) becomes the tile, then thread d adds up distance d - TILE, the first of which is 0. */
__device__ float sum_diagonal(const float (&x)[4][4], float *work)
{
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) work[(4 * ty() + i) * PITCH + 4 * tx() + j] = x[i][j];
    __syncthreads();
    int distance = (int)threadIdx.x - TILE;
    float sum = 0.0f;
    if (distance < TILE)
        for (int i = max(0, -distance); i < min(TILE, TILE - distance); i++)
            sum += work[i * PITCH + i + distance];
    return sum;
}

/* All tiles (where queries stand, key) of one diagonal, which have the same distances at the same
 * places. */
__device__ void add_distance_gradients(const call &c, const distance_gradient &b, int part,
                                       int head, int diagonal, float *work, float (&sum)[4][4])
{
    int share = (c.count + b.parts - 1) / b.parts, end = min(c.count, (part + 1) * share);
    for (int sequence = part * share; sequence < end; sequence++) {
        place p;
        find_sequence(c, sequence, head, &p);
        int before = p.shift < 0 ? (TILE - 1 - p.shift) / TILE : -(p.shift / TILE);
        for (int tile = max(-before, -diagonal); tile * TILE < p.length + p.shift; tile++) {
            float x[4][4];
            int query = tile * TILE - p.shift, key = (tile + diagonal) * TILE;
            if (key >= keys_before<ANY>(c, p, query + TILE)) break;
            score_gradients<ANY>(c, p, query, key, work, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += x[i][j];
        }
    }
}

__global__ void __launch_bounds__(THREADS)
    backward_distances(const __grid_constant__ call c, const __grid_constant__ distance_gradient b)
{
    __shared__ __align__(16) float work[TILE * PITCH];
    for (int64_t item = blockIdx.x; item < b.items; item += gridDim.x) {
        int diagonal = (int)(item % b.diagonals) - b.diagonals / 2;
        int64_t rest = item / b.diagonals;
        int head = (int)(rest % c.heads), part = (int)(rest / c.heads);
        float x[4][4] = {};
        add_distance_gradients(c, b, part, head, diagonal, work, x);
        float sum = sum_diagonal(x, work);
        int64_t distance = (int64_t)diagonal * TILE + (int)threadIdx.x - TILE;
        int64_t copy = 2 * part + (diagonal & 1), size = 2 * b.limit - 1;
        if (threadIdx.x < 2 * TILE && distance > -b.limit && distance < b.limit)
            b.data[(copy * c.heads + head) * size + b.limit - 1 + distance] = sum;
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

packing packing_of(const mc_lengths *lengths, const int32_t *on_device)
{
    return {on_device, on_device + lengths->count};
}

/* Heads whose size is no multiple of a chunk begin at columns that are not aligned. */
mc_view view_of(mc_matrix m, const mc_lengths *lengths, const mc_attention_shape *s)
{
    mc_view v = mc_view_of(m, lengths->total, CHUNK);
    v.whole = v.whole && s->head_dim % CHUNK == 0 && mc_value_dim(s) % CHUNK == 0;
    return v;
}

call call_of(const mc_attention_call *a)
{
    const mc_attention_shape *s = a->shape;
    const mc_lengths *keys = mc_key_lengths(s);
    call c = {};
    c.q = view_of(a->q, s->lengths, s);
    c.k = view_of(a->k, keys, s);
    c.v = view_of(a->v, keys, s);
    c.out = view_of(a->out, s->lengths, s);
    c.log_sum_exp = (float *)a->log_sum_exp;
    c.queries = packing_of(s->lengths, s->device_lengths);
    c.keys = packing_of(keys, s->key_lengths ? s->device_key_lengths : s->device_lengths);
    c.count = s->lengths->count;
    c.heads = s->heads;
    c.head_dim = s->head_dim;
    c.value_dim = mc_value_dim(s);
    c.sharing = s->heads / mc_key_heads(s);
    c.groups = (int)mc_ceil_div(mc_most(c.head_dim, c.value_dim), 2 * TILE);
    c.total = s->lengths->total;
    c.row_words = mc_ceil_div(keys->longest, 4) * 4;
    c.scale = s->scale;
    c.causal = s->causal;
    c.bottom_right = s->bottom_right;
    const int far = 1 << 30; /* no sequence is as long, and places are added to it */
    c.left = s->window_left ? (int)mc_least(s->window_left, far) : INT_MAX;
    c.right = s->causal ? 1 : s->window_right ? (int)mc_least(s->window_right, far) : INT_MAX;
    c.mask = s->key_mask;
    c.dropping = mc_dropping_of(s->dropout);
    c.marks = s->marks;
    c.globals = s->globals;
    c.global_queries = s->global_queries;
    const mc_score_bias bias = mc_score_bias_of(s);
    c.bias = mc_view_of(bias.values, 2, CHUNK);
    c.bias.whole =
        c.bias.whole && bias.query_step % CHUNK == 0; /* by distance: rows lie anywhere */
    c.bias_first = bias.first;
    c.bias_head = bias.head_step;
    c.bias_query = bias.query_step;
    return c;
}

/* A kernel of each kind for groups of one tile of columns and of two. */
struct versions {
    void (*kernel[2][ANY + 1])(call);
};

kind kind_of(const call &c, const mc_attention_shape *s)
{
    return mc_attention_needs(s) ? ANY : c.bias.data || c.marks ? BIASED : PLAIN;
}

/* Runs the version that serves the case over the tiles of queries or of keys, for so many heads
 * together. */
void launch(mc_device *d, call c, const mc_attention_shape *s, const mc_lengths *lengths,
            int together, versions v)
{
    c.tiles = (int)mc_ceil_div(lengths->longest, TILE);
    c.together = together;
    c.items = (int64_t)c.count * (c.heads / together) * c.tiles * c.groups;
    if (c.items == 0) return;
    unsigned blocks = (unsigned)mc_least(c.items, INT32_MAX);
    bool wide = mc_most(c.head_dim, c.value_dim) > TILE;
    auto kernel = v.kernel[wide][kind_of(c, s)];
    kernel<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(c);
}

/* Where the bias has too few tiles for the GPU, the sequences are dealt out too. */
mc_status launch_bias(mc_device *d, const call &c, const mc_attention_shape *s)
{
    bias_gradient b = {s->dbias, s->bias_rows, s->bias.stride, 0, 1, 0, 0};
    int64_t size = c.heads * b.rows * b.columns;
    if (s->position_bias || !s->dbias || size == 0 || c.total == 0) return MC_OK;
    b.row_tiles = (int)mc_ceil_div(b.rows, TILE);
    b.column_tiles = (int)mc_ceil_div(b.columns, TILE);
    int64_t tiles = (int64_t)c.heads * b.row_tiles * b.column_tiles;
    int64_t wanted = mc_ceil_div((int64_t)mc_cuda_of(d)->multiprocessors * 4, tiles);
    b.parts = (int)mc_least(wanted, c.count);
    b.items = tiles * b.parts;
    size_t bytes = (size_t)(b.parts * size) * sizeof(float);
    if (b.parts > 1 && !(b.data = (float *)d->alloc(d, bytes))) return MC_ERR_NOMEM;
    unsigned blocks = (unsigned)mc_least(b.items, INT32_MAX);
    backward_bias<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(c, b);
    if (b.parts == 1) return MC_OK;
    mc_add_partials(d, b.data, b.parts, size, {1, {s->dbias}});
    d->free(d, b.data, bytes);
    return MC_OK;
}

/* Each block writes its own sums, which are then added up in their order. */
mc_status launch_distances(mc_device *d, const call &c, const mc_attention_shape *s)
{
    distance_gradient b = {NULL, s->position_limit, 0, 1, 0};
    if (!s->position_bias || !s->dposition_bias || c.heads == 0 || c.total == 0) return MC_OK;
    b.diagonals = 2 * (int)mc_ceil_div(b.limit, TILE) + 1;
    int64_t tasks = (int64_t)c.heads * b.diagonals, size = c.heads * (2 * b.limit - 1);
    int64_t wanted = mc_ceil_div((int64_t)mc_cuda_of(d)->multiprocessors * 4, tasks);
    b.parts = (int)mc_least(wanted, c.count);
    b.items = tasks * b.parts;
    size_t bytes = (size_t)(2 * b.parts * size) * sizeof(float);
    if (!(b.data = (float *)d->alloc(d, bytes))) return MC_ERR_NOMEM;
    unsigned blocks = (unsigned)mc_least(b.items, INT32_MAX);
    backward_distances<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(c, b);
    mc_add_partials(d, b.data, 2 * b.parts, size, {1, {s->dposition_bias}});
    d->free(d, b.data, bytes);
    return MC_OK;
}

} // namespace

extern "C" mc_status mc_portable_attention(mc_device *d, const void *asked)
{
    const mc_attention_call *a = (const mc_attention_call *)asked;
    launch(d, call_of(a), a->shape, a->shape->lengths, 1,
           {{{forward<1, PLAIN>, forward<1, BIASED>, forward<1, ANY>},
             {forward<2, PLAIN>, forward<2, BIASED>, forward<2, ANY>}}});
    return mc_cuda_launched(d, "attention");
}

extern "C" mc_status mc_portable_attention_backward(mc_device *d, const void *asked)
{
    const mc_attention_call *a = (const mc_attention_call *)asked;
    const mc_attention_shape *shape = a->shape;
    const mc_lengths *queries = shape->lengths, *keys = mc_key_lengths(shape);
    call c = call_of(a);
    size_t bytes = (size_t)(c.heads * c.total) * sizeof(float);
    if (bytes && !(c.delta = (float *)d->alloc(d, bytes))) return MC_ERR_NOMEM;
    c.dout = view_of(a->dout, queries, shape);
    c.dq = view_of(a->dq, queries, shape);
    c.dk = view_of(a->dk, keys, shape);
    c.dv = view_of(a->dv, keys, shape);
    unsigned blocks = (unsigned)mc_ceil_div(c.total * c.heads, THREADS / 32);
    if (blocks) find_delta<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(c);
    launch(d, c, shape, keys, c.sharing,
           {{{backward_keys<1, PLAIN>, backward_keys<1, BIASED>, backward_keys<1, ANY>},
             {backward_keys<2, PLAIN>, backward_keys<2, BIASED>, backward_keys<2, ANY>}}});
    launch(d, c, shape, queries, 1,
           {{{backward_queries<1, PLAIN>, backward_queries<1, BIASED>, backward_queries<1, ANY>},
             {backward_queries<2, PLAIN>, backward_queries<2, BIASED>, backward_queries<2, ANY>}}});
    mc_status status = launch_bias(d, c, shape);
    if (!status) status = launch_distances(d, c, shape);
    if (bytes) d->free(d, c.delta, bytes); /* what comes later on the stream may have it */
    return status ? status : mc_cuda_launched(d, "attention_backward");
}

/* ---- tails ----------------------------------------------------------------------------------- */

namespace
{

constexpr int MATRICES = 3;

/* Matrices whose rows from *tokens to `capacity` become 0. */
struct tails {
    mc_view y[MATRICES];
    const int32_t *tokens[MATRICES]; /* in device memory */
    int64_t capacity[MATRICES], columns[MATRICES];
};

/* blockIdx.y: which matrix. */
__global__ void __launch_bounds__(THREADS) zero_tails(const __grid_constant__ tails t)
{
    const int m = blockIdx.y;
    int64_t per_row = (t.columns[m] + CHUNK - 1) / CHUNK, first = *t.tokens[m];
    int64_t chunks = (t.capacity[m] - first) * per_row;
    const float zeros[CHUNK] = {};
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < chunks;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t column = i % per_row * CHUNK;
        int n = (int)(t.columns[m] - column < CHUNK ? t.columns[m] - column : CHUNK);
        mc_store<mc_mixed>(t.y[m], (first + i / per_row) * t.y[m].stride + column, n, zeros);
    }
}

/* Whether there may be rows after the last token. */
bool has_tail(const mc_lengths *lengths)
{
    return lengths->fixed || lengths->capacity > lengths->total;
}

} // namespace

/* The launch is the same whatever the lengths, for it may be recorded. */
extern "C" mc_status mc_sdpa_zero_tails(mc_device *d, const mc_attention_shape *s, int count,
                                        const mc_matrix *y)
{
    const mc_lengths *keys = mc_key_lengths(s);
    if (!has_tail(s->lengths) && (count == 1 || !has_tail(keys))) return MC_OK;
    if (mc_cuda_is_planning(d)) return MC_OK;
    const int64_t heads = s->heads, key_heads = mc_key_heads(s), dim = s->head_dim;
    const int64_t values = mc_value_dim(s);
    tails t = {
        {}, {}, {}, {heads * (count == 1 ? values : dim), key_heads * dim, key_heads * values}};
    int64_t chunks = 0;
    for (int i = 0; i < count; i++) {
        const mc_lengths *l = i ? keys : s->lengths;
        const int32_t *on_device = i && s->key_lengths ? s->device_key_lengths : s->device_lengths;
        t.y[i] = mc_view_of(y[i], l->capacity, CHUNK);
        t.tokens[i] = on_device + 2 * l->count;
        t.capacity[i] = l->capacity;
        chunks = mc_most(chunks, l->capacity * mc_ceil_div(t.columns[i], CHUNK));
    }
    unsigned most = (unsigned)mc_cuda_of(d)->multiprocessors * 2;
    dim3 grid((unsigned)mc_least(mc_ceil_div(chunks, THREADS), most), (unsigned)count);
    if (grid.x) zero_tails<<<grid, THREADS, 0, mc_cuda_of(d)->stream>>>(t);
    return mc_cuda_launched(d, "attention's tail");
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
    in.q_starts[i] = row * in.q_stride;
    in.out_starts[i] = row * in.out_stride;
    in.stats_starts[i] = row * in.heads;
    if (!in.key_lengths) return;
    if (i < in.batch) in.key_lengths[i] = i < in.count ? in.device_key_lengths[i] : 0;
    in.kv_starts[i] = in.device_key_lengths[in.count + min(i, in.count)] * in.kv_stride;
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
