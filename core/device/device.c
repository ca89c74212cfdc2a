#include "core/device/device_internal.h"

#include <string.h>
#include "core/device/cpu/cpu_internal.h"

mc_device *mc_device_open(mc_context *ctx, const char *name)
{
    if (mc_failed(ctx)) return NULL;
    if (strcmp(name, "cpu") == 0) return mc_cpu_open(ctx);
    mc_fail(ctx, MC_ERR_UNSUPPORTED, "device \"%s\": this build has only \"cpu\"", name);
    return NULL;
}

void mc_device_close(mc_device *device)
{
    if (device) device->close(device);
}
