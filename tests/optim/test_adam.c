/* Adam: BMTrain's weights, the rule in double, groups, freezing, ownership, and optimizers of one's
 * own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/formats/safetensors.h"
#include "core/formats/tensor_file.h"
#include "tests/optim/optim_test.h"
#include "core/nn/stored.h"

/* ---- BMTrain's weights ------------------------------------------------------------------- */

static void read_golden(mc_context *ctx, mc_tensor_file *file, const char *row, const char *key,
                        int index, float *out, int64_t count)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s%d", row, key, index);
    const mc_tensor_entry *entry = mc_tensor_file_find(file, name);
    if (!entry) fail_msg("no %s in the golden file", name);
    assert_int_equal(entry->count, count);
    mc_tensor_file_read_f32(file, entry, 0, count, out);
    assert_good(ctx);
}

/* The distance of neighbours of that dtype at x. */
static double ulp(double x, mc_dtype dtype)
{
    int bits = dtype == MC_F16 ? 10 : dtype == MC_BF16 ? 7 : 23;
    int lowest = dtype == MC_F16 ? -14 : -126;
    int exponent = x == 0 ? lowest : ilogb(x);
    return ldexp(1, (exponent < lowest ? lowest : exponent) - bits);
}

enum { N = 257 };

/* Runs five steps on the row's gradients; returns the worst error as a part of what is allowed:
 * 1e-6 in f32, else one ulp a step. BMTrain's f16 kernel keeps m in f16, so that the two drift
 * apart a little each step; where a weight passes through zero the ulp is that of the place it came
 * from. */
static double run_golden(mc_context *ctx, mc_tensor_file *file, const char *row, mc_dtype dtype)
{
    float values[N], before[N], wanted[N];
    double allowed[N] = {0}, worst = 0;
    mc_module *root = new_root(ctx, dtype);
    mc_parameter *p = mc_parameter_new(root, "w", MC_SHAPE(N), mc_init_zeros());
    mc_optimizer *adam = mc_adam_offload_new(
        ctx, &(mc_adam_options){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.98f, .eps = 1e-6f});
    mc_optimizer_add(adam, root);
    read_golden(ctx, file, row, "w", 0, wanted, N);
    mc_parameter_write(p, wanted);
    for (int t = 0; t < 5; t++) {
        memcpy(before, wanted, sizeof before);
        read_golden(ctx, file, row, "g", t, values, N);
        set_gradient(p, values);
        assert_int_equal(mc_optimizer_step(adam), MC_OK);
        assert_int_equal(mc_parameter_read(p, values), MC_OK);
        read_golden(ctx, file, row, "w", t + 1, wanted, N);
        for (int i = 0; i < N; i++) {
            allowed[i] += ulp(fmaxf(fabsf(before[i]), fabsf(wanted[i])), dtype);
            double limit = dtype == MC_F32 ? 1e-6 : allowed[i];
            double error = fabs((double)values[i] - (double)wanted[i]) / limit;
            if (!(error <= worst)) worst = error;
        }
    }
    assert_good(ctx);
    return worst;
}

static void test_golden(void **state)
{
    mc_context *ctx = *state;
    const char *shared = shared_folder();
    if (!shared) skip();
    char path[1024];
    snprintf(path, sizeof path, "%s/goldens/bmtrain-adam.safetensors", shared);
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    assert_good(ctx);
    /* bf16.cpu truncates: its gradients and first weights are bf16.gpu's, which rounds */
    const struct {
        const char *row;
        mc_dtype dtype;
    } rows[] = {
        {"f32.cpu", MC_F32}, {"f16.cpu", MC_F16}, {"f16.gpu", MC_F16}, {"bf16.gpu", MC_BF16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double worst = run_golden(ctx, file, rows[i].row, rows[i].dtype);
        printf("%-8s worst error, of what is allowed: %.3f\n", rows[i].row, worst);
        assert_true(worst <= 1);
    }
    float a[N], b[N];
    for (int t = 0; t < 5; t++) {
        read_golden(ctx, file, "bf16.cpu", "g", t, a, N);
        read_golden(ctx, file, "bf16.gpu", "g", t, b, N);
        assert_memory_equal(a, b, sizeof a);
    }
}

/* ---- the rule, in double ----------------------------------------------------------------- */

typedef struct rule {
    double lr, beta1, beta2, eps, decay;
    bool l2;
    double m, v, p;
    int t;
} rule;

static void rule_step(rule *r, double g)
{
    r->t++;
    double old = r->p;
    if (r->l2) g += r->decay * old;
    r->m = r->beta1 * r->m + (1 - r->beta1) * g;
    r->v = r->beta2 * r->v + (1 - r->beta2) * g * g;
    double m = r->m / (1 - pow(r->beta1, r->t)), v = r->v / (1 - pow(r->beta2, r->t));
    r->p = old - r->lr * m / (sqrt(v) + r->eps) - (r->l2 ? 0 : r->lr * r->decay * old);
}

/* Steps a parameter and the rule side by side on random gradients. */
static void check_rule(mc_context *ctx, mc_dtype dtype, const mc_adam_options *options, rule r,
                       double tolerance)
{
    enum { COUNT = 50 };
    uint64_t seed = 3;
    float start[COUNT], g[COUNT], found[COUNT];
    rule rules[COUNT];
    mc_module *root = new_root(ctx, dtype);
    mc_parameter *p = mc_parameter_new(root, "w", MC_SHAPE(5, 10), mc_init_zeros());
    mc_optimizer *adam = mc_adam_new(ctx, options);
    mc_optimizer_add(adam, root);
    for (int i = 0; i < COUNT; i++) start[i] = ldexpf(roundf(ldexpf(noise(&seed), 6)), -5);
    mc_parameter_write(p, start);
    for (int i = 0; i < COUNT; i++) {
        rules[i] = r;
        rules[i].p = start[i];
    }
    for (int t = 0; t < 12; t++) {
        for (int i = 0; i < COUNT; i++) rule_step(&rules[i], g[i] = noise(&seed) + 0.3f);
        set_gradient(p, g);
        mc_optimizer_step(adam);
    }
    mc_parameter_read(p, found);
    assert_good(ctx);
    for (int i = 0; i < COUNT; i++)
        assert_near(found[i], rules[i].p, tolerance * (1 + fabs(rules[i].p)));
}

static void test_rule(void **state)
{
    mc_context *ctx = *state;
    rule r = {.lr = 1e-3f, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    check_rule(ctx, MC_F32, NULL, r, 1e-6);
    r.decay = 0.1f;
    r.lr = 0.05f;
    mc_adam_options options = {.lr = 0.05f, .weight_decay = 0.1f};
    check_rule(ctx, MC_F32, &options, r, 2e-6);
    check_rule(ctx, MC_F16, &options, r, 1.0 / 2048);
    check_rule(ctx, MC_BF16, &options, r, 1.0 / 256);
    options.l2 = r.l2 = true;
    check_rule(ctx, MC_F32, &options, r, 2e-6);
    check_rule(ctx, MC_F16, &options, r, 1.0 / 2048);
    check_rule(ctx, MC_BF16, &options, r, 1.0 / 256);
}

/* Zero is the default, MC_TRUE_ZERO is zero. */
static void test_true_zero(void **state)
{
    mc_context *ctx = *state;
    rule r = {.lr = 0.01f, .beta1 = 0, .beta2 = 0, .eps = 0};
    mc_adam_options options = {
        .lr = 0.01f, .beta1 = MC_TRUE_ZERO, .beta2 = MC_TRUE_ZERO, .eps = MC_TRUE_ZERO};
    check_rule(ctx, MC_F32, &options, r, 1e-6);
    r = (rule){.lr = 0, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    options = (mc_adam_options){.lr = MC_TRUE_ZERO};
    check_rule(ctx, MC_F32, &options, r, 0);
}

/* ---- groups ------------------------------------------------------------------------------ */

typedef struct layers {
    mc_module *root;
    mc_parameter *q, *k, *v, *qb, *kb, *vb, *norm, *out;
} layers;

static layers new_layers(mc_context *ctx, mc_dtype dtype)
{
    mc_initializer one = mc_init_constant(1);
    layers l = {.root = new_root(ctx, dtype)};
    mc_parameter *w[3], *b[3];
    mc_parameter_new_stacked(
        l.root,
        (mc_parameter_part[]){{"q.weight", 5, one}, {"k.weight", 3, one}, {"v.weight", 3, one}}, 3,
        MC_SHAPE(7), w);
    mc_parameter_new_stacked(
        l.root, (mc_parameter_part[]){{"q.bias", 5, one}, {"k.bias", 3, one}, {"v.bias", 3, one}},
        3, (mc_shape){0}, b);
    l.norm = mc_parameter_new(l.root, "norm.weight", MC_SHAPE(7), one);
    l.out = mc_parameter_new(l.root, "out.weight", MC_SHAPE(9, 7), one);
    l.q = w[0], l.k = w[1], l.v = w[2];
    l.qb = b[0], l.kb = b[1], l.vb = b[2];
    return l;
}

/* Every element of p is `value`. */
static void assert_all(mc_parameter *p, double value)
{
    for (int64_t i = 0; i < mc_shape_count(p->shape); i++) assert_near(value_at(p, i), value, 1e-6);
}

/* With a gradient of zero a step is p -= lr decay p, which shows each decay and rate. */
static void test_groups(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F32);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.1f, .weight_decay = 0.5f});
    mc_optimizer_add_group(adam, l.root, "k.*", &(mc_param_group){.weight_decay = 2});
    mc_optimizer_add(adam, l.root);
    mc_optimizer_add_group(adam, l.root, "*.bias", &(mc_param_group){.weight_decay = MC_TRUE_ZERO});
    mc_optimizer_add_group(adam, l.root, "out.*", &(mc_param_group){.lr_factor = 3});
    mc_optimizer_add_group(adam, l.root, "norm.*", &(mc_param_group){.lr_factor = MC_TRUE_ZERO});
    assert_int_equal(mc_optimizer_step(adam), MC_OK);
    assert_all(l.q, 0.95);
    assert_all(l.k, 0.8);
    assert_all(l.v, 0.95);
    assert_all(l.qb, 1);
    assert_all(l.kb, 1);
    assert_all(l.norm, 1);
    assert_all(l.out, 0.85);
    assert_good(ctx);
}

static void test_no_decay_bias_norm(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_BF16);
    mc_optimizer *adam = mc_adam_new(
        ctx, &(mc_adam_options){.lr = 0.5f, .weight_decay = 0.5f, .no_decay_bias_norm = true});
    mc_optimizer_add(adam, l.root);
    mc_optimizer_add_group(adam, l.root, "k.bias", &(mc_param_group){.weight_decay = 1});
    mc_optimizer_step(adam);
    assert_all(l.q, 0.75);
    assert_all(l.out, 0.75);
    assert_all(l.qb, 1);
    assert_all(l.kb, 0.5);
    assert_all(l.vb, 1);
    assert_all(l.norm, 1);
    assert_good(ctx);
}

/* Parts of one stored tensor in different optimizers. */
static void test_split_stored(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F32);
    mc_optimizer *a = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.1f, .weight_decay = 1});
    mc_optimizer *b = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.5f});
    mc_optimizer_add_group(a, l.root, "q.weight", NULL);
    mc_optimizer_add_group(b, l.root, "v.weight", NULL);
    fill_gradient(l.v, 1);
    mc_optimizer_step(a);
    mc_optimizer_step(b);
    assert_all(l.q, 0.9);
    assert_all(l.k, 1);
    assert_all(l.v, 0.5);
    assert_all(l.out, 1);
    assert_good(ctx);
}

static void test_add_errors(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F32);
    mc_optimizer *a = mc_adam_new(ctx, NULL), *b = mc_sgd_new(ctx, NULL);
    mc_optimizer_add_group(a, l.root, "k.bias", NULL);
    assert_int_equal(mc_optimizer_add(b, l.root), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "\"k.bias\"", "adam", "sgd");
    assert_null(l.q->optimizer); /* nothing was added */
    assert_int_equal(mc_optimizer_add_group(a, l.root, "*.wieght", NULL), MC_ERR_NOT_FOUND);
    assert_error(ctx, MC_ERR_NOT_FOUND, "\"*.wieght\"", "adam");
    mc_optimizer_add(a, NULL);
    assert_error(ctx, MC_ERR_ARGUMENT, "adam", "NULL");
    assert_int_equal(mc_optimizer_add(NULL, l.root), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "optimizer is NULL");
    mc_optimizer_add_group(a, l.root, NULL, &(mc_param_group){.weight_decay = -1});
    assert_error(ctx, MC_ERR_ARGUMENT, "weight_decay", "-1");
    mc_optimizer_add_group(a, l.root, NULL, &(mc_param_group){.lr_factor = NAN});
    assert_error(ctx, MC_ERR_ARGUMENT, "lr_factor", "nan");
    mc_context *other = mc_init_distributed(NULL);
    assert_int_equal(mc_optimizer_add(mc_adam_new(other, NULL), l.root), MC_ERR_ARGUMENT);
    assert_error(other, MC_ERR_ARGUMENT, "another context");
    mc_context_free(other);
    assert_good(ctx);
}

static void test_option_errors(void **state)
{
    mc_context *ctx = *state;
    assert_null(mc_adam_new(ctx, &(mc_adam_options){.beta1 = 1}));
    assert_error(ctx, MC_ERR_ARGUMENT, "adam", "beta1", "1");
    assert_null(mc_adam_new(ctx, &(mc_adam_options){.beta2 = -0.5f}));
    assert_error(ctx, MC_ERR_ARGUMENT, "beta2", "-0.5");
    assert_null(mc_adam_new(ctx, &(mc_adam_options){.eps = NAN}));
    assert_error(ctx, MC_ERR_ARGUMENT, "eps", "nan");
    assert_null(mc_adam_new(ctx, &(mc_adam_options){.lr = INFINITY}));
    assert_error(ctx, MC_ERR_ARGUMENT, "lr", "inf");
    assert_null(mc_adam_offload_new(ctx, &(mc_adam_options){.weight_decay = -1}));
    assert_error(ctx, MC_ERR_ARGUMENT, "weight_decay", "-1");
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    assert_near(mc_optimizer_lr(adam), 1e-3f, 0);
    assert_int_equal(mc_optimizer_set_lr(adam, -2), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "-2");
    assert_near(mc_optimizer_lr(adam), 1e-3f, 0);
}

/* ---- freezing and layout ----------------------------------------------------------------- */

/* Frozen parameters have no gradient memory and do not change; thawed again they go on with their
 * state and their own step count, to the bit as if they had been alone. */
static void test_freeze(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F16), twin = new_layers(ctx, MC_F16);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.01f, .weight_decay = 0.1f});
    mc_optimizer *alone = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.01f, .weight_decay = 0.1f});
    mc_optimizer_add(adam, l.root);
    mc_optimizer_add(alone, twin.root);
    for (int t = 0; t < 9; t++) {
        if (t == 3) mc_module_set_trainable(l.root, "[qkv].weight", false);
        if (t == 6) mc_module_set_trainable(l.root, NULL, true);
        bool frozen = t >= 3 && t < 6;
        mc_optimizer_zero_grad(adam);
        mc_optimizer_zero_grad(alone);
        float before = value_at(l.k, 4);
        fill_gradient(l.out, 0.1f * (float)t);
        if (!frozen) fill_gradient(l.k, (float)t - 2.5f);
        if (!frozen) fill_gradient(twin.k, (float)t - 2.5f);
        assert_int_equal(mc_optimizer_step(adam), MC_OK);
        if (!frozen) assert_int_equal(mc_optimizer_step(alone), MC_OK);
        if (frozen) assert_true(value_at(l.k, 4) == before);
        if (frozen) assert_null(l.k->stored->bucket->gradient.data);
        assert_true(value_at(l.k, 4) == value_at(twin.k, 4));
    }
    assert_int_equal(l.k->optimizer_steps, 6);
    assert_int_equal(l.out->optimizer_steps, 9);
    assert_true(value_at(l.k, 4) != 1);
    assert_good(ctx);
}

/* A parameter thawed late is corrected for its own first step: it moves by lr, no more. */
static void test_late_thaw(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F32);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.01f});
    mc_optimizer_add(adam, l.root);
    mc_module_set_trainable(l.root, "norm.*", false);
    for (int t = 0; t < 50; t++) mc_optimizer_step(adam);
    assert_all(l.norm, 1);
    mc_module_set_trainable(l.root, "norm.*", true);
    fill_gradient(l.norm, 1e-3f);
    mc_optimizer_step(adam);
    assert_all(l.norm, 1 - 0.01);
    assert_int_equal(mc_optimizer_step_count(adam), 51);
    assert_good(ctx);
}

/* Parameters declared after the first step: a second add takes them in, the others go on. */
static void test_added_later(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_BF16), twin = new_layers(ctx, MC_BF16);
    mc_optimizer *adam = mc_adam_new(ctx, NULL), *plain = mc_adam_new(ctx, NULL);
    mc_optimizer_add(adam, l.root);
    mc_optimizer_add(plain, twin.root);
    mc_parameter *late = NULL;
    for (int t = 0; t < 6; t++) {
        if (t == 2) late = mc_parameter_new(l.root, "late", MC_SHAPE(3), mc_init_constant(2));
        if (t == 4) mc_optimizer_add(adam, l.root);
        fill_gradient(l.q, 1 - 0.3f * (float)t);
        fill_gradient(twin.q, 1 - 0.3f * (float)t);
        mc_optimizer_step(adam);
        mc_optimizer_step(plain);
        if (late && t < 4) assert_true(value_at(late, 0) == 2);
    }
    assert_int_equal(late->optimizer_steps, 2);
    for (int i = 0; i < 35; i++) assert_true(value_at(l.q, i) == value_at(twin.q, i));
    assert_good(ctx);
}

/* Padding between stored tensors stays zero in every array. */
static void test_padding_stays_zero(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F16);
    mc_optimizer *adam =
        mc_adam_new(ctx, &(mc_adam_options){.eps = MC_TRUE_ZERO, .weight_decay = 1});
    mc_optimizer_add(adam, l.root);
    mc_module_need_gradients(l.root->root, 0);
    for (size_t i = 0; i < l.root->root->parameter_count; i++)
        fill_gradient(l.root->root->parameters[i], 1);
    mc_optimizer_step(adam);
    mc_optimizer_step(adam);
    mc_bucket *bucket = l.q->stored->bucket;
    int64_t padding = 0, end = 0;
    for (int i = 0; i <= bucket->span_count; i++) {
        int64_t next = i < bucket->span_count ? bucket->spans[i].offset : bucket->count;
        for (; end < next; end++, padding++) {
            assert_int_equal(((uint16_t *)bucket->values.data)[end], 0);
            for (int k = 0; k < MC_STATE_SLOTS; k++) assert_true(bucket->state[k][end] == 0);
        }
        if (i < bucket->span_count) end = next + bucket->spans[i].count;
    }
    assert_true(padding > 0);
    assert_good(ctx);
}

/* Writing weights after the state was made is not undone by the master copy. */
static void test_master_follows_write(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F16);
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    mc_optimizer_add(adam, l.root);
    mc_optimizer_step(adam);
    float values[7] = {5, 5, 5, 5, 5, 5, 5};
    mc_parameter_write(l.norm, values);
    mc_optimizer_step(adam);
    assert_all(l.norm, 5);
}

/* ---- ownership --------------------------------------------------------------------------- */

static void test_module_freed_first(void **state)
{
    mc_context *ctx = *state;
    layers gone = new_layers(ctx, MC_F32), stays = new_layers(ctx, MC_F32);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.1f});
    mc_optimizer_add(adam, gone.root);
    mc_optimizer_add(adam, stays.root);
    mc_optimizer_step(adam);
    mc_module_free(gone.root);
    layers again = new_layers(ctx, MC_F32); /* quite likely at the same address */
    fill_gradient(stays.q, 1);
    fill_gradient(again.q, 1);
    assert_int_equal(mc_optimizer_step(adam), MC_OK);
    assert_true(value_at(stays.q, 0) < 1);
    assert_all(again.q, 1);
    mc_optimizer_add(adam, again.root);
    mc_optimizer_step(adam);
    assert_all(again.q, 0.9);
    mc_module_free(stays.root);
    mc_optimizer_free(adam);
    assert_null(again.q->optimizer);
    assert_good(ctx);
}

/* A freed optimizer's parameters may go to another, which starts from scratch. */
static void test_optimizer_replaced(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F32);
    mc_optimizer *first = mc_adam_new(ctx, &(mc_adam_options){.lr = MC_TRUE_ZERO});
    mc_optimizer_add(first, l.root);
    fill_gradient(l.q, -100);
    mc_optimizer_step(first);
    mc_optimizer_free(first);
    mc_optimizer *second = mc_adam_new(ctx, &(mc_adam_options){.lr = 0.1f});
    mc_optimizer_add(second, l.root);
    fill_gradient(l.q, 1);
    mc_optimizer_step(second);
    assert_all(l.q, 0.9);
    mc_optimizer_free(NULL);
    assert_good(ctx);
}

static void test_sticky(void **state)
{
    mc_context *ctx = *state;
    layers l = new_layers(ctx, MC_F32);
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    mc_optimizer_add(adam, l.root);
    fill_gradient(l.q, 1);
    mc_fail(ctx, MC_ERR_IO, "a disk went away");
    assert_int_equal(mc_optimizer_step(adam), MC_ERR_IO);
    assert_int_equal(mc_optimizer_zero_grad(adam), MC_ERR_IO);
    assert_int_equal(mc_optimizer_add(adam, l.root), MC_ERR_IO);
    assert_int_equal(mc_optimizer_set_lr(adam, 1), MC_ERR_IO);
    assert_true(isnan(mc_optimizer_lr(adam)));
    assert_null(mc_adam_new(ctx, &(mc_adam_options){.beta1 = 9}));
    assert_error(ctx, MC_ERR_IO, "a disk went away");
    assert_true(bucket_gradient(l.q)[0] == 1);
    assert_all(l.q, 1);
    assert_int_equal(mc_optimizer_step(NULL), MC_ERR_ARGUMENT);
    assert_int_equal(mc_optimizer_step_count(NULL), 0);
}

/* ---- an optimizer of one's own: Lion (Chen et al. 2023) ---------------------------------- */

typedef struct lion_settings {
    float beta1, beta2;
} lion_settings;

static mc_status lion_step(mc_context *ctx, const void *settings, const mc_optimizer_range *r)
{
    const lion_settings *s = settings;
    (void)ctx;
    if (r->dtype != MC_F32) return MC_ERR_DTYPE;
    float *p = r->parameter, *m = r->state[0], lr = (float)r->update->lr * r->lr_factor;
    if (r->update->skip) return MC_OK;
    for (int64_t i = 0; i < r->count; i++) {
        float g = r->gradient[i] * r->update->gradient_scale;
        float c = s->beta1 * m[i] + (1 - s->beta1) * g;
        p[i] -= lr * ((float)((c > 0) - (c < 0)) + r->weight_decay * p[i]);
        m[i] = s->beta2 * m[i] + (1 - s->beta2) * g;
    }
    return MC_OK;
}

static const mc_optimizer_kind LION = {
    .name = "lion", .state_count = 1, .state_name = {"exp_avg"}, .step = lion_step};

static void test_own_kind(void **state)
{
    mc_context *ctx = *state;
    lion_settings settings = {0.9f, 0.99f};
    layers l = new_layers(ctx, MC_F32);
    mc_optimizer *lion =
        mc_optimizer_new(ctx, &LION, &(mc_optimizer_options){.lr = 0.25f, .weight_decay = 1},
                         &settings, sizeof settings);
    mc_optimizer_add(lion, l.root);
    fill_gradient(l.q, 3);
    fill_gradient(l.k, -3);
    mc_optimizer_step(lion);
    assert_all(l.q, 0.5);
    assert_all(l.k, 1);
    assert_all(l.v, 0.75);
    assert_near(l.q->stored->bucket->state[0][0], 0.03, 1e-7);
    layers half = new_layers(ctx, MC_F16);
    mc_optimizer_add(lion, half.root);
    assert_int_equal(mc_optimizer_step(lion), MC_ERR_DTYPE);
    assert_error(ctx, MC_ERR_DTYPE, "lion");
    assert_null(mc_optimizer_new(ctx, &(mc_optimizer_kind){.name = "none"}, NULL, NULL, 0));
    assert_error(ctx, MC_ERR_ARGUMENT, "step function");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {
        TEST(test_golden),
        TEST(test_rule),
        TEST(test_true_zero),
        TEST(test_groups),
        TEST(test_no_decay_bias_norm),
        TEST(test_split_stored),
        TEST(test_add_errors),
        TEST(test_option_errors),
        TEST(test_freeze),
        TEST(test_late_thaw),
        TEST(test_added_later),
        TEST(test_padding_stays_zero),
        TEST(test_master_follows_write),
        TEST(test_module_freed_first),
        TEST(test_optimizer_replaced),
        TEST(test_sticky),
        TEST(test_own_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
