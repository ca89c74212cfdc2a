/* The internals of communicators: asynchronous calls, hooks, and transports. */
#ifndef MC_DIST_COMM_INTERNAL_H
#define MC_DIST_COMM_INTERNAL_H

#include <stdatomic.h>
#include "core/device/device_internal.h"
#include "core/dist/comm.h"

/* ---- calls that are waited for later --------------------------------------------------------- */

/* An asynchronous call. Its memory must not be used until mc_comm_wait. */
typedef struct mc_comm_request mc_comm_request;

/* As the calls without `start`, but they return at once: NULL after an error, else a request for
 * mc_comm_wait. All ranks start them in the same order as other calls, and may wait for them in any
 * order. Not allowed within a group of calls.
 *
 * GPU: the work runs on the communicator's side stream, after everything launched on the device's
 * stream so far, and concurrently with later launches. CPU: it progresses while any call of the
 * job's communicators waits. Calls that repeat earlier ones allocate no system memory. */
mc_comm_request *mc_comm_start_all_gather(mc_comm *comm, const void *src, void *dst, int64_t count,
                                          mc_dtype dtype);
mc_comm_request *mc_comm_start_reduce_scatter(mc_comm *comm, const void *src, void *dst,
                                              int64_t count, mc_dtype dtype, mc_reduce_op op);
mc_comm_request *mc_comm_start_all_reduce(mc_comm *comm, const void *src, void *dst, int64_t count,
                                          mc_dtype dtype, mc_reduce_op op);
/* Waits for the request and frees it; the memory is then the caller's. CPU: the work is done. GPU:
 * the host does not wait, and later launches on the device's stream run after the work. NULL is
 * allowed. On a failed context it frees without waiting. */
mc_status mc_comm_wait(mc_comm_request *request);

/* ---- who watches ----------------------------------------------------------------------------- */

/* What a communicator reports, and asks, while it works. */
typedef struct mc_comm_hooks {
    /* Called about once a millisecond by every wait: true ends the wait with the error that it has
     * set in *error (by default one that says "stopped"). */
    bool (*stop)(void *user, mc_error *error);
    /* Called at the start of each collective, with its number in the group (from 1) and its name;
     * with number 0 when the group is created. Sends and receives have their own numbers, and group
     * 0. */
    void (*note)(void *user, uint64_t group, uint64_t sequence, const char *operation);
    /* Called when a collective is late: writes which ranks delay it, or "" if unknown. `all`: the
     * group has all ranks of the job. May take seconds. Called on any thread. */
    void (*explain)(void *user, uint64_t group, uint64_t sequence, const char *operation, bool all,
                    char *text, size_t size);
    /* Called for a failure found on another thread than the context's. */
    void (*report)(void *user, const mc_error *error);
    void *user;
    uint64_t group; /* the group's number in notes, equal on all its ranks, not 0 */
    int ranks;      /* of the job; 0: unknown */
} mc_comm_hooks;
/* The hooks of a communicator of the job, over the control channel (world.c). Without a channel,
 * *hooks is unchanged. For communicators without an id, which all ranks of the job create in the
 * same order. */
void mc_world_hooks(mc_context *ctx, const mc_comm_id *id, mc_comm_hooks *hooks);

/* As mc_comm_new, with these hooks instead of those of the context's job; waits during the creation
 * use them too. Parts split off inherit them, with their own group number. */
mc_comm *mc_comm_new_hooked(mc_context *ctx, const mc_comm_id *id, int size, int rank,
                            const mc_comm_options *options, const mc_comm_hooks *hooks);

/* For the transport's watchdog thread (GPU; on CPUs the waiting thread watches). Checks whether the
 * job or the communicator has failed, or its work has run longer than the timeout. If so, aborts
 * the communicator, so that a thread waiting for the GPU returns, and keeps the reason for later
 * calls. */
void mc_comm_watch(mc_comm *comm);

/* Sets the context's error if the communicator or its job has failed. For recorded steps, which run
 * without calling the communicator. */
mc_status mc_comm_check(mc_comm *comm);

/* GPU: makes the watchdog also watch everything launched on the device's stream so far, under the
 * name `what`: a replayed step, which all ranks run. Does nothing on other devices. */
void mc_comm_mark(mc_comm *comm, const char *what);

/* Calls, and the bytes that this rank sent for them, counted as the minimum of any algorithm. */
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

/* A call and its arguments, after the checks. */
typedef struct mc_comm_call {
    mc_comm_kind kind;
    const void *src;
    void *dst;
    int64_t count;
    mc_dtype dtype;
    mc_reduce_op op;
    int peer; /* the root, or the other rank */
} mc_comm_call;

struct mc_comm_request {
    mc_comm *comm;
    mc_comm_call call;
    uint64_t sequence;
    bool later; /* begun by mc_comm_start_* */
    bool done;
    mc_comm_request *next; /* in the group's list, or in the list of unused requests */
    void *state;           /* the transport's; kept for the request's next use */
    mc_comm_request *older;
    bool listed; /* is in the communicator's list of requests, by `older` */
};

typedef struct mc_comm_transport {
    const char *name;
    /* Starts r->call; sets r->done if it is done at once. */
    mc_status (*begin)(mc_comm *c, mc_comm_request *r);
    /* Finishes a started request that is not done: see mc_comm_wait. Afterwards nothing writes to
     * the request's memory, even after an error. */
    mc_status (*finish)(mc_comm *c, mc_comm_request *r);
    mc_status (*group_start)(mc_comm *c);
    mc_status (*group_end)(mc_comm *c); /* before its requests are finished */
    mc_status (*drain)(mc_comm *c);     /* waits for everything launched */
    /* Fills in a part: its rank, size, members and state. With a negative colour *child gets no
     * state. */
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
    int *members; /* (size) ranks in the group created with an id; NULL: the same */
    int apart;    /* in a plan: distance of neighbours in the numbering of all ranks; 0: 1 */
    double timeout;
    mc_comm_hooks hooks;
    uint64_t sequence;  /* of the last collective: the same on all ranks */
    uint64_t exchanges; /* sends and receives so far */
    mc_comm_volume volume;
    uint64_t marks; /* of mc_comm_mark so far */
    atomic_bool aborted;
    mc_error late; /* the reason, if mc_comm_watch aborted: set before `aborted` */
    bool broken;   /* a call on it failed */
    int group_depth;
    mc_comm_request *requests; /* all that exist */
    mc_comm_request *unused;   /* the free ones */
    mc_comm_request *group;    /* the open group's calls, oldest first */
    mc_comm_request **last;    /* where to append the next one */
    void *state;               /* the transport's */
};

/* Set c->state and c->transport for the group whose size, rank, timeout and hooks are in c. */
mc_status mc_comm_init_self(mc_comm *c);
mc_status mc_comm_init_plan(mc_comm *c);
size_t mc_comm_mpi_scratch(mc_comm_request *r); /* bytes of device memory that the call allocates */
mc_status mc_comm_init_mpi(mc_comm *c, const mc_comm_id *id);
mc_status mc_comm_init_nccl(mc_comm *c, const mc_comm_id *id);
/* Replaces each rank's bytes, in host memory, by rank 0's. Uses MPI, which it starts if needed, on
 * any device. */
mc_status mc_comm_share_over_mpi(mc_context *ctx, int size, int rank, double timeout, void *data,
                                 int64_t bytes);
mc_status mc_comm_nccl_unique_id(mc_context *ctx, mc_comm_id *id);

/* ---- for transports -------------------------------------------------------------------------- */

double mc_comm_clock(void); /* seconds, monotonic */
/* Pauses for a waiting loop: yields the processor a few times, then sleeps for growing times up to
 * a millisecond. Start from {0}. */
typedef struct mc_comm_backoff {
    int tries;
} mc_comm_backoff;
void mc_comm_pause(mc_comm_backoff *backoff);
/* Whether a wait of `c` must end early because the communicator was aborted or its hook says so;
 * then sets the context's error. The caller checks the deadline. */
bool mc_comm_stopped(mc_comm *c);

/* "all-reduce 17 of 1000 f32 (sum) on rank 1 of 4", for messages. */
typedef struct mc_comm_text {
    char text[160];
} mc_comm_text;
mc_comm_text mc_comm_print(const mc_comm_request *r);
const char *mc_comm_kind_name(mc_comm_kind kind);
/* What delays a collective of `c`, from the hooks; "" if unknown. The operation has its name in
 * notes; NULL: not a collective. */
typedef struct mc_comm_why {
    char text[600];
} mc_comm_why;
extern const char mc_comm_making[]; /* with sequence 0: the creation of a communicator */
mc_comm_why mc_comm_explain(const mc_comm *c, uint64_t sequence, const char *operation);
const char *mc_comm_collective(mc_comm_kind kind); /* its name; NULL for sends and receives */
/* The same for a mark of mc_comm_mark. */
mc_comm_why mc_comm_explain_mark(const mc_comm *c, uint64_t number, const char *what);
/* The rank of member i in the group created with an id, for messages. */
int mc_comm_member(const mc_comm *c, int i);
size_t mc_comm_bytes(const mc_comm_call *call); /* of `count` elements */

/* dst[i] = op over j of part[j][i], in the order of the parts, in host memory; dst may be one of
 * the parts. Averages divide by `parts`. */
void mc_reduce_parts(mc_device *device, mc_reduce_op op, mc_dtype dtype, int64_t count, int parts,
                     const void *const *part, void *dst);

#endif
