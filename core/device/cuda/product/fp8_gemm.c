/* Products of matrices of bytes: by cuBLASLt where the GPU has them (mc_device.fp8_tn), else of the
 * same numbers in bf16, which has room for all of them. */
#include "core/device/cuda/product/fp8_internal.h"
#include "core/device/cuda/product/gemm_internal.h"

static int32_t type_of(mc_fp8_format format)
{
    return format == MC_FP8_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

/* Adds a bias to the product. */
static mc_status add_bias(mc_device *d, const mc_fp8_gemm_call *c)
{
    return mc_cuda_bias_activation(d, c->m, c->n, c->c, c->bias, MC_ACTIVATION_NONE, c->c);
}

int32_t mc_cuda_fp8_epilogue(const mc_fp8_gemm_call *c)
{
    bool biased = c->bias.data;
    if (biased && c->c.dtype == MC_U8 && c->bias.dtype != MC_BF16) return 0;
    switch (c->activation) {
    case MC_ACTIVATION_NONE: return biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case MC_ACTIVATION_RELU: return biased ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case MC_ACTIVATION_GELU_NEW:
        return biased ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return 0;
    }
}

/* cuBLASLt's first operand is our second one, as in gemm.c: it is transposed, and ours is not. If
 * a product that is not in 8 bits takes no bias in its epilogue, that is added afterwards. */
static mc_status by_cublas(mc_device *d, const mc_fp8_gemm_call *c)
{
    if (c->by_rows && !mc_gemm_has_row_scales(d)) return MC_ERR_UNSUPPORTED;
    mc_matrix a = {(void *)(uintptr_t)c->a.data, MC_BF16, c->a.stride};
    mc_matrix b = {(void *)(uintptr_t)c->b.data, MC_BF16, c->b.stride};
    mc_gemm_call call =
        mc_gemm_call_of(false, true, c->m, c->n, c->k, c->alpha, a, b, c->beta, c->c);
    call.key.in = type_of(c->b.format);
    call.key.in_b = type_of(c->a.format);
    call.key.fast = c->fast;
    call.key.by_rows = c->by_rows;
    call.a_scale = c->b.inverse;
    call.b_scale = c->a.inverse;
    bool to_bytes = c->c.dtype == MC_U8;
    mc_gemm_call whole = call;
    whole.key.epilogue = mc_cuda_fp8_epilogue(c);
    if (!whole.key.epilogue) return MC_ERR_UNSUPPORTED;
    if (c->bias.data) mc_gemm_call_bias(&whole, c->bias.data);
    if (to_bytes) {
        whole.key.out = CUDA_R_8F_E4M3;
        whole.d_scale = c->scale;
    }
    mc_status status = mc_gemm_multiply(d, &whole);
    if (status != MC_ERR_UNSUPPORTED || to_bytes || !c->bias.data) return status;
    status = mc_gemm_multiply(d, &call);
    return status ? status : add_bias(d, c);
}

static mc_status by_16_bits(mc_device *d, const mc_fp8_gemm_call *c)
{
    bool ta = c->transpose_a, tb = c->transpose_b;
    int64_t a_rows = ta ? c->k : c->m, a_columns = ta ? c->m : c->k;
    int64_t b_rows = tb ? c->n : c->k, b_columns = tb ? c->k : c->n;
    size_t a_bytes = (size_t)(a_rows * a_columns) * 2, b_bytes = (size_t)(b_rows * b_columns) * 2;
    mc_matrix a = {d->alloc(d, a_bytes), MC_BF16, a_columns};
    mc_matrix b = {a.data ? d->alloc(d, b_bytes) : NULL, MC_BF16, b_columns};
    mc_status status = b.data ? MC_OK : MC_ERR_NOMEM;
    if (!status) {
        mc_cuda_fp8_decode(d, &c->a, c->by_rows, a_rows, a_columns, a);
        mc_cuda_fp8_decode(d, &c->b, c->by_rows, b_rows, b_columns, b);
        status = mc_cuda_gemm(d, ta, tb, c->m, c->n, c->k, c->alpha, a, b, c->beta, c->c);
    }
    if (!status && c->bias.data) status = add_bias(d, c);
    d->free(d, b.data, b_bytes);
    d->free(d, a.data, a_bytes);
    return status;
}

/* The product with its bias in scratch memory, then the activation with its cast. */
static mc_status by_cast(mc_device *d, const mc_fp8_gemm_call *c)
{
    mc_fp8_gemm_call wide = *c;
    mc_dtype dtype = c->bias.data ? c->bias.dtype : MC_BF16;
    size_t bytes = (size_t)(c->m * c->n) * mc_dtype_size(dtype);
    if (!bytes) return MC_OK;
    wide.activation = MC_ACTIVATION_NONE;
    wide.c = (mc_matrix){d->alloc(d, bytes), dtype, c->n};
    if (!wide.c.data) return MC_ERR_NOMEM;
    mc_fp8_cast_call cast = {.rows = c->m,
                             .columns = c->n,
                             .x = wide.c,
                             .activation = c->activation,
                             .format = MC_FP8_E4M3,
                             .scale = c->scale,
                             .data = c->c.data};
    mc_status status = mc_cuda_fp8_gemm(d, &wide);
    if (!status) status = mc_cuda_fp8_cast(d, &cast);
    d->free(d, wide.c.data, bytes);
    return status;
}

mc_status mc_cuda_fp8_gemm(mc_device *d, const mc_fp8_gemm_call *c)
{
    bool direct = d->fp8_tn && c->m && c->n && c->k;
    mc_status status = direct ? by_cublas(d, c) : MC_ERR_UNSUPPORTED;
    if (status != MC_ERR_UNSUPPORTED) return status;
    return c->c.dtype == MC_U8 ? by_cast(d, c) : by_16_bits(d, c);
}
