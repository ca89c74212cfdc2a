/* Generation step by step against attention over all tokens at once: with a position bias, with
 * marks in the prompt, of prompts in pieces, and over the memory of an encoder, whose sequences are
 * put into another order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/generate/kv_cache_internal.h"
#include "core/ops/ops_internal.h"
#include "tests/optim/optim_test.h"

/* Heads of the keys, whose width is not that of the model, which no one asks about here. */
enum { SEQUENCES = 3, HEADS = 2, DIM = 5, WIDTH = HEADS * DIM, CAPACITY = 9, LIMIT = 9, STEPS = 3 };
enum { MOST_GROUP = 3 };

/* Heads of the queries for each of the keys: 1 or MOST_GROUP. */
static int group = 1;
static int window; /* 0: none */

static mc_sdpa_options some_options(void)
{
    return (mc_sdpa_options){.heads = group * HEADS,
                             .key_heads = group > 1 ? HEADS : 0,
                             .window_left = window,
                             .scale = 0.8f};
}
static int query_columns(void) { return group * WIDTH; }
static int all_columns(void) { return query_columns() + 2 * WIDTH; }

static const int32_t prompts[SEQUENCES] = {4, 1, 6};

/* Some number for each (sequence, position, column). */
static float value(int sequence, int position, int column)
{
    return sinf((float)(1 + sequence * 977 + position * 131 + column * 17));
}

/* Rows first .. first + lengths[i] of each sequence, packed; `name` maps sequences to those whose
 * values they have. */
static mc_tensor *rows_of(mc_tape *t, const int32_t *first, const int32_t *lengths,
                          const int32_t *name, int count, int columns)
{
    static float v[SEQUENCES * CAPACITY * (MOST_GROUP + 2) * WIDTH];
    int64_t row = 0;
    for (int s = 0; s < count; s++)
        for (int i = 0; i < lengths[s]; i++, row++)
            for (int c = 0; c < columns; c++)
                v[row * columns + c] = value(name[s], (first ? first[s] : 0) + i, c);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(row, columns), v, false);
    x->lengths = mc_tape_lengths(t, lengths, count, 1);
    return x;
}

static mc_tensor *some_bias(mc_tape *t)
{
    float v[MOST_GROUP * HEADS * (2 * LIMIT - 1)];
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = cosf((float)i * 3.1f);
    return mc_tape_input(t, MC_F32, MC_SHAPE(group * HEADS, 2 * LIMIT - 1), v, false);
}

/* Of all tokens but those after the prompts context, where there are marks at all. */
static mc_tensor *some_marks(mc_tape *t, const int32_t *lengths)
{
    int32_t marks[SEQUENCES * CAPACITY], n = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i < lengths[s]; i++) marks[n++] = 2 + (i < prompts[s]);
    return mc_tape_input(t, MC_I32, MC_SHAPE(n), marks, false);
}

static const int32_t identity[] = {0, 1, 2};

/* The rows of a step from what attention over all tokens gives. */
static void expect(mc_context *ctx, const int32_t *before, const int32_t *lengths, bool biased,
                   bool marked, float *y)
{
    static float all[SEQUENCES * CAPACITY * MOST_GROUP * WIDTH];
    const int columns = query_columns();
    int32_t whole[SEQUENCES];
    for (int s = 0; s < SEQUENCES; s++) whole[s] = before[s] + lengths[s];
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = rows_of(t, NULL, whole, identity, SEQUENCES, all_columns());
    mc_sdpa_options o = some_options();
    o.causal = !marked;
    if (biased) o.position_bias = some_bias(t);
    if (marked) o.marks = some_marks(t, whole);
    mc_tensor *out = mc_sdpa(t, x, &o);
    assert_good(ctx);
    mc_tensor_read_f32(ctx, out, all, mc_tensor_count(out));
    for (int s = 0; s < SEQUENCES; s++) {
        const float *from = all + (x->lengths->offset[s] + before[s]) * columns;
        memcpy(y, from, (size_t)(lengths[s] * columns) * sizeof *y);
        y += lengths[s] * columns;
    }
    mc_tape_end(t);
}

static void compare(mc_context *ctx, const mc_tensor *y, const float *expected)
{
    static float got[SEQUENCES * CAPACITY * MOST_GROUP * WIDTH];
    assert_good(ctx);
    mc_tensor_read_f32(ctx, y, got, mc_tensor_count(y));
    for (int64_t i = 0; i < mc_tensor_count(y); i++)
        assert_near((double)got[i], (double)expected[i], 1e-6);
}

/* Pages of two tokens, which the sequences take and give back before they take them again, so that
 * they don't lie one after the other; or that do, and are not looked up. */
static mc_kv_pages *some_pages(mc_context *ctx, const int32_t *rows, bool in_line)
{
    mc_kv_pages *p = mc_kv_pages_new(ctx, SEQUENCES, CAPACITY, SEQUENCES * (CAPACITY + 1), 1);
    assert_good(ctx);
    p->in_line = in_line;
    for (int s = 0; s < SEQUENCES && !in_line; s++) mc_kv_pages_take(p, s, 1 + 3 * s);
    for (int s = 0; s < SEQUENCES && !in_line; s++) mc_kv_pages_give_back(p, s);
    for (int s = 0; s < SEQUENCES; s++) mc_kv_pages_take(p, s, rows ? rows[s] : CAPACITY);
    return p;
}

/* The rows of choose_internal.h where each sequence has so many tokens, the new one included. */
static mc_tensor *rows_with(mc_context *ctx, const mc_kv_pages *p, const int32_t *lengths)
{
    int32_t state[MC_ROW_FIELDS][SEQUENCES] = {{0}};
    for (int s = 0; s < SEQUENCES; s++) {
        state[MC_ROW_FIRST][s] = mc_kv_pages_first(p, s);
        state[MC_ROW_LENGTH][s] = lengths[s];
    }
    mc_tensor *rows = mc_tensor_new_computed(ctx, MC_SHAPE(MC_ROW_FIELDS, SEQUENCES));
    mc_tensor_write(rows, state, sizeof state);
    return rows;
}

/* One step of a cache that holds `before` tokens of each sequence: their prompts, a piece of them,
 * or a token each. */
static void run_step(mc_context *ctx, mc_kv_cache *cache, const int32_t *before,
                     const int32_t *lengths, bool prompt, bool biased, bool marked)
{
    static float expected[SEQUENCES * CAPACITY * MOST_GROUP * WIDTH];
    int32_t after[SEQUENCES];
    bool any = false;
    for (int s = 0; s < SEQUENCES; s++) any |= before[s] > 0;
    for (int s = 0; s < SEQUENCES; s++) after[s] = before[s] + lengths[s];
    expect(ctx, before, lengths, biased, marked, expected);
    mc_tensor *rows = rows_with(ctx, cache->pages, after);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = rows_of(t, before, lengths, identity, SEQUENCES, all_columns());
    assert_true(prompt
                    ? mc_kv_cache_begin_prompts(cache, t, x->lengths, identity, any ? before : NULL)
                    : mc_kv_cache_begin_rows(cache, t, x->lengths, rows));
    mc_sdpa_options o = some_options();
    if (biased) o.position_bias = some_bias(t);
    if (marked && prompt) o.marks = some_marks(t, prompts);
    compare(ctx, cache->decode.attend(t, cache, 0, x, &o), expected);
    mc_kv_cache_end(cache);
    mc_tape_end(t);
    mc_tensor_free(rows);
}

static mc_kv_cache *new_cache(mc_context *ctx, bool in_line)
{
    mc_kv_pages *pages = some_pages(ctx, NULL, in_line);
    return mc_kv_cache_new(ctx, (mc_kv_shape){MC_F32, 1, WIDTH}, pages);
}

static void run_steps(mc_context *ctx, bool biased, bool marked, bool in_line)
{
    mc_kv_cache *cache = new_cache(ctx, in_line);
    int32_t before[SEQUENCES] = {0}, one[SEQUENCES] = {1, 1, 1};
    for (int step = 0; step < STEPS; step++) {
        const int32_t *lengths = step ? one : prompts;
        run_step(ctx, cache, before, lengths, step == 0, biased, marked);
        for (int s = 0; s < SEQUENCES; s++) before[s] += lengths[s];
    }
    mc_kv_cache_free(cache);
}

static void test_steps(void **state)
{
    for (int mode = 0; mode < 8; mode++) run_steps(*state, mode & 1, mode & 2, mode & 4);
}

/* Prompts that come in pieces, some of which have nothing of a sequence, then a token each. */
static void test_pieces(void **state)
{
    static const int32_t pieces[4][SEQUENCES] = {{2, 1, 1}, {1, 0, 4}, {1, 0, 1}, {1, 1, 1}};
    for (int mode = 0; mode < 4; mode++) {
        mc_kv_cache *cache = new_cache(*state, mode & 2);
        int32_t before[SEQUENCES] = {0};
        for (int i = 0; i < 4; i++) {
            run_step(*state, cache, before, pieces[i], i < 3, mode & 1, false);
            for (int s = 0; s < SEQUENCES; s++) before[s] += pieces[i][s];
        }
        mc_kv_cache_free(cache);
    }
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    mc_kv_cache *cache = new_cache(ctx, true);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = rows_of(t, NULL, prompts, identity, SEQUENCES, 3 * WIDTH);
    mc_tensor *rows = rows_with(ctx, cache->pages, prompts);
    assert_false(mc_kv_cache_begin_rows(cache, t, x->lengths, rows));
    assert_error(ctx, MC_ERR_STATE, "cache", "11 tokens of 3 sequences", "one each of up to 3");
    assert_true(mc_kv_cache_begin_prompts(cache, t, x->lengths, identity, NULL));
    assert_null(cache->decode.attend(t, cache, 0, x, &(mc_sdpa_options){.heads = 3}));
    assert_error(ctx, MC_ERR_SHAPE, "cache", "(11, 30)", "3 heads");
    mc_tensor *bias = mc_tape_input(t, MC_F32, MC_SHAPE(HEADS, 9), NULL, false);
    assert_null(cache->decode.attend(t, cache, 0, x,
                                     &(mc_sdpa_options){.heads = 2, .position_bias = bias}));
    assert_error(ctx, MC_ERR_SHAPE, "cache", "position bias (2, 9)", "(2, 2 * L - 1)", "6");
    mc_kv_cache_end(cache);
    mc_tensor_free(rows);
    mc_kv_cache_free(cache);
    mc_tape_end(t);
}

/* ---- the memory of an encoder ---------------------------------------------------------------- */

static const int32_t inputs[SEQUENCES] = {3, 0, 7};

static mc_kv_memory *new_memory(mc_context *ctx, bool in_line)
{
    mc_kv_shape shape = {.dtype = MC_F32, .layers = 2, .width = WIDTH};
    return mc_kv_memory_new(ctx, shape, some_pages(ctx, inputs, in_line));
}

/* A query of each of `count` sequences that have the inputs `name`, and what it gives. */
static mc_tensor *queries(mc_context *ctx, mc_tape *t, const int32_t *name, int count,
                          const mc_sdpa_options *o, float *expected)
{
    static const int32_t one[] = {1, 1, 1};
    int32_t lengths[SEQUENCES];
    for (int i = 0; i < count; i++) lengths[i] = inputs[name[i]];
    mc_tensor *q = rows_of(t, NULL, one, identity, count, query_columns());
    mc_tensor *kv = rows_of(t, NULL, lengths, name, count, 2 * WIDTH);
    mc_tensor *y = mc_sdpa_cross(t, q, kv, o);
    assert_good(ctx);
    mc_tensor_read_f32(ctx, y, expected, mc_tensor_count(y));
    return q;
}

/* The inputs come, with a query each. */
static void bring_inputs(mc_context *ctx, mc_kv_memory *m)
{
    static float expected[SEQUENCES * MOST_GROUP * WIDTH];
    const mc_sdpa_options o = some_options();
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *kv = rows_of(t, NULL, inputs, identity, SEQUENCES, 2 * WIDTH);
    assert_true(mc_kv_memory_begin_prompts(m, t, kv->lengths, identity));
    m->decode.keep(t, m, 0, mc_scale(t, kv, -1)); /* another layer's */
    m->decode.keep(t, m, 1, kv);
    mc_tensor *q = queries(ctx, t, identity, SEQUENCES, &o, expected);
    compare(ctx, m->decode.attend(t, m, 1, q, &o), expected);
    mc_tape_end(t);
}

/* A step of sequences that have the inputs `name`. */
static void run_memory_rows(mc_context *ctx, mc_kv_memory *m, const int32_t *name, int count)
{
    static float expected[SEQUENCES * MOST_GROUP * WIDTH];
    const mc_sdpa_options o = some_options();
    int32_t state[MC_ROW_FIELDS][SEQUENCES] = {{0}};
    for (int i = 0; i < count; i++) {
        state[MC_ROW_MEMORY][i] = mc_kv_pages_first(m->pages, name[i]);
        state[MC_ROW_MEMORY_LENGTH][i] = inputs[name[i]];
    }
    mc_tensor *rows = mc_tensor_new_computed(ctx, MC_SHAPE(MC_ROW_FIELDS, SEQUENCES));
    mc_tensor_write(rows, state, sizeof state);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *q = queries(ctx, t, name, count, &o, expected);
    assert_true(mc_kv_memory_begin_rows(m, t, q->lengths, rows));
    compare(ctx, m->decode.attend(t, m, 1, q, &o), expected);
    mc_tape_end(t);
    mc_tensor_free(rows);
}

static void test_memory(void **state)
{
    mc_context *ctx = *state;
    static const int32_t shared[] = {2, 2, 0}; /* several sequences of one input */
    for (int in_line = 0; in_line < 2; in_line++) {
        mc_kv_memory *m = new_memory(ctx, in_line);
        assert_good(ctx);
        bring_inputs(ctx, m);
        run_memory_rows(ctx, m, identity, SEQUENCES);
        run_memory_rows(ctx, m, shared, SEQUENCES);
        mc_kv_memory_free(m);
    }
}

/* Fewer heads of the keys than of the queries, in all that is tested above. */
static void test_grouped_heads(void **state)
{
    group = MOST_GROUP;
    test_steps(state);
    test_pieces(state);
    test_memory(state);
    group = 1;
}

/* Tokens that see few of those before them. */
static void test_window(void **state)
{
    group = MOST_GROUP;
    for (window = 1; window < 4; window++) {
        for (int mode = 0; mode < 4; mode++) run_steps(*state, mode & 1, false, mode & 2);
        test_pieces(state);
    }
    group = 1;
    window = 0;
}

static void test_memory_errors(void **state)
{
    mc_context *ctx = *state;
    mc_kv_memory *m = new_memory(ctx, true);
    mc_tape *t = mc_tape_begin_eval(ctx);
    const int32_t one[] = {1, 1, 1};
    mc_tensor *kv = rows_of(t, NULL, inputs, identity, SEQUENCES, 2 * WIDTH);
    assert_true(mc_kv_memory_begin_prompts(m, t, kv->lengths, identity));
    assert_false(m->decode.keep(t, m, 0, rows_of(t, NULL, inputs, identity, 2, 2 * WIDTH)));
    assert_error(ctx, MC_ERR_SHAPE, "memory", "kv (3, 20)", "(10, 20)");
    mc_tensor *q = rows_of(t, NULL, one, identity, 3, WIDTH);
    mc_tensor *wide = rows_of(t, NULL, one, identity, 3, 2 * WIDTH);
    assert_null(m->decode.attend(t, m, 0, wide, &(mc_sdpa_options){.heads = 2}));
    assert_error(ctx, MC_ERR_SHAPE, "memory", "(3, 20)", "(3, 10)");
    assert_null(m->decode.attend(t, m, 0, q, &(mc_sdpa_options){.heads = 3}));
    assert_error(ctx, MC_ERR_SHAPE, "memory", "(3, 10)", "3 heads");
    mc_tape_end(t);
    mc_kv_memory_free(m);
}

static struct {
    long count, fail_at;
    void *(*alloc)(mc_device *d, size_t bytes);
} faults;

static void *failing_alloc(mc_device *d, size_t bytes)
{
    return ++faults.count == faults.fail_at ? NULL : faults.alloc(d, bytes);
}

static void test_memory_that_runs_out(void **state)
{
    mc_context *ctx = *state;
    size_t in_use = ctx->device->memory.in_use;
    faults.alloc = ctx->device->alloc;
    for (faults.fail_at = 1; faults.fail_at <= 2; faults.fail_at++) {
        mc_kv_pages *pages = some_pages(ctx, inputs, true);
        ctx->device->alloc = failing_alloc;
        faults.count = 0;
        assert_null(mc_kv_memory_new(ctx, (mc_kv_shape){MC_F32, 2, WIDTH}, pages));
        assert_error(ctx, MC_ERR_NOMEM, "30 rows");
        pages = some_pages(ctx, NULL, true);
        faults.count = 0;
        assert_null(mc_kv_cache_new(ctx, (mc_kv_shape){MC_F32, 1, WIDTH}, pages));
        assert_error(ctx, MC_ERR_NOMEM, "30 tokens", "2400 bytes");
        ctx->device->alloc = faults.alloc;
        assert_int_equal(ctx->device->memory.in_use, in_use);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_steps),         TEST(test_pieces),
        TEST(test_errors),        TEST(test_memory),
        TEST(test_grouped_heads), TEST(test_window),
        TEST(test_memory_errors), TEST(test_memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
