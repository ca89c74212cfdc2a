#include "tools/files/inputs.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/files/read_file.h"

enum { PATH_ROOM = 4200, MOST_CONFIG = 1 << 20, DEPTH = 2 /* of folders in a folder */ };

/* ---- the list -------------------------------------------------------------------------------- */

static void add_one(inputs *in, const char *option, const char *path, bool model)
{
    if (in->count == in->room) {
        int room = 2 * in->room + 8;
        input *grown = realloc(in->items, (size_t)room * sizeof *grown);
        in->failed = in->failed || !grown;
        if (!grown) return;
        in->items = grown;
        in->room = room;
    }
    char *copy = strdup(path);
    in->failed = in->failed || !copy;
    if (copy) in->items[in->count++] = (input){option, copy, model};
}

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

static bool add_existing(inputs *in, const char *option, const char *path, const char *ending)
{
    char whole[PATH_ROOM];
    int length = snprintf(whole, sizeof whole, "%s%s", path, ending);
    if (length < 0 || (size_t)length >= sizeof whole || !exists(whole)) return false;
    add_one(in, option, whole, false);
    return true;
}

/* Megatron's pair, or all that match a pattern. */
static void add_pattern(inputs *in, const char *option, const char *path)
{
    glob_t found;
    bool pair = add_existing(in, option, path, ".bin");
    pair = add_existing(in, option, path, ".idx") || pair;
    if (pair || glob(path, 0, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++) add_one(in, option, found.gl_pathv[i], false);
    globfree(&found);
}

void inputs_add(inputs *in, const char *option, const char *path)
{
    char plain[PATH_ROOM];
    if (!path || strcmp(path, "-") == 0 || add_existing(in, option, path, "")) return;
    const char *colon = strrchr(path, ':');
    size_t length = colon ? (size_t)(colon - path) : strlen(path);
    if (length >= sizeof plain) return;
    snprintf(plain, sizeof plain, "%.*s", (int)length, path);
    if (!colon || !add_existing(in, option, plain, "")) add_pattern(in, option, plain);
}

void inputs_add_list(inputs *in, const char *option, const args_list *paths)
{
    for (int i = 0; i < paths->count; i++) inputs_add(in, option, paths->items[i]);
}

/* The base that adapter_config.json in a folder names (free it), or NULL. */
static char *read_base(const char *folder)
{
    char path[PATH_ROOM], *base = NULL;
    if (snprintf(path, sizeof path, "%s/adapter_config.json", folder) >= (int)sizeof path)
        return NULL;
    char *text = read_file(path, MOST_CONFIG, NULL);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    const char *name =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "base_model_name_or_path"));
    if (name && *name) base = strdup(name);
    cJSON_Delete(json);
    free(text);
    return base;
}

void inputs_add_model(inputs *in, mc_context *ctx, const char *option, const char *identifier,
                      const char *revision)
{
    char folder[PATH_ROOM];
    mc_hub_options cached = {.revision = revision};
    if (!identifier || mc_failed(ctx)) return;
    bool local = exists(identifier);
    if (local) snprintf(folder, sizeof folder, "%s", identifier);
    /* what is not there yet is downloaded when it is opened, or that says what is wrong */
    if (!local && !mc_hub_cached(identifier, &cached, folder, sizeof folder)) return;
    add_one(in, option, folder, true);
    char *base = read_base(folder);
    /* an adapter's base is no adapter */
    if (base && strcmp(base, identifier) != 0) inputs_add_model(in, ctx, option, base, NULL);
    free(base);
}

void inputs_add_model_options(inputs *in, mc_context *ctx, const model_options *from)
{
    inputs_add_model(in, ctx, "--model", from->model, from->revision);
    inputs_add_model(in, ctx, "--base", from->base, NULL);
    inputs_add_model(in, ctx, "--tokenizer", from->tokenizer, NULL);
    inputs_add(in, "--config", from->config);
}

void inputs_release(inputs *in)
{
    for (int i = 0; i < in->count; i++) free(in->items[i].path);
    free(in->items);
    *in = (inputs){0};
}

/* ---- what is the same ------------------------------------------------------------------------ */

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool ends_in(const char *name, const char *ending)
{
    size_t length = strlen(name), n = strlen(ending);
    return length > n && strcmp(name + length - n, ending) == 0;
}

/* Rows and answers, which may lie in a model's folder without being the model's. */
static bool is_rows(const char *name)
{
    static const char *const endings[] = {".jsonl", ".csv", ".tsv", ".npy"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_in(name, endings[i])) return true;
    return false;
}

/* Files of a benchmark's folder are called after their split. */
static bool is_split(const char *name)
{
    static const char *const splits[] = {"train", "val", "dev", "test"};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        if (strncmp(name, splits[i], strlen(splits[i])) == 0) return true;
    return false;
}

typedef struct walk {
    bool (*hits)(void *user, const char *path);
    void *user;
    const struct stat *not_in; /* a folder that is skipped; NULL: none */
} walk;

/* Calls `hits` with each file of a folder and of those in it, until it returns true. */
static bool any_file(const walk *w, const char *folder, int depth)
{
    char path[PATH_ROOM];
    struct stat info;
    DIR *dir = opendir(folder);
    bool hit = false;
    for (struct dirent *entry; dir && !hit && (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof path || stat(path, &info) != 0) continue;
        if (S_ISDIR(info.st_mode))
            hit = depth > 1 && !(w->not_in && is_same(&info, w->not_in)) &&
                  any_file(w, path, depth - 1);
        else
            hit = w->hits(w->user, path);
    }
    if (dir) closedir(dir);
    return hit;
}

typedef struct wanted {
    const struct stat *file;
    const input *of;
} wanted;

static bool is_wanted(void *user, const char *path)
{
    const wanted *w = user;
    struct stat info;
    bool may_be = w->of->model ? !is_rows(path) : is_split(strrchr(path, '/') + 1);
    return may_be && stat(path, &info) == 0 && is_same(&info, w->file);
}

static bool has_file(const input *i, const struct stat *file, const struct stat *not_in)
{
    struct stat own;
    wanted w = {file, i};
    if (stat(i->path, &own) != 0) return false;
    if (is_same(&own, file)) return true;
    return S_ISDIR(own.st_mode) && any_file(&(walk){is_wanted, &w, not_in}, i->path, DEPTH);
}

static const input *at_file(const inputs *in, const char *path, const struct stat *not_in)
{
    struct stat file;
    if (stat(path, &file) != 0) return NULL;
    for (int i = 0; i < in->count; i++)
        if (has_file(&in->items[i], &file, not_in)) return &in->items[i];
    return NULL;
}

const input *inputs_at_file(const inputs *in, const char *path) { return at_file(in, path, NULL); }

/* Whether a path lies in the folder, by any name of the folders on its way to the root. */
static bool lies_in(const char *path, const struct stat *folder)
{
    struct stat info;
    char *real = realpath(path, NULL);
    bool inside = false;
    for (char *slash; real && !inside && (slash = strrchr(real, '/'));) {
        inside = stat(*real ? real : "/", &info) == 0 && is_same(&info, folder);
        *slash = '\0';
    }
    if (real && !inside) inside = stat("/", &info) == 0 && is_same(&info, folder);
    free(real);
    return inside;
}

typedef struct folder_search {
    const inputs *in;
    const struct stat *folder;
    const input *found;
} folder_search;

/* A file of the folder that is one of an input's: it would be written through this name. */
static bool is_input(void *user, const char *path)
{
    folder_search *s = user;
    s->found = at_file(s->in, path, s->folder); /* and not for lying in this folder */
    return s->found;
}

const input *inputs_in_folder(const inputs *in, const char *folder)
{
    struct stat info;
    folder_search search = {in, &info, NULL};
    if (stat(folder, &info) != 0) return NULL;
    for (int i = 0; i < in->count; i++)
        if (lies_in(in->items[i].path, &info)) return &in->items[i];
    any_file(&(walk){is_input, &search, NULL}, folder, 1);
    return search.found;
}

const input *inputs_around_folder(const inputs *in, const char *folder)
{
    struct stat info, own;
    bool is_there = stat(folder, &info) == 0;
    for (int i = 0; i < in->count; i++) {
        const input *one = &in->items[i];
        if (stat(one->path, &own) != 0 || !S_ISDIR(own.st_mode)) continue;
        if ((is_there && is_same(&info, &own)) || (one->model && lies_in(folder, &own))) return one;
    }
    return NULL;
}
