#include "core/base/name_index_internal.h"

#include <string.h>
#include <sys/random.h>
#include "core/base/hash_internal.h"
#include "core/base/memory_internal.h"

enum { FIRST_SLOTS = 64 };

/* The slot of a name, or the free slot for it. */
static mc_name_number *slot_of(const mc_name_index *x, const char *name)
{
    uint64_t hash = mc_hash_text(x->start, name);
    size_t mask = x->slots - 1, at = (size_t)(hash ^ hash >> 32) & mask;
    while (x->slot[at].name && strcmp(x->slot[at].name, name) != 0) at = (at + 1) & mask;
    return &x->slot[at];
}

static uint64_t random_start(void)
{
    uint64_t start;
    if (getrandom(&start, sizeof start, GRND_NONBLOCK) == (ssize_t)sizeof start) return start;
    return MC_HASH_START; /* early in a boot: no untrusted names arrive then */
}

static bool grow(mc_name_index *x)
{
    mc_name_index larger = {.slots = x->slots ? 2 * x->slots : FIRST_SLOTS, .count = x->count};
    larger.start = x->slots ? x->start : random_start();
    if (!(larger.slot = mc_calloc(larger.slots, sizeof *larger.slot))) return false;
    for (size_t i = 0; i < x->slots; i++)
        if (x->slot[i].name) *slot_of(&larger, x->slot[i].name) = x->slot[i];
    mc_free(x->slot);
    *x = larger;
    return true;
}

bool mc_name_index_add(mc_name_index *x, const char *name, size_t number)
{
    if (2 * (x->count + 1) > x->slots && !grow(x)) return false;
    *slot_of(x, name) = (mc_name_number){name, number};
    x->count++;
    return true;
}

size_t mc_name_index_find(const mc_name_index *x, const char *name)
{
    const mc_name_number *found = x->slots ? slot_of(x, name) : NULL;
    return found && found->name ? found->number : SIZE_MAX;
}

void mc_name_index_clear(mc_name_index *x)
{
    if (x->slots) memset(x->slot, 0, x->slots * sizeof *x->slot);
    x->count = 0;
}

void mc_name_index_release(mc_name_index *x)
{
    mc_free(x->slot);
    *x = (mc_name_index){0};
}
