/* The user's data: rows of a table, an array or a function, and the labels found in them. */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/number_internal.h"
#include "datasets/chat_internal.h"
#include "datasets/dataset_internal.h"
#include "datasets/table/table_internal.h"

/* A row has a label. */
typedef struct mark {
    int32_t row, label;
} mark;

/* What is being read. */
typedef struct source {
    mc_dataset *dataset;
    const mc_data_columns *columns;
    int64_t line;                      /* of the current row */
    bool found;                        /* labels are those of the rows; else they are given */
    bool open;                         /* a label of a row may be a new one */
    int sorted[MC_DATASET_MAX_LABELS]; /* labels in the order of their names' bytes */
    mark *mark;                        /* MULTI_LABEL: (marks) */
    size_t marks, mark_capacity;

    mc_table *table;               /* of a file, and its columns; -1: none */
    int text, pair, target, label; /* of conversations `text` alone */
    mc_chat chat;
    int flag[MC_DATASET_MAX_LABELS]; /* MULTI_LABEL: columns of 1 and 0, which are the labels */
    int flags;
    mc_text scratch; /* the labels of a row, each with a NUL after it */
    const char *names[MC_DATASET_MAX_LABELS];
} source;

/* ---- errors ---------------------------------------------------------------------------------- */

/* An error about the label, or value, of the current row, or of columns before the first; false. */
static bool refuse(source *s, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (s->table && s->line)
        mc_table_fail(s->table, s->label, "%s", what);
    else if (s->table)
        mc_fail(s->dataset->ctx, MC_ERR_FORMAT, "%s: %s", s->dataset->path, what);
    else
        mc_fail(s->dataset->ctx, MC_ERR_FORMAT, "%s: row %lld: %s", s->dataset->path,
                (long long)s->line, what);
    return false;
}

static bool nomem(source *s)
{
    mc_fail(s->dataset->ctx, MC_ERR_NOMEM, "%s: out of memory for its labels", s->dataset->path);
    return false;
}

/* ---- labels ---------------------------------------------------------------------------------- */

/* Where in the sorted numbers a name is, or belongs. */
static int find_place(const source *s, const char *name, bool *found)
{
    const mc_label_names *l = s->dataset->labels;
    int low = 0, high = l->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(l->name[s->sorted[middle]], name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < l->count && strcmp(l->name[s->sorted[low]], name) == 0;
    return low;
}

static bool insert_label(source *s, int place, const char *name)
{
    int count = s->dataset->labels->count;
    if (!mc_dataset_add_label(s->dataset, name)) return false;
    memmove(s->sorted + place + 1, s->sorted + place, (size_t)(count - place) * sizeof *s->sorted);
    s->sorted[place] = count;
    return true;
}

/* `"a", "b", ...`, the first few. */
static void list_labels(const mc_label_names *l, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int k = 0; k < l->count && used < size; k++)
        used += (size_t)snprintf(text + used, size - used, k == 16 ? ", ..." : "%s\"%.40s\"",
                                 k ? ", " : "", l->name[k]);
}

/* The number of a label, which is a new one where labels are found in the rows; -1 on an error. */
static int label_number(source *s, const char *name)
{
    bool found;
    int place = find_place(s, name, &found);
    if (found) return s->sorted[place];
    if (s->open) return insert_label(s, place, name) ? s->sorted[place] : -1;
    int meant = mc_label_find((const char *const *)s->dataset->labels->name,
                              s->dataset->labels->count, name);
    if (meant >= 0) return meant;
    char known[400];
    list_labels(s->dataset->labels, known, sizeof known);
    refuse(s, "label \"%.40s\": expected one of %s", name, known);
    return -1;
}

typedef struct named {
    const char *name;
    double number;
    int old;
} named;

static int compare_text(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

/* Whole numbers that are the same double, by their digits. */
static int compare_digits(const char *a, const char *b)
{
    bool negative = *a == '-';
    size_t i = strspn(a, "+-0"), k = strspn(b, "+-0");
    size_t x = strspn(a + i, "0123456789"), y = strspn(b + k, "0123456789");
    if (a[i + x] || b[k + y]) return 0;
    int order = x != y ? (x < y ? -1 : 1) : strcmp(a + i, b + k);
    return negative ? -order : order;
}

static int compare_number(const void *a, const void *b)
{
    const named *x = a, *y = b;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    int order = compare_digits(x->name, y->name);
    return order ? order : compare_text(a, b);
}

/* Gives the rows' labels other numbers. */
static void renumber(source *s, const int *number)
{
    mc_dataset *d = s->dataset;
    for (size_t i = 0; i < d->rows; i++)
        if (d->row[i].label >= 0) d->row[i].label = number[d->row[i].label];
    for (size_t i = 0; i < s->marks; i++) s->mark[i].label = number[s->mark[i].label];
}

/* Gives found labels their numbers: by their names, or the numbers they are. */
static bool sort_labels(source *s)
{
    mc_dataset *d = s->dataset;
    int count = d->labels->count;
    named *all = mc_calloc((size_t)count, sizeof *all);
    int *number = mc_calloc((size_t)count, sizeof *number);
    bool numbers = true, ok = all && number;
    for (int k = 0; ok && k < count; k++) {
        all[k] = (named){.name = d->labels->name[k], .old = k};
        numbers = mc_number_parse(all[k].name, &all[k].number) && numbers;
    }
    if (ok) qsort(all, (size_t)count, sizeof *all, numbers ? compare_number : compare_text);
    for (int k = 0; ok && k < count; k++) {
        number[all[k].old] = k;
        d->labels->name[k] = (char *)all[k].name;
    }
    if (ok) renumber(s, number);
    mc_free(all);
    mc_free(number);
    return ok || nomem(s);
}

/* Replaces found labels by those that were proposed, if they mean them. */
static bool take_proposed(source *s)
{
    const mc_data_columns *c = s->columns;
    mc_label_names *l = s->dataset->labels;
    int place[MC_DATASET_MAX_LABELS];
    if (!c->labels_proposed ||
        !mc_labels_fit(c->label_names, c->labels, (const char *const *)l->name, l->count, place))
        return true;
    renumber(s, place);
    for (int k = 0; k < l->count; k++) mc_free(l->name[k]);
    l->count = 0;
    for (int k = 0; k < c->labels; k++)
        if (!mc_dataset_add_label(s->dataset, c->label_names[k])) return false;
    return true;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool add_text(source *s, const char *text, size_t size, const char *what)
{
    mc_dataset *d = s->dataset;
    if (text && !size) size = strlen(text);
    if (text && mc_utf8_is_valid(text, size)) return mc_dataset_add_text(d, text, size);
    mc_fail(d->ctx, MC_ERR_FORMAT, "%s: row %lld: %s %s", d->path, (long long)s->line,
            text ? "not UTF-8 in its" : "has no", what);
    return false;
}

static bool mark_labels(source *s, const mc_data_row *row)
{
    for (int i = 0; i < row->label_count; i++) {
        int label = label_number(s, row->labels[i]);
        if (label < 0) return false;
        if (!mc_grow(&s->mark, &s->mark_capacity, s->marks, sizeof *s->mark)) return nomem(s);
        s->mark[s->marks++] = (mark){(int32_t)s->dataset->rows, label};
    }
    return true;
}

static bool add_row(source *s, const mc_data_row *row)
{
    mc_dataset *d = s->dataset;
    int32_t label = MC_NO_LABEL;
    float value = (float)row->value;
    if (!add_text(s, row->text, row->text_size, "text") ||
        (d->paired && !add_text(s, row->pair, row->pair_size, "second text")) ||
        (d->targeted && !add_text(s, row->target, row->target_size, "target")))
        return false;
    if (d->kind == MC_TASK_REGRESS && !isfinite(value))
        return refuse(s, "value %g: expected a finite number", row->value);
    if (d->kind == MC_TASK_CLASSIFY && (!row->label || !*row->label))
        return refuse(s, "the row has no label");
    if (d->kind == MC_TASK_CLASSIFY && (label = label_number(s, row->label)) < 0) return false;
    if (d->kind == MC_TASK_MULTI_LABEL && !mark_labels(s, row)) return false;
    if (!mc_dataset_end_row(d, s->line, label, d->kind == MC_TASK_REGRESS ? &value : NULL))
        return false;
    if (s->table) {
        d->row[d->rows - 1].file = (int32_t)s->table->file;
        d->row[d->rows - 1].record = (int32_t)mc_table_row(s->table);
    }
    return true;
}

/* MULTI_LABEL: ones where rows have labels. */
static bool fill_values(source *s)
{
    mc_dataset *d = s->dataset;
    size_t labels = (size_t)d->labels->count;
    d->store->value = mc_calloc(d->rows * labels, sizeof *d->store->value);
    if (!d->store->value) return nomem(s);
    d->values = d->labels->count;
    for (size_t i = 0; i < s->marks; i++)
        d->store->value[(size_t)s->mark[i].row * labels + (size_t)s->mark[i].label] = 1;
    return true;
}

/* ---- the rows of a table --------------------------------------------------------------------- */

static const char nul_in_label[] = "a NUL character, which no label holds";

/* The text of a column that is no text of the model's; NULL with an error. */
static const char *plain_text(source *s, int column)
{
    size_t size;
    const char *text = mc_table_text(s->table, column, &size);
    if (!text || strlen(text) == size) return text;
    mc_table_fail(s->table, column, "%s", nul_in_label);
    return NULL;
}

/* Labels of a row as text with separators, from which each is cut without the spaces around it. */
static bool split_text(source *s, const char *text)
{
    const char *separator = s->columns->separator ? s->columns->separator : "|";
    size_t step = strlen(separator);
    for (const char *next; text; text = next) {
        const char *end = step ? strstr(text, separator) : NULL;
        next = end ? end + step : NULL;
        if (!end) end = text + strlen(text);
        while (text < end && *text == ' ') text++;
        while (text < end && end[-1] == ' ') end--;
        if (text == end) continue;
        if (!mc_text_append(&s->scratch, text, (size_t)(end - text)) ||
            !mc_text_append(&s->scratch, "", 1))
            return nomem(s);
    }
    return true;
}

/* Labels of a row as a list of JSON. */
static bool split_list(source *s, const cJSON *list)
{
    for (const cJSON *item = list->child; item; item = item->next) {
        char room[MC_JSON_NUMBER_ROOM];
        if (!cJSON_IsString(item) && !cJSON_IsNumber(item))
            return refuse(s, "expected a list of labels, found %s in it",
                          mc_json_describe(item).text);
        bool is_text = cJSON_IsString(item);
        const char *text = is_text ? item->valuestring : mc_json_number(item, room);
        if (is_text && mc_json_length(item) != strlen(text)) return refuse(s, "%s", nul_in_label);
        if (!mc_text_append(&s->scratch, text, strlen(text) + 1)) return nomem(s);
    }
    return true;
}

/* Labels of a row as columns of 1 and 0. */
static bool split_flags(source *s)
{
    for (int i = 0; i < s->flags; i++) {
        s->label = s->flag[i]; /* where errors are */
        double number = -1;
        const char *text = plain_text(s, s->label);
        if (!text) return false;
        bool is_true = strcmp(text, "true") == 0, is_false = strcmp(text, "false") == 0;
        if (!is_true && !is_false &&
            (!mc_number_parse(text, &number) || (number != 0 && number != 1)))
            return refuse(s, "expected 1 or 0, found \"%.40s\"", text);
        const char *name = s->table->name[s->label];
        if ((is_true || number == 1) && !mc_text_append(&s->scratch, name, strlen(name) + 1))
            return nomem(s);
    }
    return true;
}

static bool read_labels(source *s, mc_data_row *row)
{
    mc_table *t = s->table;
    const cJSON *value = NULL;
    s->scratch.size = 0;
    if (!s->flags && t->format == MC_TABLE_JSONL) value = mc_table_json_value(t, s->label);
    bool ok = s->flags               ? split_flags(s)
              : cJSON_IsArray(value) ? split_list(s, value)
                                     : split_text(s, plain_text(s, s->label));
    row->labels = s->names;
    for (size_t at = 0; ok && at < s->scratch.size; at += strlen(s->scratch.data + at) + 1) {
        if (row->label_count == MC_DATASET_MAX_LABELS) return refuse(s, "too many labels");
        s->names[row->label_count++] = s->scratch.data + at;
    }
    return ok && !mc_failed(t->ctx);
}

static bool read_value(source *s, mc_data_row *row)
{
    const char *text = plain_text(s, s->label);
    if (text && !mc_number_parse(text, &row->value))
        return refuse(s, "expected a number, found \"%.40s\"", text);
    return text;
}

/* The next message of an assistant in the file, or the next conversation. */
static bool next_of_chats(void *user, int64_t i, mc_data_row *row)
{
    (void)i;
    source *s = user;
    while (!mc_chat_next(&s->chat, s->table, s->text, row)) {
        if (mc_failed(s->table->ctx) || !mc_table_next(s->table)) return false;
        s->line = mc_table_line(s->table);
        if (!mc_chat_begin(&s->chat, s->table, s->text)) return false;
    }
    return true;
}

/* The next row of the file. Where an error is set, it has none. */
static bool next_of_table(void *user, int64_t i, mc_data_row *row)
{
    (void)i;
    source *s = user;
    mc_task_kind kind = s->dataset->kind;
    if (!mc_table_next(s->table)) return false;
    s->line = mc_table_line(s->table);
    row->text = mc_table_text(s->table, s->text, &row->text_size);
    if (s->dataset->images && !mc_failed(s->table->ctx) &&
        (!row->text_size || strlen(row->text) < row->text_size))
        return !mc_table_fail(s->table, s->text, "expected the path of an image");
    if (s->pair >= 0) row->pair = mc_table_text(s->table, s->pair, &row->pair_size);
    if (kind == MC_TASK_GENERATE)
        row->target = mc_table_text(s->table, s->target, &row->target_size);
    if (kind == MC_TASK_CLASSIFY) row->label = plain_text(s, s->label);
    if (mc_failed(s->table->ctx)) return false;
    if (s->columns->answers && !mc_chat_ask(&s->chat, s->table, s->text, row)) return false;
    if (kind == MC_TASK_REGRESS) return read_value(s, row);
    return kind != MC_TASK_MULTI_LABEL || read_labels(s, row);
}

/* A column of 1 and 0 stands for the label of its name. */
static bool add_flag(source *s, const char *name)
{
    const mc_label_names *l = s->dataset->labels;
    char known[400];
    int column = mc_table_column(s->table, name);
    if (column < 0) return false;
    list_labels(l, known, sizeof known);
    if (s->flags == MC_DATASET_MAX_LABELS)
        return refuse(s, "more than %d labels", MC_DATASET_MAX_LABELS);
    if (!s->open && mc_label_find((const char *const *)l->name, l->count, name) < 0)
        return refuse(s, "label \"%.40s\" of a column: expected one of %s", name, known);
    for (int i = 0; i < s->flags; i++)
        if (s->flag[i] == column)
            return refuse(s, "column \"%.40s\" is named twice among the labels", name);
    s->flag[s->flags++] = column;
    return label_number(s, name) >= 0;
}

/* Several columns of 1 and 0: "toxic,obscene". */
static bool find_flags(source *s, const char *names)
{
    char name[256];
    for (const char *next; names; names = next) {
        size_t length = strcspn(names, ",");
        next = names[length] ? names + length + 1 : NULL;
        snprintf(name, sizeof name, "%.*s", (int)length, names);
        if (!add_flag(s, name)) return false;
    }
    s->open = false;
    return true;
}

static bool find_columns(source *s)
{
    const mc_data_columns *c = s->columns;
    mc_task_kind kind = s->dataset->kind;
    s->pair = s->target = s->label = -1;
    s->text = mc_table_column(s->table, c->messages ? c->messages : c->image ? c->image : c->text);
    if (c->messages) return s->text >= 0;
    if (c->pair) s->pair = mc_table_column(s->table, c->pair);
    if (kind == MC_TASK_GENERATE) s->target = mc_table_column(s->table, c->target);
    if (kind == MC_TASK_GENERATE || kind == MC_TASK_TEXT) return !mc_failed(s->table->ctx);
    if (kind == MC_TASK_MULTI_LABEL && c->label && strchr(c->label, ','))
        return find_flags(s, c->label);
    s->label = mc_table_column(s->table, c->label);
    return !mc_failed(s->table->ctx);
}

/* ---- datasets -------------------------------------------------------------------------------- */

static mc_task_kind kind_of(const mc_data_columns *c)
{
    if (c->kind) return c->kind;
    return c->target || c->messages ? MC_TASK_GENERATE : c->label ? MC_TASK_CLASSIFY : MC_TASK_TEXT;
}

/* Why such rows are not read; NULL: they are. */
static const char *misfit(const mc_data_columns *c, mc_task_kind kind,
                          const mc_dataset_options *options, mc_status *status)
{
    bool generates = kind == MC_TASK_GENERATE;
    *status = MC_ERR_ARGUMENT;
    if (kind < MC_TASK_CLASSIFY || kind > MC_TASK_TEXT) return "columns.kind is no mc_task_kind";
    if (c->image && (c->text || c->pair || generates))
        return "rows are images, expected no columns of texts";
    if (c->messages && (c->text || c->target || c->label || !generates))
        return "messages are prompts and targets, expected no other columns";
    if (generates && c->pair) return "a text is generated from one text, not from a pair";
    *status = MC_ERR_UNSUPPORTED;
    if (kind == MC_TASK_CHOOSE || kind == MC_TASK_ANSWER)
        return "your own rows with several inputs, or answered in a prompt";
    bool chats = (c->messages || c->answers) && c->chat_format;
    return chats && (!options || options->prompt.style != MC_PROMPT_DECODER)
               ? "conversations in a chat format are for decoders such as GPT-2"
               : NULL;
}

static source *new_source(mc_context *ctx, const char *name, const mc_data_columns *columns,
                          const mc_tokenizer *tok, const mc_dataset_options *options)
{
    static const mc_data_columns none;
    if (mc_failed(ctx)) return NULL;
    if (!columns) columns = &none;
    mc_dataset_plan plan = {.name = name,
                            .kind = kind_of(columns),
                            .paired = columns->pair != NULL,
                            .images = columns->image};
    mc_status status;
    const char *why = misfit(columns, plan.kind, options, &status);
    if (why) {
        mc_fail(ctx, status, "%s: %s", name, why);
        return NULL;
    }
    source *s = mc_calloc(1, sizeof *s);
    if (!s) mc_fail_nomem(ctx, "a dataset");
    if (!s || !(s->dataset = mc_dataset_new(ctx, &plan, tok, options))) {
        mc_free(s);
        return NULL;
    }
    s->columns = columns;
    s->chat = (mc_chat){.tok = tok,
                        .format = columns->chat_format,
                        .whole = columns->chat_format && !columns->answers};
    s->open = true;
    bool given = columns->labels && !columns->labels_proposed;
    for (int k = 0; given && k < columns->labels && s->dataset->labels; k++) {
        const char *label = columns->label_names ? columns->label_names[k] : NULL;
        if (label && label_number(s, label) == k) continue;
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: label %d is named \"%s\", expected a name of its own",
                name, k, label ? label : "(none)");
        break;
    }
    s->found = s->open = s->dataset->labels && !given;
    return s;
}

/* Reads all rows, and gives the dataset. */
static mc_dataset *read_all(source *s, mc_data_fn next, void *user)
{
    mc_dataset *d = s->dataset;
    mc_context *ctx = d->ctx;
    bool in_table = s->table;
    for (int64_t i = 0; !mc_failed(ctx); i++) {
        mc_data_row row = {0};
        if (!in_table) s->line = i + 1;
        if (!next(user, i, &row) || mc_failed(ctx) || !add_row(s, &row)) break;
    }
    bool ok =
        mc_dataset_finish(d) && (!s->open || sort_labels(s)) && (!s->found || take_proposed(s));
    if (ok && d->labels && d->labels->count < (d->kind == MC_TASK_CLASSIFY ? 2 : 1)) {
        mc_fail(ctx, MC_ERR_FORMAT, "%s: %s: expected at least two", d->path,
                d->labels->count ? "all rows have the same label" : "no labels");
        ok = false;
    }
    if (ok && d->kind == MC_TASK_MULTI_LABEL) ok = fill_values(s);
    return ok ? d : NULL;
}

static void free_source(source *s, bool failed)
{
    mc_table_free(s->table);
    mc_text_release(&s->scratch);
    mc_chat_release(&s->chat);
    mc_free(s->mark);
    if (failed) mc_dataset_free(s->dataset);
    mc_free(s);
}

/* The dataset keeps the names of its files, for errors about rows. */
static void take_files(source *s)
{
    s->dataset->store->files = s->table->files;
    s->table->files = (mc_paths){0};
}

mc_dataset *mc_dataset_from_files(mc_context *ctx, const char *const *paths, int count,
                                  const mc_data_columns *columns, const mc_tokenizer *tok,
                                  const mc_dataset_options *options)
{
    mc_table_options form = {.format = columns ? columns->format : MC_TABLE_BY_NAME};
    if (mc_failed(ctx) || !mc_given(ctx, paths)) return NULL;
    mc_table *table = mc_table_open_list(ctx, paths, count, &form);
    source *s = table ? new_source(ctx, table->path, columns, tok, options) : NULL;
    mc_dataset *d = NULL;
    if (!s) {
        mc_table_free(table);
        return NULL;
    }
    s->table = table;
    mc_data_fn next = s->columns->messages ? next_of_chats : next_of_table;
    if (find_columns(s) && (d = read_all(s, next, s))) {
        d->conversations = s->columns->messages;
        d->beside = d->images;
        d->answers = s->columns->answers;
        if (d->conversations || d->answers) d->chat_format = s->columns->chat_format;
        take_files(s);
    }
    free_source(s, !d);
    return d;
}

mc_dataset *mc_dataset_from_file(mc_context *ctx, const char *path, const mc_data_columns *columns,
                                 const mc_tokenizer *tok, const mc_dataset_options *options)
{
    return mc_dataset_from_files(ctx, &path, 1, columns, tok, options);
}

mc_dataset *mc_dataset_from_source(mc_context *ctx, const char *name, mc_data_fn next, void *user,
                                   const mc_data_columns *columns, const mc_tokenizer *tok,
                                   const mc_dataset_options *options)
{
    if (mc_failed(ctx) || !mc_given(ctx, next)) return NULL;
    source *s = new_source(ctx, name, columns, tok, options);
    if (!s) return NULL;
    mc_dataset *d = read_all(s, next, user);
    free_source(s, !d);
    return d;
}

typedef struct array {
    const mc_data_row *rows;
    int64_t count;
} array;

static bool next_of_array(void *user, int64_t i, mc_data_row *row)
{
    const array *a = user;
    if (i < a->count) *row = a->rows[i];
    return i < a->count;
}

mc_dataset *mc_dataset_from_rows(mc_context *ctx, const char *name, const mc_data_row *rows,
                                 int64_t count, const mc_data_columns *columns,
                                 const mc_tokenizer *tok, const mc_dataset_options *options)
{
    array all = {rows, count};
    if (mc_failed(ctx) || (count && !mc_given(ctx, rows))) return NULL;
    return mc_dataset_from_source(ctx, name, next_of_array, &all, columns, tok, options);
}
