/* Buckets whose optimizer state is on the host: AdamOffload.
 *
 * The unit is the bucket. If all of its parameters belong to AdamOffload optimizers, host memory
 * holds m, v, the master copy (of f32 parameters too) and the summed gradient, as f32 arrays of
 * this rank's share; values stay on the device. Such a bucket has level 2 or 3, even on one rank,
 * so its gradients exist on the device only from the beginning of a block's backward pass to the
 * end of their reduction. Then they are copied to the host, in the dtype in which ranks exchange
 * them, and added to the sum. If a step has only one gradient, as OptimManager plans it, it stays
 * in that dtype until it must be a sum.
 *
 * The device decides a step as always (core/device/step_internal.h), from its own statistics and
 * the host's. The decision is copied to the host, which updates bucket by bucket in forward order
 * and copies the parameters to the device chunk by chunk. Every use of a bucket's parameters first
 * waits for that bucket (mc_bucket_await). At level 2 ranks also exchange them then, so the order
 * of collectives does not depend on the speed of the host. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include "core/device/cpu/cpu_internal.h"
#include "core/device/plan_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/dist/world_internal.h"
#include "core/optim/adam_offload_internal.h"

typedef struct mc_bucket_host {
    mc_fence *uploaded; /* its newest values are on the device */
    uint64_t job;       /* its last job */
    void *pinned;       /* the first half of the sum; NULL: not pinned */
    double power;       /* of the norm in `parts`, if they measure the present sum; 0: they don't */
    int part_count;
    mc_host_part *parts; /* one per parameter: this rank's shard */
} mc_bucket_host;

static mc_offload *engine(const mc_zero *z) { return mc_offload_of(z->home); }

/* ---- a bucket's record ----------------------------------------------------------------------- */

static int count_parts(const mc_bucket *b)
{
    int count = 0;
    for (int i = 0; i < b->span_count; i++) count += mc_stored_of(&b->spans[i])->part_count;
    return count;
}

/* Lists this rank's shards of parameters. No job may be running. */
static mc_status list_parts(mc_zero *z, mc_bucket *b)
{
    mc_bucket_host *h = b->host;
    mc_host_part *parts = mc_realloc(h->parts, (size_t)count_parts(b) * sizeof *parts);
    if (!parts) return mc_fail_nomem(z->ctx, "AdamOffload");
    h->parts = parts;
    h->part_count = 0;
    h->power = 0;
    for (int i = 0; i < b->span_count; i++) {
        const mc_stored *stored = mc_stored_of(&b->spans[i]);
        for (int j = 0; j < stored->part_count; j++) {
            int64_t element, count;
            mc_parameter_held(stored->parts[j], &element, &count);
            if (!count) continue;
            h->parts[h->part_count++] =
                (mc_host_part){.first = element - mc_bucket_first(b), .count = count};
        }
    }
    return MC_OK;
}

/* Pins the first `bytes` bytes of the sum, half of it, so that gradients are copied there directly;
 * false: through slots. Whole pages are pinned, each only once: the next allocation is a page
 * away. */
static bool pin_sum(mc_zero *z, mc_bucket *b, size_t bytes)
{
    enum { LEAST = 1 << 13 };
    mc_bucket_host *h = b->host;
    if (!h->pinned && bytes >= LEAST && mc_offload_pin(engine(z), b->sum.data, bytes))
        h->pinned = b->sum.data;
    return h->pinned;
}

static void leave(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    mc_bucket_host *h = b->host;
    if (h->pinned) mc_offload_unpin(engine(z), h->pinned);
    if (device->lanes && b->updating) /* running copies write to the values */
        device->lanes->after(device, NULL, h->uploaded);
    if (device->lanes) device->lanes->fence_free(device, h->uploaded);
    mc_free(h->parts);
    mc_free(h);
}

static mc_status enter(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    mc_bucket_host *h = mc_calloc(1, sizeof *h);
    if (!h) return mc_fail_nomem(z->ctx, "AdamOffload");
    const char *complaint = device->lanes ? device->lanes->fence_new(device, &h->uploaded) : NULL;
    b->host = h;
    return complaint ? mc_fail(z->ctx, MC_ERR_NOMEM, "AdamOffload: %s", complaint) : MC_OK;
}

/* ---- where state is to lie ------------------------------------------------------------------- */

/* Whether all optimizers of a bucket's parameters are AdamOffloads; *share becomes their least
 * gpu_share. A bucket without an optimizer stays where it is. */
static bool may_lie_on_host(const mc_bucket *b, double *share)
{
    bool any = false;
    *share = 1;
    for (int i = 0; i < b->span_count; i++) {
        const mc_stored *stored = mc_stored_of(&b->spans[i]);
        for (int j = 0; j < stored->part_count; j++) {
            const mc_parameter *p = stored->parts[j];
            if (!p->optimizer) continue;
            if (!p->offload) return false;
            any = true;
            if ((double)p->gpu_share < *share) *share = (double)p->gpu_share;
        }
    }
    return any || b->host;
}

/* Decides the place of each bucket; returns whether any bucket must move. */
static bool decide(const mc_zero *z, bool *on_host)
{
    bool wanted = mc_offload_is_wanted(z->ctx), changes = false;
    int64_t total = 0, kept = 0;
    double share;
    for (int i = 0; i < z->bucket_count; i++)
        if (z->buckets[i].trainable && may_lie_on_host(&z->buckets[i], &share))
            total += z->buckets[i].count;
    for (int i = 0; i < z->bucket_count; i++) {
        const mc_bucket *b = &z->buckets[i];
        on_host[i] = b->host;
        if (!b->trainable) continue;
        on_host[i] = wanted && may_lie_on_host(b, &share);
        if (on_host[i] && (double)(kept + b->count) <= share * (double)total) {
            kept += b->count;
            on_host[i] = false;
        }
        changes |= on_host[i] != (b->host != NULL);
    }
    return changes;
}

/* Bytes of host memory that this rank needs in addition. */
static uint64_t bytes_needed(const mc_zero *z, const bool *on_host)
{
    uint64_t bytes = mc_offload_pinned_needed(z->ctx);
    for (int i = 0; i < z->bucket_count; i++) {
        const mc_bucket *b = &z->buckets[i];
        int arrays = MC_STATE_SLOTS + 1;
        for (int k = 0; k < MC_STATE_SLOTS && b->host; k++) arrays -= b->state[k] != NULL;
        if (b->host && b->sum.data) arrays--;
        if (on_host[i]) bytes += (uint64_t)arrays * (uint64_t)b->share * sizeof(float);
    }
    return bytes;
}

/* Reads MC_HOST_MEMORY; UINT64_MAX if it is unset. False if it is not a number of bytes. */
static bool read_limit(uint64_t *most)
{
    const char *text = getenv("MC_HOST_MEMORY");
    char *end;
    *most = UINT64_MAX;
    if (!text || !*text) return true;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || !value) return false;
    *most = value;
    return true;
}

/* Bytes that each rank of this host can get. */
static uint64_t bytes_left(mc_context *ctx, uint64_t most)
{
    uint64_t left = mc_cpu_free_memory(ctx->device) / (uint64_t)mc_world_ranks_here(ctx);
    return most < left ? most : left;
}

static mc_status check_memory(const mc_zero *z, const bool *on_host)
{
    mc_context *ctx = z->ctx;
    uint64_t needed = bytes_needed(z, on_host);
    if (mc_device_is_plan(ctx->device)) return mc_error_status(ctx);
    uint64_t most;
    bool good = read_limit(&most);
    uint64_t left = bytes_left(ctx, most);
    bool mine = !good || needed > left;
    uint8_t any = mine; /* no rank allocates before all have checked */
    mc_status status = mc_ranks_any(ctx, &any, 1);
    if (status || !any) return status;
    if (!good)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "AdamOffload: environment variable MC_HOST_MEMORY=\"%s\": expected a whole "
                       "number of bytes from 1",
                       getenv("MC_HOST_MEMORY"));
    if (!mine)
        return mc_fail(ctx, MC_ERR_NOMEM, "AdamOffload: another rank has too little host memory");
    return mc_fail(ctx, MC_ERR_NOMEM,
                   "AdamOffload: the state of %s needs %llu bytes of host memory, and "
                   "%llu are available to this rank (by the limits of its control groups and what "
                   "is in use); a larger gpu_share leaves more of it on the GPU, and more ranks on "
                   "more hosts have less each",
                   MC_NAMED("model", z->name), (unsigned long long)needed,
                   (unsigned long long)left);
}

static const mc_home HOME;

static mc_status move(mc_module_root *root, mc_bucket *b, bool on_host)
{
    mc_zero *z = &root->zero;
    mc_bucket to;
    if (on_host && !z->home && !(z->home = mc_offload_open(z->ctx, &HOME)))
        return mc_error_status(z->ctx);
    mc_status status = mc_bucket_describe(z, b, &to, NULL);
    mc_bucket_set_level(z, &to, mc_module_level(root, b, on_host));
    if (!status) return mc_module_move_bucket(root, b, &to, on_host);
    mc_bucket_end(z, &to);
    return status;
}

mc_status mc_adam_offload_place(mc_module_root *root)
{
    mc_zero *z = &root->zero;
    bool *on_host = mc_calloc((size_t)z->bucket_count + 1, sizeof *on_host);
    if (!on_host) return mc_fail_nomem(z->ctx, "AdamOffload");
    bool changes = decide(z, on_host);
    mc_status status = changes ? check_memory(z, on_host) : MC_OK;
    if (!status) status = mc_zero_end_reducing(z); /* this may give jobs to the host */
    if (!status) status = mc_zero_await(z);
    if (!status) status = mc_zero_rest(z);
    for (int i = 0; i < z->bucket_count && !status; i++) {
        mc_bucket *b = &z->buckets[i];
        if (on_host[i] != (b->host != NULL)) status = move(root, b, on_host[i]);
    }
    for (int i = 0; i < z->bucket_count && !status; i++)
        if (z->buckets[i].host) status = list_parts(z, &z->buckets[i]);
    mc_free(on_host);
    return status;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static mc_status give_gradient(mc_zero *z, mc_bucket *b, mc_gradient_job job)
{
    mc_bucket_host *h = b->host;
    job.set = b->sum.state == MC_SUM_EMPTY;
    job.sum = b->sum.data;
    job.was = b->sum.dtype;
    job.count = b->share;
    if (job.set && job.from && job.is != MC_F32)
        job.direct = pin_sum(z, b, (size_t)b->share * mc_dtype_size(job.is));
    job.parts = job.power > 0 ? h->parts : NULL;
    job.part_count = h->part_count;
    uint64_t number = mc_offload_gradient(engine(z), &job);
    if (!number) return mc_error_status(z->ctx);
    h->job = number;
    h->power = job.power;
    b->sum.dtype = job.is;
    return mc_sum_go(z, b, job.is == MC_F32 ? MC_SUM_WIDE : MC_SUM_NARROW);
}

static mc_status settle(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_error_status(z->ctx);
    if (b->sum.state == MC_SUM_NARROW)
        status = give_gradient(z, b, (mc_gradient_job){.is = MC_F32});
    return status ? status : mc_offload_wait(engine(z), b->host->job);
}

static mc_status take(mc_zero *z, mc_bucket *b, mc_matrix share, void *block, size_t bytes)
{
    mc_device *device = z->ctx->device;
    mc_gradient_job job = {.from = share.data,
                           .dtype = share.dtype,
                           .is = MC_F32,
                           .power = mc_step_in_last_pass(z->ctx) ? 2 : 0};
    bool only = b->sum.state == MC_SUM_EMPTY && job.power > 0; /* the step's only gradient */
    if (only) job.is = share.dtype;
    mc_status status = give_gradient(z, b, job);
    if (status)
        device->free(device, block, bytes);
    else
        mc_offload_lend(engine(z), b->host->job, block, bytes);
    return status;
}

mc_status mc_host_zero(mc_zero *z, mc_bucket *b, int64_t first, int64_t count)
{
    mc_device *home = z->home->device;
    if (b->sum.state == MC_SUM_EMPTY) return mc_error_status(z->ctx);
    mc_status status = settle(z, b);
    b->host->power = 0;
    if (status || !count) return status;
    return home->kernels->zero(home, mc_bucket_gradient(b, first).data,
                               (size_t)count * sizeof(float));
}

mc_status mc_host_measure_sum(mc_zero *z, mc_bucket *b, double power)
{
    bool empty = b->sum.state == MC_SUM_EMPTY;
    if (!empty && b->host->power == power) return mc_error_status(z->ctx);
    if (!b->sum.data) return mc_error_status(z->ctx); /* it has had no gradient yet */
    mc_dtype is = empty ? MC_F32 : b->sum.dtype;
    return give_gradient(z, b, (mc_gradient_job){.is = is, .power = power});
}

void mc_host_add_stats(const mc_bucket *b, int64_t first, int64_t count, int64_t number,
                       mc_gradient_stats *stats)
{
    for (int i = 0; i < b->host->part_count; i++) {
        const mc_host_part *p = &b->host->parts[i];
        int64_t element = p->first + mc_bucket_first(b);
        if (element < first || element >= first + count) continue;
        mc_step_sums sum = {.stats = *stats}, part = {.stats = p->stats};
        if (part.stats.nonfinite) part.stats.nonfinite -= (uint64_t)(number + element - first);
        mc_step_add_sums(&sum, &part);
        *stats = sum.stats;
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

mc_status mc_host_update(mc_zero *z, mc_bucket *b, int64_t first, int64_t count,
                         const mc_adam_step *step)
{
    mc_bucket_host *h = b->host;
    if (b->sum.state == MC_SUM_EMPTY) { /* unused parameters have a zero gradient */
        mc_status status = give_gradient(z, b, (mc_gradient_job){.is = MC_F32});
        if (status) return status;
    }
    mc_update_job job = {.count = count,
                         .step = *step,
                         .gradient = {mc_bucket_gradient(b, first).data, b->sum.dtype, 0},
                         .m = mc_bucket_state_at(b, MC_STATE_M, first),
                         .v = mc_bucket_state_at(b, MC_STATE_V, first),
                         .master = mc_bucket_state_at(b, MC_STATE_MASTER, first),
                         .parameter = mc_bucket_value_at(b, first),
                         .dtype = b->dtype,
                         .uploaded = h->uploaded};
    uint64_t number = mc_offload_update(engine(z), &job);
    if (number) h->job = number;
    return mc_error_status(z->ctx);
}

/* Makes later launches see the values that the last job has sent. */
static mc_status follow_upload(mc_zero *z, const mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    const char *complaint =
        device->lanes ? device->lanes->after(device, NULL, b->host->uploaded) : NULL;
    if (!complaint) return MC_OK;
    return mc_fail(z->ctx, MC_ERR_DEVICE, "AdamOffload: awaiting parameters: %s", complaint);
}

static mc_status wait_for_values(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_offload_wait(engine(z), b->host->job);
    return status ? status : follow_upload(z, b);
}

static mc_status rest(mc_zero *z)
{
    mc_status status = mc_offload_finish(engine(z));
    for (int i = 0; i < z->bucket_count && !status; i++)
        if (z->buckets[i].updating) status = follow_upload(z, &z->buckets[i]);
    return status;
}

static void end(mc_zero *z) { mc_offload_close(engine(z)); }

static const mc_home HOME = {
    .enter = enter,
    .leave = leave,
    .take = take,
    .settle = settle,
    .wait = wait_for_values,
    .rest = rest,
    .close = end,
};
