/* What every operation says about arguments that don't fit: a message that names the operation,
 * what was found and what was expected; NULL; and a context that works again after
 * mc_clear_error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/ops/ops_internal.h"
#include "tests/optim/optim_test.h"

/* A tensor of zeros on the tape. */
static mc_tensor *zeros(mc_tape *t, mc_dtype dtype, mc_shape shape)
{
    return mc_tape_input(t, dtype, shape, NULL, mc_dtype_is_float(dtype));
}
#define F(...) zeros(t, MC_F32, MC_SHAPE(__VA_ARGS__))
#define H(...) zeros(t, MC_BF16, MC_SHAPE(__VA_ARGS__))
#define I(...) zeros(t, MC_I32, MC_SHAPE(__VA_ARGS__))
#define NO_DTYPE ((mc_dtype)99)

static mc_tensor *released(mc_tape *t, mc_shape shape)
{
    mc_tensor *x = zeros(t, MC_F32, shape);
    mc_tape_release(t, x);
    return x;
}

static mc_tensor *index_of(mc_tape *t, int32_t a, int32_t b)
{
    return mc_tape_input(t, MC_I32, MC_SHAPE(2), (int32_t[]){a, b}, false);
}

/* (4, columns) with the lengths 3 and 1, or 3 and 0. */
static mc_tensor *packed(mc_tape *t, int64_t columns, int second)
{
    mc_tensor *x = zeros(t, MC_F32, MC_SHAPE(3 + second, columns));
    return mc_with_lengths(t, x, mc_tape_lengths(t, (int32_t[]){3, second}, 2, 1));
}

static mc_tensor *embed(mc_tape *t, mc_tensor *a, mc_tensor *b, mc_tensor *ia, mc_tensor *ib)
{
    return mc_embed(t, b ? 2 : 1, (mc_tensor *[]){a, b}, (mc_tensor *[]){ia, ib});
}

static mc_tensor *sdpa(mc_tape *t, mc_tensor *qkv, int heads, float dropout, mc_tensor *mask)
{
    return mc_sdpa(t, qkv,
                   &(mc_sdpa_options){.heads = heads, .dropout = dropout, .key_mask = mask});
}

static mc_tensor *grouped(mc_tape *t, mc_sdpa_options o)
{
    return mc_sdpa(t, packed(t, 12, 1), &o);
}
static const mc_sdpa_options three = {.heads = 2, .key_heads = 1}; /* with q, k and v apart */

static mc_tensor *biased(mc_tape *t, mc_tensor *qkv, mc_tensor *bias)
{
    return mc_sdpa(t, qkv, &(mc_sdpa_options){.heads = 2, .bias = bias});
}

/* (rows, columns) with `count` sequences. */
static mc_tensor *keys(mc_tape *t, mc_dtype dtype, int64_t rows, int64_t columns, int count)
{
    mc_tensor *x = zeros(t, dtype, MC_SHAPE(rows, columns));
    if (x) x->lengths = mc_tape_lengths(t, (int32_t[]){(int32_t)rows, 0, 0}, count, 1);
    return x;
}

static mc_tensor *cross(mc_tape *t, mc_tensor *q, mc_tensor *kv, mc_tensor *mask, mc_tensor *bias)
{
    return mc_sdpa_cross(t, q, kv, &(mc_sdpa_options){.heads = 2, .key_mask = mask, .bias = bias});
}

static mc_tensor *ce(mc_tape *t, mc_tensor *x, mc_tensor *labels, float smoothing)
{
    return mc_cross_entropy(t, x, labels,
                            &(mc_cross_entropy_options){.label_smoothing = smoothing});
}

/* A parameter of zeros. */
static mc_tensor *leaf(mc_tape *t, mc_dtype dtype, mc_shape shape)
{
    static _Alignas(64) float data[256], gradient[256];
    return mc_tape_leaf(t, dtype, shape, data, gradient);
}
/* A cross-entropy with class weights. */
static mc_tensor *weighted(mc_tape *t, mc_tensor *x, mc_tensor *labels, mc_tensor *weights)
{
    return mc_cross_entropy(t, x, labels, &(mc_cross_entropy_options){.class_weights = weights});
}

static mc_tensor *concat(mc_tape *t, mc_tensor *a, mc_tensor *b, int dim)
{
    return mc_concat(t, 2, (mc_tensor *[]){a, b}, dim);
}

static mc_status write_nothing(void *user, const mc_custom_call *call)
{
    (void)user, (void)call;
    return MC_OK;
}

static mc_status refuse(void *user, const mc_custom_call *call)
{
    (void)user, (void)call;
    return MC_ERR_UNSUPPORTED;
}

static mc_status say_why(void *user, const mc_custom_call *call)
{
    (void)user;
    return mc_set_error(call->ctx, MC_ERR_FORMAT, "what the program says");
}

static mc_tensor *custom(mc_tape *t, mc_custom_op_spec spec, int count, mc_tensor *x,
                         mc_dtype dtype)
{
    mc_tensor *xs[MC_CUSTOM_INPUTS + 1] = {x, x, x, x, x, x, x, x};
    return mc_custom_op(t, &spec, NULL, count, xs, dtype, MC_SHAPE(3));
}
#define SPEC(...) ((mc_custom_op_spec){__VA_ARGS__})

#define C(...) mc_tape_input(t, MC_F32, MC_SHAPE(__VA_ARGS__), NULL, false)
#define P(...) leaf(t, MC_F32, MC_SHAPE(__VA_ARGS__))

typedef struct wrong {
    const char *call;
    mc_tensor *(*run)(mc_tape *t);
    mc_status status;
    const char *words[4]; /* in the message */
} wrong;

/* One wrong call a line: its number, the call, the status, the words. */
#define WRONG_CALLS(X)                                                                             \
    X(1, mc_fused_linear(t, F(3, 4), F(5, 6), NULL, 0), SHAPE, "linear", "(3, 4)", "(5, 6)")       \
    X(2, mc_fused_linear(t, F(3, 4), F(5, 4), F(4), 0), SHAPE, "linear", "bias", "(4)", "(5)")     \
    X(3, mc_fused_linear(t, F(3, 4), H(5, 4), NULL, 0), DTYPE, "linear", "bf16", "f32")            \
    X(4, mc_fused_linear(t, F(3, 4), F(5, 4), H(5), 0), DTYPE, "linear", "bias", "bf16", "f32")    \
    X(5, mc_fused_linear(t, I(3, 4), F(5, 4), NULL, 0), DTYPE, "linear", "i32")                    \
    X(6, mc_fused_linear(t, NULL, F(5, 4), NULL, 0), ARGUMENT, "linear", "NULL")                   \
    X(7, mc_fused_linear(t, F(3, 4), NULL, NULL, 0), ARGUMENT, "linear", "NULL")                   \
    X(8, mc_fused_linear(t, F(3, 4), F(20), NULL, 0), SHAPE, "linear", "(20)", "(out, in)")        \
    X(9, mc_fused_linear(t, released(t, MC_SHAPE(3, 4)), F(5, 4), NULL, 0), STATE, "linear",       \
      "(3, 4)", "released")                                                                        \
    X(10, mc_fused_linear(t, F(3, 4), F(5, 4), released(t, MC_SHAPE(5)), 0), STATE, "linear",      \
      "(5)", "released")                                                                           \
    X(11, mc_residual_norm(t, F(3, 4), NULL, 0, F(5), F(4), 1e-5f), SHAPE, "residual norm",        \
      "weight", "(5)", "(4)")                                                                      \
    X(12, mc_residual_norm(t, F(3, 4), NULL, 0, F(4), F(3), 1e-5f), SHAPE, "residual norm",        \
      "bias", "(3)", "(4)")                                                                        \
    X(13, mc_residual_norm(t, F(3, 4), F(4, 3), 0, F(4), F(4), 1e-5f), SHAPE, "residual norm",     \
      "(4, 3)", "(3, 4)")                                                                          \
    X(14, mc_residual_norm(t, F(3, 4), H(3, 4), 0, F(4), F(4), 1e-5f), DTYPE, "residual norm",     \
      "bf16", "f32")                                                                               \
    X(15, mc_residual_norm(t, I(3, 4), NULL, 0, F(4), F(4), 1e-5f), DTYPE, "residual norm", "i32") \
    X(16, mc_residual_norm(t, F(3, 4), NULL, 0, I(4), F(4), 1e-5f), DTYPE, "residual norm", "i32") \
    X(17, mc_residual_norm(t, F(3, 4), NULL, 0, F(4), F(4), 0), ARGUMENT, "residual norm", "eps")  \
    X(18, mc_residual_norm(t, F(3, 4), F(3, 4), 1, F(4), F(4), 1e-5f), ARGUMENT, "residual norm",  \
      "dropout 1")                                                                                 \
    X(19, mc_residual_norm(t, F(3, 4), NULL, 0, NULL, F(4), 1e-5f), ARGUMENT, "residual norm",     \
      "NULL")                                                                                      \
    X(20, mc_residual_norm(t, F(3, 4), released(t, MC_SHAPE(3, 4)), 0, F(4), F(4), 1e-5f), STATE,  \
      "residual norm", "released")                                                                 \
    X(21, mc_dropout(t, F(3), 1), ARGUMENT, "dropout", "1", "0 <= p < 1")                          \
    X(22, mc_dropout(t, F(3), -0.1f), ARGUMENT, "dropout", "-0.1")                                 \
    X(23, mc_dropout(t, F(3), NAN), ARGUMENT, "dropout", "nan")                                    \
    X(24, mc_dropout(t, I(3), 0.5f), DTYPE, "dropout", "i32")                                      \
    X(25, embed(t, F(5, 4), NULL, index_of(t, 1, 5), NULL), ARGUMENT, "embed", "index[1] = 5",     \
      "0 to 4")                                                                                    \
    X(26, embed(t, F(5, 4), NULL, index_of(t, -1, 0), NULL), ARGUMENT, "embed", "index[0] = -1")   \
    X(27, embed(t, F(5, 4), F(5, 3), I(2), I(2)), SHAPE, "embed", "(5, 3)", "(5, 4)")              \
    X(28, embed(t, F(5, 4), H(5, 4), I(2), I(2)), DTYPE, "embed", "bf16", "f32")                   \
    X(29, embed(t, F(5, 4), F(6, 4), I(2), I(3)), SHAPE, "embed", "second index", "(3)", "2")      \
    X(30, embed(t, F(5, 4), NULL, F(2), NULL), DTYPE, "embed", "f32", "i32 or i64")                \
    X(31, embed(t, I(5, 4), NULL, I(2), NULL), DTYPE, "embed", "i32")                              \
    X(32, mc_embed(t, 5, NULL, NULL), ARGUMENT, "embed", "5 tables", "1 to 4")                     \
    X(33, mc_embed(t, 0, NULL, NULL), ARGUMENT, "embed", "0 tables")                               \
    X(34, embed(t, F(5), NULL, I(2), NULL), SHAPE, "embed", "(5)")                                 \
    X(35, sdpa(t, packed(t, 12, 1), 5, 0, NULL), SHAPE, "attention", "(4, 12)", "5 heads")         \
    X(36, sdpa(t, packed(t, 12, 1), 0, 0, NULL), SHAPE, "attention", "(4, 12)", "0 heads")         \
    X(37, sdpa(t, F(4, 12), 2, 0, NULL), ARGUMENT, "attention", "(4, 12)", "lengths")              \
    X(38, sdpa(t, packed(t, 12, 1), 2, 1, NULL), ARGUMENT, "attention", "dropout 1")               \
    X(39, sdpa(t, packed(t, 12, 1), 2, 0, F(4)), DTYPE, "attention", "mask", "f32", "u8 or bool")  \
    X(40, sdpa(t, packed(t, 12, 1), 2, 0, zeros(t, MC_U8, MC_SHAPE(5))), SHAPE, "attention",       \
      "mask", "(5)", "(4)")                                                                        \
    X(41, mc_sdpa(t, packed(t, 12, 1), NULL), ARGUMENT, "attention", "NULL", "heads")              \
    X(42, ce(t, F(2, 3), index_of(t, 0, 3), 0), ARGUMENT, "cross entropy", "label[1] = 3",         \
      "0 to 2")                                                                                    \
    X(43, ce(t, F(2, 3), index_of(t, -7, 0), 0), ARGUMENT, "cross entropy", "label[0] = -7")       \
    X(44, ce(t, F(2, 3), I(3), 0), SHAPE, "cross entropy", "(3)", "2")                             \
    X(45, ce(t, F(2, 3), F(2), 0), DTYPE, "cross entropy", "label", "f32")                         \
    X(46, ce(t, F(2, 3), I(2), 1), ARGUMENT, "cross entropy", "smoothing 1")                       \
    X(47, ce(t, I(2, 3), I(2), 0), DTYPE, "cross entropy", "i32")                                  \
    X(48, ce(t, F(2, 3), NULL, 0), ARGUMENT, "cross entropy", "NULL")                              \
    X(49, mc_linear_cross_entropy(t, F(2, 3), P(5, 4), NULL, 0, I(2), NULL), SHAPE,                \
      "linear cross entropy", "(5, 4)", "(5, 3)")                                                  \
    X(50, mc_linear_cross_entropy(t, F(2, 3), P(5, 3), NULL, 6, I(2), NULL), ARGUMENT,             \
      "linear cross entropy", "6 classes", "5 rows")                                               \
    X(51, mc_linear_cross_entropy(t, F(2, 3), P(5, 3), P(4), 0, I(2), NULL), SHAPE,                \
      "linear cross entropy", "bias", "(4)", "(5)")                                                \
    X(52, mc_linear_cross_entropy(t, F(2, 3), F(5, 3), NULL, 0, I(2), NULL), ARGUMENT,             \
      "linear cross entropy", "parameters")                                                        \
    X(53, mc_linear_cross_entropy(t, H(2, 3), P(5, 3), NULL, 0, I(2), NULL), DTYPE,                \
      "linear cross entropy", "f32", "bf16")                                                       \
    X(54, mc_linear_cross_entropy(t, F(2, 3), P(5, 3), NULL, 4, index_of(t, 0, 4), NULL),          \
      ARGUMENT, "linear cross entropy", "label[1] = 4", "0 to 3")                                  \
    X(55, mc_loss_add(t, F(3), F(2), 1), SHAPE, "loss add", "(3)", "(2)")                          \
    X(56, mc_loss_add(t, F(2), H(2), 1), DTYPE, "loss add", "bf16", "f32")                         \
    X(57, mc_loss_add(t, F(2), NULL, 1), ARGUMENT, "loss add", "NULL")                             \
    X(58, mc_add(t, F(3, 4), F(3)), SHAPE, "add", "(3, 4)", "(3)")                                 \
    X(59, mc_add(t, F(3, 4), H(3, 4)), DTYPE, "add", "bf16", "f32")                                \
    X(60, mc_add(t, F(3, 4), NULL), ARGUMENT, "add", "NULL")                                       \
    X(61, mc_mul(t, F(3, 4), F(4, 3)), SHAPE, "mul", "(3, 4)", "(4, 3)")                           \
    X(62, mc_mul(t, I(3, 4), I(3, 4)), DTYPE, "mul", "i32")                                        \
    X(63, mc_scale(t, I(3), 2), DTYPE, "scale", "i32")                                             \
    X(64, mc_scale(t, NULL, 2), ARGUMENT, "scale", "NULL")                                         \
    X(65, mc_gelu(t, I(3)), DTYPE, "activation", "i32")                                            \
    X(66, mc_relu(t, NULL), ARGUMENT, "activation", "NULL")                                        \
    X(67, mc_reshape(t, F(3, 4), MC_SHAPE(5, 2)), SHAPE, "reshape", "(3, 4)", "(5, 2)")            \
    X(68, mc_reshape(t, F(3, 4), MC_SHAPE(-3, -4)), SHAPE, "reshape", "(3, 4)", "(-3, -4)")        \
    X(69, mc_gather_rows(t, F(3, 4), (int32_t[]){0, 3}, 2), ARGUMENT, "gather", "index[1] = 3",    \
      "0 to 2")                                                                                    \
    X(70, mc_gather_rows(t, F(3, 4), NULL, 2), ARGUMENT, "gather", "NULL")                         \
    X(71, mc_gather_rows(t, F(3, 4), (int32_t[]){0}, -1), ARGUMENT, "gather", "-1")                \
    X(72, mc_first_tokens(t, F(3, 4)), ARGUMENT, "first tokens", "(3, 4)", "lengths")              \
    X(73, mc_first_tokens(t, packed(t, 4, 0)), ARGUMENT, "first tokens", "sequence 1", "empty")    \
    X(74, mc_unpack(t, F(3, 4)), ARGUMENT, "unpack", "(3, 4)", "lengths")                          \
    X(75, mc_argmax(t, F(3, 0)), SHAPE, "argmax", "(3, 0)")                                        \
    X(76, mc_argmax(t, I(3, 2)), DTYPE, "argmax", "i32")                                           \
    X(77, mc_tape_input(t, MC_F32, MC_SHAPE(-1), NULL, false), SHAPE, "f32", "(-1)")               \
    X(78, mc_tape_input(t, MC_I32, MC_SHAPE(2), NULL, true), DTYPE, "i32", "gradient")             \
    X(79, biased(t, packed(t, 12, 1), F(2, 3, 2)), SHAPE, "attention", "bias (2, 3, 2)",           \
      "(2, 3, 3)")                                                                                 \
    X(80, biased(t, packed(t, 12, 1), F(3, 3, 3)), SHAPE, "attention", "bias (3, 3, 3)",           \
      "(2, 3, 3)")                                                                                 \
    X(81, biased(t, packed(t, 12, 1), F(6, 3)), SHAPE, "attention", "bias (6, 3)", "(2, 3, 3)")    \
    X(82, biased(t, packed(t, 12, 1), H(2, 3, 3)), DTYPE, "attention", "bias", "bf16", "f32")      \
    X(83, biased(t, packed(t, 12, 1), released(t, MC_SHAPE(2, 3, 3))), STATE, "attention",         \
      "released")                                                                                  \
    X(84, cross(t, packed(t, 4, 1), keys(t, MC_F32, 5, 8, 3), NULL, NULL), SHAPE, "attention",     \
      "kv has 3 sequences", "q's 2")                                                               \
    X(85, cross(t, packed(t, 4, 1), keys(t, MC_F32, 5, 12, 2), NULL, NULL), SHAPE, "attention",    \
      "kv (5, 12)", "q (4, 4)", "8 columns")                                                       \
    X(86, cross(t, packed(t, 4, 1), keys(t, MC_F32, 5, 6, 2), NULL, NULL), SHAPE, "attention",     \
      "kv (5, 6)", "8 columns")                                                                    \
    X(87, cross(t, packed(t, 3, 1), keys(t, MC_F32, 5, 8, 2), NULL, NULL), SHAPE, "attention",     \
      "q (4, 3)", "2 * head_dim")                                                                  \
    X(88, cross(t, packed(t, 4, 1), F(5, 8), NULL, NULL), ARGUMENT, "attention", "kv (5, 8)",      \
      "lengths")                                                                                   \
    X(89, cross(t, F(5, 4), keys(t, MC_F32, 5, 8, 2), NULL, NULL), ARGUMENT, "attention",          \
      "q (5, 4)", "lengths")                                                                       \
    X(90, cross(t, packed(t, 4, 1), keys(t, MC_BF16, 5, 8, 2), NULL, NULL), DTYPE, "attention",    \
      "kv", "bf16", "f32")                                                                         \
    X(91, cross(t, packed(t, 4, 1), NULL, NULL, NULL), ARGUMENT, "attention", "NULL")              \
    X(92, cross(t, NULL, keys(t, MC_F32, 5, 8, 2), NULL, NULL), ARGUMENT, "attention", "NULL")     \
    X(93, mc_sdpa_cross(t, packed(t, 4, 1), keys(t, MC_F32, 5, 8, 2), NULL), ARGUMENT,             \
      "attention", "NULL", "heads")                                                                \
    X(94, cross(t, packed(t, 4, 1), keys(t, MC_F32, 5, 8, 2), zeros(t, MC_U8, MC_SHAPE(4)), NULL), \
      SHAPE, "attention", "mask (4)", "(5)")                                                       \
    X(95, cross(t, packed(t, 4, 1), keys(t, MC_F32, 5, 8, 2), NULL, F(2, 3, 3)), SHAPE,            \
      "attention", "bias (2, 3, 3)", "(2, 3, 5)")                                                  \
    X(96, mc_with_lengths(t, F(3, 4), NULL), ARGUMENT, "with lengths", "NULL")                     \
    X(97, mc_with_lengths(t, F(3, 4), mc_tape_lengths(t, (int32_t[]){3, 1}, 2, 1)), SHAPE,         \
      "with lengths", "(3, 4)", "(4, ...)")                                                        \
    X(98, mc_embed(t, 1, NULL, &(mc_tensor *){I(2)}), ARGUMENT, "embed", "NULL")                   \
    X(99, mc_embed(t, 1, &(mc_tensor *){F(5, 4)}, NULL), ARGUMENT, "embed", "NULL")                \
    X(100, mc_stream_norm(t, F(3, 4), F(4), F(4), 1e-5f, NULL), ARGUMENT, "residual norm",         \
      "the sum", "NULL")                                                                           \
    X(101, mc_fused_linear(t, F(3, 4), F(5, 4), NULL, (mc_activation)9), ARGUMENT, "linear",       \
      "activation 9")                                                                              \
    X(102, mc_linear_cross_entropy(t, F(2, 3), P(5, 3), released(t, MC_SHAPE(5)), 0, I(2), NULL),  \
      STATE, "linear cross entropy", "(5)", "released")                                            \
    X(103,                                                                                         \
      mc_linear_cross_entropy(t, F(2, 3), P(5, 3), mc_residual_defer(t, C(5), C(5), 0), 0, I(2),   \
                              NULL),                                                               \
      STATE, "linear cross entropy", "mc_residual_sum")                                            \
    X(104, mc_tensor_from(mc_tape_context(t), MC_F32, MC_SHAPE(3), NULL), ARGUMENT, "(3)", "NULL") \
    X(105, mc_tensor_new(mc_tape_context(t), MC_F32, (mc_shape){.ndim = 7}), SHAPE, "7 sizes")     \
    X(106, mc_tape_input(t, MC_F32, (mc_shape){.ndim = -2}, NULL, false), SHAPE, "-2 sizes")       \
    X(107, mc_slice(t, F(3, 4), 2, 0, 1), ARGUMENT, "slice", "dimension 2", "(3, 4)", "-2 to 1")   \
    X(108, mc_slice(t, F(3, 4), -1, 2, 3), ARGUMENT, "slice", "3 elements from 2", "dimension 1",  \
      "4")                                                                                         \
    X(109, mc_slice(t, F(3, 4), 0, -1, 1), ARGUMENT, "slice", "from -1")                           \
    X(110, mc_slice(t, F(3, 4), 0, 1, -1), ARGUMENT, "slice", "-1 elements")                       \
    X(111, mc_slice(t, I(3, 4), 0, 1, 1), DTYPE, "slice", "i32")                                   \
    X(112, mc_slice(t, F(3), 0, INT64_MAX, INT64_MAX), ARGUMENT, "slice", "(3)")                   \
    X(113, concat(t, F(3, 4), F(3, 5), 0), SHAPE, "concat", "(3, 5)", "(3, 4)")                    \
    X(114, concat(t, F(3, 4), F(3), 1), SHAPE, "concat", "(3)", "(3, 4)")                          \
    X(115, concat(t, F(3, 4), H(3, 4), 1), DTYPE, "concat", "bf16", "f32")                         \
    X(116, concat(t, F(3, 4), F(3, 4), -3), ARGUMENT, "concat", "dimension -3")                    \
    X(117, concat(t, F(3, 4), NULL, 0), ARGUMENT, "concat", "NULL")                                \
    X(118, mc_concat(t, 0, NULL, 0), ARGUMENT, "concat", "0 tensors")                              \
    X(119, mc_concat(t, 2, NULL, 0), ARGUMENT, "concat", "NULL")                                   \
    X(120, mc_transpose(t, F(3, 4), 0, 2), ARGUMENT, "transpose", "dimension 2", "(3, 4)")         \
    X(121, mc_transpose(t, I(3, 4), 0, 1), DTYPE, "transpose", "i32")                              \
    X(122, mc_matmul(t, F(3, 4), F(3, 4), false, false), SHAPE, "matmul", "(3, 4)", "(..., k, n)") \
    X(123, mc_matmul(t, F(2, 3, 4), F(5, 4, 2), false, false), SHAPE, "matmul", "(2, 3, 4)",       \
      "(5, 4, 2)")                                                                                 \
    X(124, mc_matmul(t, F(2, 3, 4), F(1, 2, 4, 2), false, false), SHAPE, "matmul", "(1, 2, 4, 2)") \
    X(125, mc_matmul(t, F(4), F(4, 2), false, false), SHAPE, "matmul", "a (4)")                    \
    X(126, mc_matmul(t, F(3, 4), F(4, 2), true, true), SHAPE, "matmul", "(3, 4) transposed",       \
      "(4, 2) transposed")                                                                         \
    X(127, mc_matmul(t, F(3, 4), H(4, 3), false, false), DTYPE, "matmul", "bf16", "f32")           \
    X(128, mc_softmax(t, F(3, 0)), SHAPE, "softmax", "(3, 0)", "no columns")                       \
    X(129, mc_log_softmax(t, I(3, 2)), DTYPE, "log softmax", "i32")                                \
    X(130, mc_normalize_rows(t, F(3, 2), -1), ARGUMENT, "normalize", "eps -1")                     \
    X(131, mc_normalize_rows(t, F(3, 2), NAN), ARGUMENT, "normalize", "eps nan")                   \
    X(132, mc_sum(t, F(3, 4), -3), ARGUMENT, "sum", "dimension -3")                                \
    X(133, mc_mean(t, I(3, 4), 0), DTYPE, "mean", "i32")                                           \
    X(134, mc_mean_pool(t, F(3, 4)), ARGUMENT, "mean pool", "(3, 4)", "lengths")                   \
    X(135, mc_sub(t, F(3, 4), F(3)), SHAPE, "sub", "(3, 4)", "(3)")                                \
    X(136, mc_div(t, F(3, 4), H(4)), DTYPE, "div", "bf16", "f32")                                  \
    X(137, mc_div(t, F(3, 4), NULL), ARGUMENT, "div", "NULL")                                      \
    X(138, mc_exp(t, I(3)), DTYPE, "exp", "i32")                                                   \
    X(139, mc_ln(t, NULL), ARGUMENT, "ln", "NULL")                                                 \
    X(140, mc_mse_loss(t, F(3, 4), F(4)), SHAPE, "mse loss", "targets", "(4)", "(3, 4)")           \
    X(141, mc_mse_loss(t, F(3), I(3)), DTYPE, "mse loss", "targets", "i32")                        \
    X(142, mc_bce_loss(t, F(3, 4), F(3, 4), NULL), UNSUPPORTED, "bce loss", "targets (3, 4)",      \
      "gradient")                                                                                  \
    X(143, mc_bce_loss(t, F(3, 4), C(3, 4), C(3)), SHAPE, "bce loss", "positive", "(3)", "(4)")    \
    X(144, mc_bce_loss(t, F(3, 4), C(3, 4), F(4)), UNSUPPORTED, "bce loss", "positive",            \
      "gradient")                                                                                  \
    X(145, weighted(t, F(2, 3), I(2), C(2)), SHAPE, "cross entropy", "class weights", "(2)",       \
      "(3)")                                                                                       \
    X(146, weighted(t, F(2, 3), I(2), F(3)), UNSUPPORTED, "cross entropy", "class weights",        \
      "gradient")                                                                                  \
    X(147, weighted(t, F(2, 3), I(2), I(3)), DTYPE, "cross entropy", "class weights", "i32")       \
    X(148, weighted(t, F(2, 3), index_of(t, 0, 3), C(3)), ARGUMENT, "cross entropy",               \
      "label[1] = 3")                                                                              \
    X(149,                                                                                         \
      mc_linear_cross_entropy(t, F(2, 3), P(5, 3), NULL, 0, I(2),                                  \
                              &(mc_cross_entropy_options){.class_weights = C(5)}),                 \
      UNSUPPORTED, "linear cross entropy", "class weights", "mc_cross_entropy")                    \
    X(150, mc_cross_entropy_rows(t, F(2, 3), I(3), NULL), SHAPE, "cross entropy", "label", "(3)")  \
    X(151, mc_loss_from_rows(t, I(3), NULL), DTYPE, "loss from rows", "i32")                       \
    X(152, mc_loss_from_rows(t, F(3), C(4)), SHAPE, "loss from rows", "counts", "(4)", "(3)")      \
    X(153, mc_loss_from_rows(t, F(3), F(3)), UNSUPPORTED, "loss from rows", "counts", "gradient")  \
    X(154, mc_loss_from_rows(t, F(3), I(3)), DTYPE, "loss from rows", "counts", "i32")             \
    X(155, mc_custom_op(t, NULL, NULL, 1, NULL, MC_F32, MC_SHAPE(3)), ARGUMENT, "custom",          \
      "spec is NULL")                                                                              \
    X(156, custom(t, SPEC("mine"), 1, F(3), MC_F32), ARGUMENT, "custom", "forward")                \
    X(157, custom(t, SPEC(NULL, write_nothing), 1, F(3), MC_F32), ARGUMENT, "custom", "name")      \
    X(158, custom(t, SPEC("mine", write_nothing), 0, F(3), MC_F32), ARGUMENT, "\"mine\"",          \
      "0 inputs", "1 to 7")                                                                        \
    X(159, custom(t, SPEC("mine", write_nothing), 8, F(3), MC_F32), ARGUMENT, "\"mine\"",          \
      "8 inputs", "1 to 7")                                                                        \
    X(160, custom(t, SPEC("mine", write_nothing), 2, NULL, MC_F32), ARGUMENT, "mine", "NULL")      \
    X(161, custom(t, SPEC("mine", write_nothing), 1, released(t, MC_SHAPE(3)), MC_F32), STATE,     \
      "mine", "released")                                                                          \
    X(162, custom(t, SPEC("mine", write_nothing, write_nothing), 1, F(3), MC_I32), DTYPE,          \
      "\"mine\"", "i32", "backward")                                                               \
    X(163, custom(t, SPEC("mine", refuse), 1, F(3), MC_F32), UNSUPPORTED, "\"mine\"", "forward")   \
    X(164, custom(t, SPEC("mine", say_why), 1, F(3), MC_F32), FORMAT, "what the program says")     \
    X(165, custom(t, SPEC("mine", write_nothing, .recompute = true), 1, F(3), MC_F32), ARGUMENT,   \
      "\"mine\"", "recompute", "unread_output")                                                    \
    X(166, mc_scaled_linear(t, F(3, 4), F(5, 4), NULL, 0, NAN), ARGUMENT, "linear", "scale nan")   \
    X(167, mc_embed_scaled(t, 1, &(mc_tensor *){F(5, 4)}, &(mc_tensor *){I(2)}, INFINITY),         \
      ARGUMENT, "embed", "scale inf")                                                              \
    X(168, mc_cross_entropy(t, F(2, 3), I(2), &(mc_cross_entropy_options){.logit_scale = 2}),      \
      ARGUMENT, "cross entropy", "logit scale 2", "mc_linear_cross_entropy")                       \
    X(169,                                                                                         \
      mc_linear_cross_entropy(t, F(2, 3), P(5, 3), NULL, 0, I(2),                                  \
                              &(mc_cross_entropy_options){.logit_scale = NAN}),                    \
      ARGUMENT, "linear cross entropy", "logit scale nan")                                         \
    X(170, mc_residual_norm(t, F(3, 4), NULL, 0, F(5), NULL, 1e-5f), SHAPE, "residual norm",       \
      "weight", "(5)", "(4)")                                                                      \
    X(171, mc_gated(t, F(3, 5), MC_ACTIVATION_SILU), SHAPE, "gated activation", "(3, 5)", "2 n")   \
    X(172, mc_gated(t, F(3, 4), (mc_activation)6), ARGUMENT, "gated activation", "activation 6")   \
    X(173, mc_gated(t, I(3, 4), MC_ACTIVATION_RELU), DTYPE, "gated activation", "i32")             \
    X(174, mc_gated(t, released(t, MC_SHAPE(3, 4)), MC_ACTIVATION_RELU), STATE,                    \
      "gated activation", "released")                                                              \
    X(175, mc_relu_dropout(t, F(3), 1), ARGUMENT, "relu dropout", "1", "0 <= p < 1")               \
    X(176, mc_relu_dropout(t, I(3), 0.5f), DTYPE, "relu dropout", "i32")                           \
    X(177, mc_loss_add_ratio(t, F(2), F(2), F(1)), SHAPE, "loss add", "ratio", "(1)", "(2)")       \
    X(178, grouped(t, (mc_sdpa_options){.heads = 4, .key_heads = 3}), ARGUMENT, "attention",       \
      "3 key heads", "4 heads")                                                                    \
    X(179, grouped(t, (mc_sdpa_options){.heads = 4, .key_heads = -2}), ARGUMENT, "attention",      \
      "-2 key heads", "4 heads")                                                                   \
    X(180, grouped(t, (mc_sdpa_options){.heads = 2, .key_heads = 1, .value_dim = 5}), SHAPE,       \
      "attention", "(4, 12)", "3 * head_dim")                                                      \
    X(181, grouped(t, (mc_sdpa_options){.heads = 2, .value_dim = 6}), SHAPE, "attention",          \
      "(4, 12)", "4 * head_dim")                                                                   \
    X(182, grouped(t, (mc_sdpa_options){.heads = 2, .value_dim = -1}), ARGUMENT, "attention",      \
      "value_dim -1")                                                                              \
    X(183, grouped(t, (mc_sdpa_options){.heads = 2, .window_left = -1}), ARGUMENT, "attention",    \
      "window of -1 and 0")                                                                        \
    X(184, mc_sdpa_separate(t, packed(t, 8, 1), packed(t, 4, 1), F(4, 6), &three), SHAPE,          \
      "attention", "v (4, 6)", "4 columns")                                                        \
    X(185, mc_sdpa_separate(t, packed(t, 8, 1), packed(t, 4, 1), F(3, 4), &three), SHAPE,          \
      "attention", "v (3, 4)", "k (4, 4)", "rows")                                                 \
    X(186, mc_sdpa_separate(t, packed(t, 8, 1), F(4, 4), F(4, 4), &three), ARGUMENT, "attention",  \
      "k (4, 4)", "lengths")                                                                       \
    X(187, mc_sdpa_separate(t, packed(t, 8, 1), packed(t, 4, 1), NULL, &three), ARGUMENT,          \
      "attention", "NULL")                                                                         \
    X(188, grouped(t, (mc_sdpa_options){.heads = 2, .globals = zeros(t, MC_I32, MC_SHAPE(3))}),    \
      SHAPE, "attention", "globals (3)", "4 tokens")                                               \
    X(189, grouped(t, (mc_sdpa_options){.heads = 2, .globals = F(4)}), DTYPE, "attention",         \
      "globals", "i32")                                                                            \
    X(190, mc_tape_input(t, NO_DTYPE, MC_SHAPE(2), NULL, false), DTYPE, "tensor (2)",              \
      "99 is no dtype")                                                                            \
    X(191, mc_tape_input(t, NO_DTYPE, MC_SHAPE(2), NULL, true), DTYPE, "99 is no dtype")           \
    X(192, mc_tape_input(t, MC_DTYPE_DEFAULT, MC_SHAPE(2), NULL, false), DTYPE, "0 is no dtype")   \
    X(193, mc_tensor_new(mc_tape_context(t), NO_DTYPE, MC_SHAPE(2)), DTYPE, "tensor (2)",          \
      "99 is no dtype")                                                                            \
    X(194, mc_tensor_new(mc_tape_context(t), MC_F32, MC_SHAPE(-2)), SHAPE, "f32", "(-2)")          \
    X(195, custom(t, SPEC("mine", write_nothing), 1, F(3), NO_DTYPE), DTYPE, "99 is no dtype")     \
    X(196, mc_with_lengths(t, F(4), mc_tape_lengths(t, (int32_t[]){3, 1}, 2, -3)), ARGUMENT,       \
      "lengths of 2 sequences", "round_to is -3", "expected 1 or more, or 0 for 1")

#define WRONG_FUNCTION(number, call, ...) \
    static mc_tensor *wrong_##number(mc_tape *t) { return call; }
WRONG_CALLS(WRONG_FUNCTION)

#define WRONG_ROW(number, call, status, ...) \
    {#call, wrong_##number, MC_ERR_##status, {__VA_ARGS__}},
static const wrong wrongs[] = {WRONG_CALLS(WRONG_ROW)};

static void check_wrong(mc_context *ctx, mc_tape *t, const wrong *w)
{
    mc_tensor *y = w->run(t);
    if (y || mc_error_status(ctx) != w->status)
        fail_msg("%s: gives %s, \"%s\"", w->call, y ? "a tensor" : "NULL", mc_error_message(ctx));
    for (int i = 0; i < 4 && w->words[i]; i++)
        if (!strstr(mc_error_message(ctx), w->words[i]))
            fail_msg("%s: no \"%s\" in \"%s\"", w->call, w->words[i], mc_error_message(ctx));
    assert_null(mc_gelu(t, F(2))); /* nothing happens while an error is set */
    mc_clear_error(ctx);
    mc_tensor *good = mc_gelu(t, F(2));
    assert_non_null(good);
    assert_int_equal(mc_tape_backward(t, good, F(2)), MC_OK);
}

static void test_messages(void **state)
{
    mc_context *ctx = *state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        mc_tape *t = mc_tape_begin(ctx);
        check_wrong(ctx, t, &wrongs[i]);
        mc_tape_end(t);
        assert_int_equal(ctx->device->memory.in_use, 0);
    }
}

/* Every op is harmless on a NULL tape and on a failed context, where all arguments may be NULL. */
static void call_all(mc_tape *t)
{
    assert_null(mc_fused_linear(t, NULL, NULL, NULL, 0));
    assert_null(mc_residual_norm(t, NULL, NULL, 0, NULL, NULL, 1e-5f));
    assert_null(mc_dropout(t, NULL, 0.1f));
    assert_null(mc_embed(t, 1, (mc_tensor *[]){NULL}, (mc_tensor *[]){NULL}));
    assert_null(mc_sdpa(t, NULL, &(mc_sdpa_options){.heads = 1}));
    assert_null(mc_sdpa_cross(t, NULL, NULL, &(mc_sdpa_options){.heads = 1}));
    assert_null(mc_cross_entropy(t, NULL, NULL, NULL));
    assert_null(mc_linear_cross_entropy(t, NULL, NULL, NULL, 0, NULL, NULL));
    assert_null(mc_loss_add(t, NULL, NULL, 1));
    assert_null(mc_loss_add_ratio(t, NULL, NULL, NULL));
    assert_null(mc_add(t, NULL, NULL));
    assert_null(mc_mul(t, NULL, NULL));
    assert_null(mc_scale(t, NULL, 1));
    assert_null(mc_gelu(t, NULL));
    assert_null(mc_gelu_new(t, NULL));
    assert_null(mc_relu(t, NULL));
    assert_null(mc_tanh(t, NULL));
    assert_null(mc_silu(t, NULL));
    assert_null(mc_gated(t, NULL, MC_ACTIVATION_SILU));
    assert_null(mc_scaled_linear(t, NULL, NULL, NULL, 0, 2));
    assert_null(mc_embed_scaled(t, 1, NULL, NULL, 2));
    assert_null(mc_reshape(t, NULL, MC_SHAPE(1)));
    assert_null(mc_gather_rows(t, NULL, NULL, 0));
    assert_null(mc_with_lengths(t, NULL, NULL));
    assert_null(mc_first_tokens(t, NULL));
    assert_null(mc_unpack(t, NULL));
    assert_null(mc_argmax(t, NULL));
    assert_null(mc_slice(t, NULL, 0, 0, 0));
    assert_null(mc_concat(t, 0, NULL, 0));
    assert_null(mc_transpose(t, NULL, 0, 0));
    assert_null(mc_matmul(t, NULL, NULL, false, false));
    assert_null(mc_softmax(t, NULL));
    assert_null(mc_log_softmax(t, NULL));
    assert_null(mc_normalize_rows(t, NULL, -1));
    assert_null(mc_sum(t, NULL, 0));
    assert_null(mc_mean(t, NULL, 0));
    assert_null(mc_mean_pool(t, NULL));
    assert_null(mc_max_pool(t, NULL));
    assert_null(mc_sub(t, NULL, NULL));
    assert_null(mc_div(t, NULL, NULL));
    assert_null(mc_exp(t, NULL));
    assert_null(mc_ln(t, NULL));
    assert_null(mc_sqrt(t, NULL));
    assert_null(mc_sigmoid(t, NULL));
    assert_null(mc_mse_loss(t, NULL, NULL));
    assert_null(mc_bce_loss(t, NULL, NULL, NULL));
    assert_null(mc_cross_entropy_rows(t, NULL, NULL, NULL));
    assert_null(mc_loss_from_rows(t, NULL, NULL));
    assert_null(mc_custom_op(t, NULL, NULL, 0, NULL, MC_F32, MC_SHAPE(1)));
    assert_null(mc_tape_input(t, MC_F32, MC_SHAPE(1), NULL, false));
    assert_null(mc_tape_lengths(t, NULL, 0, 1));
}

/* The error of a NULL tape is its inputs', and names the operation. */
static void test_null_tape(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *x = F(2);
    assert_null(mc_gelu(NULL, x));
    assert_error(ctx, MC_ERR_ARGUMENT, "activation: its tape is NULL");
    assert_null(mc_concat(NULL, 1, &x, 0));
    assert_error(ctx, MC_ERR_ARGUMENT, "concat: its tape is NULL");
    assert_int_equal(mc_tape_backward(NULL, x, NULL), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "backward: its tape is NULL");
    mc_tape_end(t);
}

static void test_nothing_happens(void **state)
{
    mc_context *ctx = *state;
    call_all(NULL);
    assert_good(ctx);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor_new(ctx, MC_F32, MC_SHAPE(-1));
    char message[256];
    snprintf(message, sizeof message, "%s", mc_error_message(ctx));
    call_all(t);
    assert_string_equal(mc_error_message(ctx), message); /* the first error stays */
    assert_true(isnan(mc_mean_loss(ctx, NULL)));
    assert_null(mc_tape_begin(ctx));
    mc_clear_error(ctx);
    mc_tape_end(t);
}

/* What does not belong to the context it is used on. */
static void test_another_context(void **state)
{
    mc_context *ctx = *state, *other = mc_init_distributed(NULL);
    mc_tape *t = mc_tape_begin(ctx), *there = mc_tape_begin(other);
    mc_tensor *x = mc_tape_input(t, MC_F32, MC_SHAPE(2, 2), NULL, true);
    mc_tensor *foreign = mc_tape_input(there, MC_F32, MC_SHAPE(2, 2), NULL, false);
    assert_null(mc_fused_linear(t, x, foreign, NULL, MC_ACTIVATION_NONE));
    assert_error(ctx, MC_ERR_ARGUMENT, "linear", "(2, 2)", "another context");
    assert_int_equal(mc_tape_backward(t, x, foreign), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "backward", "another context");
    mc_tensor *mine = mc_tensor_new(ctx, MC_F32, MC_SHAPE(2, 2));
    mc_tensor_copy(mine, foreign);
    assert_error(ctx, MC_ERR_ARGUMENT, "(2, 2)", "another context");
    float values[4] = {1, 2, 3, 4};
    mc_tensor_read_f32(ctx, foreign, values, 4);
    assert_error(ctx, MC_ERR_ARGUMENT, "(2, 2)", "another context");
    assert_true(isnan(values[0]) && isnan(values[3]));
    assert_good(other);
    mc_tape_end(t);
    mc_context_free(other);
}

/* Reading and writing. */
static void test_host_memory(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    float values[4] = {1, 2, 3, 4};
    mc_tensor *x = mc_tensor_from(ctx, MC_F32, MC_SHAPE(4), values);
    mc_tensor_write(x, NULL, sizeof values);
    assert_error(ctx, MC_ERR_ARGUMENT, "(4)", "NULL");
    mc_tensor_write(mc_tape_input(t, MC_F32, MC_SHAPE(4), NULL, false), values, sizeof values);
    assert_error(ctx, MC_ERR_ARGUMENT, "(4)", "tape", "mc_tensor_new");
    mc_tensor_write(mc_residual_defer(t, x, x, 0), values, sizeof values);
    assert_error(ctx, MC_ERR_ARGUMENT, "(4)", "tape");
    mc_tensor_read_f32(ctx, x, NULL, 4);
    assert_error(ctx, MC_ERR_ARGUMENT, "(4)", "NULL");
    mc_tensor_read_f32(ctx, x, values, 4);
    assert_true(values[0] == 1 && values[3] == 4);
    assert_int_equal(mc_step_run(ctx, 1, NULL, NULL), MC_ERR_ARGUMENT);
    assert_error(ctx, MC_ERR_ARGUMENT, "mc_step_run", "NULL");
    mc_tape_end(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_messages, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_null_tape, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_nothing_happens, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_another_context, set_up_context, tear_down_context),
        cmocka_unit_test_setup_teardown(test_host_memory, set_up_context, tear_down_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
