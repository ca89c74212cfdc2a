#include "core/autograd/step_internal.h"
#include "core/autograd/blank_internal.h"
#include "core/dist/comm_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct hook {
    struct hook *next;
    mc_step_hook_fn fn;
    max_align_t data[];
} hook;

/* The step of one key. */
typedef struct entry {
    struct entry *next;
    uint64_t key;
    mc_step_fn fn;
    void *user;
    bool ran;
    void *recording;
    hook *before, *after;
    uint64_t dropouts; /* dropout offsets per run */
} entry;

struct mc_steps {
    mc_owned owned;
    mc_context *ctx;
    entry *entries;
    entry *current;       /* being recorded */
    uint64_t start;       /* ctx->rng_offset at the start of its recording */
    uint64_t *rng_offset; /* device memory: the first offset of the running step */
};

static void free_hooks(hook *h)
{
    for (hook *next; h; h = next) {
        next = h->next;
        mc_free(h);
    }
}

static void drop_recording(mc_device *device, entry *e)
{
    if (e->recording) device->recording_free(device, e->recording);
    e->recording = NULL;
    free_hooks(e->before);
    free_hooks(e->after);
    e->before = e->after = NULL;
}

static void free_steps(void *object)
{
    struct mc_steps *s = object;
    mc_device *device = s->ctx->device;
    for (entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        drop_recording(device, e);
        mc_free(e);
    }
    device->free(device, s->rng_offset, sizeof *s->rng_offset);
    s->ctx->steps = NULL; /* objects freed later may call mc_step_forget */
    mc_free(s);
}

static struct mc_steps *need_steps(mc_context *ctx)
{
    struct mc_steps *s = ctx->steps;
    if (!s && !(s = mc_new_owned(ctx, sizeof *s, "recorded steps", free_steps))) return NULL;
    s->ctx = ctx;
    ctx->steps = s;
    if (!s->rng_offset) s->rng_offset = ctx->device->alloc(ctx->device, sizeof *s->rng_offset);
    if (!s->rng_offset) mc_fail_nomem(ctx, "recorded steps");
    return s;
}

static entry *need_entry(struct mc_steps *s, uint64_t key, mc_step_fn fn, void *user)
{
    for (entry *e = s->entries; e; e = e->next)
        if (e->key == key && e->fn == fn && e->user == user) return e;
    entry *e = mc_calloc(1, sizeof *e);
    if (!e) {
        mc_fail_nomem(s->ctx, "a recorded step");
        return NULL;
    }
    *e = (entry){.next = s->entries, .key = key, .fn = fn, .user = user};
    return s->entries = e;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static mc_status add_hook(mc_context *ctx, hook **list, mc_step_hook_fn fn, const void *data,
                          size_t bytes)
{
    hook *h = mc_calloc(1, sizeof *h + bytes);
    if (!h) return mc_fail_nomem(ctx, "a recorded step");
    h->fn = fn;
    memcpy(h->data, data, bytes);
    while (*list) list = &(*list)->next;
    *list = h;
    return MC_OK;
}

mc_status mc_step_before(mc_context *ctx, mc_step_hook_fn fn, const void *data, size_t bytes)
{
    return add_hook(ctx, &ctx->steps->current->before, fn, data, bytes);
}

mc_status mc_step_after(mc_context *ctx, mc_step_hook_fn fn, const void *data, size_t bytes)
{
    return add_hook(ctx, &ctx->steps->current->after, fn, data, bytes);
}

static mc_status call_hooks(mc_context *ctx, hook *h)
{
    mc_status status = mc_error_status(ctx);
    for (; h && !status; h = h->next) status = h->fn(ctx, h->data);
    return status;
}

const uint64_t *mc_step_dropout(mc_context *ctx, uint64_t *offset)
{
    *offset -= ctx->steps->start;
    return ctx->steps->rng_offset;
}

/* ---- running --------------------------------------------------------------------------------- */

static mc_status run_recording(mc_context *ctx, entry *e)
{
    mc_device *device = ctx->device;
    struct mc_steps *s = ctx->steps;
    mc_status status =
        ctx->mesh.world.comm ? mc_comm_check(ctx->mesh.world.comm) : mc_error_status(ctx);
    if (!status) status = call_hooks(ctx, e->before);
    if (status) return status;
    device->copy_in(device, s->rng_offset, &ctx->rng_offset, sizeof ctx->rng_offset);
    ctx->rng_offset += e->dropouts;
    status = device->replay(device, e->recording);
    if (status) return mc_fail(ctx, status, "a recorded step: %s", device->failure);
    mc_comm_mark(ctx->mesh.world.comm, "a recorded step");
    return call_hooks(ctx, e->after);
}

/* Runs fn once; its launches are recorded and not executed. */
static mc_status record(mc_context *ctx, entry *e)
{
    mc_device *device = ctx->device;
    struct mc_steps *s = ctx->steps;
    s->current = e;
    s->start = ctx->rng_offset;
    if (!device->record_begin(device))
        return mc_fail(ctx, MC_ERR_DEVICE, "recording a step: %s", device->failure);
    e->fn(ctx, e->user);
    mc_blank_fill_all(ctx);
    e->recording = device->record_end(device);
    e->dropouts = ctx->rng_offset - s->start;
    ctx->rng_offset = s->start;
    s->current = NULL;
    if (!e->recording && !mc_failed(ctx))
        mc_fail(ctx, MC_ERR_DEVICE, "recording a step: %s", device->failure);
    if (mc_failed(ctx)) drop_recording(device, e);
    return mc_error_status(ctx);
}

static void drop_recordings(struct mc_steps *s)
{
    for (entry *e = s->entries; e; e = e->next) drop_recording(s->ctx->device, e);
}

/* Runs without recording. Memory that this run keeps may belong to recordings, which are then
 * dropped and made again. */
static void run_eagerly(mc_context *ctx, entry *e)
{
    mc_device *device = ctx->device;
    size_t in_use = device->memory.in_use;
    e->fn(ctx, e->user);
    e->ran = !mc_failed(ctx);
    if (device->memory.in_use > in_use) drop_recordings(ctx->steps);
}

void mc_step_forget(mc_context *ctx)
{
    if (!ctx || !ctx->steps) return;
    drop_recordings(ctx->steps);
    for (entry *e = ctx->steps->entries; e; e = e->next) e->ran = false;
}

void mc_step_forget_user(mc_context *ctx, const void *user)
{
    entry **at = ctx && ctx->steps ? &ctx->steps->entries : NULL;
    while (at && *at) {
        entry *e = *at;
        if (e->user != user) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        drop_recording(ctx->device, e);
        mc_free(e);
    }
}

/* With several ranks only on request: collectives in a CUDA graph slow concurrent kernels more than
 * collectives outside (bench/notebook/2026-11-20-four-h200.md#recorded-or-not). */
static bool can_record(mc_context *ctx)
{
    const char *graphs = getenv("MC_CUDA_GRAPHS");
    bool never = graphs && strcmp(graphs, "0") == 0, always = graphs && strcmp(graphs, "1") == 0;
    if (ctx->device->record_begin && graphs && *graphs && !never && !always)
        mc_fail(ctx, MC_ERR_ARGUMENT, "MC_CUDA_GRAPHS=%s, expected 0 or 1", graphs);
    return ctx->device->record_begin && !never && (always || !ctx->mesh.world.comm);
}

mc_status mc_step_run(mc_context *ctx, uint64_t key, mc_step_fn fn, void *user)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!fn) return mc_fail(ctx, MC_ERR_ARGUMENT, "mc_step_run: the step is NULL");
    mc_device *device = ctx->device;
    bool records = can_record(ctx);
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!records) {
        fn(ctx, user);
        return mc_error_status(ctx);
    }
    struct mc_steps *s = need_steps(ctx);
    entry *e = s && !mc_failed(ctx) ? need_entry(s, key, fn, user) : NULL;
    if (!e) return mc_error_status(ctx);
    device->step_begin(device);
    mc_blank_fill_all(ctx);
    if (!e->ran || ctx->home)
        run_eagerly(ctx, e);
    else if (e->recording || record(ctx, e) == MC_OK)
        run_recording(ctx, e);
    device->step_end(device);
    return mc_error_status(ctx);
}
