/* How parameters are stored: with padding, several in one tensor; and their gradients.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_NN_STORED_H
#define MC_NN_STORED_H

#include "core/nn/module.h"

/* The same, stored with further rows after its own, `stored_rows` in all, so that products with it
 * have a good size (a vocabulary). They are zero and stay so as long as their gradient is not used:
 * mc_parameter_tensor, counts, files, initialisation and optimizers see `shape` only,
 * mc_parameter_whole all rows. Errors: fewer stored rows than the shape has. */
MC_API mc_parameter *mc_parameter_new_padded(mc_module *module, const char *name, mc_shape shape,
                                             int64_t stored_rows, mc_initializer init);

typedef struct mc_parameter_part {
    const char *name; /* relative to the module; may hold dots ("project_q.weight") */
    int64_t rows;     /* size of its first dimension */
    mc_initializer init;
} mc_parameter_part;
/* Declares several parameters stored as consecutive row ranges of one tensor, so that one product
 * uses them all (q, k and v). Each has shape (rows, rest of `row_shape`), where row_shape is the
 * shape of one row (ndim 0 for biases). Writes `count` parameters to `parts_out` unless that is
 * NULL; returns the first. mc_parameter_whole(t, first) is the stored tensor. */
MC_API mc_parameter *mc_parameter_new_stacked(mc_module *module, const mc_parameter_part *parts,
                                              int count, mc_shape row_shape,
                                              mc_parameter **parts_out);
/* The whole stored tensor a parameter is part of (the parameter itself if it is stored alone and
 * without padding). */
MC_API mc_tensor *mc_parameter_whole(mc_tape *tape, mc_parameter *parameter);
/* Copies the accumulated gradient as it stands in the bucket, summed over ranks, which all have to
 * call it, as f32, whatever it is kept in (mc_grad_dtype); zeros if there is none yet. */
MC_API mc_status mc_parameter_read_gradient(mc_parameter *parameter, float *values);
/* Returns when the host has done what an AdamOffload's last step has it do for the root's
 * parameters, which else goes on beside whatever comes next: for those who take the time of a step.
 * Where there is no such optimizer it does nothing. */
MC_API mc_status mc_module_wait(mc_module *module);

#endif
