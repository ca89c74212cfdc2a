/* General operations: building blocks of custom heads and losses.
 *
 * They follow the rules of core/ops/ops.h: the tape comes first, results belong to it, and a bad
 * argument is an error that names the operation, what was found and what was expected. Inputs are
 * f32, f16 or bf16 (another dtype is MC_ERR_DTYPE; a shape that does not fit MC_ERR_SHAPE), results
 * have their dtype, and arithmetic is f32. All have gradients, and all run in recorded steps.
 * Dimensions are counted from 0; a negative one counts from the last, -1. Formulas are those of
 * PyTorch's functions of the same name.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPS_GENERAL_H
#define MC_OPS_GENERAL_H

#include "core/ops/ops.h"

/* ---- shapes: copies, not views --------------------------------------------------------------- */

/* Elements first .. first + count of one dimension of x: x (..., size, ...) to (..., count, ...).
 * Errors: no such dimension, or elements outside of [0, size), MC_ERR_ARGUMENT. */
MC_API mc_tensor *mc_slice(mc_tape *t, mc_tensor *x, int dim, int64_t first, int64_t count);

/* Concatenates n >= 1 tensors along one dimension. All have the same dtype and, except in that
 * dimension, the same sizes. A tensor may be passed twice. */
MC_API mc_tensor *mc_concat(mc_tape *t, int n, mc_tensor *const *xs, int dim);

/* x with two dimensions exchanged: (..., a, ..., b, ...) to (..., b, ..., a, ...). */
MC_API mc_tensor *mc_transpose(mc_tape *t, mc_tensor *x, int dim_a, int dim_b);

/* ---- products -------------------------------------------------------------------------------- */

/* Products of matrices, one for each index of the leading dimensions: op(a) (..., m, k) times op(b)
 * (..., k, n) is (..., m, n), where op transposes if requested, so that a is stored (..., k, m) and
 * b (..., n, k). a and b have the same dtype. They have the same leading dimensions, or one of them
 * is a single matrix (two dimensions) that is used for all indices. k = 0 gives zeros. */
MC_API mc_tensor *mc_matmul(mc_tape *t, mc_tensor *a, mc_tensor *b, bool transpose_a,
                            bool transpose_b);

/* ---- functions of rows: the last dimension, of size >= 1 ------------------------------------- */

/* e^x / sum e^x, computed from x - max x. */
MC_API mc_tensor *mc_softmax(mc_tape *t, mc_tensor *x);
/* The logarithm of the softmax: x - max x - log sum e^(x - max x). */
MC_API mc_tensor *mc_log_softmax(mc_tape *t, mc_tensor *x);
/* x / max(|x|, eps), |x| the row's Euclidean length. A row of zeros stays zero. eps 0 means 1e-12,
 * the default of torch.nn.functional.normalize; a negative one or NaN is MC_ERR_ARGUMENT. */
MC_API mc_tensor *mc_normalize_rows(mc_tape *t, mc_tensor *x, float eps);

/* ---- sums and means -------------------------------------------------------------------------- */

/* The sum, and the mean, over one dimension, which the result does not have: (2, 3, 4) over 1 is
 * (2, 4). Over a dimension of size 0 the sum is 0 and the mean NaN. */
MC_API mc_tensor *mc_sum(mc_tape *t, mc_tensor *x, int dim);
MC_API mc_tensor *mc_mean(mc_tape *t, mc_tensor *x, int dim);

/* The mean of each sequence's rows of a packed x (rows, columns), which must carry lengths (any:
 * mc_tape_lengths, mc_lengths_new, a loader's): (count, columns). An empty sequence gives zeros.
 * Rows after the last sequence are ignored, and their gradient is zero. */
MC_API mc_tensor *mc_mean_pool(mc_tape *t, mc_tensor *x);

/* The maximum over each sequence's rows, column by column: (count, columns), of a packed x as in
 * mc_mean_pool. An empty sequence gives zeros; NaN counts as the largest value. The gradient goes
 * to the first row with the maximum. */
MC_API mc_tensor *mc_max_pool(mc_tape *t, mc_tensor *x);

/* ---- elementwise ----------------------------------------------------------------------------- */

/* a - b and a / b. As in mc_add, the shape of one must equal the other's shape or its last
 * dimensions; the smaller one is then repeated. Division by 0 follows IEEE 754. */
MC_API mc_tensor *mc_sub(mc_tape *t, mc_tensor *a, mc_tensor *b);
MC_API mc_tensor *mc_div(mc_tape *t, mc_tensor *a, mc_tensor *b);

MC_API mc_tensor *mc_exp(mc_tape *t, mc_tensor *x);
MC_API mc_tensor *mc_ln(mc_tape *t, mc_tensor *x); /* natural; -inf at 0, NaN below */
MC_API mc_tensor *mc_sqrt(mc_tape *t, mc_tensor *x);
MC_API mc_tensor *mc_sigmoid(mc_tape *t, mc_tensor *x); /* 1 / (1 + e^-x) */

#endif
