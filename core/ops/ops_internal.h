/* Helpers shared by the operations. */
#ifndef MC_OPS_OPS_INTERNAL_H
#define MC_OPS_OPS_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "core/ops/ops.h"

/* The kernels of a tape's device, and the call: MC_KERNEL(t, "linear", gemm, args...) runs it,
 * turns a failing status into an error naming the op, and is true when it went well. */
#define MC_KERNEL(tape, op, kernel, ...) \
    mc_op_ok((tape), (op), mc_tape_device(tape)->kernels->kernel(mc_tape_device(tape), __VA_ARGS__))

/* All elements as one row. */
static inline mc_matrix mc_matrix_flat(const mc_tensor *x)
{
    return (mc_matrix){mc_tensor_data(x), x->dtype, mc_tensor_count(x)};
}
/* The same for a tensor whose contents backward may have to recompute. */
mc_matrix mc_saved_matrix(mc_tape *t, mc_tensor *x);

/* Where kernels add the f32 gradient of a small vector (a bias, a norm's weight): the bucket itself
 * for a parameter, else zeroed scratch that _end adds to the gradient. NULL if none is wanted. */
float *mc_vector_gradient_begin(mc_tape *t, mc_tensor *x);
void mc_vector_gradient_end(mc_tape *t, mc_tensor *x, float *gradient);

/* For operations fused with the linear before them (mc_op.fuses), one without an activation: they
 * may add up the columns of its output's gradient for its bias (NULL: it has none), and say so. */
bool mc_node_is_linear(const mc_node *node);
mc_tensor *mc_linear_bias(const mc_node *linear);
void mc_linear_bias_done(const mc_node *linear);

/* Whether the operations take such operands: else an error is set. */
bool mc_linear_check(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                     mc_activation activation, float scale);
bool mc_norm_check(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout, mc_tensor *weight,
                   mc_tensor *bias, float eps);

/* Checks: each sets an error naming the op and what was expected, and returns whether all is
 * well. */
bool mc_op_float(mc_tape *t, const char *op, const char *what, const mc_tensor *x);
bool mc_op_same_dtype(mc_tape *t, const char *op, const char *what, const mc_tensor *x,
                      mc_dtype dtype);
bool mc_op_shape(mc_tape *t, const char *op, const char *what, const mc_tensor *x,
                 mc_shape expected);

bool mc_op_activation(mc_tape *t, const char *op, mc_activation activation);
/* y = activation(x), as mc_gelu and the like; x itself for MC_ACTIVATION_NONE. */
mc_tensor *mc_activate(mc_tape *t, mc_tensor *x, mc_activation activation);

/* x's contents for the operation to overwrite: its memory (mc_tape_take), or a copy where somebody
 * else needs it. NULL after an error. */
mc_tensor *mc_op_take(mc_tape *t, const char *op, mc_tensor *x);
/* The same contents in memory of their own. */
mc_tensor *mc_op_copy_of(mc_tape *t, const char *op, mc_tensor *x);

/* The factor b (out, rank) of a low-rank adapter, and the columns first .. first + out of the
 * product that it adds to. */
enum { MC_LOW_RANK_PARTS = 6 };
typedef struct mc_low_rank_part {
    mc_tensor *b;
    int64_t first;
} mc_low_rank_part;
/* y (rows, columns), where the columns of part i get scale * h_i b_i^T more: h (rows, count * rank)
 * has `rank` columns for each part. y is consumed, as x is by mc_rotary. Factors whose dtype is not
 * y's, and parts that do not fit, are errors. */
mc_tensor *mc_low_rank_add(mc_tape *t, mc_tensor *y, mc_tensor *h, const mc_low_rank_part *parts,
                           int count, float scale);

/* activation(scale * x w^T + bias) with a weight in 8 bits, which the caller keeps as long as the
 * tape; bias (w->rows) may be NULL. x and bias have gradients, that of x through the numbers that
 * the bytes stand for, in x's dtype. */
mc_tensor *mc_linear_quantized(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                               mc_activation activation, float scale);

/* The contents of an integer tensor on the host. Waits for the device only if they were computed
 * there. NULL after an error. */
const void *mc_op_host(mc_tape *t, const char *op, const mc_tensor *x);
/* Whether an operation may take lengths as the host has them: an error while a step is recorded
 * that will find others in their memory. */
bool mc_op_host_lengths(mc_tape *t, const char *op, const mc_lengths *lengths);

/* `count` indices of x (i32 or i64) as i32 on the tape, each checked to lie in [0, limit) or to
 * equal `ignored` (pass a value < 0 that occurs nowhere for none, e.g. INT32_MIN); a view of x if
 * that is i32. NULL after an error, which names the position and value. */
mc_tensor *mc_op_indices(mc_tape *t, const char *op, const char *what, mc_tensor *x, int64_t count,
                         int64_t limit, int32_t ignored);

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Whether `end` is the end of `shape`, so that a tensor of it is repeated over the other. */
bool mc_shape_is_end(mc_shape shape, mc_shape end);
/* Adds g to the gradient of b, whose shape is the end of g's: summed over what repeats. */
void mc_gradient_sum_leading(mc_tape *t, const char *op, mc_tensor *b, mc_tensor *g);

/* A shape as (outer, size, inner) around one of its dimensions. */
typedef struct mc_around {
    int dim;
    int64_t outer, size, inner;
} mc_around;
/* `dim` < 0 counts from the last. An error if x has no such dimension. */
bool mc_op_around(mc_tape *t, const char *op, const mc_tensor *x, int dim, mc_around *out);

/* y [+]= factor * x between strides; x and y begin at these elements. */
void mc_op_copy(mc_tape *t, const char *op, mc_strided_shape shape, const mc_tensor *x,
                int64_t x_first, float factor, mc_tensor *y, int64_t y_first, bool accumulate);

/* The lengths of a packed x; NULL after an error, which says that it carries none. */
const mc_lengths *mc_op_lengths(mc_tape *t, const char *op, mc_tensor *x);

#endif
