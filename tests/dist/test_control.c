/* The control channel: rendezvous, deaths, silence, errors, deadlines, strangers. Ranks are
 * processes on this host; what they say and how soon is checked for each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include "core/base/memory_internal.h"
#include "tests/dist/control_job.h"

/* Notes what rank 0 says to the rank of this process: linked in place of the library's function,
 * which reads the texts of frames. */
void __real_mc_frame_get_text(mc_frame *f, char *text, size_t room);
void __wrap_mc_frame_get_text(mc_frame *f, char *text, size_t room);
void __wrap_mc_frame_get_text(mc_frame *f, char *text, size_t room)
{
    __real_mc_frame_get_text(f, text, room);
    if (!own) return;
    if (f->type == MC_FRAME_WAIT) own->let_in = true;
    if (f->type == MC_FRAME_BEAT && strcmp(text, "all-reduce") == 0) own->heard = true;
}

/* ---- rendezvous ------------------------------------------------------------------------------ */

/* What a healthy job does. */
static void works(mc_control *c, job *j, int rank, mc_error *error)
{
    for (int i = 1; i <= 3; i++) {
        uint8_t blob[MC_CONTROL_BLOB_MAX];
        size_t size = i == 1 ? sizeof blob : (size_t)(128 * (i - 2));
        memset(blob, rank == 0 ? 40 + i : rank, sizeof blob);
        if (!mc_control_share(c, error, "a blob", blob, size)) return;
        for (size_t b = 0; b < size; b++)
            if (blob[b] != 40 + i) {
                mc_error_set(error, MC_ERR_FORMAT, "blob %d: byte %zu is %d", i, b, blob[b]);
                return;
            }
    }
    for (uint64_t op = 1; op <= 1000 && !mc_control_failed(c, error); op++)
        mc_control_note(c, 1, op, "all-reduce");
    j->ranks[rank].ready = true;
}

static void test_worlds(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS_MAX; world++) {
        job *j = job_new(world, LONG, works);
        job_start(j);
        job_wait(j, now(), 3);
        assert_all_good(j);
        for (int r = 0; r < world; r++) {
            assert_int_equal(j->ranks[r].local_rank, r);
            assert_int_equal(j->ranks[r].local_size, world);
        }
        job_free(j);
    }
}

/* Ranks come in any order, rank 0 last. */
static void test_order(void **state)
{
    (void)state;
    job *j = job_new(4, LONG, works);
    for (int r = 3; r >= 0; r--) {
        job_start_rank(j, r);
        sleep_for(0.15);
    }
    job_wait(j, now(), 2);
    assert_all_good(j);
    job_free(j);
}

static void *rank_thread(void *argument)
{
    void **a = argument;
    run_rank(a[0], (int)(intptr_t)a[1]);
    return NULL;
}

/* In one process, where sanitizers see leaks and races of both sides. */
static void run_threads(job *j)
{
    pthread_t threads[RANKS_MAX];
    void *arguments[RANKS_MAX][2];
    for (int r = 0; r < j->world; r++) {
        arguments[r][0] = j;
        arguments[r][1] = (void *)(intptr_t)r; // NOLINT
        assert_int_equal(pthread_create(&threads[r], NULL, rank_thread, arguments[r]), 0);
    }
    for (int r = 0; r < j->world; r++) pthread_join(threads[r], NULL);
}

static void reports(mc_control *c, job *j, int rank, mc_error *error)
{
    char text[5000];
    memset(text, 'x', sizeof text);
    memcpy(text, "data.jsonl:7: bad row ", 22);
    text[sizeof text - 1] = '\0';
    mc_control_note(c, 1, 7, "all-reduce");
    for (int r = 0; r < j->world; r++)
        while (r != rank && !j->ranks[r].ready && !mc_control_failed(c, error)) sleep_for(0.002);
    mc_control_report(c, MC_ERR_FORMAT, text);
    mc_control_report(c, MC_ERR_IO, "a second error");
    wait_in(c, j, rank, error);
}

static void test_threads(void **state)
{
    (void)state;
    job *j = job_new(4, LONG, works);
    run_threads(j);
    assert_all_good(j);
    job_free(j);
    j = job_new(3, LONG, waits);
    j->parts[1] = reports;
    run_threads(j);
    for (int r = 0; r < 3; r++) assert_says(j, r, "data.jsonl:7: bad row");
    job_free(j);
    j = job_new(3, 0.3, waits);
    j->own[2].world_size = 4;
    run_threads(j);
    for (int r = 0; r < 3; r++) assert_int_not_equal(j->ranks[r].status, MC_OK);
    job_free(j);
}

/* Whether rank 0 has let in a rank, and has heard of it to the end. */
static bool was_there(const job *j, int rank)
{
    char still[32];
    snprintf(still, sizeof still, "rank %d stands still", rank);
    return j->ranks[rank].let_in && !strstr(j->ranks[0].message, still);
}

static bool misses_two(double timeout)
{
    char where[64];
    job *j = job_new(4, timeout, works);
    double since = now();
    job_start_rank(j, 0);
    job_start_rank(j, 2);
    job_wait(j, since, 1.5 * timeout);
    snprintf(where, sizeof where, "127.0.0.1:%d", j->port);
    bool came = was_there(j, 2);
    for (int r = 0; r < 4 && came; r += 2) {
        assert_says(j, r, "ranks 1, 3 have not come");
        assert_says(j, r, where);
    }
    job_free(j);
    return came;
}

static bool misses_one(double timeout)
{
    bool came = true;
    job *j = job_new(8, timeout, works);
    for (int r = 0; r < 7; r++) job_start_rank(j, r);
    job_wait(j, now(), 1.5 * timeout);
    for (int r = 1; r < 7; r++) came = came && was_there(j, r);
    for (int r = 0; r < 7 && came; r++) assert_says(j, r, "rank 7 has not come");
    job_free(j);
    return came;
}

static void test_one_too_few(void **state)
{
    (void)state;
    within_deadline(misses_two);
    within_deadline(misses_one);
}

static void test_no_rank_0(void **state)
{
    (void)state;
    char where[64];
    job *j = job_new(3, 1, works);
    double since = now();
    job_start_rank(j, 1);
    job_start_rank(j, 2);
    job_wait(j, since, 1.5);
    snprintf(where, sizeof where, "cannot reach rank 0 at 127.0.0.1:%d within 1.0 s", j->port);
    for (int r = 1; r < 3; r++) {
        assert_says(j, r, where);
        assert_says(j, r, "Connection refused");
    }
    job_free(j);
}

static bool has_wrong_world(double timeout)
{
    job *j = job_new(3, timeout, works);
    j->own[1].world_size = 4;
    double since = now();
    job_start(j);
    job_wait(j, since, 1.5 * timeout);
    bool came = was_there(j, 2) && strstr(j->ranks[0].message, "was turned away");
    if (came) {
        assert_says(j, 1,
                    "turns this process away: it expects a world of 4 ranks, rank 0 one of 3");
        assert_true(j->ranks[1].ended < j->ranks[0].ended); /* not at the deadline */
        assert_says(j, 0, "rank 1 has not come");
        assert_says(j, 0, "it expects a world of 4 ranks");
        assert_says(j, 2, "rank 1 has not come");
    }
    job_free(j);
    return came;
}

static void test_wrong_world(void **state)
{
    (void)state;
    within_deadline(has_wrong_world);
}

static bool has_other_job(double timeout)
{
    job *j = job_new(2, timeout, works);
    j->own[1].job = 1;
    job_start(j);
    job_wait(j, now(), 1.5 * timeout);
    bool came = strstr(j->ranks[0].message, "was turned away");
    if (came) {
        assert_says(j, 1, "it belongs to another job (two jobs on one port?)");
        assert_says(j, 0, "rank 1 has not come");
        assert_says(j, 0, "it belongs to another job");
    }
    job_free(j);
    return came;
}

static void test_other_job(void **state)
{
    (void)state;
    within_deadline(has_other_job);
}

/* Two processes say that they are rank 1; one of them is turned away, whichever comes second, and
 * the job is none the worse for it once it has all its ranks. */
static void test_same_rank(void **state)
{
    (void)state;
    job *j = job_new(3, LONG, waits);
    j->own[3].rank = 1;
    job_start(j);
    job_wait_ready(j);
    job_start_rank(j, 3);
    double since = now();
    while (!j->ranks[3].done && now() < since + SOON + BUSY) sleep_for(0.01);
    assert_says(j, 3, "there is a rank 1 already (127.0.0.1:");
    j->finish = true;
    job_wait(j, now(), SOON);
    assert_all_good(j);
    job_free(j);
}

/* Jobs one after the other, as fast as each rank can: who comes to the next while rank 0 is still
 * in the one before waits for it. */
static void be_rank_of_many(job *j, int rank)
{
    enum { JOBS = 100 };
    mc_error error = {0};
    mc_control_options o = job_options(j, rank);
    for (int i = 0; i < JOBS && !mc_error_is_set(&error); i++) {
        int number = rank == 0 ? i : -1;
        mc_control *c = mc_control_new(&error, &o);
        if (c && mc_control_share(c, &error, "the job's number", &number, sizeof number) &&
            number != i)
            mc_error_set(&error, MC_ERR_STATE, "job %d is number %d", i, number);
        if (i % 25 == rank) sleep_for(i == 50 ? 1.7 : 0.05); /* leaves later than the others */
        mc_control_free(c);
    }
    outcome *r = &j->ranks[rank];
    r->joined = true;
    r->status = error.status;
    if (mc_error_is_set(&error)) snprintf(r->message, sizeof r->message, "%s", error.message);
    r->ended = r->freed = now();
    r->done = true;
}

static void test_many_jobs(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        job *j = job_new(world, LONG, NULL);
        for (int r = 0; r < world; r++) {
            pid_t pid = fork_child();
            if (pid == 0) {
                be_rank_of_many(j, r);
                _exit(0);
            }
            j->pids[r] = pid;
        }
        job_wait(j, now(), 60);
        assert_all_good(j);
        job_free(j);
    }
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *addr, *message;
    } table[] = {{"localhost", NULL},
                 {"127.0.0.1", NULL},
                 {"::1", NULL},
                 {"[::1]", NULL},
                 {"no-such-host.invalid", "host \"no-such-host.invalid\" (MASTER_ADDR): "},
                 {"a b", "host \"a b\" (MASTER_ADDR): "},
                 {"", "the host of rank 0 is unknown: set MASTER_ADDR"}};
    int v6 = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool has_v6 = v6 >= 0 && bind(v6, (struct sockaddr *)&loopback, sizeof loopback) == 0;
    close(v6);
    if (!has_v6) printf("SKIPPED: IPv6 (this system has none)\n");
    for (size_t i = 0; i < 2 * sizeof table / sizeof *table; i++) {
        const char *addr = table[i / 2].addr, *message = table[i / 2].message;
        if (strchr(addr, ':') && !has_v6) continue;
        job *j = job_new(2, message ? 2 : LONG, works); /* a wrong name is tried to the end */
        j->addr = addr;
        j->own[0].one_host = j->own[1].one_host = i % 2;
        job_start(j);
        job_wait(j, now(), 2.5);
        if (!message) assert_all_good(j);
        for (int r = 0; r < 2 && message; r++) assert_says(j, r, message);
        job_free(j);
    }
}

static void test_bad_options(void **state)
{
    (void)state;
    static const mc_control_options table[] = {
        {.rank = 2, .world_size = 2, .addr = "localhost", .port = 1, .timeout = 1},
        {.rank = -1, .world_size = 2, .addr = "localhost", .port = 1, .timeout = 1},
        {.rank = 0, .world_size = 0, .addr = "localhost", .port = 1, .timeout = 1},
        {.rank = 0, .world_size = 2, .addr = NULL, .port = 1, .timeout = 1},
        {.rank = 0, .world_size = 2, .addr = "localhost", .port = 0, .timeout = 1},
        {.rank = 0, .world_size = 2, .addr = "localhost", .port = 65536, .timeout = 1},
        {.rank = 0, .world_size = 2, .addr = "localhost", .port = 1, .timeout = 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mc_error error = {0};
        assert_null(mc_control_new(&error, &table[i]));
        assert_int_equal(error.status, MC_ERR_ARGUMENT);
        mc_error_clear(&error);
    }
}

/* NULL, and a world of one: nothing to do, nothing fails. */
static void test_alone(void **state)
{
    (void)state;
    mc_error error = {0};
    mc_control *one = mc_control_new(&error, &(mc_control_options){.world_size = 1, .timeout = 5});
    assert_non_null(one);
    mc_control *both[] = {NULL, one};
    for (int i = 0; i < 2; i++) {
        int local_rank, local_size;
        char blob[] = "id";
        assert_true(mc_control_share(both[i], &error, "a blob", blob, sizeof blob));
        mc_control_note(both[i], 1, 1, "all-reduce");
        mc_control_report(both[i], MC_ERR_IO, "mine alone");
        assert_false(mc_control_failed(both[i], &error));
        mc_control_place(both[i], &local_rank, &local_size);
        assert_int_equal(local_rank, 0);
        assert_int_equal(local_size, 1);
        mc_control_free(both[i]);
    }
    assert_false(mc_error_is_set(&error));
}

/* ---- deaths and silence ---------------------------------------------------------------------- */

/* Rank 0 knows that all are in operation 7. */
static bool knows_all(mc_control *c, const job *j)
{
    static const char place[] = "began all-reduce (operation 7)";
    char text[MC_CONTROL_TEXT_MAX];
    int count = 0;
    mc_control_explain(c, 1, 8, "barrier", true, text, sizeof text);
    for (const char *at = text; (at = strstr(at, place)); at += sizeof place - 1) count++;
    return count == j->world;
}

/* In operation 7, and ready when a heartbeat has said so: to rank 0 of all, to the others of
 * rank 0. */
static void waits_known(mc_control *c, job *j, int rank, mc_error *error)
{
    mc_control_note(c, 1, 6, "broadcast");
    mc_control_note(c, 1, 7, "all-reduce");
    while (!(rank == 0 ? knows_all(c, j) : own->heard) && !mc_control_failed(c, error))
        sleep_for(0.01);
    wait_in(c, j, rank, error);
}

/* Kills a rank while all are in operation 7. */
static void kill_one(job *j, int victim)
{
    char gone[64], here[80];
    double since = now();
    job_kill(j, victim);
    job_wait(j, since, SOON);
    snprintf(gone, sizeof gone, "rank %d (127.0.0.1:", victim);
    for (int r = 0; r < 4; r++) {
        if (r == victim) continue;
        snprintf(here, sizeof here, "[this is rank %d, last begun: all-reduce (operation 7)]", r);
        assert_says(j, r, gone);
        assert_says(j, r, "is gone without a goodbye");
        assert_says(j, r, "when last heard of, it was ");
        assert_says(j, r, " s after it began all-reduce (operation 7)");
        assert_says(j, r, here);
    }
    job_free(j);
}

static void test_kill(void **state)
{
    (void)state;
    job *jobs[2] = {job_new(4, LONG, waits_known), job_new(4, LONG, waits_known)};
    for (int i = 0; i < 2; i++) job_start(jobs[i]);
    for (int i = 0; i < 2; i++) job_wait_ready(jobs[i]);
    kill_one(jobs[0], 0);
    kill_one(jobs[1], 2);
}

/* Ranks that stand still, as they would in a debugger or on a frozen host. */
static bool stand_still(double timeout)
{
    job *jobs[2] = {job_new(3, timeout, waits), job_new(3, timeout, waits)};
    for (int i = 0; i < 2; i++) job_start(jobs[i]);
    bool begun = all_begin(jobs[0]) && all_begin(jobs[1]);
    double since = now();
    for (int i = 0; i < 2; i++) kill(jobs[i]->pids[i], SIGSTOP); /* rank 0 of one, 1 of the other */
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < 3; r++)
            while (r != i && !jobs[i]->ranks[r].done && now() < since + timeout / 2 + BUSY)
                sleep_for(0.01);
    for (int i = 0; i < 2; i++) {
        char still[32];
        job_kill(jobs[i], i);
        job_wait(jobs[i], since, timeout / 2);
        snprintf(still, sizeof still, "rank %d", i);
        for (int r = 0; r < 3 && begun; r++) {
            if (r == i) continue;
            assert_says(jobs[i], r, still);
            assert_says(jobs[i], r, "stands still: no heartbeat for ");
            assert_says(jobs[i], r, "all-reduce (operation 7)");
        }
        job_free(jobs[i]);
    }
    return begun;
}

static void test_stopped(void **state)
{
    (void)state;
    within_deadline(stand_still);
}

/* Freeing doesn't wait for one that stands still. */
static void test_free_beside_stopped(void **state)
{
    (void)state;
    job *jobs[2] = {job_new(3, LONG, waits), job_new(3, LONG, waits)};
    for (int i = 0; i < 2; i++) job_start(jobs[i]);
    for (int i = 0; i < 2; i++) job_wait_ready(jobs[i]);
    for (int i = 0; i < 2; i++) kill(jobs[i]->pids[i], SIGSTOP);
    double since = now();
    for (int i = 0; i < 2; i++) jobs[i]->finish = true;
    sleep_for(1);
    for (int i = 0; i < 2; i++) {
        job_kill(jobs[i], i);
        job_wait(jobs[i], since, 0.5);
        job_free(jobs[i]);
    }
}

/* Starts ranks of a job that waits for more; returns when rank 0 has let in all the others. */
static void gather(job *j, int ranks)
{
    double begun = now();
    for (int r = 0; r < ranks; r++) job_start_rank(j, r);
    for (int r = 1; r < ranks; r++)
        while (!j->ranks[r].let_in && !j->ranks[r].done && now() < begun + TOLD_LATE)
            sleep_for(0.002);
}

static void test_death_in_rendezvous(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++) {
        char who[32];
        job *j = job_new(4, TOLD_LATE, works);
        gather(j, 3);
        double since = now();
        job_kill(j, victim);
        job_wait(j, since, SOON);
        snprintf(who, sizeof who, "rank %d (", victim);
        for (int r = 0; r < 3; r++) {
            if (r == victim) continue;
            assert_says(j, r, who);
            assert_says(j, r, "is gone without a goodbye");
        }
        job_free(j);
    }
}

/* Whether rank 0 notices, before the deadline of the rendezvous, a rank 1 that stands still. */
static bool is_noticed(double timeout)
{
    job *j = job_new(3, timeout, works);
    gather(j, 2);
    double since = now();
    kill(j->pids[1], SIGSTOP);
    while (!j->ranks[0].done && now() < since + timeout + BUSY) sleep_for(0.01);
    bool late = strstr(j->ranks[0].message, "within") != NULL; /* that deadline came first */
    if (!late) assert_says(j, 0, "rank 1 stands still");
    job_kill(j, 1);
    job_wait(j, since, timeout);
    job_free(j);
    return !late;
}

static void test_stopped_in_rendezvous(void **state)
{
    (void)state;
    within_deadline(is_noticed);
}

/* ---- errors and deadlines -------------------------------------------------------------------- */

static void test_error(void **state)
{
    (void)state;
    for (int origin = 0; origin < 2; origin++) {
        char from[64];
        job *j = job_new(4, LONG, waits);
        j->parts[origin] = reports;
        job_start(j);
        for (int r = 0; r < 4; r++)
            while (r != origin && !j->ranks[r].ready && !j->ranks[r].done) sleep_for(0.002);
        job_wait(j, now(), SOON);
        snprintf(from, sizeof from, "rank %d: data.jsonl:7: bad row xx", origin);
        for (int r = 0; r < 4; r++) {
            assert_says(j, r, r == origin ? "data.jsonl:7: bad row xx" : from);
            assert_says(j, r, "all-reduce");
            assert_int_equal(j->ranks[r].status, MC_ERR_FORMAT);
            assert_null(strstr(j->ranks[r].message, "a second error"));
        }
        job_free(j);
    }
}

/* Reports and is gone at once: the error arrives, not the death. */
static void reports_and_goes(mc_control *c, job *j, int rank, mc_error *error)
{
    (void)j, (void)rank, (void)error;
    mc_control_report(c, MC_ERR_NOMEM, "out of memory for logits");
}

static void test_last_words(void **state)
{
    (void)state;
    for (int origin = 0; origin < 2; origin++) {
        job *j = job_new(3, LONG, waits);
        j->parts[origin] = reports_and_goes;
        job_start(j);
        job_wait(j, now(), SOON);
        for (int r = 0; r < 3; r++)
            if (r != origin) assert_says(j, r, "out of memory for logits");
        job_free(j);
    }
}

/* It names the rank that is expected, or none, and no other. */
static bool is_answer(const job *j, const char *text)
{
    if (!*j->answer) return !*text;
    return strncmp(text, j->answer, strlen(j->answer)) == 0 && strstr(text, j->where) &&
           !strstr(text, "; rank ");
}

/* Keeps a deadline of its own for operation 7. Asks until what is answered is as expected, or
 * TOLD_LATE has passed: heartbeats say where the others are. */
static void begins_last(mc_control *c, job *j, int rank, mc_error *error)
{
    char text[MC_CONTROL_TEXT_MAX];
    mc_control_note(c, 1, 6, "all-gather");
    mc_control_note(c, 1, 7, "all-reduce");
    mc_control_note(c, 2, 3, "broadcast"); /* of another group: tells nothing */
    j->ranks[rank].ready = true;
    double until = now() + TOLD_LATE;
    do {
        sleep_for(0.05);
        if (mc_control_failed(c, error)) return;
        mc_control_explain(c, 1, 7, "all-reduce", true, text, sizeof text);
    } while (!is_answer(j, text) && now() < until);
    mc_error_set(error, MC_ERR_IO, "all-reduce 7 is late; %s", text);
    j->answered++;
    while (j->answered < j->askers && now() < until) sleep_for(0.002);
}

static void begins_older(mc_control *c, job *j, int rank, mc_error *error)
{
    mc_control_note(c, 1, 6, "all-gather");
    mc_control_note(c, 2, 99, "broadcast");
    wait_in(c, j, rank, error);
}

static void begins_other(mc_control *c, job *j, int rank, mc_error *error)
{
    mc_control_note(c, 1, 7, "all-gather");
    wait_in(c, j, rank, error);
}

/* Leaves the job, in good order. */
static void returns(mc_control *c, job *j, int rank, mc_error *error)
{
    (void)error;
    mc_control_note(c, 1, 6, "broadcast");
    j->ranks[rank].ready = true;
}

/* What is said of the rank that keeps the others' operation 7 from ending. */
static void test_explain(void **state)
{
    (void)state;
    static const struct {
        int rank;
        part *part;
        const char *how, *where;
    } table[] = {
        {0, begins_older, "has not come to it, ", " s after it began broadcast (operation 99)"},
        {1, begins_older, "has not come to it, ", " s after it began broadcast (operation 99)"},
        {2, wait_in, "has not come to it, before its first operation", ""},
        {0, begins_other, "is in another operation: all-gather (operation 7), ", "all-gather"},
        {1, begins_other, "is in another operation: all-gather (operation 7), ", "all-gather"},
        {2, returns, "has left the job, ", " s after it began broadcast (operation 6)"},
        {1, begins_last, NULL, NULL}}; /* none does */
    enum { JOBS = sizeof table / sizeof *table };
    job *jobs[JOBS];
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = job_new(3, LONG, begins_last);
        jobs[i]->parts[table[i].rank] = table[i].part;
        jobs[i]->where = table[i].where;
        if (table[i].how)
            snprintf(jobs[i]->answer, sizeof jobs[i]->answer, "rank %d %s", table[i].rank,
                     table[i].how);
        jobs[i]->askers = table[i].how ? 2 : 3;
        job_start(jobs[i]);
    }
    double since = now();
    for (int i = 0; i < JOBS; i++) {
        char who[96];
        int kept = table[i].rank;
        while (jobs[i]->answered < jobs[i]->askers && now() < since + TOLD_LATE + BUSY)
            sleep_for(0.01);
        jobs[i]->finish = true; /* for the rank that did not ask */
        job_wait(jobs[i], since, TOLD_LATE);
        snprintf(who, sizeof who, "is late; rank %d %s", kept, table[i].how ? table[i].how : "");
        for (int r = 0; r < 3; r++) {
            if (table[i].how && r == kept) continue;
            assert_says(jobs[i], r, table[i].how ? who : "is late; ");
            if (table[i].how) assert_says(jobs[i], r, table[i].where);
            if (!table[i].how) assert_null(strstr(jobs[i]->ranks[r].message, "; rank "));
        }
        job_free(jobs[i]);
    }
}

/* Ranks that leave one after the other, without anything left to do together. */
static void leaves_in_turn(mc_control *c, job *j, int rank, mc_error *error)
{
    mc_control_note(c, 1, 1, "all-reduce");
    sleep_for(0.2 * rank);
    mc_control_failed(c, error);
    j->ranks[rank].ready = true;
}

static void test_orderly_end(void **state)
{
    (void)state;
    job *j = job_new(4, LONG, leaves_in_turn);
    job_start(j);
    job_wait(j, now(), 1.5);
    assert_all_good(j);
    job_free(j);
}

static void does_not_share(mc_control *c, job *j, int rank, mc_error *error)
{
    wait_in(c, j, rank, error);
}

static void shares(mc_control *c, job *j, int rank, mc_error *error)
{
    char id[128] = {0};
    j->ranks[rank].ready = true;
    mc_control_share(c, error, "the NCCL id", id, sizeof id);
}

static void shares_less(mc_control *c, job *j, int rank, mc_error *error)
{
    char id[64] = {0};
    j->ranks[rank].ready = true;
    if (mc_control_share(c, error, "the NCCL id", id, sizeof id)) wait_in(c, j, rank, error);
}

static const struct {
    int rank;
    part *part;
    const char *message;
} not_shared[] = {{2, does_not_share, "the NCCL id: not asked for by rank 2 within "},
                  {0, does_not_share, "the NCCL id: rank 0 has not given it to rank"},
                  {2, returns, "the NCCL id: rank 2 has left the job without it"},
                  {0, returns, "the NCCL id: rank 0 has not given it to rank"}};

static bool does_not_get_the_id(double timeout)
{
    enum { JOBS = sizeof not_shared / sizeof *not_shared };
    bool came = true;
    job *jobs[JOBS];
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = job_new(3, timeout, shares);
        jobs[i]->parts[not_shared[i].rank] = not_shared[i].part;
        job_start(jobs[i]);
    }
    double since = now();
    for (int i = 0; i < JOBS; i++) {
        int rank = not_shared[i].rank;
        bool joined = true;
        job_wait(jobs[i], since, 2 * timeout); /* a rendezvous, and what follows */
        for (int r = 0; r < 3; r++) joined = joined && jobs[i]->ranks[r].joined;
        for (int r = 0; r < 3 && joined; r++)
            if (rank ? r == 0 : r > 0) assert_says(jobs[i], r, not_shared[i].message);
        came = came && joined;
        job_free(jobs[i]);
    }
    return came;
}

static void test_share_fails(void **state)
{
    (void)state;
    within_deadline(does_not_get_the_id);
    job *j = job_new(2, LONG, shares);
    j->parts[1] = shares_less;
    job_start(j);
    job_wait(j, now(), SOON);
    assert_says(j, 1, "the NCCL id: rank 0 shares 128 bytes, rank 1 expected 64");
    job_free(j);
}

/* ---- strangers ------------------------------------------------------------------------------- */

enum { MOST_OPEN = 256 };
static int left_open[MOST_OPEN], open_count; /* connections of a stranger */

static void say(int port, const void *bytes, size_t size, bool close_at_once)
{
    int fd = connect_port(port);
    ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
    assert_int_equal(sent, (ssize_t)size);
    assert_true(open_count < MOST_OPEN);
    if (close_at_once)
        close(fd);
    else
        left_open[open_count++] = fd;
}

/* Until rank 0 has closed what the stranger left open, for nothing is said there. */
static void wait_until_dropped(void)
{
    for (int i = 0; i < open_count; i++) {
        char byte;
        struct pollfd one = {.fd = left_open[i], .events = POLLIN};
        while (poll(&one, 1, 1000 * TOLD_LATE) > 0 && recv(left_open[i], &byte, 1, 0) > 0) continue;
        close(left_open[i]);
    }
    open_count = 0;
}

#define FRAME(type, size) "MCc2" type "\0" size "\0"

static void annoy(int port)
{
    static const struct {
        const char *bytes;
        size_t size;
    } table[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27},
        {"M", 1},
        {"", 0},
        {"MCc2\1\0\xff\xff", 8},                 /* too large */
        {FRAME("\1", "\0"), 8},                  /* HELLO of nothing */
        {FRAME("\5", "\2") "xx", 10},            /* BEAT before HELLO */
        {FRAME("\x63", "\2") "xx", 10},          /* no such type */
        {FRAME("\1", "\x18") "01234567\2\0", 18} /* half a HELLO */
    };
    for (size_t i = 0; i < 2 * sizeof table / sizeof *table; i++)
        say(port, table[i / 2].bytes, table[i / 2].size, i % 2);
    uint8_t noise[9000];
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)(i * 2654435761u >> 13);
    say(port, noise, sizeof noise, false);
    for (int i = 0; i < 100; i++) say(port, "", 0, false); /* more than are kept */
}

static void close_all(void)
{
    for (int fd = 3; fd < 256; fd++) close(fd);
}

/* Waits for the stranger, which does not come so far if an assertion fails in it. */
static void wait_until_set(const atomic_bool *flag)
{
    double begun = now();
    for (; !*flag; sleep_for(0.01))
        if (now() - begun > LONG + TOLD_LATE) fail_msg("the stranger failed");
}

/* Strangers during the rendezvous and during the run do no harm. They are a process's, so that all
 * their connections end with it. */
static void test_strangers(void **state)
{
    (void)state;
    job *j = job_new(3, 12, waits); /* half of it passes until silent ones are dropped */
    j->prepare[0] = j->prepare[1] = j->prepare[2] = close_all;
    job_start_rank(j, 0);
    job_start_rank(j, 1);
    pid_t stranger = fork_child();
    if (stranger == 0) {
        annoy(j->port);
        j->ranks[7].ready = true;
        job_wait_ready(j);
        annoy(j->port);
        wait_until_dropped();
        j->ranks[7].done = true;
        for (;;) pause();
    }
    wait_until_set(&j->ranks[7].ready);
    job_start_rank(j, 2);
    wait_until_set(&j->ranks[7].done);
    j->finish = true;
    job_wait(j, now(), SOON);
    kill(stranger, SIGKILL);
    waitpid(stranger, NULL, 0);
    assert_all_good(j);
    job_free(j);
}

/* A rank of the job that speaks nonsense after a proper HELLO: named. */
static void test_bad_rank(void **state)
{
    (void)state;
    uint8_t hello[32] = "MCc2\1\0\x18";
    hello[8] = 4711 & 255, hello[9] = 4711 >> 8;
    hello[16] = 2, hello[20] = 1;
    job *j = job_new(2, LONG, waits);
    job_start_rank(j, 0);
    mc_conn *conn = mc_conn_new(connect_port(j->port));
    assert_non_null(conn);
    assert_int_equal(prove_by_hand(conn, &j->secret), MC_PROOF_DONE);
    mc_conn_send_bytes(conn, hello, sizeof hello);
    while (!j->ranks[0].ready) sleep_for(0.01);
    mc_conn_send_bytes(conn, "what?\n\n\n", 8);
    job_wait(j, now(), SOON);
    mc_conn_free(conn);
    assert_says(j, 0, "rank 1 (127.0.0.1:");
    assert_says(j, 0, "it does not speak our protocol");
    job_free(j);
}

/* Something else listens on the job's port: `answer` is what it says to whoever connects. */
static void run_on_taken_port(const char *answer, const char *message, double limit)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t size = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(fd, 100), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &size), 0);
    job *j = job_new(2, 1, works);
    j->port = ntohs(addr.sin_port);
    double since = now();
    job_start(j);
    while (answer && !j->ranks[1].done) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (poll(&one, 1, 20) <= 0) continue;
        int client = accept(fd, NULL, NULL);
        send(client, answer, strlen(answer), MSG_NOSIGNAL);
        close(client);
    }
    job_wait(j, since, limit);
    close(fd);
    assert_says(j, 0, "Address already in use");
    assert_says(j, 0, "set MC_MASTER_PORT");
    assert_says(j, 1, message);
    job_free(j);
}

static void test_taken_port(void **state)
{
    (void)state;
    run_on_taken_port(NULL, "it takes the connection but does not answer", 1.3);
    run_on_taken_port("HTTP/1.1 400 Bad Request\r\n\r\n",
                      "is another program: it does not speak our protocol", 1.3);
    run_on_taken_port("", "cannot reach rank 0", 1.5);
}

/* The port becomes free in time: that of a job that is just ending. */
static void test_port_comes_free(void **state)
{
    (void)state;
    job *j = job_new(2, LONG, works);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)j->port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* beside what keeps the port */
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(fd, 100), 0);
    j->prepare[0] = j->prepare[1] = close_all;
    job_start(j);
    sleep_for(0.5);
    close(fd);
    job_wait(j, now(), 2);
    assert_all_good(j);
    job_free(j);
}

/* ---- memory that runs out -------------------------------------------------------------------- */

#ifdef MC_FAULT_INJECTION
static long fault_nth;
static void fail_one_allocation(void) { mc_fault_fail_at(fault_nth, false); }

/* Whether the rank fails for want of memory; *late: the two have not met within the deadline. */
static bool runs_out(int rank, double timeout, bool *late)
{
    job *j = job_new(2, timeout, works);
    j->prepare[rank] = fail_one_allocation;
    job_start(j);
    job_wait(j, now(), 2 * timeout);
    bool failed = j->ranks[rank].status == MC_ERR_NOMEM;
    *late = !failed && (!j->ranks[0].joined || !j->ranks[1].joined);
    if (failed) assert_int_not_equal(j->ranks[1 - rank].status, MC_OK);
    if (!failed && !*late) assert_all_good(j);
    job_free(j);
    return failed;
}

/* Each allocation of a rank fails in turn: a clean error, or, where there is another try (memory
 * for a connection), none at all. */
static int run_faults(int rank)
{
    int failures = 0;
    for (fault_nth = 1; fault_nth <= 8; fault_nth++) {
        bool late, failed = runs_out(rank, 0.5, &late);
        for (double timeout = 2; late; timeout *= 4) {
            assert_true(timeout < 100);
            failed = runs_out(rank, timeout, &late);
        }
        failures += failed;
    }
    return failures;
}

/* In this process, where leaks are found. */
static void run_faults_alone(int rank)
{
    for (long nth = 1; nth <= 8; nth++) {
        mc_error error = {0};
        mc_control_options o = {.rank = rank, .world_size = 2, .addr = "127.0.0.1"};
        o.port = free_port();
        o.timeout = 0.1;
        mc_fault_fail_at(nth, true);
        assert_null(mc_control_new(&error, &o));
        mc_fault_fail_at(0, false);
        assert_true(error.status == MC_ERR_NOMEM || error.status == MC_ERR_IO);
        mc_error_clear(&error);
    }
}
#endif

static void test_faults(void **state)
{
    (void)state;
#ifdef MC_FAULT_INJECTION
    assert_int_equal(run_faults(0), 6); /* the control, 4 for the service, the lookup */
    assert_int_equal(run_faults(1), 3); /* the control, the client, the lookup */
    for (int rank = 0; rank < 2; rank++) run_faults_alone(rank);
#else
    printf("SKIPPED: failing allocations (needs MC_FAULT_INJECTION)\n");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_one_too_few),
        cmocka_unit_test(test_no_rank_0),
        cmocka_unit_test(test_wrong_world),
        cmocka_unit_test(test_other_job),
        cmocka_unit_test(test_same_rank),
        cmocka_unit_test(test_many_jobs),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_free_beside_stopped),
        cmocka_unit_test(test_death_in_rendezvous),
        cmocka_unit_test(test_stopped_in_rendezvous),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_orderly_end),
        cmocka_unit_test(test_share_fails),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_bad_rank),
        cmocka_unit_test(test_taken_port),
        cmocka_unit_test(test_port_comes_free),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
