/* Inputs to pieces, and pieces to tokens. Where a piece ends depends on the input alone, so results
 * do not depend on the threads. */
#include <string.h>
#include "core/base/memory_internal.h"
#include "datasets/jsonl_internal.h"
#include "datasets/lm/prepare_internal.h"

/* ---- inputs ---- */

bool mc_input_is_lines(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot &&
           (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0 || strcmp(dot, ".json") == 0);
}

void mc_input_unref(mc_input *input)
{
    if (!input || --input->references) return;
    mc_file_map_release(&input->map);
    mc_free(input);
}

static mc_input *open_input(mc_error *err, const char *path)
{
    mc_input *input = mc_calloc(1, sizeof *input);
    if (!input) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for reading it", path);
        return NULL;
    }
    input->path = path;
    input->references = 1;
    input->lines = mc_input_is_lines(path);
    if (mc_file_map_init(err, &input->map, path) == MC_OK) return input;
    mc_input_unref(input);
    return NULL;
}

/* ---- cutting ---- */

static const char *text_of(const mc_input *input) { return (const char *)input->map.data; }

/* Bytes of a byte order mark. */
static size_t mark_size(const mc_input *input)
{
    return input->map.size >= 3 && memcmp(input->map.data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* Where the piece from `at` on ends. */
static size_t find_end(const mc_piece_source *source, size_t at)
{
    const mc_input *input = source->input;
    size_t left = input->map.size - at;
    if (left <= MC_PIECE_BYTES) return input->map.size;
    const char *text = text_of(input) + at;
    if (!input->lines) return at + mc_tokenizer_cut(source->tok, text, left, MC_PIECE_BYTES);
    const char *end = memchr(text + MC_PIECE_BYTES, '\n', left - MC_PIECE_BYTES);
    return end ? at + (size_t)(end - text) + 1 : input->map.size;
}

bool mc_piece_next(mc_error *err, mc_piece_source *source, mc_piece *piece)
{
    bool opens = !source->input;
    if (opens) {
        if (source->next == source->count) return false;
        source->input = open_input(err, source->paths[source->next++]);
        if (!source->input) return false;
        source->at = mark_size(source->input);
    }
    mc_input *input = source->input;
    size_t end = find_end(source, source->at);
    *piece = (mc_piece){
        .input = input,
        .begin = source->at,
        .end = end,
        .opens = opens,
        .closes = end == input->map.size,
    };
    source->at = end;
    if (piece->closes)
        source->input = NULL; /* the piece takes over the reference */
    else
        input->references++;
    return true;
}

/* ---- tokens ---- */

void mc_piece_tokens_release(mc_piece_tokens *tokens)
{
    mc_encoding_release(&tokens->encoding);
    mc_free(tokens->ends);
    *tokens = (mc_piece_tokens){0};
}

/* The number of the line that byte `at` is in, from 1. */
static int64_t line_of(const mc_input *input, size_t at)
{
    int64_t line = 1;
    const char *from = text_of(input), *end = from + at;
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
    const char *text = size ? text_of(input) + piece->begin : "";
    const char *bad = find_bad_byte(text, size);
    if (bad)
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%lld: not UTF-8: byte 0x%02X at offset %zu",
                            input->path,
                            (long long)line_of(input, piece->begin + (size_t)(bad - text)),
                            (unsigned)(unsigned char)*bad, piece->begin + (size_t)(bad - text));
    mc_status status = append(err, input, 1, text, size, tok, out);
    return status || !piece->closes ? status : end_document(err, input, out);
}

/* `line` is the number of lines before the piece. */
static mc_status encode_lines(mc_error *err, const mc_piece *piece, int64_t line,
                              const mc_tokenizer *tok, const char *json_key, mc_piece_tokens *out)
{
    const mc_input *input = piece->input;
    mc_jsonl reader;
    mc_jsonl_init(&reader, err, input->path, text_of(input) + piece->begin,
                  piece->end - piece->begin);
    reader.at = 0; /* a byte order mark is left out already, and elsewhere it is an error */
    reader.line = line;
    mc_status status = MC_OK;
    while (!status && mc_jsonl_next(&reader)) {
        const char *text = mc_jsonl_string(&reader, json_key);
        status = text ? append(err, input, reader.line, text, strlen(text), tok, out) : err->status;
        if (!status) status = end_document(err, input, out);
    }
    mc_jsonl_release(&reader);
    return status ? status : err->status;
}

mc_status mc_piece_encode(mc_error *err, const mc_piece *piece, const mc_tokenizer *tok,
                          const char *json_key, mc_piece_tokens *out)
{
    out->encoding.count = out->count = 0;
    if (!piece->input->lines) return encode_text(err, piece, tok, out);
    if (piece->begin == piece->end) return MC_OK;
    mc_status status = encode_lines(err, piece, 0, tok, json_key, out);
    if (status != MC_ERR_FORMAT || piece->opens) return status;
    /* which line that is in the file is counted only now that somebody wants to know */
    mc_error_clear(err);
    out->encoding.count = out->count = 0;
    return encode_lines(err, piece, line_of(piece->input, piece->begin) - 1, tok, json_key, out);
}
