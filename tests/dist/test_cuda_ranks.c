/* GPU ranks over NCCL: what communicators compute, within recorded steps too, and that no rank
 * hangs when another is late, killed, fails or never comes. Ranks are processes of this program,
 * one a GPU; without two GPUs the tests are skipped, but on the simulator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "core/device/device_internal.h"
#include "core/dist/comm_internal.h"
#include "core/dist/control/control_internal.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/child.h"
#include "tests/dist/free_port.h"
#ifdef MC_HAVE_NCCL
#include <cuda_runtime_api.h>
#endif

enum { COUNT = 300000, MOST = 4 };

typedef struct job job;
typedef struct place { /* a rank's */
    mc_context *ctx;
    mc_comm *comm;
    int rank, ranks;
    mc_tensor *x, *y, *z; /* (ranks * COUNT) f32: x is rank + 1 */
} place;

struct job {
    int ranks, started, port;
    double timeout;
    void (*part)(place *p);
    char message[MOST][3000]; /* "": none yet */
    double ended[MOST];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (int)seconds))}, NULL);
}

/* ---- what ranks do --------------------------------------------------------------------------- */

static float *data(mc_tensor *t) { return mc_tensor_data(t); }

/* Fails unless elements `from` to `to` of t are `value`. */
static void expect(place *p, mc_tensor *t, int64_t from, int64_t to, double value, const char *what)
{
    float *host = malloc((size_t)p->ranks * COUNT * sizeof *host);
    mc_tensor_read_f32(p->ctx, t, host, (int64_t)p->ranks * COUNT);
    if (mc_failed(p->ctx)) to = 0;
    for (int64_t i = from; i < to; i++) {
        if ((double)host[i] == value) continue;
        mc_set_error(p->ctx, MC_ERR_STATE, "%s: element %lld is %g, expected %g", what,
                     (long long)i, (double)host[i], value);
        break;
    }
    free(host);
}

static void collectives(place *p)
{
    int n = p->ranks, next = (p->rank + 1) % n, before = (p->rank + n - 1) % n;
    double sum = n * (n + 1) / 2.0;
    mc_comm_all_reduce(p->comm, data(p->x), data(p->y), COUNT, MC_F32, MC_REDUCE_SUM);
    expect(p, p->y, 0, COUNT, sum, "all-reduce");
    mc_comm_reduce(p->comm, data(p->x), data(p->z), COUNT, MC_F32, MC_REDUCE_MAX, 1);
    if (p->rank == 1) expect(p, p->z, 0, COUNT, n, "reduce");
    mc_comm_broadcast(p->comm, p->rank ? NULL : data(p->x), data(p->z), COUNT, MC_F32, 0);
    expect(p, p->z, 0, COUNT, 1, "broadcast");
    mc_comm_reduce_scatter(p->comm, data(p->x), data(p->y), COUNT, MC_F32, MC_REDUCE_AVG);
    expect(p, p->y, 0, COUNT, sum / n, "reduce-scatter");
    mc_comm_request *gather =
        mc_comm_start_all_gather(p->comm, data(p->x), data(p->z), COUNT, MC_F32);
    mc_comm_all_reduce(p->comm, data(p->y), data(p->y), 10, MC_F32, MC_REDUCE_MIN);
    mc_comm_wait(gather);
    for (int r = 0; r < n; r++)
        expect(p, p->z, r * COUNT, (r + 1) * COUNT, r + 1, "a started all-gather");
    mc_comm_request *scatter = mc_comm_start_reduce_scatter(
        p->comm, data(p->z), data(p->z) + (size_t)p->rank * COUNT, COUNT, MC_F32, MC_REDUCE_SUM);
    mc_comm_wait(scatter);
    expect(p, p->z, p->rank * COUNT, (p->rank + 1) * COUNT, n * (p->rank + 1), "in place");
    mc_comm_group_start(p->comm);
    mc_comm_recv(p->comm, data(p->y), 1000, MC_F32, before);
    mc_comm_send(p->comm, data(p->x), 1000, MC_F32, next);
    mc_comm_group_end(p->comm);
    expect(p, p->y, 0, 1000, before + 1, "a ring of messages");
    mc_comm *part = mc_comm_split(p->comm, p->rank == 0, -p->rank);
    mc_comm_all_reduce(part, data(p->x), data(p->y), 7, MC_F32, MC_REDUCE_SUM);
    expect(p, p->y, 0, 7, p->rank ? sum - 1 : 1, "a part's all-reduce");
    mc_comm_free(part);
    mc_comm *none = mc_comm_split(p->comm, p->rank == 1 ? -1 : 0, 0);
    if ((none == NULL) != (p->rank == 1)) mc_set_error(p->ctx, MC_ERR_STATE, "no colour");
    mc_comm_barrier(p->comm);
}

/* z += the sum of all ranks' x, and of their reduce-scattered x. */
static void step(mc_context *ctx, void *user)
{
    place *p = user;
    mc_device *d = ctx->device;
    mc_comm_request *r = mc_comm_start_reduce_scatter(p->comm, data(p->x), data(p->y) + COUNT,
                                                      COUNT, MC_F32, MC_REDUCE_SUM);
    mc_comm_all_reduce(p->comm, data(p->x), data(p->y), COUNT, MC_F32, MC_REDUCE_SUM);
    mc_comm_wait(r);
    for (int i = 0; i < 2; i++)
        d->kernels->scale(d, COUNT, (mc_matrix){data(p->y) + i * COUNT, MC_F32, COUNT}, 1,
                          (mc_matrix){data(p->z), MC_F32, COUNT}, true);
}

static void run_steps(place *p, int count)
{
    mc_device *d = p->ctx->device;
    d->kernels->zero(d, data(p->z), COUNT * sizeof(float));
    for (int i = 0; i < count; i++) mc_step_run(p->ctx, 1, step, p);
    expect(p, p->z, 0, COUNT, count * p->ranks * (p->ranks + 1), "recorded steps");
}

static void steps(place *p)
{
    run_steps(p, 5);
    run_steps(p, 3);
}

static void waits(place *p)
{
    mc_comm_all_reduce(p->comm, data(p->x), data(p->y), COUNT, MC_F32, MC_REDUCE_SUM);
    expect(p, p->y, 0, COUNT, p->ranks * (p->ranks + 1) / 2.0, "all-reduce");
}

static void late(place *p)
{
    waits(p);
    if (p->rank == 1) nap(6);
    waits(p);
}

static void late_in_steps(place *p)
{
    run_steps(p, 4);
    if (p->rank == 0) nap(6);
    run_steps(p, 4);
}

static void late_to_split(place *p)
{
    waits(p);
    if (p->rank == 1) nap(6);
    mc_comm_split(p->comm, 0, 0);
}

static void killed(place *p)
{
    run_steps(p, 4);
    if (p->rank == 1) raise(SIGKILL);
    waits(p);
}

static void fails(place *p)
{
    waits(p);
    if (p->rank == 1) nap(0.5);
    if (p->rank == 1) mc_set_error(p->ctx, MC_ERR_FORMAT, "a bad row");
    waits(p);
}

static void aborted(place *p)
{
    waits(p);
    if (p->rank == 0) mc_comm_abort(p->comm);
    waits(p);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void be_rank(job *j, int rank)
{
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", j->ranks);
    if (getenv("MASTER_ADDR"))
        unsetenv("LOCAL_WORLD_SIZE"); /* on several hosts, for all that is known */
    else
        set_number("LOCAL_WORLD_SIZE", j->ranks);
    set_number("MC_MASTER_PORT", j->port);
    place p = {.rank = rank, .ranks = j->ranks};
    p.ctx = mc_init_distributed(&(mc_init_options){.device = "cuda", .comm_timeout = j->timeout});
    p.comm = mc_context_comm(p.ctx);
    size_t all = (size_t)j->ranks * COUNT;
    float *host = malloc(all * sizeof *host);
    for (size_t i = 0; i < all; i++) host[i] = (float)(rank + 1);
    mc_shape shape = MC_SHAPE((int64_t)all);
    p.x = mc_tensor_from(p.ctx, MC_F32, shape, host);
    p.y = mc_tensor_from(p.ctx, MC_F32, shape, host);
    p.z = mc_tensor_from(p.ctx, MC_F32, shape, host);
    free(host);
    if (!mc_failed(p.ctx)) j->part(&p);
    char text[3000];
    snprintf(text, sizeof text, "%s", mc_failed(p.ctx) ? mc_error_message(p.ctx) : "good");
    j->ended[rank] = now();
    mc_context_free(p.ctx);
    memcpy(j->message[rank], text, sizeof text); /* when all is freed */
}

/* GPUs of this machine, asked in another process: this one forks. */
static int count_gpus(void)
{
    int status = 0;
#ifdef MC_HAVE_NCCL
    if (getenv("MC_CUDA_SIMULATED")) return 3;
    pid_t pid = fork_child();
    if (pid == 0) {
        int count = 0;
        _exit(cudaGetDeviceCount(&count) ? 0 : count);
    }
    waitpid(pid, &status, 0);
#endif
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* Runs a job, `absent` ranks of which never come; all others have to end within `limit` seconds. */
static job *run_job(void (*part)(place *p), double timeout, int absent, double limit)
{
    int gpus = count_gpus();
    if (gpus < 2) {
        printf("SKIPPED: no CUDA device, or one alone: GPU ranks over NCCL\n");
        skip();
    }
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j != MAP_FAILED);
    j->ranks = gpus < 3 ? gpus : 3;
    j->started = j->ranks - absent;
    j->port = free_port();
    j->timeout = timeout;
    j->part = part;
    double begun = now();
    pid_t pids[MOST]; /* not in shared memory, where a child would write its 0 too */
    for (int r = 0; r < j->started; r++) {
        pids[r] = fork_child();
        if (pids[r] > 0) continue;
        be_rank(j, r);
        _exit(0);
    }
    for (int r = 0; r < j->started; r++) {
        bool over = false;
        while (!over && now() < begun + limit) {
            over = waitpid(pids[r], NULL, WNOHANG) != 0;
            nap(0.01);
        }
        if (over) continue;
        kill(pids[r], SIGKILL);
        waitpid(pids[r], NULL, 0);
    }
    return j;
}

/* Every rank but `victim` (-1: all) ended with a message that holds the text. */
static void check_job(job *j, int victim, const char *text)
{
    for (int r = 0; r < j->started; r++) {
        if (r == victim) continue;
        if (!*j->message[r]) fail_msg("rank %d did not end, expected \"%s\"", r, text);
        if (!strstr(j->message[r], text))
            fail_msg("rank %d: \"%s\", expected \"%s\"", r, j->message[r], text);
    }
    munmap(j, sizeof *j);
}

static void test_collectives(void **state)
{
    (void)state;
    check_job(run_job(collectives, 60, 0, 120), -1, "good");
}

static void test_steps(void **state)
{
    (void)state;
    check_job(run_job(steps, 60, 0, 120), -1, "good");
}

static void test_late(void **state)
{
    (void)state;
    check_job(run_job(late, 3, 0, 30), -1, ": rank 1 has not come to it, ");
}

static void test_late_in_steps(void **state)
{
    (void)state;
    check_job(run_job(late_in_steps, 3, 0, 30), -1, ": rank 0 has not come to it, ");
}

static void test_late_to_split(void **state)
{
    (void)state;
    check_job(run_job(late_to_split, 3, 0, 30), -1, ": rank 1 has not come to it, ");
}

static void test_killed(void **state)
{
    (void)state;
    check_job(run_job(killed, 60, 0, 40), 1, "rank 1 (127.0.0.1:");
}

static void test_fails(void **state)
{
    (void)state;
    check_job(run_job(fails, 60, 0, 40), -1, "a bad row");
}

static void test_aborted(void **state)
{
    (void)state;
    check_job(run_job(aborted, 60, 0, 40), -1, "on a communicator that was aborted");
}

static void test_one_too_few(void **state)
{
    (void)state;
    job *j = run_job(collectives, 2, 1, 20);
    char text[64];
    snprintf(text, sizeof text, "within 2.0 s rank %d has not come", j->ranks - 1);
    check_job(j, -1, text);
}

/* Ranks that may be on several hosts: without a secret each fails at once, with one they meet. */
static void test_several_hosts(void **state)
{
    (void)state;
    char addrs[256];
    mc_control_own_addresses(addrs, sizeof addrs);
    setenv("MASTER_ADDR", addrs, 1);
    check_job(run_job(collectives, 60, 0, 40), -1, "ranks on several hosts need a secret");
    setenv("MC_JOB_SECRET", "a secret of a test, which has to be long enough", 1);
    check_job(run_job(collectives, 60, 0, 120), -1, "good");
    unsetenv("MC_JOB_SECRET");
    unsetenv("MASTER_ADDR");
}

int main(void)
{
    setenv("MC_CUDA_GRAPHS", "1", 1); /* steps of several ranks are recorded */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),   cmocka_unit_test(test_steps),
        cmocka_unit_test(test_late),          cmocka_unit_test(test_late_in_steps),
        cmocka_unit_test(test_late_to_split), cmocka_unit_test(test_killed),
        cmocka_unit_test(test_fails),         cmocka_unit_test(test_aborted),
        cmocka_unit_test(test_one_too_few),   cmocka_unit_test(test_several_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
