#include "tools/files/rank_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
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

/* At an offset, or where that is negative in order; 0 or an errno. */
static int write_bytes(int fd, int64_t offset, const void *data, size_t size)
{
    const char *at = data;
    while (size) {
        ssize_t written = offset < 0 ? write(fd, at, size) : pwrite(fd, at, size, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written ? errno : EIO;
        at += written;
        if (offset >= 0) offset += written;
        size -= (size_t)written;
    }
    return 0;
}

/* They are on their way to the disk then, so that the end has little left to wait for. */
static int write_at(int fd, int64_t offset, const void *data, size_t size)
{
    int failure = write_bytes(fd, offset, data, size);
    if (!failure) sync_file_range(fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
    return failure;
}

static void *write_late(void *argument)
{
    late_write *w = argument;
    w->failure = write_at(w->fd, w->offset, w->data, w->size);
    return NULL;
}

mc_status rank_file_wait(rank_file *f)
{
    if (f->late.running) pthread_join(f->late.thread, NULL);
    f->late.running = false;
    errno = f->late.failure;
    f->late.failure = 0;
    return errno && !mc_failed(f->ctx) ? fail(f, "write it") : mc_error_status(f->ctx);
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
    errno = write_at(f->aside.fd, offset, data, size);
    return errno ? fail(f, "write it") : MC_OK;
}

/* Signals stay with the program's own threads. */
mc_status rank_file_write_later(rank_file *f, int64_t offset, const void *data, size_t size)
{
    if (rank_file_wait(f)) return mc_error_status(f->ctx);
    if (f->aside.direct) return refuse_direct(f);
    f->late = (late_write){.fd = f->aside.fd, .offset = offset, .data = data, .size = size};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&f->late.thread, NULL, write_late, &f->late);
    f->late.running = errno == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errno ? fail(f, "start a thread that writes it") : MC_OK;
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
    if (mc_failed(f->ctx)) return mc_error_status(f->ctx);
    errno = write_bytes(f->aside.fd, f->aside.direct ? -1 : offset, data, size);
    return errno ? fail(f, "write it") : MC_OK;
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
    rank_file_wait(f);
    if (!mc_failed(f->ctx) && (errno = mc_aside_sync(&f->aside))) fail(f, "sync it");
    if (mc_synchronize(f->ctx)) return mc_error_status(f->ctx);
    if (mc_rank(f->ctx) == 0) take_name(f);
    mc_aside_close(&f->aside);
    return mc_synchronize(f->ctx);
}

void rank_file_release(rank_file *f)
{
    if (f->late.running) pthread_join(f->late.thread, NULL);
    mc_aside_close(&f->aside);
    *f = (rank_file){.aside = {.fd = -1}};
}
