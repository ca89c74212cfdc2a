/* A child process of a test. Include after cmocka.h. */
#ifndef MC_TESTS_CHILD_H
#define MC_TESTS_CHILD_H

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

/* fork() for tests: the child is killed when this process ends, also where an assertion fails
 * before the test ends the child. One that lived on would hold the test's output open, and ctest
 * waits for its end. Where an assertion fails in the child, cmocka goes on there with the next
 * test, so the parent waits with a limit. */
static inline pid_t fork_child(void)
{
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
    }
    return child;
}

#endif
