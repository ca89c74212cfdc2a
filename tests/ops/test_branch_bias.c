/* The gradient of a bias in front of a residual norm: the norm's backward pass adds it up where it
 * may, with the same result as a pass of the linear's own, and leaves it alone where it may not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/ops/graph_test.h"
#include "tests/optim/optim_test.h"

enum { ROWS = 37, IN = 6, OUT = 20, MOST = ROWS * OUT };
enum { H, X, WEIGHT, BIAS, NORM_WEIGHT, NORM_BIAS, INPUTS };

static const int64_t sizes[INPUTS][2] = {{ROWS, IN}, {ROWS, OUT}, {OUT, IN},
                                         {OUT, 0},   {OUT, 0},    {OUT, 0}};

/* What is made of the branch f: norm(x + f) with and without a use for the sum, the sum alone, and
 * norm(f + f). */
typedef enum use { NORM, STREAM, STREAM_NORM, STREAM_SUM, SELF } use;

/* One way to make and use a branch. */
typedef struct setting {
    const char *name;
    int sums; /* passes of the linear's own that are expected */
    use use;
    bool second_use, between, mark, activation, no_bias, input_bias, segment;
    unsigned frozen; /* bits: inputs */
    bool apart;      /* f goes through a multiplication by 1 first: nothing is fused */
} setting;

typedef struct values {
    float gradient[INPUTS][MOST];
} values;

static struct {
    const mc_kernels *kernels;
    int column_sums, marks;
} calls;

static mc_status count_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   float *out)
{
    calls.column_sums++;
    return calls.kernels->column_sums(d, rows, columns, x, out);
}

static mc_status count_backward_input(mc_device *d, const mc_linear_backward_call *c)
{
    if (c->dbias) calls.column_sums++;
    return calls.kernels->linear_backward_input(d, c);
}

typedef struct mark_state {
    const float *gradient; /* (OUT) */
} mark_state;

/* As where a block ends: only from here on gradients of what lies before it have a place. */
static void mark_backward(mc_tape *t, mc_node *node)
{
    const mark_state *state = node->state;
    (void)t;
    calls.marks++;
    for (int i = 0; i < OUT; i++) assert_true(state->gradient[i] == 0);
}

static const mc_op mark_op = {.name = "mark", .backward = mark_backward, .always = true};

/* A graph in the making. */
typedef struct graph {
    const setting *s;
    float dropout;
    mc_tensor *leaf; /* the bias as a parameter; NULL: it is an input */
    const float *leaf_gradient;
} graph;

static mc_tensor *use_branch(mc_tape *t, const graph *g, mc_tensor *x, mc_tensor *f, mc_tensor *w,
                             mc_tensor *b)
{
    const float eps = 1e-5f;
    mc_tensor *sum, *y;
    if (g->s->use == NORM) return mc_residual_norm(t, x, f, g->dropout, w, b, eps);
    if (g->s->use == SELF) return mc_residual_norm(t, f, f, g->dropout, w, b, eps);
    y = mc_stream_norm(t, mc_residual_defer(t, x, f, g->dropout), w, b, eps, &sum);
    if (g->s->use == STREAM_NORM) return y;
    return g->s->use == STREAM_SUM ? mc_scale(t, sum, 3) : mc_add(t, y, sum);
}

/* `in` are the inputs from X on. */
static mc_tensor *build(mc_tape *t, void *user, mc_tensor *h, mc_tensor *const *in)
{
    const graph *g = user;
    mc_tensor *x = in[X - 1], *bias = g->leaf ? g->leaf : in[BIAS - 1], *other = NULL;
    mc_tensor *f = mc_fused_linear(t, h, in[WEIGHT - 1], g->s->no_bias ? NULL : bias,
                                   g->s->activation ? MC_ACTIVATION_TANH : MC_ACTIVATION_NONE);
    if (g->s->apart) f = mc_scale(t, f, 1);
    if (g->s->between) other = mc_scale(t, x, 2);
    if (g->s->mark) {
        mc_node *node = mc_tape_mark(t, &mark_op, sizeof(mark_state));
        assert_non_null(node);
        ((mark_state *)node->state)->gradient = g->leaf_gradient;
    }
    mc_tensor *y = use_branch(t, g, x, f, in[NORM_WEIGHT - 1], in[NORM_BIAS - 1]);
    if (g->s->second_use) y = mc_add(t, y, f);
    return other ? mc_add(t, y, other) : y;
}

/* Runs the graph forward and backward; how many passes over a gradient the biases took. */
static int run(const setting *s, mc_dtype dtype, float dropout, values *v)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *in[INPUTS], *cast[INPUTS];
    make_inputs(t, dtype, s->frozen, INPUTS, sizes, in, cast);
    memset(v, 0, sizeof *v);
    graph g = {.s = s, .dropout = dropout, .leaf_gradient = v->gradient[BIAS]};
    bool frozen = s->frozen >> BIAS & 1;
    if (!s->input_bias)
        g.leaf = mc_tape_leaf(t, dtype, MC_SHAPE(OUT), mc_tensor_data(cast[BIAS]),
                              frozen ? NULL : v->gradient[BIAS]);
    mc_tensor *y = s->segment ? mc_tape_checkpoint(t, build, &g, cast[H], cast + 1, INPUTS - 1)
                              : build(t, &g, cast[H], cast + 1);
    mc_kernels counting = *ctx->device->kernels;
    calls.kernels = ctx->device->kernels;
    calls.column_sums = calls.marks = 0;
    counting.column_sums = count_column_sums;
    counting.linear_backward_input = count_backward_input;
    backward_through(ctx, &counting, t, y, ROWS, OUT);
    read_gradients(ctx, in, INPUTS, s->input_bias ? -1 : BIAS, *v->gradient, MOST);
    assert_true(!s->mark || calls.marks == 1);
    mc_tape_end(t);
    mc_context_free(ctx);
    return calls.column_sums;
}

static void check(const setting *s, mc_dtype dtype, float dropout)
{
    setting apart = *s;
    apart.apart = true;
    values found, expected;
    int sums = run(s, dtype, dropout, &found);
    if (sums != s->sums) fail_msg("%s: %d passes, expected %d", s->name, sums, s->sums);
    sums = run(&apart, dtype, dropout, &expected);
    bool none = s->no_bias || s->frozen >> BIAS & 1;
    assert_int_equal(sums, none ? 0 : 1);
    float largest = 0;
    double unit = s->input_bias && dtype != MC_F32 ? 0x1p-7 : 1e-6;
    for (int i = 0; i < OUT; i++) largest = fmaxf(largest, fabsf(expected.gradient[BIAS][i]));
    assert_true(none ? largest == 0 : largest > 0.1f);
    for (int i = 0; i < OUT; i++)
        if (fabs((double)(found.gradient[BIAS][i] - expected.gradient[BIAS][i])) >
            unit * (double)largest)
            fail_msg("%s, %s: gradient %d of the bias is %.9g, expected %.9g", s->name,
                     mc_dtype_name(dtype), i, (double)found.gradient[BIAS][i],
                     (double)expected.gradient[BIAS][i]);
    /* a gradient that comes in two parts is added up in either order where f goes apart */
    for (int i = 0; i < INPUTS && !s->second_use && s->use != SELF; i++)
        if (i != BIAS)
            assert_memory_equal(found.gradient[i], expected.gradient[i], sizeof found.gradient[i]);
}

static const setting settings[] = {
    /* taken by the norm */
    {"residual norm", 0, NORM},
    {"stream, norm and sum", 0, STREAM},
    {"stream, norm alone", 0, STREAM_NORM},
    {"a bias that is an input", 0, NORM, .input_bias = true},
    {"a frozen weight", 0, NORM, .frozen = 1u << WEIGHT},
    {"a bias alone", 0, NORM, .frozen = 1u << WEIGHT | 1u << H},
    {"x without a gradient", 0, NORM, .frozen = 1u << X},
    {"stream, x without a gradient", 0, STREAM, .frozen = 1u << X},
    {"a frozen norm", 0, NORM, .frozen = 1u << NORM_WEIGHT | 1u << NORM_BIAS},
    {"half a frozen norm", 0, STREAM, .frozen = 1u << NORM_WEIGHT},
    {"a checkpointed segment", 0, STREAM, .segment = true},
    /* by the linear itself */
    {"only the sum", 1, STREAM_SUM},
    {"a second use", 1, NORM, .second_use = true},
    {"stream, a second use", 1, STREAM, .second_use = true},
    {"both summands", 1, SELF},
    {"an activation", 1, NORM, .activation = true},
    {"an operation between", 1, NORM, .between = true},
    {"a border between", 1, STREAM, .mark = true},
    {"an input, a second use", 1, NORM, .input_bias = true, .second_use = true},
    /* by nobody */
    {"no bias", 0, NORM, .no_bias = true},
    {"a frozen bias", 0, NORM, .frozen = 1u << BIAS},
    {"a frozen bias, only the sum", 0, STREAM_SUM, .frozen = 1u << BIAS},
};

static void test_who_takes_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++)
            for (int p = 0; p < 2; p++) check(&settings[i], dtype, p ? 0.3f : 0);
}

/* The gradient is added to what is there, and each backward pass takes its own. */
static void test_two_tapes(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_linear *linear = mc_linear_add(root, "linear", IN, OUT, NULL);
    mc_layernorm *norm = mc_layernorm_add(root, "norm", OUT, 0);
    mc_parameter *bias = mc_module_find_parameter(root, "linear.bias");
    assert_non_null(bias);
    float once[OUT], twice[OUT], h[ROWS * IN], x[MOST];
    for (int i = 0; i < ROWS * IN; i++) h[i] = cosf((float)i);
    for (int i = 0; i < MOST; i++) x[i] = sinf((float)i);
    for (int pass = 0; pass < 2; pass++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *f =
            mc_linear_forward(t, linear, mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, IN), h, false));
        mc_tensor *residual = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, OUT), x, false);
        mc_tensor *y = mc_layernorm_forward_residual(t, norm, residual, f, 0);
        mc_tape_backward(t, y, residual);
        assert_good(ctx);
        mc_parameter_read_gradient(bias, pass ? twice : once);
        mc_tape_end(t);
    }
    for (int i = 0; i < OUT; i++) assert_near(twice[i], 2 * once[i], 1e-5);
    float largest = 0;
    for (int i = 0; i < OUT; i++) largest = fmaxf(largest, fabsf(once[i]));
    assert_true(largest > 0.1f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_takes_it),
        cmocka_unit_test_setup_teardown(test_two_tapes, set_up_context, tear_down_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
