/* Two "hosts" on one: processes in network (and host name) namespaces of their own, joined by a
 * cable. They hold as root, or where users may make namespaces; else the tests skip, and say so.
 * Their addresses are 10.77.0.1, 10.77.0.2 and fd77::1, fd77::2, their names mc-host-0, mc-host-1.
 * Include after cmocka.h. */
#ifndef MC_TESTS_TWO_HOSTS_H
#define MC_TESTS_TWO_HOSTS_H

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct host {
    pid_t pid; /* for nsenter --target PID --net --uts */
    atomic_int asked, answered;
    void (*call)(void *argument);
    void *argument;
    char command[400]; /* for the shell, where there is no call */
    int result;        /* of the command */
} host;

/* In memory that all its processes share. */
typedef struct two_hosts {
    pid_t pid;
    atomic_int ready; /* 1: all stands; -1: it can't be had, `why` */
    char why[200];
    host hosts[2];
} two_hosts;

static inline void hosts_nap(void) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }

static inline void hosts_give_up(two_hosts *h, const char *why)
{
    snprintf(h->why, sizeof h->why, "%s", why);
    h->ready = -1;
    for (;;) pause();
}

/* The process dies with its parent. */
static inline void end_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it has died already */
}

/* What a host does: what it is asked to. */
static inline void run_host(two_hosts *h, int index, pid_t cluster)
{
    host *me = &h->hosts[index];
    char name[32];
    end_with(cluster);
    signal(SIGCHLD, SIG_DFL);
    snprintf(name, sizeof name, "mc-host-%d", index);
    if (unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0 || sethostname(name, strlen(name)) != 0)
        hosts_give_up(h, "no rights to make network namespaces");
    me->pid = getpid();
    for (me->answered = 0;; hosts_nap()) {
        if (me->asked == me->answered) continue;
        if (me->call)
            me->call(me->argument);
        else
            me->result = system(me->command);
        me->answered++;
    }
}

/* Runs a function in the host's process, or a command; returns when it has come back. */
static inline void host_call(two_hosts *h, int index, void (*call)(void *), void *argument)
{
    host *one = &h->hosts[index];
    one->call = call;
    one->argument = argument;
    one->asked++;
    while (one->answered != one->asked) hosts_nap();
}

static inline int host_run(two_hosts *h, int index, const char *command)
{
    snprintf(h->hosts[index].command, sizeof h->hosts[index].command, "%s", command);
    host_call(h, index, NULL, NULL);
    return h->hosts[index].result;
}

static inline void write_map(const char *path, unsigned id)
{
    char text[32];
    int length = snprintf(text, sizeof text, "0 %u 1", id), fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, (size_t)length) < 0) return; /* seen by what fails next */
    close(fd);
}

/* Lets a user who is not root have namespaces, where the system allows that. */
static inline void become_root(two_hosts *h)
{
    unsigned user = geteuid(), group = getegid();
    if (user == 0) return;
    if (unshare(CLONE_NEWUSER) != 0) hosts_give_up(h, "no rights to make user namespaces");
    int fd = open("/proc/self/setgroups", O_WRONLY);
    if (fd >= 0) {
        ssize_t ignored = write(fd, "deny", 4);
        (void)ignored;
        close(fd);
    }
    write_map("/proc/self/uid_map", user);
    write_map("/proc/self/gid_map", group);
}

/* Lays the cable, from a namespace over both. */
static inline void lay_cable(two_hosts *h)
{
    char command[400];
    snprintf(command, sizeof command,
             "ip link add mc0 netns %d type veth peer name mc1 netns %d >/dev/null 2>&1",
             (int)h->hosts[0].pid, (int)h->hosts[1].pid);
    if (system("ip -V >/dev/null 2>&1") != 0) hosts_give_up(h, "no command ip");
    if (system(command) != 0) hosts_give_up(h, "no rights to make a veth pair");
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command,
                 "ip link set lo up && ip addr add 10.77.0.%d/24 dev mc%d && "
                 "{ ip addr add fd77::%d/64 dev mc%d nodad 2>/dev/null; ip link set mc%d up; }",
                 i + 1, i, i + 1, i, i);
        if (host_run(h, i, command) != 0) hosts_give_up(h, "no rights to give addresses");
    }
}

static inline void run_cluster(two_hosts *h, pid_t test)
{
    become_root(h);
    end_with(test); /* after it, since a change of rights undoes it */
    pid_t self = getpid();
    if (unshare(CLONE_NEWNET) != 0) hosts_give_up(h, "no rights to make network namespaces");
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        if (pid == 0) run_host(h, i, self);
        if (pid < 0) hosts_give_up(h, "cannot fork");
    }
    while (h->ready == 0 && (!h->hosts[0].pid || !h->hosts[1].pid)) hosts_nap();
    if (h->ready == 0) {
        lay_cable(h);
        h->ready = 1;
    }
    for (;;) pause();
}

/* NULL, having said so, where there can be none. Free with two_hosts_free. */
static inline two_hosts *two_hosts_new(void)
{
    two_hosts *h = mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(h != MAP_FAILED);
    fflush(NULL);
    pid_t self = getpid();
    pid_t pid = fork(); /* not into shared memory, where the child would write its 0 too */
    assert_true(pid >= 0);
    if (pid == 0) run_cluster(h, self);
    h->pid = pid;
    for (int i = 0; i < 5000 && h->ready == 0; i++) hosts_nap();
    if (h->ready == 1) return h;
    printf("SKIPPED: two hosts in network namespaces (%s)\n", h->ready ? h->why : "no answer");
    kill(h->pid, SIGKILL);
    waitpid(h->pid, NULL, 0);
    munmap(h, sizeof *h);
    return NULL;
}

static inline void two_hosts_free(two_hosts *h)
{
    kill(h->pid, SIGKILL); /* and with it the hosts, and the namespaces */
    waitpid(h->pid, NULL, 0);
    munmap(h, sizeof *h);
}

#endif
