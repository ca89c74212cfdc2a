/* An iteration is three products of a batch. cuBLASLt fills a GPU with tiles of many matrices where
 * one of 1600 x 1600 leaves a part of the last round of tiles empty. The two symmetric products are
 * computed strip by strip: strip i of s has (i + 1) / s of the columns, so of three strips 2/3 is
 * computed. */
#include "core/optim/newton_schulz_internal.h"
#include <math.h>

enum { ITERATIONS = 5 };
static const double A = 3.4445, B = -4.775, C = 2.0315; /* of X, G X and G G X */
static const float LEAST_NORM = 1e-7f;

static int64_t least(const mc_newton_schulz *n)
{
    return n->rows < n->columns ? n->rows : n->columns;
}

mc_newton_schulz mc_newton_schulz_of(int64_t count, int64_t rows, int64_t columns)
{
    enum { LEAST = 768, TILE = 128 /* of products; the last strip has what is left over */ };
    mc_newton_schulz n = {count, rows, columns, 0};
    int64_t size = least(&n), strips = size < 2048 ? 3 : 4;
    n.strip = size < LEAST || size % 16 ? size : size / strips / TILE * TILE;
    return n;
}

/* The elements of G that are computed. */
static double computed(const mc_newton_schulz *n)
{
    double size = (double)least(n), strip = (double)n->strip, strips = floor(size / strip);
    double above = strip * (strips - 1); /* rows above the last strip */
    return strip * above * strips / 2 + (size - above) * size;
}

double mc_newton_schulz_flops(const mc_newton_schulz *n)
{
    double size = (double)least(n), all = (double)n->rows * (double)n->columns;
    double gram = computed(n) * (all / size), square = computed(n) * size;
    return 2.0 * ITERATIONS * (double)n->count * (gram + square + size * all);
}

static size_t size_of(const mc_newton_schulz *n, mc_dtype dtype, int64_t elements)
{
    return (size_t)(n->count * elements) * mc_dtype_size(dtype);
}

size_t mc_newton_schulz_bytes(const mc_newton_schulz *n, mc_dtype dtype)
{
    return size_of(n, dtype, 2 * least(n) * least(n) + n->rows * n->columns);
}

/* After k iterations memory has X / A^k, and this is A^k: so an iteration adds its product to what
 * is in memory with a factor of 1, as batched_gemm does. */
static double factor_after(int iterations) { return pow(A, iterations); }

double mc_newton_schulz_factor(void) { return factor_after(ITERATIONS); }

/* The matrices of an iteration. */
typedef struct buffers {
    mc_matrix x, y;         /* (rows, columns) */
    mc_matrix gram, square; /* (least, least) */
} buffers;

static mc_matrix from_element(mc_matrix x, int64_t first)
{
    x.data = (char *)x.data + first * (int64_t)mc_dtype_size(x.dtype);
    return x;
}

/* Computes products that are symmetric: strips of rows, each up to the column where it ends, and
 * mirrors the rest. `a_row`: elements from a row of op(a) to the next. */
static mc_status multiply_symmetric(mc_device *d, const mc_newton_schulz *n,
                                    const mc_batched_gemm_call *whole, int64_t a_row)
{
    int64_t size = least(n);
    mc_status status = MC_OK;
    for (int64_t first = 0, next; first < size && !status; first = next) {
        mc_batched_gemm_call call = *whole;
        next = size - first < 2 * n->strip ? size : first + n->strip;
        call.m = next - first;
        call.n = next;
        call.a = from_element(whole->a, first * a_row);
        call.c = from_element(whole->c, first * size);
        if (whole->add)
            call.add =
                (const char *)whole->add + first * size * (int64_t)mc_dtype_size(whole->c.dtype);
        status = d->kernels->batched_gemm(d, &call);
    }
    if (status || n->strip == size) return status;
    return d->kernels->muon_mirror(d, n->count, size, n->strip, whole->c, size * size);
}

/* gram = x x^T; for a tall x it is x^T x. */
static mc_status make_gram(mc_device *d, const mc_newton_schulz *n, const buffers *b)
{
    bool tall = n->rows > n->columns;
    const mc_batched_gemm_call call = {.batch = n->count,
                                       .transpose_a = tall,
                                       .transpose_b = !tall,
                                       .k = tall ? n->rows : n->columns,
                                       .alpha = 1,
                                       .a = b->x,
                                       .b = b->x,
                                       .c = b->gram,
                                       .a_step = n->rows * n->columns,
                                       .b_step = n->rows * n->columns,
                                       .c_step = least(n) * least(n)};
    return multiply_symmetric(d, n, &call, tall ? 1 : n->columns);
}

/* square = gram + factor gram gram. */
static mc_status make_square(mc_device *d, const mc_newton_schulz *n, const buffers *b,
                             double factor)
{
    int64_t size = least(n);
    const mc_batched_gemm_call call = {.batch = n->count,
                                       .k = size,
                                       .alpha = (float)factor,
                                       .a = b->gram,
                                       .b = b->gram,
                                       .add = b->gram.data,
                                       .c = b->square,
                                       .a_step = size * size,
                                       .b_step = size * size,
                                       .c_step = size * size};
    return multiply_symmetric(d, n, &call, size);
}

/* y = x + (B s^2 / A) Z x with Z = G + (C s^2 / B) G G and G = x x^T, where X = s x; for a tall x
 * the same from the right. */
static mc_status iterate(mc_device *d, const mc_newton_schulz *n, const buffers *b, double s)
{
    int64_t size = least(n), all = n->rows * n->columns;
    bool tall = n->rows > n->columns;
    mc_status status = make_gram(d, n, b);
    if (!status) status = make_square(d, n, b, C * s * s / B);
    if (status) return status;
    mc_batched_gemm_call call = {.batch = n->count,
                                 .m = n->rows,
                                 .n = n->columns,
                                 .k = size,
                                 .alpha = (float)(B * s * s / A),
                                 .a = tall ? b->x : b->square,
                                 .b = tall ? b->square : b->x,
                                 .add = b->x.data,
                                 .c = b->y,
                                 .a_step = tall ? all : size * size,
                                 .b_step = tall ? size * size : all,
                                 .c_step = all};
    return d->kernels->batched_gemm(d, &call);
}

/* Divides each matrix by its norm; `stats` (count) is device memory. */
static mc_status normalize(mc_device *d, const mc_newton_schulz *n, mc_matrix x,
                           mc_gradient_stats *stats)
{
    int64_t all = n->rows * n->columns;
    mc_status status = d->kernels->zero(d, stats, (size_t)n->count * sizeof *stats);
    for (int64_t i = 0; i < n->count && !status; i++) {
        mc_matrix one = from_element(x, i * all);
        status = d->kernels->gradient_stats(d, all, one, 2, 0, &stats[i]);
        if (!status) status = d->kernels->muon_normalize(d, all, &stats[i], LEAST_NORM, one);
    }
    return status;
}

mc_status mc_newton_schulz_run(mc_device *d, const mc_newton_schulz *n, mc_matrix *x)
{
    int64_t size = least(n);
    size_t squares = size_of(n, x->dtype, size * size),
           bytes = size_of(n, x->dtype, n->rows * n->columns),
           sums = (size_t)n->count * sizeof(mc_gradient_stats);
    mc_gradient_stats *stats = d->alloc(d, sums);
    char *memory = d->alloc(d, 2 * squares);
    buffers b = {.x = *x,
                 .y = {d->alloc(d, bytes), x->dtype, n->columns},
                 .gram = {memory, x->dtype, size},
                 .square = {memory ? memory + squares : NULL, x->dtype, size}};
    b.x.stride = n->columns;
    mc_status status = stats && memory && b.y.data ? normalize(d, n, b.x, stats) : MC_ERR_NOMEM;
    for (int i = 0; i < ITERATIONS && !status; i++) {
        status = iterate(d, n, &b, factor_after(i));
        mc_matrix swap = b.x;
        b.x = b.y;
        b.y = swap;
    }
    *x = b.x;
    d->free(d, b.y.data, bytes);
    d->free(d, memory, 2 * squares);
    d->free(d, stats, sums);
    return status;
}
