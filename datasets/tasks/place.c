#include "datasets/tasks/place_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "datasets/dataset_internal.h"

mc_place mc_place_row(mc_jsonl *reader)
{
    return (mc_place){.reader = reader, .value = reader->row};
}

/* `a.b[2].c`. */
static bool add_path(const mc_place *place, mc_text *out)
{
    if (!place->in) return true;
    if (!add_path(place->in, out)) return false;
    if (!place->key) return mc_text_append_format(out, "[%d]", place->index);
    return mc_text_append_format(out, "%s%s", out->size ? "." : "", place->key);
}

/* Sets the error "FILE:LINE: key "a.b": <what>". */
static bool fail(const mc_place *place, const char *what)
{
    mc_jsonl *reader = place->reader;
    mc_text path = {0};
    char line[24] = "";
    if (reader->line) snprintf(line, sizeof line, ":%lld", (long long)reader->line);
    if (add_path(place, &path) && mc_text_append(&path, "", 0))
        mc_error_set(reader->err, MC_ERR_FORMAT, "%s%s: key \"%s\"%s", reader->name, line,
                     path.data, what);
    else
        mc_error_set(reader->err, MC_ERR_NOMEM, "%s%s: out of memory", reader->name, line);
    mc_text_release(&path);
    return false;
}

bool mc_place_fail(const mc_place *place, const char *expected)
{
    char what[192];
    if (place->value)
        snprintf(what, sizeof what, ": expected %s, found %s", expected,
                 mc_json_describe(place->value).text);
    else
        snprintf(what, sizeof what, " is missing, expected %s", expected);
    return fail(place, what);
}

/* The value at a key, NULL if there is none. False where the key is there twice. */
static bool find(const mc_place *in, const char *key, mc_place *out)
{
    *out = (mc_place){.reader = in->reader, .in = in, .key = key};
    for (const cJSON *item = in->value->child; item; item = item->next) {
        if (strcmp(item->string, key) != 0) continue;
        if (out->value) return fail(out, " appears twice");
        out->value = item;
    }
    return true;
}

bool mc_place_object(const mc_place *in, const char *key, mc_place *out)
{
    if (!find(in, key, out)) return false;
    return cJSON_IsObject(out->value) || mc_place_fail(out, "an object");
}

bool mc_place_list(const mc_place *in, const char *key, mc_place *out)
{
    if (!find(in, key, out)) return false;
    return cJSON_IsArray(out->value) || mc_place_fail(out, "a list");
}

bool mc_place_string(const mc_place *in, const char *key, const char **out)
{
    mc_place place;
    if (!find(in, key, &place)) return false;
    if (!cJSON_IsString(place.value)) return mc_place_fail(&place, "a string");
    *out = place.value->valuestring;
    return true;
}

bool mc_place_index(const mc_place *in, const char *key, int64_t high, int64_t *out)
{
    mc_place place;
    char expected[64];
    if (!find(in, key, &place)) return false;
    double value = cJSON_IsNumber(place.value) ? place.value->valuedouble : -1;
    if (value >= 0 && value <= (double)high && value == floor(value)) {
        *out = (int64_t)value;
        return true;
    }
    snprintf(expected, sizeof expected, "a whole number from 0 to %lld", (long long)high);
    return mc_place_fail(&place, expected);
}

bool mc_place_has(const mc_place *in, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(in->value, key);
    return value && !cJSON_IsNull(value);
}

bool mc_place_next(const mc_place *list, mc_place *out)
{
    const cJSON *next = out->value ? out->value->next : list->value->child;
    if (!next) return false;
    int index = out->value ? out->index + 1 : 0;
    *out = (mc_place){.reader = list->reader, .in = list, .index = index, .value = next};
    return cJSON_IsObject(next) || mc_place_fail(out, "an object");
}
