/* The control channel of a job of several ranks.
 *
 * Rank 0 runs a small TCP service, every other rank is connected to it, from the rendezvous to the
 * end of the run; each has one thread for it. Data never goes through it. It
 *
 *   - brings the ranks together, and names those that have not come by the deadline;
 *   - hands small blobs (an NCCL unique id) from rank 0 to all;
 *   - carries the first error of any rank to all, at once;
 *   - finds ranks that have died (their connection closes: at once) or stand still (no heartbeat
 *     for half of the deadline);
 *   - knows which collective operation each rank has begun last, and so, when one passes the
 *     deadline, which rank is behind, and where.
 *
 * A rank that begins a collective notes it (mc_control_note) and, while it waits, polls
 * mc_control_failed and keeps the deadline; when that has passed, mc_control_explain names the
 * ranks that are behind. All functions may be called from any thread, except mc_control_free, and
 * mc_control_share, which is collective. With a NULL control they do nothing and nothing ever
 * fails; so they do, without thread or socket, in a world of one rank. Nothing here waits for
 * longer than the deadline; mc_control_free for at most a second.
 *
 *
 * The protocol. Each end of a connection first proves that it knows the job's secret
 * (control_proof.c). After that come frames, either way, numbers little-endian:
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
 * A connection that ends without BYE is a death.
 *
 * Strangers do no harm. Who has not proven itself and said HELLO within a few seconds is cut off,
 * and who fails the proof is closed a moment later, unanswered. Rank 0 keeps a bounded number of
 * such connections. When all places are taken, one that has failed gives way to a newer one, else
 * the oldest that has had time to prove itself; where none has, the newer one waits. A rank that is
 * cut off in this way, or meets a stranger in rank 0's place, comes again until its deadline. */
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
    const mc_job_secret *secret; /* NULL: that of one host's file, which rank 0 makes */
    /* Called on rank 0, from mc_control_new, where it listens on all addresses of its host. May be
     * NULL. */
    void (*listens_everywhere)(void *user);
    void *user;
} mc_control_options;

/* Rendezvous: returns when all ranks have come. NULL with the error set when they have not by the
 * deadline (the message names them and the address), when the port is taken, the address can't be
 * resolved, the secret's file can't be made, or the service refuses this rank (another job or world
 * size, a rank that is there already). Without libcrypto `addr` has to be a loopback address. */
mc_control *mc_control_new(mc_error *error, const mc_control_options *options);

/* This host's addresses, for `addr`; its name where it has none but loopback addresses. */
void mc_control_own_addresses(char *text, size_t room);

/* Says goodbye, so that the others know this for an end and not a death, and frees. An error that
 * was reported is delivered before. Needs no other rank. */
void mc_control_free(mc_control *c);

/* Collective: `size` bytes (at most MC_CONTROL_BLOB_MAX, the same on every rank) go from rank 0's
 * blob to everybody's: to ranks, which have proven themselves, and to no other process. On rank 0
 * it returns when all ranks have come for it; `what` names it in errors. False with the error set
 * after a failure of any rank or the deadline. */
bool mc_control_share(mc_control *c, mc_error *error, const char *what, void *blob, size_t size);

/* This rank has begun collective number `operation` of a group; `name` such as "all-reduce".
 * Operations are numbered by group, the same way on every rank, from 1; 0 says that the rank is in
 * the group. With group 0 the operation is one that not all ranks of a group begin, from which
 * nothing is concluded. Costs a lock and a copy; travels with the next heartbeat. */
void mc_control_note(mc_control *c, uint64_t group, uint64_t operation, const char *name);

/* Which ranks keep an operation of a group from ending, as far as the ranks' notes tell: "rank 2
 * has not come to it, ...", or "" when none is known to. `all`: the group is that of all ranks.
 * Asks rank 0: may take seconds on a busy machine. */
void mc_control_explain(mc_control *c, uint64_t group, uint64_t operation, const char *name,
                        bool all, char *text, size_t room);

/* Whether the job has failed: an error of any rank, a death, a silence. Fills in *error (which may
 * be NULL) if it holds none yet. Cheap: to be polled. Failing is for good. */
bool mc_control_failed(mc_control *c, mc_error *error);

/* Reports an error of this rank to all. The first one wins. Does not wait. */
void mc_control_report(mc_control *c, mc_status status, const char *message);

/* This rank's place among those of the same host, by rank; found out at the rendezvous. */
void mc_control_place(const mc_control *c, int *local_rank, int *local_size);

#endif
