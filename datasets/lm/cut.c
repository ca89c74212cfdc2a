/* Inputs to pieces. Where a piece ends depends on the input alone, so results do not depend on the
 * threads.
 *
 * Files are read, and .gz inflated, piece by piece, each into memory of its own: by whichever
 * thread takes the next one, while the others tokenize. */
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"
#include "datasets/lm/prepare_internal.h"
#include "tokenizers/details.h"

enum { AHEAD = 1 << 16 }; /* bytes after a piece, to find a place where it can end */

/* ---- inputs ---- */

static bool ends_in(const char *path, size_t length, const char *ending)
{
    size_t tail = strlen(ending);
    return length >= tail && memcmp(path + length - tail, ending, tail) == 0;
}

bool mc_input_is_lines(const char *path)
{
    size_t length = strlen(path);
    if (mc_path_is_gzip(path)) length -= strlen(".gz");
    return ends_in(path, length, ".jsonl") || ends_in(path, length, ".ndjson") ||
           ends_in(path, length, ".json");
}

void mc_input_free(mc_input *input)
{
    if (!input) return;
    mc_free(input->text);
    mc_free(input);
}

static mc_input *new_input(mc_error *err, const char *path)
{
    mc_input *input = mc_calloc(1, sizeof *input);
    if (!input) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for reading it", path);
        return NULL;
    }
    input->path = path;
    input->lines = mc_input_is_lines(path);
    return input;
}

/* Bytes of a byte order mark. */
static size_t mark_size(const mc_input *input)
{
    return input->size >= 3 && memcmp(input->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* ---- lists of objects ---- */

size_t mc_json_skip_space(const char *text, size_t at, size_t size)
{
    while (at < size && strchr(" \t\r\n", text[at]) && text[at]) at++;
    return at;
}

size_t mc_json_value_end(const char *text, size_t at, size_t size)
{
    bool in_string = false;
    for (int depth = 0; at < size; at++) {
        char c = text[at];
        if (in_string && c == '\\')
            at++;
        else if (c == '"')
            in_string = !in_string;
        else if (in_string)
            continue;
        else if (c == '{' || c == '[')
            depth++;
        else if (depth && (c == '}' || c == ']') && --depth == 0)
            return at + 1;
        else if (!depth && (c == ',' || c == ']'))
            return at;
    }
    return size;
}

/* Whether JSON begins with a bracket: one list of objects, and not an object a line. */
static bool is_list(const mc_input *input)
{
    size_t at = mc_json_skip_space(input->text, mark_size(input), input->size);
    return input->lines && at < input->size && input->text[at] == '[';
}

/* A piece of a list ends after a comma between two objects, the last one after the bracket. */
static size_t find_list_end(const mc_input *input, size_t at)
{
    const char *text = input->text;
    size_t size = input->size, from = at;
    at = mc_json_skip_space(text, at, size);
    if (at < size && text[at] == '[') at++;
    while (at < size) {
        at = mc_json_value_end(text, at, size);
        at = mc_json_skip_space(text, at, size);
        if (at >= size) return size;
        char c = text[at++];
        if (c == ']') at = mc_json_skip_space(text, at, size);
        if (c == ']') return at < size ? at + 1 : size;
        if (c != ',' || at - from > MC_PIECE_BYTES) return at; /* a flaw is found in the piece */
    }
    return size;
}

/* Where the piece from `at` on ends; the input's size where no place to cut it is found. */
static size_t find_end(const mc_piece_source *source, const mc_input *input, size_t at)
{
    size_t left = input->size - at;
    if (left <= MC_PIECE_BYTES) return input->size;
    const char *text = input->text + at;
    if (input->list) return find_list_end(input, at);
    if (!input->lines) return at + mc_tokenizer_cut(source->tok, text, left, MC_PIECE_BYTES);
    const char *end = memchr(text + MC_PIECE_BYTES, '\n', left - MC_PIECE_BYTES);
    return end ? at + (size_t)(end - text) + 1 : input->size;
}

/* ---- files ---- */

/* Reads until the input has `size` bytes, or the file ends. False after an error. */
static bool read_to(mc_error *err, mc_cut_file *file, mc_input *input, size_t size)
{
    char *text = mc_realloc(input->text, size);
    if (!text) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for reading it", input->path);
        return false;
    }
    input->text = text;
    size_t asked = size - input->size;
    size_t got = mc_file_read_next(&file->reader, text + input->size, asked);
    input->size += got;
    file->ended = got < asked;
    return !mc_error_is_set(err);
}

/* Reads a piece's bytes and some more, and finds its end: of a part of the file that is the
 * same as of the whole if enough lies after it. */
static bool read_piece(mc_error *err, mc_piece_source *source, mc_input *input, size_t begin,
                       size_t *end)
{
    mc_cut_file *file = &source->file;
    for (size_t size = MC_PIECE_BYTES + AHEAD;; size *= 2) {
        if (!file->ended && size > input->size && !read_to(err, file, input, size)) return false;
        if (!begin && file->opens) begin = mark_size(input);
        if (file->opens) file->list = is_list(input);
        input->list = file->list;
        *end = find_end(source, input, begin);
        if (file->ended || *end + AHEAD / 2 < input->size) return true;
    }
}

static int64_t count_lines(const char *text, size_t size)
{
    int64_t lines = 0;
    for (const char *at = text, *end = text + size;
         at < end && (at = memchr(at, '\n', (size_t)(end - at))); at++)
        lines++;
    return lines;
}

/* Keeps what lies after the piece for the next one. */
static bool keep_rest(mc_error *err, mc_cut_file *file, const mc_input *input, size_t end)
{
    size_t rest = input->size - end;
    char *kept = mc_malloc(rest + 1);
    if (!kept) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for reading it", input->path);
        return false;
    }
    memcpy(kept, input->text + end, rest);
    file->kept = kept;
    file->kept_size = rest;
    file->offset += end;
    file->line += count_lines(input->text, end);
    file->opens = false;
    return true;
}

/* Bytes of the file that were read since this was asked before. */
static int64_t bytes_read(mc_cut_file *file)
{
    int64_t before = file->place;
    file->place = (int64_t)lseek(file->reader.fd, 0, SEEK_CUR);
    return file->place - before;
}

static void close_file(mc_cut_file *file)
{
    if (file->open) mc_file_reader_release(&file->reader);
    mc_free(file->kept);
    *file = (mc_cut_file){0};
}

static bool open_file(mc_error *err, mc_cut_file *file, const char *path)
{
    file->open = file->opens = true;
    return mc_file_reader_init(err, &file->reader, path) == MC_OK;
}

static bool cut_file(mc_error *err, mc_piece_source *source, mc_input *input, mc_piece *piece)
{
    mc_cut_file *file = &source->file;
    size_t end;
    file->reader.err = err;
    input->offset = file->offset;
    input->line = file->line;
    input->text = file->kept;
    input->size = file->kept_size;
    file->kept = NULL;
    if (!read_piece(err, source, input, 0, &end)) return false;
    *piece = (mc_piece){
        .input = input,
        .begin = file->opens ? mark_size(input) : 0,
        .end = end,
        .opens = file->opens,
        .closes = file->ended && end == input->size,
        .file_bytes = bytes_read(file),
    };
    return piece->closes || keep_rest(err, file, input, end);
}

bool mc_piece_next(mc_error *err, mc_piece_source *source, mc_piece *piece)
{
    mc_cut_file *file = &source->file;
    if (!file->open) {
        if (source->next == source->count) return false;
        source->next++;
    }
    const char *path = source->paths[source->next - 1];
    mc_input *input = file->open || open_file(err, file, path) ? new_input(err, path) : NULL;
    bool good = input && cut_file(err, source, input, piece);
    if (!good) {
        mc_input_free(input);
        *piece = (mc_piece){0};
    }
    if (!good || piece->closes) close_file(file);
    return good;
}

void mc_piece_source_release(mc_piece_source *source) { close_file(&source->file); }
