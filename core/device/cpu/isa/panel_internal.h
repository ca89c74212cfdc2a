/* Small f32 products of matrices whose operands fit the cache: C (m, n) = or += A B, with B in
 * panels of MC_PANEL columns, in register blocks of MC_TILE_ROWS rows and MC_PANEL columns. All in
 * the compiler's vector types, so that one source serves every instruction set. */
#ifndef MC_DEVICE_CPU_PANEL_INTERNAL_H
#define MC_DEVICE_CPU_PANEL_INTERNAL_H

#include "core/device/cpu/isa/convert_internal.h"

#if defined(__AVX512F__)
enum { MC_LANES = 16, MC_TILE_ROWS = 12 };
#elif defined(__AVX2__)
enum { MC_LANES = 8, MC_TILE_ROWS = 6 };
#else
enum { MC_LANES = 4, MC_TILE_ROWS = 6 };
#endif
enum { MC_PANEL = 2 * MC_LANES };

typedef float mc_vector __attribute__((vector_size(MC_LANES * 4), aligned(4), may_alias));
typedef int32_t mc_lane_index __attribute__((vector_size(MC_LANES * 4)));

typedef union mc_lane_values {
    mc_vector vector;
    float lane[MC_LANES];
} mc_lane_values;

/* Adds the lanes of each of MC_LANES vectors: lane i of the result is the sum of v[i]. */
static inline __attribute__((always_inline)) mc_vector mc_add_lanes(mc_vector *v)
{
#ifdef __clang__
    mc_lane_values sums = {.vector = {0}};
    for (int i = 0; i < MC_LANES; i++)
        for (int j = 0; j < MC_LANES; j++) sums.lane[i] += v[i][j];
    return sums.vector;
#else
    mc_lane_index lane;
    for (int i = 0; i < MC_LANES; i++) lane[i] = i;
        /* v[i] and v[i + half] become one vector: lanes with this bit clear are from v[i] */
#pragma GCC unroll 4
    for (int half = MC_LANES / 2; half > 0; half /= 2) {
        mc_lane_index second = -((lane & half) != 0);
        mc_lane_index kept = (lane & ~half) + second * MC_LANES;
        mc_lane_index added = kept + half;
#pragma GCC unroll 16
        for (int i = 0; i < half; i++) {
            mc_vector a = v[i], b = v[i + half];
            v[i] = __builtin_shuffle(a, b, kept) + __builtin_shuffle(a, b, added);
        }
    }
    return v[0];
#endif
}

/* The left operand: element (i, p) is data[i * stride + p], or data[p * stride + i] if transposed.
 */
typedef struct mc_left {
    const float *data;
    int64_t stride;
    bool transposed;
} mc_left;

/* The right operand: element (p, j) is data[j / MC_PANEL * panel + p * stride + j % MC_PANEL]. Rows
 * end with a whole panel, padded with zeros. */
typedef struct mc_right {
    const float *data;
    int64_t panel, stride;
} mc_right;

/* Memory to prefetch while a register block is multiplied: MC_PANEL rows, `row` bytes apart, of
 * which MC_PANEL elements are `step` bytes. `data` NULL: nothing. */
typedef struct mc_ahead {
    const char *data;
    int64_t row, step;
} mc_ahead;

/* Prefetches part p of it, of as many parts as a row has elements. */
static inline __attribute__((always_inline)) void mc_prefetch_part(mc_ahead next, int64_t p)
{
    const char *at = next.data + p % MC_PANEL * next.row + p / MC_PANEL * next.step;
    __builtin_prefetch(at, 0, 2);
    if (MC_PANEL * sizeof(float) > 64) __builtin_prefetch(at + 64, 0, 2);
}

/* One register block. `rows` and the two flags are constants after inlining. */
static inline __attribute__((always_inline)) void
mc_tile(int rows, bool transposed, bool accumulate, int64_t depth, const float *a, int64_t stride,
        const float *b, int64_t b_stride, float *c, int64_t c_stride, mc_ahead next)
{
    mc_vector low[MC_TILE_ROWS], high[MC_TILE_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        low[r] = accumulate ? *(const mc_vector *)(c + r * c_stride) : (mc_vector){0};
        high[r] = accumulate ? *(const mc_vector *)(c + r * c_stride + MC_LANES) : (mc_vector){0};
    }
    for (int64_t p = 0; p < depth; p++) {
        mc_vector b0 = *(const mc_vector *)b, b1 = *(const mc_vector *)(b + MC_LANES);
        if (next.data) mc_prefetch_part(next, p);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            float x = transposed ? a[r] : a[r * stride];
            low[r] += x * b0;
            high[r] += x * b1;
        }
        a += transposed ? stride : 1;
        b += b_stride;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        *(mc_vector *)(c + r * c_stride) = low[r];
        *(mc_vector *)(c + r * c_stride + MC_LANES) = high[r];
    }
}

/* A block of `rows` <= MC_TILE_ROWS rows: constant for the compiler in each case. */
static inline __attribute__((always_inline)) void
mc_tile_rows(int rows, bool transposed, bool accumulate, int64_t depth, const float *a,
             int64_t stride, const float *b, int64_t b_stride, float *c, int64_t c_stride,
             mc_ahead next)
{
#define MC_TILE_CASE(n)                                                                       \
    case n:                                                                                   \
        mc_tile(n, transposed, accumulate, depth, a, stride, b, b_stride, c, c_stride, next); \
        break;
    switch (rows) {
        MC_TILE_CASE(1)
        MC_TILE_CASE(2)
        MC_TILE_CASE(3)
        MC_TILE_CASE(4)
        MC_TILE_CASE(5)
        MC_TILE_CASE(6)
#if defined(__AVX512F__)
        MC_TILE_CASE(7)
        MC_TILE_CASE(8)
        MC_TILE_CASE(9)
        MC_TILE_CASE(10)
        MC_TILE_CASE(11)
        MC_TILE_CASE(12)
#endif
    }
#undef MC_TILE_CASE
}

static inline void mc_panel_product(bool accumulate, int64_t m, int64_t n, int64_t depth, mc_left a,
                                    mc_right b, float *c, int64_t c_stride)
{
    for (int64_t j = 0; j < n; j += MC_PANEL) {
        const float *panel = b.data + j / MC_PANEL * b.panel;
        for (int64_t i = 0; i < m; i += MC_TILE_ROWS) {
            int rows = (int)mc_min_i64(MC_TILE_ROWS, m - i);
            float *to = c + i * c_stride + j;
            if (a.transposed && accumulate)
                mc_tile_rows(rows, true, true, depth, a.data + i, a.stride, panel, b.stride, to,
                             c_stride, (mc_ahead){0});
            else if (!a.transposed && !accumulate)
                mc_tile_rows(rows, false, false, depth, a.data + i * a.stride, a.stride, panel,
                             b.stride, to, c_stride, (mc_ahead){0});
        }
    }
}

/* to[c][r] = from[r][c] for MC_LANES rows and columns, in log2(MC_LANES) exchanges of halves. */
#ifdef __clang__
static inline void mc_transpose_square(const float *const *from, float *to, int64_t to_stride)
{
    for (int c = 0; c < MC_LANES; c++)
        for (int r = 0; r < MC_LANES; r++) to[c * to_stride + r] = from[r][c];
}
#else
static inline void mc_transpose_square(const float *const *from, float *to, int64_t to_stride)
{
    mc_vector v[MC_LANES];
    mc_lane_index lane;
    for (int i = 0; i < MC_LANES; i++) {
        v[i] = *(const mc_vector *)from[i];
        lane[i] = i;
    }
#pragma GCC unroll 4
    for (int half = 1; half < MC_LANES; half *= 2) {
        mc_lane_index upper = -((lane & half) != 0); /* 1 in the upper half of each pair */
        mc_lane_index low = lane + upper * (MC_LANES - half);
        mc_lane_index high = lane + half + upper * (MC_LANES - half);
#pragma GCC unroll 16
        for (int i = 0; i < MC_LANES; i++) {
            if (i & half) continue;
            mc_vector a = v[i], b = v[i + half];
            v[i] = __builtin_shuffle(a, b, low);
            v[i + half] = __builtin_shuffle(a, b, high);
        }
    }
    for (int i = 0; i < MC_LANES; i++) *(mc_vector *)(to + i * to_stride) = v[i];
}
#endif

/* The transpose of x (rows, columns; columns a multiple of MC_LANES with the stride to match) as a
 * right operand (columns, rows) in packed panels: zeros past the last row. */
static inline void mc_pack_transposed(const float *x, int64_t stride, int64_t rows, int64_t columns,
                                      float *panels)
{
    static const float zeros[16];
    for (int64_t first = 0; first < mc_round_up(rows, MC_PANEL); first += MC_LANES) {
        float *to = panels + first / MC_PANEL * MC_PANEL * columns + first % MC_PANEL;
        for (int64_t column = 0; column < columns; column += MC_LANES) {
            const float *from[MC_LANES];
            for (int i = 0; i < MC_LANES; i++)
                from[i] = first + i < rows ? x + (first + i) * stride + column : zeros;
            mc_transpose_square(from, to + column * MC_PANEL, MC_PANEL);
        }
    }
}

#endif
