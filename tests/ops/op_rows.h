/* Every operation, one row each: what it is given, how it is called, and what it means in double.
 * See op_harness.h. The programs that run the rows choose the devices. */
#ifndef MC_TESTS_OP_ROWS_H
#define MC_TESTS_OP_ROWS_H

#include "tests/ops/op_harness.h"

/* ---- linear: sizes rows, in, out ------------------------------------------------------------- */

static double activated(mc_activation a, double x)
{
    switch (a) {
    case MC_ACTIVATION_RELU: return x > 0 ? x : 0;
    case MC_ACTIVATION_GELU: return x * 0.5 * erfc(-x / sqrt(2));
    case MC_ACTIVATION_GELU_NEW:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MC_ACTIVATION_TANH: return tanh(x);
    case MC_ACTIVATION_SILU: return x / (1 + exp(-x));
    case MC_ACTIVATION_NONE: break;
    }
    return x;
}

/* With ReLU all terms of a product have one sign, so that none is near its kink. */
static void alternate_signs(op_input *in, int64_t columns)
{
    for (int64_t i = 0; i < in->count; i++) {
        if (i / columns % 2) in->v[i] = -in->v[i];
        set_element(in->dtype, in->data, i, in->v[i]);
    }
}

static void declare_linear(op_call *c)
{
    int64_t rows = c->n[0], in = c->n[1], out = c->n[2];
    double range = 2 / sqrt((double)in);
    bool kink = c->o->activation == MC_ACTIVATION_RELU;
    op_input *x = add_values(c, VALUES, MC_SHAPE(rows, in), kink ? 0.5 : -1, 1);
    op_input *w = add_values(c, c->o->weights, MC_SHAPE(out, in), kink ? range / 2 : -range, range);
    if (kink) alternate_signs(x, in);
    if (kink) alternate_signs(w, in);
    double b = kink ? 0.1 : 1;
    if (c->o->bias) add_values(c, c->o->weights, MC_SHAPE(out), -b, b);
    set_output(c, c->dtype, MC_SHAPE(rows, out));
}

static mc_tensor *run_linear(mc_tape *t, op_call *c)
{
    mc_tensor *bias = c->o->bias ? c->in[2].x : NULL;
    if (c->o->factor != 0)
        return mc_scaled_linear(t, c->in[0].x, c->in[1].x, bias, c->o->activation, c->o->factor);
    return mc_fused_linear(t, c->in[0].x, c->in[1].x, bias, c->o->activation);
}

/* 1 where the row has none. */
static double factor_of(const op_call *c) { return c->o->factor != 0 ? (double)c->o->factor : 1; }

static void linear_reference(const op_call *c, double *y)
{
    int64_t rows = c->n[0], in = c->n[1], out = c->n[2];
    const double *x = c->in[0].v, *w = c->in[1].v, *b = c->o->bias ? c->in[2].v : NULL;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++)
            y[r * out + o] = activated(
                c->o->activation, factor_of(c) * dot(x + r * in, w + o * in, in) + (b ? b[o] : 0));
}

static double linear_flops(const op_call *c)
{
    return 2.0 * (double)c->n[0] * (double)c->n[1] * (double)c->n[2];
}

#define LINEAR(text, ...)                                                                          \
    {                                                                                              \
        .name = text, .declare = declare_linear, .run = run_linear, .reference = linear_reference, \
        .flops = linear_flops, .roundings = 2, .gradient_roundings = 3, .o = {__VA_ARGS__},        \
        .sizes = {{1, 1, 1},  {3, 7, 5},   {0, 4, 3},    {17, 33, 9},                              \
                  {3, 17, 1}, {1, 64, 16}, {70, 96, 130}},                                         \
        .perf = {                                                                                  \
            1024,                                                                                  \
            768,                                                                                   \
            3072                                                                                   \
        }                                                                                          \
    }

/* ---- residual norm: rows, columns ------------------------------------------------------------ */

static const float norm_eps = 1e-5f;

static mc_dropout_mask mask_of(const op_call *c)
{
    return (mc_dropout_mask){.p = c->o->dropout, .seed = c->ctx->seed, .offset = c->dropout_offset};
}

static void declare_norm(op_call *c)
{
    int64_t rows = c->n[0], columns = c->n[1];
    add_values(c, VALUES, MC_SHAPE(rows, columns), -2, 2);
    add_values(c, c->o->weights, MC_SHAPE(columns), 0.5, 1.5);
    if (!c->o->rms) add_values(c, c->o->weights, MC_SHAPE(columns), -1, 1);
    if (c->o->second) add_values(c, VALUES, MC_SHAPE(rows, columns), -2, 2);
    set_output(c, c->dtype, MC_SHAPE(rows, columns));
}

static op_input *norm_bias(op_call *c) { return c->o->rms ? NULL : &c->in[2]; }
static op_input *norm_branch(op_call *c) { return c->o->second ? &c->in[c->inputs - 1] : NULL; }

static mc_tensor *run_norm(mc_tape *t, op_call *c)
{
    op_input *f = norm_branch(c), *bias = norm_bias(c);
    return mc_residual_norm(t, c->in[0].x, f ? f->x : NULL, c->o->dropout, c->in[1].x,
                            bias ? bias->x : NULL, norm_eps);
}

static void norm_reference(const op_call *c, double *y)
{
    int64_t rows = c->n[0], columns = c->n[1];
    const op_input *f = &c->in[c->inputs - 1];
    double *s = doubles(columns);
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < columns; i++) {
            int64_t at = r * columns + i;
            s[i] = c->in[0].v[at];
            if (c->o->second) s[i] += f->v[at] * reference_dropout(mask_of(c), (uint64_t)at);
            if (!c->o->rms) mean += s[i];
        }
        mean /= (double)columns;
        for (int64_t i = 0; i < columns; i++) variance += (s[i] - mean) * (s[i] - mean);
        double rstd = 1 / sqrt(variance / (double)columns + (double)norm_eps);
        for (int64_t i = 0; i < columns; i++)
            y[r * columns + i] =
                (s[i] - mean) * rstd * c->in[1].v[i] + (c->o->rms ? 0 : c->in[2].v[i]);
    }
    free(s);
}

#define NORM(text, ...)                                                                      \
    {                                                                                        \
        .name = text, .declare = declare_norm, .run = run_norm, .reference = norm_reference, \
        .tolerance = 2e-6, .roundings = 3, .gradient_roundings = 4, .o = {__VA_ARGS__},      \
        .sizes = {{1, 5}, {3, 7}, {0, 5}, {33, 17}, {1, 100}, {40, 768}}, .perf = {          \
            4096,                                                                            \
            768                                                                              \
        }                                                                                    \
    }

/* ---- the residual stream: rows, columns ------------------------------------------------------ */

/* Both of its results at once: the norm and the sum that was normalised. */
static mc_tensor *run_stream(mc_tape *t, op_call *c)
{
    mc_tensor *x = c->in[0].x, *sum = NULL;
    op_input *f = norm_branch(c), *bias = norm_bias(c);
    if (f) x = mc_residual_defer(t, x, f->x, c->o->dropout);
    mc_tensor *y = mc_stream_norm(t, x, c->in[1].x, bias ? bias->x : NULL, norm_eps, &sum);
    return y ? mc_add(t, y, sum) : NULL;
}

static double stream_sum(const op_call *c, const op_input *f, int64_t i)
{
    return c->in[0].v[i] + (f ? f->v[i] * reference_dropout(mask_of(c), (uint64_t)i) : 0);
}

static void stream_reference(const op_call *c, double *y)
{
    norm_reference(c, y);
    for (int64_t i = 0; i < c->out_count; i++)
        y[i] += stream_sum(c, c->o->second ? &c->in[c->inputs - 1] : NULL, i);
}

static void declare_sum(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -2, 2);
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -2, 2);
    set_output(c, c->dtype, MC_SHAPE(c->n[0], c->n[1]));
}

static mc_tensor *run_sum(mc_tape *t, op_call *c)
{
    return mc_residual_sum(t, mc_residual_defer(t, c->in[0].x, c->in[1].x, c->o->dropout));
}

static void sum_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++) y[i] = stream_sum(c, &c->in[1], i);
}

/* One rounding more than a norm's: that of adding the two. */
#define STREAM(text, ...)                                                                        \
    {                                                                                            \
        .name = text, .declare = declare_norm, .run = run_stream, .reference = stream_reference, \
        .tolerance = 2e-6, .roundings = 4, .gradient_roundings = 5, .o = {__VA_ARGS__},          \
        .sizes = {{1, 5}, {3, 7}, {0, 5}, {33, 17}, {1, 100}, {40, 768}}, .perf = {              \
            4096,                                                                                \
            768                                                                                  \
        }                                                                                        \
    }

#define SUM(text, ...)                                                                    \
    {                                                                                     \
        .name = text, .declare = declare_sum, .run = run_sum, .o = {__VA_ARGS__},         \
        .reference = sum_reference, .sizes = {{1, 1}, {3, 7}, {0, 5}, {17, 3}, {33, 65}}, \
        .perf = {                                                                         \
            4096,                                                                         \
            768                                                                           \
        }                                                                                 \
    }

#define CAST(text, dtype)                                                                    \
    {                                                                                        \
        .name = text, .declare = declare_cast, .run = run_cast, .reference = cast_reference, \
        .tolerance = 1e-6, .roundings = 1, .gradient_roundings = 1, .o = {.to = dtype},      \
        .perf = {4096, 768}, .sizes = {                                                      \
            {1, 5},                                                                          \
            {3, 7},                                                                          \
            {0, 5},                                                                          \
            {33, 17},                                                                        \
            {40, 768}                                                                        \
        }                                                                                    \
    }

/* ---- one input: rows, columns ---------------------------------------------------------------- */

static void declare_unary(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -4, 4);
    set_output(c, c->dtype, MC_SHAPE(c->n[0], c->n[1]));
}

static mc_tensor *run_unary(mc_tape *t, op_call *c) { return c->o->unary(t, c->in[0].x); }

static void unary_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++) y[i] = activated(c->o->activation, c->in[0].v[i]);
}

static mc_tensor *run_scale(mc_tape *t, op_call *c)
{
    return mc_scale(t, c->in[0].x, c->o->factor);
}

static void scale_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++) y[i] = (double)c->o->factor * c->in[0].v[i];
}

static void declare_cast(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -4, 4);
    set_output(c, c->o->to, MC_SHAPE(c->n[0], c->n[1]));
}

static mc_tensor *run_cast(mc_tape *t, op_call *c) { return mc_cast(t, c->in[0].x, c->o->to); }

static void cast_reference(const op_call *c, double *y)
{
    memcpy(y, c->in[0].v, (size_t)c->out_count * sizeof *y);
}

static mc_tensor *run_relu_dropout(mc_tape *t, op_call *c)
{
    return mc_relu_dropout(t, c->in[0].x, c->o->dropout);
}

static void relu_dropout_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++)
        y[i] = fmax(c->in[0].v[i], 0) * reference_dropout(mask_of(c), (uint64_t)i);
}

static mc_tensor *run_dropout(mc_tape *t, op_call *c)
{
    return mc_dropout(t, c->in[0].x, c->o->dropout);
}

static void dropout_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++)
        y[i] = c->in[0].v[i] * reference_dropout(mask_of(c), (uint64_t)i);
}

static void declare_reshape(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -4, 4);
    set_output(c, c->dtype, MC_SHAPE(c->n[1], 1, c->n[0]));
}

static mc_tensor *run_reshape(mc_tape *t, op_call *c)
{
    return mc_reshape(t, c->in[0].x, MC_SHAPE(c->n[1], 1, c->n[0]));
}

static void declare_argmax(op_call *c)
{
    op_input *x = add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -4, 4);
    for (int64_t i = 0; i < x->count; i++) { /* few different values, so that some are equal */
        x->v[i] = rint(x->v[i]);
        set_element(x->dtype, x->data, i, x->v[i]);
    }
    set_output(c, MC_I32, MC_SHAPE(c->n[0]));
}

static void argmax_reference(const op_call *c, double *y)
{
    for (int64_t r = 0; r < c->n[0]; r++) {
        const double *x = c->in[0].v + r * c->n[1];
        int64_t best = 0;
        for (int64_t i = 1; i < c->n[1]; i++)
            if (x[i] > x[best]) best = i;
        y[r] = (double)best;
    }
}

#define UNARY(text, run_it, reference_it, ...)                                                \
    {                                                                                         \
        .name = text, .declare = declare_unary, .run = run_it, .reference = reference_it,     \
        .o = {__VA_ARGS__},                                                                   \
        .sizes = {{1, 1}, {3, 7}, {0, 5}, {17, 3}, {1, 300}, {19, 65}, {64, 2049}}, .perf = { \
            4096,                                                                             \
            3072                                                                              \
        }                                                                                     \
    }

/* ---- gates: rows, columns of the output ------------------------------------------------------ */

static void declare_gated(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], 2 * c->n[1]), -4, 4);
    set_output(c, c->dtype, MC_SHAPE(c->n[0], c->n[1]));
}

static mc_tensor *run_gated(mc_tape *t, op_call *c)
{
    return mc_gated(t, c->in[0].x, c->o->activation);
}

static void gated_reference(const op_call *c, double *y)
{
    int64_t n = c->n[1];
    for (int64_t i = 0; i < c->out_count; i++) {
        const double *x = c->in[0].v + i / n * 2 * n + i % n;
        y[i] = activated(c->o->activation, x[0]) * x[n];
    }
}

#define GATED(text, of)                                                                         \
    {                                                                                           \
        .name = text, .declare = declare_gated, .run = run_gated, .reference = gated_reference, \
        .o = {.activation = of}, .perf = {4096, 3072}, .sizes = {                               \
            {1, 1},                                                                             \
            {3, 7},                                                                             \
            {0, 5},                                                                             \
            {17, 3},                                                                            \
            {1, 300},                                                                           \
            {19, 65},                                                                           \
            {64, 1032}                                                                          \
        }                                                                                       \
    }

/* ---- add and mul: form, sizes ---------------------------------------------------------------- */

enum { EQUAL, ROW, MATRIX, SCALAR, ROW_FIRST };

static void declare_binary(op_call *c)
{
    int64_t m = c->n[1], n = c->n[2];
    mc_shape whole = MC_SHAPE(2, m, n),
             part[] = {whole, MC_SHAPE(n), MC_SHAPE(m, n), {.ndim = 0}, MC_SHAPE(n)};
    mc_shape b = part[c->n[0]];
    add_values(c, VALUES, c->n[0] == ROW_FIRST ? b : whole, -2, 2);
    add_values(c, c->o->weights, c->n[0] == ROW_FIRST ? whole : b, -2, 2);
    set_output(c, c->dtype, whole);
}

static mc_tensor *run_binary(mc_tape *t, op_call *c)
{
    return c->o->binary(t, c->in[0].x, c->in[1].x);
}

static void binary_reference(const op_call *c, double *y)
{
    const op_input *a = &c->in[0], *b = &c->in[1];
    for (int64_t i = 0; i < c->out_count; i++) {
        double va = a->v[i % a->count], vb = b->v[i % b->count];
        y[i] = c->o->binary == mc_add ? va + vb : va * vb;
    }
}

/* x + x and x * x: one tensor as both inputs. */
static mc_tensor *run_twice(mc_tape *t, op_call *c)
{
    return c->o->binary(t, c->in[0].x, c->in[0].x);
}

static void twice_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++) {
        double x = c->in[0].v[i];
        y[i] = c->o->binary == mc_add ? x + x : x * x;
    }
}

#define BINARY(text, ...)                                                                          \
    {                                                                                              \
        .name = text, .declare = declare_binary, .run = run_binary, .reference = binary_reference, \
        .o = {__VA_ARGS__}, .tolerance = 2e-6, .roundings = 2, .perf = {ROW, 2048, 3072},          \
        .sizes = {                                                                                 \
            {EQUAL, 3, 7},                                                                         \
            {ROW, 5, 33},                                                                          \
            {MATRIX, 4, 9},                                                                        \
            {SCALAR, 3, 5},                                                                        \
            {ROW_FIRST, 6, 17},                                                                    \
            {EQUAL, 0, 4},                                                                         \
            {ROW, 0, 4},                                                                           \
            {MATRIX, 30, 1000}                                                                     \
        }                                                                                          \
    }

/* ---- rows by index: rows, columns, table rows ------------------------------------------------ */

static void declare_embed(op_call *c)
{
    int64_t rows = c->n[0], columns = c->n[1], entries = c->n[2];
    for (int i = 0; i < c->o->tables; i++)
        add_values(c, c->o->weights, MC_SHAPE(entries + i, columns), -1, 1);
    for (int i = 0; i < c->o->tables; i++)
        add_index(c, INDEX, i == 1 ? MC_I64 : c->o->index_dtype, rows, entries + i);
    set_output(c, c->dtype, MC_SHAPE(rows, columns));
}

static mc_tensor *run_embed(mc_tape *t, op_call *c)
{
    mc_tensor *table[4], *index[4];
    int n = c->o->tables;
    for (int i = 0; i < n; i++) {
        table[i] = c->in[i].x;
        index[i] = c->in[n + i].x;
    }
    if (c->o->factor != 0) return mc_embed_scaled(t, n, table, index, c->o->factor);
    return mc_embed(t, n, table, index);
}

static void embed_reference(const op_call *c, double *y)
{
    int64_t columns = c->n[1];
    int n = c->o->tables;
    for (int64_t i = 0; i < c->out_count; i++) {
        y[i] = 0;
        for (int k = 0; k < n; k++)
            y[i] += c->in[k].v[(int64_t)c->in[n + k].v[i / columns] * columns + i % columns];
        y[i] *= factor_of(c);
    }
}

#define EMBED(text, ...)                                                                        \
    {                                                                                           \
        .name = text, .declare = declare_embed, .run = run_embed, .reference = embed_reference, \
        .picks_rows = true, .o = {__VA_ARGS__}, .gradient_roundings = 6,                        \
        .perf = {4096, 768, 30522}, .sizes = {                                                  \
            {1, 1, 1},                                                                          \
            {5, 7, 3},                                                                          \
            {0, 4, 3},                                                                          \
            {40, 33, 11},                                                                       \
            {9, 300, 50}                                                                        \
        }                                                                                       \
    }

static void declare_gather(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -1, 1);
    if (c->n[2]) add_index(c, INDEX, MC_I32, c->n[2], c->n[0]);
    set_output(c, c->dtype, MC_SHAPE(c->n[2], c->n[1]));
}

static mc_tensor *run_gather(mc_tape *t, op_call *c)
{
    return mc_gather_rows(t, c->in[0].x, c->n[2] ? c->in[1].data : NULL, c->n[2]);
}

static void gather_reference(const op_call *c, double *y)
{
    int64_t columns = c->n[1];
    for (int64_t i = 0; i < c->out_count; i++)
        y[i] = c->in[0].v[(int64_t)c->in[1].v[i / columns] * columns + i % columns];
}

/* ---- packed batches: batch, capacity a multiple of, columns ---------------------------------- */

static void declare_first(op_call *c)
{
    set_batch(c, c->n[0], c->n[1]);
    add_values(c, VALUES, MC_SHAPE(c->lengths.capacity, c->n[2]), -1, 1);
    set_output(c, c->dtype, MC_SHAPE(c->lengths.count, c->n[2]));
}

static mc_tensor *run_first(mc_tape *t, op_call *c) { return mc_first_tokens(t, c->in[0].x); }

static void first_reference(const op_call *c, double *y)
{
    for (int64_t i = 0; i < c->out_count; i++)
        y[i] = c->in[0].v[c->lengths.offset[i / c->n[2]] * c->n[2] + i % c->n[2]];
}

static void declare_unpack(op_call *c)
{
    declare_first(c);
    set_output(c, c->dtype, MC_SHAPE(c->lengths.count, c->lengths.longest, c->n[2]));
}

static mc_tensor *run_unpack(mc_tape *t, op_call *c) { return mc_unpack(t, c->in[0].x); }

static void unpack_reference(const op_call *c, double *y)
{
    const mc_lengths *l = &c->lengths;
    for (int64_t i = 0; i < c->out_count; i++) {
        int64_t columns = c->n[2], token = i / columns % l->longest,
                sequence = i / columns / l->longest;
        bool here = token < l->length[sequence];
        y[i] = here ? c->in[0].v[(l->offset[sequence] + token) * columns + i % columns] : 0;
    }
}

/* ---- attention: batch, capacity a multiple of, heads, head_dim ------------------------------- */

/* Of each sequence as many keys as the next one has queries. */
static void set_keys(op_call *c)
{
    mc_lengths *l = &c->key_lengths;
    *l = c->lengths;
    c->key_length = calloc((size_t)l->count + 1, sizeof *c->key_length);
    c->key_offset = calloc((size_t)l->count + 1, sizeof *c->key_offset);
    assert_true(c->key_length && c->key_offset);
    for (int i = 0; i < l->count; i++) {
        c->key_length[i] = c->length[(i + 1) % l->count];
        c->key_offset[i + 1] = c->key_offset[i] + c->key_length[i];
    }
    l->length = c->key_length;
    l->offset = c->key_offset;
    l->capacity = l->total + 3;
}

/* Heads, and the columns of the operands and of the result. */
typedef struct sdpa_sizes {
    int64_t heads, key_heads, dim, value_dim, q, k, v, out;
} sdpa_sizes;

static sdpa_sizes sdpa_sizes_of(const op_call *c)
{
    int64_t keys = c->n[2], heads = keys * (c->o->group ? c->o->group : 1);
    int64_t dim = c->n[3], value = dim + c->o->value_more;
    return (sdpa_sizes){heads,       keys,       dim,          value,
                        heads * dim, keys * dim, keys * value, heads * value};
}

/* Inputs: qkv, q and kv, or q, k and v; the mask; the marks; the bias. */
static void declare_sdpa(op_call *c)
{
    set_batch(c, c->n[0], c->n[1]);
    const sdpa_sizes z = sdpa_sizes_of(c);
    int64_t rows = c->lengths.capacity, longest = c->lengths.longest, more = 0;
    add_values(c, VALUES, MC_SHAPE(rows, z.q + (c->o->cross ? 0 : z.k + z.v)), -1.5, 1.5);
    if (c->o->cross) {
        set_keys(c);
        int64_t keys = c->key_lengths.capacity;
        add_values(c, VALUES, MC_SHAPE(keys, z.k + (c->o->separate ? 0 : z.v)), -1.5, 1.5);
        if (c->o->separate) add_values(c, VALUES, MC_SHAPE(keys, z.v), -1.5, 1.5);
        more = 2;
    }
    if (c->o->masked) {
        op_input *mask = add_input(c, MASK, MC_U8, MC_SHAPE(c->lengths.total));
        for (int64_t i = 0; i < mask->count; i++) set_index(mask, i, random_bits() % 3 != 0);
    }
    if (c->o->marked) /* of three spans */
        add_index(c, INDEX, MC_I32, c->lengths.total, 6);
    if (c->o->globals) add_index(c, INDEX, MC_I32, c->lengths.total, c->o->globals);
    if (c->o->by_distance) {
        int64_t limit = longest + more > 0 ? longest + more : 1;
        op_input *bias = add_input(c, c->o->weights, MC_F32, MC_SHAPE(z.heads, 2 * limit - 1));
        random_values(MC_F32, bias->v, bias->count, -1.5, 1.5, 0);
        set_elements(MC_F32, bias->data, bias->v, bias->count);
    } else if (c->o->bias) {
        add_values(c, c->o->weights, MC_SHAPE(z.heads, longest + more, longest), -1.5, 1.5);
    }
    set_output(c, c->dtype, MC_SHAPE(rows, z.out));
}

/* On a GPU cuDNN draws random numbers of its own: dropout is tested on our kernels, whose numbers
 * are known. */
static void choose_route(const op_call *c)
{
#ifdef MC_HAVE_CUDA
    const char *route = c->o->dropout > 0 ? "attention:portable" : c->o->route;
    if (!c->ctx->device->is_host) assert_int_equal(mc_routes_read(c->ctx->device, route), MC_OK);
#else
    (void)c;
#endif
}

/* Where the mask is among the inputs. */
static int mask_at(const op_call *c) { return 1 + c->o->cross + c->o->separate; }
static int marks_at(const op_call *c) { return mask_at(c) + c->o->masked; }

static int globals_at(const op_call *c) { return marks_at(c) + c->o->marked; }

static mc_sdpa_options sdpa_options(const op_call *c)
{
    const sdpa_sizes z = sdpa_sizes_of(c);
    return (mc_sdpa_options){.heads = (int)z.heads,
                             .key_heads = c->o->group ? (int)z.key_heads : 0,
                             .value_dim = c->o->value_more ? (int)z.value_dim : 0,
                             .scale = c->o->factor,
                             .causal = c->o->causal,
                             .bottom_right = c->o->bottom_right,
                             .window_left = c->o->window_left,
                             .window_right = c->o->window_right,
                             .dropout = c->o->dropout,
                             .key_mask = c->o->masked ? c->in[mask_at(c)].x : NULL,
                             .bias = c->o->bias ? c->in[c->inputs - 1].x : NULL,
                             .position_bias = c->o->by_distance ? c->in[c->inputs - 1].x : NULL,
                             .marks = c->o->marked ? c->in[marks_at(c)].x : NULL,
                             .globals = c->o->globals ? c->in[globals_at(c)].x : NULL,
                             .global_queries = c->o->global_queries};
}

static mc_tensor *run_sdpa(mc_tape *t, op_call *c)
{
    choose_route(c);
    mc_sdpa_options o = sdpa_options(c);
    if (!c->o->cross) return mc_sdpa(t, c->in[0].x, &o);
    if (c->in[1].x) c->in[1].x->lengths = &c->key_lengths;
    return c->o->separate ? mc_sdpa_separate(t, c->in[0].x, c->in[1].x, c->in[2].x, &o)
                          : mc_sdpa_cross(t, c->in[0].x, c->in[1].x, &o);
}

/* Where the operands are among the inputs. */
typedef struct sdpa_operands {
    const double *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    const mc_lengths *keys;
    const double *mask, *marks, *globals;
    const op_input *bias; /* of either form */
} sdpa_operands;

/* Of a query, and the key where it stands. */
static double bias_of(const op_input *bias, int64_t h, int64_t query, int64_t place, int64_t key)
{
    const int64_t *dim = bias->shape.dim;
    if (bias->shape.ndim == 3) return bias->v[(h * dim[1] + query) * dim[2] + key];
    return bias->v[h * dim[1] + dim[1] / 2 + key - place];
}

static sdpa_operands sdpa_operands_of(const op_call *c)
{
    const sdpa_sizes z = sdpa_sizes_of(c);
    bool cross = c->o->cross, separate = c->o->separate;
    const double *q = c->in[0].v, *k = cross ? c->in[1].v : q + z.q;
    int64_t kv_stride = cross ? z.k + z.v : z.q + z.k + z.v;
    return (sdpa_operands){.q = q,
                           .k = k,
                           .v = separate ? c->in[2].v : k + z.k,
                           .q_stride = cross ? z.q : kv_stride,
                           .k_stride = separate ? z.k : kv_stride,
                           .v_stride = separate ? z.v : kv_stride,
                           .keys = cross ? &c->key_lengths : &c->lengths,
                           .mask = c->o->masked ? c->in[mask_at(c)].v : NULL,
                           .marks = c->o->marked ? c->in[marks_at(c)].v : NULL,
                           .globals = c->o->globals ? c->in[globals_at(c)].v : NULL,
                           .bias = c->o->bias || c->o->by_distance ? &c->in[c->inputs - 1] : NULL};
}

/* Whether the marks of a query and of a key of its sequence let it see that key. */
static bool marks_allow(const double *marks, int64_t query, int64_t key)
{
    int a = (int)marks[query], b = (int)marks[key];
    return a / 2 == b / 2 && (b % 2 == 1 || (a % 2 == 0 && key <= query));
}

/* Whether the query that stands at key `place` may see another by where it lies. */
static bool place_allows(const op_options *o, int64_t place, int64_t key)
{
    return (!o->causal || key <= place) && (!o->window_left || place - key < o->window_left) &&
           (!o->window_right || key - place < o->window_right);
}

/* Whether query and key of a sequence, by what of it is global, are so: a window hides no global
 * key, and the queries of one kind alone have keys. */
static bool globals_allow(const op_options *o, const double *globals, int64_t query, int64_t key,
                          bool near)
{
    if (!globals) return near;
    return (globals[query] == 0) == o->global_queries && (near || globals[key] == 0);
}

/* One query: its probabilities p over the keys of its sequence, not yet dropped. */
static void probabilities(const op_call *c, const sdpa_operands *x, int h, int sequence, int64_t i,
                          double *p)
{
    const sdpa_sizes z = sdpa_sizes_of(c);
    int64_t d = z.dim, first = x->keys->offset[sequence], length = x->keys->length[sequence];
    int64_t place = i + (c->o->bottom_right ? length - c->lengths.length[sequence] : 0);
    int64_t key_head = h * z.key_heads / z.heads;
    double scale = c->o->factor != 0 ? (double)c->o->factor : 1 / sqrt((double)d),
           largest = -INFINITY, sum = 0;
    const double *q = x->q + (c->lengths.offset[sequence] + i) * x->q_stride + h * d;
    for (int64_t k = 0; k < length; k++) {
        bool near = place_allows(c->o, place, k);
        bool seen = globals_allow(c->o, x->globals ? x->globals + first : NULL, i, k, near) &&
                    (!x->mask || x->mask[first + k] != 0) &&
                    (!x->marks || marks_allow(x->marks + first, i, k));
        const double *key = x->k + (first + k) * x->k_stride + key_head * d;
        p[k] = seen ? scale * dot(q, key, d) : -INFINITY;
        if (x->bias && seen) p[k] += bias_of(x->bias, h, i, place, k);
        largest = fmax(largest, p[k]);
    }
    for (int64_t k = 0; k < length; k++) sum += p[k] = isinf(largest) ? 0 : exp(p[k] - largest);
    for (int64_t k = 0; k < length && sum > 0; k++) p[k] /= sum;
}

static void sdpa_reference(const op_call *c, double *y)
{
    const mc_lengths *l = &c->lengths;
    const sdpa_operands x = sdpa_operands_of(c);
    const sdpa_sizes z = sdpa_sizes_of(c);
    int64_t d = z.value_dim, padded = (x.keys->longest + 3) / 4 * 4;
    double *p = doubles(x.keys->longest);
    memset(y, 0, (size_t)c->out_count * sizeof *y);
    for (int s = 0; s < l->count; s++)
        for (int h = 0; h < z.heads; h++)
            for (int64_t row = l->offset[s]; row < l->offset[s + 1]; row++) {
                probabilities(c, &x, h, s, row - l->offset[s], p);
                for (int64_t k = 0; k < x.keys->length[s]; k++) {
                    double keep = reference_dropout(mask_of(c),
                                                    (uint64_t)((h * l->total + row) * padded + k));
                    const double *v =
                        x.v + (x.keys->offset[s] + k) * x.v_stride + h * z.key_heads / z.heads * d;
                    for (int64_t i = 0; i < d; i++)
                        y[row * z.out + h * d + i] += keep * p[k] * v[i];
                }
            }
    free(p);
}

static double sdpa_flops(const op_call *c)
{
    double pairs = 0;
    const sdpa_sizes z = sdpa_sizes_of(c);
    const mc_lengths *keys = c->o->cross ? &c->key_lengths : &c->lengths;
    for (int s = 0; s < c->lengths.count; s++)
        pairs += (double)c->lengths.length[s] * keys->length[s];
    return pairs * 2 * (double)(z.q + z.out);
}

#define SDPA_WITHIN(text, batch, of_f32, gradient_of_f32, of_gradient, ...)                  \
    {                                                                                        \
        .name = text, .declare = declare_sdpa, .run = run_sdpa, .reference = sdpa_reference, \
        .flops = sdpa_flops, .tolerance = of_f32, .gradient_tolerance = gradient_of_f32,     \
        .roundings = 2, .gradient_roundings = of_gradient, .o = {__VA_ARGS__},               \
        .perf = {7, 1, 12, 64}, .sizes = {                                                   \
            {0, 1, 1, 1},                                                                    \
            {1, 1, 2, 3},                                                                    \
            {2, 8, 3, 5},                                                                    \
            {3, 1, 2, 4},                                                                    \
            {4, 1, 1, 2},                                                                    \
            {5, 16, 2, 8},                                                                   \
            {batch, 64, 2, 33},                                                              \
            {5, 1, 2, 64},                                                                   \
            {8, 1, 2, 64}                                                                    \
        }                                                                                    \
    }
#define SDPA(text, ...) SDPA_WITHIN(text, 6, 2e-6, 0, 3, __VA_ARGS__)
/* Scores without a scale are up to 20, which f32 rounds by 1e-6, and so probabilities by as much.
 * A query that sees one key only has no gradient of its score: it is the difference of two equal
 * products over head_dim, one of them with the output as rounded. */
#define SDPA_BIASED(text, ...) SDPA_WITHIN(text, 6, 4e-6, 1e-5, 4, .bias = true, __VA_ARGS__)
#define SDPA_BY_DISTANCE(text, ...) \
    SDPA_WITHIN(text, 6, 4e-6, 1e-5, 4, .by_distance = true, __VA_ARGS__)
#define SDPA_CROSS(text, ...) SDPA_WITHIN(text, 5, 4e-6, 1e-5, 4, .cross = true, __VA_ARGS__)

/* What mc_sdpa_probabilities gives for the same calls. */
static void declare_probabilities(op_call *c)
{
    declare_sdpa(c);
    const mc_lengths *keys = c->o->cross ? &c->key_lengths : &c->lengths;
    set_output(
        c, MC_F32,
        MC_SHAPE(c->lengths.count, sdpa_sizes_of(c).heads, c->lengths.longest, keys->longest));
}

static mc_tensor *run_probabilities(mc_tape *t, op_call *c)
{
    mc_sdpa_options o = sdpa_options(c);
    if (c->o->cross && c->in[1].x) c->in[1].x->lengths = &c->key_lengths;
    return mc_sdpa_probabilities(t, c->in[0].x, c->o->cross ? c->in[1].x : NULL, &o);
}

static void probabilities_reference(const op_call *c, double *y)
{
    const sdpa_operands x = sdpa_operands_of(c);
    int64_t longest = c->lengths.longest, columns = x.keys->longest;
    int64_t heads = sdpa_sizes_of(c).heads;
    memset(y, 0, (size_t)c->out_count * sizeof *y);
    for (int s = 0; s < c->lengths.count; s++)
        for (int h = 0; h < heads; h++)
            for (int64_t i = 0; i < c->lengths.length[s]; i++)
                probabilities(c, &x, h, s, i, y + ((s * heads + h) * longest + i) * columns);
}

#define PROBABILITIES(text, ...)                                                      \
    {                                                                                 \
        .name = text, .declare = declare_probabilities, .run = run_probabilities,     \
        .reference = probabilities_reference, .no_gradient = true, .tolerance = 4e-6, \
        .o = {__VA_ARGS__}, .sizes = {                                                \
            {0, 1, 1, 1},                                                             \
            {1, 1, 2, 3},                                                             \
            {2, 8, 3, 5},                                                             \
            {3, 1, 2, 4},                                                             \
            {4, 1, 1, 2},                                                             \
            {5, 16, 2, 33},                                                           \
            {10, 1, 2, 5}                                                             \
        }                                                                             \
    }

/* ---- position bias: buckets, heads, length --------------------------------------------------- */

/* In the words of Raffel et al.'s code: masked selections instead of branches. */
static int64_t bucket_of(int64_t ahead, int64_t buckets, bool bidirectional, double max_distance)
{
    int64_t side = 0, n = ahead > 0 ? 0 : -ahead;
    if (bidirectional) {
        buckets /= 2;
        if (ahead > 0) side = buckets, n = ahead;
    }
    int64_t exact = buckets / 2, bucket = exact;
    if (n < exact) return side + n;
    while (bucket + 1 < buckets && /* where the next one begins */
           (double)n * (1 + 1e-12) >=
               (double)exact * pow(max_distance / (double)exact,
                                   (double)(bucket + 1 - exact) / (double)(buckets - exact)))
        bucket++;
    return side + bucket;
}

enum { SOME_DISTANCE = 40 };

static void declare_position_bias(op_call *c)
{
    add_values(c, c->o->weights, MC_SHAPE(c->n[0], c->n[1]), -1, 1);
    set_output(c, MC_F32, MC_SHAPE(c->n[1], 2 * c->n[2] - 1));
}

static mc_tensor *run_position_bias(mc_tape *t, op_call *c)
{
    mc_position_bias_options o = {
        .length = c->n[2], .max_distance = SOME_DISTANCE, .bidirectional = c->o->second};
    return mc_position_bias(t, c->in[0].x, &o);
}

static void position_bias_reference(const op_call *c, double *y)
{
    int64_t distances = 2 * c->n[2] - 1;
    for (int64_t i = 0; i < c->out_count; i++) {
        int64_t ahead = i % distances - (c->n[2] - 1);
        int64_t bucket = bucket_of(ahead, c->n[0], c->o->second, SOME_DISTANCE);
        y[i] = c->in[0].v[bucket * c->n[1] + i / distances];
    }
}

#define POSITION_BIAS(text, ...)                                                         \
    {                                                                                    \
        .name = text, .declare = declare_position_bias, .run = run_position_bias,        \
        .reference = position_bias_reference, .o = {__VA_ARGS__}, .perf = {32, 12, 512}, \
        .sizes = {                                                                       \
            {4, 1, 1},                                                                   \
            {4, 3, 7},                                                                   \
            {16, 2, 50},                                                                 \
            {32, 5, 130}                                                                 \
        }                                                                                \
    }

/* ---- rotary positions: rows, heads, head_dim, rotary_dim, columns after --------------------- */

static void declare_rotary(op_call *c)
{
    int64_t columns = c->n[1] * c->n[2] + c->n[4];
    add_values(c, VALUES, MC_SHAPE(c->n[0], columns), -2, 2);
    op_input *positions = add_index(c, INDEX, MC_I32, c->n[0], 100);
    for (int64_t i = 0; i < c->n[0]; i += 2) set_index(positions, i, 1000 * i + 31);
    set_output(c, c->dtype, MC_SHAPE(c->n[0], columns));
}

static mc_tensor *run_rotary(mc_tape *t, op_call *c)
{
    mc_rotary_options o = {.heads = (int)c->n[1],
                           .head_dim = (int)c->n[2],
                           .rotary_dim = (int)c->n[3],
                           .halves = c->o->second,
                           .base = c->o->factor,
                           .positions = c->in[1].x};
    return mc_rotary(t, c->in[0].x, &o);
}

static void rotary_reference(const op_call *c, double *y)
{
    int64_t dim = c->n[3] ? c->n[3] : c->n[2], columns = c->n[1] * c->n[2] + c->n[4];
    double base = c->o->factor != 0 ? (double)c->o->factor : 10000;
    memcpy(y, c->in[0].v, (size_t)c->out_count * sizeof *y);
    for (int64_t row = 0; row < c->n[0]; row++)
        for (int64_t h = 0; h < c->n[1]; h++)
            for (int64_t i = 0; i < dim / 2; i++) {
                double angle = c->in[1].v[row] * pow(base, -2 * (double)i / (double)dim);
                double *head = y + row * columns + h * c->n[2];
                double *first = head + (c->o->second ? i : 2 * i);
                double *second = head + (c->o->second ? i + dim / 2 : 2 * i + 1);
                double a = *first, b = *second;
                *first = a * cos(angle) - b * sin(angle);
                *second = b * cos(angle) + a * sin(angle);
            }
}

#define ROTARY(text, ...)                                                                          \
    {                                                                                              \
        .name = text, .declare = declare_rotary, .run = run_rotary, .reference = rotary_reference, \
        .o = {__VA_ARGS__}, .perf = {4096, 32, 256, 64, 4096}, .sizes = {                          \
            {1, 1, 2},                                                                             \
            {5, 3, 6, 4, 1},                                                                       \
            {0, 2, 4},                                                                             \
            {7, 2, 64, 0, 64},                                                                     \
            {40, 4, 33, 18, 7}                                                                     \
        }                                                                                          \
    }

/* ---- low rank: rows, columns of the first factor, of the second, between them, rank ---------- */

/* With `second` two factors, and columns between and after theirs. */
static void declare_low_rank(op_call *c)
{
    int64_t rank = c->n[4], gap = c->n[3], parts = c->o->second ? 2 : 1;
    int64_t columns = c->n[1] + (c->o->second ? 2 * gap + c->n[2] : 0);
    add_values(c, VALUES, MC_SHAPE(c->n[0], columns), -1, 1);
    add_values(c, VALUES, MC_SHAPE(c->n[0], parts * rank), -1, 1);
    add_values(c, c->o->weights, MC_SHAPE(c->n[1], rank), -1, 1);
    if (c->o->second) add_values(c, c->o->weights, MC_SHAPE(c->n[2], rank), -1, 1);
    set_output(c, c->dtype, MC_SHAPE(c->n[0], columns));
}

static mc_tensor *run_low_rank(mc_tape *t, op_call *c)
{
    mc_low_rank_part parts[] = {{c->in[2].x, 0}, {c->in[3].x, c->n[1] + c->n[3]}};
    return mc_low_rank_add(t, c->in[0].x, c->in[1].x, parts, c->o->second ? 2 : 1, c->o->factor);
}

static void low_rank_reference(const op_call *c, double *y)
{
    int64_t rank = c->n[4], parts = c->o->second ? 2 : 1, columns = c->out_shape.dim[1];
    memcpy(y, c->in[0].v, (size_t)c->out_count * sizeof *y);
    for (int64_t row = 0; row < c->n[0]; row++)
        for (int64_t part = 0; part < parts; part++)
            for (int64_t o = 0; o < c->n[1 + part]; o++) {
                const double *h = c->in[1].v + (row * parts + part) * rank;
                const double *b = c->in[2 + part].v + o * rank;
                double sum = 0;
                for (int64_t r = 0; r < rank; r++) sum += h[r] * b[r];
                y[row * columns + part * (c->n[1] + c->n[3]) + o] += (double)c->o->factor * sum;
            }
}

#define LOW_RANK(text, ...)                                                                \
    {                                                                                      \
        .name = text, .declare = declare_low_rank, .run = run_low_rank,                    \
        .reference = low_rank_reference, .o = {.factor = 1.5f, __VA_ARGS__},               \
        .perf = {4096, 4096, 4096, 4096, 8}, .tolerance = 2e-6, .roundings = 2, .sizes = { \
            {1, 1, 1, 0, 1},                                                               \
            {5, 3, 6, 4, 2},                                                               \
            {0, 2, 4, 1, 3},                                                               \
            {33, 24, 17, 8, 8},                                                            \
            {70, 64, 32, 64, 16}                                                           \
        }                                                                                  \
    }

/* ---- losses ---------------------------------------------------------------------------------- */

/* The sum and count of a cross-entropy over rows of logits. */
static void add_loss(const op_options *o, const double *x, const double *label, int64_t rows,
                     int64_t classes, double loss[2])
{
    double ignored = o->ignore_index == MC_INT_ZERO ? 0 : o->ignore_index ? o->ignore_index : -100;
    loss[0] = loss[1] = 0;
    for (int64_t r = 0; r < rows; r++, x += classes) {
        if (label[r] == ignored) continue;
        double largest = -INFINITY, sum = 0, mean = 0;
        for (int64_t i = 0; i < classes; i++) largest = fmax(largest, x[i]);
        for (int64_t i = 0; i < classes; i++) sum += exp(x[i] - largest);
        double lse = largest + log(sum);
        for (int64_t i = 0; i < classes && o->smoothing > 0; i++)
            mean += (lse - x[i]) / (double)classes;
        loss[0] +=
            (1 - (double)o->smoothing) * (lse - x[(int64_t)label[r]]) + (double)o->smoothing * mean;
        loss[1] += 1;
    }
}

/* Labels of which about a third is the ignored one, if there is one. */
static void add_labels(op_call *c, int64_t rows, int64_t classes)
{
    op_input *labels = add_index(c, INDEX, c->o->index_dtype, rows, classes);
    for (int64_t i = 0; i < rows && c->o->ignore_index; i++)
        if (random_bits() % 3 == 0)
            set_index(labels, i, c->o->ignore_index == MC_INT_ZERO ? 0 : c->o->ignore_index);
}

static mc_cross_entropy_options loss_options(const op_call *c)
{
    return (mc_cross_entropy_options){.ignore_index = c->o->ignore_index,
                                      .label_smoothing = c->o->smoothing,
                                      .logit_scale = c->row->seeded ? c->o->factor : 0};
}

static void declare_cross_entropy(op_call *c) /* rows, classes */
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -3, 3);
    add_labels(c, c->n[0], c->n[1]);
    set_output(c, MC_F32, MC_SHAPE(2));
}

static mc_tensor *run_cross_entropy(mc_tape *t, op_call *c)
{
    mc_cross_entropy_options o = loss_options(c);
    return mc_cross_entropy(t, c->in[0].x, c->in[1].x, &o);
}

static void cross_entropy_reference(const op_call *c, double *y)
{
    add_loss(c->o, c->in[0].v, c->in[1].v, c->n[0], c->n[1], y);
}

#define CROSS_ENTROPY(text, ...)                                                         \
    {                                                                                    \
        .name = text, .declare = declare_cross_entropy, .run = run_cross_entropy,        \
        .reference = cross_entropy_reference, .o = {__VA_ARGS__}, .perf = {1024, 30522}, \
        .sizes = {                                                                       \
            {1, 1},                                                                      \
            {1, 2},                                                                      \
            {5, 7},                                                                      \
            {0, 3},                                                                      \
            {33, 100},                                                                   \
            {3, 5000}                                                                    \
        }                                                                                \
    }

/* rows, in, classes, rows of the weight */
static void declare_linear_loss(op_call *c)
{
    int64_t rows = c->n[0], in = c->n[1], classes = c->n[2], stored = c->n[3];
    double range = 2 / sqrt((double)in);
    add_values(c, VALUES, MC_SHAPE(rows, in), -1, 1);
    add_values(c, PARAMETER, MC_SHAPE(stored, in), -range, range);
    add_labels(c, rows, classes);
    if (c->o->bias) add_values(c, PARAMETER, MC_SHAPE(stored), -1, 1);
    set_output(c, MC_F32, MC_SHAPE(2));
}

static mc_tensor *run_linear_loss(mc_tape *t, op_call *c)
{
    mc_cross_entropy_options o = loss_options(c);
    return mc_linear_cross_entropy(t, c->in[0].x, c->in[1].x, c->o->bias ? c->in[3].x : NULL,
                                   c->n[2] == c->n[3] ? 0 : c->n[2], c->in[2].x, &o);
}

static void linear_loss_reference(const op_call *c, double *y)
{
    int64_t rows = c->n[0], in = c->n[1], classes = c->n[2];
    double *logits = doubles(classes), one[2];
    y[0] = y[1] = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < classes; i++)
            logits[i] = factor_of(c) * dot(c->in[0].v + r * in, c->in[1].v + i * in, in) +
                        (c->o->bias ? c->in[3].v[i] : 0);
        add_loss(c->o, logits, c->in[2].v + r, 1, classes, one);
        y[0] += one[0];
        y[1] += one[1];
    }
    free(logits);
}

static double linear_loss_flops(const op_call *c)
{
    return 2.0 * (double)c->n[0] * (double)c->n[1] * (double)c->n[2];
}

#define LINEAR_LOSS(text, ...)                                                                \
    {                                                                                         \
        .name = text, .declare = declare_linear_loss, .run = run_linear_loss, .seeded = true, \
        .reference = linear_loss_reference, .flops = linear_loss_flops, .roundings = 3,       \
        .o = {__VA_ARGS__}, .perf = {1024, 768, 30522, 30528}, .sizes = {                     \
            {1, 1, 2, 2},                                                                     \
            {5, 7, 9, 9},                                                                     \
            {0, 3, 4, 4},                                                                     \
            {6, 5, 11, 16},                                                                   \
            {40, 16, 100, 101}                                                                \
        }                                                                                     \
    }

/* loss(a) + factor * loss(b): rows and classes of each */
static void declare_loss_add(op_call *c)
{
    add_values(c, VALUES, MC_SHAPE(c->n[0], c->n[1]), -3, 3);
    add_labels(c, c->n[0], c->n[1]);
    add_values(c, VALUES, MC_SHAPE(c->n[2], c->n[3]), -3, 3);
    add_labels(c, c->n[2], c->n[3]);
    set_output(c, MC_F32, MC_SHAPE(2));
}

static mc_tensor *run_loss_add(mc_tape *t, op_call *c)
{
    mc_cross_entropy_options o = loss_options(c);
    mc_tensor *a = mc_cross_entropy(t, c->in[0].x, c->in[1].x, &o);
    return mc_loss_add(t, a, mc_cross_entropy(t, c->in[2].x, c->in[3].x, &o), c->o->factor);
}

static void loss_add_reference(const op_call *c, double *y)
{
    double a[2], b[2];
    add_loss(c->o, c->in[0].v, c->in[1].v, c->n[0], c->n[1], a);
    add_loss(c->o, c->in[2].v, c->in[3].v, c->n[2], c->n[3], b);
    y[1] = a[1] > 0 ? a[1] : 1;
    y[0] = a[0] + (b[1] > 0 ? (double)c->o->factor * b[0] * y[1] / b[1] : 0);
}

#include "tests/ops/op_rows_general.h"

/* ---- the table ------------------------------------------------------------------------------- */

static const op_row rows[] = {
    LINEAR("linear", .weights = PARAMETER),
    LINEAR("linear bias", .weights = PARAMETER, .bias = true),
    LINEAR("linear bias of tape inputs", .weights = VALUES, .bias = true),
    LINEAR("linear relu", .weights = PARAMETER, .activation = MC_ACTIVATION_RELU),
    LINEAR("linear bias relu", .weights = PARAMETER, .bias = true,
           .activation = MC_ACTIVATION_RELU),
    LINEAR("linear gelu", .weights = PARAMETER, .activation = MC_ACTIVATION_GELU),
    LINEAR("linear bias gelu", .weights = PARAMETER, .bias = true,
           .activation = MC_ACTIVATION_GELU),
    LINEAR("linear gelu_new", .weights = PARAMETER, .activation = MC_ACTIVATION_GELU_NEW),
    LINEAR("linear bias gelu_new", .weights = VALUES, .bias = true,
           .activation = MC_ACTIVATION_GELU_NEW),
    LINEAR("linear tanh", .weights = PARAMETER, .activation = MC_ACTIVATION_TANH),
    LINEAR("linear bias tanh", .weights = PARAMETER, .bias = true,
           .activation = MC_ACTIVATION_TANH),
    LINEAR("linear scaled", .weights = VALUES, .factor = -0.37f),
    LINEAR("linear bias scaled, a parameter", .weights = PARAMETER, .bias = true, .factor = 0.37f),
    LINEAR("linear bias gelu scaled", .weights = PARAMETER, .bias = true, .factor = 0.7f,
           .activation = MC_ACTIVATION_GELU),
    LINEAR("linear gelu_new scaled", .weights = PARAMETER, .factor = 0.7f,
           .activation = MC_ACTIVATION_GELU_NEW),
    LINEAR("linear silu", .weights = PARAMETER, .activation = MC_ACTIVATION_SILU),
    LINEAR("linear bias silu", .weights = PARAMETER, .bias = true,
           .activation = MC_ACTIVATION_SILU),
    NORM("norm", .weights = PARAMETER),
    NORM("norm of tape inputs", .weights = VALUES),
    NORM("residual norm", .weights = PARAMETER, .second = true),
    NORM("residual norm dropout", .weights = PARAMETER, .second = true, .dropout = 0.3f),
    NORM("RMS norm", .rms = true, .weights = PARAMETER),
    NORM("RMS norm of tape inputs", .rms = true, .weights = VALUES),
    NORM("residual RMS norm", .rms = true, .weights = PARAMETER, .second = true),
    NORM("residual RMS norm dropout", .rms = true, .weights = PARAMETER, .second = true,
         .dropout = 0.3f),
    STREAM("stream norm", .weights = PARAMETER),
    STREAM("stream norm of a sum", .weights = PARAMETER, .second = true),
    STREAM("stream norm of a sum, dropout", .weights = PARAMETER, .second = true, .dropout = 0.3f),
    STREAM("stream RMS norm", .rms = true, .weights = PARAMETER),
    STREAM("stream RMS norm of a sum", .rms = true, .weights = PARAMETER, .second = true),
    STREAM("stream RMS norm of a sum, dropout", .rms = true, .weights = PARAMETER, .second = true,
           .dropout = 0.3f),
    SUM("residual sum", .dropout = 0),
    SUM("residual sum dropout", .dropout = 0.3f),
    UNARY("dropout", run_dropout, dropout_reference, .dropout = 0.1f),
    UNARY("dropout most", run_dropout, dropout_reference, .dropout = 0.875f),
    UNARY("relu dropout", run_relu_dropout, relu_dropout_reference, .dropout = 0.3f),
    CAST("cast to f32", MC_F32),
    CAST("cast to f16", MC_F16),
    CAST("cast to bf16", MC_BF16),
    UNARY("scale", run_scale, scale_reference, .factor = -0.37f),
    UNARY("gelu", run_unary, unary_reference, .unary = mc_gelu, .activation = MC_ACTIVATION_GELU),
    UNARY("gelu_new", run_unary, unary_reference, .unary = mc_gelu_new,
          .activation = MC_ACTIVATION_GELU_NEW),
    UNARY("relu", run_unary, unary_reference, .unary = mc_relu, .activation = MC_ACTIVATION_RELU),
    UNARY("tanh", run_unary, unary_reference, .unary = mc_tanh, .activation = MC_ACTIVATION_TANH),
    UNARY("silu", run_unary, unary_reference, .unary = mc_silu, .activation = MC_ACTIVATION_SILU),
    GATED("gated", MC_ACTIVATION_NONE),
    GATED("gated relu", MC_ACTIVATION_RELU),
    GATED("gated gelu", MC_ACTIVATION_GELU),
    GATED("gated gelu_new", MC_ACTIVATION_GELU_NEW),
    GATED("gated tanh", MC_ACTIVATION_TANH),
    GATED("gated silu", MC_ACTIVATION_SILU),
    UNARY("add to itself", run_twice, twice_reference, .binary = mc_add),
    UNARY("mul by itself", run_twice, twice_reference, .binary = mc_mul),
    BINARY("add", .binary = mc_add, .weights = VALUES),
    BINARY("add of a parameter", .binary = mc_add, .weights = PARAMETER),
    BINARY("mul", .binary = mc_mul, .weights = VALUES),
    BINARY("mul by a parameter", .binary = mc_mul, .weights = PARAMETER),
    EMBED("embed", .tables = 1, .weights = PARAMETER),
    EMBED("embed i64 of a tape input", .tables = 1, .weights = VALUES, .index_dtype = MC_I64),
    EMBED("embed two tables", .tables = 2, .weights = PARAMETER),
    EMBED("embed three tables", .tables = 3, .weights = PARAMETER),
    EMBED("embed scaled", .tables = 1, .weights = PARAMETER, .factor = -0.37f),
    EMBED("embed two tables scaled, of tape inputs", .tables = 2, .weights = VALUES,
          .factor = 3.5f),
    {.name = "reshape",
     .declare = declare_reshape,
     .run = run_reshape,
     .reference = unary_reference,
     .sizes = {{1, 1}, {3, 7}, {0, 5}, {64, 33}}},
    {.name = "gather rows",
     .declare = declare_gather,
     .run = run_gather,
     .picks_rows = true,
     .reference = gather_reference,
     .gradient_roundings = 6,
     .perf = {4096, 768, 2048},
     .sizes = {{1, 1, 1}, {3, 7, 11}, {5, 3, 2}, {4, 6, 0}, {0, 3, 0}, {90, 300, 40}}},
    {.name = "first tokens",
     .declare = declare_first,
     .run = run_first,
     .picks_rows = true,
     .reference = first_reference,
     .sizes = {{0, 1, 3}, {1, 4, 5}, {4, 1, 3}, {5, 64, 100}},
     .perf = {7, 1, 768}},
    {.name = "unpack",
     .declare = declare_unpack,
     .run = run_unpack,
     .reference = unpack_reference,
     .sizes = {{0, 1, 3}, {1, 4, 5}, {2, 8, 7}, {3, 1, 2}, {4, 1, 3}, {5, 64, 100}},
     .perf = {7, 1, 768}},
    {.name = "argmax",
     .declare = declare_argmax,
     .run = run_unary,
     .reference = argmax_reference,
     .no_gradient = true,
     .o = {.unary = mc_argmax},
     .perf = {1024, 30522},
     .sizes = {{1, 1}, {3, 7}, {0, 5}, {40, 300}, {2, 5000}}},
    SDPA("attention", .factor = 0),
    SDPA("attention scaled", .factor = 0.7f),
    SDPA("attention causal", .causal = true),
    SDPA("attention masked", .masked = true),
    SDPA("attention causal masked dropout", .causal = true, .masked = true, .dropout = 0.2f),
    SDPA("attention dropout", .dropout = 0.4f),
    SDPA_BIASED("attention with a bias", .factor = 1),
    SDPA_BIASED("attention with a bias, a parameter", .weights = PARAMETER),
    SDPA("attention causal, masked, with a bias, dropout", .causal = true, .masked = true,
         .bias = true, .dropout = 0.2f),
    SDPA("attention by own kernels", .route = "attention:portable"),
    SDPA("attention by own kernels, causal masked", .route = "attention:portable", .causal = true,
         .masked = true),
    SDPA("attention by own kernels, causal, with a bias", .route = "attention:portable",
         .causal = true, .bias = true),
    SDPA_CROSS("cross attention", .factor = 0),
    SDPA_CROSS("cross attention masked, dropout", .masked = true, .dropout = 0.2f),
    SDPA_CROSS("cross attention with a bias", .bias = true, .factor = 1),
    SDPA_CROSS("cross attention causal, with a bias, by own kernels", .causal = true, .bias = true,
               .weights = PARAMETER, .route = "attention:portable"),
    SDPA_BY_DISTANCE("attention with a bias by distance", .factor = 1),
    SDPA_BY_DISTANCE("attention with a bias by distance, a parameter, causal", .causal = true,
                     .weights = PARAMETER),
    SDPA_BY_DISTANCE("attention with a bias by distance, masked, dropout", .masked = true,
                     .dropout = 0.2f),
    SDPA_CROSS("cross attention with a bias by distance", .by_distance = true, .masked = true),
    SDPA("attention with grouped heads", .group = 3),
    SDPA("attention with grouped heads, causal, masked, dropout", .group = 2, .causal = true,
         .masked = true, .dropout = 0.2f),
    SDPA_BIASED("attention with grouped heads and a bias", .group = 2, .factor = 1),
    SDPA("attention with wider values", .value_more = 3),
    SDPA("attention with grouped heads, wider values and a window", .group = 2, .value_more = 20,
         .window_left = 5, .window_right = 2, .dropout = 0.1f),
    SDPA("attention with a window", .window_left = 7, .window_right = 4),
    SDPA("attention causal, with a window", .causal = true, .window_left = 9, .masked = true),
    SDPA("attention with a window to the right", .window_right = 3),
    SDPA("attention with a window and global tokens", .globals = 100, .window_left = 6,
         .window_right = 6),
    SDPA("attention of global tokens, masked, dropout", .globals = 4, .global_queries = true,
         .masked = true, .dropout = 0.2f),
    SDPA_BY_DISTANCE("attention with global tokens, a window and a bias by distance", .globals = 4,
                     .window_left = 3, .window_right = 9, .masked = true, .group = 2),
    SDPA("attention with marks and a window", .marked = true, .window_left = 6),
    SDPA_CROSS("cross attention, bottom right", .causal = true, .bottom_right = true),
    SDPA_CROSS("cross attention, bottom right, with a window and a bias by distance",
               .bottom_right = true, .window_left = 4, .window_right = 3, .by_distance = true),
    SDPA_CROSS("cross attention with grouped heads and wider values", .group = 2, .value_more = 1,
               .bias = true, .factor = 1),
    SDPA_CROSS("attention of q, k and v apart", .separate = true),
    SDPA_CROSS("attention of q, k and v apart, with all there is", .separate = true, .group = 2,
               .value_more = 1, .bottom_right = true, .window_left = 40, .window_right = 9,
               .dropout = 0.2f, .by_distance = true),
    PROBABILITIES("probabilities of attention with grouped heads, bottom right, a window",
                  .cross = true, .group = 2, .bottom_right = true, .window_left = 4,
                  .window_right = 3, .by_distance = true, .value_more = 2),
    SDPA("attention with marks", .marked = true),
    SDPA("attention with marks, masked, dropout", .marked = true, .masked = true, .dropout = 0.2f),
    SDPA_BY_DISTANCE("attention with marks and a bias by distance", .marked = true, .masked = true),
    PROBABILITIES("probabilities of attention, global tokens", .globals = 4, .window_left = 2,
                  .window_right = 2),
    PROBABILITIES("probabilities of attention", .factor = 0),
    PROBABILITIES("probabilities of attention, causal, masked, with a bias", .causal = true,
                  .masked = true, .bias = true),
    PROBABILITIES("probabilities of attention, marks and a bias by distance", .marked = true,
                  .masked = true, .by_distance = true, .factor = 0.5f),
    PROBABILITIES("probabilities of cross attention", .cross = true, .masked = true),
    POSITION_BIAS("position bias", .weights = VALUES),
    POSITION_BIAS("position bias of a parameter", .weights = PARAMETER),
    POSITION_BIAS("position bias, both directions", .weights = PARAMETER, .second = true),
    ROTARY("rotary of neighbours", .second = false),
    ROTARY("rotary of halves", .second = true, .factor = 500),
    LOW_RANK("low rank"),
    LOW_RANK("low rank, two factors of parameters", .second = true, .weights = PARAMETER),
    CROSS_ENTROPY("cross entropy", .smoothing = 0),
    CROSS_ENTROPY("cross entropy i64 ignoring -100", .index_dtype = MC_I64, .ignore_index = -100),
    CROSS_ENTROPY("cross entropy ignoring 0, smoothed", .ignore_index = MC_INT_ZERO,
                  .smoothing = 0.1f),
    LINEAR_LOSS("linear cross entropy", .bias = false),
    LINEAR_LOSS("linear cross entropy bias ignoring", .bias = true, .ignore_index = -100),
    LINEAR_LOSS("linear cross entropy bias smoothed", .bias = true, .ignore_index = 1,
                .smoothing = 0.2f),
    LINEAR_LOSS("linear cross entropy scaled", .factor = 0.37f),
    LINEAR_LOSS("linear cross entropy bias scaled", .bias = true, .ignore_index = -100,
                .factor = -0.7f),
    {.name = "linear cross entropy in chunks",
     .declare = declare_linear_loss,
     .run = run_linear_loss,
     .seeded = true,
     .reference = linear_loss_reference,
     .flops = linear_loss_flops,
     .f32_only = true,
     /* the gradient of x sums 150,000 terms of f32: one after the other that would change it by
      * 2^-24 sqrt(150,000) = 2.3e-5, in blocks it is less */
     .gradient_tolerance = 2e-5,
     .o = {.bias = true, .ignore_index = -100},
     .sizes = {{7, 3, 150000, 150001}}},
    {.name = "loss add",
     .declare = declare_loss_add,
     .run = run_loss_add,
     .reference = loss_add_reference,
     .o = {.factor = 0.3f, .ignore_index = -100},
     .sizes = {{4, 5, 3, 2}, {7, 3, 30, 9}, {0, 2, 3, 4}, {3, 4, 0, 2}}},
    SLICE("slice of the first dimension", 0),
    SLICE("slice of the middle dimension", 1),
    SLICE("slice of the last dimension", -1),
    CONCAT("concat in the first dimension", 0),
    CONCAT("concat in the middle dimension", 1),
    CONCAT("concat in the last dimension", -1),
    TRANSPOSE("transpose of the last two", 3, 2),
    TRANSPOSE("transpose of heads and tokens", 1, 2),
    TRANSPOSE("transpose of the outermost", 0, 3),
    TRANSPOSE("transpose of one dimension", 2, 2),
    MATMUL("matmul", .single_a = false),
    MATMUL("matmul of parameters", .weights = PARAMETER),
    MATMUL("matmul, a transposed", .transpose_a = true),
    MATMUL("matmul, b transposed", .transpose_b = true),
    MATMUL("matmul, both transposed", .transpose_a = true, .transpose_b = true),
    MATMUL("matmul, one a", .single_a = true),
    MATMUL("matmul, one b", .single_b = true),
    MATMUL("matmul, one b, a transposed", .single_b = true, .transpose_a = true,
           .weights = PARAMETER),
    MATMUL("matmul, one b, b transposed", .single_b = true, .transpose_b = true,
           .weights = PARAMETER),
    MATMUL("matmul, one each", .single_a = true, .single_b = true),
    MATMUL("matmul, one each, both transposed", .single_a = true, .single_b = true,
           .transpose_a = true, .transpose_b = true),
    UNARY("softmax", run_unary, softmax_reference, .unary = mc_softmax),
    UNARY("log softmax", run_unary, softmax_reference, .unary = mc_log_softmax),
    NORMALIZE("normalize", .factor = 0),
    NORMALIZE("normalize with an eps above lengths", .factor = 30.0f),
    REDUCE("sum over the first dimension", .dim = 0),
    REDUCE("sum over the middle dimension", .dim = 1),
    REDUCE("sum over the last dimension", .dim = -1),
    REDUCE("mean over the first dimension", .dim = 0, .mean = true),
    REDUCE("mean over the middle dimension", .dim = 1, .mean = true),
    REDUCE("mean over the last dimension", .dim = -1, .mean = true),
    {.name = "mean pool",
     .declare = declare_pool,
     .run = run_pool,
     .reference = pool_reference,
     .sizes = {{0, 1, 3}, {1, 4, 5}, {2, 8, 7}, {3, 1, 2}, {4, 1, 3}, {5, 64, 100}},
     .perf = {7, 1, 768}},
    {.name = "max pool",
     .declare = declare_max_pool,
     .run = run_max_pool,
     .reference = max_pool_reference,
     .sizes = {{0, 1, 3}, {1, 4, 5}, {2, 8, 7}, {3, 1, 2}, {4, 1, 3}, {5, 64, 100}},
     .perf = {7, 1, 768}},
    FUNCTION("exp", declare_unary, mc_exp),
    FUNCTION("ln", declare_positive, mc_ln),
    FUNCTION("sqrt", declare_positive, mc_sqrt),
    FUNCTION("sigmoid", declare_unary, mc_sigmoid),
    UNARY("sub from itself", run_twice, zero_reference, .binary = mc_sub),
    QUOTIENT("sub", .binary = mc_sub, .weights = VALUES),
    QUOTIENT("sub of a parameter", .binary = mc_sub, .weights = PARAMETER),
    QUOTIENT("div", .binary = mc_div, .weights = VALUES),
    QUOTIENT("div by a parameter", .binary = mc_div, .weights = PARAMETER),
    PAIRS("mse loss", .run_pairs = mc_mse_loss),
    PAIRS("bce loss", .weighted = false),
    PAIRS("bce loss, weighted", .weighted = true),
    ROW_LOSSES("cross entropy of rows", .index_dtype = MC_I64),
    ROW_LOSSES("cross entropy of rows, smoothed, weighted, ignoring 0", .weighted = true,
               .smoothing = 0.2f, .ignore_index = MC_INT_ZERO),
    ROW_LOSSES("cross entropy, weighted", .weighted = true, .mean = true),
    ROW_LOSSES("cross entropy, smoothed, weighted, ignoring -100", .weighted = true, .mean = true,
               .smoothing = 0.1f, .ignore_index = -100),
    FROM_ROWS("loss from rows", .weighted = false),
    FROM_ROWS("loss from rows, counted", .weighted = true),
};

enum { ROW_COUNT = sizeof rows / sizeof *rows };

#endif
