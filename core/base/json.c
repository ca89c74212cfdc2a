#include "core/base/json_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"

size_t mc_utf8_length(const char *bytes, size_t room)
{
    const unsigned char *text = (const unsigned char *)bytes;
    unsigned char first = text[0];
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (length > room) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    /* overlong forms, surrogates, and numbers above the last character */
    if ((first == 0xE0 && text[1] < 0xA0) || (first == 0xED && text[1] > 0x9F)) return 0;
    if ((first == 0xF0 && text[1] < 0x90) || (first == 0xF4 && text[1] > 0x8F)) return 0;
    return length;
}

bool mc_utf8_is_valid(const char *text, size_t size)
{
    for (size_t i = 0, length; i < size; i += length)
        if (!(length = mc_utf8_length(text + i, size - i))) return false;
    return true;
}

cJSON *mc_json_read_object(mc_error *err, const char *path, size_t limit)
{
    size_t size;
    char *text = mc_file_read(err, path, limit, &size);
    if (!text) return NULL;
    cJSON *object = mc_json_parse(err, text, size, path, 1);
    mc_free(text);
    if (object && !cJSON_IsObject(object)) {
        mc_error_set(err, MC_ERR_FORMAT, "%s: expected a JSON object at the top level", path);
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

/* The value of a key; NULL if it is absent or null. */
static const cJSON *present(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

static bool wrong(mc_error *err, const char *name, const char *key, const char *expected,
                  const cJSON *found)
{
    char shown[64] = "a list or object", room[MC_JSON_NUMBER_ROOM];
    if (cJSON_IsString(found))
        snprintf(shown, sizeof shown, "\"%.40s\"", found->valuestring);
    else if (cJSON_IsNumber(found))
        snprintf(shown, sizeof shown, "%.60s", mc_json_number(found, room));
    else if (cJSON_IsBool(found))
        snprintf(shown, sizeof shown, "%s", cJSON_IsTrue(found) ? "true" : "false");
    mc_error_set(err, MC_ERR_FORMAT, "%s: key \"%s\": expected %s, found %s", name, key, expected,
                 shown);
    return false;
}

/* Reads a whole number; false if it is not whole or does not fit. */
static bool read_whole(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item)) return false;
    errno = 0;
    if (item->valuestring) { /* its digits, which a double would round */
        *value = strtoll(item->valuestring, NULL, 10);
        return !errno;
    }
    double number = item->valuedouble;
    if (!(number >= -0x1p63 && number < 0x1p63) || number != floor(number)) return false;
    *value = (int64_t)number;
    return true;
}

bool mc_json_get_int(mc_error *err, const cJSON *object, const char *name, const char *key,
                     int64_t low, int64_t high, int64_t *out)
{
    const cJSON *item = present(object, key);
    if (!item) return true;
    int64_t value;
    if (!read_whole(item, &value) || value < low || value > high) {
        char expected[96];
        snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)low,
                 (long long)high);
        return wrong(err, name, key, expected, item);
    }
    *out = value;
    return true;
}

bool mc_json_get_number(mc_error *err, const cJSON *object, const char *name, const char *key,
                        double low, double high, double *out)
{
    const cJSON *item = present(object, key);
    if (!item) return true;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= low && item->valuedouble <= high)) {
        char expected[96];
        snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
        return wrong(err, name, key, expected, item);
    }
    *out = item->valuedouble;
    return true;
}

bool mc_json_get_bool(mc_error *err, const cJSON *object, const char *name, const char *key,
                      bool *out)
{
    const cJSON *item = present(object, key);
    if (!item) return true;
    if (!cJSON_IsBool(item)) return wrong(err, name, key, "true or false", item);
    *out = cJSON_IsTrue(item);
    return true;
}

bool mc_json_get_string(mc_error *err, const cJSON *object, const char *name, const char *key,
                        const char **out)
{
    const cJSON *item = present(object, key);
    if (!item) return true;
    if (!cJSON_IsString(item)) return wrong(err, name, key, "a string", item);
    *out = item->valuestring;
    return true;
}
