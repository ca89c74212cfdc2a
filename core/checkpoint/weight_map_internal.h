/* Weight maps: tables from a model's parameter names to those of a file, and the one loader and
 * saver that serve all models. */
#ifndef MC_CHECKPOINT_WEIGHT_MAP_INTERNAL_H
#define MC_CHECKPOINT_WEIGHT_MAP_INTERNAL_H

#include "core/base/file_internal.h"
#include "core/formats/safetensors.h"
#include "core/formats/tensor_file.h"
#include "core/nn/module.h"

/* Parameters whose name begins with `ours` are called `theirs` + the rest of the name in files. In
 * both, {i} stands for a layer's number; in `theirs` also {i-1} for the one before and {last} for
 * the last layer's. The first rule that matches is used, so special cases come first. */
typedef struct mc_weight_rule {
    const char *ours, *theirs;
    bool head;       /* outside of the base model: never has its prefix */
    bool transpose;  /* their matrices (in, out) are our (out, in); vectors are not changed */
    int part, parts; /* ours is part number `part` of `parts` equal ones of theirs, side by side in
                        the dimension that is our first; parts 0: all of it. The parameters of one
                        tensor are declared in order, one right after the other */
    float factor;    /* theirs = factor * ours, in a model that stores scaled values; 0: 1 */
    /* A second name (without the base prefix) for the values in a file. If the file has it, it is
     * used. It is written too, unless `copied_with` names a parameter that the model doesn't have.
     * NULL: none */
    const char *copy, *copied_with;
    const char *own_copy; /* the same under our own names */
    /* More names of the same tensor, NULL-terminated. If a file lacks the first name, the first of
     * these that it has is read; two of them with different values are an error. */
    const char *const *also;
    const char *tied_to; /* and, in a `tied` map, the head's name, which is tried last */
} mc_weight_rule;

/* The place of a parameter in a tensor of a file: see mc_weight_rule. */
typedef struct mc_weight_place {
    bool transpose;
    int part, parts; /* parts >= 1 */
    float factor;    /* >= 1, see mc_weight_rule */
} mc_weight_place;

enum { MC_WEIGHTS_LEFT = 3 };

typedef struct mc_weight_map {
    const mc_weight_rule *rules; /* ends with ours == NULL */
    const char *base_prefix;     /* "bert.": prefix of base names in models with heads */
    /* fnmatch patterns of tensors in files that are not parameters (buffers, copies of tied
     * weights); NULL-terminated */
    const char *const *ignored;
    /* PyTorch's order of the words in tensor names, see mc_tensor_name_compare; tensors are written
     * in this order. NULL: in the order of declaration */
    const char *order;
    /* Not NULL: a map for adapter files. This prefix precedes all names (our own too, if no rule
     * matches), factors use their weights' rules for names only, and parameters outside of the
     * adapter are left out. In other maps factors are left out, unless `with_factors`. */
    const char *adapter_prefix;
    const char *adapter_bare; /* with it: our only name without the prefix; NULL: none */
    bool with_factors;
    /* Our names of weights that are not read, nor their modules' biases. NULL-terminated. */
    const char *left_new[MC_WEIGHTS_LEFT + 1];
    bool adapter_follows; /* an adapter's file is read next, and provides or reports its tensors */
    bool tied;            /* the head is the word embeddings: see tied_to */
    bool untied;          /* it no longer is: without a head in the file, it gets the embeddings */
    bool all_used;        /* a tensor without a parameter is an error */
} mc_weight_map;

enum { MC_NAME_MAX = 512 };

/* Whether files of this map contain the parameter. */
bool mc_weight_is_held(const mc_weight_map *map, const mc_parameter *p);
/* The second name of parameter `ours` in a file of this map; false: none. */
bool mc_weight_copy(const mc_weight_map *map, const char *ours, char out[MC_NAME_MAX]);
/* The name of a second copy to write for this model; false: none. */
bool mc_weight_written_copy(mc_module *model, const mc_weight_map *map, bool own_names,
                            const char *ours, char out[MC_NAME_MAX]);
/* The name of parameter `ours` in a file of this map, with the base prefix if `prefixed`. False if
 * no rule matches. */
bool mc_weight_name(const mc_weight_map *map, int layers, const char *ours, bool prefixed,
                    char out[MC_NAME_MAX]);
/* The entry of parameter `ours`: under the map's name with or without prefix, with LayerNorm's old
 * names gamma and beta, under our own name, or under another name of the same tensor. NULL if the
 * file has none of these. */
const mc_tensor_entry *mc_weight_find(const mc_weight_map *map, int layers,
                                      const mc_tensor_file *file, const char *ours);
/* Whether two tensors of a file have different values, compared as f32. False if one is missing
 * (NULL), and after an error, which goes to the context. */
bool mc_weights_differ(mc_tensor_file *file, const mc_tensor_entry *a, const mc_tensor_entry *b);

/* Removes prefixes of wrapping modules from the file's names (see mc_tensor_file_unwrap) until
 * parameter `ours` is found, which must not be in a numbered layer (NULL: does nothing). */
void mc_weights_unwrap(const mc_weight_map *map, const char *ours, mc_tensor_file *file,
                       const char *source);

/* The same, with the parameter's place in the entry. */
const mc_tensor_entry *mc_weight_locate(const mc_weight_map *map, int layers,
                                        const mc_tensor_file *file, const char *ours,
                                        mc_weight_place *place);
/* The parameter's place in a tensor under the map's name. */
mc_weight_place mc_weight_place_of(const mc_weight_map *map, const char *ours);
/* The shape of the tensor that holds a parameter of `shape`. */
mc_shape mc_weight_file_shape(mc_weight_place place, mc_shape shape);
/* Fills all parameters of a model from a file. Collective: each rank reads its own shard.
 * Parameters whose name matches one of the fnmatch patterns `may_be_new` (NULL-terminated, may be
 * NULL) keep their initial values if the file lacks them; this is logged. Errors: missing tensors
 * (all listed), wrong shapes, dtypes other than floats. Logged as warnings: unused tensors, NaN or
 * infinite values. */
mc_status mc_weights_load(mc_module *model, const mc_weight_map *map, int layers,
                          mc_tensor_file *file, const char *source, const char *const *may_be_new);

/* How a model's parameters are written. */
typedef struct mc_weight_form {
    const mc_weight_map *map;
    int layers;
    bool prefixed;          /* with the map's base prefix, see mc_weight_name */
    bool own_names;         /* our own names and layout; rules contribute only their factors */
    int scaling;            /* 1: values are multiplied by their rules' factors, -1: divided */
    int64_t max_shard_size; /* bytes of tensors in a file, see shards_internal.h; 0: one file */
} mc_weight_form;

/* Files written under temporary names, before the rename. */
typedef struct mc_weight_files mc_weight_files;

/* Writes and syncs safetensors files of the model's parameters under the map's names, in the
 * parameters' dtype: one file for `path`, or shards and an index named after it. Collective: each
 * rank writes its share. NULL after an error. */
mc_weight_files *mc_weights_write(mc_module *model, const mc_weight_form *form, const char *path);
/* Renames the files, so that a load finds either the older weights or the new ones, and removes
 * files of an older save. Collective. */
mc_status mc_weight_files_rename(mc_weight_files *files);
/* Removes files that were not renamed. NULL is allowed. */
void mc_weight_files_free(mc_weight_files *files);

/* ---- filling parameters (weights_fill.c) ----------------------------------------------------- */

/* The source of a parameter's values. */
typedef struct mc_weight_source {
    mc_parameter *to;
    const mc_tensor_entry *entry; /* a float tensor of the right shape; NULL: not in the file */
    mc_weight_place place;
} mc_weight_source;

/* Reads this rank's shards of parameters, whose buckets must be laid out, on as many threads as the
 * CPU's kernels have. Each thread converts pieces of about a MiB, either directly into the
 * parameter's host memory, or into two pinned buffers, which the copy engine empties in turn.
 * Returns when all values are in place. not_finite (count): set to 1 if a source has NaN or
 * infinite values. If the file has checksums, all of its tensors are checked, from the bytes read
 * here where possible. On failure sets the context's error. */
mc_status mc_weights_fill(mc_context *ctx, mc_tensor_file *file, const mc_weight_source *sources,
                          size_t count, uint8_t *not_finite);

#endif
