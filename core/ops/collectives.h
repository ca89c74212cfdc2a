/* Collectives (core/dist/comm.h) as operations on a tape.
 *
 * Their gradients are those of the sum of all ranks' losses, so a rank's result carries gradient
 * back to all ranks that it came from. Every rank of the group calls them, and runs backward
 * through them, in the same order; whether the input requires a gradient is the same on every rank.
 * x has a floating dtype where a gradient is wanted, and the same shape on every rank. They return
 * NULL after an error.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_OPS_COLLECTIVES_H
#define MC_OPS_COLLECTIVES_H

#include "core/autograd/tape.h"
#include "core/dist/comm.h"

/* y (ranks, x's shape...). Gradient: the sum over all ranks of theirs, this rank's part. */
MC_API mc_tensor *mc_all_gather(mc_tape *tape, mc_comm *comm, mc_tensor *x);
/* y (x's shape). Gradient, with g the sum of all ranks': sum g; avg g / ranks; max and min g where
 * x is the chosen one (of equal ones that of the lowest rank), else 0; prod g times the other
 * ranks' x, zeros included. */
MC_API mc_tensor *mc_all_reduce(mc_tape *tape, mc_comm *comm, mc_tensor *x, mc_reduce_op op);
/* x (ranks * n, ...), y (n, ...): rows of this rank. Gradient: all ranks' gathered; divided by the
 * ranks for avg. An error where a gradient is wanted of prod, max or min, or where x's first
 * dimension does not divide by the ranks. */
MC_API mc_tensor *mc_reduce_scatter(mc_tape *tape, mc_comm *comm, mc_tensor *x, mc_reduce_op op);
/* y = root's x. Gradient: on the root the sum over all ranks, elsewhere 0. */
MC_API mc_tensor *mc_broadcast(mc_tape *tape, mc_comm *comm, mc_tensor *x, int root);

#endif
