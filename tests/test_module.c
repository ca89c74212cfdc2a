/* Modules: names, stacked parameters, buckets and their layouts, initial values, and errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/optim/optim_test.h"

static mc_parameter *add(mc_module *m, const char *name, int64_t rows, int64_t columns)
{
    return mc_parameter_new(m, name, MC_SHAPE(rows, columns), mc_init_normal(0, 1));
}

static mc_module *child(mc_module *parent, const char *name)
{
    return mc_module_add(parent, name, sizeof(mc_module));
}

static float *read_all(mc_parameter *p)
{
    float *values = malloc((size_t)mc_shape_count(p->shape) * sizeof *values);
    assert_non_null(values);
    assert_int_equal(mc_parameter_read(p, values), MC_OK);
    return values;
}

static void assert_values(mc_parameter *p, const float *expected)
{
    float *got = read_all(p);
    assert_memory_equal(got, expected, (size_t)mc_shape_count(p->shape) * sizeof *got);
    free(got);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void test_names(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = mc_module_new(ctx, "model", sizeof *root, NULL);
    mc_module *a = child(root, "a"), *b = child(a, "b.c"), *far = child(b, "/else.where");
    assert_string_equal(mc_parameter_name(add(root, "w", 1, 1)), "model.w");
    assert_string_equal(mc_parameter_name(add(b, "w.x", 1, 1)), "model.a.b.c.w.x");
    assert_string_equal(mc_parameter_name(add(far, "w", 1, 1)), "else.where.w");
    assert_string_equal(mc_parameter_name(add(child(far, "deep"), "w", 1, 1)), "else.where.deep.w");
    assert_string_equal(mc_parameter_name(add(b, "/top", 2, 3)), "top");
    assert_good(ctx);
    assert_int_equal(mc_module_parameter_count(root), 10);
    assert_int_equal(mc_module_parameter_count(b), 9); /* '/' moves the name, not the parameter */
    assert_non_null(mc_module_find_parameter(root, "else.where.w"));
    assert_null(mc_module_find_parameter(root, "model.else.where.w"));
    assert_good(ctx);
    mc_parameter_iterator it = {0};
    const char *const order[] = {"model.a.b.c.w.x", "else.where.w", "else.where.deep.w", "top"};
    for (int i = 0; i < 4; i++)
        assert_string_equal(mc_parameter_name(mc_module_next_parameter(a, &it)), order[i]);
    assert_null(mc_module_next_parameter(a, &it));
    mc_module *bare = new_root(ctx, MC_F32);
    assert_string_equal(mc_parameter_name(add(child(bare, "x"), "y", 1, 1)), "x.y");
}

static void test_wrong_names(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32), *a = child(root, "a");
    static const char *const bad[] = {"", ".", ".x", "x.", NULL};
    for (int i = 0; bad[i]; i++) {
        assert_null(child(root, bad[i]));
        assert_error(ctx, MC_ERR_ARGUMENT, "module name", bad[i]);
        assert_null(add(root, bad[i], 1, 1));
        assert_error(ctx, MC_ERR_ARGUMENT, "parameter name", bad[i]);
    }
    assert_null(child(root, "a"));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"a\"", "already");
    assert_non_null(add(a, "w", 1, 1));
    assert_null(add(a, "w", 2, 2));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"a.w\"", "twice");
    assert_null(add(root, "a.w", 1, 1)); /* the same name by another path */
    assert_error(ctx, MC_ERR_ARGUMENT, "\"a.w\"", "twice");
    assert_null(add(root, "empty", 0, 3));
    assert_error(ctx, MC_ERR_SHAPE, "\"empty\"", "(0, 3)");
    assert_null(add(root, "negative", 3, -1));
    assert_error(ctx, MC_ERR_SHAPE, "\"negative\"", "(3, -1)");
    assert_null(mc_module_new(ctx, "m", sizeof *root, &(mc_module_options){.dtype = MC_I64}));
    assert_error(ctx, MC_ERR_DTYPE, "\"m\"", "i64");
    assert_int_equal(mc_module_parameter_count(root), 1);
    assert_null(mc_parameter_new(NULL, "w", MC_SHAPE(1), mc_init_zeros()));
    assert_int_equal(mc_parameter_read(NULL, NULL), MC_ERR_ARGUMENT);
    assert_good(ctx);
}

/* ---- stacked parameters ---------------------------------------------------------------------- */

static mc_parameter_part part(const char *name, int64_t rows, float value)
{
    return (mc_parameter_part){name, rows, mc_init_constant(value)};
}

static void test_stacked(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter_part parts[] = {part("q.w", 2, 1), part("k.w", 1, 2), part("v.w", 3, 3)};
    mc_parameter *p[3];
    mc_parameter *first = mc_parameter_new_stacked(root, parts, 3, MC_SHAPE(2), p);
    assert_ptr_equal(first, p[0]);
    assert_string_equal(mc_parameter_name(p[2]), "v.w");
    assert_true(mc_shape_equal(mc_parameter_shape(p[1]), MC_SHAPE(1, 2)));
    mc_parameter *bias =
        mc_parameter_new_stacked(root, (mc_parameter_part[]){part("q.b", 2, 4), part("k.b", 1, 5)},
                                 2, (mc_shape){.ndim = 0}, NULL);
    assert_true(mc_shape_equal(mc_parameter_shape(bias), MC_SHAPE(2)));
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *whole = mc_parameter_whole(t, p[1]);
    assert_ptr_equal(whole, mc_parameter_whole(t, p[0])); /* one leaf a tape */
    assert_true(mc_shape_equal(mc_tensor_shape(whole), MC_SHAPE(6, 2)));
    float got[12], expected[12] = {1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3};
    mc_tensor_read_f32(ctx, whole, got, 12);
    assert_memory_equal(got, expected, sizeof got);
    /* the parts show rows of the whole, in values and in gradients */
    mc_tensor *k = mc_parameter_tensor(t, p[1]),
              *x = mc_tape_input(t, MC_F32, MC_SHAPE(1, 2), (float[]){10, 20}, false);
    mc_tape_backward(t, mc_mul(t, k, x),
                     mc_tape_input(t, MC_F32, MC_SHAPE(1, 2), (float[]){1, 1}, false));
    mc_tape_end(t);
    float gradient[6];
    mc_parameter_read_gradient(p[1], gradient);
    assert_true(gradient[0] == 10 && gradient[1] == 20);
    mc_parameter_read_gradient(p[2], gradient);
    for (int i = 0; i < 6; i++) assert_true(gradient[i] == 0);
    assert_int_equal(mc_parameter_write(p[2], (float[]){1, 2, 3, 4, 5, 6}), MC_OK);
    assert_values(p[1], (float[]){2, 2});
    assert_values(p[2], (float[]){1, 2, 3, 4, 5, 6});
    assert_good(ctx);
}

static void test_wrong_stacked(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    add(root, "taken", 1, 1);
    assert_null(mc_parameter_new_stacked(
        root, (mc_parameter_part[]){part("free", 2, 1), part("taken", 2, 1)}, 2, MC_SHAPE(3),
        NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"taken\"", "twice");
    assert_null(mc_module_find_parameter(root, "free")); /* no part without the others */
    assert_non_null(add(root, "free", 1, 1));
    assert_null(mc_parameter_new_stacked(root, (mc_parameter_part[]){part("x", 0, 1)}, 1,
                                         MC_SHAPE(3), NULL));
    assert_error(ctx, MC_ERR_SHAPE, "\"x\"", "(0, 3)");
    assert_null(mc_parameter_new_stacked(root, NULL, 0, MC_SHAPE(3), NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "0 parts");
    assert_null(mc_parameter_new_stacked(root, NULL, 9, MC_SHAPE(3), NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "9 parts", "1 to 8");
    mc_parameter *first = mc_parameter_new_stacked(
        root, (mc_parameter_part[]){part("p", 1, 1), part("q", 1, 1)}, 2, MC_SHAPE(3), NULL);
    assert_int_equal(mc_module_set_trainable(root, "[q]*", false), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "[q]*", "\"p\"", "2 parts");
    assert_int_equal(mc_module_set_trainable(root, "[fq]*", false), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    assert_true(
        mc_parameter_trainable(mc_module_find_parameter(root, "free"))); /* all or nothing */
    assert_int_equal(mc_module_set_trainable(root, "[pq]", false), MC_OK);
    assert_false(mc_parameter_trainable(first));
}

/* Declaring a parameter takes no longer in a large model: looking at all names each time, this
 * would take minutes, more than ctest allows. */
static void test_many_names(void **state)
{
    enum { COUNT = 200000 };
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    char name[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "encoder.layers.%d.w", i);
        mc_parameter *p = add(root, name, 1, 1);
        assert_ptr_equal(mc_module_find_parameter(root, name), p);
    }
    assert_null(mc_module_find_parameter(root, "encoder.layers.200000.w"));
    snprintf(name, sizeof name, "encoder.layers.%d.w", COUNT / 2);
    assert_null(add(root, name, 1, 1));
    assert_error(ctx, MC_ERR_ARGUMENT, name, "twice");
}

/* ---- buckets --------------------------------------------------------------------------------- */

static void *two_parameters(mc_module *list, const char *name, int index, void *config)
{
    (void)index, (void)config;
    mc_module *block = child(list, name);
    add(block, "w", 3, 5);
    return add(child(block, "inner"), "v", 1, 70) ? block : NULL;
}

static mc_tensor *no_forward(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    (void)t, (void)block, (void)call;
    return x;
}

/* Every stored tensor in exactly one bucket, aligned, in order, nothing overlapping, gaps zero. */
static void check_buckets(mc_module *root)
{
    mc_module_root *r = root->root;
    size_t stored = 0;
    for (int i = 0; i < r->zero.bucket_count; i++) {
        mc_bucket *b = &r->zero.buckets[i];
        int64_t end = 0;
        for (int k = 0; k < b->span_count; k++, stored++) {
            mc_stored *s = mc_stored_of(&b->spans[k]);
            assert_ptr_equal(s->bucket, b);
            assert_ptr_equal(s->owner, b->owner);
            assert_int_equal(s->trainable, b->trainable);
            assert_int_equal(s->span->offset % MC_BUCKET_ALIGN, 0);
            assert_true(s->span->offset >= end);
            const float *values = b->values.data;
            for (int64_t j = end; b->dtype == MC_F32 && j < s->span->offset; j++)
                assert_true(values[j] == 0);
            end = s->span->offset + s->count;
        }
        assert_true(end <= b->count && b->count % MC_BUCKET_ALIGN == 0);
        assert_true(b->trainable || !b->gradient.data);
        for (int k = 0; k < i; k++)
            assert_false(r->zero.buckets[k].owner == b->owner &&
                         r->zero.buckets[k].trainable == b->trainable);
    }
    assert_int_equal(stored, r->stored_count);
}

/* NULLs, and numbers that nothing can be made of. */
static void test_wrong_arguments(void **state)
{
    mc_context *ctx = *state;
    assert_null(mc_module_new(ctx, NULL, sizeof(mc_module), NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "name", "NULL");
    assert_null(mc_module_new(ctx, "m", 1, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"m\"", "1 bytes");
    mc_module_options options = {.zero_level = (mc_zero_level)77};
    assert_null(mc_module_new(ctx, "m", sizeof(mc_module), &options));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"m\"", "77");
    mc_module *root = mc_module_new(ctx, "net", sizeof *root, NULL);
    assert_null(mc_module_add(root, NULL, sizeof(mc_module)));
    assert_error(ctx, MC_ERR_ARGUMENT, "module name", "NULL");
    assert_null(mc_module_add(root, "child", 1));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"child\"", "1 bytes");
    assert_null(mc_parameter_new(root, NULL, MC_SHAPE(1), mc_init_zeros()));
    assert_error(ctx, MC_ERR_ARGUMENT, "parameter name", "NULL");
    assert_null(mc_parameter_new(root, "c", MC_SHAPE(1), mc_init_custom(NULL, NULL)));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"net.c\"", "NULL");
    assert_null(mc_module_find_parameter(root, NULL));
    assert_null(mc_module_next_parameter(root, NULL));
    mc_parameter_part part = {"p", 2, mc_init_zeros()};
    assert_null(mc_parameter_new_stacked(root, NULL, 2, MC_SHAPE(3), NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "2 parts", "NULL");
    assert_null(mc_parameter_new_stacked(root, &part, 1, (mc_shape){.ndim = -1}, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "-1 dimensions");
    mc_parameter *p = mc_parameter_new(root, "p", MC_SHAPE(2), mc_init_zeros());
    assert_int_equal(mc_parameter_write(p, NULL), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "\"net.p\"", "NULL");
    assert_int_equal(mc_parameter_read(p, NULL), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    assert_int_equal(mc_parameter_read_gradient(p, NULL), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    mc_module_free(mc_module_add(root, "child", sizeof(mc_module)));
    assert_error(ctx, MC_ERR_ARGUMENT, "\"child\"", "no root", "\"net\"");
    assert_int_equal(mc_module_parameter_count(root), 2);
}

/* Sizes that are fine one by one, and whose sum in bytes wraps around. */
static void test_too_many_elements(void **state)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    mc_context *ctx = *state;
    mc_module *root = mc_module_new(ctx, "net", sizeof *root, NULL);
    const int64_t many = (int64_t)1 << 56;
    assert_non_null(mc_parameter_new(root, "small", MC_SHAPE(3), mc_init_zeros()));
    assert_non_null(mc_parameter_new(root, "a", MC_SHAPE(many), mc_init_zeros()));
    assert_null(mc_parameter_new(root, "b", MC_SHAPE(many), mc_init_zeros()));
    assert_error(ctx, MC_ERR_SHAPE, "(72057594037927936)", "\"net\"");
    mc_parameter_part parts[4];
    for (int i = 0; i < 4; i++)
        parts[i] = (mc_parameter_part){names[i], (int64_t)1 << 60, mc_init_zeros()};
    mc_module *child = mc_module_add(root, "child", sizeof *child);
    assert_null(mc_parameter_new_stacked(child, parts, 4, (mc_shape){.ndim = 0}, NULL));
    assert_error(ctx, MC_ERR_SHAPE, "elements", "\"net\"");
    assert_null(mc_embedding_add_padded(root, "e", 3, 3, 0, INT64_MAX));
    assert_error(ctx, MC_ERR_ARGUMENT, "stored rows");
}

static void test_buckets(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    add(root, "first", 7, 3);
    mc_block_list *list = mc_block_list_new(root, "blocks", 3, two_parameters, no_forward, NULL);
    add(child(root, "last"), "w", 1, 1);
    assert_good(ctx);
    assert_int_equal(root->root->zero.bucket_count, 0); /* nothing before it is needed */
    assert_int_equal(mc_module_layout(root->root), MC_OK);
    assert_int_equal(root->root->zero.bucket_count, 4); /* one a block, and the root's */
    check_buckets(root);
    for (int i = 0; i < 3; i++) {
        mc_module *block = mc_block_list_at(list, i);
        mc_parameter_iterator it = {0};
        for (mc_parameter *p; (p = mc_module_next_parameter(block, &it));)
            assert_ptr_equal(p->stored->bucket->owner, block);
    }
    assert_int_equal(mc_module_set_trainable(mc_block_list_at(list, 1), "*.w", false), MC_OK);
    assert_int_equal(mc_module_need_gradients(root->root, 0), MC_OK);
    assert_int_equal(root->root->zero.bucket_count,
                     5); /* a block with a frozen parameter has two */
    check_buckets(root);
    assert_null(mc_block_list_at(list, 3));
    assert_null(mc_block_list_at(list, -1));
    assert_int_equal(mc_block_list_count(list), 3);
}

/* One step with a gradient of ones, by an optimizer with state. */
static void step_with_ones(mc_optimizer *adam, mc_module *root)
{
    mc_parameter_iterator it = {0};
    assert_int_equal(mc_module_need_gradients(root->root, 0), MC_OK);
    for (mc_parameter *p; (p = mc_module_next_parameter(root, &it));)
        if (mc_parameter_trainable(p)) fill_gradient(p, 1);
    assert_int_equal(mc_optimizer_step(adam), MC_OK);
}

/* A parameter's slice of an array of its bucket. */
static const float *slice(const mc_parameter *p, const float *array)
{
    return array ? array + p->stored->span->offset + p->first : NULL;
}

/* Freezing lays out anew and keeps values, gradients and state; frozen parameters hold no
 * gradient. */
static void test_freezing_keeps_values(void **state)
{
    mc_context *ctx = *state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16};
    for (int d = 0; d < 2; d++) {
        mc_module *root = new_root(ctx, dtypes[d]);
        mc_parameter *a = add(root, "a", 3, 30), *b = add(root, "b", 5, 20),
                     *c = add(root, "c", 1, 10);
        mc_optimizer *adam = mc_adam_new(ctx, NULL);
        mc_optimizer_add(adam, root);
        step_with_ones(adam, root);
        size_t all = ctx->device->memory.in_use;
        float *va = read_all(a), *vb = read_all(b), *vc = read_all(c);
        float m = *slice(b, b->stored->bucket->state[MC_STATE_M]);
        assert_true(m != 0);
        fill_gradient(c, 7);
        assert_int_equal(mc_module_set_trainable(root, "b", false), MC_OK);
        assert_values(a, va);
        assert_values(b, vb);
        assert_values(c, vc);
        check_buckets(root);
        assert_null(b->stored->bucket->gradient.data);
        assert_true(ctx->device->memory.in_use <= all - 5 * 20 * sizeof(float) + 1024);
        float kept[10];
        mc_parameter_read_gradient(c, kept);
        assert_true(kept[0] == 7 && kept[9] == 7);
        assert_true(*slice(b, b->stored->bucket->state[MC_STATE_M]) ==
                    m); /* for when it is thawed */
        step_with_ones(adam, root);
        assert_values(b, vb);
        assert_int_equal(mc_module_set_trainable(root, NULL, true), MC_OK);
        step_with_ones(adam, root); /* the frozen one goes on where it was: with its second step */
        check_buckets(root);
        assert_true(fabsf(*slice(b, b->stored->bucket->state[MC_STATE_M]) - (0.9f * m + 0.1f)) <
                    1e-6f);
        float *after = read_all(b);
        assert_true(fabsf(after[0] - vb[0]) > 1e-4f && fabsf(after[0] - vb[0]) < 2e-2f);
        assert_good(ctx);
        free(va), free(vb), free(vc), free(after);
        mc_optimizer_free(adam);
        mc_module_free(root);
        assert_int_equal(ctx->device->memory.in_use, 0);
    }
}

/* Parameters declared after the first step (an adapter) start from their initial values, in f16 and
 * bf16 too, where the optimizer steps a master copy. */
static void test_declaring_later(void **state)
{
    mc_context *ctx = *state;
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
        mc_module *root = new_root(ctx, dtype);
        mc_parameter *a = add(root, "a", 3, 30);
        mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 1e-3f});
        mc_optimizer_add(adam, root);
        step_with_ones(adam, root);
        float *va = read_all(a);
        mc_parameter *late = mc_parameter_new(root, "late", MC_SHAPE(50), mc_init_constant(2));
        mc_parameter *written = add(root, "written", 1, 2);
        assert_int_equal(mc_parameter_write(written, (float[]){3, -3}), MC_OK);
        mc_optimizer_add(adam, root);
        assert_values(a, va);
        step_with_ones(adam, root);
        float *values = read_all(late), *w = read_all(written);
        for (int i = 0; i < 50; i++)
            assert_near(values[i], 2 - 1e-3, dtype == MC_F32 ? 1e-6 : 1e-2);
        assert_near(w[0], 3 - 1e-3, 2e-2);
        assert_near(w[1], -3 - 1e-3, 2e-2);
        assert_good(ctx);
        free(va), free(values), free(w);
        mc_optimizer_free(adam);
        mc_module_free(root);
    }
}

static void test_frozen_parameters(void **state)
{
    mc_context *ctx = *state;
    mc_linear *linear = mc_linear_new(ctx, 4, 3, NULL);
    mc_module *m = mc_linear_module(linear);
    assert_int_equal(mc_module_set_trainable(m, NULL, false), MC_OK);
    assert_int_equal(mc_module_need_gradients(m->root, 0), MC_OK);
    size_t values = ctx->device->memory.in_use;
    assert_int_equal(values, (64 + 64) * sizeof(float)); /* weights alone */
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(2, 4), NULL, true);
    mc_tensor *y = mc_linear_forward(t, linear, x);
    assert_int_equal(mc_tape_backward(t, y, mc_linear_forward(t, linear, x)),
                     MC_OK); /* reaches x all the same */
    assert_non_null(mc_tensor_gradient(x));
    mc_tape_end(t);
    assert_int_equal(ctx->device->memory.in_use, values);
    float zeros[12];
    memset(zeros, 1, sizeof zeros);
    mc_parameter_read_gradient(mc_module_find_parameter(m, "weight"), zeros);
    for (int i = 0; i < 12; i++) assert_true(zeros[i] == 0);
    t = mc_tape_begin(ctx); /* nothing trainable, nothing asked of the input: nothing is recorded */
    y = mc_linear_forward(t, linear, mc_tape_input(t, MC_F32, MC_SHAPE(2, 4), NULL, false));
    assert_null(y->node);
    mc_tape_end(t);
}

static void test_layout_while_a_tape_is_open(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = mc_module_new(ctx, "net", sizeof *root, NULL);
    mc_parameter *a = add(root, "a", 3, 3);
    mc_tape *t = mc_tape_begin(ctx);
    assert_non_null(mc_parameter_tensor(t, a)); /* the first layout may come now */
    add(root, "b", 2, 2);
    assert_null(mc_parameter_tensor(t, a));
    assert_error(ctx, MC_ERR_STATE, "\"net\"", "tape is open");
    mc_tape_end(t);
    t = mc_tape_begin(ctx);
    assert_non_null(mc_parameter_tensor(t, a));
    assert_int_equal(mc_module_set_trainable(root, "net.a", false), MC_OK);
    assert_null(mc_parameter_tensor(t, a));
    assert_error(ctx, MC_ERR_STATE, "\"net\"", "frozen");
    mc_tape_end(t);
    t = mc_tape_begin(ctx);
    assert_non_null(mc_parameter_tensor(t, a));
    assert_false(mc_parameter_tensor(t, a)->requires_grad);
    mc_tape_end(t);
}

/* ---- initial values -------------------------------------------------------------------------- */

/* The values that a model with these parameters, declared in this order, gets. */
static void initial(const char *isa, uint64_t seed, mc_dtype dtype, const int *order,
                    float out[4][1000])
{
    if (isa) setenv("MC_CPU_ISA", isa, 1);
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = seed});
    if (isa) unsetenv("MC_CPU_ISA");
    if (mc_error_status(ctx) == MC_ERR_UNSUPPORTED) {
        printf("SKIPPED: %s\n", mc_error_message(ctx));
        memset(out, 0, 4 * sizeof *out);
        mc_context_free(ctx);
        return;
    }
    static const char *const names[] = {"normal", "normal2", "uniform", "constant"};
    const mc_initializer inits[] = {mc_init_normal(0, 0.02f), mc_init_normal(0, 0.02f),
                                    mc_init_uniform(-1, 3), mc_init_constant(0.5f)};
    mc_module *root = new_root(ctx, dtype);
    for (int i = 0; i < 4; i++)
        mc_parameter_new(root, names[order[i]], MC_SHAPE(10, 100), inits[order[i]]);
    for (int i = 0; i < 4; i++) mc_parameter_read(mc_module_find_parameter(root, names[i]), out[i]);
    assert_good(ctx);
    mc_context_free(ctx);
}

static void test_initial_values(void **state)
{
    (void)state;
    static float a[4][1000], b[4][1000];
    static const int forward[] = {0, 1, 2, 3}, backward[] = {3, 2, 1, 0};
    initial(NULL, 5, MC_F32, forward, a);
    double mean = 0, square = 0;
    for (int i = 0; i < 1000; i++) {
        mean += (double)a[0][i] / 1000;
        square += (double)a[0][i] * (double)a[0][i] / 1000;
        assert_true(a[2][i] >= -1 && a[2][i] < 3);
        assert_true(a[3][i] == 0.5f);
    }
    assert_true(fabs(mean) < 0.003 && fabs(sqrt(square) - 0.02) < 0.002);
    assert_memory_not_equal(a[0], a[1], sizeof a[0]); /* the name decides */
    initial(NULL, 5, MC_F32, backward, b);
    assert_memory_equal(a, b, sizeof a); /* the order does not */
    initial(NULL, 6, MC_F32, forward, b);
    assert_memory_not_equal(a[0], b[0], sizeof a[0]); /* the seed does */
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        initial(isas[i], 5, MC_F32, forward, b);
        if (b[3][0] != 0) assert_memory_equal(a, b, sizeof a);
    }
    initial(NULL, 5, MC_BF16, forward, b); /* the same numbers, rounded */
    for (int i = 0; i < 1000; i++) assert_true(fabsf(a[0][i] - b[0][i]) <= fabsf(a[0][i]) / 256);
}

typedef struct custom_calls {
    uint64_t seed;
    int64_t covered;
} custom_calls;

static void count_up(void *user, uint64_t seed, int64_t first, int64_t count, float *out)
{
    custom_calls *calls = user;
    calls->seed = seed;
    calls->covered += count;
    for (int64_t i = 0; i < count; i++) out[i] = (float)(first + i);
}

static void test_custom_initializer(void **state)
{
    mc_context *ctx = *state;
    enum { COUNT = 40000 }; /* more than one call */
    custom_calls calls = {0}, other = {0};
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *p =
        mc_parameter_new(root, "w", MC_SHAPE(COUNT), mc_init_custom(count_up, &calls));
    mc_parameter *q = mc_parameter_new(root, "v", MC_SHAPE(2), mc_init_custom(count_up, &other));
    float *values = read_all(p);
    for (int i = 0; i < COUNT; i++) assert_true(values[i] == (float)i);
    assert_int_equal(calls.covered, COUNT);
    assert_true(calls.seed != other.seed);
    free(values);
    assert_values(q, (float[]){0, 1});
    custom_calls never = {0}; /* what is written before needs no initial values */
    mc_parameter *w = mc_parameter_new(root, "u", MC_SHAPE(2), mc_init_custom(count_up, &never));
    assert_int_equal(mc_parameter_write(w, (float[]){5, 6}), MC_OK);
    assert_values(w, (float[]){5, 6});
    assert_int_equal(never.covered, 0);
}

/* ---- values in and out ----------------------------------------------------------------------- */

static void test_read_and_write(void **state)
{
    mc_context *ctx = *state;
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
        mc_module *root = new_root(ctx, dtype);
        mc_parameter *p = add(root, "w", 2, 2),
                     *next = mc_parameter_new(root, "n", MC_SHAPE(3), mc_init_constant(1));
        const float exact[] = {1, -2.5f, 0, 0.125f},
                    rounded[] = {1.0009765f, 3.14159265f, -1e-3f, 65504};
        assert_int_equal(mc_parameter_dtype(p), dtype);
        assert_int_equal(mc_parameter_write(p, exact), MC_OK);
        assert_values(p, exact);
        assert_int_equal(mc_parameter_write(p, rounded), MC_OK);
        float *got = read_all(p);
        double unit = dtype == MC_F32 ? 0 : dtype == MC_F16 ? 0x1p-11 : 0x1p-8;
        for (int i = 0; i < 4; i++)
            assert_near(got[i], rounded[i], unit * fabs((double)rounded[i]) + 1e-9);
        free(got);
        assert_values(next, (float[]){1, 1, 1});
        assert_good(ctx);
        mc_module_free(root);
    }
    assert_int_equal(ctx->device->memory.in_use, 0);
}

/* Two contexts at once: neither's errors, parameters or tapes are the other's. */
static void test_two_contexts(void **state)
{
    mc_context *a = *state, *b = mc_init_distributed(&(mc_init_options){.seed = 7});
    mc_linear *of_a = mc_linear_new(a, 3, 2, NULL), *of_b = mc_linear_new(b, 3, 2, NULL);
    mc_parameter *wa = mc_module_find_parameter(mc_linear_module(of_a), "weight");
    mc_parameter *wb = mc_module_find_parameter(mc_linear_module(of_b), "weight");
    float *va = read_all(wa);
    assert_values(wb, va); /* the same seed and name */
    mc_tape *ta = mc_tape_begin(a), *tb = mc_tape_begin(b);
    assert_null(mc_parameter_tensor(ta, wb));
    assert_error(a, MC_ERR_ARGUMENT, "\"weight\"", "another context");
    mc_linear_new(b, 0, 2, NULL);
    assert_true(mc_failed(b));
    assert_good(a);
    mc_tensor *x = mc_tape_input(ta, MC_F32, MC_SHAPE(1, 3), NULL, true);
    mc_tensor *y = mc_linear_forward(ta, of_a, x);
    assert_int_equal(
        mc_tape_backward(ta, y, mc_tape_input(ta, MC_F32, MC_SHAPE(1, 2), NULL, false)), MC_OK);
    mc_tape_end(tb);
    mc_context_free(b);
    mc_tape_end(ta);
    assert_values(wa, va);
    free(va);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_names),
        TEST(test_wrong_names),
        TEST(test_stacked),
        TEST(test_wrong_stacked),
        TEST(test_many_names),
        TEST(test_wrong_arguments),
        TEST(test_too_many_elements),
        TEST(test_buckets),
        TEST(test_freezing_keeps_values),
        TEST(test_declaring_later),
        TEST(test_frozen_parameters),
        TEST(test_layout_while_a_tape_is_open),
        TEST(test_initial_values),
        TEST(test_custom_initializer),
        TEST(test_read_and_write),
        TEST(test_two_contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
