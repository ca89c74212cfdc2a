/* Lists of paths, made of paths and patterns. */
#ifndef MC_BASE_PATHS_INTERNAL_H
#define MC_BASE_PATHS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include "core/base/error_internal.h"

/* Starts as { 0 }. */
typedef struct mc_paths {
    char **path; /* (count) */
    size_t count, capacity;
} mc_paths;

/* Adds a path, or all that a pattern with *, ? or [...] matches, in the order of their bytes. What
 * exists is never read as a pattern. Errors (false): nothing matches, a folder that cannot be read,
 * no memory. */
bool mc_paths_add(mc_error *err, mc_paths *paths, const char *pattern);
void mc_paths_release(mc_paths *paths);

#endif
