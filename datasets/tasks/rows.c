#include "datasets/tasks/rows_internal.h"

#include <limits.h>
#include <string.h>
#include "datasets/table.h"

bool mc_flat_text(cJSON *flat, const char *key, const char *text)
{
    cJSON *item = flat ? cJSON_CreateStringReference(text) : NULL;
    if (item && cJSON_AddItemToObject(flat, key, item)) return true;
    cJSON_Delete(item);
    return false;
}

bool mc_flat_number(cJSON *flat, const char *key, double value)
{
    return flat && cJSON_AddNumberToObject(flat, key, value);
}

bool mc_sink_add(mc_row_sink *sink, mc_jsonl *reader, cJSON *flat)
{
    if (!flat) {
        mc_error_set(reader->err, MC_ERR_NOMEM, "%s:%lld: out of memory for its rows", reader->name,
                     (long long)reader->line);
        return false;
    }
    cJSON *whole = reader->row;
    reader->row = flat;
    bool ok = sink->add(sink->user, reader, sink->question);
    reader->row = whole;
    cJSON_Delete(flat);
    return ok;
}

/* BoolQ's authors keep the title of a passage by itself, and the label as "answer"; SuperGLUE puts
 * "TITLE -- " before the passage. Makes the second of the first. */
static bool join_title(mc_jsonl *reader)
{
    cJSON *row = reader->row;
    cJSON *title = cJSON_GetObjectItemCaseSensitive(row, "title");
    cJSON *passage = cJSON_GetObjectItemCaseSensitive(row, "passage");
    bool published = !cJSON_HasObjectItem(row, "label") && cJSON_IsString(title);
    if (!published || !cJSON_IsString(passage) || !*title->valuestring) return true;
    size_t before = mc_json_length(title), size = mc_json_length(passage);
    char *joined = cJSON_malloc(before + 4 + size + 1);
    if (!joined || before + 4 + size > INT_MAX) {
        cJSON_free(joined);
        mc_error_set(reader->err, MC_ERR_NOMEM, "%s:%lld: out of memory for its passage",
                     reader->name, (long long)reader->line);
        return false;
    }
    memcpy(joined, title->valuestring, before);
    memcpy(joined + before, " -- ", 4);
    memcpy(joined + before + 4, passage->valuestring, size + 1);
    cJSON_free(passage->valuestring);
    passage->valuestring = joined;
    passage->valueint = (int)(before + 4 + size); /* mc_json_length */
    return true;
}

static bool read_line(mc_row_form form, mc_row_sink *sink, mc_jsonl *reader)
{
    switch (form) {
    case MC_ROWS_MULTIRC: return mc_read_multirc(sink, reader);
    case MC_ROWS_RECORD: return mc_read_record(sink, reader);
    case MC_ROWS_HELLASWAG: return mc_read_hellaswag(sink, reader);
    case MC_ROWS_BOOLQ:
        return join_title(reader) && sink->add(sink->user, reader, sink->question++);
    default: return sink->add(sink->user, reader, sink->question++);
    }
}

static void read_lines(mc_error *err, mc_row_form form, const char *name, const char *data,
                       size_t size, mc_row_sink *sink)
{
    mc_jsonl reader;
    mc_jsonl_init(&reader, err, name, data, size);
    reader.nul =
        form == MC_ROWS_LINES || form == MC_ROWS_BOOLQ; /* the others pass texts on as C strings */
    while (mc_jsonl_next(&reader) && read_line(form, sink, &reader)) {
    }
    mc_jsonl_release(&reader);
}

static void read_document(mc_error *err, const char *name, const char *data, size_t size,
                          mc_row_sink *sink)
{
    mc_jsonl document;
    mc_jsonl_init(&document, err, name, data, size);
    document.row =
        mc_json_parse(err, data + document.at, size - document.at, name, 1 /* the first line */);
    if (document.row && !cJSON_IsObject(document.row))
        mc_error_set(err, MC_ERR_FORMAT, "%s: expected a JSON object, found %s", name,
                     mc_json_describe(document.row).text);
    else if (document.row)
        mc_read_squad(sink, &document);
    mc_jsonl_release(&document);
}

/* ---- LCQMC ----------------------------------------------------------------------------------- */

/* The columns of LCQMC: two texts, in the file's order, and the label, by its name or the last. */
typedef struct lcqmc_columns {
    int text_a, text_b, label;
} lcqmc_columns;

static bool find_columns(mc_context *ctx, const char *name, mc_table *table, bool unlabelled,
                         lcqmc_columns *out)
{
    int columns = mc_table_columns(table), label = -1;
    for (int i = 0; i < columns; i++)
        if (strcmp(mc_table_column_name(table, i), "label") == 0) label = i;
    if (columns == 3 && label < 0) label = 2;
    if (columns != 2 + (label >= 0) || (label < 0 && !unlabelled)) {
        mc_fail(ctx, MC_ERR_FORMAT, "%s:1: %d columns, expected three: two texts and a label", name,
                columns);
        return false;
    }
    *out = (lcqmc_columns){label == 0, label >= 0 && label < 2 ? 2 : 1, label};
    return true;
}

/* A label is 0 or 1; any other text is passed on, for the error that a task gives. */
static cJSON *lcqmc_row(mc_table *table, const lcqmc_columns *c)
{
    cJSON *flat = cJSON_CreateObject();
    const char *a = mc_table_text(table, c->text_a, NULL);
    const char *b = mc_table_text(table, c->text_b, NULL);
    bool ok = flat && a && b && mc_flat_text(flat, "text_a", a) && mc_flat_text(flat, "text_b", b);
    if (ok && c->label >= 0 && mc_table_has(table, c->label)) {
        const char *label = mc_table_text(table, c->label, NULL);
        bool number = label && (strcmp(label, "0") == 0 || strcmp(label, "1") == 0);
        ok = label && (number ? mc_flat_number(flat, "label", label[0] - '0')
                              : mc_flat_text(flat, "label", label));
    }
    if (ok) return flat;
    cJSON_Delete(flat);
    return NULL;
}

static void read_lcqmc(mc_context *ctx, const char *name, const char *data, size_t size,
                       mc_row_sink *sink)
{
    mc_table_options options = {.format = MC_TABLE_TSV};
    mc_table *table = mc_table_from_memory(ctx, name, data, size, &options);
    lcqmc_columns columns;
    mc_jsonl row = {.err = &ctx->error, .name = name};
    if (table && find_columns(ctx, name, table, sink->unlabelled, &columns))
        while (mc_table_next(table)) {
            row.line = mc_table_line(table);
            if (!mc_sink_add(sink, &row, lcqmc_row(table, &columns))) break;
            sink->question++;
        }
    mc_table_free(table);
}

bool mc_rows_read(mc_context *ctx, mc_row_form form, const char *name, const char *data,
                  size_t size, mc_row_sink *sink)
{
    if (mc_failed(ctx)) return false;
    if (form == MC_ROWS_LCQMC)
        read_lcqmc(ctx, name, data, size, sink);
    else if (form == MC_ROWS_SQUAD)
        read_document(&ctx->error, name, data, size, sink);
    else
        read_lines(&ctx->error, form, name, data, size, sink);
    return !mc_failed(ctx);
}
