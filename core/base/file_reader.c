#include "core/base/file_reader_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"

bool mc_path_is_gzip(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

mc_status mc_file_reader_init(mc_error *err, mc_file_reader *reader, const char *path)
{
    struct stat info;
    *reader = (mc_file_reader){.err = err, .fd = -1};
    if (mc_path_is_folder(path))
        return mc_error_set(err, MC_ERR_IO, "%s: is a folder, expected a file", path);
    if (!(reader->path = mc_strdup(path)))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory to read it", path);
    reader->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (reader->fd < 0)
        return mc_error_set(err, errno == ENOENT ? MC_ERR_NOT_FOUND : MC_ERR_IO,
                            "%s: cannot open: %s", path, strerror(errno));
    if (fstat(reader->fd, &info) == 0 && S_ISREG(info.st_mode))
        reader->size = (uint64_t)info.st_size;
    if (mc_path_is_gzip(path) && !(reader->gzip = mc_gzip_new(err, path))) return err->status;
    return MC_OK;
}

/* At the end of the data: sets an error if the file was longer when it was opened. */
static void check_end(mc_file_reader *reader)
{
    char byte;
    off_t at = lseek(reader->fd, 0, SEEK_CUR);
    if (at >= 0 && (uint64_t)at < reader->size)
        mc_file_read_at(reader->err, reader->fd, reader->path, (uint64_t)at, &byte, 1);
}

size_t mc_file_read_plain(mc_file_reader *reader, void *buffer, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(reader->fd, (char *)buffer + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            mc_error_set(reader->err, MC_ERR_IO, "%s: cannot read: %s", reader->path,
                         strerror(errno));
        if (got == 0) check_end(reader);
        if (got <= 0) break;
        done += (size_t)got;
    }
    return mc_error_is_set(reader->err) ? 0 : done;
}

size_t mc_file_read_next(mc_file_reader *reader, void *buffer, size_t size)
{
    if (mc_error_is_set(reader->err)) return 0;
    return reader->gzip ? mc_gzip_read(reader, buffer, size)
                        : mc_file_read_plain(reader, buffer, size);
}

void mc_file_reader_release(mc_file_reader *reader)
{
    if (reader->fd >= 0) close(reader->fd);
    mc_gzip_free(reader->gzip);
    mc_free(reader->path);
    *reader = (mc_file_reader){.fd = -1};
}
