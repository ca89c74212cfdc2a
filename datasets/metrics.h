/* Counting right answers: accuracy, F1 and recall of a classifier over many batches.
 *
 *     mc_accuracy acc = { 0 };
 *     for each batch: mc_accuracy_add(&acc, mc_argmax(t, logits), b->labels);
 *     double share = mc_accuracy_gather(ctx, &acc);
 *
 * A plain struct without memory of its own: copy it, set it to zero to start anew.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_METRICS_H
#define MC_DATASETS_METRICS_H

#include <stdint.h>
#include "core/tensor/tensor.h"

enum { MC_ACCURACY_CLASSES = 16 };

typedef struct mc_accuracy {
    int classes;     /* set it to the number of classes; 0: as many as were seen */
    int64_t count;   /* rows counted so far */
    int64_t correct; /* rows whose prediction is the label */
    /* [label][prediction]: rows. The last row and column are all classes from 16 on, and (for
     * predictions) numbers below 0. */
    int64_t confusion[MC_ACCURACY_CLASSES + 1][MC_ACCURACY_CLASSES + 1];
} mc_accuracy;

/* Counts a batch: predictions and labels are i32 or i64, with equally many elements. Rows whose
 * label is negative (MC_NO_LABEL) don't count. Waits for the device. Errors (of the tensors'
 * context): a tensor that is NULL, another dtype, different counts. */
MC_API mc_status mc_accuracy_add(mc_accuracy *acc, const mc_tensor *predictions,
                                 const mc_tensor *labels);

/* mc_accuracy_add for one row. */
MC_API void mc_accuracy_count(mc_accuracy *acc, int64_t prediction, int64_t label);

/* Adds up the counts of all ranks; afterwards `acc` has the totals on every rank. All ranks call it
 * together, once: a second call would count the totals again for each rank. Returns the share of
 * right answers, from 0 to 1. NaN when nothing was counted, or after an error, which leaves `acc`
 * unchanged. */
MC_API double mc_accuracy_gather(mc_context *ctx, mc_accuracy *acc);

/* The share of right answers in `acc` as it is; NaN when nothing was counted. */
MC_API double mc_accuracy_share(const mc_accuracy *acc);

/* F1, 2 * right / (labelled + predicted). With one or two classes: of class 1, the positive one; 0
 * if it is neither a label nor a prediction. With more classes: the mean over the classes that
 * occur as label or prediction (macro). NaN when nothing was counted, or with more than 16
 * classes. */
MC_API double mc_accuracy_f1(const mc_accuracy *acc);

/* The share of the rows with label k that were predicted as k. NaN without such rows, or if k is
 * not a class below 16. */
MC_API double mc_accuracy_recall(const mc_accuracy *acc, int k);

/* Number of classes: as set, else 1 + the largest label or prediction seen, at least 2; 17 when
 * there are more than 16. */
MC_API int mc_accuracy_class_count(const mc_accuracy *acc);

#endif
