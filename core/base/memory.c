#include "core/base/memory_internal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef MC_FAULT_INJECTION
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_long fault_count, fault_at, faults_injected;
static atomic_bool fault_all_after;
static bool (*_Atomic fault_takes)(void);

void mc_fault_fail_at(long nth, bool all_after)
{
    atomic_store(&fault_at, nth);
    atomic_store(&fault_all_after, all_after);
    atomic_store(&fault_count, 0);
}

void mc_fault_choose(bool (*takes)(void)) { atomic_store(&fault_takes, takes); }

long mc_fault_place(void) { return atomic_load(&fault_at); }

long mc_fault_count(void) { return atomic_load(&fault_count); }

static bool inject_failure(void)
{
    long n = atomic_fetch_add(&fault_count, 1) + 1, at = atomic_load(&fault_at);
    bool (*takes)(void) = atomic_load(&fault_takes);
    if (n == at && takes && !takes()) {
        atomic_store(&fault_at, n + 1);
        return false;
    }
    bool fail = at > 0 && (n == at || (n > at && atomic_load(&fault_all_after)));
    if (fail) errno = ENOMEM; /* as malloc does */
    if (n == at) atomic_fetch_add(&faults_injected, 1);
    return fail;
}

/* tests/count_faults.py adds up these lines. */
__attribute__((destructor)) static void report_faults(void)
{
    const char *path = getenv("MC_FAULT_REPORT");
    FILE *file = path && faults_injected ? fopen(path, "ae") : NULL;
    if (!file) return;
    fprintf(file, "%ld %s\n", atomic_load(&faults_injected), program_invocation_short_name);
    fclose(file);
}
#else
static bool inject_failure(void) { return false; }
#endif

void *mc_malloc(size_t size) { return inject_failure() ? NULL : malloc(size ? size : 1); }

void *mc_calloc(size_t count, size_t size)
{
    return inject_failure() ? NULL : calloc(count ? count : 1, size ? size : 1);
}

void *mc_realloc(void *pointer, size_t size)
{
    return inject_failure() ? NULL : realloc(pointer, size ? size : 1);
}

void *mc_aligned_alloc(size_t alignment, size_t size)
{
    if (inject_failure() || size > SIZE_MAX - alignment) return NULL;
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    return aligned_alloc(alignment, rounded ? rounded : alignment);
}

char *mc_strndup(const char *text, size_t length)
{
    char *copy = length < SIZE_MAX ? mc_malloc(length + 1) : NULL;
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

char *mc_strdup(const char *text) { return mc_strndup(text, strlen(text)); }

void mc_free(void *pointer) { free(pointer); }

bool mc_grow(void *array_pointer, size_t *capacity, size_t count, size_t element_size)
{
    if (count < *capacity) return true;
    size_t wanted = *capacity ? *capacity * 2 : 16;
    if (wanted < *capacity || wanted > SIZE_MAX / element_size) return false;
    void *array;
    memcpy(&array, array_pointer, sizeof array);
    void *grown = mc_realloc(array, wanted * element_size);
    if (!grown) return false;
    memcpy(array_pointer, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}
