/* A file that gets its name only when it is complete.
 *
 *     mc_aside a;
 *     int failed = mc_aside_open(&a, "rows.jsonl");
 *     if (!failed) ... write(a.fd, ...) ...
 *     if (!failed) failed = mc_aside_sync(&a);
 *     if (!failed) failed = mc_aside_rename(&a, true);
 *     mc_aside_close(&a);                        removes what has not been renamed
 *
 * The data goes to a temporary file beside its target, "NAME.tmp-" and 16 random hexadecimal
 * digits. It is created exclusively (O_EXCL) and locked while it is written. Opening removes
 * unlocked temporaries of the same target: their processes died. If the file system has no locks,
 * nothing is removed.
 *
 * A symbolic link to a regular file stays: its target is replaced. Anything but a regular file (a
 * terminal, a pipe, a device, a socket, /dev/stdout) is direct: it is opened and written in place,
 * and never replaced or removed.
 *
 * All functions return 0 or an errno, EINVAL for NULL. They set no error and use no context.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_BASE_ASIDE_H
#define MC_BASE_ASIDE_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/status.h"

enum { MC_ASIDE_PATH = 4096 };

typedef struct mc_aside {
    int fd;                     /* open for reading and writing (direct: for writing); -1: none */
    bool direct;                /* not a regular file: each write goes out at once, in order */
    bool pending;               /* this process created the temporary and has not renamed it yet */
    uint64_t tag;               /* the 16 digits, for mc_aside_join */
    char target[MC_ASIDE_PATH]; /* the path with links resolved */
    char path[MC_ASIDE_PATH];   /* the temporary's path; direct: the target's */
} mc_aside;

/* Resolves the links of a path whose last part may not exist yet. *direct becomes true if it exists
 * and is not a regular file. A folder is an error, EISDIR. */
MC_API int mc_aside_resolve(const char *path, char target[MC_ASIDE_PATH], bool *direct);

MC_API int mc_aside_open(mc_aside *aside, const char *path);
/* Opens the temporary of another process, so that both write it. `tag` comes from the other's
 * mc_aside. A joined file is not removed on close. */
MC_API int mc_aside_join(mc_aside *aside, const char *path, uint64_t tag);
/* Makes what was written durable. */
MC_API int mc_aside_sync(mc_aside *aside);
/* Renames the temporary to its target, durably. Without `replace`, fails with EEXIST if the target
 * exists by now; then the target stays, and the temporary stays until mc_aside_close. */
MC_API int mc_aside_rename(mc_aside *aside, bool replace);
MC_API void mc_aside_close(mc_aside *aside); /* NULL is allowed */

#endif
