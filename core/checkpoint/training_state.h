/* Checkpoints of a training run, and resuming it exactly.
 *
 *     mc_checkpoint_save(ctx, "run", &(mc_checkpoint_options){.step = 2000, .optim = optim,
 *                                        .save_files = save_model, .user = gpt2,
 *                                        .settings = settings, .setting_count = n});
 *     ...
 *     mc_checkpoint *last = mc_checkpoint_open(ctx, "run");                     in a new process
 *     if (last) {
 *         gpt2 = mc_gpt2_from_pretrained(ctx, mc_checkpoint_folder(last), &load);
 *         ... optimizer and OptimManager as before ...
 *         mc_checkpoint_restore(last, optim);
 *         first = mc_checkpoint_step(last) + 1;
 *     }
 *
 * The run's folder holds
 *
 *     config.json, model.safetensors, ...   the newest weights: a folder for from_pretrained
 *     checkpoint-2000/                      all of step 2000:
 *         config.json, model.safetensors ...    what `save_files` wrote
 *         optimizer.safetensors                 see optim_state.h; with the f32 master copies
 *         training.json                         step, random numbers, settings, checksums
 *     checkpoint-1000/ ...                  older ones
 *
 * A checkpoint is written to checkpoint-2000.tmp, synced to disk, and then takes its name in one
 * step; only after that older ones go. So whenever a process or the machine dies, whatever bears
 * such a name is whole: weights and state of one step. The files beside the checkpoints are links
 * to those of the newest one, or of the one that `best` names (copies where the file system has no
 * links), each replaced in one step.
 *
 * Ranks save, open and restore together, in a folder that all of them see. What is saved does not
 * depend on how many there are, and can be restored by any other number, at any level of sharding.
 * Each writes and reads its share; rank 0 does what is to be done once, and `save_files` leaves it
 * to rank 0 in the same way (mc_model_save and mc_tokenizer_save do).
 *
 * What is restored: the optimizers' moments and master copies, step counts, schedules, the loss
 * scale with its growth counter, and the position of the random numbers of dropout. Settings are
 * the caller's own: the position in the data, the options that a run must go on with. */
#ifndef MC_CHECKPOINT_TRAINING_STATE_H
#define MC_CHECKPOINT_TRAINING_STATE_H

#include "core/optim/optim_manager.h"

enum { MC_CHECKPOINT_BEST_BESIDE = -1 }; /* mc_checkpoint_options.best */

/* A text that is kept with a checkpoint. */
typedef struct mc_checkpoint_setting {
    const char *name, *value; /* UTF-8 */
} mc_checkpoint_setting;

typedef struct mc_checkpoint_options {
    int64_t step; /* the last that was trained, > 0; names the checkpoint */
    int keep;     /* older checkpoints that stay beside the new one */
    /* The step of the checkpoint whose weights are the run's result so far: the files beside the
     * checkpoints are its, and it stays, whatever `keep` says. 0: this step's; an older step's
     * checkpoint must be there. MC_CHECKPOINT_BEST_BESIDE: the files beside the checkpoints are
     * the program's own, and stay as they are. */
    int64_t best;
    /* The first checkpoint of a run that takes the place of another model: files of that model
     * beside the checkpoints which this one lacks (a tokenizer's) are removed. false: they stay, as
     * a program's own. */
    bool replaces_model;
    mc_optim_manager *optim;
    /* Writes the model, and what belongs to it, into an existing folder. Its files must be synced,
     * as those of mc_model_save and mc_tokenizer_save are. No folders within it. */
    mc_status (*save_files)(void *user, const char *folder);
    void *user;
    const mc_checkpoint_setting *settings; /* (setting_count), names unique; copied */
    int setting_count;
    /* Only copies weights and state, into host memory, and writes them while the program goes on,
     * on a thread of its own. One checkpoint is under way at a time: the next call of
     * mc_checkpoint_save or mc_checkpoint_wait waits for it. What `save_files` writes by other
     * means than this library's save functions for models is written at once; and so is everything
     * where any rank's host memory has no room for the copy, which the log says. */
    bool background;
} mc_checkpoint_options;

/* Saves a checkpoint of a run into `folder`, which is made if need be. To be called between a step
 * and the next zero_grad. A checkpoint of the same step is replaced. Errors, set in the context:
 * what `save_files` returns, MC_ERR_IO and MC_ERR_NOMEM; the older checkpoints are untouched then.
 */
MC_API mc_status mc_checkpoint_save(mc_context *ctx, const char *folder,
                                    const mc_checkpoint_options *options);

/* Waits for the checkpoint that is being saved in the background, if there is one; ranks call it
 * together. Returns, and sets, the error that saving it ended with. Of several ranks' an error is
 * also one of the job, as soon as it happens. Freeing the context waits too, but only logs what
 * failed. A checkpoint that is not whole yet has no name that anybody looks for. */
MC_API mc_status mc_checkpoint_wait(mc_context *ctx);

/* How saving fares, without waiting: to be called now and then, by each rank for itself. *step
 * (`step` may be NULL) is that of the newest checkpoint that this context has saved whole, 0 while
 * there is none; ranks but the first learn of one in the background when they next wait. Returns,
 * and sets, the error that saving in the background has ended with. */
MC_API mc_status mc_checkpoint_poll(mc_context *ctx, int64_t *step);

/* Whether the folder holds a checkpoint, whole or not, as this rank sees it. */
MC_API bool mc_checkpoint_exists(const char *folder);

/* Removes all checkpoints of a folder: those of a run that another one replaces. Not collective:
 * for one rank. MC_ERR_IO. */
MC_API mc_status mc_checkpoint_remove_all(mc_context *ctx, const char *folder);

/* A checkpoint that was opened. Owned by its context. */
typedef struct mc_checkpoint mc_checkpoint;

/* Opens the newest whole checkpoint of a run: sizes and checksums of all its files are compared
 * with those in training.json, and a damaged one is passed over with a warning, as one is whose
 * best (mc_checkpoint_options.best) is damaged. NULL without an
 * error if there is none at all; MC_ERR_FORMAT where all are damaged, naming what is wrong with
 * the newest. */
MC_API mc_checkpoint *mc_checkpoint_open(mc_context *ctx, const char *folder);
MC_API void mc_checkpoint_free(mc_checkpoint *checkpoint); /* NULL is allowed */

/* 0 and NULL for a NULL checkpoint. Texts live as long as the checkpoint. */
MC_API int64_t mc_checkpoint_step(const mc_checkpoint *checkpoint);
MC_API const char *mc_checkpoint_folder(const mc_checkpoint *checkpoint);
MC_API const char *mc_checkpoint_setting_of(const mc_checkpoint *checkpoint, const char *name);

/* Restores an OptimManager that was made as the saved one, and the context's random numbers; to be
 * called when the parameters have been loaded. Newer checkpoints, which mc_checkpoint_open found
 * damaged, get the ending ".damaged", and the files beside the checkpoints are those of this one,
 * or of its best.
 * MC_ERR_ARGUMENT for a context of another seed, and the errors of mc_optim_manager_load. */
MC_API mc_status mc_checkpoint_restore(mc_checkpoint *checkpoint, mc_optim_manager *optim);

#endif
