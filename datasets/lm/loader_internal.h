/* The inside of the loader of language modelling: the windows of a file, and their pieces. */
#ifndef MC_DATASETS_LM_LOADER_INTERNAL_H
#define MC_DATASETS_LM_LOADER_INTERNAL_H

#include "datasets/lm.h"
#include "datasets/lm/token_file_internal.h"

/* ---- windows.c ---- */

/* The windows of a file, one of the loader's sources. */
typedef struct mc_lm_windows {
    mc_token_file *file;
    int length;     /* tokens of a window */
    int64_t *first; /* (shards): windows of the shards before */
    int64_t count;
} mc_lm_windows;

/* Counts them; keeps the file. False, with an error, when memory is out. */
bool mc_lm_windows_init(mc_lm_windows *windows, mc_token_file *file, int length);
void mc_lm_windows_release(mc_lm_windows *windows);
/* The shard of a window, and the window's first token in it. */
const mc_token_shard *mc_lm_windows_find(const mc_lm_windows *windows, int64_t window,
                                         int64_t *first);

/* Where i goes in the permutation of 0 .. n - 1 (n > 0, 0 <= i < n) that belongs to `key`, in
 * constant time and memory: a Feistel network over the next power of four, walked until it comes
 * back below n. */
int64_t mc_lm_permute(uint64_t key, int64_t n, int64_t i);

/* A number for the data: of the sizes of its shards and of samples of their bytes, not of their
 * paths. A program's function that fails sets the context's error. */
uint64_t mc_token_file_fingerprint(const mc_token_file *file);

/* ---- loader.c ---- */

mc_context *mc_lm_loader_context(const mc_lm_loader *loader);
/* The sequences of a full batch on this rank. */
int mc_lm_loader_batch_size(const mc_lm_loader *loader);

/* ---- documents.c ---- */

/* How a file without an index says where documents begin. */
typedef struct mc_lm_border {
    int32_t token; /* -1: not at all */
    bool ends;     /* the token is the last one of a document, not the first */
} mc_lm_border;

/* Divides the window of `length` tokens from `first` on, whose ids and labels have been read, where
 * documents begin: adds the lengths of its pieces to `lengths`, from *count on (room for `length`),
 * and makes labels that lie across a border MC_LM_IGNORE. */
mc_status mc_lm_divide(mc_error *err, const mc_token_shard *shard, mc_lm_border border,
                       int64_t first, int length, const int32_t *ids, int32_t *labels,
                       int32_t *lengths, int *count);

#endif
