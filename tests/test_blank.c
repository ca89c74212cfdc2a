/* Gradients that stand for zeros: what lies in their memory is never seen, whoever comes first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/optim/optim_test.h"

enum { ROWS = 3, DIM = 4 };

typedef struct model {
    mc_module *root;
    mc_parameter *twice, *unused, *bias; /* (DIM, DIM), (DIM, DIM), (DIM) */
    mc_parameter *part[2];               /* (DIM, DIM) each, of one stored tensor */
} model;

static model new_model(mc_context *ctx)
{
    model m = {.root = mc_module_new(ctx, "", sizeof(mc_module), NULL)};
    mc_shape square = MC_SHAPE(DIM, DIM);
    m.twice = mc_parameter_new(m.root, "twice", square, mc_init_normal(0, 0.5f));
    m.unused = mc_parameter_new(m.root, "unused", square, mc_init_normal(0, 0.5f));
    m.bias = mc_parameter_new(m.root, "bias", MC_SHAPE(DIM), mc_init_zeros());
    mc_parameter_part parts[] = {{"a", DIM, mc_init_normal(0, 0.5f)},
                                 {"b", DIM, mc_init_normal(0, 0.5f)}};
    mc_parameter_new_stacked(m.root, parts, 2, MC_SHAPE(DIM), m.part);
    return m;
}

/* Fills what is blank with NaN; how many stored tensors that are. */
static int poison(const model *m)
{
    int count = 0;
    for (size_t i = 0; i < m->root->root->stored_count; i++) {
        const mc_blank *b = &m->root->root->stored[i]->span->blank;
        if (!b->link) continue;
        memset((char *)*b->base + b->offset, 0xff, b->bytes);
        count++;
    }
    return count;
}

/* One weight is used twice, of a stack only one part, and one weight not at all. */
static void backward(mc_context *ctx, const model *m)
{
    float values[ROWS * DIM], ones[ROWS * DIM];
    for (int i = 0; i < ROWS * DIM; i++) values[i] = (float)(i % 5) - 1.5f;
    for (int i = 0; i < ROWS * DIM; i++) ones[i] = 1;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, DIM), values, false);
    mc_tensor *twice = mc_parameter_tensor(t, m->twice), *bias = mc_parameter_tensor(t, m->bias);
    mc_tensor *b = mc_parameter_tensor(t, m->part[1]);
    x = mc_fused_linear(t, x, twice, bias, MC_ACTIVATION_TANH);
    x = mc_fused_linear(t, x, twice, bias, MC_ACTIVATION_TANH);
    x = mc_fused_linear(t, x, b, NULL, MC_ACTIVATION_NONE);
    mc_tape_backward(t, x, mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, DIM), ones, false));
    mc_tape_end(t);
}

typedef struct gradients {
    float of[5][DIM * DIM];
} gradients;

static gradients gradients_of(const model *m)
{
    gradients g = {0};
    mc_parameter *const p[] = {m->twice, m->unused, m->bias, m->part[0], m->part[1]};
    for (int i = 0; i < 5; i++) mc_parameter_read_gradient(p[i], g.of[i]);
    return g;
}

static void test_backward(void **state)
{
    mc_context *ctx = *state;
    model m = new_model(ctx);
    backward(ctx, &m); /* into memory that is zeros: what is expected */
    gradients expected = gradients_of(&m), zeros = {0};
    assert_true(expected.of[0][1] != 0 && expected.of[2][1] != 0 && expected.of[4][1] != 0);
    for (int i = 0; i < DIM * DIM; i++)
        assert_true(expected.of[1][i] == 0 && expected.of[3][i] == 0);
    mc_module_zero_grad(m.root);
    assert_int_equal(poison(&m), 3); /* the matrices: two, and a stack */
    backward(ctx, &m);
    gradients got = gradients_of(&m);
    assert_memory_equal(&got, &expected, sizeof got);
    assert_int_equal(poison(&m), 0); /* reading has filled what nobody wrote */
    mc_module_zero_grad(m.root);
    assert_int_equal(poison(&m), 3);
    got = gradients_of(&m);
    assert_memory_equal(&got, &zeros, sizeof got);
    assert_good(ctx);
}

/* A second backward pass adds to what the first one wrote. */
static void test_adding(void **state)
{
    mc_context *ctx = *state;
    model m = new_model(ctx);
    backward(ctx, &m);
    gradients once = gradients_of(&m);
    mc_module_zero_grad(m.root);
    poison(&m);
    backward(ctx, &m);
    backward(ctx, &m);
    gradients two = gradients_of(&m);
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < DIM * DIM; i++)
            assert_true(fabsf(two.of[k][i] - 2 * once.of[k][i]) <= 1e-5f);
    assert_good(ctx);
}

/* Optimizers and clipping read the gradients of what no backward pass reached. */
static void test_optimizer(void **state)
{
    mc_context *ctx = *state;
    float before[DIM * DIM], after[DIM * DIM];
    model m = new_model(ctx);
    mc_optimizer *sgd = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.1f});
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(sgd, m.root);
    mc_optim_manager_add(optim, sgd, NULL);
    mc_optim_manager_zero_grad(optim);
    backward(ctx, &m);
    mc_optim_manager_zero_grad(optim);
    assert_int_equal(poison(&m), 3);
    mc_parameter_read(m.twice, before);
    double norm = mc_optim_manager_clip_grad_norm(optim, 1);
    mc_optim_manager_step(optim);
    mc_parameter_read(m.twice, after);
    assert_true(norm == 0);
    assert_memory_equal(before, after, sizeof before);
    assert_good(ctx);
}

/* Freezing and thawing lays everything out anew. */
static void test_layout(void **state)
{
    mc_context *ctx = *state;
    model m = new_model(ctx);
    backward(ctx, &m);
    mc_module_zero_grad(m.root);
    poison(&m);
    mc_module_set_trainable(m.root, "unused", false);
    gradients got = gradients_of(&m), zeros = {0};
    assert_memory_equal(&got, &zeros, sizeof got);
    mc_module_zero_grad(m.root);
    poison(&m);
    mc_module_free(m.root); /* nothing of it is filled later */
    assert_int_equal(mc_blank_fill_all(ctx), MC_OK);
    assert_good(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_backward, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_adding, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_optimizer, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_layout, set_up_context, tear_down_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
