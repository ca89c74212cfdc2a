/* Numbers as text in files and variables, which look the same whatever the program's locale: a
 * decimal point, no separators. printf and strtod follow LC_NUMERIC, which a program may set. */
#ifndef MC_BASE_NUMBER_INTERNAL_H
#define MC_BASE_NUMBER_INTERNAL_H

#include <stdbool.h>

enum { MC_NUMBER_ROOM = 48 }; /* for a text of up to 17 digits, in any locale */

/* Reads the whole text as a finite decimal number, such as "-1.5e3". False for anything else, also
 * for what strtod alone would take: spaces before it, hexadecimal, "inf", "nan". */
bool mc_number_parse(const char *text, double *number);
/* Writes a number with up to `digits` digits, as "%.*g" does. Returns `text`. */
const char *mc_number_print(char text[MC_NUMBER_ROOM], int digits, double number);
/* Writes the shortest text, of `least` digits or more, that is read as this float again. Returns
 * `text`. */
const char *mc_number_print_float(char text[MC_NUMBER_ROOM], int least, float number);

#endif
