#include "tools/files/whole_file.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* 0, or an errno. */
static int write_text(int fd, const char *text)
{
    char end[] = "\n";
    for (size_t left = strlen(text) + 1; left;) {
        struct iovec parts[] = {{(char *)text, left - 1}, {end, 1}};
        ssize_t n = writev(fd, parts, 2);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : ENOSPC;
        text += (size_t)n < left ? (size_t)n : left - 1;
        left -= (size_t)n;
    }
    return 0;
}

mc_status whole_file_write(mc_context *ctx, const char *path, const char *text)
{
    mc_aside file;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    int failed = mc_aside_open(&file, path);
    if (!failed) failed = write_text(file.fd, text);
    if (!failed) failed = mc_aside_sync(&file);
    if (!failed) failed = mc_aside_rename(&file, true);
    mc_aside_close(&file);
    if (!failed) return MC_OK;
    return mc_set_error(ctx, MC_ERR_IO, "%s: cannot write: %s", path, strerror(failed));
}
