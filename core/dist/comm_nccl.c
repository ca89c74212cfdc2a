/* GPU ranks over NCCL, which is looked for when a communicator is made: a program runs without it.
 *
 * NCCL's communicators are non-blocking: its functions come back at once, and what they do in the
 * background is asked for with the communicator's timeout and hooks. Work is ordered by streams;
 * nothing here waits for the GPU but `drain`. A watchdog's thread may ask and abort at any time, so
 * every use of the NCCL communicator is within the mutex, which nobody holds for long. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "core/device/cuda/cuda_internal.h"
#include "core/dist/comm_internal.h"

_Static_assert(sizeof(((mc_comm_id *)0)->bytes) == NCCL_UNIQUE_ID_BYTES, "an id holds NCCL's");

#define NCCL_FUNCTIONS(X)     \
    X(ncclGetVersion)         \
    X(ncclGetUniqueId)        \
    X(ncclCommInitRankConfig) \
    X(ncclCommFinalize)       \
    X(ncclCommDestroy)        \
    X(ncclCommAbort)          \
    X(ncclCommSplit)          \
    X(ncclCommCount)          \
    X(ncclCommUserRank)       \
    X(ncclCommGetAsyncError)  \
    X(ncclGetErrorString)     \
    X(ncclGetLastError)       \
    X(ncclAllReduce)          \
    X(ncclReduce)             \
    X(ncclBroadcast)          \
    X(ncclAllGather)          \
    X(ncclReduceScatter)      \
    X(ncclSend)               \
    X(ncclRecv)               \
    X(ncclGroupStart)         \
    X(ncclGroupEnd)

/* The library's functions, under their own names. */
typedef struct nccl_api {
#define MEMBER(name) __typeof__(&name) name;
    NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
    int version;
} nccl_api;

/* Something on its way on the GPU, for the watchdog. */
typedef struct flight {
    cudaEvent_t done;
    char text[96];
} flight;

enum { FLIGHTS = 512 };

/* The transport's part of a communicator. */
typedef struct nccl_group {
    nccl_api api;
    pthread_mutex_t mutex;
    ncclComm_t comm; /* NULL: not yet, or aborted */
    cudaStream_t stream, side;
    bool own_side;
    cudaEvent_t before; /* what was launched on `stream` before a started call */
    /* a ring of flights, the oldest at `first`; since when it has been the oldest, and not done */
    flight flights[FLIGHTS];
    unsigned first, count;
    double since;
} nccl_group;

/* The transport's part of a request: an event behind its work. */
typedef struct nccl_call {
    cudaEvent_t done;
} nccl_call;

/* ---- the library ----------------------------------------------------------------------------- */

static mc_status load(mc_context *ctx, nccl_api *api)
{
    enum { OLDEST = 21803 }; /* 2.18.3: groups are split since 2.18 */
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        return mc_fail(ctx, MC_ERR_NOT_FOUND, "GPUs talk through NCCL, which is not found: %s",
                       why ? why : "libnccl.so.2");
    }
#define FIND(name)                                                \
    *(void **)&api->name = dlsym(library, #name);                 \
    if (!api->name)                                               \
        return mc_fail(ctx, MC_ERR_NOT_FOUND,                     \
                       "libnccl.so.2 has no function " #name ": " \
                       "expected NCCL 2.18.3 or later");
    NCCL_FUNCTIONS(FIND)
#undef FIND
    ncclResult_t result = api->ncclGetVersion(&api->version);
    if (result || api->version < OLDEST)
        return mc_fail(ctx, MC_ERR_UNSUPPORTED, "NCCL version %d, expected 2.18.3 or later",
                       api->version);
    return MC_OK;
}

mc_status mc_comm_nccl_unique_id(mc_context *ctx, mc_comm_id *id)
{
    nccl_api api;
    ncclUniqueId made;
    if (load(ctx, &api)) return mc_error_status(ctx);
    ncclResult_t result = api.ncclGetUniqueId(&made);
    if (result)
        return mc_fail(ctx, MC_ERR_DEVICE, "ncclGetUniqueId: %s", api.ncclGetErrorString(result));
    memcpy(id->bytes, made.internal, sizeof id->bytes);
    return MC_OK;
}

static ncclDataType_t type_of(mc_dtype dtype)
{
    switch (dtype) {
    case MC_F32: return ncclFloat32;
    case MC_F16: return ncclFloat16;
    case MC_BF16: return ncclBfloat16;
    case MC_I64: return ncclInt64;
    case MC_I32: return ncclInt32;
    default: return ncclUint8;
    }
}

static ncclRedOp_t op_of(mc_reduce_op op)
{
    switch (op) {
    case MC_REDUCE_PROD: return ncclProd;
    case MC_REDUCE_MAX: return ncclMax;
    case MC_REDUCE_MIN: return ncclMin;
    case MC_REDUCE_AVG: return ncclAvg;
    default: return ncclSum;
    }
}

/* ---- waiting for NCCL ------------------------------------------------------------------------ */

/* What NCCL says of the communicator, as a result and as text. An aborted one has failed. */
static ncclResult_t ask(nccl_group *g, char *text, size_t size)
{
    ncclResult_t state = ncclInvalidUsage;
    pthread_mutex_lock(&g->mutex);
    if (g->comm) {
        ncclResult_t result = g->api.ncclCommGetAsyncError(g->comm, &state);
        if (result) state = result;
        if (state && state != ncclInProgress)
            snprintf(text, size, "%s: %s", g->api.ncclGetErrorString(state),
                     g->api.ncclGetLastError(g->comm));
    } else {
        snprintf(text, size, "the communicator was aborted");
    }
    pthread_mutex_unlock(&g->mutex);
    return state;
}

/* After a call that gave `result`: waits until NCCL has done its part in the background. */
static mc_status settle(mc_comm *c, ncclResult_t result, const char *what)
{
    nccl_group *g = c->state;
    char text[300] = "";
    double deadline = mc_comm_clock() + c->timeout;
    mc_comm_backoff backoff = {0};
    if (result && result != ncclInProgress)
        return mc_fail(c->ctx, MC_ERR_DEVICE, "%s: %s", what, g->api.ncclGetErrorString(result));
    if (!result) return MC_OK;
    while ((result = ask(g, text, sizeof text)) == ncclInProgress) {
        if (mc_comm_stopped(c)) {
            mc_error_while(&c->ctx->error, "waiting for %s", what);
            return mc_error_status(c->ctx);
        }
        if (mc_comm_clock() > deadline)
            return mc_fail(c->ctx, MC_ERR_IO,
                           "%s: not done within %g s: another rank of the group has not come", what,
                           c->timeout);
        mc_comm_pause(&backoff);
    }
    return result ? mc_fail(c->ctx, MC_ERR_DEVICE, "%s: %s", what, text) : MC_OK;
}

static void abort_nccl(nccl_group *g)
{
    pthread_mutex_lock(&g->mutex);
    if (g->comm) g->api.ncclCommAbort(g->comm);
    g->comm = NULL;
    pthread_mutex_unlock(&g->mutex);
}

static mc_status check_cuda(mc_comm *c, cudaError_t error, const char *what)
{
    mc_device *d = c->ctx->device;
    if (mc_cuda_check(d, error, what) == MC_OK) return MC_OK;
    return mc_fail(c->ctx, MC_ERR_DEVICE, "communicator: %s", d->failure);
}

/* ---- flights --------------------------------------------------------------------------------- */

/* Has the watchdog watch what was launched on the stream so far. Where the ring is full a later
 * flight stands for this one too: streams keep their order. */
static mc_status take_off(mc_comm *c, cudaStream_t stream, const char *text)
{
    nccl_group *g = c->state;
    cudaError_t error = cudaSuccess;
    if (c->ctx->device->recording) return MC_OK; /* nothing is launched now */
    pthread_mutex_lock(&g->mutex);
    if (g->count < FLIGHTS) {
        flight *f = &g->flights[(g->first + g->count) % FLIGHTS];
        if (!f->done) error = cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming);
        if (!error) error = cudaEventRecord(f->done, stream);
        snprintf(f->text, sizeof f->text, "%s", text);
        if (!error && !g->count++) g->since = mc_comm_clock();
    }
    pthread_mutex_unlock(&g->mutex);
    return check_cuda(c, error, "an event");
}

/* Lets flights go that have landed; whether one is over its time, and which. */
static bool is_overdue(nccl_group *g, double timeout, char *text, size_t size)
{
    pthread_mutex_lock(&g->mutex);
    while (g->count && cudaEventQuery(g->flights[g->first].done) != cudaErrorNotReady) {
        g->first = (g->first + 1) % FLIGHTS;
        g->count--;
        g->since = mc_comm_clock();
    }
    bool overdue = g->count && mc_comm_clock() - g->since > timeout;
    if (overdue) snprintf(text, size, "%s", g->flights[g->first].text);
    pthread_mutex_unlock(&g->mutex);
    return overdue;
}

static bool nccl_watch(mc_comm *c, mc_error *error)
{
    nccl_group *g = c->state;
    char text[300] = "";
    if (atomic_load(&c->aborted)) {
        mc_error_set(error, MC_ERR_INTERRUPTED, "the communicator was aborted on this rank");
        return true;
    }
    cudaSetDevice(mc_cuda_of(c->ctx->device)->ordinal); /* of the watchdog's thread */
    ncclResult_t state = ask(g, text, sizeof text);
    if (state && state != ncclInProgress) {
        mc_error_set(error, MC_ERR_DEVICE, "NCCL on rank %d of %d: %s", c->rank, c->size, text);
        return true;
    }
    if (!is_overdue(g, c->timeout, text, sizeof text)) return false;
    mc_error_set(error, MC_ERR_IO, "%s: not done on the GPU within %g s", text, c->timeout);
    return true;
}

static void nccl_mark(mc_comm *c, const char *what)
{
    nccl_group *g = c->state;
    take_off(c, g->stream, what);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static ncclResult_t launch(const nccl_group *g, const mc_comm_call *call, cudaStream_t stream)
{
    const nccl_api *api = &g->api;
    size_t n = (size_t)call->count;
    ncclDataType_t type = type_of(call->dtype);
    ncclRedOp_t op = op_of(call->op);
    const void *src = call->src;
    void *dst = call->dst;
    switch (call->kind) {
    case MC_COMM_ALL_REDUCE: return api->ncclAllReduce(src, dst, n, type, op, g->comm, stream);
    case MC_COMM_REDUCE: return api->ncclReduce(src, dst, n, type, op, call->peer, g->comm, stream);
    case MC_COMM_BROADCAST:
        return api->ncclBroadcast(src, dst, n, type, call->peer, g->comm, stream);
    case MC_COMM_ALL_GATHER: return api->ncclAllGather(src, dst, n, type, g->comm, stream);
    case MC_COMM_REDUCE_SCATTER:
        return api->ncclReduceScatter(src, dst, n, type, op, g->comm, stream);
    case MC_COMM_SEND: return api->ncclSend(src, n, type, call->peer, g->comm, stream);
    case MC_COMM_RECV: return api->ncclRecv(dst, n, type, call->peer, g->comm, stream);
    }
    return ncclInvalidArgument;
}

/* The side stream, made at the first use, at the highest priority: its kernels are short, and
 * others wait for them. */
static mc_status need_side(mc_comm *c)
{
    nccl_group *g = c->state;
    int lowest = 0, highest = 0;
    if (!g->side) {
        cudaError_t error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
        if (!error) error = cudaStreamCreateWithPriority(&g->side, cudaStreamNonBlocking, highest);
        if (check_cuda(c, error, "a stream")) return mc_error_status(c->ctx);
        g->own_side = true;
    }
    if (g->before) return MC_OK;
    return check_cuda(c, cudaEventCreateWithFlags(&g->before, cudaEventDisableTiming), "an event");
}

/* The stream of a started call, which begins when all before it on the device's stream is done. */
static mc_status begin_beside(mc_comm *c, mc_comm_request *r)
{
    nccl_group *g = c->state;
    nccl_call *call = r->state;
    if (!call && !(call = r->state = mc_calloc(1, sizeof *call)))
        return mc_fail_nomem(c->ctx, "a communicator's call");
    if (need_side(c)) return mc_error_status(c->ctx);
    cudaError_t error = cudaSuccess;
    if (!call->done) error = cudaEventCreateWithFlags(&call->done, cudaEventDisableTiming);
    if (!error) error = cudaEventRecord(g->before, g->stream);
    if (!error) error = cudaStreamWaitEvent(g->side, g->before, 0);
    return check_cuda(c, error, "an event");
}

static mc_status nccl_begin(mc_comm *c, mc_comm_request *r)
{
    nccl_group *g = c->state;
    mc_comm_text text = mc_comm_print(r);
    cudaStream_t stream = g->stream;
    if (r->later && begin_beside(c, r)) return mc_error_status(c->ctx);
    if (r->later) stream = g->side;
    pthread_mutex_lock(&g->mutex);
    ncclResult_t result = g->comm ? launch(g, &r->call, stream) : ncclInvalidUsage;
    pthread_mutex_unlock(&g->mutex);
    r->done = !r->later;
    if (c->group_depth) { /* launched at the group's end */
        if (!result || result == ncclInProgress) return MC_OK;
        return settle(c, result, text.text);
    }
    if (settle(c, result, text.text) || take_off(c, stream, text.text))
        return mc_error_status(c->ctx);
    if (!r->later) return MC_OK;
    return check_cuda(c, cudaEventRecord(((nccl_call *)r->state)->done, stream), "an event");
}

/* After an error the work is not to write to memory that is given up: NCCL is aborted. */
static mc_status nccl_finish(mc_comm *c, mc_comm_request *r)
{
    nccl_group *g = c->state;
    if (mc_failed(c->ctx)) {
        mc_comm_abort(c);
        return mc_error_status(c->ctx);
    }
    return check_cuda(c, cudaStreamWaitEvent(g->stream, ((nccl_call *)r->state)->done, 0),
                      "waiting for a started call");
}

static bool nccl_is_done(mc_comm *c, mc_comm_request *r)
{
    (void)c;
    return cudaEventQuery(((nccl_call *)r->state)->done) != cudaErrorNotReady;
}

static void nccl_progress(mc_comm *c) { (void)c; } /* the GPU does it */

static mc_status nccl_group_start(mc_comm *c)
{
    nccl_group *g = c->state;
    ncclResult_t result = g->api.ncclGroupStart();
    if (!result) return MC_OK;
    return mc_fail(c->ctx, MC_ERR_DEVICE, "ncclGroupStart: %s", g->api.ncclGetErrorString(result));
}

static mc_status nccl_group_end(mc_comm *c)
{
    nccl_group *g = c->state;
    pthread_mutex_lock(&g->mutex);
    ncclResult_t result = g->api.ncclGroupEnd();
    pthread_mutex_unlock(&g->mutex);
    if (mc_failed(c->ctx)) return mc_error_status(c->ctx);
    mc_comm_text text = {"a group of calls"};
    if (c->group) text = mc_comm_print(c->group);
    if (settle(c, result, text.text)) return mc_error_status(c->ctx);
    return take_off(c, g->stream, text.text);
}

static mc_status nccl_drain(mc_comm *c)
{
    nccl_group *g = c->state;
    cudaError_t error = cudaSuccess;
    double deadline = mc_comm_clock() + c->timeout;
    mc_comm_backoff backoff = {0};
    while ((error = cudaStreamQuery(g->stream)) == cudaErrorNotReady) {
        if (mc_comm_stopped(c)) return mc_error_status(c->ctx);
        if (mc_comm_clock() > deadline)
            return mc_fail(c->ctx, MC_ERR_IO,
                           "barrier on rank %d of %d: not done within %g s: another rank has not "
                           "come, or the GPU is still at work",
                           c->rank, c->size, c->timeout);
        mc_comm_pause(&backoff);
    }
    return check_cuda(c, error, "waiting for the GPU");
}

static void nccl_set_streams(mc_comm *c, void *stream, void *side)
{
    nccl_group *g = c->state;
    if (stream) g->stream = stream;
    if (!side) return;
    if (g->own_side) cudaStreamDestroy(g->side);
    g->own_side = false;
    g->side = side;
}

static void nccl_abort(mc_comm *c) { abort_nccl(c->state); }

/* ---- groups ---------------------------------------------------------------------------------- */

static const mc_comm_transport nccl_transport;

static mc_status new_state(mc_comm *c)
{
    nccl_group *g = c->state = mc_calloc(1, sizeof *g);
    if (!g) return mc_fail_nomem(c->ctx, "a communicator");
    pthread_mutex_init(&g->mutex, NULL);
    g->stream = mc_cuda_of(c->ctx->device)->stream;
    c->transport = &nccl_transport;
    return MC_OK;
}

static mc_status nccl_split(mc_comm *c, int colour, int key, mc_comm *child)
{
    nccl_group *g = c->state, *part;
    if (new_state(child)) return mc_error_status(c->ctx);
    part = child->state;
    part->api = g->api;
    part->stream = g->stream;
    c->sequence++;
    if (c->hooks.note) c->hooks.note(c->hooks.user, c->sequence, "split");
    pthread_mutex_lock(&g->mutex);
    ncclResult_t result = ncclInvalidUsage;
    if (g->comm)
        result = g->api.ncclCommSplit(g->comm, colour < 0 ? NCCL_SPLIT_NOCOLOR : colour, key,
                                      &part->comm, NULL);
    pthread_mutex_unlock(&g->mutex);
    if (settle(c, result, "ncclCommSplit")) c->broken = true;
    if (c->broken || colour < 0) return mc_error_status(c->ctx);
    if (settle(child, ncclInProgress, "ncclCommSplit")) return mc_error_status(c->ctx);
    result = g->api.ncclCommCount(part->comm, &child->size);
    if (!result) result = g->api.ncclCommUserRank(part->comm, &child->rank);
    return settle(child, result, "ncclCommSplit");
}

static void nccl_release_request(mc_comm_request *r)
{
    nccl_call *call = r->state;
    if (call->done) cudaEventDestroy(call->done);
    mc_free(call);
}

/* Ends the NCCL communicator: in good order if NCCL flushes what this rank has begun within a short
 * time, else by force. */
static void close_nccl(mc_comm *c)
{
    nccl_group *g = c->state;
    char text[300];
    double longest = c->timeout < 10 ? c->timeout : 10, deadline = mc_comm_clock() + longest;
    mc_comm_backoff backoff = {0};
    bool well = g->comm && !mc_failed(c->ctx) && !c->broken && !atomic_load(&c->aborted);
    ncclResult_t state = well ? g->api.ncclCommFinalize(g->comm) : ncclInvalidUsage;
    while (well && (state = ask(g, text, sizeof text)) == ncclInProgress &&
           mc_comm_clock() < deadline)
        mc_comm_pause(&backoff);
    if (well && !state) {
        g->api.ncclCommDestroy(g->comm);
        g->comm = NULL;
    }
    abort_nccl(g);
}

static void nccl_release(mc_comm *c)
{
    nccl_group *g = c->state;
    close_nccl(c);
    for (int i = 0; i < FLIGHTS; i++)
        if (g->flights[i].done) cudaEventDestroy(g->flights[i].done);
    if (g->before) cudaEventDestroy(g->before);
    if (g->own_side) cudaStreamDestroy(g->side);
    pthread_mutex_destroy(&g->mutex);
    mc_free(g);
    c->state = NULL;
}

static const mc_comm_transport nccl_transport = {
    .name = "nccl",
    .begin = nccl_begin,
    .finish = nccl_finish,
    .is_done = nccl_is_done,
    .progress = nccl_progress,
    .group_start = nccl_group_start,
    .group_end = nccl_group_end,
    .drain = nccl_drain,
    .split = nccl_split,
    .watch = nccl_watch,
    .mark = nccl_mark,
    .set_streams = nccl_set_streams,
    .abort = nccl_abort,
    .release_request = nccl_release_request,
    .release = nccl_release,
};

mc_status mc_comm_init_nccl(mc_comm *c, const mc_comm_id *id)
{
    ncclUniqueId unique;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (!id) return mc_fail(c->ctx, MC_ERR_ARGUMENT, "GPU ranks need an id to find one another");
    memcpy(unique.internal, id->bytes, sizeof unique.internal);
    config.blocking = 0;
    if (new_state(c)) return mc_error_status(c->ctx);
    nccl_group *g = c->state;
    if (load(c->ctx, &g->api)) return mc_error_status(c->ctx);
    mc_cuda_device *d = mc_cuda_of(c->ctx->device);
    if (check_cuda(c, cudaSetDevice(d->ordinal), "cudaSetDevice")) return mc_error_status(c->ctx);
    ncclResult_t result =
        g->api.ncclCommInitRankConfig(&g->comm, c->size, unique, c->rank, &config);
    return settle(c, result, "ncclCommInitRankConfig");
}
