/* A text to words, as the regular expressions of public models cut it.
 *
 * GPT-2's word is, the first of these that fits: 's 't 're 've 'm 'll 'd; a run of letters, of
 * numbers or of other signs, with one space in front of it if there is one; white space up to the
 * last of it before something else; white space.
 *
 * cl100k's, o200k's and those like them (a `style` each): 's and the like, of any case; letters,
 * with one sign in front that is no letter, number or line break; one to three numbers; other signs
 * with one space in front, and the line breaks after them; white space up to its last line break;
 * then as GPT-2's. Letters of o200k are a run of capitals before one of small letters, either of
 * which may be missing; marks and letters without case are both; 's is part of such a word. */
#include "tokenizers/bpe/word_key_internal.h"
#include "tokenizers/tokenizer_internal.h"

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

/* White space; the last of several is left to what comes after. */
static const uint8_t *skip_white(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *start = p, *last = p;
    size_t length;
    for (; p < end && sign_at(p, end, &length) == WHITE; p += length) last = p;
    return p == end || last == start ? p : last;
}

/* ---- GPT-2 ---- */

/* The length of 's and the like at p, 0 if there is none. */
static size_t contraction(const uint8_t *p, const uint8_t *end)
{
    if (end - p < 2) return 0;
    uint8_t a = p[1], b = end - p > 2 ? p[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    bool two = ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l');
    return two ? 3 : 0;
}

/* The end of the word at p < end. */
static inline const uint8_t *gpt2_end(const uint8_t *p, const uint8_t *end)
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

/* ---- cl100k, o200k and those like them ---- */

typedef struct style {
    bool cased;      /* words are capitals and then small letters */
    bool contracts;  /* 's and the like are words or, where cased, ends of words */
    bool slashes;    /* slashes stand with line breaks after signs */
    int most_digits; /* numbers of a word */
} style;

/* The length of 's and the like in any case at p, 0 if there is none. The long s (U+017F) is an s
 * in another case. */
static size_t any_contraction(const uint8_t *p, const uint8_t *end)
{
    if (end - p < 2 || *p != '\'') return 0;
    uint8_t low[3] = {'\'', p[1] | 0x20, end - p > 2 ? p[2] | 0x20 : 0};
    if (p[1] == 0xC5 && end - p > 2 && p[2] == 0xBF) return 3;
    return p[1] < 0x80 ? contraction(low, low + (end - p > 2 ? 3 : 2)) : 0;
}

static inline bool is_break(uint8_t c) { return c == '\n' || c == '\r'; }

/* Whether the code point at p < end is of a set of letters (MC_UNICODE_CAPITALS or _SMALLS). */
static inline bool is_of(const uint8_t *p, const uint8_t *end, uint16_t set, size_t *length)
{
    uint32_t c = *p;
    *length = 1;
    if (c < 0x80)
        return (set == MC_UNICODE_SMALLS ? c : c | 0x20) - 'a' < 26 &&
               (set == MC_UNICODE_SMALLS || c < 'a');
    *length = mc_utf8_decode(p, end, &c);
    return mc_unicode_get(c).flags & set;
}

static const uint8_t *skip_set(const uint8_t *p, const uint8_t *end, uint16_t set)
{
    size_t length;
    while (p < end && is_of(p, end, set, &length)) p += length;
    return p;
}

/* The end of capitals* smalls+ at p, NULL if that is not there. Of capitals alone, those that are
 * small letters too count as such. */
static const uint8_t *skip_smalls(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *last = NULL;
    size_t length;
    while (p < end && is_of(p, end, MC_UNICODE_CAPITALS, &length)) {
        size_t same;
        p += length;
        if (is_of(p - length, end, MC_UNICODE_SMALLS, &same)) last = p;
    }
    const uint8_t *stop = skip_set(p, end, MC_UNICODE_SMALLS);
    return stop > p ? stop : last;
}

/* capitals+ smalls*, the same. */
static const uint8_t *skip_capitals(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *stop = skip_set(p, end, MC_UNICODE_CAPITALS);
    return stop > p ? skip_set(stop, end, MC_UNICODE_SMALLS) : NULL;
}

/* The end of o200k's letters at p, NULL if there are none. `length` is that of the sign at p, which
 * may stand in front of them if `front` says so. */
static const uint8_t *skip_cased(const uint8_t *p, const uint8_t *end, bool front, size_t length)
{
    const uint8_t *stop = front ? skip_smalls(p + length, end) : NULL;
    if (!stop) stop = skip_smalls(p, end);
    if (!stop && front) stop = skip_capitals(p + length, end);
    return stop ? stop : skip_capitals(p, end);
}

static const uint8_t *skip_numbers(const uint8_t *p, const uint8_t *end, int most)
{
    size_t length;
    for (int i = 0; i < most && p < end && sign_at(p, end, &length) == NUMBER; i++) p += length;
    return p;
}

/* Signs and the line breaks after them. */
static inline const uint8_t *skip_signs(const uint8_t *p, const uint8_t *end, bool slashes)
{
    p = skip_run(p, end, OTHER);
    while (p < end && (is_break(*p) || (slashes && *p == '/'))) p++;
    return p;
}

/* White space up to its last line break, or else as GPT-2's. */
static const uint8_t *skip_lines(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *start = p, *after = NULL;
    size_t length;
    for (; p < end && sign_at(p, end, &length) == WHITE; p += length)
        if (is_break(*p)) after = p + 1;
    return after ? after : skip_white(start, end);
}

/* The end of the word at p < end. */
static inline const uint8_t *styled_end(const uint8_t *p, const uint8_t *end, style s)
{
    size_t length, next_length;
    sign kind = sign_at(p, end, &length);
    const uint8_t *next = p + length;
    if (s.contracts && !s.cased && *p == '\'') {
        size_t contracted = any_contraction(p, end);
        if (contracted) return p + contracted;
    }
    if (s.cased) {
        bool front = kind != LETTER && kind != NUMBER && !is_break(*p);
        const uint8_t *stop = skip_cased(p, end, front, length);
        if (stop) return s.contracts ? stop + any_contraction(stop, end) : stop;
    } else {
        if (kind == LETTER) return skip_letters(next, end);
        if (kind != NUMBER && !is_break(*p) && next < end &&
            sign_at(next, end, &next_length) == LETTER)
            return skip_letters(next + next_length, end);
    }
    if (kind == NUMBER) return skip_numbers(next, end, s.most_digits - 1);
    if (kind == OTHER) return skip_signs(next, end, s.slashes);
    if (*p == ' ' && next < end && sign_at(next, end, &next_length) == OTHER)
        return skip_signs(next, end, s.slashes);
    return skip_lines(p, end);
}

static inline const uint8_t *cl100k_end(const uint8_t *p, const uint8_t *end)
{
    return styled_end(p, end, (style){.contracts = true, .most_digits = 3});
}

static inline const uint8_t *qwen_end(const uint8_t *p, const uint8_t *end)
{
    return styled_end(p, end, (style){.contracts = true, .most_digits = 1});
}

static inline const uint8_t *o200k_end(const uint8_t *p, const uint8_t *end)
{
    return styled_end(p, end,
                      (style){.cased = true, .contracts = true, .slashes = true, .most_digits = 3});
}

static inline const uint8_t *tekken_end(const uint8_t *p, const uint8_t *end)
{
    return styled_end(p, end, (style){.cased = true, .slashes = true, .most_digits = 1});
}

/* One number, or all before the next. */
static inline const uint8_t *digits_end(const uint8_t *p, const uint8_t *end)
{
    size_t length;
    if (sign_at(p, end, &length) == NUMBER) return p + length;
    while (p < end && sign_at(p, end, &length) != NUMBER) p += length;
    return p;
}

typedef const uint8_t *word_end(const uint8_t *p, const uint8_t *end);

static word_end *const word_ends[] = {gpt2_end,  cl100k_end, qwen_end,
                                      o200k_end, tekken_end, digits_end};

const uint8_t *mc_bpe_word_end(mc_cut_kind kind, const uint8_t *text, const uint8_t *end)
{
    return word_ends[kind](text, end);
}

/* ---- the steps of a pre-tokenizer ---- */

static void cut(mc_encoder *e, int step, const uint8_t *text, const uint8_t *end);

static inline void cut_by(mc_encoder *e, int step, const uint8_t *text, const uint8_t *end,
                          word_end *find_end)
{
    bool last = step + 1 == e->tok->bpe.cut_count;
    while (text < end && !e->stopped) {
        const uint8_t *stop = find_end(text, end);
        if (last) {
            mc_bpe_encode_word(e, text, (size_t)(stop - text), end);
            if (e->out->count >= e->limit) e->stopped = true;
        } else {
            cut(e, step + 1, text, stop);
        }
        text = stop;
    }
}

/* The matches are looked for in text that is valid UTF-8; bytes that are none belong to what stands
 * between matches. */
static void cut_by_regex(mc_encoder *e, int step, const uint8_t *text, const uint8_t *end)
{
    const mc_cut *c = &e->tok->bpe.cuts[step];
    const uint8_t *valid = NULL;
    size_t size = 0, from = 0, done = 0, match[2];
    while (done < (size_t)(end - text) && !e->stopped) {
        while (from >= size && valid != end) { /* the next valid bytes */
            uint32_t none;
            from = valid ? (size_t)(valid - text) + mc_utf8_decode(valid, end, &none) : 0;
            valid = mc_utf8_find_invalid(text + from, end);
            if (!valid) valid = end;
            size = (size_t)(valid - text);
        }
        void **data = &e->out->scratch->bpe.regex_data;
        mc_status status = mc_regex_find(c->regex, data, text, size, from, match);
        if (status) {
            mc_encoder_stop(e, status);
            return;
        }
        from = match[1];
        if (match[0] == match[1] && valid != end) continue;
        if (match[0] > done && !c->drops_gaps) cut(e, step + 1, text + done, text + match[0]);
        if (match[1] > match[0] && !c->drops_matches)
            cut(e, step + 1, text + match[0], text + match[1]);
        done = match[1];
    }
}

/* Cuts a text with the steps from number `step` on. */
static void cut(mc_encoder *e, int step, const uint8_t *text, const uint8_t *end)
{
    const mc_bpe *bpe = &e->tok->bpe;
    if (text == end || e->stopped) return;
    if (step == bpe->cut_count) {
        mc_bpe_encode_word(e, text, (size_t)(end - text), end);
        if (e->out->count >= e->limit) e->stopped = true;
        return;
    }
    switch (bpe->cuts[step].kind) {
    case MC_CUT_GPT2: cut_by(e, step, text, end, gpt2_end); break;
    case MC_CUT_CL100K: cut_by(e, step, text, end, cl100k_end); break;
    case MC_CUT_QWEN: cut_by(e, step, text, end, qwen_end); break;
    case MC_CUT_O200K: cut_by(e, step, text, end, o200k_end); break;
    case MC_CUT_TEKKEN: cut_by(e, step, text, end, tekken_end); break;
    case MC_CUT_DIGITS: cut_by(e, step, text, end, digits_end); break;
    case MC_CUT_REGEX: cut_by_regex(e, step, text, end); break;
    }
}

void mc_bpe_cut_words(mc_encoder *e, const uint8_t *text, size_t size)
{
    cut(e, 0, text, text + size);
}

/* Of the patterns in C only GPT-2's ends every word before a line break: the others have one after
 * signs. */
bool mc_bpe_allows_cuts(const mc_bpe *bpe, bool line)
{
    bool allows = false;
    for (int i = 0; i < bpe->cut_count; i++) {
        mc_cut_kind kind = bpe->cuts[i].kind;
        if (kind == MC_CUT_REGEX) return false;
        allows = allows || kind == MC_CUT_GPT2 || (!line && kind != MC_CUT_DIGITS);
    }
    return allows;
}
