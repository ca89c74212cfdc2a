/* The loss of each family's objective: what it is made of, and the same training on a device of
 * choice (MC_TEST_DEVICE), where steps are recorded, as eagerly on the CPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/device_choice.h"
#include "tests/models/family_test.h"

/* Content is FIRST to FIRST + LETTERS - 1 of the tiny models' 50 tokens. */
enum { SEQUENCES = 3, STEPS = 8, STREAM = 3000, FIRST = 4, LETTERS = 26, STEP_KEY = 1 };

typedef struct trained {
    mc_context *ctx;
    mc_model *model;
    mc_optim_manager *optim;
    mc_objective_options o;
    mc_objective *objective;
    mc_tensor *field[MC_FIELDS];
} trained;

static mc_objective_options options_of(const char *family)
{
    mc_objective_options o = {
        .style = *mc_family_objective(family), .seq_length = 20, .vocabulary = FIRST + LETTERS};
    o.tokens = (mc_objective_tokens){.mask = 49,
                                     .begin = 48,
                                     .separator = 47,
                                     .start = 0,
                                     .input_end = o.style.input_end ? 1 : -1,
                                     .target_end = o.style.target_end ? 1 : -1,
                                     .sentinel_count = 10,
                                     .end_of_text = FIRST};
    for (int i = 0; i < 10; i++) o.tokens.sentinel[i] = 46 - i;
    if (o.style.kind == MC_OBJECTIVE_CONTEXT) o.seq_length = 40; /* 32 at least */
    return o;
}

static mc_objective *open_stream(mc_context *ctx, const mc_objective_options *o)
{
    static int32_t tokens[STREAM];
    for (int i = 0; i < STREAM; i++) /* the first letter ends a document */
        tokens[i] = FIRST + (i % 97 ? 1 + (i * i / 7 + i) % (LETTERS - 1) : 0);
    mc_token_file *file =
        mc_token_file_from_arrays(ctx, (const int32_t *[]){tokens}, (const int64_t[]){STREAM}, 1);
    mc_lm_loader_options options = {.batch_size = SEQUENCES,
                                    .seq_length = mc_objective_window(ctx, o),
                                    .seed = 5,
                                    .shuffle = true,
                                    .repeat = true};
    mc_lm_loader *loader = mc_lm_loader_new(file, &options), *elsewhere = NULL;
    options.seed = 6;
    if (o->style.next_sentence) elsewhere = mc_lm_loader_new(file, &options);
    return mc_objective_new(loader, elsewhere, o);
}

static trained begin(mc_context *ctx, const tiny_family *f)
{
    trained r = {.ctx = ctx, .o = options_of(f->name)};
    mc_model_heads heads = mc_objective_heads(&r.o.style);
    r.model = model_of(ctx, f->name, f->config, &heads, NULL);
    mc_model_set_dropout(r.model, 0);
    r.objective = open_stream(ctx, &r.o);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 1e-3f, .eps = 1e-5f});
    r.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optimizer_add(adam, mc_model_module(r.model));
    mc_optim_manager_add(r.optim, adam, NULL);
    for (int k = 0; k < MC_FIELDS; k++) {
        int width = mc_objective_width(&r.o, k);
        if (width) r.field[k] = mc_tensor_new(ctx, MC_I32, MC_SHAPE(SEQUENCES, width));
    }
    assert_good(ctx);
    return r;
}

static void fill(trained *r)
{
    const mc_objective_batch *b = mc_objective_next(r->objective);
    assert_non_null(b);
    for (int f = 0; f < MC_FIELDS; f++)
        if (r->field[f])
            mc_tensor_write(r->field[f], b->field[f],
                            SEQUENCES * (size_t)mc_objective_width(&r->o, f) * sizeof(int32_t));
}

/* ---- training -------------------------------------------------------------------------------- */

static void step(mc_context *ctx, void *user)
{
    trained *r = user;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_optim_manager_backward(r->optim, t, mc_model_pretraining_loss(t, r->model, r->field));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

static void train(mc_context *ctx, const tiny_family *f, mc_step_report reports[STEPS])
{
    trained r = begin(ctx, f);
    for (int i = 0; i < STEPS; i++) {
        fill(&r);
        mc_step_run(ctx, STEP_KEY, step, &r);
        assert_good(ctx);
        assert_true(mc_optim_manager_report(r.optim, 0, &reports[i]));
    }
}

/* Of the CPU's with other kernels and one more addition order, within f32's rounding over a few
 * steps. */
static void test_devices(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_FAMILIES; i++) {
        const tiny_family *f = &tiny_families[i];
        mc_step_report got[STEPS], expected[STEPS];
        mc_context *device = test_context(3),
                   *cpu = mc_init_distributed(&(mc_init_options){.seed = 3});
        train(device, f, got);
        train(cpu, f, expected);
        for (int k = 0; k < STEPS; k++) {
            if (!(fabs(got[k].loss - expected[k].loss) <= 1e-4) ||
                !(fabs(got[k].grad_norm - expected[k].grad_norm) <= 1e-3 * expected[k].grad_norm))
                fail_msg("%s, step %d: loss %.7f norm %.6f, expected %.7f and %.6f", f->name, k + 1,
                         (double)got[k].loss, (double)got[k].grad_norm, (double)expected[k].loss,
                         (double)expected[k].grad_norm);
        }
        assert_true(expected[0].loss > 3 && expected[STEPS - 1].loss != expected[0].loss);
        mc_context_free(device);
        mc_context_free(cpu);
    }
}

/* ---- what the loss is ------------------------------------------------------------------------ */

/* Labels of all rows, of which those count that are targets. */
static mc_tensor *labels_of_all(mc_tape *t, const mc_objective_batch *b, const trained *r)
{
    int32_t labels[64 * SEQUENCES];
    int rows = SEQUENCES * r->o.seq_length, width = mc_objective_width(&r->o, MC_FIELD_TARGETS);
    for (int i = 0; i < rows; i++) labels[i] = -100;
    for (int i = 0; i < SEQUENCES * width; i++)
        labels[b->field[MC_FIELD_TARGET_ROWS][i]] = b->field[MC_FIELD_TARGETS][i];
    return mc_tape_input(t, MC_I32, MC_SHAPE(rows), labels, false);
}

/* The head on picked rows gives what it gives on all; pairs add the mean of theirs. */
static void test_masked_loss(void **state)
{
    (void)state;
    static const char *const names[] = {"bert", "roberta"};
    for (int i = 0; i < 2; i++) {
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 4});
        trained r = begin(ctx, tiny(names[i]));
        const mc_objective_batch *b = mc_objective_next(r.objective);
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *field[MC_FIELDS] = {NULL};
        for (int f = 0; f < MC_FIELDS; f++)
            if (b->field[f])
                field[f] = mc_tape_input(t, MC_I32, r.field[f]->shape, b->field[f], false);
        double found = mc_mean_loss(ctx, mc_model_pretraining_loss(t, r.model, field));
        mc_model_output out = mc_model_forward(
            t, r.model,
            &(mc_model_input){.ids = field[MC_FIELD_IDS], .type_ids = field[MC_FIELD_TYPE_IDS]});
        float expected =
            mc_mean_loss(ctx, mc_model_loss(t, r.model, out.last_hidden, labels_of_all(t, b, &r)));
        if (i == 0)
            expected +=
                mc_mean_loss(ctx, mc_cross_entropy(t, mc_model_nsp_logits(t, r.model, out.pooled),
                                                   field[MC_FIELD_LABELS], NULL));
        assert_good(ctx);
        assert_float_equal(found, expected, 2e-6); /* sums in another order */
        assert_true(found > 3);
        mc_tape_end(t);
        mc_context_free(ctx);
    }
}

static void test_errors(void **state)
{
    (void)state;
    mc_context *ctx = mc_init_distributed(NULL);
    trained r = begin(ctx, tiny("bert"));
    mc_model *plain =
        model_of(ctx, "bert", tiny("bert")->config, &(mc_model_heads){.lm = true}, NULL);
    fill(&r);
    mc_tape *t = mc_tape_begin_eval(ctx);
    assert_null(mc_model_pretraining_loss(t, plain, r.field));
    assert_non_null(strstr(mc_error_message(ctx), "has no next sentence head"));
    mc_clear_error(ctx);
    int32_t beyond[] = {SEQUENCES * 20};
    mc_tensor *row = mc_tape_input(t, MC_I32, MC_SHAPE(1), beyond, false);
    mc_model_output out =
        mc_model_forward(t, plain, &(mc_model_input){.ids = r.field[MC_FIELD_IDS]});
    assert_null(mc_model_loss_of_rows(t, plain, out.last_hidden, row, row));
    assert_non_null(strstr(mc_error_message(ctx), "index[0] = 60"));
    assert_null(mc_family_objective("lstm"));
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_masked_loss),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
