/* fill: initial values of parameters, with the same bits as core/device/cpu/isa/random.c in every
 * build: integers, and f32 additions, products and square roots that are rounded once each, as
 * intrinsics so that none are contracted. Bytes per element: its size, written once. */
#include <math.h>
#include "core/device/cuda/runtime/kernels.cuh"

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
/* a * b + c, rounded twice. */
__device__ __forceinline__ float step(float a, float b, float c) { return add(multiply(a, b), c); }

/* sqrt(-2 ln u) for u = k / 2^24, 0 < k <= 2^24. */
__device__ __forceinline__ float radius(uint32_t k)
{
    uint32_t offset = __float_as_uint(multiply((float)(int32_t)k, 0x1p-24f)) - 0x3f3504f3u;
    float e = (float)((int32_t)offset >> 23);
    float f = add(__uint_as_float((offset & 0x7fffff) + 0x3f3504f3u), -1.0f);
    float p = -0.0763449633671f;
    p = step(p, f, 0.127615761973f);
    p = step(p, f, -0.131601819573f);
    p = step(p, f, 0.142017580865f);
    p = step(p, f, -0.166233574057f);
    p = step(p, f, 0.200012268748f);
    p = step(p, f, -0.250008210328f);
    p = step(p, f, 0.333333317077f);
    float square = multiply(f, f);
    float low = add(multiply(multiply(p, f), square), -multiply(0.5f, square));
    low = add(low, multiply(e, -2.12194440e-4f));
    return __fsqrt_rn(multiply(-2.0f, add(multiply(e, 0.693359375f), add(low, f))));
}

/* Cosine and sine of 2 pi k / 2^24. */
__device__ __forceinline__ void turn(uint32_t k, float *cosine, float *sine)
{
    uint32_t quarter = (k + (1u << 21)) >> 22;
    float t = multiply((float)((int32_t)k - (int32_t)(quarter << 22)), 0x1p-22f);
    float y = multiply(t, t);
    float s = step(-0.00460165786379f, y, 0.0796800327617f);
    s = multiply(step(s, y, -0.645963460233f), y);
    s = multiply(add(s, 1.57079632171f), t);
    float c = step(0.000903766539827f, y, -0.0208601651099f);
    c = multiply(step(c, y, 0.253669225965f), y);
    c = add(multiply(add(c, -1.2337005426f), y), 1.0f);
    bool swap = quarter & 1;
    uint32_t cs = __float_as_uint(swap ? s : c), ss = __float_as_uint(swap ? c : s);
    *cosine = __uint_as_float(cs ^ ((quarter + 1) & 2) << 30);
    *sine = __uint_as_float(ss ^ (quarter & 2) << 30);
}

/* The arguments for the four elements of a Philox block. */
struct filling {
    mc_fill fill;
    float width, below; /* uniform: b - a, and the last number before b */

    __device__ __forceinline__ void normals(const uint32_t *words, float *out) const
    {
        for (int i = 0; i < 4; i += 2) {
            float r = radius((words[i] >> 8) + 1), c, s;
            turn(words[i + 1] >> 8, &c, &s);
            out[i] = add(fill.a, multiply(fill.b, multiply(r, c)));
            out[i + 1] = add(fill.a, multiply(fill.b, multiply(r, s)));
        }
    }

    /* Rounding could give b, which the range excludes. */
    __device__ __forceinline__ void uniforms(const uint32_t *words, float *out) const
    {
        for (int i = 0; i < 4; i++) {
            float unit = multiply((float)(int32_t)(words[i] >> 8), 0x1p-24f);
            float x = add(fill.a, multiply(width, unit));
            out[i] = x < fill.b || !(fill.b > fill.a) ? x : below;
        }
    }
};

/* One thread per Philox block with elements of `out`: elements 4 block .. 4 block + 3 of the
 * parameter, of which out has first .. first + count. */
static __global__ void __launch_bounds__(256)
    fill_blocks(const __grid_constant__ filling f, int64_t first, int64_t count, mc_view out)
{
    int64_t block = (first >> 2) + (int64_t)blockIdx.x * 256 + threadIdx.x, at = 4 * block - first;
    if (at >= count) return;
    float v[4] = {f.fill.a, f.fill.a, f.fill.a, f.fill.a};
    uint32_t words[4];
    if (f.fill.kind != MC_FILL_CONSTANT) mc_philox(f.fill.key, (uint64_t)block, 0, words);
    if (f.fill.kind == MC_FILL_NORMAL) f.normals(words, v);
    if (f.fill.kind == MC_FILL_UNIFORM) f.uniforms(words, v);
    if (at >= 0 && at + 4 <= count && at % 4 == 0) {
        mc_store<mc_mixed>(out, at, 4, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (at + i >= 0 && at + i < count) mc_store_one(out, at + i, v[i]);
}

extern "C" mc_status mc_cuda_fill(mc_device *d, mc_fill fill, int64_t first, int64_t count,
                                  mc_matrix out)
{
    if (count == 0) return MC_OK;
    filling f = {fill, fill.b - fill.a, nextafterf(fill.b, fill.a)};
    int64_t blocks = ((first + count - 1) >> 2) - (first >> 2) + 1;
    fill_blocks<<<(unsigned)mc_ceil_div(blocks, 256), 256, 0, mc_cuda_of(d)->stream>>>(
        f, first, count, mc_view_of(out, 1, 4));
    return mc_cuda_launched(d, "fill");
}
