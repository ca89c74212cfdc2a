/* The ranks of one host share its cores: each gets as many threads as it has cores. */
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/dist/ranks_internal.h"
#include "core/dist/world_internal.h"

/* The host and cores of a rank. */
typedef struct place {
    char host[64];
    cpu_set_t cores;
} place;

static place place_here(void)
{
    place p;
    memset(&p, 0, sizeof p);
    gethostname(p.host, sizeof p.host - 1);
    if (sched_getaffinity(0, sizeof p.cores, &p.cores)) CPU_ZERO(&p.cores);
    return p;
}

/* The number of ranks that may run on the cores of rank `rank`, itself included; *number of them
 * have lower numbers. */
static int count_sharing(const place *all, int ranks, int rank, int *number)
{
    int sharing = 0;
    for (int r = 0; r < ranks; r++) {
        cpu_set_t both;
        CPU_AND(&both, &all[r].cores, &all[rank].cores);
        if (r == rank) *number = sharing;
        sharing += strcmp(all[r].host, all[rank].host) == 0 && CPU_COUNT(&both) > 0;
    }
    return sharing;
}

int mc_world_sharing_cores(mc_context *ctx, int *number)
{
    const mc_rank_group *world = &ctx->mesh.world;
    int sharing = 1;
    *number = 0;
    if (!world->comm) return sharing;
    place mine = place_here(), *all = mc_calloc((size_t)world->size, sizeof *all);
    if (!all)
        mc_fail_nomem(ctx, "the places of all ranks");
    else if (!mc_ranks_gather(ctx, world, &mine, sizeof mine, all))
        sharing = count_sharing(all, world->size, world->rank, number);
    mc_free(all);
    return sharing ? sharing : 1;
}

void mc_world_set_threads(mc_context *ctx)
{
    const char *chosen = getenv("OMP_NUM_THREADS");
    if (mc_failed(ctx)) return;
    if (ctx->threads > 0) omp_set_num_threads(ctx->threads);
    if (ctx->threads != MC_THREADS_SHARED || !ctx->mesh.world.comm || !ctx->device->is_host) return;
    int number, sharing = mc_world_sharing_cores(ctx, &number);
    cpu_set_t cores = place_here().cores;
    int threads = CPU_COUNT(&cores) / sharing;
    if (!mc_failed(ctx) && !(chosen && *chosen)) omp_set_num_threads(threads > 1 ? threads : 1);
}

int mc_world_take_cores(int sharing, int number)
{
    const char *setting = getenv("MC_OFFLOAD_THREADS");
    long asked = setting ? strtol(setting, NULL, 10) : 0;
    cpu_set_t cores = place_here().cores;
    int count = CPU_COUNT(&cores), n = 0;
    int from = count * number / sharing, to = count * (number + 1) / sharing;
    if (asked > 0) return (int)(asked < MC_THREADS_MAX ? asked : MC_THREADS_MAX);
    if (!count || to == from) return 1; /* more ranks than cores: the system schedules them */
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cores)) {
            if (n < from || n >= to) CPU_CLR(cpu, &cores);
            n++;
        }
    sched_setaffinity(0, sizeof cores, &cores);
    return to - from >= 4 ? to - from - 1 : to - from; /* the context's thread needs a core too */
}
