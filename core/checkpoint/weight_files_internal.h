/* The files of one mc_weights_write: one file, or shards with their index. */
#ifndef MC_CHECKPOINT_WEIGHT_FILES_INTERNAL_H
#define MC_CHECKPOINT_WEIGHT_FILES_INTERNAL_H

#include "core/formats/safetensors_internal.h"
#include "core/checkpoint/shards_internal.h"
#include "core/checkpoint/weight_map_internal.h"

struct mc_weight_files {
    mc_context *ctx;
    char *path;                      /* of the single file; shards are named after it */
    mc_safetensors_writer **writers; /* (most), `count` begun so far */
    size_t count, most;
    cJSON *index;              /* NULL: one file */
    mc_file_writer index_file; /* rank 0's */
    int64_t parameters, bytes; /* of all tensors */
};

/* Prepares `count` files. NULL after an error. */
mc_weight_files *mc_weight_files_new(mc_context *ctx, const char *path, size_t count);
/* Begins the next file. NULL after an error. */
mc_safetensors_writer *mc_weight_files_add(mc_weight_files *files, const mc_safetensors_spec *specs,
                                           size_t count);
/* Adds a tensor of the last file to the index. */
void mc_weight_files_note(mc_weight_files *files, const char *name, int64_t elements,
                          uint64_t bytes);
/* After all files: writes and syncs the index, if there is one. */
void mc_weight_files_write_index(mc_weight_files *files);

#endif
