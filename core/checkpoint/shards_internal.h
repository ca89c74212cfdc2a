/* Weights in several files, "shards", and the index that names them, as Hugging Face's tools write
 * and read them:
 *
 *     model-00001-of-00003.safetensors ...     tensors, up to a limit of bytes each
 *     model.safetensors.index.json             which tensor is in which file
 *
 * All functions take the path that a single file would have, "folder/model.safetensors". Only one
 * rank calls them. */
#ifndef MC_CHECKPOINT_SHARDS_INTERNAL_H
#define MC_CHECKPOINT_SHARDS_INTERNAL_H

#include "core/base/file_internal.h"
#include "core/base/json_internal.h"

enum { MC_SHARDS_MAX = 99999 }; /* the digits in the names allow no more */

/* Assigns tensors of these sizes to shards as huggingface_hub does: in order, each to the current
 * shard, unless this would exceed `most` bytes: then a new shard begins. A larger tensor is a shard
 * of its own. shard[i] becomes the number of tensor i's, from 0. Returns the number of shards. */
size_t mc_shards_split(const uint64_t *bytes, size_t count, uint64_t most, size_t *shard);

/* Compares tensor names by PyTorch's order of a model's parameters. `order` lists the names of
 * modules and parameters, separated by spaces; children of one parent are in the order of their
 * declaration. Numbers are in numeric order; names that are not listed come last. */
int mc_tensor_name_compare(const char *order, const char *a, const char *b);

/* The path of shard `number` (from 0) of `count`, and the path of the index. MC_ERR_ARGUMENT for a
 * path that does not end in ".safetensors". */
mc_status mc_shard_path(mc_error *err, char out[MC_PATH_MAX], const char *path, size_t number,
                        size_t count);
mc_status mc_shard_index_path(mc_error *err, char out[MC_PATH_MAX], const char *path);

/* The number of shards in a shard's file name ("-of-00003.safetensors") if the name is derived from
 * `single` ("model.safetensors"); else 0. */
size_t mc_shard_count_of(const char *name, const char *single);

/* The text of an index (mc_free it) as Python's json writes it: {"metadata": {...}, "weight_map":
 * {name: file}}. Keys keep their order. NULL if memory is out. */
char *mc_shard_index_print(const cJSON *index);

/* A set of `count` shards that are about to be renamed. */
typedef struct mc_shard_set {
    mc_error *err;
    const char *path;
    const cJSON *index;
    size_t count;
    /* The path of a shard's finished file before the rename. */
    mc_status (*source)(void *user, size_t number, char out[MC_PATH_MAX]);
    void *user;
} mc_shard_set;

/* Call this before the shards are renamed. If the folder's index names older files of the same
 * names, it would describe a mixture until all are replaced. So this first replaces it by an index
 * of links to the new files ("model-00001-of-00003.new.safetensors"). If the file system has no
 * links, it removes the old index: a folder without weights is better than one with mixed
 * weights. */
mc_status mc_shards_bridge(const mc_shard_set *set);
/* Call this after the rename. Removes shards of older saves, and either the single file (with
 * `count` shards) or the index (`count` 0: one file). Other files stay. */
mc_status mc_shards_clean(mc_error *err, const char *path, size_t count);

#endif
