/* What the rows of a dataset hold, how they are scored, and the known tasks.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_ROWS_H
#define MC_DATASETS_ROWS_H

#include "datasets/dataset.h"

/* The same from `size` bytes of JSON Lines in memory, which are not kept. `name` stands for the
 * file in errors. One question typed by a user is one unlabelled line of the split "test". */
MC_API mc_dataset *mc_dataset_from_memory(mc_context *ctx, const char *task, const char *name,
                                          const char *data, size_t size, const char *split,
                                          const mc_tokenizer *tok,
                                          const mc_dataset_options *options);

/* Replaces the options that the dataset was opened with, for example once the model is known. Call
 * it before creating loaders. Errors: those of the options; an existing loader. */
MC_API mc_status mc_dataset_set_options(mc_dataset *dataset, const mc_dataset_options *options);
/* Inputs (sequences) of a row: 2 for COPA, else 1. */
MC_API int mc_dataset_choices(const mc_dataset *dataset);
MC_API int mc_dataset_max_length(const mc_dataset *dataset);
MC_API int mc_dataset_max_target_length(const mc_dataset *dataset); /* 0 unless GENERATE */
MC_API mc_prompt mc_dataset_prompt(const mc_dataset *dataset);
/* Of ANSWER: the tokens that stand for the classes, (labels); NULL of other kinds. */
MC_API const int32_t *mc_dataset_answers(const mc_dataset *dataset);

/* A row: its file, its line in the file (from 1; for a custom source its number, from 1; of SQuAD's
 * file, which is one document, 0), its label (or MC_NO_LABEL), the text, and pair (NULL for a
 * single text), of its input `choice`, and the text to be generated (NULL: none). Strings belong to
 * the dataset. Out of range: NULL, 0, MC_NO_LABEL. */
MC_API const char *mc_dataset_file(const mc_dataset *dataset, int64_t row);
MC_API int64_t mc_dataset_line(const mc_dataset *dataset, int64_t row);
MC_API int32_t mc_dataset_label(const mc_dataset *dataset, int64_t row);
MC_API const char *mc_dataset_text(const mc_dataset *dataset, int64_t row, int choice);
MC_API const char *mc_dataset_pair(const mc_dataset *dataset, int64_t row, int choice);
MC_API const char *mc_dataset_target(const mc_dataset *dataset, int64_t row);
/* Of REGRESS the number, of MULTI_LABEL (labels) of 1 and 0; NULL of other kinds, and out of
 * range. */
MC_API const float *mc_dataset_values(const mc_dataset *dataset, int64_t row);
/* Rows of one group belong together in a score, such as the answers to one question; they count
 * from 0. A row that is alone has a group of its own. */
MC_API int64_t mc_dataset_group(const mc_dataset *dataset, int64_t row);
/* The i-th of the texts that are right answers to the question of a row's group, NULL past the
 * last: of a benchmark whose texts are scored those that its file names, for GENERATE with your own
 * data the row's target. */
MC_API const char *mc_dataset_reference(const mc_dataset *dataset, int64_t row, int i);
MC_API mc_scoring mc_dataset_scoring(const mc_dataset *dataset); /* MC_SCORING_NONE for NULL */

/* The known tasks: the name of the i-th, NULL past the last. */
MC_API const char *mc_task_name(int i);
/* What mc_dataset_kind and mc_dataset_outputs give for a dataset of that task (any case) as it is
 * put to such a family; 0 for an unknown task, and for one that has no form for the family. */
MC_API mc_task_kind mc_task_kind_for(const char *name, mc_prompt_style style);
MC_API int mc_task_outputs_for(const char *name, mc_prompt_style style);
/* The same for encoders. */
MC_API int mc_task_outputs(const char *name);

#endif
