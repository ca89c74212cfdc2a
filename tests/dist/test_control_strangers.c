/* Who reaches the control port without the job's secret: gets no rank, no answer, and harms no job.
 * Nor does who has taken an address of rank 0's, or a name in the folder of the secret's file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <sys/stat.h>
#include "tests/dist/control_job.h"

enum { CHALLENGE = 4 + MC_PROOF_RANDOM, HELLO = MC_FRAME_HEADER + 24 };

/* Linked in place of the library's function: libcrypto is there, or it is not. */
static bool no_crypto;
void __real_mc_hmac_load(mc_hmac *h);
void __wrap_mc_hmac_load(mc_hmac *h);
void __wrap_mc_hmac_load(mc_hmac *h)
{
    __real_mc_hmac_load(h);
    if (!no_crypto && !h->hmac) printf("SKIPPED: libcrypto (this system has none)\n");
    if (no_crypto) *h = (mc_hmac){0};
}

static void works(mc_control *c, job *j, int rank, mc_error *error)
{
    int number = rank == 0 ? j->port : -1;
    if (mc_control_share(c, error, "a number", &number, sizeof number) && number != j->port)
        mc_error_set(error, MC_ERR_STATE, "rank 0 shares %d", number);
    mc_control_note(c, 1, 1, "all-reduce");
    j->ranks[rank].ready = true;
}

static void job_works(job *j)
{
    job_start(j);
    job_wait(j, now(), 3);
    assert_all_good(j);
    job_free(j);
}

static mc_job_secret other_secret(void)
{
    mc_job_secret s = {.size = MC_SECRET_MIN};
    memset(s.bytes, 0x5a, sizeof s.bytes);
    return s;
}

/* ---- a stranger at rank 0's port ------------------------------------------------------------- */

/* "MCc2", HELLO, 24 bytes: of rank 1 of 2 in the tests' job. */
static void write_hello(uint8_t hello[HELLO])
{
    memset(hello, 0, HELLO);
    memcpy(hello, "MCc2\1\0\x18", 7);
    hello[8] = 4711 & 255, hello[9] = 4711 >> 8;
    hello[16] = 2, hello[20] = 1;
}

/* Sends and reads until the other end closes; how many bytes it has said. *took: seconds. */
static size_t speak(int port, const void *bytes, size_t size, double *took)
{
    char answer[512];
    size_t used = 0;
    double begun = now();
    int fd = connect_port(port);
    assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), size);
    for (;;) {
        ssize_t got = recv(fd, answer, sizeof answer, 0);
        if (got <= 0) break;
        used += (size_t)got;
    }
    close(fd);
    *took = now() - begun;
    return used;
}

/* Says what a rank would say, but for the proof; it receives nothing but the challenge. The job
 * starts with its true rank 1. */
static void be_refused(const void *bytes, size_t size)
{
    double took;
    job *j = job_new(2, 12, works);
    job_start_rank(j, 0);
    assert_int_equal(speak(j->port, bytes, size, &took), CHALLENGE);
    assert_true(took >= 0.95); /* a delay after failures */
    job_start_rank(j, 1);
    job_wait(j, now(), 3);
    assert_all_good(j);
    job_free(j);
}

static void test_no_proof(void **state)
{
    (void)state;
    uint8_t hello[HELLO], whole[CHALLENGE + MC_PROOF_SIZE + HELLO] = "MCp1";
    write_hello(hello);
    be_refused(hello, sizeof hello);
    memcpy(whole + sizeof whole - HELLO, hello, HELLO); /* after a challenge and a proof of zeros */
    be_refused(whole, sizeof whole);
    be_refused("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
}

/* A process with another secret says that it is rank 1: it has no effect on the job, and fails long
 * before its deadline. */
static void test_wrong_secret(void **state)
{
    (void)state;
    mc_job_secret other = other_secret();
    job *j = job_new(2, 600, waits);
    j->own[3] = (mc_control_options){.rank = 1, .secret = &other, .timeout = 600};
    job_start_rank(j, 0);
    job_start_rank(j, 3);
    double since = now();
    while (!j->ranks[3].done && now() < since + 5 + BUSY) sleep_for(0.01);
    assert_true(j->ranks[3].done);
    assert_says(j, 3, "rank 1 cannot reach rank 0 at 127.0.0.1:");
    assert_says(j, 3,
                "has another secret (MC_JOB_SECRET), or the port is another job's: its "
                "connection closed");
    assert_false(j->ranks[0].done);
    job_start_rank(j, 1);
    job_wait_ready(j);
    j->finish = true;
    job_wait(j, now(), SOON);
    assert_all_good(j);
    job_free(j);
}

/* Rank 0 says who was turned away, to those alone that belong to the job. */
static bool named(double timeout)
{
    mc_job_secret other = other_secret();
    job *j = job_new(3, timeout, works);
    j->own[1].secret = &other;
    job_start(j);
    job_wait(j, now(), timeout + 1);
    bool met = !strstr(j->ranks[1].message, "Connection refused") &&
               strstr(j->ranks[2].message, "rank 1 has not come");
    if (met) {
        assert_says(j, 1, "does not take this rank's proof");
        for (int r = 0; r < 3; r += 2) {
            assert_says(j, r, "rank 1 has not come (127.0.0.1:");
            assert_says(j, r, "was turned away: it does not know the job's secret");
        }
    }
    job_free(j);
    return met;
}

static void test_named(void **state)
{
    (void)state;
    within_deadline(named);
}

/* Carries bytes between two sockets, one step. Those from `a` are recorded. */
static void carry(int a, int b, uint8_t *record, size_t room, size_t *used)
{
    struct pollfd fds[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
    uint8_t bytes[256];
    if (poll(fds, 2, 2) <= 0) return;
    ssize_t got = fds[0].revents ? recv(a, bytes, sizeof bytes, MSG_DONTWAIT) : 0;
    if (got > 0) {
        assert_true(*used + (size_t)got <= room);
        memcpy(record + *used, bytes, (size_t)got);
        *used += (size_t)got;
        assert_int_equal(send(b, bytes, (size_t)got, MSG_NOSIGNAL), got);
    }
    got = fds[1].revents ? recv(b, bytes, sizeof bytes, MSG_DONTWAIT) : 0;
    if (got > 0) assert_int_equal(send(a, bytes, (size_t)got, MSG_NOSIGNAL), got);
}

/* A true rank's way into a job, recorded on the wire, lets nobody into another job of the same
 * secret, nor into the same one. */
static void test_replay(void **state)
{
    (void)state;
    uint8_t record[512];
    size_t used = 0;
    int ends[2];
    mc_hmac hmac;
    double took;
    mc_hmac_load(&hmac);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    job *j = job_new(3, 12, works);
    job_start_rank(j, 0);
    int wire = connect_port(j->port);
    mc_conn *rank = mc_conn_new(ends[0]);
    assert_non_null(rank);
    mc_proof_begin(rank, false);
    while (mc_proof_go_on(rank, &hmac, &j->secret) < MC_PROOF_DONE) {
        carry(ends[1], wire, record, sizeof record, &used);
        mc_conn_receive(rank);
    }
    assert_int_equal(rank->proof.state, MC_PROOF_DONE);
    assert_int_equal(used, CHALLENGE + MC_PROOF_SIZE);
    assert_int_equal(speak(j->port, record, used, &took), CHALLENGE);
    mc_conn_free(rank);
    close(ends[1]), close(wire);
    for (int r = 1; r < 3; r++) job_start_rank(j, r);
    job_wait(j, now(), 3);
    assert_all_good(j);
    job_free(j);
}

/* ---- many strangers -------------------------------------------------------------------------- */

/* Open files of a process. */
static int count_fds(pid_t pid)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

/* Connections that say nothing, garbage, a challenge alone, or a wrong proof; up to 400 of them are
 * open at a time. */
static void flood(const job *j, int count)
{
    enum { OPEN = 400 };
    static const char challenge[CHALLENGE + MC_PROOF_SIZE] = "MCp1", noise[200] = "\xff what?";
    static const size_t sizes[] = {0, sizeof noise, CHALLENGE, sizeof challenge};
    int open_fds[OPEN] = {0}, most = 0;
    for (int i = 0; i < count; i++) {
        int *fd = &open_fds[i % OPEN];
        if (*fd) close(*fd);
        *fd = connect_port(j->port);
        ssize_t sent = send(*fd, i % 4 == 1 ? noise : challenge, sizes[i % 4], MSG_NOSIGNAL);
        assert_true(sent >= 0 || errno == EPIPE || errno == ECONNRESET); /* it gave way to others */
        int fds = i % 100 == 99 ? count_fds(j->pids[0]) : 0;
        if (fds > most) most = fds;
    }
    if (most > 200) fail_msg("rank 0 has %d files open, expected at most 200", most);
}

static void test_flood(void **state)
{
    (void)state;
    job *j = job_new(3, 30, waits);
    job_start_rank(j, 0);
    job_start_rank(j, 1);
    pid_t stranger = fork_child();
    if (stranger == 0) {
        flood(j, 3000);
        j->ranks[7].ready = true;
        for (;;) pause();
    }
    sleep_for(0.3);
    job_start_rank(j, 2); /* while they come */
    job_wait_ready(j);
    while (!j->ranks[7].ready && kill(stranger, 0) == 0) {
        assert_false(j->ranks[0].done);
        assert_int_equal(waitpid(stranger, NULL, WNOHANG), 0);
        sleep_for(0.01);
    }
    j->finish = true;
    job_wait(j, now(), SOON);
    kill(stranger, SIGKILL);
    waitpid(stranger, NULL, 0);
    assert_all_good(j);
    job_free(j);
}

/* More silent connections than rank 0 keeps, from before the last rank comes. */
static void test_silent(void **state)
{
    (void)state;
    enum { SILENT = 300 };
    int fds[SILENT];
    job *j = job_new(2, 30, works);
    job_start_rank(j, 0);
    for (int i = 0; i < SILENT; i++) fds[i] = connect_port(j->port);
    job_start_rank(j, 1);
    job_wait(j, now(), 5);
    assert_all_good(j);
    for (int i = 0; i < SILENT; i++) close(fds[i]);
    job_free(j);
}

/* ---- a stranger in rank 0's place ------------------------------------------------------------ */

/* Listens on an address of this host that ranks try before rank 0's; a process that dies with the
 * test. It echoes what it is sent, or says the text. */
static pid_t take_place(uint32_t addr, int port, const char *answer)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(addr);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 100), 0);
    pid_t pid = fork_child();
    for (char bytes[256]; pid == 0;) {
        int fd = accept(listener, NULL, NULL);
        if (answer) send(fd, answer, strlen(answer), MSG_NOSIGNAL);
        for (ssize_t got; !answer && (got = recv(fd, bytes, sizeof bytes, 0)) > 0;)
            send(fd, bytes, (size_t)got, MSG_NOSIGNAL);
        if (answer && *answer) close(fd); /* else it is silent */
    }
    close(listener);
    return pid;
}

/* A stranger has one of the two addresses: the ranks find rank 0 at the other. */
static void test_impostor(void **state)
{
    (void)state;
    static const char *const answers[] = {NULL, "", "HTTP/1.1 400 Bad Request\r\n\r\n", "MCp1"};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        job *j = job_new(3, 10, works);
        pid_t stranger = take_place(INADDR_LOOPBACK + 1, j->port, answers[i]);
        j->addr = "127.0.0.2,127.0.0.1";
        for (int r = 0; r < 3; r++) j->own[r].one_host = true;
        job_works(j);
        kill(stranger, SIGKILL);
        waitpid(stranger, NULL, 0);
    }
}

/* One that sends back a rank's own words does not pass for rank 0. */
static bool echoed(double timeout)
{
    job *j = job_new(2, timeout, works);
    pid_t stranger = take_place(INADDR_LOOPBACK, j->port, NULL);
    job_start_rank(j, 1);
    job_wait(j, now(), timeout);
    bool met = strstr(j->ranks[1].message, "what answers is another program");
    if (met)
        assert_says(j, 1, "what answers is another program: it does not know the job's secret");
    kill(stranger, SIGKILL);
    waitpid(stranger, NULL, 0);
    job_free(j);
    return met;
}

static void test_echo(void **state)
{
    (void)state;
    within_deadline(echoed);
}

/* ---- without libcrypto ----------------------------------------------------------------------- */

static bool refused_without_crypto(double timeout)
{
    mc_job_secret other = other_secret();
    job *j = job_new(2, timeout, works);
    j->own[1].secret = &other;
    job_start(j);
    job_wait(j, now(), timeout + 1);
    bool met = strstr(j->ranks[0].message, "was turned away");
    if (met) assert_says(j, 0, "it does not know the job's secret");
    job_free(j);
    return met;
}

static void test_no_crypto(void **state)
{
    (void)state;
    no_crypto = true;
    job_works(job_new(3, 10, works));
    within_deadline(refused_without_crypto);
    job *j = job_new(2, 2, works);
    j->addr = "192.0.2.1"; /* for examples: nobody's */
    job_start(j);
    job_wait(j, now(), 2);
    for (int r = 0; r < 2; r++) assert_says(j, r, "192.0.2.1 can be reached from other hosts, so ");
    for (int r = 0; r < 2; r++)
        assert_says(j, r, "need libcrypto (OpenSSL), which is not installed");
    no_crypto = false;
    job_free(j);
}

/* ---- the secret's file ----------------------------------------------------------------------- */

static char folder[200];

static int use_folder(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.150s/mc-secret-XXXXXX", parent ? parent : P_tmpdir);
    if (!mkdtemp(folder)) return -1;
    return setenv("XDG_RUNTIME_DIR", folder, 1);
}

static int remove_folder(void **state)
{
    char command[256];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* A job whose secret is in a file; its path. */
static job *file_job(int world, double timeout, part *all, char path[300])
{
    job *j = job_new(world, timeout, all);
    j->secret.size = 0;
    snprintf(path, 300, "%s/modelcenter-%016x-%d", folder, 4711, j->port);
    return j;
}

static void put_file(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static void assert_file(const char *path, const char *text)
{
    char found[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(found, sizeof found, file));
    fclose(file);
    assert_string_equal(found, text);
}

/* The last rank comes first, finds what lies there, and waits for rank 0. Then nothing is left. */
static void starts_over(job *j, const char *path)
{
    job_start_rank(j, 1);
    sleep_for(0.2);
    job_start_rank(j, 0);
    job_wait(j, now(), 5);
    assert_all_good(j);
    assert_int_equal(access(path, F_OK), -1);
    job_free(j);
}

static const char stale[] = "0123456789abcdef0123456789abcdef";

static void test_file(void **state)
{
    (void)state;
    char path[300], victim[300];
    snprintf(victim, sizeof victim, "%s/victim", folder);
    for (int i = 0; i < 6; i++) {
        job *j = file_job(2, 20, works, path);
        if (i == 1) put_file(path, stale, 0600); /* of a job that was killed */
        if (i == 2) put_file(path, stale, 0644);
        if (i == 3) put_file(path, "short", 0600);
        if (i == 4) put_file(victim, stale, 0600);
        if (i == 4) assert_int_equal(symlink(victim, path), 0);
        if (i == 5) put_file(path, stale, 0600);
        if (i == 5 && geteuid() == 0) assert_int_equal(chown(path, 1, 1), 0);
        starts_over(j, path);
    }
    assert_file(victim, stale);
}

/* A job that is killed while it waits leaves its file, and one that gives up does not. */
static void test_file_left(void **state)
{
    (void)state;
    char path[300];
    struct stat info;
    job *j = file_job(2, 30, works, path);
    job_start_rank(j, 0);
    while (access(path, F_OK) != 0) sleep_for(0.002);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    job_kill(j, 0);
    assert_int_equal(access(path, F_OK), 0);
    starts_over(j, path);
    j = file_job(2, 0.5, works, path);
    job_start_rank(j, 0);
    job_wait(j, now(), 0.5);
    assert_says(j, 0, "rank 1 has not come");
    assert_int_equal(access(path, F_OK), -1);
    job_free(j);
}

/* Two jobs of one number, as torchrun's are where no run is named. */
static void test_two_jobs(void **state)
{
    (void)state;
    char path[300];
    job *jobs[2];
    for (int i = 0; i < 2; i++) jobs[i] = file_job(3, 20, waits, path);
    for (int i = 0; i < 2; i++) job_start(jobs[i]);
    for (int i = 0; i < 2; i++) job_wait_ready(jobs[i]);
    for (int i = 0; i < 2; i++) jobs[i]->finish = true;
    for (int i = 0; i < 2; i++) {
        job_wait(jobs[i], now(), SOON);
        assert_all_good(jobs[i]);
        job_free(jobs[i]);
    }
}

/* What a rank says that finds no secret. */
static void test_no_file(void **state)
{
    (void)state;
    char path[300];
    job *j = file_job(2, 0.5, works, path);
    job_start_rank(j, 1);
    job_wait(j, now(), 0.5);
    assert_says(j, 1, path);
    assert_says(j, 1, "No such file or directory");
    job_free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_proof),  cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_named),     cmocka_unit_test(test_replay),
        cmocka_unit_test(test_flood),     cmocka_unit_test(test_silent),
        cmocka_unit_test(test_impostor),  cmocka_unit_test(test_echo),
        cmocka_unit_test(test_no_crypto), cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_left), cmocka_unit_test(test_two_jobs),
        cmocka_unit_test(test_no_file),
    };
    return cmocka_run_group_tests(tests, use_folder, remove_folder);
}
