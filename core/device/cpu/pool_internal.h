/* A caching allocator: memory is taken from the system in large segments and cut into blocks.
 *
 * Two-level segregated fit (Masmano et al. 2004): free blocks hang in lists by size, eight lists to
 * a power of two, with bitmaps that find the smallest list that serves a request in a few steps.
 * Freed blocks are merged with free neighbours, so memory freed as many small tensors serves large
 * ones, and batches of ever new sizes do not grow the pool. Segments go back to the system only
 * when memory is out, or with the pool. A pool belongs to one thread at a time. */
#ifndef MC_DEVICE_CPU_POOL_INTERNAL_H
#define MC_DEVICE_CPU_POOL_INTERNAL_H

#include "core/device/device_internal.h"

typedef struct mc_pool mc_pool;

/* `memory` is kept up to date from now on: in_use and peak in bytes as asked for, reserved in bytes
 * of segments, system_calls the segments ever allocated. NULL when memory is out. */
mc_pool *mc_pool_new(mc_device_memory *memory);
/* Frees all segments, blocks still in use among them. NULL allowed. */
void mc_pool_free(mc_pool *pool);

/* At least `bytes` bytes, aligned to 64. When the system has no more, whole free segments are given
 * back and it is asked once more; NULL if that does not help. */
void *mc_pool_alloc(mc_pool *pool, size_t bytes);
/* `bytes` as given to alloc; data NULL allowed. */
void mc_pool_release(mc_pool *pool, void *data, size_t bytes);

#endif
