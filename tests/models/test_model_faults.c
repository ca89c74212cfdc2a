/* Memory that runs out in models of the newer families: allocations of every path (fault_paths.h),
 * of the device and of the host, fail while one is loaded, in a training step and while it
 * answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/faults.h"
#include "tests/models/family_test.h"

/* The last two with LoRA's factors, and with virtual tokens. */
static const char *const names[] = {"t5", "cpm1", "gptj", "gpt2", "gpt2"};
enum { NAMES = sizeof names / sizeof *names, ANSWER = 3 };

typedef struct trial {
    mc_context *ctx;
    mc_model *model;
    mc_optimizer *sgd;
    mc_optim_manager *optim;
    const char *folder;
    float *values; /* what it came to: all parameters, or the answers */
    int64_t count;
} trial;

/* What is tried, on a loaded model unless it loads one. */
typedef struct task {
    const char *what;
    bool trains, loads, adapts, casts; /* adapts: LoRA beside a base in 8 bits; casts: with fp8 */
    void (*run)(trial *r);
} task;

static void load(trial *r)
{
    r->model = mc_model_from_pretrained(r->ctx, r->folder, NULL);
    if (mc_failed(r->ctx)) assert_null(r->model);
}

static void step(trial *r)
{
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_tensor *loss = t ? family_loss(t, r->model, (part){PACKED, -1}) : NULL;
    mc_optim_manager_backward(r->optim, t, loss);
    mc_optim_manager_step(r->optim);
    mc_tape_end(t);
}

static void answer(trial *r)
{
    static const int32_t first[] = {3, 14, 15}, second[] = {9};
    const int32_t *const prompts[] = {first, second};
    mc_generate_options o = {.max_new_tokens = ANSWER, .num_beams = 2, .ignore_eos = true};
    mc_generation *got = mc_model_generate(r->model, prompts, (int[]){3, 1}, 2, &o);
    free(r->values);
    r->values = calloc(2 * ANSWER, sizeof *r->values);
    r->count = 2 * ANSWER;
    for (int i = 0; got && i < 2 * ANSWER; i++)
        r->values[i] = (float)got->ids[i / ANSWER][i % ANSWER];
    mc_generation_free(got);
}

/* All weights, as their bytes say. */
static void quantize(trial *r)
{
    if (!r->model) return;
    mc_model_quantize(r->model, MC_WEIGHTS_INT8);
}

static const task tasks[] = {
    {"loading", .loads = true, .run = load},
    {"a step", .trains = true, .run = step},
    {"a step beside a base in 8 bits", .trains = true, .adapts = true, .run = step},
    {"a step with products of bytes", .trains = true, .adapts = true, .casts = true, .run = step},
    {"an answer", .run = answer},
    {"weights in 8 bits", .run = quantize},
};

static trial begin(const task *a, const char *folder)
{
    trial r = {.ctx = mc_init_distributed(&(mc_init_options){.seed = 9, .log = ignore_line}),
               .folder = folder};
    assert_good(r.ctx);
    if (!a->loads) load(&r);
    if (a->adapts) {
        bool adapted = mc_model_lora(r.model) || mc_model_soft_prompt(r.model);
        if (!adapted) mc_lora_add(r.model, &(mc_lora_options){.rank = 2});
        mc_model_quantize_base(r.model, MC_WEIGHTS_FP8);
    }
    if (a->casts && mc_module_set_recipe(mc_model_module(r.model), &(mc_recipe){MC_FP8_ALL}))
        mc_clear_error(r.ctx); /* t5 and cpm1 have no layer of a suitable size */
    if (a->trains) {
        r.sgd = mc_sgd_new(r.ctx, &(mc_sgd_options){.lr = 0.1f});
        r.optim = mc_optim_manager_new(r.ctx, NULL);
        mc_optimizer_add(r.sgd, mc_model_module(r.model));
        mc_optim_manager_add(r.optim, r.sgd, NULL);
    }
    assert_good(r.ctx);
    hook_device(r.ctx);
    return r;
}

static void end(trial *r)
{
    mc_optim_manager_free(r->optim);
    mc_optimizer_free(r->sgd);
    mc_model_free(r->model);
    assert_int_equal(r->ctx->device->memory.in_use, 0);
    mc_context_free(r->ctx);
    free(r->values);
}

/* What it came to. */
static void look(const task *a, trial *r)
{
    if (a->run != answer) r->values = parameter_values(mc_model_module(r->model), &r->count);
    assert_good(r->ctx);
}

/* Where memory runs out the task is run again, and comes to the same as if nothing had been. */
static void try_each(const task *a, source s, const char *folder)
{
    trial calm = begin(a, folder);
    a->run(&calm);
    look(a, &calm);
    long count = 0, nth = 0;
    do {
        nth++;
        trial r = begin(a, folder);
        fail_from(s, nth, false);
        a->run(&r);
        nth = failing_place(s);
        count = stop_failing(s);
        if (was_clean(r.ctx, a->what, nth)) a->run(&r);
        assert_good(r.ctx);
        look(a, &r);
        if (r.count != calm.count ||
            memcmp(r.values, calm.values, (size_t)r.count * sizeof *r.values) != 0)
            fail_msg("%s, allocation %ld: other results after it", a->what, nth);
        end(&r);
    } while (nth <= count);
    end(&calm);
    assert_true(count > 2);
}

static void test_each_allocation(void **state)
{
    (void)state;
    for (int f = 0; f < NAMES; f++) {
        temp_folder folder = temp_folder_new();
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 4});
        mc_model *model = tiny_model(ctx, tiny(names[f]), NULL);
        mc_model_set_dropout(model, 0); /* steps that failed have drawn numbers */
        assert_int_equal(mc_model_save(model, folder.path), MC_OK);
        bool prompted = f == NAMES - 1, adapted = f >= NAMES - 2;
        char adapter[512];
        snprintf(adapter, sizeof adapter, "%s", temp_path(&folder, "adapter"));
        if (adapted) {
            mc_lora_options lora = {.rank = 2, .base = folder.path};
            mc_soft_prompt_options prompt = {.tokens = 2, .base = folder.path};
            if (prompted) mc_soft_prompt_add(model, &prompt);
            if (!prompted) mc_lora_add(model, &lora);
            assert_int_equal(mc_model_save(model, adapter), MC_OK);
        }
        mc_context_free(ctx);
        for (source s = DEVICE; s < SOURCES && is_available(s); s++)
            for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
                try_each(&tasks[i], s, adapted ? adapter : folder.path);
        temp_folder_free(&folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
