/* Attention as a step of the persistent decode kernel: the new token of each sequence attends to
 * cached keys and values, as in attention_cached.cu, by all warps of a block. The keys of a
 * (sequence, head) are split into parts, one for each block; the first part's block joins the
 * results. The first keys and values are loaded before the block waits for the query. */
#ifndef MC_DEVICE_HOPPER_PERSISTENT_ATTENTION_CUH
#define MC_DEVICE_HOPPER_PERSISTENT_ATTENTION_CUH

#include <cmath>
#include "core/device/hopper/decode/persistent.cuh"
#include "core/device/cuda/decode/softmax.cuh"

namespace persistent
{

enum { KEYS = MC_PERSISTENT_KEYS };

/* A part of a (sequence, head)'s keys. */
struct part {
    int sequence, head, first, keys, fresh, lanes;
    int query, column; /* first column of the head's query; of its keys and values */
    bool keeps;        /* of the heads that share keys, this one stores the new token's */
    int64_t begin;
    const float *bias; /* of the part's first key; NULL: no bias */

    __device__ __forceinline__ part(const mc_persistent_shape &h, const mc_persistent_attention &a,
                                    int item)
    {
        const int shift = a.parts >> 1; /* parts is 1, 2 or 4 */
        const int index = item & (a.parts - 1);
        head = item >> shift;
        for (sequence = 0; head >= h.heads; sequence++) head -= h.heads;
        query = head * h.head_dim;
        column = head / h.sharing * h.head_dim;
        keeps = head % h.sharing == 0;
        for (lanes = 1; lanes * EACH < h.head_dim;) lanes *= 2;
        const int length = __ldg(h.lengths + sequence),
                  unseen = h.window && length > h.window ? length - h.window : 0,
                  size = (length - unseen + a.parts - 1) >> shift;
        first = unseen + index * size;
        begin = h.first ? __ldg(h.first + sequence) : sequence * h.capacity;
        keys = max(0, min(size, length - first));
        fresh = a.new_k && keys > 0 && first + keys == length ? keys - 1 : -1;
        bias = h.bias ? h.bias + head * (2 * h.limit - 1) + h.limit - length + first : NULL;
    }
    __device__ __forceinline__ int64_t row_of(const mc_persistent_shape &h, int key) const
    {
        if (!h.pages) return begin + first + key;
        return mc_page_row(h.pages, h.page_shift, (int32_t)begin, first + key);
    }
};

template <class T> __device__ __forceinline__ void unpack8(uint4 v, float (&x)[EACH])
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[2 * i] = wide<T>(w[i] & 0xffff), x[2 * i + 1] = wide<T>(w[i] >> 16);
}

/* Keys and values that a thread is loading. */
struct strip {
    uint4 k[KEYS], v[KEYS];

    __device__ __forceinline__ void fetch(const mc_persistent_shape &h,
                                          const mc_persistent_attention &a, const part &p, int from)
    {
        const int lane = (int)threadIdx.x % p.lanes, group = (int)threadIdx.x / p.lanes;
#pragma unroll
        for (int t = 0; t < KEYS; t++) {
            int key = from + t * (THREADS / p.lanes) + group;
            k[t] = v[t] = make_uint4(0, 0, 0, 0);
            if (key >= p.keys || key == p.fresh || lane * EACH >= h.head_dim) continue;
            int64_t row = p.row_of(h, key);
            k[t] =
                __ldcg((const uint4 *)((const uint16_t *)a.k + row * h.k_stride + p.column) + lane);
            v[t] =
                __ldcg((const uint4 *)((const uint16_t *)a.v + row * h.v_stride + p.column) + lane);
        }
    }
    /* Takes the new token's key and value from shared memory if they are this thread's. */
    __device__ __forceinline__ void take_fresh(const part &p, int head_dim, int from,
                                               const uint16_t *fresh)
    {
        const int lane = (int)threadIdx.x % p.lanes, group = (int)threadIdx.x / p.lanes;
#pragma unroll
        for (int t = 0; t < KEYS; t++) {
            int key = from + t * (THREADS / p.lanes) + group;
            if (key != p.fresh || lane * EACH >= head_dim) continue;
            k[t] = ((const uint4 *)fresh)[lane];
            v[t] = ((const uint4 *)(fresh + head_dim))[lane];
        }
    }
};

/* The weight of a softmax with this largest score, if the largest of all is `most`. */
__device__ __forceinline__ float share_of(float largest, float most)
{
    return largest == -INFINITY ? 0.0f : mc_exp(largest - most);
}

using softmax = mc_softmax<EACH>;

/* Products of the query with keys, for all lanes that share a key. */
template <class T>
__device__ __forceinline__ void multiply_keys(const part &p, uint4 q, const uint4 (&k)[KEYS],
                                              float (&product)[KEYS])
{
    if (p.lanes == 8) { /* heads of 64 */
        mc_bits keys[KEYS];
#pragma unroll
        for (int t = 0; t < KEYS; t++) keys[t] = mc_bits_of(k[t]);
        return mc_multiply_keys<T>(mc_bits_of(q), keys, product);
    }
    float x[EACH], y[EACH];
    unpack8<T>(q, x);
#pragma unroll
    for (int t = 0; t < KEYS; t++) {
        product[t] = 0.0f;
        unpack8<T>(k[t], y);
#pragma unroll
        for (int e = 0; e < EACH; e++) product[t] = fmaf(x[e], y[e], product[t]);
#pragma unroll 1
        for (int lane = p.lanes / 2; lane > 0; lane /= 2)
            product[t] += __shfl_xor_sync(0xffffffffu, product[t], lane);
    }
}

template <class T>
__device__ __forceinline__ void attend_strip(const part &p, float scale, const strip &x, int from,
                                             uint4 q, softmax &s)
{
    const int group = (int)threadIdx.x / p.lanes;
    float score[KEYS], most = s.largest, y[EACH];
    multiply_keys<T>(p, q, x.k, score);
#pragma unroll
    for (int t = 0; t < KEYS; t++) {
        int key = from + t * (THREADS / p.lanes) + group;
        score[t] *= scale;
        if (p.bias && key < p.keys) score[t] += __ldg(p.bias + key);
        if (key >= p.keys) score[t] = -INFINITY;
        most = fmaxf(most, score[t]);
    }
    if (most == -INFINITY) return;
    const float factor = mc_exp(s.largest - most);
    s.largest = most;
    s.sum *= factor;
#pragma unroll
    for (int e = 0; e < EACH; e++) s.value[e] *= factor;
#pragma unroll
    for (int t = 0; t < KEYS; t++) {
        const float weight = mc_exp(score[t] - most);
        s.sum += weight;
        unpack8<T>(x.v[t], y);
#pragma unroll
        for (int e = 0; e < EACH; e++) s.value[e] = fmaf(weight, y[e], s.value[e]);
    }
}

/* The cosine and sine of a pair, computed by the thread of that number before it waits for the row.
 * Angles are counted in whole turns in double: see positions.cu. */
__device__ __forceinline__ float2 turn_of(const mc_persistent_rotary &r, int position, int pair)
{
    constexpr double TURN = 6.283185307179586477; /* 2 pi */
    double angle = exp2(-(double)pair / r.pairs * r.log2_base);
    if (r.factor != 0) { /* as mc_rotary_angle */
        const double kept = r.keep[0] + (double)r.keep[1] * pair + r.keep[2] * angle,
                     share = fmin(fmax(kept, 0.0), 1.0);
        angle *= share + (1 - share) / r.factor;
    }
    const double turned = position * angle / TURN;
    float cosine, sine;
    sincosf((float)((turned - rint(turned)) * TURN), &sine, &cosine);
    return make_float2(r.magnitude * cosine, r.magnitude * r.sign * sine);
}

/* Rotates a pair of a row in shared memory. */
template <class T>
__device__ __forceinline__ void turn_pair(const mc_persistent_rotary &r, int pair, float2 turn,
                                          volatile uint16_t *row)
{
    const int low = r.halves ? pair : 2 * pair, high = r.halves ? pair + r.pairs : 2 * pair + 1;
    const float a = wide<T>(row[low]), b = wide<T>(row[high]);
    row[low] = (uint16_t)narrow<T>(a * turn.x - b * turn.y);
    row[high] = (uint16_t)narrow<T>(b * turn.x + a * turn.y);
}

/* A rotation that is not part of an attention step: a row for each block. */
template <class T> __device__ void run_rotary(const mc_persistent_step &s)
{
    const mc_persistent_rotary &r = s.rotary;
#pragma unroll 1
    for (int q = blockIdx.x; q < s.rows; q += gridDim.x)
#pragma unroll 1
        for (int i = threadIdx.x; i < r.heads * r.pairs; i += THREADS) {
            const int head = i / r.pairs, pair = i - head * r.pairs;
            volatile uint16_t *row = (uint16_t *)r.x + q * r.x_stride + head * r.head_dim;
            turn_pair<T>(r, pair, turn_of(r, __ldg(r.positions + q), pair), row);
        }
}

/* The query, followed by the new key and value, in shared memory: (3, head_dim). Each thread loads
 * a quad early and, if it had not been published yet, polls for it. */
struct head_quad {
    const uint32_t *words;
    uint32_t tag;
    uint4 w;
    uint2 *to, v; /* to: NULL without a quad; words: NULL if v came from memory */

    __device__ __forceinline__ head_quad(const place &b, const mc_persistent_step &s,
                                         const mc_persistent_shape &h, const part &p,
                                         uint16_t *rows)
    {
        const mc_persistent_attention &a = s.attention;
        const int quads = h.head_dim / 4, which = (int)threadIdx.x / quads,
                  i = (int)threadIdx.x - which * quads;
        to = NULL;
        if (which >= (a.new_k ? 3 : 1)) return;
        const void *from = which == 0 ? a.q : which == 1 ? a.new_k : a.new_v;
        const int stride = which == 0   ? h.q_stride
                           : which == 1 ? h.new_k_stride
                                        : h.new_v_stride,
                  column = which == 0 ? p.query : p.column;
        const input in = input_of(b, s, which, from, stride);
        to = (uint2 *)(rows + which * h.head_dim) + i;
        tag = in.tag;
        words = NULL;
        if (in.data) {
            v = __ldcg((const uint2 *)(in.data + p.sequence * in.stride + column * 2) + i);
        } else {
            words = in.words + p.sequence * in.stride + column + 4 * i;
            w = load_words(words);
        }
    }
    __device__ __forceinline__ void store()
    {
        if (!to) return;
        while (words && !is_there(w, tag)) w = load_words(words);
        *to = words ? quad_of(w) : v;
    }
};

/* Stores rotated rows: a rotation works in place. */
__device__ __forceinline__ void store_turned(const mc_persistent_attention &a,
                                             const mc_persistent_shape &h, const part &p,
                                             const uint16_t *rows)
{
    const int i = (int)threadIdx.x;
    if (i >= h.head_dim) return;
    if (a.rotary[0] >= 0)
        ((uint16_t *)a.q)[(int64_t)p.sequence * h.q_stride + p.query + i] = rows[i];
    if (a.rotary[1] >= 0 && p.keeps)
        ((uint16_t *)a.new_k)[(int64_t)p.sequence * h.new_k_stride + p.column + i] =
            rows[h.head_dim + i];
}

/* Joins the warps' results for column i: `values` (warps, head_dim). */
__device__ __forceinline__ float join_warps(const float *largest, const float *sums,
                                            const float *values, int head_dim, int i, float *most,
                                            float *sum)
{
    float x[WARPS], result = 0.0f;
    *most = -INFINITY, *sum = 0.0f;
#pragma unroll
    for (int n = 0; n < WARPS; n++) {
        x[n] = largest[n];
        *most = fmaxf(*most, x[n]);
    }
#pragma unroll
    for (int n = 0; n < WARPS; n++) {
        float share = share_of(x[n], *most);
        *sum = fmaf(sums[n], share, *sum);
        result = fmaf(values[n * head_dim + i], share, result);
    }
    return result;
}

/* Publishes a part of a head's result, for the first part's block. */
__device__ __forceinline__ void store_part(const place &b, const mc_persistent_shape &h, int step,
                                           int item, int i, float x, float most, float sum)
{
    uint32_t *to = b.words(MC_PERSISTENT_SLOTS) + item * mc_persistent_part_words(h.head_dim);
    store_whole(to + 2 * i, x, b.tag(step));
    if (i) return;
    store_whole(to + 2 * h.head_dim, most, b.tag(step));
    store_whole(to + 2 * h.head_dim + 2, sum, b.tag(step));
}

/* Joins column i of the other parts, all loaded at the same time, with the first one's. */
__device__ __forceinline__ void join_parts(const place &b, const mc_persistent_shape &h, int step,
                                           int item, int parts, int i, float *x, float *most,
                                           float *sum)
{
    enum { OTHERS = MC_PERSISTENT_PARTS - 1 };
    if (parts == 1) return;
    const uint32_t tag = b.tag(step);
    const int size = mc_persistent_part_words(h.head_dim);
    const uint32_t *from = b.words(MC_PERSISTENT_SLOTS) + (item + 1) * size;
    uint4 two[OTHERS], facts[OTHERS];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int p = 0; p < OTHERS; p++) {
            two[p] = facts[p] = make_uint4(tag, tag, tag, tag);
            if (p + 1 >= parts) continue;
            two[p] = load_words(from + p * size + 2 * (i & ~1));
            facts[p] = load_words(from + p * size + 2 * h.head_dim);
        }
#pragma unroll
        for (int p = 0; p < OTHERS; p++) there &= is_there(two[p], tag) && is_there(facts[p], tag);
    } while (!there);
    const float first = *most;
#pragma unroll
    for (int p = 0; p < OTHERS; p++)
        if (p + 1 < parts) *most = fmaxf(*most, whole_of(facts[p].x, facts[p].y));
    const float own = share_of(first, *most);
    *x *= own, *sum *= own;
#pragma unroll
    for (int p = 0; p < OTHERS; p++) {
        if (p + 1 >= parts) continue;
        const float value = i % 2 ? whole_of(two[p].z, two[p].w) : whole_of(two[p].x, two[p].y),
                    its = share_of(whole_of(facts[p].x, facts[p].y), *most);
        *x = fmaf(value, its, *x);
        *sum = fmaf(whole_of(facts[p].z, facts[p].w), its, *sum);
    }
}

template <class T>
__device__ __forceinline__ void store_head(const place &b, const mc_persistent_step &s,
                                           const mc_persistent_shape &h, const part &p, int step,
                                           int i, float x)
{
    const uint32_t bits = narrow<T>(x);
    const int copies = (int)copies_of(s.rows);
    uint32_t *to = b.words(s.publish) + p.sequence * MC_PERSISTENT_WIDEST + p.query + i;
#pragma unroll
    for (int c = 0; c < MOST_COPIES; c++)
        if (s.publish >= 0 && c < copies)
            store_word(to + c * s.rows * MC_PERSISTENT_WIDEST, bits, b.tag(step));
    ((uint16_t *)s.attention.out)[(int64_t)p.sequence * h.out_stride + p.query + i] =
        (uint16_t)bits;
}

template <class T>
__device__ void attend_item(place &b, const mc_persistent_step &s, int step, int item)
{
    const mc_persistent_attention &a = s.attention;
    const mc_persistent_shape &h = *b.shape(a.shape);
    const part p(h, a, item);
    float *largest = b.scratch() + 64, *sums = largest + 16, *values = sums + 16;
    uint16_t *rows = (uint16_t *)(values + WARPS * h.head_dim);
    const int lane = (int)threadIdx.x % p.lanes;
    head_quad own(b, s, h, p, rows);
    strip x;
    x.fetch(h, a, p, 0);
    const mc_persistent_rotary *turner = a.rotary[0] >= 0   ? &b.c.list.step[a.rotary[0]].rotary
                                         : a.rotary[1] >= 0 ? &b.c.list.step[a.rotary[1]].rotary
                                                            : NULL;
    const bool turns = turner && (int)threadIdx.x < turner->pairs;
    float2 turn;
    if (turns) turn = turn_of(*turner, __ldg(turner->positions + p.sequence), threadIdx.x);
    if (item != (int)blockIdx.x) sync(); /* the previous item's rows have been read */
    own.store();
    sync();
    if (turner) {
        if (turns && a.rotary[0] >= 0) turn_pair<T>(*turner, threadIdx.x, turn, rows);
        if (turns && a.rotary[1] >= 0) turn_pair<T>(*turner, threadIdx.x, turn, rows + h.head_dim);
        sync();
        if ((item & (a.parts - 1)) == 0) store_turned(a, h, p, rows);
    }
    uint4 q = make_uint4(0, 0, 0, 0);
    if (lane * EACH < h.head_dim) q = ((const uint4 *)rows)[lane];
    if (p.fresh >= 0 && p.keeps && (int)threadIdx.x < 2 * h.head_dim / EACH) {
        const bool second = (int)threadIdx.x >= h.head_dim / EACH;
        const int i = (int)threadIdx.x - (second ? h.head_dim / EACH : 0);
        uint16_t *to = (uint16_t *)(second ? a.v : a.k) + p.column +
                       p.row_of(h, p.fresh) * (second ? h.v_stride : h.k_stride);
        ((uint4 *)to)[i] = ((const uint4 *)(rows + (second ? 2 : 1) * h.head_dim))[i];
    }
    softmax m = {-INFINITY, 0.0f, {}};
#pragma unroll 1
    for (int from = 0; from < p.keys; from += THREADS / p.lanes * KEYS) {
        if (from) x.fetch(h, a, p, from);
        x.take_fresh(p, h.head_dim, from, rows + h.head_dim);
        attend_strip<T>(p, h.scale, x, from, q, m);
    }
    mc_join_groups(m, p.lanes, share_of);
    if (b.lane == 0) largest[b.warp] = m.largest, sums[b.warp] = m.sum;
    if (b.lane < p.lanes && lane * EACH < h.head_dim)
#pragma unroll
        for (int e = 0; e < EACH; e++) values[b.warp * h.head_dim + lane * EACH + e] = m.value[e];
    sync();
#pragma unroll 1
    for (int i = threadIdx.x; i < h.head_dim; i += THREADS) {
        float most, sum, v = join_warps(largest, sums, values, h.head_dim, i, &most, &sum);
        if (item & (a.parts - 1)) {
            store_part(b, h, step, item, i, v, most, sum);
            continue;
        }
        join_parts(b, h, step, item, a.parts, i, &v, &most, &sum);
        store_head<T>(b, s, h, p, step, i, sum == 0.0f ? 0.0f : __fdividef(v, sum));
    }
}

template <class T> __device__ void run_attention(place &b, const mc_persistent_step &s, int step)
{
    const int items = s.rows * b.shape(s.attention.shape)->heads * s.attention.parts;
#pragma unroll 1
    for (int item = blockIdx.x; item < items; item += gridDim.x) attend_item<T>(b, s, step, item);
}

} // namespace persistent

#endif
