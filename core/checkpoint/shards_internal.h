/* Weights in several files, "shards", and the index that names them, as Hugging Face's tools write
 * and read them:
 *
 *     model-00001-of-00003.safetensors ...     at most so many bytes of tensors each
 *     model.safetensors.index.json             which tensor is in which file
 *
 * Everything here is given the path that a single file would have, "folder/model.safetensors", and
 * is called by one rank alone. */
#ifndef MC_CHECKPOINT_SHARDS_INTERNAL_H
#define MC_CHECKPOINT_SHARDS_INTERNAL_H

#include "core/base/file_internal.h"
#include "core/base/json_internal.h"

enum { MC_SHARDS_MAX = 99999 }; /* that names have digits for */

/* Deals tensors of these sizes out as huggingface_hub does: in order, each to the current shard
 * unless that would exceed `most` bytes, then a new one is begun. A tensor that is larger alone is
 * a shard by itself. shard[i] becomes the number of tensor i's, from 0 on. Returns how many. */
size_t mc_shards_split(const uint64_t *bytes, size_t count, uint64_t most, size_t *shard);

/* Compares names of tensors by the order in which PyTorch lists the parameters of a model: `order`
 * has the names of modules and parameters, those of one parent in the order in which they were
 * declared, with spaces between. Numbers are in numeric order; what is not listed comes last. */
int mc_tensor_name_compare(const char *order, const char *a, const char *b);

/* The path of shard `number` (from 0 on) of `count`, and that of the index. MC_ERR_ARGUMENT for a
 * path that does not end in ".safetensors". */
mc_status mc_shard_path(mc_error *err, char out[MC_PATH_MAX], const char *path, size_t number,
                        size_t count);
mc_status mc_shard_index_path(mc_error *err, char out[MC_PATH_MAX], const char *path);

/* The number of shards that the name of a file ends with ("-of-00003.safetensors"), if it is one of
 * those that are named after `single` ("model.safetensors"); else 0. */
size_t mc_shard_count_of(const char *name, const char *single);

/* The text of an index (mc_free it), as Python's json writes it: {"metadata": {...}, "weight_map":
 * {name: file}}. Keys stay in the order that they have. NULL when memory is out. */
char *mc_shard_index_print(const cJSON *index);

/* A set of `count` shards that are about to take their names. */
typedef struct mc_shard_set {
    mc_error *err;
    const char *path;
    const cJSON *index;
    size_t count;
    /* Where the shard's finished file lies until then. */
    mc_status (*source)(void *user, size_t number, char out[MC_PATH_MAX]);
    void *user;
} mc_shard_set;

/* To be called before the shards take their names. If the index in the folder names files of these
 * names, the older ones, it would describe a mixture until all are replaced; so an index of links
 * to the new files ("model-00001-of-00003.new.safetensors") takes its place first. Where the file
 * system has no links, the old index is removed: a folder without weights is better than one of
 * mixed weights. */
mc_status mc_shards_bridge(const mc_shard_set *set);
/* To be called when the new files have their names: removes shards of older saves and, with `count`
 * shards (0: one file), the single file, else the index. Other files stay. */
mc_status mc_shards_clean(mc_error *err, const char *path, size_t count);

#endif
