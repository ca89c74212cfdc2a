/* Attention and its gradient against plain loops in double. */
#include "tests/device/attention_test.h"

/* One packed batch: rows of q, k and v. */
typedef struct batch {
    int32_t packed[2 * MOST_SEQUENCES + 1]; /* lengths, then offsets */
    mc_lengths lengths;
    matrix x, dx;
    double *e_dx; /* (capacity, columns of q, k and v) */
} batch;

typedef struct attention_data {
    attention_case c;
    batch queries, others; /* keys and values are the queries', or those of `others` */
    batch *keys;
    mc_attention_shape shape;
    uint8_t *mask;
    int32_t *marks;
    matrix out, dout, bias, dbias;  /* biases: (heads * bias_rows, columns) */
    double *e_out, *e_lse, *e_bias; /* like out, (heads, total), like dbias */
    float *lse;
    attention_widths w;
} attention_data;

static void batch_init(batch *b, const attention_case *c, const int32_t *length, int tail)
{
    b->lengths = pack_lengths(c, length, tail, b->packed);
    int64_t rows = b->lengths.capacity, width = widths_of(c).all;
    b->x = matrix_new(c->dtype, rows, width, c->gap, -2, 2);
    b->dx = matrix_new(c->dtype, rows, width, c->grad_gap, -2, 2);
    b->e_dx = doubles(rows * width);
}

static void batch_free(batch *b)
{
    matrix_free(&b->x);
    matrix_free(&b->dx);
    free(b->e_dx);
}

/* What is not the gradient of anything stays what it is: columns first .. first + n. */
static void expect_untouched(batch *b, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < b->dx.rows * b->dx.columns; i++)
        if (i % b->dx.columns >= first && i % b->dx.columns < first + n) b->e_dx[i] = b->dx.v[i];
}

static void bias_init(attention_data *d)
{
    const attention_case *c = &d->c;
    int64_t rows, columns;
    bias_size(c, &d->queries.lengths, &d->keys->lengths, &rows, &columns);
    d->bias = matrix_new(c->bias ? c->bias : MC_F32, c->heads * rows, columns, 0, -2, 2);
    d->dbias = matrix_new(MC_F32, c->heads * rows, columns, 0, -2, 2);
    d->e_bias = doubles(c->heads * rows * columns);
    memcpy(d->e_bias, d->dbias.v, (size_t)(c->heads * rows * columns) * sizeof *d->e_bias);
    if (c->bias) set_bias(c, &d->shape, d->bias.m, rows, d->dbias.m.data);
}

static void data_init(attention_data *d, attention_case c)
{
    *d = (attention_data){.c = c, .w = widths_of(&c)};
    batch_init(&d->queries, &c, c.length, c.tail);
    d->keys = &d->queries;
    if (c.key_length) {
        d->keys = &d->others;
        batch_init(d->keys, &c, c.key_length, 2);
        expect_untouched(&d->queries, d->w.q, d->w.k + d->w.v);
        expect_untouched(d->keys, 0, d->w.q);
    }
    int64_t rows = d->queries.lengths.capacity;
    d->mask = random_mask(&c, &d->keys->lengths);
    d->shape = shape_of(&c, &d->queries.lengths, &d->keys->lengths, d->mask);
    if (c.marked) d->shape.marks = d->marks = random_marks(&d->keys->lengths);
    bias_init(d);
    d->out = matrix_new(c.dtype, rows, d->w.out, 1, -2, 2);
    d->dout = matrix_new(c.dtype, rows, d->w.out, 4, -2, 2);
    d->lse = calloc((size_t)(c.heads * rows) + 1, sizeof *d->lse);
    d->e_out = doubles(rows * d->w.out);
    d->e_lse = doubles(c.heads * rows);
}

static void data_free(attention_data *d)
{
    batch_free(&d->queries);
    if (d->c.key_length) batch_free(&d->others);
    matrix *all[] = {&d->out, &d->dout, &d->bias, &d->dbias};
    for (int i = 0; i < 4; i++) matrix_free(all[i]);
    void *rest[] = {d->mask, d->marks, d->lse, d->e_out, d->e_lse, d->e_bias};
    for (int i = 0; i < 6; i++) free(rest[i]);
}

/* The key where query i of a sequence stands. */
static int place_of(const attention_data *d, int sequence, int i)
{
    if (!d->c.bottom_right) return i;
    return i + d->keys->lengths.length[sequence] - d->queries.lengths.length[sequence];
}

/* Where the bias of a query and a key lies. */
static int64_t bias_at(const attention_data *d, int sequence, int h, int i, int j)
{
    if (d->c.by_distance)
        return h * d->bias.columns + d->shape.position_limit - 1 + j - place_of(d, sequence, i);
    return (h * d->shape.bias_rows + i) * d->bias.columns + j;
}

/* One query: p (keys) the probabilities before dropout; gives log sum exp, NaN without keys. */
static double query_probabilities(const attention_data *d, int sequence, int h, int i, double *p)
{
    int first = d->keys->lengths.offset[sequence], n = d->keys->lengths.length[sequence];
    int row = d->queries.lengths.offset[sequence] + i, place = place_of(d, sequence, i);
    int key_head = h * d->w.key_heads / d->c.heads;
    const double *q = d->queries.x.v + row * d->w.all + h * d->c.dim;
    double largest = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) {
        const double *k = d->keys->x.v + (first + j) * d->w.all + d->w.q + key_head * d->c.dim;
        double score = 0;
        for (int c = 0; c < d->c.dim; c++) score += q[c] * k[c];
        score *= (double)d->shape.scale;
        bool seen = place_allows(&d->c, place, j) && (!d->c.masked || d->mask[first + j]) &&
                    (!d->c.marked || marks_allow(d->marks[first + i], d->marks[first + j], i, j));
        if (d->c.bias && seen) score += d->bias.v[bias_at(d, sequence, h, i, j)];
        p[j] = seen ? score : -INFINITY;
        largest = fmax(largest, p[j]);
    }
    for (int j = 0; j < n; j++) sum += p[j] = isinf(largest) ? 0 : exp(p[j] - largest);
    for (int j = 0; j < n; j++) p[j] = sum > 0 ? p[j] / sum : 0;
    return sum > 0 ? largest + log(sum) : (double)NAN;
}

static void reference_query(attention_data *d, int sequence, int h, int i)
{
    int first = d->keys->lengths.offset[sequence], n = d->keys->lengths.length[sequence],
        dim = d->c.dim, value_dim = d->w.value_dim, key_head = h * d->w.key_heads / d->c.heads;
    int64_t w = d->w.all, v_at = d->w.q + d->w.k + key_head * value_dim;
    int64_t k_at = d->w.q + key_head * dim, l4 = (d->keys->lengths.longest + 3) / 4 * 4;
    int64_t row = d->queries.lengths.offset[sequence] + i, total = d->queries.lengths.total;
    double p[600], dp[600], factor[600], mean = 0;
    assert_true(n <= 600);
    d->e_lse[h * total + row] = query_probabilities(d, sequence, h, i, p);
    const double *q = d->queries.x.v + row * w + h * dim;
    const double *g = d->dout.v + row * d->w.out + h * value_dim;
    double *out = d->e_out + row * d->w.out + h * value_dim;
    double *dq = d->queries.e_dx + row * w + h * dim;
    for (int j = 0; j < n; j++) {
        const double *v = d->keys->x.v + (first + j) * w + v_at;
        double *dv = d->keys->e_dx + (first + j) * w + v_at;
        factor[j] = reference_dropout(d->shape.dropout, (uint64_t)((h * total + row) * l4 + j));
        dp[j] = 0;
        for (int c = 0; c < value_dim; c++) {
            out[c] += p[j] * factor[j] * v[c];
            dv[c] += p[j] * factor[j] * g[c];
            dp[j] += g[c] * v[c] * factor[j];
        }
        mean += p[j] * dp[j];
    }
    for (int j = 0; j < n; j++) {
        const double *k = d->keys->x.v + (first + j) * w + k_at;
        double *dk = d->keys->e_dx + (first + j) * w + k_at;
        double ds = p[j] * (dp[j] - mean);
        if (d->c.bias && p[j] > 0) d->e_bias[bias_at(d, sequence, h, i, j)] += ds;
        ds *= (double)d->shape.scale;
        for (int c = 0; c < dim; c++) {
            dq[c] += ds * k[c];
            dk[c] += ds * q[c];
        }
    }
}

/* Columns of q, k or v in a matrix that holds all three. */
static mc_matrix part(const attention_data *d, const matrix *x, int which)
{
    mc_matrix m = x->m;
    int64_t at = (which > 0 ? d->w.q : 0) + (which > 1 ? d->w.k : 0);
    m.data = (char *)m.data + (size_t)at * mc_dtype_size(m.dtype);
    return m;
}

static void run_case(attention_case c)
{
    attention_data d;
    data_init(&d, c);
    for (int s = 0; s < c.count; s++)
        for (int h = 0; h < c.heads; h++)
            for (int i = 0; i < c.length[s]; i++) reference_query(&d, s, h, i);
    FOR_TABLES(t)
    {
        const matrix *dx = &d.queries.dx, *dkv = &d.keys->dx;
        mc_matrix q = part(&d, &d.queries.x, 0), k = part(&d, &d.keys->x, 1),
                  v = part(&d, &d.keys->x, 2);
        matrix_reset(&d.dbias);
        assert_int_equal(t->k->attention(device, &d.shape, q, k, v, d.out.m, d.lse), MC_OK);
        assert_matrix(&d.out, d.e_out, 2e-6, t->name, "attention");
        for (int64_t i = 0; i < c.heads * d.queries.lengths.total; i++)
            if (!isnan(d.e_lse[i]) && !(fabs(d.lse[i] - d.e_lse[i]) < 1e-5))
                fail_msg("log sum exp %s: %g, expected %g", t->name, d.lse[i], d.e_lse[i]);
        assert_int_equal(t->k->attention_backward(device, &d.shape, q, k, v, d.out.m, d.lse,
                                                  d.dout.m, part(&d, dx, 0), part(&d, dkv, 1),
                                                  part(&d, dkv, 2)),
                         MC_OK);
        /* The mean over a row is taken of the output as rounded, with its error. */
        double rounding = c.dtype == MC_F32 ? 0 : c.dtype == MC_F16 ? 0x1p-10 : 0x1p-7;
        assert_matrix(dx, d.queries.e_dx, 4e-6 + rounding, t->name, "attention_backward");
        assert_matrix(dkv, d.keys->e_dx, 4e-6 + rounding, t->name, "attention_backward, keys");
        /* That error is of a sum over head_dim. */
        assert_matrix(&d.dbias, d.e_bias, 4e-6 + rounding * sqrt(d.w.value_dim), t->name,
                      "attention_backward, bias");
        assert_int_equal(t->k->attention(device, &d.shape, q, k, v, d.out.m, NULL), MC_OK);
        assert_matrix(&d.out, d.e_out, 2e-6, t->name, "attention without log sum exp");
    }
    data_free(&d);
}

static const int32_t ragged[] = {3, 0, 1, 49, 130, 17};

static void test_types(void **state)
{
    (void)state;
    FOR_TYPES(i)
    run_kinds((attention_case){ragged, 6, 2, 32, 3, 5, 2, false, false, 0, float_types[i]});
}

static void test_head_sizes(void **state)
{
    (void)state;
    const int dims[] = {1, 5, 16, 33, 64, 80, 128};
    for (int i = 0; i < 7; i++)
        run_kinds((attention_case){ragged, 5, 2, dims[i], 0, 5, 2, false, false, 0, MC_F32});
}

static void test_lengths(void **state)
{
    (void)state;
    for (int32_t n = 1; n < 70; n++)
        run_case((attention_case){&n, 1, 1, 24, 1, 5, 2, n % 2, false, 0, MC_F32});
    const int32_t long_one[] = {513};
    run_kinds((attention_case){long_one, 1, 1, 64, 0, 5, 2, false, false, 0, MC_F32});
}

/* A bias, of either type and longer than it has to be. */
static void test_bias(void **state)
{
    (void)state;
    FOR_TYPES(i)
    {
        attention_case c = {ragged, 6, 2, 32, 3, 5, 2, .dtype = float_types[i], .bias = MC_F32};
        run_kinds(c);
        c.bias = float_types[i];
        c.bias_more = 5;
        run_kinds(c);
    }
}

/* A bias that depends on distances alone, against more keys than queries and fewer too. */
static void test_position_bias(void **state)
{
    (void)state;
    const int32_t keys[] = {17, 5, 0, 130, 49, 1};
    FOR_TYPES(i)
    {
        attention_case c = {ragged, 6, 2, 32, 3, 5, 2, .dtype = float_types[i], .bias = MC_F32};
        c.by_distance = true;
        run_kinds(c);
        c.bias_more = 5;
        c.key_length = keys;
        run_kinds(c);
    }
}

/* Marks of who sees whom; with the mask of the first sequence's keys some queries see none. */
static void test_marks(void **state)
{
    (void)state;
    FOR_TYPES(i)
    {
        attention_case c = {ragged, 6, 2, 24, 3, 5, 2, .dtype = float_types[i], .marked = true};
        run_kinds(c);
        c.bias = MC_F32;
        c.by_distance = true;
        run_kinds(c);
    }
}

/* Queries against other keys: more of them, fewer, and none. */
static void test_cross(void **state)
{
    (void)state;
    const int32_t keys[] = {17, 5, 0, 130, 49, 1}, no_keys[] = {0, 0, 0, 0, 0, 0};
    FOR_TYPES(i)
    {
        attention_case c = {ragged, 6, 2, 33, 3, 5, 2, .dtype = float_types[i], .key_length = keys};
        run_kinds(c);
        c.bias = float_types[i];
        run_kinds(c);
        c.key_length = no_keys;
        run_case(c);
        c.length = no_keys;
        c.key_length = keys;
        run_case(c);
    }
}

/* Heads that share keys, values of another size, windows, and queries that end where the keys end;
 * each alone and all together, with sequences of fewer keys than queries. */
static void test_contract(void **state)
{
    (void)state;
    const int32_t keys[] = {17, 5, 0, 130, 149, 12};
    FOR_TYPES(i)
    {
        const attention_case c = {ragged, 6, 6, 32, 3, 5, 2, .dtype = float_types[i]};
        attention_case grouped = c, values = c, window = c, end = c, right = c;
        grouped.group = 3;
        values.value_more = -9;
        window.window_left = 20;
        window.window_right = 1000;
        right.window_right = 3;
        end.key_length = keys;
        end.bottom_right = true;
        run_kinds(grouped);
        run_kinds(values);
        run_kinds(window);
        run_kinds(right);
        run_kinds(end);
        end.window_left = 60;
        end.window_right = 2;
        end.group = 2;
        end.value_more = 15;
        end.bias = MC_F32;
        run_kinds(end);
        end.by_distance = true;
        run_kinds(end);
    }
}

/* Keys hidden by a bias of -infinity: all of them for one query, which gives zeros. */
static void test_hiding_bias(void **state)
{
    (void)state;
    const int32_t length[] = {2}, offset[] = {0, 2};
    mc_lengths lengths = {1, length, offset, 2, 2, 2};
    float bias[] = {-INFINITY, 0, -INFINITY, -INFINITY}, dbias[] = {1, 2, 3, 4};
    mc_attention_shape shape = {.lengths = &lengths,
                                .heads = 1,
                                .head_dim = 1,
                                .scale = 1,
                                .bias = {bias, MC_F32, 2},
                                .bias_rows = 2,
                                .dbias = dbias};
    FOR_TABLES(t)
    {
        float x[] = {1, 2}, v[] = {3, 5}, out[2], lse[2], dx[3][2];
        mc_matrix m[] = {{x, MC_F32, 1}, {v, MC_F32, 1}, {out, MC_F32, 1}};
        assert_int_equal(t->k->attention(device, &shape, m[0], m[0], m[1], m[2], lse), MC_OK);
        assert_true(out[0] == 5 && out[1] == 0 && lse[0] == 2 && lse[1] == INFINITY);
        assert_int_equal(t->k->attention_backward(device, &shape, m[0], m[0], m[1], m[2], lse, m[1],
                                                  (mc_matrix){dx[0], MC_F32, 1},
                                                  (mc_matrix){dx[1], MC_F32, 1},
                                                  (mc_matrix){dx[2], MC_F32, 1}),
                         MC_OK);
        for (int i = 0; i < 4; i++) assert_true(dbias[i] == i + 1); /* of one key: 0 */
        assert_true(dx[0][0] == 0 && dx[0][1] == 0 && dx[2][0] == 0 && dx[2][1] == 3);
    }
}

/* No sequences, only empty ones, and only a tail. */
static void test_empty(void **state)
{
    (void)state;
    const int32_t none[] = {0, 0};
    run_case((attention_case){none, 0, 2, 8, 0, 5, 2, false, false, 0, MC_F32});
    run_case((attention_case){none, 2, 2, 8, 4, 5, 2, false, false, 0, MC_BF16});
}

/* Large scores: the softmax is taken relative to the largest. Not-a-number spreads. */
static void test_extremes(void **state)
{
    (void)state;
    const int32_t length[] = {3}, offset[] = {0, 3};
    mc_lengths lengths = {1, length, offset, 3, 3, 3};
    mc_attention_shape shape = {.lengths = &lengths, .heads = 1, .head_dim = 1, .scale = 1};
    FOR_TABLES(t)
    {
        float q[] = {1000, -1000, NAN}, k[] = {100, 0, -100}, v[] = {1, 2, 3}, out[3], lse[3];
        mc_matrix m[] = {{q, MC_F32, 1}, {k, MC_F32, 1}, {v, MC_F32, 1}, {out, MC_F32, 1}};
        assert_int_equal(t->k->attention(device, &shape, m[0], m[1], m[2], m[3], lse), MC_OK);
        assert_true(out[0] == 1 && out[1] == 3 && isnan(out[2]));
        assert_true(lse[0] == 1e5f && lse[1] == 1e5f && isnan(lse[2]));
    }
}

/* The same bits however the heads are dealt out. */
static void test_repeatable(void **state)
{
    (void)state;
    attention_data d;
    data_init(
        &d, (attention_case){ragged, 6, 4, 32, 0, 5, 2, false, true, 0.1f, MC_F32, .bias = MC_F32});
    matrix *dqkv = &d.queries.dx;
    size_t bytes = (size_t)(dqkv->rows * dqkv->m.stride) * sizeof(float);
    size_t bias_bytes = (size_t)(d.dbias.rows * d.dbias.columns) * sizeof(float);
    float *first = malloc(bytes), *first_bias = malloc(bias_bytes);
    assert_true(first && first_bias);
    for (int run = 0; run < 20; run++) {
        const mc_kernels *k = tables[table_count - 1].k;
        const matrix *qkv = &d.queries.x;
        mc_matrix x[] = {part(&d, qkv, 0), part(&d, qkv, 1), part(&d, qkv, 2)};
        mc_matrix dx[] = {part(&d, dqkv, 0), part(&d, dqkv, 1), part(&d, dqkv, 2)};
        matrix_reset(&d.dbias);
        assert_int_equal(k->attention(device, &d.shape, x[0], x[1], x[2], d.out.m, d.lse), MC_OK);
        assert_int_equal(k->attention_backward(device, &d.shape, x[0], x[1], x[2], d.out.m, d.lse,
                                               d.dout.m, dx[0], dx[1], dx[2]),
                         MC_OK);
        if (run == 0) memcpy(first, dqkv->m.data, bytes);
        if (run == 0) memcpy(first_bias, d.dbias.m.data, bias_bytes);
        assert_memory_equal(first, dqkv->m.data, bytes);
        assert_memory_equal(first_bias, d.dbias.m.data, bias_bytes);
    }
    free(first);
    free(first_bias);
    data_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),         cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_lengths),       cmocka_unit_test(test_empty),
        cmocka_unit_test(test_bias),          cmocka_unit_test(test_cross),
        cmocka_unit_test(test_hiding_bias),   cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_position_bias), cmocka_unit_test(test_marks),
        cmocka_unit_test(test_repeatable),    cmocka_unit_test(test_contract),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
