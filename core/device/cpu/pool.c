#include "core/device/cpu/pool_internal.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "core/base/memory_internal.h"

/* A build with AddressSanitizer sees every access outside of a block in use. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MC_POOL_POISON
#endif
#endif
#if defined(MC_POOL_POISON) || defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define poison(data, bytes) __asan_poison_memory_region(data, bytes)
#define unpoison(data, bytes) __asan_unpoison_memory_region(data, bytes)
#else
#define poison(data, bytes) ((void)(data), (void)(bytes))
#define unpoison(data, bytes) ((void)(data), (void)(bytes))
#endif

enum {
    ALIGN = 64,
    STEPS_LOG2 = 3,
    STEPS = 1 << STEPS_LOG2, /* lists to a power of two */
    POWERS = 48,             /* powers of two of sizes, from ALIGN up */
};
static const size_t page = (size_t)2 << 20; /* a huge page: what segments are aligned to */

/* Before every block, ALIGN bytes. Blocks of a segment lie one behind the other; the last one is an
 * empty block in use, so that every block has a next one. */
typedef struct block {
    size_t size; /* of what follows the header, a multiple of ALIGN */
    bool is_free;
    struct block *before; /* the neighbour at lower addresses; NULL for a segment's first */
    struct block *previous_free, *next_free;
} block;

typedef struct segment {
    struct segment *next;
    size_t bytes;
} segment;

struct mc_pool {
    mc_device_memory *memory;
    segment *segments;
    uint64_t powers; /* bit p: some list of power p has blocks */
    uint8_t steps[POWERS];
    block *lists[POWERS][STEPS];
};

_Static_assert(sizeof(block) <= ALIGN && sizeof(segment) <= ALIGN, "headers fit a cache line");
_Static_assert(STEPS <= 8, "steps are bits of a byte");

static block *next_block(block *b) { return (block *)((char *)b + ALIGN + b->size); }

static void *data_of(block *b) { return (char *)b + ALIGN; }

typedef struct list_index {
    int power, step;
} list_index;

/* The list for blocks of `size`, a positive multiple of ALIGN: sizes in it are at least that of the
 * list and less than the next list's. */
static list_index list_of(size_t size)
{
    uint64_t units = size / ALIGN;
    int log2 = 63 - __builtin_clzll(units);
    int step = log2 >= STEPS_LOG2 ? (int)(units >> (log2 - STEPS_LOG2)) & (STEPS - 1)
                                  : (int)(units << (STEPS_LOG2 - log2)) & (STEPS - 1);
    return (list_index){log2, step};
}

static void list_add(mc_pool *pool, block *b)
{
    list_index at = list_of(b->size);
    block **head = &pool->lists[at.power][at.step];
    b->is_free = true;
    b->previous_free = NULL;
    b->next_free = *head;
    if (*head) (*head)->previous_free = b;
    *head = b;
    pool->steps[at.power] |= (uint8_t)(1 << at.step);
    pool->powers |= (uint64_t)1 << at.power;
}

static void list_remove(mc_pool *pool, block *b)
{
    list_index at = list_of(b->size);
    if (b->next_free) b->next_free->previous_free = b->previous_free;
    if (b->previous_free)
        b->previous_free->next_free = b->next_free;
    else
        pool->lists[at.power][at.step] = b->next_free;
    b->is_free = false;
    if (pool->lists[at.power][at.step]) return;
    pool->steps[at.power] &= (uint8_t) ~(1 << at.step);
    if (!pool->steps[at.power]) pool->powers &= ~((uint64_t)1 << at.power);
}

/* A free block of at least `size`: from the request's own list if its first block is large enough,
 * else from any later list. */
static block *find_free(const mc_pool *pool, size_t size)
{
    list_index at = list_of(size);
    block *own = pool->lists[at.power][at.step];
    if (own && own->size >= size) return own;
    unsigned steps = pool->steps[at.power] & ~((2u << at.step) - 1);
    if (!steps) {
        uint64_t powers = pool->powers & ~(((uint64_t)2 << at.power) - 1);
        if (!powers) return NULL;
        at.power = __builtin_ctzll(powers);
        steps = pool->steps[at.power];
    }
    return pool->lists[at.power][__builtin_ctz(steps)];
}

/* Cuts what a block has beyond `size` off as a free block. */
static void split(mc_pool *pool, block *b, size_t size)
{
    if (b->size < size + 2 * ALIGN) return;
    block *rest = (block *)((char *)b + ALIGN + size);
    unpoison(rest, ALIGN);
    rest->size = b->size - size - ALIGN;
    rest->before = b;
    b->size = size;
    next_block(rest)->before = rest;
    list_add(pool, rest);
}

static block *segment_first(segment *s) { return (block *)((char *)s + ALIGN); }

static bool segment_is_free(segment *s)
{
    block *first = segment_first(s);
    return first->is_free && next_block(first)->size == 0;
}

static void segment_free(mc_pool *pool, segment *s)
{
    pool->memory->reserved -= s->bytes;
    unpoison(s, s->bytes);
    mc_free(s);
}

/* Gives free segments back to the system; whether there were any. */
static bool trim(mc_pool *pool)
{
    bool any = false;
    for (segment **link = &pool->segments, *s; (s = *link);) {
        if (!segment_is_free(s)) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        list_remove(pool, segment_first(s));
        segment_free(pool, s);
        any = true;
    }
    return any;
}

/* A segment with one free block of at least `size`. Segments grow with the pool, so that there are
 * few of them, each far larger than what is lost at its end. */
static bool grow(mc_pool *pool, size_t size)
{
    const size_t headers = 3 * ALIGN; /* of the segment, its first block, and its last */
    if (size > SIZE_MAX - headers - page) return false;
    size_t least = (size + headers + page - 1) / page * page;
    size_t wanted = pool->memory->reserved / 4 / page * page;
    if (wanted < 2 * page) wanted = 2 * page;
    size_t bytes = wanted > least ? wanted : least;
    segment *s = mc_aligned_alloc(page, bytes);
    if (!s && (trim(pool) || bytes > least)) s = mc_aligned_alloc(page, bytes = least);
    if (!s) return false;
    /* Fewer page faults and misses of the address cache; no more than a hint. */
    (void)madvise(s, bytes, MADV_HUGEPAGE);
    *s = (segment){.next = pool->segments, .bytes = bytes};
    pool->segments = s;
    pool->memory->reserved += bytes;
    pool->memory->system_calls++;
    block *first = segment_first(s);
    *first = (block){.size = bytes - headers};
    *next_block(first) = (block){.before = first};
    poison(data_of(first), first->size);
    list_add(pool, first);
    return true;
}

mc_pool *mc_pool_new(mc_device_memory *memory)
{
    mc_pool *pool = mc_calloc(1, sizeof *pool);
    if (pool) pool->memory = memory;
    return pool;
}

void mc_pool_free(mc_pool *pool)
{
    if (!pool) return;
    for (segment *s = pool->segments, *next; s; s = next) {
        next = s->next;
        segment_free(pool, s);
    }
    mc_free(pool);
}

void *mc_pool_alloc(mc_pool *pool, size_t bytes)
{
    if (bytes > (size_t)1 << 46) return NULL; /* more than any address space; keeps sums safe */
    size_t size = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    block *b = find_free(pool, size);
    if (!b && grow(pool, size)) b = find_free(pool, size);
    if (!b) return NULL;
    list_remove(pool, b);
    split(pool, b, size);
    pool->memory->in_use += bytes;
    if (pool->memory->in_use > pool->memory->peak) pool->memory->peak = pool->memory->in_use;
    unpoison(data_of(b), bytes);
    return data_of(b);
}

void mc_pool_release(mc_pool *pool, void *data, size_t bytes)
{
    if (!data) return;
    block *b = (block *)((char *)data - ALIGN), *next = next_block(b);
    pool->memory->in_use -= bytes;
    if (next->is_free) {
        list_remove(pool, next);
        b->size += ALIGN + next->size;
    }
    if (b->before && b->before->is_free) {
        list_remove(pool, b->before);
        b->before->size += ALIGN + b->size;
        b = b->before;
    }
    next_block(b)->before = b;
    poison(data_of(b), b->size);
    list_add(pool, b);
}
