/* What our kernels of products on Hopper share (gemm.cu, linear_norm.cu): clusters of
 * blocks, matrix instructions of 192 columns, and how such kernels are launched. */
#ifndef MC_DEVICE_HOPPER_PRODUCT_CUH
#define MC_DEVICE_HOPPER_PRODUCT_CUH

#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/hopper/instructions.cuh"

namespace hopper
{

/* ---- clusters of blocks ----------------------------------------------------------------------- */

__device__ __forceinline__ void sync_cluster()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* No order of memory is asked for: what it releases was read by matrix instructions that are over,
 * and a fence of the cluster costs more than the block's product. */
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* The same for both blocks of the cluster, with an arrival at each one's barrier. */
__device__ __forceinline__ void load_box_for_both(const CUtensorMap *map, uint32_t to,
                                                  uint32_t barrier, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row), "h"((uint16_t)3)
                 : "memory");
}

/* Where a block is: its ring in shared memory, and its place in the cluster. */
struct block_place {
    uint32_t shared, full, empty;        /* the ring, and the barriers of its stages */
    int rank, cluster, clusters, blocks; /* blocks of terms to a tile */
};

/* The ring is where the block's shared memory begins. */
template <int CLUSTER, int STAGES>
__device__ __forceinline__ block_place place_of_block(const void *memory, int barriers_at,
                                                      int blocks)
{
    block_place p;
    p.shared = shared_address(memory);
    p.full = p.shared + barriers_at;
    p.empty = p.full + STAGES * 8;
    p.rank = CLUSTER > 1 ? rank_in_cluster() : 0;
    p.cluster = blockIdx.x / CLUSTER;
    p.clusters = gridDim.x / CLUSTER;
    p.blocks = blocks;
    return p;
}

/* By one thread: the barriers of the ring, whose stages so many warps read. */
template <int STAGES> __device__ __forceinline__ void open_ring(const block_place &p, int readers)
{
    if (p.shared % 1024) __trap(); /* swizzling counts from there */
    for (int i = 0; i < STAGES; i++) {
        barrier_init(p.full + i * 8, 1);
        barrier_init(p.empty + i * 8, readers);
    }
}

/* ---- matrix instructions --------------------------------------------------------------------- */

enum { PART_COLUMNS = 192 };

enum { PART = 96 }; /* of 64 rows of a tile a thread of a consumer has as many sums */

#define MC_D8(i)                                                                                \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])

/* d (64 x 192) = a (64 x 16) b (16 x 192) + d, without d if `add` is 0. With ROWS_ARE_TERMS b lies
 * in memory as it is written here, else transposed. */
#define MC_MULTIPLY(name, type)                                                                    \
    template <bool ROWS_ARE_TERMS>                                                                 \
    __device__ __forceinline__ void name(float(&d)[PART], uint64_t a, uint64_t b, int add)         \
    {                                                                                              \
        asm volatile(                                                                              \
            "{\n"                                                                                  \
            ".reg .pred add;\n"                                                                    \
            "setp.ne.b32 add, %98, 0;\n"                                                           \
            "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " {"                      \
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"   \
            "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,"     \
            "%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,"     \
            "%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,"     \
            "%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95}, %96, %97, add, 1, 1, 0, %99;\n" \
            "}\n"                                                                                  \
            : MC_D8(0), MC_D8(8), MC_D8(16), MC_D8(24), MC_D8(32), MC_D8(40), MC_D8(48),           \
              MC_D8(56), MC_D8(64), MC_D8(72), MC_D8(80), MC_D8(88)                                \
            : "l"(a), "l"(b), "r"(add), "n"(ROWS_ARE_TERMS));                                      \
    }
MC_MULTIPLY(multiply_bf16, "bf16")
MC_MULTIPLY(multiply_f16, "f16")
#undef MC_MULTIPLY
#undef MC_D8

template <class T, bool ROWS_ARE_TERMS>
__device__ __forceinline__ void multiply_add(float (&d)[PART], uint64_t a, uint64_t b, int add)
{
    if (std::is_same_v<T, __half>)
        multiply_f16<ROWS_ARE_TERMS>(d, a, b, add);
    else
        multiply_bf16<ROWS_ARE_TERMS>(d, a, b, add);
}

/* Of a vector, the columns that a thread has of 64: two of every eight, `column` being its first;
 * 0 from `columns` on. Packed, for registers are few. */
__device__ __forceinline__ void load_pairs(const char *vector, int column, int columns,
                                           uint32_t (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = column + i * 8;
        v[i] = at < columns ? *(const uint32_t *)(vector + at * 2) : 0;
    }
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* A kernel of a call and of x, the weight and two more matrices as the copy engine sees them. */
template <class Call>
using product_kernel = void (*)(Call, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap);

template <class Call> struct product_launch {
    product_kernel<Call> kernel;
    int cluster, threads, shared_bytes;
};

/* Launches as many clusters as run at once, or as there is work for. */
template <class Call>
static mc_status launch_clusters(mc_device *d, const product_launch<Call> &l, int64_t work,
                                 const Call &c, const CUtensorMap (&maps)[4])
{
    int most = 0;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)l.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = (unsigned)l.cluster;
    config.blockDim = (unsigned)l.threads;
    config.dynamicSmemBytes = (size_t)l.shared_bytes;
    config.stream = mc_cuda_of(d)->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    mc_allow_shared(l.kernel, l.shared_bytes);
    cudaError_t error = cudaOccupancyMaxActiveClusters(&most, l.kernel, &config);
    if (error) return mc_cuda_check(d, error, "a product of our own");
    config.gridDim = (unsigned)(l.cluster * mc_least(most, work));
    error = cudaLaunchKernelEx(&config, l.kernel, c, maps[0], maps[1], maps[2], maps[3]);
    return mc_cuda_check(d, error, "a product of our own");
}

/* Whether the copy engine can see it. */
static inline bool fits(mc_matrix m, int64_t rows, mc_dtype dtype)
{
    return m.data && m.dtype == dtype && mc_is(m.data, 16) && (rows <= 1 || m.stride % 8 == 0);
}

} // namespace hopper

#endif
