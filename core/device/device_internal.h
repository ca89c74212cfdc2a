/* A device: memory with a caching pool, copies, and its kernels. */
#ifndef MC_DEVICE_DEVICE_INTERNAL_H
#define MC_DEVICE_DEVICE_INTERNAL_H

#include <stddef.h>
#include "core/base/context_internal.h"
#include "core/device/kernels_internal.h"

typedef struct mc_device_memory {
    size_t in_use, peak; /* bytes allocated now, and the most so far */
    size_t reserved;     /* bytes taken from the system, in use or cached */
    /* of these, up to the last byte ever allocated in each segment: the pages that physical memory
     * backs */
    size_t touched;
    uint64_t system_calls; /* allocations from the system: constant in the steady state */
} mc_device_memory;

/* Copies that run concurrently with launches. A lane is a separate queue of copies. A fence marks a
 * point in a lane (NULL: in the device's own queue of launches): everything queued before it was
 * set. Each lane and fence belongs to one thread at a time, which may differ from the device's. The
 * functions return NULL, or an error message with static lifetime. */
typedef struct mc_lane mc_lane;
typedef struct mc_fence mc_fence;
typedef struct mc_lanes {
    const char *(*lane_new)(mc_device *d, mc_lane **lane);
    void (*lane_free)(mc_device *d, mc_lane *lane); /* waits for its copies; NULL allowed */
    const char *(*fence_new)(mc_device *d, mc_fence **fence);
    void (*fence_free)(mc_device *d, mc_fence *fence); /* NULL allowed */
    const char *(*fence_set)(mc_device *d, mc_fence *fence, mc_lane *lane);
    /* Makes later work of the lane (NULL: the device) wait for the fence; makes the host wait for
     * it. A fence that was never set is passed at once. */
    const char *(*after)(mc_device *d, mc_lane *lane, mc_fence *fence);
    const char *(*wait)(mc_device *d, mc_fence *fence);
    /* Pins other host memory, in whole pages, as if it came from host_alloc, until it is unpinned
     * by its first address; may refuse. For large blocks: some GB take seconds. */
    const char *(*pin)(mc_device *d, void *host, size_t bytes);
    void (*unpin)(mc_device *d, void *host);
    /* Copy between pinned memory (of host_alloc or pin) and device memory; do not wait. */
    const char *(*copy_in)(mc_device *d, mc_lane *lane, void *device, const void *host,
                           size_t bytes);
    const char *(*copy_out)(mc_device *d, mc_lane *lane, void *host, const void *device,
                            size_t bytes);
} mc_lanes;

/* logits_chunk of GPUs. */
#define MC_GPU_LOGITS_CHUNK ((int64_t)16384 * 50304)

struct mc_device {
    const char *name; /* "cpu", "cuda" */
    const mc_kernels *kernels;
    bool is_host; /* device memory is host memory */
    /* fp8_gemm multiplies rows by rows: matrices are cast together with a transposed copy. */
    bool fp8_tn;
    /* Memory aligned to 64 bytes; contents undefined. Freed blocks are kept for reuse. NULL if
     * memory is out, after the cache was returned to the system and a second try failed. bytes 0
     * gives a unique pointer. */
    void *(*alloc)(mc_device *d, size_t bytes);
    void (*free)(mc_device *d, void *data, size_t bytes); /* `bytes` as passed to alloc; NULL ok */
    /* Bytes that could still be allocated, not counting the cache; an estimate. */
    uint64_t (*free_memory)(mc_device *d);
    /* Copies `host` before it returns, and does not wait for the device. */
    void (*copy_in)(mc_device *d, void *device, const void *host, size_t bytes);
    /* Waits for all launches. False after a failure (see `failure`). */
    bool (*copy_out)(mc_device *d, void *host, const void *device, size_t bytes);
    /* Copies to `host`, memory of host_alloc, after all earlier launches; does not wait. Returns a
     * ticket for its completion: tickets count up, from 1. */
    uint64_t (*copy_out_later)(mc_device *d, void *host, const void *device, size_t bytes);
    bool (*is_done)(mc_device *d, uint64_t ticket);
    bool (*wait)(mc_device *d, uint64_t ticket); /* false after a failure */
    /* Seconds of the device's clock between two completed tickets; NaN: no longer known. NULL on a
     * device that finishes its work before a call returns. */
    double (*elapsed)(mc_device *d, uint64_t from, uint64_t to);
    void *(*host_alloc)(mc_device *d, size_t bytes);
    void (*host_free)(mc_device *d, void *host, size_t bytes);
    const mc_lanes *lanes; /* NULL on a device that only plans */
    /* Recording, for mc_step_run; NULL if not supported. Between step_begin and step_end memory
     * comes from a separate pool, which recorded launches share. After record_begin launches are
     * recorded instead of run; record_end returns the recording (NULL after a failure), which
     * replay can run any number of times. */
    void (*step_begin)(mc_device *d);
    void (*step_end)(mc_device *d);
    bool (*record_begin)(mc_device *d);
    void *(*record_end)(mc_device *d);
    mc_status (*replay)(mc_device *d, void *recording);
    void (*recording_free)(mc_device *d, void *recording);
    /* For a generation step, in which no parameter changes. Kernels called between list_open and
     * list_close form a list: they may run later, in another order or as one kernel, and may read
     * parameters while earlier launches are still running. Any other work for the stream launches
     * the calls before it; list_close launches the rest. A recording contains whole lists. NULL on
     * devices that run every call at once: use mc_list_open and mc_list_close. */
    void (*list_open)(mc_device *d);
    mc_status (*list_close)(mc_device *d);
    /* Named ranges for profilers; NULL if not supported. */
    void (*range_begin)(mc_device *d, const char *name);
    void (*range_end)(mc_device *d);
    /* The stream for a program's own kernels (a cudaStream_t); NULL if there is none. */
    void *(*stream)(mc_device *d);
    /* Makes the GPU current for the calling thread, as functions of other libraries expect; NULL on
     * other devices. `leave` takes enter's result and restores the previous GPU. The functions of
     * this table do this themselves. */
    bool (*enter)(mc_device *d);
    void (*leave)(mc_device *d, bool entered);
    void (*close)(mc_device *d);
    /* Loads its libraries; MC_OK, or the reason is in `failure`. NULL: nothing to do. */
    mc_status (*prepare)(mc_device *d);
    /* The peak rate of products in a dtype, in FLOP/s by its datasheet; 0: unknown. */
    double (*peak_rate)(mc_device *d, mc_dtype dtype); /* NULL: unknown */
    /* For the memory planner (plan_internal.h): kernels that only allocate the scratch memory of
     * the real ones; NULL entries need none. */
    const mc_kernels *planning;
    size_t workspace;     /* bytes of `memory` for itself, allocated at first use at the latest */
    int64_t logits_chunk; /* elements of the logits buffer of mc_linear_cross_entropy */
    bool recording;       /* between record_begin and record_end */
    bool linked; /* NVLink to all GPUs of the host; false if not queried, see mc_cuda_open */
    mc_device_memory memory;
    uint64_t waits; /* number of waits for all launches */
    /* Why the device's results are no longer reliable, so that waiting for it fails; NULL: they
     * are. Another thread sets it with __atomic_store_n when it aborts a communicator. */
    const char *given_up;
    char failure[512]; /* message of the last failed call; "" if the status says everything */
};

/* Named ranges for profilers; does nothing on devices without them. */
static inline void mc_range_begin(mc_device *d, const char *name)
{
    if (d->range_begin) d->range_begin(d, name);
}
static inline void mc_range_end(mc_device *d)
{
    if (d->range_end) d->range_end(d);
}

/* See mc_device.list_open; nothing on other devices. */
static inline void mc_list_open(mc_device *d)
{
    if (d->list_open) d->list_open(d);
}
static inline mc_status mc_list_close(mc_device *d)
{
    return d->list_close ? d->list_close(d) : MC_OK;
}

/* See mc_device.enter; does nothing on other devices. */
static inline bool mc_device_enter(mc_device *d) { return d->enter && d->enter(d); }
static inline void mc_device_leave(mc_device *d, bool entered)
{
    if (entered) d->leave(d, entered);
}

/* The CPU: core/device/cpu. A GPU, by its number; -1: the number of this rank on its host, or the
 * only GPU. Environment: MC_DETERMINISTIC=1 makes results bit-equal from run to run;
 * MC_CUDA_MEMORY=direct makes allocations visible to memory checkers; MC_CACHE_DIR is the folder
 * for plans. NULL after an error, which names what is missing. */
mc_device *mc_cpu_open(mc_context *ctx);
mc_device *mc_cuda_open(mc_context *ctx, int gpu); /* where the build has CUDA */
/* Opens "cpu", "cuda" or "cuda:1" (mc_init_options says which GPU); any other name fails with
 * MC_ERR_UNSUPPORTED, naming what is built in. NULL after an error on the context. */
mc_device *mc_device_open(mc_context *ctx, const char *name);
void mc_device_close(mc_device *device); /* NULL allowed */

/* Fails with MC_ERR_NOMEM: "out of memory for WHAT (N bytes; M in use, about F free); HELP", and
 * the device's own message. `format` makes WHAT; `help` is advice. */
mc_status mc_fail_memory(mc_context *ctx, mc_device *device, size_t bytes, const char *help,
                         const char *format, ...) MC_PRINTF(5, 6);
#define MC_HELP_MODEL "more ranks, a higher zero level, AdamOffload or a 16-bit dtype needs less"
#define MC_HELP_BATCH "a smaller batch, recompute or a 16-bit dtype needs less"

#endif
