/* The probabilities of attention, for looking at them: a warp for each query of each head. */
#include <climits>
#include <cmath>
#include "core/device/cuda/runtime/kernels.cuh"

namespace
{

constexpr int THREADS = 128;

struct call {
    const int32_t *length, *offset, *key_length, *key_offset;
    int heads, head_dim, longest, columns, sharing; /* sharing: heads that read one of the keys */
    int64_t items;                                  /* (sequence, head, query) */
    float scale;
    bool bottom_right;
    int left, right; /* a query sees keys less than so far before and after where it stands */
    const uint8_t *mask;
    const int32_t *marks, *globals;
    bool global_queries;
    mc_view q, k, bias;
    int64_t bias_first, bias_head, bias_query;
    float *out;
};

struct place {
    int sequence, head, query, keys, shift; /* shift: where the first query stands */
    int64_t row, key_row;
};

__device__ bool is_seen(const call &c, const place &p, int key)
{
    int ahead = key - p.query - p.shift;
    bool near = ahead < c.right && -ahead < c.left;
    if (c.globals) { /* mc_globals_see */
        int32_t g = c.globals[p.row];
        near = g >= 0 && (g == 0) == c.global_queries && (near || c.globals[p.key_row + key] == 0);
    }
    if (!near) return false;
    if (c.mask && !c.mask[p.key_row + key]) return false;
    if (!c.marks) return true;
    int32_t q = c.marks[p.row], k = c.marks[p.key_row + key];
    return ((q ^ k) & ~1) == 0 && ((k & 1) || (!(q & 1) && key <= p.query)); /* mc_marks_see */
}

__device__ float score(const call &c, const place &p, int key)
{
    int64_t q_at = p.row * c.q.stride + (int64_t)p.head * c.head_dim;
    int64_t k_at = (p.key_row + key) * c.k.stride + (int64_t)(p.head / c.sharing) * c.head_dim;
    float sum = 0.0f;
    if (!is_seen(c, p, key)) return -INFINITY;
    for (int i = 0; i < c.head_dim; i++)
        sum = fmaf(mc_load_one(c.q, q_at + i), mc_load_one(c.k, k_at + i), sum);
    int query = p.query + (c.bias_query < 0 ? p.shift : 0); /* by distance */
    int64_t bias_at = c.bias_first + p.head * c.bias_head + query * c.bias_query + key;
    return sum * c.scale + (c.bias.data ? mc_load_one(c.bias, bias_at) : 0.0f);
}

__global__ void __launch_bounds__(THREADS) find_probabilities(const __grid_constant__ call c)
{
    int64_t item = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (item >= c.items) return;
    place p;
    p.query = (int)(item % c.longest);
    p.head = (int)(item / c.longest % c.heads);
    p.sequence = (int)(item / c.longest / c.heads);
    p.row = c.offset[p.sequence] + p.query;
    p.key_row = c.key_offset[p.sequence];
    p.keys = p.query < c.length[p.sequence] ? c.key_length[p.sequence] : 0;
    p.shift = c.bottom_right ? c.key_length[p.sequence] - c.length[p.sequence] : 0;
    float *out = c.out + item * c.columns, most = -INFINITY, sum = 0.0f;
    for (int key = threadIdx.x % 32; key < p.keys; key += 32)
        most = fmaxf(most, out[key] = score(c, p, key));
    most = mc_warp_largest(most);
    float base = most == -INFINITY ? 0.0f : most; /* no key: all become 0 */
    for (int key = threadIdx.x % 32; key < p.keys; key += 32)
        sum += out[key] = expf(out[key] - base);
    sum = mc_warp_sum(sum);
    for (int key = threadIdx.x % 32; key < c.columns; key += 32)
        out[key] = key < p.keys && sum != 0.0f ? out[key] / sum : 0.0f;
}

} // namespace

extern "C" mc_status mc_cuda_attention_probabilities(mc_device *d, const mc_attention_shape *s,
                                                     mc_matrix q, mc_matrix k, float *out)
{
    const mc_lengths *queries = s->lengths, *keys = mc_key_lengths(s);
    const int32_t *of_keys = s->key_lengths ? s->device_key_lengths : s->device_lengths;
    const mc_score_bias bias = mc_score_bias_of(s);
    call c = {};
    c.length = s->device_lengths;
    c.offset = s->device_lengths + queries->count;
    c.key_length = of_keys;
    c.key_offset = of_keys + keys->count;
    c.heads = s->heads;
    c.head_dim = s->head_dim;
    c.longest = queries->longest;
    c.columns = keys->longest;
    c.items = (int64_t)queries->count * s->heads * queries->longest;
    c.scale = s->scale;
    c.sharing = s->heads / mc_key_heads(s);
    c.bottom_right = s->bottom_right;
    c.left = s->window_left ? s->window_left : INT_MAX;
    c.right = s->causal ? 1 : s->window_right ? s->window_right : INT_MAX;
    c.mask = s->key_mask;
    c.marks = s->marks;
    c.globals = s->globals;
    c.global_queries = s->global_queries;
    c.q = mc_view_of(q, 2, mc_width<mc_mixed>);
    c.k = mc_view_of(k, 2, mc_width<mc_mixed>);
    c.bias = mc_view_of(bias.values, 2, mc_width<mc_mixed>);
    c.bias_first = bias.first;
    c.bias_head = bias.head_step;
    c.bias_query = bias.query_step;
    c.out = out;
    unsigned blocks = (unsigned)mc_ceil_div(c.items, THREADS / 32);
    if (blocks && c.columns) find_probabilities<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(c);
    return mc_cuda_launched(d, "attention_probabilities");
}
