#include "core/hub/folders_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "core/base/file_internal.h"

static mc_status make_folder(mc_error *err, const char *path)
{
    struct stat info;
    if (mkdir(path, 0777) == 0) return MC_OK;
    if (errno != EEXIST || lstat(path, &info) != 0)
        return mc_error_set(err, MC_ERR_IO, "%s: cannot make the folder: %s", path,
                            strerror(errno));
    if (S_ISDIR(info.st_mode)) return MC_OK;
    return mc_error_set(err, MC_ERR_IO, "%s: %s in the cache, expected a folder: remove it", path,
                        S_ISLNK(info.st_mode) ? "a symbolic link" : "a file");
}

mc_status mc_hub_make_folders(mc_error *err, const char *root, const char *path)
{
    char partial[MC_PATH_MAX];
    int written = snprintf(partial, sizeof partial, "%s/", path);
    if (written < 0 || written >= MC_PATH_MAX)
        return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", path);
    mc_status status = mc_make_folders(err, root);
    for (char *p = partial + strlen(root) + 1; !status && *p; p++) {
        if (*p != '/' || p[-1] == '/') continue;
        *p = '\0';
        status = make_folder(err, partial);
        *p = '/';
    }
    return status;
}

mc_status mc_hub_make_parent(mc_error *err, const char *root, const char *path)
{
    char folder[MC_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
    return mc_hub_make_folders(err, root, folder);
}
