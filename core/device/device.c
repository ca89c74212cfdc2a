#include "core/device/device_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MC_HAVE_CUDA
/* Parses "cuda" (*gpu becomes -1) or "cuda:1"; false for other names. */
static bool is_cuda(const char *name, int *gpu)
{
    *gpu = -1;
    if (strncmp(name, "cuda", 4) != 0) return false;
    if (!name[4]) return true;
    if (name[4] != ':' || !isdigit((unsigned char)name[5])) return false;
    char *end;
    long number = strtol(name + 5, &end, 10);
    *gpu = number <= INT_MAX ? (int)number : INT_MAX; /* no GPU has that number */
    return !*end;
}
#endif

mc_device *mc_device_open(mc_context *ctx, const char *name)
{
    if (mc_failed(ctx)) return NULL;
    if (strcmp(name, "cpu") == 0) return mc_cpu_open(ctx);
#ifdef MC_HAVE_CUDA
    int gpu;
    if (is_cuda(name, &gpu)) return mc_cuda_open(ctx, gpu);
    mc_fail(ctx, MC_ERR_UNSUPPORTED,
            "device \"%s\": this build has \"cpu\", \"cuda\" and \"cuda:N\" for GPU N", name);
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
    snprintf(why, sizeof why, "%s", device->failure); /* free_memory may overwrite it */
    return mc_fail(ctx, MC_ERR_NOMEM,
                   "out of memory for %s (%zu bytes; %zu in use, about %" PRIu64 " free)%s%s; %s",
                   what, bytes, device->memory.in_use,
                   device->free_memory ? device->free_memory(device) : 0, *why ? ": " : "", why,
                   help);
}
