/* Benchmarks' files as flat rows: each row is one JSON object, without lists in lists, whose values
 * templates can name. Files that nest questions in passages give a row for each answer.
 *
 *   form        a row's keys                                               question
 *   LINES       those of the line                                          the line
 *   MULTIRC     passage, question, answer, label                           the question
 *   RECORD      text, query, entities, entity, label, references           the query
 *   SQUAD       context, question, id, answer, references                  the question
 *   HELLASWAG   those of the line, ending, label                           the line
 *   LCQMC       text_a, text_b, label                                      the line
 *   BOOLQ       those of the line; a title is put before the passage       the line
 *
 * `label` of a row that is one of several answers is 1 where it is right and 0 else, and missing
 * where the file has none. `references` is a list of the texts that count as right. ReCoRD's
 * `entities` are those of the passage, each once, with commas between; a row is made of each, of
 * which training rows are the right ones alone. HellaSwag's rows are the endings; training rows are
 * the right ones alone. SQuAD's `answer` is the first. */
#ifndef MC_DATASETS_ROWS_INTERNAL_H
#define MC_DATASETS_ROWS_INTERNAL_H

#include "core/base/context_internal.h"
#include "datasets/table/jsonl_internal.h"

typedef enum mc_row_form {
    MC_ROWS_LINES = 0,
    MC_ROWS_MULTIRC,
    MC_ROWS_RECORD,
    MC_ROWS_SQUAD,
    MC_ROWS_HELLASWAG,
    MC_ROWS_LCQMC,
    MC_ROWS_BOOLQ,
} mc_row_form;

/* Where rows go: row->row is the flat object, row->line the file's line (0 in SQuAD's file, which
 * is one document). False ends the reading; the error is set then. */
typedef struct mc_row_sink {
    bool (*add)(void *user, mc_jsonl *row, int64_t question);
    void *user;
    int64_t question; /* of the next row: counts from 0 */
    bool train;       /* leave out wrong answers, where rows are answers to be learned */
    bool unlabelled;  /* rows may have no label */
} mc_row_sink;

/* Reads `size` bytes of a file called `name` in errors. False with the context's error. */
bool mc_rows_read(mc_context *ctx, mc_row_form form, const char *name, const char *data,
                  size_t size, mc_row_sink *sink);

/* ---- for the readers of a form --------------------------------------------------------------- */

/* Passes on a flat row, and frees it. `flat` NULL: memory is out. */
bool mc_sink_add(mc_row_sink *sink, mc_jsonl *reader, cJSON *flat);

/* Adds a value to a flat object; false when memory is out. Text must outlive the object. */
bool mc_flat_text(cJSON *flat, const char *key, const char *text);
bool mc_flat_number(cJSON *flat, const char *key, double value);

/* One line of each form. */
bool mc_read_multirc(mc_row_sink *sink, mc_jsonl *reader);
bool mc_read_record(mc_row_sink *sink, mc_jsonl *reader);
bool mc_read_hellaswag(mc_row_sink *sink, mc_jsonl *reader);
/* A whole file. */
bool mc_read_squad(mc_row_sink *sink, mc_jsonl *document);

#endif
