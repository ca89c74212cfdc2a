/* Compares the tokenizer with recorded results:  check_tokenizer VOCAB_FOLDER FILE.jsonl
 *
 * Each line of the file is an object with "text" (or "text_hex", for bytes that are no UTF-8) and
 * "ids", and optionally "pair", "max_length" (0
 * or absent: no truncation), "type_ids" and "decoded" (of "ids": with the special tokens if it
 * begins with the first of them, or, if the tokenizer has an end-of-text token, holds that one;
 * else without; "skip_special" says it where it is there). Prints the first misses and, last,
 * `N of M exact`. Returns 0 when all are exact, 1 when not, 2 with an error message when there is
 * nothing to compare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/base/json_internal.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/details.h"

enum { SHOWN_MISSES = 10, FILE_LIMIT = 1 << 30 };

/* Bytes of a JSON string, NULs included. */
typedef struct json_text {
    char *data; /* heap; NULL: absent */
    size_t size;
} json_text;

typedef struct numbers {
    int32_t *values; /* heap */
    size_t count;
    bool there;
} numbers;

typedef struct record {
    json_text text, pair, decoded;
    numbers ids, type_ids;
    int64_t max_length;
    bool says_skip, skip; /* "skip_special" */
} record;

typedef struct checker {
    mc_context *ctx;
    mc_tokenizer *tok;
    mc_encoding encoding;
    const char *path;
    int64_t line;
    char name[MC_PATH_MAX + 32]; /* "path:line" */
    size_t total, exact, shown;
} checker;

static bool read_text(checker *c, const cJSON *object, const char *key, json_text *out)
{
    const char *value = NULL;
    if (!mc_json_get_string(&c->ctx->error, object, c->name, key, &value)) return false;
    if (!value) return true;
    out->size = mc_json_length(cJSON_GetObjectItemCaseSensitive(object, key));
    out->data = mc_malloc(out->size + 1);
    if (!out->data) return mc_fail_nomem(c->ctx, "a line") == MC_OK;
    memcpy(out->data, value, out->size + 1);
    return true;
}

/* The value of a hexadecimal digit, or -1. */
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The bytes that pairs of hexadecimal digits stand for. */
static bool read_hex(checker *c, const cJSON *object, json_text *out)
{
    const char *p = NULL;
    if (out->data || !mc_json_get_string(&c->ctx->error, object, c->name, "text_hex", &p))
        return out->data != NULL;
    if (!p) return true;
    out->data = mc_strndup(p, strlen(p));
    if (!out->data) return mc_fail_nomem(c->ctx, "a line") == MC_OK;
    for (; hex_digit(p[0]) >= 0 && hex_digit(p[1]) >= 0; p += 2)
        out->data[out->size++] = (char)(hex_digit(p[0]) << 4 | hex_digit(p[1]));
    if (*p) mc_fail(c->ctx, MC_ERR_FORMAT, "%s: \"text_hex\": expected digits", c->name);
    return !*p;
}

static bool read_numbers(checker *c, const cJSON *object, const char *key, numbers *out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(object, key), *item;
    if (!list) return true;
    out->there = cJSON_IsArray(list);
    if (out->there) out->values = mc_calloc((size_t)cJSON_GetArraySize(list), sizeof *out->values);
    if (out->there && !out->values) return mc_fail_nomem(c->ctx, "a line") == MC_OK;
    cJSON_ArrayForEach(item, list)
    {
        if (!out->there || !cJSON_IsNumber(item) || item->valuedouble != (int32_t)item->valueint)
            out->there = false;
        else
            out->values[out->count++] = item->valueint;
    }
    if (!out->there)
        mc_fail(c->ctx, MC_ERR_FORMAT, "%s: key \"%s\": expected a list of whole numbers", c->name,
                key);
    return out->there;
}

static bool read_record(checker *c, const char *line, size_t size, record *r)
{
    cJSON *object = mc_json_parse_row(&c->ctx->error, line, size, c->path, c->line, true);
    bool ok = object && read_text(c, object, "text", &r->text) && read_hex(c, object, &r->text) &&
              read_text(c, object, "pair", &r->pair) &&
              read_text(c, object, "decoded", &r->decoded) &&
              read_numbers(c, object, "ids", &r->ids) &&
              read_numbers(c, object, "type_ids", &r->type_ids) &&
              mc_json_get_bool(&c->ctx->error, object, c->name, "skip_special", &r->skip) &&
              mc_json_get_int(&c->ctx->error, object, c->name, "max_length", 0, INT32_MAX,
                              &r->max_length);
    if (ok && (!r->text.data || !r->ids.there)) {
        mc_fail(c->ctx, MC_ERR_FORMAT, "%s: expected an object with \"text\" and \"ids\"", c->name);
        ok = false;
    }
    r->says_skip = cJSON_HasObjectItem(object, "skip_special");
    cJSON_Delete(object);
    return ok;
}

static void release_record(record *r)
{
    mc_free(r->text.data);
    mc_free(r->pair.data);
    mc_free(r->decoded.data);
    mc_free(r->ids.values);
    mc_free(r->type_ids.values);
}

static void print_ids(const char *label, const int32_t *ids, size_t count)
{
    printf("  %s (%zu):", label, count);
    for (size_t i = 0; i < count && i < 64; i++) printf(" %d", ids[i]);
    puts(count > 64 ? " ..." : "");
}

static bool check_ids(checker *c, const record *r, bool show)
{
    const mc_encoding *e = &c->encoding;
    bool same = e->count == r->ids.count &&
                (!e->count || memcmp(e->ids, r->ids.values, e->count * sizeof *e->ids) == 0);
    if (!same && show) {
        printf("%s: ids differ\n", c->name);
        print_ids("expected", r->ids.values, r->ids.count);
        print_ids("got", e->ids, e->count);
    }
    return same;
}

static bool check_type_ids(checker *c, const record *r, bool show)
{
    const mc_encoding *e = &c->encoding;
    if (!r->type_ids.there) return true;
    bool same = e->count == r->type_ids.count;
    for (size_t i = 0; same && i < e->count; i++) same = e->type_ids[i] == r->type_ids.values[i];
    if (same || !show) return same;
    printf("%s: type_ids differ\n", c->name);
    print_ids("expected", r->type_ids.values, r->type_ids.count);
    printf("  got (%zu):", e->count);
    for (size_t i = 0; i < e->count && i < 64; i++) printf(" %d", e->type_ids[i]);
    puts(e->count > 64 ? " ..." : "");
    return false;
}

/* Whether the recorded text was decoded with its special tokens. */
static bool keeps_special(const checker *c, const record *r)
{
    const char *first = r->ids.count ? mc_tokenizer_id_to_token(c->tok, r->ids.values[0]) : NULL;
    const char *end = mc_tokenizer_id_to_token(c->tok, mc_tokenizer_end_of_text_id(c->tok));
    if (end) return memmem(r->decoded.data, r->decoded.size, end, strlen(end)) != NULL;
    return first && strncmp(r->decoded.data, first, strlen(first)) == 0;
}

static bool check_decoded(checker *c, const record *r, bool show)
{
    if (!r->decoded.data) return true;
    mc_decode_options options = {.skip_special = r->says_skip ? r->skip : !keeps_special(c, r)};
    size_t size = 0;
    char *got = mc_tokenizer_decode_sized(c->tok, r->ids.values, r->ids.count, &options, &size);
    if (!got) return false; /* the context's error says why */
    bool same = size == r->decoded.size && memcmp(got, r->decoded.data, r->decoded.size) == 0;
    if (!same && show)
        printf("%s: decoded text differs\n  expected: %s\n  got: %s\n", c->name, r->decoded.data,
               got);
    mc_string_free(got);
    return same;
}

static bool check_record(checker *c, const record *r)
{
    bool show = c->shown < SHOWN_MISSES;
    mc_status status = mc_tokenizer_encode(c->tok, r->text.data, r->text.size, r->pair.data,
                                           r->pair.size, (size_t)r->max_length, &c->encoding);
    if (status) {
        mc_fail(c->ctx, status, "%s: cannot be encoded with max_length %lld", c->name,
                (long long)r->max_length);
        return false;
    }
    bool exact = check_ids(c, r, show);
    exact = check_type_ids(c, r, show) && exact;
    exact = check_decoded(c, r, show) && exact;
    c->total++;
    c->exact += exact;
    c->shown += !exact;
    return true;
}

static void check_file(checker *c)
{
    size_t size;
    char *text = mc_file_read(&c->ctx->error, c->path, FILE_LIMIT, &size);
    if (!text) return;
    char *end = text + size;
    for (char *p = text, *stop; p < end && !mc_failed(c->ctx); p = stop + 1) {
        record r = {0};
        stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        snprintf(c->name, sizeof c->name, "%s:%lld", c->path, (long long)++c->line);
        if (read_record(c, p, (size_t)(stop - p), &r)) check_record(c, &r);
        release_record(&r);
    }
    mc_free(text);
    if (!mc_failed(c->ctx) && !c->total) mc_fail(c->ctx, MC_ERR_FORMAT, "%s: no lines", c->path);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: check_tokenizer VOCAB_FOLDER FILE.jsonl\n", stderr);
        return 2;
    }
    checker c = {.ctx = mc_init_distributed(NULL), .path = argv[2]};
    c.tok = mc_tokenizer_from_pretrained(c.ctx, argv[1]);
    if (c.tok) check_file(&c);
    int result = c.exact == c.total ? 0 : 1;
    if (mc_failed(c.ctx)) {
        mc_print_error(c.ctx, stderr);
        result = 2;
    } else {
        printf("%zu of %zu exact\n", c.exact, c.total);
    }
    mc_encoding_release(&c.encoding);
    mc_context_free(c.ctx);
    return result;
}
