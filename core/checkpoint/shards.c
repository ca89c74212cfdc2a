#include "core/checkpoint/shards_internal.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

static const char suffix[] = ".safetensors", bridge_suffix[] = ".new.safetensors";
enum { SUFFIX = sizeof suffix - 1, BRIDGE = sizeof bridge_suffix - 1 };

/* ---- which tensor is in which shard ---------------------------------------------------------- */

/* Assigns `number` to the tensors of the current shard. */
static void close_shard(size_t *shard, size_t end, size_t number)
{
    for (size_t i = 0; i < end; i++)
        if (shard[i] == SIZE_MAX) shard[i] = number;
}

size_t mc_shards_split(const uint64_t *bytes, size_t count, uint64_t most, size_t *shard)
{
    size_t shards = 0;
    uint64_t current = 0;
    bool open = false;
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] > most) {
            shard[i] = shards++;
            continue;
        }
        if (open && bytes[i] > most - current) {
            close_shard(shard, i, shards++);
            current = 0;
        }
        shard[i] = SIZE_MAX;
        current += bytes[i];
        open = true;
    }
    if (open) close_shard(shard, count, shards++);
    return shards;
}

/* ---- PyTorch's order ------------------------------------------------------------------------- */

/* The index of a word in the list, or the list's length. */
static size_t place_of(const char *order, const char *word, size_t length)
{
    const char *at = order;
    while (*at) {
        size_t here = strcspn(at, " ");
        if (here == length && memcmp(at, word, length) == 0) break;
        at += here;
        at += strspn(at, " ");
    }
    return (size_t)(at - order);
}

static int compare_words(const char *order, const char *a, size_t a_length, const char *b,
                         size_t b_length)
{
    if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
        long x = strtol(a, NULL, 10), y = strtol(b, NULL, 10);
        if (x != y) return x < y ? -1 : 1;
    }
    size_t x = place_of(order, a, a_length), y = place_of(order, b, b_length);
    if (x != y) return x < y ? -1 : 1;
    int bytes = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return bytes ? bytes : (a_length > b_length) - (a_length < b_length);
}

int mc_tensor_name_compare(const char *order, const char *a, const char *b)
{
    while (*a && *b) {
        size_t a_length = strcspn(a, "."), b_length = strcspn(b, ".");
        int result = compare_words(order, a, a_length, b, b_length);
        if (result) return result;
        a += a_length + (a[a_length] == '.');
        b += b_length + (b[b_length] == '.');
    }
    return (*a != '\0') - (*b != '\0');
}

/* ---- names of files -------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

mc_status mc_shard_path(mc_error *err, char out[MC_PATH_MAX], const char *path, size_t number,
                        size_t count)
{
    size_t length = strlen(path);
    if (!ends_with(path, suffix))
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "%s: weights in several files are named after one that ends in \"%s\"",
                            path, suffix);
    int written = snprintf(out, MC_PATH_MAX, "%.*s-%05zu-of-%05zu%s", (int)(length - SUFFIX), path,
                           number + 1, count, suffix);
    if (written > 0 && written < MC_PATH_MAX) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", path);
}

mc_status mc_shard_index_path(mc_error *err, char out[MC_PATH_MAX], const char *path)
{
    int written = snprintf(out, MC_PATH_MAX, "%s.index.json", path);
    if (written > 0 && written < MC_PATH_MAX) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", path);
}

static const char *name_in(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

size_t mc_shard_count_of(const char *name, const char *single)
{
    static const char pattern[] = "-00000-of-00000";
    size_t base = strlen(single) - SUFFIX;
    if (strncmp(name, single, base) != 0) return 0;
    const char *rest = name + base;
    for (size_t i = 0; pattern[i]; i++, rest++)
        if (pattern[i] == '0' ? !isdigit((unsigned char)*rest) : *rest != pattern[i]) return 0;
    if (strcmp(rest, suffix) != 0 && strcmp(rest, bridge_suffix) != 0) return 0;
    return (size_t)strtoul(rest - 5, NULL, 10);
}

/* ---- the index ------------------------------------------------------------------------------- */

typedef struct text {
    char *data;
    size_t used, capacity;
    bool nomem;
} text;

static void append(text *t, const char *string)
{
    for (; string && *string && !t->nomem; string++) {
        t->nomem = !mc_grow(&t->data, &t->capacity, t->used, 1);
        if (!t->nomem) t->data[t->used++] = *string;
    }
    t->nomem = t->nomem || !string;
}

/* Appends a value that is not an object, as JSON. */
static void append_value(text *t, const cJSON *value)
{
    char *printed = cJSON_PrintUnformatted(value);
    append(t, printed);
    cJSON_free(printed);
}

static void append_key(text *t, const char *key)
{
    cJSON *string = cJSON_CreateString(key);
    append_value(t, string);
    append(t, ": ");
    cJSON_Delete(string);
}

char *mc_shard_index_print(const cJSON *index)
{
    text t = {0};
    append(&t, "{\n");
    for (const cJSON *part = index->child; part; part = part->next) {
        append(&t, "  ");
        append_key(&t, part->string);
        append(&t, "{\n");
        for (const cJSON *item = part->child; item; item = item->next) {
            append(&t, "    ");
            append_key(&t, item->string);
            append_value(&t, item);
            append(&t, item->next ? ",\n" : "\n");
        }
        append(&t, part->next ? "  },\n" : "  }\n");
    }
    append(&t, "}\n");
    if (!mc_grow(&t.data, &t.capacity, t.used, 1)) t.nomem = true;
    if (!t.nomem) t.data[t.used] = '\0';
    if (t.nomem) mc_free(t.data);
    return t.nomem ? NULL : t.data;
}

/* Uses another temporary name, because the new index waits under the usual one. */
static mc_status replace_index(mc_error *err, const char *index_path, const char *data)
{
    char path[MC_PATH_MAX];
    mc_file_writer writer;
    if (snprintf(path, sizeof path, "%s.new", index_path) >= MC_PATH_MAX)
        return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", index_path);
    mc_status status = mc_file_writer_init(err, &writer, path);
    if (!status) status = mc_file_write(&writer, data, strlen(data));
    if (!status) status = mc_file_commit(&writer);
    mc_file_writer_release(&writer);
    if (status) return status;
    if (rename(path, index_path) == 0) return mc_path_sync_folder(err, index_path);
    return mc_error_set(err, MC_ERR_IO, "%s: cannot replace it: %s", index_path, strerror(errno));
}

/* ---- replacing older files ------------------------------------------------------------------- */

/* Whether the folder's index names a file that a new one will replace. An unreadable index names
 * nothing that could be loaded. */
static bool index_names_same(const mc_shard_set *set, const char *index_path)
{
    enum { INDEX_SIZE_MAX = 100 << 20 };
    mc_error ignored = {0};
    bool same = false;
    if (!mc_path_is_file(index_path)) return false;
    cJSON *old = mc_json_read_object(&ignored, index_path, INDEX_SIZE_MAX);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(old, "weight_map"), *item;
    cJSON_ArrayForEach(item, map)
    {
        const char *name = cJSON_IsString(item) ? item->valuestring : "";
        same = same || (mc_shard_count_of(name, name_in(set->path)) == set->count &&
                        !ends_with(name, bridge_suffix));
    }
    cJSON_Delete(old);
    mc_error_clear(&ignored);
    return same;
}

/* "x.safetensors" becomes "x.new.safetensors". */
static mc_status bridge_path(mc_error *err, char out[MC_PATH_MAX], const char *path)
{
    int written =
        snprintf(out, MC_PATH_MAX, "%.*s%s", (int)(strlen(path) - SUFFIX), path, bridge_suffix);
    if (written > 0 && written < MC_PATH_MAX) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", path);
}

/* Links all new files; *linked becomes false if one link fails. */
static mc_status link_all(const mc_shard_set *set, bool *linked)
{
    char source[MC_PATH_MAX], path[MC_PATH_MAX], bridge[MC_PATH_MAX];
    mc_status status = MC_OK;
    *linked = true;
    for (size_t i = 0; i < set->count && *linked && !status; i++) {
        status = set->source(set->user, i, source);
        if (!status) status = mc_shard_path(set->err, path, set->path, i, set->count);
        if (!status) status = bridge_path(set->err, bridge, path);
        if (status) break;
        unlink(bridge); /* left by a killed save; no index names it now */
        *linked = link(source, bridge) == 0;
    }
    return status;
}

static mc_status write_bridge_index(const mc_shard_set *set, const char *index_path)
{
    char name[MC_PATH_MAX];
    cJSON *index = cJSON_Duplicate(set->index, true), *item;
    bool good = index;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(index, "weight_map"))
    {
        good = good && !bridge_path(set->err, name, item->valuestring) &&
               cJSON_SetValuestring(item, name);
    }
    char *printed = good ? mc_shard_index_print(index) : NULL;
    mc_status status =
        printed ? replace_index(set->err, index_path, printed)
                : mc_error_set(set->err, MC_ERR_NOMEM, "%s: out of memory for it", index_path);
    mc_free(printed);
    cJSON_Delete(index);
    return status;
}

mc_status mc_shards_bridge(const mc_shard_set *set)
{
    char index_path[MC_PATH_MAX];
    bool linked;
    mc_status status = mc_shard_index_path(set->err, index_path, set->path);
    if (status || !index_names_same(set, index_path)) return status;
    status = link_all(set, &linked);
    if (status) return status;
    if (linked) return write_bridge_index(set, index_path);
    if (unlink(index_path) == 0) return MC_OK;
    return mc_error_set(set->err, MC_ERR_IO, "%s: cannot remove it: %s", index_path,
                        strerror(errno));
}

static mc_status remove_one(mc_error *err, const char *path)
{
    if (unlink(path) == 0 || errno == ENOENT) return MC_OK;
    return mc_error_set(err, MC_ERR_IO, "%s: cannot remove what an older save left: %s", path,
                        strerror(errno));
}

/* Removes shards that do not belong to a set of `count`, and links of a bridge. */
static mc_status remove_shards(mc_error *err, const char *folder, const char *single, size_t count)
{
    char path[MC_PATH_MAX];
    DIR *dir = opendir(folder);
    if (!dir)
        return mc_error_set(err, MC_ERR_IO, "%s: cannot list the folder: %s", folder,
                            strerror(errno));
    mc_status status = MC_OK;
    for (struct dirent *item; !status && (item = readdir(dir));) {
        size_t of = mc_shard_count_of(item->d_name, single);
        if (!of || (of == count && !ends_with(item->d_name, bridge_suffix))) continue;
        status = mc_path_join(err, path, folder, item->d_name);
        if (!status) status = remove_one(err, path);
    }
    closedir(dir);
    return status;
}

mc_status mc_shards_clean(mc_error *err, const char *path, size_t count)
{
    char folder[MC_PATH_MAX], index_path[MC_PATH_MAX];
    const char *single = name_in(path);
    if (!ends_with(path, suffix)) return MC_OK; /* then no shards are named after it */
    snprintf(folder, sizeof folder, "%.*s", (int)(single - path), path);
    mc_status status = mc_shard_index_path(err, index_path, path);
    if (!status)
        status = remove_one(err, count ? path : index_path); /* loaders look for it first */
    return status ? status : remove_shards(err, *folder ? folder : ".", single, count);
}
