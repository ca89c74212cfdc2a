/* The op harness: runs a row of the table (an operation with its options and sizes) over dtypes,
 * sizes and contexts (instruction sets, devices), and compares it with the row's reference in
 * double.
 *
 *   test   forward against the reference
 *   grad   the gradient of every input and parameter against central differences of the reference,
 *          in three ways: alone, added to a gradient that is there already, and by full recompute
 *   huge   forward and gradients of large inputs against another context in f32 (op_huge.h)
 *   perf   time and throughput of forward and backward
 *
 * Inputs go to the device through the tape and results come back as copies, so that it need not
 * matter where the device's memory is.
 *
 * A row gives three functions: `declare` says which inputs there are, `run` calls the operation,
 * and `reference` computes it from the inputs' doubles. */
#ifndef MC_TESTS_OP_HARNESS_H
#define MC_TESTS_OP_HARNESS_H

#include "tests/device/kernel_test.h"

#include <time.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/ops/ops_internal.h"
#ifdef MC_HAVE_CUDA
#include "core/device/cuda/runtime/routes_internal.h"
#endif

enum { MOST_INPUTS = 6, MOST_SIZES = 10, MOST_SEQUENCES = 8 };
/* The tests' logits_chunk: a loss of 150,000 columns comes in chunks of two rows. */
enum { LOGITS_CHUNK = 300100 };

typedef enum input_kind {
    VALUES,    /* of the row's dtype, with a gradient */
    PARAMETER, /* the same as a leaf, whose f32 gradient is added to */
    INDEX,     /* i32 or i64 */
    MASK,      /* u8 */
} input_kind;

typedef struct op_input {
    input_kind kind;
    mc_dtype dtype;
    mc_shape shape;
    int64_t count;
    double *v;       /* what the reference reads */
    void *data;      /* the same in `dtype`, on the host */
    float *gradient; /* of a parameter: what the operation's is added to */
    mc_tensor *x;    /* on the tape of the run */
    mc_tensor *dx;   /* of a parameter: its gradient there */
} op_input;

typedef struct op_call op_call;

typedef struct op_options {
    mc_activation activation;
    bool bias, second, causal, masked, cross, rms;
    bool by_distance; /* of attention's bias */
    bool marked;      /* attention: who sees whom */
    int globals;      /* attention: one token of so many is global; 0: none */
    bool global_queries;
    bool separate; /* attention: q, k and v are three inputs; with `cross` */
    bool bottom_right;
    int group, value_more; /* query heads of each head of the keys, 0: 1; value_dim - head_dim */
    int window_left, window_right;
    input_kind weights; /* VALUES or PARAMETER */
    const char *route;  /* of attention on a GPU, as in MC_ROUTE; NULL: none is forced */
    int tables;
    mc_dtype to; /* of a cast */
    float dropout, factor, smoothing;
    int32_t ignore_index; /* as in mc_cross_entropy_options */
    mc_dtype index_dtype; /* 0: i32 */
    mc_tensor *(*unary)(mc_tape *t, mc_tensor *x);
    mc_tensor *(*binary)(mc_tape *t, mc_tensor *a, mc_tensor *b);
    mc_tensor *(*run_pairs)(mc_tape *t, mc_tensor *a, mc_tensor *b); /* NULL: mc_bce_loss */
    int dim, other_dim;
    bool transpose_a, transpose_b, single_a, single_b, mean, weighted;
} op_options;

typedef struct op_row {
    const char *name;
    void (*declare)(op_call *c); /* add_input for each, and the output's shape */
    mc_tensor *(*run)(mc_tape *t, op_call *c);
    void (*reference)(const op_call *c, double *y);
    op_options o;
    int64_t sizes[MOST_SIZES][5]; /* what they mean is the row's affair; ends with five zeros... */
    int size_count;               /* ...or, where those are a size, here */
    int64_t perf[5];              /* the size that is timed; all zero: none */
    double (*flops)(const op_call *c); /* NULL: bound by memory */
    bool picks_rows;  /* it reads as much of its inputs as it writes, not all of them */
    bool no_gradient; /* the operation has none */
    bool seeded;      /* a loss whose backward starts with 1 / count only */
    bool f32_only;
    double tolerance;          /* of f32, relative to the largest value; 0: 1e-6 */
    double gradient_tolerance; /* 0: as tolerance */
    int roundings;             /* to 16 bits on the way to a result or gradient; 0: 1 */
    int gradient_roundings;    /* 0: as roundings */
} op_row;

struct op_call {
    const op_row *row;
    const op_options *o;
    const int64_t *n; /* the size */
    mc_dtype dtype;
    mc_dtype values; /* of which the random values are, whatever `dtype` they are given in */
    const char *on;  /* the name of the context */
    mc_context *ctx;
    op_input in[MOST_INPUTS];
    int inputs;
    mc_shape out_shape;
    mc_dtype out_dtype;
    int64_t out_count;
    mc_lengths lengths; /* of a packed batch; capacity 0: not packed */
    int32_t *length, *offset;
    mc_lengths key_lengths; /* of the keys in cross attention, which are another batch */
    int32_t *key_length, *key_offset;
    uint64_t dropout_offset; /* of the last run */
};

/* ---- declaring ------------------------------------------------------------------------------- */

/* After how many random values an input repeats them: making them takes time. */
static int64_t value_period = INT64_MAX;

/* Random values in [low, high) that the dtype has, and not nearer to zero than `least`. */
static inline void random_values(mc_dtype dtype, double *v, int64_t count, double low, double high,
                                 double least)
{
    int64_t period = value_period, fresh = count < period ? count : period;
    for (int64_t i = 0; i < fresh; i++) {
        double value = uniform(low, high);
        if (fabs(value) < least) value = copysign(least, value);
        v[i] = nearest(dtype, value);
    }
    for (int64_t i = fresh; i < count; i += fresh)
        memcpy(v + i, v, (size_t)(count - i < fresh ? count - i : fresh) * sizeof *v);
}

static inline void set_elements(mc_dtype dtype, void *data, const double *v, int64_t count)
{
#pragma omp parallel for if (count > 100000)
    for (int64_t i = 0; i < count; i++) set_element(dtype, data, i, v[i]);
}

static inline op_input *add_input(op_call *c, input_kind kind, mc_dtype dtype, mc_shape shape)
{
    assert_true(c->inputs < MOST_INPUTS);
    op_input *in = &c->in[c->inputs++];
    *in = (op_input){.kind = kind, .dtype = dtype, .shape = shape, .count = mc_shape_count(shape)};
    size_t bytes = (size_t)in->count * mc_dtype_size(dtype) + 64;
    in->v = doubles(in->count);
    in->data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    in->gradient = calloc((size_t)in->count + 1, sizeof *in->gradient);
    assert_true(in->data && in->gradient);
    return in;
}

/* Random values in [low, high), away from zero, where ReLU has no slope. */
static inline op_input *add_values(op_call *c, input_kind kind, mc_shape shape, double low,
                                   double high)
{
    op_input *in = add_input(c, kind, c->dtype, shape);
    random_values(c->values, in->v, in->count, low, high, 2e-3);
    set_elements(in->dtype, in->data, in->v, in->count);
    return in;
}

static inline void set_index(op_input *in, int64_t i, int64_t value)
{
    in->v[i] = (double)value;
    if (in->dtype == MC_I64)
        ((int64_t *)in->data)[i] = value;
    else if (in->dtype == MC_I32)
        ((int32_t *)in->data)[i] = (int32_t)value;
    else
        ((uint8_t *)in->data)[i] = (uint8_t)value;
}

/* Random whole numbers in [0, limit). */
static inline op_input *add_index(op_call *c, input_kind kind, mc_dtype dtype, int64_t count,
                                  int64_t limit)
{
    op_input *in = add_input(c, kind, dtype ? dtype : MC_I32, MC_SHAPE(count));
    for (int64_t i = 0; i < count; i++)
        set_index(in, i, (int64_t)(random_bits() % (uint64_t)limit));
    return in;
}

/* The packed batches of the rows that want one: lengths up to the first negative. */
static const int32_t batches[][MOST_SEQUENCES] = {
    {1, -1},
    {3, 1, 5, -1},
    {4, 0, 7, 0, 1, -1},
    {0, 0, -1},
    {-1},
    {33, 17, 2, -1},
    {70, 1, -1},
    {128, 128, 128, 128, 128, 128, 128, 128},
    {40, 40, 40, -1},
    {4097, 1000, 3, 0, 513, -1},
    {150, 1, 129, 128, -1},
};
enum { MANY = sizeof batches / sizeof *batches, MANY_SEQUENCES = 70000 }; /* of 1 to 4 tokens */

static inline int32_t length_in_batch(int64_t batch, int i)
{
    if (batch == MANY) return i < MANY_SEQUENCES ? 1 + i % 4 : -1;
    return i < MOST_SEQUENCES ? batches[batch][i] : -1;
}

static inline void set_batch(op_call *c, int64_t batch, int64_t round_to)
{
    mc_lengths *l = &c->lengths;
    *l = (mc_lengths){0};
    while (length_in_batch(batch, l->count) >= 0) l->count++;
    c->length = calloc((size_t)l->count + 1, sizeof *c->length);
    c->offset = calloc((size_t)l->count + 1, sizeof *c->offset);
    assert_true(c->length && c->offset);
    for (int i = 0; i < l->count; i++) {
        c->length[i] = length_in_batch(batch, i);
        l->total += c->length[i];
        c->offset[i + 1] = (int32_t)l->total;
        if (c->length[i] > l->longest) l->longest = c->length[i];
    }
    l->length = c->length;
    l->offset = c->offset;
    l->capacity = (l->total + round_to - 1) / round_to * round_to;
}

static inline void set_output(op_call *c, mc_dtype dtype, mc_shape shape)
{
    c->out_dtype = dtype;
    c->out_shape = shape;
    c->out_count = mc_shape_count(shape);
}

/* A call of a row in `dtype`, with random inputs that are values of the dtype `values`. */
static inline void call_begin(op_call *c, const op_row *row, const int64_t *n, mc_dtype dtype,
                              mc_dtype values)
{
    *c = (op_call){
        .row = row, .o = &row->o, .n = n, .dtype = dtype, .values = values, .out_dtype = dtype};
    row->declare(c);
}

static inline void call_end(op_call *c)
{
    for (int i = 0; i < c->inputs; i++) {
        free(c->in[i].v);
        free(c->in[i].data);
        free(c->in[i].gradient);
    }
    free(c->length);
    free(c->offset);
    free(c->key_length);
    free(c->key_offset);
}

static inline bool has_gradient(const op_input *in) { return in->kind <= PARAMETER; }

/* ---- running --------------------------------------------------------------------------------- */

/* A leaf over memory of the tape. */
static inline mc_tensor *put_parameter(mc_tape *t, op_input *in)
{
    mc_tensor *values = mc_tape_input(t, in->dtype, in->shape, in->data, false);
    in->dx = mc_tape_input(t, MC_F32, in->shape, in->gradient, false);
    if (!values || !in->dx) return NULL;
    return mc_tape_leaf(t, in->dtype, in->shape, mc_tensor_data(values), mc_tensor_data(in->dx));
}

static inline void put_inputs(mc_tape *t, op_call *c)
{
    for (int i = 0; i < c->inputs; i++) {
        op_input *in = &c->in[i];
        in->x = in->kind == PARAMETER
                    ? put_parameter(t, in)
                    : mc_tape_input(t, in->dtype, in->shape, in->data, in->kind == VALUES);
        if (in->x && c->lengths.length && mc_tensor_rows(in->x) == c->lengths.capacity)
            in->x->lengths = &c->lengths;
    }
    c->dropout_offset = c->ctx->rng_offset;
}

/* Values of the host as a tensor of the tape. */
static inline mc_tensor *put_values(mc_tape *t, mc_dtype dtype, mc_shape shape, const double *v)
{
    int64_t count = mc_shape_count(shape);
    void *data = malloc((size_t)count * mc_dtype_size(dtype) + 1);
    assert_non_null(data);
    set_elements(dtype, data, v, count);
    mc_tensor *x = mc_tape_input(t, dtype, shape, data, false);
    free(data);
    return x;
}

/* The row as a checkpointed segment: its inputs are what the segment is given. */
static inline mc_tensor *run_segment(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    op_call *c = user;
    c->in[0].x = x;
    for (int i = 1; i < c->inputs; i++)
        if (c->in[i].kind != PARAMETER) c->in[i].x = extra[i - 1];
    return c->row->run(t, c);
}

static inline mc_tensor *run_checkpointed(mc_tape *t, op_call *c)
{
    mc_tensor *extra[MOST_INPUTS] = {0};
    if (c->in[0].kind == PARAMETER) return c->row->run(t, c);
    for (int i = 1; i < c->inputs; i++)
        extra[i - 1] = c->in[i].kind == PARAMETER ? NULL : c->in[i].x;
    return mc_tape_checkpoint(t, run_segment, c, c->in[0].x, extra, c->inputs - 1);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static inline double rounding_unit(mc_dtype dtype)
{
    return dtype == MC_F16 ? 0x1p-11 : dtype == MC_BF16 ? 0x1p-8 : 0;
}

static inline double tolerance_of(const op_call *c, bool gradient)
{
    const op_row *row = c->row;
    if (!gradient && !mc_dtype_is_float(c->out_dtype)) return 0; /* an index */
    double unit = fmax(rounding_unit(c->dtype), rounding_unit(c->out_dtype));
    int roundings = row->roundings ? row->roundings : 1;
    if (gradient && row->gradient_roundings) roundings = row->gradient_roundings;
    roundings += gradient; /* of the sum with the gradient that was there */
    double of_f32 = row->tolerance ? row->tolerance : 1e-6;
    if (gradient && row->gradient_tolerance) of_f32 = row->gradient_tolerance;
    return of_f32 + 1.02 * roundings * unit;
}

static inline double largest_of(const double *v, int64_t n)
{
    double largest = 0;
#pragma omp parallel for reduction(max : largest) if (n > 100000)
    for (int64_t i = 0; i < n; i++) largest = fabs(v[i]) > largest ? fabs(v[i]) : largest;
    return largest;
}

static inline const char *call_text(const op_call *c, const char *what)
{
    static char text[256];
    snprintf(text, sizeof text, "%s (%lld %lld %lld %lld %lld) %s %s: %s", c->row->name,
             (long long)c->n[0], (long long)c->n[1], (long long)c->n[2], (long long)c->n[3],
             (long long)c->n[4], mc_dtype_name(c->dtype), c->on, what);
    return text;
}

/* The largest errors seen, for MC_VERBOSE. */
static double worst_error[2][3];

static inline void note_error(const op_call *c, bool gradient, double relative)
{
    double *worst = &worst_error[gradient][c->dtype - MC_F32];
    *worst = fmax(*worst, relative);
}

/* Every element within the tolerance of the largest, or of `least` where all are smaller. */
static inline void compare_within(const op_call *c, const char *what, const double *got,
                                  const double *expected, int64_t n, double least, bool gradient,
                                  double tolerance)
{
    double largest = fmax(largest_of(expected, n), fmax(least, 1e-30)), worst = 0;
    int64_t bad = n;
#pragma omp parallel for reduction(min : bad) reduction(max : worst) if (n > 100000)
    for (int64_t i = 0; i < n; i++) {
        double error = fabs(got[i] - expected[i]) / largest;
        if (!(error <= tolerance)) bad = i < bad ? i : bad;
        worst = error > worst ? error : worst;
    }
    if (bad < n)
        fail_msg("%s[%lld] is %.9g, expected %.9g: error %.2g of the largest, allowed %.2g",
                 call_text(c, what), (long long)bad, got[bad], expected[bad],
                 fabs(got[bad] - expected[bad]) / largest, tolerance);
    note_error(c, gradient, worst);
}

static inline void compare(const op_call *c, const char *what, const double *got,
                           const double *expected, int64_t n, double least, bool gradient)
{
    compare_within(c, what, got, expected, n, least, gradient, tolerance_of(c, gradient));
}

static inline double *read_tensor(mc_context *ctx, const mc_tensor *x, int64_t n)
{
    float *values = calloc((size_t)n + 1, sizeof *values);
    double *out = doubles(n);
    assert_non_null(values);
    mc_tensor_read_f32(ctx, x, values, n);
#pragma omp parallel for if (n > 100000)
    for (int64_t i = 0; i < n; i++) out[i] = values[i];
    free(values);
    return out;
}

static inline void check_context(const op_call *c)
{
    if (mc_failed(c->ctx)) fail_msg("%s", call_text(c, mc_error_message(c->ctx)));
}

static inline void check_forward(op_call *c, bool training)
{
    double *expected = doubles(c->out_count);
    mc_tape *t = training ? mc_tape_begin(c->ctx) : mc_tape_begin_eval(c->ctx);
    put_inputs(t, c);
    mc_tensor *y = c->row->run(t, c);
    check_context(c);
    if (!mc_shape_equal(y->shape, c->out_shape) || y->dtype != c->out_dtype)
        fail_msg("%s %s %s", call_text(c, "output"), mc_dtype_name(y->dtype),
                 MC_SHAPE_TEXT(y->shape));
    c->row->reference(c, expected);
    double *got = read_tensor(c->ctx, y, c->out_count);
    compare(c, training ? "y" : "y of an eval tape", got, expected, c->out_count, 1e-3, false);
    mc_tape_end(t);
    free(got);
    free(expected);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Four sums, none of which waits for another. */
static inline double dot(const double *a, const double *b, int64_t n)
{
    double sum[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The derivative of <dy, reference> along `direction` (NULL: element i alone) of an input, by
 * central differences. */
static inline double difference(op_call *c, op_input *in, const double *dy, double *y,
                                const double *direction, int64_t i)
{
    const double h = 1e-5;
    int64_t first = direction ? 0 : i, count = direction ? in->count : 1;
    double value[2], *kept = doubles(count);
    memcpy(kept, in->v + first, (size_t)count * sizeof *kept);
    for (int side = 0; side < 2; side++) {
        double step = side ? h : -h;
        for (int64_t k = 0; k < count; k++)
            in->v[first + k] = kept[k] + step * (direction ? direction[k] : 1);
        c->row->reference(c, y);
        value[side] = dot(dy, y, c->out_count);
    }
    memcpy(in->v + first, kept, (size_t)count * sizeof *kept);
    free(kept);
    return (value[1] - value[0]) / (2 * h);
}

/* What one evaluation of the reference costs, roughly. */
static inline double work_of(const op_call *c)
{
    double work = (double)c->out_count;
    for (int i = 0; i < c->inputs; i++) work += (double)c->in[i].count;
    return c->row->flops ? work + c->row->flops(c) : work * 8;
}

typedef struct input_gradient {
    double *expected; /* (count); NULL where there are too many elements to take one by one */
    double *direction[2], along[2];
    int64_t known; /* an element, and the gradient there; NAN: none yet */
    double there;
} input_gradient;

/* Evaluations of the reference take most of the time where accesses are watched. */
static inline int directions(void) { return is_watched() ? 1 : 2; }

static inline void find_gradient(op_call *c, op_input *in, const double *dy, double *y,
                                 input_gradient *g)
{
    *g = (input_gradient){.there = NAN};
    if ((double)in->count * work_of(c) < (is_watched() ? 2e4 : 5e6)) {
        g->expected = doubles(in->count);
        for (int64_t i = 0; i < in->count; i++) g->expected[i] = difference(c, in, dy, y, NULL, i);
        return;
    }
    for (int d = 0; d < directions(); d++) {
        g->direction[d] = doubles(in->count);
        for (int64_t i = 0; i < in->count; i++) g->direction[d][i] = random_bits() & 1 ? 1 : -1;
        g->along[d] = difference(c, in, dy, y, g->direction[d], 0);
    }
}

typedef enum gradient_way { ALONE, ADDED, RECOMPUTED, WAYS } gradient_way;

/* What the gradient of an input is before the operation's backward. */
static inline double gradient_before(const op_input *in, gradient_way way, int64_t i)
{
    if (way == ALONE || (way == RECOMPUTED && in->kind == VALUES)) return 0;
    return 0.25 * (double)(i % 5) - 0.5;
}

static inline void prepare_parameters(op_call *c, gradient_way way)
{
    for (int k = 0; k < c->inputs; k++)
        for (int64_t i = 0; c->in[k].kind == PARAMETER && i < c->in[k].count; i++)
            c->in[k].gradient[i] = (float)gradient_before(&c->in[k], way, i);
}

/* Gives the inputs a gradient from elsewhere, before the operation's backward does. */
static inline void backward_second(mc_tape *t, op_call *c, mc_tensor *const *second)
{
    for (int k = 0; k < c->inputs; k++) {
        if (!second[k]) continue;
        const op_input *in = &c->in[k];
        double *before = doubles(in->count);
        for (int64_t i = 0; i < in->count; i++) before[i] = gradient_before(in, ADDED, i);
        mc_tape_backward(t, second[k], put_values(t, in->dtype, in->shape, before));
        free(before);
    }
}

static inline double *found_gradient(op_call *c, const op_input *in)
{
    const mc_tensor *gradient = in->kind == PARAMETER ? in->dx : mc_tensor_gradient(in->x);
    return gradient ? read_tensor(c->ctx, gradient, in->count) : doubles(in->count);
}

/* Of one element; all contexts and ways mostly ask for the same one. */
static inline double gradient_at(op_call *c, op_input *in, input_gradient *g, const double *dy,
                                 double *y, int64_t at)
{
    if (isnan(g->there) || g->known != at) {
        g->known = at;
        g->there = difference(c, in, dy, y, NULL, at);
    }
    return g->there;
}

/* Large inputs: the gradient along random directions, and its largest element. */
static inline void compare_along(op_call *c, const char *what, op_input *in, input_gradient *g,
                                 gradient_way way, const double *got, const double *dy, double *y)
{
    double norm = sqrt(dot(got, got, in->count)), tolerance = tolerance_of(c, true);
    int64_t at = 0;
    for (int64_t i = 0; i < in->count; i++)
        if (!(fabs(got[i]) <= fabs(got[at]))) at = i;
    for (int d = 0; d < directions(); d++) {
        double found = dot(got, g->direction[d], in->count), expected = g->along[d];
        for (int64_t i = 0; i < in->count; i++)
            expected += gradient_before(in, way, i) * g->direction[d][i];
        double size = fmax(norm, 0.1 * largest_of(dy, c->out_count));
        double error = fabs(found - expected) / fmax(size, 1e-30); /* of an empty output: 0 */
        if (!(error <= 4 * tolerance))
            fail_msg("%s along a direction is %.9g, expected %.9g (norm %g)", call_text(c, what),
                     found, expected, norm);
        note_error(c, true, error);
    }
    if (is_watched()) return;
    double expected = gradient_at(c, in, g, dy, y, at) + gradient_before(in, way, at);
    compare(c, what, got + at, &expected, 1, 0.1 * largest_of(dy, c->out_count), true);
}

static inline void compare_gradient(op_call *c, op_input *in, input_gradient *g, gradient_way way,
                                    const double *dy, double *y)
{
    static const char *const names[] = {"gradient", "gradient added to another",
                                        "recomputed gradient"};
    char what[64];
    snprintf(what, sizeof what, "%s of input %d", names[way], (int)(in - c->in));
    double *got = found_gradient(c, in);
    if (g->expected) {
        double *expected = doubles(in->count);
        for (int64_t i = 0; i < in->count; i++)
            expected[i] = g->expected[i] + gradient_before(in, way, i);
        compare(c, what, got, expected, in->count, 0.1 * largest_of(dy, c->out_count), true);
        free(expected);
    } else {
        compare_along(c, what, in, g, way, got, dy, y);
    }
    free(got);
}

static inline void check_gradient(op_call *c, gradient_way way, const double *dy, double *y,
                                  input_gradient *expected)
{
    mc_tensor *second[MOST_INPUTS] = {0}, *given[MOST_INPUTS];
    mc_tape *t = mc_tape_begin(c->ctx);
    prepare_parameters(c, way);
    put_inputs(t, c);
    for (int k = 0; k < c->inputs; k++) {
        given[k] = c->in[k].x;
        if (c->in[k].kind == VALUES && way == ADDED) second[k] = mc_scale(t, given[k], 1);
    }
    mc_tensor *out = way == RECOMPUTED ? run_checkpointed(t, c) : c->row->run(t, c);
    mc_tensor *d = put_values(t, c->out_dtype, c->out_shape, dy);
    backward_second(t, c, second);
    mc_tape_backward(t, out, c->row->seeded ? NULL : d);
    check_context(c);
    for (int k = 0; k < c->inputs; k++) {
        c->in[k].x = given[k];
        if (has_gradient(&c->in[k])) compare_gradient(c, &c->in[k], &expected[k], way, dy, y);
    }
    mc_tape_end(t);
}

/* The gradient given to the output: random; of a loss, its sum's alone. */
static inline double *output_gradient(const op_call *c, const double *y)
{
    double *dy = doubles(c->out_count);
    for (int64_t i = 0; i < c->out_count; i++)
        dy[i] = nearest(c->out_dtype, copysign(uniform(0.1, 1), uniform(-1, 1)));
    bool loss = c->out_dtype == MC_F32 && mc_shape_equal(c->out_shape, MC_SHAPE(2));
    if (loss) dy[1] = 0;
    if (c->row->seeded) dy[0] = 1 / fmax(y[1], 1);
    return dy;
}

static inline void free_gradients(op_call *c, input_gradient *g)
{
    for (int k = 0; k < c->inputs; k++) {
        free(g[k].expected);
        free(g[k].direction[0]);
        free(g[k].direction[1]);
    }
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* Filled in by the program's `open`; none: the rows are skipped. */
typedef struct op_context {
    const char *name;
    mc_context *ctx;
    size_t in_use; /* bytes of its device when it was opened */
    bool f32_only;
} op_context;

static op_context contexts[4];
static int context_count;
static int perf_context; /* which of them is timed */

static inline void add_context(const char *name, mc_context *ctx)
{
    contexts[context_count++] =
        (op_context){.name = name, .ctx = ctx, .in_use = ctx->device->memory.in_use};
}

/* Whatever ran, its memory has come back. */
static inline int close_contexts(void **state)
{
    (void)state;
    size_t leaked = 0;
    for (int i = 0; i < context_count; i++) {
        leaked += contexts[i].ctx->device->memory.in_use - contexts[i].in_use;
        mc_context_free(contexts[i].ctx);
    }
    if (leaked) fprintf(stderr, "%zu bytes of device memory were not given back\n", leaked);
    context_count = 0;
    return leaked != 0;
}

static inline void choose_context(op_call *c, int i)
{
    c->ctx = contexts[i].ctx;
    c->on = contexts[i].name;
}

/* Whether a call runs in context i. */
static inline bool is_for(const op_call *c, int i)
{
    return !contexts[i].f32_only || c->dtype == MC_F32;
}

/* ---- the modes ------------------------------------------------------------------------------- */

static inline int size_count(const op_row *row)
{
    static const int64_t zeros[5];
    if (row->size_count) return row->size_count;
    int n = 0;
    while (n < MOST_SIZES && memcmp(row->sizes[n], zeros, sizeof zeros) != 0) n++;
    return n;
}

/* Where accesses are watched, sizes have the one and the other of the 16-bit types in turn. */
static inline void each_call(const op_row *row, void (*fn)(op_call *c))
{
    int sizes = size_count(row), types = row->f32_only ? 1 : 3;
    assert_true(sizes > 0);
    for (int i = 0; i < sizes; i++)
        for (int type = 0; type < types; type++) {
            op_call c;
            if (is_watched() && sizes > 1 && type == 1 + i % 2) continue;
            random_state = 88172645463325252u + (uint64_t)i;
            call_begin(&c, row, row->sizes[i], float_types[type], float_types[type]);
            fn(&c);
            call_end(&c);
        }
}

static inline void test_call(op_call *c)
{
    for (int i = 0; i < context_count; i++) {
        if (!is_for(c, i)) continue;
        choose_context(c, i);
        check_forward(c, true);
        bool eval = !is_watched() || c->dtype == MC_F32;
        if (c->o->dropout == 0 && eval) check_forward(c, false);
    }
}

static inline void grad_call(op_call *c)
{
    input_gradient expected[MOST_INPUTS] = {0};
    double *y = doubles(c->out_count);
    choose_context(c, 0); /* the seed is the same in all */
    c->dropout_offset = 77;
    c->row->reference(c, y);
    double *dy = output_gradient(c, y);
    for (int k = 0; k < c->inputs; k++)
        if (has_gradient(&c->in[k])) find_gradient(c, &c->in[k], dy, y, &expected[k]);
    for (int i = 0; i < context_count; i++)
        for (gradient_way way = ALONE; way < WAYS; way++) {
            if (!is_for(c, i)) continue;
            if (is_watched() && way == RECOMPUTED && (i || c->dtype != MC_F32)) continue;
            choose_context(c, i);
            c->ctx->rng_offset = 77;
            check_gradient(c, way, dy, y, expected);
        }
    free_gradients(c, expected);
    free(y);
    free(dy);
}

static inline void test_row(void **state)
{
    if (!context_count) skip();
    each_call(*state, test_call);
}

static inline void grad_row(void **state)
{
    const op_row *row = *state;
    if (!context_count) skip();
    if (!row->no_gradient) each_call(row, grad_call);
}

static inline double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Waits for what was launched, by reading some tensor. */
static inline void finish(const op_call *c, const mc_tensor *x)
{
    mc_device *d = c->ctx->device;
    char byte;
    if (mc_tensor_count(x)) d->copy_out(d, &byte, mc_tensor_data(x), 1);
}

/* Seconds of forward, or of forward and backward: the fastest of several. */
static inline double time_call(op_call *c, bool backward)
{
    double best = INFINITY, spent = 0;
    for (int i = 0; i < 5 || (spent < 0.3 && i < 200); i++) {
        bool training = backward || c->o->dropout > 0;
        mc_tape *t = training ? mc_tape_begin(c->ctx) : mc_tape_begin_eval(c->ctx);
        put_inputs(t, c);
        mc_tensor *d = mc_tape_input(t, c->out_dtype, c->out_shape, NULL, false);
        finish(c, d);
        double start = seconds_now();
        mc_tensor *y = c->row->run(t, c);
        if (backward) mc_tape_backward(t, y, c->row->seeded ? NULL : d);
        finish(c, d);
        double took = seconds_now() - start;
        mc_tape_end(t);
        check_context(c);
        if (i) best = fmin(best, took); /* the first one asks the system for memory */
        spent += took;
    }
    return best;
}

static inline void print_rate(const op_call *c, double seconds, double passes)
{
    double bytes = (double)c->out_count * (double)mc_dtype_size(c->out_dtype);
    for (int i = 0; i < c->inputs && !c->row->picks_rows; i++)
        bytes += (double)c->in[i].count * (double)mc_dtype_size(c->in[i].dtype);
    if (c->row->picks_rows) bytes *= 2;
    if (c->row->flops)
        printf("  %9.3f ms %8.1f GFLOP/s", seconds * 1e3,
               passes * c->row->flops(c) / seconds * 1e-9);
    else
        printf("  %9.3f ms %8.1f GB/s   ", seconds * 1e3, passes * bytes / seconds * 1e-9);
}

/* In one context. Throughput counts each input and the output once a pass, and products three times
 * where backward runs too. */
static inline void perf_row(void **state)
{
    static const int64_t zeros[5];
    const op_row *row = *state;
    if (!context_count) skip();
    if (memcmp(row->perf, zeros, sizeof zeros) == 0) return;
    for (int type = 0; type < (row->f32_only ? 1 : 3); type++) {
        op_call c;
        call_begin(&c, row, row->perf, float_types[type], float_types[type]);
        choose_context(&c, perf_context);
        printf("%-34s %-4s %-6s", row->name, mc_dtype_name(c.dtype), c.on);
        print_rate(&c, time_call(&c, false), 1);
        if (!row->no_gradient) {
            printf("   with backward");
            print_rate(&c, time_call(&c, true), row->flops ? 3 : 2);
        }
        printf("\n");
        call_end(&c);
    }
}

/* ---- the program ----------------------------------------------------------------------------- */

typedef struct op_arguments {
    const char *mode, *op; /* NULL: test and grad; every operation */
} op_arguments;

/* [test|grad|huge|perf] [--op NAME]; false after saying so. */
static inline bool read_arguments(op_arguments *a, int argc, char **argv)
{
    static const char *const modes[] = {"test", "grad", "huge", "perf"};
    *a = (op_arguments){0};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (strcmp(argv[i], "--op") == 0 && i + 1 < argc) {
            a->op = argv[++i];
            continue;
        }
        for (int m = 0; m < 4 && !a->mode; m++)
            if ((known = strcmp(argv[i], modes[m]) == 0)) a->mode = modes[m];
        if (known) continue;
        fprintf(stderr, "usage: %s [test|grad|huge|perf] [--op NAME]\n", argv[0]);
        return false;
    }
    return true;
}

typedef struct test_list {
    struct CMUnitTest test[512];
    char name[512][96];
    size_t count;
} test_list;

static inline void add_test(test_list *l, const char *mode, const char *name,
                            CMUnitTestFunction function, const void *state)
{
    assert_true(l->count < sizeof l->test / sizeof *l->test);
    snprintf(l->name[l->count], sizeof *l->name, "%s: %s", mode, name);
    l->test[l->count] = (struct CMUnitTest){l->name[l->count], function, NULL, NULL, (void *)state};
    l->count++;
}

static inline void add_rows(test_list *l, const op_arguments *a, const op_row *rows, int count)
{
    static const char *const modes[] = {"test", "grad", "perf"};
    static const CMUnitTestFunction functions[] = {test_row, grad_row, perf_row};
    for (int i = 0; i < count; i++)
        for (int m = 0; m < 3; m++) {
            if (a->mode ? strcmp(a->mode, modes[m]) != 0 : m == 2) continue;
            if (!a->op || strstr(rows[i].name, a->op))
                add_test(l, modes[m], rows[i].name, functions[m], &rows[i]);
        }
}

/* `open` fills in the contexts; `close` calls close_contexts. */
static inline int run_list(test_list *l, const op_arguments *a, CMFixtureFunction open,
                           CMFixtureFunction close)
{
    if (!l->count) return fprintf(stderr, "no operation is called \"%s\"\n", a->op), 2;
    int failed = _cmocka_run_group_tests("ops", l->test, l->count, open, close);
    if (getenv("MC_VERBOSE"))
        for (int g = 0; g < 2; g++)
            printf("worst %s: f32 %.2e f16 %.2e bf16 %.2e\n", g ? "gradient" : "output",
                   worst_error[g][0], worst_error[g][1], worst_error[g][2]);
    return failed;
}

#endif
