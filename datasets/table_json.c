/* Rows of JSON Lines. */
#include <stdio.h>
#include <string.h>
#include "datasets/table_internal.h"

bool mc_table_read_json(mc_table *t)
{
    mc_jsonl *json = &t->json;
    while (mc_table_begin_row(t)) {
        size_t size = 0;
        bool ended = !mc_table_find(t, '\n', &size);
        if (mc_failed(t->ctx)) return false;
        t->used = size + !ended;
        t->next_line = t->line + 1;
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
