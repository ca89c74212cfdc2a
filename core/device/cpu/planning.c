/* Scratch memory of the CPU's kernels, for the memory planner. Formulas are not repeated here: the
 * real kernel is called on a device that records the request and returns no memory. All kernels
 * below request their memory before they access anything, and then return MC_ERR_NOMEM. If a kernel
 * holds scratch memory while it calls another that takes some, its function here adds the two. */
#include "core/device/cpu/cpu_internal.h"
#include "core/device/plan_internal.h"

typedef struct probe {
    mc_cpu_device cpu;
    size_t asked;
} probe;

static void *refuse(mc_device *d, size_t bytes)
{
    ((probe *)d)->asked = bytes;
    return NULL;
}

static probe probe_of(mc_device *plan)
{
    probe p = {.cpu = *(mc_cpu_device *)mc_plan_like(plan)};
    p.cpu.device.alloc = refuse;
    return p;
}

/* Calls a real kernel to find its request, and allocates as much. */
#define ASK(plan, kernel, ...)                                     \
    do {                                                           \
        probe p = probe_of(plan);                                  \
        p.cpu.device.kernels->kernel(&p.cpu.device, __VA_ARGS__);  \
        return p.asked ? mc_plan_scratch((plan), p.asked) : MC_OK; \
    } while (0)

static mc_status plan_gemm(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                           int64_t k, float alpha, mc_matrix a, mc_matrix b, float beta,
                           mc_matrix c)
{
    bool stored = m <= MC_SKINNY_ROWS && !transpose_a && transpose_b;
    bool direct = a.dtype == MC_F32 && (b.dtype == MC_F32 || stored) && c.dtype == MC_F32;
    if (direct || m == 0 || n == 0 || k == 0) return MC_OK;
    ASK(d, gemm, transpose_a, transpose_b, m, n, k, alpha, a, b, beta, c);
}

static mc_status plan_linear(mc_device *d, const mc_linear_call *c)
{
    return plan_gemm(d, false, true, c->rows, c->out, c->in, c->alpha, c->x, c->weight, 0, c->y);
}

static mc_status plan_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                  float *out)
{
    ASK(d, column_sums, rows, columns, x, out);
}

static mc_status plan_linear_backward_input(mc_device *d, const mc_linear_backward_call *c)
{
    mc_status status = c->dbias ? plan_column_sums(d, c->rows, c->out, c->dy, c->dbias) : MC_OK;
    if (!status)
        status = plan_gemm(d, false, false, c->rows, c->in, c->out, c->alpha, c->dy, c->weight,
                           c->beta, c->dx);
    return status || !c->sums ? status : plan_column_sums(d, c->rows, c->in, c->dx, c->sums);
}

static mc_status plan_sum_leading(mc_device *d, int64_t count, mc_matrix x, int64_t y_count,
                                  mc_matrix y, bool accumulate)
{
    ASK(d, sum_leading, count, x, y_count, y, accumulate);
}

static mc_status plan_residual_norm(mc_device *d, const mc_residual_norm_call *c)
{
    ASK(d, residual_norm, c);
}

static mc_status plan_residual_norm_backward(mc_device *d, const mc_residual_norm_backward_call *c)
{
    ASK(d, residual_norm_backward, c);
}

static mc_status plan_residual_sum(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   mc_matrix f, mc_dropout_mask dropout, mc_matrix s)
{
    ASK(d, residual_sum, rows, columns, x, f, dropout, s);
}

/* Removes the tail after the tokens, which kernels would set to zero first. */
static mc_lengths without_tail(const mc_lengths *lengths)
{
    mc_lengths tokens = *lengths;
    tokens.capacity = tokens.total;
    tokens.fixed = NULL;
    return tokens;
}

static mc_status plan_attention(mc_device *d, mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                                mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    mc_lengths queries = without_tail(shape->lengths), keys = without_tail(mc_key_lengths(shape));
    mc_attention_shape asked = *shape;
    asked.lengths = &queries;
    asked.key_lengths = &keys;
    ASK(d, attention, &asked, q, k, v, out, log_sum_exp);
}

static mc_status plan_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                         mc_matrix k, mc_matrix v, mc_matrix out,
                                         const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                         mc_matrix dk, mc_matrix dv)
{
    mc_lengths queries = without_tail(shape->lengths), keys = without_tail(mc_key_lengths(shape));
    mc_attention_shape asked = *shape;
    asked.lengths = &queries;
    asked.key_lengths = &keys;
    ASK(d, attention_backward, &asked, q, k, v, out, log_sum_exp, dout, dq, dk, dv);
}

static mc_status plan_attention_cached(mc_device *d, const mc_cached_attention *shape, mc_matrix q,
                                       mc_matrix k, mc_matrix v, mc_matrix out)
{
    ASK(d, attention_cached, shape, q, k, v, out);
}

static mc_status plan_choose_tokens(mc_device *d, const mc_choose_call *call, mc_matrix logits)
{
    ASK(d, choose_tokens, call, logits);
}

static mc_status plan_best_tokens(mc_device *d, const mc_best_call *call, mc_matrix logits)
{
    ASK(d, best_tokens, call, logits);
}

static mc_status plan_position_bias_backward(mc_device *d, int64_t buckets, int64_t heads,
                                             int64_t distances, const float *dy,
                                             const int32_t *bucket, mc_matrix dtable,
                                             bool accumulate)
{
    ASK(d, position_bias_backward, buckets, heads, distances, dy, bucket, dtable, accumulate);
}

static mc_status plan_rotary(mc_device *d, int64_t rows, mc_rotation rotation,
                             const int32_t *positions, mc_matrix x)
{
    ASK(d, rotary, rows, rotation, positions, x);
}

/* Without the gradient, because its seed would be read. */
static mc_status plan_cross_entropy(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                                    const int32_t *labels, int32_t ignore_index, float smoothing,
                                    const float *seed, float *loss, mc_matrix dx)
{
    (void)dx;
    mc_matrix none = {0};
    ASK(d, cross_entropy, rows, classes, x, labels, ignore_index, smoothing, seed, loss, none);
}

static mc_status plan_gradient_stats(mc_device *d, int64_t count, mc_matrix gradient, double power,
                                     int64_t first, mc_gradient_stats *stats)
{
    ASK(d, gradient_stats, count, gradient, power, first, stats);
}

static mc_status plan_batched_gemm(mc_device *d, const mc_batched_gemm_call *c)
{
    if (!c->batch) return MC_OK;
    return plan_gemm(d, c->transpose_a, c->transpose_b, c->m, c->n, c->k, c->alpha, c->a, c->b,
                     c->add ? 1 : 0, c->c);
}

static mc_status plan_linear_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                       mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                       mc_matrix y)
{
    bool direct = x.dtype == MC_F32 && y.dtype == MC_F32 && rows <= MC_SKINNY_ROWS;
    if (direct || !rows || !q.rows) return MC_OK;
    ASK(d, linear_quantized, rows, alpha, x, q, bias, activation, y);
}

/* The activation's output as f32, and the scratch memory of its sums. */
static mc_status plan_fp8_cast(mc_device *d, const mc_fp8_cast_call *c)
{
    if (mc_fp8_is_plain(c) || !c->rows || !c->columns) return MC_OK;
    if (!c->sums || !c->scale) ASK(d, fp8_cast, c);
    mc_matrix activated = {NULL, MC_F32, c->columns};
    size_t bytes = (size_t)(c->rows * c->columns) * sizeof(float);
    void *scratch = mc_plan_scratch_new(d, bytes);
    if (!scratch) return MC_ERR_NOMEM;
    mc_status status = plan_column_sums(d, c->rows, c->columns, activated, c->sums);
    mc_plan_scratch_free(d, scratch, bytes);
    return status;
}

/* The operands as f32, the result too before it is cast, and the scratch memory of the product. */
static mc_status plan_fp8_gemm(mc_device *d, const mc_fp8_gemm_call *c)
{
    if (c->m == 0 || c->n == 0) return MC_OK;
    mc_matrix a = {NULL, MC_F32, c->transpose_a ? c->m : c->k};
    mc_matrix b = {NULL, MC_F32, c->transpose_b ? c->k : c->n};
    size_t bytes = (size_t)((c->m + c->n) * c->k) * sizeof(float);
    bool to_bytes = c->c.dtype == MC_U8;
    mc_matrix to = to_bytes ? (mc_matrix){NULL, MC_F32, c->n} : c->c;
    if (to_bytes) bytes += (size_t)(c->m * c->n) * sizeof(float);
    void *operands = mc_plan_scratch_new(d, bytes);
    if (!operands) return MC_ERR_NOMEM;
    mc_status status =
        plan_gemm(d, c->transpose_a, c->transpose_b, c->m, c->n, c->k, c->alpha, a, b, c->beta, to);
    mc_plan_scratch_free(d, operands, bytes);
    return status;
}

const mc_kernels mc_cpu_planning = {
    .gemm = plan_gemm,
    .linear = plan_linear,
    .linear_backward_input = plan_linear_backward_input,
    .column_sums = plan_column_sums,
    .sum_leading = plan_sum_leading,
    .residual_norm = plan_residual_norm,
    .residual_norm_backward = plan_residual_norm_backward,
    .residual_sum = plan_residual_sum,
    .attention = plan_attention,
    .attention_backward = plan_attention_backward,
    .attention_cached = plan_attention_cached,
    .choose_tokens = plan_choose_tokens,
    .best_tokens = plan_best_tokens,
    .position_bias_backward = plan_position_bias_backward,
    .rotary = plan_rotary,
    .cross_entropy = plan_cross_entropy,
    .gradient_stats = plan_gradient_stats,
    .batched_gemm = plan_batched_gemm,
    .linear_quantized = plan_linear_quantized,
    .fp8_cast = plan_fp8_cast,
    .fp8_gemm = plan_fp8_gemm,
};
