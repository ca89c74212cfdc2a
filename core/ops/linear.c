/* y = activation(scale * x weight^T + bias). The pre-activation is kept for the activation's
 * gradient. y can be recomputed from it, so selective recompute keeps only one of the two. */
#include "core/ops/fp8_internal.h"
#include "core/ops/fused.h"

#include <math.h>

typedef struct linear_state {
    mc_activation activation;
    float scale;
    mc_tensor *pre;     /* pre-activation; NULL without an activation */
    mc_fp8_use fp8;     /* 8-bit products, if it has scales */
    mc_fp8_x x8;        /* how x was cast for them */
    mc_fp8_operand dy8; /* the gradient of the output in 8 bits, if the next node has cast it */
    bool cast_done;
    /* Parts of this backward that the next node has done: the output's gradient is already that of
     * the pre-activation; the bias has its gradient. */
    bool activation_done, bias_done;
} linear_state;

enum { X, WEIGHT, BIAS };

/* The gradient of the pre-activation: dy itself without an activation, else a scratch tensor. */
static mc_tensor *pre_gradient(mc_tape *t, mc_node *node, const linear_state *state)
{
    mc_tensor *dy = node->output->gradient;
    if (state->activation == MC_ACTIVATION_NONE || state->activation_done) return dy;
    mc_tensor *du = mc_scratch_new(t, dy->dtype, state->pre->shape);
    if (!du) return NULL;
    int64_t rows = mc_tensor_rows(dy), columns = mc_tensor_columns(dy);
    mc_matrix pre = mc_saved_matrix(t, state->pre);
    if (state->fp8.gated)
        MC_KERNEL(t, "linear", gated_backward, rows, columns, state->activation, pre,
                  mc_matrix_of(dy), mc_matrix_of(du), false);
    else
        MC_KERNEL(t, "linear", activation_backward, rows, columns, state->activation, pre, 1,
                  mc_matrix_of(dy), mc_matrix_of(du), false);
    return du;
}

static const mc_op linear_activation_op;

/* The tensor to cast or multiply for x: itself, or its pre-activation. */
static mc_tensor *source_of(mc_tensor *x) { return x && x->pre ? x->pre : x; }

/* A linear's backward product can include the gradients of the activation and bias before it. */
static bool fuses(const mc_node *node, const mc_node *before)
{
    return before->op == &linear_activation_op && node->inputs[X] == before->output;
}

/* Computes the gradients of the input, if required, and of biases: the linear's own, unless the
 * next node has done so, and that of the fused node before. */
static void input_backward(mc_tape *t, mc_node *node, const mc_tensor *du)
{
    linear_state *state = node->state;
    mc_tensor *x = node->inputs[X], *weight = node->inputs[WEIGHT];
    mc_tensor *bias = state->bias_done ? NULL : node->inputs[BIAS];
    int64_t rows = mc_tensor_rows(du), in = mc_tensor_columns(x), out = weight->shape.dim[0];
    bool accumulate;
    float *dbias = mc_vector_gradient_begin(t, bias);
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    linear_state *before = dx && !accumulate && node->fused ? node->fused->state : NULL;
    mc_tensor *earlier = before ? node->fused->inputs[BIAS] : NULL;
    float *sums = mc_vector_gradient_begin(t, earlier);
    mc_linear_backward_call call = {.rows = rows,
                                    .in = in,
                                    .out = out,
                                    .alpha = state->scale,
                                    .beta = accumulate ? 1.0f : 0.0f,
                                    .dy = mc_matrix_of(du),
                                    .dx = mc_matrix_of(dx),
                                    .sums = sums,
                                    .dbias = dbias};
    if (dx && !state->fp8.scales) call.weight = mc_saved_matrix(t, weight);
    if (before) {
        call.activation = before->activation;
        call.pre = mc_saved_matrix(t, before->pre);
    }
    bool casts = before && state->fp8.scales && before->fp8.scales;
    mc_fp8_before cast = {.use = casts ? &before->fp8 : NULL,
                          .for_input = casts && node->fused->inputs[X]->requires_grad,
                          .for_weight = casts && node->fused->inputs[WEIGHT]->requires_grad,
                          .dy = casts ? &before->dy8 : NULL};
    if (dx && state->fp8.scales)
        mc_fp8_input_gradient(t, &state->fp8, &state->dy8, &call, weight, casts ? &cast : NULL);
    else if (dx)
        MC_KERNEL(t, "linear", linear_backward_input, &call);
    else if (dbias)
        MC_KERNEL(t, "linear", column_sums, rows, out, call.dy, dbias);
    mc_vector_gradient_end(t, bias, dbias);
    mc_vector_gradient_end(t, earlier, sums);
    if (!before) return;
    before->activation_done = true;
    before->bias_done = sums;
    before->cast_done = casts;
    if (!casts) return;
    /* the cast has read them for the last time */
    mc_node_unsave(node, before->pre);
    mc_node_unsave(node->fused, before->pre);
    mc_scratch_free(dx);
}

/* Casts the gradient of the pre-activation to 8 bits, if the layer uses it. */
static bool cast_gradient(mc_tape *t, const mc_node *node, linear_state *state, const mc_tensor *du)
{
    mc_fp8_source source = {
        .rows = mc_tensor_rows(du), .columns = mc_tensor_columns(du), .x = mc_matrix_of(du)};
    if (!state->fp8.scales || state->cast_done) return true;
    return mc_fp8_cast_dy(t, &state->fp8, &source, node->inputs[X]->requires_grad,
                          node->inputs[WEIGHT]->requires_grad, &state->dy8);
}

static void weight_backward(mc_tape *t, mc_node *node, const mc_tensor *du)
{
    linear_state *state = node->state;
    mc_tensor *x = node->inputs[X];
    int64_t rows = mc_tensor_rows(x), in = mc_tensor_columns(x), out = mc_tensor_columns(du);
    bool accumulate;
    mc_tensor *dweight = mc_gradient_target(t, node->inputs[WEIGHT], &accumulate);
    float beta = accumulate ? 1.0f : 0.0f;
    if (!dweight) return;
    mc_matrix source = state->x8.kept ? (mc_matrix){0} : mc_saved_matrix(t, source_of(x));
    if (state->fp8.scales)
        mc_fp8_weight_gradient(t, &state->fp8, &state->dy8, source, in, &state->x8, state->scale,
                               beta, mc_matrix_of(dweight));
    else
        MC_KERNEL(t, "linear", gemm, true, false, out, in, rows, state->scale, mc_matrix_of(du),
                  source, beta, mc_matrix_of(dweight));
}

static void linear_backward(mc_tape *t, mc_node *node)
{
    linear_state *state = node->state;
    mc_tensor *du = pre_gradient(t, node, state);
    if (!du || !cast_gradient(t, node, state, du)) return;
    weight_backward(t, node, du);
    input_backward(t, node, du);
    mc_fp8_release(&state->dy8);
    if (du != node->output->gradient) mc_scratch_free(du);
}

static void activation_again(mc_tape *t, mc_node *node)
{
    const linear_state *state = node->state;
    mc_tensor *y = node->output;
    MC_KERNEL(t, "linear", activation, mc_tensor_rows(y), mc_tensor_columns(y), state->activation,
              mc_saved_matrix(t, state->pre), mc_matrix_of(y));
}

static const mc_op linear_op = {.name = "linear", .backward = linear_backward, .fuses = fuses};
static const mc_op linear_activation_op = {
    .name = "linear", .backward = linear_backward, .recompute = activation_again, .fuses = fuses};

bool mc_node_is_linear(const mc_node *node) { return node->op == &linear_op; }
mc_tensor *mc_linear_bias(const mc_node *linear) { return linear->inputs[BIAS]; }
void mc_linear_bias_done(const mc_node *linear)
{
    ((linear_state *)linear->state)->bias_done = true;
}

/* `source`: what is read of x. That the weight has values is the caller's to check. */
static bool check(mc_tape *t, const mc_tensor *source, mc_tensor *x, mc_tensor *weight,
                  mc_tensor *bias, mc_activation activation, float scale)
{
    if (!mc_op_ready(t, "linear", source)) return false;
    if (!mc_op_float(t, "linear", "input", x)) return false;
    if (!mc_op_same_dtype(t, "linear", "weight", weight, x->dtype)) return false;
    if (weight->shape.ndim != 2 || x->shape.ndim < 1 ||
        weight->shape.dim[1] != mc_tensor_columns(x)) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "linear: input %s and weight %s, expected (..., in) and (out, in)",
                MC_SHAPE_TEXT(x->shape), MC_SHAPE_TEXT(weight->shape));
        return false;
    }
    if (!mc_op_activation(t, "linear", activation)) return false;
    if (!isfinite(scale))
        return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                        "linear: scale %g, expected a finite number", (double)scale);
    if (!bias) return true;
    return mc_op_ready(t, "linear", bias) &&
           mc_op_same_dtype(t, "linear", "bias", bias, x->dtype) &&
           mc_op_shape(t, "linear", "bias", bias, MC_SHAPE(weight->shape.dim[0]));
}

bool mc_linear_check(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                     mc_activation activation, float scale)
{
    return mc_op_ready(t, "linear", weight) && check(t, x, x, weight, bias, activation, scale);
}

/* `like`: the parts of the linear's state that are known before the call. */
static void record(mc_tape *t, const linear_state *like, mc_tensor *x, mc_tensor *weight,
                   mc_tensor *bias, mc_tensor *y)
{
    bool active = like->activation != MC_ACTIVATION_NONE;
    mc_node *node = mc_tape_record(t, active ? &linear_activation_op : &linear_op, y, sizeof *like,
                                   3, (mc_tensor *[]){x, weight, bias});
    if (!node) return;
    *(linear_state *)node->state = *like;
    mc_node_save(node, weight->requires_grad && !like->x8.kept ? source_of(x) : NULL);
    /* use->weight provides a weight in 8 bits */
    mc_node_save(node, x->requires_grad && !like->fp8.scales ? weight : NULL);
    mc_node_save(node, like->pre);
    mc_node_save(node, like->x8.scale);
    mc_node_save(node, like->x8.kept);
}

/* A new tensor of x's rows. */
static mc_tensor *rows_like(mc_tape *t, const mc_tensor *x, mc_dtype dtype, int64_t columns)
{
    mc_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = columns;
    return mc_tape_tensor(t, dtype, shape, x);
}

/* Allocates the output of a call, and the pre-activation if it is kept or the output stands for its
 * activation. NULL after an error. */
static mc_tensor *make_output(mc_tape *t, const mc_tensor *x, const mc_fp8_use *use,
                              const mc_linear_call *call, bool keeps, mc_tensor **pre)
{
    if (use && use->result)
        return mc_tape_in_bytes(t, x->dtype, rows_like(t, x, MC_U8, call->out), use->result);
    bool defers = call->activation != MC_ACTIVATION_NONE && use && use->defers;
    if (keeps || defers) {
        *pre = rows_like(t, x, x->dtype, call->out);
        if (!*pre) return NULL;
    }
    if (defers) return mc_tape_deferred_activation(t, *pre, (int)call->activation, use->gated);
    return rows_like(t, x, x->dtype, call->out);
}

/* Whether x is there in 8 bits with the scale of the layer's input. */
static bool has_bytes(const mc_tensor *x, const mc_fp8_use *use)
{
    return x && x->bytes && x->bytes_scale == use->input && mc_storage_data(x->bytes->storage);
}

/* `use`: 8-bit products, or NULL. */
static mc_tensor *linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                         mc_activation activation, float scale, const mc_fp8_use *use)
{
    mc_tensor *source = !use ? x : has_bytes(x, use) ? x->bytes : source_of(x);
    if (!use && !mc_op_ready(t, "linear", weight)) return NULL;
    if (!check(t, source, x, weight, bias, activation, scale)) return NULL;
    bool keeps = activation != MC_ACTIVATION_NONE && mc_tape_recording(t) &&
                 (x->requires_grad || weight->requires_grad || (bias && bias->requires_grad));
    linear_state state = {.activation = activation, .scale = scale};
    mc_linear_call call = {.rows = mc_tensor_rows(x),
                           .in = mc_tensor_columns(x),
                           .out = weight->shape.dim[0],
                           .alpha = scale,
                           .x = mc_matrix_of(source),
                           .weight = mc_matrix_of(weight),
                           .activation = activation};
    mc_tensor *y = make_output(t, x, use, &call, keeps, &state.pre);
    if (!y) return NULL;
    call.pre = mc_matrix_of(state.pre);
    if (!y->pre) call.y = mc_matrix_of(y->bytes ? y->bytes : y);
    if (bias) call.bias = mc_matrix_flat(bias);
    if (use) {
        state.fp8 = *use;
        if (x->pre) state.x8.activation = (mc_activation)x->activation;
        state.x8.gated = x->gated;
        state.x8.keeps = x->pre && weight->requires_grad && mc_tape_keeps_cheap(t);
        mc_fp8_linear(t, use, &call, &state.x8, weight);
    } else {
        MC_KERNEL(t, "linear", linear, &call);
    }
    record(t, &state, x, weight, bias, y);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_scaled_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                            mc_activation activation, float scale)
{
    return linear(t, x, weight, bias, activation, scale, NULL);
}

mc_tensor *mc_scaled_linear_fp8(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                mc_activation activation, float scale, const mc_fp8_use *use)
{
    return linear(t, x, weight, bias, activation, scale, use);
}

mc_tensor *mc_fused_linear(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                           mc_activation activation)
{
    return mc_scaled_linear(t, x, weight, bias, activation, 1);
}
