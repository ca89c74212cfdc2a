/* The labels of rows and those of a model's classifier, which meet by name (datasets/labels.h). */
#ifndef MC_TOOLS_TASK_LABELS_H
#define MC_TOOLS_TASK_LABELS_H

#include "tools/tasks/task_file.h"

enum { LABELS_TEXT = 512 };

/* What training does with the classifier that a model has already. */
typedef enum task_head {
    TASK_HEAD_KEPT, /* it serves the rows, or there is none */
    TASK_HEAD_NEW,  /* it has other labels: the rows get a new one */
} task_head;

task_head task_head_for(const mc_model_labels *had, const mc_dataset *rows);
/* Says that a new one is made: `the classifier of NAME has 3 labels ("a", "b", "c"), the rows have
 * 2 ("neg", "pos"): ...`. */
void task_head_describe(const mc_model_labels *had, const char *name, const mc_dataset *rows,
                        char *out, size_t room);

/* Puts a classifier's rows in the order of a benchmark's labels, which scores rely on. False with
 * the context's error, which names the labels of both: they do not fit. Nothing for other rows. */
bool task_order_labels(mc_context *ctx, mc_model *model, const char *name, const mc_dataset *rows);

/* The labels that a model is asked about, in the order of its head's rows: those of its config, or,
 * if they are other ones than those of the rows it was trained on (task.json), these. Returns how
 * many; the names belong to the model, or to the file. */
int task_labels_of(const mc_model *model, const task_file *saved,
                   const char *names[MC_DATASET_MAX_LABELS]);

/* The names of a dataset's labels; returns how many. */
int task_names_of(const mc_dataset *rows, const char *names[MC_DATASET_MAX_LABELS]);

#endif
