/* Optimizer steps over flat arrays, statistics of gradients, and the end of a step. Bytes per
 * element: adam 28 for f32 parameters (30 for a 16-bit parameter with an f32 master), sgd 12 (20
 * with momentum; 2 more with a master), gradient_stats 4; 2 less with 16-bit gradients. */
#include <math.h>
#include "core/device/cuda/runtime/kernels.cuh"
#include "core/device/dynamic_map_internal.h"

enum { THREADS = 256 };

/* The arrays of a step. Chunks have four elements. */
struct flat {
    int64_t count;
    mc_view gradient, m, v, p; /* p: the f32 values */
    mc_view stored;            /* the parameter, if `p` is its master; data NULL: none */
};

static flat flat_of(int64_t count, mc_matrix gradient, float *m, float *v, float *master,
                    void *parameter, mc_dtype dtype)
{
    auto view = [](const void *data, mc_dtype type) {
        return mc_view_of({(void *)(uintptr_t)data, type, 0}, 1, 4);
    };
    return {count,
            view(gradient.data, gradient.dtype),
            view(m, MC_F32),
            view(v, MC_F32),
            view(master ? master : parameter, MC_F32),
            view(master ? parameter : NULL, dtype)};
}

/* As many blocks as run at once, or as the chunks need. */
template <class K> static unsigned flat_grid(mc_device *d, K kernel, int64_t count)
{
    int64_t blocks = mc_ceil_div(count, 4 * THREADS);
    return (unsigned)mc_least(blocks, mc_resident_blocks(d, kernel, THREADS, 0));
}

/* Stores new values of the parameter. */
__device__ __forceinline__ void store_parameter(const flat &f, int64_t at, int n,
                                                const float (&p)[4])
{
    mc_store<float>(f.p, at, n, p);
    if (f.stored.data) mc_store<mc_mixed>(f.stored, at, n, p);
}

/* ---- Adam ------------------------------------------------------------------------------------ */

struct adam_scalars {
    float gradient_scale, step_size, sqrt_correction2, decay, l2;
    int32_t skip;
};

/* pow would take microseconds, for which all threads of every block would wait. */
__device__ static double power(double base, int64_t exponent)
{
    double result = 1;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

__device__ static void adam_scalars_of(const mc_adam_step &step, adam_scalars *s)
{
    mc_update u = *step.update;
    int64_t t = u.step + step.step_offset;
    double lr = u.lr * (double)step.lr_factor;
    s->skip = u.skip;
    s->gradient_scale = u.gradient_scale;
    s->step_size = (float)(lr / (1 - power((double)step.beta1, t)));
    s->sqrt_correction2 = (float)sqrt(1 - power((double)step.beta2, t));
    s->decay = step.l2 ? 0 : (float)(lr * (double)step.weight_decay);
    s->l2 = step.l2 ? step.weight_decay : 0;
}

/* G: the gradient's type, float or mc_mixed (16 bits). */
template <class G>
static __global__ void __launch_bounds__(THREADS)
    adam(const __grid_constant__ flat f, const __grid_constant__ mc_adam_step step)
{
    __shared__ adam_scalars shared;
    if (threadIdx.x == 0) adam_scalars_of(step, &shared);
    __syncthreads();
    const adam_scalars s = shared;
    if (s.skip) return;
    const float m_new = 1.0f - step.beta1, v_new = 1.0f - step.beta2;
    int64_t stride = (int64_t)gridDim.x * THREADS * 4;
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; at < f.count;
         at += stride) {
        int n = f.count - at < 4 ? (int)(f.count - at) : 4;
        mc_bits gs = mc_load_bits<G>(f.gradient, at, n), ms = mc_load_bits<float>(f.m, at, n);
        mc_bits vs = mc_load_bits<float>(f.v, at, n), ps = mc_load_bits<float>(f.p, at, n);
        float gradient[4], m[4], v[4], p[4];
        mc_unpack<G>(f.gradient, gs, gradient);
        mc_unpack<float>(f.m, ms, m);
        mc_unpack<float>(f.v, vs, v);
        mc_unpack<float>(f.p, ps, p);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float g = gradient[i] * s.gradient_scale + s.l2 * p[i];
            m[i] = step.beta1 * m[i] + m_new * g;
            v[i] = step.beta2 * v[i] + v_new * (g * g);
            float divisor = sqrtf(v[i]) / s.sqrt_correction2 + step.eps;
            p[i] = p[i] - s.step_size * m[i] / divisor - s.decay * p[i];
        }
        mc_store<float>(f.m, at, n, m);
        mc_store<float>(f.v, at, n, v);
        store_parameter(f, at, n, p);
    }
}

extern "C" mc_status mc_cuda_adam(mc_device *d, int64_t count, mc_adam_step step,
                                  mc_matrix gradient, float *m, float *v, float *master,
                                  void *parameter, mc_dtype parameter_dtype)
{
    if (count == 0) return MC_OK;
    flat f = flat_of(count, gradient, m, v, master, parameter, parameter_dtype);
    auto kernel = gradient.dtype == MC_F32 ? adam<float> : adam<mc_mixed>;
    kernel<<<flat_grid(d, kernel, count), THREADS, 0, mc_cuda_of(d)->stream>>>(f, step);
    return mc_cuda_launched(d, "adam");
}

/* ---- Adam with its state in 8 bits ----------------------------------------------------------- */

struct maps {
    float sign[MC_MAP_SIZE], plain[MC_MAP_SIZE];
};

/* The nearest number of the map; the smaller of two that are equally near. */
__device__ __forceinline__ uint8_t encode(const float *map, float part)
{
    int at = 0; /* the last entry not above it */
#pragma unroll
    for (int step = MC_MAP_SIZE / 2; step; step /= 2) at += map[at + step] <= part ? step : 0;
    if (at + 1 < MC_MAP_SIZE && map[at + 1] - part < part - map[at]) at++;
    return (uint8_t)at;
}

/* The largest of a state block, of which each thread of a block has one element. */
__device__ __forceinline__ float largest_of(float x)
{
    __shared__ float of_warp[THREADS / 32], all;
    for (int lane = 16; lane; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < THREADS / 32; i++) x = fmaxf(x, of_warp[i]);
        all = x;
    }
    __syncthreads();
    x = all;
    __syncthreads();
    return x;
}

static_assert((int)THREADS == (int)MC_STATE_BLOCK && (int)THREADS == (int)MC_MAP_SIZE,
              "an element, a number a thread");

static __global__ void __launch_bounds__(THREADS)
    adam8(int64_t count, const __grid_constant__ mc_adam_step step, mc_view gradient, mc_state8 m,
          mc_state8 v, float *values, mc_view stored, const __grid_constant__ maps given)
{
    __shared__ maps map;
    __shared__ adam_scalars shared;
    map.sign[threadIdx.x] = given.sign[threadIdx.x];
    map.plain[threadIdx.x] = given.plain[threadIdx.x];
    if (threadIdx.x == 0) adam_scalars_of(step, &shared);
    __syncthreads();
    const adam_scalars s = shared;
    if (s.skip) return;
    const float m_new = 1.0f - step.beta1, v_new = 1.0f - step.beta2;
    for (int64_t b = blockIdx.x; b * MC_STATE_BLOCK < count; b += gridDim.x) {
        int64_t at = b * MC_STATE_BLOCK + threadIdx.x;
        bool inside = at < count;
        float mean = 0, square = 0;
        if (inside) {
            float p = values[at];
            float g = mc_load_one(gradient, at) * s.gradient_scale + s.l2 * p;
            mean = step.beta1 * (map.sign[m.code[at]] * m.scale[b]) + m_new * g;
            square = step.beta2 * (map.plain[v.code[at]] * v.scale[b]) + v_new * (g * g);
            float divisor = sqrtf(square) / s.sqrt_correction2 + step.eps;
            p = p - s.step_size * mean / divisor - s.decay * p;
            values[at] = p;
            if (stored.data) mc_store_one(stored, at, p);
        }
        float m_scale = largest_of(fabsf(mean)), v_scale = largest_of(square);
        if (inside) {
            uint8_t low = v_scale > 0 ? encode(map.plain, square / v_scale) : 0;
            m.code[at] = m_scale > 0 ? encode(map.sign, mean / m_scale) : 0;
            v.code[at] = low == 0 && square > 0 ? 1 : low; /* not zero under the root */
        }
        if (threadIdx.x == 0) {
            m.scale[b] = m_scale;
            v.scale[b] = v_scale;
        }
    }
}

extern "C" mc_status mc_cuda_adam8(mc_device *d, int64_t count, mc_adam_step step,
                                   mc_matrix gradient, mc_state8 m, mc_state8 v, float *master,
                                   void *parameter, mc_dtype parameter_dtype)
{
    if (count == 0) return MC_OK;
    maps map;
    mc_dynamic_map(true, map.sign);
    mc_dynamic_map(false, map.plain);
    int64_t blocks = mc_ceil_div(count, MC_STATE_BLOCK);
    unsigned grid = (unsigned)mc_least(blocks, mc_resident_blocks(d, adam8, THREADS, 0));
    adam8<<<grid, THREADS, 0, mc_cuda_of(d)->stream>>>(
        count, step, mc_view_of(gradient, 1, 4), m, v, master ? master : (float *)parameter,
        mc_view_of({master ? parameter : NULL, parameter_dtype, 0}, 1, 4), map);
    return mc_cuda_launched(d, "adam8");
}

/* ---- SGD ------------------------------------------------------------------------------------- */

struct sgd_scalars {
    float scale, lr, decay, l2;
    bool first;
    int32_t skip;
};

__device__ __forceinline__ sgd_scalars sgd_scalars_of(const mc_sgd_step &step)
{
    mc_update u = *step.update;
    double lr = u.lr * (double)step.lr_factor;
    return {u.gradient_scale,
            (float)lr,
            step.l2 ? 0 : (float)(lr * (double)step.weight_decay),
            step.l2 ? step.weight_decay : 0,
            u.step + step.step_offset == 1,
            u.skip};
}

/* f.m is the buffer; data NULL: no momentum. G as for adam. */
template <class G>
static __global__ void __launch_bounds__(THREADS)
    sgd(const __grid_constant__ flat f, const __grid_constant__ mc_sgd_step step)
{
    const sgd_scalars s = sgd_scalars_of(step);
    if (s.skip) return;
    int64_t stride = (int64_t)gridDim.x * THREADS * 4;
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; at < f.count;
         at += stride) {
        int n = f.count - at < 4 ? (int)(f.count - at) : 4;
        mc_bits gs = mc_load_bits<G>(f.gradient, at, n), bs = {{0, 0, 0, 0}};
        mc_bits ps = mc_load_bits<float>(f.p, at, n);
        if (f.m.data && !s.first) bs = mc_load_bits<float>(f.m, at, n);
        float gradient[4], buffer[4], p[4];
        mc_unpack<G>(f.gradient, gs, gradient);
        mc_unpack<float>(f.m, bs, buffer);
        mc_unpack<float>(f.p, ps, p);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float g = gradient[i] * s.scale + s.l2 * p[i], move = g;
            if (f.m.data) {
                buffer[i] = s.first ? g : step.momentum * buffer[i] + g;
                move = step.nesterov ? g + step.momentum * buffer[i] : buffer[i];
            }
            p[i] = p[i] - s.lr * move - s.decay * p[i];
        }
        if (f.m.data) mc_store<float>(f.m, at, n, buffer);
        store_parameter(f, at, n, p);
    }
}

extern "C" mc_status mc_cuda_sgd(mc_device *d, int64_t count, mc_sgd_step step, mc_matrix gradient,
                                 float *buffer, float *master, void *parameter,
                                 mc_dtype parameter_dtype)
{
    if (count == 0) return MC_OK;
    if (step.momentum == 0.0f) buffer = NULL;
    flat f = flat_of(count, gradient, buffer, NULL, master, parameter, parameter_dtype);
    auto kernel = gradient.dtype == MC_F32 ? sgd<float> : sgd<mc_mixed>;
    kernel<<<flat_grid(d, kernel, count), THREADS, 0, mc_cuda_of(d)->stream>>>(f, step);
    return mc_cuda_launched(d, "sgd");
}

/* ---- statistics of gradients ----------------------------------------------------------------- */

/* Of some of the elements. */
struct stats {
    double squares, powers;
    uint64_t nonfinite; /* as in mc_gradient_stats */
    uint32_t largest;   /* bits of |g|, ordered as required: finite values, inf, NaN */

    __device__ __forceinline__ void merge(const stats &o)
    {
        squares += o.squares;
        powers += o.powers;
        nonfinite = o.nonfinite > nonfinite ? o.nonfinite : nonfinite;
        largest = o.largest > largest ? o.largest : largest;
    }
};

enum stats_power { NO_POWER, FIRST_POWER, ANY_POWER };

template <stats_power KIND>
__device__ __forceinline__ void add_element(stats *s, float g, double power, uint64_t number)
{
    uint32_t bits = __float_as_uint(g) & 0x7fffffff;
    s->squares += (double)g * (double)g;
    if (KIND == FIRST_POWER) s->powers += fabs((double)g);
    if (KIND == ANY_POWER) s->powers += pow(fabs((double)g), power);
    s->largest = bits > s->largest ? bits : s->largest;
    uint64_t mark = ((uint64_t)1 << 63) - number;
    if (bits >= 0x7f800000 && mark > s->nonfinite) s->nonfinite = mark;
}

/* G as of adam. */
template <class G, stats_power KIND>
static __global__ void __launch_bounds__(THREADS)
    block_stats(mc_view g, int64_t count, double power, uint64_t first, stats *out)
{
    enum { UNROLL = 4 };
    stats s = {0, 0, 0, 0};
    int64_t stride = (int64_t)gridDim.x * THREADS * 4;
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    for (; at + (UNROLL - 1) * stride + 4 <= count; at += UNROLL * stride) {
        mc_bits bits[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) bits[k] = mc_load_bits<G>(g, at + k * stride, 4);
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            float values[4];
            mc_unpack<G>(g, bits[k], values);
#pragma unroll
            for (int i = 0; i < 4; i++)
                add_element<KIND>(&s, values[i], power, first + (uint64_t)(at + k * stride + i));
        }
    }
    for (; at < count; at += stride) {
        int n = count - at < 4 ? (int)(count - at) : 4;
        float values[4];
        mc_load<G>(g, at, n, values); /* zeros after the end add nothing */
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n) add_element<KIND>(&s, values[i], power, first + (uint64_t)(at + i));
    }
    s = mc_block_merge<THREADS>(s);
    if (threadIdx.x == 0) out[blockIdx.x] = s;
}

static __global__ void __launch_bounds__(THREADS)
    finish_stats(const stats *block, int blocks, mc_gradient_stats *out)
{
    stats s = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < blocks; i += THREADS) s.merge(block[i]);
    s = mc_block_merge<THREADS>(s);
    if (threadIdx.x != 0) return;
    out->sum_squares += s.squares;
    out->sum_powers += s.powers;
    float value = __uint_as_float(s.largest);
    if (!(value <= out->largest) && !isnan(out->largest)) out->largest = value;
    if (s.nonfinite > out->nonfinite) out->nonfinite = s.nonfinite;
}

template <class G> static auto stats_kernel(double power)
{
    if (power == 2.0 || isinf(power)) return block_stats<G, NO_POWER>;
    return power == 1.0 ? block_stats<G, FIRST_POWER> : block_stats<G, ANY_POWER>;
}

extern "C" mc_status mc_cuda_gradient_stats(mc_device *d, int64_t count, mc_matrix gradient,
                                            double power, int64_t first, mc_gradient_stats *out)
{
    if (count == 0) return MC_OK;
    unsigned grid = flat_grid(d, block_stats<float, NO_POWER>, count);
    stats *block = (stats *)d->alloc(d, grid * sizeof *block);
    if (!block) return MC_ERR_NOMEM;
    mc_view g = mc_view_of({gradient.data, gradient.dtype, 0}, 1, 4);
    cudaStream_t stream = mc_cuda_of(d)->stream;
    auto kernel =
        gradient.dtype == MC_F32 ? stats_kernel<float>(power) : stats_kernel<mc_mixed>(power);
    kernel<<<grid, THREADS, 0, stream>>>(g, count, power, (uint64_t)first, block);
    finish_stats<<<1, THREADS, 0, stream>>>(block, (int)grid, out);
    d->free(d, block, grid * sizeof *block);
    return mc_cuda_launched(d, "gradient_stats");
}

/* ---- the end of a step: see core/device/step_internal.h -------------------------------------- */

static __global__ void step_seed(double nominal, mc_step_state *state)
{
    mc_step_seed(state, nominal);
}
static __global__ void step_count(const float *loss, mc_step_state *state)
{
    mc_step_count(state, loss);
}
static __global__ void step_measure(mc_step_rules rules, int ranks, const mc_step_sums *parts,
                                    mc_step_state *state)
{
    mc_step_measure(state, &rules, ranks, parts);
}
static __global__ void step_decide(mc_step_rules rules, mc_step_state *state)
{
    mc_step_decide(state, &rules);
}
static __global__ void step_update(const mc_step_state *state, const mc_update_guess *guess,
                                   mc_update *update)
{
    mc_step_update(state, guess, update);
}

extern "C" mc_status mc_cuda_step_seed(mc_device *d, double nominal, mc_step_state *state)
{
    step_seed<<<1, 1, 0, mc_cuda_of(d)->stream>>>(nominal, state);
    return mc_cuda_launched(d, "step_seed");
}

extern "C" mc_status mc_cuda_step_count(mc_device *d, const float *loss, mc_step_state *state)
{
    step_count<<<1, 1, 0, mc_cuda_of(d)->stream>>>(loss, state);
    return mc_cuda_launched(d, "step_count");
}

extern "C" mc_status mc_cuda_step_measure(mc_device *d, mc_step_rules rules, int ranks,
                                          const mc_step_sums *parts, mc_step_state *state)
{
    step_measure<<<1, 1, 0, mc_cuda_of(d)->stream>>>(rules, ranks, parts, state);
    return mc_cuda_launched(d, "step_measure");
}

extern "C" mc_status mc_cuda_step_decide(mc_device *d, mc_step_rules rules, mc_step_state *state)
{
    step_decide<<<1, 1, 0, mc_cuda_of(d)->stream>>>(rules, state);
    return mc_cuda_launched(d, "step_decide");
}

extern "C" mc_status mc_cuda_step_update(mc_device *d, const mc_step_state *state,
                                         const mc_update_guess *guess, mc_update *update)
{
    step_update<<<1, 1, 0, mc_cuda_of(d)->stream>>>(state, guess, update);
    return mc_cuda_launched(d, "step_update");
}
