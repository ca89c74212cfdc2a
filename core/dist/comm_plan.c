/* A group of ranks of which there is only one, on a device that computes nothing: calls are counted
 * and their memory is left alone, so that a step of any number of ranks can be planned. */
#include "core/device/plan_internal.h"
#include "core/dist/comm_internal.h"

/* What the call will hold while it is under way: CPU ranks gather what they reduce. */
static size_t scratch_of(mc_comm *c, mc_comm_request *r)
{
#ifdef MC_HAVE_MPI
    if (mc_plan_like(c->ctx->device)->is_host) return mc_comm_mpi_scratch(r);
#endif
    (void)c, (void)r;
    return 0;
}

static mc_status plan_begin(mc_comm *c, mc_comm_request *r)
{
    mc_device *d = c->ctx->device;
    size_t bytes = scratch_of(c, r);
    r->done = !bytes;
    if (bytes) r->state = d->alloc(d, bytes);
    return mc_error_status(c->ctx);
}

static bool plan_is_done(mc_comm *c, mc_comm_request *r)
{
    (void)c;
    return r->done;
}

static mc_status plan_fine(mc_comm *c) { return mc_error_status(c->ctx); }
static void plan_nothing(mc_comm *c) { (void)c; }
static void plan_release_request(mc_comm_request *r) { (void)r; }

static mc_status plan_finish(mc_comm *c, mc_comm_request *r)
{
    mc_device *d = c->ctx->device;
    d->free(d, r->state, scratch_of(c, r));
    r->state = NULL;
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
    .is_done = plan_is_done,
    .progress = plan_nothing,
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
