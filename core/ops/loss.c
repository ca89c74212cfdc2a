/* Losses: a tensor of (sum, count). */
#include "core/ops/loss_internal.h"
#include "core/ops/fused.h"

#include <math.h>

enum { LOSS_SUM, LOSS_COUNT };

bool mc_loss_read_options(mc_tape *t, const char *op, const mc_cross_entropy_options *given,
                          mc_loss_options *out)
{
    *out = (mc_loss_options){.ignore_index = -100, .logit_scale = 1};
    if (!given) return true;
    out->ignore_index = (int32_t)mc_option_int(given->ignore_index, -100);
    out->smoothing = given->label_smoothing;
    if (given->logit_scale != 0) out->logit_scale = given->logit_scale;
    mc_context *ctx = mc_tape_context(t);
    if (!(out->smoothing >= 0 && out->smoothing < 1))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "%s: label smoothing %g, expected 0 <= e < 1", op,
                        (double)out->smoothing);
    if (!isfinite(out->logit_scale))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "%s: logit scale %g, expected a finite number", op,
                        (double)out->logit_scale);
    return true;
}

/* The number of labels that count, from their values on the host. */
static double counted(mc_tape *t, const mc_tensor *labels, int32_t ignore_index)
{
    if (mc_tape_context(t)->step || !mc_tape_recording(t)) return 0; /* no seed needs it */
    const int32_t *label = mc_op_host(t, "loss", labels);
    double count = 0;
    for (int64_t i = 0; label && i < mc_tensor_count(labels); i++)
        count += label[i] != ignore_index;
    return count;
}

/* With one rank, the nominal rows are its own. */
const float *mc_loss_seed(mc_tape *t, mc_tensor *loss, const mc_tensor *from, int64_t rows,
                          double count)
{
    mc_context *ctx = mc_tape_context(t);
    loss->nominal_rows = ctx->mesh.data.comm && from->nominal_rows ? from->nominal_rows : rows;
    if (!mc_tape_recording(t) || (!ctx->step && count < 0)) return NULL;
    const float *seed = mc_loss_seed_of(t, loss->nominal_rows, count);
    if (!ctx->step) loss->seed = seed;
    return seed;
}

static mc_tensor *new_loss(mc_tape *t)
{
    return mc_tape_input(t, MC_F32, MC_SHAPE(2), NULL, false);
}

/* ---- cross-entropy of given logits ----------------------------------------------------------- */

typedef struct cross_entropy_state {
    mc_loss_options options;
    mc_tensor *labels;
} cross_entropy_state;

static void cross_entropy_backward(mc_tape *t, mc_node *node)
{
    const cross_entropy_state *state = node->state;
    mc_tensor *x = node->inputs[0];
    mc_tensor *again = new_loss(t); /* receives the sum again, which is not used */
    bool accumulate;
    mc_tensor *target = mc_gradient_target(t, x, &accumulate);
    mc_tensor *dx = target && accumulate ? mc_scratch_new(t, x->dtype, x->shape) : target;
    if (!dx || !again) return;
    MC_KERNEL(t, "cross entropy", cross_entropy, mc_tensor_rows(x), mc_tensor_columns(x),
              mc_saved_matrix(t, x), mc_tensor_data(state->labels), state->options.ignore_index,
              state->options.smoothing, mc_tensor_data(node->output->gradient),
              mc_tensor_data(again), mc_matrix_of(dx));
    mc_scratch_free(again);
    if (dx == target) return;
    MC_KERNEL(t, "cross entropy", scale, mc_tensor_count(x), mc_matrix_flat(dx), 1.0f,
              mc_matrix_flat(target), true);
    mc_scratch_free(dx);
}

static const mc_op cross_entropy_op = {.name = "cross entropy", .backward = cross_entropy_backward};

mc_tensor *mc_cross_entropy(mc_tape *t, mc_tensor *x, mc_tensor *labels,
                            const mc_cross_entropy_options *given)
{
    cross_entropy_state state = {0};
    if (given && given->class_weights) return mc_weighted_cross_entropy(t, x, labels, given);
    if (!mc_op_ready(t, "cross entropy", x) || !mc_op_float(t, "cross entropy", "logits", x) ||
        !mc_op_ready(t, "cross entropy", labels) ||
        !mc_loss_read_options(t, "cross entropy", given, &state.options))
        return NULL;
    if (state.options.logit_scale != 1) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                "cross entropy: logit scale %g, expected 0 or 1: it is mc_linear_cross_entropy's",
                (double)state.options.logit_scale);
        return NULL;
    }
    int64_t rows = mc_tensor_rows(x), classes = mc_tensor_columns(x);
    state.labels = mc_op_indices(t, "cross entropy", "label", labels, rows, classes,
                                 state.options.ignore_index);
    mc_tensor *loss = state.labels ? new_loss(t) : NULL;
    if (!loss) return NULL;
    mc_matrix none = {0};
    MC_KERNEL(t, "cross entropy", cross_entropy, rows, classes, mc_matrix_of(x),
              mc_tensor_data(state.labels), state.options.ignore_index, state.options.smoothing,
              NULL, mc_tensor_data(loss), none);
    mc_node *node = mc_tape_record(t, &cross_entropy_op, loss, sizeof state, 1, &x);
    if (node) {
        *(cross_entropy_state *)node->state = state;
        mc_node_save(node, x);
        mc_node_save(node, state.labels);
    }
    mc_loss_seed(t, loss, labels, rows, counted(t, state.labels, state.options.ignore_index));
    return mc_failed(mc_tape_context(t)) ? NULL : loss;
}

/* ---- head and loss in one, chunk by chunk ---------------------------------------------------- */

typedef struct linear_loss {
    mc_tensor *x, *weight, *bias, *labels;
    int64_t classes;
    mc_loss_options options;
    const float *seed; /* device memory */
    bool gradients;
    mc_tensor *loss, *dx; /* dx: gradient of x at `seed`, if required */
    float *dbias;         /* NULL: not required */
} linear_loss;

typedef struct linear_loss_state {
    mc_tensor *dx;
    const float *seed;
} linear_loss_state;

static mc_matrix rows_from(mc_matrix m, int64_t row)
{
    m.data = m.data ? (char *)m.data + (size_t)(row * m.stride) * mc_dtype_size(m.dtype) : NULL;
    return m;
}

/* Rows first .. first + n: computes logits and loss, and with gradients also those. */
static void linear_loss_chunk(mc_tape *t, linear_loss *c, mc_matrix logits, int64_t first,
                              int64_t n)
{
    static const char op[] = "linear cross entropy";
    int64_t in = mc_tensor_columns(c->x);
    float scale = c->options.logit_scale;
    mc_matrix x = rows_from(mc_matrix_of(c->x), first), none = {0};
    int64_t columns = logits.stride; /* classes, and padding with zero weights and logits */
    mc_linear_call product = {.rows = n,
                              .in = in,
                              .out = columns,
                              .alpha = scale,
                              .x = x,
                              .weight = mc_matrix_of(c->weight),
                              .bias = c->bias ? mc_matrix_flat(c->bias) : none,
                              .y = logits};
    MC_KERNEL(t, op, linear, &product);
    MC_KERNEL(t, op, cross_entropy, n, c->classes, logits,
              (const int32_t *)mc_tensor_data(c->labels) + first, c->options.ignore_index,
              c->options.smoothing, c->seed, mc_tensor_data(c->loss), c->gradients ? logits : none);
    if (!c->gradients) return;
    if (c->weight->requires_grad)
        MC_KERNEL(t, op, gemm, true, false, columns, in, n, scale, logits, x, 1,
                  mc_matrix_of(c->weight->gradient));
    if (c->dbias) MC_KERNEL(t, op, column_sums, n, columns, logits, c->dbias);
    if (c->dx)
        MC_KERNEL(t, op, gemm, false, false, n, in, columns, scale, logits, mc_matrix_of(c->weight),
                  0, rows_from(mc_matrix_of(c->dx), first));
}

static void linear_loss_run(mc_tape *t, linear_loss *c)
{
    int64_t rows = mc_tensor_rows(c->x), columns = mc_tensor_size(c->weight, 0);
    /* Includes padding rows that are zero: their logits and gradients are zero, and the product has
     * an efficient size. */
    if (c->classes + c->weight->zero_rows != columns) columns = c->classes;
    int64_t chunk = mc_tape_device(t)->logits_chunk / columns;
    if (chunk < 1) chunk = 1;
    if (chunk > rows) chunk = rows;
    mc_tensor *logits = mc_scratch_new(t, c->x->dtype, MC_SHAPE(chunk, columns));
    if (!logits || mc_blank_fill(mc_tape_context(t), c->weight->blank)) return;
    if (c->gradients) c->dbias = mc_vector_gradient_begin(t, c->bias);
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t n = rows - first < chunk ? rows - first : chunk;
        linear_loss_chunk(t, c, mc_matrix_of(logits), first, n);
    }
    mc_vector_gradient_end(t, c->bias, c->dbias);
    mc_scratch_free(logits);
}

/* Whether backward's seed equals the one used in forward. It is the same memory unless the program
 * passed its own seed; only then this waits for the device. */
static bool same_seed(mc_tape *t, const mc_tensor *gradient, const float *seed)
{
    float given = 0, used = 0;
    mc_device *device = mc_tape_device(t);
    if (mc_tensor_data(gradient) == seed) return true;
    bool good = device->copy_out(device, &given, mc_tensor_data(gradient), sizeof given) &&
                device->copy_out(device, &used, seed, sizeof used);
    return good && fabsf(given - used) <= 1e-6f * fabsf(used);
}

static void linear_loss_backward(mc_tape *t, mc_node *node)
{
    const linear_loss_state *state = node->state;
    if (!same_seed(t, node->output->gradient, state->seed)) {
        mc_fail(mc_tape_context(t), MC_ERR_STATE,
                "linear cross entropy: its gradients were computed in the forward pass: start "
                "backward from this loss or an mc_loss_add with it as first term, with dy NULL or "
                "through the OptimManager that was at work then");
        return;
    }
    mc_gradient_share(t, node->inputs[0], state->dx);
    mc_scratch_free(state->dx);
}

static const mc_op linear_loss_op = {.name = "linear cross entropy",
                                     .backward = linear_loss_backward};

static bool check_linear_loss(mc_tape *t, linear_loss *c, const mc_cross_entropy_options *given)
{
    static const char op[] = "linear cross entropy";
    if (given && given->class_weights)
        return !mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                        "%s: class weights are not supported here: use mc_cross_entropy", op);
    if (!mc_op_ready(t, op, c->x) || !mc_op_ready(t, op, c->weight) ||
        !mc_op_float(t, op, "input", c->x) ||
        !mc_op_same_dtype(t, op, "weight", c->weight, c->x->dtype))
        return false;
    mc_shape expected = MC_SHAPE(mc_tensor_size(c->weight, 0), mc_tensor_columns(c->x));
    if (!mc_op_shape(t, op, "weight", c->weight, expected)) return false;
    if (c->classes == 0) c->classes = expected.dim[0];
    if (c->classes < 1 || c->classes > expected.dim[0]) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: %lld classes, the weight has %lld rows",
                op, (long long)c->classes, (long long)expected.dim[0]);
        return false;
    }
    if (c->bias &&
        (!mc_op_ready(t, op, c->bias) || !mc_op_same_dtype(t, op, "bias", c->bias, c->x->dtype) ||
         !mc_op_shape(t, op, "bias", c->bias, MC_SHAPE(expected.dim[0]))))
        return false;
    bool leaves = (!c->weight->requires_grad || c->weight->is_leaf) &&
                  (!c->bias || !c->bias->requires_grad || c->bias->is_leaf);
    if (!leaves)
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: weight and bias must be parameters", op);
    return leaves;
}

mc_tensor *mc_linear_cross_entropy(mc_tape *t, mc_tensor *x, mc_tensor *weight, mc_tensor *bias,
                                   int64_t classes, mc_tensor *labels,
                                   const mc_cross_entropy_options *given)
{
    static const char op[] = "linear cross entropy";
    linear_loss c = {.x = x, .weight = weight, .bias = bias, .classes = classes};
    if (!check_linear_loss(t, &c, given) || !mc_loss_read_options(t, op, given, &c.options))
        return NULL;
    int64_t rows = mc_tensor_rows(x);
    c.labels = mc_op_indices(t, op, "label", labels, rows, c.classes, c.options.ignore_index);
    if (!c.labels || !(c.loss = new_loss(t))) return NULL;
    c.gradients = mc_tape_recording(t) &&
                  (x->requires_grad || weight->requires_grad || (bias && bias->requires_grad));
    if (c.gradients) {
        c.seed =
            mc_loss_seed(t, c.loss, labels, rows, counted(t, c.labels, c.options.ignore_index));
        if (!c.seed) return NULL;
        if (!mc_gradient_is_there(t, weight) || !mc_gradient_is_there(t, bias)) return NULL;
        if (x->requires_grad && !(c.dx = mc_tape_tensor(t, x->dtype, x->shape, x))) return NULL;
    }
    linear_loss_run(t, &c);
    mc_node *node = mc_tape_record(t, &linear_loss_op, c.loss, sizeof(linear_loss_state), 3,
                                   (mc_tensor *[]){x, weight, bias});
    if (node) {
        *(linear_loss_state *)node->state = (linear_loss_state){.dx = c.dx, .seed = c.seed};
        mc_node_save(node, c.dx);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : c.loss;
}

/* ---- combining and reading ------------------------------------------------------------------- */

typedef struct loss_add_state {
    mc_tensor *b_factor; /* (k, 0): ratio of b's gradient to a's */
} loss_add_state;

static void loss_add_backward(mc_tape *t, mc_node *node)
{
    const loss_add_state *state = node->state;
    mc_tensor *a = node->inputs[0], *b = node->inputs[1], *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *db = mc_gradient_target(t, b, &accumulate);
    if (db)
        MC_KERNEL(t, "loss add", multiply, 2, mc_matrix_flat(dy), mc_matrix_flat(state->b_factor),
                  2, mc_matrix_flat(db), accumulate);
    mc_gradient_share(t, a, dy);
}

static const mc_op loss_add_op = {.name = "loss add", .backward = loss_add_backward};

static bool is_loss(mc_tape *t, const char *what, mc_tensor *x)
{
    return mc_op_ready(t, "loss add", x) && mc_op_shape(t, "loss add", what, x, MC_SHAPE(2)) &&
           mc_op_same_dtype(t, "loss add", what, x, MC_F32);
}

static mc_tensor *record_loss_add(mc_tape *t, mc_tensor *y, mc_tensor *a, mc_tensor *b,
                                  mc_tensor *b_factor)
{
    y->seed = a->seed;
    y->nominal_rows = a->nominal_rows;
    mc_node *node =
        mc_tape_record(t, &loss_add_op, y, sizeof(loss_add_state), 2, (mc_tensor *[]){a, b});
    if (node) {
        ((loss_add_state *)node->state)->b_factor = b_factor;
        mc_node_save(node, b_factor);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_loss_add(mc_tape *t, mc_tensor *a, mc_tensor *b, float factor)
{
    if (!is_loss(t, "first loss", a) || !is_loss(t, "second loss", b)) return NULL;
    mc_tensor *y = new_loss(t), *b_factor = new_loss(t);
    if (!y || !b_factor) return NULL;
    MC_KERNEL(t, "loss add", loss_add, mc_tensor_data(a), mc_tensor_data(b), factor,
              mc_tensor_data(y), mc_tensor_data(b_factor));
    return record_loss_add(t, y, a, b, b_factor);
}

mc_tensor *mc_loss_add_ratio(mc_tape *t, mc_tensor *a, mc_tensor *b, mc_tensor *ratio)
{
    if (!is_loss(t, "first loss", a) || !is_loss(t, "second loss", b) ||
        !is_loss(t, "ratio", ratio))
        return NULL;
    mc_tensor *y = new_loss(t), *b_factor = new_loss(t);
    if (!y || !b_factor) return NULL;
    /* a copy, because the caller may refill the ratio before backward */
    MC_KERNEL(t, "loss add", scale, 2, mc_matrix_flat(ratio), 1, mc_matrix_flat(b_factor), false);
    MC_KERNEL(t, "loss add", scale, 2, mc_matrix_flat(a), 1, mc_matrix_flat(y), false);
    MC_KERNEL(t, "loss add", multiply, 2, mc_matrix_flat(b), mc_matrix_flat(b_factor), 2,
              mc_matrix_flat(y), true);
    return record_loss_add(t, y, a, b, b_factor);
}

double mc_mean_loss(mc_context *ctx, const mc_tensor *loss)
{
    float value[2] = {NAN, NAN};
    if (mc_failed(ctx) || !loss) return NAN;
    mc_tensor_read_f32(ctx, loss, value, 2);
    if (value[LOSS_COUNT] == 0) return 0;
    return (double)value[LOSS_SUM] / (double)value[LOSS_COUNT];
}
