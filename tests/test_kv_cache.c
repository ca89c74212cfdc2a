/* Generation step by step against attention over all tokens at once: with a position bias, with
 * marks in the prompt, and over the memory of an encoder, whose sequences are put into another
 * order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/nn/kv_cache_internal.h"
#include "core/ops/ops_internal.h"
#include "tests/optim/optim_test.h"

/* Heads whose width is not that of the model, which no one asks about here. */
enum { SEQUENCES = 3, HEADS = 2, DIM = 5, WIDTH = HEADS * DIM, CAPACITY = 9, LIMIT = 9, STEPS = 3 };

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
    static float v[SEQUENCES * CAPACITY * 3 * WIDTH];
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
    float v[HEADS * (2 * LIMIT - 1)];
    for (int i = 0; i < HEADS * (2 * LIMIT - 1); i++) v[i] = cosf((float)i * 3.1f);
    return mc_tape_input(t, MC_F32, MC_SHAPE(HEADS, 2 * LIMIT - 1), v, false);
}

/* Of all tokens but those behind the prompts context, where there are marks at all. */
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
    static float all[SEQUENCES * CAPACITY * WIDTH];
    int32_t whole[SEQUENCES];
    for (int s = 0; s < SEQUENCES; s++) whole[s] = before[s] + lengths[s];
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = rows_of(t, NULL, whole, identity, SEQUENCES, 3 * WIDTH);
    mc_sdpa_options o = {.heads = HEADS, .scale = 0.8f, .causal = !marked};
    if (biased) o.position_bias = some_bias(t);
    if (marked) o.marks = some_marks(t, whole);
    mc_tensor *out = mc_sdpa(t, x, &o);
    assert_good(ctx);
    mc_tensor_read_f32(ctx, out, all, mc_tensor_count(out));
    for (int s = 0; s < SEQUENCES; s++) {
        const float *from = all + (x->lengths->offset[s] + before[s]) * WIDTH;
        memcpy(y, from, (size_t)(lengths[s] * WIDTH) * sizeof *y);
        y += lengths[s] * WIDTH;
    }
    mc_tape_end(t);
}

static void compare(mc_context *ctx, const mc_tensor *y, const float *expected)
{
    static float got[SEQUENCES * CAPACITY * WIDTH];
    assert_good(ctx);
    mc_tensor_read_f32(ctx, y, got, mc_tensor_count(y));
    for (int64_t i = 0; i < mc_tensor_count(y); i++)
        assert_near((double)got[i], (double)expected[i], 1e-6);
}

static void run_steps(mc_context *ctx, bool biased, bool marked)
{
    mc_kv_cache *cache = mc_kv_cache_new(ctx, (mc_kv_shape){MC_F32, 1, WIDTH, SEQUENCES, CAPACITY});
    int32_t before[SEQUENCES] = {0}, one[SEQUENCES] = {1, 1, 1};
    for (int step = 0; step < STEPS; step++) {
        const int32_t *lengths = step ? one : prompts;
        static float expected[SEQUENCES * CAPACITY * WIDTH];
        expect(ctx, before, lengths, biased, marked, expected);
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *x = rows_of(t, before, lengths, identity, SEQUENCES, 3 * WIDTH);
        assert_true(mc_kv_cache_begin(cache, t, x->lengths));
        mc_sdpa_options o = {.heads = HEADS, .scale = 0.8f};
        if (biased) o.position_bias = some_bias(t);
        if (marked && !step) o.marks = some_marks(t, prompts);
        compare(ctx, mc_kv_attention(t, cache, 0, x, &o), expected);
        mc_kv_cache_end(cache);
        mc_tape_end(t);
        for (int s = 0; s < SEQUENCES; s++) before[s] += lengths[s];
    }
    mc_kv_cache_free(cache);
}

static void test_steps(void **state)
{
    for (int mode = 0; mode < 4; mode++) run_steps(*state, mode & 1, mode & 2);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    mc_kv_cache *cache = mc_kv_cache_new(ctx, (mc_kv_shape){MC_F32, 1, WIDTH, SEQUENCES, CAPACITY});
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = rows_of(t, NULL, prompts, identity, SEQUENCES, 3 * WIDTH);
    assert_true(mc_kv_cache_begin(cache, t, x->lengths));
    assert_null(mc_kv_attention(t, cache, 0, x, &(mc_sdpa_options){.heads = 3}));
    assert_error(ctx, MC_ERR_SHAPE, "cache", "(11, 30)", "3 heads");
    mc_tensor *bias = mc_tape_input(t, MC_F32, MC_SHAPE(HEADS, 9), NULL, false);
    assert_null(
        mc_kv_attention(t, cache, 0, x, &(mc_sdpa_options){.heads = 2, .position_bias = bias}));
    assert_error(ctx, MC_ERR_SHAPE, "cache", "position bias (2, 9)", "(2, 2 * L - 1)", "6");
    mc_kv_cache_end(cache);
    mc_kv_cache_free(cache);
    mc_tape_end(t);
}

/* ---- the memory of an encoder ---------------------------------------------------------------- */

static const int32_t inputs[SEQUENCES] = {3, 0, 7};

static mc_kv_memory *new_memory(mc_context *ctx)
{
    mc_kv_shape shape = {.dtype = MC_F32, .layers = 2, .width = WIDTH, .sequences = SEQUENCES};
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *kv = rows_of(t, NULL, inputs, identity, SEQUENCES, 2 * WIDTH);
    mc_kv_memory *m = mc_kv_memory_new(ctx, shape, kv->lengths);
    if (m) mc_kv_memory_keep(t, m, 0, mc_scale(t, kv, -1)); /* another layer's */
    if (m) mc_kv_memory_keep(t, m, 1, kv);
    mc_tape_end(t);
    return m;
}

/* A step of sequences that have the inputs `name`, where `rows` says which. */
static void run_memory(mc_context *ctx, mc_kv_memory *m, const int32_t *name, int count,
                       const int32_t *lengths, mc_tensor *rows)
{
    static float expected[SEQUENCES * CAPACITY * WIDTH];
    int32_t input_lengths[SEQUENCES];
    for (int i = 0; i < count; i++) input_lengths[i] = inputs[name[i]];
    mc_sdpa_options o = {.heads = HEADS, .scale = 1.1f};
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *q = rows_of(t, NULL, lengths, identity, count, WIDTH);
    mc_tensor *kv = rows_of(t, NULL, input_lengths, name, count, 2 * WIDTH);
    mc_tensor *y = mc_sdpa_cross(t, q, kv, &o);
    mc_tensor_read_f32(ctx, y, expected, mc_tensor_count(y));
    assert_true(rows ? mc_kv_memory_begin_rows(m, t, q->lengths, rows)
                     : mc_kv_memory_begin(m, t, q->lengths));
    compare(ctx, mc_kv_memory_attention(t, m, 1, q, &o), expected);
    mc_tape_end(t);
}

static void run_memory_rows(mc_context *ctx, mc_kv_memory *m, const int32_t *name, int count)
{
    int32_t state[MC_ROW_FIELDS][SEQUENCES] = {{0}}, one[] = {1, 1, 1};
    for (int i = 0; i < count; i++) {
        state[MC_ROW_MEMORY][i] = m->offset[name[i]];
        state[MC_ROW_MEMORY_LENGTH][i] = inputs[name[i]];
    }
    mc_tensor *rows = mc_tensor_new_computed(ctx, MC_SHAPE(MC_ROW_FIELDS, SEQUENCES));
    mc_tensor_write(rows, state, sizeof state);
    run_memory(ctx, m, name, count, one, rows);
    mc_tensor_free(rows);
}

static void test_memory(void **state)
{
    mc_context *ctx = *state;
    const int32_t one[] = {1, 1, 1};
    mc_kv_memory *m = new_memory(ctx);
    assert_good(ctx);
    run_memory(ctx, m, identity, SEQUENCES, prompts, NULL);
    run_memory(ctx, m, identity, SEQUENCES, one, NULL);
    /* several sequences of one input, by rows */
    const int32_t shared[] = {2, 2, 0};
    run_memory_rows(ctx, m, shared, SEQUENCES);
    mc_kv_memory_free(m);
}

static void test_memory_errors(void **state)
{
    mc_context *ctx = *state;
    mc_kv_memory *m = new_memory(ctx);
    mc_tape *t = mc_tape_begin_eval(ctx);
    const int32_t one[] = {1, 1, 1};
    assert_false(mc_kv_memory_keep(t, m, 0, rows_of(t, NULL, inputs, identity, 2, 2 * WIDTH)));
    assert_error(ctx, MC_ERR_SHAPE, "memory", "kv (3, 20)", "(10, 20)");
    mc_tensor *q = rows_of(t, NULL, one, identity, 2, WIDTH);
    assert_false(mc_kv_memory_begin(m, t, q->lengths));
    assert_error(ctx, MC_ERR_STATE, "memory", "2 sequences", "expected 3");
    q = rows_of(t, NULL, one, identity, 3, WIDTH);
    assert_true(mc_kv_memory_begin(m, t, q->lengths));
    mc_tensor *wide = rows_of(t, NULL, one, identity, 3, 2 * WIDTH);
    assert_null(mc_kv_memory_attention(t, m, 0, wide, &(mc_sdpa_options){.heads = 2}));
    assert_error(ctx, MC_ERR_SHAPE, "memory", "(3, 20)", "(3, 10)");
    assert_null(mc_kv_memory_attention(t, m, 0, q, &(mc_sdpa_options){.heads = 3}));
    assert_error(ctx, MC_ERR_SHAPE, "memory", "(3, 10)", "3 heads");
    mc_kv_shape small = {.dtype = MC_F32, .layers = 1, .width = WIDTH, .sequences = 2};
    assert_null(mc_kv_memory_new(ctx, small, q->lengths));
    assert_error(ctx, MC_ERR_ARGUMENT, "memory", "3 inputs", "2");
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
    mc_kv_shape shape = {.dtype = MC_F32, .layers = 2, .width = WIDTH, .sequences = SEQUENCES};
    const int32_t offset[] = {0, 3, 3, 10};
    const mc_lengths lengths = {SEQUENCES, inputs, offset, 10, 10, 7};
    size_t in_use = ctx->device->memory.in_use;
    faults.alloc = ctx->device->alloc;
    ctx->device->alloc = failing_alloc;
    for (faults.fail_at = 1; faults.fail_at <= 2; faults.fail_at++) {
        faults.count = 0;
        assert_null(mc_kv_memory_new(ctx, shape, &lengths));
        assert_error(ctx, MC_ERR_NOMEM, "10 rows");
        assert_int_equal(ctx->device->memory.in_use, in_use);
    }
    ctx->device->alloc = faults.alloc;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_steps),
        TEST(test_errors),
        TEST(test_memory),
        TEST(test_memory_errors),
        TEST(test_memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
