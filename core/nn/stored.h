/* How parameters are stored (with padding, several in one tensor), and reading their gradients.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_NN_STORED_H
#define MC_NN_STORED_H

#include "core/nn/module.h"

/* Declares a parameter as mc_parameter_new does, but stores it with rows of padding after its own,
 * `stored_rows` in all, so that products with it (a vocabulary) have an efficient size. The padding
 * is zero and stays zero as long as its gradient is not used: mc_parameter_tensor, counts, files,
 * initialisation and optimizers see only `shape`, mc_parameter_whole all rows. Errors: fewer stored
 * rows than the shape has. */
MC_API mc_parameter *mc_parameter_new_padded(mc_module *module, const char *name, mc_shape shape,
                                             int64_t stored_rows, mc_initializer init);

typedef struct mc_parameter_part {
    const char *name; /* relative to the module; may hold dots ("project_q.weight") */
    int64_t rows;     /* size of its first dimension */
    mc_initializer init;
} mc_parameter_part;
/* Declares several parameters that are stored as consecutive row ranges of one tensor, so that one
 * product uses them all (q, k and v). Each has the shape (rows, row_shape...), where row_shape is
 * the shape of one row (ndim 0 for biases). Writes `count` parameters to `parts_out` unless it is
 * NULL. Returns the first one; mc_parameter_whole(t, first) is the stored tensor. */
MC_API mc_parameter *mc_parameter_new_stacked(mc_module *module, const mc_parameter_part *parts,
                                              int count, mc_shape row_shape,
                                              mc_parameter **parts_out);
/* Returns the stored tensor that contains a parameter (the parameter itself if it is stored alone
 * and without padding). */
MC_API mc_tensor *mc_parameter_whole(mc_tape *tape, mc_parameter *parameter);
/* Copies the gradient accumulated in the bucket so far, summed over ranks, as f32, whatever its
 * stored dtype (mc_grad_dtype); zeros before the first backward. All ranks call it together. */
MC_API mc_status mc_parameter_read_gradient(mc_parameter *parameter, float *values);
/* Waits until the host has finished an AdamOffload's last step for the root's parameters, which
 * otherwise runs in the background. For measuring the time of a step. Does nothing without such an
 * optimizer. */
MC_API mc_status mc_module_wait(mc_module *module);

#endif
