/* The rows that a model is trained on or asked about: a benchmark's, or those of files of one's
 * own. */
#ifndef MC_TOOLS_DATA_OPTIONS_H
#define MC_TOOLS_DATA_OPTIONS_H

#include "tools/options/args.h"
#include "tools/options/settings.h"
#include "tools/tasks/task_file.h"
#include "tools/tasks/task_run.h"

/* As on the command line. */
typedef struct data_options {
    int task;                   /* of data_task_names; -1: the user's files */
    args_list files, val_files; /* --data and --val: paths and patterns */
    const char *data, *val;     /* the first of each, from data_check on */
    const char *split;
    const char *text, *image, *pair, *label, *target, *prompt, *response, *separator, *messages,
        *chat_format;
    bool regression, multi_label;
    bool classifier;     /* a benchmark as an encoder gets it, with a head on any family */
    bool generate;       /* score texts that are generated, instead of the loss */
    double val_fraction; /* 0: not given */
    int64_t max_length, max_target_length;
} data_options;

#define DATA_DEFAULTS \
    {                 \
        .task = -1    \
    }

/* Room for the files of a command line of `argc` words, before it is parsed. */
void data_options_init(data_options *o, int argc);
void data_options_release(data_options *o);

/* Names of benchmarks, NULL after the last. */
const char *const *data_task_names(void);
/* "BoolQ"; NULL: the user's files. */
const char *data_task(const data_options *o);
/* The same, or the name of the file, for people and result lines. */
const char *data_title(const data_options *o);

/* --task, --data and what says the meaning of a file's columns; then, to train, what is held back
 * for validation; to evaluate, the split. */
void data_add_rows(args_table *table, data_options *o);
void data_add_training_rows(args_table *table, data_options *o);
void data_add_eval_rows(args_table *table, data_options *o);

/* Whether the options fit one another, and a family of models (NULL: not known yet); else prints
 * the error of a wrong command line. To evaluate, columns may be missing: data_open_eval takes them
 * from the model's folder. */
bool data_check(const args_spec *spec, data_options *o, const char *family, bool training);
/* Whether they fit the family, once data_check was called without one; else sets an error. */
bool data_fits_family(mc_context *ctx, const data_options *o, const char *family, bool training);

/* The kind of the rows that the options name, as they are put to a family. */
mc_task_kind data_kind(const data_options *o, const char *family);

/* Opens what is trained on and what is held back, before there is a model, whose head may depend on
 * the labels; data_fit sets both to the model. The user's rows without --val: `seed` says which
 * --val-fraction of them are held back. `had` has the labels of the classifier that is trained
 * further: the user's rows get the numbers that these have, if they mean them. False with the
 * context's error. */
bool data_open_training(mc_context *ctx, const data_options *o, const char *family, uint64_t seed,
                        const mc_tokenizer *tok, const mc_model_labels *had, mc_dataset **train,
                        mc_dataset **val);
bool data_fit(const data_options *o, const mc_model *model, const mc_tokenizer *tok,
              mc_dataset *train, mc_dataset *val);

/* Opens what a model is asked about. Columns, kind and lengths that the options don't say are those
 * it was trained with, in `folder`/task.json. The labels' names are settled (task_settle_names).
 * NULL with the context's error. */
mc_dataset *data_open_eval(mc_context *ctx, const data_options *o, const char *folder,
                           mc_model *model, const mc_tokenizer *tok, run_log *log);

/* The tokenizer for task_exam: NULL where no texts are to be generated. */
const mc_tokenizer *data_generates(const data_options *o, const mc_dataset *dataset,
                                   const mc_tokenizer *tok);

/* What decides which rows there are and how they are put, under the options' names. */
void data_add_settings(settings *list, const data_options *o);

/* Names the task and its labels in the model, which saves them with its config. */
void data_name(mc_model *model, const mc_dataset *dataset);
/* Writes task.json beside a saved model, on one rank. */
void data_save(mc_context *ctx, const data_options *o, const mc_dataset *dataset,
               const char *folder);

#endif
