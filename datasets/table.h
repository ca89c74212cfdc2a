/* Tables: rows of named columns, read one after the other from CSV, TSV or JSON.
 *
 *     mc_table *t = mc_table_open(ctx, "reviews.csv.gz", NULL);
 *     int review = mc_table_column(t, "review"), stars = mc_table_column(t, "stars");
 *     while (mc_table_next(t))
 *         use(mc_table_text(t, review, NULL), mc_table_text(t, stars, NULL));
 *     mc_table_free(t);
 *     if (mc_failed(ctx)) return mc_print_error(ctx, stderr);
 *
 * A table is read as a stream: it needs memory for the longest row, not for the file.
 *
 * The ending of a file's name selects its format. Each may be followed by ".gz" (gzip; several
 * members are read one after the other):
 *
 *   .csv                         RFC 4180. The first row names the columns. A quoted field may
 *                                contain separators, line ends, and doubled quotes; a quote within
 *                                a field that does not begin with one is an error. The separator
 *                                is a comma, or the semicolon, tab or | of the first row; Excel's
 *                                first line "sep=;" sets it.
 *   .tsv, .tab                   Fields separated by tabs (IANA's text/tab-separated-values).
 *                                Quotes are text, and no field contains a tab or a line end. The
 *                                first row names the columns. If the first 64 KB show a quoted
 *                                file (quoted names, doubled quotes, or tabs and line ends within
 *                                quotes), quotes are read as in CSV.
 *   .jsonl, .ndjson, .json       JSON: an object a line (JSON Lines), or one list of objects, on
 *                                any number of lines. The columns are the keys of the first
 *                                object; "a.b" is key "b" of the object at key "a". Strings may
 *                                hold NUL characters, and whole numbers keep all their digits.
 *
 * A row has at most 65,536 columns and 268,435,456 bytes, and a row of JSON 1,048,576 values.
 * All are UTF-8, or UTF-16 with a byte order mark. A byte order mark, CRLF line ends, blank lines
 * and a last line without an end are allowed. A column may have no name, as pandas writes its
 * index; mc_table_column does not find it. Parquet, Excel, Feather and Arrow files are an error,
 * whose message has the line of Python that converts them.
 *
 * Errors have the form "FILE:LINE:COLUMN: message". Lines and columns count from 1, columns in
 * characters. The place is that of an unclosed quote, of the end of a row with too few fields, of
 * the first field too many, of a NUL character, or of bytes that are not UTF-8. For invalid JSON
 * the form is "FILE:LINE: ...", with the key if it is known.
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
 * without zlib; an empty file; two columns with one name; a malformed row. */
MC_API mc_table *mc_table_open(mc_context *ctx, const char *path, const mc_table_options *options);

/* The same for several paths or patterns, one after the other. CSV and TSV files must have the
 * first one's columns, in any order (MC_ERR_FORMAT names file and column). In JSON files, each row
 * must have the keys that are read. All files are opened and checked before the first row. */
MC_API mc_table *mc_table_open_list(mc_context *ctx, const char *const *patterns, int count,
                                    const mc_table_options *options);

/* The same for `size` bytes in memory, which must stay until the table is freed. `name` is used
 * like a file's: errors contain it, and its ending selects the format (".gz" is not supported). */
MC_API mc_table *mc_table_from_memory(mc_context *ctx, const char *name, const char *data,
                                      size_t size, const mc_table_options *options);

/* NULL is allowed. */
MC_API void mc_table_free(mc_table *table);

/* The number of columns, and the name of the i-th: "" if it has none, NULL out of range. Names
 * belong to the table. */
MC_API int mc_table_columns(const mc_table *table);
MC_API const char *mc_table_column_name(const mc_table *table, int i);

/* The number of the column with this name, for the functions below. An unknown name is an error
 * that lists the names (-1). */
MC_API int mc_table_column(mc_table *table, const char *name);

/* Moves to the next row (the first call: to the first). Returns false at the end and on an
 * error. */
MC_API bool mc_table_next(mc_table *table);

/* The current row's number, from 0 over all files; its file, a string that lives as long as the
 * table; and the line of the file where it begins, from 1. */
MC_API int64_t mc_table_row(const mc_table *table);
MC_API const char *mc_table_path(const mc_table *table);
MC_API int64_t mc_table_line(const mc_table *table);

/* Whether the current row has a value in a column: in JSON Lines a key with a value other than
 * null; in CSV and TSV a field that is not empty. */
MC_API bool mc_table_has(mc_table *table, int column);

/* The text of a column of the current row, which ends with a NUL and is valid until the next row.
 * *length (`length` may be NULL) is set to its size in bytes; a text from JSON may contain NULs. A
 * JSON number becomes its shortest decimal form, and true and false these words; a list, an object,
 * null or a missing key is an error (NULL). NULL also without a current row. */
MC_API const char *mc_table_text(mc_table *table, int column, size_t *length);

/* The same for copying a table as CSV: JSON lists and objects are returned as JSON, and "" for a
 * key that is missing or null. Valid until the next call. NULL without a current row or such a
 * column, and after an error. */
MC_API const char *mc_table_cell(mc_table *table, int column, size_t *length);
/* JSON: a key of the current row that is not a column, because the first row lacks it; NULL if it
 * has no such key. Valid until the next row. */
MC_API const char *mc_table_other_key(const mc_table *table);

/* The conversation in a column of the current row as a prompt, in the form of
 * mc_data_columns.messages (docs/data.md). The column must be a list of {"role": ..., "content":
 * ...} in JSON; anything else is an error (NULL). The prompt has a line "User: ..." for each
 * message and ends with "Assistant:"; if the last message is the assistant's, that message is left
 * out. It ends with a NUL and is valid until the next call. *length (`length` may be NULL) is set
 * to its size in bytes. */
MC_API const char *mc_table_chat(mc_table *table, int column, size_t *length);

/* Sets the error "FILE:LINE:COLUMN: <text>" about a column of the current row (for JSON Lines
 * "FILE:LINE: key "...": <text>"), and returns its status MC_ERR_FORMAT. For values that a program
 * cannot use. */
MC_API mc_status mc_table_fail(mc_table *table, int column, const char *format, ...)
    MC_PRINTF(3, 4);

#endif
