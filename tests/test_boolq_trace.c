/* The reference's fine-tuning run, step for step: MiniLM-L6 on the first 480 rows of BoolQ with a
 * given classifier, 30 AdamW steps in f32 without dropout. Losses, gradient norms and the logits of
 * 64 validation rows before and after must be the reference's, on the device of MC_TEST_DEVICE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "device_choice.h"
#include "shared_data.h"

enum { STEPS = 30, BATCH = 16, VAL_ROWS = 64 };

typedef struct trace {
    mc_context *ctx;
    mc_tensor_file *file;
    mc_tokenizer *tokenizer;
    mc_model *bert;
    const char *data;
} trace;

static void read_values(trace *r, const char *name, int64_t count, double *out)
{
    const mc_tensor_entry *entry = mc_tensor_file_find(r->file, name);
    assert_non_null(entry);
    assert_int_equal(entry->count, count);
    assert_int_equal(mc_tensor_file_read_f64(r->file, entry, 0, count, out), MC_OK);
}

static void set_parameter(trace *r, const char *ours, const char *theirs)
{
    mc_parameter *p = mc_module_find_parameter(mc_model_module(r->bert), ours);
    const mc_tensor_entry *entry = mc_tensor_file_find(r->file, theirs);
    assert_non_null(p);
    assert_non_null(entry);
    float values[1024];
    assert_true(entry->count <= 1024);
    mc_tensor_file_read_f32(r->file, entry, 0, entry->count, values);
    assert_int_equal(mc_parameter_write(p, values), MC_OK);
}

static mc_tensor *logits_of(mc_tape *t, trace *r, const mc_batch *b)
{
    mc_model_input in = {.ids = b->ids, .lengths = b->lengths};
    mc_model_output out = mc_model_forward(t, r->bert, &in);
    return mc_model_classify(t, r->bert, &out);
}

/* Largest difference of the first validation rows' logits, over the largest logit. */
static double logit_error(trace *r, const char *name)
{
    double expected[2 * VAL_ROWS], largest = 0, error = 0;
    read_values(r, name, 2 * VAL_ROWS, expected);
    mc_dataset *val = mc_dataset_open(r->ctx, "BoolQ", r->data, "val", r->tokenizer, NULL);
    mc_dataloader *loader =
        mc_dataloader_new(val, &(mc_dataloader_options){.batch_size = VAL_ROWS});
    mc_batch *b = mc_dataloader_next(loader);
    if (!b) fail_msg("%s", mc_error_message(r->ctx));
    float got[2 * VAL_ROWS];
    mc_tape *t = mc_tape_begin_eval(r->ctx);
    mc_tensor_read_f32(r->ctx, logits_of(t, r, b), got, 2 * VAL_ROWS);
    mc_tape_end(t);
    for (int i = 0; i < 2 * VAL_ROWS; i++) {
        largest = fmax(largest, fabs(expected[i]));
        error = fmax(error, fabs(got[i] - expected[i]));
    }
    mc_dataloader_free(loader);
    return error / largest;
}

/* Trains the thirty steps; the largest relative errors of losses and norms. */
static void train(trace *r, double *loss_error, double *norm_error)
{
    double losses[STEPS], norms[STEPS];
    read_values(r, "losses", STEPS, losses);
    read_values(r, "grad_norms", STEPS, norms);
    mc_dataset *rows = mc_dataset_open(r->ctx, "BoolQ", r->data, "train", r->tokenizer, NULL);
    mc_dataloader *loader = mc_dataloader_new(rows, &(mc_dataloader_options){.batch_size = BATCH});
    mc_optimizer *adam =
        mc_adam_new(r->ctx, &(mc_adam_options){.lr = 5e-5f, .weight_decay = 0.01f});
    mc_optim_manager *optim = mc_optim_manager_new(r->ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(r->bert));
    mc_optim_manager_add(optim, adam, NULL);
    for (int i = 0; i < STEPS; i++) {
        mc_batch *b = mc_dataloader_next(loader);
        if (!b) fail_msg("step %d: %s", i, mc_error_message(r->ctx));
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(r->ctx);
        mc_tensor *loss = mc_cross_entropy(t, logits_of(t, r, b), b->labels, NULL);
        mc_optim_manager_backward(optim, t, loss);
        double value = mc_mean_loss(r->ctx, loss), norm = mc_optim_manager_clip_grad_norm(optim, 1);
        mc_optim_manager_step(optim);
        mc_tape_end(t);
        *loss_error = fmax(*loss_error, fabs(value / losses[i] - 1));
        *norm_error = fmax(*norm_error, fabs(norm / norms[i] - 1));
    }
}

static void test_trace(void **state)
{
    (void)state;
    const char *file = shared_path("goldens/minilm/boolq-trace.safetensors");
    const char *model = shared_path("data/minilm-l6"), *data = shared_path("data/boolq");
    if (!file || !model || !data) skip();
    trace r = {.ctx = test_context(0), .data = data};
    r.file = mc_tensor_file_open(r.ctx, file, NULL);
    r.tokenizer = mc_tokenizer_from_pretrained(r.ctx, model);
    r.bert = mc_bert_from_pretrained(r.ctx, model, &(mc_load_options){.num_labels = 2});
    if (mc_failed(r.ctx)) fail_msg("%s", mc_error_message(r.ctx));
    mc_model_set_dropout(r.bert, 0);
    set_parameter(&r, "classifier.weight", "classifier.weight");
    set_parameter(&r, "classifier.bias", "classifier.bias");
    double before = logit_error(&r, "val_logits_before"), loss = 0, norm = 0;
    train(&r, &loss, &norm);
    double after = logit_error(&r, "val_logits_after");
    print_message(
        "worst relative errors: losses %.2g, norms %.2g, logits before %.2g, after %.2g\n", loss,
        norm, before, after);
    if (mc_failed(r.ctx)) fail_msg("%s", mc_error_message(r.ctx));
    assert_true(loss <= 1e-3);
    assert_true(norm <= 1e-3);
    assert_true(before <= 1e-3);
    assert_true(after <= 1e-3);
    mc_context_free(r.ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
