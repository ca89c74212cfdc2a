/* Attention on Hopper's matrix instructions for what cuDNN has no plans for, or slow ones: packed
 * sequences of queries and other keys, a bias by distance (T5, CPM-1, MPNet), token marks (CPM-1),
 * windows (ModernBERT). Which calls it takes, and the forward pass; attention_tensor_backward.cu
 * has the backward pass.
 *
 * Forward goes over the keys of a block of queries with a running softmax (Dao et al., 2022). The
 * powers are taken relative to a maximum that is only raised where a score exceeds it by more than
 * 2^8: what is there so far is seldom rescaled, and nothing comes near overflow. The next tile's
 * scores are begun before a tile's probabilities are multiplied with its values, so that they are
 * there while that product runs (Shah et al., "FlashAttention-3", 2024). */
#include "core/device/hopper/attention/attention_tensor.cuh"
#include "core/device/cuda/product/gemm_internal.h"

namespace tensor
{

/* How a size of heads is computed: keys of a tile, stages, blocks of threads at once. */
template <int D> struct forward_shape {
    static constexpr int KEYS = D == 128 ? 128 : 64;
    static constexpr int STAGES = D == 64 ? 4 : 2;
    static constexpr int RESIDENT = D <= 80 ? 2 : 1;
    static constexpr int ROWS = 2 * SIDE, THREADS = 2 * GROUP;
    static constexpr int WIDTH = D < 128 ? D : 128, PIECES = D / WIDTH; /* of the results */
    typedef layout<D, ROWS, KEYS, STAGES, 1, 0, 2 * STAGES> shared;
};

/* A thread's two rows so far: out is not divided by the sums yet, which are the thread's own part.
 * Scores are in powers of 2 with a bias, and before they are scaled without. */
template <int D> struct rows_so_far {
    typedef forward_shape<D> shape;
    float out[shape::PIECES][shape::WIDTH / 2];
    float largest[2], sum[2];
};

/* Over the four threads that share rows. */
__device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Raises the maxima where a tile's scores make it necessary; `factor` is what rescales all that was
 * there before. `power` makes powers of 2 of scores. */
template <int D, int COUNT>
__device__ __forceinline__ void raise(rows_so_far<D> &r, const float (&s)[COUNT], float power,
                                      float (&factor)[2])
{
    const float slack = 8.0f / power;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float most = s[k * 2];
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++)
            most = fmaxf(most, fmaxf(s[i * 4 + k * 2], s[i * 4 + k * 2 + 1]));
        most = row_max(most);
        factor[k] = 1.0f;
        if (most > r.largest[k] + slack) {
            factor[k] = mc_exp2((r.largest[k] - most) * power);
            r.largest[k] = most;
        }
        r.sum[k] *= factor[k];
    }
}

template <int D>
__device__ __forceinline__ void rescale(rows_so_far<D> &r, const float (&factor)[2])
{
    if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int piece = 0; piece < rows_so_far<D>::shape::PIECES; piece++)
#pragma unroll
        for (int i = 0; i < rows_so_far<D>::shape::WIDTH / 2; i++)
            r.out[piece][i] *= factor[i / 2 % 2];
}

/* s becomes probabilities but for the division, and joins the sums. */
template <int D, int COUNT>
__device__ __forceinline__ void exponentiate(rows_so_far<D> &r, float (&s)[COUNT], float power)
{
    float base[2];
#pragma unroll
    for (int k = 0; k < 2; k++) base[k] = r.largest[k] == -INFINITY ? 0 : -r.largest[k] * power;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        s[i] = mc_exp2(fmaf(s[i], power, base[i / 2 % 2]));
        r.sum[i / 2 % 2] += s[i];
    }
}

/* What is dropped becomes 0; the factor of what is kept comes in the end. */
template <int COUNT>
__device__ __forceinline__ void drop(const call &c, const place &p, const seat &me, int query,
                                     int key, float (&s)[COUNT])
{
    if (c.dropping.keep == 0.0f) return;
#pragma unroll
    for (int part = 0; part < COUNT / SCORE; part++) {
        unsigned bits[2];
        draw_by_queries(c, p, me, query, key + part * SIDE, bits);
#pragma unroll
        for (int i = 0; i < SCORE; i++)
            if (!(bits[i / 2 % 2] >> (i / 4 * 4 + me.lane % 2 * 2 + i % 2) & 1))
                s[part * SCORE + i] = 0.0f;
    }
}

/* A block's places in shared memory. */
template <int D> struct forward_places {
    typedef forward_shape<D> shape;
    typedef typename shape::shared shared;
    uint32_t at;
    barriers<2 * shape::STAGES> barrier; /* of keys, then of values */
    const tile_list *list;
    const float *bias;

    __device__ __forceinline__ uint32_t keys(int stage) const
    {
        return at + shared::STAGE_AT + stage * shared::STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t values(int stage) const
    {
        return keys(stage) + shared::TILE_BYTES;
    }
};

template <int D>
__device__ __forceinline__ void load_tile(const maps &m, const place &p, const forward_places<D> &s,
                                          int number, int stage, bool values)
{
    typedef forward_shape<D> shape;
    const int row = p.key_row + (s.list->tiles[number] >> 4) * shape::KEYS;
    const uint32_t full = s.barrier.full(stage + (values ? shape::STAGES : 0));
    barrier_expect(full, shape::shared::TILE_BYTES);
    load_rows<shape::shared::BOXES, shape::KEYS>(
        values ? &m.v : &m.k, values ? s.values(stage) : s.keys(stage), full, p.head, row);
}

template <int D>
__device__ __forceinline__ void begin_loading(const maps &m, const place &p,
                                              const forward_places<D> &s)
{
    typedef forward_shape<D> shape;
    if (threadIdx.x || s.list->count == 0) return;
    barrier_expect(s.barrier.block(), shape::shared::BLOCK_BYTES);
    load_rows<shape::shared::BOXES, shape::ROWS>(&m.q, s.at, s.barrier.block(), p.head,
                                                 p.row + p.first);
    for (int i = 0; i < shape::STAGES && i < s.list->count; i++) {
        load_tile<D>(m, p, s, i, i, false);
        load_tile<D>(m, p, s, i, i, true);
    }
}

/* Where keys or values whose place is free again are loaded to; `number`: the tile that comes. */
template <int D> struct loader {
    ring<forward_shape<D>::STAGES> at;
    int number;

    __device__ __forceinline__ void load(const maps &m, const place &p, const forward_places<D> &s,
                                         bool values)
    {
        constexpr int STAGES = forward_shape<D>::STAGES;
        if (threadIdx.x == 0 && number < s.list->count) {
            barrier_wait(s.barrier.empty(at.stage + (values ? STAGES : 0)), at.parity);
            load_tile<D>(m, p, s, number, at.stage, values);
        }
        at.advance();
        number++;
    }
};

/* From scores of a tile to probabilities. */
template <class T, int D>
__device__ __forceinline__ void find_probabilities(const call &c, const place &p, const seat &me,
                                                   const float *bias, int tile, bool mixed,
                                                   rows_so_far<D> &r, float (&factor)[2],
                                                   float (&s)[forward_shape<D>::KEYS / 2])
{
    const int row = p.first + me.group * SIDE + me.row;
    const int column = tile * forward_shape<D>::KEYS;
    if (c.bias) {
        biases<forward_shape<D>::KEYS> b;
        b.read(bias + column);
        b.add_to(s, c.scale_log2);
    }
    const float power = c.bias ? 1.0f : c.scale_log2;
    if (mixed) hide<false>(c, p, row, column + me.column, -INFINITY, s);
    raise<D>(r, s, power, factor);
    exponentiate<D>(r, s, power);
    drop(c, p, me, row, column, s);
}

template <class T, int D>
__device__ __forceinline__ void
add_values(rows_so_far<D> &r, const uint32_t (&words)[forward_shape<D>::KEYS / 16][4], uint32_t v)
{
    typedef forward_shape<D> shape;
    begin_multiplying();
#pragma unroll
    for (int piece = 0; piece < shape::PIECES; piece++)
        add_weighted<T, shape::WIDTH, shape::KEYS>(
            r.out[piece], words, v + piece * (shape::WIDTH / SIDE) * shape::KEYS * BOX_ROW);
    end_multiplying();
}

template <class T, int D>
__device__ __forceinline__ void begin_scores(const forward_places<D> &s, uint32_t q,
                                             const ring<forward_shape<D>::STAGES> &key,
                                             float (&scores)[forward_shape<D>::KEYS / 2])
{
    typedef forward_shape<D> shape;
    barrier_wait(s.barrier.full(key.stage), key.parity);
    begin_multiplying();
    multiply_heads<T, D, shape::ROWS, shape::KEYS>(scores, q, s.keys(key.stage));
    end_multiplying();
}

template <class T, int D>
__device__ __forceinline__ void compute_rows(const call &c, const maps &m, const place &p,
                                             const seat &me, const forward_places<D> &s,
                                             rows_so_far<D> &r)
{
    typedef forward_shape<D> shape;
    constexpr int STAGES = shape::STAGES;
    const uint32_t q = s.at + me.group * BOX;
    const float *bias = s.bias + me.column + shape::ROWS - 1 - (me.group * SIDE + me.row + 8);
    ring<STAGES> key = {0, 0}, value = {0, 0};
    loader<D> keys = {{0, 0}, STAGES}, values = {{0, 0}, STAGES};
    float scores[shape::KEYS / 2] = {}, factor[2];
    uint32_t words[shape::KEYS / 16][4];
    if (s.list->count == 0) return;
    barrier_wait(s.barrier.block(), 0);
    begin_scores<T, D>(s, q, key, scores);
    wait_for_products<0>();
#pragma unroll 1
    for (int i = 0;; i++) { /* scores are there, and what is there so far is of the tile before */
        const int entry = s.list->tiles[i], is = entry >> 2 * me.group & 3;
        now_known(scores);
        let_go(s.barrier.empty(key.stage));
        key.advance();
        find_probabilities<T, D>(c, p, me, bias, entry >> 4, is != SEEN, r, factor, scores);
        wait_for_products<0>();
#pragma unroll
        for (int piece = 0; piece < shape::PIECES; piece++) now_known(r.out[piece]);
        if (i > 0) {
            let_go(s.barrier.empty(STAGES + value.stage));
            value.advance();
        }
        rescale<D>(r, factor);
        pack_all<T>(scores, words);
        if (i + 1 == s.list->count) break;
        begin_scores<T, D>(s, q, key, scores);
        barrier_wait(s.barrier.full(STAGES + value.stage), value.parity);
        add_values<T, D>(r, words, s.values(value.stage));
        keys.load(m, p, s, false);
        if (i > 0) values.load(m, p, s, true);
        __syncwarp();
        wait_for_products<1>();
    }
    barrier_wait(s.barrier.full(STAGES + value.stage), value.parity);
    add_values<T, D>(r, words, s.values(value.stage));
    wait_for_products<0>();
#pragma unroll
    for (int piece = 0; piece < shape::PIECES; piece++) now_known(r.out[piece]);
}

/* Queries without a key get zeros, and a log-sum-exp of which e^(score - it) is 0. */
template <class T, int D>
__device__ __forceinline__ void give_rows(const call &c, const place &p, const seat &me,
                                          uint32_t at, rows_so_far<D> &r)
{
    typedef forward_shape<D> shape;
    const int first = p.first + me.group * SIDE;
    const float power = c.bias ? 1.0f : c.scale_log2;
    const float keep = c.dropping.keep == 0.0f ? 1.0f : c.dropping.keep;
    float factor[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float sum = row_sum(r.sum[k]);
        const int query = first + me.row + k * 8;
        factor[k] = sum == 0.0f ? 0.0f : keep / sum;
        if (c.log_sum_exp && me.column == 0 && query < p.length)
            c.log_sum_exp[(int64_t)p.head * c.total + p.row + query] =
                sum == 0.0f ? INFINITY : (r.largest[k] * power) / MC_LOG2_E + logf(sum);
    }
    const uint32_t box = at + me.group * BOX;
#pragma unroll
    for (int piece = 0; piece < shape::PIECES; piece++)
        put_rows<T, shape::WIDTH>(me, box + piece * 2 * shape::ROWS * BOX_ROW,
                                  shape::ROWS * BOX_ROW, factor[0], factor[1], r.out[piece]);
    sync_group(me.group);
    take_rows<T, D>(c, p, c.y, p.row + first, p.length - first, 0, box, shape::ROWS * BOX_ROW);
}

template <class T, int D>
static __global__ void __launch_bounds__(forward_shape<D>::THREADS, forward_shape<D>::RESIDENT)
    forward(const __grid_constant__ call c, const __grid_constant__ maps m,
            const __grid_constant__ list_sizes sizes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef forward_shape<D> shape;
    extern __shared__ __align__(1024) char dynamic[];
    const place p = place_of<shape::ROWS>(c, true);
    if (p.first >= p.length) return;
    tile_list *list = (tile_list *)(dynamic + sizes.tiles_at);
    summary *summaries = (summary *)(dynamic + sizes.summaries_at);
    float *bias = (float *)(dynamic + sizes.bias_at);
    const forward_places<D> s = {shared_address(dynamic),
                                 {shared_address(dynamic) + shape::shared::BARRIERS_AT},
                                 list,
                                 bias};
    if (threadIdx.x == 0) {
        if (s.at % 1024) __trap(); /* swizzling counts from there */
        s.barrier.init(shape::THREADS / 32);
    }
    if (c.marks) {
        summarize(c, p, summaries);
        __syncthreads();
    }
    list_tiles<shape::ROWS, shape::KEYS, false>(c, p, summaries, list);
    __syncthreads();
    begin_loading<D>(m, p, s);
    if (c.bias) {
        load_bias<shape::ROWS, false>(c, p, bias, sizes.bias_count);
        __syncthreads();
    }
    const seat me = seat_of();
    rows_so_far<D> r = {{}, {-INFINITY, -INFINITY}, {}};
    compute_rows<T, D>(c, m, p, me, s, r);
    give_rows<T, D>(c, p, me, s.at, r);
#else
    __trap(); /* for Hopper alone */
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

call call_of(const mc_attention_shape *s)
{
    const mc_lengths *keys = mc_key_lengths(s);
    const int32_t *on_device = s->key_lengths ? s->device_key_lengths : s->device_lengths;
    call c = {};
    c.length = s->device_lengths;
    c.offset = s->device_lengths + s->lengths->count;
    c.key_length = on_device;
    c.key_offset = on_device + keys->count;
    c.heads = s->heads;
    c.head_dim = s->head_dim;
    c.groups = 1;
    c.left = s->window_left ? (int)mc_least(s->window_left, FAR) : FAR;
    c.right = s->causal ? 1 : s->window_right ? (int)mc_least(s->window_right, FAR) : FAR;
    c.scale = s->scale;
    c.scale_log2 = s->scale * MC_LOG2_E;
    c.marks = s->marks;
    c.bias = s->position_bias;
    c.limit = (int)s->position_limit;
    c.dropping = mc_dropping_of(s->dropout);
    c.total = s->lengths->total;
    c.row_words = mc_ceil_div(keys->longest, 4) * 4;
    return c;
}

/* A matrix of (rows, heads, head_dim) in boxes of 64 rows and 64 columns of a head. */
mc_status describe_heads(mc_device *d, const mc_attention_shape *s, mc_matrix m,
                         const mc_lengths *lengths, CUtensorMap *map)
{
    const encode_fn encode = (encode_fn)mc_cuda_of(d)->gemm->encode_map;
    const int64_t rows = lengths->total, width = (int64_t)s->heads * s->head_dim;
    const cuuint64_t sizes[] = {(cuuint64_t)s->head_dim, (cuuint64_t)s->heads, (cuuint64_t)rows};
    const cuuint64_t strides[] = {(cuuint64_t)s->head_dim * 2,
                                  (cuuint64_t)(rows > 1 ? m.stride : width) * 2};
    const cuuint32_t box[] = {64, 1, SIDE}, steps[] = {1, 1, 1};
    if (rows == 0) return MC_OK; /* nothing is read of it */
    CUresult result = encode(
        map, m.dtype == MC_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        3, m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (!result) return MC_OK;
    return mc_cuda_fail(d, MC_ERR_DEVICE, "attention: cuTensorMapEncodeTiled: error %d",
                        (int)result);
}

template <class T, int D>
static void launch(mc_device *d, const mc_attention_shape *s, call c, const maps &m)
{
    typedef forward_shape<D> shape;
    c.blocks = (int)mc_ceil_div(s->lengths->longest, shape::ROWS);
    const list_sizes sizes = list_sizes_of(shape::shared::LISTS_AT, mc_key_lengths(s)->longest,
                                           shape::ROWS, shape::KEYS, s->marks, s->position_bias);
    const unsigned blocks = (unsigned)(s->lengths->count * s->heads * c.blocks);
    if (!blocks) return;
    mc_allow_shared(forward<T, D>, (size_t)sizes.bytes);
    forward<T, D>
        <<<blocks, shape::THREADS, (size_t)sizes.bytes, mc_cuda_of(d)->stream>>>(c, m, sizes);
}

template <class T>
static void launch_size(mc_device *d, const mc_attention_shape *s, const call &c, const maps &m)
{
    switch (width_of(s->head_dim)) {
    case 64: launch<T, 64>(d, s, c, m); return;
    case 80: launch<T, 80>(d, s, c, m); return;
    case 128: launch<T, 128>(d, s, c, m); return;
    default: launch<T, 256>(d, s, c, m); return;
    }
}

/* ---- which calls ----------------------------------------------------------------------------- */

/* Sequences whose lists and bias find room beside the blocks, and where heads are larger than 128. */
enum { LONGEST = 4096, LONGEST_OF_LARGE = 2048 };

} // namespace tensor

/* Of what the plain kernels take, windows alone are taken here, without a bias or marks. */
static const char *needs(const mc_attention_shape *s)
{
    mc_attention_shape rest = *s;
    rest.window_left = rest.window_right = 0;
    if (mc_attention_needs(&rest)) return mc_attention_needs(&rest);
    const bool windows = s->window_left || s->window_right;
    return windows && (s->marks || s->position_bias) ? "a window with marks or a bias" : NULL;
}

/* Why a call is not taken; NULL: it is. */
static const char *refusal(mc_device *d, const mc_attention_call *c)
{
    const mc_cuda_device *cuda = mc_cuda_of(d);
    const mc_attention_shape *s = c->shape;
    const mc_matrix q = c->q, k = c->k, v = c->v, out = c->out;
    const mc_lengths *queries = s->lengths, *keys = mc_key_lengths(s);
    const int64_t longest = mc_most(queries->longest, keys->longest);
    if (cuda->capability != 90 || !cuda->gemm->encode_map)
        return "a call on a GPU that is not a Hopper";
    if (q.dtype != MC_F16 && q.dtype != MC_BF16) return "a dtype that is neither f16 nor bf16";
    if (k.dtype != q.dtype || v.dtype != q.dtype || out.dtype != q.dtype) return "mixed dtypes";
    if (s->head_dim % 8 || s->head_dim > 256)
        return "a head size that is no multiple of 8 up to 256";
    if (!tensor::is_fit(q) || !tensor::is_fit(k) || !tensor::is_fit(v) || !tensor::is_fit(out))
        return "a matrix that is not aligned to 16 bytes";
    if (needs(s)) return needs(s);
    if (s->key_mask) return "a key mask";
    if (s->bias.data) return "a bias that is not one by distance";
    if (!(s->scale > 0)) return "a scale that is not positive";
    if (longest > tensor::LONGEST) return "sequences of more than 4,096 tokens";
    if (s->head_dim > 128 && longest > tensor::LONGEST_OF_LARGE)
        return "sequences of more than 2,048 tokens with heads of more than 128";
    if (queries->count * mc_ceil_div(longest, tensor::SIDE) > INT32_MAX / 2 / s->heads)
        return "so many sequences";
    return NULL;
}

extern "C" mc_status mc_tensor_attention_takes(mc_device *d, const void *call, bool)
{
    const char *why = refusal(d, (const mc_attention_call *)call);
    return why ? mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "%s", why) : MC_OK;
}

extern "C" mc_status mc_tensor_attention(mc_device *d, const void *asked)
{
    const mc_attention_call *a = (const mc_attention_call *)asked;
    const mc_attention_shape *s = a->shape;
    const mc_lengths *keys = mc_key_lengths(s);
    tensor::call c = tensor::call_of(s);
    tensor::maps m = {};
    if (mc_cuda_is_planning(d)) return MC_OK; /* it takes no memory */
    c.y = mc_view_of(a->out, s->lengths->total, 8);
    c.log_sum_exp = (float *)a->log_sum_exp;
    mc_status status = tensor::describe_heads(d, s, a->q, s->lengths, &m.q);
    if (!status) status = tensor::describe_heads(d, s, a->k, keys, &m.k);
    if (!status) status = tensor::describe_heads(d, s, a->v, keys, &m.v);
    if (status) return status;
    if (a->q.dtype == MC_F16)
        tensor::launch_size<__half>(d, s, c, m);
    else
        tensor::launch_size<__nv_bfloat16>(d, s, c, m);
    return mc_cuda_launched(d, "attention on tensor cores");
}
