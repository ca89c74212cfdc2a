#include "core/device/plan_internal.h"

#include "core/device/plan_timer_internal.h"
#include "core/device/pool_internal.h"

/* Most parameters of the functions in this file are unused. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* An address consists of a block's number and an offset, so that a pointer into a block identifies
 * it. */
enum { PLACE_BITS = 42 };

typedef struct plan_device {
    mc_device device;
    mc_device *like;
    const mc_kernels
        *planning;   /* those of `like` that need scratch memory; NULL entries need none */
    bool is_host;    /* of the planned device */
    uint64_t blocks; /* numbers used so far; returned ones are reused first */
    uint32_t *spare;
    size_t spare_count, spare_room; /* for all numbers in use */
    /* For the host: a pool that gets the same calls as the device's, but returns addresses without
     * memory, so that it has the same gaps. `shadows` has the address of each number's block. */
    mc_pool *shadow;
    mc_device_memory shadow_memory;
    uintptr_t shadow_end; /* end address of its segments */
    size_t space;         /* address space of its segments */
    void **shadows;
    size_t scratch, logits;
    size_t logits_bytes; /* of a chunk of logits, known after the first cross-entropy */
    mc_plan_peak peak;
    void (*watch)(void *user); /* called if `is_new`: a new peak was reached since the last call */
    void *user;
    bool is_new;
    mc_plan_timer *timer; /* NULL: no time passes */
} plan_device;

static plan_device *plan_of(mc_device *d) { return (plan_device *)d; }

/* ---- memory ---------------------------------------------------------------------------------- */

static void note_peak(plan_device *p)
{
    mc_device_memory *memory = &p->device.memory;
    if (memory->in_use > memory->peak) memory->peak = memory->in_use;
    if (memory->in_use <= p->peak.bytes) return;
    p->peak = (mc_plan_peak){memory->in_use, p->scratch, p->logits};
    p->is_new = true;
}

/* Called later than the peak, when the owner of its last block knows of the block. */
static void call_watch(plan_device *p)
{
    if (p->is_new && p->watch) p->watch(p->user);
    p->is_new = false;
}

static bool is_logits(const plan_device *p, size_t bytes)
{
    return p->logits_bytes && bytes == p->logits_bytes;
}

/* An unused number; 0 if there is none, or no memory to note its return. */
static uint64_t take_number(plan_device *p)
{
    if (p->spare_count) return p->spare[--p->spare_count];
    if (p->blocks == UINT64_MAX >> PLACE_BITS) return 0;
    if (p->blocks == p->spare_room) {
        size_t room = 2 * p->spare_room + 64;
        uint32_t *spare = mc_realloc(p->spare, room * sizeof *spare);
        if (spare) p->spare = spare;
        void **shadows = spare ? mc_realloc(p->shadows, room * sizeof *shadows) : NULL;
        if (!shadows) return 0;
        p->shadows = shadows;
        p->spare_room = room;
    }
    return ++p->blocks;
}

static void give_number(plan_device *p, uint64_t number)
{
    p->spare[p->spare_count++] = (uint32_t)number;
}

static void *plan_alloc(mc_device *d, size_t bytes)
{
    plan_device *p = plan_of(d);
    call_watch(p);
    uint64_t number = bytes >> PLACE_BITS ? 0 : take_number(p);
    if (!number) return NULL;
    if (p->shadow && !(p->shadows[number - 1] = mc_pool_alloc(p->shadow, bytes))) {
        give_number(p, number);
        return NULL;
    }
    d->memory.in_use += bytes;
    if (is_logits(p, bytes)) p->logits += bytes;
    note_peak(p);
    return (void *)(uintptr_t)(number << PLACE_BITS); /* never dereferenced */
}

static void plan_free(mc_device *d, void *data, size_t bytes)
{
    plan_device *p = plan_of(d);
    if (!data) return;
    call_watch(p);
    d->memory.in_use -= bytes;
    if (is_logits(p, bytes) && p->logits) p->logits -= bytes;
    uint64_t number = (uint64_t)(uintptr_t)data >> PLACE_BITS;
    if (p->shadow) mc_pool_release(p->shadow, p->shadows[number - 1], bytes);
    give_number(p, number);
}

/* Never dereferenced, like the blocks' own addresses. */
static void *shadow_take(void *user, size_t bytes)
{
    plan_device *p = user;
    void *data = (void *)p->shadow_end;
    p->shadow_end += bytes;
    p->space += bytes + ((size_t)2 << 20); /* for alignment to huge pages */
    return data;
}

static void shadow_give_back(void *user, void *data, size_t bytes) {}

void *mc_plan_scratch_new(mc_device *d, size_t bytes)
{
    plan_device *p = plan_of(d);
    p->scratch += bytes;
    void *data = plan_alloc(d, bytes);
    if (!data) p->scratch -= bytes;
    return data;
}

void mc_plan_scratch_free(mc_device *d, void *data, size_t bytes)
{
    plan_free(d, data, bytes);
    plan_of(d)->scratch -= bytes;
}

mc_status mc_plan_scratch(mc_device *d, size_t bytes)
{
    void *data = mc_plan_scratch_new(d, bytes);
    if (!data) return MC_ERR_NOMEM;
    mc_plan_scratch_free(d, data, bytes);
    return MC_OK;
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

static void plan_close(mc_device *d)
{
    mc_plan_set_timer(d, NULL);
    mc_pool_free(plan_of(d)->shadow);
    mc_free(plan_of(d)->shadows);
    mc_free(plan_of(d)->spare);
    mc_free(d);
}

/* ---- time ------------------------------------------------------------------------------------ */

void mc_plan_set_timer(mc_device *d, mc_plan_timer *timer)
{
    mc_plan_timer *before = plan_of(d)->timer;
    if (before) before->free(before);
    plan_of(d)->timer = timer;
}

mc_plan_timer *mc_plan_timer_of(mc_device *d) { return plan_of(d)->timer; }

mc_status mc_plan_work(mc_device *d, mc_work work)
{
    mc_plan_timer *timer = plan_of(d)->timer;
    return timer ? timer->work(timer, &work) : MC_OK;
}

double mc_plan_host_work(mc_device *d, double copied, double touched, bool behind)
{
    mc_plan_timer *timer = plan_of(d)->timer;
    return timer ? timer->host_work(timer, copied, touched, behind) : 0;
}

void mc_plan_wait_host(mc_device *d, double end)
{
    mc_plan_timer *timer = plan_of(d)->timer;
    if (timer) timer->wait_host(timer, end);
}

/* ---- the device ------------------------------------------------------------------------------ */

void mc_plan_logits(mc_device *d, size_t bytes)
{
    plan_device *p = plan_of(d);
    if (bytes > p->logits_bytes) p->logits_bytes = bytes;
}

static const mc_kernels no_kernels = {0};

const mc_kernels *mc_plan_scratch_kernels(mc_device *d) { return plan_of(d)->planning; }

void mc_plan_pretend_gpu(mc_device *d)
{
    plan_device *p = plan_of(d);
    if (!p->is_host) return;
    p->is_host = false;
    mc_pool_free(p->shadow);
    p->shadow = NULL;
    p->planning = &no_kernels;
    d->logits_chunk = MC_GPU_LOGITS_CHUNK;
    d->fp8_tn = true; /* as on the GPU that rates and plans are for */
}

bool mc_plan_is_host(mc_device *d) { return plan_of(d)->is_host; }

mc_device *mc_plan_open(mc_device *like)
{
    plan_device *p = mc_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->like = like;
    p->planning = like->planning ? like->planning : &no_kernels;
    p->is_host = like->is_host;
    p->device = (mc_device){
        .name = like->name,
        .kernels = &mc_plan_kernels,
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
        .fp8_tn = like->fp8_tn,
        .logits_chunk = like->logits_chunk,
        .memory = {.in_use = like->workspace},
    };
    mc_plan_restart(&p->device);
    p->shadow_end = (uintptr_t)1 << PLACE_BITS;
    mc_pool_source source = {.take = shadow_take, .give_back = shadow_give_back, .user = p};
    if (p->is_host) p->shadow = mc_pool_new(&p->shadow_memory, &source);
    if (!p->is_host || p->shadow) return &p->device;
    plan_close(&p->device);
    return NULL;
}

uint64_t mc_plan_touched(mc_device *d)
{
    const plan_device *p = plan_of(d);
    return p->shadow ? p->shadow_memory.touched : d->memory.peak;
}

uint64_t mc_plan_space(mc_device *d) { return plan_of(d)->space; }

bool mc_device_is_plan(const mc_device *device) { return device->close == plan_close; }

bool mc_device_is_host(mc_device *d)
{
    return mc_device_is_plan(d) ? mc_plan_is_host(d) : d->is_host;
}

mc_device *mc_plan_like(mc_device *d) { return plan_of(d)->like; }

mc_plan_peak mc_plan_peak_of(mc_device *d) { return plan_of(d)->peak; }

void mc_plan_watch_peak(mc_device *d, void (*watch)(void *user), void *user)
{
    plan_device *p = plan_of(d);
    call_watch(p);
    p->watch = watch;
    p->user = user;
    p->is_new = true;
}

void mc_plan_restart(mc_device *d)
{
    plan_of(d)->peak = (mc_plan_peak){.bytes = d->memory.in_use};
    d->memory.peak = d->memory.in_use;
    mc_plan_timer *timer = plan_of(d)->timer;
    if (timer) timer->restart(timer);
}
