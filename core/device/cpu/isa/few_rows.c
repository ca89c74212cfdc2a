/* Products of very few rows, such as a decoder's tokens: C (m, n) = alpha A (m, k) B^T + beta C for
 * m <= MC_FEW_ROWS, with B's rows as they are stored.
 *
 * The time is that of reading B. Rows of B are read one behind the other, once, as one stream that
 * the processor recognises; a request for the line STREAM_AHEAD bytes on keeps the stream going
 * across pages. Sums along k are of whole vectors, several for each element of C, so that they do
 * not wait for each other. B in bf16 is widened in registers, f16 row by row. */
#include "core/device/cpu/isa/panel_internal.h"

enum {
    STREAM_AHEAD = 3072,             /* measured on an EPYC of Zen 4: 1 to 6 KiB are alike */
    COLUMNS = MC_LANES / MC_FEW_ROWS /* of C, whose lanes are added up together */
};

typedef struct few_rows {
    int64_t m, n, k;
    float alpha, beta;
    const float *a;
    int64_t lda;
    mc_matrix b;
    float *c;
    int64_t ldc;
    int64_t item;   /* columns of C */
    float *buffers; /* (threads, k) for rows of B in f16; else NULL */
} few_rows;

/* A vector of elements from `at`, which are f32 or bf16. */
static inline __attribute__((always_inline)) mc_vector load_lanes(mc_dtype dtype, const char *at)
{
    if (dtype == MC_F32) return *(const mc_vector *)at;
#if defined(__AVX512F__)
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at));
    return (mc_vector)_mm512_slli_epi32(words, 16);
#elif defined(__AVX2__)
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
    return (mc_vector)_mm256_slli_epi32(words, 16);
#else
    mc_lane_values v;
    mc_load_bf16((const uint16_t *)at, MC_LANES, v.lane);
    return v.vector;
#endif
}

/* The first n lanes, zeros behind them. */
static inline mc_vector load_part(mc_dtype dtype, const void *at, int64_t n)
{
    mc_lane_values part = {.vector = {0}};
    mc_convert_in(at, dtype, 0, n, part.lane);
    return part.vector;
}

/* sums[r] = products of `rows` rows of A with one row of B, whose sum is still that of the lanes.
 * `rows` and `dtype` are constants where this is inlined. */
static inline __attribute__((always_inline)) void
stream_row(int rows, mc_dtype dtype, const few_rows *f, const char *b, mc_vector *sums)
{
    const int unroll = rows <= 2 ? 4 : 2, size = dtype == MC_F32 ? 4 : 2;
    mc_vector part[2 * MC_FEW_ROWS] = {{0}}; /* (unroll, rows) */
    int64_t p = 0;
    for (; p + unroll * MC_LANES <= f->k; p += unroll * MC_LANES)
#pragma GCC unroll 4
        for (int u = 0; u < unroll; u++) {
            const char *at = b + (p + u * MC_LANES) * size;
            const float *a = f->a + p + u * MC_LANES;
            __builtin_prefetch(at + STREAM_AHEAD, 0, 2);
            mc_vector y = load_lanes(dtype, at);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                part[u * rows + r] += *(const mc_vector *)(a + r * f->lda) * y;
        }
    for (; p + MC_LANES <= f->k; p += MC_LANES)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            part[r] +=
                *(const mc_vector *)(f->a + r * f->lda + p) * load_lanes(dtype, b + p * size);
    for (int r = 0; r < rows && p < f->k; r++)
        part[r] += load_part(MC_F32, f->a + r * f->lda + p, f->k - p) *
                   load_part(dtype, b + p * size, f->k - p);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        sums[r] = part[r];
#pragma GCC unroll 4
        for (int u = 1; u < unroll; u++) sums[r] += part[u * rows + r];
    }
}

static inline __attribute__((always_inline)) void stream_rows(mc_dtype dtype, const few_rows *f,
                                                              const char *b, mc_vector *sums)
{
    switch (f->m) {
    case 1: stream_row(1, dtype, f, b, sums); break;
    case 2: stream_row(2, dtype, f, b, sums); break;
    case 3: stream_row(3, dtype, f, b, sums); break;
    default: stream_row(4, dtype, f, b, sums); break;
    }
}

/* Columns j .. j + columns of C; `buffer` holds a row of B in f32. */
static void stream_columns(const few_rows *f, int64_t j, int columns, float *buffer)
{
    mc_lane_values lanes;
    mc_vector sums[MC_LANES] = {{0}};
    for (int c = 0; c < columns; c++) {
        const char *b =
            (const char *)f->b.data + (size_t)((j + c) * f->b.stride) * mc_dtype_size(f->b.dtype);
        mc_vector *to = sums + c * MC_FEW_ROWS;
        if (f->b.dtype == MC_BF16) {
            stream_rows(MC_BF16, f, b, to);
        } else if (f->b.dtype == MC_F32) {
            stream_rows(MC_F32, f, b, to);
        } else {
            mc_convert_in(b, f->b.dtype, 0, f->k, buffer);
            stream_rows(MC_F32, f, (const char *)buffer, to);
        }
    }
    lanes.vector = mc_add_lanes(sums);
    for (int r = 0; r < f->m; r++)
        for (int c = 0; c < columns; c++) {
            float *to = f->c + r * f->ldc + j + c, sum = f->alpha * lanes.lane[c * MC_FEW_ROWS + r];
            *to = f->beta == 0 ? sum : sum + f->beta * *to;
        }
}

/* Columns of C of an item: a few for each thread, of 64 KiB to 1 MiB of B, which is long enough to
 * be a stream and short enough to be waited for. */
static int64_t columns_of_item(const few_rows *f, int threads)
{
    const int64_t least = 64 << 10, most = 1 << 20, each = 8;
    int64_t row = f->k * (int64_t)mc_dtype_size(f->b.dtype), bytes = f->n * row / threads / each;
    bytes = bytes < least ? least : mc_min_i64(bytes, most);
    return mc_round_up(bytes / row + 1, COLUMNS);
}

static void stream_item(void *call, int64_t item, int thread)
{
    const few_rows *f = call;
    int64_t end = mc_min_i64(f->n, (item + 1) * f->item);
    float *buffer = f->buffers ? f->buffers + thread * f->k : NULL;
    for (int64_t j = item * f->item; j < end; j += COLUMNS)
        stream_columns(f, j, (int)mc_min_i64(COLUMNS, end - j), buffer);
}

mc_status MC_K(few_rows)(mc_device *d, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                         int64_t lda, mc_matrix b, float beta, float *c, int64_t ldc)
{
    few_rows f = {m, n, k, alpha, beta, a, lda, b, c, ldc, .buffers = NULL};
    int threads = mc_threads_for(m * n * k);
    int64_t size = b.dtype == MC_F16 ? threads * k : 0;
    if (size && !(f.buffers = mc_scratch_new(d, size))) return MC_ERR_NOMEM;
    f.item = columns_of_item(&f, threads);
    mc_run(d, m, threads, (n + f.item - 1) / f.item, stream_item, &f);
    if (size) mc_scratch_free(d, f.buffers, size);
    return MC_OK;
}
