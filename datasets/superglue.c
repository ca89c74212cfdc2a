/* SuperGLUE's tasks: what a row becomes, and what its label means. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "datasets/dataset_internal.h"

static const mc_task tasks[] = {
    {
        .name = "BoolQ",
        .form = MC_LABEL_BOOL,
        .labels = 2,
        .label = {"false", "true"},
        .choices = 1,
        .text = {"{passage}. {question}"},
    },
    {
        .name = "CB",
        .form = MC_LABEL_NAME,
        .labels = 3,
        .label = {"contradiction", "entailment", "neutral"},
        .choices = 1,
        .text = {"{premise}"},
        .pair = {"{hypothesis}"},
        .balance = true,
    },
    {
        .name = "COPA",
        .form = MC_LABEL_INDEX,
        .labels = 2,
        .label = {"choice1", "choice2"},
        .choices = 2,
        .text = {"{choice1}", "{choice2}"},
        .pair = {"The {question} of \"{premise}\"", "The {question} of \"{premise}\""},
    },
    {
        .name = "RTE",
        .form = MC_LABEL_NAME,
        .labels = 2,
        .label = {"not_entailment", "entailment"},
        .choices = 1,
        .text = {"{premise}"},
        .pair = {"{hypothesis}"},
    },
    {
        .name = "WiC",
        .form = MC_LABEL_BOOL,
        .labels = 2,
        .label = {"false", "true"},
        .choices = 1,
        .text = {"{sentence1}"},
        .pair = {"{sentence2}"},
    },
    {
        .name = "WSC",
        .form = MC_LABEL_BOOL,
        .labels = 2,
        .label = {"false", "true"},
        .choices = 1,
        .text = {"{text} Does {target.span2_text} refers to {target.span1_text}?"},
    },
};
enum { TASKS = sizeof tasks / sizeof *tasks };

const char *mc_task_name(int i) { return i >= 0 && i < TASKS ? tasks[i].name : NULL; }

int mc_task_outputs(const char *name)
{
    for (int i = 0; name && i < TASKS; i++)
        if (strcasecmp(name, tasks[i].name) == 0) return tasks[i].choices > 1 ? 1 : tasks[i].labels;
    return 0;
}

int mc_task_texts(const mc_task *task) { return task->choices * (task->pair[0] ? 2 : 1); }

const mc_task *mc_task_find(mc_error *err, const char *name)
{
    char known[256] = "";
    for (int i = 0; i < TASKS; i++) {
        if (name && strcasecmp(tasks[i].name, name) == 0) return &tasks[i];
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", tasks[i].name);
    }
    mc_error_set(err, MC_ERR_ARGUMENT, "unknown task \"%s\": expected one of %s",
                 name ? name : "(none)", known);
    return NULL;
}

bool mc_task_render(mc_jsonl *reader, const char *template, mc_text *out)
{
    while (*template) {
        size_t literal = strcspn(template, "{");
        bool room = mc_text_append(out, template, literal);
        template += literal;
        if (room && *template == '{') {
            size_t length = strcspn(++template, "}");
            char path[64];
            snprintf(path, sizeof path, "%.*s", (int)length, template);
            const char *value = mc_jsonl_string(reader, path);
            if (!value) return false;
            room = mc_text_append(out, value, strlen(value));
            template += length + 1;
        }
        if (!room) {
            mc_error_set(reader->err, MC_ERR_NOMEM, "%s:%lld: out of memory for its text",
                         reader->name, (long long)reader->line);
            return false;
        }
    }
    return true;
}

/* `"a", "b" or "c"`, or `true or false`, or `a whole number from 0 to 1`. */
static const char *allowed_labels(const mc_task *task, char *text, size_t size)
{
    if (task->form == MC_LABEL_BOOL) return "true or false";
    if (task->form == MC_LABEL_INDEX) {
        snprintf(text, size, "a whole number from 0 to %d", task->labels - 1);
        return text;
    }
    size_t used = 0;
    for (int k = 0; k < task->labels && used < size; k++)
        used += (size_t)snprintf(text + used, size - used, "%s\"%s\"",
                                 k == 0                  ? ""
                                 : k == task->labels - 1 ? " or "
                                                         : ", ",
                                 task->label[k]);
    return text;
}

/* The class a label stands for, -1 if none. */
static int label_class(const mc_task *task, const cJSON *value)
{
    if (task->form == MC_LABEL_BOOL && cJSON_IsBool(value)) return cJSON_IsTrue(value);
    for (int k = 0; k < task->labels; k++) {
        if (task->form == MC_LABEL_NAME) {
            if (cJSON_IsString(value) && strcmp(value->valuestring, task->label[k]) == 0) return k;
        } else if (cJSON_IsNumber(value) && value->valuedouble == k) {
            return k;
        }
    }
    return -1;
}

bool mc_task_read_label(mc_jsonl *reader, const mc_task *task, bool unlabelled, int32_t *label)
{
    bool ok = true;
    char room[128];
    const cJSON *value = mc_jsonl_find(reader, reader->row, "label", &ok);
    if (!ok) return false;
    if (unlabelled &&
        (!value || cJSON_IsNull(value) || (cJSON_IsNumber(value) && value->valuedouble == -1))) {
        *label = MC_NO_LABEL;
        return true;
    }
    const char *allowed = allowed_labels(task, room, sizeof room);
    if (!value) {
        mc_jsonl_fail(reader, "key \"label\" is missing, expected %s (task %s)", allowed,
                      task->name);
        return false;
    }
    *label = label_class(task, value);
    if (*label >= 0) return true;
    mc_jsonl_fail(reader, "key \"label\": expected %s (task %s), found %s", allowed, task->name,
                  mc_json_describe(value).text);
    return false;
}
