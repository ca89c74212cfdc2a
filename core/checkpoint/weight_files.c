#include "core/checkpoint/weight_files_internal.h"

#include <stdlib.h>
#include <string.h>
#include "core/dist/ranks_internal.h"

mc_weight_files *mc_weight_files_new(mc_context *ctx, const char *path, size_t count)
{
    if (count > MC_SHARDS_MAX) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %zu files, expected at most %d: allow larger ones", path,
                count, MC_SHARDS_MAX);
        return NULL;
    }
    mc_weight_files *files = mc_calloc(1, sizeof *files);
    if (files) {
        *files = (mc_weight_files){.ctx = ctx, .most = count, .index_file = {.aside = {.fd = -1}}};
        files->path = mc_strdup(path);
        files->writers = mc_calloc(count, sizeof(mc_safetensors_writer *));
        if (count > 1) files->index = cJSON_CreateObject();
        cJSON_AddObjectToObject(files->index, "metadata");
        cJSON_AddObjectToObject(files->index, "weight_map");
        if (files->path && files->writers &&
            (count == 1 || cJSON_HasObjectItem(files->index, "weight_map")))
            return files;
    }
    mc_weight_files_free(files);
    mc_fail_nomem(ctx, "the list of weight files");
    return NULL;
}

void mc_weight_files_free(mc_weight_files *files)
{
    if (!files) return;
    for (size_t i = 0; i < files->count; i++) mc_safetensors_writer_free(files->writers[i]);
    mc_file_writer_release(&files->index_file);
    cJSON_Delete(files->index);
    mc_free(files->writers);
    mc_free(files->path);
    mc_free(files);
}

mc_safetensors_writer *mc_weight_files_add(mc_weight_files *files, const mc_safetensors_spec *specs,
                                           size_t count)
{
    char shard[MC_PATH_MAX];
    const char *path = files->path;
    if (files->index) {
        if (mc_shard_path(&files->ctx->error, shard, path, files->count, files->most)) return NULL;
        path = shard;
    }
    mc_safetensors_writer *writer =
        mc_safetensors_writer_new_shared(files->ctx, path, specs, count);
    if (writer) files->writers[files->count++] = writer;
    return writer;
}

void mc_weight_files_note(mc_weight_files *files, const char *name, int64_t elements,
                          uint64_t bytes)
{
    char path[MC_PATH_MAX];
    files->parameters += elements;
    files->bytes += (int64_t)bytes;
    if (!files->index || files->ctx->mesh.world.rank) return;
    if (mc_shard_path(&files->ctx->error, path, files->path, files->count - 1, files->most)) return;
    const char *slash = strrchr(path, '/');
    cJSON *map = cJSON_GetObjectItemCaseSensitive(files->index, "weight_map");
    if (!cJSON_AddStringToObject(map, name, slash ? slash + 1 : path))
        mc_fail_nomem(files->ctx, "the index of weight files");
}

static int compare_items(const void *a, const void *b)
{
    return strcmp((*(cJSON *const *)a)->string, (*(cJSON *const *)b)->string);
}

/* Sorts an object's items by key. cJSON's own function recurses as deep as there are items. */
static bool sort_items(cJSON *object)
{
    size_t count = (size_t)cJSON_GetArraySize(object), n = 0;
    cJSON **items = mc_calloc(count + 1, sizeof(cJSON *));
    if (!items) return false;
    while (object->child) items[n++] = cJSON_DetachItemViaPointer(object, object->child);
    qsort(items, n, sizeof *items, compare_items);
    for (size_t i = 0; i < n; i++) cJSON_AddItemToArray(object, items[i]); /* keeps its key */
    mc_free(items);
    return true;
}

void mc_weight_files_write_index(mc_weight_files *files)
{
    char path[MC_PATH_MAX];
    if (!files || !files->index || files->ctx->mesh.world.rank || mc_failed(files->ctx)) return;
    mc_error *err = &files->ctx->error;
    cJSON *metadata = cJSON_GetObjectItemCaseSensitive(files->index, "metadata");
    cJSON *map = cJSON_GetObjectItemCaseSensitive(files->index, "weight_map");
    bool good = cJSON_AddNumberToObject(metadata, "total_parameters", (double)files->parameters) &&
                cJSON_AddNumberToObject(metadata, "total_size", (double)files->bytes) &&
                sort_items(map);
    char *printed = good ? mc_shard_index_print(files->index) : NULL;
    if (!printed)
        mc_fail_nomem(files->ctx, "the index of weight files");
    else if (!mc_shard_index_path(err, path, files->path) &&
             !mc_file_writer_init(err, &files->index_file, path) &&
             !mc_file_write(&files->index_file, printed, strlen(printed)))
        mc_file_sync(&files->index_file);
    mc_free(printed);
}

static mc_status aside_of(void *user, size_t number, char out[MC_PATH_MAX])
{
    const mc_weight_files *files = user;
    const char *aside = mc_safetensors_writer_aside(files->writers[number]);
    return mc_path_join(&files->ctx->error, out, "", aside);
}

/* On rank 0, unless the files are written later: a new checkpoint's folder has nothing to
 * replace. */
static void bridge(mc_weight_files *files)
{
    mc_shard_set set = {.err = &files->ctx->error,
                        .path = files->path,
                        .index = files->index,
                        .count = files->count,
                        .source = aside_of,
                        .user = files};
    if (files->index) mc_shards_bridge(&set);
}

mc_status mc_weight_files_rename(mc_weight_files *files)
{
    if (!files) return MC_ERR_ARGUMENT;
    mc_context *ctx = files->ctx;
    bool first = !ctx->mesh.world.rank, at_once = !ctx->save_queue;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (first && at_once) bridge(files);
    for (size_t i = 0; i < files->count && !mc_failed(ctx); i++)
        mc_safetensors_writer_rename(files->writers[i]);
    if (first && files->index && !mc_failed(ctx)) mc_file_rename(&files->index_file);
    if (first && at_once && !mc_failed(ctx))
        mc_shards_clean(&ctx->error, files->path, files->index ? files->count : 0);
    return at_once ? mc_ranks_meet(ctx) : mc_error_status(ctx);
}
