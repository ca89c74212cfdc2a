/* The CUDA device: one GPU, one stream on which everything runs in order, a caching pool over
 * cudaMalloc, and kernels. Host code is C (cuda.c, memory.c, gemm.c, attention_cudnn.c, ...),
 * kernels are CUDA C in .cu files. Nothing here waits for the GPU unless it says so. */
#ifndef MC_DEVICE_CUDA_RUNTIME_CUDA_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "core/device/cuda/runtime/current_internal.h"
#include "core/device/device_internal.h"

enum { MC_CUDA_TICKETS = 64, MC_CUDA_ARRIVALS = 16384 };

/* While a kernel is asked what memory it takes: planning.c. */
typedef struct mc_cuda_planning {
    void *(*alloc)(mc_device *d, size_t bytes); /* the device's own functions */
    void (*free)(mc_device *d, void *data, size_t bytes);
    size_t in_use, peak;
    uintptr_t address; /* of the next block */
    bool counts;       /* now: see mc_cuda_is_planning */
} mc_cuda_planning;

/* Kernels with several routes, and what MC_ROUTE asks for: routes_internal.h. */
typedef enum mc_route_kernel {
    MC_ROUTE_ATTENTION,
    MC_ROUTE_PRODUCT,
    MC_ROUTE_DECODE,
    MC_ROUTE_KERNELS
} mc_route_kernel;
typedef struct mc_route_asked {
    const struct mc_route *route; /* NULL: none */
    bool prefers;                 /* what it does not take goes to the others */
} mc_route_asked;

typedef struct mc_cuda_device {
    mc_device device;
    int ordinal;
    mc_cuda_current current;
    cudaStream_t stream;
    int multiprocessors;
    int capability;     /* 90 for compute capability 9.0 */
    char gpu[256];      /* its name: "NVIDIA H200" */
    bool deterministic; /* bit-equal results from run to run, at some cost */
    bool several_ranks; /* collectives of NCCL run beside */
    mc_route_asked asked[MC_ROUTE_KERNELS];
    /* memory: what lives on, and what comes and goes within steps that are recorded */
    struct mc_pool *pool, *step_pool;
    struct mc_cuda_range *range, *step_range;
    bool in_step;
    bool direct;                     /* every allocation goes to the system: for memory checkers */
    mc_device_memory step_memory;    /* of step_pool; the sum with the pool's is device.memory */
    mc_device_memory pool_memory;    /* of pool */
    struct mc_cuda_staging *staging; /* pinned memory that uploads go through */
    struct mc_cuda_constant *kept;   /* pinned memory of uploads that were recorded */
    bool upload_lost;                /* one that could not be recorded: so cannot the step */
    cudaEvent_t done[MC_CUDA_TICKETS]; /* ticket t: done[t % MC_CUDA_TICKETS] */
    uint64_t tickets;
    /* MC_CUDA_ARRIVALS numbers in the GPU's memory, by which blocks of a kernel find out which of
     * them ends last; 0 between kernels */
    unsigned *arrivals;
    struct mc_cuda_defer *deferred; /* calls that are launched later; NULL: none ever is */
    mc_cuda_planning planning;
    void *persistent;           /* MC_PERSISTENT_MEMORY bytes of the GPU's: persistent_internal.h */
    struct mc_preload *preload; /* libraries on their way */
    struct mc_cuda_gemm *gemm;  /* cuBLASLt's handle, workspace and plans */
    struct mc_cuda_cudnn *cudnn; /* NULL: cuDNN is absent, does not start, or was not asked yet */
} mc_cuda_device;

static inline mc_cuda_device *mc_cuda_of(mc_device *d) { return (mc_cuda_device *)(void *)d; }

/* A kernel is only asked what memory it takes: no address is one of memory. Launches of kernels
 * come to nothing then; what looks at addresses (memset, copies, libraries) has to be left out. */
static inline bool mc_cuda_is_planning(mc_device *d) { return mc_cuda_of(d)->planning.counts; }

#define KERNEL(name) __typeof__(*((mc_kernels *)0)->name) mc_cuda_##name;
#include "core/device/kernels.def"
#undef KERNEL

/* Keeps what went wrong as text (d->failure, which the operation's error message quotes) and gives
 * the status for it: MC_ERR_NOMEM for memory, MC_ERR_DEVICE otherwise, MC_OK for cudaSuccess.
 * `what` names the call or kernel. */
mc_status mc_cuda_check(mc_device *d, cudaError_t error, const char *what);
/* To be returned by every function that launched kernels: mc_cuda_check of the launches' errors. */
mc_status mc_cuda_launched(mc_device *d, const char *what);
/* d->failure as printf writes it; returns `status`. */
mc_status mc_cuda_fail(mc_device *d, mc_status status, const char *format, ...) MC_PRINTF(3, 4);

/* Which of up to three values (the rest NULL) a variable of the environment has, 1 to 3; 0: it is
 * not there, or empty. An error where it has another. */
mc_status mc_cuda_choice(mc_device *d, const char *name, const char *const values[3], int *choice);

/* A function of the driver, which programs are not linked to; NULL: it has none of that name. */
void *mc_cuda_driver_function(const char *name);

/* The path of a file that a later start of a program can use again (plans, tuning results): in
 * MC_CACHE_DIR, else in modelcenter/ of XDG_CACHE_HOME or of ~/.cache; the folder is made. False
 * if there is none, or MC_CACHE_DIR is set to nothing. */
bool mc_cuda_cache_path(mc_device *d, const char *name, char *path, size_t size);

/* gemm.c */
struct mc_cuda_gemm *mc_cuda_gemm_new(mc_device *d);             /* NULL: see d->failure */
void mc_cuda_gemm_free(mc_device *d, struct mc_cuda_gemm *gemm); /* keeps what was tuned on disk */

void mc_cudnn_free(struct mc_cuda_cudnn *cudnn); /* NULL allowed */

#ifdef __cplusplus
}
#endif
#endif
