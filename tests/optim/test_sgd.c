/* SGD against the rule in double, and its errors. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/optim/optim_test.h"

/* torch.optim.SGD's rule, with the decay beside the gradient if `decoupled`. */
typedef struct rule {
    double lr, momentum, decay;
    bool nesterov, decoupled;
    double buffer, p;
    int t;
} rule;

static void rule_step(rule *r, double g)
{
    double old = r->p;
    if (!r->decoupled) g += r->decay * old;
    r->buffer = r->t++ ? r->momentum * r->buffer + g : g;
    double direction = r->nesterov ? g + r->momentum * r->buffer : r->momentum ? r->buffer : g;
    r->p = old - r->lr * direction - (r->decoupled ? r->lr * r->decay * old : 0);
}

static void check_rule(mc_context *ctx, mc_dtype dtype, mc_sgd_options options, double tolerance)
{
    enum { N = 70 };
    uint64_t seed = 11;
    float start[N], g[N], found[N];
    rule rules[N];
    mc_module *root = new_root(ctx, dtype);
    mc_parameter *p = mc_parameter_new(root, "w", MC_SHAPE(N), mc_init_zeros());
    mc_optimizer *sgd = mc_sgd_new(ctx, &options);
    mc_optimizer_add(sgd, root);
    for (int i = 0; i < N; i++) start[i] = ldexpf(roundf(ldexpf(noise(&seed), 6)), -5);
    mc_parameter_write(p, start);
    for (int i = 0; i < N; i++)
        rules[i] = (rule){.lr = options.lr ? options.lr : 1e-3f,
                          .momentum = options.momentum,
                          .decay = options.weight_decay,
                          .nesterov = options.nesterov,
                          .decoupled = options.decoupled,
                          .p = start[i]};
    for (int t = 0; t < 12; t++) {
        for (int i = 0; i < N; i++) rule_step(&rules[i], g[i] = noise(&seed));
        set_gradient(p, g);
        mc_optimizer_step(sgd);
    }
    mc_parameter_read(p, found);
    assert_good(ctx);
    for (int i = 0; i < N; i++)
        assert_near(found[i], rules[i].p, tolerance * (1 + fabs(rules[i].p)));
    /* state only where it is needed */
    assert_true((p->stored->bucket->state[MC_STATE_M] != NULL) == (options.momentum > 0));
    assert_null(p->stored->bucket->state[MC_STATE_V]);
    assert_true((p->stored->bucket->state[MC_STATE_MASTER] != NULL) == (dtype != MC_F32));
}

static void test_rule(void **state)
{
    mc_context *ctx = *state;
    mc_sgd_options all[] = {
        {.lr = 0},
        {.lr = 0.1f},
        {.lr = 0.1f, .momentum = 0.9f},
        {.lr = 0.1f, .momentum = 0.9f, .nesterov = true},
        {.lr = 0.1f, .momentum = 0.5f, .weight_decay = 0.2f},
        {.lr = 0.1f, .momentum = 0.5f, .weight_decay = 0.2f, .decoupled = true},
        {.lr = 0.1f, .momentum = 0.5f, .weight_decay = 0.2f, .nesterov = true},
        {.lr = 0.1f, .weight_decay = 0.2f},
        {.lr = 0.1f, .weight_decay = 0.2f, .decoupled = true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_rule(ctx, MC_F32, all[i], 1e-6);
        check_rule(ctx, MC_F16, all[i], 1.0 / 2048);
        check_rule(ctx, MC_BF16, all[i], 1.0 / 256);
    }
}

static void test_no_decay_bias_norm(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *w = mc_parameter_new(root, "w", MC_SHAPE(2, 2), mc_init_constant(1));
    mc_parameter *b = mc_parameter_new(root, "b", MC_SHAPE(2), mc_init_constant(1));
    mc_optimizer *sgd = mc_sgd_new(
        ctx, &(mc_sgd_options){.lr = 1, .weight_decay = 0.5f, .no_decay_bias_norm = true});
    mc_optimizer_add(sgd, root);
    mc_optimizer_step(sgd);
    assert_true(value_at(w, 3) == 0.5f);
    assert_true(value_at(b, 1) == 1);
    assert_good(ctx);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    assert_null(mc_sgd_new(ctx, &(mc_sgd_options){.momentum = 1}));
    assert_error(ctx, MC_ERR_ARGUMENT, "sgd", "momentum", "1");
    assert_null(mc_sgd_new(ctx, &(mc_sgd_options){.nesterov = true}));
    assert_error(ctx, MC_ERR_ARGUMENT, "nesterov");
    assert_null(mc_sgd_new(ctx, &(mc_sgd_options){.lr = -1}));
    assert_error(ctx, MC_ERR_ARGUMENT, "lr", "-1");
    mc_fail(ctx, MC_ERR_IO, "a disk went away");
    assert_null(mc_sgd_new(ctx, &(mc_sgd_options){.lr = -1}));
    assert_error(ctx, MC_ERR_IO, "a disk went away");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {
        TEST(test_rule),
        TEST(test_no_decay_bias_norm),
        TEST(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
