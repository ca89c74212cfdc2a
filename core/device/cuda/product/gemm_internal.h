/* Shared by gemm.c, which computes products, and gemm_tuning.c, which finds algorithms. */
#ifndef MC_DEVICE_CUDA_PRODUCT_GEMM_INTERNAL_H
#define MC_DEVICE_CUDA_PRODUCT_GEMM_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#include "core/device/cuda/runtime/libraries_internal.h"
#ifdef __cplusplus
extern "C" {
#endif

#define MC_GEMM_WORKSPACE ((size_t)64 << 20)

/* Everything that a plan depends on; compared as bytes, so every byte must be set. */
typedef struct mc_gemm_key {
    int64_t m, n, k, lda, ldb, ldc, ldaux; /* of the call as cuBLASLt sees it */
    int32_t transpose_a, transpose_b;
    int32_t in, in_b, out; /* cudaDataType_t of A, B and D; C is bf16 where D has 8 bits */
    int16_t fast;          /* sums of 8-bit operands may have fewer digits */
    int16_t by_rows;       /* 8-bit operands have a factor for each row, not one */
    int32_t epilogue;
    int32_t accumulate;
    int32_t alignment[5]; /* of A, B, C, bias and aux, in bytes, at most 64 */
    int32_t batch;        /* products */
    int64_t step[3];      /* elements from one matrix to the next of A, B and C */
} mc_gemm_key;

/* How an algorithm was found: the library's first proposal, the fastest of some runs, or the
 * fastest at the clock that the GPU sustains under load. */
typedef enum mc_gemm_care { MC_GEMM_FIRST, MC_GEMM_QUICK, MC_GEMM_SUSTAINED } mc_gemm_care;

typedef struct mc_gemm_plan {
    mc_gemm_key key;
    cublasLtMatmulAlgo_t algorithm;
    int32_t usable; /* 0: cuBLASLt has no algorithm for it */
    int32_t care;   /* mc_gemm_care; from MC_GEMM_QUICK on it is saved in the file */
} mc_gemm_plan;

struct mc_cuda_gemm {
    mc_cublaslt lt;
    cublasLtHandle_t handle;
    void *workspace;
    mc_gemm_plan *plans;
    size_t count, capacity;
    bool changed;     /* the file must be written */
    bool sustained;   /* use plans tuned under load */
    void *encode_map; /* cuTensorMapEncodeTiled; NULL: not a Hopper GPU */
    /* clusters of 2^i blocks that run at once (hopper/product/skinny_gemm.cu); 0: unknown yet */
    int clusters[4];
};

/* One call, as cuBLASLt sees it. */
typedef struct mc_gemm_call {
    mc_gemm_key key;
    const void *a, *b, *bias;
    const void *add; /* what is added where it is not C itself, of C's form; else NULL */
    void *c, *aux;
    /* Factors of 8-bit operands, in device memory: one, or one for each row of C that A has and for
     * each column that B has (key.by_rows); NULL of others. */
    const float *a_scale, *b_scale;
    const float *d_scale; /* of a result in 8 bits, which `c` is then; else NULL */
    float alpha;          /* plans do not depend on it */
} mc_gemm_call;

/* C = alpha op(A) op(B) + beta C as a call, with an optional bias in its epilogue. */
mc_gemm_call mc_gemm_call_of(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                             float alpha, mc_matrix a, mc_matrix b, float beta, mc_matrix c);
void mc_gemm_call_bias(mc_gemm_call *call, const void *bias);
/* Runs a call; MC_ERR_UNSUPPORTED if cuBLASLt has no algorithm for it. */
mc_status mc_gemm_multiply(mc_device *d, const mc_gemm_call *call);

/* Whether the loaded cuBLASLt has products with factors of rows; the GPU must have them too. */
bool mc_gemm_has_row_scales(mc_device *d);

typedef struct mc_gemm_descriptors {
    const mc_cublaslt *lt;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c, d; /* d is c unless the result has another type */
} mc_gemm_descriptors;

/* A status of cuBLASLt as ours; a failure names `what` and the call's shape. */
mc_status mc_gemm_check(mc_device *d, cublasStatus_t status, const mc_gemm_call *c,
                        const char *what);

/* Launches a product whose result goes to `to`. */
cublasStatus_t mc_gemm_run(mc_cuda_device *cuda, const mc_gemm_descriptors *s,
                           const mc_gemm_call *c, void *to, const cublasLtMatmulAlgo_t *algorithm);

/* The requested care, as far as possible now: nothing is timed while a step is recorded, or in
 * deterministic mode. */
mc_gemm_care mc_gemm_care_now(const mc_cuda_device *cuda);

/* Finds the algorithm for a call with that care, and stores it in the plan, which has its key. */
mc_status mc_gemm_tune(mc_cuda_device *cuda, const mc_gemm_descriptors *s, const mc_gemm_call *c,
                       mc_gemm_plan *plan);

/* A call for the routes of `product` (routes_internal.h); x (rows, terms), y, pre (rows, columns):
 * forward    pre = alpha x weight^T + bias, y = activation(pre)        weight (columns, terms)
 * backward   y = alpha (x weight) activation'(pre) + beta y,           weight (terms, columns)
 *            sums += y's columns, x_sums += x's columns
 * plain      the same without an activation
 * Forward, pre may be NULL; backward, sums and x_sums. */
typedef enum mc_product_kind {
    MC_PRODUCT_FORWARD,
    MC_PRODUCT_BACKWARD,
    MC_PRODUCT_PLAIN
} mc_product_kind;
typedef struct mc_product {
    mc_product_kind kind;
    int64_t rows, columns, terms;
    mc_matrix x, weight, bias, pre, y;
    mc_matrix8 quantized; /* forward: an 8-bit weight instead of `weight`; NULL data: none */
    float alpha, beta;
    mc_activation activation;
    float *sums, *x_sums; /* (columns), (terms) */
} mc_product;

/* Functions of routes; the calls are mc_product. Forward, up to 64 rows in f16 and bf16, any
 * activation and alpha, weights of 16 or 8 bits: up to 4 rows (gemv.cu); any (skinny_gemm.cu); 5
 * and more by Hopper's matrix instructions, in clusters (hopper/product/skinny_gemm.cu). */
mc_status mc_gemv_takes(mc_device *d, const void *call, bool asked);
mc_status mc_gemv(mc_device *d, const void *call);
mc_status mc_skinny_takes(mc_device *d, const void *call, bool asked);
mc_status mc_skinny(mc_device *d, const void *call);
mc_status mc_skinny_hopper_takes(mc_device *d, const void *call, bool asked);
mc_status mc_skinny_hopper(mc_device *d, const void *call);

/* Products with a bias and either GELU, their input's gradient, and the gradients of any linear's
 * input and bias (hopper/product/gemm.cu). The workspace is the scratch memory. */
mc_status mc_hopper_product_takes(mc_device *d, const void *call, bool asked);
mc_status mc_hopper_product(mc_device *d, const void *call);

/* A forward call of an 8-bit weight through copies of it in the dtype of x (quantized.cu), and the
 * bytes of these copies. */
mc_status mc_quantized_by_copies(mc_device *d, const mc_product *p);
size_t mc_quantized_copy_bytes(const mc_product *p);

/* Convert calls of the kernel table. */
mc_product mc_product_backward(const mc_linear_backward_call *c);
mc_product mc_product_quantized(int64_t rows, float alpha, mc_matrix x, mc_matrix8 q,
                                mc_matrix bias, mc_activation activation, mc_matrix y);

#ifdef __cplusplus
}
#endif
#endif
