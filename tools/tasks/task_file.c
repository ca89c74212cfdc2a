#include "tools/tasks/task_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/files/read_file.h"
#include "tools/files/whole_file.h"

enum { PATH_ROOM = 4096, MOST_BYTES = 1 << 24 };

static const struct {
    const char *name;
    mc_task_kind kind;
} kinds[] = {{"classify", MC_TASK_CLASSIFY},
             {"multi_label", MC_TASK_MULTI_LABEL},
             {"regress", MC_TASK_REGRESS},
             {"generate", MC_TASK_GENERATE}};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct text_key {
    const char *key;
    const char **value;
} text_key;

enum { TEXT_KEYS = 9 };

static void text_keys(task_file *f, text_key keys[TEXT_KEYS])
{
    const text_key all[TEXT_KEYS] = {{"task", &f->task},
                                     {"text", &f->text},
                                     {"image", &f->image},
                                     {"text_pair", &f->pair},
                                     {"label", &f->label},
                                     {"target", &f->target},
                                     {"messages", &f->messages},
                                     {"chat_format", &f->chat_format},
                                     {"label_separator", &f->separator}};
    memcpy(keys, all, sizeof all);
}

static bool path_of(mc_context *ctx, const char *folder, char path[PATH_ROOM])
{
    int length = snprintf(path, PATH_ROOM, "%s/task.json", folder);
    if (length >= 0 && length < PATH_ROOM - 32) return true;
    mc_set_error(ctx, MC_ERR_ARGUMENT, "path too long: %.100s...", folder);
    return false;
}

/* ---- writing --------------------------------------------------------------------------------- */

static cJSON *to_json(const task_file *f)
{
    task_file copy = *f;
    text_key keys[TEXT_KEYS];
    cJSON *json = cJSON_CreateObject();
    text_keys(&copy, keys);
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].kind == f->kind) cJSON_AddStringToObject(json, "kind", kinds[i].name);
    for (int i = 0; i < TEXT_KEYS; i++)
        if (*keys[i].value) cJSON_AddStringToObject(json, keys[i].key, *keys[i].value);
    if (f->labels)
        cJSON_AddItemToObject(json, "labels", cJSON_CreateStringArray(f->label_names, f->labels));
    if (f->max_length) cJSON_AddNumberToObject(json, "max_length", (double)f->max_length);
    if (f->max_target_length)
        cJSON_AddNumberToObject(json, "max_target_length", (double)f->max_target_length);
    return json;
}

mc_status task_file_write(mc_context *ctx, const char *folder, const task_file *f)
{
    char path[PATH_ROOM];
    if (mc_failed(ctx) || !path_of(ctx, folder, path)) return mc_error_status(ctx);
    cJSON *json = to_json(f);
    char *text = json ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    if (!text) return mc_set_error(ctx, MC_ERR_NOMEM, "%s: out of memory to write it", path);
    whole_file_write(ctx, path, text);
    cJSON_free(text);
    return mc_error_status(ctx);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The file as text for free(); NULL if there is none, and on an error. */
static char *read_whole(mc_context *ctx, const char *path)
{
    char *text = read_file(path, MOST_BYTES, NULL);
    if (!text && errno != ENOENT && errno != ENOTDIR) /* of a GGUF file, too */
        mc_set_error(ctx, MC_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    return text;
}

static mc_status refuse(mc_context *ctx, const char *path, const char *key, const char *expected)
{
    return mc_set_error(ctx, MC_ERR_FORMAT, "%s: key \"%s\": expected %s", path, key, expected);
}

static void read_texts(mc_context *ctx, const char *path, const cJSON *json, task_file *f)
{
    text_key keys[TEXT_KEYS];
    text_keys(f, keys);
    for (int i = 0; i < TEXT_KEYS; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, keys[i].key);
        if (value && !cJSON_IsString(value)) refuse(ctx, path, keys[i].key, "text");
        if (cJSON_IsString(value)) *keys[i].value = value->valuestring;
    }
}

static void read_length(mc_context *ctx, const char *path, const cJSON *json, const char *key,
                        int64_t *length)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, key);
    double number = cJSON_IsNumber(value) ? value->valuedouble : 0;
    if (value && !(number >= 1 && number <= 1 << 20 && number == (double)(int64_t)number))
        refuse(ctx, path, key, "a whole number from 1 to 1048576");
    else
        *length = (int64_t)number;
}

static void read_labels(mc_context *ctx, const char *path, const cJSON *json, task_file *f)
{
    const cJSON *labels = cJSON_GetObjectItemCaseSensitive(json, "labels"), *label;
    bool good =
        !labels || (cJSON_IsArray(labels) && cJSON_GetArraySize(labels) <= MC_DATASET_MAX_LABELS);
    cJSON_ArrayForEach(label, labels)
    {
        good = good && cJSON_IsString(label);
        if (good) f->label_names[f->labels++] = label->valuestring;
    }
    if (!good) refuse(ctx, path, "labels", "a list of at most 1024 texts");
}

static void read_kind(mc_context *ctx, const char *path, const cJSON *json, task_file *f)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(json, "kind");
    for (int i = 0; i < KINDS && cJSON_IsString(kind); i++)
        if (strcmp(kind->valuestring, kinds[i].name) == 0) f->kind = kinds[i].kind;
    if (f->task && !kind) return;
    if (!f->kind) refuse(ctx, path, "kind", "classify, multi_label, regress or generate");
    if (!f->text && !f->messages && !f->image) refuse(ctx, path, "text", "the name of a column");
}

mc_status task_file_read(mc_context *ctx, const char *folder, task_file *f)
{
    char path[PATH_ROOM];
    *f = (task_file){0};
    if (mc_failed(ctx) || !path_of(ctx, folder, path)) return mc_error_status(ctx);
    char *text = read_whole(ctx, path);
    if (!text) return mc_error_status(ctx);
    cJSON *json = f->json = cJSON_Parse(text);
    free(text);
    if (!cJSON_IsObject(json)) return mc_set_error(ctx, MC_ERR_FORMAT, "%s: malformed JSON", path);
    read_texts(ctx, path, json, f);
    read_kind(ctx, path, json, f);
    read_labels(ctx, path, json, f);
    read_length(ctx, path, json, "max_length", &f->max_length);
    read_length(ctx, path, json, "max_target_length", &f->max_target_length);
    return mc_error_status(ctx);
}

void task_file_release(task_file *f)
{
    cJSON_Delete(f->json);
    *f = (task_file){0};
}
