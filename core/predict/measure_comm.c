/* Measures the bus bandwidth of collectives by running them: see mc_rates_measure_comm. */
#include <stdlib.h>
#include "core/dist/comm_internal.h"
#include "core/predict/rates_internal.h"

static mc_status call(mc_comm *c, mc_bus_kind kind, void *data, int64_t share)
{
    char *mine = (char *)data + (size_t)(c->rank * share) * sizeof(float);
    switch (kind) {
    case MC_BUS_ALL_GATHER: return mc_comm_all_gather(c, mine, data, share, MC_F32);
    case MC_BUS_REDUCE_SCATTER:
        return mc_comm_reduce_scatter(c, data, mine, share, MC_F32, MC_REDUCE_SUM);
    default: return mc_comm_all_reduce(c, data, data, share * c->size, MC_F32, MC_REDUCE_SUM);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of a few calls; all ranks start each call together. */
static double median_seconds(mc_comm *c, mc_bus_kind kind, void *data, int64_t share)
{
    enum { RUNS = 5 };
    double seconds[RUNS];
    call(c, kind, data, share);
    for (int i = 0; i < RUNS; i++) {
        mc_comm_barrier(c);
        double start = mc_comm_clock();
        call(c, kind, data, share);
        if (!mc_failed(c->ctx)) c->transport->drain(c);
        seconds[i] = mc_comm_clock() - start;
    }
    qsort(seconds, RUNS, sizeof *seconds, by_value);
    return seconds[RUNS / 2];
}

mc_status mc_rates_measure_comm(mc_rates *rates, mc_comm *c)
{
    static const size_t host_bytes[] = {1 << 14, 1 << 18, 1 << 22, 1 << 24},
                        gpu_bytes[] = {1 << 18, 1 << 22, 1 << 26, 1 << 29};
    enum { SIZES = 4 };
    mc_device *d = c->ctx->device;
    const size_t *bytes = d->is_host ? host_bytes : gpu_bytes;
    size_t most = bytes[SIZES - 1] + (size_t)c->size * sizeof(float);
    void *data = d->alloc(d, most);
    if (!data) return mc_fail_nomem(c->ctx, "measuring collectives");
    d->kernels->zero(d, data, most);
    for (int kind = 0; kind < MC_BUS_KINDS; kind++) {
        for (int i = 0; i < SIZES && rates->bus_count < MC_BUS_RATES; i++) {
            int64_t share = (int64_t)(bytes[i] / sizeof(float) / (size_t)c->size);
            if (share < 1) share = 1;
            double all = (double)share * c->size * sizeof(float),
                   rounds = kind == MC_BUS_ALL_REDUCE ? 2 : 1,
                   seconds = median_seconds(c, (mc_bus_kind)kind, data, share);
            rates->bus[rates->bus_count++] = (mc_bus_rate){
                (mc_bus_kind)kind, all, rounds * all * (c->size - 1) / c->size / seconds};
        }
    }
    d->free(d, data, most);
    return mc_error_status(c->ctx);
}
