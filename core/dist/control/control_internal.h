/* The control channel of a job of several ranks.
 *
 * Rank 0 runs a small TCP service. Every other rank is connected to it from the rendezvous to the
 * end of the run. Each rank has one thread for it. Tensors never go through it. The channel
 *
 *   - brings the ranks together, and names the ranks that have not come by the deadline;
 *   - sends small blobs (an NCCL unique id) from rank 0 to all;
 *   - carries the first error of any rank to all, at once;
 *   - detects ranks that have died (at once: their connection closes) or hang (no heartbeat
 *     for half of the deadline);
 *   - knows the last collective operation of each rank, and so, when one passes the
 *     deadline, which rank is behind, and where.
 *
 * A rank that begins a collective notes it (mc_control_note). While it waits, it polls
 * mc_control_failed and checks the deadline; after the deadline, mc_control_explain names the ranks
 * that are behind. All functions may be called from any thread, except mc_control_free, and
 * mc_control_share, which is collective. With a NULL control, and in a world of one rank, they do
 * nothing and never fail. No function waits longer than the deadline; mc_control_free waits at most
 * a second.
 *
 *
 * The protocol. Each end of a connection first proves that it knows the job's secret
 * (control_proof.c). Frames follow in both directions; numbers are little-endian:
 *
 *     u32 magic "MCc2" | u16 type | u16 size of what follows, at most 4104
 *
 *     HELLO   client  u64 job, u32 world size, u32 rank, u64 host      the first frame
 *     REFUSE  server  u32 when to come again, text                     and closes
 *     WAIT    server  text: the ranks that have not come               answers HELLO, repeated
 *     START   server  u32 local rank, u32 local size                   all have come
 *     BEAT    both    where a rank is (mc_control_beat_frame)          every beat
 *     BLOB    server  u32 number, bytes
 *     TAKEN   client  u32 number                                       the blob has been asked for
 *     ERROR   both    u32 status, u32 rank or ~0, text
 *     ASK     client  u32 number, u64 group, u64 operation, u32 all,
 *                     text                                             who keeps it from ending?
 *     ANSWER  server  u32 number, text
 *     BYE     both    nothing                                          the last frame
 *
 * A connection that ends without BYE counts as a death.
 *
 * Strangers do no harm. A connection without a proof and HELLO within a few seconds is closed; one
 * that fails the proof is closed a moment later, without an answer. Rank 0 keeps a bounded number
 * of unproven connections. When all places are taken, a newer connection replaces one that has
 * failed, else the oldest that has had time for its proof; if there is none, the newer one waits. A
 * rank that is cut off in this way, or meets a stranger in rank 0's place, tries again until its
 * deadline. */
#ifndef MC_DIST_CONTROL_INTERNAL_H
#define MC_DIST_CONTROL_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"
#include "core/dist/control/job_secret_internal.h"

enum {
    MC_CONTROL_BLOB_MAX = 4096, /* bytes */
    MC_CONTROL_NAME_MAX = 96,   /* of an operation's name, NUL included; longer ones are cut */
    MC_CONTROL_TEXT_MAX = 2048  /* of an error's message, NUL included; longer ones are cut */
};

typedef struct mc_control mc_control;

typedef struct mc_control_options {
    int rank, world_size;
    const char *addr; /* rank 0's host: a name, an IPv4 or an IPv6 address, or a list of such with
                         commas between */
    int port;         /* 1 to 65535 */
    uint64_t job;     /* ranks of another job are refused */
    bool one_host;    /* all ranks are on this host: where `addr` is a loopback address, the service
                         can be reached from here only */
    double timeout;   /* the deadline, in seconds (mc_launch_timeout) */
    const mc_job_secret *secret; /* NULL: rank 0 creates one in a file of the host */
    /* Called on rank 0 by mc_control_new if it listens on all addresses of its host. May be
     * NULL. */
    void (*listens_everywhere)(void *user);
    void *user;
} mc_control_options;

/* Rendezvous: returns when all ranks have come. NULL with the error set if ranks are missing at the
 * deadline (the message names them and the address), the port is taken, the address can't be
 * resolved, the secret's file can't be created, or the service refuses this rank (another job or
 * world size, a repeated rank). Without libcrypto `addr` must be a loopback address. */
mc_control *mc_control_new(mc_error *error, const mc_control_options *options);

/* This host's addresses in the form of `addr`; its name if it has only loopback addresses. */
void mc_control_own_addresses(char *text, size_t room);

/* Says goodbye, so that the other ranks see an end and not a death, and frees. Delivers a reported
 * error first. Needs no other rank. */
void mc_control_free(mc_control *c);

/* Collective: copies `size` bytes (at most MC_CONTROL_BLOB_MAX, the same on every rank) of rank 0's
 * blob to all ranks, and to no process that has not proven itself. Rank 0 returns when all ranks
 * have received them; `what` names them in errors. False with the error set after a failure of any
 * rank or the deadline. */
bool mc_control_share(mc_control *c, mc_error *error, const char *what, void *blob, size_t size);

/* Notes that this rank has begun collective number `operation` of a group, named e.g. "all-reduce".
 * Each group numbers its operations from 1, equally on every rank; 0 means that the rank has joined
 * the group. Group 0 is for operations of only some ranks of a group, from which nothing is
 * concluded. Costs a lock and a copy; travels with the next heartbeat. */
void mc_control_note(mc_control *c, uint64_t group, uint64_t operation, const char *name);

/* Which ranks delay an operation of a group, by the ranks' notes: "rank 2 has not come to it, ...",
 * or "" if none is known to. `all`: the group has all ranks. Asks rank 0, which may take seconds on
 * a busy machine. */
void mc_control_explain(mc_control *c, uint64_t group, uint64_t operation, const char *name,
                        bool all, char *text, size_t room);

/* Whether the job has failed: by an error, a death or a silence of any rank. Sets *error (which may
 * be NULL) if it holds none yet. Cheap enough to poll. A failure is permanent. */
bool mc_control_failed(mc_control *c, mc_error *error);

/* Reports an error of this rank to all. The first one wins. Does not wait. */
void mc_control_report(mc_control *c, mc_status status, const char *message);

/* This rank's number among those of its host, and their count; known after the rendezvous. */
void mc_control_place(const mc_control *c, int *local_rank, int *local_size);

#endif
