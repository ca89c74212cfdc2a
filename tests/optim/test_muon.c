/* Muon against its rule in double, which parameters it takes, and its errors. The losses of
 * torch.optim.Muon are compared by hand: tests/compare_muon.py. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/nn/block_list.h"
#include "core/nn/layers.h"
#include "core/nn/stored.h"
#include "tests/optim/optim_test.h"
#include "tests/optim/orthogonalize_test.h"

/* ---- the rule -------------------------------------------------------------------------------- */

typedef struct rule {
    int rows, columns;
    double lr, momentum, decay;
    mc_muon_options options;
    double *m, *p; /* (rows * columns) */
} rule;

static void rule_step(rule *r, const float *g)
{
    enum { ALL = MOST * MOST };
    static double u[ALL], o[ALL];
    int n = r->rows * r->columns;
    double larger = r->rows > r->columns ? r->rows : r->columns;
    double scale = r->options.scale == MC_MUON_MATCH_RMS
                       ? 0.2 * sqrt(larger)
                       : sqrt(fmax(1, (double)r->rows / r->columns));
    for (int i = 0; i < n; i++) {
        r->m[i] += (1 - r->momentum) * (g[i] - r->m[i]);
        u[i] = r->options.no_nesterov ? r->m[i] : g[i] + r->momentum * (r->m[i] - g[i]);
    }
    orthogonalize(r->rows, r->columns, u, o);
    for (int i = 0; i < n; i++) r->p[i] -= r->lr * r->decay * r->p[i] + r->lr * scale * o[i];
}

/* Four steps; `tolerance` is of the error's norm, relative to that of the parameters. */
static void check_rule(mc_context *ctx, int rows, int columns, mc_dtype dtype,
                       mc_muon_options options, double tolerance)
{
    enum { ALL = MOST * MOST };
    static float g[ALL], found[ALL];
    static double m[ALL], p[ALL];
    uint64_t seed = 3;
    int n = rows * columns;
    mc_module *root = new_root(ctx, dtype);
    mc_parameter *w = mc_parameter_new(root, "w", MC_SHAPE(rows, columns), mc_init_normal(0, 0.5f));
    mc_optimizer *muon = mc_muon_new(ctx, &options);
    mc_optimizer_add(muon, root);
    mc_parameter_read(w, found);
    rule r = {rows, columns, options.lr, 0.95f, options.weight_decay, options, m, p};
    if (r.decay == 0) r.decay = 0.1f;
    if (signbit(options.weight_decay)) r.decay = 0;
    if (options.momentum != 0) r.momentum = (double)options.momentum;
    for (int i = 0; i < n; i++) m[i] = 0, p[i] = (double)found[i];
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < n; i++)
            g[i] = noise(&seed) + 0.2f * (float)(i % columns == i / columns);
        set_gradient(w, g);
        mc_optimizer_step(muon);
        rule_step(&r, g);
    }
    mc_parameter_read(w, found);
    assert_good(ctx);
    double error = 0, size = 0;
    for (int i = 0; i < n; i++) {
        error += ((double)found[i] - p[i]) * ((double)found[i] - p[i]);
        size += p[i] * p[i];
    }
    if (!(sqrt(error / size) <= tolerance))
        fail_msg("(%d, %d): error %.2e of the norm, expected at most %.2e", rows, columns,
                 sqrt(error / size), tolerance);
    assert_null(w->stored->bucket->state[MC_STATE_V]);
    mc_optimizer_free(muon);
    mc_module_free(root);
}

static void test_rule(void **state)
{
    mc_context *ctx = *state;
    const mc_muon_options all[] = {
        {.lr = 0.05f, .f32 = true},
        {.lr = 0.05f, .f32 = true, .scale = MC_MUON_SHAPE, .no_nesterov = true},
        {.lr = 0.05f, .f32 = true, .momentum = 0.5f, .weight_decay = MC_TRUE_ZERO},
        {.lr = 0.02f, .f32 = true, .weight_decay = 0.5f},
    };
    const int shapes[][2] = {{16, 16}, {7, 40}, {40, 7}, {33, 24}, {1, 9}, {9, 1}};
    for (int s = 0; s < 6; s++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            check_rule(ctx, shapes[s][0], shapes[s][1], MC_F32, all[i], 2e-5);
    /* of a bf16 parameter the master moves, which rounds as the last step leaves it */
    check_rule(ctx, 33, 24, MC_BF16, all[0], 1.0 / 256);
    /* products in bf16 change an update by 6 %, and four updates are 8 % of the values */
    check_rule(ctx, 33, 24, MC_F32, (mc_muon_options){.lr = 0.05f}, 5e-3);
}

/* A gradient of zero moves nothing but by decay, and nothing becomes NaN. */
static void test_zero_gradient(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *w = mc_parameter_new(root, "w", MC_SHAPE(6, 4), mc_init_constant(1));
    mc_optimizer *muon = mc_muon_new(ctx, &(mc_muon_options){.lr = 0.5f, .weight_decay = 0.5f});
    mc_optimizer_add(muon, root);
    fill_gradient(w, 0);
    mc_optimizer_step(muon);
    for (int i = 0; i < 24; i++) assert_true(value_at(w, i) == 0.75f);
    assert_good(ctx);
}

/* A step that is skipped changes neither parameters nor state. */
static void test_skipped(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *w = mc_parameter_new(root, "w", MC_SHAPE(4, 4), mc_init_normal(0, 1));
    mc_optimizer *muon = mc_muon_new(ctx, &(mc_muon_options){.lr = 0.5f});
    mc_optimizer_add(muon, root);
    mc_optim_manager *optim =
        mc_optim_manager_new(ctx, &(mc_optim_manager_options){.nonfinite = MC_NONFINITE_SKIP});
    mc_optim_manager_add(optim, muon, NULL);
    float before[16], after[16];
    for (int step = 0; step < 2; step++) {
        mc_optim_manager_zero_grad(optim);
        mc_parameter_read(w, before);
        fill_gradient(w, step ? INFINITY : 1);
        if (!step) mc_optim_manager_step(optim);
    }
    float m = *mc_bucket_state_at(w->stored->bucket, MC_STATE_M, w->stored->span->offset);
    mc_optim_manager_step(optim);
    mc_parameter_read(w, after);
    assert_good(ctx);
    assert_int_equal(mc_optim_manager_skipped_steps(optim), 1);
    assert_memory_equal(before, after, sizeof before);
    assert_true(*mc_bucket_state_at(w->stored->bucket, MC_STATE_M, w->stored->span->offset) == m);
    assert_true(m != 0);
}

/* ---- which parameters ------------------------------------------------------------------------ */

typedef struct block {
    mc_module module;
    mc_parameter *parts[3];
    mc_layernorm *norm;
} block;

static void *new_block(mc_module *parent, const char *name, int index, void *config)
{
    block *b = mc_module_add(parent, name, sizeof *b);
    (void)index, (void)config;
    const mc_parameter_part parts[] = {{"q.weight", 8, mc_init_normal(0, 1)},
                                       {"k.weight", 4, mc_init_normal(0, 1)},
                                       {"v.weight", 4, mc_init_normal(0, 1)}};
    if (!b) return NULL;
    mc_parameter_new_stacked(&b->module, parts, 3, MC_SHAPE(8), b->parts);
    b->norm = mc_layernorm_add(&b->module, "norm", 8, 1e-5f);
    return b;
}

static mc_tensor *forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    (void)t, (void)object, (void)call;
    return x;
}

static mc_parameter *find(mc_module *root, const char *name)
{
    mc_parameter *p = mc_module_find_parameter(root, name);
    assert_non_null(p);
    return p;
}

static mc_module *new_model(mc_context *ctx)
{
    mc_module *root = new_root(ctx, MC_F32);
    mc_embedding_add(root, "words", 10, 8, 1);
    mc_block_list_new(root, "layers", 2, new_block, forward, NULL);
    mc_linear_add(root, "head", 8, 10, NULL);
    assert_good(ctx);
    return root;
}

/* Three matrices in one tensor are stepped one by one: each as though it were alone. */
static void test_stacked(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_model(ctx), *alone = new_root(ctx, MC_F32);
    mc_parameter *k = find(root, "layers.1.k.weight");
    mc_parameter *same = mc_parameter_new(alone, "w", MC_SHAPE(4, 8), mc_init_zeros());
    mc_muon_options options = {.lr = 0.1f, .f32 = true};
    mc_optimizer *both[] = {mc_muon_new(ctx, &options), mc_muon_new(ctx, &options)};
    mc_optimizer_add(both[0], root);
    mc_optimizer_add(both[1], alone);
    float values[64], g[64], other[32];
    uint64_t seed = 5;
    mc_parameter_read(k, values);
    mc_parameter_write(same, values);
    for (int i = 0; i < 64; i++) g[i] = noise(&seed);
    set_gradient(find(root, "layers.1.q.weight"), g);
    set_gradient(k, g + 7);
    set_gradient(same, g + 7);
    for (int i = 0; i < 2; i++) mc_optimizer_step(both[i]);
    mc_parameter_read(k, values);
    mc_parameter_read(same, other);
    assert_good(ctx);
    assert_memory_equal(values, other, sizeof other);
}

static void test_which(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_model(ctx);
    mc_optimizer *muon = mc_muon_new(ctx, &(mc_muon_options){.lr = 0.1f, .lr_other = 0.01f});
    mc_optimizer_add(muon, root);
    mc_optimizer_add_group(muon, root, "*.1.v.weight", &(mc_param_group){.muon = MC_MUON_ADAM});
    mc_optimizer_add_group(muon, root, "head.weight", &(mc_param_group){.muon = MC_MUON_MATRIX});
    const struct {
        const char *name;
        bool matrix;
    } all[] = {
        {"words.weight", false},      {"layers.0.q.weight", true},     {"layers.0.v.weight", true},
        {"layers.1.v.weight", false}, {"layers.0.norm.weight", false}, {"head.weight", true},
        {"head.bias", false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_true(find(root, all[i].name)->optimizer_matrix == all[i].matrix);
    /* 2 q (8, 8), 2 k and 1 v (4, 8), head (10, 8): 5 (4 n^2 larger + 2 n^3) each */
    assert_near(mc_muon_flops(muon),
                5.0 * (2 * 6 * 512 + 3 * (4 * 16 * 8 + 2 * 64) + (4 * 64 * 10 + 2 * 512)), 0);
    assert_true(mc_muon_flops(NULL) == 0);
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    assert_true(mc_muon_flops(adam) == 0);
    mc_fail(ctx, MC_ERR_STATE, "a failed context");
    assert_true(isnan(mc_muon_flops(muon)) && isnan(mc_muon_flops(adam)));
    assert_error(ctx, MC_ERR_STATE, "a failed context");
    /* Adam's first step moves by its own rate */
    fill_gradient(find(root, "head.bias"), 3);
    mc_optimizer_step(muon);
    assert_good(ctx);
    assert_near(value_at(find(root, "head.bias"), 0), -0.01, 1e-6);
    mc_optimizer_add_group(muon, root, "head.weight", &(mc_param_group){.muon = MC_MUON_ADAM});
    assert_error(ctx, MC_ERR_STATE, "head.weight", "as a matrix");
    mc_optimizer_add_group(muon, root, "head.bias", &(mc_param_group){.muon = MC_MUON_MATRIX});
    assert_error(ctx, MC_ERR_ARGUMENT, "head.bias", "(10)", "two dimensions");
    mc_optimizer_add_group(muon, root, "head.bias", &(mc_param_group){.muon = 7});
    assert_error(ctx, MC_ERR_ARGUMENT, "7", "mc_muon_rule");
}

/* Parameters that were stepped as matrices stay so when blocks are declared later, and the module
 * is added again. */
static void test_added_again(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *w = mc_parameter_new(root, "w", MC_SHAPE(6, 4), mc_init_constant(1));
    mc_parameter *late = mc_parameter_new(root, "late", MC_SHAPE(6, 4), mc_init_constant(1));
    mc_optimizer *muon = mc_muon_new(ctx, &(mc_muon_options){.lr = 0.1f});
    mc_optimizer_add_group(muon, root, "w", NULL);
    fill_gradient(w, 1);
    mc_optimizer_step(muon);
    mc_block_list_new(root, "layers", 1, new_block, forward, NULL);
    mc_optimizer_add(muon, root);
    fill_gradient(w, 1);
    mc_optimizer_step(muon);
    assert_good(ctx);
    assert_true(w->optimizer_matrix && find(root, "layers.0.q.weight")->optimizer_matrix);
    assert_false(late->optimizer_matrix); /* outside of blocks, and new */
}

/* A step that is still running counts: the rule cannot change after it. */
static void test_running_step(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *w = mc_parameter_new(root, "w", MC_SHAPE(6, 4), mc_init_constant(1));
    mc_optimizer *muon = mc_muon_new(ctx, &(mc_muon_options){.lr = 0.1f});
    mc_optimizer_add(muon, root);
    launch_step(ctx, muon, w);
    mc_optimizer_add_group(muon, root, "w", &(mc_param_group){.muon = MC_MUON_ADAM});
    assert_error(ctx, MC_ERR_STATE, "\"w\" has been stepped as a matrix already");
    assert_true(w->optimizer_matrix);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    const struct {
        mc_muon_options options;
        const char *words[2];
    } all[] = {{{.momentum = 1}, {"momentum", "1"}},
               {{.lr_other = -2}, {"lr_other", "-2"}},
               {{.lr = -1}, {"muon: lr is -1", "0 or more"}},
               {{.lr = NAN}, {"muon: lr is", "nan"}},
               {{.lr = INFINITY}, {"muon: lr is inf", "0 or more"}},
               {{.lr = -1, .lr_other = 1}, {"muon: lr is -1", "0 or more"}},
               {{.beta2 = 1}, {"muon", "beta2"}},
               {{.weight_decay = -1}, {"weight_decay", "-1"}},
               {{.scale = 5}, {"scale is 5", "mc_muon_scale"}},
               {{.lr = MC_TRUE_ZERO, .lr_other = 1}, {"lr_other 1", "above 0"}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_null(mc_muon_new(ctx, &all[i].options));
        assert_error(ctx, MC_ERR_ARGUMENT, all[i].words[0], all[i].words[1]);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {
        TEST(test_rule),  TEST(test_zero_gradient), TEST(test_skipped),      TEST(test_stacked),
        TEST(test_which), TEST(test_added_again),   TEST(test_running_step), TEST(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
