#include "core/device/device_internal.h"

#include <string.h>
#include "core/device/cpu/cpu_internal.h"
#ifdef MC_HAVE_CUDA
#include "core/device/cuda/open_internal.h"
#endif

mc_device *mc_device_open(mc_context *ctx, const char *name)
{
    if (mc_failed(ctx)) return NULL;
    if (strcmp(name, "cpu") == 0) return mc_cpu_open(ctx);
#ifdef MC_HAVE_CUDA
    if (strcmp(name, "cuda") == 0) return mc_cuda_open(ctx);
    mc_fail(ctx, MC_ERR_UNSUPPORTED, "device \"%s\": this build has \"cpu\" and \"cuda\"", name);
#else
    mc_fail(ctx, MC_ERR_UNSUPPORTED, "device \"%s\": this build has only \"cpu\"", name);
#endif
    return NULL;
}

void mc_device_close(mc_device *device)
{
    if (device) device->close(device);
}
