/* Rows of JSON Lines, and of a list of objects. */
#include <stdio.h>
#include <string.h>
#include "datasets/table/table_internal.h"

/* ---- a list of objects ----------------------------------------------------------------------- */

/* The first byte that is no white space, from *at on, where it is then; -1 at the file's end. */
static int next_byte(mc_table *t, size_t *at, int64_t *lines)
{
    int c;
    for (; (c = mc_table_byte(t, *at)) == ' ' || c == '\t' || c == '\r' || c == '\n'; (*at)++)
        *lines += c == '\n';
    return c;
}

void mc_table_begin_json(mc_table *t)
{
    size_t at = t->used;
    int64_t lines = 0;
    t->list = next_byte(t, &at, &lines) == '[';
    if (!t->list) return;
    t->used = at + 1;
    t->next_line += lines;
}

/* Where the value at `at` ends: its bracket, or what follows a plain value. */
static size_t end_of_value(mc_table *t, size_t at, int64_t *lines)
{
    int depth = 0, c;
    bool in_string = false;
    for (; (c = mc_table_byte(t, at)) >= 0; at++) {
        *lines += c == '\n';
        if (in_string && c == '\\')
            at++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '['))
            depth++;
        else if (!in_string && depth && (c == '}' || c == ']') && --depth == 0)
            return at + 1;
        else if (!in_string && !depth && (c == ',' || c == ']'))
            return at;
    }
    return at < t->end - t->row ? at : t->end - t->row;
}

/* After the list's closing bracket there is nothing. */
static bool end_list(mc_table *t, size_t at, int64_t line)
{
    int64_t lines = 0;
    at++;
    if (next_byte(t, &at, &lines) >= 0)
        mc_error_set(&t->ctx->error, MC_ERR_FORMAT,
                     "%s:%lld: text after the end of the list of objects", t->path,
                     (long long)(line + lines));
    return false;
}

/* The next object of the list; t->line becomes the line that it begins on. */
static bool read_element(mc_table *t)
{
    size_t at = 0;
    int64_t lines = 0, inside = 0;
    mc_table_begin_row(t);
    int c = next_byte(t, &at, &lines);
    if (c == ',' && t->list_begun) {
        at++;
        c = next_byte(t, &at, &lines);
    } else if (c == ']') {
        return end_list(t, at, t->line + lines);
    } else if (t->list_begun && c >= 0) {
        mc_error_set(&t->ctx->error, MC_ERR_FORMAT,
                     "%s:%lld: expected a comma or ] after the object before", t->path,
                     (long long)(t->line + lines));
        return false;
    }
    t->list_begun = true;
    t->line += lines;
    t->json.line = t->line;
    if (c < 0 && !mc_failed(t->ctx))
        mc_jsonl_fail(&t->json, "%s", "malformed JSON: the list of objects has no end");
    size_t end = end_of_value(t, at, &inside);
    if (mc_failed(t->ctx)) return false;
    if (end == at) end++; /* what is no value is named in the error */
    t->used = end;
    t->next_line = t->line + inside;
    return mc_jsonl_parse(&t->json, t->window + t->row + at, end - at, t->line);
}

/* ---- an object a line ------------------------------------------------------------------------ */

/* Whether a line opens more brackets than it closes. */
static bool is_open_line(const char *line, size_t size)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = line[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string)
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
    return depth > 0 && !in_string;
}

/* An object over several lines, as programs write one that people are to read: refused by name,
 * where it is the file's first. */
static bool is_spread(mc_table *t)
{
    if (t->rows || t->columns || !is_open_line(t->window + t->row, t->used)) return false;
    mc_error_set(&t->ctx->error, MC_ERR_FORMAT,
                 "%s:%lld: malformed JSON: an object over several lines: expected one object a "
                 "line (JSON Lines), or a list of objects",
                 t->path, (long long)t->line);
    return true;
}

bool mc_table_read_json(mc_table *t)
{
    mc_jsonl *json = &t->json;
    if (t->list) return read_element(t);
    while (mc_table_begin_row(t)) {
        size_t size = 0;
        bool ended = !mc_table_find(t, '\n', &size);
        if (mc_failed(t->ctx)) return false;
        t->used = size + !ended;
        t->next_line = t->line + 1;
        if (is_spread(t)) return false;
        json->data = t->window + t->row;
        json->size = size;
        json->at = 0;
        json->line = t->line - 1;
        if (mc_jsonl_next(json)) return true;
        if (mc_failed(t->ctx)) return false;
    }
    return false;
}

const cJSON *mc_table_json_value(mc_table *t, int column)
{
    const char *path = t->name[column];
    bool ok = true;
    const cJSON *value = mc_jsonl_find(&t->json, t->json.row, path, &ok);
    if (value || !ok || column < t->columns) return value;
    value = t->json.row;
    while (value && ok && *path) { /* "a.b": b of the object at a */
        char key[128];
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        value = cJSON_IsObject(value) ? mc_jsonl_find(&t->json, value, key, &ok) : NULL;
        path += length + (path[length] == '.');
    }
    return value;
}

static const char *number_text(mc_table *t, int column, const cJSON *number)
{
    while ((size_t)column >= t->number_capacity)
        if (!mc_grow(&t->number, &t->number_capacity, t->number_capacity, sizeof *t->number)) {
            mc_fail(t->ctx, MC_ERR_NOMEM, "%s:%lld: out of memory for a number", t->path,
                    (long long)t->line);
            return NULL;
        }
    return mc_json_number(number, t->number[column].text);
}

/* The text of a value that is no string; NULL: it has none. */
static const char *scalar_text(mc_table *t, int column, const cJSON *value)
{
    if (cJSON_IsNumber(value)) return number_text(t, column, value);
    if (cJSON_IsBool(value)) return cJSON_IsTrue(value) ? "true" : "false";
    return NULL;
}

const char *mc_table_json_text(mc_table *t, int column, size_t *length)
{
    const cJSON *value = mc_table_json_value(t, column);
    if (mc_failed(t->ctx)) return NULL;
    if (cJSON_IsString(value)) {
        *length = mc_json_length(value);
        return value->valuestring;
    }
    const char *text = scalar_text(t, column, value);
    *length = text ? strlen(text) : 0;
    if (text || mc_failed(t->ctx)) return text;
    if (value)
        mc_table_fail(t, column, "expected text or a number, found %s",
                      mc_json_describe(value).text);
    else
        mc_jsonl_fail(&t->json, "key \"%s\" is missing, expected text or a number",
                      t->name[column]);
    return NULL;
}

/* ---- a row as it stands in the file ---------------------------------------------------------- */

/* Behind the colon of the object's value number `index`. */
static size_t start_of_value(mc_table *t, int index)
{
    int depth = 0, c;
    bool in_string = false;
    size_t at = 0;
    for (; (c = mc_table_byte(t, at)) >= 0; at++) {
        if (in_string && c == '\\')
            at++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && depth == 1 && c == ':' && index-- == 0)
            return at + 1;
        else if (!in_string)
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
    return at;
}

/* A list or an object. */
static const char *copy_value(mc_table *t, const cJSON *value, size_t *length)
{
    int index = 0;
    int64_t lines = 0;
    for (const cJSON *at = t->json.row->child; at != value; at = at->next) index++;
    size_t start = start_of_value(t, index), end = end_of_value(t, start, &lines);
    while (start < end && strchr(" \t\r\n", t->window[t->row + start])) start++;
    *length = end - start;
    mc_free(t->cell);
    t->cell = mc_malloc(*length + 1);
    if (!t->cell) {
        mc_fail_nomem(t->ctx, "a value of a table");
        return NULL;
    }
    memcpy(t->cell, t->window + t->row + start, *length);
    t->cell[*length] = '\0';
    return t->cell;
}

const char *mc_table_json_cell(mc_table *t, int column, size_t *length)
{
    const cJSON *value = mc_table_json_value(t, column);
    *length = 0;
    if (mc_failed(t->ctx)) return NULL;
    if (!value || cJSON_IsNull(value)) return "";
    bool nested = (cJSON_IsArray(value) || cJSON_IsObject(value)) && column < t->columns;
    return nested ? copy_value(t, value, length) : mc_table_json_text(t, column, length);
}

const char *mc_table_other_key(const mc_table *t)
{
    if (!t || !t->current || t->format != MC_TABLE_JSONL) return NULL;
    for (const cJSON *item = t->json.row->child; item; item = item->next)
        if (mc_table_find_column(t, item->string) < 0) return item->string;
    return NULL;
}
