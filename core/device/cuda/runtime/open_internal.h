/* Opening the CUDA device, for code that knows nothing of CUDA. */
#ifndef MC_DEVICE_CUDA_RUNTIME_OPEN_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_OPEN_INTERNAL_H

#include "core/device/device_internal.h"

/* GPU number `gpu`; -1: that of this rank's number on its host, or the only one. Environment:
 * MC_DETERMINISTIC=1 for results that are bit-equal from run to run, MC_CUDA_MEMORY=direct for
 * allocations that a memory checker can watch, MC_CACHE_DIR for where plans are kept. NULL after an
 * error, which says what is missing. */
mc_device *mc_cuda_open(mc_context *ctx, int gpu);

#endif
