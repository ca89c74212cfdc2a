/* The tape: execution is eager, and a training tape records what the backward pass needs.
 *
 *     mc_tape *t = mc_tape_begin(ctx);
 *     mc_tensor *loss = ... operations on t ...;
 *     mc_optim_manager_backward(optim, t, loss);
 *     ...
 *     mc_tape_end(t);
 *
 * Every tensor an operation returns belongs to its tape. Tensors created inside a block of a block
 * list are released when the block returns, except those that backward needs and the block's
 * result. Several tapes may be alive at once and end in any order; a tensor of one may be used on
 * another if it requires no gradient and its own tape outlives the other's backward, which is
 * MC_ERR_STATE otherwise.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_AUTOGRAD_TAPE_H
#define MC_AUTOGRAD_TAPE_H

#include "core/tensor/tensor.h"

typedef struct mc_tape mc_tape;

MC_API mc_tape *mc_tape_begin(mc_context *ctx);      /* training: records, dropout on */
MC_API mc_tape *mc_tape_begin_eval(mc_context *ctx); /* records nothing, dropout off */
MC_API void mc_tape_end(mc_tape *tape); /* frees all tensors of the tape; NULL allowed */

MC_API mc_context *mc_tape_context(const mc_tape *tape);
MC_API bool mc_tape_is_training(const mc_tape *tape);

/* Returns a tensor on the tape with a copy of host data (row-major; NULL: zeros). With
 * `requires_grad`, backward computes its gradient (floating dtypes only). NULL for a NULL tape,
 * without an error, since no context is known: the operation that takes the result sets one. */
MC_API mc_tensor *mc_tape_input(mc_tape *tape, mc_dtype dtype, mc_shape shape, const void *data,
                                bool requires_grad);

/* Returns lengths that live as long as the tape. Their capacity is the total rounded up to a
 * multiple of `round_to` (0 or 1: not rounded). Errors: a negative length or round_to,
 * a capacity over 2^31 - 1. NULL for a NULL tape, as mc_tape_input. */
MC_API const mc_lengths *mc_tape_lengths(mc_tape *tape, const int32_t *lengths, int count,
                                         int64_t round_to);

/* Runs backward from `y` with the gradient `dy` (y's shape and dtype), and releases activations as
 * it passes them. If `dy` is NULL, `y` must be a loss (see mc_cross_entropy): the seed is 1 /
 * count, the gradient of the mean; a loss of count 0 gives zero gradients. Parameter gradients
 * accumulate (zero them with mc_optim_manager_zero_grad or mc_module_zero_grad). Gradients of
 * several ranks are summed, not averaged, even though each rank's seed is that of its own mean. A
 * tape can run backward once from a given y, and from several y only if their graphs share no
 * node. */
MC_API mc_status mc_tape_backward(mc_tape *tape, mc_tensor *y, const mc_tensor *dy);

/* Returns the gradient of a tape input after backward, NULL if it has none. Belongs to the tape.
 * Use mc_parameter_read_gradient for a parameter: its gradient is f32 or the parameter's dtype
 * (mc_grad_dtype), and may be stored elsewhere or not at all. */
MC_API mc_tensor *mc_tensor_gradient(const mc_tensor *x);

/* Releases x: the caller no longer reads it. Its memory is freed now unless backward needs it. */
MC_API void mc_tape_release(mc_tape *tape, mc_tensor *x);

#endif
