/* Inputs to pieces. Where a piece ends depends on the input alone, so results do not depend on the
 * threads.
 *
 * A plain file is mapped, and its pieces are parts of it. A .gz is inflated piece by piece, each
 * into memory of its own: by whichever thread takes the next one, while the others tokenize. */
#include <string.h>
#include <unistd.h>
#include "core/base/memory_internal.h"
#include "datasets/lm/prepare_internal.h"

enum { AHEAD = 1 << 16 }; /* bytes of a .gz after a piece, to find a place where it can end */

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

void mc_input_unref(mc_input *input)
{
    if (!input || --input->references) return;
    mc_file_map_release(&input->map);
    mc_free(input->own);
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
    input->references = 1;
    input->lines = mc_input_is_lines(path);
    return input;
}

static mc_input *map_input(mc_error *err, const char *path)
{
    mc_input *input = new_input(err, path);
    if (!input) return NULL;
    if (mc_file_map_init(err, &input->map, path) == MC_OK) {
        input->text = (const char *)input->map.data;
        input->size = input->map.size;
        return input;
    }
    mc_input_unref(input);
    return NULL;
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

/* ---- plain files ---- */

static bool next_of_map(mc_error *err, mc_piece_source *source, const char *path, mc_piece *piece)
{
    bool opens = !source->input;
    if (opens) {
        source->input = map_input(err, path);
        if (!source->input) return false;
        source->at = mark_size(source->input);
        source->input->list = is_list(source->input);
    }
    mc_input *input = source->input;
    size_t end = find_end(source, input, source->at);
    *piece = (mc_piece){
        .input = input,
        .begin = source->at,
        .end = end,
        .opens = opens,
        .closes = end == input->size,
        .file_bytes = (int64_t)(end - (opens ? 0 : source->at)),
    };
    source->at = end;
    if (piece->closes)
        source->input = NULL; /* the piece takes over the reference */
    else
        input->references++;
    return true;
}

/* ---- .gz ---- */

/* Inflates until the input has `size` bytes, or the file ends. False after an error. */
static bool inflate_to(mc_error *err, mc_gz_source *gz, mc_input *input, size_t size)
{
    char *own = mc_realloc(input->own, size);
    if (!own) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for reading it", input->path);
        return false;
    }
    input->text = input->own = own;
    size_t asked = size - input->size;
    size_t got = mc_file_read_next(&gz->reader, own + input->size, asked);
    input->size += got;
    gz->ended = got < asked;
    return !mc_error_is_set(err);
}

/* Inflates a piece's bytes and some more, and finds its end: of a part of the file that is the
 * same as of the whole if enough lies after it. */
static bool inflate_piece(mc_error *err, mc_piece_source *source, mc_input *input, size_t begin,
                          size_t *end)
{
    mc_gz_source *gz = &source->gz;
    for (size_t size = MC_PIECE_BYTES + AHEAD;; size *= 2) {
        if (!gz->ended && size > input->size && !inflate_to(err, gz, input, size)) return false;
        if (!begin && gz->opens) begin = mark_size(input);
        if (gz->opens) gz->list = is_list(input);
        input->list = gz->list;
        *end = find_end(source, input, begin);
        if (gz->ended || *end + AHEAD / 2 < input->size) return true;
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
static bool keep_rest(mc_error *err, mc_gz_source *gz, const mc_input *input, size_t end)
{
    size_t rest = input->size - end;
    char *kept = mc_malloc(rest + 1);
    if (!kept) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for reading it", input->path);
        return false;
    }
    memcpy(kept, input->text + end, rest);
    gz->kept = kept;
    gz->kept_size = rest;
    gz->offset += end;
    gz->line += count_lines(input->text, end);
    gz->opens = false;
    return true;
}

/* Bytes of the file that were read since this was asked before. */
static int64_t bytes_read(mc_gz_source *gz)
{
    int64_t before = gz->place;
    gz->place = (int64_t)lseek(gz->reader.fd, 0, SEEK_CUR);
    return gz->place - before;
}

static void close_gz(mc_gz_source *gz)
{
    if (gz->open) mc_file_reader_release(&gz->reader);
    mc_free(gz->kept);
    *gz = (mc_gz_source){0};
}

static bool open_gz(mc_error *err, mc_gz_source *gz, const char *path)
{
    gz->open = gz->opens = true;
    return mc_file_reader_init(err, &gz->reader, path) == MC_OK;
}

static bool cut_gz(mc_error *err, mc_piece_source *source, mc_input *input, mc_piece *piece)
{
    mc_gz_source *gz = &source->gz;
    size_t end;
    gz->reader.err = err;
    input->offset = gz->offset;
    input->line = gz->line;
    input->own = gz->kept;
    input->text = gz->kept;
    input->size = gz->kept_size;
    gz->kept = NULL;
    if (!inflate_piece(err, source, input, 0, &end)) return false;
    *piece = (mc_piece){
        .input = input,
        .begin = gz->opens ? mark_size(input) : 0,
        .end = end,
        .opens = gz->opens,
        .closes = gz->ended && end == input->size,
        .file_bytes = bytes_read(gz),
    };
    return piece->closes || keep_rest(err, gz, input, end);
}

static bool next_of_gz(mc_error *err, mc_piece_source *source, const char *path, mc_piece *piece)
{
    mc_gz_source *gz = &source->gz;
    mc_input *input = gz->open || open_gz(err, gz, path) ? new_input(err, path) : NULL;
    bool good = input && cut_gz(err, source, input, piece);
    if (!good) {
        mc_input_unref(input);
        *piece = (mc_piece){0};
    }
    if (!good || piece->closes) close_gz(gz);
    return good;
}

/* ---- all of them ---- */

bool mc_piece_next(mc_error *err, mc_piece_source *source, mc_piece *piece)
{
    if (!source->input && !source->gz.open) {
        if (source->next == source->count) return false;
        source->next++;
    }
    const char *path = source->paths[source->next - 1];
    return mc_path_is_gzip(path) ? next_of_gz(err, source, path, piece)
                                 : next_of_map(err, source, path, piece);
}

void mc_piece_source_release(mc_piece_source *source)
{
    mc_input_unref(source->input);
    close_gz(&source->gz);
    source->input = NULL;
}
