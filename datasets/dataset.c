#include "datasets/dataset_internal.h"

#include <limits.h>
#include <string.h>

enum { DEFAULT_MAX_LENGTH = 512 };

void mc_dataset_ref(mc_dataset *dataset) { dataset->references++; }

void mc_dataset_unref(mc_dataset *dataset)
{
    if (!dataset || --dataset->references) return;
    mc_text_release(&dataset->text);
    mc_free(dataset->bound);
    mc_free(dataset->row);
    mc_free(dataset->path);
    mc_free(dataset);
}

static void release_owner(void *object) { mc_dataset_unref(object); }

void mc_dataset_free(mc_dataset *dataset)
{
    if (!dataset) return;
    mc_disown(&dataset->owned);
    mc_dataset_unref(dataset);
}

static bool nomem(mc_jsonl *reader, const char *what)
{
    mc_error_set(reader->err, MC_ERR_NOMEM, "%s:%lld: out of memory for %s", reader->name,
                 (long long)reader->line, what);
    return false;
}

/* Adds the texts of the current row, each closed with a NUL. */
static bool add_texts(mc_dataset *d, mc_jsonl *reader)
{
    const mc_task *task = d->task;
    for (int i = 0, texts = mc_task_texts(task); i < texts; i++) {
        const char *template = !task->pair[0] ? task->text[i]
                               : i % 2        ? task->pair[i / 2]
                                              : task->text[i / 2];
        if (!mc_grow(&d->bound, &d->bound_capacity, d->bounds + 1, sizeof *d->bound))
            return nomem(reader, "its text");
        d->bound[d->bounds++] = d->text.size;
        if (!mc_task_render(reader, template, &d->text)) return false;
        if (!mc_text_append(&d->text, "", 1)) return nomem(reader, "its text");
    }
    d->bound[d->bounds] = d->text.size;
    return true;
}

static bool add_row(mc_dataset *d, mc_jsonl *reader, bool unlabelled)
{
    mc_row row = {.line = reader->line, .source = (int32_t)d->rows};
    if (!mc_task_read_label(reader, d->task, unlabelled, &row.label)) return false;
    if (!add_texts(d, reader)) return false;
    if (d->rows == INT32_MAX) {
        mc_jsonl_fail(reader, "more than %d rows", INT32_MAX);
        return false;
    }
    if (!mc_grow(&d->row, &d->row_capacity, d->rows, sizeof *d->row))
        return nomem(reader, "its row");
    d->row[d->rows++] = row;
    return true;
}

/* Repeats the rows of rare classes: each int(largest class / its class) times, in place. */
static bool balance_rows(mc_dataset *d, mc_error *err)
{
    size_t count[MC_TASK_LABELS] = {0}, largest = 0, total = 0;
    for (size_t i = 0; i < d->rows; i++) count[d->row[i].label]++;
    for (int k = 0; k < d->task->labels; k++)
        if (count[k] > largest) largest = count[k];
    for (int k = 0; k < d->task->labels; k++) total += count[k] ? largest / count[k] * count[k] : 0;
    mc_row *row = total <= INT32_MAX ? mc_malloc(total * sizeof *row) : NULL;
    if (!row) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for %zu rows", d->path, total);
        return false;
    }
    size_t n = 0;
    for (size_t i = 0; i < d->rows; i++)
        for (size_t k = largest / count[d->row[i].label]; k > 0; k--) row[n++] = d->row[i];
    mc_free(d->row);
    d->row = row;
    d->rows = d->row_capacity = total;
    return true;
}

/* Reads all rows. */
static bool read_rows(mc_dataset *d, mc_error *err, const char *data, size_t size,
                      const char *split)
{
    bool unlabelled = strcmp(split, "test") == 0 || strcmp(split, "unlabeled") == 0;
    mc_jsonl reader;
    mc_jsonl_init(&reader, err, d->path, data, size);
    while (mc_jsonl_next(&reader) && add_row(d, &reader, unlabelled)) {
    }
    mc_jsonl_release(&reader);
    if (mc_error_is_set(err)) return false;
    if (d->rows == 0) {
        mc_error_set(err, MC_ERR_FORMAT, "%s: no rows: expected one JSON object a line", d->path);
        return false;
    }
    return !d->task->balance || strcmp(split, "train") != 0 || balance_rows(d, err);
}

/* Sets what the options say; the tokenizer itself is asked whether max_length is enough. */
static bool set_options(mc_dataset *d, mc_error *err, const mc_dataset_options *options)
{
    d->vocabulary = options ? options->vocabulary : 0;
    d->max_length = options && options->max_length ? options->max_length : DEFAULT_MAX_LENGTH;
    mc_encoding encoding = {0};
    mc_status status = MC_ERR_ARGUMENT;
    if (d->max_length > 0)
        status = mc_tokenizer_encode(d->tok, "", 0, d->task->pair[0] ? "" : NULL, 0,
                                     (size_t)d->max_length, &encoding);
    mc_encoding_release(&encoding);
    if (status == MC_ERR_NOMEM)
        mc_error_set(err, status, "out of memory for the tokenizer");
    else if (status)
        mc_error_set(err, status, "max_length %d: too few tokens for the special ones of task %s",
                     d->max_length, d->task->name);
    return status == MC_OK;
}

mc_dataset *mc_dataset_from_memory(mc_context *ctx, const char *task, const char *name,
                                   const char *data, size_t size, const char *split,
                                   const mc_tokenizer *tok, const mc_dataset_options *options)
{
    if (mc_failed(ctx)) return NULL;
    mc_error *err = &ctx->error;
    const mc_task *known = mc_task_find(err, task);
    if (!known) return NULL;
    if (!tok || !name || !split || (!data && size)) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: a dataset needs %s", name ? name : known->name,
                !tok     ? "a tokenizer"
                : !name  ? "a name"
                : !split ? "a split"
                         : "data");
        return NULL;
    }
    mc_dataset *d = mc_new_owned(ctx, sizeof *d, "a dataset", release_owner);
    if (!d) return NULL;
    d->ctx = ctx;
    d->references = 1;
    d->task = known;
    d->tok = tok;
    d->path = mc_strdup(name);
    if (!d->path) mc_fail_nomem(ctx, "a dataset");
    if (d->path && set_options(d, err, options) && read_rows(d, err, data, size, split)) return d;
    mc_dataset_free(d);
    return NULL;
}

mc_dataset *mc_dataset_open(mc_context *ctx, const char *task, const char *folder,
                            const char *split, const mc_tokenizer *tok,
                            const mc_dataset_options *options)
{
    if (mc_failed(ctx)) return NULL;
    char path[MC_PATH_MAX];
    mc_file_map map;
    const mc_task *known = mc_task_find(&ctx->error, task);
    if (!known || mc_dataset_locate(&ctx->error, known, folder, split, path)) return NULL;
    if (mc_file_map_init(&ctx->error, &map, path)) return NULL;
    mc_dataset *d = mc_dataset_from_memory(ctx, task, path, (const char *)map.data, map.size, split,
                                           tok, options);
    mc_file_map_release(&map);
    return d;
}

static const mc_row *find_row(const mc_dataset *d, int64_t row)
{
    return d && row >= 0 && (uint64_t)row < d->rows ? &d->row[row] : NULL;
}

const char *mc_dataset_piece(const mc_dataset *d, int64_t row, int which, size_t *length)
{
    const size_t *bound =
        d->bound + (size_t)d->row[row].source * (size_t)mc_task_texts(d->task) + which;
    *length = bound[1] - bound[0] - 1;
    return d->text.data + bound[0];
}

int64_t mc_dataset_rows(const mc_dataset *d) { return d ? (int64_t)d->rows : 0; }
int mc_dataset_labels(const mc_dataset *d) { return d ? d->task->labels : 0; }
int mc_dataset_choices(const mc_dataset *d) { return d ? d->task->choices : 0; }
int mc_dataset_max_length(const mc_dataset *d) { return d ? d->max_length : 0; }
const char *mc_dataset_task(const mc_dataset *d) { return d ? d->task->name : NULL; }
const char *mc_dataset_path(const mc_dataset *d) { return d ? d->path : NULL; }

int mc_dataset_outputs(const mc_dataset *d) { return d ? mc_task_outputs(d->task->name) : 0; }

const char *mc_dataset_label_name(const mc_dataset *d, int k)
{
    return d && k >= 0 && k < d->task->labels ? d->task->label[k] : NULL;
}

int64_t mc_dataset_line(const mc_dataset *d, int64_t row)
{
    const mc_row *r = find_row(d, row);
    return r ? r->line : 0;
}

int32_t mc_dataset_label(const mc_dataset *d, int64_t row)
{
    const mc_row *r = find_row(d, row);
    return r ? r->label : MC_NO_LABEL;
}

const char *mc_dataset_text(const mc_dataset *d, int64_t row, int choice)
{
    size_t length;
    if (!find_row(d, row) || choice < 0 || choice >= d->task->choices) return NULL;
    return mc_dataset_piece(d, row, d->task->pair[0] ? choice * 2 : choice, &length);
}

const char *mc_dataset_pair(const mc_dataset *d, int64_t row, int choice)
{
    size_t length;
    if (!find_row(d, row) || choice < 0 || choice >= d->task->choices || !d->task->pair[0])
        return NULL;
    return mc_dataset_piece(d, row, choice * 2 + 1, &length);
}
