/* Attention of one new token a sequence over cached keys and values. What takes time is reading the
 * cache, so the keys of a sequence are split into parts, one block for each (sequence, head, part);
 * where there are several, a second kernel joins their softmaxes. */
#include <cmath>
#include "core/device/cuda/kernels.cuh"

namespace
{

constexpr int PART = 256; /* keys of a block */
constexpr int THREADS = 128;
constexpr int CHUNK = mc_width<mc_mixed>;

struct call {
    const int32_t *lengths, *first_rows;
    const float *bias; /* (heads, 2 * limit - 1); NULL: none */
    int64_t limit;
    int heads, head_dim, parts, lanes; /* lanes: threads that share a key, a power of two <= 32 */
    int64_t items, capacity;           /* items: (sequence, head, part) */
    float scale;
    mc_view q, k, v, out;
    float *results, *largest, *sums; /* of parts: (items, head_dim), (items), (items) */
};

/* Part of the keys of one sequence, as one head sees them. */
struct place {
    int64_t sequence, key_row; /* key_row: the row of the part's first key */
    int column, keys;          /* keys of the part: 0 behind the sequence's end */
    const float *bias;         /* of the part's first key; NULL: none */
};

__device__ place place_of(const call &c, int64_t item)
{
    int part = (int)(item % c.parts), head = (int)(item / c.parts % c.heads);
    place p;
    p.sequence = item / c.parts / c.heads;
    int length = c.lengths[p.sequence];
    p.key_row =
        (c.first_rows ? c.first_rows[p.sequence] : p.sequence * c.capacity) + (int64_t)part * PART;
    p.column = head * c.head_dim;
    p.keys = max(0, min(PART, length - part * PART));
    p.bias = c.bias ? c.bias + head * (2 * c.limit - 1) + c.limit - length + part * PART : NULL;
    return p;
}

/* Over the threads that share a key, or with `lanes` = 32 over a warp. */
__device__ __forceinline__ float lane_sum(float x, int lanes)
{
    for (int lane = lanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

__device__ void find_scores(const call &c, const place &p, float *scores)
{
    int lane = threadIdx.x % c.lanes, step = THREADS / c.lanes;
    int64_t q_at = p.sequence * c.q.stride + p.column;
    for (int first = 0; first < p.keys; first += step) {
        int key = first + (int)threadIdx.x / c.lanes;
        int64_t k_at = (p.key_row + key) * c.k.stride + p.column;
        float sum = 0.0f;
        for (int i = lane * CHUNK; i < c.head_dim && key < p.keys; i += c.lanes * CHUNK) {
            float x[CHUNK], y[CHUNK];
            mc_load<mc_mixed>(c.q, q_at + i, min(c.head_dim - i, CHUNK), x);
            mc_load<mc_mixed>(c.k, k_at + i, min(c.head_dim - i, CHUNK), y);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) sum = fmaf(x[j], y[j], sum);
        }
        sum = lane_sum(sum, c.lanes);
        if (lane == 0 && key < p.keys) scores[key] = sum * c.scale + (p.bias ? p.bias[key] : 0.0f);
    }
}

/* Scores become e^(score - largest); gives their sum. `shared` holds 2 values a warp. */
__device__ float exponentiate(const place &p, float *scores, float *shared, float *largest)
{
    float most = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < p.keys; i += THREADS) most = fmaxf(most, scores[i]);
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lane));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) most = fmaxf(most, shared[i]);
    for (int i = threadIdx.x; i < p.keys; i += THREADS) {
        scores[i] = expf(scores[i] - most);
        sum += scores[i];
    }
    *largest = most;
    return mc_block_sum(sum, shared + THREADS / 32);
}

/* The weighted sum of values for CHUNK columns from i on, over the block: complete in the threads
 * below `lanes`. `shared` holds CHUNK values a thread. */
__device__ void sum_values(const call &c, const place &p, const float *scores, int i, float *shared,
                           float (&result)[CHUNK])
{
    int n = max(0, min(c.head_dim - i, CHUNK)), step = THREADS / c.lanes;
#pragma unroll
    for (int j = 0; j < CHUNK; j++) result[j] = 0.0f;
    for (int key = threadIdx.x / c.lanes; key < p.keys; key += step) {
        float x[CHUNK];
        mc_load<mc_mixed>(c.v, (p.key_row + key) * c.v.stride + p.column + i, n, x);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) result[j] = fmaf(scores[key], x[j], result[j]);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < CHUNK; j++) shared[j * THREADS + threadIdx.x] = result[j];
    __syncthreads();
    if (threadIdx.x >= c.lanes) return;
    for (int other = threadIdx.x + c.lanes; other < THREADS; other += c.lanes)
#pragma unroll
        for (int j = 0; j < CHUNK; j++) result[j] += shared[j * THREADS + other];
}

__device__ void store_part(const call &c, int64_t item, int i, const float (&result)[CHUNK])
{
#pragma unroll
    for (int j = 0; j < CHUNK; j++)
        if (i + j < c.head_dim) c.results[item * c.head_dim + i + j] = result[j];
}

__global__ void __launch_bounds__(THREADS) attend(const __grid_constant__ call c)
{
    __shared__ float scores[PART], shared[CHUNK * THREADS];
    int64_t item = blockIdx.x;
    place p = place_of(c, item);
    find_scores(c, p, scores);
    __syncthreads();
    float most, sum = exponentiate(p, scores, shared, &most);
    if (c.parts > 1 && threadIdx.x == 0) {
        c.largest[item] = most;
        c.sums[item] = sum;
    }
    float inverse = c.parts > 1 ? 1.0f : sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int first = 0; first < c.head_dim; first += c.lanes * CHUNK) {
        int i = first + (int)threadIdx.x % c.lanes * CHUNK;
        float result[CHUNK];
        sum_values(c, p, scores, i, shared, result);
        if (threadIdx.x >= c.lanes || i >= c.head_dim) continue;
#pragma unroll
        for (int j = 0; j < CHUNK; j++) result[j] *= inverse;
        if (c.parts > 1)
            store_part(c, item, i, result);
        else
            mc_store<mc_mixed>(c.out, p.sequence * c.out.stride + p.column + i,
                               min(c.head_dim - i, CHUNK), result);
    }
}

/* One block for each (sequence, head): the parts, each relative to its own largest score. */
__global__ void __launch_bounds__(THREADS) join(const __grid_constant__ call c)
{
    int64_t task = blockIdx.x, first = task * c.parts;
    float most = -INFINITY, sum = 0.0f;
    for (int part = 0; part < c.parts; part++) most = fmaxf(most, c.largest[first + part]);
    float base = most == -INFINITY ? 0.0f : most; /* no key at all */
    for (int part = 0; part < c.parts; part++)
        sum += c.sums[first + part] * expf(c.largest[first + part] - base);
    for (int i = threadIdx.x; i < c.head_dim; i += THREADS) {
        float x = 0.0f;
        for (int part = 0; part < c.parts; part++)
            x += c.results[(first + part) * c.head_dim + i] * expf(c.largest[first + part] - base);
        int64_t at = task / c.heads * c.out.stride + task % c.heads * c.head_dim + i;
        mc_store_one(c.out, at, sum == 0.0f ? 0.0f : x / sum);
    }
}

mc_view view_of(mc_matrix m, int64_t rows, int head_dim)
{
    mc_view v = mc_view_of(m, rows, CHUNK);
    v.whole = v.whole && head_dim % CHUNK == 0;
    return v;
}

} // namespace

extern "C" mc_status mc_cuda_attention_cached(mc_device *d, const mc_cached_attention *shape,
                                              mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out)
{
    int64_t tasks = shape->sequences * shape->heads;
    int head_dim = shape->head_dim;
    if (tasks == 0) return MC_OK;
    call c = {};
    c.lengths = shape->lengths;
    c.first_rows = shape->first;
    c.bias = shape->position_bias;
    c.limit = shape->position_limit;
    c.heads = shape->heads;
    c.head_dim = head_dim;
    c.parts = (int)mc_most(1, mc_ceil_div(shape->longest, PART));
    c.lanes = 1;
    while (c.lanes < 32 && c.lanes * CHUNK < head_dim) c.lanes *= 2;
    c.items = tasks * c.parts;
    c.capacity = shape->capacity;
    c.scale = shape->scale;
    c.q = view_of(q, shape->sequences, head_dim);
    c.k = view_of(k, 2, head_dim); /* how many rows there are is not known here */
    c.v = view_of(v, 2, head_dim);
    c.out = view_of(out, shape->sequences, head_dim);
    size_t bytes = c.parts > 1 ? (size_t)(c.items * (head_dim + 2)) * sizeof(float) : 0;
    float *scratch = bytes ? (float *)d->alloc(d, bytes) : NULL;
    if (bytes && !scratch) return MC_ERR_NOMEM;
    if (scratch) {
        c.results = scratch;
        c.largest = scratch + c.items * head_dim;
        c.sums = c.largest + c.items;
    }
    cudaStream_t stream = mc_cuda_of(d)->stream;
    attend<<<(unsigned)c.items, THREADS, 0, stream>>>(c);
    if (c.parts > 1) join<<<(unsigned)tasks, THREADS, 0, stream>>>(c);
    if (bytes) d->free(d, scratch, bytes); /* what comes later on the stream may have it */
    return mc_cuda_launched(d, "attention_cached");
}
