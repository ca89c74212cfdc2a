/* The bytes of a table's file as UTF-8: UTF-16 is turned into it, where the file begins with the
 * byte order mark of one. */
#include <string.h>
#include "datasets/table/table_internal.h"

static size_t read_memory(mc_table *t, void *to, size_t room)
{
    size_t size = t->memory_size < room ? t->memory_size : room;
    if (size) memcpy(to, t->memory, size);
    t->memory += size;
    t->memory_size -= size;
    return size;
}

static size_t read_bytes(mc_table *t, void *to, size_t room)
{
    return t->is_open ? mc_file_read_next(&t->reader, to, room) : read_memory(t, to, room);
}

static void find_encoding(mc_table *t)
{
    t->raw_end = read_bytes(t, t->raw, 2);
    bool both = t->raw_end == 2;
    t->encoding = both && t->raw[0] == 0xFF && t->raw[1] == 0xFE   ? MC_TEXT_UTF16_LE
                  : both && t->raw[0] == 0xFE && t->raw[1] == 0xFF ? MC_TEXT_UTF16_BE
                                                                   : MC_TEXT_UTF8;
    t->raw_at = t->encoding == MC_TEXT_UTF8 ? 0 : 2;
}

/* Whether `size` more bytes are in `raw`, after reading on if need be. */
static bool have(mc_table *t, size_t size)
{
    if (t->raw_end - t->raw_at >= size) return true;
    memmove(t->raw, t->raw + t->raw_at, t->raw_end - t->raw_at);
    t->raw_end -= t->raw_at;
    t->raw_at = 0;
    t->raw_end += read_bytes(t, t->raw + t->raw_end, sizeof t->raw - t->raw_end);
    return t->raw_end >= size;
}

static uint32_t unit_at(const mc_table *t, size_t at)
{
    uint32_t a = t->raw[at], b = t->raw[at + 1];
    return t->encoding == MC_TEXT_UTF16_LE ? a | b << 8 : a << 8 | b;
}

/* The next character; what is none becomes half a surrogate pair, which is no UTF-8 and so gets an
 * error with its place. */
static uint32_t next_character(mc_table *t)
{
    if (!have(t, 2)) {
        t->raw_at = t->raw_end;
        return 0xD800;
    }
    uint32_t first = unit_at(t, t->raw_at);
    t->raw_at += 2;
    if (first < 0xD800 || first > 0xDBFF || !have(t, 2)) return first;
    uint32_t second = unit_at(t, t->raw_at);
    if (second < 0xDC00 || second > 0xDFFF) return first;
    t->raw_at += 2;
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
}

static size_t put_utf8(char *to, uint32_t c)
{
    static const uint32_t first[] = {0, 0xC0, 0xE0, 0xF0};
    size_t more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    to[0] = (char)(first[more] | c >> (6 * more));
    for (size_t i = 1; i <= more; i++) to[i] = (char)(0x80 | (c >> (6 * (more - i)) & 0x3F));
    return more + 1;
}

size_t mc_table_read_text(mc_table *t, char *to, size_t room)
{
    size_t used = 0;
    if (t->encoding == MC_TEXT_UNKNOWN) find_encoding(t);
    if (t->encoding == MC_TEXT_UTF8) { /* `raw` has the first bytes, once */
        for (; t->raw_at < t->raw_end && used < room; used++) to[used] = (char)t->raw[t->raw_at++];
        return used + read_bytes(t, to + used, room - used);
    }
    while (room - used >= 4 && have(t, 1)) used += put_utf8(to + used, next_character(t));
    return used;
}
