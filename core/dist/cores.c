/* Ranks of one host share its cores: as many threads each as there are cores for it. */
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/dist/comm.h"
#include "core/dist/world_internal.h"

/* Where a rank may run. */
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

/* Of these ranks, those that may run where `mine` does, itself included. */
static int count_sharing(const place *all, int ranks, const place *mine)
{
    int sharing = 0;
    for (int r = 0; r < ranks; r++) {
        cpu_set_t both;
        CPU_AND(&both, &all[r].cores, &mine->cores);
        sharing += strcmp(all[r].host, mine->host) == 0 && CPU_COUNT(&both) > 0;
    }
    return sharing;
}

void mc_world_share_cores(mc_context *ctx)
{
    const char *chosen = getenv("OMP_NUM_THREADS");
    place mine = place_here();
    place *all = mc_calloc((size_t)ctx->world_size, sizeof *all);
    if (!all) {
        mc_fail_nomem(ctx, "the places of all ranks");
        return;
    }
    mc_comm_all_gather(ctx->comm, &mine, all, (int64_t)sizeof mine, MC_U8);
    if (!mc_failed(ctx) && !(chosen && *chosen)) {
        int sharing = count_sharing(all, ctx->world_size, &mine);
        int threads = sharing ? CPU_COUNT(&mine.cores) / sharing : 1;
        omp_set_num_threads(threads > 1 ? threads : 1);
    }
    mc_free(all);
}
