/* A text's words to ids.
 *
 * Where no piece holds the space's symbol after its front, the best pieces of a text are those of
 * its words, each beginning with that symbol. Most words have been met before: a cache knows their
 * ids. By SentencePiece's rules a word's sums go on from those of the text before it and are
 * rounded with them; what the cache knows holds as long as no decision was so close that rounding
 * could turn it, and the sum goes on over the scores of the ids. */
#include <float.h>
#include <string.h>
#include "tokenizers/unigram/sentencepiece_internal.h"
#include "tokenizers/tokenizer_internal.h"
#include "tokenizers/bpe/word_key_internal.h"

enum { CACHE_LAST = 1 << 15, WORD_IDS = 4 };

/* Sums below it are far from where they begin anew. */
static const double SUM_SAFE = 99000;

/* ---- the cache ---- */

static bool grow_cache(mc_unigram_scratch *s)
{
    mc_unigram_word *words =
        mc_word_cache_grow(s->words, &s->word_count, &s->words_put, sizeof *words);
    if (words) s->words = words;
    return words;
}

static bool take_scratch(const mc_unigram *u, mc_unigram_scratch *s)
{
    if (s->owner == u->fingerprint) return true;
    mc_unigram_scratch_release(s);
    if (!grow_cache(s)) return false;
    s->owner = u->fingerprint;
    return true;
}

void mc_unigram_scratch_release(mc_unigram_scratch *s)
{
    mc_free(s->words);
    mc_free(s->nodes);
    *s = (mc_unigram_scratch){0};
}

static inline mc_unigram_word *place_of(const mc_unigram_scratch *s, const uint64_t key[2],
                                        size_t size)
{
    return &s->words[(size_t)(mc_word_hash(key, size) >> 40) & (s->word_count - 1)];
}

/* How far rounding can move the difference of two sums of a word that lie between `low` and `high`:
 * half a unit in the last place for each piece of both, of which there are as many as bytes. */
static inline double rounding(double low, double high)
{
    double most = -low > high ? -low : high;
    return (MC_WORD_KEY_SIZE + 1) * (double)FLT_EPSILON * most + 1e-3;
}

/* Whether what is known of a word holds after this sum. */
static inline bool holds(const mc_unigram *u, const mc_unigram_word *word, double sum)
{
    double low = sum + (double)word->lowest, high = sum + u->highest;
    return (double)word->gap > rounding(low, high) && low > -SUM_SAFE && high < SUM_SAFE;
}

/* Appends the ids of a known word; false where they do not hold. */
static inline bool push_known(mc_encoder *e, const mc_unigram_word *word, mc_unigram_sum *sum)
{
    const mc_unigram *u = &e->tok->unigram;
    mc_encoding *out = e->out;
    if (u->single && !holds(u, word, sum->value)) return false;
    if (out->capacity - out->count < WORD_IDS && !mc_encoder_reserve(e, WORD_IDS)) return true;
    memcpy(out->ids + out->count, word->ids, sizeof word->ids);
    out->count += word->count;
    if (u->single) {
        float value = (float)sum->value;
        for (int i = 0; i < word->count; i++) value += (float)u->weights[word->ids[i]];
        sum->value = (double)value;
        sum->unknown = false;
    }
    return true;
}

/* Keeps the ids from number `before` on of a word that was encoded after `sum`. */
static void remember(mc_encoder *e, const uint64_t key[2], size_t size, size_t before, double sum,
                     const mc_unigram_path *path)
{
    const mc_unigram *u = &e->tok->unigram;
    mc_unigram_scratch *s = &e->out->scratch->unigram;
    size_t count = e->out->count - before;
    if (count > WORD_IDS || !u->cacheable) return;
    double low = (double)path->lowest, high = sum + u->highest;
    if (u->single && (path->unknown || low < -SUM_SAFE || high > SUM_SAFE)) return;
    if (s->words_put > s->word_count && s->word_count < CACHE_LAST && !grow_cache(s)) {
        mc_encoder_stop(e, MC_ERR_NOMEM);
        return;
    }
    mc_unigram_word *word = place_of(s, key, size);
    *word = (mc_unigram_word){.key = {key[0], key[1]},
                              .gap = (float)((double)path->gap - rounding(low, high)),
                              .lowest = (float)(low - sum),
                              .length = (uint8_t)(size + 1),
                              .count = (uint8_t)count};
    memcpy(word->ids, e->out->ids + before, count * sizeof *word->ids);
    s->words_put++;
}

/* ---- one word ---- */

/* The id of several unknown characters in a row. Hugging Face looks their text up once more. */
static int32_t unknown_id(const mc_tokenizer *tok, const uint8_t *text, size_t size)
{
    int32_t id = tok->unigram.single ? -1 : mc_trie_find(&tok->trie, text, size);
    return id >= 0 ? id : tok->unigram.unk_id;
}

/* Appends the ids of the path that the nodes hold. */
static void push_path(mc_encoder *e, const uint8_t *text, size_t size, size_t first,
                      mc_unigram_sum *sum, mc_unigram_path *path)
{
    const mc_unigram *u = &e->tok->unigram;
    const mc_unigram_node *nodes = e->out->scratch->unigram.nodes;
    size_t begun = 0; /* of unknown characters in a row */
    bool unknown = sum->unknown && u->single;
    if (!mc_encoder_reserve(e, size)) return;
    for (size_t from = 0, to = first; from < size; from = to, to = nodes[to].start) {
        bool is_unknown = nodes[to].id == u->unk_id;
        if (is_unknown && u->byte_fallback) {
            for (size_t i = from; i < to; i++) mc_encoder_push(e, u->byte_ids[text[i]]);
        } else if (is_unknown && unknown) {
            if (!u->single)
                e->out->ids[e->out->count - 1] = unknown_id(e->tok, text + begun, to - begun);
        } else if (is_unknown) {
            begun = from;
            mc_encoder_push(e, unknown_id(e->tok, text + from, to - from));
        } else {
            mc_encoder_push(e, nodes[to].id);
        }
        unknown = is_unknown;
        path->unknown = path->unknown || is_unknown;
    }
    sum->unknown = unknown;
}

static void encode_new(mc_encoder *e, const uint8_t *text, size_t size, mc_unigram_sum *sum,
                       mc_unigram_path *path)
{
    *path = (mc_unigram_path){0};
    if (size >= INT32_MAX) {
        mc_encoder_stop(e, MC_ERR_UNSUPPORTED);
        return;
    }
    double value = e->tok->unigram.single ? sum->value : 0;
    size_t first =
        mc_unigram_find_path(e->tok, &e->out->scratch->unigram, text, size, &value, path);
    if (!first) {
        mc_encoder_stop(e, MC_ERR_NOMEM);
        return;
    }
    push_path(e, text, size, first, sum, path);
    sum->value = value;
}

static bool begins_with_space(const uint8_t *text, size_t size)
{
    return size >= MC_SPACE_SIZE && !memcmp(text, MC_SPACE_SYMBOL, MC_SPACE_SIZE);
}

/* Symbols of spaces that something follows. */
static void push_spaces(mc_encoder *e, mc_unigram_sum *sum)
{
    mc_unigram_path path;
    for (; sum->spaces && !e->stopped; sum->spaces--)
        encode_new(e, (const uint8_t *)MC_SPACE_SYMBOL, MC_SPACE_SIZE, sum, &path);
}

/* One word as the model sees it, in a buffer that ends at `end`. */
static void encode_word(mc_encoder *e, const uint8_t *text, size_t size, const uint8_t *end,
                        mc_unigram_sum *sum)
{
    const mc_unigram *u = &e->tok->unigram;
    bool spaced = begins_with_space(text, size);
    size_t rest = size - MC_SPACE_SIZE;
    mc_unigram_path path;
    uint64_t key[2];
    if (u->bpe) {
        mc_bpe_encode_pieces(e, text, size);
        return;
    }
    if (u->single && u->fast && spaced && !rest) {
        sum->spaces++;
        return;
    }
    push_spaces(e, sum);
    if (e->stopped) return;
    if (!u->separable || !spaced || rest > MC_WORD_KEY_SIZE) {
        encode_new(e, text, size, sum, &path);
        return;
    }
    mc_word_key(text + MC_SPACE_SIZE, rest, end, key);
    const mc_unigram_word *known = place_of(&e->out->scratch->unigram, key, rest);
    bool same = known->length == rest + 1 && known->key[0] == key[0] && known->key[1] == key[1];
    if (same && push_known(e, known, sum)) return;
    size_t before = e->out->count;
    double start = sum->value;
    encode_new(e, text, size, sum, &path);
    if (!same && !e->stopped) remember(e, key, rest, before, start, &path);
}

/* Where the next word of a text in normal form begins, after `p`. */
static const uint8_t *next_word(const uint8_t *p, const uint8_t *end)
{
    for (p++; p < end; p++) {
        p = memchr(p, MC_SPACE_SYMBOL[0], (size_t)(end - p));
        if (!p) return end;
        if (begins_with_space(p, (size_t)(end - p))) return p;
    }
    return end;
}

static void encode_words(mc_encoder *e, const uint8_t *p, size_t size, mc_unigram_sum *sum)
{
    const uint8_t *end = p + size;
    for (const uint8_t *stop; p < end && !e->stopped; p = stop) {
        stop = next_word(p, end);
        encode_word(e, p, (size_t)(stop - p), end, sum);
        if (e->out->count >= e->limit) e->stopped = true;
    }
}

/* ---- Hugging Face's pre-tokenizer ---- */

/* Appends a word with symbols for its spaces, and one in front. */
static bool put_word(const mc_unigram *u, const uint8_t *p, const uint8_t *end, bool first,
                     mc_bytes *out)
{
    bool prepend = u->prepend == MC_PREPEND_ALWAYS || (u->prepend == MC_PREPEND_FIRST && first);
    if (prepend && *p != ' ' && !begins_with_space(p, (size_t)(end - p)) &&
        !mc_bytes_append(out, MC_SPACE_SYMBOL, MC_SPACE_SIZE))
        return false;
    while (p < end) {
        const uint8_t *space = memchr(p, ' ', (size_t)(end - p)), *stop = space ? space : end;
        if (!mc_bytes_append(out, p, (size_t)(stop - p)) ||
            (space && !mc_bytes_append(out, MC_SPACE_SYMBOL, MC_SPACE_SIZE)))
            return false;
        p = stop + (space != NULL);
    }
    return true;
}

static const uint8_t *skip_white(const uint8_t *p, const uint8_t *end, bool white)
{
    while (p < end) {
        uint32_t c;
        size_t length = mc_utf8_decode(p, end, &c);
        if (!(mc_unicode_get(c).flags & MC_UNICODE_WHITE) == white) break;
        p += length;
    }
    return p;
}

void mc_unigram_encode_normal(mc_encoder *e, const uint8_t *text, size_t size)
{
    const mc_unigram *u = &e->tok->unigram;
    const uint8_t *end = text + size, *stop;
    mc_bytes *word = &e->out->scratch->word;
    mc_unigram_sum sum = {0};
    if (!take_scratch(u, &e->out->scratch->unigram)) {
        mc_encoder_stop(e, MC_ERR_NOMEM);
        return;
    }
    if (u->plain && size) encode_word(e, text, size, end, &sum);
    for (const uint8_t *p = text; p < end && !u->plain && !e->stopped; p = stop) {
        if (u->split_white) p = skip_white(p, end, true);
        stop = u->split_white ? skip_white(p, end, false) : end;
        if (p == stop) break;
        word->count = 0;
        if (!put_word(u, p, stop, e->at_start && p == text, word))
            mc_encoder_stop(e, MC_ERR_NOMEM);
        else if (u->split_symbols)
            encode_words(e, word->data, word->count, &sum);
        else
            encode_word(e, word->data, word->count, word->data + word->count, &sum);
    }
}

/* ---- text as it stands ---- */

/* BPE's pieces; of user-defined ones each is a piece by itself, the longest at a place. */
static void encode_merged(mc_encoder *e, const uint8_t *p, const uint8_t *end)
{
    const mc_unigram *u = &e->tok->unigram;
    const uint8_t *done = p;
    while (u->has_symbols && p < end && !e->stopped) {
        size_t size, matched;
        uint32_t c;
        int32_t id = mc_trie_longest(&u->symbols, MC_TRIE_ROOT, p, (size_t)(end - p), &matched);
        size = id >= 0 ? matched : mc_utf8_decode(p, end, &c);
        if (id >= 0) {
            if (p > done) mc_bpe_encode_pieces(e, done, (size_t)(p - done));
            if (!e->stopped) mc_encoder_push(e, id);
            done = p + size;
        }
        p += size;
    }
    if (done < end && !e->stopped) mc_bpe_encode_pieces(e, done, (size_t)(end - done));
}

static void encode_part(mc_encoder *e, const uint8_t *text, size_t size, mc_unigram_sum *sum)
{
    const mc_unigram *u = &e->tok->unigram;
    struct mc_encode_scratch *s = e->out->scratch;
    bool ok;
    s->text.count = 0;
    if (!u->single)
        ok = mc_unigram_apply_steps(u, text, size, &s->text, &s->spare);
    else if (u->fast && !u->bpe)
        ok = mc_unigram_normalize_part(u, text, size, &s->text);
    else
        ok = mc_unigram_normalize(u, text, size, e->at_start, &s->text);
    if (!ok)
        mc_encoder_stop(e, MC_ERR_NOMEM);
    else if (!u->single)
        mc_unigram_encode_normal(e, s->text.data, s->text.count);
    else if (u->bpe)
        encode_merged(e, s->text.data, s->text.data + s->text.count);
    else if (u->separable)
        encode_words(e, s->text.data, s->text.count, sum);
    else if (s->text.count)
        encode_word(e, s->text.data, s->text.count, s->text.data + s->text.count, sum);
}

/* A word of ASCII that is its own normal form, with a space's symbol to be put in front. */
static inline void encode_plain(mc_encoder *e, const uint8_t *word, size_t size, const uint8_t *end,
                                mc_unigram_sum *sum)
{
    mc_bytes *spaced = &e->out->scratch->word;
    uint64_t key[2];
    if (size <= MC_WORD_KEY_SIZE && !sum->spaces) {
        mc_word_key(word, size, end, key);
        const mc_unigram_word *known = place_of(&e->out->scratch->unigram, key, size);
        if (known->key[0] == key[0] && known->key[1] == key[1] && known->length == size + 1 &&
            push_known(e, known, sum))
            return;
    }
    spaced->count = 0;
    if (mc_bytes_append(spaced, MC_SPACE_SYMBOL, MC_SPACE_SIZE) &&
        mc_bytes_append(spaced, word, size))
        encode_word(e, spaced->data, spaced->count, spaced->data + spaced->count, sum);
    else
        mc_encoder_stop(e, MC_ERR_NOMEM);
}

/* Whether a text can be cut in front of p, a space of ASCII. */
static bool cuts_at(const mc_unigram *u, const uint8_t *text, const uint8_t *p, const uint8_t *end)
{
    if (u->bytes[*p] != MC_UNIGRAM_SPACE || (p + 1 < end && p[1] >= 0x80)) return false;
    if (u->single || p == text) return true;
    return p[-1] < 0x80 && p[-1] != '\r'; /* what stands there may join the space */
}

bool mc_unigram_cuts_before(const mc_unigram *u, const uint8_t *text, const uint8_t *p,
                            const uint8_t *end)
{
    uint8_t bytes[4];
    size_t size = 1, matched;
    if (!cuts_at(u, text, p, end)) return false;
    if (p[-1] >= 0x80) size = mc_utf8_encode(mc_utf8_decode_last(text, p), bytes);
    if (size > (size_t)(p - text) || begins_with_space(p - size, size)) return false;
    const char *form = mc_charsmap_longest(&u->charsmap, p - size, size, &matched);
    return !form || (*form && form[strlen(form) - 1] != ' ');
}

static void encode_fast(mc_encoder *e, const uint8_t *text, const uint8_t *end, mc_unigram_sum *sum)
{
    const mc_unigram *u = &e->tok->unigram;
    const uint8_t *bytes = u->bytes;
    for (const uint8_t *p = text, *stop; p < end && !e->stopped; p = stop) {
        stop = p + 1;
        if (bytes[*p] == MC_UNIGRAM_SPACE && (stop == end || *stop < 0x80)) continue;
        for (stop = p; stop < end && bytes[*stop] == MC_UNIGRAM_PLAIN; stop++) continue;
        if (stop > p && (stop == end || cuts_at(u, text, stop, end))) {
            encode_plain(e, p, (size_t)(stop - p), end, sum);
        } else {
            if (stop == p) stop++;
            while (stop < end && !cuts_at(u, text, stop, end)) stop++;
            encode_part(e, p, (size_t)(stop - p), sum);
        }
        if (e->out->count >= e->limit) e->stopped = true;
    }
}

static void encode_by_library(mc_encoder *e, const uint8_t *text, size_t size)
{
    int32_t *ids;
    size_t count;
    mc_status status =
        mc_sentencepiece_encode(e->tok->unigram.library, (const char *)text, size, &ids, &count);
    if (status)
        mc_encoder_stop(e, status);
    else
        for (size_t i = 0; i < count; i++) mc_encoder_push(e, ids[i]);
    mc_free(ids);
}

void mc_unigram_encode(mc_encoder *e, const uint8_t *text, size_t size)
{
    const mc_unigram *u = &e->tok->unigram;
    mc_unigram_sum sum = {0};
    if (u->by_library)
        encode_by_library(e, text, size);
    else if (u->bpe)
        encode_part(e, text, size, &sum);
    else if (!take_scratch(u, &e->out->scratch->unigram))
        mc_encoder_stop(e, MC_ERR_NOMEM);
    else if (u->fast)
        encode_fast(e, text, text + size, &sum);
    else
        encode_part(e, text, size, &sum);
}
