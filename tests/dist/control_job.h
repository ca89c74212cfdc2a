/* A job of several ranks, each a process of its own (or, to look for leaks, a thread), that meet
 * over the control channel and then play a part. Include after cmocka.h. */
#ifndef MC_TESTS_CONTROL_JOB_H
#define MC_TESTS_CONTROL_JOB_H

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "core/dist/control/control_parts_internal.h"
#include "tests/child.h"
#include "tests/dist/free_port.h"

/* Seconds: LONG is the deadline of jobs whose deadline is not to pass. */
enum { RANKS_MAX = 8, TOLD_LATE = 60, LONG = 100 };

/* Seconds that control_internal.h promises, deadlines of the job's options aside: until all are
 * told of what one knows, and for freeing; and by how much a machine that has more to do may be
 * later. Together less than half of LONG, after which a rank counts as one that stands still. */
enum { SOON = 1, BUSY = 30 };

typedef struct job job;

/* What a rank does once all have come. */
typedef void part(mc_control *c, job *j, int rank, mc_error *error);

/* What became of a rank; in memory that all processes share. */
typedef struct outcome {
    atomic_bool ready, done;   /* has begun its part; has freed its control */
    atomic_bool let_in, heard; /* for test_control.c: what rank 0 has said to it */
    bool joined;
    mc_status status;
    char message[3000];
    double ended, freed; /* when its part ended; when mc_control_free came back */
    int local_rank, local_size;
} outcome;

struct job {
    int world;
    double timeout;
    const char *addr;
    int port;
    part *parts[RANKS_MAX];
    mc_control_options own[RANKS_MAX]; /* what isn't 0 replaces the job's */
    mc_job_secret secret;              /* without bytes: that of one host's file */
    void (*prepare[RANKS_MAX])(void);  /* in the process, before anything else */
    atomic_bool finish;                /* for parts that wait to be told */
    char answer[96];                   /* how that of mc_control_explain begins, for begins_last */
    const char *where;                 /* what it holds, too */
    int askers;                        /* how many ranks ask for it */
    atomic_int answered;
    char here[32]; /* the host that is starting ranks */
    pid_t pids[RANKS_MAX];
    outcome ranks[RANKS_MAX];
};

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void sleep_for(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (time_t)seconds))}, NULL);
}

/* In memory that is shared with the ranks. */
static inline job *job_new(int world, double timeout, part *all)
{
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j != MAP_FAILED);
    j->world = world;
    j->timeout = timeout;
    j->addr = "127.0.0.1";
    j->port = free_port();
    j->secret.size = MC_SECRET_MIN;
    for (size_t i = 0; i < MC_SECRET_MIN; i++) j->secret.bytes[i] = (uint8_t)(j->port >> i % 8);
    for (int r = 0; r < RANKS_MAX; r++) j->parts[r] = all;
    return j;
}

static inline mc_control_options job_options(const job *j, int rank)
{
    mc_control_options o = j->own[rank];
    if (!o.rank) o.rank = rank;
    if (!o.world_size) o.world_size = j->world;
    if (!o.addr) o.addr = j->addr;
    if (!o.port) o.port = j->port;
    if (!o.job) o.job = 4711;
    if (o.timeout == 0) o.timeout = j->timeout;
    if (!o.secret && j->secret.size) o.secret = &j->secret;
    return o;
}

static outcome *own; /* of a rank's process; NULL in the test's */

static inline void run_rank(job *j, int rank)
{
    outcome *r = &j->ranks[rank];
    mc_error error = {0};
    if (j->prepare[rank]) j->prepare[rank]();
    mc_control_options o = job_options(j, rank);
    mc_control *c = mc_control_new(&error, &o);
    r->joined = c != NULL;
    if (c) {
        mc_control_place(c, &r->local_rank, &r->local_size);
        if (j->parts[rank]) j->parts[rank](c, j, rank, &error);
    }
    r->ended = now();
    r->status = error.status;
    if (mc_error_is_set(&error)) snprintf(r->message, sizeof r->message, "%s", error.message);
    mc_control_free(c);
    r->freed = now();
    r->done = true;
    mc_error_clear(&error);
}

static inline void job_start_rank(job *j, int rank)
{
    pid_t pid = fork_child();
    if (pid == 0) {
        own = &j->ranks[rank];
        run_rank(j, rank);
        _exit(0);
    }
    j->pids[rank] = pid;
}

static inline void job_start(job *j)
{
    for (int r = 0; r < j->world; r++) job_start_rank(j, r);
}

/* All ranks have begun their parts. */
static inline void job_wait_ready(job *j)
{
    double begun = now();
    for (int r = 0; r < j->world; r++)
        while (!j->ranks[r].ready) {
            if (now() - begun > TOLD_LATE || j->ranks[r].done)
                fail_msg("rank %d did not begin: %s", r, j->ranks[r].message);
            sleep_for(0.002);
        }
}

/* Plays a job whose deadline passes. Returns false where that came too early for what is tested: a
 * rank had not come by then. */
typedef bool timed_job(double timeout);

/* With more time on a machine that was too busy for less. */
static inline void within_deadline(timed_job *play)
{
    double timeout = 1.5;
    while (!play(timeout)) assert_true((timeout *= 4) < 100);
}

/* Whether all ranks have begun their parts, rather than ended. */
static inline bool all_begin(const job *j)
{
    double begun = now();
    for (int r = 0; r < j->world; r++)
        while (!j->ranks[r].ready) {
            if (j->ranks[r].done) return false;
            if (now() - begun > LONG + TOLD_LATE) fail_msg("rank %d neither began nor ended", r);
            sleep_for(0.002);
        }
    return true;
}

/* Ends a rank as the system would. */
static inline void job_kill(job *j, int rank)
{
    kill(j->pids[rank], SIGKILL);
    waitpid(j->pids[rank], NULL, 0);
    j->pids[rank] = 0;
}

/* Waits for the ranks that are left, each of which is promised to be done within `limit` seconds of
 * `since`, and to be freed soon. Then they are gone. */
static inline void job_wait(job *j, double since, double limit)
{
    int late = -1;
    for (int r = 0; r < RANKS_MAX; r++) {
        if (!j->pids[r]) continue;
        while (!j->ranks[r].done && now() < since + limit + SOON + 2 * BUSY) sleep_for(0.002);
        outcome *o = &j->ranks[r];
        if (!o->done || o->ended > since + limit + BUSY || o->freed - o->ended > SOON + BUSY)
            late = r;
    }
    for (int r = 0; r < RANKS_MAX; r++)
        if (j->pids[r]) job_kill(j, r);
    if (late >= 0)
        fail_msg("rank %d: %s, ended after %.3f s (limit %.3f), freed in %.3f s: %s", late,
                 j->ranks[late].done ? "done" : "not done", j->ranks[late].ended - since, limit,
                 j->ranks[late].freed - j->ranks[late].ended, j->ranks[late].message);
}

static inline void job_free(job *j) { munmap(j, sizeof *j); }

/* The rank has failed and its message holds the text. */
static inline void assert_says(const job *j, int rank, const char *text)
{
    const outcome *o = &j->ranks[rank];
    if (o->status == MC_OK) fail_msg("rank %d: no error, expected \"%s\"", rank, text);
    if (!strstr(o->message, text))
        fail_msg("rank %d: \"%s\", expected \"%s\"", rank, o->message, text);
}

static inline void assert_all_good(const job *j)
{
    for (int r = 0; r < j->world; r++)
        if (!j->ranks[r].joined || j->ranks[r].status != MC_OK)
            fail_msg("rank %d: %s", r, j->ranks[r].message);
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* A socket that is connected to a port of this host. */
static inline int connect_port(int port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (double since = now(); now() < since + 2 + BUSY; sleep_for(0.01)) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0) return fd;
        close(fd);
    }
    fail_msg("cannot connect to port %d: %s", port, strerror(errno));
    return -1;
}

/* Plays the connecting end of a proof, until it is done or the other end has closed. */
static inline mc_proof_state prove_by_hand(mc_conn *conn, const mc_job_secret *secret)
{
    mc_hmac hmac;
    mc_hmac_load(&hmac);
    mc_proof_begin(conn, false);
    while (mc_proof_go_on(conn, &hmac, secret) < MC_PROOF_DONE && !conn->broken) {
        mc_conn_receive(conn);
        sleep_for(0.002);
    }
    return conn->proof.state;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static inline void wait_in(mc_control *c, job *j, int rank, mc_error *error)
{
    j->ranks[rank].ready = true;
    while (!mc_control_failed(c, error) && !j->finish) sleep_for(0.002);
}

/* In the same operation as the others, which goes on until something fails. */
static inline void waits(mc_control *c, job *j, int rank, mc_error *error)
{
    mc_control_note(c, 1, 6, "broadcast");
    mc_control_note(c, 1, 7, "all-reduce");
    wait_in(c, j, rank, error);
}

#endif
