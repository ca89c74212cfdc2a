/* SentencePiece's table of how characters are normalised ("precompiled_charsmap"): a double array
 * from byte strings to places in a text of their normal forms, each with a NUL after it.
 *
 * The bytes are a 32-bit size, that many bytes of 32-bit units (little-endian), and the text. A
 * unit holds its label in bits 0 to 7 and 31 (a leaf has bit 31 set and a value instead), in bit 8
 * whether a leaf hangs on it, and in the bits from 9 on the offset to its children, which lie at
 * (index ^ offset ^ label). Format: Darts-clone, github.com/s-yata/darts-clone. */
#ifndef MC_TOKENIZERS_CHARSMAP_INTERNAL_H
#define MC_TOKENIZERS_CHARSMAP_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"

typedef struct mc_charsmap {
    uint32_t *units; /* heap, (unit_count); NULL: nothing is changed */
    size_t unit_count;
    char *forms; /* heap, (forms_size), a NUL last */
    size_t forms_size;
} mc_charsmap;

/* Reads and checks the table, so that no walk through it leaves it. `name` is what errors call
 * it. */
mc_status mc_charsmap_init(mc_error *err, mc_charsmap *map, const char *name, const uint8_t *bytes,
                           size_t size);
/* The same from base64, as a tokenizer.json has it. */
mc_status mc_charsmap_init_base64(mc_error *err, mc_charsmap *map, const char *name,
                                  const char *text);
void mc_charsmap_release(mc_charsmap *map);

/* The normal form of the longest (or of the shortest) key that `text` begins with: a string of the
 * table, whose length in `text` goes to *matched. NULL where no key fits. */
const char *mc_charsmap_longest(const mc_charsmap *map, const uint8_t *text, size_t size,
                                size_t *matched);
const char *mc_charsmap_shortest(const mc_charsmap *map, const uint8_t *text, size_t size,
                                 size_t *matched);

/* What the table does to an ASCII byte that no byte past ASCII follows: its normal form ("" where
 * it is dropped), NULL where longer keys begin with it and ASCII. `own` (2 bytes) holds the result
 * where the byte is its own normal form. */
const char *mc_charsmap_ascii(const mc_charsmap *map, uint8_t byte, char own[2]);
/* Whether a key holds an ASCII byte that `mark` names after its first byte. */
bool mc_charsmap_holds_inside(const mc_charsmap *map, const bool mark[128], bool *out);

#endif
