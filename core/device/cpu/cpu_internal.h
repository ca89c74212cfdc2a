/* The CPU device: a caching pool over host memory, GEMM through a library, and kernels compiled for
 * several instruction sets, of which the best that the processor has is chosen when a context is
 * made. The environment variable MC_CPU_ISA=scalar|avx2|avx512 forces one (an error where the
 * processor lacks it); MC_GEMM=cblas|onednn forces the library behind sgemm. */
#ifndef MC_DEVICE_CPU_INTERNAL_H
#define MC_DEVICE_CPU_INTERNAL_H

#include "core/device/cpu/threads_internal.h"
#include "core/device/device_internal.h"

mc_device *mc_cpu_open(mc_context *ctx);

/* The CPU's part in mc_device: bytes that the process could still have, and what its kernels take.
 */
uint64_t mc_cpu_free_memory(mc_device *d);
extern const mc_kernels mc_cpu_planning;

/* The kernel tables, one for each instruction set this build has. */
extern const mc_kernels mc_cpu_kernels_scalar;
#ifdef MC_HAVE_X86_ISA
extern const mc_kernels mc_cpu_kernels_avx2;   /* AVX2 + FMA + F16C */
extern const mc_kernels mc_cpu_kernels_avx512; /* AVX-512 F, BW, DQ, VL */
#endif

/* C = op(A) op(B) + beta C in f32 through the library; thread-safe. Called inside an OpenMP
 * parallel region it runs on the calling thread alone. */
typedef void (*mc_sgemm_fn)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                            float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                            float beta, float *c, int64_t ldc);
extern const mc_sgemm_fn mc_sgemm_cblas;
#ifdef MC_HAVE_ONEDNN
extern const mc_sgemm_fn mc_sgemm_onednn;
#endif

/* Up to so many rows are multiplied by a weight (n, k) as it is stored, without scratch memory. */
enum { MC_SOME_ROWS = 256 };

typedef struct mc_cpu_device {
    mc_device device;
    mc_sgemm_fn sgemm;
    struct mc_pool *pool;
    mc_threads *threads;
    const char *isa, *gemm; /* the names of what was chosen, as in the variables above */
} mc_cpu_device;

#endif
