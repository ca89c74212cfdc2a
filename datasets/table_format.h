/* The formats of tables: see datasets/table.h.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_TABLE_FORMAT_H
#define MC_DATASETS_TABLE_FORMAT_H

typedef enum mc_table_format {
    MC_TABLE_BY_NAME = 0, /* by the ending of the file's name */
    MC_TABLE_CSV,
    MC_TABLE_TSV,
    MC_TABLE_JSONL,
} mc_table_format;

#endif
