#include "core/base/json_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"

static int64_t count_lines(const char *text, const char *end)
{
    int64_t lines = 0;
    for (const char *p = text; p < end; p++) lines += *p == '\n';
    return lines;
}

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
    /* overlong forms, surrogates, and what lies beyond the last character */
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

/* cJSON takes an escape that is none for the end of the string. */
static const char *flaw_of_escape(const char *text, size_t size)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    if (size < 2 || text[1] != 'u') return NULL;
    for (size_t i = 2; i < 6; i++)
        if (i >= size || !text[i] || !strchr(digits, text[i]))
            return "\\u without four hexadecimal digits";
    return memcmp(text + 2, "0000", 4) == 0 ? "a NUL character" : NULL;
}

/* Finds what cJSON would let pass or choke on: text that isn't UTF-8, control characters, a NUL in
 * a string (which would silently end it there), nesting that bounds its recursion on hostile input.
 * Returns what is wrong and sets *where, or NULL. */
static const char *find_flaw(const char *text, size_t size, const char **where)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0, length; i < size; i += length) {
        unsigned char c = (unsigned char)text[i];
        *where = text + i;
        length = mc_utf8_length(text + i, size - i);
        if (!length) return "not UTF-8";
        bool blank = c == '\t' || c == '\r' || c == '\n', last = c == '\0' && i + 1 == size;
        if (c < ' ' && (in_string || !(blank || last))) return "a control character";
        if (c == '"') {
            in_string = !in_string;
        } else if (in_string && c == '\\') {
            const char *flaw = flaw_of_escape(text + i, size - i);
            if (flaw) return flaw;
            if (size - i >= 2) length = 2;
        } else if (!in_string && (c == '{' || c == '[')) {
            if (++depth > 64) return "nested deeper than 64 levels";
        } else if (!in_string && (c == '}' || c == ']')) {
            depth--;
        }
    }
    return NULL;
}

cJSON *mc_json_parse(mc_error *err, const char *text, size_t size, const char *name,
                     int64_t first_line)
{
    const char *where = text, *flaw = find_flaw(text, size, &where);
    if (flaw) {
        mc_error_set(err, MC_ERR_FORMAT, "%s:%lld: malformed JSON: %s", name,
                     (long long)(first_line + count_lines(text, where)), flaw);
        return NULL;
    }
    errno = 0; /* malloc's ENOMEM tells a parse that ran out of memory from one that met bad text */
    const char *stop = NULL;
    cJSON *value = cJSON_ParseWithLengthOpts(text, size, &stop, false);
    if (value) {
        const char *end = text + size;
        while (stop < end && (*stop == ' ' || *stop == '\t' || *stop == '\r' || *stop == '\n'))
            stop++;
        if (stop == end || (*stop == '\0' && stop + 1 == end)) return value;
        cJSON_Delete(value);
    } else if (errno == ENOMEM) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its JSON", name);
        return NULL;
    }
    if (!stop || stop < text || stop > text + size) stop = text;
    int shown = 0;
    while (shown < 24 && stop + shown < text + size && (unsigned char)stop[shown] >= ' ') shown++;
    mc_error_set(err, MC_ERR_FORMAT, "%s:%lld: malformed JSON at \"%.*s\"", name,
                 (long long)(first_line + count_lines(text, stop)), shown, stop);
    return NULL;
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

/* NULL when absent or null. */
static const cJSON *present(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

static bool wrong(mc_error *err, const char *name, const char *key, const char *expected,
                  const cJSON *found)
{
    char shown[64] = "a list or object";
    if (cJSON_IsString(found))
        snprintf(shown, sizeof shown, "\"%.40s\"", found->valuestring);
    else if (cJSON_IsNumber(found))
        snprintf(shown, sizeof shown, "%.15g", found->valuedouble);
    else if (cJSON_IsBool(found))
        snprintf(shown, sizeof shown, "%s", cJSON_IsTrue(found) ? "true" : "false");
    mc_error_set(err, MC_ERR_FORMAT, "%s: key \"%s\": expected %s, found %s", name, key, expected,
                 shown);
    return false;
}

bool mc_json_get_int(mc_error *err, const cJSON *object, const char *name, const char *key,
                     int64_t low, int64_t high, int64_t *out)
{
    const cJSON *item = present(object, key);
    if (!item) return true;
    double value = item->valuedouble;
    /* (double)INT64_MAX is 2^63, one more than fits */
    if (!cJSON_IsNumber(item) || !(value >= (double)low && value <= (double)high) ||
        value != floor(value) || value >= 0x1p63) {
        char expected[96];
        snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)low,
                 (long long)high);
        return wrong(err, name, key, expected, item);
    }
    *out = (int64_t)value;
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
