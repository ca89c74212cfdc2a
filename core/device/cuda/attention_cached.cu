/* Attention of one new token a sequence over cached keys and values. What takes time is reading the
 * cache, so where there are few sequences their keys are split into parts, one block for each
 * (sequence, head, part): into so many that the GPU is full, whatever the lengths, which the host
 * does not know. Groups of lanes take a key each, with a softmax of their own, and several under
 * way at once. The block of a (sequence, head) that ends last joins the parts.
 *
 * In a step of generation the kernels in front change nothing here but q and the new key and value:
 * lengths and the cache are those of the step before. So the first keys and values are under way
 * before the block waits for those kernels. */
#include <cmath>
#include "core/device/cuda/kernels.cuh"
#include "core/device/cuda/softmax.cuh"

namespace
{

/* Of a block: where there are few of them, and where there are more than run at once. */
constexpr int WARPS = 8, MOST_WARPS = 16, LEAST_WARPS = 4;
/* How many a multiprocessor has at once of blocks with so many warps. */
constexpr int blocks_of(int warps) { return warps == LEAST_WARPS ? 7 : warps == WARPS ? 3 : 1; }
constexpr int MOST_PARTS = 8, LEAST_PART = 128; /* keys */
constexpr int MOST_KEYS = 4;                    /* that a thread has under way */

struct call {
    const int32_t *lengths, *first_rows, *pages; /* pages: NULL without */
    const float *bias;                           /* (heads, 2 * limit - 1); NULL: none */
    int64_t limit;
    int heads, head_dim, parts, lanes; /* lanes: threads that share a key, a power of two <= 32 */
    int page_shift;
    int64_t capacity;
    float scale;
    mc_view q, k, v, new_k, new_v, out;
    float *results, *largest, *sums; /* of parts: (items, head_dim), (items), (items) */
    unsigned *arrivals;              /* blocks of each (sequence, head) that have ended */
};

/* Part of the keys of one sequence, as one head sees them. */
struct place {
    int64_t sequence, key_row; /* key_row: the row of the part's first key, without pages */
    int32_t pages, first;      /* with pages: where the sequence's begin; the part's first key */
    int column, keys;          /* keys of the part: 0 behind the sequence's end */
    int cached;                /* of these, all but the new token's, which is its sequence's last */
    const float *bias;         /* of the part's first key; NULL: none */
};

template <int THREADS> __device__ place place_of(const call &c, int64_t item)
{
    int part = (int)(item % c.parts), head = (int)(item / c.parts % c.heads),
        groups = THREADS / c.lanes;
    place p;
    p.sequence = item / c.parts / c.heads;
    int length = c.lengths[p.sequence];
    int share = (int)((length + c.parts - 1) / c.parts + groups - 1) / groups * groups;
    int first = part * share;
    int64_t begin = c.first_rows ? c.first_rows[p.sequence] : p.sequence * c.capacity;
    p.key_row = begin + first;
    p.pages = (int32_t)begin;
    p.first = first;
    p.column = head * c.head_dim;
    p.keys = max(0, min(share, length - first));
    bool last = c.new_k.data && p.keys > 0 && first + p.keys == length;
    p.cached = p.keys - last;
    p.bias = c.bias ? c.bias + head * (2 * c.limit - 1) + c.limit - length + first : NULL;
    return p;
}

/* The row of one of the part's keys. */
__device__ __forceinline__ int64_t row_of(const call &c, const place &p, int key)
{
    return c.pages ? mc_page_row(c.pages, c.page_shift, p.pages, p.first + key) : p.key_row + key;
}

/* Over the threads that share a key. */
__device__ __forceinline__ float lane_sum(float x, int lanes)
{
    for (int lane = lanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

/* Keys and values of the cache that a thread has under way: STRIP keys, PIECES chunks of each. */
template <class T, int PIECES, int THREADS> struct strip {
    static constexpr int WIDTH = mc_width<T>, STRIP = PIECES == 1 ? MOST_KEYS : PIECES == 2 ? 2 : 1;
    mc_bits k[STRIP][PIECES], v[STRIP][PIECES];
    int row[STRIP]; /* of the next to be fetched; -1: there is none */

    __device__ __forceinline__ int key_of(const call &c, int first, int t) const
    {
        return first + t * (THREADS / c.lanes) + (int)threadIdx.x / c.lanes;
    }
    __device__ __forceinline__ void go_to(const call &c, const place &p, int first)
    {
#pragma unroll
        for (int t = 0; t < STRIP; t++) {
            int key = key_of(c, first, t);
            row[t] = key < p.cached ? (int)row_of(c, p, key) : -1;
        }
    }
    __device__ __forceinline__ void fetch(const call &c, const place &p, const mc_view &from,
                                          mc_bits (&to)[STRIP][PIECES]) const
    {
#pragma unroll
        for (int t = 0; t < STRIP; t++)
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                int i = (j * c.lanes + (int)threadIdx.x % c.lanes) * WIDTH;
                int n = row[t] < 0 ? 0 : min(c.head_dim - i, WIDTH);
                to[t][j] = mc_load_bits<T>(from, row[t] * from.stride + p.column + i, n);
            }
    }
};

/* The score of the `key`th key of the part, k. */
template <class T, int PIECES>
__device__ __forceinline__ float score_of(const call &c, const place &p, int key,
                                          const mc_bits (&k)[PIECES],
                                          const float (&q)[PIECES][mc_width<T>])
{
    float y[mc_width<T>], sum = 0.0f;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        mc_unpack<T>(c.k, k[j], y);
#pragma unroll
        for (int e = 0; e < mc_width<T>; e++) sum = fmaf(q[j][e], y[e], sum);
    }
    sum = lane_sum(sum, c.lanes) * c.scale;
    return p.bias && key < p.keys ? sum + p.bias[key] : sum;
}

template <class T, int PIECES>
__device__ __forceinline__ void add_value(const call &c, float weight, const mc_bits (&v)[PIECES],
                                          mc_softmax<PIECES * mc_width<T>> &s)
{
    constexpr int WIDTH = mc_width<T>;
    float y[WIDTH];
    s.sum += weight;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        mc_unpack<T>(c.v, v[j], y);
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
            s.value[j * WIDTH + e] = fmaf(weight, y[e], s.value[j * WIDTH + e]);
    }
}

/* The new token's key and value go to the cache, and are the first that one group of lanes takes
 * in. */
template <class T, int PIECES>
__device__ __forceinline__ void attend_new(const call &c, const place &p,
                                           const float (&q)[PIECES][mc_width<T>],
                                           mc_softmax<PIECES * mc_width<T>> &s)
{
    const bool first = (int)threadIdx.x < c.lanes;
    const int64_t row = row_of(c, p, p.cached);
    mc_bits k[PIECES], v[PIECES];
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        int i = (j * c.lanes + (int)threadIdx.x % c.lanes) * mc_width<T>;
        int n = first ? min(c.head_dim - i, mc_width<T>) : 0;
        i += p.column;
        k[j] = mc_load_bits<T>(c.new_k, p.sequence * c.new_k.stride + i, n);
        v[j] = mc_load_bits<T>(c.new_v, p.sequence * c.new_v.stride + i, n);
        mc_store_bits<T>(c.k, row * c.k.stride + i, n, k[j]);
        mc_store_bits<T>(c.v, row * c.v.stride + i, n, v[j]);
    }
    float score = score_of<T, PIECES>(c, p, p.cached, k, q);
    if (!first) return;
    s.largest = score;
    add_value<T, PIECES>(c, 1.0f, v, s);
}

template <class T, int PIECES, int THREADS>
__device__ mc_softmax<PIECES * mc_width<T>> attend_keys(const call &c, const place &p)
{
    constexpr int WIDTH = mc_width<T>, STRIP = strip<T, PIECES, THREADS>::STRIP;
    const int step = THREADS / c.lanes * STRIP;
    mc_softmax<PIECES *WIDTH> s = {-INFINITY, 0.0f, {}};
    strip<T, PIECES, THREADS> x;
    float q[PIECES][WIDTH];
    x.go_to(c, p, 0);
    x.fetch(c, p, c.k, x.k);
    x.fetch(c, p, c.v, x.v);
    mc_let_next_begin();
    mc_wait_for_earlier();
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        int i = (j * c.lanes + (int)threadIdx.x % c.lanes) * WIDTH;
        mc_load<T>(c.q, p.sequence * c.q.stride + p.column + i, min(c.head_dim - i, WIDTH), q[j]);
    }
    if (p.cached < p.keys) attend_new<T, PIECES>(c, p, q, s);
    for (int first = 0; first < p.cached; first += step) {
        float score[STRIP], most = s.largest;
#pragma unroll
        for (int t = 0; t < STRIP; t++) {
            int key = x.key_of(c, first, t);
            score[t] = score_of<T, PIECES>(c, p, key, x.k[t], q);
            if (key >= p.cached) score[t] = -INFINITY;
            most = fmaxf(most, score[t]);
        }
        x.go_to(c, p, first + step);
        x.fetch(c, p, c.k, x.k); /* while the values are taken in */
        if (most > -INFINITY) {
            float factor = expf(s.largest - most);
            s.largest = most;
            s.sum *= factor;
#pragma unroll
            for (int e = 0; e < PIECES * WIDTH; e++) s.value[e] *= factor;
#pragma unroll
            for (int t = 0; t < STRIP; t++)
                add_value<T, PIECES>(c, expf(score[t] - most), x.v[t], s);
        }
        x.fetch(c, p, c.v, x.v);
    }
    return s;
}

/* How much a softmax counts beside one with the largest score `most`. */
__device__ __forceinline__ float share_of(float largest, float most)
{
    return largest == -INFINITY ? 0.0f : expf(largest - most);
}

/* Column i of up to MOST softmaxes that are joined: `values` of each lie `stride` apart. */
template <int MOST>
__device__ float join(const float *largest, const float *sums, const float *values, int count,
                      int64_t stride, int i, float *most, float *sum)
{
    float x[MOST], weight[MOST], value[MOST], result = 0.0f;
    *most = -INFINITY;
    *sum = 0.0f;
#pragma unroll
    for (int n = 0; n < MOST; n++) { /* all loads at once */
        x[n] = n < count ? largest[n] : -INFINITY;
        weight[n] = n < count ? sums[n] : 0.0f;
        value[n] = n < count ? values[n * stride + i] : 0.0f;
        *most = fmaxf(*most, x[n]);
    }
#pragma unroll
    for (int n = 0; n < MOST; n++) {
        float share = share_of(x[n], *most);
        *sum = fmaf(weight[n], share, *sum);
        result = fmaf(value[n], share, result);
    }
    return result;
}

/* Whether this block is the last of its task. What it wrote is seen by whoever comes last. */
__device__ bool comes_last(const call &c, int64_t task)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&c.arrivals[task], 1u) == (unsigned)c.parts - 1;
        if (last) c.arrivals[task] = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

template <class T, int PIECES, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, PIECES == 1 ? blocks_of(WARPS) : 1)
    attend(const __grid_constant__ call c)
{
    constexpr int WIDTH = mc_width<T>, N = PIECES * WIDTH, THREADS = WARPS * 32;
    __shared__ float largest[WARPS], sums[WARPS], values[WARPS * 32 * N];
    int64_t item = blockIdx.x, task = item / c.parts;
    place p = place_of<THREADS>(c, item);
    mc_softmax<N> s = attend_keys<T, PIECES, THREADS>(c, p);
    mc_join_groups(s, c.lanes, share_of);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = c.lanes * N;
    if (lane == 0) {
        largest[warp] = s.largest;
        sums[warp] = s.sum;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        if (lane < c.lanes)
            values[warp * row + (e / WIDTH * c.lanes + lane) * WIDTH + e % WIDTH] = s.value[e];
    __syncthreads();
    float most, sum;
    int64_t to = p.sequence * c.out.stride + p.column, first = task * c.parts;
    for (int i = threadIdx.x; i < c.head_dim; i += THREADS) {
        float x = join<WARPS>(largest, sums, values, WARPS, row, i, &most, &sum);
        if (c.parts == 1)
            mc_store_one(c.out, to + i, sum == 0.0f ? 0.0f : x / sum);
        else
            c.results[item * c.head_dim + i] = x;
        if (c.parts > 1 && i == 0) {
            c.largest[item] = most;
            c.sums[item] = sum;
        }
    }
    if (c.parts == 1 || !comes_last(c, task)) return;
    for (int i = threadIdx.x; i < c.head_dim; i += THREADS) {
        float x =
            join<MOST_PARTS>(c.largest + first, c.sums + first, c.results + first * c.head_dim,
                             c.parts, c.head_dim, i, &most, &sum);
        mc_store_one(c.out, to + i, sum == 0.0f ? 0.0f : x / sum);
    }
}

template <class T> mc_status launch(mc_device *d, const call &c, int64_t items, int warps)
{
    int pieces = (int)mc_ceil_div(c.head_dim, c.lanes * mc_width<T>);
    if (pieces > 4)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "attention_cached: heads of %d, at most %d",
                            c.head_dim, 4 * 32 * mc_width<T>);
    void (*kernel)(const call) = pieces > 2             ? attend<T, 4, WARPS>
                                 : pieces == 2          ? attend<T, 2, WARPS>
                                 : warps == MOST_WARPS  ? attend<T, 1, MOST_WARPS>
                                 : warps == LEAST_WARPS ? attend<T, 1, LEAST_WARPS>
                                                        : attend<T, 1, WARPS>;
    MC_LAUNCH_EARLY(d, kernel, (unsigned)items, (unsigned)warps * 32, 0, c);
    return mc_cuda_launched(d, "attention_cached");
}

int lanes_for(int head_dim, int width)
{
    int lanes = 1;
    while (lanes < 32 && lanes * width < head_dim) lanes *= 2;
    return lanes;
}

/* So many that each multiprocessor has two blocks, of enough keys to be worth it. To join parts takes
 * about as long as a large block takes for four times the keys that it has under way. */
int parts_for(mc_device *d, int64_t tasks, int64_t longest, int64_t least)
{
    int64_t wanted = 2 * mc_cuda_of(d)->multiprocessors / tasks,
            most = mc_least(MOST_PARTS, mc_ceil_div(longest, least));
    return tasks > MC_CUDA_ARRIVALS ? 1 : (int)mc_most(1, mc_least(wanted, most));
}

} // namespace

extern "C" mc_status mc_cuda_attention_cached(mc_device *d, const mc_cached_attention *shape,
                                              mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out)
{
    int64_t tasks = shape->sequences * shape->heads;
    int head_dim = shape->head_dim;
    if (tasks == 0) return MC_OK;
    mc_dtype dtype = mc_common_dtype(q, k, v, out, shape->new_k, shape->new_v);
    int width = dtype == MC_F32 || dtype == MC_DTYPE_DEFAULT ? 4 : 8;
    auto view_of = [=](mc_matrix m, int64_t rows) {
        mc_view view = mc_view_of(m, rows, width);
        view.whole = view.whole && head_dim % width == 0;
        return view;
    };
    call c = {};
    c.lengths = shape->lengths;
    c.first_rows = shape->first;
    c.pages = shape->pages;
    c.page_shift = shape->page_shift;
    c.bias = shape->position_bias;
    c.limit = shape->position_limit;
    c.heads = shape->heads;
    c.head_dim = head_dim;
    c.lanes = lanes_for(head_dim, width);
    int processors = mc_cuda_of(d)->multiprocessors;
    bool few = tasks <= processors && head_dim <= 32 * width;
    int warps = few ? MOST_WARPS : tasks > blocks_of(WARPS) * processors ? LEAST_WARPS : WARPS;
    int64_t least = few ? 4 * MOST_KEYS * MOST_WARPS * 32 / c.lanes : LEAST_PART;
    c.parts = parts_for(d, tasks, shape->longest, least);
    c.capacity = shape->capacity;
    c.scale = shape->scale;
    c.arrivals = mc_cuda_of(d)->arrivals;
    c.q = view_of(q, shape->sequences);
    c.k = view_of(k, 2); /* how many rows there are is not known here */
    c.v = view_of(v, 2);
    c.new_k = view_of(shape->new_k, shape->sequences);
    c.new_v = view_of(shape->new_v, shape->sequences);
    c.out = view_of(out, shape->sequences);
    int64_t items = tasks * c.parts;
    size_t bytes = c.parts > 1 ? (size_t)(items * (head_dim + 2)) * sizeof(float) : 0;
    float *scratch = bytes ? (float *)d->alloc(d, bytes) : NULL;
    if (bytes && !scratch) return MC_ERR_NOMEM;
    if (scratch) {
        c.results = scratch;
        c.largest = scratch + items * head_dim;
        c.sums = c.largest + items;
    }
    mc_status status;
    MC_WITH_TYPE(dtype, { status = launch<T>(d, c, items, warps); });
    if (bytes) d->free(d, scratch, bytes); /* what comes later on the stream may have it */
    return status;
}
