/* The memory planner on the GPU: what kernels and cuDNN take there is found without running them,
 * and is what a step then takes. Skipped where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/device/device_internal.h"
#include "tests/device_choice.h"
#include "tests/optim/optim_test.h"

enum { VOCABULARY = 256, BATCH = 3, LENGTH = 64, TOKENS = BATCH * LENGTH };

typedef struct work {
    mc_model *gpt2;
    mc_model *bert;
    mc_optim_manager *optim;
    mc_tensor *ids, *labels;
} work;

/* Attention of sequences of one length, and a loss in chunks. */
static void gpt2_step(mc_context *ctx, void *user)
{
    work *w = user;
    mc_optim_manager_zero_grad(w->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_output out = mc_model_forward(t, w->gpt2, &(mc_model_input){.ids = w->ids});
    mc_tensor *loss = mc_model_loss(t, w->gpt2, out.last_hidden, w->labels);
    mc_optim_manager_backward(w->optim, t, loss);
    mc_tape_end(t);
    mc_optim_manager_step(w->optim);
}

/* Of several lengths, with rows after the last token. */
static void bert_step(mc_context *ctx, void *user)
{
    static const int32_t lengths[BATCH] = {LENGTH, 0, 13};
    work *w = user;
    mc_optim_manager_zero_grad(w->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = {.ids = w->ids, .lengths = mc_tape_lengths(t, lengths, BATCH, TOKENS)};
    mc_tensor *loss =
        mc_model_loss(t, w->bert, mc_model_forward(t, w->bert, &in).last_hidden, w->labels);
    mc_optim_manager_backward(w->optim, t, loss);
    mc_tape_end(t);
    mc_optim_manager_step(w->optim);
}

static mc_model *new_gpt2(mc_context *ctx, const mc_load_options *load)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = 64;
    c.dim_ff = 160;
    c.layers = 2;
    c.heads = 4;
    c.positions = LENGTH;
    return mc_gpt2_new(ctx, &c, NULL, load);
}

static mc_model *new_bert(mc_context *ctx, const mc_load_options *load)
{
    mc_bert_config c = mc_bert_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = 64;
    c.dim_ff = 160;
    c.layers = 2;
    c.heads = 4;
    c.positions = LENGTH;
    return mc_bert_new(ctx, &c, &(mc_model_heads){.lm = true}, load);
}

/* The same on a real context and on a planning one. */
static work new_work(mc_context *ctx, mc_dtype dtype, bool of_bert, const mc_recipe *recipe)
{
    work w = {0};
    mc_load_options load = {.dtype = dtype, .recipe = *recipe};
    if (of_bert)
        w.bert = new_bert(ctx, &load);
    else
        w.gpt2 = new_gpt2(ctx, &load);
    w.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    mc_optimizer_add(adam, of_bert ? mc_model_module(w.bert) : mc_model_module(w.gpt2));
    mc_optim_manager_add(w.optim, adam, NULL);
    mc_shape shape = of_bert ? MC_SHAPE(TOKENS) : MC_SHAPE(BATCH, LENGTH);
    w.ids = mc_tensor_new(ctx, MC_I32, shape);
    w.labels = mc_tensor_new(ctx, MC_I32, MC_SHAPE(TOKENS));
    return w;
}

static void check_recipe(mc_dtype dtype, bool of_bert, mc_grad_dtype grad_dtype,
                         const mc_recipe *recipe)
{
    void (*step)(mc_context *, void *) = of_bert ? bert_step : gpt2_step;
    mc_context *ctx = context_on("cuda", 4);
    if (!ctx) skip();
    ctx->grad_dtype = grad_dtype;
    mc_context *dry = mc_plan_context_new(ctx);
    work planned = new_work(dry, dtype, of_bert, recipe);
    mc_memory_plan plan;
    mc_plan_run(dry, of_bert ? mc_model_module(planned.bert) : mc_model_module(planned.gpt2), step,
                &planned, &plan);
    assert_good(dry);
    assert_good(ctx);
    assert_int_equal(ctx->device->memory.in_use, 0);
    assert_int_equal(ctx->device->memory.peak, 0);
    mc_context_free(dry);
    work real = new_work(ctx, dtype, of_bert, recipe);
    for (int i = 0; i < 3; i++) {
        step(ctx, &real);
        assert_good(ctx);
    }
    mc_step_report report;
    assert_true(mc_optim_manager_report(real.optim, 0, &report));
    mc_memory_use use = mc_memory(ctx);
    printf("planned %llu, taken %llu\n", (unsigned long long)plan.peak,
           (unsigned long long)use.peak);
    assert_near((double)plan.peak, (double)use.peak, 0.02 * (double)use.peak);
    mc_context_free(ctx);
}

static void check(mc_dtype dtype, bool of_bert, mc_grad_dtype grad_dtype)
{
    check_recipe(dtype, of_bert, grad_dtype, &(mc_recipe){.fp8 = MC_FP8_NONE});
}

static void test_gpt2(void **state)
{
    (void)state;
    check(MC_F32, false, MC_GRAD_F32);
    check(MC_BF16, false, MC_GRAD_F32);
    check(MC_BF16, false, MC_GRAD_PARAMETER);
}

static void test_bert(void **state)
{
    (void)state;
    check(MC_F32, true, MC_GRAD_F32);
    check(MC_BF16, true, MC_GRAD_F32);
    check(MC_BF16, true, MC_GRAD_PARAMETER);
}

/* Delayed scales: the first step has none yet, and takes more memory than all after it. */
static void test_fp8(void **state)
{
    (void)state;
    const mc_recipe delayed = {.fp8 = MC_FP8_ALL},
                    current = {.fp8 = MC_FP8_ALL, .scaling = MC_FP8_CURRENT};
    check_recipe(MC_BF16, false, MC_GRAD_F32, &delayed);
    check_recipe(MC_BF16, true, MC_GRAD_PARAMETER, &delayed);
    check_recipe(MC_F32, false, MC_GRAD_F32, &delayed);
    check_recipe(MC_BF16, false, MC_GRAD_F32, &current);
    check_recipe(MC_F32, true, MC_GRAD_F32, &current);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt2), cmocka_unit_test(test_bert),
                                       cmocka_unit_test(test_fp8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
