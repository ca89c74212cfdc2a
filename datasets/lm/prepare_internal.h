/* The inside of mc_prepare_tokens: inputs cut into pieces, pieces to tokens, tokens to files. */
#ifndef MC_DATASETS_LM_PREPARE_INTERNAL_H
#define MC_DATASETS_LM_PREPARE_INTERNAL_H

#include "core/base/file_internal.h"
#include "core/base/file_reader_internal.h"
#include "datasets/lm/token_file_internal.h"
#include "datasets/prepare.h"

/* ---- token_writer.c ---- */

typedef struct mc_token_writer {
    mc_error *err;
    mc_token_format format;
    mc_token_type type;
    mc_file_writer bin, idx; /* idx: Megatron's only */
    int32_t *lengths;        /* (documents) tokens of each; Megatron's only */
    size_t capacity;
    int64_t documents, tokens;
    int64_t ended; /* tokens of the documents that have ended */
} mc_token_writer;

/* Where a format's files lie for an `output`: idx is "" for llm.c's. */
mc_status mc_token_writer_paths(mc_error *err, mc_token_format format, const char *output,
                                char bin[MC_PATH_MAX], char idx[MC_PATH_MAX]);
/* Opens the files aside. An error says so when the vocabulary does not fit the format, or where a
 * file would go there is a folder, a device or a pipe. */
mc_status mc_token_writer_init(mc_error *err, mc_token_writer *writer, mc_token_format format,
                               const char *output, int vocabulary);
/* Adds tokens, which are below the vocabulary, to the current document. */
mc_status mc_token_writer_add(mc_token_writer *writer, const int32_t *tokens, size_t count);
mc_status mc_token_writer_end_document(mc_token_writer *writer);
/* Completes the files, syncs and renames them. */
mc_status mc_token_writer_commit(mc_token_writer *writer);
/* Removes what was not committed. */
void mc_token_writer_release(mc_token_writer *writer);

/* ---- cut.c ---- */

enum {
    MC_PIECE_BYTES = 1 << 19
}; /* about; a line of JSON, or a text without a place to cut it,
                                      may be longer */

/* A part of a file, read for one piece, with some bytes after it. */
typedef struct mc_input {
    const char *path;
    char *text; /* (size) */
    size_t size;
    size_t offset; /* of the part, in the text of the file; */
    int64_t line;  /* and lines before it */
    bool lines;    /* JSON, which has documents in it: an object a line, */
    bool list;     /* or a list of objects */
} mc_input;

/* What a thread tokenizes at a time. */
typedef struct mc_piece {
    mc_input *input;    /* the piece's own */
    size_t begin, end;  /* bytes of it */
    bool opens;         /* a document begins at its start: not the middle of a long text */
    bool closes;        /* a document ends at its end */
    int64_t file_bytes; /* of the file, which were read for it */
} mc_piece;

/* A file between two pieces. */
typedef struct mc_cut_file {
    bool open;
    bool opens, ended; /* nothing was cut off yet; all of it has been read */
    bool list;         /* it is a JSON list */
    mc_file_reader reader;
    char *kept; /* (kept_size) read, for the next piece */
    size_t kept_size;
    size_t offset; /* of the next piece, in the text of the file; */
    int64_t line;  /* and lines before it */
    int64_t place; /* in the file, which may be compressed */
} mc_cut_file;

typedef struct mc_piece_source {
    const char *const *paths;
    int count, next;
    mc_cut_file file; /* the current one */
    const mc_tokenizer *tok;
} mc_piece_source;

bool mc_input_is_lines(const char *path);
/* Behind the object, or the plain value, that begins at `at`; `size` where it does not end. */
size_t mc_json_value_end(const char *text, size_t at, size_t size);
/* The first byte from `at` on that is no white space; `size` if there is none. */
size_t mc_json_skip_space(const char *text, size_t at, size_t size);
void mc_input_free(mc_input *input);

/* Cuts off the next piece. False when there are none left, and on an error. */
bool mc_piece_next(mc_error *err, mc_piece_source *source, mc_piece *piece);
void mc_piece_source_release(mc_piece_source *source);

/* ---- piece.c ---- */

/* The documents of a piece: document i has the tokens from end[i - 1] (0 for the first) to end[i];
 * the first may have begun before, and the last may go on after the piece. */
typedef struct mc_piece_tokens {
    mc_encoding encoding;
    size_t *ends;
    size_t count, capacity;
} mc_piece_tokens;

/* Tokenizes a piece. Errors name file and line. */
mc_status mc_piece_encode(mc_error *err, const mc_piece *piece, const mc_tokenizer *tok,
                          const char *json_key, mc_piece_tokens *out);
void mc_piece_tokens_release(mc_piece_tokens *tokens);

#endif
