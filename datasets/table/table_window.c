#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "datasets/table/table_internal.h"

enum { WINDOW = 1 << 18 };

/* Makes room after the last byte, and one more for a NUL: rows before the current one go. */
static bool make_room(mc_table *t)
{
    if (t->row > 0 && t->row >= t->capacity / 2) {
        memmove(t->window, t->window + t->row, t->end - t->row);
        t->end -= t->row;
        t->row = 0;
    }
    if (t->end + 4 < t->capacity) return true; /* a character */
    if (t->end - t->row > t->row_max) {
        bool open = t->open != SIZE_MAX;
        mc_table_fail_at(t, open ? t->open : 0,
                         open ? "a quote opens here, and the row then has over %zu bytes"
                              : "a row of over %zu bytes",
                         t->row_max);
        return false;
    }
    size_t capacity = t->capacity ? t->capacity * 2 : WINDOW;
    char *window = mc_realloc(t->window, capacity);
    if (!window) {
        mc_fail(t->ctx, MC_ERR_NOMEM, "%s:%lld: out of memory for the row", t->path,
                (long long)t->line);
        return false;
    }
    t->window = window;
    t->capacity = capacity;
    return true;
}

bool mc_table_more(mc_table *t)
{
    if (t->all_read || mc_failed(t->ctx) || !make_room(t)) return false;
    char *to = t->window + t->end;
    size_t room = t->capacity - 1 - t->end;
    size_t got = mc_table_read_text(t, to, room);
    t->end += got;
    t->all_read = got == 0;
    return got > 0;
}

bool mc_table_begin_row(mc_table *t)
{
    t->row += t->used;
    t->used = 0;
    t->open = SIZE_MAX;
    t->line = t->next_line;
    t->fields = t->decoded_used = 0;
    return mc_table_byte(t, 0) >= 0;
}

bool mc_table_find(mc_table *t, char wanted, size_t *at)
{
    for (;;) {
        size_t have = t->end - t->row;
        const char *from = t->window + t->row;
        const char *found = have > *at ? memchr(from + *at, wanted, have - *at) : NULL;
        *at = found ? (size_t)(found - from) : have;
        if (found) return true;
        if (!mc_table_more(t)) return false;
    }
}

/* Whether the next eight bytes are ASCII and none is NUL. */
static bool is_plain(const char *text)
{
    const uint64_t high = UINT64_C(0x8080808080808080), ones = UINT64_C(0x0101010101010101);
    uint64_t word;
    memcpy(&word, text, sizeof word);
    return !((word | (word - ones)) & high); /* of ASCII, NUL alone borrows into its high bit */
}

bool mc_table_check_text(mc_table *t)
{
    const char *row = t->window + t->row;
    for (size_t i = 0, length; i < t->used; i += length) {
        length = sizeof(uint64_t);
        if (t->used - i >= length && is_plain(row + i)) continue;
        length = mc_utf8_length(row + i, t->used - i);
        if (length && row[i]) continue;
        bool utf16 = t->encoding != MC_TEXT_UTF8;
        mc_table_fail_at(t, i,
                         length  ? "a NUL character"
                         : utf16 ? "half of a character of UTF-16"
                                 : "byte 0x%02X is no UTF-8",
                         (unsigned char)row[i]);
        return false;
    }
    return true;
}

mc_status mc_table_fail_at(mc_table *t, size_t at, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    int64_t line = t->line, column = 1;
    const char *row = t->window + t->row;
    for (size_t i = 0; i < at; i++) {
        if (row[i] == '\n') {
            line++;
            column = 1;
        } else {
            column += ((unsigned char)row[i] & 0xC0) != 0x80;
        }
    }
    return mc_fail(t->ctx, MC_ERR_FORMAT, "%s:%lld:%lld: %s", t->path, (long long)line,
                   (long long)column, what);
}
