#include "core/base/json_keys_internal.h"

#include <stdio.h>
#include <string.h>

static bool fits(const char *pattern, const char *key)
{
    size_t end = strlen(pattern + 1), length = strlen(key);
    return *pattern == '*' && length >= end && strcmp(key + length - end, pattern + 1) == 0;
}

const mc_key_row *mc_keys_find(const mc_key_table *table, const char *key)
{
    const mc_key_row *by_end = NULL;
    for (const mc_key_row *row = table->rows; row->key; row++) {
        if (strcmp(row->key, key) == 0) return row;
        if (fits(row->key, key)) by_end = row;
    }
    return by_end;
}

/* Writes the accepted values for a message: `true`, `0 or 1`. */
static void list_values(const cJSON *values, char *text, size_t room)
{
    const cJSON *value;
    *text = '\0';
    cJSON_ArrayForEach(value, values)
    {
        size_t used = strlen(text);
        char *printed = cJSON_PrintUnformatted(value);
        snprintf(text + used, room - used, "%s%s", used ? " or " : "", printed ? printed : "?");
        cJSON_free(printed);
    }
    if (!*text) snprintf(text, room, "null");
}

static bool is_harmless(const cJSON *values, const cJSON *item)
{
    const cJSON *value;
    if (cJSON_IsNull(item)) return true;
    cJSON_ArrayForEach(value, values)
    {
        if (cJSON_Compare(value, item, true)) return true;
    }
    return false;
}

/* An error or a warning about a value. */
static bool report(mc_context *ctx, mc_error *err, const char *path, const mc_key_row *row,
                   const cJSON *item, const cJSON *values)
{
    char expected[256];
    char *found = cJSON_PrintUnformatted(item);
    const char *value = found ? found : "its value";
    const char *colon = row->note ? ": " : "", *note = row->note ? row->note : "";
    list_values(values, expected, sizeof expected);
    if (row->meaning == MC_KEY_ONLY)
        mc_error_set(err, MC_ERR_UNSUPPORTED,
                     "%s: key \"%s\": %.120s is not supported, expected %s%s%s", path, item->string,
                     value, expected, colon, note);
    else
        mc_log(ctx, MC_LOG_WARNING, "%s: key \"%s\": %.120s has no effect here%s%s", path,
               item->string, value, colon, note);
    cJSON_free(found);
    return row->meaning != MC_KEY_ONLY;
}

static bool check_value(mc_context *ctx, mc_error *err, const char *path, const mc_key_row *row,
                        const cJSON *item)
{
    if (row->meaning != MC_KEY_ONLY && row->meaning != MC_KEY_WARNED) return true;
    cJSON *values = mc_json_parse_own(row->harmless ? row->harmless : "[]");
    if (!values) return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", path) == MC_OK;
    bool good = is_harmless(values, item) || report(ctx, err, path, row, item, values);
    cJSON_Delete(values);
    return good;
}

void mc_keys_warn_unknown(mc_context *ctx, const char *path, const char *key)
{
    mc_log(ctx, MC_LOG_WARNING, "%s: key \"%s\" is not known and has no effect", path, key);
}

bool mc_keys_check(mc_context *ctx, mc_error *err, const char *path, const cJSON *json,
                   const mc_key_table *table)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json)
    {
        const mc_key_row *row = mc_keys_find(table, item->string);
        if (row && !check_value(ctx, err, path, row, item)) return false;
        if (!row && !cJSON_IsNull(item)) mc_keys_warn_unknown(ctx, path, item->string);
    }
    return true;
}
