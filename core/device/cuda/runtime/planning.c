/* Scratch memory of the CUDA device's kernels, for the memory planner. Formulas are not repeated
 * here: the real kernels are called with memory that is only counted, while the stream is
 * capturing, so that nothing runs; the capture is discarded. */
#include "core/device/cuda/attention/attention_internal.h"
#include "core/device/cuda/runtime/cuda_internal.h"
#include "core/device/cuda/product/fp8_internal.h"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/cuda/runtime/planning_internal.h"
#include "core/device/cuda/runtime/routes_internal.h"
#include "core/device/plan_internal.h"

static void *count_alloc(mc_device *d, size_t bytes)
{
    mc_cuda_planning *p = &mc_cuda_of(d)->planning;
    size_t size = (bytes + 255) / 256 * 256 + 256;
    p->in_use += bytes;
    if (p->in_use > p->peak) p->peak = p->in_use;
    p->address += size;
    return (void *)(uintptr_t)(p->address - size); /* never dereferenced */
}

static void count_free(mc_device *d, void *data, size_t bytes)
{
    if (data) mc_cuda_of(d)->planning.in_use -= bytes;
}

static mc_status begin(mc_device *d)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    cudaError_t error = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed);
    if (error) return mc_cuda_check(d, error, "planning");
    cuda->planning = (mc_cuda_planning){
        .alloc = d->alloc, .free = d->free, .address = (uintptr_t)1 << 44, .counts = true};
    d->alloc = count_alloc;
    d->free = count_free;
    d->recording = true;
    return MC_OK;
}

/* Ends the query of `begin`, and allocates the kernel's scratch memory in the plan. */
static mc_status end(mc_device *d, mc_device *plan, mc_status status)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    cudaGraph_t graph = NULL;
    d->alloc = cuda->planning.alloc;
    d->free = cuda->planning.free;
    d->recording = false;
    cuda->planning.counts = false;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    if (error) cudaGetLastError(); /* clears it: it is reported here */
    if (!status) status = mc_cuda_check(d, error, "planning");
    if (status || !cuda->planning.peak) return status;
    return mc_plan_scratch(plan, cuda->planning.peak);
}

#define ASK(plan, kernel, ...)                                       \
    do {                                                             \
        mc_device *real = mc_plan_like(plan);                        \
        mc_status status = begin(real);                              \
        if (status) return status;                                   \
        return end(real, plan, mc_cuda_##kernel(real, __VA_ARGS__)); \
    } while (0)

static mc_status plan_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                  float *out)
{
    ASK(d, column_sums, rows, columns, x, out);
}

/* Only for the sums: products have the workspace, and our own kernels need sums too. */
static mc_status plan_linear_backward_input(mc_device *d, const mc_linear_backward_call *c)
{
    const mc_product p = mc_product_backward(c);
    const mc_route *route = NULL;
    mc_status status = MC_OK;
    if (c->rows && c->in) status = mc_route_choose(mc_plan_like(d), MC_ROUTE_PRODUCT, &p, &route);
    bool ours = route && route->takes; /* cuBLASLt's takes everything */
    if (!status && c->dbias && !(ours && p.kind == MC_PRODUCT_PLAIN))
        status = plan_column_sums(d, c->rows, c->out, c->dy, c->dbias);
    if (status || !c->sums || ours) return status;
    return plan_column_sums(d, c->rows, c->in, c->dx, c->sums);
}

static mc_status plan_sum_leading(mc_device *d, int64_t count, mc_matrix x, int64_t y_count,
                                  mc_matrix y, bool accumulate)
{
    ASK(d, sum_leading, count, x, y_count, y, accumulate);
}

static mc_status plan_residual_norm_backward(mc_device *d, const mc_residual_norm_backward_call *c)
{
    ASK(d, residual_norm_backward, c);
}

static mc_status plan_embedding_backward(mc_device *d, int64_t rows, int64_t columns, mc_matrix dy,
                                         const int32_t *index, float scale, mc_matrix dtable)
{
    ASK(d, embedding_backward, rows, columns, dy, index, scale, dtable);
}

static mc_status plan_attention(mc_device *d, mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                                mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    mc_cuda_attention_prepare(mc_plan_like(d), shape, q, k, v, out, log_sum_exp);
    ASK(d, attention, shape, q, k, v, out, log_sum_exp);
}

static mc_status plan_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                         mc_matrix k, mc_matrix v, mc_matrix out,
                                         const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                         mc_matrix dk, mc_matrix dv)
{
    ASK(d, attention_backward, shape, q, k, v, out, log_sum_exp, dout, dq, dk, dv);
}

static mc_status plan_cross_entropy(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                                    const int32_t *labels, int32_t ignore_index, float smoothing,
                                    const float *seed, float *loss, mc_matrix dx)
{
    ASK(d, cross_entropy, rows, classes, x, labels, ignore_index, smoothing, seed, loss, dx);
}

static mc_status plan_gradient_stats(mc_device *d, int64_t count, mc_matrix gradient, double power,
                                     int64_t first, mc_gradient_stats *stats)
{
    ASK(d, gradient_stats, count, gradient, power, first, stats);
}

static mc_status plan_linear_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                       mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                       mc_matrix y)
{
    const mc_product p = mc_product_quantized(rows, alpha, x, q, bias, activation, y);
    const mc_route *route;
    if (!rows || !q.rows) return MC_OK;
    mc_status status = mc_route_choose(mc_plan_like(d), MC_ROUTE_PRODUCT, &p, &route);
    return status || route->takes ? status : mc_plan_scratch(d, mc_quantized_copy_bytes(&p));
}

static mc_status plan_fp8_cast(mc_device *d, const mc_fp8_cast_call *c)
{
    if (!c->sums || !c->scale || !c->rows || !c->columns) return MC_OK;
    ASK(d, fp8_cast, c);
}

/* With cuBLASLt none besides the workspace; without, both operands in 16 bits, and a result that is
 * cast. */
static mc_status plan_fp8_gemm(mc_device *d, const mc_fp8_gemm_call *c)
{
    bool direct = mc_plan_like(d)->fp8_tn, casts = c->c.dtype == MC_U8;
    size_t bytes = direct ? 0 : (size_t)((c->m + c->n) * c->k) * 2;
    mc_dtype dtype = c->bias.data ? c->bias.dtype : MC_BF16;
    if (!c->m || !c->n) return MC_OK;
    if (casts && !(direct && mc_cuda_fp8_epilogue(c)))
        bytes += (size_t)(c->m * c->n) * mc_dtype_size(dtype);
    return bytes ? mc_plan_scratch(d, bytes) : MC_OK;
}

const mc_kernels mc_cuda_planning_kernels = {
    .fp8_cast = plan_fp8_cast,
    .fp8_gemm = plan_fp8_gemm,
    .linear_quantized = plan_linear_quantized,
    .linear_backward_input = plan_linear_backward_input,
    .column_sums = plan_column_sums,
    .sum_leading = plan_sum_leading,
    .residual_norm_backward = plan_residual_norm_backward,
    .embedding_backward = plan_embedding_backward,
    .attention = plan_attention,
    .attention_backward = plan_attention_backward,
    .cross_entropy = plan_cross_entropy,
    .gradient_stats = plan_gradient_stats,
};
