/* Linear layers, as steps of the persistent decode kernel. All warps of a block multiply each tile
 * of a weight (mc_persistent_divide): each some terms of all its segments, 32 terms of eight
 * segments an instruction.
 *
 * Tensor cores multiply 16 rows by 8 columns over 16 terms. Here rows i and i + 8 are 32 terms of
 * segment i: each of the four lanes that hold the row has eight consecutive ones, pairs 0 and 2 in
 * row i, pairs 1 and 3 in row i + 8. Column i is x for the segments of class i % 4: for their rows
 * below 8 if i < 4, else for the rows from 8 on. Segments i and i + 4 are a class: both are the
 * same part of a weight's row, which has 1, 2 or 4, and have their steps of 32 terms in the same
 * order. Half of the classes have each pair of steps swapped, so that lanes which read several
 * segments in the same instruction find them in different banks of shared memory. So words are
 * operands in the order in which they are loaded, x is loaded once for all tiles, and 16 lanes each
 * have one number of the result. */
#ifndef MC_DEVICE_HOPPER_PERSISTENT_LINEAR_CUH
#define MC_DEVICE_HOPPER_PERSISTENT_LINEAR_CUH

#include "core/device/hopper/decode/persistent.cuh"

namespace persistent
{

/* ---- a tile ---------------------------------------------------------------------------------- */

/* A lane's eight terms as they are stored, and as pairs of 16 bits: of bytes as f16 even if the
 * step is in bf16, since that takes half the instructions. */
template <int FORMAT> struct stored {
    uint2 v;

    __device__ __forceinline__ void widen(uint32_t (&w)[4]) const
    {
        if (FORMAT == MC_WEIGHTS_FP8) {
            widen_fp8(v.x, w[0], w[1]);
            widen_fp8(v.y, w[2], w[3]);
            return;
        }
        w[0] = mc_widen<__half, FORMAT>(v.x, 0), w[1] = mc_widen<__half, FORMAT>(v.x, 1);
        w[2] = mc_widen<__half, FORMAT>(v.y, 0), w[3] = mc_widen<__half, FORMAT>(v.y, 1);
    }
};
template <> struct stored<MC_WEIGHTS_FLOAT> {
    uint4 v;

    __device__ __forceinline__ void widen(uint32_t (&w)[4]) const
    {
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
};

/* x for weights in f16, times a power of two that brings `largest` (bits without the sign) below
 * 2^15. Exact except for numbers smaller than it by 2^32, whose lost bits no sum would keep. */
template <class T> struct to_half {
    float scale = 1.0f, unit = 1.0f; /* unit: 1 / scale */

    __device__ __forceinline__ explicit to_half(uint32_t largest)
    {
        if constexpr (!std::is_same_v<T, __half>) {
            const uint32_t exponent = min(268 - (largest >> 7), 250u);
            scale = __uint_as_float(exponent << 23), unit = __uint_as_float((254 - exponent) << 23);
        }
    }
    __device__ __forceinline__ uint32_t of(uint32_t pair) const
    {
        if constexpr (std::is_same_v<T, __half>) return pair;
        return mc_pack_f16(wide<T>(pair & 0xffff) * scale, wide<T>(pair >> 16) * scale);
    }
};
__device__ __forceinline__ uint32_t larger(uint32_t largest, uint32_t pair)
{
    return max(largest, max(pair & 0x7fff, pair >> 16 & 0x7fff));
}

/* A warp's x for a chunk's tiles, and where in a tile a lane finds the weights to multiply. For a
 * step beyond the segment x is zero and the weight any of the same segment: what follows it in the
 * ring may be NaN. */
template <class T, int ROWS, int FORMAT, int STEPS> struct operand {
    enum { SIZE = FORMAT == MC_WEIGHTS_FLOAT ? 2 : 1 };
    uint2 x[STEPS][ROWS];
    int at[STEPS], group; /* at: bytes; group: bytes of a group of segments */
    float unit[ROWS];     /* what sums are multiplied by */

    __device__ __forceinline__ static uint2 two_pairs(const uint16_t *p)
    {
        return make_uint2(*(const uint32_t *)p, *(const uint32_t *)(p + 4));
    }
    __device__ __forceinline__ void load(const place &b, const share &h, int chunk)
    {
        const int segment = h.terms(chunk) >> h.split, row = b.lane / 4,
                  part = row & ((1 << h.split) - 1), any = b.lane % 4 * EACH,
                  turn = row >> (segment * SIZE / 64 & 1) & 1;
        const uint16_t *from = b.x(0) + chunk * h.chunk + part * segment + b.lane / 16 * 2;
        group = 8 * segment * SIZE;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int first = 32 * ((b.warp + i * WARPS) ^ turn) + any;
            at[i] = (row * segment + (first < segment ? first : any)) * SIZE;
#pragma unroll
            for (int q = 0; q < ROWS; q++)
                x[i][q] =
                    first < segment ? two_pairs(from + q * b.c.x_pitch + first) : make_uint2(0, 0);
        }
        if constexpr (FORMAT != MC_WEIGHTS_FLOAT) narrow_rows();
    }
    __device__ __forceinline__ void narrow_rows()
    {
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            uint32_t largest = 0;
#pragma unroll
            for (int i = 0; i < STEPS; i++) largest = larger(larger(largest, x[i][q].x), x[i][q].y);
            const to_half<T> half(std::is_same_v<T, __half> ? 0 : mc_warp_largest(largest));
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                x[i][q] = make_uint2(half.of(x[i][q].x), half.of(x[i][q].y));
            unit[q] = half.unit * (FORMAT == MC_WEIGHTS_FP8 ? FP8_UNIT : 1.0f);
        }
    }
};

/* Groups of eight segments in a tile, of whose part a warp does some steps at a time. */
template <int FORMAT> constexpr int GROUPS = FORMAT == MC_WEIGHTS_FLOAT ? 1 : 2;
template <int FORMAT, int FIRST, int STEPS> struct weights {
    stored<FORMAT> of[GROUPS<FORMAT>][STEPS];

    template <class T, int ROWS, int ALL>
    __device__ __forceinline__ void load(const char *tile, const operand<T, ROWS, FORMAT, ALL> &v)
    {
#pragma unroll
        for (int g = 0; g < GROUPS<FORMAT>; g++)
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                of[g][i] = *(const stored<FORMAT> *)(tile + v.at[FIRST + i] + g * v.group);
    }
};

/* Sums of products: at least two that do not wait for each other. */
template <class T, int ROWS, int FORMAT> struct products {
    enum { CHAINS = ROWS * GROUPS<FORMAT> == 1 ? 2 : 1 };
    float sum[GROUPS<FORMAT>][CHAINS][ROWS][4];

    template <int FIRST, int STEPS, int ALL>
    __device__ __forceinline__ void add(const weights<FORMAT, FIRST, STEPS> &some,
                                        const operand<T, ROWS, FORMAT, ALL> &v)
    {
        using pairs = std::conditional_t<FORMAT == MC_WEIGHTS_FLOAT, T, __half>;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int g = 0; g < GROUPS<FORMAT>; g++) {
                uint32_t w[4];
                some.of[g][i].widen(w);
#pragma unroll
                for (int q = 0; q < ROWS; q++)
                    mc_few_multiply<pairs>(sum[g][(FIRST + i) % CHAINS][q], w[0], w[1], w[2], w[3],
                                           v.x[FIRST + i][q].x, v.x[FIRST + i][q].y);
            }
    }
    /* Stores the sums of 16 lanes as parts of a tile's products, `more` of them added to existing
     * ones, and sets them to zero. */
    template <int ALL>
    __device__ __forceinline__ void keep(const place &b, const operand<T, ROWS, FORMAT, ALL> &v,
                                         float *to, bool more)
    {
        const int row = b.lane / 4, j = b.lane % 4;
#pragma unroll
        for (int q = 0; q < ROWS; q++)
#pragma unroll
            for (int g = 0; g < GROUPS<FORMAT>; g++) {
                float all[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    all[i] = sum[g][0][q][i];
                    if (CHAINS > 1) all[i] += sum[g][CHAINS - 1][q][i];
                    sum[g][0][q][i] = 0.0f;
                    if (CHAINS > 1) sum[g][CHAINS - 1][q][i] = 0.0f;
                }
                const float even = j < 2 ? all[0] : all[2], odd = j < 2 ? all[1] : all[3],
                            own = row % 2 ? odd : even,
                            part = FORMAT == MC_WEIGHTS_FLOAT ? own : own * v.unit[q];
                float *at = to + (q * b.c.segments + 8 * g) * PITCH;
                if (j % 2 == row / 2 % 2) *at = more ? *at + part : part;
            }
    }
};

/* ---- a step ---------------------------------------------------------------------------------- */

/* How a thread completes its column of each group of tiles: four threads have a segment's sum; some
 * publish copies of the result, the last stores it. */
template <class T, int ROWS> struct ending {
    const mc_persistent_linear &l;
    int segment, column, rows, publish;
    bool leads; /* the column's first segment */
    mc_activation activation;
    uint16_t bias;
    float scale;

    __device__ __forceinline__ ending(const mc_persistent_step &s, const share &h)
        : l(s.linear), segment((int)threadIdx.x / ENDING), column(segment >> h.split), rows(s.rows),
          publish(s.publish), leads((segment & ((1 << h.split) - 1)) == 0),
          activation((mc_activation)s.activation)
    {
        load(h);
    }
    __device__ __forceinline__ void load(const share &h)
    {
        const bool there = column < h.rows;
        bias = l.bias && there ? __ldg((const uint16_t *)l.bias + h.first + column) : 0;
        scale = l.scale && there ? __ldg(l.scale + h.first + column) : 1.0f;
    }
    /* Row q's result of the column, rounded as by the separate linear kernels. */
    template <int FORMAT>
    __device__ __forceinline__ void store(const place &b, int step, int q, int at, float total)
    {
        const int which = b.lane % ENDING;
        if constexpr (FORMAT == MC_WEIGHTS_FLOAT)
            total = wide<T>(narrow<T>(fmaf(total, l.alpha, wide<T>(bias))));
        else
            total = fmaf(total * l.alpha, scale, wide<T>(bias));
        if (activation != MC_ACTIVATION_NONE) total = mc_few_activated(activation, total);
        const uint32_t bits = narrow<T>(total);
        if (which < (int)copies_of(rows) && publish >= 0)
            store_word(b.words(publish) + (which * rows + q) * MC_PERSISTENT_WIDEST + at, bits,
                       b.tag(step));
        if (which == ENDING - 1) ((uint16_t *)l.y)[(int64_t)q * l.y_stride + at] = (uint16_t)bits;
    }
    /* Adds up the segment's parts, eight a thread. */
    template <int FORMAT>
    __device__ __forceinline__ void run(const place &b, int step, const share &h)
    {
        if (segment >= b.c.segments) return;
        const float *parts = b.sums() + segment * PITCH + b.lane % ENDING * (PARTS / ENDING);
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            if (q >= rows) break;
            const float4 *own = (const float4 *)(parts + q * b.c.segments * PITCH);
            const float4 v = own[0], w = own[1];
            float total = ((v.x + v.y) + (v.z + v.w)) + ((w.x + w.y) + (w.z + w.w));
#pragma unroll
            for (int lane = 1; lane < ENDING; lane *= 2) total += __shfl_xor_sync(~0u, total, lane);
            if (h.split > 0) total += __shfl_xor_sync(~0u, total, ENDING);
            if (h.split > 1) total += __shfl_xor_sync(~0u, total, 2 * ENDING);
            if (leads && column < h.rows) store<FORMAT>(b, step, q, h.first + column, total);
        }
    }
};

/* The block's rows of a weight, tile by tile. While a warp multiplies one half of its part, the
 * other half, or the first one of the next tile, is being loaded. */
template <class T, int ROWS, int FORMAT, int STEPS>
__device__ __forceinline__ void multiply_rows(place &b, int step, const share &h,
                                              ending<T, ROWS> &end)
{
    enum { HALF = STEPS / 2 };
    operand<T, ROWS, FORMAT, STEPS> x;
    weights<FORMAT, 0, HALF> left;
    weights<FORMAT, HALF, STEPS - HALF> right;
    products<T, ROWS, FORMAT> sums = {};
    const int most = b.c.segments >> h.split;
    asm volatile("" ::: "memory"); /* do nothing of this before the format is known */
    x.load(b, h, 0);
#pragma unroll 1
    for (int first = 0; first < h.rows; first += most) {
        const int last = min(first + most, h.rows);
#pragma unroll 1
        for (int k = 0; k < h.chunks; k++) {
            float *to = b.sums() + b.lane / 4 * PITCH + 2 * b.warp + b.lane % 4 / 2;
            if (h.chunks > 1) x.load(b, h, k);
            const char *tile = wait_for_tile(b, b.at, h, first, k);
            left.load(tile, x);
#pragma unroll 1
            for (int row = first; row < last; to += 8 * GROUPS<FORMAT> * PITCH) {
                const position at = b.at;
                b.at = at.next(b.c);
                row += h.tile_rows();
                const bool there = row < last && has_come(b, b.at);
                right.load(tile, x);
                sums.add(left, x);
                if (row < last) {
                    tile = there ? b.slot(b.at) : wait_for_tile(b, b.at, h, row, k);
                    left.load(tile, x);
                }
                sums.add(right, x);
                release(b, at);
                sums.keep(b, x, to, k > 0);
            }
        }
        sync();
        end.template run<FORMAT>(b, step, h);
        b.half ^= 1; /* the sums are read until the next barrier */
        end.column += most;
        if (last < h.rows) end.load(h);
    }
}

/* Chooses the number of steps a warp needs for a segment. */
template <class T, int ROWS, int FORMAT>
__device__ __forceinline__ void multiply_format(place &b, int step, const share &h,
                                                ending<T, ROWS> &end)
{
    const int each = 32 * WARPS, segment = h.chunk >> h.split;
    static_assert(MC_PERSISTENT_SEGMENT == 5 * 32 * WARPS, "the most steps");
    if (segment <= 3 * each) return multiply_rows<T, ROWS, FORMAT, 3>(b, step, h, end);
    if (segment <= 4 * each) return multiply_rows<T, ROWS, FORMAT, 4>(b, step, h, end);
    multiply_rows<T, ROWS, FORMAT, 5>(b, step, h, end);
}

/* Copies x to shared memory; missing rows become zeros. All threads have passed a barrier since
 * they read the old rows. */
template <class T, int ROWS> __device__ void gather(place &b, const mc_persistent_step &s)
{
    constexpr int N = ROWS == 1 ? 5 : ROWS == 2 ? 2 : 1;
    const mc_persistent_linear &l = s.linear;
    const int quads = l.in / 4;
    const input in = input_of(b, s, 0, l.x, l.x_stride);
#pragma unroll 1
    for (int first = threadIdx.x; first < quads; first += N * THREADS) {
        uint2 v[N][ROWS];
        fetch(in, first, quads, s.rows, v);
#pragma unroll
        for (int e = 0; e < N; e++)
#pragma unroll
            for (int q = 0; q < ROWS; q++)
                if (first + e * THREADS < quads) ((uint2 *)b.x(q))[first + e * THREADS] = v[e][q];
    }
    sync();
}

template <class T, int ROWS>
__device__ void run_linear(place &b, const mc_persistent_step &s, int step)
{
    const share h(s);
    ending<T, ROWS> end(s, h);
    if (s.from[0] != MC_PERSISTENT_RESIDENT) gather<T, ROWS>(b, s);
    switch (s.format) {
    case MC_WEIGHTS_INT8: return multiply_format<T, ROWS, MC_WEIGHTS_INT8>(b, step, h, end);
    case MC_WEIGHTS_FP8: return multiply_format<T, ROWS, MC_WEIGHTS_FP8>(b, step, h, end);
    default: return multiply_format<T, ROWS, MC_WEIGHTS_FLOAT>(b, step, h, end);
    }
}

} // namespace persistent

#endif
