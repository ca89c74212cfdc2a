#include "tools/classify.h"

#include <time.h>
#include "tools/interrupt.h"
#include "tools/ranks.h"
#include "tools/train_options.h"

double classify_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

mc_dataset_options classify_rows(const mc_model *model, int64_t max_length)
{
    mc_model_shape shape = mc_model_get_shape(model);
    int64_t most = max_length ? max_length : 512;
    if (shape.positions && shape.positions < most) most = shape.positions;
    return (mc_dataset_options){.max_length = (int)most, .vocabulary = shape.vocab_size};
}

int classify_sizes(int device, const mc_model *model)
{
    bool first_token = mc_model_get_shape(model).kind == MC_MODEL_ENCODER;
    return device == TRAIN_CPU || !first_token ? 0 : 16;
}

/* A decoder reads what its encoder reads, as Hugging Face's T5 classifies. */
static mc_model_input input_of(mc_tape *t, mc_model *model, const mc_batch *batch)
{
    mc_model_shape shape = mc_model_get_shape(model);
    mc_model_input in = {.ids = batch->ids, .lengths = batch->lengths};
    if (shape.types) in.type_ids = batch->type_ids;
    if (shape.kind == MC_MODEL_ENCODER_DECODER) {
        in.decoder_ids = mc_model_shift_right(t, model, batch->ids, batch->lengths);
        in.decoder_lengths = batch->lengths;
    }
    return in;
}

mc_tensor *classify_logits(mc_tape *t, mc_model *model, const mc_dataset *dataset,
                           const mc_batch *batch)
{
    mc_model_input input = input_of(t, model, batch);
    mc_model_output out = mc_model_forward(t, model, &input);
    mc_tensor *logits = mc_model_classify(t, model, &out);
    if (!logits || mc_dataset_outputs(dataset) > 1) return logits;
    return mc_reshape(t, logits, MC_SHAPE(batch->lengths->count / batch->choices, batch->choices));
}

/* What a GPU records: mc_step_run. */
static void answer(mc_context *ctx, void *user)
{
    classify_exam *e = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor_copy(e->logits,
                   classify_logits(t, e->model, mc_dataloader_dataset(e->loader), e->batch));
    mc_tape_end(t);
}

/* Answers to the batch, by a recorded step where all batches have one of a few shapes. */
static mc_tensor *find_logits(mc_tape *t, classify_exam *e)
{
    const mc_dataset *dataset = mc_dataloader_dataset(e->loader);
    int outputs = mc_dataset_outputs(dataset);
    if (!e->batch->key) return classify_logits(t, e->model, dataset, e->batch);
    mc_shape shape =
        MC_SHAPE(mc_tensor_size(e->batch->labels, 0), outputs > 1 ? outputs : e->batch->choices);
    mc_context *ctx = mc_tape_context(t);
    if (!e->logits) e->logits = mc_tensor_new(ctx, MC_F32, shape);
    mc_step_run(ctx, e->batch->key, answer, e);
    return e->logits;
}

bool classify_evaluate(mc_context *ctx, classify_exam *e, run_log *log, classify_score *score)
{
    mc_dataset *dataset = mc_dataloader_dataset(e->loader);
    int64_t done = 0, n = 0, total = mc_dataset_rows(dataset);
    double start = classify_clock();
    *score = (classify_score){.accuracy.classes = mc_dataset_labels(dataset)};
    while (!ranks_stop(ctx, n++, e->gpu) && (e->batch = mc_dataloader_next(e->loader))) {
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *logits = find_logits(t, e);
        mc_accuracy_add(&score->accuracy, mc_argmax(t, logits), e->batch->labels);
        mc_tape_end(t);
        run_log_progress(log, "eval", "rows", done += e->batch->all_rows, total);
    }
    if (!interrupt_requested()) mc_accuracy_gather(ctx, &score->accuracy);
    score->seconds = classify_clock() - start;
    return !mc_failed(ctx) && !interrupt_requested();
}

void classify_report(run_log *log, const mc_dataset *dataset, const char *split,
                     const classify_score *score, int64_t step, int64_t epoch)
{
    const char *names[RUN_EVAL_CLASSES];
    double recall[RUN_EVAL_CLASSES];
    int classes = mc_dataset_labels(dataset);
    for (int k = 0; k < classes; k++) {
        names[k] = mc_dataset_label_name(dataset, k);
        recall[k] = mc_accuracy_recall(&score->accuracy, k);
    }
    run_log_eval(log, &(run_eval){.step = step,
                                  .epoch = epoch,
                                  .split = split,
                                  .n = score->accuracy.count,
                                  .accuracy = mc_accuracy_share(&score->accuracy),
                                  .f1 = mc_accuracy_f1(&score->accuracy),
                                  .classes = classes,
                                  .class_names = names,
                                  .recall = recall,
                                  .seconds = score->seconds});
}

mc_status classify_result(run_log *log, const mc_dataset *dataset, const classify_score *score,
                          double train_seconds)
{
    return run_log_result(log, &(run_result){.task = mc_dataset_task(dataset),
                                             .accuracy = mc_accuracy_share(&score->accuracy),
                                             .f1 = mc_accuracy_f1(&score->accuracy),
                                             .n = score->accuracy.count,
                                             .train_seconds = train_seconds});
}
