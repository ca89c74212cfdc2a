/* Activations and their slopes for one element: for memory-bound passes (elementwise.cu) and
 * epilogues of products (hopper/product/gemm.cu). */
#ifndef MC_DEVICE_CUDA_ELEMENTWISE_ACTIVATION_CUH
#define MC_DEVICE_CUDA_ELEMENTWISE_ACTIVATION_CUH

#include "core/device/cuda/runtime/kernels.cuh"

/* x and y times this are sqrt(2 / pi) (x + 0.044715 x^3) and its slope. */
constexpr float GELU_NEW_A = 0.7978845608f, GELU_NEW_B = 0.044715f;

/* 16-bit types, for whose results less exact functions suffice. */
template <class T>
constexpr bool mc_is_half = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

/* Normal distribution: density and distribution function at x, by the fit of
 * core/device/cpu/isa/math_internal.h, which is faster than erfc and as exact in the tail. */
__device__ __forceinline__ float normal_cdf(float x, float *density)
{
    float t = fabsf(x), u = __fdividef(1.0f, 1.0f + 0.35f * t);
    float e = mc_exp(-0.5f * x * x);
    float p = -0.0291459497883f;
    p = p * u + 0.14397180373f;
    p = p * u + -0.255714488921f;
    p = p * u + 0.159174437801f;
    p = p * u + -0.0231100268887f;
    p = p * u + 0.105508083267f;
    p = p * u + 0.119832848568f;
    p = p * u + 0.139861872117f;
    p = p * u + 0.139621404171f;
    float tail = p * u * e;
    *density = e * 0.398942280401f;
    return x < 0.0f ? tail : 1.0f - tail;
}

/* c[0] t^(N-1) + ... + c[N-1]. */
template <int N> __device__ __forceinline__ float polynomial(const float (&c)[N], float t)
{
    float p = c[0];
#pragma unroll
    for (int i = 1; i < N; i++) p = p * t + c[i];
    return p;
}

/* The same for 16-bit results, in half the instructions: its tail is 2^p(|x|). The polynomial
 * minimises the largest error relative to the tail: 9e-6 up to 5.7, where f16 ends, 8e-5 up to
 * 12.9. Beyond that p keeps falling, and the tail is 0. */
__device__ __forceinline__ float normal_cdf_half(float x)
{
    constexpr float P[] = {-2.3173099e-09f, 1.63279239e-07f, -5.05717117e-06f, 9.12931209e-05f,
                           -0.00107813824f, 0.00891748536f,  -0.0545738302f,   -0.458019555f,
                           -1.15137088f,    -0.999990165f};
    float tail = mc_exp2(polynomial(P, fabsf(x)));
    return x < 0.0f ? tail : 1.0f - tail;
}

/* 1 / (1 + e^-x), and its mirror image 1 / (1 + e^x). */
__device__ __forceinline__ float sigmoid(float x, float *mirror)
{
    float e = mc_exp(-fabsf(x)), high = __fdividef(1.0f, 1.0f + e), low = e * high;
    *mirror = x < 0.0f ? high : low;
    return x < 0.0f ? low : high;
}

/* HALF: for 16-bit results. Over all their 65,536 inputs (test_gelu_of_all_halves), the largest
 * error in units of the last bit, of which rounding is 0.5: 0.504 in bf16 and 0.513 in f16, for the
 * slope 0.500 and 0.510. */
template <bool HALF> __device__ __forceinline__ float mc_gelu(float x)
{
    float density;
    return x * (HALF ? normal_cdf_half(x) : normal_cdf(x, &density));
}

template <bool HALF> __device__ __forceinline__ float mc_gelu_slope(float x)
{
    float density, cdf = normal_cdf(x, &density);
    return cdf + x * density;
}

/* Left of 0 the slope is (ROOT - |x|) 2^p(|x|): no difference loses digits near the root. Relative
 * error 7e-6 up to 5.7, 6e-5 up to 12.9. */
template <> __device__ __forceinline__ float mc_gelu_slope<true>(float x)
{
    constexpr float ROOT = 0.751791525f;
    constexpr float P[] = {-7.21962212e-11f, 5.6157119e-09f,  -1.93045423e-07f, 3.87756245e-06f,
                           -5.08033227e-05f, 0.000460461335f, -0.0030022678f,   0.0145533159f,
                           -0.0542052537f,   -0.561208725f,   -0.383039206f,    -0.588411331f};
    float t = fabsf(x), left = (ROOT - t) * mc_exp2(polynomial(P, t));
    return x < 0.0f ? left : 1.0f - left;
}

/* x/2 (1 + tanh z) is x sigmoid(2 z). */
template <bool HALF> __device__ __forceinline__ float mc_gelu_new(float x)
{
    float mirror, z = 2.0f * GELU_NEW_A * x * (1.0f + GELU_NEW_B * x * x);
    return x * sigmoid(z, &mirror);
}

template <bool HALF> __device__ __forceinline__ float mc_gelu_new_slope(float x)
{
    float mirror, square = x * x;
    float s = sigmoid(2.0f * GELU_NEW_A * x * (1.0f + GELU_NEW_B * square), &mirror);
    float dz = 2.0f * GELU_NEW_A * (1.0f + 3.0f * GELU_NEW_B * square);
    return s + x * s * mirror * dz;
}

/* sigmoid(2 z) without a case for each side: 1 minus a sigmoid near 1 loses only digits that f32
 * has beyond 16 bits. */
__device__ __forceinline__ float gelu_new_sigmoid(float x, float square)
{
    constexpr float A = -2.0f * GELU_NEW_A * MC_LOG2_E, B = A * GELU_NEW_B;
    float s, below = 1.0f + mc_exp2(x * (B * square + A));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(below));
    return s;
}

template <> __device__ __forceinline__ float mc_gelu_new<true>(float x)
{
    return x * gelu_new_sigmoid(x, x * x);
}

template <> __device__ __forceinline__ float mc_gelu_new_slope<true>(float x)
{
    constexpr float A = 2.0f * GELU_NEW_A, B = 3.0f * A * GELU_NEW_B;
    float square = x * x, s = gelu_new_sigmoid(x, square), xs = x * s;
    return s + (xs - xs * s) * (B * square + A);
}

template <bool HALF> __device__ __forceinline__ float mc_silu(float x)
{
    float mirror;
    return x * sigmoid(x, &mirror);
}

template <bool HALF> __device__ __forceinline__ float mc_silu_slope(float x)
{
    float mirror, s = sigmoid(x, &mirror);
    return s + x * s * mirror;
}

/* As gelu_new_sigmoid. */
__device__ __forceinline__ float silu_sigmoid(float x)
{
    float s, below = 1.0f + mc_exp2(x * -MC_LOG2_E);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(below));
    return s;
}

template <> __device__ __forceinline__ float mc_silu<true>(float x) { return x * silu_sigmoid(x); }

template <> __device__ __forceinline__ float mc_silu_slope<true>(float x)
{
    float s = silu_sigmoid(x), xs = x * s;
    return s + (xs - xs * s);
}

__device__ __forceinline__ float mc_tanh_slope(float x)
{
    float t = tanhf(x);
    return 1.0f - t * t;
}

#define MC_EACH(expression)                                              \
    _Pragma("unroll") for (int i = 0; i < width; i++) v[i] = expression; \
    break

/* v = activation(v), for a result of type T. */
template <class T, int width>
__device__ __forceinline__ void mc_activate(mc_activation activation, float (&v)[width])
{
    switch (activation) {
    case MC_ACTIVATION_RELU: MC_EACH(v[i] < 0.0f ? 0.0f : v[i]);
    case MC_ACTIVATION_GELU: MC_EACH(mc_gelu<mc_is_half<T>>(v[i]));
    case MC_ACTIVATION_GELU_NEW: MC_EACH(mc_gelu_new<mc_is_half<T>>(v[i]));
    case MC_ACTIVATION_TANH: MC_EACH(tanhf(v[i]));
    case MC_ACTIVATION_SILU: MC_EACH(mc_silu<mc_is_half<T>>(v[i]));
    case MC_ACTIVATION_NONE: break;
    }
}

/* v = v * activation'(x), for a result of type T. ReLU's slope at 0 is 0, as in PyTorch. */
template <class T, int width>
__device__ __forceinline__ void mc_activate_backward(mc_activation activation,
                                                     const float (&x)[width], float (&v)[width])
{
    switch (activation) {
    case MC_ACTIVATION_RELU: MC_EACH(x[i] <= 0.0f ? 0.0f : v[i]);
    case MC_ACTIVATION_GELU: MC_EACH(v[i] * mc_gelu_slope<mc_is_half<T>>(x[i]));
    case MC_ACTIVATION_GELU_NEW: MC_EACH(v[i] * mc_gelu_new_slope<mc_is_half<T>>(x[i]));
    case MC_ACTIVATION_TANH: MC_EACH(v[i] * mc_tanh_slope(x[i]));
    case MC_ACTIVATION_SILU: MC_EACH(v[i] * mc_silu_slope<mc_is_half<T>>(x[i]));
    case MC_ACTIVATION_NONE: break;
    }
}
#undef MC_EACH

#endif
