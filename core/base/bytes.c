#include "core/base/bytes_internal.h"

#include <string.h>
#include "core/base/memory_internal.h"

bool mc_bytes_reserve(mc_bytes *bytes, size_t more)
{
    if (more <= bytes->capacity - bytes->count) return true;
    size_t wanted = bytes->capacity ? bytes->capacity : 256;
    while (wanted - bytes->count < more) {
        if (wanted > SIZE_MAX / 2) return false;
        wanted *= 2;
    }
    uint8_t *data = mc_realloc(bytes->data, wanted);
    if (!data) return false;
    bytes->data = data;
    bytes->capacity = wanted;
    return true;
}

bool mc_bytes_append(mc_bytes *bytes, const void *data, size_t size)
{
    if (!mc_bytes_reserve(bytes, size)) return false;
    if (size) memcpy(bytes->data + bytes->count, data, size);
    bytes->count += size;
    return true;
}

void mc_bytes_release(mc_bytes *bytes)
{
    mc_free(bytes->data);
    *bytes = (mc_bytes){0};
}
