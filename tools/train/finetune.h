/* Training a model on a task: the parts of `modelcenter finetune`. */
#ifndef MC_TOOLS_FINETUNE_H
#define MC_TOOLS_FINETUNE_H

#include "core/modelcenter.h"
#include "tools/train/checkpoints.h"
#include "tools/files/content.h"
#include "tools/options/data_options.h"
#include "tools/options/lora_options.h"
#include "tools/options/model_options.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"
#include "tools/log/step_clock.h"
#include "tools/options/train_options.h"
#include "tools/train/train_output.h"

/* Which model is the run's: the last, or the one with the best evaluation. */
typedef enum finetune_keep { FINETUNE_KEEP_LAST, FINETUNE_KEEP_BEST } finetune_keep;

/* As on the command line. */
typedef struct finetune_options {
    int keep;
    model_options from;
    data_options data;
    const char *tokenizer, *output;
    int64_t max_shard_size;
    int64_t epochs, max_steps, stop_after;
    int64_t batch_size;                  /* of a rank, computed at once */
    int64_t accumulation, rows_per_step; /* of all ranks; either may be 0: it follows */
    int64_t save_every, eval_every, patience;
    int save_total_limit;
    const char *metric; /* NULL: the task's own */
    double threshold, dropout;
    bool dropout_given, shuffle, group_by_length, no_decay_bias_norm, resume;
    uint64_t seed;
    lora_options lora;
    train_options train;
} finetune_options;

extern const char *const finetune_keep_names[]; /* NULL at the end */

enum { FINETUNE_STEPS_KEPT = 4, FINETUNE_SCORE_TEXT = 512 };

/* What evaluations have found so far. */
typedef struct finetune_scores {
    int64_t count;                    /* of evaluations */
    int64_t without;                  /* of these, the last ones that were no improvement */
    int64_t best_step;                /* of the best one */
    double best;                      /* its metric, or where less is better that below 0 */
    bool best_beside;                 /* its model was saved without a checkpoint */
    char result[FINETUNE_SCORE_TEXT]; /* of the model that is kept: "accuracy=0.9630 ..." */
} finetune_scores;

/* All of a run. */
typedef struct finetune {
    finetune_options o; /* with everything filled in once set up */
    mc_context *ctx;
    run_log log;
    bool refused; /* finetune_refuse has said why */
    bool ended;   /* it was when this process began: finetune_find has read its result */
    train_output target;
    checkpoints checkpoints;
    mc_tokenizer *tokenizer;
    mc_model *model;
    mc_dataset *train_rows, *val_rows;
    uint64_t fingerprint; /* of both */
    content model_content, config_content,
        tokenizer_content;  /* of --model, --config, --tokenizer */
    mc_dataloader **train;  /* (accumulation): each deals out its part of the rows of a step */
    const mc_batch **batch; /* (accumulation), of the running step */
    mc_tensor *ratio;       /* see task_ratio_new */
    mc_dataloader *val;
    task_exam exam;
    mc_optim_manager *optim;
    int64_t steps_per_epoch;
    int64_t step, stop, steps;           /* the last that was launched, to stop after, of the run */
    int64_t shown;                       /* the last that was logged */
    int64_t tokens[FINETUNE_STEPS_KEPT]; /* of the last steps */
    step_clock clock;
    double train_seconds; /* of all steps, those of the runs before it included */
    finetune_scores scores;
    bool eval_due; /* the evaluation after the last step was interrupted */
    bool stopped;  /* early */
} finetune;

/* ---- finetune_state.c ---- */

/* Opens the newest checkpoint of --output with --resume, or finds that the run has ended; refuses
 * to begin a run over another one that has not. */
bool finetune_find(finetune *f);
/* Fills in what was not given: as in the run that is resumed, and the dtype by the device. */
void finetune_take_defaults(finetune *f);
/* Compares options and data with those that the run was begun with. */
bool finetune_check_options(finetune *f);
/* Goes on where the checkpoint stopped. */
bool finetune_restore(finetune *f);
/* Whether what will be saved has room. */
bool finetune_check_room(finetune *f);
/* The last before training: a new run takes the place of what its folder holds. */
bool finetune_begin(finetune *f);
/* Saves a checkpoint of the last step in the background, unless there is one. */
void finetune_checkpoint(finetune *f);
/* The model that is now the best goes to --output at once, so that it cannot be lost. */
void finetune_save_best(finetune *f);
/* What a run leaves that has ended or was interrupted. */
void finetune_save_end(finetune *f);
/* Whether all of the run is done. */
bool finetune_has_ended(const finetune *f);

/* ---- finetune_look.c ---- */

/* Shows what there is to train on; with --dry-run in full, with the result line. */
void finetune_look(finetune *f);

/* ---- finetune_loop.c ---- */

/* Trains to the last step, an interrupt or an error. */
void finetune_train(finetune *f);
/* The result line. */
mc_status finetune_result(finetune *f);

/* Prints "error: ...", which ends the job of several ranks, and returns false. */
bool finetune_refuse(finetune *f, const char *format, ...) MC_PRINTF(2, 3);

#endif
