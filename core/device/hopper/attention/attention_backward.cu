/* The backward pass of causal attention by Hopper's matrix instructions, for sequences of one
 * length and heads of 64, from the log-sum-exp of each query's scores. With s = scale q k^T:
 *
 *     p = exp(s - lse)            dv = p^T dout
 *     dp = dout v^T               ds = p (dp - sum(dout out))
 *     dk = scale ds^T q           dq = scale ds k
 *
 * (Dao, "FlashAttention-2", 2023, algorithm 2.) The keys of a head are cut into blocks of 128,
 * which blocks of threads, one to a multiprocessor, take one by one as they are done with the
 * one before; a block's work is cut into tiles of 64 queries, from the diagonal on. dk and dv of
 * a block of keys stay in registers. dq of a tile grows in memory, block after block, from the
 * last of those that see it to the first: the one on the diagonal stores its terms, others add
 * theirs in turn, and the first makes dq of them. A block meets a tile two tiles later than the
 * block after it does, and those of other heads are taken between the two, so that there is
 * little waiting. As the order is fixed, results are the same to the bit from run to
 * run, and as it is the order in which blocks are taken, the block that is waited for is at work. Sums
 * of a few heads are enough, in memory that stays in the L2 cache.
 *
 * A block of threads has four groups of four warps. Two, the workers, have 64 of the keys each.
 * Scores are computed transposed, a row a key, so that p and ds come in the registers that the
 * products for dv and dk take them from. dq needs ds of both workers: it goes through shared
 * memory, and each worker multiplies every other tile's, a tile late, while the tile at hand is
 * on its way. Of the other groups six threads run the copy engine: one loads q, k, v and dout,
 * one sums of dq, and four take results out, two for each worker in turns: fences of the GPU,
 * which sums want between one's terms and the next one's, take longer than a tile. */
#include "core/device/cuda/attention/attention_internal.h"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/hopper/instructions.cuh"

using namespace hopper;

enum {
    HEAD = 64,    /* elements of a row of a head */
    QUERIES = 64, /* of a tile */
    KEYS = 128,   /* of a block */
    STAGES = 4,
    GROUP = 128, /* threads */
    THREADS = 4 * GROUP,
    TILE = QUERIES * HEAD, /* elements */
    PART = TILE / GROUP,   /* of 64 x 64 elements a thread of a worker has as many */
};

/* Of shared memory, in bytes: a ring of tiles of q and dout; two blocks of k and v; ds of two
 * tiles; for each worker a sum of dq that came, or dk and dv that go, and dq that goes; what is
 * known of each query, by tile; barriers; the numbers of the two blocks of keys. */
enum {
    BOX = 64 * 64 * 2,
    STAGE_BYTES = 2 * BOX,
    BLOCKS_AT = STAGES * STAGE_BYTES,
    BLOCK_BYTES = 4 * BOX,
    SCORES_AT = BLOCKS_AT + 2 * BLOCK_BYTES,
    SCORES_BYTES = 2 * BOX,
    SUM_BYTES = TILE * 4,
    SUMS_AT = SCORES_AT + 2 * SCORES_BYTES,
    RESULTS_AT = SUMS_AT + 2 * SUM_BYTES,
    STATS_AT = RESULTS_AT + 2 * SUM_BYTES,
    STATS_BYTES = 2 * QUERIES * 4,
    BARRIERS_AT = STATS_AT + STAGES * STATS_BYTES,
    NUMBERS_AT = BARRIERS_AT + (2 * STAGES + 2 * 2 + 7 * 2) * 8,
    SHARED_BYTES = NUMBERS_AT + 2 * 4,
};

struct attention_call {
    int heads, length, all_heads; /* of a sequence; its queries; of all sequences */
    int together;                 /* heads whose blocks are taken in turns */
    int places; /* heads whose sums there is room for: with `together` the block that is waited for holds
                 * an earlier block, with more there is less waiting */
    float scale, scale_log2; /* scale log2(e) */
    const float *stats;      /* (all_heads, tiles, 2, QUERIES): lse log2(e), sum(dout out) */
    float *sums;             /* (places, tiles, TILE) of dq, dealt to threads */
    unsigned *counts;        /* (places, tiles): terms that sums have had, of all heads so far */
    unsigned *taken;         /* blocks of keys */
};

/* A block of keys. */
struct work {
    int head, key;   /* of all heads; the block's number in its head */
    int row, column; /* of the head's first element in q, k, v, ... */
    uint32_t k, v;   /* in shared memory */
};

/* The block that is taken as the number-th: of some heads the last ones, then those before. */
__device__ __forceinline__ work work_of(const attention_call &c, int number)
{
    const int blocks = c.length / KEYS, first = number / (blocks * c.together) * c.together;
    const int together = min(c.together, c.all_heads - first), rest = number - first * blocks;
    work w;
    w.head = first + rest % together;
    w.key = blocks - 1 - rest / together;
    w.row = w.head / c.heads * c.length;
    w.column = w.head % c.heads * HEAD;
    return w;
}

/* ---- matrix instructions --------------------------------------------------------------------- */

#define MC_4(with, i) with(d[i]), with(d[i + 1]), with(d[i + 2]), with(d[i + 3])
#define MC_32(with)                                                                              \
    MC_4(with, 0), MC_4(with, 4), MC_4(with, 8), MC_4(with, 12), MC_4(with, 16), MC_4(with, 20), \
        MC_4(with, 24), MC_4(with, 28)
#define MC_SUMS                                                                               \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31}"
#define MC_SET "=f"
#define MC_ADD "+f"

/* d (64 x 64) = a (64 x 16) b (16 x 64), or `add`s it to d. An operand of shared memory is
 * stored with a row for each of the 64, or with ROWS_ARE_TERMS for each of the 16. */
#define MC_MULTIPLY(name, type, with, add)                                                       \
    template <bool ROWS_ARE_TERMS>                                                               \
    __device__ __forceinline__ void name(float(&d)[PART], const uint32_t(&a)[4], uint64_t b)     \
    {                                                                                            \
        asm volatile("{\n"                                                                       \
                     ".reg .pred add;\n"                                                         \
                     "setp.ne.b32 add, " add ", 0;\n"                                            \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " MC_SUMS     \
                     ", {%32,%33,%34,%35}, %36, add, 1, 1, %37;\n"                               \
                     "}\n"                                                                       \
                     : MC_32(with)                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ROWS_ARE_TERMS)); \
    }                                                                                            \
    template <bool ROWS_ARE_TERMS>                                                               \
    __device__ __forceinline__ void name(float(&d)[PART], uint64_t a, uint64_t b)                \
    {                                                                                            \
        asm volatile("{\n"                                                                       \
                     ".reg .pred add;\n"                                                         \
                     "setp.ne.b32 add, " add ", 0;\n"                                            \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " MC_SUMS     \
                     ", %32, %33, add, 1, 1, %34, %34;\n"                                        \
                     "}\n"                                                                       \
                     : MC_32(with)                                                               \
                     : "l"(a), "l"(b), "n"(ROWS_ARE_TERMS));                                     \
    }
MC_MULTIPLY(multiply_bf16, "bf16", MC_SET, "0")
MC_MULTIPLY(multiply_f16, "f16", MC_SET, "0")
MC_MULTIPLY(multiply_add_bf16, "bf16", MC_ADD, "1")
MC_MULTIPLY(multiply_add_f16, "f16", MC_ADD, "1")
#undef MC_MULTIPLY
#undef MC_SUMS
#undef MC_32
#undef MC_4

template <class T, bool ROWS_ARE_TERMS, class A>
__device__ __forceinline__ void multiply(float (&d)[PART], const A &a, uint64_t b, bool add)
{
    constexpr bool f16 = std::is_same_v<T, __half>;
    if (add && f16)
        multiply_add_f16<ROWS_ARE_TERMS>(d, a, b);
    else if (add)
        multiply_add_bf16<ROWS_ARE_TERMS>(d, a, b);
    else if (f16)
        multiply_f16<ROWS_ARE_TERMS>(d, a, b);
    else
        multiply_bf16<ROWS_ARE_TERMS>(d, a, b);
}

/* ---- synchronization ------------------------------------------------------------------------- */

/* Named barriers: 1 + w: ds of both workers is there for worker w; 3 + w: w has read it. */
enum { WRITTEN = 1, FREE = 3 };

__device__ __forceinline__ void sync_workers(int barrier)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(2 * GROUP) : "memory");
}
__device__ __forceinline__ void tell_workers(int barrier)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(2 * GROUP) : "memory");
}

/* Where a block of threads is in shared memory, and its barriers. */
struct place {
    uint32_t shared;
    uint32_t full, empty;               /* (STAGES) tiles of q and dout */
    uint32_t blocks_full, blocks_empty; /* (2) blocks of keys */
    uint32_t sum, sum_taken;            /* (workers) a sum of dq came, the worker has it */
    uint32_t results, left;             /* (workers, 2), (workers): dq is there, it has left */
    uint32_t gradients, gradients_left; /* (workers) the same of dk and dv */
};

struct maps {
    CUtensorMap q, k, v, dout, dq, dk, dv;
};

__device__ __forceinline__ bool is_there(const attention_call &c, int number)
{
    return number < c.length / KEYS * c.all_heads;
}

/* The number of the block of keys in a place, when it is known. */
__device__ __forceinline__ int await_number(const place &p, const ring<2> &block)
{
    barrier_wait(p.blocks_full + block.stage * 8, block.parity);
    return (int)load_word(p.shared + NUMBERS_AT + block.stage * 4);
}

/* For those that only want to know the number. */
__device__ __forceinline__ int take_number(const place &p, const ring<2> &block)
{
    const int number = await_number(p, block);
    barrier_arrive(p.blocks_empty + block.stage * 8);
    return number;
}

/* ---- loading --------------------------------------------------------------------------------- */

__device__ __forceinline__ void load_bytes(uint32_t to, const void *from, int bytes,
                                           uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void load_keys(const place &p, const maps &m, const work &w, int stage)
{
    const uint32_t to = p.shared + BLOCKS_AT + stage * BLOCK_BYTES;
    const uint32_t full = p.blocks_full + stage * 8;
    barrier_expect(full, BLOCK_BYTES);
    for (int half = 0; half < 2; half++) {
        const int row = w.row + w.key * KEYS + half * 64;
        load_box(&m.k, to + half * BOX, full, w.column, row);
        load_box(&m.v, to + (2 + half) * BOX, full, w.column, row);
    }
}

__device__ __forceinline__ void load_all(const attention_call &c, const place &p, const maps &m)
{
    const int tiles = c.length / QUERIES;
    ring<STAGES> at = {0, 0};
    for (ring<2> block = {0, 0};; block.advance()) {
        const int number = (int)atomicAdd(c.taken, 1u);
        barrier_wait(p.blocks_empty + block.stage * 8, block.parity ^ 1);
        store_word(p.shared + NUMBERS_AT + block.stage * 4, number);
        if (!is_there(c, number)) {
            barrier_arrive(p.blocks_full + block.stage * 8);
            return;
        }
        const work w = work_of(c, number);
        load_keys(p, m, w, block.stage);
        for (int tile = w.key * 2; tile < tiles; tile++, at.advance()) {
            const uint32_t to = p.shared + at.stage * STAGE_BYTES, full = p.full + at.stage * 8;
            barrier_wait(p.empty + at.stage * 8, at.parity ^ 1);
            barrier_expect(full, STAGE_BYTES + STATS_BYTES);
            load_box(&m.q, to, full, w.column, w.row + tile * QUERIES);
            load_box(&m.dout, to + BOX, full, w.column, w.row + tile * QUERIES);
            load_bytes(p.shared + STATS_AT + at.stage * STATS_BYTES,
                       c.stats + ((int64_t)w.head * tiles + tile) * (2 * QUERIES), STATS_BYTES,
                       full);
        }
    }
}

/* ---- taking results out ---------------------------------------------------------------------- */

__device__ __forceinline__ void store_bytes(void *to, uint32_t from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void add_floats(float *to, uint32_t from, int bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
}

__device__ __forceinline__ unsigned read_count(const unsigned *count)
{
    unsigned is;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is) : "l"(count) : "memory");
    return is;
}

/* What the copy engine does, and what is read and written of memory before and after, in order. */
__device__ __forceinline__ void order_copies()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void set_count(unsigned *count, unsigned value)
{
    order_copies();
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(count), "r"(value) : "memory");
}

/* How many terms the sums in a head's place have had before the block's, and where the count is. */
struct turn {
    unsigned before, *count;
    float *sum;
};

__device__ __forceinline__ turn turn_of(const attention_call &c, const work &w, int tile)
{
    const int64_t at = (int64_t)(w.head % c.places) * (c.length / QUERIES) + tile;
    return {(unsigned)(w.head / c.places * (tile / 2 + 1) + (tile / 2 - w.key)), c.counts + at,
            c.sums + at * TILE};
}

__device__ __forceinline__ void wait_for_turn(const turn &t)
{
    while (read_count(t.count) != t.before) continue;
    order_copies();
}

/* A tile's terms of dq to their sum, in turn, or from block 0, which had the sum before, the
 * whole to dq: its place is the next head's then. */
__device__ __forceinline__ void take_dq_out(const attention_call &c, const place &p, const maps &m,
                                            const work &w, int tile, int worker, uint32_t there,
                                            uint32_t parity)
{
    const turn t = turn_of(c, w, tile);
    const uint32_t results = p.shared + RESULTS_AT + worker * SUM_BYTES;
    if (w.key > 0) wait_for_turn(t);
    barrier_wait(there, parity);
    if (w.key == 0)
        store_box(&m.dq, results, w.column, w.row + tile * QUERIES);
    else if (w.key == tile / 2)
        store_bytes(t.sum, results, SUM_BYTES);
    else
        add_floats(t.sum, results, SUM_BYTES);
    end_stores();
    wait_for_stores();
    barrier_arrive(p.left + worker * 8);
    if (w.key > 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    set_count(t.count, t.before + 1);
}

/* Every other tile of what a worker has of dq. */
__device__ __forceinline__ void take_all_dq_out(const attention_call &c, const place &p,
                                                const maps &m, int worker, int mine)
{
    const uint32_t there = p.results + (worker * 2 + mine) * 8;
    uint32_t parity = 0;
    int turn = 0;
    for (ring<2> block = {0, 0};; block.advance()) {
        const int number = take_number(p, block);
        if (!is_there(c, number)) break;
        const work w = work_of(c, number);
        for (int tile = w.key * 2 + worker; tile < c.length / QUERIES; tile += 2, turn ^= 1) {
            if (turn != mine) continue;
            take_dq_out(c, p, m, w, tile, worker, there, parity);
            parity ^= 1;
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Sums of dq for block 0 of a head, when all others have added their terms. */
__device__ __forceinline__ void bring_sums(const attention_call &c, const place &p, const work &w,
                                           uint32_t *taken)
{
    for (int tile = 2; tile < c.length / QUERIES; tile++) {
        const int me = tile % 2;
        const turn t = turn_of(c, w, tile);
        if (tile >= 4) {
            barrier_wait(p.sum_taken + me * 8, *taken >> me & 1);
            *taken ^= 1 << me;
        }
        wait_for_turn(t);
        barrier_expect(p.sum + me * 8, SUM_BYTES);
        load_bytes(p.shared + SUMS_AT + me * SUM_BYTES, t.sum, SUM_BYTES, p.sum + me * 8);
    }
    for (int me = 0; me < 2 && c.length > KEYS; me++) {
        barrier_wait(p.sum_taken + me * 8, *taken >> me & 1);
        *taken ^= 1 << me;
    }
}

/* Those sums, and dk and dv of all blocks, which go through the same places. */
__device__ __forceinline__ void bring_sums_and_take_gradients(const attention_call &c,
                                                              const place &p, const maps &m)
{
    uint32_t taken = 0, round = 0;
    for (ring<2> block = {0, 0};; block.advance()) {
        const int number = take_number(p, block);
        if (!is_there(c, number)) break;
        const work w = work_of(c, number);
        if (w.key == 0) bring_sums(c, p, w, &taken);
        for (int me = 0; me < 2; me++) {
            const uint32_t from = p.shared + SUMS_AT + me * SUM_BYTES;
            const int row = w.row + w.key * KEYS + me * 64;
            barrier_wait(p.gradients + me * 8, round);
            store_box(&m.dk, from, w.column, row);
            store_box(&m.dv, from + BOX, w.column, row);
            end_stores();
        }
        round ^= 1;
        wait_for_stores();
        for (int me = 0; me < 2; me++) barrier_arrive(p.gradients_left + me * 8);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- workers --------------------------------------------------------------------------------- */

/* One of the two, and one of its threads. */
struct worker {
    int warp, lane;
    uint32_t results, sum; /* in shared memory; the thread's own of what is dealt to threads */
    uint32_t row, swizzle; /* of what store_16x16 wants, in bytes and in 16 bytes */
    ring<STAGES> at;
    uint32_t before; /* the barrier of the tile that was read last; 0: none is held */
    uint32_t sum_parity, left_parity, block_parity;
};

/* Where a thread has 16 bytes of the i-th 16 columns of its rows, in a box. */
__device__ __forceinline__ uint32_t place_in_box(const worker &me, int i)
{
    return me.row + ((i * 2 + me.lane / 16) ^ me.swizzle) * 16;
}

__device__ __forceinline__ void let_go(worker &me)
{
    if (me.before) barrier_arrive(me.before);
    me.before = 0;
}

/* What the worker's warps wrote for the copy engine is there. */
__device__ __forceinline__ void tell_copy_engine(const worker &me, uint32_t barrier)
{
    show_to_copy_engine();
    barrier_arrive(barrier);
}

template <class T>
__device__ __forceinline__ void put_box(const worker &me, uint32_t to, float scale,
                                        const float (&d)[PART])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *v = d + i * 8;
        const uint32_t words[4] = {
            pack<T>(v[0] * scale, v[1] * scale), pack<T>(v[2] * scale, v[3] * scale),
            pack<T>(v[4] * scale, v[5] * scale), pack<T>(v[6] * scale, v[7] * scale)};
        store_16x16(to + place_in_box(me, i), words);
    }
}

/* dq = ds k of the tile whose ds is this worker's to read, and if this block is the last to have
 * terms of it the sum of the others'. */
template <class T, int ME>
__device__ __forceinline__ void multiply_dq(const place &p, worker &me, const work &w, int tile,
                                            float (&dq)[PART])
{
    const uint64_t ds = descriptor(p.shared + SCORES_AT + ME * SCORES_BYTES, 0);
    const uint64_t k = descriptor(w.k, 0);
#pragma unroll
    for (int i = 0; i < PART; i++) dq[i] = 0;
    if (w.key == 0 && tile >= 2) {
        barrier_wait(p.sum + ME * 8, me.sum_parity);
        me.sum_parity ^= 1;
#pragma unroll
        for (int i = 0; i < PART / 4; i++) load_4(me.sum + i * (16 * GROUP), dq + 4 * i);
        barrier_arrive(p.sum_taken + ME * 8);
    }
    sync_workers(WRITTEN + ME);
    begin_multiplying();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        multiply<T, true>(dq, ds + i * NEXT_ROWS, k + i * NEXT_ROWS, true);
    end_multiplying();
}

/* dq is made. */
template <class T, int ME>
__device__ __forceinline__ void give_dq(const attention_call &c, const place &p, worker &me,
                                        const work &w, float (&dq)[PART])
{
    now_known(dq);
    tell_workers(FREE + ME);
    barrier_wait(p.left + ME * 8, me.left_parity ^ 1);
    me.left_parity ^= 1;
    if (w.key == 0) {
        put_box<T>(me, p.shared + RESULTS_AT + ME * SUM_BYTES, c.scale, dq);
    } else {
#pragma unroll
        for (int i = 0; i < PART / 4; i++) store_4(me.results + i * (16 * GROUP), dq + 4 * i);
    }
    tell_copy_engine(me, p.results + ME * 16 + (me.left_parity ^ 1) * 8);
}

/* p = exp(s - lse), or 0 where the key is after the query. */
template <bool DIAGONAL>
__device__ __forceinline__ void find_p(const attention_call &c, const worker &me, uint32_t stats,
                                       float (&s)[PART])
{
    const int key = me.warp * 16 + me.lane / 4, query = me.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 lse = load_pair(stats + (i * 8 + query) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[i * 4 + j] = mc_exp2(fmaf(s[i * 4 + j], c.scale_log2, j % 2 ? -lse.y : -lse.x));
    }
#pragma unroll
    for (int i = 0; i < (DIAGONAL ? (int)PART : 0); i++)
        if (key + i / 2 % 2 * 8 > i / 4 * 8 + query + i % 2) s[i] = 0;
}

/* ds = p (dp - sum(dout out)), in dp's place. It is rounded without the scale, as dk and dq have it
 * in the end. */
__device__ __forceinline__ void find_ds(const worker &me, uint32_t stats, const float (&p)[PART],
                                        float (&dp)[PART])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 delta = load_pair(stats + (QUERIES + i * 8 + me.lane % 4 * 2) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++)
            dp[i * 4 + j] = p[i * 4 + j] * (dp[i * 4 + j] - (j % 2 ? delta.y : delta.x));
    }
}

/* One tile. The first of the worker's keys is on the DIAGONAL: keys are only in part before
 * queries. With TURN the worker begins to make dq of the tile before; in the next tile it takes
 * it. */
template <class T, int ME, bool TURN, bool DIAGONAL>
__device__ __forceinline__ void compute_tile(const attention_call &c, const place &p, worker &me,
                                             const work &w, int tile, float (&dk)[PART],
                                             float (&dv)[PART], float (&dq)[PART])
{
    constexpr int reader = TURN ? 1 - ME : ME; /* of this tile's ds */
    const uint32_t q_at = p.shared + me.at.stage * STAGE_BYTES;
    const uint32_t stats = p.shared + STATS_AT + me.at.stage * STATS_BYTES;
    const uint64_t q = descriptor(q_at, 0), dout = descriptor(q_at + BOX, 0);
    const uint64_t k = descriptor(w.k + ME * BOX, 0), v = descriptor(w.v + ME * BOX, 0);
    float s[PART], dp[PART];
    uint32_t words[4][4];

    barrier_wait(p.full + me.at.stage * 8, me.at.parity);
    begin_multiplying();
#pragma unroll
    for (int i = 0; i < 4; i++)
        multiply<T, false>(s, k + i * NEXT_COLUMNS, q + i * NEXT_COLUMNS, i);
    end_multiplying();
    wait_for_products<0>(); /* those of the tile before are through, too */
    now_known(s);
    let_go(me);
    if (!TURN && !DIAGONAL) give_dq<T, ME>(c, p, me, w, dq);
    begin_multiplying();
#pragma unroll
    for (int i = 0; i < 4; i++)
        multiply<T, false>(dp, v + i * NEXT_COLUMNS, dout + i * NEXT_COLUMNS, i);
    end_multiplying();
    me.before = p.empty + me.at.stage * 8;
    find_p<DIAGONAL>(c, me, stats, s);
    pack_all<T>(s, words);
    begin_multiplying();
#pragma unroll
    for (int i = 0; i < 4; i++)
        multiply<T, true>(dv, words[i], dout + i * NEXT_ROWS, i || !DIAGONAL);
    end_multiplying();

    wait_for_products<1>();
    now_known(dp);
    find_ds(me, stats, s, dp);
    wait_for_products<0>();
    pack_all<T>(dp, words);
    /* Its own ds before the last the worker has read: matrix instructions of its four warps run
     * together, for they share operands, and those of the tile before are over. */
    if (reader != ME) sync_workers(FREE + reader);
    const uint32_t ds = p.shared + SCORES_AT + reader * SCORES_BYTES + ME * BOX;
#pragma unroll
    for (int i = 0; i < 4; i++) store_16x16(ds + place_in_box(me, i), words[i]);
    show_to_copy_engine(); /* and to matrix instructions */
    if (reader != ME) tell_workers(WRITTEN + reader);
    begin_multiplying();
#pragma unroll
    for (int i = 0; i < 4; i++) multiply<T, true>(dk, words[i], q + i * NEXT_ROWS, i || !DIAGONAL);
    end_multiplying();
    if (TURN) multiply_dq<T, ME>(p, me, w, tile - 1, dq);
    me.at.advance();
}

/* All queries of the tile are before the worker's keys: its ds is 0. */
template <int ME> __device__ __forceinline__ void skip_tile(const place &p, worker &me, int reader)
{
    const uint32_t ds = p.shared + SCORES_AT + reader * SCORES_BYTES + ME * BOX;
    const uint32_t zeros[4] = {0, 0, 0, 0};
    barrier_wait(p.full + me.at.stage * 8, me.at.parity);
    me.before = p.empty + me.at.stage * 8;
    let_go(me);
    me.at.advance();
    sync_workers(FREE + reader);
#pragma unroll
    for (int i = 0; i < 4; i++) store_16x16(ds + place_in_box(me, i), zeros);
    show_to_copy_engine();
    tell_workers(WRITTEN + reader);
}

/* Worker 0 has the keys' first half, and makes dq of even tiles; worker 1 the rest. */
template <class T, int ME>
__device__ __forceinline__ void compute_block(const attention_call &c, const place &p, worker &me,
                                              const work &w)
{
    const int tiles = c.length / QUERIES, first = w.key * 2;
    const uint32_t gradients = p.shared + SUMS_AT + ME * SUM_BYTES; /* no sum comes any more */
    float dk[PART], dv[PART], dq[PART];
    if (ME == 1) skip_tile<ME>(p, me, 0);
    compute_tile<T, ME, false, true>(c, p, me, w, first + ME, dk, dv, dq);
#pragma unroll 1
    for (int tile = first + ME + 1; tile < tiles - 1; tile += 2) {
        compute_tile<T, ME, true, false>(c, p, me, w, tile, dk, dv, dq);
        compute_tile<T, ME, false, false>(c, p, me, w, tile + 1, dk, dv, dq);
    }
    if (ME == 0)
        compute_tile<T, ME, true, false>(c, p, me, w, tiles - 1, dk, dv, dq);
    else
        multiply_dq<T, ME>(p, me, w, tiles - 1, dq);
    wait_for_products<0>();
    now_known(dk);
    now_known(dv);
    let_go(me);
    give_dq<T, ME>(c, p, me, w, dq);
    barrier_wait(p.gradients_left + ME * 8, me.block_parity ^ 1);
    me.block_parity ^= 1;
    put_box<T>(me, gradients, c.scale, dk);
    put_box<T>(me, gradients + BOX, 1.0f, dv);
    tell_copy_engine(me, p.gradients + ME * 8);
}

template <class T, int ME>
__device__ __forceinline__ void compute_all(const attention_call &c, const place &p)
{
    const int thread = threadIdx.x % GROUP;
    worker me;
    me.warp = thread / 32;
    me.lane = thread % 32;
    me.results = p.shared + RESULTS_AT + ME * SUM_BYTES + thread * 16;
    me.sum = p.shared + SUMS_AT + ME * SUM_BYTES + thread * 16;
    me.row = (me.warp * 16 + me.lane % 16) * 128;
    me.swizzle = me.lane % 8;
    me.at = {0, 0};
    me.before = me.sum_parity = me.left_parity = me.block_parity = 0;
    tell_workers(FREE + ME);
    for (ring<2> block = {0, 0};; block.advance()) {
        const int number = __shfl_sync(~0u, await_number(p, block), 0); /* known to be a warp's */
        if (!is_there(c, number)) break;
        work w = work_of(c, number);
        w.k = p.shared + BLOCKS_AT + block.stage * BLOCK_BYTES;
        w.v = w.k + 2 * BOX;
        compute_block<T, ME>(c, p, me, w);
        barrier_arrive(p.blocks_empty + block.stage * 8);
    }
    sync_workers(FREE + 1 - ME); /* the other's last arrival, so that none is left half full */
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Registers of a thread of the first two groups and of the workers; together what a block starts
 * with. */
enum { REGISTERS_OF_FIRST = 24, REGISTERS_OF_WORKERS = 232 };

template <class T>
static __global__ void __launch_bounds__(THREADS, 1)
    hopper_attention_backward(const __grid_constant__ attention_call c,
                              const __grid_constant__ maps m)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char dynamic[];
    place p;
    p.shared = shared_address(dynamic);
    p.full = p.shared + BARRIERS_AT;
    p.empty = p.full + STAGES * 8;
    p.blocks_full = p.empty + STAGES * 8;
    p.blocks_empty = p.blocks_full + 2 * 8;
    p.sum = p.blocks_empty + 2 * 8;
    p.sum_taken = p.sum + 2 * 8;
    p.results = p.sum_taken + 2 * 8;
    p.left = p.results + 4 * 8;
    p.gradients = p.left + 2 * 8;
    p.gradients_left = p.gradients + 2 * 8;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); /* known to be a warp's */
    if (threadIdx.x == 0) {
        if (p.shared % 1024) __trap(); /* swizzling counts from there */
        for (int i = 0; i < STAGES; i++) {
            barrier_init(p.full + i * 8, 1);
            barrier_init(p.empty + i * 8, 2 * GROUP);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(p.blocks_full + i * 8, 1);
            barrier_init(p.blocks_empty + i * 8, 2 * GROUP + 5); /* and who takes all out */
            barrier_init(p.sum + i * 8, 1);
            barrier_init(p.sum_taken + i * 8, GROUP);
            barrier_init(p.results + i * 16, GROUP);
            barrier_init(p.results + i * 16 + 8, GROUP);
            barrier_init(p.left + i * 8, 1);
            barrier_init(p.gradients + i * 8, GROUP);
            barrier_init(p.gradients_left + i * 8, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp < 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_FIRST));
        if (threadIdx.x == 0) load_all(c, p, m);
        if (threadIdx.x == 32) bring_sums_and_take_gradients(c, p, m);
        if (warp >= 4 && threadIdx.x % 32 == 0) take_all_dq_out(c, p, m, warp % 2, warp / 2 % 2);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_WORKERS));
        if (warp < 12)
            compute_all<T, 0>(c, p);
        else
            compute_all<T, 1>(c, p);
    }
#else
    __trap(); /* for Hopper alone */
#endif
}

/* stats, and nothing taken or counted: a block of threads for each tile of each head, eight
 * threads a query. */
template <class T>
static __global__ void __launch_bounds__(256)
    prepare_backward(const __grid_constant__ attention_call c, const mc_view out,
                     const mc_view dout, const float *lse, float *stats)
{
    const int tiles = c.length / QUERIES, head = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const int part = threadIdx.x % 8, column = head % c.heads * HEAD + part * 8;
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < c.places * tiles; i += 256) c.counts[i] = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) *c.taken = 0;
    stats += (int64_t)blockIdx.x * (2 * QUERIES);
#pragma unroll
    for (int i = 0; i < QUERIES; i += 32) {
        const int query = i + threadIdx.x / 8;
        const int64_t row = (int64_t)(head / c.heads) * c.length + tile * QUERIES + query;
        float a[8], b[8], sum = 0;
        mc_load<T, true>(out, row * out.stride + column, 8, a);
        mc_load<T, true>(dout, row * dout.stride + column, 8, b);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += a[j] * b[j];
        for (int lanes = 4; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (part == 0)
            stats[query] = lse[(int64_t)head * c.length + tile * QUERIES + query] * MC_LOG2_E;
        if (part == 1) stats[QUERIES + query] = sum;
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Scratch memory of a call: stats, sums, counts and taken after each other. */
typedef struct scratch {
    int64_t stats, sums, counts; /* numbers of elements, of four bytes */
    size_t bytes;
} scratch;

/* Between a head's blocks so many others are taken as keep all multiprocessors at work for about
 * two tiles: with fewer there is waiting, with more the L2 cache holds less of them. */
static int together_of(const mc_cuda_device *cuda, const mc_attention_shape *s)
{
    const int tiles = s->lengths->longest / KEYS + 1; /* of a block, on average */
    return (int)mc_most(1, (int64_t)cuda->multiprocessors * 9 / 4 / tiles);
}

/* Heads at work at once: those that take turns, and those before them, whose last blocks the blocks
 * of threads have or are about to take. */
static int places_of(const mc_cuda_device *cuda, const mc_attention_shape *s)
{
    const int64_t all = (int64_t)s->lengths->count * s->heads;
    const int64_t blocks = s->lengths->longest / KEYS;
    const int64_t taken = mc_ceil_div(2 * (int64_t)cuda->multiprocessors, blocks);
    return (int)mc_least(all, 2 * together_of(cuda, s) + taken);
}

static scratch scratch_of(const mc_cuda_device *cuda, const mc_attention_shape *s)
{
    const int64_t places = places_of(cuda, s), length = s->lengths->longest;
    scratch x = {2 * s->lengths->total * s->heads, places * length * HEAD,
                 places * (length / QUERIES), 0};
    x.bytes = (size_t)(x.stats + x.sums + x.counts + 1) * 4 + 256;
    return x;
}

static bool is_fit(mc_matrix m) { return mc_is(m.data, 16) && m.stride % 8 == 0; }

/* Causal self-attention of sequences of one length, without anything more. */
static bool is_plain(const mc_device *d, const mc_attention_call *c)
{
    const mc_cuda_device *cuda = (const mc_cuda_device *)(const void *)d;
    const mc_attention_shape *s = c->shape;
    const mc_lengths *l = s->lengths;
    const mc_dtype dtype = c->q.dtype;
    if (!cuda->gemm->encode_map || (dtype != MC_BF16 && dtype != MC_F16)) return false;
    if (c->k.dtype != dtype || c->v.dtype != dtype || c->out.dtype != dtype) return false;
    if (!s->causal || s->head_dim != HEAD || s->key_mask || s->key_lengths || s->bias.data)
        return false;
    if (s->position_bias || s->marks || mc_attention_needs(s)) return false;
    if (s->dropout.p > 0 || l->fixed || l->total == 0 || l->longest % KEYS) return false;
    if ((int64_t)l->longest * l->count != l->total) return false;
    if (l->total * s->heads > INT32_MAX / 2) return false;
    return is_fit(c->q) && is_fit(c->k) && is_fit(c->v) && is_fit(c->out);
}

extern "C" mc_status mc_hopper_attention_takes(mc_device *d, const void *call, bool)
{
    const mc_attention_call *c = (const mc_attention_call *)call;
    if (is_plain(d, c)) return mc_cudnn_forward_takes(d, c);
    return mc_cuda_fail(d, MC_ERR_UNSUPPORTED,
                        "any but causal attention of one length, with heads of 64, on Hopper");
}

static CUresult describe_all(encode_fn encode, const mc_attention_shape *s,
                             const mc_matrix (&matrices)[7], CUtensorMap *maps)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 7 && !result; i++)
        result = describe(encode, matrices[i], s->lengths->total, (int64_t)s->heads * HEAD, 64,
                          &maps[i]);
    return result;
}

template <class T>
static void launch(mc_device *d, const attention_call &c, const maps &m, mc_matrix out,
                   mc_matrix dout, const float *lse)
{
    const mc_cuda_device *cuda = mc_cuda_of(d);
    const int64_t blocks = (int64_t)c.all_heads * (c.length / KEYS);
    const unsigned tiles = (unsigned)c.all_heads * (unsigned)(c.length / QUERIES);
    const int64_t rows = (int64_t)c.all_heads / c.heads * c.length;
    prepare_backward<T><<<tiles, 256, 0, cuda->stream>>>(c, mc_view_of(out, rows, mc_width<T>),
                                                         mc_view_of(dout, rows, mc_width<T>), lse,
                                                         (float *)(uintptr_t)c.stats);
    if (cudaPeekAtLastError() != cudaSuccess) return; /* without counts there is no end */
    mc_allow_shared(hopper_attention_backward<T>, SHARED_BYTES);
    hopper_attention_backward<T><<<(unsigned)mc_least(blocks, cuda->multiprocessors), THREADS,
                                   SHARED_BYTES, cuda->stream>>>(c, m);
}

static mc_status run(mc_device *d, const mc_attention_call *a, float *memory)
{
    const mc_cuda_device *cuda = mc_cuda_of(d);
    const mc_attention_shape *s = a->shape;
    const mc_matrix matrices[] = {a->q, a->k, a->v, a->dout, a->dq, a->dk, a->dv};
    const scratch x = scratch_of(cuda, s);
    attention_call c = {};
    maps m;
    c.heads = s->heads;
    c.length = s->lengths->longest;
    c.all_heads = s->lengths->count * s->heads;
    c.together = together_of(cuda, s);
    c.places = places_of(cuda, s);
    c.scale = s->scale;
    c.scale_log2 = s->scale * MC_LOG2_E;
    c.stats = memory;
    c.sums = memory + x.stats;
    c.counts = (unsigned *)(c.sums + x.sums);
    c.taken = c.counts + x.counts;
    CUresult result = describe_all((encode_fn)cuda->gemm->encode_map, s, matrices, &m.q);
    if (result)
        return mc_cuda_fail(d, MC_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
    if (a->q.dtype == MC_F16)
        launch<__half>(d, c, m, a->out, a->dout, a->log_sum_exp);
    else
        launch<__nv_bfloat16>(d, c, m, a->out, a->dout, a->log_sum_exp);
    return mc_cuda_launched(d, "our attention's backward pass on Hopper");
}

static mc_status run_in_scratch(mc_device *d, const mc_attention_call *c)
{
    const size_t bytes = scratch_of(mc_cuda_of(d), c->shape).bytes;
    char *block = (char *)d->alloc(d, bytes);
    if (!block) return MC_ERR_NOMEM;
    mc_status status = MC_OK;
    if (!mc_cuda_is_planning(d))
        status = run(d, c, (float *)(block + (256 - (uintptr_t)block % 256) % 256));
    d->free(d, block, bytes);
    return status;
}

extern "C" mc_status mc_hopper_attention_backward(mc_device *d, const void *call)
{
    return mc_attention_staged(d, (const mc_attention_call *)call, run_in_scratch);
}
