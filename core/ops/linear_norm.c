/* y = LayerNorm(residual + x weight^T + bias), for tapes that record nothing: what ends a sublayer
 * with its norm after the sum. */
#include "core/ops/ops_internal.h"

mc_tensor *mc_linear_norm(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                          mc_tensor *residual, mc_tensor *norm_weight, mc_tensor *norm_bias,
                          float eps)
{
    if (!mc_linear_check(t, x, weight, bias, MC_ACTIVATION_NONE, 1)) return NULL;
    mc_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = weight->shape.dim[0];
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, x);
    if (!y || !mc_norm_check(t, residual, y, 0, norm_weight, norm_bias, eps)) return NULL;
    const mc_linear_call linear = {.rows = mc_tensor_rows(x),
                                   .in = mc_tensor_columns(x),
                                   .out = mc_tensor_columns(y),
                                   .alpha = 1,
                                   .x = mc_matrix_of(x),
                                   .weight = mc_matrix_of(weight),
                                   .bias = bias ? mc_matrix_flat(bias) : (mc_matrix){0},
                                   .y = mc_matrix_of(y)};
    const mc_residual_norm_call norm = {.rows = linear.rows,
                                        .columns = linear.out,
                                        .x = mc_matrix_of(residual),
                                        .f = linear.y,
                                        .weight = mc_matrix_of(norm_weight),
                                        .bias = mc_matrix_of(norm_bias),
                                        .eps = eps,
                                        .y = linear.y};
    return MC_KERNEL(t, "linear with its norm", linear_norm, &linear, &norm) ? y : NULL;
}
