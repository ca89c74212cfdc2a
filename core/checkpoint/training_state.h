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
 *     config.json, model.safetensors, ...   the newest weights, for from_pretrained
 *     checkpoint-2000/                      all of step 2000:
 *         config.json, model.safetensors ...    what `save_files` wrote
 *         optimizer.safetensors                 see optim_state.h; with the f32 master copies
 *         training.json                         step, random numbers, settings, checksums
 *     checkpoint-1000/ ...                  older ones
 *
 * A checkpoint is written to checkpoint-2000.tmp, synced to disk, and then renamed atomically;
 * older ones are removed only after that. So a checkpoint with a final name is always complete,
 * even if a process or the machine dies: weights and state of one step. The files beside the
 * checkpoints are links to those of the newest checkpoint, or of the one that `best` names (copies
 * if the file system has no links). Each is replaced atomically.
 *
 * Ranks save, open and restore together, in a folder that all of them can access. A checkpoint does
 * not depend on the number of ranks: any number can restore it, at any level of sharding. Each rank
 * writes and reads its shard; rank 0 does the work that is done once. `save_files` must follow the
 * same rule (mc_model_save and mc_tokenizer_save do).
 *
 * What is restored: the optimizers' moments and master copies, step counts, schedules, the loss
 * scale with its growth counter, and the position of the random numbers of dropout. Settings belong
 * to the caller: for example the position in the data, and options that a resumed run must keep.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_CHECKPOINT_TRAINING_STATE_H
#define MC_CHECKPOINT_TRAINING_STATE_H

#include "core/optim/optim_manager.h"

enum { MC_CHECKPOINT_BEST_BESIDE = -1 }; /* mc_checkpoint_options.best */

/* A text saved with a checkpoint. */
typedef struct mc_checkpoint_setting {
    const char *name, *value; /* UTF-8 */
} mc_checkpoint_setting;

typedef struct mc_checkpoint_options {
    int64_t step; /* the last completed step, > 0; names the checkpoint */
    int keep;     /* older checkpoints that stay beside the new one */
    /* The step of the best checkpoint so far: the files beside the checkpoints are its files, and
     * it is kept regardless of `keep`. 0: this step; the checkpoint of an older step must exist.
     * MC_CHECKPOINT_BEST_BESIDE: the files beside the checkpoints belong to the program, and stay
     * unchanged. */
    int64_t best;
    /* For the first checkpoint of a run that replaces another model: remove that model's files
     * beside the checkpoints that this one lacks (a tokenizer's). false: they stay, as the
     * program's own files. */
    bool replaces_model;
    mc_optim_manager *optim;
    /* Writes the model and its other files into an existing folder. The files must be synced, as
     * those of mc_model_save and mc_tokenizer_save are. It must not create subfolders. */
    mc_status (*save_files)(void *user, const char *folder);
    void *user;
    const mc_checkpoint_setting *settings; /* (setting_count), names unique; copied */
    int setting_count;
    /* Copy weights and state to host memory, and write them on a background thread while the
     * program continues. Only one checkpoint is written at a time: the next call of
     * mc_checkpoint_save or mc_checkpoint_wait waits for it. Files that `save_files` writes without
     * this library's save functions for models are written at once. If the copy does not fit in the
     * host memory of one of the ranks, everything is written at once, and the log reports that. */
    bool background;
} mc_checkpoint_options;

/* Saves a checkpoint of a run into `folder`, which is created if needed. Call it between a step and
 * the next zero_grad. Replaces a checkpoint of the same step. Errors, set in the context, which
 * leave older checkpoints unchanged: those of `save_files`, MC_ERR_IO and MC_ERR_NOMEM.
 */
MC_API mc_status mc_checkpoint_save(mc_context *ctx, const char *folder,
                                    const mc_checkpoint_options *options);

/* Waits for the checkpoint that is being saved in the background, if any; ranks call it together.
 * Returns, and sets, the error of that save. With several ranks an error reaches the whole job as
 * soon as it happens. Freeing the context also waits, but only logs a failure. An incomplete
 * checkpoint has a temporary name, which mc_checkpoint_open ignores. */
MC_API mc_status mc_checkpoint_wait(mc_context *ctx);

/* Polls the progress of saving, without waiting; each rank may call it at any time. *step (`step`
 * may be NULL) becomes the step of the newest checkpoint that this context has saved completely, 0
 * before the first. Ranks other than 0 learn of a background checkpoint only at their next wait.
 * Returns, and sets, the error of saving in the background. */
MC_API mc_status mc_checkpoint_poll(mc_context *ctx, int64_t *step);

/* Whether the folder holds a checkpoint, complete or not, as seen by this rank. */
MC_API bool mc_checkpoint_exists(const char *folder);

/* Removes all checkpoints of a folder, before another run replaces the old one. Not collective:
 * call it on one rank. Errors: MC_ERR_IO. */
MC_API mc_status mc_checkpoint_remove_all(mc_context *ctx, const char *folder);

/* An open checkpoint. Owned by its context. */
typedef struct mc_checkpoint mc_checkpoint;

/* Opens the newest complete checkpoint of a run. Compares sizes and checksums of all its files with
 * those in training.json; skips a checkpoint that is damaged, or whose best one
 * (mc_checkpoint_options.best) is, with a warning. Returns NULL without an error if the run has no
 * checkpoint; fails with MC_ERR_FORMAT, naming the damage of the newest, if all are damaged. */
MC_API mc_checkpoint *mc_checkpoint_open(mc_context *ctx, const char *folder);
MC_API void mc_checkpoint_free(mc_checkpoint *checkpoint); /* NULL is allowed */

/* 0 and NULL for a NULL checkpoint. Texts live as long as the checkpoint. */
MC_API int64_t mc_checkpoint_step(const mc_checkpoint *checkpoint);
MC_API const char *mc_checkpoint_folder(const mc_checkpoint *checkpoint);
MC_API const char *mc_checkpoint_setting_of(const mc_checkpoint *checkpoint, const char *name);

/* Restores an OptimManager that was set up like the saved one, and the state of the context's
 * random numbers. Call it after loading the parameters. Newer checkpoints, which mc_checkpoint_open
 * found damaged, are renamed to end in ".damaged", and the files beside the checkpoints become
 * those of this one, or of its best. Errors: MC_ERR_ARGUMENT for a context with another seed, and
 * those of mc_optim_manager_load. */
MC_API mc_status mc_checkpoint_restore(mc_checkpoint *checkpoint, mc_optim_manager *optim);

#endif
