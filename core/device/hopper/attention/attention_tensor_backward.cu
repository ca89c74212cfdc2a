/* The backward pass of attention_tensor.cu, from the log-sum-exp of each query's scores.
 * With s = scale q k^T + bias:
 *
 *     p = exp(s - lse)            dv = p^T dout
 *     dp = dout v^T               ds = p (dp - sum(dout out))
 *     dk = scale ds^T q           dq = scale ds k
 *
 * (Dao, "FlashAttention-2", 2023.) Two kernels, each of which computes p and ds: one has blocks of
 * keys and makes dk and dv, the other blocks of queries and makes dq. That is seven products in
 * place of five, but p and ds never leave registers (where rows are keys scores are computed
 * transposed), nothing is added in memory, and so results are the same to the bit from run to run.
 *
 * The gradient of a bias by distance is the sum of ds along diagonals. A group of the second kernel
 * writes a tile's ds to shared memory, each of its threads adds one diagonal up, and each block of
 * 64 queries hands out one vector; a last kernel adds those up, over blocks and sequences in order. */
#include "core/device/hopper/attention/attention_tensor.cuh"

namespace tensor
{

/* Folded ds of a group for add_diagonals: rows 8 below another lie on it, shifted by 8 columns. */
enum {
    FOLD_PAD = 8,
    FOLD_PITCH = FOLD_PAD + SIDE + 8 + FOLD_PAD,
    FOLD_ROWS = SIDE / 2,
    FOLD_BYTES = FOLD_ROWS * FOLD_PITCH * 4,
    CARRY_BYTES = 2 * SIDE * 4
};
enum { STATS_BYTES = 2 * SIDE * 4 };

/* How a size of heads is computed, by blocks of keys. Large heads have one group of threads, and dk
 * and dv in parts of WIDTH columns, for which p and ds are computed again. */
template <int D> struct keys_shape {
    static constexpr int GROUPS = D <= 128 ? 2 : 1, STAGES = D == 64 ? 4 : D <= 128 ? 3 : 2;
    static constexpr int ROWS = GROUPS * SIDE, THREADS = GROUPS * GROUP;
    static constexpr int WIDTH = D <= 128 ? D : 128, PIECES = D / WIDTH;
    typedef layout<D, ROWS, SIDE, STAGES, 2, STAGES * STATS_BYTES> shared;
};

/* By blocks of queries. Small heads have one group of threads, and three blocks at once: as many
 * groups as there are registers for. */
template <int D> struct queries_shape {
    static constexpr int RESIDENT = D == 64 ? 3 : 1;
    static constexpr int GROUPS = D == 64 || D > 128 ? 1 : 2, STAGES = D == 64 || D > 128 ? 2 : 3;
    static constexpr int ROWS = GROUPS * SIDE, THREADS = GROUPS * GROUP;
    static constexpr int WIDTH = D <= 128 ? D : 128, PIECES = D / WIDTH;
    static constexpr int FOLDS = D <= 128 ? 2 : 1; /* of each group */
    typedef layout<D, ROWS, SIDE, STAGES, 2, GROUPS *(FOLDS *FOLD_BYTES + CARRY_BYTES)> shared;
};

/* The padded row, a multiple of 64, from which on a sequence has its tiles in stats: they do not
 * overlap, as each sequence may begin up to 64 rows after where it does. */
__device__ __forceinline__ int64_t stats_tile(const place &p, int tile)
{
    return ((int64_t)p.row + (int64_t)p.sequence * SIDE) / SIDE + tile;
}

/* Of a block's places in shared memory: two matrices of its rows, then stages of two tiles. */
template <class S, int STAGES> struct backward_places {
    uint32_t at;
    barriers<STAGES> barrier;
    const tile_list *list;
    const float *bias;

    __device__ __forceinline__ uint32_t block(int which) const
    {
        return at + which * S::BLOCK_BYTES;
    }
    __device__ __forceinline__ uint32_t tile(int stage, int which) const
    {
        return at + S::STAGE_AT + stage * S::STAGE_BYTES + which * S::TILE_BYTES;
    }
    __device__ __forceinline__ uint32_t extra() const { return at + S::EXTRA_AT; }
};

/* Finds which tile the other side's `number`-th is, and where its first row is in memory. */
template <class S, int STAGES, bool BY_KEYS>
__device__ __forceinline__ void load_tile(const call &c, const maps &m, const place &p,
                                          const backward_places<S, STAGES> &s, int number,
                                          int stage)
{
    const int tile = s.list->tiles[number] >> 4;
    const int row = (BY_KEYS ? p.row : p.key_row) + tile * SIDE;
    const uint32_t full = s.barrier.full(stage);
    barrier_expect(full, S::STAGE_BYTES + (BY_KEYS ? (int)STATS_BYTES : 0));
    load_rows<S::BOXES, SIDE>(BY_KEYS ? &m.q : &m.k, s.tile(stage, 0), full, p.head, row);
    load_rows<S::BOXES, SIDE>(BY_KEYS ? &m.dout : &m.v, s.tile(stage, 1), full, p.head, row);
    if (!BY_KEYS) return;
    const float *stats = c.stats + (p.head * c.stat_tiles + stats_tile(p, tile)) * (2 * SIDE);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(s.extra() + stage * STATS_BYTES),
                 "l"(stats), "n"((int)STATS_BYTES), "r"(full)
                 : "memory");
}

template <class S, int STAGES, int ROWS, bool BY_KEYS>
__device__ __forceinline__ void begin_loading(const call &c, const maps &m, const place &p,
                                              const backward_places<S, STAGES> &s)
{
    if (threadIdx.x || s.list->count == 0) return;
    const uint32_t full = s.barrier.block();
    const int row = (BY_KEYS ? p.key_row : p.row) + p.first;
    barrier_expect(full, 2 * S::BLOCK_BYTES);
    load_rows<S::BOXES, ROWS>(BY_KEYS ? &m.k : &m.q, s.block(0), full, p.head, row);
    load_rows<S::BOXES, ROWS>(BY_KEYS ? &m.v : &m.dout, s.block(1), full, p.head, row);
    for (int i = 0; i < STAGES && i < s.list->count; i++)
        load_tile<S, STAGES, BY_KEYS>(c, m, p, s, i, i);
}

/* As the i-th tile is at work: what comes STAGES tiles after the one before takes its place. */
template <class S, int STAGES, bool BY_KEYS>
__device__ __forceinline__ void load_ahead(const call &c, const maps &m, const place &p,
                                           const backward_places<S, STAGES> &s, int i,
                                           ring<STAGES> &next)
{
    if (i == 0) return;
    if (threadIdx.x == 0 && i - 1 + STAGES < s.list->count) {
        barrier_wait(s.barrier.empty(next.stage), next.parity);
        load_tile<S, STAGES, BY_KEYS>(c, m, p, s, i - 1 + STAGES, next.stage);
    }
    next.advance();
    __syncwarp();
}

/* The beginning of both kernels: barriers, the list of tiles, first loads, the bias. */
template <class S, int STAGES, int ROWS, bool BY_KEYS>
__device__ __forceinline__ backward_places<S, STAGES>
prepare(const call &c, const maps &m, const place &p, const list_sizes &sizes, char *dynamic)
{
    tile_list *list = (tile_list *)(dynamic + sizes.tiles_at);
    summary *summaries = (summary *)(dynamic + sizes.summaries_at);
    float *bias = (float *)(dynamic + sizes.bias_at);
    const uint32_t at = shared_address(dynamic);
    const backward_places<S, STAGES> s = {at, {at + S::BARRIERS_AT}, list, bias};
    if (threadIdx.x == 0) {
        if (at % 1024) __trap(); /* swizzling counts from there */
        /* with BY_KEYS threads themselves read of tiles, and each lets go for itself */
        s.barrier.init(BY_KEYS ? blockDim.x : blockDim.x / 32);
    }
    if (c.marks) {
        summarize(c, p, summaries);
        __syncthreads();
    }
    list_tiles<ROWS, SIDE, BY_KEYS>(c, p, summaries, list);
    __syncthreads();
    begin_loading<S, STAGES, ROWS, BY_KEYS>(c, m, p, s);
    if (c.bias) {
        load_bias<ROWS, BY_KEYS>(c, p, bias, sizes.bias_count);
        __syncthreads();
    }
    return s;
}

/* ---- keys and values ------------------------------------------------------------------------- */

/* s becomes p; dropped ones are 0 in what `kept` gives, but not here, for ds needs them. */
__device__ __forceinline__ void find_p_of_keys(const call &c, const place &p, const seat &me,
                                               const biases<SIDE> &bias, uint32_t stats, int row,
                                               int column, bool mixed, float (&s)[SCORE])
{
    if (c.bias) bias.add_to(s, c.scale_log2);
    const float power = c.bias ? 1.0f : c.scale_log2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 lse = load_pair(stats + (i * 8 + me.column) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[i * 4 + j] = mc_exp2(fmaf(s[i * 4 + j], power, j % 2 ? -lse.y : -lse.x));
    }
    if (mixed) hide<true>(c, p, row, column + me.column, 0.0f, s);
}

/* Zeros where `bits` of draw_by_keys say so, and all else times `factor`. */
__device__ __forceinline__ void drop_of_keys(const unsigned (&bits)[2][2], const seat &me,
                                             float factor, float (&s)[SCORE])
{
#pragma unroll
    for (int i = 0; i < SCORE; i++) {
        const bool kept = bits[i / 2 % 2][i % 2] >> (i / 4 * 4 + me.lane / 4 % 4) & 1;
        s[i] = kept ? s[i] * factor : 0.0f;
    }
}

/* ds = p (dp - sum(dout out)), in dp's place; without the scale, as dk and dq have it in the
 * end. */
__device__ __forceinline__ void find_ds_of_keys(const seat &me, uint32_t stats,
                                                const float (&p)[SCORE], float (&dp)[SCORE])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 delta = load_pair(stats + (SIDE + i * 8 + me.column) * 4);
#pragma unroll
        for (int j = 0; j < 4; j++)
            dp[i * 4 + j] = p[i * 4 + j] * (dp[i * 4 + j] - (j % 2 ? delta.y : delta.x));
    }
}

template <class T, int D>
__device__ __forceinline__ void
compute_keys(const call &c, const maps &m, const place &p, const seat &me,
             const backward_places<typename keys_shape<D>::shared, keys_shape<D>::STAGES> &s,
             float (&dk)[keys_shape<D>::WIDTH / 2], float (&dv)[keys_shape<D>::WIDTH / 2])
{
    typedef keys_shape<D> shape;
    constexpr int STAGES = shape::STAGES;
    const uint32_t k = s.block(0) + me.group * BOX, v = s.block(1) + me.group * BOX;
    const uint32_t part = p.part * (shape::WIDTH / SIDE) * BOX;
    const float *bias = s.bias + me.column + shape::ROWS - 1 - (me.group * SIDE + me.row + 8);
    const int row = p.first + me.group * SIDE + me.row;
    const bool drops = c.dropping.keep != 0.0f;
    ring<STAGES> at = {0, 0}, next = {0, 0};
    uint32_t before = 0; /* the stage that products under way read; 0: none */
    float scores[SCORE] = {}, dp[SCORE] = {};
    if (s.list->count) barrier_wait(s.barrier.block(), 0);
#pragma unroll 1
    for (int i = 0; i < s.list->count; i++, at.advance()) {
        const int entry = s.list->tiles[i], column = (entry >> 4) * SIDE;
        const bool mixed = (entry >> 2 * me.group & 3) != SEEN;
        const uint32_t q = s.tile(at.stage, 0), dout = s.tile(at.stage, 1);
        const uint32_t stats = s.extra() + at.stage * STATS_BYTES;
        uint32_t words[SIDE / 16][4], dwords[SIDE / 16][4];
        unsigned bits[2][2];
        barrier_wait(s.barrier.full(at.stage), at.parity);
        begin_multiplying();
        multiply_heads<T, D, shape::ROWS, SIDE>(scores, k, q);
        end_multiplying();
        multiply_heads<T, D, shape::ROWS, SIDE>(dp, v, dout);
        end_multiplying();
        biases<SIDE> b;
        if (c.bias && D <= 80) b.read(bias + column); /* there are registers for it */
        if (drops) draw_by_keys(c, p, me, row - me.lane / 4, column, bits);
        wait_for_products<1>(); /* those of the tile before are through, too */
        now_known(scores);
        now_known(dk);
        now_known(dv);
        if (before) barrier_arrive(before);
        if (c.bias && D > 80) b.read(bias + column);
        find_p_of_keys(c, p, me, b, stats, row, column, mixed, scores);
        pack_all<T>(scores, words);
        if (drops) {
            float kept[SCORE];
#pragma unroll
            for (int j = 0; j < SCORE; j++) kept[j] = scores[j];
            drop_of_keys(bits, me, 1.0f, kept);
            pack_all<T>(kept, words);
        }
        begin_multiplying();
        add_weighted<T, shape::WIDTH, SIDE>(dv, words, dout + part);
        end_multiplying();
        load_ahead<typename shape::shared, STAGES, true>(c, m, p, s, i, next);
        wait_for_products<1>();
        now_known(dp);
        if (drops) drop_of_keys(bits, me, c.dropping.keep, dp);
        find_ds_of_keys(me, stats, scores, dp);
        pack_all<T>(dp, dwords);
        begin_multiplying();
        add_weighted<T, shape::WIDTH, SIDE>(dk, dwords, q + part);
        end_multiplying();
        before = s.barrier.empty(at.stage);
    }
    wait_for_products<0>();
    now_known(dk);
    now_known(dv);
}

template <class T, int D>
static __global__ void __launch_bounds__(keys_shape<D>::THREADS, 1)
    backward_keys(const __grid_constant__ call c, const __grid_constant__ maps m,
                  const __grid_constant__ list_sizes sizes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef keys_shape<D> shape;
    extern __shared__ __align__(1024) char dynamic[];
    const place p = place_of<shape::ROWS>(c, false);
    if (p.first >= p.keys) return;
    const auto s =
        prepare<typename shape::shared, shape::STAGES, shape::ROWS, true>(c, m, p, sizes, dynamic);
    const seat me = seat_of();
    float dk[shape::WIDTH / 2] = {}, dv[shape::WIDTH / 2] = {};
    compute_keys<T, D>(c, m, p, me, s, dk, dv);
    const int first = p.first + me.group * SIDE, next = shape::ROWS * BOX_ROW;
    const uint32_t k = s.block(0) + me.group * BOX, v = s.block(1) + me.group * BOX;
    const float keep = c.dropping.keep == 0.0f ? 1.0f : c.dropping.keep;
    put_rows<T, shape::WIDTH>(me, k, next, c.scale, c.scale, dk);
    put_rows<T, shape::WIDTH>(me, v, next, keep, keep, dv);
    sync_group(me.group);
    take_rows<T, shape::WIDTH>(c, p, c.y, p.key_row + first, p.keys - first, p.part * shape::WIDTH,
                               k, next);
    take_rows<T, shape::WIDTH>(c, p, c.y2, p.key_row + first, p.keys - first, p.part * shape::WIDTH,
                               v, next);
#else
    __trap(); /* for Hopper alone */
#endif
}

/* ---- queries --------------------------------------------------------------------------------- */

/* The gradient of the bias of a group's 64 queries: element x of its vector is that of distance x -
 * 64 less the first query's, so that a tile has those of two blocks of 64, the second of which it
 * shares with the next tile. `done` blocks have been taken; the next one's sums so far are
 * carried on, if `carries`. Of folds, where there are two, and of what is carried one is written
 * while the last one may still be read. */
struct diagonals {
    float *out;
    float *fold, *carry; /* in shared memory, the group's own */
    int folds, turn, done, blocks;
    bool carries;
};

template <int FOLDS>
__device__ __forceinline__ diagonals diagonals_of(const call &c, const place &p, const seat &me,
                                                  float *shared)
{
    const int tiles = c.blocks * ((int)blockDim.x / GROUP), tile = p.first / SIDE + me.group;
    const int64_t number = ((int64_t)p.sequence * c.heads + p.head) * tiles + tile;
    diagonals d = {};
    d.out = c.dbias + number * c.dbias_blocks * SIDE;
    d.fold = shared + me.group * ((FOLDS * FOLD_BYTES + CARRY_BYTES) / 4);
    d.carry = d.fold + FOLDS * FOLD_BYTES / 4;
    d.folds = FOLDS;
    d.blocks = (p.keys + SIDE - 1) / SIDE + 1;
    for (int i = threadIdx.x % GROUP; i < FOLDS * FOLD_ROWS * 2 * FOLD_PAD; i += GROUP) {
        const int column = i % (2 * FOLD_PAD);
        d.fold[i / (2 * FOLD_PAD) * FOLD_PITCH +
               (column < FOLD_PAD ? column : FOLD_PITCH - 2 * FOLD_PAD + column)] = 0.0f;
    }
    return d;
}

/* Hands out blocks before the end-th: the carried one, then zeros. */
__device__ __forceinline__ void hand_out(diagonals &d, int end)
{
    const int thread = threadIdx.x % GROUP;
    const float *carry = d.carry + (d.turn ^ 1) * SIDE;
    for (; d.done < end; d.done++) {
        if (thread < SIDE) d.out[d.done * SIDE + thread] = d.carries ? carry[thread] : 0.0f;
        d.carries = false;
    }
}

/* A thread's ds of a tile into a fold. */
__device__ __forceinline__ void put_folded(const diagonals &d, const seat &me,
                                           const float (&ds)[SCORE])
{
    float *fold = d.fold + (d.folds > 1 ? d.turn : 0) * (FOLD_BYTES / 4);
    float *row = fold + (me.warp * 8 + me.lane / 4) * FOLD_PITCH + FOLD_PAD + me.column;
    if (d.folds == 1) sync_group(me.group); /* it has been read */
#pragma unroll
    for (int i = 0; i <= 8; i++) {
        float2 sum = {0.0f, 0.0f};
        if (i < 8) sum = make_float2(ds[(i & 7) * 4 + 2], ds[(i & 7) * 4 + 3]);
        if (i > 0) sum.x += ds[((i + 7) & 7) * 4], sum.y += ds[((i + 7) & 7) * 4 + 1];
        *(float2 *)(row + i * 8) = sum;
    }
}

/* The sum of a diagonal of a fold; 0: the first, that of distance -64 within the tile. A warp's rows
 * end in zeros, in which a diagonal that it has nothing of is read. */
__device__ __forceinline__ float sum_diagonal(const float *fold, int number)
{
    float sums[4];
#pragma unroll
    for (int warp = 0; warp < 4; warp++) {
        const int x = number - SIDE + 8 + warp * 16; /* the fold is 8 columns wider to the left */
        const float *from = fold + warp * 8 * FOLD_PITCH + FOLD_PAD + min(max(x, -8), SIDE + 8);
        sums[warp] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sums[warp] += from[i * (FOLD_PITCH + 1)];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* What the group's threads have put of a tile's ds joins. */
__device__ __forceinline__ void add_diagonals(diagonals &d, const seat &me, int tile)
{
    const int thread = threadIdx.x % GROUP;
    const float *fold = d.fold + (d.folds > 1 ? d.turn : 0) * (FOLD_BYTES / 4);
    sync_group(me.group);
    hand_out(d, tile);
    float sum = sum_diagonal(fold, thread);
    if (thread >= SIDE) {
        d.carry[d.turn * SIDE + thread - SIDE] = sum;
    } else {
        if (d.carries) sum += d.carry[(d.turn ^ 1) * SIDE + thread];
        d.out[tile * SIDE + thread] = sum;
    }
    d.turn ^= 1;
    d.done = tile + 1;
    d.carries = true;
}

/* From scores and dp to ds, in dp's place. */
__device__ __forceinline__ void find_ds_of_queries(const call &c, const place &p, const seat &me,
                                                   const biases<SIDE> &bias, int tile, bool mixed,
                                                   const float (&lse)[2], const float (&delta)[2],
                                                   float (&s)[SCORE], float (&dp)[SCORE])
{
    const int row = p.first + me.group * SIDE + me.row, column = tile * SIDE;
    if (c.bias) bias.add_to(s, c.scale_log2);
    const float power = c.bias ? 1.0f : c.scale_log2;
#pragma unroll
    for (int i = 0; i < SCORE; i++) s[i] = mc_exp2(fmaf(s[i], power, -lse[i / 2 % 2]));
    if (mixed) hide<false>(c, p, row, column + me.column, 0.0f, s);
    wait_for_products<0>();
    now_known(dp);
    if (c.dropping.keep != 0.0f) {
        unsigned bits[2];
        draw_by_queries(c, p, me, row, column, bits);
#pragma unroll
        for (int i = 0; i < SCORE; i++) {
            const bool kept = bits[i / 2 % 2] >> (i / 4 * 4 + me.lane % 2 * 2 + i % 2) & 1;
            dp[i] = kept ? dp[i] * c.dropping.keep : 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < SCORE; i++) dp[i] = s[i] * (dp[i] - delta[i / 2 % 2]);
}

template <class T, int D>
__device__ __forceinline__ void compute_queries(
    const call &c, const maps &m, const place &p, const seat &me,
    const backward_places<typename queries_shape<D>::shared, queries_shape<D>::STAGES> &s,
    diagonals &sums, float (&dq)[queries_shape<D>::PIECES][queries_shape<D>::WIDTH / 2])
{
    typedef queries_shape<D> shape;
    constexpr int STAGES = shape::STAGES;
    const uint32_t q = s.block(0) + me.group * BOX, dout = s.block(1) + me.group * BOX;
    const float *bias = s.bias + me.column + shape::ROWS - 1 - (me.group * SIDE + me.row + 8);
    ring<STAGES> at = {0, 0}, next = {0, 0};
    uint32_t before = 0; /* the stage that products under way read; 0: none */
    float scores[SCORE] = {}, dp[SCORE] = {};
    int put = -1; /* the tile whose ds is in a fold and has not joined yet; negative: none */
    float lse[2] = {}, delta[2] = {};
    if (s.list->count) barrier_wait(s.barrier.block(), 0);
    const int tile_of_rows = p.first / SIDE + me.group;
    if (tile_of_rows * SIDE < p.length) {
        const float *stats =
            c.stats + (p.head * c.stat_tiles + stats_tile(p, tile_of_rows)) * (2 * SIDE) + me.row;
        lse[0] = stats[0], lse[1] = stats[8], delta[0] = stats[SIDE], delta[1] = stats[SIDE + 8];
    }
#pragma unroll 1
    for (int i = 0; i < s.list->count; i++, at.advance()) {
        const int entry = s.list->tiles[i], is = entry >> 2 * me.group & 3;
        const uint32_t k = s.tile(at.stage, 0), v = s.tile(at.stage, 1);
        uint32_t words[SIDE / 16][4];
        barrier_wait(s.barrier.full(at.stage), at.parity);
        begin_multiplying();
        multiply_heads<T, D, shape::ROWS, SIDE>(scores, q, k);
        end_multiplying();
        multiply_heads<T, D, shape::ROWS, SIDE>(dp, dout, v);
        end_multiplying();
        if (put >= 0) add_diagonals(sums, me, put); /* of the tile before */
        biases<SIDE> b;
        if (c.bias) b.read(bias + (entry >> 4) * SIDE);
        wait_for_products<1>(); /* those of the tile before are through, too */
        now_known(scores);
#pragma unroll
        for (int piece = 0; piece < shape::PIECES; piece++) now_known(dq[piece]);
        if (before) let_go(before);
        find_ds_of_queries(c, p, me, b, entry >> 4, is != SEEN, lse, delta, scores, dp);
        pack_all<T>(dp, words);
        load_ahead<typename shape::shared, STAGES, false>(c, m, p, s, i, next);
        begin_multiplying();
#pragma unroll
        for (int piece = 0; piece < shape::PIECES; piece++)
            add_weighted<T, shape::WIDTH, SIDE>(dq[piece], words,
                                                k + piece * (shape::WIDTH / SIDE) * BOX);
        end_multiplying();
        before = s.barrier.empty(at.stage);
        put = c.dbias && is != HIDDEN ? entry >> 4 : -1;
        if (put >= 0) put_folded(sums, me, dp);
    }
    if (put >= 0) add_diagonals(sums, me, put);
    wait_for_products<0>();
#pragma unroll
    for (int piece = 0; piece < shape::PIECES; piece++) now_known(dq[piece]);
}

template <class T, int D>
static __global__ void __launch_bounds__(queries_shape<D>::THREADS, queries_shape<D>::RESIDENT)
    backward_queries(const __grid_constant__ call c, const __grid_constant__ maps m,
                     const __grid_constant__ list_sizes sizes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef queries_shape<D> shape;
    extern __shared__ __align__(1024) char dynamic[];
    const place p = place_of<shape::ROWS>(c, true);
    if (p.first >= p.length) return;
    const auto s =
        prepare<typename shape::shared, shape::STAGES, shape::ROWS, false>(c, m, p, sizes, dynamic);
    const seat me = seat_of();
    const int first = p.first + me.group * SIDE, next = shape::ROWS * BOX_ROW;
    diagonals sums = {};
    if (c.dbias)
        sums = diagonals_of<shape::FOLDS>(c, p, me, (float *)(dynamic + shape::shared::EXTRA_AT));
    float dq[shape::PIECES][shape::WIDTH / 2] = {};
    compute_queries<T, D>(c, m, p, me, s, sums, dq);
    sync_group(me.group);
    if (c.dbias && first < p.length) hand_out(sums, sums.blocks);
    const uint32_t box = s.block(0) + me.group * BOX;
#pragma unroll
    for (int piece = 0; piece < shape::PIECES; piece++)
        put_rows<T, shape::WIDTH>(me, box + piece * 2 * next, next, c.scale, c.scale, dq[piece]);
    sync_group(me.group);
    take_rows<T, D>(c, p, c.y, p.row + first, p.length - first, 0, box, next);
#else
    __trap(); /* for Hopper alone */
#endif
}

/* ---- before and after ------------------------------------------------------------------------ */

/* stats: a block of threads for each 64 queries of each head, eight threads a query. What lies
 * after the last query gets no probability. */
template <class T>
static __global__ void __launch_bounds__(512)
    find_stats(const __grid_constant__ call c, const __grid_constant__ mc_view out,
               const __grid_constant__ mc_view dout, const float *lse, float *stats)
{
    const place p = place_of<SIDE>(c, false);
    if (p.first >= p.length) return;
    const int query = p.first + (int)threadIdx.x / 8, part = threadIdx.x % 8;
    const int64_t row = p.row + query;
    float sum = 0.0f;
    for (int column = part * 8; query < p.length && column < c.head_dim; column += 64) {
        float a[8], b[8];
        mc_load<T, true>(out, row * out.stride + p.head * c.head_dim + column, 8, a);
        mc_load<T, true>(dout, row * dout.stride + p.head * c.head_dim + column, 8, b);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += a[j] * b[j];
    }
    for (int lanes = 4; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    stats += (p.head * c.stat_tiles + stats_tile(p, p.first / SIDE)) * (2 * SIDE);
    const bool there = query < p.length;
    if (part == 0)
        stats[query - p.first] =
            there ? lse[(int64_t)p.head * c.total + row] * MC_LOG2_E : INFINITY;
    if (part == 1) stats[SIDE + query - p.first] = sum;
}

/* The gradient of the bias += its parts, a block of threads for 64 distances of a head: sixteen
 * share the sequences out, and their sums are added in order. */
enum { SHARES = 16 };

/* The parts of one sequence at a distance; `first` is where its first block of queries has it, and
 * each block has it 64 further on. */
__device__ __forceinline__ float sum_of_sequence(const float *parts, int blocks, int queries,
                                                 int first, int end)
{
    constexpr int TOGETHER = 8; /* loads on their way */
    float sum = 0.0f;
    for (int tile = 0; tile * SIDE < queries; tile += TOGETHER) {
        float x[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int at = first + (tile + i) * SIDE;
            const bool there = (tile + i) * SIDE < queries && at >= 0 && at < end;
            x[i] = there ? parts[(int64_t)(tile + i) * blocks * SIDE + at] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) sum += x[i];
    }
    return sum;
}

static __global__ void __launch_bounds__(SIDE *SHARES)
    add_dbias(const __grid_constant__ call c, int count, int tiles, float *dbias)
{
    __shared__ float sums[SHARES][SIDE];
    const int x = (int)threadIdx.x, share = (int)threadIdx.y, all = 2 * c.limit - 1;
    const int at = (int)blockIdx.x * SIDE + x, head = (int)blockIdx.y;
    float sum = 0.0f;
    for (int sequence = share; sequence < count && at < all; sequence += SHARES) {
        const int end = ((c.key_length[sequence] + SIDE - 1) / SIDE + 1) * SIDE;
        const int64_t number = ((int64_t)sequence * c.heads + head) * tiles;
        sum += sum_of_sequence(c.dbias + number * c.dbias_blocks * SIDE, c.dbias_blocks,
                               c.length[sequence], at - (c.limit - 1) + SIDE, end);
    }
    sums[share][x] = sum;
    __syncthreads();
    if (share || at >= all) return;
    for (int i = 1; i < SHARES; i++) sum += sums[i][x];
    dbias[(int64_t)head * all + at] += sum;
}

/* ---- launching ------------------------------------------------------------------------------- */

/* One block of scratch memory: stats, then parts of the gradient of the bias, then dout's copy. */
struct scratch {
    int64_t stat_tiles;
    int dbias_tiles, dbias_blocks; /* of 64 queries of the longest sequence; of 64 distances */
    size_t dbias_at, dout_at, bytes;
};

static scratch scratch_of(const mc_attention_shape *s, mc_matrix q, mc_matrix dout)
{
    const mc_lengths *l = s->lengths;
    const int groups = s->head_dim <= 64 || s->head_dim > 128 ? 1 : 2; /* see queries_shape */
    scratch x = {};
    x.stat_tiles = (l->total + (int64_t)l->count * SIDE) / SIDE + 1;
    x.dbias_tiles = (int)mc_ceil_div(l->longest, SIDE * groups) * groups;
    x.dbias_blocks = (int)mc_ceil_div(mc_key_lengths(s)->longest, SIDE) + 1;
    x.dbias_at = (size_t)(s->heads * x.stat_tiles) * STATS_BYTES;
    x.dout_at = x.dbias_at;
    if (s->position_bias && s->dposition_bias)
        x.dout_at +=
            (size_t)((int64_t)l->count * s->heads * x.dbias_tiles * x.dbias_blocks) * (SIDE * 4);
    x.bytes = x.dout_at;
    if (dout.dtype != q.dtype || !is_fit(dout))
        x.bytes += (size_t)(l->total * s->heads * s->head_dim) * 2;
    return x;
}

template <class T, int D>
static void launch(mc_device *d, const mc_attention_call *a, const call &all, const maps &m)
{
    const mc_attention_shape *s = a->shape;
    typedef keys_shape<D> by_keys;
    typedef queries_shape<D> by_queries;
    const mc_lengths *keys = mc_key_lengths(s);
    const int longest = s->lengths->longest, longest_keys = keys->longest;
    call c = all;
    c.blocks = (int)mc_ceil_div(longest_keys, by_keys::ROWS);
    c.groups = by_keys::PIECES;
    c.y = mc_view_of(a->dk, keys->total, 8);
    c.y2 = mc_view_of(a->dv, keys->total, 8);
    list_sizes sizes = list_sizes_of(by_keys::shared::LISTS_AT, longest, by_keys::ROWS, SIDE,
                                     s->marks, s->position_bias);
    unsigned blocks = (unsigned)(s->lengths->count * s->heads * c.blocks * c.groups);
    const cudaStream_t stream = mc_cuda_of(d)->stream;
    mc_allow_shared(backward_keys<T, D>, (size_t)sizes.bytes);
    if (blocks)
        backward_keys<T, D><<<blocks, by_keys::THREADS, (size_t)sizes.bytes, stream>>>(c, m, sizes);
    c.blocks = (int)mc_ceil_div(longest, by_queries::ROWS);
    c.groups = 1;
    c.y = mc_view_of(a->dq, s->lengths->total, 8);
    sizes = list_sizes_of(by_queries::shared::LISTS_AT, longest_keys, by_queries::ROWS, SIDE,
                          s->marks, s->position_bias);
    blocks = (unsigned)(s->lengths->count * s->heads * c.blocks);
    mc_allow_shared(backward_queries<T, D>, (size_t)sizes.bytes);
    if (blocks)
        backward_queries<T, D>
            <<<blocks, by_queries::THREADS, (size_t)sizes.bytes, stream>>>(c, m, sizes);
}

/* Everything that is launched; `memory` is the scratch block. */
template <class T>
static void launch_all(mc_device *d, const mc_attention_call *a, call c, const maps &m,
                       const scratch &x, mc_matrix dout)
{
    const mc_attention_shape *s = a->shape;
    const mc_lengths *l = s->lengths;
    const cudaStream_t stream = mc_cuda_of(d)->stream;
    c.blocks = (int)mc_ceil_div(l->longest, SIDE);
    const unsigned blocks = (unsigned)(l->count * c.heads * c.blocks);
    if (blocks)
        find_stats<T><<<blocks, 512, 0, stream>>>(c, mc_view_of(a->out, l->total, 8),
                                                  mc_view_of(dout, l->total, 8), a->log_sum_exp,
                                                  (float *)(uintptr_t)c.stats);
    switch (width_of(s->head_dim)) {
    case 64: launch<T, 64>(d, a, c, m); break;
    case 80: launch<T, 80>(d, a, c, m); break;
    case 128: launch<T, 128>(d, a, c, m); break;
    default: launch<T, 256>(d, a, c, m); break;
    }
    if (!c.dbias) return;
    const dim3 grid((unsigned)mc_ceil_div(2 * c.limit - 1, SIDE), (unsigned)c.heads);
    add_dbias<<<grid, dim3(SIDE, SHARES), 0, stream>>>(c, l->count, x.dbias_tiles,
                                                       s->dposition_bias);
}

static mc_status run(mc_device *d, const mc_attention_call *a, char *memory, const scratch &x)
{
    const mc_attention_shape *s = a->shape;
    mc_matrix dout = a->dout;
    const mc_lengths *keys = mc_key_lengths(s);
    call c = call_of(s);
    maps m = {};
    mc_status status = MC_OK;
    if (x.bytes > x.dout_at) {
        const int64_t width = (int64_t)s->heads * s->head_dim;
        const mc_matrix copy = {memory + x.dout_at, a->q.dtype, width};
        status = mc_sdpa_copy_rows(d, s->lengths->total, width, dout, copy);
        dout = copy;
    }
    c.stats = (float *)memory;
    c.stat_tiles = x.stat_tiles;
    if (s->position_bias && s->dposition_bias) c.dbias = (float *)(memory + x.dbias_at);
    c.dbias_blocks = x.dbias_blocks;
    if (!status) status = describe_heads(d, s, a->q, s->lengths, &m.q);
    if (!status) status = describe_heads(d, s, a->k, keys, &m.k);
    if (!status) status = describe_heads(d, s, a->v, keys, &m.v);
    if (!status) status = describe_heads(d, s, dout, s->lengths, &m.dout);
    if (status) return status;
    if (a->q.dtype == MC_F16)
        launch_all<__half>(d, a, c, m, x, dout);
    else
        launch_all<__nv_bfloat16>(d, a, c, m, x, dout);
    return mc_cuda_launched(d, "attention's backward pass on tensor cores");
}

} // namespace tensor

extern "C" mc_status mc_tensor_attention_backward(mc_device *d, const void *call)
{
    const mc_attention_call *c = (const mc_attention_call *)call;
    const tensor::scratch x = tensor::scratch_of(c->shape, c->q, c->dout);
    char *block = (char *)d->alloc(d, x.bytes + 256);
    if (!block) return MC_ERR_NOMEM;
    mc_status status = MC_OK;
    if (!mc_cuda_is_planning(d))
        status = tensor::run(d, c, block + (256 - (uintptr_t)block % 256) % 256, x);
    d->free(d, block, x.bytes + 256);
    return status;
}
