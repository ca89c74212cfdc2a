/* The lock of a repository in a cache, between processes and between threads. */
#ifndef MC_HUB_LOCK_INTERNAL_H
#define MC_HUB_LOCK_INTERNAL_H

#include "core/base/error_internal.h"

/* Takes the lock, whose file is made if need be, with the folders between it and the
 * cache's `root`; waits for the process that has
 * it, and asks `goes_on` (a status that is not MC_OK ends the wait) now and then. The system takes
 * it back when the process ends, however it does. -1 with the error set. */
int mc_hub_lock(mc_error *err, const char *root, const char *path, mc_status (*goes_on)(void *user),
                void *user);
void mc_hub_unlock(int lock); /* -1 is allowed */

/* What the owner of the lock is at, in the lock's file: it stays there where the owner dies. */
typedef enum mc_hub_work {
    MC_HUB_NO_WORK = 0,
    MC_HUB_DOWNLOADS = 'd',
    MC_HUB_VERIFIES = 'v',
} mc_hub_work;

/* Notes it, durably; MC_HUB_NO_WORK once all is done. */
mc_status mc_hub_lock_note(mc_error *err, int lock, const char *path, mc_hub_work work);
/* What is noted, by the owner before this one if this one has noted nothing. */
mc_hub_work mc_hub_lock_noted(int lock);
/* Whether the contents that the lock at `path` guards are to be verified before they are used: an
 * owner died at its work, or one verifies now. What a live owner downloads is no reason. */
bool mc_hub_lock_is_stale(const char *path);

#endif
