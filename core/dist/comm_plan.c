/* A group of ranks of which there is only one, on a device that computes nothing: calls are
 * counted, their memory is left alone, and their time passes, so that a step of any number of ranks
 * can be planned. */
#include <stdlib.h>
#include "core/device/plan_internal.h"
#include "core/device/plan_time_internal.h"
#include "core/dist/comm_internal.h"

/* Of a request, kept while it is used again. */
typedef struct plan_state {
    void *scratch;
    double done; /* when, on the device's clock */
} plan_state;

/* ---- time ------------------------------------------------------------------------------------ */

/* Broadcasts and messages are taken to pass around a ring as gathers do, sums to one rank as sums
 * that are scattered do. */
static mc_bus_kind bus_kind(mc_comm_kind kind)
{
    if (kind == MC_COMM_ALL_REDUCE) return MC_BUS_ALL_REDUCE;
    bool sums = kind == MC_COMM_REDUCE || kind == MC_COMM_REDUCE_SCATTER;
    return sums ? MC_BUS_REDUCE_SCATTER : MC_BUS_ALL_GATHER;
}

static double seconds_of(const mc_comm *c, const mc_comm_call *call)
{
    const mc_rates *rates = mc_plan_rates_of(c->ctx->device);
    double bytes = (double)mc_comm_bytes(call);
    bool shares = call->kind == MC_COMM_ALL_GATHER || call->kind == MC_COMM_REDUCE_SCATTER;
    if (!rates) return 0;
    return mc_rates_collective(rates, bus_kind(call->kind), c->size,
                               shares ? bytes * c->size : bytes);
}

/* What was begun before on the second clock ends first. */
static void pass(mc_comm *c, mc_comm_request *r, plan_state *state)
{
    mc_plan_clock *clock = mc_plan_clock_of(c->ctx->device);
    const mc_rates *rates = mc_plan_rates_of(c->ctx->device);
    double seconds = seconds_of(c, &r->call), begin = clock->now;
    if (clock->side > begin) begin = clock->side;
    clock->communication += seconds;
    state->done = clock->side = begin + seconds;
    if (r->later && rates && rates->beside) return;
    clock->exposed += clock->side - clock->now;
    clock->now = clock->side;
}

static void wait_for(mc_comm *c, const plan_state *state)
{
    mc_plan_clock *clock = mc_plan_clock_of(c->ctx->device);
    if (state->done <= clock->now) return;
    clock->exposed += state->done - clock->now;
    clock->now = state->done;
}

/* ---- the transport --------------------------------------------------------------------------- */

/* What the call will hold while it is under way: CPU ranks gather what they reduce. */
static size_t scratch_of(mc_comm *c, mc_comm_request *r)
{
#ifdef MC_HAVE_MPI
    if (mc_plan_is_host(c->ctx->device)) return mc_comm_mpi_scratch(r);
#endif
    (void)c, (void)r;
    return 0;
}

static mc_status plan_begin(mc_comm *c, mc_comm_request *r)
{
    mc_device *d = c->ctx->device;
    size_t bytes = scratch_of(c, r);
    plan_state *state = r->state ? r->state : (r->state = mc_malloc(sizeof *state));
    if (!state) return mc_fail_nomem(c->ctx, "a planned call");
    *state = (plan_state){.scratch = bytes ? d->alloc(d, bytes) : NULL};
    pass(c, r, state);
    return mc_error_status(c->ctx);
}

static mc_status plan_fine(mc_comm *c) { return mc_error_status(c->ctx); }
static void plan_nothing(mc_comm *c) { (void)c; }
static void plan_release_request(mc_comm_request *r) { mc_free(r->state); }

static mc_status plan_finish(mc_comm *c, mc_comm_request *r)
{
    mc_device *d = c->ctx->device;
    plan_state *state = r->state;
    d->free(d, state->scratch, scratch_of(c, r));
    state->scratch = NULL;
    wait_for(c, state);
    return mc_error_status(c->ctx);
}

static mc_status plan_split(mc_comm *c, int colour, int key, mc_comm *child)
{
    (void)colour, (void)key, (void)child;
    return mc_fail(c->ctx, MC_ERR_UNSUPPORTED, "a plan: groups of ranks are not split");
}

static const mc_comm_transport plan_transport = {
    .name = "plan",
    .begin = plan_begin,
    .finish = plan_finish,
    .group_start = plan_fine,
    .group_end = plan_fine,
    .drain = plan_fine,
    .split = plan_split,
    .abort = plan_nothing,
    .release_request = plan_release_request,
    .release = plan_nothing,
};

mc_status mc_comm_init_plan(mc_comm *c)
{
    c->transport = &plan_transport;
    return MC_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

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

/* The median of a few calls; every rank waits for all before each. */
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

mc_status mc_comm_measure(mc_comm *c, mc_rates *rates)
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
