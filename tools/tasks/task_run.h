/* A model on the rows of a dataset of any kind: loss, outputs, evaluation, answers. What finetune,
 * eval, predict and ask have in common. */
#ifndef MC_TOOLS_TASK_RUN_H
#define MC_TOOLS_TASK_RUN_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/log/run_log.h"

/* ---- data ------------------------------------------------------------------------------------ */

/* What the model can read: texts of at most `max_length` tokens (0: what the tokenizer's folder
 * says, else 512) and its positions, put as its family reads them. `max_target_length` 0: the
 * dataset's default. */
mc_dataset_options task_rows(const mc_model *model, const mc_tokenizer *tok, int64_t max_length,
                             int64_t max_target_length);

/* Option `sizes` of data loaders: how many shapes batches may have. Few where kernels are chosen
 * for each shape and steps are recorded; 0, any, on the CPU, for models whose classifier reads the
 * last token, which the host has to find, and for values, of which rows that are not there would
 * count. */
int task_sizes(int device, const mc_model *model, const mc_dataset *dataset);

/* ---- one batch ------------------------------------------------------------------------------- */

/* What the rows' answers are read from; NULL after an error:
 *   CLASSIFY, CHOOSE, ANSWER   logits (rows, labels): a row with several choices has one a choice
 *   MULTI_LABEL                logits (rows, labels), of which each says yes above 0
 *   REGRESS                    values (rows, 1)
 * With sizes some rows may be empty. GENERATE has none: its texts are generated. */
mc_tensor *task_outputs(mc_tape *t, mc_model *model, const mc_dataset *dataset,
                        const mc_batch *batch);

/* The model's last hidden states, of the decoder if there is one: mc_model_output.last_hidden. */
mc_tensor *task_hidden(mc_tape *t, mc_model *model, const mc_batch *batch);

/* The loss to train with: cross-entropy of classes; binary cross-entropy of several labels; mean
 * square error of values; the language model's of targets, and of ANSWER that of the prompt's
 * tokens, where they are targets, plus that of the answer. */
mc_tensor *task_loss(mc_tape *t, mc_model *model, const mc_dataset *dataset, const mc_batch *batch,
                     mc_tensor *ratio);

/* The first sequence of a batch whose loss by itself is not finite, found again from the hidden
 * states of the batch, on their tape; -1: none. `targets`: of each of their rows, on the host. */
int task_find_not_finite(mc_tape *t, mc_model *model, mc_tensor *hidden, const int32_t *targets);

/* For the `ratio` of task_loss: how many of the prompts' targets there are for each answer in a
 * whole step, over all its passes and ranks, so that the loss does not depend on how its rows are
 * dealt out. A tensor of the context, which task_ratio_set refills before each step with one of its
 * batches; NULL where the loss has one part only. */
mc_tensor *task_ratio_new(mc_context *ctx, const mc_dataset *dataset);
void task_ratio_set(mc_tensor *ratio, const mc_batch *batch);

/* Probabilities of `count` outputs of a row, which may be the same memory: softmax, of MULTI_LABEL
 * the sigmoid of each. Of REGRESS they stay what they are. */
void task_probabilities(mc_task_kind kind, const float *outputs, int count, float *probabilities);

/* ---- evaluation ------------------------------------------------------------------------------ */

enum { TASK_METRICS = 8 };

/* How a model has done on all rows of a dataset, on all ranks:
 *   as datasets/scorer.h says      CLASSIFY, CHOOSE, ANSWER, and GENERATE where candidates are
 *                                  compared, or texts are generated
 *   loss, perplexity               GENERATE else: of the target tokens, of which loss is the mean
 *   f1, em                         MULTI_LABEL: over all labels and rows (micro); rows with all
 *                                  labels right
 *   pearson, spearman, mse         REGRESS
 * and after these, of all kinds whose rows have classes or labels, val_loss: the mean over rows of
 * the loss that training minimises (of ANSWER the answer's part of it). */
typedef struct task_score {
    int64_t n; /* rows that count; of loss and perplexity alone tokens */
    int metrics;
    run_metric metric[TASK_METRICS];
    double goodness; /* the higher the better, to compare scores of one task */
    double recall[RUN_EVAL_CLASSES];
    double seconds;
    double not_finite; /* rows whose outputs are not (of losses: batches): no metric then, NaN */
} task_score;

/* Who answers what. It stays where it is as long as the context is used, whose recorded steps have
 * its address. */
typedef struct task_exam {
    mc_model *model;
    mc_dataloader *loader;
    bool gpu;
    /* "validation of BoolQ after step 120": outputs that are not finite are a warning of it, so
     * that training goes on; NULL: they are an error */
    const char *during;
    const mc_tokenizer *tokenizer; /* to generate texts; NULL: none are */
    /* Called with the outputs of each row on this rank (see task_outputs), or the text that was
     * generated for it, if not NULL. */
    void (*each)(void *user, int64_t row, const float *outputs, int count);
    void (*each_text)(void *user, int64_t row, const char *text);
    void *user;
    const mc_batch *batch; /* of the running step, and its result; the rest is its own */
    mc_tensor *result;
    mc_tensor *hidden; /* of a batch's loss, while its tape is open; NULL: it was recorded */
} task_exam;

/* Runs the model over the rest of the loader's epoch, on all ranks. Stops at an error or an
 * interrupt; false then. `score` may be NULL where only `each` counts. */
bool task_evaluate(mc_context *ctx, task_exam *exam, run_log *log, task_score *score);

/* The metrics of an exam's score: "accuracy, f1". */
const char *task_metrics(const task_exam *exam);
/* Makes one of them the score's goodness: of losses, perplexity and mse its negative. False where
 * there is none of that name. */
bool task_score_by(task_score *score, const char *metric);

/* Shows a score: a line on the progress stream, and the log files. */
void task_report(run_log *log, const mc_dataset *dataset, const char *split,
                 const task_score *score, int64_t step, int64_t epoch);

/* The result line, last on stdout:
 * `result task=BoolQ accuracy=0.9630 f1=0.9712 val_loss=0.1101 n=3270 train_seconds=81.2`, `extra`
 * (NULL: none) after it. The user's data has the file's name for a task. */
mc_status task_result(run_log *log, const mc_dataset *dataset, const task_score *score,
                      double train_seconds, const char *extra);

/* Seconds on a clock that only runs forward. */
double task_clock(void);

#endif
