/* FNV-1a of 64 bits (Fowler, Noll and Vo; RFC 9923): for names, checksums and tables, not against
 * deliberate collisions. A hash starts as MC_HASH_START and continues from its last value. */
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

/* Hashes a text without its NUL. */
static inline uint64_t mc_hash_text(uint64_t hash, const char *text)
{
    return mc_hash(hash, text, strlen(text));
}

#endif
