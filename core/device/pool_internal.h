/* A caching allocator: memory is taken from the system in large segments and cut into blocks.
 *
 * Two-level segregated fit (Masmano et al. 2004): free blocks hang in lists by size, eight lists to
 * a power of two, with bitmaps that find the smallest list that serves a request in a few steps.
 * Freed blocks are merged with free neighbours, so memory freed as many small tensors serves large
 * ones, and batches of ever new sizes do not grow the pool. Segments go back to the system only
 * when memory is out, or with the pool. What is known of a block lies on the host beside the
 * memory, which may be a GPU's. A pool belongs to one thread at a time. */
#ifndef MC_DEVICE_POOL_INTERNAL_H
#define MC_DEVICE_POOL_INTERNAL_H

#include "core/device/device_internal.h"

typedef struct mc_pool mc_pool;

enum { MC_POOL_ALIGN = 256 }; /* bytes: blocks are aligned to it, and multiples of it */

/* Where segments come from. */
typedef struct mc_pool_source {
    /* `bytes` bytes (a multiple of 2 MiB), aligned to MC_POOL_ALIGN; NULL when there are none. */
    void *(*take)(void *user, size_t bytes);
    void (*give_back)(void *user, void *data, size_t bytes);
    void *user;
    /* Each segment lies right after the one before: they become one, and only what is missing is
     * taken. Such memory is not given back before the pool ends. */
    bool contiguous;
    bool is_host; /* the program can touch the memory, and tools can watch it */
} mc_pool_source;

/* Host memory. */
extern const mc_pool_source mc_pool_host;

/* `memory` is kept up to date from now on: in_use and peak in bytes as asked for, reserved in bytes
 * of segments, touched those of them that were ever in use, system_calls the segments ever taken.
 * NULL when memory is out. */
mc_pool *mc_pool_new(mc_device_memory *memory, const mc_pool_source *source);
/* Gives all segments back, blocks still in use among them. NULL allowed. */
void mc_pool_free(mc_pool *pool);

/* At least `bytes` bytes, aligned to MC_POOL_ALIGN; 0 gives a unique pointer. When the system has
 * no more, whole free segments are given back and it is asked once more; NULL if that does not
 * help. */
void *mc_pool_alloc(mc_pool *pool, size_t bytes);
/* `bytes` as given to alloc; data NULL allowed. */
void mc_pool_release(mc_pool *pool, void *data, size_t bytes);

#endif
