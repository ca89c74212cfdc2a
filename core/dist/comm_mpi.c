/* CPU ranks over MPI. Every collective consists of non-blocking point-to-point messages (MPI_Isend,
 * MPI_Irecv, MPI_Test). So a wait can end at a deadline and name the ranks that sent nothing,
 * groups need no MPI groups, and reductions are in rank order with any MPI and any count.
 *
 * A call runs in steps. A step posts its messages; when all have completed, it ends (for a
 * reduction, by combining a piece) and the next one is posted. Any wait advances the steps of all
 * active calls. A message's tag contains the group, the call's number and its kind, so that
 * messages of two calls are never confused; between two ranks the messages of a call keep their
 * order. */
#include <stdio.h>
#include <string.h>
#include "core/base/hash_internal.h"
#include "core/dist/comm_mpi_internal.h"

enum {
    KIND_BITS = 3,   /* of a tag: mc_comm_kind */
    NUMBER_BITS = 6, /* of a tag: of the call's number */
    IN_FLIGHT = 1 << NUMBER_BITS,
    SMALL_ALL_REDUCE = 1 << 13 /* bytes: up to here each rank sends all to all others */
};
static const size_t broadcast_chunk = 1 << 20, scratch_of_call = 4 << 20, least_chunk = 32 << 10;

/* The transport's part of a communicator. */
typedef struct mpi_group {
    int number;     /* in tags; 0: only during the creation of a communicator with an id */
    uint64_t calls; /* collectives so far */
} mpi_group;

/* The transport's part of a request. */
struct mc_mpi_call {
    mc_comm_request *request;
    mc_mpi_call *next; /* in the list of active calls */
    uint64_t number;   /* of the collective in its group */
    int tag;
    bool posted, done;
    int64_t step, steps;
    size_t most;          /* bytes of a message */
    int64_t chunk, piece; /* elements per step, and per rank's part of an all-reduce */
    char failure[200];    /* the error; "": none */
    /* messages of the step */
    int pending, room;
    MPI_Request *message;
    MPI_Status *status;
    int *peer; /* of each message: the rank it comes from, or -1 - the rank it goes to */
    int *bytes;
    /* of reductions: the other ranks' data, (size, chunk) */
    char *scratch;
    size_t scratch_bytes;
    const void **part;
};

static int low_bit(int x) { return x & -x; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static size_t size_of(const mc_comm_request *r) { return mc_dtype_size(r->call.dtype); }

/* ---- messages -------------------------------------------------------------------------------- */

static void note_failure(mc_mpi_call *m, int error, const char *what)
{
    if (!error || *m->failure) return;
    snprintf(m->failure, sizeof m->failure, "%s: %.150s", what, mc_mpi_explain(error).text);
}

static void receive(const mc_mpi *mpi, mc_mpi_call *m, void *to, size_t bytes, int peer)
{
    if (!bytes || *m->failure) return;
    int k = m->pending;
    int error = MPI_Irecv(to, (int)bytes, MPI_BYTE, mc_comm_member(m->request->comm, peer), m->tag,
                          mpi->comm, &m->message[k]);
    note_failure(m, error, "MPI_Irecv");
    m->peer[k] = peer;
    m->bytes[k] = (int)bytes;
    m->pending += !error;
}

static void post(const mc_mpi *mpi, mc_mpi_call *m, const void *from, size_t bytes, int peer)
{
    if (!bytes || *m->failure) return;
    int k = m->pending;
    int error = MPI_Isend(from, (int)bytes, MPI_BYTE, mc_comm_member(m->request->comm, peer),
                          m->tag, mpi->comm, &m->message[k]);
    note_failure(m, error, "MPI_Isend");
    m->peer[k] = -1 - peer;
    m->bytes[k] = (int)bytes;
    m->pending += !error;
}

/* Checks that all messages had the expected size: ranks may have passed different counts. */
static void check_messages(mc_mpi_call *m, int error)
{
    for (int k = 0; k < m->pending && !*m->failure; k++) {
        int peer = m->peer[k] < 0 ? -1 - m->peer[k] : m->peer[k], bytes = m->bytes[k], class = 0;
        int e = error == MPI_ERR_IN_STATUS ? m->status[k].MPI_ERROR : error;
        if (!e && m->peer[k] >= 0) MPI_Get_count(&m->status[k], MPI_BYTE, &bytes);
        if (e && e != MPI_ERR_PENDING) MPI_Error_class(e, &class);
        if (class == MPI_ERR_TRUNCATE || bytes != m->bytes[k])
            snprintf(m->failure, sizeof m->failure,
                     "rank %d sent %s than %d bytes: ranks have passed different counts",
                     mc_comm_member(m->request->comm, peer), class ? "more" : "less", m->bytes[k]);
        else if (class)
            snprintf(m->failure, sizeof m->failure, "rank %d: %.150s",
                     mc_comm_member(m->request->comm, peer), mc_mpi_explain(e).text);
    }
}

/* Whether all messages of the step have completed or failed. */
static bool is_through(mc_mpi_call *m)
{
    int all = 1;
    if (*m->failure) return true;
    if (!m->pending) return true;
    int error = MPI_Testall(m->pending, m->message, &all, m->status);
    if (!error && !all) return false;
    check_messages(m, error);
    if (!*m->failure) note_failure(m, error, "MPI_Testall");
    return true;
}

/* ---- steps of each kind ---------------------------------------------------------------------- */

/* A whole message between two ranks. Several messages with the same tag may be in flight. */
static void step_of_message(const mc_mpi *mpi, mc_mpi_call *m)
{
    const mc_comm_call *call = &m->request->call;
    size_t bytes = mc_comm_bytes(call);
    for (size_t at = 0; at < bytes; at += m->most) {
        size_t n = bytes - at < m->most ? bytes - at : m->most;
        if (call->kind == MC_COMM_SEND)
            post(mpi, m, (const char *)call->src + at, n, call->peer);
        else
            receive(mpi, m, (char *)call->dst + at, n, call->peer);
    }
}

/* Down a binomial tree whose nodes are numbered by their distance from the root: a node receives a
 * chunk while it sends the previous one. */
static void step_of_broadcast(const mc_mpi *mpi, mc_mpi_call *m)
{
    const mc_comm *c = m->request->comm;
    const mc_comm_call *call = &m->request->call;
    int root = call->peer, node = (c->rank - root + c->size) % c->size;
    int64_t bytes = (int64_t)mc_comm_bytes(call), in = m->step * m->chunk;
    int64_t out = node ? in - m->chunk : in;
    if (node && in < bytes)
        receive(mpi, m, (char *)call->dst + in, (size_t)least(m->chunk, bytes - in),
                (node - low_bit(node) + root) % c->size);
    const char *from = node ? call->dst : call->src;
    int reach = node ? low_bit(node) : c->size;
    for (int distance = 1; distance < reach && node + distance < c->size && out >= 0; distance *= 2)
        post(mpi, m, from + out, (size_t)least(m->chunk, bytes - out),
             (node + distance + root) % c->size);
}

/* Part p of dst comes from rank p. `first`: elements of each part that earlier steps exchanged. */
static void exchange_parts(const mc_mpi *mpi, mc_mpi_call *m, const char *mine, int64_t first,
                           int64_t part, int64_t all)
{
    const mc_comm *c = m->request->comm;
    size_t size = size_of(m->request);
    int64_t most = (int64_t)(m->most / size);
    for (int k = 1; k < c->size; k++) {
        int from = (c->rank - k + c->size) % c->size, to = (c->rank + k) % c->size;
        int64_t theirs = least(least(part, all - from * part) - first, most);
        int64_t ours = least(least(part, all - c->rank * part) - first, most);
        char *dst = (char *)m->request->call.dst + (size_t)(from * part + first) * size;
        if (theirs > 0) receive(mpi, m, dst, (size_t)theirs * size, from);
        if (ours > 0) post(mpi, m, mine + (size_t)first * size, (size_t)ours * size, to);
    }
}

static void step_of_all_gather(const mc_mpi *mpi, mc_mpi_call *m)
{
    const mc_comm_call *call = &m->request->call;
    exchange_parts(mpi, m, call->src, m->step * m->chunk, call->count,
                   call->count * m->request->comm->size);
}

/* Elements of rank p's part of src in this step; parts have `part` elements, the last ones
 * fewer. */
static int64_t chunk_of(const mc_mpi_call *m, int p, int64_t part, int64_t all)
{
    int64_t n = least(least(part, all - p * part) - m->step * m->chunk, m->chunk);
    return n > 0 ? n : 0;
}

/* Sends each rank its chunk, and receives all ranks' versions of this rank's chunk. */
static void exchange_chunks(const mc_mpi *mpi, mc_mpi_call *m, int64_t part, int64_t all)
{
    const mc_comm *c = m->request->comm;
    size_t size = size_of(m->request);
    const char *src = (const char *)m->request->call.src + (size_t)(m->step * m->chunk) * size;
    size_t mine = (size_t)chunk_of(m, c->rank, part, all) * size;
    for (int k = 1; k < c->size; k++) {
        int from = (c->rank - k + c->size) % c->size, to = (c->rank + k) % c->size;
        receive(mpi, m, m->scratch + (size_t)from * (size_t)m->chunk * size, mine, from);
        post(mpi, m, src + (size_t)(to * part) * size, (size_t)chunk_of(m, to, part, all) * size,
             to);
    }
}

/* Combines all ranks' versions of this rank's chunk. */
static void combine(mc_mpi_call *m, int64_t first, int64_t n, char *dst)
{
    const mc_comm *c = m->request->comm;
    const mc_comm_call *call = &m->request->call;
    size_t size = size_of(m->request);
    for (int p = 0; p < c->size; p++)
        m->part[p] = p == c->rank ? (const char *)call->src + (size_t)first * size
                                  : m->scratch + (size_t)p * (size_t)m->chunk * size;
    if (n > 0) mc_reduce_parts(c->ctx->device, call->op, call->dtype, n, c->size, m->part, dst);
}

/* Sends to the root, which combines. In a small all-reduce every rank is a root. */
static void step_to_root(const mc_mpi *mpi, mc_mpi_call *m)
{
    const mc_comm *c = m->request->comm;
    const mc_comm_call *call = &m->request->call;
    bool all = call->kind == MC_COMM_ALL_REDUCE;
    size_t size = size_of(m->request), at = (size_t)(m->step * m->chunk) * size;
    size_t bytes = (size_t)least(m->chunk, call->count - m->step * m->chunk) * size;
    for (int k = 1; k < c->size; k++) {
        int from = (c->rank - k + c->size) % c->size, to = (c->rank + k) % c->size;
        if (all || call->peer == c->rank)
            receive(mpi, m, m->scratch + (size_t)from * (size_t)m->chunk * size, bytes, from);
        if (all || call->peer == to) post(mpi, m, (const char *)call->src + at, bytes, to);
    }
}

static void end_at_root(mc_mpi_call *m)
{
    const mc_comm_call *call = &m->request->call;
    int64_t first = m->step * m->chunk;
    if (call->kind == MC_COMM_REDUCE && call->peer != m->request->comm->rank) return;
    combine(m, first, least(m->chunk, call->count - first),
            (char *)call->dst + (size_t)first * size_of(m->request));
}

/* A large all-reduce: each rank combines one piece, then all pieces are gathered. */
static int64_t reducing_steps(const mc_mpi_call *m) { return quotient_up(m->piece, m->chunk); }

static void step_of_all_reduce(const mc_mpi *mpi, mc_mpi_call *m)
{
    const mc_comm_call *call = &m->request->call;
    size_t size = size_of(m->request);
    int64_t gathered = (m->step - reducing_steps(m)) * ((int64_t)(m->most / size));
    if (gathered < 0)
        exchange_chunks(mpi, m, m->piece, call->count);
    else
        exchange_parts(mpi, m,
                       (char *)call->dst + (size_t)(m->request->comm->rank * m->piece) * size,
                       gathered, m->piece, call->count);
}

static void end_of_all_reduce(mc_mpi_call *m)
{
    const mc_comm_call *call = &m->request->call;
    int rank = m->request->comm->rank;
    int64_t first = rank * m->piece + m->step * m->chunk;
    if (m->step >= reducing_steps(m)) return;
    int64_t n = chunk_of(m, rank, m->piece, call->count);
    if (n) combine(m, first, n, (char *)call->dst + (size_t)first * size_of(m->request));
}

static bool is_direct(const mc_mpi_call *m)
{
    return m->request->call.kind == MC_COMM_REDUCE || m->piece == 0;
}

static void post_step(const mc_mpi *mpi, mc_mpi_call *m)
{
    const mc_comm_call *call = &m->request->call;
    m->pending = 0;
    switch (call->kind) {
    case MC_COMM_SEND:
    case MC_COMM_RECV: step_of_message(mpi, m); break;
    case MC_COMM_BROADCAST: step_of_broadcast(mpi, m); break;
    case MC_COMM_ALL_GATHER: step_of_all_gather(mpi, m); break;
    case MC_COMM_REDUCE_SCATTER:
        exchange_chunks(mpi, m, call->count, call->count * m->request->comm->size);
        break;
    case MC_COMM_REDUCE:
    case MC_COMM_ALL_REDUCE:
        if (is_direct(m))
            step_to_root(mpi, m);
        else
            step_of_all_reduce(mpi, m);
    }
}

static void end_step(mc_mpi_call *m)
{
    const mc_comm_call *call = &m->request->call;
    if (call->kind == MC_COMM_REDUCE || (call->kind == MC_COMM_ALL_REDUCE && is_direct(m))) {
        end_at_root(m);
    } else if (call->kind == MC_COMM_ALL_REDUCE) {
        end_of_all_reduce(m);
    } else if (call->kind == MC_COMM_REDUCE_SCATTER) {
        int rank = m->request->comm->rank;
        int64_t first = m->step * m->chunk;
        combine(m, rank * call->count + first, least(m->chunk, call->count - first),
                (char *)call->dst + (size_t)first * size_of(m->request));
    }
}

/* ---- calls under way ------------------------------------------------------------------------- */

static void remove_active(mc_mpi *mpi, mc_mpi_call *m)
{
    mc_mpi_call **link = &mpi->active;
    while (*link && *link != m) link = &(*link)->next;
    if (*link) *link = m->next;
}

static void free_scratch(mc_mpi_call *m)
{
    mc_device *d = m->request->comm->ctx->device;
    if (m->scratch) d->free(d, m->scratch, m->scratch_bytes);
    m->scratch = NULL;
}

static void advance(const mc_mpi *mpi, mc_mpi_call *m)
{
    while (!m->done) {
        if (m->posted) {
            if (!is_through(m)) return;
            if (!*m->failure) end_step(m);
            m->posted = false;
            m->step++;
        }
        m->done = m->step >= m->steps || *m->failure;
        if (m->done) return;
        post_step(mpi, m);
        m->posted = true;
    }
}

/* Advances all active calls and removes the finished ones. */
static void progress(mc_mpi *mpi)
{
    mc_mpi_call **link = &mpi->active;
    while (*link && !*mpi->given_up) {
        mc_mpi_call *m = *link;
        advance(mpi, m);
        if (*m->failure) mc_mpi_give_up(mpi, m->failure);
        if (m->done)
            *link = m->next;
        else
            link = &m->next;
    }
}

/* Whether a message from rank `peer` (or to rank -1 - peer) is incomplete in this step. */
static bool waits_for(mc_mpi_call *m, int peer)
{
    for (int k = 0; k < m->pending; k++) {
        int through = 1;
        if (m->peer[k] != peer) continue;
        int error = MPI_Request_get_status(m->message[k], &through, MPI_STATUS_IGNORE);
        if (!error && !through) return true;
    }
    return false;
}

/* Writes which messages the step waits for: "nothing came from ranks 2, 3". */
static void say_missing(mc_mpi_call *m, char *text, size_t size)
{
    const mc_comm *c = m->request->comm;
    int named = 0;
    size_t used = 0;
    for (int sent = 0; sent < 2 && !named; sent++) /* who sends nothing takes nothing either */
        for (int peer = 0; peer < c->size && used < size; peer++) {
            if (!waits_for(m, sent ? -1 - peer : peer)) continue;
            const char *first = sent ? "not taken by rank " : "nothing came from rank ";
            int n = snprintf(text + used, size - used, "%s%d", named++ ? ", " : first,
                             mc_comm_member(c, peer));
            used += n > 0 ? (size_t)n : 0;
        }
    if (!named) snprintf(text, size, "the other ranks' messages came late");
}

/* ---- beginning ------------------------------------------------------------------------------- */

static mc_status make_room(mc_mpi_call *m, int messages)
{
    mc_comm *c = m->request->comm;
    if (!m->part && !(m->part = mc_malloc((size_t)c->size * sizeof *m->part)))
        return mc_fail_nomem(c->ctx, "a communicator's call");
    if (messages <= m->room) return MC_OK;
    size_t n = (size_t)messages;
    mc_free(m->message);
    mc_free(m->status);
    mc_free(m->peer);
    mc_free(m->bytes);
    m->message = mc_malloc(n * sizeof *m->message);
    m->status = mc_malloc(n * sizeof *m->status);
    m->peer = mc_malloc(n * sizeof *m->peer);
    m->bytes = mc_malloc(n * sizeof *m->bytes);
    m->room = messages;
    if (m->message && m->status && m->peer && m->bytes) return MC_OK;
    m->room = 0;
    return mc_fail_nomem(c->ctx, "the messages of a communicator's call");
}

/* Elements reduced per step, so that the data of all ranks fits the scratch memory. */
static int64_t reducing_chunk(const mc_comm *c, int64_t part, size_t size)
{
    size_t bytes = scratch_of_call / (size_t)c->size;
    return least(part, (int64_t)((bytes > least_chunk ? bytes : least_chunk) / size));
}

/* Sets the call's chunks and steps; returns whether it needs scratch memory. */
static bool plan(mc_mpi_call *m)
{
    const mc_comm *c = m->request->comm;
    const mc_comm_call *call = &m->request->call;
    size_t size = mc_dtype_size(call->dtype);
    int64_t part = call->count, most = (int64_t)(m->most / size);
    switch (call->kind) {
    case MC_COMM_SEND:
    case MC_COMM_RECV: m->steps = 1; return false;
    case MC_COMM_BROADCAST:
        m->chunk = (int64_t)(m->most < broadcast_chunk ? m->most : broadcast_chunk);
        m->steps = quotient_up((int64_t)mc_comm_bytes(call), m->chunk) + (call->peer != c->rank);
        return false;
    case MC_COMM_ALL_GATHER:
        m->chunk = most;
        m->steps = quotient_up(call->count, most);
        return false;
    case MC_COMM_ALL_REDUCE:
        m->piece = mc_comm_bytes(call) > SMALL_ALL_REDUCE ? quotient_up(call->count, c->size) : 0;
        if (m->piece) part = m->piece;
        break;
    default: break;
    }
    m->chunk = least(reducing_chunk(c, part, size), most);
    m->steps = quotient_up(part, m->chunk) + (m->piece ? quotient_up(m->piece, most) : 0);
    return call->kind != MC_COMM_REDUCE || call->peer == c->rank;
}

size_t mc_comm_mpi_scratch(mc_comm_request *r)
{
    mc_mpi_call m = {.request = r, .most = (size_t)mc_mpi_lock()->most_message};
    mc_mpi_unlock();
    return plan(&m) ? (size_t)r->comm->size * (size_t)m.chunk * size_of(r) : 0;
}

/* Copies the rank's own part. */
static void copy_own(const mc_comm *c, const mc_comm_call *call)
{
    size_t bytes = mc_comm_bytes(call);
    char *dst = call->dst;
    if (call->kind == MC_COMM_ALL_GATHER) dst += (size_t)c->rank * bytes;
    bool copies = call->kind == MC_COMM_ALL_GATHER ||
                  (call->kind == MC_COMM_BROADCAST && call->peer == c->rank);
    if (copies && dst != call->src) memmove(dst, call->src, bytes);
}

static mc_mpi_call *prepare(mc_comm *c, mc_comm_request *r)
{
    mc_mpi_call *m = r->state;
    if (!m && !(m = r->state = mc_calloc(1, sizeof *m))) {
        mc_fail_nomem(c->ctx, "a communicator's call");
        return NULL;
    }
    m->request = r;
    m->next = NULL;
    m->posted = m->done = false;
    m->step = m->piece = 0;
    m->pending = 0;
    m->failure[0] = '\0';
    m->most = (size_t)mc_mpi_lock()->most_message;
    mc_mpi_unlock();
    bool reduces = plan(m);
    int64_t chunks = quotient_up((int64_t)mc_comm_bytes(&r->call), (int64_t)m->most);
    bool is_message = r->call.kind == MC_COMM_SEND || r->call.kind == MC_COMM_RECV;
    if (make_room(m, is_message ? (int)chunks : 2 * c->size)) return NULL;
    mc_device *d = c->ctx->device;
    m->scratch_bytes = (size_t)c->size * (size_t)m->chunk * size_of(r);
    if (reduces && !(m->scratch = d->alloc(d, m->scratch_bytes))) {
        mc_fail_nomem(c->ctx, "the messages of a reduction");
        return NULL;
    }
    return m;
}

static mc_status wait_for(mc_comm *c, mc_mpi_call *m);

/* Waits until the earlier call with this number in its tag is done. */
static mc_status wait_for_tag(mc_comm *c, uint64_t number)
{
    for (;;) {
        mc_mpi *mpi = mc_mpi_lock();
        mc_mpi_call *m = mpi->active;
        while (m && !(m->request->comm == c && m->number && m->number + IN_FLIGHT <= number))
            m = m->next;
        mc_mpi_unlock();
        if (!m) return MC_OK;
        if (wait_for(c, m)) return mc_error_status(c->ctx);
    }
}

static mc_status mpi_begin(mc_comm *c, mc_comm_request *r)
{
    mpi_group *g = c->state;
    bool collective = r->call.kind != MC_COMM_SEND && r->call.kind != MC_COMM_RECV;
    uint64_t number = collective ? ++g->calls : 0;
    if (number && wait_for_tag(c, number)) return mc_error_status(c->ctx);
    mc_mpi_call *m = prepare(c, r);
    if (!m) return mc_error_status(c->ctx);
    mc_comm_kind kind = collective ? r->call.kind : MC_COMM_SEND; /* equal at both ends */
    m->number = number;
    m->tag = (int)((unsigned)g->number << (NUMBER_BITS + KIND_BITS) |
                   (unsigned)(number % IN_FLIGHT) << KIND_BITS | (unsigned)kind);
    copy_own(c, &r->call);
    mc_mpi *mpi = mc_mpi_lock();
    if (*mpi->given_up) {
        mc_fail(c->ctx, MC_ERR_STATE, "%s: MPI was given up in this process: %s",
                mc_comm_print(r).text, mpi->given_up);
        free_scratch(m);
    } else {
        mc_mpi_call **last = &mpi->active;
        while (*last) last = &(*last)->next;
        *last = m;
        progress(mpi);
    }
    mc_mpi_unlock();
    return mc_error_status(c->ctx);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Ends the wait for an unfinished call, and with it all use of MPI. */
static mc_status give_up(mc_comm *c, mc_mpi_call *m, bool late)
{
    const mc_comm_request *r = m->request;
    mc_comm_why why = {""};
    if (late) why = mc_comm_explain(c, r->sequence, mc_comm_collective(r->call.kind));
    if (late && !*why.text && mc_comm_stopped(c)) { /* another rank's explanation came first */
        mc_error_while(&c->ctx->error, "waiting for %s", mc_comm_print(r).text);
        late = false;
    }
    mc_mpi *mpi = mc_mpi_lock();
    if (late && !*why.text && !*mpi->given_up) say_missing(m, why.text, sizeof why.text);
    if (late)
        mc_fail(c->ctx, MC_ERR_IO, "%s: not done within %g s: %s", mc_comm_print(r).text,
                c->timeout, why.text);
    mc_mpi_give_up(mpi, mc_error_message(c->ctx));
    remove_active(mpi, m);
    mc_mpi_unlock();
    return mc_error_status(c->ctx);
}

/* Advances all calls once; returns whether the wait for m is over: done, or MPI given up. */
static bool look(mc_comm *c, mc_mpi_call *m)
{
    mc_mpi *mpi = mc_mpi_lock();
    if (!m->done) progress(mpi);
    bool over = m->done || *mpi->given_up;
    if (*m->failure)
        mc_fail(c->ctx, MC_ERR_IO, "%s: %s", mc_comm_print(m->request).text, m->failure);
    else if (!m->done && over)
        mc_fail(c->ctx, MC_ERR_STATE, "%s: MPI was given up in this process: %s",
                mc_comm_print(m->request).text, mpi->given_up);
    if (over) remove_active(mpi, m);
    mc_mpi_unlock();
    return over;
}

static mc_status wait_for(mc_comm *c, mc_mpi_call *m)
{
    double deadline = mc_comm_clock() + c->timeout;
    mc_comm_backoff backoff = {0};
    while (!look(c, m)) {
        if (mc_failed(c->ctx)) return give_up(c, m, false);
        if (mc_comm_stopped(c)) {
            mc_error_while(&c->ctx->error, "waiting for %s", mc_comm_print(m->request).text);
            return give_up(c, m, false);
        }
        if (mc_comm_clock() > deadline) return give_up(c, m, true);
        mc_comm_pause(&backoff);
    }
    return mc_error_status(c->ctx);
}

static mc_status mpi_finish(mc_comm *c, mc_comm_request *r)
{
    mc_mpi_call *m = r->state;
    mc_status status = wait_for(c, m);
    free_scratch(m);
    return status;
}

static mc_status mpi_nothing(mc_comm *c) { return mc_error_status(c->ctx); }

static void mpi_abort(mc_comm *c) { (void)c; } /* waiting threads poll c->aborted */

/* ---- groups ---------------------------------------------------------------------------------- */

/* Makes later groups of this rank skip the number. */
static mc_status reserve(mc_context *ctx, int number)
{
    mc_mpi *mpi = mc_mpi_lock();
    int limit = 1 << (mpi->tag_bits - NUMBER_BITS - KIND_BITS);
    if (number >= limit)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "communicator number %d: this MPI has tags for %d of them",
                number, limit);
    else if (number >= mpi->next_group)
        mpi->next_group = number + 1;
    mc_mpi_unlock();
    return mc_error_status(ctx);
}

static int next_number(void)
{
    int number = mc_mpi_lock()->next_group;
    mc_mpi_unlock();
    return number;
}

/* What a rank sends to the others in a split. */
typedef struct wish {
    int32_t colour, key, next;
} wish;
enum { WISH = sizeof(wish) / sizeof(int32_t) };

/* Fills in the child's members: the ranks of the colour, sorted by key and rank. */
static void choose(const mc_comm *c, const wish *wishes, int colour, mc_comm *child)
{
    child->size = 0;
    for (int i = 0; i < c->size; i++) {
        if (wishes[i].colour != colour) continue;
        int at = child->size++;
        for (; at > 0 && wishes[child->members[at - 1]].key > wishes[i].key; at--)
            child->members[at] = child->members[at - 1];
        child->members[at] = i;
    }
    for (int i = 0; i < child->size; i++) {
        if (child->members[i] == c->rank) child->rank = i;
        child->members[i] = mc_comm_member(c, child->members[i]);
    }
}

static const mc_comm_transport mpi_transport;

static mc_status make_part(mc_comm *c, const wish *wishes, int colour, mc_comm *child)
{
    int number = 0;
    for (int i = 0; i < c->size; i++)
        if (wishes[i].next > number) number = wishes[i].next;
    if (reserve(c->ctx, number)) return mc_error_status(c->ctx);
    if (colour < 0) return MC_OK;
    child->members = mc_malloc((size_t)c->size * sizeof *child->members);
    child->state = mc_calloc(1, sizeof(mpi_group));
    if (!child->members || !child->state) {
        mc_free(child->state);
        child->state = NULL;
        return mc_fail_nomem(c->ctx, "a communicator");
    }
    choose(c, wishes, colour, child);
    child->transport = &mpi_transport;
    ((mpi_group *)child->state)->number = number;
    return MC_OK;
}

static mc_status mpi_split(mc_comm *c, int colour, int key, mc_comm *child)
{
    wish mine = {colour < 0 ? -1 : colour, key, next_number()};
    wish *wishes = mc_malloc((size_t)c->size * sizeof *wishes);
    if (!wishes) return mc_fail_nomem(c->ctx, "splitting a communicator");
    mc_status status = mc_comm_all_gather(c, &mine, wishes, WISH, MC_I32);
    if (!status) status = make_part(c, wishes, colour, child);
    mc_free(wishes);
    return status;
}

static void mpi_release_request(mc_comm_request *r)
{
    mc_mpi_call *m = r->state;
    mc_free(m->message);
    mc_free(m->status);
    mc_free(m->peer);
    mc_free(m->bytes);
    mc_free((void *)m->part);
    mc_free(m);
}

/* Abandons calls that were never waited for. */
static void mpi_release(mc_comm *c)
{
    mc_mpi *mpi = mc_mpi_lock();
    for (mc_comm_request *r = c->requests; r; r = r->older) {
        mc_mpi_call *m = r->state;
        if (!m) continue;
        for (mc_mpi_call *a = mpi->active; a; a = a->next)
            if (a == m) mc_mpi_give_up(mpi, "a communicator was freed in the midst of a call");
        remove_active(mpi, m);
        free_scratch(m);
    }
    mpi->stays |= mc_failed(c->ctx) || c->broken;
    mc_mpi_unlock();
    mc_free(c->state);
    c->state = NULL;
}

static const mc_comm_transport mpi_transport = {
    .name = "mpi",
    .begin = mpi_begin,
    .finish = mpi_finish,
    .group_start = mpi_nothing,
    .group_end = mpi_nothing,
    .drain = mpi_nothing,
    .split = mpi_split,
    .abort = mpi_abort,
    .release_request = mpi_release_request,
    .release = mpi_release,
};

/* What a rank sends to the others to create a communicator: numbers, and a digest of the id. */
typedef struct greeting {
    int32_t next, has_id;
    uint32_t digest[2];
} greeting;
enum { GREETING = sizeof(greeting) / sizeof(int32_t) };

static greeting greet(const mc_comm_id *id)
{
    uint64_t digest = id ? mc_hash(MC_HASH_START, id->bytes, sizeof id->bytes) : MC_HASH_START;
    return (greeting){next_number(), id != NULL, {(uint32_t)digest, (uint32_t)(digest >> 32)}};
}

static mc_status meet(mc_comm *c, const mc_comm_id *id)
{
    greeting mine = greet(id), *all = mc_malloc((size_t)c->size * sizeof *all);
    if (!all) return mc_fail_nomem(c->ctx, "a communicator");
    int number = 0;
    mc_status status = mc_comm_all_gather(c, &mine, all, GREETING, MC_I32);
    for (int i = 0; i < c->size && !status; i++) {
        if (all[i].next > number) number = all[i].next;
        if (all[i].has_id != mine.has_id || memcmp(all[i].digest, mine.digest, sizeof mine.digest))
            status =
                mc_fail(c->ctx, MC_ERR_ARGUMENT,
                        "rank %d makes a communicator with another id than rank %d", i, c->rank);
    }
    mc_free(all);
    c->sequence = 0;
    ((mpi_group *)c->state)->number = number;
    return status ? status : reserve(c->ctx, number);
}

mc_status mc_comm_init_mpi(mc_comm *c, const mc_comm_id *id)
{
    if (mc_mpi_enter(c)) return mc_error_status(c->ctx);
    mpi_group *g = mc_calloc(1, sizeof *g);
    if (!g) return mc_fail_nomem(c->ctx, "a communicator");
    g->calls = mc_mpi_lock()->handshakes++;
    mc_mpi_unlock();
    c->state = g;
    c->transport = &mpi_transport;
    return meet(c, id);
}
