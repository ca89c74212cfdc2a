/* Rows of CSV and TSV: where each field begins and ends. */
#include <string.h>
#include "datasets/table/table_internal.h"

static mc_field *add_field(mc_table *t, size_t start)
{
    if (t->fields == MC_TABLE_MOST_COLUMNS) {
        mc_table_fail_at(t, start, "a row of over %d columns", MC_TABLE_MOST_COLUMNS);
        return NULL;
    }
    if (!mc_grow(&t->field, &t->field_capacity, t->fields, sizeof *t->field)) {
        mc_fail(t->ctx, MC_ERR_NOMEM, "%s:%lld: out of memory for its fields", t->path,
                (long long)t->line);
        return NULL;
    }
    t->field[t->fields] = (mc_field){.start = start};
    return &t->field[t->fields++];
}

/* Bytes of a line's end at `at`: 2 of CRLF, 1 of LF or of CR at the file's end; 0 if there is none.
 * At the end of the file *ended becomes true, and it is 0. */
static size_t line_end(mc_table *t, size_t at, bool *ended)
{
    int c = mc_table_byte(t, at);
    if (c < 0) *ended = true;
    if (c == '\n') return 1;
    if (c != '\r') return 0;
    int next = mc_table_byte(t, at + 1);
    return next == '\n' ? 2 : next < 0;
}

/* From after an opening quote to after the closing one. */
static bool read_quoted(mc_table *t, mc_field *field, size_t *at)
{
    t->open = *at - 1;
    while (mc_table_find(t, '"', at)) {
        if (mc_table_byte(t, *at + 1) != '"') {
            field->size = (*at)++ - field->start;
            t->open = SIZE_MAX;
            return !mc_failed(t->ctx);
        }
        field->doubled = true;
        *at += 2;
    }
    if (!mc_failed(t->ctx)) mc_table_fail_at(t, t->open, "this quote is never closed");
    return false;
}

/* To the separator or the line's end. */
static bool read_plain(mc_table *t, mc_field *field, size_t *at)
{
    for (;; (*at)++) {
        int c = mc_table_byte(t, *at);
        bool ended = false;
        if (c < 0 || c == t->separator || c == '\n' || (c == '\r' && line_end(t, *at, &ended)))
            break;
        if (c != '"' && c != '\r') continue;
        mc_table_fail_at(t, *at, "%s in a field without quotes: put it in quotes%s",
                         c == '"' ? "a quote" : "a carriage return",
                         c == '"' ? ", with this one written twice" : "");
        return false;
    }
    field->size = *at - field->start;
    return !mc_failed(t->ctx);
}

/* One row with quotes, which ends at t->used, the line's end included. */
static bool read_quoted_row(mc_table *t)
{
    for (size_t at = 0;;) {
        bool quoted = mc_table_byte(t, at) == '"', ended = false;
        mc_field *field = add_field(t, at += quoted);
        if (!field || !(quoted ? read_quoted(t, field, &at) : read_plain(t, field, &at)))
            return false;
        if (mc_table_byte(t, at) == t->separator) {
            at++;
            continue;
        }
        size_t end = line_end(t, at, &ended);
        t->used = at + end;
        if (end || ended) return !mc_failed(t->ctx);
        mc_table_fail_at(t, at, "expected %s or the line's end after the closing quote",
                         t->separator == ',' ? "a comma" : "the separator");
        return false;
    }
}

/* Fields between separators, up to the line's end. */
static bool read_plain_row(mc_table *t)
{
    size_t size = 0;
    bool ended = !mc_table_find(t, '\n', &size);
    if (mc_failed(t->ctx)) return false;
    t->used = size + !ended;
    const char *row = t->window + t->row;
    if (size && row[size - 1] == '\r') size--;
    for (size_t at = 0;; at++) {
        mc_field *field = add_field(t, at);
        if (!field) return false;
        const char *tab = memchr(row + at, t->separator, size - at);
        field->size = (tab ? (size_t)(tab - row) : size) - at;
        at += field->size;
        if (!tab) return true;
    }
}

static int64_t count_lines(const char *text, size_t size)
{
    int64_t lines = 0;
    for (const char *end = text + size; (text = memchr(text, '\n', (size_t)(end - text))); text++)
        lines++;
    return lines;
}

/* The row has as many fields as there are columns; none are known before the header. */
static bool check_fields(mc_table *t)
{
    size_t columns = (size_t)t->columns;
    if (!columns || t->fields == columns) return true;
    const mc_field *last = &t->field[t->fields - 1];
    bool text = !t->quotes && memchr(t->window + t->row, '"', t->used);
    const char *hint = text ? " (quotes are text in this file; in a .csv they are not)" : "";
    if (t->fields > columns)
        mc_table_fail_at(t, t->field[columns].start, "a row of %zu fields, expected %zu%s",
                         t->fields, columns, hint);
    else
        mc_table_fail_at(t, last->start + last->size, "the row ends after %zu %s, expected %zu%s",
                         t->fields, t->fields == 1 ? "field" : "fields", columns, hint);
    return false;
}

bool mc_table_read_fields(mc_table *t)
{
    while (mc_table_begin_row(t)) {
        if (!(t->quotes ? read_quoted_row(t) : read_plain_row(t))) return false;
        t->next_line = t->line + count_lines(t->window + t->row, t->used);
        bool blank = t->fields == 1 && !t->field[0].size && !t->field[0].start;
        if (!blank) return mc_table_check_text(t) && check_fields(t);
    }
    return false;
}

/* Room for all fields of the row, each with a NUL. */
static bool reserve_decoded(mc_table *t)
{
    size_t needed = t->used + t->fields + 1;
    if (t->decoded_used || needed <= t->decoded_capacity) return true;
    char *grown = mc_realloc(t->decoded, needed * 2);
    if (!grown) {
        mc_fail(t->ctx, MC_ERR_NOMEM, "%s:%lld: out of memory for its text", t->path,
                (long long)t->line);
        return false;
    }
    t->decoded = grown;
    t->decoded_capacity = needed * 2;
    return true;
}

/* Writes quotes that are there twice once. */
static bool decode(mc_table *t, mc_field *field)
{
    if (!reserve_decoded(t)) return false;
    const char *from = t->window + t->row + field->start, *end = from + field->size;
    char *to = field->decoded = t->decoded + t->decoded_used;
    for (const char *quote; from < end; from = quote ? quote + 2 : end) {
        quote = memchr(from, '"', (size_t)(end - from));
        size_t size = (size_t)((quote ? quote + 1 : end) - from);
        memcpy(to, from, size);
        to += size;
    }
    *to++ = '\0';
    t->decoded_used += (size_t)(to - field->decoded);
    return true;
}

const char *mc_table_field_text(mc_table *t, mc_field *field, size_t *length)
{
    char *text = t->window + t->row + field->start;
    if (field->doubled) {
        if (!field->decoded && !decode(t, field)) return NULL;
        *length = strlen(field->decoded);
        return field->decoded;
    }
    *length = field->size;
    text[field->size] = '\0'; /* what was there is a quote, a separator or the line's end */
    return text;
}
