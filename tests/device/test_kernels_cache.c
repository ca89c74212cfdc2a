/* The kernels of generation and of residual streams, against plain loops in double. */
#include "tests/device/choose_test.h"

/* ---- attention over a cache ------------------------------------------------------------------ */

typedef struct cache_case {
    int sequences, heads, dim, capacity; /* heads of the keys */
    int32_t lengths[8];
    int group, value_more, window; /* query heads of each, 0: 1; value_dim - dim; 0: all keys */
} cache_case;

static int heads_of(const cache_case *c) { return c->heads * (c->group ? c->group : 1); }

static const cache_case cases[] = {{1, 1, 1, 1, {1}},
                                   {3, 2, 8, 7, {7, 1, 4}},
                                   {2, 3, 5, 40, {33, 0}}, /* one without any key */
                                   {4, 4, 64, 100, {100, 17, 64, 99}},
                                   {2, 1, 256, 20, {20, 3}},
                                   {8, 12, 64, 70, {70, 1, 2, 3, 64, 65, 63, 16}},
                                   {0, 2, 8, 4, {0}},
                                   {3, 2, 8, 70, {70, 1, 4}, .group = 3},
                                   {3, 2, 33, 70, {70, 1, 64}, .value_more = -20},
                                   {4, 1, 64, 70, {70, 0, 33, 9}, .window = 32},
                                   {4, 2, 64, 70, {70, 0, 9, 65}, 4, 16, 10}};

/* Where sequences lie: one after the other, in the opposite order, in mingled pages. */
enum { IN_ORDER, PLACED, PAGED, LAYOUTS, PAGE_SHIFT = 2, MOST_PAGES = 256 };

typedef struct placing {
    int layout;
    int64_t rows; /* of the cache */
    int32_t first[8], pages[MOST_PAGES];
} placing;

static placing place_sequences(const cache_case *c, int layout)
{
    int32_t each = (c->capacity + (1 << PAGE_SHIFT) - 1) >> PAGE_SHIFT, all = c->sequences * each;
    placing p = {.layout = layout, .rows = c->sequences * c->capacity};
    if (layout == PAGED) p.rows = all << PAGE_SHIFT;
    assert_true(all <= MOST_PAGES);
    for (int s = 0; s < c->sequences; s++) {
        p.first[s] = (layout == PLACED ? c->sequences - 1 - s : s) * c->capacity;
        if (layout == PAGED) p.first[s] = s * each;
        for (int i = 0; i < each; i++) p.pages[s * each + i] = all - 1 - (s + i * c->sequences);
    }
    return p;
}

/* The row of key i of sequence s. */
static int64_t row_of(const placing *p, int s, int64_t i)
{
    if (p->layout != PAGED) return p->first[s] + i;
    const int64_t page = 1 << PAGE_SHIFT;
    return p->pages[p->first[s] + i / page] * page + i % page;
}

/* bias (heads, 2 limit - 1), NULL: none. */
static void reference(const cache_case *c, double scale, const placing *place, const matrix *bias,
                      const matrix *q, const matrix *k, const matrix *v, double *out)
{
    int heads = heads_of(c), dim = c->dim, value_dim = dim + c->value_more;
    double p[128];
    for (int s = 0; s < c->sequences; s++)
        for (int h = 0; h < heads; h++) {
            int n = c->lengths[s], first = c->window && n > c->window ? n - c->window : 0;
            int key_head = h * c->heads / heads;
            double largest = -INFINITY, sum = 0, *to = out + (s * heads + h) * value_dim;
            for (int i = first; i < n; i++) {
                const double *key = k->v + (row_of(place, s, i) * c->heads + key_head) * dim;
                p[i] = 0;
                for (int j = 0; j < dim; j++) p[i] += q->v[(s * heads + h) * dim + j] * key[j];
                p[i] *= scale;
                if (bias) p[i] += bias->v[h * bias->columns + bias->columns / 2 + i - (n - 1)];
                largest = fmax(largest, p[i]);
            }
            for (int i = first; i < n; i++) sum += p[i] = exp(p[i] - largest);
            for (int j = 0; j < value_dim; j++) to[j] = 0;
            for (int i = first; i < n; i++) {
                const double *x = v->v + (row_of(place, s, i) * c->heads + key_head) * value_dim;
                for (int j = 0; j < value_dim; j++) to[j] += p[i] / sum * x[j];
            }
        }
}

/* What lies after a sequence's tokens must not be looked at. */
static void spoil(const cache_case *c, const placing *place, matrix *x)
{
    for (int s = 0; s < c->sequences; s++)
        for (int64_t i = c->lengths[s]; i < c->capacity; i++)
            memset((char *)x->m.data +
                       (size_t)(row_of(place, s, i) * x->m.stride) * mc_dtype_size(x->m.dtype),
                   0xff, (size_t)x->columns * mc_dtype_size(x->m.dtype)); /* NaN */
}

static void spoil_last(const cache_case *c, const placing *place, matrix *x)
{
    size_t size = mc_dtype_size(x->m.dtype), row = (size_t)x->m.stride * size;
    for (int s = 0; s < c->sequences; s++)
        if (c->lengths[s])
            memset((char *)x->m.data + (size_t)row_of(place, s, c->lengths[s] - 1) * row, 0xff,
                   (size_t)x->columns * size);
}

/* The last row of each sequence. */
static matrix last_rows(const cache_case *c, const placing *place, const matrix *x)
{
    matrix last = matrix_new(x->m.dtype, c->sequences, x->columns, 5, 0, 0);
    size_t size = mc_dtype_size(x->m.dtype);
    for (int s = 0; s < c->sequences; s++)
        if (c->lengths[s])
            memcpy((char *)last.m.data + (size_t)(s * last.m.stride) * size,
                   (const char *)x->m.data +
                       (size_t)(row_of(place, s, c->lengths[s] - 1) * x->m.stride) * size,
                   (size_t)x->columns * size);
    return last;
}

/* With a bias by distance or without. */
static void run_cached(const cache_case *c, mc_dtype dtype, bool biased, int layout)
{
    int heads = heads_of(c), value_dim = c->dim + c->value_more;
    int64_t width = (int64_t)heads * c->dim;
    int32_t longest = 0;
    placing place = place_sequences(c, layout);
    for (int i = 0; i < c->sequences; i++)
        if (c->lengths[i] > longest) longest = c->lengths[i];
    matrix q = matrix_new(dtype, c->sequences, width, 2 * width, -2, 2);
    matrix k = matrix_new(dtype, place.rows, c->heads * c->dim, 0, -2, 2);
    matrix v = matrix_new(dtype, place.rows, c->heads * value_dim, 0, -2, 2);
    matrix out = matrix_new(dtype, c->sequences, heads * value_dim, 3, -2, 2);
    matrix bias = matrix_new(MC_F32, heads, 2 * longest + 3, 0, -2, 2);
    double *expected = doubles(c->sequences * heads * value_dim);
    mc_cached_attention shape = {.sequences = c->sequences,
                                 .heads = heads,
                                 .head_dim = c->dim,
                                 .key_heads = c->group ? c->heads : 0,
                                 .value_dim = c->value_more ? value_dim : 0,
                                 .window_left = c->window,
                                 .scale = 1 / sqrtf((float)c->dim),
                                 .lengths = c->lengths,
                                 .first = layout == IN_ORDER ? NULL : place.first,
                                 .capacity = layout == IN_ORDER ? c->capacity : -1,
                                 .pages = layout == PAGED ? place.pages : NULL,
                                 .page_shift = PAGE_SHIFT,
                                 .longest = longest,
                                 .position_bias = biased ? bias.m.data : NULL,
                                 .position_limit = longest + 2};
    reference(c, (double)shape.scale, &place, biased ? &bias : NULL, &q, &k, &v, expected);
    spoil(c, &place, &k);
    spoil(c, &place, &v);
    matrix new_k = last_rows(c, &place, &k), new_v = last_rows(c, &place, &v);
    FOR_TABLES(t)
    for (int kept = 0; kept < 2; kept++) {
        matrix_reset(&out);
        if (kept) { /* the last keys and values come from elsewhere, and go there */
            spoil_last(c, &place, &k);
            spoil_last(c, &place, &v);
            shape.new_k = new_k.m;
            shape.new_v = new_v.m;
        }
        assert_int_equal(t->k->attention_cached(device, &shape, q.m, k.m, v.m, out.m), MC_OK);
        assert_matrix(&out, expected, 1e-5, t->name, "attention_cached");
        shape.new_k.data = shape.new_v.data = NULL;
    }
    matrix *all[] = {&q, &k, &v, &out, &bias, &new_k, &new_v};
    for (int i = 0; i < 7; i++) matrix_free(all[i]);
    free(expected);
}

static void test_attention_cached(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) FOR_TYPES(d)
    for (int mode = 0; mode < 2 * LAYOUTS; mode++)
        run_cached(&cases[n], float_types[d], mode & 1, mode / 2);
}

/* ---- choosing tokens ------------------------------------------------------------------------- */

static void run_choose(const choose_case *c, mc_dtype dtype)
{
    matrix logits = choose_logits(c, dtype);
    choose_memory before = choose_begin(c);
    FOR_TABLES(t)
    {
        choose_memory after = before;
        after.seen = malloc(before.seen_bytes);
        assert_non_null(after.seen);
        memcpy(after.seen, before.seen, before.seen_bytes);
        mc_choose_call call = choose_call_of(c, &after);
        assert_int_equal(t->k->choose_tokens(device, &call, logits.m), MC_OK);
        choose_check(c, &before, &after, &logits, 1e-12, t->name);
        free(after.seen);
    }
    free(before.seen);
    matrix_free(&logits);
}

static void test_choose_tokens(void **state)
{
    (void)state;
    for (int n = 0; n < CHOOSE_CASES; n++)
        FOR_TYPES(d) run_choose(&choose_cases[n], float_types[d]);
}

static void test_best_tokens(void **state)
{
    (void)state;
    for (int n = 0; n < CHOOSE_CASES; n++) FOR_TYPES(d)
    FOR_TABLES(t) for (size_t k = 0; k < sizeof best_counts / sizeof *best_counts; k++)
    {
        const choose_case *c = &choose_cases[n];
        matrix logits = choose_logits(c, float_types[d]);
        choose_memory m = choose_begin(c);
        mc_chosen best[CHOOSE_ROWS * 60];
        float penalty[CHOOSE_ROWS];
        mc_best_call call = {.rows = CHOOSE_ROWS,
                             .vocab = c->vocab,
                             .count = best_counts[k],
                             .penalty = best_penalties(c, n % 2, penalty),
                             .seen = n % 2 ? m.seen : NULL,
                             .best = best};
        best_blank(best);
        assert_int_equal(t->k->best_tokens(device, &call, logits.m), MC_OK);
        best_check(&call, penalty, call.seen, best, &logits, 1e-5, t->name);
        if (float_types[d] == MC_F32) {
            ((float *)logits.m.data)[c->vocab - 1] = NAN;
            assert_int_equal(t->k->best_tokens(device, &call, logits.m), MC_OK);
            assert_int_equal(best[0].token, MC_CHOSEN_NOT_FINITE);
            assert_true(best[2 * call.count].token >= 0);
        }
        free(m.seen);
        matrix_free(&logits);
    }
}

/* What is no number ends that answer alone. */
static void test_choose_from_nan(void **state)
{
    (void)state;
    const choose_case c = {40, {false, 1, 1, 0, 1, 0}};
    matrix logits = choose_logits(&c, MC_F32);
    ((float *)logits.m.data)[7] = NAN;
    FOR_TABLES(t)
    {
        choose_memory m = choose_begin(&c);
        mc_choose_call call = choose_call_of(&c, &m);
        assert_int_equal(t->k->choose_tokens(device, &call, logits.m), MC_OK);
        assert_int_equal(m.chosen[0][choose_answer[0]].token, MC_CHOSEN_NOT_FINITE);
        assert_int_equal(m.state[MC_ROW_ENDED][0], 1);
        assert_int_equal(m.state[MC_ROW_POSITION][0], 1000 * MC_ROW_POSITION);
        assert_int_equal(m.chosen[1][choose_answer[1]].token, 20);
        free(m.seen);
    }
    matrix_free(&logits);
}

/* ---- rows and sums --------------------------------------------------------------------------- */

static void test_scatter_rows(void **state)
{
    (void)state;
    enum { ROWS = 9, TARGET = 14 };
    const int32_t index[ROWS] = {13, 0, 5, 2, 8, 1, 12, 7, 3};
    const int64_t widths[] = {1, 7, 64, 1000};
    for (int w = 0; w < 4; w++) FOR_TYPES(d)
        {
            int64_t n = widths[w];
            matrix x = matrix_new(float_types[d], ROWS, n, 5, -1, 1);
            matrix y = matrix_new(float_types[d], TARGET, n, 3, -1, 1);
            double *expected = doubles(TARGET * n);
            memcpy(expected, y.v, (size_t)(TARGET * n) * sizeof *expected);
            for (int i = 0; i < ROWS; i++)
                memcpy(expected + index[i] * n, x.v + i * n, (size_t)n * sizeof *expected);
            FOR_TABLES(t)
            {
                matrix_reset(&y);
                assert_int_equal(t->k->scatter_rows(device, ROWS, n, x.m, index, y.m), MC_OK);
                assert_matrix(&y, expected, 0, t->name, "scatter_rows");
                assert_int_equal(t->k->scatter_rows(device, 0, n, x.m, NULL, y.m), MC_OK);
            }
            matrix_free(&x);
            matrix_free(&y);
            free(expected);
        }
}

/* The same bits as the sum that residual_norm keeps. */
static void test_residual_sum(void **state)
{
    (void)state;
    const int64_t sizes[][2] = {{1, 1}, {5, 7}, {3, 64}, {40, 1030}, {0, 8}};
    for (int n = 0; n < 5; n++) FOR_TYPES(d)
    for (int p = 0; p < 2; p++) {
        int64_t rows = sizes[n][0], columns = sizes[n][1];
        mc_dtype dtype = float_types[d];
        mc_dropout_mask mask = {.p = p ? 0.3f : 0, .seed = 77, .offset = 5};
        matrix x = matrix_new(dtype, rows, columns, 4, -2, 2);
        matrix f = matrix_new(dtype, rows, columns, 0, -2, 2);
        matrix y = matrix_new(dtype, rows, columns, 0, -2, 2);
        matrix s = matrix_new(dtype, rows, columns, 1, -2, 2);
        matrix kept = matrix_new(dtype, rows, columns, 1, -2, 2);
        double *expected = doubles(rows * columns);
        for (int64_t i = 0; i < rows * columns; i++)
            expected[i] = x.v[i] + f.v[i] * reference_dropout(mask, (uint64_t)i);
        mc_residual_norm_call norm = {.rows = rows,
                                      .columns = columns,
                                      .x = x.m,
                                      .f = f.m,
                                      .dropout = mask,
                                      .eps = 1e-5f,
                                      .s = kept.m,
                                      .y = y.m};
        FOR_TABLES(t)
        {
            matrix_reset(&s);
            matrix_reset(&kept);
            assert_int_equal(t->k->residual_sum(device, rows, columns, x.m, f.m, mask, s.m), MC_OK);
            assert_int_equal(t->k->residual_norm(device, &norm), MC_OK);
            assert_matrix(&s, expected, 1e-6, t->name, "residual_sum");
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < columns; c++)
                    assert_true(element(dtype, s.m.data, r * s.m.stride + c) ==
                                element(dtype, kept.m.data, r * kept.m.stride + c));
        }
        matrix_free(&x);
        matrix_free(&f);
        matrix_free(&y);
        matrix_free(&s);
        matrix_free(&kept);
        free(expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_cached), cmocka_unit_test(test_choose_tokens),
        cmocka_unit_test(test_best_tokens),      cmocka_unit_test(test_choose_from_nan),
        cmocka_unit_test(test_scatter_rows),     cmocka_unit_test(test_residual_sum),
    };
    return cmocka_run_group_tests(tests, open_tables, close_tables);
}
