#include "tools/files/text.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LONGEST_COMPARED = 63 };

text text_into(char *data, size_t room)
{
    data[0] = '\0';
    return (text){.data = data, .room = room};
}

void text_add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t left = t->room - t->used;
    int length = vsnprintf(t->data + t->used, left, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= left) {
        t->cut = true;
        t->used = t->room - 1;
    } else {
        t->used += (size_t)length;
    }
}

void text_add_json_bytes(text *t, const char *bytes, size_t size)
{
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    text_add(t, "\"");
    for (size_t i = 0; i < size; i++) {
        const char *found = bytes[i] ? strchr(special, bytes[i]) : NULL;
        if (found)
            text_add(t, "\\%c", letters[found - special]);
        else if ((unsigned char)bytes[i] < 0x20)
            text_add(t, "\\u%04x", (unsigned char)bytes[i]);
        else
            text_add(t, "%c", bytes[i]);
    }
    text_add(t, "\"");
}

void text_add_bytes(text *t, const char *bytes, size_t size)
{
    size_t left = t->room - t->used - 1;
    if (size > left) t->cut = true;
    if (size > left) size = left;
    memcpy(t->data + t->used, bytes, size);
    t->used += size;
    t->data[t->used] = '\0';
}

void text_add_csv_bytes(text *t, const char *bytes, size_t size)
{
    bool plain = true;
    for (size_t i = 0; plain && i < size; i++) plain = !bytes[i] || !strchr(",\"\r\n", bytes[i]);
    if (plain) {
        text_add_bytes(t, bytes, size);
        return;
    }
    text_add_bytes(t, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '"') text_add_bytes(t, "\"", 1);
        text_add_bytes(t, bytes + i, 1);
    }
    text_add_bytes(t, "\"", 1);
}

void text_add_json_string(text *t, const char *string)
{
    text_add_json_bytes(t, string, strlen(string));
}

static bool reads_back(const char *string, double value, bool as_float)
{
    return as_float ? strtof(string, NULL) == (float)value : strtod(string, NULL) == value;
}

void text_add_number(text *t, double value)
{
    char string[40] = "nan";
    bool as_float = fabs(value) <= FLT_MAX && (double)(float)value == value;
    if (fabs(value) < 1e15 && value == floor(value)) { /* 100, not 1e+02 */
        text_add(t, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(string, sizeof string, "%.*g", digits, value);
        if (isnan(value) || reads_back(string, value, as_float)) break;
    }
    text_add(t, "%s", isnan(value) ? "nan" : string);
}

void text_add_json_number(text *t, double value)
{
    if (isfinite(value))
        text_add_number(t, value);
    else
        text_add(t, "null");
}

bool text_parse_whole(const char *string, int64_t *out)
{
    const char *digits = string + (*string == '-' || *string == '+');
    if (!*digits || digits[strspn(digits, "0123456789")]) return false;
    errno = 0;
    long long value = strtoll(string, NULL, 10);
    if (errno) return false;
    *out = value;
    return true;
}

/* What a unit stands for, 0 for none. */
static double unit_bytes(const char *unit)
{
    static const char *const units[] = {"KB", "MB", "GB", "TB"};
    double bytes = 1e3;
    for (int i = 0; i < 4; i++, bytes *= 1e3)
        if (strcasecmp(unit, units[i]) == 0) return bytes;
    return 0;
}

bool text_parse_bytes(const char *string, int64_t *out)
{
    char number[64];
    size_t length = strlen(string);
    double unit = length > 2 ? unit_bytes(string + length - 2) : 0, value;
    int64_t whole = 0;
    if (!unit) {
        if (!text_parse_whole(string, &whole) || whole < 1) return false;
        *out = whole;
        return true;
    }
    if (length - 2 >= sizeof number) return false;
    snprintf(number, sizeof number, "%.*s", (int)(length - 2), string);
    if (!text_parse_real(number, &value) || value * unit < 1 || value * unit > 9e18) return false;
    *out = (int64_t)(value * unit);
    return true;
}

bool text_parse_real(const char *string, double *out)
{
    /* strtod alone would also take spaces, hexadecimal, "inf" and "nan" */
    if (!*string || string[strspn(string, "0123456789+-.eE")]) return false;
    char *end;
    errno = 0;
    double value = strtod(string, &end);
    if (end == string || *end || errno || !isfinite(value)) return false;
    *out = value;
    return true;
}

const char *text_named_twice(const char *list, size_t *length)
{
    for (const char *name = list; *name; name += *length, name += *name == ',') {
        *length = strcspn(name, ",");
        for (const char *other = name + *length; *other; other += strcspn(other, ","))
            if (strcspn(++other, ",") == *length && memcmp(other, name, *length) == 0) return name;
    }
    return NULL;
}

size_t text_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[LONGEST_COMPARED + 1];
    if (n > LONGEST_COMPARED || m > LONGEST_COMPARED) return SIZE_MAX;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0]; /* distance of a[0 .. i-1) and b[0 .. j-1) */
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

bool text_is_near(const char *typed, size_t distance)
{
    size_t length = strlen(typed);
    return distance <= 1 + length / 4 && distance < length;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* How many bytes the character that begins with this byte has; 0: none does. */
static int character_length(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return 2;
    if (first >= 0xe0 && first < 0xf0) return 3;
    return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

/* Whether `next` may stand at place `at` of a character that begins with `first`. */
static bool continues_character(unsigned char first, int at, unsigned char next)
{
    if (at == 1 && first == 0xe0 && next < 0xa0) return false; /* could be shorter */
    if (at == 1 && first == 0xed && next > 0x9f) return false; /* a surrogate */
    if (at == 1 && first == 0xf0 && next < 0x90) return false;
    if (at == 1 && first == 0xf4 && next > 0x8f) return false; /* beyond U+10FFFF */
    return (next & 0xc0) == 0x80;
}

bool is_utf8(const char *bytes, size_t size)
{
    for (size_t i = 0; i < size;) {
        unsigned char first = (unsigned char)bytes[i];
        size_t length = (size_t)character_length(first), at = 1;
        if (length == 0 || length > size - i) return false;
        while (at < length && continues_character(first, (int)at, (unsigned char)bytes[i + at]))
            at++;
        if (at < length) return false;
        i += length;
    }
    return true;
}
