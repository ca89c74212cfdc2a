/* The general operations and the losses of losses.h, as rows: see op_harness.h. Included by
 * op_rows.h. */
#ifndef MC_TESTS_OP_ROWS_GENERAL_H
#define MC_TESTS_OP_ROWS_GENERAL_H

#include "tests/ops/op_harness.h"

/* Values without a gradient. */
static op_input *add_constants(op_call *c, mc_dtype dtype, mc_shape shape, double low, double high)
{
    op_input *in = add_input(c, INDEX, dtype, shape);
    random_values(dtype == MC_F32 ? MC_F32 : c->values, in->v, in->count, low, high, 0);
    set_elements(in->dtype, in->data, in->v, in->count);
    return in;
}

/* The three sizes around a dimension of (n[0], n[1], n[2]). */
typedef struct around {
    int64_t outer, size, inner;
} around;

static around around_of(const op_call *c)
{
    const int64_t *n = c->n;
    return c->o->dim == 0   ? (around){1, n[0], n[1] * n[2]}
           : c->o->dim == 1 ? (around){n[0], n[1], n[2]}
                            : (around){n[0] * n[1], n[2], 1};
}

/* The dimension of that shape counted from 0. */
static int dim_of(const op_call *c) { return c->o->dim < 0 ? c->o->dim + 3 : c->o->dim; }

/* ---- slice: three sizes, first, count -------------------------------------------------------- */

static void declare_slice(op_call *c)
{
    mc_shape shape = MC_SHAPE(c->n[0], c->n[1], c->n[2]);
    add_values(c, VALUES, shape, -2, 2);
    shape.dim[dim_of(c)] = c->n[4];
    set_output(c, c->dtype, shape);
}

static mc_tensor *run_slice(mc_tape *t, op_call *c)
{
    return mc_slice(t, c->in[0].x, c->o->dim, c->n[3], c->n[4]);
}

static void slice_reference(const op_call *c, double *y)
{
    around a = around_of(c);
    int64_t count = c->n[4];
    for (int64_t i = 0; i < c->out_count; i++) {
        int64_t inner = i % a.inner, at = i / a.inner % count, outer = i / a.inner / count;
        y[i] = c->in[0].v[(outer * a.size + c->n[3] + at) * a.inner + inner];
    }
}

#define SLICE(text, which)                                                                      \
    {                                                                                           \
        .name = text, .declare = declare_slice, .run = run_slice, .reference = slice_reference, \
        .picks_rows = true, .o = {.dim = which}, .perf = {2048, 2048, 4, 1, 2}, .sizes = {      \
            {3, 4, 5, 1, 2},                                                                    \
            {4, 4, 4, 0, 4},                                                                    \
            {5, 5, 5, 4, 1},                                                                    \
            {6, 7, 9, 2, 0},                                                                    \
            {17, 33, 40, 8, 8}                                                                  \
        }                                                                                       \
    }

/* ---- concat: three sizes, the second tensor's in that dimension, how many -------------------- */

static void declare_concat(op_call *c)
{
    mc_shape shape = MC_SHAPE(c->n[0], c->n[1], c->n[2]);
    int dim = dim_of(c);
    int64_t first = shape.dim[dim], count = c->n[4];
    add_values(c, VALUES, shape, -2, 2);
    shape.dim[dim] = c->n[3];
    add_values(c, VALUES, shape, -2, 2);
    shape.dim[dim] = (count + 1) / 2 * first + count / 2 * c->n[3];
    set_output(c, c->dtype, shape);
}

/* The two in turn. */
static mc_tensor *run_concat(mc_tape *t, op_call *c)
{
    mc_tensor *xs[64];
    for (int i = 0; i < c->n[4]; i++) xs[i] = c->in[i % 2].x;
    return mc_concat(t, (int)c->n[4], xs, c->o->dim);
}

static void concat_reference(const op_call *c, double *y)
{
    around a = around_of(c);
    for (int64_t outer = 0; outer < a.outer; outer++)
        for (int64_t k = 0; k < c->n[4]; k++) {
            int64_t elements = (k % 2 ? c->n[3] : a.size) * a.inner;
            memcpy(y, c->in[k % 2].v + outer * elements, (size_t)elements * sizeof *y);
            y += elements;
        }
}

#define CONCAT(text, which)                                                                        \
    {                                                                                              \
        .name = text, .declare = declare_concat, .run = run_concat, .reference = concat_reference, \
        .gradient_roundings = 10, .o = {.dim = which}, .picks_rows = true,                         \
        .perf = {2048, 1024, 4, 1024, 2}, .sizes = {                                               \
            {3, 4, 5, 2, 2},                                                                       \
            {2, 3, 4, 1, 3},                                                                       \
            {3, 1, 7, 2, 1},                                                                       \
            {4, 0, 3, 5, 2},                                                                       \
            {2, 3, 2, 4, 20},                                                                      \
            {16, 8, 40, 24, 2}                                                                     \
        }                                                                                          \
    }

/* ---- transpose: four sizes ------------------------------------------------------------------- */

static void declare_transpose(op_call *c)
{
    mc_shape shape = MC_SHAPE(c->n[0], c->n[1], c->n[2], c->n[3]);
    add_values(c, VALUES, shape, -2, 2);
    int64_t kept = shape.dim[c->o->dim];
    shape.dim[c->o->dim] = shape.dim[c->o->other_dim];
    shape.dim[c->o->other_dim] = kept;
    set_output(c, c->dtype, shape);
}

static mc_tensor *run_transpose(mc_tape *t, op_call *c)
{
    return mc_transpose(t, c->in[0].x, c->o->dim, c->o->other_dim - 4);
}

static void transpose_reference(const op_call *c, double *y)
{
    const int64_t *to = c->out_shape.dim;
    for (int64_t i = 0; i < c->out_count; i++) {
        int64_t at[4], rest = i;
        for (int k = 3; k >= 0; k--, rest /= to[k + 1]) at[k] = rest % to[k];
        int64_t kept = at[c->o->dim];
        at[c->o->dim] = at[c->o->other_dim];
        at[c->o->other_dim] = kept;
        y[i] = c->in[0].v[((at[0] * c->n[1] + at[1]) * c->n[2] + at[2]) * c->n[3] + at[3]];
    }
}

#define TRANSPOSE(text, a, b)                                              \
    {                                                                      \
        .name = text, .declare = declare_transpose, .run = run_transpose,  \
        .reference = transpose_reference, .o = {.dim = a, .other_dim = b}, \
        .perf = {8, 128, 128, 64}, .sizes = {                              \
            {1, 1, 1, 1},                                                  \
            {2, 3, 4, 5},                                                  \
            {3, 0, 2, 2},                                                  \
            {5, 8, 3, 16},                                                 \
            {2, 17, 9, 33}                                                 \
        }                                                                  \
    }

/* ---- matmul: batch, m, n, k ------------------------------------------------------------------ */

/* (2, batch, rows, columns), or one matrix for all. */
static mc_shape operand_shape(const op_call *c, bool single, bool transposed, int64_t rows,
                              int64_t columns)
{
    mc_shape one = transposed ? MC_SHAPE(columns, rows) : MC_SHAPE(rows, columns);
    return single ? one : MC_SHAPE(2, c->n[0], one.dim[0], one.dim[1]);
}

static void declare_matmul(op_call *c)
{
    const op_options *o = c->o;
    double range = 2 / sqrt((double)fmax(1, (double)c->n[3]));
    add_values(c, o->weights, operand_shape(c, o->single_a, o->transpose_a, c->n[1], c->n[3]), -1,
               1);
    add_values(c, o->weights, operand_shape(c, o->single_b, o->transpose_b, c->n[3], c->n[2]),
               -range, range);
    set_output(c, c->dtype, operand_shape(c, o->single_a && o->single_b, false, c->n[1], c->n[2]));
}

static mc_tensor *run_matmul(mc_tape *t, op_call *c)
{
    return mc_matmul(t, c->in[0].x, c->in[1].x, c->o->transpose_a, c->o->transpose_b);
}

static void matmul_reference(const op_call *c, double *y)
{
    const op_options *o = c->o;
    int64_t m = c->n[1], n = c->n[2], k = c->n[3];
    for (int64_t i = 0; i < c->out_count; i++) {
        int64_t at = i / (m * n), row = i / n % m, column = i % n;
        const double *a = c->in[0].v + (o->single_a ? 0 : at * m * k);
        const double *b = c->in[1].v + (o->single_b ? 0 : at * n * k);
        y[i] = 0;
        for (int64_t l = 0; l < k; l++)
            y[i] += a[o->transpose_a ? l * m + row : row * k + l] *
                    b[o->transpose_b ? column * k + l : l * n + column];
    }
}

static double matmul_flops(const op_call *c)
{
    double one = 2.0 * (double)c->n[1] * (double)c->n[2] * (double)c->n[3];
    return one * (c->o->single_a && c->o->single_b ? 1 : 2 * (double)c->n[0]);
}

/* Sums over a batch into one matrix round in 16 bits with every product that is added. */
#define MATMUL(text, ...)                                                                          \
    {                                                                                              \
        .name = text, .declare = declare_matmul, .run = run_matmul, .reference = matmul_reference, \
        .flops = matmul_flops, .roundings = 2, .gradient_roundings = 9, .tolerance = 2e-6,         \
        .o = {__VA_ARGS__}, .perf = {32, 512, 512, 64}, .sizes = {                                 \
            {1, 1, 1, 1},                                                                          \
            {3, 2, 5, 4},                                                                          \
            {2, 3, 4, 0},                                                                          \
            {0, 3, 4, 5},                                                                          \
            {2, 0, 4, 3},                                                                          \
            {2, 17, 9, 33},                                                                        \
            {4, 24, 40, 16}                                                                        \
        }                                                                                          \
    }

/* ---- functions of rows ----------------------------------------------------------------------- */

static void softmax_reference(const op_call *c, double *y)
{
    for (int64_t r = 0; r < c->n[0]; r++, y += c->n[1]) {
        const double *x = c->in[0].v + r * c->n[1];
        double sum = 0;
        for (int64_t i = 0; i < c->n[1]; i++) sum += exp(x[i]);
        for (int64_t i = 0; i < c->n[1]; i++)
            y[i] = c->o->unary == mc_softmax ? exp(x[i]) / sum : x[i] - log(sum);
    }
}

static void declare_positive(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), 0.1, 4);
    set_output(c, c->dtype, MC_SHAPE(c->n[0], c->n[1]));
}

static mc_tensor *run_normalize(mc_tape *t, op_call *c)
{
    return mc_normalize_rows(t, c->in[0].x, c->o->factor);
}

static void normalize_reference(const op_call *c, double *y)
{
    for (int64_t r = 0; r < c->n[0]; r++, y += c->n[1]) {
        const double *x = c->in[0].v + r * c->n[1];
        double length = sqrt(dot(x, x, c->n[1]));
        for (int64_t i = 0; i < c->n[1]; i++) y[i] = x[i] / fmax(length, (double)c->o->factor);
    }
}

/* The gradient of a row of one column is 0, as the difference of two products of |dy| / |x|, which
 * is up to 10 here and rounded by 2^-24; the allowance is of a tenth of |dy|. */
#define NORMALIZE(text, ...)                                                          \
    {                                                                                 \
        .name = text, .declare = declare_positive, .run = run_normalize,              \
        .reference = normalize_reference, .gradient_tolerance = 1e-5, .roundings = 2, \
        .gradient_roundings = 2, .o = {__VA_ARGS__}, .perf = {4096, 768}, .sizes = {  \
            {1, 1},                                                                   \
            {3, 7},                                                                   \
            {0, 5},                                                                   \
            {1, 300},                                                                 \
            {19, 65},                                                                 \
            {64, 2049}                                                                \
        }                                                                             \
    }

/* ---- sums and means: three sizes ------------------------------------------------------------- */

static void declare_reduce(op_call *c)
{
    const int64_t *n = c->n;
    int dim = dim_of(c);
    add_values(c, VALUES, MC_SHAPE(n[0], n[1], n[2]), -2, 2);
    set_output(c, c->dtype, MC_SHAPE(n[dim == 0 ? 1 : 0], n[dim == 2 ? 1 : 2]));
}

static mc_tensor *run_reduce(mc_tape *t, op_call *c)
{
    return (c->o->mean ? mc_mean : mc_sum)(t, c->in[0].x, c->o->dim);
}

static void reduce_reference(const op_call *c, double *y)
{
    around a = around_of(c);
    for (int64_t i = 0; i < c->out_count; i++) {
        double sum = 0;
        for (int64_t k = 0; k < a.size; k++)
            sum += c->in[0].v[(i / a.inner * a.size + k) * a.inner + i % a.inner];
        y[i] = c->o->mean ? sum / (double)a.size : sum;
    }
}

#define REDUCE(text, ...)                                                                          \
    {                                                                                              \
        .name = text, .declare = declare_reduce, .run = run_reduce, .reference = reduce_reference, \
        .tolerance = 2e-6, .o = {__VA_ARGS__}, .perf = {64, 1024, 256}, .sizes = {                 \
            {1, 1, 1},                                                                             \
            {3, 4, 5},                                                                             \
            {2, 7, 300},                                                                           \
            {9, 300, 2},                                                                           \
            {70, 3, 17},                                                                           \
            {6, 40, 64}                                                                            \
        }                                                                                          \
    }

/* ---- means of sequences: batch, capacity a multiple of, columns ------------------------------ */

static void declare_pool(op_call *c)
{
    set_batch(c, c->n[0], c->n[1]);
    add_values(c, VALUES, MC_SHAPE(c->lengths.capacity, c->n[2]), -1, 1);
    set_output(c, c->dtype, MC_SHAPE(c->lengths.count, c->n[2]));
}

static mc_tensor *run_pool(mc_tape *t, op_call *c) { return mc_mean_pool(t, c->in[0].x); }

static void pool_reference(const op_call *c, double *y)
{
    const mc_lengths *l = &c->lengths;
    int64_t columns = c->n[2];
    memset(y, 0, (size_t)c->out_count * sizeof *y);
    for (int s = 0; s < l->count; s++)
        for (int64_t row = l->offset[s]; row < l->offset[s + 1]; row++)
            for (int64_t i = 0; i < columns; i++)
                y[s * columns + i] += c->in[0].v[row * columns + i] / l->length[s];
}

/* Whole numbers, no two of 101 rows alike in a column, which 16 bits hold exactly: where two rows
 * share the maximum there is no slope. */
static void declare_max_pool(op_call *c)
{
    declare_pool(c);
    op_input *in = &c->in[0];
    for (int64_t i = 0; i < in->count; i++)
        in->v[i] = (double)((i / c->n[2] * 37 + i % c->n[2] * 11) % 101 - 50);
    set_elements(in->dtype, in->data, in->v, in->count);
}

static mc_tensor *run_max_pool(mc_tape *t, op_call *c) { return mc_max_pool(t, c->in[0].x); }

static void max_pool_reference(const op_call *c, double *y)
{
    const mc_lengths *l = &c->lengths;
    int64_t columns = c->n[2];
    memset(y, 0, (size_t)c->out_count * sizeof *y);
    for (int s = 0; s < l->count; s++)
        for (int64_t row = l->offset[s]; row < l->offset[s + 1]; row++)
            for (int64_t i = 0; i < columns; i++) {
                double v = c->in[0].v[row * columns + i], *best = &y[s * columns + i];
                if (row == l->offset[s] || v > *best) *best = v;
            }
}

/* ---- one and two elements -------------------------------------------------------------------- */

static void function_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++) {
        double x = c->in[0].v[i];
        y[i] = c->o->unary == mc_exp    ? exp(x)
               : c->o->unary == mc_ln   ? log(x)
               : c->o->unary == mc_sqrt ? sqrt(x)
                                        : 1 / (1 + exp(-x));
    }
}

/* Divisors away from zero. */
static void declare_quotient(op_call *c)
{
    int64_t m = c->n[1], n = c->n[2];
    mc_shape whole = MC_SHAPE(2, m, n),
             part[] = {whole, MC_SHAPE(n), MC_SHAPE(m, n), {.ndim = 0}, MC_SHAPE(n)};
    mc_shape b = part[c->n[0]];
    bool first = c->n[0] == ROW_FIRST;
    add_values(c, VALUES, first ? b : whole, -2, 2);
    add_values(c, c->o->weights, first ? whole : b, 0.5, 2);
    set_output(c, c->dtype, whole);
}

static void quotient_reference(const op_call *c, double *y)
{
    const op_input *a = &c->in[0], *b = &c->in[1];
    for (int64_t i = 0; i < c->out_count; i++) {
        double va = a->v[i % a->count], vb = b->v[i % b->count];
        y[i] = c->o->binary == mc_sub ? va - vb : va / vb;
    }
}

static void zero_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++) y[i] = 0 * c->in[0].v[i];
}

#define QUOTIENT(text, ...)                                                                     \
    {                                                                                           \
        .name = text, .declare = declare_quotient, .run = run_binary,                           \
        .reference = quotient_reference, .o = {__VA_ARGS__}, .tolerance = 2e-6, .roundings = 2, \
        .perf = {ROW, 2048, 3072}, .sizes = {                                                   \
            {EQUAL, 3, 7},                                                                      \
            {ROW, 5, 33},                                                                       \
            {MATRIX, 4, 9},                                                                     \
            {SCALAR, 3, 5},                                                                     \
            {ROW_FIRST, 6, 17},                                                                 \
            {EQUAL, 0, 4},                                                                      \
            {ROW, 0, 4},                                                                        \
            {MATRIX, 30, 1000}                                                                  \
        }                                                                                       \
    }

#define FUNCTION(text, declare_it, fn)                                                          \
    {                                                                                           \
        .name = text, .declare = declare_it, .run = run_unary, .reference = function_reference, \
        .o = {.unary = fn}, .perf = {4096, 3072}, .sizes = {                                    \
            {1, 1},                                                                             \
            {3, 7},                                                                             \
            {0, 5},                                                                             \
            {1, 300},                                                                           \
            {19, 65},                                                                           \
            {64, 2049}                                                                          \
        }                                                                                       \
    }

/* ---- losses: rows, columns ------------------------------------------------------------------- */

static void declare_pairs(op_call *c)
{
    mc_shape shape = MC_SHAPE(c->n[0], c->n[1]);
    add_values(c, VALUES, shape, -3, 3);
    if (c->o->run_pairs == mc_mse_loss) {
        add_values(c, VALUES, shape, -3, 3);
    } else {
        add_constants(c, c->dtype, shape, 0, 1);
        if (c->o->weighted) add_constants(c, MC_F32, MC_SHAPE(c->n[1]), 0.5, 3);
    }
    set_output(c, MC_F32, MC_SHAPE(2));
}

static mc_tensor *run_pairs(mc_tape *t, op_call *c)
{
    if (c->o->run_pairs) return c->o->run_pairs(t, c->in[0].x, c->in[1].x);
    return mc_bce_loss(t, c->in[0].x, c->in[1].x, c->o->weighted ? c->in[2].x : NULL);
}

static void pairs_reference(const op_call *c, double *y)
{
    y[0] = 0;
    y[1] = (double)c->in[0].count;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        double x = c->in[0].v[i], t = c->in[1].v[i];
        double p = c->o->weighted ? c->in[2].v[i % c->n[1]] : 1;
        y[0] +=
            c->o->run_pairs ? (x - t) * (x - t) : (1 - t) * x + (1 + (p - 1) * t) * log1p(exp(-x));
    }
}

#define PAIRS(text, ...)                                                                        \
    {                                                                                           \
        .name = text, .declare = declare_pairs, .run = run_pairs, .reference = pairs_reference, \
        .o = {__VA_ARGS__}, .perf = {4096, 3072}, .sizes = {                                    \
            {1, 1},                                                                             \
            {3, 7},                                                                             \
            {0, 3},                                                                             \
            {33, 100},                                                                          \
            {3, 5000}                                                                           \
        }                                                                                       \
    }

/* One row's loss, and how much it counts. */
static void row_loss(const op_call *c, int64_t r, double out[2])
{
    int64_t classes = c->n[1], label = (int64_t)c->in[1].v[r];
    const double *x = c->in[0].v + r * classes, *w = c->o->weighted ? c->in[2].v : NULL;
    double sum = 0, smooth = 0, e = (double)c->o->smoothing;
    int64_t ignored = c->o->ignore_index == MC_INT_ZERO ? 0 : -100;
    out[0] = out[1] = 0;
    if (label == ignored) return;
    for (int64_t i = 0; i < classes; i++) sum += exp(x[i]);
    for (int64_t i = 0; i < classes; i++) smooth += (w ? w[i] : 1) * (log(sum) - x[i]);
    out[1] = w ? w[label] : 1;
    out[0] = (1 - e) * out[1] * (log(sum) - x[label]) + e / (double)classes * smooth;
}

static void declare_row_losses(op_call *c)
{
    int64_t rows = c->n[0], classes = c->n[1];
    add_values(c, VALUES, MC_SHAPE(rows, classes), -3, 3);
    op_input *labels = add_index(c, INDEX, c->o->index_dtype, rows, classes);
    for (int64_t i = 0; i < rows && c->o->ignore_index; i++)
        if (random_bits() % 3 == 0)
            set_index(labels, i, c->o->ignore_index == MC_INT_ZERO ? 0 : c->o->ignore_index);
    if (c->o->weighted) add_constants(c, MC_F32, MC_SHAPE(classes), 0.25, 3);
    set_output(c, MC_F32, c->o->mean ? MC_SHAPE(2) : MC_SHAPE(rows));
}

static mc_tensor *run_row_losses(mc_tape *t, op_call *c)
{
    mc_cross_entropy_options o = {.ignore_index = c->o->ignore_index,
                                  .label_smoothing = c->o->smoothing,
                                  .class_weights = c->o->weighted ? c->in[2].x : NULL};
    return (c->o->mean ? mc_cross_entropy : mc_cross_entropy_rows)(t, c->in[0].x, c->in[1].x, &o);
}

static void row_losses_reference(const op_call *c, double *y)
{
    double one[2], all[2] = {0, 0};
    for (int64_t r = 0; r < c->n[0]; r++) {
        row_loss(c, r, one);
        all[0] += one[0];
        all[1] += one[1];
        if (!c->o->mean) y[r] = one[0];
    }
    if (c->o->mean) memcpy(y, all, sizeof all);
}

/* With one class the gradient is 0: of terms up to 3 |dy|, each rounded by 2^-24, where the
 * allowance is of a tenth of |dy|. */
#define ROW_LOSSES(text, ...)                                                     \
    {                                                                             \
        .name = text, .declare = declare_row_losses, .run = run_row_losses,       \
        .reference = row_losses_reference, .o = {__VA_ARGS__}, .tolerance = 2e-6, \
        .gradient_tolerance = 5e-6, .perf = {1024, 30522}, .sizes = {             \
            {1, 1},                                                               \
            {1, 2},                                                               \
            {5, 7},                                                               \
            {0, 3},                                                               \
            {33, 100},                                                            \
            {3, 5000}                                                             \
        }                                                                         \
    }

/* rows, columns; each element a loss, half of which count */
static void declare_from_rows(op_call *c)
{
    mc_shape shape = MC_SHAPE(c->n[0], c->n[1]);
    add_values(c, VALUES, shape, -1, 3);
    if (c->o->weighted) add_constants(c, MC_F32, shape, 0, 2);
    set_output(c, MC_F32, MC_SHAPE(2));
}

static mc_tensor *run_from_rows(mc_tape *t, op_call *c)
{
    return mc_loss_from_rows(t, c->in[0].x, c->o->weighted ? c->in[1].x : NULL);
}

static void from_rows_reference(const op_call *c, double *y)
{
    y[0] = y[1] = 0;
    for (int64_t i = 0; i < c->in[0].count; i++) {
        y[0] += c->in[0].v[i];
        y[1] += c->o->weighted ? c->in[1].v[i] : 1;
    }
}

#define FROM_ROWS(text, ...)                                                                   \
    {                                                                                          \
        .name = text, .declare = declare_from_rows, .run = run_from_rows,                      \
        .reference = from_rows_reference, .o = {__VA_ARGS__}, .perf = {4096, 3072}, .sizes = { \
            {1, 1},                                                                            \
            {3, 7},                                                                            \
            {0, 3},                                                                            \
            {33, 100},                                                                         \
            {3, 5000}                                                                          \
        }                                                                                      \
    }

#endif
