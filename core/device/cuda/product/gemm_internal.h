/* Between gemm.c, which makes products, and gemm_tuning.c, which finds the algorithm for each. */
#ifndef MC_DEVICE_CUDA_PRODUCT_GEMM_INTERNAL_H
#define MC_DEVICE_CUDA_PRODUCT_GEMM_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#include "core/device/cuda/runtime/libraries_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

#define MC_GEMM_WORKSPACE ((size_t)64 << 20)

/* All that a plan depends on; compared as bytes, so every byte is set. */
typedef struct mc_gemm_key {
    int64_t m, n, k, lda, ldb, ldc, ldaux; /* of the call as cuBLASLt sees it */
    int32_t transpose_a, transpose_b;
    int32_t in, out; /* cudaDataType_t */
    int32_t epilogue;
    int32_t accumulate;
    int32_t alignment[5]; /* of A, B, C, bias and aux, in bytes, at most 64 */
    int32_t batch;        /* products */
    int64_t step[3];      /* elements from one matrix to the next of A, B and C */
} mc_gemm_key;

/* How an algorithm was found: the library's first proposal, the fastest of some runs, or the
 * fastest at the clocks that the GPU holds under load. */
typedef enum mc_gemm_care { MC_GEMM_FIRST, MC_GEMM_QUICK, MC_GEMM_SUSTAINED } mc_gemm_care;

typedef struct mc_gemm_plan {
    mc_gemm_key key;
    cublasLtMatmulAlgo_t algorithm;
    int32_t usable; /* 0: cuBLASLt has no algorithm for it */
    int32_t care;   /* mc_gemm_care; from MC_GEMM_QUICK on it goes to the file */
} mc_gemm_plan;

/* Which kernels make the products that ours can make (mc_own_product): ours where they are expected
 * to be faster, ours wherever they can, or none of ours. */
typedef enum mc_product_choice {
    MC_PRODUCTS_FASTER,
    MC_PRODUCTS_OWN,
    MC_PRODUCTS_CUBLAS
} mc_product_choice;

struct mc_cuda_gemm {
    mc_cublaslt lt;
    cublasLtHandle_t handle;
    void *workspace;
    mc_gemm_plan *plans;
    size_t count, capacity;
    bool changed;   /* there is something to write to the file */
    bool sustained; /* plans are wanted that were tuned under load */
    mc_product_choice products;
    void *encode_map;     /* cuTensorMapEncodeTiled; NULL: this GPU is not of Hopper's */
    bool few_rows_hopper; /* products of 5 to 64 rows are hopper/linear_few.cu's */
    int clusters[4]; /* of 2^i blocks that run at once (hopper/linear_few.cu); 0: not asked yet */
};

/* One call, as cuBLASLt sees it. */
typedef struct mc_gemm_call {
    mc_gemm_key key;
    const void *a, *b, *bias;
    void *c, *aux;
    float alpha; /* no plan depends on it */
} mc_gemm_call;

typedef struct mc_gemm_descriptors {
    const mc_cublaslt *lt;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
} mc_gemm_descriptors;

/* A status of cuBLASLt as ours; a failure names `what` and the call's shape. */
mc_status mc_gemm_check(mc_device *d, cublasStatus_t status, const mc_gemm_call *c,
                        const char *what);

/* Launches a product whose result goes to `to`. */
cublasStatus_t mc_gemm_run(mc_cuda_device *cuda, const mc_gemm_descriptors *s,
                           const mc_gemm_call *c, void *to, const cublasLtMatmulAlgo_t *algorithm);

/* The care that is asked for and possible now: while a step is recorded and in deterministic mode
 * nothing is timed. */
mc_gemm_care mc_gemm_care_now(const mc_cuda_device *cuda);

/* Finds the algorithm for a call, with that care, and writes it to the plan, whose key is set. */
mc_status mc_gemm_tune(mc_cuda_device *cuda, const mc_gemm_descriptors *s, const mc_gemm_call *c,
                       mc_gemm_plan *plan);

/* A product by a kernel of our own (hopper/gemm.cu), x (rows, terms), y and pre (rows, columns); of
 * a linear with GELU (with tanh or exact), or of any linear's input gradient with its bias's:
 * forward    pre = x weight^T + bias, y = gelu(pre)           weight (columns, terms)
 * backward   y = (x weight) gelu'(pre), sums += y's columns   weight (terms, columns)
 * plain      y = x weight, x_sums += x's columns              weight (terms, columns)
 * Forward, pre may be NULL; backward, sums. Scratch is the workspace. */
typedef enum mc_own_kind { MC_OWN_FORWARD, MC_OWN_BACKWARD, MC_OWN_PLAIN } mc_own_kind;
typedef struct mc_own_product {
    mc_own_kind kind;
    int64_t rows, columns, terms;
    mc_matrix x, weight, bias, pre, y;
    /* What no kernel does: alpha other than 1, y is to be multiplied; beta other than 0, y is to be
     * added to. */
    float alpha, beta;
    mc_activation activation;
    float *sums, *x_sums; /* (columns), (terms) */
} mc_own_product;

/* A linear of 1 to 64 rows in f16 or bf16, any activation and alpha (linear_few.cu): whether it is
 * one for that kernel, and runs it. */
bool mc_few_rows_takes(const mc_own_product *p);
mc_status mc_few_rows_run(mc_device *d, const mc_own_product *p);

#ifdef MC_HAVE_HOPPER /* code for compute capability 9.0a is built */
/* Whether there is a kernel for it on this GPU, for this shape and these places in memory, and one
 * that is expected to be the fastest, or was asked for. */
bool mc_own_product_takes(mc_device *d, const mc_own_product *p);
mc_status mc_own_product_run(mc_device *d, const mc_own_product *p);
#else
static inline bool mc_own_product_takes(mc_device *d, const mc_own_product *p)
{
    return (void)d, (void)p, false;
}
static inline mc_status mc_own_product_run(mc_device *d, const mc_own_product *p)
{
    return (void)d, (void)p, MC_ERR_UNSUPPORTED;
}
#endif

/* linear_backward_input as such a product. With an activation, dbias is left to the caller. */
static inline mc_own_product mc_own_product_backward(const mc_linear_backward_call *c)
{
    mc_matrix none = {NULL, MC_F32, 0};
    bool plain = c->activation == MC_ACTIVATION_NONE;
    mc_own_product p = {plain ? MC_OWN_PLAIN : MC_OWN_BACKWARD,
                        c->rows,
                        c->in,
                        c->out,
                        c->dy,
                        c->weight,
                        none,
                        plain ? none : c->pre,
                        c->dx,
                        c->alpha,
                        c->beta,
                        c->activation,
                        c->sums,
                        plain ? c->dbias : NULL};
    return p;
}

#ifdef __cplusplus
}
#endif
#endif
