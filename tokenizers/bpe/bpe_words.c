/* GPT-2's way to cut a text into words, and a cache of words whose ids are known.
 *
 * A word is, the first of these that fits: 's 't 're 've 'm 'll 'd; a run of letters, of numbers or
 * of other signs, with one space in front of it if there is one; white space up to the last of it
 * before something else; white space. */
#include <string.h>
#include "tokenizers/tokenizer_internal.h"
#include "tokenizers/bpe/word_key_internal.h"

enum { CACHED = MC_WORD_KEY_SIZE, CACHE_LAST = 1 << 16 };

typedef enum sign { LETTER = 0, NUMBER, WHITE, OTHER } sign;

static sign sign_of(uint32_t c)
{
    uint16_t flags = mc_unicode_get(c).flags;
    return flags & MC_UNICODE_LETTER   ? LETTER
           : flags & MC_UNICODE_NUMBER ? NUMBER
           : flags & MC_UNICODE_WHITE  ? WHITE
                                       : OTHER;
}

/* The sign at p < end and how many bytes it takes. */
static inline sign sign_at(const uint8_t *p, const uint8_t *end, size_t *length)
{
    uint32_t c = *p;
    *length = 1;
    if (c >= 0x80) {
        *length = mc_utf8_decode(p, end, &c);
        return sign_of(c);
    }
    if ((c | 0x20) - 'a' < 26) return LETTER;
    if (c - '0' < 10) return NUMBER;
    return c == ' ' || c - '\t' < 5 ? WHITE : OTHER;
}

static const uint8_t *skip_run(const uint8_t *p, const uint8_t *end, sign kind)
{
    size_t length;
    while (p < end && sign_at(p, end, &length) == kind) p += length;
    return p;
}

/* Skips letters, eight at a time: most words are done with the first step. */
static inline const uint8_t *skip_letters(const uint8_t *p, const uint8_t *end)
{
    const uint64_t ones = 0x0101010101010101u, highs = 0x80 * ones;
    while (end - p >= 8) {
        uint64_t word = mc_load_word(p), low = (word & ~highs) | 0x20 * ones;
        uint64_t from_a = low + (0x80 - 'a') * ones, past_z = low + (0x7F - 'z') * ones;
        uint64_t stops = ~(from_a & ~past_z & ~word) & highs;
        if (stops) {
            p += __builtin_ctzll(stops) / 8;
            return *p < 0x80 ? p : skip_run(p, end, LETTER);
        }
        p += 8;
    }
    return skip_run(p, end, LETTER);
}

/* The length of 's and the like at p, 0 if there is none. */
static size_t contraction(const uint8_t *p, const uint8_t *end)
{
    if (end - p < 2) return 0;
    uint8_t a = p[1], b = end - p > 2 ? p[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    bool two = ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l');
    return two ? 3 : 0;
}

/* White space; the last of several is left to what comes after. */
static const uint8_t *skip_white(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *start = p, *last = p;
    size_t length;
    for (; p < end && sign_at(p, end, &length) == WHITE; p += length) last = p;
    return p == end || last == start ? p : last;
}

/* The end of the word at p < end. */
static inline const uint8_t *word_end(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *start = p;
    size_t length;
    if (*p == '\'') {
        length = contraction(p, end);
        if (length) return p + length;
    }
    if (*p == ' ' && p + 1 < end) p++;
    sign kind = sign_at(p, end, &length);
    if (kind == LETTER) return skip_letters(p + length, end);
    return kind == WHITE ? skip_white(start, end) : skip_run(p + length, end, kind);
}

const uint8_t *mc_bpe_word_end(const uint8_t *text, const uint8_t *end)
{
    return word_end(text, end);
}

/* ---- the cache ---- */

static inline mc_bpe_word *place_of(const mc_bpe_scratch *s, const uint64_t key[2], size_t size)
{
    return &s->words[(size_t)(mc_word_hash(key, size) >> 40) & (s->word_count - 1)];
}

static bool grow_cache(mc_bpe_scratch *s)
{
    mc_bpe_word *words = mc_word_cache_grow(s->words, &s->word_count, &s->words_put, sizeof *words);
    if (words) s->words = words;
    return words;
}

/* Makes the scratch this vocabulary's. */
static bool take_scratch(const mc_bpe *bpe, mc_bpe_scratch *s)
{
    if (s->owner == bpe->fingerprint) return true;
    mc_bpe_scratch_release(s);
    if (!grow_cache(s)) return false;
    s->owner = bpe->fingerprint;
    return true;
}

static void remember(mc_bpe_scratch *s, const uint64_t key[2], size_t size, const int32_t *ids,
                     size_t count)
{
    mc_bpe_word *word = place_of(s, key, size);
    if (count > sizeof word->ids / sizeof *word->ids) return;
    *word =
        (mc_bpe_word){.key = {key[0], key[1]}, .length = (uint8_t)size, .count = (uint8_t)count};
    memcpy(word->ids, ids, count * sizeof *ids);
    s->words_put++;
}

/* ---- encoding ---- */

static void encode_new_word(mc_encoder *e, const uint8_t *word, size_t size)
{
    mc_encoding *out = e->out;
    size_t count;
    if (size > INT32_MAX) {
        mc_encoder_stop(e, MC_ERR_UNSUPPORTED);
        return;
    }
    if (!mc_encoder_reserve(e, size)) return;
    if (mc_bpe_merge_word(&e->tok->bpe, &out->scratch->bpe, word, size, out->ids + out->count,
                          &count))
        out->count += count;
    else
        mc_encoder_stop(e, MC_ERR_NOMEM);
}

static inline void encode_word(mc_encoder *e, mc_bpe_scratch *s, const uint8_t *word, size_t size,
                               const uint8_t *end)
{
    mc_encoding *out = e->out;
    uint64_t key[2];
    if (size > CACHED) {
        encode_new_word(e, word, size);
        return;
    }
    mc_word_key(word, size, end, key);
    const mc_bpe_word *known = place_of(s, key, size);
    if (known->key[0] == key[0] && known->key[1] == key[1] && known->length == size) {
        if (out->capacity - out->count < 3 && !mc_encoder_reserve(e, 3)) return;
        memcpy(out->ids + out->count, known->ids, sizeof known->ids);
        out->count += known->count;
        return;
    }
    size_t before = out->count;
    encode_new_word(e, word, size);
    if (e->stopped) return;
    if (s->words_put > s->word_count && s->word_count < CACHE_LAST && !grow_cache(s))
        mc_encoder_stop(e, MC_ERR_NOMEM);
    else
        remember(s, key, size, out->ids + before, out->count - before);
}

static void encode_words(mc_encoder *e, const uint8_t *text, size_t size)
{
    mc_bpe_scratch *s = &e->out->scratch->bpe;
    const uint8_t *end = text + size;
    if (!take_scratch(&e->tok->bpe, s)) {
        mc_encoder_stop(e, MC_ERR_NOMEM);
        return;
    }
    while (text < end && !e->stopped) {
        const uint8_t *stop = word_end(text, end);
        encode_word(e, s, text, (size_t)(stop - text), end);
        text = stop;
        if (e->out->count >= e->limit) e->stopped = true;
    }
}

void mc_bpe_encode(mc_encoder *e, const uint8_t *text, size_t size)
{
    mc_bytes *spaced = &e->out->scratch->word; /* the text may lie in scratch->text */
    if (!e->tok->bpe.add_prefix_space || !size || *text == ' ') {
        encode_words(e, text, size);
        return;
    }
    spaced->count = 0;
    if (mc_bytes_append(spaced, " ", 1) && mc_bytes_append(spaced, text, size))
        encode_words(e, spaced->data, spaced->count);
    else
        mc_encoder_stop(e, MC_ERR_NOMEM);
}
