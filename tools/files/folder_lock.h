/* The lock of a folder that a run writes to.
 *
 *     folder_lock lock;
 *     switch (folder_lock_take(&lock, "run")) {
 *     case FOLDER_LOCK_TAKEN: ...            write to it
 *     case FOLDER_LOCK_BUSY: ...             lock.message names the process and its host
 *     case FOLDER_LOCK_NONE: ...             a warning: the file system has no locks
 *     case FOLDER_LOCK_FAILED: ...           the folder cannot be written: lock.message
 *     }
 *     folder_lock_release(&lock);
 *
 * It is a lock on the file ".modelcenter.lock" in the folder (an open file description lock, or a
 * process' own where the kernel has no such locks), which the system releases when the process
 * ends, however that happens. The file names the process and its host, for the message alone:
 * nothing is concluded from its age or from what it says. */
#ifndef MC_TOOLS_FOLDER_LOCK_H
#define MC_TOOLS_FOLDER_LOCK_H

#include <stdbool.h>

enum { FOLDER_LOCK_PATH = 4096 };

typedef enum folder_lock_result {
    FOLDER_LOCK_TAKEN,
    FOLDER_LOCK_BUSY,
    FOLDER_LOCK_NONE,
    FOLDER_LOCK_FAILED
} folder_lock_result;

/* Zero-initialised it is none; releasing does nothing. */
typedef struct folder_lock {
    bool taken;
    int fd;
    char path[FOLDER_LOCK_PATH];
    char message[FOLDER_LOCK_PATH + 512]; /* why not, "" when taken */
} folder_lock;

/* The folder has to exist. */
folder_lock_result folder_lock_take(folder_lock *lock, const char *folder);
/* What taking would return, TAKEN or BUSY, and takes and writes nothing. */
folder_lock_result folder_lock_look(folder_lock *lock, const char *folder);
void folder_lock_release(folder_lock *lock);

#endif
