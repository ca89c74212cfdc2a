/* y = LayerNorm(residual + x weight^T + bias), the end of a sublayer with its norm after the sum
 * (BERT's), in one kernel of Hopper's matrix instructions: the branch's result never goes to memory,
 * and the norm is no pass of its own. Of a tape that records nothing: neither sum nor statistics
 * are kept, and the sum is not rounded before the norm.
 *
 * A block computes 128 rows by 384 columns, a cluster of one or two blocks whole rows. As in
 * gemm.cu a block stays on its multiprocessor for one tile after another, and one thread of
 * its first four warps has the copy engine load into a ring in shared memory: 32 terms of the
 * product at a time, and after the last of them the residual. x is the same for both blocks, and
 * each loads half of it for both. The other eight warps multiply, and each has 16 rows of the result
 * in its registers, of which it
 *
 *  - adds bias and residual;
 *  - finds the mean and the squared deviations, and tells them to the same warp of the other block,
 *    for both together make the row's;
 *  - stores the norm in pieces of 64 columns, through two places of its own in shared memory, while
 *    the ring fills for the next tile.
 *
 * So warps wait for one another in the ring alone. */
#include "core/device/hopper/product.cuh"

using namespace hopper;

namespace
{

enum {
    ROWS = 128,
    PARTS = 2, /* of a block's columns: as many as a matrix instruction has */
    COLUMNS = PARTS * PART_COLUMNS,
    TERMS = 32,
    STAGES = 6, /* three of 64 terms are 3 % slower */
    MOST_CLUSTER = 2,
    WARPS = 8, /* that multiply */
    WARP_ROWS = ROWS / WARPS,
    PIECE = 64, /* columns */
    PIECES = COLUMNS / PIECE,
    STAGE_PIECES = TERMS / 16, /* of the residual, in a stage of the ring */
    PLACES = 2,                /* for pieces of y */
    THREADS = 128 + WARPS * 32,
    LEAST_TERMS = STAGES * TERMS, /* a ring's round within a tile keeps blocks together */
};

/* Of shared memory, in bytes: the ring; each warp's places; what the other block tells, of this tile
 * and the next; barriers. */
enum {
    X_BYTES = ROWS * TERMS * 2,
    W_BYTES = COLUMNS * TERMS * 2,
    STAGE_BYTES = X_BYTES + W_BYTES,
    PLACE_BYTES = WARP_ROWS * PIECE * 2,
    PIECE_BYTES = ROWS * PIECE * 2,
    PLACES_AT = STAGES * STAGE_BYTES,
    TOLD_BYTES = WARP_ROWS * 8,
    TOLD_AT = PLACES_AT + WARPS * PLACES * PLACE_BYTES,
    BARRIERS_AT = TOLD_AT + 2 * WARPS * TOLD_BYTES,
    BARRIERS = 2 * STAGES + WARPS,
    SHARED_BYTES = BARRIERS_AT + BARRIERS * 8,
};
static_assert(STAGE_PIECES * PIECE_BYTES == STAGE_BYTES, "a stage is full of residual");

struct norm_call {
    int terms, tiles;
    const char *bias, *norm_weight, *norm_bias; /* two bytes an element */
    float eps;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- instructions ---------------------------------------------------------------------------- */

/* Matrix descriptor of what lies in rows of 64 bytes, swizzled. Eight rows are 512 bytes. */
__device__ __forceinline__ uint64_t descriptor_of(uint32_t address)
{
    static_assert(TERMS * 2 == 64, "the swizzle of rows of 64 bytes");
    return (uint64_t)2 << 62 | (uint64_t)(512 >> 4) << 32 | (address & 0x3ffff) >> 4;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* By the thread that loads: the ring's next stage, once it may be written. */
__device__ __forceinline__ uint32_t begin_stage(const block_place &p, const ring<STAGES> &at,
                                                int bytes)
{
    barrier_wait(p.empty + at.stage * 8, at.parity ^ 1);
    barrier_expect(p.full + at.stage * 8, bytes);
    return p.shared + at.stage * STAGE_BYTES;
}

template <int CLUSTER>
__device__ __forceinline__ void load_tiles(const norm_call &c, const block_place &p,
                                           const CUtensorMap *x, const CUtensorMap *weight,
                                           const CUtensorMap *residual)
{
    constexpr int share = ROWS / CLUSTER;
    ring<STAGES> at = {0, 0};
    for (int tile = p.cluster; tile < c.tiles; tile += p.clusters) {
        const int row = tile * ROWS, first = p.rank * COLUMNS;
#pragma unroll 1
        for (int block = 0; block < p.blocks; block++, at.advance()) {
            const uint32_t to = begin_stage(p, at, STAGE_BYTES), full = p.full + at.stage * 8;
            const int term = block * TERMS;
            if (CLUSTER == 1)
                load_box(x, to, full, term, row);
            else
                load_box_for_both(x, to + p.rank * (share * TERMS * 2), full, term,
                                  row + p.rank * share);
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                load_box(weight, to + X_BYTES + i * (PART_COLUMNS * TERMS * 2), full, term,
                         first + i * PART_COLUMNS);
        }
#pragma unroll 1
        for (int piece = 0; piece < PIECES; piece += STAGE_PIECES, at.advance()) {
            const int pieces = PIECES - piece < STAGE_PIECES ? PIECES - piece : STAGE_PIECES;
            const uint32_t to = begin_stage(p, at, pieces * PIECE_BYTES);
            for (int i = 0; i < pieces; i++)
                load_box(residual, to + i * PIECE_BYTES, p.full + at.stage * 8,
                         first + (piece + i) * PIECE, row);
        }
    }
    /* The block must be there until the other has read what was loaded for it. */
    for (int i = 0; i < STAGES; i++, at.advance())
        barrier_wait(p.empty + at.stage * 8, at.parity ^ 1);
}

/* ---- a warp's rows --------------------------------------------------------------------------- */

/* A warp that multiplies, and one of its threads, which has of rows lane / 4 and lane / 4 + 8 two of
 * every eight columns. */
struct worker {
    int number, lane;
    uint32_t empty;              /* the ring's barriers, of the block whose number the lane has */
    uint32_t places;             /* two for pieces of y, in shared memory */
    uint32_t told, told_barrier; /* what the other block's warp tells of this tile */
    uint32_t row, swizzle;       /* of what store_16x16 wants, in bytes and in 16 bytes */
};

struct row_pair {
    float mean[2], squares[2]; /* squared deviations, summed up */
};

template <int CLUSTER> __device__ __forceinline__ worker worker_of(const block_place &p, int number)
{
    const int lane = threadIdx.x % 32;
    return {number,
            lane,
            address_in(p.empty, lane < CLUSTER ? lane : 0),
            p.shared + PLACES_AT + number * (PLACES * PLACE_BYTES),
            p.shared + TOLD_AT + number * TOLD_BYTES,
            p.empty + STAGES * 8 + number * 8,
            (uint32_t)(lane % 16 * 128),
            (uint32_t)(lane % 8)};
}

/* Of the i-th 16 columns of a piece, from the warp's first row on. */
__device__ __forceinline__ uint32_t place_of(const worker &me, int i)
{
    return me.row + ((i * 2 + me.lane / 16) ^ me.swizzle) * 16;
}

/* The warp needs a stage no more, and tells all blocks that load into it. */
template <int CLUSTER> __device__ __forceinline__ void leave_stage(const worker &me, int stage)
{
    if (me.lane < CLUSTER) barrier_arrive_in_cluster(me.empty + stage * 8);
}

/* sums = the warp's rows of the product. */
template <class T, int CLUSTER>
__device__ __forceinline__ void multiply_tile(const block_place &p, const worker &me,
                                              ring<STAGES> *at, float (&sums)[PARTS][PART])
{
    constexpr int next_part = PART_COLUMNS * TERMS * 2 >> 4, next_terms = 16 * 2 >> 4;
    const uint64_t x0 = descriptor_of(p.shared + me.number / 4 * (64 * TERMS * 2));
    const uint64_t w0 = descriptor_of(p.shared + X_BYTES);
    int before = 0;
#pragma unroll 1
    for (int block = 0; block < p.blocks; block++) {
        const uint64_t x = x0 + at->stage * (STAGE_BYTES >> 4);
        const uint64_t w = w0 + at->stage * (STAGE_BYTES >> 4);
        barrier_wait(p.full + at->stage * 8, at->parity);
        __syncwarp(); /* matrix instructions are of whole warps */
        begin_multiplying();
#pragma unroll
        for (int i = 0; i < TERMS / 16; i++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                multiply_add<T, false>(sums[part], x + i * next_terms,
                                       w + i * next_terms + part * next_part, i ? 1 : block);
        end_multiplying();
        __syncwarp();
        if (block) {
            wait_for_products<1>();
            leave_stage<CLUSTER>(me, before);
        }
        before = at->stage;
        at->advance();
    }
    wait_for_products<0>();
    leave_stage<CLUSTER>(me, before);
}

/* Over the four threads that have the same rows. */
__device__ __forceinline__ void sum_over_rows(float (&v)[2])
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        v[k] += __shfl_xor_sync(~0u, v[k], 1);
        v[k] += __shfl_xor_sync(~0u, v[k], 2);
    }
}

/* sums += bias + residual. Of four sums beside each other, the third and fourth are of the second
 * row. */
template <class T, int CLUSTER>
__device__ __forceinline__ void add_residual(const norm_call &c, const block_place &p,
                                             const worker &me, ring<STAGES> *at, int first,
                                             float (&sums)[PARTS][PART], float (&total)[2])
{
    total[0] = total[1] = 0;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        float *v = &sums[piece / (PIECES / PARTS)][piece % (PIECES / PARTS) * 32];
        uint32_t bias[8];
        load_pairs(c.bias, first + piece * PIECE + me.lane % 4 * 2, INT32_MAX, bias);
        if (piece % STAGE_PIECES == 0) barrier_wait(p.full + at->stage * 8, at->parity);
        __syncwarp();
        const uint32_t from = p.shared + at->stage * STAGE_BYTES +
                              piece % STAGE_PIECES * PIECE_BYTES + me.number * PLACE_BYTES;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t there[4];
            load_16x16(from + place_of(me, i), there);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 r = unpack<T>(there[j]), b = unpack<T>(bias[2 * i + j / 2]);
                float *s = v + i * 8 + 2 * j;
                s[0] += b.x + r.x;
                s[1] += b.y + r.y;
                total[j % 2] += s[0] + s[1];
            }
        }
        if (piece % STAGE_PIECES != STAGE_PIECES - 1 && piece != PIECES - 1) continue;
        __syncwarp();
        leave_stage<CLUSTER>(me, at->stage);
        at->advance();
    }
    sum_over_rows(total);
}

__device__ __forceinline__ row_pair look_at_rows(const float (&sums)[PARTS][PART],
                                                 const float (&total)[2])
{
    row_pair r = {{total[0] / COLUMNS, total[1] / COLUMNS}, {0, 0}};
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int i = 0; i < PART; i++) {
            const float d = sums[part][i] - r.mean[i / 2 % 2];
            r.squares[i / 2 % 2] = __fmaf_rn(d, d, r.squares[i / 2 % 2]);
        }
    sum_over_rows(r.squares);
    return r;
}

/* What both blocks have of the rows, as one. */
__device__ __forceinline__ void join_rows(const worker &me, int rank, int turn, row_pair *r)
{
    const uint32_t told = me.told + turn % 2 * (WARPS * TOLD_BYTES);
    if (me.lane == 0) barrier_expect(me.told_barrier, TOLD_BYTES);
    if (me.lane % 4 < 2) {
        const bool second = me.lane % 4;
        send_pair(address_in(told + (me.lane / 4 + second * 8) * 8, rank ^ 1),
                  address_in(me.told_barrier, rank ^ 1), second ? r->mean[1] : r->mean[0],
                  second ? r->squares[1] : r->squares[0]);
    }
    barrier_wait_for_cluster(me.told_barrier, turn % 2);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float2 other = load_pair(told + (me.lane / 4 + k * 8) * 8);
        const float d = other.x - r->mean[k];
        r->squares[k] += other.y + d * d * (COLUMNS / 2.0f);
        r->mean[k] = (r->mean[k] + other.x) * 0.5f;
    }
}

template <class T>
__device__ __forceinline__ void
store_norm(const norm_call &c, const worker &me, const CUtensorMap *y, int first, int row,
           const float (&rstd)[2], const float (&shift)[2], const float (&sums)[PARTS][PART])
{
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const int column = first + piece * PIECE, mine = column + me.lane % 4 * 2;
        const float *v = &sums[piece / (PIECES / PARTS)][piece % (PIECES / PARTS) * 32];
        uint32_t weight[8], bias[8];
        load_pairs(c.norm_weight, mine, INT32_MAX, weight);
        load_pairs(c.norm_bias, mine, INT32_MAX, bias);
        const uint32_t place = me.places + piece % PLACES * PLACE_BYTES;
        if (me.lane == 0) wait_for_stores<PLACES - 1>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t out[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 w = unpack<T>(weight[2 * i + j / 2]),
                             b = unpack<T>(bias[2 * i + j / 2]);
                const float *s = v + i * 8 + 2 * j;
                out[j] = pack<T>(__fmaf_rn(__fmaf_rn(s[0], rstd[j % 2], shift[j % 2]), w.x, b.x),
                                 __fmaf_rn(__fmaf_rn(s[1], rstd[j % 2], shift[j % 2]), w.y, b.y));
            }
            store_16x16(place + place_of(me, i), out);
        }
        show_to_copy_engine();
        __syncwarp();
        if (me.lane != 0) continue;
        store_box(y, place, column, row);
        end_stores();
    }
}

template <class T, int CLUSTER>
__device__ __forceinline__ void compute_tiles(const norm_call &c, const block_place &p, int number,
                                              const CUtensorMap *y)
{
    const worker me = worker_of<CLUSTER>(p, number);
    const int first = p.rank * COLUMNS;
    ring<STAGES> at = {0, 0};
    int turn = 0;
    for (int tile = p.cluster; tile < c.tiles; tile += p.clusters, turn++) {
        float sums[PARTS][PART], total[2], rstd[2], shift[2];
        multiply_tile<T, CLUSTER>(p, me, &at, sums);
        add_residual<T, CLUSTER>(c, p, me, &at, first, sums, total);
        row_pair r = look_at_rows(sums, total);
        if (CLUSTER > 1) join_rows(me, p.rank, turn, &r);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            rstd[k] = 1.0f / sqrtf(r.squares[k] / (COLUMNS * CLUSTER) + c.eps);
            shift[k] = -r.mean[k] * rstd[k];
        }
        store_norm<T>(c, me, y, first, tile * ROWS + number * WARP_ROWS, rstd, shift, sums);
    }
    if (me.lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    __syncwarp();
}

#endif

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class T, int CLUSTER>
__global__ void __launch_bounds__(THREADS, 1)
    linear_norm(const __grid_constant__ norm_call c, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ CUtensorMap weight,
                const __grid_constant__ CUtensorMap residual, const __grid_constant__ CUtensorMap y)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char dynamic[];
    const block_place p =
        place_of_block<CLUSTER, STAGES>(dynamic, BARRIERS_AT, (c.terms + TERMS - 1) / TERMS);
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); /* known to be a warp's */
    if (threadIdx.x == 0) {
        open_ring<STAGES>(p, WARPS * CLUSTER);
        for (int i = 2 * STAGES; i < BARRIERS; i++) barrier_init(p.full + i * 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_cluster();
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) load_tiles<CLUSTER>(c, p, &x, &weight, &residual);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        compute_tiles<T, CLUSTER>(c, p, warp - 4, &y);
    }
    sync_cluster(); /* the other block may still tell this one's barriers */
#else
    __trap(); /* gemm.c asks for it on Hopper alone */
#endif
}

template <class T> product_kernel<norm_call> kernel_of(int cluster)
{
    return cluster == 1 ? linear_norm<T, 1> : linear_norm<T, 2>;
}

/* Blocks in a cluster; 0 where rows have another length. */
int cluster_of(int64_t columns)
{
    return columns % COLUMNS || columns > MOST_CLUSTER * COLUMNS ? 0 : (int)(columns / COLUMNS);
}

bool is_vector(mc_matrix m, mc_dtype dtype)
{
    return m.data && m.dtype == dtype && mc_is(m.data, 4);
}

/* Whether it is known to be faster than a product and a norm: an H200 at its limit of power makes a
 * pass of BERT-base with four turns of tiles in 3 % less time
 * (bench/notebook/2026-11-23-bert-forward.md). A turn in which few blocks have a tile takes as long as
 * one in which all have. */
bool is_faster(const mc_cuda_device *cuda, int64_t tiles, int cluster)
{
    enum { MEASURED = 4 }; /* turns */
    const int64_t at_once = cuda->multiprocessors / cluster, turns = mc_ceil_div(tiles, at_once);
    return cluster == MOST_CLUSTER && turns >= MEASURED && tiles * 10 >= turns * at_once * 9;
}

/* x, weight, residual and y as the copy engine sees them. */
CUresult describe_all(encode_fn encode, const mc_linear_call *linear,
                      const mc_residual_norm_call *norm, int cluster, CUtensorMap (&maps)[4])
{
    const int64_t rows = linear->rows, in = linear->in, out = linear->out;
    CUresult result = describe(encode, linear->x, rows, in, ROWS / cluster, &maps[0], TERMS);
    if (!result) result = describe(encode, linear->weight, out, in, PART_COLUMNS, &maps[1], TERMS);
    if (!result) result = describe(encode, norm->x, rows, out, ROWS, &maps[2]);
    return result ? result : describe(encode, norm->y, rows, out, WARP_ROWS, &maps[3]);
}

/* Whether there is all that the kernel computes, and nothing that it does not. */
bool is_whole(const mc_linear_call *linear, const mc_residual_norm_call *norm)
{
    const mc_dtype dtype = linear->x.dtype;
    if (linear->alpha != 1 || linear->activation != MC_ACTIVATION_NONE) return false;
    if (linear->y.data != norm->f.data || norm->f.data != norm->y.data) return false;
    if (norm->s.data || norm->mean || norm->rstd || norm->dropout.p > 0) return false;
    return is_vector(linear->bias, dtype) && is_vector(norm->weight, dtype) &&
           is_vector(norm->bias, dtype);
}

} // namespace

extern "C" bool mc_own_linear_norm_takes(mc_device *d, const mc_linear_call *linear,
                                         const mc_residual_norm_call *norm)
{
    const mc_cuda_device *cuda = mc_cuda_of(d);
    const mc_dtype dtype = linear->x.dtype;
    const int64_t rows = linear->rows, in = linear->in, out = linear->out;
    const int cluster = cluster_of(out);
    if (!cuda->gemm->encode_map || cuda->gemm->products == MC_PRODUCTS_CUBLAS) return false;
    if (dtype == MC_F32 || !is_whole(linear, norm) || !cluster || rows == 0) return false;
    if (in < LEAST_TERMS || (rows | in) > INT32_MAX / 2) return false;
    if (cuda->gemm->products != MC_PRODUCTS_OWN &&
        !is_faster(cuda, mc_ceil_div(rows, ROWS), cluster))
        return false;
    return fits(linear->x, rows, dtype) && fits(linear->weight, out, dtype) &&
           fits(norm->x, rows, dtype) && fits(norm->y, rows, dtype);
}

extern "C" mc_status mc_own_linear_norm(mc_device *d, const mc_linear_call *linear,
                                        const mc_residual_norm_call *norm)
{
    const int cluster = cluster_of(linear->out);
    encode_fn encode = (encode_fn)mc_cuda_of(d)->gemm->encode_map;
    CUtensorMap maps[4];
    CUresult result = describe_all(encode, linear, norm, cluster, maps);
    if (result)
        return mc_cuda_fail(d, MC_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
    const norm_call c = {(int)linear->in,
                         (int)mc_ceil_div(linear->rows, ROWS),
                         (const char *)linear->bias.data,
                         (const char *)norm->weight.data,
                         (const char *)norm->bias.data,
                         norm->eps};
    auto kernel =
        linear->x.dtype == MC_F16 ? kernel_of<__half>(cluster) : kernel_of<__nv_bfloat16>(cluster);
    mc_status status =
        launch_clusters(d, {kernel, cluster, THREADS, SHARED_BYTES}, c.tiles, c, maps);
    return status ? status : mc_cuda_launched(d, "a product with its norm");
}
