/* Helpers shared by the operations. */
#ifndef MC_OPS_OPS_INTERNAL_H
#define MC_OPS_OPS_INTERNAL_H

#include "core/autograd/tape_internal.h"
#include "core/ops/ops.h"

/* The kernels of a tape's device. MC_KERNEL(t, "linear", gemm, args...) calls one, turns a failure
 * into an error that names the op, and returns whether it succeeded. */
#define MC_KERNEL(tape, op, kernel, ...) \
    mc_op_ok((tape), (op), mc_tape_device(tape)->kernels->kernel(mc_tape_device(tape), __VA_ARGS__))

/* All elements as one row. */
static inline mc_matrix mc_matrix_flat(const mc_tensor *x)
{
    return (mc_matrix){mc_tensor_data(x), x->dtype, mc_tensor_count(x)};
}
/* The same for a tensor whose contents backward may have to recompute. */
mc_matrix mc_saved_matrix(mc_tape *t, mc_tensor *x);

/* Memory for the f32 gradient of a small vector (a bias, a norm's weight), to which kernels add:
 * the bucket for a parameter, else zeroed scratch, which _end adds. NULL if no gradient is
 * required. */
float *mc_vector_gradient_begin(mc_tape *t, mc_tensor *x);
void mc_vector_gradient_end(mc_tape *t, mc_tensor *x, float *gradient);

/* For operations fused with the linear before them (mc_op.fuses), if it has no activation: they may
 * sum the columns of its output's gradient for its bias (NULL: no bias), and report it. */
bool mc_node_is_linear(const mc_node *node);
mc_tensor *mc_linear_bias(const mc_node *linear);
void mc_linear_bias_done(const mc_node *linear);

/* Checks the operands; sets an error if they are invalid. */
bool mc_linear_check(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                     mc_activation activation, float scale);
bool mc_norm_check(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout, mc_tensor *weight,
                   mc_tensor *bias, float eps);

/* Checks. Each returns whether its condition holds, and otherwise sets an error that names the op
 * and what was expected. */
bool mc_op_float(mc_tape *t, const char *op, const char *what, const mc_tensor *x);
bool mc_op_same_dtype(mc_tape *t, const char *op, const char *what, const mc_tensor *x,
                      mc_dtype dtype);
bool mc_op_shape(mc_tape *t, const char *op, const char *what, const mc_tensor *x,
                 mc_shape expected);

bool mc_op_activation(mc_tape *t, const char *op, mc_activation activation);
/* y = activation(x), as mc_gelu and the like; x itself for MC_ACTIVATION_NONE. */
mc_tensor *mc_activate(mc_tape *t, mc_tensor *x, mc_activation activation);

/* x's contents in memory that the operation may overwrite: x's own (mc_tape_take), or a copy if
 * they are still needed. NULL after an error. */
mc_tensor *mc_op_take(mc_tape *t, const char *op, mc_tensor *x);
/* A copy of the contents. */
mc_tensor *mc_op_copy_of(mc_tape *t, const char *op, mc_tensor *x);

/* The factor b (out, rank) of a low-rank adapter, and the columns first .. first + out of the
 * product to which it adds. */
enum { MC_LOW_RANK_PARTS = 6 };
typedef struct mc_low_rank_part {
    mc_tensor *b;
    int64_t first;
} mc_low_rank_part;
/* Adds scale * h_i b_i^T to the columns of part i of y (rows, columns): h (rows, count * rank) has
 * `rank` columns for each part. y is consumed, like x by mc_rotary. Errors: factors of another
 * dtype than y, parts that do not fit. */
mc_tensor *mc_low_rank_add(mc_tape *t, mc_tensor *y, mc_tensor *h, const mc_low_rank_part *parts,
                           int count, float scale);

/* activation(scale * x w^T + bias) with a weight in 8 bits, which the caller keeps as long as the
 * tape; bias (w->rows) may be NULL. x and bias have gradients, that of x through the numbers that
 * the bytes stand for, in x's dtype. */
mc_tensor *mc_linear_quantized(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                               mc_activation activation, float scale);
/* The same on a training tape with products of bytes, for w in MC_WEIGHTS_FP8 and sizes that are
 * multiples of 16. Rows of x are cast to E4M3, each with its own scale, divided by 2^margin
 * (mc_fp8_set_scale). In backward so are rows of dy, after their elements are multiplied by the
 * scales of w's rows; E4M3 rather than E5M2, because within a row its range is enough. */
mc_tensor *mc_linear_quantized_fp8(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                                   mc_activation activation, float scale, int margin);

/* The contents of an integer tensor on the host. Waits for the device only if they were computed
 * there. NULL after an error. */
const void *mc_op_host(mc_tape *t, const char *op, const mc_tensor *x);
/* Whether an operation may use the host's values of lengths: an error while recording a step, whose
 * later runs have other values. */
bool mc_op_host_lengths(mc_tape *t, const char *op, const mc_lengths *lengths);

/* `count` indices of x (i32 or i64) as i32 on the tape, each checked to be in [0, limit) or equal
 * to `ignored` (for none, pass a negative value that does not occur, e.g. INT32_MIN); a view of x
 * if it is i32. NULL after an error, which names `what` (which must stay valid), the position (the
 * sequence and the token if x carries lengths) and the value. */
mc_tensor *mc_op_indices(mc_tape *t, const char *op, const char *what, mc_tensor *x, int64_t count,
                         int64_t limit, int32_t ignored);
/* mc_embed_scaled for a model: an index out of range is an error of `op`, which names the index by
 * its name. Both must stay valid. */
mc_tensor *mc_embed_named(mc_tape *t, const char *op, int tables, mc_tensor *const *table,
                          mc_tensor *const *index, const char *const *names, float scale);

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Whether the last dimensions of `shape` are `end`, which can then be repeated over it. */
bool mc_shape_is_end(mc_shape shape, mc_shape end);
/* Adds g to the gradient of b, whose shape is the end of g's, summed over the repetitions. */
void mc_gradient_sum_leading(mc_tape *t, const char *op, mc_tensor *b, mc_tensor *g);

/* A shape as (outer, size, inner) around one of its dimensions. */
typedef struct mc_around {
    int dim;
    int64_t outer, size, inner;
} mc_around;
/* `dim` < 0 counts from the last. An error if x has no such dimension. */
bool mc_op_around(mc_tape *t, const char *op, const mc_tensor *x, int dim, mc_around *out);

/* y [+]= factor * x, each with its own strides, from the given first elements. */
void mc_op_copy(mc_tape *t, const char *op, mc_strided_shape shape, const mc_tensor *x,
                int64_t x_first, float factor, mc_tensor *y, int64_t y_first, bool accumulate);

/* The lengths of a packed x. NULL after an error if x has none. */
const mc_lengths *mc_op_lengths(mc_tape *t, const char *op, mc_tensor *x);

#endif
