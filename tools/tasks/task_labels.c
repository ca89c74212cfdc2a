#include "tools/tasks/task_labels.h"

#include <stdio.h>
#include <string.h>

int task_names_of(const mc_dataset *rows, const char *names[MC_DATASET_MAX_LABELS])
{
    int count = mc_dataset_labels(rows);
    for (int k = 0; k < count; k++) names[k] = mc_dataset_label_name(rows, k);
    return count;
}

int task_names_of_model(const mc_model *model, const char *names[MC_MODEL_MAX_LABELS])
{
    int count = mc_model_get_heads(model).labels;
    for (int k = 0; k < count; k++) names[k] = mc_model_label_name(model, k);
    return count;
}

/* `2 labels ("neg", "pos")`, of many the first. */
static void describe(char out[LABELS_TEXT], const char *const *names, int count)
{
    enum { SHOWN = 8 };
    int used = snprintf(out, LABELS_TEXT, "%d label%s", count, count == 1 ? "" : "s");
    for (int k = 0; k < count && k < SHOWN; k++)
        used += snprintf(out + used, (size_t)(LABELS_TEXT - used), "%s\"%.32s\"", k ? ", " : " (",
                         names[k]);
    if (count) snprintf(out + used, (size_t)(LABELS_TEXT - used), count > SHOWN ? ", ...)" : ")");
}

/* ---- training -------------------------------------------------------------------------------- */

static bool is_regression(const char *problem_type)
{
    return problem_type && strcmp(problem_type, "regression") == 0;
}

task_head task_head_for(const mc_model_labels *had, const mc_dataset *rows)
{
    const char *names[MC_DATASET_MAX_LABELS];
    int outputs = mc_dataset_outputs(rows), count = task_names_of(rows, names);
    bool numbers = mc_dataset_kind(rows) == MC_TASK_REGRESS;
    if (!outputs || !had->count) return TASK_HEAD_KEPT;
    if (had->problem_type && numbers != is_regression(had->problem_type)) return TASK_HEAD_NEW;
    bool fits =
        had->count == outputs &&
        (!count || outputs == 1 || mc_labels_fit(had->name, had->count, names, count, NULL) ||
         (mc_dataset_task(rows) && mc_labels_are_numbers(had->name, had->count)));
    return fits ? TASK_HEAD_KEPT : TASK_HEAD_NEW;
}

void task_head_describe(const mc_model_labels *had, const char *name, const mc_dataset *rows,
                        char *out, size_t room)
{
    char old[LABELS_TEXT], new[LABELS_TEXT];
    const char *names[MC_DATASET_MAX_LABELS];
    int outputs = mc_dataset_outputs(rows), count = task_names_of(rows, names);
    describe(old, had->name, had->count);
    if (count == outputs)
        describe(new, names, count);
    else
        snprintf(new, sizeof new, "%d output%s", outputs, outputs == 1 ? "" : "s");
    snprintf(out, room,
             "the classifier of %s has %s%s, the rows need %s: it is replaced by a new one with "
             "initial weights",
             name, old, is_regression(had->problem_type) ? " of a regression" : "", new);
}

/* ---- benchmarks ------------------------------------------------------------------------------ */

bool task_order_labels(mc_context *ctx, mc_model *model, const char *name, const mc_dataset *rows)
{
    const char *has[MC_MODEL_MAX_LABELS], *needs[MC_DATASET_MAX_LABELS];
    int place[MC_DATASET_MAX_LABELS];
    if (mc_failed(ctx)) return false;
    int count = task_names_of_model(model, has), labels = task_names_of(rows, needs);
    if (!mc_dataset_task(rows) || mc_dataset_kind(rows) != MC_TASK_CLASSIFY ||
        mc_labels_are_numbers(has, count))
        return true;
    if (count == labels && mc_labels_fit(has, count, needs, labels, place)) {
        for (int i = 0; i < count; i++)
            if (place[i] != i) return mc_model_order_labels(model, place) == MC_OK;
        return true;
    }
    char old[LABELS_TEXT], new[LABELS_TEXT];
    describe(old, has, count);
    describe(new, needs, labels);
    mc_set_error(ctx, MC_ERR_ARGUMENT,
                 "%s: its classifier has %s, %s needs %s: name them so in id2label of config.json",
                 name, old, mc_dataset_task(rows), new);
    return false;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Whether the names are those of task.json; a line says where the files disagree. */
static bool are_saved(const char *const *own, int count, const char *folder, const task_file *saved,
                      run_log *log)
{
    bool same = saved->labels == count &&
                mc_labels_fit(own, count, saved->label_names, saved->labels, NULL);
    if (!count || !saved->labels || same) return false;
    bool unnamed = saved->labels == count && mc_labels_are_numbers(own, count);
    char config[LABELS_TEXT], task[LABELS_TEXT];
    describe(config, own, count);
    describe(task, saved->label_names, saved->labels);
    run_log_line(log, "%s: id2label of config.json has %s, task.json %s: the names are those of %s",
                 folder, config, task, unnamed ? "task.json" : "config.json");
    return unnamed;
}

bool task_settle_names(mc_model *model, const char *folder, const task_file *saved, run_log *log)
{
    const char *own[MC_MODEL_MAX_LABELS];
    int count = task_names_of_model(model, own);
    return !are_saved(own, count, folder, saved, log) ||
           mc_model_set_task(model, NULL, saved->label_names) == MC_OK;
}

void task_settle_labels(mc_model_labels *had, const char *folder, const task_file *saved,
                        run_log *log)
{
    if (are_saved(had->name, had->count, folder, saved, log))
        memcpy(had->name, saved->label_names, (size_t)had->count * sizeof *had->name);
}
