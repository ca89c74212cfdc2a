#include "tools/files/rank_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mc_status fail(rank_file *f, const char *what)
{
    return mc_set_error(f->ctx, MC_ERR_IO, "%s: cannot %s: %s", f->path, what, strerror(errno));
}

/* 0, or an errno. "-" is stdout, also where no path leads to it. */
static int open_first(rank_file *f)
{
    if (strcmp(f->path, "-") != 0) return mc_aside_open(&f->aside, f->path);
    f->aside.direct = true;
    f->aside.fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    return f->aside.fd < 0 ? errno : 0;
}

mc_status rank_file_init(rank_file *f, mc_context *ctx, const char *path, bool replace)
{
    *f = (rank_file){.ctx = ctx, .path = path, .replace = replace, .aside = {.fd = -1}};
    if (mc_failed(ctx)) return mc_error_status(ctx);
    bool first = mc_rank(ctx) == 0, several = mc_world_size(ctx) > 1;
    if (first && (errno = open_first(f))) fail(f, "write it");
    if (first && several && f->aside.direct)
        mc_set_error(ctx, MC_ERR_UNSUPPORTED,
                     "%s: several ranks write a file together, and this is stdout, a pipe or a "
                     "device: expected a file's name",
                     path);
    if (mc_synchronize(ctx)) return mc_error_status(ctx);
    uint64_t tag = f->aside.tag; /* of rank 0's temporary file */
    mc_share_bytes(ctx, &tag, sizeof tag);
    if (!first && !mc_failed(ctx) && (errno = mc_aside_join(&f->aside, path, tag)))
        fail(f, "open what rank 0 has made");
    return mc_error_status(ctx);
}

/* At an offset, or where that is negative in order. */
static mc_status write_all(rank_file *f, int64_t offset, const void *data, size_t size)
{
    const char *at = data;
    while (size && !mc_failed(f->ctx)) {
        ssize_t written = offset < 0 ? write(f->aside.fd, at, size)
                                     : pwrite(f->aside.fd, at, size, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail(f, "write it");
        at += written;
        if (offset >= 0) offset += written;
        size -= (size_t)written;
    }
    return mc_error_status(f->ctx);
}

static mc_status refuse_direct(rank_file *f)
{
    return mc_set_error(f->ctx, MC_ERR_UNSUPPORTED,
                        "%s: this form is not written in order, as stdout, a pipe or a device "
                        "needs it",
                        f->path);
}

mc_status rank_file_write_at(rank_file *f, int64_t offset, const void *data, size_t size)
{
    if (mc_failed(f->ctx)) return mc_error_status(f->ctx);
    if (f->aside.direct) return refuse_direct(f);
    mc_status status = write_all(f, offset, data, size);
    /* on its way to the disk, so that the end has little left to wait for */
    if (!status) sync_file_range(f->aside.fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
    return status;
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
    return write_all(f, f->aside.direct ? -1 : offset, data, size);
}

/* A file that came to the name meanwhile stays, and so does ours, by its own. */
static mc_status take_name(rank_file *f)
{
    errno = mc_aside_rename(&f->aside, f->replace);
    if (!errno) return MC_OK;
    if (errno != EEXIST) return fail(f, "give the finished file its name");
    f->aside.pending = false;
    return mc_set_error(f->ctx, MC_ERR_STATE,
                        "%s: another process has written it meanwhile; what was written here is "
                        "in %s",
                        f->path, f->aside.path);
}

mc_status rank_file_finish(rank_file *f)
{
    if (!mc_failed(f->ctx) && (errno = mc_aside_sync(&f->aside))) fail(f, "sync it");
    if (mc_synchronize(f->ctx)) return mc_error_status(f->ctx);
    if (mc_rank(f->ctx) == 0) take_name(f);
    mc_aside_close(&f->aside);
    return mc_synchronize(f->ctx);
}

void rank_file_release(rank_file *f)
{
    mc_aside_close(&f->aside);
    *f = (rank_file){.aside = {.fd = -1}};
}
