#include "core/base/number_internal.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 511 }; /* characters of a number */

bool mc_number_parse(const char *text, double *number)
{
    const char *point = localeconv()->decimal_point, *dot = strchr(text, '.');
    size_t size = strlen(text), before = dot ? (size_t)(dot - text) : size;
    char local[LONGEST + 16], *end;
    if (!size || size > LONGEST || text[strspn(text, "0123456789+-.eE")]) return false;
    snprintf(local, sizeof local, "%.*s%s%s", (int)before, text, dot ? point : "",
             dot ? dot + 1 : "");
    double value = strtod(local, &end);
    if (end == local || *end || !isfinite(value)) return false;
    *number = value;
    return true;
}

const char *mc_number_print(char text[MC_NUMBER_ROOM], int digits, double number)
{
    const char *point = localeconv()->decimal_point;
    snprintf(text, MC_NUMBER_ROOM, "%.*g", digits, number);
    char *at = strcmp(point, ".") != 0 ? strstr(text, point) : NULL;
    if (!at) return text;
    memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    *at = '.';
    return text;
}

const char *mc_number_print_float(char text[MC_NUMBER_ROOM], int least, float number)
{
    double again;
    for (int digits = least; digits <= 9; digits++) {
        mc_number_print(text, digits, (double)number);
        if (mc_number_parse(text, &again) && (float)again == number) break;
    }
    return text;
}
