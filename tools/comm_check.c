#include "tools/comm_check.h"

#include <math.h>

enum { PERIOD = 8 };

const char *const comm_names[] = {"all-gather", "reduce-scatter", "all-reduce", "broadcast",
                                  "reduce",     "send/recv",      NULL};

double comm_bus_factor(comm_kind kind, int ranks)
{
    double others = (double)(ranks - 1) / ranks;
    switch (kind) {
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER: return others;
    case COMM_ALL_REDUCE: return 2 * others;
    default: return ranks > 1;
    }
}

float comm_sent(int rank, int64_t i) { return (float)((i * 5 + rank * 3) % PERIOD); }

static float sum_of(int ranks, int64_t i)
{
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += comm_sent(r, i);
    return sum;
}

int64_t comm_arriving(const comm_call *c)
{
    if (c->kind == COMM_REDUCE_SCATTER) return c->count / c->ranks;
    return c->kind == COMM_REDUCE && c->rank ? 0 : c->count;
}

float comm_expected(const comm_call *c, int64_t i)
{
    int64_t share = c->count / c->ranks;
    switch (c->kind) {
    case COMM_ALL_GATHER: return comm_sent((int)(i / share), i % share);
    case COMM_REDUCE_SCATTER: return sum_of(c->ranks, c->rank * share + i);
    case COMM_BROADCAST: return comm_sent(0, i);
    case COMM_SEND_RECV: return comm_sent((c->rank + c->ranks - 1) % c->ranks, i);
    default: return sum_of(c->ranks, i);
    }
}

int64_t comm_first_wrong(const comm_call *c, const float *arrived, float tolerance)
{
    /* sums repeat: they are taken once */
    float sums[PERIOD];
    bool summed =
        c->kind == COMM_REDUCE_SCATTER || c->kind == COMM_ALL_REDUCE || c->kind == COMM_REDUCE;
    for (int i = 0; i < PERIOD && summed; i++) sums[i] = comm_expected(c, i);
    int64_t count = comm_arriving(c);
    for (int64_t i = 0; i < count; i++) {
        float expected = summed ? sums[i % PERIOD] : comm_expected(c, i);
        if (!(fabsf(arrived[i] - expected) <= tolerance * expected)) return i;
    }
    return -1;
}
