/* The tape: gradients of inputs, several tapes, shared gradients, what memory is held and when it
 * goes, recompute, and what is an error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/device/cpu/cpu_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/optim/optim_test.h"

#define IN_USE(ctx) ((ctx)->device->memory.in_use)

static mc_tensor *input(mc_tape *t, int64_t n, const float *values)
{
    return mc_tape_input(t, MC_F32, MC_SHAPE(n), values, true);
}

static void assert_values(mc_context *ctx, const mc_tensor *x, int n, const float *expected)
{
    float got[16];
    assert_good(ctx);
    assert_non_null(x);
    mc_tensor_read_f32(ctx, x, got, n);
    for (int i = 0; i < n; i++) assert_near(got[i], expected[i], 1e-6);
}
#define assert_gradient(ctx, x, ...)          \
    assert_values(ctx, mc_tensor_gradient(x), \
                  (int)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)), (float[]){__VA_ARGS__})

/* ---- gradients ------------------------------------------------------------------------------- */

static void test_gradient_of_inputs(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2}), *w = input(t, 2, (float[]){3, 5});
    mc_tensor *fixed = mc_tape_input(t, MC_F32, MC_SHAPE(2), (float[]){7, 7}, false);
    mc_tensor *y = mc_add(t, mc_mul(t, x, w), mc_mul(t, x, fixed));
    mc_tensor *dy = mc_tape_input(t, MC_F32, MC_SHAPE(2), (float[]){1, 10}, false);
    assert_int_equal(mc_tape_backward(t, y, dy), MC_OK);
    assert_gradient(ctx, x, 10, 120);
    assert_gradient(ctx, w, 1, 20);
    assert_null(mc_tensor_gradient(fixed));
    assert_values(ctx, dy, 2, (float[]){1, 10});
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
}

/* x + x; and residual patterns, in which the gradients of two tensors begin in one memory. */
static void test_shared_gradients(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2}), *d = input(t, 2, (float[]){1, -1});
    mc_tape_backward(t, mc_add(t, x, x), d);
    assert_gradient(ctx, x, 2, -2);

    mc_tensor *a = input(t, 2, (float[]){1, 2}), *b = input(t, 2, (float[]){3, 4});
    mc_tensor *c = input(t, 2, (float[]){5, 6});
    mc_tensor *early = mc_mul(t, a, b); /* adds to the gradients of a and b last */
    mc_tensor *sum = mc_add(t, a, b);   /* gives a and b one memory first */
    mc_tensor *more = mc_add(t, sum, c);
    mc_tape_backward(t, mc_add(t, mc_add(t, more, early), more), d);
    assert_gradient(ctx, a, 2 + 3, -2 - 4);
    assert_gradient(ctx, b, 2 + 1, -2 - 2);
    assert_gradient(ctx, c, 2, -2);

    mc_tensor *h = input(t, 2, (float[]){1, 1}), *y = h; /* x + scale(x), three times: (1 + 2)^3 */
    for (int i = 0; i < 3; i++) y = mc_add(t, y, mc_scale(t, y, 2));
    mc_tensor *view = mc_reshape(t, y, MC_SHAPE(1, 2));
    mc_tape_backward(t, mc_add(t, mc_reshape(t, view, MC_SHAPE(2)), y), d);
    assert_gradient(ctx, h, 54, -54);
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
}

static void test_backward_twice(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2}), *d = input(t, 2, (float[]){1, 1});
    mc_tensor *y = mc_gelu(t, x), *z = mc_scale(t, y, 2), *other = mc_scale(t, x, 3);
    assert_int_equal(mc_tape_backward(t, z, d), MC_OK);
    assert_int_equal(mc_tape_backward(t, z, d), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "twice");
    assert_int_equal(mc_tape_backward(t, mc_scale(t, y, 1), d),
                     MC_ERR_STATE); /* y's node is done */
    assert_error(ctx, MC_ERR_STATE, "second time", "activation");
    mc_tape_end(t);

    t = mc_tape_begin(ctx);
    x = input(t, 2, (float[]){1, 2}), d = input(t, 2, (float[]){1, 1});
    other = mc_scale(t, x, 3), z = mc_scale(t, x, 2);
    assert_int_equal(mc_tape_backward(t, z, d), MC_OK); /* no node in common: adds up */
    assert_int_equal(mc_tape_backward(t, other, d), MC_OK);
    assert_gradient(ctx, x, 5, 5);
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
}

static void test_wrong_backward(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx), *other = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 3, (float[]){1, 2, 3}), *y = mc_scale(t, x, 2);
    assert_int_equal(mc_tape_backward(t, y, NULL), MC_ERR_SHAPE);
    assert_error(ctx, MC_ERR_SHAPE, "loss", "(3)");
    assert_int_equal(mc_tape_backward(t, y, input(t, 2, NULL)), MC_ERR_SHAPE);
    assert_error(ctx, MC_ERR_SHAPE, "(2)", "(3)");
    assert_int_equal(mc_tape_backward(other, y, x), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "not made on this tape");
    assert_int_equal(mc_tape_backward(t, NULL, x), MC_ERR_ARGUMENT);
    mc_clear_error(ctx);
    mc_tensor *gone = input(t, 3, NULL);
    mc_tape_release(t, gone);
    assert_int_equal(mc_tape_backward(t, y, gone), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "released");
    assert_int_equal(mc_tape_backward(NULL, y, x), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "backward: its tape is NULL");
    /* gradients do not pass from tape to tape unseen */
    assert_null(mc_add(other, input(other, 3, NULL), y));
    assert_error(ctx, MC_ERR_ARGUMENT, "another tape", "mc_tape_input");
    assert_int_equal(mc_tape_backward(t, y, x), MC_OK);
    mc_tape_end(t);
    mc_tape_end(other);
    assert_int_equal(IN_USE(ctx), 0);
}

/* Until another tape takes over its memory. */
static void test_used_after_its_end(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx), *open = mc_tape_begin(ctx);
    mc_tensor *kept = mc_tensor_from(ctx, MC_F32, MC_SHAPE(2), (float[]){1, 2});
    mc_tape_end(t);
    mc_tape_end(t);
    assert_error(ctx, MC_ERR_STATE, "after its end");
    assert_null(input(t, 2, NULL));
    assert_error(ctx, MC_ERR_STATE, "after its end");
    assert_null(mc_gelu(t, kept));
    assert_error(ctx, MC_ERR_STATE, "after its end");
    assert_null(mc_tape_lengths(t, (int32_t[]){1}, 1, 1));
    assert_error(ctx, MC_ERR_STATE, "after its end");
    mc_module *root = new_root(ctx, MC_F32);
    mc_parameter *p = mc_parameter_new(root, "p", MC_SHAPE(2), mc_init_zeros());
    assert_null(mc_parameter_tensor(t, p));
    assert_error(ctx, MC_ERR_STATE, "after its end");
    assert_non_null(mc_gelu(open, mc_parameter_tensor(open, p)));
    assert_good(ctx);
    mc_tape_end(open);
    mc_tape *next = mc_tape_begin(ctx), *after = mc_tape_begin(ctx);
    assert_non_null(input(next, 2, NULL));
    assert_non_null(input(after, 2, NULL));
    mc_tape_end(next);
    mc_tape_end(after);
    assert_good(ctx);
}

/* Backward would read the parameters of a module that is gone; other tapes do not. */
static void test_module_freed_before_backward(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32), *other = new_root(ctx, MC_F32);
    mc_parameter *p = mc_parameter_new(root, "p", MC_SHAPE(2), mc_init_constant(2));
    mc_parameter *q = mc_parameter_new(other, "q", MC_SHAPE(2), mc_init_constant(3));
    mc_tape *t = mc_tape_begin(ctx), *u = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2}), *v = input(u, 2, (float[]){1, 2});
    mc_tensor *y = mc_mul(t, x, mc_parameter_tensor(t, p));
    mc_tensor *w = mc_mul(u, v, mc_parameter_tensor(u, q));
    mc_module_free(root);
    assert_values(ctx, y, 2, (float[]){2, 4});
    assert_int_equal(mc_tape_backward(t, y, x), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "module", "has been freed");
    assert_int_equal(mc_tape_backward(u, w, v), MC_OK);
    assert_gradient(ctx, v, 3, 6);
    mc_tape_end(t);
    mc_tape_end(u);
    assert_good(ctx);
}

enum { USED_TENSOR, USED_LABELS, USED_LENGTHS, USED_TAPE, USED_VIEW, USES };

/* A tape that used something; what has to be freed is returned in `lengths`, `tensor` or `tape`. */
static mc_tensor *use(mc_context *ctx, mc_tape *t, int kind, mc_lengths **lengths,
                      mc_tensor **tensor, mc_tape **tape)
{
    const mc_shape shape = MC_SHAPE(2, 2);
    mc_tensor *x = mc_tape_input(t, MC_F32, shape, (float[]){1, 2, 3, 4}, true);
    *tensor = NULL, *lengths = NULL, *tape = NULL;
    if (kind == USED_TENSOR) {
        *tensor = mc_tensor_from(ctx, MC_F32, shape, (float[]){5, 6, 7, 8});
        return mc_loss_from_rows(t, mc_mul(t, x, *tensor), NULL);
    }
    if (kind == USED_LABELS) {
        *tensor = mc_tensor_from(ctx, MC_I32, MC_SHAPE(2), (int32_t[]){0, 1});
        return mc_cross_entropy(t, x, *tensor, NULL);
    }
    if (kind == USED_LENGTHS) {
        *lengths = mc_lengths_new(ctx, 1, 2);
        mc_lengths_write(*lengths, (int32_t[]){2}, 1, 2, 2);
        return mc_loss_from_rows(t, mc_mean_pool(t, mc_with_lengths(t, x, *lengths)), NULL);
    }
    *tape = mc_tape_begin(ctx);
    mc_tensor *y = mc_tape_input(*tape, MC_F32, shape, (float[]){5, 6, 7, 8}, false);
    if (kind == USED_VIEW) y = mc_reshape(t, y, shape);
    return mc_loss_from_rows(t, mc_mul(t, x, y), NULL);
}

/* What a tape used is freed before its backward, which would read it: an error of this tape alone.
 * After backward it may be freed. */
static void test_freed_before_backward(void **state)
{
    static const char *const words[USES] = {"a tensor", NULL, "lengths", "another tape",
                                            "another tape"};
    mc_context *ctx = *state;
    for (int early = 1; early >= 0; early--) {
        for (int kind = 0; kind < USES; kind++) {
            mc_lengths *lengths;
            mc_tensor *tensor;
            mc_tape *t = mc_tape_begin(ctx), *other = mc_tape_begin(ctx), *tape;
            mc_tensor *loss = use(ctx, t, kind, &lengths, &tensor, &tape);
            mc_tensor *v = input(other, 2, (float[]){1, 2}), *w = mc_scale(other, v, 3);
            if (!early) assert_int_equal(mc_tape_backward(t, loss, NULL), MC_OK);
            mc_lengths_free(lengths);
            mc_tensor_free(tensor);
            mc_tape_end(tape);
            if (early && !words[kind]) { /* labels: the tape has a view of their memory */
                assert_int_equal(mc_tape_backward(t, loss, NULL), MC_OK);
            } else if (early) {
                assert_int_equal(mc_tape_backward(t, loss, NULL), MC_ERR_STATE);
                assert_error(ctx, MC_ERR_STATE, "backward: ", words[kind], "used");
            }
            assert_int_equal(mc_tape_backward(other, w, v), MC_OK);
            assert_gradient(ctx, v, 3, 6);
            mc_tape_end(t);
            mc_tape_end(other);
            assert_good(ctx);
        }
    }
}

static void test_wrong_lengths(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    assert_null(mc_tape_lengths(t, (int32_t[]){3, -1}, 2, 1));
    assert_error(ctx, MC_ERR_ARGUMENT, "-1", "sequence 1", "negative");
    assert_null(mc_tape_lengths(t, (int32_t[]){INT32_MAX, 1}, 2, 1));
    assert_error(ctx, MC_ERR_ARGUMENT, "sequence 1", "too long");
    assert_null(mc_tape_lengths(t, (int32_t[]){1}, -1, 1));
    assert_error(ctx, MC_ERR_ARGUMENT, "-1");
    assert_null(mc_tape_lengths(t, (int32_t[]){2, 1}, 2, INT64_MAX));
    assert_error(ctx, MC_ERR_ARGUMENT, "3 tokens", "rounded up", "2147483647");
    assert_null(mc_tape_lengths(t, (int32_t[]){INT32_MAX}, 1, 2));
    assert_error(ctx, MC_ERR_ARGUMENT, "rounded up to 2");
    const mc_lengths *l = mc_tape_lengths(t, (int32_t[]){3, 0, 6}, 3, 8);
    assert_int_equal(l->total, 9);
    assert_int_equal(l->capacity, 16);
    assert_int_equal(l->longest, 6);
    assert_int_equal(l->offset[2], 3);
    assert_int_equal(l->offset[3], 9);
    mc_tape_end(t);
}

/* ---- several tapes --------------------------------------------------------------------------- */

static void test_several_tapes(void **state)
{
    mc_context *ctx = *state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; o++) {
        mc_tape *t[3];
        mc_tensor *x[3], *y[3];
        for (int i = 0; i < 3; i++) t[i] = mc_tape_begin(ctx);
        for (int i = 0; i < 3; i++) x[i] = input(t[i], 2, (float[]){1, (float)i});
        for (int i = 2; i >= 0; i--) y[i] = mc_mul(t[i], x[i], x[i]);
        for (int k = 0; k < 3; k++) {
            int i = orders[o][k];
            mc_tape_backward(t[i], mc_scale(t[i], y[i], 2), input(t[i], 2, (float[]){1, 1}));
            assert_gradient(ctx, x[i], 4, 4 * (float)i);
            mc_tape_end(t[i]);
        }
        assert_int_equal(IN_USE(ctx), 0);
    }
    mc_tape_end(NULL);
    mc_tape *abandoned = mc_tape_begin(ctx); /* freed with the context */
    assert_non_null(mc_gelu(abandoned, input(abandoned, 2, NULL)));
}

/* Views, indices and checkpointed inputs of a tape that ends before the one that uses them: nothing
 * of it is touched then, for a third tape has its memory by now. */
static void test_used_on_another_tape(void **state)
{
    enum { N = 64 };
    mc_context *ctx = *state;
    mc_tape *maker = mc_tape_begin_eval(ctx), *t = mc_tape_begin(ctx);
    mc_tensor *x = mc_tape_input(maker, MC_F32, MC_SHAPE(2, 2), (float[]){1, 2, 3, 4}, false);
    mc_tensor *index = mc_tape_input(maker, MC_I32, MC_SHAPE(2), (int32_t[]){1, 0}, false);
    mc_tensor *table = mc_tape_input(t, MC_F32, MC_SHAPE(2, 2), (float[]){5, 6, 7, 8}, true);
    mc_tensor *view = mc_reshape(t, mc_reshape(t, x, MC_SHAPE(4)), MC_SHAPE(2, 2));
    mc_tensor *y = mc_mul(t, mc_embed(t, 1, &table, &index), view);
    mc_tape_backward(t, y, mc_tape_input(t, MC_F32, MC_SHAPE(2, 2), (float[]){1, 1, 1, 1}, false));
    assert_gradient(ctx, table, 3, 4, 1, 2);
    mc_tape_end(maker);
    mc_tape *next = mc_tape_begin(ctx);
    mc_tensor *values[N];
    for (int i = 0; i < N; i++) values[i] = input(next, 1, (float[]){(float)i});
    mc_tape_end(t);
    for (int i = 0; i < N; i++) assert_values(ctx, values[i], 1, (float[]){(float)i});
    mc_tape_end(next);
    assert_int_equal(IN_USE(ctx), 0);
}

static void test_eval_tape(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2}), *y = mc_dropout(t, mc_scale(t, x, 2), 0.5f);
    assert_values(ctx, y, 2, (float[]){2, 4});
    assert_false(y->requires_grad);
    assert_null(y->node);
    assert_int_equal(mc_tape_backward(t, y, x), MC_ERR_STATE);
    assert_error(ctx, MC_ERR_STATE, "evaluation");
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
}

/* Tensors of the context on a tape: the tape never takes their memory. */
static void test_context_tensors(void **state)
{
    mc_context *ctx = *state;
    mc_tensor *w = mc_tensor_from(ctx, MC_F32, MC_SHAPE(2), (float[]){3, 4});
    size_t own = IN_USE(ctx);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2});
    mc_scope scope = mc_scope_begin(t, false);
    mc_tensor *view = mc_reshape(t, w, MC_SHAPE(1, 2));
    mc_tensor *y = mc_mul(t, x, mc_reshape(t, view, MC_SHAPE(2)));
    mc_scope_end(t, scope, y);
    mc_tape_release(t, w);
    mc_tape_release(t, view);
    assert_values(ctx, w, 2, (float[]){3, 4});
    mc_tape_backward(t, y, w);
    assert_gradient(ctx, x, 9, 16);
    mc_tape_end(t);
    assert_values(ctx, w, 2, (float[]){3, 4});
    assert_int_equal(IN_USE(ctx), own);
    mc_tensor_free(w);
    assert_int_equal(IN_USE(ctx), 0);
}

/* Freeing what a tape owns is an error, after which the tensor is still there. */
static void test_free_tensor_of_tape(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2}), *y = mc_scale(t, x, 3);
    mc_tape_backward(t, y, input(t, 2, (float[]){1, 1}));
    mc_tensor *of_tape[] = {x, y, mc_reshape(t, x, MC_SHAPE(1, 2)), mc_tensor_gradient(x)};
    for (int i = 0; i < 4; i++) {
        assert_non_null(of_tape[i]);
        mc_tensor_free(of_tape[i]);
        assert_error(ctx, MC_ERR_ARGUMENT, "mc_tensor_free: a tensor (", "of a tape");
    }
    assert_values(ctx, x, 2, (float[]){1, 2});
    assert_gradient(ctx, x, 3, 3);
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
}

/* ---- a small transformer, for recompute ------------------------------------------------------ */

/* What core/nn/block_list.c keeps; the count is made smaller here. */
struct mc_block_list_head {
    mc_module module;
    int count;
};

enum { DIM = 32, LAYERS = 5, TOKENS = 24, CLASSES = 7 };

typedef struct layer {
    mc_module module;
    mc_layernorm *norm, *middle;
    mc_attention *attention;
    mc_linear *up, *down;
    mc_block_list *inner; /* of nested models */
} layer;

typedef struct model {
    mc_module module;
    mc_block_list *blocks;
    mc_linear *head;
} model;

typedef struct settings {
    mc_recompute recompute, inner; /* inner: MC_RECOMPUTE_DEFAULT for none at all */
    mc_dtype dtype;
} settings;

static mc_tensor *inner_forward(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    layer *l = block;
    (void)call;
    mc_tensor *u = mc_linear_forward_activated(t, l->up, mc_layernorm_forward(t, l->norm, x),
                                               MC_ACTIVATION_GELU_NEW);
    return mc_add(t, x, mc_dropout(t, mc_tanh(t, mc_linear_forward(t, l->down, u)), 0.1f));
}

static void *inner_new(mc_module *list, const char *name, int index, void *config)
{
    (void)index, (void)config;
    layer *l = mc_module_add(list, name, sizeof *l);
    if (!l) return NULL;
    l->norm = mc_layernorm_add(&l->module, "norm", DIM, 0);
    l->up = mc_linear_add(&l->module, "up", DIM, 2 * DIM, NULL);
    l->down = mc_linear_add(&l->module, "down", 2 * DIM, DIM, NULL);
    return l->down ? l : NULL;
}

static mc_tensor *layer_forward(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    layer *l = block;
    mc_tensor *a = mc_attention_forward(t, l->attention, mc_layernorm_forward(t, l->norm, x), NULL);
    mc_tensor *h = mc_layernorm_forward_residual(t, l->middle, x, a, 0.1f);
    if (l->inner) h = mc_block_list_forward(t, l->inner, h, NULL);
    mc_tensor *u = mc_linear_forward_activated(t, l->up, h, MC_ACTIVATION_GELU);
    mc_tensor *d = mc_dropout(t, mc_linear_forward(t, l->down, u), 0.1f);
    return mc_add(t, h, mc_mul(t, d, call->extra[0]));
}

static void *layer_new(mc_module *list, const char *name, int index, void *config)
{
    const settings *s = config;
    layer *l = inner_new(list, name, index, NULL);
    if (!l) return NULL;
    mc_attention_options attention = {.dropout = 0.1f};
    l->middle = mc_layernorm_add(&l->module, "middle", DIM, 0);
    l->attention = mc_attention_add(&l->module, "attention", DIM, 4, &attention);
    if (s->inner)
        l->inner = mc_block_list_new(&l->module, "inner", 2, inner_new, inner_forward,
                                     &(mc_block_options){.recompute = s->inner});
    return mc_failed(list->ctx) ? NULL : l;
}

static model *new_model(mc_context *ctx, const settings *s)
{
    model *m = mc_module_new(ctx, "", sizeof *m, &(mc_module_options){.dtype = s->dtype});
    if (!m) return NULL;
    m->blocks =
        mc_block_list_new(&m->module, "blocks", LAYERS, layer_new, layer_forward,
                          &(mc_block_options){.recompute = s->recompute, .config = (void *)s});
    m->head = mc_linear_add(&m->module, "head", DIM, CLASSES, NULL);
    return m;
}

/* A random tensor in the model's dtype. */
static mc_tensor *random_input(mc_tape *t, mc_dtype dtype, mc_shape shape)
{
    uint64_t seed = 3;
    float values[TOKENS * DIM];
    for (int64_t i = 0; i < mc_shape_count(shape); i++) values[i] = noise(&seed);
    mc_tensor *f = mc_tape_input(t, MC_F32, shape, values, false);
    mc_tensor *x = mc_tape_input(t, dtype, shape, NULL, true);
    mc_device *device = mc_tape_device(t);
    int64_t n = mc_shape_count(shape);
    device->kernels->scale(device, n, (mc_matrix){mc_tensor_data(f), MC_F32, n}, 1,
                           (mc_matrix){mc_tensor_data(x), dtype, n}, false);
    return x;
}

typedef struct forward {
    mc_tensor *x, *gate, *loss;
} forward;

static forward model_forward(mc_tape *t, model *m)
{
    mc_dtype dtype = m->module.root->dtype;
    int32_t labels[TOKENS];
    forward f = {.x = random_input(t, dtype, MC_SHAPE(TOKENS, DIM)),
                 .gate = random_input(t, dtype, MC_SHAPE(DIM))};
    for (int i = 0; i < TOKENS; i++) labels[i] = i % 5 ? i % CLASSES : -100;
    f.x->lengths = mc_tape_lengths(t, (int32_t[]){10, 1, 13}, 3, 1);
    mc_tensor *y = mc_block_list_forward(t, m->blocks, f.x, &(mc_call){.extra = {f.gate}});
    mc_tensor *target = mc_tape_input(t, MC_I32, MC_SHAPE(TOKENS), labels, false);
    f.loss = mc_cross_entropy(t, mc_linear_forward(t, m->head, y), target, NULL);
    return f;
}

/* Everything that one step computes, as f32. */
typedef struct result {
    float *values;
    int64_t count;
    size_t peak;
} result;

static result run_step(const settings *s)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
    model *m = new_model(ctx, s);
    result r = {0};
    mc_module_need_gradients(m->module.root, 0);
    size_t baseline = IN_USE(ctx);
    ctx->device->memory.peak = baseline;
    mc_tape *t = mc_tape_begin(ctx);
    forward f = model_forward(t, m);
    assert_int_equal(mc_tape_backward(t, f.loss, NULL), MC_OK);
    r.peak = ctx->device->memory.peak - baseline;
    r.values = calloc((size_t)(2 + TOKENS * DIM + DIM + mc_module_parameter_count(&m->module)),
                      sizeof(float));
    assert_non_null(r.values);
    mc_tensor_read_f32(ctx, f.loss, r.values, 2);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(f.x), r.values + 2, TOKENS * DIM);
    mc_tensor_read_f32(ctx, mc_tensor_gradient(f.gate), r.values + 2 + TOKENS * DIM, DIM);
    r.count = 2 + TOKENS * DIM + DIM;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(&m->module, &it));) {
        mc_parameter_read_gradient(p, r.values + r.count);
        r.count += mc_shape_count(mc_parameter_shape(p));
    }
    assert_good(ctx);
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), baseline);
    mc_context_free(ctx);
    return r;
}

/* The same bits, but for the gradient of the gate, which all blocks have a part in: with full
 * recompute each part is rounded before it is added. */
static void assert_same_bits(const result *a, const result *b, mc_dtype dtype, const char *what)
{
    const int64_t gate = 2 + TOKENS * DIM;
    float tolerance = dtype == MC_F32 ? 1e-6f : 2e-2f, largest = 0;
    assert_int_equal(a->count, b->count);
    for (int64_t i = gate; i < gate + DIM; i++) largest = fmaxf(largest, fabsf(a->values[i]));
    for (int64_t i = 0; i < a->count; i++) {
        bool shared = i >= gate && i < gate + DIM;
        if (shared ? fabsf(a->values[i] - b->values[i]) <= tolerance * largest
                   : memcmp(&a->values[i], &b->values[i], sizeof(float)) == 0)
            continue;
        fail_msg("%s: value %lld is %.9g, without recompute %.9g", what, (long long)i,
                 (double)b->values[i], (double)a->values[i]);
    }
}

static void test_recompute(void **state)
{
    (void)state;
    static const mc_dtype dtypes[] = {MC_F32, MC_F16, MC_BF16};
    for (int d = 0; d < 3; d++) {
        settings none = {MC_RECOMPUTE_NONE, 0, dtypes[d]},
                 some = {MC_RECOMPUTE_SELECTIVE, 0, dtypes[d]},
                 all = {MC_RECOMPUTE_FULL, 0, dtypes[d]};
        result kept = run_step(&none), selective = run_step(&some), full = run_step(&all);
        double magnitude = 0;
        for (int64_t i = 2; i < kept.count; i++) magnitude += fabs((double)kept.values[i]);
        assert_true(isfinite(magnitude) && magnitude > 1);
        assert_same_bits(&kept, &selective, dtypes[d], "selective recompute");
        assert_same_bits(&kept, &full, dtypes[d], "full recompute");
        if (!(kept.peak > selective.peak && selective.peak > full.peak))
            fail_msg("peak memory: none %zu, selective %zu, full %zu", kept.peak, selective.peak,
                     full.peak);
        free(kept.values);
        free(selective.values);
        free(full.values);
    }
}

/* Lists of blocks within blocks, with every pair of ways to recompute. */
static void test_nested_recompute(void **state)
{
    (void)state;
    settings plain = {MC_RECOMPUTE_NONE, MC_RECOMPUTE_NONE, MC_F32};
    result kept = run_step(&plain);
    for (mc_recompute outer = MC_RECOMPUTE_NONE; outer <= MC_RECOMPUTE_FULL; outer++)
        for (mc_recompute inner = MC_RECOMPUTE_NONE; inner <= MC_RECOMPUTE_FULL; inner++) {
            settings s = {outer, inner, MC_F32};
            char what[64];
            snprintf(what, sizeof what, "recompute %d within %d", (int)inner, (int)outer);
            result r = run_step(&s);
            assert_same_bits(&kept, &r, MC_F32, what);
            free(r.values);
        }
    free(kept.values);
}

/* An evaluation holds no more than a block needs. */
static void test_eval_memory(void **state)
{
    mc_context *ctx = *state;
    settings s = {MC_RECOMPUTE_NONE, 0, MC_F32};
    model *m = new_model(ctx, &s);
    mc_module_layout(m->module.root);
    size_t baseline = IN_USE(ctx), one_block = 0;
    for (int layers = 1; layers <= LAYERS; layers += LAYERS - 1) {
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *x = random_input(t, MC_F32, MC_SHAPE(TOKENS, DIM));
        mc_tensor *gate = random_input(t, MC_F32, MC_SHAPE(DIM));
        x->lengths = mc_tape_lengths(t, (int32_t[]){TOKENS}, 1, 1);
        size_t before = IN_USE(ctx);
        ((struct mc_block_list_head *)m->blocks)->count = layers;
        ctx->device->memory.peak = before;
        assert_non_null(mc_block_list_forward(t, m->blocks, x, &(mc_call){.extra = {gate}}));
        if (layers == 1) one_block = ctx->device->memory.peak - before;
        /* the result of the block before is all that comes on top */
        else
            assert_in_range(ctx->device->memory.peak - before, one_block,
                            one_block + TOKENS * DIM * 4);
        assert_int_equal(IN_USE(ctx) - before, TOKENS * DIM * 4);
        mc_tape_end(t);
    }
    assert_int_equal(IN_USE(ctx), baseline);
}

/* ---- segments by hand ------------------------------------------------------------------------ */

static mc_tensor *times_extra(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    (void)user;
    return mc_add(t, mc_mul(t, mc_gelu(t, x), extra[0]), mc_mul(t, extra[1], extra[0]));
}

static void test_checkpoint_extras(void **state)
{
    mc_context *ctx = *state;
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(2), (float[]){1, 2}, false);
        mc_tensor *a = input(t, 2, (float[]){3, 4}), *b = input(t, 2, (float[]){5, 6});
        mc_tensor *extra[] = {a, b, NULL};
        mc_tensor *y = checkpointed ? mc_tape_checkpoint(t, times_extra, NULL, x, extra, 3)
                                    : times_extra(t, NULL, x, extra);
        assert_int_equal(mc_tape_backward(t, y, input(t, 2, (float[]){1, 1})), MC_OK);
        assert_gradient(ctx, a, 5.8413447f, 7.9544997f);
        assert_gradient(ctx, b, 3, 4);
        mc_tape_end(t);
        assert_int_equal(IN_USE(ctx), 0);
    }
}

static mc_tensor *uses_outer(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    (void)extra;
    return mc_mul(t, x, user);
}

static void test_outer_tensor(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2}), *outer = input(t, 2, (float[]){3, 4});
    mc_tensor *y = mc_tape_checkpoint(t, uses_outer, outer, x, NULL, 0);
    assert_int_equal(mc_tape_backward(t, y, x), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "from outside", "(2)", "extra input");
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
    t = mc_tape_begin(ctx); /* one without a gradient may be used */
    x = input(t, 2, (float[]){1, 2});
    outer = mc_tape_input(t, MC_F32, MC_SHAPE(2), (float[]){3, 4}, false);
    y = mc_tape_checkpoint(t, uses_outer, outer, x, NULL, 0);
    assert_int_equal(mc_tape_backward(t, y, x), MC_OK);
    assert_gradient(ctx, x, 3, 8);
    assert_null(mc_tape_checkpoint(t, uses_outer, outer, x, NULL, 2));
    assert_error(ctx, MC_ERR_ARGUMENT, "2 extra inputs", "NULL");
    assert_null(mc_tape_checkpoint(t, uses_outer, outer, x, NULL, 12));
    assert_error(ctx, MC_ERR_ARGUMENT, "12 extra inputs", "at most 11");
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
}

static mc_tensor *same(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    (void)t, (void)user, (void)extra;
    return x;
}

static mc_tensor *twice(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    return mc_tape_checkpoint(t, user ? times_extra : same, user, x, extra, user ? 2 : 0);
}

/* Segments that hand on their input, segments in segments, and one whose input a selective block
 * had dropped. */
static void test_odd_segments(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = input(t, 2, (float[]){1, 2});
    mc_tensor *y = mc_tape_checkpoint(t, twice, NULL, mc_scale(t, x, 2), NULL, 0);
    assert_int_equal(mc_tape_backward(t, mc_add(t, y, x), x), MC_OK);
    assert_gradient(ctx, x, 3, 6);
    mc_tape_end(t);
    t = mc_tape_begin(ctx);
    mc_tensor *extra[] = {input(t, 2, (float[]){3, 4}), input(t, 2, (float[]){5, 6})};
    x = mc_tape_input(t, MC_F32, MC_SHAPE(2), (float[]){1, 2}, false);
    mc_scope scope = mc_scope_begin(t, true);
    mc_tensor *dropped = mc_gelu(t, mc_scale(t, extra[0], 1));
    y = mc_tape_checkpoint(t, twice, t, x, (mc_tensor *[]){dropped, extra[1]}, 2);
    mc_scope_end(t, scope, y);
    assert_null(mc_tensor_data(dropped));
    assert_int_equal(mc_tape_backward(t, y, input(t, 2, (float[]){1, 1})), MC_OK);
    assert_gradient(ctx, extra[1], 2.9959502f, 3.9998734f); /* gelu of 3 and 4 */
    mc_tape_end(t);
    assert_int_equal(IN_USE(ctx), 0);
}

/* ---- block lists ----------------------------------------------------------------------------- */

typedef enum odd { IDENTITY, VIEW, EXTRA, SCALED } odd;

static mc_tensor *odd_forward(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    const mc_module *m = block;
    int kind = m->name[0] - '0';
    if (kind == IDENTITY) return x;
    if (kind == VIEW) return mc_reshape(t, x, MC_SHAPE(2));
    return kind == EXTRA ? mc_add(t, call->extra[0], x) : mc_scale(t, x, 2);
}

static void *odd_new(mc_module *list, const char *name, int index, void *config)
{
    (void)index, (void)config;
    return mc_module_add(list, name, sizeof(mc_module));
}

static void *no_child(mc_module *list, const char *name, int index, void *config)
{
    static mc_module own;
    (void)index;
    if (config) mc_module_add(list, name, sizeof(mc_module));
    return config ? &own : NULL;
}

static mc_tensor *gives_extra(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    (void)block, (void)x;
    return mc_reshape(t, call->extra[0], MC_SHAPE(2));
}

/* Blocks that hand on what they were given: neither that nor the result may be released. */
static void test_blocks_that_hand_on(void **state)
{
    mc_context *ctx = *state;
    mc_module *root = new_root(ctx, MC_F32);
    mc_block_list *list = mc_block_list_new(root, "a", 4, odd_new, odd_forward, NULL);
    mc_block_list *extras = mc_block_list_new(root, "b", 3, odd_new, gives_extra, NULL);
    assert_good(ctx);
    for (mc_recompute r = MC_RECOMPUTE_NONE; r <= MC_RECOMPUTE_FULL; r++)
        for (int training = 0; training < 2; training++) {
            mc_tape *t = training ? mc_tape_begin(ctx) : mc_tape_begin_eval(ctx);
            mc_tensor *x = input(t, 2, (float[]){1, 2}), *e = input(t, 2, (float[]){10, 20});
            mc_block_list_set_recompute(list, r);
            mc_block_list_set_recompute(extras, r);
            mc_tensor *y = mc_block_list_forward(t, list, x, &(mc_call){.extra = {e}});
            assert_values(ctx, y, 2, (float[]){22, 44});
            assert_values(ctx, x, 2, (float[]){1, 2});
            mc_tensor *z = mc_block_list_forward(t, extras, y, &(mc_call){.extra = {e}});
            assert_values(ctx, z, 2, (float[]){10, 20});
            mc_tensor *sum = mc_add(t, z, y);
            if (training) {
                assert_int_equal(mc_tape_backward(t, sum, x), MC_OK);
                assert_gradient(ctx, x, 2, 4);
                assert_gradient(ctx, e, 3, 6);
            }
            mc_tape_end(t);
            assert_int_equal(IN_USE(ctx), 0);
        }
    assert_null(mc_block_list_new(root, "c", 1, NULL, odd_forward, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "block list \"c\"", "NULL");
    assert_null(mc_block_list_new(root, "d", 1, odd_new, NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "block list \"d\"", "NULL");
    mc_block_options options = {.recompute = (mc_recompute)99};
    assert_null(mc_block_list_new(root, "e", 1, odd_new, odd_forward, &options));
    assert_error(ctx, MC_ERR_ARGUMENT, "block list \"e\"", "recompute is 99");
    options = (mc_block_options){.zero_level = (mc_zero_level)99};
    assert_null(mc_block_list_new(root, "f", 1, odd_new, odd_forward, &options));
    assert_error(ctx, MC_ERR_ARGUMENT, "block list \"f\"", "zero_level is 99");
    assert_null(mc_block_list_new(root, "g", 1, no_child, odd_forward, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "block list \"g\"", "block 0 returned NULL");
    options = (mc_block_options){.config = root};
    assert_null(mc_block_list_new(root, "h", 1, no_child, odd_forward, &options));
    assert_error(ctx, MC_ERR_ARGUMENT, "block list \"h\"", "something else", "mc_module_add");
}

static void test_hidden_states(void **state)
{
    mc_context *ctx = *state;
    settings s = {MC_RECOMPUTE_FULL, 0, MC_F32};
    model *m = new_model(ctx, &s);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *hidden[LAYERS], *gate = random_input(t, MC_F32, MC_SHAPE(DIM));
    mc_tensor *x = random_input(t, MC_F32, MC_SHAPE(TOKENS, DIM));
    x->lengths = mc_tape_lengths(t, (int32_t[]){TOKENS}, 1, 1);
    mc_tensor *y =
        mc_block_list_forward(t, m->blocks, x, &(mc_call){.extra = {gate}, .hidden = hidden});
    assert_ptr_equal(hidden[0], x);
    for (int i = 0; i < LAYERS; i++) assert_non_null(mc_tensor_data(hidden[i]));
    assert_non_null(mc_tensor_data(y));
    mc_tape_end(t);
}

/* ---- the steady state ------------------------------------------------------------------------ */

/* From the third step on nothing is asked of the system, and every tape gives back all it took. */
static void test_steady_state(void **state)
{
    mc_context *ctx = *state;
    for (mc_recompute r = MC_RECOMPUTE_NONE; r <= MC_RECOMPUTE_FULL; r++) {
        settings s = {r, 0, MC_BF16};
        model *m = new_model(ctx, &s);
        mc_optimizer *adam = mc_adam_new(ctx, NULL);
        mc_optim_manager *optim =
            mc_optim_manager_new(ctx, &(mc_optim_manager_options){.loss_scale = 64});
        mc_optimizer_add(adam, &m->module);
        mc_optim_manager_add(optim, adam, mc_noam_new(ctx, 1e-3f, 10));
        uint64_t calls = 0;
        size_t held = 0;
        for (int step = 0; step < 6; step++) {
#ifdef MC_FAULT_INJECTION
            mc_fault_fail_at(0, false);
#endif
            mc_optim_manager_zero_grad(optim);
            mc_tape *t = mc_tape_begin(ctx);
            mc_optim_manager_backward(optim, t, model_forward(t, m).loss);
            mc_optim_manager_clip_grad_norm(optim, 1);
            mc_optim_manager_step(optim);
            mc_tape_end(t);
            assert_good(ctx);
            if (step > 1) {
                assert_int_equal(ctx->device->memory.system_calls, calls);
                assert_int_equal(IN_USE(ctx), held);
#ifdef MC_FAULT_INJECTION
                assert_int_equal(mc_fault_count(), 0);
#endif
            }
            calls = ctx->device->memory.system_calls;
            held = IN_USE(ctx);
        }
        mc_optim_manager_free(optim);
        mc_optimizer_free(adam);
        mc_module_free(&m->module);
        assert_int_equal(IN_USE(ctx), 0);
    }
#ifndef MC_FAULT_INJECTION
    printf("SKIPPED: counting malloc (built without MC_FAULT_INJECTION)\n");
#endif
}

/* Ending a tape in the middle of a forward pass or after a failed backward gives everything
 * back. */
static void test_memory_after_errors(void **state)
{
    mc_context *ctx = *state;
    for (mc_recompute r = MC_RECOMPUTE_NONE; r <= MC_RECOMPUTE_FULL; r++) {
        settings s = {r, 0, MC_F32};
        model *m = new_model(ctx, &s);
        mc_module_need_gradients(m->module.root, 0);
        size_t baseline = IN_USE(ctx);
        mc_tape *t = mc_tape_begin(ctx);
        forward f = model_forward(t, m);
        mc_tape_end(t);
        assert_int_equal(IN_USE(ctx), baseline);
        t = mc_tape_begin(ctx);
        f = model_forward(t, m);
        mc_tape_release(t, f.loss);
        mc_tape_backward(t, f.loss, NULL);
        assert_true(mc_failed(ctx));
        assert_null(mc_gelu(t, f.x));
        mc_tape_end(t);
        assert_int_equal(IN_USE(ctx), baseline);
        mc_clear_error(ctx);
        mc_module_free(&m->module);
    }
}

/* ---- fused pairs ----------------------------------------------------------------------------- */

static int pairs; /* that backward has found */

static void link_backward(mc_tape *t, mc_node *node)
{
    pairs += node->fused != NULL;
    assert_true(!node->fused || node->fused == node->inputs[0]->node);
    mc_gradient_share(t, node->inputs[0], node->output->gradient);
}

static bool link_fuses(const mc_node *node, const mc_node *before)
{
    return before->op->backward == link_backward && node->inputs[0] == before->output;
}

static const mc_op link_op = {.name = "link", .backward = link_backward, .fuses = link_fuses};

/* y = x. */
static mc_tensor *link_to(mc_tape *t, mc_tensor *x)
{
    mc_tensor *y = mc_tape_view(t, x, x->shape, 0);
    mc_tape_record(t, &link_op, y, 0, 1, &x);
    return y;
}

static mc_tensor *one_pair(mc_tape *t, mc_tensor *x) { return link_to(t, link_to(t, x)); }

static mc_tensor *pair_of_three(mc_tape *t, mc_tensor *x) { return link_to(t, one_pair(t, x)); }

static mc_tensor *read_twice(mc_tape *t, mc_tensor *x)
{
    mc_tensor *a = link_to(t, x);
    return mc_add(t, link_to(t, a), a);
}

static mc_tensor *not_in_a_row(mc_tape *t, mc_tensor *x)
{
    mc_tensor *a = link_to(t, x), *other = mc_scale(t, x, 2);
    return mc_add(t, link_to(t, a), other);
}

static mc_tensor *over_a_border(mc_tape *t, mc_tensor *x)
{
    mc_scope scope = mc_scope_begin(t, false);
    mc_tensor *a = link_to(t, x);
    mc_scope_end(t, scope, a);
    return link_to(t, a);
}

static mc_tensor *pair_segment(mc_tape *t, void *user, mc_tensor *x, mc_tensor *const *extra)
{
    (void)user, (void)extra;
    return one_pair(t, x);
}

/* Inside of the segment, and not with what is before or after it. */
static mc_tensor *around_a_segment(mc_tape *t, mc_tensor *x)
{
    return link_to(t, mc_tape_checkpoint(t, pair_segment, NULL, link_to(t, x), NULL, 0));
}

static void test_fused_pairs(void **state)
{
    static const struct {
        mc_tensor *(*graph)(mc_tape *t, mc_tensor *x);
        int pairs;
    } rows[] = {{one_pair, 1},     {pair_of_three, 2}, {read_twice, 0},
                {not_in_a_row, 0}, {over_a_border, 0}, {around_a_segment, 1}};
    mc_context *ctx = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *x = input(t, 2, (float[]){1, 2}), *d = input(t, 2, (float[]){1, -1});
        mc_tensor *y = rows[i].graph(t, x);
        pairs = 0;
        assert_int_equal(mc_tape_backward(t, y, d), MC_OK);
        assert_int_equal(pairs, rows[i].pairs);
        mc_tape_end(t);
    }
    assert_int_equal(IN_USE(ctx), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_gradient_of_inputs),
        TEST(test_shared_gradients),
        TEST(test_backward_twice),
        TEST(test_wrong_backward),
        TEST(test_wrong_lengths),
        TEST(test_several_tapes),
        TEST(test_used_on_another_tape),
        TEST(test_eval_tape),
        TEST(test_context_tensors),
        TEST(test_free_tensor_of_tape),
        TEST(test_recompute),
        TEST(test_nested_recompute),
        TEST(test_eval_memory),
        TEST(test_checkpoint_extras),
        TEST(test_outer_tensor),
        TEST(test_odd_segments),
        TEST(test_blocks_that_hand_on),
        TEST(test_hidden_states),
        TEST(test_steady_state),
        TEST(test_memory_after_errors),
        TEST(test_fused_pairs),
        TEST(test_used_after_its_end),
        TEST(test_module_freed_before_backward),
        TEST(test_freed_before_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
