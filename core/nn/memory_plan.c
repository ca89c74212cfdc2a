#include "core/nn/memory_plan.h"

#include "core/device/plan_internal.h"
#include "core/device/plan_time_internal.h"
#include "core/dist/comm_internal.h"
#include "core/nn/module_internal.h"
#include "core/nn/offload_internal.h"

mc_memory_use mc_memory(mc_context *ctx)
{
    mc_device *device = ctx ? ctx->device : NULL;
    if (!device) return (mc_memory_use){0};
    return (mc_memory_use){
        .in_use = device->memory.in_use,
        .peak = device->memory.peak,
        .reserved = device->memory.reserved,
        .available = device->free_memory ? device->free_memory(device) : 0,
    };
}

double mc_device_peak_rate(mc_context *ctx, mc_dtype dtype)
{
    mc_device *device = ctx ? ctx->device : NULL;
    return device && device->peak_rate ? device->peak_rate(device, dtype) : 0;
}

static mc_context *new_dry(mc_context *ctx, int ranks, int rank, int level)
{
    mc_device *device = mc_plan_open(ctx->device);
    mc_context *dry = device ? mc_context_new_like(ctx, device) : NULL;
    if (!dry) {
        mc_fail_nomem(ctx, "a memory plan");
        return NULL;
    }
    dry->world_size = ranks;
    dry->rank = rank;
    dry->zero_level = level;
    if (ranks > 1) dry->comm = mc_comm_new(dry, NULL, ranks, rank, NULL);
    return dry;
}

mc_context *mc_plan_context_new(mc_context *ctx)
{
    if (mc_failed(ctx)) return NULL;
    return new_dry(ctx, ctx->world_size, ctx->rank, ctx->zero_level);
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
    return new_dry(ctx, ranks, 0, level ? (int)level - MC_ZERO_0 : ctx->zero_level);
}

static mc_status check_time(mc_context *dry, const mc_time_options *o)
{
    if (mc_failed(dry)) return mc_error_status(dry);
    if (!mc_device_is_plan(dry->device))
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan needs a context of mc_plan_context_new");
    if (o->rates != MC_RATES_HERE && o->rates != MC_RATES_H200)
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan's rates are %d, expected a mc_rates_source",
                       (int)o->rates);
    if (!(o->host_bus >= 0) || !(o->host_memory >= 0))
        return mc_fail(dry, MC_ERR_ARGUMENT,
                       "a plan's host_bus is %g, host_memory %g, expected 0 or more", o->host_bus,
                       o->host_memory);
    if (!(o->bus >= 0) || !(o->network >= 0) || o->ranks_per_host < 0)
        return mc_fail(dry, MC_ERR_ARGUMENT,
                       "a plan's bus is %g, network %g, ranks of a host %d, expected 0 or more",
                       o->bus, o->network, o->ranks_per_host);
    return MC_OK;
}

mc_status mc_plan_time(mc_context *dry, const mc_time_options *options)
{
    mc_time_options none = {0};
    const mc_time_options *o = options ? options : &none;
    if (check_time(dry, o)) return mc_error_status(dry);
    mc_rates *rates =
        o->rates == MC_RATES_H200 ? mc_rates_h200() : mc_rates_here(mc_plan_like(dry->device));
    if (!rates) return mc_fail_nomem(dry, "a table of rates");
    mc_plan_set_rates(dry->device, rates);
    if (o->rates == MC_RATES_H200) mc_plan_pretend_gpu(dry->device);
    rates->ranks_per_host = o->ranks_per_host ? o->ranks_per_host : 8;
    rates->network = o->network > 0 ? o->network : 50e9;
    rates->bus_most = o->bus;
    rates->host_bus = o->host_bus > 0 ? o->host_bus : 50e9;
    rates->host_memory = o->host_memory > 0 ? o->host_memory : 1e9 * MC_PLAN_HOST_GBS;
    if (o->comm) {
        rates->bus_count = 0;
        rates->begin = 0; /* it is in what is measured */
    }
    if (o->comm && mc_comm_measure(o->comm, rates))
        return mc_fail(dry, mc_error_status(o->comm->ctx), "measuring collectives: %s",
                       mc_error_message(o->comm->ctx));
    if (!rates->bus_count && !o->bus) rates->bus_most = 5e9;
    return MC_OK;
}

static mc_time_plan time_of(mc_device *device)
{
    const mc_plan_clock *clock = mc_plan_clock_of(device);
    const mc_rates *rates = mc_plan_rates_of(device);
    if (!rates) return (mc_time_plan){0};
    return (mc_time_plan){.products = clock->part[MC_PART_PRODUCTS],
                          .attention = clock->part[MC_PART_ATTENTION],
                          .elementwise = clock->part[MC_PART_ELEMENTWISE],
                          .loss = clock->part[MC_PART_LOSS],
                          .optimizer = clock->part[MC_PART_OPTIMIZER],
                          .exposed = clock->exposed,
                          .offload = clock->offload,
                          .total = clock->now - clock->begin,
                          .communication = clock->communication,
                          .product_rate = rates->best_product};
}

/* The flat arrays of a model. */
static void count_buckets(const mc_module_root *root, mc_memory_plan *plan)
{
    for (int i = 0; i < root->bucket_count; i++) {
        const mc_bucket *bucket = &root->buckets[i];
        uint64_t count = (uint64_t)bucket->count, share = (uint64_t)bucket->share;
        uint64_t held = (uint64_t)mc_bucket_held(bucket);
        plan->parameters += (bucket->level == 3 ? share : count) * mc_dtype_size(bucket->dtype);
        if (bucket->host) continue; /* nothing else is on the device */
        if (bucket->level < 2 && bucket->gradient)
            plan->gradients += mc_bucket_gradient_bytes(bucket);
        if (bucket->kept_gradient) plan->gradients += share * sizeof(float);
        for (int k = 0; k < MC_STATE_SLOTS; k++)
            if (bucket->state[k]) plan->optimizer += held * sizeof(float);
    }
}

mc_status mc_plan_run(mc_context *dry, mc_module *module, void (*step)(mc_context *ctx, void *user),
                      void *user, mc_memory_plan *plan)
{
    if (mc_failed(dry)) return mc_error_status(dry);
    mc_device *device = dry->device;
    if (!mc_device_is_plan(device))
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan needs a context of mc_plan_context_new");
    if (!module || module->ctx != dry)
        return mc_fail(dry, MC_ERR_ARGUMENT, "a plan: the module is not of its context");
    step(dry, user);
    mc_plan_restart(device);
    uint64_t kept = device->memory.in_use;
    mc_comm_volume before = {0}, after = {0};
    if (dry->comm) before = mc_comm_volume_of(dry->comm);
    if (!mc_failed(dry)) step(dry, user);
    if (dry->comm) after = mc_comm_volume_of(dry->comm);
    if (mc_failed(dry)) return mc_error_status(dry);
    mc_plan_peak peak = mc_plan_peak_of(device);
    *plan = (mc_memory_plan){.logits = peak.logits,
                             .peak = peak.bytes,
                             .host = mc_offload_host_bytes(dry),
                             .sent = after.bytes - before.bytes,
                             .collectives = after.calls - before.calls,
                             .time = time_of(device)};
    count_buckets(module->root, plan);
    plan->workspace = peak.scratch + device->workspace;
    plan->inputs = kept - plan->parameters - plan->gradients - plan->optimizer - device->workspace;
    plan->activations = peak.bytes - kept - peak.logits - peak.scratch;
    return MC_OK;
}
