/* The tape: execution is eager, and a training tape records what the backward pass needs.
 *
 *     mc_tape *t = mc_tape_begin(ctx);
 *     mc_tensor *loss = ... operations on t ...;
 *     mc_optim_manager_backward(optim, t, loss);
 *     ...
 *     mc_tape_end(t);
 *
 * Everything an operation returns belongs to its tape. What is made inside a block of a block list
 * is released when the block returns, except what backward needs and the block's result. Several
 * tapes may be alive at once and end in any order; a tensor of one may be used on another if it
 * requires no gradient and its own tape outlives the other's backward. */
#ifndef MC_AUTOGRAD_TAPE_H
#define MC_AUTOGRAD_TAPE_H

#include "core/tensor/tensor.h"

typedef struct mc_tape mc_tape;

MC_API mc_tape *mc_tape_begin(mc_context *ctx);      /* training: records, dropout on */
MC_API mc_tape *mc_tape_begin_eval(mc_context *ctx); /* records nothing, dropout off */
MC_API void mc_tape_end(mc_tape *tape); /* frees all that was made on it; NULL allowed */

MC_API mc_context *mc_tape_context(const mc_tape *tape);
MC_API bool mc_tape_is_training(const mc_tape *tape);

/* A tensor on the tape with a copy of host data (row-major; NULL: zeros). With `requires_grad`,
 * backward computes its gradient (floating dtypes only). */
MC_API mc_tensor *mc_tape_input(mc_tape *tape, mc_dtype dtype, mc_shape shape, const void *data,
                                bool requires_grad);

/* Lengths that live as long as the tape: capacity is the total rounded up to `round_to` (0 or 1:
 * not rounded). Errors: a negative length, a capacity over 2^31 - 1. */
MC_API const mc_lengths *mc_tape_lengths(mc_tape *tape, const int32_t *lengths, int count,
                                         int64_t round_to);

/* Runs backward from `y` with the gradient `dy` (y's shape and dtype), and releases activations as
 * it passes them. `dy` NULL is for a loss (see mc_cross_entropy): its seed is 1 / count, the
 * gradient of the mean; a loss of count 0 gives zero gradients. Parameter gradients are added to
 * what is already there (zero them with mc_optim_manager_zero_grad or mc_module_zero_grad), and
 * those of several ranks are added up, also where each is of the mean of its own rows. A tape runs
 * backward once from a given y; from several y in turn only where their graphs share no node. */
MC_API mc_status mc_tape_backward(mc_tape *tape, mc_tensor *y, const mc_tensor *dy);

/* The gradient of a tape input after backward, NULL if it has none. Belongs to the tape. That of a
 * parameter is f32 or (mc_grad_dtype) of its dtype, what optimizers read of it may be elsewhere,
 * and it may not be there: mc_parameter_read_gradient returns it as f32. */
MC_API mc_tensor *mc_tensor_gradient(const mc_tensor *x);

/* Says that the caller is done with x: its memory is released now unless backward needs it. */
MC_API void mc_tape_release(mc_tape *tape, mc_tensor *x);

#endif
