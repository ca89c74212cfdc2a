/* The libraries behind sgemm. */
#include "core/device/cpu/cpu_internal.h"

#include <cblas.h>
#ifdef MC_HAVE_ONEDNN
#include <dnnl.h>
#endif

static void sgemm_cblas(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                        float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                        float beta, float *c, int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda,
                b, (int)ldb, beta, c, (int)ldc);
}
const mc_sgemm_fn mc_sgemm_cblas = sgemm_cblas;

#ifdef MC_HAVE_ONEDNN
/* Row-major like ours. It fails only on sizes and strides, which the caller has checked. */
static void sgemm_onednn(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                         float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                         float beta, float *c, int64_t ldc)
{
    dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb,
               beta, c, ldc);
}
const mc_sgemm_fn mc_sgemm_onednn = sgemm_onednn;
#endif
