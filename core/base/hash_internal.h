/* FNV-1a of 64 bits (Fowler, Noll and Vo; RFC 9923): for names, checksums and tables, not against
 * those who mean harm. A hash is begun with MC_HASH_START and goes on from what it was. */
#ifndef MC_BASE_HASH_INTERNAL_H
#define MC_BASE_HASH_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MC_HASH_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t mc_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Without the NUL. */
static inline uint64_t mc_hash_text(uint64_t hash, const char *text)
{
    return mc_hash(hash, text, strlen(text));
}

#endif
