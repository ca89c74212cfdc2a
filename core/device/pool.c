#include "core/device/pool_internal.h"

#include <stdint.h>
#include <sys/mman.h>
#include "core/base/memory_internal.h"

/* With AddressSanitizer, every access outside of a block in use is reported. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MC_POOL_POISON
#endif
#endif
#if defined(MC_POOL_POISON) || defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define poison_host(data, bytes) __asan_poison_memory_region(data, bytes)
#define unpoison_host(data, bytes) __asan_unpoison_memory_region(data, bytes)
#else
#define poison_host(data, bytes) ((void)(data), (void)(bytes))
#define unpoison_host(data, bytes) ((void)(data), (void)(bytes))
#endif

enum {
    ALIGN = MC_POOL_ALIGN,
    STEPS_LOG2 = 3,
    STEPS = 1 << STEPS_LOG2, /* lists per power of two */
    POWERS = 48,             /* powers of two of block sizes, from ALIGN up */
    SLAB = 256,              /* block structs allocated at a time */
};
static const size_t page = (size_t)2 << 20; /* a huge page; segments are multiples */

/* Blocks of a segment cover it without gaps. */
typedef struct block {
    char *data;
    size_t size; /* a multiple of ALIGN */
    struct segment *segment;
    bool is_free;
    struct block *before, *after; /* neighbours in the segment; NULL at its ends */
    struct block *previous_free, *next_free;
} block;

typedef struct segment {
    struct segment *next;
    char *data;
    size_t bytes;
    size_t touched; /* to the end of the last block ever in use, in whole huge pages */
    block *first;
} segment;

typedef struct slab {
    struct slab *next;
    block blocks[SLAB];
} slab;

struct mc_pool {
    mc_device_memory *memory;
    mc_pool_source source;
    segment *segments;
    slab *slabs;
    block *spare; /* unused block structs, through next_free */
    size_t spares;
    /* blocks in use by address: open addressing, at most half full */
    block **table;
    size_t table_size, table_used;
    uint64_t powers; /* bit p: some list of power p has blocks */
    uint8_t steps[POWERS];
    block *lists[POWERS][STEPS];
};

_Static_assert(STEPS <= 8, "steps are bits of a byte");

static void poison(const mc_pool *pool, void *data, size_t bytes)
{
    if (pool->source.is_host) poison_host(data, bytes);
}

static void unpoison(const mc_pool *pool, void *data, size_t bytes)
{
    if (pool->source.is_host) unpoison_host(data, bytes);
}

/* ---- what is known of blocks ----------------------------------------------------------------- */

static size_t slot_of(const mc_pool *pool, const char *data)
{
    uint64_t hash = ((uint64_t)(uintptr_t)data / ALIGN) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 20) & (pool->table_size - 1);
}

static void table_add(mc_pool *pool, block *b)
{
    size_t at = slot_of(pool, b->data);
    while (pool->table[at]) at = (at + 1) & (pool->table_size - 1);
    pool->table[at] = b;
    pool->table_used++;
}

/* Removes the block at `data` from the table, and moves displaced entries back. */
static block *table_take(mc_pool *pool, const char *data)
{
    size_t mask = pool->table_size - 1, at = slot_of(pool, data);
    while (pool->table[at] && pool->table[at]->data != data) at = (at + 1) & mask;
    block *found = pool->table[at];
    if (!found) return NULL;
    pool->table_used--;
    for (size_t hole = at, i = (at + 1) & mask;; i = (i + 1) & mask) {
        block *b = pool->table[i];
        if (!b) {
            pool->table[hole] = NULL;
            return found;
        }
        size_t home = slot_of(pool, b->data);
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        pool->table[hole] = b;
        hole = i;
    }
}

static bool table_reserve(mc_pool *pool)
{
    if (2 * (pool->table_used + 1) <= pool->table_size) return true;
    size_t old_size = pool->table_size, size = old_size ? 2 * old_size : 2 * SLAB;
    block **old = pool->table, **table = mc_calloc(size, sizeof *table);
    if (!table) return false;
    pool->table = table;
    pool->table_size = size;
    pool->table_used = 0;
    for (size_t i = 0; i < old_size; i++)
        if (old[i]) table_add(pool, old[i]);
    mc_free(old);
    return true;
}

/* Reserves what one allocation may need: two block structs and a place in the table. */
static bool reserve_records(mc_pool *pool)
{
    if (!table_reserve(pool)) return false;
    if (pool->spares >= 4) return true;
    slab *s = mc_malloc(sizeof *s);
    if (!s) return false;
    s->next = pool->slabs;
    pool->slabs = s;
    for (int i = 0; i < SLAB; i++) {
        s->blocks[i].next_free = pool->spare;
        pool->spare = &s->blocks[i];
    }
    pool->spares += SLAB;
    return true;
}

static block *record_new(mc_pool *pool, segment *s, char *data, size_t size)
{
    block *b = pool->spare;
    pool->spare = b->next_free;
    pool->spares--;
    *b = (block){.data = data, .size = size, .segment = s};
    return b;
}

static void record_free(mc_pool *pool, block *b)
{
    b->next_free = pool->spare;
    pool->spare = b;
    pool->spares++;
}

/* ---- lists of free blocks -------------------------------------------------------------------- */

typedef struct list_index {
    int power, step;
} list_index;

/* The list for blocks of `size`, a positive multiple of ALIGN. A list holds sizes from its own up
 * to the next list's. */
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

/* Splits the part beyond `size` off a block, as a free block. */
static void split(mc_pool *pool, block *b, size_t size)
{
    if (b->size == size) return;
    block *rest = record_new(pool, b->segment, b->data + size, b->size - size);
    b->size = size;
    rest->before = b;
    rest->after = b->after;
    if (rest->after) rest->after->before = rest;
    b->after = rest;
    list_add(pool, rest);
}

/* Merges b with the block after it, which must be in no list. */
static void merge_after(mc_pool *pool, block *b)
{
    block *gone = b->after;
    b->size += gone->size;
    b->after = gone->after;
    if (b->after) b->after->before = b;
    record_free(pool, gone);
}

/* Makes a block that is in no list free, and merges it with free neighbours. */
static void make_free(mc_pool *pool, block *b)
{
    if (b->after && b->after->is_free) {
        list_remove(pool, b->after);
        merge_after(pool, b);
    }
    if (b->before && b->before->is_free) {
        b = b->before;
        list_remove(pool, b);
        merge_after(pool, b);
    }
    list_add(pool, b);
}

/* ---- segments -------------------------------------------------------------------------------- */

static void segment_free(mc_pool *pool, segment *s)
{
    pool->memory->reserved -= s->bytes;
    pool->memory->touched -= s->touched;
    unpoison(pool, s->data, s->bytes);
    pool->source.give_back(pool->source.user, s->data, s->bytes);
    mc_free(s);
}

/* Returns free segments to the system; returns whether there were any. */
static bool trim(mc_pool *pool)
{
    bool any = false;
    if (pool->source.contiguous) return false;
    for (segment **link = &pool->segments, *s; (s = *link);) {
        block *first = s->first;
        if (!first->is_free || first->after) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        list_remove(pool, first);
        record_free(pool, first);
        segment_free(pool, s);
        any = true;
    }
    return any;
}

/* The last block of contiguous memory, if it is free. */
static size_t free_at_end(const mc_pool *pool)
{
    if (!pool->source.contiguous || !pool->segments) return 0;
    const block *last = pool->segments->first;
    while (last->after) last = last->after;
    return last->is_free ? last->size : 0;
}

static void segment_extend(mc_pool *pool, segment *s, char *data, size_t bytes)
{
    block *last = s->first, *more = record_new(pool, s, data, bytes);
    while (last->after) last = last->after;
    more->before = last;
    last->after = more;
    s->bytes += bytes;
    make_free(pool, more);
}

static bool segment_new(mc_pool *pool, char *data, size_t bytes)
{
    segment *s = mc_malloc(sizeof *s);
    if (!s) {
        pool->source.give_back(pool->source.user, data, bytes);
        return false;
    }
    *s = (segment){.next = pool->segments, .data = data, .bytes = bytes};
    s->first = record_new(pool, s, data, bytes);
    pool->segments = s;
    list_add(pool, s->first);
    return true;
}

/* Takes memory from the system for a free block of at least `size`. Segments grow with the pool, so
 * that there are few; contiguous memory grows by what is missing. */
static bool grow(mc_pool *pool, size_t size)
{
    size_t missing = size - free_at_end(pool);
    size_t least = (missing + page - 1) / page * page;
    size_t wanted = pool->source.contiguous ? 16 * page : pool->memory->reserved / 4 / page * page;
    if (wanted < 2 * page) wanted = 2 * page;
    size_t bytes = wanted > least ? wanted : least;
    void *user = pool->source.user;
    char *data = pool->source.take(user, bytes);
    if (!data && (trim(pool) || bytes > least)) data = pool->source.take(user, bytes = least);
    if (!data) return false;
    if (pool->source.contiguous && pool->segments)
        segment_extend(pool, pool->segments, data, bytes);
    else if (!segment_new(pool, data, bytes))
        return false;
    poison(pool, data, bytes);
    pool->memory->reserved += bytes;
    pool->memory->system_calls++;
    return true;
}

static void *host_take(void *user, size_t bytes)
{
    (void)user;
    void *data = mc_aligned_alloc(page, bytes);
    /* Only a hint, for fewer page faults and TLB misses. */
    if (data) (void)madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

static void host_give_back(void *user, void *data, size_t bytes)
{
    (void)user, (void)bytes;
    mc_free(data);
}

const mc_pool_source mc_pool_host = {
    .take = host_take, .give_back = host_give_back, .is_host = true};

/* ---- the pool -------------------------------------------------------------------------------- */

mc_pool *mc_pool_new(mc_device_memory *memory, const mc_pool_source *source)
{
    mc_pool *pool = mc_calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->memory = memory;
    pool->source = *source;
    if (reserve_records(pool)) return pool;
    mc_pool_free(pool);
    return NULL;
}

void mc_pool_free(mc_pool *pool)
{
    if (!pool) return;
    for (segment *s = pool->segments, *next; s; s = next) {
        next = s->next;
        segment_free(pool, s);
    }
    for (slab *s = pool->slabs, *next; s; s = next) {
        next = s->next;
        mc_free(s);
    }
    mc_free(pool->table);
    mc_free(pool);
}

/* The system provides pages when they are first touched, huge ones if it can. */
static void note_touched(mc_pool *pool, const block *b)
{
    segment *s = b->segment;
    size_t end = (size_t)(b->data - s->data) + b->size;
    if (end <= s->touched) return;
    size_t touched = (end + page - 1) / page * page;
    pool->memory->touched += touched - s->touched;
    s->touched = touched;
}

void *mc_pool_alloc(mc_pool *pool, size_t bytes)
{
    if (bytes > (size_t)1 << 46) return NULL; /* more than any address space; keeps sums safe */
    size_t size = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    if (!reserve_records(pool)) return NULL;
    block *b = find_free(pool, size);
    if (!b && grow(pool, size)) b = find_free(pool, size);
    if (!b) return NULL;
    list_remove(pool, b);
    split(pool, b, size);
    table_add(pool, b);
    note_touched(pool, b);
    pool->memory->in_use += bytes;
    if (pool->memory->in_use > pool->memory->peak) pool->memory->peak = pool->memory->in_use;
    unpoison(pool, b->data, bytes);
    return b->data;
}

void mc_pool_release(mc_pool *pool, void *data, size_t bytes)
{
    if (!data) return;
    block *b = table_take(pool, data);
    if (!b) return; /* not a block of this pool: ignored */
    pool->memory->in_use -= bytes;
    poison(pool, b->data, b->size);
    make_free(pool, b);
}
