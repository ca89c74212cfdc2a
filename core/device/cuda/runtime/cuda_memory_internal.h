/* The memory of the CUDA device. */
#ifndef MC_DEVICE_CUDA_RUNTIME_CUDA_MEMORY_INTERNAL_H
#define MC_DEVICE_CUDA_RUNTIME_CUDA_MEMORY_INTERNAL_H

#include "core/device/cuda/runtime/cuda_internal.h"
#include "core/device/pool_internal.h"

/* A range of addresses as large as the GPU's memory, backed with physical memory from the front as
 * a pool needs it. */
typedef struct mc_cuda_range mc_cuda_range;
/* `shared`: other processes can map the memory, so that NCCL lets GPUs of one host access buffers
 * of recorded steps in place. NULL: see d->failure. */
mc_cuda_range *mc_cuda_range_new(mc_device *d, int ordinal, bool shared);
void mc_cuda_range_free(mc_cuda_range *range); /* NULL allowed */
bool mc_cuda_range_has(const mc_cuda_range *range, const void *data);
mc_pool_source mc_cuda_range_source(mc_cuda_range *range);

/* Copies host memory, which the caller may reuse at once, through pinned memory. Waits only if
 * earlier uploads of 28 MiB are still running. */
typedef struct mc_cuda_staging mc_cuda_staging;
mc_cuda_staging *mc_cuda_staging_new(mc_device *d); /* NULL: out of memory */
void mc_cuda_staging_free(mc_cuda_staging *staging);
cudaError_t mc_cuda_upload(mc_cuda_staging *staging, cudaStream_t stream, void *device,
                           const void *host, size_t bytes);

#endif
