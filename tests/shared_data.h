/* Where tests find the reference data that is not part of the project: $MC_SHARED, else "../shared"
 * beside the sources. Tests that need it skip loudly where it is missing. */
#ifndef MC_TESTS_SHARED_DATA_H
#define MC_TESTS_SHARED_DATA_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The path of a file or folder below the reference data in a static buffer (of four in turn), NULL
 * after a loud word if it is not there. */
static inline const char *shared_path(const char *name)
{
    static char paths[4][4096];
    static int next;
    char *path = paths[next++ % 4];
    const char *root = getenv("MC_SHARED");
    snprintf(path, sizeof paths[0], "%s/%s", root && *root ? root : MC_SOURCE_DIR "/../shared",
             name);
    if (access(path, R_OK) == 0) return path;
    fprintf(stderr, "SKIPPED: %s is not here (set MC_SHARED to the reference data)\n", path);
    return NULL;
}

#endif
