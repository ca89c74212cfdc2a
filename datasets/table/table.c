#include "datasets/table.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "datasets/table/table_internal.h"

enum { ROW_MAX = 1 << 28 };

/* ---- opening --------------------------------------------------------------------------------- */

static void free_table(void *object)
{
    mc_table *t = object;
    if (t->is_open) mc_file_reader_release(&t->reader);
    for (int i = 0; i < t->columns + t->paths; i++) mc_free(t->name[i]);
    mc_free(t->name);
    mc_name_index_release(&t->by_name);
    mc_free(t->field);
    mc_free(t->decoded);
    mc_free(t->chat);
    mc_free(t->cell);
    mc_free(t->number);
    mc_jsonl_release(&t->json);
    mc_free(t->window);
    mc_free(t->place);
    mc_paths_release(&t->files);
    mc_free(t->path);
    mc_free(t);
}

void mc_table_free(mc_table *t)
{
    if (!t) return;
    mc_disown(&t->owned);
    free_table(t);
}

/* Of a name that shows no form: what is wrong first. A table in memory has no file. */
static void fail_form(mc_context *ctx, const char *path, bool file)
{
    static const char endings[] = ".csv, .tsv, .tab, .jsonl, .ndjson or .json, or in one of these "
                                  "and .gz";
    struct stat info;
    int failed = file && stat(path, &info) != 0 ? errno : 0;
    if (!*path)
        mc_fail(ctx, MC_ERR_ARGUMENT, "no file given: expected a name that ends in %s", endings);
    else if (failed)
        mc_fail(ctx, failed == ENOENT ? MC_ERR_NOT_FOUND : MC_ERR_IO, "%s: cannot open: %s", path,
                strerror(failed));
    else if (file && S_ISDIR(info.st_mode))
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: is a folder: expected a file whose name ends in %s",
                path, endings);
    else
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: unknown format: expected a name that ends in %s", path,
                endings);
}

static mc_table *new_table(mc_context *ctx, const char *path, bool file,
                           const mc_table_options *options)
{
    if (mc_failed(ctx)) return NULL;
    if (!path) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "a table needs a name");
        return NULL;
    }
    mc_table_format format = options ? options->format : MC_TABLE_BY_NAME;
    if (!format) format = mc_table_format_of(path);
    if (!format && !mc_table_is_foreign(ctx, path)) fail_form(ctx, path, file);
    if (!format) return NULL;
    mc_table *t = mc_new_owned(ctx, sizeof *t, "a table", free_table);
    if (!t) return NULL;
    t->ctx = ctx;
    t->format = format;
    if (options) t->options = *options;
    t->row_max = ROW_MAX;
    t->next_line = 1;
    if ((t->path = mc_strdup(path))) return t;
    mc_fail_nomem(ctx, "a table");
    mc_table_free(t);
    return NULL;
}

int mc_table_find_column(const mc_table *t, const char *name)
{
    size_t found = mc_name_index_find(&t->by_name, name);
    return found != SIZE_MAX ? (int)found : -1;
}

static bool add_name(mc_table *t, const char *name, size_t length)
{
    size_t count = (size_t)t->columns + (size_t)t->paths;
    bool ok = mc_grow(&t->name, &t->name_capacity, count, sizeof *t->name) &&
              (t->name[count] = mc_strndup(name, length));
    if (!ok) mc_fail(t->ctx, MC_ERR_NOMEM, "%s: out of memory for its columns", t->path);
    return ok;
}

static bool add_column(mc_table *t, const char *name, size_t length)
{
    if (!add_name(t, name, length)) return false;
    int column = t->columns++;
    if (mc_table_find_column(t, t->name[column]) >= 0 ||
        mc_name_index_add(&t->by_name, t->name[column], (size_t)column))
        return true;
    return !mc_fail(t->ctx, MC_ERR_NOMEM, "%s: out of memory for its columns", t->path);
}

/* The columns of CSV and TSV: the fields of the first row. */
static bool read_header(mc_table *t)
{
    if (!mc_table_read_fields(t)) return false;
    for (size_t i = 0; i < t->fields; i++) {
        size_t length;
        const char *name = mc_table_field_text(t, &t->field[i], &length);
        if (!name) return false;
        if (length && mc_table_find_column(t, name) >= 0) {
            mc_table_fail_at(t, t->field[i].start, "column \"%s\" is named twice", name);
            return false;
        }
        if (!add_column(t, name, length)) return false;
    }
    return true;
}

/* The columns of JSON: the keys of the first object, which is a row as well. */
static bool read_keys(mc_table *t)
{
    mc_table_begin_json(t);
    if (!mc_table_read_json(t)) return false;
    for (const cJSON *item = t->json.row->child; item; item = item->next) {
        if (t->columns == MC_TABLE_MOST_COLUMNS) {
            mc_jsonl_fail(&t->json, "a row of over %d columns", MC_TABLE_MOST_COLUMNS);
            return false;
        }
        if (!add_column(t, item->string, strlen(item->string))) return false;
    }
    t->pending = true;
    return true;
}

/* Passes a byte order mark, and reads the names of the columns. */
static mc_table *start(mc_table *t)
{
    t->json = (mc_jsonl){.err = &t->ctx->error, .name = t->path, .nul = true};
    if (mc_table_begin_row(t) && mc_table_byte(t, 2) >= 0 &&
        memcmp(t->window, "\xEF\xBB\xBF", 3) == 0)
        t->used = 3;
    if (t->format != MC_TABLE_JSONL && !mc_failed(t->ctx)) mc_table_find_form(t);
    bool found =
        !mc_table_holds_foreign(t) && (t->format == MC_TABLE_JSONL ? read_keys(t) : read_header(t));
    if (found) return t;
    if (!mc_failed(t->ctx))
        mc_fail(t->ctx, MC_ERR_FORMAT, "%s: empty: expected %s", t->path,
                t->format == MC_TABLE_JSONL ? "one JSON object a line, or a list of objects"
                                            : "a row with the names of the columns");
    mc_table_free(t);
    return NULL;
}

mc_table *mc_table_open_one(mc_context *ctx, const char *path, const mc_table_options *options)
{
    mc_table *t = new_table(ctx, path, true, options);
    if (!t) return NULL;
    t->is_open = true;
    if (mc_file_reader_init(&ctx->error, &t->reader, path) == MC_OK) return start(t);
    mc_table_free(t);
    return NULL;
}

mc_table *mc_table_open_list(mc_context *ctx, const char *const *patterns, int count,
                             const mc_table_options *options)
{
    mc_paths files = {0};
    bool good = !mc_failed(ctx) && mc_given(ctx, patterns);
    if (good && count < 1) mc_fail(ctx, MC_ERR_ARGUMENT, "a table needs a name");
    for (int i = 0; good && i < count; i++) {
        if (!patterns[i]) mc_fail(ctx, MC_ERR_ARGUMENT, "a table needs a name");
        good = patterns[i] && mc_paths_add(&ctx->error, &files, patterns[i]);
    }
    mc_table *t = good && files.count ? mc_table_open_one(ctx, files.path[0], options) : NULL;
    if (!t) {
        mc_paths_release(&files);
        return NULL;
    }
    t->files = files;
    if (mc_table_check_files(t)) return t;
    mc_table_free(t);
    return NULL;
}

mc_table *mc_table_open(mc_context *ctx, const char *path, const mc_table_options *options)
{
    return mc_table_open_list(ctx, &path, 1, options);
}

mc_table *mc_table_from_memory(mc_context *ctx, const char *name, const char *data, size_t size,
                               const mc_table_options *options)
{
    if (mc_failed(ctx) || (size && !mc_given(ctx, data))) return NULL;
    mc_table *t = new_table(ctx, name, false, options);
    if (!t) return NULL;
    t->memory = data;
    t->memory_size = size;
    return start(t);
}

/* ---- columns --------------------------------------------------------------------------------- */

int mc_table_columns(const mc_table *t) { return t ? t->columns : 0; }

const char *mc_table_column_name(const mc_table *t, int i)
{
    return t && i >= 0 && i < t->columns ? t->name[i] : NULL;
}

/* `"a", "b", "c"`, of the columns that have names. */
static void list_columns(const mc_table *t, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < t->columns && used < size; i++)
        if (*t->name[i])
            used += (size_t)snprintf(text + used, size - used, "%s\"%s\"", used ? ", " : "",
                                     t->name[i]);
}

/* "a.b" of JSON Lines, where the first object has such a value. */
static int add_path(mc_table *t, const char *name)
{
    int column = t->columns + t->paths;
    if (t->format != MC_TABLE_JSONL || !t->pending || !strchr(name, '.')) return -1;
    if (!add_name(t, name, strlen(name))) return -1;
    if (mc_table_json_value(t, column)) {
        t->paths++;
        return column;
    }
    mc_free(t->name[column]);
    return -1;
}

int mc_table_column(mc_table *t, const char *name)
{
    if (!t || mc_failed(t->ctx)) return -1;
    int found = name && *name ? mc_table_find_column(t, name) : -1;
    for (int i = t->columns; found < 0 && name && *name && i < t->columns + t->paths; i++)
        if (strcmp(t->name[i], name) == 0) found = i;
    if (found >= 0) return found;
    int added = name ? add_path(t, name) : -1;
    if (added >= 0 || mc_failed(t->ctx)) return added;
    char known[1024];
    list_columns(t, known, sizeof known);
    mc_fail(t->ctx, MC_ERR_FORMAT, "%s: no column \"%s\": expected one of %s", t->path,
            name ? name : "(none)", known);
    return -1;
}

/* ---- rows ------------------------------------------------------------------------------------ */

bool mc_table_next(mc_table *t)
{
    if (!t || mc_failed(t->ctx)) return false;
    do {
        bool json = t->format == MC_TABLE_JSONL;
        t->current = t->pending || (json ? mc_table_read_json(t) : mc_table_read_fields(t));
        t->pending = false;
    } while (!t->current && mc_table_next_file(t));
    t->rows += t->current;
    return t->current;
}

int64_t mc_table_row(const mc_table *t) { return t ? t->rows - 1 : -1; }
int64_t mc_table_line(const mc_table *t) { return t ? t->line : 0; }

const char *mc_table_path(const mc_table *t)
{
    if (!t) return NULL;
    return t->files.count ? t->files.path[t->file] : t->path;
}

/* Of CSV and TSV. */
static mc_field *field_of(mc_table *t, int column)
{
    return &t->field[t->place ? t->place[column] : column];
}

/* Whether there is a current row with such a column. */
static bool is_there(mc_table *t, int column)
{
    if (!t || mc_failed(t->ctx) || !t->current) return false;
    if (column >= 0 && column < t->columns + t->paths) return true;
    mc_fail(t->ctx, MC_ERR_ARGUMENT, "%s: no column number %d: it has %d", t->path, column,
            t->columns);
    return false;
}

bool mc_table_has(mc_table *t, int column)
{
    if (!is_there(t, column)) return false;
    if (t->format != MC_TABLE_JSONL) return field_of(t, column)->size > 0;
    const cJSON *value = mc_table_json_value(t, column);
    return value && !cJSON_IsNull(value);
}

const char *mc_table_text(mc_table *t, int column, size_t *length)
{
    size_t unused;
    if (!length) length = &unused;
    *length = 0;
    if (!is_there(t, column)) return NULL;
    if (t->format != MC_TABLE_JSONL) return mc_table_field_text(t, field_of(t, column), length);
    return mc_table_json_text(t, column, length);
}

const char *mc_table_cell(mc_table *t, int column, size_t *length)
{
    size_t unused;
    if (!length) length = &unused;
    *length = 0;
    if (!is_there(t, column)) return NULL;
    if (t->format != MC_TABLE_JSONL) return mc_table_field_text(t, field_of(t, column), length);
    return mc_table_json_cell(t, column, length);
}

mc_status mc_table_fail(mc_table *t, int column, const char *format, ...)
{
    char what[512];
    va_list args;
    if (!t) return MC_ERR_ARGUMENT;
    if (!is_there(t, column)) return mc_error_status(t->ctx);
    va_start(args, format);
    vsnprintf(what, sizeof what, format ? format : "no message", args);
    va_end(args);
    if (t->format == MC_TABLE_JSONL)
        return mc_jsonl_fail(&t->json, "key \"%s\": %s", t->name[column], what);
    size_t at = field_of(t, column)->start;
    bool quoted = t->quotes && at > 0 && t->window[t->row + at - 1] == '"';
    return mc_table_fail_at(t, at - quoted, "%s", what);
}
