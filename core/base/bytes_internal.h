/* A buffer of bytes that grows. All zeros is an empty one. */
#ifndef MC_BASE_BYTES_INTERNAL_H
#define MC_BASE_BYTES_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mc_bytes {
    uint8_t *data;
    size_t count, capacity;
} mc_bytes;

/* Room for `more` bytes after those that there are. False, with the buffer as it was, when memory
 * is out. */
bool mc_bytes_reserve(mc_bytes *bytes, size_t more);
bool mc_bytes_append(mc_bytes *bytes, const void *data, size_t size);
void mc_bytes_release(mc_bytes *bytes);

#endif
