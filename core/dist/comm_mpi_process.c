/* Starting and ending MPI. MPI_Init and MPI_Finalize may wait for other ranks for ever, so a
 * separate thread calls them, and other threads wait for it only until their deadline. The ranks'
 * own threads make all other calls, one at a time (MPI_THREAD_SERIALIZED). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/base/signals_internal.h"
#include "core/dist/comm_mpi_internal.h"

typedef enum life_state {
    UNKNOWN,  /* not requested yet */
    STARTING, /* in MPI_Init_thread */
    FAILED,   /* it failed */
    OURS,     /* running; we end it */
    THEIRS,   /* running; the program started it */
    LEAVING,  /* in MPI_Finalize */
    LEFT,
} life_state;

/* The process's state: see comm_mpi_internal.h. */
static struct {
    pthread_mutex_t calls; /* held around every MPI call: guards mpi */
    mc_mpi mpi;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    life_state state;
    int error; /* of MPI_Init_thread */
    int thread_level;
} process = {.calls = PTHREAD_MUTEX_INITIALIZER,
             .mpi = {.comm = MPI_COMM_NULL, .most_message = 1 << 30, .next_group = 1},
             .mutex = PTHREAD_MUTEX_INITIALIZER,
             .changed = PTHREAD_COND_INITIALIZER};

mc_mpi *mc_mpi_lock(void)
{
    pthread_mutex_lock(&process.calls);
    return &process.mpi;
}

void mc_mpi_unlock(void) { pthread_mutex_unlock(&process.calls); }

void mc_mpi_give_up(mc_mpi *mpi, const char *why)
{
    if (!*mpi->given_up) snprintf(mpi->given_up, sizeof mpi->given_up, "%s", *why ? why : "?");
}

mc_mpi_text mc_mpi_explain(int error)
{
    mc_mpi_text t;
    int length = 0;
    if (MPI_Error_string(error, t.text, &length)) length = 0;
    t.text[length] = '\0';
    return t;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static life_state get_state(void)
{
    pthread_mutex_lock(&process.mutex);
    life_state state = process.state;
    pthread_mutex_unlock(&process.mutex);
    return state;
}

static void set_state(life_state state)
{
    pthread_mutex_lock(&process.mutex);
    process.state = state;
    pthread_cond_broadcast(&process.changed);
    pthread_mutex_unlock(&process.mutex);
}

static void *live(void *unused)
{
    (void)unused;
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &process.thread_level);
    process.error = error;
    set_state(error ? FAILED : OURS);
    pthread_mutex_lock(&process.mutex);
    while (process.state != LEAVING) pthread_cond_wait(&process.changed, &process.mutex);
    pthread_mutex_unlock(&process.mutex);
    MPI_Finalize();
    set_state(LEFT);
    return NULL;
}

/* Ends MPI at exit unless something failed: then other ranks may be gone, and MPI_Finalize would
 * wait for them. */
static void leave(void)
{
    mc_mpi *mpi = mc_mpi_lock();
    bool well = !*mpi->given_up && !mpi->stays && !mpi->active && get_state() == OURS;
    double deadline = mc_comm_clock() + mpi->longest;
    mc_mpi_unlock();
    if (!well) return;
    set_state(LEAVING);
    mc_comm_backoff backoff = {0};
    while (get_state() == LEAVING && mc_comm_clock() < deadline) mc_comm_pause(&backoff);
}

/* The thread blocks signals, so that the program's threads get them. */
static int start_thread(void)
{
    sigset_t before;
    pthread_t thread;
    mc_signals_block(&before);
    int error = pthread_create(&thread, NULL, live, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) pthread_detach(thread);
    return error;
}

/* ---- entering -------------------------------------------------------------------------------- */

/* Uses an MPI that the program started. */
static mc_status adopt(mc_comm *c)
{
    int ended = 0, is_main = 0;
    MPI_Finalized(&ended);
    if (ended) return mc_fail(c->ctx, MC_ERR_STATE, "MPI was ended by the program already");
    MPI_Query_thread(&process.thread_level);
    MPI_Is_thread_main(&is_main);
    if (process.thread_level < MPI_THREAD_SERIALIZED && !is_main)
        return mc_fail(c->ctx, MC_ERR_STATE,
                       "the program has started MPI for its main thread only, and this is another");
    set_state(THEIRS);
    return MC_OK;
}

static mc_status start(mc_comm *c)
{
    int started = 0;
    MPI_Initialized(&started);
    if (started) return adopt(c);
    set_state(STARTING);
    int error = start_thread();
    if (!error && !atexit(leave)) return MC_OK;
    set_state(FAILED);
    return mc_fail(c->ctx, MC_ERR_NOMEM, "out of memory for the thread that starts MPI");
}

/* Whether to keep waiting for MPI. */
static bool may_wait(mc_comm *c, double deadline, const char *what)
{
    if (mc_comm_stopped(c)) {
        mc_error_while(&c->ctx->error, "waiting for %s", what);
        return false;
    }
    if (mc_comm_clock() < deadline) return true;
    mc_fail(c->ctx, MC_ERR_IO, "%s on rank %d of %d: not done within %g s: a rank has not come",
            what, c->rank, c->size, c->timeout);
    return false;
}

static mc_status wait_until_started(mc_comm *c, double deadline)
{
    mc_comm_backoff backoff = {0};
    while (get_state() == STARTING) {
        if (!may_wait(c, deadline, "MPI_Init")) return mc_error_status(c->ctx);
        mc_comm_pause(&backoff);
    }
    if (get_state() == FAILED)
        return mc_fail(c->ctx, MC_ERR_IO, "MPI does not start (error %d)", process.error);
    if (get_state() >= LEAVING)
        return mc_fail(c->ctx, MC_ERR_STATE, "MPI was ended: the process is leaving");
    if (get_state() == OURS && process.thread_level < MPI_THREAD_SERIALIZED)
        return mc_fail(c->ctx, MC_ERR_UNSUPPORTED,
                       "this MPI serves one thread only, expected MPI_THREAD_SERIALIZED");
    return MC_OK;
}

/* Duplicates the program's communicator, so that messages and the error handler are our own. */
static mc_status copy_world(mc_comm *c, mc_mpi *mpi, double deadline)
{
    MPI_Request request;
    mc_comm_backoff backoff = {0};
    int error = MPI_Comm_idup(MPI_COMM_WORLD, &mpi->comm, &request), done = 0;
    while (!error && !(error = MPI_Test(&request, &done, MPI_STATUS_IGNORE)) && !done) {
        if (!may_wait(c, deadline, "MPI_Comm_idup")) break;
        mc_comm_pause(&backoff);
    }
    if (!error && done) return MC_OK;
    mpi->comm = MPI_COMM_NULL;
    mc_fail(c->ctx, MC_ERR_IO, "MPI_Comm_idup: %s", mc_mpi_explain(error).text);
    mc_mpi_give_up(mpi, mc_error_message(c->ctx));
    return mc_error_status(c->ctx);
}

static mc_status open_comm(mc_comm *c, mc_mpi *mpi, double deadline)
{
    void *most = NULL;
    int found = 0;
    if (get_state() == THEIRS && copy_world(c, mpi, deadline)) return mc_error_status(c->ctx);
    if (get_state() == OURS) mpi->comm = MPI_COMM_WORLD; /* nobody else uses it */
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    MPI_Comm_size(mpi->comm, &mpi->size);
    MPI_Comm_rank(mpi->comm, &mpi->rank);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    unsigned limit = found ? (unsigned)*(int *)most : 32767u;
    for (mpi->tag_bits = 15; mpi->tag_bits < 31 && (limit + 1u) >> (mpi->tag_bits + 1);)
        mpi->tag_bits++;
    return MC_OK;
}

static mc_status check_size(mc_comm *c, const mc_mpi *mpi)
{
    if (mpi->size != c->size)
        return mc_fail(
            c->ctx, MC_ERR_STATE,
            "MPI has %d rank%s, but WORLD_SIZE (the launcher's number of ranks) is %d: CPU "
            "ranks are started by mpirun or by srun with MPI, which start all of them in "
            "one MPI job",
            mpi->size, mpi->size == 1 ? "" : "s", c->size);
    if (mpi->rank != c->rank)
        return mc_fail(c->ctx, MC_ERR_STATE,
                       "MPI's rank %d of %d has the number %d by the launcher: expected the same",
                       mpi->rank, mpi->size, c->rank);
    return MC_OK;
}

mc_status mc_mpi_enter(mc_comm *c)
{
    double deadline = mc_comm_clock() + c->timeout;
    mc_mpi_lock();
    mc_status status = get_state() == UNKNOWN ? start(c) : MC_OK;
    mc_mpi_unlock();
    if (status || wait_until_started(c, deadline)) return mc_error_status(c->ctx);
    mc_mpi *mpi = mc_mpi_lock();
    if (c->timeout > mpi->longest) mpi->longest = c->timeout;
    if (*mpi->given_up)
        mc_fail(c->ctx, MC_ERR_STATE, "MPI was given up in this process: %s", mpi->given_up);
    else if (mpi->comm != MPI_COMM_NULL || open_comm(c, mpi, deadline) == MC_OK)
        check_size(c, mpi);
    mc_mpi_unlock();
    return mc_error_status(c->ctx);
}
