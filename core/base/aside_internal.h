/* mc_aside for folders that others may write to as well: an existing file, link, pipe or device of
 * the target's name is replaced, and a link is not followed. All return 0 or an errno. */
#ifndef MC_BASE_ASIDE_INTERNAL_H
#define MC_BASE_ASIDE_INTERNAL_H

#include "core/base/aside.h"

/* As mc_aside_open, but does not follow a symbolic link at `path`: it replaces the link, pipe or
 * device. A folder is EISDIR. */
int mc_aside_open_here(mc_aside *aside, const char *path);
/* Creates a symbolic link to `to` that replaces whatever exists at `path`. The caller holds a lock
 * that all creators of this link take, so temporaries found here are left over from a crash: they
 * go. */
int mc_aside_link(const char *to, const char *path);

#endif
