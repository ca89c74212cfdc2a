/* Building blocks of our kernels that use Hopper's matrix instructions: barriers in shared memory,
 * the copy engine (TMA), and operands in shared memory and registers.
 *
 * PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate" and "cp.async.bulk.tensor",
 * describes the instructions, the matrix descriptors and how 128 bytes are swizzled. */
#ifndef MC_DEVICE_HOPPER_INSTRUCTIONS_CUH
#define MC_DEVICE_HOPPER_INSTRUCTIONS_CUH

#include <cuda.h>
#include "core/device/cuda/runtime/kernels.cuh"

namespace hopper
{

/* ---- barriers -------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* Arrives once at the barrier, which also waits for `bytes` that are being copied. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity is over. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Waits for about so many nanoseconds at most. Returns whether the phase is over. */
__device__ __forceinline__ bool barrier_wait_for(uint32_t barrier, uint32_t parity,
                                                 uint32_t nanoseconds)
{
    uint32_t over;
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2, %3;\n"
                 "selp.u32 %0, 1, 0, over;\n"
                 "}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity), "r"(nanoseconds)
                 : "memory");
    return over != 0;
}

/* Whether the phase is over, without waiting. */
__device__ __forceinline__ bool barrier_is_over(uint32_t barrier, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over;\n"
                 "}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over != 0;
}

/* The thread's earlier reads and writes happen before those of the threads that wait. */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* ---- clusters of blocks ---------------------------------------------------------------------- */

__device__ __forceinline__ int rank_in_cluster()
{
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The address of the same place in the shared memory of another block of the cluster. */
__device__ __forceinline__ uint32_t address_in(uint32_t address, int block)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}

/* Sends four numbers (16 bytes, aligned) to the shared memory of a block of the cluster, whose
 * barrier counts 16 bytes. */
__device__ __forceinline__ void send_four(uint32_t to, uint32_t barrier, const float *v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
                 "r"(barrier), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

/* ---- the copy engine ------------------------------------------------------------------------- */

/* Loads a box of the matrix, whose first element is (column, row); 0 outside the matrix. */
__device__ __forceinline__ void load_box(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                         int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}

/* An L2 cache policy for data that is read once: it is evicted first. */
__device__ __forceinline__ uint64_t read_once()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void load_box(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                         int column, int row, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
                 "L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row), "l"(policy)
                 : "memory");
}

/* Stores a box, without elements outside the matrix. */
__device__ __forceinline__ void store_box(const CUtensorMap *map, uint32_t from, int column,
                                          int row)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(from), "r"(column), "r"(row)
        : "memory");
}

__device__ __forceinline__ void end_stores() { asm volatile("cp.async.bulk.commit_group;"); }

/* Waits until the shared memory of this thread's stores can be overwritten, except that of the last
 * LEFT batches. */
template <int LEFT = 0> __device__ __forceinline__ void wait_for_stores()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* Lets the copy engine see what this thread wrote to shared memory. */
__device__ __forceinline__ void show_to_copy_engine()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The next place of a ring of STAGES in shared memory, and the parity of its barriers' phase. */
template <int STAGES> struct ring {
    int stage;
    uint32_t parity;

    __device__ __forceinline__ void advance()
    {
        if (++stage < STAGES) return;
        stage = 0;
        parity ^= 1;
    }
    __device__ __forceinline__ void skip(int stages)
    {
        int at = stage + stages;
        stage = at % STAGES;
        parity ^= at / STAGES & 1;
    }
};

/* ---- matrix instructions --------------------------------------------------------------------- */

/* Lets the next matrix instructions see registers that a group of four warps wrote. */
__device__ __forceinline__ void begin_multiplying()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a batch of matrix instructions, for wait_for_products. */
__device__ __forceinline__ void end_multiplying()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits for all batches except the last LEFT. */
template <int LEFT> __device__ __forceinline__ void wait_for_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Stores a warp's 16 x 16 two-byte elements, laid out in registers as by matrix instructions; `row`
 * is the thread's own address: that of row lane % 16, columns 8 (lane / 16) to + 7. */
__device__ __forceinline__ void store_16x16(uint32_t row, const uint32_t (&v)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
__device__ __forceinline__ void load_16x16(uint32_t row, uint32_t (&v)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(row)
                 : "memory");
}

/* Two consecutive numbers in shared memory. */
__device__ __forceinline__ float2 load_pair(uint32_t address)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ void load_4(uint32_t address, float *v)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void store_4(uint32_t address, const float *v)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]), "f"(v[1]),
                 "f"(v[2]), "f"(v[3])
                 : "memory");
}

__device__ __forceinline__ uint32_t load_word(uint32_t address)
{
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}
__device__ __forceinline__ uint32_t load_half_word(uint32_t address)
{
    uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
    return half;
}
__device__ __forceinline__ void store_word(uint32_t address, uint32_t word)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

/* The matrix descriptor of an operand in swizzled rows of 128 bytes. Eight rows are 1024 bytes;
 * where rows are terms, the next 64 columns are `next` bytes further on. */
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t next)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(next >> 4) << 16 |
           (address & 0x3ffff) >> 4;
}

/* In units of descriptors: from 16 terms to the next, if terms are rows and if they are columns. */
enum { NEXT_ROWS = 16 * 128 >> 4, NEXT_COLUMNS = 16 * 2 >> 4 };

/* Products of 64 rows and N columns over 16 terms, d (64 x N). set and add: both operands are in
 * shared memory, with a row for each row or column of d. add_widened: the first operand is in
 * registers. add_weighted: so it is, and the other one has a row for each term. */
template <class T, int N> struct products;

#define MC_4(with) with(d[0]), with(d[1]), with(d[2]), with(d[3])
#define MC_EIGHT(with, i)                                                                       \
    with(d[i]), with(d[i + 1]), with(d[i + 2]), with(d[i + 3]), with(d[i + 4]), with(d[i + 5]), \
        with(d[i + 6]), with(d[i + 7])
#define MC_8(with) MC_EIGHT(with, 0)
#define MC_16(with) MC_8(with), MC_EIGHT(with, 8)
#define MC_32(with) MC_16(with), MC_EIGHT(with, 16), MC_EIGHT(with, 24)
#define MC_40(with) MC_32(with), MC_EIGHT(with, 32)
#define MC_64(with) MC_40(with), MC_EIGHT(with, 40), MC_EIGHT(with, 48), MC_EIGHT(with, 56)
#define MC_ADD(x) "+f"(x)
#define MC_SUMS_4 "%0,%1,%2,%3"
#define MC_SUMS_8 MC_SUMS_4 ",%4,%5,%6,%7"
#define MC_SUMS_16 MC_SUMS_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define MC_SUMS_32 MC_SUMS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MC_SUMS_40 MC_SUMS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define MC_SUMS_64                                                                             \
    MC_SUMS_40 ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
               "%59,%60,%61,%62,%63"

/* `i0` to `i4` are the numbers of the operands after the sums; by_term: 1 if the operand in shared
 * memory has a row for each term. */
#define MC_ADD_REGISTERS(name, by_term, type, n, part, i0, i1, i2, i3, i4)                 \
    static __device__ __forceinline__ void name(float(&d)[part], const uint32_t(&a)[4],    \
                                                uint64_t b)                                \
    {                                                                                      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type       \
                     " {" MC_SUMS_##part "}, {%" #i0 ",%" #i1 ",%" #i2 ",%" #i3 "}, %" #i4 \
                                         ", 1, 1, 1, " #by_term ";"                        \
                     : MC_##part(MC_ADD)                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                \
    }
/* Both operands are in shared memory; adds: 0 to start new sums. */
#define MC_FROM_SHARED(name, adds, type, n, part, i0, i1)                                \
    static __device__ __forceinline__ void name(float(&d)[part], uint64_t a, uint64_t b) \
    {                                                                                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type     \
                     " {" MC_SUMS_##part "}, %" #i0 ", %" #i1 ", " #adds ", 1, 1, 0, 0;" \
                     : MC_##part(MC_ADD)                                                 \
                     : "l"(a), "l"(b));                                                  \
    }
#define MC_PRODUCTS(T, type, n, part, i0, i1, i2, i3, i4)                    \
    template <> struct products<T, n> {                                      \
        MC_FROM_SHARED(set, 0, type, n, part, i0, i1)                        \
        MC_FROM_SHARED(add, 1, type, n, part, i0, i1)                        \
        MC_ADD_REGISTERS(add_widened, 0, type, n, part, i0, i1, i2, i3, i4)  \
        MC_ADD_REGISTERS(add_weighted, 1, type, n, part, i0, i1, i2, i3, i4) \
    };
#define MC_ALL_PRODUCTS(T, type)                     \
    MC_PRODUCTS(T, type, 8, 4, 4, 5, 6, 7, 8)        \
    MC_PRODUCTS(T, type, 16, 8, 8, 9, 10, 11, 12)    \
    MC_PRODUCTS(T, type, 32, 16, 16, 17, 18, 19, 20) \
    MC_PRODUCTS(T, type, 64, 32, 32, 33, 34, 35, 36) \
    MC_PRODUCTS(T, type, 80, 40, 40, 41, 42, 43, 44) \
    MC_PRODUCTS(T, type, 128, 64, 64, 65, 66, 67, 68)
MC_ALL_PRODUCTS(__half, "f16")
MC_ALL_PRODUCTS(__nv_bfloat16, "bf16")
#undef MC_ALL_PRODUCTS
#undef MC_PRODUCTS
#undef MC_FROM_SHARED
#undef MC_ADD_REGISTERS
#undef MC_SUMS_64
#undef MC_SUMS_40
#undef MC_SUMS_32
#undef MC_SUMS_16
#undef MC_SUMS_8
#undef MC_SUMS_4
#undef MC_ADD
#undef MC_64
#undef MC_40
#undef MC_32
#undef MC_16
#undef MC_8
#undef MC_EIGHT
#undef MC_4

/* Keeps the compiler from reading the results of matrix instructions before this point. */
template <int COUNT> __device__ __forceinline__ void now_known(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <class T> __device__ __forceinline__ uint32_t pack(float low, float high)
{
    return std::is_same_v<T, __half> ? mc_pack_f16(low, high) : mc_pack_bf16(low, high);
}
template <class T> __device__ __forceinline__ float2 unpack(uint32_t word)
{
    if (std::is_same_v<T, __half>) return mc_unpack_f16(word);
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

/* 16 columns of each of 64 rows, rounded, in the layout of matrix instructions and store_16x16. */
template <class T, int COUNT>
__device__ __forceinline__ void pack_all(const float (&v)[COUNT], uint32_t (&words)[COUNT / 8][4])
{
#pragma unroll
    for (int i = 0; i < COUNT / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) words[i][j] = pack<T>(v[i * 8 + j * 2], v[i * 8 + j * 2 + 1]);
}

/* ---- on the host ----------------------------------------------------------------------------- */

typedef __typeof__(cuTensorMapEncodeTiled) *encode_fn;

/* Describes a matrix of bytes without gaps between rows for the copy engine, in boxes of 64 bytes a
 * row. */
static inline CUresult describe_bytes(encode_fn encode, const void *data, int64_t rows,
                                      int64_t columns, unsigned box_rows, CUtensorMap *map)
{
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[] = {(cuuint64_t)columns};
    const cuuint32_t box[] = {64, box_rows}, steps[] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)data, sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Describes a matrix of two-byte elements for the copy engine, in boxes of 128 bytes a row. */
static inline CUresult describe(encode_fn encode, mc_matrix m, int64_t rows, int64_t columns,
                                unsigned box_rows, CUtensorMap *map)
{
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[] = {(cuuint64_t)(rows > 1 ? m.stride : (columns + 7) / 8 * 8) * 2};
    const cuuint32_t box[] = {64, box_rows}, steps[] = {1, 1};
    return encode(
        map, m.dtype == MC_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2, m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

} // namespace hopper

#endif
