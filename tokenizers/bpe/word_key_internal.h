/* Short words as keys of a cache: their bytes in two numbers. */
#ifndef MC_TOKENIZERS_WORD_KEY_INTERNAL_H
#define MC_TOKENIZERS_WORD_KEY_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "core/base/memory_internal.h"

enum { MC_WORD_KEY_SIZE = 16 }; /* bytes that a key has room for */

/* Eight bytes, the first of them lowest. */
static inline uint64_t mc_load_word(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* The word's bytes with zeros after; it has MC_WORD_KEY_SIZE bytes at most. `end` is how far the
 * text can be read. */
static inline void mc_word_key(const uint8_t *word, size_t size, const uint8_t *end,
                               uint64_t key[2])
{
    if (end - word >= MC_WORD_KEY_SIZE) {
        uint64_t bits = 8 * size, all = UINT64_MAX;
        key[0] = mc_load_word(word) & (bits >= 64 ? all : ~(all << bits));
        key[1] = mc_load_word(word + 8) & (bits >= 128 ? all
                                           : bits > 64 ? ~(all << (bits - 64))
                                                       : 0);
        return;
    }
    uint8_t bytes[MC_WORD_KEY_SIZE] = {0};
    memcpy(bytes, word, size);
    key[0] = mc_load_word(bytes);
    key[1] = mc_load_word(bytes + 8);
}

/* An empty cache of words of `size` bytes in place of another, with eight times its places or, of
 * none, 1024; what the old one held comes again soon enough. NULL when memory is out: the old one
 * stays. */
static inline void *mc_word_cache_grow(void *words, size_t *count, size_t *put, size_t size)
{
    size_t more = *count ? *count * 8 : 1 << 10;
    void *grown = mc_calloc(more, size);
    if (!grown) return NULL;
    mc_free(words);
    *count = more;
    *put = 0;
    return grown;
}

static inline uint64_t mc_word_hash(const uint64_t key[2], size_t size)
{
    uint64_t hash = (key[0] ^ size) * 0x9E3779B97F4A7C15u;
    return (hash ^ hash >> 32 ^ key[1]) * 0xD6E8FEB86659FD93u;
}

#endif
