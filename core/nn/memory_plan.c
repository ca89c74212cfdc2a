#include "core/nn/memory_plan.h"

#include "core/device/cpu/cpu_internal.h"
#include "core/device/plan_internal.h"
#include "core/nn/fp8_internal.h"
#include "core/nn/memory_plan_internal.h"
#include "core/nn/module_internal.h"
#include "core/nn/quantized_internal.h"

mc_memory_use mc_memory(mc_context *ctx)
{
    mc_device *device = ctx ? ctx->device : NULL;
    if (!device) return (mc_memory_use){0};
    uint64_t touched = device->is_host ? device->memory.touched : device->memory.reserved;
    uint64_t space = device->is_host ? mc_cpu_space_left() : UINT64_MAX;
    uint64_t resident = device->is_host ? mc_cpu_resident() : 0;
    return (mc_memory_use){
        .touched = touched,
        .space = space < UINT64_MAX ? space : 0,
        .buffers = device->is_host ? mc_cpu_library_buffers((const mc_cpu_device *)device) : 0,
        .process = resident > touched ? resident - touched : 0,
        .in_use = device->memory.in_use,
        .peak = device->memory.peak,
        .reserved = device->memory.reserved,
        .available = device->free_memory ? device->free_memory(device) : 0,
    };
}

mc_status mc_device_prepare(mc_context *ctx)
{
    if (!ctx) return MC_ERR_ARGUMENT;
    mc_device *device = ctx->device;
    if (mc_failed(ctx) || !device || !device->prepare) return mc_error_status(ctx);
    mc_status status = device->prepare(device);
    if (status && *device->failure) return mc_fail(ctx, status, "%s", device->failure);
    return status ? mc_fail(ctx, status, "the %s device: %s", device->name, mc_status_text(status))
                  : MC_OK;
}

double mc_device_peak_rate(mc_context *ctx, mc_dtype dtype)
{
    mc_device *device = ctx ? ctx->device : NULL;
    return device && device->peak_rate ? device->peak_rate(device, dtype) : 0;
}

static mc_context *new_dry(mc_context *ctx, const mc_mesh_sizes *sizes, int rank, int level)
{
    mc_device *device = mc_plan_open(ctx->device);
    mc_context *dry = device ? mc_context_new_like(ctx, device) : NULL;
    if (!dry) {
        mc_fail_nomem(ctx, "a memory plan");
        return NULL;
    }
    dry->zero_level = level;
    mc_mesh_place(&dry->mesh, sizes, rank);
    mc_mesh_connect(dry, NULL, NULL);
    return dry;
}

mc_context *mc_plan_context_new(mc_context *ctx)
{
    if (mc_failed(ctx)) return NULL;
    mc_mesh_sizes sizes = mc_mesh_sizes_of(&ctx->mesh);
    return new_dry(ctx, &sizes, ctx->mesh.world.rank, ctx->zero_level);
}

mc_context *mc_plan_context_new_mesh(mc_context *ctx, const mc_mesh_sizes *sizes,
                                     mc_zero_level level)
{
    return new_dry(ctx, sizes, 0, level ? (int)level - MC_ZERO_0 : ctx->zero_level);
}

mc_context *mc_plan_context_new_ranks(mc_context *ctx, int ranks, mc_zero_level level)
{
    if (mc_failed(ctx)) return NULL;
    if (ranks < 1 || ranks > 65536 || level < MC_ZERO_DEFAULT || level > MC_ZERO_3) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "a plan of %d ranks at level %d, expected 1 to 65536 and 0 to 3", ranks,
                (int)level - MC_ZERO_0);
        return NULL;
    }
    return mc_plan_context_new_mesh(ctx, &(mc_mesh_sizes){.data = ranks}, level);
}

/* Bytes of a model's flat arrays at one moment. */
typedef struct flat_count {
    const mc_module_root *root;
    uint64_t parameters, gradients, optimizer;
} flat_count;

static void count_flat(void *user)
{
    flat_count *c = user;
    const mc_module_root *root = c->root;
    *c = (flat_count){.root = root, .parameters = mc_fp8_kept_bytes(root)};
    c->parameters += mc_quantized_bytes(root);
    for (int i = 0; i < root->zero.bucket_count; i++) {
        const mc_bucket *b = &root->zero.buckets[i];
        int64_t values = mc_bucket_shares_values(b) ? b->share : b->count;
        c->parameters += (uint64_t)values * mc_dtype_size(b->dtype);
        if (b->host) continue; /* its other arrays are on the host */
        if (!mc_bucket_shares_gradient(b) && b->gradient.data)
            c->gradients += mc_bucket_gradient_bytes(b);
        if (b->sum.data) c->gradients += mc_sum_bytes(b);
        for (int k = 0; k < MC_STATE_SLOTS; k++)
            if (b->state[k]) c->optimizer += mc_bucket_state_bytes(b, k);
    }
}

static uint64_t sum_of(const flat_count *c) { return c->parameters + c->gradients + c->optimizer; }

/* Runs a step and counts its memory. */
static mc_status count_step(mc_context *dry, mc_module *module,
                            void (*step)(mc_context *ctx, void *user), void *user,
                            mc_memory_plan *plan)
{
    mc_device *device = dry->device;
    mc_plan_restart(device);
    flat_count start = {.root = module->root}, most = start;
    count_flat(&start);
    uint64_t rest = device->memory.in_use - sum_of(&start); /* kept besides the flat arrays */
    mc_plan_watch_peak(device, count_flat, &most);
    mc_comm_volume before = mc_mesh_volume(&dry->mesh);
    step(dry, user);
    mc_plan_watch_peak(device, NULL, NULL);
    mc_comm_volume after = mc_mesh_volume(&dry->mesh);
    if (mc_failed(dry)) return mc_error_status(dry);
    mc_plan_peak peak = mc_plan_peak_of(device);
    *plan = (mc_memory_plan){.parameters = most.parameters,
                             .gradients = most.gradients,
                             .optimizer = most.optimizer,
                             .logits = peak.logits,
                             .peak = peak.bytes,
                             .sent = after.bytes - before.bytes,
                             .collectives = after.calls - before.calls};
    plan->workspace = peak.scratch + device->workspace;
    plan->inputs = rest - device->workspace;
    plan->activations = peak.bytes - sum_of(&most) - rest - peak.logits - peak.scratch;
    return MC_OK;
}

mc_status mc_plan_run(mc_context *dry, mc_module *module, void (*step)(mc_context *ctx, void *user),
                      void *user, mc_memory_plan *plan)
{
    if (mc_failed(dry)) return mc_error_status(dry);
    mc_device *device = dry->device;
    if (!mc_device_is_plan(device))
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan needs a context of mc_plan_context_new");
    if (!mc_given(dry, module) || !mc_given(dry, step) || !mc_given(dry, plan))
        return MC_ERR_ARGUMENT;
    if (module->ctx != dry)
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan: the module is not of its context");
    mc_memory_plan first, later;
    if (count_step(dry, module, step, user, &first) || count_step(dry, module, step, user, &later))
        return mc_error_status(dry);
    *plan = first.peak > later.peak ? first : later;
    uint64_t touched = mc_plan_touched(device);
    plan->touched = touched > plan->peak ? touched : plan->peak;
    plan->space = mc_plan_space(device);
    plan->host = dry->home ? dry->home->bytes(dry->home) : 0;
    plan->sent = later.sent;
    plan->collectives = later.collectives;
    return MC_OK;
}
