/* Adam and AdamW; the update rule is in optimizer.h. */
#include <math.h>
#include "core/optim/optimizer_internal.h"

static mc_adam_step step_of(const mc_adam_step *settings, const mc_optimizer_range *range)
{
    mc_adam_step step = *settings;
    step.update = range->update;
    step.lr_factor = range->lr_factor;
    step.weight_decay = range->weight_decay;
    step.step_offset = range->step_offset;
    return step;
}

mc_status mc_adam_range8(mc_context *ctx, const mc_adam_step *settings,
                         const mc_optimizer_range *range, mc_state8 m, mc_state8 v)
{
    mc_device *device = ctx->device;
    return device->kernels->adam8(device, range->count, step_of(settings, range),
                                  mc_range_gradient(range), m, v, range->master, range->parameter,
                                  range->dtype);
}

mc_status mc_adam_range(mc_context *ctx, const mc_adam_step *settings,
                        const mc_optimizer_range *range)
{
    mc_adam_step step = step_of(settings, range);
    mc_device *device = ctx->device;
    return device->kernels->adam(device, range->count, step, mc_range_gradient(range),
                                 range->state[0], range->state[1], range->master, range->parameter,
                                 range->dtype);
}

static mc_status adam_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    return mc_adam_range(ctx, settings, range);
}

bool mc_adam_settings(mc_context *ctx, const char *who, float beta1, float beta2, float eps,
                      mc_adam_step *settings)
{
    *settings = (mc_adam_step){.beta1 = mc_option(beta1, 0.9f),
                               .beta2 = mc_option(beta2, 0.999f),
                               .eps = mc_option(eps, 1e-8f)};
    return mc_option_check(ctx, who, "beta1", settings->beta1, 1) &&
           mc_option_check(ctx, who, "beta2", settings->beta2, 1) &&
           mc_option_check(ctx, who, "eps", settings->eps, INFINITY);
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
    mc_adam_step settings;
    if (!mc_adam_settings(ctx, "adam", options->beta1, options->beta2, options->eps, &settings))
        return NULL;
    settings.l2 = options->l2;
    mc_optimizer_options common = {options->lr, options->weight_decay, options->no_decay_bias_norm};
    mc_optimizer *o = mc_optimizer_new(ctx, &ADAM, &common, &settings, sizeof settings);
    if (o && options->eight_bit) o->eight_bit = (const mc_adam_step *)(const void *)o->settings;
    return o;
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
    if (options && options->eight_bit) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "adam: eight_bit is set, expected it without AdamOffload, whose state is f32");
        return NULL;
    }
    mc_optimizer *adam = mc_adam_new(ctx, options);
    if (!adam) return NULL;
    adam->on_host = (const mc_adam_step *)(const void *)adam->settings;
    adam->gpu_share = gpu_share;
    return adam;
}
