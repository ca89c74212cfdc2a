/* Training on the GPU: a small BERT against the same run on the CPU, recorded steps against eager
 * ones, and that nothing is allocated or waited for once training runs. Skipped where there is no
 * GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/autograd/step.h"
#include "core/device/device_internal.h"
#include "tests/device_choice.h"
#include "tests/optim/optim_test.h"

enum { VOCABULARY = 61, LABELS = 3, BATCH = 8, WIDTH = 16, TOKENS = BATCH * WIDTH, STEPS = 30 };
enum { KEY = 1, SEED = 21 };

typedef struct run_options {
    const char *device;
    mc_dtype dtype;
    mc_recompute recompute;
    float dropout;
    bool recorded; /* through mc_step_run */
    mc_optim_manager_options optim;
} run_options;

typedef struct run {
    run_options o;
    mc_context *ctx;
    mc_model *bert;
    mc_optim_manager *optim;
    mc_tensor *ids, *labels; /* i32 (BATCH, WIDTH) and (BATCH), refilled for each step */
    int calls;               /* of step */
} run;

/* A run as the options say; skips the test where there is no such device. */
static run run_begin(run_options o)
{
    run r = {.o = o, .ctx = context_on(o.device, SEED)};
    mc_bert_config config = mc_bert_config_default();
    config.vocab_size = VOCABULARY;
    config.dim = 64;
    config.dim_ff = 160;
    config.layers = 2;
    config.heads = 4;
    config.positions = WIDTH;
    config.types = 2;
    config.init_std = config.embedding_std = config.ffn_std = 0.1f;
    if (!r.ctx) skip();
    r.bert = mc_bert_new(r.ctx, &config, &(mc_model_heads){.pooler = true, .labels = LABELS},
                         &(mc_load_options){.dtype = o.dtype, .recompute = o.recompute});
    mc_model_set_dropout(r.bert, o.dropout);
    mc_optimizer *adam = mc_adam_new(r.ctx, &(mc_adam_options){.lr = 1e-3f, .weight_decay = 0.01f});
    r.optim = mc_optim_manager_new(r.ctx, &o.optim);
    mc_optimizer_add(adam, mc_model_module(r.bert));
    mc_optim_manager_add(r.optim, adam, NULL);
    r.ids = mc_tensor_new(r.ctx, MC_I32, MC_SHAPE(BATCH, WIDTH));
    r.labels = mc_tensor_new(r.ctx, MC_I32, MC_SHAPE(BATCH));
    assert_good(r.ctx);
    return r;
}

static void run_end(run *r)
{
    assert_good(r->ctx);
    mc_context_free(r->ctx);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Sentences whose label is that of their second token. */
static void make_batch(int step, int32_t ids[TOKENS], int32_t labels[BATCH])
{
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 37 + i / WIDTH * 11 + step * 29) % VOCABULARY;
    for (int i = 0; i < BATCH; i++) labels[i] = ids[i * WIDTH + 1] % LABELS;
}

static void fill(run *r, int step)
{
    int32_t ids[TOKENS], labels[BATCH];
    make_batch(step, ids, labels);
    mc_tensor_write(r->ids, ids, sizeof ids);
    mc_tensor_write(r->labels, labels, sizeof labels);
}

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    r->calls++;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_output out = mc_model_forward(t, r->bert, &(mc_model_input){.ids = r->ids});
    mc_tensor *logits = mc_model_classify(t, r->bert, &out);
    mc_optim_manager_backward(r->optim, t, mc_cross_entropy(t, logits, r->labels, NULL));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

static void take_step(run *r, int number)
{
    fill(r, number);
    if (r->o.recorded)
        mc_step_run(r->ctx, KEY, step, r);
    else
        step(r->ctx, r);
}

/* Of runs whose last steps repeat the first ones; a simulated GPU has time for half of them. */
static int most_steps(void) { return getenv("MC_CUDA_SIMULATED") ? STEPS / 2 : STEPS; }

/* Trains from the beginning; the report of each step. */
static void train(run *r, int steps, mc_step_report *reports)
{
    for (int i = 0; i < steps; i++) {
        take_step(r, i);
        assert_good(r->ctx);
        assert_true(mc_optim_manager_report(r->optim, 0, &reports[i]));
    }
}

/* All parameters, one after the other. */
static float *read_weights(run *r, int64_t *count)
{
    mc_module *m = mc_model_module(r->bert);
    *count = mc_module_parameter_count(m);
    float *values = calloc((size_t)*count, sizeof *values);
    assert_non_null(values);
    int64_t at = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it)); at += mc_shape_count(p->shape))
        assert_int_equal(mc_parameter_read(p, values + at), MC_OK);
    assert_int_equal(at, *count);
    return values;
}

static void assert_same_weights(run *a, run *b)
{
    int64_t count, n;
    float *x = read_weights(a, &count), *y = read_weights(b, &n);
    assert_int_equal(count, n);
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) != 0)
            fail_msg("weight %lld of %lld: %.9g and %.9g", (long long)i, (long long)n, (double)x[i],
                     (double)y[i]);
    free(x);
    free(y);
}

static const mc_dtype dtypes[] = {MC_F32, MC_F16, MC_BF16};

/* ---- the same as on the CPU ------------------------------------------------------------------ */

static void test_initial_weights(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        run gpu = run_begin((run_options){.device = "cuda", .dtype = dtypes[d]});
        run cpu = run_begin((run_options){.device = "cpu", .dtype = dtypes[d]});
        assert_same_weights(&cpu, &gpu);
        run_end(&cpu);
        run_end(&gpu);
    }
}

/* With dropout too: in f32 both devices drop the same. */
static void test_losses_of_the_cpu(void **state)
{
    (void)state;
    for (int with_dropout = 0; with_dropout < 2; with_dropout++) {
        mc_step_report expected[STEPS], got[STEPS];
        run_options o = {
            .device = "cuda", .dropout = with_dropout ? 0.1f : 0, .optim = {.max_grad_norm = 1}};
        run gpu = run_begin(o);
        o.device = "cpu";
        run cpu = run_begin(o);
        train(&gpu, STEPS, got);
        train(&cpu, STEPS, expected);
        double worst = 0;
        for (int i = 0; i < STEPS; i++) {
            worst = fmax(worst, fabs(got[i].loss - expected[i].loss));
            assert_near(got[i].loss, expected[i].loss, 1e-4);
            assert_near(got[i].grad_norm, expected[i].grad_norm, 1e-3 * expected[i].grad_norm);
        }
        print_message("largest difference of losses: %.2g\n", worst);
        assert_true(expected[STEPS - 1].loss < 0.9 * expected[0].loss); /* it learns something */
        run_end(&cpu);
        run_end(&gpu);
    }
}

/* The scale goes 2^40, 2^28, 2^16, and up again after three steps: gradients of f16 overflow at the
 * first two and at every return, and are far from it at 2^16, whatever the rounding. */
static void test_loss_scaling(void **state)
{
    (void)state;
    int steps = most_steps();
    for (int recorded = 0; recorded < 2; recorded++) {
        mc_step_report expected[STEPS], got[STEPS];
        run_options o = {
            .device = "cuda",
            .dtype = MC_F16,
            .recorded = recorded,
            .optim = {.loss_scale = 0x1p40, .loss_scale_factor = 4096, .loss_scale_steps = 3}};
        run gpu = run_begin(o);
        o.device = "cpu";
        run cpu = run_begin(o);
        train(&gpu, steps, got);
        train(&cpu, steps, expected);
        for (int i = 0; i < steps; i++) {
            assert_int_equal(got[i].skipped, expected[i].skipped);
            assert_int_equal(got[i].skipped, i < 2 || i % 4 == 1);
            assert_true(got[i].loss_scale == expected[i].loss_scale);
            assert_int_equal(got[i].step, i + 1);
            assert_true(got[i].lr == expected[i].lr);
            assert_near(got[i].loss, expected[i].loss, 2e-2);
        }
        assert_int_equal(mc_optim_manager_steps(gpu.optim), mc_optim_manager_steps(cpu.optim));
        assert_int_equal(mc_optim_manager_skipped_steps(gpu.optim),
                         mc_optim_manager_skipped_steps(cpu.optim));
        assert_int_equal(mc_optim_manager_last_step_skipped(gpu.optim),
                         expected[steps - 1].skipped);
        run_end(&cpu);
        run_end(&gpu);
    }
}

/* A skipped step leaves the weights alone. */
static void test_skipped_step(void **state)
{
    (void)state;
    run_options o = {.device = "cuda", .dtype = MC_F16, .optim = {.loss_scale = 0x1p40}};
    run gpu = run_begin(o);
    o.device = "cpu";
    run cpu = run_begin(o);
    mc_step_report report;
    train(&gpu, 1, &report);
    assert_true(report.skipped && report.loss_scale == 0x1p39);
    assert_same_weights(&cpu, &gpu);
    run_end(&cpu);
    run_end(&gpu);
}

/* A weight that becomes NaN is named by the step that finds it, whether or not it is recorded. */
static void test_nonfinite_weight(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        run gpu = run_begin((run_options){.device = "cuda",
                                          .dtype = i % 2 ? MC_BF16 : MC_F32,
                                          .recorded = i > 1,
                                          .optim = {.max_grad_norm = 1}});
        mc_step_report reports[4];
        mc_parameter *p = mc_module_find_parameter(mc_model_module(gpu.bert),
                                                   "encoder.layers.1.ffn.ffn.w_out.bias");
        assert_non_null(p);
        train(&gpu, i < 4 ? 1 : 3, reports); /* the next is the one that is recorded, or a replay */
        float values[64];
        mc_parameter_read(p, values);
        values[63] = NAN;
        mc_parameter_write(p, values);
        take_step(&gpu, 3);
        mc_optim_manager_report(gpu.optim, 0, &reports[3]);
        assert_error(
            gpu.ctx, MC_ERR_STATE,
            "parameter \"encoder.layers.1.ffn.ffn.w_out.bias\" has a value that is infinite",
            "no step was taken");
        run_end(&gpu);
    }
}

/* ---- what is changed while steps are on their way -------------------------------------------- */

/* Whether parameters are frozen before a step of this number. */
static bool freezes(int number) { return number % 3 == 1; }

/* Steps count for those parameters, optimizers and schedules that they were launched for, with the
 * rate that they were launched with, however late it is known that they have ended. */
static void test_counts(void **state)
{
    (void)state;
    enum { COUNT = 10 };
    for (int recorded = 0; recorded < 2; recorded++) {
        run r = run_begin((run_options){.device = "cuda", .recorded = recorded});
        mc_module *m = mc_model_module(r.bert);
        mc_optimizer *adam = r.optim->managed[0].optimizer;
        mc_parameter *always = mc_module_find_parameter(m, "pooler.dense.bias"),
                     *at_times = mc_module_find_parameter(
                         m, "encoder.layers.1.ffn.layernorm_before_ffn.bias");
        assert_true(always && at_times);
        int64_t frozen = 0;
        for (int i = 0; i < COUNT; i++) {
            mc_module_set_trainable(m, "*.layers.1.*", !freezes(i));
            mc_step_forget(r.ctx);
            mc_optimizer_set_lr(adam, 1e-3 * (1 + i % 4));
            frozen += freezes(i);
            take_step(&r, i);
            mc_step_report report;
            if (i > 0 && mc_optim_manager_report(r.optim, 1, &report))
                assert_near(report.lr, 1e-3 * (1 + (i - 1) % 4), 1e-9);
        }
        mc_optimizer *late = mc_sgd_new(r.ctx, NULL);
        mc_optim_manager_add(r.optim, late, NULL);
        assert_int_equal(mc_optimizer_step_count(late), 0);
        assert_int_equal(mc_optimizer_step_count(adam), COUNT);
        assert_int_equal(always->optimizer_steps, COUNT);
        assert_int_equal(at_times->optimizer_steps, COUNT - frozen);
        run_end(&r);
    }
}

/* ---- recorded steps -------------------------------------------------------------------------- */

static void assert_same_run(const mc_step_report *a, const mc_step_report *b, int steps)
{
    for (int i = 0; i < steps; i++)
        if (a[i].loss != b[i].loss || a[i].grad_norm != b[i].grad_norm)
            fail_msg("step %d: losses %.17g and %.17g, norms %.17g and %.17g", i, a[i].loss,
                     b[i].loss, a[i].grad_norm, b[i].grad_norm);
}

static run_options deterministic_options(mc_dtype dtype)
{
    setenv("MC_DETERMINISTIC", "1", 1);
    return (run_options){.device = "cuda",
                         .dtype = dtype,
                         .dropout = 0.1f,
                         .optim = {.loss_scale = dtype == MC_F16 ? 1024 : 0, .max_grad_norm = 1}};
}

static int leave_deterministic_mode(void **state)
{
    (void)state;
    return unsetenv("MC_DETERMINISTIC");
}

static void test_recorded_equals_eager(void **state)
{
    (void)state;
    int steps = most_steps();
    for (int d = 0; d < 3; d++) {
        mc_step_report expected[STEPS], got[STEPS];
        run_options o = deterministic_options(dtypes[d]);
        run eager = run_begin(o);
        o.recorded = true;
        run recorded = run_begin(o);
        train(&eager, steps, expected);
        train(&recorded, steps, got);
        assert_same_run(got, expected, steps);
        assert_same_weights(&eager, &recorded);
        assert_int_equal(eager.calls, steps);
        assert_int_equal(recorded.calls, 2); /* the first step, and recording the second */
        run_end(&eager);
        run_end(&recorded);
    }
}

/* Recordings can be dropped, and switched off. */
static void test_recording_again(void **state)
{
    (void)state;
    mc_step_report expected[STEPS], got[STEPS];
    run_options o = deterministic_options(MC_F32);
    run eager = run_begin(o);
    o.recorded = true;
    run again = run_begin(o);
    train(&eager, 12, expected);
    for (int i = 0; i < 12; i++) {
        if (i == 4) mc_step_forget(again.ctx);
        if (i == 8) setenv("MC_CUDA_GRAPHS", "0", 1);
        take_step(&again, i);
        assert_true(mc_optim_manager_report(again.optim, 0, &got[i]));
    }
    unsetenv("MC_CUDA_GRAPHS");
    assert_same_run(got, expected, 12);
    assert_int_equal(again.calls, 2 + 2 + 4);
    run_end(&eager);
    run_end(&again);
}

/* So are steps of other parameters. */
static void test_recording_frozen(void **state)
{
    (void)state;
    mc_step_report expected[12], got[12];
    run_options o = deterministic_options(MC_F32);
    run eager = run_begin(o);
    o.recorded = true;
    run recorded = run_begin(o);
    for (int i = 0; i < 12; i++) {
        for (int k = 0; k < 2; k++) {
            run *r = k ? &recorded : &eager;
            if (i % 4 == 3) {
                mc_module_set_trainable(mc_model_module(r->bert), "*.layers.1.*", i % 8 > 3);
                mc_step_forget(r->ctx);
            }
            take_step(r, i);
            assert_good(r->ctx);
            bool reported = mc_optim_manager_report(r->optim, 0, k ? &got[i] : &expected[i]);
            assert_good(r->ctx);
            assert_true(reported);
        }
    }
    assert_same_run(got, expected, 12);
    assert_same_weights(&eager, &recorded);
    run_end(&eager);
    run_end(&recorded);
}

static void test_recompute(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d += 2) {
        mc_step_report expected[5], got[5];
        run_options o = deterministic_options(dtypes[d]);
        run kept = run_begin(o);
        train(&kept, 5, expected);
        for (o.recompute = MC_RECOMPUTE_SELECTIVE; o.recompute <= MC_RECOMPUTE_FULL;
             o.recompute++) {
            run again = run_begin(o);
            train(&again, 5, got);
            assert_same_run(got, expected, 5);
            assert_same_weights(&kept, &again);
            run_end(&again);
        }
        run_end(&kept);
    }
}

/* Once training runs, the host asks the system for no memory and waits for nothing but the report
 * of the step before. */
static void test_steady_state(void **state)
{
    (void)state;
    int steps = most_steps();
    for (int recorded = 0; recorded < 2; recorded++)
        for (int d = 0; d < 3; d++) {
            run r = run_begin((run_options){
                .device = "cuda",
                .dtype = dtypes[d],
                .dropout = 0.1f,
                .recorded = recorded,
                .optim = {.loss_scale = dtypes[d] == MC_F16 ? 1024 : 0, .max_grad_norm = 1}});
            const mc_device *device = r.ctx->device;
            uint64_t calls = 0, waits = 0;
            size_t in_use = 0;
            for (int i = 0; i < steps; i++) {
                if (i == steps / 3) {
                    calls = device->memory.system_calls;
                    waits = device->waits;
                    in_use = device->memory.in_use;
                }
                take_step(&r, i);
                mc_step_report report = {.loss = NAN};
                assert_int_equal(mc_optim_manager_report(r.optim, 1, &report), i > 0);
                if (i > 0) assert_true(isfinite(report.loss) && report.step == i);
            }
            assert_true(calls > 0);
            assert_int_equal(device->memory.system_calls, calls);
            assert_int_equal(device->waits, waits);
            assert_int_equal(device->memory.in_use, in_use);
            run_end(&r);
        }
}

/* ---- errors that a context survives ---------------------------------------------------------- */

/* Runs a step with one index or label replaced, which is an error that says so. */
static void spoil(run *r, mc_tensor *x, int at, int32_t value, const char *message)
{
    int32_t ids[TOKENS], labels[BATCH];
    make_batch(7, ids, labels);
    (x == r->ids ? ids : labels)[at] = value;
    mc_tensor_write(r->ids, ids, sizeof ids);
    mc_tensor_write(r->labels, labels, sizeof labels);
    assert_int_equal(mc_step_run(r->ctx, KEY, step, r), MC_ERR_ARGUMENT);
    assert_error(r->ctx, MC_ERR_ARGUMENT, message);
}

/* The steps after a refused one are those of a run without it. */
static void test_bad_index(void **state)
{
    (void)state;
    mc_step_report expected[12], got[12];
    run_options o = deterministic_options(MC_F32);
    o.recorded = true;
    run good = run_begin(o), bad = run_begin(o);
    train(&good, 12, expected);
    for (int i = 0; i < 12; i++) {
        if (i == 4) spoil(&bad, bad.ids, 21, VOCABULARY, "ids[21] = 61, expected 0 to 60");
        if (i == 6) spoil(&bad, bad.ids, TOKENS - 1, -1, "ids[127] = -1, expected 0 to 60");
        if (i == 8) spoil(&bad, bad.labels, 3, LABELS, "label[3] = 3, expected 0 to 2");
        take_step(&bad, i);
        assert_good(bad.ctx);
        assert_true(mc_optim_manager_report(bad.optim, 0, &got[i]));
    }
    assert_same_run(got, expected, 12);
    assert_int_equal(bad.calls, 2);
    run_end(&good);
    run_end(&bad);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    mc_step_report expected[12], got[12];
    run_options o = deterministic_options(MC_BF16);
    run good = run_begin(o), short_of = run_begin(o);
    const int64_t count = (int64_t)10000000000000 / 4; /* 10 TB in f32 */
    train(&good, 12, expected);
    for (int i = 0; i < 12; i++) {
        size_t in_use = short_of.ctx->device->memory.in_use;
        if (i == 3) {
            assert_null(mc_tensor_new(short_of.ctx, MC_F32, MC_SHAPE(count)));
            assert_error(short_of.ctx, MC_ERR_NOMEM, "a tensor of f32 (2500000000000)",
                         "10000000000000 bytes");
        }
        if (i == 6) {
            mc_tape *t = mc_tape_begin(short_of.ctx);
            assert_null(mc_tape_input(t, MC_F32, MC_SHAPE(count), NULL, false));
            assert_error(short_of.ctx, MC_ERR_NOMEM, "10000000000000 bytes", "smaller batch");
            mc_tape_end(t);
        }
        if (i) assert_int_equal(short_of.ctx->device->memory.in_use, in_use);
        take_step(&short_of, i);
        assert_good(short_of.ctx);
        assert_true(mc_optim_manager_report(short_of.optim, 0, &got[i]));
    }
    assert_same_run(got, expected, 12);
    run_end(&good);
    run_end(&short_of);
}

static void *no_memory(mc_device *device, size_t bytes)
{
    (void)device, (void)bytes;
    return NULL;
}

/* No memory for what the context's recordings share: the next call tries again. */
static void test_no_memory_for_recordings(void **state)
{
    (void)state;
    enum { SOME = 4 };
    mc_step_report expected[SOME], got[SOME];
    run_options o = deterministic_options(MC_F32);
    o.recorded = true;
    run good = run_begin(o), bad = run_begin(o);
    train(&good, SOME, expected);
    mc_device *device = bad.ctx->device;
    __typeof__(device->alloc) alloc = device->alloc;
    device->alloc = no_memory;
    mc_status status = mc_step_run(bad.ctx, KEY, step, &bad);
    device->alloc = alloc;
    assert_int_equal(status, MC_ERR_NOMEM);
    assert_error(bad.ctx, MC_ERR_NOMEM, "recorded steps");
    train(&bad, SOME, got);
    assert_same_run(got, expected, SOME);
    run_end(&good);
    run_end(&bad);
}

int main(void)
{
    setenv("MC_CACHE_DIR", "", 0); /* a test leaves nothing after for others */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_initial_weights),
        cmocka_unit_test(test_losses_of_the_cpu),
        cmocka_unit_test(test_loss_scaling),
        cmocka_unit_test(test_skipped_step),
        cmocka_unit_test(test_nonfinite_weight),
        cmocka_unit_test(test_counts),
        cmocka_unit_test_teardown(test_recorded_equals_eager, leave_deterministic_mode),
        cmocka_unit_test_teardown(test_recording_again, leave_deterministic_mode),
        cmocka_unit_test_teardown(test_recording_frozen, leave_deterministic_mode),
        cmocka_unit_test_teardown(test_recompute, leave_deterministic_mode),
        cmocka_unit_test(test_steady_state),
        cmocka_unit_test_teardown(test_bad_index, leave_deterministic_mode),
        cmocka_unit_test_teardown(test_out_of_memory, leave_deterministic_mode),
        cmocka_unit_test_teardown(test_no_memory_for_recordings, leave_deterministic_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
