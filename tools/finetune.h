/* Training a model on a task: the parts of `modelcenter finetune`. */
#ifndef MC_TOOLS_FINETUNE_H
#define MC_TOOLS_FINETUNE_H

#include "core/modelcenter.h"
#include "tools/classify.h"
#include "tools/ranks.h"
#include "tools/run_log.h"
#include "tools/train_options.h"

/* Which model is the run's: the last, or the one with the best evaluation. */
typedef enum finetune_keep { FINETUNE_KEEP_LAST, FINETUNE_KEEP_BEST } finetune_keep;

/* As on the command line. */
typedef struct finetune_options {
    int model, task, keep;
    const char *pretrained, *revision, *config, *tokenizer, *data, *output;
    int64_t max_shard_size;
    int64_t epochs, max_length, max_steps;
    int batch_size;
    double dropout;
    bool dropout_given, shuffle, no_decay_bias_norm;
    uint64_t seed;
    train_options train;
} finetune_options;

enum { FINETUNE_STEPS_KEPT = 4 };

/* All of a run. */
typedef struct finetune {
    finetune_options o;
    mc_context *ctx;
    run_log log;
    bool refused; /* finetune_refuse has said why */
    mc_tokenizer *tokenizer;
    mc_model *model;
    mc_dataset *train_rows, *val_rows;
    mc_dataloader *train, *val;
    const mc_batch *batch; /* of the running step */
    classify_exam exam;
    mc_optim_manager *optim;
    int64_t step, steps;                 /* the last that was launched, and the last of the run */
    int64_t shown;                       /* the last that was logged */
    int64_t tokens[FINETUNE_STEPS_KEPT]; /* of the last steps */
    double clock, train_seconds;
    classify_score score; /* of the model that is kept */
} finetune;

/* ---- finetune_state.c ---- */

/* Saves the model to --output. */
void finetune_save(finetune *f);

/* ---- finetune_loop.c ---- */

/* Trains to the last step, an interrupt or an error. */
void finetune_train(finetune *f);

/* Prints "error: ...", which ends the job of several ranks, and returns false. */
bool finetune_refuse(finetune *f, const char *format, ...) MC_PRINTF(2, 3);

#endif
