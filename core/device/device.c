#include "core/device/device_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
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

mc_status mc_fail_memory(mc_context *ctx, mc_device *device, size_t bytes, const char *help,
                         const char *format, ...)
{
    char what[512], why[sizeof device->failure];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(why, sizeof why, "%s", device->failure); /* asking what is free may overwrite it */
    return mc_fail(ctx, MC_ERR_NOMEM,
                   "out of memory for %s (%zu bytes; %zu in use, about %" PRIu64 " free)%s%s; %s",
                   what, bytes, device->memory.in_use,
                   device->free_memory ? device->free_memory(device) : 0, *why ? ": " : "", why,
                   help);
}
