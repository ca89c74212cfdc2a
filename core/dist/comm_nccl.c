/* GPU ranks over NCCL, which is loaded when a communicator is created: a program runs without it.
 *
 * NCCL's communicators are non-blocking: its functions return at once, and their progress in the
 * background is polled under the communicator's timeout and hooks. Work is ordered by streams; only
 * `drain` waits for the GPU.
 *
 * Each communicator has a keeper thread, which checks its health (mc_comm_watch) and alone aborts
 * it. ncclCommAbort ends hanging GPU work at once, but returns only when no recorded step uses the
 * communicator. The context's thread frees recorded steps, so it must not be the one that waits.
 * Both threads use NCCL's communicator under the mutex, which is held only briefly; to abort, the
 * keeper first clears the pointer. NCCL ties a group of calls to the thread that opened it, so the
 * keeper aborts only after the group is closed. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "core/base/library_names_internal.h"
#include "core/base/signals_internal.h"
#include "core/device/cuda/runtime/cuda_internal.h"
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

/* NCCL's functions, under their own names. */
typedef struct nccl_api {
#define MEMBER(name) __typeof__(&name) name;
    NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
    int version;
} nccl_api;

/* Work in flight on the GPU, for the keeper to watch. */
typedef struct flight {
    cudaEvent_t done;
    bool is_mark; /* created by mc_comm_mark, as `number` */
    uint64_t number;
    const char *operation; /* in notes */
    char text[160];
} flight;

enum { FLIGHTS = 512 };

/* The transport's part of a communicator. */
typedef struct nccl_group {
    nccl_api api;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* signalled when one of the next three changes */
    bool closing, unwanted; /* the communicator is being freed; must be aborted */
    bool in_group;          /* a group of calls is open */
    bool has_keeper;
    pthread_t keeper;
    ncclComm_t comm; /* NULL: not created yet, or aborted */
    cudaStream_t stream, side;
    cudaEvent_t before; /* marks the launches on `stream` before a started call */
    /* a ring of flights, the oldest at `first`; `since`: when it became the oldest */
    flight flights[FLIGHTS];
    unsigned first, count;
    double since;
} nccl_group;

/* The transport's part of a request: an event after its work. */
typedef struct nccl_call {
    cudaEvent_t done;
} nccl_call;

/* ---- the library ----------------------------------------------------------------------------- */

static mc_status load(mc_context *ctx, nccl_api *api)
{
    enum { OLDEST = 21803 }; /* 2.18.3: ncclCommSplit exists since 2.18 */
    void *library = dlopen(MC_LIBRARY_NCCL, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        return mc_fail(ctx, MC_ERR_NOT_FOUND, "GPUs talk through NCCL, which is not found: %s",
                       why ? why : MC_LIBRARY_NCCL);
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

/* NCCL's state of the communicator, as a result and as text. An aborted one has failed. */
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

/* Whether the job's channel reports the failure too within a second: its error names the rank. */
static bool heard_why(const mc_comm *c, mc_error *error)
{
    double deadline = mc_comm_clock() + 1;
    mc_comm_backoff backoff = {0};
    if (!c->hooks.stop) return false;
    while (!c->hooks.stop(c->hooks.user, error)) {
        if (mc_comm_clock() > deadline) return false;
        mc_comm_pause(&backoff);
    }
    return true;
}

static mc_status fail_nccl(mc_comm *c, const char *what, const char *text)
{
    if (mc_comm_stopped(c) || heard_why(c, &c->ctx->error))
        mc_error_while(&c->ctx->error, "waiting for %s", what);
    return mc_fail(c->ctx, MC_ERR_DEVICE, "%s: %s", what, text);
}

static mc_status fail_late(mc_comm *c, const char *what, uint64_t sequence, const char *operation)
{
    mc_comm_why why = mc_comm_explain(c, sequence, operation);
    if (!*why.text && mc_comm_stopped(c)) /* another rank's explanation came first */
        mc_error_while(&c->ctx->error, "waiting for %s", what);
    return mc_fail(c->ctx, MC_ERR_IO, "%s: not done within %g s: %s", what, c->timeout,
                   *why.text ? why.text : "another rank of the group has not come");
}

/* Waits until NCCL has finished a call in the background, after the call returned `result`. `what`
 * names the call in messages, `sequence` and `operation` in notes. */
static mc_status settle(mc_comm *c, ncclResult_t result, const char *what, uint64_t sequence,
                        const char *operation)
{
    nccl_group *g = c->state;
    char text[300] = "";
    double deadline = mc_comm_clock() + c->timeout;
    mc_comm_backoff backoff = {0};
    if (result && result != ncclInProgress)
        return fail_nccl(c, what, g->api.ncclGetErrorString(result));
    if (!result) return MC_OK;
    while ((result = ask(g, text, sizeof text)) == ncclInProgress) {
        if (mc_comm_stopped(c)) return fail_nccl(c, what, "stopped");
        if (mc_comm_clock() > deadline) return fail_late(c, what, sequence, operation);
        mc_comm_pause(&backoff);
    }
    return result ? fail_nccl(c, what, text) : MC_OK;
}

/* settle for a request. */
static mc_status settle_call(mc_comm *c, ncclResult_t result, const mc_comm_request *r)
{
    return settle(c, result, mc_comm_print(r).text, r->sequence, mc_comm_collective(r->call.kind));
}

/* Asks the keeper to abort, from any thread; does not wait. */
static void nccl_abort(mc_comm *c)
{
    nccl_group *g = c->state;
    pthread_mutex_lock(&g->mutex);
    g->unwanted = true;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

static mc_status check_cuda(mc_comm *c, cudaError_t error, const char *what)
{
    mc_device *d = c->ctx->device;
    if (mc_cuda_check(d, error, what) == MC_OK) return MC_OK;
    return mc_fail(c->ctx, MC_ERR_DEVICE, "communicator: %s", d->failure);
}

/* ---- flights --------------------------------------------------------------------------------- */

/* Makes the keeper watch everything launched on the stream so far. If the ring is full it does
 * nothing: a later flight covers this one, because streams keep their order. */
static mc_status take_off(mc_comm *c, cudaStream_t stream, const flight *what)
{
    nccl_group *g = c->state;
    cudaError_t error = cudaSuccess;
    if (c->ctx->device->recording) return MC_OK; /* the work is recorded, not launched */
    pthread_mutex_lock(&g->mutex); /* the keeper removes flights; only this thread adds them */
    flight *f = g->count < FLIGHTS ? &g->flights[(g->first + g->count) % FLIGHTS] : NULL;
    pthread_mutex_unlock(&g->mutex);
    if (!f) return MC_OK;
    if (!f->done) error = cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming);
    if (!error) error = cudaEventRecord(f->done, stream);
    f->is_mark = what->is_mark;
    f->number = what->number;
    f->operation = what->operation;
    memcpy(f->text, what->text, sizeof f->text);
    pthread_mutex_lock(&g->mutex);
    if (!error && !g->count++) g->since = mc_comm_clock();
    pthread_mutex_unlock(&g->mutex);
    return check_cuda(c, error, "an event");
}

static mc_status take_off_call(mc_comm *c, cudaStream_t stream, const mc_comm_request *r)
{
    flight f = {.number = r->sequence, .operation = mc_comm_collective(r->call.kind)};
    memcpy(f.text, mc_comm_print(r).text, sizeof f.text);
    return take_off(c, stream, &f);
}

/* Removes finished flights; returns whether the oldest is over its time, and which it is. */
static bool is_overdue(nccl_group *g, double timeout, flight *which)
{
    pthread_mutex_lock(&g->mutex);
    while (g->count && cudaEventQuery(g->flights[g->first].done) != cudaErrorNotReady) {
        g->first = (g->first + 1) % FLIGHTS;
        g->count--;
        g->since = mc_comm_clock();
    }
    bool overdue = g->count && mc_comm_clock() - g->since > timeout;
    if (overdue) *which = g->flights[g->first];
    pthread_mutex_unlock(&g->mutex);
    return overdue;
}

static bool nccl_watch(mc_comm *c, mc_error *error)
{
    nccl_group *g = c->state;
    char text[300] = "";
    flight f;
    ncclResult_t state = ask(g, text, sizeof text);
    if (state && state != ncclInProgress) {
        if (heard_why(c, error)) return true;
        mc_error_set(error, MC_ERR_DEVICE, "NCCL on rank %d of %d: %s", c->rank, c->size, text);
        return true;
    }
    if (!is_overdue(g, c->timeout, &f)) return false;
    mc_comm_why why = f.is_mark ? mc_comm_explain_mark(c, f.number, f.text)
                                : mc_comm_explain(c, f.number, f.operation);
    if (!*why.text && c->hooks.stop && c->hooks.stop(c->hooks.user, error))
        return true; /* another rank's explanation came first */
    mc_error_set(error, MC_ERR_IO, "%s: not done on the GPU within %g s: %s", f.text, c->timeout,
                 *why.text ? why.text : "all ranks have begun it, as far as is known");
    return true;
}

static void nccl_mark(mc_comm *c, uint64_t number, const char *what)
{
    nccl_group *g = c->state;
    flight f = {.is_mark = true, .number = number};
    snprintf(f.text, sizeof f.text, "%s", what);
    take_off(c, g->stream, &f);
}

/* ---- the keeper ------------------------------------------------------------------------------ */

/* Waits for a signal, at most 20 ms. Under the mutex. */
static void nap(nccl_group *g)
{
    const long ns = 20000000, second = 1000000000;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / second;
    until.tv_nsec %= second;
    pthread_cond_timedwait(&g->changed, &g->mutex, &until);
}

static void *keep(void *user)
{
    mc_comm *c = user;
    nccl_group *g = c->state;
    cudaSetDevice(mc_cuda_of(c->ctx->device)->ordinal);
    pthread_mutex_lock(&g->mutex);
    while (!g->closing && !g->unwanted) {
        pthread_mutex_unlock(&g->mutex);
        mc_comm_watch(c);
        pthread_mutex_lock(&g->mutex);
        if (!g->closing && !g->unwanted) nap(g);
    }
    while (g->in_group && !g->closing) nap(g);
    ncclComm_t comm = g->unwanted ? g->comm : NULL;
    if (comm) g->comm = NULL;
    pthread_mutex_unlock(&g->mutex);
    if (comm) g->api.ncclCommAbort(comm);
    return NULL;
}

static mc_status start_keeper(mc_comm *c)
{
    nccl_group *g = c->state;
    sigset_t before;
    mc_signals_block(&before); /* the program's threads handle signals */
    g->has_keeper = pthread_create(&g->keeper, NULL, keep, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return g->has_keeper ? MC_OK : mc_fail_nomem(c->ctx, "a communicator's thread");
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

/* Creates the side stream at its first use, with the highest priority: its kernels are short, and
 * others wait for them. */
static mc_status need_side(mc_comm *c)
{
    nccl_group *g = c->state;
    int lowest = 0, highest = 0;
    if (!g->side) {
        cudaError_t error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
        if (!error) error = cudaStreamCreateWithPriority(&g->side, cudaStreamNonBlocking, highest);
        if (check_cuda(c, error, "a stream")) return mc_error_status(c->ctx);
    }
    if (g->before) return MC_OK;
    return check_cuda(c, cudaEventCreateWithFlags(&g->before, cudaEventDisableTiming), "an event");
}

/* Makes the side stream wait for all earlier work of the device's stream, for a started call. */
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
    cudaStream_t stream = g->stream;
    if (r->later && begin_beside(c, r)) return mc_error_status(c->ctx);
    if (r->later) stream = g->side;
    pthread_mutex_lock(&g->mutex);
    ncclResult_t result = g->comm ? launch(g, &r->call, stream) : ncclInvalidUsage;
    pthread_mutex_unlock(&g->mutex);
    r->done = !r->later;
    if (c->group_depth && (!result || result == ncclInProgress))
        return MC_OK; /* launched at the group's end */
    if (settle_call(c, result, r) || c->group_depth || take_off_call(c, stream, r))
        return mc_error_status(c->ctx);
    if (!r->later) return MC_OK;
    return check_cuda(c, cudaEventRecord(((nccl_call *)r->state)->done, stream), "an event");
}

/* Waits until the GPU no longer uses memory, shortly after an abort. */
static void wait_for_streams(const nccl_group *g)
{
    double deadline = mc_comm_clock() + 10;
    mc_comm_backoff backoff = {0};
    while ((cudaStreamQuery(g->stream) == cudaErrorNotReady ||
            (g->side && cudaStreamQuery(g->side) == cudaErrorNotReady)) &&
           mc_comm_clock() < deadline)
        mc_comm_pause(&backoff);
}

/* Aborts NCCL after an error, so that its work does not write to memory that the caller frees. */
static mc_status nccl_finish(mc_comm *c, mc_comm_request *r)
{
    nccl_group *g = c->state;
    if (mc_failed(c->ctx)) {
        mc_comm_abort(c);
        if (!c->ctx->device->recording) wait_for_streams(g);
        return mc_error_status(c->ctx);
    }
    return check_cuda(c, cudaStreamWaitEvent(g->stream, ((nccl_call *)r->state)->done, 0),
                      "waiting for a started call");
}

static mc_status nccl_group_start(mc_comm *c)
{
    nccl_group *g = c->state;
    pthread_mutex_lock(&g->mutex);
    ncclResult_t result = g->comm ? g->api.ncclGroupStart() : ncclInvalidUsage;
    g->in_group = !result;
    pthread_mutex_unlock(&g->mutex);
    if (!result) return MC_OK;
    return mc_fail(c->ctx, MC_ERR_DEVICE, "ncclGroupStart: %s", g->api.ncclGetErrorString(result));
}

static mc_status nccl_group_end(mc_comm *c)
{
    nccl_group *g = c->state;
    pthread_mutex_lock(&g->mutex);
    ncclResult_t result = g->api.ncclGroupEnd();
    g->in_group = false;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    if (mc_failed(c->ctx)) return mc_error_status(c->ctx);
    if (!c->group) return settle(c, result, "a group of no calls", 0, NULL);
    if (settle_call(c, result, c->group)) return mc_error_status(c->ctx);
    return take_off_call(c, g->stream, c->group);
}

static mc_status nccl_drain(mc_comm *c)
{
    nccl_group *g = c->state;
    cudaError_t error = cudaSuccess;
    double deadline = mc_comm_clock() + c->timeout;
    mc_comm_backoff backoff = {0};
    while ((error = cudaStreamQuery(g->stream)) == cudaErrorNotReady) {
        if (mc_comm_stopped(c)) return mc_error_status(c->ctx);
        if (mc_comm_clock() > deadline) {
            char text[48];
            snprintf(text, sizeof text, "barrier on rank %d of %d", c->rank, c->size);
            return fail_late(c, text, c->sequence, mc_comm_collective(MC_COMM_ALL_REDUCE));
        }
        mc_comm_pause(&backoff);
    }
    if (mc_comm_stopped(c)) return mc_error_status(c->ctx); /* an abort ends the wait too */
    return check_cuda(c, error, "waiting for the GPU");
}

/* ---- groups ---------------------------------------------------------------------------------- */

static const mc_comm_transport nccl_transport;

static mc_status new_state(mc_comm *c)
{
    nccl_group *g = c->state = mc_calloc(1, sizeof *g);
    if (!g) return mc_fail_nomem(c->ctx, "a communicator");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    g->stream = mc_cuda_of(c->ctx->device)->stream;
    c->transport = &nccl_transport;
    return MC_OK;
}

static void join_keeper(nccl_group *g)
{
    pthread_mutex_lock(&g->mutex);
    g->closing = true;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    if (g->has_keeper) pthread_join(g->keeper, NULL);
    g->has_keeper = false;
}

static const char splitting[] = "the split of a communicator", split_note[] = "split";

static mc_status nccl_split(mc_comm *c, int colour, int key, mc_comm *child)
{
    nccl_group *g = c->state, *part;
    if (new_state(child)) return mc_error_status(c->ctx);
    part = child->state;
    part->api = g->api;
    part->stream = g->stream;
    c->sequence++;
    if (c->hooks.note) c->hooks.note(c->hooks.user, c->hooks.group, c->sequence, split_note);
    pthread_mutex_lock(&g->mutex);
    ncclResult_t result = ncclInvalidUsage;
    if (g->comm)
        result = g->api.ncclCommSplit(g->comm, colour < 0 ? NCCL_SPLIT_NOCOLOR : colour, key,
                                      &part->comm, NULL);
    pthread_mutex_unlock(&g->mutex);
    /* ncclCommSplit may return success before it is done: ask the communicator */
    if (!result) result = ncclInProgress;
    if (settle(c, result, splitting, c->sequence, split_note)) {
        c->broken = true;
        mc_comm_abort(c);
        join_keeper(g); /* NCCL writes to part->comm until it has been aborted */
    }
    if (c->broken || colour < 0) return mc_error_status(c->ctx);
    if (settle(child, ncclInProgress, splitting, 0, mc_comm_making)) return mc_error_status(c->ctx);
    result = g->api.ncclCommCount(part->comm, &child->size);
    if (!result) result = g->api.ncclCommUserRank(part->comm, &child->rank);
    if (settle(child, result, splitting, 0, mc_comm_making)) return mc_error_status(c->ctx);
    return start_keeper(child);
}

static void nccl_release_request(mc_comm_request *r)
{
    nccl_call *call = r->state;
    if (call->done) cudaEventDestroy(call->done);
    mc_free(call);
}

/* Ends the NCCL communicator: with ncclCommFinalize if it completes within a short time, else by
 * abort. */
static void close_nccl(mc_comm *c)
{
    nccl_group *g = c->state;
    char text[300];
    join_keeper(g);
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
    if (g->comm) g->api.ncclCommAbort(g->comm);
    g->comm = NULL;
}

static void nccl_release(mc_comm *c)
{
    nccl_group *g = c->state;
    close_nccl(c);
    for (int i = 0; i < FLIGHTS; i++)
        if (g->flights[i].done) cudaEventDestroy(g->flights[i].done);
    if (g->before) cudaEventDestroy(g->before);
    if (g->side) cudaStreamDestroy(g->side);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->mutex);
    mc_free(g);
    c->state = NULL;
}

/* ---- on the GPU of the context --------------------------------------------------------------- */

/* NCCL's calls, streams and events belong to the current GPU. The functions that the context's
 * thread calls make the context's GPU current while they run. */
#define ON_GPU(c, statement)                      \
    do {                                          \
        mc_device *device_ = (c)->ctx->device;    \
        bool entered_ = mc_device_enter(device_); \
        statement;                                \
        mc_device_leave(device_, entered_);       \
    } while (0)
#define RETURN_ON_GPU(c, call)       \
    do {                             \
        mc_status status_;           \
        ON_GPU(c, status_ = (call)); \
        return status_;              \
    } while (0)

static mc_status on_begin(mc_comm *c, mc_comm_request *r) { RETURN_ON_GPU(c, nccl_begin(c, r)); }
static mc_status on_finish(mc_comm *c, mc_comm_request *r) { RETURN_ON_GPU(c, nccl_finish(c, r)); }
static mc_status on_group_start(mc_comm *c) { RETURN_ON_GPU(c, nccl_group_start(c)); }
static mc_status on_group_end(mc_comm *c) { RETURN_ON_GPU(c, nccl_group_end(c)); }
static mc_status on_drain(mc_comm *c) { RETURN_ON_GPU(c, nccl_drain(c)); }
static mc_status on_split(mc_comm *c, int colour, int key, mc_comm *child)
{
    RETURN_ON_GPU(c, nccl_split(c, colour, key, child));
}
static void on_mark(mc_comm *c, uint64_t n, const char *what) { ON_GPU(c, nccl_mark(c, n, what)); }
static void on_release_request(mc_comm_request *r) { ON_GPU(r->comm, nccl_release_request(r)); }
static void on_release(mc_comm *c) { ON_GPU(c, nccl_release(c)); }

static const mc_comm_transport nccl_transport = {
    .name = "nccl",
    .begin = on_begin,
    .finish = on_finish,
    .group_start = on_group_start,
    .group_end = on_group_end,
    .drain = on_drain,
    .split = on_split,
    .watch = nccl_watch,
    .mark = on_mark,
    .abort = nccl_abort,
    .release_request = on_release_request,
    .release = on_release,
};

static mc_status init(mc_comm *c, const mc_comm_id *id)
{
    ncclUniqueId unique;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (!id) return mc_fail(c->ctx, MC_ERR_ARGUMENT, "GPU ranks need an id to find one another");
    memcpy(unique.internal, id->bytes, sizeof unique.internal);
    config.blocking = 0;
    if (new_state(c)) return mc_error_status(c->ctx);
    nccl_group *g = c->state;
    if (load(c->ctx, &g->api)) return mc_error_status(c->ctx);
    ncclResult_t result =
        g->api.ncclCommInitRankConfig(&g->comm, c->size, unique, c->rank, &config);
    if (settle(c, result, "ncclCommInitRankConfig", 0, mc_comm_making))
        return mc_error_status(c->ctx);
    return start_keeper(c);
}

mc_status mc_comm_init_nccl(mc_comm *c, const mc_comm_id *id) { RETURN_ON_GPU(c, init(c, id)); }
