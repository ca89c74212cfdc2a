/* Products with weights in 8 bits: of evaluation alone, since no gradient goes through them. */
#include "core/ops/ops_internal.h"

static bool check(mc_tape *t, const mc_tensor *x, const mc_matrix8 *w, const mc_tensor *bias)
{
    static const char op[] = "linear in 8 bits";
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x)) return false;
    if (x->shape.ndim < 1 || mc_tensor_columns(x) != w->columns)
        return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                        "%s: input %s and weight (%lld, %lld), expected (..., in) and (out, in)",
                        op, MC_SHAPE_TEXT(x->shape), (long long)w->rows, (long long)w->columns);
    if (mc_tape_recording(t) && (x->requires_grad || (bias && bias->requires_grad)))
        return !mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                        "%s: a model whose weights are in 8 bits is not trained: no gradient goes "
                        "through them",
                        op);
    if (!bias) return true;
    return mc_op_ready(t, op, bias) && mc_op_same_dtype(t, op, "bias", bias, x->dtype) &&
           mc_op_shape(t, op, "bias", bias, MC_SHAPE(w->rows));
}

mc_tensor *mc_linear_quantized(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                               mc_activation activation, float scale)
{
    if (!check(t, x, w, bias)) return NULL;
    mc_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = w->rows;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, x);
    mc_matrix none = {0};
    if (y)
        MC_KERNEL(t, "linear in 8 bits", linear_quantized, mc_tensor_rows(x), scale,
                  mc_matrix_of(x), *w, bias ? mc_matrix_flat(bias) : none, activation,
                  mc_matrix_of(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
