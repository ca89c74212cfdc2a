/* Products of few rows: C (m, n) = alpha A (m, k) B^T + beta C, with B's rows as they are stored.
 *
 * The libraries copy B into panels of their own first, which takes as long as the product when A
 * has few rows: those of an encoder's single sentence, or of a decoder's single token. Here every
 * row of B is read once from memory, and stays in the first cache while all rows of A pass by.
 * Blocks of TILE_A and TILE_B rows are multiplied at a time, as sums along k of whole vectors; B in
 * 16 bits is converted on the way. */
#include "core/device/cpu/isa/panel_internal.h"

/* Rows of A and of B in a block: their products fill the registers, and are as many as a vector has
 * lanes, so that the lanes of all are added up together. */
#if defined(__AVX512F__)
enum { TILE_A = 4, TILE_B = 4 };
#elif defined(__AVX2__)
enum { TILE_A = 2, TILE_B = 4 };
#else
enum { TILE_A = 2, TILE_B = 2 };
#endif
_Static_assert(TILE_A *TILE_B == (int)MC_LANES, "a block's sums fill a vector");

/* The first n lanes of x, zeros behind them. */
static inline mc_vector load_part(const float *x, int64_t n)
{
    mc_lane_values part = {.vector = {0}};
    memcpy(part.lane, x, (size_t)n * sizeof *x);
    return part.vector;
}

/* Sums of `rows` rows of A by `columns` rows of B, both constants where this is inlined. Those of
 * row r and column c lie in lane r * TILE_B + c. `ahead`, a constant too: asks for the rows of B
 * that follow, which arrive while the other rows of A pass by these. */
static inline __attribute__((always_inline)) mc_vector tile(int rows, int columns, bool ahead,
                                                            int64_t k, const float *a, int64_t lda,
                                                            const float *b, int64_t ldb)
{
    mc_vector sums[MC_LANES] = {{0}};
    int64_t p = 0;
    for (; p + MC_LANES <= k; p += MC_LANES) {
        mc_vector y[TILE_B];
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            y[c] = *(const mc_vector *)(b + c * ldb + p);
            if (ahead) __builtin_prefetch(b + (c + columns) * ldb + p, 0, 2);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            mc_vector x = *(const mc_vector *)(a + r * lda + p);
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++) sums[r * TILE_B + c] += x * y[c];
        }
    }
    for (int r = 0; r < rows && p < k; r++)
        for (int c = 0; c < columns; c++)
            sums[r * TILE_B + c] +=
                load_part(a + r * lda + p, k - p) * load_part(b + c * ldb + p, k - p);
    return mc_add_lanes(sums);
}

typedef struct few_rows {
    int64_t m, n, k;
    float alpha, beta;
    const float *a;
    int64_t lda;
    mc_matrix b;
    float *c;
    int64_t ldc;
} few_rows;

/* Rows of A, the first of a block's or not: constants for the compiler in each case. */
#define TILE_CASE(n)                                                               \
    case n: sums.vector = tile(n, columns, false, f->k, a, f->lda, b, ldb); break; \
    case -n: sums.vector = tile(n, columns, true, f->k, a, f->lda, b, ldb); break;

/* Columns j .. j + columns of C, from as many rows of B. */
static inline __attribute__((always_inline)) void
multiply_rows(const few_rows *f, int columns, int64_t j, const float *b, int64_t ldb)
{
    for (int64_t i = 0; i < f->m; i += TILE_A) {
        int rows = (int)mc_min_i64(TILE_A, f->m - i);
        const float *a = f->a + i * f->lda;
        mc_lane_values sums;
        switch (i == 0 ? -rows : rows) {
            TILE_CASE(1)
            TILE_CASE(2)
#if defined(__AVX512F__)
            TILE_CASE(3)
            TILE_CASE(4)
#endif
        }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                float *to = f->c + (i + r) * f->ldc + j + c;
                float sum = f->alpha * sums.lane[r * TILE_B + c];
                *to = f->beta == 0 ? sum : sum + f->beta * *to;
            }
    }
}
#undef TILE_CASE

/* Columns j .. j + columns of C; `buffer` holds as many rows of B in f32. */
static void multiply_columns(const few_rows *f, int64_t j, int columns, float *buffer)
{
    int64_t ldb = f->b.stride;
    const float *b = (const float *)f->b.data + j * ldb;
    if (f->b.dtype != MC_F32) {
        for (int c = 0; c < columns; c++)
            mc_convert_in(f->b.data, f->b.dtype, (j + c) * f->b.stride, f->k, buffer + c * f->k);
        b = buffer;
        ldb = f->k;
    }
    if (columns == TILE_B)
        multiply_rows(f, TILE_B, j, b, ldb);
    else
        for (int c = 0; c < columns; c++) multiply_rows(f, 1, j + c, b + c * ldb, ldb);
}

mc_status MC_K(few_rows)(mc_device *d, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                         int64_t lda, mc_matrix b, float beta, float *c, int64_t ldc)
{
    few_rows f = {m, n, k, alpha, beta, a, lda, b, c, ldc};
    int threads = m * n * k > MC_SERIAL ? omp_get_max_threads() : 1;
    int64_t each = b.dtype == MC_F32 ? 0 : TILE_B * k;
    float *buffers = each ? mc_scratch_new(d, threads * each) : NULL;
    if (each && !buffers) return MC_ERR_NOMEM;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t j = 0; j < n; j += TILE_B)
        multiply_columns(&f, j, (int)mc_min_i64(TILE_B, n - j),
                         each ? buffers + omp_get_thread_num() * each : NULL);
    if (buffers) mc_scratch_free(d, buffers, threads * each);
    return MC_OK;
}
