/* Attention and its gradient against plain loops in double. */
#include "tests/device/kernel_test.h"

typedef struct attention_case {
    const int32_t *length;
    int count, heads, dim, tail; /* tail: rows of capacity past the total */
    bool causal, masked;
    float dropout;
    mc_dtype dtype;
} attention_case;

typedef struct attention_data {
    attention_case c;
    mc_lengths lengths;
    int32_t offset[16];
    mc_attention_shape shape;
    uint8_t *mask;
    matrix qkv, out, dout, dqkv;
    float *lse;
    double *e_out, *e_lse, *e_dqkv; /* (capacity, width), (heads, total), (capacity, 3 width) */
    int64_t total, capacity, width;
} attention_data;

static void data_init(attention_data *d, attention_case c)
{
    *d = (attention_data){.c = c, .width = (int64_t)c.heads * c.dim};
    int32_t longest = 0;
    for (int i = 0; i < c.count; i++) {
        d->offset[i + 1] = d->offset[i] + c.length[i];
        longest = c.length[i] > longest ? c.length[i] : longest;
    }
    d->total = d->offset[c.count];
    d->capacity = d->total + c.tail;
    d->lengths = (mc_lengths){c.count, c.length, d->offset, d->total, d->capacity, longest};
    d->mask = malloc((size_t)d->total + 1);
    for (int64_t i = 0; i < d->total; i++) d->mask[i] = random_bits() % 3 != 0;
    if (c.masked) memset(d->mask, 0, (size_t)c.length[0]); /* a sequence without any key */
    d->shape = (mc_attention_shape){.lengths = &d->lengths,
                                    .heads = c.heads,
                                    .head_dim = c.dim,
                                    .scale = 1 / sqrtf((float)c.dim),
                                    .causal = c.causal,
                                    .key_mask = c.masked ? d->mask : NULL,
                                    .dropout = {c.dropout, 0x9876543210u, 3}};
    d->qkv = matrix_new(c.dtype, d->capacity, 3 * d->width, 5, -2, 2);
    d->dqkv = matrix_new(c.dtype, d->capacity, 3 * d->width, 2, -2, 2);
    d->out = matrix_new(c.dtype, d->capacity, d->width, 1, -2, 2);
    d->dout = matrix_new(c.dtype, d->capacity, d->width, 4, -2, 2);
    d->lse = calloc((size_t)(c.heads * d->total) + 1, sizeof *d->lse);
    d->e_out = doubles(d->capacity * d->width);
    d->e_lse = doubles(c.heads * d->total);
    d->e_dqkv = doubles(d->capacity * 3 * d->width);
}

static void data_free(attention_data *d)
{
    matrix_free(&d->qkv);
    matrix_free(&d->dqkv);
    matrix_free(&d->out);
    matrix_free(&d->dout);
    void *rest[] = {d->mask, d->lse, d->e_out, d->e_lse, d->e_dqkv};
    for (int i = 0; i < 5; i++) free(rest[i]);
}

/* One query: p (keys) the probabilities before dropout; gives log sum exp, NaN without keys. */
static double query_probabilities(const attention_data *d, int sequence, int h, int i, double *p)
{
    int first = d->offset[sequence], n = d->c.length[sequence];
    const double *q = d->qkv.v + (first + i) * 3 * d->width + h * d->c.dim;
    double largest = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) {
        const double *k = d->qkv.v + (first + j) * 3 * d->width + d->width + h * d->c.dim;
        double score = 0;
        for (int c = 0; c < d->c.dim; c++) score += q[c] * k[c];
        bool seen = (!d->c.causal || j <= i) && (!d->c.masked || d->mask[first + j]);
        p[j] = seen ? score * (double)d->shape.scale : -INFINITY;
        largest = fmax(largest, p[j]);
    }
    for (int j = 0; j < n; j++) sum += p[j] = isinf(largest) ? 0 : exp(p[j] - largest);
    for (int j = 0; j < n; j++) p[j] = sum > 0 ? p[j] / sum : 0;
    return sum > 0 ? largest + log(sum) : (double)NAN;
}

static void reference_query(attention_data *d, int sequence, int h, int i)
{
    int first = d->offset[sequence], n = d->c.length[sequence], dim = d->c.dim;
    int64_t w = d->width, l4 = (d->lengths.longest + 3) / 4 * 4, row = first + i;
    double p[600], dp[600], factor[600], mean = 0;
    assert_true(n <= 600);
    d->e_lse[h * d->total + row] = query_probabilities(d, sequence, h, i, p);
    const double *q = d->qkv.v + row * 3 * w + h * dim, *g = d->dout.v + row * w + h * dim;
    double *out = d->e_out + row * w + h * dim, *dq = d->e_dqkv + row * 3 * w + h * dim;
    for (int j = 0; j < n; j++) {
        const double *v = d->qkv.v + (first + j) * 3 * w + 2 * w + h * dim;
        double *dv = d->e_dqkv + (first + j) * 3 * w + 2 * w + h * dim;
        factor[j] = reference_dropout(d->shape.dropout, (uint64_t)((h * d->total + row) * l4 + j));
        dp[j] = 0;
        for (int c = 0; c < dim; c++) {
            out[c] += p[j] * factor[j] * v[c];
            dv[c] += p[j] * factor[j] * g[c];
            dp[j] += g[c] * v[c] * factor[j];
        }
        mean += p[j] * dp[j];
    }
    for (int j = 0; j < n; j++) {
        const double *k = d->qkv.v + (first + j) * 3 * w + w + h * dim;
        double *dk = d->e_dqkv + (first + j) * 3 * w + w + h * dim;
        double ds = p[j] * (dp[j] - mean) * (double)d->shape.scale;
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
    m.data = (char *)m.data + (size_t)(which * d->width) * mc_dtype_size(m.dtype);
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
        mc_matrix q = part(&d, &d.qkv, 0), k = part(&d, &d.qkv, 1), v = part(&d, &d.qkv, 2);
        assert_int_equal(t->k->attention(device, &d.shape, q, k, v, d.out.m, d.lse), MC_OK);
        assert_matrix(&d.out, d.e_out, 2e-6, t->name, "attention");
        for (int64_t i = 0; i < c.heads * d.total; i++)
            if (!isnan(d.e_lse[i]) && !(fabs(d.lse[i] - d.e_lse[i]) < 1e-5))
                fail_msg("log sum exp %s: %g, expected %g", t->name, d.lse[i], d.e_lse[i]);
        assert_int_equal(t->k->attention_backward(device, &d.shape, q, k, v, d.out.m, d.lse,
                                                  d.dout.m, part(&d, &d.dqkv, 0),
                                                  part(&d, &d.dqkv, 1), part(&d, &d.dqkv, 2)),
                         MC_OK);
        /* The mean over a row is taken of the output as rounded, with its error. */
        double rounding = c.dtype == MC_F32 ? 0 : c.dtype == MC_F16 ? 0x1p-10 : 0x1p-7;
        assert_matrix(&d.dqkv, d.e_dqkv, 4e-6 + rounding, t->name, "attention_backward");
        assert_int_equal(t->k->attention(device, &d.shape, q, k, v, d.out.m, NULL), MC_OK);
        assert_matrix(&d.out, d.e_out, 2e-6, t->name, "attention without log sum exp");
    }
    data_free(&d);
}

static const int32_t ragged[] = {3, 0, 1, 49, 130, 17};

static void run_kinds(attention_case c)
{
    for (int mode = 0; mode < 8; mode++) {
        c.causal = mode & 1;
        c.masked = mode & 2;
        c.dropout = mode & 4 ? 0.2f : 0;
        run_case(c);
    }
}

static void test_types(void **state)
{
    (void)state;
    FOR_TYPES(i) run_kinds((attention_case){ragged, 6, 2, 32, 3, false, false, 0, float_types[i]});
}

static void test_head_sizes(void **state)
{
    (void)state;
    const int dims[] = {1, 5, 16, 33, 64, 80, 128};
    for (int i = 0; i < 7; i++)
        run_kinds((attention_case){ragged, 5, 2, dims[i], 0, false, false, 0, MC_F32});
}

static void test_lengths(void **state)
{
    (void)state;
    for (int32_t n = 1; n < 70; n++)
        run_case((attention_case){&n, 1, 1, 24, 1, n % 2, false, 0, MC_F32});
    const int32_t long_one[] = {513};
    run_kinds((attention_case){long_one, 1, 1, 64, 0, false, false, 0, MC_F32});
}

/* No sequences, only empty ones, and only a tail. */
static void test_empty(void **state)
{
    (void)state;
    const int32_t none[] = {0, 0};
    run_case((attention_case){none, 0, 2, 8, 0, false, false, 0, MC_F32});
    run_case((attention_case){none, 2, 2, 8, 4, false, false, 0, MC_BF16});
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
    data_init(&d, (attention_case){ragged, 6, 4, 32, 0, false, true, 0.1f, MC_F32});
    size_t bytes = (size_t)(d.capacity * d.dqkv.m.stride) * sizeof(float);
    float *first = malloc(bytes);
    assert_non_null(first);
    for (int run = 0; run < 20; run++) {
        const mc_kernels *k = tables[table_count - 1].k;
        mc_matrix x[] = {part(&d, &d.qkv, 0), part(&d, &d.qkv, 1), part(&d, &d.qkv, 2)};
        mc_matrix dx[] = {part(&d, &d.dqkv, 0), part(&d, &d.dqkv, 1), part(&d, &d.dqkv, 2)};
        assert_int_equal(k->attention(device, &d.shape, x[0], x[1], x[2], d.out.m, d.lse), MC_OK);
        assert_int_equal(k->attention_backward(device, &d.shape, x[0], x[1], x[2], d.out.m, d.lse,
                                               d.dout.m, dx[0], dx[1], dx[2]),
                         MC_OK);
        if (run == 0) memcpy(first, d.dqkv.m.data, bytes);
        assert_memory_equal(first, d.dqkv.m.data, bytes);
    }
    free(first);
    data_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),    cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_lengths),  cmocka_unit_test(test_empty),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_repeatable),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
