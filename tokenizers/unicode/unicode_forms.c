/* A run is a character that combines with none before it (a starter) and the marks after it. Marks
 * are put into the order of their classes, and composed with the starter one after the other.
 *
 * Most texts are in the form already. A character is stable if the form leaves it alone and joins
 * it with none before it. Of several in a row all but the last, which marks may follow, are copied
 * as they are. */
#include "tokenizers/unicode/unicode_forms_internal.h"

#include <string.h>
#include "tokenizers/unicode/unicode_internal.h"

enum {
    LEAD_FIRST = 0x1100,
    LEADS = 19,
    VOWEL_FIRST = 0x1161,
    VOWELS = 21,
    TAIL_BEFORE = 0x11A7,
    TAILS = 28,
    SYLLABLE_FIRST = 0xAC00,
    SYLLABLES = 11172
};

typedef struct run {
    bool composes, compat, unsorted;
    uint16_t mask, stable; /* flags & mask == stable: a stable character */
    uint8_t class;         /* of the last mark */
    mc_bytes *codes;       /* uint32_t: the run */
    mc_bytes *out;
} run;

bool mc_unicode_form_named(const char *name, mc_unicode_form *form)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *form = (mc_unicode_form)i;
        return true;
    }
    return false;
}

static uint8_t class_of(uint32_t c) { return mc_unicode_get(c).combining; }

static uint32_t *codes_of(const run *r) { return (uint32_t *)(void *)r->codes->data; }

static size_t count_of(const run *r) { return r->codes->count / sizeof(uint32_t); }

/* The one character that two become, 0: none. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    size_t low = 0, high = mc_unicode_pairs_count;
    if (first - LEAD_FIRST < LEADS && second - VOWEL_FIRST < VOWELS)
        return SYLLABLE_FIRST +
               ((first - LEAD_FIRST) * VOWELS + (second - VOWEL_FIRST)) * (uint32_t)TAILS;
    if (first - SYLLABLE_FIRST < SYLLABLES && (first - SYLLABLE_FIRST) % TAILS == 0 &&
        second > TAIL_BEFORE && second < TAIL_BEFORE + TAILS)
        return first + (second - TAIL_BEFORE);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const mc_unicode_pair *pair = &mc_unicode_pairs[middle];
        if (pair->first == first && pair->second == second) return pair->composed;
        if (pair->first < first || (pair->first == first && pair->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Sorts the marks, of equal classes in their order: one pass for each class that occurs. */
static bool sort_marks(run *r)
{
    size_t count = count_of(r), at = 0;
    bool present[256] = {false};
    if (!mc_bytes_reserve(r->codes, r->codes->count)) return false;
    uint32_t *codes = codes_of(r), *copy = codes + count;
    memcpy(copy, codes, count * sizeof *codes);
    for (size_t i = 0; i < count; i++) present[class_of(copy[i])] = true;
    for (int class = 0; class < 256; class ++)
        for (size_t i = 0; present[class] && i < count; i++)
            if (class_of(copy[i]) == class) codes[at++] = copy[i];
    return true;
}

/* Composes the starter with each mark that no mark of its class or a higher one keeps from it. */
static void compose_marks(run *r)
{
    uint32_t *codes = codes_of(r);
    size_t count = count_of(r), kept = 1;
    int last = 0;
    if (!count || class_of(codes[0])) return;
    for (size_t i = 1; i < count; i++) {
        int class = class_of(codes[i]);
        uint32_t both = kept == 1 || last < class ? compose(codes[0], codes[i]) : 0;
        if (both) {
            codes[0] = both;
            continue;
        }
        last = class;
        codes[kept++] = codes[i];
    }
    r->codes->count = kept * sizeof *codes;
}

static bool finish_run(run *r)
{
    if (r->unsorted && !sort_marks(r)) return false;
    if (r->composes) compose_marks(r);
    r->unsorted = false;
    r->class = 0;
    return true;
}

static bool write_run(run *r)
{
    if (!finish_run(r) || !mc_bytes_reserve(r->out, r->codes->count)) return false;
    for (size_t i = 0; i < count_of(r); i++)
        r->out->count += mc_utf8_encode(codes_of(r)[i], r->out->data + r->out->count);
    r->codes->count = 0;
    return true;
}

/* One character of a decomposition. */
static bool put(run *r, uint32_t c)
{
    uint8_t class = class_of(c);
    if (!class && r->codes->count) {
        if (!finish_run(r)) return false;
        uint32_t both = r->composes && count_of(r) == 1 ? compose(codes_of(r)[0], c) : 0;
        if (both) {
            codes_of(r)[0] = both;
            return true;
        }
        if (!write_run(r)) return false;
    }
    if (class < r->class) r->unsorted = true;
    r->class = class;
    return mc_bytes_append(r->codes, &c, sizeof c);
}

static bool put_compat(run *r, uint32_t c)
{
    size_t low = 0, high = mc_unicode_compat_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (mc_unicode_compat[middle] < c)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = mc_unicode_compat_starts[low]; i < mc_unicode_compat_starts[low + 1]; i++)
        if (!put(r, mc_unicode_compat_pool[i])) return false;
    return true;
}

static bool put_decomposed(run *r, uint32_t c)
{
    uint32_t canonical[4];
    uint16_t flags = mc_unicode_get(c).flags;
    if (r->compat && flags & MC_UNICODE_COMPAT) return put_compat(r, c);
    if (!(flags & MC_UNICODE_DECOMPOSES)) return put(r, c);
    int count = mc_unicode_decompose(c, canonical);
    for (int i = 0; i < count; i++)
        if (!put(r, canonical[i])) return false;
    return true;
}

/* The end of the stable characters at `text`: before the last of them, unless the text ends. */
static const uint8_t *skip_stable(const run *r, const uint8_t *text, const uint8_t *end)
{
    const uint8_t *last = text;
    while (text < end) {
        uint32_t c = *text;
        size_t length = c < 0x80 ? 1 : mc_utf8_decode(text, end, &c);
        if (c == MC_UNICODE_REPLACEMENT || (mc_unicode_get(c).flags & r->mask) != r->stable)
            return last;
        last = text;
        text += length;
    }
    return end;
}

static run begin_run(mc_unicode_form form, mc_bytes *out, mc_bytes *codes)
{
    run r = {.composes = form == MC_NFC || form == MC_NFKC,
             .compat = form == MC_NFKC || form == MC_NFKD,
             .codes = codes,
             .out = out};
    r.stable = r.composes ? MC_UNICODE_COMPOSED : 0;
    r.mask = r.composes ? MC_UNICODE_COMPOSED : MC_UNICODE_DECOMPOSES | MC_UNICODE_COMBINES;
    if (r.compat) r.mask |= MC_UNICODE_COMPAT;
    codes->count = 0;
    return r;
}

/* Puts one character, or bytes that are none, which stay; returns their length, 0 when memory is
 * out. */
static size_t put_next(run *r, const uint8_t *text, const uint8_t *end)
{
    uint32_t c;
    size_t length = mc_utf8_decode(text, end, &c);
    bool valid = c != MC_UNICODE_REPLACEMENT || !mc_utf8_find_invalid(text, text + length);
    bool good =
        valid ? put_decomposed(r, c) : write_run(r) && mc_bytes_append(r->out, text, length);
    return good ? length : 0;
}

bool mc_unicode_apply_form(mc_unicode_form form, const uint8_t *text, size_t size, mc_bytes *out,
                           mc_bytes *spare)
{
    run r = begin_run(form, out, spare);
    const uint8_t *end = text + size;
    while (text < end) {
        size_t length = (size_t)(skip_stable(&r, text, end) - text);
        if (length && (!write_run(&r) || !mc_bytes_append(out, text, length))) return false;
        if (!length) length = put_next(&r, text, end);
        if (!length) return false;
        text += length;
    }
    return write_run(&r);
}
