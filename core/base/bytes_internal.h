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

/* Makes room for `more` bytes after the present ones. Returns false, and leaves the buffer
 * unchanged, if memory is out. */
bool mc_bytes_reserve(mc_bytes *bytes, size_t more);
bool mc_bytes_append(mc_bytes *bytes, const void *data, size_t size);
void mc_bytes_release(mc_bytes *bytes);

#endif
