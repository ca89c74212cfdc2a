#include "core/hub/lock_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "core/base/file_internal.h"

/* The folder that a file of this path is in. */
static mc_status make_folder_of(mc_error *err, const char *path)
{
    char folder[MC_PATH_MAX];
    mc_status status = mc_path_join(err, folder, path, "");
    if (status) return status;
    folder[strlen(folder) - 1] = '\0'; /* the slash that was added */
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder) return MC_OK;
    *slash = '\0';
    return mc_make_folders(err, folder);
}

/* flock and not fcntl's locks, which two threads of a process would both get. */
int mc_hub_lock(mc_error *err, const char *path, mc_status (*goes_on)(void *user), void *user)
{
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    if (make_folder_of(err, path)) return -1;
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
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
