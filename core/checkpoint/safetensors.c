/* Opening safetensors: one file, or the shards that an index names, as one set of tensors. */
#include "core/checkpoint/safetensors_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"

enum { INDEX_SIZE_MAX = 100 << 20 };

typedef struct shard {
    char *path;
    mc_file_map map;
    mc_safetensors_header header;
    size_t listed; /* how many of its tensors the index names */
} shard;

struct mc_safetensors {
    mc_owned owned;
    mc_context *ctx;
    shard *shards;
    size_t shard_count, shard_capacity;
    mc_safetensors_entry *entries; /* sorted by name */
    size_t count;
};

static void free_object(void *object)
{
    mc_safetensors *file = object;
    mc_disown(&file->owned);
    for (size_t i = 0; i < file->shard_count; i++) {
        mc_safetensors_header_release(&file->shards[i].header);
        mc_file_map_release(&file->shards[i].map);
        mc_free(file->shards[i].path);
    }
    mc_free(file->shards);
    mc_free(file->entries);
    mc_free(file);
}

void mc_safetensors_free(mc_safetensors *file)
{
    if (file) free_object(file);
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0; /* a dangling link counts: opening it tells what is wrong */
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* ---- Choosing a file in a folder ------------------------------------------------------------ */

static const char index_suffix[] = ".json";
static const char single_prefix[] = "model.", single_suffix[] = ".safetensors";
static const char index_prefix[] = "model.safetensors.index.";

/* Whether `text` ends like a shard's name does: "-00001-of-00009". */
static bool is_shard_name(const char *text, size_t length)
{
    static const char pattern[] = "-00000-of-00000";
    if (length < sizeof pattern - 1) return false;
    text += length - (sizeof pattern - 1);
    for (size_t i = 0; i < sizeof pattern - 1; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (pattern[i] == '0' ? !digit : text[i] != pattern[i]) return false;
    }
    return true;
}

/* The variant in a file name as a new string: "fp16" of model.fp16.safetensors and of
 * model.safetensors.index.fp16.json. NULL for other names (*nomem stays), or out of memory. */
static char *variant_of(const char *name, bool *nomem)
{
    size_t length = strlen(name), prefix, suffix;
    if (strncmp(name, index_prefix, sizeof index_prefix - 1) == 0) {
        prefix = sizeof index_prefix - 1;
        suffix = sizeof index_suffix - 1;
        if (!ends_with(name, index_suffix)) return NULL;
    } else {
        prefix = sizeof single_prefix - 1;
        suffix = sizeof single_suffix - 1;
        if (strncmp(name, single_prefix, prefix) != 0 || !ends_with(name, single_suffix))
            return NULL;
    }
    if (length <= prefix + suffix || is_shard_name(name, length - suffix)) return NULL;
    char *variant = mc_strndup(name + prefix, length - prefix - suffix);
    *nomem = !variant;
    return variant;
}

typedef struct variant_list {
    char **names;
    size_t count, capacity;
} variant_list;

static void variant_list_release(variant_list *list)
{
    for (size_t i = 0; i < list->count; i++) mc_free(list->names[i]);
    mc_free(list->names);
}

/* Adds a variant unless it is there already; takes the string over. False when memory is out. */
static bool add_variant(variant_list *list, char *variant)
{
    size_t at = 0;
    while (at < list->count && strcmp(list->names[at], variant) < 0) at++;
    bool known = at < list->count && strcmp(list->names[at], variant) == 0;
    if (known || !mc_grow(&list->names, &list->capacity, list->count, sizeof *list->names)) {
        mc_free(variant);
        return known;
    }
    memmove(list->names + at + 1, list->names + at, (list->count - at) * sizeof *list->names);
    list->names[at] = variant;
    list->count++;
    return true;
}

/* Lists the variants in a folder, sorted. */
static mc_status list_variants(mc_error *err, const char *folder, variant_list *list)
{
    bool nomem = false;
    DIR *dir = opendir(folder);
    if (!dir)
        return mc_error_set(err, MC_ERR_IO, "%s: cannot list the folder: %s", folder,
                            strerror(errno));
    for (struct dirent *item; !nomem && (item = readdir(dir));) {
        char *variant = variant_of(item->d_name, &nomem);
        if (variant) nomem = !add_variant(list, variant);
    }
    closedir(dir);
    return nomem ? mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its file list", folder)
                 : MC_OK;
}

/* The file of a variant: the single one, else the index. When neither is there `path` is left at
 * the single one's, for the message. */
static bool find_variant(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                         const char *variant)
{
    char single[512], index[512], index_path[MC_PATH_MAX];
    path[0] = '\0';
    if (!*variant || strlen(variant) > 255 || strchr(variant, '/')) {
        mc_error_set(err, MC_ERR_ARGUMENT, "%s: \"%.255s\" is no name of a variant", folder,
                     variant);
        return false;
    }
    snprintf(single, sizeof single, "%s%s%s", single_prefix, variant, single_suffix);
    snprintf(index, sizeof index, "%s%s%s", index_prefix, variant, index_suffix);
    if (mc_path_join(err, path, folder, single) != MC_OK) return false;
    if (exists(path)) return true;
    if (mc_path_join(err, index_path, folder, index) != MC_OK || !exists(index_path)) return false;
    memcpy(path, index_path, strlen(index_path) + 1);
    return true;
}

/* Names the variants, as many as fit. */
static mc_status several_variants(mc_error *err, const char *folder, const variant_list *list)
{
    char names[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < list->count && used < sizeof names - 1; i++) {
        int n = snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", list->names[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    return mc_error_set(err, MC_ERR_ARGUMENT,
                        "%s: no model.safetensors, but %zu variants: %s; ask for one", folder,
                        list->count, names);
}

static mc_status nothing_there(mc_error *err, const char *folder)
{
    char other[MC_PATH_MAX];
    static const char *const unread[] = {"pytorch_model.bin", "pytorch_model.pt",
                                         "pytorch_model.bin.index.json"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof unread / sizeof *unread && !found; i++) {
        mc_status joined = mc_path_join(err, other, folder, unread[i]);
        if (joined) return joined;
        if (exists(other)) found = unread[i];
    }
    return mc_error_set(
        err, MC_ERR_NOT_FOUND,
        "%s: no weights: expected model.safetensors, model.safetensors.index.json or "
        "model.<variant>.safetensors%s%s%s",
        folder, found ? " (there is " : "", found ? found : "",
        found ? ", which this version cannot read)" : "");
}

/* Takes the only variant there is. */
static mc_status choose_variant(mc_error *err, char path[MC_PATH_MAX], const char *folder)
{
    variant_list list = {0};
    mc_status status = list_variants(err, folder, &list);
    if (status == MC_OK && list.count == 0) status = nothing_there(err, folder);
    if (status == MC_OK && list.count > 1) status = several_variants(err, folder, &list);
    if (status == MC_OK && !find_variant(err, path, folder, list.names[0]))
        status = mc_error_set(err, MC_ERR_NOT_FOUND, "%s: its files changed meanwhile", folder);
    variant_list_release(&list);
    return status;
}

/* Finds the file or index of weights in a folder. */
static mc_status choose_in_folder(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                                  const char *variant)
{
    if (variant) {
        if (find_variant(err, path, folder, variant)) return MC_OK;
        return mc_error_set(err, MC_ERR_NOT_FOUND, "%s: not there (nor an index of variant \"%s\")",
                            path, variant);
    }
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mc_status status = mc_path_join(err, path, folder, names[i]);
        if (status || exists(path)) return status;
    }
    return choose_variant(err, path, folder);
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* Maps and checks one file. NULL on error. */
static shard *add_shard(mc_safetensors *file, const char *path)
{
    mc_error *err = &file->ctx->error;
    if (!mc_grow(&file->shards, &file->shard_capacity, file->shard_count, sizeof *file->shards)) {
        mc_fail_nomem(file->ctx, "the list of weight files");
        return NULL;
    }
    shard *new_shard = &file->shards[file->shard_count];
    *new_shard = (shard){.path = mc_strdup(path)};
    if (!new_shard->path) {
        mc_fail_nomem(file->ctx, "the list of weight files");
        return NULL;
    }
    file->shard_count++;
    if (mc_file_map_init(err, &new_shard->map, path) != MC_OK) return NULL;
    mc_status status = mc_safetensors_header_init(err, &new_shard->header, new_shard->map.data,
                                                  new_shard->map.size, new_shard->path);
    return status == MC_OK ? new_shard : NULL;
}

static bool allocate_entries(mc_safetensors *file, size_t count)
{
    file->entries = mc_calloc(count, sizeof *file->entries);
    if (!file->entries) mc_fail_nomem(file->ctx, "the list of tensors");
    return file->entries != NULL;
}

static bool open_single(mc_safetensors *file, const char *path)
{
    shard *only = add_shard(file, path);
    if (!only || !allocate_entries(file, only->header.count)) return false;
    file->count = only->header.count;
    memcpy(file->entries, only->header.entries, file->count * sizeof *file->entries);
    return true;
}

/* The shard of that name beside the index; opened when it is met for the first time. */
static shard *find_shard(mc_safetensors *file, const char *index, const char *name)
{
    char path[MC_PATH_MAX], folder[MC_PATH_MAX] = ".";
    const char *slash = strrchr(index, '/');
    if (!*name || *name == '/' || strstr(name, "..")) {
        mc_fail(file->ctx, MC_ERR_FORMAT,
                "%s: \"%.200s\": expected the name of a file in this folder", index, name);
        return NULL;
    }
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - index + 1), index);
    if (mc_path_join(&file->ctx->error, path, folder, name) != MC_OK) return NULL;
    for (size_t i = file->shard_count; i-- > 0;)
        if (strcmp(file->shards[i].path, path) == 0) return &file->shards[i];
    shard *opened = add_shard(file, path);
    if (!opened) mc_error_while(&file->ctx->error, "opening a shard named in %s", index);
    return opened;
}

/* Takes one tensor of the weight map over from its shard. */
static bool take_entry(mc_safetensors *file, const char *index, const cJSON *item)
{
    if (!cJSON_IsString(item)) {
        mc_fail(file->ctx, MC_ERR_FORMAT, "%s: weight_map: \"%.200s\": expected a file name", index,
                item->string);
        return false;
    }
    shard *from = find_shard(file, index, item->valuestring);
    if (!from) return false;
    const mc_safetensors_entry *entry =
        mc_safetensors_search(from->header.entries, from->header.count, item->string);
    if (!entry) {
        mc_fail(file->ctx, MC_ERR_NOT_FOUND, "%s: no tensor \"%.200s\", which %s says is there",
                from->path, item->string, index);
        return false;
    }
    from->listed++;
    file->entries[file->count++] = *entry;
    return true;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const mc_safetensors_entry *)a)->name, ((const mc_safetensors_entry *)b)->name);
}

static bool take_weight_map(mc_safetensors *file, const char *index, const cJSON *map)
{
    size_t count = 0;
    for (const cJSON *item = map->child; item; item = item->next) count++;
    if (!allocate_entries(file, count)) return false;
    for (const cJSON *item = map->child; item; item = item->next)
        if (!take_entry(file, index, item)) return false;
    qsort(file->entries, file->count, sizeof *file->entries, compare_entries);
    for (size_t i = 1; i < file->count; i++) {
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) != 0) continue;
        mc_fail(file->ctx, MC_ERR_FORMAT, "%s: weight_map: \"%.200s\" stands there twice", index,
                file->entries[i].name);
        return false;
    }
    return true;
}

/* Says which tensors are in the shards but not in the index: they are not read, as elsewhere. */
static void report_unlisted(mc_safetensors *file, const char *index)
{
    for (size_t i = 0; i < file->shard_count; i++) {
        const mc_safetensors_header *header = &file->shards[i].header;
        if (file->shards[i].listed == header->count) continue;
        for (size_t j = 0; j < header->count; j++) {
            const mc_safetensors_entry *listed = mc_safetensors_find(file, header->entries[j].name);
            if (!listed || listed->file != header->entries[j].file)
                mc_log(file->ctx, MC_LOG_WARNING, "%s: tensor \"%s\" is not in %s and is left out",
                       file->shards[i].path, header->entries[j].name, index);
        }
    }
}

static bool open_index(mc_safetensors *file, const char *path)
{
    cJSON *root = mc_json_read_object(&file->ctx->error, path, INDEX_SIZE_MAX);
    if (!root) return false;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    bool good = cJSON_IsObject(map);
    if (good)
        good = take_weight_map(file, path, map);
    else
        mc_fail(file->ctx, MC_ERR_FORMAT, "%s: key \"weight_map\": expected an object", path);
    cJSON_Delete(root);
    if (good) report_unlisted(file, path);
    return good;
}

mc_safetensors *mc_safetensors_open(mc_context *ctx, const char *path,
                                    const mc_safetensors_options *options)
{
    char chosen[MC_PATH_MAX];
    mc_safetensors *file = mc_new_owned(ctx, sizeof *file, "a safetensors file", free_object);
    if (!file) return NULL;
    file->ctx = ctx;
    bool good = path != NULL;
    if (!good) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "no safetensors file or folder given");
    } else if (mc_path_is_folder(path)) {
        const char *variant = options ? options->variant : NULL;
        good = choose_in_folder(&ctx->error, chosen, path, variant) == MC_OK;
        path = chosen;
    }
    if (good)
        good = ends_with(path, index_suffix) ? open_index(file, path) : open_single(file, path);
    if (good) return file;
    free_object(file);
    return NULL;
}

/* ---- Looking in ----------------------------------------------------------------------------- */

size_t mc_safetensors_count(const mc_safetensors *file) { return file ? file->count : 0; }

const mc_safetensors_entry *mc_safetensors_at(const mc_safetensors *file, size_t i)
{
    return file && i < file->count ? &file->entries[i] : NULL;
}

const mc_safetensors_entry *mc_safetensors_find(const mc_safetensors *file, const char *name)
{
    return file && name ? mc_safetensors_search(file->entries, file->count, name) : NULL;
}

/* The i-th metadata string, counted over all shards. */
static const mc_safetensors_string *string_at(const mc_safetensors *file, size_t i)
{
    for (size_t s = 0; file && s < file->shard_count; s++) {
        const mc_safetensors_header *header = &file->shards[s].header;
        if (i < header->string_count) return &header->strings[i];
        i -= header->string_count;
    }
    return NULL;
}

size_t mc_safetensors_metadata_count(const mc_safetensors *file)
{
    size_t count = 0;
    for (size_t s = 0; file && s < file->shard_count; s++)
        count += file->shards[s].header.string_count;
    return count;
}

const char *mc_safetensors_metadata_key(const mc_safetensors *file, size_t i)
{
    const mc_safetensors_string *string = string_at(file, i);
    return string ? string->key : NULL;
}

const char *mc_safetensors_metadata_value(const mc_safetensors *file, size_t i)
{
    const mc_safetensors_string *string = string_at(file, i);
    return string ? string->value : NULL;
}

const char *mc_safetensors_metadata(const mc_safetensors *file, const char *key)
{
    const mc_safetensors_string *string;
    for (size_t i = 0; key && (string = string_at(file, i)); i++)
        if (strcmp(string->key, key) == 0) return string->value;
    return NULL;
}

mc_status mc_safetensors_read_f32(mc_safetensors *file, const mc_safetensors_entry *entry,
                                  int64_t first, int64_t count, float *out)
{
    if (!file || !entry) return MC_ERR_ARGUMENT;
    if (mc_failed(file->ctx)) return mc_error_status(file->ctx);
    return mc_safetensors_copy_f32(&file->ctx->error, entry, first, count, out);
}

mc_status mc_safetensors_read_f64(mc_safetensors *file, const mc_safetensors_entry *entry,
                                  int64_t first, int64_t count, double *out)
{
    if (!file || !entry) return MC_ERR_ARGUMENT;
    if (mc_failed(file->ctx)) return mc_error_status(file->ctx);
    return mc_safetensors_copy_f64(&file->ctx->error, entry, first, count, out);
}
