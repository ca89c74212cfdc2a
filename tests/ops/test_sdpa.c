/* Attention with a bias and against other keys, beyond the rows of the op harness: which inputs
 * want a gradient, a bias that serves several layers, and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/autograd/tape_internal.h"
#include "core/modelcenter.h"
#include "tests/optim/optim_test.h"

enum { HEADS = 2, DIM = 4, WIDTH = HEADS * DIM, QUERIES = 7, KEYS = 9, LONGEST = 5, INPUTS = 3 };
enum { Q, KV, BIAS };

static const int32_t query_lengths[] = {4, 3}, key_lengths[] = {4, 5};
static const int64_t counts[INPUTS] = {QUERIES * WIDTH, KEYS * 2 * WIDTH, HEADS *LONGEST *LONGEST};
enum { MOST = HEADS * LONGEST * LONGEST + KEYS * 2 * WIDTH };

static mc_tensor *input(mc_tape *t, mc_shape shape, float start, bool requires_grad)
{
    float v[MOST];
    for (int i = 0; i < MOST; i++) v[i] = sinf(start + (float)i * 1.7f);
    return mc_tape_input(t, MC_F32, shape, v, requires_grad);
}

static void make_inputs(mc_tape *t, mc_tensor *x[INPUTS], unsigned wanted)
{
    x[Q] = input(t, MC_SHAPE(QUERIES, WIDTH), 1, wanted & 1 << Q);
    x[KV] = input(t, MC_SHAPE(KEYS, 2 * WIDTH), 2, wanted & 1 << KV);
    x[BIAS] = input(t, MC_SHAPE(HEADS, LONGEST, LONGEST), 3, wanted & 1 << BIAS);
}

/* As the packed batches that attention asks for. */
static mc_tensor *packed(mc_tape *t, mc_tensor *x, const int32_t *lengths)
{
    return mc_with_lengths(t, x, mc_tape_lengths(t, lengths, 2, 1));
}

static mc_tensor *cross(mc_tape *t, mc_tensor *q, mc_tensor *kv, mc_tensor *bias)
{
    return mc_sdpa_cross(t, q, kv, &(mc_sdpa_options){.heads = HEADS, .scale = 1, .bias = bias});
}

typedef struct gradients {
    float of[INPUTS][MOST];
} gradients;

/* Of `layers` attentions one after the other, which share keys and bias. */
static gradients run(mc_context *ctx, unsigned wanted, int layers)
{
    gradients g = {0};
    mc_tensor *x[INPUTS], *y;
    mc_tape *t = mc_tape_begin(ctx);
    make_inputs(t, x, wanted);
    y = packed(t, x[Q], query_lengths);
    mc_tensor *kv = packed(t, x[KV], key_lengths);
    for (int i = 0; i < layers; i++) y = cross(t, y, kv, x[BIAS]);
    mc_tape_backward(t, y, input(t, MC_SHAPE(QUERIES, WIDTH), 4, false));
    for (int i = 0; i < INPUTS && !mc_failed(ctx); i++) {
        mc_tensor *gradient = mc_tensor_gradient(x[i]);
        assert_int_equal(gradient != NULL, (wanted >> i) & 1);
        if (gradient) mc_tensor_read_f32(ctx, gradient, g.of[i], counts[i]);
    }
    mc_tape_end(t);
    return g;
}

/* Each gradient is the same whatever else is wanted. */
static void test_wanted_gradients(void **state)
{
    mc_context *ctx = *state;
    gradients all = run(ctx, 7, 1);
    assert_good(ctx);
    for (unsigned wanted = 1; wanted < 7; wanted++) {
        gradients some = run(ctx, wanted, 1);
        assert_good(ctx);
        for (int i = 0; i < INPUTS; i++)
            if (wanted >> i & 1) assert_memory_equal(some.of[i], all.of[i], sizeof all.of[i]);
    }
}

/* In self-attention too the bias may be all that wants one. */
static void test_bias_alone(void **state)
{
    mc_context *ctx = *state;
    float of[2][HEADS * LONGEST * LONGEST];
    for (int alone = 0; alone < 2; alone++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *qkv = input(t, MC_SHAPE(QUERIES, 3 * WIDTH), 1, !alone);
        mc_tensor *bias = input(t, MC_SHAPE(HEADS, LONGEST, LONGEST), 3, true);
        mc_tensor *y = mc_sdpa(t, packed(t, qkv, query_lengths),
                               &(mc_sdpa_options){.heads = HEADS, .causal = true, .bias = bias});
        mc_tape_backward(t, y, input(t, MC_SHAPE(QUERIES, WIDTH), 4, false));
        mc_tensor_read_f32(ctx, mc_tensor_gradient(bias), of[alone], counts[BIAS]);
        assert_good(ctx);
        assert_true(alone ? !mc_tensor_gradient(qkv) : mc_tensor_gradient(qkv) != NULL);
        mc_tape_end(t);
    }
    assert_memory_equal(of[0], of[1], sizeof of[0]);
    for (int h = 0; h < HEADS; h++) /* rows of the bias that no query has stay zero */
        for (int j = 0; j < LONGEST; j++)
            assert_true(of[0][(h * LONGEST + LONGEST - 1) * LONGEST + j] == 0);
}

/* The loss of two layers that share a bias, one element of which is moved by a step. */
static double loss_at(mc_context *ctx, int element, float step)
{
    mc_tensor *x[INPUTS], *y;
    float v[MOST], got[QUERIES * WIDTH];
    mc_tape *t = mc_tape_begin(ctx);
    make_inputs(t, x, 0);
    for (int i = 0; i < MOST; i++) v[i] = sinf(3 + (float)i * 1.7f) + (i == element ? step : 0);
    x[BIAS] = mc_tape_input(t, MC_F32, MC_SHAPE(HEADS, LONGEST, LONGEST), v, false);
    mc_tensor *kv = packed(t, x[KV], key_lengths);
    y = cross(t, cross(t, packed(t, x[Q], query_lengths), kv, x[BIAS]), kv, x[BIAS]);
    mc_tensor_read_f32(ctx, y, got, QUERIES * WIDTH);
    mc_tape_end(t);
    double loss = 0;
    for (int i = 0; i < QUERIES * WIDTH; i++) loss += (double)(got[i] * sinf(4 + (float)i * 1.7f));
    return loss;
}

static void test_shared_bias(void **state)
{
    mc_context *ctx = *state;
    gradients g = run(ctx, 7, 2);
    const float step = 1e-2f;
    for (int i = 0; i < counts[BIAS]; i++) {
        double slope = (loss_at(ctx, i, step) - loss_at(ctx, i, -step)) / (2 * (double)step);
        assert_near((double)g.of[BIAS][i], slope, 2e-4); /* f32 rounds losses by 1e-6 */
    }
    assert_good(ctx);
}

/* ---- memory ---------------------------------------------------------------------------------- */

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
    gradients expected = run(ctx, 7, 2);
    assert_good(ctx);
    size_t in_use = ctx->device->memory.in_use;
    faults.alloc = ctx->device->alloc;
    ctx->device->alloc = failing_alloc;
    long nth = 0;
    do {
        faults.count = 0;
        faults.fail_at = ++nth;
        gradients g = run(ctx, 7, 2);
        if (nth <= faults.count) assert_int_equal(mc_error_status(ctx), MC_ERR_NOMEM);
        if (!mc_failed(ctx)) assert_memory_equal(&g, &expected, sizeof g);
        mc_clear_error(ctx);
        assert_int_equal(ctx->device->memory.in_use, in_use);
    } while (nth <= faults.count);
    assert_true(nth > 10);
    ctx->device->alloc = faults.alloc;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_wanted_gradients),
        TEST(test_bias_alone),
        TEST(test_shared_bias),
        TEST(test_memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
