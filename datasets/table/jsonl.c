#include "datasets/table/jsonl_internal.h"

#include <stdio.h>
#include <string.h>

void mc_jsonl_init(mc_jsonl *reader, mc_error *err, const char *name, const char *data, size_t size)
{
    *reader = (mc_jsonl){.err = err, .name = name, .data = data, .size = size};
    if (size >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0) reader->at = 3;
}

void mc_jsonl_release(mc_jsonl *reader)
{
    cJSON_Delete(reader->row);
    *reader = (mc_jsonl){0};
}

static bool is_blank(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    return true;
}

/* Parses one line without its end. */
static bool parse_line(mc_jsonl *reader, const char *text, size_t size)
{
    if (memchr(text, '\0', size)) {
        mc_jsonl_fail(reader, "malformed JSON: %s", "a NUL byte");
        return false;
    }
    size_t blank = 0;
    while (blank < size && (text[blank] == ' ' || text[blank] == '\t')) blank++;
    if (blank < size && text[blank] == '[') {
        mc_jsonl_fail(reader, "expected a JSON object, found %s", "a list");
        return false;
    }
    reader->row =
        mc_json_parse_row(reader->err, text, size, reader->name, reader->line, reader->nul);
    if (!reader->row) return false;
    if (cJSON_IsObject(reader->row)) return true;
    mc_jsonl_fail(reader, "expected a JSON object, found %s", mc_json_describe(reader->row).text);
    return false;
}

bool mc_jsonl_parse(mc_jsonl *reader, const char *text, size_t size, int64_t line)
{
    cJSON_Delete(reader->row);
    reader->row = NULL;
    reader->line = line;
    return parse_line(reader, text, size);
}

bool mc_jsonl_next(mc_jsonl *reader)
{
    cJSON_Delete(reader->row);
    reader->row = NULL;
    while (reader->at < reader->size && !mc_error_is_set(reader->err)) {
        const char *text = reader->data + reader->at;
        size_t room = reader->size - reader->at;
        const char *end = memchr(text, '\n', room);
        size_t size = end ? (size_t)(end - text) : room;
        reader->at += size + (end != NULL);
        reader->line++;
        if (!is_blank(text, size)) return parse_line(reader, text, size);
    }
    return false;
}

mc_json_text mc_json_describe(const cJSON *value)
{
    mc_json_text out;
    if (cJSON_IsString(value)) {
        /* cut long strings, but not inside a character */
        size_t length = strlen(value->valuestring), shown = length < 40 ? length : 40;
        while (shown < length && shown && (value->valuestring[shown] & 0xC0) == 0x80) shown--;
        snprintf(out.text, sizeof out.text, "\"%.*s%s\"", (int)shown, value->valuestring,
                 shown < length ? "..." : "");
    } else if (cJSON_IsNumber(value)) {
        char room[MC_JSON_NUMBER_ROOM];
        snprintf(out.text, sizeof out.text, "%.60s", mc_json_number(value, room));
    } else {
        const char *text = !value                 ? "nothing"
                           : cJSON_IsBool(value)  ? cJSON_IsTrue(value) ? "true" : "false"
                           : cJSON_IsNull(value)  ? "null"
                           : cJSON_IsArray(value) ? "a list"
                                                  : "an object";
        snprintf(out.text, sizeof out.text, "%s", text);
    }
    return out;
}

const cJSON *mc_jsonl_find(mc_jsonl *reader, const cJSON *object, const char *key, bool *ok)
{
    const cJSON *found = NULL;
    for (const cJSON *item = object->child; item; item = item->next) {
        if (strcmp(item->string, key) != 0) continue;
        if (found) {
            mc_jsonl_fail(reader, "key \"%s\" appears twice", key);
            *ok = false;
            return NULL;
        }
        found = item;
    }
    return found;
}

const char *mc_jsonl_string(mc_jsonl *reader, const char *path, size_t *length)
{
    const cJSON *value = reader->row;
    const char *from = path;
    for (;;) {
        const char *dot = strchr(from, '.');
        int size = (int)(dot ? (size_t)(dot - from) : strlen(from));
        int shown = (int)(from - path) + size; /* of the path, as far as we are */
        char key[64];
        bool ok = true;
        snprintf(key, sizeof key, "%.*s", size, from);
        value = mc_jsonl_find(reader, value, key, &ok);
        if (!ok) return NULL;
        const char *expected = dot ? "an object" : "a string";
        if (!value) {
            mc_jsonl_fail(reader, "key \"%.*s\" is missing, expected %s", shown, path, expected);
            return NULL;
        }
        if (dot ? !cJSON_IsObject(value) : !cJSON_IsString(value)) {
            mc_jsonl_fail(reader, "key \"%.*s\": expected %s, found %s", shown, path, expected,
                          mc_json_describe(value).text);
            return NULL;
        }
        if (dot) {
            from = dot + 1;
            continue;
        }
        *length = mc_json_length(value);
        return value->valuestring;
    }
}
