/* A caching allocator: it takes memory from the system in large segments and divides them into
 * blocks.
 *
 * Two-level segregated fit (Masmano et al. 2004): free blocks are in lists by size, eight lists per
 * power of two, with bitmaps that find the smallest list that serves a request in a few steps.
 * Freed blocks are merged with free neighbours, so the memory of many small tensors can serve large
 * ones, and batches of ever new sizes do not grow the pool. Segments return to the system only when
 * memory is out, or with the pool. The data about blocks is in host memory, because the blocks may
 * be a GPU's. A pool belongs to one thread at a time. */
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
    /* Each segment starts at the end of the previous one and is merged with it, so only missing
     * bytes are taken. Such memory is not returned before the pool is freed. */
    bool contiguous;
    bool is_host; /* the program can touch the memory, and tools can watch it */
} mc_pool_source;

/* Host memory. */
extern const mc_pool_source mc_pool_host;

/* The pool keeps `memory` up to date: in_use and peak in requested bytes, reserved in bytes of
 * segments, touched the bytes of those ever in use, system_calls the number of segments ever taken.
 * NULL if memory is out. */
mc_pool *mc_pool_new(mc_device_memory *memory, const mc_pool_source *source);
/* Returns all segments, even those with blocks in use. NULL allowed. */
void mc_pool_free(mc_pool *pool);

/* At least `bytes` bytes, aligned to MC_POOL_ALIGN; 0 gives a unique pointer. If the system has no
 * more, returns free segments to it and tries once more; NULL if that fails. */
void *mc_pool_alloc(mc_pool *pool, size_t bytes);
/* `bytes` as passed to alloc; data NULL allowed. */
void mc_pool_release(mc_pool *pool, void *data, size_t bytes);

#endif
