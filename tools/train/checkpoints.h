/* The checkpoints of a training command: found, saved in the background, and reported when they are
 * whole.
 *
 *     checkpoints c = {.ctx = ctx, .log = &log, .folder = o->output, .keep = 1};
 *     if (!checkpoints_find(&c, o->resume, message, sizeof message)) refuse ...
 *     ... model, tokenizer, optim; mc_checkpoint_restore(c.resumed, optim) ...
 *     checkpoints_restored(&c);
 *     for each step { ... checkpoints_save(&c, step, 0, settings); checkpoints_tell(&c); }
 *     checkpoints_end(&c);
 */
#ifndef MC_TOOLS_CHECKPOINTS_H
#define MC_TOOLS_CHECKPOINTS_H

#include "core/modelcenter.h"
#include "tools/log/run_log.h"
#include "tools/options/settings.h"

typedef struct checkpoints {
    mc_context *ctx;
    run_log *log;
    const char *folder; /* NULL: nothing is saved */
    bool replace;       /* --overwrite: a new run takes the place of one that is there */
    int keep;           /* older ones that stay beside the newest */
    int64_t max_shard_size;
    mc_model *model;
    mc_tokenizer *tokenizer; /* NULL: none */
    /* Writes what else belongs to the model, on rank 0; NULL: nothing. */
    mc_status (*save_beside)(void *user, const char *folder);
    void *user;
    mc_optim_manager *optim;
    mc_checkpoint *resumed; /* NULL: a new run */
    int64_t saved, told;    /* the last that was or is being saved, and that was reported */
    double pause;           /* seconds that saving took from the steps */
} checkpoints;

/* Opens the newest checkpoint with `resume`; else there must be none, but with `replace`. False
 * after an error of the context, or with a message that says what is wrong ("" after an error). */
bool checkpoints_find(checkpoints *c, bool resume, char *message, size_t room);
/* Of a new run, when it is certain to begin: removes the checkpoints that it replaces. */
bool checkpoints_begin(checkpoints *c);
/* To be called when the run's state is that of the checkpoint, or new: says which. */
void checkpoints_restored(checkpoints *c);
/* Saves what a step left, unless that was done. `best` is that of mc_checkpoint_options. */
void checkpoints_save(checkpoints *c, int64_t step, int64_t best, const settings *list);
/* Saves the model alone to the folder, at once. */
void checkpoints_save_model(checkpoints *c);
/* Says so when a checkpoint has become whole; checkpoints_end waits for it. */
void checkpoints_tell(checkpoints *c);
void checkpoints_end(checkpoints *c);
/* After an error of the context that has been printed: prints on rank 0 which checkpoint is whole,
 * from which --resume goes on. Nothing if there is none. */
void checkpoints_report_newest(const checkpoints *c);

#endif
