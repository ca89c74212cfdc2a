/* Who started this process: every launcher's variables, their order, and bad values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "core/dist/launch_internal.h"
#include "core/dist/world_internal.h"

/* Runs in an environment of these variables alone: "A=1 B=2". */
static void set_environment(const char *assignments)
{
    char text[1024];
    clearenv();
    assert_true(strlen(assignments) < sizeof text);
    memcpy(text, assignments, strlen(assignments) + 1);
    for (char *rest = text, *one; (one = strtok_r(rest, " ", &rest));) {
        char *equals = strchr(one, '=');
        assert_non_null(equals);
        *equals = '\0';
        setenv(one, equals + 1, 1);
    }
}

static mc_launch read_good(const char *environment)
{
    mc_error error = {0};
    mc_launch l;
    set_environment(environment);
    if (mc_launch_read(&error, &l) != MC_OK) fail_msg("%s: %s", environment, error.message);
    return l;
}

/* The message lives until the next call. */
static const char *read_bad(const char *environment)
{
    static char message[1024];
    mc_error error = {0};
    mc_launch l;
    set_environment(environment);
    if (mc_launch_read(&error, &l) == MC_OK) fail_msg("%s: no error", environment);
    assert_int_equal(error.status, MC_ERR_ARGUMENT);
    assert_string_equal(l.which, "single");
    assert_int_equal(l.world_size, 1);
    strncpy(message, error.message, sizeof message - 1);
    mc_error_clear(&error);
    return message;
}

typedef struct expected {
    const char *environment, *which;
    int rank, world_size, local_rank, local_size, node;
    const char *addr, *addr_from;
    int port; /* 0: from the job's id */
    const char *port_from;
} expected;

/* clang-format off */
static const expected good[] = {
    {"", "single", 0, 1, 0, 1, 0, "localhost", "", 29501, "the default"},
    {"WORLD_SIZE= RANK=", "single", 0, 1, 0, 1, 0, "localhost", "", 29501, "the default"},
    {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=node1 "
     "MASTER_PORT=29500",
     "torchrun", 5, 8, 1, 4, 1, "node1", "MASTER_ADDR", 29501, "MASTER_PORT + 1"},
    {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=::1 MASTER_PORT=1234 NODE_RANK=0",
     "torchrun", 1, 2, 1, -1, 0, "::1", "MASTER_ADDR", 1235, "MASTER_PORT + 1"},
    {"RANK=1 WORLD_SIZE=2", "torchrun", 1, 2, -1, -1, -1, "localhost", "", 29501, "the default"},
    {"WORLD_SIZE=1", "torchrun", 0, 1, -1, -1, -1, "localhost", "", 29501, "the default"},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535 MC_MASTER_PORT=4000",
     "torchrun", 1, 2, -1, -1, -1, "a", "MASTER_ADDR", 4000, "MC_MASTER_PORT"},
    /* torchrun's come before those of the launcher that started torchrun. */
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=1 "
     "SLURM_PROCID=1 SLURM_NTASKS=2",
     "torchrun", 3, 4, 1, 2, -1, "n0", "MASTER_ADDR", 2, "MASTER_PORT + 1"},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=2 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=77",
     "Open MPI", 2, 4, 2, 4, -1, "localhost", "", 0, "made from the job's id"},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2",
     "Open MPI", 2, 4, 0, 2, -1, "", "", 29501, "the default"},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=c[3-4]",
     "Open MPI", 2, 4, 0, 2, -1, "c3", "SLURM_JOB_NODELIST", 29501, "the default"},
    {"SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_JOB_ID=42 "
     "SLURM_STEP_ID=0 SLURM_TASKS_PER_NODE=2(x2) SLURM_JOB_NODELIST=gpu[007-008]",
     "Slurm", 3, 4, 1, 2, 1, "gpu007", "SLURM_JOB_NODELIST", 0, "made from the job's id"},
    {"SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=3 SLURM_NODEID=0 "
     "SLURM_STEP_TASKS_PER_NODE=4 SLURM_JOB_ID=42",
     "Slurm", 3, 4, 3, 4, 0, "localhost", "", 0, "made from the job's id"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a,b SLURM_STEP_NODELIST=b,a "
     "SLURM_LAUNCH_NODE_IPADDR=10.0.0.1",
     "Slurm", 0, 2, -1, -1, -1, "b", "SLURM_STEP_NODELIST", 29501, "the default"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 MASTER_PORT=7",
     "Slurm", 0, 2, -1, -1, -1, "10.0.0.1", "SLURM_LAUNCH_NODE_IPADDR", 8, "MASTER_PORT + 1"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a,b MASTER_ADDR=c",
     "Slurm", 0, 2, -1, -1, -1, "c", "MASTER_ADDR", 29501, "the default"},
    /* A shell of salloc: the allocation has tasks, but this is none of them. */
    {"SLURM_NTASKS=4 SLURM_JOB_ID=42 SLURM_JOB_NODELIST=a,b",
     "single", 0, 1, 0, 1, 0, "localhost", "", 29501, "the default"},
    {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
     "PMI", 1, 2, 1, 2, -1, "localhost", "", 29501, "the default"},
    {"PMI_RANK=1 PMI_SIZE=2 PMI_LOCAL_RANK=0 PMI_LOCAL_SIZE=1 PMI_JOBID=x",
     "PMI", 1, 2, 0, 1, -1, "", "", 0, "made from the job's id"},
};

static const char *const bad[][2] = {
    {"RANK=x WORLD_SIZE=2", "RANK=\"x\": expected a whole number"},
    {"RANK=0 WORLD_SIZE=two", "WORLD_SIZE=\"two\": expected a whole number"},
    {"RANK=-1 WORLD_SIZE=1", "RANK=\"-1\""},
    {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE=\"0\": expected a whole number from 1 to 65536"},
    {"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE=\"99999999999999999999\""},
    {"RANK=+1 WORLD_SIZE=2", "RANK=\"+1\""},
    {"RANK=1x WORLD_SIZE=2", "RANK=\"1x\""},
    {"RANK=2 WORLD_SIZE=2", "WORLD_SIZE=2 and RANK=2: expected a rank below the size"},
    {"RANK=1", "RANK=\"1\" is set but WORLD_SIZE, the number of ranks, is not"},
    {"WORLD_SIZE=2", "WORLD_SIZE=2 is set but RANK, this process's rank, is not"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=two", "LOCAL_RANK=\"two\""},
    {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3: more ranks on this host"},
    {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=1", "LOCAL_WORLD_SIZE=1 and LOCAL_RANK=1"},
    {"RANK=0 WORLD_SIZE=2 GROUP_RANK=?", "GROUP_RANK=\"?\""},
    {"RANK=0 WORLD_SIZE=2 MASTER_PORT=65535", "MASTER_PORT=\"65535\""},
    {"RANK=0 WORLD_SIZE=2 MASTER_PORT=http", "MASTER_PORT=\"http\""},
    {"RANK=0 WORLD_SIZE=2 MC_MASTER_PORT=0",
     "MC_MASTER_PORT=\"0\": expected a whole number from 1 to 65535"},
    {"RANK=0 WORLD_SIZE=2 MC_MASTER_PORT=65536", "MC_MASTER_PORT=\"65536\""},
    {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=2 is set but OMPI_COMM_WORLD_RANK"},
    {"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=9", "OMPI_COMM_WORLD_RANK=9"},
    {"SLURM_PROCID=0", "SLURM_PROCID=\"0\" is set but SLURM_STEP_NUM_TASKS"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODEID=1 SLURM_TASKS_PER_NODE=2",
     "SLURM_TASKS_PER_NODE=\"2\": expected the number of tasks of each node"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=many",
     "SLURM_TASKS_PER_NODE=\"many\""},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=gpu[",
     "SLURM_JOB_NODELIST=\"gpu[\": expected a list of hosts"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=few", "SLURM_NNODES=\"few\""},
    {"PMI_RANK=0 PMI_SIZE=x", "PMI_SIZE=\"x\""},
};
/* clang-format on */

static void test_good(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const expected *e = &good[i];
        mc_launch l = read_good(e->environment);
        if (strcmp(l.which, e->which) != 0 || l.rank != e->rank || l.world_size != e->world_size ||
            l.local_rank != e->local_rank || l.local_size != e->local_size || l.node != e->node)
            fail_msg("%s: %s, rank %d of %d, local %d of %d, node %d", e->environment, l.which,
                     l.rank, l.world_size, l.local_rank, l.local_size, l.node);
        if (strcmp(l.master_addr, e->addr) != 0 || strcmp(l.addr_from, e->addr_from) != 0 ||
            strcmp(l.port_from, e->port_from) != 0 || (e->port && l.master_port != e->port))
            fail_msg("%s: %s (%s) port %d (%s)", e->environment, l.master_addr, l.addr_from,
                     l.master_port, l.port_from);
        if (!e->port) assert_in_range(l.master_port, 16384, 28671);
    }
}

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *message = read_bad(bad[i][0]);
        if (!strstr(message, bad[i][1]))
            fail_msg("%s: \"%s\", expected \"%s\"", bad[i][0], message, bad[i][1]);
    }
}

static void test_long_addr(void **state)
{
    (void)state;
    char environment[600] = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=";
    size_t used = strlen(environment);
    memset(environment + used, 'a', 300);
    assert_non_null(strstr(read_bad(environment), "MASTER_ADDR: a host name of 300 characters"));
}

/* Ranks of one job agree about its id and port, whatever their own variables; others do not. */
static void test_job(void **state)
{
    (void)state;
    mc_launch a = read_good("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=42 SLURM_STEP_ID=1");
    mc_launch b = read_good("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=42 SLURM_STEP_ID=1");
    assert_true(a.job == b.job);
    assert_int_equal(a.master_port, b.master_port);
    b = read_good("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=42 SLURM_STEP_ID=2");
    assert_true(a.job != b.job);
    assert_int_not_equal(a.master_port, b.master_port);
    b = read_good("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=421 SLURM_STEP_ID=");
    assert_true(a.job != b.job);
    a = read_good("RANK=0 WORLD_SIZE=2 MASTER_PORT=5 TORCHELASTIC_RUN_ID=x");
    b = read_good("RANK=1 WORLD_SIZE=2 MASTER_PORT=5 TORCHELASTIC_RUN_ID=y");
    assert_true(a.job != b.job);
    assert_int_equal(a.master_port, b.master_port);
}

/* Whether all ranks are on one host, by each launcher's word. */
static void test_one_host(void **state)
{
    (void)state;
    static const struct {
        const char *environment;
        bool one_host, by_mpi;
    } table[] = {
        {"", true, false},
        {"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node1", true, false},
        {"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1", false, false},
        {"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", true, false},
        {"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost", true, false},
        {"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=[::1]", true, false},
        {"RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.example.org", false, false},
        {"RANK=0 WORLD_SIZE=4", true, false},
        {"RANK=0 WORLD_SIZE=4 MASTER_ADDR=node1", false, false},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4", true, true},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=2", false, true},
        {"PMI_RANK=1 PMI_SIZE=2 PMI_LOCAL_SIZE=2", true, true},
        {"PMI_RANK=1 PMI_SIZE=2", false, true},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=1", true, false},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=2", false, false},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=2 SLURM_STEP_NUM_NODES=1", true, false},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2", true, false},
        {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2(x2)", false, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mc_launch l = read_good(table[i].environment);
        if (l.one_host != table[i].one_host || l.by_mpi != table[i].by_mpi)
            fail_msg("%s: one host %d, by MPI %d", table[i].environment, l.one_host, l.by_mpi);
    }
}

static void test_first_host(void **state)
{
    (void)state;
    static const char *const lists[][2] = {
        {"a", "a"},
        {"a,b", "a"},
        {"gpu[007-010,12],login1", "gpu007"},
        {"gpu[12]", "gpu12"},
        {"gpu[3,5-6]", "gpu3"},
        {"r[1-2]n[05-06]-ib", "r1n05-ib"},
        {"r[1-2]n[05-06]-ib,x[1-2]", "r1n05-ib"},
        {"node-1.cluster.local,node-2", "node-1.cluster.local"},
        {"", NULL},
        {",a", NULL},
        {"a[", NULL},
        {"a[]", NULL},
        {"a[x]", NULL},
        {"a[1", NULL},
        {"a]1", NULL},
        {"a[1-2]]", NULL},
        {"a[-3]", NULL},
        {"a b", NULL},
        {"[1-2]", "1"},
    };
    char host[32];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        bool found = mc_launch_first_host(lists[i][0], host, sizeof host);
        if (found != (lists[i][1] != NULL) || (found && strcmp(host, lists[i][1]) != 0))
            fail_msg("\"%s\": %s", lists[i][0], found ? host : "nothing");
    }
    assert_true(mc_launch_first_host("abc[1-9]", host, 5));
    assert_false(mc_launch_first_host("abc[1-9]", host, 4));
    assert_false(mc_launch_first_host("a", host, 1));
    assert_false(mc_launch_first_host("a", host, 0));
}

static void test_tasks(void **state)
{
    (void)state;
    static const struct {
        const char *tasks;
        int node, count;
    } table[] = {{"4", 0, 4},           {"4", 1, -1},       {"4(x2),3", 0, 4}, {"4(x2),3", 1, 4},
                 {"4(x2),3", 2, 3},     {"4(x2),3", 3, -1}, {"1,2,3", 1, 2},   {"", 0, -1},
                 {"x", 0, -1},          {"4(x", 0, -1},     {"4(x2", 0, -1},   {"4(2)", 0, -1},
                 {"4(x2),", 2, -1},     {"4,,3", 1, -1},    {"4(x2)3", 0, -1}, {"99999999", 0, -1},
                 {"4(x9999999)", 1, -1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (mc_launch_tasks_on(table[i].tasks, table[i].node) != table[i].count)
            fail_msg("%s, node %d: %d", table[i].tasks, table[i].node,
                     mc_launch_tasks_on(table[i].tasks, table[i].node));
}

static void test_timeout(void **state)
{
    (void)state;
    static const char *const refused[] = {"0",   "-1",  "soon", "1 s", "nan",
                                          "inf", "1e9", "0.01", "10x"};
    double seconds;
    mc_error error = {0};
    clearenv();
    assert_int_equal(mc_launch_timeout(&error, 0, &seconds), MC_OK);
    assert_true(seconds == 300);
    setenv("MC_COMM_TIMEOUT", "2.5", 1);
    assert_int_equal(mc_launch_timeout(&error, 0, &seconds), MC_OK);
    assert_true(seconds == 2.5);
    assert_int_equal(mc_launch_timeout(&error, 10, &seconds), MC_OK);
    assert_true(seconds == 10);
    assert_int_equal(mc_launch_timeout(&error, -1, &seconds), MC_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "-1 s"));
    mc_error_clear(&error);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        setenv("MC_COMM_TIMEOUT", refused[i], 1);
        if (mc_launch_timeout(&error, 0, &seconds) != MC_ERR_ARGUMENT)
            fail_msg("MC_COMM_TIMEOUT=%s: %g", refused[i], seconds);
        assert_non_null(strstr(error.message, refused[i]));
        assert_non_null(strstr(error.message, "MC_COMM_TIMEOUT"));
        mc_error_clear(&error);
    }
    setenv("MC_COMM_TIMEOUT", "", 1);
    assert_int_equal(mc_launch_timeout(&error, 0, &seconds), MC_OK);
    assert_true(seconds == 300);
}

static void test_offload_threads(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int threads;
    } asked[] = {{"1", 1}, {"7", 7}, {"2000000", 1024}, {"99999999999999999999", 1024}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        setenv("MC_OFFLOAD_THREADS", asked[i].text, 1);
        assert_int_equal(mc_world_take_cores(1, 0), asked[i].threads);
    }
    unsetenv("MC_OFFLOAD_THREADS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_long_addr),
        cmocka_unit_test(test_job),
        cmocka_unit_test(test_one_host),
        cmocka_unit_test(test_first_host),
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_offload_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
