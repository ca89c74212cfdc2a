/* Memory that runs out. Every allocation in turn fails: those of the host (in builds with
 * MC_FAULT_INJECTION) and those of the device, while a BERT is loaded and in a whole training step.
 * Each time there is a clean MC_ERR_NOMEM, nothing is lost, and the context works again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/faults.h"

/* ---- loading --------------------------------------------------------------------------------- */

enum { VOCABULARY = 30, TOKENS = 12 };

static mc_bert_config small_config(void)
{
    mc_bert_config c = mc_bert_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = 8;
    c.dim_ff = 12;
    c.layers = 2;
    c.heads = 2;
    c.positions = 16;
    c.dropout = c.attention_dropout = c.classifier_dropout = 0;
    return c;
}

static const mc_model_heads all_heads = {.pooler = true, .lm = true, .nsp = true};

static void load_with_faults(source s, bool all_after, const char *folder)
{
    long count = 0, nth = 0, survived = 0;
    do {
        nth++;
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = ignore_line});
        assert_good(ctx);
        hook_device(ctx);
        fail_from(s, nth, all_after);
        mc_model *bert = mc_bert_from_pretrained(
            ctx, folder, &(mc_load_options){.dtype = MC_BF16, .num_labels = 2});
        nth = failing_place(s);
        count = stop_failing(s);
        bool failed = was_clean(ctx, "loading", nth);
        if (failed && bert) fail_msg("allocation %ld: failed, and yet there is a model", nth);
        survived += !failed && nth <= count;
        bert = mc_bert_from_pretrained(ctx, folder, NULL); /* as if nothing had been */
        assert_good(ctx);
        mc_model_free(bert);
        mc_context_free(ctx);
    } while (nth <= count);
    /* the pool asks the system twice, so that one failure there need not be fatal */
    assert_true(survived <= (s == HOST && !all_after));
    assert_true(count >= (s == DEVICE ? 3 : 20)); /* the model's buckets at least */
}

static void test_loading(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_init_distributed(NULL);
    mc_bert_config config = small_config();
    mc_model_save(mc_bert_new(ctx, &config, &all_heads, NULL), folder.path);
    assert_good(ctx);
    mc_context_free(ctx);
    for (source s = DEVICE; s < SOURCES; s++)
        for (int all_after = 0; all_after < 2 && is_available(s); all_after++)
            load_with_faults(s, all_after, folder.path);
    temp_folder_free(&folder);
}

/* Saving: the old model is there until the new one is whole. */
static void test_saving(void **state)
{
    (void)state;
    temp_folder folder = temp_folder_new();
    mc_context *ctx = mc_init_distributed(NULL);
    mc_bert_config config = small_config();
    mc_model *bert = mc_bert_new(ctx, &config, &all_heads, NULL);
    mc_model_save(bert, folder.path);
    assert_good(ctx);
    hook_device(ctx);
    for (source s = DEVICE; s < SOURCES && is_available(s); s++) {
        long count = 0, nth = 0;
        do {
            nth++;
            fail_from(s, nth, false);
            mc_model_save(bert, folder.path);
            nth = failing_place(s);
            count = stop_failing(s);
            was_clean(ctx, "saving", nth);
            assert_int_equal(count_files(folder.path), 2);
            mc_model_free(mc_bert_from_pretrained(ctx, folder.path, NULL));
            assert_good(ctx);
        } while (nth <= count);
    }
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

static void test_beginning(void **state)
{
    (void)state;
    if (!is_available(HOST)) skip();
    long count = 0, nth = 0;
    do {
        nth++;
        fail_at(HOST, nth, false);
        mc_context *ctx = mc_init_distributed(NULL);
        count = stop_failing(HOST);
        if (nth <= count) assert_int_equal(mc_error_status(ctx), MC_ERR_NOMEM);
        assert_null(nth <= count ? mc_tape_begin(ctx) : NULL);
        mc_context_free(ctx);
    } while (nth <= count);
}

/* ---- a training step ------------------------------------------------------------------------- */

typedef struct trainer {
    mc_context *ctx;
    mc_model *bert;
    mc_optimizer *adam;
    mc_optim_manager *optim;
} trainer;

static trainer new_trainer(mc_recompute recompute, mc_dtype dtype)
{
    trainer r = {.ctx = mc_init_distributed(&(mc_init_options){.seed = 9})};
    mc_bert_config config = small_config();
    r.bert = mc_bert_new(r.ctx, &config, &all_heads,
                         &(mc_load_options){.recompute = recompute, .dtype = dtype});
    r.adam = mc_adam_new(r.ctx, &(mc_adam_options){.lr = 1e-2f});
    r.optim = mc_optim_manager_new(r.ctx, NULL);
    mc_optimizer_add(r.adam, mc_model_module(r.bert));
    mc_optim_manager_add(r.optim, r.adam, NULL);
    assert_good(r.ctx);
    hook_device(r.ctx);
    return r;
}

/* One step, forward to update; the loss. */
static float train_step(trainer *r)
{
    int32_t ids[TOKENS], labels[TOKENS], lengths[2] = {7, 5}, next[2] = {0, 1};
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = i * 7 % VOCABULARY;
        labels[i] = i % 3 ? -100 : i;
    }
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(r->ctx);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(TOKENS), ids, false),
                         .lengths = mc_tape_lengths(t, lengths, 2, 1)};
    mc_model_output out = mc_model_forward(t, r->bert, &in);
    mc_tensor *mlm = mc_model_loss(t, r->bert, out.last_hidden,
                                   mc_tape_input(t, MC_I32, MC_SHAPE(TOKENS), labels, false));
    mc_tensor *nsp = mc_cross_entropy(t, mc_model_nsp_logits(t, r->bert, out.pooled),
                                      mc_tape_input(t, MC_I32, MC_SHAPE(2), next, false), NULL);
    mc_tensor *loss = mc_loss_add(t, mlm, nsp, 1);
    mc_optim_manager_backward(r->optim, t, loss);
    mc_optim_manager_clip_grad_norm(r->optim, 1);
    mc_optim_manager_step(r->optim);
    float value = mc_mean_loss(r->ctx, loss);
    mc_tape_end(t);
    return value;
}

/* The losses of two undisturbed steps. */
static void two_losses(mc_recompute recompute, mc_dtype dtype, float loss[2])
{
    trainer r = new_trainer(recompute, dtype);
    for (int i = 0; i < 2; i++) loss[i] = train_step(&r);
    assert_good(r.ctx);
    assert_true(isfinite(loss[0]) && loss[0] != loss[1]);
    mc_context_free(r.ctx);
}

static void step_with_faults(source s, bool all_after, mc_recompute recompute, mc_dtype dtype)
{
    float expected[2];
    two_losses(recompute, dtype, expected);
    long count = 0, nth = 0;
    do {
        nth++;
        trainer r = new_trainer(recompute, dtype);
        fail_from(s, nth, all_after);
        float loss = train_step(&r);
        nth = failing_place(s);
        count = stop_failing(s);
        bool failed = was_clean(r.ctx, "a step", nth);
        if (nth <= count && !failed && (s == DEVICE || all_after))
            fail_msg("allocation %ld: nobody noticed", nth);
        assert_true(failed ? isnan(loss) : loss == expected[0]);
        for (int i = failed ? 0 : 1; i < 2; i++) { /* nothing was changed by the step that failed */
            loss = train_step(&r);
            assert_good(r.ctx);
            if (loss != expected[i])
                fail_msg("allocation %ld: loss %g, expected %g", nth, (double)loss,
                         (double)expected[i]);
        }
        mc_optim_manager_free(r.optim);
        mc_optimizer_free(r.adam);
        mc_model_free(r.bert);
        assert_int_equal(r.ctx->device->memory.in_use, 0);
        mc_context_free(r.ctx);
    } while (nth <= count);
    assert_true(count > (s == DEVICE ? 50 : 5));
}

static void test_a_training_step(void **state)
{
    (void)state;
    for (source s = DEVICE; s < SOURCES; s++)
        for (int all_after = 0; all_after < 2 && is_available(s); all_after++) {
            step_with_faults(s, all_after, MC_RECOMPUTE_NONE, MC_F32);
            step_with_faults(s, all_after, MC_RECOMPUTE_SELECTIVE, MC_BF16);
            step_with_faults(s, all_after, MC_RECOMPUTE_FULL, MC_F32);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beginning),
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_saving),
        cmocka_unit_test(test_a_training_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
