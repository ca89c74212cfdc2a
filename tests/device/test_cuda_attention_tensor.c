/* Attention on the GPU's tensor cores (MC_ROUTE=attention:hopper) against plain loops in double on
 * the same rounded inputs: head sizes, packed sequences of all kinds of lengths, bias by distance,
 * marks, windows, dropout, forward and backward. Skipped where there is no GPU that it is for. */
#include <stdio.h>

#ifndef MC_HAVE_CUDA
int main(void)
{
    printf("SKIPPED: attention on tensor cores: built without CUDA\n");
    return 0;
}
#else

#include "core/device/cuda/attention/attention_internal.h"
#include "tests/device/gpu_test.h"

enum { MOST = 400 }; /* sequences */

typedef struct attention_case {
    const int32_t *length, *key_length; /* key_length NULL: keys are the queries' batch */
    int count, heads, dim;
    mc_dtype dtype;
    bool causal, biased, marked;
    float dropout;
    int left, right;   /* of a window; 0: no limit */
    int gap, grad_gap; /* elements between rows */
    int tail;          /* rows of capacity after the last token */
    int limit_more;    /* distances that no sequence has */
    bool fixed;        /* lengths are known to the kernels alone */
} attention_case;

/* What ||x - reference|| / ||reference|| may be: the types' rounding, a few times over. */
static double limit_of(mc_dtype dtype) { return dtype == MC_F16 ? 2e-3 : 1e-2; }

/* ---- data ------------------------------------------------------------------------------------ */

/* One packed batch: rows of q, k and v beside each other, and their gradients. */
typedef struct batch {
    int32_t packed[2 * MOST + 1]; /* length, then offset */
    mc_lengths lengths;           /* as the kernels are told */
    int64_t rows;                 /* that there are */
    matrix x, dx;
    double *r_dx; /* (rows, 3 * width) */
} batch;

typedef struct attention_data {
    attention_case c;
    batch queries, others, *keys;
    mc_attention_shape shape; /* of host memory */
    int64_t width, distances; /* of a row; of a head's bias */
    matrix out, dout, bias, dbias;
    float *lse;
    int32_t *marks;
    double *r_out, *r_lse, *r_dbias;
} attention_data;

static void poison(matrix *x)
{
    size_t size = mc_dtype_size(x->m.dtype);
    for (int64_t r = 0; r < x->rows; r++)
        memset((char *)x->m.data + (size_t)(r * x->m.stride) * size, 0xff,
               (size_t)x->columns * size);
}

static void batch_init(batch *b, const attention_case *c, const int32_t *length)
{
    static int32_t something;
    int32_t *offset = b->packed + c->count, longest = 0;
    int64_t columns = 3 * (int64_t)c->heads * c->dim;
    assert_true(c->count <= MOST);
    memset(b->packed, 0, sizeof b->packed);
    for (int i = 0; i < c->count; i++) {
        b->packed[i] = length[i];
        offset[i + 1] = offset[i] + length[i];
        if (length[i] > longest) longest = length[i];
    }
    b->rows = offset[c->count];
    int64_t capacity = b->rows + c->tail;
    b->lengths = (mc_lengths){c->count, b->packed, offset, b->rows, capacity, longest};
    if (c->fixed) {
        b->lengths.total = capacity;
        b->lengths.longest = longest + 37;
        b->lengths.fixed = (struct mc_tensor *)&something;
    }
    b->x = matrix_new(c->dtype, capacity, columns, c->gap, -2, 2);
    b->dx = matrix_new(c->dtype, capacity, columns, c->grad_gap, -2, 2);
    poison(&b->dx);
    b->r_dx = doubles(capacity * columns);
}

static void batch_free(batch *b)
{
    matrix_free(&b->x);
    matrix_free(&b->dx);
    free(b->r_dx);
}

/* Spans of some length, each with a context at its beginning; now and then another token's mark. */
static int32_t *random_marks(int64_t rows)
{
    int32_t *marks = malloc((size_t)(rows + 1) * sizeof *marks), span = 0;
    assert_non_null(marks);
    for (int64_t i = 0; i < rows; span++) {
        int64_t end = i + 1 + random_bits() % 150, plain = i + random_bits() % 100;
        for (; i < end && i < rows; i++)
            marks[i] = 2 * (span % 5) + (i < plain || random_bits() % 50 == 0);
    }
    return marks;
}

static void data_init(attention_data *d, attention_case c)
{
    *d = (attention_data){.c = c, .width = (int64_t)c.heads * c.dim};
    batch_init(&d->queries, &c, c.length);
    d->keys = &d->queries;
    if (c.key_length) batch_init(d->keys = &d->others, &c, c.key_length);
    const mc_lengths *l = &d->queries.lengths, *k = &d->keys->lengths;
    int64_t limit = (l->longest > k->longest ? l->longest : k->longest) + c.limit_more;
    if (limit == 0) limit = 1;
    d->distances = 2 * limit - 1;
    d->out = matrix_new(c.dtype, l->capacity, d->width, c.gap, -2, 2);
    d->dout = matrix_new(c.dtype, l->capacity, d->width, c.grad_gap, -2, 2);
    d->bias = matrix_new(MC_F32, c.heads, d->distances, 0, -2, 2);
    d->dbias = matrix_new(MC_F32, c.heads, d->distances, 0, -0.1, 0.1);
    poison(&d->out);
    d->marks = random_marks(l->capacity);
    d->lse = calloc((size_t)(c.heads * l->total) + 1, sizeof *d->lse);
    assert_non_null(d->lse);
    d->r_out = doubles(l->capacity * d->width);
    d->r_lse = doubles(c.heads * l->total);
    d->r_dbias = doubles(c.heads * d->distances);
    memcpy(d->r_dbias, d->dbias.v, (size_t)(c.heads * d->distances) * sizeof *d->r_dbias);
    d->shape = (mc_attention_shape){.lengths = l,
                                    .key_lengths = c.key_length ? k : NULL,
                                    .heads = c.heads,
                                    .head_dim = c.dim,
                                    .scale = 1 / sqrtf((float)c.dim),
                                    .causal = c.causal,
                                    .window_left = c.left,
                                    .window_right = c.right,
                                    .dropout = {c.dropout, 0x9876543210u, 3},
                                    .position_limit = limit};
}

static void data_free(attention_data *d)
{
    matrix *all[] = {&d->out, &d->dout, &d->bias, &d->dbias};
    for (int i = 0; i < 4; i++) matrix_free(all[i]);
    batch_free(&d->queries);
    if (d->c.key_length) batch_free(&d->others);
    free(d->lse);
    free(d->marks);
    free(d->r_out);
    free(d->r_lse);
    free(d->r_dbias);
}

/* ---- the reference --------------------------------------------------------------------------- */

/* A query of one head: its row, and that of its sequence's first key. */
typedef struct query {
    int64_t row, first_row, key_row;
    int i, keys, h;
} query;

static bool sees(const attention_data *d, const query *q, int j)
{
    if (d->c.left && q->i - j >= d->c.left) return false;
    if (d->c.right && !d->c.causal && j - q->i >= d->c.right) return false;
    if (!d->c.marked) return !d->c.causal || j <= q->i;
    int32_t mine = d->marks[q->row], other = d->marks[q->key_row + j];
    return mine / 2 == other / 2 && (other % 2 || (!(mine % 2) && j <= q->i));
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add(double *to, const double *x, double factor, int n)
{
    for (int i = 0; i < n; i++) to[i] += factor * x[i];
}

static double *bias_at(const attention_data *d, double *bias, const query *q, int j)
{
    return bias + q->h * d->distances + d->distances / 2 + j - q->i;
}

/* p (keys) = the query's probabilities. */
static void reference_probabilities(attention_data *d, const query *q, double *p)
{
    const int64_t w = d->width, column = (int64_t)q->h * d->c.dim;
    double largest = -INFINITY, sum = 0;
    for (int j = 0; j < q->keys; j++) {
        p[j] = -INFINITY;
        if (!sees(d, q, j)) continue;
        p[j] = dot(d->queries.x.v + q->row * 3 * w + column,
                   d->keys->x.v + (q->key_row + j) * 3 * w + w + column, d->c.dim) *
               (double)d->shape.scale;
        if (d->c.biased) p[j] += *bias_at(d, d->bias.v, q, j);
        if (p[j] > largest) largest = p[j];
    }
    for (int j = 0; j < q->keys; j++) sum += p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - largest);
    for (int j = 0; j < q->keys; j++) p[j] /= sum > 0 ? sum : 1;
    d->r_lse[q->h * d->queries.lengths.total + q->row] =
        sum > 0 ? largest + log(sum) : (double)INFINITY;
}

static void reference_query(attention_data *d, const query *q, double *p, double *dp)
{
    const int n = d->c.dim;
    const int64_t w = d->width, column = (int64_t)q->h * n;
    const int64_t words = (d->keys->lengths.longest + 3) / 4 * 4;
    const int64_t line = (q->h * d->queries.lengths.total + q->row) * words;
    const double *g = d->dout.v + q->row * w + column, *x = d->queries.x.v + q->row * 3 * w;
    double *out = d->r_out + q->row * w + column, mean = 0;
    reference_probabilities(d, q, p);
    for (int j = 0; j < q->keys; j++) {
        const int64_t at = (q->key_row + j) * 3 * w + 2 * w + column;
        const double kept = reference_dropout(d->shape.dropout, (uint64_t)(line + j));
        add(out, d->keys->x.v + at, p[j] * kept, n);
        add(d->keys->r_dx + at, g, p[j] * kept, n);
        mean += p[j] * (dp[j] = kept * dot(g, d->keys->x.v + at, n));
    }
    for (int j = 0; j < q->keys; j++) {
        const int64_t at = (q->key_row + j) * 3 * w + w + column;
        const double ds = p[j] * (dp[j] - mean);
        if (d->c.biased) *bias_at(d, d->r_dbias, q, j) += ds;
        add(d->queries.r_dx + q->row * 3 * w + column, d->keys->x.v + at,
            ds * (double)d->shape.scale, n);
        add(d->keys->r_dx + at, x + column, ds * (double)d->shape.scale, n);
    }
}

static void run_reference(attention_data *d)
{
    const mc_lengths *l = &d->queries.lengths, *k = &d->keys->lengths;
    double *p = doubles(k->longest), *dp = doubles(k->longest);
    for (int s = 0; s < l->count; s++)
        for (int h = 0; h < d->c.heads; h++)
            for (int i = 0; i < l->length[s]; i++) {
                const query q = {l->offset[s] + i, l->offset[s], k->offset[s], i, k->length[s], h};
                reference_query(d, &q, p, dp);
            }
    free(p);
    free(dp);
}

/* ---- the GPU --------------------------------------------------------------------------------- */

/* A batch on the GPU. */
typedef struct uploaded {
    batch *b;
    mc_matrix x, dx;
    int32_t *lengths;
} uploaded;

static uploaded upload_batch(batch *b)
{
    return (uploaded){b, upload_matrix(&b->x), upload_matrix(&b->dx),
                      upload(b->packed, sizeof b->packed)};
}

static void take_batch(const uploaded *u)
{
    gpu->free(gpu, u->x.data, matrix_bytes(&u->b->x));
    gpu->free(gpu, u->lengths, sizeof u->b->packed);
    take_matrix(u->dx, &u->b->dx);
}

static void run_kernels(attention_data *d, mc_attention_shape *s, const uploaded *q,
                        const uploaded *k)
{
    size_t lse_bytes = (size_t)(d->c.heads * d->queries.lengths.total) * sizeof(float);
    float *lse = upload(d->lse, lse_bytes);
    mc_matrix out = upload_matrix(&d->out), dout = upload_matrix(&d->dout);
    int64_t w = d->width;
    assert_ok(gpu->kernels->attention(gpu, s, q->x, columns_from(k->x, w),
                                      columns_from(k->x, 2 * w), out, lse));
    assert_ok(gpu->kernels->attention_backward(gpu, s, q->x, columns_from(k->x, w),
                                               columns_from(k->x, 2 * w), out, lse, dout, q->dx,
                                               columns_from(k->dx, w), columns_from(k->dx, 2 * w)));
    assert_true(gpu->copy_out(gpu, d->lse, lse, lse_bytes));
    gpu->free(gpu, dout.data, matrix_bytes(&d->dout));
    gpu->free(gpu, lse, lse_bytes);
    take_matrix(out, &d->out);
}

static void run_gpu(attention_data *d)
{
    mc_attention_shape s = d->shape;
    size_t marks_bytes = (size_t)(d->queries.lengths.capacity + 1) * sizeof *d->marks;
    int32_t *marks = upload(d->marks, marks_bytes);
    mc_matrix bias = upload_matrix(&d->bias), dbias = upload_matrix(&d->dbias);
    uploaded q = upload_batch(&d->queries), others = {0}, *k = &q;
    if (d->c.key_length) *(k = &others) = upload_batch(&d->others);
    s.device_lengths = q.lengths;
    if (s.key_lengths) s.device_key_lengths = k->lengths;
    if (d->c.marked) s.marks = marks;
    if (d->c.biased) {
        s.position_bias = bias.data;
        s.dposition_bias = dbias.data;
    }
    run_kernels(d, &s, &q, k);
    take_batch(&q);
    if (d->c.key_length) take_batch(k);
    gpu->free(gpu, marks, marks_bytes);
    gpu->free(gpu, bias.data, matrix_bytes(&d->bias));
    take_matrix(dbias, &d->dbias);
}

/* ---- comparison ------------------------------------------------------------------------------ */

typedef struct distance {
    double difference, reference; /* norms */
} distance;

/* Of columns first .. first + n in the first `rows` rows. */
static distance distance_of(const matrix *x, const double *reference, int64_t rows, int64_t first,
                            int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = first; c < first + n; c++) {
            double want = reference[r * x->columns + c];
            double got = element(x->m.dtype, x->m.data, r * x->m.stride + c);
            difference += (got - want) * (got - want);
            size += want * want;
        }
    return (distance){sqrt(difference), sqrt(size)};
}

static void assert_close(const attention_data *d, distance x, double least, const char *what)
{
    const attention_case *c = &d->c;
    double size = x.reference > least ? x.reference : least, limit = limit_of(c->dtype);
    if (x.difference <= limit * size) return; /* not true of NaN */
    fail_msg("%s, %s: %d sequences, %d heads of %d, longest %d and %d, causal %d, biased %d, "
             "marked %d, window %d and %d, dropout %g, fixed %d: error %.3g of %.3g, at most %.3g "
             "of it expected",
             what, mc_dtype_name(c->dtype), c->count, c->heads, c->dim, d->queries.lengths.longest,
             d->keys->lengths.longest, c->causal, c->biased, c->marked, c->left, c->right,
             (double)c->dropout, c->fixed, x.difference, size, limit);
}

/* Rows past the last token are zeros in columns first .. end; what lies between rows is as it
 * was. */
static void assert_frame(const batch *b, const matrix *x, int64_t first, int64_t end,
                         const char *what)
{
    for (int64_t r = b->rows; r < x->rows; r++)
        for (int64_t c = first; c < end; c++)
            if (element(x->m.dtype, x->m.data, r * x->m.stride + c) != 0)
                fail_msg("%s: row %lld past the last token is not zero", what, (long long)r);
    assert_gaps(x, what);
}

static void assert_log_sum_exp(const attention_data *d)
{
    int64_t total = d->queries.lengths.total;
    for (int h = 0; h < d->c.heads; h++)
        for (int64_t r = 0; r < d->queries.rows; r++) {
            double got = d->lse[h * total + r], want = d->r_lse[h * total + r];
            /* f32: sums of up to 256 products, and a few ulp of the powers */
            if (got == want || fabs(got - want) < 2e-5) continue;
            fail_msg("log sum exp of head %d, row %lld of heads of %d: %.9g, expected %.9g", h,
                     (long long)r, d->c.dim, got, want);
        }
}

static void assert_results(const attention_data *d)
{
    const batch *q = &d->queries, *k = d->keys;
    int64_t w = d->width;
    distance dq = distance_of(&q->dx, q->r_dx, q->rows, 0, w);
    distance dk = distance_of(&k->dx, k->r_dx, k->rows, w, w);
    distance dv = distance_of(&k->dx, k->r_dx, k->rows, 2 * w, w);
    assert_log_sum_exp(d);
    assert_close(d, distance_of(&d->out, d->r_out, q->rows, 0, w), 0, "out");
    assert_close(d, dv, 0, "dv");
    /* With few keys dq, dk and dbias are small differences of numbers like those in dv, and the
     * rounding of out gets into them through the mean of dp. */
    assert_close(d, dq, 0.5 * dv.reference, "dq");
    assert_close(d, dk, 0.5 * dv.reference, "dk");
    assert_close(d, distance_of(&d->dbias, d->r_dbias, d->c.heads, 0, d->distances),
                 0.5 * dv.reference, "dbias");
    assert_frame(q, &d->out, 0, w, "out");
    assert_frame(q, &q->dx, 0, w, "dq");
    assert_frame(k, &k->dx, w, 3 * w, "dkv");
}

static void run_case(attention_case c)
{
    attention_data d;
    if (!is_mine()) return;
    data_init(&d, c);
    run_reference(&d);
    run_gpu(&d);
    assert_results(&d);
    data_free(&d);
}

/* Plain, causal, biased, causal and biased, marked, marked and biased; with dropout too. */
static void run_kinds(attention_case c, bool with_marks)
{
    for (int mode = 0; mode < (with_marks ? 12 : 8); mode++) {
        c.biased = mode & 1;
        c.dropout = mode & 2 ? 0.2f : 0;
        c.causal = mode & 4;
        c.marked = mode & 8;
        run_case(c);
    }
}

/* A shape with operands that lie as x does. */
static bool is_taken(const mc_attention_shape *s, mc_matrix x)
{
    const mc_attention_call c = {.shape = s, .q = x, .k = x, .v = x, .out = x};
    const mc_route *route;
    return mc_route_choose(gpu, MC_ROUTE_ATTENTION, &c, &route) == MC_OK;
}

/* Whether the GPU is one that it is for, its route then is forced; says so where it is not. */
static bool with_tensor(void)
{
    const int32_t length[] = {1};
    mc_lengths l = {1, length, length, 1, 1, 1};
    mc_attention_shape s = {.lengths = &l, .heads = 1, .head_dim = 64, .scale = 1};
    mc_matrix x = {(void *)(uintptr_t)256, MC_BF16, 64};
    if (!mc_routes_read(gpu, "attention:hopper") && is_taken(&s, x)) return true;
    printf("SKIPPED: %s\n", gpu->failure);
    return false;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const int32_t ragged[] = {3, 0, 1, 65, 130, 17};
static const int32_t other_keys[] = {17, 5, 0, 130, 65, 1};
static const mc_dtype types[] = {MC_BF16, MC_F16};

static void test_head_sizes(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    const int dims[] = {8, 40, 64, 72, 80, 96, 120, 128, 200, 256};
    for (int i = 0; i < 10; i++)
        for (int t = 0; t < 2; t++)
            run_kinds((attention_case){ragged, NULL, 6, 2, dims[i], types[t]}, true);
}

static void test_lengths(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    const int32_t lengths[] = {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 256, 320, 512, 600};
    for (int i = 0; i < 15; i++)
        run_kinds((attention_case){&lengths[i], NULL, 1, 1, i % 2 ? 64 : 80, types[i % 2]}, true);
    const int32_t several[] = {300, 128, 512, 1, 0, 333, 64};
    for (int mode = 0; mode < 8; mode++) {
        attention_case c = {several, NULL, 7, 1, 64, types[mode % 2], .biased = true};
        if (mode & 2) c.dim = mode & 1 ? 128 : 80;
        if (mode & 1) c.dropout = 0.1f;
        if (mode & 4) c.marked = true;
        c.causal = !c.marked;
        run_case(c);
    }
}

static void test_long_and_many(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    int32_t longest[] = {4096, 5}, few[] = {7, 300};
    for (int dim = 64; dim <= 256; dim *= 2) {
        longest[0] = dim == 256 ? 2048 : 4096;
        attention_case c = {longest, few, 2, 1, dim, MC_BF16, .biased = true};
        run_case(c);
        c.causal = true;
        run_case(c);
        c.length = few, c.key_length = longest, c.causal = false;
        run_case(c);
    }
    run_case((attention_case){longest, NULL, 2, 1, 64, MC_F16, .marked = true, .biased = true});
    static int32_t many[MOST];
    for (int i = 0; i < MOST; i++) many[i] = i % 7 * 5;
    run_kinds((attention_case){many, NULL, MOST, 3, 64, MC_BF16}, true);
}

/* Windows that end before, in and after tiles of 64 and 128, of one side and of both; with other
 * keys also ones that leave queries without a key and keys without a query. */
static void test_windows(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    const int32_t several[] = {300, 128, 200, 1, 0, 65, 260};
    const int sizes[] = {1, 2, 63, 64, 65, 66, 128, 129, 200, INT32_MAX};
    for (int i = 0; i < 10; i++)
        for (int mode = 0; mode < 8; mode++) {
            attention_case c = {several, NULL, 7, 2, mode & 1 ? 128 : 64, types[i % 2]};
            c.left = sizes[i];
            c.right = mode & 2 ? 0 : i % 3 ? sizes[i] : 17;
            c.causal = mode & 4;
            if (mode == 6) c.left = 0, c.right = sizes[i];
            if (mode & 1) c.dropout = 0.1f;
            run_case(c);
        }
    for (int i = 0; i < 4; i++) {
        attention_case c = {several, ragged, 6, 1, i % 2 ? 80 : 256, types[i / 2]};
        c.left = c.right = 20;
        run_case(c);
        c.length = ragged, c.key_length = several;
        run_case(c);
        c.key_length = NULL, c.fixed = true, c.tail = 70, c.gap = 8, c.grad_gap = 5;
        run_case(c);
    }
}

/* Queries against other keys: fewer, more, none; and keys without queries. */
static void test_cross(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    const int dims[] = {64, 80, 128, 256};
    const int32_t none[] = {0, 0, 0, 0, 0, 0}, long_keys[] = {500, 5, 0, 512, 300, 77};
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < 2; t++) {
            attention_case c = {ragged, other_keys, 6, 2, dims[i], types[t]};
            run_kinds(c, false);
            c.key_length = long_keys;
            run_kinds(c, false);
            c.key_length = none;
            run_case(c);
            c.length = none, c.key_length = other_keys;
            run_case(c);
        }
}

/* Rows that lie apart, gradients that are not even aligned, rows after the last, more distances
 * than there are, and lengths that the host does not know. */
static void test_frames(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    for (int mode = 0; mode < 8; mode++) {
        attention_case c = {ragged, NULL, 6, 2, 64, types[mode % 2], .biased = true};
        c.gap = 8;
        c.grad_gap = mode & 2 ? 5 : 16;
        c.tail = 70;
        c.limit_more = 9;
        c.fixed = mode & 4;
        run_kinds(c, true);
        c.key_length = other_keys;
        run_kinds(c, false);
    }
}

static void test_empty(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    const int32_t none[] = {0, 0};
    run_case((attention_case){none, NULL, 0, 2, 64, MC_BF16});
    run_case((attention_case){none, NULL, 2, 2, 64, MC_BF16, .biased = true, .tail = 3});
}

/* The same bits again and again. */
static void assert_repeatable(attention_case c)
{
    attention_data d;
    if (!is_mine()) return;
    data_init(&d, c);
    const matrix *results[] = {&d.queries.dx, &d.keys->dx, &d.out, &d.dbias};
    char *first[4];
    for (int run = 0; run < 5; run++) {
        matrix_reset(&d.dbias);
        run_gpu(&d);
        for (int i = 0; i < 4; i++) {
            size_t bytes = matrix_bytes(results[i]);
            if (run == 0) assert_non_null(first[i] = malloc(bytes));
            if (run == 0) memcpy(first[i], results[i]->m.data, bytes);
            assert_memory_equal(first[i], results[i]->m.data, bytes);
        }
    }
    for (int i = 0; i < 4; i++) free(first[i]);
    data_free(&d);
}

static void test_repeatable(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    static int32_t dense[8];
    for (int i = 0; i < 8; i++) dense[i] = 512 - i % 3;
    for (int dim = 64; dim <= 256; dim *= 2) {
        assert_repeatable((attention_case){dense, NULL, 8, 6, dim, MC_BF16, .biased = true});
        assert_repeatable((attention_case){dense, NULL, 8, 2, dim, MC_F16, .marked = true,
                                           .biased = true, .dropout = 0.1f});
    }
    assert_repeatable((attention_case){ragged, other_keys, 6, 12, 80, MC_BF16, .biased = true});
}

/* What it does not take is an error that says so, and without asking for it by name another
 * kernel's work; what cuDNN is not asked for it takes by itself. */
static void test_choice(void **state)
{
    (void)state;
    if (!with_tensor()) return;
    const attention_case good = {ragged, NULL, 6, 2, 64, MC_BF16};
    attention_data d;
    data_init(&d, good);
    mc_matrix x = {(void *)(uintptr_t)256, MC_BF16, 3 * d.width};
    mc_attention_shape s = d.shape;
    assert_true(is_taken(&s, x));
    s.key_mask = (const uint8_t *)&s;
    assert_false(is_taken(&s, x));
    assert_non_null(strstr(gpu->failure, "it does not take a key mask"));
    s = d.shape, s.window_left = 3;
    assert_true(is_taken(&s, x));
    s.marks = d.marks;
    assert_false(is_taken(&s, x));
    assert_non_null(strstr(gpu->failure, "a window with marks or a bias"));
    s = d.shape, s.key_heads = 1;
    assert_false(is_taken(&s, x));
    s = d.shape, s.head_dim = 60;
    assert_false(is_taken(&s, x));
    s = d.shape, s.scale = 0;
    assert_false(is_taken(&s, x));
    x.dtype = MC_F32;
    assert_false(is_taken(&s, x));
    assert_int_equal(gpu->kernels->attention(gpu, &d.shape, x, x, x, x, NULL), MC_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpu->failure, "MC_ROUTE=attention:hopper: attention of 6 sequences"));
    assert_non_null(strstr(gpu->failure, "f16 nor bf16"));
    gpu->failure[0] = '\0';
    data_free(&d);
    force("");
    run_case((attention_case){ragged, NULL, 6, 2, 64, MC_BF16, .biased = true});
    run_case((attention_case){ragged, NULL, 6, 2, 80, MC_F16, .biased = true, .marked = true});
    run_case((attention_case){ragged, other_keys, 6, 2, 64, MC_F16, .causal = true});
}

/* ---------------------------------------------------------------------------------------------- */

static size_t in_use_before;

static int begin(void **state)
{
    (void)state;
    in_use_before = gpu->memory.in_use;
    return 0;
}

static int end(void **state)
{
    (void)state;
    size_t leaked = gpu->memory.in_use - in_use_before;
    if (leaked) fprintf(stderr, "%zu bytes of the GPU were not given back\n", leaked);
    return leaked != 0;
}

/* An argument chooses tests by their names: "test_head*". */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    mc_context *owner = mc_init_distributed(NULL);
    gpu = owner ? mc_device_open(owner, "cuda") : NULL;
    if (!gpu) {
        printf("SKIPPED: attention on tensor cores: %s\n", mc_error_message(owner));
        mc_context_free(owner);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_sizes), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_cross),      cmocka_unit_test(test_frames),
        cmocka_unit_test(test_empty),      cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_choice),     cmocka_unit_test(test_long_and_many),
        cmocka_unit_test(test_windows),
    };
    int failures = cmocka_run_group_tests(tests, begin, end);
    mc_device_close(gpu);
    mc_context_free(owner);
    return failures;
}
#endif
