/* The numbers of names: a hash table, for lists in which a name is looked up often. Its hash has a
 * random start, so that nobody can choose names that fall on one place. */
#ifndef MC_BASE_NAME_INDEX_INTERNAL_H
#define MC_BASE_NAME_INDEX_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mc_name_number {
    const char *name; /* NULL: the place is free */
    size_t number;
} mc_name_number;

/* Begins as zeros. */
typedef struct mc_name_index {
    mc_name_number *slot; /* (slots, a power of two): open addressing, at most half full */
    size_t slots, count;
    uint64_t start;
} mc_name_index;

/* Adds a name that is not there yet. The text is the caller's and has to stay as long as the index.
 * False when memory is out. */
bool mc_name_index_add(mc_name_index *index, const char *name, size_t number);
/* SIZE_MAX where the name is not there. */
size_t mc_name_index_find(const mc_name_index *index, const char *name);
void mc_name_index_clear(mc_name_index *index); /* forgets the names, keeps the memory */
void mc_name_index_release(mc_name_index *index);

#endif
