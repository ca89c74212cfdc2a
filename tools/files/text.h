/* Text of bounded length, and numbers to and from text without loss.
 *
 * A `text` writes into a buffer of the caller's: nothing is allocated, and what doesn't fit is cut
 * and remembered in `cut`.
 *
 *     char line[256];
 *     text t = text_into(line, sizeof line);
 *     text_add(&t, "step %d", 12);
 */
#ifndef MC_TOOLS_TEXT_H
#define MC_TOOLS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/status.h"

typedef struct text {
    char *data;  /* always ends in NUL */
    size_t room; /* bytes at data, the NUL included; at least 1 */
    size_t used; /* without the NUL */
    bool cut;    /* something didn't fit */
} text;

text text_into(char *data, size_t room);
void text_add(text *t, const char *format, ...) MC_PRINTF(2, 3);
/* Adds `string`, or `size` bytes that may hold NULs, as a JSON string, quotes included: at most six
 * characters a byte. */
void text_add_json_string(text *t, const char *string);
void text_add_json_bytes(text *t, const char *bytes, size_t size);
/* Adds `size` bytes as they are, and as a field of CSV: in quotes where it has to be, at most two
 * characters a byte and two. */
void text_add_bytes(text *t, const char *bytes, size_t size);
void text_add_csv_bytes(text *t, const char *bytes, size_t size);
/* Adds the shortest decimal that reads back as the same value. A value that a float holds exactly
 * is written as a float (5e-05, not 4.999999873689376e-05). Not finite: nan, inf, -inf. */
void text_add_number(text *t, double value);
/* As text_add_number; what JSON has no number for becomes null. */
void text_add_json_number(text *t, double value);

/* Reads the whole of `string`, decimal only: no spaces, no hexadecimal, no inf or nan, nothing
 * after it, and not beyond what the type holds. False, with *out as it was, otherwise. */
bool text_parse_whole(const char *string, int64_t *out);
bool text_parse_real(const char *string, double *out);
/* Bytes from 1 up: a whole number, or a number with KB, MB, GB or TB (powers of 1000), such as
 * "1.5GB". */
bool text_parse_bytes(const char *string, int64_t *out);

/* Returns the first name of a list such as "a,b,a" that is in it twice, and its length in *length.
 * NULL: no name is. */
const char *text_named_twice(const char *list, size_t *length);

/* The number of insertions, deletions and substitutions that turn one string into the other, for
 * "did you mean". SIZE_MAX when either is longer than 63 bytes. */
size_t text_distance(const char *a, const char *b);
/* Whether a string at `distance` from the `typed` one is near enough to be suggested. */
bool text_is_near(const char *typed, size_t distance);

bool is_utf8(const char *bytes, size_t size);

#endif
