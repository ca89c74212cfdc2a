/* The most probable tokens of each row, for beam search: one block per row. Each thread keeps the
 * best of its tokens; the block takes the best of these, and its thread searches its next one. */
#include <cmath>
#include "core/device/cuda/decode/choose.cuh"

namespace
{

constexpr int THREADS = 1024, WARPS = THREADS / 32;

typedef unsigned long long wide;

struct call {
    mc_best_call c;
    mc_view logits;
};

struct row_view {
    mc_view logits;
    int64_t at;
    int vocab;
    const uint32_t *seen; /* NULL: no penalty */
    float penalty, largest, log_sum;

    __device__ __forceinline__ float logit(int i) const { return mc_load_one(logits, at + i); }

    __device__ __forceinline__ float log_probability(int i) const
    {
        return mc_penalized(seen, penalty, i, logit(i) - largest - log_sum);
    }
};

/* A key that is larger for the better token: by log-probability, among equal ones the first token.
 * 0: none. */
__device__ __forceinline__ wide key_of(float x, int token)
{
    return (wide)mc_ordered(x) << 32 | ~(uint32_t)token;
}

__device__ __forceinline__ mc_chosen chosen_of(wide key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    if (!key) return {MC_CHOSEN_NOTHING, 0.0f};
    return {(int32_t) ~(uint32_t)key, __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits)};
}

/* The largest, returned to all threads. */
__device__ wide block_largest(wide x, wide *shared)
{
    x = mc_warp_largest(x);
    __syncthreads(); /* earlier contents have been read */
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return mc_warp_largest(shared[threadIdx.x % 32]);
}

/* Sets the largest logit and the logarithm of the sum; false if they are not finite. */
__device__ bool normalise(row_view &row, wide *shared, float *sums)
{
    float most = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < row.vocab; i += THREADS) {
        float x = row.logit(i);
        if (x == -INFINITY) continue;
        if (x > most) {
            sum *= expf(most - x);
            most = x;
        }
        sum += expf(x - most); /* NaN stays */
    }
    row.largest = chosen_of(block_largest(key_of(most, 0), shared)).log_probability;
    sum = mc_block_sum(most == -INFINITY ? sum : sum * expf(most - row.largest), sums);
    row.log_sum = logf(sum);
    return isfinite(row.largest) && isfinite(row.log_sum);
}

/* The best of the thread's tokens that come after `limit`. */
__device__ wide best_below(const row_view &row, wide limit)
{
    wide best = 0;
    for (int i = threadIdx.x; i < row.vocab; i += THREADS) {
        wide key = key_of(row.log_probability(i), i);
        if (key < limit && key > best) best = key;
    }
    return best;
}

__global__ void __launch_bounds__(THREADS) find(const __grid_constant__ call k)
{
    __shared__ wide shared[WARPS];
    __shared__ float sums[WARPS];
    const mc_best_call &c = k.c;
    int64_t at = blockIdx.x;
    mc_let_next_begin();
    mc_wait_for_earlier();
    float penalty = c.penalty ? c.penalty[at] : 1.0f;
    row_view row = {k.logits, at * k.logits.stride, (int)c.vocab, NULL, penalty, 0.0f, 0.0f};
    if (penalty == 0.0f) return;
    if (penalty != 1.0f) row.seen = c.seen + at * mc_seen_words(c.vocab);
    mc_chosen *out = c.best + at * c.count;
    if (!normalise(row, shared, sums)) {
        if (threadIdx.x == 0) out[0] = {MC_CHOSEN_NOT_FINITE, 0.0f};
        return;
    }
    wide mine = best_below(row, ~(wide)0);
    for (int32_t i = 0; i < c.count; i++) {
        wide best = block_largest(mine, shared);
        if (threadIdx.x == 0) out[i] = chosen_of(best);
        if (mine == best && best) mine = best_below(row, best);
    }
}

} // namespace

extern "C" mc_status mc_cuda_best_tokens(mc_device *d, const mc_best_call *c, mc_matrix logits)
{
    if (c->rows == 0) return MC_OK;
    call k = {*c, mc_view_of(logits, 2, 1)};
    MC_LAUNCH_EARLY(d, find, (unsigned)c->rows, THREADS, 0, k);
    return mc_cuda_launched(d, "best_tokens");
}
