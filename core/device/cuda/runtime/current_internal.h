/* The caller's current GPU. CUDA has one per thread, which a program may have set to another GPU
 * than the library's, or not at all. So every function of the device's tables makes the library's
 * GPU current while it runs. It uses the driver's stack of contexts, not cudaSetDevice: resetting
 * the device to one that was never used would initialise that GPU. */
#ifndef MC_DEVICE_CUDA_RUNTIME_CURRENT_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_CURRENT_INTERNAL_H

#include <cuda.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "core/device/device_internal.h"

/* The GPU's context, shared with the runtime, and the driver's functions. */
typedef struct mc_cuda_current {
    CUcontext context;
    CUresult (*get)(CUcontext *context);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
} mc_cuda_current;

/* Starts GPU `ordinal`, unless the process has done so, and sets current->context to its context,
 * which the process keeps. False: see d->failure. */
bool mc_cuda_current_find(mc_device *d, int ordinal, mc_cuda_current *current);

/* mc_device.enter and .leave. */
bool mc_cuda_enter(mc_device *d);
void mc_cuda_leave(mc_device *d, bool entered);

/* The device's own functions (cuda.c), for a thread whose current GPU is the device's. */
extern const mc_device mc_cuda_plain;
/* The same, with every function that calls CUDA wrapped in enter and leave (current.cu). */
mc_device mc_cuda_guarded(void);

#ifdef __cplusplus
}
#endif
#endif
