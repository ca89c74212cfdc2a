/* Choosing tokens, one block per row: one pass over the logits finds the most probable token and
 * the sum of all. For a draw, the limits of top-k and top-p are found by bisection over the bits of
 * the logits. Weights are integers there, so that sums do not depend on their order. */
#include <cmath>
#include "core/device/cuda/decode/choose.cuh"

namespace
{

constexpr int THREADS = 1024, WARPS = THREADS / 32;
constexpr float UNIT = 0x1p40f; /* weight of the most probable token */

typedef unsigned long long wide;

struct call {
    mc_choose_call c;
    mc_view logits;
};

/* The logits of one row for the choice: penalised, divided by the temperature. */
struct row_view {
    mc_view logits;
    int64_t at;
    int vocab;
    const uint32_t *seen; /* NULL: no penalty */
    float penalty, temperature;

    __device__ __forceinline__ float operator[](int i) const
    {
        return adjusted(mc_load_one(logits, at + i), i);
    }

    __device__ __forceinline__ float adjusted(float x, int i) const
    {
        x = mc_penalized(seen, penalty, i, x);
        return temperature == 1.0f ? x : x / temperature;
    }
};

__device__ __forceinline__ wide weight_of(float x, float largest)
{
    return (wide)(expf(x - largest) * UNIT);
}

/* ---- the most probable token, and the sum of all --------------------------------------------- */

struct best {
    float x, sum; /* sum of e^(logit - x) */
    int token;
};

/* Among equal ones the first. A NaN among the logits makes the sum NaN. */
__device__ __forceinline__ best join(best a, best b)
{
    bool first = a.x > b.x || (a.x == b.x && a.token < b.token);
    best larger = first ? a : b, smaller = first ? b : a;
    float factor = smaller.x == larger.x ? 1.0f : mc_exp(smaller.x - larger.x);
    larger.sum += smaller.sum * factor;
    return larger;
}

__device__ __forceinline__ best join_warp(best b)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        best other = {__shfl_xor_sync(0xffffffffu, b.x, lane),
                      __shfl_xor_sync(0xffffffffu, b.sum, lane),
                      __shfl_xor_sync(0xffffffffu, b.token, lane)};
        b = join(b, other);
    }
    return b;
}

/* Adds N more tokens, which come after the earlier ones. */
template <int N> __device__ __forceinline__ void take(best &b, const float (&x)[N], int first)
{
    float most = b.x;
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (x[j] > most) b.token = first + j;
        most = fmaxf(most, x[j]);
    }
    float base = most == -INFINITY ? 0.0f : most;
    b.sum *= b.x == most ? 1.0f : mc_exp(b.x - base);
    b.x = most;
#pragma unroll
    for (int j = 0; j < N; j++) b.sum += mc_exp(x[j] - base);
}

/* The tokens in whole chunks of 16 bytes. */
template <class T> __device__ void take_chunks(best &b, const row_view &row, int first, int chunks)
{
    constexpr int N = mc_width<T>, STRIP = 2; /* loads at once */
    const mc_view whole = {row.logits.data, 0, row.logits.dtype, true};
    for (int chunk = threadIdx.x; chunk < chunks; chunk += STRIP * THREADS) {
        mc_bits bits[STRIP];
#pragma unroll
        for (int t = 0; t < STRIP; t++)
            if (chunk + t * THREADS < chunks)
                bits[t] =
                    mc_load_bits<T, true>(whole, row.at + first + (chunk + t * THREADS) * N, N);
#pragma unroll
        for (int t = 0; t < STRIP; t++) {
            if (chunk + t * THREADS >= chunks) break;
            float x[N];
            int token = first + (chunk + t * THREADS) * N;
            mc_unpack<T>(whole, bits[t], x);
#pragma unroll
            for (int j = 0; j < N; j++) x[j] = row.adjusted(x[j], token + j);
            take(b, x, token);
        }
    }
}

/* Returned to all threads. Rows start at any address: elements before and after whole chunks are
 * processed first and last. */
__device__ best find_best(const row_view &row)
{
    __shared__ float xs[WARPS], sums[WARPS];
    __shared__ int tokens[WARPS];
    int size = row.logits.dtype == MC_F32 ? 4 : 2, each = 16 / size, thread = (int)threadIdx.x;
    int before = (int)(((uintptr_t)row.logits.data + (uintptr_t)(row.at * size)) % 16) / size;
    int first = min(row.vocab, before ? each - before : 0), chunks = (row.vocab - first) / each;
    best b = {-INFINITY, 0.0f, 0};
    if (thread < first) take(b, {row[thread]}, thread);
    if (row.logits.dtype == MC_F32)
        take_chunks<float>(b, row, first, chunks);
    else if (row.logits.dtype == MC_BF16)
        take_chunks<__nv_bfloat16>(b, row, first, chunks);
    else
        take_chunks<__half>(b, row, first, chunks);
    int last = first + chunks * each + thread;
    if (last < row.vocab) take(b, {row[last]}, last);
    b = join_warp(b);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) {
        xs[warp] = b.x;
        sums[warp] = b.sum;
        tokens[warp] = b.token;
    }
    __syncthreads();
    return join_warp({xs[lane], sums[lane], tokens[lane]});
}

/* ---- borders --------------------------------------------------------------------------------- */

__device__ __forceinline__ wide block_sum(wide x, wide *shared)
{
    __syncthreads();
    x = mc_block_sum(x, shared);
    return x;
}

/* The largest key that the keys of at least k tokens reach. */
__device__ uint32_t border_of_k(const row_view &row, wide k, wide *shared)
{
    uint32_t low = 0;
    for (int bit = 31; bit >= 0; bit--) {
        uint32_t middle = low | 1u << bit;
        wide reach = 0;
        for (int i = threadIdx.x; i < row.vocab; i += THREADS)
            reach += mc_ordered(row[i]) >= middle;
        if (block_sum(reach, shared) >= k) low = middle;
    }
    return low;
}

/* The sum of the weights of tokens with keys in [low, high). */
__device__ wide weight_between(const row_view &row, float largest, uint32_t low, wide high,
                               wide *shared)
{
    wide sum = 0;
    for (int i = threadIdx.x; i < row.vocab; i += THREADS) {
        float x = row[i];
        uint32_t key = mc_ordered(x);
        if (key >= low && key < high) sum += weight_of(x, largest);
    }
    return block_sum(sum, shared);
}

/* The tokens to draw from: all with keys above `key`, and the first `equals` with this key. */
struct border {
    uint32_t key;
    wide equals;
};

/* Removes the least probable tokens while their sum is at most `limit`; of equal ones the last. */
__device__ border border_of_p(const row_view &row, float largest, uint32_t lowest, wide limit,
                              wide *shared)
{
    uint32_t low = lowest, high = mc_ordered(largest); /* the limit is in low .. high */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (weight_between(row, largest, lowest, (wide)middle + 1, shared) > limit)
            high = middle;
        else
            low = middle + 1;
    }
    wide below = weight_between(row, largest, lowest, low, shared), equals = 0;
    float x = __uint_as_float(low >> 31 ? low ^ 0x80000000u : ~low);
    for (int i = threadIdx.x; i < row.vocab; i += THREADS) equals += mc_ordered(row[i]) == low;
    equals = block_sum(equals, shared);
    wide each = weight_of(x, largest), gone = each ? (limit - below) / each : 0;
    return {low, gone < equals ? equals - gone : 1};
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Weights of the lanes' tokens within the border; *before: earlier tokens with the border's key. */
__device__ __forceinline__ wide kept_weight(float x, bool there, float largest, const border &b,
                                            wide *before)
{
    uint32_t key = there ? mc_ordered(x) : 0;
    bool equal = there && key == b.key;
    unsigned equals = __ballot_sync(0xffffffffu, equal);
    wide place = *before + __popc(equals & ((1u << threadIdx.x % 32) - 1));
    *before += __popc(equals);
    bool kept = there && (key > b.key || (equal && place < b.equals));
    return kept ? weight_of(x, largest) : 0;
}

/* Inclusive prefix sum over the lanes. */
__device__ __forceinline__ wide lane_scan(wide x)
{
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        wide below = __shfl_up_sync(0xffffffffu, x, step);
        if ((int)threadIdx.x % 32 >= step) x += below;
    }
    return x;
}

struct draw {
    int token;
    wide sum; /* of all weights drawn from */
};

/* Divides the tokens into a piece for each warp. The sums of the pieces determine the piece in
 * which the random number falls; its warp searches it again. */
__device__ draw draw_token(const row_view &row, float largest, const border &b, double u)
{
    __shared__ wide sums[WARPS], equals[WARPS];
    __shared__ int token;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int piece = (row.vocab + THREADS - 1) / THREADS * 32, first = warp * piece,
        last = min(first + piece, row.vocab);
    wide mine = 0, sum = 0, earlier = 0, before = 0, total = 0;
    for (int i = first + lane; i < last; i += 32) mine += mc_ordered(row[i]) == b.key;
    mine = mc_warp_sum(mine);
    if (lane == 0) equals[warp] = mine;
    if (threadIdx.x == 0) token = -1;
    __syncthreads();
    for (int w = 0; w < warp; w++) earlier += equals[w];
    wide place = earlier;
    for (int i = first; i < last; i += 32) {
        bool there = i + lane < last;
        sum += kept_weight(there ? row[i + lane] : 0.0f, there, largest, b, &place);
    }
    sum = mc_warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += sums[w];
        total += sums[w];
    }
    wide target = min((wide)(u * (double)total), total - 1);
    if (target >= before && target < before + sum) {
        place = earlier;
        for (int i = first; i < last; i += 32) {
            bool there = i + lane < last;
            wide weight = kept_weight(there ? row[i + lane] : 0.0f, there, largest, b, &place);
            wide scan = before + lane_scan(weight);
            unsigned passed = __ballot_sync(0xffffffffu, scan > target);
            if (passed) {
                if (lane == 0) token = i + __ffs((int)passed) - 1;
                break;
            }
            before = __shfl_sync(0xffffffffu, scan, 31);
        }
    }
    __syncthreads();
    return {token, total};
}

__device__ draw sample(const row_view &row, float largest, const mc_sampling &how, double u)
{
    __shared__ wide shared[WARPS];
    border b = {mc_ordered(-INFINITY) + 1, (wide)row.vocab}; /* -infinity has no weight anyway */
    if (how.top_k > 0 && how.top_k < row.vocab) {
        uint32_t key = border_of_k(row, (wide)how.top_k, shared);
        if (key > b.key) b.key = key;
    }
    if (how.top_p < 1.0f) {
        wide all = weight_between(row, largest, b.key, (wide)1 << 32, shared);
        wide limit = (wide)((1 - (double)how.top_p) * (double)all);
        b = border_of_p(row, largest, b.key, limit, shared);
    }
    return draw_token(row, largest, b, u);
}

__global__ void __launch_bounds__(THREADS) choose(const __grid_constant__ call k)
{
    const mc_choose_call &c = k.c;
    int64_t at = blockIdx.x;
    mc_let_next_begin();
    mc_wait_for_earlier();
    int32_t answer = c.state[MC_ROW_ANSWER * c.stride + at];
    int32_t step = c.state[MC_ROW_STEP * c.stride + at];
    bool ended = c.state[MC_ROW_ENDED * c.stride + at] != 0;
    mc_chosen chosen = {MC_CHOSEN_NOTHING, 0.0f};
    if (!ended) {
        const mc_answer_rules &rules = c.rules[answer];
        const mc_sampling how = rules.how;
        row_view row = {k.logits, at * k.logits.stride, (int)c.vocab, NULL, 1.0f, 1.0f};
        row.penalty = how.repetition_penalty;
        if (row.penalty != 1.0f) row.seen = c.seen + answer * mc_seen_words(c.vocab);
        if (how.sample) row.temperature = how.temperature;
        best b = find_best(row);
        float log_sum = b.x + logf(b.sum);
        if (!isfinite(log_sum)) {
            chosen.token = MC_CHOSEN_NOT_FINITE;
        } else if (how.sample) {
            double u = mc_uniform(how.seed, (uint64_t)rules.place, (uint64_t)step);
            draw d = sample(row, b.x, how, u);
            chosen.token = d.token;
            chosen.log_probability =
                (float)((double)row[d.token] - (double)b.x - log((double)d.sum / (double)UNIT));
        } else {
            chosen = {b.token, b.x - log_sum};
        }
    }
    __syncthreads(); /* all threads have read the row's state */
    if (threadIdx.x == 0) mc_choose_note(&c, at, chosen);
}

} // namespace

extern "C" mc_status mc_cuda_choose_tokens(mc_device *d, const mc_choose_call *c, mc_matrix logits)
{
    if (c->rows == 0) return MC_OK;
    call k = {*c, mc_view_of(logits, 2, 1)};
    MC_LAUNCH_EARLY(d, choose, (unsigned)c->rows, THREADS, 0, k);
    return mc_cuda_launched(d, "choose_tokens");
}
