/* Pieces to tokens. */
#include <string.h>
#include "core/base/memory_internal.h"
#include "datasets/table/jsonl_internal.h"
#include "datasets/lm/prepare_internal.h"
#include "tokenizers/details.h"

void mc_piece_tokens_release(mc_piece_tokens *tokens)
{
    mc_encoding_release(&tokens->encoding);
    mc_free(tokens->ends);
    *tokens = (mc_piece_tokens){0};
}

/* The number of the file's line that byte `at` is in, from 1. */
static int64_t line_of(const mc_input *input, size_t at)
{
    int64_t line = input->line + 1;
    const char *from = input->text, *end = from + at;
    while (from < end && (from = memchr(from, '\n', (size_t)(end - from)))) {
        line++;
        from++;
    }
    return line;
}

/* The first byte that is no UTF-8, NULL if there is none. Text is mostly ASCII, eight bytes at a
 * time. */
static const char *find_bad_byte(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint64_t word = 0;
        while (size - at >= sizeof word) {
            memcpy(&word, text + at, sizeof word);
            if (word & 0x8080808080808080u) break;
            at += sizeof word;
        }
        if (at == size) break;
        size_t length = mc_utf8_length(text + at, size - at);
        if (!length) return text + at;
        at += length;
    }
    return NULL;
}

static mc_status end_document(mc_error *err, const mc_input *input, mc_piece_tokens *out)
{
    if (!mc_grow(&out->ends, &out->capacity, out->count, sizeof *out->ends))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its documents", input->path);
    out->ends[out->count++] = out->encoding.count;
    return MC_OK;
}

static mc_status append(mc_error *err, const mc_input *input, int64_t line, const char *text,
                        size_t size, const mc_tokenizer *tok, mc_piece_tokens *out)
{
    mc_status status = mc_tokenizer_append(tok, text, size, &out->encoding);
    if (status == MC_OK) return MC_OK;
    return mc_error_set(err, status, "%s:%lld: cannot tokenize %zu bytes: %s", input->path,
                        (long long)line, size, mc_status_text(status));
}

static mc_status encode_text(mc_error *err, const mc_piece *piece, const mc_tokenizer *tok,
                             mc_piece_tokens *out)
{
    const mc_input *input = piece->input;
    size_t size = piece->end - piece->begin;
    const char *text = size ? input->text + piece->begin : "";
    const char *bad = find_bad_byte(text, size);
    if (bad)
        return mc_error_set(
            err, MC_ERR_FORMAT, "%s:%lld: not UTF-8: byte 0x%02X at offset %zu", input->path,
            (long long)line_of(input, piece->begin + (size_t)(bad - text)),
            (unsigned)(unsigned char)*bad, input->offset + piece->begin + (size_t)(bad - text));
    mc_status status = append(err, input, 1, text, size, tok, out);
    return status || !piece->closes ? status : end_document(err, input, out);
}

/* `line` is the number of lines before the piece. */
static mc_status encode_lines(mc_error *err, const mc_piece *piece, int64_t line,
                              const mc_tokenizer *tok, const char *json_key, mc_piece_tokens *out)
{
    const mc_input *input = piece->input;
    mc_jsonl reader;
    mc_jsonl_init(&reader, err, input->path, input->text + piece->begin, piece->end - piece->begin);
    reader.at = 0; /* a byte order mark is left out already, and elsewhere it is an error */
    reader.line = line;
    reader.nul = true;
    mc_status status = MC_OK;
    while (!status && mc_jsonl_next(&reader)) {
        size_t size;
        const char *text = mc_jsonl_string(&reader, json_key, &size);
        status = text ? append(err, input, reader.line, text, size, tok, out) : err->status;
        if (!status) status = end_document(err, input, out);
    }
    mc_jsonl_release(&reader);
    return status ? status : err->status;
}

/* A list being read. */
typedef struct list_reader {
    mc_jsonl json;
    const char *text; /* (size) of the piece */
    size_t at, size;
    int64_t line; /* that `at` is in, from 1 */
    bool closes;  /* the file ends with the piece */
} list_reader;

/* Passes white space; the byte that follows, or -1 at the piece's end. */
static int next_byte(list_reader *l)
{
    size_t at = mc_json_skip_space(l->text, l->at, l->size);
    for (; l->at < at; l->at++) l->line += l->text[l->at] == '\n';
    l->json.line = l->line;
    return at < l->size ? (unsigned char)l->text[at] : -1;
}

/* Parses the object at `at` and moves past it. */
static bool read_object(list_reader *l)
{
    size_t end = mc_json_value_end(l->text, l->at, l->size);
    if (!mc_jsonl_parse(&l->json, l->text + l->at, end - l->at, l->line)) return false;
    for (; l->at < end; l->at++) l->line += l->text[l->at] == '\n';
    return true;
}

/* Goes to the next object; false after the last one, and after an error. */
static bool next_object(list_reader *l, bool first)
{
    int c = next_byte(l);
    if (!first && c == ',') {
        l->at++;
        c = next_byte(l);
        if (c < 0 && !l->closes) return false; /* the next piece begins with an object */
    } else if (c == ']') {
        l->at++;
        if (next_byte(l) >= 0)
            mc_jsonl_fail(&l->json, "%s after the end of the list of objects", "text");
        return false;
    } else if (!first && c >= 0) {
        mc_jsonl_fail(&l->json, "expected a comma or %s after the object before", "]");
        return false;
    }
    if (c < 0) mc_jsonl_fail(&l->json, "the list of objects does not end, expected %s", "]");
    return c >= 0 && read_object(l);
}

/* The same of a list of objects. */
static mc_status encode_list(mc_error *err, const mc_piece *piece, int64_t line,
                             const mc_tokenizer *tok, const char *json_key, mc_piece_tokens *out)
{
    const mc_input *input = piece->input;
    list_reader l = {.text = input->text + piece->begin,
                     .size = piece->end - piece->begin,
                     .line = line + 1,
                     .closes = piece->closes};
    mc_jsonl_init(&l.json, err, input->path, NULL, 0);
    l.json.nul = true;
    if (piece->opens && next_byte(&l) == '[') l.at++;
    mc_status status = MC_OK;
    for (bool first = true; !status && next_object(&l, first); first = false) {
        size_t size;
        const char *text = mc_jsonl_string(&l.json, json_key, &size);
        status = text ? append(err, input, l.json.line, text, size, tok, out) : err->status;
        if (!status) status = end_document(err, input, out);
    }
    mc_jsonl_release(&l.json);
    return status ? status : err->status;
}

static mc_status encode_json(mc_error *err, const mc_piece *piece, int64_t line,
                             const mc_tokenizer *tok, const char *json_key, mc_piece_tokens *out)
{
    return (piece->input->list ? encode_list : encode_lines)(err, piece, line, tok, json_key, out);
}

mc_status mc_piece_encode(mc_error *err, const mc_piece *piece, const mc_tokenizer *tok,
                          const char *json_key, mc_piece_tokens *out)
{
    out->encoding.count = out->count = 0;
    if (!piece->input->lines) return encode_text(err, piece, tok, out);
    if (piece->begin == piece->end) return MC_OK;
    mc_status status = encode_json(err, piece, 0, tok, json_key, out);
    if (status != MC_ERR_FORMAT || piece->opens) return status;
    /* which line that is in the file is counted only now that somebody wants to know */
    mc_error_clear(err);
    out->encoding.count = out->count = 0;
    return encode_json(err, piece, line_of(piece->input, piece->begin) - 1, tok, json_key, out);
}
