/* The lock of a repository in a cache, between processes and between threads. */
#ifndef MC_HUB_LOCK_INTERNAL_H
#define MC_HUB_LOCK_INTERNAL_H

#include "core/base/error_internal.h"

/* Takes the lock, whose file is made if need be, with the folders between it and the
 * cache's `root`; waits for whoever has
 * it, and asks `goes_on` (a status that is not MC_OK ends the wait) now and then. The system takes
 * it back when the process ends, however it does. -1 with the error set. */
int mc_hub_lock(mc_error *err, const char *root, const char *path, mc_status (*goes_on)(void *user),
                void *user);
void mc_hub_unlock(int lock); /* -1 is allowed */

#endif
