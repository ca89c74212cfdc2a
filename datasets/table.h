/* Tables: rows of named columns, read one after the other from CSV, TSV or JSON.
 *
 *     mc_table *t = mc_table_open(ctx, "reviews.csv.gz", NULL);
 *     int review = mc_table_column(t, "review"), stars = mc_table_column(t, "stars");
 *     while (mc_table_next(t))
 *         use(mc_table_text(t, review, NULL), mc_table_text(t, stars, NULL));
 *     mc_table_free(t);
 *     if (mc_failed(ctx)) return mc_print_error(ctx, stderr);
 *
 * A table streams: it needs memory for the longest row, not for the file.
 *
 * The form of a file follows from its name, with ".gz" after it or not (gzip; several members are
 * read one after the other):
 *
 *   .csv                         RFC 4180. The first row names the columns. A field in quotes may
 *                                hold separators, line ends, and quotes written twice; a quote
 *                                within a field that does not begin with one is an error. The
 *                                separator is a comma, or the semicolon, tab or | that the first
 *                                row has instead; a first line "sep=;" names it, as Excel's does.
 *   .tsv, .tab                   Fields between tabs, taken as they are: quotes mean nothing, and
 *                                no field holds a tab or a line end (IANA's
 *                                text/tab-separated-values). The first row names the columns.
 *                                Where the first 64 KB show that the file is written with quotes
 *                                (names in quotes, quotes written twice, or tabs and line ends
 *                                within quotes), they are read as in CSV.
 *   .jsonl, .ndjson, .json       JSON: an object a line (JSON Lines), or one list of objects, on
 *                                any number of lines. The columns are the keys of the first
 *                                object; "a.b" is key "b" of the object at key "a". Strings may
 *                                hold NUL characters, and whole numbers keep all their digits.
 *
 * A row has at most 65,536 columns and 268,435,456 bytes, and a row of JSON 1,048,576 values.
 * All are UTF-8, or UTF-16 with a byte order mark. A byte order mark, CRLF line ends, blank lines
 * and a last line without an end are fine. A column without a name (as pandas writes its index)
 * cannot be asked for by name. Parquet, Excel's, Feather and Arrow files are refused, with the
 * Python that converts them.
 *
 * Errors have the form "FILE:LINE:COLUMN: what is wrong". Lines and columns count from 1, columns
 * in characters: a quote that is never closed is reported where it opens, a row with too few or too
 * many fields where it ends or goes on, and so are NUL characters and bytes that are no UTF-8. What
 * is no JSON is reported as "FILE:LINE: ...", with the key where there is one.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_TABLE_H
#define MC_DATASETS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "datasets/table_format.h"

typedef struct mc_table mc_table;

typedef struct mc_table_options {
    mc_table_format format;
} mc_table_options;

/* Opens a file and reads its header row (of JSON: its first row). A path with *, ? or [...] that
 * does not exist is a pattern: the files that it matches are one table, in the order of the bytes
 * of their names. `options` may be NULL. The table belongs to the context. Errors (NULL): no such
 * file, or none that matches; an unknown ending without a format in the options; .gz in a library
 * without zlib; an empty file; two columns of one name; what is wrong with the row. */
MC_API mc_table *mc_table_open(mc_context *ctx, const char *path, const mc_table_options *options);

/* The same of several paths or patterns, one after the other. CSV and TSV files have to have the
 * first one's columns, in any order (MC_ERR_FORMAT names file and column); of JSON files each row
 * needs the keys that are asked for. All of them are opened and checked before the first row. */
MC_API mc_table *mc_table_open_list(mc_context *ctx, const char *const *patterns, int count,
                                    const mc_table_options *options);

/* The same from `size` bytes in memory, which have to stay until the table is freed. `name` stands
 * for the file in errors; its ending counts as a file's does, without ".gz". */
MC_API mc_table *mc_table_from_memory(mc_context *ctx, const char *name, const char *data,
                                      size_t size, const mc_table_options *options);

/* NULL is allowed. */
MC_API void mc_table_free(mc_table *table);

/* The columns: how many there are, and the name of the i-th ("" for one without; NULL past the
 * last). Names belong to the table. */
MC_API int mc_table_columns(const mc_table *table);
MC_API const char *mc_table_column_name(const mc_table *table, int i);

/* The number of the column of a name, for the functions below. If there is none: -1 with an
 * error that lists those that there are. */
MC_API int mc_table_column(mc_table *table, const char *name);

/* Moves to the next row (the first call: to the first). Returns false at the end and on an
 * error. */
MC_API bool mc_table_next(mc_table *table);

/* Of the current row: its number from 0, over all files; its file, whose name
 * lives as long as the table; and the line of it that the row begins on, from 1. */
MC_API int64_t mc_table_row(const mc_table *table);
MC_API const char *mc_table_path(const mc_table *table);
MC_API int64_t mc_table_line(const mc_table *table);

/* Whether the current row has a value there: in JSON Lines a key with a value other than null; in
 * CSV and TSV a field that is not empty. */
MC_API bool mc_table_has(mc_table *table, int column);

/* The text of a column of the current row, closed with a NUL and valid until the next row; *length
 * (which may be NULL) becomes its bytes, of which JSON's may be NUL characters. In JSON a number
 * is its shortest decimal form, true and false are these words, and a key that is missing or null,
 * a list or an object is an error (NULL). NULL too without a current row. */
MC_API const char *mc_table_text(mc_table *table, int column, size_t *length);

/* What a column of the current row holds, for a copy of the table as CSV: its text, of JSON lists
 * and objects as they stand in the file, and "" for a key that is missing or null. Closed with a
 * NUL and valid until the next call; *length (which may be NULL) becomes its bytes. NULL without a
 * current row or such a column, and with an error. */
MC_API const char *mc_table_cell(mc_table *table, int column, size_t *length);
/* Of JSON: a key of the current row that is no column, since the first row does not have it. NULL:
 * there is none. Valid until the next row. */
MC_API const char *mc_table_other_key(const mc_table *table);

/* The prompt that a conversation in a column of the current row makes, of JSON Lines a list of
 * {"role": ..., "content": ...} (docs/data.md): a line "User: ..." for each message and at the end
 * "Assistant:", as a model reads it that was trained on conversations (mc_data_columns.messages).
 * Where the last message is the assistant's, the prompt is that of this message. Closed with a NUL
 * and valid until the next call; *length (which may be NULL) becomes its bytes. NULL with an error
 * where the column holds no such list. */
MC_API const char *mc_table_chat(mc_table *table, int column, size_t *length);

/* Sets the error "FILE:LINE:COLUMN: <text>" about a column of the current row (of JSON Lines
 * "FILE:LINE: key "...": <text>"), with the status MC_ERR_FORMAT, which is returned. For what a
 * program expects of the text and does not find. */
MC_API mc_status mc_table_fail(mc_table *table, int column, const char *format, ...)
    MC_PRINTF(3, 4);

#endif
