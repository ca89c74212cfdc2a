/* Host allocation for the library's own structures.
 *
 * All of the library's host memory comes through here, so that a build with MC_FAULT_INJECTION can
 * fail the Nth allocation and tests can show that each failure ends in a clean error. Nothing here
 * reports errors: a NULL is turned into one by the caller, which knows what it was doing. */
#ifndef MC_BASE_MEMORY_INTERNAL_H
#define MC_BASE_MEMORY_INTERNAL_H

#include <stddef.h>
#include <stdbool.h>

void *mc_malloc(size_t size);                          /* size 0 gives a unique pointer */
void *mc_calloc(size_t count, size_t size);            /* NULL when count * size overflows */
void *mc_realloc(void *pointer, size_t size);          /* the old block stays valid on NULL */
void *mc_aligned_alloc(size_t alignment, size_t size); /* freed with mc_free */
char *mc_strdup(const char *text);
char *mc_strndup(const char *text, size_t length); /* copies exactly `length` bytes, adds NUL */
void mc_free(void *pointer);

/* Makes room for one more element in a growing array: doubles *capacity when count == *capacity.
 * Returns false, with everything unchanged, when memory is out. */
bool mc_grow(void *array_pointer, size_t *capacity, size_t count, size_t element_size);

#ifdef MC_FAULT_INJECTION
/* Fails the nth allocation from now (1 = the next one) and, if `all_after`, every later one.
 * 0 switches injection off. Process-wide; for tests only. */
void mc_fault_fail_at(long nth, bool all_after);
/* Number of allocations since the last mc_fault_fail_at(). At exit a process appends the number of
 * injected failures to the file that MC_FAULT_REPORT names. */
long mc_fault_count(void);
/* Before an allocation is made to fail, calls `takes` on the allocating thread. If it returns
 * false, that allocation succeeds and the next one is due instead. NULL: no call. */
void mc_fault_choose(bool (*takes)(void));
/* The number of the allocation that is due to fail: the given one, or a later one. */
long mc_fault_place(void);
#endif

#endif
