/* Contexts of all ranks, one after the other: a rank that comes to the next one while others are
 * still in the one before waits for them. And the communicator that a context has of its job. */
#include <stdio.h>
#include <unistd.h>
#include "core/modelcenter.h"

enum { CONTEXTS = 20 };

static bool check_sum(mc_context *ctx)
{
    int32_t mine = mc_rank(ctx) + 1, sum = 0, ranks = mc_world_size(ctx);
    mc_comm *comm = mc_context_comm(ctx);
    if (ranks == 1) return !comm;
    mc_comm_all_reduce(comm, &mine, &sum, 1, MC_I32, MC_REDUCE_SUM);
    if (mc_print_error(ctx, stdout)) return false;
    bool same = comm == mc_context_comm(ctx) && mc_comm_count(comm) == ranks &&
                mc_comm_rank(comm) == mc_rank(ctx) && sum == ranks * (ranks + 1) / 2;
    if (!same) printf("FAILED: the sum over %d ranks is %d\n", ranks, sum);
    return same;
}

int main(void)
{
    for (int i = 0; i < CONTEXTS; i++) {
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.comm_timeout = 60});
        bool good = check_sum(ctx);
        if (i % 10 == 3 && mc_rank(ctx) == i / 10 % mc_world_size(ctx)) usleep(50000);
        mc_context_free(ctx);
        if (!good) printf("FAILED: context %d\n", i);
        if (!good) return 1;
    }
    mc_context *single = mc_init_distributed(&(mc_init_options){.single = true});
    bool good = check_sum(single);
    mc_context_free(single);
    return !good || mc_context_comm(NULL);
}
