/* The labels of rows and those of a model's classifier, which meet by name (datasets/labels.h). */
#ifndef MC_TOOLS_TASK_LABELS_H
#define MC_TOOLS_TASK_LABELS_H

#include "tools/log/run_log.h"
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

/* Gives the classifier of a model that is asked (eval, predict, ask) its labels' names: those of
 * id2label in config.json, which other programs read and people edit. LABEL_0, LABEL_1, ... name
 * nothing: then they are those of task.json, if it has as many. A line says where the files
 * disagree. False with the context's error. */
bool task_settle_names(mc_model *model, const char *folder, const task_file *saved, run_log *log);
/* The same of a classifier that is not loaded yet: its names may be `saved`'s then, which has to
 * stay. */
void task_settle_labels(mc_model_labels *had, const char *folder, const task_file *saved,
                        run_log *log);

/* The names of a dataset's labels, and of a model's; they return how many. */
int task_names_of(const mc_dataset *rows, const char *names[MC_DATASET_MAX_LABELS]);
int task_names_of_model(const mc_model *model, const char *names[MC_MODEL_MAX_LABELS]);

#endif
