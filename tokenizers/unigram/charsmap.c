#include "tokenizers/unigram/charsmap_internal.h"

#include <string.h>
#include "core/base/memory_internal.h"

enum { BLOCK = 256, UNIT = 4 };

static uint32_t load_unit(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t label_of(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
static bool is_leaf(uint32_t unit) { return unit >> 31; }
static bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
static uint32_t value_of(uint32_t unit) { return unit & ~(1u << 31); }
/* Bit 9 says that the offset counts blocks. */
static uint32_t offset_of(uint32_t unit) { return unit >> 10 << (unit >> 9 & 1) * 8; }

static mc_status bad_map(mc_error *err, const char *name, const char *what)
{
    return mc_error_set(err, MC_ERR_FORMAT, "%s: precompiled_charsmap: %s", name, what);
}

/* Whether every step from every unit stays in the table, and every value in the forms. */
static bool is_sound(const mc_charsmap *map)
{
    for (size_t i = 0; i < map->unit_count; i++) {
        uint32_t unit = map->units[i];
        if (is_leaf(unit)) {
            if (value_of(unit) >= map->forms_size || i == 0) return false;
            continue;
        }
        size_t children = i ^ offset_of(unit);
        if ((children | 0xFF) >= map->unit_count) return false;
        if (has_leaf(unit) && !is_leaf(map->units[children])) return false;
    }
    return label_of(map->units[0]) == 0 && !has_leaf(map->units[0]);
}

mc_status mc_charsmap_init(mc_error *err, mc_charsmap *map, const char *name, const uint8_t *bytes,
                           size_t size)
{
    *map = (mc_charsmap){0};
    if (size < UNIT) return bad_map(err, name, "shorter than the size it begins with");
    size_t units_size = load_unit(bytes);
    if (units_size >= size - UNIT)
        return bad_map(err, name, "its double array reaches past its end");
    if (units_size < BLOCK * UNIT || units_size % (BLOCK * UNIT))
        return bad_map(err, name, "the size of its double array is no multiple of 1024");
    if (bytes[size - 1] != 0) return bad_map(err, name, "it does not end with a NUL");
    map->unit_count = units_size / UNIT;
    map->forms_size = size - UNIT - units_size;
    map->units = mc_calloc(map->unit_count, sizeof *map->units);
    map->forms = mc_malloc(map->forms_size);
    if (!map->units || !map->forms)
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the normalizer", name);
    for (size_t i = 0; i < map->unit_count; i++) map->units[i] = load_unit(bytes + UNIT + UNIT * i);
    memcpy(map->forms, bytes + UNIT + units_size, map->forms_size);
    return is_sound(map) ? MC_OK
                         : bad_map(err, name, "its double array points to places outside of it");
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

mc_status mc_charsmap_init_base64(mc_error *err, mc_charsmap *map, const char *name,
                                  const char *text)
{
    size_t length = strlen(text), size = 0;
    uint32_t bits = 0;
    int held = 0;
    *map = (mc_charsmap){0};
    while (length && text[length - 1] == '=') length--;
    uint8_t *bytes = mc_malloc(length);
    if (!bytes) return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", name);
    for (size_t i = 0; i < length; i++) {
        int digit = base64_digit(text[i]);
        if (digit < 0) {
            mc_free(bytes);
            return bad_map(err, name, "it is no base64");
        }
        bits = bits << 6 | (uint32_t)digit;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        bytes[size++] = (uint8_t)(bits >> held);
    }
    mc_status status = mc_charsmap_init(err, map, name, bytes, size);
    mc_free(bytes);
    return status;
}

void mc_charsmap_release(mc_charsmap *map)
{
    mc_free(map->units);
    mc_free(map->forms);
    *map = (mc_charsmap){0};
}

/* The form of a key that `text` begins with, the longest or the first that is met. */
static inline const char *match(const mc_charsmap *map, const uint8_t *text, size_t size,
                                bool longest, size_t *matched)
{
    const char *found = NULL;
    if (!map->units) return NULL;
    size_t at = offset_of(map->units[0]);
    for (size_t i = 0; i < size && text[i]; i++) {
        at ^= text[i];
        uint32_t unit = map->units[at];
        if (label_of(unit) != text[i]) break;
        at ^= offset_of(unit);
        if (!has_leaf(unit)) continue;
        found = map->forms + value_of(map->units[at]);
        *matched = i + 1;
        if (!longest) break;
    }
    return found;
}

const char *mc_charsmap_longest(const mc_charsmap *map, const uint8_t *text, size_t size,
                                size_t *matched)
{
    return match(map, text, size, true, matched);
}

const char *mc_charsmap_shortest(const mc_charsmap *map, const uint8_t *text, size_t size,
                                 size_t *matched)
{
    return match(map, text, size, false, matched);
}

const char *mc_charsmap_ascii(const mc_charsmap *map, uint8_t byte, char own[2])
{
    size_t matched;
    own[0] = (char)byte;
    own[1] = 0;
    if (!map->units) return own;
    size_t at = offset_of(map->units[0]) ^ byte;
    uint32_t unit = map->units[at];
    if (!byte || label_of(unit) != byte) return own;
    at ^= offset_of(unit);
    for (uint32_t c = 1; c < 128; c++)
        if (label_of(map->units[at ^ c]) == c) return NULL;
    const char *form = match(map, &byte, 1, true, &matched);
    return form ? form : own;
}

/* Goes through all units that the root leads to. */
bool mc_charsmap_holds_inside(const mc_charsmap *map, const bool mark[128], bool *out)
{
    *out = false;
    if (!map->units) return true;
    bool *seen = mc_calloc(map->unit_count, sizeof *seen);
    uint32_t *stack = mc_calloc(map->unit_count, sizeof *stack);
    size_t count = 0;
    if (seen && stack) stack[count++] = 0;
    while (count) {
        size_t from = stack[--count], children = from ^ offset_of(map->units[from]);
        for (uint32_t c = 1; c < 256; c++) {
            size_t child = children ^ c;
            if (label_of(map->units[child]) != c) continue;
            if (from && c < 128 && mark[c]) *out = true;
            if (!seen[child]) stack[count++] = (uint32_t)child;
            seen[child] = true;
        }
    }
    bool ok = seen && stack;
    mc_free(seen);
    mc_free(stack);
    return ok;
}
