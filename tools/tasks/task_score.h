/* Results of rows are counted, and become a score of all ranks. */
#ifndef MC_TOOLS_TASK_SCORE_H
#define MC_TOOLS_TASK_SCORE_H

#include "tools/train/interrupt.h"
#include "tools/ranks.h"
#include "tools/tasks/task_run.h"

/* What a batch's results are. */
typedef enum task_results {
    TASK_RESULTS_OUTPUTS,    /* of task_outputs */
    TASK_RESULTS_LOSS,       /* the loss alone */
    TASK_RESULTS_CANDIDATES, /* log-probabilities of targets */
    TASK_RESULTS_TEXTS,      /* texts that were generated */
} task_results;

enum { TASK_SUMS = 8, TASK_TEXT = 512 };

typedef struct task_counts {
    mc_context *ctx;
    mc_dataset *dataset;
    task_results results;
    mc_scorer *scorer;     /* NULL: the score is of sums, or of pairs */
    mc_accuracy accuracy;  /* of classes */
    double sum[TASK_SUMS]; /* see task_score.c */
    float *pair;           /* (2 * pairs), of REGRESS: what was predicted, and the row's value */
    size_t pairs, capacity;
    /* of this rank's first row that is not: "val.csv:3: the logits ..." */
    char not_finite[TASK_TEXT];
} task_counts;

/* What an exam's results are. */
task_results task_results_of(const task_exam *exam);

/* False with the context's error. */
bool task_counts_init(mc_context *ctx, task_counts *counts, const task_exam *exam);
/* Whether to go on with the numbers of a row: false, with the context's error, if they are not
 * finite, which names the row and `what` the numbers are ("logits"). With task_exam.during they are
 * counted instead, and the score has no metric. */
bool task_counts_check(task_counts *counts, const task_exam *exam, int64_t row, const char *what,
                       const float *values, int64_t count);
/* The outputs of a row of the dataset. */
void task_counts_add_row(task_counts *counts, int64_t row, const float *outputs);
/* The loss of a batch: its sum, and how many targets counted. */
void task_counts_add_loss(task_counts *counts, const float loss[2]);
/* The score over all ranks, each of which calls it; false with the context's error. */
bool task_counts_score(task_counts *counts, task_score *score);
void task_counts_release(task_counts *counts);

/* ---- task_texts.c ---- */

/* Adds the log-probability of each row's target; false with the context's error. */
bool task_add_candidates(mc_tape *t, const task_exam *exam, task_counts *counts);
/* Generates a text for each row, and adds it. */
bool task_add_texts(mc_context *ctx, const task_exam *exam, task_counts *counts);

#endif
