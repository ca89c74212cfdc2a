#include "core/base/aside_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(MC_ASIDE_PATH >= PATH_MAX, "realpath writes as much");

enum {
    TAG_DIGITS = 16,
    MOST_LINKS = 40,
    MOST_NAME = 200, /* of the target's name, at the start of its temporaries' (255 at most) */
    MOST_OPEN = 512  /* descriptors from here on are closed after the sync, and lose their lock */
};
static const char mark[] = ".tmp-";

/* ---- resolving ------------------------------------------------------------------------------- */

/* Splits a path into the real path of its folder and the name in that folder. */
static int split(const char *path, char folder[MC_ASIDE_PATH], char name[MC_ASIDE_PATH])
{
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    size_t length = slash ? (size_t)(slash - path) : 0;
    char given[MC_ASIDE_PATH];
    if (!*path) return ENOENT;
    if (strlen(path) >= MC_ASIDE_PATH) return ENAMETOOLONG;
    if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0) return EISDIR;
    snprintf(given, sizeof given, "%.*s", (int)length, path);
    if (!realpath(!slash ? "." : length ? given : "/", folder)) return errno;
    snprintf(name, MC_ASIDE_PATH, "%s", last);
    return 0;
}

static int join(char path[MC_ASIDE_PATH], const char *folder, const char *name)
{
    char joined[2 * MC_ASIDE_PATH];
    int length = snprintf(joined, sizeof joined, "%s%s%s", folder,
                          strcmp(folder, "/") == 0 ? "" : "/", name);
    if (length >= MC_ASIDE_PATH) return ENAMETOOLONG;
    memcpy(path, joined, (size_t)length + 1);
    return 0;
}

/* Whether a folder is /proc/.../fd, the list of a process's open files. */
static bool lists_descriptors(const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(folder, "/proc/", 6) == 0 && length > 3 &&
           strcmp(folder + length - 3, "/fd") == 0;
}

/* The path that a symbolic link leads to. */
static int follow(const char *link, const char *folder, char path[MC_ASIDE_PATH])
{
    char to[MC_ASIDE_PATH];
    ssize_t length = readlink(link, to, sizeof to - 1);
    if (length < 0) return errno;
    to[length] = '\0';
    return to[0] == '/' ? join(path, "/", to + 1) : join(path, folder, to);
}

int mc_aside_resolve(const char *path, char target[MC_ASIDE_PATH], bool *direct)
{
    char folder[MC_ASIDE_PATH], name[MC_ASIDE_PATH], at[MC_ASIDE_PATH];
    struct stat info;
    if (!path || !target || !direct) return EINVAL;
    *direct = false;
    if (strlen(path) >= sizeof at) return ENAMETOOLONG;
    memcpy(at, path, strlen(path) + 1);
    for (int links = 0; links < MOST_LINKS; links++) {
        int failed = split(at, folder, name);
        if (!failed) failed = join(target, folder, name);
        if (failed) return failed;
        if (lists_descriptors(folder)) {
            *direct = true;
            return 0;
        }
        if (lstat(target, &info) != 0) return errno == ENOENT ? 0 : errno;
        if (S_ISDIR(info.st_mode)) return EISDIR;
        *direct = !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode);
        if (!S_ISLNK(info.st_mode)) return 0;
        failed = follow(target, folder, at);
        if (failed) return failed;
    }
    return ELOOP;
}

/* ---- temporaries ----------------------------------------------------------------------------- */

static void folder_of(const char *path, char folder[MC_ASIDE_PATH])
{
    const char *slash = strrchr(path, '/');
    size_t length = slash && slash > path ? (size_t)(slash - path) : 1;
    snprintf(folder, MC_ASIDE_PATH, "%.*s", (int)length, path);
}

static int name_temporary(mc_aside *a)
{
    char folder[MC_ASIDE_PATH], name[MOST_NAME + 64];
    folder_of(a->target, folder);
    snprintf(name, sizeof name, "%.*s%s%016llx", MOST_NAME, strrchr(a->target, '/') + 1, mark,
             (unsigned long long)a->tag);
    return join(a->path, folder, name);
}

static uint64_t random_tag(void)
{
    uint64_t tag;
    struct timespec now;
    if (getrandom(&tag, sizeof tag, 0) == (ssize_t)sizeof tag) return tag;
    clock_gettime(CLOCK_REALTIME, &now); /* O_EXCL detects a tag that is already in use */
    return ((uint64_t)now.tv_nsec << 32) ^ (uint64_t)now.tv_sec ^ ((uint64_t)getpid() << 20);
}

/* Whether a name is that of a temporary of the target `name`. */
static bool is_temporary(const char *entry, const char *name)
{
    size_t start = strnlen(name, MOST_NAME), length = sizeof mark - 1;
    if (strncmp(entry, name, start) != 0 || strncmp(entry + start, mark, length) != 0) return false;
    const char *digits = entry + start + length;
    return strspn(digits, "0123456789abcdef") == TAG_DIGITS && !digits[TAG_DIGITS];
}

/* Whether no process is writing a temporary: a link, whose creators all take the lock that the
 * caller holds, or a file whose lock is free; the lock is then taken, and kept until *fd is
 * closed. */
static bool is_stale(int folder, const char *name, bool links, int *fd)
{
    struct stat info;
    *fd = -1;
    if (links)
        return fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
    *fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return *fd >= 0 && fstat(*fd, &info) == 0 && S_ISREG(info.st_mode) &&
           flock(*fd, LOCK_EX | LOCK_NB) == 0;
}

/* Removes temporaries of the target, files or links, whose writers are gone. */
static void remove_stale(const mc_aside *a, bool links)
{
    char folder[MC_ASIDE_PATH];
    folder_of(a->target, folder);
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!is_temporary(entry->d_name, strrchr(a->target, '/') + 1)) continue;
        int fd;
        if (is_stale(dirfd(dir), entry->d_name, links, &fd)) unlinkat(dirfd(dir), entry->d_name, 0);
        if (fd >= 0) close(fd);
    }
    if (dir) closedir(dir);
}

/* Locks the file. Returns false if another process considered the file stale and removed it. */
static bool lock_temporary(int fd)
{
    struct stat info;
    while (flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) return true; /* this file system has no locks */
    return fstat(fd, &info) != 0 || info.st_nlink > 0;
}

static int make_temporary(mc_aside *a)
{
    struct stat old;
    for (int tries = 0; tries < 100; tries++) {
        a->tag = random_tag();
        int failed = name_temporary(a);
        if (failed) return failed;
        a->fd = open(a->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (a->fd < 0 && errno != EEXIST) return errno;
        if (a->fd >= 0 && lock_temporary(a->fd)) {
            /* the new file gets the old one's permissions, if the file system can set them */
            int kept = lstat(a->target, &old) == 0 && S_ISREG(old.st_mode)
                           ? fchmod(a->fd, old.st_mode & 0777)
                           : 0;
            (void)kept;
            a->pending = true;
            return 0;
        }
        if (a->fd >= 0) close(a->fd);
        a->fd = -1;
    }
    return EEXIST;
}

/* The descriptor number if the target is an open file of this process, or -1. */
static int own_descriptor(const char *target)
{
    char folder[MC_ASIDE_PATH], own[64], thread[64];
    folder_of(target, folder);
    snprintf(own, sizeof own, "/proc/%ld/fd", (long)getpid());
    snprintf(thread, sizeof thread, "/proc/%ld/task/", (long)getpid());
    bool is_own = strcmp(folder, own) == 0 || strncmp(folder, thread, strlen(thread)) == 0;
    return is_own && lists_descriptors(folder) ? (int)strtol(strrchr(target, '/') + 1, NULL, 10)
                                               : -1;
}

static int open_direct(mc_aside *a)
{
    int own = own_descriptor(a->target);
    memcpy(a->path, a->target, sizeof a->path);
    a->fd = own >= 0 ? fcntl(own, F_DUPFD_CLOEXEC, 3)
                     : open(a->target, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    return a->fd < 0 ? errno : 0;
}

int mc_aside_open(mc_aside *a, const char *path)
{
    if (!a) return EINVAL;
    *a = (mc_aside){.fd = -1};
    int failed = mc_aside_resolve(path, a->target, &a->direct);
    if (failed) return failed;
    if (a->direct) return open_direct(a);
    remove_stale(a, false);
    return make_temporary(a);
}

/* The path itself, without following a symbolic link in its last part. */
static int resolve_here(const char *path, char target[MC_ASIDE_PATH])
{
    char folder[MC_ASIDE_PATH], name[MC_ASIDE_PATH];
    struct stat info;
    int failed = split(path, folder, name);
    if (!failed) failed = join(target, folder, name);
    if (!failed && lstat(target, &info) == 0 && S_ISDIR(info.st_mode)) failed = EISDIR;
    return failed;
}

int mc_aside_open_here(mc_aside *a, const char *path)
{
    *a = (mc_aside){.fd = -1};
    int failed = resolve_here(path, a->target);
    if (failed) return failed;
    remove_stale(a, false);
    return make_temporary(a);
}

int mc_aside_link(const char *to, const char *path)
{
    mc_aside a = {.fd = -1};
    int failed = resolve_here(path, a.target);
    if (!failed) remove_stale(&a, true);
    for (int tries = 0; !failed && tries < 100 && !a.pending; tries++) {
        a.tag = random_tag();
        failed = name_temporary(&a);
        a.pending = !failed && symlink(to, a.path) == 0;
        if (!failed && !a.pending && errno != EEXIST) failed = errno;
    }
    if (!failed && !a.pending) failed = EEXIST;
    if (!failed && rename(a.path, a.target) != 0) failed = errno;
    a.pending = a.pending && failed;
    mc_aside_close(&a);
    return failed;
}

int mc_aside_join(mc_aside *a, const char *path, uint64_t tag)
{
    if (!a) return EINVAL;
    *a = (mc_aside){.fd = -1, .tag = tag};
    int failed = mc_aside_resolve(path, a->target, &a->direct);
    if (!failed && a->direct) failed = ESPIPE; /* only one process can write it, in order */
    if (!failed) failed = name_temporary(a);
    if (failed) return failed;
    a->fd = open(a->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    return a->fd < 0 ? errno : 0;
}

/* ---- finishing ------------------------------------------------------------------------------- */

int mc_aside_sync(mc_aside *a)
{
    if (!a || a->fd < 0) return EINVAL;
    if (fsync(a->fd) != 0 && !(a->direct && (errno == EINVAL || errno == EROFS))) return errno;
    if (a->direct || a->fd < MOST_OPEN) return 0;
    int closed = close(a->fd);
    a->fd = -1;
    return closed == 0 ? 0 : errno;
}

static int sync_folder(const char *path)
{
    char folder[MC_ASIDE_PATH];
    folder_of(path, folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int failed = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return failed == EINVAL ? 0 : failed; /* some file systems cannot sync folders */
}

/* Renames unless the target exists. */
static int rename_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
    if (link(from, to) != 0) return errno; /* the file system lacks RENAME_NOREPLACE */
    return unlink(from) == 0 ? 0 : errno;
}

int mc_aside_rename(mc_aside *a, bool replace)
{
    if (!a) return EINVAL;
    if (a->direct) return 0;
    int failed = !replace                          ? rename_new(a->path, a->target)
                 : rename(a->path, a->target) == 0 ? 0
                                                   : errno;
    if (failed) return failed;
    a->pending = false;
    return sync_folder(a->target);
}

void mc_aside_close(mc_aside *a)
{
    if (!a) return;
    if (a->pending) unlink(a->path); /* while it is locked */
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
    a->pending = false;
}
