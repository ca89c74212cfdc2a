/* The CUDA device: one GPU, one stream on which everything runs in order, a caching pool over
 * cudaMalloc, and kernels. Host code is C (cuda.c, memory.c, gemm.c, attention_cudnn.c, ...),
 * kernels are CUDA C in .cu files. No function waits for the GPU unless its comment says so. */
#ifndef MC_DEVICE_CUDA_RUNTIME_CUDA_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "core/device/cuda/runtime/current_internal.h"
#include "core/device/device_internal.h"

enum { MC_CUDA_TICKETS = 64, MC_CUDA_ARRIVALS = 16384 };

/* The state while a kernel's scratch memory is queried: planning.c. */
typedef struct mc_cuda_planning {
    void *(*alloc)(mc_device *d, size_t bytes); /* the device's own functions */
    void (*free)(mc_device *d, void *data, size_t bytes);
    size_t in_use, peak;
    uintptr_t address; /* of the next block */
    bool counts;       /* querying now: see mc_cuda_is_planning */
} mc_cuda_planning;

/* Kernels with several routes, and their setting in MC_ROUTE: routes_internal.h. */
typedef enum mc_route_kernel {
    MC_ROUTE_ATTENTION,
    MC_ROUTE_PRODUCT,
    MC_ROUTE_DECODE,
    MC_ROUTE_KERNELS
} mc_route_kernel;
typedef struct mc_route_asked {
    const struct mc_route *route; /* NULL: none */
    bool prefers;                 /* other routes get the calls that it refuses */
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
    bool several_ranks; /* collectives of NCCL run concurrently */
    mc_route_asked asked[MC_ROUTE_KERNELS];
    /* memory: lasting, and temporary within recorded steps */
    struct mc_pool *pool, *step_pool;
    struct mc_cuda_range *range, *step_range;
    bool in_step;
    bool direct;                       /* no pool, so that memory checkers see every allocation */
    mc_device_memory step_memory;      /* of step_pool; the sum with the pool's is device.memory */
    mc_device_memory pool_memory;      /* of pool */
    struct mc_cuda_staging *staging;   /* pinned memory for uploads */
    struct mc_cuda_constant *kept;     /* pinned memory of recorded uploads */
    bool upload_lost;                  /* an upload, and so the step, could not be recorded */
    cudaEvent_t done[MC_CUDA_TICKETS]; /* ticket t: done[t % MC_CUDA_TICKETS] */
    uint64_t tickets;
    /* MC_CUDA_ARRIVALS counters in device memory, with which a kernel's blocks find out which of
     * them ends last; 0 between kernels */
    unsigned *arrivals;
    bool listing;                   /* between list_open and list_close */
    struct mc_cuda_defer *deferred; /* calls to launch later; NULL: deferring is not possible */
    mc_cuda_planning planning;
    /* MC_PERSISTENT_MEMORY bytes on the device: persistent_internal.h */
    void *persistent;
    struct mc_preload *preload;  /* libraries being loaded */
    struct mc_cuda_gemm *gemm;   /* cuBLASLt's handle, workspace and plans */
    struct mc_cuda_cudnn *cudnn; /* NULL: cuDNN is missing, does not start, or was not needed yet */
} mc_cuda_device;

static inline mc_cuda_device *mc_cuda_of(mc_device *d) { return (mc_cuda_device *)(void *)d; }

/* Whether a kernel is only queried for its scratch memory: addresses are invalid. Launches have no
 * effect then; calls that use addresses (memset, copies, libraries) must be left out. */
static inline bool mc_cuda_is_planning(mc_device *d) { return mc_cuda_of(d)->planning.counts; }

#define KERNEL(name) __typeof__(*((mc_kernels *)0)->name) mc_cuda_##name;
#include "core/device/kernels.def"
#undef KERNEL

/* Stores an error's text in d->failure, which the operation's error message quotes, and returns its
 * status: MC_ERR_NOMEM for memory, MC_ERR_DEVICE otherwise, MC_OK for cudaSuccess. `what` names the
 * call or kernel. */
mc_status mc_cuda_check(mc_device *d, cudaError_t error, const char *what);
/* Every function that launched kernels returns this: mc_cuda_check of the launches' errors. */
mc_status mc_cuda_launched(mc_device *d, const char *what);
/* Formats d->failure; returns `status`. */
mc_status mc_cuda_fail(mc_device *d, mc_status status, const char *format, ...) MC_PRINTF(3, 4);

/* Which of up to three values (the rest NULL) an environment variable has, 1 to 3; 0: unset or
 * empty. An error for another value. */
mc_status mc_cuda_choice(mc_device *d, const char *name, const char *const values[3], int *choice);

/* A function of the driver, which programs are not linked to; NULL: not found. */
void *mc_cuda_driver_function(const char *name);

/* The path of a file for later runs (plans, tuning results): in MC_CACHE_DIR, else in modelcenter/
 * of XDG_CACHE_HOME or of ~/.cache; creates the folder. False if there is none, or MC_CACHE_DIR is
 * set but empty. */
bool mc_cuda_cache_path(mc_device *d, const char *name, char *path, size_t size);

/* gemm.c */
struct mc_cuda_gemm *mc_cuda_gemm_new(mc_device *d);             /* NULL: see d->failure */
void mc_cuda_gemm_free(mc_device *d, struct mc_cuda_gemm *gemm); /* saves tuned plans to disk */

void mc_cudnn_free(struct mc_cuda_cudnn *cudnn); /* NULL allowed */

#ifdef __cplusplus
}
#endif
#endif
