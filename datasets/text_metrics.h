/* Scores of a generated text against reference texts.
 *
 *     mc_text_score best;
 *     mc_text_span answers[] = {{"the Eiffel Tower", 16}, {"Eiffel Tower", 12}};
 *     mc_answer_score("Eiffel tower!", 13, answers, 2, &best);        exact 1, f1 1
 *     mc_rouge_score r;
 *     mc_rouge_l("a cat sat", 9, "the cat sat down", 16, &r);         f1 = 4/7
 *
 * SQuAD's scores are those of its official script (v1.1), which ReCoRD's uses too; ROUGE-L is that
 * of Google's package rouge_score (0.1.2) for "rougeL" without its stemmer, which is that package's
 * default. tests/compare_text_metrics.py compares both with Python's on random texts.
 *
 * Texts are UTF-8 of a given size in bytes; bytes that are no UTF-8 count as U+FFFD. The functions
 * touch no context, and several threads may call them at a time. They return MC_OK, MC_ERR_NOMEM,
 * or MC_ERR_ARGUMENT for a NULL where a value is required; after an error nothing is written.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_TEXT_METRICS_H
#define MC_DATASETS_TEXT_METRICS_H

#include <stddef.h>
#include "core/base/context.h"
#include "tokenizers/tokenizer.h"

/* SQuAD's normal form: lower case as Python's str.lower (a capital sigma may differ beside a
 * modifier letter), without ASCII punctuation, without the words "a", "an" and "the", words joined
 * by single spaces. *out is a heap string for mc_string_free. */
MC_API mc_status mc_answer_normalize(const char *text, size_t size, char **out);

typedef struct mc_text_score {
    double exact; /* 1 if the normal forms are equal, else 0 */
    double f1;    /* of the words of both normal forms, 0 to 1; 0 if either has none */
} mc_text_score;

/* The best exact match and the best F1 over `count` >= 1 references, each by itself. A benchmark's
 * scores are the means of these over its rows. */
MC_API mc_status mc_answer_score(const char *text, size_t size, const mc_text_span *references,
                                 size_t count, mc_text_score *score);

typedef struct mc_rouge_score {
    double precision, recall, f1; /* from 0 to 1; all 0 if either text has no words */
} mc_rouge_score;

/* ROUGE-L: words are the longest runs of a-z and 0-9 of the text in lower case; with the length L
 * of their longest common subsequence, precision is L / words of the text, and recall L / words of
 * the reference. Texts in other scripts have no words, as in rouge_score. Takes time in proportion
 * to the product of both numbers of words. */
MC_API mc_status mc_rouge_l(const char *text, size_t size, const char *reference,
                            size_t reference_size, mc_rouge_score *score);

#endif
