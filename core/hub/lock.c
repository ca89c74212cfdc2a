#include "core/hub/lock_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "core/hub/folders_internal.h"

/* flock, because fcntl's locks would not exclude two threads of one process. */
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

mc_status mc_hub_lock_note(mc_error *err, int lock, const char *path, mc_hub_work work)
{
    char letter = (char)work;
    bool good =
        work ? pwrite(lock, &letter, 1, 0) == 1 && fsync(lock) == 0 : ftruncate(lock, 0) == 0;
    if (good) return MC_OK;
    return mc_error_set(err, MC_ERR_IO, "%s: cannot write it: %s", path, strerror(errno));
}

mc_hub_work mc_hub_lock_noted(int lock)
{
    char letter = 0;
    if (pread(lock, &letter, 1, 0) != 1 || !letter) return MC_HUB_NO_WORK;
    return letter == MC_HUB_VERIFIES ? MC_HUB_VERIFIES : MC_HUB_DOWNLOADS;
}

bool mc_hub_lock_is_stale(const char *path)
{
    int lock = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    mc_hub_work work = lock >= 0 ? mc_hub_lock_noted(lock) : MC_HUB_NO_WORK;
    bool is_free = work == MC_HUB_DOWNLOADS && flock(lock, LOCK_EX | LOCK_NB) == 0;
    if (is_free) work = mc_hub_lock_noted(lock); /* its owner may have finished just now */
    if (lock >= 0) close(lock);
    return work == MC_HUB_VERIFIES || (work && is_free);
}

void mc_hub_unlock(int lock)
{
    if (lock >= 0) close(lock);
}
