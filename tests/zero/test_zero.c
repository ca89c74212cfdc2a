/* Buckets where something fails: each allocation of the device and each collective in turn, in a
 * training step and in a move to another layout, at every level. The group has two ranks, of which
 * the other one does what this one does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "core/dist/comm_internal.h"
#include "core/nn/stored.h"
#include "tests/faults.h"

/* ---- a group with a mirror ------------------------------------------------------------------- */

static struct {
    long count, fail_at; /* collectives are begun and finished: two each */
} calls;

static mc_status count_call(mc_comm *c)
{
    if (++calls.count != calls.fail_at) return MC_OK;
    return mc_fail(c->ctx, MC_ERR_DEVICE, "a collective was made to fail");
}

static mc_status mirror_begin(mc_comm *c, mc_comm_request *r)
{
    const mc_comm_call *k = &r->call;
    size_t bytes = (size_t)k->count * mc_dtype_size(k->dtype);
    if (count_call(c)) return MC_ERR_DEVICE;
    if (k->kind == MC_COMM_ALL_GATHER) {
        memmove((char *)k->dst, k->src, bytes);
        memmove((char *)k->dst + bytes, k->dst, bytes);
        return MC_OK;
    }
    assert_int_equal(k->dtype, MC_F32);
    for (int64_t i = 0; i < k->count; i++) ((float *)k->dst)[i] = 2 * ((const float *)k->src)[i];
    return MC_OK;
}

static mc_status mirror_finish(mc_comm *c, mc_comm_request *r)
{
    (void)r;
    return count_call(c);
}

static mc_comm_transport mirror;

static void add_mirror(mc_context *ctx)
{
    mc_comm *comm = mc_comm_new(ctx, NULL, 1, 0, NULL);
    mirror = *comm->transport;
    mirror.begin = mirror_begin;
    mirror.finish = mirror_finish;
    comm->transport = &mirror;
    comm->size = 2;
    ctx->mesh.shard = (mc_rank_group){.comm = comm, .size = 2, .rank = 0};
}

/* ---- a model --------------------------------------------------------------------------------- */

enum { DIM = 16 /* as FP8 needs */, BLOCKS = 3, ROWS = 4, STEPS = 3 };

typedef struct block {
    mc_module module;
    mc_linear *up;
} block;

typedef struct model {
    mc_module module;
    mc_block_list *blocks;
    mc_linear *head;
} model;

static void *new_block(mc_module *parent, const char *name, int index, void *config)
{
    (void)index, (void)config;
    block *b = mc_module_add(parent, name, sizeof *b);
    if (b) b->up = mc_linear_add(&b->module, "up", DIM, DIM, NULL);
    return b;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    block *b = object;
    (void)call;
    return mc_tanh(t, mc_linear_forward(t, b->up, x));
}

typedef struct run {
    mc_context *ctx;
    model *m;
    mc_optimizer *adam;
    mc_optim_manager *optim;
} run;

static run start_with(mc_zero_level level, bool offload, mc_recompute recompute,
                      const mc_recipe *recipe)
{
    run r = {.ctx = mc_init_distributed(&(mc_init_options){.seed = 3, .log = ignore_line})};
    add_mirror(r.ctx);
    r.m = mc_module_new(r.ctx, "", sizeof *r.m, &(mc_module_options){.zero_level = level});
    r.m->blocks = mc_block_list_new(&r.m->module, "blocks", BLOCKS, new_block, block_forward,
                                    &(mc_block_options){level, recompute, NULL});
    r.m->head = mc_linear_add(&r.m->module, "head", DIM, 3, NULL);
    mc_module_set_recipe(&r.m->module, recipe);
    mc_adam_options options = {.lr = 0.1f, .eps = 1e-3f};
    r.adam = offload ? mc_adam_offload_new(r.ctx, &options) : mc_adam_new(r.ctx, &options);
    r.optim = mc_optim_manager_new(r.ctx, NULL);
    mc_optimizer_add(r.adam, &r.m->module);
    mc_optim_manager_add(r.optim, r.adam, NULL);
    assert_good(r.ctx);
    hook_device(r.ctx);
    return r;
}

static run start(mc_zero_level level, bool offload)
{
    return start_with(level, offload, MC_RECOMPUTE_NONE, NULL);
}

static mc_zero *zero_of(run *r) { return &r->m->module.root->zero; }

/* Whether it failed before parameters were written. */
static bool train_step(run *r, int step)
{
    float x[ROWS * DIM];
    int32_t label[ROWS];
    for (int i = 0; i < ROWS * DIM; i++) x[i] = (float)((i * 7 + step * 5) % 11) / 11;
    for (int i = 0; i < ROWS; i++) label[i] = (i + step) % 3;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_tensor *h = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, DIM), x, false);
    h = mc_block_list_forward(t, r->m->blocks, h, NULL);
    mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(ROWS), label, false);
    mc_tensor *loss = mc_cross_entropy(t, mc_linear_forward(t, r->m->head, h), labels, NULL);
    mc_optim_manager_backward(r->optim, t, loss);
    bool early = mc_failed(r->ctx);
    mc_optim_manager_step(r->optim);
    mc_tape_end(t);
    return early;
}

enum { MOST = 1 << 11 };

static size_t read_all(run *r, float *values)
{
    size_t count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(&r->m->module, &it));) {
        mc_parameter_read(p, values + count);
        count += (size_t)mc_shape_count(mc_parameter_shape(p));
        assert_true(count <= MOST);
    }
    mc_module_wait(&r->m->module);
    assert_good(r->ctx);
    return count;
}

/* ---- failures -------------------------------------------------------------------------------- */

typedef enum fault { OF_DEVICE, OF_HOST, COLLECTIVE, FAULTS } fault; /* allocations, or calls */

/* Allocations of the host can be made to fail in builds with MC_FAULT_INJECTION only. */
static bool can_fail(fault f) { return f != OF_HOST || is_available(HOST); }

static void begin_faults(fault f, long nth)
{
    calls.count = 0;
    calls.fail_at = f == COLLECTIVE ? nth : 0;
    fail_at(f == OF_HOST ? HOST : DEVICE, f == COLLECTIVE ? 0 : nth, false);
}

/* Ends them and the error; whether there was one. */
static bool end_faults(run *r, fault f, long *count)
{
    long allocations = stop_failing(f == OF_HOST ? HOST : DEVICE);
    *count = f == COLLECTIVE ? calls.count : allocations;
    calls.fail_at = 0;
    bool failed = mc_failed(r->ctx);
    mc_status status = f == COLLECTIVE ? MC_ERR_DEVICE : MC_ERR_NOMEM;
    if (failed) assert_int_equal(mc_error_status(r->ctx), status);
    mc_clear_error(r->ctx);
    r->ctx->mesh.shard.comm->broken = false;
    return failed;
}

/* Between steps, after a failure too: states agree with memory and with what is under way, and no
 * values are left gathered. */
static void check_states(run *r)
{
    mc_zero *z = zero_of(r);
    for (int i = 0; i < z->bucket_count; i++) {
        const mc_bucket *b = &z->buckets[i];
        bool shares = mc_bucket_shares_values(b);
        assert_true(!b->gradient.request == (b->gradient.state != MC_GRADIENT_REDUCING));
        assert_true(!b->values.request == (b->values.state != MC_VALUES_GATHERING));
        assert_true((b->values.data == NULL) == (b->values.state == MC_VALUES_RESTING));
        assert_int_equal(b->values.state, shares ? MC_VALUES_RESTING : MC_VALUES_READY);
        assert_int_equal(b->values.users + b->values.running + b->values.retained, 0);
        assert_int_equal(b->bytes.state, MC_VALUES_RESTING);
        assert_true(!b->bytes.request && !b->bytes.data);
        assert_int_equal(b->bytes.users + b->bytes.running + b->bytes.retained, 0);
        if (mc_bucket_shares_gradient(b))
            assert_true(!b->gradient.data == (b->gradient.state == MC_GRADIENT_NONE ||
                                              b->gradient.state == MC_GRADIENT_VOID));
    }
}

/* A step after whose failure gradients are void is not taken before zero_grad. */
static void check_void(run *r)
{
    bool lost = false;
    for (int i = 0; i < zero_of(r)->bucket_count; i++)
        lost |= zero_of(r)->buckets[i].gradient.state == MC_GRADIENT_VOID;
    if (!lost) return;
    mc_optim_manager_step(r->optim);
    assert_int_equal(mc_error_status(r->ctx), MC_ERR_STATE);
    assert_non_null(strstr(mc_error_message(r->ctx), "zero_grad"));
    mc_clear_error(r->ctx);
}

static void fail_in_step(mc_zero_level level, mc_recompute recompute, const mc_recipe *recipe,
                         fault f, const float *expected, int *lost)
{
    long count = 0, nth = 0;
    float values[MOST];
    bool failed = true;
    while (failed || nth <= count) {
        run r = start_with(level, false, recompute, recipe);
        train_step(&r, 0);
        assert_good(r.ctx);
        begin_faults(f, ++nth);
        bool early = train_step(&r, 1);
        failed = end_faults(&r, f, &count);
        check_states(&r);
        for (int i = 0; i < zero_of(&r)->bucket_count; i++)
            *lost += zero_of(&r)->buckets[i].gradient.state == MC_GRADIENT_VOID;
        check_void(&r);
        if (failed) train_step(&r, 1);
        train_step(&r, 2);
        assert_good(r.ctx);
        size_t n = read_all(&r, values);
        /* the parameters that a failed step has written are its own */
        if (!failed || early) assert_memory_equal(values, expected, n * sizeof *values);
        mc_context_free(r.ctx);
    }
    assert_true(f == OF_HOST || count > 4);
}

static void check_steps(mc_zero_level level, const mc_recipe *recipe)
{
    float expected[MOST];
    int lost = 0;
    run r = start_with(level, false, MC_RECOMPUTE_NONE, recipe);
    for (int step = 0; step < STEPS; step++) train_step(&r, step);
    read_all(&r, expected);
    mc_context_free(r.ctx);
    for (fault f = 0; f < FAULTS; f++)
        for (mc_recompute how = MC_RECOMPUTE_NONE; how <= MC_RECOMPUTE_FULL; how += 2)
            if (can_fail(f) && (how == MC_RECOMPUTE_NONE || level == MC_ZERO_3))
                fail_in_step(level, how, recipe, f, expected, &lost);
    assert_true(lost > 0);
}

static void test_steps(void **state)
{
    (void)state;
    for (mc_zero_level level = MC_ZERO_0; level <= MC_ZERO_3; level++) check_steps(level, NULL);
}

/* Blocks gather the bytes of their weights. */
static void test_steps_in_8_bits(void **state)
{
    (void)state;
    check_steps(MC_ZERO_3, &(mc_recipe){.fp8 = MC_FP8_ALL});
    check_steps(MC_ZERO_3, &(mc_recipe){.fp8 = MC_FP8_ALL, .scaling = MC_FP8_CURRENT});
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* A rank's arrays of all buckets, one after the other. */
static size_t snapshot(run *r, float *to)
{
    size_t n = 0;
    mc_zero *z = zero_of(r);
    for (int i = 0; i < z->bucket_count; i++) {
        const mc_bucket *b = &z->buckets[i];
        size_t held = (size_t)mc_bucket_held(b);
        bool shares = mc_bucket_shares_values(b);
        size_t values = (size_t)(shares ? b->share : b->count);
        memcpy(to + n, shares ? b->values_share : b->values.data, values * sizeof *to);
        n += values;
        for (int k = 0; k < 2 && b->state[k]; k++, n += held)
            memcpy(to + n, b->state[k], held * sizeof *to);
        assert_true(n <= 4 * MOST);
    }
    return n;
}

/* Freezes a part of each block, and thaws it, while each allocation and each collective fails. */
static void fail_in_move(mc_zero_level level, fault f, bool offload)
{
    static float before[4 * MOST], after[4 * MOST], values[MOST], moved[MOST];
    run r = start(level, offload);
    train_step(&r, 0);
    for (int frozen = 1; frozen >= 0; frozen--) {
        long count = 0, nth = 0;
        size_t n = read_all(&r, values), size = snapshot(&r, before);
        mc_module_set_trainable(&r.m->module, "*.weight", !frozen);
        bool failed = true;
        while (failed) {
            const mc_bucket *buckets = zero_of(&r)->buckets;
            begin_faults(f, ++nth);
            mc_module_layout(r.m->module.root);
            failed = end_faults(&r, f, &count);
            if (!failed) break;
            assert_ptr_equal(zero_of(&r)->buckets, buckets);
            check_states(&r);
            assert_int_equal(snapshot(&r, after), size);
            assert_memory_equal(after, before, size * sizeof *after);
        }
        if (f != OF_HOST) assert_int_equal(nth, count + 1);
        check_states(&r);
        assert_int_equal(read_all(&r, moved), n);
        assert_memory_equal(moved, values, n * sizeof *values);
    }
    train_step(&r, 1);
    train_step(&r, 2);
    assert_good(r.ctx);
    run whole = start(level, offload); /* the same without moves */
    for (int step = 0; step < STEPS; step++) train_step(&whole, step);
    assert_int_equal(read_all(&r, moved), read_all(&whole, values));
    assert_memory_equal(moved, values, sizeof(float) * read_all(&r, moved));
    mc_context_free(whole.ctx);
    mc_context_free(r.ctx);
}

static void test_moves(void **state)
{
    (void)state;
    for (mc_zero_level level = MC_ZERO_0; level <= MC_ZERO_3; level++)
        for (fault f = 0; f < FAULTS; f++)
            for (int offload = 0; offload < 2 && can_fail(f); offload++)
                fail_in_move(level, f, offload);
}

/* ---- memory of sums -------------------------------------------------------------------------- */

static int count_sums(run *r)
{
    int count = 0;
    mc_zero *z = zero_of(r);
    for (int i = 0; i < z->bucket_count; i++) count += z->buckets[i].sum.data != NULL;
    return count;
}

/* All buckets but that of the blocks' biases, whose gradients are WHOLE. */
static int shared_count(run *r) { return zero_of(r)->bucket_count - 1; }

/* A sum is claimed when its first reduction lands, or by the step, and freed by zero_grad; what is
 * read of gradients does not depend on it. */
static void test_sums(void **state)
{
    (void)state;
    float gradient[DIM * DIM];
    run r = start(MC_ZERO_3, false);
    mc_parameter *p = mc_module_find_parameter(&r.m->module, "blocks.0.up.weight");
    assert_non_null(p);
    mc_module_need_gradients(r.m->module.root, 1);
    assert_int_equal(count_sums(&r), 0);
    train_step(&r, 0);
    assert_int_equal(count_sums(&r), shared_count(&r));
    mc_parameter_read_gradient(p, gradient);
    assert_true(gradient[0] != 0);
    mc_optim_manager_zero_grad(r.optim);
    assert_int_equal(count_sums(&r), 0);
    mc_parameter_read_gradient(p, gradient);
    for (int i = 0; i < DIM * DIM; i++) assert_true(gradient[i] == 0);
    assert_true(p->stored->bucket->gradient.needed);
    mc_optim_manager_prepare(r.optim); /* parameters that take no part in a step have zeros */
    assert_int_equal(count_sums(&r), shared_count(&r));
    assert_good(r.ctx);
    mc_context_free(r.ctx);
}

/* ---- transitions ----------------------------------------------------------------------------- */

static void check_refused(run *r, mc_status status, const char *from, const char *to)
{
    assert_int_equal(status, MC_ERR_STATE);
    assert_non_null(strstr(mc_error_message(r->ctx), from));
    assert_non_null(strstr(mc_error_message(r->ctx), to));
    mc_clear_error(r->ctx);
}

static void test_transitions(void **state)
{
    (void)state;
    run r = start(MC_ZERO_3, false);
    mc_module_need_gradients(r.m->module.root, 1);
    mc_zero *z = zero_of(&r);
    mc_bucket *b = &z->buckets[1]; /* a block's */
    check_refused(&r, mc_values_go(z, b, &b->values, MC_VALUES_STALE), "RESTING", "STALE");
    check_refused(&r, mc_gradient_go(z, b, MC_GRADIENT_SUMMED), "NONE", "SUMMED");
    b->sum.state = MC_SUM_WIDE;
    check_refused(&r, mc_sum_go(z, b, MC_SUM_NARROW), "WIDE", "NARROW");
    assert_int_equal(mc_sum_go(z, b, MC_SUM_EMPTY), MC_OK);
    assert_int_equal(b->sum.state, MC_SUM_EMPTY);
    mc_context_free(r.ctx);
}

int main(void)
{
    setenv("MC_OFFLOAD", "always", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transitions),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_steps_in_8_bits),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
