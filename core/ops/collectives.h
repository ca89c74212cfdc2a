/* Collectives (core/dist/comm.h) as operations on a tape.
 *
 * Gradients are those of the sum of all ranks' losses, so a rank's result sends gradient back to
 * every rank that contributed to it. Every rank of the group calls them, and runs backward through
 * them, in the same order. x has the same shape on every rank, and requires a gradient on all ranks
 * or on none; to require one it must have a floating dtype. They return NULL after an error.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_OPS_COLLECTIVES_H
#define MC_OPS_COLLECTIVES_H

#include "core/autograd/tape.h"
#include "core/dist/comm.h"

/* y (ranks, x's shape...). Gradient: the sum of all ranks' gradients, this rank's part of it. */
MC_API mc_tensor *mc_all_gather(mc_tape *tape, mc_comm *comm, mc_tensor *x);
/* y (x's shape). Gradient, with g the sum of all ranks' gradients: for sum g; for avg g / ranks;
 * for max and min g where this rank's x was chosen (among equal ones the lowest rank's is), else 0;
 * for prod g times the other ranks' x, zeros included. */
MC_API mc_tensor *mc_all_reduce(mc_tape *tape, mc_comm *comm, mc_tensor *x, mc_reduce_op op);
/* x (ranks * n, ...), y (n, ...): rows of this rank. Gradient: the gradients of all ranks,
 * gathered; for avg divided by the number of ranks. Errors: x requires a gradient and the operation
 * is prod, max or min; x's first dimension is not divisible by the number of ranks. */
MC_API mc_tensor *mc_reduce_scatter(mc_tape *tape, mc_comm *comm, mc_tensor *x, mc_reduce_op op);
/* y = root's x. Gradient: on the root the sum over all ranks, elsewhere 0. */
MC_API mc_tensor *mc_broadcast(mc_tape *tape, mc_comm *comm, mc_tensor *x, int root);

#endif
