/* What saving and opening checkpoints of a run share: see training_state.h. */
#ifndef MC_CHECKPOINT_TRAINING_INTERNAL_H
#define MC_CHECKPOINT_TRAINING_INTERNAL_H

#include "core/base/error_internal.h"
#include "core/base/file_internal.h"

#define MC_TRAINING_JSON "training.json"
#define MC_TRAINING_OPTIMIZER "optimizer.safetensors"
#define MC_TRAINING_ASIDE ".tmp"

enum { MC_TRAINING_JSON_LIMIT = 1 << 20, MC_TRAINING_FORMAT = 1 };

/* Size and checksum of a file. */
typedef struct mc_file_print {
    uint64_t bytes, checksum;
} mc_file_print;
/* `tick` (may be NULL) is called now and then meanwhile, and its first status but MC_OK returned. */
typedef mc_status (*mc_tick_fn)(void *user);
mc_status mc_file_print_of(mc_error *err, const char *path, mc_tick_fn tick, void *user,
                           mc_file_print *print);

/* The steps of the checkpoints in a folder, falling; *steps is freed with mc_free. MC_ERR_NOMEM;
 * a folder that is not there has none. */
mc_status mc_checkpoint_steps(mc_error *err, const char *folder, int64_t **steps, size_t *count);
/* "<folder>/checkpoint-<step><suffix>" */
mc_status mc_checkpoint_path(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                             int64_t step, const char *suffix);
/* Calls fn with the names of the entries of a folder; stops at the first status but MC_OK. */
mc_status mc_folder_each(mc_error *err, const char *folder,
                         mc_status (*fn)(void *user, const char *name), void *user);
/* Makes the newest weights those of a checkpoint. */
mc_status mc_checkpoint_publish(mc_error *err, const char *folder, const char *checkpoint);

#endif
