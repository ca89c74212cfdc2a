/* The inside of tables: a window on the file's bytes that holds the current row, and the fields
 * that were found in it. */
#ifndef MC_DATASETS_TABLE_INTERNAL_H
#define MC_DATASETS_TABLE_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/base/file_reader_internal.h"
#include "datasets/jsonl_internal.h"
#include "datasets/table.h"

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

struct mc_table {
    mc_owned owned;
    mc_context *ctx;
    char *path;
    mc_table_format format; /* never MC_TABLE_BY_NAME */
    mc_file_reader reader;  /* of a file; unused in memory */
    bool is_open;

    /* the window: bytes [row, row + used) of it are the current row, up to `end` there is more */
    char *window;
    size_t capacity, row, used, end;
    bool all_read;
    const char *memory; /* what is left of a table in memory */
    size_t memory_size;
    size_t row_max; /* bytes of the longest row: a quote that is not closed would take the rest of
                       the file for one row */
    size_t open;    /* in the current row: the quote that is open; SIZE_MAX: none */

    int64_t line, next_line; /* of the current row, and the first behind it */
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

    mc_jsonl json;          /* JSON Lines: the current object */
    mc_number_text *number; /* (columns asked for) */
    size_t number_capacity;
    int paths;  /* names behind `columns`: paths of values in objects that were asked for */
    char *chat; /* mc_table_chat's last prompt */
};

/* datasets/table_window.c: reads more behind the current row. False at the end and on an error. */
bool mc_table_more(mc_table *table);
/* Begins a row behind the current one. False at the end of the file and on an error. */
bool mc_table_begin_row(mc_table *table);
/* The byte `at` bytes behind the start of the row, -1 at the end of the file and on an error. */
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

/* datasets/table_fields.c: the next row of CSV or TSV with its fields. False at the end and on an
 * error. Blank lines are skipped. */
bool mc_table_read_fields(mc_table *table);
/* The field's text, closed with a NUL; NULL when memory is out. */
const char *mc_table_field_text(mc_table *table, mc_field *field, size_t *length);

/* datasets/table_json.c: the next object of JSON Lines. */
bool mc_table_read_json(mc_table *table);
/* The value of a column in the current object; NULL where there is none, and with an error where a
 * key is there twice. */
const cJSON *mc_table_json_value(mc_table *table, int column);
const char *mc_table_json_text(mc_table *table, int column, size_t *length);

/* Adds a column, with a copy of its name, at the end. */
bool mc_table_add_column(mc_table *table, const char *name, size_t length);

#endif
