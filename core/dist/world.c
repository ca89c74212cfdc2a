#include "core/dist/world_internal.h"

#include <string.h>
#include "core/base/hash_internal.h"
#include "core/dist/comm_internal.h"
#include "core/dist/control/control_internal.h"
#include "core/dist/launch_internal.h"

struct mc_world {
    mc_launch launch;
    mc_control *control;
    uint64_t groups; /* communicators that were made without an id */
    bool reported;
};

void mc_world_read(mc_context *ctx)
{
    struct mc_world *w = mc_calloc(1, sizeof *w);
    if (!w) {
        mc_fail_nomem(ctx, "the job's ranks");
        return;
    }
    ctx->world = w;
    if (mc_launch_read(&ctx->error, &w->launch)) return;
    mc_mesh_place(&ctx->mesh, &(mc_mesh_sizes){.data = w->launch.world_size}, w->launch.rank);
    /* -1 if unknown: a single rank can still use the first GPU */
    ctx->local_rank =
        ctx->mesh.world.size == 1 && w->launch.local_rank < 0 ? 0 : w->launch.local_rank;
    if (ctx->mesh.world.size > 1 && ctx->mesh.world.rank == 0)
        mc_log(ctx, MC_LOG_INFO, "%d ranks, by the variables of %s", ctx->mesh.world.size,
               w->launch.which);
}

int mc_world_local_rank(void)
{
    mc_error ignored = {0};
    mc_launch launch;
    mc_launch_read(&ignored, &launch);
    mc_error_clear(&ignored);
    return launch.local_rank > 0 ? launch.local_rank : 0;
}

/* CPU ranks communicate through MPI, so MPI must have started them, as many as torchrun's variables
 * say: otherwise each would be a job of its own. */
static bool check_launcher(mc_context *ctx)
{
    const mc_launch *l = &ctx->world->launch;
    if (!ctx->device->is_host || strcmp(l->which, "torchrun") != 0) return true;
    if (l->mpi_size == l->world_size || (l->world_size == 1 && l->mpi_size < 0))
        return true; /* mpirun with torchrun's variables beside its own, or one rank */
    if (l->mpi_size > 0) {
        mc_fail(ctx, MC_ERR_STATE,
                "WORLD_SIZE=%d, but %d rank%s started by MPI: expected the same, or no WORLD_SIZE",
                l->world_size, l->mpi_size, l->mpi_size == 1 ? " was" : "s were");
        return false;
    }
    mc_fail(ctx, MC_ERR_UNSUPPORTED,
            "WORLD_SIZE=%d: CPU ranks talk through MPI; start them with mpirun or srun instead of "
            "torchrun",
            l->world_size);
    return false;
}

#ifdef MC_HAVE_MPI
/* Sends rank 0's secret and, if no variable gives them, its addresses to all ranks. */
static void share_over_mpi(mc_context *ctx, double timeout, mc_job_secret *secret)
{
    mc_launch *l = &ctx->world->launch;
    struct {
        char addr[MC_LAUNCH_ADDR_MAX];
        mc_job_secret secret;
    } first = {.secret = *secret};
    if (l->rank == 0) {
        mc_control_own_addresses(first.addr, sizeof first.addr);
        if (!first.secret.size) mc_job_secret_random(&ctx->error, &first.secret);
    }
    mc_comm_share_over_mpi(ctx, l->world_size, l->rank, timeout, &first, sizeof first);
    mc_error_while(&ctx->error, "learning over MPI where rank 0 is, and the job's secret");
    *secret = first.secret;
    if (!*l->master_addr) {
        memcpy(l->master_addr, first.addr, sizeof l->master_addr);
        l->addr_from = "MPI";
    }
    mc_job_secret_wipe(&first.secret);
}
#endif

/* Finds what ranks need for the rendezvous: rank 0's address, if no variable gives it, and the
 * job's secret. On one host the secret stays empty: rank 0 writes one to a file. On several hosts
 * MPI carries it for CPU ranks, and for GPU ranks of mpirun without a given secret. */
static bool find_secret(mc_context *ctx, double timeout, mc_job_secret *secret)
{
    const mc_launch *l = &ctx->world->launch;
    if (!mc_job_secret_given(&ctx->error, secret)) return false;
#ifdef MC_HAVE_MPI
    bool of_mpi = ctx->device->is_host || (l->by_mpi && !secret->size);
    if (!*l->master_addr || (of_mpi && !l->one_host)) share_over_mpi(ctx, timeout, secret);
#else
    (void)timeout; /* the rendezvous reports anything else that is missing */
#endif
    if (!secret->size && !l->one_host) mc_job_secret_missing(&ctx->error);
    if (mc_failed(ctx)) mc_job_secret_wipe(secret);
    return !mc_failed(ctx);
}

static void listens_everywhere(void *user)
{
    mc_context *ctx = user;
    const mc_launch *l = &ctx->world->launch;
    mc_log(
        ctx, MC_LOG_INFO,
        "rank 0 listens on port %d of all addresses of this host, for \"%s\" is none of them that "
        "other hosts can reach",
        l->master_port, l->master_addr);
}

static bool meet(mc_context *ctx, double timeout)
{
    struct mc_world *w = ctx->world;
    const mc_launch *l = &w->launch;
    mc_job_secret secret;
    if (!find_secret(ctx, timeout, &secret)) return false;
    mc_control_options options = {
        .rank = l->rank,
        .world_size = l->world_size,
        .addr = l->master_addr,
        .port = l->master_port,
        .job = l->job,
        .one_host = l->one_host,
        .timeout = timeout,
        .secret = secret.size ? &secret : NULL,
        .listens_everywhere = listens_everywhere,
        .user = ctx,
    };
    w->control = mc_control_new(&ctx->error, &options);
    mc_job_secret_wipe(&secret);
    return w->control;
}

static bool stop(void *user, mc_error *error)
{
    const struct mc_world *w = user;
    return mc_control_failed(w->control, error);
}

static void note(void *user, uint64_t group, uint64_t sequence, const char *operation)
{
    const struct mc_world *w = user;
    mc_control_note(w->control, group, sequence, operation);
}

static void explain(void *user, uint64_t group, uint64_t sequence, const char *operation, bool all,
                    char *text, size_t size)
{
    const struct mc_world *w = user;
    mc_control_explain(w->control, group, sequence, operation, all, text, size);
}

static void report_error(void *user, const mc_error *error)
{
    const struct mc_world *w = user;
    mc_control_report(w->control, error->status, error->message);
}

void mc_world_hooks(mc_context *ctx, const mc_comm_id *id, mc_comm_hooks *hooks)
{
    struct mc_world *w = ctx->world;
    if (!w || !w->control) return;
    *hooks = (mc_comm_hooks){.stop = stop,
                             .note = note,
                             .explain = explain,
                             .report = report_error,
                             .user = w,
                             .group = id ? mc_hash(MC_HASH_START, id->bytes, sizeof id->bytes)
                                         : ++w->groups,
                             .ranks = ctx->mesh.world.size};
}

static void report(void *ctx) { mc_world_report(ctx); }

/* If NVLink joins all ranks, gradients can be reduced in fewer and larger pieces: the wait for the
 * last piece at the end of backward is short. */
static size_t reduce_bytes_here(const mc_context *ctx)
{
    int local_rank, local_size;
    mc_control_place(ctx->world->control, &local_rank, &local_size);
    bool linked = ctx->device->linked && local_size == ctx->mesh.world.size;
    return linked ? (size_t)256 << 20 : ctx->reduce_bytes;
}

/* Ranks with different initial weights or sharding would continue for a while with wrong results.
 * So options that must be equal are compared with rank 0's. reduce_bytes is rank 0's on all
 * ranks. */
static bool agree_on_options(mc_context *ctx)
{
    static const char *const names[] = {"seed", "zero_level", "grad_dtype == MC_GRAD_PARAMETER",
                                        "threads == MC_THREADS_SHARED"};
    enum { OPTIONS = sizeof names / sizeof *names, REDUCE_BYTES = OPTIONS, ALL };
    uint64_t mine[ALL] = {ctx->seed, (uint64_t)ctx->zero_level,
                          ctx->grad_dtype == MC_GRAD_PARAMETER, ctx->threads == MC_THREADS_SHARED,
                          reduce_bytes_here(ctx)};
    uint64_t first[ALL];
    memcpy(first, mine, sizeof mine);
    if (!mc_control_share(ctx->world->control, &ctx->error, "the options of rank 0", first,
                          sizeof first))
        return false;
    ctx->reduce_bytes = (size_t)first[REDUCE_BYTES];
    for (int i = 0; i < OPTIONS; i++)
        if (mine[i] != first[i])
            mc_fail(ctx, MC_ERR_ARGUMENT,
                    "mc_init_options.%s is %llu on rank %d and %llu on rank 0, expected the same",
                    names[i], (unsigned long long)mine[i], ctx->mesh.world.rank,
                    (unsigned long long)first[i]);
    return !mc_failed(ctx);
}

void mc_world_join(mc_context *ctx, double timeout)
{
    struct mc_world *w = ctx->world;
    double seconds;
    if (mc_failed(ctx) || !w || !check_launcher(ctx) || ctx->mesh.world.size < 2) return;
    ctx->error.raised = report;
    ctx->error.raised_user = ctx;
    if (mc_launch_timeout(&ctx->error, timeout, &seconds) || !meet(ctx, seconds)) return;
    if (!agree_on_options(ctx)) return;
    mc_comm_id id;
    memset(&id, 0, sizeof id);
    if (!ctx->device->is_host) {
        if (ctx->mesh.world.rank == 0) mc_comm_unique_id(ctx, &id);
        if (mc_failed(ctx) ||
            !mc_control_share(w->control, &ctx->error, "the communicator's id", &id, sizeof id))
            return;
    }
    mc_comm_options options = {.timeout = seconds};
    mc_mesh_connect(ctx, ctx->device->is_host ? NULL : &id, &options);
}

void mc_world_leave(mc_context *ctx)
{
    struct mc_world *w = ctx->world;
    if (!w) return;
    if (mc_error_is_set(&ctx->error)) mc_world_report(ctx);
    mc_control_free(w->control);
    mc_free(w);
    ctx->world = NULL;
}

void mc_world_report(mc_context *ctx)
{
    struct mc_world *w = ctx->world;
    if (!w || !w->control || w->reported) return;
    w->reported = true;
    mc_control_report(w->control, ctx->error.status, ctx->error.message);
}

int mc_world_ranks_here(const mc_context *ctx)
{
    int local_rank, local_size = 1;
    if (ctx->mesh.world.comm && ctx->world && ctx->world->control)
        mc_control_place(ctx->world->control, &local_rank, &local_size);
    return local_size > 1 ? local_size : 1;
}

void mc_world_report_error(const mc_context *ctx, const mc_error *error)
{
    struct mc_world *w = ctx->world;
    if (w && w->control) report_error(w, error);
}

bool mc_world_failed(const mc_context *ctx, mc_error *error)
{
    struct mc_world *w = ctx->world;
    return w && mc_control_failed(w->control, error);
}
