/* Contexts of all ranks, one after the other: a rank that comes to the next one while others are
 * still in the one before waits for them. And the communicator that a context has of its job.
 *
 *     ranks_contexts apart         on each rank other options, of which all are told */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

enum { CONTEXTS = 20 };

static bool check_sum(mc_context *ctx)
{
    int32_t mine = mc_rank(ctx) + 1, sum = 0, ranks = mc_world_size(ctx);
    mc_comm *comm = mc_context_comm(ctx);
    mc_comm_all_reduce(comm, &mine, &sum, 1, MC_I32, MC_REDUCE_SUM);
    if (mc_print_error(ctx, stdout)) return false;
    bool same = comm == mc_context_comm(ctx) && mc_comm_count(comm) == ranks &&
                mc_comm_rank(comm) == mc_rank(ctx) && sum == ranks * (ranks + 1) / 2;
    if (!same) printf("FAILED: the sum over %d ranks is %d\n", ranks, sum);
    return same;
}

static int begin_apart(int rank)
{
    const mc_init_options apart[] = {
        {.seed = (uint64_t)rank, .comm_timeout = 60},
        {.zero_level = rank ? MC_ZERO_DEFAULT : MC_ZERO_0, .comm_timeout = 60},
        {.grad_dtype = rank ? MC_GRAD_F32 : MC_GRAD_PARAMETER, .comm_timeout = 60}};
    bool told = true;
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
        mc_context *ctx = mc_init_distributed(&apart[i]);
        for (int wait = 0; wait < 5000 && !mc_failed(ctx); wait++) mc_synchronize(ctx);
        told = told && strstr(mc_error_message(ctx), "on rank 0, expected the same");
        mc_print_error(ctx, stdout);
        mc_context_free(ctx);
    }
    printf("%s: rank %d\n", told ? "told" : "FAILED", rank);
    return !told;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (argc > 1 && strcmp(argv[1], "apart") == 0) return begin_apart(rank ? atoi(rank) : 0);
    for (int i = 0; i < CONTEXTS; i++) {
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.comm_timeout = 60});
        bool good = check_sum(ctx);
        if (i % 10 == 3 && mc_rank(ctx) == i / 10 % mc_world_size(ctx)) usleep(50000);
        mc_context_free(ctx);
        if (!good) printf("FAILED: context %d\n", i);
        if (!good) return 1;
    }
    mc_context *single = mc_context_new(NULL);
    bool good = check_sum(single);
    mc_context_free(single);
    return !good || mc_context_comm(NULL);
}
