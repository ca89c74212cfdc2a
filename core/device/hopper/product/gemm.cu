/* Products by matrix instructions of Hopper (compute capability 9.0), fused with the work around
 * them:
 *
 *      forward     pre = x weight^T + bias, y = gelu(pre)
 *      backward    dx = (dy weight) gelu'(pre), and the sums of dx's columns
 *      plain       dx = dy weight, and the sums of dy's columns
 *
 * cuBLASLt fuses GELU only in its tanh form, and its multipliers wait while it computes GELU: on an
 * H200 at its power limit that costs 40 % of a product of GPT-2 124M, here 25 %, and 36 % with the
 * sums, which otherwise are a pass over dx (20 %). The product by itself takes 1 to 2 % longer than
 * cuBLASLt's; the sums of dy's columns, which are in shared memory anyway, save a pass over dy
 * (bench/notebook/2026-11-21-one-h200.md#products-with-gelu-by-our-own-kernel).
 *
 * A tile of the result is 128 rows by 192 columns. A block of threads stays on its multiprocessor
 * for one tile after another, and has three groups of four warps:
 *
 * - one thread of the first group has the copy engine (TMA) load the operands, 64 terms at a time,
 * into a ring of STAGES places in shared memory; of a plain product two of its warps sum dy's
 * columns from there; - the other two groups, the consumers, take turns: while one multiplies, the
 * other finishes its tile in pieces of 64 columns, which the copy engine moves between shared and
 * global memory.
 *
 * Two blocks, a cluster, compute tiles below each other, which need the same part of the weight:
 * each block loads half of it, into the shared memory of both. */
#include "core/device/cuda/elementwise/activation.cuh"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/hopper/instructions.cuh"

using namespace hopper;

enum {
    ROWS = 128,
    COLUMNS = 192, /* the most of a matrix instruction */
    TERMS = 64,
    STAGES = 4,
    CLUSTER = 2,
    PIECE = 64, /* columns */
    PIECES = COLUMNS / PIECE,
    GROUP = 128, /* threads */
    THREADS = 3 * GROUP,
    PART = 96,   /* sums of a consumer's thread for 64 rows of a tile */
    SUMMERS = 2, /* warps that sum columns of x, ROWS / SUMMERS rows each */
};

/* Bytes of shared memory: the ring; for each consumer two pieces and the column sums of four warps;
 * barriers. */
enum {
    X_BYTES = ROWS * TERMS * 2,
    W_BYTES = COLUMNS * TERMS * 2,
    STAGE_BYTES = X_BYTES + W_BYTES,
    PIECE_BYTES = ROWS * PIECE * 2,
    PIECES_AT = STAGES * STAGE_BYTES,
    TOTALS_AT = PIECES_AT + 4 * PIECE_BYTES,
    BARRIERS_AT = TOTALS_AT + 2 * 4 * PIECE * 4,
    SHARED_BYTES = BARRIERS_AT + (2 * STAGES + 4) * 8,
};

struct hopper_call {
    int columns, terms;
    const char *bias; /* forward; two bytes an element */
    float *sums;      /* backward: (tiles of rows, columns), or NULL */
    float *x_sums;    /* plain: (tiles of rows * SUMMERS, terms) */
    int tile_pairs, tile_columns;
};

/* ---- instructions ---------------------------------------------------------------------------- */

/* Named barriers: 1 and 2 are the consumers' turns, 3 and 4 each consumer's own. */
__device__ __forceinline__ void await_turn(int consumer)
{
    asm volatile("bar.sync %0, 256;" ::"r"(1 + consumer) : "memory");
}
__device__ __forceinline__ void pass_turn_to(int consumer)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + consumer) : "memory");
}
__device__ __forceinline__ void sync_consumer(int consumer)
{
    asm volatile("bar.sync %0, 128;" ::"r"(3 + consumer) : "memory");
}

__device__ __forceinline__ void sync_cluster()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* Without memory ordering: it releases what matrix instructions have finished reading, and a
 * cluster-wide fence costs more than the block's product. */
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* load_box for both blocks of the cluster; the barrier of each counts its bytes. */
__device__ __forceinline__ void load_box_for_both(const CUtensorMap *map, uint32_t to,
                                                  uint32_t barrier, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row), "h"((uint16_t)3)
                 : "memory");
}

#define MC_D8(i)                                                                                \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])

/* d (64 x 192) = a (64 x 16) b (16 x 192) + d, without d if `add` is 0. With ROWS_ARE_TERMS b is in
 * memory as written here, otherwise transposed. */
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

/* A vector's elements for this thread's columns of 64: two of every eight, from `column` on; 0 from
 * `columns` on. Packed, to save registers. */
__device__ __forceinline__ void load_pairs(const char *vector, int column, int columns,
                                           uint32_t (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = column + i * 8;
        v[i] = at < columns ? *(const uint32_t *)(vector + at * 2) : 0;
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* A block's ring in shared memory, and its place in the cluster and the result. */
struct product_place {
    uint32_t shared, full, empty;        /* the ring, and the barriers of its stages */
    int rank, cluster, clusters, blocks; /* blocks of terms to a tile */
    uint32_t arrived;                    /* barriers of each consumer's two pieces */
    float *totals;
    int tiles;

    __device__ __forceinline__ int row_of(const hopper_call &c, int tile) const
    {
        return (tile / c.tile_columns * CLUSTER + rank) * ROWS;
    }
    __device__ __forceinline__ int column_of(const hopper_call &c, int tile) const
    {
        return tile % c.tile_columns * COLUMNS;
    }
};

/* The ring is where the block's shared memory begins. */
__device__ __forceinline__ product_place place_of_block(const hopper_call &c, char *memory)
{
    product_place p;
    p.shared = shared_address(memory);
    p.full = p.shared + BARRIERS_AT;
    p.empty = p.full + STAGES * 8;
    p.rank = rank_in_cluster();
    p.cluster = blockIdx.x / CLUSTER;
    p.clusters = gridDim.x / CLUSTER;
    p.blocks = (c.terms + TERMS - 1) / TERMS;
    p.arrived = p.empty + STAGES * 8;
    p.totals = (float *)(memory + TOTALS_AT);
    p.tiles = c.tile_pairs * c.tile_columns;
    return p;
}

/* Initializes the barriers, by one thread; `readers` warps read each stage of the ring. */
__device__ __forceinline__ void open_ring(const product_place &p, int readers)
{
    if (p.shared % 1024) __trap(); /* swizzling needs this alignment */
    for (int i = 0; i < STAGES; i++) {
        barrier_init(p.full + i * 8, 1);
        barrier_init(p.empty + i * 8, readers);
    }
    for (int i = 0; i < 4; i++) barrier_init(p.arrived + i * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Loads all operands of the block's consumers, and half of the weight for both blocks. */
template <bool ROWS_ARE_TERMS>
__device__ __forceinline__ void load_tiles(const hopper_call &c, const product_place &p,
                                           const CUtensorMap *x, const CUtensorMap *weight)
{
    ring<STAGES> at = {0, 0};
    for (int tile = p.cluster; tile < p.tiles; tile += p.clusters) {
        const int row = p.row_of(c, tile), column = p.column_of(c, tile);
        for (int block = 0; block < p.blocks; block++, at.advance()) {
            const uint32_t full = p.full + at.stage * 8;
            const uint32_t to = p.shared + at.stage * STAGE_BYTES, w = to + X_BYTES;
            barrier_wait(p.empty + at.stage * 8, at.parity ^ 1);
            barrier_expect(full, STAGE_BYTES);
            load_box(x, to, full, block * TERMS, row);
            if (ROWS_ARE_TERMS) { /* boxes of 64 columns; each block loads half their rows */
                constexpr int half = TERMS / CLUSTER;
                for (int i = 0; i < PIECES; i++)
                    load_box_for_both(weight, w + i * (TERMS * 128) + p.rank * (half * 128), full,
                                      column + i * 64, block * TERMS + p.rank * half);
            } else {
                constexpr int half = COLUMNS / CLUSTER;
                load_box_for_both(weight, w + p.rank * (half * 128), full, block * TERMS,
                                  column + p.rank * half);
            }
        }
    }
    /* The block must not exit before the other one has read what was loaded for it. */
    for (int i = 0; i < STAGES; i++, at.advance())
        barrier_wait(p.empty + at.stage * 8, at.parity ^ 1);
}

/* Sums the columns 2 lane and 2 lane + 1 over the warp's rows of x in shared memory. A thread reads
 * word `lane` of each row, which because of the swizzle has the columns of thread lane ^ 4 (row %
 * 8). */
template <class T> __device__ __forceinline__ float2 sum_part(uint32_t part, int lane)
{
    float2 sums[8] = {};
    const uint32_t first = part + lane * 4;
#pragma unroll 1
    for (int row = 0; row < ROWS / SUMMERS; row += 8) {
        uint32_t words[8];
#pragma unroll
        for (int i = 0; i < 8; i++) words[i] = load_word(first + (row + i) * 128);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 v = unpack<T>(words[i]);
            sums[i].x += v.x;
            sums[i].y += v.y;
        }
    }
#pragma unroll
    for (int i = 1; i < 8; i++) {
        sums[0].x += __shfl_xor_sync(~0u, sums[i].x, 4 * i);
        sums[0].y += __shfl_xor_sync(~0u, sums[i].y, 4 * i);
    }
    return sums[0];
}

/* A warp sums x's columns over its share of each tile's rows. The T tiles next to each other read
 * the same rows of x: for the j-th of them the warp sums blocks j, j + T, ... of terms. Like a
 * consumer, it waits for every load and then releases its place. */
template <class T>
__device__ __forceinline__ void sum_tiles(const hopper_call &c, const product_place &p, int share)
{
    constexpr int bytes = ROWS / SUMMERS * TERMS * 2;
    const int lane = threadIdx.x % 32;
    ring<STAGES> at = {0, 0};
    for (int tile = p.cluster; tile < p.tiles; tile += p.clusters) {
        const int64_t row = p.row_of(c, tile) / ROWS * SUMMERS + share;
        float *sums = c.x_sums + row * c.terms;
        int next = tile % c.tile_columns;
        for (int block = 0; block < p.blocks; block++, at.advance()) {
            const bool mine = block == next;
            float2 sum;
            barrier_wait(p.full + at.stage * 8, at.parity);
            if (mine) sum = sum_part<T>(p.shared + at.stage * STAGE_BYTES + share * bytes, lane);
            __syncwarp();
            if (lane == 0) barrier_arrive(p.empty + at.stage * 8);
            if (!mine) continue;
            const int term = block * TERMS + lane * 2;
            if (term < c.terms) sums[term] = sum.x;
            if (term + 1 < c.terms) sums[term + 1] = sum.y;
            next += c.tile_columns;
        }
    }
}

/* A thread of one of the two groups that compute tiles. */
struct consumer {
    int number, warp, lane;
    bool chief;
    uint32_t pieces, arrived; /* in shared memory: two pieces; their barriers */
    uint32_t arrived_parity;  /* bit i: of piece i */
    uint32_t row, swizzle;    /* for store_16x16, in bytes and in 16 bytes */
};

__device__ __forceinline__ consumer consumer_of(const product_place &p, int number)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    return {number,
            warp,
            lane,
            warp == 0 && lane == 0,
            p.shared + PIECES_AT + number * (2 * PIECE_BYTES),
            p.arrived + number * 16,
            0,
            (uint32_t)((warp * 16 + lane % 16) * 128),
            (uint32_t)(lane % 8)};
}

/* sums = the tile of the product; then it is the other consumer's turn. */
template <class T, bool ROWS_ARE_TERMS>
__device__ __forceinline__ void multiply_tile(const product_place &p, const consumer &me,
                                              ring<STAGES> *at, bool last, uint32_t empty,
                                              float (&sums)[2][PART])
{
    constexpr int next_terms =
        ROWS_ARE_TERMS ? 16 * 128 >> 4 : 16 * 2 >> 4; /* in units of descriptors */
    constexpr int below = 64 * 128 >> 4;
    const uint64_t x0 = descriptor(p.shared, 0);
    const uint64_t w0 = descriptor(p.shared + X_BYTES, TERMS * 128);
    uint32_t before = 0;
    for (int block = 0; block < p.blocks; block++) {
        const uint64_t x = x0 + at->stage * (STAGE_BYTES >> 4);
        const uint64_t w = w0 + at->stage * (STAGE_BYTES >> 4);
        barrier_wait(p.full + at->stage * 8, at->parity);
        begin_multiplying();
        multiply_add<T, ROWS_ARE_TERMS>(sums[0], x, w, block);
        multiply_add<T, ROWS_ARE_TERMS>(sums[1], x + below, w, block);
#pragma unroll
        for (int i = 1; i < TERMS / 16; i++) {
            multiply_add<T, ROWS_ARE_TERMS>(sums[0], x + i * 2, w + i * next_terms, 1);
            multiply_add<T, ROWS_ARE_TERMS>(sums[1], x + below + i * 2, w + i * next_terms, 1);
        }
        end_multiplying();
        if (block) {
            wait_for_products<1>();
            if (me.lane < CLUSTER) barrier_arrive_in_cluster(before);
        }
        before = empty + at->stage * 8;
        at->advance();
    }
    if (!last) pass_turn_to(1 - me.number);
    wait_for_products<0>();
    if (me.lane < CLUSTER) barrier_arrive_in_cluster(before);
}

/* Two threads `lanes` apart each add up one half of their 2 HALF values; true: the upper. */
template <int HALF> __device__ __forceinline__ bool share_sums(float (&v)[16], int lane, int lanes)
{
    const bool upper = lane & lanes;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float kept = upper ? v[i + HALF] : v[i], given = upper ? v[i] : v[i + HALF];
        v[i] = kept + __shfl_xor_sync(~0u, given, lanes);
    }
    return upper;
}

/* The warp's sums of a piece's columns; the thread's v[4 i + 2 j + k] belongs to column 16 i + 8 j
 * + 2 (lane % 4) + k. */
__device__ __forceinline__ void sum_columns(const consumer &me, float (&v)[16], float *totals)
{
    int column = me.lane % 4 * 2;
    if (share_sums<8>(v, me.lane, 16)) column += 32;
    if (share_sums<4>(v, me.lane, 8)) column += 16;
    if (share_sums<2>(v, me.lane, 4)) column += 8;
    *(float2 *)(totals + me.warp * PIECE + column) = make_float2(v[0], v[1]);
}

/* pre = v + bias and y = gelu(pre) of 16 x 16 elements, packed. */
template <class T, bool TANH>
__device__ __forceinline__ void end_forward(const float *v, uint32_t bias, uint32_t next_bias,
                                            uint32_t (&pre)[4], uint32_t (&y)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) { /* rows 0 and 8 of eight columns, then of the next eight */
        float2 b = unpack<T>(i < 2 ? bias : next_bias);
        pre[i] = pack<T>(v[2 * i] + b.x, v[2 * i + 1] + b.y);
        float2 p = unpack<T>(pre[i]); /* rounded like the stored pre, so that y can be recomputed */
        y[i] = TANH ? pack<T>(mc_gelu_new<true>(p.x), mc_gelu_new<true>(p.y))
                    : pack<T>(mc_gelu<true>(p.x), mc_gelu<true>(p.y));
    }
}

/* dx = v gelu'(pre), packed; adds to total, the sums of columns. */
template <class T, bool TANH>
__device__ __forceinline__ void end_backward(const float *v, const uint32_t (&pre)[4],
                                             uint32_t (&dx)[4], float *total)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 p = unpack<T>(pre[i]);
        float a = v[2 * i] * (TANH ? mc_gelu_new_slope<true>(p.x) : mc_gelu_slope<true>(p.x));
        float b = v[2 * i + 1] * (TANH ? mc_gelu_new_slope<true>(p.y) : mc_gelu_slope<true>(p.y));
        dx[i] = pack<T>(a, b);
        total[i / 2 * 2] += a;
        total[i / 2 * 2 + 1] += b;
    }
}

/* The offset in a piece at which a thread stores the i-th 16 columns of its rows. */
__device__ __forceinline__ uint32_t place_of(const consumer &me, int half, int i)
{
    return me.row + half * (64 * 128) + ((i * 2 + me.lane / 16) ^ me.swizzle) * 16;
}

template <class T, bool TANH, bool KEEPS>
__device__ __forceinline__ void
store_forward(const hopper_call &c, const consumer &me, int row, int first,
              const CUtensorMap *map_y, const CUtensorMap *map_pre, const float (&sums)[2][PART])
{
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const int column = first + piece * PIECE;
        /* pre and y have a piece each; y alone alternates between the two */
        const uint32_t pre_piece = me.pieces,
                       y_piece = me.pieces + (KEEPS ? 1 : piece % 2) * PIECE_BYTES;
        uint32_t bias[8];
        load_pairs(c.bias, column + me.lane % 4 * 2, c.columns, bias);
        if (me.chief && (KEEPS || piece == 0)) wait_for_stores();
        if (me.chief && !KEEPS && piece > 0) wait_for_stores<1>();
        sync_consumer(me.number);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t pre[4], y[4], at = place_of(me, half, i);
                end_forward<T, TANH>(&sums[half][piece * 32 + i * 8], bias[2 * i], bias[2 * i + 1],
                                     pre, y);
                if (KEEPS) store_16x16(pre_piece + at, pre);
                store_16x16(y_piece + at, y);
            }
        show_to_copy_engine();
        sync_consumer(me.number);
        if (!me.chief || column >= c.columns) continue;
        if (KEEPS) store_box(map_pre, pre_piece, column, row);
        store_box(map_y, y_piece, column, row);
        end_stores();
    }
}

__device__ __forceinline__ void load_piece(const consumer &me, const CUtensorMap *map, int piece,
                                           int column, int row)
{
    barrier_expect(me.arrived + piece * 8, PIECE_BYTES);
    load_box(map, me.pieces + piece * PIECE_BYTES, me.arrived + piece * 8, column, row);
}

/* Starts to load the first pieces of pre before the product is computed. */
__device__ __forceinline__ void load_first_pieces(const consumer &me, const CUtensorMap *map_pre,
                                                  int row, int first)
{
    if (!me.chief) return;
    wait_for_stores();
    for (int piece = 0; piece < 2; piece++)
        load_piece(me, map_pre, piece, first + piece * PIECE, row);
}

/* dx replaces pre in shared memory. */
template <class T, bool TANH>
__device__ __forceinline__ void
store_backward(const hopper_call &c, consumer &me, int row, int first, const CUtensorMap *map_dx,
               const CUtensorMap *map_pre, float *totals, const float (&sums)[2][PART])
{
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const int column = first + piece * PIECE, which = piece % 2;
        const uint32_t in_shared = me.pieces + which * PIECE_BYTES;
        float total[16] = {};
        barrier_wait(me.arrived + which * 8, me.arrived_parity >> which & 1);
        me.arrived_parity ^= 1 << which;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t pre[4], dx[4], at = in_shared + place_of(me, half, i);
                load_16x16(at, pre);
                end_backward<T, TANH>(&sums[half][piece * 32 + i * 8], pre, dx, total + 4 * i);
                store_16x16(at, dx);
            }
        if (c.sums) sum_columns(me, total, totals);
        show_to_copy_engine();
        sync_consumer(me.number);
        if (me.chief && column < c.columns) store_box(map_dx, in_shared, column, row);
        if (me.chief) end_stores();
        if (me.chief && piece + 2 < PIECES) {
            wait_for_stores();
            load_piece(me, map_pre, which, column + 2 * PIECE, row);
        }
        if (!c.sums) continue;
        const int i = me.warp * 32 + me.lane;
        if (i < PIECE && column + i < c.columns)
            c.sums[(int64_t)(row / ROWS) * c.columns + column + i] =
                (totals[i] + totals[PIECE + i]) + (totals[2 * PIECE + i] + totals[3 * PIECE + i]);
        sync_consumer(me.number); /* the next piece overwrites totals */
    }
}

/* Pieces alternate between the two places in shared memory. */
template <class T>
__device__ __forceinline__ void store_plain(const hopper_call &c, const consumer &me, int row,
                                            int first, const CUtensorMap *map_y,
                                            const float (&sums)[2][PART])
{
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const int column = first + piece * PIECE;
        const uint32_t in_shared = me.pieces + piece % 2 * PIECE_BYTES;
        if (me.chief && piece == 0) wait_for_stores();
        if (me.chief && piece > 0) wait_for_stores<1>();
        sync_consumer(me.number);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *v = &sums[half][piece * 32 + i * 8];
                const uint32_t y[4] = {pack<T>(v[0], v[1]), pack<T>(v[2], v[3]),
                                       pack<T>(v[4], v[5]), pack<T>(v[6], v[7])};
                store_16x16(in_shared + place_of(me, half, i), y);
            }
        show_to_copy_engine();
        sync_consumer(me.number);
        if (me.chief && column < c.columns) store_box(map_y, in_shared, column, row);
        if (me.chief) end_stores();
    }
}

template <class T, bool TANH, mc_product_kind KIND, bool KEEPS>
__device__ __forceinline__ void compute_tiles(const hopper_call &c, const product_place &p,
                                              int number, const CUtensorMap *map_y,
                                              const CUtensorMap *map_pre)
{
    consumer me = consumer_of(p, number);
    const uint32_t empty = address_in(p.empty, me.lane < CLUSTER ? me.lane : 0);
    float *totals = p.totals + number * (4 * PIECE);
    ring<STAGES> at = {0, 0};
    int turn = 0;
    for (int tile = p.cluster; tile < p.tiles; tile += p.clusters, turn++) {
        if ((turn & 1) != number) {
            at.skip(p.blocks);
            continue;
        }
        const int row = p.row_of(c, tile), column = p.column_of(c, tile);
        float sums[2][PART];
        if (turn) await_turn(number);
        if (KIND == MC_PRODUCT_BACKWARD) load_first_pieces(me, map_pre, row, column);
        multiply_tile<T, KIND != MC_PRODUCT_FORWARD>(p, me, &at, tile + p.clusters >= p.tiles,
                                                     empty, sums);
        if (KIND == MC_PRODUCT_PLAIN)
            store_plain<T>(c, me, row, column, map_y, sums);
        else if (KIND == MC_PRODUCT_BACKWARD)
            store_backward<T, TANH>(c, me, row, column, map_y, map_pre, totals, sums);
        else
            store_forward<T, TANH, KEEPS>(c, me, row, column, map_y, map_pre, sums);
    }
    if (me.chief) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Registers of a thread of the first group and of the consumers. Together the groups have what the
 * block starts with, 3 * 168 for a thread of each: a request for more would wait forever. */
template <mc_product_kind KIND>
constexpr int registers_of_first = KIND == MC_PRODUCT_PLAIN ? 56 : 24;
template <mc_product_kind KIND>
constexpr int registers_of_consumers = KIND == MC_PRODUCT_PLAIN ? 224 : 240;

template <class T, bool TANH, mc_product_kind KIND, bool KEEPS>
static __global__ void __launch_bounds__(THREADS, 1)
    hopper_product(const __grid_constant__ hopper_call c, const __grid_constant__ CUtensorMap x,
                   const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap y, const __grid_constant__ CUtensorMap pre)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char dynamic[];
    const product_place p = place_of_block(c, dynamic);
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); /* equal in a warp */
    const int group = warp / 4, summers = KIND == MC_PRODUCT_PLAIN ? SUMMERS : 0;
    /* the consumers' warps of both blocks, and the summing ones of this */
    if (threadIdx.x == 0) open_ring(p, 4 * CLUSTER + summers);
    sync_cluster();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers_of_first<KIND>));
        if (threadIdx.x == 0) load_tiles<KIND != MC_PRODUCT_FORWARD>(c, p, &x, &weight);
        if (warp > 0 && warp <= summers) sum_tiles<T>(c, p, warp - 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers_of_consumers<KIND>));
        compute_tiles<T, TANH, KIND, KEEPS>(c, p, group - 1, &y, &pre);
    }
    sync_cluster(); /* the other block may still arrive at this one's barriers */
#else
    __trap(); /* gemm.c launches it on Hopper only */
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Arguments: a call; x, the weight, y and pre as described for the copy engine. */
typedef void (*kernel_fn)(hopper_call, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap);

template <class T, bool TANH> static kernel_fn kernel_of(mc_product_kind kind, bool keeps_pre)
{
    if (kind == MC_PRODUCT_BACKWARD) return hopper_product<T, TANH, MC_PRODUCT_BACKWARD, false>;
    return keeps_pre ? hopper_product<T, TANH, MC_PRODUCT_FORWARD, true>
                     : hopper_product<T, TANH, MC_PRODUCT_FORWARD, false>;
}

template <class T> static kernel_fn kernel_of(const mc_product *p)
{
    if (p->kind == MC_PRODUCT_PLAIN) return hopper_product<T, false, MC_PRODUCT_PLAIN, false>;
    return p->activation == MC_ACTIVATION_GELU_NEW ? kernel_of<T, true>(p->kind, p->pre.data)
                                                   : kernel_of<T, false>(p->kind, p->pre.data);
}

static int64_t tile_pairs_of(const mc_product *p) { return mc_ceil_div(p->rows, ROWS * CLUSTER); }

/* Whether it should be faster than cuBLASLt. With fewer tiles cuBLASLt's smaller ones keep more
 * multiprocessors busy. The sums of a plain product are worth 3 % of its columns being computed in
 * vain to fill the last tile. Tiles are assigned to multiprocessors beforehand: those of one that
 * runs a collective wait until the others have finished, which costs more than is gained unless
 * products are short (four H200: GPT-2 124M 1.9 % faster, 1558M 0.5 % and 13B 5 % slower;
 * bench/notebook/2026-11-20-four-h200.md#at-e8c8591). */
static bool is_faster(const mc_cuda_device *cuda, const mc_product *p, int64_t tiles)
{
    enum { SHORT = 1024 }; /* terms */
    if (cuda->several_ranks && p->terms > SHORT) return false;
    const int64_t in_vain = mc_ceil_div(p->columns, COLUMNS) * COLUMNS - p->columns;
    if (p->kind == MC_PRODUCT_PLAIN && in_vain * 100 > p->columns * 3) return false;
    return tiles >= 2 * (int64_t)cuda->multiprocessors;
}

/* Bytes of partial sums. */
static size_t scratch_of(const mc_product *p)
{
    const int64_t tiles = tile_pairs_of(p) * CLUSTER;
    const int64_t x_sums = tiles * SUMMERS * p->terms;
    return (size_t)(p->kind == MC_PRODUCT_PLAIN ? x_sums : tiles * p->columns) * sizeof(float);
}

/* Whether the copy engine can read the matrix. */
static bool fits(mc_matrix m, int64_t rows, mc_dtype dtype)
{
    return m.data && m.dtype == dtype && mc_is(m.data, 16) && (rows <= 1 || m.stride % 8 == 0);
}

/* Whether the product has all that its kind needs and nothing that the kernel lacks. */
static bool is_whole(const mc_product *p)
{
    const mc_dtype dtype = p->x.dtype;
    const bool gelu =
        p->activation == MC_ACTIVATION_GELU || p->activation == MC_ACTIVATION_GELU_NEW;
    if (p->alpha != 1 || p->beta != 0) return false;
    if (p->kind == MC_PRODUCT_PLAIN)
        return p->activation == MC_ACTIVATION_NONE && p->x_sums && !p->sums;
    if (p->kind == MC_PRODUCT_BACKWARD) return gelu && fits(p->pre, p->rows, dtype);
    return gelu && p->bias.data && p->bias.dtype == dtype && mc_is(p->bias.data, 4) &&
           (!p->pre.data || fits(p->pre, p->rows, dtype));
}

extern "C" mc_status mc_hopper_product_takes(mc_device *d, const void *call, bool asked)
{
    const mc_product *p = (const mc_product *)call;
    const mc_cuda_device *cuda = mc_cuda_of(d);
    const mc_dtype dtype = p->x.dtype;
    const int64_t tiles = tile_pairs_of(p) * CLUSTER * mc_ceil_div(p->columns, COLUMNS);
    const int64_t largest = p->rows | p->columns | p->terms;
    const bool good =
        cuda->gemm->encode_map && dtype != MC_F32 && is_whole(p) && p->rows && p->columns &&
        p->terms && p->columns % 8 == 0 && largest <= INT32_MAX / 2 && tiles <= INT32_MAX / 2 &&
        (asked || is_faster(cuda, p, tiles)) && fits(p->x, p->rows, dtype) &&
        fits(p->y, p->rows, dtype) &&
        fits(p->weight, p->kind == MC_PRODUCT_FORWARD ? p->columns : p->terms, dtype) &&
        scratch_of(p) <= MC_GEMM_WORKSPACE;
    return good ? MC_OK : MC_ERR_UNSUPPORTED;
}

/* Describes x, weight, y and pre for the copy engine. */
static CUresult describe_all(encode_fn encode, const mc_product *p, CUtensorMap (&maps)[4])
{
    CUresult result = describe(encode, p->x, p->rows, p->terms, ROWS, &maps[0]);
    if (!result && p->kind != MC_PRODUCT_FORWARD)
        result = describe(encode, p->weight, p->terms, p->columns, TERMS / CLUSTER, &maps[1]);
    if (!result && p->kind == MC_PRODUCT_FORWARD)
        result = describe(encode, p->weight, p->columns, p->terms, COLUMNS / CLUSTER, &maps[1]);
    if (!result) result = describe(encode, p->y, p->rows, p->columns, ROWS, &maps[2]);
    const mc_matrix pre = p->pre.data ? p->pre : p->y; /* of y for a kernel that does not use it */
    return result ? result : describe(encode, pre, p->rows, p->columns, ROWS, &maps[3]);
}

/* Launches as many clusters as can run at the same time, or as have work. */
static mc_status launch_clusters(mc_device *d, kernel_fn kernel, const hopper_call &c,
                                 const CUtensorMap (&maps)[4])
{
    int most = 0;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = CLUSTER;
    config.blockDim = THREADS;
    config.dynamicSmemBytes = SHARED_BYTES;
    config.stream = mc_cuda_of(d)->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    mc_allow_shared(kernel, SHARED_BYTES);
    cudaError_t error = cudaOccupancyMaxActiveClusters(&most, kernel, &config);
    if (error) return mc_cuda_check(d, error, "a product of our own");
    config.gridDim = (unsigned)(CLUSTER * mc_least(most, (int64_t)c.tile_pairs * c.tile_columns));
    error = cudaLaunchKernelEx(&config, kernel, c, maps[0], maps[1], maps[2], maps[3]);
    return mc_cuda_check(d, error, "a product of our own");
}

extern "C" mc_status mc_hopper_product(mc_device *d, const void *call)
{
    const mc_product *p = (const mc_product *)call;
    struct mc_cuda_gemm *g = mc_cuda_of(d)->gemm;
    const int64_t row_tiles = mc_ceil_div(p->rows, ROWS);
    CUtensorMap maps[4];
    hopper_call c = {};
    c.columns = (int)p->columns;
    c.terms = (int)p->terms;
    c.bias = (const char *)p->bias.data;
    c.sums = p->sums ? (float *)g->workspace : NULL;
    c.x_sums = (float *)g->workspace;
    c.tile_pairs = (int)tile_pairs_of(p);
    c.tile_columns = (int)mc_ceil_div(p->columns, COLUMNS);
    CUresult result = describe_all((encode_fn)g->encode_map, p, maps);
    if (result)
        return mc_cuda_fail(d, MC_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
    kernel_fn kernel = p->x.dtype == MC_F16 ? kernel_of<__half>(p) : kernel_of<__nv_bfloat16>(p);
    mc_status status = MC_OK;
    const bool sums_x = p->x_sums && p->kind == MC_PRODUCT_PLAIN;
    if (p->x_sums && !sums_x) status = mc_cuda_column_sums(d, p->rows, p->terms, p->x, p->x_sums);
    if (!status) status = launch_clusters(d, kernel, c, maps);
    if (!status && p->sums) mc_add_partials(d, c.sums, row_tiles, p->columns, {1, {p->sums}});
    if (!status && sums_x)
        mc_add_partials(d, c.x_sums, row_tiles * SUMMERS, p->terms, {1, {p->x_sums}});
    return status ? status : mc_cuda_launched(d, "a product of our own");
}
