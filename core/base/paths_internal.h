/* Lists of paths from paths and patterns. */
#ifndef MC_BASE_PATHS_INTERNAL_H
#define MC_BASE_PATHS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include "core/base/error_internal.h"

/* Zero-initialised is empty. */
typedef struct mc_paths {
    char **path; /* (count) */
    size_t count, capacity;
} mc_paths;

/* Adds a path, or all paths that a pattern with *, ? or [...] matches, sorted by bytes. A path that
 * exists is never read as a pattern. Errors (false): no match, an unreadable folder, no memory. */
bool mc_paths_add(mc_error *err, mc_paths *paths, const char *pattern);
void mc_paths_release(mc_paths *paths);

#endif
