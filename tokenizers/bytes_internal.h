/* Bytes that grow. */
#ifndef MC_TOKENIZERS_BYTES_INTERNAL_H
#define MC_TOKENIZERS_BYTES_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mc_bytes {
    uint8_t *data;
    size_t count, capacity;
} mc_bytes;

bool mc_bytes_reserve(mc_bytes *bytes, size_t more);
bool mc_bytes_append(mc_bytes *bytes, const void *data, size_t size);
void mc_bytes_release(mc_bytes *bytes);

#endif
