/* What a model was fine-tuned on: task.json, in the folder of the model. From it eval, predict and
 * ask know what the columns of a file mean, and at which lengths texts were cut. */
#ifndef MC_TOOLS_TASK_FILE_H
#define MC_TOOLS_TASK_FILE_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>

/*  {"kind": "classify", "text": "review", "label": "stars", "labels": ["1", "2"],
 *   "max_length": 128}
 * The kinds are classify, multi_label, regress and generate, of the user's data. Of a benchmark
 * the file has its name and the lengths: {"task": "BoolQ", "max_length": 256}. Keys that are not
 * there are NULL and 0. */
typedef struct task_file {
    mc_task_kind kind; /* 0: there is no file, or it is a benchmark's */
    const char *task;  /* the benchmark; NULL: the user's data */
    const char *text, *image, *pair, *label, *target, *separator, *messages, *chat_format;
    const char *label_names[MC_DATASET_MAX_LABELS];
    int labels;
    int64_t max_length, max_target_length;
    void *json; /* has the texts, until task_file_release */
} task_file;

/* Writes <folder>/task.json whole or not at all. */
mc_status task_file_write(mc_context *ctx, const char *folder, const task_file *file);
/* Reads it; if there is none, kind is 0. Errors name file and key. */
mc_status task_file_read(mc_context *ctx, const char *folder, task_file *file);
void task_file_release(task_file *file);

#endif
