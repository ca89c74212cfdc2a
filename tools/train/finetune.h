/* Training a model on a task: the parts of `modelcenter finetune`. */
#ifndef MC_TOOLS_FINETUNE_H
#define MC_TOOLS_FINETUNE_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/files/content.h"
#include "tools/options/data_options.h"
#include "tools/train/train_run.h"

/* Which model is the run's: the last, or the one with the best evaluation. */
typedef enum finetune_keep { FINETUNE_KEEP_LAST, FINETUNE_KEEP_BEST } finetune_keep;

/* As on the command line; the rest is in train_run_options. */
typedef struct finetune_options {
    int keep;
    data_options data;
    int64_t epochs, max_steps;
    int64_t accumulation, rows_per_step; /* of all ranks; either may be 0: it follows */
    int64_t eval_every, patience;
    const char *metric; /* NULL: the task's own */
    double threshold;
    bool dropout_given, shuffle, group_by_length;
} finetune_options;

extern const char *const finetune_keep_names[]; /* NULL at the end */

/* What evaluations have found so far. */
typedef struct finetune_scores {
    int64_t count;                     /* of evaluations */
    int64_t without;                   /* of these, the last ones that were no improvement */
    int64_t best_step;                 /* of the best one */
    double best;                       /* its metric, or where less is better that below 0 */
    bool best_beside;                  /* its model was saved without a checkpoint */
    char result[SETTINGS_STRING_SIZE]; /* of the model that is kept: "accuracy=0.9630 ..." */
} finetune_scores;

/* All of a run. */
typedef struct finetune {
    train_run run;
    finetune_options o; /* with everything filled in once set up */
    mc_dataset *train_rows, *val_rows;
    uint64_t fingerprint; /* of both */
    content model_content, config_content,
        tokenizer_content;     /* of --model, --config, --tokenizer */
    mc_dataloader **train;     /* (accumulation): each deals out its part of the rows of a step */
    const mc_batch **batch;    /* (accumulation), of the running step */
    mc_data_position position; /* of the loaders, when the run's state is saved or restored */
    mc_tensor *ratio;          /* see task_ratio_new */
    mc_dataloader *val;
    task_exam exam;
    char during[256]; /* "validation of BoolQ after step 120" */
    finetune_scores scores;
} finetune;

/* ---- finetune_state.c: the train_kind's functions of these names, but for finetune_* ---- */

extern const settings_field finetune_state[];
void finetune_place_state(train_run *run, bool saving);
bool finetune_find_ended(train_run *run);
void finetune_add_options(settings *list, const train_run *run);
bool finetune_same_data(train_run *run);
mc_status finetune_save_task(train_run *run, const char *folder);
void finetune_mark_ended(train_run *run, bool ended);
/* Whether a run that is killed is to go on where it was. */
bool finetune_is_resumable(const train_run *run);
/* What of the data is compared with another run's: the fingerprint and the contents. */
void finetune_identify(finetune *f);
/* The model that is now the best goes to --output at once, so that it cannot be lost. */
void finetune_save_best(finetune *f);

/* ---- finetune_look.c ---- */

/* Shows what there is to train on; with --dry-run in full, with the result line. */
void finetune_look(finetune *f);

/* ---- finetune_loop.c ---- */

mc_tensor *finetune_loss(mc_tape *t, train_work *w, int pass);
bool finetune_fill(train_run *run);
void finetune_evaluate(train_run *run);
mc_status finetune_result(train_run *run);

#endif
