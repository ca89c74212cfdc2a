/* Products of matrices through cuBLASLt.
 *
 * cuBLASLt counts columns first: our row-major C = op(A) op(B) is its C^T = op(B)^T op(A)^T, so it
 * is given B as its first operand and A as its second, both as they lie.
 *
 * For every kind of product (plan_key) cuBLASLt proposes algorithms. The first time, each of them
 * is timed on the operands at hand and the fastest is kept, in memory and in a file for the next
 * start: up to 45 % faster than the first proposal on an H200. In deterministic mode, and while a
 * step is recorded, the first proposal is taken. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"
#include "core/device/cuda/cuda_internal.h"
#include "core/device/cuda/libraries_internal.h"

enum { PROPOSALS = 16, ROUNDS = 2, TIMED_RUNS = 2 };
static const size_t workspace_bytes = (size_t)64 << 20;

/* All that a plan depends on; compared as bytes, so every byte is set. */
typedef struct plan_key {
    int64_t m, n, k, lda, ldb, ldc, ldaux; /* of the call as cuBLASLt sees it */
    int32_t transpose_a, transpose_b;
    int32_t in, out; /* cudaDataType_t */
    int32_t epilogue;
    int32_t accumulate;
    int32_t alignment[5]; /* of A, B, C, bias and aux, in bytes, at most 256 */
    int32_t unused;
} plan_key;

typedef struct plan {
    plan_key key;
    cublasLtMatmulAlgo_t algorithm;
    int32_t usable; /* 0: cuBLASLt has no algorithm for it */
    int32_t timed;  /* the algorithm is the fastest, not just the first: these go to the file */
} plan;

struct mc_cuda_gemm {
    mc_cublaslt lt;
    cublasLtHandle_t handle;
    void *workspace;
    plan *plans;
    size_t count, capacity;
    bool changed; /* there is something to write to the file */
};

/* One call, as cuBLASLt sees it. */
typedef struct call {
    plan_key key;
    const void *a, *b, *bias;
    void *c, *aux;
} call;

/* ---- small things ---------------------------------------------------------------------------- */

static mc_status check(mc_device *d, cublasStatus_t status, const call *c, const char *what)
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
    uintptr_t bits = (uintptr_t)data | 64; /* what memory of the device has in any case */
    return (int32_t)(bits & -bits);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

typedef struct descriptors {
    const mc_cublaslt *lt;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
} descriptors;

static void descriptors_release(descriptors *s)
{
    if (s->operation) s->lt->MatmulDescDestroy(s->operation);
    if (s->a) s->lt->MatrixLayoutDestroy(s->a);
    if (s->b) s->lt->MatrixLayoutDestroy(s->b);
    if (s->c) s->lt->MatrixLayoutDestroy(s->c);
}

static cublasStatus_t set(const descriptors *s, cublasLtMatmulDescAttributes_t name,
                          const void *value, size_t size)
{
    return s->lt->MatmulDescSetAttribute(s->operation, name, value, size);
}

static cublasStatus_t describe_operation(const descriptors *d, const call *c)
{
    const plan_key *k = &c->key;
    int32_t transpose_a = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
            transpose_b = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s = set(d, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof(int32_t));
    if (!s) s = set(d, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof(int32_t));
    if (!s) s = set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &k->epilogue, sizeof(int32_t));
    if (!s && c->bias) s = set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
    if (!s && c->bias) s = set(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &k->out, sizeof(int32_t));
    if (!s && c->aux) s = set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &c->aux, sizeof c->aux);
    if (!s && c->aux) s = set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldaux, sizeof(int64_t));
    return s;
}

static mc_status descriptors_init(mc_device *d, descriptors *s, const call *c)
{
    const plan_key *k = &c->key;
    cudaDataType_t in = (cudaDataType_t)k->in, out = (cudaDataType_t)k->out;
    *s = (descriptors){.lt = &mc_cuda_of(d)->gemm->lt};
    cublasStatus_t status = s->lt->MatmulDescCreate(&s->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status) status = describe_operation(s, c);
    if (!status)
        status = s->lt->MatrixLayoutCreate(&s->a, in, (uint64_t)(k->transpose_a ? k->k : k->m),
                                           (uint64_t)(k->transpose_a ? k->m : k->k), k->lda);
    if (!status)
        status = s->lt->MatrixLayoutCreate(&s->b, in, (uint64_t)(k->transpose_b ? k->n : k->k),
                                           (uint64_t)(k->transpose_b ? k->k : k->n), k->ldb);
    if (!status)
        status = s->lt->MatrixLayoutCreate(&s->c, out, (uint64_t)k->m, (uint64_t)k->n, k->ldc);
    return check(d, status, c, "describing a product");
}

static cublasStatus_t run(mc_cuda_device *cuda, const descriptors *s, const call *c, void *to,
                          const cublasLtMatmulAlgo_t *algorithm)
{
    const float one = 1, beta = c->key.accumulate ? 1 : 0;
    struct mc_cuda_gemm *g = cuda->gemm;
    return g->lt.Matmul(g->handle, s->operation, &one, c->a, s->a, c->b, s->b, &beta, to, s->c, to,
                        s->c, algorithm, g->workspace, workspace_bytes, cuda->stream);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* A wish that is a number of 32 bits. */
static cublasStatus_t wish(const mc_cublaslt *lt, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t name, int32_t number)
{
    uint32_t value = (uint32_t)number;
    return lt->MatmulPreferenceSetAttribute(preference, name, &value, sizeof value);
}

/* What the operands are like; parts of a sum are not to be rounded to 16 bits on the way. */
static cublasStatus_t describe_wishes(const mc_cublaslt *lt, cublasLtMatmulPreference_t p,
                                      const plan_key *k)
{
    const int32_t *alignment = k->alignment;
    cublasStatus_t s = lt->MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        &workspace_bytes, sizeof workspace_bytes);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment[0]);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment[1]);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment[2]);
    if (!s) s = wish(lt, p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment[2]);
    if (!s && k->out != CUDA_R_32F)
        s = wish(lt, p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    return s;
}

/* Asks for proposals; `count` 0: there are none for what C, or an operand, is like. */
static mc_status propose(mc_device *d, const descriptors *s, const call *c,
                         cublasLtMatmulHeuristicResult_t *results, int *count)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t status = s->lt->MatmulPreferenceCreate(&preference);
    if (!status) status = describe_wishes(s->lt, preference, &c->key);
    if (!status)
        status =
            s->lt->MatmulAlgoGetHeuristic(mc_cuda_of(d)->gemm->handle, s->operation, s->a, s->b,
                                          s->c, s->c, preference, PROPOSALS, results, count);
    if (preference) s->lt->MatmulPreferenceDestroy(preference);
    int given = status ? 0 : *count;
    *count = 0;
    for (int i = 0; i < given; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) results[(*count)++] = results[i];
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
        return MC_OK;
    return check(d, status, c, "finding an algorithm");
}

/* Milliseconds of one run of a proposal, the least of a few; infinite if it fails. */
static float time_proposal(mc_cuda_device *cuda, const descriptors *s, const call *c, void *to,
                           const cublasLtMatmulAlgo_t *algorithm, const cudaEvent_t *events)
{
    float least = INFINITY;
    for (int i = 0; i <= TIMED_RUNS; i++) {
        float ms;
        cudaEventRecord(events[0], cuda->stream);
        if (run(cuda, s, c, to, algorithm)) return INFINITY;
        cudaEventRecord(events[1], cuda->stream);
        if (cudaEventSynchronize(events[1]) || cudaEventElapsedTime(&ms, events[0], events[1]))
            return INFINITY;
        if (i && ms < least) least = ms;
    }
    return least;
}

/* The fastest of the proposals, -1 where none could be timed. All are timed twice: while the first
 * of a program run, the GPU's clock still rises. The result goes to scratch memory: C may hold what
 * is to be added to. */
static int fastest(mc_cuda_device *cuda, const descriptors *s, const call *c,
                   const cublasLtMatmulHeuristicResult_t *results, int count)
{
    mc_device *d = &cuda->device;
    size_t bytes = (size_t)(c->key.n * c->key.ldc) * (c->key.out == CUDA_R_32F ? 4 : 2);
    void *to = NULL; /* not of the pool, whose peak is that of training */
    cudaEvent_t events[2] = {NULL, NULL};
    int best = 0;
    float least[PROPOSALS];
    bool good = cudaMalloc(&to, bytes) == cudaSuccess &&
                cudaEventCreate(&events[0]) == cudaSuccess &&
                cudaEventCreate(&events[1]) == cudaSuccess;
    for (int i = 0; i < count; i++) least[i] = INFINITY;
    for (int i = 0; good && i < ROUNDS * count; i++) {
        float ms = time_proposal(cuda, s, c, to, &results[i % count].algo, events);
        if (ms < least[i % count]) least[i % count] = ms;
    }
    for (int i = 1; i < count; i++)
        if (least[i] < least[best]) best = i;
    for (int i = 0; i < 2; i++)
        if (events[i]) cudaEventDestroy(events[i]);
    if (to) cudaFree(to);
    cudaGetLastError(); /* without memory to try them in the first proposal is taken */
    d->waits++;
    return isinf(least[best]) ? -1 : best;
}

static plan *find_plan(struct mc_cuda_gemm *g, const plan_key *key)
{
    for (size_t i = 0; i < g->count; i++)
        if (memcmp(&g->plans[i].key, key, sizeof *key) == 0) return &g->plans[i];
    return NULL;
}

/* Makes and keeps the plan for a call. */
static mc_status make_plan(mc_cuda_device *cuda, const descriptors *s, const call *c, plan **out)
{
    struct mc_cuda_gemm *g = cuda->gemm;
    cublasLtMatmulHeuristicResult_t results[PROPOSALS];
    int count = 0, best = -1;
    if (!mc_grow(&g->plans, &g->capacity, g->count, sizeof *g->plans))
        return mc_cuda_fail(&cuda->device, MC_ERR_NOMEM, "out of memory for a plan");
    mc_status status = propose(&cuda->device, s, c, results, &count);
    if (status) return status;
    if (count > 0 && !cuda->deterministic && !cuda->device.recording)
        best = fastest(cuda, s, c, results, count);
    plan *p = &g->plans[g->count++];
    memset(p, 0, sizeof *p);
    p->key = c->key;
    p->usable = count > 0;
    p->timed = best >= 0;
    if (count > 0) p->algorithm = results[p->timed ? best : 0].algo;
    g->changed |= p->timed;
    *out = p;
    return MC_OK;
}

/* Runs a call; MC_ERR_UNSUPPORTED where cuBLASLt has nothing for it. */
static mc_status multiply(mc_device *d, const call *c)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    descriptors s;
    *d->failure = '\0';
    plan *p = find_plan(cuda->gemm, &c->key);
    if (p && !p->usable) return MC_ERR_UNSUPPORTED;
    mc_status status = descriptors_init(d, &s, c);
    if (!status && !p) status = make_plan(cuda, &s, c, &p);
    if (!status && !p->usable) status = MC_ERR_UNSUPPORTED;
    if (!status) status = check(d, run(cuda, &s, c, c->c, &p->algorithm), c, "a product");
    descriptors_release(&s);
    return status;
}

/* ---- products of any types ------------------------------------------------------------------- */

static call call_of(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                    mc_matrix a, mc_matrix b, float beta, mc_matrix c)
{
    call out;
    memset(&out, 0, sizeof out);
    out.a = b.data;
    out.b = a.data;
    out.c = c.data;
    out.key.m = n;
    out.key.n = m;
    out.key.k = k;
    /* strides of single rows are never used, but checked */
    int64_t a_least = transpose_a ? m : k, b_least = transpose_b ? k : n;
    out.key.lda = b.stride > b_least ? b.stride : b_least;
    out.key.ldb = a.stride > a_least ? a.stride : a_least;
    out.key.ldc = c.stride > n ? c.stride : n;
    out.key.transpose_a = transpose_b;
    out.key.transpose_b = transpose_a;
    out.key.in = type_of(a.dtype);
    out.key.out = type_of(c.dtype);
    out.key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    out.key.accumulate = beta != 0;
    out.key.alignment[0] = alignment_of(out.a);
    out.key.alignment[1] = alignment_of(out.b);
    out.key.alignment[2] = alignment_of(out.c);
    return out;
}

static void call_bias(call *c, const void *bias)
{
    c->bias = bias;
    c->key.alignment[3] = alignment_of(bias);
}

static void call_aux(call *c, mc_matrix aux)
{
    c->aux = aux.data;
    c->key.ldaux = aux.stride > c->key.m ? aux.stride : c->key.m;
    c->key.alignment[4] = alignment_of(aux.data);
}

/* y [+]= x (rows, columns), converting dtypes. */
static mc_status copy_matrix(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, mc_matrix y,
                             bool accumulate)
{
    return mc_cuda_dropout(d, rows, columns, x, (mc_dropout_mask){0}, y, accumulate);
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

/* Operands of two dtypes, or an output that cuBLASLt does not write from them: in f32, by way of
 * scratch memory. */
static mc_status gemm_mixed(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                            int64_t k, mc_matrix a, mc_matrix b, float beta, mc_matrix c)
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
        call product = call_of(transpose_a, transpose_b, m, n, k, ca, cb, direct ? beta : 0, cc);
        status = multiply(d, &product);
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
    cudaError_t error = cudaMemset2DAsync(c.data, (size_t)c.stride * size, 0, (size_t)n * size,
                                          (size_t)m, mc_cuda_of(d)->stream);
    return mc_cuda_check(d, error, "gemm");
}

mc_status mc_cuda_gemm(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                       int64_t k, mc_matrix a, mc_matrix b, float beta, mc_matrix c)
{
    if (m == 0 || n == 0 || (k == 0 && beta != 0)) return MC_OK;
    if (k == 0) return clear(d, m, n, c);
    if (a.dtype != b.dtype || !is_supported(a.dtype, c.dtype))
        return gemm_mixed(d, transpose_a, transpose_b, m, n, k, a, b, beta, c);
    call product = call_of(transpose_a, transpose_b, m, n, k, a, b, beta, c);
    mc_status status = multiply(d, &product);
    /* operands that lie at odd addresses or strides are copied to where they are supported */
    if (status == MC_ERR_UNSUPPORTED && a.dtype != MC_F32)
        status = gemm_mixed(d, transpose_a, transpose_b, m, n, k, a, b, beta, c);
    return status;
}

/* ---- linear ---------------------------------------------------------------------------------- */

static bool is_half(mc_dtype dtype) { return dtype != MC_F32; }

/* The epilogue that does bias and activation, or DEFAULT where there is none: cuBLASLt's GELU is
 * the one with tanh, and keeps the pre-activation in strides of 16 bytes. */
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

/* All in one product; MC_ERR_UNSUPPORTED where cuBLASLt has no such epilogue. */
static mc_status linear_fused(mc_device *d, int64_t rows, int64_t in, int64_t out, mc_matrix x,
                              mc_matrix weight, mc_matrix bias, mc_activation activation,
                              mc_matrix pre, mc_matrix y)
{
    cublasLtEpilogue_t epilogue = epilogue_of(&bias, activation, &pre, &y);
    bool direct = x.dtype == weight.dtype && is_supported(x.dtype, y.dtype) && in > 0;
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT || !direct) return MC_ERR_UNSUPPORTED;
    call product = call_of(false, true, rows, out, in, x, weight, 0, y);
    product.key.epilogue = (int32_t)epilogue;
    if (bias.data) call_bias(&product, bias.data);
    if (activation != MC_ACTIVATION_NONE && pre.data) call_aux(&product, pre);
    return multiply(d, &product);
}

mc_status mc_cuda_linear(mc_device *d, int64_t rows, int64_t in, int64_t out, mc_matrix x,
                         mc_matrix weight, mc_matrix bias, mc_activation activation, mc_matrix pre,
                         mc_matrix y)
{
    mc_matrix to = activation != MC_ACTIVATION_NONE && pre.data ? pre : y, none = {0};
    if (rows == 0 || out == 0) return MC_OK;
    mc_status status = linear_fused(d, rows, in, out, x, weight, bias, activation, pre, y);
    if (status == MC_ERR_UNSUPPORTED && activation != MC_ACTIVATION_NONE && bias.data) {
        /* The bias by the product at least: then the activation reads once and writes once. */
        status = linear_fused(d, rows, in, out, x, weight, bias, MC_ACTIVATION_NONE, none, to);
        if (!status) return mc_cuda_activation(d, rows, out, activation, to, y);
    }
    if (status != MC_ERR_UNSUPPORTED) return status;
    status = mc_cuda_gemm(d, false, true, rows, out, in, x, weight, 0, to);
    if (!status && (bias.data || activation != MC_ACTIVATION_NONE))
        status = mc_cuda_bias_activation(d, rows, out, to, bias, activation, y);
    return status;
}

mc_status mc_cuda_linear_backward_input(mc_device *d, int64_t rows, int64_t in, int64_t out,
                                        mc_matrix dy, mc_matrix weight, float beta,
                                        mc_activation activation, mc_matrix pre, mc_matrix dx)
{
    bool fused = activation == MC_ACTIVATION_GELU_NEW && is_half(dx.dtype) && out > 0 &&
                 dy.dtype == weight.dtype && dy.dtype == dx.dtype && pre.dtype == dx.dtype &&
                 pre.stride % 8 == 0 && (uintptr_t)pre.data % 16 == 0;
    if (rows == 0 || in == 0) return MC_OK;
    if (fused) {
        call product = call_of(false, false, rows, in, out, dy, weight, beta, dx);
        product.key.epilogue = CUBLASLT_EPILOGUE_DGELU;
        call_aux(&product, pre);
        mc_status status = multiply(d, &product);
        if (status != MC_ERR_UNSUPPORTED) return status;
    }
    mc_status status = mc_cuda_gemm(d, false, false, rows, in, out, dy, weight, beta, dx);
    if (!status && activation != MC_ACTIVATION_NONE)
        status = mc_cuda_activation_backward(d, rows, in, activation, pre, dx, dx, false);
    return status;
}

/* ---- what was tuned, on disk ----------------------------------------------------------------- */

/* The file: a header of this size, then plans as they lie in memory. It is of use to the same
 * library on the same kind of GPU only, which the header says. */
typedef struct file_header {
    char magic[8];
    uint64_t version, plan_size;
    char gpu[256];
} file_header;

static file_header header_of(const mc_cuda_device *cuda)
{
    file_header h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "mcgemm2", 8);
    h.version = cuda->gemm->lt.GetVersion();
    h.plan_size = sizeof(plan);
    memcpy(h.gpu, cuda->gpu, sizeof h.gpu);
    return h;
}

/* A file that is damaged or of another library is as good as none. */
static void read_file(mc_cuda_device *cuda)
{
    char path[4096];
    file_header found, expected = header_of(cuda);
    struct mc_cuda_gemm *g = cuda->gemm;
    if (!mc_cuda_cache_path(&cuda->device, "gemm.plans", path, sizeof path)) return;
    FILE *file = fopen(path, "rb");
    if (!file) return;
    plan p;
    if (fread(&found, sizeof found, 1, file) == 1 && memcmp(&found, &expected, sizeof found) == 0)
        while (fread(&p, sizeof p, 1, file) == 1 &&
               mc_grow(&g->plans, &g->capacity, g->count, sizeof *g->plans))
            g->plans[g->count++] = p;
    fclose(file);
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
            if (g->plans[i].timed) mc_file_write(&writer, &g->plans[i], sizeof *g->plans);
        mc_file_sync(&writer);
        mc_file_rename(&writer);
        mc_file_writer_release(&writer);
    }
    mc_error_clear(&error);
}

struct mc_cuda_gemm *mc_cuda_gemm_new(mc_device *d)
{
    mc_cuda_device *cuda = mc_cuda_of(d);
    char why[384];
    struct mc_cuda_gemm *g = mc_calloc(1, sizeof *g);
    if (!g) return NULL;
    bool loaded = mc_cublaslt_load(&g->lt, why, sizeof why);
    cublasStatus_t status = loaded ? g->lt.Create(&g->handle) : CUBLAS_STATUS_SUCCESS;
    if (!loaded)
        mc_cuda_fail(d, MC_ERR_DEVICE, "cuBLASLt: %s", why);
    else if (status)
        mc_cuda_fail(d, MC_ERR_DEVICE, "cuBLASLt: %s", g->lt.GetStatusString(status));
    else if (!mc_cuda_check(d, cudaMalloc(&g->workspace, workspace_bytes),
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
