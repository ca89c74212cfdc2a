/* Communicators: checks, numbering and groups of calls; the transports are in comm_*.c. */
#include "core/dist/comm.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <sys/random.h>
#include "core/base/hash_internal.h"
#include "core/device/plan_internal.h"
#include "core/dist/comm_internal.h"
#include "core/dist/launch_internal.h"

/* ---- for transports -------------------------------------------------------------------------- */

double mc_comm_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void mc_comm_pause(mc_comm_backoff *backoff)
{
    enum { YIELDS = 64, LONGEST = 1000000, SHORTEST = 20000 }; /* times in ns */
    int past = backoff->tries++ - YIELDS;
    if (past < 0) {
        sched_yield();
        return;
    }
    if (past > 64) past = backoff->tries = YIELDS + 64;
    long ns = SHORTEST << (past / 8 < 6 ? past / 8 : 6);
    nanosleep(&(struct timespec){.tv_nsec = ns < LONGEST ? ns : LONGEST}, NULL);
}

bool mc_comm_stopped(mc_comm *c)
{
    if (c->hooks.stop && c->hooks.stop(c->hooks.user, &c->ctx->error)) {
        mc_fail(c->ctx, MC_ERR_INTERRUPTED, "stopped");
        return true;
    }
    if (!atomic_load(&c->aborted)) return false;
    if (mc_error_is_set(&c->late))
        mc_fail(c->ctx, c->late.status, "%s", c->late.message);
    else
        mc_fail(c->ctx, MC_ERR_INTERRUPTED, "the communicator was aborted on this rank");
    return true;
}

const char *mc_comm_kind_name(mc_comm_kind kind)
{
    switch (kind) {
    case MC_COMM_ALL_REDUCE: return "all-reduce";
    case MC_COMM_REDUCE: return "reduce";
    case MC_COMM_BROADCAST: return "broadcast";
    case MC_COMM_ALL_GATHER: return "all-gather";
    case MC_COMM_REDUCE_SCATTER: return "reduce-scatter";
    case MC_COMM_SEND: return "send";
    case MC_COMM_RECV: return "recv";
    }
    return "call";
}

static const char *op_name(mc_reduce_op op)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg"};
    return (unsigned)op < sizeof names / sizeof *names ? names[op] : "unknown";
}

static bool reduces(mc_comm_kind kind)
{
    return kind == MC_COMM_ALL_REDUCE || kind == MC_COMM_REDUCE || kind == MC_COMM_REDUCE_SCATTER;
}

static bool has_peer(mc_comm_kind kind)
{
    return kind == MC_COMM_REDUCE || kind == MC_COMM_BROADCAST || kind == MC_COMM_SEND ||
           kind == MC_COMM_RECV;
}

int mc_comm_member(const mc_comm *c, int i) { return c->members ? c->members[i] : i; }

mc_comm_text mc_comm_print(const mc_comm_request *r)
{
    const mc_comm *c = r->comm;
    const mc_comm_call *call = &r->call;
    char detail[48] = "";
    if (reduces(call->kind)) snprintf(detail, sizeof detail, " (%s)", op_name(call->op));
    if (call->kind == MC_COMM_SEND || call->kind == MC_COMM_RECV)
        snprintf(detail, sizeof detail, " %s rank %d", call->kind == MC_COMM_SEND ? "to" : "from",
                 mc_comm_member(c, call->peer));
    mc_comm_text t;
    int used = snprintf(t.text, sizeof t.text, "%s %llu of %lld %s%s on rank %d",
                        mc_comm_kind_name(call->kind), (unsigned long long)r->sequence,
                        (long long)call->count, mc_dtype_name(call->dtype), detail,
                        mc_comm_member(c, c->rank));
    if (used > 0 && used < (int)sizeof t.text)
        snprintf(t.text + used, sizeof t.text - (size_t)used,
                 c->members ? " (in a part of %d ranks)" : " of %d", c->size);
    return t;
}

const char mc_comm_making[] = "making a communicator";

const char *mc_comm_collective(mc_comm_kind kind)
{
    return kind == MC_COMM_SEND || kind == MC_COMM_RECV ? NULL : mc_comm_kind_name(kind);
}

static mc_comm_why explain(const mc_comm *c, uint64_t group, uint64_t number, const char *name)
{
    const mc_comm_hooks *h = &c->hooks;
    mc_comm_why why = {""};
    if (h->explain && name)
        h->explain(h->user, group, number, name, c->size == h->ranks, why.text, sizeof why.text);
    return why;
}

mc_comm_why mc_comm_explain(const mc_comm *c, uint64_t sequence, const char *operation)
{
    return explain(c, c->hooks.group, sequence, operation);
}

/* Marks are numbered apart from collectives. */
static uint64_t group_of_marks(const mc_comm *c) { return ~c->hooks.group; }

mc_comm_why mc_comm_explain_mark(const mc_comm *c, uint64_t number, const char *what)
{
    return explain(c, group_of_marks(c), number, what);
}

size_t mc_comm_bytes(const mc_comm_call *call)
{
    return (size_t)call->count * mc_dtype_size(call->dtype);
}

/* ---- transports that were not built ---------------------------------------------------------- */

#ifndef MC_HAVE_MPI
mc_status mc_comm_init_mpi(mc_comm *c, const mc_comm_id *id)
{
    (void)id;
    return mc_fail(c->ctx, MC_ERR_UNSUPPORTED,
                   "%d CPU ranks talk through MPI, which this build is without (MC_ENABLE_MPI)",
                   c->size);
}
#endif

#ifndef MC_HAVE_NCCL
mc_status mc_comm_init_nccl(mc_comm *c, const mc_comm_id *id)
{
    (void)id;
    return mc_fail(c->ctx, MC_ERR_UNSUPPORTED,
                   "%d GPU ranks talk through NCCL, which this build is without (MC_ENABLE_NCCL)",
                   c->size);
}

mc_status mc_comm_nccl_unique_id(mc_context *ctx, mc_comm_id *id)
{
    (void)id;
    return mc_fail(ctx, MC_ERR_UNSUPPORTED,
                   "GPU ranks talk through NCCL, which this build is without (MC_ENABLE_NCCL)");
}
#endif

/* ---- making and freeing ---------------------------------------------------------------------- */

mc_status mc_comm_unique_id(mc_context *ctx, mc_comm_id *id)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!id) return mc_fail(ctx, MC_ERR_ARGUMENT, "mc_comm_unique_id: id is NULL");
    if (!ctx->device->is_host) return mc_comm_nccl_unique_id(ctx, id);
    if (getrandom(id->bytes, sizeof id->bytes, 0) == (ssize_t)sizeof id->bytes) return MC_OK;
    return mc_fail(ctx, MC_ERR_IO, "mc_comm_unique_id: the system gives no random numbers");
}

static void release_requests(mc_comm *c)
{
    while (c->requests) {
        mc_comm_request *r = c->requests;
        c->requests = r->older;
        if (r->state) c->transport->release_request(r);
        mc_free(r);
    }
}

static void free_comm(void *object)
{
    mc_comm *c = object;
    if (c->transport) c->transport->release(c); /* frees requests too */
    release_requests(c);
    mc_device *device = c->ctx->device;
    if (c->late.message && device->given_up == c->late.message)
        __atomic_store_n(&device->given_up, NULL, __ATOMIC_RELEASE);
    mc_error_clear(&c->late);
    mc_free(c->members);
    mc_free(c);
}

void mc_comm_free(mc_comm *c)
{
    if (!c) return;
    mc_disown(&c->owned);
    free_comm(c);
}

/* A communicator without a transport. */
static mc_comm *new_comm(mc_context *ctx, int size, int rank, const mc_comm_hooks *hooks)
{
    mc_comm *c = mc_new_owned(ctx, sizeof *c, "a communicator", free_comm);
    if (!c) return NULL;
    c->ctx = ctx;
    c->size = size;
    c->rank = rank;
    c->last = &c->group;
    if (hooks) c->hooks = *hooks;
    return c;
}

static mc_status init(mc_comm *c, const mc_comm_id *id)
{
    if (mc_device_is_plan(c->ctx->device)) return mc_comm_init_plan(c);
    if (c->size == 1) return mc_comm_init_self(c);
    return c->ctx->device->is_host ? mc_comm_init_mpi(c, id) : mc_comm_init_nccl(c, id);
}

mc_comm *mc_comm_new_hooked(mc_context *ctx, const mc_comm_id *id, int size, int rank,
                            const mc_comm_options *options, const mc_comm_hooks *hooks)
{
    double timeout = 0;
    if (mc_failed(ctx)) return NULL;
    if (size < 1 || rank < 0 || rank >= size) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "communicator: rank %d of %d, expected a rank below the size",
                rank, size);
        return NULL;
    }
    if (mc_launch_timeout(&ctx->error, options ? options->timeout : 0, &timeout)) return NULL;
    mc_comm *c = new_comm(ctx, size, rank, hooks);
    if (!c) return NULL;
    c->timeout = timeout;
    if (c->hooks.note) c->hooks.note(c->hooks.user, c->hooks.group, 0, mc_comm_making);
    if (init(c, id) == MC_OK) return c;
    mc_error_while(&ctx->error, "making a communicator of %d ranks (this is rank %d)", size, rank);
    mc_comm_free(c);
    return NULL;
}

mc_status mc_comm_share_over_mpi(mc_context *ctx, int size, int rank, double timeout, void *data,
                                 int64_t bytes)
{
    mc_comm *c = new_comm(ctx, size, rank, NULL);
    if (!c) return mc_error_status(ctx);
    c->timeout = timeout;
    if (mc_comm_init_mpi(c, NULL) == MC_OK) mc_comm_broadcast(c, data, data, bytes, MC_U8, 0);
    mc_comm_free(c);
    return mc_error_status(ctx);
}

mc_comm *mc_comm_new(mc_context *ctx, const mc_comm_id *id, int size, int rank,
                     const mc_comm_options *options)
{
    mc_comm_hooks hooks = {0};
    if (size > 1 && !mc_failed(ctx)) mc_world_hooks(ctx, id, &hooks);
    return mc_comm_new_hooked(ctx, id, size, rank, options, &hooks);
}

static mc_status status_of(const mc_comm *c)
{
    return c ? mc_error_status(c->ctx) : MC_ERR_ARGUMENT;
}

/* Fails if calls are not possible now. */
static bool is_usable(mc_comm *c, const char *what)
{
    if (!c || mc_failed(c->ctx)) return false;
    if (atomic_load(&c->aborted) && !mc_error_is_set(&c->late))
        mc_fail(c->ctx, MC_ERR_STATE, "%s on a communicator that was aborted", what);
    else if (mc_comm_stopped(c))
        mc_error_while(&c->ctx->error, "beginning %s", what);
    else if (c->broken)
        mc_fail(c->ctx, MC_ERR_STATE, "%s on a communicator on which a call has failed", what);
    return !mc_failed(c->ctx);
}

/* The same number on all ranks of the part, without communication. */
static uint64_t name_of_part(const mc_comm *c, int colour)
{
    const uint64_t from[] = {c->hooks.group, c->sequence, (uint64_t)colour};
    uint64_t name = mc_hash(MC_HASH_START, from, sizeof from);
    return name ? name : 1;
}

mc_comm *mc_comm_split(mc_comm *c, int colour, int key)
{
    if (!is_usable(c, "split")) return NULL;
    if (c->group_depth) {
        mc_fail(c->ctx, MC_ERR_STATE, "split within a group of calls");
        return NULL;
    }
    mc_comm *child = new_comm(c->ctx, 1, 0, &c->hooks);
    if (!child) return NULL;
    child->timeout = c->timeout;
    child->hooks.group = name_of_part(c, colour);
    if (c->transport->split(c, colour, key, child) == MC_OK && colour >= 0) {
        if (c->hooks.note) c->hooks.note(c->hooks.user, child->hooks.group, 0, mc_comm_making);
        return child;
    }
    mc_error_while(&c->ctx->error, "splitting a communicator of %d ranks", c->size);
    mc_comm_free(child);
    return NULL;
}

void mc_comm_abort(mc_comm *c)
{
    if (c && !atomic_exchange(&c->aborted, true)) c->transport->abort(c);
}

mc_comm *mc_context_comm(mc_context *ctx)
{
    if (mc_failed(ctx)) return NULL;
    if (!ctx->mesh.world.comm && !ctx->alone) ctx->alone = mc_comm_new(ctx, NULL, 1, 0, NULL);
    return ctx->mesh.world.comm ? ctx->mesh.world.comm : ctx->alone;
}

int mc_comm_count(const mc_comm *c) { return c ? c->size : 1; }
int mc_comm_rank(const mc_comm *c) { return c ? c->rank : 0; }
mc_comm_volume mc_comm_volume_of(const mc_comm *c) { return c ? c->volume : (mc_comm_volume){0}; }

void mc_comm_mark(mc_comm *c, const char *what)
{
    if (!c || !c->transport->mark || mc_failed(c->ctx)) return;
    c->marks++;
    if (c->hooks.note) c->hooks.note(c->hooks.user, group_of_marks(c), c->marks, what);
    c->transport->mark(c, c->marks, what);
}

void mc_comm_watch(mc_comm *c)
{
    if (atomic_load(&c->aborted)) return;
    bool stops = c->hooks.stop && c->hooks.stop(c->hooks.user, &c->late);
    if (!stops && !c->transport->watch(c, &c->late)) return;
    if (!stops && c->hooks.report) c->hooks.report(c->hooks.user, &c->late);
    __atomic_store_n(&c->ctx->device->given_up, c->late.message, __ATOMIC_RELEASE);
    mc_comm_abort(c);
}

mc_status mc_comm_check(mc_comm *c)
{
    return c && is_usable(c, "a recorded step") ? MC_OK : status_of(c);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static mc_status check_memory(mc_comm *c, const mc_comm_call *call)
{
    const char *name = mc_comm_kind_name(call->kind);
    bool is_root = call->peer == c->rank;
    bool needs_src = call->kind != MC_COMM_RECV && (call->kind != MC_COMM_BROADCAST || is_root);
    bool needs_dst = call->kind != MC_COMM_SEND && (call->kind != MC_COMM_REDUCE || is_root);
    if (call->count < 0 ||
        call->count > INT64_MAX / 8 / c->size) /* byte offsets must not overflow */
        return mc_fail(c->ctx, MC_ERR_ARGUMENT, "%s of %lld elements", name,
                       (long long)call->count);
    if (call->count && needs_src && !call->src)
        return mc_fail(c->ctx, MC_ERR_ARGUMENT, "%s: src is NULL", name);
    if (call->count && needs_dst && !call->dst)
        return mc_fail(c->ctx, MC_ERR_ARGUMENT, "%s: dst is NULL", name);
    return MC_OK;
}

static mc_status check(mc_comm *c, const mc_comm_call *call, bool later)
{
    const char *name = mc_comm_kind_name(call->kind);
    if (!is_usable(c, name)) return status_of(c);
    if (!mc_dtype_size(call->dtype))
        return mc_fail(c->ctx, MC_ERR_DTYPE, "%s: %d is no dtype", name, (int)call->dtype);
    if (reduces(call->kind) && (unsigned)call->op > MC_REDUCE_AVG)
        return mc_fail(c->ctx, MC_ERR_ARGUMENT, "%s: %d is no reduction", name, (int)call->op);
    if (reduces(call->kind) && call->dtype == MC_BOOL &&
        (call->op == MC_REDUCE_SUM || call->op == MC_REDUCE_AVG))
        return mc_fail(c->ctx, MC_ERR_DTYPE, "%s: %s of bool, expected max, min or prod", name,
                       op_name(call->op));
    if (has_peer(call->kind) && (call->peer < 0 || call->peer >= c->size))
        return mc_fail(c->ctx, MC_ERR_ARGUMENT, "%s: rank %d, expected 0 to %d", name, call->peer,
                       c->size - 1);
    if (later && c->group_depth)
        return mc_fail(c->ctx, MC_ERR_STATE, "%s: begun to be waited for within a group of calls",
                       name);
    return check_memory(c, call);
}

static mc_comm_request *take_request(mc_comm *c)
{
    mc_comm_request *r = c->unused;
    if (r) {
        c->unused = r->next;
    } else if (!(r = mc_calloc(1, sizeof *r))) {
        mc_fail_nomem(c->ctx, "a communicator's call");
        return NULL;
    }
    *r = (mc_comm_request){.comm = c, .state = r->state, .older = r->older, .listed = r->listed};
    if (!r->listed) {
        r->listed = true;
        r->older = c->requests;
        c->requests = r;
    }
    return r;
}

static void give_back(mc_comm_request *r)
{
    mc_comm *c = r->comm;
    r->next = c->unused;
    c->unused = r;
}

/* The bytes that this rank must send with any algorithm. */
static uint64_t volume(const mc_comm *c, const mc_comm_call *call)
{
    uint64_t bytes = mc_comm_bytes(call), others = (uint64_t)c->size - 1;
    switch (call->kind) {
    case MC_COMM_ALL_GATHER:
    case MC_COMM_REDUCE_SCATTER: return bytes * others;
    case MC_COMM_ALL_REDUCE: return 2 * bytes * others / (uint64_t)c->size;
    case MC_COMM_REDUCE: return call->peer == c->rank ? 0 : bytes;
    case MC_COMM_BROADCAST: return call->peer == c->rank && others ? bytes : 0;
    case MC_COMM_SEND: return bytes;
    default: return 0;
    }
}

/* Begins a call; NULL after an error. */
static mc_comm_request *begin(mc_comm *c, const mc_comm_call *call, bool later)
{
    mc_comm_request *r = check(c, call, later) ? NULL : take_request(c);
    if (!r) return NULL;
    r->call = *call;
    r->later = later;
    bool between_two = call->kind == MC_COMM_SEND || call->kind == MC_COMM_RECV;
    r->sequence = between_two ? ++c->exchanges : ++c->sequence;
    c->volume.calls++;
    c->volume.bytes += volume(c, call);
    if (c->hooks.note)
        c->hooks.note(c->hooks.user, between_two ? 0 : c->hooks.group, r->sequence,
                      mc_comm_kind_name(call->kind));
    if (!call->count) r->done = true; /* nothing to do, on every rank */
    if (call->count && c->transport->begin(c, r)) {
        c->broken = true;
        give_back(r);
        return NULL;
    }
    return r;
}

static mc_status finish(mc_comm_request *r)
{
    mc_comm *c = r->comm;
    if (!r->done && c->transport->finish(c, r)) c->broken = true;
    mc_status status = mc_error_status(c->ctx);
    give_back(r);
    return status;
}

static mc_status run(mc_comm *c, const mc_comm_call *call)
{
    mc_comm_request *r = begin(c, call, false);
    if (!r) return status_of(c);
    if (!c->group_depth) return finish(r);
    r->next = NULL;
    *c->last = r;
    c->last = &r->next;
    return MC_OK;
}

mc_status mc_comm_all_reduce(mc_comm *c, const void *src, void *dst, int64_t count, mc_dtype dtype,
                             mc_reduce_op op)
{
    return run(c, &(mc_comm_call){MC_COMM_ALL_REDUCE, src, dst, count, dtype, op});
}

mc_status mc_comm_reduce(mc_comm *c, const void *src, void *dst, int64_t count, mc_dtype dtype,
                         mc_reduce_op op, int root)
{
    return run(c, &(mc_comm_call){MC_COMM_REDUCE, src, dst, count, dtype, op, root});
}

mc_status mc_comm_broadcast(mc_comm *c, const void *src, void *dst, int64_t count, mc_dtype dtype,
                            int root)
{
    return run(c, &(mc_comm_call){MC_COMM_BROADCAST, src, dst, count, dtype, .peer = root});
}

mc_status mc_comm_all_gather(mc_comm *c, const void *src, void *dst, int64_t count, mc_dtype dtype)
{
    return run(c, &(mc_comm_call){MC_COMM_ALL_GATHER, src, dst, count, dtype});
}

mc_status mc_comm_reduce_scatter(mc_comm *c, const void *src, void *dst, int64_t count,
                                 mc_dtype dtype, mc_reduce_op op)
{
    return run(c, &(mc_comm_call){MC_COMM_REDUCE_SCATTER, src, dst, count, dtype, op});
}

mc_status mc_comm_send(mc_comm *c, const void *src, int64_t count, mc_dtype dtype, int peer)
{
    return run(c, &(mc_comm_call){MC_COMM_SEND, src, NULL, count, dtype, .peer = peer});
}

mc_status mc_comm_recv(mc_comm *c, void *dst, int64_t count, mc_dtype dtype, int peer)
{
    return run(c, &(mc_comm_call){MC_COMM_RECV, NULL, dst, count, dtype, .peer = peer});
}

mc_comm_request *mc_comm_start_all_gather(mc_comm *c, const void *src, void *dst, int64_t count,
                                          mc_dtype dtype)
{
    return begin(c, &(mc_comm_call){MC_COMM_ALL_GATHER, src, dst, count, dtype}, true);
}

mc_comm_request *mc_comm_start_reduce_scatter(mc_comm *c, const void *src, void *dst, int64_t count,
                                              mc_dtype dtype, mc_reduce_op op)
{
    return begin(c, &(mc_comm_call){MC_COMM_REDUCE_SCATTER, src, dst, count, dtype, op}, true);
}

mc_comm_request *mc_comm_start_all_reduce(mc_comm *c, const void *src, void *dst, int64_t count,
                                          mc_dtype dtype, mc_reduce_op op)
{
    return begin(c, &(mc_comm_call){MC_COMM_ALL_REDUCE, src, dst, count, dtype, op}, true);
}

mc_status mc_comm_wait(mc_comm_request *r) { return r ? finish(r) : MC_OK; }

/* ---- groups of calls ------------------------------------------------------------------------- */

mc_status mc_comm_group_start(mc_comm *c)
{
    if (!is_usable(c, "group start")) return status_of(c);
    if (!c->group_depth && c->transport->group_start(c)) return mc_error_status(c->ctx);
    c->group_depth++;
    return MC_OK;
}

mc_status mc_comm_group_end(mc_comm *c)
{
    if (!c) return MC_ERR_ARGUMENT;
    if (!c->group_depth)
        return mc_fail(c->ctx, MC_ERR_STATE, "group end without a group start before it");
    if (--c->group_depth) return mc_error_status(c->ctx);
    if (c->transport->group_end(c)) c->broken = true; /* even after an error: it was started */
    mc_comm_request *r = c->group;
    c->group = NULL;
    c->last = &c->group;
    while (r) {
        mc_comm_request *next = r->next;
        finish(r);
        r = next;
    }
    return mc_error_status(c->ctx);
}

mc_status mc_comm_barrier(mc_comm *c)
{
    if (!is_usable(c, "barrier")) return status_of(c);
    mc_device *device = c->ctx->device;
    void *byte = device->alloc(device, 1);
    if (!byte) return mc_fail_nomem(c->ctx, "a barrier");
    device->kernels->zero(device, byte, 1);
    mc_comm_all_reduce(c, byte, byte, 1, MC_U8, MC_REDUCE_MAX);
    if (!mc_failed(c->ctx) && c->transport->drain(c)) c->broken = true;
    device->free(device, byte, 1);
    return mc_error_status(c->ctx);
}
