/* Products of matrices. f32 goes straight to the library. Other types are converted block by block
 * into scratch memory, multiplied in f32, and rounded once. */
#include <limits.h>
#include "core/device/cpu/isa/rows_internal.h"

/* Elements of an operand that are converted at a time: 16 MiB of f32, which is small beside large
 * embeddings, but large enough for efficient products. */
enum { BLOCK = 4 << 20 };

typedef struct gemm_call {
    mc_sgemm_fn sgemm;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    mc_matrix a, b, c;
    float alpha, beta;
} gemm_call;

/* to (rows, columns) = rows of x from (row, column), contiguous. Few rows on one thread: see mc_run
 */
static void convert_block(mc_matrix x, int64_t row, int64_t column, int64_t rows, int64_t columns,
                          float *to)
{
    bool parallel = rows > MC_SKINNY_ROWS && rows * columns > MC_SERIAL;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < rows; i++)
        mc_convert_in(x.data, x.dtype, (row + i) * x.stride + column, columns, to + i * columns);
}

typedef struct store_call {
    const float *sums;
    mc_chunks chunks;
    mc_matrix c;
    bool accumulate;
} store_call;

static void store_item(void *call, int64_t item, int thread)
{
    const store_call *s = call;
    mc_chunk k = mc_chunk_at(s->chunks, item);
    (void)thread;
    mc_write(s->c, k.row * s->c.stride + k.column, k.n,
             s->sums + k.row * s->chunks.columns + k.column, s->accumulate);
}

static mc_matrix step_matrix(mc_matrix x, int64_t elements)
{
    x.data = (char *)x.data + (size_t)elements * mc_dtype_size(x.dtype);
    return x;
}

/* C from (row, column) [+]= sums (rows, columns). */
static void store_block(mc_device *d, const float *sums, mc_matrix c, int64_t row, int64_t column,
                        int64_t rows, int64_t columns, bool accumulate)
{
    store_call s = {sums, mc_chunks_of(rows, columns), step_matrix(c, row * c.stride + column),
                    accumulate};
    mc_run(d, rows, mc_threads_for(rows * columns), s.chunks.count, store_item, &s);
}

/* A block of an operand as f32, with its row stride: in place, or converted into scratch. `outer`
 * is the dimension of C (m or n). */
static const float *operand(mc_matrix x, bool outer_is_column, int64_t outer, int64_t outer_count,
                            int64_t k, float *scratch, int64_t *stride)
{
    int64_t row = outer_is_column ? 0 : outer, column = outer_is_column ? outer : 0;
    int64_t rows = outer_is_column ? k : outer_count, columns = outer_is_column ? outer_count : k;
    if (x.dtype == MC_F32) {
        /* Libraries check the stride even of a single row. */
        *stride = x.stride > columns ? x.stride : columns;
        return (const float *)x.data + row * x.stride + column;
    }
    convert_block(x, row, column, rows, columns, scratch);
    *stride = columns;
    return scratch;
}

/* Rows i .. i + m and columns j .. j + n of C. `a` is the converted block of A. */
static void multiply_block(mc_device *d, const gemm_call *g, const float *a, int64_t lda, int64_t i,
                           int64_t m, int64_t j, int64_t n, float *b_scratch, float *c_scratch)
{
    int64_t ldb;
    const float *b = operand(g->b, !g->transpose_b, j, n, g->k, b_scratch, &ldb);
    bool direct = g->c.dtype == MC_F32;
    float *c = direct ? (float *)g->c.data + i * g->c.stride + j : c_scratch;
    int64_t ldc = direct && g->c.stride > n ? g->c.stride : n;
    g->sgemm(g->transpose_a, g->transpose_b, m, n, g->k, g->alpha, a, lda, b, ldb,
             direct ? g->beta : 0.0f, c, ldc);
    if (!direct) store_block(d, c, g->c, i, j, m, n, g->beta != 0.0f);
}

/* The number of rows or columns in a block, of `count` with `size` elements each. */
static int64_t block_of(int64_t count, int64_t size, bool whole)
{
    if (whole || count * size <= BLOCK) return count;
    int64_t fit = BLOCK / size / 16 * 16;
    return fit > 16 ? fit : mc_min_i64(count, 16);
}

static mc_status gemm_blocks(mc_device *d, gemm_call *g)
{
    bool whole_a = g->a.dtype == MC_F32, whole_b = g->b.dtype == MC_F32,
         whole_c = g->c.dtype == MC_F32;
    int64_t mb = block_of(g->m, g->k, whole_a), nb = block_of(g->n, g->k, whole_b);
    if (!whole_c) nb = mc_min_i64(nb, block_of(g->n, mb, false));
    int64_t a_size = whole_a ? 0 : mb * g->k, b_size = whole_b ? 0 : nb * g->k;
    int64_t size = a_size + b_size + (whole_c ? 0 : mb * nb);
    float *scratch = mc_scratch_new(d, size);
    if (!scratch) return MC_ERR_NOMEM;
    g->sgemm = mc_cpu_sgemm(d);
    for (int64_t i = 0; i < g->m && g->sgemm; i += mb) {
        int64_t lda, m = mc_min_i64(mb, g->m - i);
        const float *a = operand(g->a, g->transpose_a, i, m, g->k, scratch, &lda);
        for (int64_t j = 0; j < g->n; j += nb)
            multiply_block(d, g, a, lda, i, m, j, mc_min_i64(nb, g->n - j), scratch + a_size,
                           scratch + a_size + b_size);
    }
    mc_scratch_free(d, scratch, size);
    return g->sgemm ? MC_OK : MC_ERR_DEVICE;
}

/* Few rows of A, without a library. A and C are f32, in place or in scratch memory; B is in
 * place. */
static mc_status skinny_gemm(mc_device *d, const gemm_call *g)
{
    bool whole_a = g->a.dtype == MC_F32, whole_c = g->c.dtype == MC_F32;
    int64_t a_size = whole_a ? 0 : g->m * g->k, size = a_size + (whole_c ? 0 : g->m * g->n), lda;
    float *scratch = size ? mc_scratch_new(d, size) : NULL;
    if (size && !scratch) return MC_ERR_NOMEM;
    const float *a = operand(g->a, false, 0, g->m, g->k, scratch, &lda);
    mc_rows_product p = {.m = g->m,
                         .n = g->n,
                         .k = g->k,
                         .alpha = g->alpha,
                         .beta = whole_c ? g->beta : 0,
                         .a = a,
                         .lda = lda,
                         .stored = mc_stored_as(g->b.dtype),
                         .b = g->b.data,
                         .ldb = g->b.stride,
                         .c = whole_c ? g->c.data : scratch + a_size,
                         .ldc = whole_c ? g->c.stride : g->n};
    mc_rows_multiply(d, &p);
    if (!whole_c) store_block(d, p.c, g->c, 0, 0, g->m, g->n, g->beta != 0.0f);
    if (scratch) mc_scratch_free(d, scratch, size);
    return MC_OK;
}

mc_status MC_K(gemm)(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                     int64_t k, float alpha, mc_matrix a, mc_matrix b, float beta, mc_matrix c)
{
    if (m == 0 || n == 0 || (k == 0 && beta != 0.0f)) return MC_OK;
    if (k == 0) { /* an empty sum */
        for (int64_t i = 0; i < m; i++)
            memset((char *)c.data + (size_t)(i * c.stride) * mc_dtype_size(c.dtype), 0,
                   (size_t)n * mc_dtype_size(c.dtype));
        return MC_OK;
    }
    int64_t largest = m | n | k | a.stride | b.stride | c.stride;
    if (largest > INT_MAX) return MC_ERR_UNSUPPORTED; /* the libraries count with int */
    gemm_call g = {NULL, transpose_a, transpose_b, m, n, k, a, b, c, alpha, beta};
    if (m <= MC_SKINNY_ROWS && !transpose_a && transpose_b) return skinny_gemm(d, &g);
    if (a.dtype != MC_F32 || b.dtype != MC_F32 || c.dtype != MC_F32) return gemm_blocks(d, &g);
    int64_t lda, ldb;
    const float *as = operand(a, transpose_a, 0, m, k, NULL, &lda);
    const float *bs = operand(b, !transpose_b, 0, n, k, NULL, &ldb);
    if (!(g.sgemm = mc_cpu_sgemm(d))) return MC_ERR_DEVICE;
    g.sgemm(transpose_a, transpose_b, m, n, k, alpha, as, lda, bs, ldb, beta, c.data,
            c.stride > n ? c.stride : n);
    return MC_OK;
}

/* Below this many multiplications a product uses one thread; the batch is then divided. */
enum { SMALL_PRODUCT = 1 << 20 };

/* C = add, both of one form. */
static void copy_rows(const mc_batched_gemm_call *g, int64_t product)
{
    const mc_matrix add = {(void *)(uintptr_t)g->add, g->c.dtype, g->c.stride};
    const char *from = step_matrix(add, product * g->c_step).data;
    char *to = step_matrix(g->c, product * g->c_step).data;
    size_t size = mc_dtype_size(g->c.dtype), row = (size_t)g->c.stride * size;
#pragma omp parallel for schedule(static) if (g->m * g->n > MC_SERIAL)
    for (int64_t i = 0; i < g->m; i++)
        memcpy(to + (size_t)i * row, from + (size_t)i * row, (size_t)g->n * size);
}

static mc_status multiply_one(mc_device *d, const mc_batched_gemm_call *g, int64_t i)
{
    if (g->add && g->add != g->c.data) copy_rows(g, i);
    return MC_K(gemm)(d, g->transpose_a, g->transpose_b, g->m, g->n, g->k, g->alpha,
                      step_matrix(g->a, i * g->a_step), step_matrix(g->b, i * g->b_step),
                      g->add ? 1 : 0, step_matrix(g->c, i * g->c_step));
}

mc_status MC_K(batched_gemm)(mc_device *d, const mc_batched_gemm_call *g)
{
    bool direct = g->a.dtype == MC_F32 && g->b.dtype == MC_F32 && g->c.dtype == MC_F32;
    int64_t each = g->m * g->n * g->k; /* direct: without scratch */
    bool beside = direct && each < SMALL_PRODUCT && g->batch * each > MC_SERIAL;
    mc_status status = MC_OK;
#pragma omp parallel for schedule(static) if (beside)
    for (int64_t i = 0; i < g->batch; i++) {
        mc_status one = multiply_one(d, g, i);
        if (!one) continue;
#pragma omp atomic write
        status = one;
    }
    return status;
}

mc_status MC_K(linear)(mc_device *d, const mc_linear_call *c)
{
    bool active = c->activation != MC_ACTIVATION_NONE;
    mc_matrix to = active && c->pre.data ? c->pre : c->y;
    mc_status status =
        MC_K(gemm)(d, false, true, c->rows, c->out, c->in, c->alpha, c->x, c->weight, 0, to);
    if (!status && (c->bias.data || active))
        status = MC_K(bias_activation)(d, c->rows, c->out, to, c->bias, c->activation, c->y);
    return status;
}

mc_status MC_K(linear_backward_input)(mc_device *d, const mc_linear_backward_call *c)
{
    mc_matrix dy = c->dy, dx = c->dx;
    mc_status status = c->dbias ? MC_K(column_sums)(d, c->rows, c->out, dy, c->dbias) : MC_OK;
    if (!status)
        status = MC_K(gemm)(d, false, false, c->rows, c->in, c->out, c->alpha, dy, c->weight,
                            c->beta, dx);
    if (!status && c->activation != MC_ACTIVATION_NONE)
        status =
            MC_K(activation_backward)(d, c->rows, c->in, c->activation, c->pre, 1, dx, dx, false);
    return status || !c->sums ? status : MC_K(column_sums)(d, c->rows, c->in, dx, c->sums);
}
