#include "datasets/text_metrics.h"

#include <stdlib.h>
#include <string.h>
#include "datasets/dataset_internal.h"
#include "tokenizers/unicode/unicode_internal.h"

/* ---- lower case ------------------------------------------------------------------------------ */

enum { CAPITAL_SIGMA = 0x3A3, SMALL_SIGMA = 0x3C3, FINAL_SIGMA = 0x3C2 };

typedef struct reader {
    const uint8_t *start, *at, *end;
} reader;

static reader reader_of(const char *text, size_t size)
{
    const uint8_t *start = (const uint8_t *)text;
    return (reader){start, start, size ? start + size : start};
}

/* A letter of a script that has two cases, Roman numerals and letters in circles among them. */
static bool is_cased(uint32_t c)
{
    static const uint32_t scripts[][2] = {
        {0x41, 0x590},    {0x10A0, 0x1100}, {0x13A0, 0x1400}, {0x1C80, 0x1CC0}, {0x1D00, 0x2000},
        {0x2100, 0x2190}, {0x24B6, 0x24EA}, {0x2C00, 0x2D30}, {0xA640, 0xA7F0}, {0xAB30, 0xABC0}};
    bool letter = mc_unicode_get(c).flags & MC_UNICODE_LETTER;
    bool numeral = (c >= 0x2160 && c < 0x2180) || (c >= 0x24B6 && c < 0x24EA);
    if (!letter && !numeral) return false;
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        if (c >= scripts[i][0] && c < scripts[i][1]) return true;
    return false;
}

/* What may stand within a word: accents, formats, and some punctuation. */
static bool is_ignored(uint32_t c)
{
    return (mc_unicode_get(c).flags & (MC_UNICODE_MARK | MC_UNICODE_OTHER) && c >= 0xA0) ||
           c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0x2019;
}

/* Whether the capital sigma between `before` and r->at ends a word: a letter comes before it and
 * none after it. */
static bool is_final_sigma(const reader *r, const uint8_t *before)
{
    uint32_t c = 0;
    do {
        uint8_t bytes[4];
        if (before == r->start) return false;
        c = mc_utf8_decode_last(r->start, before);
        before -= mc_utf8_encode(c, bytes);
    } while (is_ignored(c));
    if (!is_cased(c)) return false;
    for (const uint8_t *p = r->at; p < r->end;) {
        p += mc_utf8_decode(p, r->end, &c);
        if (!is_ignored(c)) return !is_cased(c);
    }
    return true;
}

/* The next character in lower case, as Python's str.lower has it: up to four code points. 0 at the
 * end. */
static int next_lower(reader *r, uint32_t out[4])
{
    if (r->at == r->end) return 0;
    const uint8_t *before = r->at;
    uint32_t c;
    r->at += mc_utf8_decode(r->at, r->end, &c);
    if (c != CAPITAL_SIGMA) return mc_unicode_to_lower(c, out);
    out[0] = is_final_sigma(r, before) ? FINAL_SIGMA : SMALL_SIGMA;
    return 1;
}

/* ---- SQuAD's normal form --------------------------------------------------------------------- */

static bool is_ascii_punctuation(uint32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

/* What Python's str.split cuts at. */
static bool is_space(uint32_t c)
{
    return (c >= 0x1C && c <= 0x1F) || (mc_unicode_get(c).flags & MC_UNICODE_WHITE);
}

/* What \w matches, the underscore aside, which is punctuation. */
static bool is_word(uint32_t c)
{
    return mc_unicode_get(c).flags & (MC_UNICODE_LETTER | MC_UNICODE_NUMBER);
}

/* Lower case without punctuation. */
static bool lower_words(const char *text, size_t size, mc_text *out)
{
    reader r = reader_of(text, size);
    uint32_t c[4];
    for (int n; (n = next_lower(&r, c));)
        for (int i = 0; i < n; i++) {
            uint8_t bytes[4];
            if (is_ascii_punctuation(c[i])) continue;
            size_t length = mc_utf8_encode(c[i], bytes);
            if (!mc_text_append(out, (const char *)bytes, length)) return false;
        }
    return mc_text_append(out, "", 0);
}

static bool is_article(const uint8_t *word, size_t size)
{
    return (size == 1 && word[0] == 'a') || (size == 2 && memcmp(word, "an", 2) == 0) ||
           (size == 3 && memcmp(word, "the", 3) == 0);
}

/* The end of the run that begins at p: letters and digits, or a single other character. */
static const uint8_t *run_end(const uint8_t *p, const uint8_t *end, uint32_t *first)
{
    p += mc_utf8_decode(p, end, first);
    if (!is_word(*first)) return p;
    while (p < end) {
        uint32_t c;
        size_t length = mc_utf8_decode(p, end, &c);
        if (!is_word(c)) break;
        p += length;
    }
    return p;
}

/* Drops articles, which stand for a space as white space does, and joins what is left. */
static bool join_words(const mc_text *low, mc_text *out)
{
    const uint8_t *p = (const uint8_t *)low->data, *end = p + low->size, *next;
    bool gap = false;
    for (; p < end; p = next) {
        uint32_t first;
        next = run_end(p, end, &first);
        size_t size = (size_t)(next - p);
        if (is_space(first) || is_article(p, size)) {
            gap = true;
            continue;
        }
        if (gap && out->size && !mc_text_append(out, " ", 1)) return false;
        if (!mc_text_append(out, (const char *)p, size)) return false;
        gap = false;
    }
    return mc_text_append(out, "", 0);
}

/* `out` has to be released in any case. */
static bool normalize(const char *text, size_t size, mc_text *out)
{
    mc_text low = {0};
    bool ok = lower_words(text, size, &low) && join_words(&low, out);
    mc_text_release(&low);
    return ok;
}

mc_status mc_answer_normalize(const char *text, size_t size, char **out)
{
    if ((!text && size) || !out) return MC_ERR_ARGUMENT;
    mc_text normal = {0};
    if (normalize(text, size, &normal)) {
        *out = normal.data;
        return MC_OK;
    }
    mc_text_release(&normal);
    return MC_ERR_NOMEM;
}

/* ---- words of a text ------------------------------------------------------------------------- */

typedef struct words {
    mc_text text;       /* what they point into, */
    mc_text_span *word; /* (count) */
    size_t count, capacity;
} words;

static void words_release(words *w)
{
    mc_text_release(&w->text);
    mc_free(w->word);
}

/* The runs between spaces in w->text. */
static bool split_words(words *w)
{
    const char *p = w->text.data, *end = p + w->text.size;
    while (p < end) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        size_t size = (size_t)((space ? space : end) - p);
        if (size) {
            if (!mc_grow(&w->word, &w->capacity, w->count, sizeof *w->word)) return false;
            w->word[w->count++] = (mc_text_span){p, size};
        }
        p += size + (space != NULL);
    }
    return true;
}

static int compare_words(const void *a, const void *b)
{
    const mc_text_span *x = a, *y = b;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* ---- SQuAD's scores -------------------------------------------------------------------------- */

/* The words of the normal form, sorted, so that common ones are found in one pass. */
static bool answer_words(const char *text, size_t size, words *w)
{
    if (!normalize(text, size, &w->text) || !split_words(w)) return false;
    if (w->count) qsort(w->word, w->count, sizeof *w->word, compare_words);
    return true;
}

static double harmonic(size_t common, size_t a, size_t b)
{
    if (!common) return 0;
    double precision = (double)common / (double)a, recall = (double)common / (double)b;
    return 2 * precision * recall / (precision + recall);
}

static size_t count_common(const words *a, const words *b)
{
    size_t i = 0, j = 0, common = 0;
    while (i < a->count && j < b->count) {
        int order = compare_words(&a->word[i], &b->word[j]);
        common += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return common;
}

/* Raises the scores by one reference. */
static bool score_one(const words *given, const mc_text_span *reference, mc_text_score *best)
{
    words w = {0};
    bool ok = answer_words(reference->data, reference->size, &w);
    if (ok) {
        double f1 = harmonic(count_common(given, &w), given->count, w.count);
        if (f1 > best->f1) best->f1 = f1;
        if (given->text.size == w.text.size &&
            memcmp(given->text.data, w.text.data, w.text.size) == 0)
            best->exact = 1;
    }
    words_release(&w);
    return ok;
}

mc_status mc_answer_score(const char *text, size_t size, const mc_text_span *references,
                          size_t count, mc_text_score *score)
{
    if ((!text && size) || !references || !count || !score) return MC_ERR_ARGUMENT;
    mc_text_score best = {0};
    words given = {0};
    bool ok = answer_words(text, size, &given);
    for (size_t i = 0; ok && i < count; i++) ok = score_one(&given, &references[i], &best);
    words_release(&given);
    if (!ok) return MC_ERR_NOMEM;
    *score = best;
    return MC_OK;
}

/* ---- ROUGE-L --------------------------------------------------------------------------------- */

/* Everything but a-z and 0-9 is a space. */
static bool rouge_words(const char *text, size_t size, words *w)
{
    reader r = reader_of(text, size);
    uint32_t c[4];
    for (int n; (n = next_lower(&r, c));)
        for (int i = 0; i < n; i++) {
            bool kept = (c[i] >= 'a' && c[i] <= 'z') || (c[i] >= '0' && c[i] <= '9');
            char byte = kept ? (char)c[i] : ' ';
            if (!mc_text_append(&w->text, &byte, 1)) return false;
        }
    return mc_text_append(&w->text, "", 0) && split_words(w);
}

/* The length of the longest common subsequence, -1 without memory. row[j] is that of the words of
 * `a` so far and the first j of `b`. */
static long long common_subsequence(const words *a, const words *b)
{
    size_t *row = mc_calloc(b->count + 1, sizeof *row);
    if (!row) return -1;
    for (size_t i = 0; i < a->count; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < b->count; j++) {
            size_t above = row[j + 1];
            if (compare_words(&a->word[i], &b->word[j]) == 0)
                row[j + 1] = diagonal + 1;
            else if (row[j] > above)
                row[j + 1] = row[j];
            diagonal = above;
        }
    }
    long long length = (long long)row[b->count];
    mc_free(row);
    return length;
}

mc_status mc_rouge_l(const char *text, size_t size, const char *reference, size_t reference_size,
                     mc_rouge_score *score)
{
    if ((!text && size) || (!reference && reference_size) || !score) return MC_ERR_ARGUMENT;
    words a = {0}, b = {0};
    long long common = -1;
    if (rouge_words(text, size, &a) && rouge_words(reference, reference_size, &b))
        common = common_subsequence(&a, &b);
    if (common == 0) *score = (mc_rouge_score){0};
    if (common > 0)
        *score = (mc_rouge_score){.precision = (double)common / (double)a.count,
                                  .recall = (double)common / (double)b.count,
                                  .f1 = harmonic((size_t)common, a.count, b.count)};
    words_release(&a);
    words_release(&b);
    return common < 0 ? MC_ERR_NOMEM : MC_OK;
}
