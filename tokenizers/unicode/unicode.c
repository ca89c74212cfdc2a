#include "tokenizers/unicode/unicode_internal.h"

enum { HANGUL_FIRST = 0xAC00, HANGUL_COUNT = 11172, HANGUL_VOWELS = 21, HANGUL_TAILS = 28 };

/* Hangul syllables are numbered lead by vowel by tail, so they decompose by division. */
static int decompose_hangul(uint32_t number, uint32_t out[4])
{
    uint32_t tail = number % HANGUL_TAILS;
    out[0] = 0x1100 + number / (HANGUL_VOWELS * HANGUL_TAILS);
    out[1] = 0x1161 + number / HANGUL_TAILS % HANGUL_VOWELS;
    out[2] = 0x11A7 + tail;
    return tail ? 3 : 2;
}

static int map_code(const mc_unicode_mapping *map, size_t count, uint32_t c, uint32_t out[4])
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (map[middle].code < c)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == count || map[low].code != c) {
        out[0] = c;
        return 1;
    }
    int length = 0;
    for (; length < 4 && map[low].to[length]; length++) out[length] = map[low].to[length];
    return length;
}

int mc_unicode_decompose(uint32_t c, uint32_t out[4])
{
    if (c - HANGUL_FIRST < HANGUL_COUNT) return decompose_hangul(c - HANGUL_FIRST, out);
    return map_code(mc_unicode_decompositions, mc_unicode_decompositions_count, c, out);
}

int mc_unicode_to_lower(uint32_t c, uint32_t out[4])
{
    return map_code(mc_unicode_lower, mc_unicode_lower_count, c, out);
}

/* What a lead byte promises: the number of bytes that follow, and the range of the first of them,
 * which rules out overlong forms, surrogates and codes past U+10FFFF. */
static int lead_byte(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    *high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) return 1;
    if (lead >= 0xE0 && lead <= 0xEF) return 2;
    if (lead >= 0xF0 && lead <= 0xF4) return 3;
    return -1;
}

size_t mc_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *c)
{
    uint8_t low, high;
    if (*p < 0x80) {
        *c = *p;
        return 1;
    }
    *c = MC_UNICODE_REPLACEMENT;
    int more = lead_byte(*p, &low, &high);
    if (more < 0) return 1;
    uint32_t code = *p & (0x3Fu >> more);
    for (int i = 1; i <= more; i++) {
        if (p + i == end || p[i] < low || p[i] > high) return (size_t)i;
        code = code << 6 | (p[i] & 0x3F);
        low = 0x80, high = 0xBF;
    }
    *c = code;
    return (size_t)more + 1;
}

uint32_t mc_utf8_decode_last(const uint8_t *start, const uint8_t *end)
{
    for (size_t back = 1; back <= 4 && back <= (size_t)(end - start); back++) {
        uint32_t c;
        if ((end[-(ptrdiff_t)back] & 0xC0) == 0x80) continue;
        return mc_utf8_decode(end - back, end, &c) == back ? c : MC_UNICODE_REPLACEMENT;
    }
    return MC_UNICODE_REPLACEMENT;
}

size_t mc_utf8_encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t leads[] = {0, 0xC0, 0xE0, 0xF0};
    for (size_t i = more; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (uint8_t)(leads[more] | c);
    return more + 1;
}

const uint8_t *mc_utf8_find_invalid(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint32_t c;
        size_t length = mc_utf8_decode(p, end, &c);
        /* U+FFFD itself is valid, and the only one that comes with all of its three bytes */
        if (c == MC_UNICODE_REPLACEMENT && !(length == 3 && p[0] == 0xEF && p[2] == 0xBD)) return p;
        p += length;
    }
    return NULL;
}

size_t mc_length_without_space(const char *text, size_t length)
{
    const uint8_t *start = (const uint8_t *)text;
    while (length) {
        uint8_t bytes[4];
        uint32_t c = mc_utf8_decode_last(start, start + length);
        if (!(mc_unicode_get(c).flags & MC_UNICODE_WHITE)) break;
        length -= mc_utf8_encode(c, bytes);
    }
    return length;
}
