/* CPU ranks that die, stop, do not come or disagree: every other rank ends within its timeout with
 * a message of its own that names what it was doing, and whom it waited for. Each case is a job of
 * its own, which this program runs as
 *
 *     mpirun --enable-recovery -np 3 test_comm_failures CASE FOLDER
 *
 * so that mpirun does not do the killing; its ranks print what became of them. */
#include <stdatomic.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include "core/dist/world_internal.h"
#include "tests/child.h"
#include "tests/dist/comm_test.h"
#include "tests/temp_folder.h"
#ifdef MC_HAVE_MPI
#include <mpi.h>
#endif

enum { JOB = 3, MANY = 300000 };
static const double timeout = 3;

/* ---- the ranks of a job ---------------------------------------------------------------------- */

typedef struct job_case job_case;

typedef struct rank_state {
    const job_case *job;
    const char *folder; /* of the job: a file for each rank that has ended */
    mc_context *ctx;
    mc_comm *world;
    int rank;
    float *x, *y; /* (MANY * JOB) each */
} rank_state;

static void nap(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (int)seconds))}, NULL);
}

static void wait_for_others(const rank_state *s);

static void absent_all_reduce(rank_state *s)
{
    if (s->rank == 2) wait_for_others(s);
    mc_comm_all_reduce(s->world, s->x, s->y, 10, MC_F32, MC_REDUCE_AVG);
}

static void absent_large(rank_state *s)
{
    if (s->rank == 1) wait_for_others(s);
    mc_comm_reduce_scatter(s->world, s->x, s->y, MANY, MC_F32, MC_REDUCE_SUM);
}

static void absent_root(rank_state *s)
{
    if (s->rank == 0) wait_for_others(s);
    mc_comm_broadcast(s->world, s->x, s->y, MANY, MC_F32, 0);
}

/* In a part of the group; messages have the ranks' numbers in the job. */
static void absent_in_part(rank_state *s)
{
    mc_comm *part = mc_comm_split(s->world, s->rank > 0, 0);
    if (s->rank == 2) wait_for_others(s);
    if (s->rank > 0) mc_comm_all_gather(part, s->x, s->y, 10, MC_F32);
    if (s->rank == 0) mc_comm_recv(s->world, s->x, 4, MC_I32, 2);
}

static void killed(rank_state *s)
{
    mc_comm_request *r =
        mc_comm_start_all_reduce(s->world, s->x, s->y, MANY, MC_F32, MC_REDUCE_SUM);
    if (s->rank == 1) raise(SIGKILL);
    mc_comm_wait(r);
}

static void suspended(rank_state *s)
{
    if (s->rank == 0 && fork_child() == 0) { /* who wakes it up, when all is over */
        wait_for_others(s);
        kill(getppid(), SIGCONT);
        _exit(0);
    }
    if (s->rank == 0) raise(SIGSTOP);
    mc_comm_barrier(s->world);
}

typedef struct bell {
    double at;
    mc_comm *comm;
} bell;

static bool ring(void *user, mc_error *error)
{
    const bell *a = user;
    if (mc_comm_clock() < a->at) return false;
    mc_error_set(error, MC_ERR_IO, "rank 2 has failed: a bad row");
    return true;
}

static void stopped(rank_state *s)
{
    bell a = {.at = mc_comm_clock() + 0.5};
    s->world->hooks = (mc_comm_hooks){.stop = ring, .user = &a};
    if (s->rank < 2) mc_comm_all_gather(s->world, s->x, s->y, 10, MC_F32);
    mc_fail(s->ctx, MC_ERR_FORMAT, "a bad row");
}

typedef struct abortion {
    mc_comm *comm;
    atomic_bool waiting;
} abortion;

/* Is asked while a call waits. */
static bool note_waiting(void *user, mc_error *error)
{
    abortion *a = user;
    (void)error;
    a->waiting = true;
    return false;
}

static void *abort_when_waiting(void *user)
{
    abortion *a = user;
    while (!a->waiting) nap(0.01);
    mc_comm_abort(a->comm);
    return NULL;
}

static void aborted(rank_state *s)
{
    pthread_t thread;
    abortion a = {.comm = s->world, .waiting = s->rank == 2}; /* which does not come to the call */
    s->world->hooks = (mc_comm_hooks){.stop = note_waiting, .user = &a};
    pthread_create(&thread, NULL, abort_when_waiting, &a);
    if (s->rank < 2) mc_comm_all_reduce(s->world, s->x, s->y, MANY, MC_F32, MC_REDUCE_MAX);
    pthread_join(thread, NULL);
    mc_comm_barrier(s->world);
}

static void other_counts(rank_state *s)
{
    mc_comm_all_gather(s->world, s->x, s->y, 10 + s->rank, MC_F32);
}

static void other_ids(rank_state *s)
{
    mc_comm_id id = {{(unsigned char)(s->rank == 1)}};
    assert_null(mc_comm_new(s->ctx, &id, JOB, s->rank, NULL));
}

/* Rank 2 never begins MPI. */
static void not_begun(rank_state *s)
{
    if (s->rank == 2)
        wait_for_others(s);
    else
        s->world = new_world(s->ctx, timeout);
}

static void other_size(rank_state *s)
{
    mc_comm_new(s->ctx, NULL, JOB + 1, s->rank, &(mc_comm_options){.timeout = 60});
}

/* The program itself has started MPI: it is used, and left to the program. */
static void adopted(rank_state *s)
{
#ifdef MC_HAVE_MPI
    int level, mine = s->rank, sum = 0, theirs = 0;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    s->world = new_world(s->ctx, 60);
    mc_comm_request *r = mc_comm_start_all_reduce(s->world, &mine, &sum, 1, MC_I32, MC_REDUCE_SUM);
    MPI_Allreduce(&mine, &theirs, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD); /* the program's own */
    mc_comm_wait(r);
    mc_comm_free(s->world);
    if (!mc_failed(s->ctx)) mc_fail(s->ctx, MC_ERR_IO, "sum %d, max %d", sum, theirs);
    MPI_Finalize();
#else
    (void)s;
#endif
}

static void freed_in_midst(rank_state *s)
{
    if (s->rank == 0 && s->world) s->world->timeout = 60; /* none of its own calls is to be late */
    if (s->rank == 0) mc_comm_start_all_gather(s->world, s->x, s->y, MANY, MC_F32);
    if (s->rank == 0) mc_comm_free(s->world);
    if (s->rank == 0) s->world = new_world(s->ctx, 60);
    for (int i = 0; i < 2 && s->rank > 0; i++)
        mc_comm_all_gather(s->world, s->x, s->y, MANY, MC_F32);
}

/* ---- in a job, whose channel knows where everyone is ----------------------------------------- */

/* Makes the context of a job in place of the single one; its communicator has done one call. */
static void join_job(rank_state *s)
{
    mc_context_free(s->ctx);
    s->ctx = mc_init_distributed(&(mc_init_options){.comm_timeout = 60});
    s->world = mc_context_comm(s->ctx);
    mc_comm_broadcast(s->world, s->x, s->x, 4, MC_F32, 0);
    if (s->world) s->world->timeout = 4;
}

/* Does not come while others wait, however long these take to give up. */
static void stay_away(rank_state *s)
{
    double until = mc_comm_clock() + 60;
    while (!mc_world_failed(s->ctx, NULL) && mc_comm_clock() < until) nap(0.05);
}

static double processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Who waits leaves the processor to others. */
static void job_late(rank_state *s)
{
    join_job(s);
    if (s->rank == 2) stay_away(s);
    double begun = processor_time();
    mc_comm_all_reduce(s->world, s->x, s->y, 10, MC_F32, MC_REDUCE_AVG);
    double busy = processor_time() - begun;
    if (busy < 1) return;
    mc_clear_error(s->ctx);
    mc_fail(s->ctx, MC_ERR_STATE, "waiting for 4 s took %g s of the processor", busy);
}

/* Rank 1 has begun the gather that is waited for, and more: it is not the one that is missing. */
static void job_late_started(rank_state *s)
{
    join_job(s);
    if (s->rank == 0) stay_away(s);
    mc_comm_request *a = mc_comm_start_all_gather(s->world, s->x, s->y, MANY, MC_F32), *b = NULL;
    if (s->rank == 1) b = mc_comm_start_all_reduce(s->world, s->x, s->x, 10, MC_F32, 0);
    mc_comm_wait(a);
    mc_comm_wait(b);
}

static void job_other_operation(rank_state *s)
{
    join_job(s);
    if (s->rank == 1)
        mc_comm_broadcast(s->world, s->x, s->x, 10, MC_F32, 0);
    else
        mc_comm_all_reduce(s->world, s->x, s->y, 10, MC_F32, MC_REDUCE_SUM);
}

/* Two parts of the job, which have calls of the same numbers. */
static void job_part(rank_state *s)
{
    join_job(s);
    mc_comm *part = mc_comm_split(s->world, s->rank > 0, 0);
    if (s->rank == 0)
        for (int i = 0; i < 5; i++) mc_comm_all_gather(part, s->x, s->y, 1, MC_F32);
    if (s->rank == 2) stay_away(s);
    if (s->rank > 0) mc_comm_all_gather(part, s->x, s->y, 10, MC_F32);
    mc_comm_barrier(s->world);
}

/* A communicator that the program makes hears of a death as the job's own does. */
static void job_killed(rank_state *s)
{
    join_job(s);
    mc_comm *own = mc_comm_new(s->ctx, NULL, JOB, s->rank, &(mc_comm_options){.timeout = 60});
    if (s->rank == 1) raise(SIGKILL);
    mc_comm_all_reduce(own, s->x, s->y, 10, MC_F32, MC_REDUCE_MAX);
}

/* Memory runs out on one rank. */
static void job_out_of_memory(rank_state *s)
{
    join_job(s);
    if (s->rank == 1) mc_tensor_new(s->ctx, MC_F32, MC_SHAPE((int64_t)1 << 50));
    mc_comm_barrier(s->world);
}

/* Who is missing is somewhere among those from whom nothing came: a rank that waits for it sends
 * nothing either. */
struct job_case {
    const char *name;
    void (*act)(rank_state *s);
    bool without_world;
    bool patient; /* something else than a deadline ends the calls, which may take 60 s */
    double most;  /* seconds until the last one is promised to end; 0: the timeout */
    int missing;  /* a rank and 1; 0: nobody */
    const char *expected[JOB]; /* in the message of each rank; NULL: it says nothing */
};

#define LATE ": not done within 3 s: nothing came from rank "
#define BROKEN ": not done within 3 s: no" /* thing came from, or not taken by, a rank */
static const job_case cases[] = {
    {"all-reduce", absent_all_reduce, .missing = 1 + 2,
     .expected = {"all-reduce 2 of 10 f32 (avg) on rank 0 of 3" LATE "2",
                  "all-reduce 2 of 10 f32 (avg) on rank 1 of 3" LATE "2"}},
    {"reduce-scatter", absent_large, .missing = 1 + 1,
     .expected = {"reduce-scatter 2 of 300000 f32 (sum) on rank 0 of 3" LATE, NULL,
                  "reduce-scatter 2 of 300000 f32 (sum) on rank 2 of 3" LATE}},
    {"broadcast", absent_root, .missing = 1 + 0,
     .expected = {NULL, "broadcast 2 of 300000 f32 on rank 1 of 3" LATE "0",
                  "broadcast 2 of 300000 f32 on rank 2 of 3" LATE "0"}},
    {"part", absent_in_part, .missing = 1 + 2,
     .expected = {"recv 1 of 4 i32 from rank 2 on rank 0 of 3" LATE "2",
                  "all-gather 1 of 10 f32 on rank 1 (in a part of 2 ranks)" LATE "2"}},
    {"killed", killed, .missing = 1 + 1,
     .expected = {"all-reduce 2 of 300000 f32 (sum) on rank 0 of 3" BROKEN, NULL,
                  "all-reduce 2 of 300000 f32 (sum) on rank 2 of 3" BROKEN}},
    {"suspended", suspended, .missing = 1 + 0,
     .expected = {NULL, "all-reduce 2 of 1 u8 (max) on rank 1 of 3" LATE,
                  "all-reduce 2 of 1 u8 (max) on rank 2 of 3" LATE}},
    {"stopped", stopped, .patient = true, .most = 20,
     .expected = {"rank 2 has failed: a bad row; while waiting for all-gather 2 of 10 f32",
                  "rank 2 has failed: a bad row; while waiting for all-gather 2 of 10 f32",
                  "a bad row"}},
    {"aborted", aborted, .patient = true, .most = 20,
     .expected = {"aborted on this rank; while waiting for all-reduce 2 of 300000 f32 (max)",
                  "aborted on this rank; while waiting for all-reduce 2 of 300000 f32 (max)",
                  "barrier on a communicator that was aborted"}},
    {"counts", other_counts, .patient = true, .most = 20,
     .expected = {"sent more than 40 bytes: ranks have passed different counts",
                  "ranks have passed different counts",
                  "sent less than 48 bytes: ranks have passed different counts"}},
    {"ids", other_ids, .patient = true, .most = 20,
     .expected = {"rank 1 makes a communicator with another id than rank 0",
                  "makes a communicator with another id than rank 1",
                  "rank 1 makes a communicator with another id than rank 2"}},
    {"init", not_begun, true,
     .expected = {"MPI_Init on rank 0 of 3: not done within 3 s: a rank has not come",
                  "MPI_Init on rank 1 of 3: not done within 3 s: a rank has not come"}},
    {"size", other_size, true, .most = 20, /* with the start of MPI */
     .expected = {"MPI has 3 ranks, but WORLD_SIZE (the launcher's number of ranks) is 4",
                  "MPI has 3 ranks, but WORLD_SIZE (the launcher's number of ranks) is 4",
                  "MPI has 3 ranks, but WORLD_SIZE (the launcher's number of ranks) is 4"}},
    {"adopted", adopted, true, .most = 20,
     .expected = {"sum 3, max 2", "sum 3, max 2", "sum 3, max 2"}},
    {"job-late", job_late, true, .most = 20,
     .expected = {": not done within 4 s: rank 2 has not come to it, ",
                  ": not done within 4 s: rank 2 has not come to it, ",
                  "rank 2 has not come to it"}},
    {"job-started", job_late_started, true, .most = 20,
     .expected = {"rank 0 has not come to it", ": not done within 4 s: rank 0 has not come to it, ",
                  ": not done within 4 s: rank 0 has not come to it, "}},
    {"job-other", job_other_operation, true, .most = 20,
     .expected = {" is in another operation: ", " is in another operation: ",
                  " is in another operation: "}},
    {"job-part", job_part, true, .most = 20,
     .expected = {"rank 2 has not come to it, ", "rank 2 has not come to it, ",
                  "rank 2 has not come to it, "}},
    {"job-killed", job_killed, true, .most = 20, .expected = {"rank 1 (", NULL, "rank 1 ("}},
    {"job-memory", job_out_of_memory, true, .most = 20,
     .expected = {"rank 1: out of memory for ", "out of memory for ",
                  "rank 1: out of memory for "}},
    {"freed", freed_in_midst,
     .expected = {"MPI was given up in this process: a communicator was "
                  "freed in the midst of a call",
                  ": not done within 3 s: ", ": not done within 3 s: "}},
};
enum { CASES = sizeof cases / sizeof *cases };

static const job_case *find_case(const char *name)
{
    for (int i = 0; i < CASES; i++)
        if (strcmp(cases[i].name, name) == 0) return &cases[i];
    return NULL;
}

static const char *end_of(const rank_state *s, int rank, char path[1100])
{
    snprintf(path, 1100, "%s/%s.%d", s->folder, s->job->name, rank);
    return path;
}

/* Until the other ranks that are to end have: the time that they take is their own. */
static void wait_for_others(const rank_state *s)
{
    char path[1100];
    double until = mc_comm_clock() + 60;
    for (int r = 0; r < JOB; r++)
        while (r != s->rank && s->job->expected[r] && mc_comm_clock() < until &&
               access(end_of(s, r, path), F_OK) != 0)
            nap(0.01);
}

static void note_end(const rank_state *s)
{
    char path[1100];
    write_text(end_of(s, s->rank, path), "");
}

/* Plays a rank, and says what became of it. MPI is left as it is: it may be broken. */
static int be_rank(const job_case *c, const char *folder)
{
    rank_state s = {.job = c, .folder = folder, .ctx = new_context(), .rank = my_rank()};
    s.x = mc_calloc(MANY * JOB, sizeof *s.x);
    s.y = mc_calloc(MANY * JOB, sizeof *s.y);
    if (!c->without_world) {
        s.world = new_world(s.ctx, 60); /* starting takes its time on a busy machine */
        mc_comm_barrier(s.world);
        if (s.world) s.world->timeout = c->patient ? 60 : timeout;
    }
    double begun = mc_comm_clock();
    if (!mc_failed(s.ctx)) c->act(&s);
    printf("rank %d after %.2f s: %s%s\n", s.rank, mc_comm_clock() - begun, mc_error_message(s.ctx),
           s.ctx->error.trace);
    fflush(stdout);
    mc_context_free(s.ctx); /* waits for nobody */
    mc_free(s.x);
    mc_free(s.y);
    printf("rank %d is free after %.2f s\n", s.rank, mc_comm_clock() - begun);
    fflush(stdout);
    note_end(&s);
    wait_for_others(&s); /* they are to end by themselves, not with this process */
    memset(&s, 0, sizeof s);
    check_leaks();
    _exit(0);
}

/* ---- who runs the jobs ----------------------------------------------------------------------- */

#ifdef MC_MPIEXEC
static const double busy_machine = 40; /* by so much a promise may be late where more runs */
enum { AT_ONCE = 4 };
static FILE *outputs[CASES]; /* of jobs that were begun */
static temp_folder folder;   /* of all jobs */

static void begin_job(int i)
{
    char command[4096];
    if (i >= CASES || outputs[i]) return;
    snprintf(command, sizeof command,
             "timeout -k 1 150 " MC_MPIEXEC " --enable-recovery -np %d " MC_TEST_SELF
             " %s '%s' 2>&1",
             JOB, cases[i].name, folder.path);
    outputs[i] = popen(command, "r");
    assert_non_null(outputs[i]);
}

static bool names_missing(const job_case *c, const char *line)
{
    /* a rank that died in the middle may have sent all, but not have taken all */
    static const char *const words[] = {"nothing came from rank ", "not taken by rank "};
    const char *list = NULL;
    for (int i = 0; i < 2 && !list; i++)
        if ((list = strstr(line, words[i]))) list += strlen(words[i]);
    if (!c->missing || !list) return !c->missing;
    for (char *end; *list; list = *end == ',' ? end + 1 : "")
        if (strtol(list, &end, 10) == c->missing - 1) return true;
    return false;
}

/* What a job printed, for when it is not as expected. */
typedef struct transcript {
    char text[1 << 16], wrong[4096]; /* the first thing that is; "" */
    size_t used;
} transcript;

static void note_wrong(transcript *t, const char *format, ...) MC_PRINTF(2, 3);
static void note_wrong(transcript *t, const char *format, ...)
{
    va_list args;
    if (*t->wrong) return;
    va_start(args, format);
    vsnprintf(t->wrong, sizeof t->wrong, format, args);
    va_end(args);
}

static void check_line(const job_case *c, const char *line, int seen[JOB], transcript *t)
{
    int rank;
    double seconds, most = (c->most > 0 ? c->most : timeout) + busy_machine;
    if (sscanf(line, "rank %d after %lf s", &rank, &seconds) == 2 && rank >= 0 && rank < JOB) {
        seen[rank]++;
        if (!c->expected[rank]) return;
        if (!strstr(line, c->expected[rank]) || !names_missing(c, line))
            note_wrong(t, "\"%s\", expected \"%s\"", line, c->expected[rank]);
        if (seconds > most) note_wrong(t, "%s: expected %g s at most", line, most);
    } else if (sscanf(line, "rank %d is free after %lf s", &rank, &seconds) == 2 && rank >= 0 &&
               rank < JOB && c->expected[rank]) {
        seen[rank]++;
        if (seconds > most + 1) note_wrong(t, "freeing waits: %s", line);
    }
}

static void run_job(void **state)
{
    const job_case *c = *state;
    char line[2048];
    int seen[JOB] = {0}, index = (int)(c - cases);
    transcript *t = calloc(1, sizeof *t);
    assert_non_null(t);
    for (int i = 0; i < AT_ONCE; i++) begin_job(index + i);
    while (fgets(line, sizeof line, outputs[index])) {
        check_line(c, line, seen, t);
        t->used += (size_t)snprintf(t->text + t->used, sizeof t->text - t->used, "%s", line);
        if (t->used >= sizeof t->text) t->used = sizeof t->text - 1;
    }
    pclose(outputs[index]);
    for (int r = 0; r < JOB; r++)
        if (c->expected[r] && seen[r] != 2) note_wrong(t, "rank %d did not end", r);
    if (*t->wrong) printf("%s printed:\n%s", c->name, t->text);
    if (*t->wrong) fail_msg("%s: %s", c->name, t->wrong);
    free(t);
}

static int make_folder(void **state)
{
    (void)state;
    folder = temp_folder_new();
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    temp_folder_free(&folder);
    return 0;
}

static int run_jobs(void)
{
    struct CMUnitTest tests[CASES];
    for (int i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, run_job, NULL, NULL, (void *)&cases[i]};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
#else
static int run_jobs(void)
{
    printf("SKIPPED: no Open MPI's mpirun was found\n");
    return 0;
}
#endif

int main(int argc, char **argv)
{
    const job_case *c = argc > 2 ? find_case(argv[1]) : NULL;
    return c ? be_rank(c, argv[2]) : run_jobs();
}
