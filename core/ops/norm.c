/* y = LayerNorm(x + dropout(f)): the residual sum is kept, y can be computed again from it. */
#include "core/ops/ops_internal.h"

typedef struct norm_state {
    float eps;
    mc_dropout_mask dropout;
    mc_tensor *sum;         /* x itself when there is no f */
    mc_tensor *mean, *rstd; /* (rows) f32 */
} norm_state;

enum { X, F, WEIGHT, BIAS };

static void norm_backward(mc_tape *t, mc_node *node)
{
    const norm_state *state = node->state;
    mc_tensor *x = node->inputs[X], *f = node->inputs[F], *dy = node->output->gradient;
    int64_t rows = mc_tensor_rows(x), columns = mc_tensor_columns(x);
    bool want_x = x->requires_grad, want_f = f && f->requires_grad;
    mc_tensor *ds = mc_scratch_new(t, x->dtype, x->shape);
    bool masked = want_f && state->dropout.p > 0;
    mc_tensor *df = masked ? mc_scratch_new(t, x->dtype, x->shape) : NULL;
    float *dweight = mc_vector_gradient_begin(t, node->inputs[WEIGHT]);
    float *dbias = mc_vector_gradient_begin(t, node->inputs[BIAS]);
    if (ds && (df || !masked))
        MC_KERNEL(t, "residual norm", residual_norm_backward, rows, columns,
                  mc_saved_matrix(t, state->sum), mc_matrix_of(node->inputs[WEIGHT]),
                  mc_tensor_data(state->mean), mc_tensor_data(state->rstd), mc_matrix_of(dy),
                  state->dropout, mc_matrix_of(ds), false, mc_matrix_of(df), dweight, dbias);
    mc_vector_gradient_end(t, node->inputs[WEIGHT], dweight);
    mc_vector_gradient_end(t, node->inputs[BIAS], dbias);
    if (want_f) mc_gradient_share(t, f, masked ? df : ds);
    if (want_x) mc_gradient_share(t, x, ds);
    mc_scratch_free(ds);
    mc_scratch_free(df);
}

static void norm_again(mc_tape *t, mc_node *node)
{
    const norm_state *state = node->state;
    mc_tensor *y = node->output;
    mc_matrix none = {0};
    MC_KERNEL(t, "residual norm", residual_norm, mc_tensor_rows(y), mc_tensor_columns(y),
              mc_saved_matrix(t, state->sum), none, (mc_dropout_mask){0},
              mc_matrix_of(node->inputs[WEIGHT]), mc_matrix_of(node->inputs[BIAS]), state->eps,
              none, mc_matrix_of(y), NULL, NULL);
}

static const mc_op norm_op = {
    .name = "residual norm", .backward = norm_backward, .recompute = norm_again};

static bool check(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout, mc_tensor *weight,
                  mc_tensor *bias, float eps)
{
    if (!mc_op_ready(t, "residual norm", x) || !mc_op_ready(t, "residual norm", weight) ||
        !mc_op_ready(t, "residual norm", bias) || !mc_op_float(t, "residual norm", "input", x))
        return false;
    mc_shape vector = MC_SHAPE(mc_tensor_columns(x));
    if (!mc_op_shape(t, "residual norm", "weight", weight, vector) ||
        !mc_op_shape(t, "residual norm", "bias", bias, vector) ||
        !mc_op_float(t, "residual norm", "weight", weight) ||
        !mc_op_float(t, "residual norm", "bias", bias))
        return false;
    if (f && (!mc_op_ready(t, "residual norm", f) ||
              !mc_op_shape(t, "residual norm", "second input", f, x->shape) ||
              !mc_op_same_dtype(t, "residual norm", "second input", f, x->dtype)))
        return false;
    mc_context *ctx = mc_tape_context(t);
    if (!(dropout >= 0 && dropout < 1))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "residual norm: dropout %g, expected 0 <= p < 1",
                        (double)dropout);
    if (!(eps > 0))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "residual norm: eps %g, expected > 0", (double)eps);
    return true;
}

mc_tensor *mc_residual_norm(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout,
                            mc_tensor *weight, mc_tensor *bias, float eps)
{
    if (!check(t, x, f, dropout, weight, bias, eps)) return NULL;
    int64_t rows = mc_tensor_rows(x), columns = mc_tensor_columns(x);
    mc_dropout_mask mask = mc_tape_dropout(t, f ? dropout : 0);
    bool recording = mc_tape_recording(t);
    mc_tensor *sum = f ? mc_tape_tensor(t, x->dtype, x->shape, x) : x;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    mc_tensor *mean = recording ? mc_tape_tensor(t, MC_F32, MC_SHAPE(rows), NULL) : NULL;
    mc_tensor *rstd = recording ? mc_tape_tensor(t, MC_F32, MC_SHAPE(rows), NULL) : NULL;
    if (!sum || !y || (recording && (!mean || !rstd))) return NULL;
    mc_matrix none = {0};
    MC_KERNEL(t, "residual norm", residual_norm, rows, columns, mc_matrix_of(x), mc_matrix_of(f),
              mask, mc_matrix_of(weight), mc_matrix_of(bias), eps, f ? mc_matrix_of(sum) : none,
              mc_matrix_of(y), mc_tensor_data(mean), mc_tensor_data(rstd));
    mc_node *node =
        mc_tape_record(t, &norm_op, y, sizeof(norm_state), 4, (mc_tensor *[]){x, f, weight, bias});
    if (node) {
        *(norm_state *)node->state =
            (norm_state){.eps = eps, .dropout = mask, .sum = sum, .mean = mean, .rstd = rstd};
        mc_node_save(node, sum);
        mc_node_save(node, weight);
        mc_node_save(node, bias);
        mc_node_save(node, mean);
        mc_node_save(node, rstd);
    } else if (f) {
        mc_tape_release(t, sum);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
