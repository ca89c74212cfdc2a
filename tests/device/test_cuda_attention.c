/* Attention on the GPU, through cuDNN and by our own kernels, against the CPU's kernels in f32 on
 * the same (rounded) inputs. Skipped where there is no GPU; cuDNN's part where it is not
 * installed. */
#include <stdio.h>

#ifndef MC_HAVE_CUDA
int main(void)
{
    printf("SKIPPED: attention on the GPU: built without CUDA\n");
    return 0;
}
#else

#include "core/device/cuda/attention/attention_internal.h"
#include "tests/device/attention_test.h"
#include "tests/device/gpu_test.h"

static bool have_cudnn;

/* Where accesses are watched f32 has each turn, and the two 16-bit types, whose kernels differ in
 * nothing else, have every other one. */
static bool has_turn(int type, int turn) { return type == 0 || !is_left_out(type, turn, 2); }

/* What ||x - reference|| / ||reference|| may be: the types' rounding, a few times over. */
static double limit_of(mc_dtype dtype)
{
    return dtype == MC_F32 ? 1e-5 : dtype == MC_F16 ? 2e-3 : 1e-2;
}

/* ---- a case ---------------------------------------------------------------------------------- */

/* One packed batch: rows of q, k and v, and their gradients. */
typedef struct batch {
    int32_t packed[2 * MOST_SEQUENCES + 1]; /* length, then offset */
    mc_lengths lengths;
    matrix x, dx;     /* as computed by the GPU */
    matrix r_x, r_dx; /* the CPU's, in f32 */
} batch;

typedef struct attention_data {
    attention_case c;
    batch queries, others; /* keys and values are the queries', or those of `others` */
    batch *keys;
    mc_attention_shape shape;
    uint8_t *mask;
    int32_t *marks;
    attention_widths w;
    int64_t width;    /* of q, and where nothing says otherwise of k and v too */
    matrix out, dout; /* as computed by the GPU */
    matrix r_out, r_dout;
    float *lse, *r_lse;
    matrix bias, dbias, r_bias, r_dbias; /* (heads * rows, columns) */
} attention_data;

/* The same values in f32. */
static matrix in_f32(const matrix *x)
{
    matrix y = matrix_new(MC_F32, x->rows, x->columns, 0, 0, 1);
    memcpy(y.v, x->v, (size_t)(x->rows * x->columns) * sizeof *y.v);
    matrix_reset(&y);
    return y;
}

static void batch_init(batch *b, const attention_case *c, const int32_t *length)
{
    b->lengths = pack_lengths(c, length, c->tail, b->packed);
    int64_t capacity = b->lengths.capacity;
    int64_t columns = widths_of(c).all;
    b->x = matrix_new(c->dtype, capacity, columns, c->gap, -2, 2);
    b->dx = matrix_new(c->dtype, capacity, columns, c->grad_gap, -2, 2);
    b->r_x = in_f32(&b->x);
    b->r_dx = in_f32(&b->dx);
}

static void batch_free(batch *b)
{
    matrix *all[] = {&b->x, &b->dx, &b->r_x, &b->r_dx};
    for (int i = 0; i < 4; i++) matrix_free(all[i]);
}

static void bias_init(attention_data *d)
{
    const attention_case *c = &d->c;
    int64_t rows, columns;
    bias_size(c, &d->queries.lengths, &d->keys->lengths, &rows, &columns);
    d->bias = matrix_new(c->bias ? c->bias : MC_F32, c->heads * rows, columns, 0, -2, 2);
    d->dbias = matrix_new(MC_F32, c->heads * rows, columns, 0, -0.1, 0.1);
    d->r_bias = in_f32(&d->bias);
    d->r_dbias = in_f32(&d->dbias);
    if (c->bias) set_bias(c, &d->shape, d->r_bias.m, rows, d->r_dbias.m.data);
}

static void data_init(attention_data *d, attention_case c)
{
    *d = (attention_data){.c = c, .w = widths_of(&c), .width = (int64_t)c.heads * c.dim};
    batch_init(&d->queries, &c, c.length);
    d->keys = &d->queries;
    if (c.key_length) batch_init(d->keys = &d->others, &c, c.key_length);
    int64_t total = d->queries.lengths.total, capacity = d->queries.lengths.capacity;
    d->mask = random_mask(&c, &d->keys->lengths);
    d->shape = shape_of(&c, &d->queries.lengths, &d->keys->lengths, d->mask);
    d->marks = c.marked ? random_marks(&d->keys->lengths)
                        : calloc((size_t)d->keys->lengths.total + 1, sizeof *d->marks);
    assert_non_null(d->marks);
    if (c.marked) d->shape.marks = d->marks;
    bias_init(d);
    d->out = matrix_new(c.dtype, capacity, d->w.out, c.gap, -2, 2);
    d->dout = matrix_new(c.dtype, capacity, d->w.out, c.grad_gap, -2, 2);
    d->r_out = in_f32(&d->out);
    d->r_dout = in_f32(&d->dout);
    d->lse = calloc((size_t)(c.heads * total) + 1, sizeof *d->lse);
    d->r_lse = calloc((size_t)(c.heads * total) + 1, sizeof *d->r_lse);
    assert_true(d->lse && d->r_lse);
}

static void data_free(attention_data *d)
{
    matrix *all[] = {&d->out,  &d->dout,  &d->r_out,  &d->r_dout,
                     &d->bias, &d->dbias, &d->r_bias, &d->r_dbias};
    for (int i = 0; i < 8; i++) matrix_free(all[i]);
    batch_free(&d->queries);
    if (d->c.key_length) batch_free(&d->others);
    free(d->mask);
    free(d->marks);
    free(d->lse);
    free(d->r_lse);
}

static void run_cpu(attention_data *d)
{
    mc_matrix q = d->queries.r_x.m, dq = d->queries.r_dx.m;
    mc_matrix kv = d->keys->r_x.m, dkv = d->keys->r_dx.m;
    int64_t w = d->w.q, v = d->w.q + d->w.k;
    const mc_kernels *k = device->kernels;
    assert_int_equal(k->attention(device, &d->shape, q, columns_from(kv, w), columns_from(kv, v),
                                  d->r_out.m, d->r_lse),
                     MC_OK);
    assert_int_equal(k->attention_backward(device, &d->shape, q, columns_from(kv, w),
                                           columns_from(kv, v), d->r_out.m, d->r_lse, d->r_dout.m,
                                           dq, columns_from(dkv, w), columns_from(dkv, v)),
                     MC_OK);
}

/* The bits of `out` do not depend on whether log sum exp is wanted. */
static void assert_same_without_lse(attention_data *d, mc_attention_shape *s, mc_matrix q,
                                    mc_matrix kv, mc_matrix out)
{
    size_t bytes = matrix_bytes(&d->out);
    mc_matrix again = upload_matrix(&d->out);
    char *one = malloc(bytes), *other = malloc(bytes);
    assert_true(one && other);
    assert_ok(gpu->kernels->attention(gpu, s, q, columns_from(kv, d->w.q),
                                      columns_from(kv, d->w.q + d->w.k), again, NULL));
    assert_true(gpu->copy_out(gpu, one, out.data, bytes));
    assert_true(gpu->copy_out(gpu, other, again.data, bytes));
    assert_memory_equal(one, other, bytes);
    gpu->free(gpu, again.data, bytes);
    free(one);
    free(other);
}

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
    take_matrix(u->x, &u->b->x);
    take_matrix(u->dx, &u->b->dx);
    gpu->free(gpu, u->lengths, sizeof u->b->packed);
}

static void run_kernels(attention_data *d, mc_attention_shape *s, const uploaded *q,
                        const uploaded *k)
{
    size_t lse_bytes = (size_t)(d->c.heads * d->queries.lengths.total) * sizeof(float);
    float *lse = upload(d->lse, lse_bytes);
    mc_matrix out = upload_matrix(&d->out), dout = upload_matrix(&d->dout);
    int64_t w = d->w.q, v = d->w.q + d->w.k;
    assert_ok(gpu->kernels->attention(gpu, s, q->x, columns_from(k->x, w), columns_from(k->x, v),
                                      out, lse));
    assert_ok(gpu->kernels->attention_backward(gpu, s, q->x, columns_from(k->x, w),
                                               columns_from(k->x, v), out, lse, dout, q->dx,
                                               columns_from(k->dx, w), columns_from(k->dx, v)));
    assert_true(gpu->copy_out(gpu, d->lse, lse, lse_bytes));
    assert_same_without_lse(d, s, q->x, k->x, out);
    take_matrix(dout, &d->dout);
    take_matrix(out, &d->out);
    gpu->free(gpu, lse, lse_bytes);
}

/* Forward and backward on the GPU. */
static void run_gpu(attention_data *d)
{
    mc_attention_shape s = d->shape;
    size_t mask_bytes = (size_t)d->keys->lengths.total + 1;
    uint8_t *mask = upload(d->mask, mask_bytes);
    int32_t *marks = upload(d->marks, mask_bytes * sizeof *marks);
    uploaded q = upload_batch(&d->queries), others = {0}, *k = &q;
    if (d->c.key_length) *(k = &others) = upload_batch(&d->others);
    mc_matrix bias = upload_matrix(&d->bias), dbias = upload_matrix(&d->dbias);
    s.device_lengths = q.lengths;
    if (s.key_lengths) s.device_key_lengths = k->lengths;
    if (s.key_mask) s.key_mask = mask;
    if (s.marks) s.marks = marks;
    if (d->c.bias) set_bias(&d->c, &s, bias, s.bias_rows, dbias.data);
    run_kernels(d, &s, &q, k);
    take_batch(&q);
    if (d->c.key_length) take_batch(k);
    take_matrix(bias, &d->bias);
    take_matrix(dbias, &d->dbias);
    gpu->free(gpu, mask, mask_bytes);
    gpu->free(gpu, marks, mask_bytes * sizeof *marks);
}

/* ---- comparison ------------------------------------------------------------------------------ */

typedef struct distance {
    double difference, reference; /* norms */
} distance;

/* Of columns first .. first + n in the first `rows` rows; the reference is f32. */
static distance distance_of(const matrix *x, const matrix *reference, int64_t rows, int64_t first,
                            int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = first; c < first + n; c++) {
            double want = element(MC_F32, reference->m.data, r * reference->m.stride + c);
            double got = element(x->m.dtype, x->m.data, r * x->m.stride + c);
            difference += (got - want) * (got - want);
            size += want * want;
        }
    return (distance){sqrt(difference), sqrt(size)};
}

static void assert_close(const attention_data *d, distance x, double least, const char *what)
{
    double size = x.reference > least ? x.reference : least, limit = limit_of(d->c.dtype);
    if (x.difference <= limit * size) return; /* not true of NaN */
    fail_msg(
        "%s, %s: %d sequences, %d heads of %d, longest %d and %d, causal %d, masked %d, "
        "dropout %g, bias %d, window %d and %d, bottom right %d, %d heads a group, values of %d "
        "more, by %s: error %.3g of %.3g, at most %.3g of it expected",
        what, mc_dtype_name(d->c.dtype), d->c.count, d->c.heads, d->c.dim,
        d->queries.lengths.longest, d->keys->lengths.longest, d->c.causal, d->c.masked,
        (double)d->c.dropout, d->c.bias, (int)d->c.window_left, (int)d->c.window_right,
        d->c.bottom_right, d->c.group, d->c.value_more,
        d->shape.route ? d->shape.route->name : "none", x.difference, size, limit);
}

/* Rows past the total are zeros in columns first .. end; what lies between rows is as it was. */
static void assert_frame(const mc_lengths *lengths, const matrix *x, int64_t first, int64_t end,
                         const char *what)
{
    for (int64_t r = lengths->total; r < x->rows; r++)
        for (int64_t c = first; c < end; c++)
            if (element(x->m.dtype, x->m.data, r * x->m.stride + c) != 0)
                fail_msg("%s: row %lld past the last token is not zero", what, (long long)r);
    assert_gaps(x, what);
}

static void assert_results(const attention_data *d)
{
    const batch *q = &d->queries, *k = d->keys;
    int64_t rows = q->lengths.total, keys = k->lengths.total;
    const attention_widths w = d->w;
    distance dq = distance_of(&q->dx, &q->r_dx, rows, 0, w.q);
    distance dk = distance_of(&k->dx, &k->r_dx, keys, w.q, w.k);
    distance dv = distance_of(&k->dx, &k->r_dx, keys, w.q + w.k, w.v);
    assert_close(d, distance_of(&d->out, &d->r_out, rows, 0, w.out), 0, "out");
    assert_close(d, dv, 0, "dv");
    /* With few keys dq and dk are small differences of numbers like those in dv. */
    assert_close(d, dq, 0.5 * dv.reference, "dq");
    assert_close(d, dk, 0.5 * dv.reference, "dk");
    assert_close(d, distance_of(&d->dbias, &d->r_dbias, d->dbias.rows, 0, d->dbias.columns), 0,
                 "dbias");
    assert_frame(&q->lengths, &d->out, 0, w.out, "out");
    assert_frame(&q->lengths, &q->dx, 0, w.q, "dq");
    assert_frame(&k->lengths, &k->dx, w.q, w.all, "dkv");
}

static void run_case(attention_case c)
{
    attention_data d;
    if (!is_mine()) return;
    data_init(&d, c);
    run_cpu(&d);
    run_gpu(&d);
    assert_results(&d);
    data_free(&d);
}

/* ---- our own kernels ------------------------------------------------------------------------- */

static const int32_t ragged[] = {3, 0, 1, 65, 130, 17};

static void test_own_types(void **state)
{
    (void)state;
    force("attention:portable");
    FOR_TYPES(i)
    run_kinds((attention_case){ragged, 6, 2, 32, 3, 5, 2, false, false, 0, float_types[i]});
}

static void test_own_head_sizes(void **state)
{
    (void)state;
    force("attention:portable");
    const int dims[] = {1, 5, 33, 64, 80, 128, 131, 256, 515};
    for (int i = 0; i < 9; i++) FOR_TYPES(t)
        {
            if (!has_turn(t, i)) continue;
            attention_case c = {ragged, 6, 2, dims[i], 0, 0, 0, true, true, 0.2f, float_types[t]};
            run_case(c);
            c.causal = c.masked = false;
            run_case(c);
        }
}

static void test_own_lengths(void **state)
{
    (void)state;
    force("attention:portable");
    const int32_t lengths[] = {1, 2, 4, 63, 64, 65, 127, 128, 129};
    for (int i = 0; i < 9; i++)
        run_case((attention_case){&lengths[i], 1, 1, 24, 1, 0, 4, i % 2, false, 0.1f, MC_F32});
    const int32_t long_one[] = {1111};
    run_case((attention_case){long_one, 1, 1, 64, 0, 0, 0, true, false, 0, MC_F32});
    static int32_t many[MOST_SEQUENCES];
    for (int i = 0; i < MOST_SEQUENCES; i++) many[i] = i % 5;
    run_case((attention_case){many, MOST_SEQUENCES, 3, 16, 0, 0, 0, true, false, 0, MC_F32});
}

static void test_empty(void **state)
{
    (void)state;
    const int32_t none[] = {0, 0};
    const char *paths[] = {"attention:portable", ""};
    for (int i = 0; i < 2; i++) {
        force(paths[i]);
        run_case((attention_case){none, 0, 2, 8, 0, 0, 0, false, false, 0, MC_F32});
        run_case((attention_case){none, 2, 2, 8, 4, 1, 1, false, false, 0, MC_BF16});
    }
}

/* Our layout of log sum exp is the table's. */
static void test_own_log_sum_exp(void **state)
{
    (void)state;
    force("attention:portable");
    attention_data d;
    data_init(&d, (attention_case){ragged, 6, 2, 32, 3, 5, 2, true, true, 0, MC_F32});
    run_cpu(&d);
    run_gpu(&d);
    for (int64_t i = 0; i < 2 * d.queries.lengths.total; i++)
        if (!(d.lse[i] == d.r_lse[i] || fabsf(d.lse[i] - d.r_lse[i]) < 1e-5f))
            fail_msg("log sum exp %lld: %g, expected %g", (long long)i, (double)d.lse[i],
                     (double)d.r_lse[i]);
    data_free(&d);
}

/* Large scores: the softmax is taken relative to the largest. Not-a-number spreads. */
static void test_own_extremes(void **state)
{
    (void)state;
    force("attention:portable");
    int32_t packed[] = {3, 0, 3};
    mc_lengths lengths = {1, packed, packed + 1, 3, 3, 3};
    mc_attention_shape shape = {.lengths = &lengths, .heads = 1, .head_dim = 1, .scale = 1};
    float x[] = {1000, 100, 1, -1000, 0, 2, NAN, -100, 3}, out[3], lse[3];
    int32_t *on_gpu = upload(packed, sizeof packed);
    float *qkv = upload(x, sizeof x), *y = upload(out, sizeof out), *l = upload(lse, sizeof lse);
    mc_matrix m = {qkv, MC_F32, 3};
    shape.device_lengths = on_gpu;
    assert_ok(gpu->kernels->attention(gpu, &shape, m, columns_from(m, 1), columns_from(m, 2),
                                      (mc_matrix){y, MC_F32, 1}, l));
    assert_true(gpu->copy_out(gpu, out, y, sizeof out) && gpu->copy_out(gpu, lse, l, sizeof lse));
    assert_true(out[0] == 1 && out[1] == 3 && isnan(out[2]));
    assert_true(lse[0] == 1e5f && lse[1] == 1e5f && isnan(lse[2]));
    gpu->free(gpu, on_gpu, sizeof packed);
    gpu->free(gpu, qkv, sizeof x);
    gpu->free(gpu, y, sizeof out);
    gpu->free(gpu, l, sizeof lse);
}

/* The same bits again and again; `c` decides the path. */
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

static void test_own_repeatable(void **state)
{
    (void)state;
    force("attention:portable");
    assert_repeatable((attention_case){ragged, 6, 4, 32, 0, 0, 0, false, true, 0.1f, MC_F32});
    assert_repeatable((attention_case){ragged, 6, 2, 80, 0, 0, 0, true, false, 0.1f, MC_BF16});
}

/* A bias of either type, with its gradient; longer than it has to be, and so short that sequences
 * are dealt out. */
static void test_own_bias(void **state)
{
    (void)state;
    force("attention:portable");
    FOR_TYPES(t)
    {
        if (!has_turn(t, 0)) continue;
        attention_case c = {ragged, 6, 2, 40, 3, 5, 2, .dtype = float_types[t], .bias = MC_F32};
        run_kinds(c);
        c.bias = float_types[t];
        c.bias_more = 7;
        run_kinds(c);
    }
    static int32_t many[MOST_SEQUENCES];
    for (int i = 0; i < MOST_SEQUENCES; i++) many[i] = i % 9;
    attention_case c = {many, MOST_SEQUENCES, 3, 16, .dtype = MC_F32, .bias = MC_F32};
    run_case(c);
    c.causal = true;
    run_case(c);
    assert_repeatable(c);
}

/* A bias by distance, against itself and against more keys and fewer; over many sequences, whose
 * gradients are summed in parts. */
static void test_own_position_bias(void **state)
{
    (void)state;
    force("attention:portable");
    const int32_t keys[] = {17, 5, 0, 130, 65, 1};
    FOR_TYPES(t)
    {
        if (!has_turn(t, 1)) continue;
        attention_case c = {ragged, 6, 2, 40, 3, 5, 2, .dtype = float_types[t], .bias = MC_F32};
        c.by_distance = true;
        run_kinds(c);
        c.bias_more = 7;
        c.key_length = keys;
        run_kinds(c);
        c.dim = 80;
        run_case(c);
    }
    static int32_t many[MOST_SEQUENCES];
    for (int i = 0; i < MOST_SEQUENCES; i++) many[i] = i % 9;
    attention_case c = {many, MOST_SEQUENCES, 3, 16, .dtype = MC_F32, .bias = MC_F32};
    c.by_distance = true;
    run_case(c);
    assert_repeatable(c);
}

static void test_own_marks(void **state)
{
    (void)state;
    force("attention:portable");
    FOR_TYPES(t)
    {
        if (!has_turn(t, 0)) continue;
        attention_case c = {ragged, 6, 2, 40, 3, 5, 2, .dtype = float_types[t], .marked = true};
        run_kinds(c);
        c.bias = MC_F32;
        c.by_distance = true;
        run_kinds(c);
    }
}

/* Fewer keys than queries, more, and none. */
static const int32_t other_keys[] = {17, 5, 0, 130, 65, 1};

static void test_own_cross(void **state)
{
    (void)state;
    force("attention:portable");
    const int32_t none[] = {0, 0, 0, 0, 0, 0};
    FOR_TYPES(t)
    {
        if (!has_turn(t, 1)) continue;
        attention_case c = {ragged, 6, 2, 80, 3, 5, 2, .dtype = float_types[t]};
        c.key_length = other_keys;
        run_kinds(c);
        c.bias = float_types[t];
        run_kinds(c);
        c.key_length = none;
        run_case(c);
        c.length = none;
        c.key_length = other_keys;
        run_case(c);
    }
    assert_repeatable((attention_case){ragged, 6, 2, 130, .dtype = MC_BF16, .causal = true,
                                       .bias = MC_BF16, .key_length = other_keys});
}

/* Heads that share keys, values of another size, windows, and queries that end where the keys end:
 * each alone, and all together, with fewer keys than queries and more. By default they come to our
 * own kernels too, which the others leave them to. */
static void test_contract(void **state)
{
    (void)state;
    const int32_t keys[] = {17, 5, 0, 130, 70, 90};
    const char *paths[] = {"attention:portable", ""};
    FOR_TYPES(t)
    {
        if (!has_turn(t, 0)) continue;
        force(paths[t % 2]);
        const attention_case c = {ragged, 6, 6, 40, 3, 8, 8, .dtype = float_types[t]};
        attention_case grouped = c, values = c, window = c, end = c;
        grouped.group = 3;
        run_kinds(grouped);
        values.value_more = 48;
        run_kinds(values);
        window.window_left = 20;
        window.window_right = 1000;
        run_kinds(window);
        end.key_length = keys;
        end.bottom_right = true;
        run_kinds(end);
        end.window_left = 70;
        end.window_right = 2;
        end.group = 2;
        end.value_more = -8;
        end.bias = float_types[t];
        run_kinds(end);
        end.bias = MC_F32;
        end.by_distance = true;
        run_kinds(end);
        assert_repeatable(end);
    }
}

/* The call's route doesn't take it, for a reason that contains `why`. */
static void assert_refused(attention_case c, const char *why)
{
    attention_data d;
    data_init(&d, c);
    uploaded q = upload_batch(&d.queries), others = {0}, *k = &q;
    if (c.key_length) *(k = &others) = upload_batch(&d.others);
    mc_matrix out = upload_matrix(&d.out), keys = columns_from(k->x, d.w.q);
    d.shape.device_lengths = q.lengths;
    if (c.key_length) d.shape.device_key_lengths = k->lengths;
    assert_int_equal(
        gpu->kernels->attention(gpu, &d.shape, q.x, keys, columns_from(keys, d.w.k), out, NULL),
        MC_ERR_UNSUPPORTED);
    if (!strstr(gpu->failure, why)) fail_msg("\"%s\", expected \"%s\"", gpu->failure, why);
    gpu->failure[0] = '\0';
    take_batch(&q);
    if (c.key_length) take_batch(k);
    take_matrix(out, &d.out);
    data_free(&d);
}

/* Kernels on tensor cores name what they don't take. */
static void test_contract_refusals(void **state)
{
    (void)state;
    const int32_t fewer[] = {3, 0, 1, 64, 130, 17};
    const attention_case grouped = {ragged, 6, 2, 64, .dtype = MC_BF16, .group = 2};
    attention_case end = {ragged, 6, 2, 64, .dtype = MC_BF16, .key_length = ragged};
    end.bottom_right = true;
    end.causal = true;
#ifdef MC_HAVE_HOPPER
    force("attention:hopper");
    assert_refused(grouped, "");
    assert_refused(end, "");
#endif
    force("attention:cudnn");
    assert_refused(grouped, "heads that share keys");
    attention_case other = end;
    other.dropout = 0.1f;
    assert_refused(other, "where the keys end, with dropout");
    other = end;
    other.key_length = fewer;
    assert_refused(other, "more queries than keys");
    other.bottom_right = false;
    other.window_left = 5;
    assert_refused(other, "more queries than keys");
}

/* ---- cuDNN ----------------------------------------------------------------------------------- */

/* True, with the path forced, where cuDNN works; says so where it does not. */
/* Whether cuDNN takes packed sequences with heads of a size; says so where it does not. */
static bool cudnn_takes_heads_of(int dim)
{
    attention_data d;
    data_init(&d, (attention_case){ragged, 6, 2, dim, 0, 0, 0, false, false, 0, MC_BF16});
    uploaded u = upload_batch(&d.queries);
    mc_matrix out = upload_matrix(&d.out);
    d.shape.device_lengths = u.lengths;
    force("attention:cudnn");
    bool takes = gpu->kernels->attention(gpu, &d.shape, u.x, columns_from(u.x, d.width),
                                         columns_from(u.x, 2 * d.width), out, NULL) == MC_OK;
    if (!takes) printf("SKIPPED: cuDNN's attention: %s\n", gpu->failure);
    take_batch(&u);
    take_matrix(out, &d.out);
    data_free(&d);
    return takes;
}

static bool with_cudnn(void)
{
    force("attention:cudnn");
    if (!have_cudnn) printf("SKIPPED: cuDNN's attention\n");
    return have_cudnn;
}

static void test_cudnn_dense(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int sizes[][4] = {{1, 1, 64, 64}, {3, 5, 128, 64},  {2, 4, 192, 80},  {8, 2, 512, 64},
                            {2, 3, 64, 8},  {2, 2, 256, 128}, {1, 2, 128, 256}, {1, 1, 2048, 64}};
    for (int i = 0; i < 8; i++)
        for (int mode = 0; mode < 2; mode++) {
            int32_t length[8];
            for (int s = 0; s < 8; s++) length[s] = sizes[i][2];
            run_case((attention_case){length, sizes[i][0], sizes[i][1], sizes[i][3], 7 * mode, 0, 0,
                                      mode != i % 2, false, 0, i % 4 < 2 ? MC_BF16 : MC_F16});
        }
}

/* Heads that share keys: each with its own, four a group, all in one. */
static void test_cudnn_grouped(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int sizes[][5] = {{1, 4, 64, 64, 2},
                            {3, 8, 128, 64, 4},
                            {2, 6, 192, 128, 3},
                            {2, 5, 256, 80, 5},
                            {1, 4, 1024, 64, 4}};
    for (int i = 0; i < 5; i++)
        for (int mode = 0; mode < 4; mode++) {
            int32_t length[3] = {sizes[i][2], sizes[i][2], sizes[i][2]};
            run_case((attention_case){length, sizes[i][0], sizes[i][1], sizes[i][3],
                                      .causal = mode & 1, .dtype = mode & 2 ? MC_F16 : MC_BF16,
                                      .group = sizes[i][4]});
        }
}

/* What hides keys by where they lie: the fields of a case. */
typedef struct places {
    bool causal;
    int left, right;
} places;

/* In this order each of the first two kinds comes with both types, which take turns. */
static const places windows[] = {{true, 1, 0},   {true, 40, 0},    {true, 130, 0}, {false, 65, 65},
                                 {false, 1, 90}, {false, 128, 12}, {false, 33, 0}, {false, 0, 33}};
enum { WINDOWS = sizeof windows / sizeof *windows };

static void set_places(attention_case *c, places p)
{
    c->causal = p.causal;
    c->window_left = p.left;
    c->window_right = p.right;
}

/* The route that takes a case; NULL: none. */
static const mc_route *route_of(attention_case c)
{
    attention_data d;
    data_init(&d, c);
    mc_matrix x = {(void *)(uintptr_t)256, c.dtype, 3 * d.width};
    const mc_attention_call call = {
        .shape = &d.shape, .q = x, .k = x, .v = x, .out = x, .log_sum_exp = d.lse};
    const mc_route *route;
    mc_route_choose(gpu, MC_ROUTE_ATTENTION, &call, &route);
    gpu->failure[0] = '\0';
    data_free(&d);
    return route;
}

/* Causal windows of a grid, and queries that end where the keys end, come to cuDNN; other windows
 * to Hopper's kernels where there are any, and else, up to 8,192 tokens, to cuDNN. */
static void test_cudnn_order(void **state)
{
    (void)state;
    const int32_t dense[] = {128, 128}, keys[] = {448, 448}, longer[] = {8192}, most[] = {8256};
    attention_case window = {dense, 2, 4, 64, .causal = true, .dtype = MC_BF16, .window_left = 30};
    attention_case end = {dense, 2, 4, 64, .causal = true, .dtype = MC_BF16, .key_length = keys};
    attention_case both = {dense, 2, 4, 64, .dtype = MC_BF16, .window_left = 30};
    attention_case far = {longer, 1, 4, 64, .dtype = MC_BF16, .window_left = 30};
    end.bottom_right = true;
    both.window_right = far.window_right = 30;
    if (!with_cudnn()) return;
    assert_non_null(route_of(far));
    bool hopper = mc_cuda_of(gpu)->capability == 90 && !mc_routes_read(gpu, "attention:hopper");
    gpu->failure[0] = '\0';
    force("");
    assert_string_equal(route_of(window)->name, "cudnn");
    assert_string_equal(route_of(end)->name, "cudnn");
    window.count = 6, window.length = ragged;
    if (hopper) assert_string_equal(route_of(both)->name, "hopper");
    if (hopper) assert_string_equal(route_of(window)->name, "hopper");
    assert_string_equal(route_of(far)->name, "cudnn_rest");
    far.length = most;
    assert_string_equal(route_of(far)->name, "portable");
}

/* Windows of a grid, of grouped heads, with a bias, of packed sequences. */
static void test_cudnn_windows(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t dense[] = {320, 320, 320}, longer[] = {1408};
    for (int i = 0; i < WINDOWS; i++) {
        attention_case c = {dense, 3, 4, i % 2 ? 128 : 64, .dtype = i % 2 ? MC_F16 : MC_BF16};
        set_places(&c, windows[i]);
        run_case(c);
        c.group = i % 2 ? 4 : 2;
        run_case(c);
        c.group = 0;
        c.bias = c.dtype;
        run_case(c);
        c.bias = 0;
        c.length = ragged, c.count = 6;
        run_case(c);
        if (c.window_left && !c.window_right && !c.causal) continue; /* see fault_of */
        c.length = longer, c.count = 1;
        run_case(c);
    }
}

/* Queries that are the last of their keys, as many as these too: a grid, grouped heads, packed
 * sequences; causal alone, and windows. */
static void test_cudnn_bottom_right(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t dense[] = {128, 128}, dense_keys[] = {448, 448}, even_keys[] = {128, 128};
    const int32_t keys[] = {17, 0, 64, 65, 200, 17};
    for (int i = -2; i < WINDOWS; i++) {
        attention_case c = {dense, 2, 4, i % 2 ? 128 : 64, .dtype = i % 2 ? MC_F16 : MC_BF16};
        c.bottom_right = true;
        c.key_length = dense_keys;
        set_places(&c, i < 0 ? (places){true, 0, 0} : windows[i]);
        run_case(c);
        c.group = i % 2 ? 2 : 4;
        run_case(c);
        if (i < 0) c.key_length = even_keys;
        if (i < 0) run_case(c);
        c.group = 0;
        c.length = ragged, c.key_length = keys, c.count = 6;
        run_case(c);
    }
}

static void test_cudnn_ragged(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int dims[] = {8, 64, 80, 128, 256}, count = cudnn_takes_heads_of(256) ? 5 : 4;
    for (int i = 0; i < count; i++)
        for (int mode = 0; mode < 2; mode++)
            run_case((attention_case){ragged, 6, 2 + i % 2, dims[i], 3 * mode, 0, 0, mode, false, 0,
                                      i % 2 ? MC_F16 : MC_BF16});
    const int32_t one[] = {1}, odd[] = {200, 333, 0, 0, 1000, 77};
    run_case((attention_case){one, 1, 1, 64, 0, 0, 0, true, false, 0, MC_BF16});
    run_case((attention_case){odd, 6, 2, 64, 5, 0, 0, true, false, 0, MC_BF16});
    static int32_t many[MOST_SEQUENCES];
    for (int i = 0; i < MOST_SEQUENCES; i++) many[i] = i % 7 * 5;
    run_case((attention_case){many, MOST_SEQUENCES, 3, 32, 0, 0, 0, false, false, 0, MC_BF16});
    /* One long among many short ones: a dense sum of dq would be mostly empty. */
    for (int i = 0; i < MOST_SEQUENCES; i++) many[i] = i == 100 ? 1500 : 3;
    run_case((attention_case){many, MOST_SEQUENCES, 2, 64, 0, 0, 0, true, false, 0, MC_BF16});
}

/* Rows that lie apart: by as much for all, and gradients otherwise than what they belong to. */
static void test_cudnn_strides(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t dense[] = {128, 128};
    for (int mode = 0; mode < 4; mode++) {
        attention_case c = {ragged, 6, 2, 64, 3, 8, 8, true, false, 0, MC_BF16};
        if (mode & 1) c.length = dense, c.count = 2;
        if (mode & 2) c.grad_gap = 5; /* not even aligned */
        run_case(c);
    }
}

static void test_cudnn_deterministic(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t dense[] = {256, 256, 256, 256};
    bool before = mc_cuda_of(gpu)->deterministic;
    mc_cuda_of(gpu)->deterministic = true;
    assert_repeatable((attention_case){dense, 4, 4, 64, 0, 0, 0, true, false, 0, MC_BF16});
    assert_repeatable((attention_case){ragged, 6, 4, 64, 0, 0, 0, false, false, 0.1f, MC_F16});
    assert_repeatable((attention_case){dense, 4, 4, 64, .dtype = MC_BF16, .bias = MC_BF16});
    run_case((attention_case){dense, 4, 4, 64, 0, 0, 0, true, false, 0, MC_BF16});
    run_case((attention_case){ragged, 6, 4, 64, 2, 0, 0, false, false, 0, MC_F16});
    mc_cuda_of(gpu)->deterministic = before;
}

/* With a bias and its gradient: of one length, of several, and with a bias that is longer. */
static void test_cudnn_bias(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t dense[] = {192, 192, 192};
    for (int mode = 0; mode < 12; mode++) {
        attention_case c = {dense, 3, 4, mode & 2 ? 80 : 64, 2, .dtype = MC_BF16, .bias = MC_BF16};
        if (mode % 2) c.dtype = c.bias = MC_F16;
        if (mode & 4) c.length = ragged, c.count = 6;
        if (mode & 2) c.causal = true;
        c.bias_more = mode >= 8 ? 6 : 0;
        run_case(c);
    }
}

/* Queries against other keys; where one side of a sequence is empty, our kernels take the case. */
static void test_cudnn_cross(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t dense[] = {192, 192, 192}, dense_keys[] = {64, 64, 64};
    const int32_t keys[] = {5, 0, 64, 1, 200, 17};
    for (int mode = 0; mode < 8; mode++) {
        attention_case c = {dense, 3, 4, 64, 2, .dtype = MC_BF16, .key_length = dense_keys};
        if (mode & 1) c.dtype = MC_F16;
        if (mode & 2) c.length = ragged, c.key_length = keys, c.count = 6;
        if (mode & 4) c.bias = c.dtype;
        run_case(c);
    }
    force("");
    run_case((attention_case){ragged, 6, 2, 64, .dtype = MC_BF16, .key_length = other_keys});
    run_case((attention_case){ragged, 6, 2, 64, .dtype = MC_BF16, .bias = MC_F32});
}

/* ---- our backward pass on Hopper, after the forward pass of cuDNN ------------------------- */

/* Whether the GPU is one that it is for; says so where it is not. */
static bool with_hopper(void)
{
    if (!with_cudnn()) return false;
    bool is_hopper = mc_cuda_of(gpu)->capability == 90;
    if (is_hopper && !mc_routes_read(gpu, "attention:cudnn_hopper")) return true;
    printf("SKIPPED: our attention on Hopper: the GPU is of compute capability %d %s\n",
           mc_cuda_of(gpu)->capability, gpu->failure);
    gpu->failure[0] = '\0';
    return false;
}

/* Sequences of one length. */
static attention_case one_length(int count, int heads, int length, mc_dtype dtype)
{
    static int32_t lengths[MOST_SEQUENCES];
    for (int i = 0; i < count; i++) lengths[i] = length;
    return (attention_case){lengths, count, heads, 64, 0, 0, 0, true, false, 0, dtype};
}

static bool hopper_takes(attention_case c) { return route_of(c) != NULL; }

static void test_hopper_takes(void **state)
{
    (void)state;
    if (!with_hopper()) return;
    attention_case good = one_length(2, 3, 256, MC_BF16), c;
    assert_true(hopper_takes(good));
    c = good, c.dtype = MC_F16;
    assert_true(hopper_takes(c));
    c = good, c.dtype = MC_F32;
    assert_false(hopper_takes(c));
    c = good, c.causal = false;
    assert_false(hopper_takes(c));
    c = good, c.dropout = 0.1f;
    assert_false(hopper_takes(c));
    c = good, c.masked = true;
    assert_false(hopper_takes(c));
    c = good, c.dim = 80;
    assert_false(hopper_takes(c));
    c = good, c.bias = MC_BF16;
    assert_false(hopper_takes(c));
    assert_false(hopper_takes(one_length(2, 3, 192, MC_BF16)));
    c = good, c.length = ragged, c.count = 6;
    assert_false(hopper_takes(c));
}

/* One block of keys and more; fewer than there are multiprocessors, and many times as many; heads
 * several times as many as there are places for sums, and of which some are left at the end. */
static void test_hopper_sizes(void **state)
{
    (void)state;
    if (!with_hopper()) return;
    const int sizes[][3] = {{1, 1, 128},    {1, 1, 256},  {3, 5, 384},   {7, 3, 640},
                            {2, 5, 1024},   {1, 2, 4096}, {40, 10, 128}, {30, 12, 256},
                            {20, 16, 1024}, {40, 25, 384}};
    for (int i = 0; i < 10; i++)
        run_case(one_length(sizes[i][0], sizes[i][1], sizes[i][2], i % 2 ? MC_F16 : MC_BF16));
}

/* Rows that lie apart, gradients otherwise than what they belong to, and rows after the last. */
static void test_hopper_strides(void **state)
{
    (void)state;
    if (!with_hopper()) return;
    for (int mode = 0; mode < 4; mode++) {
        attention_case c = one_length(3, 4, 256, mode % 2 ? MC_F16 : MC_BF16);
        c.tail = 5;
        c.gap = 8;
        c.grad_gap = mode < 2 ? 16 : 5; /* not even aligned */
        run_case(c);
    }
}

static void test_hopper_repeatable(void **state)
{
    (void)state;
    if (!with_hopper()) return;
    assert_repeatable(one_length(6, 12, 1024, MC_BF16));
    assert_repeatable(one_length(40, 10, 256, MC_F16));
}

/* ---- cuDNN's dropout: it draws its own numbers, so the mask is read off its results ---------- */

enum { SIDE = 64 }; /* tokens and head_dim: with v = identity, out is the probabilities */

static void set_identity_values(attention_data *d)
{
    matrix *x = &d->queries.x;
    for (int64_t r = 0; r < x->rows; r++)
        for (int64_t c = 0; c < d->width; c++)
            x->v[r * 3 * d->width + 2 * d->width + c] = c % SIDE == r % SIDE;
    matrix_reset(x);
}

/* The reference of one query under factors (SIDE) of dropout. */
static void reference_query(attention_data *d, int64_t row, int h, const double *factor)
{
    int64_t w = d->width, first = row / SIDE * SIDE, n = SIDE;
    double p[SIDE], dp[SIDE], sum = 0, mean = 0;
    const double *x = d->queries.r_x.v, *q = x + row * 3 * w + h * SIDE,
                 *g = d->r_dout.v + row * w + h * SIDE;
    double *out = d->r_out.v + row * w + h * SIDE, *dx = d->queries.r_dx.v;
    for (int64_t j = 0; j < n; j++) {
        const double *k = x + (first + j) * 3 * w + w + h * SIDE;
        double score = 0;
        for (int c = 0; c < SIDE; c++) score += q[c] * k[c];
        sum += p[j] = exp(score * (double)d->shape.scale);
    }
    for (int64_t j = 0; j < n; j++) {
        const double *v = x + (first + j) * 3 * w + 2 * w + h * SIDE;
        double *dv = dx + (first + j) * 3 * w + 2 * w + h * SIDE;
        p[j] /= sum;
        dp[j] = 0;
        for (int c = 0; c < SIDE; c++) {
            out[c] += p[j] * factor[j] * v[c];
            dv[c] += p[j] * factor[j] * g[c];
            dp[j] += g[c] * v[c] * factor[j];
        }
        mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j < n; j++) {
        double ds = p[j] * (dp[j] - mean) * (double)d->shape.scale;
        for (int c = 0; c < SIDE; c++) {
            dx[row * 3 * w + h * SIDE + c] += ds * x[(first + j) * 3 * w + w + h * SIDE + c];
            dx[(first + j) * 3 * w + w + h * SIDE + c] += ds * q[c];
        }
    }
}

static void clear(matrix *x) { memset(x->v, 0, (size_t)(x->rows * x->columns) * sizeof *x->v); }

static void test_cudnn_dropout(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t length[] = {SIDE, SIDE, SIDE, 0}; /* equal, and with a fourth ragged */
    const double p = 0.3;
    for (int count = 3; count < 5; count++) {
        attention_data d, read;
        attention_case c = {length, count, 4, SIDE, 0, 0, 0, false, false, (float)p, MC_F16};
        data_init(&d, c);
        data_init(&read, c);
        const matrix *x = &d.queries.x;
        memcpy(read.queries.x.v, x->v, (size_t)(x->rows * x->columns) * sizeof *x->v);
        set_identity_values(&read);
        run_gpu(&read);
        run_gpu(&d);
        clear(&d.r_out);
        clear(&d.queries.r_dx);
        int64_t kept = 0, all = d.queries.lengths.total * c.heads * SIDE;
        for (int64_t row = 0; row < d.queries.lengths.total; row++)
            for (int h = 0; h < c.heads; h++) {
                double factor[SIDE];
                for (int j = 0; j < SIDE; j++) {
                    int64_t at = row * read.out.m.stride + h * SIDE + j;
                    bool keep = element(MC_F16, read.out.m.data, at) != 0;
                    factor[j] = keep ? 1 / (1 - p) : 0;
                    kept += keep;
                }
                reference_query(&d, row, h, factor);
            }
        matrix_reset(&d.r_out);
        matrix_reset(&d.queries.r_dx);
        assert_results(&d);
        /* four standard deviations */
        assert_true(fabs((double)kept / (double)all - (1 - p)) <
                    4 * sqrt(p * (1 - p) / (double)all));
        data_free(&d);
        data_free(&read);
    }
}

/* The offset in device memory counts: another one is another mask, the same the same. */
static void test_cudnn_dropout_base(void **state)
{
    (void)state;
    if (!with_cudnn()) return;
    const int32_t length[] = {SIDE, SIDE};
    uint64_t bases[] = {0, 5, 0};
    attention_data d;
    data_init(&d, (attention_case){length, 2, 2, SIDE, 0, 0, 0, false, false, 0.5f, MC_F16});
    size_t bytes = matrix_bytes(&d.out);
    char *first = malloc(bytes);
    assert_non_null(first);
    for (int i = 0; i < 3; i++) {
        uint64_t *base = upload(&bases[i], sizeof bases[i]);
        d.shape.dropout.base = base;
        run_gpu(&d);
        if (i == 0) memcpy(first, d.out.m.data, bytes);
        assert_int_equal(!memcmp(first, d.out.m.data, bytes), i != 1);
        gpu->free(gpu, base, sizeof bases[i]);
    }
    free(first);
    data_free(&d);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static void test_choice(void **state)
{
    (void)state;
    force("");
    run_kinds((attention_case){ragged, 6, 2, 12, 3, 0, 0, false, false, 0, MC_BF16});
    run_kinds((attention_case){ragged, 6, 2, 64, 3, 0, 0, false, false, 0, MC_F32});
    run_case((attention_case){ragged, 6, 2, 64, 3, 0, 0, true, false, 0, MC_BF16});
    run_case((attention_case){ragged, 6, 2, 64, 3, 0, 0, true, true, 0, MC_BF16});
    run_case((attention_case){ragged, 6, 2, 320, 3, 0, 0, true, false, 0, MC_F16});
    attention_data d;
    data_init(&d, (attention_case){ragged, 6, 2, 64, 0, 0, 0, false, false, 0, MC_F32});
    uploaded u = upload_batch(&d.queries);
    mc_matrix out = upload_matrix(&d.out);
    d.shape.device_lengths = u.lengths;
    force("attention:cudnn");
    assert_int_equal(gpu->kernels->attention(gpu, &d.shape, u.x, columns_from(u.x, d.width),
                                             columns_from(u.x, 2 * d.width), out, NULL),
                     MC_ERR_UNSUPPORTED);
    assert_string_equal(gpu->failure,
                        "MC_ROUTE=attention:cudnn: attention of 6 sequences with 216 tokens, 2 "
                        "heads of 64, f32: it does not take a dtype that is neither f16 nor bf16");
    gpu->failure[0] = '\0';
    take_batch(&u);
    take_matrix(out, &d.out);
    data_free(&d);
    force("");
}

/* ---- one token against a cache --------------------------------------------------------------- */

enum { IN_ORDER, PLACED, PAGED, LAYOUTS };

enum { PAGE_SHIFT = 3, MOST_CACHED = 64, MOST_PAGES = 1024 };

/* Where the sequences of a cache lie: any rows, and some of them twice, or any pages. Returns the
 * number of the last page. */
static int place_sequences(int sequences, int capacity, int longest, int layout, int32_t *lengths,
                           int32_t *first, int32_t *pages)
{
    int each = (capacity >> PAGE_SHIFT) + 1, last = sequences * capacity >> PAGE_SHIFT;
    assert_true(sequences <= MOST_CACHED && sequences * each <= MOST_PAGES);
    for (int i = 0; i < sequences; i++) lengths[i] = i == 0 ? longest : i == 1 ? 0 : longest / i;
    for (int i = 0; i < sequences; i++)
        first[i] = (int32_t)(random_bits() % (uint32_t)((sequences - 1) * capacity + 1));
    for (int i = 0; i < sequences && layout == PAGED; i++) {
        first[i] = i * each;
        for (int j = 0; j < each; j++) pages[i * each + j] = random_bits() % (uint32_t)(last + 1);
    }
    return last;
}

/* The matrices of a call that GPU and CPU have computed: keys and values to the bit, the output
 * nearly. */
static void compare_cached(const mc_cached_attention *shape, mc_dtype dtype, int64_t rows,
                           const matrix *k, const matrix *v, const matrix *out, const matrix r[4])
{
    assert_true(distance_of(k, &r[1], rows, 0, k->columns).difference == 0);
    assert_true(distance_of(v, &r[2], rows, 0, v->columns).difference == 0);
    distance error = distance_of(out, &r[3], shape->sequences, 0, out->columns);
    if (!(error.difference <= limit_of(dtype) * error.reference))
        fail_msg("cached, %s, %d sequences, %d heads of %d, %d keys: error %.3g of %.3g",
                 mc_dtype_name(dtype), (int)shape->sequences, (int)shape->heads,
                 (int)shape->head_dim, (int)shape->longest, error.difference, error.reference);
    assert_gaps(out, "out");
}

/* gap: elements between rows of queries and of results, of which 8 keep whole chunks aligned. more:
 * heads of the keys, head size of the values, window; or nothing. */
static void run_cached_with(int sequences, int heads, int dim, int capacity, int longest,
                            mc_dtype dtype, bool biased, int layout, int gap,
                            mc_cached_attention more)
{
    int key_heads = more.key_heads ? more.key_heads : heads;
    int value_dim = more.value_dim ? more.value_dim : dim;
    int64_t width = (int64_t)heads * dim, limit = longest + 2, out_width = heads * value_dim;
    int32_t lengths[MOST_CACHED], first[MOST_CACHED], pages[MOST_PAGES] = {0};
    int last = place_sequences(sequences, capacity, longest, layout, lengths, first, pages);
    matrix bias = matrix_new(MC_F32, heads, 2 * limit - 1, 0, -2, 2);
    matrix q = matrix_new(dtype, sequences, width, gap, -2, 2);
    int64_t rows = (int64_t)(last + 1) << PAGE_SHIFT;
    matrix k = matrix_new(dtype, rows, key_heads * dim, 0, -2, 2),
           v = matrix_new(dtype, rows, key_heads * value_dim, 0, -2, 2);
    matrix out = matrix_new(dtype, sequences, out_width, gap, -2, 2);
    bool kept = layout == IN_ORDER && (more.key_heads || more.value_dim ||
                                       more.window_left); /* the last keys and values are new */
    matrix new_k = matrix_new(dtype, sequences, k.columns, 1, -2, 2);
    matrix new_v = matrix_new(dtype, sequences, v.columns, 1, -2, 2);
    matrix r_new[] = {in_f32(&new_k), in_f32(&new_v)};
    matrix r[] = {in_f32(&q), in_f32(&k), in_f32(&v), in_f32(&out)};
    const float scale = 1 / sqrtf((float)dim);
    mc_cached_attention shape = {.sequences = sequences,
                                 .heads = heads,
                                 .head_dim = dim,
                                 .scale = scale,
                                 .lengths = lengths,
                                 .first = layout == IN_ORDER ? NULL : first,
                                 .capacity = capacity,
                                 .pages = layout == PAGED ? pages : NULL,
                                 .page_shift = PAGE_SHIFT,
                                 .longest = longest,
                                 .position_bias = biased ? bias.m.data : NULL,
                                 .position_limit = limit};
    shape.key_heads = more.key_heads;
    shape.value_dim = more.value_dim;
    shape.window_left = more.window_left;
    if (kept) shape.new_k = r_new[0].m;
    if (kept) shape.new_v = r_new[1].m;
    assert_int_equal(
        device->kernels->attention_cached(device, &shape, r[0].m, r[1].m, r[2].m, r[3].m), MC_OK);
    mc_matrix x[] = {upload_matrix(&q), upload_matrix(&k), upload_matrix(&v), upload_matrix(&out)};
    int32_t *on_gpu = upload(lengths, sizeof lengths), *first_on_gpu = upload(first, sizeof first),
            *pages_on_gpu = upload(pages, sizeof pages);
    mc_matrix bias_on_gpu = upload_matrix(&bias);
    shape.lengths = on_gpu;
    if (layout != IN_ORDER) shape.first = first_on_gpu;
    if (layout == PAGED) shape.pages = pages_on_gpu;
    if (biased) shape.position_bias = bias_on_gpu.data;
    mc_matrix new_x[] = {upload_matrix(&new_k), upload_matrix(&new_v)};
    if (kept) shape.new_k = new_x[0];
    if (kept) shape.new_v = new_x[1];
    assert_ok(gpu->kernels->attention_cached(gpu, &shape, x[0], x[1], x[2], x[3]));
    gpu->free(gpu, on_gpu, sizeof lengths);
    gpu->free(gpu, first_on_gpu, sizeof first);
    gpu->free(gpu, pages_on_gpu, sizeof pages);
    take_matrix(bias_on_gpu, &bias);
    take_matrix(x[0], &q);
    take_matrix(x[1], &k);
    take_matrix(x[2], &v);
    take_matrix(x[3], &out);
    take_matrix(new_x[0], &new_k);
    take_matrix(new_x[1], &new_v);
    compare_cached(&shape, dtype, rows, &k, &v, &out, r);
    matrix *all[] = {&q,    &k,    &v,     &out,   &bias,     &r[0],    &r[1],
                     &r[2], &r[3], &new_k, &new_v, &r_new[0], &r_new[1]};
    for (int i = 0; i < 13; i++) matrix_free(all[i]);
}

static void run_cached(int sequences, int heads, int dim, int capacity, int longest, mc_dtype dtype,
                       bool biased, int layout, int gap)
{
    run_cached_with(sequences, heads, dim, capacity, longest, dtype, biased, layout, gap,
                    (mc_cached_attention){0});
}

/* Heads that share keys, values of another size, a window. */
static void test_cached_contract(void **state)
{
    (void)state;
    const mc_cached_attention more[] = {{.key_heads = 2},
                                        {.value_dim = 200},
                                        {.window_left = 7},
                                        {.key_heads = 1, .value_dim = 5, .window_left = 33}};
    for (int i = 0; i < 4; i++) FOR_TYPES(t)
    for (int layout = 0; layout < LAYOUTS; layout++)
        run_cached_with(3, 6, 40, 50, 40, float_types[t], i % 2, layout, 3, more[i]);
    const mc_cached_attention shared = {.key_heads = 2, .window_left = 70};
    FOR_TYPES(t)
    for (int layout = 0; layout < LAYOUTS; layout++) {
        run_cached_with(4, 4, 64, 1030, 1030, float_types[t], true, layout, 8, shared);
        run_cached_with(2, 8, 128, 400, 390, float_types[t], false, layout, 8,
                        (mc_cached_attention){.key_heads = 2});
        run_cached_with(24, 16, 64, 150, 150, float_types[t], false, layout, 8, shared);
    }
}

static void test_cached(void **state)
{
    (void)state;
    const int dims[] = {1, 5, 32, 33, 64, 80, 128, 200, 264, 520};
    FOR_TYPES(t)
    {
        for (int mode = 0; mode < 4 * LAYOUTS; mode++) {
            if (is_left_out(mode, t, 3)) continue;
            bool biased = mode & 1;
            int layout = mode / 4, gap = mode & 2 ? 8 : 3;
            mc_dtype type = float_types[t];
            for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
                if (dims[i] <= 512 || (gap == 8 && type != MC_F32))
                    run_cached(3, 2, dims[i], 50, 40, type, biased, layout, gap);
            run_cached(4, 2, 64, 1030, 1030, type, biased, layout, gap);
            run_cached(24, 17, 64, 150, 150, type, biased, layout, gap); /* many small blocks */
            run_cached(20, 10, 128, 150, 150, type, biased, layout, gap);
            run_cached(1, 1, 64, 1, 1, type, biased, layout, gap);
            run_cached(2, 2, 16, 4, 0, type, biased, layout, gap);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */

static size_t in_use_before;

static int open_both(void **state)
{
    if (open_tables(state)) return -1;
    in_use_before = gpu->memory.in_use;
    have_cudnn = cudnn_takes_heads_of(64);
    return 0;
}

static int close_both(void **state)
{
    size_t leaked = gpu->memory.in_use - in_use_before;
    if (leaked) fprintf(stderr, "%zu bytes of the GPU were not given back\n", leaked);
    return close_tables(state) || leaked;
}

/* An argument chooses tests by their names: "test_own_*". */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    mc_context *owner = mc_init_distributed(NULL);
    gpu = owner ? mc_device_open(owner, "cuda") : NULL;
    if (!gpu) {
        printf("SKIPPED: attention on the GPU: %s\n", mc_error_message(owner));
        mc_context_free(owner);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_types),
        cmocka_unit_test(test_own_head_sizes),
        cmocka_unit_test(test_own_lengths),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_own_log_sum_exp),
        cmocka_unit_test(test_own_extremes),
        cmocka_unit_test(test_own_repeatable),
        cmocka_unit_test(test_own_bias),
        cmocka_unit_test(test_own_cross),
        cmocka_unit_test(test_own_position_bias),
        cmocka_unit_test(test_own_marks),
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_contract_refusals),
        cmocka_unit_test(test_cudnn_dense),
        cmocka_unit_test(test_cudnn_grouped),
        cmocka_unit_test(test_cudnn_order),
        cmocka_unit_test(test_cudnn_windows),
        cmocka_unit_test(test_cudnn_bottom_right),
        cmocka_unit_test(test_cudnn_ragged),
        cmocka_unit_test(test_cudnn_strides),
        cmocka_unit_test(test_cudnn_deterministic),
        cmocka_unit_test(test_cudnn_bias),
        cmocka_unit_test(test_cudnn_cross),
        cmocka_unit_test(test_hopper_takes),
        cmocka_unit_test(test_hopper_sizes),
        cmocka_unit_test(test_hopper_strides),
        cmocka_unit_test(test_hopper_repeatable),
        cmocka_unit_test(test_cudnn_dropout),
        cmocka_unit_test(test_cudnn_dropout_base),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_cached_contract),
    };
    int failures = cmocka_run_group_tests(tests, open_both, close_both);
    mc_device_close(gpu);
    mc_context_free(owner);
    return failures;
}
#endif
