/* y = LayerNorm(x + dropout(f)), or RMSNorm, which has no bias. A training tape keeps the residual
 * sum, from which y can be recomputed. In a residual stream the sum is a second output. */
#include "core/ops/fp8_internal.h"
#include "core/ops/fused.h"

typedef struct norm_state {
    float eps;
    mc_dropout_mask dropout;
    mc_tensor *sum;         /* x itself without f */
    mc_tensor *mean, *rstd; /* (rows) f32; RMSNorm has no mean */
} norm_state;

enum { X, F, WEIGHT, BIAS };

/* A tensor for the gradient of the normalised sum. If the sum is an output that was used, its
 * gradient exists already, and the norm's part is added in place. Without f the sum is x. */
static mc_tensor *sum_gradient(mc_tape *t, mc_node *node, bool *accumulate)
{
    mc_tensor *x = node->inputs[X], *f = node->inputs[F];
    *accumulate = false;
    if (node->second) return mc_gradient_target(t, node->second, accumulate);
    if (!f) return mc_gradient_target(t, x, accumulate);
    return mc_scratch_new(t, x->dtype, x->shape);
}

static void norm_backward(mc_tape *t, mc_node *node)
{
    static const char op[] = "residual norm";
    const norm_state *state = node->state;
    mc_tensor *x = node->inputs[X], *f = node->inputs[F], *dy = node->output->gradient;
    bool accumulate, masked = f && f->requires_grad && state->dropout.p > 0;
    mc_tensor *ds = sum_gradient(t, node, &accumulate);
    mc_tensor *df = masked ? mc_scratch_new(t, x->dtype, x->shape) : NULL;
    bool fused = dy && node->fused && !f->gradient;
    mc_tensor *branch_bias = fused ? mc_linear_bias(node->fused) : NULL;
    mc_residual_norm_backward_call call = {
        .rows = mc_tensor_rows(x),
        .columns = mc_tensor_columns(x),
        .weight = mc_matrix_of(node->inputs[WEIGHT]),
        .mean = mc_tensor_data(state->mean),
        .rstd = mc_tensor_data(state->rstd),
        .dy = mc_matrix_of(dy),
        .dropout = state->dropout,
        .ds = mc_matrix_of(ds),
        .df = mc_matrix_of(df),
        .accumulate = accumulate,
        .dweight = dy ? mc_vector_gradient_begin(t, node->inputs[WEIGHT]) : NULL,
        .dbias = dy ? mc_vector_gradient_begin(t, node->inputs[BIAS]) : NULL,
        .dbranch = mc_vector_gradient_begin(t, branch_bias)};
    if (dy && !mc_failed(mc_tape_context(t))) {
        call.s = mc_saved_matrix(t, state->sum);
        MC_KERNEL(t, op, residual_norm_backward, &call);
    }
    if (!dy && ds && df) /* only the sum was used */
        MC_KERNEL(t, op, dropout, call.rows, call.columns, call.ds, false, state->dropout, call.df,
                  false);
    mc_vector_gradient_end(t, node->inputs[WEIGHT], call.dweight);
    mc_vector_gradient_end(t, node->inputs[BIAS], call.dbias);
    mc_vector_gradient_end(t, branch_bias, call.dbranch);
    if (!f) return;
    mc_gradient_share(t, f, masked ? df : ds);
    if (call.dbranch && f->gradient) mc_linear_bias_done(node->fused);
    mc_gradient_share(t, x, ds);
    if (!node->second) mc_scratch_free(ds);
    mc_scratch_free(df);
}

static void norm_again(mc_tape *t, mc_node *node)
{
    const norm_state *state = node->state;
    mc_tensor *y = node->output;
    mc_residual_norm_call call = {.rows = mc_tensor_rows(y),
                                  .columns = mc_tensor_columns(y),
                                  .x = mc_saved_matrix(t, state->sum),
                                  .weight = mc_matrix_of(node->inputs[WEIGHT]),
                                  .bias = mc_matrix_of(node->inputs[BIAS]),
                                  .eps = state->eps,
                                  .y = mc_matrix_of(y)};
    MC_KERNEL(t, "residual norm", residual_norm, &call);
}

/* The pass also sums the branch's gradient over its rows, for the linear's bias. */
static bool fuses(const mc_node *node, const mc_node *before)
{
    return mc_node_is_linear(before) && node->inputs[F] == before->output;
}

static const mc_op norm_op = {
    .name = "residual norm", .backward = norm_backward, .recompute = norm_again, .fuses = fuses};

bool mc_norm_check(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout, mc_tensor *weight,
                   mc_tensor *bias, float eps)
{
    if (!mc_op_ready(t, "residual norm", x) || !mc_op_ready(t, "residual norm", weight) ||
        !mc_op_float(t, "residual norm", "input", x))
        return false;
    mc_shape vector = MC_SHAPE(mc_tensor_columns(x));
    if (!mc_op_shape(t, "residual norm", "weight", weight, vector) ||
        !mc_op_float(t, "residual norm", "weight", weight))
        return false;
    if (bias && (!mc_op_ready(t, "residual norm", bias) ||
                 !mc_op_shape(t, "residual norm", "bias", bias, vector) ||
                 !mc_op_float(t, "residual norm", "bias", bias)))
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

/* The arguments of a norm. */
typedef struct norm_call {
    mc_tensor *x, *f, *weight, *bias;
    float dropout, eps;
    const float *scale; /* of the result's bytes; NULL: none */
    bool stream;        /* the sum is an output */
    mc_tensor *sum;
} norm_call;

static void record(mc_tape *t, norm_call *c, mc_tensor *y, norm_state state)
{
    mc_node *node = mc_tape_record(t, &norm_op, y, sizeof state, 4,
                                   (mc_tensor *[]){c->x, c->f, c->weight, c->bias});
    if (c->stream && c->f && y->requires_grad) mc_node_second(node, c->sum);
    if (node) {
        *(norm_state *)node->state = state;
        mc_node_save(node, c->sum);
        mc_node_save(node, c->weight);
        mc_node_save(node, c->bias);
        mc_node_save(node, state.mean);
        mc_node_save(node, state.rstd);
    } else if (c->sum != c->x && !c->stream) {
        mc_tape_release(t, c->sum);
    }
}

static mc_tensor *norm(mc_tape *t, norm_call *c)
{
    mc_tensor *x = c->x, *f = c->f;
    if (!mc_norm_check(t, x, f, c->dropout, c->weight, c->bias, c->eps)) return NULL;
    int64_t rows = mc_tensor_rows(x);
    bool recording = mc_tape_recording(t);
    norm_state state = {.eps = c->eps, .dropout = mc_tape_dropout(t, f ? c->dropout : 0)};
    bool stored = f && (recording || c->stream); /* otherwise nothing reads the sum again */
    c->sum = state.sum = stored ? mc_tape_tensor(t, x->dtype, x->shape, x) : x;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (recording) {
        if (c->bias) state.mean = mc_tape_tensor(t, MC_F32, MC_SHAPE(rows), NULL);
        state.rstd = mc_tape_tensor(t, MC_F32, MC_SHAPE(rows), NULL);
    }
    if (y && c->scale) {
        y->bytes = mc_tape_tensor(t, MC_U8, x->shape, NULL);
        y->bytes_scale = c->scale;
    }
    if (!c->sum || !y || mc_failed(mc_tape_context(t))) return NULL;
    mc_residual_norm_call call = {.rows = rows,
                                  .columns = mc_tensor_columns(x),
                                  .x = mc_matrix_of(x),
                                  .f = mc_matrix_of(f),
                                  .dropout = state.dropout,
                                  .weight = mc_matrix_of(c->weight),
                                  .bias = mc_matrix_of(c->bias),
                                  .eps = c->eps,
                                  .s = mc_matrix_of(stored ? c->sum : NULL),
                                  .y = mc_matrix_of(y),
                                  .mean = mc_tensor_data(state.mean),
                                  .rstd = mc_tensor_data(state.rstd),
                                  .bytes = y->bytes ? mc_tensor_data(y->bytes) : NULL,
                                  .scale = c->scale};
    MC_KERNEL(t, "residual norm", residual_norm, &call);
    record(t, c, y, state);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_residual_norm_fp8(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout,
                                mc_tensor *weight, mc_tensor *bias, float eps, const float *scale)
{
    return norm(t, &(norm_call){.x = x,
                                .f = f,
                                .dropout = dropout,
                                .weight = weight,
                                .bias = bias,
                                .eps = eps,
                                .scale = scale});
}

mc_tensor *mc_residual_norm(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout,
                            mc_tensor *weight, mc_tensor *bias, float eps)
{
    return mc_residual_norm_fp8(t, x, f, dropout, weight, bias, eps, NULL);
}

/* ---- the residual stream --------------------------------------------------------------------- */

mc_tensor *mc_residual_defer(mc_tape *t, mc_tensor *x, mc_tensor *f, float dropout)
{
    static const char op[] = "residual sum";
    if (!mc_op_ready(t, op, x) || !mc_op_ready(t, op, f) || !mc_op_float(t, op, "input", x) ||
        !mc_op_shape(t, op, "second input", f, x->shape) ||
        !mc_op_same_dtype(t, op, "second input", f, x->dtype))
        return NULL;
    if (dropout >= 0 && dropout < 1) return mc_tape_deferred(t, x, f, dropout);
    mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: dropout %g, expected 0 <= p < 1", op,
            (double)dropout);
    return NULL;
}

mc_tensor *mc_stream_norm(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias, float eps,
                          mc_tensor **sum)
{
    return mc_stream_norm_fp8(t, x, weight, bias, eps, sum, NULL);
}

mc_tensor *mc_stream_norm_fp8(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                              float eps, mc_tensor **sum, const float *scale)
{
    norm_call c = {
        .x = x, .weight = weight, .bias = bias, .eps = eps, .scale = scale, .stream = true};
    if (!sum) {
        if (t)
            mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                    "residual norm: there is no place for the sum (NULL)");
        return NULL;
    }
    if (x && x->deferred) {
        c.x = x->deferred->x;
        c.f = x->deferred->f;
        c.dropout = x->deferred->dropout;
    }
    mc_tensor *y = norm(t, &c);
    *sum = y ? c.sum : NULL;
    return y;
}

typedef struct sum_state {
    mc_dropout_mask dropout;
} sum_state;

static void sum_backward(mc_tape *t, mc_node *node)
{
    const sum_state *state = node->state;
    mc_tensor *x = node->inputs[X], *f = node->inputs[F], *dy = node->output->gradient;
    if (f->requires_grad && state->dropout.p > 0) {
        mc_tensor *df = mc_scratch_new(t, f->dtype, f->shape);
        if (!df) return;
        MC_KERNEL(t, "residual sum", dropout, mc_tensor_rows(f), mc_tensor_columns(f),
                  mc_matrix_of(dy), false, state->dropout, mc_matrix_of(df), false);
        mc_gradient_share(t, f, df);
        mc_scratch_free(df);
    } else {
        mc_gradient_share(t, f, dy);
    }
    mc_gradient_share(t, x, dy);
}

static const mc_op sum_op = {.name = "residual sum", .backward = sum_backward};

mc_tensor *mc_residual_sum(mc_tape *t, mc_tensor *x)
{
    if (!x || !x->deferred) return mc_op_ready(t, "residual sum", x) ? x : NULL;
    const mc_deferred *sum = x->deferred;
    if (!mc_op_ready(t, "residual sum", sum->x) || !mc_op_ready(t, "residual sum", sum->f))
        return NULL;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (!y) return NULL;
    mc_dropout_mask mask = mc_tape_dropout(t, sum->dropout);
    MC_KERNEL(t, "residual sum", residual_sum, mc_tensor_rows(x), mc_tensor_columns(x),
              mc_matrix_of(sum->x), mc_matrix_of(sum->f), mask, mc_matrix_of(y));
    mc_node *node =
        mc_tape_record(t, &sum_op, y, sizeof(sum_state), 2, (mc_tensor *[]){sum->x, sum->f});
    if (node) ((sum_state *)node->state)->dropout = mask;
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
