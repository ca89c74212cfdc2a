#include "core/base/arena_internal.h"

#include <stdalign.h>
#include <stdint.h>
#include <string.h>
#include "core/base/memory_internal.h"

/* Free memory is poisoned, so that AddressSanitizer reports reads of an ended tape's objects. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define poison(data, bytes) __asan_poison_memory_region(data, bytes)
#define unpoison(data, bytes) __asan_unpoison_memory_region(data, bytes)
#else
#define poison(data, bytes) ((void)(data), (void)(bytes))
#define unpoison(data, bytes) ((void)(data), (void)(bytes))
#endif

enum { CHUNK_BYTES = 64 * 1024, ALIGN = 16 };

struct mc_arena_chunk {
    mc_arena_chunk *next;
    size_t size;
    alignas(ALIGN) unsigned char bytes[];
};

/* Moves on to a chunk with room for `bytes`: the next kept chunk if it is large enough, else a new
 * one inserted before it. */
static mc_arena_chunk *next_chunk(mc_arena *arena, size_t bytes)
{
    mc_arena_chunk **link = arena->current ? &arena->current->next : &arena->first;
    if (!*link || (*link)->size < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        mc_arena_chunk *chunk = mc_malloc(sizeof *chunk + size);
        if (!chunk) return NULL;
        chunk->size = size;
        poison(chunk->bytes, size);
        chunk->next = *link;
        *link = chunk;
    }
    arena->current = *link;
    arena->used = 0;
    return arena->current;
}

void *mc_arena_alloc(mc_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    mc_arena_chunk *chunk = arena->current;
    if (!chunk || chunk->size - arena->used < bytes) chunk = next_chunk(arena, bytes);
    if (!chunk) return NULL;
    void *memory = chunk->bytes + arena->used;
    arena->used += bytes;
    unpoison(memory, bytes);
    return memset(memory, 0, bytes);
}

void mc_arena_reset(mc_arena *arena)
{
    for (mc_arena_chunk *chunk = arena->first; chunk; chunk = chunk->next)
        poison(chunk->bytes, chunk->size);
    arena->current = NULL;
    arena->used = 0;
}

void mc_arena_release(mc_arena *arena)
{
    while (arena->first) {
        mc_arena_chunk *chunk = arena->first;
        arena->first = chunk->next;
        unpoison(chunk->bytes, chunk->size);
        mc_free(chunk);
    }
    mc_arena_reset(arena);
}
