/* What the rows of a dataset hold, how they are scored, and the known tasks.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DATASETS_ROWS_H
#define MC_DATASETS_ROWS_H

#include "datasets/dataset.h"

/* mc_dataset_open for `size` bytes of JSON Lines in memory, which are not kept. Errors use `name`
 * as the file's name. One question typed by a user is one unlabelled line of the split "test". */
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
/* For ANSWER: the tokens of the classes, (labels); NULL for other kinds. */
MC_API const int32_t *mc_dataset_answers(const mc_dataset *dataset);

/* The parts of a row: its file; its line in the file, from 1 (for a custom source its number, from
 * 1; 0 for SQuAD's file, which is one document); its label, or MC_NO_LABEL; the text and the pair
 * of its input `choice` (pair NULL: a single text); the text to be generated (NULL: none). Strings
 * belong to the dataset. Out of range: NULL, 0, MC_NO_LABEL. */
MC_API const char *mc_dataset_file(const mc_dataset *dataset, int64_t row);
MC_API int64_t mc_dataset_line(const mc_dataset *dataset, int64_t row);
MC_API int32_t mc_dataset_label(const mc_dataset *dataset, int64_t row);
MC_API const char *mc_dataset_text(const mc_dataset *dataset, int64_t row, int choice);
MC_API const char *mc_dataset_pair(const mc_dataset *dataset, int64_t row, int choice);
MC_API const char *mc_dataset_target(const mc_dataset *dataset, int64_t row);
/* REGRESS: the number. MULTI_LABEL: (labels), 1 or 0 each. NULL for other kinds, and out of range.
 */
MC_API const float *mc_dataset_values(const mc_dataset *dataset, int64_t row);
/* Rows of one group are scored together, such as the answers to one question; groups count from 0.
 * A row without others has a group of its own. */
MC_API int64_t mc_dataset_group(const mc_dataset *dataset, int64_t row);
/* The i-th right answer to the question of a row's group; NULL after the last. For a benchmark
 * whose texts are scored, the answers in its file; for GENERATE with your own data, the row's
 * target. */
MC_API const char *mc_dataset_reference(const mc_dataset *dataset, int64_t row, int i);
MC_API mc_scoring mc_dataset_scoring(const mc_dataset *dataset); /* MC_SCORING_NONE for NULL */

/* The name of the i-th known task; NULL after the last. */
MC_API const char *mc_task_name(int i);
/* The results of mc_dataset_kind and mc_dataset_outputs for a dataset of this task (any case) with
 * this style of prompts; 0 for an unknown task, and for one without this style. */
MC_API mc_task_kind mc_task_kind_for(const char *name, mc_prompt_style style);
MC_API int mc_task_outputs_for(const char *name, mc_prompt_style style);
/* The same for encoders. */
MC_API int mc_task_outputs(const char *name);

#endif
