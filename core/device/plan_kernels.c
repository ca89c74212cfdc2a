/* The kernels of the planning device, which do nothing. A kernel that is added to the table has to
 * be added here. */
#include "core/device/plan_internal.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

static mc_status plan_gemm(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                           int64_t k, mc_matrix a, mc_matrix b, float beta, mc_matrix c)
{
    return MC_OK;
}

static mc_status plan_linear(mc_device *d, int64_t rows, int64_t in, int64_t out, mc_matrix x,
                             mc_matrix weight, mc_matrix bias, mc_activation activation,
                             mc_matrix pre, mc_matrix y)
{
    return MC_OK;
}

static mc_status plan_linear_backward_input(mc_device *d, int64_t rows, int64_t in, int64_t out,
                                            mc_matrix dy, mc_matrix weight, float beta,
                                            mc_activation activation, mc_matrix pre, mc_matrix dx)
{
    return MC_OK;
}

static mc_status plan_bias_activation(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                      mc_matrix bias, mc_activation activation, mc_matrix y)
{
    return MC_OK;
}

static mc_status plan_activation_backward(mc_device *d, int64_t rows, int64_t columns,
                                          mc_activation activation, mc_matrix x, mc_matrix dy,
                                          mc_matrix dx, bool accumulate)
{
    return MC_OK;
}

static mc_status plan_activation(mc_device *d, int64_t rows, int64_t columns,
                                 mc_activation activation, mc_matrix x, mc_matrix y)
{
    return MC_OK;
}

static mc_status plan_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                  float *out)
{
    return MC_OK;
}

static mc_status plan_residual_norm(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                    mc_matrix f, mc_dropout_mask dropout, mc_matrix weight,
                                    mc_matrix bias, float eps, mc_matrix s, mc_matrix y,
                                    float *mean, float *rstd)
{
    return MC_OK;
}

static mc_status plan_residual_norm_backward(mc_device *d, int64_t rows, int64_t columns,
                                             mc_matrix s, mc_matrix weight, const float *mean,
                                             const float *rstd, mc_matrix dy,
                                             mc_dropout_mask dropout, mc_matrix ds, bool accumulate,
                                             mc_matrix df, float *dweight, float *dbias)
{
    return MC_OK;
}

static mc_status plan_dropout(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                              mc_dropout_mask dropout, mc_matrix y, bool accumulate)
{
    return MC_OK;
}

static mc_status plan_embedding(mc_device *d, int64_t rows, int64_t columns, int tables,
                                const mc_matrix *table, const int32_t *const *index, mc_matrix y)
{
    return MC_OK;
}

static mc_status plan_embedding_backward(mc_device *d, int64_t rows, int64_t columns, mc_matrix dy,
                                         const int32_t *index, mc_matrix dtable)
{
    return MC_OK;
}

static mc_status plan_gather_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                  const int32_t *index, mc_matrix y)
{
    return MC_OK;
}

static mc_status plan_attention(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                mc_matrix k, mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    return MC_OK;
}

static mc_status plan_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                         mc_matrix k, mc_matrix v, mc_matrix out,
                                         const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                         mc_matrix dk, mc_matrix dv)
{
    return MC_OK;
}

static mc_status plan_cross_entropy(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                                    const int32_t *labels, int32_t ignore_index, float smoothing,
                                    const float *seed, float *loss, mc_matrix dx)
{
    return MC_OK;
}

static mc_status plan_loss_add(mc_device *d, const float *a, const float *b, float factor, float *y,
                               float *k_out)
{
    return MC_OK;
}

static mc_status plan_argmax(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, int32_t *out)
{
    return MC_OK;
}

static mc_status plan_add(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                          mc_matrix y)
{
    return MC_OK;
}

static mc_status plan_multiply(mc_device *d, int64_t count, mc_matrix a, mc_matrix b,
                               int64_t b_count, mc_matrix y, bool accumulate)
{
    return MC_OK;
}

static mc_status plan_scale(mc_device *d, int64_t count, mc_matrix x, float factor, mc_matrix y,
                            bool accumulate)
{
    return MC_OK;
}

static mc_status plan_sum_leading(mc_device *d, int64_t count, mc_matrix x, int64_t y_count,
                                  mc_matrix y, bool accumulate)
{
    return MC_OK;
}

static mc_status plan_fill(mc_device *d, mc_fill fill, int64_t first, int64_t count, mc_matrix out)
{
    return MC_OK;
}

static mc_status plan_zero(mc_device *d, void *data, size_t bytes) { return MC_OK; }

static mc_status plan_adam(mc_device *d, int64_t count, mc_adam_step step, const float *gradient,
                           float *m, float *v, float *master, void *parameter,
                           mc_dtype parameter_dtype)
{
    return MC_OK;
}

static mc_status plan_sgd(mc_device *d, int64_t count, mc_sgd_step step, const float *gradient,
                          float *buffer, float *master, void *parameter, mc_dtype parameter_dtype)
{
    return MC_OK;
}

static mc_status plan_gradient_stats(mc_device *d, int64_t count, const float *gradient,
                                     double power, int64_t first, mc_gradient_stats *stats)
{
    return MC_OK;
}

static mc_status plan_step_seed(mc_device *d, double nominal, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_count(mc_device *d, const float *loss, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_measure(mc_device *d, mc_step_rules rules, int ranks,
                                   const mc_step_sums *parts, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_decide(mc_device *d, mc_step_rules rules, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_update(mc_device *d, const mc_step_state *state,
                                  const mc_update_guess *guess, mc_update *update)
{
    return MC_OK;
}

static mc_status plan_residual_sum(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   mc_matrix f, mc_dropout_mask dropout, mc_matrix s)
{
    return MC_OK;
}

static mc_status plan_scatter_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   const int32_t *index, mc_matrix y)
{
    return MC_OK;
}

static mc_status plan_attention_cached(mc_device *d, int64_t sequences, int heads, int head_dim,
                                       float scale, int64_t capacity, const int32_t *lengths,
                                       int64_t longest, mc_matrix q, mc_matrix k, mc_matrix v,
                                       mc_matrix out)
{
    return MC_OK;
}

static mc_status plan_tensor_stats(mc_device *d, int64_t count, mc_matrix x, mc_tensor_stats *out)
{
    return MC_OK;
}

const mc_kernels mc_plan_kernels = {
    .gemm = plan_gemm,
    .linear = plan_linear,
    .linear_backward_input = plan_linear_backward_input,
    .bias_activation = plan_bias_activation,
    .activation_backward = plan_activation_backward,
    .activation = plan_activation,
    .column_sums = plan_column_sums,
    .residual_norm = plan_residual_norm,
    .residual_norm_backward = plan_residual_norm_backward,
    .dropout = plan_dropout,
    .embedding = plan_embedding,
    .embedding_backward = plan_embedding_backward,
    .gather_rows = plan_gather_rows,
    .attention = plan_attention,
    .attention_backward = plan_attention_backward,
    .cross_entropy = plan_cross_entropy,
    .loss_add = plan_loss_add,
    .argmax = plan_argmax,
    .add = plan_add,
    .multiply = plan_multiply,
    .scale = plan_scale,
    .sum_leading = plan_sum_leading,
    .fill = plan_fill,
    .zero = plan_zero,
    .adam = plan_adam,
    .sgd = plan_sgd,
    .gradient_stats = plan_gradient_stats,
    .step_seed = plan_step_seed,
    .step_count = plan_step_count,
    .step_measure = plan_step_measure,
    .step_decide = plan_step_decide,
    .step_update = plan_step_update,
    .residual_sum = plan_residual_sum,
    .scatter_rows = plan_scatter_rows,
    .attention_cached = plan_attention_cached,
    .tensor_stats = plan_tensor_stats,
};

_Static_assert(sizeof(mc_kernels) == 36 * sizeof(void (*)(void)), "every kernel is in the table");
