/* A device: memory with a caching pool, copies, and its kernels. */
#ifndef MC_DEVICE_DEVICE_INTERNAL_H
#define MC_DEVICE_DEVICE_INTERNAL_H

#include <stddef.h>
#include "core/base/context_internal.h"
#include "core/device/kernels_internal.h"

typedef struct mc_device_memory {
    size_t in_use, peak;   /* bytes allocated now, and the most so far */
    size_t reserved;       /* bytes taken from the system, in use or cached */
    size_t touched;        /* of these: up to the last byte ever allocated of each segment. The
                              system has pages for no others */
    uint64_t system_calls; /* allocations that went to the system: constant in the steady state */
} mc_device_memory;

/* Copies beside what is launched. A lane is a queue of copies of its own; a fence stands for what a
 * lane (NULL: the device's own queue of launches) was given until it was set. Each lane and fence
 * belongs to one thread at a time, which need not be the device's. The functions return NULL, or
 * what went wrong, a text that stays. */
typedef struct mc_lane mc_lane;
typedef struct mc_fence mc_fence;
typedef struct mc_lanes {
    const char *(*lane_new)(mc_device *d, mc_lane **lane);
    void (*lane_free)(mc_device *d, mc_lane *lane); /* waits for its copies; NULL allowed */
    const char *(*fence_new)(mc_device *d, mc_fence **fence);
    void (*fence_free)(mc_device *d, mc_fence *fence); /* NULL allowed */
    const char *(*fence_set)(mc_device *d, mc_fence *fence, mc_lane *lane);
    /* What the lane (NULL: the device) is given from now on comes after what the fence stands for;
     * the host waits for that. A fence that was never set stands for nothing. */
    const char *(*after)(mc_device *d, mc_lane *lane, mc_fence *fence);
    const char *(*wait)(mc_device *d, mc_fence *fence);
    /* Makes other memory of the host what host_alloc gives, at its whole pages or more, until it is
     * unpinned by its first address, or refuses. For large blocks: it takes seconds for some GB. */
    const char *(*pin)(mc_device *d, void *host, size_t bytes);
    void (*unpin)(mc_device *d, void *host);
    /* Between memory of host_alloc, or pinned, and the device's; neither waits. */
    const char *(*copy_in)(mc_device *d, mc_lane *lane, void *device, const void *host,
                           size_t bytes);
    const char *(*copy_out)(mc_device *d, mc_lane *lane, void *host, const void *device,
                            size_t bytes);
} mc_lanes;

/* The logits_chunk of GPUs. */
#define MC_GPU_LOGITS_CHUNK ((int64_t)16384 * 50304)

struct mc_device {
    const char *name; /* "cpu", "cuda" */
    const mc_kernels *kernels;
    bool is_host; /* device memory is host memory */
    /* fp8_gemm multiplies rows by rows: matrices are cast together with a transposed copy. */
    bool fp8_tn;
    /* Memory aligned to 64 bytes; contents undefined. Freed blocks are kept for reuse. NULL when
     * memory is out (the cache has then been given back and the system asked again). bytes 0 gives
     * a unique pointer. */
    void *(*alloc)(mc_device *d, size_t bytes);
    void (*free)(mc_device *d, void *data, size_t bytes); /* `bytes` as given to alloc; NULL ok */
    /* Bytes that could still be allocated, beside what the cache has; an estimate. */
    uint64_t (*free_memory)(mc_device *d);
    /* Takes a copy of `host` at once and does not wait. */
    void (*copy_in)(mc_device *d, void *device, const void *host, size_t bytes);
    /* Waits for all that was launched. False after a failure (see `failure`). */
    bool (*copy_out)(mc_device *d, void *host, const void *device, size_t bytes);
    /* Copies to `host`, memory of host_alloc, when all that was launched before is done; does not
     * wait. The ticket says when it is there: tickets count up, from 1. */
    uint64_t (*copy_out_later)(mc_device *d, void *host, const void *device, size_t bytes);
    bool (*is_done)(mc_device *d, uint64_t ticket);
    bool (*wait)(mc_device *d, uint64_t ticket); /* false after a failure */
    /* Seconds by the device's clock from one ticket to a later one, both done; NaN: not known any
     * more. NULL on a device that is done with its work when a call returns. */
    double (*elapsed)(mc_device *d, uint64_t from, uint64_t to);
    void *(*host_alloc)(mc_device *d, size_t bytes);
    void (*host_free)(mc_device *d, void *host, size_t bytes);
    const mc_lanes *lanes; /* NULL on a device that only plans */
    /* Recording, for mc_step_run; NULL where a device has none. Between step_begin and step_end
     * memory comes from a pool of its own, which recorded launches share. record_begin has what is
     * launched recorded instead of run; record_end gives the recording (NULL after a failure),
     * which replay runs as often as wanted. */
    void (*step_begin)(mc_device *d);
    void (*step_end)(mc_device *d);
    bool (*record_begin)(mc_device *d);
    void *(*record_end)(mc_device *d);
    mc_status (*replay)(mc_device *d, void *recording);
    void (*recording_free)(mc_device *d, void *recording);
    /* Named ranges for profilers; NULL if there are none. */
    void (*range_begin)(mc_device *d, const char *name);
    void (*range_end)(mc_device *d);
    /* What programs launch kernels of their own on (a cudaStream_t); NULL if there is none. */
    void *(*stream)(mc_device *d);
    /* Makes the GPU the calling thread's current one of its own runtime, for functions of others
     * that expect it so; NULL where there is no such thing. `leave` gets what `enter` returned, and
     * the thread has again what it had before. The functions of this table do so by themselves. */
    bool (*enter)(mc_device *d);
    void (*leave)(mc_device *d, bool entered);
    void (*close)(mc_device *d);
    /* Loads what it computes with; MC_OK, or the reason is in `failure`. NULL: nothing to do. */
    mc_status (*prepare)(mc_device *d);
    /* The fastest products that it can do in a dtype, in FLOP/s by its datasheet; 0: unknown. */
    double (*peak_rate)(mc_device *d, mc_dtype dtype); /* NULL: unknown */
    /* For the memory planner (plan_internal.h): kernels that do nothing but take the scratch memory
     * that the real ones take; NULL entries take none. */
    const mc_kernels *planning;
    size_t workspace; /* bytes of `memory` that it takes for itself, at first use at the latest */
    int64_t logits_chunk; /* elements of the logits buffer of mc_linear_cross_entropy */
    bool recording;       /* between record_begin and record_end */
    /* A step of generation is launched, in which no parameter changes: kernels may read parameters
     * while launches in front of them are still running. */
    bool decoding;
    bool linked; /* to all GPUs of the host by NVLink; false where nobody asked, see mc_cuda_open */
    mc_device_memory memory;
    uint64_t waits; /* how often the host waited for everything that was launched */
    /* Why what the device computes can't be relied on any more, so that waiting for it fails; NULL:
     * it can. Set by another thread, __atomic_store_n: a communicator was aborted. */
    const char *given_up;
    char failure[512]; /* what went wrong in the call that failed last; "" if there is no more to
                          say than its status */
};

/* Named ranges for profilers; nothing where the device has none. */
static inline void mc_range_begin(mc_device *d, const char *name)
{
    if (d->range_begin) d->range_begin(d, name);
}
static inline void mc_range_end(mc_device *d)
{
    if (d->range_end) d->range_end(d);
}

/* See mc_device.enter; nothing on other devices. */
static inline bool mc_device_enter(mc_device *d) { return d->enter && d->enter(d); }
static inline void mc_device_leave(mc_device *d, bool entered)
{
    if (entered) d->leave(d, entered);
}

/* The CPU: core/device/cpu. A GPU, by its number, or -1: that of this rank's number on its host, or
 * the only one. MC_DETERMINISTIC=1 in the environment: results are bit-equal from run to run;
 * MC_CUDA_MEMORY=direct: allocations that a memory checker can watch; MC_CACHE_DIR: where plans are
 * kept. NULL after an error, which says what is missing. */
mc_device *mc_cpu_open(mc_context *ctx);
mc_device *mc_cuda_open(mc_context *ctx, int gpu); /* where the build has CUDA */
/* Opens "cpu", "cuda" or "cuda:1" (mc_init_options says which GPU); any other name fails with
 * MC_ERR_UNSUPPORTED, naming what is built in. NULL after an error on the context. */
mc_device *mc_device_open(mc_context *ctx, const char *name);
void mc_device_close(mc_device *device); /* NULL allowed */

/* Fails with MC_ERR_NOMEM: "out of memory for WHAT (N bytes; M in use, about F free); HELP", with
 * what the device says of it. `format` makes WHAT; `help` is what would help. */
mc_status mc_fail_memory(mc_context *ctx, mc_device *device, size_t bytes, const char *help,
                         const char *format, ...) MC_PRINTF(5, 6);
#define MC_HELP_MODEL "more ranks, a higher zero level, AdamOffload or a 16-bit dtype needs less"
#define MC_HELP_BATCH "a smaller batch, recompute or a 16-bit dtype needs less"

#endif
