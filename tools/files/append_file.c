#include "tools/files/append_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tools/files/new_folders.h"

static mc_status fail(append_file *file, const char *path, const char *doing)
{
    snprintf(file->message, sizeof file->message, "%s: cannot %s: %s", path, doing,
             strerror(errno));
    return file->status = MC_ERR_IO;
}

/* Makes the folder a path lies in. */
static mc_status make_parent(append_file *file, char folder[APPEND_FILE_PATH], size_t *made)
{
    memcpy(folder, file->path, APPEND_FILE_PATH);
    char *slash = strrchr(folder, '/');
    *made = 0;
    if (!slash || slash == folder) return MC_OK;
    *slash = '\0';
    errno = new_folders_make(folder, made);
    if (!errno || errno == ENOTDIR) return MC_OK; /* opening the file reports ENOTDIR, too */
    return fail(file, folder, "make the folder");
}

mc_status append_file_init(append_file *file, const char *path, append_file_mode mode)
{
    *file = (append_file){.fd = -1};
    int length = snprintf(file->path, sizeof file->path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof file->path) {
        snprintf(file->message, sizeof file->message, "%.100s...: the path is too long", path);
        return file->status = MC_ERR_ARGUMENT;
    }
    char folder[APPEND_FILE_PATH];
    size_t made;
    if (make_parent(file, folder, &made)) return file->status;
    int flags = mode == APPEND_FILE_ANEW ? O_TRUNC : mode == APPEND_FILE_EXCLUSIVE ? O_EXCL : 0;
    file->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0666);
    if (file->fd < 0) {
        bool exists = mode == APPEND_FILE_EXCLUSIVE && errno == EEXIST;
        fail(file, path, exists ? "create" : "open for writing");
        new_folders_remove(folder, made);
        return exists ? file->status = MC_ERR_STATE : file->status;
    }
    file->open = true;
    off_t end = lseek(file->fd, 0, SEEK_END);
    file->size = end > 0 ? end : 0; /* a pipe or a device has no size, and needs none */
    return MC_OK;
}

mc_status append_file_cut(append_file *file, int64_t size)
{
    if (!file->open || file->status) return file->status;
    if (ftruncate(file->fd, size) != 0 || lseek(file->fd, size, SEEK_SET) < 0)
        return fail(file, file->path, "shorten");
    file->size = size;
    return MC_OK;
}

mc_status append_file_write(append_file *file, const void *record, size_t size)
{
    if (!file->open || file->status) return file->status;
    const char *data = record;
    for (size_t done = 0; done < size;) {
        ssize_t n = write(file->fd, data + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            fail(file, file->path, "write");
            /* best effort: a device or a pipe can't be cut, and has nothing to be read back */
            int cut = ftruncate(file->fd, file->size);
            (void)cut;
            return file->status;
        }
        done += (size_t)n;
    }
    file->size += (int64_t)size;
    return MC_OK;
}

mc_status append_file_release(append_file *file)
{
    if (file->open && close(file->fd) != 0 && !file->status) fail(file, file->path, "close");
    file->open = false;
    file->fd = -1;
    return file->status;
}
