/* A hash table from names to numbers, for long lists that are searched often. The hash has a random
 * start, so that nobody can choose names that collide. */
#ifndef MC_BASE_NAME_INDEX_INTERNAL_H
#define MC_BASE_NAME_INDEX_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mc_name_number {
    const char *name; /* NULL: the slot is free */
    size_t number;
} mc_name_number;

/* Zero-initialised is empty. */
typedef struct mc_name_index {
    mc_name_number *slot; /* (slots, a power of two): open addressing, at most half full */
    size_t slots, count;
    uint64_t start;
} mc_name_index;

/* Adds a name that is not in the index. The text stays the caller's and must live as long as the
 * index. False if memory is out. */
bool mc_name_index_add(mc_name_index *index, const char *name, size_t number);
/* The number of a name; SIZE_MAX if it is not in the index. */
size_t mc_name_index_find(const mc_name_index *index, const char *name);
void mc_name_index_clear(mc_name_index *index); /* forgets the names, keeps the memory */
void mc_name_index_release(mc_name_index *index);

#endif
