/* What the forward and the backward pass of attention on Hopper's matrix instructions share
 * (attention_tensor.cu, attention_tensor_backward.cu).
 *
 * A block of threads has a block of rows, 64 for each of its groups of four warps: queries, or keys
 * where gradients of keys and values are made. It goes over tiles of columns, the other side of the
 * scores, of the same sequence and head. The copy engine brings blocks and tiles into shared
 * memory as boxes of 64 columns of a head, with zeros after the head's last; one thread asks for
 * tiles some ahead. What lies after a sequence's end belongs to the next one: it is finite and is
 * multiplied by zero, or its results are left out. */
#ifndef MC_DEVICE_HOPPER_ATTENTION_TENSOR_CUH
#define MC_DEVICE_HOPPER_ATTENTION_TENSOR_CUH

#include "core/device/cuda/attention/attention_internal.h"
#include "core/device/hopper/instructions.cuh"

namespace tensor
{

using namespace hopper;

enum {
    GROUP = 128, /* threads that multiply together */
    SIDE = 64,   /* rows of a group */
    BOX_ROW = 128,
    BOX = SIDE * BOX_ROW, /* bytes of 64 rows and columns */
    SCORE = SIDE / 2,     /* of 64 x 64 elements a thread has as many */
    FAR = 1 << 30
};

/* ---- products -------------------------------------------------------------------------------- */

/* d = a b^T over D columns of a head, for a group's rows of a block of A_ROWS and N rows of b; both
 * addresses are of the first box. */
template <class T, int D, int A_ROWS, int N>
__device__ __forceinline__ void multiply_heads(float (&d)[N / 2], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint64_t x = descriptor(a + i / 4 * (A_ROWS * BOX_ROW), 0) + i % 4 * NEXT_COLUMNS;
        const uint64_t y = descriptor(b + i / 4 * (N * BOX_ROW), 0) + i % 4 * NEXT_COLUMNS;
        if (i == 0)
            products<T, N>::set(d, x, y);
        else
            products<T, N>::add(d, x, y);
    }
}

/* d += weights m, where m has TERMS rows, and WIDTH columns from the box at the address on. */
template <class T, int WIDTH, int TERMS>
__device__ __forceinline__ void add_weighted(float (&d)[WIDTH / 2],
                                             const uint32_t (&weights)[TERMS / 16][4], uint32_t m)
{
    const uint64_t rows = descriptor(m, TERMS * BOX_ROW);
#pragma unroll
    for (int i = 0; i < TERMS / 16; i++)
        products<T, WIDTH>::add_weighted(d, weights[i], rows + i * NEXT_ROWS);
}

/* ---- a call, and a block of it --------------------------------------------------------------- */

struct maps {
    CUtensorMap q, k, v, dout;
};

struct call {
    const int32_t *length, *offset, *key_length, *key_offset;
    int heads, head_dim;
    int blocks, groups; /* of rows of the longest sequence; of columns of the results */
    /* A query sees keys less than `left` before it and less than `right` after it; FAR: all, which
     * no sequence is as long as. With marks neither counts. */
    int left, right;
    float scale, scale_log2; /* scale log2(e) */
    const int32_t *marks;
    const float *bias; /* by distance */
    int limit;         /* of the distances */
    mc_dropping dropping;
    int64_t total, row_words;
    mc_view y, y2;      /* results: out; dq; dk and dv */
    float *log_sum_exp; /* of forward; NULL: not wanted */
    const float *stats; /* (heads, stat_tiles, 2, SIDE): lse log2(e), sum(dout out) */
    int64_t stat_tiles;
    float *dbias; /* parts of the gradient of the bias, see add_diagonals; NULL: not wanted */
    int dbias_blocks;
};

/* What a block of threads works on. */
struct place {
    int sequence, head;
    int first, part;  /* of the rows in their sequence; which group of columns */
    int length, keys; /* of the sequence */
    int row, key_row; /* the first query and key of the sequence */
};

template <int ROWS> __device__ __forceinline__ place place_of(const call &c, bool last_first)
{
    place p;
    int item = (int)blockIdx.x;
    p.part = item % c.groups;
    item /= c.groups;
    int block = item % c.blocks;
    item /= c.blocks;
    p.first = (last_first ? c.blocks - 1 - block : block) * ROWS;
    p.head = item % c.heads;
    p.sequence = item / c.heads;
    p.length = c.length[p.sequence];
    p.keys = c.key_length[p.sequence];
    p.row = c.offset[p.sequence];
    p.key_row = c.key_offset[p.sequence];
    return p;
}

/* Where a thread is: its group, and of the group's 64 rows its first; the other is 8 below. Of 8
 * columns it has two from `column` on. */
struct seat {
    int group, warp, lane, row, column;
};

__device__ __forceinline__ seat seat_of()
{
    const int thread = (int)threadIdx.x % GROUP, lane = thread % 32;
    const int warp = __shfl_sync(~0u, thread / 32, 0); /* known to be a warp's */
    const int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP, 0);
    return {group, warp, lane, warp * 16 + lane / 4, lane % 4 * 2};
}

/* ---- which tiles a block has to do with ------------------------------------------------------ */

enum kind { HIDDEN, SEEN, MIXED };

/* What is known of the marks of 64 tokens. */
struct summary {
    int first_span, last_span, any_context, any_plain;
};

__device__ __forceinline__ summary join(summary a, summary b)
{
    return {min(a.first_span, b.first_span), max(a.last_span, b.last_span),
            a.any_context | b.any_context, a.any_plain | b.any_plain};
}

/* Of all tokens of the sequence, 64 a warp. */
__device__ __forceinline__ void summarize(const call &c, const place &p, summary *to)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int i = threadIdx.x / 32; i * SIDE < p.length; i += warps) {
        summary s = {INT32_MAX, -1, 0, 0};
        for (int token = i * SIDE + lane; token < min(p.length, (i + 1) * SIDE); token += 32) {
            const int mark = c.marks[p.row + token];
            s = join(s, {mark / 2, mark / 2, mark & 1, ~mark & 1});
        }
        s.first_span = __reduce_min_sync(~0u, s.first_span);
        s.last_span = __reduce_max_sync(~0u, s.last_span);
        s.any_context = __any_sync(~0u, s.any_context);
        s.any_plain = __any_sync(~0u, s.any_plain);
        if (lane == 0) to[i] = s;
    }
}

__device__ __forceinline__ summary summary_of(const summary *all, int first, int end)
{
    summary s = all[first / SIDE];
    for (int i = first / SIDE + 1; i * SIDE < end; i++) s = join(s, all[i]);
    return s;
}

/* Of queries and keys of a sequence, each from `first` to before `end`. */
__device__ __forceinline__ kind kind_of(const call &c, const summary *all, int first, int end,
                                        int first_key, int end_key)
{
    if (first >= end || first_key >= end_key) return HIDDEN;
    if (!c.marks && (first_key - (end - 1) >= c.right || first - (end_key - 1) >= c.left))
        return HIDDEN;
    if (!c.marks)
        return end_key - 1 - first < c.right && end - 1 - first_key < c.left ? SEEN : MIXED;
    const summary q = summary_of(all, first, end), k = summary_of(all, first_key, end_key);
    if (q.first_span > k.last_span || q.last_span < k.first_span) return HIDDEN;
    if (!k.any_context && (!q.any_plain || first_key >= end)) return HIDDEN;
    if (q.first_span < q.last_span || k.first_span < k.last_span) return MIXED;
    return !k.any_plain || (!q.any_context && end_key - 1 <= first) ? SEEN : MIXED;
}

/* The tiles of COLUMNS that the block's rows have to do with, in order: each its number and what it
 * is to each group. With BY_KEYS rows are keys, and columns queries. Gives how many there are. */
struct tile_list {
    int count;
    int tiles[1]; /* as many as the longest sequence has */
};

template <int ROWS, int COLUMNS, bool BY_KEYS>
__device__ __forceinline__ int tile_entry(const call &c, const place &p, const summary *all,
                                          int tile)
{
    int entry = 0;
    const int length = BY_KEYS ? p.keys : p.length, columns = BY_KEYS ? p.length : p.keys;
    const int first = tile * COLUMNS, end = min(first + COLUMNS, columns);
#pragma unroll
    for (int group = 0; group < ROWS / SIDE; group++) {
        const int row = p.first + group * SIDE, end_row = min(row + SIDE, length);
        kind is = BY_KEYS ? kind_of(c, all, first, end, row, end_row)
                          : kind_of(c, all, row, end_row, first, end);
        if (is == SEEN && !BY_KEYS && first + COLUMNS > columns) is = MIXED;
        entry |= is << 2 * group;
    }
    return entry ? tile << 4 | entry : 0;
}

template <int ROWS, int COLUMNS, bool BY_KEYS>
__device__ __forceinline__ void list_tiles(const call &c, const place &p, const summary *all,
                                           tile_list *list)
{
    const int columns = BY_KEYS ? p.length : p.keys, lane = threadIdx.x;
    int count = 0;
    if (lane >= 32) return;
    for (int tile = lane; tile - lane < (columns + COLUMNS - 1) / COLUMNS; tile += 32) {
        const int entry = tile_entry<ROWS, COLUMNS, BY_KEYS>(c, p, all, tile);
        const unsigned taken = __ballot_sync(~0u, entry != 0);
        if (entry) list->tiles[count + __popc(taken & ((1u << lane) - 1))] = entry;
        count += __popc(taken);
    }
    if (lane == 0) list->count = count;
}

/* ---- what is added to scores, hidden, dropped ------------------------------------------------ */

/* to[x] = the bias, in powers of 2, of column x - (ROWS - 1) less the block's first row, both as
 * they are counted in the sequence: a row further is an element less. `count` of them. */
template <int ROWS, bool BY_KEYS>
__device__ __forceinline__ void load_bias(const call &c, const place &p, float *to, int count)
{
    const int all = 2 * c.limit - 1;
    const float *from = c.bias + (int64_t)p.head * all;
    for (int x = threadIdx.x; x < count; x += blockDim.x) {
        const int behind = x - (ROWS - 1) - p.first,
                  at = c.limit - 1 + (BY_KEYS ? -behind : behind);
        to[x] = at >= 0 && at < all ? from[at] * MC_LOG2_E : 0.0f;
    }
}

/* What a thread adds to its scores of COLUMNS columns: its second row's first two, then 8 further
 * each, of which the first row has one more than the second has. */
template <int COLUMNS> struct biases {
    float at[COLUMNS / 8 + 1][2];

    /* `bias` is that of the thread's second row in the tile's first columns. */
    __device__ __forceinline__ void read(const float *bias)
    {
#pragma unroll
        for (int i = 0; i <= COLUMNS / 8; i++) at[i][0] = bias[i * 8], at[i][1] = bias[i * 8 + 1];
    }
    /* s = scale s + bias. */
    __device__ __forceinline__ void add_to(float (&s)[COLUMNS / 2], float scale) const
    {
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++)
            s[i] = fmaf(s[i], scale, at[i / 4 + (i / 2 % 2 ? 0 : 1)][i % 2]);
    }
};

__device__ __forceinline__ bool sees(const call &c, int query, int mark, int key, int key_mark)
{
    if (!c.marks) /* both bounds at once: what lies before them is a large number */
        return (unsigned)(key - query + c.left - 1) < (unsigned)(c.left + c.right - 1);
    return mark >> 1 == key_mark >> 1 && ((key_mark & 1) || (!(mark & 1) && key <= query));
}

/* Scores of keys that the query does not see become `value`, those after the last key too. `row`
 * and `column` are the thread's first in the sequence. */
template <bool BY_KEYS, int COUNT>
__device__ __forceinline__ void hide(const call &c, const place &p, int row, int column,
                                     float value, float (&s)[COUNT])
{
    const int rows = BY_KEYS ? p.keys : p.length, columns = BY_KEYS ? p.length : p.keys;
    int marks[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (c.marks && row + i * 8 < rows) marks[i] = c.marks[p.row + row + i * 8];
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int at = column + i * 8 + j;
            const int mark = c.marks && at < columns ? c.marks[p.row + at] : 0;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int to = row + k * 8;
                const bool seen = BY_KEYS ? sees(c, at, mark, to, marks[k])
                                          : at < columns && sees(c, to, marks[k], at, mark);
                if (!seen) s[i * 4 + k * 2 + j] = value;
            }
        }
}

/* Bits of four elements of the dropout mask from `first`, a multiple of 4, on: 1 is kept. */
__device__ __forceinline__ unsigned keep_bits(const mc_dropping &d, uint64_t offset, int64_t first)
{
    uint32_t words[4];
    unsigned bits = 0;
    mc_philox(d.seed, (uint64_t)first / 4, offset, words);
#pragma unroll
    for (int i = 0; i < 4; i++) bits |= (unsigned)(words[i] >= d.threshold) << i;
    return bits;
}

__device__ __forceinline__ uint64_t dropout_offset(const mc_dropping &d)
{
    return d.offset + (d.base ? *d.base : 0);
}

/* Which of a thread's 64 columns of keys are kept in its two rows of queries: four neighbours of a
 * row are drawn together, those of one row by one thread and those of the other by the next. Bit
 * 4 i + 2 (lane % 2) + j is column 8 i + j. */
__device__ __forceinline__ void draw_by_queries(const call &c, const place &p, const seat &me,
                                                int query, int key, unsigned (&bits)[2])
{
    const bool second = me.lane % 2;
    const int64_t row = (int64_t)p.head * c.total + p.row + query + (second ? 8 : 0);
    const uint64_t offset = dropout_offset(c.dropping);
    unsigned mine = 0;
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        mine |= keep_bits(c.dropping, offset, row * c.row_words + key + i * 8 + me.column / 4 * 4)
                << 4 * i;
    const unsigned other = __shfl_xor_sync(~0u, mine, 1);
    bits[0] = second ? other : mine;
    bits[1] = second ? mine : other;
}

/* The same where rows are keys: bits[row][column] with bit 4 i + row % 4 for columns 8 i. `key` is
 * the warp's first. */
__device__ __forceinline__ void draw_by_keys(const call &c, const place &p, const seat &me, int key,
                                             int query, unsigned (&bits)[2][2])
{
    const int64_t row = (int64_t)p.head * c.total + p.row + query + me.lane % 8;
    const uint64_t offset = dropout_offset(c.dropping);
    unsigned mine = 0;
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        mine |= keep_bits(c.dropping, offset, (row + i * 8) * c.row_words + key + me.lane / 8 * 4)
                << 4 * i;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            bits[i][j] = __shfl_sync(~0u, mine, me.lane / 16 * 8 + me.column + i * 16 + j);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* 64 rows of a head from `column` on. */
__device__ __forceinline__ void load_head(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                          int column, int head, int row)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(head), "r"(row)
                 : "memory");
}

/* Boxes, each of ROWS rows, one after the other. */
template <int BOXES, int ROWS>
__device__ __forceinline__ void load_rows(const CUtensorMap *map, uint32_t to, uint32_t barrier,
                                          int head, int row)
{
#pragma unroll
    for (int box = 0; box < BOXES; box++)
#pragma unroll
        for (int i = 0; i < ROWS; i += SIDE)
            load_head(map, to + (box * ROWS + i) * BOX_ROW, barrier, box * SIDE, head, row + i);
}

/* Barriers in shared memory: of the block's rows, and of each stage of a ring of tiles. */
template <int STAGES> struct barriers {
    uint32_t at;
    __device__ __forceinline__ uint32_t block() const { return at; }
    __device__ __forceinline__ uint32_t full(int stage) const { return at + 8 + stage * 16; }
    __device__ __forceinline__ uint32_t empty(int stage) const { return at + 16 + stage * 16; }
    static constexpr int BYTES = 8 + STAGES * 16;

    /* A warp arrives once for all its threads. */
    __device__ __forceinline__ void init(int warps) const
    {
        barrier_init(block(), 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full(i), 1);
            barrier_init(empty(i), warps);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
};

/* A warp's threads have read what there was to read in a stage. */
__device__ __forceinline__ void let_go(uint32_t barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

/* Threads of a group wait for each other. The barriers' numbers are constants: with others a kernel
 * would be taken to use all sixteen. */
__device__ __forceinline__ void sync_group(int group)
{
    if (group == 0)
        asm volatile("bar.sync 1, %0;" ::"n"((int)GROUP) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"n"((int)GROUP) : "memory");
}

/* ---- results --------------------------------------------------------------------------------- */

/* 16 bytes of a group's rows in a box. */
__device__ __forceinline__ uint32_t place_in_box(int row, int chunk)
{
    return row * BOX_ROW + ((chunk ^ row % 8) * 16);
}

/* A group's rows of WIDTH columns, times a factor for each of a thread's two, into boxes that are
 * `next` bytes apart; the group has them to itself. */
template <class T, int WIDTH>
__device__ __forceinline__ void put_rows(const seat &me, uint32_t to, int next, float factor,
                                         float factor2, const float (&d)[WIDTH / 2])
{
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        const float *v = d + i * 8;
        const uint32_t words[4] = {
            pack<T>(v[0] * factor, v[1] * factor), pack<T>(v[2] * factor2, v[3] * factor2),
            pack<T>(v[4] * factor, v[5] * factor), pack<T>(v[6] * factor2, v[7] * factor2)};
        store_16x16(to + i / 4 * next +
                        place_in_box(me.warp * 16 + me.lane % 16, i % 4 * 2 + me.lane / 16),
                    words);
    }
}

__device__ __forceinline__ mc_bits load_chunk(uint32_t address)
{
    mc_bits b;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b.word[0]), "=r"(b.word[1]), "=r"(b.word[2]), "=r"(b.word[3])
                 : "r"(address)
                 : "memory");
    return b;
}

/* Eight elements of T into a matrix that may be of another type. */
template <class T>
__device__ __forceinline__ void store_chunk(const mc_view &m, int64_t at, mc_bits b)
{
    const int dtype = std::is_same_v<T, __half> ? MC_F16 : MC_BF16;
    if (m.whole && m.dtype == dtype) {
        mc_store_16_bytes((uint16_t *)m.data + at, b);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpack<T>(b.word[i]);
        mc_store_one(m, at + 2 * i, pair.x);
        mc_store_one(m, at + 2 * i + 1, pair.y);
    }
}

/* What put_rows put, from the head's `column` on: `rows` rows from m's row `first` on. */
template <class T, int WIDTH>
__device__ __forceinline__ void take_rows(const call &c, const place &p, const mc_view &m,
                                          int64_t first, int rows, int column, uint32_t from,
                                          int next)
{
    const int thread = threadIdx.x % GROUP;
    for (int i = thread; i < SIDE * (WIDTH / 8); i += GROUP) {
        const int row = i / (WIDTH / 8), chunk = i % (WIDTH / 8);
        if (row >= rows || column + chunk * 8 >= c.head_dim) continue;
        store_chunk<T>(m, (first + row) * m.stride + p.head * c.head_dim + column + chunk * 8,
                       load_chunk(from + chunk / 8 * next + place_in_box(row, chunk % 8)));
    }
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* Columns that a head is rounded up to: the sizes that there are kernels for. */
static inline int width_of(int head_dim)
{
    return head_dim <= 64 ? 64 : head_dim <= 80 ? 80 : head_dim <= 128 ? 128 : 256;
}

/* Of a kernel whose block has ROWS rows, of BLOCK_BOXES matrices, and whose tiles have COLUMNS, of
 * two matrices. */
template <int D, int ROWS, int COLUMNS, int STAGES, int BLOCK_BOXES, int EXTRA,
          int BARRIERS = STAGES>
struct layout {
    static constexpr int BOXES = (D + 63) / 64;
    static constexpr int BLOCK_BYTES = BOXES * ROWS * BOX_ROW; /* of one matrix */
    static constexpr int TILE_BYTES = BOXES * COLUMNS * BOX_ROW;
    static constexpr int STAGE_AT = BLOCK_BOXES * BLOCK_BYTES;
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES;
    static constexpr int EXTRA_AT = STAGE_AT + STAGES * STAGE_BYTES;
    static constexpr int BARRIERS_AT = EXTRA_AT + EXTRA;
    static constexpr int LISTS_AT = (BARRIERS_AT + barriers<BARRIERS>::BYTES + 15) / 16 * 16;
};

/* What of shared memory depends on the longest sequence of columns: the list of tiles, what is known
 * of marks, the bias. */
struct list_sizes {
    int tiles_at, summaries_at, bias_at, bias_count, bytes;
};

static inline list_sizes list_sizes_of(int at, int longest, int rows, int columns, bool marks,
                                       bool bias)
{
    const int tiles = (int)mc_ceil_div(longest, columns), sides = (int)mc_ceil_div(longest, SIDE);
    list_sizes s;
    s.tiles_at = at;
    s.summaries_at = at + (tiles + 4) / 4 * 16;
    s.bias_at = s.summaries_at + (marks ? sides * (int)sizeof(summary) : 0);
    s.bias_count = bias ? tiles * columns + rows : 0;
    s.bytes = s.bias_at + s.bias_count * 4;
    return s;
}

static inline bool is_fit(mc_matrix m) { return mc_is(m.data, 16) && m.stride % 8 == 0; }

/* In attention_tensor.cu. */
call call_of(const mc_attention_shape *s);
mc_status describe_heads(mc_device *d, const mc_attention_shape *s, mc_matrix m,
                         const mc_lengths *lengths, CUtensorMap *map);

} // namespace tensor

#endif
