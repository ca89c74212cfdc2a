/* Parses text into a tree of cJSON nodes. cJSON's own parser ends strings at a NUL and keeps
 * numbers only as doubles. This one is strict (RFC 8259) and keeps both in fields that cJSON leaves
 * unused: a string's length in `valueint`, the digits of a long whole number in `valuestring`. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/json_internal.h"

enum { MOST_DEPTH = 64, NUMBER_ROOM = 512, EXACT_DIGITS = 15, MOST_IN_ROW = 1 << 20 };

typedef struct parser {
    mc_error *err;
    const char *name, *text, *at, *end;
    int64_t first_line;
    bool nul; /* strings may hold NUL characters */
    int depth;
    size_t values, most; /* read so far, and the limit: nodes take much more memory than text */
} parser;

/* ---- errors: each returns NULL or false ------------------------------------------------------ */

static int64_t line_at(const parser *p, const char *place)
{
    int64_t line = p->first_line;
    for (const char *c = p->text; c < place; c++) line += *c == '\n';
    return line;
}

static bool flaw(parser *p, const char *place, const char *what)
{
    mc_error_set(p->err, MC_ERR_FORMAT, "%s:%lld: malformed JSON: %s", p->name,
                 (long long)line_at(p, place), what);
    return false;
}

/* Sets the error for text that is not JSON, with the most specific cause known. */
static bool unexpected(parser *p, const char *place)
{
    int shown = 0;
    if (place == p->end) return flaw(p, place, "it ends too early");
    if (!mc_utf8_length(place, (size_t)(p->end - place))) return flaw(p, place, "not UTF-8");
    if ((unsigned char)*place < ' ') return flaw(p, place, "a control character");
    while (shown < 24 && place + shown < p->end && (unsigned char)place[shown] >= ' ') shown++;
    while (shown && !mc_utf8_is_valid(place, (size_t)shown)) shown--;
    mc_error_set(p->err, MC_ERR_FORMAT, "%s:%lld: malformed JSON at \"%.*s\"", p->name,
                 (long long)line_at(p, place), shown, place);
    return false;
}

static bool nomem(parser *p)
{
    mc_error_set(p->err, MC_ERR_NOMEM, "%s: out of memory for its JSON", p->name);
    return false;
}

/* ---- strings --------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The number of four hexadecimal digits; -1 if they are not. */
static int32_t hex_number(const parser *p, const char *digits)
{
    int32_t number = 0;
    for (int i = 0; i < 4; i++) {
        int digit = digits + i < p->end ? hex_digit(digits[i]) : -1;
        if (digit < 0) return -1;
        number = number * 16 + digit;
    }
    return number;
}

static size_t put_utf8(char *to, int32_t c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    size_t more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const int first[] = {0, 0xC0, 0xE0, 0xF0};
    to[0] = (char)(first[more] | c >> (6 * more));
    for (size_t i = 1; i <= more; i++) to[i] = (char)(0x80 | (c >> (6 * (more - i)) & 0x3F));
    return more + 1;
}

/* Reads \uXXXX, or a surrogate pair of two. Returns the bytes written, 0 with an error. */
static size_t read_unicode(parser *p, char *to)
{
    const char *place = p->at;
    int32_t c = hex_number(p, place + 2), low = -1;
    if (c < 0) return flaw(p, place, "\\u without four hexadecimal digits");
    p->at += 6;
    if (c >= 0xD800 && c <= 0xDBFF && p->end - p->at >= 2 && p->at[0] == '\\' && p->at[1] == 'u')
        low = hex_number(p, p->at + 2);
    if (low >= 0xDC00 && low <= 0xDFFF) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        p->at += 6;
    }
    if (c >= 0xD800 && c <= 0xDFFF) return flaw(p, place, "half of a surrogate pair");
    if (!c && !p->nul) return flaw(p, place, "a NUL character");
    return put_utf8(to, c);
}

static size_t read_escape(parser *p, char *to)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    char c = p->end - p->at >= 2 ? p->at[1] : '\0';
    if (c == 'u') return read_unicode(p, to);
    const char *found = c ? strchr(letters, c) : NULL;
    if (!found) return unexpected(p, p->at);
    *to = meant[found - letters];
    p->at += 2;
    return 1;
}

/* Finds the quote that ends a string and checks the bytes before it; NULL with an error. */
static const char *find_quote(parser *p, const char *from)
{
    for (size_t length; from < p->end && *from != '"'; from += length) {
        length = 1;
        if ((signed char)*from >= ' ' && *from != '\\') continue; /* the common case */
        length = mc_utf8_length(from, (size_t)(p->end - from));
        if (!length || (unsigned char)*from < ' ') {
            flaw(p, from, length ? "a control character" : "not UTF-8");
            return NULL;
        }
        if (*from == '\\' && p->end - from >= 2) length = 2;
    }
    if (from < p->end) return from;
    flaw(p, p->at, "a string that does not end");
    return NULL;
}

/* The string that begins with the quote at p->at, for cJSON_free; NULL with an error. */
static char *read_string(parser *p, size_t *size)
{
    const char *quote = find_quote(p, p->at + 1);
    if (!quote) return NULL;
    char *string = cJSON_malloc((size_t)(quote - p->at)), *to = string;
    if (!string) return nomem(p), NULL;
    for (p->at++; p->at < quote;) {
        const char *escape = memchr(p->at, '\\', (size_t)(quote - p->at));
        size_t plain = (size_t)((escape ? escape : quote) - p->at), written = 0;
        memcpy(to, p->at, plain);
        to += plain;
        p->at += plain;
        if (escape && !(written = read_escape(p, to))) {
            cJSON_free(string);
            return NULL;
        }
        to += written;
    }
    p->at = quote + 1;
    *to = '\0';
    *size = (size_t)(to - string);
    return string;
}

static bool read_text(parser *p, cJSON *item)
{
    size_t size;
    item->valuestring = read_string(p, &size);
    item->type = cJSON_String;
    item->valueint = size < INT_MAX ? (int)size : 0;
    return item->valuestring;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static const char *skip_digits(const parser *p, const char *at)
{
    while (at < p->end && *at >= '0' && *at <= '9') at++;
    return at;
}

/* The end of the number at p->at; NULL: no number. *digits becomes a whole number's count of
 * digits. */
static const char *end_of_number(const parser *p, size_t *digits)
{
    const char *at = p->at + (*p->at == '-'), *after = skip_digits(p, at);
    if (after == at || (*at == '0' && after > at + 1)) return NULL;
    *digits = (size_t)(after - at);
    if (after < p->end && *after == '.') {
        *digits = 0;
        at = after + 1;
        if ((after = skip_digits(p, at)) == at) return NULL;
    }
    if (after < p->end && (*after == 'e' || *after == 'E')) {
        *digits = 0;
        at = after + 1;
        if (at < p->end && (*at == '+' || *at == '-')) at++;
        if ((after = skip_digits(p, at)) == at) return NULL;
    }
    return after;
}

static bool read_number(parser *p, cJSON *item)
{
    char text[NUMBER_ROOM];
    size_t digits = 0;
    const char *end = end_of_number(p, &digits);
    size_t size = end ? (size_t)(end - p->at) : 0;
    if (!end) return unexpected(p, p->at);
    if (size >= sizeof text) return flaw(p, p->at, "a number of over 511 characters");
    memcpy(text, p->at, size);
    text[size] = '\0';
    if (digits > EXACT_DIGITS) {
        if (!(item->valuestring = cJSON_malloc(size + 1))) return nomem(p);
        memcpy(item->valuestring, text, size + 1);
    }
    item->type = cJSON_Number;
    if (!mc_number_parse(text, &item->valuedouble)) /* 1e999 */
        item->valuedouble = *text == '-' ? -HUGE_VAL : HUGE_VAL;
    item->valueint = item->valuedouble >= INT_MAX   ? INT_MAX
                     : item->valuedouble <= INT_MIN ? INT_MIN
                                                    : (int)item->valuedouble;
    p->at = end;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void skip_blank(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t'))
        p->at++;
}

/* Skips a character and the white space around it; false if the next character differs. */
static bool pass(parser *p, char c)
{
    skip_blank(p);
    if (p->at == p->end || *p->at != c) return false;
    p->at++;
    skip_blank(p);
    return true;
}

static cJSON *read_value(parser *p);

/* Appends an item as cJSON does: the first item's `prev` points to the last. */
static void append(cJSON *list, cJSON *item)
{
    cJSON *first = list->child, *last = first ? first->prev : NULL;
    if (last) last->next = item;
    if (!last) list->child = item;
    item->prev = last ? last : item;
    list->child->prev = item;
}

/* `"key": value`. */
static cJSON *read_member(parser *p)
{
    size_t size;
    bool nul = p->nul;
    if (p->at == p->end || *p->at != '"') return unexpected(p, p->at), NULL;
    p->nul = false; /* keys are compared as C strings */
    char *key = read_string(p, &size);
    p->nul = nul;
    if (!key) return NULL;
    cJSON *value = NULL;
    if (pass(p, ':'))
        value = read_value(p);
    else
        unexpected(p, p->at);
    if (value)
        value->string = key;
    else
        cJSON_free(key);
    return value;
}

static bool read_list(parser *p, cJSON *list, char closes)
{
    if (++p->depth > MOST_DEPTH) return flaw(p, p->at, "nested deeper than 64 levels");
    list->type = closes == '}' ? cJSON_Object : cJSON_Array;
    p->at++;
    skip_blank(p);
    bool ended = pass(p, closes);
    while (!ended) {
        cJSON *item = closes == '}' ? read_member(p) : read_value(p);
        if (!item) return false;
        append(list, item);
        bool more = pass(p, ',');
        ended = !more && pass(p, closes);
        if (!more && !ended) return unexpected(p, p->at);
    }
    p->depth--;
    return true;
}

static bool read_word(parser *p, cJSON *item)
{
    static const struct {
        const char *word;
        int type;
    } words[] = {{"true", cJSON_True}, {"false", cJSON_False}, {"null", cJSON_NULL}};
    for (int i = 0; i < 3; i++) {
        size_t size = strlen(words[i].word);
        if ((size_t)(p->end - p->at) < size || memcmp(p->at, words[i].word, size) != 0) continue;
        item->type = words[i].type;
        item->valueint = item->type == cJSON_True;
        p->at += size;
        return true;
    }
    return unexpected(p, p->at);
}

static cJSON *read_value(parser *p)
{
    skip_blank(p);
    char c = p->at < p->end ? *p->at : '\0';
    if (p->values++ == p->most) return flaw(p, p->at, "over 1048576 values in a row"), NULL;
    cJSON *item = cJSON_CreateNull();
    if (!item) return nomem(p), NULL;
    bool good = c == '"'                             ? read_text(p, item)
                : c == '{' || c == '['               ? read_list(p, item, c == '{' ? '}' : ']')
                : c == '-' || (c >= '0' && c <= '9') ? read_number(p, item)
                                                     : read_word(p, item);
    if (good) return item;
    cJSON_Delete(item);
    return NULL;
}

static cJSON *parse(mc_error *err, const char *text, size_t size, const char *name,
                    int64_t first_line, bool nul, size_t most)
{
    if (size && !text[size - 1]) size--; /* a NUL that the size includes */
    parser p = {.err = err, .name = name, .text = text, .end = text + size, .nul = nul};
    p.most = most;
    p.first_line = first_line;
    p.at = text;
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) p.at += 3;
    cJSON *value = read_value(&p);
    skip_blank(&p);
    if (!value || p.at == p.end) return value;
    cJSON_Delete(value);
    unexpected(&p, p.at);
    return NULL;
}

cJSON *mc_json_parse(mc_error *err, const char *text, size_t size, const char *name,
                     int64_t first_line)
{
    return parse(err, text, size, name, first_line, false, SIZE_MAX);
}

cJSON *mc_json_parse_row(mc_error *err, const char *text, size_t size, const char *name,
                         int64_t first_line, bool nul)
{
    return parse(err, text, size, name, first_line, nul, MOST_IN_ROW);
}

cJSON *mc_json_parse_own(const char *text)
{
    mc_error none = {0};
    cJSON *value = mc_json_parse(&none, text, strlen(text), "a text of the library", 1);
    mc_error_clear(&none);
    return value;
}

/* ---- what the nodes keep --------------------------------------------------------------------- */

size_t mc_json_length(const cJSON *string)
{
    return string->valueint > 0 ? (size_t)string->valueint : strlen(string->valuestring);
}

const char *mc_json_number(const cJSON *number, char room[MC_JSON_NUMBER_ROOM])
{
    if (number->valuestring) return number->valuestring;
    for (int digits = EXACT_DIGITS; digits <= 17; digits++) {
        double again;
        mc_number_print(room, digits, number->valuedouble);
        if (mc_number_parse(room, &again) && again == number->valuedouble) break;
    }
    return room;
}
