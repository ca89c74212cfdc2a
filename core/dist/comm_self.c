/* A group of one rank: its collectives are copies. */
#include <string.h>
#include "core/dist/comm_internal.h"
#ifdef MC_HAVE_CUDA
#include "core/device/cuda/runtime/cuda_internal.h"
#endif

/* Calls of the open group, from the rank to itself, whose counterpart has not been called yet. */
typedef struct self_state {
    mc_comm_request *waiting; /* all sends, or all receives; oldest first */
    void *stream;             /* GPU: cudaStream_t; NULL: the device's */
} self_state;

#ifdef MC_HAVE_CUDA
static mc_status copy_on_gpu(mc_comm *c, void *dst, const void *src, size_t bytes)
{
    const self_state *s = c->state;
    mc_device *d = c->ctx->device;
    cudaStream_t stream = s->stream ? s->stream : d->stream(d);
    cudaError_t error = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
    if (mc_cuda_check(d, error, "a copy") == MC_OK) return MC_OK;
    return mc_fail(c->ctx, MC_ERR_DEVICE, "communicator of one rank: %s", d->failure);
}
#endif

static mc_status copy(mc_comm *c, void *dst, const void *src, size_t bytes)
{
    if (src == dst) return MC_OK;
#ifdef MC_HAVE_CUDA
    if (!c->ctx->device->is_host) return copy_on_gpu(c, dst, src, bytes);
#endif
    (void)c;
    memmove(dst, src, bytes);
    return MC_OK;
}

/* Matches r with the oldest waiting counterpart, or adds r to those that wait. */
static mc_status meet(mc_comm *c, mc_comm_request *r)
{
    self_state *s = c->state;
    mc_comm_request *other = s->waiting;
    if (!c->group_depth)
        return mc_fail(c->ctx, MC_ERR_STATE,
                       "%s: a rank reaches itself only within a group of calls",
                       mc_comm_print(r).text);
    if (!other || other->call.kind == r->call.kind) {
        mc_comm_request **last = &s->waiting;
        while (*last) last = (mc_comm_request **)&(*last)->state;
        *last = r;
        return MC_OK;
    }
    s->waiting = other->state;
    other->state = NULL;
    if (mc_comm_bytes(&other->call) != mc_comm_bytes(&r->call))
        return mc_fail(c->ctx, MC_ERR_ARGUMENT, "%s: the other end has %lld elements",
                       mc_comm_print(r).text, (long long)other->call.count);
    r->done = other->done = true;
    const mc_comm_call *from = r->call.src ? &r->call : &other->call;
    void *to = r->call.dst ? r->call.dst : other->call.dst;
    return copy(c, to, from->src, mc_comm_bytes(from));
}

static mc_status self_begin(mc_comm *c, mc_comm_request *r)
{
    if (r->call.kind == MC_COMM_SEND || r->call.kind == MC_COMM_RECV) return meet(c, r);
    r->done = true;
    return copy(c, r->call.dst, r->call.src, mc_comm_bytes(&r->call));
}

static mc_status self_finish(mc_comm *c, mc_comm_request *r)
{
    r->state = NULL;
    return mc_fail(c->ctx, MC_ERR_STATE, "%s: the group of calls has no other end for it",
                   mc_comm_print(r).text);
}

static void self_nothing(mc_comm *c) { (void)c; }
static mc_status self_group_start(mc_comm *c) { return mc_error_status(c->ctx); }

static mc_status self_group_end(mc_comm *c)
{
    ((self_state *)c->state)->waiting = NULL;
    return mc_error_status(c->ctx);
}

static mc_status self_drain(mc_comm *c)
{
#ifdef MC_HAVE_CUDA
    const self_state *s = c->state;
    mc_device *d = c->ctx->device;
    if (d->is_host) return MC_OK;
    cudaStream_t stream = s->stream ? s->stream : d->stream(d);
    if (mc_cuda_check(d, cudaStreamSynchronize(stream), "waiting for the GPU"))
        return mc_fail(c->ctx, MC_ERR_DEVICE, "barrier: %s", d->failure);
#endif
    return mc_error_status(c->ctx);
}

static mc_status self_split(mc_comm *c, int colour, int key, mc_comm *child)
{
    (void)key;
    return colour < 0 ? mc_error_status(c->ctx) : mc_comm_init_self(child);
}

static void self_release_request(mc_comm_request *r) { (void)r; }

static void self_release(mc_comm *c)
{
    for (mc_comm_request *r = c->requests; r; r = r->older) r->state = NULL;
    mc_free(c->state);
    c->state = NULL;
}

static const mc_comm_transport self_transport = {
    .name = "self",
    .begin = self_begin,
    .finish = self_finish,
    .group_start = self_group_start,
    .group_end = self_group_end,
    .drain = self_drain,
    .split = self_split,
    .abort = self_nothing,
    .release_request = self_release_request,
    .release = self_release,
};

mc_status mc_comm_init_self(mc_comm *c)
{
    c->size = 1;
    c->rank = 0;
    c->state = mc_calloc(1, sizeof(self_state));
    if (!c->state) return mc_fail_nomem(c->ctx, "a communicator");
    c->transport = &self_transport;
    return MC_OK;
}
