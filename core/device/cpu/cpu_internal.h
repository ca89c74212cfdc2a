/* The CPU device: a caching pool over host memory, GEMM through a library, and kernels compiled for
 * several instruction sets, of which the best that the processor supports is selected when a
 * context is created. The environment variable MC_CPU_ISA=scalar|avx2|avx512 forces one (an error
 * if the processor lacks it); MC_GEMM=cblas|onednn forces the library behind sgemm. */
#ifndef MC_DEVICE_CPU_INTERNAL_H
#define MC_DEVICE_CPU_INTERNAL_H

#include "core/device/cpu/threads_internal.h"
#include "core/device/device_internal.h"

/* mc_device functions of the CPU: bytes that the process could still get, and scratch memory of
 * kernels. */
uint64_t mc_cpu_free_memory(mc_device *d);
/* Bytes of memory that the process uses now. 0: unknown. */
uint64_t mc_cpu_resident(void);
/* Address space that the process may still reserve (RLIMIT_AS). UINT64_MAX without a limit. */
uint64_t mc_cpu_space_left(void);
/* The memory left by the control groups whose files are below `root`: "" for the system's own. */
uint64_t mc_cpu_left_in_groups(const char *root);
extern const mc_kernels mc_cpu_planning;

/* The kernel tables, one for each instruction set this build has. */
extern const mc_kernels mc_cpu_kernels_scalar;
#ifdef MC_HAVE_X86_ISA
extern const mc_kernels mc_cpu_kernels_avx2;   /* AVX2 + FMA + F16C */
extern const mc_kernels mc_cpu_kernels_avx512; /* AVX-512 F, BW, DQ, VL */
#endif

/* C = op(A) op(B) + beta C in f32 through the library; thread-safe. Inside an OpenMP parallel
 * region it runs only on the calling thread. */
typedef void (*mc_sgemm_fn)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                            float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                            float beta, float *c, int64_t ldc);
/* Open their library. NULL, with the reason in d->failure: it is not found, or the process has too
 * little address space for it. */
typedef mc_sgemm_fn (*mc_sgemm_open_fn)(mc_device *d);
mc_sgemm_fn mc_sgemm_open_cblas(mc_device *d);
mc_sgemm_fn mc_sgemm_open_onednn(mc_device *d); /* where the build has it */
/* The device's function; opens its library if needed. From any thread. */
mc_sgemm_fn mc_cpu_sgemm(mc_device *d);
/* Whether the process has enough address space for a named library of products; if not, `why`. */
bool mc_cpu_library_has_space(const char *name, char *why, size_t room);

/* Up to this many rows, products read the weight (n, k) in place, without scratch memory. */
enum { MC_SKINNY_ROWS = 256 };

typedef struct mc_cpu_device {
    mc_device device;
    mc_sgemm_open_fn open_sgemm;
    mc_sgemm_fn sgemm; /* NULL: not opened yet; see mc_cpu_sgemm */
    bool has_begun;    /* memory was allocated */
    struct mc_pool *pool;
    mc_threads *threads;
    const char *isa, *gemm; /* names of the selected ones, as in the variables above */
} mc_cpu_device;

/* Bytes by which buffers of the library of products may grow after cpu_prepare. */
uint64_t mc_cpu_library_buffers(const mc_cpu_device *cpu);

#endif
