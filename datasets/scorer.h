/* The scores of a model's results on a data set.
 *
 *     mc_scorer *s = mc_scorer_new(dataset);
 *     for each batch of this rank, for each row of it, one of
 *         mc_scorer_add_class(s, row, prediction);
 *         mc_scorer_add_text(s, row, text, size);
 *         mc_scorer_add_candidate(s, row, log_probability, tokens);
 *     mc_score score;
 *     mc_scorer_finish(s, &score);           on all ranks
 *     for (int i = 0; i < score.metrics; i++)
 *         printf("%s=%.4f ", score.metric[i].name, score.metric[i].value);
 *     mc_scorer_free(s);
 *
 * What is measured follows from the task; every value but n is a share from 0 to 1, and NaN where
 * no row counts.
 *
 *   mc_dataset_scoring    results      metrics, the first of which decides between models
 *   MC_SCORING_CLASSES    classes      accuracy, f1 (as mc_accuracy_f1, of any number of
 *                                      classes), over rows with a label
 *   MC_SCORING_QUESTIONS  classes      f1a, em (mc_score_questions), accuracy: MultiRC
 *   MC_SCORING_TEXTS      texts        f1, em (mc_answer_score), rougeL (its F1), each the best of
 *                                      the row's references: SQuAD, and your own texts. Of a
 *                                      text with T5's <extra_id_0> and <extra_id_1> what stands
 *                                      between them counts.
 *   MC_SCORING_ENTITIES   candidates   f1, em of the candidate with the highest log-probability of
 *                                      each question: ReCoRD
 *   MC_SCORING_ENDINGS    candidates   accuracy: questions whose right candidate has the highest
 *                                      log-probability (llm.c's and lm-eval's "acc");
 *                                      accuracy_norm: the same of the log-probability divided by
 *                                      the candidate's tokens (llm.c's "acc_norm"): HellaSwag
 *
 * Rows may be added in any order, each on one rank only; scores do not depend on how rows are
 * divided among ranks. Memory: 12 bytes a row.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_SCORER_H
#define MC_DATASETS_SCORER_H

#include <stddef.h>
#include <stdint.h>
#include "datasets/dataset.h"

typedef struct mc_scorer mc_scorer;

typedef struct mc_metric {
    const char *name; /* static: "accuracy" */
    double value;
} mc_metric;

enum { MC_SCORE_METRICS = 4 };

typedef struct mc_score {
    int64_t n; /* scored rows; for QUESTIONS, ENTITIES and ENDINGS, scored questions */
    int metrics;
    mc_metric metric[MC_SCORE_METRICS];
} mc_score;

/* The scorer keeps the dataset as long as needed. NULL after an error: memory, MC_SCORING_NONE. */
MC_API mc_scorer *mc_scorer_new(mc_dataset *dataset);
MC_API void mc_scorer_free(mc_scorer *scorer); /* NULL is allowed */

/* Adds the result of a row of the dataset. Errors (of its context): a row out of range, a result
 * that does not fit the dataset's scoring, memory. NULL: nothing happens. */
MC_API mc_status mc_scorer_add_class(mc_scorer *scorer, int64_t row, int32_t prediction);
MC_API mc_status mc_scorer_add_text(mc_scorer *scorer, int64_t row, const char *text, size_t size);
/* Adds the natural logarithm of the probability of the row's target, and the number of tokens
 * (above 0) over which it is summed. */
MC_API mc_status mc_scorer_add_candidate(mc_scorer *scorer, int64_t row, double log_probability,
                                         int64_t tokens);

/* Combines the results of all ranks; every rank calls it once. Returns the context's status; after
 * an error *score is not written. */
MC_API mc_status mc_scorer_finish(mc_scorer *scorer, mc_score *score);

/* The value of a metric; NaN if there is none of that name. */
MC_API double mc_score_value(const mc_score *score, const char *name);

#endif
