/* Gradients in the parameters' dtype on one rank: which are, what a step makes of them, and when
 * they become f32 after all. Runs on the device that MC_TEST_DEVICE names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <omp.h>
#include "core/autograd/blank_internal.h"
#include "core/autograd/step.h"
#include "tests/device_choice.h"
#include "tests/optim/optim_test.h"

enum { STEPS = 6, TOKENS = 24, VOCABULARY = 53, PASSES = 4, MOST = 1 << 16 };

typedef enum optimizers { ADAM, SGD, OWN, TWO } optimizers;

typedef struct setting {
    mc_dtype dtype;
    mc_grad_dtype wire;
    optimizers optimizers;
    int told, passes; /* backward passes a step: as the manager is told (0: 1), and in fact */
    bool rounds;      /* gradients of blocks are rounded before each step */
    bool recorded;    /* through mc_step_run */
    bool full;        /* recompute */
    bool looks;       /* at gradients between passes and before the step */
    bool frozen;      /* the embedding */
    bool thaws;       /* a block, after the third step's backward */
    bool overlap;     /* tapes end with the step */
    bool stray;       /* after the fourth step a backward pass adds to gradients that are spent */
    double loss_scale;
} setting;

typedef struct outcome {
    double loss[STEPS], norm[STEPS];
    int64_t skipped;
    size_t bytes;     /* of all gradients */
    int wide, narrow; /* blocks whose gradients are f32 at the end, and others */
    float values[MOST];
} outcome;

typedef struct work {
    const setting *s;
    mc_context *ctx;
    mc_model *gpt2;
    mc_optim_manager *optim;
    int step;
    mc_tensor *ids[PASSES], *labels[PASSES]; /* i32 (1, TOKENS) and (TOKENS) */
} work;

static mc_module_root *root_of(const work *w) { return mc_model_module(w->gpt2)->root; }

static bool of_block(const mc_bucket *b) { return b->in_block; }

static mc_model *new_model(mc_context *ctx, const setting *s)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = 32;
    c.dim_ff = 64;
    c.layers = 3;
    c.heads = 4;
    c.positions = TOKENS;
    c.init_std = c.embedding_std = c.ffn_std = 0.05f;
    c.dropout = c.embedding_dropout = c.attention_dropout = 0;
    mc_model *gpt2 = mc_gpt2_new(
        ctx, &c, NULL,
        &(mc_load_options){.dtype = s->dtype,
                           .recompute = s->full ? MC_RECOMPUTE_FULL : MC_RECOMPUTE_NONE});
    mc_module *m = mc_model_module(gpt2);
    if (s->thaws) mc_module_set_trainable(m, "*.layers.1.*", false);
    if (s->frozen) mc_module_set_trainable(m, "*embed*", false);
    return gpt2;
}

/* Plain gradient descent that knows of f32 gradients only, and reads `update` as CPUs can. */
static mc_status own_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    (void)settings;
    if (!range->gradient || range->rounded)
        return mc_fail(ctx, MC_ERR_STATE, "an optimizer that reads f32 was given something else");
    mc_device *device = ctx->device;
    if (range->update->skip) return MC_OK;
    float factor = -(float)range->update->lr * range->update->gradient_scale;
    mc_matrix g = {(void *)(uintptr_t)range->gradient, MC_F32, 0}, p = {range->master, MC_F32, 0};
    mc_matrix stored = {range->parameter, range->dtype, 0};
    mc_status status = device->kernels->scale(device, range->count, g, factor, p, true);
    return status ? status : device->kernels->scale(device, range->count, p, 1, stored, false);
}

static const mc_optimizer_kind OWN_KIND = {.name = "own", .step = own_step};

static void add_optimizers(mc_context *ctx, const setting *s, mc_module *m, mc_optim_manager *optim)
{
    mc_adam_options of_adam = {.lr = 3e-3f, .weight_decay = 0.02f, .no_decay_bias_norm = true};
    mc_optimizer *o = NULL, *second = NULL;
    if (s->optimizers == SGD)
        o = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.1f, .momentum = 0.9f});
    else if (s->optimizers == OWN)
        o = mc_optimizer_new(ctx, &OWN_KIND, &(mc_optimizer_options){.lr = 0.1f}, NULL, 0);
    else
        o = mc_adam_new(ctx, &of_adam);
    if (s->optimizers == TWO) {
        second = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.1f});
        mc_optimizer_add_group(second, m, "*.bias", NULL);
        mc_optimizer_add_group(o, m, "*.weight", NULL);
        mc_optim_manager_add(optim, second, NULL);
    } else {
        mc_optimizer_add(o, m);
    }
    mc_optim_manager_add(optim, o, NULL);
}

static work new_work(mc_context *ctx, const setting *s)
{
    work w = {.s = s, .ctx = ctx};
    ctx->grad_dtype = s->wire;
    w.gpt2 = new_model(ctx, s);
    w.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.micro_steps = s->told,
                                                                    .loss_scale = s->loss_scale,
                                                                    .loss_scale_factor = 64,
                                                                    .max_grad_norm = 1});
    add_optimizers(ctx, s, mc_model_module(w.gpt2), w.optim);
    for (int i = 0; i < s->passes; i++) {
        w.ids[i] = mc_tensor_new(ctx, MC_I32, MC_SHAPE(1, TOKENS));
        w.labels[i] = mc_tensor_new(ctx, MC_I32, MC_SHAPE(TOKENS));
    }
    return w;
}

static void fill_batch(work *w, int step)
{
    for (int pass = 0; pass < w->s->passes; pass++) {
        int32_t ids[TOKENS], labels[TOKENS], token = pass;
        for (int i = 0; i < TOKENS; i++) {
            ids[i] = token;
            token = (token * 3 + 1 + step % 3) % VOCABULARY;
            labels[i] = (i * 7 + step) % 5 ? token : -100;
        }
        mc_tensor_write(w->ids[pass], ids, sizeof ids);
        mc_tensor_write(w->labels[pass], labels, sizeof labels);
    }
}

/* Makes f32 gradients of blocks what they would be in the parameters' dtype. */
static void round_gradients(work *w)
{
    mc_device *device = w->ctx->device;
    mc_blank_fill_all(w->ctx);
    for (int i = 0; i < root_of(w)->zero.bucket_count; i++) {
        mc_bucket *b = &root_of(w)->zero.buckets[i];
        if (!b->gradient.data || !of_block(b)) continue;
        assert_int_equal(b->gradient.dtype, MC_F32);
        size_t bytes = (size_t)b->count * mc_dtype_size(b->dtype);
        mc_matrix g = {b->gradient.data, MC_F32, b->count},
                  rounded = {device->alloc(device, bytes), b->dtype, b->count};
        assert_non_null(rounded.data);
        device->kernels->scale(device, b->count, g, 1, rounded, false);
        device->kernels->scale(device, b->count, rounded, 1, g, false);
        device->free(device, rounded.data, bytes);
    }
}

static void look(work *w)
{
    mc_inspection *table = mc_inspect(mc_model_module(w->gpt2), NULL);
    mc_inspection_free(table);
}

static void step(mc_context *ctx, void *user)
{
    work *w = user;
    mc_optim_manager_zero_grad(w->optim);
    mc_tape *tapes[PASSES];
    for (int i = 0; i < w->s->passes; i++) {
        mc_tape *t = tapes[i] = mc_tape_begin(ctx);
        mc_model_output out = mc_model_forward(t, w->gpt2, &(mc_model_input){.ids = w->ids[i]});
        if (w->s->looks) look(w);
        mc_tensor *loss = mc_model_loss(t, w->gpt2, out.last_hidden, w->labels[i]);
        mc_optim_manager_backward(w->optim, t, loss);
        if (w->s->looks) look(w);
        if (!w->s->overlap) mc_tape_end(t);
    }
    for (int i = 0; i < w->s->passes && w->s->overlap; i++) mc_tape_end(tapes[i]);
    if (w->s->rounds) round_gradients(w);
    if (w->s->thaws && w->step == 2)
        mc_module_set_trainable(mc_model_module(w->gpt2), "*.layers.1.*", true);
    mc_optim_manager_step(w->optim);
}

static void stray_pass(work *w)
{
    mc_tape *t = mc_tape_begin(w->ctx);
    mc_model_output out = mc_model_forward(t, w->gpt2, &(mc_model_input){.ids = w->ids[0]});
    mc_tape_backward(t, mc_model_loss(t, w->gpt2, out.last_hidden, w->labels[0]), NULL);
    mc_tape_end(t);
}

static void count_gradients(const work *w, outcome *o)
{
    for (int i = 0; i < root_of(w)->zero.bucket_count; i++) {
        const mc_bucket *b = &root_of(w)->zero.buckets[i];
        if (!b->gradient.data) continue;
        o->bytes += mc_bucket_gradient_bytes(b);
        o->wide += of_block(b) && b->gradient.dtype == MC_F32;
        o->narrow += b->gradient.dtype != MC_F32;
        if (!of_block(b)) assert_int_equal(b->gradient.dtype, MC_F32);
    }
}

static void read_values(const work *w, outcome *o)
{
    mc_parameter_iterator it = {0};
    size_t at = 0;
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(w->gpt2), &it));) {
        assert_true(at + (size_t)mc_shape_count(p->shape) <= MOST);
        mc_parameter_read(p, o->values + at);
        at += (size_t)mc_shape_count(p->shape);
    }
}

static mc_status train_on(mc_context *ctx, const setting *s, outcome *o)
{
    work w = new_work(ctx, s);
    memset(o, 0, sizeof *o);
    for (w.step = 0; w.step < STEPS && !mc_failed(ctx); w.step++) {
        fill_batch(&w, w.step);
        if (s->recorded)
            mc_step_run(ctx, 1, step, &w);
        else
            step(ctx, &w);
        mc_step_report report = {0};
        mc_optim_manager_report(w.optim, 0, &report);
        o->loss[w.step] = report.loss;
        o->norm[w.step] = report.grad_norm;
        if (s->stray && w.step == 3) stray_pass(&w);
    }
    o->skipped = mc_optim_manager_skipped_steps(w.optim);
    if (mc_failed(ctx)) return mc_error_status(ctx);
    count_gradients(&w, o);
    read_values(&w, o);
    return mc_error_status(ctx);
}

static void train(const setting *s, outcome *o)
{
    mc_context *ctx = test_context(3);
    assert_good(ctx);
    train_on(ctx, s, o);
    assert_good(ctx);
    mc_context_free(ctx);
}

static outcome one, two;

static void assert_same(const char *what)
{
    for (int i = 0; i < STEPS; i++) {
        if (one.loss[i] != two.loss[i] || one.norm[i] != two.norm[i])
            fail_msg("%s, step %d: loss %.9g and %.9g, norm %.9g and %.9g", what, i, one.loss[i],
                     two.loss[i], one.norm[i], two.norm[i]);
    }
    assert_int_equal(one.skipped, two.skipped);
    assert_memory_equal(one.values, two.values, sizeof one.values);
}

static void assert_alike(double tolerance, const char *what)
{
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(one.loss[i] - two.loss[i]) <= tolerance * fabs(two.loss[i])))
            fail_msg("%s, step %d: loss %.9g and %.9g", what, i, one.loss[i], two.loss[i]);
    if (!(fabs(one.norm[0] - two.norm[0]) <= two.norm[0] / 256))
        fail_msg("%s: norm %.9g and %.9g", what, one.norm[0], two.norm[0]);
    assert_true(two.loss[STEPS - 1] < two.loss[0]);
}

static bool on_gpu(void)
{
    const char *name = getenv("MC_TEST_DEVICE");
    return name && strcmp(name, "cuda") == 0;
}

static const mc_dtype dtypes[] = {MC_BF16, MC_F16};
static const char *const names[] = {"Adam", "SGD", "an optimizer of one's own", "two optimizers"};

/* What they are in memory, and that a step is one with rounded gradients. */
static void test_rounded(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (optimizers o = ADAM; o <= (on_gpu() ? SGD : OWN); o++)
            for (int full = 0; full < 2; full++) {
                setting s = {.dtype = dtypes[d], .optimizers = o, .passes = 1, .full = full};
                s.loss_scale = dtypes[d] == MC_F16 ? 1024 : 0;
                s.rounds = true;
                train(&s, &two);
                assert_true(two.wide == 3 && !two.narrow);
                s.rounds = false;
                s.wire = MC_GRAD_PARAMETER;
                train(&s, &one);
                assert_true(one.narrow == 3 && !one.wide);
                assert_true(one.bytes < 0.7 * (double)two.bytes);
                if (on_gpu()) /* where products of other dtypes may be made in another order */
                    assert_alike(1e-2, names[o]);
                else
                    assert_same(names[o]);
            }
}

/* Steps of several passes, as they were told of, sum in f32 whatever gradients may travel as. */
static void test_told_of_several(void **state)
{
    (void)state;
    for (int passes = 1; passes <= PASSES; passes += PASSES - 1) {
        setting s = {.dtype = MC_BF16, .told = PASSES, .passes = passes};
        train(&s, &two);
        s.wire = MC_GRAD_PARAMETER;
        train(&s, &one);
        assert_true(one.wide == 3 && !one.narrow && one.bytes == two.bytes);
        assert_same("told of several");
    }
}

/* Passes that nobody was told of are summed in f32 as well, from the second on. */
static void test_not_told(void **state)
{
    (void)state;
    for (int mode = 0; mode < 8; mode++) {
        setting s = {
            .dtype = MC_BF16, .passes = 3, .frozen = mode & 1, .full = mode & 2, .looks = mode & 4};
        train(&s, &two);
        s.wire = MC_GRAD_PARAMETER;
        train(&s, &one);
        assert_true(one.wide == 3 && !one.narrow && one.bytes == two.bytes);
        assert_alike(1e-2, "passes that nobody was told of");
    }
    setting s = {.dtype = MC_BF16, .passes = 3, .overlap = true};
    train(&s, &two);
    s.wire = MC_GRAD_PARAMETER;
    train(&s, &one);
    assert_true(one.narrow == 3); /* the memory is in use */
    assert_alike(1e-2, "tapes that overlap");
}

/* Another way to the same. */
static void test_looks_and_recordings(void **state)
{
    (void)state;
    for (optimizers o = ADAM; o <= (on_gpu() ? SGD : OWN); o++) {
        setting s = {.dtype = MC_BF16, .wire = MC_GRAD_PARAMETER, .optimizers = o, .passes = 1};
        train(&s, &two);
        s.looks = true;
        train(&s, &one);
        assert_true(one.narrow == 3);
        if (on_gpu()) /* where adding to zeros may be another product than writing */
            assert_alike(1e-2, "looked at");
        else
            assert_same("looked at");
        s.looks = false;
        s.recorded = true;
        train(&s, &one);
        assert_true(one.narrow == 3);
        assert_same("recorded");
        s.stray = true;
        train(&s, &one);
        assert_true(one.wide == 3); /* and what was recorded with other memory is forgotten */
        assert_alike(1e-2, "recorded again");
        s.recorded = false;
        train(&s, &two);
        assert_same("recorded again");
    }
}

static void test_layouts(void **state)
{
    (void)state;
    setting s = {.dtype = MC_BF16, .passes = 1, .optimizers = TWO};
    train(&s, &two);
    s.wire = MC_GRAD_PARAMETER;
    train(&s, &one);
    assert_alike(1e-2, names[TWO]);
    s = (setting){.dtype = MC_BF16, .passes = 1, .thaws = true};
    train(&s, &two);
    s.wire = MC_GRAD_PARAMETER;
    train(&s, &one);
    assert_alike(1e-2, "a thawed block");
}

/* f16 gradients are infinite earlier than f32 ones; the scale finds its place all the same. */
static void test_overflow(void **state)
{
    (void)state;
    setting s = {.dtype = MC_F16, .wire = MC_GRAD_PARAMETER, .passes = 1, .loss_scale = 0x1p30};
    train(&s, &one);
    assert_true(one.skipped > 0 && one.skipped < STEPS && one.narrow == 3);
    for (size_t i = 0; i < MOST; i++) assert_true(isfinite(one.values[i]));
    s.dtype = MC_F32; /* which changes nothing */
    s.loss_scale = 0;
    train(&s, &one);
    s.wire = MC_GRAD_F32;
    train(&s, &two);
    assert_same("f32");
}

/* Those of a backward pass, as users read them. */
static size_t read_gradients(mc_grad_dtype wire, float *values, bool *rounded)
{
    setting s = {.dtype = MC_BF16, .wire = wire, .passes = 1};
    mc_context *ctx = test_context(3);
    work w = new_work(ctx, &s);
    fill_batch(&w, 0);
    step(ctx, &w);
    size_t count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(w.gpt2), &it));) {
        mc_parameter_read_gradient(p, values + count);
        for (int64_t i = 0; i < mc_shape_count(p->shape); i++)
            rounded[count++] = of_block(p->stored->bucket);
    }
    assert_good(ctx);
    mc_context_free(ctx);
    return count;
}

static void test_read(void **state)
{
    (void)state;
    bool *rounded = calloc(MOST, sizeof *rounded);
    assert_non_null(rounded);
    size_t count = read_gradients(MC_GRAD_F32, one.values, rounded), differ = 0;
    assert_int_equal(read_gradients(MC_GRAD_PARAMETER, two.values, rounded), count);
    for (size_t i = 0; i < count; i++) {
        float exact = one.values[i], got = two.values[i];
        uint32_t bits;
        memcpy(&bits, &got, sizeof bits);
        if (!rounded[i] && !on_gpu()) assert_true(got == exact);
        if (rounded[i]) assert_int_equal(bits & 0xffff, 0);
        assert_true(fabsf(got - exact) <= fabsf(exact) / (on_gpu() ? 64 : 256) + 1e-9f);
        differ += got != exact;
    }
    assert_true(differ > count / 4);
    free(rounded);
}

/* A run that goes on with saved state. */
static void test_resumed(void **state)
{
    (void)state;
    setting s = {.dtype = MC_BF16, .wire = MC_GRAD_PARAMETER, .passes = 1};
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "optimizer.safetensors");
    mc_context *ctx = test_context(3);
    for (int resumed = 0; resumed < 2; resumed++) {
        work w = new_work(ctx, &s);
        if (resumed) mc_optim_manager_load(w.optim, path);
        fill_batch(&w, 0);
        step(ctx, &w);
        if (!resumed) mc_optim_manager_save(w.optim, path);
        memset(&one, 0, sizeof one);
        count_gradients(&w, &one);
        assert_good(ctx);
        assert_true(one.narrow == 3 && !one.wide);
    }
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

#ifdef MC_FAULT_INJECTION
static void test_memory_runs_out(void **state)
{
    (void)state;
    setting s = {.dtype = MC_BF16, .wire = MC_GRAD_PARAMETER, .passes = 2, .optimizers = OWN};
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* a thread for which there is no memory is no error */
    for (int all_after = 0; all_after <= 1; all_after++) {
        long nth = 0;
        for (bool reached = true; reached;) {
            mc_fault_fail_at(++nth, all_after);
            mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
            mc_status status = ctx ? train_on(ctx, &s, &one) : MC_ERR_NOMEM;
            mc_context_free(ctx);
            reached = mc_fault_count() >= nth;
            mc_fault_fail_at(0, false);
            assert_true(status == MC_ERR_NOMEM || (status == MC_OK && !(reached && all_after)));
        }
        printf("%ld allocations failed in turn\n", nth - 1);
        assert_true(nth > 50);
    }
    omp_set_num_threads(threads);
}
#endif

int main(void)
{
    setenv("MC_DETERMINISTIC", "1", 1); /* a recording is to do what it recorded */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounded),
        cmocka_unit_test(test_told_of_several),
        cmocka_unit_test(test_not_told),
        cmocka_unit_test(test_looks_and_recordings),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_resumed),
#ifdef MC_FAULT_INJECTION
        cmocka_unit_test(test_memory_runs_out),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
