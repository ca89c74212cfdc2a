/* Products of very few rows, such as a decoder's tokens, with m <= MC_GEMV_ROWS.
 *
 * Reading B takes most of the time. Rows of B are read once, in order, as one stream that the
 * processor recognises; prefetches keep the stream going across pages. Sums along k are in vectors,
 * several for each element of C, so that additions do not wait for each other. B is widened to f32
 * in registers. */
#include "core/device/cpu/isa/panel_internal.h"
#include "core/device/cpu/isa/rows_internal.h"

enum {
    LINE = 64,                         /* bytes of a cache line */
    COLUMNS = MC_LANES / MC_GEMV_ROWS, /* of C, whose lanes are added together */
    MOST_SUMS = 16
};

/* The prefetch distance of B in bytes. On an EPYC of Zen 4 with both threads, 2 to 4 KiB are best
 * for f32; widened types need 8 KiB: with 2, int8 reaches 23 GB/s instead of 34. */
#define AHEAD(stored) ((stored) == MC_STORED_F32 ? 4096 : 8192)

/* Instructions convert FP8's bits as those of f16, whose exponent has the bias 15 in place of 7:
 * load_lanes() returns numbers that are too small by this factor. */
#if defined(__AVX2__)
#define FP8_UNIT 256.0f
#else
#define FP8_UNIT 1.0f
#endif

/* MC_LANES numbers from `at`; `stored` is a constant after inlining. */
#if defined(__AVX512F__)
static inline __attribute__((always_inline)) mc_vector load_lanes(mc_stored stored, const char *at)
{
    if (stored == MC_STORED_F32) return *(const mc_vector *)at;
    if (stored >= MC_STORED_INT8) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        if (stored == MC_STORED_INT8)
            return (mc_vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
        __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
        return (mc_vector)_mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16((short)0xbf80)));
    }
    __m256i words = _mm256_loadu_si256((const __m256i *)at);
    if (stored == MC_STORED_F16) return (mc_vector)_mm512_cvtph_ps(words);
    return (mc_vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
}
#elif defined(__AVX2__)
static inline __attribute__((always_inline)) mc_vector load_lanes(mc_stored stored, const char *at)
{
    if (stored == MC_STORED_F32) return *(const mc_vector *)at;
    if (stored >= MC_STORED_INT8) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)at);
        if (stored == MC_STORED_INT8)
            return (mc_vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        __m128i half = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
        return (mc_vector)_mm256_cvtph_ps(_mm_and_si128(half, _mm_set1_epi16((short)0xbf80)));
    }
    __m128i words = _mm_loadu_si128((const __m128i *)at);
    if (stored == MC_STORED_F16) return (mc_vector)_mm256_cvtph_ps(words);
    return (mc_vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
}
#else
static inline __attribute__((always_inline)) mc_vector load_lanes(mc_stored stored, const char *at)
{
    mc_lane_values v;
    mc_load_stored(stored, at, MC_LANES, v.lane);
    return v.vector;
}
#endif

/* The first n lanes, then zeros. Rarely called: inlining it would dominate this file's code size
 * and compile time. */
static __attribute__((noinline)) mc_vector load_part(mc_stored stored, const void *at, int64_t n)
{
    mc_lane_values part = {.vector = {0}};
    mc_load_stored(stored, at, n, part.lane);
    if (stored == MC_STORED_FP8) part.vector *= 1 / FP8_UNIT;
    return part.vector;
}

/* Sums of `rows` rows of A by `columns` rows of B, lane by lane: sums[c * MC_GEMV_ROWS + r]. All
 * but the last three arguments are constants after inlining. */
static inline __attribute__((always_inline)) void stream_tile(int rows, int columns,
                                                              mc_stored stored,
                                                              const mc_rows_product *f, int64_t j,
                                                              mc_vector *sums)
{
    const int size = (int)mc_stored_size(stored), tile = rows * columns;
    const int chains = tile >= 8 ? 1 : tile >= 4 ? 2 : 4, lanes = LINE / (MC_LANES * size);
    const int unroll = chains > lanes || lanes > 8 ? 4 : lanes;
    mc_vector part[MOST_SUMS] = {{0}}; /* (chains, columns, rows) */
    const char *b = mc_stored_row(f, j);
    int64_t p = 0, step = f->ldb * size;
    for (; p + unroll * MC_LANES <= f->k; p += unroll * MC_LANES)
#pragma GCC unroll 8
        for (int u = 0; u < unroll; u++)
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++) {
                const char *at = b + c * step + (p + u * MC_LANES) * size;
                if (u * MC_LANES * size % LINE == 0) __builtin_prefetch(at + AHEAD(stored), 0, 2);
                mc_vector y = load_lanes(stored, at);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++)
                    part[(u % chains * columns + c) * rows + r] +=
                        *(const mc_vector *)(f->a + r * f->lda + p + u * MC_LANES) * y;
            }
    for (; p < f->k; p += MC_LANES)
        for (int r = 0; r < rows; r++) {
            int64_t n = mc_min_i64(MC_LANES, f->k - p);
            mc_vector x = load_part(MC_STORED_F32, f->a + r * f->lda + p, n);
            for (int c = 0; c < columns; c++)
                part[c * rows + r] += x * load_part(stored, b + c * step + p * size, n);
        }
#pragma GCC unroll 16
    for (int i = 0; i < tile; i++) {
        mc_vector sum = part[i];
#pragma GCC unroll 4
        for (int u = 1; u < chains; u++) sum += part[u * tile + i];
        if (stored == MC_STORED_FP8) sum *= FP8_UNIT;
        sums[i / rows * MC_GEMV_ROWS + i % rows] = sum;
    }
}

/* Reads rows of B one by one, as one stream. If they are widened for several rows of A, which is
 * not memory-bound, COLUMNS of them are read side by side, so that A is read less often. */
static inline __attribute__((always_inline)) void
stream_tiles(mc_stored stored, const mc_rows_product *f, int64_t j, int columns, mc_vector *sums)
{
    if (stored != MC_STORED_F32 && f->m > 1 && columns == COLUMNS) {
        if (f->m == 2) stream_tile(2, COLUMNS, stored, f, j, sums);
        if (f->m == 3) stream_tile(3, COLUMNS, stored, f, j, sums);
        if (f->m == 4) stream_tile(4, COLUMNS, stored, f, j, sums);
        return;
    }
    for (int c = 0; c < columns; c++, sums += MC_GEMV_ROWS) switch (f->m) {
        case 1: stream_tile(1, 1, stored, f, j + c, sums); break;
        case 2: stream_tile(2, 1, stored, f, j + c, sums); break;
        case 3: stream_tile(3, 1, stored, f, j + c, sums); break;
        case 4: stream_tile(4, 1, stored, f, j + c, sums); break;
        }
}

/* Columns j .. j + columns of C. */
static void stream_columns(const mc_rows_product *f, int64_t j, int columns)
{
    mc_lane_values lanes;
    mc_vector sums[MC_LANES] = {{0}};
    switch (f->stored) {
    case MC_STORED_F32: stream_tiles(MC_STORED_F32, f, j, columns, sums); break;
    case MC_STORED_F16: stream_tiles(MC_STORED_F16, f, j, columns, sums); break;
    case MC_STORED_BF16: stream_tiles(MC_STORED_BF16, f, j, columns, sums); break;
    case MC_STORED_INT8: stream_tiles(MC_STORED_INT8, f, j, columns, sums); break;
    case MC_STORED_FP8: stream_tiles(MC_STORED_FP8, f, j, columns, sums); break;
    }
    lanes.vector = mc_add_lanes(sums);
    for (int r = 0; r < f->m; r++)
        for (int c = 0; c < columns; c++) {
            float *to = f->c + r * f->ldc + j + c;
            float sum = mc_column_factor(f, j + c) * lanes.lane[c * MC_GEMV_ROWS + r];
            *to = f->beta == 0 ? sum : sum + f->beta * *to;
        }
}

typedef struct skinny {
    const mc_rows_product *product;
    int64_t item; /* columns of C */
} skinny;

/* Columns of C per item: a few items for each thread, of 64 KiB to 1 MiB of B, long enough for a
 * stream and short enough to balance the load. */
static int64_t columns_of_item(const mc_rows_product *f, int threads)
{
    const int64_t least = 64 << 10, most = 1 << 20, each = 8;
    int64_t row = f->k * mc_stored_size(f->stored), bytes = f->n * row / threads / each;
    bytes = bytes < least ? least : mc_min_i64(bytes, most);
    return mc_round_up(bytes / row + 1, COLUMNS);
}

static void stream_item(void *call, int64_t item, int thread)
{
    const skinny *f = call;
    int64_t end = mc_min_i64(f->product->n, (item + 1) * f->item);
    (void)thread;
    for (int64_t j = item * f->item; j < end; j += COLUMNS)
        stream_columns(f->product, j, (int)mc_min_i64(COLUMNS, end - j));
}

void MC_K(gemv)(mc_device *d, const mc_rows_product *p)
{
    int threads = mc_threads_for(p->m * p->n * p->k);
    skinny f = {p, columns_of_item(p, threads)};
    mc_run(d, p->m, threads, (p->n + f.item - 1) / f.item, stream_item, &f);
}
