#include "tokenizers/cpm/jieba_internal.h"

#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/base/number_internal.h"
#include "tokenizers/unicode/unicode_internal.h"

/* ---- dict.txt -------------------------------------------------------------------------------- */

static mc_status bad_line(mc_error *err, const mc_jieba_source *source, size_t line,
                          const char *text, size_t length)
{
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s:%zu: \"%.*s\": expected a word in UTF-8, a space, a frequency of at "
                        "most 2^53, and perhaps a space and a tag",
                        source->path, line, (int)(length < 80 ? length : 80), text);
}

/* Digits up to a space or the end; false for anything else. */
static bool parse_frequency(const char *text, const char *end, uint64_t *frequency)
{
    const char *p = text;
    *frequency = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        *frequency = *frequency * 10 + (uint64_t)(*p - '0');
        if (*frequency > UINT64_C(1) << 53) return false;
    }
    return p > text && (p == end || *p == ' ');
}

static mc_status parse_line(mc_error *err, const mc_jieba_source *source, size_t line,
                            const char *text, size_t length, mc_jieba_words *words)
{
    if (length && text[length - 1] == '\r') length--;
    const char *end = text + length, *space = memchr(text, ' ', length);
    mc_jieba_word word = {.text = text, .line = (uint32_t)line};
    if (!space || space == text || !parse_frequency(space + 1, end, &word.frequency) ||
        mc_utf8_find_invalid((const uint8_t *)text, (const uint8_t *)space))
        return bad_line(err, source, line, text, length);
    word.length = (uint32_t)(space - text);
    if (space - text > MC_JIEBA_WORD_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%zu: a word of %td bytes, expected %d at most",
                            source->path, line, space - text, MC_JIEBA_WORD_MAX);
    if (!mc_grow(&words->items, &words->capacity, words->count, sizeof *words->items))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its words", source->path);
    words->items[words->count++] = word;
    return MC_OK;
}

mc_status mc_jieba_parse_dict(mc_error *err, const mc_jieba_source *source, mc_jieba_words *words)
{
    const char *text = source->text, *end = text + source->size;
    mc_status status = MC_OK;
    if (text == end) return mc_error_set(err, MC_ERR_FORMAT, "%s: empty file", source->path);
    for (size_t line = 1; text < end && !status; line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        if (line > MC_JIEBA_WORDS_MAX)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: more than %d lines", source->path,
                                MC_JIEBA_WORDS_MAX);
        status = parse_line(err, source, line, text, (size_t)(stop - text), words);
        text = stop + (stop < end);
    }
    return status;
}

/* ---- prob_*.py ------------------------------------------------------------------------------- */

typedef struct parser {
    mc_error *err;
    const mc_jieba_source *source;
    const char *at, *end;
    mc_jieba_take *take;
    void *user;
} parser;

static mc_status expected(const parser *p, const char *what)
{
    size_t line = 1;
    for (const char *c = p->source->text; c < p->at; c++) line += *c == '\n';
    size_t left = (size_t)(p->end - p->at), shown = left < 20 ? left : 20;
    return mc_error_set(p->err, MC_ERR_FORMAT, "%s:%zu: expected %s, found \"%.*s\"",
                        p->source->path, line, what, (int)shown, p->at);
}

static void skip_space(parser *p)
{
    while (p->at < p->end && memchr(" \t\r\n", *p->at, 4)) p->at++;
}

/* Passes a character, after white space. */
static bool pass(parser *p, char c)
{
    skip_space(p);
    bool there = p->at < p->end && *p->at == c;
    p->at += there;
    return there;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *found = c ? strchr(digits, c | 32) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* `\uXXXX` without the backslash. */
static bool parse_escape(parser *p, uint32_t *c)
{
    if (p->end - p->at < 5 || *p->at != 'u') return false;
    *c = 0;
    for (int i = 1; i <= 4; i++) {
        int digit = hex_digit(p->at[i]);
        if (digit < 0) return false;
        *c = *c * 16 + (uint32_t)digit;
    }
    p->at += 5;
    return true;
}

/* 'x': with a colon after it. */
static mc_status parse_key(parser *p, uint32_t *c)
{
    const char *what = "a character in single quotes and a colon";
    if (!pass(p, '\'') || p->at == p->end) return expected(p, what);
    if (*p->at == '\\') {
        p->at++;
        if (!parse_escape(p, c)) return expected(p, "an escape of the form \\uXXXX");
    } else {
        p->at += mc_utf8_decode((const uint8_t *)p->at, (const uint8_t *)p->end, c);
    }
    if (p->at == p->end || *p->at++ != '\'' || !pass(p, ':')) return expected(p, what);
    return MC_OK;
}

static mc_status parse_number(parser *p, double *value)
{
    char text[64]; /* the source need not end in a NUL */
    size_t length = 0;
    skip_space(p);
    const char *at = p->at;
    while (at < p->end && length + 1 < sizeof text && memchr("+-.0123456789eE", *at, 15))
        text[length++] = *at++;
    text[length] = '\0';
    /* beyond that sums of a sentence might not be finite */
    if (!mc_number_parse(text, value) || *value < MC_JIEBA_NEVER || *value > 0)
        return expected(p, "a logarithm of a probability, from -3.14e100 to 0");
    p->at = at;
    return MC_OK;
}

static int state_of(uint32_t c)
{
    const char *names = "BEMS", *found = c && c < 128 ? strchr(names, (int)c) : NULL;
    return found ? (int)(found - names) : -1;
}

/* {'x': number, ...}, of which each key goes with `state`; -1: the keys are the states. */
static mc_status parse_numbers(parser *p, int state)
{
    if (!pass(p, '{')) return expected(p, "a dictionary");
    if (pass(p, '}')) return MC_OK;
    for (;;) {
        uint32_t key;
        double value;
        if (parse_key(p, &key)) return p->err->status;
        if (state < 0 && state_of(key) < 0) return expected(p, "B, E, M or S as its key");
        if (parse_number(p, &value)) return p->err->status;
        mc_status status = p->take(p->user, state < 0 ? state_of(key) : state, key, value);
        if (status == MC_ERR_NOMEM)
            return mc_error_set(p->err, status, "%s: out of memory", p->source->path);
        if (status) return expected(p, "each key once");
        if (pass(p, '}')) return MC_OK;
        if (!pass(p, ',')) return expected(p, "a comma or the dictionary's end");
    }
}

static mc_status parse_nested(parser *p)
{
    int seen = 0;
    if (!pass(p, '{')) return expected(p, "a dictionary");
    for (;;) {
        uint32_t key;
        if (parse_key(p, &key)) return p->err->status;
        int state = state_of(key);
        if (state < 0 || seen & 1 << state) return expected(p, "B, E, M and S as keys, each once");
        seen |= 1 << state;
        if (parse_numbers(p, state)) return p->err->status;
        if (pass(p, '}')) break;
        if (!pass(p, ',')) return expected(p, "a comma or the dictionary's end");
    }
    return seen == 15 ? MC_OK : expected(p, "all of B, E, M and S before the dictionary's end");
}

/* Passes lines over up to and with the P= of one. */
static bool find_p(parser *p)
{
    while (p->end - p->at >= 2 && memcmp(p->at, "P=", 2) != 0) {
        const char *stop = memchr(p->at, '\n', (size_t)(p->end - p->at));
        p->at = stop ? stop + 1 : p->end;
    }
    if (p->end - p->at < 2) return false;
    p->at += 2;
    return true;
}

mc_status mc_jieba_parse_p(mc_error *err, const mc_jieba_source *source, bool nested,
                           mc_jieba_take *take, void *user)
{
    parser p = {.err = err,
                .source = source,
                .at = source->text,
                .end = source->text + source->size,
                .take = take,
                .user = user};
    if (!find_p(&p)) return expected(&p, "a line that begins with P=");
    mc_status status = nested ? parse_nested(&p) : parse_numbers(&p, -1);
    skip_space(&p);
    if (!status && p.at < p.end) status = expected(&p, "nothing after the dictionary");
    return status;
}
