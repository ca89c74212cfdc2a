/* A device: memory with a caching pool, copies, and its kernels. */
#ifndef MC_DEVICE_DEVICE_INTERNAL_H
#define MC_DEVICE_DEVICE_INTERNAL_H

#include <stddef.h>
#include "core/base/context_internal.h"
#include "core/device/kernels_internal.h"

typedef struct mc_device_memory {
    size_t in_use, peak;   /* bytes handed out now, and the most so far */
    size_t reserved;       /* bytes taken from the system, in use or cached */
    uint64_t system_calls; /* allocations that went to the system: constant in the steady state */
} mc_device_memory;

struct mc_device {
    const char *name; /* "cpu", "cuda" */
    const mc_kernels *kernels;
    bool is_host; /* device memory is host memory */
    /* Memory aligned to 64 bytes; contents undefined. Freed blocks are kept for reuse. NULL when
     * memory is out (the cache has then been given back and the system asked again). bytes 0 gives
     * a unique pointer. */
    void *(*alloc)(mc_device *d, size_t bytes);
    void (*free)(mc_device *d, void *data, size_t bytes); /* `bytes` as given to alloc; NULL ok */
    /* Takes a copy of `host` at once and does not wait. */
    void (*copy_in)(mc_device *d, void *device, const void *host, size_t bytes);
    /* Waits for all that was launched. False after a failure (see `failure`). */
    bool (*copy_out)(mc_device *d, void *host, const void *device, size_t bytes);
    /* Copies to `host`, memory of host_alloc, when all that was launched before is done; does not
     * wait. The ticket tells when it is there: tickets count up, from 1. */
    uint64_t (*copy_out_later)(mc_device *d, void *host, const void *device, size_t bytes);
    bool (*is_done)(mc_device *d, uint64_t ticket);
    bool (*wait)(mc_device *d, uint64_t ticket); /* false after a failure */
    void *(*host_alloc)(mc_device *d, size_t bytes);
    void (*host_free)(mc_device *d, void *host, size_t bytes);
    void (*close)(mc_device *d);
    mc_device_memory memory;
    uint64_t waits;    /* how often the host waited for everything that was launched */
    char failure[512]; /* what went wrong in the call that failed last; "" if there is no more to
                          say than its status */
};

/* Opens "cpu"; any other name fails with MC_ERR_UNSUPPORTED, naming what is built in. NULL after an
 * error on the context. */
mc_device *mc_device_open(mc_context *ctx, const char *name);
void mc_device_close(mc_device *device); /* NULL allowed */

#endif
