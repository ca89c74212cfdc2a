/* The memory planner: steps of a BERT and of a GPT-2, planned and run. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>
#include "core/base/file_internal.h"
#include "core/device/cpu/cpu_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/optim/optim_test.h"
#include "tests/temp_folder.h"

enum { VOCABULARY = 131, BATCH = 4, LENGTH = 33 };

typedef struct work {
    mc_model *model;
    mc_optim_manager *optim;
    mc_tensor *ids, *labels;
    int tapes;
    bool has_decoder;
} work;

static void step(mc_context *ctx, void *user)
{
    work *w = user;
    mc_optim_manager_zero_grad(w->optim);
    for (int i = 0; i < w->tapes; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_model_input in = {.ids = w->ids, .decoder_ids = w->has_decoder ? w->ids : NULL};
        mc_model_output out = mc_model_forward(t, w->model, &in);
        mc_tensor *loss = mc_model_loss(t, w->model, out.last_hidden, w->labels);
        mc_optim_manager_backward(w->optim, t, loss);
        mc_tape_end(t);
    }
    mc_optim_manager_step(w->optim);
}

static void optimize(mc_context *ctx, work *w, int64_t batch, int64_t length)
{
    w->optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(w->model));
    mc_optim_manager_add(w->optim, adam, NULL);
    w->ids = mc_tensor_new(ctx, MC_I32, MC_SHAPE(batch, length));
    w->labels = mc_tensor_new(ctx, MC_I32, MC_SHAPE(batch, length));
}

/* The same on a real context and on a planning one. */
static work new_work(mc_context *ctx, mc_dtype dtype, mc_recompute recompute)
{
    work w = {.tapes = 2};
    mc_bert_config c = mc_bert_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = 48;
    c.dim_ff = 96;
    c.layers = 3;
    c.heads = 3;
    c.positions = 64;
    w.model = mc_bert_new(ctx, &c, &(mc_model_heads){.lm = true},
                          &(mc_load_options){.dtype = dtype, .recompute = recompute});
    optimize(ctx, &w, BATCH, LENGTH);
    return w;
}

static uint64_t sum_of(const mc_memory_plan *p)
{
    return p->parameters + p->gradients + p->optimizer + p->inputs + p->activations + p->logits +
           p->workspace;
}

static uint64_t check(mc_dtype dtype, mc_recompute recompute, mc_grad_dtype grad_dtype, int tapes)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 4, .grad_dtype = grad_dtype});
    mc_context *dry = mc_plan_context_new(ctx);
    assert_int_equal(mc_seed(dry), 4);
    work planned = new_work(dry, dtype, recompute);
    planned.tapes = tapes;
    mc_memory_plan plan;
    mc_plan_run(dry, mc_model_module(planned.model), step, &planned, &plan);
    assert_good(dry);
    assert_int_equal(ctx->device->memory.in_use, 0);
    mc_context_free(dry);
    work real = new_work(ctx, dtype, recompute);
    real.tapes = tapes;
    for (int i = 0; i < 3; i++) step(ctx, &real);
    assert_good(ctx);
    mc_memory_use use = mc_memory(ctx);
    assert_true(plan.peak == use.peak);
    assert_true(sum_of(&plan) == plan.peak);
    /* what the system has given for it, with the gaps between blocks */
    assert_near((double)plan.touched, (double)use.touched, 0.03 * (double)use.touched);
    assert_true(plan.touched >= plan.peak && use.touched <= use.reserved);
    uint64_t f32 = plan.parameters * (dtype == MC_F32 ? 1 : 2);
    bool rounded = grad_dtype == MC_GRAD_PARAMETER && dtype != MC_F32 && tapes == 1;
    assert_true(rounded ? plan.gradients < 0.7 * (double)f32 && plan.gradients > f32 / 2
                        : plan.gradients == f32);
    assert_true(plan.optimizer == f32 * (dtype == MC_F32 ? 2 : 3));
    assert_true(use.in_use < use.peak && use.reserved >= use.peak && use.available > 0);
    mc_context_free(ctx);
    return plan.activations;
}

static void test_plan_is_right(void **state)
{
    (void)state;
    static const mc_dtype dtypes[] = {MC_F32, MC_F16, MC_BF16};
    for (int i = 0; i < 3; i++) {
        uint64_t none = check(dtypes[i], MC_RECOMPUTE_NONE, MC_GRAD_F32, 2),
                 selective = check(dtypes[i], MC_RECOMPUTE_SELECTIVE, MC_GRAD_F32, 2),
                 full = check(dtypes[i], MC_RECOMPUTE_FULL, MC_GRAD_F32, 2);
        assert_true(none > selective && selective > full);
        for (int tapes = 1; tapes <= 2; tapes++) {
            check(dtypes[i], MC_RECOMPUTE_NONE, MC_GRAD_PARAMETER, tapes);
            check(dtypes[i], MC_RECOMPUTE_FULL, MC_GRAD_PARAMETER, tapes);
        }
    }
}

typedef struct fp8_case {
    bool t5;
    mc_fp8_scaling scaling;
    mc_dtype dtype;
    mc_recompute recompute;
    int64_t layers, batch, length;
} fp8_case;

static mc_model *new_gpt2(mc_context *ctx, const fp8_case *c, const mc_load_options *load)
{
    mc_gpt2_config config = mc_gpt2_config_default();
    config.vocab_size = VOCABULARY;
    config.dim = 64;
    config.dim_ff = 256;
    config.layers = (int)c->layers;
    config.heads = 4;
    config.positions = 128;
    return mc_gpt2_new(ctx, &config, NULL, load);
}

static mc_model *new_t5(mc_context *ctx, const fp8_case *c, const mc_load_options *load)
{
    mc_t5_config config = mc_t5_config_default();
    config.vocab_size = VOCABULARY;
    config.dim = 64;
    config.dim_ff = 128;
    config.layers = config.decoder_layers = (int)c->layers;
    config.heads = 4;
    config.head_dim = 16;
    return mc_t5_new(ctx, &config, NULL, load);
}

static work new_fp8_work(mc_context *ctx, const fp8_case *c)
{
    work w = {.tapes = 1, .has_decoder = c->t5};
    mc_load_options load = {.dtype = c->dtype,
                            .recompute = c->recompute,
                            .recipe = {.fp8 = MC_FP8_ALL, .scaling = c->scaling}};
    w.model = c->t5 ? new_t5(ctx, c, &load) : new_gpt2(ctx, c, &load);
    optimize(ctx, &w, c->batch, c->length);
    return w;
}

/* Delayed scales: the first step has none yet, and takes more memory than all after it. */
static void test_fp8(void **state)
{
    (void)state;
    static const fp8_case cases[] = {
        {false, MC_FP8_DELAYED, MC_F32, MC_RECOMPUTE_NONE, 2, 4, 64},
        {false, MC_FP8_DELAYED, MC_BF16, MC_RECOMPUTE_NONE, 8, 4, 64},
        {false, MC_FP8_DELAYED, MC_BF16, MC_RECOMPUTE_FULL, 4, 4, 33},
        {false, MC_FP8_CURRENT, MC_BF16, MC_RECOMPUTE_SELECTIVE, 2, 4, 64},
        {false, MC_FP8_CURRENT, MC_F32, MC_RECOMPUTE_NONE, 2, 15, 64},
        {false, MC_FP8_CURRENT, MC_F32, MC_RECOMPUTE_NONE, 2, 16, 64},
        {false, MC_FP8_DELAYED, MC_F32, MC_RECOMPUTE_NONE, 2, 64, 64},
        {false, MC_FP8_DELAYED, MC_BF16, MC_RECOMPUTE_NONE, 2, 64, 64},
        {true, MC_FP8_DELAYED, MC_BF16, MC_RECOMPUTE_NONE, 2, 4, 64},
        {true, MC_FP8_CURRENT, MC_F32, MC_RECOMPUTE_NONE, 2, 20, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mc_context *ctx = mc_init_distributed(NULL), *dry = mc_plan_context_new(ctx);
        work planned = new_fp8_work(dry, &cases[i]), real = new_fp8_work(ctx, &cases[i]);
        mc_memory_plan plan;
        mc_plan_run(dry, mc_model_module(planned.model), step, &planned, &plan);
        assert_good(dry);
        assert_true(sum_of(&plan) == plan.peak && plan.touched >= plan.peak);
        for (int k = 0; k < 3; k++) step(ctx, &real);
        assert_good(ctx);
        if (plan.peak != mc_memory(ctx).peak)
            fail_msg("case %zu: planned %" PRIu64 ", taken %" PRIu64, i, plan.peak,
                     mc_memory(ctx).peak);
        mc_context_free(dry);
        mc_context_free(ctx);
    }
}

/* The system gives nothing while a step of a model is planned that would not fit. */
static void test_nothing_is_taken(void **state)
{
    mc_context *ctx = *state;
    mc_context *dry = mc_plan_context_new(ctx);
    mc_gpt2_config config;
    assert_int_equal(mc_gpt2_config_named(dry, "gpt2-xl", &config), MC_OK);
    mc_model *gpt2 = mc_gpt2_new(dry, &config, NULL, &(mc_load_options){.dtype = MC_BF16});
    mc_optimizer *adam = mc_adam_new(dry, NULL);
    mc_optimizer_add(adam, mc_model_module(gpt2));
    mc_optim_manager *optim = mc_optim_manager_new(dry, NULL);
    mc_optim_manager_add(optim, adam, NULL);
    assert_int_equal(mc_optim_manager_prepare(optim), MC_OK);
    assert_true(mc_memory(dry).in_use > 25e9); /* 16 bytes a parameter */
    assert_int_equal(mc_memory(ctx).reserved, 0);
    mc_context_free(dry);
}

static void write_limit(const temp_folder *folder, const char *group, const char *name,
                        const char *text)
{
    char within[MC_PATH_MAX], path[MC_PATH_MAX];
    mc_error err = {0};
    assert_int_equal(mc_path_join(&err, within, folder->path, group), MC_OK);
    assert_int_equal(mc_make_folders(&err, within), MC_OK);
    assert_int_equal(mc_path_join(&err, path, within, name), MC_OK);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Pages of the process's own program and libraries stay, if the group has paid for them. */
static void test_own_file_pages(const temp_folder *folder, const char *group)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    char stat[160], limit[32];
    snprintf(stat, sizeof stat, "%" PRIu64 "\n", 100 * page);
    write_limit(folder, group, "memory.current", stat);
    snprintf(limit, sizeof limit, "%" PRIu64 "\n", 200 * page);
    write_limit(folder, group, "memory.max", limit);
    static const struct {
        uint64_t inactive, active, mapped, own, reclaimable;
    } cases[] = {
        {30, 0, 0, 20, 30},   /* others have opened the libraries first */
        {30, 0, 12, 20, 18},  /* all that are mapped are the process's own */
        {30, 0, 25, 20, 10},  /* others of the group map files too */
        {30, 0, 100, 90, 0},  /* more than the group has */
        {30, 15, 20, 20, 25}, /* active pages count as used anyway */
        {30, 50, 20, 20, 30},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(stat, sizeof stat,
                 "inactive_file %" PRIu64 "\nactive_file %" PRIu64 "\nfile_mapped %" PRIu64 "\n",
                 cases[i].inactive * page, cases[i].active * page, cases[i].mapped * page);
        write_limit(folder, group, "memory.stat", stat);
        snprintf(stat, sizeof stat, "900 400 %" PRIu64 " 10 0 500 0\n", cases[i].own);
        write_limit(folder, "proc/self", "statm", stat);
        assert_int_equal(mc_cpu_left_in_groups(folder->path), (100 + cases[i].reclaimable) * page);
    }
    write_limit(folder, group, "memory.max", "9000\n");
    write_limit(folder, group, "memory.current", "2500\n");
    write_limit(folder, group, "memory.stat", "inactive_file 0\n");
}

/* A group's own limit and those around it, of both versions; what is used by them already. */
static void test_control_groups(void **state)
{
    (void)state;
    static const char own2[] = "sys/fs/cgroup/batch/job", all2[] = "sys/fs/cgroup/batch",
                      own1[] = "sys/fs/cgroup/memory/pod", proc[] = "proc/self";
    temp_folder folder = temp_folder_new();
    assert_true(mc_cpu_left_in_groups(folder.path) == UINT64_MAX);
    write_limit(&folder, proc, "cgroup", "0::/batch/job\n4:cpu,memory:/pod\n");
    write_limit(&folder, own2, "memory.max", "max\n");
    assert_true(mc_cpu_left_in_groups(folder.path) == UINT64_MAX);
    write_limit(&folder, all2, "memory.max", "9000\n");
    write_limit(&folder, all2, "memory.current", "3000\n");
    assert_int_equal(mc_cpu_left_in_groups(folder.path), 6000);
    write_limit(&folder, all2, "memory.stat", "anon 100\ninactive_file 500\n");
    assert_int_equal(mc_cpu_left_in_groups(folder.path), 6500);
    test_own_file_pages(&folder, all2);
    write_limit(&folder, own2, "memory.high", "5000\n");
    assert_int_equal(mc_cpu_left_in_groups(folder.path), 5000);
    write_limit(&folder, own1, "memory.limit_in_bytes", "4000\n");
    write_limit(&folder, own1, "memory.usage_in_bytes", "5000\n");
    write_limit(&folder, own1, "memory.stat", "total_inactive_file 2000\n");
    assert_int_equal(mc_cpu_left_in_groups(folder.path), 1000);
    write_limit(&folder, proc, "cgroup", "4:memoryless:/pod\n");
    assert_true(mc_cpu_left_in_groups(folder.path) == UINT64_MAX);
    temp_folder_free(&folder);
}

static void test_errors(void **state)
{
    mc_context *ctx = *state;
    mc_memory_plan plan;
    work w = new_work(ctx, MC_F32, MC_RECOMPUTE_NONE);
    assert_int_equal(mc_plan_run(ctx, mc_model_module(w.model), step, &w, &plan), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "mc_plan_context_new");
    mc_context *dry = mc_plan_context_new(ctx);
    assert_int_equal(mc_plan_run(dry, mc_model_module(w.model), step, &w, &plan), MC_ERR_ARGUMENT);
    assert_error(dry, MC_ERR_ARGUMENT, "module");
    work planned = new_work(dry, MC_F32, MC_RECOMPUTE_NONE);
    planned.ids = NULL; /* the step's own error */
    assert_true(mc_plan_run(dry, mc_model_module(planned.model), step, &planned, &plan) != MC_OK);
    assert_true(mc_failed(dry) && !mc_failed(ctx));
    mc_context_free(dry);
    assert_null(mc_plan_context_new(NULL));
    assert_true(mc_memory(NULL).peak == 0 && mc_device_peak_rate(NULL, MC_F32) == 0);
    assert_true(mc_device_peak_rate(ctx, MC_F32) == 0);
}

#ifdef MC_FAULT_INJECTION
static void test_faults(void **state)
{
    mc_context *ctx = *state;
    long count = 0, nth = 0;
    do {
        mc_fault_fail_at(++nth, false);
        mc_context *dry = mc_plan_context_new(ctx);
        mc_memory_plan plan;
        if (dry) {
            work w = new_work(dry, MC_F32, MC_RECOMPUTE_NONE);
            mc_plan_run(dry, mc_model_module(w.model), step, &w, &plan);
        }
        count = mc_fault_count();
        mc_fault_fail_at(0, false);
        if (nth <= count) assert_true(mc_failed(dry));
        mc_clear_error(ctx);
        mc_context_free(dry);
    } while (nth <= count);
    assert_true(nth > 50);
}
#else
static void test_faults(void **state)
{
    (void)state;
    printf("SKIPPED: failing allocations (needs MC_FAULT_INJECTION)\n");
    skip();
}
#endif

/* More blocks than a plan has numbers for, a few at a time; what lives keeps its own. */
static void test_many_blocks(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL), *dry = mc_plan_context_new(ctx);
    mc_device *d = dry->device;
    const size_t before = d->memory.in_use;
    void *kept = d->alloc(d, 100);
    assert_non_null(kept);
    for (int i = 0; i < 6000000; i++) {
        void *a = d->alloc(d, 10), *b = d->alloc(d, 20);
        if (!a || !b || a == b || a == kept || b == kept) fail_msg("block %d", 2 * i);
        d->free(d, i % 2 ? a : b, i % 2 ? 10 : 20);
        d->free(d, i % 2 ? b : a, i % 2 ? 20 : 10);
    }
    d->free(d, kept, 100);
    assert_true(d->memory.in_use == before);
    mc_context_free(dry);
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_blocks),
        cmocka_unit_test(test_plan_is_right),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test_setup_teardown(test_nothing_is_taken, set_up_context, tear_down_context),
        cmocka_unit_test(test_control_groups),
        cmocka_unit_test_setup_teardown(test_errors, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_faults, set_up_context, tear_down_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
