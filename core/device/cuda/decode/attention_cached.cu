/* Attention of one new token per sequence over cached keys and values. Reading the cache takes most
 * of the time. With few sequences their keys are split into parts, one block for each (sequence,
 * head, part), enough to fill the GPU at any lengths, which the host does not know. Groups of lanes
 * process one key each, several at a time, with a softmax of their own. The last block of a
 * (sequence, head) to finish combines the parts.
 *
 * In a generation step the preceding kernels change nothing here except q and the new key and
 * value: lengths and the cache are those of the previous step. So a block loads its first keys and
 * values before it waits for those kernels. */
#include <cmath>
#include "core/device/cuda/decode/softmax.cuh"

namespace
{

/* Warps of a block: if there are few blocks, and if there are more than run at once. */
constexpr int WARPS = 8, MOST_WARPS = 16, LEAST_WARPS = 4;
/* Blocks of so many warps that a multiprocessor runs at once. */
constexpr int blocks_of(int warps) { return warps == LEAST_WARPS ? 7 : warps == WARPS ? 3 : 1; }
constexpr int MOST_PARTS = 8, LEAST_PART = 128; /* keys */
constexpr int MOST_KEYS = 4;                    /* that a thread loads at once */

struct call {
    const int32_t *lengths, *first_rows, *pages; /* pages: NULL without */
    const float *bias;                           /* (heads, 2 * limit - 1); NULL: none */
    int64_t limit;
    int heads, head_dim, parts;
    int sharing, window; /* query heads per key head; 0: no window */
    int page_shift;
    int64_t capacity;
    float scale;
    mc_view q, k, v, new_k, new_v, out;
    float *results, *largest, *sums; /* of parts: (items, head_dim), (items), (items) */
    unsigned *arrivals;              /* finished blocks of each (sequence, head) */
};

/* A part of the keys of one sequence, for one head. */
struct place {
    int sequence, begin; /* begin: the sequence's first row, or its first entry in `pages` */
    int query, column;   /* first column of the head's query, and of its keys and values */
    int first;           /* key of the part */
    bool keeps;          /* of the heads that share keys, this one stores the new token's */
    int keys;            /* of the part: 0 after the sequence's end */
    int cached;          /* of these, all but the new token's, the last of its sequence */
    const float *bias;   /* of the part's first key; NULL: none */
};

template <int GROUPS> __device__ place place_of(const call &c, int64_t item)
{
    int part = (int)(item % c.parts), head = (int)(item / c.parts % c.heads);
    place p;
    p.sequence = (int)(item / c.parts / c.heads);
    int length = c.lengths[p.sequence];
    int unseen = c.window && length > c.window ? length - c.window : 0;
    int share = (int)((length - unseen + c.parts - 1) / c.parts + GROUPS - 1) / GROUPS * GROUPS;
    p.first = unseen + part * share;
    p.begin = c.first_rows ? c.first_rows[p.sequence] : (int)(p.sequence * c.capacity);
    p.query = head * c.head_dim;
    p.column = head / c.sharing * c.head_dim;
    p.keeps = head % c.sharing == 0;
    p.keys = max(0, min(share, length - p.first));
    bool last = c.new_k.data && p.keys > 0 && p.first + p.keys == length;
    p.cached = p.keys - last;
    p.bias = c.bias ? c.bias + head * (2 * c.limit - 1) + c.limit - length + p.first : NULL;
    return p;
}

/* The row of one of the part's keys. */
__device__ __forceinline__ int64_t row_of(const call &c, const place &p, int key)
{
    return c.pages ? mc_page_row(c.pages, c.page_shift, p.begin, p.first + key)
                   : p.begin + p.first + key;
}

/* The first element of a thread's chunk j of a head, whose chunks LANES threads share. */
template <class T, int LANES> __device__ __forceinline__ int first_of(int j)
{
    return (j * LANES + (int)threadIdx.x % LANES) * mc_width<T>;
}

/* Chunk j of a thread, of those that share a key: its first element, and its number of elements.
 * Whole chunks after the head's end repeat its last one, and are not stored. */
template <class T, int LANES> struct chunk {
    int first, n;

    __device__ __forceinline__ chunk(const call &c, int j)
        : first(first_of<T, LANES>(j)), n(mc_width<T>)
    {
        if (mc_whole<T>)
            first = min(first, c.head_dim - n);
        else
            n = min(n, c.head_dim - first);
    }
};

/* Loads 16 bytes that are read only once: they are not kept in the L1 cache. */
__device__ __forceinline__ mc_bits load_once(const void *p)
{
    mc_bits b;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b.word[0]), "=r"(b.word[1]), "=r"(b.word[2]), "=r"(b.word[3])
                 : "l"(p)
                 : "memory");
    return b;
}

/* Cached keys and values that a thread is loading, PIECES chunks of each, shared with LANES - 1
 * other threads. Small blocks load so few keys that nothing is spilled. */
template <class T, int PIECES, int LANES, int WARPS> struct strip {
    static constexpr int GROUPS = WARPS * 32 / LANES, MOST = WARPS == LEAST_WARPS ? 2 : MOST_KEYS,
                         KEYS = PIECES == 1 ? MOST : 4 / PIECES, STEP = GROUPS * KEYS;
    mc_bits k[KEYS][PIECES], v[KEYS][PIECES];
    int row[KEYS]; /* rows to load next */

    __device__ __forceinline__ int key_of(int first, int t) const
    {
        return first + t * GROUPS + (int)threadIdx.x / LANES;
    }
    /* After the last key it repeats that one, with one condition for all keys, so that all page
     * entries are read at once. */
    __device__ __forceinline__ void go_to(const call &c, const place &p, int first)
    {
        if (c.pages) {
#pragma unroll
            for (int t = 0; t < KEYS; t++)
                row[t] = (int)mc_page_row(c.pages, c.page_shift, p.begin,
                                          p.first + min(key_of(first, t), p.cached - 1));
        } else {
#pragma unroll
            for (int t = 0; t < KEYS; t++)
                row[t] = p.begin + p.first + min(key_of(first, t), p.cached - 1);
        }
    }
    __device__ __forceinline__ void fetch(const call &c, const place &p, const mc_view &from,
                                          mc_bits (&to)[KEYS][PIECES]) const
    {
#pragma unroll
        for (int t = 0; t < KEYS; t++)
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                const chunk<T, LANES> own(c, j);
                const int64_t at = (int64_t)row[t] * (int)from.stride + (p.column + own.first);
                if constexpr (mc_whole<T>)
                    to[t][j] = load_once((const T *)from.data + at);
                else
                    to[t][j] = mc_load_bits<T>(from, at, own.n);
            }
    }
};

/* The query, as distributed over a key's threads, PIECES chunks each. */
template <class T, int PIECES, int LANES, bool TENSOR = mc_is_half<T> &&PIECES == 1 && LANES == 8>
struct query {
    float x[PIECES][mc_width<T>];

    __device__ __forceinline__ void load(const call &c, const place &p)
    {
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const int i = first_of<T, LANES>(j);
            mc_load<T, mc_whole<T>>(c.q, p.sequence * c.q.stride + p.query + i,
                                    min(c.head_dim - i, mc_width<T>), x[j]);
        }
    }
    /* Its products with keys, returned to all threads that share one. */
    template <int KEYS>
    __device__ __forceinline__ void multiply(const call &c, const mc_bits (&k)[KEYS][PIECES],
                                             float (&product)[KEYS]) const
    {
#pragma unroll
        for (int t = 0; t < KEYS; t++) {
            float y[mc_width<T>];
            product[t] = 0.0f;
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                mc_unpack<T>(c.k, k[t][j], y);
#pragma unroll
                for (int e = 0; e < mc_width<T>; e++) product[t] = fmaf(x[j][e], y[e], product[t]);
            }
#pragma unroll
            for (int lane = LANES / 2; lane > 0; lane /= 2)
                product[t] += __shfl_xor_sync(0xffffffffu, product[t], lane);
        }
    }
};

template <class T> struct query<T, 1, 8, true> {
    mc_bits x;

    __device__ __forceinline__ void load(const call &c, const place &p)
    {
        const int i = first_of<T, 8>(0);
        x = mc_load_bits<T, true>(c.q, p.sequence * c.q.stride + p.query + i,
                                  min(c.head_dim - i, mc_width<T>));
    }
    template <int KEYS>
    __device__ __forceinline__ void multiply(const call &, const mc_bits (&k)[KEYS][1],
                                             float (&product)[KEYS]) const
    {
        mc_bits keys[KEYS];
#pragma unroll
        for (int t = 0; t < KEYS; t++) keys[t] = k[t][0];
        mc_multiply_keys<T>(x, keys, product);
    }
};

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

/* Stores the new token's key and value in the cache; one group of lanes processes them first. */
template <class T, int PIECES, int LANES>
__device__ __forceinline__ void attend_new(const call &c, const place &p,
                                           const query<T, PIECES, LANES> &q,
                                           mc_softmax<PIECES * mc_width<T>> &s)
{
    const bool first = (int)threadIdx.x < LANES;
    const int64_t row = row_of(c, p, p.cached);
    mc_bits k[1][PIECES], v[PIECES];
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        int i = first_of<T, LANES>(j);
        int n = first ? min(c.head_dim - i, mc_width<T>) : 0;
        i += p.column;
        k[0][j] = mc_load_bits<T, mc_whole<T>>(c.new_k, p.sequence * c.new_k.stride + i, n);
        v[j] = mc_load_bits<T, mc_whole<T>>(c.new_v, p.sequence * c.new_v.stride + i, n);
        if (!p.keeps) continue;
        mc_store_bits<T, mc_whole<T>>(c.k, row * c.k.stride + i, n, k[0][j]);
        mc_store_bits<T, mc_whole<T>>(c.v, row * c.v.stride + i, n, v[j]);
    }
    float product[1];
    q.multiply(c, k, product);
    if (!first) return;
    s.largest = product[0] * c.scale + (p.bias ? p.bias[p.cached] : 0.0f);
    add_value<T, PIECES>(c, 1.0f, v, s);
}

template <class T, int PIECES, int LANES, int WARPS>
__device__ mc_softmax<PIECES * mc_width<T>> attend_keys(const call &c, const place &p)
{
    using keys = strip<T, PIECES, LANES, WARPS>;
    constexpr int N = PIECES * mc_width<T>, KEYS = keys::KEYS, STEP = keys::STEP;
    mc_softmax<N> s = {-INFINITY, 0.0f, {}};
    keys x;
    query<T, PIECES, LANES> q;
    auto fetch_keys = [&](int first) {
        x.go_to(c, p, first);
        x.fetch(c, p, c.k, x.k);
    };
    if (p.cached > 0) {
        fetch_keys(0);
        x.fetch(c, p, c.v, x.v);
    }
    mc_let_next_begin();
    mc_wait_for_earlier();
    q.load(c, p);
    if (p.cached < p.keys) attend_new(c, p, q, s);
    for (int first = 0; first < p.cached; first += STEP) {
        const bool more = first + STEP < p.cached;
        float score[KEYS], most = s.largest;
        q.multiply(c, x.k, score);
#pragma unroll
        for (int t = 0; t < KEYS; t++) score[t] *= c.scale;
        if (p.bias)
#pragma unroll
            for (int t = 0; t < KEYS; t++)
                score[t] += p.bias[min(x.key_of(first, t), p.cached - 1)];
#pragma unroll
        for (int t = 0; t < KEYS; t++) {
            if (x.key_of(first, t) >= p.cached) score[t] = -INFINITY;
            most = fmaxf(most, score[t]);
        }
        if (more) fetch_keys(first + STEP); /* while the values are processed */
        if (most > -INFINITY) {
            const float factor = mc_exp(s.largest - most);
            s.largest = most;
            s.sum *= factor;
#pragma unroll
            for (int e = 0; e < N; e++) s.value[e] *= factor;
#pragma unroll
            for (int t = 0; t < KEYS; t++)
                add_value<T, PIECES>(c, mc_exp(score[t] - most), x.v[t], s);
        }
        if (more) x.fetch(c, p, c.v, x.v);
    }
    return s;
}

/* The factor of a softmax when the largest score of all is `most`. */
__device__ __forceinline__ float share_of(float largest, float most)
{
    return largest == -INFINITY ? 0.0f : mc_exp(largest - most);
}

/* Combines column i of up to MOST softmaxes, whose `values` are `stride` apart. */
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

/* Whether this block is the last of its task to finish; it then sees what the others wrote. */
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

template <class T, int PIECES, int LANES, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, PIECES == 1 ? blocks_of(WARPS) : 1)
    attend(const __grid_constant__ call c)
{
    constexpr int WIDTH = mc_width<T>, N = PIECES * WIDTH, THREADS = WARPS * 32;
    __shared__ float largest[WARPS], sums[WARPS], values[WARPS * LANES * N];
    int64_t item = blockIdx.x, task = item / c.parts;
    place p = place_of<THREADS / LANES>(c, item);
    mc_softmax<N> s = attend_keys<T, PIECES, LANES, WARPS>(c, p);
    mc_join_groups(s, LANES, share_of);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = LANES * N;
    if (lane == 0) {
        largest[warp] = s.largest;
        sums[warp] = s.sum;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        if (lane < LANES)
            values[warp * row + (e / WIDTH * LANES + lane) * WIDTH + e % WIDTH] = s.value[e];
    __syncthreads();
    float most, sum;
    int64_t to = p.sequence * c.out.stride + p.query, first = task * c.parts;
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

typedef void (*kernel_fn)(const call);

template <class T, int LANES> kernel_fn kernel_of(int warps)
{
    return warps == MOST_WARPS    ? attend<T, 1, LANES, MOST_WARPS>
           : warps == LEAST_WARPS ? attend<T, 1, LANES, LEAST_WARPS>
                                  : attend<T, 1, LANES, WARPS>;
}

/* The kernel for a head size; NULL: none. */
template <class T> kernel_fn kernel_for(int head_dim, int warps)
{
    const int64_t chunks = mc_ceil_div(head_dim, mc_width<T>);
    return chunks <= 8     ? kernel_of<T, 8>(warps)
           : chunks <= 16  ? kernel_of<T, 16>(warps)
           : chunks <= 32  ? kernel_of<T, 32>(warps)
           : chunks <= 64  ? attend<T, 2, 32, WARPS>
           : chunks <= 128 ? attend<T, 4, 32, WARPS>
                           : NULL;
}

/* Bytes of shared memory that each of many small blocks allocates but does not use, so that a
 * multiprocessor that is free early gets no more than its share of blocks. 32 sequences of GPT-2 XL
 * gain 4 % on an H200, larger blocks nothing
 * (bench/notebook/2026-11-26-attention-over-the-cache.md). */
size_t unused_shared(mc_device *d, int warps)
{
    enum { OTHER = 3 << 10 }; /* other shared memory of a block, with heads of 64 */
    return warps == LEAST_WARPS ? (size_t)(mc_shared_limit(d) / blocks_of(warps)) - OTHER : 0;
}

template <class T> mc_status launch(mc_device *d, const call &c, int64_t items, int warps)
{
    kernel_fn kernel = kernel_for<T>(c.head_dim, warps);
    if (!kernel)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "attention_cached: heads of %d, at most %d",
                            c.head_dim, 128 * mc_width<T>);
    const size_t shared = unused_shared(d, warps);
    mc_allow_shared(kernel, shared);
    MC_LAUNCH_EARLY(d, kernel, (unsigned)items, (unsigned)warps * 32, shared, c);
    return mc_cuda_launched(d, "attention_cached");
}

/* Keys that the largest block loads at once. */
int keys_under_way(int head_dim, int width)
{
    int lanes = 8;
    while (lanes < 32 && lanes * width < head_dim) lanes *= 2;
    return MOST_KEYS * MOST_WARPS * 32 / lanes;
}

/* Enough parts for two blocks per multiprocessor, if each has enough keys. Combining parts takes as
 * long as a large block takes for four times the keys that it loads at once. */
int parts_for(mc_device *d, int64_t tasks, int64_t longest, int64_t least)
{
    int64_t wanted = 2 * mc_cuda_of(d)->multiprocessors / tasks,
            most = mc_least(MOST_PARTS, mc_ceil_div(longest, least));
    return tasks > MC_CUDA_ARRIVALS ? 1 : (int)mc_most(1, mc_least(wanted, most));
}

} // namespace

/* ---- values of another head size ------------------------------------------------------------- */

namespace
{

constexpr int ANY_WARPS = 4, ANY_COLUMNS = 4, /* of a lane */
    ANY_GROUP = 32 * ANY_COLUMNS;             /* columns of the values per block */

/* A block for each (sequence, head, group of columns); its warps process keys in turn. Each group
 * recomputes the scores. */
struct any_call {
    call c; /* parts, results and arrivals are not used */
    int value_dim, groups;
};

__device__ void keep_new(const mc_view &x, int sequence, const mc_view &cache, int64_t row,
                         int column, int n)
{
    for (int i = threadIdx.x; i < n; i += ANY_WARPS * 32)
        mc_store_one(cache, row * cache.stride + column + i,
                     mc_load_one(x, sequence * x.stride + column + i));
}

__global__ void __launch_bounds__(ANY_WARPS * 32) attend_any(const __grid_constant__ any_call a)
{
    const call &c = a.c;
    __shared__ float largest[ANY_WARPS], sums[ANY_WARPS], values[ANY_WARPS * ANY_GROUP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = blockIdx.x % a.groups, head = blockIdx.x / a.groups % c.heads;
    place p = {};
    p.sequence = (int)(blockIdx.x / a.groups / c.heads);
    p.begin = c.first_rows ? c.first_rows[p.sequence] : (int)(p.sequence * c.capacity);
    const int n = c.lengths[p.sequence], first = c.window && n > c.window ? n - c.window : 0;
    const int k_column = head / c.sharing * c.head_dim, v_column = head / c.sharing * a.value_dim;
    const float *bias = c.bias ? c.bias + head * (2 * c.limit - 1) + c.limit - n : NULL;
    mc_softmax<ANY_COLUMNS> s = {-INFINITY, 0.0f, {}};
    for (int key = first + warp; key < n; key += ANY_WARPS) {
        const bool is_new = key == n - 1 && c.new_k.data;
        const mc_view &k = is_new ? c.new_k : c.k, &v = is_new ? c.new_v : c.v;
        const int64_t row = is_new ? p.sequence : row_of(c, p, key);
        float score = 0.0f;
        for (int i = lane; i < c.head_dim; i += 32)
            score = fmaf(mc_load_one(c.q, p.sequence * c.q.stride + head * c.head_dim + i),
                         mc_load_one(k, row * k.stride + k_column + i), score);
        score = mc_warp_sum(score) * c.scale + (bias ? bias[key] : 0.0f);
        const float most = fmaxf(s.largest, score), base = most == -INFINITY ? 0.0f : most;
        const float factor = mc_exp(s.largest - base), weight = mc_exp(score - base);
        s.largest = most;
        s.sum = s.sum * factor + weight;
#pragma unroll
        for (int j = 0; j < ANY_COLUMNS; j++) {
            int i = group * ANY_GROUP + j * 32 + lane;
            float x = i < a.value_dim ? mc_load_one(v, row * v.stride + v_column + i) : 0.0f;
            s.value[j] = fmaf(weight, x, s.value[j] * factor);
        }
    }
    if (lane == 0) {
        largest[warp] = s.largest;
        sums[warp] = s.sum;
    }
#pragma unroll
    for (int j = 0; j < ANY_COLUMNS; j++) values[warp * ANY_GROUP + j * 32 + lane] = s.value[j];
    __syncthreads();
    float most, sum;
    int column = group * ANY_GROUP + (int)threadIdx.x;
    float x =
        join<ANY_WARPS>(largest, sums, values, ANY_WARPS, ANY_GROUP, threadIdx.x, &most, &sum);
    if (column < a.value_dim)
        mc_store_one(c.out, p.sequence * c.out.stride + head * a.value_dim + column,
                     sum == 0.0f ? 0.0f : x / sum);
    if (!c.new_k.data || n == 0 || group || head % c.sharing) return;
    keep_new(c.new_k, p.sequence, c.k, row_of(c, p, n - 1), k_column, c.head_dim);
    keep_new(c.new_v, p.sequence, c.v, row_of(c, p, n - 1), v_column, a.value_dim);
}
static_assert(ANY_GROUP == ANY_WARPS * 32, "a thread stores a column");

mc_status launch_any(mc_device *d, const mc_cached_attention *shape, call c)
{
    any_call a = {c, mc_cached_value_dim(shape), 1};
    a.groups = (int)mc_ceil_div(a.value_dim, ANY_GROUP);
    unsigned blocks = (unsigned)(shape->sequences * shape->heads * a.groups);
    attend_any<<<blocks, ANY_WARPS * 32, 0, mc_cuda_of(d)->stream>>>(a);
    return mc_cuda_launched(d, "attention_cached");
}

} // namespace

extern "C" mc_status mc_cuda_attention_cached(mc_device *d, const mc_cached_attention *shape,
                                              mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out)
{
    int64_t tasks = shape->sequences * shape->heads;
    int head_dim = shape->head_dim;
    if (tasks == 0) return MC_OK;
    if (k.stride > INT32_MAX || v.stride > INT32_MAX)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "attention_cached: rows of 2^31 elements");
    mc_dtype dtype = mc_whole_dtype(head_dim, q, k, v, out, shape->new_k, shape->new_v);
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
    c.sharing = shape->heads / mc_cached_key_heads(shape);
    c.window = shape->window_left;
    c.head_dim = head_dim;
    int processors = mc_cuda_of(d)->multiprocessors;
    bool few = tasks <= processors && head_dim <= 32 * width;
    int warps = few ? MOST_WARPS : tasks > blocks_of(WARPS) * processors ? LEAST_WARPS : WARPS;
    int64_t least = few ? 4 * keys_under_way(head_dim, width) : LEAST_PART;
    c.parts = parts_for(d, tasks, shape->longest, least);
    c.capacity = shape->capacity;
    c.scale = shape->scale;
    c.arrivals = mc_cuda_of(d)->arrivals;
    c.q = view_of(q, shape->sequences);
    c.k = view_of(k, 2); /* the number of rows is unknown here */
    c.v = view_of(v, 2);
    c.new_k = view_of(shape->new_k, shape->sequences);
    c.new_v = view_of(shape->new_v, shape->sequences);
    c.out = view_of(out, shape->sequences);
    if (mc_cached_value_dim(shape) != head_dim) return launch_any(d, shape, c);
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
    if (bytes) d->free(d, scratch, bytes); /* later work on the stream may reuse it */
    return status;
}
