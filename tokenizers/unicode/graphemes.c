#include "tokenizers/unicode/graphemes_internal.h"

#include <stdbool.h>
#include "tokenizers/unicode/unicode_internal.h"

enum { JOINER = 0x200D, REGION_FIRST = 0x1F1E6, REGION_LAST = 0x1F1FF };

/* Letters of Hangul, of which a syllable is made. */
typedef enum hangul { NO_HANGUL = 0, LEAD, VOWEL, TAIL, LEAD_VOWEL, WHOLE } hangul;

static hangul hangul_of(uint32_t c)
{
    if ((c >= 0x1100 && c <= 0x115F) || (c >= 0xA960 && c <= 0xA97C)) return LEAD;
    if ((c >= 0x1160 && c <= 0x11A7) || (c >= 0xD7B0 && c <= 0xD7C6)) return VOWEL;
    if ((c >= 0x11A8 && c <= 0x11FF) || (c >= 0xD7CB && c <= 0xD7FB)) return TAIL;
    if (c >= 0xAC00 && c <= 0xD7A3) return (c - 0xAC00) % 28 ? WHOLE : LEAD_VOWEL;
    return NO_HANGUL;
}

static bool joins_hangul(hangul left, hangul right)
{
    if (left == LEAD) return right == LEAD || right == VOWEL || right >= LEAD_VOWEL;
    if (left == VOWEL || left == LEAD_VOWEL) return right == VOWEL || right == TAIL;
    return (left == TAIL || left == WHOLE) && right == TAIL;
}

static uint32_t flags_of(uint32_t c)
{
    if (c < 0x80) return c < ' ' || c == 0x7F ? MC_GRAPHEME_CONTROL : 0;
    size_t low = 0, high = mc_grapheme_range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (mc_grapheme_ranges[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == mc_grapheme_range_count || mc_grapheme_ranges[low].first > c) return 0;
    return mc_grapheme_ranges[low].flags;
}

/* What the code points of a cluster so far say about the next one. */
typedef struct state {
    uint32_t last, last_flags;
    int regions;   /* in a row */
    bool picture;  /* an emoji and what extends it */
    bool conjunct; /* a consonant and what may follow it in a conjunct */
    bool linked;   /* among it a link */
    bool joined;   /* an emoji, what extends it, and a joiner last */
} state;

static bool is_region(uint32_t c) { return c >= REGION_FIRST && c <= REGION_LAST; }

static bool continues(const state *s, uint32_t c, uint32_t flags)
{
    if (s->last == '\r' && c == '\n') return true;
    if ((s->last_flags | flags) & MC_GRAPHEME_CONTROL) return false;
    if (flags & MC_GRAPHEME_EXTENDS || s->last_flags & MC_GRAPHEME_PREPENDS) return true;
    if (joins_hangul(hangul_of(s->last), hangul_of(c))) return true;
    if (flags & MC_GRAPHEME_CONSONANT && s->linked) return true;
    if (flags & MC_GRAPHEME_PICTURE && s->joined) return true;
    return is_region(c) && s->regions % 2 == 1;
}

static void advance(state *s, uint32_t c, uint32_t flags)
{
    bool in_conjunct = flags & (MC_GRAPHEME_LINKS | MC_GRAPHEME_IN_CONJUNCT);
    s->joined = s->picture && c == JOINER;
    s->picture = flags & MC_GRAPHEME_PICTURE || (s->picture && flags & MC_GRAPHEME_EXTEND);
    s->linked = s->conjunct && in_conjunct && (s->linked || flags & MC_GRAPHEME_LINKS);
    s->conjunct = flags & MC_GRAPHEME_CONSONANT || (s->conjunct && in_conjunct);
    s->regions = is_region(c) ? s->regions + 1 : 0;
    s->last = c;
    s->last_flags = flags;
}

size_t mc_grapheme_size(const uint8_t *text, size_t size)
{
    const uint8_t *p = text, *end = text + size;
    state s = {0};
    uint32_t c;
    p += mc_utf8_decode(p, end, &c);
    advance(&s, c, flags_of(c));
    while (p < end) {
        size_t length = mc_utf8_decode(p, end, &c);
        uint32_t flags = flags_of(c);
        if (!continues(&s, c, flags)) break;
        advance(&s, c, flags);
        p += length;
    }
    return (size_t)(p - text);
}
