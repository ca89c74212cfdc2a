#include "core/device/plan_internal.h"

#include <string.h>

/* Most parameters of this file are looked at by nobody. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Addresses are made of a number and a place in the block, so that a pointer into a block tells
 * which one it is. */
enum { PLACE_BITS = 42 };

typedef struct plan_device {
    mc_device device;
    mc_device *like;
    mc_kernels kernels; /* those of `like` that take scratch memory, and nothing else */
    __typeof__(((mc_kernels *)0)->cross_entropy) cross_entropy; /* the one of `like` */
    uint64_t blocks;                                            /* handed out so far */
    size_t scratch, logits;
    size_t logits_bytes; /* of a chunk of logits, known after the first cross-entropy */
    mc_plan_peak peak;
} plan_device;

static plan_device *plan_of(mc_device *d) { return (plan_device *)d; }

/* ---- memory ---------------------------------------------------------------------------------- */

static void note_peak(plan_device *p)
{
    mc_device_memory *memory = &p->device.memory;
    if (memory->in_use > memory->peak) memory->peak = memory->in_use;
    if (memory->in_use > p->peak.bytes)
        p->peak = (mc_plan_peak){memory->in_use, p->scratch, p->logits};
}

static bool is_logits(const plan_device *p, size_t bytes)
{
    return p->logits_bytes && bytes == p->logits_bytes;
}

static void *plan_alloc(mc_device *d, size_t bytes)
{
    plan_device *p = plan_of(d);
    if (bytes >> PLACE_BITS) return NULL;
    d->memory.in_use += bytes;
    if (is_logits(p, bytes)) p->logits += bytes;
    note_peak(p);
    return (void *)(uintptr_t)(++p->blocks << PLACE_BITS); /* never followed */
}

static void plan_free(mc_device *d, void *data, size_t bytes)
{
    plan_device *p = plan_of(d);
    if (!data) return;
    d->memory.in_use -= bytes;
    if (is_logits(p, bytes) && p->logits) p->logits -= bytes;
}

mc_status mc_plan_scratch(mc_device *d, size_t bytes)
{
    plan_device *p = plan_of(d);
    p->scratch = bytes;
    void *data = plan_alloc(d, bytes);
    plan_free(d, data, bytes);
    p->scratch = 0;
    return data ? MC_OK : MC_ERR_NOMEM;
}

/* ---- copies: what is read from the device is zero -------------------------------------------- */

static void plan_copy_in(mc_device *d, void *device, const void *host, size_t bytes) {}

static bool plan_copy_out(mc_device *d, void *host, const void *device, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) ((char *)host)[i] = 0;
    return true;
}

static uint64_t plan_copy_out_later(mc_device *d, void *host, const void *device, size_t bytes)
{
    plan_copy_out(d, host, device, bytes);
    return 1;
}

static bool plan_is_done(mc_device *d, uint64_t ticket) { return true; }

static void *plan_host_alloc(mc_device *d, size_t bytes) { return mc_malloc(bytes); }

static void plan_host_free(mc_device *d, void *host, size_t bytes) { mc_free(host); }

static uint64_t plan_free_memory(mc_device *d)
{
    mc_device *like = plan_of(d)->like;
    return like->free_memory ? like->free_memory(like) : 0;
}

static void plan_close(mc_device *d) { mc_free(d); }

/* ---- the device ------------------------------------------------------------------------------ */

/* Sees which blocks are logits: those that are to become their own gradient. */
static mc_status plan_cross_entropy(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                                    const int32_t *labels, int32_t ignore_index, float smoothing,
                                    const float *seed, float *loss, mc_matrix dx)
{
    plan_device *p = plan_of(d);
    size_t bytes = dx.data ? (size_t)(rows * x.stride) * mc_dtype_size(x.dtype) : 0;
    if (bytes > p->logits_bytes) p->logits_bytes = bytes;
    return p->cross_entropy(d, rows, classes, x, labels, ignore_index, smoothing, seed, loss, dx);
}

/* Entries are functions, all of one size: each that `planning` has takes the place of one that does
 * nothing. */
static mc_kernels kernels_in_place_of(const mc_device *like)
{
    typedef void (*entry)(void);
    mc_kernels kernels = mc_plan_kernels;
    if (!like->planning) return kernels;
    for (size_t at = 0; at < sizeof kernels; at += sizeof(entry)) {
        entry e;
        memcpy(&e, (const char *)like->planning + at, sizeof e);
        if (e) memcpy((char *)&kernels + at, &e, sizeof e);
    }
    return kernels;
}

mc_device *mc_plan_open(mc_device *like)
{
    plan_device *p = mc_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->like = like;
    p->kernels = kernels_in_place_of(like);
    p->cross_entropy = p->kernels.cross_entropy;
    p->kernels.cross_entropy = plan_cross_entropy;
    p->device = (mc_device){
        .name = like->name,
        .kernels = &p->kernels,
        .alloc = plan_alloc,
        .free = plan_free,
        .free_memory = plan_free_memory,
        .copy_in = plan_copy_in,
        .copy_out = plan_copy_out,
        .copy_out_later = plan_copy_out_later,
        .is_done = plan_is_done,
        .wait = plan_is_done,
        .host_alloc = plan_host_alloc,
        .host_free = plan_host_free,
        .close = plan_close,
        .workspace = like->workspace,
        .logits_chunk = like->logits_chunk,
        .memory = {.in_use = like->workspace},
    };
    mc_plan_restart(&p->device);
    return &p->device;
}

bool mc_device_is_plan(const mc_device *device) { return device->close == plan_close; }

mc_device *mc_plan_like(mc_device *d) { return plan_of(d)->like; }

mc_plan_peak mc_plan_peak_of(mc_device *d) { return plan_of(d)->peak; }

void mc_plan_restart(mc_device *d)
{
    plan_of(d)->peak = (mc_plan_peak){.bytes = d->memory.in_use};
    d->memory.peak = d->memory.in_use;
}
