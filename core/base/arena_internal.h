/* A bump allocator for objects that live as long as one tape. Reset keeps the chunks, so that a
 * training step in the steady state allocates nothing from the system. */
#ifndef MC_BASE_ARENA_INTERNAL_H
#define MC_BASE_ARENA_INTERNAL_H

#include <stddef.h>

typedef struct mc_arena_chunk mc_arena_chunk;

typedef struct mc_arena {
    mc_arena_chunk *first, *current; /* zero-initialised is an empty arena */
    size_t used;                     /* bytes of the current chunk */
} mc_arena;

/* Zeroed memory aligned to 16 bytes; NULL if memory is out. */
void *mc_arena_alloc(mc_arena *arena, size_t bytes);
void mc_arena_reset(mc_arena *arena);
void mc_arena_release(mc_arena *arena);

#endif
