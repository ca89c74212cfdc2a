/* Products of matrices through cuBLASLt.
 *
 * cuBLASLt is column-major: our row-major C = op(A) op(B) is its C^T = op(B)^T op(A)^T. So its
 * first operand is B and its second is A, both in place.
 *
 * For every kind of product (mc_gemm_key) there is a plan: the algorithm that gemm_tuning.c found
 * the first time, kept in memory and in a file for later runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/hash_internal.h"
#include "core/base/memory_internal.h"
#include "core/device/cuda/product/gemm_internal.h"
#include "core/device/cuda/runtime/routes_internal.h"

/* ---- helpers --------------------------------------------------------------------------------- */

mc_status mc_gemm_check(mc_device *d, cublasStatus_t status, const mc_gemm_call *c,
                        const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) return MC_OK;
    mc_status result = status == CUBLAS_STATUS_ALLOC_FAILED ? MC_ERR_NOMEM : MC_ERR_DEVICE;
    return mc_cuda_fail(d, result, "cuBLASLt: %s of (%lld, %lld, %lld), epilogue %d: %s", what,
                        (long long)c->key.n, (long long)c->key.m, (long long)c->key.k,
                        c->key.epilogue, mc_cuda_of(d)->gemm->lt.GetStatusString(status));
}

static cudaDataType_t type_of(mc_dtype dtype)
{
    return dtype == MC_F32 ? CUDA_R_32F : dtype == MC_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static int32_t alignment_of(const void *data)
{
    uintptr_t bits = (uintptr_t)data | 64; /* device memory has at least this alignment */
    return (int32_t)(bits & -bits);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void descriptors_release(mc_gemm_descriptors *s)
{
    if (s->operation) s->lt->MatmulDescDestroy(s->operation);
    if (s->a) s->lt->MatrixLayoutDestroy(s->a);
    if (s->b) s->lt->MatrixLayoutDestroy(s->b);
    if (s->d && s->d != s->c) s->lt->MatrixLayoutDestroy(s->d);
    if (s->c) s->lt->MatrixLayoutDestroy(s->c);
}

static cublasStatus_t set(const mc_gemm_descriptors *s, cublasLtMatmulDescAttributes_t name,
                          const void *value, size_t size)
{
    return s->lt->MatmulDescSetAttribute(s->operation, name, value, size);
}

/* cuBLASLt 12.9 introduced factors of rows. */
#if CUBLAS_VERSION >= 120900
bool mc_gemm_has_row_scales(mc_device *d) { return mc_cuda_of(d)->gemm->lt.GetVersion() >= 120900; }

static cublasStatus_t scale_rows(const mc_gemm_descriptors *d)
{
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    cublasStatus_t s = set(d, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
    return s ? s : set(d, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
}
#else
bool mc_gemm_has_row_scales(mc_device *d) { return (void)d, false; }

static cublasStatus_t scale_rows(const mc_gemm_descriptors *d)
{
    return (void)d, CUBLAS_STATUS_NOT_SUPPORTED;
}
#endif

/* The type of C and of the bias. */
static int32_t added_type(const mc_gemm_key *k)
{
    return k->out == CUDA_R_8F_E4M3 ? CUDA_R_16BF : k->out;
}

static cublasStatus_t describe_operation(const mc_gemm_descriptors *d, const mc_gemm_call *c)
{
    const mc_gemm_key *k = &c->key;
    int32_t transpose_a = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
            transpose_b = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, added = added_type(k);
    cublasStatus_t s = set(d, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof(int32_t));
    if (!s) s = set(d, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof(int32_t));
    if (!s) s = set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &k->epilogue, sizeof(int32_t));
    if (!s && c->bias) s = set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
    if (!s && c->bias) s = set(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &added, sizeof added);
    if (!s && c->aux) s = set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &c->aux, sizeof c->aux);
    if (!s && c->aux) s = set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldaux, sizeof(int64_t));
    if (s || !c->a_scale) return s;
    const int8_t fast = k->fast != 0;
    s = set(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c->a_scale, sizeof c->a_scale);
    if (!s) s = set(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &c->b_scale, sizeof c->b_scale);
    if (!s && c->d_scale)
        s = set(d, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, &c->d_scale, sizeof c->d_scale);
    if (!s) s = set(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    if (!s && k->by_rows) s = scale_rows(d);
    return s;
}

static cublasStatus_t describe_batch(const mc_gemm_descriptors *s, const mc_gemm_key *k)
{
    const cublasLtMatrixLayout_t all[] = {s->a, s->b, s->c};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; k->batch > 1 && i < 3 && !status; i++) {
        status = s->lt->MatrixLayoutSetAttribute(all[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                 &k->batch, sizeof k->batch);
        if (!status)
            status =
                s->lt->MatrixLayoutSetAttribute(all[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &k->step[i], sizeof k->step[i]);
    }
    return status;
}

static mc_status descriptors_init(mc_device *d, mc_gemm_descriptors *s, const mc_gemm_call *c)
{
    const mc_gemm_key *k = &c->key;
    cudaDataType_t in = (cudaDataType_t)k->in, in_b = (cudaDataType_t)k->in_b,
                   out = (cudaDataType_t)k->out, added = (cudaDataType_t)added_type(k);
    *s = (mc_gemm_descriptors){.lt = &mc_cuda_of(d)->gemm->lt};
    cublasStatus_t status = s->lt->MatmulDescCreate(&s->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = describe_operation(s, c);
    if (!status)
        status = s->lt->MatrixLayoutCreate(&s->a, in, (uint64_t)(k->transpose_a ? k->k : k->m),
                                           (uint64_t)(k->transpose_a ? k->m : k->k), k->lda);
    if (!status)
        status = s->lt->MatrixLayoutCreate(&s->b, in_b, (uint64_t)(k->transpose_b ? k->n : k->k),
                                           (uint64_t)(k->transpose_b ? k->k : k->n), k->ldb);
    if (!status)
        status = s->lt->MatrixLayoutCreate(&s->c, added, (uint64_t)k->m, (uint64_t)k->n, k->ldc);
    s->d = s->c;
    if (!status && out != added)
        status = s->lt->MatrixLayoutCreate(&s->d, out, (uint64_t)k->m, (uint64_t)k->n, k->ldc);
    if (!status) status = describe_batch(s, k);
    return mc_gemm_check(d, status, c, "describing a product");
}

cublasStatus_t mc_gemm_run(mc_cuda_device *cuda, const mc_gemm_descriptors *s,
                           const mc_gemm_call *c, void *to, const cublasLtMatmulAlgo_t *algorithm)
{
    const float beta = c->key.accumulate ? 1 : 0;
    const void *own = s->d == s->c ? to : NULL; /* C in place must be of D's form */
    const void *add = c->add ? c->add : own;
    struct mc_cuda_gemm *g = cuda->gemm;
    return g->lt.Matmul(g->handle, s->operation, &c->alpha, c->a, s->a, c->b, s->b, &beta, add,
                        s->c, to, s->d, algorithm, g->workspace, MC_GEMM_WORKSPACE, cuda->stream);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static mc_gemm_plan *find_plan(struct mc_cuda_gemm *g, const mc_gemm_key *key)
{
    for (size_t i = 0; i < g->count; i++)
        if (memcmp(&g->plans[i].key, key, sizeof *key) == 0) return &g->plans[i];
    return NULL;
}

/* Creates and keeps the plan for a call, or replaces a kept one. */
static mc_status make_plan(mc_cuda_device *cuda, const mc_gemm_descriptors *s,
                           const mc_gemm_call *c, mc_gemm_plan **plan)
{
    struct mc_cuda_gemm *g = cuda->gemm;
    mc_gemm_plan made;
    if (!*plan && !mc_grow(&g->plans, &g->capacity, g->count, sizeof *g->plans))
        return mc_cuda_fail(&cuda->device, MC_ERR_NOMEM, "out of memory for a plan");
    memset(&made, 0, sizeof made);
    made.key = c->key;
    mc_status status = mc_gemm_tune(cuda, s, c, &made);
    if (status) return status;
    if (*plan && made.care == MC_GEMM_FIRST) made.algorithm = (*plan)->algorithm; /* no memory */
    if (!*plan) *plan = &g->plans[g->count++];
    **plan = made;
    g->changed |= made.care != MC_GEMM_FIRST;
    return MC_OK;
}

/* Whether a plan is good enough: false if it should be tuned with more care. */
static bool is_good(const mc_cuda_device *cuda, const mc_gemm_plan *p)
{
    return p->care != MC_GEMM_QUICK || mc_gemm_care_now(cuda) != MC_GEMM_SUSTAINED;
}

/* cuBLASLt proposes algorithms for some products of 8 bits that it then does not run: they have
 * another way. */
static bool refuses(const mc_gemm_call *c, cublasStatus_t status)
{
    return c->a_scale &&
           (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE);
}

static mc_status run_plan(mc_device *d, const mc_gemm_descriptors *s, const mc_gemm_call *c,
                          mc_gemm_plan *p)
{
    cublasStatus_t status = mc_gemm_run(mc_cuda_of(d), s, c, c->c, &p->algorithm);
    if (!refuses(c, status)) return mc_gemm_check(d, status, c, "a product");
    p->usable = 0;
    return MC_ERR_UNSUPPORTED;
}

mc_status mc_gemm_multiply(mc_device *d, const mc_gemm_call *c)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    mc_gemm_descriptors s;
    *d->failure = '\0';
    mc_gemm_plan *p = find_plan(cuda->gemm, &c->key);
    if (p && !p->usable) return MC_ERR_UNSUPPORTED;
    mc_status status = descriptors_init(d, &s, c);
    if (!status && (!p || !is_good(cuda, p))) status = make_plan(cuda, &s, c, &p);
    if (!status && !p->usable) status = MC_ERR_UNSUPPORTED;
    if (!status) status = run_plan(d, &s, c, p);
    descriptors_release(&s);
    return status;
}

/* ---- products of any types ------------------------------------------------------------------- */

mc_gemm_call mc_gemm_call_of(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                             float alpha, mc_matrix a, mc_matrix b, float beta, mc_matrix c)
{
    mc_gemm_call out;
    memset(&out, 0, sizeof out);
    out.a = b.data;
    out.b = a.data;
    out.c = c.data;
    out.alpha = alpha;
    out.key.m = n;
    out.key.n = m;
    out.key.k = k;
    /* strides of single rows are checked, but never used */
    int64_t a_least = transpose_a ? m : k, b_least = transpose_b ? k : n;
    out.key.lda = b.stride > b_least ? b.stride : b_least;
    out.key.ldb = a.stride > a_least ? a.stride : a_least;
    out.key.ldc = c.stride > n ? c.stride : n;
    out.key.transpose_a = transpose_b;
    out.key.transpose_b = transpose_a;
    out.key.in = out.key.in_b = type_of(a.dtype);
    out.key.out = type_of(c.dtype);
    out.key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    out.key.accumulate = beta != 0;
    out.key.batch = 1;
    out.key.alignment[0] = alignment_of(out.a);
    out.key.alignment[1] = alignment_of(out.b);
    out.key.alignment[2] = alignment_of(out.c);
    return out;
}

void mc_gemm_call_bias(mc_gemm_call *c, const void *bias)
{
    c->bias = bias;
    c->key.alignment[3] = alignment_of(bias);
}

static void call_aux(mc_gemm_call *c, mc_matrix aux)
{
    c->aux = aux.data;
    c->key.ldaux = aux.stride > c->key.m ? aux.stride : c->key.m;
    c->key.alignment[4] = alignment_of(aux.data);
}

/* y [+]= x (rows, columns), converting dtypes. */
static mc_status copy_matrix(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, mc_matrix y,
                             bool accumulate)
{
    return mc_cuda_dropout(d, rows, columns, x, false, (mc_dropout_mask){0}, y, accumulate);
}

/* A contiguous copy of x (rows, columns) in another dtype, in scratch memory; rows are padded to
 * whole 16 bytes. */
static mc_status converted(mc_device *d, mc_matrix x, int64_t rows, int64_t columns, mc_dtype dtype,
                           mc_matrix *out, size_t *bytes)
{
    int64_t stride = (columns + 7) / 8 * 8;
    *bytes = (size_t)(rows * stride) * mc_dtype_size(dtype);
    *out = (mc_matrix){d->alloc(d, *bytes), dtype, stride};
    if (!out->data) return MC_ERR_NOMEM;
    return copy_matrix(d, rows, columns, x, *out, false);
}

static bool is_supported(mc_dtype in, mc_dtype out) { return in == out || out == MC_F32; }

/* Operands of two dtypes, or an output that cuBLASLt does not write from them: converts to f32 in
 * scratch memory. */
static mc_status gemm_mixed(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                            int64_t k, float alpha, mc_matrix a, mc_matrix b, float beta,
                            mc_matrix c)
{
    mc_matrix ca = a, cb = b, cc = c;
    size_t a_bytes = 0, b_bytes = 0, c_bytes = 0;
    mc_status status = MC_OK;
    if (a.dtype != MC_F32)
        status = converted(d, a, transpose_a ? k : m, transpose_a ? m : k, MC_F32, &ca, &a_bytes);
    if (!status && b.dtype != MC_F32)
        status = converted(d, b, transpose_b ? n : k, transpose_b ? k : n, MC_F32, &cb, &b_bytes);
    if (!status && c.dtype != MC_F32) {
        c_bytes = (size_t)(m * n) * sizeof(float);
        cc = (mc_matrix){d->alloc(d, c_bytes), MC_F32, n};
        if (!cc.data) status = MC_ERR_NOMEM;
    }
    bool direct = c.dtype == MC_F32;
    if (!status) {
        mc_gemm_call product = mc_gemm_call_of(transpose_a, transpose_b, m, n, k, alpha, ca, cb,
                                               direct ? beta : 0, cc);
        status = mc_gemm_multiply(d, &product);
    }
    if (!status && !direct) status = copy_matrix(d, m, n, cc, c, beta != 0);
    if (ca.data != a.data) d->free(d, ca.data, a_bytes);
    if (cb.data != b.data) d->free(d, cb.data, b_bytes);
    if (!direct) d->free(d, cc.data, c_bytes);
    return status;
}

/* C = 0 (m, n). */
static mc_status clear(mc_device *d, int64_t m, int64_t n, mc_matrix c)
{
    size_t size = mc_dtype_size(c.dtype);
    int64_t stride = c.stride > n ? c.stride : n; /* a single row's is never used */
    cudaError_t error = cudaMemset2DAsync(c.data, (size_t)stride * size, 0, (size_t)n * size,
                                          (size_t)m, mc_cuda_of(d)->stream);
    return mc_cuda_check(d, error, "gemm");
}

mc_status mc_cuda_gemm(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                       int64_t k, float alpha, mc_matrix a, mc_matrix b, float beta, mc_matrix c)
{
    if (m == 0 || n == 0 || (k == 0 && beta != 0)) return MC_OK;
    if (k == 0) return clear(d, m, n, c);
    if (a.dtype != b.dtype || !is_supported(a.dtype, c.dtype))
        return gemm_mixed(d, transpose_a, transpose_b, m, n, k, alpha, a, b, beta, c);
    mc_gemm_call product = mc_gemm_call_of(transpose_a, transpose_b, m, n, k, alpha, a, b, beta, c);
    mc_status status = mc_gemm_multiply(d, &product);
    /* copies operands with unsupported addresses or strides */
    if (status == MC_ERR_UNSUPPORTED && a.dtype != MC_F32)
        status = gemm_mixed(d, transpose_a, transpose_b, m, n, k, alpha, a, b, beta, c);
    return status;
}

static mc_matrix step_matrix(mc_matrix x, int64_t elements)
{
    x.data = (char *)x.data + elements * (int64_t)mc_dtype_size(x.dtype);
    return x;
}

/* The alignment common to a matrix and all matrices at multiples of `step` elements from it. */
static int32_t alignment_of_steps(int32_t first, int64_t step, mc_dtype dtype)
{
    int32_t between = alignment_of((const void *)(uintptr_t)(step * (int64_t)mc_dtype_size(dtype)));
    return first < between ? first : between;
}

static int32_t less_aligned(int32_t a, int32_t b) { return a < b ? a : b; }

/* All products in one call; MC_ERR_UNSUPPORTED if cuBLASLt has none for these operands. */
static mc_status gemm_together(mc_device *d, const mc_batched_gemm_call *c)
{
    if (c->a.dtype != c->b.dtype || !is_supported(c->a.dtype, c->c.dtype) || c->k == 0 ||
        c->batch > INT32_MAX)
        return MC_ERR_UNSUPPORTED;
    mc_gemm_call product = mc_gemm_call_of(c->transpose_a, c->transpose_b, c->m, c->n, c->k,
                                           c->alpha, c->a, c->b, c->add ? 1 : 0, c->c);
    mc_gemm_key *key = &product.key;
    if (c->add) {
        product.add = c->add == c->c.data ? NULL : c->add;
        key->alignment[2] = less_aligned(key->alignment[2], alignment_of(c->add));
    }
    key->batch = (int32_t)c->batch;
    key->step[0] = c->b_step;
    key->step[1] = c->a_step;
    key->step[2] = c->c_step;
    key->alignment[0] = alignment_of_steps(key->alignment[0], c->b_step, c->b.dtype);
    key->alignment[1] = alignment_of_steps(key->alignment[1], c->a_step, c->a.dtype);
    key->alignment[2] = alignment_of_steps(key->alignment[2], c->c_step, c->c.dtype);
    return mc_gemm_multiply(d, &product);
}

/* Product i by itself. */
static mc_status gemm_of_batch(mc_device *d, const mc_batched_gemm_call *c, int64_t i)
{
    const mc_matrix to = step_matrix(c->c, i * c->c_step);
    mc_matrix add = {(void *)(uintptr_t)c->add, c->c.dtype, c->c.stride};
    mc_status status = MC_OK;
    if (c->add && c->add != c->c.data)
        status = copy_matrix(d, c->m, c->n, step_matrix(add, i * c->c_step), to, false);
    if (status) return status;
    return mc_cuda_gemm(d, c->transpose_a, c->transpose_b, c->m, c->n, c->k, c->alpha,
                        step_matrix(c->a, i * c->a_step), step_matrix(c->b, i * c->b_step),
                        c->add ? 1 : 0, to);
}

mc_status mc_cuda_batched_gemm(mc_device *d, const mc_batched_gemm_call *c)
{
    if (c->batch == 0 || c->m == 0 || c->n == 0) return MC_OK;
    mc_status status = gemm_together(d, c);
    if (status != MC_ERR_UNSUPPORTED) return status;
    status = MC_OK;
    for (int64_t i = 0; i < c->batch && !status; i++) status = gemm_of_batch(d, c, i);
    return status;
}

/* ---- linear ---------------------------------------------------------------------------------- */

static bool is_half(mc_dtype dtype) { return dtype != MC_F32; }

/* The epilogue for bias and activation, or DEFAULT if there is none: cuBLASLt's GELU is the one
 * with tanh, and stores the pre-activation with strides of 16 bytes. */
static cublasLtEpilogue_t epilogue_of(const mc_matrix *bias, mc_activation activation,
                                      const mc_matrix *pre, const mc_matrix *y)
{
    bool same = !bias->data || bias->dtype == y->dtype;
    if (!same) return CUBLASLT_EPILOGUE_DEFAULT;
    if (activation == MC_ACTIVATION_NONE)
        return bias->data ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (activation != MC_ACTIVATION_GELU_NEW || !is_half(y->dtype))
        return CUBLASLT_EPILOGUE_DEFAULT;
    if (!pre->data) return bias->data ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    if (pre->dtype != y->dtype || pre->stride % 8 || (uintptr_t)pre->data % 16)
        return CUBLASLT_EPILOGUE_DEFAULT;
    return bias->data ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
}

/* Everything in one product; MC_ERR_UNSUPPORTED if cuBLASLt has no such epilogue. */
static mc_status linear_fused(mc_device *d, const mc_product *p)
{
    cublasLtEpilogue_t epilogue = epilogue_of(&p->bias, p->activation, &p->pre, &p->y);
    bool direct =
        p->x.dtype == p->weight.dtype && is_supported(p->x.dtype, p->y.dtype) && p->terms > 0;
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT || !direct) return MC_ERR_UNSUPPORTED;
    mc_gemm_call product = mc_gemm_call_of(false, true, p->rows, p->columns, p->terms, p->alpha,
                                           p->x, p->weight, 0, p->y);
    product.key.epilogue = (int32_t)epilogue;
    if (p->bias.data) mc_gemm_call_bias(&product, p->bias.data);
    if (p->activation != MC_ACTIVATION_NONE && p->pre.data) call_aux(&product, p->pre);
    return mc_gemm_multiply(d, &product);
}

/* cuBLASLt, with passes after the product for what its epilogue cannot do. */
static mc_status linear_passes(mc_device *d, const mc_product *p)
{
    bool active = p->activation != MC_ACTIVATION_NONE;
    mc_matrix to = active && p->pre.data ? p->pre : p->y;
    mc_status status = linear_fused(d, p);
    if (status == MC_ERR_UNSUPPORTED && active && p->bias.data) {
        /* At least the bias in the product: then the activation reads once and writes once. */
        mc_product biased = *p;
        biased.activation = MC_ACTIVATION_NONE;
        biased.y = to;
        status = linear_fused(d, &biased);
        if (!status) return mc_cuda_activation(d, p->rows, p->columns, p->activation, to, p->y);
    }
    if (status != MC_ERR_UNSUPPORTED) return status;
    status = mc_cuda_gemm(d, false, true, p->rows, p->columns, p->terms, p->alpha, p->x, p->weight,
                          0, to);
    if (!status && (p->bias.data || active))
        status = mc_cuda_bias_activation(d, p->rows, p->columns, to, p->bias, p->activation, p->y);
    return status;
}

/* Only the gradient of the linear's input. */
static mc_status backward_input(mc_device *d, const mc_product *p)
{
    bool fused = p->activation == MC_ACTIVATION_GELU_NEW && is_half(p->y.dtype) && p->terms > 0 &&
                 p->x.dtype == p->weight.dtype && p->x.dtype == p->y.dtype &&
                 p->pre.dtype == p->y.dtype && p->pre.stride % 8 == 0 &&
                 (uintptr_t)p->pre.data % 16 == 0;
    if (fused) {
        mc_gemm_call product = mc_gemm_call_of(false, false, p->rows, p->columns, p->terms,
                                               p->alpha, p->x, p->weight, p->beta, p->y);
        product.key.epilogue = CUBLASLT_EPILOGUE_DGELU;
        call_aux(&product, p->pre);
        mc_status status = mc_gemm_multiply(d, &product);
        if (status != MC_ERR_UNSUPPORTED) return status;
    }
    mc_status status = mc_cuda_gemm(d, false, false, p->rows, p->columns, p->terms, p->alpha, p->x,
                                    p->weight, p->beta, p->y);
    if (!status && p->activation != MC_ACTIVATION_NONE)
        status = mc_cuda_activation_backward(d, p->rows, p->columns, p->activation, p->pre, 1, p->y,
                                             p->y, false);
    return status;
}

/* Any product, by cuBLASLt. */
static mc_status by_cublas(mc_device *d, const void *call)
{
    const mc_product *p = call;
    mc_status status = MC_OK;
    if (p->quantized.data) return mc_quantized_by_copies(d, p);
    if (p->kind == MC_PRODUCT_FORWARD) return linear_passes(d, p);
    if (p->x_sums) status = mc_cuda_column_sums(d, p->rows, p->terms, p->x, p->x_sums);
    if (!status) status = backward_input(d, p);
    return status || !p->sums ? status : mc_cuda_column_sums(d, p->rows, p->columns, p->y, p->sums);
}

/* ---- routes ---------------------------------------------------------------------------------- */

#define INFERENCE "bench/RESULTS.md#inference-on-a-gpu"

static const mc_route routes[] = {
    {"gemv", mc_gemv_takes, mc_gemv, INFERENCE, NULL},
#ifdef MC_HAVE_HOPPER
    {"skinny_hopper", mc_skinny_hopper_takes, mc_skinny_hopper, INFERENCE, NULL},
#endif
    {"skinny", mc_skinny_takes, mc_skinny, INFERENCE, NULL},
#ifdef MC_HAVE_HOPPER
    {"hopper", mc_hopper_product_takes, mc_hopper_product, "bench/RESULTS.md#training-on-one-gpu",
     NULL},
#endif
    {"cublas", NULL, by_cublas, NULL, NULL},
};

static void describe(const void *call, char *text, size_t size)
{
    static const char *const kinds[] = {"", ", its input's gradient", ", its input's gradient"};
    const mc_product *p = call;
    snprintf(text, size, "a linear of %lld rows, weight (%lld, %lld)%s, %s%s", (long long)p->rows,
             (long long)(p->kind ? p->terms : p->columns),
             (long long)(p->kind ? p->columns : p->terms), p->quantized.data ? " in 8 bits" : "",
             mc_dtype_name(p->x.dtype), kinds[p->kind]);
}

const mc_route_list mc_product_routes = {"product", routes, sizeof routes / sizeof *routes,
                                         describe};

static mc_status run(mc_device *d, const mc_product *p)
{
    const mc_route *route;
    mc_status status = mc_route_choose(d, MC_ROUTE_PRODUCT, p, &route);
    return status ? status : route->run(d, p);
}

mc_status mc_cuda_linear(mc_device *d, const mc_linear_call *c)
{
    if (c->rows == 0 || c->out == 0) return MC_OK;
    return run(d, &(mc_product){.rows = c->rows,
                                .columns = c->out,
                                .terms = c->in,
                                .x = c->x,
                                .weight = c->weight,
                                .bias = c->bias,
                                .pre = c->pre,
                                .y = c->y,
                                .alpha = c->alpha,
                                .activation = c->activation});
}

mc_product mc_product_quantized(int64_t rows, float alpha, mc_matrix x, mc_matrix8 q,
                                mc_matrix bias, mc_activation activation, mc_matrix y)
{
    return (mc_product){.rows = rows,
                        .columns = q.rows,
                        .terms = q.columns,
                        .x = x,
                        .bias = bias,
                        .y = y,
                        .quantized = q,
                        .alpha = alpha,
                        .activation = activation};
}

mc_status mc_cuda_linear_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                   mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                   mc_matrix y)
{
    if (!rows || !q.rows) return MC_OK;
    const mc_product p = mc_product_quantized(rows, alpha, x, q, bias, activation, y);
    return run(d, &p);
}

mc_product mc_product_backward(const mc_linear_backward_call *c)
{
    bool plain = c->activation == MC_ACTIVATION_NONE;
    return (mc_product){.kind = plain ? MC_PRODUCT_PLAIN : MC_PRODUCT_BACKWARD,
                        .rows = c->rows,
                        .columns = c->in,
                        .terms = c->out,
                        .x = c->dy,
                        .weight = c->weight,
                        .pre = c->pre,
                        .y = c->dx,
                        .alpha = c->alpha,
                        .beta = c->beta,
                        .activation = c->activation,
                        .sums = c->sums,
                        .x_sums = c->dbias};
}

mc_status mc_cuda_linear_backward_input(mc_device *d, const mc_linear_backward_call *c)
{
    const mc_product p = mc_product_backward(c);
    if (c->rows && c->in) return run(d, &p);
    return c->dbias ? mc_cuda_column_sums(d, c->rows, c->out, c->dy, c->dbias) : MC_OK;
}

/* ---- the file of tuned plans ----------------------------------------------------------------- */

/* The file: a header of this size, then plans as in memory. Only the same library on the same kind
 * of GPU can use it; the header identifies both, and the plans that follow. */
typedef struct file_header {
    char magic[8];
    uint64_t version, plan_size, count, sum;
    char gpu[256];
} file_header;

static bool is_kept(const mc_gemm_plan *p) { return p->care != MC_GEMM_FIRST; }

static file_header header_of(const mc_cuda_device *cuda)
{
    const struct mc_cuda_gemm *g = cuda->gemm;
    file_header h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "mcgemm6", 8);
    h.version = g->lt.GetVersion();
    h.plan_size = sizeof(mc_gemm_plan);
    h.sum = MC_HASH_START;
    memcpy(h.gpu, cuda->gpu, sizeof h.gpu);
    for (size_t i = 0; i < g->count; i++) {
        if (!is_kept(&g->plans[i])) continue;
        h.count++;
        h.sum = mc_hash(h.sum, &g->plans[i], sizeof *g->plans);
    }
    return h;
}

/* A file that is damaged or of another library is ignored. */
static void read_file(mc_cuda_device *cuda)
{
    char path[4096];
    file_header found, expected;
    struct mc_cuda_gemm *g = cuda->gemm;
    if (!mc_cuda_cache_path(&cuda->device, "gemm.plans", path, sizeof path)) return;
    FILE *file = fopen(path, "rb");
    if (!file) return;
    mc_gemm_plan p;
    bool whole = fread(&found, sizeof found, 1, file) == 1 && found.plan_size == sizeof p;
    while (whole && fread(&p, sizeof p, 1, file) == 1 &&
           mc_grow(&g->plans, &g->capacity, g->count, sizeof *g->plans))
        g->plans[g->count++] = p;
    fclose(file);
    expected = header_of(cuda);
    if (!whole || memcmp(&found, &expected, sizeof found) != 0) g->count = 0;
}

static void write_file(mc_cuda_device *cuda)
{
    char path[4096];
    file_header header = header_of(cuda);
    const struct mc_cuda_gemm *g = cuda->gemm;
    mc_error error = {0};
    mc_file_writer writer;
    if (!mc_cuda_cache_path(&cuda->device, "gemm.plans", path, sizeof path)) return;
    if (mc_file_writer_init(&error, &writer, path) == MC_OK) {
        mc_file_write(&writer, &header, sizeof header);
        for (size_t i = 0; i < g->count; i++)
            if (is_kept(&g->plans[i])) mc_file_write(&writer, &g->plans[i], sizeof *g->plans);
        mc_file_sync(&writer);
        mc_file_rename(&writer);
    }
    mc_file_writer_release(&writer);
    mc_error_clear(&error);
}

/* The driver function that our own kernels for Hopper need; NULL on another GPU. */
static void *find_encode_map(const mc_cuda_device *cuda)
{
#ifdef MC_HAVE_HOPPER
    if (cuda->capability == 90) return mc_cuda_driver_function("cuTensorMapEncodeTiled");
#endif
    return (void)cuda, NULL;
}

static mc_status read_environment(mc_device *d, struct mc_cuda_gemm *g)
{
    int tuning;
    mc_status status =
        mc_cuda_choice(d, "MC_TUNING", (const char *const[3]){"quick", "sustained"}, &tuning);
    g->encode_map = find_encode_map(mc_cuda_of(d));
    g->sustained = tuning == 2;
    return status;
}

struct mc_cuda_gemm *mc_cuda_gemm_new(mc_device *d)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    char why[384];
    struct mc_cuda_gemm *g = mc_calloc(1, sizeof *g);
    if (!g) return NULL;
    if (read_environment(d, g)) {
        mc_free(g);
        return NULL;
    }
    bool loaded = mc_cublaslt_load(&g->lt, why, sizeof why);
    cublasStatus_t status = loaded ? g->lt.Create(&g->handle) : CUBLAS_STATUS_SUCCESS;
    if (!loaded)
        mc_cuda_fail(d, MC_ERR_DEVICE, "cuBLASLt: %s", why);
    else if (status)
        mc_cuda_fail(d, MC_ERR_DEVICE, "cuBLASLt: %s", g->lt.GetStatusString(status));
    else if (!mc_cuda_check(d, cudaMalloc(&g->workspace, MC_GEMM_WORKSPACE),
                            "cuBLASLt's workspace")) {
        cuda->gemm = g;
        if (!cuda->deterministic) read_file(cuda);
        return g;
    }
    mc_cuda_gemm_free(d, g);
    return NULL;
}

void mc_cuda_gemm_free(mc_device *d, struct mc_cuda_gemm *g)
{
    if (!g) return;
    if (g->changed) write_file(mc_cuda_of(d));
    if (g->workspace) cudaFree(g->workspace);
    if (g->handle) g->lt.Destroy(g->handle);
    mc_free(g->plans);
    mc_free(g);
}
