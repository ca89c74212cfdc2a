/* The benchmarks: their table, and how a line becomes a row. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "datasets/dataset_internal.h"
#include "datasets/rows.h"

/* A further table is one line here. */
static const mc_task *const *const tables[] = {mc_superglue_tasks, mc_benchmark_tasks};
enum { TABLES = sizeof tables / sizeof *tables };

/* The i-th of all tasks, NULL past the last. */
static const mc_task *task_at(int i)
{
    for (int k = 0; i >= 0 && k < TABLES; k++)
        for (int n = 0; tables[k][n]; n++)
            if (i-- == 0) return tables[k][n];
    return NULL;
}

static const mc_task *task_named(const char *name)
{
    const mc_task *task = NULL;
    for (int i = 0; name && (task = task_at(i)); i++)
        if (strcasecmp(task->name, name) == 0) break;
    return task;
}

const char *mc_task_name(int i) { return task_at(i) ? task_at(i)->name : NULL; }

const mc_task *mc_task_find(mc_error *err, const char *name)
{
    char known[512] = "";
    const mc_task *task = task_named(name);
    if (task) return task;
    for (int i = 0; (task = task_at(i)); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", task->name);
    }
    mc_error_set(err, MC_ERR_ARGUMENT, "unknown task \"%s\": expected one of %s",
                 name ? name : "(none)", known);
    return NULL;
}

const mc_task_form *mc_task_form_for(const mc_task *task, mc_prompt_style style)
{
    for (int i = 0; i < MC_TASK_FORMS && task->form[i].kind; i++)
        if (task->form[i].styles & 1u << style) return &task->form[i];
    return NULL;
}

mc_task_kind mc_task_kind_for(const char *name, mc_prompt_style style)
{
    const mc_task *task = task_named(name);
    const mc_task_form *form = task ? mc_task_form_for(task, style) : NULL;
    return form ? form->kind : (mc_task_kind)0;
}

int mc_task_outputs_for(const char *name, mc_prompt_style style)
{
    mc_task_kind kind = mc_task_kind_for(name, style);
    return kind == MC_TASK_CLASSIFY ? task_named(name)->labels : kind == MC_TASK_CHOOSE;
}

int mc_task_outputs(const char *name) { return mc_task_outputs_for(name, MC_PROMPT_ENCODER); }

/* ---- lines ----------------------------------------------------------------------------------- */

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
            size_t size;
            const char *value = mc_jsonl_string(reader, path, &size);
            if (!value) return false;
            room = mc_text_append(out, value, size);
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
    if (task->label_form == MC_LABEL_BOOL) return "true or false";
    if (task->label_form == MC_LABEL_INDEX) {
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
    if (task->label_form == MC_LABEL_BOOL && cJSON_IsBool(value)) return cJSON_IsTrue(value);
    for (int k = 0; k < task->labels; k++) {
        if (task->label_form == MC_LABEL_NAME) {
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
    const char *key = "label";
    const cJSON *value = mc_jsonl_find(reader, reader->row, key, &ok);
    if (ok && !value && task->label_key) {
        value = mc_jsonl_find(reader, reader->row, task->label_key, &ok);
        if (value) key = task->label_key;
    }
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
    mc_jsonl_fail(reader, "key \"%s\": expected %s (task %s), found %s", key, allowed, task->name,
                  mc_json_describe(value).text);
    return false;
}

/* What rows are added to, and how. */
typedef struct building {
    mc_dataset *dataset;
    const mc_task *task;
    const mc_task_form *form;
    bool training, unlabelled;
} building;

static bool add_template(building *b, mc_jsonl *row, const char *template)
{
    mc_text *out = mc_dataset_begin_text(b->dataset);
    return out && mc_task_render(row, template, out) && mc_dataset_end_text(b->dataset);
}

/* Adds a row as the form's templates and the key "label" say. */
static bool add_templates(building *b, mc_jsonl *row, int64_t question)
{
    const mc_task_form *form = b->form;
    int32_t label = MC_NO_LABEL;
    if (b->task->labels && !mc_task_read_label(row, b->task, b->unlabelled, &label)) return false;
    for (int k = 0; k < b->dataset->choices; k++)
        if (!add_template(b, row, form->text[k]) ||
            (form->pair[0] && !add_template(b, row, form->pair[k])))
            return false;
    if (form->target && !add_template(b, row, form->target)) return false;
    if (!mc_dataset_end_row(b->dataset, row->line, label, NULL)) return false;
    mc_dataset_set_group(b->dataset, (int32_t)question);
    const cJSON *right = cJSON_GetObjectItemCaseSensitive(row->row, "references");
    return !right || mc_dataset_set_references(b->dataset, right);
}

/* Exchanges the values of two keys of the row, which has them, and turns its label. */
static void exchange(mc_jsonl *row, const char *const keys[2])
{
    cJSON *a = cJSON_GetObjectItemCaseSensitive(row->row, keys[0]);
    cJSON *b = cJSON_GetObjectItemCaseSensitive(row->row, keys[1]);
    cJSON *label = cJSON_GetObjectItemCaseSensitive(row->row, "label");
    char *name = a->string;
    a->string = b->string;
    b->string = name;
    cJSON_SetNumberValue(label, 1 - label->valuedouble);
}

static bool add_row(void *user, mc_jsonl *row, int64_t question)
{
    building *b = user;
    if (!add_templates(b, row, question)) return false;
    if (!b->training || b->form->kind != MC_TASK_ANSWER || !b->task->exchange[0]) return true;
    exchange(row, b->task->exchange);
    return add_templates(b, row, question);
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool read_rows(building *b, const char *data, size_t size)
{
    mc_row_sink sink = {
        .add = add_row, .user = b, .train = b->training, .unlabelled = b->unlabelled};
    return mc_rows_read(b->dataset->ctx, b->task->rows, b->dataset->path, data, size, &sink);
}

/* Labels and the tokens that stand for them. */
static bool set_labels(mc_dataset *d, const mc_task *task, const mc_task_form *form)
{
    for (int k = 0; d->labels && k < task->labels; k++)
        if (!mc_dataset_add_label(d, task->label[k])) return false;
    return d->kind != MC_TASK_ANSWER || mc_dataset_set_answers(d, form->answer);
}

static const mc_task_form *find_form(mc_context *ctx, const mc_task *task,
                                     const mc_dataset_options *options)
{
    static const char *const families[] = {"encoders", "decoders", "T5", "CPM-1", "CPM-2", "GLM"};
    mc_prompt_style style = options ? options->prompt.style : MC_PROMPT_ENCODER;
    const mc_task_form *form = mc_task_form_for(task, style);
    if (!form)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "task %s has no form for %s", task->name, families[style]);
    return form;
}

mc_dataset *mc_dataset_from_memory(mc_context *ctx, const char *name_of_task, const char *name,
                                   const char *data, size_t size, const char *split,
                                   const mc_tokenizer *tok, const mc_dataset_options *options)
{
    if (mc_failed(ctx)) return NULL;
    const mc_task *task = mc_task_find(&ctx->error, name_of_task);
    if (!task) return NULL;
    if (!tok || !name || !split || (!data && size)) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: a dataset needs %s", name ? name : task->name,
                !tok     ? "a tokenizer"
                : !name  ? "a name"
                : !split ? "a split"
                         : "data");
        return NULL;
    }
    const mc_task_form *form = find_form(ctx, task, options);
    if (!form) return NULL;
    bool training = strcmp(split, "train") == 0, classify = form->kind == MC_TASK_CLASSIFY;
    mc_dataset_plan plan = {.name = name,
                            .task = task->name,
                            .kind = form->kind,
                            .choices = form->choices,
                            .paired = form->pair[0] != NULL,
                            .balance = training && classify && task->balance,
                            .keep_end = form->keep_end,
                            .open_end = form->open_end,
                            .scoring = task->scoring};
    mc_dataset *d = mc_dataset_new(ctx, &plan, tok, options);
    building b = {.dataset = d,
                  .task = task,
                  .form = form,
                  .training = training,
                  .unlabelled = strcmp(split, "test") == 0 || strcmp(split, "unlabeled") == 0};
    if (d && set_labels(d, task, form) && read_rows(&b, data, size) && mc_dataset_finish(d))
        return d;
    mc_dataset_free(d);
    return NULL;
}

mc_dataset *mc_dataset_open(mc_context *ctx, const char *task, const char *folder,
                            const char *split, const mc_tokenizer *tok,
                            const mc_dataset_options *options)
{
    if (mc_failed(ctx)) return NULL;
    char path[MC_PATH_MAX];
    size_t size = 0;
    const mc_task *known = mc_task_find(&ctx->error, task);
    if (!known || mc_dataset_locate(&ctx->error, known, folder, split, path)) return NULL;
    char *data = mc_file_read(&ctx->error, path, SIZE_MAX, &size);
    if (!data) return NULL;
    mc_dataset *d = mc_dataset_from_memory(ctx, task, path, data, size, split, tok, options);
    mc_free(data);
    return d;
}
