#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/memory_internal.h"
#include "core/hub/net/blob_internal.h"

enum { LEAST_PART = 4 << 20, MOST_PART = 32 << 20, PARTS_AIMED_AT = 16 };

/* After the bytes: this head and a u64 for each part. It stays on the machine that wrote it. */
typedef struct table_head {
    char magic[8];
    uint64_t size, part_size;
} table_head;

static const uint64_t MOST_BYTES = UINT64_C(1) << 44; /* a hub's sizes are not trusted */

static const char magic[8] = "mcparts1";

static mc_status failed(mc_error *err, const mc_hub_parts *p, const char *doing)
{
    bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    if (full)
        return mc_error_set(err, MC_ERR_IO,
                            "%s: no room for it on disk: %s; %" PRIu64 " bytes are needed", p->path,
                            strerror(errno), p->size);
    return mc_error_set(err, MC_ERR_IO, "%s: cannot %s: %s", p->path, doing, strerror(errno));
}

static bool write_all(int fd, const void *data, size_t size, uint64_t offset)
{
    for (const char *at = data; size;) {
        ssize_t n = pwrite(fd, at, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

static bool read_all(int fd, void *data, size_t size, uint64_t offset)
{
    for (char *at = data; size;) {
        ssize_t n = pread(fd, at, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO; /* the file has become shorter */
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

uint64_t mc_hub_parts_start(const mc_hub_parts *p, size_t part) { return part * p->part_size; }

uint64_t mc_hub_parts_length(const mc_hub_parts *p, size_t part)
{
    uint64_t left = p->size - mc_hub_parts_start(p, part);
    return left < p->part_size ? left : p->part_size;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void cut_parts(mc_hub_parts *p)
{
    uint64_t aim = p->size / PARTS_AIMED_AT;
    p->part_size = aim < LEAST_PART ? LEAST_PART : aim > MOST_PART ? MOST_PART : aim;
    p->count = (size_t)((p->size + p->part_size - 1) / p->part_size);
}

/* Reads the table of an earlier call. False: there is none, or its parts differ. */
static bool read_table(mc_hub_parts *p)
{
    table_head head;
    struct stat info;
    uint64_t bytes = sizeof head + p->count * sizeof *p->done;
    if (fstat(p->fd, &info) != 0 || (uint64_t)info.st_size != p->size + bytes) return false;
    if (!read_all(p->fd, &head, sizeof head, p->size) ||
        memcmp(head.magic, magic, sizeof magic) != 0 || head.size != p->size ||
        head.part_size != p->part_size ||
        !read_all(p->fd, p->done, p->count * sizeof *p->done, p->size + sizeof head))
        return false;
    for (size_t i = 0; i < p->count; i++)
        if (p->done[i] > mc_hub_parts_length(p, i)) return false;
    return true;
}

/* Empties the file and starts anew. Reserves the space if the file system can, so that a full disk
 * is reported now and not after hours. */
static mc_status make_anew(mc_error *err, mc_hub_parts *p)
{
    table_head head = {.size = p->size, .part_size = p->part_size};
    uint64_t bytes = p->size + sizeof head + p->count * sizeof *p->done;
    memcpy(head.magic, magic, sizeof magic);
    memset(p->done, 0, p->count * sizeof *p->done);
    p->resumed = false;
    if (ftruncate(p->fd, 0) != 0) return failed(err, p, "empty it");
    if (fallocate(p->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP) {
        mc_status status = failed(err, p, "reserve room");
        (void)!ftruncate(p->fd, 0);
        return status;
    }
    if (!write_all(p->fd, p->done, p->count * sizeof *p->done, p->size + sizeof head) ||
        !write_all(p->fd, &head, sizeof head, p->size))
        return failed(err, p, "write");
    return MC_OK;
}

/* Opens the file of an earlier call, or creates it. A symbolic link, or a file with several names,
 * is replaced, because writes must not go elsewhere. */
static int open_own(const char *path)
{
    struct stat info;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1) return fd;
    if (fd >= 0) close(fd);
    unlink(path);
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

mc_status mc_hub_parts_open(mc_error *err, mc_hub_parts *p, const char *path, uint64_t size)
{
    *p = (mc_hub_parts){.fd = -1, .size = size};
    snprintf(p->path, sizeof p->path, "%s", path);
    if (size > MOST_BYTES)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %" PRIu64 " bytes are too many", path, size);
    cut_parts(p);
    p->done = mc_calloc(p->count ? p->count : 1, sizeof *p->done);
    if (!p->done)
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for a list of %zu parts", path,
                            p->count);
    p->fd = open_own(path);
    if (p->fd < 0) return failed(err, p, "make it");
    if (!read_table(p)) return make_anew(err, p);
    p->resumed = mc_hub_parts_arrived(p) > 0;
    return MC_OK;
}

void mc_hub_parts_release(mc_hub_parts *p)
{
    if (p->done && p->fd >= 0) close(p->fd);
    mc_free(p->done);
    p->done = NULL;
}

/* ---- filling --------------------------------------------------------------------------------- */

mc_status mc_hub_parts_add(mc_error *err, mc_hub_parts *p, size_t part, const void *data,
                           size_t size)
{
    uint64_t done = p->done[part] + size;
    if (!write_all(p->fd, data, size, mc_hub_parts_start(p, part) + p->done[part]) ||
        !write_all(p->fd, &done, sizeof done, p->size + sizeof(table_head) + part * sizeof done))
        return failed(err, p, "write");
    p->done[part] = done;
    return MC_OK;
}

size_t mc_hub_parts_read(mc_error *err, const mc_hub_parts *p, uint64_t offset, void *data,
                         size_t size)
{
    if (read_all(p->fd, data, size, offset)) return size;
    failed(err, p, "read");
    return 0;
}

mc_status mc_hub_parts_restart(mc_error *err, mc_hub_parts *p) { return make_anew(err, p); }

uint64_t mc_hub_parts_prefix(const mc_hub_parts *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->done[i] < mc_hub_parts_length(p, i)) return mc_hub_parts_start(p, i) + p->done[i];
    return p->size;
}

uint64_t mc_hub_parts_arrived(const mc_hub_parts *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->count; i++) sum += p->done[i];
    return sum;
}

mc_status mc_hub_parts_finish(mc_error *err, mc_hub_parts *p, const char *path)
{
    if (ftruncate(p->fd, (off_t)p->size) != 0) return failed(err, p, "cut it");
    if (fsync(p->fd) != 0) return failed(err, p, "sync it");
    if (rename(p->path, path) != 0) return failed(err, p, "give it its name");
    return MC_OK;
}
