/* The inside of the loader of language modelling, for its tests. */
#ifndef MC_DATASETS_LM_LOADER_INTERNAL_H
#define MC_DATASETS_LM_LOADER_INTERNAL_H

#include "datasets/lm.h"

/* Where i goes in the permutation of 0 .. n - 1 (n > 0, 0 <= i < n) that belongs to `key`, in
 * constant time and memory: a Feistel network over the next power of four, walked until it comes
 * back below n. */
int64_t mc_lm_permute(uint64_t key, int64_t n, int64_t i);

/* A number for the data: of the sizes of its shards and of samples of their bytes, not of their
 * paths. */
uint64_t mc_token_file_fingerprint(const mc_token_file *file);

mc_context *mc_lm_loader_context(const mc_lm_loader *loader);
/* The sequences of a full batch on this rank. */
int mc_lm_loader_batch_size(const mc_lm_loader *loader);

#endif
