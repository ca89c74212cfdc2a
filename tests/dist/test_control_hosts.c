/* The control channel between two hosts: names, addresses, a death over there, and a cable that is
 * cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/dist/control_job.h"
#include "tests/dist/two_hosts.h"

/* Two ranks on each host. */
static void start_two(void *argument)
{
    job *j = argument;
    int first = strcmp(j->here, "mc-host-1") == 0 ? 2 : 0;
    for (int r = first; r < first + 2; r++) job_start_rank(j, r);
}

/* A job at an address of the first host, and the hosts, which are made after it so that they share
 * its memory. NULL: skipped. */
static two_hosts *make(job **j, double timeout, part *all, const char *addr)
{
    *j = job_new(4, timeout, all);
    (*j)->addr = addr;
    two_hosts *hosts = two_hosts_new();
    if (!hosts) job_free(*j);
    return hosts;
}

static void start_on_hosts(two_hosts *hosts, job *j)
{
    for (int i = 0; i < 2; i++) {
        snprintf(j->here, sizeof j->here, "mc-host-%d", i);
        host_call(hosts, i, start_two, j);
    }
}

static void meets(mc_control *c, job *j, int rank, mc_error *error)
{
    char id[128] = "";
    if (rank == 0) memset(id, 7, sizeof id);
    mc_control_share(c, error, "the NCCL id", id, sizeof id);
    j->ranks[rank].ready = id[127] == 7;
}

static void meet_at(const char *addr)
{
    job *j;
    two_hosts *hosts = make(&j, LONG, meets, addr);
    if (!hosts) skip();
    bool has_v6 = host_run(hosts, 1, "ip -6 addr show dev mc1 | grep -q fd77::2") == 0;
    if (strchr(addr, ':') && !has_v6) {
        printf("SKIPPED: IPv6 between hosts (this system has none)\n");
        two_hosts_free(hosts);
        job_free(j);
        skip();
    }
    start_on_hosts(hosts, j);
    job_wait(j, now(), 3);
    assert_all_good(j);
    for (int r = 0; r < 4; r++) {
        assert_true(j->ranks[r].ready);
        assert_int_equal(j->ranks[r].local_rank, r % 2);
        assert_int_equal(j->ranks[r].local_size, 2);
    }
    two_hosts_free(hosts);
    job_free(j);
}

static void test_meet(void **state)
{
    (void)state;
    meet_at("10.77.0.1");
}

static void test_meet_ipv6(void **state)
{
    (void)state;
    meet_at("fd77::1");
}

/* ---- where rank 0 listens -------------------------------------------------------------------- */

static bool answers(const char *addr, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, addr, &at.sin_addr);
    bool connected = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return connected;
}

static void looks(mc_control *c, job *j, int rank, mc_error *error)
{
    if (rank == 0)
        snprintf(j->answer, sizeof j->answer, "network %d, loopback %d",
                 answers("10.77.0.1", j->port), answers("127.0.0.1", j->port));
    meets(c, j, rank, error);
}

static void count_notice(void *user)
{
    job *j = user;
    j->answered++;
}

/* At MASTER_ADDR where that is an address of the host, else (it is one of a router's, say) at all,
 * which is said. */
static void test_binding(void **state)
{
    (void)state;
    for (int routed = 0; routed < 2; routed++) {
        job *j;
        two_hosts *hosts = make(&j, 10, looks, "10.77.0.1");
        if (!hosts) skip();
        j->own[0].addr = routed ? "10.77.0.9" : NULL;
        j->own[0].listens_everywhere = count_notice;
        j->own[0].user = j;
        start_on_hosts(hosts, j);
        job_wait(j, now(), 3);
        assert_all_good(j);
        assert_int_equal(j->answered, routed);
        assert_string_equal(j->answer, routed ? "network 1, loopback 1" : "network 1, loopback 0");
        two_hosts_free(hosts);
        job_free(j);
    }
}

static void test_death_over_there(void **state)
{
    (void)state;
    job *j;
    two_hosts *hosts = make(&j, LONG, waits, "10.77.0.1");
    if (!hosts) skip();
    start_on_hosts(hosts, j);
    job_wait_ready(j);
    double since = now();
    job_kill(j, 3);
    job_wait(j, since, SOON);
    for (int r = 0; r < 3; r++) {
        assert_says(j, r, "rank 3 (10.77.0.2:");
        assert_says(j, r, "is gone without a goodbye");
    }
    two_hosts_free(hosts);
    job_free(j);
}

/* No packet says that the other side is gone. */
static bool is_cut(double timeout)
{
    job *j;
    two_hosts *hosts = make(&j, timeout, waits, "10.77.0.1");
    if (!hosts) skip();
    start_on_hosts(hosts, j);
    bool begun = all_begin(j);
    double since = now();
    host_run(hosts, 1, "ip link set mc1 down");
    job_wait(j, since, timeout);
    /* either of the ranks over there may be the first that is missed */
    for (int r = 0; r < 4 && begun; r++) {
        assert_says(j, r, " stands still: no heartbeat for ");
        bool named = strncmp(j->ranks[r].message, "rank 2 ", 7) == 0 ||
                     strncmp(j->ranks[r].message, "rank 3 ", 7) == 0;
        if (r < 2 && !named)
            fail_msg("rank %d: \"%s\", expected rank 2 or 3", r, j->ranks[r].message);
        if (r >= 2) assert_says(j, r, "rank 0 (10.77.");
    }
    two_hosts_free(hosts);
    job_free(j);
    return begun;
}

static void test_cut_cable(void **state)
{
    (void)state;
    within_deadline(is_cut);
}

static bool has_no_cable(double timeout)
{
    job *j;
    two_hosts *hosts = make(&j, timeout, meets, "10.77.0.1");
    if (!hosts) skip();
    host_run(hosts, 1, "ip link set mc1 down");
    start_on_hosts(hosts, j);
    job_wait(j, now(), 1.6 * timeout);
    bool came = strstr(j->ranks[0].message, "ranks 2-3 have not come");
    for (int r = 0; r < 2 && came; r++) assert_says(j, r, "ranks 2-3 have not come");
    for (int r = 2; r < 4 && came; r++) assert_says(j, r, "cannot reach rank 0 at 10.77.0.1:");
    if (!came) assert_says(j, 0, "ranks 1-3 have not come");
    two_hosts_free(hosts);
    job_free(j);
    return came;
}

static void test_no_cable(void **state)
{
    (void)state;
    within_deadline(has_no_cable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meet),      cmocka_unit_test(test_meet_ipv6),
        cmocka_unit_test(test_binding),   cmocka_unit_test(test_death_over_there),
        cmocka_unit_test(test_cut_cable), cmocka_unit_test(test_no_cable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
