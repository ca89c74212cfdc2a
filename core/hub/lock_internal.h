/* The lock of a repository in a cache, between processes and between threads. */
#ifndef MC_HUB_LOCK_INTERNAL_H
#define MC_HUB_LOCK_INTERNAL_H

#include "core/base/error_internal.h"

/* Takes the lock, and creates its file if needed, with the folders below the cache's `root`. While
 * another process holds it, waits and calls `goes_on` now and then, which ends the wait with a
 * status other than MC_OK. The system releases the lock when the process ends. -1 with the error
 * set. */
int mc_hub_lock(mc_error *err, const char *root, const char *path, mc_status (*goes_on)(void *user),
                void *user);
void mc_hub_unlock(int lock); /* -1 is allowed */

/* The work of the lock's owner, noted in the lock's file. The note stays if the owner dies. */
typedef enum mc_hub_work {
    MC_HUB_NO_WORK = 0,
    MC_HUB_DOWNLOADS = 'd',
    MC_HUB_VERIFIES = 'v',
} mc_hub_work;

/* Writes the note, durably; MC_HUB_NO_WORK when all is done. */
mc_status mc_hub_lock_note(mc_error *err, int lock, const char *path, mc_hub_work work);
/* Reads the note, which may be a previous owner's. */
mc_hub_work mc_hub_lock_noted(int lock);
/* Whether the contents guarded by the lock at `path` must be verified before use: an owner died at
 * work, or one is verifying now. A running download is no reason. */
bool mc_hub_lock_is_stale(const char *path);

#endif
