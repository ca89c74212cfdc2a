/* What the normaliser and the word cutters have to know about code points, and UTF-8.
 *
 * The tables are generated from the behaviour of Hugging Face's tokenizers, whose rules mix several
 * Unicode versions (see generate_unicode_data.py); a system library's tables would be another
 * version and give other tokens for the newest and rarest characters. */
#ifndef MC_TOKENIZERS_UNICODE_INTERNAL_H
#define MC_TOKENIZERS_UNICODE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MC_UNICODE_OTHER = 1, /* control, format, private use, unassigned: dropped by clean_text */
    MC_UNICODE_SPACE = 2, /* white space, ends words */
    MC_UNICODE_PUNCT = 4, /* punctuation, a word of its own */
    MC_UNICODE_CJK = 8,   /* a Chinese character, a word of its own where asked for */
    MC_UNICODE_MARK = 16, /* a nonspacing mark: an accent to strip */
    MC_UNICODE_DECOMPOSES = 32,
    MC_UNICODE_LOWERS = 64,    /* lowercasing changes it */
    MC_UNICODE_WORD = 128,     /* a letter, digit or the like: what \w matches */
    MC_UNICODE_COMBINES = 256, /* has a combining class other than 0 */
    MC_UNICODE_LETTER = 512,   /* \p{L}, \p{N} and \s to GPT-2's word cutter */
    MC_UNICODE_NUMBER = 1024,
    MC_UNICODE_WHITE = 2048,
    MC_UNICODE_CAPITALS = 4096,  /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] to o200k's word cutter */
    MC_UNICODE_SMALLS = 8192,    /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
    MC_UNICODE_COMPOSED = 16384, /* NFC leaves it alone and joins it with none before it */
    MC_UNICODE_COMPAT = 32768,   /* NFKD makes something else of it than NFD */
    MC_UNICODE_BLOCK = 128,
    MC_UNICODE_LAST = 0x10FFFF,
    MC_UNICODE_REPLACEMENT = 0xFFFD
};

typedef struct mc_unicode_record {
    uint16_t flags;
    uint8_t combining; /* canonical combining class */
} mc_unicode_record;

/* A code point and the sequence that replaces it, padded with zeros. */
typedef struct mc_unicode_mapping {
    uint32_t code, to[4];
} mc_unicode_mapping;

extern const mc_unicode_record mc_unicode_records[];
extern const uint16_t mc_unicode_index[];
extern const uint8_t mc_unicode_blocks[][MC_UNICODE_BLOCK];
extern const size_t mc_unicode_decompositions_count, mc_unicode_lower_count;
extern const mc_unicode_mapping mc_unicode_decompositions[],
    mc_unicode_lower[]; /* sorted by code */

/* `c` must be at most MC_UNICODE_LAST. */
static inline mc_unicode_record mc_unicode_get(uint32_t c)
{
    uint16_t block = mc_unicode_index[c / MC_UNICODE_BLOCK];
    return mc_unicode_records[mc_unicode_blocks[block][c % MC_UNICODE_BLOCK]];
}

/* The full canonical decomposition (not reordered) of `c`, or `c` itself; returns its length. */
int mc_unicode_decompose(uint32_t c, uint32_t out[4]);
/* The lower case of `c`, without regard to what stands beside it; returns its length. */
int mc_unicode_to_lower(uint32_t c, uint32_t out[4]);

/* Reads one code point at p < end and returns how many bytes it took (1 to 4). Bytes that are no
 * UTF-8 give U+FFFD, once for each longest piece that could have begun a code point. */
size_t mc_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *c);
/* The code point that ends at `end` (start < end). */
uint32_t mc_utf8_decode_last(const uint8_t *start, const uint8_t *end);
size_t mc_utf8_encode(uint32_t c, uint8_t out[4]);
/* The first byte that is no UTF-8, or NULL. */
const uint8_t *mc_utf8_find_invalid(const uint8_t *p, const uint8_t *end);
/* The length of a text in UTF-8 without the white space at its end. */
size_t mc_length_without_space(const char *text, size_t length);

#endif
