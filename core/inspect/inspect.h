/* Inspection: tables of statistics, of parameters and their gradients, and of activations.
 *
 *     mc_inspection *table = mc_inspect(mc_model_module(gpt2), "*.ffn.*");
 *     mc_print_inspect(ctx, table, stdout);
 *     mc_inspection_free(table);
 *
 * prints, as BMTrain's inspect.format_summary does,
 *
 *      name                                    shape               max       min       std  ...
 *      encoder.layers.0.ffn.ffn.w_in.w.weight  (3072, 768)         0.0903    -0.0957   0.0200 ...
 *
 * Statistics are over all ranks, at any level of sharding: each rank reads its own shard, and ranks
 * exchange only a few numbers per row. No parameter is ever gathered. With several ranks every rank
 * of the job makes the same calls in the same order, with the same pattern. Sums are in double, in
 * a fixed order; another number of ranks changes the last bits at most.
 *
 * Calls wait for the device and do nothing once the context has failed.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_INSPECT_H
#define MC_INSPECT_H

#include <stdio.h>
#include "core/nn/module.h"

typedef struct mc_inspection mc_inspection;

typedef struct mc_inspect_row {
    const char *name; /* of the parameter (full path), or the name given to mc_record */
    mc_shape shape;   /* of the whole parameter; of activations see mc_record */
    int64_t count;    /* elements in the statistics */
    /* NaN if any element is NaN or there are no elements. std divides by count - 1, as torch.std
     * does, so one element gives NaN. */
    double max, min, std, mean;
    bool has_gradient;          /* false: the two below are 0 */
    double grad_std, grad_mean; /* of the gradient's elements; std as above */
} mc_inspect_row;

/* ---- parameters ------------------------------------------------------------------------------ */

/* The parameters below a module whose full name matches `pattern` (fnmatch(3), "*" matches dots
 * too; NULL: all), in the order of their declaration. Values are in the parameter's own dtype; rows
 * of padding are left out.
 *
 * Gradients are those of mc_parameter_read_gradient: with the loss scale, before clipping. They
 * exist from the first backward on (a frozen parameter has none) and stay until zero_grad. With
 * several ranks at levels 0 and 1, mc_optim_manager_clip_grad_norm or, without it,
 * mc_optim_manager_step sums them; before that the row mixes the ranks' own parts. So inspect
 * gradients after one of these calls.
 *
 * The table belongs to the context. Returns NULL after an error: MC_ERR_NOT_FOUND (no name
 * matches), MC_ERR_ARGUMENT, MC_ERR_NOMEM, MC_ERR_STATE (ranks request different rows). A NULL
 * module returns NULL without an error. */
MC_API mc_inspection *mc_inspect(mc_module *module, const char *pattern);

/* ---- activations ----------------------------------------------------------------------------- */

/* Between these two calls mc_record collects statistics. mc_record_end, which all ranks call,
 * returns them over all ranks, in the order in which names first occurred. It returns NULL after an
 * error, and recording has then ended too. Errors: MC_ERR_STATE for begin while recording, for end
 * while not recording, and for ranks that recorded different names.
 *
 *     mc_record_begin(ctx);
 *     ... forward, and backward ...
 *     mc_inspection *table = mc_record_end(ctx);
 *
 * Block lists record the result of each of their blocks by themselves, under the block's name
 * ("encoder.layers.3"). */
MC_API mc_status mc_record_begin(mc_context *ctx);
MC_API mc_inspection *mc_record_end(mc_context *ctx);
/* Whether mc_record is recording. */
MC_API bool mc_record_is_on(const mc_context *ctx);

/* Records x under a name, and returns the tensor to continue with:
 *
 *     h = mc_record(t, h, "after the gate");
 *
 * While recording is off, returns x itself and does nothing, so the call may stay in a model. While
 * it is on, the row of that name gets the statistics of x's elements and, after backward, those of
 * the gradient of the returned tensor. Several calls with one name (in micro-steps, on ranks) are
 * combined: `count` and the first sizes of the shapes add up; the other sizes are those of the last
 * call. A block that runs again in backward (see mc_recompute) counts once.
 *
 * x is f32, f16 or bf16. It may have no rows, and may be a deferred residual sum, which is then
 * computed here. Rows after a packed batch's total are included. Returns NULL after an error:
 * MC_ERR_DTYPE, MC_ERR_STATE while a step is being recorded by mc_step_run (whose later runs call
 * no operations: look at activations without it), and those of an operation. */
MC_API mc_tensor *mc_record(mc_tape *t, mc_tensor *x, const char *name);

/* ---- tables ---------------------------------------------------------------------------------- */

MC_API int mc_inspection_count(const mc_inspection *table); /* rows; 0 for NULL */
/* Row i, which lives as long as its table; NULL out of range. The same on every rank. */
MC_API const mc_inspect_row *mc_inspection_row(const mc_inspection *table, int i);
/* Frees a table now; the context would do it otherwise. NULL is allowed. */
MC_API void mc_inspection_free(mc_inspection *table);

/* Prints a table to `stream`, on rank 0 only: a line of titles and a line a row, in columns of
 * fixed width (the longest name + 4, 20 for the shape, 10 for each number), which cut longer texts;
 * numbers have 4 decimals, and shapes are written as in Python. A row without a gradient
 * (has_gradient is false) shows "-" in its columns. Errors: MC_ERR_IO, MC_ERR_ARGUMENT for a NULL
 * stream. */
MC_API mc_status mc_print_inspect(mc_context *ctx, const mc_inspection *table, FILE *stream);

#endif
