#include "core/hub/lock_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "core/hub/folders_internal.h"

/* flock and not fcntl's locks, which two threads of a process would both get. */
int mc_hub_lock(mc_error *err, const char *root, const char *path, mc_status (*goes_on)(void *user),
                void *user)
{
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    if (mc_hub_make_parent(err, root, path)) return -1;
    int lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (lock < 0) {
        mc_error_set(err, MC_ERR_IO, "%s: cannot open the lock: %s", path, strerror(errno));
        return -1;
    }
    while (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        int reason = errno;
        if (reason != EWOULDBLOCK && reason != EINTR)
            mc_error_set(err, MC_ERR_IO, "%s: cannot take the lock: %s", path, strerror(reason));
        if (mc_error_is_set(err) || goes_on(user) != MC_OK) {
            close(lock);
            return -1;
        }
        nanosleep(&pause, NULL);
    }
    return lock;
}

void mc_hub_unlock(int lock)
{
    if (lock >= 0) close(lock);
}
