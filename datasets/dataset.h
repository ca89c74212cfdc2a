/* Datasets: labelled rows of text for a classification task, read from JSON Lines.
 *
 *     mc_dataset *train = mc_dataset_open(ctx, "BoolQ", "data/boolq", "train", tok, NULL);
 *
 * The whole file is read and checked when the dataset is opened, so that an error in its last line
 * shows before the first training step; what is kept is the text each row becomes and its label.
 * Tokenizing is the loader's work (datasets/loader.h).
 *
 * Tasks, with what a row becomes and the numbers of its labels (ModelCenter's templates for BERT):
 *
 *   BoolQ  "{passage}. {question}"                                0 false, 1 true
 *   CB     "{premise}" with "{hypothesis}"                        0 contradiction, 1 entailment,
 *                                                                 2 neutral
 *   COPA   two inputs, k = 1 and 2: "{choice k}" with             0 choice1, 1 choice2
 *          `The {question} of "{premise}"`
 *   RTE    "{premise}" with "{hypothesis}"                        0 not_entailment, 1 entailment
 *   WiC    "{sentence1}" with "{sentence2}"                       0 false, 1 true
 *   WSC    "{text} Does {target.span2_text} refers to {target.span1_text}?"   0 false, 1 true
 *
 * "A with B" is a text pair: [CLS] A [SEP] B [SEP]. In the split "train" each row of CB is repeated
 * int(rows of the largest class / rows of its class) times, one after the other, to even out the
 * classes. A true/false label may also be written 1 or 0.
 *
 * Files are UTF-8, one JSON object a line; a byte order mark, CRLF line ends, blank lines and a
 * last line without an end are fine, and so is a line of many megabytes. Spare keys are ignored.
 * Every error names file, line and key. */
#ifndef MC_DATASETS_DATASET_H
#define MC_DATASETS_DATASET_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_dataset mc_dataset;

/* The label of a row that has none: what mc_cross_entropy ignores by default, and what
 * mc_accuracy_add doesn't count. */
enum { MC_NO_LABEL = -100 };

typedef struct mc_dataset_options {
    int max_length;     /* most tokens of a sequence, specials included; longer ones are cut, the
                       longest text of a pair first. 0: 512 */
    int64_t vocabulary; /* tokens of the model: rows that have others fail when they are tokenized.
                           0: not checked */
} mc_dataset_options;

/* Opens a split of a task. `task` is one of the names above, in any case. `split` names the file:
 * "train" is train.jsonl, and so on for any plain name; "val", "dev" and "validation" are one split
 * in a file of any of these names. The file is looked for in
 *
 *     {folder}/{split}.jsonl
 *     {folder}/{task}/{split}.jsonl                           the task's folder in any case
 *     {folder}/down_data/superglue/{task}/{split}.jsonl       ModelCenter's layout
 *
 * Rows without a label (or with null, or -1) are allowed in the splits "test" and "unlabeled" only
 * and have the label MC_NO_LABEL. The tokenizer must outlive the dataset, and both belong to the
 * context. `options` may be NULL.
 *
 * Errors (NULL): an unknown task (the known ones are listed); no such file (all places looked at
 * are listed, and what is there instead); a file without rows; malformed JSON, a NUL, bytes that
 * are no UTF-8; a key that is missing, twice there, or of the wrong type; a label that is not the
 * task's; a max_length too small for the special tokens. */
MC_API mc_dataset *mc_dataset_open(mc_context *ctx, const char *task, const char *folder,
                                   const char *split, const mc_tokenizer *tok,
                                   const mc_dataset_options *options);

/* The same from `size` bytes of JSON Lines in memory, which are not kept. `name` stands for the
 * file in errors. One question typed by a user is one unlabelled line of the split "test". */
MC_API mc_dataset *mc_dataset_from_memory(mc_context *ctx, const char *task, const char *name,
                                          const char *data, size_t size, const char *split,
                                          const mc_tokenizer *tok,
                                          const mc_dataset_options *options);

/* Frees the dataset; loaders made from it keep what they need until they are freed themselves. NULL
 * is allowed. */
MC_API void mc_dataset_free(mc_dataset *dataset);

MC_API int64_t mc_dataset_rows(const mc_dataset *dataset); /* repeated rows count each time */
MC_API int mc_dataset_labels(const mc_dataset *dataset);   /* classes */
/* The name of class k, e.g. "entailment"; NULL if out of range. */
MC_API const char *mc_dataset_label_name(const mc_dataset *dataset, int k);
/* Inputs (sequences) of a row: 2 for COPA, else 1. */
MC_API int mc_dataset_choices(const mc_dataset *dataset);
/* Units the classifier needs: one a class; or 1 where a row has several inputs, whose logits side
 * by side, (rows * choices, 1) seen as (rows, choices), are those of the row. */
MC_API int mc_dataset_outputs(const mc_dataset *dataset);
MC_API int mc_dataset_max_length(const mc_dataset *dataset);
MC_API const char *mc_dataset_task(const mc_dataset *dataset); /* "BoolQ" */
MC_API const char *mc_dataset_path(const mc_dataset *dataset); /* the file that was read */

/* A row: its line in the file (from 1), its label (or MC_NO_LABEL), and the text, and pair (NULL
 * for a single text), of its input `choice`. Strings belong to the dataset. Out of range: 0,
 * MC_NO_LABEL, NULL. */
MC_API int64_t mc_dataset_line(const mc_dataset *dataset, int64_t row);
MC_API int32_t mc_dataset_label(const mc_dataset *dataset, int64_t row);
MC_API const char *mc_dataset_text(const mc_dataset *dataset, int64_t row, int choice);
MC_API const char *mc_dataset_pair(const mc_dataset *dataset, int64_t row, int choice);

/* The known tasks: the name of the i-th, NULL past the last. */
MC_API const char *mc_task_name(int i);
/* What mc_dataset_outputs gives for a dataset of that task (any case); 0 for an unknown task. */
MC_API int mc_task_outputs(const char *name);

#endif
