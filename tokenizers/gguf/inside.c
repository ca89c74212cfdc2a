#include "tokenizers/gguf/inside_internal.h"

#include <string.h>
#include "core/base/json_internal.h"
#include "core/base/memory_internal.h"

bool mc_inside_add(mc_inside *inside, const char *name, const void *bytes, size_t size)
{
    struct mc_inside_file *file = &inside->files[inside->count];
    file->name = name;
    if (!mc_bytes_append(&file->bytes, bytes, size)) return false;
    inside->count++;
    return true;
}

void mc_inside_release(mc_inside *inside)
{
    for (int i = 0; i < MC_INSIDE_FILES; i++) mc_bytes_release(&inside->files[i].bytes);
    inside->count = 0;
}

static const mc_bytes *find(const mc_inside *inside, const char *path)
{
    const char *slash = strrchr(path, '/');
    for (int i = 0; i < inside->count; i++)
        if (strcmp(inside->files[i].name, slash ? slash + 1 : path) == 0)
            return &inside->files[i].bytes;
    return NULL;
}

bool mc_inside_is_file(const mc_inside *inside, const char *path)
{
    return inside ? find(inside, path) != NULL : mc_path_is_file(path);
}

char *mc_inside_read(const mc_inside *inside, mc_error *err, const char *path, size_t limit,
                     size_t *size)
{
    const mc_bytes *bytes = inside ? find(inside, path) : NULL;
    if (!bytes) return mc_file_read(err, path, limit, size);
    char *copy = mc_malloc(bytes->count + 1);
    if (!copy) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", path);
        return NULL;
    }
    memcpy(copy, bytes->data, bytes->count);
    copy[bytes->count] = '\0';
    if (size) *size = bytes->count;
    return copy;
}

cJSON *mc_inside_read_object(const mc_inside *inside, mc_error *err, const char *path, size_t limit)
{
    const mc_bytes *bytes = inside ? find(inside, path) : NULL;
    if (!bytes) return mc_json_read_object(err, path, limit);
    return mc_json_parse(err, (const char *)bytes->data, bytes->count, path, 1);
}
