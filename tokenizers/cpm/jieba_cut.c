#include "tokenizers/cpm/jieba_internal.h"

#include <math.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "tokenizers/unicode/unicode_internal.h"

/* The best path from a place of a block on: its probability, and where its first word ends. */
struct mc_jieba_step {
    double log;
    uint32_t end;
};

typedef struct mc_jieba_step step;

typedef struct cutter {
    const mc_jieba *jieba;
    mc_jieba_scratch *scratch;
    mc_jieba_emit *emit;
    void *user;
    bool stopped; /* by `emit`, or by an error */
    mc_status status;
} cutter;

void mc_jieba_scratch_release(mc_jieba_scratch *scratch)
{
    mc_free(scratch->route);
    mc_free(scratch->back);
    *scratch = (mc_jieba_scratch){0};
}

static bool reserve(cutter *c, void *array_pointer, size_t *capacity, size_t count, size_t size)
{
    void **array = array_pointer;
    if (count <= *capacity) return true;
    size_t wanted = count < SIZE_MAX / 2 / size ? count + count / 2 + 64 : 0;
    void *grown = wanted ? mc_realloc(*array, wanted * size) : NULL;
    if (!grown) {
        c->status = MC_ERR_NOMEM;
        c->stopped = true;
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}

static void put(cutter *c, const uint8_t *word, size_t size, size_t chars)
{
    if (!c->stopped && !c->emit(c->user, word, size, chars)) c->stopped = true;
}

/* Of ASCII, what jieba takes into a block; the letters and digits of it have bit 2. */
static const uint8_t ascii_kinds[128] = {
    ['+'] = 1, ['#'] = 1, ['&'] = 1, ['.'] = 1, ['_'] = 1, ['%'] = 1, ['-'] = 1, ['0'] = 7,
    ['1'] = 7, ['2'] = 7, ['3'] = 7, ['4'] = 7, ['5'] = 7, ['6'] = 7, ['7'] = 7, ['8'] = 7,
    ['9'] = 7, ['A'] = 3, ['B'] = 3, ['C'] = 3, ['D'] = 3, ['E'] = 3, ['F'] = 3, ['G'] = 3,
    ['H'] = 3, ['I'] = 3, ['J'] = 3, ['K'] = 3, ['L'] = 3, ['M'] = 3, ['N'] = 3, ['O'] = 3,
    ['P'] = 3, ['Q'] = 3, ['R'] = 3, ['S'] = 3, ['T'] = 3, ['U'] = 3, ['V'] = 3, ['W'] = 3,
    ['X'] = 3, ['Y'] = 3, ['Z'] = 3, ['a'] = 3, ['b'] = 3, ['c'] = 3, ['d'] = 3, ['e'] = 3,
    ['f'] = 3, ['g'] = 3, ['h'] = 3, ['i'] = 3, ['j'] = 3, ['k'] = 3, ['l'] = 3, ['m'] = 3,
    ['n'] = 3, ['o'] = 3, ['p'] = 3, ['q'] = 3, ['r'] = 3, ['s'] = 3, ['t'] = 3, ['u'] = 3,
    ['v'] = 3, ['w'] = 3, ['x'] = 3, ['y'] = 3, ['z'] = 3};
enum { IN_BLOCK = 1, ALNUM = 2, DIGIT = 4 };

static bool is_kind(uint8_t byte, int kind) { return byte < 128 && (ascii_kinds[byte] & kind); }

static bool is_chinese(uint32_t c) { return c >= MC_JIEBA_FIRST && c <= MC_JIEBA_LAST; }

static bool continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* ---- The hidden Markov model ----------------------------------------------------------------- */

/* The states that a state may follow. Each pair in the order of their letters: of equals the second
 * one counts. */
static const uint8_t before[MC_JIEBA_STATES][2] = {
    [MC_JIEBA_BEGIN] = {MC_JIEBA_END, MC_JIEBA_SINGLE},
    [MC_JIEBA_END] = {MC_JIEBA_BEGIN, MC_JIEBA_MIDDLE},
    [MC_JIEBA_MIDDLE] = {MC_JIEBA_BEGIN, MC_JIEBA_MIDDLE},
    [MC_JIEBA_SINGLE] = {MC_JIEBA_END, MC_JIEBA_SINGLE},
};

/* A Chinese character of a block, three bytes long. */
static const double *emissions_of(const mc_jieba *jieba, const uint8_t *text)
{
    static const double never[MC_JIEBA_STATES] = {MC_JIEBA_NEVER, MC_JIEBA_NEVER, MC_JIEBA_NEVER,
                                                  MC_JIEBA_NEVER};
    uint32_t c = (text[0] & 15u) << 12 | (text[1] & 63u) << 6 | (text[2] & 63u);
    uint32_t index = c - jieba->header.first_char; /* huge for one before the first */
    return index < jieba->header.char_count ? jieba->emissions[index] : never;
}

/* Finds the states of `chars` Chinese characters and leaves them in scratch->back. A byte of it
 * holds where each of the four states came from, a bit each, until the way back is gone. */
static void find_states(cutter *c, const uint8_t *text, size_t chars)
{
    const mc_jieba_header *h = &c->jieba->header;
    uint8_t *back = c->scratch->back;
    const double *emission = emissions_of(c->jieba, text);
    double now[MC_JIEBA_STATES], next[MC_JIEBA_STATES];
    for (int y = 0; y < MC_JIEBA_STATES; y++) now[y] = h->start[y] + emission[y];
    for (size_t t = 1; t < chars; t++) {
        emission = emissions_of(c->jieba, text + 3 * t);
        uint8_t from = 0;
        for (int y = 0; y < MC_JIEBA_STATES; y++) {
            int a = before[y][0], b = before[y][1];
            double of_a = now[a] + h->transitions[a][y] + emission[y];
            double of_b = now[b] + h->transitions[b][y] + emission[y];
            next[y] = of_b >= of_a ? of_b : of_a;
            from |= (uint8_t)((of_b >= of_a) << y);
        }
        memcpy(now, next, sizeof now);
        back[t] = from;
    }
    int state = now[MC_JIEBA_SINGLE] >= now[MC_JIEBA_END] ? MC_JIEBA_SINGLE : MC_JIEBA_END;
    for (size_t t = chars - 1; t > 0; t--) {
        int from = before[state][back[t] >> state & 1];
        back[t] = (uint8_t)state;
        state = from;
    }
    back[0] = (uint8_t)state;
}

static void cut_chinese(cutter *c, const uint8_t *text, size_t size)
{
    size_t chars = size / 3, begin = 0, next = 0;
    if (!reserve(c, &c->scratch->back, &c->scratch->back_capacity, chars, 1)) return;
    find_states(c, text, chars);
    for (size_t i = 0; i < chars; i++) {
        uint8_t state = c->scratch->back[i];
        if (state == MC_JIEBA_BEGIN) begin = i;
        if (state == MC_JIEBA_END) put(c, text + 3 * begin, 3 * (i + 1 - begin), i + 1 - begin);
        if (state == MC_JIEBA_SINGLE) put(c, text + 3 * i, 3, 1);
        if (state == MC_JIEBA_END || state == MC_JIEBA_SINGLE) next = i + 1;
    }
    if (next < chars) put(c, text + 3 * next, 3 * (chars - next), chars - next);
}

/* ASCII of a block: numbers and words, `[a-zA-Z0-9]+(\.[0-9]+)?%?`, and what is between them. */
static void cut_ascii(cutter *c, const uint8_t *text, size_t size)
{
    const uint8_t *end = text + size;
    while (text < end) {
        const uint8_t *p = text;
        while (p < end && !is_kind(*p, ALNUM)) p++;
        if (p > text) put(c, text, (size_t)(p - text), (size_t)(p - text));
        text = p;
        while (p < end && is_kind(*p, ALNUM)) p++;
        if (p == text) continue;
        if (end - p > 1 && *p == '.' && is_kind(p[1], DIGIT))
            for (p++; p < end && is_kind(*p, DIGIT);) p++;
        if (p < end && *p == '%') p++;
        put(c, text, (size_t)(p - text), (size_t)(p - text));
        text = p;
    }
}

/* ---- The dictionary -------------------------------------------------------------------------- */

static void cut_chars(cutter *c, const uint8_t *text, size_t size)
{
    for (size_t i = 0, length; i < size; i += length) {
        for (length = 1; i + length < size && continues(text[i + length]);) length++;
        put(c, text + i, length, 1);
    }
}

/* A run of characters that are words by themselves on the best path. */
static void cut_run(cutter *c, const uint8_t *text, size_t size, size_t chars)
{
    const uint8_t *end = text + size;
    if (chars == 1 ||
        (size <= c->jieba->header.longest && mc_trie_find(&c->jieba->trie, text, size) >= 0)) {
        cut_chars(c, text, size);
        return;
    }
    while (text < end) {
        const uint8_t *p = text;
        bool ascii = *p < 128;
        while (p < end && (*p < 128) == ascii) p++;
        if (ascii)
            cut_ascii(c, text, (size_t)(p - text));
        else
            cut_chinese(c, text, (size_t)(p - text));
        text = p;
    }
}

/* The best first word of the block's rest; what follows each word is known already. */
static step best_word(const mc_jieba *jieba, const uint8_t *block, size_t size, size_t at,
                      const step *route)
{
    size_t stop = size - at > jieba->header.longest ? at + jieba->header.longest : size;
    uint32_t state = MC_TRIE_ROOT;
    step best = {.log = -HUGE_VAL};
    for (size_t i = at; i < stop;) {
        state = mc_trie_step(&jieba->trie, state, block[i++]);
        if (state == MC_TRIE_NONE) break;
        int32_t value = jieba->trie.values[state];
        if (value < 0 || (i < size && continues(block[i]))) continue;
        double log = jieba->logs[value] + route[i].log;
        if (log >= best.log) best = (step){log, (uint32_t)i}; /* the longest of equals */
    }
    if (best.end) return best;
    size_t i = at + 1;
    while (i < size && continues(block[i])) i++;
    return (step){jieba->header.unknown + route[i].log, (uint32_t)i};
}

static void cut_block(cutter *c, const uint8_t *block, size_t size)
{
    if (size >= INT32_MAX) {
        c->status = MC_ERR_UNSUPPORTED;
        c->stopped = true;
        return;
    }
    mc_jieba_scratch *s = c->scratch;
    if (!reserve(c, &s->route, &s->route_capacity, size + 1, sizeof *s->route)) return;
    s->route[size] = (step){0};
    for (size_t at = size; at-- > 0;)
        if (!continues(block[at])) s->route[at] = best_word(c->jieba, block, size, at, s->route);
    size_t run = 0, chars = 0; /* where a run of single characters began, and how many they are */
    for (size_t at = 0; at < size && !c->stopped;) {
        size_t end = s->route[at].end, length = 1;
        while (at + length < end && continues(block[at + length])) length++;
        if (at + length == end) {
            chars++;
        } else {
            if (chars) cut_run(c, block + run, at - run, chars);
            size_t count = 0;
            for (size_t i = at; i < end; i++) count += !continues(block[i]);
            put(c, block + at, end - at, count);
            run = end;
            chars = 0;
        }
        at = end;
    }
    if (chars && !c->stopped) cut_run(c, block + run, size - run, chars);
}

/* Where the block ends that begins at `text`; there, if none does. */
static const uint8_t *skip_block(const uint8_t *text, const uint8_t *end)
{
    for (;;) {
        while (text < end && is_kind(*text, IN_BLOCK)) text++;
        uint32_t code = 0;
        if (text == end || (*text & 0xF0) != 0xE0) return text;
        size_t length = mc_utf8_decode(text, end, &code);
        if (!is_chinese(code)) return text;
        text += length;
    }
}

mc_status mc_jieba_cut(const mc_jieba *jieba, mc_jieba_scratch *scratch, const uint8_t *text,
                       size_t size, mc_jieba_emit *emit, void *user)
{
    cutter c = {.jieba = jieba, .scratch = scratch, .emit = emit, .user = user};
    const uint8_t *end = text + size;
    while (text < end && !c.stopped) {
        const uint8_t *stop = skip_block(text, end);
        if (stop > text) {
            cut_block(&c, text, (size_t)(stop - text));
            text = stop;
            continue;
        }
        uint32_t code;
        bool line_end = *text == '\r' && end - text > 1 && text[1] == '\n';
        size_t length = line_end ? 2 : mc_utf8_decode(text, end, &code);
        put(&c, text, length, line_end ? 2 : 1);
        text += length;
    }
    return c.status;
}
