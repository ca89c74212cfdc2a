/* Labels by their names: which class of a model a label in data means.
 *
 * A model's classes have an order, that of its head's rows, and names (config.json's id2label).
 * Data has labels as text. The two are matched by name only. A label means
 *
 * 1. the name with the same text; 2. else the only name that differs just in the case of ASCII
 * letters; 3. else, if the names are LABEL_0, LABEL_1, ..., which `transformers` writes for classes
 * without names, LABEL_i if it is the whole number i.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_LABELS_H
#define MC_DATASETS_LABELS_H

#include <stdbool.h>
#include "core/base/status.h"

/* The most different labels of your own data set. */
enum { MC_DATASET_MAX_LABELS = 1024 };

/* The number of the name, 0 to count - 1, that `label` means; -1: none. */
MC_API int mc_label_find(const char *const *names, int count, const char *label);

/* Whether the names are LABEL_0, LABEL_1, ... in this order, which say nothing about their classes.
 */
MC_API bool mc_labels_are_numbers(const char *const *names, int count);

/* Whether a head whose rows have `names` can be used for data with these `labels`: each label means
 * a name, no two the same one, and labels[i] means names[place[i]]. Some names may have no label in
 * the data, but not if the names are numbers: 0 and 1 need not be two of LABEL_0, LABEL_1, LABEL_2.
 * `place` (labels_count) may be NULL. */
MC_API bool mc_labels_fit(const char *const *names, int count, const char *const *labels,
                          int labels_count, int *place);

#endif
