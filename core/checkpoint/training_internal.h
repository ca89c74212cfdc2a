/* Functions shared by saving and opening checkpoints of a run: see training_state.h. */
#ifndef MC_CHECKPOINT_TRAINING_INTERNAL_H
#define MC_CHECKPOINT_TRAINING_INTERNAL_H

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdatomic.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/formats/save_queue_internal.h"

#define MC_TRAINING_JSON "training.json"
#define MC_TRAINING_OPTIMIZER "optimizer.safetensors"
#define MC_TRAINING_ASIDE ".tmp"

enum { MC_TRAINING_JSON_LIMIT = 1 << 20, MC_TRAINING_FORMAT = 1 };

/* Size and checksum of a file. */
typedef struct mc_file_print {
    uint64_t bytes, checksum;
} mc_file_print;
/* Calls `tick` (may be NULL) now and then, and returns its first status that is not MC_OK. */
mc_status mc_file_print_of(mc_error *err, const char *path, mc_tick_fn tick, void *user,
                           mc_file_print *print);

/* The steps of the checkpoints in a folder, in descending order; mc_free *steps. MC_ERR_NOMEM; a
 * missing folder has none. */
mc_status mc_checkpoint_steps(mc_error *err, const char *folder, int64_t **steps, size_t *count);
/* "<folder>/checkpoint-<step><suffix>" */
mc_status mc_checkpoint_path(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                             int64_t step, const char *suffix);
/* Removes the leftovers of a process that died while saving. */
mc_status mc_checkpoint_clean(mc_error *err, const char *folder);
/* Makes the weights beside the checkpoints those of step `best`, or of `step` if `best` is 0; see
 * mc_checkpoint_options for both and for `replaces`. */
mc_status mc_checkpoint_publish(mc_error *err, const char *folder, int64_t step, int64_t best,
                                bool replaces);

/* A checkpoint that is being saved. */
typedef struct mc_saving {
    mc_owned owned;
    mc_context *ctx;
    mc_error *err; /* where errors go: the context's error, or `error` on the thread */
    int64_t step, best;
    int keep;
    bool replaces;
    char folder[MC_PATH_MAX], aside[MC_PATH_MAX], path[MC_PATH_MAX];
    size_t new_folders;  /* of `aside`, see mc_make_new_folders */
    cJSON *json, *files; /* training.json and its list of files; rank 0's */
    mc_tick_fn tick;     /* called now and then during long work */
    void *tick_user;
    /* in the background */
    mc_save_queue queue;
    mc_error error;
    pthread_t thread;
    atomic_bool done;
} mc_saving;

/* On rank 0 (training_finish.c): creates the empty folder `aside`; and, when all files are there,
 * turns it into a checkpoint. */
mc_status mc_saving_begin(mc_saving *s);
mc_status mc_saving_finish(mc_saving *s);
/* Adds a whole number as a string. False if memory is out. */
bool mc_training_add_u64(cJSON *object, const char *name, uint64_t value);
/* Sets MC_ERR_IO with errno's text. */
mc_status mc_saving_failed_to(mc_saving *s, const char *what, const char *path);
/* Writes on a thread (training_background.c), which owns `s` from then on. */
mc_status mc_saving_start(mc_saving *s);
void mc_saving_free(mc_saving *s);

#endif
