/* Buckets whose optimizer state lies on the host: AdamOffload.
 *
 * The unit is the bucket. One whose parameters all belong to AdamOffload optimizers has m, v, the
 * master copy (of f32 parameters too) and the summed gradient as f32 arrays of this rank's share in
 * host memory; values stay on the device. It is of level 2 at least, at one rank too, so gradients
 * exist on the device from the beginning of a block's backward to the end of their reduction: then
 * they go down, in the dtype they travel in between ranks, and are added to the sum. Where a step
 * has only one gradient, as OptimManager knows, it is kept in that dtype until a sum is asked for.
 *
 * A step is decided on the device as always (core/device/step_internal.h), with statistics that the
 * host adds to those of the device. What was decided comes down, the host updates bucket by bucket
 * in forward order and sends the parameters up chunk by chunk. Who wants to use a bucket's
 * parameters awaits that bucket (mc_bucket_await), which is also when ranks exchange them at level
 * 2; so nothing that is done between ranks depends on how quick the host is. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/cpu/cpu_internal.h"
#include "core/device/plan_internal.h"
#include "core/dist/comm_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/dist/world_internal.h"
#include "core/nn/module_internal.h"
#include "core/nn/offload_internal.h"
#include "core/nn/stored.h"

typedef struct mc_bucket_host {
    mc_fence *uploaded; /* its newest parameters */
    uint64_t job;       /* the last one for it */
    bool updating;      /* a step has changed its parameters since they were last awaited */
    bool empty;         /* the sum is undefined and stands for zeros */
    mc_dtype held;      /* what the sum is kept in: see mc_gradient_job */
    bool pinned;        /* the first half of the sum */
    double power;       /* of the norm that `parts` tell of the sum as it stands; 0: of none */
    int part_count;
    mc_host_part *parts; /* of the share: what this rank holds of each parameter */
} mc_bucket_host;

mc_device *mc_bucket_home(const mc_module_root *root, const mc_bucket *b)
{
    return b->host ? mc_offload_home(root->offload) : root->ctx->device;
}

static mc_status fail_copy(mc_module_root *root)
{
    return mc_fail(root->ctx, MC_ERR_DEVICE, "optimizer state of model \"%s\": %s",
                   root->module->name, root->ctx->device->failure);
}

mc_status mc_home_copy(mc_module_root *root, float *to, bool to_host, const float *from,
                       bool from_host, int64_t count)
{
    mc_device *device = root->ctx->device;
    size_t bytes = (size_t)count * sizeof *to;
    if (mc_device_is_plan(device) || !count) return MC_OK;
    if (to_host && from_host)
        memcpy(to, from, bytes);
    else if (to_host)
        return device->copy_out(device, to, from, bytes) ? MC_OK : fail_copy(root);
    else if (from_host)
        device->copy_in(device, to, from, bytes);
    else
        return device->kernels->scale(device, count,
                                      (mc_matrix){(void *)(uintptr_t)from, MC_F32, 0}, 1,
                                      (mc_matrix){to, MC_F32, 0}, false);
    return MC_OK;
}

/* ---- what a bucket has on the host ----------------------------------------------------------- */

static int count_parts(const mc_bucket *b)
{
    int count = 0;
    for (int i = 0; i < b->stored_count; i++) count += b->stored[i]->part_count;
    return count;
}

/* Lists the parameters that this rank holds elements of, which are known when the bucket is filled
 * and has its level. */
static mc_status list_parts(mc_module_root *root, mc_bucket *b)
{
    mc_bucket_host *h = b->host;
    mc_host_part *parts = mc_realloc(h->parts, (size_t)count_parts(b) * sizeof *parts);
    if (!parts) return mc_fail_nomem(root->ctx, "AdamOffload");
    h->parts = parts;
    h->part_count = 0;
    h->power = 0;
    for (int i = 0; i < b->stored_count; i++)
        for (int j = 0; j < b->stored[i]->part_count; j++) {
            int64_t element, count;
            mc_parameter_held(b->stored[i]->parts[j], &element, &count);
            if (!count) continue;
            h->parts[h->part_count++] =
                (mc_host_part){.first = element - mc_bucket_first(b), .count = count};
        }
    return MC_OK;
}

mc_status mc_bucket_make_host(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = root->ctx->device;
    if (b->host) return MC_OK;
    if (!root->offload && !(root->offload = mc_offload_open(root->ctx)))
        return mc_error_status(root->ctx);
    mc_bucket_host *h = mc_calloc(1, sizeof *h);
    if (!h) return mc_fail_nomem(root->ctx, "AdamOffload");
    h->empty = true;
    h->held = MC_F32;
    const char *complaint = device->lanes ? device->lanes->fence_new(device, &h->uploaded) : NULL;
    b->host = h;
    if (!complaint) return MC_OK;
    mc_bucket_free_host(root, b);
    return mc_fail(root->ctx, MC_ERR_NOMEM, "AdamOffload: %s", complaint);
}

/* Whether the first `bytes` of the sum, half of it, can be copied to; else copies go by way of
 * slots. Pages are pinned, which no two may ask for: what lies after is a page away at least. */
static bool pin_sum(mc_module_root *root, mc_bucket *b, size_t bytes)
{
    enum { LEAST = 1 << 13 };
    mc_bucket_host *h = b->host;
    if (!h->pinned && bytes >= LEAST)
        h->pinned = mc_offload_pin(root->offload, b->kept_gradient, bytes);
    return h->pinned;
}

/* Before it is freed. */
static void unpin_sum(mc_module_root *root, mc_bucket *b)
{
    if (b->host->pinned) mc_offload_unpin(root->offload, b->kept_gradient);
    b->host->pinned = false;
}

void mc_bucket_free_host(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = root->ctx->device;
    if (!b->host) return;
    unpin_sum(root, b);
    if (device->lanes && b->host->updating) /* memory that copies on their way write to is freed */
        device->lanes->after(device, NULL, b->host->uploaded);
    if (device->lanes) device->lanes->fence_free(device, b->host->uploaded);
    mc_free(b->host->parts);
    mc_free(b->host);
    b->host = NULL;
}

mc_status mc_bucket_fill_master(mc_module_root *root, mc_bucket *b, int64_t element, int64_t count)
{
    enum { PIECE = 1 << 20 };
    mc_device *device = root->ctx->device, *home = mc_bucket_home(root, b);
    size_t size = mc_dtype_size(b->dtype);
    float *master = mc_bucket_state_at(b, MC_STATE_MASTER, element);
    char *values = mc_bucket_value_at(b, element);
    if (!b->host)
        return device->kernels->scale(device, count, (mc_matrix){values, b->dtype, count}, 1,
                                      (mc_matrix){master, MC_F32, count}, false);
    void *piece = home->alloc(home, PIECE * size);
    if (!piece) return mc_fail_nomem(root->ctx, "a master copy");
    mc_status status = MC_OK;
    for (int64_t at = 0; at < count && !status && !mc_device_is_plan(device); at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        if (!device->copy_out(device, piece, values + (size_t)at * size, (size_t)n * size))
            status = fail_copy(root);
        else
            home->kernels->scale(home, n, (mc_matrix){piece, b->dtype, n}, 1,
                                 (mc_matrix){master + at, MC_F32, n}, false);
    }
    home->free(home, piece, PIECE * size);
    return status;
}

/* ---- where state is to lie ------------------------------------------------------------------- */

int mc_bucket_level(const mc_module_root *root, const mc_bucket *b, bool host)
{
    int level = b->owner->zero_level ? b->owner->zero_level - MC_ZERO_0 : root->ctx->zero_level;
    if (!root->ctx->mesh.shard.comm) level = 0;
    if (host && b->trainable && level < 2) return 2;
    return b->trainable || level == 3 ? level : 0; /* frozen ones have nothing else to share */
}

/* Whether all of a bucket's parameters that have an optimizer have an AdamOffload; *share is the
 * least of their gpu_share. A bucket that nobody steps stays as it is. */
static bool may_lie_on_host(const mc_bucket *b, double *share)
{
    bool any = false;
    *share = 1;
    for (int i = 0; i < b->stored_count; i++)
        for (int j = 0; j < b->stored[i]->part_count; j++) {
            const mc_parameter *p = b->stored[i]->parts[j];
            if (!p->optimizer) continue;
            if (!p->offload) return false;
            any = true;
            if ((double)p->gpu_share < *share) *share = (double)p->gpu_share;
        }
    return any || b->host;
}

/* Decides for each bucket; whether anything is to change. */
static bool decide(mc_module_root *root)
{
    bool wanted = mc_offload_is_wanted(root->ctx), changes = false;
    int64_t total = 0, kept = 0;
    double share;
    for (int i = 0; i < root->bucket_count; i++)
        if (root->buckets[i].trainable && may_lie_on_host(&root->buckets[i], &share))
            total += root->buckets[i].count;
    for (int i = 0; i < root->bucket_count; i++) {
        mc_bucket *b = &root->buckets[i];
        b->wants_host = b->host;
        if (!b->trainable) continue;
        b->wants_host = wanted && may_lie_on_host(b, &share);
        if (b->wants_host && (double)(kept + b->count) <= share * (double)total) {
            kept += b->count;
            b->wants_host = false;
        }
        changes |= b->wants_host != (b->host != NULL);
    }
    return changes;
}

/* Bytes of the host's memory that this rank will take beside what it has. */
static uint64_t bytes_needed(const mc_module_root *root)
{
    uint64_t bytes = mc_offload_pinned_needed(root->ctx);
    for (int i = 0; i < root->bucket_count; i++) {
        const mc_bucket *b = &root->buckets[i];
        int arrays = MC_STATE_SLOTS + 1;
        for (int k = 0; k < MC_STATE_SLOTS && b->host; k++) arrays -= b->state[k] != NULL;
        if (b->host && b->kept_gradient) arrays--;
        if (b->wants_host) bytes += (uint64_t)arrays * (uint64_t)b->share * sizeof(float);
    }
    return bytes;
}

/* MC_HOST_MEMORY, or UINT64_MAX where it is not set; false where it is no number of bytes. */
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

/* What each rank of this host can have. */
static uint64_t bytes_left(mc_context *ctx, uint64_t most)
{
    uint64_t left = mc_cpu_free_memory(ctx->device) / (uint64_t)mc_world_ranks_here(ctx);
    return most < left ? most : left;
}

static mc_status check_memory(mc_module_root *root)
{
    mc_context *ctx = root->ctx;
    uint64_t needed = bytes_needed(root);
    if (mc_device_is_plan(ctx->device)) return mc_error_status(ctx);
    uint64_t most;
    bool good = read_limit(&most);
    uint64_t left = bytes_left(ctx, most);
    bool mine = !good || needed > left;
    uint8_t any = mine; /* each rank has looked by then, before one takes memory */
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
                   "AdamOffload: the state of model \"%s\" needs %llu bytes of host memory, and "
                   "%llu are available to this rank (by the limits of its control groups and what "
                   "is in use); a larger gpu_share leaves more of it on the GPU, and more ranks on "
                   "more hosts have less each",
                   root->module->name, (unsigned long long)needed, (unsigned long long)left);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static mc_status give_gradient(mc_module_root *root, mc_bucket *b, mc_gradient_job job)
{
    mc_bucket_host *h = b->host;
    job.set = h->empty;
    job.sum = b->kept_gradient;
    job.was = h->held;
    job.count = b->share;
    if (job.set && job.from && job.is != MC_F32)
        job.direct = pin_sum(root, b, (size_t)b->share * mc_dtype_size(job.is));
    job.parts = job.power > 0 ? h->parts : NULL;
    job.part_count = h->part_count;
    uint64_t number = mc_offload_gradient(root->offload, &job);
    if (!number) return mc_error_status(root->ctx);
    h->job = number;
    h->empty = false;
    h->held = job.is;
    h->power = job.power;
    return MC_OK;
}

/* Waits for the sum, in f32. */
static mc_status need_sum(mc_module_root *root, mc_bucket *b)
{
    mc_bucket_host *h = b->host;
    mc_status status = mc_error_status(root->ctx);
    if (!h->empty && h->held != MC_F32)
        status = give_gradient(root, b, (mc_gradient_job){.is = MC_F32});
    return status ? status : mc_offload_wait(root->offload, h->job);
}

/* ---- moving it ------------------------------------------------------------------------------- */

static mc_status move_array(mc_module_root *root, float **array, int64_t count, bool to_host)
{
    mc_device *device = root->ctx->device, *host = mc_offload_home(root->offload);
    mc_device *from = to_host ? device : host, *to = to_host ? host : device;
    size_t bytes = (size_t)count * sizeof(float);
    if (!*array) return MC_OK;
    float *new = to->alloc(to, bytes);
    if (!new)
        return mc_fail_memory(root->ctx, to, bytes, MC_HELP_MODEL,
                              "optimizer state of model \"%s\"", root->module->name);
    mc_status status = mc_home_copy(root, new, to_host, *array, !to_host, count);
    from->free(from, *array, bytes);
    *array = new;
    return status;
}

static mc_status move_sum(mc_module_root *root, mc_bucket *b, bool to_host)
{
    mc_status status = mc_bucket_widen_kept(root, b);
    float *sum = b->kept_gradient;
    if (!status) status = move_array(root, &sum, b->share, to_host);
    b->kept_gradient = sum;
    return status;
}

static mc_status move_arrays(mc_module_root *root, mc_bucket *b, bool to_host)
{
    mc_status status = MC_OK;
    for (int k = 0; k < MC_STATE_SLOTS && !status; k++)
        status = move_array(root, &b->state[k], mc_bucket_held(b), to_host);
    return status ? status : move_sum(root, b, to_host);
}

static mc_status change_level(mc_module_root *root, mc_bucket *b, int level)
{
    if (b->level == level) return mc_error_status(root->ctx);
    mc_status status = mc_bucket_unshard(root, b);
    return status || !level ? status : mc_bucket_shard(root, b, level);
}

static mc_status move_to_host(mc_module_root *root, mc_bucket *b)
{
    mc_status status = change_level(root, b, mc_bucket_level(root, b, true));
    if (!status) status = mc_bucket_make_host(root, b);
    if (status) return status;
    b->host->empty = !b->kept_gradient;
    return move_arrays(root, b, true);
}

static void drop_array(mc_device *home, float **array, int64_t count)
{
    home->free(home, *array, (size_t)count * sizeof(float));
    *array = NULL;
}

static void drop_sum(mc_device *home, mc_bucket *b)
{
    home->free(home, b->kept_gradient, mc_bucket_kept_bytes(b));
    b->kept_gradient = NULL;
}

static mc_status move_to_device(mc_module_root *root, mc_bucket *b)
{
    mc_device *home = mc_bucket_home(root, b);
    mc_status status = need_sum(root, b);
    if (status) return status;
    unpin_sum(root, b);
    if (b->host->empty) drop_sum(home, b);
    if (b->dtype == MC_F32) drop_array(home, &b->state[MC_STATE_MASTER], mc_bucket_held(b));
    status = move_arrays(root, b, false);
    if (status) return status;
    mc_bucket_free_host(root, b);
    status = change_level(root, b, mc_bucket_level(root, b, false));
    b->summed = root->ctx->mesh.shard.comm && b->level < 2 && b->gradient;
    return status;
}

mc_status mc_module_place(mc_module_root *root)
{
    if (root->placed || mc_is_on_open_tape(root->ctx, root, NULL))
        return mc_error_status(root->ctx);
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    bool changes = decide(root);
    mc_status status = changes ? check_memory(root) : MC_OK;
    if (!status) status = mc_module_end_reducing(root); /* which may send down what it gives */
    if (!status) status = mc_module_await(root);
    if (!status) status = mc_module_rest(root);
    for (int i = 0; i < root->bucket_count && !status && changes; i++) {
        mc_bucket *b = &root->buckets[i];
        if (b->wants_host && !b->host) status = move_to_host(root, b);
        if (!b->wants_host && b->host) status = move_to_device(root, b);
    }
    for (int i = 0; i < root->bucket_count && !status; i++)
        if (root->buckets[i].host) status = list_parts(root, &root->buckets[i]);
    root->placed = !status;
    return status;
}

/* ---- gradients ------------------------------------------------------------------------------- */

mc_status mc_bucket_send(mc_module_root *root, mc_bucket *b, mc_matrix share, void *block,
                         size_t bytes)
{
    mc_device *device = root->ctx->device;
    mc_gradient_job job = {.from = share.data,
                           .dtype = share.dtype,
                           .is = MC_F32,
                           .power = mc_step_in_last_pass(root->ctx) ? 2 : 0};
    if (b->host->empty && job.power > 0) job.is = share.dtype; /* a step's first and last */
    mc_status status = give_gradient(root, b, job);
    if (status)
        device->free(device, block, bytes);
    else
        mc_offload_lend(root->offload, b->host->job, block, bytes);
    return status;
}

void mc_bucket_forget_sum(mc_bucket *b)
{
    b->host->empty = true;
    b->host->power = 0;
}

mc_status mc_bucket_change_sum(mc_module_root *root, mc_bucket *b)
{
    mc_status status = need_sum(root, b);
    b->host->power = 0;
    return status;
}

mc_status mc_bucket_copy_sum(mc_module_root *root, mc_bucket *b, float *to)
{
    mc_device *device = root->ctx->device;
    mc_status status = b->host ? need_sum(root, b) : MC_OK;
    if (status) return status;
    if (b->host && b->host->empty)
        return device->kernels->zero(device, to, (size_t)b->share * sizeof *to);
    if (b->host) return mc_home_copy(root, to, false, b->kept_gradient, true, b->share);
    mc_matrix kept = mc_bucket_gradient(b, b->first), sums = {to, MC_F32, b->share};
    return device->kernels->scale(device, b->share, kept, 1, sums, false);
}

mc_status mc_bucket_gradient_stats(mc_module_root *root, mc_bucket *b, int64_t first, int64_t count,
                                   mc_tensor_stats *stats)
{
    mc_device *device = root->ctx->device, *home = mc_bucket_home(root, b);
    mc_tensor_stats sum = {.count = count};
    mc_status status = need_sum(root, b);
    if (!status && !b->host->empty)
        status = home->kernels->tensor_stats(home, count, mc_bucket_gradient(b, first), &sum);
    if (!status) device->copy_in(device, stats, &sum, sizeof sum);
    return status;
}

mc_status mc_bucket_take_sum(mc_module_root *root, mc_bucket *b)
{
    mc_bucket_forget_sum(b);
    b->host->empty = false;
    b->host->held = MC_F32;
    return move_sum(root, b, true);
}

mc_status mc_bucket_give_sum(mc_module_root *root, mc_bucket *b)
{
    mc_device *home = mc_bucket_home(root, b);
    mc_status status = need_sum(root, b);
    if (status) return status;
    unpin_sum(root, b);
    if (b->host->empty) drop_sum(home, b);
    mc_bucket_forget_sum(b);
    return move_sum(root, b, false);
}

bool mc_bucket_has_sum(const mc_bucket *b) { return !b->host->empty; }

mc_status mc_bucket_measure(mc_module_root *root, mc_bucket *b, double power)
{
    if (!b->host->empty && b->host->power == power) return mc_error_status(root->ctx);
    if (!b->kept_gradient) return mc_error_status(root->ctx); /* it has taken no part yet */
    mc_dtype is = b->host->empty ? MC_F32 : b->host->held;
    return give_gradient(root, b, (mc_gradient_job){.is = is, .power = power});
}

void mc_bucket_add_stats(const mc_bucket *b, int64_t first, int64_t count, int64_t number,
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

bool mc_bucket_is_updating(const mc_bucket *b) { return b->host && b->host->updating; }

void mc_bucket_begin_update(mc_bucket *b) { b->host->updating = true; }

mc_status mc_bucket_update(mc_module_root *root, mc_bucket *b, int64_t first, int64_t count,
                           const mc_adam_step *step)
{
    mc_bucket_host *h = b->host;
    if (h->empty) { /* parameters that took no part have a gradient of zero */
        mc_status status = give_gradient(root, b, (mc_gradient_job){.is = MC_F32});
        if (status) return status;
    }
    size_t skipped = (size_t)(first - b->first) * mc_dtype_size(h->held);
    mc_update_job job = {.count = count,
                         .step = *step,
                         .gradient = {(char *)b->kept_gradient + skipped, h->held, 0},
                         .m = mc_bucket_state_at(b, MC_STATE_M, first),
                         .v = mc_bucket_state_at(b, MC_STATE_V, first),
                         .master = mc_bucket_state_at(b, MC_STATE_MASTER, first),
                         .parameter = mc_bucket_value_at(b, first),
                         .dtype = b->dtype,
                         .uploaded = h->uploaded};
    uint64_t number = mc_offload_update(root->offload, &job);
    if (number) h->job = number;
    return mc_error_status(root->ctx);
}

mc_status mc_bucket_await(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = root->ctx->device;
    mc_bucket_host *h = b->host;
    if (!h || !h->updating) return mc_error_status(root->ctx);
    h->updating = false;
    mc_status status = mc_offload_wait(root->offload, h->job);
    if (status) return status;
    const char *complaint = device->lanes ? device->lanes->after(device, NULL, h->uploaded) : NULL;
    if (complaint)
        return mc_fail(root->ctx, MC_ERR_DEVICE, "AdamOffload: awaiting parameters: %s", complaint);
    return mc_bucket_publish(root, b);
}

mc_status mc_module_await(mc_module_root *root)
{
    mc_status status = mc_error_status(root->ctx);
    for (int i = 0; i < root->bucket_count && !status && root->offload; i++)
        status = mc_bucket_await(root, &root->buckets[i]);
    return status;
}

mc_status mc_module_rest(mc_module_root *root)
{
    mc_device *device = root->ctx->device;
    mc_status status = mc_offload_finish(root->offload);
    for (int i = 0; i < root->bucket_count && !status && root->offload && device->lanes; i++)
        if (mc_bucket_is_updating(&root->buckets[i]))
            device->lanes->after(device, NULL, root->buckets[i].host->uploaded);
    return status ? status : mc_error_status(root->ctx);
}

mc_status mc_module_wait(mc_module *module)
{
    return module ? mc_module_rest(module->root) : MC_ERR_ARGUMENT;
}
