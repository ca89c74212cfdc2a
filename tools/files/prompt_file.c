#include "tools/files/prompt_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/files/line_reader.h"
#include "tools/files/text.h"

/* ---- the list -------------------------------------------------------------------------------- */

static bool fail(const char *path, const char *what)
{
    fprintf(stderr, "error: %s: %s\n", path, what);
    return false;
}

static bool add(prompt_file *f, const char *path, const char *bytes, size_t size)
{
    if (f->count == f->room) {
        size_t room = 2 * f->room + 16;
        prompt_text *grown = realloc(f->texts, room * sizeof *grown);
        if (!grown) return fail(path, "out of memory");
        f->texts = grown;
        f->room = room;
    }
    char *copy = malloc(size + 1);
    if (!copy) return fail(path, "out of memory");
    memcpy(copy, bytes, size);
    copy[size] = '\0';
    f->texts[f->count++] = (prompt_text){copy, size};
    return true;
}

void prompt_file_release(prompt_file *f)
{
    for (size_t i = 0; i < f->count; i++) free(f->texts[i].data);
    free(f->texts);
    *f = (prompt_file){0};
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool check_line(const char *path, size_t number, const char *line, size_t length)
{
    const char *bad = strlen(line) < length   ? "a NUL byte"
                      : is_utf8(line, length) ? NULL
                                              : "not UTF-8";
    if (bad) fprintf(stderr, "error: %s:%zu: %s, expected a prompt a line\n", path, number, bad);
    return !bad;
}

static bool read_lines(prompt_file *f, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) return fail(path, strerror(errno));
    size_t room = 0;
    char *line = NULL;
    ssize_t length;
    bool good = true;
    errno = 0;
    while (good && (length = getline(&line, &room, file)) >= 0) {
        if (length && line[length - 1] == '\n') line[--length] = '\0';
        if (length && line[length - 1] == '\r') line[--length] = '\0';
        good = check_line(path, f->count + 1, line, (size_t)length) &&
               add(f, path, line, (size_t)length);
    }
    if (good && !feof(file)) good = fail(path, errno ? strerror(errno) : "cannot read");
    free(line);
    fclose(file);
    return good;
}

/* ---- JSON Lines ------------------------------------------------------------------------------ */

bool prompt_file_is_json(const char *path)
{
    static const char *const endings[] = {".jsonl", ".ndjson", ".json"};
    size_t length = strlen(path);
    if (length > 3 && strcmp(path + length - 3, ".gz") == 0) length -= 3;
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(endings[i]);
        if (length >= n && strncmp(path + length - n, endings[i], n) == 0) return true;
    }
    return false;
}

/* Takes the table over. A text may hold NUL characters, which are tokens as others are. */
static bool read_rows(prompt_file *f, mc_context *ctx, mc_table *rows, const char *path,
                      const char *key)
{
    int column = rows ? mc_table_column(rows, key) : -1;
    bool good = column >= 0;
    while (good && mc_table_next(rows)) {
        size_t size;
        const char *prompt = mc_table_text(rows, column, &size);
        good = prompt && !mc_failed(ctx) && add(f, path, prompt, size);
    }
    mc_table_free(rows);
    return good && !mc_failed(ctx);
}

/* ---- standard input -------------------------------------------------------------------------- */

/* Whether the text is an object with the key, or a list that begins with one: else its lines are
 * prompts, whatever they look like. */
static bool has_rows(const char *data, size_t size, const char *key)
{
    bool may_be = size && (*data == '{' || *data == '[');
    cJSON *json = may_be ? cJSON_ParseWithLength(data, size) : NULL;
    const cJSON *at = cJSON_IsArray(json) ? cJSON_GetArrayItem(json, 0) : json;
    char part[256];
    while (at && *key) {
        size_t length = strcspn(key, ".");
        snprintf(part, sizeof part, "%.*s", (int)length, key);
        at = cJSON_GetObjectItemCaseSensitive(at, part);
        key += length + (key[length] == '.');
    }
    bool found = cJSON_IsString(at);
    cJSON_Delete(json);
    return found;
}

static bool read_input_lines(prompt_file *f, line_reader *input)
{
    const char *line;
    size_t size;
    line_state state;
    while ((state = line_reader_next(input, true, &line, &size)) == LINE_READ)
        if (!check_line("-", f->count + 1, line, size) || !add(f, "-", line, size)) return false;
    return state == LINE_END || fail("-", strerror(errno));
}

static bool read_input(prompt_file *f, mc_context *ctx, const char *key)
{
    line_reader input = {.fd = STDIN_FILENO};
    const char *data;
    size_t size;
    line_state state = line_reader_peek(&input, &data, &size);
    bool list = state == LINE_READ && line_begins_list(data, size);
    bool rows = state == LINE_READ && !list && has_rows(data, size, key);
    if (list || rows) state = line_reader_rest(&input, &data, &size);
    bool good = state != LINE_FAILED || fail("-", strerror(errno));
    if (good && (rows || (list && has_rows(data, size, key)))) {
        const mc_table_options form = {.format = MC_TABLE_JSONL};
        good = read_rows(f, ctx, mc_table_from_memory(ctx, "-", data, size, &form), "-", key);
    } else if (good) {
        good = read_input_lines(f, &input);
    }
    line_reader_release(&input);
    return good;
}

bool prompt_file_read(prompt_file *f, mc_context *ctx, const char *path, const char *key)
{
    *f = (prompt_file){0};
    if (strcmp(path, "-") == 0) return read_input(f, ctx, key);
    if (!prompt_file_is_json(path)) return read_lines(f, path);
    return read_rows(f, ctx, mc_table_open(ctx, path, NULL), path, key);
}
