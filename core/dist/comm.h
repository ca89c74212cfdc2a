/* Communicators: collective operations between the ranks of a job.
 *
 *     mc_comm *world = mc_comm_new(ctx, &id, mc_world_size(ctx), mc_rank(ctx), NULL);
 *     mc_comm_all_reduce(world, x, y, count, MC_F32, MC_REDUCE_SUM);
 *     mc_comm_free(world);
 *
 * A communicator is a group of ranks, numbered from 0. What carries it follows from its context's
 * device and its size: a group of one rank talks to nobody, GPUs talk through NCCL, and CPU ranks
 * through MPI, which this starts when it needs it.
 *
 * Every rank of a group makes the same calls on it in the same order, with equal counts, dtypes,
 * operations and roots. Memory is that of the context's device (mc_tensor_data). On a CPU a call
 * returns when its work is done. On a GPU it returns at once, and its work runs in order with what
 * was launched before and after: memory may be given to operations, not freed by other means.
 *
 * Nothing waits for ever. A call that is not done within the communicator's timeout, and one whose
 * peer is gone, sets an error that names the operation, its number, and the ranks that have not
 * come to it (on a single context: those from which nothing came). On a GPU that error shows at the
 * next call, or the next wait for the GPU. After that the communicator carries nothing any more:
 * calls on it, or on its parts, are errors, and freeing is local. Over MPI an unfinished call ends
 * MPI for the process.
 *
 * As everywhere, calls do nothing while an error is set on the context, and return its status. A
 * communicator belongs to the thread of its context, but for mc_comm_abort.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_DIST_COMM_H
#define MC_DIST_COMM_H

#include <stdbool.h>
#include <stdint.h>
#include "core/base/context.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

typedef struct mc_comm mc_comm;

/* What ranks find one another by: made on one rank, sent to the others by the program (64 or more
 * bytes of it are random). */
typedef struct mc_comm_id {
    unsigned char bytes[128];
} mc_comm_id;

/* How elements of several ranks become one.
 *
 * f32 is summed and multiplied in a wider type on CPUs, f16 and bf16 in f32, in the order of the
 * ranks, and the result is rounded once, to nearest even: it is the same on every rank and from run
 * to run, whatever the count. On GPUs it is NCCL's. Sums and products of integers wrap; their
 * average is the wrapped sum divided by the ranks, rounded towards zero. What max and min make of
 * NaN is not specified. Of bool there are prod and min (all of them), and max (any of them). */
typedef enum mc_reduce_op {
    MC_REDUCE_SUM = 0,
    MC_REDUCE_PROD,
    MC_REDUCE_MAX,
    MC_REDUCE_MIN,
    MC_REDUCE_AVG, /* the sum divided by the number of ranks */
} mc_reduce_op;

typedef struct mc_comm_options {
    /* Seconds until a call that is not done is an error. 0: the environment variable
     * MC_COMM_TIMEOUT, else 300. */
    double timeout;
} mc_comm_options;

/* ---- communicators --------------------------------------------------------------------------- */

/* Makes an id, on one rank. Errors: NCCL is needed and missing. */
MC_API mc_status mc_comm_unique_id(mc_context *ctx, mc_comm_id *id);

/* Takes part in a new group of `size` ranks as number `rank`; every rank of it calls this, with the
 * same id. `id` may be NULL for one rank and for CPU ranks. CPU ranks have to be all of MPI's, in
 * MPI's order; smaller groups come by splitting. `options` may be NULL.
 *
 * Owned by the context. NULL after an error: a bad size or rank, NCCL or MPI missing in this build
 * or on this machine, an MPI job of another size, an id that differs, a rank that does not come. */
MC_API mc_comm *mc_comm_new(mc_context *ctx, const mc_comm_id *id, int size, int rank,
                            const mc_comm_options *options);

/* Cuts a group: ranks that pass the same colour form a new one, in the order of their keys, equal
 * keys in the order of their ranks. Every rank of the group takes part; one with a negative colour
 * gets NULL, without an error. The timeout is inherited. */
MC_API mc_comm *mc_comm_split(mc_comm *comm, int colour, int key);

/* Leaves the group: waits for what this rank has begun, for no other rank. NULL is allowed. The
 * parts that were split off stay. On GPUs, recorded steps that use it are to be dropped before
 * (mc_step_forget). */
MC_API void mc_comm_free(mc_comm *comm);

/* Gives the group up: whatever waits in it on this rank ends with an error, and later calls on it
 * are errors. May be called from any thread. Other ranks do not hear of it: they run into their
 * timeout. */
MC_API void mc_comm_abort(mc_comm *comm);

/* The group of all ranks of the context's job, in their order, which the library's own calls use:
 * every rank uses it at the same points of the program, and nobody frees it. With one rank it is a
 * group of that one, so that the program is the same. NULL on a failed context. */
MC_API mc_comm *mc_context_comm(mc_context *ctx);

MC_API int mc_comm_count(const mc_comm *comm); /* ranks of the group; 1 for NULL */
MC_API int mc_comm_rank(const mc_comm *comm);  /* this one's number in it; 0 for NULL */

/* ---- collectives ----------------------------------------------------------------------------- */

/* Of each call below: `count` elements of `dtype`; 0 is allowed. `src` and `dst` may be equal;
 * otherwise they do not overlap, but for what is said. */

/* dst[i] = op over all ranks of src[i], on every rank. */
MC_API mc_status mc_comm_all_reduce(mc_comm *comm, const void *src, void *dst, int64_t count,
                                    mc_dtype dtype, mc_reduce_op op);
/* The same on the rank `root` only; elsewhere dst is not looked at and may be NULL. */
MC_API mc_status mc_comm_reduce(mc_comm *comm, const void *src, void *dst, int64_t count,
                                mc_dtype dtype, mc_reduce_op op, int root);
/* dst = root's src; elsewhere src is not looked at and may be NULL. */
MC_API mc_status mc_comm_broadcast(mc_comm *comm, const void *src, void *dst, int64_t count,
                                   mc_dtype dtype, int root);
/* dst (ranks, count) = src (count) of every rank, in their order. src may be its place in dst. */
MC_API mc_status mc_comm_all_gather(mc_comm *comm, const void *src, void *dst, int64_t count,
                                    mc_dtype dtype);
/* dst (count) = this rank's row of op over all ranks of src (ranks, count). dst may be its place in
 * src. */
MC_API mc_status mc_comm_reduce_scatter(mc_comm *comm, const void *src, void *dst, int64_t count,
                                        mc_dtype dtype, mc_reduce_op op);
/* From one rank to another, which calls the other function with the same count. Two ranks that send
 * to each other at once, and a rank that sends to itself, do so within a group of calls. */
MC_API mc_status mc_comm_send(mc_comm *comm, const void *src, int64_t count, mc_dtype dtype,
                              int peer);
MC_API mc_status mc_comm_recv(mc_comm *comm, void *dst, int64_t count, mc_dtype dtype, int peer);

/* Calls on this communicator between the two are carried out together, at the end; their memory is
 * not to be touched in between. Pairs may be nested: the outermost counts. */
MC_API mc_status mc_comm_group_start(mc_comm *comm);
MC_API mc_status mc_comm_group_end(mc_comm *comm);

/* Returns when every rank of the group has called it, and what this rank's GPU was to do before is
 * done. */
MC_API mc_status mc_comm_barrier(mc_comm *comm);

#endif
