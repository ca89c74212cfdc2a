/* Stands before CUDA's own header where kernels are compiled for the simulator: the language of
 * kernels as C++, as far as it is used. */
#ifndef MC_SIM_CUDA_RUNTIME_H
#define MC_SIM_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector_functions.h>
#include <type_traits>
#include "tests/cuda_sim/include/mc_sim.h"

/* ---- where a thread is ----------------------------------------------------------------------- */

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* ---- arithmetic ------------------------------------------------------------------------------ */

#define MC_SIM_LEAST_AND_MOST(T)                            \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
MC_SIM_LEAST_AND_MOST(int)
MC_SIM_LEAST_AND_MOST(unsigned)
MC_SIM_LEAST_AND_MOST(long)
MC_SIM_LEAST_AND_MOST(unsigned long)
MC_SIM_LEAST_AND_MOST(long long)
MC_SIM_LEAST_AND_MOST(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
#undef MC_SIM_LEAST_AND_MOST

template <class To, class From> static inline To mc_sim_bits_as(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) { return mc_sim_bits_as<unsigned>(x); }
static inline int __float_as_int(float x) { return mc_sim_bits_as<int>(x); }
static inline float __uint_as_float(unsigned x) { return mc_sim_bits_as<float>(x); }
static inline float __int_as_float(int x) { return mc_sim_bits_as<float>(x); }
static inline long long __double_as_longlong(double x) { return mc_sim_bits_as<long long>(x); }
static inline double __longlong_as_double(long long x) { return mc_sim_bits_as<double>(x); }

/* Compiled with -ffp-contract=off: each is rounded once. */
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
/* Quick ones: as good as they get. */
static inline float __fdividef(float a, float b) { return a / b; }
/* macros: these are names of the C library's own */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
static inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

/* ---- loads and stores that caches treat otherwise -------------------------------------------- */

#define MC_SIM_LOAD(name) \
    template <class T> static inline T name(const T *from) { return *from; }
#define MC_SIM_STORE(name) \
    template <class T> static inline void name(T *to, T value) { *to = value; }
MC_SIM_LOAD(__ldg)
MC_SIM_LOAD(__ldcs)
MC_SIM_LOAD(__ldcg)
MC_SIM_LOAD(__ldca)
MC_SIM_LOAD(__ldlu)
MC_SIM_LOAD(__ldcv)
MC_SIM_STORE(__stcs)
MC_SIM_STORE(__stcg)
MC_SIM_STORE(__stwb)
MC_SIM_STORE(__stwt)
#undef MC_SIM_LOAD
#undef MC_SIM_STORE

/* ---- atomics: threads take turns, so these need nothing -------------------------------------- */

#define MC_SIM_ATOMIC(name, expression)                                                      \
    template <class T>                                                                       \
    __attribute__((no_sanitize("thread"))) static inline T name(T *at,                       \
                                                                std::common_type_t<T> value) \
    {                                                                                        \
        T old = *at;                                                                         \
        *at = expression;                                                                    \
        return old;                                                                          \
    }
MC_SIM_ATOMIC(atomicAdd, (T)(old + value))
MC_SIM_ATOMIC(atomicSub, (T)(old - value))
MC_SIM_ATOMIC(atomicMax, old < value ? value : old)
MC_SIM_ATOMIC(atomicMin, value < old ? value : old)
MC_SIM_ATOMIC(atomicExch, value)
MC_SIM_ATOMIC(atomicOr, (T)(old | value))
MC_SIM_ATOMIC(atomicAnd, (T)(old &value))
MC_SIM_ATOMIC(atomicXor, (T)(old ^ value))
#undef MC_SIM_ATOMIC
template <class T>
__attribute__((no_sanitize("thread"))) static inline T
atomicCAS(T *at, std::common_type_t<T> compare, std::common_type_t<T> value)
{
    T old = *at;
    if (old == compare) *at = value;
    return old;
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}

/* ---- barriers and warps ---------------------------------------------------------------------- */

static inline void __syncthreads() { mc_sim::block_barrier(mc_sim::barrier_kind::plain, 0); }
static inline int __syncthreads_count(int predicate)
{
    return mc_sim::block_barrier(mc_sim::barrier_kind::count, predicate != 0);
}
static inline int __syncthreads_and(int predicate)
{
    return mc_sim::block_barrier(mc_sim::barrier_kind::all, predicate != 0);
}
static inline int __syncthreads_or(int predicate)
{
    return mc_sim::block_barrier(mc_sim::barrier_kind::any, predicate != 0);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    mc_sim::warp_exchange(mc_sim::warp_kind::barrier, mask, 0);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    const uint64_t *got = mc_sim::warp_exchange(mc_sim::warp_kind::ballot, mask, predicate != 0);
    unsigned result = 0;
    for (int i = 0; i < 32; i++)
        if (got[32] >> i & 1 && got[i]) result |= 1u << i;
    return result;
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}
static inline unsigned __activemask() { return 1u << mc_sim::lane_of_thread(); }

/* The value of lane `source`; one's own outside of the `width` lanes; rubbish where that lane does
 * not take part. */
template <class T> static inline T mc_sim_shuffle(unsigned mask, T value, int source, bool inside)
{
    static_assert(sizeof(T) <= 8, "at most 8 bytes are exchanged");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *got = mc_sim::warp_exchange(mc_sim::warp_kind::shuffle, mask, bits);
    if (inside) memcpy((void *)&value, &got[source & 31], sizeof value);
    return value;
}
#define MC_SIM_NUMBER std::enable_if_t<std::is_arithmetic_v<T>, T>
template <class T>
static inline MC_SIM_NUMBER __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    int own = mc_sim::lane_of_thread(), source = own ^ lanes;
    return mc_sim_shuffle(mask, value, source, source / width <= own / width);
}
template <class T>
static inline MC_SIM_NUMBER __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    int own = mc_sim::lane_of_thread();
    return mc_sim_shuffle(mask, value, own / width * width + lane % width, true);
}
template <class T>
static inline MC_SIM_NUMBER __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int own = mc_sim::lane_of_thread();
    return mc_sim_shuffle(mask, value, own + (int)by, own % width + (int)by < width);
}
template <class T>
static inline MC_SIM_NUMBER __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int own = mc_sim::lane_of_thread();
    return mc_sim_shuffle(mask, value, own - (int)by, own % width - (int)by >= 0);
}
#undef MC_SIM_NUMBER

static inline void mc_sim_load_16(uint32_t &x, uint32_t &y, uint32_t &z, uint32_t &w,
                                  const void *from)
{
    const uint4 v = *(const uint4 *)from;
    x = v.x, y = v.y, z = v.z, w = v.w;
}

/* Half `i` of a word, as a number. */
template <class T> static inline float mc_sim_half(uint32_t word, int i)
{
    uint16_t bits = (uint16_t)(word >> 16 * i);
    T value;
    memcpy((void *)&value, &bits, sizeof bits);
    return (float)value;
}

/* mma.m16n8k16: lane 4 g + t has columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of rows g and g + 8 of
 * a, the same rows of column g of b, and columns 2 t, 2 t + 1 of rows g and g + 8 of c. */
template <class T>
static inline void mc_sim_mma(float &c0, float &c1, float &c2, float &c3, uint32_t a0, uint32_t a1,
                              uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    int lane = mc_sim::lane_of_thread(), row = lane / 4 * 4, column = lane % 4 * 8;
    const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};
    float *own = mc_sim::operands_of_thread(), *c[4] = {&c0, &c1, &c2, &c3};
    for (int i = 0; i < 12; i++) own[i] = mc_sim_half<T>(words[i / 2], i % 2);
    const uint64_t *all =
        mc_sim::warp_exchange(mc_sim::warp_kind::shuffle, 0xffffffffu, (uint64_t)(uintptr_t)own);
    for (int t = 0; t < 4; t++) {
        const float *a = (const float *)(uintptr_t)all[row + t];
        for (int n = 0; n < 2; n++) {
            const float *b = (const float *)(uintptr_t)all[column + 4 * n + t] + 8;
            for (int i = 0; i < 8; i++) { /* (row, half of the terms, term) */
                int high = i / 4, part = i / 2 % 2, half = i % 2;
                *c[2 * high + n] += a[2 * (2 * part + high) + half] * b[2 * part + half];
            }
        }
    }
}

/* ---- the runtime's templates ----------------------------------------------------------------- */

template <class K>
static inline cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute name, int value)
{
    return ::cudaFuncSetAttribute((const void *)kernel, name, value);
}
template <class K>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, K *kernel,
                                                                        int threads, size_t shared)
{
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)kernel, threads,
                                                           shared);
}

#endif
