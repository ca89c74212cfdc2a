/* Shared by our CUDA kernels: views of matrices, loads and stores of 16-byte chunks at any
 * alignment, sums over warps and blocks, Philox, and launching.
 *
 * A kernel is a template over the element type of its matrices: float, __half, __nv_bfloat16, or
 * mc_mixed if they differ, whose type is looked up for every chunk. Work is divided into chunks of
 * mc_width<T> consecutive elements of a row, one per thread: 16 bytes, never across rows. A chunk
 * that is not aligned, or is the end of a row, is moved element by element. */
#ifndef MC_DEVICE_CUDA_RUNTIME_KERNELS_CUH
#define MC_DEVICE_CUDA_RUNTIME_KERNELS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <string.h>
#include <type_traits>
#include "core/device/cuda/runtime/cuda_internal.h"

/* ---- matrices -------------------------------------------------------------------------------- */

struct mc_mixed {
}; /* "the element type": each matrix has its own */

/* Elements of a chunk. */
template <class T> constexpr int mc_width = 8;
template <> constexpr int mc_width<float> = 4;
template <> constexpr int mc_width<mc_mixed> = 4;

/* If matrices cannot all be moved in whole chunks (mc_whole_dtype), kernels for whole chunks run
 * with mixed types instead. */
template <class T> constexpr bool mc_whole = !std::is_same_v<T, mc_mixed>;

/* A kernel's view of a matrix. data NULL: none. */
struct mc_view {
    char *data;
    int64_t stride;
    int dtype;
    bool whole; /* chunks at multiples of the width are aligned for vector loads */
};

static inline bool mc_is(const void *data, int64_t alignment)
{
    return (int64_t)((uintptr_t)data % (uintptr_t)alignment) == 0;
}

/* `width`: elements of a chunk. The stride of a single row is ignored. */
static inline mc_view mc_view_of(mc_matrix m, int64_t rows, int width)
{
    int64_t size = m.dtype == MC_F32 ? 4 : 2, bytes = size * width;
    bool whole = mc_is(m.data, bytes) && (rows <= 1 || m.stride * size % bytes == 0);
    return {(char *)m.data, rows <= 1 ? 0 : m.stride, (int)m.dtype, whole};
}

template <class T> __device__ __forceinline__ bool mc_is_f32(mc_view) { return false; }
template <> __device__ __forceinline__ bool mc_is_f32<float>(mc_view) { return true; }
template <> __device__ __forceinline__ bool mc_is_f32<mc_mixed>(mc_view m)
{
    return m.dtype == MC_F32;
}

/* A chunk as in memory: two or four bytes per element, in order. After the end: zeros. */
struct mc_bits {
    uint32_t word[4];
};

__device__ __forceinline__ mc_bits mc_bits_of(uint4 v) { return {{v.x, v.y, v.z, v.w}}; }

/* The n <= width elements from `at`, n < width at the end of a row; n <= 0 gives zeros. With WHOLE
 * the caller guarantees m.whole, and that n is the width or not positive. */
template <class T, bool WHOLE = false>
__device__ __forceinline__ mc_bits mc_load_bits(mc_view m, int64_t at, int n)
{
    constexpr int width = mc_width<T>;
    mc_bits b = {{0, 0, 0, 0}};
    if (WHOLE && n <= 0) return b;
    bool vector = m.whole && n == width;
    if (WHOLE) vector = true;
    if (mc_is_f32<T>(m)) {
        const float *from = (const float *)m.data + at;
        if (vector) return mc_bits_of(*(const uint4 *)from);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n) b.word[i] = __float_as_uint(from[i]);
        return b;
    }
    const uint16_t *from = (const uint16_t *)m.data + at;
    if (vector) {
        if (width == 8) return mc_bits_of(*(const uint4 *)from);
        uint2 v = *(const uint2 *)from;
        b.word[0] = v.x;
        b.word[1] = v.y;
        return b;
    }
#pragma unroll
    for (int i = 0; i < width; i++)
        if (i < n) b.word[i / 2] |= (uint32_t)from[i] << (i % 2 * 16);
    return b;
}

/* In assembly, because nvcc may split one store of a uint4 into four of 4 bytes, and did so in
 * activations, embedding, gather_rows, fill and our attention. (Kernels of mixed types use plain
 * stores, because some of them need more registers with this.) */
__device__ __forceinline__ void mc_store_16_bytes(void *to, mc_bits b)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(b.word[0]),
                 "r"(b.word[1]), "r"(b.word[2]), "r"(b.word[3])
                 : "memory");
}

template <class T, bool WHOLE = false>
__device__ __forceinline__ void mc_store_bits(mc_view m, int64_t at, int n, mc_bits b)
{
    constexpr int width = mc_width<T>;
    if (WHOLE && n <= 0) return;
    bool vector = m.whole && n == width;
    if (WHOLE) vector = true;
    if (mc_is_f32<T>(m)) {
        float *to = (float *)m.data + at;
        if (vector && mc_whole<T>) {
            mc_store_16_bytes(to, b);
            return;
        }
        if (vector) {
            *(uint4 *)to = make_uint4(b.word[0], b.word[1], b.word[2], b.word[3]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n) to[i] = __uint_as_float(b.word[i]);
        return;
    }
    uint16_t *to = (uint16_t *)m.data + at;
    if (vector) {
        if (width == 8)
            mc_store_16_bytes(to, b);
        else
            *(uint2 *)to = make_uint2(b.word[0], b.word[1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < width; i++)
        if (i < n) to[i] = (uint16_t)(b.word[i / 2] >> (i % 2 * 16));
}

/* ---- element types --------------------------------------------------------------------------- */

__device__ __forceinline__ float2 mc_unpack_f16(uint32_t word)
{
    __half2_raw pair;
    pair.x = (uint16_t)word;
    pair.y = (uint16_t)(word >> 16);
    return __half22float2(__half2(pair));
}

/* The bits of two 16-bit numbers: from separate halves nvcc would pack them again. */
template <class Pair> __device__ __forceinline__ uint32_t mc_word_of(Pair pair)
{
    uint32_t word;
    static_assert(sizeof word == sizeof pair, "two of two bytes");
    memcpy(&word, &pair, sizeof word);
    return word;
}

/* Nearest even, overflow to inf, as on the CPU. */
__device__ __forceinline__ uint32_t mc_pack_f16(float low, float high)
{
    return mc_word_of(__floats2half2_rn(low, high));
}

__device__ __forceinline__ uint32_t mc_pack_bf16(float low, float high)
{
    return mc_word_of(__floats2bfloat162_rn(low, high));
}

template <int width> __device__ __forceinline__ void mc_unpack_as_f32(mc_bits b, float (&v)[width])
{
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __uint_as_float(b.word[i]);
}
template <int width> __device__ __forceinline__ void mc_unpack_as_f16(mc_bits b, float (&v)[width])
{
#pragma unroll
    for (int i = 0; i < width; i += 2) {
        float2 pair = mc_unpack_f16(b.word[i / 2]);
        v[i] = pair.x;
        v[i + 1] = pair.y;
    }
}
template <int width> __device__ __forceinline__ void mc_unpack_as_bf16(mc_bits b, float (&v)[width])
{
#pragma unroll
    for (int i = 0; i < width; i += 2) {
        v[i] = __uint_as_float(b.word[i / 2] << 16);
        v[i + 1] = __uint_as_float(b.word[i / 2] & 0xffff0000u);
    }
}

template <class T, int width>
__device__ __forceinline__ void mc_unpack(mc_view m, mc_bits b, float (&v)[width])
{
    static_assert(width == mc_width<T>, "a chunk");
    if constexpr (std::is_same_v<T, float>)
        mc_unpack_as_f32(b, v);
    else if constexpr (std::is_same_v<T, __half>)
        mc_unpack_as_f16(b, v);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        mc_unpack_as_bf16(b, v);
    else if (m.dtype == MC_F32)
        mc_unpack_as_f32(b, v);
    else if (m.dtype == MC_F16)
        mc_unpack_as_f16(b, v);
    else
        mc_unpack_as_bf16(b, v);
}

template <class T, int width>
__device__ __forceinline__ mc_bits mc_pack(mc_view m, const float (&v)[width])
{
    static_assert(width == mc_width<T>, "a chunk");
    constexpr bool f32 = std::is_same_v<T, float>, f16 = std::is_same_v<T, __half>,
                   mixed = std::is_same_v<T, mc_mixed>;
    mc_bits b = {{0, 0, 0, 0}};
    if (f32 || (mixed && m.dtype == MC_F32)) {
#pragma unroll
        for (int i = 0; i < 4; i++) b.word[i] = __float_as_uint(v[i]);
    } else if (f16 || (mixed && m.dtype == MC_F16)) {
#pragma unroll
        for (int i = 0; i < width; i += 2) b.word[i / 2] = mc_pack_f16(v[i], v[i + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < width; i += 2) b.word[i / 2] = mc_pack_bf16(v[i], v[i + 1]);
    }
    return b;
}

template <class T, bool WHOLE = false, int width>
__device__ __forceinline__ void mc_load(mc_view m, int64_t at, int n, float (&v)[width])
{
    mc_unpack<T>(m, mc_load_bits<T, WHOLE>(m, at, n), v);
}

template <class T, bool WHOLE = false, int width>
__device__ __forceinline__ void mc_store(mc_view m, int64_t at, int n, const float (&v)[width])
{
    mc_store_bits<T, WHOLE>(m, at, n, mc_pack<T>(m, v));
}

/* m = v or m += v. */
template <class T, bool WHOLE = false, int width>
__device__ __forceinline__ void mc_store_or_add(mc_view m, int64_t at, int n, float (&v)[width],
                                                bool accumulate)
{
    if (accumulate) {
        float old[width];
        mc_load<T, WHOLE>(m, at, n, old);
#pragma unroll
        for (int i = 0; i < width; i++) v[i] += old[i];
    }
    mc_store<T, WHOLE>(m, at, n, v);
}

__device__ __forceinline__ float mc_load_one(mc_view m, int64_t at)
{
    if (m.dtype == MC_F32) return ((const float *)m.data)[at];
    uint16_t bits = ((const uint16_t *)m.data)[at];
    if (m.dtype == MC_BF16) return __uint_as_float((uint32_t)bits << 16);
    return mc_unpack_f16(bits).x;
}

__device__ __forceinline__ void mc_store_one(mc_view m, int64_t at, float value)
{
    if (m.dtype == MC_F32)
        ((float *)m.data)[at] = value;
    else if (m.dtype == MC_BF16)
        ((uint16_t *)m.data)[at] = (uint16_t)mc_pack_bf16(value, 0.0f);
    else
        ((uint16_t *)m.data)[at] = (uint16_t)mc_pack_f16(value, 0.0f);
}

/* ---- division by a constant of the launch ---------------------------------------------------- */

/* n / divisor, for n < 2^31 by one multiplication: with 2^shift >= divisor, multiplier =
 * ceil(2^(31 + shift) / divisor) is too large by less than 2^shift / divisor, and n times that by
 * less than one unit of the quotient. */
struct mc_divider {
    uint64_t divisor;
    uint32_t multiplier;
    int shift;
};

static inline mc_divider mc_divider_of(int64_t divisor)
{
    mc_divider d = {(uint64_t)divisor, 0, 0};
    if (divisor > (int64_t)1 << 31) return d; /* of n < 2^31: 0 */
    while ((int64_t)1 << d.shift < divisor) d.shift++;
    d.multiplier =
        (uint32_t)((((uint64_t)1 << (31 + d.shift)) + (uint64_t)divisor - 1) / (uint64_t)divisor);
    return d;
}

__device__ __forceinline__ int64_t mc_divide(int64_t n, mc_divider d)
{
    if ((uint64_t)n >> 31) return (int64_t)((uint64_t)n / d.divisor);
    return (int64_t)((uint64_t)(uint32_t)n * d.multiplier >> (31 + d.shift));
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The sum over the lanes of a warp, in a fixed order, returned to all lanes. */
template <class S> __device__ __forceinline__ S mc_warp_sum(S x)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

/* The sum over the threads of a block of whole warps, returned to all threads. `shared` has one
 * value per warp and may be reused after the next barrier. */
template <class S> __device__ __forceinline__ S mc_block_sum(S x, S *shared)
{
    int thread = threadIdx.x + threadIdx.y * blockDim.x, warps = blockDim.x * blockDim.y / 32;
    x = mc_warp_sum(x);
    if (warps == 1) return x;
    if (thread % 32 == 0) shared[thread / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int i = 1; i < warps; i++) x += shared[i];
    return x;
}

/* ---- the largest ----------------------------------------------------------------------------- */

__device__ __forceinline__ float mc_larger(float a, float b) { return fmaxf(a, b); }
template <class I> __device__ __forceinline__ I mc_larger(I a, I b) { return a > b ? a : b; }

/* As mc_warp_sum. */
template <class S> __device__ __forceinline__ S mc_warp_largest(S x)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        x = mc_larger(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

__device__ __forceinline__ uint32_t mc_warp_largest(uint32_t x)
{
#ifdef __CUDA_ARCH__
    return __reduce_max_sync(0xffffffffu, x);
#else
    return mc_warp_largest<uint32_t>(x);
#endif
}

/* As mc_block_sum, for a one-dimensional block. */
template <class S> __device__ __forceinline__ S mc_block_largest(S x, S *shared)
{
    x = mc_warp_largest(x);
    if (blockDim.x == 32) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int i = 1; i < (int)blockDim.x / 32; i++) x = mc_larger(x, shared[i]);
    return x;
}

/* Merges the values of a block's threads (S::merge) in a fixed order; thread 0 gets the result. */
template <int THREADS, class S> __device__ S mc_block_merge(S s)
{
    __shared__ S shared[THREADS / 32];
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        uint32_t words[sizeof(S) / 4];
        S other;
        memcpy(words, &s, sizeof s);
#pragma unroll
        for (size_t i = 0; i < sizeof(S) / 4; i++)
            words[i] = __shfl_xor_sync(0xffffffffu, words[i], lane);
        memcpy(&other, words, sizeof s);
        s.merge(other);
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < THREADS / 32; i++) s.merge(shared[i]);
    return s;
}

/* Calls f(column, n) for the thread's chunks of its block's row: n elements are within it. */
template <class T, class F>
__device__ __forceinline__ void mc_each_chunk(int64_t columns, const F &f)
{
    for (int64_t column = (int64_t)threadIdx.x * mc_width<T>; column < columns;
         column += (int64_t)blockDim.x * mc_width<T>)
        f(column, columns - column < mc_width<T> ? (int)(columns - column) : mc_width<T>);
}

/* ---- random numbers and dropout -------------------------------------------------------------- */

/* The words of one block of Philox-4x32-10; see core/device/cpu/isa/random.c. */
__device__ __forceinline__ void mc_philox(uint64_t key, uint64_t block, uint64_t offset,
                                          uint32_t *words)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)offset, c3 = (uint32_t)(offset >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xd2511f53u, p1 = (uint64_t)c2 * 0xcd9e8d57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* The words of elements first .. first + width, `width` a multiple of 4. */
template <int width>
__device__ __forceinline__ void mc_philox_run(uint64_t key, uint64_t first, uint64_t offset,
                                              uint32_t (&words)[width])
{
    uint32_t w[width + 4], low = (uint32_t)key, high = (uint32_t)(key >> 32);
    int skip = (int)(first & 3);
    /* In a loop the compiler would keep the twenty round keys in registers. */
    asm volatile("" : "+r"(low), "+r"(high));
    key = low | (uint64_t)high << 32;
#pragma unroll
    for (int i = 0; i < width; i += 4) mc_philox(key, (first + i) >> 2, offset, w + i);
    if (skip == 0) {
#pragma unroll
        for (int i = 0; i < width; i++) words[i] = w[i];
        return;
    }
    mc_philox(key, (first + width) >> 2, offset, w + width);
#pragma unroll
    for (int i = 0; i < width; i++)
        words[i] = skip == 1 ? w[i + 1] : skip == 2 ? w[i + 2] : w[i + 3];
}

/* A dropout mask in the form for kernels. */
struct mc_dropping {
    uint64_t seed, offset;
    const uint64_t *base;
    uint32_t threshold;
    float keep; /* 0: there is no dropout */
};

static inline mc_dropping mc_dropping_of(mc_dropout_mask m)
{
    if (!(m.p > 0.0f)) return {0, 0, NULL, 0, 0};
    return {m.seed, m.offset, m.base, (uint32_t)((double)m.p * 0x1p32), 1.0f / (1.0f - m.p)};
}

/* The factors of elements first .. first + width: 0 or 1 / (1 - p); ones without dropout. */
template <int width>
__device__ __forceinline__ void mc_drop_factors(const mc_dropping &d, int64_t first,
                                                float (&factor)[width])
{
    if (d.keep == 0.0f) {
#pragma unroll
        for (int i = 0; i < width; i++) factor[i] = 1.0f;
        return;
    }
    uint32_t words[width];
    uint64_t offset = d.offset + (d.base ? *d.base : 0);
    mc_philox_run(d.seed, (uint64_t)first, offset, words);
#pragma unroll
    for (int i = 0; i < width; i++) factor[i] = words[i] >= d.threshold ? d.keep : 0.0f;
}

/* ---- powers of e ----------------------------------------------------------------------------- */

/* 2^x; results below the normal numbers are 0. 2 ulp. */
__device__ __forceinline__ float mc_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

constexpr float MC_LOG2_E = 1.44269504089f; /* log2(e) */

/* e^x, off by half an ulp of x log2(e) besides: good for x near 0 and for small results. */
__device__ __forceinline__ float mc_exp(float x) { return mc_exp2(x * MC_LOG2_E); }

/* ---- launching ------------------------------------------------------------------------------- */

static inline int64_t mc_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t mc_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t mc_most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The common dtype of all matrices with data, MC_DTYPE_DEFAULT if they differ. */
template <class... M> static inline mc_dtype mc_common_dtype(mc_matrix first, M... rest)
{
    mc_dtype dtype = first.dtype;
    for (mc_matrix m : {first, rest...})
        if (m.data && m.dtype != dtype) return MC_DTYPE_DEFAULT;
    return dtype;
}

/* That dtype, if all of them can also be moved in whole chunks, else MC_DTYPE_DEFAULT. */
template <class... M>
static inline mc_dtype mc_whole_dtype(int64_t columns, mc_matrix first, M... rest)
{
    mc_dtype dtype = mc_common_dtype(first, rest...);
    int width = dtype == MC_F32 ? 4 : 8;
    if (columns % width != 0) return MC_DTYPE_DEFAULT;
    for (mc_matrix m : {first, rest...})
        if (m.data && !mc_view_of(m, 2, width).whole) return MC_DTYPE_DEFAULT;
    return dtype;
}

/* The last n columns of a matrix of 2 n. */
static inline mc_matrix mc_second_half(mc_matrix x, int64_t n)
{
    x.data = (char *)x.data + (size_t)n * mc_dtype_size(x.dtype);
    return x;
}

/* Runs the statements with T as the element type of `dtype`. */
#define MC_WITH_TYPE(dtype, ...)        \
    do {                                \
        if ((dtype) == MC_BF16) {       \
            using T = __nv_bfloat16;    \
            __VA_ARGS__;                \
        } else if ((dtype) == MC_F32) { \
            using T = float;            \
            __VA_ARGS__;                \
        } else if ((dtype) == MC_F16) { \
            using T = __half;           \
            __VA_ARGS__;                \
        } else {                        \
            using T = mc_mixed;         \
            __VA_ARGS__;                \
        }                               \
    } while (0)

/* Shared memory available to a block, besides what kernels declare statically. */
static inline int64_t mc_shared_limit(mc_device *d)
{
    int bytes = 48 << 10;
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, mc_cuda_of(d)->ordinal);
    return bytes - 2048;
}

/* Allows a kernel's blocks `bytes` of dynamic shared memory, even above the 48 KB that every GPU
 * has. A failure is reported when the kernel is launched. */
template <class K> static inline void mc_allow_shared(K kernel, size_t bytes)
{
    if (bytes > 32 << 10)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Blocks of a kernel that run at once; at least one per multiprocessor. */
template <class K>
static inline int64_t mc_resident_blocks(mc_device *d, K kernel, int threads, size_t shared)
{
    int each = 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared) !=
            cudaSuccess ||
        each < 1)
        each = 1;
    return (int64_t)each * mc_cuda_of(d)->multiprocessors;
}

/* In a generation step (mc_device.list_open) a kernel can begin before the preceding one has ended,
 * and load parameters meanwhile. Launched by MC_LAUNCH_EARLY, a kernel calls mc_wait_for_earlier in
 * every thread before it reads the results of others, and before it writes; mc_let_next_begin lets
 * the next kernel begin. In a normal launch, such as that of a step's first kernel, both do
 * nothing. (Programmatic dependent launch, compute capability 9.0.) */
__device__ __forceinline__ void mc_wait_for_earlier()
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void mc_let_next_begin()
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifdef MC_SIM_H
#define MC_LAUNCH_EARLY(d, kernel, grid, threads, shared, ...) \
    kernel<<<grid, threads, shared, mc_cuda_of(d)->stream>>>(__VA_ARGS__)
#else
#define MC_LAUNCH_EARLY(d, kernel, grid, threads, shared, ...) \
    mc_launch_early(d, kernel, grid, threads, shared, __VA_ARGS__)
template <class... P, class... A>
static inline void mc_launch_early(mc_device *d, void (*kernel)(P...), dim3 grid, unsigned threads,
                                   size_t shared, const A &...arguments)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = mc_cuda_of(d)->stream;
    config.attrs = &early;
    config.numAttrs = mc_cuda_of(d)->listing && mc_cuda_of(d)->capability >= 90 ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}
#endif

/* One thread per chunk of a (rows, columns) matrix: f.run<T>(row, column, n), where n elements of
 * the chunk are within the row. Few blocks leave room for the next kernel's. */
enum { MC_FEW_BLOCKS = 128 };
template <class T, class F>
static __global__ void __launch_bounds__(256)
    mc_chunks(const __grid_constant__ F f, int64_t chunks, int64_t columns, mc_divider per_row)
{
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (gridDim.x <= MC_FEW_BLOCKS) mc_let_next_begin();
    mc_wait_for_earlier();
    if (i >= chunks) return;
    int64_t row = mc_divide(i, per_row), column = (i - row * per_row.divisor) * mc_width<T>;
    int64_t left = columns - column;
    f.template run<T>(row, column, left < mc_width<T> ? (int)left : mc_width<T>);
}

template <class T, class F>
static void mc_launch_chunks(mc_device *d, int64_t rows, int64_t columns, const F &f)
{
    int64_t per_row = mc_ceil_div(columns, mc_width<T>), chunks = rows * per_row;
    if (chunks == 0) return;
    unsigned blocks = (unsigned)mc_ceil_div(chunks, 256);
    auto kernel = mc_chunks<T, F>;
    MC_LAUNCH_EARLY(d, kernel, blocks, 256, 0, f, chunks, columns, mc_divider_of(per_row));
}

/* The same matrices as one row if they are contiguous. */
template <class... M>
static inline void mc_flatten(int64_t *rows, int64_t *columns, const M &...matrices)
{
    for (const mc_matrix *m : {&matrices...})
        if (m->data && m->stride != *columns) return;
    *columns *= *rows;
    *rows = 1;
}

/* The destinations of sums of n values each; NULL: not required. */
struct mc_sums {
    int count;
    float *out[3];
};

/* sums.out[j][i] += the sum of partial[part][j][i] over the parts; partial: (parts, sums.count, n).
 * In sums.cu. */
void mc_add_partials(mc_device *d, const float *partial, int64_t parts, int64_t n, mc_sums sums);

#endif
