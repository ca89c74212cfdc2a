/* A job of CPU ranks on two hosts over MPI, without MASTER_ADDR: the ranks learn from MPI where
 * rank 0 is. mpirun reaches the other host through a script in place of ssh. Run as
 *
 *     test_mpi_hosts rank
 *
 * this program is one of the ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>
#include "core/dist/control/control_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/dist/two_hosts.h"

enum { COUNT = 100000 };

/* Prints what it sees of the job, and sums. */
static int be_rank(const char *how)
{
    bool fails = strcmp(how, "fails") == 0, dies = strcmp(how, "dies") == 0;
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.comm_timeout = 20});
    static float x[COUNT], y[COUNT], more[COUNT];
    char name[64] = "";
    gethostname(name, sizeof name);
    for (int i = 0; i < COUNT; i++) x[i] = (float)(mc_rank(ctx) + 1);
    mc_comm_all_reduce(mc_context_comm(ctx), x, y, COUNT, MC_F32, MC_REDUCE_SUM);
    mc_comm_barrier(mc_context_comm(ctx)); /* before a failure all have their sums */
    if (fails && mc_rank(ctx) == 3) mc_set_error(ctx, MC_ERR_FORMAT, "a bad row");
    if (dies && mc_rank(ctx) == 3) raise(SIGKILL);
    if (fails || dies)
        mc_comm_all_reduce(mc_context_comm(ctx), x, more, COUNT, MC_F32, MC_REDUCE_SUM);
    printf("rank %d of %d on %s: %g %g %s\n", mc_rank(ctx), mc_world_size(ctx), name, y[0],
           y[COUNT - 1], mc_error_message(ctx));
    fflush(stdout);
    bool failed = mc_failed(ctx);
    mc_context_free(ctx);
    if (failed) _exit(0); /* for mpirun not to end the others; MPI is as it may be */
    return 0;
}

#ifdef MC_MPIEXEC
static void write_script(const char *path, const two_hosts *hosts)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "#!/bin/sh\nshift\nexec nsenter --target %d --net --uts -- sh -c \"$*\"\n", /* host */
            (int)hosts->hosts[1].pid);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0755), 0);
}

/* Runs four ranks, two on each host, in `folder`; the output is in "out" there. */
static void run_ranks(two_hosts *hosts, const char *folder, const char *how, int lines)
{
    char command[400];
    FILE *file;
    snprintf(command, sizeof command, "%s/mpirun.sh", folder);
    assert_non_null(file = fopen(command, "w"));
    /* of a job that has failed mpirun may wait for daemons on other hosts that have long ended;
     * "out" is emptied before mpirun begins, or the last job's lines could be counted for this
     * one's */
    fprintf(
        file,
        "cd %s && : >out && export OMPI_MCA_plm_rsh_agent=%s/agent OMPI_MCA_plm=rsh "
        "PRTE_MCA_plm_ssh_agent=%s/agent OMPI_MCA_mpi_ft_enable=true " /* Open MPI 5, see README */
        "OMPI_MCA_btl=self,tcp,vader OMPI_MCA_pml=ob1 OMP_NUM_THREADS=1\n"
        "timeout -k 1 20 " MC_MPIEXEC " --enable-recovery -np 4 -H 10.77.0.1:2,10.77.0.2:2 "
        "--map-by ppr:2:node:oversubscribe " MC_TEST_SELF " %s >>out 2>>err </dev/null &\n"
        "while kill -0 $! 2>/dev/null && [ \"$(grep -c '^rank' out)\" != %d ]; do sleep 0.1; "
        "done\nsleep 1\nkill $! 2>/dev/null; wait\n",
        folder, folder, folder, how, lines);
    assert_int_equal(fclose(file), 0);
    snprintf(command, sizeof command, "sh %s/mpirun.sh", folder);
    host_run(hosts, 0, command);
}

/* How many ranks have a line that holds one of the texts. */
static int count_lines(const char *folder, const char *text, const char *other)
{
    char path[300], line[1024], start[64];
    int count = 0;
    snprintf(path, sizeof path, "%s/out", folder);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        printf("%s", line);
        int rank = -1, number = -1;
        bool good = sscanf(line, "rank %d of 4 on mc-host-%d: 10 10 ", &rank, &number) == 2;
        snprintf(start, sizeof start, "rank %d of 4 on mc-host-%d: 10 10", rank, rank / 2);
        count += good && strncmp(line, start, strlen(start)) == 0 &&
                 (strstr(line, text) || strstr(line, other));
    }
    if (file) fclose(file);
    return count;
}

static void test_job(void **state)
{
    (void)state;
    char folder[200], path[220], command[512];
    const char *parent = getenv("TMPDIR");
    two_hosts *hosts = two_hosts_new();
    if (!hosts) skip();
    if (system("nsenter --version >/dev/null 2>&1") != 0) {
        printf("SKIPPED: no command nsenter\n");
        two_hosts_free(hosts);
        skip();
    }
    snprintf(folder, sizeof folder, "%.150s/mc-mpi-hosts-XXXXXX", parent ? parent : P_tmpdir);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/agent", folder);
    write_script(path, hosts);
    run_ranks(hosts, folder, "rank", 4);
    int good = count_lines(folder, "10 10 \n", "10 10 \n");
    run_ranks(hosts, folder, "fails", 4);
    int told = count_lines(folder, "a bad row", "a bad row");
    run_ranks(hosts, folder, "dies", 3);
    /* it has taken the one of rank 0's addresses that answered first */
    int survivors = count_lines(folder, "rank 3 (10.77.0.2:", "rank 3 ([fd77::2]:");
    snprintf(command, sizeof command, "%s %s/err; rm -rf %s",
             good == 4 && told == 4 && survivors == 3 ? ":" : "cat", folder, folder);
    assert_int_equal(system(command), 0);
    two_hosts_free(hosts);
    assert_int_equal(good, 4);
    assert_int_equal(told, 4);
    assert_int_equal(survivors, 3);
}
#endif

int main(int argc, char **argv)
{
    if (argc > 1) return be_rank(argv[1]);
#ifdef MC_MPIEXEC
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_job)};
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    printf("SKIPPED: no Open MPI's mpirun was found\n");
    return 0;
#endif
}
