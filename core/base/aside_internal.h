/* mc_aside in folders that others may write to as well: what has the name is replaced, and a link
 * there is not followed. All return 0 or an errno. */
#ifndef MC_BASE_ASIDE_INTERNAL_H
#define MC_BASE_ASIDE_INTERNAL_H

#include "core/base/aside.h"

/* As mc_aside_open, for the name itself: a symbolic link, pipe or device that has it will be
 * replaced. A folder is EISDIR. */
int mc_aside_open_here(mc_aside *aside, const char *path);
/* Makes a symbolic link with the text `to` in place of what has the name. The caller holds a lock
 * that all take who make this link: temporaries of it are those of processes that died, and go. */
int mc_aside_link(const char *to, const char *path);

#endif
