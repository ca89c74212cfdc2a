/* The inside of communicators: what carries them, calls that are waited for later, and who watches.
 */
#ifndef MC_DIST_COMM_INTERNAL_H
#define MC_DIST_COMM_INTERNAL_H

#include <stdatomic.h>
#include "core/device/device_internal.h"
#include "core/dist/comm.h"

/* ---- calls that are waited for later --------------------------------------------------------- */

/* A call that was begun. Its memory is not to be touched until it was waited for. */
typedef struct mc_comm_request mc_comm_request;

/* As the calls without `start`, but they return at once: NULL after an error, else a request, which
 * has to be waited for. Ranks begin them in the same order as all other calls; they may be waited
 * for in any order. Not within a group of calls.
 *
 * GPU: the work runs on the communicator's side stream, after all that was launched on the device's
 * stream so far, beside what is launched later. CPU: it moves on while this or any other call of
 * the job's communicators waits. Neither takes memory from the system once the same calls have been
 * made before. */
mc_comm_request *mc_comm_start_all_gather(mc_comm *comm, const void *src, void *dst, int64_t count,
                                          mc_dtype dtype);
mc_comm_request *mc_comm_start_reduce_scatter(mc_comm *comm, const void *src, void *dst,
                                              int64_t count, mc_dtype dtype, mc_reduce_op op);
mc_comm_request *mc_comm_start_all_reduce(mc_comm *comm, const void *src, void *dst, int64_t count,
                                          mc_dtype dtype, mc_reduce_op op);
/* Waits and ends the request; after it, its memory is the caller's. CPU: the work is done. GPU: the
 * host waits for nothing, what is launched on the device's stream from now on runs after the work.
 * NULL is allowed. On a failed context requests are ended without waiting. */
mc_status mc_comm_wait(mc_comm_request *request);

/* ---- who watches ----------------------------------------------------------------------------- */

/* What a communicator reports and asks. */
typedef struct mc_comm_hooks {
    /* Asked about once a millisecond by whatever waits: true ends the wait, with the error that it
     * has set in *error (by default one that says "stopped"). */
    bool (*stop)(void *user, mc_error *error);
    /* Called at the begin of every collective: its number among the collectives of the group, from
     * 1, and its name; 0 when the group is made. Of sends and receives the number is their own, and
     * the group 0. */
    void (*note)(void *user, uint64_t group, uint64_t sequence, const char *operation);
    /* Asked when a collective is late: which ranks keep it from ending, as a text; "" where nothing
     * is known. `all`: the group is that of all ranks. May take seconds; from any thread. */
    void (*explain)(void *user, uint64_t group, uint64_t sequence, const char *operation, bool all,
                    char *text, size_t size);
    /* Called for a failure that is found on another thread than the context's. */
    void (*tell)(void *user, const mc_error *error);
    void *user;
    uint64_t group; /* the group's name in notes, the same on all its ranks, not 0 */
    int ranks;      /* of the job; 0: unknown */
} mc_comm_hooks;
/* What a communicator of the job reports and asks: over the control channel (world.c). Leaves
 * *hooks as it is if there is none. For communicators without an id: all ranks of the job make
 * them, in the same order. */
void mc_world_hooks(mc_context *ctx, const mc_comm_id *id, mc_comm_hooks *hooks);

/* As mc_comm_new, with these hooks instead of those of the context's job; they serve the waits of
 * the creation itself, too. Parts that are split off inherit them, with a name of their own. */
mc_comm *mc_comm_new_hooked(mc_context *ctx, const mc_comm_id *id, int size, int rank,
                            const mc_comm_options *options, const mc_comm_hooks *hooks);

/* For the transport's watchdog, a thread of its own (GPU; on CPUs the waiting thread watches):
 * looks whether the job or the communicator has failed, or work of it has run longer than the
 * timeout. Then the communicator is aborted, so that a thread that waits for the GPU comes back,
 * and this is why its calls fail from then on. */
void mc_comm_watch(mc_comm *comm);

/* Sets the context's error where the communicator or its job has failed by now. For what runs
 * without a call on it: recorded steps. */
mc_status mc_comm_check(mc_comm *comm);

/* GPU: has the watchdog watch also what was launched on the device's stream so far, under the name
 * `what`: a recorded step that was run again, as all ranks do. Elsewhere nothing. */
void mc_comm_mark(mc_comm *comm, const char *what);

/* Bytes that were sent to other ranks by this one's calls, by the least that any algorithm needs;
 * and the calls. */
typedef struct mc_comm_volume {
    uint64_t calls, bytes;
} mc_comm_volume;
mc_comm_volume mc_comm_volume_of(const mc_comm *comm);

/* ---- what carries ---------------------------------------------------------------------------- */

typedef enum mc_comm_kind {
    MC_COMM_ALL_REDUCE,
    MC_COMM_REDUCE,
    MC_COMM_BROADCAST,
    MC_COMM_ALL_GATHER,
    MC_COMM_REDUCE_SCATTER,
    MC_COMM_SEND,
    MC_COMM_RECV,
} mc_comm_kind;

/* A call as it was made, checked. */
typedef struct mc_comm_call {
    mc_comm_kind kind;
    const void *src;
    void *dst;
    int64_t count;
    mc_dtype dtype;
    mc_reduce_op op;
    int peer; /* the root, or the other end */
} mc_comm_call;

struct mc_comm_request {
    mc_comm *comm;
    mc_comm_call call;
    uint64_t sequence;
    bool later; /* begun by mc_comm_start_* */
    bool done;
    mc_comm_request *next; /* of the group's calls, or of those not in use */
    void *state;           /* the transport's; kept when the request is used again */
    mc_comm_request *older;
    bool listed; /* among the communicator's requests, by `older` */
};

typedef struct mc_comm_transport {
    const char *name;
    /* Begins r->call; sets r->done if it is done already. */
    mc_status (*begin)(mc_comm *c, mc_comm_request *r);
    /* Ends a request that was begun and is not done: see mc_comm_wait. After it nobody writes to
     * the request's memory, whatever happened. */
    mc_status (*finish)(mc_comm *c, mc_comm_request *r);
    mc_status (*group_start)(mc_comm *c);
    mc_status (*group_end)(mc_comm *c); /* before its requests are finished */
    mc_status (*drain)(mc_comm *c);     /* waits until what was launched is done */
    /* Fills in a part: its rank, size, members and state; *child stays without state where the
     * colour is negative. */
    mc_status (*split)(mc_comm *c, int colour, int key, mc_comm *child);
    bool (*watch)(mc_comm *c, mc_error *error); /* whether it has failed: see mc_comm_watch */
    void (*mark)(mc_comm *c, uint64_t number, const char *what);
    void (*abort)(mc_comm *c); /* from any thread, once; comm->aborted is set already */
    void (*release_request)(mc_comm_request *r);
    void (*release)(mc_comm *c);
} mc_comm_transport;

struct mc_comm {
    mc_owned owned;
    mc_context *ctx;
    const mc_comm_transport *transport;
    int size, rank;
    int *members; /* (size) their ranks in the group that was made with an id; NULL: the same */
    int apart;    /* in a plan: how far its neighbours are apart among all ranks; 0: 1 */
    double timeout;
    mc_comm_hooks hooks;
    uint64_t sequence;  /* of the last collective: the same on all ranks */
    uint64_t exchanges; /* sends and receives so far */
    mc_comm_volume volume;
    uint64_t marks; /* of mc_comm_mark so far */
    atomic_bool aborted;
    mc_error late; /* why, where mc_comm_watch did it: set before `aborted` */
    bool broken;   /* a call on it failed */
    int group_depth;
    mc_comm_request *requests; /* all that were made */
    mc_comm_request *unused;   /* those that are done with */
    mc_comm_request *group;    /* the open group's calls, oldest first */
    mc_comm_request **last;    /* where the next one goes */
    void *state;               /* the transport's */
};

/* Set up c->state and c->transport for the group whose size, rank, timeout and hooks c has. */
mc_status mc_comm_init_self(mc_comm *c);
mc_status mc_comm_init_plan(mc_comm *c);
size_t mc_comm_mpi_scratch(mc_comm_request *r); /* bytes of device memory that the call holds */
mc_status mc_comm_init_mpi(mc_comm *c, const mc_comm_id *id);
mc_status mc_comm_init_nccl(mc_comm *c, const mc_comm_id *id);
/* Over MPI, which is started for it, whatever the context's device: everyone's bytes on the host
 * become rank 0's. */
mc_status mc_comm_share_over_mpi(mc_context *ctx, int size, int rank, double timeout, void *data,
                                 int64_t bytes);
mc_status mc_comm_nccl_unique_id(mc_context *ctx, mc_comm_id *id);

/* ---- for transports -------------------------------------------------------------------------- */

double mc_comm_clock(void); /* seconds, monotonic */
/* Pauses of something that waits: the processor is given up a few times, then for a time that grows
 * to a millisecond. Start from {0}. */
typedef struct mc_comm_backoff {
    int tries;
} mc_comm_backoff;
void mc_comm_pause(mc_comm_backoff *backoff);
/* Whether a wait of `c` has to end although what it waits for is not done: the communicator was
 * aborted or its hook says so; then the context's error is set. The deadline is the caller's. */
bool mc_comm_stopped(mc_comm *c);

/* "all-reduce 17 of 1000 f32 (sum) on rank 1 of 4", for messages. */
typedef struct mc_comm_text {
    char text[160];
} mc_comm_text;
mc_comm_text mc_comm_print(const mc_comm_request *r);
const char *mc_comm_kind_name(mc_comm_kind kind);
/* What keeps a collective of `c` from ending, by the hooks: "" where they know of nothing. The
 * operation is named as in notes; NULL: it is no collective. */
typedef struct mc_comm_why {
    char text[600];
} mc_comm_why;
extern const char mc_comm_making[]; /* with sequence 0: the making of a communicator */
mc_comm_why mc_comm_explain(const mc_comm *c, uint64_t sequence, const char *operation);
const char *mc_comm_collective(mc_comm_kind kind); /* its name; NULL for sends and receives */
/* The same of mc_comm_mark's. */
mc_comm_why mc_comm_explain_mark(const mc_comm *c, uint64_t number, const char *what);
/* The number of member i in the group that was made with an id, which messages use. */
int mc_comm_member(const mc_comm *c, int i);
size_t mc_comm_bytes(const mc_comm_call *call); /* of `count` elements */

/* dst[i] = op over j of part[j][i], in the order of the parts, on host memory; dst may be one of
 * the parts. Averages divide by `parts`. */
void mc_reduce_parts(mc_device *device, mc_reduce_op op, mc_dtype dtype, int64_t count, int parts,
                     const void *const *part, void *dst);

#endif
