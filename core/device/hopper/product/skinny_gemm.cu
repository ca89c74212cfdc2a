/* Linear layers of 5 to 64 rows in f16 or bf16 on Hopper, with 16-bit or 8-bit weights: most of the
 * time is spent reading the weight.
 *
 * A cluster of blocks computes a tile of the result: all rows, up to 256 columns. Its blocks divide
 * the terms, so that each reads its own part of the weight and of x: the more blocks, the wider the
 * tiles and the less often x is read. The copy engine loads 64 terms at a time into a ring in
 * shared memory; the weight's first ones are requested before the block waits for the preceding
 * kernels (mc_wait_for_earlier), which don't write weights. Matrix instructions multiply 64 rows of
 * the weight by all of x, and by whatever follows the last row in shared memory; 8-bit weights are
 * converted to x's type in registers. In the end each block adds up the sums of all blocks for its
 * share of the rows: threads of the same number have the same sums in all blocks, so each receives
 * what it adds to its own.
 *
 * A ring takes less than half of the shared memory: the next product's blocks begin to fill theirs
 * beside it. */
#include "core/device/cuda/product/skinny_gemm.cuh"
#include "core/device/hopper/instructions.cuh"

using namespace hopper;

namespace
{

enum {
    TERMS = 64,  /* of a stage: 128 bytes a row of x */
    STEP = 16,   /* terms of a matrix instruction */
    GROUP = 64,  /* columns of one, computed by four warps */
    NARROW = 64, /* columns of a tile, see columns_of */
    WIDE = 256,  /* at most */
    MOST_STAGES = 16,
    LEAST_STAGES = 3,
    MOST_SHIFT = 3,        /* 8 blocks in a cluster */
    ALL_BYTES = 112 << 10, /* of shared memory: half of it */
    LARGE = 32 << 20,      /* bytes; a block may use all shared memory for such weights */
    SMALL = 4800 << 10,    /* see is_small */
    GROUP_OF_ROWS = 8,
    LEAST_ROWS = 5,
};

/* With few rows of an 8-bit weight most time goes into widening it: more warps share this work. */
constexpr bool is_crowded(int format, int rows) { return format != MC_WEIGHTS_FLOAT && rows <= 16; }

/* Groups of four warps of a block, which multiply. One more warp loads. */
constexpr int groups_of(bool crowded) { return crowded ? 4 : 2; }

/* The columns of a kernel's tile, in whole groups. */
constexpr int columns_of(bool crowded, int width)
{
    return width > 2 * NARROW ? WIDE : width > NARROW || !crowded ? 2 * NARROW : NARROW;
}

/* How groups share the work: GROUPS of them take turns with 64 columns, so that each has PARTS of
 * these; if there are more groups than that, TEAMS of GROUPS take turns with stages. */
template <bool CROWDED, int COLUMNS> struct crew {
    enum {
        ALL = groups_of(CROWDED),
        GROUPS = COLUMNS / GROUP < ALL ? COLUMNS / GROUP : ALL,
        PARTS = COLUMNS / GROUP / GROUPS,
        TEAMS = ALL / GROUPS,
        TEAM = GROUPS * 128, /* threads */
        THREADS = ALL * 128
    };
};

/* Bytes of a weight's row in a stage. */
constexpr int row_bytes_of(int format) { return format == MC_WEIGHTS_FLOAT ? 2 * TERMS : TERMS; }

struct rows_call {
    mc_few_call f;
    int row_bytes;                 /* see row_bytes_of */
    int shift, clusters;           /* clusters of 2^shift blocks */
    int width, tiles;              /* columns of a tile; tiles of the result */
    int units;                     /* of 64 columns in a tile; the last may have fewer */
    int pairs, share;              /* of rows: all, and those that a block adds up */
    uint32_t per_share;            /* 2^16 / share, rounded up */
    int boxes;                     /* of 64 terms */
    int stages, stage_bytes, x_at; /* in a stage the weight comes first */
    int teams_at, sums_at, barriers_at;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void arrive_in_cluster()
{
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_in_cluster()
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* A block's place in its cluster, and its share of the work. */
struct place {
    uint32_t shared, full, empty, arrived;
    int rank, cluster;
    int first, end; /* terms */
    int pairs;      /* of rows that it adds up */
};

__device__ __forceinline__ place place_of(const rows_call &c, const char *memory)
{
    place p;
    p.shared = shared_address(memory);
    p.full = p.shared + c.barriers_at;
    p.empty = p.full + c.stages * 8;
    p.arrived = p.empty + c.stages * 8;
    p.rank = blockIdx.x & ((1 << c.shift) - 1);
    p.cluster = blockIdx.x >> c.shift;
    p.first = (p.rank * c.boxes >> c.shift) * TERMS;
    p.end = ((p.rank + 1) * c.boxes >> c.shift) * TERMS;
    p.pairs = max(0, min(c.share, c.pairs - p.rank * c.share));
    return p;
}

/* The next box of the weight: its first term, which is also x's, and row. (Without a division: one
 * thread cannot hide its latency.) */
struct box_place {
    int term, row;

    __device__ __forceinline__ void advance(const place &p, int rows)
    {
        term += TERMS;
        if (term < p.end) return;
        term = p.first;
        row += rows;
    }
};

/* One thread loads all operands of the block. */
template <int ROWS, int FORMAT>
__device__ __forceinline__ void load_all(const rows_call &c, const place &p, const CUtensorMap *x,
                                         const CUtensorMap *weight)
{
    const int bytes = c.width * row_bytes_of(FORMAT) + ROWS * 128, rows = c.clusters * c.width;
    box_place at = {p.first, p.cluster * c.width}, x_at = at;
    const uint64_t once = read_once();
    uint32_t full = p.full, to = p.shared;
    int early = 0;
    for (; early < c.stages && at.row < c.f.out; early++) {
        barrier_expect(full, bytes);
        load_box(weight, to, full, at.term, at.row, once);
        at.advance(p, rows);
        full += 8, to += c.stage_bytes;
    }
    mc_wait_for_earlier();
    full = p.full, to = p.shared + c.x_at;
    for (int i = 0; i < early; i++) {
        load_box(x, to, full, x_at.term, 0);
        x_at.advance(p, rows);
        full += 8, to += c.stage_bytes;
    }
    uint32_t parity = 1;
    for (int stage = c.stages; at.row < c.f.out; stage++) {
        if (stage == c.stages) stage = 0, parity ^= 1, full = p.full, to = p.shared;
        barrier_wait(p.empty + stage * 8, parity);
        barrier_expect(full, bytes);
        load_box(weight, to, full, at.term, at.row, once);
        load_box(x, to + c.x_at, full, at.term, 0);
        at.advance(p, rows);
        full += 8, to += c.stage_bytes;
    }
}

/* The next stage, and the parity of its phase. */
struct stage_place {
    int stage;
    uint32_t parity;
    int turn; /* number of earlier stages */

    __device__ __forceinline__ void advance(int stages)
    {
        turn++;
        if (++stage < stages) return;
        stage = 0;
        parity ^= 1;
    }
};

/* A matrix instruction waits for the preceding one that adds to the same sums, and is short if rows
 * are few: so several sets of sums take turns. */
template <int ROWS, int PARTS> constexpr int sets_of = (ROWS == 64 ? 2 : 4) / PARTS;

/* Multiplies a stage's terms. (Their number is a constant: with a variable one, or a condition, the
 * compiler makes each matrix instruction wait for the preceding one.) */
template <class T, int ROWS, class C, int SETS>
__device__ __forceinline__ void multiply_stage(uint64_t weight, uint64_t x,
                                               float (&sums)[SETS][C::PARTS][ROWS / 2])
{
    begin_multiplying();
#pragma unroll
    for (int i = 0; i < TERMS / STEP; i++)
#pragma unroll
        for (int k = 0; k < C::PARTS; k++)
            products<T, ROWS>::add(sums[i % SETS][k],
                                   weight + k * (C::GROUPS * GROUP * 128 >> 4) +
                                       i * (STEP * 2 >> 4),
                                   x + i * (STEP * 2 >> 4));
    end_multiplying();
}

/* A thread's bytes in COUNT steps of a warp's 16 rows of an 8-bit weight, in the layout of matrix
 * instructions: pairs, in two rows, and again 8 terms further on. In rows of 64 bytes, bits 1 and 2
 * of the row number swap the 16-byte pieces. */
template <class T, int FORMAT, int COUNT> struct quantized_steps {
    uint32_t pair[COUNT][4];

    /* Offset of a thread's first bytes in a unit of the weight. */
    static __device__ __forceinline__ uint32_t place()
    {
        const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        return row * 64 + row / 2 % 4 * 16 + threadIdx.x % 4 * 2;
    }
    __device__ __forceinline__ void load(uint32_t at)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                pair[i][k] = load_half_word((at ^ (uint32_t)(i * 16)) + k % 2 * 8 * 64 + k / 2 * 8);
    }
    __device__ __forceinline__ void widen(uint32_t (&a)[COUNT][4]) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) a[i][k] = mc_widen<T, FORMAT>(pair[i][k], 0);
    }
};

/* Adds up the sets of a thread's sums. */
template <int SETS, int PARTS, int COUNT>
__device__ __forceinline__ void add_sets(float (&set)[SETS][PARTS][COUNT],
                                         float (&sums)[PARTS][COUNT])
{
#pragma unroll
    for (int k = 0; k < PARTS; k++)
#pragma unroll
        for (int j = 0; j < SETS; j++) {
            now_known(set[j][k]);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                sums[k][i] = j ? sums[k][i] + set[j][k][i] : set[j][k][i];
        }
}

/* sums = weight x^T over the block's terms, for a group's 64 columns of a tile and, with PARTS of
 * 2, for 64 more after those of the other group. */
template <class T, int ROWS, class C>
__device__ __forceinline__ void multiply_tile(const rows_call &c, const place &p, int group,
                                              stage_place *at, float (&sums)[C::PARTS][ROWS / 2])
{
    constexpr int SETS = sets_of<ROWS, C::PARTS>;
    const uint64_t first = descriptor(p.shared, 0), own = group * (GROUP * 128 >> 4);
    uint32_t before = 0;
    float set[SETS][C::PARTS][ROWS / 2] = {};
#pragma unroll 1
    for (int left = p.end - p.first; left > 0; left -= TERMS) {
        const uint64_t stage = first + at->stage * (c.stage_bytes >> 4);
        barrier_wait(p.full + at->stage * 8, at->parity);
        multiply_stage<T, ROWS, C, SETS>(stage + own, stage + (c.x_at >> 4), set);
        if (before) {
            wait_for_products<1>();
            if (threadIdx.x % 32 == 0) barrier_arrive(before);
        }
        before = p.empty + at->stage * 8;
        at->advance(c.stages);
    }
    wait_for_products<0>();
    if (threadIdx.x % 32 == 0) barrier_arrive(before);
    add_sets(set, sums);
}

/* The same for an 8-bit weight, over the stages of a team. The next bytes are loaded into registers
 * during the matrix instructions. */
template <class T, int ROWS, int FORMAT, class C>
__device__ __forceinline__ void multiply_quantized(const rows_call &c, const place &p, int team,
                                                   int group, stage_place *at,
                                                   float (&sums)[C::PARTS][ROWS / 2])
{
    enum { SETS = ROWS == 16 ? 1 : 2 / C::PARTS, COUNT = TERMS / STEP };
    const uint64_t x = descriptor(p.shared + c.x_at, 0);
    using steps = quantized_steps<T, FORMAT, COUNT>;
    uint32_t own = p.shared + group * GROUP * 64 + steps::place(), before = 0;
    asm volatile("" : "+r"(own)); /* computed once */
    float set[SETS][C::PARTS][ROWS / 2] = {};
#pragma unroll 1
    for (int left = p.end - p.first; left > 0; left -= TERMS, at->advance(c.stages)) {
        if (C::TEAMS > 1 && at->turn % C::TEAMS != team) continue;
        const int from = at->stage * c.stage_bytes;
        barrier_wait(p.full + at->stage * 8, at->parity);
#pragma unroll
        for (int k = 0; k < C::PARTS; k++) {
            steps bytes;
            uint32_t a[COUNT][4];
            bytes.load(own + from + k * C::GROUPS * GROUP * 64);
            wait_for_products<C::PARTS - 1>(); /* this part's of the last stage are finished */
            if (k == C::PARTS - 1 && before && threadIdx.x % 32 == 0) barrier_arrive(before);
            bytes.widen(a);
            begin_multiplying();
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                products<T, ROWS>::add_widened(set[i % SETS][k], a[i],
                                               x + (from >> 4) + i * (STEP * 2 >> 4));
            end_multiplying();
        }
        before = p.empty + at->stage * 8;
    }
    wait_for_products<0>();
    if (before && threadIdx.x % 32 == 0) barrier_arrive(before);
    add_sets(set, sums);
}

/* For a group whose columns are all after the tile's: it only releases stages, since useless matrix
 * instructions would keep shared memory busy. */
template <class C>
__device__ __forceinline__ void let_pass(const rows_call &c, const place &p, int team,
                                         stage_place *at)
{
#pragma unroll 1
    for (int left = p.end - p.first; left > 0; left -= TERMS, at->advance(c.stages)) {
        if (C::TEAMS > 1 && at->turn % C::TEAMS != team) continue;
        barrier_wait(p.full + at->stage * 8, at->parity);
        if (threadIdx.x % 32 == 0) barrier_arrive(p.empty + at->stage * 8);
    }
}

template <class C> __device__ __forceinline__ void wait_for_teams()
{
    asm volatile("bar.sync 1, %0;" ::"n"((int)C::THREADS) : "memory");
}

/* The first team adds the sums of the others, which are (others, rows / 8, threads, 4). */
template <int ROWS, class C>
__device__ __forceinline__ void join_teams(const rows_call &c, const place &p, int team,
                                           float (&sums)[C::PARTS][ROWS / 2])
{
    static_assert(C::PARTS == 1, "nothing else is needed");
    constexpr int LINES = ROWS / 8;
    const uint32_t own = p.shared + c.teams_at + threadIdx.x % C::TEAM * 16;
    wait_for_teams<C>(); /* the last tile's have been read */
    if (team)
#pragma unroll
        for (int i = 0; i < LINES; i++)
            store_4(own + ((team - 1) * LINES + i) * C::TEAM * 16, &sums[0][i * 4]);
    wait_for_teams<C>();
    if (team) return;
#pragma unroll
    for (int other = 0; other < C::TEAMS - 1; other++)
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            float v[4];
            load_4(own + (other * LINES + i) * C::TEAM * 16, v);
#pragma unroll
            for (int e = 0; e < 4; e++) sums[0][i * 4 + e] += v[e];
        }
}

/* A thread's sums `4 i` to `4 i + 3` are those of two columns, 8 apart, and of a pair of rows that
 * block `owner` of the cluster adds up. */
struct owned_pair {
    int pair, owner; /* pair: from c.pairs on there is no such pair */

    __device__ __forceinline__ owned_pair(const rows_call &c, int i)
        : pair(i * 4 + (int)threadIdx.x % 4), owner(pair * c.per_share >> 16)
    {
    }
};

/* The address of sums from the block `behind` + 1 blocks further on in the cluster: they are
 * (2^shift - 1, pairs of the share, units, 32 threads, 4). */
__device__ __forceinline__ uint32_t place_of_sums(const rows_call &c, const place &p, int behind,
                                                  int line, int unit)
{
    const int thread = threadIdx.x / 32 % 4 * 8 + threadIdx.x % 32 / 4;
    return p.shared + c.sums_at + (((behind * c.share + line) * c.units + unit) * 32 + thread) * 16;
}

/* Sends a thread's sums to the blocks that add them up. */
template <int ROWS, class C>
__device__ __forceinline__ void send_sums(const rows_call &c, const place &p, int group,
                                          const float (&sums)[C::PARTS][ROWS / 2])
{
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        const owned_pair own(c, i);
        if (own.pair >= c.pairs || own.owner == p.rank) continue;
        const int behind = (p.rank - own.owner - 1) & ((1 << c.shift) - 1);
        const uint32_t barrier = address_in(p.arrived, own.owner);
#pragma unroll
        for (int k = 0; k < C::PARTS; k++) {
            const int unit = group + k * C::GROUPS;
            if (unit >= c.units) continue;
            const uint32_t to = place_of_sums(c, p, behind, own.pair - own.owner * c.share, unit);
            send_four(address_in(to, own.owner), barrier, &sums[k][i * 4]);
        }
    }
}

/* Adds the other blocks' sums to this thread's. */
__device__ __forceinline__ void add_others(const rows_call &c, const place &p, int line, int unit,
                                           float (&v)[4])
{
#pragma unroll 1
    for (int behind = 0; behind < (1 << c.shift) - 1; behind++) {
        float other[4];
        load_4(place_of_sums(c, p, behind, line, unit), other);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] += other[i];
    }
}

/* Makes of two rows' sums of two columns, 8 apart, what mc_few_store stores of each, without
 * columns from `end` on. */
template <class T, int FORMAT>
__device__ __forceinline__ void store_four(const mc_few_call &f, int row, int column, int end,
                                           const float (&sum)[4], const mc_few_column (&ends)[2])
{
    float pre[4], v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = fmaf(sum[i], ends[i / 2].factor, ends[i / 2].bias);
        if (FORMAT == MC_WEIGHTS_FLOAT) v[i] = pre[i] = (float)(T)v[i];
    }
    mc_few_activate(f.activation, v);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = row + i % 2, at = column + i / 2 * 8;
        if (r >= f.rows || at >= end) continue;
        if (FORMAT == MC_WEIGHTS_FLOAT && f.pre.data)
            ((T *)f.pre.data)[r * f.pre.stride + at] = (T)pre[i];
        ((T *)f.y.data)[r * f.y.stride + at] = (T)v[i];
    }
}

/* A thread's columns in its group's units of a tile, two in each, 8 apart: the first one, and the
 * parameters of both, which are loaded early. */
template <class T, class C, int FORMAT> struct own_columns {
    int first[C::PARTS], end; /* end: of the tile or the result */
    mc_few_column ends[C::PARTS][2];

    __device__ __forceinline__ own_columns(const rows_call &c, int tile, int group)
        : end(min((tile + 1) * c.width, c.f.out))
    {
#pragma unroll
        for (int k = 0; k < C::PARTS; k++) {
            first[k] = tile * c.width + (group + k * C::GROUPS) * GROUP +
                       threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = first[k] + i * 8;
                ends[k][i] = {c.f.alpha, column < end ? mc_few_bias(c.f, column) : 0.0f};
                if (FORMAT != MC_WEIGHTS_FLOAT)
                    ends[k][i].factor *=
                        mc_quantized_unit<T, FORMAT> * (column < end ? c.f.scale[column] : 0.0f);
            }
        }
    }
};

/* Adds up and stores the rows of this block. */
template <class T, int ROWS, class C, int FORMAT>
__device__ __forceinline__ void end_rows(const rows_call &c, const place &p, int group,
                                         const own_columns<T, C, FORMAT> &columns,
                                         const float (&sums)[C::PARTS][ROWS / 2])
{
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        const owned_pair own(c, i);
        if (own.pair >= c.pairs || own.owner != p.rank) continue;
#pragma unroll
        for (int k = 0; k < C::PARTS; k++) {
            const int unit = group + k * C::GROUPS;
            if (unit >= c.units) continue;
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] = sums[k][i * 4 + e];
            add_others(c, p, own.pair - own.owner * c.share, unit, v);
            store_four<T, FORMAT>(c.f, own.pair * 2, columns.first[k], columns.end, v,
                                  columns.ends[k]);
        }
    }
}

/* A block with several tiles is not in a cluster: sums are sent only once. */
template <class T, int ROWS, class C, int FORMAT>
__device__ __forceinline__ void multiply_all(const rows_call &c, const place &p, int team,
                                             int group)
{
    stage_place at = {0, 0, 0};
    if (threadIdx.x == 0 && c.shift)
        barrier_expect(p.arrived, p.pairs * c.units * 32 * 16 * ((1 << c.shift) - 1));
    for (int tile = p.cluster; tile < c.tiles; tile += c.clusters) {
        const own_columns<T, C, FORMAT> columns(c, tile, group);
        if (tile == p.cluster) mc_wait_for_earlier();
        float v[C::PARTS][ROWS / 2];
        if (group >= c.units)
            let_pass<C>(c, p, team, &at);
        else if constexpr (FORMAT == MC_WEIGHTS_FLOAT)
            multiply_tile<T, ROWS, C>(c, p, group, &at, v);
        else
            multiply_quantized<T, ROWS, FORMAT, C>(c, p, team, group, &at, v);
        if constexpr (C::TEAMS > 1) join_teams<ROWS, C>(c, p, team, v);
        if (tile == p.cluster) wait_in_cluster();
        if (group >= c.units || team) continue;
        if (c.shift) {
            send_sums<ROWS, C>(c, p, group, v);
            barrier_wait(p.arrived, 0);
        }
        end_rows<T, ROWS, C, FORMAT>(c, p, group, columns, v);
    }
}

#endif

template <class T, int ROWS, class C, int FORMAT>
__global__ void __launch_bounds__(C::THREADS + 32, C::THREADS > 256 ? 2 : 1)
    skinny(const __grid_constant__ rows_call c, const __grid_constant__ CUtensorMap x,
           const __grid_constant__ CUtensorMap weight)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char dynamic[];
    const place p = place_of(c, dynamic);
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); /* equal in a warp */
    mc_let_next_begin();
    const int lane = threadIdx.x % 32;
    if (warp == C::THREADS / 32) {
        if (p.shared % 1024) __trap(); /* swizzling needs this alignment */
        if (lane < c.stages) {
            barrier_init(p.full + lane * 8, 1);
            barrier_init(p.empty + lane * 8, C::TEAM / 32);
        }
        if (lane == 0) barrier_init(p.arrived, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    arrive_in_cluster();
    if (warp < C::THREADS / 32) {
        multiply_all<T, ROWS, C, FORMAT>(c, p, warp / (C::TEAM / 32), warp / 4 % C::GROUPS);
    } else {
        if (lane == 0) load_all<ROWS, FORMAT>(c, p, &x, &weight);
        __syncwarp();
        wait_in_cluster();
    }
#else
    __trap(); /* mc_skinny_hopper_takes refuses other GPUs */
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

typedef void (*kernel_fn)(rows_call, CUtensorMap, CUtensorMap);

template <class T, int FORMAT, int ROWS> kernel_fn kernel_of(int width)
{
    constexpr bool CROWDED = is_crowded(FORMAT, ROWS);
    const int columns = columns_of(CROWDED, width);
    if constexpr (CROWDED)
        if (columns == NARROW) return skinny<T, ROWS, crew<CROWDED, NARROW>, FORMAT>;
    return columns == WIDE ? skinny<T, ROWS, crew<CROWDED, WIDE>, FORMAT>
                           : skinny<T, ROWS, crew<CROWDED, 2 * NARROW>, FORMAT>;
}

template <class T, int FORMAT> kernel_fn kernel_for(int rows, int width)
{
    return rows <= 8    ? kernel_of<T, FORMAT, 8>(width)
           : rows <= 16 ? kernel_of<T, FORMAT, 16>(width)
           : rows <= 32 ? kernel_of<T, FORMAT, 32>(width)
                        : kernel_of<T, FORMAT, 64>(width);
}

template <class T> kernel_fn kernel_for(const rows_call &c)
{
    switch (c.f.format) {
    case MC_WEIGHTS_INT8: return kernel_for<T, MC_WEIGHTS_INT8>(c.f.rows, c.width);
    case MC_WEIGHTS_FP8: return kernel_for<T, MC_WEIGHTS_FP8>(c.f.rows, c.width);
    default: return kernel_for<T, MC_WEIGHTS_FLOAT>(c.f.rows, c.width);
    }
}

int rounded(int64_t n, int to) { return (int)((n + to - 1) / to * to); }

/* Rows of x in shared memory. */
int box_rows(int rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

/* Divides a block's shared memory; *bytes: what it needs; false: too little for the width. */
bool lay_out(rows_call *c, int64_t most, int *bytes)
{
    const int box = box_rows(c->f.rows), barriers = (2 * MOST_STAGES + 1) * 8;
    const int sums = ((1 << c->shift) - 1) * c->share * c->units * 32 * 16;
    const bool crowded = is_crowded(c->f.format, c->f.rows);
    const int columns = columns_of(crowded, c->width);
    const int all = groups_of(crowded) * GROUP; /* columns that all groups would have */
    const int teams = (int)mc_most(0, all - columns) * box * (int)sizeof(float);
    const int64_t each = mc_ceil_div(c->boxes, 1 << c->shift); /* a block's stages of a tile */
    c->x_at = rounded(c->width * c->row_bytes, 1024);
    c->stage_bytes = c->x_at + rounded(box * 128, 1024);
    /* matrix instructions read whole groups, even in the last stage */
    const int64_t behind =
        mc_most(teams + sums + barriers, columns * c->row_bytes - c->stage_bytes);
    const int64_t room = (most - behind) / c->stage_bytes;
    c->stages = (int)mc_least(room, mc_least(each, MOST_STAGES));
    c->teams_at = c->stages * c->stage_bytes;
    c->sums_at = c->teams_at + teams;
    c->barriers_at = c->sums_at + sums;
    *bytes = (int)(c->teams_at + behind);
    return room >= mc_least(each, LEAST_STAGES);
}

/* How many clusters of 2^shift blocks run at the same time, with one block on a multiprocessor. */
int clusters_of(mc_device *d, int shift)
{
    int *known = &mc_cuda_of(d)->gemm->clusters[shift];
    if (*known) return *known;
    const int bytes = (int)mc_shared_limit(d);
    auto kernel = kernel_of<__nv_bfloat16, MC_WEIGHTS_FLOAT, 8>(NARROW);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 1u << shift;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 1u << shift;
    config.blockDim = groups_of(false) * 128 + 32; /* a crowded block makes no difference */
    config.dynamicSmemBytes = (size_t)bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    mc_allow_shared(kernel, (size_t)bytes);
    if (cudaOccupancyMaxActiveClusters(known, kernel, &config)) *known = 0;
    return *known;
}

/* Divides the call among clusters of 2^shift blocks; false: that is not possible. */
bool divide(mc_device *d, rows_call *c, int shift, int64_t most, int *bytes)
{
    const int clusters = clusters_of(d, shift);
    if (clusters == 0 || c->boxes < 1 << shift) return false;
    c->shift = shift;
    c->pairs = (c->f.rows + 1) / 2;
    c->share = (int)mc_ceil_div(c->pairs, 1 << shift);
    c->per_share = (uint32_t)mc_ceil_div(1 << 16, c->share);
    for (int64_t rounds = 1; rounds == 1 || shift == 0; rounds++) {
        c->width = rounded(mc_ceil_div(c->f.out, clusters * rounds), 2);
        c->units = (int)mc_ceil_div(c->width, GROUP);
        c->tiles = (int)mc_ceil_div(c->f.out, c->width);
        c->clusters = (int)mc_least(clusters, c->tiles);
        if (c->width <= WIDE && lay_out(c, most, bytes)) return true;
    }
    return false;
}

/* Estimates a call's time: the bytes that a block reads, and for each doubling of a cluster the
 * cost of exchanging sums and of multiprocessors outside clusters as measured on an H200. */
int64_t cost_of(const rows_call &c)
{
    int64_t rounds = mc_ceil_div(c.tiles, c.clusters);
    int64_t bytes = rounds * (c.width * c.row_bytes + box_rows(c.f.rows) * 128) *
                    mc_ceil_div(c.boxes, 1 << c.shift);
    return bytes + c.shift * (bytes * 6 / 100 + (8 << 10));
}

/* What skinny_gemm.cu computes faster: its blocks do not depend on each other, and few rows of a
 * small weight leave them enough to read. (H200: in 16 bits 8 rows of GPT-2 124M's products, and 16
 * of its smallest; in 8 bits 8 rows.) */
bool is_small(const mc_few_call &f)
{
    const int size = f.format == MC_WEIGHTS_FLOAT ? 2 : 1;
    return f.rows <= size * GROUP_OF_ROWS &&
           mc_ceil_div(f.rows, GROUP_OF_ROWS) * f.out * f.in * size < SMALL;
}

/* Finds the fastest division of a call; false: none is possible. */
bool choose(mc_device *d, const mc_few_call &f, rows_call *best, int *bytes)
{
    rows_call c = {};
    c.f = f;
    c.row_bytes = row_bytes_of(f.format);
    c.boxes = (int)mc_ceil_div(f.in, TERMS);
    const int64_t limit = mc_shared_limit(d), weight = (int64_t)f.out * c.boxes * c.row_bytes;
    const int64_t most = weight >= LARGE ? limit : (int64_t)ALL_BYTES;
    bool found = false;
    for (int shift = 0; shift <= MOST_SHIFT; shift++) {
        int needed;
        if (!divide(d, &c, shift, most, &needed)) continue;
        if (found && cost_of(c) >= cost_of(*best)) continue;
        *best = c;
        *bytes = needed;
        found = true;
    }
    return found;
}

mc_status launch(mc_device *d, const rows_call &c, int bytes)
{
    const mc_few_call &f = c.f;
    const mc_dtype dtype = (mc_dtype)f.y.dtype;
    kernel_fn kernel = dtype == MC_BF16 ? kernel_for<__nv_bfloat16>(c) : kernel_for<__half>(c);
    CUtensorMap maps[2];
    encode_fn encode = (encode_fn)mc_cuda_of(d)->gemm->encode_map;
    CUresult result = describe(encode, {(void *)f.x, dtype, f.x_stride / 2}, f.rows, f.in,
                               (unsigned)box_rows(f.rows), &maps[0]);
    if (!result && f.scale)
        result = describe_bytes(encode, f.weight, f.out, f.in, (unsigned)c.width, &maps[1]);
    else if (!result)
        result = describe(encode, {(void *)f.weight, dtype, f.weight_stride / 2}, f.out, f.in,
                          (unsigned)c.width, &maps[1]);
    if (result)
        return mc_cuda_fail(d, MC_ERR_DEVICE, "cuTensorMapEncodeTiled: error %d", (int)result);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = 1u << c.shift;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = (unsigned)c.clusters << c.shift;
    config.blockDim = (unsigned)groups_of(is_crowded(f.format, f.rows)) * 128 + 32;
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = mc_cuda_of(d)->stream;
    config.attrs = attributes;
    config.numAttrs = mc_cuda_of(d)->listing ? 2 : 1;
    mc_allow_shared(kernel, (size_t)bytes);
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, c, maps[0], maps[1]);
    return mc_cuda_check(d, error, "linear of some rows");
}

} // namespace

extern "C" mc_status mc_skinny_hopper_takes(mc_device *d, const void *call, bool asked)
{
    const mc_product *p = (const mc_product *)call;
    rows_call c;
    int bytes;
    if (!mc_cuda_of(d)->gemm->encode_map || p->rows < LEAST_ROWS || !mc_is_few(p))
        return MC_ERR_UNSUPPORTED;
    const mc_few_call f = mc_few_call_of(p);
    return (asked || !is_small(f)) && choose(d, f, &c, &bytes) ? MC_OK : MC_ERR_UNSUPPORTED;
}

extern "C" mc_status mc_skinny_hopper(mc_device *d, const void *call)
{
    rows_call c = {};
    int bytes = 0;
    choose(d, mc_few_call_of((const mc_product *)call), &c, &bytes);
    return launch(d, c, bytes);
}
