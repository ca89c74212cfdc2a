/* The driver of the commands that train, `finetune` and `pretrain`: the folder that a run writes
 * to, its checkpoints, the loop of steps with what is due between them, interrupts and the end.
 * What differs between the two is a table of functions, train_kind.
 *
 *     static const train_kind kind = {.prepare = open_data, .fill = next_rows, ...};
 *     finetune f = {.run = {.kind = &kind, .o = defaults}};
 *     f.run.user = &f;
 *     ... the command line is read into f.run.o ...
 *     return train_run_command(&f.run, &spec);
 */
#ifndef MC_TOOLS_TRAIN_RUN_H
#define MC_TOOLS_TRAIN_RUN_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/files/output.h"
#include "tools/log/run_log.h"
#include "tools/log/step_clock.h"
#include "tools/options/lora_options.h"
#include "tools/options/model_options.h"
#include "tools/options/settings.h"
#include "tools/options/train_options.h"
#include "tools/ranks.h"
#include "tools/train/train_work.h"

/* With --fp8 auto, the kinds of layers in 8 bits (mc_recipe.fp8_kinds, but 0: none): all. */
#define TRAIN_RUN_ALL_KINDS UINT64_MAX

/* Options of both commands. */
typedef struct train_run_options {
    model_options from;
    const char *tokenizer, *output;
    int64_t max_shard_size;
    int64_t batch_size; /* of a rank, computed at once */
    int64_t save_every, stop_after;
    int keep, save_total_limit; /* older checkpoints beside the newest; with it, 0: not given */
    bool resume;
    double dropout;
    uint64_t seed;
    lora_options lora;
    train_options train;
} train_run_options;

enum {
    TRAIN_RUN_WAYS = MODEL_WAY_NEW | MODEL_WAY_OLD_FAMILY | MODEL_WAY_ADAPTER,
    TRAIN_RUN_REPORTS = 4, /* steps that may not have been reported yet */
};

typedef struct train_run train_run;

/* A kind of training. Each function that returns a bool returns false after an error of the context
 * or train_run_refuse. They are called in this order. */
typedef struct train_kind {
    /* Fills in what was not given, of run->resumed or by default. */
    bool (*take_defaults)(train_run *run);
    /* With --resume and without a checkpoint: sets run->ended where the run has ended. Or NULL. */
    bool (*find_ended)(train_run *run);
    /* Opens data and model (work.model, .loss, .passes), and sets what of the run depends on the
     * kind: tokenizer, steps, evaluates, eval_every, show_every, only_model, adam. */
    bool (*prepare)(train_run *run);
    /* Adds the options that decide the course of a run, with both ends (settings_end_fixed). */
    void (*add_options)(settings *list, const train_run *run);
    /* Whether run->resumed was begun with the same data. */
    bool (*same_data)(train_run *run);
    /* Makes what a step needs besides model and optimizer, and shows it. Or NULL. */
    bool (*make)(train_run *run);
    /* The state of a run besides its step, as fields of `user`. place_state fills in those that
     * are kept elsewhere (a loader's position) before they are saved, or puts them there after
     * they were read. */
    const settings_field *state;
    void (*place_state)(train_run *run, bool saving);
    /* Shows what there is to train on. Or NULL. */
    void (*look)(train_run *run);
    /* Gets the batches of the next step, and sets batch_key and batch_tokens. */
    bool (*fill)(train_run *run);
    /* Evaluates the model, and sets eval_due to false once it has: an interrupt may come first. */
    void (*evaluate)(train_run *run);
    /* Shows what the model does, every show_every steps. Or NULL. */
    void (*show)(train_run *run);
    /* Writes what belongs to a model besides its weights and tokenizer, on rank 0. Or NULL. */
    mc_status (*save_beside)(train_run *run, const char *folder);
    /* Marks the folder of a run that has ended and left no checkpoint; or takes such a mark away,
     * before a new run begins there. Or NULL. */
    void (*mark_ended)(train_run *run, bool ended);
    /* The result line. */
    mc_status (*result)(train_run *run);
    bool result_of_part; /* a run that --stop-after ends has a result too */
    void (*release)(train_run *run);
} train_kind;

/* All of a run that does not depend on its kind. */
struct train_run {
    const train_kind *kind;
    void *user;                  /* the kind's */
    const args_list *data, *val; /* --data and --val */
    mc_adam_options adam;        /* its own options */
    train_run_options o;         /* with everything filled in once set up */
    mc_context *ctx;
    run_log log;
    bool refused; /* train_run_refuse has said why */
    bool ended;   /* it was when this process began */
    output out;
    char folder[OUTPUT_PATH]; /* that the run saves to; "": nothing is saved */
    bool own;                 /* it is the run's own choice */
    mc_tokenizer *tokenizer;  /* that is saved with the model; NULL: none */
    train_work work;
    /* what is saved */
    mc_checkpoint *resumed;  /* NULL: a new run */
    uint64_t fp8_kinds;      /* TRAIN_RUN_ALL_KINDS but where --fp8 auto has chosen */
    bool only_model;         /* at its end, without a checkpoint */
    bool keeps_best;         /* the run's model is the best one, which `evaluate` saves */
    int64_t best;            /* its checkpoint: mc_checkpoint_options.best */
    int64_t saved, reported; /* the last that was or is being saved, and that was reported */
    double pause;            /* seconds that saving took from the steps */
    /* the loop */
    int64_t step, stop, steps; /* the last that was launched, to stop after, of the run */
    int64_t shown;             /* the last that was logged */
    int64_t steps_per_epoch;   /* 0: unknown */
    bool stopped;              /* early */
    uint64_t batch_key;        /* of the batches (mc_step_run); 0: no recording fits them */
    int64_t batch_tokens, tokens[TRAIN_RUN_REPORTS]; /* of the next step, and of the last ones */
    bool evaluates;                                  /* every eval_every steps, and at the end */
    int64_t eval_every, show_every;                  /* 0: at the end alone; never */
    bool eval_due;                                   /* the last evaluation was interrupted */
    step_clock clock;
    double train_seconds; /* of all steps, those of the runs before it included */
    double loss;          /* the last; < 0: none yet */
    double flops, peak;   /* of a token, and a second's of the devices; 0: unknown */
};

/* ---- train_run.c ---- */

/* Runs the command, whose options are parsed; its exit code. */
int train_run_command(train_run *run, const args_spec *spec);
/* Prints "error: ...", which ends the job of several ranks, and returns false. */
bool train_run_refuse(train_run *run, const char *format, ...) MC_PRINTF(2, 3);
/* Whether to go on with whatever is number n: see ranks_stop. */
bool train_run_goes_on(const train_run *run, int64_t n);

/* What the model is loaded from; NULL: it is a new one. */
const char *train_run_source(const train_run *run);
/* Where the base of an adapter lies: --base, or of a run that is resumed --model, whose base it is;
 * NULL: where the adapter says. */
const char *train_run_base(const train_run *run);
/* How, without heads. The options stay the run's. */
mc_load_options train_run_load_options(const train_run *run);

/* For `prepare`, once the model is there and the rows (tokens of a rank) and the number of passes
 * are known: with --fp8 auto measures a new run's layers, chooses, and shows the choice. A run that
 * is resumed keeps its own. False after an error. Collective. */
bool train_run_choose_fp8(train_run *run, int64_t rows);

/* A work like the run's, with a model and an optimizer on a context that computes nothing; its loss
 * is the caller's. The context, which may have failed, is to be freed; NULL: the run's has failed.
 */
train_work train_run_plan(const train_run *run, int passes);

/* ---- train_output.c ---- */

/* Where the run saves, when, and how many checkpoints. */
void train_run_add_saving_rows(args_table *table, train_run_options *o);
/* What is wrong with the options of both commands, or NULL. */
const char *train_run_check(train_run_options *o);
/* Finds the folder that the run saves to, makes and locks it, and checks the logs: nothing is lost
 * by them. With --dry-run the checks are the same, and nothing is made. Collective. */
bool train_run_open_output(train_run *run);
/* Whether the disk has room for what the run will save. Collective. */
bool train_run_check_room(train_run *run);
/* The run's options, run.json, into the folder of its model; on one rank. */
mc_status train_run_write_options(const train_run *run, const char *folder);

/* ---- train_loop.c ---- */

/* Trains to the last step, an interrupt or an error. */
void train_run_train(train_run *run);
/* The share of the devices' peak; 0: unknown. */
double train_run_mfu(const train_run *run, double tokens_per_second);
/* Whether all of the run is done. */
bool train_run_is_done(const train_run *run);

/* ---- train_checkpoints.c ---- */

/* Opens the newest checkpoint of --output with --resume, or finds that the run has ended; refuses
 * to begin a run over another one. Then finds the family, and what was not given. */
bool train_run_find(train_run *run);
/* Whether the settings are those of a run, which `find` finds in `then` (settings_same). */
bool train_run_same(train_run *run, const settings *list, settings_find_fn find, const void *then);
/* Compares options and data with those that the run was begun with. */
bool train_run_check_settings(train_run *run);
/* Goes on where the checkpoint stopped. */
bool train_run_restore(train_run *run);
/* The last before training: a new run takes the place of what its folder holds. */
bool train_run_begin(train_run *run);
/* Saves what the last step left, in the background, unless that was done: a checkpoint, or of a run
 * that leaves it alone and is done the model. */
void train_run_save(train_run *run);
void train_run_save_checkpoint(train_run *run);
void train_run_save_model(train_run *run);
/* Says so when a checkpoint has become whole; train_run_wait waits for it. */
void train_run_tell_saved(train_run *run);
void train_run_wait(train_run *run);
/* After an error that has been printed: prints on rank 0 which checkpoint --resume goes on from. */
void train_run_report_newest(const train_run *run);

#endif
