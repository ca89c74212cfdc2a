/* Opening files of tensors: one file, or the shards that an index names, as one set of tensors. */
#include "core/formats/tensor_file_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/base/context_internal.h"
#include "core/base/json_internal.h"

enum { INDEX_SIZE_MAX = 100 << 20 };

typedef struct shard {
    char *path;
    mc_file_map map;
    int fd; /* of the same file; -1: not open */
    const mc_tensor_format *format;
    mc_tensor_table table;
    size_t listed; /* how many of its tensors the index names */
} shard;

struct mc_tensor_file {
    mc_owned owned;
    mc_context *ctx;
    shard *shards;
    size_t shard_count, shard_capacity;
    mc_tensor_entry *entries; /* sorted by name */
    size_t count;
};

static void free_object(void *object)
{
    mc_tensor_file *file = object;
    mc_disown(&file->owned);
    for (size_t i = 0; i < file->shard_count; i++) {
        mc_tensor_table_release(&file->shards[i].table);
        mc_file_map_release(&file->shards[i].map);
        if (file->shards[i].fd >= 0) close(file->shards[i].fd);
        mc_free(file->shards[i].path);
    }
    mc_free(file->shards);
    mc_free(file->entries);
    mc_free(file);
}

mc_bytes_place mc_tensor_file_place(const mc_tensor_file *file, const void *data)
{
    uintptr_t at = (uintptr_t)data;
    for (size_t i = 0; i < file->shard_count; i++) {
        const shard *s = &file->shards[i];
        uintptr_t first = (uintptr_t)s->map.data;
        if (at >= first && at - first < s->map.size) return (mc_bytes_place){s->fd, at - first};
    }
    return (mc_bytes_place){.fd = -1};
}

mc_bytes_place mc_tensor_file_bytes(const mc_tensor_file *file, const mc_tensor_entry *entry)
{
    if (entry->dense && entry->size) return mc_tensor_file_place(file, entry->data);
    return (mc_bytes_place){.fd = -1};
}

void mc_tensor_file_free(mc_tensor_file *file)
{
    if (file) free_object(file);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* Maps and checks one file. NULL on error. */
static shard *add_shard(mc_tensor_file *file, const char *path)
{
    mc_error *err = &file->ctx->error;
    if (!mc_grow(&file->shards, &file->shard_capacity, file->shard_count, sizeof *file->shards)) {
        mc_fail_nomem(file->ctx, "the list of weight files");
        return NULL;
    }
    shard *new_shard = &file->shards[file->shard_count];
    *new_shard = (shard){.path = mc_strdup(path), .fd = -1};
    if (!new_shard->path) {
        mc_fail_nomem(file->ctx, "the list of weight files");
        return NULL;
    }
    file->shard_count++;
    if (mc_file_map_open(err, &new_shard->map, path, &new_shard->fd) != MC_OK) return NULL;
    new_shard->format = mc_tensor_format_of(new_shard->map.data, new_shard->map.size);
    mc_status status = new_shard->format->parse(err, &new_shard->table, new_shard->map.data,
                                                new_shard->map.size, new_shard->path);
    if (mc_file_check_bytes(err, new_shard->map.data) || status) return NULL;
    if (new_shard->table.left_out)
        mc_log(file->ctx, MC_LOG_INFO, "%s: %zu tensors beside \"%s\" are left out", path,
               new_shard->table.left_out, new_shard->table.part);
    return new_shard;
}

static bool allocate_entries(mc_tensor_file *file, size_t count)
{
    file->entries = mc_calloc(count, sizeof *file->entries);
    if (!file->entries) mc_fail_nomem(file->ctx, "the list of tensors");
    return file->entries != NULL;
}

static bool open_single(mc_tensor_file *file, const char *path)
{
    shard *only = add_shard(file, path);
    if (!only || !allocate_entries(file, only->table.count)) return false;
    file->count = only->table.count;
    memcpy(file->entries, only->table.entries, file->count * sizeof *file->entries);
    return true;
}

/* The shard of that name beside the index, opened at its first use. */
static shard *find_shard(mc_tensor_file *file, const char *index, const char *name)
{
    char path[MC_PATH_MAX], folder[MC_PATH_MAX] = ".";
    const char *slash = strrchr(index, '/');
    if (!*name || mc_path_leaves(name)) {
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

/* Copies one entry of the weight map from its shard. */
static bool take_entry(mc_tensor_file *file, const char *index, const cJSON *item)
{
    if (!cJSON_IsString(item)) {
        mc_fail(file->ctx, MC_ERR_FORMAT, "%s: weight_map: \"%.200s\": expected a file name", index,
                item->string);
        return false;
    }
    char held[MC_NAMES_SHOWN];
    shard *from = find_shard(file, index, item->valuestring);
    if (!from) return false;
    const mc_tensor_entry *entry =
        mc_tensor_search(from->table.entries, from->table.count, item->string);
    if (!entry) {
        mc_fail(file->ctx, MC_ERR_NOT_FOUND, "%s: no tensor \"%.200s\", which %s says is there; %s",
                from->path, item->string, index,
                mc_tensor_names_show(from->table.entries, from->table.count, held));
        return false;
    }
    from->listed++;
    file->entries[file->count++] = *entry;
    return true;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const mc_tensor_entry *)a)->name, ((const mc_tensor_entry *)b)->name);
}

static bool take_weight_map(mc_tensor_file *file, const char *index, const cJSON *map)
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

/* Logs which tensors are in the shards but not in the index: they are not read. */
static void report_unlisted(mc_tensor_file *file, const char *index)
{
    for (size_t i = 0; i < file->shard_count; i++) {
        const mc_tensor_table *table = &file->shards[i].table;
        if (file->shards[i].listed == table->count) continue;
        for (size_t j = 0; j < table->count; j++) {
            const mc_tensor_entry *listed = mc_tensor_file_find(file, table->entries[j].name);
            if (!listed || listed->file != table->entries[j].file)
                mc_log(file->ctx, MC_LOG_WARNING, "%s: tensor \"%s\" is not in %s and is left out",
                       file->shards[i].path, table->entries[j].name, index);
        }
    }
}

static bool open_index(mc_tensor_file *file, const char *path)
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

mc_tensor_file *mc_tensor_file_open(mc_context *ctx, const char *path,
                                    const mc_tensor_file_options *options)
{
    char chosen[MC_PATH_MAX];
    mc_tensor_file *file = mc_new_owned(ctx, sizeof *file, "a file of tensors", free_object);
    if (!file) return NULL;
    file->ctx = ctx;
    bool good = path != NULL;
    if (!good) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "no file or folder of tensors given");
    } else if (mc_path_is_folder(path)) {
        const char *variant = options ? options->variant : NULL;
        good = mc_tensor_file_choose(&ctx->error, chosen, path, variant) == MC_OK;
        path = chosen;
    }
    if (good) good = ends_with(path, ".json") ? open_index(file, path) : open_single(file, path);
    if (good) return file;
    free_object(file);
    return NULL;
}

/* ---- Looking in ----------------------------------------------------------------------------- */

size_t mc_tensor_file_count(const mc_tensor_file *file) { return file ? file->count : 0; }

const mc_tensor_entry *mc_tensor_file_at(const mc_tensor_file *file, size_t i)
{
    return file && i < file->count ? &file->entries[i] : NULL;
}

const mc_tensor_entry *mc_tensor_file_find(const mc_tensor_file *file, const char *name)
{
    return file && name ? mc_tensor_search(file->entries, file->count, name) : NULL;
}

size_t mc_tensor_file_part_count(const mc_tensor_file *file)
{
    size_t count = 0;
    for (size_t i = 0; file && i < file->shard_count; i++)
        count += file->shards[i].table.part_count;
    return count;
}

const mc_stored_part *mc_tensor_file_part(const mc_tensor_file *file, size_t i)
{
    size_t s = 0;
    for (; i >= file->shards[s].table.part_count; s++) i -= file->shards[s].table.part_count;
    return &file->shards[s].table.parts[i];
}

size_t mc_tensor_file_unchecked(const mc_tensor_file *file)
{
    size_t count = 0;
    for (size_t i = 0; file && i < file->shard_count; i++) count += file->shards[i].table.unchecked;
    return count;
}

void mc_tensor_file_shorten_names(mc_tensor_file *file, ptrdiff_t by)
{
    for (size_t i = 0; i < file->count; i++) file->entries[i].name += by;
}

mc_status mc_tensor_file_check(mc_tensor_file *file)
{
    if (!file) return MC_ERR_ARGUMENT;
    for (size_t i = 0; i < file->shard_count; i++)
        mc_file_check_whole(&file->ctx->error, file->shards[i].map.data);
    return mc_error_status(file->ctx);
}

mc_context *mc_tensor_file_context(const mc_tensor_file *file) { return file->ctx; }

const char *mc_tensor_file_format(const mc_tensor_file *file)
{
    return file && file->shard_count ? file->shards[0].format->name : NULL;
}

/* The i-th metadata string, counted over all shards. */
static const mc_file_string *string_at(const mc_tensor_file *file, size_t i)
{
    for (size_t s = 0; file && s < file->shard_count; s++) {
        const mc_tensor_table *table = &file->shards[s].table;
        if (i < table->string_count) return &table->strings[i];
        i -= table->string_count;
    }
    return NULL;
}

size_t mc_tensor_file_metadata_count(const mc_tensor_file *file)
{
    size_t count = 0;
    for (size_t s = 0; file && s < file->shard_count; s++)
        count += file->shards[s].table.string_count;
    return count;
}

const char *mc_tensor_file_metadata_key(const mc_tensor_file *file, size_t i)
{
    const mc_file_string *string = string_at(file, i);
    return string ? string->key : NULL;
}

const char *mc_tensor_file_metadata_value(const mc_tensor_file *file, size_t i)
{
    const mc_file_string *string = string_at(file, i);
    return string ? string->value : NULL;
}

const char *mc_tensor_file_metadata(const mc_tensor_file *file, const char *key)
{
    const mc_file_string *string;
    for (size_t i = 0; key && (string = string_at(file, i)); i++)
        if (strcmp(string->key, key) == 0) return string->value;
    return NULL;
}

mc_status mc_tensor_file_read_f32(mc_tensor_file *file, const mc_tensor_entry *entry, int64_t first,
                                  int64_t count, float *out)
{
    if (!file) return MC_ERR_ARGUMENT;
    if (mc_failed(file->ctx) || !mc_given(file->ctx, entry) || (count && !mc_given(file->ctx, out)))
        return mc_error_status(file->ctx);
    return mc_tensor_copy_f32(&file->ctx->error, entry, first, count, out);
}

mc_status mc_tensor_file_read_f64(mc_tensor_file *file, const mc_tensor_entry *entry, int64_t first,
                                  int64_t count, double *out)
{
    if (!file) return MC_ERR_ARGUMENT;
    if (mc_failed(file->ctx) || !mc_given(file->ctx, entry) || (count && !mc_given(file->ctx, out)))
        return mc_error_status(file->ctx);
    return mc_tensor_copy_f64(&file->ctx->error, entry, first, count, out);
}

mc_status mc_tensor_file_read_bytes(mc_tensor_file *file, const mc_tensor_entry *entry,
                                    int64_t first, int64_t count, void *out)
{
    if (!file) return MC_ERR_ARGUMENT;
    if (mc_failed(file->ctx) || !mc_given(file->ctx, entry) || (count && !mc_given(file->ctx, out)))
        return mc_error_status(file->ctx);
    return mc_tensor_copy_bytes(&file->ctx->error, entry, first, count, out);
}
