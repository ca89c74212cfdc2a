/* The files that mc_weights_write writes, while it does: one, or shards with their index. */
#ifndef MC_CHECKPOINT_WEIGHT_FILES_INTERNAL_H
#define MC_CHECKPOINT_WEIGHT_FILES_INTERNAL_H

#include "core/formats/safetensors_internal.h"
#include "core/checkpoint/shards_internal.h"
#include "core/checkpoint/weight_map_internal.h"

struct mc_weight_files {
    mc_context *ctx;
    char *path;                      /* of the single file, after which shards are named */
    mc_safetensors_writer **writers; /* (most), `count` of which are begun */
    size_t count, most;
    cJSON *index;              /* NULL: one file */
    mc_file_writer index_file; /* rank 0's */
    int64_t parameters, bytes; /* of all tensors */
};

/* `count` files to come. NULL after an error. */
mc_weight_files *mc_weight_files_new(mc_context *ctx, const char *path, size_t count);
/* Begins the next file. NULL after an error. */
mc_safetensors_writer *mc_weight_files_add(mc_weight_files *files, const mc_safetensors_spec *specs,
                                           size_t count);
/* Notes for the index that the last file has a tensor. */
void mc_weight_files_note(mc_weight_files *files, const char *name, int64_t elements,
                          uint64_t bytes);
/* When all files are there: writes and syncs the index, if there is one. */
void mc_weight_files_write_index(mc_weight_files *files);

#endif
