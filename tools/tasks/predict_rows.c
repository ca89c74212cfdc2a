#include "tools/tasks/predict_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/tasks/task_run.h"

enum { NUMBER_ROOM = 32, ROW_ROOM = 128 };

static const char prefix[] = "predicted_";

/* ---- names ----------------------------------------------------------------------------------- */

/* Whether label k may be called so: no label before it is, and none of the model's own. */
static bool is_free(const predict_rows *r, int k, const char *name)
{
    for (int i = 0; i < r->labels; i++)
        if (i != k && ((i < k && strcmp(r->names[i], name) == 0) ||
                       strcmp(mc_model_label_name(r->model, i), name) == 0))
            return false;
    return true;
}

static bool is_repeated(const predict_rows *r, int k)
{
    for (int i = 0; i < k; i++)
        if (strcmp(mc_model_label_name(r->model, i), mc_model_label_name(r->model, k)) == 0)
            return true;
    return false;
}

bool predict_rows_name(predict_rows *r, run_log *log)
{
    r->names = calloc((size_t)r->labels + 1, sizeof *r->names);
    for (int k = 0; r->names && k < r->labels; k++) {
        const char *own = mc_model_label_name(r->model, k);
        size_t room = strlen(own) + NUMBER_ROOM;
        bool repeated = is_repeated(r, k);
        char *name = r->names[k] = malloc(room);
        if (!name) return false;
        snprintf(name, room, "%s", own);
        for (int n = 2; repeated && !is_free(r, k, name); n++)
            snprintf(name, room, "%s#%d", own, n);
        if (repeated)
            run_log_line(log,
                         "warning: id2label has the name \"%s\" twice: label %d is written as "
                         "\"%s\"",
                         own, k, name);
    }
    return r->names;
}

void predict_rows_release(predict_rows *r)
{
    for (int k = 0; r->names && k < r->labels; k++) free(r->names[k]);
    free(r->names);
    r->names = NULL;
}

size_t predict_rows_room(const predict_rows *r)
{
    size_t room = ROW_ROOM;
    for (int k = 0; k < r->labels; k++) room += 2 * (6 * strlen(r->names[k]) + NUMBER_ROOM);
    return room;
}

static int most_probable(const predict_rows *r, const float *probability)
{
    int best = 0;
    for (int k = 1; k < r->labels; k++)
        if (probability[k] > probability[best]) best = k;
    return best;
}

/* ---- JSON Lines ------------------------------------------------------------------------------ */

static void add_label(text *t, const predict_rows *r, int k)
{
    text_add_json_string(t, r->names[k]);
}

static void add_class(text *t, const predict_rows *r, const float *probability)
{
    int best = most_probable(r, probability);
    text_add(t, "{\"label\":");
    add_label(t, r, best);
    text_add(t, ",\"probability\":");
    text_add_json_number(t, (double)probability[best]);
}

/* All labels that are more probable than not. */
static void add_labels(text *t, const predict_rows *r, const float *probability)
{
    bool any = false;
    text_add(t, "{\"labels\":[");
    for (int k = 0; k < r->labels; k++) {
        if (!(probability[k] > 0.5f)) continue;
        if (any) text_add(t, ",");
        add_label(t, r, k);
        any = true;
    }
    text_add(t, "]");
}

/* `{NAME: number, ...}` of all labels. */
static void add_numbers(text *t, const predict_rows *r, const float *row)
{
    for (int k = 0; k < r->labels; k++) {
        text_add(t, k ? "," : "{");
        add_label(t, r, k);
        text_add(t, ":");
        text_add_json_number(t, (double)row[k]);
    }
    text_add(t, "}");
}

/* A regression's only value, or several by their names. */
static void add_values(text *t, const predict_rows *r, const float *row)
{
    text_add(t, r->labels == 1 ? "{\"value\":" : "{\"values\":");
    r->labels == 1 ? text_add_json_number(t, (double)row[0]) : add_numbers(t, r, row);
    text_add(t, "}\n");
}

static void add_object(text *t, const predict_rows *r, const float *row)
{
    if (r->kind == MC_TASK_REGRESS) {
        add_values(t, r, row);
        return;
    }
    r->kind == MC_TASK_MULTI_LABEL ? add_labels(t, r, row) : add_class(t, r, row);
    text_add(t, ",\"probabilities\":");
    add_numbers(t, r, row);
    text_add(t, "}\n");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void add_csv_label(text *t, const predict_rows *r, int k)
{
    text_add_csv_bytes(t, r->names[k], strlen(r->names[k]));
}

static void add_csv_class(text *t, const predict_rows *r, const float *probability)
{
    int best = most_probable(r, probability);
    text_add(t, ",");
    add_csv_label(t, r, best);
    text_add(t, ",");
    text_add_number(t, (double)probability[best]);
}

/* One field, in quotes where one of the names has to be. */
static void add_csv_labels(text *t, const predict_rows *r, const float *probability)
{
    bool any = false, quoted = false;
    for (int k = 0; k < r->labels; k++)
        quoted = quoted || (probability[k] > 0.5f && strpbrk(r->names[k], ",\"\r\n"));
    text_add(t, quoted ? ",\"" : ",");
    for (int k = 0; k < r->labels; k++) {
        if (!(probability[k] > 0.5f)) continue;
        if (any) text_add(t, "|");
        for (const char *c = r->names[k]; *c; c++) text_add(t, *c == '"' ? "\"\"" : "%c", *c);
        any = true;
    }
    if (quoted) text_add(t, "\"");
}

static void add_fields(text *t, const predict_rows *r, const float *row)
{
    if (r->kind == MC_TASK_MULTI_LABEL) add_csv_labels(t, r, row);
    if (r->kind == MC_TASK_CLASSIFY) add_csv_class(t, r, row);
    for (int k = 0; k < r->labels; k++) {
        text_add(t, ",");
        text_add_number(t, (double)row[k]);
    }
    text_add(t, "\n");
}

/* ---- its first line ---- */

static bool is_taken(const text_source *input, const char *name)
{
    for (int i = 0; i < text_source_columns(input); i++)
        if (strcmp(text_source_column_name(input, i), name) == 0) return true;
    return false;
}

/* A column of the prediction's: `key`, or "key.label". `room` is the name's. */
static void add_name(text *t, const text_source *input, const char *key, const char *label,
                     char *name, size_t room)
{
    text n = text_into(name, room);
    text_add(&n, "%s%s%s", key, label ? "." : "", label ? label : "");
    while (is_taken(input, name)) {
        memmove(name + strlen(prefix), name, strlen(name) + 1);
        memcpy(name, prefix, strlen(prefix));
    }
    text_add(t, ",");
    text_add_csv_bytes(t, name, strlen(name));
}

static void add_names(text *t, const predict_rows *r, const text_source *input, char *name,
                      size_t room)
{
    bool regress = r->kind == MC_TASK_REGRESS;
    if (r->kind == MC_TASK_GENERATE) add_name(t, input, "text", NULL, name, room);
    if (r->kind == MC_TASK_MULTI_LABEL) add_name(t, input, "labels", NULL, name, room);
    if (r->kind == MC_TASK_CLASSIFY) add_name(t, input, "label", NULL, name, room);
    if (r->kind == MC_TASK_CLASSIFY) add_name(t, input, "probability", NULL, name, room);
    if (regress && r->labels == 1)
        add_name(t, input, "value", NULL, name, room);
    else if (r->kind != MC_TASK_GENERATE)
        for (int k = 0; k < r->labels; k++)
            add_name(t, input, regress ? "values" : "probabilities", r->names[k], name, room);
    text_add(t, "\n");
}

/* A name gets at most a prefix for each of the input's columns. */
char *predict_rows_header(const predict_rows *r, const text_source *input)
{
    int columns = text_source_columns(input);
    size_t longest = 0, room = 3, own = (size_t)r->labels + 2;
    for (int i = 0; i < columns; i++) room += 2 * strlen(text_source_column_name(input, i)) + 3;
    for (int k = 0; k < r->labels; k++)
        if (strlen(r->names[k]) > longest) longest = strlen(r->names[k]);
    size_t name_room = longest + NUMBER_ROOM + strlen(prefix) * ((size_t)columns + 1);
    room += own * (2 * name_room + 3);
    char *line = malloc(room), *name = malloc(name_room);
    if (line && name) {
        text t = text_into(line, room);
        for (int i = 0; i < columns; i++) {
            const char *column = text_source_column_name(input, i);
            text_add(&t, "%s", i ? "," : "");
            text_add_csv_bytes(&t, column, strlen(column));
        }
        add_names(&t, r, input, name, name_room);
    }
    free(name);
    if (name) return line;
    free(line);
    return NULL;
}

/* ---- rows ------------------------------------------------------------------------------------ */

void predict_rows_add(text *t, const predict_rows *r, const mc_text_span *cells, float *outputs)
{
    if (r->kind != MC_TASK_REGRESS) task_probabilities(r->kind, outputs, r->labels, outputs);
    if (!r->csv) {
        add_object(t, r, outputs);
        return;
    }
    text_add_bytes(t, cells->data, cells->size);
    add_fields(t, r, outputs);
}

void predict_rows_add_text(text *t, const predict_rows *r, const mc_text_span *cells,
                           const char *answer, size_t size)
{
    if (r->csv) {
        text_add_bytes(t, cells->data, cells->size);
        text_add(t, ",");
        text_add_csv_bytes(t, answer, size);
        text_add(t, "\n");
        return;
    }
    text_add(t, "{\"text\":");
    text_add_json_bytes(t, answer, size);
    text_add(t, "}\n");
}
