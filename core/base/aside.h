/* A file that takes its name once it is whole.
 *
 *     mc_aside a;
 *     int failed = mc_aside_open(&a, "rows.jsonl");
 *     if (!failed) ... write(a.fd, ...) ...
 *     if (!failed) failed = mc_aside_sync(&a);
 *     if (!failed) failed = mc_aside_rename(&a, true);
 *     mc_aside_close(&a);                        removes what has not been renamed
 *
 * It is written to a temporary beside its target, "NAME.tmp-" and 16 random hexadecimal digits,
 * which no other process can have (O_EXCL) and which is locked while it is written. Opening removes
 * temporaries of the same target that nobody locks: those of processes that died. Where the file
 * system has no locks nothing is removed.
 *
 * A symbolic link to a regular file stays: its target is replaced. What is not a regular file (a
 * terminal, a pipe, a device, a socket, /dev/stdout and the like) is direct: it is opened and
 * written as it stands, and never renamed over or removed.
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
    int fd;                     /* for reading and writing; of a direct one for writing. -1: none */
    bool direct;                /* no regular file: what is written is out at once, in order */
    bool pending;               /* this process has made the temporary, which is not renamed yet */
    uint64_t tag;               /* the 16 digits, for mc_aside_join */
    char target[MC_ASIDE_PATH]; /* the path with links resolved */
    char path[MC_ASIDE_PATH];   /* of the temporary; of a direct one the target */
} mc_aside;

/* Resolves the links of a path whose last part may not exist yet; *direct says whether it exists
 * and is no regular file (a folder is none of either: EISDIR). */
MC_API int mc_aside_resolve(const char *path, char target[MC_ASIDE_PATH], bool *direct);

MC_API int mc_aside_open(mc_aside *aside, const char *path);
/* Opens the temporary that another process has made, to write it together: `tag` is that of its
 * mc_aside. A joined file is not removed on close. */
MC_API int mc_aside_join(mc_aside *aside, const char *path, uint64_t tag);
/* Makes what was written durable. */
MC_API int mc_aside_sync(mc_aside *aside);
/* Gives it its name, durably. Without `replace` a file that has appeared there meanwhile is EEXIST,
 * and stays, and so does the temporary until mc_aside_close. */
MC_API int mc_aside_rename(mc_aside *aside, bool replace);
MC_API void mc_aside_close(mc_aside *aside); /* NULL is allowed */

#endif
