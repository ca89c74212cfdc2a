/* What our kernels of Hopper's matrix instructions share: barriers in shared memory, the copy
 * engine (TMA), matrix instructions' operands in shared memory and registers.
 *
 * PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate" and "cp.async.bulk.tensor",
 * has the instructions, the matrix descriptors and how 128 bytes are swizzled. */
#ifndef MC_DEVICE_CUDA_HOPPER_CUH
#define MC_DEVICE_CUDA_HOPPER_CUH

#include <cuda.h>
#include "core/device/cuda/kernels.cuh"

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

/* One arrival, of so many that the barrier waits for, and `bytes` that are on their way. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Until the phase of that parity is over. */
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

/* What the thread read and wrote before is read and written for those who wait. */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* ---- the copy engine ------------------------------------------------------------------------- */

/* A box of the matrix whose first element is (column, row); what lies outside of it reads as 0. */
__device__ __forceinline__ void load_box(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                         int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}

/* What lies outside of the matrix is left out. */
__device__ __forceinline__ void store_box(const CUtensorMap *map, uint32_t from, int column,
                                          int row)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(from), "r"(column), "r"(row)
        : "memory");
}

__device__ __forceinline__ void end_stores() { asm volatile("cp.async.bulk.commit_group;"); }

/* Until shared memory that this thread's stores come from can be written again, but for the last
 * LEFT that it ended. */
template <int LEFT = 0> __device__ __forceinline__ void wait_for_stores()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* What this thread wrote to shared memory is there for the copy engine. */
__device__ __forceinline__ void show_to_copy_engine()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Which place of a ring of STAGES in shared memory is next, and whether its barriers have been
 * through an even number of phases. */
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

/* Registers that a group of four warps wrote are there for the matrix instructions to come. */
__device__ __forceinline__ void begin_multiplying()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a batch of matrix instructions, for wait_for_products. */
__device__ __forceinline__ void end_multiplying()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all batches but the last LEFT are through. */
template <int LEFT> __device__ __forceinline__ void wait_for_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* A warp's 16 x 16 elements of two bytes, as matrix instructions deal them to its threads; `row` is
 * the thread's own: of 16 bytes in row lane % 16, columns 8 (lane / 16) on. */
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

/* Two consecutive numbers of shared memory. */
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
__device__ __forceinline__ void store_word(uint32_t address, uint32_t word)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

/* Matrix descriptor of what lies in rows of 128 bytes, swizzled. Eight rows are 1024 bytes; `next`
 * bytes on are the next 64 columns of an operand whose rows are the terms. */
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t next)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(next >> 4) << 16 |
           (address & 0x3ffff) >> 4;
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

/* ---- on the host ----------------------------------------------------------------------------- */

typedef __typeof__(cuTensorMapEncodeTiled) *encode_fn;

/* A matrix of two-byte elements as the copy engine sees it, in boxes of 128 bytes a row. */
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
