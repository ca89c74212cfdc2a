/* The inside of tables: a window on the file's bytes that holds the current row, and the fields
 * that were found in it. */
#ifndef MC_DATASETS_TABLE_INTERNAL_H
#define MC_DATASETS_TABLE_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/base/file_reader_internal.h"
#include "core/base/name_index_internal.h"
#include "core/base/paths_internal.h"
#include "datasets/table/jsonl_internal.h"
#include "datasets/table.h"

/* Columns that a row may have: more are no table, and each takes memory. */
enum { MC_TABLE_MOST_COLUMNS = 1 << 16 };

/* A field of the current row. Offsets count from the row's start. */
typedef struct mc_field {
    size_t start, size; /* of its bytes, without quotes */
    bool doubled;       /* it holds quotes that are written twice */
    char *decoded; /* of such a field, once it was asked for: a part of the table's `decoded` */
} mc_field;

/* Room for the text of a number of JSON Lines. */
typedef struct mc_number_text {
    char text[MC_JSON_NUMBER_ROOM];
} mc_number_text;

typedef enum mc_text_encoding {
    MC_TEXT_UNKNOWN = 0, /* nothing is read yet */
    MC_TEXT_UTF8,
    MC_TEXT_UTF16_LE,
    MC_TEXT_UTF16_BE,
} mc_text_encoding;

struct mc_table {
    mc_owned owned;
    mc_context *ctx;
    mc_paths files; /* a table of several files: all of them, and the current one's number */
    size_t file;
    mc_table_options options;
    int *place; /* (columns + paths) CSV and TSV, from the second file on: which field it is there;
                   NULL: the same */

    /* the current file */
    char *path;
    mc_table_format format; /* never MC_TABLE_BY_NAME */
    mc_file_reader reader;  /* of a file; unused in memory */
    bool is_open;
    char separator; /* CSV and TSV */
    bool quotes;    /* a field may be in quotes */
    bool list;      /* JSON: a list of objects, instead of an object a line */
    bool list_begun;
    mc_text_encoding encoding;
    unsigned char raw[4096]; /* UTF-16 that is not turned into UTF-8 yet: [raw_at, raw_end) */
    size_t raw_at, raw_end;

    /* the window: bytes [row, row + used) of it are the current row, up to `end` there is more */
    char *window;
    size_t capacity, row, used, end;
    bool all_read;
    const char *memory; /* what is left of a table in memory */
    size_t memory_size;
    size_t row_max; /* bytes of the longest row: a quote that is not closed would take the rest of
                       the file for one row */
    size_t open;    /* in the current row: the quote that is open; SIZE_MAX: none */

    int64_t line, next_line; /* of the current row, and the first after it */
    int64_t rows;            /* rows given out so far */
    bool pending;            /* the row in the window is read but not given out yet */
    bool current;

    mc_field *field; /* CSV and TSV: of the current row */
    size_t fields, field_capacity;
    char *decoded; /* (decoded_capacity), enough for all fields of a row */
    size_t decoded_used, decoded_capacity;
    char **name; /* (columns); of JSON Lines, the keys of the first object */
    int columns;
    size_t name_capacity;
    mc_name_index by_name; /* of the columns; of several with one name (""), the first */

    mc_jsonl json;          /* JSON Lines: the current object */
    mc_number_text *number; /* (columns asked for) */
    size_t number_capacity;
    int paths;  /* names after `columns`: paths of values in objects that were asked for */
    char *chat; /* mc_table_chat's last prompt */
    char *cell; /* mc_table_cell's last list or object */
};

/* table_form.c: the form that a file's name says; MC_TABLE_BY_NAME: none that is known. */
mc_table_format mc_table_format_of(const char *path);
/* Whether the name, or the first bytes, are those of a form of another program's: an error then
 * says how to convert it. */
bool mc_table_is_foreign(mc_context *ctx, const char *path);
bool mc_table_holds_foreign(mc_table *table);
/* Finds separator and quotes of CSV and TSV from the first rows, none of which is read yet. */
void mc_table_find_form(mc_table *table);

/* table_files.c: opens the files that follow the first one, checks their columns, and
 * closes them again. False with an error that names file and column. */
bool mc_table_check_files(mc_table *table);
/* Goes on with the next file. False after the last file, and on an error. */
bool mc_table_next_file(mc_table *table);
/* datasets/table/table.c: a file by itself. */
mc_table *mc_table_open_one(mc_context *ctx, const char *path, const mc_table_options *options);

/* table_text.c: the next bytes of the file in UTF-8, 0 at its end or on an error. At least
 * 4 bytes of room. */
size_t mc_table_read_text(mc_table *table, char *to, size_t room);

/* table_window.c: reads more after the current row. False at the end and on an error. */
bool mc_table_more(mc_table *table);
/* Begins a row after the current one. False at the end of the file and on an error. */
bool mc_table_begin_row(mc_table *table);
/* The byte `at` bytes after the start of the row, -1 at the end of the file and on an error. */
static inline int mc_table_byte(mc_table *table, size_t at)
{
    if (table->row + at >= table->end && !mc_table_more(table)) return -1;
    return (unsigned char)table->window[table->row + at];
}
/* Looks for a byte from *at on, where it goes; at the end of the file, false and *at is there. */
bool mc_table_find(mc_table *table, char wanted, size_t *at);
/* Refuses rows that have NUL characters or are no UTF-8. */
bool mc_table_check_text(mc_table *table);
/* The error that names a place of the current row: `at` bytes from its start. */
mc_status mc_table_fail_at(mc_table *table, size_t at, const char *format, ...) MC_PRINTF(3, 4);

/* table_fields.c: the next row of CSV or TSV with its fields. False at the end and on an
 * error. Blank lines are skipped. */
bool mc_table_read_fields(mc_table *table);
/* The field's text, closed with a NUL; NULL when memory is out. */
const char *mc_table_field_text(mc_table *table, mc_field *field, size_t *length);

/* table_json.c: passes the bracket of a list, if the file is one. */
void mc_table_begin_json(mc_table *table);
/* The next object, of a line or of the list. */
bool mc_table_read_json(mc_table *table);
/* The value of a column in the current object; NULL if there is none, and with an error where a
 * key is there twice. */
const cJSON *mc_table_json_value(mc_table *table, int column);
const char *mc_table_json_text(mc_table *table, int column, size_t *length);
/* As mc_table_cell says. */
const char *mc_table_json_cell(mc_table *table, int column, size_t *length);

/* The number of a column; -1: there is none of that name. */
int mc_table_find_column(const mc_table *table, const char *name);

#endif
