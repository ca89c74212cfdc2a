/* Adam with its state in 8 bits: which parameters have it, memory, learning beside f32 state, and
 * what may not change. The kernel's loop stands in tests/device. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/checkpoint/optim_state.h"
#include "core/nn/layers.h"
#include "core/nn/stored.h"
#include "core/nn/transformer.h"
#include "tests/optim/optim_test.h"
#include "tests/temp_folder.h"

static mc_optimizer *new_adam(mc_context *ctx, bool eight_bit)
{
    return mc_adam_new(ctx, &(mc_adam_options){.lr = 0.01f, .eight_bit = eight_bit});
}

static mc_state_form form_of(const mc_parameter *p) { return p->stored->span->form; }

static void test_which(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_BF16);
    mc_parameter *matrix = mc_parameter_new(root, "m", MC_SHAPE(70, 60), mc_init_normal(0, 1));
    mc_parameter *small = mc_parameter_new(root, "s", MC_SHAPE(63, 65), mc_init_normal(0, 1));
    mc_parameter *vector = mc_parameter_new(root, "v", MC_SHAPE(5000), mc_init_normal(0, 1));
    mc_embedding *table = mc_embedding_add(root, "t", 100, 64, 1);
    mc_parameter *even[2], *odd[2];
    const mc_parameter_part parts[] = {{"e0", 64, mc_init_zeros()}, {"e1", 65, mc_init_zeros()}};
    const mc_parameter_part others[] = {{"o0", 65, mc_init_zeros()}, {"o1", 64, mc_init_zeros()}};
    mc_parameter_new_stacked(root, parts, 2, MC_SHAPE(64), even);
    mc_parameter_new_stacked(root, others, 2, MC_SHAPE(65), odd);
    mc_optimizer *adam = new_adam(ctx, true);
    mc_optimizer_add(adam, root);
    mc_optimizer_step(adam);
    assert_good(ctx);
    assert_true(form_of(matrix) == MC_STATE_8BIT && form_of(even[1]) == MC_STATE_8BIT);
    assert_true(form_of(small) == MC_STATE_F32 && form_of(vector) == MC_STATE_F32);
    assert_true(form_of(mc_embedding_weight(table)) == MC_STATE_F32);
    assert_true(form_of(odd[0]) == MC_STATE_F32); /* 65 x 65 is no multiple of a block */
    const mc_bucket *b = matrix->stored->bucket;
    size_t wide = (size_t)(small->stored->count + vector->stored->count + odd[0]->stored->count +
                           mc_embedding_weight(table)->stored->count) *
                  4;
    size_t narrow = (size_t)(matrix->stored->count + even[0]->stored->count);
    size_t bytes = mc_bucket_state_bytes(b, MC_STATE_M);
    assert_true(bytes >= wide + narrow && bytes < wide + narrow + 6 * 1024 + (size_t)b->count / 64);
    assert_true(mc_bucket_state_bytes(b, MC_STATE_MASTER) == (size_t)b->count * 4);
}

/* A matrix that is to become another, from noisy gradients: the loss falls as far, to a hundredth.
 * (A model's losses beside f32 state: tests/compare_adam8.py.) */
static void test_learns(void **state)
{
    enum { ROWS = 64, ALL = ROWS * ROWS, STEPS = 300 };
    mc_context *ctx = *state;
    double loss[2], first[2];
    static float goal[ALL], values[ALL], g[ALL];
    for (int k = 0; k < 2; k++) {
        uint64_t seed = 9;
        mc_module *root = new_root(ctx, MC_F32);
        mc_parameter *w = mc_parameter_new(root, "w", MC_SHAPE(ROWS, ROWS), mc_init_zeros());
        mc_optimizer *adam = new_adam(ctx, k);
        mc_optimizer_add(adam, root);
        for (int i = 0; i < ALL; i++) goal[i] = 3 * noise(&seed);
        for (int t = 0; t < STEPS; t++) {
            mc_parameter_read(w, values);
            loss[k] = 0;
            for (int i = 0; i < ALL; i++) {
                g[i] = values[i] - goal[i] + 0.1f * noise(&seed);
                loss[k] += 0.5 * pow((double)values[i] - (double)goal[i], 2) / ALL;
            }
            if (t == 0) first[k] = loss[k];
            set_gradient(w, g);
            mc_optimizer_step(adam);
        }
        assert_good(ctx);
        assert_true((form_of(w) == MC_STATE_8BIT) == k);
        mc_optimizer_free(adam);
    }
    assert_true(loss[0] < 0.1); /* from 1.5 */
    assert_near(first[1] - loss[1], first[0] - loss[0], 1e-2 * first[0]);
}

/* Two matrices, "a" and "b", that are stored as one. */
static mc_module *new_stacked(mc_context *ctx, mc_parameter *p[2])
{
    const mc_parameter_part parts[] = {{"a", 64, mc_init_zeros()}, {"b", 64, mc_init_zeros()}};
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter_new_stacked(root, parts, 2, MC_SHAPE(64), p);
    return root;
}

/* A new optimizer's state begins at zero, in its own form; after a step the form stays. */
static void test_changes(void **state)
{
    mc_context *ctx = *state;
    mc_parameter *p[2];
    mc_module *root = new_stacked(ctx, p);
    mc_optimizer *first = new_adam(ctx, true), *second = new_adam(ctx, false);
    mc_optimizer_add_group(first, root, "a", NULL);
    fill_gradient(p[0], 1);
    mc_optimizer_step(first);
    assert_good(ctx);
    assert_true(form_of(p[0]) == MC_STATE_8BIT);
    mc_optimizer_add_group(second, root, "b", NULL);
    mc_optimizer_step(second);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "\"a\"", "before the first step");
    mc_optimizer_free(first);
    mc_optimizer_add(second, root);
    float before = value_at(p[0], 5);
    fill_gradient(p[0], 1);
    mc_optimizer_step(second);
    assert_good(ctx);
    assert_true(form_of(p[0]) == MC_STATE_F32);
    assert_near(value_at(p[0], 5), before - 0.01, 1e-6); /* a first step's size */
}

/* A step that is still running counts: the form cannot change after it. */
static void test_running_step(void **state)
{
    mc_context *ctx = *state;
    mc_parameter *p[2];
    mc_module *root = new_stacked(ctx, p);
    mc_optimizer *first = new_adam(ctx, true), *second = new_adam(ctx, false);
    mc_optimizer_add_group(first, root, "a", NULL);
    launch_step(ctx, first, p[0]);
    mc_optimizer_add_group(second, root, "b", NULL);
    mc_optimizer_step(second);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "\"a\"", "before the first step");
    assert_true(form_of(p[0]) == MC_STATE_8BIT);
}

/* ---- frozen parameters ----------------------------------------------------------------------- */

typedef struct frozen_run {
    mc_parameter *frozen, *other; /* (64, 64) */
    mc_module *root;
    mc_optim_manager *optim;
} frozen_run;

static frozen_run frozen_run_new(mc_context *ctx, bool muon, bool freeze)
{
    frozen_run r = {.root = new_root(ctx, MC_F32)};
    r.frozen = mc_parameter_new(r.root, "frozen", MC_SHAPE(64, 64), mc_init_normal(0, 1));
    r.other = mc_parameter_new(r.root, "other", MC_SHAPE(64, 64), mc_init_normal(0, 1));
    if (freeze) mc_module_set_trainable(r.root, "frozen", false);
    mc_optimizer *optimizer = muon ? mc_muon_new(ctx, NULL) : new_adam(ctx, true);
    mc_optimizer_add(optimizer, r.root);
    r.optim = mc_optim_manager_new(ctx, NULL);
    mc_optim_manager_add(r.optim, optimizer, NULL);
    return r;
}

static void frozen_run_step(frozen_run *r, uint64_t seed)
{
    static float g[64 * 64];
    mc_parameter *both[] = {r->frozen, r->other};
    mc_optim_manager_zero_grad(r->optim);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 64 * 64; i++) g[i] = noise(&seed);
        if (mc_parameter_trainable(both[k])) set_gradient(both[k], g);
    }
    mc_optim_manager_step(r->optim);
}

static void copy_values(mc_parameter *from, mc_parameter *to)
{
    static float values[64 * 64];
    mc_parameter_read(from, values);
    mc_parameter_write(to, values);
}

/* State of a parameter that was frozen after some steps is restored where it is frozen from the
 * beginning, and goes on when it is thawed, as without the checkpoint. */
static void test_frozen(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    for (int muon = 0; muon < 2; muon++) {
        frozen_run a = frozen_run_new(ctx, muon, false), b = frozen_run_new(ctx, muon, true);
        for (uint64_t i = 0; i < 2; i++) frozen_run_step(&a, i);
        mc_module_set_trainable(a.root, "frozen", false);
        frozen_run_step(&a, 2);
        const char *path = temp_path(&folder, "state.safetensors");
        mc_optim_manager_save(a.optim, path);
        assert_int_equal(mc_optim_manager_load(b.optim, path), MC_OK);
        copy_values(a.frozen, b.frozen);
        copy_values(a.other, b.other);
        assert_true(form_of(b.frozen) == (muon ? MC_STATE_FIRST : MC_STATE_8BIT));
        frozen_run *both[] = {&a, &b};
        for (int k = 0; k < 2; k++) {
            mc_module_set_trainable(both[k]->root, NULL, true);
            for (uint64_t i = 3; i < 6; i++) frozen_run_step(both[k], i);
            assert_good(ctx);
        }
        for (int i = 0; i < 64 * 64; i++) {
            assert_true(value_at(a.frozen, i) == value_at(b.frozen, i));
            assert_true(value_at(a.other, i) == value_at(b.other, i));
        }
    }
    temp_folder_free(&folder);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    assert_null(mc_adam_offload_new(ctx, &(mc_adam_options){.eight_bit = true}));
    assert_error(ctx, MC_ERR_ARGUMENT, "eight_bit", "AdamOffload");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)
    const struct CMUnitTest tests[] = {
        TEST(test_which),        TEST(test_learns), TEST(test_changes),
        TEST(test_running_step), TEST(test_frozen), TEST(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
