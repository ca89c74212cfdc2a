/* Weight maps: how a model's parameter names correspond to those of a file, declared as data, and
 * the one loader and saver that serve all models. */
#ifndef MC_CHECKPOINT_WEIGHT_MAP_INTERNAL_H
#define MC_CHECKPOINT_WEIGHT_MAP_INTERNAL_H

#include "core/base/file_internal.h"
#include "core/formats/safetensors.h"
#include "core/formats/tensor_file.h"
#include "core/nn/module.h"

/* Parameters whose name begins with `ours` are called `theirs` + the rest of the name in files. In
 * both, {i} stands for a layer's number; in `theirs` also {i-1} for the one before and {last} for
 * the last layer's. The first rule that fits is taken, so special cases come first. */
typedef struct mc_weight_rule {
    const char *ours, *theirs;
    bool head;       /* stands beside the base model: never after its prefix */
    bool transpose;  /* their matrices (in, out) are our (out, in); vectors are as they are */
    int part, parts; /* ours is part number `part` of `parts` equal ones of theirs, side by side in
                        the dimension that is our first; parts 0: all of it. The parameters of one
                        tensor are declared in order, one right after the other */
    float factor;    /* theirs are ours times this, in a model that holds scaled values; 0: 1 */
    /* A second name (without the base prefix) that a file may have the values under; where it has
     * it, it counts. It is written too, unless `copied_with` names a parameter that the model
     * doesn't have. NULL: none */
    const char *copy, *copied_with;
    const char *own_copy; /* written too, on that condition, under our own names */
    /* Further names of the same table, NULL at the end: of a file that lacks the first name, the
     * first of these that it has is read; two of them that differ are an error. */
    const char *const *also;
    const char *tied_to; /* and, in a map that is `tied`, the head's name, which comes last */
} mc_weight_rule;

/* Where a parameter lies in a tensor of a file: see mc_weight_rule. */
typedef struct mc_weight_place {
    bool transpose;
    int part, parts; /* parts >= 1 */
    float factor;    /* >= 1, see mc_weight_rule */
} mc_weight_place;

enum { MC_WEIGHTS_LEFT = 3 };

typedef struct mc_weight_map {
    const mc_weight_rule *rules; /* ends with ours == NULL */
    const char *base_prefix;     /* "bert.": before the base model's names where heads exist */
    /* fnmatch patterns of tensors in files that are no parameters (buffers, copies of tied
     * weights); NULL at the end */
    const char *const *ignored;
    /* Words of tensors' names in PyTorch's order, see mc_tensor_name_compare, in which tensors are
     * written; NULL: as the parameters were declared */
    const char *order;
    /* Not NULL: a map of the files of adapters. It stands before all names (our own too, where no
     * rule fits), factors have their names' rules but lie as they are, and what an adapter has no
     * part in is left out; else factors are, unless `with_factors`. */
    const char *adapter_prefix;
    const char *adapter_bare; /* with it: our one name that nothing stands before; NULL: none */
    bool with_factors;
    /* Our names of weights that are not read, nor the biases of their modules; NULL ends. */
    const char *left_new[MC_WEIGHTS_LEFT + 1];
    bool adapter_follows; /* an adapter's file is read next: it has, or reports, what is its */
    bool tied;            /* the head is the words' table: see tied_to */
    bool untied;          /* it no longer is: a file without a head has the words for it */
    bool all_used;        /* a tensor that no parameter takes is an error */
} mc_weight_map;

enum { MC_NAME_MAX = 512 };

/* Whether files of this map's form hold the parameter. */
bool mc_weight_is_held(const mc_weight_map *map, const mc_parameter *p);
/* The second name of parameter `ours` in a file of this map's form; false: it has none. */
bool mc_weight_copy(const mc_weight_map *map, const char *ours, char out[MC_NAME_MAX]);
/* The name of a copy that is to be written for this model; false: none. */
bool mc_weight_written_copy(mc_module *model, const mc_weight_map *map, bool own_names,
                            const char *ours, char out[MC_NAME_MAX]);
/* The name that parameter `ours` has in a file of this map's form, with the base prefix if
 * `prefixed`. False if no rule fits. */
bool mc_weight_name(const mc_weight_map *map, int layers, const char *ours, bool prefixed,
                    char out[MC_NAME_MAX]);
/* The entry of parameter `ours`: under the map's name with or without prefix, with LayerNorm's old
 * names gamma and beta, under our own name, or under another name of the same table. NULL if the
 * file has none of them. */
const mc_tensor_entry *mc_weight_find(const mc_weight_map *map, int layers,
                                      const mc_tensor_file *file, const char *ours);
/* Whether two tensors of a file hold other numbers, looked at as f32; false where one is missing
 * (NULL), and after an error, which is the context's. */
bool mc_weights_differ(mc_tensor_file *file, const mc_tensor_entry *a, const mc_tensor_entry *b);

/* Takes wrapping modules' prefixes off the file's names, see mc_tensor_file_unwrap, until it holds
 * parameter `ours` (not one of a numbered layer; NULL: nothing is done). */
void mc_weights_unwrap(const mc_weight_map *map, const char *ours, mc_tensor_file *file,
                       const char *source);

/* The same, with where the parameter lies in it. */
const mc_tensor_entry *mc_weight_locate(const mc_weight_map *map, int layers,
                                        const mc_tensor_file *file, const char *ours,
                                        mc_weight_place *place);
/* The place that the map says for files under its names. */
mc_weight_place mc_weight_place_of(const mc_weight_map *map, const char *ours);
/* The shape of the tensor that holds a parameter of `shape`. */
mc_shape mc_weight_file_shape(mc_weight_place place, mc_shape shape);
/* Fills all parameters of a model from a file; each rank reads what it holds, and they all do it
 * together. Parameters whose name matches one of the fnmatch
 * patterns `may_be_new` (NULL-terminated list, may be NULL) are initialised instead if the file
 * lacks them, and logged. Errors: missing tensors (all listed), wrong shapes, dtypes that are no
 * floats. Warnings through the log: spare tensors, tensors with NaN or infinite values. */
mc_status mc_weights_load(mc_module *model, const mc_weight_map *map, int layers,
                          mc_tensor_file *file, const char *source, const char *const *may_be_new);

/* How a model's parameters are written. */
typedef struct mc_weight_form {
    const mc_weight_map *map;
    int layers;
    bool prefixed;          /* with the map's base prefix, see mc_weight_name */
    bool own_names;         /* under our own names and as in memory; of rules only factors count */
    int scaling;            /* 1: values are multiplied by their rules' factors, -1: divided */
    int64_t max_shard_size; /* bytes of tensors in a file, see shards_internal.h; 0: one file */
} mc_weight_form;

/* Files that have been written aside, and have no names yet. */
typedef struct mc_weight_files mc_weight_files;

/* Writes and syncs safetensors files of the model's parameters under their names of the map, in
 * the parameters' dtype: one that will be `path`, or shards and an index named after it. All ranks
 * do it together, and each writes its share. NULL after an error. */
mc_weight_files *mc_weights_write(mc_module *model, const mc_weight_form *form, const char *path);
/* Gives the files their names, so that a load finds the older weights or the new ones,
 * and removes what an older save left. All ranks do it together. */
mc_status mc_weight_files_rename(mc_weight_files *files);
/* What has no name yet is removed. NULL is allowed. */
void mc_weight_files_free(mc_weight_files *files);

/* ---- filling parameters (weights_fill.c) ----------------------------------------------------- */

/* Where a parameter comes from. */
typedef struct mc_weight_source {
    mc_parameter *to;
    const mc_tensor_entry *entry; /* of the right shape and a float; NULL: it is not in the file */
    mc_weight_place place;
} mc_weight_source;

/* Reads what this rank holds of parameters, whose buckets are laid out, on as many threads as the
 * CPU's kernels have: each converts pieces of a MiB or so, straight into the parameter's memory
 * where that is the host's, else into two pinned buffers of its own, which the copy engine
 * empties in turn. Returns when all is there. not_finite (count): set to 1 where a source holds
 * NaN or infinite values. Where the file has checksums, all of its tensors' are checked, of what
 * is read on the way. On failure the context's error is set. */
mc_status mc_weights_fill(mc_context *ctx, mc_tensor_file *file, const mc_weight_source *sources,
                          size_t count, uint8_t *not_finite);

#endif
