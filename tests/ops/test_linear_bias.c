/* The gradient of a linear's bias: it comes with the product that gives the input's gradient where
 * that is wanted, and by a pass over the output's gradient where not. With an activation, in front
 * of another linear: the other one's backward pass adds it up along with its product where it may,
 * with the same result as the first's own, and leaves it alone where it may not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "tests/ops/graph_test.h"

enum { ROWS = 37, IN = 6, MIDDLE = 20, OUT = 9, MOST = ROWS * MIDDLE };
enum { H, X, WEIGHT, BIAS, NEXT, NEXT_BIAS, THIRD, INPUTS };

static const int64_t sizes[INPUTS][2] = {{ROWS, IN},    {ROWS, OUT}, {MIDDLE, IN}, {MIDDLE, 0},
                                         {OUT, MIDDLE}, {OUT, 0},    {OUT, OUT}};

/* One way to make a = activation(h weight^T + bias), and to use it. */
typedef struct setting {
    const char *name;
    int own; /* gradients of biases by the linears themselves that are expected */
    bool second_use, between, mark, no_bias, input_bias, started, segment;
    bool next_bias;       /* the linear after has a bias too */
    bool next_activation; /* and an activation */
    bool third;           /* and a linear after it */
    unsigned frozen;      /* bits: inputs */
    bool apart;           /* a goes through a multiplication by 1 first: nothing is fused */
} setting;

typedef struct values {
    float gradient[INPUTS][MOST];
} values;

static struct {
    const mc_kernels *kernels;
    int own, taken, marks; /* gradients of biases: by the linear itself, by the one after */
    int passes;            /* of the own ones, those that are not made with a product */
} calls;

static mc_status count_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   float *out)
{
    calls.own++;
    calls.passes++;
    return calls.kernels->column_sums(d, rows, columns, x, out);
}

static mc_status count_backward_input(mc_device *d, const mc_linear_backward_call *c)
{
    if (c->sums) calls.taken++;
    if (c->dbias) calls.own++;
    return calls.kernels->linear_backward_input(d, c);
}

/* What the gradient of a leaf holds before. */
static float start_of(const setting *s, int i) { return s->started ? (float)(i % 5) - 1.75f : 0; }

typedef struct graph {
    const setting *s;
    mc_activation activation;
    mc_tensor *leaf; /* the bias as a parameter; NULL: it is an input */
    const float *leaf_gradient;
} graph;

/* As where a block ends: only from here on gradients of what lies before it have a place. */
static void mark_backward(mc_tape *t, mc_node *node)
{
    const graph *g = *(const graph **)node->state;
    (void)t;
    calls.marks++;
    for (int i = 0; i < MIDDLE; i++) assert_true(g->leaf_gradient[i] == start_of(g->s, i));
}

static const mc_op mark_op = {.name = "mark", .backward = mark_backward, .always = true};

static void mark(mc_tape *t, const graph *g)
{
    mc_node *node = mc_tape_mark(t, &mark_op, sizeof g);
    assert_non_null(node);
    *(const graph **)node->state = g;
}

/* `in` are the inputs from X on. */
static mc_tensor *build(mc_tape *t, void *user, mc_tensor *h, mc_tensor *const *in)
{
    const graph *g = user;
    const setting *s = g->s;
    const mc_activation none = MC_ACTIVATION_NONE;
    mc_tensor *bias = g->leaf ? g->leaf : in[BIAS - 1], *other = NULL;
    mc_tensor *a = mc_fused_linear(t, h, in[WEIGHT - 1], s->no_bias ? NULL : bias, g->activation);
    if (s->apart) a = mc_scale(t, a, 1);
    if (s->between) other = mc_scale(t, in[X - 1], 2);
    if (s->mark) mark(t, g);
    mc_tensor *y = mc_fused_linear(t, a, in[NEXT - 1], s->next_bias ? in[NEXT_BIAS - 1] : NULL,
                                   s->next_activation ? g->activation : none);
    if (s->third) y = mc_fused_linear(t, y, in[THIRD - 1], NULL, none);
    if (s->second_use)
        y = mc_add(t, y, mc_scale(t, mc_fused_linear(t, a, in[NEXT - 1], NULL, none), 2));
    return other ? mc_add(t, y, other) : y;
}

static void backward_counted(mc_context *ctx, mc_tape *t, mc_tensor *y, int64_t columns)
{
    mc_kernels counting = *ctx->device->kernels;
    calls.kernels = ctx->device->kernels;
    calls.own = calls.taken = calls.marks = calls.passes = 0;
    counting.column_sums = count_column_sums;
    counting.linear_backward_input = count_backward_input;
    backward_through(ctx, &counting, t, y, ROWS, columns);
}

/* Runs the graph forward and backward. */
static void run(const setting *s, mc_dtype dtype, mc_activation activation, values *v)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *in[INPUTS], *cast[INPUTS];
    make_inputs(t, dtype, s->frozen, INPUTS, sizes, in, cast);
    memset(v, 0, sizeof *v);
    for (int i = 0; i < MIDDLE; i++) v->gradient[BIAS][i] = start_of(s, i);
    graph g = {.s = s, .activation = activation, .leaf_gradient = v->gradient[BIAS]};
    if (!s->input_bias)
        g.leaf = mc_tape_leaf(t, dtype, MC_SHAPE(MIDDLE), mc_tensor_data(cast[BIAS]),
                              s->frozen >> BIAS & 1 ? NULL : v->gradient[BIAS]);
    backward_counted(ctx, t,
                     s->segment ? mc_tape_checkpoint(t, build, &g, cast[H], cast + 1, INPUTS - 1)
                                : build(t, &g, cast[H], cast + 1),
                     OUT);
    read_gradients(ctx, in, INPUTS, s->input_bias ? -1 : BIAS, *v->gradient, MOST);
    assert_int_equal(calls.marks, s->mark);
    mc_tape_end(t);
    mc_context_free(ctx);
}

/* Nothing of the first linear is fused; each linear makes its bias's gradient itself but the second
 * in front of a third. */
static void run_apart(const setting *s, mc_dtype dtype, mc_activation activation, values *v)
{
    bool wanted = !s->no_bias && !(s->frozen >> BIAS & 1);
    bool next_taken = s->third && activation != MC_ACTIVATION_NONE;
    setting apart = *s;
    apart.apart = true;
    run(&apart, dtype, activation, v);
    assert_int_equal(calls.own, wanted + (s->next_bias && !next_taken));
    assert_int_equal(calls.taken, s->next_bias && next_taken);
    float most = 0;
    for (int i = 0; i < MIDDLE; i++)
        most = fmaxf(most, fabsf(v->gradient[BIAS][i] - start_of(s, i)));
    assert_true(wanted ? most > 0.1f : most == 0);
}

/* The same kernels see the same numbers in either graph, so that not a bit may differ. */
static void check(const setting *s, mc_dtype dtype, mc_activation activation)
{
    static values found, expected;
    bool wanted = !s->no_bias && !(s->frozen >> BIAS & 1), none = activation == MC_ACTIVATION_NONE;
    int own = none ? wanted + s->next_bias : s->own, taken = wanted + s->next_bias - own;
    run(s, dtype, activation, &found);
    if (calls.own != own || calls.taken != taken)
        fail_msg("%s, activation %d: %d own and %d taken, expected %d and %d", s->name,
                 (int)activation, calls.own, calls.taken, own, taken);
    run_apart(s, dtype, activation, &expected);
    for (int i = 0; i < INPUTS; i++)
        for (int k = 0; k < MOST; k++)
            if (found.gradient[i][k] != expected.gradient[i][k])
                fail_msg("%s, activation %d, %s: gradient %d of input %d is %.9g, expected %.9g",
                         s->name, (int)activation, mc_dtype_name(dtype), k, i,
                         (double)found.gradient[i][k], (double)expected.gradient[i][k]);
}

static const setting settings[] = {
    /* taken by the linear after */
    {"two linears", 0},
    {"a bias that is an input", 0, .input_bias = true},
    {"a gradient that is there", 0, .started = true},
    {"a frozen weight", 0, .frozen = 1u << WEIGHT},
    {"a bias alone", 0, .frozen = 1u << WEIGHT | 1u << H},
    {"a frozen weight after", 0, .frozen = 1u << NEXT},
    {"a checkpointed segment", 0, .segment = true},
    {"a checkpointed segment, a gradient that is there", 0, .segment = true, .started = true},
    {"a second bias", 1, .next_bias = true},
    {"a second bias and activation", 1, .next_bias = true, .next_activation = true},
    {"three linears", 0, .next_bias = true, .next_activation = true, .third = true},
    /* by the linear itself */
    {"a second use", 1, .second_use = true},
    {"an input, a second use", 1, .input_bias = true, .second_use = true},
    {"a second use, a gradient that is there", 1, .second_use = true, .started = true},
    {"an operation between", 1, .between = true},
    {"a border between", 1, .mark = true},
    {"a border between, a gradient that is there", 1, .mark = true, .started = true},
    /* by nobody */
    {"no bias", 0, .no_bias = true},
    {"a frozen bias", 0, .frozen = 1u << BIAS},
    {"a frozen bias that is an input", 0, .input_bias = true, .frozen = 1u << BIAS},
    {"a frozen bias, a second use", 0, .second_use = true, .frozen = 1u << BIAS},
    {"a frozen bias, a second one", 1, .next_bias = true, .frozen = 1u << BIAS},
    {"a first linear all frozen", 0, .frozen = 1u << H | 1u << WEIGHT | 1u << BIAS},
};

static void test_who_takes_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++)
            for (mc_activation a = MC_ACTIVATION_NONE; a <= MC_ACTIVATION_SILU; a++)
                check(&settings[i], dtype, a);
}

/* y = h weight^T + bias alone. */
typedef struct alone {
    const char *name;
    int own, passes;
    float on_bias, on_h; /* their gradients, as multiples of those with one use */
    bool twice, again, no_bias, input_bias, started;
    unsigned frozen;
} alone;

static mc_tensor *build_alone(mc_tape *t, const alone *a, mc_tensor *const *in, mc_tensor *bias)
{
    const mc_activation none = MC_ACTIVATION_NONE;
    mc_tensor *y = mc_fused_linear(t, in[H], in[WEIGHT], bias, none);
    if (a->twice) return mc_add(t, y, mc_scale(t, y, 2));
    return a->again ? mc_add(t, y, mc_fused_linear(t, in[H], in[WEIGHT], NULL, none)) : y;
}

static double gradient_of_y(int row, int column)
{
    return cosf((float)(row * MIDDLE + column)) + 0.5f;
}

static void check_gradient(const alone *a, mc_dtype dtype, int input, int i, double found,
                           double expected, double size)
{
    const double unit = dtype == MC_F32 ? 1e-6 : dtype == MC_F16 ? 0x1p-10 : 0x1p-7;
    if (!(fabs(found - expected) <= unit * size))
        fail_msg("%s, %s: gradient %d of input %d is %.9g, expected %.9g", a->name,
                 mc_dtype_name(dtype), i, input, found, expected);
}

/* What is found against sums in double. */
static void check_values(const alone *a, mc_dtype dtype, const values *v)
{
    for (int column = 0; column < MIDDLE; column++) {
        double start = a->started ? column % 5 - 1.75 : 0, sum = 0, size = fabs(start);
        for (int row = 0; row < ROWS; row++) {
            sum += a->on_bias * gradient_of_y(row, column);
            size += a->on_bias * fabs(gradient_of_y(row, column));
        }
        check_gradient(a, dtype, BIAS, column, v->gradient[BIAS][column], start + sum, size);
    }
    for (int i = 0; i < ROWS * IN; i++) {
        double sum = 0, size = 0;
        for (int k = 0; k < MIDDLE; k++) {
            double weight = sinf((float)(WEIGHT * 100 + (k * IN + i % IN) * 7));
            sum += a->on_h * gradient_of_y(i / IN, k) * weight;
            size += a->on_h * fabs(gradient_of_y(i / IN, k) * weight);
        }
        check_gradient(a, dtype, H, i, v->gradient[H][i], sum, size);
    }
}

static void run_alone(const alone *a, mc_dtype dtype)
{
    static values v;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *in[INPUTS], *cast[INPUTS], *bias = NULL;
    make_inputs(t, dtype, a->frozen, INPUTS, sizes, in, cast);
    memset(&v, 0, sizeof v);
    for (int i = 0; i < MIDDLE && a->started; i++) v.gradient[BIAS][i] = (float)(i % 5) - 1.75f;
    if (a->input_bias)
        bias = cast[BIAS];
    else if (!a->no_bias)
        bias = mc_tape_leaf(t, dtype, MC_SHAPE(MIDDLE), mc_tensor_data(cast[BIAS]),
                            a->frozen >> BIAS & 1 ? NULL : v.gradient[BIAS]);
    backward_counted(ctx, t, build_alone(t, a, cast, bias), MIDDLE);
    read_gradients(ctx, in, INPUTS, a->input_bias ? -1 : BIAS, *v.gradient, MOST);
    if (calls.own != a->own || calls.passes != a->passes)
        fail_msg("%s: %d gradients, %d by passes, expected %d and %d", a->name, calls.own,
                 calls.passes, a->own, a->passes);
    check_values(a, dtype, &v);
    mc_tape_end(t);
    mc_context_free(ctx);
}

static const alone alones[] = {
    {"an input's gradient", 1, 0, 1, 1},
    {"a bias that is an input", 1, 0, 1, 1, .input_bias = true},
    {"a gradient that is there", 1, 0, 1, 1, .started = true},
    {"a frozen weight", 1, 0, 1, 1, .frozen = 1u << WEIGHT},
    {"an output that is used twice", 1, 0, 3, 3, .twice = true},
    {"an input that is used twice", 1, 0, 1, 2, .again = true},
    {"an input that is used twice, a gradient that is there", 1, 0, 1, 2, .again = true,
     .started = true},
    {"an input without a gradient", 1, 1, 1, 0, .frozen = 1u << H},
    {"an input without a gradient, a gradient that is there", 1, 1, 1, 0, .started = true,
     .frozen = 1u << H},
    {"a bias alone", 1, 1, 1, 0, .frozen = 1u << H | 1u << WEIGHT},
    {"a bias alone, an output that is used twice", 1, 1, 3, 0, .twice = true, .input_bias = true,
     .frozen = 1u << H | 1u << WEIGHT},
    {"no bias", 0, 0, 0, 1, .no_bias = true},
    {"no bias, an output that is used twice", 0, 0, 0, 3, .no_bias = true, .twice = true},
    {"a frozen bias", 0, 0, 0, 1, .frozen = 1u << BIAS},
};

static void test_own_bias(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof alones / sizeof *alones; i++)
        for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) run_alone(&alones[i], dtype);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_takes_it),
        cmocka_unit_test(test_own_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
