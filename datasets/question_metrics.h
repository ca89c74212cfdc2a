/* Scores of questions that have several rows each: the answers of MultiRC, the entities of ReCoRD,
 * the endings of HellaSwag.
 *
 *     float right[rows] = {0};                    each rank sets those of the rows that it computed
 *     mc_merge_results(ctx, right, rows);
 *     mc_question_score s = mc_score_questions(question, labels, right, rows);
 *
 * Rows of one question are consecutive, and have the same number in `question`; the numbers have no
 * other meaning. The functions that score use host memory of the caller and touch no context.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_QUESTION_METRICS_H
#define MC_DATASETS_QUESTION_METRICS_H

#include <stdint.h>
#include "core/base/context.h"

/* Merges the results of all ranks: values (count) hold a number for each row that this rank
 * computed, and 0 elsewhere; only one rank computes a row. Afterwards all ranks have all numbers,
 * and these do not depend on the number of ranks. Every rank calls it, with the same count. Errors:
 * memory, a rank that does not call it; `values` are then unchanged. */
MC_API mc_status mc_merge_results(mc_context *ctx, float *values, int64_t count);

typedef struct mc_question_score {
    double f1a;        /* F1 of label 1 over all labelled rows; 0 if no label is 1 */
    double em;         /* share of questions whose rows are all predicted right */
    int64_t rows;      /* with a label */
    int64_t questions; /* with such a row */
} mc_question_score;

/* MultiRC's scores: labels (rows) are 0, 1, or negative for none; predictions (rows) count as 1
 * above 0.5 and as 0 below. Without labels f1a and em are NaN. */
MC_API mc_question_score mc_score_questions(const int64_t *question, const int32_t *labels,
                                            const float *predictions, int64_t rows);

/* Finds the row with the highest score of each question, the first of equal ones; a NaN is lower
 * than any number. Writes the rows' numbers to best (questions; room for `rows` numbers is always
 * enough). Returns the number of questions. */
MC_API int64_t mc_best_rows(const int64_t *question, const float *score, int64_t rows,
                            int64_t *best);

#endif
