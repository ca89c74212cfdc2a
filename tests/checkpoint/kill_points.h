/* Kills a process at each of the calls by which the library changes files, one after the other, so
 * that where a save is killed does not depend on who is faster. The linker puts these functions in
 * place of the system's (--wrap, in tests/CMakeLists.txt). Include after cmocka.h. */
#ifndef MC_TESTS_CHECKPOINT_KILL_POINTS_H
#define MC_TESTS_CHECKPOINT_KILL_POINTS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/child.h"

static long kill_countdown; /* of calls until the one that does not return; 0: none */

static inline bool is_killed_here(void) { return kill_countdown && --kill_countdown == 0; }

#define KILL_POINT(name, parameters, ...)     \
    int __real_##name parameters;             \
    int __wrap_##name parameters;             \
    int __wrap_##name parameters              \
    {                                         \
        if (is_killed_here()) raise(SIGKILL); \
        return __real_##name(__VA_ARGS__);    \
    }
KILL_POINT(fsync, (int fd), fd)
KILL_POINT(rename, (const char *from, const char *to), from, to)
KILL_POINT(renameat2, (int a, const char *from, int b, const char *to, unsigned how), a, from, b,
           to, how)
KILL_POINT(link, (const char *from, const char *to), from, to)
KILL_POINT(unlink, (const char *path), path)
KILL_POINT(rmdir, (const char *path), path)
KILL_POINT(mkdir, (const char *path, mode_t mode), path, mode)
#undef KILL_POINT

/* In the middle of what it writes. */
ssize_t __real_write(int fd, const void *data, size_t size);
ssize_t __wrap_write(int fd, const void *data, size_t size);
ssize_t __wrap_write(int fd, const void *data, size_t size)
{
    bool killed = is_killed_here();
    ssize_t written = __real_write(fd, data, killed ? size / 2 : size);
    if (killed) raise(SIGKILL);
    return written;
}

/* Runs `save` in a child that is killed at the nth call. False: it ended, for it has fewer. */
static inline bool killed_at(long nth, void (*save)(void *user), void *user)
{
    int status;
    pid_t child = fork_child();
    if (child == 0) {
        kill_countdown = nth;
        save(user);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
}

#endif
