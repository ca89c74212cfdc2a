/* Positions of tokens: a bias by distance from its table, and rotary positions, which read and
 * write the rotated columns once; a block has a row, whose heads all use the same angles. */
#include "core/device/cuda/runtime/kernels.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr int CHUNK = mc_width<mc_mixed>;

/* ---- bias by distance ------------------------------------------------------------------------ */

struct spread {
    mc_view table;
    const int32_t *bucket;
    float *out;
    int64_t heads, distances;
};

__global__ void __launch_bounds__(THREADS) spread_table(const __grid_constant__ spread s)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s.heads * s.distances;
         i += (int64_t)gridDim.x * THREADS)
        s.out[i] =
            mc_load_one(s.table, s.bucket[i % s.distances] * s.table.stride + i / s.distances);
}

struct gather {
    mc_view dtable;
    const float *dy;
    const int32_t *bucket;
    int64_t buckets, heads, distances;
    bool accumulate;
};

/* One warp per element of the table. */
__global__ void __launch_bounds__(THREADS) gather_table(const __grid_constant__ gather g)
{
    int64_t item = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (item >= g.buckets * g.heads) return;
    int64_t bucket = item / g.heads, head = item % g.heads;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x % 32; i < g.distances; i += 32)
        if (g.bucket[i] == bucket) sum += g.dy[head * g.distances + i];
    sum = mc_warp_sum(sum);
    if (threadIdx.x % 32) return;
    int64_t at = bucket * g.dtable.stride + head;
    mc_store_one(g.dtable, at, g.accumulate ? mc_load_one(g.dtable, at) + sum : sum);
}

/* ---- rotary positions ------------------------------------------------------------------------ */

struct rotation {
    mc_view x;
    const int32_t *positions;
    int64_t rows;
    int heads, head_dim, pairs;
    bool halves;
    float magnitude, sign;
    double log2_base;
    mc_rotation scaled; /* for mc_rotary_angle */
};

/* Cosines (pairs), then sines, of all pairs at a position. Angles are counted in turns in double,
 * because f32 has no digits left for them at large positions. */
__device__ void find_turns(const rotation &r, int position, float *turns)
{
    constexpr double TURN = 6.283185307179586477; /* 2 pi */
    for (int i = threadIdx.x; i < r.pairs; i += THREADS) {
        double angle = mc_rotary_angle(&r.scaled, i, exp2(-(double)i / r.pairs * r.log2_base));
        double turned = position * angle / TURN;
        float cosine, sine;
        sincosf((float)((turned - rint(turned)) * TURN), &sine, &cosine);
        turns[i] = r.magnitude * cosine;
        turns[r.pairs + i] = r.sign * sine;
    }
}

/* CHUNK columns of the first halves of pairs, and of the second ones. */
__device__ void rotate_halves(const rotation &r, int64_t at, int i, const float *turns)
{
    int n = min(r.pairs - i, CHUNK);
    float a[CHUNK], b[CHUNK], x[CHUNK], y[CHUNK];
    mc_load<mc_mixed>(r.x, at + i, n, a);
    mc_load<mc_mixed>(r.x, at + r.pairs + i, n, b);
#pragma unroll
    for (int j = 0; j < CHUNK; j++) {
        float cosine = j < n ? turns[i + j] : 0.0f, sine = j < n ? turns[r.pairs + i + j] : 0.0f;
        x[j] = a[j] * cosine - b[j] * sine;
        y[j] = b[j] * cosine + a[j] * sine;
    }
    mc_store<mc_mixed>(r.x, at + i, n, x);
    mc_store<mc_mixed>(r.x, at + r.pairs + i, n, y);
}

/* CHUNK columns, half as many pairs. */
__device__ void rotate_neighbours(const rotation &r, int64_t at, int i, const float *turns)
{
    int n = min(2 * r.pairs - i, CHUNK);
    float a[CHUNK], x[CHUNK];
    mc_load<mc_mixed>(r.x, at + i, n, a);
#pragma unroll
    for (int j = 0; j < CHUNK; j += 2) {
        int pair = (i + j) / 2;
        float cosine = j < n ? turns[pair] : 0.0f, sine = j < n ? turns[r.pairs + pair] : 0.0f;
        x[j] = a[j] * cosine - a[j + 1] * sine;
        x[j + 1] = a[j + 1] * cosine + a[j] * sine;
    }
    mc_store<mc_mixed>(r.x, at + i, n, x);
}

__global__ void __launch_bounds__(THREADS) rotate(const __grid_constant__ rotation r)
{
    extern __shared__ float turns[];
    int columns = r.halves ? r.pairs : 2 * r.pairs, per_head = (columns + CHUNK - 1) / CHUNK;
    for (int64_t row = blockIdx.x; row < r.rows; row += gridDim.x) {
        find_turns(r, r.positions[row], turns);
        __syncthreads();
        for (int item = threadIdx.x; item < r.heads * per_head; item += THREADS) {
            int64_t at = row * r.x.stride + (int64_t)(item / per_head) * r.head_dim;
            int i = item % per_head * CHUNK;
            if (r.halves)
                rotate_halves(r, at, i, turns);
            else
                rotate_neighbours(r, at, i, turns);
        }
        __syncthreads();
    }
}

} // namespace

extern "C" mc_status mc_cuda_position_bias(mc_device *d, int64_t heads, int64_t distances,
                                           mc_matrix table, const int32_t *bucket, float *out)
{
    spread s = {mc_view_of(table, 2, CHUNK), bucket, out, heads, distances};
    unsigned blocks = (unsigned)mc_least(mc_ceil_div(heads * distances, THREADS), INT32_MAX);
    if (blocks) spread_table<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(s);
    return mc_cuda_launched(d, "position_bias");
}

extern "C" mc_status mc_cuda_position_bias_backward(mc_device *d, int64_t buckets, int64_t heads,
                                                    int64_t distances, const float *dy,
                                                    const int32_t *bucket, mc_matrix dtable,
                                                    bool accumulate)
{
    gather g = {mc_view_of(dtable, 2, CHUNK), dy, bucket, buckets, heads, distances, accumulate};
    unsigned blocks = (unsigned)mc_ceil_div(buckets * heads, THREADS / 32);
    if (blocks) gather_table<<<blocks, THREADS, 0, mc_cuda_of(d)->stream>>>(g);
    return mc_cuda_launched(d, "position_bias_backward");
}

extern "C" mc_status mc_cuda_rotary(mc_device *d, int64_t rows, mc_rotation rotation_of,
                                    const int32_t *positions, mc_matrix x)
{
    rotation r = {};
    r.x = mc_view_of(x, 2, CHUNK);
    r.positions = positions;
    r.rows = rows;
    r.heads = rotation_of.heads;
    r.head_dim = rotation_of.head_dim;
    r.pairs = rotation_of.rotary_dim / 2;
    r.halves = rotation_of.halves;
    r.scaled = rotation_of;
    r.magnitude = mc_rotary_magnitude(&rotation_of);
    r.sign = rotation_of.inverse ? -r.magnitude : r.magnitude;
    r.log2_base = log2((double)rotation_of.base);
    r.x.whole = r.x.whole && r.head_dim % CHUNK == 0 && (!r.halves || r.pairs % CHUNK == 0);
    size_t shared = (size_t)rotation_of.rotary_dim * sizeof(float);
    if (shared > 48 * 1024)
        return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "rotary: %d columns of a head, at most %d",
                            rotation_of.rotary_dim, 12 * 1024);
    unsigned blocks = (unsigned)mc_least(rows, INT32_MAX);
    if (blocks) rotate<<<blocks, THREADS, shared, mc_cuda_of(d)->stream>>>(r);
    return mc_cuda_launched(d, "rotary");
}
