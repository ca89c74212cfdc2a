/* Communicators: collective operations between the ranks of a job.
 *
 *     mc_comm *world = mc_comm_new(ctx, &id, mc_world_size(ctx), mc_rank(ctx), NULL);
 *     mc_comm_all_reduce(world, x, y, count, MC_F32, MC_REDUCE_SUM);
 *     mc_comm_free(world);
 *
 * A communicator is a group of ranks, numbered from 0. Its transport depends on its context's
 * device and its size: a group of one rank needs none, GPUs use NCCL, and CPU ranks use MPI, which
 * is started when needed.
 *
 * Every rank of a group makes the same calls on it in the same order, with equal counts, dtypes,
 * operations and roots. Memory is that of the context's device (mc_tensor_data). On a CPU a call
 * returns when its work is done. On a GPU it returns at once, and its work runs in order with
 * earlier and later launches: operations may use the memory at once, but the program must not free
 * it by other means.
 *
 * No call waits for ever. If a call does not finish within the communicator's timeout, or its peer
 * is gone, it sets an error that names the operation, its number, and the ranks that have not
 * called it (on a single context: the ranks that sent nothing). On a GPU the error shows at the
 * next call or the next wait for the GPU. After that the communicator is unusable: calls on it or
 * on its parts are errors, and freeing it is local. Over MPI an unfinished call ends MPI for the
 * process.
 *
 * As everywhere, calls on a failed context do nothing and return its status. A communicator belongs
 * to the thread of its context, except for mc_comm_abort.
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

/* The id of a new group: created on one rank and sent to the others by the program. At least 64 of
 * its bytes are random. */
typedef struct mc_comm_id {
    unsigned char bytes[128];
} mc_comm_id;

/* How elements of several ranks are combined.
 *
 * f32 is summed and multiplied in a wider type on CPUs, f16 and bf16 in f32, in the order of the
 * ranks, and the result is rounded once, to nearest even: it is the same on every rank and from run
 * to run, whatever the count. On GPUs it is NCCL's. Sums and products of integers wrap; their
 * average is the wrapped sum divided by the ranks, rounded towards zero. On CPUs max and min are
 * NaN if an element of one rank is; on GPUs they may be a number then. bool supports prod and min
 * (logical and) and max (logical or). */
typedef enum mc_reduce_op {
    MC_REDUCE_SUM = 0,
    MC_REDUCE_PROD,
    MC_REDUCE_MAX,
    MC_REDUCE_MIN,
    MC_REDUCE_AVG, /* the sum divided by the number of ranks */
} mc_reduce_op;

typedef struct mc_comm_options {
    /* Seconds after which an unfinished call is an error. 0: the environment variable
     * MC_COMM_TIMEOUT, else 300. */
    double timeout;
} mc_comm_options;

/* ---- communicators --------------------------------------------------------------------------- */

/* Creates an id, on one rank. Errors: NCCL is needed and missing. */
MC_API mc_status mc_comm_unique_id(mc_context *ctx, mc_comm_id *id);

/* Joins a new group of `size` ranks as number `rank`; every rank of the group calls this with the
 * same id. `id` may be NULL for one rank and for CPU ranks. A group of CPU ranks must contain all
 * ranks of MPI, in MPI's order; split it for smaller groups. `options` may be NULL.
 *
 * Owned by the context. Returns NULL after an error: a bad size or rank, NCCL or MPI missing in
 * this build or on this machine, an MPI job of another size, different ids, a rank that does not
 * join. */
MC_API mc_comm *mc_comm_new(mc_context *ctx, const mc_comm_id *id, int size, int rank,
                            const mc_comm_options *options);

/* Splits a group: ranks that pass the same colour form a new one, ordered by key and then by rank.
 * Every rank of the group calls this; a rank with a negative colour gets NULL, without an error.
 * The timeout is inherited. */
MC_API mc_comm *mc_comm_split(mc_comm *comm, int colour, int key);

/* Leaves the group: waits for this rank's own unfinished calls, but for no other rank. NULL is
 * allowed. Groups split off from it stay. On GPUs, first drop recorded steps that use it
 * (mc_step_forget). */
MC_API void mc_comm_free(mc_comm *comm);

/* Aborts the group: calls that wait in it on this rank end with an error, and later calls on it are
 * errors. May be called from any thread. Other ranks are not notified; their calls time out. */
MC_API void mc_comm_abort(mc_comm *comm);

/* The group of all ranks of the context's job, in their order, which the library's own calls use.
 * Every rank must use it at the same points of the program, and a program must not free it. With
 * one rank it is a group of one, so programs need no special case. NULL on a failed context. */
MC_API mc_comm *mc_context_comm(mc_context *ctx);

MC_API int mc_comm_count(const mc_comm *comm); /* ranks of the group; 1 for NULL */
MC_API int mc_comm_rank(const mc_comm *comm);  /* this one's number in it; 0 for NULL */

/* ---- collectives ----------------------------------------------------------------------------- */

/* Each call below takes `count` elements of `dtype`; 0 is allowed. `src` and `dst` may be equal;
 * otherwise they must not overlap, except as noted. */

/* dst[i] = op over all ranks of src[i], on every rank. */
MC_API mc_status mc_comm_all_reduce(mc_comm *comm, const void *src, void *dst, int64_t count,
                                    mc_dtype dtype, mc_reduce_op op);
/* The same on the rank `root` only; on the others dst is ignored and may be NULL. */
MC_API mc_status mc_comm_reduce(mc_comm *comm, const void *src, void *dst, int64_t count,
                                mc_dtype dtype, mc_reduce_op op, int root);
/* dst = root's src; on the others src is ignored and may be NULL. */
MC_API mc_status mc_comm_broadcast(mc_comm *comm, const void *src, void *dst, int64_t count,
                                   mc_dtype dtype, int root);
/* dst (ranks, count) = src (count) of every rank, in their order. src may be its place in dst. */
MC_API mc_status mc_comm_all_gather(mc_comm *comm, const void *src, void *dst, int64_t count,
                                    mc_dtype dtype);
/* dst (count) = this rank's row of op over all ranks of src (ranks, count). dst may be its place in
 * src. */
MC_API mc_status mc_comm_reduce_scatter(mc_comm *comm, const void *src, void *dst, int64_t count,
                                        mc_dtype dtype, mc_reduce_op op);
/* Sends from one rank to another, which calls mc_comm_recv with the same count. Two ranks that send
 * to each other, and a rank that sends to itself, must do so within a group of calls. */
MC_API mc_status mc_comm_send(mc_comm *comm, const void *src, int64_t count, mc_dtype dtype,
                              int peer);
MC_API mc_status mc_comm_recv(mc_comm *comm, void *dst, int64_t count, mc_dtype dtype, int peer);

/* Calls on this communicator between the two run together, at the end; do not touch their memory in
 * between. Pairs may be nested: the outermost one counts. */
MC_API mc_status mc_comm_group_start(mc_comm *comm);
MC_API mc_status mc_comm_group_end(mc_comm *comm);

/* Returns when every rank of the group has called it and this rank's GPU has finished all earlier
 * work. */
MC_API mc_status mc_comm_barrier(mc_comm *comm);

#endif
