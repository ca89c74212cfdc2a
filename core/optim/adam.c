/* Adam and AdamW; the rule stands in optimizer.h. */
#include <math.h>
#include "core/optim/optimizer_internal.h"

/* The settings are an mc_adam_step without what a range says. */
static mc_status adam_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    mc_adam_step step = *(const mc_adam_step *)settings;
    step.update = range->update;
    step.lr_factor = range->lr_factor;
    step.weight_decay = range->weight_decay;
    step.step_offset = range->step_offset;
    mc_device *device = ctx->device;
    return device->kernels->adam(device, range->count, step, mc_range_gradient(range),
                                 range->state[0], range->state[1], range->master, range->parameter,
                                 range->dtype);
}

static const mc_optimizer_kind ADAM = {
    .name = "adam",
    .state_count = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .reads_rounded = true,
    .step = adam_step,
};

mc_optimizer *mc_adam_new(mc_context *ctx, const mc_adam_options *options)
{
    if (mc_failed(ctx)) return NULL;
    mc_adam_options none = {0};
    if (!options) options = &none;
    mc_adam_step settings = {
        .beta1 = mc_option(options->beta1, 0.9f),
        .beta2 = mc_option(options->beta2, 0.999f),
        .eps = mc_option(options->eps, 1e-8f),
        .l2 = options->l2,
    };
    if (!mc_option_check(ctx, "adam", "beta1", settings.beta1, 1) ||
        !mc_option_check(ctx, "adam", "beta2", settings.beta2, 1) ||
        !mc_option_check(ctx, "adam", "eps", settings.eps, INFINITY))
        return NULL;
    mc_optimizer_options common = {options->lr, options->weight_decay, options->no_decay_bias_norm};
    return mc_optimizer_new(ctx, &ADAM, &common, &settings, sizeof settings);
}

mc_optimizer *mc_adam_offload_new(mc_context *ctx, const mc_adam_options *options)
{
    if (mc_failed(ctx)) return NULL;
    float gpu_share = options ? options->gpu_share : 0;
    if (!(gpu_share >= 0 && gpu_share <= 1)) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "adam: gpu_share is %g, expected from 0 to 1",
                (double)gpu_share);
        return NULL;
    }
    mc_optimizer *adam = mc_adam_new(ctx, options);
    if (!adam) return NULL;
    adam->on_host = (const mc_adam_step *)(const void *)adam->settings;
    adam->gpu_share = gpu_share;
    return adam;
}
