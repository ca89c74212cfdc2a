#include "core/base/paths_internal.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"

static bool add(mc_error *err, mc_paths *paths, const char *path)
{
    if (mc_grow(&paths->path, &paths->capacity, paths->count, sizeof *paths->path) &&
        (paths->path[paths->count] = mc_strdup(path))) {
        paths->count++;
        return true;
    }
    mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its path", path);
    return false;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted by bytes, whatever the locale. */
static bool add_matches(mc_error *err, mc_paths *paths, const char *pattern)
{
    glob_t found = {0};
    int failure = glob(pattern, GLOB_NOSORT, NULL, &found);
    bool good = !failure;
    if (failure == GLOB_NOMATCH)
        mc_error_set(err, MC_ERR_NOT_FOUND, "%s: no file matches", pattern);
    else if (failure == GLOB_NOSPACE)
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for what it matches", pattern);
    else if (failure)
        mc_error_set(err, MC_ERR_IO, "%s: cannot read the folder: %s", pattern, strerror(errno));
    else
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_paths);
    for (size_t i = 0; good && i < found.gl_pathc; i++) good = add(err, paths, found.gl_pathv[i]);
    globfree(&found);
    return good;
}

bool mc_paths_add(mc_error *err, mc_paths *paths, const char *pattern)
{
    bool plain = !strpbrk(pattern, "*?[") || mc_path_is_file(pattern);
    return plain ? add(err, paths, pattern) : add_matches(err, paths, pattern);
}

void mc_paths_release(mc_paths *paths)
{
    for (size_t i = 0; i < paths->count; i++) mc_free(paths->path[i]);
    mc_free(paths->path);
    *paths = (mc_paths){0};
}
