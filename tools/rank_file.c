#include "tools/rank_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static mc_status fail(rank_file *f, const char *what)
{
    return mc_set_error(f->ctx, MC_ERR_IO, "%s: cannot %s: %s", f->aside, what, strerror(errno));
}

mc_status rank_file_init(rank_file *f, mc_context *ctx, const char *path)
{
    static const char ending[] = ".partial";
    *f = (rank_file){.ctx = ctx, .path = path, .fd = -1};
    if (mc_failed(ctx)) return mc_error_status(ctx);
    size_t room = strlen(path) + sizeof ending;
    if (!(f->aside = malloc(room)))
        return mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a path");
    snprintf(f->aside, room, "%s%s", path, ending);
    bool first = mc_rank(ctx) == 0;
    if (first) f->fd = open(f->aside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (first && f->fd < 0) fail(f, "make it");
    if (mc_synchronize(ctx)) return mc_error_status(ctx);
    if (!first) f->fd = open(f->aside, O_RDWR | O_CLOEXEC);
    if (f->fd < 0) fail(f, "open what rank 0 has made");
    return mc_error_status(ctx);
}

mc_status rank_file_write_at(rank_file *f, int64_t offset, const void *data, size_t size)
{
    const char *at = data;
    while (size && !mc_failed(f->ctx)) {
        ssize_t written = pwrite(f->fd, at, size, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail(f, "write it");
        at += written;
        offset += written;
        size -= (size_t)written;
    }
    return mc_error_status(f->ctx);
}

mc_status rank_file_append(rank_file *f, const void *data, size_t size)
{
    int ranks = mc_world_size(f->ctx);
    double mine = (double)size, *all = calloc((size_t)ranks, sizeof *all);
    int64_t offset = f->size;
    if (!all) mc_set_error(f->ctx, MC_ERR_NOMEM, "out of memory for the sizes of all ranks");
    if (mc_gather_numbers(f->ctx, &mine, 1, all) == MC_OK)
        for (int r = 0; r < ranks; r++) {
            if (r < mc_rank(f->ctx)) offset += (int64_t)all[r];
            f->size += (int64_t)all[r];
        }
    free(all);
    return rank_file_write_at(f, offset, data, size);
}

mc_status rank_file_map(rank_file *f, int64_t offset, size_t size, rank_map *map)
{
    *map = (rank_map){.data = NULL};
    if (mc_failed(f->ctx) || !size) return mc_error_status(f->ctx);
    int64_t page = sysconf(_SC_PAGESIZE), start = offset / page * page;
    size_t length = size + (size_t)(offset - start);
    /* room first: a mapped page that the disk has no room for ends the process */
    if ((errno = posix_fallocate(f->fd, (off_t)offset, (off_t)size))) return fail(f, "make room");
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, (off_t)start);
    if (at == MAP_FAILED) return fail(f, "map it");
    *map = (rank_map){.data = (char *)at + (offset - start), .start = at, .length = length};
    return MC_OK;
}

void rank_file_unmap(rank_file *f, rank_map *map)
{
    if (!map->start) return;
    munmap(map->start, map->length);
    /* all that is dirty so far, so that the end has little left to wait for */
    sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    *map = (rank_map){.data = NULL};
}

/* Makes the rename durable. */
static void sync_folder(const rank_file *f)
{
    char *folder = strdup(f->path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) slash[slash == folder] = '\0';
    int fd = folder ? open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

mc_status rank_file_finish(rank_file *f)
{
    if (!mc_failed(f->ctx) && fsync(f->fd)) fail(f, "sync it");
    if (mc_synchronize(f->ctx)) return mc_error_status(f->ctx);
    if (mc_rank(f->ctx) == 0) {
        if (rename(f->aside, f->path)) return fail(f, "rename it");
        sync_folder(f);
    }
    close(f->fd);
    f->fd = -1;
    return mc_synchronize(f->ctx);
}

void rank_file_release(rank_file *f)
{
    if (f->fd >= 0) {
        close(f->fd);
        if (mc_rank(f->ctx) == 0) unlink(f->aside);
    }
    free(f->aside);
    *f = (rank_file){.fd = -1};
}
