#include "core/base/file_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/memory_internal.h"

enum { WRITE_BUFFER = 1 << 20 };

static mc_status io_error(mc_error *err, const char *path, const char *doing)
{
    mc_status status = errno == ENOENT ? MC_ERR_NOT_FOUND : MC_ERR_IO;
    return mc_error_set(err, status, "%s: cannot %s: %s", path, doing, strerror(errno));
}

mc_status mc_path_join(mc_error *err, char out[MC_PATH_MAX], const char *folder, const char *name)
{
    size_t length = strlen(folder);
    const char *slash = length && folder[length - 1] != '/' ? "/" : "";
    int written = snprintf(out, MC_PATH_MAX, "%s%s%s", folder, slash, name);
    if (written < 0 || written >= MC_PATH_MAX)
        return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", folder);
    return MC_OK;
}

bool mc_path_leaves(const char *name) { return *name == '/' || strstr(name, ".."); }

bool mc_path_cache(char out[MC_PATH_MAX])
{
    const char *own = getenv("MC_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int written = -1;
    if (own)
        written = snprintf(out, MC_PATH_MAX, "%s", own);
    else if (xdg && *xdg)
        written = snprintf(out, MC_PATH_MAX, "%s/modelcenter", xdg);
    else if (home && *home)
        written = snprintf(out, MC_PATH_MAX, "%s/.cache/modelcenter", home);
    return written > 0 && written < MC_PATH_MAX;
}

bool mc_path_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool mc_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

mc_status mc_make_folders(mc_error *err, const char *path)
{
    size_t made;
    return mc_make_new_folders(err, path, &made);
}

mc_status mc_make_new_folders(mc_error *err, const char *path, size_t *made)
{
    char partial[MC_PATH_MAX];
    *made = 0;
    if (!*path) return mc_error_set(err, MC_ERR_ARGUMENT, "no folder given");
    mc_status status = mc_path_join(err, partial, path, "");
    for (char *p = partial + 1; !status && *p; p++) {
        if (*p != '/') continue;
        *p = '\0';
        if (mkdir(partial, 0777) == 0)
            *made = *made ? *made : (size_t)(p - partial);
        else if (errno != EEXIST)
            status = io_error(err, partial, "make the folder");
        *p = '/';
    }
    if (!status && !mc_path_is_folder(path))
        status = mc_error_set(err, MC_ERR_IO, "%s: exists and is not a folder", path);
    if (status) mc_remove_new_folders(path, *made);
    return status;
}

void mc_remove_new_folders(const char *path, size_t made)
{
    char partial[MC_PATH_MAX];
    mc_error ignored = {0};
    if (made && mc_path_join(&ignored, partial, path, "") == MC_OK)
        for (size_t end = strlen(partial); end >= made; end--) {
            if (partial[end] && partial[end] != '/') continue;
            partial[end] = '\0';
            rmdir(partial); /* fails if something is in it */
        }
    mc_error_clear(&ignored);
}

mc_status mc_folder_each(mc_error *err, const char *folder,
                         mc_status (*fn)(void *user, const char *name), void *user)
{
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOENT) return MC_OK;
    if (!dir)
        return mc_error_set(err, MC_ERR_IO, "%s: cannot list it: %s", folder, strerror(errno));
    mc_status status = MC_OK;
    for (struct dirent *entry; !status && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = fn(user, entry->d_name);
    closedir(dir);
    return status;
}

/* Opens a regular file and returns its size; -1 with the error set otherwise. */
static int open_regular(mc_error *err, const char *path, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    struct stat info;
    if (fd < 0) {
        io_error(err, path, "open");
        return -1;
    }
    if (fstat(fd, &info) != 0) {
        io_error(err, path, "stat");
    } else if (!S_ISREG(info.st_mode)) {
        mc_error_set(err, MC_ERR_IO, "%s: not a regular file", path);
    } else {
        *size = (size_t)info.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

mc_status mc_file_map_init(mc_error *err, mc_file_map *map, const char *path)
{
    int fd = -1;
    mc_status status = mc_file_map_open(err, map, path, &fd);
    if (fd >= 0) close(fd);
    return status;
}

mc_status mc_file_map_open(mc_error *err, mc_file_map *map, const char *path, int *kept)
{
    *map = (mc_file_map){0};
    size_t size;
    int fd = open_regular(err, path, &size);
    if (fd < 0) return err->status;
    if (size) {
        const uint8_t *data = mc_file_map_add(fd, size, path);
        if (!data && errno == ENOMEM)
            mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for mapping its %zu bytes", path,
                         size);
        else if (!data)
            io_error(err, path, "map");
        else
            *map = (mc_file_map){.data = data, .size = size};
    }
    *kept = fd;
    return size && !map->data ? err->status : MC_OK;
}

mc_status mc_file_read_at(mc_error *err, int fd, const char *path, uint64_t offset, void *to,
                          size_t size)
{
    for (size_t have = 0; have < size;) {
        ssize_t got = pread(fd, (char *)to + have, size - have, (off_t)(offset + have));
        if (got < 0 && errno == EINTR) continue;
        if (got > 0) {
            have += (size_t)got;
            continue;
        }
        struct stat info;
        unsigned long long at = offset + have, end = offset + size;
        if (got < 0 || fstat(fd, &info) != 0)
            return mc_error_set(err, MC_ERR_IO, "%s: cannot read byte %llu: %s", path, at,
                                strerror(errno));
        return mc_error_set(err, MC_ERR_IO,
                            "%s: cannot read byte %llu: the file is %lld bytes, expected %llu or "
                            "more: it has become shorter while it was in use",
                            path, at, (long long)info.st_size, end);
    }
    return MC_OK;
}

char *mc_file_read(mc_error *err, const char *path, size_t limit, size_t *size)
{
    size_t total, got = 0;
    int fd = open_regular(err, path, &total);
    if (fd < 0) return NULL;
    char *text = NULL;
    if (total > limit) {
        mc_error_set(err, MC_ERR_FORMAT, "%s: %zu bytes, at most %zu expected", path, total, limit);
    } else if (!(text = mc_malloc(total + 1))) {
        mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for its %zu bytes", path, total);
    } else {
        while (got < total) {
            ssize_t n = read(fd, text + got, total - got);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            got += (size_t)n;
        }
        if (got < total) {
            mc_error_set(err, MC_ERR_IO,
                         "%s: cannot read byte %zu: the file is %zu bytes, expected %zu", path, got,
                         got, total);
            mc_free(text);
            text = NULL;
        } else {
            text[total] = '\0';
            if (size) *size = total;
        }
    }
    close(fd);
    return text;
}

/* Initializes a writer except for its open file. */
static mc_status init_writer(mc_error *err, mc_file_writer *writer, const char *path, size_t buffer)
{
    *writer =
        (mc_file_writer){.err = err, .aside = {.fd = -1}, .failed = true}; /* until it opens */
    writer->path = mc_strdup(path);
    writer->buffer = mc_malloc(buffer);
    if (!writer->path || !writer->buffer)
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for writing it", path);
    return MC_OK;
}

mc_status mc_file_writer_init(mc_error *err, mc_file_writer *writer, const char *path)
{
    mc_status status = init_writer(err, writer, path, WRITE_BUFFER);
    if (status) return status;
    if ((errno = mc_aside_open(&writer->aside, path))) return io_error(err, path, "create");
    writer->failed = false;
    return MC_OK;
}

mc_status mc_file_writer_join(mc_error *err, mc_file_writer *writer, const char *path, uint64_t tag)
{
    mc_status status = init_writer(err, writer, path, 0);
    if (status) return status;
    if ((errno = mc_aside_join(&writer->aside, path, tag)))
        return io_error(err, writer->path,
                        "open what another process has made (is the folder on "
                        "a file system that all ranks share?)");
    writer->failed = false;
    return MC_OK;
}

static mc_status write_all(mc_file_writer *writer, const uint8_t *data, size_t size)
{
    while (size) {
        ssize_t n = write(writer->aside.fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* nothing was written: do not retry for ever */
        if (n <= 0) return io_error(writer->err, writer->path, "write");
        data += n;
        size -= (size_t)n;
    }
    return MC_OK;
}

static mc_status flush_buffer(mc_file_writer *writer)
{
    mc_status status = write_all(writer, writer->buffer, writer->used);
    writer->used = 0;
    return status;
}

/* Fails if the file cannot be continued: after an error, or after a write that was skipped. */
static mc_status check_usable(mc_file_writer *writer)
{
    if (!mc_error_is_set(writer->err) && !writer->failed) return MC_OK;
    writer->failed = true;
    return mc_error_set(
        writer->err, mc_error_is_set(writer->err) ? writer->err->status : MC_ERR_STATE,
        "%s: an earlier write to it failed", writer->path ? writer->path : "the file");
}

mc_status mc_file_write(mc_file_writer *writer, const void *data, size_t size)
{
    mc_status status = check_usable(writer);
    if (status) return status;
    writer->written += size;
    if (size > WRITE_BUFFER - writer->used) status = flush_buffer(writer);
    if (status == MC_OK && size > WRITE_BUFFER) {
        status = write_all(writer, data, size);
    } else if (status == MC_OK && size) {
        memcpy(writer->buffer + writer->used, data, size);
        writer->used += size;
    }
    writer->failed = status != MC_OK;
    return status;
}

static mc_status write_at(mc_file_writer *writer, uint64_t offset, const uint8_t *data, size_t size)
{
    mc_status status = flush_buffer(writer);
    while (status == MC_OK && size) {
        ssize_t n = pwrite(writer->aside.fd, data, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;
        if (n <= 0) return io_error(writer->err, writer->path, "write");
        data += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return status;
}

mc_status mc_file_patch(mc_file_writer *writer, uint64_t offset, const void *data, size_t size)
{
    mc_status status = check_usable(writer);
    if (status) return status;
    if (offset > writer->written || size > writer->written - offset)
        status = mc_error_set(writer->err, MC_ERR_ARGUMENT, "%s: a patch of what was not written",
                              writer->path);
    else
        status = write_at(writer, offset, data, size);
    writer->failed = status != MC_OK;
    return status;
}

mc_status mc_file_write_at(mc_file_writer *writer, uint64_t offset, const void *data, size_t size)
{
    mc_status status = check_usable(writer);
    if (status) return status;
    status = write_at(writer, offset, data, size);
    writer->failed = status != MC_OK;
    return status;
}

static mc_status sync_all(mc_file_writer *writer)
{
    mc_status status = flush_buffer(writer);
    if (status) return status;
    errno = mc_aside_sync(&writer->aside);
    return errno ? io_error(writer->err, writer->path, "sync") : MC_OK;
}

mc_status mc_file_sync(mc_file_writer *writer)
{
    mc_status status = check_usable(writer);
    if (status) return status;
    status = sync_all(writer);
    writer->failed = status != MC_OK;
    return status;
}

mc_status mc_path_sync_folder(mc_error *err, const char *path)
{
    char folder[MC_PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof folder)
        return mc_error_set(err, MC_ERR_ARGUMENT, "%s: path too long", path);
    memcpy(folder, path, length);
    folder[length] = '\0';
    int fd = open(!slash ? "." : length ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error(err, path, "open the folder of");
    int synced = fsync(fd);
    int reason = errno;
    close(fd);
    errno = reason;
    /* some file systems cannot sync folders and return EINVAL, which is no failure */
    return synced == 0 || reason == EINVAL ? MC_OK : io_error(err, path, "sync the folder of");
}

mc_status mc_file_rename(mc_file_writer *writer)
{
    mc_status status = check_usable(writer);
    if (status) return status;
    if ((errno = mc_aside_rename(&writer->aside, true)))
        return io_error(writer->err, writer->path, "put the finished file in its place");
    return MC_OK;
}

mc_status mc_file_commit(mc_file_writer *writer)
{
    mc_status status = mc_file_sync(writer);
    return status ? status : mc_file_rename(writer);
}

void mc_file_writer_release(mc_file_writer *writer)
{
    mc_aside_close(&writer->aside);
    mc_free(writer->path);
    mc_free(writer->buffer);
    *writer = (mc_file_writer){.aside = {.fd = -1}};
}

mc_status mc_file_copy(mc_error *err, const char *from, const char *to)
{
    enum { PIECE = 1 << 20 };
    size_t size;
    int fd = open_regular(err, from, &size);
    if (fd < 0) return err->status;
    mc_file_writer writer;
    mc_status status = mc_file_writer_init(err, &writer, to);
    uint8_t *buffer = status ? NULL : mc_malloc(PIECE);
    if (!status && !buffer) status = mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", from);
    for (size_t at = 0, n; at < size && !status; at += n) {
        n = size - at < PIECE ? size - at : PIECE;
        status = mc_file_read_at(err, fd, from, at, buffer, n);
        if (!status) status = mc_file_write(&writer, buffer, n);
    }
    if (!status) status = mc_file_commit(&writer);
    mc_file_writer_release(&writer);
    mc_free(buffer);
    close(fd);
    return status;
}
