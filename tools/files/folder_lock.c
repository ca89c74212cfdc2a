#include "tools/files/folder_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OWNER_ROOM = 320 };

static folder_lock_result fail(folder_lock *lock, const char *doing)
{
    snprintf(lock->message, sizeof lock->message, "%s: cannot %s: %s", lock->path, doing,
             strerror(errno));
    return FOLDER_LOCK_FAILED;
}

/* 0, or the errno of why not. */
static int lock_file(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0) return 0;
    if (errno != EINVAL) return errno;
    return fcntl(fd, F_SETLK, &whole) == 0 ? 0 : errno;
}

static bool is_busy(int failed) { return failed == EAGAIN || failed == EACCES; }

/* "process 4711 on host node3", as the file says. */
static void read_owner(int fd, char owner[OWNER_ROOM])
{
    ssize_t length = pread(fd, owner, OWNER_ROOM - 1, 0);
    owner[length > 0 ? length : 0] = '\0';
    owner[strcspn(owner, "\n")] = '\0';
    for (char *c = owner; *c; c++)
        if ((unsigned char)*c < ' ') *c = '?';
    if (!*owner) snprintf(owner, OWNER_ROOM, "another process");
}

static bool write_owner(int fd)
{
    char host[256] = "", owner[OWNER_ROOM];
    if (gethostname(host, sizeof host - 1) != 0 || !*host) snprintf(host, sizeof host, "localhost");
    int length = snprintf(owner, sizeof owner, "process %ld on host %s\n", (long)getpid(), host);
    return ftruncate(fd, 0) == 0 && pwrite(fd, owner, (size_t)length, 0) == length;
}

/* Whether the path still names the open file: the run before may have removed it meanwhile. */
static bool is_named(const folder_lock *lock)
{
    struct stat open_one, named;
    return fstat(lock->fd, &open_one) == 0 && lstat(lock->path, &named) == 0 &&
           open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

static folder_lock_result refuse(folder_lock *lock, const char *folder)
{
    char owner[OWNER_ROOM];
    read_owner(lock->fd, owner);
    snprintf(lock->message, sizeof lock->message,
             "%s: %s writes to this folder: wait for it, or choose another folder", folder, owner);
    return FOLDER_LOCK_BUSY;
}

static folder_lock_result go_without(folder_lock *lock, const char *folder, int failed)
{
    snprintf(lock->message, sizeof lock->message,
             "%s: the file system has no locks (%s): start no second run in this folder", folder,
             strerror(failed));
    unlink(lock->path); /* of no use */
    return FOLDER_LOCK_NONE;
}

/* Of a full disk: nothing of the lock stays. */
static folder_lock_result give_up(folder_lock *lock)
{
    fail(lock, "write there");
    unlink(lock->path);
    return FOLDER_LOCK_FAILED;
}

static void close_file(folder_lock *lock)
{
    close(lock->fd);
    lock->fd = -1;
}

static bool name_file(folder_lock *lock, const char *folder)
{
    int length = snprintf(lock->path, sizeof lock->path, "%s/.modelcenter.lock", folder);
    return length >= 0 && (size_t)length < sizeof lock->path;
}

folder_lock_result folder_lock_look(folder_lock *lock, const char *folder)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    *lock = (folder_lock){.fd = -1};
    if (name_file(lock, folder)) lock->fd = open(lock->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (lock->fd < 0) return FOLDER_LOCK_TAKEN;
    bool busy = (fcntl(lock->fd, F_OFD_GETLK, &whole) == 0 ||
                 (errno == EINVAL && fcntl(lock->fd, F_GETLK, &whole) == 0)) &&
                whole.l_type != F_UNLCK;
    if (busy) refuse(lock, folder);
    close_file(lock);
    return busy ? FOLDER_LOCK_BUSY : FOLDER_LOCK_TAKEN;
}

folder_lock_result folder_lock_take(folder_lock *lock, const char *folder)
{
    *lock = (folder_lock){.fd = -1};
    if (!name_file(lock, folder)) {
        errno = ENAMETOOLONG;
        return fail(lock, "lock it");
    }
    for (;;) {
        lock->fd = open(lock->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (lock->fd < 0) return fail(lock, "write there");
        int failed = lock_file(lock->fd);
        folder_lock_result result = FOLDER_LOCK_TAKEN;
        if (failed)
            result = is_busy(failed) ? refuse(lock, folder) : go_without(lock, folder, failed);
        else if (is_named(lock) && !write_owner(lock->fd))
            result = give_up(lock);
        else if (is_named(lock))
            lock->taken = true;
        if (lock->taken) return FOLDER_LOCK_TAKEN;
        close_file(lock);
        if (result != FOLDER_LOCK_TAKEN) return result;
    }
}

void folder_lock_release(folder_lock *lock)
{
    if (!lock->taken) return;
    unlink(lock->path); /* while it is locked: who opens it now finds it without its name */
    close_file(lock);
    lock->taken = false;
}
