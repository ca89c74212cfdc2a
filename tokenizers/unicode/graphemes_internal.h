/* Where one character, as its reader sees it, ends: Unicode's extended grapheme clusters (UAX 29),
 * as the tables of Hugging Face's tokenizers have them (see generate_grapheme_data.py). */
#ifndef MC_TOKENIZERS_GRAPHEMES_INTERNAL_H
#define MC_TOKENIZERS_GRAPHEMES_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

enum {
    MC_GRAPHEME_EXTENDS = 1,  /* joins what stands before it */
    MC_GRAPHEME_PREPENDS = 2, /* joins what stands after it */
    MC_GRAPHEME_CONTROL = 4,  /* stands alone */
    MC_GRAPHEME_PICTURE = 8,  /* an emoji */
    MC_GRAPHEME_CONSONANT = 16,
    MC_GRAPHEME_LINKS = 32,       /* joins two consonants */
    MC_GRAPHEME_IN_CONJUNCT = 64, /* may stand between them, beside the link */
    MC_GRAPHEME_EXTEND = 128      /* may stand between an emoji and a joiner */
};

/* Code points past ASCII that have flags, in order. */
typedef struct mc_grapheme_range {
    uint32_t first, last, flags;
} mc_grapheme_range;

extern const mc_grapheme_range mc_grapheme_ranges[];
extern const size_t mc_grapheme_range_count;

/* The size of the cluster at the start of a text of valid UTF-8 and of at least one byte. */
size_t mc_grapheme_size(const uint8_t *text, size_t size);

#endif
