#include "tools/files/new_folders.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int new_folders_make(const char *path, size_t *made)
{
    char part[NEW_FOLDERS_PATH];
    struct stat info;
    size_t length = strlen(path);
    int failed = 0;
    *made = 0;
    if (!length) return ENOENT;
    if (length >= sizeof part) return ENAMETOOLONG;
    for (size_t i = 1; i <= length && !failed; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) == 0)
            *made = *made ? *made : i;
        else if (errno != EEXIST)
            failed = errno;
    }
    if (!failed && stat(path, &info) != 0)
        failed = errno;
    else if (!failed && !S_ISDIR(info.st_mode))
        failed = ENOTDIR;
    if (failed) new_folders_remove(path, *made);
    return failed;
}

void new_folders_remove(const char *path, size_t made)
{
    char part[NEW_FOLDERS_PATH];
    size_t length = strlen(path);
    if (!made || length >= sizeof part) return;
    memcpy(part, path, length + 1);
    for (size_t end = length; end >= made; end--) {
        if (part[end] && part[end] != '/') continue;
        part[end] = '\0';
        rmdir(part); /* fails if something is in it */
    }
}
