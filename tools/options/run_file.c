#include "tools/options/run_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/version.h"
#include "tools/files/read_file.h"
#include "tools/options/args_internal.h"

enum { MOST_BYTES = 1 << 24, NUMBER_ROOM = 64 };

static const double WHOLE = 9007199254740992.0; /* 2^53: to there doubles are whole numbers */

/* ---- the file -------------------------------------------------------------------------------- */

static int fail(FILE *err, const args_spec *spec, const char *path, const char *what)
{
    char message[ARGS_TEXT_ROOM + 320];
    snprintf(message, sizeof message, "--run-file %.300s: %s", path, what);
    return args_report(err, spec, message);
}

/* Where JSON is malformed; an empty file, and what stands after the object, are too. */
static void fail_at(FILE *err, const args_spec *spec, const char *path, const char *content,
                    const char *at)
{
    char what[128];
    int line = 1, rest = (int)strcspn(at, "\r\n");
    for (const char *p = content; p < at; p++) line += *p == '\n';
    snprintf(what, sizeof what, "line %d: malformed JSON at \"%.*s\"", line, rest < 40 ? rest : 40,
             at);
    fail(err, spec, path, what);
}

static cJSON *read_object(const args_spec *spec, const char *path, FILE *err)
{
    char *content = read_file(path, MOST_BYTES, NULL);
    const char *why = errno == EFBIG ? "the file is too long" : strerror(errno), *end = content;
    cJSON *json = content ? cJSON_ParseWithOpts(content, &end, true) : NULL;
    bool good = cJSON_IsObject(json);
    if (!content)
        fail(err, spec, path, why);
    else if (!json)
        fail_at(err, spec, path, content, end ? end : content);
    else if (!good)
        fail(err, spec, path, "expected a JSON object");
    free(content);
    if (good) return json;
    cJSON_Delete(json);
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A copy of a text that stays until the process ends, as targets point to it; NULL without memory.
 */
static const char *keep(const char *given)
{
    static cJSON *kept;
    if (!kept) kept = cJSON_CreateArray();
    cJSON *copy = cJSON_CreateString(given);
    if (copy && cJSON_AddItemToArray(kept, copy)) return copy->valuestring;
    cJSON_Delete(copy);
    return NULL;
}

/* A number as the command line writes it. */
static const char *number_text(double value, char room[NUMBER_ROOM])
{
    text t = text_into(room, NUMBER_ROOM);
    if (value == floor(value) && fabs(value) <= WHOLE)
        text_add(&t, "%.0f", value);
    else
        text_add_number(&t, value);
    return room;
}

/* The lists of tables have room for the command line's values; a file may have more. */
static bool reserve(const args_option *o)
{
    args_list *list = o->target;
    if (o->type != ARGS_TYPE_TEXTS && o->type != ARGS_TYPE_PATHS) return true;
    if (list->count < list->room) return true;
    int room = 2 * list->room + 8;
    const char **grown = realloc(list->items, (size_t)room * sizeof *grown);
    if (!grown) return false;
    list->items = grown;
    list->room = room;
    return true;
}

static bool set_one(const args_option *o, const cJSON *value)
{
    char number[NUMBER_ROOM];
    const char *given = cJSON_IsNumber(value) ? number_text(value->valuedouble, number)
                                              : cJSON_GetStringValue(value);
    if (!given || args_is_flag(o)) return false;
    const char *kept = keep(given);
    return kept && reserve(o) && args_set_value(o, kept);
}

static bool set_option(const args_option *o, const cJSON *value)
{
    const cJSON *item;
    bool several = o->type == ARGS_TYPE_TEXTS || o->type == ARGS_TYPE_PATHS;
    if (args_is_flag(o) && cJSON_IsBool(value)) {
        *(bool *)o->target = cJSON_IsTrue(value) == (o->type == ARGS_TYPE_FLAG);
        return true;
    }
    if (!several || !cJSON_IsArray(value)) return set_one(o, value);
    cJSON_ArrayForEach(item, value) if (!set_one(o, item)) return false;
    return true;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int report_unknown(const args_spec *spec, const char *path, const char *key, FILE *err)
{
    char message[ARGS_TEXT_ROOM], as_option[ARGS_TEXT_ROOM];
    text t = text_into(message, sizeof message);
    snprintf(as_option, sizeof as_option, "--%.200s", key);
    text_add(&t, "key \"%.200s\": no option of %s", key, spec->command);
    args_add_suggestion(&t, spec, as_option);
    return fail(err, spec, path, message);
}

static int report_value(const args_spec *spec, const char *path, const args_option *o,
                        const cJSON *value, FILE *err)
{
    char message[ARGS_TEXT_ROOM];
    text t = text_into(message, sizeof message);
    char *found = cJSON_PrintUnformatted(value);
    text_add(&t, "key \"%s\": found %.200s, expected ", o->name, found ? found : "");
    if (args_is_flag(o))
        text_add(&t, "true or false");
    else
        args_add_expected(&t, o);
    if (o->type == ARGS_TYPE_CHOICE && cJSON_IsString(value))
        args_add_choice_suggestion(&t, o, value->valuestring);
    cJSON_free(found);
    return fail(err, spec, path, message);
}

/* Another command's file is an error; which version wrote it does not matter. */
static int check_head(const args_spec *spec, const char *path, const cJSON *json, FILE *err)
{
    char message[ARGS_TEXT_ROOM];
    const cJSON *command = cJSON_GetObjectItemCaseSensitive(json, "command");
    const char *name = cJSON_GetStringValue(command);
    if (!command || (name && strcmp(name, spec->command) == 0)) return EXIT_OK;
    snprintf(message, sizeof message, "key \"command\": found \"%.100s\", expected \"%s\"",
             name ? name : "", spec->command);
    return fail(err, spec, path, message);
}

static bool is_head(const char *key)
{
    return strcmp(key, "command") == 0 || strcmp(key, "version") == 0;
}

int run_file_read(const args_spec *spec, const char *path, bool *seen, FILE *err)
{
    cJSON *json = read_object(spec, path, err);
    if (!json) return EXIT_USAGE;
    int code = check_head(spec, path, json, err);
    const cJSON *item;
    cJSON_ArrayForEach(item, json)
    {
        if (code != EXIT_OK || is_head(item->string) || cJSON_IsNull(item)) continue;
        const args_option *o = args_find(spec, item->string);
        if (!o) {
            code = report_unknown(spec, path, item->string, err);
        } else if (seen[o - spec->options]) {
            char message[ARGS_TEXT_ROOM];
            snprintf(message, sizeof message, "key \"%.200s\" is there twice", o->name);
            code = fail(err, spec, path, message);
        } else if (!set_option(o, item)) {
            code = report_value(spec, path, o, item, err);
        } else {
            seen[o - spec->options] = true;
            if (o->given) *o->given = !args_is_flag(o) || cJSON_IsTrue(item);
        }
    }
    cJSON_Delete(json);
    return code;
}

/* Whether the file lies in the folder. */
static bool lies_in(const char *path, const char *folder)
{
    char file[PATH_MAX], real[PATH_MAX];
    if (!realpath(path, file) || !realpath(folder, real)) return false;
    char *slash = strrchr(file, '/');
    if (slash) slash[slash == file] = '\0';
    return strcmp(file, real) == 0;
}

int run_file_check(const args_spec *spec, const char *path, const bool *typed, FILE *err)
{
    const args_option *output = args_find(spec, "output"), *resume = args_find(spec, "resume");
    if (!output || output->type != ARGS_TYPE_PATH || typed[output - spec->options]) return EXIT_OK;
    const char *folder = *(const char **)output->target;
    if ((resume && *(bool *)resume->target) || !folder || !lies_in(path, folder)) return EXIT_OK;
    char message[ARGS_TEXT_ROOM];
    snprintf(message, sizeof message,
             "it is the file of the run in %.300s: give another --output%s", folder,
             resume ? ", or --resume to go on with that run" : "");
    return fail(err, spec, path, message);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A text is kept as it is, numbers as numbers where JSON's readers keep them whole. */
static cJSON *whole_json(int64_t value)
{
    char digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    return fabs((double)value) < WHOLE ? cJSON_CreateRaw(digits) : cJSON_CreateString(digits);
}

static cJSON *real_json(double value)
{
    char number[NUMBER_ROOM];
    return cJSON_CreateRaw(number_text(value, number));
}

static cJSON *choice_json(const args_option *o)
{
    int chosen = *(int *)o->target, count = 0;
    char numbered[64];
    while (o->choices[count]) count++;
    if (chosen < count) return cJSON_CreateString(o->choices[chosen]);
    snprintf(numbered, sizeof numbered, "%s:%d", o->choices[count - 1], chosen - count);
    return cJSON_CreateString(numbered);
}

static cJSON *value_json(const args_option *o)
{
    switch (o->type) {
    case ARGS_TYPE_FLAG:
    case ARGS_TYPE_FLAG_OFF:
        return cJSON_CreateBool(*(bool *)o->target == (o->type == ARGS_TYPE_FLAG));
    case ARGS_TYPE_INT32: return whole_json(*(int *)o->target);
    case ARGS_TYPE_INT64:
    case ARGS_TYPE_BYTES: return whole_json(*(int64_t *)o->target);
    case ARGS_TYPE_UINT64: return whole_json((int64_t) * (uint64_t *)o->target);
    case ARGS_TYPE_FLOAT: return real_json((double)*(float *)o->target);
    case ARGS_TYPE_DOUBLE: return real_json(*(double *)o->target);
    case ARGS_TYPE_CHOICE: return choice_json(o);
    case ARGS_TYPE_TEXTS:
    case ARGS_TYPE_PATHS: {
        const args_list *list = o->target;
        return cJSON_CreateStringArray(list->items, list->count);
    }
    default: return cJSON_CreateString(*(const char **)o->target);
    }
}

static bool is_in(double value, double low, double high) { return value >= low && value <= high; }

static bool is_real_in(const args_option *o, double value)
{
    return is_in(value, o->real_low, o->real_high) && !(o->above_low && value == o->real_low) &&
           !(o->below_high && value == o->real_high);
}

/* Whether the target holds a value that the option takes; without one an option was not given. */
static bool has_value(const args_option *o)
{
    int64_t low = args_lowest(o), high = args_highest(o);
    switch (o->type) {
    case ARGS_TYPE_FLAG:
    case ARGS_TYPE_FLAG_OFF: return true;
    case ARGS_TYPE_INT32: return *(int *)o->target >= low && *(int *)o->target <= high;
    case ARGS_TYPE_INT64: return *(int64_t *)o->target >= low && *(int64_t *)o->target <= high;
    case ARGS_TYPE_UINT64: return *(uint64_t *)o->target <= (uint64_t)high;
    case ARGS_TYPE_BYTES: return *(int64_t *)o->target >= 1;
    case ARGS_TYPE_FLOAT: return is_real_in(o, (double)*(float *)o->target);
    case ARGS_TYPE_DOUBLE: return is_real_in(o, *(double *)o->target);
    case ARGS_TYPE_CHOICE: return *(int *)o->target >= 0;
    case ARGS_TYPE_TEXT: return *(const char **)o->target;
    case ARGS_TYPE_PATH: return *(const char **)o->target && **(const char **)o->target;
    case ARGS_TYPE_TEXTS:
    case ARGS_TYPE_PATHS: return ((args_list *)o->target)->count > 0;
    default: return false;
    }
}

/* Of several names of one thing the first is written. */
static bool is_second_name(const args_spec *spec, const args_option *o)
{
    for (const args_option *before = spec->options; before < o; before++)
        if (args_is_named(before) && !before->old && before->target == o->target) return true;
    return false;
}

/* A default stays away where being given means something of its own. */
static bool is_kept(const args_spec *spec, const args_option *o, const bool *seen)
{
    if (!args_is_named(o) || o->old || o->once || is_second_name(spec, o)) return false;
    return has_value(o) && (seen[o - spec->options] || !o->given || *o->given);
}

char *run_file_text(const args_spec *spec, const bool *seen)
{
    cJSON *json = cJSON_CreateObject();
    bool good = json && cJSON_AddStringToObject(json, "command", spec->command) &&
                cJSON_AddStringToObject(json, "version", MC_VERSION);
    for (const args_option *o = spec->options; good && args_is_row(o); o++) {
        if (!is_kept(spec, o, seen)) continue;
        cJSON *value = value_json(o);
        good = value && cJSON_AddItemToObject(json, o->name, value);
        if (!good) cJSON_Delete(value);
    }
    char *content = good ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    return content;
}

void run_file_free(char *content) { cJSON_free(content); }
