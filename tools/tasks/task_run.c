#include "tools/tasks/task_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tools/tasks/task_score.h"
#include "tools/options/train_options.h"

double task_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- data ------------------------------------------------------------------------------------ */

mc_dataset_options task_rows(const mc_model *model, const mc_tokenizer *tok, int64_t max_length,
                             int64_t max_target_length)
{
    mc_model_shape shape = mc_model_get_shape(model);
    int64_t most = max_length ? max_length : tok ? mc_tokenizer_max_length(tok) : 0;
    if (!most || most > INT32_MAX) most = 512;
    if (shape.positions && shape.positions < most) most = shape.positions;
    return (mc_dataset_options){.max_length = (int)most,
                                .max_target_length = (int)max_target_length,
                                .vocabulary = shape.vocab_size,
                                .prompt = mc_model_prompt(model),
                                .image = mc_model_image_form(model)};
}

int task_sizes(int device, const mc_model *model, const mc_dataset *dataset)
{
    mc_task_kind kind = mc_dataset_kind(dataset);
    bool first_token = mc_model_get_shape(model).kind == MC_MODEL_ENCODER;
    bool prompted = kind == MC_TASK_GENERATE || kind == MC_TASK_ANSWER;
    bool values = kind == MC_TASK_MULTI_LABEL || kind == MC_TASK_REGRESS;
    if (mc_model_soft_prompt(model)) return 0; /* which needs lengths that the host knows */
    return device == TRAIN_CPU || values || !(prompted || first_token) ? 0 : 16;
}

/* ---- one batch ------------------------------------------------------------------------------- */

/* Where the batch has no ids for the decoder, that reads what its encoder reads, as Hugging Face's
 * T5 classifies. */
static mc_model_input input_of(mc_tape *t, mc_model *model, const mc_batch *batch)
{
    mc_model_shape shape = mc_model_get_shape(model);
    if (batch->pixels) return (mc_model_input){.pixels = batch->pixels};
    mc_model_input in = {.ids = batch->ids,
                         .lengths = batch->lengths,
                         .marks = batch->marks,
                         .decoder_ids = batch->decoder_ids,
                         .decoder_lengths = batch->decoder_lengths};
    if (shape.types) in.type_ids = batch->type_ids;
    if (shape.kind == MC_MODEL_ENCODER_DECODER && !in.decoder_ids) {
        in.decoder_ids = mc_model_shift_right(t, model, batch->ids, batch->lengths);
        in.decoder_lengths = batch->lengths;
    }
    return in;
}

/* The language model's logits of the answers' tokens, at the rows where answers are read. */
static mc_tensor *answer_logits(mc_tape *t, mc_model *model, const mc_dataset *dataset,
                                const mc_batch *batch, mc_tensor *hidden)
{
    mc_tensor *one[MC_DATASET_MAX_LABELS];
    const int32_t *answer = mc_dataset_answers(dataset);
    int labels = mc_dataset_labels(dataset);
    mc_tensor *rows = hidden ? mc_embed(t, 1, &hidden, &(mc_tensor *){batch->answer_rows}) : NULL;
    mc_tensor *logits = rows ? mc_model_logits(t, model, rows) : NULL;
    if (!logits) return NULL;
    for (int k = 0; k < labels; k++) one[k] = mc_slice(t, logits, 1, answer[k], 1);
    return mc_concat(t, labels, one, 1);
}

static mc_tensor *outputs_of(mc_tape *t, mc_model *model, const mc_dataset *dataset,
                             const mc_batch *batch, const mc_model_output *out)
{
    if (mc_dataset_kind(dataset) == MC_TASK_ANSWER)
        return answer_logits(t, model, dataset, batch, out->last_hidden);
    mc_tensor *logits = mc_model_classify(t, model, out);
    if (!logits || batch->choices == 1) return logits;
    return mc_reshape(t, logits, MC_SHAPE(batch->lengths->count / batch->choices, batch->choices));
}

mc_tensor *task_hidden(mc_tape *t, mc_model *model, const mc_batch *batch)
{
    mc_model_input input = input_of(t, model, batch);
    return mc_model_forward(t, model, &input).last_hidden;
}

mc_tensor *task_outputs(mc_tape *t, mc_model *model, const mc_dataset *dataset,
                        const mc_batch *batch)
{
    mc_model_input input = input_of(t, model, batch);
    mc_model_output out = mc_model_forward(t, model, &input);
    return outputs_of(t, model, dataset, batch, &out);
}

mc_tensor *task_ratio_new(mc_context *ctx, const mc_dataset *dataset)
{
    bool both = mc_dataset_kind(dataset) == MC_TASK_ANSWER &&
                mc_dataset_prompt(dataset).style == MC_PROMPT_DECODER;
    return both ? mc_tensor_new(ctx, MC_F32, MC_SHAPE(2)) : NULL;
}

/* Every token of a prompt but its first is a target. */
void task_ratio_set(mc_tensor *ratio, const mc_batch *batch)
{
    int64_t targets = batch->all_tokens - batch->all_rows;
    float values[2] = {(float)((double)targets / (double)batch->all_rows), 0};
    if (ratio) mc_tensor_write(ratio, values, sizeof values);
}

mc_tensor *task_loss(mc_tape *t, mc_model *model, const mc_dataset *dataset, const mc_batch *batch,
                     mc_tensor *ratio)
{
    mc_task_kind kind = mc_dataset_kind(dataset);
    mc_model_input input = input_of(t, model, batch);
    mc_model_output out = mc_model_forward(t, model, &input);
    mc_tensor *prompt = NULL;
    if (batch->targets) prompt = mc_model_loss(t, model, out.last_hidden, batch->targets);
    if (kind == MC_TASK_GENERATE) return prompt;
    mc_tensor *outputs = outputs_of(t, model, dataset, batch, &out);
    if (!outputs) return NULL;
    if (kind == MC_TASK_MULTI_LABEL) return mc_bce_loss(t, outputs, batch->values, NULL);
    if (kind == MC_TASK_REGRESS)
        return mc_mse_loss(t, mc_reshape(t, outputs, mc_tensor_shape(batch->values)),
                           batch->values);
    mc_tensor *loss = mc_cross_entropy(t, outputs, batch->labels, NULL);
    if (!prompt) return loss;
    return ratio ? mc_loss_add_ratio(t, prompt, loss, ratio) : mc_loss_add(t, prompt, loss, 1);
}

int task_find_not_finite(mc_tape *t, mc_model *model, mc_tensor *hidden, const int32_t *targets)
{
    mc_context *ctx = mc_tape_context(t);
    const mc_lengths *l = mc_tensor_lengths(hidden);
    for (int i = 0; l && i < l->count && !mc_failed(ctx); i++) {
        int64_t first = l->offset[i], n = l->length[i];
        mc_tensor *own = mc_slice(t, hidden, 0, first, n);
        mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(n), targets + first, false);
        double loss = mc_mean_loss(ctx, mc_model_loss(t, model, own, labels));
        if (!mc_failed(ctx) && !isfinite(loss)) return i;
    }
    return -1;
}

void task_probabilities(mc_task_kind kind, const float *outputs, int count, float *probabilities)
{
    double most = count ? outputs[0] : 0, sum = 0;
    for (int k = 1; k < count; k++) most = fmax(most, outputs[k]);
    for (int k = 0; k < count; k++) sum += exp(outputs[k] - most);
    for (int k = 0; k < count; k++)
        probabilities[k] = kind == MC_TASK_REGRESS       ? outputs[k]
                           : kind == MC_TASK_MULTI_LABEL ? (float)(1 / (1 + exp(-outputs[k])))
                                                         : (float)(exp(outputs[k] - most) / sum);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* What a score is read from: the loss, or the outputs. */
static mc_tensor *result_of(mc_tape *t, task_exam *e)
{
    const mc_dataset *dataset = mc_dataloader_dataset(e->loader);
    if (task_results_of(e) != TASK_RESULTS_LOSS)
        return task_outputs(t, e->model, dataset, e->batch);
    e->hidden = task_hidden(t, e->model, e->batch);
    return mc_model_loss(t, e->model, e->hidden, e->batch->targets);
}

/* What a GPU records: mc_step_run. */
static void answer(mc_context *ctx, void *user)
{
    task_exam *e = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor_copy(e->result, result_of(t, e));
    mc_tape_end(t);
    e->hidden = NULL;
}

/* Outputs of a row. */
static int output_count(const mc_dataset *dataset)
{
    int labels = mc_dataset_labels(dataset);
    return labels ? labels : 1;
}

/* The result of the batch, by a recorded step where all batches have one of a few shapes. */
static mc_tensor *find_result(mc_tape *t, task_exam *e)
{
    const mc_dataset *dataset = mc_dataloader_dataset(e->loader);
    if (!e->batch->key) return result_of(t, e);
    int64_t rows = e->batch->pixels ? mc_tensor_size(e->batch->pixels, 0)
                                    : e->batch->lengths->count / e->batch->choices;
    mc_shape shape = MC_SHAPE(rows, output_count(dataset));
    if (task_results_of(e) == TASK_RESULTS_LOSS) shape = MC_SHAPE(2);
    mc_context *ctx = mc_tape_context(t);
    if (!e->result) e->result = mc_tensor_new(ctx, MC_F32, shape);
    mc_step_run(ctx, e->batch->key, answer, e);
    return e->result;
}

/* The place in the batch of the first row whose loss is not finite; -1: it is not known which. */
static int bad_row(mc_tape *t, const task_exam *e)
{
    int64_t count = mc_tensor_count(e->batch->targets);
    float *read = e->hidden ? malloc(((size_t)count + 1) * sizeof *read) : NULL;
    int32_t *targets = read ? malloc(((size_t)count + 1) * sizeof *targets) : NULL;
    int row = -1;
    if (targets &&
        mc_tensor_read_f32(mc_tape_context(t), e->batch->targets, read, count) == MC_OK) {
        for (int64_t i = 0; i < count; i++) targets[i] = (int32_t)read[i];
        row = task_find_not_finite(t, e->model, e->hidden, targets);
    }
    free(targets);
    free(read);
    return row < e->batch->rows ? row : -1;
}

/* Whether a row comes before another in the files. */
static bool is_before(const mc_dataset *rows, int64_t a, int64_t b)
{
    int order = strcmp(mc_dataset_file(rows, a), mc_dataset_file(rows, b));
    int64_t line = mc_dataset_line(rows, a), other = mc_dataset_line(rows, b);
    return order < 0 || (order == 0 && (line == other ? a < b : line < other));
}

/* Describes a batch in which an unknown row has a loss that is not finite, by the row that comes
 * last in the files. Returns the one that comes first. Batches group rows by length, so other rows
 * may lie between. */
static int64_t describe_batch(const task_exam *e, const mc_dataset *rows, char *out, size_t room)
{
    const mc_batch *b = e->batch;
    int64_t first = b->row_index[0], last = first;
    for (int i = 1; i < b->rows; i++) {
        if (is_before(rows, b->row_index[i], first)) first = b->row_index[i];
        if (is_before(rows, last, b->row_index[i])) last = b->row_index[i];
    }
    long long line = mc_dataset_line(rows, last);
    snprintf(out, room, "losses of this row, or of others of a batch of %d up to %s%s%lld,",
             b->rows, mc_dataset_file(rows, last), line ? ":" : ", row ",
             line ? line : (long long)last + 1);
    return first;
}

/* A batch's loss is of all its rows. If it is not finite, one of them is named, or all. */
static void add_loss(mc_tape *t, const task_exam *e, task_counts *counts, const float loss[2])
{
    char what[TASK_TEXT] = "losses of this row";
    if (!e->batch->rows) return;
    int row = mc_all_finite(loss, 2) ? 0 : bad_row(t, e);
    int64_t named =
        row < 0 ? describe_batch(e, counts->dataset, what, sizeof what) : e->batch->row_index[row];
    if (task_counts_check(counts, e, named, what, loss, 2)) task_counts_add_loss(counts, loss);
}

/* Counts the result of a batch, on the host. */
static bool count_result(mc_tape *t, task_exam *e, task_counts *counts, mc_tensor *result)
{
    mc_context *ctx = mc_tape_context(t);
    int64_t size = mc_tensor_count(result);
    float *values = result ? malloc(((size_t)size + 1) * sizeof *values) : NULL;
    if (result && !values) mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a batch's answers");
    if (!values) return false;
    mc_tensor_read_f32(ctx, result, values, size);
    int count = output_count(counts->dataset);
    if (counts->results == TASK_RESULTS_LOSS) add_loss(t, e, counts, values);
    for (int i = 0; counts->results != TASK_RESULTS_LOSS && i < e->batch->rows; i++) {
        const float *outputs = values + (int64_t)i * count;
        if (!task_counts_check(counts, e, e->batch->row_index[i], "logits", outputs, count)) break;
        task_counts_add_row(counts, e->batch->row_index[i], outputs);
        if (e->each) e->each(e->user, e->batch->row_index[i], outputs, count);
    }
    free(values);
    return !mc_failed(ctx);
}

static bool count_batch(mc_context *ctx, task_exam *e, task_counts *counts)
{
    if (counts->results == TASK_RESULTS_TEXTS) return task_add_texts(ctx, e, counts);
    mc_tape *t = mc_tape_begin_eval(ctx);
    bool ok = counts->results == TASK_RESULTS_CANDIDATES
                  ? task_add_candidates(t, e, counts)
                  : count_result(t, e, counts, find_result(t, e));
    mc_tape_end(t);
    e->hidden = NULL; /* the next batch's step may be recorded already */
    return ok;
}

/* Copies the text of the first rank that has one to all ranks. */
static void share_first(mc_context *ctx, char text[TASK_TEXT])
{
    enum { NUMBERS = TASK_TEXT / sizeof(double) }; /* whose bytes ranks exchange as they are */
    int ranks = mc_world_size(ctx), first = 0;
    double mine[NUMBERS], *all = calloc((size_t)ranks * NUMBERS, sizeof *all);
    memcpy(mine, text, sizeof mine);
    if (!all) mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for the texts of all ranks");
    if (all && mc_gather_numbers(ctx, mine, NUMBERS, all) == MC_OK) {
        while (first + 1 < ranks && !*(char *)(all + first * NUMBERS)) first++;
        memcpy(text, all + first * NUMBERS, sizeof mine);
    }
    free(all);
}

static void warn(mc_context *ctx, run_log *log, const task_exam *e, task_counts *counts,
                 double not_finite)
{
    if (!(not_finite > 0)) return;
    share_first(ctx, counts->not_finite);
    run_log_line(log, "warning: %s has no metric, for %.0f of its %s: %s", e->during, not_finite,
                 counts->results == TASK_RESULTS_LOSS ? "batches" : "rows", counts->not_finite);
}

bool task_evaluate(mc_context *ctx, task_exam *e, run_log *log, task_score *score)
{
    int64_t done = 0, n = 0, total = mc_dataset_rows(mc_dataloader_dataset(e->loader));
    double start = task_clock();
    task_counts counts;
    bool ok = task_counts_init(ctx, &counts, e);
    while (ok && !ranks_stop(ctx, n++, e->gpu) && (e->batch = mc_dataloader_next(e->loader))) {
        ok = count_batch(ctx, e, &counts);
        run_log_progress(log, "eval", "rows", done += e->batch->all_rows, total);
    }
    ok = !mc_failed(ctx) && !interrupt_requested();
    if (ok && score) ok = task_counts_score(&counts, score);
    if (ok && score) score->seconds = task_clock() - start;
    if (ok && score) warn(ctx, log, e, &counts, score->not_finite);
    task_counts_release(&counts);
    return ok;
}

/* ---- showing --------------------------------------------------------------------------------- */

void task_report(run_log *log, const mc_dataset *dataset, const char *split,
                 const task_score *score, int64_t step, int64_t epoch)
{
    const char *names[RUN_EVAL_CLASSES];
    mc_task_kind kind = mc_dataset_kind(dataset);
    int classes = mc_dataset_labels(dataset);
    if (classes > RUN_EVAL_CLASSES || kind == MC_TASK_MULTI_LABEL) classes = 0;
    for (int k = 0; k < classes; k++) names[k] = mc_dataset_label_name(dataset, k);
    run_log_eval(log, &(run_eval){.step = step,
                                  .epoch = epoch,
                                  .split = split,
                                  .n = score->n,
                                  .metrics = score->metric,
                                  .metric_count = score->metrics,
                                  .classes = classes,
                                  .class_names = names,
                                  .recall = score->recall,
                                  .seconds = score->seconds});
}

mc_status task_result(run_log *log, const mc_dataset *dataset, const task_score *score,
                      double train_seconds, const char *extra)
{
    const char *task = mc_dataset_task(dataset), *path = mc_dataset_path(dataset);
    const char *name = strrchr(path, '/');
    return run_log_result(log, &(run_result){.task = task   ? task
                                                     : name ? name + 1
                                                            : path,
                                             .metrics = score->metric,
                                             .metric_count = score->metrics,
                                             .n = score->n,
                                             .train_seconds = train_seconds,
                                             .extra = extra});
}
