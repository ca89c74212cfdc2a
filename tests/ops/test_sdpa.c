/* Attention with a bias and against other keys, beyond the rows of the op harness: which inputs
 * want a gradient, a bias that serves several layers, and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/autograd/tape_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
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

/* ---- torch ----------------------------------------------------------------------------------- */

/* What make_sdpa_numbers.py prints. */
static const float torch_y[] = {-0.1244195f, -0.9012613f, -0.3355183f, -0.8330611f, 0.5717073f,
                                0.7024316f,  0.6203852f,  0.6336830f,  -0.8033636f, -0.3613993f,
                                -0.8473529f, -0.2477797f, 0.8846973f,  0.1093787f,  0.7494248f,
                                0.3861606f,  -0.8673830f, -0.0324069f, -0.8740575f, -0.1677995f,
                                0.9225284f,  0.0264098f,  0.9446897f,  -0.1158167f};
static const float torch_dq[] = {
    -0.0636193f, 0.0341060f,  0.0548306f,  0.0622432f,  -0.0095464f, -0.0597832f,
    0.0168786f,  0.0323901f,  -0.0252252f, 0.0252347f,  -0.0724201f, -0.0065728f,
    0.1064011f,  -0.0208364f, -0.1010318f, -0.1326151f, 0.0428262f,  0.1215793f,
    -0.0800911f, -0.1078090f, 0.1078724f,  0.1392005f,  0.0933704f,  -0.1632611f,
    -0.0698041f, 0.1840547f,  0.0223754f,  0.0109237f,  -0.1272323f, 0.0218626f,
    0.0921805f,  -0.0656758f, -0.0752565f, -0.0658796f, 0.0383913f,  0.0559865f};
static const float torch_dk[] = {-0.0504128f, 0.0268155f,  0.0435028f,  -0.0059954f, 0.0410530f,
                                 -0.0045835f, 0.0755785f,  0.0592585f,  -0.0908488f, 0.1458693f,
                                 0.0108308f,  -0.1486601f, 0.1628709f,  -0.0391597f, -0.1527795f,
                                 0.0341454f,  -0.0940677f, -0.0099052f, -0.0606112f, -0.0598256f,
                                 0.0760276f,  -0.1446650f, -0.0020527f, 0.1451938f,  -0.1274254f,
                                 0.0129113f,  0.1240980f,  -0.0293543f, 0.0442366f,  0.0179550f};
static const float torch_dv[] = {-0.2432282f, -0.2512675f, 0.0086441f,  -0.0322800f, 0.3031148f,
                                 -0.0172030f, -0.0376836f, -0.5315100f, -0.3046820f, 0.0564257f,
                                 0.0601039f,  0.3286659f,  0.1248562f,  -0.4717458f, -0.4283530f,
                                 -0.0183284f, -0.1070621f, 0.2475482f,  -0.0320067f, 0.0153014f};

static void assert_values(mc_context *ctx, const mc_tensor *x, const float *expected, int count)
{
    float got[64];
    assert_int_equal(mc_tensor_count(x), count);
    mc_tensor_read_f32(ctx, x, got, count);
    assert_good(ctx);
    for (int i = 0; i < count; i++) assert_near((double)got[i], (double)expected[i], 5e-7);
}
#define ASSERT_VALUES(x, expected) \
    assert_values(ctx, x, expected, (int)(sizeof(expected) / sizeof *(expected)))

static mc_tensor *sequence(mc_tape *t, mc_tensor *x)
{
    int32_t rows = (int32_t)mc_tensor_rows(x);
    return mc_with_lengths(t, x, mc_tape_lengths(t, &rows, 1, 1));
}

/* Heads that share keys, values of another size, and queries that end where the keys end, in a
 * window. */
static void test_torch(void **state)
{
    mc_context *ctx = *state;
    enum { OWN = 3, OTHERS = 5, SOME = 4, FEWER = 2, SIZE = 3, VALUE_SIZE = 2 };
    const mc_sdpa_options o = {.heads = SOME,
                               .key_heads = FEWER,
                               .value_dim = VALUE_SIZE,
                               .causal = true,
                               .bottom_right = true,
                               .window_left = 3};
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *q = input(t, MC_SHAPE(OWN, SOME * SIZE), 1, true);
    mc_tensor *k = input(t, MC_SHAPE(OTHERS, FEWER * SIZE), 2, true);
    mc_tensor *v = input(t, MC_SHAPE(OTHERS, FEWER * VALUE_SIZE), 3, true);
    mc_tensor *y = mc_sdpa_separate(t, sequence(t, q), sequence(t, k), v, &o);
    assert_good(ctx);
    mc_tape_backward(t, y, input(t, MC_SHAPE(OWN, SOME * VALUE_SIZE), 4, false));
    ASSERT_VALUES(y, torch_y);
    ASSERT_VALUES(mc_tensor_gradient(q), torch_dq);
    ASSERT_VALUES(mc_tensor_gradient(k), torch_dk);
    ASSERT_VALUES(mc_tensor_gradient(v), torch_dv);
    mc_tape_end(t);
}

/* One tensor as q, k and v: its gradient is the sum of the three. */
static void test_one_tensor(void **state)
{
    mc_context *ctx = *state;
    const mc_sdpa_options o = {.heads = HEADS};
    float sum[QUERIES * WIDTH], part[3][QUERIES * WIDTH];
    for (int apart = 0; apart < 2; apart++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x[3];
        for (int i = 0; i < 3; i++)
            x[i] = i && !apart ? x[0] : input(t, MC_SHAPE(QUERIES, WIDTH), 1, true);
        mc_tensor *own = packed(t, x[0], query_lengths);
        mc_tensor *k = apart ? packed(t, x[1], query_lengths) : own;
        mc_tensor *y = mc_sdpa_separate(t, own, k, apart ? x[2] : own, &o);
        mc_tape_backward(t, y, input(t, MC_SHAPE(QUERIES, WIDTH), 4, false));
        assert_good(ctx);
        for (int i = 0; i < (apart ? 3 : 1); i++)
            mc_tensor_read_f32(ctx, mc_tensor_gradient(x[i]), apart ? part[i] : sum,
                               QUERIES * WIDTH);
        mc_tape_end(t);
    }
    for (int i = 0; i < QUERIES * WIDTH; i++)
        assert_near((double)sum[i], (double)(part[0][i] + part[1][i] + part[2][i]), 1e-6);
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
        TEST(test_wanted_gradients), TEST(test_bias_alone),
        TEST(test_shared_bias),      TEST(test_torch),
        TEST(test_one_tensor),       TEST(test_memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
