/* Products with frozen 8-bit weights: inputs and biases have gradients. Weights are dequantized,
 * or, with products of bytes, the other operand is cast too. */
#include "core/ops/ops_internal.h"

static const char op[] = "linear in 8 bits";

static bool check(mc_tape *t, const mc_tensor *x, const mc_matrix8 *w, const mc_tensor *bias)
{
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x)) return false;
    if (x->shape.ndim < 1 || mc_tensor_columns(x) != w->columns)
        return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                        "%s: input %s and weight (%lld, %lld), expected (..., in) and (out, in)",
                        op, MC_SHAPE_TEXT(x->shape), (long long)w->rows, (long long)w->columns);
    if (!bias) return true;
    return mc_op_ready(t, op, bias) && mc_op_same_dtype(t, op, "bias", bias, x->dtype) &&
           mc_op_shape(t, op, "bias", bias, MC_SHAPE(w->rows));
}

/* How a product is computed. */
typedef struct product_mode {
    float scale;
    bool bytes; /* with x and dy in E4M3 */
    int margin; /* of their scales */
} product_mode;

/* ---- products of bytes ----------------------------------------------------------------------- */

/* A matrix in E4M3 in scratch memory, with an inverse for each row. */
typedef struct byte_rows {
    mc_tensor *data, *inverse;
} byte_rows;

static bool byte_rows_new(mc_tape *t, int64_t rows, int64_t columns, byte_rows *out)
{
    *out = (byte_rows){.data = mc_scratch_new(t, MC_U8, MC_SHAPE(rows, columns))};
    if (out->data) out->inverse = mc_scratch_new(t, MC_F32, MC_SHAPE(rows));
    return out->inverse;
}

static void byte_rows_free(byte_rows *b)
{
    mc_scratch_free(b->data);
    mc_scratch_free(b->inverse);
}

static mc_fp8_matrix operand_of(const byte_rows *b)
{
    return (mc_fp8_matrix){mc_tensor_data(b->data), mc_tensor_columns(b->data), MC_FP8_E4M3,
                           mc_tensor_data(b->inverse)};
}

/* Casts the rows of x, with a factor for each column unless it is NULL. */
static bool cast_rows(mc_tape *t, const mc_tensor *x, const float *factor, int margin,
                      byte_rows *out)
{
    int64_t rows = mc_tensor_rows(x), columns = mc_tensor_columns(x);
    if (!byte_rows_new(t, rows, columns, out)) return false;
    mc_fp8_rows_call call = {.rows = rows,
                             .columns = columns,
                             .x = mc_matrix_of(x),
                             .factor = factor,
                             .margin = margin,
                             .data = mc_tensor_data(out->data),
                             .inverse = mc_tensor_data(out->inverse)};
    return MC_KERNEL(t, op, fp8_cast_rows, &call);
}

static void multiply_bytes(mc_tape *t, const mc_tensor *x, const mc_matrix8 *w, mc_matrix bias,
                           const product_mode *mode, mc_tensor *y)
{
    byte_rows x8;
    if (cast_rows(t, x, NULL, mode->margin, &x8)) {
        mc_fp8_gemm_call call = {.transpose_b = true,
                                 .fast = true,
                                 .by_rows = true,
                                 .m = mc_tensor_rows(x),
                                 .n = w->rows,
                                 .k = w->columns,
                                 .alpha = mode->scale,
                                 .a = operand_of(&x8),
                                 .b = {w->data, w->columns, MC_FP8_E4M3, w->scale},
                                 .bias = bias,
                                 .c = mc_matrix_of(y)};
        MC_KERNEL(t, op, fp8_gemm, &call);
    }
    byte_rows_free(&x8);
}

/* The second operand of dx: w's bytes without their scales, transposed where products need it. */
static bool bytes_for_dx(mc_tape *t, const mc_matrix8 *w, byte_rows *turned, mc_fp8_gemm_call *call)
{
    call->b = (mc_fp8_matrix){w->data, w->columns, MC_FP8_E4M3, NULL};
    if (!mc_tape_device(t)->fp8_tn) return true;
    if (!byte_rows_new(t, w->columns, w->rows, turned)) return false;
    call->transpose_b = true;
    call->b = operand_of(turned);
    return MC_KERNEL(t, op, fp8_transpose, w->rows, w->columns, w->data,
                     mc_tensor_data(turned->data), mc_tensor_data(turned->inverse));
}

/* dx [+]= scale dy W: the sum is over W's rows, so their scales are dy's factors. */
static void input_gradient_of_bytes(mc_tape *t, const mc_tensor *dy, const mc_matrix8 *w,
                                    const product_mode *mode, bool accumulate, mc_tensor *dx)
{
    byte_rows dy8, turned = {0};
    mc_fp8_gemm_call call = {.by_rows = true,
                             .m = mc_tensor_rows(dy),
                             .n = w->columns,
                             .k = w->rows,
                             .alpha = mode->scale,
                             .beta = accumulate ? 1.0f : 0.0f,
                             .c = mc_matrix_of(dx)};
    if (cast_rows(t, dy, w->scale, mode->margin, &dy8) && bytes_for_dx(t, w, &turned, &call)) {
        call.a = operand_of(&dy8);
        MC_KERNEL(t, op, fp8_gemm, &call);
    }
    byte_rows_free(&turned);
    byte_rows_free(&dy8);
}

/* ---- both ------------------------------------------------------------------------------------ */

typedef struct quantized_state {
    mc_matrix8 w;
    product_mode mode;
} quantized_state;

enum { X, BIAS };

/* dx [+]= scale dy W and dbias, if not NULL, += the column sums of dy; dequantizes W to dy's dtype
 * in scratch memory. */
static void input_gradient(mc_tape *t, const mc_tensor *dy, const mc_matrix8 *w,
                           const product_mode *mode, bool accumulate, mc_tensor *dx, float *dbias)
{
    mc_tensor *whole = mc_scratch_new(t, dy->dtype, MC_SHAPE(w->rows, w->columns));
    if (!whole) return;
    mc_linear_backward_call call = {.rows = mc_tensor_rows(dy),
                                    .in = w->columns,
                                    .out = w->rows,
                                    .alpha = mode->scale,
                                    .beta = accumulate ? 1.0f : 0.0f,
                                    .dy = mc_matrix_of(dy),
                                    .weight = mc_matrix_of(whole),
                                    .dx = mc_matrix_of(dx),
                                    .dbias = dbias};
    if (MC_KERNEL(t, op, dequantize, *w, call.weight))
        MC_KERNEL(t, op, linear_backward_input, &call);
    mc_scratch_free(whole);
}

static void quantized_backward(mc_tape *t, mc_node *node)
{
    const quantized_state *state = node->state;
    const mc_matrix8 *w = &state->w;
    mc_tensor *dy = node->output->gradient, *bias = node->inputs[BIAS];
    bool accumulate = false, bytes = state->mode.bytes;
    float *dbias = mc_vector_gradient_begin(t, bias);
    mc_tensor *dx = mc_gradient_target(t, node->inputs[X], &accumulate);
    if (dx && bytes) input_gradient_of_bytes(t, dy, w, &state->mode, accumulate, dx);
    if (dx && !bytes) input_gradient(t, dy, w, &state->mode, accumulate, dx, dbias);
    if (dbias && (bytes || !dx))
        MC_KERNEL(t, op, column_sums, mc_tensor_rows(dy), w->rows, mc_matrix_of(dy), dbias);
    mc_vector_gradient_end(t, bias, dbias);
}

static const mc_op quantized_op = {.name = op, .backward = quantized_backward};

static mc_tensor *product(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                          mc_activation activation, const product_mode *mode)
{
    mc_shape shape = x->shape;
    shape.dim[shape.ndim - 1] = w->rows;
    mc_tensor *y = mc_tape_tensor(t, x->dtype, shape, x);
    mc_matrix b = bias ? mc_matrix_flat(bias) : (mc_matrix){0};
    if (y && mode->bytes)
        multiply_bytes(t, x, w, b, mode, y);
    else if (y)
        MC_KERNEL(t, op, linear_quantized, mc_tensor_rows(x), mode->scale, mc_matrix_of(x), *w, b,
                  activation, mc_matrix_of(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

/* On a training tape the activation is a separate operation, which keeps what it needs; so a block
 * that runs again computes the same values. */
static mc_tensor *linear(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                         mc_activation activation, product_mode mode)
{
    if (!check(t, x, w, bias)) return NULL;
    bool trains = mc_tape_is_training(t);
    mc_tensor *y = product(t, x, w, bias, trains ? MC_ACTIVATION_NONE : activation, &mode);
    if (!y || !trains) return y;
    mc_node *node =
        mc_tape_record(t, &quantized_op, y, sizeof(quantized_state), 2, (mc_tensor *[]){x, bias});
    if (node) *(quantized_state *)node->state = (quantized_state){*w, mode};
    mc_tensor *active = mc_activate(t, y, activation);
    if (active != y) mc_tape_release(t, y);
    return mc_failed(mc_tape_context(t)) ? NULL : active;
}

mc_tensor *mc_linear_quantized(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                               mc_activation activation, float scale)
{
    return linear(t, x, w, bias, activation, (product_mode){.scale = scale});
}

mc_tensor *mc_linear_quantized_fp8(mc_tape *t, mc_tensor *x, const mc_matrix8 *w, mc_tensor *bias,
                                   mc_activation activation, float scale, int margin)
{
    return linear(t, x, w, bias, activation, (product_mode){scale, true, margin});
}
