/* A simulated group of ranks, of which only this one exists, on a planning device. Calls are
 * counted and their time passes, but their memory is not touched. So a step of any number of ranks
 * can be planned. */
#include "core/device/plan_internal.h"
#include "core/device/plan_timer_internal.h"
#include "core/dist/comm_internal.h"

/* A request's state, kept for its next use. */
typedef struct plan_state {
    void *scratch;
    double done; /* when, on the timer's clock */
} plan_state;

/* ---- time ------------------------------------------------------------------------------------ */

/* Broadcasts and messages are priced as gathers around a ring, sums to one rank as
 * reduce-scatters. */
static mc_bus_kind bus_kind(mc_comm_kind kind)
{
    if (kind == MC_COMM_ALL_REDUCE) return MC_BUS_ALL_REDUCE;
    bool sums = kind == MC_COMM_REDUCE || kind == MC_COMM_REDUCE_SCATTER;
    return sums ? MC_BUS_REDUCE_SCATTER : MC_BUS_ALL_GATHER;
}

static void pass(mc_comm *c, mc_comm_request *r, plan_state *state)
{
    const mc_comm_call *call = &r->call;
    mc_plan_timer *timer = mc_plan_timer_of(c->ctx->device);
    double bytes = (double)mc_comm_bytes(call);
    bool shares = call->kind == MC_COMM_ALL_GATHER || call->kind == MC_COMM_REDUCE_SCATTER;
    if (shares) bytes *= c->size;
    if (timer)
        state->done =
            timer->collective(timer, bus_kind(call->kind), c->size, c->apart, bytes, r->later);
}

static void wait_for(mc_comm *c, const plan_state *state)
{
    mc_plan_timer *timer = mc_plan_timer_of(c->ctx->device);
    if (timer) timer->wait_ranks(timer, state->done);
}

/* ---- the transport --------------------------------------------------------------------------- */

/* Memory that the call holds while it runs: CPU ranks gather the data that they reduce. */
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
