/* Operations on tensors of a tape.
 *
 * All take the tape first, return a tensor that belongs to it, and return NULL after an error. Bad
 * shapes or dtypes, NULL and tensors of another context are errors that name the operation, the
 * shapes found and what was expected. A NULL tape has no context: its error is set on the context
 * of another argument, a tensor, parameter or model, and on none if all of these are NULL too.
 * "Rows" of a tensor are all its dimensions but the last taken together, "columns" the last one.
 * Zero rows are fine everywhere. Storage f32, f16 or bf16; all arithmetic accumulates in f32.
 * Formulas follow PyTorch's functions of the same meaning unless another source is named.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPS_OPS_H
#define MC_OPS_OPS_H

#include "core/autograd/tape.h"
#include "core/device/activation.h"

/* Dropout with probability p in [0, 1) and scale 1 / (1 - p); x itself on an eval tape or for p 0.
 * Counter-based (Philox-4x32-10): the same seed and the same sequence of calls drop the same
 * elements. */
MC_API mc_tensor *mc_dropout(mc_tape *t, mc_tensor *x, float p);

/* A loss is a tensor of two f32: the sum over the rows that count, and their number (or total
 * weight). Its value is sum / count (mc_mean_loss). An OptimManager seeds backward with a constant,
 * and the optimizer's step divides by the count of the whole global step. So the mean is over all
 * rows that count, at any gradient accumulation and number of ranks. */
typedef struct mc_cross_entropy_options {
    int32_t ignore_index;  /* labels that do not count; 0: -100, MC_INT_ZERO: 0 */
    float label_smoothing; /* e: (1 - e) * nll + e * mean over classes of -log p */
    float logit_scale;     /* only for mc_linear_cross_entropy; 0: 1 */
    /* The weight w of each class, f32 (classes), without a gradient; NULL: 1. The loss is then
     * PyTorch's weighted mean: the sum of (1 - e) w[label] nll + e / classes * sum over classes c
     * of -w[c] log p[c], divided by the sum of w[label]. mc_linear_cross_entropy does not support
     * them and fails with an error that names them. */
    mc_tensor *class_weights;
} mc_cross_entropy_options;

/* Softmax cross-entropy of logits (rows, classes) against labels (rows) of i32 or i64. Errors: a
 * label outside [0, classes) that is not ignored (named with its row). options may be NULL. */
MC_API mc_tensor *mc_cross_entropy(mc_tape *t, mc_tensor *logits, mc_tensor *labels,
                                   const mc_cross_entropy_options *options);

/* Returns sum / count of a loss over this rank's rows (mc_global_mean_loss in core/ops/ranks.h:
 * over all ranks). Waits for the device. 0 for a count of 0, NaN on a failed context. */
MC_API double mc_mean_loss(mc_context *ctx, const mc_tensor *loss);

/* Elementwise. In add and mul the shape of b must equal a's shape or its last dimensions (b is then
 * repeated), or the other way round. */
MC_API mc_tensor *mc_add(mc_tape *t, mc_tensor *a, mc_tensor *b);
MC_API mc_tensor *mc_mul(mc_tape *t, mc_tensor *a, mc_tensor *b);
MC_API mc_tensor *mc_scale(mc_tape *t, mc_tensor *x, float factor);
MC_API mc_tensor *mc_gelu(mc_tape *t, mc_tensor *x);     /* with erf */
MC_API mc_tensor *mc_gelu_new(mc_tape *t, mc_tensor *x); /* with tanh, as GPT-2's */
MC_API mc_tensor *mc_relu(mc_tape *t, mc_tensor *x);
MC_API mc_tensor *mc_tanh(mc_tape *t, mc_tensor *x);
MC_API mc_tensor *mc_silu(mc_tape *t, mc_tensor *x); /* x sigmoid(x) */

/* The same values in another floating dtype, rounded to nearest even; x itself if it has it. */
MC_API mc_tensor *mc_cast(mc_tape *t, mc_tensor *x, mc_dtype dtype);

/* The same elements in another shape (a view). */
MC_API mc_tensor *mc_reshape(mc_tape *t, mc_tensor *x, mc_shape shape);

/* y (n, columns) = rows index[0 .. n) of x; index i32 (n) on the host, copied. A row may be taken
 * more than once. Errors: an index outside [0, rows). */
MC_API mc_tensor *mc_gather_rows(mc_tape *t, mc_tensor *x, const int32_t *index, int64_t n);

/* Returns x with lengths attached, which attention, mc_first_tokens and mc_unpack require: its rows
 * (the first dimension) are then the tokens of a packed batch. Values and gradient are x's. The
 * lengths (mc_tape_lengths, mc_lengths_new, a loader's) must live as long as the tape. Errors:
 * `lengths` NULL, MC_ERR_ARGUMENT; other than lengths->capacity rows, MC_ERR_SHAPE. */
MC_API mc_tensor *mc_with_lengths(mc_tape *t, mc_tensor *x, const mc_lengths *lengths);

/* The first token of every sequence of a packed x: (count, columns). An empty sequence is an error,
 * except in lengths of mc_lengths_new, where it gives a row of zeros. */
MC_API mc_tensor *mc_first_tokens(mc_tape *t, mc_tensor *x);

/* Packed (rows, columns) to padded (count, longest, columns), zeros after each sequence. */
MC_API mc_tensor *mc_unpack(mc_tape *t, mc_tensor *x);

/* Index of the largest value of each row, the first of equal ones: i32 (rows). No gradient. */
MC_API mc_tensor *mc_argmax(mc_tape *t, mc_tensor *x);

#endif
