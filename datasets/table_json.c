/* Rows of JSON Lines. */
#include <stdio.h>
#include <stdlib.h>
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

/* The shortest decimal form that is read as this number. */
static const char *number_text(mc_table *t, int column, double number)
{
    while ((size_t)column >= t->number_capacity)
        if (!mc_grow(&t->number, &t->number_capacity, t->number_capacity, sizeof *t->number)) {
            mc_fail(t->ctx, MC_ERR_NOMEM, "%s:%lld: out of memory for a number", t->path,
                    (long long)t->line);
            return NULL;
        }
    char *text = t->number[column].text;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof t->number[column].text, "%.*g", digits, number);
        if (strtod(text, NULL) == number) break;
    }
    return text;
}

const char *mc_table_json_text(mc_table *t, int column)
{
    const cJSON *value = mc_table_json_value(t, column);
    if (mc_failed(t->ctx)) return NULL;
    if (cJSON_IsString(value)) return value->valuestring;
    if (cJSON_IsNumber(value)) return number_text(t, column, value->valuedouble);
    if (cJSON_IsBool(value)) return cJSON_IsTrue(value) ? "true" : "false";
    if (value)
        mc_table_fail(t, column, "expected text or a number, found %s",
                      mc_json_describe(value).text);
    else
        mc_jsonl_fail(&t->json, "key \"%s\" is missing, expected text or a number",
                      t->name[column]);
    return NULL;
}
