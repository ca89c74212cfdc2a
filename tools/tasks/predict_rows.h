/* The rows that `predict` writes: an object a line, or CSV with the input's columns before its own,
 * which are called as the keys of the objects are: label, probability, probabilities.NAME; labels
 * (with | between them), probabilities.NAME; value, or values.NAME; text. A name that the input has
 * gets "predicted_" before it. */
#ifndef MC_TOOLS_PREDICT_ROWS_H
#define MC_TOOLS_PREDICT_ROWS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/log/run_log.h"
#include "tools/files/text.h"
#include "tools/files/text_source.h"

typedef struct predict_rows {
    mc_task_kind kind;
    const mc_model *model;
    int labels;   /* of the model */
    char **names; /* (labels) each once: of two classes "x" the second one's is "x#2" */
    bool csv;
} predict_rows;

/* Finds the names of the model's labels, with a warning for each that is there twice. False: out of
 * memory. */
bool predict_rows_name(predict_rows *r, run_log *log);
void predict_rows_release(predict_rows *r);

/* The first line of CSV; the caller frees it. NULL: out of memory. */
char *predict_rows_header(const predict_rows *r, const text_source *input);
/* Bytes at most of a row of numbers, without its cells. */
size_t predict_rows_room(const predict_rows *r);
/* Adds the row of the model's outputs, which are overwritten; `cells` is the input's row, for CSV.
 */
void predict_rows_add(text *t, const predict_rows *r, const mc_text_span *cells, float *outputs);
/* Adds the row of a text: at most 6 bytes for each of its own, PREDICT_ROWS_TEXT, and the cells. */
enum { PREDICT_ROWS_TEXT = 32 };
void predict_rows_add_text(text *t, const predict_rows *r, const mc_text_span *cells,
                           const char *answer, size_t size);

#endif
